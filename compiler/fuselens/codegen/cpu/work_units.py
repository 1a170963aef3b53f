"""Units of work: the loops over the pieces of a kernel that threads share, chosen by :mod:`.choices.units`."""

from __future__ import annotations

import dataclasses
import math

import sympy

from ..expressions import print_factor, print_index
from .body import BodyWriter
from .choices.tiles import TilePlan
from .choices.units import PIECE, Units, strip_width
from .places import Place
from .tiles import TileWriter


class UnitWriter:
    """Prints the loop over a kernel's units, whichever they are."""

    def __init__(self, bodies: BodyWriter, units: Units, tiles: TilePlan | None) -> None:
        self.bodies, self.units = bodies, units
        self.values, self.plan, self.out, self.width = bodies.values, bodies.plan, bodies.out, bodies.width
        self.tiles = TileWriter(bodies, tiles) if tiles is not None else None
        self.blocks = self._blocks()  # units of one point of the outer axes, as C++

    def _blocks(self) -> str:
        way = self.units.way
        if way in ("points", "tiles"):
            return "1"
        size, wide = self.plan.nest.size(self.plan.vector), self.units.vectors * self.width
        if way == "pieces":
            wide = PIECE
        elif size.is_Integer:
            return str(-(-int(size) // wide))
        text = print_factor(size, self.values.names)
        return f"({text} + {wide - 1}) / {wide}" if wide > 1 else text

    def count(self) -> str:
        """The number of units, as C++."""
        rows = print_factor(sympy.Mul(*(a.size for a in self.units.outer)), self.values.names)
        if self.tiles is not None:
            counts = [rows, *(self.tiles.count(a) for a in (self.tiles.across, self.tiles.along))]
            return str(math.prod(map(int, counts))) if all(c.isdigit() for c in counts) else " * ".join(counts)
        if self.units.way == "points":
            return rows if self.units.outer else "1"
        return f"{rows} * {self._factor()}" if self.units.outer else self.blocks

    def _factor(self) -> str:
        """That of one point, as it stands in a product."""
        return f"({self.blocks})" if " " in self.blocks else self.blocks

    def write(self, at: Place, *, several: bool) -> None:
        """The loop over the units from ``begin`` to ``end``; without ``several``, there is one."""
        if self.tiles is not None:
            self.tiles.each_tile(self.units.outer, at)
        elif self.units.way == "points":
            self._points(at, several=several)
        else:
            {
                "strips": self._strips, "columns": self._columns, "sweep": self._sweep, "row": self._row,
                "pieces": self._pieces,
            }[self.units.way](at)  # fmt: skip

    def _points(self, at: Place, *, several: bool) -> None:
        if several:
            self.out.open("for (long unit = begin; unit < end; ++unit) {")
            self.values.decode(self.units.outer, "unit")
        self.bodies.phases(at)
        if several:
            self.out.close()

    def _row(self, at: Place) -> None:
        quantum = self.units.vectors * self.width
        step = f" * {quantum}" if quantum > 1 else ""
        self.out.put(f"const long n = {print_index(self.plan.nest.size(self.plan.vector), self.values.names)};")
        self.out.put(f"const long lo = begin{step}, hi = end{step} < n ? end{step} : n;")
        self.bodies.phases(at, ("lo", "hi"), quantum)

    def _sweep(self, at: Place) -> None:
        """Rows of vectors, of which a thread has some neighbours: for each of a row's updates, all its vectors."""
        out, w, blocks, size = self.out, self.width, self._factor(), self.values.size(self.plan.vector)
        out.open(f"for (long row = begin / {blocks}; row * {blocks} < end; ++row) {{")
        out.put(f"const long first = row * {blocks};")
        out.put(f"const long lo = begin > first ? (begin - first) * {w} : 0;")
        out.put(f"const long hi = (end - first) * {w} < {size} ? (end - first) * {w} : {size};")
        self.values.decode(self.units.outer, "row")
        self.bodies.phases(at, ("lo", "hi"))
        out.close()

    def _pieces(self, at: Place) -> None:
        out, pieces, size = self.out, self._factor(), self.values.size(self.plan.vector)
        out.open("for (long unit = begin; unit < end; ++unit) {")
        out.put(f"const long row = unit / {pieces}, lo = unit % {pieces} * {PIECE};")
        out.put(f"const long hi = lo + {PIECE} < {size} ? lo + {PIECE} : {size};")
        self.values.decode(self.units.outer, "row")
        self.bodies.phases(at, ("lo", "hi"), PIECE)
        out.close()

    def _strips(self, at: Place) -> None:
        """A thread's columns in strips, which end where rows do. A column's result does not depend on their width."""
        vector, w, wide = self.plan.vector, self.width, self.units.vectors * self.width
        out, name, across = self.out, self.values.names[vector], strip_width(self.plan)
        self.bodies.unit.lane_free.add("min_max")
        out.open("for (long unit = begin; unit < end;) {")
        self._first_column(f"{name}_first", wide)
        out.put(f"const long given = least({name}_first + (end - unit) * {wide}, {self.values.size(vector)});")
        out.put(f"const long stop = least(given, {name}_first + {across * w});")
        out.put(f"const long count = (stop - {name}_first + {w - 1}) / {w};")
        self.bodies.phases(dataclasses.replace(at, across=across, strip=(self.plan.nest.size(vector), "stop")))
        out.put(f"unit += (stop - {name}_first + {wide - 1}) / {wide};")
        out.close()

    def _first_column(self, first: str, wide: int) -> None:
        """Declares where a unit of ``wide`` columns starts, and the points of the outer axes."""
        if self.units.outer:
            blocks = self._factor()
            self.out.put(f"const long row = unit / {blocks}, {first} = unit % {blocks} * {wide};")
            self.values.decode(self.units.outer, "row")
        else:
            self.out.put(f"const long {first} = unit * {wide};")

    def _columns(self, at: Place) -> None:
        out, vector, count, wide = self.out, self.plan.vector, self.units.vectors, self.units.vectors * self.width
        name, size, hi = self.values.names[vector], self.plan.nest.size(vector), self.values.size(vector)
        first = f"{name}_first" if count > 1 else name
        out.open("for (long unit = begin; unit < end; ++unit) {")
        self._first_column(first, wide)
        if count == 1:
            self.bodies.phases(self.values.left(at, size, name, hi))
        else:
            even = size.is_Integer and int(size) % wide == 0
            if not even:
                out.open(f"if ({first} + {wide} <= {hi}) {{")
            self.bodies.phases(dataclasses.replace(at, across=count, left=str(self.width)))
            if not even:
                out.close("} else {")
                out.open(f"  for (long {name} = {first}; {name} < {hi}; {name} += {self.width}) {{")
                self.bodies.phases(self.values.left(at, size, name, hi))
                out.close("  }")
                out.put("}")
        out.close()
