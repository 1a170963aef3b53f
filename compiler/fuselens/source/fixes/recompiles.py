"""Compiled again and again: sizes that vary are marked dynamic, or not static any more, and numbers that vary become inputs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from ...record.report import CallSite, Diagnostic, Edit, Fix
from ..discovery import Definition
from .source import Source

# ``x: expected f32[4, 8], found f32[5, 8]`` and ``s: expected 0.5, found 0.7``
_SIZES = re.compile(r"because of (\w+): expected \w+\[([\d, ]*)\], found \w+\[([\d, ]*)\]")
_OPTION = "symbolic_module_integers"
_NUMBERS = re.compile(r"because of (\w+): expected (-?[\d.e+-]+), found (-?[\d.e+-]+)(?![\w.])")


def recompile_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """By the guard that failed, where it is about a parameter of a function that this file compiles, or an attribute of a module."""
    if any(_OPTION in hint for hint in finding.hints):
        yield from _module_integers(source)
        return
    found = [n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef) and _is_about(source, n, finding)]
    function = min(found, key=lambda n: (n.end_lineno or n.lineno) - n.lineno, default=None)
    if function is None:
        return
    if sizes := _SIZES.search(finding.message):
        yield from _dynamic(source, function, sizes[1], _varying(sizes[2], sizes[3]))
    elif numbers := _NUMBERS.search(finding.message):
        if "." in numbers[2] + numbers[3]:
            yield from _as_tensors(source, function, numbers[1])
    elif finding.code == "FL202":
        yield from _any_size(source, function)


def foreseen_fixes(source: Source, qualname: str, finding: Diagnostic, sites: Iterable[CallSite]) -> Iterator[Fix]:
    """Of compilations that are foreseen at the ``sites``: of sizes that vary (FL207), or of an integer of a module that counts (FL208)."""
    if finding.code == "FL207":
        yield from _marks(source, qualname, sites)
    elif any(_OPTION in hint for hint in finding.hints):
        yield from _module_integers(source)


def _marks(source: Source, qualname: str, sites: Iterable[CallSite]) -> Iterator[Fix]:
    """Marks before each of these calls, else the function is compiled for any size."""
    functions = [n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)]
    named = [n for n in functions if n.name == qualname.rpartition(".")[2]]
    calls = {source.span(n): n for n in ast.walk(source.tree) if isinstance(n, ast.Call)}
    edits: list[Edit] = []
    imports: dict[str, Edit] = {}
    marks: dict[str, None] = {}
    for site in sites:
        call = calls.get(site.span) if site.span is not None else None
        if call is None:
            continue
        statement = source.statement(call)
        varying = {p.parameter: [int(d) for d in p.sizes] for p in site.passes if p.sizes}
        lines: list[str] = []
        for parameter, dimensions in varying.items():
            argument = _argument(call, parameter, len(varying), named)
            if isinstance(argument, ast.Name) and isinstance(
                statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Return
            ):
                mark, needed = source.spelled("fuselens.mark_dynamic", call)
                imports |= {e.replacement: e for e in needed}
                lines += [f"{mark}({argument.id}, {dimension})" for dimension in dimensions]
        if lines and statement is not None:
            edits.append(source.inserted(statement, lines))
            marks |= dict.fromkeys(lines)
    if edits:
        yield Fix(f"Mark sizes that vary dynamic: {', '.join(marks)}", (*imports.values(), *edits))
    for function in named:
        yield from _any_size(source, function)


def _argument(
    call: ast.Call, parameter: str, varying: int, functions: Sequence[ast.FunctionDef]
) -> ast.expr | None:  # fmt: skip
    """What a call gives for a parameter: by its name, by its position in the function, or as the only one there is."""
    if any(isinstance(a, ast.Starred) for a in call.args):
        return None
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    for function in functions:
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args) if a.arg != "self"]
        if parameter in names and names.index(parameter) < len(call.args):
            return call.args[names.index(parameter)]
    return call.args[0] if not functions and len(call.args) == 1 and varying == 1 else None


def _module_integers(source: Source) -> Iterator[Fix]:
    """Where the file compiles one thing, and says nothing of options."""
    calls = [
        n
        for n in ast.walk(source.tree)
        if isinstance(n, ast.Call) and source.dotted(n.func) == "fuselens.compile" and n.args
    ]
    if len(calls) == 1 and not any(k.arg in ("options", None) for k in calls[0].keywords):
        edit = source.extended(calls[0], f'options={{"{_OPTION}": True}}')
        yield Fix("Make integers of modules inputs once they have changed", (edit,))


def _is_about(source: Source, function: ast.FunctionDef, finding: Diagnostic) -> bool:
    span = finding.span
    inside = (
        span is not None and span.file == source.filename and function.lineno <= span.line <= (function.end_lineno or 0)
    )
    return inside and any(source.decorates(d) is not None for d in function.decorator_list)


def _varying(expected: str, found: str) -> list[int]:
    before, after = expected.split(","), found.split(",")
    return (
        [k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b] if len(before) == len(after) else []
    )


def _dynamic(source: Source, function: ast.FunctionDef, name: str, dimensions: list[int]) -> Iterator[Fix]:
    for call, argument in _arguments(source, function, name):
        statement = source.statement(call)
        if isinstance(argument, ast.Name) and (marks := list(_static_marks(source, statement, argument.id))):
            edits = tuple(source.removed(mark) for mark in marks)
            yield Fix(f"Remove the mark that {argument.id} is static before the call in line {call.lineno}", edits)
        elif (
            isinstance(argument, ast.Name) and isinstance(statement, ast.Assign | ast.Expr | ast.Return) and dimensions
        ):
            mark, imports = source.spelled("fuselens.mark_dynamic", call)
            lines = [f"{mark}({argument.id}, {dimension})" for dimension in dimensions]
            title = f"Mark dimension {', '.join(map(str, dimensions))} of {argument.id} dynamic before the call in line {call.lineno}"
            yield Fix(title, (*imports, source.inserted(statement, lines)))
    yield from _any_size(source, function)


def _static_marks(source: Source, statement: ast.stmt | None, name: str) -> Iterator[ast.stmt]:
    """The statements beside this one that mark a variable static."""
    for other in source.block(statement) if statement is not None else ():
        call = other.value if isinstance(other, ast.Expr) else None
        if isinstance(call, ast.Call) and source.dotted(call.func) == "fuselens.mark_static" and call.args:
            if isinstance(call.args[0], ast.Name) and call.args[0].id == name:
                yield other


def _any_size(source: Source, function: Definition) -> Iterator[Fix]:
    for decorator in function.decorator_list:
        given = (
            decorator.keywords if isinstance(decorator, ast.Call) and source.decorates(decorator) is not None else ()
        )
        for keyword in given:
            if keyword.arg == "dynamic" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False:
                yield Fix("Let sizes that vary be symbols: dynamic=None", (source.replaced(keyword.value, "None"),))
    edit = source.decorated(function, "dynamic=True")
    if edit is not None:
        yield Fix("Compile for any size: dynamic=True", (edit,))


def _as_tensors(source: Source, function: ast.FunctionDef, name: str) -> Iterator[Fix]:
    """All calls in this file at once, because the others would compile again."""
    edits: list[Edit] = []
    imports: dict[str, Edit] = {}
    for call, argument in _arguments(source, function, name):
        made, needed = source.spelled("torch.tensor", call)
        imports |= {e.replacement: e for e in needed}
        edits.append(source.replaced(argument, f"{made}({source.argument(argument)})"))
    if edits:
        yield Fix(f"Pass {name} as a tensor", (*imports.values(), *edits))


def _arguments(source: Source, function: ast.FunctionDef, name: str) -> Iterator[tuple[ast.Call, ast.expr]]:
    """What calls of ``function`` in this file give for its parameter ``name``."""
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    for call in ast.walk(source.tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == function.name:
            position = parameters.index(name) if name in parameters else len(call.args)
            given = [k.value for k in call.keywords if k.arg == name]
            if position < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args):
                given = [call.args[position]]
            yield from ((call, argument) for argument in given[:1])
