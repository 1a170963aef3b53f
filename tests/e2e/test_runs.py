"""Run, compare, debug: what a person sees of a run, of two compilations, in the Test Explorer and in the debugger."""

from __future__ import annotations

from pathlib import Path

import pytest
from workbench import Webview, Workbench, again, until

PANEL = "Fuselens runs"
PROGRAM = '''"""Two functions: one that agrees with eager, and one that does not."""

import fuselens
import torch
from jaxtyping import Float32
from torch import Tensor


@fuselens.compile
def softmax(x: Float32[Tensor, "256 512"]):
    y = (x - x.amax(-1, keepdim=True)).exp()
    return y / y.sum(-1, keepdim=True)


@fuselens.compile
def shifted(x: Float32[Tensor, "4 4"]):
    scale = 2.0
    if torch.compiler.is_compiling():
        scale = 3.0
    y = x.abs() + 1
    return y * 2, y * scale
'''


@pytest.fixture(scope="module")
def program(workbench: Workbench, workspace: Path) -> Path:
    path = workspace / "runs.py"
    path.write_text(PROGRAM)
    workbench.probe.open(path)
    until("compiled runs.py", lambda: sum("graph" in title for title in workbench.probe.lens_titles(path)) == 2)
    return path


def test_the_panel_shows_a_run_from_its_lens(workbench: Workbench, program: Path) -> None:
    workbench.close_notifications()
    workbench.press_lens("Run", lambda: [t for t in workbench.notifications() if "softmax" in t])
    assert "softmax agrees with eager" in workbench.notification("Fuselens: softmax ")
    workbench.press_in_notification("Show Details")
    panel = workbench.webview(PANEL)
    panel.visible("h1", "softmax")
    panel.visible("[role=status]", "softmax agrees with eager, gradients too")
    figures = _table(panel, "figures")
    assert "Time of a call" in figures and "Speed-up" in figures and "×" in figures and "–" in figures, figures
    values = _table(panel, "values-and-gradients")
    assert "result" in values and "gradient of x" in values and "float32[256, 512]" in values
    kernels = _table(panel, "kernels")
    assert "GB/s" in kernels and "0 forward" in kernels and "0 backward" in kernels and " %" in kernels
    workbench.close_notifications()
    workbench.screenshot("runs-1-panel")
    assert panel.violations() == []


def test_a_kernel_leads_to_its_line(workbench: Workbench, program: Path) -> None:
    workbench.go_to(program, "import fuselens")
    workbench.webview(PANEL).click("#kernel-0")
    line = PROGRAM.split("\n").index("    y = (x - x.amax(-1, keepdim=True)).exp()")
    until("cursor in the function", lambda: line <= _cursor(workbench) <= line + 1)


def test_a_run_that_differs_shows_its_first_differing_element(workbench: Workbench, program: Path) -> None:
    workbench.close_notifications()
    workbench.go_to(program, "y * scale")
    workbench.run("Fuselens: Run Compiled and Compare with Eager")
    text = workbench.notification("Fuselens: shifted ")
    assert "DIFFERS from eager" in text, text
    panel = workbench.webview(PANEL)
    panel.visible("h1", "shifted")
    (failure,) = panel.texts(".failure")
    assert "result[1]: 16 of 16 elements differ, the first at [0, 0]: eager " in failure
    rows = [row for row in panel.texts("tr") if "differs" in row]
    assert any("result[1]" in row for row in rows) and not any("result[0]" in row for row in rows), rows
    workbench.close_notifications()
    workbench.screenshot("runs-2-differs")
    assert panel.violations() == []
    workbench.go_to(program, "import fuselens")
    panel.click(".failure button")
    line = PROGRAM.split("\n").index("    return y * 2, y * scale")
    until("cursor where it returns", lambda: _cursor(workbench) == line)


