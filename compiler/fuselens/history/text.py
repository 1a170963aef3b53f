"""A comparison for a terminal."""

from __future__ import annotations

import itertools

from .told import Told, ToldChange, ToldFunction

_LABELS = {"worse": "worse", "better": "better", "other": ""}
_WIDTH = 6


def text(outcome: Told) -> str:
    lines = [outcome.sides]
    file = None
    for function in outcome.functions:
        if function.file != file:
            file = function.file
            lines.append(file)
        lines += _function(function)
    for left in outcome.uncompared:
        at = outcome.old.short if left.side == "old" else (outcome.new.short if outcome.new else "the working tree")
        lines.append(f"{left.file}: not compared, because it cannot be looked at in {at}: {left.why}")
    return "\n".join([*lines, summary(outcome)])


def _function(function: ToldFunction) -> list[str]:
    was = " in ".join(filter(None, (function.old_name, function.old_file)))
    out = [f"  {function.name}{f' (was {was})' if was else ''}"]
    for steps, group in itertools.groupby(function.changes, lambda c: tuple(step.text for step in c.steps)):
        for change in group:
            why = f": {change.why}" if change.why and change.kind in ("fusion", "status", "time") else ""
            out.append(f"    {_LABELS[change.direction]:<{_WIDTH}}  {change.text}{why}{_place(change, function)}")
        out += [f"    {'':<{_WIDTH}}    by {step}" for step in steps]
    return out


def _place(change: ToldChange, function: ToldFunction) -> str:
    span = change.span
    if span is None or span == function.span:
        return ""
    gone = " before" if change.direction == "better" and change.kind in ("break", "finding") else ""
    return f", {span.place(function.file)}{gone}"


def summary(outcome: Told) -> str:
    """``3 of 12 files are affected: 1 function is worse, 2 are better, 9 are as before.``"""
    if not outcome.files and not outcome.functions and not outcome.uncompared:
        return "No file compiles a function, then or now."
    counts = f"{outcome.affected} of {_count(outcome.files, 'file')} affected"
    if not outcome.affected and not outcome.functions:
        return f"{counts}: nothing that compiled functions depend on differs."
    worse, better = len(outcome.worse), len(outcome.better)
    other = len(outcome.functions) - worse - better
    parts = [(worse, "worse"), (better, "better"), (other, "different"), (outcome.same, "as before")]
    said = ", ".join(f"{number} {word}" for number, word in parts if number)
    return f"{counts}: functions {said}." if said else f"{counts}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
