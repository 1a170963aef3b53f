"""Context managers that cannot be traced: entered around the compiled function."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from ...record.report import Diagnostic, Fix
from ..discovery import Definition
from .source import FORMATTED, Source


def context_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """For a ``with`` statement that is all of its function, and enters nothing of the function's."""
    node = source.at(finding.span, ast.With) or source.at(finding.span, ast.expr)
    statement = source.statement(node) if node is not None else None
    function = source.function(statement) if statement is not None else None
    if not isinstance(statement, ast.With) or function is None or not _is_all_of(function, statement):
        return
    if isinstance(function, ast.AsyncFunctionDef) or any(
        isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(function)
    ):
        return
    entered = [item.context_expr for item in statement.items]
    names = {n.id for expression in entered for n in ast.walk(expression) if isinstance(n, ast.Name)}
    named = any(item.optional_vars is not None for item in statement.items)
    compiled = any(source.decorates(d) is not None for d in function.decorator_list)
    if named or not compiled or names & source.local_names(statement):
        return
    body = _outdented(source, statement)
    if body is None:
        return
    wraps, imports = source.spelled("functools.wraps", function)
    wrapper, indentation = source.unused(f"_around_{function.name}"), "    "
    said = ", ".join(source.text(e) for e in entered)
    lines = [
        f"def {wrapper}(function):",
        f"{indentation}@{wraps}(function)",
        f"{indentation}def call(*args, **kwargs):",
        f"{indentation * 2}with {said}:",
        f"{indentation * 3}return function(*args, **kwargs)",
        "",
        f"{indentation}return call",
        "",
        *([] if source.owner(function) else [""]),
        f"@{wrapper}",
    ]
    edits = (*imports, source.inserted(function, lines), source.replaced(statement, body))
    yield Fix(f"Enter {said} around the compiled function", edits)


def _is_all_of(function: Definition, statement: ast.With) -> bool:
    """Whether nothing is in ``function`` but a docstring, ``statement`` and a ``return`` of variables."""
    body = list(function.body)
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        del body[0]
    if isinstance(body[-1], ast.Return) and body[-1] is not statement:
        value = body[-1].value
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if not all(part is None or isinstance(part, ast.Name) for part in parts):
            return False
        del body[-1]
    return body == [statement]


def _outdented(source: Source, statement: ast.With) -> str | None:
    """The text of a block's statements at the indentation of ``statement``; None where lines mean something else."""
    first, last = statement.body[0], statement.body[-1]
    texts = (n for s in statement.body for n in ast.walk(s) if isinstance(n, (ast.Constant, *FORMATTED)))
    if first.lineno == statement.lineno or any(n.end_lineno != n.lineno for n in texts):
        return None
    outer, inner = source.indentation(statement), source.indentation(first)
    start, end = source.span(first), source.span(last)
    lines = source.between(dataclasses.replace(start, end_line=end.end_line, end_column=end.end_column)).split("\n")
    return "\n".join([lines[0], *(outer + line.removeprefix(inner) if line.strip() else line for line in lines[1:])])
