"""Units: the pieces of a kernel that threads share, and the loops over them."""

from __future__ import annotations

from collections.abc import Callable

import sympy
from sympy import Expr

from ...ir.loops import Axis
from ..expressions import print_factor, print_index
from .body import ROWS, UNROLL
from .choices.effort import HEAVY
from .tiles import TileWriter

PIECE = 4096  # elements of a row that one thread takes at a time where rows are shared between threads
STRIP = 3 << 12  # bytes of all running results of a strip: part of a small first-level cache


class UnitWriter(TileWriter):
    """Prints the loop over a kernel's units, of each layout."""

    def _units(self) -> tuple[str, Callable[[bool], None]]:
        """The number of units (C++ text) and a function that prints their loop."""
        layout, vector = self.plan.layout, self.plan.vector
        if self.plan.tile:
            return self._tile_units(), lambda _: self._each_tile()
        outer = [a for a in self.kernel.axes if a.name != vector]
        rows = sympy.Mul(*(a.size for a in outer))
        row_text = print_factor(rows, self.names)
        if layout == "rows" or not vector:
            return ("1" if not outer else row_text), lambda loop: self._each_unit(outer, loop)
        size = self.nest.size(vector)
        if layout == "columns" and self._in_strips(size):
            wide = UNROLL * self.width
            blocks = self._blocks(size, UNROLL)
            text = f"({blocks})" if " " in blocks else blocks
            return (f"{row_text} * {text}" if outer else blocks), lambda _: self._strips(outer, vector, text, wide)
        if layout == "columns":
            blocks = self._blocks(size, self._side_by_side())
            text = f"({blocks})" if " " in blocks else blocks
            return (f"{row_text} * {text}" if outer else blocks), lambda loop: self._column_units(outer, vector, text)
        if layout == "sweep":
            blocks = self._blocks(size)
            text = f"({blocks})" if " " in blocks else blocks
            return (f"{row_text} * {text}" if outer else blocks), lambda loop: self._sweep(outer, vector, text)
        if not outer:
            count = self._side_by_side_in(tuple(self.kernel.ops()), size, self.width)
            return self._blocks(size, count), lambda loop: self._one_row(vector, count * self.width)
        if size.is_Integer and int(size) <= 2 * PIECE:
            return row_text, lambda loop: self._each_unit(outer, loop)
        pieces = f"(({print_factor(size, self.names)} + {PIECE - 1}) / {PIECE})"
        return f"{row_text} * {pieces}", lambda loop: self._pieces(outer, vector, pieces)

    def _blocks(self, size: Expr, count: int = 1) -> str:
        """How many times ``count`` vectors hold ``size`` elements."""
        wide = count * self.width
        if size.is_Integer:
            return str(-(-int(size) // wide))
        text = print_factor(size, self.names)
        return f"({text} + {wide - 1}) / {wide}" if wide > 1 else text

    def _each_unit(self, outer: list[Axis], loop: bool) -> None:
        if loop:
            self.out.open("for (long unit = begin; unit < end; ++unit) {")
            self._decode(outer, "unit")
        self._phases()
        if loop:
            self.out.close()

    def _one_row(self, vector: str, quantum: int) -> None:
        size = print_index(self.nest.size(vector), self.names)
        out = self.out
        step = f" * {quantum}" if quantum > 1 else ""
        out.put(f"const long n = {size};")
        out.put(f"const long lo = begin{step}, hi = end{step} < n ? end{step} : n;")
        self._phases(("lo", "hi"), quantum)

    def _sweep(self, outer: list[Axis], vector: str, blocks: str) -> None:
        """Rows of vectors, of which a thread has some neighbours: for each of a row's updates, all its vectors."""
        out, w = self.out, self.width
        size = print_factor(self.nest.size(vector), self.names)
        out.open(f"for (long row = begin / {blocks}; row * {blocks} < end; ++row) {{")
        out.put(f"const long first = row * {blocks};")
        out.put(f"const long lo = begin > first ? (begin - first) * {w} : 0;")
        out.put(f"const long hi = (end - first) * {w} < {size} ? (end - first) * {w} : {size};")
        self._decode(outer, "row")
        self._phases(("lo", "hi"))
        out.close()

    def _pieces(self, outer: list[Axis], vector: str, pieces: str) -> None:
        out = self.out
        size = print_factor(self.nest.size(vector), self.names)
        out.open("for (long unit = begin; unit < end; ++unit) {")
        out.put(f"const long row = unit / {pieces}, lo = unit % {pieces} * {PIECE};")
        out.put(f"const long hi = lo + {PIECE} < {size} ? lo + {PIECE} : {size};")
        self._decode(outer, "row")
        self._phases(("lo", "hi"), PIECE)
        out.close()

    def _in_strips(self, size: Expr) -> bool:
        """Whether columns are many enough to walk memory row by row, with running results in the first-level cache."""
        loops = [p for p in self.kernel.phases if p.axes]
        body = loops[0].body
        long = self.nest.hint(size) > 2 * UNROLL * self.width and self.nest.hint(loops[0].axes[-1].size) >= 2 * ROWS
        return (
            len(loops) == 1 and long and self.width > 1 and not self.tuning.unroll
            and any(o.op == "reduce" for o in body)
            and not any(o.op == "scan" or o.update or o.op in HEAVY for o in self.kernel.ops())
        )  # fmt: skip

    def _strips(self, outer: list[Axis], vector: str, blocks: str, wide: int) -> None:
        """A thread's columns in strips, which end where rows do. A column's result does not depend on their width."""
        out, name, w = self.out, self.names[vector], self.width
        self.across = self._strip_width()
        size = self.nest.size(vector)
        self.unit.lane_free.add("min_max")
        out.open("for (long unit = begin; unit < end;) {")
        self._first_column(outer, f"{name}_first", blocks, wide)
        out.put(f"const long given = least({name}_first + (end - unit) * {wide}, {print_factor(size, self.names)});")
        out.put(f"const long stop = least(given, {name}_first + {self.across * w});")
        out.put(f"const long count = (stop - {name}_first + {w - 1}) / {w};")
        self.strip = size, "stop"
        self._phases()
        self.strip, self.across = None, 1
        out.put(f"unit += (stop - {name}_first + {wide - 1}) / {wide};")
        out.close()

    def _strip_width(self) -> int:
        """How many vectors a strip has, at most."""
        folds = [o for o in self.kernel.ops() if o.op == "reduce"]
        arrays = max(1, sum(3 if o.args[0] == "sum" else 2 for o in folds))
        return max(UNROLL, STRIP // (arrays * self.width * (8 if self.wide else 4)) // UNROLL * UNROLL)

    def _first_column(self, outer: list[Axis], first: str, blocks: str, wide: int) -> None:
        """Declares where a unit of ``wide`` columns starts, and the points of the outer axes."""
        if outer:
            self.out.put(f"const long row = unit / {blocks}, {first} = unit % {blocks} * {wide};")
            self._decode(outer, "row")
        else:
            self.out.put(f"const long {first} = unit * {wide};")

    def _side_by_side(self) -> int:
        """How many vectors a unit of a columns kernel takes: short bodies read whole cache lines, and more."""
        heavy = any(o.op in HEAVY for o in self.kernel.ops())
        size = self.nest.size(self.plan.vector)
        count = self.tuning.unroll or (2 if heavy else UNROLL)
        return count if self.nest.hint(size) >= count * self.width and self.width > 1 else 1

    def _column_units(self, outer: list[Axis], vector: str, blocks: str) -> None:
        out, name = self.out, self.names[vector]
        size, count = self.nest.size(vector), self._side_by_side()
        hi = print_factor(size, self.names)
        first = f"{name}_first" if count > 1 else name
        out.open("for (long unit = begin; unit < end; ++unit) {")
        self._first_column(outer, first, blocks, count * self.width)
        if count == 1:
            self._left(size, name, hi)
            self._phases()
        else:
            even = size.is_Integer and int(size) % (count * self.width) == 0
            if not even:
                out.open(f"if ({first} + {count * self.width} <= {hi}) {{")
            self.across, self.left = count, str(self.width)
            self._phases()
            self.across = 1
            if not even:
                out.close("} else {")
                out.open(f"  for (long {name} = {first}; {name} < {hi}; {name} += {self.width}) {{")
                self._left(size, name, hi)
                self._phases()
                out.close("  }")
                out.put("}")
        out.close()
