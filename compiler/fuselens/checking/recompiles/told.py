"""What a replay of a program's calls says of a function: its sites, guards and findings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...config import Config
from ...inputs.structures import tensors_in
from ...record import diagnostics
from ...record.report import CallSite, Diagnostic, Foreseen, Passed, Span
from ...slices import Heard, described, function_of
from ...source.discovery import Annotated, parse, span_of
from .replay import Failed, Made, Replay

MARK = "; mark dynamic?"
_SHOWN = 6  # values of a parameter
_MOST_PROVED = 2000
_OF_SIZES = re.compile(
    r"(?P<name>[\w.\[\]']+): expected (\w+)\[[\d, *]*\], found \2\[[\d, ]*\]$|a condition on sizes does not hold"
)
_ONCE = frozenset({"mode", "grad", "strides", "dtype", "device"})  # causes of which there are few kinds


def foreseen(heard: Sequence[Heard], calls: Sequence[Heard], replay: Replay, doubts: Sequence[str]) -> Foreseen:
    """``heard`` are all calls of the program, ``calls`` those that were made, with those of recorded runs."""
    compiled = Counter(id(made.call) for made in replay.made if made.compiled)
    groups: dict[Any, list[Heard]] = {}
    for call in (*heard, *(c for c in calls if c.site is None)):
        groups.setdefault((call.site, call.unknown, call.inside), []).append(call)
    sites = tuple(_site(group, sum(compiled[id(c)] for c in group)) for group in groups.values())
    unknown = [
        f"{'line ' + str(s.span.line) if s.span else 'a call'} gives what is not known: {s.unknown}"
        for s in sites
        if s.unknown
    ]
    left = [replay.raised] if replay.raised else []
    left += ["only calls of recorded runs are known"] if sites and all(s.recorded for s in sites) else []
    failing = tuple(made.failed.guard for made in replay.made if made.failed is not None)
    every = dict.fromkeys([*unknown, *left, *doubts])
    met = [g.expression for k, g in enumerate(replay.guards) if k not in replay.unmet]
    return Foreseen(
        sites, replay.compilations if replay.made else None, tuple(every), replay.limited, failing,
        tuple(dict.fromkeys(met))[:_MOST_PROVED] if not every else (), len(replay.guards), replay.ns, replay.costs,
    )  # fmt: skip


def not_reached(source: str, file: str, annotated: Annotated, told: Foreseen) -> Foreseen:
    """With the calls by the function's name that the program does not get to, but for those in its own body."""
    try:
        nodes = ast.walk(parse(source, file))
    except SyntaxError:
        return told
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    spans = [span_of(n, file) for n in calls if isinstance(n.func, ast.Name) and n.func.id == annotated.qualname]
    known = {site.span for site in told.sites}
    body = annotated.span
    left = [s for s in spans if s not in known and not body.line <= s.line <= body.end_line]
    return dataclasses.replace(told, sites=(*told.sites, *(CallSite(span) for span in left)))


def _site(calls: Sequence[Heard], compilations: int) -> CallSite:
    first = calls[0]
    passes = () if first.unknown or first.inside else tuple(_passed(calls))
    count = sum(call.times for call in calls)
    return CallSite(first.site, passes, count, compilations, first.unknown, first.inside, first.site is None)


def _passed(calls: Sequence[Heard]) -> Iterator[Passed]:
    given: dict[str, list[Any]] = {}
    for call in calls:
        for name, value in _named(call).items():
            given.setdefault(name, []).append(value)
    for name, values in given.items():
        texts = list(dict.fromkeys(map(described, values)))
        yield Passed(name, tuple(texts[:_SHOWN]), max(0, len(texts) - _SHOWN), _varying(values))


def _named(call: Heard) -> dict[str, Any]:
    """The arguments by the names of the parameters; what the object of a method is does not count."""
    function = function_of(call.target)
    target = call.target
    bound = not isinstance(target, type(function)) if function is not None else False
    try:
        form = inspect.signature(target.forward if isinstance(target, torch.nn.Module) else target)
        given = form.bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return {f"argument {k + 1}": v for k, v in enumerate(call.args)} | call.kwargs
    return {n: v for n, v in given.items() if n != "self" or bound}


