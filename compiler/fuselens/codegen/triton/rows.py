"""Programs over blocks of rows: prints what :mod:`.choices.row_plan` has chosen, phase after phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import sympy
from sympy import Expr

from ...ir.loops import Kernel, Op, Phase
from ..expressions import linear, names_in
from ..nest import index_of
from .choices.row_plan import RowPlan, Walk
from .ends import Ends
from .folds import Columns, Folds
from .operations import Operations
from .place import Place


class Rows:
    """Writes a program that computes some rows. ``positions`` are the numbers of each phase's columns before axes were merged."""

    def __init__(self, operations: Operations, plan: RowPlan, positions: Sequence[Expr]) -> None:
        self.operations, self.plan, self.positions = operations, plan, positions
        self.out = operations.out
        points = frozenset(a.name for a in operations.kernel.axes)
        self.place = Place(("XBLOCK", "1"), (points, frozenset()), "" if plan.exact else "xmask")

    def write(self) -> None:
        operations, plan = self.operations, self.plan
        self._open()
        operations.straight(plan.early, self.place)
        early = {o.name for o in plan.early}
        stored: set[str] = set()
        for number, phase in enumerate(plan.phases):
            if stored & {o.args[0] for o in phase.body if o.op == "load"}:
                self.out.put("tl.debug_barrier()  # other threads of this program wrote what is read next")
                stored.clear()
            if phase.axes:
                self._phase(number, phase)
            else:
                operations.straight((o for o in phase.body if o.name not in early), self.place)
            stored |= {o.args[0] for o in phase.body if o.op == "store"}
        if plan.blocks.parts > 1:
            operations.need("leave_cluster")
            self.out.put("leave_cluster()")

    def _open(self) -> None:
        """Declares which points a program has."""
        out, parts, block = self.out, self.plan.blocks.parts, self.operations.program()
        if parts > 1:
            out.put(f"part = tl.program_id(0) % {parts}  # of a row, which the programs of a cluster share")
            block = f"{block} // {parts}"
        out.put(f"x = {block} * XBLOCK + tl.arange(0, XBLOCK)[:, None]")
        if not self.plan.exact:
            out.put(f"xmask = x < {self.operations.size(self.plan.points)}")
        self.operations.decode(self.operations.kernel.axes, "x")

    def _phase(self, number: int, phase: Phase) -> None:
        """A phase over columns: at once where all of a row is in registers, else in a loop with running results."""
        operations, position, walk = self.operations, self.positions[number], self.plan.walks[number]
        columns = self._columns(number, phase)
        inside = _inside(phase, operations.kernel)
        body = [op for op in phase.body if op.name in inside]
        operations.straight((op for op in phase.body if op.name not in inside), self.place)
        place = self._at(phase, columns, walk)
        folds = Folds(operations, phase, columns)
        if self.plan.persistent:
            self._at_once(phase, columns)
            self._body(body, place, folds, position)
            return
        folds.start()
        place = dataclasses.replace(place, held=self._open_blocks(phase, columns, walk))
        self._body(body, place, folds, position)
        self.out.close("")
        if columns.division.ends is not None:
            self.out.close("")
        folds.finish()

    def _columns(self, number: int, phase: Phase) -> Columns:
        division = self.plan.divisions[number]
        assert division is not None
        name = self.operations.claim(f"column{number or ''}")
        count = sympy.Mul(*(a.size for a in phase.axes))
        places = "i32" if count.is_Integer and int(count) < 2**31 else "i64"
        size = self.operations.size(count)
        return Columns(division, f"RBLOCK{number}", name, size, self.plan.blocks.parts, places)

    def _at(self, phase: Phase, columns: Columns, walk: Walk) -> Place:
        """What is of the program's points and a block of columns."""
        points, _ = self.place.axes
        return Place(
            ("XBLOCK", columns.block), (points, frozenset(a.name for a in phase.axes)),
            " & ".join(m for m in (self.place.mask, columns.mask) if m),
            policies=walk.policies, stores_first=self.plan.stores_first,
        )  # fmt: skip

    def _body(self, body: Iterable[Op], place: Place, folds: Folds, position: Expr) -> None:
        """What is computed for each block of columns."""
        for op in body:
            if op.op == "scan":
                folds.scan(op, carried=not self.plan.persistent)
            elif op.op != "reduce":
                self.operations.op(op, place)
            elif self.plan.persistent:
                folds.at_once(op, position)
            else:
                folds.add(op, position, place.held)

    def _at_once(self, phase: Phase, columns: Columns) -> None:
        """Declares all columns that a program has."""
        r, each, division = columns.name, self._each(phase, columns.block), columns.division
        first = f"part * {division.share} + " if columns.parts > 1 else ""
        self.out.put(f"{r} = {first}{each}")
        if not division.exact:
            end = f" & ({each} < {division.share})" if division.share < division.width else ""
            self.out.put(f"{r}mask = ({r} < {columns.size}){end}")
        self.operations.decode(phase.axes, r)

    def _open_blocks(self, phase: Phase, columns: Columns, walk: Walk) -> dict[Expr, str]:
        """The loop over blocks of columns. Returns indices that variables hold in it."""
        out, r, block, size, ends = self.out, columns.name, columns.block, columns.size, columns.division.ends
        each = self._each(phase, block)
        if ends is not None:
            self._open_parts(ends, columns, each, walk)
            self.operations.decode(phase.axes, r)
            return self._held(ends, r) if ends.multiple > 1 else {}
        out.open(f"for start in range(0, {size}, {block}):")
        start = f"({size} - 1) // {block} * {block} - start" if walk.backward else "start"
        out.put(f"{r} = {start} + {each}")
        if not columns.division.exact:
            out.put(f"{r}mask = {r} < {size}")
        self.operations.decode(phase.axes, r)
        return {}

    def _each(self, phase: Phase, block: str) -> str:
        """The numbers of a block's columns, of 64 bits where elements of a row may lie so far apart."""
        text = f"tl.arange(0, {block})[None, :]"
        return f"{text}.to(tl.int64)" if self.operations.wide and any(_is_far(o, phase) for o in phase.body) else text

    def _open_parts(self, parts: Ends, columns: Columns, each: str, walk: Walk) -> None:
        """The loops over a row of which whole blocks come first, and both ends after them."""
        out, multiple, r, block = self.out, parts.multiple, columns.name, columns.block
        if multiple > 1:
            out.put(f"{r}first = ({multiple} - ({self.operations.index(parts.first)}) % {multiple}) % {multiple}")
        out.open("for rest in tl.static_range(2):  # whole blocks, then both ends of the row")
        out.open(f"for start in range(0, {parts.rest} if rest else {parts.whole}, {block}):")
        start = f"(start if rest else {parts.whole} - {block} - start)" if walk.backward else "start"
        out.put(f"{r} = {start} + {each}")
        out.put(f"{r}mask = {r} < {parts.rest} if rest else tl.full([1, {block}], True, tl.int1)")
        if multiple > 1:
            after = f"tl.where({r} < {r}first, {r}, {r} + {parts.whole})"
            out.put(f"{r} = {after} if rest else {r}first + {r}")
        else:
            out.put(f"{r} = {r} + {parts.whole} if rest else {r}")

    def _held(self, parts: Ends, r: str) -> dict[Expr, str]:
        """Says where elements lie, and what the compiler cannot see: at multiples of a vector's size."""
        index = self.operations.index(parts.index)
        self.out.put(f"{r}place = tl.multiple_of({index}, [1, 1 if rest else {parts.multiple}])")
        return {parts.index: f"{r}place"}


def _inside(phase: Phase, kernel: Kernel) -> set[str]:
    """Ops of the phase that depend on its axes (reduces and stores belong there too)."""
    own = {a.name for a in phase.axes}
    written = set(kernel.writes())
    inside: set[str] = set()
    for op in phase.body:
        index = index_of(op)
        depends = index is not None and bool(names_in(index) & own)
        if (
            depends
            or op.op in ("store", "reduce", "scan")
            or any(n in inside for n in op.operands())
            or (op.op == "load" and op.args[0] in written)
        ):
            inside.add(op.name)
    return inside


def _is_far(op: Op, phase: Phase) -> bool:
    """Whether the element that an op names may be 2^31 elements from that of another column. Symbolic sizes are wide already."""
    index = index_of(op)
    if index is None:
        return False
    form = linear(index, frozenset(a.name for a in phase.axes))
    steps = [form.coefficients.get(a.name, sympy.S.Zero) * a.size for a in phase.axes]
    return bool(form.tangled) or sum(abs(int(s)) for s in steps if s.is_Integer) >= 2**31
