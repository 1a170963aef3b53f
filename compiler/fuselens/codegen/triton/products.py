"""Products of matrices as Triton: a tile of sums by ``tl.dot``, then what follows for each element of the tile.

It prints what :mod:`.choices.product_plan` has chosen.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import sympy
from sympy import Expr

from ...ir.loops import Axis
from ..expressions import TRITON, print_index
from ..operands import Value
from .choices.product_plan import Operand, ProductPlan
from .operations import Operations
from .place import Place, Slot


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's tile: the variables of its first row and column, and of its columns, and where what follows its sums is."""

    top: str
    left: str
    column: str
    place: Place


@dataclass(frozen=True, slots=True)
class Side:
    """A factor's side of the product. ``corner`` is the tile's first row or column; the card copies from ``matrix``, if there is
    one; ``turned`` says that terms go down a column."""

    operand: Operand
    corner: str
    matrix: str
    turned: bool


class Products:
    """Writes a program that computes a tile of a product. The kernel's first phase adds up products of two factors, one
    of which depends on some of the kernel's axes (rows), the other on others (columns), and both on the rest (batches)."""

    def __init__(self, operations: Operations, plan: ProductPlan) -> None:
        self.operations, self.plan = operations, plan
        self.out = operations.out

    def write(self) -> None:
        form, plan = self.plan.form, self.plan
        left = self._described("left", plan.left, form.height, "YBLOCK")
        right = self._described("right", plan.right, form.width, "XBLOCK")
        tile = self._open_tile()
        self._sum(tile, left, right)
        if plan.programs:
            self._halves(tile)
            self.out.close("")
        else:
            self.operations.straight(form.rest, tile.place)

    def _described(self, name: str, operand: Operand, size: Expr, block: str) -> str:
        """The variable of a matrix whose tiles the card copies, "" where it does not. ``size`` is how many rows or columns the
        product has of it, ``block`` of them a tile."""
        if operand.copy is None:
            return ""
        (term,), copy, operations = self.plan.form.terms, operand.copy, self.operations
        extent = self._number_of("tile rows", size) + ("" if size.is_Integer else ".to(tl.int32)")
        sides = [(str(term.size), "DEPTH"), (extent, block)]
        shape, tile = (", ".join(part) for part in zip(*(sides if copy.deep else sides[::-1]), strict=True))
        start = f" + {copy.start}" if copy.start != 0 else ""
        matrix = operations.claim(f"tile of {name}")
        pointer = f"{operations.names[operand.value.args[0]]}{start}"
        self.out.open("if ALIGNED:")
        self.out.put(f"{matrix} = tl.make_tensor_descriptor({pointer}, [{shape}], [{copy.step}, 1], [{tile}])")
        self.out.close("")
        return matrix

    def _open_tile(self) -> Tile:
        """Declares which tile a program computes, and its masks; where programs take tiles in turn, inside of the loop over
        them."""
        out, operations, plan, form = self.out, self.operations, self.plan, self.plan.form
        program, row, column = (operations.claim(f"tile {n}") for n in ("program", "row", "column"))
        down, across = self._number_of("tiles down", plan.tall), self._number_of("tiles across", plan.broad)
        count = str(plan.several) if plan.several.is_Integer else f"({down} * {across})"
        if plan.programs:
            out.open(f"for {program} in tl.range({operations.program()}, {count}, {plan.programs}, flatten=True):")
        else:
            out.put(f"{program} = {operations.program()}")
        if form.batches:
            batch = operations.claim("tile batch")
            out.put(f"{batch} = {program} // {count}")
            operations.decode(form.batches, batch)
            out.put(f"{program} = {program} % {count}")
        first, height = operations.claim("tile first"), operations.claim("tile height")
        top, side = operations.claim("tile top"), operations.claim("tile left")
        out.put(f"{first} = {program} // (GROUP * {across}) * GROUP  # tiles next to each other share what they read")
        out.put(f"{height} = tl.minimum({down} - {first}, GROUP)")
        out.put(f"{top} = ({first} + {program} % (GROUP * {across}) % {height}) * YBLOCK")
        out.put(f"{side} = {program} % (GROUP * {across}) // {height} * XBLOCK")
        out.put(f"{row} = ({top} + tl.arange(0, YBLOCK))[:, None]")
        operations.decode(form.rows, row)
        below = "" if plan.whole_rows else f"({row} < {self._number_of('tile rows', form.height)})"
        beside = "" if plan.whole_columns else f"({column} < {self._number_of('tile columns', form.width)})"
        self._columns_from(column, side, "XBLOCK")
        rows, columns = (frozenset(a.name for a in axes) for axes in (form.rows, form.columns))
        place = Place(("YBLOCK", "XBLOCK"), (rows, columns)).limited(rows, below).limited(columns, beside)
        return Tile(top, side, column, place)

    def _columns_from(self, column: str, start: str, count: str) -> None:
        self.out.put(f"{column} = ({start} + tl.arange(0, {count}))[None, :]")
        self.operations.decode(self.plan.form.columns, column)

    def _halves(self, tile: Tile) -> None:
        """What follows the sums, for one half of the columns after the other: it needs room beside the tiles that are on their
        way."""
        form, operations = self.plan.form, self.operations
        name, place = operations.text(form.total.name), dataclasses.replace(tile.place, shape=("YBLOCK", "XBLOCK // 2"))
        halves = f"{name}_0, {name}_1"
        self.out.put(f"{halves} = tl.split(tl.permute(tl.reshape({name}, [YBLOCK, 2, XBLOCK // 2]), [0, 2, 1]))")
        for half in range(2):
            self._columns_from(tile.column, f"{tile.left} + XBLOCK // 2" if half else tile.left, "XBLOCK // 2")
            operations.slots[form.total.name] = Slot(Value(f"{name}_{half}", "f32"), True)
            operations.straight(form.rest, place)

    def _number_of(self, label: str, size: Expr) -> str:
        """A size as a number, or the variable that has it."""
        names = self.operations.names
        if size.is_Integer or label in names:
            return str(size) if size.is_Integer else names[label]
        name = self.operations.claim(label)
        self.out.put(f"{name} = {print_index(size, names, TRITON)}")
        return name

    def _sum(self, tile: Tile, left: str, right: str) -> None:
        """The loop over the terms of the tile's sums, some of them at a time."""
        out, operations, plan, axes = self.out, self.operations, self.plan, self.plan.form.terms
        total, length = plan.form.total, sympy.Mul(*(a.size for a in axes))
        name = operations.claim(total.name)
        fixed = dataclasses.replace(tile.place, mask="")  # it is of a row or a column
        for operand in (plan.left, plan.right):
            operations.straight(operand.fixed, fixed)
        limit = "" if plan.whole_terms else self._number_of("tile terms", length)
        out.put(f"{name} = tl.zeros([YBLOCK, XBLOCK], tl.float32)", total.spans)
        start = operations.claim("tile start")
        out.open(f"for {start} in range(0, {limit or length}, DEPTH):")
        *outer, inner = axes
        first = self._first_term(tuple(outer), inner, start) if plan.along else start
        sides = (Side(plan.left, tile.top, left, False), Side(plan.right, tile.left, right, True))
        values = []
        for side in sides:
            term = self._terms_from(first, inner, turned=side.turned)
            mask = f"({term} < {limit})" if limit else ""
            place = self._of_terms(tile.place, mask, turned=side.turned)
            text = self._operand(side, place, mask, start)
            values.append((f"tl.broadcast_to({text}, [{', '.join(place.shape)}])", side.operand.value.dtype))
        out.put(f"{name} = {_dot(values[0], values[1], name, plan.tiles.tf32)}", total.spans)
        out.close("")
        operations.slots[total.name] = Slot(Value(name, "f32"), True)

    def _first_term(self, outer: tuple[Axis, ...], inner: Axis, start: str) -> str:
        """Where a tile's terms begin along ``inner``; its points of the other axes are declared."""
        tap, first = self.operations.claim("tile tap"), self.operations.claim("tile first term")
        self.out.put(f"{tap} = {start} // {inner.size}")
        self.operations.decode(outer, tap)
        self.out.put(f"{first} = {start} - {tap} * {inner.size}")  # of a remainder Triton knows no multiples
        return first

    def _terms_from(self, first: str, inner: Axis, *, turned: bool) -> str:
        """Declares a factor's terms: across a row of the first, down a column of the second (``turned``)."""
        operations, axes = self.operations, self.plan.form.terms
        place = operations.claim(f"tile {'along' if turned else 'down'} {inner.name}")
        wide, side = ".to(tl.int64)" if operations.wide else "", "[:, None]" if turned else "[None, :]"
        self.out.put(f"{place} = ({first} + tl.arange(0, DEPTH)){wide}{side}")
        if self.plan.along or len(axes) == 1:
            operations.names[inner.name] = place
        else:
            operations.decode(axes, place)
        return place

    def _of_terms(self, tile: Place, mask: str, *, turned: bool) -> Place:
        """What is of a factor's rows or columns, and of terms."""
        axes, (rows, columns) = self.plan.form.terms, tile.axes
        terms = frozenset(a.name for a in (axes[-1:] if self.plan.along else axes))
        shape = ("DEPTH", "XBLOCK") if turned else ("YBLOCK", "DEPTH")
        place = dataclasses.replace(tile, shape=shape, axes=(terms, columns) if turned else (rows, terms))
        return place.limited([a.name for a in axes], mask)

    def _operand(self, side: Side, place: Place, mask: str, start: str) -> str:
        """A tile of a factor, 0 where ``mask`` does not hold."""
        operations, operand, inside = self.operations, side.operand, side.operand.inside
        value = operand.value
        if side.matrix:
            self._copy(side, place, start)
            return operations.text(value.name)
        operations.straight(operand.moving, place)
        if operand.limited is not None:
            operations.op(operand.limited, dataclasses.replace(place, beside=operations.text(inside)))
            inside = ""
        conditions = (mask if value.op != "load" else "", operations.text(inside) if inside else "")
        wanted, text = " & ".join(c for c in conditions if c), operations.text(value.name)
        return f"tl.where({wanted}, {text}, 0)" if wanted else text

    def _copy(self, side: Side, place: Place, start: str) -> None:
        """The tile of a matrix, which the card copies where memory is aligned."""
        out, operations, copy, load = self.out, self.operations, side.operand.copy, side.operand.value
        assert copy is not None
        corner = side.corner + (".to(tl.int32)" if operations.wide else "")
        out.open("if ALIGNED:")
        at = f"[{start}, {corner}]" if copy.deep else f"[{corner}, {start}]"
        name = operations.claim(load.name)
        out.put(f"{name} = {side.matrix}.load({at}){'.T' if copy.deep != side.turned else ''}", load.spans)
        out.close("")
        out.open("else:")
        operations.straight(side.operand.moving, place)
        out.close("")


def _dot(left: tuple[str, str], right: tuple[str, str], into: str, tf32: bool) -> str:
    """Products of two tiles (text, dtype), added to ``into``."""
    same = left[1] == right[1]
    a, b = (v if same or d == "f32" else f"{v}.to(tl.float32)" for v, d in (left, right))
    halves = same and left[1] != "f32"
    precision = "" if halves else f', input_precision="{"tf32" if tf32 else "ieee"}"'
    return f"tl.dot({a}, {b}, {into}{precision})"
