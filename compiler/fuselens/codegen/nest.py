"""Shapes the loop nest of a kernel before text is printed: fewer and better ordered axes, and where vectors run.

Nothing here changes what is computed. Axes of one point vanish, parallel axes are ordered by the stride of the widest
access, and neighbours that walk memory as one are merged, so that a contiguous tensor of any rank is one long row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import sympy
from sympy import Expr

from ..ir.affine import row_major
from ..ir.loops import Axis, Graph, Kernel, Op, Phase, indirect_names
from .expressions import linear, names_in, set_zero


@dataclass(frozen=True, slots=True)
class Nest:
    """A kernel with simplified axes. ``positions`` gives, per phase, the flat row-major position in its original axes."""

    kernel: Kernel
    positions: tuple[Expr, ...]
    hint: Callable[[Expr], int]

    def size(self, name: str) -> Expr:
        for axis in self.kernel.all_axes():
            if axis.name == name:
                return axis.size
        raise KeyError(name)


def numbered(index: Expr, phase: Phase) -> Expr:
    """The index with the phase's axes as numbers: phases name theirs differently."""
    return _numbered(index, tuple(a.symbol for a in phase.axes))


@functools.lru_cache(1 << 12)
def _numbered(index: Expr, axes: tuple[sympy.Symbol, ...]) -> Expr:
    """Kept: the layers of a network have the same, and sympy compares the parts of limits."""
    return index.xreplace({a: sympy.Symbol(f"@{k}", integer=True, nonnegative=True) for k, a in enumerate(axes)})  # pyright: ignore


def index_of(op: Op) -> Expr | None:
    """The index expression of an op that has one."""
    return None if op.index is None else sympy.sympify(op.index)


def in_order(body: Iterable[Op]) -> bool:
    """Whether points of the phase's axes come one after the other: scans run along them, or updates in turn."""
    return any(op.op == "scan" or op.update for op in body)


def simplify(kernel: Kernel, graph: Graph) -> Nest:
    """``kernel`` with unit axes dropped, parallel axes ordered by stride, and mergeable neighbours merged."""
    positions = [row_major(p.axes) for p in kernel.phases]
    one = frozenset(a.name for a in kernel.all_axes() if a.size == 1)
    if one:
        kernel = dataclasses.replace(
            kernel,
            axes=tuple(a for a in kernel.axes if a.name not in one),
            phases=tuple(
                Phase(tuple(a for a in p.axes if a.name not in one), _map(p.body, lambda e: set_zero(e, one)))
                for p in kernel.phases
            ),
        )
        positions = [set_zero(e, one) for e in positions]
    kernel = dataclasses.replace(kernel, phases=tuple(p if p.axes else _without_folds(p) for p in kernel.phases))
    everything = [op for p in kernel.phases for op in p.body]
    axes = _by_stride(kernel.axes, _walked(kernel) or everything, graph)
    axes, gone = _merge(axes, [e for op in everything if (e := index_of(op)) is not None])
    phases, flats = [], []
    for phase, position in zip(kernel.phases, positions, strict=True):
        body = _map(phase.body, lambda e: set_zero(e, gone))
        own = phase.axes if in_order(body) else _by_stride(phase.axes, body, graph)
        extra = [position] if any(o.op == "reduce" and o.args[0] in ("argmax", "argmin") for o in body) else []
        own, inner = _merge(own, [e for op in body if (e := index_of(op)) is not None] + extra)
        phases.append(Phase(own, _map(body, lambda e, inner=inner: set_zero(e, inner))))
        flats.append(set_zero(position, inner))
    return Nest(dataclasses.replace(kernel, axes=axes, phases=tuple(phases)), tuple(flats), graph.hint)


def in_one_pass(kernel: Kernel, same_memory: Callable[[str, str], bool]) -> Kernel:
    """``kernel`` without phases, if it has one pass and folds nothing: what has one value per point of its axes before
    the pass is computed there anyway, and the axes of the pass run in parallel like all others."""
    passes = [k for k, p in enumerate(kernel.phases) if p.axes]
    if (
        len(passes) != 1
        or passes[0] != len(kernel.phases) - 1
        or any(o.op in ("reduce", "scan") or o.update for o in kernel.ops())
    ):
        return kernel
    *before, last = kernel.phases
    for op in (o for p in before for o in p.body):
        if op.op == "store" or (op.op == "load" and any(same_memory(op.args[0], s) for s in kernel.writes())):
            return kernel
    body = tuple(o for p in kernel.phases for o in p.body)
    return dataclasses.replace(kernel, axes=(*kernel.axes, *last.axes), phases=(Phase((), body),))


