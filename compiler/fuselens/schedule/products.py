"""Products of matrices as kernels, which take what reads the product along: what may replace a call of the vendor's library.

A product is a reduction of the IR like any other: for each row and column the sum over ``k`` of what the operands hold
there, in single precision, rounded to the product's type. What reads every element of it once follows in the next phase.
A product with few elements and long sums is split: one kernel adds up parts, another adds the parts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from fuselens.ir.affine import linear, substitute, symbol_names
from fuselens.ir.loops import (
    Axis,
    Buffer,
    Extern,
    Graph,
    Kernel,
    Node,
    Op,
    Phase,
    Ref,
    extern_reads,
    symbol,
    value_symbol,
)  # fmt: skip

_PRODUCTS = {"aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default"}
_DTYPES = ("f32", "f16", "bf16")
PARTS = (2, 4, 8, 16)  # of the sums of a split product
SHORTEST_PART = 128


@dataclass(frozen=True, slots=True)
class Site:
    """A call that computes a product, and the kernel that may follow in the same one, if there is any."""

    call: Extern
    reader: Kernel | None
    batch: int
    rows: int
    columns: int
    summed: int
    dtype: str

    @property
    def nodes(self) -> tuple[Extern | Kernel, ...]:
        return (self.call,) if self.reader is None else (self.call, self.reader)


@dataclass(frozen=True, slots=True)
class Instead:
    """Kernels that compute what the nodes of a site do. ``products`` are those among them that sum products."""

    label: str
    kernels: tuple[Kernel, ...]
    product: str
    buffers: tuple[Buffer, ...] = ()
    parts: int = 1


def sites(graph: Graph) -> list[Site]:
    """The products of a fused graph that a kernel could compute."""
    found = []
    taken: set[str] = set()
    for node in reversed(graph.nodes):  # what reads two products goes with the later one
        site = _site(graph, node) if isinstance(node, Extern) else None
        if site is None:
            continue
        reader = _reader(graph, site)
        if reader is not None and reader.name not in taken:
            taken.add(reader.name)
            site = dataclasses.replace(site, reader=reader)
        found.append(site)
    return found[::-1]


def instead(graph: Graph, site: Site) -> list[Instead]:
    """The ways in which kernels compute the nodes of ``site``."""
    product = _product(graph, site, 1)
    whole = _joined(graph, site, product) if site.reader is not None else product
    found = [Instead("kernel" if whole is product else "fused", (whole,), whole.name)]
    several = [p for p in PARTS if site.summed % p == 0 and site.summed // p >= SHORTEST_PART]
    return [*found, *(_split(graph, site, parts) for parts in several)]


def replaced(graph: Graph, site: Site, choice: Instead) -> Graph:
    """``graph`` with the kernels of ``choice`` in the place of the last of the site's nodes."""
    last = site.nodes[-1]
    gone = set(map(id, site.nodes))
    nodes: list[Node] = []
    for node in graph.nodes:
        if node is last:
            nodes += choice.kernels
        elif id(node) not in gone:
            nodes.append(node)
    return graph.replace(nodes=tuple(nodes), buffers={**graph.buffers, **{b.name: b for b in choice.buffers}})


# --- what a call computes ---------------------------------------------------------------------------------------------


def _site(graph: Graph, call: Extern) -> Site | None:
    if call.target not in _PRODUCTS or call.outputs != (call.name,) or graph.buffers[call.name].storage:
        return None
    scale = dict(call.kwargs)
    if not scale.keys() <= {"alpha", "beta"} or not all(isinstance(v, (int, float)) for v in scale.values()):
        return None
    if not all(isinstance(a, Ref) for a in call.args):
        return None
    out = graph.buffers[call.name]
    operands = [graph.buffers[a.name] for a in call.args]
    buffers = [out, *operands]
    if out.dtype not in _DTYPES or any(b.dtype != out.dtype for b in buffers):
        return None
    numbers = [e for b in buffers for e in (*b.sizes, *b.strides, b.offset)]
    if not all(e.is_Integer for e in numbers):
        return None
    a = operands[-2]
    batch = int(a.sizes[0]) if len(a.sizes) == 3 else 1
    rows, summed, columns = int(a.sizes[-2]), int(a.sizes[-1]), int(out.sizes[-1])
    if min(batch, rows, summed, columns) == 0 or min(rows, columns) == 1:
        return None
    return Site(call, None, batch, rows, columns, summed, out.dtype)


