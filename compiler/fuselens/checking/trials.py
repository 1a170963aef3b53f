"""Tries fixes out: each is applied to a copy of the source, compiled, and compared with eager on several inputs.

A fix is verified when its break is gone and none is new, and when the edited function leaves what the original does in
eager mode: results, gradients, changed inputs and state. It does so on every input run eagerly, and compiled on the
first few. Where it decides a branch, the inputs must have taken both sides of it; in files that ask whether numbers are
finite, inputs that are not are among them, and count with gradients where eager's result is finite.

A fix that leaves a break of another kind where its own was is tried with the fix of that one on top: the two are one
fix then. A graph that runs eagerly as a whole (FL301) is no better than a break: nothing of
it is compiled any more. Such fixes stay templates.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import io
import logging
import re
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import api
from ..capture.program import overlays
from ..config import Config
from ..inputs import comparison
from ..proving.kinds import seeded
from ..record.report import Diagnostic, FileReport, Fix, Report, Span
from ..source import fixes
from .check import OpenFunction, opened_function
from .parsing import FileRefused, read_source
from .patching import proposing, trying
from .trial_inputs import NOT_FINITE, SAME_INTEGERS, Call, variants
from .user_code import describe

log = logging.getLogger(__name__)
Progress = Callable[[str], None]
_COMPILED = 6  # variants on which the compiled function is compared in any case
_EAGER_SECONDS = 5.0  # for comparing a fix eagerly on the others
_MOST_STEPS = 3  # fixes that are made one
_SERIOUS = ("error", "warning")
_BRANCHES = ("FL101", "FL116")
_ASKS = re.compile(r"\bis(nan|(pos|neg)?inf|finite)\b")


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
    values than eager are taken out; those that hold all at once are marked so. After ``seconds`` no further one is tried
    out."""
    text = (read_source(path) if source is None else source).removeprefix("\ufeff")
    report = FileReport(path)
    deadline = time.monotonic() + seconds
    try:
        silence = contextlib.redirect_stdout(io.StringIO())  # what the function prints, it has printed in the check
        seeded()
        with silence, opened_function(path, qualname, text, config, progress) as original:
            trial = _Trial(path, text, qualname, findings, config, original)
            libraries = trying.Libraries(path, qualname, trial.with_libraries, overlays.texts(overlays.of(path)))
            late = functools.partial(_is_past, deadline)
            found = [
                dataclasses.replace(d, fixes=tuple(
                    libraries.tried(d, late, progress) if d.fixes[0].library else trial.tried(d, deadline, progress)
                )) if d.fixes else d
                for d in findings
            ]  # fmt: skip
            progress(f"{qualname}: trying out all fixes at once")
            report.functions.append(Report(qualname, path, breaks=trial.together(found, deadline)))
    except FileRefused as refusal:
        report.diagnostics.append(refusal.diagnostic)
    return report


def verify_texts(
    path: str, qualname: str, texts: Mapping[str, str], config: Config, progress: Progress
) -> tuple[trying.Outcome, list[Diagnostic]]:
    """Whether changed texts of libraries leave what the installed ones do, and which breaks of one function they remove. Raises
    FileRefused."""
    seeded()
    with contextlib.redirect_stdout(io.StringIO()), opened_function(path, qualname, None, config, progress) as original:
        progress(f"{qualname}: as the libraries are installed")
        before = trying.remaining(original, qualname, {})
        trial = _Trial(path, read_source(path).removeprefix("\ufeff"), qualname, before, config, original)
        progress(f"{qualname}: patched")
        after = trying.remaining(original, qualname, texts)
        gone = [d for d in before if not any((d.code, d.span) == (a.code, a.span) for a in after)]
        try:
            return trial.with_libraries(texts, gone), gone
        except trying.Differs as difference:
            return trying.Outcome(str(difference)), gone


def _is_past(deadline: float) -> bool:
    return time.monotonic() > deadline


