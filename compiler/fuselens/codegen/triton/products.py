"""Products of matrices as Triton: a tile of sums by ``tl.dot``, then what follows for each element of the tile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from ...ir.affine import within
from ...ir.contracts.source import Unsupported
from ...ir.loops import ITEMSIZE, Axis, Kernel, Op, Phase, indirect_names
from ..expressions import TRITON, linear, names_in, print_index
from ..nest import index_of
from ..operands import Value
from .choices.blocks import blocks_of
from .choices.tiles import Tiles
from .operations import Slot
from .rows import Rows

_HALVES = ("f16", "bf16")
DESCRIPTORS = 256  # bytes of a program's


def descriptors_of(kernel: str) -> str:
    """The buffer in which the programs of ``kernel`` describe the tiles that the card copies, if the graph has one. Triton's
    kernels take its address after all that they are declared with."""
    return f"{kernel}_descriptors"


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor: its op, all that it is computed from, and the axes of the kernel that it depends on."""

    value: Op
    ops: tuple[Op, ...]
    axes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Product:
    """A kernel as a product of matrices: its sum, the factors, and which of its axes are what."""

    total: Op
    left: Factor  # rows depend on it
    right: Factor  # columns depend on it, among them the kernel's innermost axis
    terms: tuple[Axis, ...]  # the axes that are added up
    batches: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    neither: tuple[Axis, ...]  # axes that no factor depends on
    rest: tuple[Op, ...]  # what follows for each element

    @property
    def height(self) -> Expr:
        return sympy.Mul(*(a.size for a in self.rows))

    @property
    def width(self) -> Expr:
        return sympy.Mul(*(a.size for a in self.columns))

    @property
    def fixed(self) -> bool:
        """Whether columns and what is summed are of known size."""
        return all(a.size.is_Integer for a in (*self.columns, *self.terms))


def product_form(kernel: Kernel) -> Product:
    """``kernel`` as a product. Raises Unsupported where it is none."""
    phase, *others = kernel.phases
    if not phase.axes or any(p.axes for p in others):
        raise Unsupported("a product in other phases")
    total, left, right = _factors(kernel, phase)
    where = {a.name: (a.name in left.axes, a.name in right.axes) for a in kernel.axes}
    batches, rows, columns, neither = (tuple(a for a in kernel.axes if where[a.name] == which) for which in (
        (True, True), (True, False), (False, True), (False, False)))  # fmt: skip
    rest = tuple(o for p in others for o in p.body)
    return Product(total, left, right, phase.axes, batches, rows, columns, neither, rest)


def _factors(kernel: Kernel, phase: Phase) -> tuple[Op, Factor, Factor]:
    """The sum, and its factors: rows depend on the first, the kernel's innermost axis on the second."""
    by_name = {o.name: o for o in phase.body}
    (total,) = (o for o in phase.body if o.op == "reduce")
    product = by_name.get(total.args[1])
    if total.args[0] != "sum" or product is None or product.op != "mul" or product.dtype != "f32":
        raise Unsupported("a sum of other things than products")
    names = [a for a in product.args if isinstance(a, str)]
    if len(names) != 2:
        raise Unsupported("a product with a number")
    left, right = (_factor(kernel, phase, by_name[n]) for n in names)
    if kernel.axes and kernel.axes[-1].name in left.axes - right.axes:
        left, right = right, left
    if any(o.op == "store" for o in phase.body):
        raise Unsupported("a product that stores its terms")
    return total, left, right


def _factor(kernel: Kernel, phase: Phase, value: Op) -> Factor:
    ops = tuple(_needed(phase.body, {value.name}))
    axes = {n for o in ops if (e := index_of(o)) is not None for n in names_in(e)}
    return Factor(value, ops, frozenset(axes & {a.name for a in kernel.axes}))