def _reader(graph: Graph, site: Site) -> Kernel | None:
    """The first node that uses the product, if that is a kernel of points that reads each of its elements once."""
    place = next(k for k, n in enumerate(graph.nodes) if n is site.call)
    read = {graph.buffers[n].owner for n in extern_reads(site.call)}
    for node in graph.nodes[place + 1 :]:
        if isinstance(node, Extern):
            if any(graph.buffers[n].owner == site.call.name for n in extern_reads(node)):
                return None
            if any(graph.buffers[n].owner in read for n in node.mutates):
                return None
            continue
        if not isinstance(node, Kernel):
            return None
        if site.call.name in node.reads():
            points = not any(p.axes for p in node.phases) and all(
                o.op not in ("reduce", "scan", "bounds") and not o.update for o in node.ops()
            )
            return node if points and _places(graph, site, node) is not None else None
        if read & set(node.writes()):
            return None
    return None


@dataclass(frozen=True, slots=True)
class _Places:
    """The points of a kernel by elements of the product: its axes, divided where rows and batches end."""

    axes: tuple[Axis, ...]
    change: dict[str, Expr]  # divided axes in terms of what they were divided into
    batch: Expr
    row: Expr
    column: Expr


def _places(graph: Graph, site: Site, kernel: Kernel) -> _Places | None:
    out = graph.buffers[site.call.name]
    expected = [site.columns * site.rows, site.columns, 1][-len(out.sizes) :]
    if [int(s) for s in out.strides] != expected or out.offset != 0:
        return None
    indices = {sympy.sympify(o.args[1]) for o in kernel.ops() if o.op == "load" and o.args[0] == out.name}
    names = frozenset(a.name for a in kernel.axes)
    form = linear(next(iter(indices)), names) if len(indices) == 1 else None
    if form is None or form.constant != 0 or not all(a.size.is_Integer for a in kernel.axes):
        return None
    if not all(c.is_Integer for _, c in form.terms):
        return None
    steps = {a: int(c) for a, c in form.terms}
    axes = sorted((a for a in kernel.axes if a.size != 1), key=lambda a: -steps.get(a.name, 0))
    reach = 1
    parts: list[tuple[Axis, int]] = []  # innermost first, with its step
    change: dict[str, Expr] = {}
    taken = {a.name for a in kernel.axes}
    for axis in reversed(axes):
        if steps.get(axis.name) != reach:
            return None
        divided = _divided(axis, reach, (site.columns, site.columns * site.rows), taken)
        if divided is None:
            return None
        if len(divided) > 1:
            change[axis.name] = sympy.Add(*(a.symbol * (step // reach) for a, step in divided))
        parts += divided
        reach *= int(axis.size)
    if reach != site.batch * site.rows * site.columns:
        return None

    def position(low: int, high: int) -> Expr:
        return sympy.Add(*(a.symbol * (step // low) for a, step in parts if low <= step < high))

    many = site.columns * site.rows
    change |= {a.name: sympy.S.Zero for a in kernel.axes if a.size == 1}
    return _Places(
        tuple(a for a, _ in reversed(parts)), change,
        position(many, reach + 1), position(site.columns, many), position(1, site.columns),
    )  # fmt: skip


def _divided(axis: Axis, step: int, borders: tuple[int, ...], taken: set[str]) -> list[tuple[Axis, int]] | None:
    """``axis``, innermost part first, so that no part crosses a border."""
    size = int(axis.size)
    cuts = sorted({b for b in borders if step < b < step * size})
    found = []
    for at, end in zip([step, *cuts], [*cuts, step * size], strict=True):
        if end % at:
            return None
        name = axis.name if not cuts else _fresh(axis.name, taken)
        found.append((Axis(name, sympy.Integer(end // at)), at))
    return found


def _fresh(name: str, taken: set[str]) -> str:
    new = next(f"{name}_{k}" for k in range(len(taken) + 1) if f"{name}_{k}" not in taken)
    taken.add(new)
    return new


# --- kernels ----------------------------------------------------------------------------------------------------------


def _product(graph: Graph, site: Site, parts: int) -> Kernel:
    """The product as a kernel of its own; with ``parts`` those of its sums, which it stores in the buffer ``NAME_parts``."""
    axes = [Axis(n, sympy.Integer(s)) for n, s in (("i0", site.batch), ("i1", site.rows), ("i2", site.columns))]
    where = tuple(a.symbol for a in axes)
    call, out = site.call, graph.buffers[site.call.name]
    if parts == 1:
        point = where[-len(out.sizes) :]
        tail = [
            *_finished(graph, site, "total", where),
            Op("store0", "store", (out.name, out.index(point), "rounded"), ""),
        ]
        name = call.name
    else:
        part = Axis("i3", sympy.Integer(parts))
        size = site.batch * site.rows * site.columns
        index = part.symbol * size + (where[0] * site.rows + where[1]) * site.columns + where[2]
        tail = [Op("store0", "store", (_parts_name(site), sympy.expand(index), "total"), "")]
        axes.insert(0, part)
        name = f"{call.name}_1"
    tail[-1] = dataclasses.replace(tail[-1], dtype=out.dtype if parts == 1 else "f32")
    phases = (_summed(graph, site, where, parts), Phase((), tuple(tail)))
    return Kernel(f"kernel_{name}", tuple(axes), phases, (call.name,), (call.origin,), call.spans)


def _parts_name(site: Site) -> str:
    return f"{site.call.name}_parts"


def _summed(graph: Graph, site: Site, where: tuple[Expr, ...], parts: int = 1) -> Phase:
    """The phase that sums products, for the element at ``where``."""
    a, b = (graph.buffers[r.name] for r in site.call.args[-2:])
    length = site.summed // parts
    axis = Axis("k", sympy.Integer(length))
    k = axis.symbol if parts == 1 else symbol("i3") * length + axis.symbol
    batch, row, column = where
    spans = site.call.spans
    body = []
    for name, buffer, point in (("left", a, (batch, row, k)), ("right", b, (batch, k, column))):
        index = sympy.expand(buffer.index(point[-len(buffer.sizes) :]))
        body.append(Op(f"{name}_element", "load", (buffer.owner, index), buffer.dtype, spans))
        body.append(Op(name, "cast", (f"{name}_element",), "f32", spans))
    body.append(Op("products", "mul", ("left", "right"), "f32", spans))
    body.append(Op("total", "reduce", ("sum", "products"), "f32", spans))
    return Phase((axis,), tuple(body))


def _finished(graph: Graph, site: Site, total: str, where: tuple[Expr, ...]) -> list[Op]:
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
    if len(call.args) == 3 and beta != 0:
        buffer = graph.buffers[call.args[0].name]
        given = where[-len(buffer.sizes) :] if buffer.sizes else ()
        point = tuple(sympy.S.Zero if size == 1 else p for size, p in zip(buffer.sizes, given, strict=True))
        index = sympy.expand(buffer.index(point))
        ops.append(Op("added_element", "load", (buffer.owner, index), buffer.dtype, spans))
        ops.append(Op("added", "cast", ("added_element",), "f32", spans))
        ops.append(Op("sum_and_added", "add", (total, scaled("added", beta)), "f32", spans))
        total = "sum_and_added"
    return [*ops, Op("rounded", "cast", (total,), site.dtype, spans)]


def _joined(graph: Graph, site: Site, product: Kernel) -> Kernel:
    """``product`` (or a sum of its parts) with what reads it."""
    reader = site.reader
    assert reader is not None
    places = _places(graph, site, reader)
    assert places is not None
    mapping = dict(zip(("i0", "i1", "i2"), (places.batch, places.row, places.column), strict=True))
    taken = {o.name for o in reader.ops()}
    first, last = product.phases
    names = {o.name: o.name if o.name not in taken else _fresh(o.name, taken) for p in product.phases for o in p.body}
    axis = next((a for a in first.axes if a.name in {x.name for x in places.axes}), None)
    if axis is not None:
        new = _fresh(axis.name, {x.name for x in places.axes} | taken)
        mapping[axis.name] = symbol(new)
        first = dataclasses.replace(first, axes=tuple(Axis(new, a.size) for a in first.axes))
    kept = _read_elsewhere(graph, site)
    tail = [o for o in last.body if o.op != "store" or kept]
    reading = {o.name: names["rounded"] for o in reader.ops() if o.op == "load" and o.args[0] == site.call.name}
    rest = [o for o in reader.ops() if o.name not in reading]
    body = [_changed(o, names, mapping) for o in tail]
    body += [_changed(o, reading, places.change) for o in rest]
    stores = iter(range(len(body)))
    body = [dataclasses.replace(o, name=f"store{next(stores)}") if o.op == "store" else o for o in body]
    phases = (Phase(first.axes, tuple(_changed(o, names, mapping) for o in first.body)), Phase((), tuple(body)))
    return Kernel(
        reader.name, places.axes, phases, (site.call.name, *reader.loops), (site.call.origin, *reader.origins),
        tuple(dict.fromkeys((*site.call.spans, *reader.spans))),
    )  # fmt: skip


def _read_elsewhere(graph: Graph, site: Site) -> bool:
    """Whether the product itself is wanted, beside what its reader makes of it."""
    name = site.call.name
    if any(graph.buffers[n].owner == name for n in graph.results()):
        return True
    for node in graph.nodes:
        if node is not site.call and node is not site.reader:
            reads = extern_reads(node) if isinstance(node, Extern) else node.reads() if isinstance(node, Kernel) else ()
            if any(graph.buffers[n].owner == name for n in reads):
                return True
    return False


def _split(graph: Graph, site: Site, parts: int) -> Instead:
    """Sums in parts, then the sums of the parts, with what follows."""
    first = _product(graph, site, parts)
    size = site.batch * site.rows * site.columns
    out = graph.buffers[site.call.name]
    sizes = tuple(map(sympy.Integer, (parts, site.batch, site.rows, site.columns)))
    strides = tuple(map(sympy.Integer, (size, site.rows * site.columns, site.columns, 1)))
    buffer = Buffer(_parts_name(site), "f32", sizes, strides, device=out.device)
    whole = _product(graph, site, 1)
    axis = Axis("k", sympy.Integer(parts))
    where = tuple(a.symbol for a in whole.axes)
    index = axis.symbol * size + (where[0] * site.rows + where[1]) * site.columns + where[2]
    body = (
        Op("part", "load", (buffer.name, sympy.expand(index)), "f32", site.call.spans),
        Op("total", "reduce", ("sum", "part"), "f32", site.call.spans),
    )
    second = dataclasses.replace(whole, phases=(Phase((axis,), body), whole.phases[1]))
    if site.reader is not None:
        second = _joined(graph, site, second)
    return Instead(f"{parts} parts", (first, second), first.name, (buffer,), parts)


def _changed(op: Op, names: dict[str, str], mapping: dict[str, Expr]) -> Op:
    """``op`` with other names for values and other axes."""
    values = {value_symbol(a): value_symbol(b) for a, b in names.items()}
    args = []
    for position, arg in enumerate(op.args):
        if isinstance(arg, Expr):
            arg = substitute(arg, mapping)
            if any(n.startswith("%") for n in symbol_names(arg)):
                arg = arg.xreplace(values)
        elif isinstance(arg, str) and not (position == 0 and op.op in ("load", "store", "reduce", "scan")):
            arg = names.get(arg, arg)
        args.append(arg)
    return dataclasses.replace(op, name=names.get(op.name, op.name), args=tuple(args))
