"""What became of captured graphs, on disk: a second process does not trace, partition, lower and generate again.

The key of an entry covers what the stages read: the captured graph with its spans, the metadata of its inputs and which
of them share memory, the configuration, the state of torch, the versions of torch and Python, this compiler's own
sources, and the machine. A graph that holds anything whose meaning a name does not tell (functions of the program,
operators that others registered, modules, ragged sizes) has no key: it is compiled each time.

Where sizes are symbols, stages decide conditions on them by the example, and the frame is guarded by these. An entry is used
where deciding its conditions again leaves the symbols as they were when it was made.

An entry is what the run time needs and the report shows, as plain data (``entries.py``); the libraries of its kernels are
entries of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from .. import torch_private
from ..capture.frame.captured import Cut, GraphFacts
from ..config import Config
from ..ir.contracts.content import Content
from ..ir.contracts.signature import SavedValue, Sharing, Signature
from ..record import report
from ..runtime.cache.contents import trim
from ..runtime.cache.place import KINDS
from ..runtime.cache.store import Cache, key_of
from ..torch_private.fake_results import Layout
from .cache_keys import Key, frame_key, own_sources, sizes_key, versions, why_missing
from .entries import Form, NotStorable

if TYPE_CHECKING:
    from ..ir.contracts.source import Generated

T = TypeVar("T")
_KIND, _RESULTS, _KEYS, _SIZES, _FRAME, _VARIED = "graph", "results", "keys", ".sizes", "frame", "varied"
_STATIC, _SYMBOLIC = KINDS[_FRAME][:4], KINDS[_FRAME][4:]  # suffixes of the entries of one code object
_LIMIT = 2**20  # bytes of constants in one entry
_TOLD = 16  # keys of the graphs of one frame whose parts are kept


@dataclass(frozen=True)
class Program:
    """One graph, forward or backward, ready to be built, and what its stages told the report.

    ``written`` are the inputs that it writes by itself. It stands for its loop IR where kernels are bound and described.
    """

    name: str
    generated: Generated
    constants: dict[str, torch.Tensor]
    written: list[int]
    decisions: Sequence[report.Decision] = ()
    memory: Sequence[report.MemoryStep] = ()
    externs: Sequence[str] = ()
    structure: Sequence[report.Operation] = ()
    work: Sequence[report.Work] = ()
    stages: Sequence[report.Stage] = ()
    content: Content = dataclasses.field(default_factory=Content)

    def hint(self, size: Any) -> int:
        return size


@dataclass(frozen=True)
class Entry:
    """A captured graph after tracing and partition, and its forward program."""

    signature: Signature
    training: bool
    forward: Program
    saved: list[SavedValue] = dataclasses.field(default_factory=list)
    decisions: Sequence[report.Decision] = ()
    stages: Sequence[report.Stage] = ()


class GraphCache:
    """Entries of one captured graph, where its key has a name."""

    def __init__(self, config: Config, key: Key) -> None:
        self.cache = Cache.of(config)
        self.key = key
        self._limit = config.cache_limit

    def load(self) -> Entry | None:
        """The entry of the captured graph and its forward."""
        return self._get("forward", Entry)

    def why_missing(self) -> str:
        """Why there is no such entry."""
        return f"it has no key: {self.key.why}" if self.key.why else why_missing(self.key, self._told())

    def _told(self) -> list[dict[str, Any]]:
        """The parts of the last keys of this graph's frame, newest first."""
        try:
            found = json.loads(self.cache.get(_KEYS, self.key.frame, ".json") or b"[]")
        except ValueError:
            return []
        return [k for k in found if isinstance(k, dict)] if isinstance(found, list) else []

    def _tell(self) -> None:
        """Keeps the parts of this key for those who miss it."""
        others = [k for k in self._told() if k.get("name") != self.key.name]
        self.cache.put(_KEYS, self.key.frame, json.dumps([self.key.told, *others][:_TOLD]).encode(), ".json")

    def load_backward(self) -> Program | None:
        """The entry of the backward, which there is once it has been compiled."""
        return self._get("backward", Program)

    def store(self, phase: str, content: Entry | Program) -> None:
        """Keeps ``content``, unless something in it cannot be kept."""
        program = content.forward if isinstance(content, Entry) else content
        if not self.key.name or sum(t.numel() * t.element_size() for t in program.constants.values()) > _LIMIT:
            return
        with contextlib.suppress(NotStorable):
            self.cache.put(_KIND, self.key.name, form().written(content), f".{phase}")
            if phase == "forward":
                self._tell()
        trim(self.cache.root, self._limit)

    def store_conditions(self, env: Any, before: int) -> None:
        """Keeps the conditions on symbols that were decided after the first ``before``."""
        if not self.key.name:
            return
        with contextlib.suppress(ValueError):
            conditions = [torch_private.as_data(c) for c in torch_private.shape_guards(env)[before:]]
            found = json.dumps([conditions, torch_private.known_sizes(env)])
            self.cache.put(_KIND, self.key.name, found.encode(), _SIZES)

    def decided(self, env: Any) -> bool:
        """Decides the entry's conditions on symbols. Whether the symbols are then as they were when it was made."""
        try:
            conditions, after = json.loads(self.cache.get(_KIND, self.key.name, _SIZES) or b"")
            for condition in conditions:
                torch_private.require(env, torch_private.from_data(env, condition))
        except Exception:  # noqa: BLE001  what cannot be read, for whatever reason, is no entry
            return False
        return after == torch_private.known_sizes(env)

    def _get(self, phase: str, kind: type[T]) -> T | None:
        name = self.key.name
        data = self.cache.get(_KIND, name, f".{phase}") if name else None
        if data is None:
            return None
        content = _read(data, kind)
        if content is None:
            self.cache.discard(self.cache.path(_KIND, name, f".{phase}"))
        return content


