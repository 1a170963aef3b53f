"""The body of a function inside of a ``with``: without gradients, or in another precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ...record.report import Edit, Span
from ..discovery import Definition
from ..fixes import FORMATTED, Source
from .change import Change, Place

Context = tuple[str, str]
"""A name of torch, and the arguments of its call, in which ``{torch}`` stands for how the file says that."""

NO_GRAD: Context = ("torch.no_grad", "")
_PRODUCTS = ("mm", "linear", "conv", "matmul", "attention")


def autocast(device: str, dtype: str) -> Context:
    return "torch.autocast", f'"{device}", dtype={{torch}}.{dtype}'


def precision_changes(place: Place) -> Iterator[Change]:
    """bfloat16, where products take the time."""
    function = place.function
    if function is None or not place.computes(*_PRODUCTS) or _casts(place.source, place.functions):
        return
    edits = inside(place.source, function, [autocast(place.device, "bfloat16")])
    if edits:
        yield Change(
            "autocast",
            "Compute products in bfloat16",
            place.span,
            edits,
            "rounded",
            place.of,
            changes="values are rounded more",
        )


def _casts(source: Source, functions: Sequence[Definition]) -> bool:
    calls = (n for f in functions for n in ast.walk(f) if isinstance(n, ast.Call))
    return any(
        source.dotted(call.func).startswith("torch.") and "autocast" in source.dotted(call.func) for call in calls
    )


def inside(source: Source, function: Definition, contexts: Sequence[Context]) -> tuple[Edit, ...] | None:
    """The body in a ``with`` of its own, below its docstring; None where it cannot be indented as it is written."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    if not body or body[0].lineno == function.lineno or not source.alone(*body) or _holds_lines(body):
        return None
    if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(function)):
        return None  # what is between two values would be inside, too
    said: list[str] = []
    imports: dict[Edit, None] = {}
    for name, arguments in contexts:
        spelled, needed = source.spelled(name, function)
        imports |= dict.fromkeys(needed)
        said.append(f"{spelled}({arguments.format(torch=spelled.rpartition('.')[0] or 'torch')})")
    indentation, path = source.indentation(body[0]), source.filename
    first = min([body[0].lineno, *(d.lineno for d in getattr(body[0], "decorator_list", ()))])
    last = body[-1].end_lineno or body[-1].lineno
    begin = Edit(Span(path, first, 0, first, 0), f"{indentation}with {', '.join(said)}:\n    ")
    rest = [n for n in range(first + 1, last + 1) if source.lines[n - 1].strip()]
    return (*imports, begin, *(Edit(Span(path, n, 0, n, 0), "    ") for n in rest))


def _holds_lines(body: Sequence[ast.stmt]) -> bool:
    """Whether a string of it goes over several lines: indented, it would be another one."""
    texts = (n for statement in body for n in ast.walk(statement) if isinstance(n, (ast.Constant, *FORMATTED)))
    return any(node.lineno != node.end_lineno and _is_text(node) for node in texts)


def _is_text(node: ast.expr) -> bool:
    return not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes)
