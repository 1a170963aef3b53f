"""``fuselens patches``: breaks inside of libraries are fixed, and the fixes kept, listed, verified again and removed."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...patches import distributions, project, records
from ...patches.project import Kept
from ...pins import place
from ...record import wire
from ...record.plain import to_plain
from ...record.report import Diagnostic, Fix, Report
from ...system import console
from ..compiled import compiled, limits, options_of, supervisor
from ..progress import progress, say
from ..targets import Target, UsageError, named, nothing_in
from .kernels import root_of


def usage(arguments: argparse.Namespace) -> int:
    """Without an action, the patches of the project in the working folder are listed."""
    arguments.project, arguments.names, arguments.format = Path(), [], "text"
    return listed(arguments)


def listed(arguments: argparse.Namespace) -> int:
    root = root_of(arguments.project)
    found = [_judged(kept) for kept in _chosen(arguments, root)]
    if arguments.format == "json":
        console.say(json.dumps([_plain(kept) for kept in found], indent=1, ensure_ascii=False))
        return 0
    if not found:
        say(f"{root} has no patches of libraries: `fuselens patches apply FILE.py` makes them")
    for kept in found:
        console.say(_line(kept, root))
        for line in (*kept.patch.removes, *kept.patch.verified) if kept.patch is not None else ():
            console.say(f"  {line}")
    return 0


def _judged(kept: Kept) -> Kept:
    """Beside what this interpreter has installed."""
    if kept.patch is None or kept.code:
        return kept
    path = distributions.located(kept.patch.file)
    if path is None:
        return kept.aside("FL641", f"{kept.patch.distribution} is not installed here")
    return project.beside(kept, path)[0]


def _line(kept: Kept, root: Path) -> str:
    return kept.shown(root) + (f": {kept.code}: {kept.why}" if kept.code else "")


def _plain(kept: Kept) -> dict[str, Any]:
    made: dict[str, Any] = {"path": str(kept.path), "usable": kept.usable}
    made |= {"code": kept.code, "why": kept.why} if not kept.usable else {}
    return made | (to_plain(kept.patch) if kept.patch is not None else {})


def _chosen(arguments: argparse.Namespace, root: Path) -> list[Kept]:
    """Those that are named: by file, distribution, or module. Raises UsageError."""
    found = project.every(root)
    if not arguments.names:
        return found
    chosen: list[Kept] = []
    for name in arguments.names:
        matching = [kept for kept in found if _is_named(kept, name)]
        if not matching:
            known = ", ".join(kept.shown(root) for kept in found) or "it has none"
            raise UsageError(f"{root} has no patch {name}; {known}")
        chosen += [kept for kept in matching if kept not in chosen]
    return chosen


def _is_named(kept: Kept, name: str) -> bool:
    if Path(name).absolute() == kept.path:
        return True
    if kept.patch is None:
        return False
    module = kept.patch.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name in (kept.patch.distribution, f"{kept.patch.distribution}-{kept.patch.version}", kept.patch.file, module)


# --- making -----------------------------------------------------------------------------------------------------------


def apply(arguments: argparse.Namespace) -> int:
    """Status 1 where a break inside of a library has no verified fix."""
    chosen = [target for path in arguments.paths for target in named(path)]
    if not chosen:
        raise UsageError(nothing_in(arguments.paths))
    told: list[dict[str, Any]] = []
    for target in chosen:
        told += _of_function(target, arguments)
    if arguments.format == "json":
        console.say(json.dumps(told, indent=1, ensure_ascii=False))
    elif not told:
        say("no graph breaks inside of a library")
    return int(any(not each["verified"] for each in told))


def _of_function(target: Target, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What became of the breaks of one function. What is kept may show others, so it is looked at until nothing is new."""
    told: dict[tuple[str, Any], dict[str, Any]] = {}
    while True:
        (file,) = compiled([target], arguments, build=False)
        for found in file.diagnostics:
            if found.severity == "error":
                raise UsageError(found.message)
        breaks = [d for report in file.functions for d in report.breaks if d.fixes and d.fixes[0].library]
        bare = [d for report in file.functions for d in report.breaks if not d.fixes and _library(d)]
        new = [d for d in breaks if (d.code, d.span) not in told]
        kept = False
        for found in _tried(target, file.functions[0], arguments) if new else ():
            if (found.code, found.span) not in told:
                best = next((fix for fix in found.fixes if fix.verified), None)
                told[found.code, found.span] = _told(target, found, best, arguments)
                kept = kept or (best is not None and not arguments.dry_run)
        if not kept:
            for found in bare:
                told.setdefault((found.code, found.span), {}).update(_told(target, found, None, arguments))
            return list(told.values())


def _library(found: Diagnostic) -> bool:
    return found.span is not None and distributions.installed(found.span.file) is not None


def _tried(target: Target, report: Report, arguments: argparse.Namespace) -> Iterator[Diagnostic]:
    """The breaks inside of libraries with what became of their fixes: one request each, which has the whole time of a check."""
    every = (*report.breaks, *report.diagnostics)
    with progress(1) as shown, supervisor(arguments, shown) as children:
        for number, found in enumerate(every):
            if not found.fixes or not found.fixes[0].library:
                continue
            findings = tuple(d if k == number else dataclasses.replace(d, fixes=()) for k, d in enumerate(every))
            request = wire.Request(
                0, "fix", str(target.path), None, (report.function,), options_of(arguments), limits(arguments), findings=findings
            )  # fmt: skip
            file = children.call(request, shown.saying(str(target.path))).file
            if file is None or not file.functions:
                why = next((d.message for d in file.diagnostics), "") if file is not None else ""
                raise UsageError(f"the fixes were not tried out: {why or 'there was no answer'}")
            yield file.functions[0].breaks[number]


