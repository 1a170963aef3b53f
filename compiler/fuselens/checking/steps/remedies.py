"""What would lower a step's peak: each change is compiled, partitioned and run again without values. Its cost is what a step then takes
longer, by the bytes that it moves and the operations that it does."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from ... import torch_private
from ...record.report import Diagnostic, Fix, Remedy, Span, StepMemory
from ...source.fixes import Source, applied
from ...source.fixes.checkpoints import checkpoint_fixes
from ..opening import OpenFile, Progress
from ..parsing import FileRefused
from .calls import call_of
from .sizes import UnknownSize
from .step import Change, Step, StepRaised, Subject

_LEAST = 0.01  # of the peak: what saves less is not told
_BFLOAT16 = 80  # the first architecture that computes in it
_CALLS = 8  # that are tried
_BUDGETS = (0.5, 0.0)
_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)


def remedies(
    file: OpenFile, step: Step, sizes: Mapping[str, int], found: StepMemory, say: Progress, until: float, device: str
) -> tuple[Remedy, ...]:
    """The cheapest first: those after which it fits, and that change nothing but memory and time, before all others. ``device`` is where
    the function runs."""
    made: list[Remedy] = []
    start, longest = time.monotonic(), 0.0
    for title, attempt in _attempts(file, step, sizes, found, device):
        if time.monotonic() + longest > until:
            break
        say(f"{step.subject.name}: {title}")
        with contextlib.suppress(UnknownSize, StepRaised, FileRefused, ValueError):
            remedy = attempt()
            if remedy is not None and remedy.saves >= _LEAST * found.peak:
                made.append(remedy)
        longest, start = max(longest, time.monotonic() - start), time.monotonic()
    limit = found.limit or 0
    return tuple(
        sorted(made, key=lambda r: (r.peak > limit, bool(r.changes), r.slower if r.peak <= limit else -r.saves))
    )


Attempt = Callable[[], Remedy | None]


def _attempts(
    file: OpenFile, step: Step, sizes: Mapping[str, int], found: StepMemory, device: str
) -> Iterator[tuple[str, Attempt]]:  # fmt: skip
    changed = functools.partial(_changed, step, sizes, found)
    trains = "backward" in found.phases
    if found.phase == "optimizer" and step.optimizers:
        title = "let the optimizer update one parameter after the other"
        yield title, functools.partial(changed, title, Change(groups={"foreach": False}), how="foreach=False")
    for budget in _BUDGETS if trains else ():
        title = f"keep {'half as much' if budget else 'as little as it can be'} for the backward"
        options = {"memory_budget": budget}
        yield title, functools.partial(changed, title, Change(options), how=f'options={{"memory_budget": {budget:g}}}')
    for span, fix in _calls(file) if trains else ():
        yield fix.title, functools.partial(_edited, file, step, sizes, found, span, fix, device)
    if found.axis and (size := found.sizes.get(found.axis, 1)) > 1:
        yield f"{found.axis}={size // 2}", functools.partial(_halved, step, sizes, found, size)
    if trains and not torch_private.autocast_active():
        dtype, device = _half_of(found.target), "cuda" if found.target.startswith("cuda") else "cpu"
        title, cast = f"compute in {dtype}", functools.partial(torch.autocast, "cpu", dtype=getattr(torch, dtype))
        how = f'with torch.autocast("{device}", dtype=torch.{dtype})'
        changes = "results are rounded more" + (", and losses have to be scaled" if dtype == "float16" else "")
        yield title, functools.partial(changed, title, Change(around=cast), changes=changes, how=how)


def _half_of(target: str) -> str:
    """The half precision that a target computes in: cards before ``sm_80`` have no units for bfloat16."""
    architecture = "".join(c for c in target.partition("sm_")[2] if c.isdigit())
    return "float16" if architecture and int(architecture) < _BFLOAT16 else "bfloat16"


def _changed(
    step: Step, sizes: Mapping[str, int], found: StepMemory, title: str, change: Change, *, how: str, changes: str = ""
) -> Remedy:  # fmt: skip
    after = step.memory(sizes, change)
    return _remedy(found, after, title, after.seconds, changes=changes, how=how)


def _halved(step: Step, sizes: Mapping[str, int], found: StepMemory, size: int) -> Remedy:
    half, axis = size // 2, found.axis
    after = step.memory({**sizes, axis: half})
    title = f"a step of {axis}={half}, and the gradients of two added up"
    changes = "batch norms see fewer" if any(_normalises(m) for m in step.modules) else ""
    return _remedy(found, after, title, 2 * after.seconds, changes=changes)


def _calls(file: OpenFile) -> list[tuple[Span, Fix]]:
    try:
        return list(checkpoint_fixes(Source(file.source, file.path)))[:_CALLS]
    except SyntaxError:
        return []


def _edited(
    file: OpenFile, step: Step, sizes: Mapping[str, int], found: StepMemory, span: Span, fix: Fix, device: str
) -> Remedy | None:  # fmt: skip
    text = applied(file.source, fix.edits)
    with call_of(file.path, text, step.subject.name, step.config, device) as (shadow, call):
        if isinstance(call, Diagnostic):
            return None
        after = Step(Subject.of(call, shadow.source), step.config).memory(sizes)
    return dataclasses.replace(_remedy(found, after, fix.title, after.seconds), span=span, edits=fix.edits)


def _remedy(
    found: StepMemory, after: StepMemory, title: str, seconds: float, *, changes: str = "", how: str = ""
) -> Remedy:
    slower = seconds / found.seconds - 1 if found.seconds else 0.0
    return Remedy(title, after.peak, found.peak - after.peak, slower, changes, how=how)


def _normalises(module: torch.nn.Module) -> bool:
    return any(isinstance(m, _NORMS) for m in module.modules())
