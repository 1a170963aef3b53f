"""The requests of a bisection, in order: a function's graphs, each as a whole, and of those that fail the smallest part.

Who asks is the command line or the editor's server: ``ask`` gives a request to a child and waits for what it answers. Nothing
here imports torch or runs a line of the program.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record import wire
from ..system import source_text
from . import answers, straight
from .search import Fault, Search, Verdict
from .straight import Lines, Part

Ask = Callable[[wire.Method, str, tuple[str, ...], dict[str, Any]], wire.Event]


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest ``part`` of a program that fails, and how: ``program`` is it as a file, where that could be written."""

    lines: Lines
    part: Part
    verdict: Verdict
    fault: Fault
    probes: int
    seconds: float
    in_time: bool
    program: Path | None

    @property
    def statements(self) -> list[str]:
        return [line.strip() for line in self.lines.text(self.part).splitlines()[1:]]

    @property
    def names(self) -> list[str]:
        """What its statements define, in order: the last one is the first whose value is wrong."""
        return [self.lines.statements[k].name for k in self.part.kept]


@dataclass(frozen=True, slots=True)
class Bisection:
    """Files go into ``folder``; after ``until`` (of the monotonic clock) no more is asked."""

    ask: Ask
    folder: Path
    until: float = float("inf")
    slower_than: float | None = None

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until

    def asked(self, method: wire.Method, path: str, names: tuple[str, ...] = (), **options: Any) -> wire.Event:
        return self.ask(method, path, names, {"dump": str(self.folder)} | options)

    def graphs(self, path: str, function: str, calls: tuple[str, ...] = (), where: str = "") -> dict[str, Any]:
        """What a child wrote (:class:`.graphs.Written`, as plain data): the graphs of the last of the ``calls``, by default of the
        example inputs; ``where`` names what that call leaves, to be told its line. Where there are none, ``raised`` says why."""
        found = self.asked("graphs", path, (function,), kinds=list(calls), where=where)
        return json.loads(found.text) if found.text else {"raised": answers.verdict_of(found).what, "programs": []}

    def probe(self, program: Path, part: Part | None, until: str = "") -> Verdict:
        options = answers.probe_options(part, until, self.slower_than)
        return answers.verdict_of(self.asked("probe", str(program), **options))

    def whole(self, program: Path) -> Verdict:
        """How a whole program fails, if it does. Raises NoProgram."""
        straight.read(_text(program))
        return self.probe(program, None)

    def smallest(self, program: Path, whole: Verdict, rewrites: tuple[str, ...]) -> Smallest:
        """The smallest part that fails as the whole does, and what makes it. Raises NoProgram."""
        lines, started = straight.read(_text(program)), time.monotonic()
        search = Search(lines, lambda part, until: self.probe(program, part, until), whole.kind, lambda: self.over)
        part = search.smallest()
        fault, verdict = search.fault(part, rewrites), search.verdict(part)
        place = self.folder / f"{program.stem}_minimal.py"
        about = f"The smallest part of {program.name} that fails: {verdict.text}.\n\nFirst wrong after {fault.text}.\n"
        options = answers.probe_options(part, "", None, str(place), about.replace("\\", "/"))
        written = self.asked("probe", str(program), **options).text == "{}"
        seconds = time.monotonic() - started
        return Smallest(lines, part, verdict, fault, search.probes, seconds, not self.over, place if written else None)


def _text(program: Path) -> str:
    return source_text.shown(str(program)) or ""