@dataclass(slots=True)
class _Trial:
    path: str
    text: str
    qualname: str
    findings: Sequence[Diagnostic]
    config: Config
    original: OpenFunction
    source: fixes.Source = field(init=False)
    looks: dict[Span, dict[int, set[bool]]] = field(default_factory=dict)  # condition → variant → truths
    expected: dict[int, dict[str, Any]] = field(default_factory=dict)  # what eager leaves, by variant
    skipped: frozenset[int] = frozenset()  # variants
    gradients: dict[int, bool] = field(default_factory=dict)  # whether eager allows inputs that require them

    def __post_init__(self) -> None:
        self.source = fixes.Source(self.text, self.path)
        decides = any(d.fixes and d.code in _BRANCHES for d in self.findings) and _ASKS.search(self.text)
        if not decides or any(isinstance(n, ast.While) for n in ast.walk(self.source.tree)):  # it may never end
            self.skipped = NOT_FINITE
        for variant, (args, kwargs) in self.calls(self.original):
            with _looks() as seen:
                found = _left(self.original, self.original.target, args, kwargs, gradients=True)
                self.gradients[variant] = "raised" not in found
                if "raised" in found:  # in-place changes of leaves, numpy: perhaps not without gradients
                    found = _left(self.original, self.original.target, args, kwargs, gradients=False)
                if variant in NOT_FINITE and not _is_finite(found.get("result")):
                    found.pop("gradient", None)
                self.expected[variant] = found
            for span, truths in seen.items():
                self.looks.setdefault(span, {})[variant] = truths

        self.give_up_gradients()

    def give_up_gradients(self) -> None:
        """No input requires gradients where eager refuses such on some calls, as it does for writing to them."""
        refused = [v for v, allowed in self.gradients.items() if not allowed and "raised" not in self.expected[v]]
        for variant, (args, kwargs) in self.calls(self.original) if refused else ():
            if self.gradients[variant]:
                self.gradients[variant] = False
                self.expected[variant] = _left(self.original, self.original.target, args, kwargs, gradients=False)

    def calls(self, function: OpenFunction) -> Iterator[tuple[int, Call]]:
        return ((k, call) for k, call in enumerate(variants(function)) if k not in self.skipped)

    def tried(self, finding: Diagnostic, deadline: float, progress: Progress) -> Iterator[Fix]:
        given: set[object] = set()
        for fix in finding.fixes:
            if time.monotonic() > deadline:
                yield dataclasses.replace(fix, trial="there was no time to try it out")
                continue
            progress(f"{self.qualname}: trying out: {fix.title}")
            try:
                found = self.completed(finding, fix, deadline)
            except _DiffersError as difference:
                log.info("%s: %s: %s", self.qualname, fix.title, difference)
                continue
            if found.edits not in given:
                given.add(found.edits)
                yield found

    def completed(self, finding: Diagnostic, fix: Fix, deadline: float, steps: int = 1) -> Fix:
        """``fix`` with what trying it out found, or what it becomes with the fix of the break that it leaves. Raises
        _DiffersError when it changes what the function computes."""
        outcome = self.outcome([finding], fix)
        tried = dataclasses.replace(fix, verified=not outcome.why, trial=outcome.why or outcome.agreement)
        if outcome.left is None or steps == _MOST_STEPS:
            return tried
        edited = fixes.applied(self.text, fix.edits)
        for following in fixes.propose(fixes.Source(edited, self.path), outcome.left):
            if time.monotonic() > deadline:
                break
            both = fixes.followed(self.text, fix, following, self.path)
            with contextlib.suppress(_DiffersError):
                found = self.completed(finding, both, deadline, steps + 1)
                if found.verified:
                    return found
        return tried

    def with_libraries(self, texts: Mapping[str, str], removed: Sequence[Diagnostic]) -> trying.Outcome:
        """What becomes of changed texts of libraries, which should remove the breaks ``removed``. Raises Differs."""
        chosen: dict[int, None] = {}
        for finding in removed:
            source = proposing.source_of(finding.span.file) if finding.span else None
            found = self.compared(finding, Fix("", ()), source or self.source)
            if not found:
                return trying.Outcome("no inputs were found that take both sides")
            chosen |= dict.fromkeys(found)
        try:
            left = trying.new_among(trying.remaining(self.original, self.qualname, texts), self.findings, removed)
            with overlays.in_eager(texts):
                why = self.eagerly(self.original, list(chosen), removed)
            if left is not None:
                return trying.Outcome(f"{left.code}: {left.message}", left)
            config = dataclasses.replace(self.original.config, explore=False, fallback_random=True, until="capture")
            with overlays.trying(texts):
                compiled = api.wrap(self.original.target, config, owner=object())
                why = why or self.compiled(self.original, compiled, list(chosen))
        except _DiffersError as difference:
            raise trying.Differs(str(difference)) from None
        return trying.Outcome(why, None, f"agrees with eager on {len(chosen)} inputs")

    def together(self, findings: list[Diagnostic], deadline: float) -> list[Diagnostic]:
        """Marks the verified fixes, one of each finding, that hold all at once; of those that do not, as many as do."""
        chosen: dict[tuple[Any, ...], tuple[Fix, list[Diagnostic]]] = {}
        for finding in findings:
            best = next((fix for fix in finding.fixes if fix.verified and not fix.library), None)
            if best is None:
                continue
            if best.edits in chosen:
                chosen[best.edits][1].append(finding)
            elif not any(fixes.collide(best, other) for other, _ in chosen.values()):
                chosen[best.edits] = best, [finding]
        held = {fix.edits for fix, _ in self.holding([], list(chosen.values()), deadline)}
        return [
            dataclasses.replace(d, fixes=tuple(dataclasses.replace(f, together=f.edits in held) for f in d.fixes))
            for d in findings
        ]

    def holding(self, held: list[_Choice], more: list[_Choice], deadline: float) -> list[_Choice]:
        """``held``, which hold together, and those of ``more`` that do with them."""
        if not more or (len(held) + len(more) == 1):
            return [*held, *more]
        if time.monotonic() > deadline:
            return held
        every = [*held, *more]
        edits = tuple(dict.fromkeys(edit for fix, _ in every for edit in fix.edits))
        removed = [finding for _, about in every for finding in about]
        with contextlib.suppress(_DiffersError):
            if not self.outcome(removed, Fix("all", edits)).why:
                return every
        if len(more) == 1:
            return held if held else more
        half = len(more) // 2
        return self.holding(self.holding(held, more[:half], deadline), more[half:], deadline)

    def outcome(self, removed: Sequence[Diagnostic], fix: Fix) -> _Outcome:
        """What becomes of ``fix``, which should remove the findings ``removed``. Raises _DiffersError when it changes
        what the function computes."""
        chosen: dict[int, None] = {}
        for finding in removed:
            found = self.compared(finding, fix)
            if not found:
                return _Outcome("no inputs were found that take both sides")
            chosen |= dict.fromkeys(v for v in found if "one_hot" not in finding.message or v in SAME_INTEGERS)
        edited = fixes.applied(self.text, fix.edits)
        try:
            seeded()
            with opened_function(self.path, self.qualname, edited, self.config) as shadow:
                left = self.remaining(removed, shadow)
                why = f"{left.code}: {left.message}" if left is not None else ""
                why = self.difference(shadow, list(chosen), removed) or why
                return _Outcome(why, left, f"agrees with eager on {len(chosen)} inputs")
        except FileRefused as refusal:
            return _Outcome(refusal.diagnostic.message)

    def compared(self, finding: Diagnostic, fix: Fix, source: fixes.Source | None = None) -> list[int]:
        """The inputs to compare on: at least one on which eager returns, and each side of the branch."""
        if all("raised" in outcome for outcome in self.expected.values()):
            return []
        chosen = dict.fromkeys(range(_COMPILED))
        chosen[next(v for v, outcome in self.expected.items() if "raised" not in outcome)] = None
        if finding.code == "FL101" and fixes.chooses(source or self.source, finding.span):
            inside = [by for span, by in self.looks.items() if any(_within(span, e.span) for e in fix.edits)]
            if not inside and finding.span is not None:  # the edits are around it
                inside = [by for span, by in self.looks.items() if _within(span, finding.span)]
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

    def remaining(self, removed: Sequence[Diagnostic], shadow: OpenFunction) -> Diagnostic | None:
        """What the edited function's compilation still complains of."""
        inputs = shadow.inputs()
        with comparison.unchanged(shadow.file.module, shadow.target, *inputs.args):
            report = api.inspect(
                shadow.target, inputs.args, inputs.kwargs, config=dataclasses.replace(shadow.config, explore=True),
                function=self.qualname, span=shadow.annotated.name_span, dynamic=inputs.dynamic,
            )  # fmt: skip
        edited = fixes.Source(shadow.file.source, self.path)
        before = [d for d in self.findings if not any(d is gone for gone in removed)]
        codes = {d.code for d in removed}
        for d in (*report.breaks, *report.diagnostics):
            if d in report.diagnostics and d.severity not in _SERIOUS and d.code not in codes:
                continue
            same = next((b for b in before if _about(b, self.source) == _about(d, edited)), None)
            same = same or next((b for b in before if (b.code, b.message) == (d.code, d.message)), None)
            if same is None:
                return d
            before.remove(same)
        return None

    def difference(self, shadow: OpenFunction, compiled_on: list[int], removed: Sequence[Diagnostic]) -> str:
        """Why the edited function is not verified. Raises _DiffersError when it computes something else."""
        why = self.eagerly(shadow, compiled_on, removed)
        compiled = api.wrap(
            shadow.target, dataclasses.replace(shadow.config, explore=False, fallback_random=True), owner=object()
        )
        return why or self.compiled(shadow, compiled, compiled_on)

    def eagerly(self, shadow: OpenFunction, compiled_on: list[int], removed: Sequence[Diagnostic]) -> str:
        """The same of its eager calls."""
        branches = any(finding.code in _BRANCHES for finding in removed)
        classes = any(
            "one_hot" in finding.message for finding in removed
        )  # eager has as many as the largest label says
        until = time.monotonic() + _EAGER_SECONDS
        for variant, (args, kwargs) in self.calls(shadow):
            counts = (branches or variant not in NOT_FINITE) and (not classes or variant in SAME_INTEGERS)
            if variant in compiled_on or (counts and time.monotonic() < until):
                actual = _left(shadow, shadow.target, args, kwargs, gradients=self.gradients[variant])
                if "raised" in actual and "raised" not in self.expected[variant]:
                    return f"it raised {describe(actual['raised'])}"
                self.compare(variant, actual)
        return ""

    def compiled(self, shadow: OpenFunction, compiled: Any, compiled_on: list[int]) -> str:
        """The same of its compiled calls."""
        for variant, (args, kwargs) in self.calls(shadow):
            if variant not in compiled_on:
                continue
            actual = _left(shadow, compiled, args, kwargs, gradients=self.gradients[variant])
            if "raised" in actual and "raised" not in self.expected[variant]:
                return f"compiled, it raised {describe(actual['raised'])}"
            try:
                self.compare(variant, actual)
            except _DiffersError as found:
                return f"compiled, it differs: {found}"
        return ""

    def compare(self, variant: int, actual: dict[str, Any]) -> None:
        expected = self.expected[variant]
        if "raised" in expected:
            if "raised" not in actual:
                raise _DiffersError(f"eager raises {describe(expected['raised'])}")
            return
        for what in comparison.VALUES:
            if what not in expected:
                continue
            value = expected[what]
            there = {k: actual[what].get(k) for k in value} if what == "state" else actual[what]
            if found := comparison.differ(value, there, what):
                raise _DiffersError(found)


_Choice = tuple[Fix, list[Diagnostic]]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """``why`` a fix is not verified, "" when it is; ``left`` is the break that it leaves."""

    why: str
    left: Diagnostic | None = None
    agreement: str = ""


class _DiffersError(Exception):
    """The edited function computes something else."""


def _left(
    function: OpenFunction, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, gradients: bool
) -> dict[str, Any]:
    return comparison.observe(fn, args, kwargs, gradients=gradients, keeping=function.file.module)


def _about(finding: Diagnostic, source: fixes.Source) -> tuple[str, Any]:
    """What a finding is and what it is about: names and lines may change where it stays."""
    here = finding.span is not None and finding.span.file == source.filename
    return finding.code, source.between(finding.span) if here and finding.span else finding.span


def _is_finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(_is_finite(v) for v in value)
    return value == value and value not in (float("inf"), -float("inf"))


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
