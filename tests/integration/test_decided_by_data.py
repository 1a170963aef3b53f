"""Numbers, sizes and branches that data decides, in one graph: its parts are loops, and give eager's values, gradients, writes
and exceptions for every size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop

import fuselens

Inputs = Sequence[tuple[torch.Tensor, ...]]


def outcome(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """What a call gives or raises, what it leaves of its inputs, and their gradients."""
    torch.manual_seed(0)
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    try:
        made = function(*given)
    except Exception as error:  # noqa: BLE001
        return "raises", type(error), str(error)
    asked = [t for t in given if t.requires_grad]
    results = [t for t in (made if isinstance(made, tuple) else (made,)) if t.requires_grad]
    gradients = torch.autograd.grad([t.sum() for t in results], asked, allow_unused=True) if results else ()
    return made, [t.detach() for t in given], gradients


def check(
    function: Callable[..., Any], calls: Inputs, *, eagerly: int = 0, compilations: int = 8, **options: Any
) -> Any:
    """``function`` with ``fullgraph=True`` agrees with eager in all ``calls``; ``eagerly`` says how many parts run so."""
    fuselens.reset()
    compiled = fuselens.compile(function, fullgraph=True, options={"fallback_random": True, **options})
    for inputs in calls:
        found, wanted = outcome(compiled, inputs), outcome(function, inputs)
        if wanted[0] == "raises":
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, equal_nan=True)
    report = compiled.__fuselens__.recorder.report
    parts = [g for g in report.graphs if g.part_of is not None]
    assert len(report.captured) == 1
    assert len([g for g in parts if g.fallback]) == eagerly, [d.message for d in report.diagnostics]
    assert 0 < len(parts) <= compilations
    return report


def counts(*numbers: int) -> list[torch.Tensor]:
    return [torch.tensor(n) for n in numbers]


def test_a_number_a_nonzero_and_a_mask() -> None:
    """What every other place uses is one kernel; sizes of 0 and 1 are compiled for, others are one symbol."""

    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 20)
        y = (x.sin() + 1)[:k] * 2
        large = y[y > 0.5]
        places = torch.nonzero(large > 1.0)
        total = (large + 1).sum() * k + places.float().mean()
        for _ in range(2):
            total = total + (x > total.item()).sum()
        return total, large.relu().cos(), torch.arange(k) * 2

    x = torch.linspace(-1, 3, 20)
    report = check(function, [(x, n) for n in counts(15, 9, 20, 2, 1, 0)], compilations=15)
    told = [(s.source, s.lower, s.upper) for s in report.symbols]
    assert told[:3] == [("n.item()", 0, 20), ("y[y > 0.5]", 0, 20), ("torch.nonzero(large > 1.0)", 0, 20)]
    assert [source for source, *_ in told[3:]] == ["total.item()"] * 2
    kernels = {k.name for g in report.graphs for k in g.kernels}
    assert {"sin_add_0", "add_sum_mul_0", "relu_cos_0"} <= kernels
    assert all(g.kernels for g in report.graphs if g.part_of is not None)


def test_gradients_through_a_mask() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = (x @ w).relu()
        return (y[y > 0.5] * 2).exp().sum() + y.mean()

    torch.manual_seed(1)
    calls = [(torch.randn(4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True)) for _ in range(4)]
    report = check(function, calls, compilations=2)
    assert all(g.training for g in report.graphs if g.part_of is not None)


def test_gradients_whose_sizes_data_decides_are_eagers() -> None:
    """The rows of a mask that a value is given to are known; how many of its gradients there are is not."""

    def function(x: torch.Tensor, value: torch.Tensor) -> Any:
        return x.sin().index_put((x[:, 0] > 0,), value) * 2

    x, value = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_(), torch.ones(5, requires_grad=True)
    compiled = fuselens.compile(function, options={"capture_dynamic_output_shape_ops": True})
    torch.testing.assert_close(outcome(compiled, (x, value)), outcome(function, (x, value)))
    assert {d.code for d in compiled.__fuselens__.recorder.report.diagnostics} == {"FL301"}


def test_experts_that_take_what_they_are_given() -> None:
    """A mixture of experts: of each the rows that are sent to it, none or all of them."""

    def function(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Any:
        chosen = (x @ gate).argmax(-1)
        out = torch.zeros_like(x)
        for e in range(up.shape[0]):
            rows = (chosen == e).nonzero().squeeze(-1)
            out = out.index_add(0, rows, torch.nn.functional.gelu(x[rows] @ up[e]) @ down[e])
        return out

    torch.manual_seed(1)
    weights = torch.randn(3, 8, 16, requires_grad=True), torch.randn(3, 16, 8, requires_grad=True)
    one = torch.tensor([[9.0, 0, 0]]).expand(8, 3)
    gates = [torch.randn(8, 3) for _ in range(3)]
    calls = [(torch.randn(12, 8, requires_grad=True), gate, *weights) for gate in gates]
    calls.append((torch.rand(12, 8, requires_grad=True), one, *weights))
    check(function, calls, compilations=12)


def test_writes_stay_in_order() -> None:
    def function(x: torch.Tensor, m: torch.Tensor) -> Any:
        y = x * 2
        y[m] = 0
        k = m.sum().item()
        y[:k] += 1
        x.add_(k)
        return y.cos() + x

    masks = [torch.tensor(m) for m in ([True, False] * 3, [False] * 6, [True] * 6, [True] + [False] * 5)]
    check(function, [(torch.linspace(-1, 1, 6), m) for m in masks])


def test_gradient_modes_around_them() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        with torch.no_grad():
            k = int(n)
            b = (x * k + 1).sin() * 2
        y = b * x
        with torch.no_grad():
            z = y[y > 0] * 3 + 1
        return (y * 2).cos(), z

    x = torch.linspace(-1, 1, 6, requires_grad=True)
    check(function, [(x, n) for n in counts(0, 1, 2, 5)])


def test_autocast_around_them() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            k = n.item()
            y = x @ x * k
        return y + 1, (y.float() * 2)[:k]

    check(function, [(torch.randn(6, 6), n) for n in counts(3, 2, 6)])


def test_random_numbers_are_drawn_in_order() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        y = torch.dropout(x, 0.5, True) + 1
        k = n.item()
        return torch.rand(k) * 2, y * k

    check(function, [(torch.randn(6), n) for n in counts(3, 0, 5)])


def test_views_between_parts() -> None:
    """What a part returns of an input is a view of it, and a write through that is seen. Parts with views of one another, to
    which they write, run eagerly where numbers vary."""

    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        row = x[1]
        k = n.item()
        row.mul_(k)
        return x + 1, row * 2

    check(function, [(torch.randn(3, 4), n) for n in counts(3, 2, 7)], eagerly=1)


def test_sizes_from_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        found = [torch.ones((x > i * 0.2).sum().item()).cumsum(0).sum() * x.mean() for i in range(4)]
        return torch.stack(found)

    torch.manual_seed(1)
    check(function, [(torch.randn(9),) for _ in range(4)], compilations=12)


def test_exceptions_are_eagers() -> None:
    """Sizes that are negative, or do not fit."""

    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        k = n.item()
        return torch.zeros(k) + 1, x.reshape(k, -1) * 2 + 1

    check(function, [(torch.randn(6), n) for n in counts(2, -1, 5, 3, 1, 4)])


def test_numbers_that_are_compared() -> None:
    """A float is exact where the trace depends on it, and compiled for so often; then the part runs as it was captured."""

    def function(x: torch.Tensor) -> Any:
        return torch.nn.functional.threshold(x.sin(), x.max().item(), 0.5) * x.min().item() + x.sum().item()

    check(function, [(torch.randn(5) * i,) for i in range(12)], compilations=16)


def test_a_branch_that_data_chooses() -> None:
    """Both branches are loops, each compiled when it is first taken."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        def inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.cond(a.max() > 1, lambda a, b: a.exp() + b, lambda a, b: (a - b) * 2 + 1, (a, b))

        return torch.cond(x.sum() > 0, inner, lambda a, b: (a - b).cos() * 2, (x, y)) * 3

    x, y = torch.ones(6, requires_grad=True), torch.linspace(0, 1, 6)
    calls = [((x * f).detach().requires_grad_(), y) for f in (2.0, 0.5, -1.0, 3.0)]
    report = check(function, calls, compilations=6)
    kernels = {k.name for g in report.graphs for k in g.kernels}
    assert {"exp_add_0", "sub_cos_mul_0"} <= kernels