class Products(Rows):
    """Writes a program that computes a tile of a product. The kernel's first phase adds up products of two factors, one
    of which depends on some of the kernel's axes (rows), the other on others (columns), and both on the rest (batches)."""

    def _product(self, tiles: Tiles) -> tuple[Expr, int]:
        form = product_form(self.kernel)
        if form.neither or (tiles.programs and (form.batches or not form.fixed)):
            raise Unsupported("a product of other axes")
        self.rank, self.stages = 2, tiles.stages
        self.blocks |= {"YBLOCK": tiles.rows, "XBLOCK": tiles.columns, "DEPTH": tiles.depth, "GROUP": tiles.group}
        tall, broad = blocks_of(form.height, tiles.rows), blocks_of(form.width, tiles.columns)
        several = tall * broad
        programs = min(tiles.programs, int(several)) if several.is_Integer else tiles.programs
        self.shape_names = frozenset(a.name for a in (*form.rows, *form.columns))
        if tiles.programs and len(form.terms) == 1 and descriptors_of(self.kernel.name) in self.unit.graph.buffers:
            self._describe("left", form.left, form.terms[0], form.rows, form.height, tiles)
            self._describe("right", form.right, form.terms[0], form.columns, form.width, tiles)
        column = self._open_tile(form, tiles, tall, broad, programs)
        self._sum(form, tiles)
        self.mask = " & ".join(dict.fromkeys(self.masks.values()))
        if not programs:
            self.spread = "tl.zeros([YBLOCK, XBLOCK], tl.int32)"
            self._straight(form.rest)
            return several * sympy.Mul(*(a.size for a in form.batches)), tiles.warps
        self._halves(form, column)
        self.out.close("")
        return sympy.Integer(programs), tiles.warps

    def _open_tile(self, form: Product, tiles: Tiles, tall: Expr, broad: Expr, programs: int) -> str:
        """Declares which tile a program computes, of ``tall`` x ``broad``, and its masks; where ``programs`` take tiles in turn,
        inside of the loop over them. Returns the variable of the tile's columns."""
        out = self.out
        program, row, column = (self._claim(f"tile {n}") for n in ("program", "row", "column"))
        down, across = self._number_of("tiles down", tall), self._number_of("tiles across", broad)
        several = tall * broad
        count = str(several) if several.is_Integer else f"({down} * {across})"
        if programs:
            out.open(f"for {program} in tl.range({self._program()}, {count}, {programs}, flatten=True):")
        else:
            out.put(f"{program} = {self._program()}")
        if form.batches:
            batch = self._claim("tile batch")
            out.put(f"{batch} = {program} // {count}")
            self._decode(form.batches, batch)
            out.put(f"{program} = {program} % {count}")
        first, height = self._claim("tile first"), self._claim("tile height")
        self.corner = top, side = (self._claim("tile top"), self._claim("tile left"))
        out.put(f"{first} = {program} // (GROUP * {across}) * GROUP  # tiles next to each other share what they read")
        out.put(f"{height} = tl.minimum({down} - {first}, GROUP)")
        out.put(f"{top} = ({first} + {program} % (GROUP * {across}) % {height}) * YBLOCK")
        out.put(f"{side} = {program} % (GROUP * {across}) // {height} * XBLOCK")
        out.put(f"{row} = ({top} + tl.arange(0, YBLOCK))[:, None]")
        self._decode(form.rows, row)
        self._limit(form.rows, row, "tile rows", form.height, tiles.rows)
        self._limit(form.columns, column, "tile columns", form.width, tiles.columns)
        self._columns_from(form.columns, column, side, "XBLOCK")
        return column

    def _limit(self, axes: tuple[Axis, ...], place: str, label: str, size: Expr, block: int) -> None:
        """Masks what is beyond the last row or column, where blocks do not end there."""
        if not _covers(size, block):
            limit = self._number_of(label, size)
            self.masks |= dict.fromkeys((a.name for a in axes), f"({place} < {limit})")

    def _columns_from(self, axes: tuple[Axis, ...], column: str, start: str, count: str) -> None:
        self.out.put(f"{column} = ({start} + tl.arange(0, {count}))[None, :]")
        self._decode(axes, column)

    def _halves(self, form: Product, column: str) -> None:
        """What follows the sums, for one half of the columns after the other: it needs room beside the tiles that are on their
        way."""
        name, (_, side) = self.slots[form.total.name].value.text, self.corner
        halves = f"{name}_0, {name}_1"
        self.out.put(f"{halves} = tl.split(tl.permute(tl.reshape({name}, [YBLOCK, 2, XBLOCK // 2]), [0, 2, 1]))")
        self.spread = "tl.zeros([YBLOCK, XBLOCK // 2], tl.int32)"
        for half in range(2):
            self._columns_from(form.columns, column, f"{side} + XBLOCK // 2" if half else side, "XBLOCK // 2")
            self.slots[form.total.name] = Slot(Value(f"{name}_{half}", "f32"), True)
            self._straight(form.rest)

    def _describe(
        self, name: str, factor: Factor, axis: Axis, place: tuple[Axis, ...], size: Expr, tiles: Tiles
    ) -> None:
        """Lets the card copy an operand's tiles, where memory holds a plain matrix of them."""
        load, inside = _dot_operand(factor)
        if inside or load.op != "load" or len(place) != 1:
            return
        buffer = self.unit.graph.buffers[load.args[0]]
        form = linear(sympy.sympify(load.args[1]), frozenset((axis.name, place[0].name)))
        steps = {n: form.coefficients.get(n, sympy.S.Zero) for n in (axis.name, place[0].name)}
        width = ITEMSIZE[buffer.dtype]
        inner, outer = sorted(steps, key=lambda n: steps[n] != 1)
        numbers = (*steps.values(), form.rest)
        if form.tangled or not all(n.is_Integer for n in numbers) or steps[inner] != 1 or steps[outer] <= 1:
            return
        if int(steps[outer]) * width % 16 or int(form.rest) * width % 16:
            return
        extent = self._number_of("tile rows", size) + ("" if size.is_Integer else ".to(tl.int32)")
        extents = {axis.name: (axis.size, "DEPTH"), place[0].name: (extent, "YBLOCK" if name == "left" else "XBLOCK")}
        tile = self._claim(f"tile of {name}")
        shape, block = (", ".join(str(extents[n][k]) for n in (outer, inner)) for k in (0, 1))
        start = f" + {form.rest}" if form.rest != 0 else ""
        self.blocks["ALIGNED"] = 1
        self.out.open("if ALIGNED:")
        self.out.put(
            f"{tile} = tl.make_tensor_descriptor({self.names[load.args[0]]}{start}, [{shape}], [{steps[outer]}, 1], [{block}])"
        )
        self.out.close("")
        self.copied[load.name] = (tile, outer == axis.name)

    def _number_of(self, label: str, size: Expr) -> str:
        """A size as a number, or the variable that has it."""
        if size.is_Integer or label in self.names:
            return str(size) if size.is_Integer else self.names[label]
        name = self._claim(label)
        self.out.put(f"{name} = {print_index(size, self.names, TRITON)}")
        return name

    def _sum(self, form: Product, tiles: Tiles) -> None:
        """The loop over the terms of the tile's sums, some of them at a time."""
        out, total, axes = self.out, form.total, form.terms
        length = sympy.Mul(*(a.size for a in axes))
        name = self._claim(total.name)
        moving = [_depending(f.ops, frozenset(a.name for a in axes)) for f in (form.left, form.right)]
        for factor, inside in zip((form.left, form.right), moving, strict=True):
            self._straight([o for o in factor.ops if o.name not in inside])
        limit = "" if _covers(length, tiles.depth) else self._number_of("tile terms", length)
        out.put(f"{name} = tl.zeros([YBLOCK, XBLOCK], tl.float32)", total.spans)
        start = self._claim("tile start")
        out.open(f"for {start} in range(0, {limit or length}, DEPTH):")
        *outer, inner = axes
        along = bool(outer) and _covers(inner.size, tiles.depth)  # a tile's terms differ along one axis only
        first = self._first_term(tuple(outer), inner, start) if along else start
        self.shape_names |= {a.name for a in ((inner,) if along else axes)}
        values = []
        for k, (factor, inside) in enumerate(zip((form.left, form.right), moving, strict=True)):
            place = self._terms_from(first, inner, turned=bool(k))
            if along or not outer:
                self.names[inner.name] = place
            else:
                self._decode(axes, place)
            mask = f"({place} < {limit})" if limit else ""
            self.masks |= dict.fromkeys((a.name for a in axes), mask) if mask else {}
            self.mask = " & ".join(dict.fromkeys(self.masks.values()))
            text, dtype = self._operand(factor, inside, mask, start, turned=bool(k))
            values.append((f"tl.broadcast_to({text}, {'[DEPTH, XBLOCK]' if k else '[YBLOCK, DEPTH]'})", dtype))
        out.put(f"{name} = {_dot(values[0], values[1], name, tiles.tf32)}", total.spans)
        out.close("")
        for axis in axes:
            self.masks.pop(axis.name, None)
        self.shape_names -= {a.name for a in axes}
        self.slots[total.name] = Slot(Value(name, "f32"), True)

    def _first_term(self, outer: tuple[Axis, ...], inner: Axis, start: str) -> str:
        """Where a tile's terms begin along ``inner``; its points of the other axes are declared."""
        tap, first = self._claim("tile tap"), self._claim("tile first term")
        self.out.put(f"{tap} = {start} // {inner.size}")
        self._decode(outer, tap)
        self.out.put(f"{first} = {start} - {tap} * {inner.size}")  # of a remainder Triton knows no multiples
        return first

    def _terms_from(self, first: str, inner: Axis, *, turned: bool) -> str:
        """Declares the places of a factor's terms: across a row of the first, down a column of the second (``turned``)."""
        place = self._claim(f"tile {'along' if turned else 'down'} {inner.name}")
        wide, side = ".to(tl.int64)" if self.wide else "", "[:, None]" if turned else "[None, :]"
        self.out.put(f"{place} = ({first} + tl.arange(0, DEPTH)){wide}{side}")
        return place

    def _operand(self, factor: Factor, moving: set[str], mask: str, start: str, *, turned: bool) -> tuple[str, str]:
        """A tile of a factor, 0 where ``mask`` does not hold, and its type."""
        value, inside = _dot_operand(factor)
        needed = [o for o in _needed(factor.ops, {value.name, inside}) if o.name in moving]
        if value.name in self.copied:
            self._copy(value, needed, start, self.corner[turned], turned=turned)
            return self.slots[value.name].value.text, value.dtype
        first = _needed(factor.ops, {inside})
        if inside and value.op == "load" and value in needed and value not in first:  # loaded where it is wanted only
            self._straight([o for o in needed if o is not value])
            self.beside = self.slots[inside].value.text
            self._straight([_without_limits(value, first, inside)])
            self.beside = inside = ""
        else:
            self._straight(needed)
        text = self.slots[value.name].value.text
        conditions = [mask if value.op != "load" else "", self.slots[inside].value.text if inside else ""]
        wanted = " & ".join(c for c in conditions if c)
        return f"tl.where({wanted}, {text}, 0)" if wanted else text, value.dtype

    def _copy(self, load: Op, needed: list[Op], start: str, corner: str, *, turned: bool) -> None:
        """The tile of a matrix, which the card copies where memory is aligned."""
        tile, deep = self.copied[load.name]
        out = self.out
        corner += ".to(tl.int32)" if self.wide else ""
        out.open("if ALIGNED:")
        place = f"[{start}, {corner}]" if deep else f"[{corner}, {start}]"
        name = self._claim(load.name)
        out.put(f"{name} = {tile}.load({place}){'.T' if deep != turned else ''}", load.spans)
        out.close("")
        out.open("else:")
        self._straight(needed)
        out.close("")

    def _mask_of(self, index: Any) -> str:
        if not self.masks and not self.beside:
            return super()._mask_of(index)
        masks = [self.masks[n] for n in sorted(names_in(index)) if n in self.masks]
        masks = [self.mask] if indirect_names(index) else masks
        return " & ".join(m for m in dict.fromkeys((*masks, self.beside)) if m)


