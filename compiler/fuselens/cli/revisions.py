"""``fuselens diff REVISION``: what became of compiled functions since a revision, and which commit did it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

from ..checking import isolation
from ..history import blaming, changes, comparing, markdown, sarif, timing, told
from ..history import text as plain_text
from ..history.folder import Folder
from ..history.git import GitError, Repository
from ..history.snapshots import Snapshots, Wanted
from ..record import views, wire
from ..record.printed import changes as details
from ..system import console
from .compiled import limits, options_of, stages, supervisor
from .progress import Progress, progress, say
from .targets import UsageError

FORMATS = ("text", "json", "markdown", "sarif")
_FAILS = ("worse", "any", *changes.KINDS)
T = TypeVar("T")


def compare(arguments: argparse.Namespace, revision: str, paths: list[str]) -> int:
    """Status 1 where something is as `--fail-on` says."""
    fails = _fails(arguments.fail_on)
    asked = stages(arguments.stage)
    names = [name.partition("::")[0] for name in paths]
    functions = [name.partition("::")[2] for name in paths if "::" in name]
    if functions and len(paths) > 1:
        raise UsageError("name one function, FILE.py::function, or files and folders")
    try:
        repository = Repository.of(Path(names[0]).absolute() if names else Path.cwd())
        names_of: dict[str, str] = {}
        with (
            progress(1) as shown,
            supervisor(arguments, shown, lambda path: names_of.get(path, path)) as children,
            Folder(repository) as folder,
        ):
            ask = Asking(children, arguments, shown, asked, names_of)
            snapshots = Snapshots(repository, folder)
            wanted = comparing.paths_below(repository.top, names)
            found = ask(comparing.compare(snapshots, repository.sides(revision), wanted, functions))
            if arguments.time:
                found.functions = ask(timing.measure(snapshots, found))
            blamed = ask(blaming.blame(snapshots, found, arguments.blame_by)) if arguments.blame else []
            outcome = told.told(found, revision, blamed)
    except GitError as error:
        raise UsageError(str(error)) from None
    _print(outcome, found, asked, arguments)
    return int(_fails_on(outcome, fails))


class Asking:
    """Gives a comparison the reports that it asks for: kept ones, else made in children. ``names`` gets what a person calls the files
    that children open."""

    def __init__(
        self, children: isolation.Supervisor, arguments: argparse.Namespace, shown: Progress, asked: tuple[str, ...],
        names: dict[str, str],
    ) -> None:  # fmt: skip
        self._children, self._shown, self._names = children, shown, names
        self._options = options_of(arguments) | {"build": False, "keep_sizes": False}
        self._options |= {"stages": list(asked)} if asked else {}
        self._limits = limits(arguments)
        self._number = 0

    def __call__(self, work: Generator[list[Wanted], list[Any], T]) -> T:
        try:
            wanted = next(work)
            while True:
                wanted = work.send(self._answers(wanted))
        except StopIteration as end:
            return end.value

    def _answers(self, wanted: list[Wanted]) -> list[Any]:
        requests = [self._request(one) for one in wanted]
        if wanted and not wanted[0].revision.folder:
            from ..checking.revisions import kept

            return [kept.found(request, isolation.config_of(request.options)) for request in requests]
        answers: dict[int, Any] = {}
        for request, one in zip(requests, wanted, strict=True):
            self._names[one.path] = one.about
            self._children.submit(request, self._collector(answers, one))
        while self._children.busy:
            self._children.turn()
        return [answers.get(request.id) for request in requests]

    def _request(self, one: Wanted) -> wire.Request:
        self._number += 1
        method, names, built = ("run", (one.run,), {"build": True}) if one.run else ("check", (), {})
        options = self._options | built
        return wire.Request(self._number, method, one.path, None, names, options, self._limits, revision=one.revision)

    def _collector(self, answers: dict[int, Any], one: Wanted) -> isolation.Deliver:
        stage = self._shown.saying(one.about)

        def deliver(frame: bytes) -> None:
            event: wire.Event = wire.decode(frame[wire.LENGTH_SIZE :], wire.Event)
            if event.kind == "progress":
                stage(event.message)
            elif event.kind == "result":
                answers[event.id] = event.run if one.run else one.placed(event.file)

        return deliver


def _fails(text: str | None) -> set[str]:
    names = {name.strip() for name in (text or "").split(",") if name.strip()}
    if unknown := sorted(names - set(_FAILS)):
        raise UsageError(f"--fail-on knows no {unknown[0]!r}: give {', '.join(_FAILS[:-1])} or {_FAILS[-1]}")
    return names


def _fails_on(outcome: told.Told, fails: set[str]) -> bool:
    if "any" in fails and (outcome.functions or outcome.uncompared):
        return True
    kinds = {change.kind for function in outcome.worse for change in function.worse}
    new_fails = any(one.side == "new" for one in outcome.uncompared)
    return bool(fails) and (bool(kinds & fails) or ("worse" in fails and bool(kinds)) or new_fails)


def _print(
    outcome: told.Told, found: comparing.Comparison, asked: tuple[str, ...], arguments: argparse.Namespace
) -> None:
    match arguments.format:
        case "json":
            console.say(json.dumps(told.json_ready(outcome), indent=1))
        case "markdown":
            console.say(markdown.markdown(outcome))
        case "sarif":
            top = Path(outcome.top)
            console.say(
                sarif.sarif(outcome, lambda name: views.read_text(str(top / name)), isolation.fuselens_version())
            )
        case _:
            say(plain_text.text(outcome))
            if asked or arguments.verbose:
                for block in _details(outcome, found, asked):
                    console.say(block)


def _details(outcome: told.Told, found: comparing.Comparison, asked: tuple[str, ...]) -> list[str]:
    """Of each function that has both sides: every guard, kernel and fusion that differs, and lines of stages."""
    blocks = []
    for function in outcome.functions:
        sides: list[Any] = []
        for name, which in ((function.old_name or function.function, 0), (function.function, 1)):
            files = [reports[which] for reports in found.reports.values()]
            file = function.old_file if which == 0 and function.old_file else function.file
            every = [r for f in files if f is not None for r in f.functions]
            sides.append(next((r for r in every if r.function == name and r.file.endswith(file)), None))
        if all(sides):
            names = (
                f"{function.file}::{function.function} in {outcome.old.short}",
                f"{function.file}::{function.function}",
            )
            lines = details.of_function(sides[0], sides[1], names, asked)
            blocks.append("\n".join([function.function, *(f"  {line}" for line in lines)]))
    return blocks
