"""Backward passes: twice, of some outputs, accumulated, of higher order.

Each program gives what eager gives, in values, metadata and exceptions, when its function is compiled.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from tests.support.functions import mlp
from tests.support.surroundings import Programs, assert_agree, inputs, outcome, show
from tests.support.tensors import leaf

PROGRAMS = Programs()
program = PROGRAMS.add
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


@program
def retain_twice(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    o = f(*a).square().sum()
    r = [torch.autograd.grad(o, a, retain_graph=True) for _ in range(3)]
    return (r, torch.autograd.grad(o, a), outcome(lambda: torch.autograd.grad(o, a)))


@program
def second_backward(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    o = f(*a)
    o.sum().backward()
    return outcome(lambda: o.sum().backward())


@program
def second_backward_unused_saved(compiled: Any) -> Any:
    f = compiled(lambda x: x + 1)
    a = leaf(3)
    o = f(a)
    o.sum().backward()
    return (outcome(lambda: o.sum().backward()), a.grad)


@program
def second_backward_mul_const(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    a = leaf(3)
    o = f(a)
    o.sum().backward()
    return (outcome(lambda: o.sum().backward()), a.grad)


@program
def unused(compiled: Any) -> Any:
    f = compiled(lambda x, y: (x * 2, y.sin()))
    x, y = (leaf(3), leaf(3))
    z = leaf(3)
    o, p = f(x, y)
    return (
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y], retain_graph=True)),
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y], allow_unused=True, retain_graph=True)),
        outcome(lambda: torch.autograd.grad(o.sum(), [x, z], retain_graph=True)),
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y, z], materialize_grads=True, retain_graph=True)),
    )


@program
def unused_in_graph(compiled: Any) -> Any:
    f = compiled(lambda x, y: x * 2)
    x, y = (leaf(3), leaf(3))
    o = f(x, y)
    return (
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y], retain_graph=True)),
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y], allow_unused=True)),
    )


@program
def inputs_of_backward(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a).square().sum().backward(inputs=[a[1]])
    return [t.grad for t in a]


@program
def accumulation(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    for _ in range(3):
        f(*a).square().sum().backward()
    return [t.grad for t in a]


@program
def accumulate_storage(compiled: Any) -> Any:
    f = compiled(lambda x, y: x + y)
    x, y = (leaf(3), leaf(3))
    f(x, y).sum().backward()
    return (x.grad.data_ptr() == y.grad.data_ptr(), x.grad._is_view(), x.grad.is_contiguous())


@program
def tangents(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * 2)
    out = []
    for g in (
        torch.randn(6, 4).t(),
        torch.ones(()).expand(4, 6),
        torch.randn(8, 12)[::2, ::2],
        torch._efficientzerotensor((4, 6)),
        torch.randn(4, 6).to_sparse(),
        torch.zeros(4, 6),
        torch.randn(4, 6, dtype=torch.complex64).imag,
        torch.randn(4, 6, dtype=torch.complex64).conj().imag,
    ):
        x = leaf(4, 6)
        o = f(x)
        out.append(outcome(lambda: torch.autograd.grad(o, x, g)))
    return out


@program
def grad_shape_error(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin())
    x = leaf(3)
    o = f(x)
    return (
        outcome(lambda: o.backward(torch.ones(4))),
        outcome(lambda: o.backward()),
        outcome(lambda: o.backward(torch.ones(3, dtype=torch.float64))),
        x.grad,
    )


@program
def double_backward(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs(torch.float64)
    return (torch.autograd.gradgradcheck(f, a), torch.autograd.gradcheck(f, a))


@program
def multi_out_partial(compiled: Any) -> Any:
    f = compiled(lambda x, y: (x * y, x.sin(), y.cos(), x.detach(), x > 0, None, 3))
    x, y = (leaf(3), leaf(3))
    r = []
    for k in range(3):
        x.grad = y.grad = None
        o = f(x, y)
        o[k].sum().backward()
        r.append((show(x.grad), show(y.grad)))
    return (r, [isinstance(t, torch.Tensor) and (t.requires_grad, t.is_leaf) for t in o])


@program
def grad_is_leaf(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a).sum().backward()
    return [(t.grad.requires_grad, t.grad.is_leaf, t.grad.grad_fn is None, t.grad.stride()) for t in a]


@program
def create_graph_penalty(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    g = torch.autograd.grad(f(*a).square().sum(), a, create_graph=True)
    sum((t.square().sum() for t in g)).backward()
    return [t.grad for t in a]


@program
def double_bn(compiled: Any) -> Any:
    m = nn.BatchNorm1d(3)
    f = compiled(lambda x: m(x).sin())
    x = leaf(4, 3, dtype=torch.float32)
    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    g.square().sum().backward()
    return (x.grad, m.running_mean, m.num_batches_tracked)


@program
def third_order(compiled: Any) -> Any:
    f = compiled(lambda x: x**4)
    x = leaf(3, dtype=torch.float64)
    o = f(x).sum()
    for _ in range(3):
        (o,) = torch.autograd.grad(o, x, create_graph=True)
        o = o.sum()
    return o


@program
def complex_bwd(compiled: Any) -> Any:
    f = compiled(lambda x: (x * x.conj()).real.sqrt())
    x = leaf(3, dtype=torch.complex64)
    f(x).sum().backward()
    return str(x.grad)


@program
def grad_dtype_param_half(compiled: Any) -> Any:
    f = compiled(lambda x, w: x.double() @ w.double())
    x, w = (leaf(2, 3), leaf(3, 2))
    f(x, w).sum().backward()
    return (x.grad, w.grad)


@program
def expanded_leaf(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    x = torch.randn(3, 1).expand(3, 4).requires_grad_()
    f(x).sum().backward()
    return (x.grad, x.grad.stride())


@program
def noncontig_leaf(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin())
    x = torch.randn(4, 3).t().requires_grad_()
    f(x).sum().backward()
    return (x.grad, x.grad.stride())


KERNELS = ["tangents", "multi_out_partial", "double_bn", "complex_bwd", "noncontig_leaf"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    assert_agree(PROGRAMS[name], lambda f: fuselens.compile(f, backend="aot_eager"))


@pytest.mark.parametrize("name", KERNELS)
def test_program_with_kernels(name: str) -> None:
    assert_agree(PROGRAMS[name], fuselens.compile)
