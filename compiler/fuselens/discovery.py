"""Finds annotated functions in source text, without executing anything.

A function is annotated when it is decorated with ``fuselens.compile`` or ``torch.compile`` under any name that its
imports give them, called with arguments or not; so is a name bound at module level to the result of calling either.
Positions follow :class:`fuselens.report.Span`. Standard library only: the language server imports it.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .report import Span

Kind = Literal["function", "method", "module", "nested"]

_COMPILERS = frozenset({"fuselens.compile", "fuselens.api.compile", "torch.compile"})
_PARTIALS = frozenset({"functools.partial"})
_LINE_BREAK = re.compile(rb"\r\n|\r|\n")
_IDENTIFIER = re.compile(r"\w+")
_DEF = re.compile(rb"(?:async(?:\s|\\\r?\n)+)?(?:def|class)(?:\s|\\\r?\n)+")

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Scope = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: ``annotation`` is its source text, empty when there is none."""

    name: str
    span: Span
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class Annotated:
    """An annotated function, method or module-level object.

    ``kind`` "module" is a module-level name bound to a compiled object (usually an ``nn.Module``); "nested" is a
    function inside another function, which exists only while that one runs and so cannot be compiled on its own.
    ``arguments`` holds the literal keyword arguments given to ``compile``. ``importable`` is False below
    ``if __name__ == "__main__":``, which importing the file does not execute.
    """

    qualname: str
    kind: Kind
    name_span: Span
    span: Span
    decorator_span: Span
    parameters: tuple[Parameter, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    importable: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """What an annotation compiles, where it is written in this file: a function, and the class that it is a method of.

    ``made`` is the expression that made a module, ``given`` the expression of the example inputs."""

    annotated: Annotated
    function: Definition | None
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


def parse(source: str, filename: str) -> ast.Module:
    """``ast.parse`` whose every refusal is a SyntaxError: null bytes and absurd nesting raise other exceptions."""
    try:
        return ast.parse(source.removeprefix("\ufeff"), filename)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or type(error).__name__, (filename, 1, 1, "", 1, 1)) from error


def span_of(node: ast.expr | ast.stmt | ast.arg, filename: str) -> Span:
    """The span of an ast node."""
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset
    return Span(filename, node.lineno, node.col_offset, end_line, node.col_offset if end_column is None else end_column)


