"""Reports of revisions, kept in the cache: what a tree's files, the compiler and the options were compiled to.

An entry goes as others of the cache do: `fuselens cache clear`, and the cache's limit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path

from ...config import Config
from ...history import slim
from ...pipeline.cache_keys import own_sources, versions
from ...record import plain, wire
from ...record.report import FileReport, Span
from ...runtime.cache import contents
from ...runtime.cache.store import Cache, key_of
from .placed import placed

_KIND = "report"
_PASSING = frozenset({"FL905", "FL906", "FL910", "FL402", "FL403"})  # another time it may go better


def found(request: wire.Request, config: Config) -> FileReport | None:
    """The report of a request about a revision, where there is one."""
    key = _key(request, config)
    data = Cache(config.cache_dir).get(_KIND, key) if key else None
    if data is not None:
        with contextlib.suppress(ValueError, TypeError, KeyError, zlib.error):
            return _read(data)
    return None


def checked(request: wire.Request, config: Config, check: Callable[[], FileReport]) -> FileReport | None:
    """The kept report, else that of ``check``; None where that needs files that are not there. The option ``stages`` names those
    whose texts are wanted; such reports are not kept, nor are those of what may go better another time."""
    revision = request.revision
    assert revision is not None
    if (had := found(request, config)) is not None or not revision.folder:
        return had
    with placed(revision):
        report = slim.relocated(slim.slim(check(), _stages(request)), revision.folder, revision.top)
    key = _key(request, config)
    if key and not any(d.code in _PASSING for d in slim.findings(report)):
        Cache(config.cache_dir).put(_KIND, key, _written(report))
    return report


def _stages(request: wire.Request) -> tuple[str, ...]:
    return tuple(request.options.get("stages") or ())


def _key(request: wire.Request, config: Config) -> str:
    named = request.revision is not None and request.revision.key and not _stages(request)
    return key_of(_parts(request, config)) if named else ""


def _parts(request: wire.Request, config: Config) -> dict[str, object]:
    revision = request.revision
    assert revision is not None
    options = {f.name: str(getattr(config, f.name)) for f in dataclasses.fields(config) if f.name not in _ELSEWHERE}
    return {
        "files": revision.key, "top": revision.top, "functions": sorted(request.functions), "options": options,
        "versions": versions(), "sources": own_sources(), "inputs": _recorded(config.cache_dir),
    }  # fmt: skip


_ELSEWHERE = frozenset(
    {"cache_dir", "cache_limit", "remote_cache", "remote_cache_secret", "guard_filter_fn", "dump", "strict"}
)


def _recorded(cache: Path) -> str:
    """Tells apart what runs were called with: a check takes its inputs from there."""
    digest = hashlib.sha256()
    with contextlib.suppress(OSError):
        for path in sorted(p for p in contents.contents(cache).entries if p.relative_to(cache).parts[0] == "inputs"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _written(report: FileReport) -> bytes:
    spans = plain.Spans()
    body = plain.to_plain(report, spans)
    return zlib.compress(json.dumps({"report": body, "spans": spans.rows}, separators=(",", ":")).encode(), 6)


def _read(data: bytes) -> FileReport:
    kept = json.loads(zlib.decompress(data))
    return plain.from_plain(FileReport, kept["report"], [Span(*row) for row in kept["spans"]])
