"""``mode="max-autotune"`` on a real GPU: what is chosen computes what eager does, and is said in the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.report import Decision
from fuselens.runtime import tune_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "points": lambda x: F.gelu(x) * 2,
    "tiles": lambda x: x.t().contiguous() + 1,
    "rows": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "long rows": lambda x: x.reshape(-1, 20_000).softmax(-1),
    "columns": lambda x: (x * x).sum(0),
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = False


def tuned(fn: Callable[..., Any], **options: Any) -> tuple[Any, Callable[[], list[Decision]]]:
    compiled: Any = fuselens.compile(fn, mode="max-autotune", **options)
    report = compiled.__fuselens__.recorder.report
    return compiled, lambda: [d for g in report.graphs for d in g.decisions if d.code == "FL416"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels(name: str) -> None:
    fn = FUNCTIONS[name]
    x = torch.randn(1600, 1000, device="cuda")
    compiled, decisions = tuned(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
    assert decisions()
    for decision in decisions():
        assert len(decision.candidates) > 3
        assert all(1e-7 < seconds < 1e-2 for _, seconds in decision.candidates)


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = FUNCTIONS["rows"]
    x = torch.randn(1600, 1000, device="cuda")
    first, decisions = tuned(fn)
    first(x)
    monkeypatch.setattr(tune_gpu, "on_card", lambda *_: pytest.fail("measured again"))
    again, found = tuned(lambda x: fn(x))
    again(x)
    assert [d.data for d in found()] == [d.data for d in decisions()]


def test_symbolic_sizes() -> None:
    fn = FUNCTIONS["rows"]
    compiled, decisions = tuned(fn, dynamic=True)
    for rows in (70, 33, 2000):
        x = torch.randn(rows, 90, device="cuda")
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
    assert decisions()


def test_the_state_of_random_numbers_is_left_alone() -> None:
    x = torch.randn(300, 1000, device="cuda")
    before = torch.cuda.get_rng_state()
    compiled, _ = tuned(FUNCTIONS["rows"])
    compiled(x)
    assert torch.equal(torch.cuda.get_rng_state(), before)
