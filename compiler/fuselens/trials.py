"""Tries fixes out: each is applied to a copy of the source, compiled, and compared with eager on several inputs.

A fix is verified when its break is gone and none is new, and when the edited, compiled function leaves what the
original does in eager mode: results, gradients, changed inputs and state. Where it decides a branch, the inputs must
have taken both sides of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import random
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import api, comparison, fixes
from .check import FileRefused, OpenFunction, describe, opened_function, read_source
from .config import Config
from .report import Diagnostic, FileReport, Fix, Report, Span

log = logging.getLogger(__name__)
Progress = Callable[[str], None]
Call = tuple[tuple[Any, ...], dict[str, Any]]
_VARIANTS = 24
_COMPARED = 6  # variants that are compared in any case
_SERIOUS = ("error", "warning")


def try_fixes(
    path: str,
    source: str | None,
    qualname: str,
    findings: Sequence[Diagnostic],
    config: Config,
    progress: Progress,
    seconds: float = float("inf"),
) -> FileReport:
    """``findings`` (all that a function has) in a report of it, with what became of their fixes. Fixes that leave other
    values than eager are taken out. After ``seconds`` no further one is tried out."""
    text = (read_source(path) if source is None else source).removeprefix("\ufeff")
    report = FileReport(path)
    deadline = time.monotonic() + seconds
    try:
        silence = contextlib.redirect_stdout(io.StringIO())  # what the function prints, it has printed in the check
        with silence, _seeded(), opened_function(path, qualname, text, config, progress) as original:
            trial = _Trial(path, text, qualname, findings, config, original)
            found = [
                dataclasses.replace(d, fixes=tuple(trial.tried(d, deadline, progress))) if d.fixes else d
                for d in findings
            ]
            report.functions.append(Report(qualname, path, breaks=found))
    except FileRefused as refusal:
        report.diagnostics.append(refusal.diagnostic)
    return report


@dataclass(slots=True)
class _Trial:
    path: str
    text: str
    qualname: str
    findings: Sequence[Diagnostic]
    config: Config
    original: OpenFunction
    looks: dict[Span, dict[int, set[bool]]] = field(default_factory=dict)  # condition → variant → truths
    expected: dict[int, dict[str, Any]] = field(default_factory=dict)  # what eager leaves, by variant
    gradients: dict[int, bool] = field(default_factory=dict)  # whether eager allows inputs that require them

    def __post_init__(self) -> None:
        for variant, (args, kwargs) in enumerate(_variants(self.original)):
            with _looks() as seen:
                found = comparison.observe(self.original.target, args, kwargs, gradients=True)
                self.gradients[variant] = "raised" not in found
                if "raised" in found:  # in-place changes of leaves, numpy: perhaps not without gradients
                    found = comparison.observe(self.original.target, args, kwargs, gradients=False)
                self.expected[variant] = found
            for span, truths in seen.items():
                self.looks.setdefault(span, {})[variant] = truths

    def tried(self, finding: Diagnostic, deadline: float, progress: Progress) -> Iterator[Fix]:
        for fix in finding.fixes:
            if time.monotonic() > deadline:
                yield dataclasses.replace(fix, trial="there was no time to try it out")
                continue
            progress(f"{self.qualname}: trying out: {fix.title}")
            try:
                why = self.objection(finding, fix)
            except _DiffersError as difference:
                log.info("%s: %s: %s", self.qualname, fix.title, difference)
                continue
            count = len(self.compared(finding, fix))
            yield dataclasses.replace(fix, verified=not why, trial=why or f"agrees with eager on {count} inputs")

    def objection(self, finding: Diagnostic, fix: Fix) -> str:
        """Why ``fix`` is not verified; "" when it is. Raises _DiffersError when it changes what the function computes."""
        variants = self.compared(finding, fix)
        if not variants:
            return "no inputs were found that take both sides"
        edited = fixes.applied(self.text, fix.edits)
        try:
            with _seeded(), opened_function(self.path, self.qualname, edited, self.config) as shadow:
                why = self.remaining(finding, shadow)
                return self.difference(shadow, variants) or why
        except FileRefused as refusal:
            return refusal.diagnostic.message

    def compared(self, finding: Diagnostic, fix: Fix) -> list[int]:
        """The inputs to compare on: at least one on which eager returns, and each side of the branch."""
        if all("raised" in outcome for outcome in self.expected.values()):
            return []
        chosen = dict.fromkeys(range(min(_COMPARED, len(self.expected))))
        chosen[next(v for v, outcome in self.expected.items() if "raised" not in outcome)] = None
        if finding.code == "FL101" and fixes.chooses(fixes.Source(self.text, self.path), finding.span):
            inside = [by for span, by in self.looks.items() if any(_within(span, e.span) for e in fix.edits)]
            for by_variant in inside:
                sides = [
                    next((v for v, truths in by_variant.items() if side in truths), None) for side in (True, False)
                ]
                if None in sides:
                    return []
                chosen |= dict.fromkeys(v for v in sides if v is not None)
            if not inside:
                return []
        return list(chosen)

    def remaining(self, finding: Diagnostic, shadow: OpenFunction) -> str:
        """What the edited function's compilation still complains of."""
        inputs = shadow.inputs()
        with comparison.unchanged(shadow.target, *inputs.args):
            report = api.inspect(
                shadow.target, inputs.args, inputs.kwargs, config=dataclasses.replace(shadow.config, explore=True),
                function=self.qualname, span=shadow.annotated.name_span, dynamic=inputs.dynamic,
            )  # fmt: skip
        before = Counter((d.code, d.message) for d in self.findings)
        before[finding.code, finding.message] -= 1
        for d in (*report.breaks, *report.diagnostics):
            if d in report.diagnostics and d.severity not in _SERIOUS and d.code != finding.code:
                continue
            before[d.code, d.message] -= 1
            if before[d.code, d.message] < 0:
                return f"{d.code}: {d.message}"
        return ""

    def difference(self, shadow: OpenFunction, variants: list[int]) -> str:
        compiled = api.wrap(
            shadow.target, dataclasses.replace(shadow.config, explore=False, fallback_random=True), owner=object()
        )
        for variant, (args, kwargs) in enumerate(_variants(shadow)):
            if variant not in variants:
                continue
            expected = self.expected[variant]
            actual = comparison.observe(compiled, args, kwargs, gradients=self.gradients[variant])
            if "raised" in actual and "raised" not in expected:
                return f"it raised {describe(actual['raised'])}"
            if "raised" in expected and "raised" not in actual:
                raise _DiffersError(f"eager raises {describe(expected['raised'])}")
            for what in expected if "raised" not in expected else ():
                if found := comparison.differ(expected[what], actual[what], what):
                    raise _DiffersError(found)
        return ""


