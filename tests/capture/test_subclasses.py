"""Subclasses and modes of tensors, classes that answer for themselves, einops and jaxtyping."""

from __future__ import annotations

import einops
import pytest
import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import Rearrange, Reduce
from jaxtyping import Float, jaxtyped
from torch import nn

import fuselens

from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


@case(t(2, 3, 4))
def re1(x):
    return (
        rearrange(x, "b c d -> b (c d)"),
        rearrange(x, "b (c k) d -> b c k d", k=3),
        reduce(x, "b c d -> b d", "mean"),
        repeat(x, "b c d -> b r c d", r=2),
        einsum(x, x, "b c d, b e d -> b c e"),
    )


@case(t(2, 3, 4))
def pk(x):
    p, ps = pack([x, x[:, 0]], "b * d")
    a, b = unpack(p, ps, "b * d")
    return p, a, b


@case(nn.Sequential(Rearrange("b c d -> b (c d)"), nn.Linear(12, 2)), t(2, 3, 4))
def layer(m, x):
    return m(x)


@case(t(2, 3, 4))
def red(x):
    return reduce(x, "b c d -> b", "max"), reduce(x, "b c d -> ", "sum"), einops.parse_shape(x, "b c d")


@jaxtyped(typechecker=None)
def jt(x: Float[torch.Tensor, "b c"]) -> Float[torch.Tensor, "c b"]:
    return x.t() * 2


@case(t(2, 3))
def jax1(x):
    return jt(x)


class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        r = super().__torch_function__(func, types, args, kwargs or {})
        return r


class Log(torch.Tensor):
    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Log.calls.append(func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            r = func(*args, **(kwargs or {}))
        return r.as_subclass(cls) if type(r) is torch.Tensor else r


@case(lambda: t(3).as_subclass(Sub))
def sub1(x):
    y = x * 2 + 1
    return y, type(y).__name__, torch.sin(x), isinstance(y, torch.Tensor), x.sum()


@case(lambda: t(3).as_subclass(Log), t(3))
def sub2(x, z):
    Log.calls.clear()
    y = x * 2 + z
    w = z + x
    return y, type(w).__name__, list(Log.calls)


class Param(nn.Parameter):
    pass


@case(lambda: Param(t(3)))
def psub(x):
    return x * 2, type(x).__name__


class MB(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Buffer(torch.ones(3))
        self.p = Param(torch.ones(3))

    def forward(self, x):
        return x * self.b + self.p


@case(lambda: MB(), t(3))
def buf(m, x):
    return m(x)


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        r = func(*args, **(kwargs or {}))
        return r * 2 if func is torch.sin else r


@case(t(3))
def mode(x):
    with Mode():
        y = torch.sin(x)
    return y, torch.sin(x)


@case(t(2, 3))
def jaxinst(x):
    return (
        isinstance(x, Float[torch.Tensor, "b c"]),
        isinstance(x, Float[torch.Tensor, "b"]),
        isinstance(x * 2, Float[torch.Tensor, "b c"]),
    )


class Even(type):
    def __instancecheck__(cls, o):
        return o.shape[0] % 2 == 0


class E2(metaclass=Even):
    pass


@case(t(2, 3))
def meta(x):
    return isinstance(x, E2), isinstance(x * 2, E2), isinstance(x[:1], (E2, int))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_agrees_with_eager(program: Program) -> None:
    verify(program)


def test_einops_that_has_computed_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_loaded_backends", "_type2backend"):
        monkeypatch.setattr(einops._backends, name, {})
    compiled = fuselens.compile(re1, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(t(2, 3, 4))
    assert len(compiled.__fuselens__.recorder.report.graphs) == 1
