"""A captured graph becomes a callable: of the cache or of the stages, for inputs as they share memory, frozen or not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .. import torch_private
from ..autograd.untraceable import Untraceable
from ..capture.frame.captured import Captured
from ..capture.hook import _hook
from ..capture.kept.names import Gone
from ..config import changed_options
from ..inputs import weightless
from ..ir.contracts.signature import NOTHING_SHARED, Sharing, Signature
from ..ir.graphs import graph_text
from ..ir.graphs.program_text import program
from ..record import live_memory, report
from ..record.diagnostics import make
from ..runtime import memory
from ..runtime.build import host_isa
from ..runtime.gpu import triton_worker
from . import gpu, programs
from .cache_keys import Key, facts_of, key_for
from .effects import with_effects
from .graph_cache import Entry, GraphCache, Program
from .parts.part import Compiler
from .parts.repeats import repeats
from .parts.units import Unit, apart, buckets, decided_by_data, of_cuts
from .recorder import Recorder, Run
from .refusals import Ready, eagerly, or_eager, or_ready, restoring, watched
from .variants import frozen, lazy_views, sharing

if TYPE_CHECKING:
    from ..autograd.joint import Joint


def compile_graph(captured: Captured, recorder: Recorder) -> Callable[[tuple[Any, ...]], Any]:
    """The callable (gathered inputs → outputs) for a captured graph. Never fails: what is refused runs eagerly."""

    def compiled(captured: Captured) -> Callable[[tuple[Any, ...]], Any]:
        return _tried(captured, recorder, functools.partial(_start, captured, recorder))()

    measuring = recorder.measuring
    return compiled(captured) if measuring is None else _hook.disabled(measuring(captured, compiled))


def _tried(captured: Captured, recorder: Recorder, start: Callable[[], Ready]) -> Ready:
    """What gives the callable; who tries an edited kernel out hears of its calls."""
    number, ready, trial = len(recorder.report.graphs), start(), recorder.trial
    return ready if trial is None else lambda: _hook.disabled(trial.graph(number, captured, ready()))


def _start(
    captured: Captured, recorder: Recorder, part_of: int | None = None, backwards: list[Any] | None = None,
    units: Sequence[Unit] = (),
) -> Ready:  # fmt: skip
    """What gives the callable, while kernels are being compiled. ``part_of`` is the number of the graph that this one is a part of,
    of which it stands for ``units``; ``backwards`` is what lowers those of all its parts."""
    record = recorder.new_graph(captured, part_of)
    record.runs = max(1, len(units))
    record.decisions += _compiled_once(record, units)
    run = Run(captured, recorder, record, backwards=[] if backwards is None else backwards)
    run.record("capture", "py", lambda: graph_text.show(captured.module.graph, f"graph{record.id}"))
    if captured.made is not None:
        return _ready(_of_cache(captured, run))
    facts = facts_of(captured)
    record.outputs = facts.outputs
    if run.config.dump is not None or "all" in run.config.assembly:
        record.repro = _program(run)
    if recorder.programs is not None:
        record.fallback = True
        return _ready(recorder.programs.written(record, captured, functools.partial(_program, run)))
    if recorder.values is not None:
        record.fallback = True
        return _ready(watched(captured.module, record, recorder.values))
    if run.config.backend == "eager" or run.until[0] == "capture":
        record.fallback = True
        return _ready(eagerly(captured))

    def finished(ready: Ready) -> Callable[..., Any]:
        made = or_eager(ready, run)
        if record.memory:
            run.record("memory", "txt", lambda: live_memory.text(record, run.recorder.report.file))
        return made

    in_parts = part_of is None and decided_by_data(captured)
    units = _units(run) if part_of is None and not in_parts else []
    captured.keepable &= not in_parts
    looks = run.config.weightless and run.target == "cpu" and _has_large_tensors(captured.module.graph)
    if in_parts and looks:  # whose sizes are known when it runs
        return _ready(_without_values(eagerly(captured)))
    if in_parts:
        return _ready(or_eager(lambda: _in_parts(run), run))
    if units:
        made = or_eager(lambda: _known_parts(run, units), run)
        return _ready(_without_values(eagerly(captured)) if looks else made)
    start = functools.partial(or_ready, lambda: _compile(run), run)
    if not looks and (run.config.build or run.target != "cpu"):
        ready = start()
        return lambda: _hook.disabled(finished(ready))
    recorder.later(lambda: finished(start()))
    return _ready(_without_values(eagerly(captured)) if looks else eagerly(captured))


def _ready(call: Callable[..., Any]) -> Ready:
    call = _hook.disabled(call)
    return lambda: call


# Nodes that are not compiled again, for which it is worth while to call parts: on a GPU, whose kernels take little more than
# their launches, a call costs a tenth of a small layer.
_LEAST = {"cpu": 100, "cuda": 600}


def _units(run: Run) -> list[Unit]:
    """The parts that are known before the graph runs; none where it is compiled as a whole."""
    captured, config = run.captured, run.config
    if captured.cuts:
        return of_cuts(captured)
    if captured.pending is not None:  # then it was compiled as a whole before
        return buckets(captured)
    recorded = run.target == "cuda" and config.mode in ("reduce-overhead", "max-autotune")  # as one CUDA graph
    runs_to_compile = captured.sizes is not None and config.weightless  # and nothing runs
    found = buckets(captured) or apart(captured)
    if found or recorded or runs_to_compile or config.freezing or not config.regions:
        return found
    least = _LEAST["cuda" if run.for_absent_gpu else run.target]
    return repeats(list(captured.module.graph.nodes), least, captured.grad_enabled)


def _program(run: Run, values: str = "") -> str:
    """The captured graph as a program of its own."""
    captured, told = run.captured, run.recorder.report
    about = f"Graph {run.graph.id} of {told.function} ({captured.span or told.file}), as fuselens captured it."
    options = changed_options(run.config)
    graph, mode = captured.module.graph, run.config.mode
    return program(graph, captured.inputs, about=about, options=options, mode=mode, values=values)


def _in_parts(run: Run) -> Callable[..., Any]:
    """The graph with its parts compiled, each when it first runs."""
    return restoring(_parts(run).in_parts(run.captured.module), run.captured)


def _known_parts(run: Run, units: list[Unit]) -> Callable[..., Any]:
    """The graph with its parts compiled, and what its report has of them."""
    graphs = run.recorder.report.graphs
    first = len(graphs)
    call, numbers = _parts(run).known_parts(units)

    def add_up() -> None:
        run.graph.memory += live_memory.of_parts([graphs[first + n] for n in numbers if n is not None])
        run.record("memory", "txt", lambda: live_memory.text(run.graph, run.recorder.report.file))

    if run.recorder.texts and run.captured.sizes is None:
        run.recorder.later(add_up) if not run.recorder.finished else add_up()
    return restoring(call, run.captured)


def _compiled_once(graph: report.Graph, units: Sequence[Unit]) -> list[report.Decision]:
    """Why a part is compiled once that stands for several units."""
    if len(units) < 2:
        return []
    spans = [span for unit in units for node in unit.nodes if (span := node.meta.get("span")) is not None]
    lines = sorted({span.line for span in spans if span.file == spans[0].file})
    why = f"graph {graph.part_of} does its {len(units[0].nodes)} operations {len(units)} times"
    why += f" (lines {lines[0]} to {lines[-1]})" if len(lines) > 1 else ""
    return [report.Decision("FL417", "taken", f"graph {graph.id}", why, spans[0] if spans else None, {"lines": lines})]


def _parts(run: Run) -> Compiler:
    def refused(why: str) -> None:
        run.say(make("FL301", run.captured.span, why=why))

    def start(captured: Captured, units: Sequence[Unit]) -> Ready:
        begin = functools.partial(_start, captured, run.recorder, run.graph.id, run.backwards, units)
        return _tried(captured, run.recorder, begin)

    return Compiler(run.captured, start, refused, run.config.recompile_limit)


def _has_large_tensors(graph: fx.Graph) -> bool:
    values = (n.meta.get("val") for n in graph.nodes)
    return any(weightless.is_large(v) for v in values if isinstance(v, torch.Tensor))


def _without_values(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` for one who looks: large values cost nothing."""

    def look(inputs: tuple[Any, ...]) -> Any:
        with weightless.Weightless():
            return call(inputs)

    return look


