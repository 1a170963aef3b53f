"""Makes an artifact: captures a function for some calls, compiles each graph, and writes down what another process needs."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..capture.frame.captured import Captured
from ..capture.frame.frame import FrameCompiler
from ..capture.frame.resuming import Retry
from ..capture.hook import _hook
from ..capture.kept import frames as kept
from ..capture.kept import graphs
from ..capture.kept.names import Nameless, Writer
from ..capture.machine import program
from ..capture.program import overlays
from ..config import Config
from ..pipeline import Recorder, compile_graph
from ..pipeline.cache_keys import facts_of
from ..pipeline.entries import NotStorable
from ..pipeline.graph_cache import Entry, form
from ..runtime import build
from ..runtime.cache.store import Cache
from ..runtime.compile_graph import unit
from . import container
from .container import refuse
from .settling import settle
from .targets import Target

_OF_GPU = ("cubin", "measured")


@dataclass(frozen=True, slots=True)
class Call:
    """A way to call the function: what an artifact is made for."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Function:
    """What is compiled: a Python function, and the arguments before those of a call, which the artifact holds."""

    function: Any
    bound: tuple[Any, ...]
    name: str
    module: torch.nn.Module | None = None

    @classmethod
    def of(cls, fn: Any) -> Function:
        """Raises ArtifactError (FL927) for what is neither a function nor a module."""
        if isinstance(fn, torch.nn.Module):
            if fn._forward_hooks or fn._forward_pre_hooks:
                raise refuse("FL927", what=type(fn).__name__, why="the module has hooks, which are not in its forward")
            forward = fn.forward
            if type(forward) is types.MethodType and type(forward.__func__) is types.FunctionType:
                return cls(forward.__func__, (forward.__self__,), type(fn).__name__, fn)
            raise refuse("FL927", what=type(fn).__name__, why="its forward is no method that is written in Python")
        if type(fn) is types.MethodType and type(fn.__func__) is types.FunctionType:
            return cls(fn.__func__, (fn.__self__,), fn.__qualname__)
        if type(fn) is not types.FunctionType:
            raise refuse(
                "FL927", what=getattr(fn, "__name__", type(fn).__name__), why="it is no function and no module"
            )
        return cls(fn, (), fn.__qualname__)

    @property
    def arity(self) -> int:
        """How many variables of its frame are arguments."""
        code = self.function.__code__
        starred = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        return code.co_argcount + code.co_kwonlyargcount + starred

    @property
    def names(self) -> tuple[str, ...]:
        return self.function.__code__.co_varnames[: self.arity]

    @property
    def held(self) -> tuple[str, ...]:
        """The arguments that the artifact holds."""
        return self.names[: len(self.bound)]

    @property
    def file(self) -> str:
        return self.function.__code__.co_filename

    def arguments(self, call: Call) -> tuple[Any, ...]:
        """Those of a frame, in the order of ``co_varnames``. Raises TypeError where the call does not fit."""
        signature = inspect.signature(self.function, follow_wrapped=False)
        given = signature.bind(*self.bound, *call.args, **call.kwargs)
        given.apply_defaults()
        return tuple(given.arguments[name] for name in self.names)


class Weights:
    """The tensors of an artifact, by name: those of a module's state have their names there."""

    def __init__(self, function: Function) -> None:
        module = function.module
        state = [] if module is None else [*module.named_parameters(), *module.named_buffers()]
        self._known = {id(tensor): name for name, tensor in state}
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def name(self, tensor: torch.Tensor) -> str:
        found = self._names.get(id(tensor))
        if found is None:
            found = self._known.get(id(tensor)) or f"constant.{sum(n.startswith('constant.') for n in self.tensors)}"
            self._names[id(tensor)], self.tensors[found] = found, tensor
        return found

    def special(self, obj: Any) -> tuple[Any, ...] | None:
        """How a tensor of the artifact is written, and an object that a library has as a global variable."""
        if issubclass(type(obj), torch.Tensor):
            return "weight", self.name(obj)
        module = getattr(sys.modules.get(type(obj).__module__), "__dict__", {})
        if type(obj) not in _NAMED and type(obj).__module__ not in ("builtins", "torch", "__main__"):
            return next((("global", type(obj).__module__, n) for n, value in module.items() if value is obj), None)
        return None


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


