"""What a child does first: it runs a function with its graphs as they were captured, compares, and writes each graph as a program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .. import api
from ..config import Config
from ..inputs import comparison
from ..inputs.graph_programs import GraphProgram, GraphPrograms
from ..pipeline import Recorder
from ..pipeline.refusals import eagerly
from ..record.diagnostics import raised


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """``differs`` says how the captured function differs from eager, if it does; ``raised`` what eager raised."""

    programs: list[GraphProgram]
    differs: str = ""
    raised: str = ""
    breaks: list[str] = dataclasses.field(default_factory=list)


def write_programs(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str, config: Config, folder: Path, gradients: bool
) -> Written:  # fmt: skip
    """Calls ``target`` eagerly and captured. Its graphs, with the inputs of their first calls, go into ``folder``."""
    config = dataclasses.replace(config, explore=False, weightless=False, dump=None, fallback_random=True)
    recorder = Recorder(name, "", None, config, texts=False)
    recorder.programs = programs = GraphPrograms(folder, eagerly)
    compiled = api.wrap(target, config, recorder=recorder, owner=object())
    judged = comparison.judge(target, compiled, args, kwargs, gradients=gradients)
    breaks = [f"line {d.span.line}: {d.message}" if d.span else d.message for d in recorder.report.breaks]
    if judged.raised is not None:
        which, error = judged.raised
        if which == "eager":
            return Written([], raised=raised(error))
        return Written(programs.found, f"it raised {raised(error)}", breaks=breaks)
    return Written(programs.found, next(iter(judged.differing.values()), ""), breaks=breaks)
