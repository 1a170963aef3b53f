"""Symbolic sizes and integers: which of them are symbols, and the guards that torch's shape reasoning left behind.

torch's ``ShapeEnv`` gives the expressions and remembers every comparison it had to decide with example values. Here
those become ``SHAPE`` guards, small postfix programs over sizes, strides and integers that the C guard machine evaluates.

Floats are left specialised: guards compare integers, kernels take integers, and a tensor in place of a float would
promote types differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from .. import torch_private
from ..report import Span, Symbol
from . import _hook
from .sources import GuardProgram, Source

Program = tuple[tuple[int, int], ...]


INTEGER = -1  # stands for a dimension where an integer itself is meant
LARGEST = 2**31 - 1  # symbolic integers are no larger, so that products of two of them fit in 64 bits


class NotGuardable(Exception):
    """A condition on sizes that guards cannot express: the frame is traced again with static sizes."""


class SizesChanged(Exception):
    """An input's size differs from an earlier call's: the frame is traced again with that size symbolic."""


@dataclass(slots=True)
class Variation:
    """What is known to vary between the calls of one code object, by source text.

    ``axes`` names dimensions, and integers (under :data:`INTEGER`), that are symbols from the start; ``sizes`` and
    ``integers`` are those of the compilations so far.
    """

    axes: dict[str, dict[int, str]] = field(default_factory=dict)
    sizes: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    integers: dict[str, set[int]] = field(default_factory=dict)

    def dims(self, source: Source, tensor: torch.Tensor, dynamic: bool | None) -> set[int]:
        """Dimensions of an input that become symbols: named ones, all with ``dynamic=True``, and those that changed."""
        if isinstance(tensor, torch.nn.Parameter) or tensor._base is not None or not torch_private.is_dense(tensor):
            return set()
        dims = set(self.axes.get(source.text, ()))
        if dynamic:
            dims |= set(range(tensor.dim()))
        for earlier in self.sizes.get(source.text, ()):
            if len(earlier) == tensor.dim():
                dims |= {d for d in range(tensor.dim()) if earlier[d] != tensor.shape[d]}
        return {d for d in dims if 0 <= d < tensor.dim() and tensor.shape[d] > 1}

    def integer(self, source: Source, value: int, dynamic: bool | None) -> bool:
        """Whether an integer becomes a symbol: a named one, an argument with ``dynamic=True``, or one that changed."""
        if INTEGER in self.axes.get(source.text, ()) or (dynamic and source.is_argument):
            return True
        return any(earlier != value for earlier in self.integers.get(source.text, ()))


class Sizes:
    """The symbolic sizes and integers of one capture. ``axes`` names those that the user named, as in :class:`Variation`.

    ``position`` tells where in the program the trace is: what was decided there is guarded because of it.
    """

    def __init__(
        self, axes: Mapping[str, Mapping[int, str]], position: Callable[[], Span | None] | None = None
    ) -> None:
        self.axes = axes
        self.causes: list[Span | None] = []  # beside torch's list of conditions
        self.env = torch_private.new_shape_env(lambda: self.causes.append(position() if position else None))
        self.tensors: list[tuple[Source, torch.Tensor, Span | None]] = []
        self.integers: list[tuple[Source, torch.SymInt, Span | None]] = []
        self.names: dict[str, str] = {}

    def fake(self, mode: Any, tensor: torch.Tensor, dims: set[int], source: Source, span: Span | None) -> torch.Tensor:
        """``tensor`` as a fake whose dimensions ``dims`` are symbols; equal sizes share one."""
        fake = torch_private.fake_symbolic(mode, tensor, dims, source.text)
        self.tensors.append((source, fake, span))
        for d, name in self.axes.get(source.text, {}).items():
            if 0 <= d < fake.dim():
                self._name(fake.shape[d], name)
        return fake

    def integer(self, value: int, source: Source, span: Span | None) -> torch.SymInt:
        """A symbol for an integer. Its sign is that of ``value``: the loop IR's symbols are not negative."""
        lower, upper = (0, LARGEST) if value >= 0 else (-LARGEST, -1)
        number = torch_private.symbolic_integer(self.env, value, source.text, lower, upper)
        self.integers.append((source, number, span))
        name = self.axes.get(source.text, {}).get(INTEGER, source.text)
        if name.isidentifier() and name not in self.names.values():
            self._name(number, name)
        return number

    def _name(self, size: Any, name: str) -> None:
        expression = torch_private.size_expression(size)
        if isinstance(expression, sympy.Symbol):
            self.names.setdefault(expression.name, name)

    def add_guards(self, guards: GuardProgram) -> list[Symbol]:
        """Adds every condition on sizes and integers; gives the symbols for the report. Raises :class:`NotGuardable`."""
        where: dict[sympy.Symbol, tuple[int, int]] = {}
        origin: dict[sympy.Symbol, tuple[str, Span | None]] = {}
        for source, number, span in self.integers:
            raw = torch_private.raw_expression(number)
            where[raw] = (guards.node(source), -1)
            origin[raw] = (source.text, span)
        for source, fake, span in self.tensors:
            for d, size in enumerate(fake.shape):
                raw = torch_private.raw_expression(size)
                if isinstance(raw, sympy.Symbol) and raw not in where:
                    where[raw] = (guards.node(source), d)
                    origin[raw] = (f"{source.text}.shape[{d}]", span)
        for source, fake, span in self.tensors:
            node = guards.node(source)
            for d, size in enumerate(fake.shape):
                self._equal(guards, (node, d), torch_private.raw_expression(size), where, f"{source}.shape[{d}]", span)
            for d, stride in enumerate(fake.stride()):
                expression = torch_private.raw_expression(stride)
                self._equal(guards, (node, -2 - d), expression, where, f"{source}.stride({d})", span)
        conditions = list(zip(torch_private.shape_guards(self.env), self.causes, strict=True))
        for expression, span in conditions:
            self._condition(guards, expression, where, span)
        found: list[Symbol] = []
        for raw, (text, span) in origin.items():
            simplified = torch_private.simplified(self.env, raw)
            decided = [cause for e, cause in conditions if simplified != raw and raw in e.free_symbols]
            forced = decided[-1] if decided else None
            if simplified != raw:
                self._condition(guards, sympy.Eq(raw, simplified, evaluate=False), where, forced)
            lower, upper = torch_private.bounds(self.env, raw)
            if lower is not None:
                self._condition(guards, sympy.Ge(raw, lower, evaluate=False), where, span)
            if upper is not None:
                self._condition(guards, sympy.Le(raw, upper, evaluate=False), where, span)
            hint = torch_private.symbol_hint(self.env, raw)
            name, value = self.names.get(raw.name, raw.name), self._shown(simplified) if simplified != raw else ""
            found.append(Symbol(name, text, hint, lower, upper, value, forced))
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
            raise NotGuardable(f"{expression} is neither the size of an input nor an integer that is one")
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
    if kind == "Abs":
        return [*args[0], *args[0], (_hook.S_CONST, -1), (_hook.S_MUL, 0), (_hook.S_MAX, 0)]
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
