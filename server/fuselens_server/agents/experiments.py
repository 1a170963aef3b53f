"""Experiments: requests to a worker, each with the words that say what it executed and the command that repeats it."""

from __future__ import annotations

import dataclasses
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
from .results import Evidence, Machine
from .subjects import Place, Subject, digest_of

_MOST_IMPORTS = 50
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

    def machine(self, place: Place) -> Machine:
        """Raises nothing: what is not known is left out."""
        versions = dict(self.pool.versions(place.environment))
        versions.setdefault("executable", place.environment.interpreter)
        return Machine(f"{platform.system()} {platform.machine()}", _processor(), os.cpu_count() or 1, versions)


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

    def evidence(self, executed: str, command: str, *not_tried: str) -> Evidence:
        imports = {path: digest_of(path) for path in self.file.imports[:_MOST_IMPORTS]}
        remarks = [*not_tried, *self.subject.place.remarks]
        if not self.subject.holds():
            remarks.append("the file has changed since: this is about the text with the sha256 that is given here")
        return Evidence(
            executed,
            command,
            self.began,
            round(self.seconds, 3),
            self.subject.path,
            self.subject.sha256,
            imports,
            tuple(remarks),
        )


def command(subject: Subject, name: str, *more: str, seconds: float = wire.Limits().seconds) -> str:
    """The command line that repeats an experiment about one function or file."""
    target = f"{subject.name}::{subject.function}" if subject.function else subject.name
    limit = () if seconds == wire.Limits().seconds else ("--timeout", f"{seconds:g}")
    chosen = subject.place.options.get("target")
    device = ("--target", str(chosen)) if chosen else ()
    return _in_folder(subject.place, name, target, *more, *limit, *device)


def tool_command(place: Place, tool: str, arguments: Any) -> str:
    """The command line that calls a tool in the same way."""
    root = ("--root", place.folder)
    return _in_folder(place, "tool", *root, tool, json.dumps(plain.to_plain(arguments), ensure_ascii=False))


def _in_folder(place: Place, *words: str) -> str:
    called = shlex.join([place.environment.interpreter, "-m", "fuselens.cli", *words])
    return f"cd {shlex.quote(place.folder)} && {called}"


def with_text(subject: Subject, functions: tuple[str, ...]) -> Subject:
    return dataclasses.replace(subject, functions=functions)


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