class _DiffersError(Exception):
    """The edited function computes something else."""


# --- inputs ---------------------------------------------------------------------------------------------------------


def _variants(function: OpenFunction) -> Iterator[Call]:
    """Calls of ``function``, the same ones for each copy of it: the example's, other values and signs, other sizes."""
    with _seeded():
        inputs = function.inputs()
    for k in range(_VARIANTS):
        if k in (4, 5) and inputs.dynamic:
            with _seeded():
                other = function.inputs(variant=k)
            yield other.args, other.kwargs
            continue
        change = _Change(k, torch.Generator().manual_seed(k))
        yield change.every(inputs.args), change.every(inputs.kwargs)


@dataclass(slots=True)
class _Change:
    """Other values of the tensors in a structure, of the same types and shapes; integers stay within their range."""

    variant: int
    generator: torch.Generator
    position: int = 0

    def every(self, value: Any) -> Any:
        if type(value) is torch.Tensor and value.layout == torch.strided:
            self.position += 1
            return self.tensor(value)
        if type(value) in (list, tuple):
            return type(value)(self.every(v) for v in value)
        if type(value) is dict:
            return {k: self.every(v) for k, v in value.items()}
        return value

    def tensor(self, x: torch.Tensor) -> torch.Tensor:
        if self.variant == 0 or not x.numel():
            return x
        if x.is_floating_point() or x.is_complex():
            made = self.floats(x.detach()).to(x.dtype)
        elif x.dtype == torch.bool:
            made = [~x, torch.ones_like(x), torch.zeros_like(x), self.shuffled(x)][self.variant % 4]
        else:
            made = self.shuffled(x)
        return made.requires_grad_(x.requires_grad)

    def floats(self, x: torch.Tensor) -> torch.Tensor:
        alternate = -1.0 if self.position % 2 else 1.0
        fresh = torch.randn(x.shape, generator=self.generator, dtype=x.dtype if x.is_complex() else torch.float32)
        fresh = fresh.to(x.device)
        of_variant: dict[int, Callable[[], torch.Tensor]] = {
            1: lambda: fresh, 2: lambda: x.abs(), 3: lambda: -x.abs(), 6: lambda: torch.zeros_like(x), 7: lambda: x * 10,
            8: lambda: x / 100, 9: lambda: alternate * x.abs(), 10: lambda: -alternate * x.abs(), 11: lambda: x + 10,
            12: lambda: x - 10, 13: lambda: torch.ones_like(x), 14: lambda: fresh.abs() * 100, 15: lambda: fresh * 0.01,
        }  # fmt: skip
        return of_variant.get(self.variant, lambda: fresh * 2.0 ** (self.variant % 8 - 2))()

    def shuffled(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(x.numel(), generator=self.generator).to(x.device)
        return x.detach().flatten()[order].reshape(x.shape)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Each copy of the file is imported, and makes its inputs, from the same random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)
    yield


# --- conditions -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _looks() -> Iterator[dict[Span, set[bool]]]:
    """Which conditions look at tensors, and what they see."""
    seen: dict[Span, set[bool]] = defaultdict(set)
    look = torch.Tensor.__bool__

    def watched(tensor: torch.Tensor) -> bool:
        truth = look(tensor)
        frame = sys._getframe(1)
        place = _place(frame)
        if place is not None:
            seen[place].add(truth)
        return truth

    own = "__bool__" in vars(torch.Tensor)
    torch.Tensor.__bool__ = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        if own:
            torch.Tensor.__bool__ = look  # type: ignore[method-assign]
        else:
            del torch.Tensor.__bool__


def _place(frame: types.FrameType) -> Span | None:
    code = frame.f_code
    positions = list(code.co_positions())
    line, end_line, column, end_column = positions[frame.f_lasti // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return Span(code.co_filename, line, column, end_line, end_column)


def _within(inner: Span, outer: Span) -> bool:
    starts = (outer.line, outer.column) <= (inner.line, inner.column)
    return (
        inner.file == outer.file and starts and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)
    )
