"""What if: the lens of a function that changes would make faster, the list that it leads to, and the edit that is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workbench import Workbench, until

PROGRAM = '''"""A weight is copied in each call."""

import fuselens
import torch


@fuselens.compile(example_inputs=lambda: (torch.randn(64, 2048), torch.randn(2048, 2048) / 45))
def project(x, weight):
    return torch.mm(x, weight.t().contiguous()).relu()
'''
ROWS = ".quick-input-list .monaco-list-row"


@pytest.fixture
def program(workbench: Workbench, workspace: Path) -> Iterator[Path]:
    path = workspace / "what_if.py"
    path.write_text(PROGRAM)
    workbench.probe.setting("fuselens.whatIfSeconds", 60)
    workbench.probe.open(path)
    yield path
    workbench.probe.setting("fuselens.whatIfSeconds", 0)
    workbench.probe.command("workbench.action.revertAndCloseActiveEditor")  # with its edit, closing it later would ask
    path.unlink()


def shown(workbench: Workbench) -> str:
    return str(workbench.probe("return vscode.window.activeTextEditor?.document.getText() ?? ''"))


def test_a_change_is_offered_and_made(workbench: Workbench, program: Path) -> None:
    def offered() -> str:
        return next((t for t in workbench.probe.lens_titles(program) if " gain" in t and "up to" in t), "")

    until("changes", offered, 300)
    workbench.close_notifications()
    workbench.screenshot("what-if-1-lens")
    workbench.go_to(program, "torch.mm(")
    workbench.run("Fuselens: What If")
    workbench.visible(ROWS, "Leave out .contiguous()")
    workbench.screenshot("what-if-2-list")
    workbench.page("press", "Escape")
    workbench.press_lens("up to", lambda: [t for t in workbench.texts(ROWS) if "All That Was Tried" in t])
    workbench.click(ROWS, "All That Was Tried")
    text = until("all that was tried", lambda: t if "processor time used" in (t := shown(workbench)) else "")
    assert "+    return torch.mm(x, weight.t()).relu()" in text and "Repeat it: fuselens what-if" in text
    workbench.screenshot("what-if-3-tried")
    workbench.probe.open(program)
    workbench.press_lens("up to", lambda: [t for t in workbench.texts(ROWS) if "Leave out" in t])
    workbench.click(ROWS, "Leave out .contiguous()")
    until("the edit", lambda: "torch.mm(x, weight.t()).relu()" in shown(workbench))
    workbench.screenshot("what-if-4-edited")
