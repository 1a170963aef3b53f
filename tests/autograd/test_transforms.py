"""Transforms: batched gradients, forward mode, ``torch.func``.

Each program gives what eager gives, in values, metadata and exceptions, when its function is compiled.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn

import fuselens
from tests.support.surroundings import Programs, assert_agree, outcome, show
from tests.support.tensors import leaf

PROGRAMS = Programs()
program = PROGRAMS.add
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


@program
def batched(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * x.sum())
    x = leaf(3)
    o = f(x)
    return outcome(lambda: torch.autograd.grad(o, x, torch.eye(3), is_grads_batched=True))


@program
def batched_matmul(compiled: Any) -> Any:
    f = compiled(lambda x, w: F.linear(x, w).tanh().sum(0))
    x, w = (leaf(4, 3), leaf(2, 3))
    o = f(x, w)
    return outcome(lambda: torch.autograd.grad(o, [x, w], torch.eye(2), is_grads_batched=True))


@program
def jacobian(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * x.sum())
    x = torch.randn(3)
    return [outcome(lambda: torch.autograd.functional.jacobian(f, x, vectorize=v)) for v in (False, True)]


@program
def hessian(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sin() * x.sum()).sum())
    x = torch.randn(3)
    return [outcome(lambda: torch.autograd.functional.hessian(f, x, vectorize=v)) for v in (False, True)]


@program
def fwd_jacobian(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * x.sum())
    x = torch.randn(3)
    return [outcome(lambda: torch.autograd.functional.jacobian(f, x, vectorize=True, strategy="forward-mode"))]


@program
def gradcheck_fwd(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * x)
    a = leaf(3, dtype=torch.float64)
    return (
        outcome(lambda: torch.autograd.gradcheck(f, a, check_forward_ad=True, check_batched_grad=True)),
        outcome(lambda: torch.autograd.gradgradcheck(f, a, check_fwd_over_rev=True)),
    )


@program
def fwd_ad(compiled: Any) -> Any:
    f = compiled(lambda x, y: x.sin() * y)
    x, y = (torch.randn(3), torch.randn(3))
    f(x, y)
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, torch.ones(3))
        o = f(d, y)
        p, t = forward_ad.unpack_dual(o)
        q = forward_ad.unpack_dual(f(x, y))
    return (show(p), show(t), show(q.tangent))


@program
def fwd_ad_grad(compiled: Any) -> Any:
    f = compiled(lambda x, y: x.sin() * y)
    x, y = (leaf(3), leaf(3))
    f(x, y)
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, torch.ones(3))
        o = f(d, y)
        p, t = forward_ad.unpack_dual(o)
        return (show(p), show(t), show(torch.autograd.grad(t.sum(), [x, y])))


@program
def fwd_ad_module(compiled: Any) -> Any:
    m = nn.Linear(3, 2)
    c = compiled(lambda x: m(x))
    x = torch.randn(2, 3)
    c(x)
    with forward_ad.dual_level():
        p = m.weight
        del m._parameters["weight"]
        m.weight = forward_ad.make_dual(p, torch.ones_like(p))
        return show(forward_ad.unpack_dual(c(x)).tangent)


@program
def func_around(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sin() * x).sum())
    x = torch.randn(3)
    f(x)
    g = compiled(lambda x: x.sin() * 2)
    return [
        outcome(lambda: torch.func.grad(f)(x)),
        outcome(lambda: torch.func.vjp(f, x)[1](torch.tensor(2.0))),
        outcome(lambda: torch.func.jvp(f, (x,), (torch.ones(3),))),
        outcome(lambda: torch.func.vmap(g)(torch.randn(2, 3).cos() * 0 + 1)),
        outcome(lambda: torch.func.jacrev(g)(x)),
        outcome(lambda: torch.func.jacfwd(g)(x)),
        outcome(lambda: torch.func.hessian(f)(x)),
        outcome(lambda: torch.func.vmap(torch.func.grad(f))(torch.ones(2, 3))),
        outcome(lambda: torch.func.linearize(g, x)[0]),
        outcome(lambda: torch.func.functionalize(g)(x)),
    ]


@program
def func_around_closure(compiled: Any) -> Any:
    x = torch.randn(3)
    w = leaf(3)
    f = compiled(lambda x: (x.sin() * w).sum())
    f(x)
    return [outcome(lambda: torch.func.grad(f)(x)), outcome(lambda: torch.func.vmap(lambda y: f(x) + y)(torch.ones(2)))]


@program
def vmap_random(compiled: Any) -> Any:
    f = compiled(lambda x: x + torch.rand(3))
    torch.manual_seed(0)
    return outcome(lambda: torch.func.vmap(f, randomness="error")(torch.ones(2, 3)))


@program
def vmap_over_unbatched_call(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    y = torch.ones(3)
    return outcome(lambda: torch.func.vmap(lambda z: f(y) + z)(torch.ones(2, 3)))


@program
def func_grad_of_captured(compiled: Any) -> Any:
    w = torch.randn(3)

    def loss(w, x):
        return compiled(lambda: (w * x).sin().sum())()

    return show(torch.func.grad(loss)(w, torch.ones(3)))


@program
def functional_call(compiled: Any) -> Any:
    m = nn.Linear(3, 2)
    w = leaf(2, 3)
    b = leaf(2)
    f = compiled(lambda x, w, b: torch.func.functional_call(m, {"weight": w, "bias": b}, (x,)))
    c = compiled(m)
    x = torch.ones(4, 3)
    o = f(x, w, b)
    o.sum().backward()
    o3 = outcome(
        lambda: torch.func.functional_call(
            c,
            {"weight": w * 2, "bias": b}
            if not hasattr(c, "_orig_mod")
            else {"_orig_mod.weight": w * 2, "_orig_mod.bias": b},
            (x,),
        )
    )
    return (o, w.grad, b.grad, m.weight.grad, o3)


KERNELS = ["batched_matmul", "gradcheck_fwd"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    assert_agree(PROGRAMS[name], lambda f: fuselens.compile(f, backend="aot_eager"))


@pytest.mark.parametrize("name", KERNELS)
def test_program_with_kernels(name: str) -> None:
    assert_agree(PROGRAMS[name], fuselens.compile)