def _without_folds(phase: Phase) -> Phase:
    """A phase whose axes all had one point: each reduction and scan is its only value, at position 0."""
    body = []
    for op in phase.body:
        if op.op in ("reduce", "scan"):
            kind, value = op.args
            place = kind in ("argmax", "argmin")
            op = dataclasses.replace(op, op="const" if place else "cast", args=(0,) if place else (value,))
        body.append(op)
    return Phase((), tuple(body))


def _map(body: Iterable[Op], change: Callable[[Expr], Expr]) -> tuple[Op, ...]:
    return tuple(op.mapped(index=change) for op in body)


def _walked(kernel: Kernel) -> list[Op]:
    """What passes over columns load and store, where neighbours in memory are points of the kernel: columns of an image whose channels
    lie together. It is more than what each point stores once."""
    points = frozenset(a.name for a in kernel.axes)
    found: list[Op] = []
    for phase in kernel.phases:
        own = frozenset(a.name for a in phase.axes)
        for op in phase.body if own else ():
            if op.op in ("load", "store") and own & names_in(op.args[1]) and points <= names_in(op.args[1]):
                form = linear(sympy.sympify(op.args[1]), points | own).coefficients
                if any(form.get(n) == 1 for n in own):
                    return []
                found += [op] if any(form.get(n) == 1 for n in points) else []
    return found


def _by_stride(axes: tuple[Axis, ...], ops: Iterable[Op], graph: Graph) -> tuple[Axis, ...]:
    """``axes`` in the order in which the access that uses most of them walks memory, longest stride first."""
    if len(axes) < 2:
        return axes
    names = frozenset(a.name for a in axes)
    best: Mapping[str, Expr] = {}
    for op in ops:
        if op.op in ("load", "store"):
            form = linear(sympy.sympify(op.args[1]), names)
            found = {n: c for n, c in form.coefficients.items() if n not in form.tangled}
            if len(found) > len(best) or (len(found) == len(best) and op.op == "store"):
                best = found
    stride = {n: abs(graph.hint(c)) if not _indirect(c) else 0 for n, c in best.items()}
    order = sorted(range(len(axes)), key=lambda k: (-stride.get(axes[k].name, 1 << 62), k))
    return tuple(axes[k] for k in order)


def _indirect(e: Expr) -> bool:
    return any(n.startswith("%") for n in names_in(e))


def _merge(axes: tuple[Axis, ...], indices: list[Expr]) -> tuple[tuple[Axis, ...], frozenset[str]]:
    """Merges neighbours (outer, inner) where every index steps by size(inner) inner steps per outer step.

    Returns the axes and the names of those that vanished: setting them to 0 makes the inner axis count for both.
    """
    if len(axes) < 2:
        return axes, frozenset()
    names = frozenset(a.name for a in axes)
    forms = [f for f in (linear(e, names) for e in dict.fromkeys(indices)) if f.coefficients or f.tangled]
    gone: set[str] = set()
    out = list(axes)
    k = len(out) - 2
    while k >= 0:
        outer, inner = out[k], out[k + 1]
        for form in forms:
            a, b = form.coefficient(outer.name), form.coefficient(inner.name)
            if a is None or b is None or (a != b * inner.size and sympy.expand(a - b * inner.size) != 0):
                break
        else:
            out[k : k + 2] = [Axis(inner.name, sympy.expand(outer.size * inner.size))]
            gone.add(outer.name)
        k -= 1
    return tuple(out), frozenset(gone)


