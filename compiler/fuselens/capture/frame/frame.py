"""From a frame to an entry: trace, split where needed, compile the graph, emit the replacement.

:class:`FrameCompiler` is the callback that the C hook asks when a frame has no entry whose guards pass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import linecache
import logging
import os
import re
import threading
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from ... import torch_private
from ...config import Config
from ...ir.graphs.straight_line import straight_line
from ...record import logs
from ...record.diagnostics import as_line, make, raised
from ...record.notices import FuselensWarning
from ...record.report import Diagnostic, Guard, Span, Symbol
from ...system.collector import uncollected
from ...torch_private import names as torch_names
from .. import classify
from ..breaks import (
    BackendError,
    Break,
    CannotRebuild,
    CodedError,
    ConstraintError,
    FrameUnsupported,
    GraphBreakError,
    Initialised,
    RecompileError,
    UsageError,
    named,
)
from ..hook import _hook, tensor_layout
from ..kept import frames as kept
from ..kept.names import Gone, Nameless, replaced
from ..machine import Machine, remembering_code
from ..program import guard_filters, marks, stance, torch_settings
from ..program.overlays import Overlay
from ..program.switches import SWITCH
from ..tracing import sources as src
from ..tracing import wrappers, wrapping
from ..tracing.sources import GuardProgram
from ..tracing.symbols import INTEGER, DrawnWhole, FloatCompared, NotGuardable, Sizes, SizesChanged, Variation, Violated
from ..tracing.tracer import Tracer
from ..values.algebra import (
    Constant,
    ContextExit,
    LastingContext,
    Lazy,
    SequenceValue,
    SymbolValue,
    TensorValue,
    TorchContext,
    Value,
)
from ..values.iterators import abandoned
from . import advice
from .captured import Captured, EntryInfo, Facts
from .emit import Emitter
from .liveness import effects, live_values, needed_nodes
from .mismatch import mismatch
from .resume_code import Resumes, resumed_at
from .resuming import OWN_MARK, RESUME_MARK

log = logging.getLogger("fuselens")
_LITTLE = 16  # operations that are not worth a graph, between two breaks in a loop
_DECIDED_BY_DATA = ("FL101", "FL102", "FL108")
_one_at_a_time = threading.RLock()  # torch's symbolic shapes and fake tensors keep state that threads would share
if hasattr(os, "register_at_fork"):  # a forked process has no thread that would give back what another one holds
    os.register_at_fork(
        before=_one_at_a_time.acquire, after_in_parent=_one_at_a_time.release, after_in_child=_one_at_a_time.release
    )


@dataclass(slots=True)
class _Trace:
    """A frame's trace, up to its return or to the break ``found``; ``outputs`` are the nodes that leave its graph."""

    tracer: Tracer
    machine: Machine
    outputs: list[fx.Node]
    found: Break | None
    asked: GuardProgram | None  # the guards of the trace that came to the break: what it breaks for is among them


class Listener(Protocol):
    """Receives findings as frames are captured."""

    def on_break(self, diagnostic: Diagnostic) -> None: ...
    def on_diagnostic(self, diagnostic: Diagnostic) -> None: ...
    def on_frame(self, facts: Facts) -> None: ...
    def on_call(self, code: types.CodeType, args: tuple[Any, ...]) -> None: ...
    def capturing(self, code: types.CodeType) -> contextlib.AbstractContextManager[None]: ...
    def kept(self, identity: tuple[Any, ...], state: int) -> KeptFrames | None: ...
    def varied(self, identity: tuple[Any, ...]) -> KeptSizes | None: ...


class KeptFrames(Protocol):
    """What the cache has of frames of one code object, as plain data."""

    def all(self, symbolic: bool) -> Iterator[dict[str, Any]]: ...
    def add(self, data: dict[str, Any]) -> None: ...


class KeptSizes(Protocol):
    """Which sizes of a code object's inputs varied in earlier runs: dimensions by source text."""

    def read(self) -> dict[str, set[int]]: ...
    def add(self, dimensions: dict[str, set[int]]) -> None: ...


CompileGraph = Callable[[Captured], Callable[[tuple[Any, ...]], Any]]


