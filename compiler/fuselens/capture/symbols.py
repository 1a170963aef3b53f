"""Symbolic sizes: which dimensions are symbols, and the guards that torch's shape reasoning left behind.

torch's ``ShapeEnv`` gives the expressions and remembers every comparison it had to decide with example values. Here
those become ``SHAPE`` guards, small postfix programs over sizes and strides that the C guard machine evaluates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch

from .. import torch_private
from ..report import Span, Symbol
from . import _hook
from .sources import GuardProgram, Source

Program = tuple[tuple[int, int], ...]


class NotGuardable(Exception):
    """A condition on sizes that guards cannot express: the frame is traced again with static sizes."""


class SizesChanged(Exception):
    """An input's size differs from an earlier call's: the frame is traced again with that size symbolic."""


class Sizes:
    """The symbolic sizes of one capture. ``axes`` names dimensions that the user named: source text → {dim: name}."""

    def __init__(self, axes: Mapping[str, Mapping[int, str]]) -> None:
        self.axes = axes
        self.env = torch_private.new_shape_env()
        self.tensors: list[tuple[Source, torch.Tensor, Span | None]] = []
        self.names: dict[str, str] = {}

    def fake(self, mode: Any, tensor: torch.Tensor, dims: set[int], source: Source, span: Span | None) -> torch.Tensor:
        """``tensor`` as a fake whose dimensions ``dims`` are symbols; equal sizes share one."""
        fake = torch_private.fake_symbolic(mode, tensor, dims, source.text)
        self.tensors.append((source, fake, span))
        for d, name in self.axes.get(source.text, {}).items():
            expression = torch_private.size_expression(fake.shape[d])
            if isinstance(expression, sympy.Symbol):
                self.names.setdefault(expression.name, name)
        return fake

    def add_guards(self, guards: GuardProgram) -> list[Symbol]:
        """Adds every condition on sizes and gives the symbols for the report. Raises :class:`NotGuardable`."""
        where: dict[sympy.Symbol, tuple[int, int]] = {}
        origin: dict[sympy.Symbol, tuple[Source, int]] = {}
        for source, fake, _ in self.tensors:
            for d, size in enumerate(fake.shape):
                raw = torch_private.raw_expression(size)
                if isinstance(raw, sympy.Symbol) and raw not in where:
                    where[raw] = (guards.node(source), d)
                    origin[raw] = (source, d)
        for source, fake, span in self.tensors:
            node = guards.node(source)
            for d, size in enumerate(fake.shape):
                self._equal(guards, (node, d), torch_private.raw_expression(size), where, f"{source}.shape[{d}]", span)
            for d, stride in enumerate(fake.stride()):
                expression = torch_private.raw_expression(stride)
                self._equal(guards, (node, -2 - d), expression, where, f"{source}.stride({d})", span)
        for raw in where:
            simplified = torch_private.simplified(self.env, raw)
            if simplified != raw:
                self._condition(guards, sympy.Eq(raw, simplified, evaluate=False), where, None)
        for expression in torch_private.shape_guards(self.env):
            self._condition(guards, expression, where, None)
        found: list[Symbol] = []
        for raw, (source, d) in origin.items():
            lower, upper = torch_private.bounds(self.env, raw)
            if lower is not None:
                self._condition(guards, sympy.Ge(raw, lower, evaluate=False), where, None)
            if upper is not None:
                self._condition(guards, sympy.Le(raw, upper, evaluate=False), where, None)
            name = self.names.get(raw.name, raw.name)
            hint = torch_private.symbol_hint(self.env, raw)
            found.append(Symbol(name, f"{source.text}.shape[{d}]", hint, lower, upper))
        return found

    def _equal(
        self, guards: GuardProgram, have: tuple[int, int], expression: Any, where: Any, text: str, span: Span | None
    ) -> None:
        if isinstance(expression, sympy.Symbol) and where.get(expression) == have:
            return
        variables: list[tuple[int, int]] = [have]
        program = [(_hook.S_VAR, 0), *_postfix(expression, where, variables), (_hook.S_EQ, 0)]
        self._add(guards, variables, program, f"{text} == {self._shown(expression)}", span)

    def _condition(self, guards: GuardProgram, expression: Any, where: Any, span: Span | None) -> None:
        if expression in (sympy.true, True):
            return
        variables: list[tuple[int, int]] = []
        self._add(guards, variables, _postfix(expression, where, variables), self._shown(expression), span)

    def _add(self, guards: GuardProgram, variables: Any, program: Any, text: str, span: Span | None) -> None:
        guards.check_shape(tuple(variables), tuple(program), text, span)

    def _shown(self, expression: Any) -> str:
        return self.rename(str(expression))

    def rename(self, text: str, suffix: str = "") -> str:
        """``text`` with torch's symbol names replaced by the user's axis names, each with ``suffix``."""
        return torch_private.rename_symbols(text, {raw: name + suffix for raw, name in self.names.items()})


_BINARY = {
    "FloorDiv": _hook.S_FLOORDIV, "CleanDiv": _hook.S_FLOORDIV, "Mod": _hook.S_MOD, "PythonMod": _hook.S_MOD,
    "Equality": _hook.S_EQ, "Unequality": _hook.S_NE, "StrictLessThan": _hook.S_LT, "LessThan": _hook.S_LE,
}  # fmt: skip
_SWAPPED = {"StrictGreaterThan": _hook.S_LT, "GreaterThan": _hook.S_LE}
_FOLDED = {
    "Add": _hook.S_ADD, "Mul": _hook.S_MUL, "Min": _hook.S_MIN, "Max": _hook.S_MAX, "And": _hook.S_AND, "Or": _hook.S_OR,
}  # fmt: skip


def _postfix(
    expression: Any, where: Mapping[sympy.Symbol, tuple[int, int]], variables: list[tuple[int, int]]
) -> list[Any]:
    """The postfix program of a sympy expression; appends to ``variables`` what it reads."""
    expression = sympy.sympify(expression)
    if isinstance(expression, sympy.Integer):
        return [(_hook.S_CONST, int(expression))]
    if expression in (sympy.true, sympy.false):
        return [(_hook.S_CONST, int(bool(expression)))]
    if isinstance(expression, sympy.Symbol):
        place = where.get(expression)
        if place is None:
            raise NotGuardable(f"{expression} is not the size of an input")
        if place not in variables:
            variables.append(place)
        return [(_hook.S_VAR, variables.index(place))]
    kind = type(expression).__name__
    args = [_postfix(a, where, variables) for a in expression.args]
    if kind in _FOLDED:
        out = args[0]
        for a in args[1:]:
            out = [*out, *a, (_FOLDED[kind], 0)]
        return out
    if kind in _BINARY and len(args) == 2:
        return [*args[0], *args[1], (_BINARY[kind], 0)]
    if kind in _SWAPPED:
        return [*args[1], *args[0], (_SWAPPED[kind], 0)]
    if kind == "Not":
        return [*args[0], (_hook.S_NOT, 0)]
    if (
        kind in ("Pow", "PowByNatural")
        and isinstance(expression.args[1], sympy.Integer)
        and 0 < int(expression.args[1]) < 8
    ):
        out = args[0]
        for _ in range(int(expression.args[1]) - 1):
            out = [*out, *args[0], (_hook.S_MUL, 0)]
        return out
    raise NotGuardable(f"no guard for {kind} in {expression}")
