"""The code and what it became, beside each other: colours, the cursor on either side, what the pane shows, marks."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workbench import Workbench, again, until

DIVIDE, SUM, PRODUCT = "a / (a.abs() + 1)", "if b.sum() < 0:", "return x * b"
HEAT = "#C62828"
THEMES = {"dark": "Default Dark Modern", "light": "Default Light Modern", "contrast": "Default High Contrast"}

# Of the editor whose tab reads so: its lines from top to bottom, with the colours of whole lines and the pictures beside them.
LOOK = """
(tab) => {
    const groups = [...document.querySelectorAll(".editor-group-container")];
    const label = (group) => group.querySelector(".tab.active")?.getAttribute("aria-label") ?? "";
    const editors = groups.find((group) => label(group).includes(tab))?.querySelectorAll(".monaco-editor") ?? [];
    const editor = [...editors].find((each) => each.offsetParent !== null);  // others that were shown here are hidden
    if (!editor) return null;
    const at = (element) => Math.round(parseFloat(element.style.top));
    const lines = new Map([...editor.querySelectorAll(".view-lines > .view-line")]
        .map((line) => [at(line), { text: line.innerText.replace(/[\\u00a0\\u2007\\u202f]/g, " "), colours: [], marks: [] }]));
    for (const overlay of editor.querySelectorAll(".view-overlays > div"))
        for (const part of overlay.querySelectorAll(".cdr[class*=ced-]")) {
            const colour = getComputedStyle(part).backgroundColor;
            if (colour !== "rgba(0, 0, 0, 0)") lines.get(at(overlay))?.colours.push(colour);
        }
    for (const mark of editor.querySelectorAll(".cgmr[class*=ced-]")) {
        const picture = getComputedStyle(mark).backgroundImage;
        const top = mark.style.top ? at(mark) : at(mark.parentElement);
        if (picture.includes("data:image")) lines.get(top)?.marks.push(picture);
    }
    return [...lines].sort((a, b) => a[0] - b[0]).map(([, line]) => line);
}
"""


@pytest.fixture(scope="module")
def toy(workbench: Workbench, workspace: Path) -> Iterator[Path]:
    path = workspace / "toy.py"
    workbench.probe.open(path)
    until("compiled toy.py", lambda: workbench.probe.compiles(path))
    yield path
    workbench.probe.setting("workbench.colorTheme", None)
    workbench.probe.command("workbench.action.closeEditorsInOtherGroups")


def look(workbench: Workbench, tab: str) -> list[dict[str, Any]]:
    return workbench.page("evaluate", LOOK, tab) or []


def line(workbench: Workbench, tab: str, text: str) -> dict[str, Any]:
    """The first line on the screen with this text."""
    return next(
        (found for found in look(workbench, tab) if text in found["text"]), {"text": "", "colours": [], "marks": []}
    )


def bright(workbench: Workbench, tab: str) -> list[str]:
    """The lines that are coloured twice: they belong to the line at the cursor."""
    return [found["text"].strip() for found in look(workbench, tab) if len(found["colours"]) > 1]


def pictures(workbench: Workbench, tab: str, text: str) -> list[str]:
    """The marks beside a line, as SVG."""
    encoded = [re.search(r"base64,([\w+/=]+)", mark) for mark in line(workbench, tab, text)["marks"]]
    return [base64.b64decode(found[1]).decode() for found in encoded if found]


def hue(colour: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", colour)[:3]))


def tab(workbench: Workbench) -> str:
    """What the tab of the pane reads."""
    return next((text for text in workbench.texts(".tab.active .label-name") if " · " in text), "")


def focused(workbench: Workbench) -> str:
    return str(workbench.probe("return vscode.window.activeTextEditor?.document.uri.path"))


def press(workbench: Workbench, button: str) -> None:
    """Presses a button in the pane's title, which is there for the group with the focus."""
    workbench.click(".tab.active .label-name", " · ")
    workbench.click(f".editor-actions .action-label[aria-label^='{button}']")


def open_kernel(workbench: Workbench, path: Path, at: str) -> str:
    workbench.probe.command("workbench.action.closeEditorsInOtherGroups")
    workbench.go_to(path, at)
    return workbench.press_kernels_lens(lambda: tab(workbench))


