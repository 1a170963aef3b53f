"""Writing bodies: ops of several loops re-expressed over one iteration space, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sympy import Expr

from fuselens.ir.affine import substitute
from fuselens.ir.loops import Op, indirect_names, value_symbol
from fuselens.record.report import Span

Resolve = Callable[["Scope", str, Expr, Op], str]  # storage and index to the name of the value
_HALVES = ("f16", "bf16")
# What jumps where its operands change a little: in eager those are rounded.
_DISCRETE = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "floor", "ceil", "trunc", "round", "mod", "fmod", "floordiv", "truncdiv",
    "argmax", "argmin",
})  # fmt: skip
_NEUTRAL = {"mul": 1, "div": 1, "sub": 0}


def _is(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == number and str(value)[0] != "-"


class Scope:
    """The body of one phase. Equal ops are emitted once; names come from ``names``, shared by a kernel's phases."""

    def __init__(self, names: Iterator[str], unrounded: dict[str, tuple[str, str]] | None = None) -> None:
        self.ops: list[Op] = []
        self.values: dict[tuple[str, Expr], str] = {}  # elements whose value this phase has already
        self._names = names
        self._known: dict[tuple[Any, ...], int] = {}
        self._numbers: dict[str, Any] = {}
        self.limits: dict[str, Expr] = {}  # positions → the size that they are below
        # half-precision results of casts that only exist because eager stores there → (f32 name, its dtype)
        self.unrounded: dict[str, tuple[str, str]] = {} if unrounded is None else unrounded

    def emit(self, op: str, args: tuple[Any, ...], dtype: str, spans: tuple[Span, ...]) -> str:
        same = self._neutral(op, args)
        if same is not None:
            return same
        key = (op, repr(args[0]), dtype) if op == "const" else (op, args, dtype)
        found = self._known.get(key)
        if found is not None:
            known = self.ops[found]
            if spans and known.spans != spans:
                merged = tuple(dict.fromkeys((*known.spans, *spans)))
                self.ops[found] = Op(known.name, known.op, known.args, known.dtype, merged)
            return known.name
        name = next(self._names)
        self._known[key] = len(self.ops)
        self.ops.append(Op(name, op, args, dtype, spans))
        if op == "const":
            self._numbers[name] = args[0]
        elif op == "bounds":
            self.limits[name] = args[1]
        return name

    def _neutral(self, op: str, args: tuple[Any, ...]) -> str | None:
        """The operand that the op gives back bit for bit, if it does: x * 1, x / 1, x - 0, where(c, x, x)."""
        if op == "where":
            return args[1] if args[1] == args[2] else None
        neutral = _NEUTRAL.get(op)
        if neutral is None:
            return None
        if _is(self._numbers.get(args[1]), neutral):
            return args[0]
        return args[1] if op == "mul" and _is(self._numbers.get(args[0]), 1) else None

    def store(
        self, storage: str, index: Expr, value: str, dtype: str, spans: tuple[Span, ...], *update: str
    ) -> None:  # fmt: skip
        self.ops.append(Op(next(self._names), "store", (storage, index, value, *update), dtype, spans))


def translate(
    scope: Scope, ops: Iterable[Op], mapping: Mapping[str, Expr], resolve: Resolve, names: dict[str, str],
    *, exact: bool = False,
) -> None:  # fmt: skip
    """Appends ``ops`` to the scope with axes replaced by ``mapping`` and loads answered by ``resolve``.

    ``names`` maps the ops' own names to the scope's and grows. Stores are left out. ``exact``: the ops are a
    conversion that the user sees, so what it converts from is rounded as eager has it, as is what is compared.
    """
    ops = tuple(ops)
    compared = {a for o in ops if not _DISCRETE.isdisjoint((o.op, *o.args[:1])) for a in o.operands()}
    for op in ops:
        if op.op == "store" or op.name in names:
            continue
        names[op.name] = _translated(scope, translated(op, mapping, names), resolve, exact or op.name in compared)


def _translated(scope: Scope, op: Op, resolve: Resolve, exact: bool) -> str:
    """The scope's value of an op that is in the scope's terms."""
    if op.op == "load":
        return resolve(scope, op.args[0], op.index, op)
    if op.op == "index":
        known = indirect_names(op.index)
        if len(known) == 1 and op.index == value_symbol(known[0]):
            return known[0]
    elif op.op == "cast" and not exact:
        source, dtype = scope.unrounded.get(op.args[0], ("", ""))
        if dtype == op.dtype:
            return source
    return scope.emit(op.op, op.args, op.dtype, op.spans)


def translated(op: Op, mapping: Mapping[str, Expr], names: Mapping[str, str] = MappingProxyType({})) -> Op:
    """``op`` with other axes, and other names for values."""
    value = (lambda n: names.get(n, n)) if names else None
    return op.mapped(value=value, index=(lambda e: substitute(e, mapping)) if mapping else None)


def remember_unrounded(scope: Scope, ops: Iterable[Op], value: str, names: Mapping[str, str]) -> None:
    """Notes that the value of a loop is a cast to half precision that fused consumers need not see."""
    for op in ops:
        if op.name == value and op.op == "cast" and op.dtype in _HALVES:
            dtype = next((o.dtype for o in ops if o.name == op.args[0]), "")
            if dtype == "f32":
                scope.unrounded[names[value]] = (names[op.args[0]], dtype)


def unrounded(scope: Scope, value: str, op: Op) -> str:
    """``value`` (f32) in the place of ``op``, which loads it as it was stored."""
    if op.dtype == "f32":
        return value
    name = scope.emit("cast", (value,), op.dtype, op.spans)
    if op.dtype in _HALVES:
        scope.unrounded[name] = (value, "f32")
    return name


def without_dead(phases: list[list[Op]]) -> list[list[Op]]:
    """The phases' ops that a store needs, in order."""
    needed: set[str] = set()
    out: list[list[Op]] = []
    for body in reversed(phases):
        kept: list[Op] = []
        for op in reversed(body):
            if op.op == "store" or op.name in needed:
                needed.update(op.operands())
                kept.append(op)
        out.append(kept[::-1])
    return out[::-1]
