"""One compilation serves all sizes that its guards admit; hints steer the code, never the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.inputs import comparison

from .test_modules import t

SIZES = (64, 7, 100, 3, 8, 17, 2, 5, 1000, 4)


def convolutions(n: int) -> Any:
    return lambda x, w: F.conv2d(x, w, padding=1).relu().mean((2, 3)), (t(2, 3, n, n + 1), t(4, 3, 3, 3))


def products(n: int) -> Any:
    return lambda a, b, c: F.gelu(a @ b + c) @ b.mT, (t(n, 16), t(16, 2 * n), t(2 * n))


def reductions(n: int) -> Any:
    return lambda x: (x.sum(0), x.amax(1), x.var(0), x.argmax(1), x.softmax(-1), x.logsumexp((0, 1))), (t(n, n + 3),)


def joined(n: int) -> Any:
    return lambda x, y: (torch.cat((x, y * 2), 0) + 1, torch.stack((x, x.neg()), -1), F.pad(x, (1, 2))), (
        t(n, 5),
        t(n + 1, 5),
    )


def sliced(n: int) -> Any:
    return lambda x, k: (x[k:].exp(), x[: x.shape[0] // 2] * 2, x[::2] + 1, x[-2:].sin()), (t(n, 3), n // 2)


def reshaped(n: int) -> Any:
    return lambda x: (
        x.reshape(x.shape[0] * 4, -1).sum(1),
        x.flatten() + 1,
        x.permute(2, 0, 1).reshape(-1, 4).amax(0),
    ), (t(n, 4, n),)


def strided(n: int) -> Any:
    return lambda x: (x.mT + 1, x.mT.contiguous(), x.cumsum(0), x + x.sum(0)), (t(n + 2, 2 * n).mT[1:, ::2],)


def trained(n: int) -> Any:
    return lambda x, w: F.layer_norm(F.linear(x, w).tanh(), (6,)).square().mean(), (
        t(n, 8).requires_grad_(),
        t(6, 8).requires_grad_(),
    )


def gathered(n: int) -> Any:
    return lambda x, i: (x[i], x.index_select(0, i), F.embedding(i, x).sum(0)), (t(n, 4), torch.arange(n) % n)


def attention(n: int) -> Any:
    return lambda q, m: torch.softmax(q @ q.mT / 2 + m, -1) @ q, (t(2, n, 4), t(n, n))


PROGRAMS: list[Callable[[int], Any]] = [
    convolutions, products, reductions, joined, sliced, reshaped, strided, trained, gathered, attention,
]  # fmt: skip


def observed(function: Any, args: Any) -> Any:
    result = function(*args)
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    return result, torch.autograd.grad(result, leaves) if leaves else ()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_ten_sizes_take_one_compilation(program: Callable[[int], Any]) -> None:
    function = program(8)[0]
    compiled = fuselens.compile(function, dynamic=True)
    sizes = [n for n in SIZES if n < 200 or program not in (convolutions, reshaped)]
    sizes = [n for n in sizes if n > 3 or program is not sliced]  # its slices would have one element
    for n in sizes:
        args = program(n)[1]
        difference = comparison.differ(observed(function, args), observed(compiled, args), f"n = {n}")
        assert difference is None, difference
    report = compiled.__fuselens__.recorder.report
    assert not [d for d in report.diagnostics if d.code in ("FL301", "FL404")], report.diagnostics
    assert len(report.graphs) <= 2, [d.message for d in report.diagnostics]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [1, 0])
def test_sizes_of_one_and_none_agree(program: Callable[[int], Any], n: int) -> None:
    if n == 0 and program in (convolutions, reductions, reshaped):
        pytest.skip("eager refuses it")
    function = program(8)[0]
    compiled = fuselens.compile(function, dynamic=True)
    for m in (8, n, 6):
        args = program(m)[1]
        difference = comparison.differ(observed(function, args), observed(compiled, args), f"n = {m}")
        assert difference is None, difference


@pytest.mark.parametrize("factor", [lambda n: n + 1, lambda n: 2 * n - 1, lambda n: n // 2 + 3, lambda n: n * n])
@pytest.mark.filterwarnings("error::fuselens.FuselensWarning")
def test_a_number_that_is_computed_from_an_argument_reaches_the_backward(factor: Callable[[int], int]) -> None:
    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * factor(n)

    compiled = fuselens.compile(scaled)
    for n in (1, 2, 3, 9):
        x = torch.ones(4, requires_grad=True)
        compiled(x, n).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [factor(n)] * 4
