"""``fuselens kernels``: kernels of the project's own are edited, verified, pinned, listed and removed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ...checking.isolation import Supervisor
from ...pins import drafts, place, project, records, sentences, texts, trying
from ...pins.place import Unreadable
from ...pins.records import Found, Verdict
from ...record import wire
from ...record.plain import to_plain
from ...system import console
from ..compiled import compiled, limits, options_of, supervisor
from ..progress import Progress, progress, say
from ..targets import Target, UsageError, targets


def usage(arguments: argparse.Namespace) -> int:
    """Without an action, the pins of the project in the working folder are listed."""
    arguments.path, arguments.format = Path(), "text"
    return listed(arguments)


def listed(arguments: argparse.Namespace) -> int:
    root = root_of(arguments.path)
    found = project.every(root)
    if arguments.format == "json":
        console.say(json.dumps([_plain(kept, root) for kept in found], indent=1, ensure_ascii=False))
        return 0
    if not found:
        say(f"{root} has no pinned kernels: `fuselens kernels edit FILE.py::function` begins one")
    for kept in found:
        console.say(sentences.pin(kept, root))
    return 0


def _plain(kept: project.Kept, root: Path) -> dict[str, Any]:
    made: dict[str, Any] = {"path": str(kept.path), "usable": kept.usable}
    made |= {"code": kept.code, "why": kept.why} if not kept.usable else {}
    return made | (to_plain(kept.pin) if kept.pin is not None else {})


def root_of(path: Path) -> Path:
    """Of the project that a file or folder is in. Raises UsageError."""
    path = path.absolute()
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory")
    file = path if path.is_file() else next((f for f in sorted(path.iterdir()) if f.is_file()), None)
    root = place.root_of(str(file)) if file is not None else None
    return root or path


def edit(arguments: argparse.Namespace) -> int:
    (target,) = [*targets(arguments.target)]
    options = options_of(arguments)
    files = compiled([target], arguments, assembly=[], build=False)
    reports = [r for f in files for r in f.functions if not target.function or r.function == target.function]
    if len(reports) != 1:
        found = ", ".join(r.function for r in reports)
        raise UsageError(f"which function? {arguments.target} has {found}" if found else _why(files, target))
    try:
        graph, unit = drafts.chosen(reports[0], arguments.graph, arguments.phase, arguments.language)
        chosen = {"target": options["target"]} if "target" in options else {}
        path = drafts.made(reports[0], graph, unit, chosen)
        draft = drafts.read(path)
    except (drafts.NoUnit, Unreadable) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"the draft cannot be written: {error.filename or ''}: {error.strerror or error}") from None
    if arguments.format == "json":
        console.say(json.dumps({"draft": str(path), "unit": to_plain(draft.unit)}, indent=1))
    else:
        console.say(str(path))
        say(f"This is a draft of {draft.unit.title}. Edit it, then: fuselens kernels verify {_short(path)}")
    return 0


def _why(files: list[Any], target: Target) -> str:
    said = [d.message for f in files for d in (*f.diagnostics, *(d for r in f.functions for d in r.diagnostics))]
    return f"{target.path} has no compiled function to edit kernels of{f': {said[0]}' if said else ''}"


def verify(arguments: argparse.Namespace) -> int:
    """Status 1 where one is refused."""
    paths = [_draft(path) for path in arguments.paths]
    found = _verified(paths, arguments)
    _tell(found, arguments)
    return int(not all(verdict.agrees for verdict in found.values()))


def _verified(paths: list[Path], arguments: argparse.Namespace) -> dict[Path, Verdict]:
    options, found = options_of(arguments), dict[Path, Verdict]()
    with progress(len(paths)) as shown, supervisor(arguments, shown) as children:
        for path in paths:
            try:
                found[path] = _judged(
                    trying.trying(path, place.read(path), limits(arguments)), children, shown, options, arguments
                )
            except Unreadable as error:
                found[path] = Verdict("", None, (Found(1, str(error), code="FL624"),))
            except OSError as error:
                raise UsageError(f"what was found of {_short(path)} cannot be kept: {error}") from None
            shown.done()
    return found


def _judged(
    asking: trying.Asking, children: Supervisor, shown: Progress, options: dict[str, Any], arguments: argparse.Namespace
) -> Verdict:  # fmt: skip
    """Asks what it wants to know, until it knows."""
    said = [""]

    def heard(message: str) -> None:
        said[0] = message
        tell(message)

    try:
        question = next(asking)
        while True:
            tell = shown.saying(str(question.path))
            given = {**options, **question.options}
            request = wire.Request(
                0, "kernel", str(question.path), None, (question.function,), given, limits(arguments)
            )
            question = asking.send((children.call(request, heard), said[0]))
    except StopIteration as end:
        return end.value


def _tell(found: dict[Path, Verdict], arguments: argparse.Namespace) -> None:
    if arguments.format == "json":
        told = [{"draft": str(p), "text": sentences.verdict(v), "verdict": to_plain(v)} for p, v in found.items()]
        console.say(json.dumps(told, indent=1, ensure_ascii=False))
        return
    for path, verdict in found.items():
        console.say(f"{_short(path)}: {sentences.verdict(verdict)}")
        for each in verdict.found:
            console.say(
                f"{_short(path)}:{each.line}:{each.column + 1}: {f'{each.code}: ' if each.code else ''}{each.message}"
            )
        for line in sentences.details(verdict.verified) if verdict.verified is not None else ():
            console.say(f"  {line}")


def pin(arguments: argparse.Namespace) -> int:
    path = _draft(arguments.path)
    try:
        text = place.read(path)
        draft = drafts.read(path)
        verdict = draft.verdict
        if verdict is None or verdict.text != texts.hash_of(draft.unit.language, text):
            (verdict,) = _verified([path], arguments).values()
            if not verdict.agrees:
                _tell({path: verdict}, arguments)
                return 1
        if verdict.verified is not None and verdict.verified.slower and not arguments.slower:
            raise UsageError(
                f"{_short(path)} takes longer than ours: {sentences.times(verdict.verified)}. --slower pins it all the same"
            )
        made = project.pin(path, text)
    except (project.Refused, Unreadable) as error:
        raise UsageError(f"{_short(path)}: {error}") from None
    except OSError as error:
        raise UsageError(f"the pin cannot be written: {error.filename or ''}: {error.strerror or error}") from None
    if arguments.format == "json":
        console.say(json.dumps({"pin": str(made), "verdict": to_plain(verdict)}, indent=1, ensure_ascii=False))
    else:
        console.say(f"pinned: {_short(made)} ({sentences.verdict(verdict)})")
        say("The next run of the function uses it. Commit .fuselens/kernels for those who work with you.")
    return 0


def unpin(arguments: argparse.Namespace) -> int:
    path = arguments.path.absolute()
    if place.is_draft(str(path)):
        path = place.pins_of(place.root_of_draft(path)) / path.parent.name / path.name
    if not place.is_kept(str(path)) or not (path.exists() or path.with_suffix(".json").exists()):
        raise UsageError(f"{arguments.path} is no pinned kernel; `fuselens kernels list` names them")
    try:
        project.unpin(path)
    except OSError as error:
        raise UsageError(f"{_short(path)} cannot be removed: {error.strerror or error}") from None
    console.say(json.dumps({"removed": str(path)}) if arguments.format == "json" else f"removed: {_short(path)}")
    return 0


def _draft(path: Path) -> Path:
    """The draft that is meant: itself, or one of a pinned kernel. Raises UsageError."""
    path = path.absolute()
    if place.is_draft(str(path)) and path.suffix in texts.SUFFIXES.values():
        if not path.exists():
            raise UsageError(f"{path}: no such file")
        return path
    if not place.is_kept(str(path)) or path.suffix not in texts.SUFFIXES.values():
        raise UsageError(
            f"{path} is no draft of a kernel, and no pinned kernel: `fuselens kernels edit FILE.py::function` makes one"
        )
    try:
        draft = place.drafts_of(path.parents[3]) / path.parent.name / path.name
        language = records.read(path.with_suffix(".json"), records.Pin).unit.language
        if draft.exists() and texts.hash_of(language, place.read(draft)) != texts.hash_of(language, place.read(path)):
            raise UsageError(f"{_short(draft)} is a draft of it with another text: verify or remove that one first")
        return drafts.of_pin(path)
    except Unreadable as error:
        raise UsageError(f"{_short(path)}: {error}") from None
    except OSError as error:
        raise UsageError(f"no draft of it can be written: {error.filename or ''}: {error.strerror or error}") from None


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