def test_earlier_runs_are_kept_and_compared(workbench: Workbench, program: Path) -> None:
    workbench.close_notifications()
    workbench.go_to(program, "y * scale")
    workbench.probe.rewrite(program, PROGRAM.replace("scale = 3.0", "scale = 2.0"))
    try:
        workbench.run("Fuselens: Run Compiled and Compare with Eager")
        assert "shifted agrees with eager" in workbench.notification("Fuselens: shifted agrees")
        panel = workbench.webview(PANEL)
        panel.visible("[role=status]", "shifted agrees")
        history = _table(panel, "runs-of-this-session").split("\n")
        assert len(history) >= 4, history
        assert (
            "agrees" in history[1] and "Against the run before: agrees now" in history[2] and "differs" in history[3]
        ), history
        earlier = panel.evaluate(
            "() => [...document.querySelectorAll('tbody button')].filter((b) => b.innerText.endsWith('softmax')).at(-1).id"
        )
        panel("focus", f"tbody button[id='{earlier}']", None, 20_000)
        workbench.page("press", "Enter")
        panel.visible("h1", "softmax")
        assert panel.evaluate("() => document.activeElement.id") == earlier, "the keyboard stays where it was"
        workbench.screenshot("runs-3-history")
    finally:
        workbench.probe.rewrite(program, PROGRAM)
        workbench.probe.command("workbench.action.closePanel")


def test_the_last_save_is_compared_by_a_sentence_and_a_diff(workbench: Workbench, program: Path) -> None:
    """A second function's text is left alone; this one gets a break."""
    workbench.close_notifications()
    changed = PROGRAM.replace("    y = x.abs() + 1\n", "    y = x.abs() + 1\n    if y.sum() < 0:\n        y = -y\n")
    workbench.probe.rewrite(program, changed)
    try:
        until("break", lambda: [d for d in workbench.probe.diagnostics(program) if d.code == "FL101"])
        workbench.go_to(program, "y * scale")
        workbench.run("Fuselens: Compare with the Last Save")
        row = until(
            "stages to choose from",
            lambda: [r for r in workbench.texts(".quick-input-list .monaco-list-row") if "differs" in r],
        )[0]
        title = workbench.texts(".quick-input-title")[0]
        assert "shifted, last save → now: 1 → 3 graphs; +1 break" in title, title
        workbench.screenshot("runs-4-stages")
        workbench.page("press", "Enter")
        text = workbench.notification("Fuselens: shifted, last save → now: 1 → 3 graphs; +1 break")
        assert "kernels" in text, text
        workbench.visible(".monaco-diff-editor")
        (tab,) = [
            t
            for t in workbench.probe("return vscode.window.tabGroups.all.flatMap((g) => g.tabs).map((t) => t.label)")
            if "↔" in t
        ]
        assert row.startswith("graph 0 · capture") and tab == "shifted · graph 0 · capture: last save ↔ now", (row, tab)
        workbench.close_notifications()
        workbench.screenshot("runs-5-diff")
    finally:
        workbench.probe.rewrite(program, PROGRAM)
        workbench.probe.open(program)
    until("no break", lambda: not [d for d in workbench.probe.diagnostics(program) if d.code == "FL101"])


def test_two_targets_and_two_modes_are_compared(workbench: Workbench, program: Path) -> None:
    workbench.go_to(program, "y / y.sum")
    workbench.run("Fuselens: Compare the CPU with a GPU")
    workbench.visible(".quick-input-title", "softmax, cpu → cuda:sm_90")
    workbench.page("type", "triton")
    workbench.visible(".quick-input-list .monaco-list-row", "triton")
    workbench.page("press", "Enter")
    workbench.notification("Fuselens: softmax, cpu → cuda:sm_90: ")
    workbench.visible(".monaco-diff-editor")
    workbench.close_notifications()
    workbench.screenshot("runs-6-targets")
    workbench.probe.open(program)
    workbench.go_to(program, "y / y.sum")
    workbench.run("Fuselens: Compare the Default Mode with Another One")
    workbench.visible(".quick-input-list .monaco-list-row", "max-autotune")
    workbench.page("press", "Enter")

    def told() -> list[str]:  # a mode that changes no text has no stage to choose
        return [
            t
            for t in (*workbench.texts(".quick-input-title"), *workbench.notifications())
            if "default → max-autotune: " in t
        ]

    until("what the mode changes", told)
    workbench.page("press", "Escape")
    workbench.notification("default → max-autotune: ")
    workbench.close_notifications()
    workbench.probe.open(program)


