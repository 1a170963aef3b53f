"""Copies that may be left out: ``.contiguous()`` and ``.clone()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..discovery import Definition
from ..fixes import Source
from .change import Change, Place

_COPIES = ("clone", "contiguous")
_KEEPS = frozenset(
    "append appendleft extend insert setdefault update put setattr register_buffer register_parameter".split()
)


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
    holder = ast.Tuple | ast.List | ast.Dict
    if isinstance(statement, ast.Return) and (parents[0] is statement or isinstance(parents[0], holder)):
        return "it is returned: the caller would get the same memory again"
    if isinstance(parents[0], ast.Attribute) and _in_place(parents[0].attr):
        return "it is written to at once"
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    bound = {name for target in targets for name in _names(target)}
    nodes = [n for n in ast.walk(function) if isinstance(n, ast.expr | ast.stmt)]
    if any(_keeps(node, call, bound) for node in nodes):
        return "it is kept: what writes to the original later would change it"
    used = bound | _names(copied)
    written = next((n for n in nodes if _written(n) & used), None)
    if written is not None:
        (name, *_) = sorted(_written(written) & used)
        return f"`{name}` is written to in line {written.lineno}"
    return ""


def _keeps(node: ast.expr | ast.stmt, call: ast.Call, bound: set[str]) -> bool:
    """Whether something stores the copy, or a variable that has it, where it outlives the call."""
    match node:
        case ast.Assign(targets=targets, value=value) if any(
            isinstance(t, ast.Attribute | ast.Subscript) for t in targets
        ):
            given = [value]
        case ast.Call(func=function, args=args, keywords=keywords):
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            given = [*args, *(k.value for k in keywords)] if name in _KEEPS else []
        case ast.Yield(value=ast.expr() as value) | ast.YieldFrom(value=value):
            given = [value]
        case _:
            return False
    return any(part is call or (isinstance(part, ast.Name) and part.id in bound) for g in given for part in ast.walk(g))


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _written(node: ast.AST) -> set[str]:
    """The variables whose memory a statement or a call writes to, by its text."""
    match node:
        case ast.AugAssign(target=target):
            return _names(target)
        case ast.Assign(targets=targets):
            parts = [t for target in targets for t in ast.walk(target) if isinstance(t, ast.Subscript | ast.Attribute)]
            return {name for part in parts for name in _names(part)}
        case ast.Call(func=ast.Attribute(value=receiver, attr=name)) if _in_place(name):
            return _names(receiver)
        case ast.Call(keywords=keywords):
            given = [k.value for k in keywords if k.arg == "out"]
            return {name for value in given for name in _names(value)}
    return set()