class SourceModule:
    """One parsed file: its scopes, and what in it is annotated. Import aliases are collected first, from every scope: a
    later rebinding is ignored. Raises SyntaxError."""

    def __init__(self, source: str, filename: str) -> None:
        self.filename = filename
        self.tree = parse(source, filename)
        self.lines = _LINE_BREAK.split(source.removeprefix("\ufeff").encode("utf-8", "surrogatepass"))
        self.names: dict[str, str] = {}  # local name → dotted name of what it was imported as
        self.partials: dict[str, dict[str, Any]] = {}  # names bound to functools.partial(compile, ...)
        self.definitions: dict[str, Definition] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.values: dict[str, list[ast.expr]] = {}  # what is assigned to each name of the module's scope
        self.rebound: set[str] = set()  # names of that scope that functions assign
        for statement in _statements(self.tree.body, nested=True):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.names |= _imported_names(statement)
            elif isinstance(statement, ast.Global):
                self.rebound.update(statement.names)
        for statement in _statements(self.tree.body):
            if isinstance(statement, Definition):
                self.definitions[statement.name] = statement
            elif isinstance(statement, ast.ClassDef):
                self.classes[statement.name] = statement
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                self._note_assignment(statement)
        found = self._body(self.tree.body, (), None, "function", True)
        self.targets = sorted(found, key=lambda t: (t.annotated.name_span.line, t.annotated.name_span.column))

    @property
    def annotated(self) -> list[Annotated]:
        return [target.annotated for target in self.targets]

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> Span:
        return span_of(node, self.filename)

    def method(self, owner: ast.ClassDef, name: str) -> tuple[Definition, ast.ClassDef] | None:
        """The method ``name`` of a class of this file or of its bases in this file, and the class that has it."""
        seen = [owner]
        for cls in seen:
            for statement in _statements(cls.body):
                if isinstance(statement, Definition) and statement.name == name:
                    return statement, cls
            bases = (self.classes.get(base.id) for base in cls.bases if isinstance(base, ast.Name))
            seen += [base for base in bases if base is not None and base not in seen]
        return None

    def _note_assignment(self, statement: ast.Assign | ast.AnnAssign) -> None:
        """``jit = torch.compile`` and ``jit = functools.partial(torch.compile, ...)`` name the compiler anew."""
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        target = targets[0]
        if len(targets) != 1 or not isinstance(target, ast.Name) or statement.value is None:
            return
        self.values.setdefault(target.id, []).append(statement.value)
        if (name := self.dotted(statement.value)) in _COMPILERS:
            self.names[target.id] = name
        elif (arguments := self._partial(statement.value)) is not None:
            self.partials[target.id] = arguments

    def _body(
        self, body: list[ast.stmt], scope: Scope, owner: ast.ClassDef | None, kind: Kind, importable: bool
    ) -> Iterator[Target]:
        for statement in body:
            if isinstance(statement, Definition):
                yield from self._function(statement, scope, owner, kind, importable)
            elif isinstance(statement, ast.ClassDef):
                inner: Kind = "nested" if kind == "nested" else "method"
                yield from self._body(statement.body, (*scope, statement.name), statement, inner, importable)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                if kind == "function":
                    yield from self._assignment(statement, importable)
            else:
                guarded = isinstance(statement, ast.If) and _tests_main(statement.test)
                for block, is_else in _blocks(statement):
                    yield from self._body(block, scope, owner, kind, importable and (is_else or not guarded))

    def _function(
        self, node: Definition, scope: Scope, owner: ast.ClassDef | None, kind: Kind, importable: bool
    ) -> Iterator[Target]:
        for decorator in node.decorator_list:
            arguments = self.decorates(decorator)
            if arguments is None:
                continue
            annotated = Annotated(
                qualname=".".join((*scope, node.name)),
                kind=kind,
                name_span=self._name_span(node),
                span=self.span(node),
                decorator_span=self.span(decorator),
                parameters=self._parameters(node.args),
                arguments=arguments,
                importable=importable,
            )
            yield Target(annotated, node, owner, given=_example_inputs(decorator))
            break
        yield from self._body(node.body, (*scope, node.name, "<locals>"), None, "nested", importable)

    def _assignment(self, node: ast.Assign | ast.AnnAssign, importable: bool) -> Iterator[Target]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        call = _compiling_call(node.value)
        if len(targets) != 1 or not isinstance(target := targets[0], ast.Name) or call is None:
            return
        arguments = self._applied(call)
        if arguments is None:
            return
        function, owner, made = self._operand(call)
        annotated = Annotated(
            qualname=target.id,
            kind="module",
            name_span=self.span(target),
            span=self.span(node),
            decorator_span=self.span(call.func),
            parameters=self._parameters(function.args) if function is not None else (),
            arguments=arguments,
            importable=importable,
        )
        yield Target(annotated, function, owner, made, _example_inputs(call) or _example_inputs(call.func))

    def _applied(self, call: ast.Call) -> dict[str, Any] | None:
        """Arguments of ``compile(f, ...)``, ``compile(...)(f)`` or ``partial(compile, ...)(f)``; else None."""
        given = bool(call.args) or any(k.arg in ("fn", "model") for k in call.keywords)
        if not given:
            return None
        if self.dotted(call.func) in _COMPILERS:
            return _literals(call.keywords)
        if isinstance(call.func, ast.Name) and call.func.id in self.partials:
            return self.partials[call.func.id] | _literals(call.keywords)
        if isinstance(call.func, ast.Call):
            if self.dotted(call.func.func) in _COMPILERS and not call.func.args:
                return _literals(call.func.keywords)
            return self._partial(call.func)
        return None

    def decorates(self, decorator: ast.expr) -> dict[str, Any] | None:
        """The literal arguments when ``decorator`` compiles what it decorates; else None."""
        if self.dotted(decorator) in _COMPILERS:
            return {}
        if isinstance(decorator, ast.Name):
            return self.partials.get(decorator.id)
        if isinstance(decorator, ast.Call):
            if self.dotted(decorator.func) in _COMPILERS:
                return _literals(decorator.keywords)
            if isinstance(decorator.func, ast.Name) and decorator.func.id in self.partials:
                return self.partials[decorator.func.id] | _literals(decorator.keywords)
            return self._partial(decorator)
        return None

    def _partial(self, node: ast.expr) -> dict[str, Any] | None:
        if isinstance(node, ast.Call) and self.dotted(node.func) in _PARTIALS and len(node.args) == 1:
            return _literals(node.keywords) if self.dotted(node.args[0]) in _COMPILERS else None
        return None

    def dotted(self, node: ast.expr) -> str:
        """``fl.compile`` as "fuselens.compile", following import aliases; "" when it is no imported name."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.names:
            return ""
        return ".".join((self.names[node.id], *reversed(attributes)))

    def _operand(self, call: ast.Call) -> tuple[Definition | None, ast.ClassDef | None, ast.Call | None]:
        """What is compiled, when it is a function of this file or an instance of a class of it (then its ``forward``),
        perhaps by way of a name that is bound once: the function, its class, and the call that makes the instance."""
        operand = call.args[0] if call.args else next(k.value for k in call.keywords if k.arg in ("fn", "model"))
        name = "forward"
        if isinstance(operand, ast.Attribute):
            operand, name = operand.value, operand.attr
        elif isinstance(operand, ast.Name) and operand.id in self.definitions:
            return self.definitions[operand.id], None, None
        if isinstance(operand, ast.Name):
            made = [v for v in self.values.get(operand.id, ()) if _compiling_call(v) is not call]
            operand = made[0] if len(made) == 1 else operand
        while isinstance(operand, ast.Call) and isinstance(operand.func, ast.Attribute):
            operand = operand.func.value  # Model().eval(), Model().to(device)
        if isinstance(operand, ast.Call) and isinstance(operand.func, ast.Name) and operand.func.id in self.classes:
            found = self.method(self.classes[operand.func.id], name)
            if found is not None:
                return found[0], self.classes[operand.func.id], operand
        return None, None, None

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


def _imported_names(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Local name → dotted name of what it is imported as."""
    names: dict[str, str] = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            names[alias.asname or top] = alias.name if alias.asname else top
    elif not node.level and node.module:
        for alias in node.names:
            if alias.name != "*":
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif node.module in ("torch", "fuselens"):
                names["compile"] = f"{node.module}.compile"
    return names


