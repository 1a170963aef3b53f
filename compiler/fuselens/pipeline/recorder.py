"""What the stages say goes into the report: :class:`Recorder` for a function, :class:`Run` for one graph of it."""

from __future__ import annotations

import atexit
import functools
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import live, torch_private
from ..capture.frame.captured import Captured, Facts
from ..capture.program import marks, switches
from ..capture.tracing.tracer import describe_tensor
from ..config import Config, last_stage
from ..inputs import recorded_inputs
from ..record import live_memory, logs, notices, report
from ..record.diagnostics import make
from . import graph_cache
from .cache_keys import facts_of

if TYPE_CHECKING:
    from ..footprint.ledger import Ledger
    from ..inputs.graph_programs import GraphPrograms
    from ..inputs.node_values import NodeValues
    from ..ir.contracts.trial import Trial
    from ..runtime.kernel_times import OperatorTimes, Probe
    from .pinned import Pins

Call = Callable[[tuple[Any, ...]], Any]
# Makes the callable of a captured graph, with what compiles one at hand.
Measuring = Callable[[Captured, Callable[[Captured], Call]], Call]

# What stands in the way of compiling at all is said in the user's own runs, too: no compiler, one that refuses a graph, no
# cache, a function that is compiled too often; that what was asked for is not written; and that kernels of the project are not used.
_HEARD = report.PREVENTING | {
    "FL621",
    "FL622",
    "FL624",
    "FL625",
    "FL641",
    "FL642",
    "FL643",
    "FL916",
    "FL917",
    "FL918",
    "FL926",
}


# What may change a graph before it is lowered, in its order.
REWRITES = (
    "fold", "layout", "simplify", "flash attention", "own attention", "half products", "libraries", "packed convolutions",
    "padded products", "buckets",
)  # fmt: skip


