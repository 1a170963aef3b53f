"""The page of pictures, in the real editor: what it shows of real compilations, and what a person does with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workbench import Webview, Workbench, until

TITLE = "Fuselens Pictures"
TABS = ("Fused graph", "Memory", "Compile time", "Roofline", "Recompiles")
STAGE = ".stage[data-nodes]"


def shown(workbench: Workbench, path: Path, function: str) -> Webview:
    """The page for a function of a file that was compiled."""
    workbench.probe.open(path)
    until("a report", lambda: workbench.probe.documents(path, function))
    workbench.probe.command("fuselens.openPictures", path.as_uri(), function)
    page = workbench.webview(TITLE)
    page.visible(STAGE)
    until("its function", lambda: page.evaluate("() => document.querySelector('.head select').value") == function)
    return page


def tab(page: Webview, title: str) -> None:
    page.click('[role="tab"]', title)
    page.visible('[role="tab"][aria-selected="true"]', title)


def cursor(workbench: Workbench) -> tuple[str, int]:
    """The file and the line, from 1, of the active editor's selection."""
    found = workbench.probe(
        "const e = vscode.window.activeTextEditor; return e ? [e.document.uri.fsPath, e.selection.start.line + 1] : ['', 0]"
    )
    return Path(found[0]).name, found[1]


@pytest.fixture
def toy(workbench: Workbench, workspace: Path) -> Webview:
    return shown(workbench, workspace / "toy.py", "toy")


def line_of(path: Path, needle: str) -> int:
    return next(k for k, line in enumerate(path.read_text().split("\n"), 1) if needle in line)


def test_the_palette_opens_the_fused_graph(workbench: Workbench, workspace: Path):
    path = workspace / "toy.py"
    workbench.probe.open(path)
    until("a report", lambda: workbench.probe.documents(path, "toy"))
    workbench.go_to(path, "x = a /")
    workbench.run("Fuselens: Open Pictures of the Compilation")
    page = workbench.webview(TITLE)
    page.visible(STAGE)
    page.visible(".head select", "toy")
    page.click("summary", "The graph as a table")
    rows = until("rows", lambda: page.texts("#panel-graph tbody tr"))
    assert any("abs" in row and "abs_add_div_0" in row for row in rows)
    assert any("f32[n]" in row and "input" in row for row in rows)
    page.click("summary", "The graph as a table")
    workbench.screenshot("pictures-graph")


def test_a_node_leads_to_its_line(toy: Webview, workbench: Workbench, workspace: Path):
    """Found by a search, which brings it to the middle, and clicked there."""
    toy.click("input[type=search]")
    workbench.page("type", "bool")  # its type, which nothing else has
    toy.visible(".count", "1 match")
    workbench.page("press", "Enter")
    toy.visible(".count", "1 of 1")
    toy.visible(".told", "lt · bool[]")
    workbench.screenshot("pictures-search")
    toy.click(STAGE)  # in the middle
    wanted = line_of(workspace / "toy.py", "if b.sum()")
    until("the cursor at its line", lambda: cursor(workbench) == ("toy.py", wanted))
    toy.click("input[type=search]")
    workbench.page("press", "Escape")


def test_keys_alone_do_it(toy: Webview, workbench: Workbench, workspace: Path):
    toy("focus", STAGE, None, 10_000)
    workbench.page("press", "Home")
    for _ in range(2):
        workbench.page("press", "PageDown")
    toy.visible(".told", "abs · f32[n]")
    workbench.page("press", "Space")
    toy.visible(".spoken", "collapsed")
    until("fewer nodes", lambda: nodes(toy) == 14 - 3)
    workbench.page("press", "+")
    toy.click("button", "Collapse")
    until("no operation", lambda: nodes(toy) == 6)
    workbench.screenshot("pictures-collapsed")
    toy.click("button", "Expand")
    until("all again", lambda: nodes(toy) == 14)
    toy.click("button", "Inputs")
    until("no inputs", lambda: nodes(toy) == 8)
    toy.click("button", "Inputs")
    until("all again", lambda: nodes(toy) == 14)


def nodes(page: Webview) -> int:
    return int(page.evaluate(f"() => document.querySelector('{STAGE}').dataset.nodes"))


