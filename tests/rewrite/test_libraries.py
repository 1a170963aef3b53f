"""Products through the library that measured faster: the choice, its reasons, and eager's values either way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.config import from_environment
from fuselens.record.report import Decision
from fuselens.runtime import measure

pytestmark = pytest.mark.skipif(not measure.available(), reason="torch was built without oneDNN")


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Lets one library measure faster for every product."""
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))

    def choose(library: str) -> None:
        monkeypatch.setattr(measure.Libraries, "seconds", lambda *_: {"aten": 2e-3, "onednn": 2e-3, library: 1e-3})

    return choose


def mlp(x: Any, w: Any, c: Any, v: Any, d: Any) -> Any:
    return F.linear(F.relu(F.linear(x, w, c)), v, d)


def residual(x: Any, w: Any, c: Any, v: Any, d: Any) -> Any:
    return F.linear(F.gelu(F.linear(x, w, c)), v, d) + x


def products(x: Any, w: Any, *_: Any) -> Any:
    flat = x.flatten(0, -2)
    return flat @ w.t(), flat.t() @ flat, w.t() @ w


def only_relu(x: Any, w: Any, c: Any, *_: Any) -> Any:
    return F.relu(F.linear(x, w, c))


PROGRAMS = {"mlp": mlp, "residual": residual, "products": products, "only_relu": only_relu}


def inputs(*lead: int) -> list[torch.Tensor]:
    return [torch.randn(*lead, 40), torch.randn(56, 40), torch.randn(56), torch.randn(40, 56), torch.randn(40)]


def decisions(report: Any) -> list[Decision]:
    return [d for g in report.graphs for d in g.decisions if d.code == "FL415"]


@pytest.mark.parametrize("lead", [(33,), (3, 20)], ids=["matrix", "batch"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees(name: str, lead: tuple[int, ...], prefer: Callable[[str], None]) -> None:
    prefer("onednn")
    torch.manual_seed(0)
    fn, given = PROGRAMS[name], inputs(*lead)
    report = fuselens.explain(fn)(*given)
    assert any("mkldnn._linear_pointwise" in e for g in report.graphs for e in g.externs)
    assert {d.verdict for d in decisions(report)} == {"onednn"}
    expected, actual = fn(*given), fuselens.compile(fn)(*given)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    for a, e in zip(*(r if isinstance(r, tuple) else (r,) for r in (actual, expected)), strict=True):
        assert a.stride() == e.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_agrees(dynamic: bool, prefer: Callable[[str], None]) -> None:
    prefer("onednn")
    torch.manual_seed(0)
    given = inputs(3, 20)
    grads = []
    for fn in (residual, fuselens.compile(residual, dynamic=dynamic)):
        leaves = [t.clone().requires_grad_() for t in given]
        fn(*leaves).square().sum().backward()
        grads.append([t.grad for t in leaves])
    for expected, actual in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)


def test_epilogues_go_with_the_call(prefer: Callable[[str], None]) -> None:
    prefer("onednn")
    found = [d.reason for d in decisions(fuselens.explain(mlp)(*inputs(33)))]
    assert not any("with" in reason for reason in found)  # oneDNN's ReLU turns NaN into 0
    found = [d.reason for d in decisions(fuselens.explain(residual)(*inputs(33)))]
    assert "with" not in found[0] and "with a residual" in found[1]  # our loop computes gelu faster


def test_relu_keeps_nan(prefer: Callable[[str], None]) -> None:
    prefer("onednn")
    x, *others = inputs(33)
    x[3, 5] = float("nan")
    for fn in (mlp, only_relu):
        torch.testing.assert_close(
            fuselens.compile(fn)(x, *others), fn(x, *others), equal_nan=True, rtol=1e-4, atol=1e-4
        )


def test_the_other_library(prefer: Callable[[str], None]) -> None:
    prefer("aten")
    report = fuselens.explain(mlp)(*inputs(33))
    assert {d.verdict for d in decisions(report)} == {"aten"}
    assert all("mkldnn" not in e for g in report.graphs for e in g.externs)


def test_doubles_and_scaled_products_are_not_compared(prefer: Callable[[str], None]) -> None:
    prefer("onednn")
    x, w, c = torch.randn(33, 40), torch.randn(40, 56), torch.randn(56)
    for fn, given in (
        (torch.mm, (x.double(), w.double())),
        (lambda x, w, c: torch.addmm(c, x, w, beta=2), (x, w, c)),
        (lambda x, w: x[:, ::2] @ w[::2], (x, w)),
    ):
        assert not decisions(fuselens.explain(fn)(*given))


def test_small_graphs_measure_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "_calibration", lambda: pytest.fail("measured"))
    assert not decisions(fuselens.explain(mlp)(*inputs(33)))


def test_calibration_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BUDGET", 60.0)
    config = from_environment({}, cache_dir=tmp_path)
    first = measure.Libraries(config).seconds(("forward", 512, 512, 512))
    monkeypatch.setattr(measure, "_calibration", lambda: pytest.fail("measured again"))
    assert first is not None
    measure._table.cache_clear()
    assert measure.Libraries(config).seconds(("forward", 512, 512, 512)) == first
    assert measure.Libraries(config).seconds(("forward", 4, 4, 4)) is None
    assert measure.Libraries(config).seconds(("plain", 0, 512, 512)) is None


def test_a_promised_gain_is_confirmed_by_the_product_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"aten": 1e-3, "onednn": 1.2e-3}
    monkeypatch.setattr(measure, "measured_product", lambda *_, **__: found)
    libraries = measure.Libraries(from_environment({}, cache_dir=tmp_path))
    for promised, scale, confirmed in ((2e-4, 1.0, True), (9.5e-4, 1.0, False), (2e-4, 100.0, False)):
        seconds = {"aten": 1e-3, "onednn": promised}
        monkeypatch.setattr(libraries, "_predicted", lambda *_, seconds=seconds, scale=scale: (seconds, scale))
        assert (libraries.seconds(("plain", 256, 1024, 512)) == found) is confirmed


def test_a_busy_machine_is_not_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BUDGET", 0.0)
    config = from_environment({}, cache_dir=tmp_path)
    assert measure.Libraries(config).seconds(("forward", 512, 512, 512)) is None
    assert not list(tmp_path.rglob("*.json"))


def test_every_product_is_measured_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))
    compiled = fuselens.compile(mlp, mode="max-autotune")
    given = inputs(33)
    torch.testing.assert_close(compiled(*given), mlp(*given), rtol=1e-4, atol=1e-4)
    assert len(list((tmp_path / "measured").rglob("*.json"))) == 2
