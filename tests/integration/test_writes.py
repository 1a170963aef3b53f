"""Functions that write to their inputs, through kernels that write in place: values, versions and exceptions as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from fuselens.inputs import comparison
from fuselens.pipeline import programs
from fuselens.runtime import program

from .test_modules import t


def swap(x: Any, y: Any) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def both(x: Any, y: Any) -> Any:
    new = y * 3 + 1
    x.copy_(new)
    return new


def one_value_for_two(x: Any, y: Any) -> None:
    new = x + y
    x.copy_(new)
    y.copy_(new)


def statistics(x: Any, y: Any) -> Any:
    x.mul_(0.9).add_(y.sum(0), alpha=0.1)
    return y - x


def shifted(x: Any, y: Any) -> None:
    x[1:].copy_(x[:-1] * 2)


def turned(x: Any, y: Any) -> Any:
    x.copy_(x.t() + y)
    return x.neg()


def through_a_product(x: Any, y: Any) -> Any:
    old = x @ y
    x.sub_(old)
    return x @ y, old


def part(x: Any, y: Any) -> Any:
    x[:, ::2].mul_(y[:, ::2])
    return x[1:3, 3:]


def given_back(x: Any, y: Any) -> Any:
    x.addcmul_(y, y, value=0.5)
    return x, x.detach()


WRITING: list[Callable[..., Any]] = [
    swap, both, one_value_for_two, statistics, shifted, turned, through_a_product, part, given_back,
]  # fmt: skip
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "turned": lambda x: x.t().contiguous().t(),
    "inside another": lambda x: torch.cat((x, x), 1)[:, 2:10].copy_(x),
    "half": lambda x: x.half(),
    "complex": lambda x: x.to(torch.complex64),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", WRITING, ids=lambda f: f.__name__)
def test_inputs_are_as_eager_leaves_them(function: Callable[..., Any], layout: str) -> None:
    if function is statistics and layout == "complex":
        pytest.skip("eager has no such mean")

    def run(called: Callable[..., Any]) -> Any:
        seen = []
        for k in range(3):
            x, y = (LAYOUTS[layout](t(8, 8, seed=2 * k + i)) for i in (0, 1))
            pointers = x.data_ptr(), y.data_ptr()
            given = called(x, y)
            assert (x.data_ptr(), y.data_ptr()) == pointers
            shared = [(g.untyped_storage().data_ptr() == i.untyped_storage().data_ptr(), g.storage_offset())
                      for g in (given if isinstance(given, tuple) else (given,)) if g is not None for i in (x, y)]  # fmt: skip
            seen.append((x, y, x._version, y._version, x.stride(), given, shared))
        return seen

    expected = run(function)
    difference = comparison.differ(expected, run(fuselens.compile(function)), function.__name__)
    assert difference is None, difference


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_graph_that_raises_leaves_what_eager_leaves(dtype: torch.dtype) -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        x.add_(1)
        z.add_(x // y)
        return x

    compiled = fuselens.compile(f)
    for zero in (1, 0, 2):
        x, y, z = (torch.tensor(v, dtype=dtype) for v in ([5, 6], [2, zero], [0, 0]))
        a, b, c = x.clone(), y.clone(), z.clone()
        raised = [None, None]
        for k, run in enumerate((lambda: f(a, b, c), lambda: compiled(x, y, z))):
            try:
                run()
            except RuntimeError as error:
                raised[k] = str(error)  # type: ignore[call-overload]
        assert raised[0] == raised[1]
        assert (zero == 0) == (raised[0] is not None)
        assert torch.equal(a, x)
        assert torch.equal(c, z)


def test_an_index_out_of_range_after_a_write() -> None:
    def f(x: Any, i: Any) -> Any:
        x.add_(1)
        return x[i]

    compiled = fuselens.compile(f)
    x, y = torch.zeros(4), torch.zeros(4)
    compiled(x, torch.tensor([1]))
    f(y, torch.tensor([1]))
    for tensor, run in ((x, compiled), (y, f)):
        with pytest.raises(IndexError):
            run(tensor, torch.tensor([9]))
    assert torch.equal(x, y)


HUGE = 1 << 45  # elements: more than there are addresses


@pytest.mark.parametrize("cpp", [True, False], ids=["in C++", "in Python"])
@pytest.mark.parametrize("training", [False, True])
def test_a_graph_that_fails_after_a_write_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, cpp: bool, training: bool
) -> None:
    def f(x: Any, w: Any) -> Any:
        x.add_(1)
        return x.sum().expand(HUGE).clone() * w

    if not cpp:
        monkeypatch.setattr(programs, "has_cpp_hosts", lambda: False)
        monkeypatch.setattr(program, "runs_steps", lambda target: False)
    compiled = fuselens.compile(f)
    for times in (1, 2):
        x = torch.zeros(4)
        for k in range(times):
            with pytest.raises((MemoryError, RuntimeError)) as caught:
                compiled(x, torch.ones(1, requires_grad=training))
            assert x.tolist() == [k + 1] * 4  # in eager, too
            (note,) = [n for n in caught.value.__notes__ if n.startswith("FL")]
            assert note.startswith("FL406: a call of this graph failed")
    report = fuselens.explain(f)(torch.zeros(4), torch.ones(1, requires_grad=training))
    (said,) = [d for d in report.diagnostics if d.code == "FL406"]
    assert "had written to inputs" in said.message
    assert said.span is not None
    assert said.span.file == __file__


def test_a_graph_that_fails_before_it_writes_runs_eagerly() -> None:
    fails = [True, False]

    @torch.library.custom_op("fuselens_tests::fails", mutates_args=())
    def fails_now_and_then(x: torch.Tensor) -> torch.Tensor:
        if fails.pop(0):
            raise MemoryError("no memory")
        return x + 1

    fails_now_and_then.register_fake(lambda x: torch.empty_like(x))

    def f(x: Any, w: Any) -> Any:
        x.add_(1)
        x.add_(fails_now_and_then(x.detach()))
        return x * w

    compiled = fuselens.compile(f, options={"strict": False})
    x, w = torch.zeros(4), torch.ones(4, requires_grad=True)
    y = compiled(x, w)
    y.sum().backward()
    assert (x.tolist(), y.tolist()) == ([3] * 4, [3] * 4)
    assert w.grad is not None
    assert w.grad.tolist() == [3] * 4
    fails += [True, False]
    (said,) = [d for d in fuselens.explain(compiled)(x.clone(), w).diagnostics if d.code == "FL406"]
    assert said.message == "a call of this graph failed (MemoryError: no memory) and ran eagerly"
    fails += [False, True, True]
    assert compiled(x, w).tolist() == [9] * 4
    with pytest.raises(MemoryError):  # eager fails, too
        compiled(x, w)


def test_statistics_of_batch_norm_are_written_by_kernels() -> None:
    def train(compile_: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4, momentum=0.3))
        run = compile_(net)
        for k in range(4):
            run(t(5, 3, 8, 8, seed=k)).square().mean().backward()
        return [p.grad for p in net.parameters()], net.state_dict()

    reports: list[Any] = []

    def compiled(net: Any) -> Any:
        made = fuselens.compile(net)
        reports.append(made.__fuselens__.recorder.report)
        return made

    expected = train(lambda f: f)
    difference = comparison.differ(expected, train(compiled), "batch norm")
    assert difference is None, difference
    written = [d.subject for g in reports[0].graphs for d in g.decisions if d.code == "FL413"]
    assert len(written) == 6


def test_written_inputs_that_share_memory_go_to_eager() -> None:
    def f(x: Any, y: Any) -> None:
        x.mul_(2)
        y.sub_(1)

    compiled = fuselens.compile(f)
    for _ in range(2):
        x, y = torch.ones(6), torch.ones(6)
        compiled(x, y)
        f(a := torch.ones(6), b := torch.ones(6))
        assert torch.equal(x, a)
        assert torch.equal(y, b)
        base, other = torch.arange(9.0), torch.arange(9.0)
        compiled(base[:6], base[3:])  # the kernels of another call
        f(other[:6], other[3:])
        assert torch.equal(base, other)