def _dot(left: tuple[str, str], right: tuple[str, str], into: str, tf32: bool) -> str:
    """Products of two tiles (text, dtype), added to ``into``."""
    same = left[1] == right[1]
    a, b = (v if same or d == "f32" else f"{v}.to(tl.float32)" for v, d in (left, right))
    halves = same and left[1] != "f32"
    precision = "" if halves else f', input_precision="{"tf32" if tf32 else "ieee"}"'
    return f"tl.dot({a}, {b}, {into}{precision})"


def _depending(ops: tuple[Op, ...], axes: frozenset[str]) -> set[str]:
    """Names of the ops that change along ``axes``."""
    found: set[str] = set()
    for op in ops:
        index = index_of(op)
        if (index is not None and axes & names_in(index)) or not found.isdisjoint(op.operands()):
            found.add(op.name)
    return found


def _needed(ops: Iterable[Op], names: set[str]) -> list[Op]:
    """Those of ``ops`` that values of these names are computed from."""
    found: list[Op] = []
    for op in reversed(tuple(ops)):
        if op.name in names:
            names = names | {*op.operands()}
            found.append(op)
    return found[::-1]


def _dot_operand(factor: Factor) -> tuple[Op, str]:
    """What is multiplied, as it was before it was made wider, where that loses nothing, and the condition without which it is
    0, "" where there is none."""
    by_name = {o.name: o for o in factor.ops}
    value, inside = factor.value, ""
    if value.op == "where" and by_name[value.args[2]].op == "const" and by_name[value.args[2]].args[0] == 0:
        inside, value = value.args[0], by_name[value.args[1]]
    if value.op == "cast" and value.args[0] in by_name:
        inner = by_name[value.args[0]]
        if inner.dtype in (*_HALVES, value.dtype):
            value = inner
    return value, inside


