"""Shapes that depend on data: reductions over a mask keep the tensor's shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...record.report import Diagnostic, Fix
from .branches import condition
from .purity import is_pure
from .source import Source


def shape_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """For ``x[mask].sum()`` and ``x[mask].mean()``, and for ``torch.nonzero(mask)`` that is only counted."""
    found = source.at(finding.span, ast.Call)
    if found is not None:
        yield from _counted(source, found)
        return
    selected = source.at(finding.span, ast.Subscript)
    method = source.parents.get(selected) if selected is not None else None
    call = source.parents.get(method) if method is not None else None
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Subscript(value=values, slice=mask), attr=name), args=[], keywords=[]
        ):
            plain = isinstance(mask, ast.Tuple | ast.Slice | ast.Constant)
            if call.func is not method or plain or name not in ("sum", "mean") or not is_pure(source, mask):
                return
            where, imports = source.spelled("torch.where", call)
            text = f"{where}({source.argument(mask)}, {source.argument(values)}, 0).sum()"
            if name == "mean":
                text = f"({text} / {source.operand(mask)}.sum())"
            yield Fix(f"Keep the shape: torch.where before {name}()", (*imports, source.replaced(call, text)))


def _counted(source: Source, node: ast.Call) -> Iterator[Fix]:
    match node:
        case ast.Call(func=ast.Attribute(attr="nonzero") as function, args=[mask], keywords=[]) if source.dotted(
            function
        ):
            pass
        case ast.Call(func=ast.Attribute(value=mask, attr="nonzero"), args=[], keywords=[]):
            pass
        case _:
            return
    test = condition(source, mask, {})
    match source.parents[node]:
        case ast.Assign(targets=[ast.Name(id=name)]) if (function := source.function(node)) is not None:
            uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and n is not node]
            counts = [_count(source, n) for n in uses if isinstance(n.ctx, ast.Load)]
            edits = [source.replaced(node, test or "")]
            edits += [source.replaced(c, f"{name}.sum()") for c in counts if c is not None]
            if test is None or None in counts or len(uses) != len(counts) + 1:
                return
        case _:
            count = _count(source, node)
            if test is None or count is None:
                return
            edits = [source.replaced(count, f"({test}).sum()")]
    yield Fix("Count with sum() instead of nonzero()", tuple(edits))


def _count(source: Source, node: ast.expr) -> ast.expr | None:
    """``len(node)``, ``node.shape[0]`` or ``node.size(0)`` around ``node``."""
    parent = source.parents[node]
    around = source.parents.get(parent)
    match parent, around:
        case ast.Call(func=ast.Name(id="len")), _:
            return parent
        case ast.Attribute(attr="shape"), ast.Subscript(slice=ast.Constant(value=0)):
            return around
        case ast.Attribute(attr="size"), ast.Call(args=[ast.Constant(value=0)]):
            return around
    return None