class FrameCompiler:
    """The hook's callback for one compiled function: its configuration, backend and recorder."""

    _numbers = itertools.count(1)
    keeps_data = (
        True  # where a graph must be whole: numbers stay in it where they can, and are guarded only where they cannot
    )

    def __init__(
        self, config: Config, compile_graph: CompileGraph, recorder: Listener, root: types.CodeType | None,
        overlay: Overlay | None = None,
    ) -> None:  # fmt: skip
        self._number = next(self._numbers)
        self.config = self._given = config
        self.compile_graph = compile_graph
        self.recorder = recorder
        self.root = root
        self.overlay = overlay or Overlay()
        self.variations: defaultdict[types.CodeType, Variation] = defaultdict(Variation)
        self._warned: set[Any] = set()
        self.resumes = Resumes()
        self._called_once: set[types.CodeType] = set()  # under the stance eager_then_compile
        self._beside: set[types.CodeType] = set()  # those that run as written where they are given no tensors
        self._calls: Counter[types.CodeType] = Counter()  # with `minimum_call_count`, those that ran eagerly for it
        self._compilations: Counter[Any] = Counter()  # of a function and its resume functions together
        self._causes: Counter[tuple[types.CodeType, advice.Cause]] = Counter()  # of recompilations

    @property
    def mode(self) -> str:
        return "fullgraph=True" if self.config.fullgraph else "fullgraph=False"

    def __call__(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], misses: tuple[Any, ...]
    ) -> _hook.Entry | None:
        try:
            return self._entry_for(function, code, args, misses)
        except (CodedError, UsageError, BackendError) as error:  # what the program asked to be told
            if isinstance(error, BackendError) and self.config.suppress_errors:
                self._failed(code, error)
                return None
            # Our own frames say nothing to it.
            raise error.with_traceback(None) from error.__cause__
        except FuselensWarning:
            raise
        except Exception as error:
            if self.config.strict and torch_names.lacking(error) is None:
                raise
            self._failed(code, error)
            return None
        finally:
            for diagnostic in torch_names.lost_findings(None):
                self.recorder.on_diagnostic(diagnostic)

    def _entry_for(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], misses: tuple[Any, ...]
    ) -> _hook.Entry | None:
        """The entry of a frame that is compiled; None where it runs eagerly."""
        self.config = torch_settings.follow(self._given)
        if code is not self.root and not classify.frame_is_captured(code):
            _hook.skip(code, recursive=torch_private.is_peer_code(code) or classify.runs_imports(code))
            return None
        if not self._may_compile(function, code) or not self._stance_allows(code, misses):
            return None
        if code in self._beside and _all_plain(args):
            return None
        below = self._below_limits(code, misses)
        if misses and (below or self._must_not_recompile):
            self._recompiled(function, code, args, misses)
        if not below:
            return None
        if code is self.root:
            self.recorder.on_call(code, args)
        return self._compiled(function, code, args)

    def _may_compile(self, function: types.FunctionType, code: types.CodeType) -> bool:
        """Whether nothing that surrounds the call, and nothing about the function, keeps it from being compiled."""
        if marks.mark_of(function) == marks.EXCLUDED:
            _hook.skip(code)
            return False
        if why := _surrounded_by():
            self.refuse(code, why)
            return False
        if classify.frame_reads_itself(code):
            self.refuse(code, "it reads its own frame")
            _hook.skip(code)
            return False
        return True

    def _below_limits(self, code: types.CodeType, misses: tuple[Any, ...]) -> bool:
        """Counts one more compilation; says so and is False where there were too many: of those that differ in more than sizes,
        or of the others that are like one of them."""
        family = (code.co_filename, code.co_firstlineno, code.co_name.split(RESUME_MARK)[0])
        count, limit = self._compilations[family], self.config.recompile_limit
        own = [entry for entry, _ in misses if entry.info.compiler == self._number]
        many = len(own) >= limit
        if many:
            alike = Counter(entry.info.apart_from_sizes for entry in own)
            many = len(alike) >= limit or max(alike.values()) >= limit
        if many or max(count, len(misses)) >= self.config.accumulated_recompile_limit:
            count = min(count, len(own)) or len(misses)
            causes = [(n, cause.advice) for (of, cause), n in self._causes.items() if of is code]
            hints = (max(causes)[1],) if causes else ()
            told = make("FL202", _first_span(code), hints=hints, what=code.co_qualname, count=count, mode=self.mode)
            if self.config.fail_on_recompile_limit_hit:
                raise RecompileError(dataclasses.replace(told, severity="error"))
            if self._computes(code, misses):
                self._once(code, told)
            return False
        self._compilations[family] += 1
        return True

    def _computes(self, code: types.CodeType, misses: tuple[Any, ...]) -> bool:
        """Whether something is lost where a frame runs eagerly: it computes with tensors, as far as its entries tell."""
        return code is self.root or not misses or any(entry.info.computes for entry, _ in misses)

    @property
    def _must_not_recompile(self) -> bool:
        return self.config.error_on_recompile or stance.current() == "fail_on_recompile"

    def _compiled(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...]
    ) -> _hook.Entry | None:
        grad_enabled = torch.is_grad_enabled()
        try:
            with _one_at_a_time, torch_private.saving_unwatched(), uncollected(), remembering_code():
                entry = self._capture(function, code, args)
            for told in _of_patches(self.overlay, self.root or code):
                self.recorder.on_diagnostic(told)
            if entry is not None:
                entry.info.compiler = self._number
                _hook.check_fits(code, entry)
            return entry
        except Violated as e:
            diagnostic = make("FL204", e.span or _first_span(code), what=e.what, why=e.why, mode=self.mode)
            raise ConstraintError(diagnostic) from None
        except FrameUnsupported as e:
            cause = e.cause.diagnostic(self.mode, "") if e.cause is not None else None
            diagnostic = make(
                e.code, e.span or _first_span(code), mode=self.mode, cause=cause, **named(e.fields, e.span)
            )
            if self.config.fullgraph:
                raise GraphBreakError(diagnostic) from None
            self._once(code, diagnostic)
            _hook.skip(code)
            return None
        except RecursionError:
            self.refuse(code, "following its calls exceeds Python's recursion limit")
            return None
        finally:
            if torch.is_grad_enabled() != grad_enabled:
                torch_private.set_grad_enabled(grad_enabled)
            torch_private.leave_dispatch_modes()  # an interrupt may have come between a mode and its ``with``

    def _failed(self, code: types.CodeType, error: Exception) -> None:
        """A defect of ours, or a torch without a name that we use: the frame runs eagerly from now on, and one line says so."""
        span = None
        with contextlib.suppress(Exception):  # what is called here may be what fails
            _hook.skip(code)
            span = _first_span(code)
        lacking = torch_names.lacking(error)
        if lacking is None:
            diagnostic = make("FL112", span, what=f"{code.co_qualname} ({raised(error)})", mode=self.mode)
            log.warning("%s", as_line(diagnostic))
        else:
            diagnostic = make("FL918", span, **lacking)
        log.debug("where it was raised", exc_info=error)
        with contextlib.suppress(Exception):
            self._once(code, diagnostic)

    def _stance_allows(self, code: types.CodeType, misses: tuple[Any, ...]) -> bool:
        """Whether to compile now; raises UsageError where the stance makes that an error."""
        if torch_settings.is_disabled():
            return False
        if not misses and self._calls[code] + 1 < self.config.minimum_call_count:
            self._calls[code] += 1
            return False
        match stance.current():
            case "force_eager" | "eager_on_recompile":
                return False
            case "fail_on_recompile" if not misses:
                raise UsageError(f"{code.co_qualname} needs to be compiled, and the stance is fail_on_recompile")
            case "eager_then_compile" if code not in self._called_once:
                self._called_once.add(code)
                return False
        return True

    def refuse(self, code: types.CodeType, why: str) -> None:
        """Records that ``code`` runs eagerly; raises GraphBreakError where that is an error."""
        diagnostic = make("FL109", _first_span(code), what=code.co_qualname, why=why, mode=self.mode)
        if self.config.fullgraph:
            raise GraphBreakError(diagnostic)
        self._once(code, diagnostic)

    def _once(self, code: types.CodeType, diagnostic: Diagnostic) -> None:
        key = (code, diagnostic.code)
        if key not in self._warned:
            self._warned.add(key)
            self.recorder.on_diagnostic(diagnostic)

    def _recompiled(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], misses: tuple[_hook.Miss, ...]
    ) -> None:
        entry, check = misses[0]
        guards: list[Guard] = entry.info.guards
        with torch_private.without_torch_function():
            why = mismatch(entry.guards, check, entry.info.texts, function, args)
            cause = advice.cause(entry.guards, check, entry.info.texts, function, args, self.config)
        span = (guards[check].span if check < len(guards) else None) or _first_span(code)
        what = f"`{code.co_qualname}`, because of {why}"
        hints = (cause.advice,) if cause is not None and cause.kind in advice.ONCE else ()
        diagnostic = make("FL201", span, hints=hints, what=what)
        if logs.wanted("recompiles", logging.DEBUG):
            with torch_private.without_torch_function():
                for number, (other, failed) in enumerate(reversed(misses)):
                    because = mismatch(other.guards, failed, other.info.texts, function, args)
                    logs.missed(code.co_qualname, code.co_filename, number, because)
        if self._must_not_recompile:
            raise RecompileError(dataclasses.replace(diagnostic, severity="error"))
        self.recorder.on_diagnostic(diagnostic)
        if cause is not None:
            self._causes[code, cause] += 1
            count = self._causes[code, cause]
            if count > 1 and count.bit_count() == 1 and self._computes(code, misses):
                limit, hints = self.config.recompile_limit, (cause.advice,)
                self.recorder.on_diagnostic(make("FL205", span, hints=hints, count=count, what=what, limit=limit))

    # --- one frame -----------------------------------------------------------------------------------------

    def _capture(self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...]) -> _hook.Entry | None:
        """With numbers and sizes that data decides where a graph that must be whole has them, and only there. Where that cannot be,
        the numbers in small tensors are guarded, however often they change."""
        try:
            return self._capture_without_data(function, code, args)
        except GraphBreakError as error:
            if not self.config.fullgraph or error.diagnostic.code not in _DECIDED_BY_DATA:
                raise
            refused: Exception = error
            try:
                return self._capture_with(function, code, args, "data")
            except NotGuardable:
                pass
            except GraphBreakError as also:
                refused = also
            try:
                return self._capture_with(function, code, args, "numbers")
            except (GraphBreakError, SizesChanged):
                raise refused from None

    def _capture_without_data(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...]
    ) -> _hook.Entry | None:
        """Static sizes at first; symbolic where the user named them, asked for them, or they changed."""
        data = self.config.capture_scalar_outputs or self.config.capture_dynamic_output_shape_ops
        variation = self._known_variation(code)
        if not data and (found := self._kept(function, code, args)):
            return found[0]
        if self.config.dynamic is not True and not variation.axes and not data:
            try:
                return self._capture_with(function, code, args, "static")
            except SizesChanged:
                pass
        try:
            return self._capture_with(function, code, args, "symbolic")
        except NotGuardable as reason:
            log.debug("%s is compiled with static sizes: %s", code.co_qualname, reason)
            if variation.draws and not variation.exact_draws:
                variation.exact_draws = True
                return self._capture_without_data(function, code, args)
            if isinstance(reason, FloatCompared):
                variation.exact_floats = True
                return self._capture_without_data(function, code, args)
        return self._capture_with(function, code, args, "exact")

    def _kept(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...]
    ) -> tuple[_hook.Entry | None] | None:
        """What another process made of the frame, if it serves for this call: its entry, or that there is nothing to compile."""
        store = self._store(code, torch_private.function_state())
        if store is None:
            return None
        tensor_layout.ensure()
        variation = self.variations[code]
        symbolic = store.all(True) if self._keeps_symbols and (variation.is_known or self.config.dynamic) else ()
        with torch_private.without_torch_function():
            for data in itertools.chain(symbolic, store.all(False)):
                try:
                    candidate = kept.Candidate(data, function, code, args, self.resumes)
                    if candidate.is_outdated(variation):
                        raise Gone("what varies is fixed in it")
                    if candidate.compiles:
                        return (self._made_of(candidate, code),)
                except Gone as why:
                    log.debug("what was kept of %s does not serve: %s", code.co_qualname, why)
                    continue
                except Exception as error:  # a defect of ours: the frame is captured, as if nothing had been kept
                    if self.config.strict:
                        raise
                    log.debug("what was kept of %s cannot be read", code.co_qualname, exc_info=error)
                    continue
                _hook.skip(code)
                return (None,)
        return None

    @property
    def _keeps_symbols(self) -> bool:
        """Whether frames with symbolic sizes are kept: not where sizes are symbols by marks alone, which win over what was kept."""
        return self.config.keep_sizes and self.config.dynamic is not False

    def _known_variation(self, code: types.CodeType) -> Variation:
        """What is known to vary of a frame's inputs, in earlier runs, too."""
        variation = self.variations[code]
        if variation.kept is None:
            known = self._kept_sizes(code)
            variation.kept = {} if known is None else known.read()
        return variation

    def _kept_sizes(self, code: types.CodeType) -> KeptSizes | None:
        try:
            return self.recorder.varied(_identity(code, self.resumes, self.overlay))
        except Nameless:
            return None

    def _store(self, code: types.CodeType, state: int) -> KeptFrames | None:
        """What other processes made of frames of ``code``; None where each captures them."""
        try:
            return self.recorder.kept(_identity(code, self.resumes, self.overlay), state)
        except Nameless as why:
            log.debug("%s is captured in each process: %s", code.co_qualname, why)
            return None

    def _made_of(self, candidate: kept.Candidate, code: types.CodeType) -> _hook.Entry:
        """The entry of what was kept; the report is told what it was told when that was made."""
        captured = candidate.captured(_first_span(code))
        graph = None if captured is None else self.compile_graph(captured)
        if candidate.data["breaks"] is not None:
            self.recorder.on_break(candidate.data["breaks"])
        if captured is not None:
            captured.inputs.clear()
        entry = candidate.entry(graph)
        candidate.remember(self.variations[code])
        for resumed, axes in candidate.resumed():
            self.variations[resumed].axes.update({name: dict(dims) for name, dims in axes.items()})
        facts = candidate.facts(entry)
        self._say_specialised(facts)
        self.recorder.on_frame(facts)
        return entry

    def _keep(
        self, made: kept.Made, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], tracer: Tracer,
    ) -> None:  # fmt: skip
        """Lets other processes have what was made of a frame."""
        store = self._store(code, tracer.torch_state.function_state)
        if store is None or (tracer.sizes is not None and (made.symbols is None or not self._keeps_symbols)):
            return
        try:
            store.add(kept.written(made, function, code, args, tracer, self.resumes))
        except (Gone, Nameless) as why:
            log.debug("%s is captured in each process: %s", code.co_qualname, why)

    def _capture_with(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], sizes_are: str
    ) -> _hook.Entry | None:
        state = torch_private.function_state()
        grad_enabled = torch.is_grad_enabled()
        while True:
            try:
                with torch_private.without_torch_function(), contextlib.ExitStack() as traces:
                    return self._compile(function, code, args, sizes_are, state, traces)
            except (Initialised, DrawnWhole):
                torch_private.set_grad_enabled(grad_enabled)
            except (SizesChanged, NotGuardable, GraphBreakError):  # the next trace begins as this one did
                torch_private.set_grad_enabled(grad_enabled)
                raise

    def _compile(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], sizes_are: str,
        function_state: int, traces: contextlib.ExitStack,
    ) -> _hook.Entry | None:  # fmt: skip
        """The entry for one frame; None where there is nothing in it to compile."""
        grad_enabled = torch.is_grad_enabled()
        trace = self._trace(function, code, args, sizes_are, function_state, traces)
        tracer, machine = trace.tracer, trace.machine
        said = None
        if trace.found is not None:
            said = self._record_break(trace.found, tracer, machine)
            if _is_piece_of_loop(trace, code, self.root):
                _hook.skip(code)
                return None
            if _is_beside_tensors(trace, code, self.root, args):
                self._beside.add(code)
                return None
        elif _is_little(tracer.graphs.operations, code) and code is not self.root and RESUME_MARK not in code.co_name:
            _hook.skip(code)
            self._keep(kept.Made(None), function, code, args, tracer)
            return None
        graph, captured = self._graph(tracer, machine, trace.outputs, grad_enabled)
        emitter = Emitter(machine, trace.outputs, graph, len(tracer.graphs.inputs), self.resumes, grad_enabled)
        explore = self.config.explore
        replacement = emitter.returning(machine.result) if machine.result is not None else emitter.breaking(explore)
        _guard_surroundings(tracer, grad_enabled)
        facts = Facts(code.co_name, codes=(code, replacement.code))
        resumed: list[tuple[types.CodeType, dict[str, dict[int, str]]]] = []
        if tracer.sizes is not None:
            facts.symbols = _symbols(tracer, tracer.sizes)
            for symbol in _specialised(facts):
                self.variations[code].needed.setdefault(symbol.source, set()).add(int(symbol.specialised))
            resumed = [(found, _symbolic_axes(tracer, variables)) for found, variables in emitter.resumed]
            for resuming, axes in resumed:
                self.variations[resuming].axes.update(axes)
            if (varied := tracer.varied(self.variations[code])) and (sizes := self._kept_sizes(code)) is not None:
                sizes.add(varied)
        if self.config.guard_filter_fn is not None:
            guard_filters.apply(tracer.guards, self.config.guard_filter_fn, args, function)
        entry = _hook.Entry(tracer.guards.build(), replacement.code, replacement.gather_slot)
        entry.info = EntryInfo(tracer.guards.records, tracer.guards.texts, tracer.graphs.operations > 0)
        tracer.remember(self.variations[code])
        facts.guards, facts.shapes = list(tracer.guards.records), list(tracer.shapes)
        self._say_specialised(facts)
        for (
            found,
            variables,
        ) in emitter.resumed:  # what varied before the break varies after it, and so may what was computed
            held = {name: cell.contents for name, cell in machine.cells.items() if cell.contents is not None}
            computed = {name: set() for name, value in (*_parts(variables), *held.items()) if _is_computed(value)}
            self.variations[found].contents.update(self.variations[code].varied_contents | computed)
        if self.config.guard_costs:
            costs = entry.guards.costs(function, args, 1000) or [None] * len(facts.guards)
            facts.guards = [dataclasses.replace(g, cost_ns=c) for g, c in zip(facts.guards, costs, strict=True)]
        self.recorder.on_frame(facts)
        broke = self.resumes.origin(machine.program, machine.at) if machine.result is None else None
        symbols = None if tracer.sizes is None or sizes_are == "data" else facts.symbols
        made = kept.Made(entry, facts.shapes, graph, captured, said, broke, trace.asked, symbols, resumed)
        self._keep(made, function, code, args, tracer)
        return entry

    def _trace(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], sizes_are: str,
        function_state: int, traces: contextlib.ExitStack,
    ) -> _Trace:  # fmt: skip
        """Traces the frame; again, up to the break, where there is one. A trace is deterministic, so no state is copied."""
        stop_at, found, asked = -1, None, None
        grad_enabled = torch.is_grad_enabled()
        while True:
            torch_private.set_grad_enabled(grad_enabled)
            tracer, machine = self._machine(function, code, args, sizes_are, function_state)
            traces.callback(tracer.release)
            try:
                with self.recorder.capturing(code):
                    finished = machine.run(stop_at)
            except Break as b:
                step = b.step if b.step >= 0 else machine.steps - 1
                if stop_at == step:
                    raise AssertionError("tracing is not deterministic") from b
                stop_at, found, asked = step, b, tracer.guards
                if tracer.sizes is not None and isinstance(why := b.fields.get("why"), str):
                    b.fields["why"] = tracer.sizes.rename(why)
                b.__traceback__ = b.__context__ = None  # frames that refer to the break: a cycle
                continue
            finally:
                tracer.torch_state.leave_contexts(tracer.span)
            if finished:
                found = None
            try:
                return _Trace(tracer, machine, _outputs(tracer, machine), found, asked)
            except CannotRebuild as lost:
                end = machine.steps if stop_at < 0 else stop_at
                stop_at, found = lost.born, _break_before(lost, found, end)

    def _say_specialised(self, facts: Facts) -> None:
        """Tells of sizes that became numbers, and of tensors whose numbers are guarded."""
        for s in _specialised(facts):
            if s.span is not None:
                self.recorder.on_diagnostic(make("FL203", s.span, what=s.source, value=s.specialised))
        for g in facts.guards:
            if g.kind == "CONTENTS" and g.span is not None:
                value = g.expression.removeprefix(f"{g.source} holds ")
                self.recorder.on_diagnostic(make("FL203", g.span, what=g.source, value=f"what it holds, {value}"))

    def _machine(
        self, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], sizes_are: str, state: int
    ) -> tuple[Tracer, Machine]:
        tensor_layout.ensure()
        variation = self.variations[code]
        tracer = Tracer(self.config, function.__globals__, None if sizes_are == "exact" else variation, state)
        tracer.overlay = self.overlay
        tracer.takes_changes = sizes_are == "numbers"
        tracer.guards_numbers = tracer.takes_changes or not (self.config.fullgraph and self.keeps_data)
        if sizes_are in ("symbolic", "data"):
            tracer.allow_symbols(variation.axes, keeps_data=sizes_are == "data")
        names = code.co_varnames
        locals_: dict[str, Value] = {
            names[i]: Lazy(value, src.local(i, names[i]), _first_span(code)) for i, value in enumerate(args)
        }
        free = [
            wrapping.cell(tracer, cell, name.removesuffix(OWN_MARK), src.closure_cell(i, name.removesuffix(OWN_MARK)))
            for i, (name, cell) in enumerate(zip(code.co_freevars, function.__closure__ or (), strict=True))
        ]
        machine = Machine(tracer, self.overlay.code(code), locals_, free, function.__globals__, src.frame_globals())
        tracer.root = machine
        return tracer, machine

    def _record_break(self, found: Break, tracer: Tracer, machine: Machine) -> Diagnostic:
        if found.span is None:
            found.span, found.stack = machine.program.span(machine.instruction), machine.user_stack()
        n = tracer.graphs.operations
        cost = f"{n} operation{'' if n == 1 else 's'} compiled before it; the rest starts a new graph"
        cost += f"; the call of {found.inner} becomes a frame of its own" if found.inner else ""
        diagnostic = found.diagnostic(self.mode, cost)
        if self.config.fullgraph or _break_is_error(tracer):
            raise GraphBreakError(diagnostic)
        self.recorder.on_break(diagnostic)
        return diagnostic

    def _graph(
        self, tracer: Tracer, machine: Machine, outputs: list[fx.Node], grad_enabled: bool
    ) -> tuple[Any, Captured | None]:
        """The compiled graph and what it was compiled of; None when nothing was captured."""
        if tracer.graphs.operations == 0 and not outputs:
            return None, None
        span, tracer.place = tracer.span, None  # what the stages decide, no line of the program forces
        if torch.is_grad_enabled() != grad_enabled:
            node = tracer.graphs.current.call_function(torch_private.SET_GRAD_ENABLED, (grad_enabled,))
            node.meta["val"] = None
            torch_private.set_grad_enabled(grad_enabled)
        tracer.graphs.current.output(tuple(outputs)).meta["span"] = span
        module = torch_private.graph_module(torch.nn.Module(), tracer.graphs.current)
        if tracer.graphs.operations == 0:  # numbers only
            return _hook.disabled(straight_line(module)), None
        captured = Captured(
            module=module,
            inputs=[t for _, t in tracer.graphs.inputs],
            fakes=tracer.graphs.initial_fakes(tracer.fake_mode),
            grad_enabled=grad_enabled,
            frame=machine.code.co_name,
            span=_first_span(machine.code),
            operations=tracer.graphs.operations,
            fake_mode=tracer.fake_mode,
            sizes=tracer.sizes,
            resumable=True,
            owned=tuple(
                i
                for i, (s, given) in enumerate(tracer.graphs.inputs)
                if isinstance(given, torch.Tensor) and tracer.objects.hangs_on_module(s)
            ),
            arguments=tuple(
                i
                for i, (s, given) in enumerate(tracer.graphs.inputs)
                if s.is_argument and isinstance(given, torch.Tensor)
            ),
            restored=tuple(sorted(tracer.restored)),
        )
        asked = not torch_private.only_device_modes() or any(map(torch_private.asks_class, captured.inputs))
        calls = any(isinstance(n.target, wrappers.Called) for n in module.graph.nodes)
        plain = (torch.Tensor, int, float) if tracer.sizes is not None else torch.Tensor
        captured.keepable = not asked and not calls and all(isinstance(t, plain) for t in captured.inputs)
        compiled = self.compile_graph(captured)
        if asked:
            compiled = _hook.disabled(torch_private.plainly(compiled))
        if calls:
            compiled = _hook.disabled(compiled)  # the code of the classes runs in it, unless it was traced
        captured.inputs.clear()  # a backward that is yet to be compiled keeps `captured`, and must not keep these alive
        return compiled, captured


