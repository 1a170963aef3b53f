"""The library's interface: ``fuselens.compile`` and what goes with it."""

from __future__ import annotations

import asyncio
import contextlib
import copyreg
import dataclasses
import functools
import inspect as inspecting
import itertools
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
import torch.utils.checkpoint

from . import backends, live, sandbox, torch_private
from .backends import list_backends, register_backend
from .capture.breaks import (
    BackendError,
    CodedError,
    ConstraintError,
    GraphBreakError,
    RanksError,
    RecompileError,
    UsageError,
)
from .capture.frame import explore as explore_state
from .capture.frame.captured import Captured
from .capture.frame.frame import FrameCompiler
from .capture.hook import _hook
from .capture.program import overlays
from .capture.program.size_marks import (
    mark_dynamic,
    mark_static,
    mark_static_address,
    mark_unbacked,
    maybe_mark_dynamic,
)
from .capture.program.switches import error_on_graph_break
from .config import MODES, Config, from_environment, with_options
from .config import logs as logs_of_environment
from .control import (
    allow_in_graph,
    assume_constant_result,
    cudagraph_mark_step_begin,
    disable,
    graph_break,
    is_compiling,
    set_stance,
    substitute_in_graph,
)
from .ir.graphs.printable import graph_module
from .modules import CompiledModule, proxy
from .pipeline import Recorder, compile_graph, pinned, prepare
from .pipeline.refusals import restoring
from .record import diagnostics, logs
from .record.printed.explanation import Explanation
from .record.report import Frame, Report, RunResult, Span
from .runtime.cache.store import Cache

__all__ = [
    "Annotation", "BackendError", "CodedError", "CompiledModule", "ConstraintError", "GraphBreakError",
    "RanksError", "RecompileError", "UsageError", "allow_in_graph", "aot_compile", "assume_constant_result", "compare", "compile",
    "cudagraph_mark_step_begin", "disable", "error_on_graph_break", "example", "explain", "graph_break", "inspect",
    "is_compiling", "list_backends", "load", "load_cache_artifacts", "mark_dynamic", "mark_static", "mark_static_address",
    "mark_unbacked", "maybe_mark_dynamic", "register_backend", "reset", "save_cache_artifacts", "set_stance",
    "substitute_in_graph", "torch_backend",
]  # fmt: skip

logs.from_environment(*logs_of_environment())

if TYPE_CHECKING:
    from .aot.for_triton import TritonKernel
    from .aot.loading import Artifact
    from .runtime.cache.artifacts import CacheInfo

F = TypeVar("F", bound=Callable[..., Any])
Examples = tuple[Any, ...] | Callable[[], tuple[Any, ...]] | None
Backend = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Annotation:
    """What ``compile`` recorded on its result, as ``__fuselens__``: the original, its configuration, example inputs."""

    target: Any
    config: Config
    example_inputs: Any = None
    recorder: Recorder | None = None
    backend: Callable[..., Any] | None = None


