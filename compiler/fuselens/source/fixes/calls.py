"""Calls that cannot be traced: numpy written with torch, values that do not change made once, tensors cloned."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator

from ...record.report import Diagnostic, Edit, Fix, Span
from .purity import IMPURE
from .source import N, Source

_SAME = frozenset(
    "abs absolute all allclose any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort "
    "atleast_1d atleast_2d broadcast_to ceil clip conj copysign cos cosh cumprod cumsum deg2rad diag diagonal diff dot "
    "dstack einsum equal exp exp2 expm1 eye flip fliplr flipud float_power floor floor_divide fmax fmin full full_like gcd "
    "greater greater_equal heaviside hstack hypot inner isclose isfinite isin isinf isnan isneginf isposinf kron lcm ldexp "
    "less less_equal linspace log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor "
    "matmul maximum mean median minimum moveaxis multiply negative nanmean nansum nan_to_num nextafter not_equal ones "
    "ones_like outer positive prod rad2deg ravel real reciprocal remainder reshape roll round rot90 sign signbit sin sinc "
    "sinh sqrt square squeeze std stack subtract sum swapaxes take tan tanh tensordot tile trace transpose tril triu "
    "true_divide trunc unravel_index vander var vdot vstack where zeros zeros_like add divide".split()
) - {"all", "any", "allclose", "median", "take", "transpose", "std", "var", "unravel_index", "vander"}  # these differ
_OTHER = {"concatenate": "cat", "power": "pow", "expand_dims": "unsqueeze", "amax": "amax", "amin": "amin", "max": "amax",
          "min": "amin", "mod": "remainder", "fabs": "abs", "rint": "round"}  # fmt: skip
_KEYWORDS = {"axis": "dim", "keepdims": "keepdim", "a": "input", "a_min": "min", "a_max": "max"}
_DTYPES = frozenset("float16 float32 float64 int8 int16 int32 int64 uint8 complex64 complex128".split())
_CONSTANTS = frozenset("pi e inf nan newaxis".split())
_WRAPPING = ("torch.from_numpy", "torch.as_tensor", "torch.tensor")
_VALUES = ("numpy.asarray", "numpy.array")


def call_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """For a call at ``span``, or what else is done to an array there."""
    if "ndarray" in finding.message and (array := source.at(finding.span, ast.expr)) is not None:
        yield from _without_numpy(source, array)
        return
    node = source.at(finding.span, ast.Call)
    if node is None:
        return
    name = source.dotted(node.func)
    if name in ("copy.deepcopy", "copy.copy") and len(node.args) == 1 and not node.keywords:
        copied = source.operand(node.args[0])
        yield Fix(f"Clone the tensor instead of {name}", (source.replaced(node, f"{copied}.detach().clone()"),))
    elif _makes_array(source, node):
        yield from _of_python_numbers(source, node)
        yield from _without_numpy(source, node)
    yield from _hoisted(source, node)


# --- numpy ----------------------------------------------------------------------------------------------------------


_OF_NUMBERS = {"sum": "sum", "prod": "math.prod", "max": "max", "min": "min", "amax": "max", "amin": "min"}


def _of_python_numbers(source: Source, node: ast.expr) -> Iterator[Fix]:
    """``np.prod(shape)`` among the arguments of a call gives an array's number; Python's own function gives one that is known."""
    edits: list[Edit] = []
    for part in ast.walk(node):
        match part:
            case ast.Call(func=function, args=[_], keywords=[]) if part is not node:
                name = source.dotted(function)
                python = _OF_NUMBERS.get(name.removeprefix("numpy."), "") if name.startswith("numpy.") else ""
                if python:
                    said, imports = source.spelled(python, node) if "." in python else (python, ())
                    edits += [*imports, source.replaced(function, said)]
    if edits:
        yield Fix("Compute with Python's numbers instead of numpy's", tuple(dict.fromkeys(edits)))


class _NoCounterpart(Exception):
    """torch has no function of that meaning."""


def _without_numpy(source: Source, node: ast.expr) -> Iterator[Fix]:
    """All of the function that uses numpy, since arrays and tensors do not mix."""
    function = source.function(node)
    if function is None:
        return
    imports: dict[str, Edit] = {}
    edits: list[Edit] = []

    def say(name: str, at: ast.AST) -> str:
        said, needed = source.spelled(name, at)
        imports.update({e.replacement: e for e in needed})
        return said

    try:
        for part in ast.walk(function):
            if isinstance(part, ast.expr) and not any(part in ast.walk(d) for d in function.decorator_list):
                edits += _translated(source, part, say)
    except _NoCounterpart:
        return
    if edits:
        yield Fix("Compute with torch instead of numpy", (*imports.values(), *edits))


def _translated(source: Source, node: ast.expr, say: Callable[[str, ast.AST], str]) -> Iterator[Edit]:
    """The edits for one node: pieces around what stays, so that those of nested nodes do not overlap."""
    match node:
        case ast.Call(func=ast.Attribute(value=tensor, attr="numpy"), args=[], keywords=[]):
            yield _cut(source, source.span(tensor), source.span(node))
        case ast.Call(func=ast.Attribute(value=array, attr="std" | "var"), args=[], keywords=[]):
            if _makes_array(source, array):  # torch divides by one less
                end = dataclasses.replace(_from(source.span(array), source.span(node)), column=0)
                place = dataclasses.replace(
                    end, line=end.end_line, column=end.end_column - 1, end_column=end.end_column
                )
                yield Edit(place, "correction=0)")
        case ast.Call(func=ast.Attribute(value=array, attr="astype") as function, args=[_], keywords=[]):
            if _makes_array(source, array):
                place = source.span(function)
                start = dataclasses.replace(place, line=place.end_line, column=place.end_column - len("astype"))
                yield Edit(start, "to")
        case ast.Call(func=function, args=[argument, *rest], keywords=keywords):
            name = source.dotted(function)
            if name in _WRAPPING or name in _VALUES:
                if rest or keywords:
                    raise _NoCounterpart
                if name in _WRAPPING and not _makes_array(source, argument):
                    return
                yield Edit(_until(source.span(node), source.span(argument)), "(" if _loose(argument) else "")
                yield Edit(_from(source.span(argument), source.span(node)), ")" if _loose(argument) else "")
            elif name.startswith("numpy."):
                yield from _keywords(source, node)
                if name in ("numpy.maximum", "numpy.minimum") and any(isinstance(a, ast.Constant) for a in node.args):
                    bound = "min" if name == "numpy.maximum" else "max"
                    if len(node.args) != 2 or isinstance(node.args[0], ast.Constant):
                        raise _NoCounterpart
                    yield Edit(source.span(function), say("torch.clamp", node))
                    yield Edit(_before(source.span(node.args[1])), f"{bound}=")
        case ast.Attribute():
            name = source.dotted(node)
            if name.startswith("numpy.") and not _is_handled(source, node, name):
                yield source.replaced(node, say(f"torch.{_counterpart(name.removeprefix('numpy.'))}", node))


def _is_handled(source: Source, node: ast.Attribute, name: str) -> bool:
    """Whether the call around takes care of its function's name, or the name is the inner part of a longer one."""
    parent = source.parents[node]
    if isinstance(parent, ast.Attribute):
        raise _NoCounterpart  # numpy.linalg.norm and the like
    if not isinstance(parent, ast.Call) or parent.func is not node:
        return False
    clamps = name in ("numpy.maximum", "numpy.minimum") and any(isinstance(a, ast.Constant) for a in parent.args)
    return clamps or name in _VALUES