def _identity(code: types.CodeType, resumes: Resumes, overlay: Overlay) -> tuple[Any, ...]:
    """What tells the frames of ``code`` from all others, under these patches of libraries. Raises Nameless."""
    found = kept.identity(code, resumes), *replaced()
    return ("patched", overlay.digest, found) if overlay.digest else found


def _of_patches(overlay: Overlay, code: types.CodeType) -> Iterator[Diagnostic]:
    """Which patches of libraries were used for ``code``, and which stepped aside."""
    for patch in overlay.kept():
        what, library = patch.shown(overlay.root) if overlay.root else str(patch.path), ""
        if patch.patch is not None:
            library = f"{patch.patch.file} of {patch.patch.distribution} {patch.patch.version}"
        yield make(patch.code or "FL640", _first_span(code), what=what, library=library, why=patch.why)


def _surrounded_by() -> str | None:
    """What around the call keeps frames from being compiled."""
    if torch_private.functorch_active() or torch_private.foreign_mode_active():
        return "a dispatch mode or a function transform is active"
    if torch_private.TORCHSCRIPT_RECORDS() or torch_private.fx_records():
        return "torch.jit.trace or torch.fx records what it does"
    if torch_private.dual_level_active():
        return "its tensors may carry tangents of forward-mode differentiation"
    return None