@overload
def compile(  # noqa: A001
    fn: F, *, fullgraph: bool = ..., dynamic: bool | None = ..., backend: Backend = ...,
    mode: str | None = ..., options: Mapping[str, Any] | None = ..., disable: bool = ..., example_inputs: Examples = ...,
) -> F: ...  # fmt: skip
@overload
def compile(  # noqa: A001
    fn: None = None, *, fullgraph: bool = ..., dynamic: bool | None = ..., backend: Backend = ...,
    mode: str | None = ..., options: Mapping[str, Any] | None = ..., disable: bool = ..., example_inputs: Examples = ...,
) -> Callable[[F], F]: ...  # fmt: skip
def compile(  # noqa: A001 - torch's own name for it
    fn: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Backend = "fuselens",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    example_inputs: Examples = None,
) -> Any:
    """Compiles a function or module; also a decorator, with or without arguments. Mirrors ``torch.compile``.

    Args:
        fn: a Python function, a method, an ``nn.Module``, or another callable object. What cannot be traced as a whole
            (generator functions, coroutine functions, C functions) runs eagerly, and the report says so.
        fullgraph: raise :class:`GraphBreakError` at a graph break instead of continuing in plain Python.
        dynamic: whether sizes are symbolic: True, False, or None to decide from use.
        backend: a name of :func:`list_backends`, "aot_eager" and "eager" for bisecting, or any
            ``(gm, example_inputs) -> callable``: ``gm`` is a ``torch.fx.GraphModule``, ``example_inputs`` the list of
            its inputs, real tensors, and symbolic integers where sizes are symbolic; the callable takes such inputs
            and returns a tuple, as ``gm`` does.
        mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs".
        options: fields of :class:`fuselens.config.Config` by name, e.g. ``{"target": "cpu"}``, with any mode. A backend
            of the program's own is given ``mode=`` and ``options=`` when they are set.
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
    if isinstance(fn, type):
        raise TypeError(
            f"fuselens.compile expects a function or module, got the class {fn.__name__}: compile an instance"
        )
    if mode is not None and mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; modes are {', '.join(MODES)}")
    if not isinstance(backend, str) and not callable(backend):
        raise TypeError(f"backend is a name or a function, not a {type(backend).__name__}")
    function = backends.find(backend) if isinstance(backend, str) else backend
    changes: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": dynamic}
    if function is None:
        config = with_options(from_environment(**changes, mode=mode or "default", backend=backend), options)
    else:
        config = from_environment(**changes)
        given = {"mode": None if mode == "default" else mode, "options": dict(options) if options else None}
        given = {name: value for name, value in given.items() if value}
        function = functools.partial(function, **given) if given else function
    if isinstance(fn, (classmethod, staticmethod)):
        return type(fn)(fn.__func__ if disable else wrap(fn.__func__, config, example_inputs, function))
    if not callable(fn):
        raise TypeError(f"fuselens.compile expects a function or module, got {type(fn).__name__}")
    if disable:
        return fn
    if function is None:
        prepare(root_code(fn), config, on_gpu=_may_run_on_gpu(fn))
    return wrap(fn, config, example_inputs, function)


def _may_run_on_gpu(fn: Any) -> bool:
    """Whether the program uses a GPU, and a module is there."""
    owned = itertools.chain(fn.parameters(), fn.buffers()) if isinstance(fn, torch.nn.Module) else ()
    return torch.cuda.is_initialized() and all(t.is_cuda for t in itertools.islice(owned, 1))


def wrap(
    fn: Any, config: Config, example_inputs: Examples = None, backend: Callable[..., Any] | None = None,
    recorder: Recorder | None = None, owner: Any = None, axes: Mapping[str, Mapping[int, str]] | None = None,
) -> Any:  # fmt: skip
    """The compiled counterpart of ``fn`` under ``config``. ``owner`` separates compilations that must not be shared."""
    fn = _uncompiled(fn)
    if recorder is None:
        recorder = Recorder(getattr(fn, "__qualname__", type(fn).__name__), _file_of(fn), None, config, texts=False)
        recorder.follower = _follower(fn, config)
    span, file = recorder.report.span, recorder.report.file
    overlay = overlays.of(file if span is None else span.file) if config.patches else None
    compiler = FrameCompiler(config, _graph_compiler(recorder, backend), recorder, root_code(fn), overlay)
    axes = axes or pinned.axes(recorder)
    if axes and compiler.root is not None:
        compiler.variations[compiler.root].axes = {name: dict(dims) for name, dims in axes.items()}
    annotation = Annotation(fn, config, example_inputs, recorder, backend)
    target = torch_private.uncompiled_call(fn) if isinstance(fn, torch.nn.Module) else fn
    if isinstance(fn, (types.BuiltinFunctionType, types.BuiltinMethodType)):
        target = _python_frame(fn)
        compiler.root = target.__code__
    elif compiler.root is not None and compiler.root.co_flags & _RESUMABLE:
        compiler.refuse(compiler.root, "generators and coroutines run eagerly")
    if owner is None:
        owner = compiler if backend is not None else _owner(config, compiler.overlay.digest)
    region = _hook.Region(target, compiler, owner)
    if isinstance(fn, torch.nn.Module):
        remake = functools.partial(wrap, config=config, example_inputs=example_inputs, backend=backend)
        return proxy(fn, region, remake, annotation)
    functools.update_wrapper(region, fn, updated=("__dict__",) if inspecting.isroutine(fn) else ())
    if inspecting.iscoroutinefunction(fn):
        _mark_coroutine_function(region)
    region.__dict__["__fuselens__"] = annotation
    region.__dict__["__prepare_scriptable__"] = lambda: fn  # torch.jit.script compiles source
    example = getattr(fn, "__fuselens_example__", None)
    if example is not None:
        region.__dict__["__fuselens_example__"] = example
    return region


_RESUMABLE = (
    inspecting.CO_GENERATOR | inspecting.CO_COROUTINE | inspecting.CO_ASYNC_GENERATOR | inspecting.CO_ITERABLE_COROUTINE
)


def _mark_coroutine_function(region: Any) -> None:
    """Makes ``inspect.iscoroutinefunction`` (3.12) and asyncio's (3.11) say yes of a region."""
    if sys.version_info >= (3, 12):
        inspecting.markcoroutinefunction(region)
    else:
        region._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


