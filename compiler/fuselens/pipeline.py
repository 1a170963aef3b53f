"""The pipeline is this list: what happens to a captured graph, stage by stage.

The runner times, records and (on request) prints or dumps each stage; no stage does that for itself. A stage that
cannot handle a graph raises a typed refusal; the graph then runs eagerly, as captured, and the report says why.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import fx

from . import frozen, graph_cache, lazy_views, live, live_memory, recorded_inputs, report, sharing, torch_private
from .capture.frame import Captured, Facts, uncollected
from .capture.tracer import describe_tensor
from .config import Config, assembly_of
from .diagnostics import make
from .graph_cache import Entry, GraphCache, Program, key_for
from .ir import graph_text
from .ir.straight_line import straight_line

if TYPE_CHECKING:
    from .autograd.joint import Joint
    from .autograd.signature import SavedValue, Sharing, Signature
    from .codegen.source import Source
    from .codegen.triton.assembly import Compiled
    from .ir.loops import Graph
    from .runtime.compile_graph import Built

STAGES = (
    "capture",
    "joint",
    "forward",
    "backward",
    "simplify",
    "lower",
    "fuse",
    "tune",
    "order",
    "cpp",
    "triton",
    "host",
    "ttir",
    "ttgir",
    "llir",
    "ptx",
    "sass",
    "memory",
    "guards",
)
T = TypeVar("T")
Bind = Callable[[], Callable[[tuple[Any, ...]], Any]]  # waits for compilers, and loads what they made
log = logging.getLogger("fuselens")
_numbers = itertools.count()


class Recorder:
    """Collects what the stages say into a :class:`report.Report`. Who wants ``texts`` or fills the cache wants
    ``backwards`` compiled with their forwards, not when one first runs."""

    def __init__(
        self, function: str, file: str, span: report.Span | None, config: Config, texts: bool, backwards: bool = False
    ) -> None:
        self.report = report.Report(function, file, span, target=config.target)
        self.config = config
        self.texts = texts or bool(config.print_after) or config.dump is not None
        self.backwards = self.texts or backwards
        self.progress: Callable[[str], None] | None = None
        self.follower: live.Follower | None = None
        self.seconds = 0.0
        self._later: list[Callable[[], object]] = []
        self._seen: set[Any] = set()
        self._calls: list[Any] = []
        self._on_gpu = False

    def on_call(self, code: types.CodeType, args: Sequence[Any]) -> None:
        """The function is compiled for a call with ``args``: where the run is followed, they are recorded."""
        with torch_private.without_torch_function():
            self._on_gpu = any(isinstance(a, torch.Tensor) and a.is_cuda for a in args)
        if self.follower is None:
            return
        recorded = False
        with suppress(recorded_inputs.NotRecordable):
            call = recorded_inputs.described(code, args)
            self._calls = [*(c for c in self._calls if c != call), call]
            recorded_inputs.Recording(self.config.cache_dir, code.co_filename, code.co_qualname).keep(self._calls)
            recorded = True
        where = report.Span(code.co_filename, code.co_firstlineno, 0, code.co_firstlineno, 0)
        given = [(n, a) for n, a in zip(code.co_varnames, args, strict=False) if isinstance(a, torch.Tensor)]
        self.follower.call(tuple(report.Shape(n, where, describe_tensor(a, None)) for n, a in given), recorded)

    def on_break(self, diagnostic: report.Diagnostic) -> None:
        if self.follower is not None:
            self.follower.finding(diagnostic)
        key = (diagnostic.code, diagnostic.span)
        if key not in self._seen:
            self._seen.add(key)
            self.report.breaks.append(diagnostic)

    def on_diagnostic(self, diagnostic: report.Diagnostic) -> None:
        if self.follower is not None:
            self.follower.finding(diagnostic)
        key = (diagnostic.code, diagnostic.span, diagnostic.message)
        if key not in self._seen:
            self._seen.add(key)
            self.report.diagnostics.append(diagnostic)

    def on_frame(self, facts: Facts) -> None:
        if self.follower is not None:
            self.follower.shapes(tuple(facts.shapes))
        seen = {(g.source, g.expression) for g in self.report.guards}
        self.report.guards += [g for g in facts.guards if (g.source, g.expression) not in seen]
        self.report.symbols += [s for s in facts.symbols if s not in self.report.symbols]
        known = {(s.name, s.span) for s in self.report.shapes}
        for shape in facts.shapes:
            if (shape.name, shape.span) not in known:
                known.add((shape.name, shape.span))
                self.report.shapes.append(shape)

    def capturing(self, code: types.CodeType) -> AbstractContextManager[None]:
        return graph_cache.capturing(self.config, code, self.on_diagnostic, self._on_new)

    def _on_new(self) -> None:
        """A frame is captured of which the cache knows nothing: its kernels will have to be compiled."""
        from .runtime import triton_worker

        if self._on_gpu and self.config.backend == "fuselens":
            triton_worker.start()

    def later(self, work: Callable[[], object]) -> None:
        """Leaves ``work`` for :meth:`finish`."""
        self._later.append(work)

    @property
    def finished(self) -> bool:
        return not self._later

    def finish(self) -> None:
        """Called after the function: does what was left for later, and writes the dump folder that was asked for."""
        start = time.perf_counter()
        while self._later:
            self._later.pop(0)()
        self.seconds += time.perf_counter() - start
        self.report.timings.append(report.Timing("total", self.seconds))
        if self.config.dump is not None:
            from . import views

            views.dump(self.report, self.config.dump)

    def new_graph(self, captured: Captured) -> report.Graph:
        graph = report.Graph(
            id=len(self.report.graphs), frame=captured.frame, span=captured.span, operations=captured.operations,
            inputs=tuple(
                describe_tensor(f, captured.sizes) if isinstance(f, torch.Tensor) else report.Tensor(_number_or_object(f), ())
                for f in captured.fakes
            ),
        )  # fmt: skip
        self.report.graphs.append(graph)
        return graph


def _number_or_object(given: Any) -> str:
    if isinstance(given, torch.Generator):
        return type(given).__name__
    return "float" if isinstance(given, torch.SymFloat) else "int"


class Run:
    """One graph going through the stages: times each, keeps its text when somebody wants it."""

    def __init__(self, recorder: Recorder, graph: report.Graph, sizes: Any = None) -> None:
        self.recorder = recorder
        self.graph = graph
        self.sizes = sizes

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self.recorder.progress is not None:
            self.recorder.progress(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.graph.timings.append(report.Timing(name, time.perf_counter() - start))

    def record(self, name: str, suffix: str, make_text: Callable[[], tuple[str, tuple[report.Line, ...]]]) -> None:
        if not self.recorder.texts:
            return
        text, lines = make_text()
        if self.sizes is not None:
            text = self.sizes.rename(text)
        self.keep(report.Stage(name, suffix, text, lines))

    def keep(self, stage: report.Stage) -> None:
        self.graph.stages.append(stage)
        wanted = self.recorder.config.print_after
        base = stage.name.split(".")[0]
        if stage.name in wanted or base in wanted or "all" in wanted:
            print(f"# --- graph {self.graph.id}, after {stage.name}\n{stage.text}", file=sys.stderr)

    def assembly(self, source: Source, suffix: str, compiled: Mapping[str, Compiled], captured: Captured) -> None:
        """The documents of compiled Triton kernels; where nobody asked for them, only that there are such."""
        from .codegen.triton import assembly

        if not self.recorder.texts:
            return
        wanted = assembly_of(self.recorder.config)
        for form in assembly.forms():
            text, lines = assembly.document(form, source, compiled) if form in wanted else ("", ())
            suffix_of = assembly.SUFFIXES[form]
            if captured.sizes is not None and suffix_of == "mlir":
                text = captured.sizes.rename(text, "_size")
            self.keep(report.Stage(f"{form}{suffix}", suffix_of, text, lines, later=form not in wanted))


def compile_graph(captured: Captured, config: Config, recorder: Recorder) -> Callable[[tuple[Any, ...]], Any]:
    """The callable (gathered inputs → outputs) for a captured graph. Never fails: what is refused runs eagerly."""
    from .capture import _hook

    record = recorder.new_graph(captured)
    run = Run(recorder, record, captured.sizes)
    run.record("capture", "py", lambda: graph_text.show(captured.module.graph, f"graph{record.id}"))
    output = next(n for n in captured.module.graph.nodes if n.op == "output").args[0]
    record.outputs = tuple(
        describe_tensor(n.meta["val"], captured.sizes) for n in output if hasattr(n.meta.get("val"), "stride")
    )
    backend = config.backend
    if backend == "eager":
        record.fallback = True
        return _hook.disabled(_as_captured(captured.module))
    make = functools.partial(_compile, captured, config, recorder, run, loops=backend == "fuselens")

    def compiled() -> Callable[..., Any]:
        made = _or_eager(make, captured, config, recorder, record)
        if record.memory:
            run.record("memory", "txt", lambda: live_memory.text(record))
        return made

    if config.build or target_of(captured) != "cpu":
        return _hook.disabled(compiled())
    recorder.later(compiled)
    return _hook.disabled(_as_captured(captured.module))


def _or_eager(
    make: Callable[[], Callable[..., Any]], captured: Captured, config: Config, recorder: Recorder, record: report.Graph
) -> Callable[..., Any]:
    """What ``make`` makes of the captured graph; where a stage refuses it, the graph as it was captured."""
    try:
        return make()
    except Exception as error:
        diagnostic = _refusal(error, captured)
        if diagnostic.code == "FL404" and not isinstance(error, _refusals()):
            log.warning("graph %d of %s runs eagerly", record.id, captured.frame, exc_info=True)
        if config.strict and not isinstance(error, _refusals()):
            raise
        recorder.on_diagnostic(diagnostic)
        record.fallback = True
        record.decisions.append(
            report.Decision(diagnostic.code, "fallback", f"graph {record.id}", diagnostic.message, captured.span)
        )
        return _as_captured(captured.module)


def _as_captured(module: fx.GraphModule) -> Callable[[tuple[Any, ...]], Any]:
    """Runs a captured graph operator by operator. Where it raises, what it entered and set is as it was before."""
    graph = straight_line(module)
    targets = [n.target for n in module.graph.nodes]
    if torch_private.SET_GRAD_ENABLED not in targets and not any(
        isinstance(t, torch_private.EnterContext) for t in targets
    ):
        return graph

    def run(inputs: tuple[Any, ...]) -> Any:
        enabled = torch.is_grad_enabled()
        try:
            return graph(inputs)
        except BaseException as error:
            called = error.__traceback__ and error.__traceback__.tb_next
            if called is not None:
                torch_private.exit_all(called.tb_frame.f_locals.values())
            torch_private.set_grad_enabled(enabled)
            raise

    return run


def _refusals() -> tuple[type[BaseException], ...]:
    from .autograd.unsupported import Unsupported
    from .codegen.source import Unsupported as NotGenerated
    from .lowering.builder import LoweringError
    from .runtime.build import BuildFailed, NoCompiler

    return (Unsupported, LoweringError, NotGenerated, BuildFailed, NoCompiler)


def _refusal(error: Exception, captured: Captured) -> report.Diagnostic:
    from .autograd.unsupported import Unsupported
    from .runtime.build import BuildFailed, NoCompiler

    where = captured.span
    if isinstance(error, Unsupported):
        return make("FL301", error.span or where, why=error.reason)
    if isinstance(error, NoCompiler):
        return make("FL403", where, what=str(error))
    if isinstance(error, BuildFailed):
        return make("FL402", error.span or where, what=f"graph of {captured.frame}", why=str(error)[:2000])
    return make("FL404", where, why=f"{type(error).__name__}: {str(error)[:500]}")


def _foreign_devices(graph: fx.Graph) -> set[str]:
    """Types of the devices of a graph's tensors that no kernels are made for: ``meta`` tensors have no data."""
    values = [n.meta.get("val") for n in graph.nodes]
    return {v.device.type for v in values if isinstance(v, torch.Tensor)} - {"cpu", "cuda"}