class Recorder:
    """Collects what the stages say into a :class:`report.Report`. Who wants ``texts`` or fills the cache wants
    ``backwards`` compiled with their forwards, not when one first runs."""

    def __init__(
        self, function: str, file: str, span: report.Span | None, config: Config, texts: bool, backwards: bool = False
    ) -> None:
        self.report = report.Report(function, file, span, target=config.target)
        self.config = replace(config, assembly=("all",)) if logs.wants_assembly() else config
        self.texts = texts or bool(config.print_after or self.config.assembly or config.dump) or logs.wants_texts()
        self.backwards = self.texts or backwards
        self.progress: Callable[[str], None] | None = None
        self.follower: live.Follower | None = None
        self.values: NodeValues | None = None  # hears every node of its graphs, which run as they were captured
        self.programs: GraphPrograms | None = None  # writes its graphs as programs; they run as they were captured
        self.measuring: Measuring | None = None  # compiles its graphs in its own way, to look at their values
        self.ledger: Ledger | None = None  # its graphs allocate there, and compute nothing
        self.probed: list[tuple[list[report.KernelRun], Probe | OperatorTimes]] | None = (
            None  # C++ units, for who times their kernels
        )
        self.trial: Trial | None = None  # of a kernel that somebody edited
        self.pins: Pins | None = None  # what the project has in the place of our kernels, once somebody asked
        self.keeps_frames = True  # False: its graphs go to a backend of the program's own
        self.seconds = 0.0
        self._later: list[Callable[[], object]] = []
        self._seen: set[Any] = set()
        self._calls: list[Any] = []
        self._on_gpu = False
        self._folder: Path | None = None
        self._dumped, self._gave_up = 0, False

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
            recorded_inputs.Recording(self.config.cache_dir, code.co_filename, code.co_qualname, sys.argv[0]).keep(
                self._calls
            )
            recorded = True
        where = report.Span(code.co_filename, code.co_firstlineno, 0, code.co_firstlineno, 0)
        given = [(n, a) for n, a in zip(code.co_varnames, args, strict=False) if isinstance(a, torch.Tensor)]
        self.follower.call(tuple(report.Shape(n, where, describe_tensor(a, None)) for n, a in given), recorded)

    def on_break(self, diagnostic: report.Diagnostic) -> None:
        logs.finding(self.report.function, self.report.file, diagnostic, "graph_breaks")
        if self.follower is not None:
            self.follower.finding(diagnostic)
        key = (diagnostic.code, diagnostic.span)
        if key not in self._seen:
            self._seen.add(key)
            self.report.breaks.append(diagnostic)

    def on_diagnostic(self, diagnostic: report.Diagnostic) -> None:
        if diagnostic.code in _HEARD:
            notices.warn(diagnostic, diagnostic.explanation if diagnostic.code == "FL402" else "")
        logs.finding(self.report.function, self.report.file, diagnostic)
        if self.follower is not None:
            self.follower.finding(diagnostic)
        key = (diagnostic.code, diagnostic.span, diagnostic.message)
        if key not in self._seen:
            self._seen.add(key)
            if diagnostic.code == "FL205":  # it counts
                known = self.report.diagnostics
                known[:] = [d for d in known if (d.code, d.span) != (diagnostic.code, diagnostic.span)]
            self.report.diagnostics.append(diagnostic)

    def take_back(self, diagnostic: report.Diagnostic) -> None:
        """What was said turned out not to be so."""
        self.report.diagnostics[:] = [d for d in self.report.diagnostics if d != diagnostic]

    def forget(self, code: str, what: str) -> None:
        """Takes back the findings of a code that name something."""
        self.report.diagnostics[:] = [d for d in self.report.diagnostics if d.code != code or what not in d.message]

    def on_frame(self, facts: Facts) -> None:
        if self.follower is not None:
            self.follower.shapes(tuple(facts.shapes))
        whose = self.report.function, self.report.file, facts.frame
        logs.guards(*whose, facts.guards)
        logs.symbols(*whose, facts.symbols)
        logs.shapes(*whose, facts.shapes)
        if facts.codes is not None:
            logs.bytecode(*whose, *facts.codes)
        seen = {(g.source, g.expression) for g in self.report.guards}
        self.report.guards += [g for g in facts.guards if (g.source, g.expression) not in seen]
        self.report.symbols += [s for s in facts.symbols if s not in self.report.symbols]
        known = {(s.name, s.span) for s in self.report.shapes}
        for shape in facts.shapes:
            if (shape.name, shape.span) not in known:
                known.add((shape.name, shape.span))
                self.report.shapes.append(shape)
        self._dump()

    def capturing(self, code: types.CodeType) -> AbstractContextManager[None]:
        return graph_cache.capturing(self.config, code, self.on_diagnostic, self._on_new)

    def kept(self, identity: tuple[Any, ...], state: int) -> graph_cache.Frames | None:
        """What the cache has of frames that ``identity`` tells from others; None where each process captures them: where somebody
        wants to see how, or the program says things about functions that a name does not tell."""
        if not self._plain or logs.wanted("trace_source") or marks.are_hidden() or switches.SWITCH.error:
            return None
        return graph_cache.Frames.of(self.config, identity, state, self.on_diagnostic)

    def varied(self, identity: tuple[Any, ...]) -> graph_cache.Varied | None:
        """What the cache has of the sizes that varied in earlier runs; None where they do not matter."""
        config = self.config
        if not config.keep_sizes or config.dynamic is False or not self._plain:
            return None
        return graph_cache.Varied(config, identity, self.on_diagnostic)

    @property
    def _plain(self) -> bool:
        """Whether the program runs for its own sake: nobody looks at how it is compiled."""
        config = self.config
        options = config.freezing or config.explore or config.weightless or config.guard_costs or config.until
        hearing = self.values, self.programs, self.trial, self.ledger, self.measuring
        seen = self.texts or any(hears is not None for hears in hearing)
        return config.backend == "fuselens" and config.build and self.keeps_frames and not options and not seen

    def _on_new(self) -> None:
        """A frame is captured of which the cache knows nothing: its kernels will have to be compiled."""
        from ..runtime.gpu import triton_worker

        if self._on_gpu and self.config.backend == "fuselens":
            triton_worker.start()

    def later(self, work: Callable[[], object]) -> None:
        """Leaves ``work`` for :meth:`finish`: operators will cast there as they do now."""
        autocast = torch_private.AutocastState()

        def as_now() -> None:
            with autocast.entered():
                work()

        self._later.append(as_now)

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
        self._dump()

    def _dump(self) -> None:
        """Writes what is known by now into the dump folder that was asked for, if one was."""
        wanted = self.config.dump
        if wanted is None or self._gave_up or not self.report.function:
            return
        from ..record.printed import folder

        try:
            if self._folder is None:
                self._folder = folder.own(wanted, self.report.function)
                atexit.register(self._dump)
            folder.write(self.report, self._folder, self._dumped)
            self._dumped = len(self.report.graphs)
            folder.index(wanted)
        except OSError as error:
            self._gave_up = True
            self.on_diagnostic(make("FL917", self.report.span, what=str(wanted), why=f"{error.strerror or error}"))

    def new_graph(self, captured: Captured, part_of: int | None = None) -> report.Graph:
        frame = captured.frame if part_of is None else f"{captured.frame}, part of graph {part_of}"
        facts = facts_of(captured)
        on_gpu = self.config.target.startswith("cuda") or any(d.startswith("cuda") for d in facts.devices)
        graph = report.Graph(
            id=len(self.report.graphs), frame=frame, span=captured.span, operations=captured.operations,
            inputs=facts.inputs, part_of=part_of, device="cuda" if on_gpu else "cpu",
        )  # fmt: skip
        self.report.graphs.append(graph)
        return graph