def _has_nested(captured: Captured) -> bool:
    return any(torch_private.is_nested_class(type(node.meta.get("val"))) for node in captured.module.graph.nodes)


def _compile(run: Run, lazy: frozenset[int] = frozenset()) -> Ready:
    """``lazy`` are inputs that stand for lazily conjugated or negated ones."""
    captured = run.captured
    if captured.sizes is not None and torch_private.depends_on_data(captured.sizes.env):
        raise Untraceable("it computes numbers or sizes from data, which kernels do not know beforehand")
    facts = facts_of(captured)
    if facts.generators:
        raise Untraceable("it draws from generators of random numbers, which kernels do not")
    if foreign := {torch.device(device).type for device in facts.devices} - _DEVICES:
        raise Untraceable(f"it has tensors on the device {min(foreign)}, for which no code is generated")
    if torch_private.NUMBER_OF_MODES() and _has_nested(captured):
        raise Untraceable(
            "it computes with nested tensors where a mode, as the default device has one, is asked as well"
        )
    if run.loops and len(gpus := gpu.devices(captured)) > 1:
        raise Untraceable(
            f"it has tensors on several GPUs ({', '.join(map(str, gpus))}), and kernels of a graph run on one"
        )
    if unread := [t for t in captured.inputs if isinstance(t, torch.Tensor) and torch_private.is_foreign(t)]:
        raise Untraceable(
            f"it is given {memory.described(unread[0])}, whose elements kernels cannot read at its address"
        )
    if turns := lazy_views.turns(captured.inputs):
        plain = lazy_views.in_memory(captured, turns)
        if plain is None:
            raise Untraceable("it returns an input that is a lazily conjugated or negated view")
        ready = _compile(replace(run, captured=plain), frozenset(turns))
        return lambda: _turning(ready(), turns)
    traced = _trace(run, NOTHING_SHARED)
    signature = traced.signature
    if captured.sizes is not None and torch_private.depends_on_data(captured.sizes.env):
        raise Untraceable("its gradients have sizes that data decides, which kernels do not know beforehand")
    written = {m.input for m in signature.mutations}
    if lazy & written:
        raise Untraceable("it writes to an input that is a lazily conjugated or negated view")
    if not written:
        return _freezing(traced, run) or _compile_traced(traced, run)
    shared = _finding(captured, signature)(captured.inputs, wanted=sharing.tensors(captured.inputs))
    if shared is not NOTHING_SHARED:
        traced = _trace(run, shared)

    def compile_for(shared: Sharing) -> Callable[..., Any]:
        other = run.again()
        return or_eager(lambda: _compile_traced(_trace(other, shared), other)(), other)

    ready = _compile_traced(traced, run)
    share = _as_inputs_share(captured, signature, shared, compile_for)
    return lambda: share(ready())


