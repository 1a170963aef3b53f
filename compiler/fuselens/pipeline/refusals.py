"""Graphs that a stage refuses: they run eagerly, as they were captured, and the report says why."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import fx

from .. import torch_private
from ..capture.breaks import RanksError
from ..capture.hook import _hook
from ..ir.graphs.straight_line import straight_line
from ..record import report
from ..record.diagnostics import as_line, make, raised
from ..record.notices import FuselensWarning
from ..runtime import ranks
from ..torch_private import names as torch_names
from .overlap import Measured
from .recorder import Run

if TYPE_CHECKING:
    from ..capture.frame.captured import Captured
    from ..inputs.line_values import LineValues
    from ..inputs.node_values import NodeValues

T = TypeVar("T")
Call = Callable[[tuple[Any, ...]], Any]
Ready = Callable[[], Call]  # waits for compilers
log = logging.getLogger("fuselens")


def or_eager(make: Callable[[], Callable[..., Any]], run: Run) -> Callable[..., Any]:
    """What ``make`` makes of the run's graph; where a stage refuses it, the graph as it was captured."""
    return or_else(make, functools.partial(_refused, run), run)


def or_ready(make: Callable[[], Ready], run: Run) -> Ready:
    """The same of what gives a callable."""

    def refused(why: report.Diagnostic) -> Ready:
        call = _refused(run, why)
        return lambda: call

    return or_else(make, refused, run)


def _refused(run: Run, why: report.Diagnostic) -> Call:
    run.graph.fallback = True
    run.decided([report.Decision(why.code, "fallback", f"graph {run.graph.id}", why.message, run.captured.span)])
    return eagerly(run.captured)


def or_else(make: Callable[[], T], otherwise: Callable[[report.Diagnostic], T], run: Run) -> T:
    """What ``make`` makes; where a stage refuses that, what ``otherwise`` makes of the reason, which the report gets, too.
    What no stage raises on purpose is a defect of ours, and raised where that is asked for."""
    try:
        return _hook.hidden(make)()
    except FuselensWarning:  # the program wants warnings to be errors
        raise
    except Exception as error:
        defect = not isinstance(error, _typed()) and torch_names.lacking(error) is None
        if defect and run.config.strict:
            raise
        why = _diagnostic(error, run)
        if defect:
            log.warning("%s", as_line(why))
            log.debug("where it was raised", exc_info=error)
        run.say(why)
        return otherwise(why)


def eagerly(captured: Captured) -> Call:
    """Runs a captured graph operator by operator."""
    return restoring(as_captured(captured.module), captured)


def restoring(call: Call, captured: Captured) -> Call:
    """``call``, which runs the graph's operators in their order: where a check of values fails, its inputs have again what they
    had before it wrote to them, so that its frame may run."""
    if not captured.restored:
        return call

    def run(inputs: tuple[Any, ...]) -> Any:
        before = {i: inputs[i].detach().clone() for i in captured.restored}
        try:
            return call(inputs)
        except Exception as error:
            if torch_private.is_failed_check(error):
                with torch.no_grad():
                    for i, values in before.items():
                        inputs[i].copy_(values)
            raise

    return run


def alike_on_ranks(call: Call, run: Run) -> Call:
    """``call`` of a graph, whose ranks agree before its collectives run for the first time. What goes wrong with them is an error
    that has a code, on each rank."""
    told: dict[str, list[str]] = {}
    for node in run.captured.module.graph.nodes:
        if torch_private.is_collective(node.target) and (name := str(node.target).split(".")[1]) != "wait_tensor":
            value, *rest, group = (n.meta.get("val") if isinstance(n, fx.Node) else n for n in node.args)
            shape = list(value.shape) if isinstance(value, torch.Tensor) else []
            if name == "all_to_all_single":  # what each rank sends to which is its own
                shape, rest = ["rows", *shape[1:]], []
            of = f"{value.dtype} {shape}".removeprefix("torch.") if isinstance(value, torch.Tensor) else "?"
            told.setdefault(str(group), []).append(ranks.told(name, of, *rest))
    if not told:
        return call
    new = [True]
    measured = Measured(run.graph) if run.config.measure_overlap else None

    def error(why: object) -> RanksError:
        return RanksError(make("FL930", run.captured.span, what=run.captured.frame, why=why))

    @functools.cache
    def abouts() -> dict[str, tuple[str, bool]]:
        """What the graph does on each group, when it is compiled, and whether that is in buckets."""
        buckets = {} if run.graph.fallback else _buckets(run.graph.decisions)
        return {
            group: ("; ".join((*texts, *buckets.get(group, ()))), group in buckets) for group, texts in told.items()
        }

    def communicate(inputs: tuple[Any, ...]) -> Any:
        others = ranks.ranks()
        try:
            if others is not None:
                for group, (text, in_buckets) in abouts().items():
                    if new[0]:
                        others.agree(group, torch_private.ranks_of(group), text, in_buckets)
                    else:
                        others.started(group, text)
            new[0] = False
            with nullcontext() if measured is None else measured.call():
                return call(inputs)
        except ranks.RanksDiffer as differ:
            raise error(differ) from None
        except RuntimeError as failure:
            if not torch_private.is_of_communication(failure):
                raise
            raise error(ranks.why_failed(others) or str(failure).splitlines()[0]) from failure

    return communicate


def _buckets(decisions: Iterable[report.Decision]) -> dict[str, list[str]]:
    """By group, which buckets a graph has: ranks have to do alike."""
    found: dict[str, list[str]] = {}
    for decision in decisions:
        if decision.code == "FL419":
            text = f"{decision.subject} in a bucket of {decision.data['bytes']} bytes"
            found.setdefault(decision.data["group"], []).append(text)
    return found


def as_captured(module: fx.GraphModule) -> Call:
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


def watched(
    module: fx.GraphModule, graph: report.Graph, values: NodeValues | LineValues
) -> Callable[[tuple[Any, ...]], Any]:
    """The same, and ``values`` hears what each node gives."""

    class Watched(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            try:
                found = super().run_node(n)
            except Exception as error:
                values.failed(n, error)
                raise
            values.see(n, found)
            return found

    def run(inputs: tuple[Any, ...]) -> Any:
        values.begin(graph)
        return Watched(module, garbage_collect_values=False).run(*inputs, enable_io_processing=False)

    return run


def _typed() -> tuple[type[BaseException], ...]:
    from ..autograd.untraceable import Untraceable
    from ..ir.contracts.source import Unsupported
    from ..lowering.builder import LoweringError
    from ..runtime.build import BuildFailed, NoCompiler

    return (Untraceable, LoweringError, Unsupported, BuildFailed, NoCompiler)


def _diagnostic(error: Exception, run: Run) -> report.Diagnostic:
    from ..autograd.untraceable import Untraceable
    from ..runtime.build import BuildFailed, NoCompiler

    where = run.captured.span
    lacking = torch_names.lacking(error)
    if lacking is not None:
        return make("FL918", where, **lacking)
    if isinstance(error, Untraceable):
        return make("FL301", error.span or where, why=error.reason)
    if isinstance(error, NoCompiler):
        return make("FL403", where, what=str(error))
    if isinstance(error, BuildFailed):
        return make("FL402", error.span or where, what=f"graph of {run.captured.frame}", why=str(error)[:2000])
    return make("FL404", where, why=raised(error))
