"""Variants of kernels: each computes what eager does, the fastest is taken, remembered and recorded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.record.report import Decision
from fuselens.runtime import autotune


def both_sums(x: Any) -> Any:
    return (x * x).sum(0), (x + 1).sum(1)


def norm(x: Any) -> Any:
    return F.layer_norm(F.gelu(x), (x.shape[-1],))


def extremes(x: Any) -> Any:
    return x.amax(0), x.argmin(1), x.half().sum(1)


def softmax_of_columns(x: Any) -> Any:
    return x.softmax(0)


def gathered(x: Any) -> Any:
    return x[:, torch.arange(3)].sum(1), (x.long() // 2).sum(0)


PROGRAMS = [both_sums, norm, extremes, softmax_of_columns, gathered]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSELENS_STRICT", "1")


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the given variant of every kernel seem the fastest."""
    measured = autotune._least

    def choose(which: int) -> None:
        def least(calls: Any, arguments: Any) -> list[float]:
            assert len(measured(calls, arguments)) == len(calls)
            return [1.0 if k != min(which, len(calls) - 1) else 0.5 for k in range(len(calls))]

        monkeypatch.setattr(autotune, "_least", least)

    return choose


def tuned(fn: Callable[..., Any], **options: Any) -> tuple[Any, Callable[[], list[Decision]]]:
    compiled: Any = fuselens.compile(fn, mode="max-autotune", **options)
    report = compiled.__fuselens__.recorder.report
    return compiled, lambda: [d for g in report.graphs for d in g.decisions if d.code == "FL416"]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_every_variant_agrees(fn: Callable[..., Any], prefer: Callable[[int], None], tmp_path: Path) -> None:
    x = torch.randn(70, 90, generator=torch.Generator().manual_seed(0))
    for which in range(1, 9):
        prefer(which)
        compiled, decisions = tuned(lambda x: fn(x))
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
        assert all(d.verdict == "taken" for d in decisions())
        shutil.rmtree(tmp_path / "measured", ignore_errors=True)  # units stay built
        fuselens.reset()


def test_symbolic_sizes(prefer: Callable[[int], None]) -> None:
    prefer(3)
    compiled, decisions = tuned(both_sums, dynamic=True)
    for rows in (70, 33, 2):
        x = torch.randn(rows, 90)
        torch.testing.assert_close(compiled(x), both_sums(x), rtol=1e-4, atol=1e-4)
    assert decisions()


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(70, 90)
    compiled, decisions = tuned(norm)
    compiled(x)
    (decision,) = decisions()
    assert {"default", "rows, 4 side by side"} <= decision.data.keys()
    assert "of the time of the default" in decision.reason
    monkeypatch.setattr(autotune, "_least", lambda *_: pytest.fail("measured again"))
    again, found = tuned(lambda x: norm(x))
    again(x)
    assert [d.data for d in found()] == [decision.data]


def test_nothing_is_measured_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "_least", lambda *_: pytest.fail("measured"))
    x = torch.randn(70, 90)
    torch.testing.assert_close(fuselens.compile(norm)(x), norm(x), rtol=1e-4, atol=1e-4)


def test_results_do_not_depend_on_threads(prefer: Callable[[int], None]) -> None:
    prefer(2)
    x = torch.randn(500, 300)
    before, results = torch.get_num_threads(), []
    try:
        compiled, _ = tuned(both_sums)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))
