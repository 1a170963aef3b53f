"""The memory of a training step in the real editor: the underline where it does not fit, the hover, the fixes, and the picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workbench import Workbench, until

PROGRAM = """import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), target)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4096, 256), torch.randint(0, 10, (4096,))


model = fuselens.compile(Net(256, 6), example_inputs=batch)
optimizer = torch.optim.AdamW(model.parameters())
"""


@pytest.fixture
def limited(workbench: Workbench, workspace: Path) -> Iterator[Path]:
    path = workspace / "steps.py"
    path.write_text(PROGRAM)
    workbench.probe.setting("fuselens.stepLimit", "240MiB")
    workbench.probe.setting("fuselens.stepSizes", "batch=8192")
    yield path
    workbench.probe.setting("fuselens.stepLimit", None)
    workbench.probe.setting("fuselens.stepSizes", None)
    workbench.probe.command("workbench.action.closeAllEditors")
    path.unlink()


def test_a_step_that_does_not_fit(workbench: Workbench, limited: Path) -> None:
    workbench.probe.open(limited)
    found = until("the finding", lambda: [d for d in workbench.probe.diagnostics(limited) if d.code == "FL630"], 180)
    (finding,) = found
    assert "batch=8192" in finding.message
    assert "The largest batch that fits is" in finding.message
    line, column = workbench.go_to(limited, "return x + self.down")
    shown = until(
        "what it holds", lambda: "at the peak of a step" in (h := workbench.probe.hover(limited, line, column)) and h
    )
    assert "saved for backward" in shown
    workbench.hover_at_cursor("at the peak of a step")
    workbench.screenshot("memory-hover")
    workbench.probe.command("editor.action.marker.next")
    workbench.screenshot("memory-finding")
    titles = until(
        "fixes",
        lambda: workbench.probe(
            """
            const uri = vscode.Uri.file(argument);
            const all = vscode.languages.getDiagnostics(uri).filter((d) => String(d.code?.value ?? d.code) === "FL630");
            const found = await vscode.commands.executeCommand("vscode.executeCodeActionProvider", uri, all[0].range);
            return found.map((a) => a.title).filter((t) => t.includes("again in the backward"));
            """,
            str(limited),
        ),
    )
    assert any("Compute block again in the backward" in title for title in titles)
    for _ in range(3):  # the hover, and the view of the finding
        workbench.page("press", "Escape")
    workbench.probe.command("fuselens.openPictures", limited.as_uri(), "model")
    page = workbench.webview("Fuselens Pictures")
    page.click('[role="tab"]', "Memory")
    page.visible("#panel-memory svg .title", "A step of training with batch=8192")
    page.visible("#panel-memory svg .mark", "limit 240 MiB")
    workbench.screenshot("memory-picture")