def _counterpart(name: str) -> str:
    if name in _SAME or name in _DTYPES or name in _CONSTANTS:
        return "clamp" if name == "clip" else name
    if name not in _OTHER:
        raise _NoCounterpart
    return _OTHER[name]


def _keywords(source: Source, call: ast.Call) -> Iterator[Edit]:
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in ("out", "where", "order", "initial"):
            raise _NoCounterpart
        if keyword.arg in _KEYWORDS:
            place = Span(source.filename, keyword.lineno, keyword.col_offset, keyword.lineno,
                         keyword.col_offset + len(keyword.arg))  # fmt: skip
            yield Edit(place, _KEYWORDS[keyword.arg])


def _makes_array(source: Source, node: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
    """Whether an expression uses numpy, or a variable that is assigned from one that does."""
    if any(source.dotted(n).startswith("numpy.") or n.attr == "numpy" for n in _parts(node, ast.Attribute)):
        return True
    function = source.function(node)
    assigned = [s for s in ast.walk(function) if isinstance(s, ast.Assign)] if function else []
    return any(
        _makes_array(source, s.value, seen | {name.id})
        for name in _parts(node, ast.Name)
        for s in assigned
        if name.id not in seen and any(isinstance(t, ast.Name) and t.id == name.id for t in s.targets)
    )


def _parts(node: ast.AST, kind: type[N]) -> Iterator[N]:
    return (n for n in ast.walk(node) if isinstance(n, kind))


def _loose(node: ast.expr) -> bool:
    return not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)


def _cut(source: Source, inner: Span, outer: Span) -> Edit:
    return Edit(_from(inner, outer), "")


def _until(outer: Span, inner: Span) -> Span:
    return Span(outer.file, outer.line, outer.column, inner.line, inner.column)


def _from(inner: Span, outer: Span) -> Span:
    return Span(outer.file, inner.end_line, inner.end_column, outer.end_line, outer.end_column)


def _before(span: Span) -> Span:
    return Span(span.file, span.line, span.column, span.line, span.column)


# --- constants ------------------------------------------------------------------------------------------------------


def _hoisted(source: Source, node: ast.Call) -> Iterator[Fix]:
    """A call that uses nothing of the function's is made once, when the module is imported, with the arithmetic on it."""
    function = source.function(node)
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    read = _read(node)
    if function is None or not name or read & source.local_names(node) or not _may_be_early(source, node, name, read):
        return
    whole: ast.expr = node
    for parent in source.above(node):
        if not isinstance(parent, ast.BinOp | ast.UnaryOp) or _read(parent) & source.local_names(node):
            break
        if any(isinstance(n, ast.Call) and n is not node for n in ast.walk(parent)):
            break
        whole = parent
    if not _may_be_early(source, node, name, _read(whole)):
        whole = node
    outermost = [n for n in source.above(node) if isinstance(n, ast.stmt)][-1]
    constant = source.unused(name.upper().strip("_") or "CONSTANT")
    text = source.text(whole)
    made = f"({text})" if "\n" in text else text
    edits = (source.inserted(outermost, [f"{constant} = {made}", "", ""]), source.replaced(whole, constant))
    yield Fix(f"Call {ast.unparse(node.func)} once, when the module is imported", edits)


def _read(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _may_be_early(source: Source, node: ast.Call, name: str, read: set[str]) -> bool:
    """Whether a call gives something to keep, has no effect that its name tells, and finds all that it reads above."""
    if isinstance(source.parents[node], ast.Expr | ast.withitem | ast.Await) or name in IMPURE:
        return False
    outermost = [n for n in source.above(node) if isinstance(n, ast.stmt)][-1]
    later = {n.id for n in ast.walk(source.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
             and n.lineno >= outermost.lineno}  # fmt: skip
    later |= {d for d, n in (*source.definitions.items(), *source.classes.items()) if n.lineno >= outermost.lineno}
    return not read & later