class Frames:
    """What the cache has of frames of one code object: entries of a few ways to call it."""

    def __init__(self, cache: Cache, key: str, limit: int, on_diagnostic: Callable[[report.Diagnostic], None]) -> None:
        self._cache, self._key, self._limit, self._say = cache, key, limit, on_diagnostic

    @classmethod
    def of(
        cls, config: Config, identity: tuple[Any, ...], state: int, on_diagnostic: Callable[[report.Diagnostic], None]
    ) -> Frames | None:
        """None where something takes part in capturing that has no name."""
        key = frame_key(identity, state, config)
        return cls(Cache.of(config), key, config.cache_limit, on_diagnostic) if key else None

    def all(self, symbolic: bool) -> Iterator[dict[str, Any]]:
        """Those whose sizes are symbols, or the others."""
        for number in _SYMBOLIC if symbolic else _STATIC:
            data = self._cache.get(_FRAME, self._key, number)
            self._told()
            found = None if data is None else _read(data, dict)
            if found is not None:
                yield found
            elif data is not None:
                self._cache.discard(self._path(number))

    def add(self, data: dict[str, Any]) -> None:
        """Keeps ``data``, unless something in it is no plain data; over what was not used for longest where there are many."""
        with contextlib.suppress(NotStorable):
            content = form().written(data)
            numbers = _SYMBOLIC if data.get("symbols") is not None else _STATIC
            self._cache.put(_FRAME, self._key, content, min(numbers, key=self._used))
        self._told()
        trim(self._cache.root, self._limit)

    def _path(self, number: str) -> Path:
        return self._cache.path(_FRAME, self._key, number)

    def _used(self, number: str) -> float:
        """When an entry was used; 0 where there is none."""
        try:
            return self._path(number).stat().st_mtime
        except OSError:
            return 0.0

    def _told(self) -> None:
        for diagnostic in self._cache.drain():
            self._say(diagnostic)


