"""Tracers and transforms of torch that are given compiled functions: what they make is what they make of the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import fuselens
from fuselens.capture.hook import _hook

Function = Callable[..., Any]
Transform = Callable[[Function, tuple[Tensor, ...]], Function]


def smooth() -> Function:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = torch.tanh(x @ w) + 1
        return y.sum(-1) * 2

    return f


def broken() -> Function:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        print(end="")
        return y.tanh().sum(-1)

    return f


def inside(fn: Function) -> nn.Module:
    class Inside(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return fn(x, w) + 0

    return Inside()


def with_tangents(fn: Function, example: tuple[Tensor, ...]) -> Function:
    def run(*given: Tensor) -> Tensor:
        with torch.autograd.forward_ad.dual_level():
            duals = [torch.autograd.forward_ad.make_dual(a, b) for a, b in zip(given, example, strict=True)]
            return torch.stack(list(torch.autograd.forward_ad.unpack_dual(fn(*duals))[:2]))

    return run


TRACERS: dict[str, Transform] = {
    "jit.trace": torch.jit.trace,
    "jit.trace, unchecked": lambda fn, example: torch.jit.trace(fn, example, check_trace=False),
    "jit.trace of a caller": lambda fn, example: torch.jit.trace(inside(fn), example),
    "jit.script": lambda fn, example: torch.jit.script(fn),
    "export": lambda fn, example: torch.export.export(inside(fn), example, strict=False).module(),
    "symbolic_trace of a caller": lambda fn, example: torch.fx.symbolic_trace(inside(fn)),
    "make_fx": lambda fn, example: make_fx(fn)(*example),
    "make_fx, fake": lambda fn, example: make_fx(fn, tracing_mode="fake")(*example),
    "make_fx, symbolic": lambda fn, example: make_fx(fn, tracing_mode="symbolic")(*example),
    "vmap": lambda fn, example: torch.vmap(fn, (0, None)),
    "grad": lambda fn, example: torch.func.grad(lambda x, w: fn(x, w).sum()),
    "jvp": lambda fn, example: lambda x, w: torch.func.jvp(fn, (x, w), example)[1],
    "jacrev": lambda fn, example: torch.func.jacrev(fn),
    "jacfwd": lambda fn, example: torch.func.jacfwd(fn),
    "hessian": lambda fn, example: torch.func.hessian(lambda x, w: fn(x, w).sum()),
    "functionalize": lambda fn, example: torch.func.functionalize(fn),
    "dual numbers": with_tangents,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("make", [smooth, broken])
@pytest.mark.parametrize("name", TRACERS)
def test_what_they_make_is_eagers(name: str, make: Callable[[], Function], warm: bool) -> None:
    if name == "jit.script" and make is broken:
        pytest.skip("TorchScript has no such print")
    function, transform = make(), TRACERS[name]
    compiled = fuselens.compile(function)
    example = torch.randn(4, 3), torch.randn(3, 5)
    given = torch.randn(4, 3), torch.randn(3, 5)
    if warm:
        compiled(*example)
    expected = transform(make(), example)(*given)
    torch.testing.assert_close(transform(compiled, example)(*given), expected)
    torch.testing.assert_close(compiled(*given), function(*given))
    assert _hook.entries(function)  # afterwards it is compiled as ever


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["jit.trace", "symbolic_trace of a caller"])
def test_a_report_says_what_ran_eagerly(name: str) -> None:
    compiled, example = fuselens.compile(smooth()), (torch.randn(4, 3), torch.randn(3, 5))
    TRACERS[name](compiled, example)
    said = compiled.__fuselens__.recorder.report.diagnostics
    assert any(d.code == "FL109" and "torch.jit.trace" in d.explanation + d.message for d in said)


@pytest.mark.filterwarnings("ignore")
def test_functions_that_ask_whether_they_are_recorded() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if torch.jit.is_tracing() else x * 3

    compiled, x = fuselens.compile(f), torch.ones(3)
    for _ in range(2):
        assert compiled(x).tolist() == [3] * 3
        assert torch.jit.trace(compiled, (x,))(x).tolist() == [2] * 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_modules(warm: bool) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    compiled, x, y = fuselens.compile(module), torch.randn(4, 3), torch.randn(4, 3)
    if warm:
        compiled(x)
    made = [
        torch.jit.trace(compiled, (x,)), torch.jit.script(compiled), torch.export.export(compiled, (x,)).module(),
        torch.fx.symbolic_trace(compiled), make_fx(compiled)(x), torch.vmap(compiled),
    ]  # fmt: skip
    for function in made:
        torch.testing.assert_close(function(y), module(y))
    torch.testing.assert_close(compiled(y), module(y))