def test_the_kernel_opens_beside_the_code_and_leaves_the_focus_there(workbench: Workbench, toy: Path) -> None:
    assert open_kernel(workbench, toy, DIVIDE) == "toy · graph 0 · C++"
    assert focused(workbench) == str(toy)
    until("the kernel's lines", lambda: any("abs_add_div_0" in text for text in bright(workbench, "C++")))
    workbench.screenshot("60-linked")


def test_what_every_kernel_begins_with_is_folded(workbench: Workbench, toy: Path) -> None:
    workbench.probe(
        """
        const pane = vscode.window.visibleTextEditors.find((e) => e.document.uri.scheme === "fuselens");
        pane.revealRange(new vscode.Range(0, 0, 0, 0), vscode.TextEditorRevealType.AtTop);
        """
    )
    first = until(
        "top of the pane", lambda: [x["text"] for x in look(workbench, "C++") if x["text"].startswith("// Kernels of")]
    )
    assert first

    def folded() -> bool:
        shown = [found["text"] for found in look(workbench, "C++")]
        return not any("typedef float f32x" in text for text in shown) and any(
            "// abs_add_div_0: " in text for text in shown
        )

    until("the fold, and a kernel below it", folded)


def test_both_sides_have_the_kernels_colours(workbench: Workbench, toy: Path) -> None:
    def colours() -> tuple[str, str, str, str] | None:
        found = [
            line(workbench, "toy.py", DIVIDE), line(workbench, "C++", "// abs_add_div_0: "),
            line(workbench, "toy.py", SUM), line(workbench, "C++", "// sum_lt_0: "),
        ]  # fmt: skip
        return tuple(x["colours"][0] for x in found) if all(x["colours"] for x in found) else None  # type: ignore[return-value]

    divide, kernel, summed, total = until("colours", colours)
    assert hue(divide) == hue(kernel)
    assert hue(summed) == hue(total) != hue(divide)
    assert line(workbench, "toy.py", PRODUCT)["colours"] == [], "it is in no graph that is shown"
    assert line(workbench, "C++", "// Kernels of graph")["colours"] == []


@pytest.mark.parametrize("theme", THEMES)
def test_the_colours_are_those_of_the_theme(workbench: Workbench, toy: Path, theme: str) -> None:
    workbench.probe.setting("workbench.colorTheme", THEMES[theme])
    shown = {"dark": "vs-dark", "light": "vs", "contrast": "hc-black"}[theme]
    workbench.visible(f".monaco-workbench.{shown}")
    expected = {"dark": (105, 164, 232), "light": (38, 152, 223), "contrast": (105, 164, 232)}[theme]
    until("colour", lambda: [hue(c) for c in line(workbench, "toy.py", DIVIDE)["colours"][:1]] == [expected])
    workbench.screenshot(f"61-linked-{theme}")


def test_the_cursor_in_the_code_brings_its_kernel_on_the_screen(workbench: Workbench, toy: Path) -> None:
    workbench.probe.setting("workbench.colorTheme", None)
    workbench.go_to(toy, DIVIDE)
    until("lit kernel", lambda: any("t4 = t0 / t3" in text for text in bright(workbench, "C++")))
    until("lit code", lambda: any(DIVIDE in text for text in bright(workbench, "toy.py")))

    def down() -> None:
        workbench.go_to(toy, DIVIDE)
        workbench.page("press", "ArrowDown")

    again("lit sum", down, lambda: any("fold_sum(t1_all)" in text for text in bright(workbench, "C++")), 10)
    until("other kernel", lambda: not any("t0 / t3" in text for text in bright(workbench, "C++")))
    until("one lit line", lambda: len(bright(workbench, "toy.py")) == 1)
    assert focused(workbench) == str(toy)


