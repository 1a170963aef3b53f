"""Kernels whose points read much of what their neighbours read: windows of convolutions and pools.

One program computes several neighbours along an axis, so that what they have in common is read, and computed, once. That axis
is not the one along which memory is contiguous: there, threads that lie beside each other read what lies beside each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
from sympy import Expr

from ....ir.affine import extremes, linear, substitute
from ....ir.loops import Axis, Graph, Kernel, Op, Phase, indirect_names
from ...expressions import names_in

LOADS = 8  # of a point, from which on neighbours may have many in common
MOST_LOADS = 112  # of a program
GAIN, ENOUGH = 0.75, 0.6  # part of the loads that is left at most, and from which on no other way is looked for
TIMES = (8, 4, 7, 6, 5, 3, 2)  # neighbours of a program: many save most, and powers of two divide most sizes
THREADS = 256  # of a multiprocessor, that should have a program each


def joined(kernel: Kernel, graph: Graph) -> Kernel:
    """``kernel``, each of whose points is several neighbours of before, where that saves loads; else as it is."""
    if any(p.axes for p in kernel.phases) or not _is_plain(kernel):
        return kernel
    loads = {o.args[:2] for o in kernel.ops() if o.op == "load"}
    total = sympy.Mul(*(a.size for a in kernel.axes))
    if len(loads) < LOADS or not all(a.size.is_Integer for a in kernel.axes):
        return kernel
    best, least = kernel, GAIN
    for axis in reversed(kernel.axes):
        if _is_contiguous(kernel, axis):
            continue
        for times in TIMES:
            if int(axis.size) % times or int(total) // times < THREADS * graph.card.processors:
                continue
            found = _joined(kernel, axis, times)
            left = len({o.args[:2] for o in found.ops() if o.op == "load"})
            if left <= MOST_LOADS and left < least * times * len(loads):
                best, least = found, left / (times * len(loads))
                if least <= ENOUGH:
                    return best
    return best


def _is_plain(kernel: Kernel) -> bool:
    """Whether points can be computed in any order: each stores what only it does, and reads nothing that another stores."""
    written = set(kernel.writes())
    return all(
        o.op not in ("bounds", "random")
        and not o.update
        and not (o.op == "load" and (o.args[0] in written or indirect_names(o.args[1])))
        for o in kernel.ops()
    )


def _is_contiguous(kernel: Kernel, axis: Axis) -> bool:
    """Whether some access steps by single elements along the axis."""
    for op in kernel.ops():
        if op.op in ("load", "store") and axis.name in names_in(op.args[1]):
            form = linear(sympy.sympify(op.args[1]), frozenset((axis.name,)))
            if form is not None and form.coefficient(axis.name) == 1:
                return True
    return False


def _joined(kernel: Kernel, axis: Axis, times: int) -> Kernel:
    axes = tuple(dataclasses.replace(a, size=a.size / times) if a is axis else a for a in kernel.axes)
    body = _Body({a.name: int(a.size) for a in axes})
    for turn in range(times):
        body.add(kernel.ops(), {axis.name: axis.symbol * times + turn}, f".{turn}" if turn else "")
    return dataclasses.replace(kernel, axes=axes, phases=(Phase((), tuple(_at_once(_used(body.ops)))),))


def _used(ops: list[Op]) -> list[Op]:
    """Those that stores need."""
    needed: set[str] = set()
    found: list[Op] = []
    for op in reversed(ops):
        if op.op == "store" or op.name in needed:
            needed.update(op.operands())
            found.append(op)
    return found[::-1]


def _at_once(ops: list[Op]) -> Iterator[Op]:
    """The ops, each as soon as there is what it needs: a load's value is used, and gone, before the next but one is there."""
    waits = {op.name: set(op.operands()) for op in ops}
    readers: dict[str, list[Op]] = {}
    for op in ops:
        for name in waits[op.name]:
            readers.setdefault(name, []).append(op)
    for first in ops:
        ready = [first] if first.op in ("load", "const", "index") else []
        while ready:
            op = ready.pop(0)
            yield op
            for reader in readers.get(op.name, ()):
                waits[reader.name].discard(op.name)
                if not waits[reader.name]:
                    ready.append(reader)


@dataclass
class _Body:
    """The ops of several points one after the other, each computed once; comparisons that are decided are left out."""

    sizes: Mapping[str, int]
    ops: list[Op] = field(default_factory=list)
    known: dict[Any, str] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)  # of whole numbers
    truths: dict[str, bool] = field(default_factory=dict)

    def add(self, body: Any, places: Mapping[str, Expr], suffix: str) -> None:
        names: dict[str, str] = {}
        for op in body:
            names[op.name] = self._op(op, names, places, suffix)

    def _op(self, op: Op, names: Mapping[str, str], places: Mapping[str, Expr], suffix: str) -> str:
        new = op.mapped(
            value=lambda n: names.get(n, n + suffix),
            index=lambda e: self._limited(substitute(sympy.sympify(e), places)),
        )
        if op.op == "store":
            self.ops.append(new)
            return new.name
        if (same := self._decided(new)) is not None:
            return same
        key = (new.op, repr(new.args) if new.op == "const" else new.args, new.dtype)  # 0.0 and -0.0 are equal
        if key not in self.known:
            self.known[key] = new.name
            self.ops.append(new)
            self._learn(new)
        return self.known[key]

    def _limited(self, e: Expr) -> Expr:
        """``e`` without limits that hold anyway. Others are not compared by sympy, which is slow."""
        if not e.args or not e.has(sympy.Max, sympy.Min):
            return e
        args: list[Expr] = [self._limited(a) for a in e.args]  # pyright: ignore[reportArgumentType]
        if not isinstance(e, (sympy.Max, sympy.Min)):
            return e.func(*args)
        first, second = (self._range(a) for a in args) if len(args) == 2 else (None, None)
        if first is not None and second is not None:
            (low, high), (least, most) = first, second
            largest = isinstance(e, sympy.Max)
            if low >= most or high <= least:
                return args[0] if (low >= most) == largest else args[1]
        return e.func(*args, evaluate=False)

    def _range(self, e: Expr) -> tuple[int, int] | None:
        try:
            return extremes(e, self.sizes, {})
        except KeyError:
            return None

    def _learn(self, op: Op) -> None:
        if op.op == "index":
            found = self._range(sympy.sympify(op.args[0]))
        elif op.op == "const" and op.dtype in ("i32", "i64"):
            found = (op.args[0], op.args[0])
        else:
            found = self.ranges.get(op.args[0]) if op.op == "cast" and op.dtype in ("i32", "i64") else None
        if found is not None:
            self.ranges[op.name] = found

    def _decided(self, op: Op) -> str | None:
        """The name of a value that is the op's anyway; notes comparisons that hold or fail at all points."""
        args = op.args
        if op.op in ("ge", "lt") and all(a in self.ranges for a in args):
            (low, high), (least, most) = (self.ranges[a] for a in args)
            never, always = (high < least, low >= most) if op.op == "ge" else (low >= most, high < least)
            if never or always:
                self.truths[op.name] = always
        elif op.op == "and":
            first, second = args
            if self.truths.get(first) is True or self.truths.get(second) is False:
                return second
            if self.truths.get(second) is True or self.truths.get(first) is False:
                return first
        elif op.op == "where" and args[0] in self.truths:
            return args[1] if self.truths[args[0]] else args[2]
        return None
