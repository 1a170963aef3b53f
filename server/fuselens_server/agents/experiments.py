"""Experiments: requests to a worker, each with the words that say what it executed and the command that repeats it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselens.record import plain, wire
from fuselens.record.report import Diagnostic, FileReport

from ..work.worker_pool import StartError, WorkerDiedError, WorkerPool
from .arguments import ToolError
from .results import Evidence, Host
from .subjects import Place, Subject, digest_of

_MOST_IMPORTS = 50  # that evidence lists
_FLAGS = ("target", "execution", "mesh")  # options that the command line takes
Progress = Callable[[str], None]


@dataclass(slots=True)
class Experiments:
    """Those of one server. Several may be under way: what was measured then says so."""

    pool: WorkerPool
    under_way: int = 0

    async def make(
        self, subject: Subject, method: wire.Method, seconds: float, progress: Progress, *,
        source: str | None = None, findings: Sequence[Diagnostic] = (), **options: Any,
    ) -> Made:  # fmt: skip
        """Executes one request about ``subject``, or about another ``source`` in its place. Raises ToolError where there is
        no worker."""
        place = subject.place
        text = subject.source if source is None else source
        limits = wire.Limits(seconds, place.memory_mib)
        request = wire.Request(
            0,
            method,
            subject.path,
            text,
            subject.functions,
            {**place.options, **options},
            limits,
            findings=tuple(findings),
        )
        made = Made(subject, _now(), time.monotonic(), others=self.under_way)
        self.under_way += 1
        try:
            made.event = await self.pool.submit(place.environment, request, lambda event: progress(event.message))
        except StartError as error:
            raise ToolError("\n".join((error.diagnostic.message, *error.diagnostic.hints))) from error
        except WorkerDiedError as error:
            raise ToolError(
                f"the process that runs files ended twice ({error}); nothing is known of {subject.path}"
            ) from error
        finally:
            self.under_way -= 1
        made.others = max(made.others, self.under_way)
        made.seconds = time.monotonic() - made.started
        return made

    def begin(self, subject: Subject) -> Made:
        """An experiment of several requests, which begins now."""
        return Made(subject, _now(), time.monotonic(), others=self.under_way)

    def machine(self, place: Place) -> Host:
        """Raises nothing: what is not known is left out."""
        versions = dict(self.pool.versions(place.environment))
        versions.setdefault("executable", place.environment.interpreter)
        return Host(f"{platform.system()} {platform.machine()}", _processor(), os.cpu_count() or 1, versions)


@dataclass(slots=True)
class Made:
    """An experiment and its outcome."""

    subject: Subject
    began: str
    started: float
    event: wire.Event = field(default_factory=lambda: wire.Event(0, "result"))
    seconds: float = 0.0
    others: int = 0  # experiments that were under way meanwhile

    @property
    def file(self) -> FileReport:
        return self.event.file or FileReport(self.subject.path)

    @property
    def imports(self) -> dict[str, str]:
        """The other files of the program that it ran, with their digests now."""
        return {path: digest_of(path) for path in self.file.imports}

    def evidence(self, executed: str, repeat: Command, *not_tried: str) -> Evidence:
        imports = {path: digest_of(path) for path in self.file.imports[:_MOST_IMPORTS]}
        remarks = [*not_tried, *self.subject.place.remarks]
        remarks += [f"the command does not know the setting {setting}" for setting in repeat.lacks]
        if not self.subject.holds():
            remarks.append("the file has changed since: this is about the text with the sha256 that is given here")
        seconds = round(self.seconds, 3)
        path, digest = self.subject.path, self.subject.sha256
        return Evidence(executed, repeat.line, self.began, seconds, path, digest, imports, tuple(remarks))


@dataclass(frozen=True, slots=True)
class Command:
    """A line for a shell. ``lacks`` are the settings of an editor that it cannot be told."""

    line: str
    lacks: tuple[str, ...] = ()


def command(subject: Subject, name: str, *more: str, seconds: float = wire.Limits().seconds) -> Command:
    """What repeats an experiment about one function or file."""
    usual, place = wire.Limits(), subject.place
    target = f"{subject.name}::{subject.function}" if subject.function else subject.name
    words = [name, target, *more]
    words += [] if seconds == usual.seconds else ["--timeout", f"{seconds:g}"]
    words += [] if place.memory_mib == usual.memory_mib else ["--memory", str(place.memory_mib)]
    return _in_folder(place, words, _FLAGS if name in ("check", "explain") else _FLAGS[:1])


def tool_command(place: Place, tool: str, arguments: Any) -> Command:
    """What calls a tool in the same way."""
    asked = json.dumps(plain.to_plain(arguments), ensure_ascii=False)
    return _in_folder(place, ["tool", "--root", place.folder, tool, asked], _FLAGS[:1])


def _in_folder(place: Place, words: Sequence[str], flags: Sequence[str]) -> Command:
    known = [word for name in flags if name in place.options for word in (f"--{name}", str(place.options[name]))]
    lacks = tuple(f"{name}={value}" for name, value in place.options.items() if name not in flags)
    called = shlex.join([place.environment.interpreter, "-P", "-m", "fuselens.cli", *words, *known])
    return Command(f"cd {shlex.quote(place.folder)} && {called}", lacks)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _processor() -> str:
    """The model's name where the system tells one."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
