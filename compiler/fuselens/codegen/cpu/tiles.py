"""Transposes through tiles: where some accesses are contiguous along the vectors and others along another axis.

Both axes are walked in tiles. What is read across the vectors is copied, transposed, to a tile on the stack before the
tile's points are computed, and what is written across them is collected there and copied behind. So memory is read and
written in runs of at least a cache line, and vectors are loaded and stored whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy
from sympy import Expr

from ...ir.loops import ITEMSIZE, Axis, Kernel, Op, element, indirect_names
from ..expressions import C, linear, print_factor, print_index
from ..source import Writer
from .body import BodyLoop, BodyWriter, Unit
from .parts import C_TYPES, UNIT, Part

EDGE = 64  # elements of a tile along the vectors
TILES = 8  # that one kernel has at most
STACK = 1 << 14  # bytes of all of them: half of a small first-level cache


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile's variable, and where it lies in memory: index, and elements between neighbours along the vectors."""

    name: str
    index: Expr
    step: Expr


class TileWriter(BodyWriter):
    """Prints kernels that have a plan with a tile axis."""

    def __init__(self, unit: Unit, kernel: Kernel, out: Writer) -> None:
        super().__init__(unit, kernel, out)
        self.tiles: dict[str, Tile] = {}  # by load or store
        self.rows = EDGE  # elements of a tile across the vectors

    def _tile_units(self) -> str:
        """Chooses the accesses that go through tiles, and gives the number of units (C++ text): tiles, row by row."""
        across, along = self.plan.tile, self.plan.vector
        reads, writes = self.kernel.reads(), self.kernel.writes()
        for op in self.kernel.ops():
            if op.op not in ("load", "store") or len(self.tiles) == TILES:
                continue
            index = sympy.sympify(op.args[1])
            form = linear(index, frozenset((across, along)))
            step = form.coefficient(along)
            if indirect_names(index) or form.coefficient(across) != 1 or step is None or step in (-1, 0, 1):
                continue
            # elements that are both read and written are read at their own point
            if not any(self.unit.same_memory(op.args[0], s) for s in (writes if op.op == "load" else reads)):
                self.tiles[op.name] = Tile(self.claim(op.name, "_tile"), index, step)
        size = max((ITEMSIZE[self._dtype(o)] for o in self.kernel.ops() if o.name in self.tiles), default=1)
        while self.rows > 8 and self.rows * EDGE * size * len(self.tiles) > STACK:
            self.rows //= 2
        rows = sympy.Mul(*(a.size for a in self._outer()))
        counts = [print_factor(rows, self.names), self._count(across), self._count(along)]
        return str(math.prod(map(int, counts))) if all(c.isdigit() for c in counts) else " * ".join(counts)

    def _dtype(self, op: Op) -> str:
        return element(self.unit.graph.buffers[op.args[0]].dtype)

    def _outer(self) -> list[Axis]:
        return [a for a in self.kernel.axes if a.name not in (self.plan.tile, self.plan.vector)]

    def _count(self, axis: str) -> str:
        size, edge = self.nest.size(axis), EDGE if axis == self.plan.vector else self.rows
        if size.is_Integer:
            return str(-(-int(size) // edge))
        return f"(({print_factor(size, self.names)} + {edge - 1}) / {edge})"

    def _each_tile(self) -> None:
        """The loop over tiles: copy what is read, compute, copy what was written."""
        out, across, along = self.out, self.plan.tile, self.plan.vector
        self.unit.lane_free.add("min_max")
        out.open("for (long unit = begin; unit < end; ++unit) {")
        unit = "unit"
        for axis, edge in ((along, EDGE), (across, self.rows)):
            name, count = self.names[axis], self._count(axis)
            out.put(f"const long {name}_edge = {f'{unit} % {count} * {edge}' if count != '1' else 0};")
            unit = f"{unit} / {count}" if count != "1" else unit
            out.put(
                f"const long {name}_end = least({name}_edge + {edge}, {print_factor(self.nest.size(axis), self.names)});"
            )
        outer = self._outer()
        if outer:
            out.put(f"const long row = {unit};")
            self._decode(outer, "row")
        ops = [o for o in self.kernel.ops() if o.name in self.tiles]
        for op in ops:
            tile = self.tiles[op.name]
            kind = C_TYPES[self._dtype(op)]
            out.put(f"{kind} {tile.name}[{self.rows * EDGE}] __attribute__((aligned(64)));", op.spans)
            if op.op == "load":
                self._copy(op, f"{tile.name}, {EDGE}", "{memory}, {step}", across, along)
        loops = []
        for axis in (across, along):
            whole = next(a for a in self.kernel.axes if a.name == axis)
            name = self.names[axis]
            loops.append(BodyLoop(whole, f"{name}_edge", f"{name}_end", axis == along))
        self._nest(tuple(self.kernel.ops()), loops, along, sympy.S.Zero)
        for op in ops:
            if op.op == "store":
                self._copy(op, "{memory}, {step}", f"{self.tiles[op.name].name}, {EDGE}", along, across)
        out.close()

    def _copy(self, op: Op, target: str, source: str, rows: str, columns: str) -> None:
        """Copies between memory and a tile; ``rows`` is the axis along which the target has rows."""
        tile, names = self.tiles[op.name], dict(self.names)
        for axis in (rows, columns):
            names[axis] += "_edge"
        memory = f"{self.pointers[op.args[0]]} + {print_index(tile.index, names, C)}"
        step = print_index(tile.step, self.names)
        counts = ", ".join(f"{self.names[a]}_end - {self.names[a]}_edge" for a in (rows, columns))
        size = ITEMSIZE[self._dtype(op)]
        self.unit.lane_free.add(f"transpose.{size}")
        self._index_parts(tile.index)
        places = [t.format(memory=memory, step=step) for t in (target, source)]
        self.out.put(f"transpose{size}({places[0]}, {places[1]}, {counts});", op.spans)

    def _in_tile(self, op: Op) -> str:
        across, along = self.names[self.plan.tile], self.names[self.plan.vector]
        return f"{self.tiles[op.name].name} + ({across} - {across}_edge) * {EDGE} + ({along} - {along}_edge)"

    def _load(self, op: Op, vector: str) -> None:
        if op.name not in self.tiles:
            super()._load(op, vector)
            return
        self.need(f"load.{self._dtype(op)}")
        self._define(op, f"load{self.width}({self._in_tile(op)}, {self.left})")

    def _store(self, op: Op, vector: str) -> None:
        if op.name not in self.tiles:
            super()._store(op, vector)
            return
        self.need(f"store.{self._dtype(op)}")
        value = self._text(op.args[2])
        self.out.put(f"store{self.width}({self._in_tile(op)}, {value}, {self.left});", op.spans)


def _transpose(size: int) -> str:
    """Blocks of registers of 16 bytes, transposed by interleaving halves log2(lanes) times; the edges by elements."""
    n = 16 // size
    low = ", ".join(f"{l}, {l + n}" for l in range(n // 2))
    high = ", ".join(f"{l}, {l + n}" for l in range(n // 2, n))
    c = {1: "char", 2: "short", 4: "int", 8: "long"}[size]
    lines = [f"r0_{k}" for k in range(n)]
    text = [
        f"typedef {c} bits{8 * size} __attribute__((vector_size(16)));",
        "// d[i * ds + j] = p[j * ps + i]",
        "template <class T>",
        f"static __attribute__((noinline)) void transpose{size}(T* d, long ds, const T* p, long ps, long rows, long columns) {{",
        "  long j = 0;",
        f"  for (; j + {n} <= columns; j += {n}) {{",
        "    long i = 0;",
        f"    for (; i + {n} <= rows; i += {n}) {{",
        f"      bits{8 * size} {', '.join(lines)};",
    ]
    text += [f"      __builtin_memcpy(&{r}, p + (j + {k}) * ps + i, 16);" for k, r in enumerate(lines)]
    stage = 1
    while 1 << stage <= n:
        new = [f"r{stage}_{k}" for k in range(n)]
        for k in range(n // 2):
            pair = f"{lines[k]}, {lines[k + n // 2]}"
            text.append(
                f"      bits{8 * size} {new[2 * k]} = __builtin_shufflevector({pair}, {low}),"
                f" {new[2 * k + 1]} = __builtin_shufflevector({pair}, {high});"
            )
        lines, stage = new, stage + 1
    text += [f"      __builtin_memcpy(d + (i + {k}) * ds + j, &{r}, 16);" for k, r in enumerate(lines)]
    text += [
        "    }",
        f"    for (; i < rows; ++i) for (long l = j; l < j + {n}; ++l) d[i * ds + l] = p[l * ps + i];",
        "  }",
        "  for (; j < columns; ++j) for (long i = 0; i < rows; ++i) d[i * ds + j] = p[j * ps + i];",
        "}",
    ]
    return "\n".join(text)


for _size in (1, 2, 4, 8):
    UNIT[f"transpose.{_size}"] = Part(f"transpose.{_size}", _transpose(_size))