def test_each_function_is_a_test(workbench: Workbench, program: Path) -> None:
    workbench.close_notifications()
    workbench.go_to(program, "y * scale")
    workbench.probe.command("workbench.view.testing.focus")
    rows = ".test-explorer .monaco-list-row"
    workbench.visible(rows, "runs.py")
    _expand(workbench, rows, "shifted")
    workbench.probe.command("testing.runCurrentFile")
    until("both outcomes", lambda: {"Passed", "Failed"} <= _outcomes(workbench, rows))
    workbench.go_to(program, "y * scale")
    workbench.screenshot("runs-7-tests")
    workbench.probe.command("testing.goToNextMessage")
    workbench.visible(
        ".test-output-peek, .test-output-peek-message-container, .peekview-widget",
        "result[1]: 16 of 16 elements differ",
    )
    workbench.screenshot("runs-8-failure")
    workbench.page("press", "Escape")
    workbench.close_notifications()
    workbench.probe.command("workbench.action.closePanel")
    workbench.probe.command("workbench.view.explorer")


def test_debugging_runs_the_function_uncompiled(workbench: Workbench, program: Path) -> None:
    """The debugger here is a stand-in that stops nowhere: ``tests/check/test_stepping.py`` steps for real."""
    workbench.probe.open(program)
    workbench.go_to(program, "y * scale")
    workbench.run("Fuselens: Debug a Compiled Function, Uncompiled")

    def ended() -> dict | None:
        found = workbench.probe.command("test.debugged")
        return found if found and found["ended"] else None

    debugged = until("end of the program", ended)
    configuration = debugged["configuration"]
    assert (configuration["module"], configuration["args"]) == ("fuselens.stepping", [str(program), "shifted"])
    assert "shifted runs uncompiled, as it is written, on its example inputs: float32[4, 4]" in debugged["printed"]
    first = PROGRAM.split("\n").index("    scale = 2.0") + 1
    assert debugged["breakpoints"] == [[str(program), first]], "it stops at the first line where there is no breakpoint"
    until("no breakpoint of ours", lambda: workbench.probe("return vscode.debug.breakpoints.length") == 0)
    workbench.probe.command("workbench.action.closePanel")
    workbench.probe.command("workbench.view.explorer")


def test_each_node_of_the_graphs_has_its_value(workbench: Workbench, program: Path) -> None:
    workbench.probe.open(program)
    workbench.go_to(program, "y * scale")
    workbench.run("Fuselens: Show the Captured Graphs with Their Values")

    def shown() -> list[str]:
        source = """return vscode.window.visibleTextEditors.filter((e) => e.document.uri.scheme === "fuselens-note")
            .map((e) => [e.document.languageId, e.document.getText()])"""
        return [text for language, text in workbench.probe(source) if language == "python"]

    (text,) = until("values", shown)
    assert "# --- graph 0 of shifted" in text and "#     f32[4, 4] = " in text, text
    workbench.close_notifications()
    workbench.screenshot("runs-9-values")
    workbench.probe.open(program)


def _expand(workbench: Workbench, rows: str, name: str) -> None:
    """Expands what is not until a row has this name. The rows of a file may be shown without a click, and at any time; another view may
    still come to the front."""

    def shown() -> bool:
        return any(name in text for text in workbench.texts(rows))

    def expand() -> None:
        workbench.probe.command("workbench.view.testing.focus")
        workbench.page("click", f"{rows} .monaco-tl-twistie.collapsed", None, 5_000)

    if not shown():
        again(f"row {name!r}", expand, shown, 5)


def _outcomes(workbench: Workbench, rows: str) -> set[str]:
    """What the rows of the Test Explorer say to a screen reader."""
    source = "(rows) => [...document.querySelectorAll(rows)].map((row) => row.getAttribute('aria-label') ?? '')"
    labels = workbench.page("evaluate", source, rows)
    return {outcome for outcome in ("Passed", "Failed") for label in labels if outcome.lower() in label.lower()}


def _table(panel: Webview, heading: str) -> str:
    return panel.texts(f"table[aria-labelledby={heading}]")[0]


def _cursor(workbench: Workbench) -> int:
    return workbench.probe("return vscode.window.activeTextEditor.selection.active.line")
