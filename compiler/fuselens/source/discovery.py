"""Finds annotated functions in source text, without executing anything.

A function is annotated when it is decorated with ``fuselens.compile`` or ``torch.compile`` in any of their spellings
(:mod:`.names`), called with arguments or not; so is whatever an expression gives to either: bound to a name, an
attribute or an element of a container, or to nothing at all; and a module whose ``compile`` method is called.
Positions follow :class:`fuselens.record.report.Span`. Standard library only: the language server imports it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..record.report import Span
from .names import (
    Arguments,
    Definition,
    Names,
    assigned,
    bindings,
    blocks,
    compiles_in_place,
    first_parameter,
    own_expressions,
    root,
    tests_main,
)
from .operands import Function, Kind, Operands, Place
from .preview import annotate, candidates

__all__ = ["Annotated", "Definition", "Parameter", "SourceModule", "Target", "discover", "import_span", "imported_modules",
           "lines_of", "parse", "span_of", "told_apart"]  # fmt: skip

_LINE_BREAK = re.compile(rb"\r\n|\r|\n")
_IDENTIFIER = re.compile(r"\w+")
_CONTAINERS = frozenset({"torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict", "functools.partial"})
_LONGEST_NAME = 40
_DEF = re.compile(rb"(?:async(?:\s|\\\r?\n)+)?(?:def|class)(?:\s|\\\r?\n)+")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: ``annotation`` is its source text, empty when there is none."""

    name: str
    span: Span
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class Annotated:
    """An annotated function, method or object.

    ``qualname`` is where the compiled object is found, as an expression: ``model``, ``models['a'][0]``. ``kind`` "module" is
    an object of the module (often an ``nn.Module``); "attribute" one that methods of a class assign to ``self``; "nested" is
    made inside a function, while that one runs. ``arguments`` holds the literal keyword arguments given to ``compile``.
    ``importable`` is False for what importing the file does not leave behind: below ``if __name__ == "__main__":``, and
    without a name. ``operand`` is what is compiled, as an expression over the module's names that does no more than make
    modules, if it can be written so; ``example`` are its example inputs.
    """

    qualname: str
    kind: Kind
    name_span: Span
    span: Span
    decorator_span: Span
    parameters: tuple[Parameter, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    importable: bool = True
    operand: str = ""
    example: str = ""


@dataclass(frozen=True, slots=True)
class Defined:
    """A function of a file, annotated or not."""

    qualname: str
    name_span: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Target:
    """What an annotation compiles, where it is written in this file: a function, and the class that it is a method of.

    ``made`` is the expression that made a module, ``given`` the expression of the example inputs."""

    annotated: Annotated
    function: Function | None
    owner: ast.ClassDef | None = None
    made: ast.Call | None = None
    given: ast.expr | None = None


def discover(source: str, filename: str) -> list[Annotated]:
    """The annotated functions of ``source`` in order of position. Raises SyntaxError when it cannot be parsed."""
    return SourceModule(source, filename).annotated


def imported_modules(source: str) -> frozenset[str]:
    """Top-level names of the absolute imports anywhere in ``source``. Raises SyntaxError."""
    names: set[str] = set()
    for node in ast.walk(parse(source, "<source>")):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return frozenset(names)


def import_span(source: str, filename: str, modules: Iterable[str]) -> Span | None:
    """Where ``source`` first imports one of the top-level ``modules``; None when it does not or cannot be parsed."""
    wanted = frozenset(modules)
    try:
        tree = parse(source, filename)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        if wanted & {name.partition(".")[0] for name in names}:
            return span_of(node, filename)
    return None


def lines_of(source: str) -> list[bytes]:
    """The lines of ``source`` as CPython counts them, in UTF-8, without their ends."""
    text = source.removeprefix("\ufeff").encode("utf-8", "surrogatepass")
    return _LINE_BREAK.split(text) if b"\r" in text else text.split(b"\n")


def parse(source: str, filename: str) -> ast.Module:
    """``ast.parse`` whose every refusal is a SyntaxError: null bytes and absurd nesting raise other exceptions."""
    try:
        return ast.parse(source.removeprefix("\ufeff"), filename)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or type(error).__name__, (filename, 1, 1, "", 1, 1)) from error


