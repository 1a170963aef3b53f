"""Other arguments of ``compile``: the mode, dynamic sizes, how much is kept for the backward."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...record.report import Edit
from ..discovery import Target
from ..fixes import Source
from .change import Change, Place

_MODES = {"cpu": ("max-autotune",), "cuda": ("reduce-overhead", "max-autotune")}
_BUDGETS = (0.5, 0.0)


def option_changes(place: Place) -> Iterator[Change]:
    given = place.target.annotated.arguments
    for mode in _MODES[place.device]:
        if given.get("mode", "default") != mode:
            yield from _with(place, "mode", f'"{mode}"', Change("mode", f'mode="{mode}"', place.span, of=place.of))
    if place.computes("conv", "mm", "linear", "attention") and given.get("mode") not in (None, "default"):
        yield from _with(place, "mode", '"default"', Change("mode", 'mode="default"', place.span, of=place.of))
    if given.get("dynamic") is not True:
        yield from _with(place, "dynamic", "True", Change("dynamic", "dynamic=True", place.span, of="first calls"))
    elif not place.trains or place.report.symbols:
        yield from _with(place, "dynamic", "False", Change("dynamic", "dynamic=False", place.span, of=place.of))
    for budget in _BUDGETS if place.trains and _is_ours(place) else ():
        title = f"Keep {'half as much' if budget else 'as little as it can be'} for the backward"
        change = Change("memory_budget", title, place.span, of="backward")
        yield from _with(place, "memory_budget", f"{budget:g}", change, option=True)


def _with(place: Place, name: str, value: str, change: Change, *, option: bool = False) -> Iterator[Change]:
    edit = compiled_with(place.source, place.target, name, value, option=option)
    if edit is not None:
        yield Change(change.kind, change.title, change.span, (edit,), of=change.of)


def _is_ours(place: Place) -> bool:
    call = _compiling(place.source, place.target)
    function = call.func if isinstance(call, ast.Call) else call
    return function is not None and place.source.dotted(function).startswith("fuselens.")


def compiled_with(source: Source, target: Target, name: str, value: str, *, option: bool = False) -> Edit | None:
    """The argument ``name=value``, or the entry of ``options=``, where the function is compiled, in the place of what it has. None where it
    cannot be written there."""
    call = _compiling(source, target)
    if call is None or not source.takes_arguments(call):
        return None
    keywords = call.keywords if isinstance(call, ast.Call) else []
    had = next((k for k in keywords if k.arg == name), None)
    if any(k.arg is None for k in keywords):
        return None
    if option:
        if had is not None or any(k.arg in ("mode", "options") for k in keywords):
            return None
        argument = f'options={{"{name}": {value}}}'
    elif had is not None:
        return source.replaced(had.value, value)
    elif name == "mode" and any(k.arg == "options" for k in keywords):
        return None
    else:
        argument = f"{name}={value}"
    if isinstance(call, ast.Call):
        return source.extended(call, argument)
    return source.replaced(call, f"{source.text(call)}({argument})")


def _compiling(source: Source, target: Target) -> ast.expr | None:
    """The decorator, or the call that compiles."""
    node = source.at(target.annotated.decorator_span, ast.expr)
    if node is None or isinstance(node, ast.Call):
        return node
    around = source.parents.get(node)
    return around if isinstance(around, ast.Call) and around.func is node else node
