"""The view in the activity bar: what it has, where its rows lead, and what can be done with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from workbench import Workbench, again, until

PANE = "#workbench\\.view\\.extension\\.fuselens"
ROW = f"{PANE} .monaco-list-row"
TITLE = ".sidebar .title-actions a"
CURSOR = "#status\\.editor\\.selection"


@pytest.fixture(scope="module", autouse=True)
def toy(workbench: Workbench, workspace: Path) -> Path:
    """``toy.py``, opened and compiled, with the view beside it."""
    path = workspace / "toy.py"
    workbench.probe.open(path)
    until("compiled toy.py", lambda: workbench.probe.compiles(path))
    workbench.close_notifications()
    workbench.probe.command("fuselens.overview.focus")
    workbench.visible(ROW, "toy.py")
    yield path
    workbench.probe.command("workbench.view.explorer")


@pytest.fixture(autouse=True)
def one_editor(workbench: Workbench, toy: Path) -> None:
    workbench.probe.open(toy)
    workbench.visible(ROW, "3 graphs")
    until("one file", lambda: sum(".py" in text for text in rows(workbench)) == 1)
    workbench.go_to(toy, "return x * b")
    until("a marked row", lambda: workbench.texts(f"{ROW}.selected"))


def rows(workbench: Workbench) -> list[str]:
    """Each row as a screen reader says it: "toy, 3 graphs · 1 break"."""
    source = "(selector) => [...document.querySelectorAll(selector)].map((row) => row.ariaLabel)"
    return workbench.page("evaluate", source, ROW)


def act(workbench: Workbench, containing: str, action: str) -> None:
    """Presses an inline action of a row, by its name."""
    workbench.hover(ROW, containing)
    workbench.click(f"{ROW}:hover .actions a.action-label[aria-label^='{action}']")


def acted(workbench: Workbench, containing: str, action: str, effect: Callable[[], bool]) -> None:
    again(f"effect of {action}", lambda: act(workbench, containing, action), effect, 15)


def opened(workbench: Workbench, containing: str, effect: Callable[[], bool], selector: str = ROW) -> None:
    again(f"what {containing} leads to", lambda: workbench.click(selector, containing), effect, 5)


def choose(workbench: Workbench, containing: str, entry: str) -> None:
    """Chooses an entry of a row's context menu."""
    workbench.page("rightClick", ROW, containing, 60_000)
    workbench.hover(".monaco-menu .action-item .action-label", entry)  # a click that comes so soon is not taken
    workbench.visible(".monaco-menu .action-item.focused", entry)
    workbench.page("press", "Enter")


def copied(workbench: Workbench, beginning: str) -> None:
    """The clipboard has a text with this beginning."""
    source = "return (await vscode.env.clipboard.readText()).startsWith(argument)"
    until(f"{beginning!r} in the clipboard", lambda: workbench.probe(source, beginning))


def at_cursor(workbench: Workbench, place: str) -> bool:
    return any(place in text for text in workbench.texts(CURSOR))


def shown(workbench: Workbench) -> list[str]:
    """The paths of generated documents that are on the screen."""
    return workbench.probe(
        """
        return vscode.window.visibleTextEditors.map((e) => e.document.uri).filter((u) => u.scheme === "fuselens")
            .map((u) => u.path);
        """
    )


def test_the_tree_of_a_file(workbench: Workbench) -> None:
    texts = until("graphs", lambda: (t := rows(workbench)) and any("graph 0" in r for r in t) and t)
    assert any(text.startswith("toy, 3 graphs · 1 break") for text in texts), texts
    assert any(text.startswith("b.sum() < 0, line 13 · branches on a tensor's value") for text in texts), texts
    assert any(text.startswith("abs_add_div_0, 64 B → 64 B") for text in texts), texts
    assert any(text.startswith("guards, ") and text.split()[1].isdigit() for text in texts), texts
    workbench.screenshot("50-tree")


def test_the_icon_counts_breaks(workbench: Workbench) -> None:
    badge = ".activitybar .action-item:has(a[aria-label^='Fuselens']) .badge-content"
    until("badge", lambda: workbench.texts(badge) == ["1"])


def test_a_break_leads_to_the_code(workbench: Workbench) -> None:
    opened(workbench, "branches on a tensor's value", lambda: at_cursor(workbench, "Ln 13, Col 19 (11 selected)"))


def test_a_function_leads_to_the_code(workbench: Workbench) -> None:
    label = f"{ROW} .monaco-icon-label-container"
    opened(workbench, "3 graphs", lambda: at_cursor(workbench, "Ln 11, Col 8 (3 selected)"), label)

    def unfolded() -> bool:
        return any("graph 0" in text for text in rows(workbench))

    if not unfolded():
        again("the graphs again", lambda: workbench.click(ROW, "3 graphs"), unfolded, 2)