def _turning(call: Callable[..., Any], turns: Any) -> Callable[..., Any]:
    return lambda inputs: call(lazy_views.turned(inputs, turns))


def _of_cache(captured: Captured, run: Run) -> Callable[..., Any]:
    """The callable of a graph that serves several sizes, whose programs the cache has. Raises Gone where it does not."""
    assert captured.made is not None and captured.facts is not None
    name, host = captured.made
    cache = GraphCache(run.config, Key(name))
    entry = cache.load() if host == repr(_host(run)) else None
    backward = cache.load_backward() if entry is not None and entry.training else None
    for diagnostic in cache.cache.drain():
        run.say(diagnostic)
    if entry is None or (entry.training and backward is None):
        run.recorder.report.graphs.remove(run.graph)
        raise Gone("its programs")
    run.looked_up("graph", True)
    run.graph.outputs = captured.facts.outputs
    return or_eager(lambda: _of_made(entry, backward, run), run)


def of_entry(captured: Captured, recorder: Recorder, entry: Entry, backward: Program | None) -> Callable[..., Any]:
    """The callable of a graph whose programs another process made. It never traces, and runs the graph as it was captured where
    inputs share memory in another way than when that was made. Raises what building its programs does."""
    return _hook.disabled(_of_made(entry, backward, Run(captured, recorder, recorder.new_graph(captured))))


def _of_made(entry: Entry, backward: Program | None, run: Run) -> Callable[..., Any]:
    captured = run.captured
    signature, eager = entry.signature, eagerly(captured)
    ready = _of_entry(entry, backward, run)
    return _as_inputs_share(captured, signature, signature.sharing, lambda shared: eager)(ready)


def _host(run: Run) -> tuple[Any, ...]:
    """What code is generated for, and how it is called."""
    on_gpu = run.target == "cuda"
    return host_isa(run.config), programs.has_cpp_hosts(), *(gpu.cards(run.captured) if on_gpu else ())


def _finding(captured: Captured, signature: Signature) -> Callable[..., Sharing]:
    """What finds how inputs share memory with those that the graph writes to."""
    written = {m.input for m in signature.mutations}
    visible = {m.input for m in signature.mutations if m.differentiable}
    grad = captured.grad_enabled or signature.enables_grad
    return functools.partial(sharing.find, written=written, visible=visible, grad=grad)


