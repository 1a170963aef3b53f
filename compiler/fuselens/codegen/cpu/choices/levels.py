"""Which loop of a phase an operation is printed in, and what is known of its value before it is printed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ....ir.loops import Op
from ...expressions import names_in
from ...nest import index_of
from ..vectors.parts import REGISTER


@dataclass(frozen=True, slots=True)
class Levels:
    """``of``: by op, the depth of the loop that it belongs to, 0 for before all of them. ``varying``: ops whose lanes differ."""

    of: Mapping[str, int]
    varying: frozenset[str]


def choose(
    ops: Sequence[Op], loops: Sequence[str], vector: str, differs: Callable[[str], bool], changes: Callable[[str], bool],
    *, innermost: bool = False,
) -> Levels:  # fmt: skip
    """Each op goes to the outermost loop where its operands exist.

    ``loops`` are axes, from the outermost, and ``vector`` is the axis that vectors run along. ``differs`` says whether the
    lanes of an earlier phase's value do, ``changes`` whether the kernel writes to a storage. ``innermost`` asks for the
    innermost loop at least.
    """
    depth = {axis: k + 1 for k, axis in enumerate(loops)}
    of: dict[str, int] = {}
    varying: set[str] = set()
    for op in ops:
        index = index_of(op)
        used = names_in(index) if index is not None else frozenset()
        operands = op.operands()
        if op.op == "scan" or vector in used or any(n in varying if n in of else differs(n) for n in operands):
            varying.add(op.name)
        in_order = op.op in ("store", "reduce", "scan") or (op.op == "load" and changes(op.args[0]))
        if innermost or in_order:
            of[op.name] = len(loops)
        else:
            of[op.name] = max((0, *(of.get(n, 0) for n in operands), *(depth.get(n, 0) for n in used)))
    return Levels(of, frozenset(varying))


def divisors(ops: Sequence[Op], levels: Mapping[str, int], loops: int, known: Collection[str]) -> tuple[str, ...]:
    """What the innermost of the loops divides by and does not change, but for those whose inverses are ``known``."""
    found = [
        op.args[1] for op in ops
        if op.op == "div" and REGISTER[op.dtype] == "f32" and levels[op.name] == loops and isinstance(op.args[1], str)
    ]  # fmt: skip
    return tuple(n for n in dict.fromkeys(found) if levels.get(n, 0) < loops and n not in known)
