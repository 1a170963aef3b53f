"""What became of captured graphs, on disk: a second process does not trace, partition, lower and generate again.

The key of an entry covers what the stages read: the captured graph with its spans, the metadata of its inputs and which
of them share memory, the configuration, the state of torch, the versions of torch and Python, this compiler's own
sources, and the machine. A graph that holds anything whose meaning a name does not tell (functions of the program,
operators that others registered, modules, symbolic sizes) has no key: it is compiled each time.

An entry is what the run time needs and the report shows, as plain data (``entries.py``); the libraries of its kernels are
entries of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import operator
import os
import platform
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import fx

from .. import torch_private
from ..config import Config, cache_key
from ..ir.contracts.signature import SavedValue, Sharing, Signature
from ..record import report
from ..runtime.cache.store import Cache, key_of
from ..runtime.measure import machine
from ..torch_private.fake_results import Layout
from .entries import Form, NotStorable

if TYPE_CHECKING:
    from ..capture.frame.frame import Captured
    from ..ir.contracts.source import Generated

T = TypeVar("T")
_KIND, _RESULTS = "graph", "results"
_LIMIT = 2**20  # bytes of constants in one entry
_PLAIN = frozenset({
    int, float, bool, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip
_SEQUENCES = (tuple, list, torch.Size)


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
    stages: Sequence[report.Stage] = ()

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
    """Entries of one captured graph. ``key`` is None where it has none."""

    def __init__(self, config: Config, key: str | None) -> None:
        self.cache = Cache(config.cache_dir)
        self.key = key

    def load(self) -> Entry | None:
        """The entry of the captured graph and its forward."""
        return self._get("forward", Entry)

    def load_backward(self) -> Program | None:
        """The entry of the backward, which there is once it has been compiled."""
        return self._get("backward", Program)

    def store(self, phase: str, content: Entry | Program) -> None:
        """Keeps ``content``, unless something in it cannot be kept."""
        program = content.forward if isinstance(content, Entry) else content
        if self.key is None or sum(t.numel() * t.element_size() for t in program.constants.values()) > _LIMIT:
            return
        with contextlib.suppress(NotStorable):
            self.cache.put(_KIND, self.key, _form().written(content), f".{phase}")

    def _get(self, phase: str, kind: type[T]) -> T | None:
        data = None if self.key is None else self.cache.get(_KIND, self.key, f".{phase}")
        if data is None or self.key is None:
            return None
        content = _read(data, kind)
        if content is None:
            self.cache.discard(self.cache.path(_KIND, self.key, f".{phase}"))
        return content


@functools.cache
def _form() -> Form:
    from ..ir.contracts import signature, source

    mine = (Entry, Program, Layout)
    told = (report.Decision, report.MemoryStep, report.Operation, report.Stage, report.Line, report.Span)
    traced = (
        Signature, SavedValue, Sharing, signature.Result, signature.View, signature.Output, signature.Mutation, signature.Reshape,
        signature.Leaf, signature.Base, signature.Tangent,
    )  # fmt: skip
    generated = (
        source.Generated, source.Source, source.KernelInfo, source.HostProgram, source.PythonOperator, source.Steps
    )  # fmt: skip
    return Form((*mine, *told, *traced, *generated))


def _read(data: bytes, kind: type[T]) -> T | None:
    """What an entry holds; None where it cannot be read, for whatever reason, or is something else."""
    try:
        content = _form().read(data)
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
    cache, key = Cache(config.cache_dir), _results_key(code)
    known: dict[Any, Any] = {}
    apart = torch_private.foreign_rules()
    if not apart and (data := cache.get(_RESULTS, key)) is not None:
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
    if not apart and used.keys() - known.keys():
        with contextlib.suppress(NotStorable):
            cache.put(_RESULTS, key, _form().written(used))
        for diagnostic in cache.drain():
            on_diagnostic(diagnostic)


def was_captured(config: Config, code: types.CodeType) -> bool:
    """Whether the cache knows what :func:`capturing` looks for."""
    return Cache(config.cache_dir).exists(_RESULTS, _results_key(code))


def _results_key(code: types.CodeType) -> str:
    name = [code.co_filename, code.co_qualname, code.co_firstlineno]
    return key_of({"code": name, "versions": _versions(), "sources": _own_sources()})


class _Nameless(Exception):
    """The graph holds something that has no name which means the same in another process."""


def key_for(
    captured: Captured, config: Config, shared: Sharing, *, graph: int, texts: bool, host: tuple[Any, ...]
) -> str | None:  # fmt: skip
    """The key of a captured graph whose inputs share memory as ``shared`` says; None where it has none.

    ``host`` is what code is generated for, and how it is called: the processor, or the cards.
    """
    if captured.sizes is not None:
        return None
    state = torch_private.tracing_state()
    if state is None:
        return None
    try:
        return key_of({
            "graph": list(_nodes(captured.module.graph)),
            "inputs": _inputs(captured.fakes),
            "frame": [captured.frame, graph, _span(captured.span), captured.grad_enabled],
            "sharing": repr(shared),
            "config": cache_key(config),
            "texts": texts,
            "state": state,
            "versions": _versions(),
            "sources": _own_sources(),
            "machine": [platform.machine(), platform.system(), *host, machine()],
        })  # fmt: skip
    except _Nameless:
        return None


def _versions() -> list[str]:
    return [torch.__version__, str(torch.version.git_version), sys.version]


@functools.cache
def _own_sources() -> str:
    """A digest of this compiler."""
    digest = hashlib.sha256()
    root = os.path.dirname(os.path.dirname(__file__))
    for folder, folders, files in os.walk(root):  # with pathlib it takes twice as long
        folders.sort()
        for path in sorted(os.path.join(folder, name) for name in files if name.endswith(".py")):
            with open(path, "rb", buffering=0) as file:
                digest.update(b"%s\0%s\0" % (path[len(root) :].encode(), file.read()))
    return digest.hexdigest()


def _inputs(fakes: Sequence[Any]) -> list[Any]:
    """The inputs' metadata. Inputs that are one object say where it came first."""
    first: dict[int, int] = {}
    return [[first.setdefault(id(f), i), _value(f)] for i, f in enumerate(fakes)]


