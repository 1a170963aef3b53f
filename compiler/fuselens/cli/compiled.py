"""Files become reports, in child processes."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..checking import isolation
from ..record import views, wire
from ..record.report import FileReport
from .progress import Progress, progress
from .targets import Target, UsageError

_OF_RANKS = ("ranks", "mesh", "ranks_per_host", "host_link", "network_link")
_OF_STEPS = ("step_memory", "card", "step_limit", "step_sizes", "step_optimizer")


def compiled(targets: list[Target], arguments: argparse.Namespace, **options: Any) -> list[FileReport]:
    """One report per file, in order. Several functions of one file are one request. ``options`` go before the arguments'."""
    wanted: dict[Path, list[str]] = {}
    for target in targets:
        wanted.setdefault(target.path, []).append(target.function)
    results: dict[int, FileReport] = {}
    if not wanted:
        return []
    with progress(len(wanted)) as shown, supervisor(arguments, shown) as children:
        for number, (path, functions) in enumerate(wanted.items()):
            names = () if "" in functions else tuple(functions)
            given = options_of(arguments) | options
            request = wire.Request(number, "check", str(path), None, names, given, limits(arguments))
            children.submit(request, _collector(results, shown, str(path)))
        while children.busy:
            children.turn()
    return [results[number] for number in sorted(results)]


def _collector(results: dict[int, FileReport], shown: Progress, path: str) -> isolation.Deliver:
    say = shown.saying(path)

    def deliver(frame: bytes) -> None:
        event: wire.Event = wire.decode(frame[wire.LENGTH_SIZE :], wire.Event)
        if event.kind == "progress":
            say(event.message)
        elif event.file is not None:
            results[event.id] = event.file
            shown.done()

    return deliver


@contextlib.contextmanager
def supervisor(
    arguments: argparse.Namespace, shown: Progress, named: Callable[[str], str] = lambda path: path
) -> Iterator[isolation.Supervisor]:
    """A supervisor with torch loaded. What user code prints goes to stderr, below the name of its file: stdout is the report."""
    ready = isolation.preload()
    if ready.file is not None:
        found = ready.file.diagnostics[0]
        raise UsageError(views.diagnostic_text(found, full=True))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # imports from the project's root work, but never before an installed package
    children = isolation.Supervisor(
        jobs=getattr(arguments, "jobs", 1), echo=lambda path, output: shown.echo(named(path), output)
    )
    try:
        yield children
    finally:
        children.close()


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The configuration that arguments ask for. Raises UsageError for one that there is not."""
    options: dict[str, Any] = {}
    if arguments.device is not None:
        options["target"] = arguments.device
    if arguments.cxx is not None:
        options["cxx"] = arguments.cxx
    if getattr(arguments, "execution", None) is not None:
        options["execution"] = arguments.execution
    for name in (*_OF_RANKS, *_OF_STEPS):
        if getattr(arguments, name, None) is not None:
            options[name] = getattr(arguments, name)
    if getattr(arguments, "preview", False):
        options["preview"] = True
    if getattr(arguments, "dump", None) is not None:
        options["assembly"] = ["all"]
    elif asked := stages(getattr(arguments, "print_after", [])):
        options["assembly"] = list(asked)
    try:
        isolation.config_of(options)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    return options


def limits(arguments: argparse.Namespace) -> wire.Limits:
    return wire.Limits(arguments.timeout, arguments.memory)


def stages(given: list[str]) -> tuple[str, ...]:
    """The stages named by ``--print-after``. Raises UsageError for one that there is not."""
    names = tuple(name.strip() for text in given for name in text.split(",") if name.strip())
    if not names:
        return ()
    from .. import pipeline

    known = tuple(pipeline.STAGES)
    for name in names:
        if name != "all" and name not in known:
            raise UsageError(f"unknown stage {name!r}; stages are {', '.join(known)} and all")
    return names
