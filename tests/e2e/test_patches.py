"""A break inside of a library: its verified fix among the quick fixes at the user's line, kept as a patch, shown, and removed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from workbench import Workbench, until

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.patches import libraries  # noqa: E402

LED = "gate(x))"


@pytest.fixture(scope="module")
def model(workbench: Workbench, workspace: Path) -> Path:
    folder = workspace / "patches"
    folder.mkdir()
    path = libraries.project(folder) / "model.py"
    site = f"import sys\nsys.path.insert(0, {str(folder / 'site-packages')!r})\n"
    head, one, *_ = libraries.MODEL.split("@fuselens.compile")
    path.write_text(f"{site}{head}@fuselens.compile{one}")
    workbench.probe.open(path)
    until("both breaks", lambda: len(broken(workbench, path)) == 2, 120)
    return path


def broken(workbench: Workbench, path: Path) -> list[str]:
    return [d.code for d in workbench.probe.diagnostics(path) if d.code in ("FL101", "FL102")]


def focused(workbench: Workbench) -> str:
    return str(workbench.probe("return vscode.window.activeTextEditor?.document.uri.fsPath ?? ''"))


def test_a_library_is_patched_at_the_line_that_leads_into_it(workbench: Workbench, model: Path) -> None:
    workbench.close_notifications()

    def offered() -> bool:
        workbench.page("press", "Escape")
        workbench.go_to(model, LED)
        workbench.probe("vscode.commands.executeCommand('editor.action.quickFix')")
        until("a menu", lambda: workbench.texts(".action-widget .action-item, .action-widget .title"), 20)
        return any("Patch gates 1.2: " in text for text in workbench.texts(".action-widget .title"))

    until("a verified fix", offered, 180)
    workbench.screenshot("patches-1-quick-fixes")
    workbench.click(
        ".action-widget .title", "Patch gates 1.2: Compute both sides and choose with torch.where (verified)"
    )
    kept = model.parent / ".fuselens/patches/gates-1.2/gates/layers.py.patch"
    until("the patch", lambda: focused(workbench) == str(kept))
    assert "Patched gates 1.2: .fuselens/patches/" in workbench.notification("Patched gates")
    workbench.screenshot("patches-2-difference")
    workbench.close_notifications()

    workbench.probe.open(model)
    until("one break", lambda: broken(workbench, model) == ["FL102"], 120)

    def patched() -> bool:
        workbench.close_notifications()
        workbench.probe.open(model)
        workbench.run("Fuselens: Patch Libraries Where a Break Has a Verified Fix")
        until("an answer", lambda: workbench.notifications(), 20)
        return any("Patched gates" in text for text in workbench.notifications())

    until("the other one is tried out and patched", patched, 180)
    workbench.close_notifications()
    workbench.probe.open(model)
    until("no break", lambda: not broken(workbench, model), 120)
    until("told", lambda: [d for d in workbench.probe.diagnostics(model) if d.code == "FL640"])
    until("the lens", lambda: any("1 graph" in title for title in workbench.probe.lens_titles(model)))
    workbench.go_to(model, "def score")
    workbench.screenshot("patches-3-whole")
    assert (model.parent.parent / "site-packages/gates/layers.py").read_text() == libraries.LAYERS


def test_where_the_library_changes_the_patch_steps_aside(workbench: Workbench, model: Path) -> None:
    layers = model.parent.parent / "site-packages/gates/layers.py"
    layers.write_text(libraries.LAYERS + "\n# another\n")
    shutil.rmtree(layers.parent / "__pycache__", ignore_errors=True)
    workbench.probe.rewrite(model, model.read_text() + "\n# saved\n")
    (found,) = until(
        "it stepped aside", lambda: [d for d in workbench.probe.diagnostics(model) if d.code == "FL641"], 120
    )
    assert "another text" in found.message
    workbench.go_to(model, "score(x)")
    workbench.hover_at_cursor("another text")
    workbench.screenshot("patches-4-aside")
    workbench.page("press", "Escape")

    kept = model.parent / ".fuselens/patches/gates-1.2/gates/layers.py.patch"
    workbench.probe.open(kept)
    workbench.run("Fuselens: Remove a Patch of a Library")
    until("it is gone", lambda: not kept.exists())
