"""What the names of a source file stand for, without executing anything: above all, which of them compile functions.

The compiler has many spellings: imported names, aliases, ``functools.partial``, functions of the file that hand over what
they are given, and all of these in other files of the program. Standard library only: the language server imports it.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ..system import source_text

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Arguments = dict[str, Any]  # the literal keyword arguments of a call

_COMPILERS = frozenset({"fuselens.compile", "fuselens.api.compile", "torch.compile", "torch.compiler.compile"})
_PARTIALS = frozenset({"functools.partial"})
_KEYWORDS = frozenset({"fullgraph", "dynamic", "backend", "mode", "options", "disable", "example_inputs", "name"})
_FILES = 4  # that a name is followed through
_LARGEST = 1024 * 1024  # bytes of another file that is read for its names


@dataclass(slots=True)
class Bindings:
    """What the names of a module's scope are bound to. Imports count in every scope: a later rebinding is ignored."""

    imported: dict[str, str] = field(default_factory=dict)  # local name → dotted name of what it was imported as
    relative: dict[str, tuple[int, str, str]] = field(default_factory=dict)  # local name → level, module and name
    rebound: set[str] = field(default_factory=set)  # names of that scope that functions assign
    definitions: dict[str, Definition] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    values: dict[str, list[ast.expr]] = field(default_factory=dict)  # what is assigned to each

    @classmethod
    def of(cls, body: list[ast.stmt]) -> Bindings:
        found = cls()
        for statement in statements(body, nested=True):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                found.imported |= _imported_names(statement)
            if isinstance(statement, ast.ImportFrom) and statement.level:
                for alias in statement.names:
                    found.relative[alias.asname or alias.name] = statement.level, statement.module or "", alias.name
            elif isinstance(statement, ast.Global):
                found.rebound.update(statement.names)
        for statement in statements(body):
            if isinstance(statement, Definition):
                found.definitions[statement.name] = statement
            elif isinstance(statement, ast.ClassDef):
                found.classes[statement.name] = statement
        found.values = assigned(body)
        return found

    def add(self, later: Bindings) -> None:
        """Takes what statements after these bind."""
        self.imported |= later.imported
        self.relative |= later.relative
        self.rebound |= later.rebound
        self.definitions |= later.definitions
        self.classes |= later.classes
        for name, values in later.values.items():
            self.values[name] = [*self.values.get(name, ()), *values]

    @property
    def defined(self) -> set[str]:
        """The names that statements of that scope itself bind, imports aside."""
        return {*self.definitions, *self.classes, *self.values}