def _outputs(tracer: Tracer, machine: Machine) -> list[fx.Node]:
    """The nodes whose values leave the graph. Raises CannotRebuild where the frame needs what cannot be made again."""
    unfinished(tracer.torch_state.contexts, machine)
    values = [machine.result] if machine.result is not None else live_values(machine)
    values += effects(machine)
    values += [c.contents for c in machine.cells.values() if c.contents is not None]
    outputs = needed_nodes(values, tracer)
    abandoned(tracer)
    return outputs


def _break_before(lost: CannotRebuild, found: Break | None, end: int) -> Break:
    """The break before what is ``lost`` is made; it must come before the ``end`` of the trace that needed it."""
    if not 0 <= lost.born < end:
        refused = FrameUnsupported("FL109", None, what=lost.what, why=lost.why)
        refused.cause = found
        raise refused from None
    made = lost.refused or Break("FL117", what=lost.what, why=lost.why)
    made.cause = found
    return made


def _is_little(operations: int, code: types.CodeType) -> bool:
    """Whether a callee computes too little for a graph of its own: nothing, or one operation of an installed package's function."""
    return operations == 0 or (operations == 1 and classify.is_installed(code.co_filename))


def _is_piece_of_loop(trace: _Trace, code: types.CodeType, root: types.CodeType | None) -> bool:
    """Whether a resume function of a callee computes little by itself before it breaks again, in a loop: such loops, in which data
    decides at every step, run as written. What they call is compiled by itself, once for all steps."""
    operations = trace.tracer.graphs.operations
    if (
        trace.found is None
        or RESUME_MARK not in code.co_name
        or operations not in (*range(_LITTLE + 1), trace.machine.most_in_call)
    ):
        return False
    if root is not None and code.co_qualname.split(RESUME_MARK)[0] == root.co_qualname:
        return False
    program, at = trace.machine.program, trace.machine.at
    begin = program.index[id(resumed_at(program))]
    for n, instruction in enumerate(program.instructions):
        if instruction.op.startswith("JUMP_BACKWARD") and instruction.target is not None:
            first = program.index[id(instruction.target)]
            if first <= at <= n and begin <= n:
                return True
    return False


