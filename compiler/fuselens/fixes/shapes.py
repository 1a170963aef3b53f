"""Shapes that depend on data: reductions over a mask keep the tensor's shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..report import Diagnostic, Fix
from .purity import is_pure
from .source import Source


def shape_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """For ``x[mask].sum()`` and ``x[mask].mean()``."""
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
