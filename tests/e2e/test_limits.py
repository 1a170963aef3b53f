"""How far a function is from what the machine allows: the lens after a run, what it leads to, the hover of a line, the picture."""

from __future__ import annotations

from pathlib import Path

from test_pictures import shown, tab
from workbench import Workbench, until

PROGRAM = '''"""A function that is far from a limit at one line, and near one at others."""

import fuselens
import torch
from jaxtyping import Float32
from torch import Tensor


@fuselens.compile
def attend(q: Float32[Tensor, "8 256 64"], k: Float32[Tensor, "8 256 64"]):
    scores = q @ k.transpose(1, 2)
    weights = torch.softmax(scores, -1)
    return weights.transpose(0, 2).contiguous()
'''


def test_how_far_a_function_is_from_its_limits(workbench: Workbench, workspace: Path) -> None:
    path = workspace / "limits.py"
    path.write_text(PROGRAM)
    workbench.probe.open(path)
    until("compiled limits.py", lambda: any("kernel" in title for title in workbench.probe.lens_titles(path)))
    workbench.go_to(path, "attend(q")
    title = workbench.press_lens(
        "Run", lambda: next((t for t in workbench.probe.lens_titles(path) if " of what " in t), "")
    )
    assert title.endswith(("allows", "allow")) and " % of what " in title, title
    workbench.close_notifications()
    workbench.screenshot("limits-lens")
    line, column = workbench.go_to(path, "torch.softmax(scores")
    told = until("the hover", lambda: "Run: " in (h := workbench.probe.hover(path, line, column)) and h)
    assert "softmax" in told and (" of its limit: " in told or " would do: " in told), told
    workbench.hover_at_cursor("Run: ")
    workbench.screenshot("limits-hover")
    workbench.page("press", "Escape")
    text = workbench.press_lens(" of what ", lambda: document(workbench))
    assert "a call: " in text and "its backward: " in text and "(library)" in text, text
    assert "measured on " in text and "copies: 16 KiB " in text, text
    workbench.screenshot("limits-document")
    page = shown(workbench, path, "attend")
    tab(page, "Roofline")
    page.visible("#panel-roofline .point")
    assert any("below the machine's roof" in text for text in page.texts("#panel-roofline svg .title"))
    assert any("a call: " in text for text in page.texts("#panel-roofline .sentence"))
    workbench.screenshot("limits-roofline")
    assert page.violations() == []


def document(workbench: Workbench) -> str:
    """The text of the editor that is active, where it is about limits."""
    text = str(workbench.probe("return vscode.window.activeTextEditor?.document.getText() ?? ''"))
    return text if "how far it is from what the machine allows" in text else ""