def _blocks(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    """The statement lists inside a compound statement, and whether each is an ``else`` block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield block, name == "orelse"
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body, False


def _statements(body: list[ast.stmt], nested: bool = False) -> Iterator[ast.stmt]:
    """The statements of one scope: into ``if``, ``try`` and ``with``; into functions and classes if ``nested``."""
    for statement in body:
        yield statement
        if nested or not isinstance(statement, Definition | ast.ClassDef):
            for block, _ in _blocks(statement):
                yield from _statements(block, nested)


def _tests_main(test: ast.expr) -> bool:
    """Whether ``test`` is ``__name__ == "__main__"``, either way round."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = (test.left, test.comparators[0])
    return any(isinstance(s, ast.Name) and s.id == "__name__" for s in sides) and any(
        isinstance(s, ast.Constant) and s.value == "__main__" for s in sides
    )


def _compiling_call(value: ast.expr | None) -> ast.Call | None:
    """The innermost call of a chain of methods: ``compile(Model())`` of ``compile(Model()).eval()``."""
    while (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Call)
    ):
        value = value.func.value
    return value if isinstance(value, ast.Call) else None


def _example_inputs(call: ast.expr) -> ast.expr | None:
    keywords = call.keywords if isinstance(call, ast.Call) else ()
    return next((k.value for k in keywords if k.arg == "example_inputs"), None)


def _literals(keywords: list[ast.keyword]) -> dict[str, Any]:
    """The keyword arguments whose values are literals, dictionaries of them (``options=``) included."""
    found: dict[str, Any] = {}
    for keyword in keywords:
        if keyword.arg and isinstance(keyword.value, ast.Constant | ast.Dict):
            with contextlib.suppress(ValueError):
                found[keyword.arg] = ast.literal_eval(keyword.value)
    return found
