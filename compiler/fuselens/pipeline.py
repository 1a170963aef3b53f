"""The pipeline is this list: what happens to a captured graph, stage by stage.

The runner times, records and (on request) prints or dumps each stage; no stage does that for itself. A stage that
cannot handle a graph raises a typed refusal; the graph then runs eagerly, as captured, and the report says why.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from . import frozen, live_memory, report, sharing, torch_private
from .capture.frame import Captured, Facts
from .capture.tracer import describe_tensor
from .config import Config
from .diagnostics import make
from .ir import graph_text
from .ir.loops import Graph
from .ir.straight_line import straight_line

if TYPE_CHECKING:
    from .autograd.joint import Joint
    from .autograd.signature import Sharing

STAGES = (
    "capture",
    "joint",
    "forward",
    "backward",
    "simplify",
    "lower",
    "fuse",
    "order",
    "cpp",
    "triton",
    "host",
    "ptx",
    "memory",
    "guards",
)
log = logging.getLogger("fuselens")
_numbers = itertools.count()


class Recorder:
    """Collects what the stages say into a :class:`report.Report`."""

    def __init__(self, function: str, file: str, span: report.Span | None, config: Config, texts: bool) -> None:
        self.report = report.Report(function, file, span, target=config.target)
        self.config = config
        self.texts = texts or bool(config.print_after) or config.dump is not None
        self.progress: Callable[[str], None] | None = None
        self._seen: set[Any] = set()

    def on_break(self, diagnostic: report.Diagnostic) -> None:
        key = (diagnostic.code, diagnostic.span)
        if key not in self._seen:
            self._seen.add(key)
            self.report.breaks.append(diagnostic)

    def on_diagnostic(self, diagnostic: report.Diagnostic) -> None:
        key = (diagnostic.code, diagnostic.span, diagnostic.message)
        if key not in self._seen:
            self._seen.add(key)
            self.report.diagnostics.append(diagnostic)

    def on_frame(self, facts: Facts) -> None:
        seen = {(g.source, g.expression) for g in self.report.guards}
        self.report.guards += [g for g in facts.guards if (g.source, g.expression) not in seen]
        self.report.symbols += [s for s in facts.symbols if s not in self.report.symbols]
        known = {(s.name, s.span) for s in self.report.shapes}
        for shape in facts.shapes:
            if (shape.name, shape.span) not in known:
                known.add((shape.name, shape.span))
                self.report.shapes.append(shape)

    def finish(self) -> None:
        """Called when the compilation is over: writes the dump folder that was asked for."""
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
    compiled = _or_eager(make, captured, config, recorder, record)
    if record.memory:
        run.record("memory", "txt", lambda: live_memory.text(record))
    return _hook.disabled(compiled)


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
        return make("FL402", where, what=f"graph of {captured.frame}", why=str(error)[:2000])
    return make("FL404", where, why=f"{type(error).__name__}: {str(error)[:500]}")


def _foreign_devices(graph: fx.Graph) -> set[str]:
    """Types of the devices of a graph's tensors that no kernels are made for: ``meta`` tensors have no data."""
    values = [n.meta.get("val") for n in graph.nodes]
    return {v.device.type for v in values if isinstance(v, torch.Tensor)} - {"cpu", "cuda"}


def _compile(captured: Captured, config: Config, recorder: Recorder, run: Run, *, loops: bool) -> Callable[..., Any]:
    from .autograd.signature import NOTHING_SHARED
    from .autograd.unsupported import Unsupported

    if captured.sizes is not None and torch_private.depends_on_data(captured.sizes.env):
        raise Unsupported("it computes numbers or sizes from data, which kernels do not know beforehand")
    if any(isinstance(n.meta.get("val"), torch.Generator) for n in captured.module.graph.nodes):
        raise Unsupported("it draws from generators of random numbers, which kernels do not")
    if foreign := _foreign_devices(captured.module.graph):
        raise Unsupported(f"it has tensors on the device {min(foreign)}, for which no code is generated")
    if any(isinstance(t, torch.Tensor) and (t.is_conj() or t.is_neg()) for t in captured.inputs):  # fakes may lose it
        raise Unsupported("an input is a lazily conjugated or negated view")
    joint = _trace(captured, config, run, NOTHING_SHARED, loops)
    written = {m.input for m in joint.signature.mutations}
    if not written:
        if config.freezing and loops:
            if call := _freezing(joint, captured, config, recorder, run):
                return call
        return _compile_joint(joint, captured, config, recorder, run, loops=loops)
    visible = {m.input for m in joint.signature.mutations if m.differentiable}
    grad = captured.grad_enabled or joint.signature.enables_grad
    find = functools.partial(sharing.find, written=written, visible=visible, grad=grad)
    shared = find(captured.inputs, wanted=sharing.tensors(captured.inputs))
    if shared is not NOTHING_SHARED:
        joint = _trace(captured, config, run, shared, loops)
    ready = _compile_joint(joint, captured, config, recorder, run, loops=loops)
    wanted = sorted({*written, *captured.arguments, *shared.companions})
    if len(wanted) == 1:
        return ready

    def compile_for(shared: Sharing) -> Callable[..., Any]:
        other = Run(recorder, recorder.new_graph(captured), captured.sizes)

        def make() -> Callable[..., Any]:
            joint = _trace(captured, config, other, shared, loops)
            return _compile_joint(joint, captured, config, recorder, other, loops=loops)

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
            return _compile_joint(
                first[0][0], captured, config, recorder, first.pop()[1], loops=True, constants=tensors
            )
        recorder.on_diagnostic(
            make("FL201", captured.span, what=f"`{captured.frame}`, because a frozen tensor changed")
        )
        other = Run(recorder, recorder.new_graph(captured), captured.sizes)

        def again() -> Callable[..., Any]:
            joint = _trace(captured, config, other, NOTHING_SHARED, loops=True)
            return _compile_joint(joint, captured, config, recorder, other, loops=True, constants=tensors)

        return _or_eager(again, captured, config, recorder, other.graph)

    return frozen.by_state(owned, compile_for, captured.inputs, config.recompile_limit)


