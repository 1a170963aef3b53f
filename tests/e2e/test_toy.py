"""What a person sees of the first example, in order: the file is opened, read, changed, saved and run.

Every picture is kept in ``tests/e2e/output``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from workbench import Workbench, until

CONDITION = "b.sum() < 0"
WARNING = 1


@pytest.fixture(scope="module")
def toy(workbench: Workbench, workspace: Path) -> Path:
    """``toy.py``, opened and compiled."""
    path = workspace / "toy.py"
    workbench.probe.open(path)
    until("compiled toy.py", lambda: workbench.probe.compiles(path))
    return path


def test_opening_the_file_compiles_it(workbench: Workbench, toy: Path) -> None:
    workbench.visible(".squiggly-warning")
    workbench.visible(".codelens-decoration a", "3 graphs · ⚠ 1 break")
    workbench.screenshot("01-opened")


def test_the_break_is_at_the_condition(workbench: Workbench, toy: Path) -> None:
    breaks = until("break", lambda: [d for d in workbench.probe.diagnostics(toy) if d.code == "FL101"])
    assert len(breaks) == 1
    assert breaks[0].text == CONDITION
    assert breaks[0].severity == WARNING
    assert "only known when the program runs" in breaks[0].message, "it says why"


def test_the_hover_on_the_break_explains_it(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, CONDITION)
    text = workbench.hover_at_cursor("graph break")
    assert "FL101" in text
    workbench.screenshot("02-hover-break")
    workbench.page("press", "Escape")


def test_the_hover_on_a_parameter_shows_its_guards(workbench: Workbench, toy: Path) -> None:
    line, column = workbench.go_to(toy, "a: Float32")
    assert "parameter of `toy`" in workbench.probe.hover(toy, line, column)
    workbench.hover_at_cursor("float32")
    workbench.screenshot("03-hover-parameter")
    workbench.page("press", "Escape")


def test_the_hover_on_a_line_shows_what_it_became(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, "x = a / ")
    workbench.hover_at_cursor("abs_add_div_0 (C++, 64 B in, 64 B out)")
    workbench.screenshot("04-hover-line")
    workbench.page("press", "Escape")


def test_a_link_in_the_hover_opens_a_stage_at_the_line(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, "x = a / ")
    workbench.hover_at_cursor("abs_add_div_0")
    workbench.click(".monaco-hover a", "Loops")
    opened = until("stage beside the code", lambda: _visible_documents(workbench, "fuselens"))
    assert opened[0]["language"] == "fuselens-loop"
    assert "toy.py:12" in workbench.probe(
        "const e = vscode.window.activeTextEditor; return e.document.lineAt(e.selection.active).text"
    )
    workbench.probe.command("workbench.action.closeActiveEditor")


def test_the_code_of_a_diagnostic_leads_to_its_page(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, CONDITION)
    workbench.hover_at_cursor("graph break")
    workbench.click(".monaco-hover a", "FL101")
    opened = until("page of the code", lambda: _visible_documents(workbench, "fuselens"))
    assert opened[0]["uri"].endswith("FL101.md")
    assert "data-dependent branch" in workbench.probe.text(opened[0]["uri"])
    workbench.probe.open(toy)


def test_assigned_names_show_their_shapes(workbench: Workbench, toy: Path) -> None:
    hints = until("hints", lambda: workbench.probe.hints(toy))
    line = toy.read_text().split("\n").index("    x = a / (a.abs() + 1)")
    assert any(at == line and "f32[" in text for at, text in hints), hints
    shown = until("hint on the screen", lambda: [text for text in workbench.lines() if "x: f32[" in text])
    assert " = a / (a.abs() + 1)" in shown[0]


def test_hints_can_be_turned_off(workbench: Workbench, toy: Path) -> None:
    workbench.probe.setting("fuselens.inlayHints.enabled", False)
    try:
        until("line without a hint", lambda: not [text for text in workbench.lines() if "x: f32[" in text])
    finally:
        workbench.probe.setting("fuselens.inlayHints.enabled", None)
    until("hint again", lambda: [text for text in workbench.lines() if "x: f32[" in text])


def test_the_kernel_opens_beside_the_code(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, "x = a / ")
    opened = workbench.press_lens("4 kernels", lambda: _visible_documents(workbench, "fuselens"))
    assert opened[0]["language"] == "fuselens-cpp"
    assert opened[0]["column"] == 2
    text = workbench.probe.text(opened[0]["uri"])
    assert 'extern "C" void abs_add_div_0' in text, text
    # It opens at the kernel of the line at the cursor, not at the vector types that every file begins with.
    until("kernel on the screen", lambda: _shows(workbench, 2, "// abs_add_div_0: "))
    workbench.screenshot("06-kernel")
    workbench.probe.command("workbench.action.closeEditorsInOtherGroups")


def test_the_lens_lists_every_stage(workbench: Workbench, toy: Path) -> None:
    workbench.probe.open(toy)
    workbench.visible(".codelens-decoration a", "3 graphs · ⚠ 1 break")

    def listed() -> list[str]:  # rows of an earlier list stay in the page
        return [row for row in workbench.texts(".quick-input-list .monaco-list-row") if "guards" in row]

    workbench.press_lens("IR", listed)
    workbench.screenshot("07-stages")
    workbench.page("press", "Escape")
    kinds = {document["kind"] for document in workbench.probe.documents(toy, "toy")}
    assert {"summary", "guards", "graph", "loop", "kernel"} <= kinds


def test_every_stage_has_text(workbench: Workbench, toy: Path) -> None:
    documents = workbench.probe.documents(toy, "toy")
    assert len({document["uri"] for document in documents}) == len(documents)
    for document in documents:
        text = workbench.probe.text(document["uri"])
        assert text.strip(), document
        assert "not available" not in text, document


def test_loops_are_coloured(workbench: Workbench, toy: Path) -> None:
    loops = [d for d in workbench.probe.documents(toy, "toy") if d["kind"] == "loop"]
    workbench.probe(
        """
        const document = await vscode.workspace.openTextDocument(vscode.Uri.parse(argument));
        await vscode.window.showTextDocument(document, { viewColumn: 2, preview: true });
        """,
        loops[-1]["uri"],
    )
    opened = _visible_documents(workbench, "fuselens")
    assert opened[0]["language"] == "fuselens-loop"
    workbench.screenshot("08-loops")
    workbench.probe.command("workbench.action.closeActiveEditor")


def test_an_open_document_follows_the_file(workbench: Workbench, toy: Path) -> None:
    source = toy.read_text()
    summary = next(d["uri"] for d in workbench.probe.documents(toy, "toy") if d["kind"] == "summary")
    before = workbench.probe.text(summary)
    assert "FL101" in before
    try:
        workbench.probe.rewrite(toy, source.replace(f"if {CONDITION}:", "if b.ndim == 7:"))
        until("new text in the open document", lambda: "FL101" not in workbench.probe.text(summary))
        until("no break", lambda: not [d for d in workbench.probe.diagnostics(toy) if d.code == "FL101"])
        workbench.screenshot("09-break-removed")
    finally:
        workbench.probe.rewrite(toy, source)
    until("break again", lambda: [d for d in workbench.probe.diagnostics(toy) if d.code == "FL101"])


def test_a_saved_edit_moves_the_squiggle(workbench: Workbench, toy: Path) -> None:
    """With the keyboard, as a person does: a line is typed above the function, and the file is saved."""
    source = toy.read_text()
    line = _break_line(workbench, toy)
    workbench.go_to(toy, "import fuselens")
    workbench.page("press", "Home")
    workbench.page("type", "# one more line\n")
    workbench.save()
    try:
        until("saved file", lambda: toy.read_text() != source)
        until("moved break", lambda: _break_line(workbench, toy) == line + 1)
        breaks = [d for d in workbench.probe.diagnostics(toy) if d.code == "FL101"]
        assert [d.text for d in breaks] == [CONDITION]
        workbench.screenshot("10-edited")
    finally:
        workbench.probe.rewrite(toy, source)
    until("break where it was", lambda: _break_line(workbench, toy) == line)


def test_running_the_function_from_its_lens(workbench: Workbench, toy: Path) -> None:
    workbench.close_notifications()
    workbench.visible(".codelens-decoration a", "Run")
    workbench.press_lens("Run", lambda: [t for t in workbench.notifications() if "toy" in t])  # that it runs
    text = workbench.notification("Fuselens: toy ")
    assert "toy agrees with eager" in text, text
    workbench.screenshot("11-run")
    workbench.press_in_notification("Show Details")
    panel = workbench.webview("Fuselens runs")
    panel.visible("h1", "toy")
    panel.visible("table", "Time of a call")
    workbench.screenshot("12-run-details")
    workbench.probe.command("workbench.action.closePanel")


def test_explaining_the_function_at_the_cursor(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, "return x * b")
    workbench.run("Fuselens: Explain the Compilation")
    note = until("explanation", lambda: _visible_documents(workbench, "fuselens-note"))
    assert "FL101" in workbench.probe.text(note[0]["uri"])
    workbench.screenshot("13-explained")
    workbench.probe.command("workbench.action.closeActiveEditor")


def test_the_problems_panel_lists_the_break(workbench: Workbench, toy: Path) -> None:
    workbench.probe.command("workbench.actions.view.problems")
    workbench.visible(".markers-panel .monaco-list-row", "graph break")
    workbench.screenshot("14-problems")
    workbench.probe.command("workbench.action.closePanel")


def _break_line(workbench: Workbench, path: Path) -> int | None:
    return next((d.line for d in workbench.probe.diagnostics(path) if d.code == "FL101"), None)


def _shows(workbench: Workbench, column: int, text: str) -> bool:
    """Whether the group's editor has a line that begins with ``text`` in view."""
    return workbench.probe(
        """
        const [column, text] = argument;
        const editor = vscode.window.visibleTextEditors.find((e) => e.viewColumn === column);
        const shown = (editor?.visibleRanges ?? []).map((range) => editor.document.getText(range)).join("\\n");
        return shown.split("\\n").some((line) => line.startsWith(text));
        """,
        [column, text],
    )


def _visible_documents(workbench: Workbench, scheme: str) -> list[dict]:
    return workbench.probe(
        """
        return vscode.window.visibleTextEditors.filter((e) => e.document.uri.scheme === argument).map((e) => ({
            uri: e.document.uri.toString(), language: e.document.languageId, column: e.viewColumn,
        }));
        """,
        scheme,
    )
