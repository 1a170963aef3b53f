"""The library's interface: ``fuselens.compile`` and what goes with it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch

from . import diagnostics, torch_private
from .capture import _hook
from .capture import explore as explore_state
from .capture.breaks import GraphBreakError
from .capture.frame import Captured, FrameCompiler
from .config import MODES, Config, from_environment, with_options
from .pipeline import Recorder, compile_graph
from .report import Frame, Report, RunResult, Span

__all__ = [
    "Annotation", "CompiledModule", "GraphBreakError", "compare", "compile", "disable", "example", "explain", "graph_break",
    "inspect", "is_compiling", "reset", "torch_backend",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
Examples = tuple[Any, ...] | Callable[[], tuple[Any, ...]] | None
BACKENDS = ("fuselens", "aot_eager", "eager")


@dataclass(frozen=True, slots=True)
class Annotation:
    """What ``compile`` recorded on its result, as ``__fuselens__``: the original, its configuration, example inputs."""

    target: Any
    config: Config
    example_inputs: Any = None
    recorder: Recorder | None = None


@overload
def compile(  # noqa: A001
    fn: F, *, fullgraph: bool = ..., dynamic: bool | None = ..., backend: str | Callable[..., Any] = ...,
    mode: str | None = ..., options: Mapping[str, Any] | None = ..., disable: bool = ..., example_inputs: Examples = ...,
) -> F: ...  # fmt: skip
@overload
def compile(  # noqa: A001
    fn: None = None, *, fullgraph: bool = ..., dynamic: bool | None = ..., backend: str | Callable[..., Any] = ...,
    mode: str | None = ..., options: Mapping[str, Any] | None = ..., disable: bool = ..., example_inputs: Examples = ...,
) -> Callable[[F], F]: ...  # fmt: skip
def compile(  # noqa: A001 - torch's own name for it
    fn: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "fuselens",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    example_inputs: Examples = None,
) -> Any:
    """Compiles a function or module; also a decorator, with or without arguments. Mirrors ``torch.compile``.

    Args:
        fn: a Python function, a method, or an ``nn.Module``.
        fullgraph: raise :class:`GraphBreakError` at a graph break instead of continuing in plain Python.
        dynamic: whether sizes are symbolic: True, False, or None to decide from use.
        backend: "fuselens", "aot_eager", "eager" (for bisecting), or any ``(gm, example_inputs) -> callable``.
        mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs".
        options: fields of :class:`fuselens.config.Config` by name, e.g. ``{"target": "cpu"}``.
        disable: return ``fn`` unchanged.
        example_inputs: a tuple of positional arguments, or a callable that returns one. The editor compiles with them;
            calls do not need them.

    Returns a callable with ``fn``'s results, side effects and exceptions; a module for a module.
    Raises TypeError for what is not callable, ValueError for unknown options, modes and backends.
    """
    if fn is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable,
            example_inputs=example_inputs,
        )  # fmt: skip
    if not callable(fn):
        raise TypeError(f"fuselens.compile expects a function or module, got {type(fn).__name__}")
    if isinstance(fn, type):
        raise TypeError(
            f"fuselens.compile expects a function or module, got the class {fn.__name__}: compile an instance"
        )
    if mode is not None and mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; modes are {', '.join(MODES)}")
    if mode is not None and options:
        raise ValueError("mode and options cannot be given together")
    if isinstance(backend, str) and backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; backends are {', '.join(BACKENDS)}, or a callable")
    if disable:
        return fn
    changes: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": dynamic}
    if mode is not None:
        changes["mode"] = mode
    if isinstance(backend, str):
        changes["backend"] = backend
    config = with_options(from_environment(**changes), options)
    return wrap(fn, config, example_inputs, None if isinstance(backend, str) else backend)


def wrap(
    fn: Any, config: Config, example_inputs: Examples = None, backend: Callable[..., Any] | None = None,
    recorder: Recorder | None = None, owner: Any = None, axes: Mapping[str, Mapping[int, str]] | None = None,
) -> Any:  # fmt: skip
    """The compiled counterpart of ``fn`` under ``config``. ``owner`` separates compilations that must not be shared."""
    fn = _uncompiled(fn)
    if recorder is None:
        recorder = Recorder(getattr(fn, "__qualname__", type(fn).__name__), _file_of(fn), None, config, texts=False)
    compiler = FrameCompiler(config, _graph_compiler(config, recorder, backend), recorder, root_code(fn))
    if axes and compiler.root is not None:
        compiler.variations[compiler.root].axes = {name: dict(dims) for name, dims in axes.items()}
    annotation = Annotation(fn, config, example_inputs, recorder)
    target = fn
    if isinstance(fn, (types.BuiltinFunctionType, types.BuiltinMethodType)):
        target = _python_frame(fn)
        compiler.root = target.__code__
    region = _hook.Region(
        target, compiler, owner if owner is not None else compiler if backend is not None else _owner(config)
    )
    if isinstance(fn, torch.nn.Module):
        return _compiled_module(fn, region, annotation)
    functools.update_wrapper(region, fn, updated=())
    region.__dict__["__fuselens__"] = annotation
    example = getattr(fn, "__fuselens_example__", None)
    if example is not None:
        region.__dict__["__fuselens_example__"] = example
    return region


def _uncompiled(fn: Any) -> Any:
    """The original of a compiled function, method or module. The annotation alone does not tell: functools.wraps copies
    it to wrappers, and bound methods show that of their function."""
    if isinstance(fn, types.MethodType):
        function = _uncompiled(fn.__func__)
        return fn if function is fn.__func__ else types.MethodType(function, fn.__self__)
    if isinstance(fn, (_hook.Region, CompiledModule)):
        inner = getattr(fn, "__fuselens__", None)
        return inner.target if isinstance(inner, Annotation) else fn
    return fn


@functools.cache
def _owner(config: Config) -> Any:
    """One owner per configuration: compiling a function twice alike shares compiled code."""
    return object()


def _file_of(fn: Any) -> str:
    code = root_code(fn)
    return code.co_filename if code is not None else ""


def root_code(fn: Any) -> types.CodeType | None:
    """The code object whose frame is compiled when ``fn`` is called; None when there is none of its own."""
    if isinstance(fn, functools.partial):
        return root_code(fn.func)
    if isinstance(fn, types.MethodType):
        return root_code(fn.__func__)
    if isinstance(fn, types.FunctionType):
        return fn.__code__
    if isinstance(fn, torch.nn.Module):
        return root_code(type(fn).forward)
    call = getattr(type(fn), "__call__", None)  # noqa: B004 - the function is wanted, not whether there is one
    return call.__code__ if isinstance(call, types.FunctionType) else None


def _python_frame(fn: Callable[..., Any]) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call


def _graph_compiler(
    config: Config, recorder: Recorder, backend: Callable[..., Any] | None
) -> Callable[[Captured], Callable[[tuple[Any, ...]], Any]]:
    if backend is None:
        return lambda captured: compile_graph(captured, config, recorder)

    def custom(captured: Captured) -> Callable[[tuple[Any, ...]], Any]:
        recorder.new_graph(captured)
        compiled = backend(captured.module, list(captured.inputs))
        if not callable(compiled):
            raise TypeError(f"the backend {backend!r} returned a {type(compiled).__name__}, not a callable")
        return _hook.disabled(lambda inputs: compiled(*inputs))

    return custom


# --- modules ----------------------------------------------------------------------------------------------------


class CompiledModule(torch.nn.Module):
    """A module whose calls are compiled. It shares all state with the original: parameters, buffers, mode, hooks.

    Instances belong to a subclass of this class and of the original's, so ``isinstance`` holds for both.
    """

    __fuselens__: Annotation
    __region__: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self).__region__(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        annotation = type(self).__fuselens__
        return wrap(copy.deepcopy(annotation.target, memo), annotation.config, annotation.example_inputs)

    def __copy__(self) -> Any:
        annotation = type(self).__fuselens__
        return wrap(copy.copy(annotation.target), annotation.config, annotation.example_inputs)

    def __reduce__(self) -> Any:
        annotation = type(self).__fuselens__
        return wrap, (annotation.target, annotation.config, None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


def _compiled_module(module: torch.nn.Module, region: Any, annotation: Annotation) -> CompiledModule:
    original = type(module)
    cls = type(
        original.__name__,
        (CompiledModule, original),
        {
            "__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
            "__fuselens__": annotation, "__region__": region,
        },
    )  # fmt: skip
    compiled = cls.__new__(cls)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled


# --- small functions ----------------------------------------------------------------------------------------------


def example(*args: Any, **kwargs: Any) -> Callable[[F], F]:
    """Decorator: the inputs with which the editor compiles the function; or one callable that returns a tuple of them."""

    def mark(fn: F) -> F:
        given = args[0] if len(args) == 1 and not kwargs and _makes_inputs(args[0]) else (args, kwargs)
        fn.__dict__["__fuselens_example__"] = given
        return fn

    return mark


def _makes_inputs(value: Any) -> bool:
    return callable(value) and not isinstance(value, (torch.Tensor, torch.nn.Module, type))


def disable(fn: Any = None, recursive: bool = True) -> Any:
    """The function is never traced: it runs as plain Python, and so does all that it calls."""
    if fn is None:
        return functools.partial(disable, recursive=recursive)
    if not callable(fn):
        raise TypeError(f"fuselens.disable expects a function, got {type(fn).__name__}")
    wrapped = _hook.disabled(fn)
    functools.update_wrapper(wrapped, fn, updated=())
    return wrapped


def graph_break() -> None:
    """Ends the graph here when the surrounding function is being compiled; does nothing otherwise."""


def is_compiling() -> bool:
    """True while the surrounding function is being traced, False when it runs as plain Python."""
    return False


graph_break.__fuselens_special__ = "graph_break"  # type: ignore[attr-defined]
is_compiling.__fuselens_special__ = "is_compiling"  # type: ignore[attr-defined]


def reset() -> None:
    """Forgets all compiled code of this process. Files in the cache stay."""
    _hook.clear_all()


def torch_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """The entry point of ``torch.compile(fn, backend="fuselens")``: compiles a graph that torch captured."""
    config = from_environment()
    recorder = Recorder("torch.compile", "", None, config, texts=False)
    mode = torch_private.fake_mode()
    tensors = [t for t in example_inputs if isinstance(t, torch.Tensor)]
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    symbolic = len(tensors) != len(example_inputs) or any(not isinstance(s, int) for t in tensors for s in t.shape)
    if symbolic or any(n.op == "get_attr" for n in gm.graph.nodes):
        return gm.forward  # symbolic sizes from outside and attribute graphs run as they are
    real = [torch_private.real_of(t) for t in tensors]
    fakes = [torch_private.fake_static(mode, t) for t in real]
    for node, fake in zip(placeholders, fakes, strict=True):
        node.meta["val"] = fake
    torch_private.propagate(gm, mode, fakes)
    captured = Captured(gm, real, fakes, torch.is_grad_enabled(), "torch.compile", None, len(gm.graph.nodes), mode)
    compiled = compile_graph(captured, config, recorder)
    return lambda *inputs: compiled(inputs)


# --- reports ------------------------------------------------------------------------------------------------------


def explain(fn: Any, **options: Any) -> Callable[..., Report]:
    """``explain(fn)(*args, **kwargs)`` compiles and calls ``fn`` once and gives the report of it."""
    config = from_environment(explore=True)
    inner = getattr(fn, "__fuselens__", None)
    if isinstance(inner, Annotation):
        fn, config = inner.target, dataclasses.replace(inner.config, explore=True)
    config = with_options(config, options)

    def run(*args: Any, **kwargs: Any) -> Report:
        return inspect(
            fn, args, kwargs, config=config, function=getattr(fn, "__qualname__", type(fn).__name__), span=None
        )

    return run


def inspect(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    config: Config,
    function: str,
    span: Span | None,
    progress: Callable[[str], None] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> Report:
    """Compiles ``fn`` and runs it once on the inputs, both sides of data-dependent branches; never raises for user code.

    ``dynamic`` names sizes that callers vary: tensor parameter → dimension → axis name (jaxtyping's named axes).

    An exception that the call raises is recorded as FL909; what was compiled before it is in the report all the same.
    """
    recorder = Recorder(function, _file_of(fn), span, config, texts=True)
    recorder.progress = progress
    recorder.report.mode = _mode_text(config)
    recorder.report.versions = {"torch": torch.__version__}
    start = time.perf_counter()
    compiled = wrap(fn, config, recorder=recorder, owner=object(), axes=dynamic)
    token = explore_state.visited.set(set())
    try:
        compiled(*args, **dict(kwargs))
    except GraphBreakError as error:
        recorder.on_break(dataclasses.replace(error.diagnostic, severity="error"))
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything
        recorder.on_diagnostic(_call_raised(error, function, span))
    finally:
        explore_state.visited.reset(token)
    recorder.report.timings.append(_timing("total", start))
    recorder.finish()
    return recorder.report


def _mode_text(config: Config) -> str:
    dynamic = "" if config.dynamic is None else f", dynamic={config.dynamic}"
    return f"fullgraph={config.fullgraph}, mode={config.mode}{dynamic}"


def _timing(stage: str, start: float) -> Any:
    from .report import Timing

    return Timing(stage, time.perf_counter() - start)


def _call_raised(error: Exception, function: str, span: Span | None) -> Any:
    from .capture.classify import is_library_file

    stack = [
        Frame(f.name, Span(f.filename, f.lineno, f.colno or 0, f.end_lineno or f.lineno, f.end_colno or 0))
        for f in traceback.extract_tb(error.__traceback__)
        if f.lineno is not None and not is_library_file(f.filename)
    ]
    where = stack[-1].span if stack else span
    why = f"{type(error).__name__}: {error}".splitlines()[0]
    return diagnostics.make("FL909", where, stack=tuple(stack), what=function, why=why)


def compare(
    fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, config: Config, function: str, gradients: bool = True
) -> RunResult:
    """Runs ``fn`` compiled and eagerly on copies of the inputs; compares values and gradients, times both (medians)."""
    from . import comparison

    compiled = wrap(fn, dataclasses.replace(config, explore=False), owner=object())
    return comparison.compare(fn, compiled, args, dict(kwargs), function=function, gradients=gradients)