@dataclass(frozen=True)
class Run:
    """One captured graph going through the stages: times each, keeps its text when somebody wants it.

    Stages of its backward are named after it.
    """

    captured: Captured
    recorder: Recorder
    graph: report.Graph
    phase: str = "forward"
    backwards: list[Callable[[], object]] = field(
        default_factory=list
    )  # what lowers them, of a graph or of all its parts

    @property
    def config(self) -> Config:
        return self.recorder.config

    @property
    def loops(self) -> bool:
        """Whether the graph becomes loops, or runs operator by operator."""
        return self.config.backend == "fuselens" and self.until[0] not in ("capture", "joint")

    @functools.cached_property
    def until(self) -> tuple[str, int | None]:
        """See :func:`fuselens.config.last_stage`."""
        return last_stage(self.config)

    def rewrites(self, name: str) -> bool:
        """Whether the graph goes through a rewrite; for who looks for a wrong one, some are left out."""
        stage, most = self.until
        return stage != "simplify" or most is None or REWRITES.index(name) < most

    @property
    def fusions(self) -> int | None:
        """How many fusions are made at most; None: what is worth it."""
        stage, most = self.until
        return most if stage in ("fuse", "generate") else None

    @functools.cached_property
    def target(self) -> str:
        """Where the graph's kernels run: on the GPU if any of its tensors are there."""
        found = facts_of(self.captured).devices
        return "cuda" if any(device.startswith("cuda") for device in found) else "cpu"

    @property
    def for_absent_gpu(self) -> bool:
        """Whether kernels are compiled for a GPU that is not here, while the graph runs on the CPU."""
        return self.target == "cpu" and self.config.target.startswith("cuda")

    @property
    def title(self) -> str:
        """What profilers call the graph: ``step graph 0 backward (train.py:12)``."""
        span, backward = self.captured.span, " backward" if self.phase == "backward" else ""
        place = f" ({Path(span.file).name}:{span.line})" if span is not None else ""
        return f"{self.recorder.report.function} graph {self.graph.id}{backward}{place}"

    def when_out(self) -> str:
        """What is said where the graph finds no memory."""
        told = self.recorder.report
        return live_memory.when_out(self.graph, self.phase, told.function, told.file)

    def again(self) -> Run:
        """The same captured graph compiled once more, a graph of its own in the report."""
        return replace(self, graph=self.recorder.new_graph(self.captured, self.graph.part_of), backwards=[])

    def named(self, stage: str) -> str:
        return stage if self.phase == "forward" else f"{stage}.{self.phase}"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        name = self.named(name)
        if self.recorder.progress is not None:
            self.recorder.progress(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            took = report.Timing(name, time.perf_counter() - start, start)
            self.graph.timings.append(took)
            logs.timing(*self._whose, took)

    @property
    def _whose(self) -> tuple[str, str, int]:
        return self.recorder.report.function, self.recorder.report.file, self.graph.id

    def looked_up(self, what: str, found: bool, why: str = "") -> None:
        """The cache was asked for ``what``: the graph, or its kernels."""
        function, file, number = self._whose
        if what == "graph":
            self.graph.cache = "found" if found else why
        logs.cache(function, file, number, what, found, why)

    def decided(self, decisions: Sequence[report.Decision]) -> None:
        """Puts choices of a stage into the report."""
        self.graph.decisions += decisions
        logs.decisions(*self._whose, decisions)

    def record(self, name: str, suffix: str, make_text: Callable[[], tuple[str, tuple[report.Line, ...]]]) -> None:
        if self.recorder.texts:
            text, lines = make_text()
            self.keep(report.Stage(self.named(name), suffix, self.in_names_of_axes(text), lines))

    def in_names_of_axes(self, text: str, suffix: str = "") -> str:
        """``text`` with the user's names for symbolic sizes, each with ``suffix``."""
        return text if self.captured.sizes is None else self.captured.sizes.rename(text, suffix)

    def keep(self, stage: report.Stage) -> None:
        self.graph.stages.append(stage)
        logs.stage(*self._whose, stage)
        wanted = self.config.print_after
        base = stage.name.split(".")[0]
        if stage.name in wanted or base in wanted or "all" in wanted:
            with suppress(OSError):  # nobody can be told where stderr takes nothing
                print(f"# --- graph {self.graph.id}, after {stage.name}\n{stage.text}", file=sys.stderr)

    def keep_sources(self, stages: Iterable[report.Stage]) -> None:
        """Generated texts, where texts are wanted."""
        for stage in stages if self.recorder.texts else ():
            text = self.in_names_of_axes(stage.text, "_size")
            self.keep(report.Stage(self.named(stage.name), stage.suffix, text, stage.lines))

    def say(self, diagnostic: report.Diagnostic) -> None:
        self.recorder.on_diagnostic(diagnostic)