def _without_limits(load: Op, ops: Iterable[Op], inside: str) -> Op:
    """``load``, which happens where ``inside`` holds only, without what holds positions inside of memory that are there then."""
    by_name = {o.name: o for o in ops}
    low: set[Expr] = set()
    high: dict[Expr, Expr] = {}
    wanted = [by_name[inside]]

    def place(name: str) -> Expr | None:
        op = by_name[name]
        while op.op == "cast":
            op = by_name[op.args[0]]
        return sympy.sympify(op.args[0]) if op.op in ("index", "const") else None

    while wanted:
        op = wanted.pop()
        if op.op == "and":
            wanted += [by_name[a] for a in op.args]
        elif op.op in ("ge", "lt"):
            at, end = map(place, op.args)
            if at is not None and end is not None:
                low |= {at} if op.op == "ge" and end == 0 else set()
                high |= {at: end} if op.op == "lt" else {}
    limits = {within(at, end - 1): at for at, end in high.items() if at in low}
    index = sympy.expand(sympy.sympify(load.args[1]).xreplace(limits))
    return dataclasses.replace(load, args=(load.args[0], index))


def _covers(size: Expr, block: int) -> bool:
    """Whether blocks end where ``size`` does."""
    return bool(size.is_Integer) and int(size) % block == 0
