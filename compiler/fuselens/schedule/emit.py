"""Writing bodies: ops of several loops re-expressed over one iteration space, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    *, folded: Callable[[Op, str], str] | None = None, exact: bool = False,
) -> None:  # fmt: skip
    """Appends ``ops`` to the scope with axes replaced by ``mapping`` and loads answered by ``resolve``.

    ``names`` maps the ops' own names to the scope's and grows. Stores are left out; ``folded`` answers reduces. ``exact``:
    the ops are a conversion that the user sees, so what it converts from is rounded as eager has it, as is what is
    compared.
    """
    ops = tuple(ops)
    compared = {a for o in ops if not _DISCRETE.isdisjoint((o.op, *o.args[:1])) for a in o.operands()}
    for op in ops:
        if op.op == "store" or op.name in names:
            continue
        if op.op == "load":
            names[op.name] = resolve(scope, op.args[0], translated(op.args[1], mapping, names), op)
        elif op.op == "index":
            index = translated(op.args[0], mapping, names)
            known = indirect_names(index)
            whole = len(known) == 1 and index == value_symbol(known[0])
            names[op.name] = known[0] if whole else scope.emit("index", (index,), op.dtype, op.spans)
        elif op.op == "random":
            first, second, stream, index = op.args
            args = (names[first], names[second], stream, translated(index, mapping, names))
            names[op.name] = scope.emit("random", args, op.dtype, op.spans)
        elif op.op == "const":
            names[op.name] = scope.emit("const", op.args, op.dtype, op.spans)
        elif op.op == "reduce":
            value = names[op.args[1]]
            names[op.name] = (
                folded(op, value) if folded else scope.emit("reduce", (op.args[0], value), op.dtype, op.spans)
            )
        elif op.op == "scan":
            names[op.name] = scope.emit("scan", (op.args[0], names[op.args[1]]), op.dtype, op.spans)
        elif op.op == "cast":
            value = names[op.args[0]]
            source, dtype = scope.unrounded.get(value, ("", ""))
            names[op.name] = (
                source
                if dtype == op.dtype and not exact and op.name not in compared
                else scope.emit("cast", (value,), op.dtype, op.spans)
            )
        else:
            args = tuple(names[a] if isinstance(a, str) else a for a in op.args)
            names[op.name] = scope.emit(op.op, args, op.dtype, op.spans)


def translated(index: Expr, mapping: Mapping[str, Expr], names: Mapping[str, str]) -> Expr:
    """An index expression over the scope's values and axes."""
    indirect = indirect_names(index)
    if indirect:  # first: the mapping may bring values of the scope's own
        index = index.xreplace({value_symbol(n): value_symbol(names[n]) for n in indirect})  # pyright: ignore
    return substitute(index, mapping) if mapping else index


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