def _compile(
    captured: Captured, config: Config, recorder: Recorder, run: Run, *, loops: bool, lazy: frozenset[int] = frozenset()
) -> Callable[..., Any]:
    """``lazy`` are inputs that stand for lazily conjugated or negated ones."""
    from .autograd.signature import NOTHING_SHARED
    from .autograd.unsupported import Unsupported

    if captured.sizes is not None and torch_private.depends_on_data(captured.sizes.env):
        raise Unsupported("it computes numbers or sizes from data, which kernels do not know beforehand")
    if any(isinstance(n.meta.get("val"), torch.Generator) for n in captured.module.graph.nodes):
        raise Unsupported("it draws from generators of random numbers, which kernels do not")
    if foreign := _foreign_devices(captured.module.graph):
        raise Unsupported(f"it has tensors on the device {min(foreign)}, for which no code is generated")
    if turns := lazy_views.turns(captured.inputs):
        plain = lazy_views.in_memory(captured, turns)
        if plain is None:
            raise Unsupported("it returns an input that is a lazily conjugated or negated view")
        call = _compile(plain, config, recorder, run, loops=loops, lazy=frozenset(turns))
        return lambda inputs: call(lazy_views.turned(inputs, turns))
    traced = _trace(captured, config, run, NOTHING_SHARED, loops)
    signature = traced.signature
    written = {m.input for m in signature.mutations}
    if lazy & written:
        raise Unsupported("it writes to an input that is a lazily conjugated or negated view")
    if not written:
        if config.freezing and loops:
            if call := _freezing(traced.joint, captured, config, recorder, run):
                return call
        return _compile_traced(traced, captured, config, recorder, run, loops=loops)
    visible = {m.input for m in signature.mutations if m.differentiable}
    grad = captured.grad_enabled or signature.enables_grad
    find = functools.partial(sharing.find, written=written, visible=visible, grad=grad)
    shared = find(captured.inputs, wanted=sharing.tensors(captured.inputs))
    if shared is not NOTHING_SHARED:
        traced = _trace(captured, config, run, shared, loops)
    ready = _compile_traced(traced, captured, config, recorder, run, loops=loops)
    wanted = sorted({*written, *captured.arguments, *shared.companions})
    if len(wanted) == 1:
        return ready

    def compile_for(shared: Sharing) -> Callable[..., Any]:
        other = Run(recorder, recorder.new_graph(captured), captured.sizes)

        def make() -> Callable[..., Any]:
            traced = _trace(captured, config, other, shared, loops)
            return _compile_traced(traced, captured, config, recorder, other, loops=loops)

        return _or_eager(make, captured, config, recorder, other.graph)

    return _by_sharing(
        ready, shared, functools.partial(find, wanted=wanted), compile_for, _as_captured(captured.module)
    )


