"""Which installed distribution a file belongs to, as the folders say: no interpreter is asked."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..system import source_text

_STANDARD = re.compile(r"python(\d+\.\d+)t?")
_PROJECTS = (".git", "pyproject.toml")  # the root of a project is in no folder of installed packages
_SEPARATORS = re.compile(r"[-_.]+")


@dataclass(frozen=True, slots=True)
class Installed:
    """A file of a distribution; ``file`` is relative to the folder that the distribution is installed in."""

    name: str
    version: str
    file: str
    root: Path

    @property
    def distribution(self) -> str:
        return f"{self.name}-{self.version}"


def installed(path: str) -> Installed | None:
    """What a file belongs to; None for a file that no distribution lists, and that is not of the standard library."""
    given = Path(path)
    if not given.is_absolute():
        return None
    for root in given.parents:
        file = given.relative_to(root).as_posix()
        if root.name in ("site-packages", "dist-packages") or any(root.glob("*.dist-info")):
            owner = _owner(root, file)
            return Installed(*owner, file, root) if owner is not None else None
        if (match := _STANDARD.fullmatch(root.name)) and (root / "os.py").is_file():
            return Installed("python", match[1], file, root)
        if any((root / mark).exists() for mark in _PROJECTS):
            return None
    return None


def located(file: str) -> str | None:
    """Where a file of a distribution is installed for this interpreter."""
    return next((str(Path(p, file)) for p in sys.path if p and Path(p, file).is_file()), None)


def version_at(root: Path, name: str) -> str:
    """The version of a distribution in the folder that it is installed in; "" where it is not there."""
    if name == "python":
        match = _STANDARD.fullmatch(root.name)
        return match[1] if match else ""
    return next((version for found, version, _ in _distributions(root) if _same(found, name)), "")


def _same(one: str, other: str) -> bool:
    return _SEPARATORS.sub("-", one).lower() == _SEPARATORS.sub("-", other).lower()


def _owner(root: Path, file: str) -> tuple[str, str] | None:
    """The name and version of the distribution that lists ``file``. Those that are named like its first folder are asked first."""
    top = file.partition("/")[0].removesuffix(".py")
    found = sorted(_distributions(root), key=lambda each: not _same(each[0], top))
    return next(((name, version) for name, version, info in found if file in _files(info)), None)


def _distributions(root: Path) -> list[tuple[str, str, Path]]:
    found = []
    for info in sorted(root.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        found.append((name, version, info))
    return found


def _files(info: Path) -> frozenset[str]:
    record = info / "RECORD"
    try:
        return _listed(record, record.stat().st_mtime_ns)
    except (OSError, ValueError):
        return frozenset()


@lru_cache(maxsize=8)
def _listed(record: Path, _changed: int) -> frozenset[str]:
    text = source_text.read_bytes(record).decode("utf-8", "replace")
    return frozenset(row[0] for row in csv.reader(text.splitlines()) if row)