def _is_beside_tensors(trace: _Trace, code: types.CodeType, root: types.CodeType | None, args: tuple[Any, ...]) -> bool:
    """Whether a callee that breaks before it computes anything is given numbers and texts alone: what draws a mask with numpy,
    say. It runs as written."""
    called = code is not root and RESUME_MARK not in code.co_name and not trace.tracer.graphs.operations
    return called and bool(args) and _all_plain(args)


def _all_plain(args: tuple[Any, ...]) -> bool:
    return all(map(_is_plain, args))


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in (tuple, list, torch.Size):
        return all(map(_is_plain, value))
    if kind is dict:
        return all(map(_is_plain, value.values()))
    return kind in (int, float, bool, str, type(None))


def _guard_surroundings(tracer: Tracer, grad_enabled: bool) -> None:
    """Guards on torch's state, and on which objects are the same."""
    text = f"torch.is_grad_enabled() is {grad_enabled}"
    tracer.guards.check_state(_hook.GRAD_MODE, grad_enabled, name="GRAD_MODE", text=text, span=None)
    if tracer.graphs.inputs or tracer.graphs.operations:
        tracer.torch_state.guard_ambient(tracer.span)
    tracer.guard_distinct()


def _break_is_error(tracer: Tracer) -> bool:
    """What ``error_on_graph_break`` says where the trace has come to."""
    _, traced = tracer.effects.attributes.get((id(SWITCH), "error"), (None, None))
    return bool(traced.value) if isinstance(traced, Constant) else SWITCH.error