def _freezing(
    joint: Joint, captured: Captured, config: Config, recorder: Recorder, run: Run
) -> Callable[..., Any] | None:
    """The graph compiled for parameters and buffers as they are, and again when they change; None where it is not."""
    from .autograd.signature import NOTHING_SHARED

    if joint.training or joint.signature.detached:
        recorder.on_diagnostic(make("FL304", captured.span, why="gradients are recorded"))
        return None
    owned = [i for i in captured.owned if frozen.freezable(captured.inputs[i])]
    if not owned:
        return None
    first: list[tuple[Joint, Run]] = [(joint, run)]

    def compile_for(tensors: Mapping[int, Any]) -> Callable[..., Any]:
        if first:
            joint, run = first.pop()
            return _compile_joint(joint, captured, config, recorder, run, loops=True, constants=tensors)
        recorder.on_diagnostic(
            make("FL201", captured.span, what=f"`{captured.frame}`, because a frozen tensor changed")
        )
        other = Run(recorder, recorder.new_graph(captured), captured.sizes)

        def again() -> Callable[..., Any]:
            joint = _trace(captured, config, other, NOTHING_SHARED, loops=True).joint
            return _compile_joint(joint, captured, config, recorder, other, loops=True, constants=tensors)

        return _or_eager(again, captured, config, recorder, other.graph)

    return frozen.by_state(owned, compile_for, captured.inputs, config.recompile_limit)