def test_memory_and_time_are_those_of_the_toy(toy: Webview, workbench: Workbench, workspace: Path):
    tab(toy, "Memory")
    titles = toy.texts("#panel-memory svg .title")
    assert titles == ["Graph 0 · forward", "Graph 1 · forward", "Graph 2 · forward"]
    assert any("64 B at most, in mul_0 (toy.py:" in text for text in toy.texts("#panel-memory svg .faint"))
    toy.click('#panel-memory .hit[aria-label^="abs_add_div_0"]')
    until("the cursor", lambda: cursor(workbench) == ("toy.py", line_of(workspace / "toy.py", "x = a /")))
    workbench.screenshot("pictures-memory")
    tab(toy, "Compile time")
    assert toy.texts("#panel-timing svg .title")[0].startswith("toy took ")
    toy.click('#panel-timing .flame[aria-label^="graph 0"]')
    until("its part alone", lambda: keys_of_flame(toy)[:2] == ["toy", "toy/graph 0"])
    assert all(key.startswith("toy/graph 0/") for key in keys_of_flame(toy)[2:])  # those wide enough to be drawn
    workbench.screenshot("pictures-timing-zoomed")
    toy.click('#panel-timing .flame[aria-label^="toy:"]')
    until("its part among others", lambda: width_of_flame(toy, "toy/graph 0") < width_of_flame(toy, "toy"))
    workbench.screenshot("pictures-timing")


def keys_of_flame(page: Webview) -> list[str]:
    return page.evaluate("() => [...document.querySelectorAll('#panel-timing .flame')].map((box) => box.dataset.key)")


def width_of_flame(page: Webview, key: str) -> float:
    return page.evaluate(
        f"() => document.querySelector('#panel-timing .flame[data-key=\"{key}\"] rect').width.baseVal.value"
    )


def press_while_drawn(workbench: Workbench, page: Webview, path: Path, label: str) -> None:
    """Presses a button, and releases it after the page was sent other pictures."""
    page("hover", "button", label, 60_000)
    workbench.page("down")
    page.evaluate(COUNT_PICTURES)
    workbench.probe.rewrite(path, path.read_text() + "# edited\n")
    until("other pictures", lambda: page.evaluate("() => window.told"))
    workbench.page("up")


COUNT_PICTURES = """() => {
    window.told = 0;
    window.addEventListener("message", ({ data }) => { window.told += data.kind === "pictures" });
}"""
RUN = "Fuselens: run"
RUNNING = """\
import time

import torch

import fuselens


@fuselens.compile
def scale(a, b):
    x = a * 2 + b
    y = x.sum(-1, keepdim=True)
    return torch.softmax(x / y, -1)


@fuselens.compile
def shift(a, by):
    return a + by


if __name__ == "__main__":
    end, calls = 0.0, 0
    while calls < 200 or time.monotonic() < end:  # kernels are timed from call 32 on
        scale(torch.randn(1024, 1024), torch.randn(1024, 1024))
        calls += 1
        if calls in (20, 40, 60):
            scale(torch.randn(calls, 64, 64), torch.randn(64))
            end = time.monotonic() + 6  # however long it took to compile
"""


def test_runs_say_what_they_took_and_why_they_compiled_again(workbench: Workbench, workspace: Path):
    path = workspace / "running.py"
    path.write_text(RUNNING)
    page = shown(workbench, path, "scale")
    tab(page, "Roofline")
    page.visible(".nothing", "No kernel has been timed")
    workbench.screenshot("pictures-roofline-empty")
    press_while_drawn(workbench, page, path, "Run the File and Follow It")
    until(
        "the terminal", lambda: workbench.probe("return vscode.window.terminals.some((t) => t.name === argument)", RUN)
    )
    page.visible("#panel-roofline .bar")
    assert page.texts("#panel-roofline svg .title")[-1] == "The last run of running.py"
    shown_there = page.texts("#panel-roofline svg .label")
    assert any("softmax" in text for text in shown_there) and any("GB/s" in text for text in shown_there), shown_there
    tab(page, "Recompiles")
    page.visible("#panel-timeline .recompiles li", "expected")
    told = page.texts("#panel-timeline .recompiles li")
    assert all("running.py:" in text for text in told)
    workbench.probe.command("workbench.action.closePanel")
    workbench.screenshot("pictures-timeline")
    page.click("#panel-timeline .recompiles li .link")
    until("the line of the guard", lambda: cursor(workbench)[0] == "running.py")
    tab(page, "Roofline")
    workbench.screenshot("pictures-roofline")


@pytest.mark.parametrize("theme", ["Default Dark Modern", "Default High Contrast", "Default Light Modern"])
def test_everybody_can_use_it(workbench: Workbench, workspace: Path, theme: str):
    workbench.probe.setting("workbench.colorTheme", theme)
    try:
        for file, function in (("toy.py", "toy"), ("running.py", "scale")):
            page = shown(workbench, workspace / file, function)
            for title in TABS:
                tab(page, title)
                for details in page.texts('[role="tabpanel"]:not([hidden]) details summary'):
                    page.click('[role="tabpanel"]:not([hidden]) summary', details)
                assert page.violations() == []
                for details in page.texts('[role="tabpanel"]:not([hidden]) details summary'):
                    page.click('[role="tabpanel"]:not([hidden]) summary', details)
                if theme != "Default Dark Modern":
                    workbench.screenshot(
                        f"pictures-{theme.split()[1].lower()}-{file[:-3]}-{title.lower().replace(' ', '-')}"
                    )
    finally:
        workbench.probe.setting("workbench.colorTheme", None)