def test_a_loop_that_data_ends() -> None:
    """Its body is compiled once, for however many turns."""

    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        return while_loop(lambda i, a: i < n, lambda i, a: (i + 1, (a * 1.5).sin() + a), (torch.tensor(0), x))

    report = check(function, [(torch.randn(6), n) for n in counts(3, 0, 50)], compilations=3)
    assert "mul_sin_add_0" in {k.name for g in report.graphs for k in g.kernels}


def test_a_part_is_compiled_so_often() -> None:
    """For dtypes that data does not decide there is one graph each; sizes are one, but for 0 and 1."""

    def function(n: torch.Tensor) -> Any:
        return torch.arange(n.item()).float().sqrt() * 2

    report = check(function, [(n,) for n in counts(5, 3, 1, 0, 100, 7, 1, 0, 2)], compilations=3)
    assert len(report.graphs) == 1 + 3


def test_what_only_decides_runs_as_it_was_captured() -> None:
    compiled = fuselens.compile(lambda t: torch.unique(t), fullgraph=True)
    assert compiled(torch.tensor([3, 1, 3])).tolist() == [1, 3]
    report = compiled.__fuselens__.recorder.report
    assert [d.code for d in report.diagnostics] == ["FL301"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends(backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].exp() * x.sum().item()

    compiled = fuselens.compile(function, fullgraph=True, backend=backend)
    for x in (torch.linspace(-1, 1, 7), torch.zeros(3)):
        torch.testing.assert_close(compiled(x), function(x))
