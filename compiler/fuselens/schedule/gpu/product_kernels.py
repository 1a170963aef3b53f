"""Products of matrices as kernels, which take what reads the product along: what may replace a call of the vendor's library.

A product is a reduction of the IR like any other: for each row and column the sum over ``k`` of what the operands hold
there, in single precision, rounded to the product's type. What reads every element of it once follows in the next phase, and
what makes an operand's elements may come first, computed again for each tile that multiplies them.
A product with few elements and long sums is split: one kernel adds up parts, another adds the parts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from fuselens.ir.affine import product, row_major
from fuselens.ir.loops import (
    Axis,
    Buffer,
    Graph,
    Kernel,
    Loop,
    Node,
    Op,
    Phase,
    symbol,
)
from fuselens.schedule.emit import translated
from fuselens.schedule.sites.convolution import element
from fuselens.schedule.sites.products import Maker, Site, fresh, read_at, used, wanted

PARTS = (2, 4, 8, 16)  # of the sums of a split product
SHORTEST_PART = 128


@dataclass(frozen=True, slots=True)
class Alternative:
    """Kernels that compute what the nodes of a site do. ``product`` is the one that sums products."""

    label: str
    kernels: tuple[Kernel, ...]
    product: str
    buffers: tuple[Buffer, ...] = ()
    parts: int = 1
    inside: bool = False  # whether operands are made in the product's kernel


def one_kernel(graph: Graph, site: Site) -> Alternative:
    """The product with its reader, in one kernel."""
    return _known_apart(graph, _in_one(graph, site))


def alternatives(graph: Graph, site: Site) -> list[Alternative]:
    """The ways in which kernels compute the nodes of ``site``."""
    found = [_in_one(graph, site)]
    if any(site.makers):
        before = _whole(graph, site, inside=True)
        found.append(Alternative(f"{found[0].label} with operands", (before,), before.name, inside=True))
    cut, deep = _cut(site), product(site.operands.summed)
    several = [p for p in PARTS if cut.is_Integer and int(cut) % p == 0 and graph.hint(deep) // p >= SHORTEST_PART]
    found += [_split(graph, site, parts) for parts in several]
    return [_known_apart(graph, choice) for choice in found]


def _in_one(graph: Graph, site: Site) -> Alternative:
    whole = _whole(graph, site)
    return Alternative("fused" if site.reader is not None else "kernel", (whole,), whole.name)


def _known_apart(graph: Graph, choice: Alternative) -> Alternative:
    return dataclasses.replace(choice, kernels=tuple(_apart(graph, k) for k in choice.kernels))


def with_room(graph: Graph, name: str, size: int) -> Graph:
    """``graph`` with a buffer of ``size`` bytes for a kernel's own use."""
    device = next(b.device for b in graph.buffers.values())
    buffer = Buffer(name, "u8", (sympy.Integer(size),), (sympy.S.One,), device=device)
    return graph.replace(buffers={**graph.buffers, name: buffer})


def _whole(graph: Graph, site: Site, *, inside: bool = False) -> Kernel:
    whole = _product(site, 1, inside=inside)
    return whole if site.reader is None else _joined(graph, site, whole)


def replaced(graph: Graph, site: Site, choice: Alternative) -> Graph:
    """``graph`` with the kernels of ``choice`` in the place of the last of the nodes that they stand for."""
    gone = site.nodes if choice.inside else tuple(n for n in site.nodes if n not in site.kernels_before)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node is gone[-1]:
            nodes += choice.kernels
        elif not any(node is g for g in gone):
            nodes.append(node)
    return graph.replace(nodes=tuple(nodes), buffers={**graph.buffers, **{b.name: b for b in choice.buffers}})


def nodes_of(site: Site, choice: Alternative) -> tuple[Kernel, ...]:
    """The kernels that do the work of the site's nodes."""
    return choice.kernels if choice.inside else (*site.kernels_before, *choice.kernels)


# --- kernels ----------------------------------------------------------------------------------------------------------


def _cut(site: Site) -> Expr:
    """The dimension that is summed in parts: the innermost, which is the longest of products and channels of convolutions."""
    return site.operands.summed[-1]