def _has_trainer_compile(call: ast.Call) -> ast.keyword | None:
    """The argument that has a trainer of transformers or accelerate compile the model that it is given."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    for keyword in call.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if keyword.arg == "torch_compile" and value is True and name.endswith("TrainingArguments"):
            return keyword
        if keyword.arg == "dynamo_backend" and name == "Accelerator" and str(value).lower() not in ("no", "none"):
            return keyword
    return None


def span_of(node: ast.expr | ast.stmt | ast.arg, filename: str) -> Span:
    """The span of an ast node."""
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset
    return Span(filename, node.lineno, node.col_offset, end_line, node.col_offset if end_column is None else end_column)


class SourceModule(Names):
    """One parsed file: its scopes, and what in it is annotated; with ``preview``, what a preview annotates. Raises SyntaxError."""

    def __init__(self, source: str, filename: str, preview: bool = False) -> None:
        super().__init__(parse(source, filename), filename)
        self.lines = lines_of(source)
        self.targets = told_apart(self.found(self.tree.body))
        if preview and not self.targets:
            annotate(self)
            self.targets = told_apart(self.found(self.tree.body))

    @property
    def annotated(self) -> list[Annotated]:
        return [target.annotated for target in self.targets]

    def found(self, body: list[ast.stmt]) -> list[Target]:
        """What statements of the module's scope annotate, in order of position."""
        return sorted(
            self._body(body, Place()), key=lambda t: (t.annotated.name_span.line, t.annotated.name_span.column)
        )

    def previews(self) -> list[Span]:
        """The names of what a preview would look at; none in a file that compiles something."""
        if self.targets:
            return []
        nodes = (candidate.node for candidate in candidates(self))
        return [self.span(n.targets[0]) if isinstance(n, ast.Assign) else self._name_span(n) for n in nodes]

    def all_functions(self) -> list[Defined]:
        """Every function of the file, in order."""
        return list(self._functions_in(self.tree, ""))

    def _functions_in(self, around: ast.AST, scope: str) -> Iterator[Defined]:
        for node in ast.iter_child_nodes(around):
            if isinstance(node, Definition):
                yield Defined(f"{scope}{node.name}", self._name_span(node), self.span(node))
                yield from self._functions_in(node, f"{scope}{node.name}.<locals>.")
            elif isinstance(node, ast.ClassDef):
                yield from self._functions_in(node, f"{scope}{node.name}.")
            elif isinstance(node, ast.stmt):
                yield from self._functions_in(node, scope)

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> Span:
        return span_of(node, self.filename)

    def place(self, node: ast.expr | ast.stmt) -> Span:
        """Where CPython says that ``node`` is computed: a method call or an attribute of several lines from the
        attribute's name on."""
        span = self.span(node)
        attribute = node.func if isinstance(node, ast.Call) else node
        if not isinstance(attribute, ast.Attribute) or attribute.lineno == attribute.end_lineno:
            return span
        name = self.span(attribute)
        return replace(span, line=name.end_line, column=max(0, name.end_column - len(attribute.attr.encode())))

    def _body(self, body: list[ast.stmt], place: Place) -> Iterator[Target]:
        for statement in body:
            if isinstance(statement, Definition):
                yield from self._function(statement, place)
            elif isinstance(statement, ast.ClassDef):
                inner: Kind = "nested" if place.kind == "nested" else "method"
                scope = (*place.scope, statement.name)
                yield from self._body(statement.body, replace(place, scope=scope, owner=statement, kind=inner))
            else:
                yield from self._applications(statement, place)
                guarded = isinstance(statement, ast.If) and tests_main(statement.test)
                for block, is_else in blocks(statement):
                    yield from self._body(
                        block, replace(place, importable=place.importable and (is_else or not guarded))
                    )

    def _function(self, node: Definition, place: Place) -> Iterator[Target]:
        for decorator in node.decorator_list:
            arguments = self.decorates(decorator)
            if arguments is None:
                continue
            annotated = Annotated(
                qualname=".".join((*place.scope, node.name)),
                kind=place.kind,
                name_span=self._name_span(node),
                span=self.span(node),
                decorator_span=self.span(decorator),
                parameters=self._parameters(node.args),
                arguments=arguments,
                importable=place.importable,
            )
            yield Target(annotated, node, place.owner, given=_example_inputs(decorator))
            break
        parameters = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        inside = replace(place, scope=(*place.scope, node.name, "<locals>"), owner=None, kind="nested", around=place,
                         parameters=place.parameters | parameters,
                         hands_over=place.hands_over or self.wraps(node),
                         local={**place.local, **assigned(node.body)}, method=node)  # fmt: skip
        yield from self._body(node.body, inside)

    # --- compiled by a call ---------------------------------------------------------------------------------------------

    def _applications(self, statement: ast.stmt, place: Place) -> Iterator[Target]:
        """What the expressions of one statement compile: first what it gives a name."""
        named: set[ast.Call] = set()
        for target, value in bindings(statement):
            for path, compiling in self._paths(value):
                found = self.applied(compiling)
                if found is not None and compiling not in named and (home := self._home(target, place)) is not None:
                    named.add(compiling)
                    if place.hands_over and isinstance(found[0], ast.Name) and found[0].id in place.parameters:
                        continue
                    name, kind, cls = home
                    span = self.span(found[0]) if path else self._last_name_span(target)
                    yield self._target(f"{name}{path}", kind, span, statement, compiling, *found, place, cls)
        for node in own_expressions(statement):
            if not isinstance(node, ast.Call) or node in named:
                continue
            if (found := self.applied(node)) is not None:
                if isinstance(found[0], ast.Name) and found[0].id in place.parameters:
                    continue  # a function that compiles what it is given is not compiled
                name = f"compile({_shortened(found[0])})"
                yield self._target(
                    name, place.kind, self.span(found[0]), statement, node, *found, place, None, named=False
                )
            elif (keyword := _has_trainer_compile(node)) is not None:
                name = f"{ast.unparse(node.func)}({keyword.arg})"
                yield self._target(
                    name, place.kind, self.span(keyword.value), statement, node, node.func, {"trainer": True}, place, None,
                    named=False,
                )  # fmt: skip
            elif isinstance(node.func, ast.Attribute) and (home := self._home(node.func.value, place)) is not None:
                arguments, name, operand = (
                    compiles_in_place(node),
                    self._last_name_span(node.func.value),
                    node.func.value,
                )
                if arguments is not None and Operands(self, place).is_module(operand):
                    yield self._target(home[0], home[1], name, statement, node, operand, arguments, place, home[2])

    def _target(
        self, name: str, kind: Kind, name_span: Span, statement: ast.stmt, call: ast.Call, operand: ast.expr,
        arguments: Arguments, place: Place, owner: ast.ClassDef | None, named: bool = True,
    ) -> Target:  # fmt: skip
        operands = Operands(self, place)
        compiled = operands.resolve(operand)
        function = compiled.function
        given = _example_inputs(call) or _example_inputs(call.func)
        parameters = function.args if function is not None else None
        prefix = "" if kind in ("module", "attribute") and named else "".join(f"{s}." for s in place.scope)
        annotated = Annotated(
            qualname=prefix + name,
            kind=kind if kind != "function" else "module",
            name_span=name_span,
            span=self.span(statement),
            decorator_span=self.span(call.func),
            parameters=self._parameters(parameters) if parameters is not None else (),
            arguments=arguments,
            importable=place.importable and named,
            operand=operands.written(operand),
            example=ast.unparse(given) if given is not None and not _names(given) & place.local.keys() else "",
        )
        return Target(annotated, function, compiled.owner, compiled.made, given)

    def _paths(self, value: ast.expr) -> Iterator[tuple[str, ast.Call]]:
        """The calls that make ``value`` or elements of it, and the way there: ``compile(Model()).eval()``, and the
        first of ``nn.Sequential(compile(a), b)`` by ``[0]``."""
        match value:
            case ast.IfExp(body=body, orelse=orelse):
                yield from self._paths(body)
                yield from self._paths(orelse)
            case ast.NamedExpr(value=inner) | ast.Await(value=inner):
                yield from self._paths(inner)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                yield from self._elements(enumerate(elements))
            case ast.ListComp(elt=element):
                yield from self._elements([(0, element)])
            case ast.Dict(keys=keys, values=values):
                known = zip(keys, values, strict=True)
                yield from self._elements((k.value, v) for k, v in known if isinstance(k, ast.Constant))
            case ast.Call(func=function, args=args) if self.dotted(function) in _CONTAINERS:
                held = args[0] if self.dotted(function) != "torch.nn.Sequential" and args else None
                yield from self._paths(held) if held is not None else self._elements(enumerate(args))
            case ast.Call() if self.applied(value) is not None:
                yield "", value
            case ast.Call(func=ast.Attribute(value=ast.Call() as inner)):
                yield from self._paths(inner)

    def _elements(self, elements: Iterable[tuple[Any, ast.expr]]) -> Iterator[tuple[str, ast.Call]]:
        for key, element in elements:
            for path, call in self._paths(element):
                yield f"[{key!r}]{path}", call

    def _home(self, target: ast.expr, place: Place) -> tuple[str, Kind, ast.ClassDef | None] | None:
        """Where what is bound to ``target`` is found after the import, and of which kind it is there."""
        match target:
            case ast.Name(id=name) if place.kind == "method":
                return ".".join((*place.scope, name)), "module", place.owner
            case ast.Name(id=name):
                return name, place.kind, None
            case ast.Attribute() | ast.Subscript():
                text, first = ast.unparse(target), root(target)
                around = place.around
                if around is not None and first is not None and first.id == first_parameter(place.method):
                    if around.kind == "method" and around.owner is not None:
                        return ".".join(around.scope) + text.removeprefix(first.id), "attribute", around.owner
                elif first is not None and place.kind != "nested" and isinstance(target, ast.Attribute):
                    return text, place.kind, None
                return (text, place.kind, None) if place.kind != "method" else None
        return None

    # --- places ---------------------------------------------------------------------------------------------------------

    def _parameters(self, arguments: ast.arguments) -> tuple[Parameter, ...]:
        variadic = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *variadic]
        every.sort(key=lambda a: (a.lineno, a.col_offset))
        return tuple(self._parameter(a) for a in every)

    def _parameter(self, argument: ast.arg) -> Parameter:
        start = argument.col_offset
        text = self.lines[argument.lineno - 1][start:].decode("utf-8", "replace")
        match = _IDENTIFIER.match(text)  # the ast's name is NFKC-normalised: the source's may be longer
        length = len((match.group() if match else argument.arg).encode())
        span = Span(self.filename, argument.lineno, start, argument.lineno, start + length)
        return Parameter(argument.arg, span, ast.unparse(argument.annotation) if argument.annotation else "")

    def _name_span(self, node: Definition) -> Span:
        """The ast has no position for the name: it follows ``def``, perhaps after continued lines."""
        text = b"\n".join((self.lines[node.lineno - 1][node.col_offset :], *self.lines[node.lineno : node.lineno + 8]))
        match = _DEF.match(text)
        before = match.group() if match else b"def "
        breaks = before.count(b"\n")
        column = len(before) - before.rfind(b"\n") - 1 if breaks else node.col_offset + len(before)
        identifier = _IDENTIFIER.match(text[len(before) :].decode("utf-8", "replace"))
        length = len((identifier.group() if identifier else node.name).encode())
        line = node.lineno + breaks
        return Span(self.filename, line, column, line, column + length)

    def _last_name_span(self, node: ast.expr) -> Span:
        """Of ``net`` in ``self.net``."""
        span = self.span(node)
        if isinstance(node, ast.Attribute):
            return replace(span, line=span.end_line, column=span.end_column - len(node.attr.encode()))
        return span


def told_apart(targets: list[Target]) -> list[Target]:
    """What has no name of its own is numbered where two look alike."""
    seen: dict[str, int] = {}
    out: list[Target] = []
    for target in targets:
        name = target.annotated.qualname
        seen[name] = seen.get(name, 0) + 1
        if "compile(" in name and seen[name] > 1:
            target = replace(target, annotated=replace(target.annotated, qualname=f"{name} #{seen[name]}"))
        out.append(target)
    return out


def _names(node: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _shortened(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"


def _example_inputs(call: ast.expr) -> ast.expr | None:
    keywords = call.keywords if isinstance(call, ast.Call) else ()
    return next((k.value for k in keywords if k.arg == "example_inputs"), None)
