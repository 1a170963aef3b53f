"""Drafts: kernel files that somebody edits. A draft begins as the text that runs; nothing runs it but what verifies it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..record.report import Graph, Report
from ..record.report import Unit as Made
from . import place, project, records, texts
from .place import Unreadable
from .records import Draft, Unit, Verdict

_IGNORED = "# Drafts of kernels are not for the repository; pinned ones are in the folder beside.\n*\n"


class NoUnit(Exception):
    """There is nothing to edit; the message says why."""


def units_of(report: Report) -> list[tuple[Graph, Made]]:
    """What of a function can be edited."""
    return [(graph, unit) for graph in report.graphs for unit in graph.units]


def chosen(report: Report, graph: int | None, phase: str, language: str) -> tuple[Graph, Made]:
    """The unit that is meant. Raises NoUnit."""
    found = units_of(report)
    if not found:
        raise NoUnit(f"{report.function} has no kernels that can be edited")
    matching = [
        (g, u) for g, u in found
        if (graph is None or g.id == graph) and u.phase == (phase or u.phase) and u.language == (language or u.language)
    ]  # fmt: skip
    if not matching:
        known = ", ".join(f"graph {g.id} {u.phase} ({u.language})" for g, u in found)
        raise NoUnit(f"{report.function} has no such kernels; it has {known}")
    return matching[0]


def made(report: Report, graph: Graph, unit: Made, options: dict[str, str]) -> Path:
    """The draft of a unit, begun where there is none. Raises NoUnit and OSError."""
    root = place.root_of(report.file)
    if root is None:
        raise NoUnit(f"{report.file} is no file, so its kernels have no place to be kept")
    stage = graph.stage(_named(unit))
    if stage is None:
        raise NoUnit(f"the text of {report.function}'s kernels is not known: it was compiled without texts")
    suffix = texts.SUFFIXES[unit.language]
    path = place.drafts_of(root) / unit.content / f"{unit.phase}{suffix}"
    text = texts.kernels_of(stage.text)[0] if unit.language == "cpp" else stage.text
    about = Unit(
        unit.content, unit.phase, unit.language, report.function, Path(report.file).absolute().relative_to(root).as_posix(), graph.frame,
        graph.id, unit.outline, texts.signatures(unit.language, text), options,
    )  # fmt: skip
    if path.exists():
        return path
    place.drafts_of(root).mkdir(parents=True, exist_ok=True)
    place.write(place.drafts_of(root) / ".gitignore", _IGNORED)
    ours = "" if unit.pin else texts.hash_of(unit.language, text)
    if not unit.pin:
        place.write(project.ours_beside(path), text)
    records.write(path.with_suffix(".json"), Draft(about, ours))
    place.write(path, texts.headed(unit.language, _head(about), texts.body_of(unit.language, text)))
    return path


def _named(unit: Made) -> str:
    return unit.language if unit.phase == "forward" else f"{unit.language}.{unit.phase}"


def _head(unit: Unit) -> tuple[str, ...]:
    open_, close = ('extern "C" void ', "") if unit.language == "cpp" else ("def ", ":")
    last = (
        "The host program, which calls them and makes their memory, comes after this text and is not edited."
        if unit.language == "cpp"
        else "The grids and the sizes of blocks are the host program's; what this text says of them by default is not read."
    )
    return (
        f"A draft of the kernels of {unit.title}, in {unit.file}. Edit what you like; these stay, with their parameters:",
        *(f"  {open_}{name}({given}){close}" for name, given in unit.kernels.items()),
        last,
        "Saving verifies it against the graph and measures it against ours. Once it agrees it can be pinned; then runs use it.",
        "",
    )


def read(path: Path) -> Draft:
    """What a draft is of. Raises Unreadable."""
    return records.read(path.with_suffix(".json"), Draft)


def function_of(path: Path, draft: Draft) -> Path:
    """The file of a draft's function. Raises Unreadable for one outside of the project."""
    root = place.root_of_draft(path)
    file = root / draft.unit.file
    if not file.resolve().is_relative_to(root.resolve()):
        raise Unreadable(f"{path.with_suffix('.json').name} leads to a file outside of {root}")
    if not file.is_file():
        raise Unreadable(f"{draft.unit.file} is gone, of which this was a draft")
    return file


def judged(path: Path, verdict: Verdict, ours: str = "", **known: Any) -> None:
    """Keeps what verifying found; ``ours`` is our text, where it was not known yet, and ``known`` what else there is to know of the
    unit. Raises Unreadable and OSError."""
    draft = read(path)
    draft = dataclasses.replace(draft, unit=dataclasses.replace(draft.unit, **known))
    if ours and not draft.ours:
        place.write(project.ours_beside(path), ours)
        draft = dataclasses.replace(draft, ours=texts.hash_of(draft.unit.language, ours))
    records.write(path.with_suffix(".json"), dataclasses.replace(draft, verdict=verdict))


def of_pin(path: Path) -> Path:
    """A draft of a pinned kernel, to be verified again or edited on. Raises Unreadable and OSError."""
    root = path.parents[3]
    pin = records.read(path.with_suffix(".json"), records.Pin)
    made = place.drafts_of(root) / f"{pin.unit.stem}{path.suffix}"
    text = place.read(path)
    place.drafts_of(root).mkdir(parents=True, exist_ok=True)
    place.write(place.drafts_of(root) / ".gitignore", _IGNORED)
    records.write(made.with_suffix(".json"), Draft(pin.unit))
    place.write(made, texts.headed(pin.unit.language, _head(pin.unit), texts.body_of(pin.unit.language, text)))
    return made


def drop(path: Path) -> None:
    """Removes a draft. Raises OSError."""
    for each in (path, path.with_suffix(".json"), project.ours_beside(path)):
        each.unlink(missing_ok=True)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()