# --- where vectors run ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """How a nest becomes loops.

    ``layout`` is one of

    * ``points``: no phase has axes of its own; vectors run along ``vector``, a kernel axis ("" for a single point)
    * ``columns``: vectors run along ``vector``, a kernel axis; phases loop inside, each lane for itself
    * ``rows``: vectors run along an axis of each phase (``inner``), then lanes are folded
    * ``sweep``: updates of neighbouring elements, in turn: the phase's axes outside, vectors along a kernel axis inside
    * ``whole``: as rows, but there are too few kernel points to share out, so phases run in parallel inside
    """

    layout: str
    vector: str
    inner: tuple[str, ...]  # per phase, its vector axis in rows and whole ("" where it has no axes)
    wide: bool  # lanes of 64 bits
    tile: str = ""  # in points, the axis along which accesses that vectors cross are contiguous, if there are any
    shared: bool = False  # in columns, threads share the folds, as in whole: there are too few columns


@dataclass(frozen=True, slots=True)
class Tuning:
    """Choices that measuring may overrule, each its default where it is empty. None of them lets results depend on threads."""

    layout: str = ""  # "rows" or "columns"
    unroll: int = 0  # accumulators of a fold along rows; vectors side by side along columns
    parallel: bool | None = None  # whether threads share the kernel, whatever its size

    def __str__(self) -> str:
        shared = {None: "", True: "by all threads", False: "by one thread"}[self.parallel]
        return ", ".join(p for p in (self.layout, f"{self.unroll} side by side" if self.unroll else "", shared) if p)


FEW_POINTS = 4  # of a kernel, or other points for each column
FEW_COLUMNS = 512  # points along the axis of vectors
LONG_FOLD = 1024  # points of an axis that is folded
MUCH_WORK = 1 << 15  # elements of a pass, as one that threads may share has
WORTH_A_TILE = 8  # elements of both axes of a transpose


def plan(nest: Nest, wanted: str = "") -> Plan:
    """Chooses the layout from strides and size hints; ``wanted`` is one of :func:`layouts`, chosen already."""
    layout, vector, inner = _layout(nest, wanted)
    tile = _tile(nest, vector) if layout == "points" and vector and not any(o.update for o in nest.kernel.ops()) else ""
    shared = layout == "columns" and not wanted and _few_columns(nest, vector)
    return Plan(layout, vector, inner, _wide(nest.kernel, vector, inner), tile, shared)


def layouts(nest: Nest) -> tuple[str, ...]:
    """The layouts that a kernel may have, if they are a choice."""
    phases = [p for p in nest.kernel.phases if p.axes]
    if not phases or any(in_order(p.body) for p in nest.kernel.phases) or plan(nest).layout not in ("rows", "columns"):
        return ()
    column = _best_axis(nest.kernel.axes, nest.kernel.ops(), nest)
    return ("rows", "columns") if column and nest.hint(nest.size(column)) >= 4 else ("rows",)


def _layout(nest: Nest, wanted: str = "") -> tuple[str, str, tuple[str, ...]]:
    """The first three parts of a plan."""
    kernel = nest.kernel
    phases = [p for p in kernel.phases if p.axes]
    none = ("",) * len(kernel.phases)
    if not phases:
        return "points", _best_axis(kernel.axes, kernel.ops(), nest), none
    updates = any(o.update for o in kernel.ops())
    if updates and _sweeps(kernel):
        column = _best_axis(kernel.axes, kernel.ops(), nest)
        if column and _score(column, phases[0].body, nest) > 0:
            return "sweep", column, none
    inner = tuple(p.axes[-1].name if in_order(p.body) else _best_axis(p.axes, p.body, nest) for p in kernel.phases)
    by_rows = sum(_score(a, p.body, nest) for a, p in zip(inner, kernel.phases, strict=True) if a)
    column = _best_axis(kernel.axes, kernel.ops(), nest)
    if column and nest.hint(nest.size(column)) >= 4:
        by_columns = sum(_score(column, p.body, nest) for p in phases)
        if wanted == "columns" or (by_columns > by_rows and not wanted):
            return "columns", column, none
    points = nest.hint(_product(kernel.axes))
    work = max(nest.hint(_product(p.axes)) for p in phases)
    whole = points <= FEW_POINTS and work >= MUCH_WORK and not updates and not wanted
    return "whole" if whole else "rows", "", inner


def _few_columns(nest: Nest, vector: str) -> bool:
    """Whether columns are few and long, and folds do not come in turn."""
    phases = [p for p in nest.kernel.phases if p.axes]
    columns, points = nest.hint(nest.size(vector)), nest.hint(_product(nest.kernel.axes))
    longest = max(nest.hint(a.size) for p in phases for a in p.axes)
    work = points * max(nest.hint(_product(p.axes)) for p in phases)
    few = columns <= FEW_COLUMNS and points <= FEW_POINTS * columns
    return few and longest >= LONG_FOLD and work >= 4 * MUCH_WORK and not any(in_order(p.body) for p in phases)


def _sweeps(kernel: Kernel) -> bool:
    """Whether all stores are in one phase, which folds nothing: then its loops may run outside of the kernel's."""
    storing = [p for p in kernel.phases if any(o.op == "store" for o in p.body)]
    inside = [p for p in kernel.phases if p.axes]
    return storing == inside and len(inside) == 1 and not any(o.op == "reduce" for o in inside[0].body)


