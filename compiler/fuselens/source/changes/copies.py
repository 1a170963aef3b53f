"""Copies that may be left out: ``.contiguous()`` and ``.clone()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..discovery import Definition
from ..fixes import Source
from .change import Change, Place

_COPIES = ("clone", "contiguous")
_KEEPS = frozenset({"append", "appendleft", "extend", "insert", "add", "setdefault", "update", "put"})


def copy_changes(place: Place) -> Iterator[Change]:
    for function in place.functions:
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and place.source.function(call) is function:
                copied = _copied(place.source, call)
                if copied is not None:
                    yield _change(place, function, call, *copied)


def _copied(source: Source, call: ast.Call) -> tuple[str, ast.expr] | None:
    """Which kind of copy a call makes, and of what."""
    if call.keywords:
        return None
    name = source.dotted(call.func)
    if name == "torch.clone" and len(call.args) == 1 and not isinstance(call.args[0], ast.Starred):
        return "clone", call.args[0]
    if not name and isinstance(call.func, ast.Attribute) and call.func.attr in _COPIES and not call.args:
        return call.func.attr, call.func.value
    return None


def _change(place: Place, function: Definition, call: ast.Call, kind: str, copied: ast.expr) -> Change:
    source = place.source
    edit = source.replaced(call, source.operand(copied))
    refused = _why_needed(source, function, call, copied) if kind == "clone" else ""
    return Change(kind, f"Leave out .{kind}()", source.span(call), (edit,), of=place.of, refused=refused)


def _why_needed(source: Source, function: Definition, call: ast.Call, copied: ast.expr) -> str:
    """What a copy in memory of its own may be for, by the text; "" for nothing."""
    statement = source.statement(call)
    parents = list(source.above(call))
    if isinstance(statement, ast.Return) and (
        parents[0] is statement or isinstance(parents[0], ast.Tuple | ast.List | ast.Dict)
    ):
        return "it is returned: the caller would get the same memory again"
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if any(isinstance(t, ast.Attribute | ast.Subscript) for t in targets):
        return "it is kept: what writes to the original later would change it"
    if any(isinstance(p, ast.Call) and isinstance(p.func, ast.Attribute) and p.func.attr in _KEEPS for p in parents):
        return "it is kept: what writes to the original later would change it"
    names = {n.id for n in ast.walk(copied) if isinstance(n, ast.Name)}
    names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    if isinstance(parents[0], ast.Attribute) and parents[0].attr.endswith("_") and not parents[0].attr.endswith("__"):
        return "it is written to at once"
    nodes = (n for n in ast.walk(function) if isinstance(n, ast.expr | ast.stmt))
    written = next((n for n in nodes if _written(n) & names), None)
    if written is not None:
        (name, *_) = sorted(_written(written) & names)
        return f"`{name}` is written to in line {written.lineno}"
    return ""


def _written(node: ast.AST) -> set[str]:
    """The variables whose memory a statement or a call writes to, by its text."""
    match node:
        case ast.AugAssign(target=target):
            return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        case ast.Assign(targets=targets):
            parts = [t for target in targets for t in ast.walk(target) if isinstance(t, ast.Subscript | ast.Attribute)]
            return {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}
        case ast.Call(func=ast.Attribute(value=receiver, attr=name)) if name.endswith("_") and not name.endswith("__"):
            return {n.id for n in ast.walk(receiver) if isinstance(n, ast.Name)}
        case ast.Call(keywords=keywords):
            given = [k.value for k in keywords if k.arg == "out"]
            return {n.id for value in given for n in ast.walk(value) if isinstance(n, ast.Name)}
    return set()
