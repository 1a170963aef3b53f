"""``fuselens diff``: what two compilations of a function have different: of two files, modes or targets; :mod:`.revisions` has those of
a revision of git.
"""

from __future__ import annotations

import argparse

from ..record import views, wire
from ..record.printed import changes
from ..record.report import FileReport
from ..system import console
from . import revisions
from .compiled import limits, options_of, stages, supervisor
from .progress import progress, say
from .targets import Target, UsageError, functions, targets


def diff(arguments: argparse.Namespace) -> int:
    """Files are compared where a file is named first, else a revision of git."""
    first, *others = arguments.what
    if _is_file(first):
        return _files(arguments, first, others)
    if arguments.to_mode is not None or arguments.to_target is not None:
        raise UsageError("--to-mode and --to-target compare a function with itself: name FILE.py[::function]")
    return revisions.compare(arguments, first, others)


def _is_file(name: str) -> bool:
    """Whether the argument names a Python file rather than a revision."""
    return name.partition("::")[0].endswith((".py", ".pyw"))


def _files(arguments: argparse.Namespace, new: str, others: list[str]) -> int:
    """Status 1 where something is different."""
    for name in ("blame", "fail_on", "time"):
        if getattr(arguments, name):
            raise UsageError(f"--{name.replace('_', '-')} is about revisions: name one first")
    if arguments.format != "text":
        raise UsageError(f"--format {arguments.format} is for a comparison with a revision: name one first")
    asked = stages(arguments.stage)
    first, second = _sides(arguments, new, others)
    with progress(2) as shown, supervisor(arguments, shown) as children:
        reports: list[FileReport] = []
        for number, (target, options) in enumerate((first, second)):
            given = options_of(arguments) | ({"assembly": list(asked)} if asked else {}) | options
            names = (target.function,) if target.function else ()
            request = wire.Request(number, "check", str(target.path), None, names, given, limits(arguments))
            event = children.call(request, shown.saying(str(target.path)))
            reports.append(event.file or FileReport(str(target.path)))
            shown.done()
    for report in reports:
        failed = [d for d in report.diagnostics if d.severity == "error"]
        if failed:
            say("\n".join(views.diagnostic_text(d, full=True) for d in failed))
            return 2
    text = changes.text(
        reports[0],
        reports[1],
        _called(arguments, new, others),
        asked,
        same_name=bool(first[0].function and second[0].function),
    )
    console.say(text or "nothing is different")
    return int(bool(text))


Side = tuple[Target, dict[str, object]]


def _sides(arguments: argparse.Namespace, name: str, others: list[str]) -> tuple[Side, Side]:
    """What is compiled for the left and for the right. Raises UsageError."""
    new = _only(name)
    ways = [*others, *filter(None, (arguments.to_mode, arguments.to_target))]
    if len(ways) != 1:
        raise UsageError(
            "give one thing to compare with: OTHER.py[::function], --to-mode or --to-target; a revision comes before the files: "
            f"fuselens diff HEAD~1 {name}"
        )
    if others:
        return (new, {}), (_only(others[0]), {})
    if arguments.to_mode is not None:
        return (new, {}), (new, {"as_mode": arguments.to_mode})
    return (new, {}), (new, {"target": arguments.to_target})


def _only(text: str) -> Target:
    found = list(targets(text))
    if len(found) != 1:
        raise UsageError(f"{text} is {len(found)} files: give one")
    if not functions(found[0].path):
        raise UsageError(f"{text} has no annotated functions")
    return found[0]


def _called(arguments: argparse.Namespace, name: str, others: list[str]) -> tuple[str, str]:
    if others:
        return name, others[0]
    changed = f"mode {arguments.to_mode}" if arguments.to_mode is not None else f"for {arguments.to_target}"
    return name, f"{name}, {changed}"
