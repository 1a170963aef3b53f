"""What an annotation compiles: its operand, followed to where the file defines it, and written as an expression.

``compile(net)`` says a name. This module finds the function or the class behind it, by way of names that are bound once,
of attributes that a constructor keeps, and of methods. Nothing is executed. Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .names import Definition, Names, first_parameter, statements

Kind = Literal["function", "method", "module", "attribute", "nested"]
Function = Definition | ast.Lambda
Scope = tuple[str, ...]

_PASSED_THROUGH = frozenset(
    {"eval", "train", "float", "double", "half", "bfloat16"}
)  # methods that return their module
_MOST_STEPS = 4  # from a name to what it is bound to
_OTHER_LIBRARIES = ("keras.", "tensorflow.", "re.", "regex.")  # whose objects have a method ``compile``


@dataclass(frozen=True, slots=True)
class Place:
    """Where a statement is: ``around`` is the place of the ``method``, or other function, that it is part of."""

    scope: Scope = ()
    owner: ast.ClassDef | None = None
    kind: Kind = "function"
    importable: bool = True
    around: Place | None = None
    method: Definition | None = None
    local: Mapping[str, list[ast.expr]] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()  # of the functions around
    hands_over: bool = False  # one of them returns what it is given, compiled


class Compiled(NamedTuple):
    """A function of the file, the class that it is a method of, and the call that makes the instance: each where it is known."""

    function: Function | None = None
    owner: ast.ClassDef | None = None
    made: ast.Call | None = None


_UNKNOWN = Compiled()


@dataclass(frozen=True, slots=True)
class Operands:
    """Follows operands that are written at ``place``."""

    names: Names
    place: Place

    def value(self, node: ast.expr) -> ast.expr:
        """What a name is bound to, if that happens once."""
        if isinstance(node, ast.Name):
            values = self.place.local.get(node.id) or self.names.values.get(node.id, ())
            made = [v for v in values if not any(self.names.applied(c) for c in ast.walk(v) if isinstance(c, ast.Call))]
            return made[0] if len(made) == 1 else node
        return node

    def is_module(self, node: ast.expr) -> bool:
        """Whether ``node`` is likely to be a ``torch.nn.Module``: its class says so, or the file knows no other library
        whose objects have a method ``compile``."""
        names, value = self.names, self.value(node)
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Name) and value.func.id in names.classes:
                return names.method(names.classes[value.func.id], "compile") is None
            if name := names.dotted(value.func):
                return not name.startswith(_OTHER_LIBRARIES)
        if isinstance(node, ast.Name) and node.id in names.names:
            return False
        return any(name.partition(".")[0] == "torch" for name in names.names.values())

    # --- the function behind an operand -----------------------------------------------------------------------------------

    def resolve(self, operand: ast.expr) -> Compiled:
        """What is compiled, when it is a function of this file or an instance of a class of it (then its ``forward``),
        perhaps by way of a name that is bound once."""
        match operand:
            case ast.Lambda():
                return Compiled(operand)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(owner, name)
            case ast.Name(id=name) if name in self.names.definitions and name not in self.place.local:
                return Compiled(self.names.definitions[name])
            case ast.Name(id=name) if self.place.kind == "method" and self.place.owner is not None:
                return self._method(self.place.owner, name)
        return self._made(self.value(operand), "forward")

    def _attribute(self, owner: ast.expr, name: str) -> Compiled:
        """``self.name`` in a method, ``Class.name``, or the method of an object."""
        if isinstance(owner, ast.Name):
            around = self.place.around
            if around is not None and around.owner is not None and owner.id == first_parameter(self.place.method):
                found = self._method(around.owner, name)
                return found if found.function is not None else self._held(around.owner, name)
            if owner.id in self.names.classes:
                return self._method(self.names.classes[owner.id], name)
        return self._made(self.value(owner), name)

    def _method(self, owner: ast.ClassDef, name: str) -> Compiled:
        found = self.names.method(owner, name)
        return Compiled(found[0], owner) if found is not None else _UNKNOWN

    def _held(self, owner: ast.ClassDef, attribute: str) -> Compiled:
        """The module that the constructor keeps in ``self.attribute``."""
        constructor = self.names.method(owner, "__init__")
        found = [s.value for s in statements(constructor[0].body if constructor else ())
                 if isinstance(s, ast.Assign) and isinstance(t := s.targets[0], ast.Attribute) and t.attr == attribute
                 and isinstance(t.value, ast.Name)]  # fmt: skip
        return self._made(found[0], "forward") if len(found) == 1 else _UNKNOWN

    def _made(self, value: ast.expr, method: str) -> Compiled:
        """The method of an instance that ``value`` makes."""
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value  # Model().eval(), Model().to(device)
        if isinstance(value, ast.Lambda):
            return Compiled(value)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in self.names.classes:
            found = self._method(self.names.classes[value.func.id], method)
            return found._replace(made=value) if found.function is not None else _UNKNOWN
        return _UNKNOWN

    # --- operands as expressions ------------------------------------------------------------------------------------------

    def written(self, node: ast.expr, steps: int = 0) -> str:
        """``node`` as an expression over the module's names that makes modules and nothing else; else empty."""
        match node:
            case ast.Constant():
                return repr(node.value)
            case ast.Name():
                return self._written_name(node, steps)
            case ast.Attribute(value=owner, attr=name):
                return _joined(self.written(owner, steps), f".{name}")
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[], keywords=[]) if name in _PASSED_THROUGH:
                return _joined(self.written(owner, steps), f".{name}()")
            case ast.Call() if self._makes_module(node.func):
                return self._written_call(node, steps)
        return ""

    def _written_name(self, node: ast.Name, steps: int) -> str:
        name, place = node.id, self.place
        value = self.value(node)
        if value is not node and steps < _MOST_STEPS and (name in place.local or not place.importable):
            return self.written(value, steps + 1)
        known = name in self.names.definitions or (name in self.names.values and place.importable)
        return name if known and name not in place.local else ""

    def _makes_module(self, function: ast.expr) -> bool:
        own = isinstance(function, ast.Name) and function.id in self.names.classes
        return own or self.names.dotted(function).startswith("torch.nn.")

    def _written_call(self, node: ast.Call, steps: int) -> str:
        given = [("", a) for a in node.args] + [(f"{k.arg}=" if k.arg else "**", k.value) for k in node.keywords]
        texts = [(word, self.written(value, steps + 1)) for word, value in given]
        if not all(text for _, text in texts):
            return ""
        return f"{ast.unparse(node.func)}({', '.join(word + text for word, text in texts)})"


def _joined(before: str, after: str) -> str:
    return before + after if before else ""
