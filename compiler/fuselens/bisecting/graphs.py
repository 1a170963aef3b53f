"""What a child does first: it runs a function with its graphs as they were captured, compares, and writes each graph as a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import api
from ..inputs import comparison
from ..inputs.graph_programs import Call, GraphProgram, GraphPrograms
from ..inputs.line_values import Eagerly, LineValues, first_line
from ..pipeline import REWRITES, Recorder
from ..pipeline.refusals import restoring, watched
from ..proving import drawn
from ..proving.kinds import Kind, Subject, kinds
from ..record.diagnostics import raised
from ..record.report import Graph, Span
from . import leaving

if TYPE_CHECKING:
    from ..capture.frame.captured import Captured


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """``differs`` says how the captured function differs from eager, if it does, and ``span`` in which line first; ``raised`` is
    what eager raised. ``left_at`` is the line of eager that leaves what was asked for, ``rewrites`` are the names of all rewrites."""

    programs: list[GraphProgram]
    differs: str = ""
    raised: str = ""
    breaks: list[str] = dataclasses.field(default_factory=list)
    span: Span | None = None
    how: str = ""
    left_at: Span | None = None
    rewrites: tuple[str, ...] = REWRITES


def write_programs(
    subject: Subject, name: str, folder: Path, *, gradients: bool, chosen: Sequence[str] = (), where: str = ""
) -> Written:
    """Calls the function eagerly and captured, on its example inputs or on the kinds of calls that are ``chosen``, in their order. What
    is compared and written is of the last of them: its graphs, with the inputs of that call, go into ``folder``.
    ``where`` names what that call leaves, to be told its line."""
    changes: dict[str, Any] = {"explore": False, "weightless": False, "dump": None, "fallback_random": True}
    config = dataclasses.replace(subject.config, **changes)
    recorder, heard = Recorder(name, "", None, config, texts=False), LineValues()

    def run(captured: Captured, graph: Graph) -> Call:
        return restoring(watched(captured.module, graph, heard), captured)

    recorder.programs = programs = GraphPrograms(folder, run)
    compiled = api.wrap(subject.target, config, recorder=recorder, owner=object())
    names = set(map(drawn.kind_of, chosen))
    *before, last = [k for k in kinds(subject) if k.name in names] if names else [next(kinds(subject))]
    for kind in before:
        with kind.around():
            comparison.observe(compiled, kind.args, kind.kwargs, gradients=gradients and kind.gradients)
    programs.begin_again()
    heard.forget()
    written = _compared(subject, last, recorder, compiled, heard, gradients)
    return dataclasses.replace(written, left_at=leaving.line_of(where, subject.target, last)) if where else written


def _compared(
    subject: Subject, kind: Kind, recorder: Recorder, compiled: Any, heard: LineValues, gradients: bool
) -> Written:  # fmt: skip
    with kind.around():
        judged = comparison.judge(
            subject.target, compiled, kind.args, kind.kwargs, gradients=gradients and kind.gradients
        )
    programs = recorder.programs.found if recorder.programs is not None else []
    breaks = [f"line {d.span.line}: {d.message}" if d.span else d.message for d in recorder.report.breaks]
    if judged.raised is not None:
        which, error = judged.raised
        if which == "eager":
            return Written([], raised=raised(error))
        return Written(programs, f"it raised {raised(error)}", breaks=breaks)
    if not judged.differing:
        return Written(programs, breaks=breaks)
    eager = LineValues()
    with kind.around(), Eagerly(eager):
        comparison.observe(subject.target, kind.args, kind.kwargs, gradients=False)
    line = first_line(eager, heard)
    difference = next(iter(judged.differing.values()))
    return Written(programs, difference, "", breaks, line.span if line else None, line.how if line else "")
