"""What a person reads above and over the code: hovers that fit a screen, lenses that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from workbench import Workbench, until

ROWS = ".monaco-hover:not(.hidden) .hover-row"
MOST_LINES = 25
GELU = "F.gelu(self.up"


@pytest.fixture(scope="module")
def model(workbench: Workbench, workspace: Path) -> Path:
    """A model of twelve layers, opened and compiled."""
    path = workspace / "gpt2.py"
    workbench.probe.open(path)
    until("compiled gpt2.py", lambda: "1 graph" in workbench.probe.lens_titles(path))
    return path


@pytest.fixture
def toy(workbench: Workbench, workspace: Path) -> Path:
    """A function with a break."""
    path = workspace / "toy.py"
    workbench.probe.open(path)
    until("compiled toy.py", lambda: any("break" in title for title in workbench.probe.lens_titles(path)))
    return path


def lines_of_hover(workbench: Workbench) -> int:
    """Lines on the screen, those that are wrapped counted as often as they take."""
    source = """
    (selector) => [...document.querySelectorAll(selector)].map((row) => {
        const tops = new Set();
        const walker = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            if (walker.currentNode.textContent.trim() === "") continue;
            const range = document.createRange();
            range.selectNodeContents(walker.currentNode);
            for (const box of range.getClientRects()) tops.add(Math.round(box.top / 6));
        }
        return tops.size;
    }).reduce((sum, lines) => sum + lines, 0)
    """
    return workbench.page("evaluate", source, ROWS)


def test_the_hover_in_a_layer_groups_the_kernels_of_all_layers(workbench: Workbench, model: Path) -> None:
    workbench.go_to(model, GELU)
    text = workbench.hover_at_cursor("12 × gelu")
    assert "fused with line 28;" in text
    for link in ("Kernel", "Loops", "Why not fused", "Peek stages"):
        workbench.visible(f"{ROWS} a", link)
    workbench.screenshot("60-hover-layer")
    assert 8 < lines_of_hover(workbench) <= MOST_LINES
    workbench.page("press", "Escape")


def test_every_hover_of_the_model_fits(workbench: Workbench, model: Path) -> None:
    kernels = next(title for title in workbench.probe.lens_titles(model) if title.endswith(" kernels"))
    for place, said, picture in (
        ("x = x + self.attend", "add_layer_norm", ""),
        ("self.out(y", "by a library", "61-hover-library"),
        ("F.linear(self.last", "linear_0", ""),
        ("words: Tensor", "parameter of model", "62-hover-parameter"),
        ("model = fuselens", f"1 graph · 0 breaks · {kernels}", "63-hover-function"),
    ):
        workbench.go_to(model, place)
        workbench.hover_at_cursor(said)
        if picture:
            workbench.screenshot(picture)
        assert lines_of_hover(workbench) <= MOST_LINES, place
    workbench.page("press", "Escape")


def test_why_it_was_not_fused_stands_in_the_summary(workbench: Workbench, model: Path) -> None:
    workbench.go_to(model, GELU)
    workbench.hover_at_cursor("Why not fused")
    workbench.click(f"{ROWS} a", "Why not fused")
    line = until("line of the summary", lambda: _line_at_cursor(workbench, "summary.txt"))
    assert line.strip().startswith("refused: ")
    workbench.screenshot("64-why-not-fused")
    workbench.probe.open(model)


def test_stages_are_peeked_at_from_the_hover(workbench: Workbench, model: Path) -> None:
    workbench.go_to(model, GELU)
    workbench.hover_at_cursor("Peek stages")
    workbench.go_to(model, "import torch")  # the hover stays where it is; the cursor is elsewhere
    workbench.go_to(model, GELU)
    workbench.hover_at_cursor("Peek stages")
    workbench.click(f"{ROWS} a", "Peek stages")
    workbench.visible(".peekview-widget .monaco-list-row", "model · graph 2 · C++")
    workbench.visible(".peekview-widget .preview .view-line", "gelu")
    workbench.screenshot("65-peek")
    workbench.page("press", "Escape")
    workbench.page("press", "Escape")


def test_above_a_method_stands_what_it_was_compiled_in(workbench: Workbench, model: Path) -> None:
    line = next(n for n, text in enumerate(model.read_text().split("\n"), 1) if text.startswith("model = "))
    workbench.go_to(model, "def attend")
    workbench.visible(".codelens-decoration a", f"compiled in model, line {line}")
    workbench.screenshot("66-lens-method")
    title = f"compiled in model, line {line}"
    workbench.press_lens(title, lambda: f"Ln {line}, Col 1" in workbench.texts("#status\\.editor\\.selection"))


def test_sizes_are_marked_dynamic_from_the_hover_once_that_was_tried(workbench: Workbench, workspace: Path) -> None:
    path = workspace / "fixed_sizes.py"
    path.write_text(
        "import fuselens\nimport torch\n\n\n"
        "@fuselens.compile(example_inputs=(torch.ones(4, 8), torch.ones(8)))\n"
        "def scaled(x, w):\n    return (x * w).sum(-1)\n"
    )
    workbench.probe.open(path)
    until("compiled", lambda: "1 graph" in workbench.probe.lens_titles(path))
    workbench.go_to(path, "x, w")
    assert "float32[4, 8]" in workbench.hover_at_cursor("Mark dynamic")
    workbench.screenshot("59-mark-dynamic")
    workbench.click(f"{ROWS} a", "Mark dynamic")
    until("the edit", lambda: "dynamic=True" in workbench.probe.text(path.as_uri()))
    workbench.save()
    line, column = workbench.go_to(path, "x, w")
    until("sizes that vary", lambda: "float32[*, *]" in workbench.probe.hover(path, line, column))
    assert "Mark dynamic" not in workbench.probe.hover(path, line, column)
    workbench.probe.command("workbench.action.closeActiveEditor")
    path.unlink()


def test_the_row_of_lenses(workbench: Workbench, toy: Path) -> None:
    shown = until("lenses", lambda: [t for t in workbench.shown_lenses() if "▶ Run" in t] and workbench.shown_lenses())
    row = " | ".join(shown)
    run = r"▶ Run( · [\d.]+× eager ✓)?"  # with what an earlier run of it took, if there was one
    proof = r"( \| ✓ equals eager \([^|]*\))?"  # the proof comes in idle time: before this test, or after it
    distance = r"( \| [^|]* of what [^|]* allow)?"  # once a run has timed its kernels
    others = r" \| 3 graphs · ⚠ 1 break \| 4 kernels \| C\+\+ \| IR \| debug"
    assert re.match(run + proof + distance + others, row[row.index("▶ Run") :]), row
    workbench.screenshot("67-lenses")


def test_the_lens_of_the_break_leads_to_it(workbench: Workbench, toy: Path) -> None:
    line = next(n for n, text in enumerate(toy.read_text().split("\n"), 1) if "if b.sum()" in text)
    workbench.press_lens("⚠ 1 break", lambda: f"Ln {line}, Col 8" in workbench.texts("#status\\.editor\\.selection"))


def test_the_lens_of_the_language_opens_its_code(workbench: Workbench, toy: Path) -> None:
    workbench.press_lens("C++", lambda: _line_at_cursor(workbench, "cpp.cpp"))
    assert "abs_add_div_0" in _line_at_cursor(workbench, "cpp.cpp")
    workbench.probe.open(toy)


def test_the_last_run_is_kept_until_the_function_changes(workbench: Workbench, toy: Path) -> None:
    source = toy.read_text()
    workbench.press_lens("▶ Run", lambda: any("× eager ✓" in t for t in workbench.probe.lens_titles(toy)))
    workbench.close_notifications()
    workbench.visible(".codelens-decoration a", "× eager ✓")
    workbench.screenshot("68-lens-run")
    try:
        workbench.probe.rewrite(toy, source.replace("+ 1", "+ 2"))
        workbench.visible(".codelens-decoration a", "✓ · stale")
    finally:
        workbench.probe.rewrite(toy, source)
    until(
        "the result of this very text", lambda: any(t.endswith("× eager ✓") for t in workbench.probe.lens_titles(toy))
    )


def test_a_setting_thins_the_lenses(workbench: Workbench, toy: Path) -> None:
    workbench.probe.setting("fuselens.codeLens.show", ["run", "kernels"])
    try:
        until("two lenses", lambda: len(workbench.probe.lens_titles(toy)) == 2)
        until("two on the screen", lambda: len(workbench.shown_lenses()) == 2)
        workbench.screenshot("69-lenses-thinned")
    finally:
        workbench.probe.setting("fuselens.codeLens.show", None)
    until("all lenses", lambda: len(workbench.probe.lens_titles(toy)) > 4)


def test_lenses_change_though_the_focus_has_left_the_editor(workbench: Workbench, toy: Path) -> None:
    """The editor forgets that it is to ask for lenses when it loses the focus before it does so."""
    workbench.probe.open(toy)
    workbench.page("click", ".editor-instance .view-lines")
    until("all on the screen", lambda: len(workbench.shown_lenses()) > 4)
    change = """
        await vscode.workspace.getConfiguration().update("fuselens.codeLens.show", ["run"], true);
        await new Promise((resolve) => setTimeout(resolve, 150));  // the editor asks after 250 ms at the soonest
        await vscode.commands.executeCommand("fuselens.overview.focus");
    """
    try:
        workbench.probe(change)
        until("one on the screen", lambda: len(workbench.shown_lenses()) == 1)
    finally:
        workbench.probe.setting("fuselens.codeLens.show", None)
    until("all on the screen again", lambda: len(workbench.shown_lenses()) > 4)


def _line_at_cursor(workbench: Workbench, name: str) -> str:
    """The line at the cursor of the active editor, if that shows a document with this name."""
    return workbench.probe(
        """
        const e = vscode.window.activeTextEditor;
        return e?.document.uri.path.endsWith(argument) ? e.document.lineAt(e.selection.active).text : "";
        """,
        name,
    )