def test_the_cursor_in_the_kernel_brings_the_code_on_the_screen(workbench: Workbench, toy: Path) -> None:
    source = toy.read_text()
    workbench.probe.rewrite(toy, source.replace("@fuselens.compile\n", "#\n" * 60 + "@fuselens.compile\n"))
    try:
        workbench.go_to(toy, DIVIDE)
        until("lit kernel", lambda: any("t0 / t3" in text for text in bright(workbench, "C++")))
        workbench.probe(
            """
            const code = vscode.window.visibleTextEditors.find((e) => e.document.languageId === "python");
            code.revealRange(new vscode.Range(0, 0, 0, 0), vscode.TextEditorRevealType.AtTop);
            """
        )
        until("code off the screen", lambda: not line(workbench, "toy.py", SUM)["text"])
        workbench.click(
            ".editor-group-container:has(.tab.active[aria-label*='C++']) .view-line", "sum_lt_0(const float*"
        )
        until("lit code", lambda: any(SUM in text for text in bright(workbench, "toy.py")))
        assert focused(workbench).startswith("/toy/graph0/")
        workbench.screenshot("62-linked-from-the-kernel")
    finally:
        workbench.probe.rewrite(toy, source)
        workbench.go_to(toy, DIVIDE)


def test_lines_follow_what_is_typed_before_it_is_saved(workbench: Workbench, toy: Path) -> None:
    """The lines below move at once; what was edited belongs to nothing until it is compiled."""
    workbench.go_to(toy, "@fuselens.compile")
    try:
        for _ in range(3):
            workbench.page("press", "Enter")
        until("colour", lambda: line(workbench, "toy.py", DIVIDE)["colours"])
        workbench.page("press", "ArrowDown")
        workbench.page("press", "ArrowDown")
        until("lit code", lambda: any(DIVIDE in text for text in bright(workbench, "toy.py")))
        until("lit kernel", lambda: any("t0 / t3" in text for text in bright(workbench, "C++")))
    finally:
        workbench.probe.command("workbench.action.files.revert")
    until("colour", lambda: line(workbench, "toy.py", DIVIDE)["colours"])


def test_a_line_of_another_graph_shows_that_graph(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, PRODUCT)
    until("another graph", lambda: tab(workbench) in ("toy · graph 1 · C++", "toy · graph 2 · C++"))
    until("lit kernel", lambda: any("t0 * t" in text for text in bright(workbench, "C++")))
    assert focused(workbench) == str(toy)
    workbench.go_to(toy, SUM)
    until("the first graph", lambda: tab(workbench) == "toy · graph 0 · C++")


def test_buttons_show_other_forms_of_the_same_line(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, SUM)
    until("lit sum", lambda: any("fold_sum(t1_all)" in text for text in bright(workbench, "C++")))
    for button, title, lit in (
        ("Loops", "loops", "reduce sum"),
        ("Triton", "Triton", "tl.sum(t1_all"),
        ("Joint", "joint graph", "aten.sum"),
        ("C++", "C++", "fold_sum(t1_all)"),
    ):
        press(workbench, button)
        until(title, lambda title=title: tab(workbench) == f"toy · graph 0 · {title}")
        until(lit, lambda title=title, lit=lit: any(lit in text for text in bright(workbench, title)))
        assert focused(workbench).startswith("/toy/graph0/"), "the pane had the focus"
        workbench.screenshot(f"63-linked-{title.replace(' ', '-').replace('+', 'p')}")
    buttons = workbench.page(
        "evaluate",
        "() => [...document.querySelectorAll('.editor-actions .action-label')].map((a) => a.ariaLabel ?? '')",
    )
    assert not [b for b in buttons if "PTX" in b or "Backward" in b or "C++" in b], (
        "only what there is, and is not shown"
    )
    press(workbench, "Guards")
    until("guards", lambda: tab(workbench) == "toy · guards")
    press(workbench, "C++")
    until("the kernel again", lambda: any("fold_sum(t1_all)" in text for text in bright(workbench, "C++")))


def test_marks_beside_the_lines(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, DIVIDE)

    def shown(text: str) -> list[str]:
        return pictures(workbench, "toy.py", text)

    until("marks", lambda: shown(DIVIDE) and shown(SUM) and shown(PRODUCT))
    bar = "<rect x="  # of a kernel; after a run the heat has one, too
    assert shown(DIVIDE)[0].count(bar) == 1
    assert shown(PRODUCT)[0].count(bar) == 2, "a kernel in each of two graphs"
    assert "<path" in shown(SUM)[0], "the graph breaks here"
    assert "<path" not in shown(DIVIDE)[0]
    assert shown("def toy") == []