def _told(target: Target, found: Diagnostic, fix: Fix | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Keeps a verified fix, and says what became of a break."""
    function = f"{target.path}::{target.function}"
    said: dict[str, Any] = {
        "function": function, "code": found.code, "message": found.message, "place": str(found.span), "verified": fix is not None
    }  # fmt: skip
    if fix is None:
        trials = list(dict.fromkeys(f.trial for f in found.fixes if f.trial))
        said["why"] = "; ".join(trials) or "no fix is known"
        _print(arguments, f"{found.span}: {found.code}: {found.message}: not fixed ({said['why']})")
        return said
    patch = records.read(fix.patch)
    said |= {"title": fix.title, "trial": fix.trial, "patch": to_plain(patch)}
    if arguments.dry_run:
        _print(arguments, f"{found.span}: {found.code}: {fix.title} ({fix.trial})\n{patch.difference.rstrip()}")
        return said
    try:
        path = project.keep(place.root_of(str(target.path)) or Path.cwd(), fix.library, patch)
    except (project.Refused, OSError) as error:
        raise UsageError(f"the patch cannot be kept: {error}") from None
    said["path"] = str(path)
    _print(arguments, f"{found.span}: {found.code}: {fix.title} ({fix.trial})\n  kept: {_short(path)}")
    return said


def _print(arguments: argparse.Namespace, text: str) -> None:
    if arguments.format == "text":
        console.say(text)


# --- what is kept -----------------------------------------------------------------------------------------------------


def verify(arguments: argparse.Namespace) -> int:
    """Status 1 where a patch does not hold any more."""
    root = root_of(arguments.project)
    found = _chosen(arguments, root)
    told = list(_verified(found, root, arguments))
    if arguments.format == "json":
        console.say(json.dumps(told, indent=1, ensure_ascii=False))
    return int(any(each["why"] for each in told))


def _verified(found: list[Kept], root: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for kept in found:
        functions = kept.patch.functions if kept.patch is not None else ()
        why = kept.why if kept.patch is None else "" if functions else "it names no function to verify it with"
        made: records.Patch | None = None
        for function in functions:
            why, again = _asked(kept, root, function, arguments)
            made = again if made is None or again is None else _both(made, again)
            if why:
                break
        path = kept.path
        if made is not None and not why:
            path = _kept(kept, root, made)
        _print(arguments, f"{_short(path)}: {why or 'verified: ' + '; '.join(made.verified if made else ())}")
        yield {"path": str(path), "why": why, "patch": to_plain(made) if made is not None else None}


def _both(one: records.Patch, other: records.Patch) -> records.Patch:
    several = {
        n: tuple(dict.fromkeys((*getattr(one, n), *getattr(other, n)))) for n in ("removes", "verified", "functions")
    }
    return dataclasses.replace(one, **several)


def _asked(kept: Kept, root: Path, function: str, arguments: argparse.Namespace) -> tuple[str, records.Patch | None]:
    file, _, name = function.partition("::")
    path = root / file
    if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
        return f"{function}, which it was verified with, is gone", None
    options = {**options_of(arguments), "patch": str(kept.path)}
    with progress(1) as shown, supervisor(arguments, shown) as children:
        request = wire.Request(0, "patch", str(path), None, (name,), options, limits(arguments))
        event = children.call(request, shown.saying(str(path)))
    if not event.text:
        return next((d.message for d in event.file.diagnostics), "no answer") if event.file else "no answer", None
    answer = json.loads(event.text)
    return answer["why"], records.read(answer["patch"]) if not answer["why"] else None


def _kept(kept: Kept, root: Path, patch: records.Patch) -> Path:
    """Written anew, under the version that is installed now."""
    path = project.patches_of(root) / patch.name
    try:
        project.rewrite(path, patch)
        if path != kept.path:
            project.remove(kept.path)
    except OSError as error:
        raise UsageError(f"{_short(path)} cannot be written: {error.strerror or error}") from None
    return path


def diff(arguments: argparse.Namespace) -> int:
    found = [kept for kept in _chosen(arguments, root_of(arguments.project)) if kept.patch is not None]
    if arguments.format == "json":
        told = [{"path": str(k.path), "difference": k.patch.difference} for k in found if k.patch is not None]
        console.say(json.dumps(told, indent=1, ensure_ascii=False))
        return 0
    for kept in found:
        console.say(kept.patch.difference.rstrip("\n") if kept.patch is not None else "")
    return 0


def remove(arguments: argparse.Namespace) -> int:
    root = root_of(arguments.project)
    found = _chosen(arguments, root)
    for kept in found:
        try:
            project.remove(kept.path)
        except OSError as error:
            raise UsageError(f"{kept.shown(root)} cannot be removed: {error.strerror or error}") from None
    if arguments.format == "json":
        console.say(json.dumps([{"removed": str(kept.path)} for kept in found], indent=1))
    for kept in found if arguments.format == "text" else ():
        console.say(f"removed: {kept.shown(root)}")
    return 0


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
