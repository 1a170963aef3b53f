"""What is foreseen of a function's compilations: in a few words for a hover, and in lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..report import CallSite, FailingGuard, Foreseen, Guard

_SHOWN = 8


def headline(told: Foreseen) -> str:
    """``2 compilations (counted at 1 call site)``, or that it is not certain."""
    if told.compilations is None:
        return "compilations unknown: " + (told.doubts[0] if told.doubts else "no call of it was found")
    count = f"{told.compilations} compilation{'s' * (told.compilations != 1)}"
    places = len(told.places)
    where = f"at {places} call site{'s' * (places != 1)}"
    limit = "; then it runs eagerly" if told.limited else ""
    return f"{count}{limit} (counted {where})" if told.certain else f"{count}{limit} foretold {where}; not all is known"


def lines(told: Foreseen, file: str) -> Iterator[str]:
    """All that is known, in lines."""
    yield headline(told)
    lines = Counter(site.place(file) for site in told.sites)
    for site in told.sites:
        column = f", column {site.span.column + 1}" if site.span is not None and lines[site.place(file)] > 1 else ""
        yield f"  {_site(site, site.place(file) + column)}"
    for doubt in told.doubts:
        yield f"  not certain: {doubt}"
    if told.failing:
        yield "guards that fail"
        yield from (f"  {failing(guard, file)}" for guard in told.failing[:_SHOWN])
        if len(told.failing) > _SHOWN:
            yield f"  and {len(told.failing) - _SHOWN} more"
    if told.proved:
        yield f"{len(told.proved)} of {told.guards} guards of the first compilation are always true {places(told, file)}"
    if told.ns is not None:
        yield budget(told)


def _site(site: CallSite, place: str) -> str:
    if site.unknown:
        return f"{place}: unknown, not counted: {site.unknown}"
    if site.inside:
        return f"{place}: called by `{site.inside}`, which is compiled: it becomes a part of that"
    if not site.calls:
        return f"{place}: the program does not get there"
    calls = f"{site.calls} call{'s' * (site.calls != 1)}"
    made = f"{site.compilations} compilation{'s' * (site.compilations != 1)}"
    given = [f"{p.parameter}: {' | '.join(p.values)}{f' | {p.more} more' if p.more else ''}" for p in site.passes]
    return f"{place}: {calls}, {made}" + (f" ({', '.join(given)})" if given else "")


def failing(guard: FailingGuard, file: str) -> str:
    """``x: expected f32[16, 8], found f32[32, 8] at line 13 (call 2)``."""
    where = f"at {guard.site.place(file)}" if guard.site is not None else "in recorded runs"
    return f"{guard.why}; {where} (call {guard.call})"


def places(told: Foreseen, file: str) -> str:
    """``at the 2 call sites (line 13, model.py:4)``."""
    found = list(dict.fromkeys(site.place(file) for site in told.places))
    listed = ", ".join(found[:4]) + (", …" if len(found) > 4 else "")
    return f"at the call site ({listed})" if len(found) == 1 else f"at the {len(found)} call sites ({listed})"


def budget(told: Foreseen) -> str:
    """``guards take 284 ns of a call: 7 STATE 183 ns, 4 SHAPE 40 ns``: measured on this machine."""
    most = ", ".join(f"{cost.guards} {cost.kind} {cost.ns:.0f} ns" for cost in told.costs[:4])
    return f"guards take {told.ns:.0f} ns of a call, measured here" + (f"; each kind alone: {most}" if most else "")


def fate(guard: Guard, told: Foreseen | None, file: str) -> str:
    """What calls do to a guard: when it fails, or that it is always true; and about what it takes, which is the mean of its kind. ""
    where nothing is known of it."""
    if told is None:
        return ""
    found = [f for f in told.failing if f.expression == guard.expression]
    said = [f"fails: {failing(f, file)}" for f in found[:1]]
    said += [f"always true {places(told, file)}"] if guard.expression in told.proved else []
    said += [f"about {cost.ns / cost.guards:.0f} ns" for cost in told.costs if cost.kind == guard.kind]
    return "; ".join(said)
