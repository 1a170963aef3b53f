"""Guards as hovers tell them: those of a parameter one by one, those of what it holds, and of globals, in one line."""

from __future__ import annotations

import re
from collections import Counter

from fuselens.record.guard_sentences import recompiled_when
from fuselens.record.printed import foreseen
from fuselens.record.report import Guard, Report
from fuselens.source.discovery import Annotated, Parameter
from fuselens_server.features.code_actions import for_any_size
from fuselens_server.features.hovers.links import Links
from fuselens_server.features.inlay_hints import tensor_layout, tensor_text
from fuselens_server.features.markdown import bullets, code, escape
from fuselens_server.texts.view import View

_MOST = 8  # guards that are told one by one
_MANY = 4  # guards of what a parameter holds, that are told in one line


def parameter_hover(view: View, function: Annotated, parameter: Parameter, link: Links) -> list[str]:
    report = view.function(function.qualname)
    if report is None:
        return []
    named = re.compile(rf"(?<![\w.]){re.escape(parameter.name)}(?!\w)")
    shapes = [s for s in report.shapes if s.name == parameter.name]
    own = [s for s in shapes if s.span.line <= parameter.span.end_line] or shapes
    shape = f" {code(tensor_text(own[0].tensor))} — {escape(tensor_layout(own[0].tensor))}," if own else " —"
    parts = [f"**{escape(parameter.name)}**{shape} parameter of {code(function.qualname)}"]
    symbols = [s for s in report.symbols if named.search(s.source)]
    if symbols:
        parts.append(bullets([f"{code(s.name)} = {code(s.source)}{_range(s.lower, s.upper, s.hint)}" for s in symbols]))
    guards = [g for g in report.guards if parameter.name in g.roots]
    guards.sort(key=lambda guard: guard.kind == "MISSING")  # what rarely happens comes last
    held = [g for g in guards if _is_held(g, parameter.name)]
    if len(held) > _MANY:
        guards = [g for g in guards if g not in held]
    else:
        held = []
    if guards or held:
        lines = [_guard(report, guard) for guard in guards[:_MOST]]
        lines += [f"and {len(guards) - _MOST} more"] if len(guards) > _MOST else []
        lines += [_held_sentence(held)] if held else []
        parts.append("Compiled again when\n" + bullets(lines))
    elif report.compiled:  # what never compiled reuses nothing
        parts.append("No guard depends on it: any value reuses the compiled code.")
    if for_any_size(view, function, parameter.name):
        parts.append(link.mark_dynamic("Mark dynamic", function.qualname))
    return [part for part in parts if part]


def guards_line(report: Report, parameters: tuple[Parameter, ...]) -> str:
    """All guards of a function: ``Guards: 5 on `a` · 149 on tensors and 1,047 on attributes of modules · 12 on globals``."""
    names = {parameter.name for parameter in parameters} | {"self"}
    direct: Counter[str] = Counter()
    held: list[Guard] = []
    others = 0
    for guard in report.guards:
        roots = [root for root in guard.roots if root in names]
        if roots and _is_held(guard, roots[0]):
            held.append(guard)
        elif roots:
            direct[roots[0]] += 1
        else:
            others += 1
    said = [f"{count:,} on {code(name)}" for name, count in direct.items()]
    tensors = sum(guard.kind == "TENSOR" for guard in held)
    parts = [f"{tensors:,} on tensors" if tensors else "", _on_attributes(len(held) - tensors)]
    said += [f"{' and '.join(filter(None, parts))} of modules and other objects"] if held else []
    said += [f"{others:,} on globals and torch's state"] if others else []
    told = report.foreseen
    cost = f" · {told.ns:.0f} ns of a call" if told is not None and told.ns is not None else ""
    return f"Guards: {' · '.join(said)}{cost}" if said else ""


def foreseen_line(report: Report) -> str:
    """How often the function will be compiled, and the guards that make it so."""
    if report.foreseen is None or report.foreseen.compilations is None:
        return ""
    failing = [foreseen.failing(guard, report.file) for guard in report.foreseen.failing[:_MANY]]
    return f"Foreseen: {foreseen.headline(report.foreseen)}" + (f"\n{bullets(map(code, failing))}" if failing else "")


def _on_attributes(count: int) -> str:
    return f"{count:,} on attributes" if count else ""


def _is_held(guard: Guard, name: str) -> bool:
    """Whether it is about something that the parameter holds: a module's parameters and hooks, an object's attributes."""
    return guard.kind not in ("SHAPE", "STRIDE") and guard.source.startswith((f"{name}._", f"{name}.", f"{name}["))


def _held_sentence(held: list[Guard]) -> str:
    tensors = sum(guard.kind == "TENSOR" for guard in held)
    said = [f"one of {tensors:,} tensors in it gets another dtype, device or size"] if tensors else []
    attributes = len(held) - tensors
    said += [f"one of {attributes:,} attributes, types and hooks in it changes"] if attributes else []
    return ", or ".join(said)


def _guard(report: Report, guard: Guard) -> str:
    where = f", {guard.span.place(report.file)}" if guard.span else ""
    fate = foreseen.fate(guard, report.foreseen, report.file)
    where += f" — {escape(fate)}" if fate else ""
    if guard.kind == "MISSING":  # a sentence already
        return f"{escape(recompiled_when(guard))}{where}"
    return f"{code(recompiled_when(guard, report.symbols))} — guard {code(guard.expression)}{where}"


def _range(lower: int | None, upper: int | None, hint: int | None) -> str:
    bounds = []
    if lower is not None or upper is not None:
        bounds.append(f"{'−∞' if lower is None else lower} … {'∞' if upper is None else upper}")
    if hint is not None:
        bounds.append(f"example {hint}")
    return f" ({', '.join(bounds)})" if bounds else ""
