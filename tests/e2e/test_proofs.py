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


HALF = '''"""A function of half precision that loses digits in a line."""

import fuselens
import torch
from jaxtyping import Float32
from torch import Tensor


@fuselens.compile
def centred(x: Float32[Tensor, "rows 16"]):
    h = x.bfloat16() * 3
    large = h + 500
    back = large - 500
    return back.float()
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


def test_a_hover_tells_where_half_precision_loses_digits(workbench: Workbench, program: Path) -> None:
    path = program.with_name("halves.py")
    path.write_text(HALF)
    workbench.probe.open(path)
    until("proof", lambda: proof(workbench, path))
    line = next(n for n, text in enumerate(HALF.splitlines()) if "back = " in text)
    workbench.go_to(path, "large - 500")
    said = workbench.hover_at_cursor("drift from float64")
    assert " eager, " in said and " compiled, " in said and f"that of line {line}: it grows most here" in said
    workbench.screenshot("drift")
    workbench.page("press", "Escape")
    text = workbench.press_lens("equals eager", lambda: tried(workbench))
    assert "drift from float64 by line" in text and ": it grows most here" in text
    workbench.screenshot("drift_table")
