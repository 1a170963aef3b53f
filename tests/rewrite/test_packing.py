"""Frozen weights in oneDNN's layout: where they are used, eager's values and strides, and what becomes of their memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens import torch_private
from fuselens.record.report import Decision
from fuselens.rewrite import convolutions
from fuselens.runtime import measure
from tests.support.tensors import assert_same

pytestmark = pytest.mark.skipif(not measure.available(), reason="torch was built without oneDNN")


@pytest.fixture(autouse=True)
def prefer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Lets one implementation measure faster for everything, packed weights at first."""
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(convolutions, "LEAST_WORK", 0)

    def choose(name: str) -> None:
        seconds = {"aten": 2e-3, "onednn": 2e-3, "packed": 2e-3, name: 1e-3}
        monkeypatch.setattr(measure.Libraries, "seconds", lambda *_: seconds)
        monkeypatch.setattr(measure.Libraries, "convolution_seconds", lambda *_: seconds)

    choose("packed")
    return choose


def frozen(module: nn.Module, **options: Any) -> Any:
    return fuselens.compile(module, fullgraph=True, options={"freezing": True}, **options)


def decisions(compiled: Any) -> list[Decision]:
    return [d for g in compiled.__fuselens__.recorder.report.graphs for d in g.decisions if d.code == "FL415"]


def externs(compiled: Any) -> list[str]:
    return [e for g in compiled.__fuselens__.recorder.report.graphs for e in g.externs]


def module_agrees(compiled: Any, module: nn.Module, x: Tensor) -> None:
    expected = module(x)
    assert_same(compiled(x), expected, rtol=1e-4, atol=1e-4)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.norm.running_mean = torch.randn(8)

    def forward(self, x: Tensor) -> Any:
        y = F.relu(self.norm(self.first(x)))
        y = self.first(y) + y
        return self.first(y), y


class Turned(nn.Module):
    """A weight that is read by rows, and one that comes through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 20))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight @ self.weight.view(20, 12).t().reshape(20, 12)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "conv": (lambda: nn.Conv2d(3, 8, 3), (2, 3, 9, 7), 1),
    "conv without bias": (lambda: nn.Conv2d(4, 8, 3, bias=False, stride=2, padding=1), (2, 4, 9, 9), 1),
    "grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2, dilation=2), (2, 4, 9, 9), 1),
    "depthwise": (lambda: nn.Conv2d(8, 8, 5, groups=8, padding="same"), (2, 8, 9, 9), 1),
    "1 x 1": (lambda: nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 8, 1)), (2, 8, 6, 6), 2),
    "one point": (lambda: nn.Conv2d(8, 16, 1), (2, 8, 1, 1), 1),
    "circular": (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (2, 4, 6, 6), 1),
    "residual": (Residual, (2, 8, 9, 9), 3),
    "transposed": (lambda: nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1), (2, 8, 5, 5), 1),
    "transposed, grouped": (lambda: nn.ConvTranspose2d(8, 4, 3, groups=2, bias=False), (2, 8, 5, 5), 1),
    "relu after": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (2, 3, 9, 9), 1),
    "conv1d": (lambda: nn.Conv1d(3, 8, 3), (2, 3, 9), 0),
    "conv3d": (lambda: nn.Conv3d(3, 8, 3), (2, 3, 5, 5, 5), 0),
    "f64": (lambda: nn.Conv2d(3, 8, 3).double(), (2, 3, 9, 7), 0),
    "linear": (lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 12)), (33, 12), 2),
    "linear without bias": (lambda: nn.Linear(12, 20, bias=False), (3, 11, 12), 1),
    "matmul": (Turned, (33, 12), 2),
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("name", MODULES)
def test_agrees(name: str, last: bool) -> None:
    make, shape, packed = MODULES[name]
    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(shape)
    x = x.to(next(module.parameters()).dtype)
    if last:
        if x.dim() != 4:
            pytest.skip("has no channels-last layout")
        x = x.contiguous(memory_format=torch.channels_last)
    compiled = frozen(module)
    with torch.no_grad():
        module_agrees(compiled, module, x)
        module_agrees(compiled, module, torch.cat([x[1:] * float("nan"), x[:1]]))
        taken = [d for d in decisions(compiled) if d.verdict == "packed"]
        assert len(taken) == packed == sum(e.startswith("mkldnn.") for e in externs(compiled))
        assert all(d.data["bytes"] for d in taken)
        next(module.parameters()).mul_(2)
        module_agrees(compiled, module, x)


def test_other_batches_share_the_packed_weight() -> None:
    for module, shape in ((nn.Conv2d(3, 8, 3), (3, 9, 9)), (nn.Linear(12, 20), (12,))):
        compiled = frozen(module.eval(), dynamic=True)
        with torch.no_grad():
            for n in (2, 5, 1, 16):
                x = torch.randn(n, *shape)
                torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        graphs = compiled.__fuselens__.recorder.report.graphs
        assert [d.verdict for d in graphs[0].decisions if d.code == "FL415"] in (["packed"], [])


def test_planes_of_varying_size_are_left_alone() -> None:
    module = nn.Conv2d(3, 8, 3).eval()
    compiled = frozen(module, dynamic=True)
    with torch.no_grad():
        for n in (9, 12, 15):
            module_agrees(compiled, module, torch.randn(2, 3, n, n))
    assert not decisions(compiled)


def test_residuals_go_with_the_call() -> None:
    compiled = frozen(Residual().eval())
    with torch.no_grad():
        compiled(torch.randn(2, 8, 9, 9))
    assert ["with a residual" in d.reason for d in decisions(compiled)] == [False, True, False]


def test_what_measured_slower_is_not_packed(prefer: Callable[[str], None]) -> None:
    prefer("aten")
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 5)).eval()
    compiled = frozen(module)
    with torch.no_grad():
        module_agrees(compiled, module, torch.randn(2, 3, 3, 3))
    assert {d.verdict for d in decisions(compiled)} == {"aten"}


def test_nothing_is_packed_unless_it_is_frozen() -> None:
    module, x = nn.Conv2d(3, 8, 3).eval(), torch.randn(2, 3, 9, 9)
    for compiled in (fuselens.compile(module), frozen(module)):
        module_agrees(compiled, module, x)  # gradients are recorded
        assert not decisions(compiled)


def test_a_weight_that_two_calls_read_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    pack = torch_private.ONEDNN_PACK_CONVOLUTION
    monkeypatch.setattr(
        torch_private, "ONEDNN_PACK_CONVOLUTION", lambda *a: made.append(weakref.ref(w := pack(*a))) or w
    )
    module = Residual().eval()
    compiled = frozen(module)
    x = torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        module_agrees(compiled, module, x)
        assert len(made) == 2  # one has the batch norm in it
        module.first.weight.mul_(2)
        module_agrees(compiled, module, x)
        gc.collect()
        assert [r() is None for r in made] == [True, True, False, False]  # what cannot come back is freed
    del compiled, module
    fuselens.reset()
    gc.collect()
    assert not any(r() is not None for r in made)


def test_measuring_remembers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))
    module = nn.Sequential(
        nn.Conv2d(16, 16, 3), nn.ConvTranspose2d(16, 16, 2), nn.Flatten(), nn.Linear(3136, 64)
    ).eval()
    x = torch.randn(8, 16, 15, 15)
    with torch.no_grad():
        for _ in range(2):
            compiled = frozen(module)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
            assert len(decisions(compiled)) == 3
            fuselens.reset()
    assert len(list((tmp_path / "measured").rglob("*.json"))) == 3
