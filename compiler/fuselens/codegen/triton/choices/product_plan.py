"""How a program computes a tile of a product of matrices, decided before any text is written.

:func:`product_form` finds the product in a kernel, :func:`choose` says how its tiles are taken: which are copied by the card,
where they end, and what of a factor changes from term to term.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.affine import within
from ....ir.contracts.source import Unsupported
from ....ir.loops import ITEMSIZE, Axis, Graph, Kernel, Op, Phase
from ...expressions import linear, names_in
from ...nest import index_of
from .blocks import Launch, blocks_of
from .tiles import Tiles

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


@dataclass(frozen=True, slots=True)
class Copy:
    """A plain matrix of numbers in memory, whose tiles the card copies: where it starts, and how far its rows are apart."""

    start: Expr
    step: Expr
    deep: bool  # whether one of its rows has one term of each sum


@dataclass(frozen=True, slots=True)
class Operand:
    """How a tile of a factor is made: ``value``, or 0 where the condition ``inside`` does not hold, if there is one."""

    value: Op
    inside: str
    fixed: tuple[Op, ...]  # what is the same for all terms
    moving: tuple[Op, ...]
    limited: Op | None  # the load of ``value`` where it happens inside only, after the moving ones
    copy: Copy | None


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """``tall`` x ``broad`` tiles for each batch, which ``programs`` take in turn, or one each where that is 0."""

    form: Product
    tiles: Tiles
    tall: Expr
    broad: Expr
    programs: int
    left: Operand
    right: Operand
    along: bool  # whether a tile's terms differ along one axis only
    whole_rows: bool  # whether tiles end where rows do
    whole_columns: bool
    whole_terms: bool
    descriptors: str  # the buffer of them, where the card copies tiles

    @property
    def several(self) -> Expr:
        return self.tall * self.broad

    @property
    def launch(self) -> Launch:
        tiles = self.tiles
        grid = self.several * sympy.Mul(*(a.size for a in self.form.batches))
        constants = {"YBLOCK": tiles.rows, "XBLOCK": tiles.columns, "DEPTH": tiles.depth, "GROUP": tiles.group}
        if self.descriptors:
            constants["ALIGNED"] = 1
        programs = sympy.Integer(self.programs) if self.programs else grid
        return Launch(programs, constants, tiles.warps, tiles.stages, descriptors=self.descriptors)


def choose(kernel: Kernel, graph: Graph, tiles: Tiles) -> ProductPlan:
    """The plan of a product in these tiles. Raises Unsupported where the kernel is none, or cannot be taken so."""
    form = product_form(kernel)
    if form.neither or (tiles.programs and (form.batches or not form.fixed)):
        raise Unsupported("a product of other axes")
    tall, broad = blocks_of(form.height, tiles.rows), blocks_of(form.width, tiles.columns)
    several = tall * broad
    programs = min(tiles.programs, int(several)) if several.is_Integer else tiles.programs
    descriptors = descriptors_of(kernel.name)
    may_copy = bool(tiles.programs) and descriptors in graph.buffers
    left, right = (
        _operand(factor, form.terms, place, graph if may_copy else None)
        for factor, place in ((form.left, form.rows), (form.right, form.columns))
    )
    *outer, inner = form.terms
    return ProductPlan(
        form, tiles, tall, broad, programs, left, right,
        along=bool(outer) and _covers(inner.size, tiles.depth),
        whole_rows=_covers(form.height, tiles.rows), whole_columns=_covers(form.width, tiles.columns),
        whole_terms=_covers(sympy.Mul(*(a.size for a in form.terms)), tiles.depth),
        descriptors=descriptors if left.copy or right.copy else "",
    )  # fmt: skip


def _operand(factor: Factor, terms: tuple[Axis, ...], place: tuple[Axis, ...], graph: Graph | None) -> Operand:
    """``place`` are the axes of rows or columns; a ``graph`` is given where the card may copy tiles."""
    value, inside = _dot_operand(factor)
    changing = _depending(factor.ops, frozenset(a.name for a in terms))
    fixed = tuple(o for o in factor.ops if o.name not in changing)
    moving = tuple(o for o in _needed(factor.ops, {value.name, inside}) if o.name in changing)
    first, limited = _needed(factor.ops, {inside}), None
    if inside and value.op == "load" and value in moving and value not in first:  # loaded where it is wanted only
        moving = tuple(o for o in moving if o is not value)
        limited = _without_limits(value, first, inside)
    copy = None if graph is None or inside else _copy(value, terms, place, graph)
    return Operand(value, inside, fixed, moving, limited, copy)


def _copy(load: Op, terms: tuple[Axis, ...], place: tuple[Axis, ...], graph: Graph) -> Copy | None:
    """How the card copies an operand's tiles, where memory holds a plain matrix of them."""
    if load.op != "load" or len(terms) != 1 or len(place) != 1:
        return None
    deep, wide = terms[0].name, place[0].name
    form = linear(sympy.sympify(load.args[1]), frozenset((deep, wide)))
    steps = {n: form.coefficients.get(n, sympy.S.Zero) for n in (deep, wide)}
    inner, outer = sorted(steps, key=lambda n: steps[n] != 1)
    numbers = (*steps.values(), form.rest)
    if form.tangled or not all(n.is_Integer for n in numbers) or steps[inner] != 1 or steps[outer] <= 1:
        return None
    width = ITEMSIZE[graph.buffers[load.args[0]].dtype]
    if int(steps[outer]) * width % 16 or int(form.rest) * width % 16:
        return None
    return Copy(form.rest, steps[outer], outer == deep)


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
