"""Images in channels-last memory: the input, and the module that computes with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...record.report import Edit
from ..discovery import Definition
from ..fixes import Source
from .change import Change, Place

_IMAGE = 4  # dimensions


def layout_changes(place: Place) -> Iterator[Change]:
    function = place.function
    if function is None or not place.computes("conv") or _chosen(place.source):
        return
    images = [p for p in _parameters(function) if _is_image(place, p)]
    if not images:
        return
    torch, imports = place.source.spelled("torch.channels_last", function)
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    if not body or body[0].lineno == function.lineno:
        return
    lines = [f"{name} = {name}.to(memory_format={torch})" for name in images]
    edits: list[Edit] = [*imports, place.source.inserted(body[0], lines)]
    edits += _of_module(place, torch)
    title = f"Have {' and '.join(images)} in channels-last memory"
    yield Change("channels_last", title, place.span, tuple(edits), "any memory", place.of)


def _chosen(source: Source) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "channels_last" for n in ast.walk(source.tree))


def _parameters(function: Definition) -> list[str]:
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _is_image(place: Place, parameter: str) -> bool:
    """By what it was called with."""
    given = place.report.inputs
    if given is None:
        return False
    found = next((v for v in given.values if v.parameter == parameter), None)
    return found is not None and found.type.count(",") == _IMAGE - 1 and "f" in found.type.partition("[")[0]


def _of_module(place: Place, channels_last: str) -> Iterator[Edit]:
    """Its weights, once it is made."""
    owner = place.target.owner
    found = place.source.method(owner, "__init__") if owner is not None else None
    if found is None or not found[0].args.args:
        return
    last = found[0].body[-1]
    if place.source.alone(last):
        name = found[0].args.args[0].arg
        yield place.source.inserted_after(last, [f"{name}.to(memory_format={channels_last})"])