def _product(site: Site, parts: int, *, inside: bool = False) -> Kernel:
    """The product as a kernel of its own; with ``parts`` those of its sums, which it stores in the buffer ``NAME_parts``."""
    axes = [Axis(f"i{d}", size) for d, size in enumerate(site.elements)]
    where = tuple(a.symbol for a in axes)
    call, out = site.call, site.operands.out
    if parts == 1:
        point = where[len(where) - len(out.sizes) :]
        tail = [
            *_finished(site, "total", where),
            Op("store0", "store", (out.name, sympy.expand(out.index(point)), "rounded"), out.dtype, site.call.spans),
        ]
        name = call.name
    else:
        part = Axis(f"i{len(axes)}", sympy.Integer(parts))
        index = row_major((part, *axes))
        tail = [Op("store0", "store", (_parts_name(site), index, "total"), "f32", site.call.spans)]
        axes.insert(0, part)
        name = f"{call.name}_1"
    phases = (_summed(site, where, parts, inside), Phase((), tuple(tail)))
    return Kernel(f"kernel_{name}", tuple(axes), phases, (call.name,), (call.origin,), call.spans)


def _parts_name(site: Site) -> str:
    return f"{site.call.name}_parts"


def _summed(site: Site, where: tuple[Expr, ...], parts: int, inside: bool) -> Phase:
    """The phase that sums products, for the element at ``where``."""
    *outer, last = site.operands.summed
    last = last / parts
    axes = tuple(Axis(f"k{d}" if outer else "k", size) for d, size in enumerate((*outer, last)))
    *taps, k = (a.symbol for a in axes)
    k = k if parts == 1 else symbol(f"i{len(where)}") * last + k
    batch, *rest = where
    high = len(site.operands.rows)
    points = ((batch, *rest[:high], *taps, k), (batch, *taps, k, *rest[high:]))
    spans = site.call.spans
    body: list[Op] = []
    for which, name in enumerate(("left", "right")):
        point, maker = points[which], site.makers[which]
        if inside and maker is not None:
            made, value = _made(maker, name, point)
            body += [*made, Op(name, "cast", (value,), "f32", spans)]
        else:
            buffer = site.operands.factors[which]
            point = point[len(point) - len(buffer.sizes) :]
            body += element(buffer, site.operands.borders[which], point, name, spans)
    body.append(Op("products", "mul", ("left", "right"), "f32", spans))
    body.append(Op("total", "reduce", ("sum", "products"), "f32", spans))
    return Phase(axes, tuple(body))


def _made(maker: Maker, prefix: str, point: tuple[Expr, ...]) -> tuple[list[Op], str]:
    """The ops that make the element at ``point`` of an operand, and the name of its value."""
    batch, row, column = point
    outer, inner = (column, row) if maker.turned else (row, column)
    places = zip((maker.batch, maker.outer, maker.inner), (batch, outer, inner), strict=True)
    mapping = {name: expression for name, expression in places if name}
    names = {o.name: f"{prefix}_{o.name}" for o in maker.kernel.ops()}
    ops = [translated(translated(o, maker.change), mapping, names) for o in maker.kernel.ops()]
    store = next(o for o in ops if o.op == "store")
    return [o for o in ops if o is not store], store.args[2]


def _finished(site: Site, total: str, where: tuple[Expr, ...]) -> list[Op]:
    """From the sum to the element of the product, ``rounded``."""
    call, spans = site.call, site.call.spans
    scale = dict(call.kwargs)
    ops: list[Op] = []

    def scaled(value: str, by: Any) -> str:
        if by == 1:
            return value
        ops.append(Op(f"{value}_by", "const", (float(by),), "f32"))
        ops.append(Op(f"{value}_scaled", "mul", (value, f"{value}_by"), "f32", spans))
        return f"{value}_scaled"

    total = scaled(total, scale.get("alpha", 1))
    beta = scale.get("beta", 1)
    buffer = site.operands.added
    if buffer is not None and beta != 0:
        given = where[len(where) - len(buffer.sizes) :]
        point = tuple(sympy.S.Zero if size == 1 else p for size, p in zip(buffer.sizes, given, strict=True))
        index = sympy.expand(buffer.index(point))
        ops.append(Op("added_element", "load", (buffer.owner, index), buffer.dtype, spans))
        ops.append(Op("added", "cast", ("added_element",), "f32", spans))
        ops.append(Op("sum_and_added", "add", (total, scaled("added", beta)), "f32", spans))
        total = "sum_and_added"
    return [*ops, Op("rounded", "cast", (total,), site.dtype, spans)]


