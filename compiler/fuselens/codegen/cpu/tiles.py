"""Transposes through tiles: where some accesses are contiguous along the vectors and others along another axis.

Both axes are walked in tiles. What is read across the vectors is copied, transposed, to a tile on the stack before the
tile's points are computed, and what is written across them is collected there and copied behind. So memory is read and
written in runs of at least a cache line, and vectors are loaded and stored whole.

Tiles are as wide as a cache line where the cache keeps the lines of its neighbours: what is transposed is used at once,
before it leaves the processor's store buffer. They are larger where strides are multiples of a power of two, so that lines throw
each other out.

What caches do not hold is first copied, row by row, to a block in the second-level cache: rows of half a kilobyte on both sides, because
memory takes its time for each new row, and with padding between them, so that strides of powers of two do no harm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy
from sympy import Expr

from ...ir.contracts.source import Writer
from ...ir.loops import ITEMSIZE, Axis, Kernel, Op, element, indirect_names
from ..expressions import C, linear, print_factor, print_index
from ..traffic import bytes_moved
from .body import BodyWriter
from .unit import Unit
from .values import BodyLoop
from .vectors.memory_parts import past_caches
from .vectors.parts import C_TYPES, UNIT, Part

EDGE = 64  # elements of a tile along the vectors
TILES = 8  # that one kernel has at most
STACK = 1 << 14  # bytes of all of them: half of a small first-level cache
LINE = 64  # bytes of a cache line
CROWDED = 2048  # bytes: lines at multiples of them share few sets of a first-level cache
FAR = 1 << 22  # bytes that a kernel moves from which on they are not in a second-level cache
RUN = 512  # bytes of a row of a block
BLOCKS = 1 << 17  # bytes of all blocks of a unit: part of a small second-level cache
AHEAD = 4  # rows that are asked for before they are copied to a block


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
        self.edge = EDGE  # and along them
        self.small = False  # whether units consist of several tiles, which are as wide as a cache line
        self.side = 0  # elements of a block across the vectors; 0 where there are no blocks
        self.full = False  # whether the tile being printed is whole

    def _tile_units(self) -> str:
        """Chooses the accesses that go through tiles, and gives the number of units (C++ text): tiles, row by row."""
        across, along = self.plan.tile, self.plan.vector
        for op in self.kernel.ops():
            if len(self.tiles) < TILES and (step := self._crossing(op)) is not None:
                self.tiles[op.name] = Tile(self.claim(op.name, "_tile"), sympy.sympify(op.args[1]), step)
        self._choose_edges()
        rows = sympy.Mul(*(a.size for a in self._outer()))
        counts = [print_factor(rows, self.names), self._count(across), self._count(along)]
        return str(math.prod(map(int, counts))) if all(c.isdigit() for c in counts) else " * ".join(counts)

    def _crossing(self, op: Op) -> Expr | None:
        """The step along the vectors of an access that they cross, and that is contiguous along the tile's other axis; None
        for all others."""
        if op.op not in ("load", "store"):
            return None
        index = sympy.sympify(op.args[1])
        form = linear(index, frozenset((self.plan.tile, self.plan.vector)))
        step = form.coefficient(self.plan.vector)
        if indirect_names(index) or form.coefficient(self.plan.tile) != 1 or step is None or step in (-1, 0, 1):
            return None
        # elements that are both read and written are read at their own point
        others = self.kernel.writes() if op.op == "load" else self.kernel.reads()
        return None if any(self.unit.same_memory(op.args[0], s) for s in others) else step

    def _choose_edges(self) -> None:
        """Chooses how large tiles are, and whether blocks are copied first."""
        sizes = [ITEMSIZE[self._dtype(o)] for o in self._tiled()]
        size = max(sizes, default=1)
        line = LINE // size
        whole = max(
            [self.width, *(self._register(s) // s for s in sizes)]
        )  # edge of what is written, or moved, at once
        shortest = min(self.nest.hint(self.nest.size(a)) for a in (self.plan.tile, self.plan.vector))
        if sizes and self.width > 1 and shortest * size >= RUN // 2 and self._far():
            self.small, self.rows, self.edge = True, LINE // 4, min(4 * EDGE, RUN // size)
            self.side = self.edge
            while self.side > self.rows and self.side * self.edge * sum(sizes) > BLOCKS:
                self.side //= 2
        elif whole <= line < EDGE and shortest >= line and not self._crowded():
            self.small, self.rows, self.edge = True, line, line
        while self.rows > 8 and self.rows * self.edge * size * len(self.tiles) > STACK:
            self.rows //= 2

    def _register(self, size: int) -> int:
        """The bytes of the registers in which elements are transposed."""
        return 32 if self.unit.isa.register >= 32 and size > 1 else 16

    def _far(self) -> bool:
        """Whether memory is what the kernel waits for."""
        return self.nest.hint(sympy.Add(*bytes_moved(self.kernel, self.unit.graph))) >= FAR

    def _crowded(self) -> bool:
        """Whether the lines of tiles and of what else is accessed are too many for the few sets that they lie in."""
        steps = (self.nest.hint(self.tiles[o.name].step) * ITEMSIZE[self._dtype(o)] for o in self._tiled())
        accesses = sum(o.op in ("load", "store") for o in self.kernel.ops())
        return accesses > 2 and any(s % CROWDED == 0 for s in steps)

    def _tiled(self) -> list[Op]:
        return [o for o in self.kernel.ops() if o.name in self.tiles]

    def _dtype(self, op: Op) -> str:
        return element(self.unit.graph.buffers[op.args[0]].dtype)

    def _outer(self) -> list[Axis]:
        return [a for a in self.kernel.axes if a.name not in (self.plan.tile, self.plan.vector)]

    def _unit_edge(self, axis: str) -> int:
        if self.side:
            return self.edge if axis == self.plan.vector else self.side
        return EDGE if self.small or axis == self.plan.vector else self.rows

    def _count(self, axis: str) -> str:
        size, edge = self.nest.size(axis), self._unit_edge(axis)
        if size.is_Integer:
            return str(-(-int(size) // edge))
        return f"(({print_factor(size, self.names)} + {edge - 1}) / {edge})"

    def _each_tile(self) -> None:
        """The loop over units, which are tiles or consist of them."""
        out, across, along = self.out, self.plan.tile, self.plan.vector
        self.unit.lane_free.add("min_max")
        out.open("for (long unit = begin; unit < end; ++unit) {")
        unit, place = "unit", "unit" if self.small else "edge"
        for axis in (across, along) if self.side else (along, across):  # next is what is asked for ahead
            name, count, edge = self.names[axis], self._count(axis), self._unit_edge(axis)
            size = print_factor(self.nest.size(axis), self.names)
            out.put(f"const long {name}_{place} = {f'{unit} % {count} * {edge}' if count != '1' else 0};")
            unit = f"{unit} / {count}" if count != "1" else unit
            out.put(f"const long {name}_{'stop' if self.small else 'end'} = least({name}_{place} + {edge}, {size});")
        outer = self._outer()
        if outer:
            out.put(f"const long row = {unit};")
            self._decode(outer, "row")
        if self.small:
            self._small_tiles()
        else:
            self._tile()
        out.close()

    def _small_tiles(self) -> None:
        """The tiles of a unit. Those that are whole have loops of constant length."""
        out, ends = self.out, ((self.names[self.plan.tile], self.rows), (self.names[self.plan.vector], self.edge))
        self._blocks_of("load")
        for name, edge in ends:
            first, stop = f"{name}_unit", f"{name}_stop"
            out.open(f"for (long {name}_edge = {first}; {name}_edge < {stop}; {name}_edge += {edge}) {{")
        out.open(f"if ({' && '.join(f'{name}_edge + {edge} <= {name}_stop' for name, edge in ends)}) {{")
        for name, edge in ends:
            out.put(f"const long {name}_end = {name}_edge + {edge};")
        self.full = True
        self._tile()
        self.full = False
        out.close("} else {")
        out.open("  {")
        for name, edge in ends:
            out.put(f"const long {name}_end = least({name}_edge + {edge}, {name}_stop);")
        self._tile()
        out.close("  }")
        out.put("}")
        for _ in ends:
            out.close()
        self._blocks_of("store")

    def _blocks_of(self, kind: str) -> None:
        """Declares all blocks and fills those that are read, or copies those that were written."""
        across, along = self.names[self.plan.tile], self.names[self.plan.vector]
        names = {**self.names, self.plan.tile: f"{across}_unit", self.plan.vector: f"{along}_unit"}
        counts = f"{along}_stop - {along}_unit, {across}_stop - {across}_unit"
        for op in self._tiled() if self.side else ():
            tile, pitch = self.tiles[op.name], self._pitch(op)
            block = f"{tile.name}_block"
            if kind == "load":
                out_type = C_TYPES[self._dtype(op)]
                self.out.put(f"{out_type} {block}[{self.edge * pitch}] __attribute__((aligned(64)));", op.spans)
            if kind != op.op:
                continue
            memory = f"{self.pointers[op.args[0]]} + {print_index(tile.index, names, C)}"
            memory = f"{memory}, {print_index(tile.step, self.names)}"
            places = (f"{block}, {pitch}", memory) if kind == "load" else (memory, f"{block}, {pitch}")
            part = f"stream_rows{self.unit.isa.streams}" if op.name in self.streams else "copy_rows"
            self.unit.lane_free.add(part)
            self._index_parts(tile.index)
            self.out.put(f"{part}({', '.join(places)}, {counts});", op.spans)

    def _pitch(self, op: Op) -> int:
        """Elements from one row of a block to the next: a line more than a row has, because lines in one set are few."""
        return self.side + LINE // ITEMSIZE[self._dtype(op)]

    def _tile(self) -> None:
        """One tile: copy what is read, compute, copy what was written."""
        out, across, along = self.out, self.plan.tile, self.plan.vector
        for op in self._tiled():
            tile = self.tiles[op.name]
            kind = C_TYPES[self._dtype(op)]
            out.put(f"{kind} {tile.name}[{self.rows * self.edge}] __attribute__((aligned(64)));", op.spans)
            if op.op == "load":
                self._copy(op, f"{tile.name}, {self.edge}", "{memory}, {step}", across, along)
        if self.side:
            self._fetch_next()
        loops = []
        for axis in (across, along):
            whole = next(a for a in self.kernel.axes if a.name == axis)
            name = self.names[axis]
            loops.append(BodyLoop(whole, f"{name}_edge", f"{name}_end", axis == along))
        self.inverses = {}
        self._nest(tuple(self.kernel.ops()), loops, along, sympy.S.Zero)
        for op in self._tiled():
            if op.op == "store":
                self._copy(op, "{memory}, {step}", f"{self.tiles[op.name].name}, {self.edge}", along, across)

    def _fetch_next(self) -> None:
        """Asks for the rows of the next tile that are read as they lie."""
        across, along = self.plan.tile, self.plan.vector
        names = {**self.names, across: f"({self.names[across]}_edge + {self.rows})", along: f"{self.names[along]}_edge"}
        seen: set[tuple[str, Expr]] = set()
        for op in self.kernel.ops():
            if op.op != "load" or op.name in self.tiles or op.args[:2] in seen:
                continue
            seen.add(op.args[:2])
            index = sympy.sympify(op.args[1])
            form = linear(index, frozenset((across, along)))
            step = form.coefficient(across)
            if form.coefficient(along) == 1 and step not in (None, 0) and not indirect_names(index):
                self.unit.lane_free.add("fetch_rows")
                self._index_parts(index)
                memory = (
                    f"{self.pointers[op.args[0]]} + {print_index(index, names, C)}, {print_index(step, self.names)}"
                )
                self.out.put(f"fetch_rows({memory}, {self.rows}, {self.edge});", op.spans)

    def _left(self, size: Expr, name: str, hi: str) -> None:
        if self.full:
            self.left = str(self.width)
        else:
            super()._left(size, name, hi)

    def _copy(self, op: Op, target: str, source: str, rows: str, columns: str) -> None:
        """Copies between memory and a tile; ``rows`` is the axis along which the target has rows."""
        tile, names = self.tiles[op.name], dict(self.names)
        for axis in (rows, columns):
            names[axis] += "_edge"
        if self.side:
            name = self.names[self.plan.tile]
            memory, step = f"{tile.name}_block + ({name}_edge - {name}_unit)", str(self._pitch(op))
        else:
            memory = f"{self.pointers[op.args[0]]} + {print_index(tile.index, names, C)}"
            step = print_index(tile.step, self.names)
        counts = ", ".join(f"{self.names[a]}_end - {self.names[a]}_edge" for a in (rows, columns))
        size = ITEMSIZE[self._dtype(op)]
        self.unit.lane_free.add(f"transpose.{size}.{self._register(size)}")
        self._index_parts(tile.index)
        places = [t.format(memory=memory, step=step) for t in (target, source)]
        edges = {self.plan.tile: self.rows, self.plan.vector: self.edge}
        call = f"transpose_whole{size}<{edges[rows]}, {edges[columns]}>" if self.full else f"transpose{size}"
        self.out.put(f"{call}({places[0]}, {places[1]}{'' if self.full else f', {counts}'});", op.spans)

    def _in_tile(self, op: Op) -> str:
        across, along = self.names[self.plan.tile], self.names[self.plan.vector]
        return f"{self.tiles[op.name].name} + ({across} - {across}_edge) * {self.edge} + ({along} - {along}_edge)"

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


def _transpose(size: int, register: int) -> str:
    """Square blocks in registers, transposed by interleaving halves log2(lanes) times; the edges by elements.

    A register of 32 bytes is two of 16, which are transposed side by side: it holds a piece of a row, and one of the
    row half a block below.
    """
    n, m = register // size, 16 // size
    halves = n // m
    half = [h * m for h in range(halves)]
    low, high = (
        ", ".join(f"{h + l}, {h + l + n}" for h in half for l in range(first, first + m // 2)) for first in (0, m // 2)
    )
    c = {1: "char", 2: "short", 4: "int", 8: "long"}[size]
    bits, part = f"bits{8 * size}", f"bits{8 * size}_half"
    text = [
        f"typedef {c} {bits} __attribute__((vector_size({register})));",
        f"typedef {c} {part} __attribute__((vector_size(16)));",
        "// d[i * ds + j] = p[j * ps + i], of a block",
        "template <class T>",
        f"static inline __attribute__((always_inline)) void transpose_block{size}(T* d, long ds, const T* p, long ps) {{",
    ]
    for h in half:
        lines = [f"r{h}_0_{k}" for k in range(m)]
        if halves == 1:
            text.append(f"  {bits} {', '.join(lines)};")
            text += [f"  __builtin_memcpy(&{r}, p + {k} * ps, 16);" for k, r in enumerate(lines)]
        else:
            text.append(f"  {part} {', '.join(f'a{h}_{k}, b{h}_{k}' for k in range(m))};")
            for k, r in enumerate(lines):
                text.append(f"  __builtin_memcpy(&a{h}_{k}, p + {k} * ps + {h}, 16);")
                text.append(f"  __builtin_memcpy(&b{h}_{k}, p + {k + m} * ps + {h}, 16);")
                order = ", ".join(map(str, range(n)))
                text.append(f"  {bits} {r} = __builtin_shufflevector(a{h}_{k}, b{h}_{k}, {order});")
        stage = 1
        while 1 << stage <= m:
            new = [f"r{h}_{stage}_{k}" for k in range(m)]
            for k in range(m // 2):
                pair = f"{lines[k]}, {lines[k + m // 2]}"
                text.append(
                    f"  {bits} {new[2 * k]} = __builtin_shufflevector({pair}, {low}),"
                    f" {new[2 * k + 1]} = __builtin_shufflevector({pair}, {high});"
                )
            lines, stage = new, stage + 1
        text += [f"  __builtin_memcpy(d + {h + k} * ds, &{r}, {register});" for k, r in enumerate(lines)]
    text += [
        "}",
        "template <int ROWS, int COLUMNS, class T>",
        f"static inline void transpose_whole{size}(T* d, long ds, const T* p, long ps) {{",
        f"  for (long j = 0; j < COLUMNS; j += {n})",
        f"    for (long i = 0; i < ROWS; i += {n}) transpose_block{size}(d + i * ds + j, ds, p + j * ps + i, ps);",
        "}",
        "template <class T>",
        f"static __attribute__((noinline)) void transpose{size}(T* d, long ds, const T* p, long ps, long rows, long columns) {{",
        "  long j = 0;",
        f"  for (; j + {n} <= columns; j += {n}) {{",
        "    long i = 0;",
        f"    for (; i + {n} <= rows; i += {n}) transpose_block{size}(d + i * ds + j, ds, p + j * ps + i, ps);",
        f"    for (; i < rows; ++i) for (long l = j; l < j + {n}; ++l) d[i * ds + l] = p[l * ps + i];",
        "  }",
        "  for (; j < columns; ++j) for (long i = 0; i < rows; ++i) d[i * ds + j] = p[j * ps + i];",
        "}",
    ]
    return "\n".join(text)


for _size, _register in ((1, 16), (2, 16), (4, 16), (8, 16), (2, 32), (4, 32), (8, 32)):
    _name = f"transpose.{_size}.{_register}"
    UNIT[_name] = Part(_name, _transpose(_size, _register))


_FETCH_ROWS = """
template <class T>
static inline void fetch_rows(const T* p, long ps, long rows, long columns) {
  for (long j = 0; j < rows; ++j, p += ps)
    for (long i = 0; i < columns; i += LINE / sizeof(T)) __builtin_prefetch(p + i, 0, 2);
}""".strip()
UNIT["fetch_rows"] = Part("fetch_rows", _FETCH_ROWS.replace("LINE", str(LINE)))


def _rows(name: str, each: str) -> str:
    return "\n".join(
        [
            "template <class T>",
            f"static inline void {name}(T* d, long ds, const T* p, long ps, long rows, long columns) {{",
            "  for (long j = 0; j < rows; ++j, d += ds, p += ps) {",
            "    long i = 0;",
            f"    for (; i + (long)({LINE} / sizeof(T)) <= columns; i += {LINE} / sizeof(T)) {{",
            each,
            "    }",
            "    for (; i < columns; ++i) d[i] = p[i];",
            "  }",
            "}",
        ]
    )


UNIT["copy_rows"] = Part(
    "copy_rows",
    _rows(
        "copy_rows", f"      __builtin_prefetch(p + {AHEAD} * ps + i);\n      __builtin_memcpy(d + i, p + i, {LINE});"
    ),
)
for _size in (16, 32, 64):
    _name = f"stream_rows{_size}"
    _each = (
        f"      if ((unsigned long)(d + i) % {_size}) {{ __builtin_memcpy(d + i, p + i, {LINE}); continue; }}\n"
        + past_caches("d + i", "p + i", LINE, _size)
    )
    UNIT[_name] = Part(_name, _rows(_name, _each))