class Names:
    """The names of one parsed file."""

    def __init__(self, tree: ast.Module, filename: str, followed: int = 0, bindings: Bindings | None = None) -> None:
        self.tree = tree
        self.filename = filename
        bound = Bindings.of(tree.body) if bindings is None else bindings
        self.names = bound.imported
        self.definitions = bound.definitions
        self.classes = bound.classes
        self.values = bound.values
        self.rebound = bound.rebound
        self._relative = bound.relative
        self._followed = followed
        self._known: dict[str, Arguments | None] = {}
        self._files: dict[tuple[int, str], Names | None] = {}

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the file, as it was parsed."""
        return list(ast.walk(self.tree))

    def dotted(self, node: ast.expr) -> str:
        """``fl.compile`` as "fuselens.compile", following import aliases; "" when it is no imported name."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.names:
            return ""
        return ".".join((self.names[node.id], *reversed(attributes)))

    def method(self, owner: ast.ClassDef, name: str) -> tuple[Definition, ast.ClassDef] | None:
        """The method ``name`` of a class of this file or of its bases in this file, and the class that has it."""
        seen = [owner]
        for cls in seen:
            for statement in statements(cls.body):
                if isinstance(statement, Definition) and statement.name == name:
                    return statement, cls
            bases = (self.classes.get(base.id) for base in cls.bases if isinstance(base, ast.Name))
            seen += [base for base in bases if base is not None and base not in seen]
        return None

    # --- compilers ------------------------------------------------------------------------------------------------------

    def decorates(self, decorator: ast.expr) -> Arguments | None:
        """The literal arguments when ``decorator`` compiles what it decorates; else None."""
        found = self.compiler(decorator)
        return None if found is None or found.get("disable") is True else found

    def wraps(self, function: Definition) -> bool:
        """Whether ``function`` returns what it is given, compiled."""
        return self._wrapped_by(function) is not None

    def takes_arguments(self, decorator: ast.expr) -> bool:
        """Whether what compiles is the compiler under some name, which takes its arguments: functions of the program may not."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if self.dotted(called) in _COMPILERS | _PARTIALS:
            return True
        values = self.values.get(called.id, ()) if isinstance(called, ast.Name) else ()
        return any(self.takes_arguments(value) for value in values if not isinstance(value, ast.Name))

    def applied(self, call: ast.expr) -> tuple[ast.expr, Arguments] | None:
        """What ``compile(f, ...)``, ``compile(...)(f)`` or ``partial(compile, ...)(f)`` compiles, and the literal
        arguments; None when ``call`` compiles nothing."""
        operand = _operand(call)
        if operand is None or not isinstance(call, ast.Call):
            return None
        arguments = self.compiler(call.func)
        if arguments is None or (arguments := arguments | _literals(call.keywords)).get("disable") is True:
            return None
        return operand, arguments

    def compiler(self, node: ast.expr) -> Arguments | None:
        """The literal arguments with which ``node`` compiles what it is called with; None when it does not."""
        if (name := self.dotted(node)) in _COMPILERS:
            return {}
        match node:
            case ast.Name(id=local):
                return self._named(local)
            case ast.Attribute(value=ast.Name(id=local), attr=attribute) if local in self._relative:
                level, *names = self._relative[local]
                return self._elsewhere(level, ".".join(filter(None, names)), attribute)
            case ast.Attribute():
                return self._elsewhere(0, *name.rpartition(".")[::2]) if name else None
            case ast.Call(func=function, args=[first]) if self.dotted(function) in _PARTIALS:
                return _merged(self.compiler(first), node)
            case ast.Call(func=function) if _operand(node) is None:
                found = self.compiler(function)
                return _merged(self._made_by(function) if found is None else found, node)
            case ast.IfExp(body=body, orelse=orelse):
                found = self.compiler(body)
                return self.compiler(orelse) if found is None else found
            case ast.Lambda(args=parameters, body=body):
                return self._handed_over(body, parameters)
        return None

    def _named(self, name: str) -> Arguments | None:
        if name not in self._known:
            self._known[name] = None  # while it is being found
            found = None
            if name in self.definitions:
                found = self._wrapped_by(self.definitions[name])
            elif name in self._relative:
                found = self._elsewhere(*self._relative[name])
            elif "." in self.names.get(name, ""):
                found = self._elsewhere(0, *self.names[name].rpartition(".")[::2])
            values = (self.compiler(value) for value in self.values.get(name, ()))
            self._known[name] = found if found is not None else next((v for v in values if v is not None), None)
        return self._known[name]

    def _wrapped_by(self, function: Definition) -> Arguments | None:
        """The arguments with which ``function`` compiles its argument and returns what it made."""
        local = assigned(function.body)
        inner = {s.name: s for s in statements(function.body) if isinstance(s, Definition)}
        for value in _returned(function):
            for made in local.get(value.id, [value]) if isinstance(value, ast.Name) else [value]:
                if (found := self._handed_over(made, function.args)) is not None:
                    return found
            if isinstance(value, ast.Name) and value.id in inner:
                called = {
                    n.func.id
                    for n in ast.walk(inner[value.id])
                    if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
                }
                for made in (made for name in called for made in local.get(name, ())):
                    if (found := self._handed_over(made, function.args)) is not None:
                        return found
        return None

    def _handed_over(self, value: ast.expr, parameters: ast.arguments) -> Arguments | None:
        """The arguments when ``value`` is the first of the ``parameters``, compiled."""
        every = (*parameters.posonlyargs, *parameters.args)
        found = self.applied(value)
        if found is None or not every or not isinstance(found[0], ast.Name) or found[0].id != every[0].arg:
            return None
        return found[1]

    def _made_by(self, function: ast.expr) -> Arguments | None:
        """The arguments of the compiler that a call of ``function``, a function of the program, returns."""
        home, name = self, function.id if isinstance(function, ast.Name) else ""
        if name in self._relative:
            level, module, name = self._relative[name]
            home = self._file(level, module)
        elif name not in self.definitions and (dotted := self.dotted(function)):
            home, name = self._file(0, dotted.rpartition(".")[0]), dotted.rpartition(".")[2]
        definition = home.definitions.get(name) if home is not None else None
        if home is None or definition is None:
            return None
        inner = {s.name: s for s in statements(definition.body) if isinstance(s, Definition)}
        for value in _returned(definition):
            found = home.compiler(value) if not isinstance(value, ast.Name) else None
            if isinstance(value, ast.Name) and value.id in inner:
                found = home._wrapped_by(inner[value.id])
            if found is not None:
                return found
        return None

    # --- other files of the program -------------------------------------------------------------------------------------

    def _elsewhere(self, level: int, module: str, name: str) -> Arguments | None:
        """What ``name`` of another file compiles with."""
        other = self._file(level, module)
        return other._named_there(name) if other is not None else None

    def _named_there(self, name: str) -> Arguments | None:
        return {} if self.names.get(name) in _COMPILERS else self._named(name)

    def _file(self, level: int, module: str) -> Names | None:
        """The names of another file of the program; None for libraries, and for what cannot be read."""
        key = level, module
        if key not in self._files:
            path = None if self._followed >= _FILES else module_file(self.filename, level, module)
            self._files[key] = None if path is None else _names_of(path, self._followed + 1)
        return self._files[key]


def module_file(filename: str, level: int, module: str) -> Path | None:
    """The file of a module that ``filename`` imports, if it is next to it or in one of its packages."""
    if not level and module.partition(".")[0] in sys.stdlib_module_names | {"torch", "fuselens", "numpy", ""}:
        return None
    base = Path(filename).absolute().parent
    if level:
        base = (base, *base.parents)[min(level - 1, len(base.parents))]
    else:
        while base != base.parent and (base / "__init__.py").exists():
            base = base.parent
    place = base.joinpath(*filter(None, module.split(".")))
    candidates = (place / "__init__.py", *([place.with_name(f"{place.name}.py")] if module else ()))
    return next((file for file in candidates if file.is_file()), None)


def _names_of(path: Path, followed: int) -> Names | None:
    with contextlib.suppress(OSError):
        status = path.stat()
        if status.st_size <= _LARGEST:
            return _parsed_names(path, followed, status.st_mtime_ns, status.st_size)
    return None


@lru_cache(maxsize=64)
def _parsed_names(path: Path, followed: int, changed: int, size: int) -> Names | None:
    """``changed`` and ``size`` tell versions of the file apart."""
    try:
        return Names(ast.parse(source_text.read_bytes(path, _LARGEST)), str(path), followed)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# --- syntax -----------------------------------------------------------------------------------------------------------


def statements(body: Iterable[ast.stmt], nested: bool = False) -> Iterator[ast.stmt]:
    """The statements of one scope: into ``if``, ``try`` and ``with``; into functions and classes if ``nested``."""
    for statement in body:
        yield statement
        if nested or not isinstance(statement, Definition | ast.ClassDef):
            for block, _ in blocks(statement):
                yield from statements(block, nested)


def blocks(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    """The statement lists inside a compound statement, and whether each is an ``else`` block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield block, name == "orelse"
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body, False


