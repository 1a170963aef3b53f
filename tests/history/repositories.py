"""Repositories of git for tests, and comparisons of them by reports that a stand-in for the compiler reads off the text."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from fuselens.history.snapshots import Wanted
from fuselens.record import diagnostics
from fuselens.record.report import FileReport, Graph, Report, Span
from fuselens.source import discovery

T = TypeVar("T")
MODEL = """import fuselens
import torch


@fuselens.compile(example_inputs=lambda: (torch.randn(8, 16),))
def step(x):
    return torch.tanh(x * 2).softmax(-1)


@fuselens.compile(example_inputs=lambda: (torch.randn(4),))
def other(x):
    return x.sin() + 1
"""


class Repo:
    """A repository in a folder of its own."""

    def __init__(self, folder: Path, branch: str = "main") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", branch)
        for name, value in (("user.name", "Ann"), ("user.email", "ann@example.com"), ("commit.gpgsign", "false")):
            self.git("config", name, value)

    def git(self, *arguments: str, **environment: str) -> str:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        clean |= {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "file",
            **environment,
        }
        done = subprocess.run(["git", *arguments], cwd=self.folder, capture_output=True, check=False, env=clean)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode(errors="surrogateescape").strip()

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def commit(self, subject: str, inside: dict[str, str] | None = None, **files: str) -> str:
        """Commits everything, after writing Python ``files``, and those ``inside`` of folders. The commit's name."""
        for name, text in {**(inside or {}), **{f"{name}.py": text for name, text in files.items()}}.items():
            self.write(name, text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def state(self) -> tuple[str, ...]:
        """What of the repository a command might have left a trace in."""
        index = (self.folder / ".git" / "index").read_bytes()
        objects = sorted(str(p) for p in (self.folder / ".git" / "objects").rglob("*"))
        trees = self.git("worktree", "list"), self.git("stash", "list"), self.git("for-each-ref")
        files = sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if ".git" not in p.parts)
        return (str(index), *objects, *trees, *files)


def read_off(path: str) -> FileReport:
    """A report with a break for each ``# break NAME`` and so many graphs as ``# graphs N`` says, for each function. A file that says
    ``# error`` cannot be imported."""
    text = Path(path).read_text(encoding="utf-8")
    if "# error" in text:
        return FileReport(path, [], [diagnostics.make("FL903", Span(path, 1, 0, 1, 1), why="ImportError: no")])
    functions = []
    try:
        found = discovery.discover(text, path)
    except SyntaxError:
        return FileReport(path, [], [diagnostics.make("FL902", Span(path, 1, 0, 1, 1), why="invalid syntax")])
    for annotated in found:
        part = "\n".join(text.splitlines()[annotated.span.line - 1 : annotated.span.end_line])
        names = re.findall(r"# break (\w+)", part)
        breaks = [diagnostics.make("FL103", annotated.name_span, what=name) for name in names]
        count = int(next(iter(re.findall(r"# eager (\d+)", part)), 0))
        graphs = [Graph(0, "f", None, 1), *(Graph(i + 1, "f", None, 1, fallback=True) for i in range(count))]
        functions.append(Report(annotated.qualname, path, annotated.name_span, graphs=graphs, breaks=breaks))
    return FileReport(path, functions)


def run(work: Generator[list[Wanted], list[Any], T], answer: Callable[[Wanted], Any]) -> T:
    """What the work comes to, where every question that needs files has that answer."""
    try:
        wanted = next(work)
        while True:
            wanted = work.send([answer(one) if one.revision.folder else None for one in wanted])
    except StopIteration as end:
        return end.value


def answered(
    work: Generator[list[Wanted], list[Any], T],
    check: Callable[[str], FileReport] = read_off,
    asked: list[str] | None = None,
) -> T:
    """What a comparison comes to; ``asked`` gets the checks that it needed."""

    def answer(one: Wanted) -> FileReport | None:
        if asked is not None:
            asked.append(one.about)
        return one.placed(check(one.path))

    return run(work, answer)