@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.parametrize("title", ["Fused graph", "Memory"])
def test_a_picture_is_saved(workbench: Workbench, workspace: Path, title: str, suffix: str):
    page = shown(workbench, workspace / "toy.py", "toy")
    tab(page, title)
    name = f"toy-{'graph' if title == 'Fused graph' else 'memory'}.{suffix}"
    (workspace / name).unlink(missing_ok=True)
    page.click(".saving button", suffix.upper())
    workbench.visible(".quick-input-widget input.input")
    until("the name", lambda: name in str(workbench.page("evaluate", INPUT)))
    content = workbench.enter("a file", lambda: (workspace / name).exists() and (workspace / name).read_bytes())
    (workbench.pictures / name).write_bytes(content)
    if suffix == "svg":
        assert b"abs_add_div_0" in content
        assert content.rstrip().endswith(b"</svg>")
    else:
        assert content.startswith(b"\x89PNG")
        assert len(content) > 5000


INPUT = "() => document.querySelector('.quick-input-widget input.input')?.value ?? ''"


def test_it_follows_saves(workbench: Workbench, workspace: Path):
    """What is shown changes with the file, and the view stays where it was."""
    path = workspace / "followed.py"
    text = (workspace / "toy.py").read_text()
    path.write_text(text)
    page = shown(workbench, path, "toy")
    tab(page, "Fused graph")
    before = nodes(page)
    workbench.probe.rewrite(path, text.replace("a.abs() + 1", "a.abs().sin() + 1"))
    until("one more operation", lambda: nodes(page) == before + 1)
    workbench.screenshot("pictures-followed")


LARGE = """\
import torch
from torch import Tensor, nn

import fuselens


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.up(self.norm(x))) * 1.5 + 0.5
        return x + torch.tanh(self.down(torch.relu(y) * y.cos())) * x.sin().abs()


blocks = nn.Sequential(*(Block() for _ in range(60)))
model = fuselens.compile(blocks, example_inputs=(torch.zeros(8, 32),), options={"regions": False})  # one graph of them all
"""

STEPS = 24
PAN = """
async ({ steps, zoom }) => {
    const stage = document.querySelector(".stage");
    const { left, top, width, height } = stage.getBoundingClientRect();
    const at = (x, y) => ({ clientX: left + x, clientY: top + y, pointerId: 1, bubbles: true });
    const frame = () => new Promise(requestAnimationFrame);
    stage.setPointerCapture = () => undefined;  // there is no such pointer
    const times = [];
    await frame();
    let before = performance.now();
    if (!zoom) stage.dispatchEvent(new PointerEvent("pointerdown", at(width / 2, height / 2)));
    for (let k = 1; k <= steps; k++) {
        const turn = { deltaY: k % 2 ? 120 : -120, cancelable: true };
        if (zoom) stage.dispatchEvent(new WheelEvent("wheel", { ...at(width / 2, height / 2), ...turn }));
        else stage.dispatchEvent(new PointerEvent("pointermove", at(width / 2 + 40 * Math.sin(k / 3), height / 2 - 6 * k)));
        await frame();
        const now = performance.now();
        times.push(now - before);
        before = now;
    }
    if (!zoom) stage.dispatchEvent(new PointerEvent("pointerup", at(0, 0)));
    return times.sort((a, b) => a - b);
}
"""


def test_a_graph_of_thousands_can_be_panned(workbench: Workbench, workspace: Path, record_property: Callable[..., Any]):
    """How long frames take is printed and kept, not judged: machines differ."""
    path = workspace / "large.py"
    path.write_text(LARGE)
    page = shown(workbench, path, "model")
    tab(page, "Fused graph")
    until("2,000 nodes", lambda: nodes(page) >= 2000)
    workbench.screenshot("pictures-large")
    figures = {"nodes": nodes(page)}
    for name, all_of_it in (("begin", False), ("all", True)):
        if all_of_it:
            page.click("button", "Fit")
        for how in ("pan", "zoom"):
            times = page.evaluate(PAN, {"steps": STEPS, "zoom": how == "zoom"})
            figures[f"{how} {name}"] = {"median": round(times[STEPS // 2], 1), "longest": round(times[-1], 1)}
    workbench.screenshot("pictures-large-all")
    record_property("frames", figures)
    print(figures)
    assert len(times) == STEPS


def test_layers_that_repeat_are_one_graph_in_the_picture(workbench: Workbench, workspace: Path):
    path = workspace / "deep.py"
    path.write_text(LARGE.replace(', options={"regions": False}', ""))
    page = shown(workbench, path, "model")
    tab(page, "Fused graph")
    until("its nodes", lambda: 100 < nodes(page) < 600)
    workbench.screenshot("pictures-deep")
