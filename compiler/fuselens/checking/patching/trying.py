"""Tries out fixes of libraries: the installed text beside the changed one, in a process of its own.

Eager calls run the library as it is installed: they decide what is right. Beside them the changed text runs eagerly, and compiled, on
the same inputs. A fix is verified when its break is gone, none is new, and all of them leave the same. Compiled graphs run as they were
captured here: what becomes of a graph later is no matter of the library's text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ... import __version__, api
from ...capture.program import overlays
from ...inputs import comparison
from ...patches import differences, project, records
from ...pins import place
from ...record.report import Diagnostic, Fix
from ...source import fixes
from ..check import OpenFunction
from . import proposing

_MOST_STEPS = 4  # fixes that are made one
Observe = Callable[[Mapping[str, str], Sequence[Diagnostic]], "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``why`` texts are not verified, "" when they are; ``left`` is the first break that is new."""

    why: str
    left: Diagnostic | None = None
    agreement: str = ""


class Differs(Exception):
    """The changed text computes something else."""


@dataclass(slots=True)
class Libraries:
    """The trials of one function. ``observe`` compares a function on texts with what eager leaves, and raises Differs."""

    path: str  # of the function
    qualname: str
    observe: Observe
    base: Mapping[str, str]  # what the project's patches make of libraries now

    def tried(self, finding: Diagnostic, late: Callable[[], bool], say: Callable[[str], None]) -> Iterator[Fix]:
        """The fixes of one break with what became of them, up to the first that is verified."""
        for fix in finding.fixes:
            if late():
                yield dataclasses.replace(fix, trial="there was no time to try it out")
                continue
            say(f"{self.qualname}: trying out: {fix.title}")
            source = proposing.source_of(fix.library)
            assert source is not None
            before = self.base.get(fix.library, source.given)
            text = differences.merged(source.given, before, fixes.applied(source.given, fix.edits))
            if text is None:
                yield dataclasses.replace(fix, trial="the project has a patch of the same lines")
                continue
            with contextlib.suppress(Differs):
                found = self.completed([finding], fix, {fix.library: text}, late)
                yield found
                if found.verified:
                    return

    def completed(self, removed: list[Diagnostic], fix: Fix, texts: dict[str, str], late: Callable[[], bool]) -> Fix:
        """``fix`` with what trying it out found, or what it becomes with that of the break which it leaves. Raises Differs."""
        outcome = self.observe({**self.base, **texts}, removed)
        if not outcome.why:
            return self.verified(removed, fix, texts, outcome)
        tried = dataclasses.replace(fix, trial=outcome.why)
        left = outcome.left
        if left is None or left.span is None or len(removed) == _MOST_STEPS or left.span.file != fix.library:
            return tried
        source = proposing.source_of(fix.library)
        assert source is not None
        for following in proposing.proposed(left.span.file, left):
            both = differences.merged(source.given, texts[fix.library], fixes.applied(source.given, following.edits))
            if late() or both is None or both == texts[fix.library]:
                continue
            edits = tuple(fixes.differences(source.given, both, fix.library))
            title = f"{fix.title}; {following.title[:1].lower()}{following.title[1:]}"
            made = dataclasses.replace(fix, title=title, edits=edits, base=fix.base or fix.edits)
            with contextlib.suppress(Differs):
                found = self.completed([*removed, left], made, {fix.library: both}, late)
                if found.verified:
                    return found
        return tried

    def verified(self, removed: Sequence[Diagnostic], fix: Fix, texts: Mapping[str, str], outcome: Outcome) -> Fix:
        """With the patch that accepting it writes."""
        try:
            patch = project.made(
                fix.library, texts[fix.library], [about(d) for d in removed], [said(self.path, self.qualname, outcome)],
                [shown(self.path, self.qualname)],
            )  # fmt: skip
        except (project.Refused, OSError) as error:
            return dataclasses.replace(fix, trial=str(error))
        return dataclasses.replace(fix, verified=True, trial=outcome.agreement, patch=records.written(patch))


def about(finding: Diagnostic) -> str:
    """What a patch says of a break that it removes."""
    where = f" at line {finding.span.line}" if finding.span else ""
    return f"{finding.code}{where}: {finding.message.removeprefix('graph break: ')}"


def shown(path: str, qualname: str) -> str:
    """A function as a patch names it: its file relative to the project's root."""
    root = place.root_of(path)
    file = Path(path).absolute()
    return f"{(file.relative_to(root) if root is not None else file).as_posix()}::{qualname}"


def said(path: str, qualname: str, outcome: Outcome) -> str:
    versions = f"fuselens {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return f"{shown(path, qualname)} {outcome.agreement} ({versions})"


def remaining(function: OpenFunction, qualname: str, texts: Mapping[str, str]) -> list[Diagnostic]:
    """The breaks of a function's call, with these texts of libraries."""
    inputs = function.inputs()
    config = dataclasses.replace(function.config, explore=True, build=False)
    with overlays.trying(texts), comparison.unchanged(function.file.module, function.target, *inputs.args):
        report = api.inspect(
            function.target, inputs.args, inputs.kwargs, config=config, function=qualname,
            span=function.annotated.name_span, dynamic=inputs.dynamic,
        )  # fmt: skip
    return [*report.breaks, *(d for d in report.diagnostics if d.severity == "error")]


def new_among(
    found: Sequence[Diagnostic], before: Sequence[Diagnostic], removed: Sequence[Diagnostic]
) -> Diagnostic | None:
    """The first break that should be gone, or was not there."""
    rest = [d for d in before if not any(_same(d, gone) for gone in removed)]
    for d in found:
        if any(_same(d, gone) for gone in removed) or not any(_same(d, b) or _alike(d, b) for b in rest):
            return d
    return None


def _same(one: Diagnostic, other: Diagnostic) -> bool:
    return (one.code, one.span) == (other.code, other.span)


def _alike(one: Diagnostic, other: Diagnostic) -> bool:
    return (one.code, one.message) == (other.code, other.message)