class _Collector(FrameCompiler):
    """Captures one frame, and keeps what was made of it as plain data."""

    keeps_data = False  # graphs in which data decides are compiled when they run

    def __init__(self, config: Config, recorder: Recorder, function: Function, weights: Weights) -> None:
        super().__init__(
            config, lambda captured: compile_graph(captured, recorder), recorder, function.function.__code__,
            overlays.of(function.function.__code__.co_filename) if config.patches else None,
        )  # fmt: skip
        self.weights, self.inside = weights, range(len(function.bound))
        self.frame: dict[str, Any] | None = None
        self.guards = _hook.Guards((), ())

    def _kept(self, *_: Any) -> None:
        return None

    def _keep(self, made: kept.Made, function: Any, code: Any, args: tuple[Any, ...], tracer: Any) -> None:
        assert made.entry is not None
        records, texts = tracer.guards.records, tracer.guards.texts
        used = _used(made.entry.code, made.entry.gather_slot)
        if made.captured is not None:
            used.update(range(len(made.captured.fakes)))
        stays = settle(made.entry.guards, records, texts, function, args, self.inside, used)
        _require_parts(made.entry.code, function.__code__, self.inside)
        write = Writer(self.weights.special)
        guards, codes = kept.written_guards(stays.guards, function, args, write)
        if codes:
            raise Nameless("a function as an argument")
        replacement = kept.written_code(code, made.entry.code, made.graph, kept.Codes(code, ()), self.resumes)
        self.guards = made.entry.guards
        self.frame = {
            "guards": guards,
            "records": stays.records,
            "texts": stays.texts,
            "settled": stays.settled,
            "code": replacement,
            "slot": made.entry.gather_slot,
            "graph": None if made.captured is None else _written(made.captured),
        }


def _written(captured: Captured) -> dict[str, Any]:
    return {
        "nodes": graphs.written(captured.module.graph),
        "facts": facts_of(captured),
        "operations": captured.operations,
        "grad_enabled": captured.grad_enabled,
        "owned": captured.owned,
        "arguments": captured.arguments,
        "restored": captured.restored,
    }


def _require_parts(replacement: types.CodeType, code: types.CodeType, inside: Sequence[int]) -> None:
    """Raises Nameless where the code that replaces a frame's needs an object that is not in the artifact. Whoever runs the frame
    as it was written, after a graph that raised, is given all arguments: in an artifact that is nobody."""
    names = {code.co_varnames[i] for i in inside}
    retrying = False
    for instruction in program(replacement).instructions:
        value = instruction.argval
        if instruction.op == "LOAD_CONST" and type(value) is Retry:
            retrying = True
        elif instruction.op == "RETURN_VALUE":
            retrying = False
        elif not retrying and (instruction.op in _OUTSIDE or (instruction.op == "LOAD_FAST" and value in names)):
            raise Nameless(f"{value}, which the function changes or returns")


def _used(replacement: types.CodeType, slot: int) -> set[int]:
    """Which of the objects that are gathered for it the code takes out of their tuple."""
    found: set[int] = set()
    instructions = program(replacement).instructions
    gathered = replacement.co_varnames[slot] if slot >= 0 else None
    for first, second, third in zip(instructions, instructions[1:], instructions[2:], strict=False):
        taken = first.op == "LOAD_FAST" and first.argval == gathered and third.op == "BINARY_SUBSCR"
        if taken and type(second.argval) is slice:  # a graph's inputs
            found.update(range(second.argval.stop))
        elif taken:
            found.add(second.argval)
    return found


_OUTSIDE = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "STORE_GLOBAL", "STORE_DEREF"})