def test_a_kernel_leads_to_its_text_and_to_the_code(workbench: Workbench) -> None:
    opened(workbench, "abs_add_div_0", lambda: any(path.endswith("/cpp.cpp") for path in shown(workbench)))
    workbench.screenshot("51-kernel")
    acted(workbench, "sum_lt_0", "Go to Code", lambda: at_cursor(workbench, "Ln 13"))


def test_stages_open_and_are_saved(workbench: Workbench, workspace: Path) -> None:
    target = workspace / "saved stage.loop"
    workbench.click(ROW, "stages")
    opened(workbench, "fuse", lambda: any(path.endswith("/fuse.loop") for path in shown(workbench)))
    act(workbench, "fuse", "Save As")
    proposed = "/toy.graph0.fuse.loop"
    until("proposed name", lambda: workbench.field().endswith(proposed))
    workbench.fill(str(target))
    workbench.enter("saved text", lambda: target.exists() and target.read_text().startswith("graph"))
    target.unlink()
    workbench.click(ROW, "stages")


def test_guards_open_and_lead_to_the_code(workbench: Workbench) -> None:
    acted(workbench, "guards", "Open the Generated Document", lambda: "/guards.txt" in " ".join(shown(workbench)))

    def guards() -> list[str]:
        return [t for t in rows(workbench) if "line 12" in t and "→" not in t]

    again("a guard", lambda: workbench.click(ROW, "guards"), guards, 5)
    opened(workbench, guards()[0].split(" line ")[0].rstrip(","), lambda: at_cursor(workbench, "Ln 12"))


def test_copying_a_row_and_a_summary(workbench: Workbench) -> None:
    choose(workbench, "sum_lt_0", "Copy")
    copied(workbench, "sum_lt_0  64 B → 1 B")
    choose(workbench, "3 graphs", "Copy Summary")
    copied(workbench, "toy — 3 graphs · 1 break")


def test_what_a_function_can_do(workbench: Workbench) -> None:
    """Its kernels and its summary open, and it is explained."""
    acted(workbench, "3 graphs", "Open Generated Kernel", lambda: "/cpp.cpp" in " ".join(shown(workbench)))
    choose(workbench, "3 graphs", "Open the Generated Document")
    until("summary", lambda: any(path.endswith("/summary.txt") for path in shown(workbench)))
    choose(workbench, "3 graphs", "Explain the Compilation")
    note = "return vscode.window.visibleTextEditors.some((e) => e.document.uri.scheme === 'fuselens-note')"
    until("explanation", lambda: workbench.probe(note))


def test_running_a_function_shows_its_speed(workbench: Workbench) -> None:
    def speed() -> bool:
        return any("1 break · " in text and ("×" in text or "as fast" in text) for text in rows(workbench))

    acted(workbench, "3 graphs", "Run Compiled", speed)
    workbench.close_notifications()
    workbench.screenshot("52-run")


def test_breaks_only(workbench: Workbench, workspace: Path) -> None:
    workbench.hover(f"{PANE} .monaco-list")
    workbench.click(f"{TITLE}[aria-label^='Show Breaks Only']")

    def breaks_only() -> bool:
        texts = rows(workbench)  # none while the tree is drawn anew
        return any("branches on" in text for text in texts) and not any("graph 0" in text for text in texts)

    until("breaks, and no graphs", breaks_only)
    workbench.screenshot("53-breaks-only")
    workbench.probe.open(workspace / "reductions.py")
    workbench.visible(PANE, "There is no graph break in the open files.")
    workbench.click(f"{TITLE}[aria-label^='Show Everything']")
    workbench.visible(ROW, "reductions.py")


def test_finding_a_row(workbench: Workbench) -> None:
    workbench.click(f"{TITLE}[aria-label^='Find']")
    workbench.visible(".monaco-tree-type-filter input")
    workbench.page("type", "sum_lt")
    until("found", lambda: any("sum_lt_0" in text for text in rows(workbench)))
    workbench.page("press", "Escape")
    workbench.page("press", "Escape")


def test_the_tree_follows_the_editor(workbench: Workbench, workspace: Path, toy: Path) -> None:
    other = workspace / "reductions.py"
    workbench.probe(
        "await vscode.window.showTextDocument(vscode.Uri.file(argument), { viewColumn: 1, preview: false })", str(other)
    )
    until("the other file first", lambda: rows(workbench)[:1] and rows(workbench)[0].startswith("reductions.py"))
    workbench.go_to(toy, "return x * b")
    until("this file first", lambda: rows(workbench)[:1] and rows(workbench)[0].startswith("toy.py"))
    until("the function is marked", lambda: any("3 graphs" in t for t in workbench.texts(f"{ROW}.selected")))


def test_the_status_bar_leads_to_the_view(workbench: Workbench) -> None:
    workbench.probe.command("workbench.view.explorer")
    workbench.visible("#fuselens\\.fuselens\\.fuselens\\.status", "1 break")
    workbench.click("#fuselens\\.fuselens\\.fuselens\\.status")
    workbench.visible(ROW, "toy.py")
