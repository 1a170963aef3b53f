"""Prints scans: their state before the loops, and one step per vector inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.loops import Op
from .scalar_ops import literal
from .vectors.parts import REGISTER
from .vectors.scan_parts import state_type


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan under way: the C++ type of its state, its initial value, and the variables that hold it."""

    op: Op
    kind: str
    state: str
    none: str  # the state of nothing
    carry: str
    into: str  # the carry that the body now being printed updates
    before: str = ""  # the state of what lies before the chunk that a thread works at

    def value(self, state: str) -> str:
        return f"result({state})" if self.kind == "logsumexp" else f"{state}.v"


def identity(kind: str, dtype: str) -> str:
    """The C++ literal that leaves what it is combined with as it is."""
    if kind in ("sum", "prod"):
        return literal(0 if kind == "sum" else 1, dtype)
    low = kind in ("max", "argmax", "logsumexp")
    if dtype in ("f64", "f32", "f16", "bf16"):
        return literal(float("-inf") if low else float("inf"), dtype)
    if dtype == "u8":
        return literal(0 if low else 255, dtype)
    bits = {"i64": 64, "i32": 32, "i16": 16, "i8": 8}[dtype]
    return literal(-(2 ** (bits - 1)) if low else 2 ** (bits - 1) - 1, dtype)


def started(op: Op, dtype: str, width: int, splat: object, name: str) -> Scan:
    """The scan ``op`` of values of ``dtype``. ``splat(register, text)`` prints a vector of equal lanes."""
    kind, register = op.args[0], REGISTER[dtype]
    fields = [splat(register, identity(kind, dtype))]  # type: ignore[operator]
    if kind == "logsumexp":
        fields.append(splat("f64", "0.0"))  # type: ignore[operator]
    return Scan(op, kind, state_type(kind, register, width), f"{{ {', '.join(fields)} }}", name, name)


def independent(body: Sequence[Op]) -> bool:
    """Whether no scan of the body runs over what another one gives: then the chunks of a row have totals of their own."""
    after: set[str] = set()
    for op in body:
        if any(n in after for n in op.operands()):
            if op.op == "scan":
                return False
            after.add(op.name)
        elif op.op == "scan":
            after.add(op.name)
    return True


def needed(body: Sequence[Op]) -> tuple[Op, ...]:
    """What the scans of a body are made from, themselves included."""
    wanted: set[str] = set()
    kept: list[Op] = []
    for op in reversed(body):
        if op.op == "scan" or op.name in wanted:
            wanted.update(op.operands())
            kept.append(op)
    return tuple(reversed(kept))
