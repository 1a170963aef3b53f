"""What annotations, defaults and uses say about a parameter."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from . import tables
from .values import PLAIN, UNKNOWN, Array, Constant, Container, Instance, Tensor, Value

Resolve = Callable[[ast.expr], str]  # the dotted name of an expression, "" when it is none
_JAXTYPING = (
    "Float Float16 Float32 Float64 BFloat16 Int Int8 Int16 Int32 Int64 UInt8 Integer Bool Num Inexact Shaped Complex Complex64 "
    "Complex128 Real Key UInt".split()
)
_MASKS = frozenset({"jaxtyping.Bool", "torch.BoolTensor"})
_TENSORS = frozenset({"torch.Tensor", "torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.BoolTensor"}) | {
    f"torch.{kind}Tensor" for kind in ("Float", "Double", "Half", "Long", "Int", "Byte")
}
_PLAIN = frozenset(f"builtins.{name}" for name in ("int", "float", "str", "bytes", "complex", "bool"))
_SEQUENCES = frozenset("list tuple set Sequence List Tuple Iterable Iterator Set Collection".split())
_MAPPINGS = frozenset("dict Dict Mapping MutableMapping OrderedDict".split())


def annotated_value(annotation: ast.expr | None, resolve: Resolve) -> Value:
    """What ``annotation`` promises. A tensor that may be None is unknown."""
    match annotation:
        case ast.Constant(value=str() as text):
            try:
                return annotated_value(ast.parse(text.strip(), mode="eval").body, resolve)
            except (SyntaxError, ValueError):
                return UNKNOWN
        case ast.Constant(value=None):
            return Constant(None)
        case ast.Subscript(value=kind, slice=arguments):
            return _generic(resolve(kind), arguments, resolve)
        case ast.Name() | ast.Attribute():
            return _named(resolve(annotation))
    return UNKNOWN


def _named(name: str) -> Value:
    if name in _TENSORS:
        return Tensor(mask=name in _MASKS)
    if name in _PLAIN:
        return Constant(True) if name == "builtins.bool" else PLAIN  # example inputs give True
    if name == "numpy.ndarray":
        return Array()
    return Instance(name) if name == "torch.nn.Module" or name.startswith("torch.nn.modules.") else UNKNOWN


def _generic(name: str, arguments: ast.expr, resolve: Resolve) -> Value:
    parts = arguments.elts if isinstance(arguments, ast.Tuple) else [arguments]
    module, _, last = name.rpartition(".")
    if module == "jaxtyping" and last in _JAXTYPING and parts:
        return Tensor(name in _MASKS) if isinstance(annotated_value(parts[0], resolve), Tensor) else UNKNOWN
    if last == "Annotated":
        return annotated_value(parts[0], resolve)
    if last in _MAPPINGS and len(parts) == 2:
        return Container(annotated_value(parts[1], resolve), mapping=True)
    if last in _SEQUENCES:
        variadic = last not in ("tuple", "Tuple") or isinstance(parts[-1], ast.Constant)
        values = tuple(annotated_value(p, resolve) for p in parts if not isinstance(p, ast.Constant))
        if variadic and values:
            return Container(values[0])
        item = values[0] if values and all(v == values[0] for v in values) else UNKNOWN
        return Container(item, values)
    return UNKNOWN


def nodes(node: ast.AST, into: Callable[[ast.AST], bool] = lambda _: True) -> Iterator[ast.AST]:
    """The nodes below ``node``, except below those that ``into`` refuses. Faster than ``ast.walk``."""
    pending = [node]
    while pending:
        for value in vars(pending.pop()).values():
            for inner in value if isinstance(value, list) else (value,):
                if isinstance(inner, ast.AST):
                    yield inner
                    if into(inner):
                        pending.append(inner)


def used_as_tensors(node: ast.AST, names: set[str], resolve: Resolve) -> set[str]:
    """Those of ``names`` (parameters that say nothing) that the body of ``node`` can only mean as tensors."""
    found: set[str] = set()
    for inner in nodes(node) if names else ():
        match inner:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute in tables.TENSOR_ONLY:
                found.add(name)
            case ast.BinOp(op=ast.MatMult()):
                found |= {side.id for side in (inner.left, inner.right) if isinstance(side, ast.Name)}
            case ast.Call(func=function, args=args):
                module, _, last = resolve(function).rpartition(".")
                if module in tables.TENSOR_MODULES and last not in tables.NO_TENSOR and last.islower():
                    found |= {argument.id for argument in args[:1] if isinstance(argument, ast.Name)}
    return found & names


def parameters(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Each parameter that takes one argument, with its default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    yield from zip(positional, [None] * without + list(arguments.defaults), strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def initial_value(
    argument: ast.arg, default: ast.expr | None, resolve: Resolve, evaluate: Callable[[ast.expr], Value]
) -> Value:
    """What a compiled function's parameter is when nobody says what it is called with: its default where that is
    a value, as for the example inputs, else what its annotation promises."""
    promised = annotated_value(argument.annotation, resolve)
    if default is None or isinstance(promised, Tensor):
        return promised
    given = evaluate(default)
    return given if given != Constant(None) or promised == UNKNOWN else UNKNOWN
