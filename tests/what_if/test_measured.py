"""Changes measured beside the function as it is: what agrees and gains is offered, what does something else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselens.checking.changes import finding
from fuselens.checking.changes.clock import Clock
from fuselens.checking.changes.measuring import Measure
from fuselens.config import from_environment
from fuselens.record.report import TriedChange

HEAD = "import torch\nimport fuselens\n\n\n"
COMPILED = "@fuselens.compile(example_inputs=lambda: ({}))\n"


def tried(tmp_path: Path, text: str, kind: str) -> TriedChange:
    """What measuring the first change of a kind gave, also of one that the text alone would refuse."""
    path = tmp_path / "model.py"
    path.write_text(HEAD + text)
    config = from_environment()
    (function,) = (line.split("(")[0] for line in text.split("def ")[1:2])
    every = finding.changes_of(str(path), function, None, config, lambda _: None)
    change = next(c for c in every if c.kind == kind)
    clock = Clock.until(60, 0)
    return Measure(str(path), function, None, change, config, lambda _: None, clock).tried()


@pytest.mark.usefixtures("fresh")
class TestRefused:
    def test_a_result_that_would_be_its_input(self, tmp_path: Path) -> None:
        text = COMPILED.format("torch.randn(64, 64),") + "def step(x):\n    y = x.clone()\n    return y\n"
        assert "shares memory" in tried(tmp_path, text, "clone").why

    def test_a_view_that_another_memory_does_not_have(self, tmp_path: Path) -> None:
        text = COMPILED.format("torch.randn(64, 64),") + "def step(x):\n    return x.t().contiguous().view(-1) * 2\n"
        assert "raised RuntimeError" in tried(tmp_path, text, "contiguous").why

    def test_other_strides_of_the_result(self, tmp_path: Path) -> None:
        text = COMPILED.format("torch.randn(64, 32),") + "def step(x):\n    y = x.t().contiguous()\n    return y\n"
        found = tried(tmp_path, text, "contiguous")
        assert "shares memory" in found.why or "other strides" in found.why

    def test_a_copy_that_is_written_to_through_a_view(self, tmp_path: Path) -> None:
        body = "    y = x.clone()\n    z = y[0]\n    z.zero_()\n    return x.sum(0) + y.sum(0)\n"
        text = COMPILED.format("torch.randn(64, 32),") + "def step(x):\n" + body
        assert tried(tmp_path, text, "clone").why


SLOW = COMPILED.format("torch.randn(1024, 1024), torch.randn(1024, 8)") + (
    "def step(x, w):\n    kept = x.clone()\n    fuselens.graph_break()\n    return torch.mm(kept, w).relu()\n"
)


@pytest.mark.usefixtures("fresh")
def test_what_is_measured(tmp_path: Path) -> None:
    found = tried(tmp_path, SLOW, "clone")
    assert found.time is not None and found.time_quartiles is not None and found.seconds is not None
    assert found.bytes is not None and found.saved > 0
    assert found.compared > 3 or found.why
    assert found.error is None


@pytest.mark.usefixtures("fresh")
def test_fewer_bits_are_said(tmp_path: Path) -> None:
    text = (
        COMPILED.format("torch.randn(64, 256), torch.randn(256, 64)") + "def step(x, w):\n    return torch.mm(x, w)\n"
    )
    found = tried(tmp_path, text, "autocast")
    assert found.error is not None and 1e-4 < found.error < 2e-2
    assert "its result is bfloat16" in found.changes and "rounded" in found.changes