def _value(value: Any) -> Any:
    """Metadata of a tensor of integer sizes, or a number."""
    if not isinstance(value, torch.Tensor):
        return _plain(value)
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        raise _Nameless
    return [
        type(value).__qualname__, str(value.dtype), str(value.device), *map(int, value.shape), "strides",
        *map(int, value.stride()), int(value.storage_offset()), value.requires_grad, value.is_leaf, value.is_inference(),
    ]  # fmt: skip


def _nodes(graph: fx.Graph) -> Iterator[list[Any]]:
    numbers: dict[fx.Node, int] = {}
    for i, node in enumerate(graph.nodes):
        numbers[node] = i
        written = [node.op, node.name, _span(node.meta.get("span")), _frames(node.meta.get("stack"))]
        if node.op == "placeholder":
            written += [node.meta.get("source"), _value(node.meta.get("val"))]
        else:
            written += [_target(node), _argument(node.args, numbers), _argument(node.kwargs, numbers)]
        yield written


def _target(node: fx.Node) -> str:
    target = node.target
    if node.op == "output":
        return ""
    if node.op == "call_method" and isinstance(target, str):
        method = getattr(torch.Tensor, target, None)
        if isinstance(method, (types.MethodDescriptorType, types.WrapperDescriptorType)) or _is_torchs(method):
            return target
    if node.op == "call_function":
        if isinstance(target, torch_private.Operation):
            return f"numpy {target.kind} {target.name}"
        if torch_private.is_torch_operator(target):
            return f"operator {target}"
        name = getattr(target, "__name__", "")
        module = getattr(target, "__module__", None) or ""
        if isinstance(target, types.BuiltinFunctionType):
            if target in (getattr(m, name, None) for m in (torch, operator, math, torch_private.VARIABLE_FUNCTIONS)):
                return f"builtin {name}"
            if module.startswith("torch.") and getattr(sys.modules.get(module), name, None) is target:
                return f"{module}.{name}"
        elif isinstance(target, types.FunctionType) and _is_torchs(target):
            return f"{module}.{target.__qualname__}"
    raise _Nameless


def _is_torchs(function: Any) -> bool:
    """Whether a Python function is what its module, one of torch's or ours, has under its name."""
    module = getattr(function, "__module__", None) or ""
    if not module.startswith(("torch.", "fuselens.")) and module != "torch":
        return False
    found: Any = sys.modules.get(module)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _argument(value: Any, numbers: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return ["node", numbers[value]]
    if isinstance(value, _SEQUENCES):
        return [type(value).__name__, *(_argument(v, numbers) for v in value)]
    if isinstance(value, dict):
        return ["dict", *([_argument(k, numbers), _argument(v, numbers)] for k, v in value.items())]
    if isinstance(value, slice):
        return ["slice", *(_argument(v, numbers) for v in (value.start, value.stop, value.step))]
    return _plain(value)


def _plain(value: Any) -> list[str]:
    if type(value) not in _PLAIN:
        raise _Nameless
    return [type(value).__name__, repr(value)]


def _span(span: Any) -> Any:
    if span is None:
        return None
    if type(span) is not report.Span:
        raise _Nameless
    return [span.file, span.line, span.column, span.end_line, span.end_column]


def _frames(stack: Any) -> Any:
    return None if not stack else [[f.function, _span(f.span)] for f in stack]