class _Traced:
    """A captured graph's joint graph, or what the cache has of it: then ``joint`` is traced if somebody asks for it.

    ``again``: the cache has its forward, but no backward yet.
    """

    def __init__(self, cache: GraphCache, trace: Callable[[], Joint]) -> None:
        self.cache, self._trace = cache, trace
        self.entry = cache.load()
        self.backward = cache.load_backward() if self.entry is not None and self.entry.training else None
        self.again = self.entry is not None and self.entry.training and self.backward is None
        if self.again:
            self.entry = None

    @functools.cached_property
    def joint(self) -> Joint:
        return self._trace()

    @property
    def signature(self) -> Signature:
        return self.joint.signature if self.entry is None else self.entry.signature


def _trace(captured: Captured, config: Config, run: Run, shared: Sharing, loops: bool) -> _Traced:
    from .autograd.unsupported import Unsupported
    from .runtime import triton_worker
    from .runtime.build import host_isa

    if shared.bases and captured.sizes is not None:
        raise Unsupported("an input is written to that shares memory with another input, and sizes are symbolic")

    on_gpu = target_of(captured) == "cuda"

    def trace() -> Joint:
        from .autograd import joint as joint_stage

        if loops and on_gpu:
            triton_worker.start()
        with run.stage("joint"):
            return joint_stage.trace(
                captured.module,
                captured.fakes,
                grad_enabled=captured.grad_enabled,
                sharing=shared,
                counter_based=loops and not config.fallback_random,
            )

    key = None
    recorder = run.recorder
    if loops and not config.freezing and (on_gpu or not config.target.startswith("cuda")):
        host = (host_isa(config), _has_cpp_hosts(), *(_cards(captured) if on_gpu else ()))
        key = key_for(captured, config, shared, graph=run.graph.id, texts=recorder.texts, host=host)
    traced = _Traced(GraphCache(config, key), trace)
    for diagnostic in traced.cache.cache.drain():
        recorder.on_diagnostic(diagnostic)
    return traced


def _compile_traced(
    traced: _Traced, captured: Captured, config: Config, recorder: Recorder, run: Run, *, loops: bool
) -> Callable[..., Any]:
    """The callable of a traced graph: from the cache, or made by the stages and kept there."""
    entry, record = traced.entry, run.graph
    if entry is None:
        made = traced.joint
        return _compile_joint(
            made, captured, config, recorder, run, loops=loops, cache=traced.cache, again=traced.again
        )
    record.training = entry.training
    record.decisions += entry.decisions
    for stage in entry.stages:
        run.keep(stage)
    forward = _from_cache(entry.forward, "forward", captured, config, recorder, run)

    def bind_backward() -> Callable[..., Any]:
        assert traced.backward is not None
        return _from_cache(traced.backward, "backward", captured, config, recorder, run)

    backward = bind_backward if entry.training else None
    return _with_effects(
        entry.signature, forward, entry.forward.written, captured, config, recorder, saved=entry.saved,
        compile_backward=backward, loops=loops,
    )  # fmt: skip


