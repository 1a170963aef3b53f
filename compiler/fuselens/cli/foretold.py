"""``fuselens memory`` and ``recompiles``: what is foretold of a program, a step's memory and how often functions are compiled."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..record import views, wire
from ..record.plain import to_plain
from ..record.printed import foreseen, steps
from ..record.report import FileReport, Report
from ..system import console
from .compiled import compiled, limits, options_of, supervisor
from .progress import progress, say
from .targets import Target, UsageError, named, nothing_in, targets


def memory(arguments: argparse.Namespace) -> int:
    """Status 1 where a step does not fit, or nothing is known of it."""
    chosen = named(arguments.target)
    if not chosen:
        raise UsageError(f"{arguments.target} has no annotated functions")
    arguments.step_memory, arguments.step_sizes = True, ",".join(arguments.size)
    reports = compiled(chosen, arguments)
    if arguments.format == "json":
        console.say(json.dumps([_plain(one) for report in reports for one in report.functions], indent=1))
    else:
        for report in reports:
            _print(report)
    return int(any(not _is_well(report) for report in reports))


def _print(report: FileReport) -> None:
    for found in report.diagnostics:
        if found.severity == "error":
            say(views.diagnostic_text(found, full=True))
    for one in report.functions:
        if one.step is not None:
            say(steps.text(one.function, one.file, one.step))
            continue
        failed = [d for d in one.diagnostics if d.severity in ("error", "warning")]
        say("\n".join(views.diagnostic_text(d, full=True) for d in failed) or f"{one.file}::{one.function}: not called")


def _plain(report: Report) -> dict[str, Any]:
    """The step, or why it is not known."""
    found = [d for d in report.diagnostics if d.code.startswith("FL63") or d.severity == "error"]
    return {
        "file": report.file,
        "function": report.function,
        "step": to_plain(report.step),
        "diagnostics": to_plain(found),
    }


def _is_well(report: FileReport) -> bool:
    return bool(report.functions) and all(one.step is not None and one.step.fits for one in report.functions)


# --- recompiles -------------------------------------------------------------------------------------------------------


def recompiles(arguments: argparse.Namespace) -> int:
    """Status 1 where a function runs eagerly after its limit, or a file could not be looked at."""
    chosen = list(targets(arguments.target))
    files = foretold(chosen, arguments)
    if arguments.format == "json":
        console.say(json.dumps([to_plain(report) for file in files for report in file.functions], indent=1))
    else:
        say("\n\n".join(_texts(files)) or nothing_in([arguments.target]))
    failed = any(d.severity == "error" for file in files for d in file.diagnostics)
    return int(failed or any(r.foreseen is not None and r.foreseen.limited for file in files for r in file.functions))


def foretold(chosen: Sequence[Target], arguments: argparse.Namespace) -> list[FileReport]:
    """One report for each target, with what is foreseen."""
    files: list[FileReport] = []
    with progress(len(chosen)) as shown, supervisor(arguments, shown) as children:
        for number, target in enumerate(chosen, start=1):
            path, names = str(target.path), (target.function,) if target.function else ()
            request = wire.Request(number, "recompiles", path, None, names, options_of(arguments), limits(arguments))
            event = children.call(request, shown.saying(path))
            files += [event.file] if event.file is not None else []
            shown.done()
    return files


def with_foretold(files: list[FileReport], arguments: argparse.Namespace) -> None:
    """Adds what is foreseen to reports of a check."""
    chosen = [Target(Path(f.file)) for f in files if any(r.graphs for r in f.functions)]
    told = {(f.file, r.function): r for f in foretold(chosen, arguments) for r in f.functions} if chosen else {}
    for file in files:
        for report in file.functions:
            found = told.get((file.file, report.function))
            if found is not None and found.foreseen is not None:
                report.foreseen = found.foreseen
                report.diagnostics += [d for d in found.diagnostics if d not in report.diagnostics]


def _texts(files: list[FileReport]) -> list[str]:
    out = []
    for file in files:
        out += [views.diagnostic_text(d, views.read_text, full=True) for d in file.diagnostics]
        out += [_text(report) for report in file.functions]
    return out


def _text(report: Report) -> str:
    place = str(report.span) if report.span is not None else report.file
    said = (
        list(foreseen.lines(report.foreseen, report.file)) if report.foreseen is not None else ["nothing is foreseen"]
    )
    out = [f"{place}: {report.function}", *(f"  {line}" for line in said)]
    for found in report.diagnostics:
        out.append(views.diagnostic_text(found, views.read_text, full=True))
        out += [f"   = fix: {fix.title} ({fix.trial})" for fix in found.fixes]
    return "\n".join(out)