def make(
    fn: Any, calls: Sequence[Call], to: Path, *, config: Config, training: bool, weights: bool,
    targets: Sequence[Target],
) -> str:  # fmt: skip
    """Writes the artifact and returns its digest; see :func:`fuselens.aot_compile`."""
    function = Function.of(fn)
    tensors = Weights(function)
    parts: dict[str, bytes] = {}
    frames: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []
    made: list[_hook.Guards] = []
    for call in calls:
        args = _arguments(function, call)
        if any(guards.check(function.function, args)[0] for guards in made):
            continue  # what was made for another call serves it
        data, guards = _captured(function, args, len(frames), config, training, targets, tensors, parts)
        frames.append(data)
        made.append(guards)
        told.append({
            "inputs": {name: _described(a) for name, a in zip(function.names, args, strict=False) if name not in function.held},
            "guards": [g.expression for g in data["records"]],
            "settled": [g.expression for g in data["settled"]],
            "dropped": [],
        })  # fmt: skip
    try:
        parts["frames"] = form().written({"frames": frames, "function": _stub(function)})
    except (NotStorable, Nameless) as error:
        raise refuse("FL927", what=function.name, why=f"it needs {error}, which cannot be put into a file") from None
    outside = set() if weights or function.module is None else set(function.module.state_dict())
    inside = {name: tensor for name, tensor in tensors.tensors.items() if name not in outside}
    if inside:
        parts[container.WEIGHTS] = container.saved_tensors(inside)
    imports = sorted(_modules(frames) - _ALWAYS)
    about = {
        "imports": imports, "name": function.name, "python": list(sys.version_info[:2]), "torch": torch.__version__,
        "targets": [target.as_data() for target in targets], "training": training,
        "devices": sorted({str(d) for f in frames if f["graph"] for d in f["graph"]["facts"].devices}),
        "weights": {name: _weight(t) for name, t in tensors.tensors.items()}, "calls": told,
        "options": {"mode": config.mode, "fallback_random": config.fallback_random, "fast_math": config.fast_math},
    }  # fmt: skip
    return container.write(to, about, parts)


def _arguments(function: Function, call: Call) -> tuple[Any, ...]:
    try:
        return function.arguments(call)
    except TypeError as error:
        raise refuse("FL927", what=function.name, why=f"it cannot be called with these inputs: {error}") from None


def _captured(
    function: Function, args: tuple[Any, ...], number: int, config: Config, training: bool, targets: Sequence[Target],
    tensors: Weights, parts: dict[str, bytes],
) -> tuple[dict[str, Any], _hook.Guards]:  # fmt: skip
    """What is kept of one frame, and its guards. Its programs and their libraries become parts, for each target and
    instruction set."""
    found: tuple[dict[str, Any], _hook.Guards] | None = None
    for target, isa in [(t, isa) for t in targets for isa in t.isas]:
        with _apart(config, isa) as own, _gradients(training):
            recorder = Recorder(function.name, function.file, None, own, texts=False, backwards=training)
            collector = _Collector(own, recorder, function, tensors)
            try:
                entry = collector(function.function, function.function.__code__, args, ())
            except Nameless as error:
                why = f"it needs {error}, which cannot be put into a file"
                raise refuse("FL927", what=function.name, why=why) from None
            if entry is None or collector.frame is None:
                why = "; ".join(d.message for d in recorder.report.diagnostics) or "its frame is not compiled"
                raise refuse("FL927", what=function.name, why=why)
            if collector.frame["graph"] is not None:
                _programs(function, recorder, own, target, f"graphs/{number}.{target.place}.{isa}", parts)
            found = found or (collector.frame, collector.guards)
    assert found is not None
    return found


@contextlib.contextmanager
def _apart(config: Config, isa: str) -> Iterator[Config]:
    """The configuration with a cache of its own, in which all is that this makes."""
    with tempfile.TemporaryDirectory(prefix="fuselens-aot-") as folder:
        yield dataclasses.replace(
            config,
            cache_dir=Path(folder) / "cache",
            remote_cache="",
            cpu_isa=isa,
            fullgraph=True,
            strict=True,
            live=False,
            pins=False,  # the file has our kernels
            regions=False,  # one graph, one program
        )


