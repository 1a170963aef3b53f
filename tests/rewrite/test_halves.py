"""Products in half precision on converted operands: where, eager's dtypes and strides, and values no further from exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens.config import from_environment
from fuselens.record.report import Decision
from fuselens.runtime import measure


@pytest.fixture(autouse=True)
def prefer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Lets one way measure faster for everything, converted operands at first."""
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))

    def choose(name: str) -> None:
        monkeypatch.setattr(measure.Libraries, "half_seconds", lambda *_: {"aten": 2e-3, "single": 2e-3, name: 1e-3})

    choose("single")
    return choose


def conv_net(x: Tensor, w: Tensor, c: Tensor, v: Tensor) -> Tensor:
    return F.conv2d(F.relu(F.conv2d(x, w, c, padding=1)), v, groups=2)


def attention(q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> Tensor:
    return F.linear(
        torch.bmm(torch.tanh(torch.baddbmm(o[0, :, :16], q, k.mT, beta=0.5, alpha=0.25)).softmax(-1), v), o[0]
    )


def mlp(x: Tensor, w: Tensor, c: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    hidden = F.gelu(F.linear(x, w, c))
    return F.linear(hidden, v) + x, hidden.t() @ hidden


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "convolutions": (conv_net, ((2, 4, 9, 8), (6, 4, 3, 3), (6,), (8, 3, 3, 3)), 2),
    "attention": (attention, ((3, 16, 24), (3, 16, 24), (3, 16, 40), (1, 16, 40)), 3),
    "mlp": (mlp, ((33, 40), (56, 40), (56,), (40, 56)), 3),
    "convolution in one dimension": (F.conv1d, ((2, 4, 9), (6, 4, 3)), 1),
    "transposed convolution": (F.conv_transpose2d, ((2, 4, 9, 8), (4, 6, 3, 3), (6,)), 1),
    "strided operands": (lambda a, b: a[::2] @ b[:, ::2].t(), ((66, 40), (33, 80)), 1),
    "few rows": (F.linear, ((7, 40), (33, 40)), 0),
    "a vector": (lambda a, b: a @ b, ((66, 40), (40, 1)), 0),
    "small matrices read by columns": (lambda a, b: torch.bmm(a, b.mT), ((66, 16, 16), (66, 16, 16)), 1),
    "small matrices of ten columns": (torch.bmm, ((66, 16, 16), (66, 16, 10)), 1),
    "small matrices": (torch.bmm, ((66, 16, 16), (66, 16, 16)), 0),
}  # fmt: skip


def inputs(name: str, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).mul(0.5).to(dtype) for shape in PROGRAMS[name][1]]


def decisions(report: Any) -> list[Decision]:
    return [d for g in report.graphs for d in g.decisions if d.code == "FL415"]


def flat(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees(name: str, dtype: torch.dtype) -> None:
    fn, given, count = PROGRAMS[name][0], inputs(name, dtype), PROGRAMS[name][2]
    found = decisions(fuselens.explain(fn)(*given))
    assert [d.verdict for d in found] == ["single"] * count
    tolerance = 2e-2 if dtype == torch.bfloat16 else 3e-3
    for a, e in zip(flat(fuselens.compile(fn)(*given)), flat(fn(*given)), strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)
        assert a.stride() == e.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["convolutions", "attention", "mlp"])
def test_training_agrees(name: str, dynamic: bool) -> None:
    fn = PROGRAMS[name][0]
    grads = []
    for called in (fn, fuselens.compile(fn, dynamic=dynamic)):
        leaves = [t.requires_grad_() for t in inputs(name, torch.bfloat16)]
        sum(r.float().square().mean() for r in flat(called(*leaves))).backward()  # type: ignore[union-attr]
        grads.append([t.grad for t in leaves])
    for expected, actual in zip(*grads, strict=True):
        assert actual.dtype == torch.bfloat16
        scale = float(expected.abs().max())
        torch.testing.assert_close(actual / scale, expected / scale, rtol=4e-2, atol=2e-2)


def test_values_that_are_not_finite() -> None:
    x, w = torch.randn(16, 32).half(), torch.randn(24, 32).half()
    x[0, 0], x[1, 0], x[2] = float("nan"), float("inf"), 60000.0
    torch.testing.assert_close(fuselens.compile(F.linear)(x, w), F.linear(x, w), equal_nan=True, rtol=3e-3, atol=3e-3)


def test_frozen_weights_are_converted_once() -> None:
    module, x = (
        nn.Sequential(nn.Linear(40, 56), nn.Conv1d(16, 8, 3)).eval().bfloat16(),
        torch.randn(2, 16, 40).bfloat16(),
    )
    compiled = fuselens.compile(module, options={"freezing": True})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x), rtol=2e-2, atol=2e-2)
            module[0].weight.mul_(-1)
    graph = compiled.__fuselens__.recorder.report.graphs[0]
    assert [d.data["bytes"] for d in graph.decisions if d.code == "FL415"] == [4 * (40 * 56 + 56), 4 * (8 * 16 * 3 + 8)]


def test_what_the_processor_computes_stays(prefer: Callable[[str], None]) -> None:
    prefer("aten")
    assert not decisions(fuselens.explain(mlp)(*inputs("mlp", torch.bfloat16)))


def test_calibration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(measure, "BUDGET", 60.0)
    config = from_environment({}, cache_dir=tmp_path)
    measure._table.cache_clear()
    found = measure.Libraries(config).half_seconds(("forward", 100, 512, 256), torch.bfloat16)
    assert found is not None and found.keys() == {"aten", "single"}
    assert measure.Libraries(config).half_seconds(("forward", 8, 8, 8), torch.bfloat16) is None
