"""``fuselens cache``: what is kept of earlier compilations, and what becomes of it."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .. import config
from ..record import views
from ..runtime.cache import contents as cache_contents
from ..runtime.cache import place as cache_place
from ..system import console
from .compiled import compiled
from .targets import UsageError, targets

if TYPE_CHECKING:
    from ..runtime.cache.contents import Contents, Entry

_ABOUT = {
    "graph": "what became of captured graphs",
    "frame": "captured frames: guards, code and graphs",
    "varied": "which sizes varied in earlier runs",
    "results": "what operators return for fake tensors",
    "keys": "what the last graphs of each frame were made for",
    "cpp": "libraries of C++ kernels",
    "cubin": "kernels for GPUs",
    "measured": "measured times",
    "inputs": "what recorded runs called functions with",
    "report": "reports of revisions",
}
KINDS = tuple(_ABOUT)
_DAY = 86400


def show(arguments: argparse.Namespace) -> int:
    """Where the cache is, and what is in it, by kind."""
    with _cache() as place:
        found = cache_contents.contents(place) if place.is_dir() else cache_contents.Contents()
        console.say(f"{place}: {_counted(found)}")
        sizes, counts = Counter[str](), Counter[str]()
        for path, size in found.entries.items():
            kind = path.relative_to(place).parts[0]
            sizes[kind] += size
            counts[kind] += 1
        for kind, about in _ABOUT.items():
            if counts[kind]:
                console.say(f"  {kind:<9} {counts[kind]:>6} files  {views.bytes_text(sizes[kind]):>10}  {about}")
        limit = config.from_environment().cache_limit
        if limit:
            console.say(f"  limit     {views.bytes_text(limit)} (FUSELENS_CACHE_LIMIT)")
        for path in found.others:
            console.say(f"  not an entry: {path}")
    return 0


def list_entries(arguments: argparse.Namespace) -> int:
    with _cache() as place:
        now = time.time()
        for entry in cache_contents.entries(place) if place.is_dir() else ():
            if arguments.kind in (None, entry.kind):
                console.say(
                    f"{entry.kind:<9} {views.bytes_text(entry.bytes):>10}  {_ago(now - entry.used):>9}  {entry.path}"
                )
    return 0


def _ago(seconds: float) -> str:
    for unit, size in (("d", _DAY), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def why(arguments: argparse.Namespace) -> int:
    """Of each graph of functions: whether the cache had it, as a check compiles it."""
    for file in compiled(list(targets(arguments.target)), arguments):
        for found in file.diagnostics:
            console.say(views.diagnostic_text(found))
        for report in file.functions:
            if not report.graphs:
                console.say(f"{report.function}: no graph")
            for graph in report.graphs:
                kernels = (
                    f"; {len(graph.kernels)} kernels {'found' if graph.cached else 'built'}" if graph.kernels else ""
                )
                state = graph.cache if graph.cache in ("found", "") else f"not found: {graph.cache}"
                console.say(f"{report.function}: graph {graph.id} {graph.frame}: {state or 'not asked for'}{kernels}")
    return 0


def prune(arguments: argparse.Namespace) -> int:
    if arguments.to is None and arguments.older_than is None:
        raise UsageError("prune needs --to SIZE, --older-than DAYS, or both")
    with _cache(ours=True) as place:
        before = None if arguments.older_than is None else time.time() - arguments.older_than * _DAY
        removed = cache_contents.prune(place, to=arguments.to, before=before) if place.is_dir() else []
        left = cache_contents.contents(place) if place.is_dir() else cache_contents.Contents()
        console.say(f"{place}: deleted {_listed(removed)}; {_counted(left)} left")
    return 0


def _listed(entries: list[Entry]) -> str:
    return f"{len(entries)} files, {views.bytes_text(sum(e.bytes for e in entries))}"


def verify(arguments: argparse.Namespace) -> int:
    """Status 1 where something was damaged."""
    from ..runtime.cache.store import Cache

    with _cache(ours=True) as place:
        cache = Cache(place, fixed=True)
        found = cache_contents.contents(place) if place.is_dir() else cache_contents.Contents()
        for path in found.entries:
            kind = path.relative_to(place).parts[0]
            key, dot, suffix = path.name.partition(".")
            cache.get(kind, key, dot + suffix)
        damaged = cache.drain()
        for diagnostic in damaged:
            console.say(views.diagnostic_text(diagnostic))
        console.say(f"{place}: {_counted(found)}; {len(damaged)} damaged{' and removed' if damaged else ''}")
    return int(bool(damaged))


def clear(arguments: argparse.Namespace) -> int:
    with _cache(ours=True) as place:
        if not place.is_dir():
            console.say(f"{place}: nothing to delete")
            return 0
        found = cache_contents.clear(place)
        console.say(f"{place}: deleted {_counted(found)}")
        for path in found.others:
            console.say(f"  left: {path}")
    return 0


@contextmanager
def _cache(*, ours: bool = False) -> Iterator[Path]:
    """The folder of the cache. Raises UsageError where it cannot be trusted or read, and where it is not known to be ``ours``
    but something in it is to be deleted."""
    place = config.from_environment().cache_dir
    if why := cache_place.objection(place):
        raise UsageError(
            f"{place} is not used as a cache, and nothing in it was deleted: {why}. Make it your own and writable by "
            "nobody else, or name another folder with FUSELENS_CACHE_DIR (see FL916)"
        )
    if ours and place.is_dir() and not cache_place.has_tag(place):
        raise UsageError(
            f"nothing in {place} was deleted: it has no {cache_place.TAG} of ours, so it is not known to be a cache. "
            f"If FUSELENS_CACHE_DIR names the wrong folder, correct it. If it is a cache, delete the folders "
            f"{', '.join(KINDS[:-1])} and {KINDS[-1]} in it yourself"
        )
    try:
        yield place
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"{place}: {cache_place.reason(error, place)}") from error


def _counted(found: Contents) -> str:
    return f"{len(found.entries)} files, {views.bytes_text(found.bytes)}"