def _gradients(training: bool) -> contextlib.AbstractContextManager[Any]:
    return torch.enable_grad() if training else torch.no_grad()


def _programs(
    function: Function, recorder: Recorder, config: Config, target: Target, name: str, parts: dict[str, bytes]
) -> None:
    """The programs of a graph that was just compiled, and the libraries of their kernels, become parts."""
    cache = Cache(config.cache_dir)
    entries = sorted((cache.root / "graph").glob("*/*.forward"))
    if len(entries) != 1:
        why = "; ".join(d.reason for d in recorder.report.graphs[0].decisions if d.code.startswith(("FL3", "FL4")))
        said = "; ".join(d.message for d in recorder.report.diagnostics)
        raise refuse("FL927", what=function.name, why=said or why or "its graph is not compiled to kernels")
    for phase in ("forward", "backward"):
        content = cache.get("graph", entries[0].stem, f".{phase}")
        if content is None:
            continue
        parts[f"{name}.{phase}"] = content
        read = form().read(content)
        generated = (read.forward if isinstance(read, Entry) else read).generated
        if generated.cpp is not None:
            text, flags = unit(generated.cpp, generated.isa_flags, config)
            parts[f"{name}.{phase}.library"] = _library(function, text, flags, config, target, cache)
        elif target.triple and generated.triton is not None:
            raise refuse(
                "FL927", what=function.name, why="targets= are for kernels of a CPU, and it has some for a GPU"
            )
    for kind in _OF_GPU:
        for path in (cache.root / kind).glob("*/*"):
            parts[f"cache/{path.relative_to(cache.root).as_posix()}"] = path.read_bytes()


def _library(
    function: Function, text: str, flags: tuple[str, ...], config: Config, target: Target, cache: Cache
) -> bytes:
    if not target.triple:
        return build.content(text, flags, config, cache)
    try:
        return build.content_elsewhere(text, flags, config, target.triple)
    except build.NoCompiler as error:
        why = f"libraries for {target.place} need a compiler: {error} (pip install 'fuselens[compiler]')"
        raise refuse("FL927", what=function.name, why=why) from None
    except build.BuildFailed as error:
        why = f"its code cannot be built for {target.place}: {error}"
        raise refuse("FL927", what=function.name, why=why) from error


_ALWAYS = frozenset({"builtins", "torch", "types", "collections", "sys"})


def _modules(value: Any) -> set[str]:
    """The modules in which a reader of plain data looks for objects."""
    if isinstance(value, dict):
        return set().union(*map(_modules, value.values()))
    if type(value) is list:
        return set().union(*map(_modules, value))
    if type(value) is not tuple:
        return set()
    if len(value) >= 2 and value[0] in ("class", "name", "module", "namespace", "global") and type(value[1]) is str:
        return {value[1]}
    return set().union(*map(_modules, value))


def _stub(function: Function) -> dict[str, Any]:
    """What tells how the function is called."""
    code, write = function.function.__code__, Writer()
    keywords = function.function.__kwdefaults__ or {}
    return {
        "names": list(code.co_varnames[: function.arity]),
        "counts": [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount],
        "starred": [bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS)],
        "defaults": write(function.function.__defaults__ or ()),
        "keywords": [(name, write(value)) for name, value in keywords.items()],
        "free": len(code.co_freevars),
        "held": len(function.bound),
        "file": code.co_filename,
        "line": code.co_firstlineno,
    }


def _weight(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype), "shape": list(tensor.shape), "parameter": isinstance(tensor, torch.nn.Parameter),
        "requires_grad": tensor.requires_grad,
    }  # fmt: skip


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        grad = ", requires grad" if value.requires_grad else ""
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}{grad}"
    return repr(value)[:200] if type(value) in (int, float, bool, str, type(None)) else f"a {type(value).__qualname__}"
