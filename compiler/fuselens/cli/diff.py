"""``fuselens diff``: what two compilations of a function have different: of two files, revisions, modes or targets."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from ..record import views, wire
from ..record.printed import changes
from ..record.report import FileReport
from ..system import console, source_text
from .compiled import limits, options_of, stages, supervisor
from .progress import progress, say
from .targets import Target, UsageError, functions, targets


def diff(arguments: argparse.Namespace) -> int:
    """Status 1 where something is different."""
    asked = stages(arguments.stage)
    first, second = _sides(arguments)
    with progress(2) as shown, supervisor(arguments, shown) as children:
        reports: list[FileReport] = []
        for number, (target, source, options) in enumerate((first, second)):
            given = options_of(arguments) | ({"assembly": list(asked)} if asked else {}) | options
            names = (target.function,) if target.function else ()
            request = wire.Request(number, "check", str(target.path), source, names, given, limits(arguments))
            event = children.call(request, shown.saying(str(target.path)))
            reports.append(event.file or FileReport(str(target.path)))
            shown.done()
    for report in reports:
        failed = [d for d in report.diagnostics if d.severity == "error"]
        if failed:
            say("\n".join(views.diagnostic_text(d, full=True) for d in failed))
            return 2
    text = changes.text(
        reports[0], reports[1], _called(arguments), asked, same_name=bool(first[0].function and second[0].function)
    )
    console.say(text or "nothing is different")
    return int(bool(text))


Side = tuple[Target, str | None, dict[str, object]]


def _sides(arguments: argparse.Namespace) -> tuple[Side, Side]:
    """What is compiled for the left and for the right. Raises UsageError."""
    new = _only(arguments.target)
    ways = [arguments.other, arguments.rev, arguments.to_mode, arguments.to_target]
    if sum(way is not None for way in ways) != 1:
        raise UsageError("give one thing to compare with: OTHER.py[::function], --rev, --to-mode or --to-target")
    if arguments.other is not None:
        return (new, None, {}), (_only(arguments.other), None, {})
    if arguments.rev is not None:
        return (new, _at_revision(arguments.rev, new.path), {}), (new, None, {})
    if arguments.to_mode is not None:
        return (new, None, {}), (new, None, {"as_mode": arguments.to_mode})
    return (new, None, {}), (new, None, {"target": arguments.to_target})


def _only(text: str) -> Target:
    found = list(targets(text))
    if len(found) != 1:
        raise UsageError(f"{text} is {len(found)} files: give one")
    if not functions(found[0].path):
        raise UsageError(f"{text} has no annotated functions")
    return found[0]


def _at_revision(revision: str, path: Path) -> str:
    """The text of a file at a revision of git; what it imports is as it is now."""
    command = ["git", "-C", str(path.absolute().parent), "show", f"{revision}:./{path.name}"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise UsageError(f"git cannot be run: {error}") from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise UsageError(f"git does not show {path} at {revision}: {why}")
    try:
        return source_text.decode(done.stdout)
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        raise UsageError(f"{path} at {revision} cannot be read: {error}") from None


def _called(arguments: argparse.Namespace) -> tuple[str, str]:
    if arguments.other is not None:
        return arguments.target, arguments.other
    if arguments.rev is not None:
        return f"{arguments.target} at {arguments.rev}", arguments.target
    changed = f"mode {arguments.to_mode}" if arguments.to_mode is not None else f"for {arguments.to_target}"
    return arguments.target, f"{arguments.target}, {changed}"