def _wide(kernel: Kernel, vector: str, inner: tuple[str, ...]) -> bool:
    """Whether most values that differ between lanes have 64 bits. Those that are equal are computed outside of the innermost
    loop: a mask by row does not halve the vectors of its row, nor does a comparison with the position."""
    if any(op.op == "scan" and op.dtype in ("f64", "i64") for op in kernel.ops()):
        return True
    varying: set[str] = set()
    balance = 0
    for phase, axis in zip(kernel.phases, inner, strict=True):
        for op in phase.body:
            index = index_of(op)
            by_index = index is not None and (vector or axis) in names_in(index)
            if not by_index and varying.isdisjoint(op.operands()):
                continue
            narrow = op.op == "reduce" and op.args[0] in ("argmax", "argmin") and few(phase.axes)
            if op.op != "store" and op.dtype != "bool" and not narrow:
                balance += 1 if op.dtype in ("f64", "i64", "u64") else -1
            if vector or op.op != "reduce":  # along a row, lanes are folded into one
                varying.add(op.name)
    return balance > 0 or (
        not balance and any(o.dtype in ("f64", "i64", "u64") for o in kernel.ops() if o.op != "store")
    )


def _tile(nest: Nest, vector: str) -> str:
    """The axis along which most of the accesses are contiguous that vectors along ``vector`` cross; "" where none are."""
    counts: dict[str, int] = {}
    for op in nest.kernel.ops():
        index = index_of(op)
        if op.op not in ("load", "store") or index is None or indirect_names(index):
            continue
        form = linear(index, frozenset(a.name for a in nest.kernel.axes))
        if form.coefficient(vector) not in (None, -1, 0, 1):
            for name, coefficient in form.coefficients.items():
                if coefficient == 1 and name not in form.tangled and nest.hint(nest.size(name)) >= WORTH_A_TILE:
                    counts[name] = counts.get(name, 0) + 1
    if not counts or nest.hint(nest.size(vector)) < WORTH_A_TILE:
        return ""
    return max(counts, key=lambda n: counts[n])


def few(axes: Iterable[Axis]) -> bool:
    """Whether positions in the space of ``axes`` are known to fit 32 bits."""
    points = _product(axes)
    return bool(points.is_Integer) and int(points) < 1 << 31


def _product(axes: Iterable[Axis]) -> Expr:
    return sympy.Mul(*(a.size for a in axes))


def _best_axis(axes: tuple[Axis, ...], ops: Iterable[Op], nest: Nest) -> str:
    if not axes:
        return ""
    body = tuple(ops)
    scores = [(_score(a.name, body, nest), nest.hint(a.size) >= 8, k) for k, a in enumerate(axes)]
    return axes[max(scores)[2]].name


def _score(axis: str, body: Iterable[Op], nest: Nest) -> float:
    """How well vectors run along ``axis``: contiguous accesses count for it, strided and gathered ones against.

    What is read along ``axis`` alone counts little: it could as well be read once for each of its points.
    """
    score = 0.0
    others = {a.name for a in nest.kernel.all_axes()} - {axis}
    varying: set[str] = set()  # what differs between lanes: a position among it is a gather
    for op in body:
        index = index_of(op)
        if (index is not None and axis in names_in(index)) or not varying.isdisjoint(op.operands()):
            varying.add(op.name)
        if index is None or op.op not in ("load", "store"):
            continue
        coefficient = linear(index, frozenset((axis,))).coefficient(axis)
        weight = 1.5 if op.op == "store" else 1.0 if others & names_in(index) else 0.1
        if coefficient is None or not varying.isdisjoint(indirect_names(index)):
            score -= 2 * weight
        elif coefficient == 1:
            score += weight
        elif coefficient == -1:  # a vector whose lanes are reversed
            score += weight / 2
        elif coefficient != 0:
            score -= weight
    if nest.hint(nest.size(axis)) < 4:
        score -= 1
    return score