def _varying(values: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    shapes = [tuple(v.shape) for v in values if isinstance(v, torch.Tensor)]
    if len(shapes) != len(values) or len({len(s) for s in shapes}) != 1:
        return {}
    found = {str(d): tuple(dict.fromkeys(sizes)) for d, sizes in enumerate(zip(*shapes, strict=True))}
    return {d: sizes for d, sizes in found.items() if len(sizes) > 1}


# --- findings ---------------------------------------------------------------------------------------------------------


def findings(
    annotated: Annotated, file: str, told: Foreseen, replay: Replay, config: Config
) -> Iterator[Diagnostic]:  # fmt: skip
    """Sizes that vary, where marks would spare a compilation; and what is compiled again and again."""
    made = [m for m in replay.made if m.failed is not None and m.call.site is not None]
    sizes = [m for m in made if m.failed is not None and _is_of_sizes(m.failed)]
    others = [m for m in made if m not in sizes]
    if sizes and _vary_beyond_one([m.call for m in replay.made]):
        yield _of_sizes(annotated, file, told, sizes[0])
    by_subject = Counter(m.failed.subject for m in others if m.failed is not None and m.failed.kind not in _ONCE)
    for subject, count in by_subject.most_common(1):
        first = next(m for m in others if m.failed is not None and m.failed.subject == subject)
        if count > 1 or replay.limited:
            yield _again(annotated, file, told, first, config.recompile_limit)


def _vary_beyond_one(calls: Sequence[Heard]) -> bool:
    """Whether a dimension has two sizes from 2 on: 0 and 1 are compiled apart in any case."""
    given: dict[tuple[str, int], list[Any]] = {}
    for call in calls:
        for name, value in _named(call).items():
            for tensor in tensors_in(value):
                given.setdefault((name, tensor.dim()), []).append(tensor)
    varying = (sizes for tensors in given.values() for sizes in _varying(tensors).values())
    return any(sum(size > 1 for size in sizes) > 1 for sizes in varying)


def _is_of_sizes(failed: Failed) -> bool:
    return failed.guard.kind in ("TENSOR", "SHAPE") and bool(_OF_SIZES.match(failed.guard.why))


def _of_sizes(annotated: Annotated, file: str, told: Foreseen, made: Made) -> Diagnostic:
    place, other = _place(annotated, file, made.call.site)
    said = list(_sizes(told, made.call.site, file))
    text = "; ".join(said) or "sizes that vary"
    advice = made.failed.guard.advice if made.failed is not None else ""
    site = next(s for s in told.places if s.span == made.call.site)
    count = f"{site.compilations} compilations" if site.compilations > 1 else "one more compilation"
    return diagnostics.make(
        "FL207",
        place,
        what=annotated.qualname,
        sizes=text + other,
        count=count,
        question=MARK,
        hints=(advice,) if advice else (),
    )


def _sizes(told: Foreseen, span: Span | None, file: str) -> Iterator[str]:
    """``3 sizes of x (16, 32, 64 in dimension 0)``: at the site, else there and at others."""
    site = next(s for s in told.sites if s.span == span and not s.unknown and not s.inside)
    for passed in site.passes:
        for dimension, sizes in passed.sizes.items():
            listed = ", ".join(map(str, sizes[:_SHOWN])) + (", …" if len(sizes) > _SHOWN else "")
            yield f"{len(sizes)} sizes of {passed.parameter} ({listed} in dimension {dimension})"
    if any(passed.sizes for passed in site.passes):
        return
    for other in told.places:
        for ours, theirs in zip(site.passes, other.passes, strict=False):
            if other is not site and ours.parameter == theirs.parameter and ours.values != theirs.values:
                yield f"{ours.parameter} of {ours.values[0]}, which is {theirs.values[0]} at {other.place(file)}"
                return


def _again(annotated: Annotated, file: str, told: Foreseen, made: Made, limit: int) -> Diagnostic:
    assert made.failed is not None
    place, other = _place(annotated, file, made.call.site)
    guard = made.failed.guard
    return diagnostics.make(
        "FL208", place, what=annotated.qualname, count=told.compilations, why=guard.why + other, limit=limit,
        hints=(guard.advice,) if guard.advice else (),
    )  # fmt: skip


def _place(annotated: Annotated, file: str, site: Span | None) -> tuple[Span, str]:
    """Where a finding is told, and what names its place where that is another file."""
    if site is not None and site.file == file:
        return site, ""
    return annotated.name_span, f" at {site.place(file)}" if site is not None else ""
