"""A patch file: what is known of it, as lines ``Name: value``, then the difference to the installed file.

Everything before the difference is skipped by ``git apply`` and ``patch``, so the file can be sent to the library's people as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

_ABOUT = (
    "A fix of a library, which Fuselens verified. Compiled functions of this project use it.",
    "The installed file stays as it is, and eager calls run that.",
    "Upstream, the difference below can be applied as it is: git apply, or patch -p1.",
)
_SINGLE = {
    "Distribution": "distribution",
    "Version": "version",
    "File": "file",
    "Original": "original",
    "Difference": "digest",
}
_SEVERAL = {"Removes": "removes", "Verified": "verified", "Function": "functions"}


class NotAPatch(Exception):
    """A text is no patch of ours; the message says why."""


@dataclass(frozen=True, slots=True)
class Patch:
    """``original`` is the SHA-256 of the installed file, ``functions`` are those that it was verified with: ``model.py::score``,
    relative to the project's root."""

    distribution: str
    version: str
    file: str  # of the distribution, relative to where that is installed
    original: str
    difference: str
    removes: tuple[str, ...] = ()
    verified: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    digest: str = ""  # of the difference that was verified

    @property
    def name(self) -> str:
        """Where it is kept in its folder: ``timm-1.0.31/timm/layers/norm.py.patch``."""
        return f"{self.distribution}-{self.version}/{self.file}.patch"

    @property
    def is_as_verified(self) -> bool:
        return self.digest == hash_of(self.difference)


def hash_of(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def written(patch: Patch) -> str:
    """The text of a patch file."""
    lines = [*_ABOUT, ""]
    lines += [f"{name}: {getattr(patch, attribute)}" for name, attribute in _SINGLE.items()]
    lines += [f"{name}: {value}" for name, attribute in _SEVERAL.items() for value in getattr(patch, attribute)]
    return "\n".join([*lines, ""]) + patch.difference


def read(text: str) -> Patch:
    """Raises NotAPatch."""
    head, difference = _parts(text)
    found: dict[str, list[str]] = {}
    for name, value in head:
        found.setdefault(name, []).append(value)
    missing = [name for name in _SINGLE if not found.get(name)]
    if missing:
        raise NotAPatch(f"it has no line `{missing[0]}:`")
    single = {attribute: found[name][0] for name, attribute in _SINGLE.items()}
    several = {attribute: tuple(found.get(name, ())) for name, attribute in _SEVERAL.items()}
    patch = Patch(**single, **several, difference=difference)  # type: ignore[arg-type]
    parts = patch.file.split("/")
    if patch.file.startswith("/") or ".." in parts or "" in parts or not patch.file.endswith(".py"):
        raise NotAPatch(f"`{patch.file}` is no file of a distribution")
    return patch


def _parts(text: str) -> tuple[Iterator[tuple[str, str]], str]:
    lines = text.split("\n")
    at = next((k for k, line in enumerate(lines) if line.startswith("--- ")), None)
    if at is None:
        raise NotAPatch("it has no difference")
    head = (line.partition(": ") for line in lines[:at])
    return ((name, value) for name, sign, value in head if sign), "\n".join(lines[at:])