def test_one_setting_turns_all_of_it_off(workbench: Workbench, toy: Path) -> None:
    def decorated() -> list[str]:
        return [x["text"] for name in ("toy.py", "C++") for x in look(workbench, name) if x["colours"] or x["marks"]]

    until(
        "decoration", lambda: any(DIVIDE in text for text in decorated()) and any("sum_lt_0" in t for t in decorated())
    )
    workbench.probe.setting("fuselens.decorations.enabled", False)
    try:
        until("no decoration", lambda: not decorated())
        workbench.go_to(toy, SUM)
        until("the kernel on the screen", lambda: line(workbench, "C++", "fold_sum(t1_all)")["text"])
        assert decorated() == []
        workbench.screenshot("64-linked-off")
    finally:
        workbench.probe.setting("fuselens.decorations.enabled", None)
    until("decoration again", lambda: any(DIVIDE in text for text in decorated()))


def test_a_words_occurrences_are_lit_as_without_us(workbench: Workbench, toy: Path) -> None:
    """Ours would have taken their place, as VS Code takes the first answer that it gets."""
    workbench.go_to(toy, "b.sum()")
    workbench.page("press", "ArrowRight")  # older releases light nothing where a program moved the cursor
    until(
        "occurrences",
        lambda: workbench.page(
            "evaluate", "() => document.querySelectorAll('.wordHighlightText, .wordHighlight').length"
        ),
    )


def test_forms_for_a_gpu(workbench: Workbench, workspace: Path) -> None:
    pytest.importorskip("triton")
    gpu = workspace / "gpu.py"
    workbench.probe.open(gpu)
    until("compiled gpu.py", lambda: any("kernels" in title for title in workbench.probe.lens_titles(gpu)))
    assert open_kernel(workbench, gpu, "def norm_gelu").endswith("· Triton")
    at = next(text for text in gpu.read_text().split("\n") if "layer_norm(" in text).strip()
    workbench.go_to(gpu, at)
    until("lit kernel", lambda: bright(workbench, "Triton"))
    for title in ("TTIR", "LLVM IR", "PTX", "SASS"):
        press(workbench, title)
        until(title, lambda title=title: tab(workbench).endswith(f"· {title}"))
        until("lit instructions", lambda title=title: bright(workbench, title))
        workbench.screenshot(f"65-linked-{title.replace(' ', '-')}")
    press(workbench, "Triton")
    until("Triton", lambda: tab(workbench).endswith("· Triton"))
    workbench.probe.command("workbench.action.closeEditorsInOtherGroups")


def test_where_the_last_run_spent_its_time_and_compiled_again(workbench: Workbench, workspace: Path) -> None:
    path, stop = workspace / "heat.py", workspace / "stop"
    path.write_text(
        "import pathlib\n\nimport fuselens, torch\n\n\n@fuselens.compile(example_inputs=(torch.ones(8), 2))\ndef f(x, k):\n"
        "    y = x.exp().sin()\n    return y.sum() * k\n\n\n"
        "if __name__ == '__main__':\n    f(torch.ones(1 << 16), 3)\n    stop = pathlib.Path(__file__).with_name('stop')\n"
        "    while not stop.exists():\n        f(torch.ones(1 << 16), 2.5)\n"
    )
    workbench.probe.open(path)
    until("compiled heat.py", lambda: workbench.probe.compiles(path))
    run = subprocess.Popen([sys.executable, str(path)], env={**os.environ, "FUSELENS_LIVE": "1"})
    try:
        until("heat", lambda: any(HEAT in mark for mark in pictures(workbench, "heat.py", "x.exp().sin()")))
        until("arrow", lambda: any("stroke" in mark for mark in pictures(workbench, "heat.py", "return y.sum() * k")))
        workbench.screenshot("66-heat")
    finally:
        stop.touch()
        run.wait()
    workbench.probe.open(workspace / "toy.py")