def _as_inputs_share(
    captured: Captured, signature: Signature, shared: Sharing, compile_for: Callable[[Sharing], Callable[..., Any]]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of a callable that is for inputs which share memory as ``shared`` says, that and what is compiled for others."""
    wanted = sorted({*(m.input for m in signature.mutations), *captured.arguments, *shared.companions})
    if not signature.mutations or len(wanted) == 1:
        return lambda ready: ready
    find = functools.partial(_finding(captured, signature), wanted=wanted)
    return lambda ready: sharing.by_sharing(ready, shared, find, compile_for, eagerly(captured))


_DEVICES = {"cpu", "cuda"}  # kernels are made for tensors there: ``meta`` tensors, say, have no data


def _freezing(traced: _Traced, run: Run) -> Ready | None:
    """The graph compiled for parameters and buffers as they are, and again when they change; None where it is not."""
    if not run.config.freezing or not run.loops:
        return None
    captured, joint = run.captured, traced.joint
    if joint.training or joint.signature.detached:
        run.say(make("FL304", captured.span, why="gradients are recorded"))
        return None
    owned = [i for i in captured.owned if frozen.freezable(captured.inputs[i])]
    if not owned:
        return None
    first = [(traced, run)]

    def compile_for(tensors: Mapping[int, Any]) -> Callable[..., Any]:
        if first:
            return _compile_traced(*first.pop(), constants=tensors)()
        run.say(make("FL201", captured.span, what=f"`{captured.frame}`, because a frozen tensor changed"))
        other = run.again()
        return or_eager(lambda: _compile_traced(_trace(other, NOTHING_SHARED), other, constants=tensors)(), other)

    call = frozen.by_state(owned, compile_for, captured.inputs, run.config.recompile_limit)
    return lambda: call


class _Traced:
    """A captured graph's joint graph, or what the cache has of it: then ``joint`` is traced if somebody asks for it.

    ``again``: the cache has its forward, but no backward yet. ``env`` are its symbolic sizes, if there are any.
    """

    def __init__(self, cache: GraphCache, trace: Callable[[], Joint], env: Any) -> None:
        self.cache, self._trace, self._env = cache, trace, env
        self._conditions = 0 if env is None else len(torch_private.shape_guards(env))
        self.entry = cache.load()
        if self.entry is not None and env is not None and not cache.decided(env):
            self.entry = None
        self.backward = cache.load_backward() if self.entry is not None and self.entry.training else None
        self.again = self.entry is not None and self.entry.training and self.backward is None
        if self.again:
            self.entry = None

    def why_missing(self) -> str:
        return "its backward was not compiled before" if self.again else self.cache.why_missing()

    def keep_conditions(self) -> None:
        """When all that is compiled now is compiled: what was decided of symbolic sizes for it."""
        if self._env is not None:
            self.cache.store_conditions(self._env, self._conditions)

    @functools.cached_property
    def joint(self) -> Joint:
        return self._trace()

    @property
    def signature(self) -> Signature:
        return self.joint.signature if self.entry is None else self.entry.signature


def _trace(run: Run, shared: Sharing) -> _Traced:
    captured, config = run.captured, run.config
    if shared.bases and captured.sizes is not None:
        raise Untraceable("an input is written to that shares memory with another input, and sizes are symbolic")
    on_gpu = run.target == "cuda"

    def trace() -> Joint:
        from ..autograd import joint as joint_stage

        if run.loops and on_gpu:
            triton_worker.start()
        with run.stage("joint"):
            return joint_stage.trace(
                captured.valued(),
                captured.fakes,
                grad_enabled=captured.grad_enabled,
                sharing=shared,
                counter_based=run.loops and not config.fallback_random,
                device="cuda" if run.for_absent_gpu else "",
            )

    key = Key(why="it is not compiled to kernels that run here, or its constants are frozen")
    if run.loops and not config.freezing and not run.for_absent_gpu and run.recorder.ledger is None:
        host = _host(run)
        key = key_for(captured, config, shared, graph=run.graph.id, texts=run.recorder.texts, host=host)
        if captured.sizes is not None and key.name:
            captured.made = key.name, repr(host)
    traced = _Traced(GraphCache(config, key), trace, None if captured.sizes is None else captured.sizes.env)
    run.looked_up("graph", traced.entry is not None, "" if traced.entry is not None else traced.why_missing())
    for diagnostic in traced.cache.cache.drain():
        run.say(diagnostic)
    return traced


def _compile_traced(traced: _Traced, run: Run, *, constants: Mapping[int, Any] | None = None) -> Ready:
    """What gives the callable of a traced graph: from the cache, or made by the stages and kept there."""
    entry, backward = traced.entry, traced.backward
    if entry is None:
        from .phases import compile_joint

        ready = compile_joint(traced.joint, run, traced.cache, again=traced.again, constants=constants or {})
        traced.keep_conditions()
        return ready
    return functools.partial(_of_entry, entry, backward, run)


def _of_entry(entry: Entry, backward: Program | None, run: Run) -> Callable[..., Any]:
    run.graph.training = entry.training
    run.decided(entry.decisions)
    for stage in entry.stages:
        run.keep(stage)
    return with_effects(
        entry.signature, programs.from_cache(entry.forward, run), entry.forward.written, run, saved=entry.saved,
        compile_backward=backward and (lambda: programs.from_cache(backward, replace(run, phase="backward"))),
    )  # fmt: skip