def _trace(captured: Captured, config: Config, run: Run, shared: Sharing, loops: bool) -> Joint:
    from .autograd import joint as joint_stage
    from .autograd.unsupported import Unsupported

    if shared.bases and captured.sizes is not None:
        raise Unsupported("an input is written to that shares memory with another input, and sizes are symbolic")
    with run.stage("joint"):
        return joint_stage.trace(
            captured.module,
            captured.fakes,
            grad_enabled=captured.grad_enabled,
            sharing=shared,
            counter_based=loops and not config.fallback_random,
        )


def _compile_joint(
    joint: Joint, captured: Captured, config: Config, recorder: Recorder, run: Run, *, loops: bool,
    constants: Mapping[int, Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    from .autograd import partition as partition_stage
    from .autograd.random_numbers import drawing
    from .capture import _hook
    from .capture.resuming import AsWritten
    from .capture.tensor_layout import tangents_like
    from .lowering.lower import fuses
    from .rewrite.freeze import freeze
    from .rewrite.layout import channels_last
    from .runtime import autograd_function

    record = run.graph
    run.record("joint", "py", lambda: graph_text.show(joint.graph, f"joint{record.id}"))
    eager = _as_captured(captured.module)
    if joint.signature.random and loops and not config.fallback_random:
        eager = drawing(eager)
    record.training = joint.training

    def lower(module: fx.GraphModule, phase: str, writes: dict[int, int]) -> tuple[Callable[..., Any], list[int]]:
        """A callable, and those of the inputs in ``writes`` that it writes by itself, returning None for results."""
        if not loops:
            return straight_line(module), []
        return _kernels(module, phase, captured, config, recorder, run, writes)

    if not joint.training:
        module = partition_stage.forward_only(joint)
        if constants:
            with run.stage("freeze"), torch_private.autocast_off():
                record.decisions += freeze(module, constants)
        if loops:
            channels_last([module.graph])
        call, in_place = lower(module, "forward", joint.signature.new_values())
        return autograd_function.build(joint.signature, call, written=in_place, eager=eager)
    with run.stage("partition"):
        parts = partition_stage.partition(joint, memory_budget=config.memory_budget, fuses=fuses)
    if loops:
        channels_last([parts.forward.graph, parts.backward.graph], parts.passed())
    record.decisions += parts.decisions
    run.record("forward", "py", lambda: graph_text.show(parts.forward.graph, f"forward{record.id}"))
    run.record("backward", "py", lambda: graph_text.show(parts.backward.graph, f"backward{record.id}"))
    saved_results = {s.index for s in parts.saved if s.source != "input"}
    new_values = {i: r for i, r in parts.signature.new_values().items() if r not in saved_results}
    forward, in_place = lower(parts.forward, "forward", new_values)

    def as_written(inputs: tuple[Any, ...]) -> Any:
        recorder.on_diagnostic(make("FL303", captured.span, what=captured.frame))
        raise AsWritten

    def compile_backward() -> Callable[..., Any]:
        return _hook.disabled(lower_backward())  # the program may run it inside a compiled function

    def lower_backward() -> Callable[..., Any]:
        try:
            return lower(parts.backward, "backward", {})[0]
        except Exception as error:
            if config.strict and not isinstance(error, _refusals()):
                raise
            recorder.on_diagnostic(_refusal(error, captured))
            return straight_line(parts.backward)

    return autograd_function.build(
        parts.signature, forward, written=in_place, saved=parts.saved, backward=compile_backward() if recorder.texts else None,
        compile_backward=_hook.disabled(compile_backward), eager=eager,
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
) -> tuple[Callable[[tuple[Any, ...]], Any], list[int]]:
    from .capture import tensor_layout
    from .codegen.generate import generate
    from .ir import text
    from .lowering.lower import lower
    from .rewrite.attention import attention
    from .rewrite.libraries import choose
    from .rewrite.simplify import simplify
    from .runtime import program
    from .runtime.build import host_isa
    from .runtime.compile_graph import build, floats_as_tensors
    from .runtime.measure import LEAST_GAIN, Libraries
    from .schedule.fuse import fuse
    from .schedule.order import live_bytes, order

    record = run.graph
    suffix = "" if phase == "forward" else ".backward"
    with run.stage(f"simplify{suffix}"):
        module = simplify(module)
        record.decisions += attention(module)
        record.decisions += choose(module, Libraries(config).seconds, LEAST_GAIN)
    run.record(f"simplify{suffix}", "py", lambda: graph_text.show(module.graph, f"{phase}{record.id}"))
    with run.stage(f"lower{suffix}"):
        loops = lower(module, name=f"graph{record.id}{'_backward' if suffix else ''}", writes=writes)
    run.record(f"lower{suffix}", "loop", lambda: text.show(loops))
    with run.stage(f"fuse{suffix}"):
        fused = fuse(loops)
    run.record(f"fuse{suffix}", "loop", lambda: text.show(fused))
    with run.stage(f"order{suffix}"):
        ordered = order(fused)
    run.record(f"order{suffix}", "loop", lambda: text.show(ordered))
    target = target_of(captured)
    floats = [i for i, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder")
              if isinstance(node.meta.get("val"), torch.SymFloat)]  # fmt: skip
    results = next(n for n in module.graph.nodes if n.op == "output").args[0]
    numbers = [i for i, r in enumerate(results)
               if isinstance(r, fx.Node) and isinstance(r.meta.get("val"), torch.SymFloat)]  # fmt: skip
    with run.stage(f"generate{suffix}"):
        generated = generate(
            ordered, target, host_isa(config), config.triton_text or recorder.texts,
            cpp_host=program.available(tensor_layout.tensor_offset()), floats=floats, float_outputs=numbers,
        )  # fmt: skip
    with run.stage(f"build{suffix}"):
        built = build(ordered, generated, config, target, phase)
    record.decisions += ordered.decisions
    held = live_memory.saved_bytes(record) if suffix else 0
    record.memory += [
        report.MemoryStep(node.name, phase, held + count, node.spans)
        for node, count in zip(ordered.nodes, live_bytes(ordered), strict=True)
    ]
    record.externs += [e.target for e in ordered.externs()]
    record.timings += [report.Timing(f"{t.stage}{suffix}", t.seconds) for t in built.timings]
    record.cached = built.cached if not suffix else record.cached and built.cached
    for diagnostic in built.diagnostics:
        recorder.on_diagnostic(diagnostic)
    absent_gpu = target == "cpu" and config.target.startswith("cuda")
    if not absent_gpu:
        record.kernels += built.kernels
    if recorder.texts:
        for stage in built.stages:
            shown = captured.sizes.rename(stage.text, "_size") if captured.sizes is not None else stage.text
            run.keep(report.Stage(f"{stage.name}{suffix}", stage.suffix, shown, stage.lines))
    if absent_gpu:
        with run.stage(f"build.ptx{suffix}"):
            _compile_for_absent_gpu(ordered, phase, suffix, captured, config, recorder, run)
    in_python = generated.cpp is None or generated.cpp.program is None
    call = floats_as_tensors(built.call, floats, numbers, loops) if floats and in_python else built.call
    return call, [i for i, name in enumerate(loops.inputs) if name in loops.writes]


def _compile_for_absent_gpu(
    ordered: Graph, phase: str, suffix: str, captured: Captured, config: Config, recorder: Recorder, run: Run
) -> None:
    """Kernels of a CPU graph generated and compiled for the configured GPU: texts and resources, nothing that runs."""
    from .codegen.triton.kernels import to_triton

    source = to_triton(ordered, config.target)
    architecture = int(config.target.partition("sm_")[2] or 90)
    try:
        from .codegen.triton.offline import compile_kernel, load_module

        module = load_module(source, config.cache_dir / "offline")
    except ImportError as error:
        recorder.on_diagnostic(
            make("FL402", captured.span, what=config.target, why=f"Triton is not installed ({error})")
        )
        return
    for info in source.kernels:
        compiled = compile_kernel(module, info, architecture)
        resources = {k: int(compiled[k]) for k in ("registers", "spills", "shared")}
        read, written = (None if b is None else ordered.hint(b) for b in (info.bytes_read, info.bytes_written))
        run.graph.kernels.append(
            report.Kernel(
                info.name, "triton", phase, info.kind, info.operations, info.spans, read, written, resources=resources
            )
        )  # fmt: skip
        if recorder.texts:
            run.keep(report.Stage(f"ptx{suffix}.{info.name}", "ptx", compiled["ptx"]))


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
    from .runtime.build import host_isa
    from .schedule.fuse import fuse
    from .schedule.order import order

    tensor_layout.ensure()
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
        generate(order(fuse(lower(simplify(part), name="warm"))), "cpu", host_isa(from_environment()), False)
