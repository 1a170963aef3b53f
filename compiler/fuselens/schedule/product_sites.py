"""Products of matrices in a graph, convolutions of single points among them, with the kernels that make their operands and
read them, by elements of the product."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import sympy
from sympy import Expr

from fuselens.ir.affine import linear
from fuselens.ir.loops import Axis, Buffer, Extern, Graph, Kernel, Loop, Ref, extern_reads

_PRODUCTS = {"aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default"}
_DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Maker:
    """A kernel that makes an operand, by element. ``change`` gives its axes in terms of some that are ``batch``, ``outer`` and
    ``inner`` positions in memory, "" where there is one only; in a ``turned`` operand the inner position counts its rows."""

    kernel: Kernel
    change: dict[str, Expr]
    batch: str
    outer: str
    inner: str
    turned: bool


@dataclass(frozen=True, slots=True)
class Site:
    """A call that computes a product, the kernel that may follow in the same one, and those that may make the operands' elements
    where they are multiplied, if there are any. The factors, what is added to the product and ``out`` are seen as matrices."""

    call: Extern
    factors: tuple[Buffer, Buffer]
    added: Buffer | None
    out: Buffer
    reader: Kernel | None
    makers: tuple[Maker | None, ...]
    batch: int
    rows: int
    columns: int
    summed: int
    dtype: str

    @property
    def nodes(self) -> tuple[Extern | Kernel, ...]:
        return (*self.kernels_before, self.call, *(() if self.reader is None else (self.reader,)))

    @property
    def kernels_before(self) -> tuple[Kernel, ...]:
        return tuple(m.kernel for m in self.makers if m is not None)


def sites(graph: Graph) -> list[Site]:
    """The products of a fused graph that a kernel could compute."""
    found = [s for n in graph.nodes if isinstance(n, Extern) and (s := _site(graph, n)) is not None]
    taken: set[str] = set()  # kernels that belong to a site: what reads two products goes with the later one
    for k in reversed(range(len(found))):
        reader = _reader(graph, found[k])
        if reader is not None and reader.name not in taken:
            taken.add(reader.name)
            found[k] = dataclasses.replace(found[k], reader=reader)
    for k, site in enumerate(found):
        makers = (_maker(graph, site, 0), _maker(graph, site, 1))
        makers = tuple(m if m is not None and m.kernel.name not in taken else None for m in makers)
        found[k] = dataclasses.replace(site, makers=makers)
    return found


def _site(graph: Graph, call: Extern) -> Site | None:
    if call.target == "aten.convolution.default":
        matrices = _convolved(graph, call)
    else:
        matrices = _multiplied(graph, call)
    if matrices is None:
        return None
    a, b, added, out = matrices
    buffers = [out, a, b, *(() if added is None else (added,))]
    if out.dtype not in _DTYPES or any(b.dtype != out.dtype for b in buffers):
        return None
    numbers = [e for b in buffers for e in (*b.sizes, *b.strides, b.offset)]
    if not all(e.is_Integer for e in numbers):
        return None
    batch = int(a.sizes[0]) if len(a.sizes) == 3 else 1
    rows, summed, columns = int(a.sizes[-2]), int(a.sizes[-1]), int(out.sizes[-1])
    if min(batch, rows, summed, columns) == 0 or min(rows, columns) == 1:
        return None
    return Site(call, (a, b), added, out, None, (None, None), batch, rows, columns, summed, out.dtype)


_Matrices = tuple[Buffer, Buffer, Buffer | None, Buffer]


def _multiplied(graph: Graph, call: Extern) -> _Matrices | None:
    if call.target not in _PRODUCTS or call.outputs != (call.name,) or graph.buffers[call.name].storage:
        return None
    scale = dict(call.kwargs)
    if not scale.keys() <= {"alpha", "beta"} or not all(isinstance(v, (int, float)) for v in scale.values()):
        return None
    if not all(isinstance(a, Ref) for a in call.args):
        return None
    *added, a, b = (graph.buffers[a.name] for a in call.args)
    return a, b, added[0] if added else None, graph.buffers[call.name]


def _convolved(graph: Graph, call: Extern) -> _Matrices | None:
    """A convolution whose kernel is one point, as a product: of the weight and each image or, where channels lie together, of
    all points and the weight."""
    if call.outputs != (call.name,) or graph.buffers[call.name].storage or call.kwargs or len(call.args) != 9:
        return None
    image, kernel, shift, *rest = call.args
    stride, padding, _, turned, _, groups = rest
    if not all(isinstance(a, Ref) for a in (image, kernel)) or not (shift is None or isinstance(shift, Ref)):
        return None
    x, w, out = graph.buffers[image.name], graph.buffers[kernel.name], graph.buffers[call.name]
    plain = all(n == 1 for n in (*stride, groups)) and not any(padding) and not turned
    if not plain or len(x.sizes) < 3 or len(w.sizes) != len(x.sizes) or any(n != 1 for n in w.sizes[2:]):
        return None
    count = sympy.Mul(*x.sizes[2:])
    (batch, channels), made = x.sizes[:2], w.sizes[0]
    near, far = (_merged(b.sizes[2:], b.strides[2:]) for b in (x, out))
    if near is None or far is None:
        return None
    bias = None if shift is None else graph.buffers[shift.name]
    if out.strides[1] == 1 and out.strides[0] == count * far and x.strides[0] == count * near:
        points = _seen(x, (batch * count, channels), (near, x.strides[1]))
        weight = _seen(w, (channels, made), (w.strides[1], w.strides[0]))
        return points, weight, bias, _seen(out, (batch * count, made), (far, sympy.S.One))
    weight = _seen(w, (batch, made, channels), (sympy.S.Zero, *w.strides[:2]))
    points = _seen(x, (batch, channels, count), (*x.strides[:2], near))
    added = None if bias is None else _seen(bias, (made, sympy.S.One), (bias.strides[0], sympy.S.Zero))
    return weight, points, added, _seen(out, (batch, made, count), (*out.strides[:2], far))


def _seen(buffer: Buffer, sizes: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Buffer:
    return dataclasses.replace(buffer, sizes=sizes, strides=strides)


def _merged(sizes: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Expr | None:
    """The distance of elements that are next to each other, where these dimensions are as one in memory."""
    inner = strides[-1]
    reach = inner
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if stride != reach:
            return None
        reach = reach * size
    return inner


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
            return node if _of_points(node) and read_at(site, node) is not None else None
        if read & set(node.writes()):
            return None
    return None


def _maker(graph: Graph, site: Site, which: int) -> Maker | None:
    """What makes an operand, if that is a kernel of points that makes nothing else, and nobody else wants the operand."""
    operand, other = site.factors[which], site.factors[1 - which]
    owner = operand.owner
    users = [n for n in graph.nodes if not isinstance(n, Loop) and owner in used(graph, n)]
    if len(users) != 2 or users[1] is not site.call or other.owner == owner or owner in wanted(graph):
        return None
    kernel = users[0]
    if not isinstance(kernel, Kernel) or not _of_points(kernel) or kernel.writes() != (owner,):
        return None
    place = {id(n): k for k, n in enumerate(graph.nodes)}
    between = graph.nodes[place[id(kernel)] + 1 : place[id(site.reader or site.call)] + 1]
    if any(set(kernel.reads()) & _written(graph, n) for n in between if not isinstance(n, Loop)):
        return None
    high, wide = (int(n) for n in operand.sizes[-2:])
    strides = [int(n) for n in operand.strides]
    plain = strides[-2:] == [wide, 1]
    whole = strides[:-2] in ([], [high * wide]) and operand.offset == 0
    if not whole or not (plain or strides[-2:] == [1, high]) or graph.buffers[owner].numel() != operand.numel():
        return None
    stores = [o for o in kernel.ops() if o.op == "store"]
    places = places_of(
        {sympy.sympify(stores[0].args[1])}, kernel, site.batch, *((high, wide) if plain else (wide, high))
    )
    if places is None or len(stores) != 1:
        return None
    parts = (places.batch, places.row, places.column)
    if not all(p.is_Symbol or p == 0 for p in parts):
        return None
    batch, outer, inner = (p.name if isinstance(p, sympy.Symbol) else "" for p in parts)
    return Maker(kernel, places.change, batch, outer, inner, not plain)


def used(graph: Graph, node: Extern | Kernel) -> set[str]:
    reads = extern_reads(node) if isinstance(node, Extern) else node.reads()
    return {graph.buffers[n].owner for n in reads} | _written(graph, node)


def _written(graph: Graph, node: Extern | Kernel) -> set[str]:
    names = (*node.mutates, *(o for o in node.outputs if o)) if isinstance(node, Extern) else node.writes()
    return {graph.buffers[n].owner for n in names}


def wanted(graph: Graph) -> set[str]:
    return {graph.buffers[n].owner for n in graph.results()}


def _of_points(kernel: Kernel) -> bool:
    plain = all(o.op not in ("reduce", "scan", "bounds") and not o.update for o in kernel.ops())
    return plain and not any(p.axes for p in kernel.phases)


@dataclass(frozen=True, slots=True)
class _Places:
    """The points of a kernel by elements of the product: its axes, divided where rows and batches end."""

    axes: tuple[Axis, ...]
    change: dict[str, Expr]  # divided axes in terms of what they were divided into
    batch: Expr
    row: Expr
    column: Expr


def places_of(indices: set[Expr], kernel: Kernel, batch: int, rows: int, columns: int) -> _Places | None:
    """The points of ``kernel``, which are at ``indices`` of memory that holds matrices, one row after the other."""
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
        divided = _divided(axis, reach, (columns, columns * rows), taken)
        if divided is None:
            return None
        if len(divided) > 1:
            change[axis.name] = sympy.Add(*(a.symbol * (step // reach) for a, step in divided))
        parts += divided
        reach *= int(axis.size)
    if reach != batch * rows * columns:
        return None

    def position(low: int, high: int) -> Expr:
        return sympy.Add(*(a.symbol * (step // low) for a, step in parts if low <= step < high))

    many = columns * rows
    change |= {a.name: sympy.S.Zero for a in kernel.axes if a.size == 1}
    return _Places(
        tuple(a for a, _ in reversed(parts)), change,
        position(many, reach + 1), position(columns, many), position(1, columns),
    )  # fmt: skip


def read_at(site: Site, reader: Kernel) -> _Places | None:
    out = site.out
    expected = [site.columns * site.rows, site.columns, 1][-len(out.sizes) :]
    if [int(s) for s in out.strides] != expected or out.offset != 0:
        return None
    indices = {sympy.sympify(o.args[1]) for o in reader.ops() if o.op == "load" and o.args[0] == out.name}
    return places_of(indices, reader, site.batch, site.rows, site.columns)


def _divided(axis: Axis, step: int, borders: tuple[int, ...], taken: set[str]) -> list[tuple[Axis, int]] | None:
    """``axis``, innermost part first, so that no part crosses a border."""
    size = int(axis.size)
    cuts = sorted({b for b in borders if step < b < step * size})
    found = []
    for at, end in zip([step, *cuts], [*cuts, step * size], strict=True):
        if end % at:
            return None
        name = axis.name if not cuts else fresh(axis.name, taken)
        found.append((Axis(name, sympy.Integer(end // at)), at))
    return found


def fresh(name: str, taken: set[str]) -> str:
    new = next(f"{name}_{k}" for k in range(len(taken) + 1) if f"{name}_{k}" not in taken)
    taken.add(new)
    return new