def _joined(graph: Graph, site: Site, whole: Kernel) -> Kernel:
    """``whole`` (or a sum of its parts) with what reads it."""
    reader = site.points
    assert reader is not None
    places = read_at(site, reader, graph.hint)
    assert places is not None
    taken = {o.name for o in reader.ops()}
    first, last = whole.phases
    names = {o.name: o.name if o.name not in taken else fresh(o.name, taken) for o in whole.ops()}
    axes = _renamed(first.axes, {x.name for x in places.axes}, taken)
    mapping: dict[str, Expr] = {f"i{d}": place for d, place in enumerate(places.at)}
    mapping |= {old.name: new.symbol for old, new in zip(first.axes, axes, strict=True)}
    reading = {o.name: names["rounded"] for o in reader.ops() if o.op == "load" and o.args[0] == site.call.name}
    kept = _is_kept(graph, site)
    body = [translated(o, mapping, names) for o in last.body if o.op != "store" or kept]
    body += [translated(o, places.change, reading) for o in reader.ops() if o.name not in reading]
    phases = (Phase(axes, tuple(translated(o, mapping, names) for o in first.body)), Phase((), _numbered(body)))
    return Kernel(
        reader.name, places.axes, phases, (site.call.name, *reader.loops), (site.call.origin, *reader.origins),
        tuple(dict.fromkeys((*site.call.spans, *reader.spans))),
    )  # fmt: skip


def _renamed(axes: tuple[Axis, ...], theirs: set[str], taken: set[str]) -> tuple[Axis, ...]:
    """``axes``, with other names for those that are called as one of ``theirs``."""
    held = theirs | taken
    return tuple(Axis(fresh(a.name, held), a.size) if a.name in theirs else a for a in axes)


def _is_kept(graph: Graph, site: Site) -> bool:
    """Whether somebody else reads the product than the kernel that follows in the same one."""
    others = (n for n in graph.nodes if n is not site.call and n is not site.reader and not isinstance(n, Loop))
    return site.call.name in wanted(graph) or any(site.call.name in used(graph, n) for n in others)


def _numbered(body: Iterable[Op]) -> tuple[Op, ...]:
    """``body`` with stores named in order."""
    stores = itertools.count()
    return tuple(dataclasses.replace(o, name=f"store{next(stores)}") if o.op == "store" else o for o in body)


def _split(graph: Graph, site: Site, parts: int) -> Alternative:
    """Sums in parts, then the sums of the parts, with what follows."""
    first = _product(site, parts)
    sizes = (sympy.Integer(parts), *site.elements)
    strides = tuple(product(sizes[d + 1 :]) for d in range(len(sizes)))
    buffer = Buffer(_parts_name(site), "f32", sizes, strides, device=site.operands.out.device)
    whole = _product(site, 1)
    axis = Axis("k", sympy.Integer(parts))
    body = (
        Op("part", "load", (buffer.name, row_major((axis, *whole.axes))), "f32", site.call.spans),
        Op("total", "reduce", ("sum", "part"), "f32", site.call.spans),
    )
    second = dataclasses.replace(whole, phases=(Phase((axis,), body), whole.phases[1]))
    if site.reader is not None:
        second = _joined(graph, site, second)
    return Alternative(f"{parts} parts", (first, second), first.name, (buffer,), parts)


def _apart(graph: Graph, kernel: Kernel) -> Kernel:
    """``kernel`` without values and axes that are called as buffers are: a program may call its tensors ``k`` or ``total``."""
    axes = [a.name for a in kernel.all_axes()]
    taken = {*graph.buffers, *axes, *(o.name for o in kernel.ops())}
    names = {o.name: fresh(o.name, taken) for o in kernel.ops() if o.name in graph.buffers}
    moved = {a: fresh(a, taken) for a in axes if a in graph.buffers}
    if not names and not moved:
        return kernel
    mapping: dict[str, Expr] = {a: symbol(b) for a, b in moved.items()}

    def renamed(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(moved.get(a.name, a.name), a.size) for a in axes)

    phases = tuple(Phase(renamed(p.axes), tuple(translated(o, mapping, names) for o in p.body)) for p in kernel.phases)
    return dataclasses.replace(kernel, axes=renamed(kernel.axes), phases=phases)
