"""Walks through the statements of functions, in the order and on the ways that they may run."""

from __future__ import annotations

import ast
import contextlib

from ...record import diagnostics
from ..discovery import Annotated, Definition, SourceModule
from . import tables
from .binding import bound_parameters, example_parameters
from .expressions import Expressions
from .invocation import Arguments, Keywords
from .natures import Natures
from .values import (
    PLAIN,
    UNKNOWN,
    Container,
    Function,
    Imported,
    Instance,
    Value,
    item_of,
    join,
    join_all,
)

DEPTH = 4  # calls into one another that are followed
STEPS = 20_000  # expressions looked at for one annotated function
_TRANSPARENT = frozenset({"builtins.staticmethod", "builtins.classmethod", "builtins.property", "functools.cached_property",
                          "torch.no_grad", "torch.enable_grad", "torch.inference_mode", "torch.compile", "fuselens.compile",
                          "functools.wraps", "torch.jit.export", "typing.override", "abc.abstractmethod"})  # fmt: skip


class Statements(Expressions):
    """Runs bodies of functions abstractly."""

    def __init__(self, module: SourceModule) -> None:
        super().__init__(module)
        self._active: tuple[ast.AST, ...] = ()
        self._returned: list[Value] = []
        self.natures = Natures(module)

    def begin(self, annotated: Annotated) -> None:
        super().begin(annotated)
        self._active, self._returned = (), []

    # --- functions -----------------------------------------------------------------------------------------------------

    def run(self, function: Function, arguments: Arguments, keywords: Keywords, node: ast.expr) -> Value:
        """A call of a function of this file, which is looked at in turn."""
        body = function.node
        decorators = {
            self.resolve(d.func if isinstance(d, ast.Call) else d) for d in getattr(body, "decorator_list", ())
        }
        if decorators & tables.DISABLING:
            self.found("FL114", node, what=function.qualname)
            return UNKNOWN
        opaque = not decorators <= _TRANSPARENT or self.natures.of(body) in ("coroutine", "reads its frame")
        if opaque or body in self._active or len(self._active) >= DEPTH or self.steps > STEPS:
            return UNKNOWN
        if function.bound is not None:
            arguments = (function.bound, *arguments)
        inside = bound_parameters(self, body.args, arguments, keywords)
        outside = self.variables, self.frames, self.qualname
        if isinstance(body, ast.Lambda):
            self.variables = {**function.around, **inside}
            result = self.evaluate(body.body)
        else:
            self.frames = (*self.frames, self.frame(node))
            self.qualname = function.qualname
            result = self.body(body, {**function.around, **inside})
        self.variables, self.frames, self.qualname = outside
        return result

    def body(self, node: Definition, variables: dict[str, Value]) -> Value:
        """What a call of ``node`` with ``variables`` as its parameters gives."""
        before, self._active = self._active, (*self._active, node)
        returned, self._returned = self._returned, []
        self.variables = variables
        ended = self.block(node.body)
        results = tuple(self._returned) + (() if ended else (PLAIN,))
        self._active, self._returned = before, returned
        result = join_all(results)
        return Container(result) if self.natures.of(node) == "generator" else result

    def initialised(self, instance: Instance, arguments: Arguments, keywords: Keywords) -> None:
        """What the class and ``__init__`` make of ``instance``; their breaks are not the compiled function's, mostly."""
        cls = instance.node
        if cls is None:
            return
        with self.unreported():
            self._class_attributes(cls, instance)
        found = self.module.method(cls, "__init__")
        if found is None:
            fields = [s.target.id for s in cls.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
            instance.attributes.update(zip(fields, arguments, strict=False))
            instance.attributes.update({k: v for k, v in keywords.items() if k in fields})
        elif found[0] not in self._active:
            outside = self.variables
            with self.unreported():
                self.body(found[0], bound_parameters(self, found[0].args, (instance, *arguments), keywords))
            self.variables = outside

    def _class_attributes(self, cls: ast.ClassDef, instance: Instance) -> None:
        """The attributes that statements of the class body give its instances."""
        for statement in cls.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                    given = self.evaluate(value) if value is not None else UNKNOWN
                    instance.attributes[name] = given if given != UNKNOWN else self.promised(annotation)
                case ast.Assign(targets=[ast.Name(id=name), *_], value=value):
                    instance.attributes[name] = self.evaluate(value)

    def root(self, node: Definition, given: ast.expr | None, instance: Instance | None) -> None:
        """Looks at a compiled function, called with its example inputs."""
        self.body(node, example_parameters(self, node, given, instance if _takes_self(node) else None))

    # --- blocks --------------------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt]) -> bool:
        """Runs statements one after the other; True when what follows them is never reached."""
        for statement in body:
            if self.steps > STEPS:
                return False
            method = getattr(self, f"_on_{type(statement).__name__.lower()}", None)
            if method is not None and method(statement):
                return True
        return False

    def _branches(self, *bodies: list[ast.stmt]) -> bool:
        """Runs alternatives, each from the same state, and joins what they leave."""
        before, joined = self.variables, None
        self.uncertain += 1
        for body in bodies:
            self.variables = dict(before)
            if not self.block(body):
                joined = self.variables if joined is None else _joined(joined, self.variables)
        self.uncertain -= 1
        self.variables = joined if joined is not None else before
        return joined is None

    def _on_if(self, node: ast.If) -> bool:
        branches = self.branches
        with self.unreported() if not self.handled and _goes_straight_to_raise(node.body) else contextlib.nullcontext():
            true = self.condition(node.test)
        if true is not None:
            return self.block(node.body if true else node.orelse)
        if self.branches > branches or not (_fails(node.body) or _fails(node.orelse)):
            return self._branches(node.body, node.orelse)
        with self.unreported():  # what leads to an exception is not expected to run
            if _fails(node.body):
                self._branches(node.body)
        if _fails(node.body):
            return self.block(node.orelse)
        with self.unreported():
            self._branches(node.orelse)
        return self.block(node.body)

    def _loop(self, body: list[ast.stmt], orelse: list[ast.stmt], target: ast.expr | None, value: Value) -> None:
        """Once to see what the body makes of the variables, once to report."""
        before = dict(self.variables)
        with self.unreported():
            self._turn(body, target, value)
        self.variables = _joined(before, self.variables, loops=True)
        before = dict(self.variables)
        self._turn(body, target, value)
        self.variables = _joined(before, self.variables, loops=True)
        self.block(orelse)

    def _turn(self, body: list[ast.stmt], target: ast.expr | None, value: Value) -> None:
        self.uncertain += 1
        if target is not None:
            self.assign(target, value)
        self.block(body)
        self.uncertain -= 1

    def _on_for(self, node: ast.For) -> None:
        self._loop(node.body, node.orelse, node.target, item_of(self.evaluate(node.iter)))

    def _on_while(self, node: ast.While) -> None:
        before = dict(self.variables)
        with self.unreported():
            if self.condition(node.test) is False:
                return
            self.block(node.body)
        self.variables = _joined(before, self.variables, loops=True)
        known = set(self.findings)
        self.condition(node.test)
        for key in self.findings.keys() - known:
            if key[0] == "FL101":
                self.findings[key] = diagnostics.of_loop(self.findings[key])
        self._loop(node.body, node.orelse, None, UNKNOWN)

    def _on_try(self, node: ast.Try) -> bool:
        self.handled += 1
        ended = self.block(node.body)
        self.handled -= 1
        if not ended:
            ended = self.block(node.orelse)
        after = self.variables
        with self.unreported():  # exceptions are not expected
            for handler in node.handlers:
                self.variables = dict(after)
                if handler.name:
                    self.variables[handler.name] = UNKNOWN
                if not self.block(handler.body):
                    after = _joined(after, self.variables)
                    ended = False
        self.variables = after
        return self.block(node.finalbody) or ended

    _on_trystar = _on_try

    def _on_with(self, node: ast.With) -> bool:
        for item in node.items:
            manager = self.evaluate(item.context_expr)
            if isinstance(manager, Instance) and (manager.name in tables.LOCKS or manager.name == "io.TextIOWrapper"):
                what = self.text(item.context_expr)
                self.found("FL113", item.context_expr, what=what, why="its __enter__ is not a Python function")
            if item.optional_vars is not None:
                self.assign(item.optional_vars, manager if isinstance(manager, Instance) else UNKNOWN)
        return self.block(node.body)

    def _on_match(self, node: ast.Match) -> bool:
        self.evaluate(node.subject)
        for case in node.cases:
            for pattern in ast.walk(case.pattern):
                if isinstance(pattern, ast.MatchAs | ast.MatchStar) and pattern.name:
                    self.variables[pattern.name] = UNKNOWN
            if case.guard is not None:
                self.condition(case.guard)
        return self._branches(*(case.body for case in node.cases), [])

    # --- simple statements ---------------------------------------------------------------------------------------------

    def _on_expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Yield | ast.YieldFrom):
            value = self.evaluate(node.value.value)
            self._returned.append(value if isinstance(node.value, ast.Yield) else item_of(value))
        else:
            self.evaluate(node.value)

    def _on_assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _on_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.evaluate(node.value)
            self.assign(node.target, value if value != UNKNOWN else self.promised(node.annotation))

    def _on_augassign(self, node: ast.AugAssign) -> None:
        before, value = self.evaluate(node.target), self.evaluate(node.value)
        self.assign(node.target, self.operated(node.op, before, value, node))

    def _on_return(self, node: ast.Return) -> bool:
        self._returned.append(self.evaluate(node.value))
        return True

    def _on_raise(self, node: ast.Raise) -> bool:
        return True

    def _on_break(self, node: ast.Break) -> bool:
        return False  # what follows in the block is not reached, but what follows the loop is

    _on_continue = _on_break

    def _on_assert(self, node: ast.Assert) -> bool:
        """A graph checks what its tensors decide."""
        with contextlib.nullcontext() if self.handled else self.unreported():
            return self.condition(node.test) is False

    def _on_functiondef(self, node: Definition) -> None:
        decorators = {self.resolve(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}
        function = Function(node, self.variables, qualname=f"{self.qualname}.<locals>.{node.name}")
        self.variables[node.name] = function if decorators <= _TRANSPARENT | tables.DISABLING else UNKNOWN

    _on_asyncfunctiondef = _on_functiondef

    def _on_classdef(self, node: ast.ClassDef) -> None:
        self.found("FL104", node, what="__build_class__", why="it is implemented in C")
        self.variables[node.name] = UNKNOWN

    def _on_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.variables.pop(target.id, None)

    def _on_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            known = self.module.names.get(name)
            self.variables[name] = UNKNOWN if known is None else Imported(known)

    _on_importfrom = _on_import


def _joined(a: dict[str, Value], b: dict[str, Value], loops: bool = False) -> dict[str, Value]:
    """The variables where two ways meet; one that only one of them sets is taken from there."""
    return {name: join(a[name], b[name], loops) if name in a and name in b else a.get(name, b.get(name, UNKNOWN))
            for name in {**a, **b}}  # fmt: skip


def _fails(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise)


def _goes_straight_to_raise(body: list[ast.stmt]) -> bool:
    """Whether a graph can check that it is not run: what leads to the exception does not branch."""
    return _fails(body) and not any(isinstance(n, ast.stmt) and hasattr(n, "body") for s in body for n in ast.walk(s))


def _takes_self(node: Definition) -> bool:
    return not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