def _reduce_region(region: Any) -> Any:
    """Pickles a compiled function by its name where it is found under that, else as the original to compile again."""
    annotation: Annotation = region.__dict__["__fuselens__"]
    found: Any = sys.modules.get(getattr(region, "__module__", None) or "")
    for name in getattr(region, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    if found is region:
        return region.__qualname__
    return wrap, (annotation.target, annotation.config, annotation.example_inputs, annotation.backend)


copyreg.pickle(_hook.Region, _reduce_region)


def _uncompiled(fn: Any) -> Any:
    """The original of a compiled function, method or module. The annotation alone does not tell: functools.wraps copies
    it to wrappers, and bound methods show that of their function."""
    if isinstance(fn, types.MethodType):
        function = _uncompiled(fn.__func__)
        return fn if function is fn.__func__ else types.MethodType(function, fn.__self__)
    if isinstance(fn, (_hook.Region, CompiledModule)):
        inner = getattr(fn, "__fuselens__", None)
        return inner.target if isinstance(inner, Annotation) else fn
    return torch_private.unwrap_torch_compile(fn) or fn


@functools.cache
def _owner(config: Config, patches: str) -> Any:
    """One owner per configuration and patches of libraries: compiling a function twice alike shares compiled code."""
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
        return root_code(getattr(type(fn), "forward", None))  # a scripted one's descriptor has none for the class
    call = getattr(type(fn), "__call__", None)  # noqa: B004 - the function is wanted, not whether there is one
    return call.__code__ if isinstance(call, types.FunctionType) else None


def _python_frame(fn: Callable[..., Any]) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__code__ = (
        call.__code__.replace()
    )  # a code object of its own: entries and limits of recompilation belong to it
    return call


def _graph_compiler(
    recorder: Recorder, backend: Callable[..., Any] | None
) -> Callable[[Captured], Callable[[tuple[Any, ...]], Any]]:
    if backend is None:
        return _followed(lambda captured: compile_graph(captured, recorder), recorder)
    recorder.keeps_frames = False

    def custom(captured: Captured) -> Callable[[tuple[Any, ...]], Any]:
        recorder.new_graph(captured)
        name = getattr(backend, "__qualname__", None) or repr(backend)
        try:
            compiled = backend(graph_module(captured.module.graph), list(captured.inputs))
        except Exception as error:
            raise BackendError(f"backend {name} raised {type(error).__name__}: {error}") from error
        if not callable(compiled):
            raise BackendError(f"backend {name} returned a {type(compiled).__name__}, not a callable")
        return _hook.disabled(restoring(lambda inputs: compiled(*inputs), captured))

    return _followed(custom, recorder)


def _follower(fn: Any, config: Config) -> live.Follower | None:
    code = root_code(fn)
    if code is None:
        return None
    return live.follower(config.live, config.cache_dir, code.co_filename, code.co_qualname, code.co_firstlineno)


def _followed(make: Callable[[Captured], Callable[..., Any]], recorder: Recorder) -> Callable[[Captured], Any]:
    """``make``; where the run is followed, its graphs are timed."""
    follower = recorder.follower
    if follower is None:
        return make

    def compile_captured(captured: Captured) -> Callable[..., Any]:
        number, start = len(recorder.report.graphs), time.perf_counter()
        compiled = make(captured)
        follower.graph(number, captured.frame, time.perf_counter() - start)
        return _hook.disabled(follower.timed(compiled, number))

    return compile_captured


# --- artifacts ------------------------------------------------------------------------------------------------------


def aot_compile(
    fn: Any, *calls: Any, to: str | os.PathLike[str], dynamic: bool | None = None, mode: str | None = None,
    options: Mapping[str, Any] | None = None, training: bool = False, weights: bool = True, isas: Iterable[str] | None = None,
    targets: Iterable[str] = (), check: bool = True,
) -> Artifact:  # fmt: skip
    """Compiles a function or module into one file, which :func:`load` loads in another process without tracing and without a compiler.

    Args:
        fn: a Python function, a method, or an ``nn.Module``. It must be captured whole.
        calls: for each way to call it, a tuple of positional arguments, or ``(args, kwargs)`` with a dict. Values are used to
            capture it and, with ``check``, to compare the artifact with eager, on copies.
        to: the file, which is replaced if it exists.
        dynamic: whether sizes of tensors are symbolic; by default they are those of the calls.
        mode, options: as for :func:`compile`.
        training: whether it has the backward, too. Otherwise it is called without gradients, whatever the caller has set.
        weights: whether the tensors of a module are in the file. Otherwise :func:`load` is given them.
        isas: instruction sets for a CPU, of "avx512", "avx2", "sse2", "neon" and "scalar", best first; by default this
            processor's, and on x86-64 "avx512" and "avx2", of which the loader takes the best that its processor has.
        targets: other systems that it has kernels for, too: "linux-x86_64", "linux-aarch64", "macos-arm64". They are built by
            the package ``ziglang``; what is proved is what is for this machine.
        check: whether it is loaded and compared with eager before this returns.

    Returns the artifact as :func:`load` gives it.
    Raises ArtifactError (FL927) where no file can be made of it, GraphBreakError where it is not captured whole, ValueError
    for a target that is not known.
    """
    from .aot import loading, making, proof
    from .aot import targets as systems

    if not calls:
        raise TypeError("aot_compile needs at least one tuple of arguments to compile for")
    config = with_options(from_environment(fullgraph=True, dynamic=dynamic, mode=mode or "default"), options)
    given = [_call_of(call) for call in calls]
    path = Path(to)
    chosen = systems.chosen(targets, isas if isas is not None else systems.default_isas(config))
    original = _uncompiled(fn)
    digest = making.make(original, given, path, config=config, training=training, weights=weights, targets=chosen)
    state = original.state_dict() if isinstance(original, torch.nn.Module) and not weights else None
    artifact = loading.load(path, config=config, weights=state, sha256=digest)
    if check:
        try:
            proof.prove(original, given, artifact)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return artifact


def triton_function(fn: Any = None, *, dtypes: torch.dtype | Sequence[torch.dtype] | None = None) -> Any:
    """A function of PyTorch as a Triton function that kernels of yours call with blocks of values; also a decorator.

    Args:
        fn: a Python function that computes each element of its results from the same elements of its arguments, such as an activation
            with what is multiplied and added. Parameters without defaults are blocks; those with defaults keep these.
        dtypes: of the blocks, one for all or one for each; float32 by default. Values are cast to them, results have eager's dtypes.

    Returns a ``triton.JITFunction``. Blocks of different shapes broadcast as Triton's do. Gradients are not recorded.
    Raises CodedError (FL934) for what is no such function.
    """
    from .aot import for_triton

    if fn is None:
        return functools.partial(triton_function, dtypes=dtypes)
    return for_triton.device_function(_uncompiled(fn), torch.float32 if dtypes is None else dtypes)


def triton_kernel(fn: Any, *examples: torch.Tensor, dynamic: bool = False) -> TritonKernel:
    """A function of PyTorch as one Triton kernel, which your program launches: ``kernel[grid](*pointers, *sizes)``.

    Args:
        fn: a Python function of tensors that fuses into one kernel: operations on elements, with reductions along rows.
        examples: tensors on any device, whose dtypes, strides and, unless ``dynamic``, sizes the kernel is for.
        dynamic: whether sizes are integers that a launch gives.

    Raises CodedError (FL934) for what is not one kernel.
    """
    from .aot import for_triton

    return for_triton.kernel(_uncompiled(fn), examples, dynamic)


def load(
    path: str | os.PathLike[str], *, weights: Mapping[str, torch.Tensor] | None = None, sha256: str = ""
) -> Artifact:
    """Loads an artifact of :func:`aot_compile`. Nothing is traced, no compiler runs. Loading a file is as good as running its code.

    Args:
        weights: tensors by name, such as the ``state_dict`` of a module; they take the place of those in the file, and are used
            as they are: not copied.
        sha256: the digest that the artifact must have (``artifact.digest``).

    Raises ArtifactError (FL928) for a file that is none, is damaged, or does not fit this process.
    """
    from .aot import loading

    return loading.load(Path(path), config=from_environment(), weights=weights, sha256=sha256)


def _call_of(call: Any) -> Any:
    """A tuple of positional arguments, or (args, kwargs)."""
    from .aot.making import Call

    if not isinstance(call, tuple):
        raise TypeError(
            f"aot_compile takes tuples of arguments, got a {type(call).__name__}: write (x,) for one argument"
        )
    if len(call) == 2 and isinstance(call[0], tuple) and type(call[1]) is dict:
        return Call(call[0], call[1])
    return Call(call, {})


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


def reset() -> None:
    """Forgets all compiled code of this process. Files in the cache stay."""
    _hook.clear_all()


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """What this process read or made of its cache, for :func:`load_cache_artifacts` on another machine, and what it is; None where
    it is nothing. The other machine needs the same versions of torch, Python and Fuselens, a processor and cards alike, and the
    program under the same paths.

    Example::

        model(x).sum().backward()
        data, info = fuselens.save_cache_artifacts()
        Path("warm.bin").write_bytes(data)
    """
    from .runtime.cache import artifacts

    return artifacts.save(Cache.of(from_environment()))


def load_cache_artifacts(data: bytes) -> CacheInfo:
    """Puts what :func:`save_cache_artifacts` gave into this machine's cache: what is compiled then is found there.

    Artifacts are code. Load them only from where you would take a program. Raises ValueError for other bytes.
    """
    from .runtime.cache import artifacts

    return artifacts.load(Cache.of(from_environment()), data)


def torch_backend(
    gm: torch.fx.GraphModule, example_inputs: list[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The entry point of ``torch.compile(fn, backend="fuselens")``: compiles a graph that torch captured."""
    config = with_options(from_environment(), options)
    mode = torch_private.fake_mode()
    tensors = [t for t in example_inputs if isinstance(t, torch.Tensor)]
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    symbolic = len(tensors) != len(example_inputs) or any(not isinstance(s, int) for t in tensors for s in t.shape)
    recorder = Recorder("torch.compile", "", None, config, texts=False)
    if symbolic or any(n.op in ("get_attr", "call_module") for n in gm.graph.nodes):
        # Its sizes are symbols of another compiler, or graphs are inside: it is captured as any program.
        _as_written(gm)
        return wrap(gm.forward, config, recorder=recorder, owner=gm)
    real = [torch_private.real_of(t) for t in tensors]
    fakes = [torch_private.fake_static(mode, t) for t in real]
    for node, fake in zip(placeholders, fakes, strict=True):
        node.meta["val"] = fake
    torch_private.propagate(gm, mode, fakes)
    captured = Captured(gm, real, fakes, torch.is_grad_enabled(), "torch.compile", None, len(gm.graph.nodes), mode)
    compiled = compile_graph(captured, recorder)
    return lambda *inputs: compiled(inputs)


def _as_written(gm: torch.fx.GraphModule) -> None:
    """Checkpoints as the program has them: torch's node of one runs its body like any other, and draws its random numbers anew."""
    for node in gm.graph.nodes:
        if getattr(node.target, "__name__", "") == "tag_activation_checkpoint":
            node.target = torch.utils.checkpoint.checkpoint
    gm.recompile()


# --- reports ------------------------------------------------------------------------------------------------------


def explain(fn: Any, **options: Any) -> Callable[..., Explanation]:
    """``explain(fn)(*args, **kwargs)`` compiles and calls ``fn`` once and gives the report of it.

    ``options`` are those of :func:`compile`. Never raises for what ``fn`` does: that is a finding of the report.

    Example::

        print(fuselens.explain(step)(x))
    """
    config = from_environment(explore=True)
    inner = getattr(fn, "__fuselens__", None)
    if isinstance(inner, Annotation):
        fn, config = inner.target, dataclasses.replace(inner.config, explore=True)
    config = with_options(config, options)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        name = getattr(fn, "__qualname__", type(fn).__name__)
        return Explanation.of(inspect(fn, args, kwargs, config=config, function=name, span=None))

    return run


def inspect(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], **how: Any) -> Report:
    """:func:`called`, and all that comes after the call."""
    recorder = called(fn, args, kwargs, **how)
    recorder.finish()
    return recorder.report


def called(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    config: Config,
    function: str,
    span: Span | None,
    progress: Callable[[str], None] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> Recorder:
    """Compiles ``fn`` and runs it once on the inputs, both sides of data-dependent branches; never raises for user code.
    Without ``config.build`` the report lacks, until the recorder has finished, what comes after the capture of its graphs.

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
    except CodedError as error:
        recorder.on_break(error.diagnostic)
    except (Exception, sandbox.Refused) as error:  # noqa: BLE001 - the user's function may raise anything
        raised = _call_raised(error, function, span)
        recorder.report.breaks[:] = [b for b in recorder.report.breaks if (b.code, b.span) != ("FL107", raised.span)]
        recorder.on_diagnostic(raised)
    finally:
        explore_state.visited.reset(token)
    recorder.seconds = time.perf_counter() - start
    return recorder


def _mode_text(config: Config) -> str:
    dynamic = "" if config.dynamic is None else f", dynamic={config.dynamic}"
    return f"fullgraph={config.fullgraph}, mode={config.mode}{dynamic}"


def _call_raised(error: BaseException, function: str, span: Span | None) -> Any:
    from .capture.classify import is_library_file

    stack = [
        Frame(f.name, Span(f.filename, f.lineno, f.colno or 0, f.end_lineno or f.lineno, f.end_colno or 0))
        for f in traceback.extract_tb(error.__traceback__)
        if f.lineno is not None and not is_library_file(f.filename)
    ]
    where = stack[-1].span if stack else span
    why = f"{type(error).__name__}: {error}".splitlines()[0]
    made = diagnostics.make("FL909", where, stack=tuple(stack), what=function, why=why)
    return sandbox.behind(error) or made


def warm(
    fn: Any, calls: Iterable[Callable[[Callable[..., Any]], Any]], *, config: Config
) -> list[diagnostics.Diagnostic]:
    """Fills the cache with what a program needs that makes ``calls`` in turn, backwards included: each is given ``fn``,
    compiled, and calls it. Returns what compiling said, but for breaks.

    Programs may take the sides of a data-dependent branch in either order, so the calls are made twice, as the data say
    and with branches turned, and again the other way round. What was compiled before is forgotten, because it would not
    be compiled now; what calls raise is ignored.
    """
    calls, said = list(calls), []
    config = dataclasses.replace(config, explore=True)
    for turned_first in (False, True):
        reset()
        recorder = Recorder("", _file_of(fn), None, config, texts=False, backwards=True)
        compiled = wrap(fn, config, recorder=recorder, owner=object())
        branches = 0
        for turned in (turned_first, not turned_first):
            for call in calls:
                with explore_state.turning() if turned else contextlib.nullcontext(()) as met:
                    with contextlib.suppress(Exception):
                        call(compiled)
                    branches += len(met)
        said += recorder.report.diagnostics
        if not branches:
            break
    return said


def node_values(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, config: Config, function: str) -> str:
    """What each node of the captured graphs of one call computes, as text; what the call raises is its last line."""
    from .inputs.comparison import copied
    from .inputs.node_values import NodeValues

    config = dataclasses.replace(config, explore=False, weightless=False, backend="fuselens")
    recorder = Recorder(function, _file_of(fn), None, config, texts=False)
    recorder.values = NodeValues(function)
    compiled = wrap(fn, config, recorder=recorder, owner=object())
    try:
        compiled(*copied(args, False), **copied(dict(kwargs), False))
        recorder.values.ended("The call returned." if recorder.report.graphs else "Nothing of it was captured.")
    except (Exception, sandbox.Refused) as error:  # noqa: BLE001 - the user's function may raise anything
        recorder.values.ended(f"The call raised {type(error).__name__}: {error}".splitlines()[0])
    return recorder.values.text


def compare(
    fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, config: Config, function: str, gradients: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> RunResult:  # fmt: skip
    """Runs ``fn`` compiled and eagerly on copies of the inputs; compares values and gradients, times both (medians).

    Both draw eager's random numbers.
    """
    from .inputs import comparison
    from .pipeline import programs
    from .runtime.program import without_pool

    config = dataclasses.replace(config, explore=False, fallback_random=True)
    recorder = Recorder(function, _file_of(fn), None, config, texts=False)
    recorder.probed = []
    compiled = wrap(fn, config, recorder=recorder, owner=object())
    named, found = dict(kwargs), recorder.report
    result = comparison.compare(
        fn, compiled, args, named, function=function, gradients=gradients, progress=progress, unpooled=without_pool,
        target=config.target, probed=recorder.probed,
        on_gpu=lambda: [k for graph in found.graphs for k in programs.runs(graph.id, graph.work)],
    )  # fmt: skip
    if config.backend != "fuselens":  # its author compares graphs as they were captured
        return result
    return dataclasses.replace(result, uncompiled=found.uncompiled, compiled=found.compiled)
