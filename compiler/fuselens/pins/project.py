"""The pins of a project: found for a program, listed, made of a draft, and removed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..system import source_text
from . import place, records, texts
from .place import Unreadable
from .records import Draft, Pin, Unit, Verified


class Refused(Exception):
    """A draft cannot be pinned; the message says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A kernel file of a project. ``code`` and ``why`` say why it is not used, where it is not."""

    path: Path
    pin: Pin | None = None
    text: str = ""
    code: str = ""
    why: str = ""

    @property
    def usable(self) -> bool:
        return not self.code

    def shown(self, root: Path) -> str:
        return self.path.relative_to(root).as_posix()


def find(root: Path, owner: str, content: str, phase: str, language: str, target: str) -> Kept | None:
    """The pin of a program, for what its kernels are built for; None where there is none. ``owner`` is the file of the function."""
    path = place.pins_of(root) / content / f"{phase}{texts.SUFFIXES[language]}"
    if not content or not (path.exists() or path.with_suffix(".json").exists()):
        return None
    kept = _read(path, owner)
    if kept.pin is None or kept.code:
        return kept
    if (kept.pin.unit.content, kept.pin.unit.phase, kept.pin.unit.language) != (content, phase, language):
        return dataclasses.replace(kept, code="FL624", why="what is beside it is of another program")
    return _judged(kept, target)


def _judged(kept: Kept, target: str) -> Kept:
    assert kept.pin is not None
    language = kept.pin.unit.language
    mine = texts.hash_of(language, kept.text)
    of_text = [v for v in kept.pin.verified if v.text == mine]
    if not of_text:
        return dataclasses.replace(kept, code="FL622", why="its text is not the one that was verified")
    if not any(v.target == target for v in of_text):
        tried = ", ".join(dict.fromkeys(v.target for v in of_text))
        return dataclasses.replace(
            kept, code="FL623", why=f"it was verified for {tried}, and is built here for {target}"
        )
    if language == "triton" and (why := next(iter(_executed(kept.text)), "")):
        return dataclasses.replace(kept, code="FL624", why=why)
    return kept


def _executed(text: str) -> Iterator[str]:
    try:
        yield from (f"line {line}: {why}" for line, why in texts.objections(text))
    except SyntaxError as error:
        yield f"line {error.lineno}: {error.msg}"


def _read(path: Path, owner: str = "") -> Kept:
    try:
        pin = records.read(path.with_suffix(".json"), Pin, owner)
    except Unreadable as error:
        return Kept(path, code="FL624", why=str(error))
    try:
        return Kept(path, pin, place.read(path, owner))
    except Unreadable as error:
        return Kept(path, pin, code="FL624", why=str(error))


def every(root: Path, owner: str = "") -> list[Kept]:
    """All pins of a project, in the order of their functions; of what is built for one target only :func:`find` knows."""
    folder = place.pins_of(root)
    suffixes = {*texts.SUFFIXES.values(), ".json"}
    found: dict[Path, Kept] = {}
    for directory, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(directory) / name
            if path.suffix not in suffixes or path.parent.parent != folder or name.startswith("."):
                continue
            text = path if path.suffix != ".json" else _text_beside(path)
            if text not in found:
                found[text] = _read(text, owner)
    return sorted(found.values(), key=lambda k: ((k.pin.unit.file, k.pin.unit.function) if k.pin else ("", ""), k.path))


def digest(file: str) -> str:
    """Of all that is pinned in the project of a file; "" where nothing is."""
    root = place.root_of(file)
    if root is None:
        return ""
    folder, found = place.pins_of(root), hashlib.sha256()
    for path in sorted(folder.glob("*/*")):
        with contextlib.suppress(OSError):
            found.update(f"{path.relative_to(folder)}\0".encode() + source_text.read_bytes(path, place.LARGEST))
    return found.hexdigest() if folder.is_dir() else ""


def _text_beside(path: Path) -> Path:
    """The kernel file that a record is of, which may be gone."""
    candidates = [path.with_suffix(suffix) for suffix in texts.SUFFIXES.values()]
    return next((c for c in candidates if c.exists()), candidates[0])


# --- changing ---------------------------------------------------------------------------------------------------------


def pin(path: Path, text: str) -> Path:
    """Pins a draft, of which ``text`` is what was verified. Returns the pin's path. Raises Refused, Unreadable and OSError."""
    draft = records.read(path.with_suffix(".json"), Draft)
    unit, verdict = draft.unit, draft.verdict
    if verdict is None or verdict.text != texts.hash_of(unit.language, text):
        raise Refused("this text was not verified: save it, or run `fuselens kernels verify` on it")
    if not verdict.agrees or verdict.verified is None:
        raise Refused(f"it is refused: {verdict.found[0].message if verdict.found else 'it does not agree'}")
    return keep(place.root_of_draft(path), unit, text, verdict.verified, draft.ours, _difference(path, text, unit))


def _difference(path: Path, text: str, unit: Unit) -> tuple[str, ...]:
    try:
        return texts.difference(place.read(ours_beside(path)), text, unit.language)
    except Unreadable:
        return ()


def ours_beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}.ours{path.suffix}")


def keep(root: Path, unit: Unit, text: str, verified: Verified, ours: str, difference: tuple[str, ...]) -> Path:
    """Writes a pin. What was verified of the same text for other targets stays."""
    path = place.pins_of(root) / f"{unit.stem}{texts.SUFFIXES[unit.language]}"
    before = _read(path).pin
    others = [v for v in before.verified if v.text == verified.text and v.target != verified.target] if before else []
    made = Pin(unit, ours, difference, tuple(sorted([*others, verified], key=lambda v: v.target)))
    about = (
        f"The kernels of {unit.title}, in {unit.file}, as its people wrote them: verified, and pinned to that program.",
        "An edit by hand makes this file step aside until it is verified again: `fuselens kernels verify`.",
    )
    place.write(path, texts.headed(unit.language, about, texts.body_of(unit.language, text)))
    records.write(path.with_suffix(".json"), made)
    return path


def unpin(path: Path) -> None:
    """Removes a pin. Raises OSError."""
    for each in (path, path.with_suffix(".json")):
        each.unlink(missing_ok=True)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()
