"""Subclasses of tensors, and other layouts.

Each program gives what eager gives, in values, metadata and exceptions, when its function is compiled.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuselens
from tests.support.surroundings import Logging, Programs, assert_agree, outcome, show
from tests.support.tensors import leaf

PROGRAMS = Programs()
program = PROGRAMS.add
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


@program
def sparse_in_middle(compiled: Any) -> Any:
    w = leaf(5, 3)
    f = compiled(lambda w: w * 2)
    o = f(w)
    e = F.embedding(torch.tensor([0, 2]), o, sparse=True).sum()
    return outcome(lambda: torch.autograd.grad(e, w))


@program
def subclass_input(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * 2)
    f(torch.ones(3))
    Logging.log.clear()
    o = f(Logging(torch.ones(3)))
    return (type(o).__name__, list(Logging.log), show(o.elem))


@program
def subclass_input_grad(compiled: Any) -> Any:
    f = compiled(lambda x, y: x.sin() * y)
    Logging.log.clear()
    x = Logging(torch.ones(3)).requires_grad_()
    y = leaf(3)
    o = f(x, y)
    n = list(Logging.log)
    o.sum().backward()
    return (type(o).__name__, n, type(y.grad).__name__, type(x.grad).__name__)


@program
def subclass_nested_in(compiled: Any) -> Any:
    f = compiled(lambda d: d["a"].sin() * 2)
    Logging.log.clear()
    o = f({"a": Logging(Logging(torch.ones(3)))})
    return (type(o).__name__, type(o.elem).__name__, list(Logging.log))


@program
def subclass_param(compiled: Any) -> Any:
    m = nn.Linear(3, 2)
    m.weight = nn.Parameter(Logging(torch.ones(2, 3)))
    Logging.log.clear()
    o = compiled(m)(torch.ones(4, 3))
    n = list(Logging.log)
    o.sum().backward()
    return (type(o).__name__, n, type(m.weight.grad).__name__)


@program
def subclass_tangent(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * 2)
    x = leaf(3)
    o = f(x)
    g = outcome(lambda: torch.autograd.grad(o, x, Logging(torch.ones(3))))
    return (g[0], type(g[1][0]).__name__, g[1] if g[0] != "ok" else show(g[1][0].elem))


@program
def subclass_global(compiled: Any) -> Any:
    w = Logging(torch.ones(3))
    f = compiled(lambda x: x * w)
    Logging.log.clear()
    o = f(torch.ones(3))
    return (type(o).__name__, list(Logging.log))


@program
def subclass_after_plain(compiled: Any) -> Any:
    f = compiled(lambda x: x + 1)
    r = [type(f(torch.ones(3))).__name__, type(f(Logging(torch.ones(3)))).__name__, type(f(torch.ones(3))).__name__]
    return r


@program
def sparse_input(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    x = torch.eye(3).to_sparse().requires_grad_()
    o = f(x)
    o.to_dense().sum().backward()
    return (show(o.detach()), show(x.grad))


@program
def sparse_mm(compiled: Any) -> Any:
    f = compiled(lambda s, d: torch.sparse.mm(s, d))
    s = torch.eye(3).to_sparse()
    d = leaf(3, 2)
    o = f(s, d)
    o.sum().backward()
    return (o, d.grad)


@program
def sparse_csr(compiled: Any) -> Any:
    f = compiled(lambda s, d: s @ d)
    s = torch.eye(3).to_sparse_csr()
    d = leaf(3, 2)
    return f(s, d)


@program
def nested(compiled: Any) -> Any:
    f = compiled(lambda n: n * 2)
    n = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    o = f(n)
    return [show(t) for t in o.unbind()]


@program
def nested_jagged(compiled: Any) -> Any:
    f = compiled(lambda n: (n * 2).sin())
    n = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged, requires_grad=True)
    o = f(n)
    o.values().sum().backward()
    return ([show(t) for t in o.unbind()], type(n.grad).__name__)


@program
def quantised(compiled: Any) -> Any:
    f = compiled(lambda q: q.dequantize() * 2)
    q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    return f(q)


@program
def mkldnn_input(compiled: Any) -> Any:
    f = compiled(lambda q: q.to_dense() * 2)
    q = torch.ones(3, 3).to_mkldnn()
    return f(q)


KERNELS = ["subclass_tangent"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    assert_agree(PROGRAMS[name], lambda f: fuselens.compile(f, backend="aot_eager"))


@pytest.mark.parametrize("name", KERNELS)
def test_program_with_kernels(name: str) -> None:
    assert_agree(PROGRAMS[name], fuselens.compile)