def unfinished(contexts: list[TorchContext], machine: Machine) -> None:
    """Sees to it that the code after the graph can go back into every context: those of ``with`` in the frame itself."""
    kept = [v.context for v in machine.stack if isinstance(v, ContextExit)]
    for context in contexts:
        if context not in kept and not isinstance(context, LastingContext):
            raise CannotRebuild(context.born, context.describe(), "it is entered inside another function")


def _specialised(facts: Facts) -> list[Symbol]:
    """The symbols that became numbers."""
    return [s for s in facts.symbols if s.specialised.removeprefix("-").isdigit()]


def _symbols(tracer: Tracer, sizes: Sizes) -> list[Symbol]:
    """Guards what the graph says about symbolic sizes; the symbols, and the numbers that data decides."""
    return [*sizes.add_guards(tracer.guards), *sizes.decided_by_data(tracer.graphs.current)]


def _symbolic_axes(tracer: Tracer, variables: dict[str, Value]) -> dict[str, dict[int, str]]:
    """Which sizes and integers that a resume function is given are symbolic, under the names they have here."""
    found: dict[str, dict[int, str]] = {}
    for name, value in _parts(variables):
        used = value.realised if isinstance(value, Lazy) else value
        if isinstance(used, (TensorValue, SymbolValue)) and tracer.sizes is not None:
            extents = (
                enumerate(used.fake.shape) if isinstance(used, TensorValue) else [(INTEGER, used.node.meta["val"])]
            )
            for d, size in extents:
                if isinstance(size, torch.SymInt):
                    found.setdefault(name, {})[d] = tracer.sizes.rename(str(size))
        elif (
            isinstance(value, Lazy)
            and value.source is not None
            and tracer.sizes is not None
            and value.source.text in tracer.sizes.axes
        ):
            found[name] = dict(tracer.sizes.axes[value.source.text])
    return found


