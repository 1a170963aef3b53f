"""A kernel is edited: opened from its lens, refused and verified at its saves, pinned, and used by the next run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from workbench import Workbench, until

NAME = "add_relu_mul_0"
DIVIDED = "y = torch.relu(y)"


@pytest.fixture(scope="module")
def model(workbench: Workbench, workspace: Path) -> Path:
    path = workspace / "kernels" / "bias_relu_mul.py"
    path.parent.mkdir()
    (path.parent / "pyproject.toml").touch()
    path.write_text((workspace / "bias_relu_mul.py").read_text())
    workbench.probe.open(path)
    until("compiled bias_relu_mul.py", lambda: any("kernel" in title for title in workbench.probe.lens_titles(path)))
    return path


def focused(workbench: Workbench) -> str:
    return str(workbench.probe("return vscode.window.activeTextEditor?.document.uri.fsPath ?? ''"))


def lens(workbench: Workbench, start: str) -> str:
    """The first lens on the screen that begins so."""
    return until(
        f"a lens {start!r}", lambda: next((t for t in workbench.shown_lenses() if t.startswith(start)), ""), 90
    )


def reveal(workbench: Workbench, text: str) -> bool:
    """Puts the cursor of the document of ours that is shown on the text; whether there is one."""
    return workbench.probe(
        """
        const shown = vscode.window.visibleTextEditors.find((e) => e.document.uri.scheme === "fuselens");
        const offset = shown?.document.getText().indexOf(argument) ?? -1;
        if (offset < 0) return false;
        const at = shown.document.positionAt(offset);
        shown.selection = new vscode.Selection(at, at);
        shown.revealRange(new vscode.Range(at, at), vscode.TextEditorRevealType.InCenter);
        return true;
        """,
        text,
    )


def test_a_kernel_is_edited_verified_and_pinned(workbench: Workbench, model: Path) -> None:
    workbench.close_notifications()
    workbench.press_kernels_lens(lambda: [t for t in workbench.texts(".tab.active .label-name") if "C++" in t])
    until("the kernel's text", lambda: reveal(workbench, f'extern "C" void {NAME}('))  # it comes after its tab
    lens(workbench, "✎ Edit this kernel")
    workbench.screenshot("kernels-1-lens")
    draft = Path(
        workbench.press_lens(
            "✎ Edit this kernel", lambda: focused(workbench) if focused(workbench).endswith("forward.cpp") else ""
        )
    )
    assert draft.is_relative_to(model.parent / ".fuselens" / "drafts")
    workbench.probe.command("cursorTop")
    lens(workbench, "save it to verify it")
    workbench.screenshot("kernels-2-draft")

    text = draft.read_text()
    body = re.search(r"\n *const f32x\d+ t\d+ = t\d+ \+ t\d+;", text)
    assert body is not None, text
    workbench.probe.rewrite(draft, text.replace(body[0], body[0].replace(" + ", " - "), 1))
    lens(workbench, "refused: on the example inputs, result 0")
    workbench.screenshot("kernels-3-refused")
    workbench.probe.rewrite(draft, text.replace(body[0], f"{body[0]} nothing here;", 1))
    lens(workbench, "refused: ")
    found = until("the compiler's words", lambda: [d for d in workbench.probe.diagnostics(draft) if d.code == "FL627"])
    assert "nothing" in draft.read_text().split("\n")[found[0].line]
    workbench.go_to(draft, "nothing here")
    workbench.screenshot("kernels-4-compiler")

    workbench.probe.rewrite(draft, text.replace(body[0], f"\n        // mine{body[0]}", 1))
    workbench.probe.command("cursorTop")
    told = lens(workbench, "✓ equals the graph on 13 kinds of inputs")
    assert ", ours " in told
    workbench.screenshot("kernels-5-verified")

    def pinned() -> bool:
        if any("takes longer than ours" in text for text in workbench.notifications()):
            workbench.press_in_notification("Pin all the same")
        return (model.parent / ".fuselens" / "kernels" / draft.parent.name / draft.name).is_file()

    workbench.press_lens("Pin", pinned)
    lens(workbench, "pinned · Unpin")
    assert "Pinned: .fuselens/kernels/" in workbench.notification("Pinned: ")
    workbench.screenshot("kernels-6-pinned")
    workbench.close_notifications()


def test_the_next_run_uses_it_and_the_editor_says_so(workbench: Workbench, model: Path) -> None:
    (pin,) = (model.parent / ".fuselens" / "kernels").glob("*/forward.cpp")
    shown = pin.relative_to(model.parent).as_posix()
    workbench.probe.open(model)
    until(
        "a finding", lambda: [d for d in workbench.probe.diagnostics(model) if d.code == "FL620" and shown in d.message]
    )
    workbench.go_to(model, DIVIDED)
    assert f"yours: {shown}" in workbench.hover_at_cursor("yours: ")
    workbench.screenshot("kernels-7-hover")
    workbench.page("press", "Escape")
    given = "torch.randn(8, 256), torch.randn(256), torch.randn(8, 256)"
    run = f"import torch, fuselens, bias_relu_mul as m; r = fuselens.explain(m.bias_relu_mul)({given})"
    run += "; print([u.pin for g in r.graphs for u in g.units])"
    done = subprocess.run(
        [sys.executable, "-c", run], cwd=model.parent, capture_output=True, text=True, check=False,
        env=os.environ | {"FUSELENS_CACHE_DIR": str(model.parent.parent.parent / "own cache")},
    )  # fmt: skip
    assert f"['{shown}']" in done.stdout, done.stdout + done.stderr

    workbench.probe.rewrite(model, model.read_text().replace("return y * scale", "return y * scale * 2"))
    until("it stepped aside", lambda: [d for d in workbench.probe.diagnostics(model) if d.code == "FL621"])
    workbench.screenshot("kernels-8-aside")


def test_the_palette_has_it_all(workbench: Workbench, workspace: Path) -> None:
    path = workspace / "kernels of the palette" / "reductions.py"
    path.parent.mkdir()
    (path.parent / "pyproject.toml").touch()
    path.write_text((workspace / "reductions.py").read_text())
    workbench.probe.open(path)
    until("compiled reductions.py", lambda: any("kernel" in title for title in workbench.probe.lens_titles(path)))
    workbench.run("Fuselens: Edit a Kernel")
    draft = Path(until("a draft", lambda: focused(workbench) if focused(workbench).endswith("forward.cpp") else ""))
    workbench.run("Fuselens: Verify an Edited Kernel")
    lens(workbench, "✓ equals the graph on ")
    workbench.run("Fuselens: Compare an Edited Kernel with Ours")
    until("both texts", lambda: [t for t in workbench.texts(".tab .label-name") if "our kernel ↔ yours" in t])
    workbench.probe.open(draft)
    pin = path.parent / ".fuselens" / "kernels" / draft.parent.name / draft.name
    workbench.run("Fuselens: Pin an Edited Kernel")

    def pinned() -> bool:
        if any("takes longer than ours" in text for text in workbench.notifications()):
            workbench.press_in_notification("Pin all the same")
        return pin.is_file()

    until("pinned", pinned)
    workbench.close_notifications()
    workbench.run("Fuselens: Unpin a Kernel")
    until("no pin", lambda: not pin.is_file())
    workbench.run("Fuselens: Discard an Edited Kernel")
    workbench.press_in_notification("Discard")
    until("no draft", lambda: not draft.is_file())
