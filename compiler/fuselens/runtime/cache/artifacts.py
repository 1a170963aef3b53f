"""What a process used of its cache, as one piece of bytes that another machine puts into its own.

It is a zip archive of sealed entries under their names. Loading it is as good as running its code, so it comes from where programs
come from. An entry that is damaged, or whose name is none of an entry, is left out and counted.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from .contents import is_entry
from .place import KINDS
from .store import SCHEMA, Cache

_ABOUT = "fuselens.json"
_LEFT_OUT = frozenset(
    {"inputs", "live", "report"}
)  # what runs were called with, and reports, are about a machine's own files
_LARGEST = 1 << 30  # bytes of one entry


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What was saved or loaded: entries by kind ("graph", "cpp", "cubin", …), their bytes, and how many were left out because they
    are damaged, or could not be kept."""

    entries: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    rejected: int = 0


def save(cache: Cache) -> tuple[bytes, CacheInfo] | None:
    """The entries that this process read or made; None where there are none."""
    out, kinds, size = io.BytesIO(), Counter[str](), 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_ABOUT, json.dumps({"schema": SCHEMA}))
        for name in sorted(cache.place.used):
            kind, _, file = name.split(os.sep)
            key, dot, suffix = file.partition(".")
            with cache.opened(kind, key, dot + suffix) as found:
                if found is None or kind in _LEFT_OUT:
                    continue  # it was removed since
                sealed = cache.sealed(found.content)
            archive.writestr(PurePosixPath(*name.split(os.sep)).as_posix(), sealed)
            kinds[kind] += 1
            size += len(sealed)
    return (out.getvalue(), CacheInfo(dict(kinds), size)) if kinds else None


def load(cache: Cache, data: bytes) -> CacheInfo:
    """Puts the entries of :func:`save` into the cache. Raises ValueError for bytes that are none of it."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        about = json.loads(archive.read(_ABOUT))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"these bytes are no artifacts of fuselens.save_cache_artifacts: {error}") from None
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        raise ValueError(
            "these artifacts are of another version of fuselens, whose entries mean something else: make them again"
        )
    kinds, size, rejected = Counter[str](), 0, 0
    for member in archive.infolist():
        parts = member.filename.split("/")
        if member.filename == _ABOUT:
            continue
        known = (
            len(parts) == 3
            and parts[0] in KINDS
            and parts[0] not in _LEFT_OUT
            and is_entry(parts[1], parts[2], KINDS[parts[0]])
        )
        sealed = _content(archive, member) if known and member.file_size <= _LARGEST else None
        if sealed is not None and cache.take(os.path.join(*parts), sealed):
            kinds[parts[0]] += 1
            size += len(sealed)
        else:
            rejected += 1
    return CacheInfo(dict(kinds), size, rejected)


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes | None:
    try:
        return archive.read(member)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        return None