def _parts(variables: dict[str, Value]) -> Iterator[tuple[str, Value]]:
    """What a resume function is given, the items of sequences too, under the names they have there."""
    pending, seen = list(variables.items()), set[int]()  # lists may hold themselves
    for name, value in pending:
        used = value.realised if isinstance(value, Lazy) else value
        if not isinstance(used, SequenceValue):
            yield name, value
        elif id(used) not in seen:
            seen.add(id(used))
            pending += [(f"{name}[{i}]", item) for i, item in enumerate(used.items)]


def _is_computed(value: Value) -> bool:
    return isinstance(value, TensorValue) and value.source is None


def _first_span(code: types.CodeType) -> Span:
    """The function's name on its ``def`` line; the first line when there is no such thing (a lambda)."""
    first = code.co_firstlineno
    for line in range(first, first + 50):  # decorators come before
        text = linecache.getline(code.co_filename, line)
        found = _DEF.match(text)
        if found:
            start = len(text[: found.start(1)].encode())
            return Span(code.co_filename, line, start, line, start + len(found[1].encode()))
        if not text:
            break
    return Span(code.co_filename, first, 0, first, len(linecache.getline(code.co_filename, first).rstrip().encode()))


_DEF = re.compile(r"\s*(?:async\s+)?def\s+(\w+)")
