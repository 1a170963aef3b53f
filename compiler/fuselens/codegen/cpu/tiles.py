"""Transposes through tiles: where some accesses are contiguous along the vectors and others along another axis.

Both axes are walked in tiles. What is read across the vectors is copied, transposed, to a tile on the stack before the
tile's points are computed, and what is written across them is collected there and copied behind. So memory is read and
written in runs of at least a cache line, and vectors are loaded and stored whole.

How large tiles are, and why, says :mod:`.choices.tiles`.
"""

from __future__ import annotations

import dataclasses

import sympy
from sympy import Expr

from ...ir.loops import Axis, indirect_names
from ..expressions import C, linear, print_factor, print_index
from .body import BodyWriter
from .choices.tiles import Crossing, TilePlan
from .places import Body, BodyLoop, Place
from .vectors.parts import C_TYPES


class TileWriter:
    """Prints kernels that have a plan with a tile axis."""

    def __init__(self, bodies: BodyWriter, tiles: TilePlan) -> None:
        self.bodies, self.tiles = bodies, tiles
        self.values, self.unit, self.out = bodies.values, bodies.unit, bodies.out
        self.across, self.along = bodies.plan.loops.tile, bodies.plan.vector  # axes
        self.tile_names = {c.op.name: self.values.claim(c.op.name, "_tile") for c in tiles.crossings.values()}

    def count(self, axis: str) -> str:
        """How many units lie along an axis, as C++."""
        size, edge = self.bodies.plan.nest.size(axis), self._unit_edge(axis)
        if size.is_Integer:
            return str(-(-int(size) // edge))
        return f"(({print_factor(size, self.values.names)} + {edge - 1}) / {edge})"

    def _unit_edge(self, axis: str) -> int:
        return self.tiles.unit_edge(axis == self.across)

    def each_tile(self, outer: tuple[Axis, ...], at: Place) -> None:
        """The loop over units, which are tiles or consist of them."""
        out, tiles = self.out, self.tiles
        self.unit.lane_free.add("min_max")
        out.open("for (long unit = begin; unit < end; ++unit) {")
        unit, first, stop = "unit", *(("unit", "stop") if tiles.small else ("edge", "end"))
        axes = (self.across, self.along) if tiles.side else (self.along, self.across)  # next is what is asked for ahead
        for axis in axes:
            name, count, edge = self.values.names[axis], self.count(axis), self._unit_edge(axis)
            out.put(f"const long {name}_{first} = {f'{unit} % {count} * {edge}' if count != '1' else 0};")
            unit = f"{unit} / {count}" if count != "1" else unit
            out.put(f"const long {name}_{stop} = least({name}_{first} + {edge}, {self.values.size(axis)});")
        if outer:
            out.put(f"const long row = {unit};")
            self.values.decode(outer, "row")
        if tiles.small:
            self._small_tiles(at)
        else:
            self._tile(at)
        out.close()

    def _small_tiles(self, at: Place) -> None:
        """The tiles of a unit. Those that are whole have loops of constant length."""
        out, names = self.out, self.values.names
        ends = (names[self.across], self.tiles.rows), (names[self.along], self.tiles.edge)
        self._fill_blocks()
        for name, edge in ends:
            first, stop = f"{name}_unit", f"{name}_stop"
            out.open(f"for (long {name}_edge = {first}; {name}_edge < {stop}; {name}_edge += {edge}) {{")
        out.open(f"if ({' && '.join(f'{name}_edge + {edge} <= {name}_stop' for name, edge in ends)}) {{")
        for name, edge in ends:
            out.put(f"const long {name}_end = {name}_edge + {edge};")
        self._tile(dataclasses.replace(at, whole=True))
        out.close("} else {")
        out.open("  {")
        for name, edge in ends:
            out.put(f"const long {name}_end = least({name}_edge + {edge}, {name}_stop);")
        self._tile(at)
        out.close("  }")
        out.put("}")
        for _ in ends:
            out.close()
        for crossing in self._crossings("store"):
            self._copy_block(crossing, to_memory=True)

    def _crossings(self, kind: str) -> list[Crossing]:
        """The loads or stores that go through blocks, if there are blocks."""
        return [c for c in self.tiles.crossings.values() if c.op.op == kind and self.tiles.side]

    def _fill_blocks(self) -> None:
        """Declares all blocks and fills those that are read."""
        for crossing in self.tiles.crossings.values() if self.tiles.side else ():
            elements = self.tiles.edge * self.tiles.pitch(crossing)
            block = f"{C_TYPES[crossing.dtype]} {self.tile_names[crossing.op.name]}_block[{elements}]"
            self.out.put(f"{block} __attribute__((aligned(64)));", crossing.op.spans)
            if crossing.op.op == "load":
                self._copy_block(crossing, to_memory=False)

    def _copy_block(self, crossing: Crossing, *, to_memory: bool) -> None:
        across, along = self.values.names[self.across], self.values.names[self.along]
        memory = self._memory(crossing, "_unit")
        block = f"{self.tile_names[crossing.op.name]}_block, {self.tiles.pitch(crossing)}"
        places = f"{memory}, {block}" if to_memory else f"{block}, {memory}"
        counts = f"{along}_stop - {along}_unit, {across}_stop - {across}_unit"
        streams = crossing.op.name in self.bodies.plan.streams
        part = f"stream_rows{self.unit.isa.streams}" if streams else "copy_rows"
        self.unit.lane_free.add(part)
        self.out.put(f"{part}({places}, {counts});", crossing.op.spans)

    def _memory(self, crossing: Crossing, start: str) -> str:
        """Where a crossing's elements lie from the ``start`` of a unit or tile on, and the step between its rows."""
        names = dict(self.values.names)
        for axis in (self.across, self.along):
            names[axis] += start
        self.bodies.accesses.index_parts(crossing.index)
        first = f"{self.bodies.accesses.pointers[crossing.op.args[0]]} + {print_index(crossing.index, names, C)}"
        return f"{first}, {print_index(crossing.step, self.values.names)}"

    def _tile(self, at: Place) -> None:
        """One tile: copy what is read, compute, copy what was written."""
        crossings = self.tiles.crossings.values()
        for crossing in crossings:
            tile = f"{C_TYPES[crossing.dtype]} {self.tile_names[crossing.op.name]}[{self.tiles.rows * self.tiles.edge}]"
            self.out.put(f"{tile} __attribute__((aligned(64)));", crossing.op.spans)
            if crossing.op.op == "load":
                self._copy(crossing, at)
        if self.tiles.side:
            self._fetch_next()
        kernel = self.bodies.plan.kernel
        loops = []
        for axis in (self.across, self.along):
            whole, name = next(a for a in kernel.axes if a.name == axis), self.values.names[axis]
            loops.append(BodyLoop(whole, f"{name}_edge", f"{name}_end", axis == self.along))
        in_tiles = {c.op.name: self._in_tile(c) for c in crossings}
        self.bodies.nest(Body(tuple(kernel.ops()), tuple(loops), self.along, in_tiles=in_tiles), at)
        for crossing in crossings:
            if crossing.op.op == "store":
                self._copy(crossing, at)

    def _fetch_next(self) -> None:
        """Asks for the rows of the next tile that are read as they lie."""
        across, along = self.across, self.along
        edge = {a: f"{self.values.names[a]}_edge" for a in (across, along)}
        names = {**self.values.names, across: f"({edge[across]} + {self.tiles.rows})", along: edge[along]}
        seen: set[tuple[str, Expr]] = set()
        for op in self.bodies.plan.kernel.ops():
            if op.op != "load" or op.name in self.tiles.crossings or op.args[:2] in seen:
                continue
            seen.add(op.args[:2])
            index = sympy.sympify(op.args[1])
            form = linear(index, frozenset((across, along)))
            step = form.coefficient(across)
            if form.coefficient(along) == 1 and step not in (None, 0) and not indirect_names(index):
                self.unit.lane_free.add("fetch_rows")
                self.bodies.accesses.index_parts(index)
                first = f"{self.bodies.accesses.pointers[op.args[0]]} + {print_index(index, names, C)}"
                step = print_index(step, self.values.names)
                self.out.put(f"fetch_rows({first}, {step}, {self.tiles.rows}, {self.tiles.edge});", op.spans)

    def _copy(self, crossing: Crossing, at: Place) -> None:
        """Copies what is read to its tile, or from its tile what was written, transposed."""
        op, tiles, load = crossing.op, self.tiles, crossing.op.op == "load"
        tile = self.tile_names[op.name]
        if tiles.side:
            name = self.values.names[self.across]
            memory = f"{tile}_block + ({name}_edge - {name}_unit), {tiles.pitch(crossing)}"
        else:
            memory = self._memory(crossing, "_edge")
        places = (f"{tile}, {tiles.edge}", memory) if load else (memory, f"{tile}, {tiles.edge}")
        self.unit.lane_free.add(f"transpose.{crossing.size}.{crossing.register}")
        edges = [(self.across, tiles.rows), (self.along, tiles.edge)][:: 1 if load else -1]  # the target's rows first
        if at.whole:
            call, counts = f"transpose_whole{crossing.size}<{edges[0][1]}, {edges[1][1]}>", ""
        else:
            names = (self.values.names[axis] for axis, _ in edges)
            call, counts = f"transpose{crossing.size}", "".join(f", {n}_end - {n}_edge" for n in names)
        self.out.put(f"{call}({places[0]}, {places[1]}{counts});", op.spans)

    def _in_tile(self, crossing: Crossing) -> str:
        """Where an access's element is in its tile."""
        across, along = self.values.names[self.across], self.values.names[self.along]
        place = f"({across} - {across}_edge) * {self.tiles.edge} + ({along} - {along}_edge)"
        return f"{self.tile_names[crossing.op.name]} + {place}"
