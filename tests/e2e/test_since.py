"""A file compared with a revision of git: marks beside the lines, hints behind them, hovers that name the commit."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_linked import LOOK
from workbench import Workbench, until

MODEL = """import torch

import fuselens


@fuselens.compile(example_inputs=lambda: (torch.randn(64, 128),))
def score(x):
    y = (x * 2).tanh()
    return y.softmax(-1)
"""
BRANCH = MODEL.replace("    return y", "    if y.sum() > 0:\n        y = y + 1\n    return y")
WORSE = re.compile("#AD1457|#FF7AB2")  # in light and dark themes


@pytest.fixture(scope="module")
def model(workbench: Workbench, workspace: Path) -> Iterator[Path]:
    folder = workspace / "since"
    folder.mkdir()
    path = folder / "network.py"
    named = ["git", "-c", "user.name=Ann", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=folder, check=True)
    for text, subject in ((MODEL, "First"), (BRANCH, "Look at the sum")):
        path.write_text(text)
        subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
        subprocess.run([*named, "commit", "-q", "-m", subject], cwd=folder, check=True)
    workbench.probe.open(path)
    until("compiled network.py", lambda: workbench.probe.compiles(path))
    yield path
    workbench.probe.command("workbench.action.closeAllEditors")


def pictures(workbench: Workbench, text: str) -> str:
    """The marks beside a line, as SVG."""
    lines = workbench.page("evaluate", LOOK, "network.py") or []
    marks = next((line["marks"] for line in lines if text in line["text"]), [])
    return "".join(base64.b64decode(re.findall(r"base64,([\w+/=]+)", mark)[0]).decode() for mark in marks)


def test_lines_that_got_worse_are_marked(workbench: Workbench, model: Path) -> None:
    assert not WORSE.search(pictures(workbench, "if y.sum() > 0:"))
    workbench.run("Fuselens: Compare with a Revision")
    workbench.visible(".quick-input-widget .monaco-list-row")
    workbench.screenshot("80-revisions")
    workbench.fill("HEAD~1")
    row = ".quick-input-widget .monaco-list-row.focused"
    until("what was typed in the list", lambda: any("HEAD~1" in text for text in workbench.texts(row)))
    workbench.page("press", "Enter")
    until("a mark beside the branch", lambda: WORSE.search(pictures(workbench, "if y.sum() > 0:")))
    hints = until("hints", lambda: [text for _, text in workbench.probe.hints(model) if text.startswith("worse: ")])
    assert hints[0].startswith("worse: kernels: 1 → 3") and hints[1].startswith("worse: 1 break added")
    workbench.go_to(model, "y.sum() > 0")
    assert "Look at the sum" in workbench.hover_at_cursor("1 break added")
    workbench.screenshot("81-since-a-revision")


def test_the_marks_go(workbench: Workbench, model: Path) -> None:
    workbench.page("press", "Escape")  # the hover takes keys
    workbench.probe.open(model)
    workbench.run("Fuselens: Stop Comparing with a Revision")
    until("no mark", lambda: not WORSE.search(pictures(workbench, "if y.sum() > 0:")))
