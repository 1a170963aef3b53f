"""Proofs: the lens of a function that gives eager's values, and what it leads to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workbench import Workbench, until

PROGRAM = '''"""A function that agrees with eager."""

import fuselens
import torch
from jaxtyping import Float32
from torch import Tensor


@fuselens.compile
def softmax(x: Float32[Tensor, "rows 16"]):
    y = (x - x.amax(-1, keepdim=True)).exp()
    return y / y.sum(-1, keepdim=True)
'''


@pytest.fixture
def program(workbench: Workbench, workspace: Path) -> Iterator[Path]:
    path = workspace / "proofs.py"
    path.write_text(PROGRAM)
    workbench.probe.setting("fuselens.proveSeconds", 60)
    workbench.probe.open(path)
    yield path
    workbench.probe.setting("fuselens.proveSeconds", 0)


def proof(workbench: Workbench, path: Path) -> str:
    return next((title for title in workbench.probe.lens_titles(path) if title.startswith("✓")), "")


def tried(workbench: Workbench) -> str:
    """The text of the editor that is active, where it says what was tried."""
    text = str(workbench.probe("return vscode.window.activeTextEditor?.document.getText() ?? ''"))
    return text if "kinds of calls" in text else ""


def test_a_lens_says_that_a_function_is_proved(workbench: Workbench, program: Path) -> None:
    title = until("proof", lambda: proof(workbench, program))
    assert title.startswith("✓ equals eager (") and title.endswith("float64 agrees)")
    text = workbench.press_lens("equals eager", lambda: tried(workbench))
    assert "✓ negative zeros" in text and "✓ other sizes" in text and "Repeat it: fuselens verify" in text
    workbench.screenshot("proofs")
