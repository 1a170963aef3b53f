"""``fuselens bisect``: which graph, stage and operations make a compiled function wrong, slow or crash."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..bisecting import straight
from ..bisecting.bisection import Bisection, Smallest
from ..bisecting.straight import NoProgram
from ..checking.isolation import Supervisor
from ..record import views, wire
from ..system import console
from .compiled import limits, options_of, supervisor
from .progress import Progress, progress, say
from .targets import Target, UsageError, named


@dataclass(slots=True)
class _Bisection:
    """One run of the command: its children, and where it writes to."""

    arguments: argparse.Namespace
    children: Supervisor
    shown: Progress
    folder: Path
    until: float  # when the time is over, of the monotonic clock
    requests: int = 0
    told: list[dict[str, Any]] = field(default_factory=list)  # of each function or program, as JSON has it

    def say(self, line: str) -> None:
        if self.arguments.format == "text":
            say(line)

    @property
    def search(self) -> Bisection:
        return Bisection(self.ask, self.folder, self.until, self.arguments.slower_than)

    def ask(self, method: Any, path: str, names: tuple[str, ...], options: dict[str, Any]) -> wire.Event:
        self.requests += 1
        given = options_of(self.arguments) | {"gradients": not self.arguments.no_gradients} | options
        given["allow_effects"] = self.arguments.allow_effects
        request = wire.Request(self.requests, method, path, None, names, given, limits(self.arguments))
        return self.children.call(request, self.shown.saying(path))

    # --- functions, and their graphs ---

    def function(self, target: Target) -> bool:
        """Whether something of a function is wrong."""
        written = self.search.graphs(str(target.path), target.function)
        self.say(f"{target.path}::{target.function}")
        if why := written["raised"]:
            raise UsageError(f"{target.path}::{target.function} cannot be run eagerly, or captured: {why}")
        programs: list[dict[str, Any]] = written["programs"]
        capture = {key: written[key] for key in ("differs", "how", "span", "breaks")} if written["differs"] else None
        self.told.append({"path": str(target.path), "function": target.function, "capture": capture, "graphs": []})
        count = f"{len(programs)} graph{'s' * (len(programs) != 1)}"
        if written["differs"]:
            self.say(f"  capture: {count}, run operator by operator, and the code between them differ from eager:")
            self.say(f"    {written['differs']}")
            if span := written["span"]:
                self.say(f"    first in line {span['line']}: {written['how']}")
            for line in written["breaks"]:
                self.say(f"    graph break at {line}")
        else:
            self.say(f"  capture: {count}, run operator by operator, give eager's values")
        wrong = [self.graph(found, tuple(written["rewrites"])) for found in programs]
        return bool(written["differs"]) or any(wrong) or self._whole(target)

    def _whole(self, target: Target) -> bool:
        """Whether the function, compiled in whole, is wrong though none of its graphs is: what is between them is at fault."""
        event = self.ask("run", str(target.path), (target.function,), {"dump": None})
        found, ratio = event.run, self.arguments.slower_than
        if found is None:
            return False
        self.told[-1]["whole"] = {
            "agrees": found.agrees, "detail": found.detail, "eager_seconds": found.eager_seconds,
            "compiled_seconds": found.compiled_seconds,
        }  # fmt: skip
        if not found.agrees:
            self.say(f"  no graph alone, but the whole function: {found.detail}")
            return True
        eager, compiled = found.eager_seconds, found.compiled_seconds
        slow = ratio is not None and eager is not None and compiled is not None and compiled > ratio * eager
        if slow:
            times = f"{views.seconds_text(compiled)}, eager {views.seconds_text(eager)}"
            self.say(f"  no graph alone, but the whole function is slow: {times}")
        return slow

    def graph(self, told: dict[str, Any], rewrites: tuple[str, ...]) -> bool:
        line = f", line {told['line']}" if told["line"] else ""
        operations = f"{told['operations']} operation{'s' * (told['operations'] != 1)}"
        name = f"graph {told['graph']} ({told['frame']}{line}, {operations})"
        if told["why"]:
            self._not_looked_at(name, told["why"])
            return False
        return self.program(Path(told["path"]), name, rewrites)

    def program(self, path: Path, name: str, rewrites: tuple[str, ...]) -> bool:
        """Whether a graph's program shows that something is wrong; what, and the smallest part that does, is said."""
        try:
            whole = self.search.whole(path)
        except NoProgram as error:
            self._not_looked_at(name, str(error))
            return False
        self.say(f"  {name}: {whole.text}")
        self._graphs.append({"name": name, "program": str(path), "fails": whole.fails, "says": whole.text})
        if whole.fails:
            self._report(self.search.smallest(path, whole, rewrites))
        return whole.fails

    @property
    def _graphs(self) -> list[dict[str, Any]]:
        if not self.told:  # a program that was written before
            self.told.append({"graphs": []})
        return self.told[-1]["graphs"]

    def _not_looked_at(self, name: str, why: str) -> None:
        self.say(f"  {name}: not looked at: {why}")
        self._graphs.append({"name": name, "fails": False, "not_looked_at": why})

    def _report(self, found: Smallest) -> None:
        self._graphs[-1]["smallest"] = {
            "says": found.verdict.text, "statements": found.statements, "fault": found.fault.text, "probes": found.probes,
            "seconds": round(found.seconds, 3), "in_time": found.in_time, "program": str(found.program) if found.program else None,
        }  # fmt: skip
        statements = len(found.lines.statements)
        of = f"{len(found.part.kept)} of {statements} operation{'s' * (statements != 1)}"
        end = "" if found.in_time else "; the time was over"
        self.say(
            f"    smallest part that does: {of} ({found.probes} probes, {found.seconds:.0f} s{end}): {found.verdict.text}"
        )
        for line in found.statements:
            self.say(f"      {line}")
        self.say(f"    first wrong after {found.fault.text}")
        if found.program is not None:
            self.say(f"    written as {_short(found.program)}")


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def bisect(arguments: argparse.Namespace) -> int:
    """Status 1 where something was found."""
    name = arguments.target.partition("::")[0]
    folder = arguments.output or Path("fuselens_bisect") / f"{Path(name).stem}-{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    programs = [Path(name)] if _is_program(name) else []
    chosen = [] if programs else named(arguments.target)
    if not programs and not chosen:
        raise UsageError(f"{arguments.target} has no annotated functions, and is no program of a graph")
    with progress(len(chosen) + len(programs)) as shown, supervisor(arguments, shown) as children:
        until = time.monotonic() + (arguments.seconds or float("inf"))
        bisection = _Bisection(arguments, children, shown, folder.absolute(), until)
        from ..pipeline import REWRITES

        wrong = [bisection.program(path.absolute(), path.name, REWRITES) for path in programs]
        for target in chosen:
            bisection.folder = folder.absolute() / target.function if len(chosen) > 1 else folder.absolute()
            wrong.append(bisection.function(target))
    if arguments.format == "json":
        console.say(json.dumps(bisection.told, indent=2))
    return int(any(wrong))


def _is_program(name: str) -> bool:
    try:
        straight.read(views.read_text(name) or "")
    except (NoProgram, OSError):
        return False
    return True
