"""Whether evaluating an expression has an effect that anything else can see, as far as the source tells."""

from __future__ import annotations

import ast
import builtins

from ..discovery import Definition
from .source import Source

_BUILTINS = frozenset(
    "abs all any bool complex dict divmod enumerate float frozenset getattr hasattr int isinstance len list max min pow range "
    "repr reversed round set slice sorted str sum tuple type zip".split()
)
_MODULES = ("torch", "math", "numpy", "operator")
_READING = ("item", "tolist", "numpy")
IMPURE = frozenset(
    "append appendleft backward bernoulli choice clear close debug discard dropout error exception extend extendleft "
    "exponential flush info insert item manual_seed multinomial normal numpy open pop popitem popleft print put "
    "rand rand_like randint randint_like randn randn_like random randperm read register_buffer register_parameter remove "
    "requires_grad_ retain_grad reverse save send seed set_rng_state setattr setdefault shuffle sleep step tolist "
    "uniform update warn warning write writelines zero_grad".split()
)


def is_pure(source: Source, node: ast.AST, active: tuple[ast.AST, ...] = (), *, reads: bool = False) -> bool:
    """Calls of functions of this file are followed; those of functions that are not known count as effects. So does
    reading a tensor's values, which breaks graphs, unless ``reads``."""
    for part in ast.walk(node):
        if isinstance(part, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return False
        if isinstance(part, ast.Call) and not (reads and _reads(part)) and not _is_pure_call(source, part, active):
            return False
    return True


def _reads(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _READING and not call.args


def _is_pure_call(source: Source, call: ast.Call, active: tuple[ast.AST, ...]) -> bool:
    if any(k.arg == "out" for k in call.keywords):
        return False
    name = source.dotted(call.func)
    match call.func:
        case ast.Name(id=function) if not name:
            if function in source.local_names(call):
                return False
            if function in source.definitions:
                return _is_pure_function(source, source.definitions[function], active)
            return function in _BUILTINS and hasattr(builtins, function)
        case ast.Attribute(value=receiver, attr=method):
            if method in IMPURE or (method.endswith("_") and not method.endswith("__")):
                return False
            if isinstance(receiver, ast.Name) and receiver.id == "self":
                return _is_pure_member(source, call, method, active)
        case ast.Name():
            if name.rpartition(".")[2] in IMPURE:
                return False
        case _:
            return False
    return not name or name.startswith(tuple(f"{module}." for module in _MODULES))


def _is_pure_member(source: Source, call: ast.Call, name: str, active: tuple[ast.AST, ...]) -> bool:
    """A method of the class around, or a submodule: a call of one is taken to compute."""
    function = source.function(call)
    owner = source.owner(function) if function else None
    method = source.method(owner, name) if owner else None
    return method is None or _is_pure_function(source, method[0], active)


def _is_pure_function(source: Source, function: Definition, active: tuple[ast.AST, ...]) -> bool:
    if function in active or isinstance(function, ast.AsyncFunctionDef):
        return False
    given = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    return all(_is_pure_statement(source, s, given, (*active, function)) for s in function.body)


def _is_pure_statement(source: Source, statement: ast.stmt, given: set[str], active: tuple[ast.AST, ...]) -> bool:
    match statement:
        case ast.Assign(targets=targets):
            names = [t for target in targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
            return all(isinstance(n, ast.Name) for n in names) and is_pure(source, statement, active)
        case ast.AugAssign(target=ast.Name(id=name)):
            return name not in given and is_pure(source, statement, active)
        case ast.AnnAssign(target=ast.Name()) | ast.Return() | ast.Expr() | ast.Pass():
            return is_pure(source, statement, active)
        case ast.If(test=test, body=body, orelse=orelse):
            return is_pure(source, test, active) and all(
                _is_pure_statement(source, s, given, active) for s in (*body, *orelse)
            )
    return False