def _compile_joint(
    joint: Joint, captured: Captured, config: Config, recorder: Recorder, run: Run, *, loops: bool,
    constants: Mapping[int, Any] | None = None, cache: GraphCache | None = None, again: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """``cache`` receives what is made; ``again``: it lacks only the backward, which therefore is made at once."""
    from .autograd import partition as partition_stage
    from .lowering.lower import fuses
    from .rewrite.freeze import freeze
    from .rewrite.layout import channels_last

    record = run.graph
    run.record("joint", "py", lambda: graph_text.show(joint.graph, f"joint{record.id}"))
    record.training = joint.training

    def lower(
        module: fx.GraphModule,
        phase: str,
        writes: dict[int, int],
        keep: Callable[[Program], None],
        donated: Sequence[int] = (),
    ) -> tuple[Bind, list[int]]:
        """What makes a callable, and those of the inputs in ``writes`` that it writes by itself, returning None for
        results."""
        if not loops:
            return lambda: straight_line(module), []
        return _kernels(module, phase, captured, config, recorder, run, writes, keep, constants or {}, donated)

    def keep_forward(program: Program) -> None:
        if cache is not None:
            first = next(i for i, s in enumerate([*record.stages, None]) if s is None or s.name == "simplify")
            stages = [s for s in record.stages[:first] if s.name != "capture"]
            cache.store("forward", Entry(parts_signature, record.training, program, saved, decisions, stages))

    def keep_backward(program: Program) -> None:
        if cache is not None:
            cache.store("backward", program)

    saved: list[SavedValue] = []
    decisions: Sequence[report.Decision] = record.decisions[:]
    parts_signature = joint.signature
    if not joint.training:
        module = partition_stage.forward_only(joint)
        if constants:
            with run.stage("freeze"), torch_private.autocast_off():
                record.decisions += freeze(module, constants)
        if loops:
            channels_last([module.graph])
        bind, in_place = lower(module, "forward", joint.signature.new_values(), keep_forward)
        return _with_effects(joint.signature, bind(), in_place, captured, config, recorder, loops=loops)
    with run.stage("partition"):
        parts = partition_stage.partition(joint, memory_budget=config.memory_budget, fuses=fuses)
    saved, parts_signature = parts.saved, parts.signature
    if loops:
        channels_last([parts.forward.graph, parts.backward.graph], parts.passed())
    record.decisions += parts.decisions
    decisions = record.decisions[:]
    run.record("forward", "py", lambda: graph_text.show(parts.forward.graph, f"forward{record.id}"))
    run.record("backward", "py", lambda: graph_text.show(parts.backward.graph, f"backward{record.id}"))
    saved_results = {s.index for s in parts.saved if s.source != "input"}
    new_values = {i: r for i, r in parts.signature.new_values().items() if r not in saved_results}
    bind_forward, in_place = lower(parts.forward, "forward", new_values, keep_forward)

    donated = [k for k, s in enumerate(parts.saved) if s.source == "extra" and s.tensor]

    def or_eager(make: Callable[[], T], otherwise: T) -> T:
        try:
            return make()
        except Exception as error:
            if config.strict and not isinstance(error, _refusals()):
                raise
            recorder.on_diagnostic(_refusal(error, captured))
            return otherwise

    @functools.cache
    def lower_backward() -> Bind:
        otherwise: Bind = functools.partial(straight_line, parts.backward)
        return or_eager(lambda: lower(parts.backward, "backward", {}, keep_backward, donated)[0], otherwise)

    def compile_backward() -> Callable[..., Any]:
        bind = lower_backward()
        return or_eager(bind, None) or straight_line(parts.backward)

    if loops and target_of(captured) == "cuda" and not recorder.texts:
        lower_backward()  # while the forward's kernels are compiled
    forward = bind_forward()
    return _with_effects(
        parts.signature, forward, in_place, captured, config, recorder, saved=parts.saved,
        compile_backward=compile_backward, again=again, loops=loops,
    )  # fmt: skip


def _with_effects(
    signature: Signature, forward: Callable[..., Any], written: list[int], captured: Captured, config: Config,
    recorder: Recorder, *, loops: bool, saved: Sequence[SavedValue] = (),
    compile_backward: Callable[[], Callable[..., Any]] | None = None, again: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """The graph's callable, with eager's effects. A backward is compiled when it first runs, or at once (``again``)."""
    from .autograd.random_numbers import drawing
    from .capture import _hook
    from .capture.resuming import AsWritten
    from .capture.tensor_layout import tangents_like
    from .runtime import autograd_function

    eager = _as_captured(captured.module)
    if signature.random and loops and not config.fallback_random:
        eager = drawing(eager)
    if compile_backward is None:
        return autograd_function.build(signature, forward, written=written, eager=eager)

    def as_written(inputs: tuple[Any, ...]) -> Any:
        recorder.on_diagnostic(make("FL303", captured.span, what=captured.frame))
        raise AsWritten

    def disabled_backward() -> Callable[..., Any]:
        with uncollected():
            return _hook.disabled(compile_backward())  # the program may run it inside a compiled function

    return autograd_function.build(
        signature, forward, written=written, saved=saved,
        backward=disabled_backward() if recorder.backwards or again else None,
        compile_backward=_hook.disabled(disabled_backward), eager=eager,
        on_double_backward=lambda: recorder.on_diagnostic(make("FL302", captured.span)),
        expects=tangents_like, as_written=as_written if captured.resumable else None,
    )  # fmt: skip


_VARIANTS = 8  # ways of sharing memory that one graph is compiled for


def _by_sharing(
    ready: Callable[..., Any],
    shared: Sharing,
    find: Callable[[tuple[Any, ...]], Sharing],
    compile_for: Callable[[Sharing], Callable[..., Any]],
    eager: Callable[..., Any],
) -> Callable[..., Any]:
    """``ready`` for calls whose inputs share memory as ``shared`` says; others are compiled for when they come."""
    from .autograd.unsupported import Unsupported

    variants = {shared: ready}
    lock = threading.Lock()

    def run(inputs: tuple[Any, ...]) -> Any:
        try:
            found = find(inputs)
        except Unsupported:
            return eager(inputs)
        if found is shared:
            return ready(inputs)
        with lock:
            variant = variants.get(found)
            if variant is None:
                variant = variants[found] = compile_for(found) if len(variants) < _VARIANTS else eager
        return variant(inputs)

    return run


def _kernels(
    module: fx.GraphModule,
    phase: str,
    captured: Captured,
    config: Config,
    recorder: Recorder,
    run: Run,
    writes: dict[int, int],
    keep: Callable[[Program], None],
    known: Mapping[int, torch.Tensor],
    donated: Sequence[int],
) -> tuple[Bind, list[int]]:
    """What makes a callable, and the inputs that it writes by itself. ``keep`` is given what a later process builds it
    from. Kernels for a GPU are being compiled when this returns."""
    from .autograd.unsupported import Unsupported
    from .codegen.generate import generate, variants
    from .ir import text
    from .lowering.lower import lower
    from .lowering.products import form
    from .rewrite.attention import attention
    from .rewrite.constants import Constants
    from .rewrite.convolutions import pack
    from .rewrite.halves import single
    from .rewrite.libraries import choose
    from .rewrite.rows import own_attention
    from .rewrite.simplify import simplify
    from .runtime.autotune import tune
    from .runtime.build import host_isa
    from .runtime.compile_graph import floats_as_tensors
    from .runtime.measure import LEAST_GAIN, Libraries
    from .schedule.fuse import fuse
    from .schedule.order import live_bytes, order
    from .schedule.split import for_gpu

    record, target = run.graph, target_of(captured)
    suffix = "" if phase == "forward" else ".backward"
    first = len(record.stages)
    with run.stage(f"simplify{suffix}"):
        module = simplify(module)
        decisions = [*attention(module), *own_attention(module)]
        libraries, constants = Libraries(config), Constants(module, known)
        with torch_private.autocast_off():
            decisions += single(module, libraries.half_seconds, LEAST_GAIN, constants, form)
            decisions += choose(module, libraries.seconds, LEAST_GAIN, constants)
            decisions += pack(module, libraries.convolution_seconds, constants)
    run.record(f"simplify{suffix}", "py", lambda: graph_text.show(module.graph, f"{phase}{record.id}"))
    with run.stage(f"lower{suffix}"):
        loops = lower(module, name=f"graph{record.id}{'_backward' if suffix else ''}", writes=writes)
    run.record(f"lower{suffix}", "loop", lambda: text.show(loops))
    with run.stage(f"fuse{suffix}"):
        fused = fuse(loops)
        if target == "cuda":
            fused = for_gpu(fused)
    run.record(f"fuse{suffix}", "loop", lambda: text.show(fused))
    tunings: dict[str, Any] = {}
    if config.mode.startswith("max-autotune") and target == "cuda" and not torch.cuda.is_current_stream_capturing():
        from . import tuning

        with run.stage(f"tune{suffix}"):
            fused, tunings, tried = tuning.for_gpu(fused, config, loops=loops)
            decisions += tried
        run.record(f"tune{suffix}", "loop", lambda: text.show(fused))
    if target == "cuda" and torch.are_deterministic_algorithms_enabled() and fused.order_matters():
        raise Unsupported(
            "torch.use_deterministic_algorithms(True) holds, and it changes elements in an order that varies"
        )
    with run.stage(f"order{suffix}"):
        taken = [loops.inputs[k] for k in donated] if donated and target == "cpu" and _donates() else ()
        ordered = order(fused, taken)
    run.record(f"order{suffix}", "loop", lambda: text.show(ordered))
    floats = [i for i, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder")
              if isinstance(node.meta.get("val"), torch.SymFloat)]  # fmt: skip
    results = next(n for n in module.graph.nodes if n.op == "output").args[0]
    numbers = [i for i, r in enumerate(results)
               if isinstance(r, fx.Node) and isinstance(r.meta.get("val"), torch.SymFloat)]  # fmt: skip
    with run.stage(f"generate{suffix}"):
        make_sources = functools.partial(
            generate,
            ordered,
            target,
            host_isa(config),
            floats=floats,
            float_outputs=numbers,
            fast_math=config.fast_math,
        )
        if config.mode.startswith("max-autotune") and target == "cpu":
            others = variants(ordered, host_isa(config), torch.get_num_threads())
            tunings, tried = tune(ordered, lambda chosen: make_sources(cpp_host=False, tunings=chosen), others, config)
            decisions += tried
        on_gpu = target == "cpu" and (config.target.startswith("cuda") or config.triton_text or recorder.texts)
        there, document = _on_gpu(module, fused, config) if on_gpu else (ordered, None)
        generated = make_sources(document, cpp_host=_has_cpp_hosts(), tunings=tunings)
    held = live_memory.saved_bytes(record) if suffix else 0
    memory = [
        report.MemoryStep(node.name, phase, held + count, node.spans)
        for node, count in zip(ordered.nodes, live_bytes(ordered), strict=True)
    ]
    written = [i for i, name in enumerate(loops.inputs) if name in loops.writes]
    program = Program(
        ordered.name, generated.counted(ordered.hint), dict(ordered.constants), written,
        [*decisions, *ordered.decisions], memory,
        [e.target for e in ordered.externs()],
    )  # fmt: skip
    stages = record.stages[first:]
    _say(program, record)
    if target == "cuda" and generated.triton is not None:
        from .runtime.launch import compile_ahead

        compile_ahead([generated.triton], config)

    def bind() -> Callable[[tuple[Any, ...]], Any]:
        call = _bound(program, phase, captured, config, recorder, run)
        keep(dataclasses.replace(program, stages=stages))
        if target == "cpu" and config.target.startswith("cuda"):
            assert document is not None
            with run.stage(f"build.ptx{suffix}"):
                _compile_for_absent_gpu(there, document, phase, suffix, captured, config, recorder, run)
        in_python = generated.program is None
        return floats_as_tensors(call, floats, numbers, loops) if floats and in_python else call

    return bind, written


def _say(program: Program, record: report.Graph) -> None:
    """Puts what the stages decided into the report."""
    record.decisions += program.decisions
    record.memory += program.memory
    record.externs += program.externs


def _donates() -> bool:
    """Whether C++ host programs can tell that an input's memory is theirs."""
    from .runtime import program

    return _has_cpp_hosts() and program.donates()


def _has_cpp_hosts() -> bool:
    """Whether this process can run host programs in C++."""
    from .capture import tensor_layout
    from .runtime import program

    return program.available(tensor_layout.tensor_offset())


def _from_cache(
    program: Program, phase: str, captured: Captured, config: Config, recorder: Recorder, run: Run
) -> Callable[[tuple[Any, ...]], Any]:
    for stage in program.stages:
        run.keep(stage)
    _say(program, run.graph)
    return _bound(program, phase, captured, config, recorder, run)


def _bound(
    program: Program, phase: str, captured: Captured, config: Config, recorder: Recorder, run: Run
) -> Callable[[tuple[Any, ...]], Any]:
    """The callable of a program; the report gets what its build says."""
    from .runtime.compile_graph import build

    record, target = run.graph, target_of(captured)
    suffix = "" if phase == "forward" else ".backward"
    with run.stage(f"build{suffix}"):
        built = build(program, program.generated, config, target, phase)
    record.timings += [report.Timing(f"{t.stage}{suffix}", t.seconds) for t in built.timings]
    record.cached = built.cached if not suffix else record.cached and built.cached
    for diagnostic in built.diagnostics:
        recorder.on_diagnostic(diagnostic)
    if recorder.follower is not None:
        _follow_kernels(built, program, phase, config, recorder.follower, record.id)
    kernels = built.kernels
    if recorder.texts:
        for stage in built.stages:
            shown = captured.sizes.rename(stage.text, "_size") if captured.sizes is not None else stage.text
            run.keep(report.Stage(f"{stage.name}{suffix}", stage.suffix, shown, stage.lines))
        if target == "cuda" and program.generated.triton is not None and kernels:
            compiled = _compiled_for_gpu(program.generated.triton, config, sized=bool(assembly_of(config)))
            run.assembly(program.generated.triton, suffix, compiled, captured)
            functions = {k.name: k.function for k in program.generated.triton.kernels}
            found = {name: compiled[f].resources for name, f in functions.items() if f in compiled}
            kernels = [dataclasses.replace(k, resources=dict(found.get(k.name, {}))) for k in kernels]
    if target != "cpu" or not config.target.startswith("cuda"):
        record.kernels += kernels

    def unrecorded(code: str, why: str) -> None:
        recorder.on_diagnostic(make(code, captured.span, what=f"graph {record.id} ({phase})", why=why))

    if target == "cuda" and config.mode in ("reduce-overhead", "max-autotune"):
        from .runtime.cuda_graphs import Recorded

        static = captured.owned if phase == "forward" else ()
        symbolic = captured.sizes is not None
        return Recorded(built.call, program.written, static, symbolic, config.cuda_graph_memory, unrecorded)
    if config.mode == "reduce-overhead" and not config.target.startswith("cuda"):
        unrecorded("FL501", "it runs on the CPU")
    return built.call


def _follow_kernels(
    built: Built, program: Program, phase: str, config: Config, follower: live.Follower, number: int
) -> None:
    """Has the times of a C++ program's kernels taken now and then."""
    from .runtime.kernel_times import Probe, timed

    text = timed(program.generated)
    if text is not None:
        kernels = [(kernel.name, phase, kernel.spans) for kernel in built.kernels]
        follower.kernels(number, kernels, Probe(built.call, text, program.generated, config))  # type: ignore[arg-type]


def _on_gpu(module: fx.GraphModule, fused: Graph, config: Config) -> tuple[Graph, Source | None]:
    """The Triton kernels that a CPU graph would have on a GPU, and the graph that they are of.

    Where nobody asked for a GPU they are a document only, of the graph as it was lowered if Triton can express it.
    """
    from .codegen.source import Unsupported
    from .codegen.triton.kernels import to_triton
    from .lowering.lower import lower
    from .schedule.fuse import fuse
    from .schedule.order import order
    from .schedule.split import for_gpu

    asked = config.target.startswith("cuda")
    if not asked:
        with suppress(Unsupported):
            there = order(for_gpu(fused))
            return there, to_triton(there)
    there = order(for_gpu(fuse(lower(module, name=fused.name, device="cuda"))))
    try:
        return there, to_triton(there, config.target if asked else "cuda")
    except Unsupported:
        if asked:
            raise
        return there, None


def _compiled_for_gpu(source: Source, config: Config, *, sized: bool) -> dict[str, Compiled]:
    """The functions of ``source`` as they were compiled for the GPU that is here, by name."""
    from .codegen.triton.assembly import Compiled, resource_usage
    from .runtime.launch import compiled

    return {
        name: Compiled(made, {**resource_usage(made["cubin"]), "shared": shared})
        for name, (made, shared) in compiled(source, config, texts=sized).items()
    }


def _compile_for_absent_gpu(
    graph: Graph,
    source: Source,
    phase: str,
    suffix: str,
    captured: Captured,
    config: Config,
    recorder: Recorder,
    run: Run,
) -> None:
    """Kernels of a CPU graph compiled for the configured GPU: texts and resources, nothing that runs."""
    architecture = int(config.target.partition("sm_")[2] or 90)
    try:
        from .codegen.triton.assembly import Compiled
        from .codegen.triton.offline import compile_kernel, load_module

        module = load_module(source, config.cache_dir / "offline")
    except ImportError as error:
        recorder.on_diagnostic(
            make("FL402", captured.span, what=config.target, why=f"Triton is not installed ({error})")
        )
        return
    by_function: dict[str, Compiled] = {}
    for info in source.kernels:
        if info.function not in by_function:
            asm = compile_kernel(module, info, architecture)
            by_function[info.function] = Compiled(asm, {k: int(asm[k]) for k in ("registers", "spills", "shared")})
        resources = dict(by_function[info.function].resources)
        read, written = (None if b is None else graph.hint(b) for b in (info.bytes_read, info.bytes_written))
        run.graph.kernels.append(
            report.Kernel(
                info.name, "triton", phase, info.kind, info.operations, info.spans, read, written, resources=resources
            )
        )  # fmt: skip
    if source.kernels:
        run.assembly(source, suffix, by_function, captured)


def _cards(captured: Captured) -> tuple[Any, ...]:
    """What the stages may see of the graph's GPUs and the software for them."""
    from .runtime.triton_jobs import versions

    values = (n.meta.get("val") for n in captured.module.graph.nodes)
    devices = {v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"}
    cards: list[tuple[Any, ...]] = []
    for device in sorted(devices, key=str):
        card: Any = torch.cuda.get_device_properties(device)
        about = (card.major, card.minor, card.multi_processor_count, card.total_memory, card.L2_cache_size)
        cards.append((str(device), card.name, *about))
    return (torch.version.cuda, torch.backends.cudnn.version(), cards, versions())


def target_of(captured: Captured) -> str:
    """Where the graph's kernels run: on the GPU if any of its tensors are there."""
    values = (n.meta.get("val") for n in captured.module.graph.nodes)
    return "cuda" if any(isinstance(v, torch.Tensor) and v.device.type == "cuda" for v in values) else "cpu"


def warm() -> None:
    """Fills what every compilation needs (tables, torch's and sympy's caches) without computing on real tensors.

    The worker calls it once before it forks; a process that forks must have started neither OpenMP's threads nor, where
    torch was built for accelerators, those of the autograd engine. So a backward's operators are here a forward's.
    """
    from .autograd import joint as joint_stage
    from .autograd import partition as partition_stage
    from .capture import classify, tensor_layout
    from .capture.sources import local
    from .capture.symbols import Sizes
    from .codegen.generate import generate
    from .config import from_environment
    from .lowering.lower import lower
    from .rewrite.simplify import simplify
    from .runtime.build import NoCompiler, find_compiler, host_isa
    from .schedule.fuse import fuse
    from .schedule.order import order

    tensor_layout.ensure()
    with suppress(NoCompiler):
        find_compiler(from_environment())
    classify.is_graph_callable(torch.relu)
    for axes in ({}, {"x": {0: "n"}}):
        sizes = Sizes(axes) if axes else None
        mode = torch_private.fake_mode(sizes.env if sizes else None)
        real = torch.empty(4, 8, requires_grad=True)
        fake = (
            sizes.fake(mode, real, {0: True}, local(0, "x"), None) if sizes else torch_private.fake_static(mode, real)
        )
        graph = fx.Graph()
        x = graph.placeholder("x")
        positive = graph.call_function(torch.relu, (x,))
        y = graph.call_function(torch.softmax, (positive, -1))
        total = graph.call_method("sum", (y, 0))
        aten = torch.ops.aten
        tangent = graph.call_method("expand_as", (total, x))
        tangent = graph.call_function(aten._softmax_backward_data.default, (tangent, y, -1, torch.float32))
        graph.output((total, graph.call_function(aten.threshold_backward.default, (tangent, positive, 0))))
        module = fx.GraphModule(torch.nn.Module(), graph)
        torch_private.propagate(module, mode, [fake])
        part = partition_stage.forward_only(joint_stage.trace(module, [fake], grad_enabled=False))
        generate(order(fuse(lower(simplify(part), name="warm"))), "cpu", host_isa(from_environment()))