class Varied:
    """What the cache has of the sizes and numbers of one code object that varied between calls: dimensions by the input's text."""

    def __init__(
        self, config: Config, identity: tuple[Any, ...], on_diagnostic: Callable[[report.Diagnostic], None]
    ) -> None:
        self._cache, self._key, self._say = Cache.of(config), sizes_key(identity), on_diagnostic

    def read(self) -> dict[str, set[int]]:
        data = self._cache.get(_VARIED, self._key, ".json")
        found = {} if data is None else _dimensions(data)
        if found is None:
            self._cache.discard(self._cache.path(_VARIED, self._key, ".json"))
        self._told()
        return found or {}

    def add(self, dimensions: dict[str, set[int]]) -> None:
        """Keeps these, too."""
        known = self.read()
        both = {text: sorted(known.get(text, set()) | found) for text, found in {**known, **dimensions}.items()}
        if any(found != sorted(known.get(text, ())) for text, found in both.items()):
            self._cache.put(_VARIED, self._key, json.dumps(both).encode(), ".json")
            self._told()

    def _told(self) -> None:
        for diagnostic in self._cache.drain():
            self._say(diagnostic)


def _dimensions(data: bytes) -> dict[str, set[int]] | None:
    """None for what is none."""
    try:
        found = json.loads(data)
        if all(type(d) is int for dims in found.values() for d in dims):
            return {text: set(dims) for text, dims in found.items()}
    except (ValueError, AttributeError, TypeError):
        pass
    return None


@functools.cache
def form() -> Form:
    from ..ir.contracts import signature, source

    mine = (Entry, Program, Content, Layout, GraphFacts, Cut)
    told = (
        report.Work, report.Decision, report.MemoryStep,
        report.Operation, report.Stage, report.Line, report.Span, report.Guard, report.Shape,
        report.Tensor, report.Diagnostic, report.Frame, report.Fix, report.Edit, report.Symbol,
    )  # fmt: skip
    traced = (
        Signature, SavedValue, Sharing, signature.Result, signature.View, signature.Output, signature.Mutation, signature.Reshape,
        signature.Leaf, signature.Base, signature.Tangent, signature.SparseGradient,
    )  # fmt: skip
    generated = (
        source.Generated, source.Source, source.KernelInfo, source.HostProgram, source.PythonOperator, source.Steps
    )  # fmt: skip
    return Form((*mine, *told, *traced, *generated))


def _read(data: bytes, kind: type[T]) -> T | None:
    """What an entry holds; None where it cannot be read, for whatever reason, or is something else."""
    try:
        content = form().read(data)
    except Exception:  # noqa: BLE001
        return None
    return content if isinstance(content, kind) else None


@contextlib.contextmanager
def capturing(
    config: Config,
    code: types.CodeType,
    on_diagnostic: Callable[[report.Diagnostic], None],
    on_new: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Inside, a frame is captured: what operators return for its fake tensors is known if it was captured before.
    ``on_new`` is called where it was not."""
    cache, key = Cache.of(config), _results_key(code)
    known: dict[Any, Any] = {}
    apart = torch_private.foreign_rules()
    data = None if apart else cache.get(_RESULTS, key)
    if data is not None:
        found = _read(data, dict)
        if found is None:
            cache.discard(cache.path(_RESULTS, key))
        known = found or {}
    for diagnostic in cache.drain():
        on_diagnostic(diagnostic)
    if not known:
        on_new()
    with torch_private.FAKE_RESULTS.followed(known) as used:
        yield
    if not apart and (data is None or used.keys() - known.keys()):  # of a frame without results, that it was captured
        with contextlib.suppress(NotStorable):
            cache.put(_RESULTS, key, form().written(used))
        for diagnostic in cache.drain():
            on_diagnostic(diagnostic)


def was_captured(config: Config, code: types.CodeType) -> bool:
    """Whether the cache knows what :func:`capturing` looks for."""
    return Cache(config.cache_dir).exists(_RESULTS, _results_key(code))


def _results_key(code: types.CodeType) -> str:
    name = [code.co_filename, code.co_qualname, code.co_firstlineno]
    return key_of({"code": name, "versions": versions(), "sources": own_sources()})
