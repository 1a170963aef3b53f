"""What may make a function faster or smaller: by its text, and by what a check of it says."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch

from ... import api
from ...config import Config
from ...record.report import Diagnostic, Report
from ...slices import Hearing, importers
from ...source.changes import Change, Place, found
from ...source.fixes import Source
from ..function_check import planned
from ..opening import OpenFile, Progress, opened
from ..parsing import FileRefused, read_source
from ..steps.sizes import BATCH, Sizes
from .first_calls import known_calls, sizes_of

_LIKELY = ("batch", "b", "batch_size", "n", "bs")  # names of axes


class CannotBeMeasured(Exception):
    """No change of the function can be measured here; the message says why."""


def changes_of(path: str, qualname: str, source: str | None, config: Config, progress: Progress) -> list[Change]:
    """Those that may be worth measuring, and those that the text shows to be none. Raises FileRefused."""
    text = (read_source(path) if source is None else source).removeprefix("\ufeff")
    with opened(path, text, (qualname,), progress, config) as file:
        if not file.annotated:
            raise FileRefused(file.diagnostics[0])
        report, wider = _looked(file, config, progress)
    if report.device == "cuda" and not torch.cuda.is_available():
        raise CannotBeMeasured("it is compiled for a GPU, and this machine has none that could run it")
    if not report.compiled:
        raise CannotBeMeasured(f"it is not compiled: {report.uncompiled}")
    parsed = Source(text, path)
    target = next(t for t in parsed.targets if t.annotated.qualname == qualname)
    programs = [text for _, text in importers(path)]
    changes = [*found(Place(parsed, target, report, programs)), *wider]
    if any(change.kind == "dynamic" for change in changes):
        sizes = _sizes_called(path, text, qualname, config)
        wanted = "" if not sizes else "dynamic=True" if sizes > 1 else "dynamic=False"
        changes = [change for change in changes if change.kind != "dynamic" or change.title == wanted]
    return changes


def _sizes_called(path: str, text: str, qualname: str, config: Config) -> int:
    """With how many different sizes of its tensors the program calls it; 0 where no call is known."""
    hearing = Hearing()
    with opened(path, text, (qualname,), config=config, hearing=hearing) as file:
        file.ask_callers()
        return len({sizes_of(call) for call in known_calls(hearing, qualname)})


def _looked(file: OpenFile, config: Config, progress: Progress) -> tuple[Report, list[Change]]:
    (annotated,) = file.annotated
    call = planned(
        file, annotated, dataclasses.replace(config, build=False, card="", step_limit="", ranks=0, mesh=""), progress
    )
    if isinstance(call, Diagnostic):
        raise FileRefused(call)
    api.reset()
    around = call.evaluated.around if call.evaluated is not None else None
    inputs = call.inputs
    with around.again() if around else contextlib.nullcontext():
        recorder = api.called(
            call.found.target, inputs.args, inputs.kwargs, config=dataclasses.replace(call.config, explore=False),
            function=annotated.qualname, span=annotated.name_span,
        )  # fmt: skip
    recorder.finish()
    recorder.report.inputs = call.stated
    return recorder.report, list(_wider(Sizes.of(call.found, inputs), recorder.report))


def _wider(sizes: Sizes, report: Report) -> Iterator[Change]:
    axis = sizes.axis
    of_module = axis == BATCH and isinstance(sizes.found.target, torch.nn.Module)  # its layers say what a batch is
    if (
        report.span is None
        or not ((axis.lower() in _LIKELY and axis in sizes.inputs.symbols) or of_module)
        or not sizes.known.get(axis)
    ):
        return
    size = sizes.known[axis]
    of_training = any(graph.training for graph in report.graphs)
    also = "; a step of training takes other steps then" if of_training else ""
    yield Change(
        "batch",
        f"{axis}={2 * size} in place of {size}",
        report.span,
        of="batch",
        changes=f"each call has twice as much{also}",
    )