def assigned(body: Iterable[ast.stmt]) -> dict[str, list[ast.expr]]:
    """What is assigned to each name of a scope by statements of their own."""
    found: dict[str, list[ast.expr]] = {}
    for statement in statements(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(statement.value)
    return found


def _returned(function: Definition) -> list[ast.expr]:
    return [s.value for s in statements(function.body) if isinstance(s, ast.Return) and s.value is not None]


def _operand(call: ast.expr) -> ast.expr | None:
    """What a call of a compiler is given to compile; None for a call that gives a decorator, too."""
    if not isinstance(call, ast.Call):
        return None
    given = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("fn", "model"))]
    missing = not given or isinstance(given[0], ast.Starred)
    return None if missing or (isinstance(given[0], ast.Constant) and given[0].value is None) else given[0]


def _merged(arguments: Arguments | None, call: ast.Call) -> Arguments | None:
    return None if arguments is None else arguments | _literals(call.keywords)


def _literals(keywords: list[ast.keyword]) -> Arguments:
    """The compiler's keyword arguments whose values are literals, dictionaries of them (``options=``) included."""
    found: Arguments = {}
    for keyword in keywords:
        if keyword.arg in _KEYWORDS and isinstance(keyword.value, ast.Constant | ast.Dict):
            with contextlib.suppress(ValueError):
                found[keyword.arg] = ast.literal_eval(keyword.value)
    return found


def own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, but not of those inside it; comprehensions included, lambdas not."""
    children = ast.iter_child_nodes(statement)
    waiting: list[ast.AST] = [child for child in children if isinstance(child, ast.expr | ast.withitem)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Lambda):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def bindings(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of a statement's assignments, each with its value; of ``a = b = value`` the first."""
    if isinstance(statement, ast.Assign):
        match statement.targets[0], statement.value:
            case (
                (ast.Tuple(elts=targets) | ast.List(elts=targets)),
                (ast.Tuple(elts=values) | ast.List(elts=values)),
            ) if len(targets) == len(values):
                yield from zip(targets, values, strict=True)
            case target, value:
                yield target, value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value
    for node in own_expressions(statement):
        if isinstance(node, ast.NamedExpr):
            yield node.target, node.value


def root(node: ast.expr) -> ast.Name | None:
    """``self`` of ``self.a.b[0]``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def first_parameter(function: Definition | None) -> str:
    """Its name; empty when there is none."""
    every = (*function.args.posonlyargs, *function.args.args) if function is not None else ()
    return every[0].arg if every else ""


def tests_main(test: ast.expr) -> bool:
    """Whether ``test`` is ``__name__ == "__main__"``, either way round."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = (test.left, test.comparators[0])
    return any(isinstance(s, ast.Name) and s.id == "__name__" for s in sides) and any(
        isinstance(s, ast.Constant) and s.value == "__main__" for s in sides
    )


def compiles_in_place(call: ast.expr) -> Arguments | None:
    """The literal arguments of ``module.compile(...)``, which compiles the calls of a ``torch.nn.Module``."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "compile":
        known = not call.args and all(k.arg is None or k.arg in _KEYWORDS for k in call.keywords)
        found = _literals(call.keywords)
        return found if known and found.get("disable") is not True else None
    return None


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
