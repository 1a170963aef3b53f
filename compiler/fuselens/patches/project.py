"""The patches of a project: found, judged beside the installed files, kept and removed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..pins import place
from ..pins.place import FOLDER, Unreadable
from ..system import source_text
from . import differences, distributions, records
from .differences import DoesNotApply
from .records import NotAPatch, Patch

PATCHES, SUFFIX = "patches", ".patch"


class Refused(Exception):
    """A patch cannot be kept; the message says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A patch file of a project. ``code`` and ``why`` say why it is not used, where it is not."""

    path: Path
    patch: Patch | None = None
    code: str = ""
    why: str = ""

    @property
    def usable(self) -> bool:
        return not self.code

    def shown(self, root: Path) -> str:
        return self.path.relative_to(root).as_posix()

    def aside(self, code: str, why: str) -> Kept:
        return dataclasses.replace(self, code=code, why=why)


@dataclass(frozen=True, slots=True)
class Texts:
    """What is installed, and what a patch makes of it."""

    path: str
    before: str
    after: str


def patches_of(root: Path) -> Path:
    return root / FOLDER / PATCHES


def is_kept(path: str) -> bool:
    parts = Path(path).parts
    return path.endswith(SUFFIX) and any(parts[k : k + 2] == (FOLDER, PATCHES) for k in range(len(parts) - 2))


def root_of_patch(path: Path) -> Path:
    """The project's root."""
    return next(
        folder.parent.parent for folder in path.parents if folder.name == PATCHES and folder.parent.name == FOLDER
    )


def every(root: Path, owner: str = "") -> list[Kept]:
    """All patches of a project, judged by themselves. ``owner`` is a file of the project, whose owner may have written them."""
    found = []
    for directory, _, names in os.walk(patches_of(root)):
        paths = (Path(directory) / name for name in names if name.endswith(SUFFIX))
        found += [_read(path, owner, root) for path in paths]
    return sorted(found, key=lambda kept: kept.path)


def _read(path: Path, owner: str, root: Path) -> Kept:
    kept = Kept(path)
    try:
        patch = records.read(place.read(path, owner))
    except Unreadable as error:
        return kept.aside("FL643", str(error))
    except NotAPatch as error:
        return kept.aside("FL643", f"{path.name} is no patch: {error}")
    kept = Kept(path, patch)
    if path != patches_of(root) / patch.name:
        return kept.aside("FL643", f"it is of {patch.name}, and has another name")
    if not patch.is_as_verified:
        return kept.aside("FL642", "its difference is not the one that was verified")
    return kept


def beside(kept: Kept, path: str) -> tuple[Kept, Texts | None]:
    """A patch judged beside the installed file at ``path``, and both texts where it can be used."""
    patch = kept.patch
    if patch is None or kept.code:
        return kept, None
    root = Path(path[: -len(patch.file) - 1])
    version = distributions.version_at(root, patch.distribution)
    if version != patch.version:
        there = f"{patch.distribution} {version}" if version else "another distribution"
        return kept.aside("FL641", f"{there} is installed, and it is of {patch.version}"), None
    try:
        data = source_text.read_bytes(path)
        before = source_text.decode(data)
    except (OSError, ValueError, SyntaxError, LookupError) as error:
        return kept.aside("FL643", f"{path} cannot be read: {error}"), None
    if records.hash_of(data) != patch.original:
        return kept.aside("FL641", f"{patch.file} is another text than the one that it was made for"), None
    try:
        return kept, Texts(path, before, differences.applied(before, patch.difference))
    except DoesNotApply as error:
        return kept.aside("FL643", f"it does not apply: {error}"), None


def of_file(found: Sequence[Kept], path: str) -> Kept | None:
    """The patch of an installed file, of its distribution's version where several versions have one."""
    posix = Path(path).as_posix()
    matching = [k for k in found if k.patch is not None and posix.endswith(f"/{k.patch.file}")]
    fitting = [k for k in matching if k.patch and _version(posix, k.patch) == k.patch.version]
    return next(iter(fitting or matching), None)


def _version(path: str, patch: Patch) -> str:
    return distributions.version_at(Path(path[: -len(patch.file) - 1]), patch.distribution)


def made(
    path: str, after: str, removes: Sequence[str] = (), verified: Sequence[str] = (), functions: Sequence[str] = ()
) -> Patch:
    """The patch that makes ``after`` of an installed file. Raises Refused and OSError."""
    found = distributions.installed(path)
    if found is None:
        raise Refused(f"{path} is no file of an installed distribution")
    data = source_text.read_bytes(path)
    difference = differences.unified(source_text.decode(data), after, found.file)
    return Patch(
        found.name, found.version, found.file, records.hash_of(data), difference, tuple(removes), tuple(verified),
        tuple(functions), records.hash_of(difference),
    )  # fmt: skip


def keep(root: Path, path: str, patch: Patch) -> Path:
    """Writes a patch of the installed file at ``path``, with what the project has for that file already. Raises Refused and OSError."""
    target = patches_of(root) / patch.name
    try:
        before = source_text.decode(source_text.read_bytes(path))
        if records.hash_of(source_text.read_bytes(path)) != patch.original:
            raise Refused(f"{path} has changed since the fix was verified: check again")
        after = differences.applied(before, patch.difference)
    except DoesNotApply as error:
        raise Refused(f"the fix does not apply to {path}: {error}") from None
    had = _read(target, "", root) if target.exists() else None
    if had is not None and had.patch is not None and had.patch.original == patch.original and had.usable:
        both = differences.merged(before, differences.applied(before, had.patch.difference), after)
        if both is None:
            raise Refused(f"{had.shown(root)} changes the same lines: remove that one first")
        difference = differences.unified(before, both, patch.file)
        patch = dataclasses.replace(
            patch, difference=difference, digest=records.hash_of(difference),
            **{name: tuple(dict.fromkeys((*getattr(had.patch, name), *getattr(patch, name))))
               for name in ("removes", "verified", "functions")},
        )  # fmt: skip
    place.write(target, records.written(patch))
    return target


def rewrite(path: Path, patch: Patch) -> None:
    """Writes a patch in the place of what is there. Raises OSError."""
    place.write(path, records.written(patch))


def remove(path: Path) -> None:
    """Removes a patch, and folders that are empty then. Raises OSError."""
    path.unlink()
    for folder in path.parents:
        if folder.name == PATCHES or any(folder.iterdir()):
            break
        folder.rmdir()
