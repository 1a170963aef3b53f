"""Products of matrices in a graph, convolutions among them, with the kernels that make their operands and read them, by
elements of the product."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import sympy
from sympy import Expr

from fuselens.ir.affine import ONE, ZERO, divide, linear, product
from fuselens.ir.loops import Axis, Buffer, Extern, Graph, Kernel, Loop, Phase, Ref, extern_reads
from fuselens.schedule.sites.convolution import Convolution, Operands, as_product, convolution, seen

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
    """A call that computes a product, the kernel that may follow in the same one (``points`` has it as one of points), and those
    that may make the operands' elements where they are multiplied, if there are any."""

    call: Extern
    operands: Operands
    reader: Kernel | None = None
    makers: tuple[Maker | None, ...] = (None, None)

    @property
    def points(self) -> Kernel | None:
        return None if self.reader is None else of_points(self.reader)

    @property
    def nodes(self) -> tuple[Extern | Kernel, ...]:
        return (*self.kernels_before, self.call, *(() if self.reader is None else (self.reader,)))

    @property
    def kernels_before(self) -> tuple[Kernel, ...]:
        return tuple(m.kernel for m in self.makers if m is not None)

    @property
    def dtype(self) -> str:
        return self.operands.out.dtype

    @property
    def elements(self) -> tuple[Expr, ...]:
        """The dimensions of the product: batches, rows and columns."""
        return (self.operands.batch, *self.operands.rows, *self.operands.columns)


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
    convolved = convolution(graph, call)
    operands = _multiplied(graph, call) if convolved is None else _of_points(convolved) or as_product(convolved)
    if operands is None:
        return None
    out = operands.out
    buffers = [out, *operands.factors, *(() if operands.added is None else (operands.added,))]
    if out.dtype not in _DTYPES or any(b.dtype != out.dtype for b in buffers):
        return None
    sizes = (operands.rows, operands.columns, operands.summed, (operands.batch,))
    high, wide, deep, count = (graph.hint(product(n)) for n in sizes)
    return Site(call, operands) if min(high, wide, deep) > 1 and count > 0 else None


def _multiplied(graph: Graph, call: Extern) -> Operands | None:
    if call.target not in _PRODUCTS or call.outputs != (call.name,) or graph.buffers[call.name].storage:
        return None
    scale = dict(call.kwargs)
    if not scale.keys() <= {"alpha", "beta"} or not all(isinstance(v, (int, float)) for v in scale.values()):
        return None
    if not all(isinstance(a, Ref) for a in call.args):
        return None
    *added, a, b = (graph.buffers[a.name] for a in call.args)
    return _matrices(a, b, added[0] if added else None, graph.buffers[call.name])


def _matrices(a: Buffer, b: Buffer, added: Buffer | None, out: Buffer) -> Operands:
    batch = a.sizes[0] if len(a.sizes) == 3 else ONE
    return Operands((a, b), added, out, batch, a.sizes[-2:-1], out.sizes[-1:], a.sizes[-1:])


def _of_points(c: Convolution) -> Operands | None:
    """A convolution whose kernel is one point, as a product: of the weight and each image or, where channels lie together, of
    all points and the weight."""
    x, w, out, bias = c.image, c.weight, c.out, c.bias
    if not c.plain or c.groups != 1:
        return None
    count = product(x.sizes[2:])
    (batch, channels), made = x.sizes[:2], w.sizes[0]
    near, far = (_merged(b.sizes[2:], b.strides[2:]) for b in (x, out))
    if near is None or far is None:
        return None
    if out.strides[1] == 1 and out.strides[0] == count * far and x.strides[0] == count * near:
        points = seen(x, (batch * count, channels), (near, x.strides[1]))
        weight = seen(w, (channels, made), (w.strides[1], w.strides[0]))
        return _matrices(points, weight, bias, seen(out, (batch * count, made), (far, ONE)))
    weight = seen(w, (batch, made, channels), (ZERO, *w.strides[:2]))
    points = seen(x, (batch, channels, count), (*x.strides[:2], near))
    added = None if bias is None else seen(bias, (made, ONE), (bias.strides[0], ZERO))
    return _matrices(weight, points, added, seen(out, (batch, made, count), (*out.strides[:2], far)))


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
            points = of_points(node)
            return node if points is not None and read_at(site, points, graph.hint) is not None else None
        if read & set(node.writes()):
            return None
    return None


def _maker(graph: Graph, site: Site, which: int) -> Maker | None:
    """What makes an operand, if that is a kernel of points that makes nothing else, and nobody else wants the operand."""
    operand = site.operands.factors[which]
    if len(operand.sizes) > 3 or site.operands.borders[which]:
        return None
    kernel, turned = _only_maker(graph, site, which), _is_turned(graph, operand)
    if kernel is None or turned is None:
        return None
    stores = [o for o in kernel.ops() if o.op == "store"]
    if len(stores) != 1:
        return None
    high, wide = list(operand.sizes)[-2:]
    sizes = (site.operands.batch, *((wide, high) if turned else (high, wide)))
    places = places_of({sympy.sympify(stores[0].args[1])}, kernel, sizes, graph.hint)
    if places is None or not all(p.is_Symbol or p == 0 for p in places.at):
        return None
    batch, outer, inner = (p.name if isinstance(p, sympy.Symbol) else "" for p in places.at)
    return Maker(kernel, places.change, batch, outer, inner, turned)


def _only_maker(graph: Graph, site: Site, which: int) -> Kernel | None:
    """The kernel of points that writes an operand, if only the product reads that, and what it reads itself stays as it is until
    then."""
    factors = site.operands.factors
    owner = factors[which].owner
    users = [n for n in graph.nodes if not isinstance(n, Loop) and owner in used(graph, n)]
    if len(users) != 2 or users[1] is not site.call or factors[1 - which].owner == owner or owner in wanted(graph):
        return None
    kernel = users[0]
    if not isinstance(kernel, Kernel) or not _is_pointwise(kernel) or kernel.writes() != (owner,):
        return None
    place = {id(n): k for k, n in enumerate(graph.nodes)}
    between = graph.nodes[place[id(kernel)] + 1 : place[id(site.reader or site.call)] + 1]
    if any(set(kernel.reads()) & written(graph, n) for n in between if not isinstance(n, Loop)):
        return None
    return kernel


def _is_turned(graph: Graph, operand: Buffer) -> bool | None:
    """Whether an operand lies by columns in memory, where it is all that lies there, by rows or by columns; None elsewhere."""
    high, wide = list(operand.sizes)[-2:]
    if operand.strides[:-2] not in ((), (high * wide,)) or operand.offset != 0:
        return None
    if graph.buffers[operand.owner].numel() != operand.numel():
        return None
    if operand.strides[-2:] == (wide, 1):
        return False
    return True if operand.strides[-2:] == (1, high) else None


def used(graph: Graph, node: Extern | Kernel) -> set[str]:
    reads = extern_reads(node) if isinstance(node, Extern) else node.reads()
    return {graph.buffers[n].owner for n in reads} | written(graph, node)


def written(graph: Graph, node: Extern | Kernel) -> set[str]:
    names = (*node.mutates, *(o for o in node.outputs if o)) if isinstance(node, Extern) else node.writes()
    return {graph.buffers[n].owner for n in names}


def wanted(graph: Graph) -> set[str]:
    return {graph.buffers[n].owner for n in graph.results()}


def of_points(kernel: Kernel) -> Kernel | None:
    """``kernel`` as one of points, where it folds nothing: what it computes for a line of elements is of each of them then."""
    if any(o.op in ("reduce", "scan", "bounds") or o.update for o in kernel.ops()):
        return None
    lines = [p for p in kernel.phases if p.axes]
    if not lines:
        return kernel
    if len(lines) > 1 or any(o.op == "store" for p in kernel.phases if not p.axes for o in p.body):
        return None
    return dataclasses.replace(kernel, axes=(*kernel.axes, *lines[0].axes), phases=(Phase((), tuple(kernel.ops())),))


def _is_pointwise(kernel: Kernel) -> bool:
    return of_points(kernel) is kernel


@dataclass(frozen=True, slots=True)
class _Places:
    """The points of a kernel by elements of the product: its axes, divided where dimensions end."""

    axes: tuple[Axis, ...]
    change: dict[str, Expr]  # divided axes in terms of what they were divided into
    at: tuple[Expr, ...]  # the position in each dimension


def places_of(
    indices: set[Expr], kernel: Kernel, sizes: tuple[Expr, ...], hint: Callable[[Expr], int]
) -> _Places | None:
    """The points of ``kernel``, which are at ``indices`` of memory that holds dimensions of ``sizes``, the outermost first."""
    names = frozenset(a.name for a in kernel.axes)
    form = linear(next(iter(indices)), names) if len(indices) == 1 else None
    if form is None or form.constant != 0:
        return None
    steps = dict(form.terms)
    axes = sorted((a for a in kernel.axes if a.size != 1), key=lambda a: -hint(steps.get(a.name, ZERO)))
    borders = [(d, product(sizes[d + 1 :]), product(sizes[d:])) for d in reversed(range(len(sizes))) if sizes[d] != 1]
    reach = ONE
    parts: list[Axis] = []  # innermost first
    at = [ZERO] * len(sizes)
    change: dict[str, Expr] = {}
    taken = {a.name for a in kernel.axes}
    for axis in reversed(axes):
        if steps.get(axis.name) != reach:
            return None
        divided = _divided(axis, reach, borders, taken)
        if divided is None:
            return None
        if len(divided) > 1:
            change[axis.name] = sympy.Add(*(a.symbol * inside for a, inside, _, _ in divided))
        for part, _, dimension, step in divided:
            at[dimension] = at[dimension] + part.symbol * step
            parts.append(part)
        reach = sympy.expand(reach * axis.size)
    if reach != sympy.expand(product(sizes)):
        return None
    change |= {a.name: ZERO for a in kernel.axes if a.size == 1}
    return _Places(tuple(reversed(parts)), change, tuple(at))


def read_at(site: Site, reader: Kernel, hint: Callable[[Expr], int]) -> _Places | None:
    """Where ``reader`` is in the dimensions of the product, which is whole in memory."""
    out = site.operands.out
    sizes = site.elements
    kept = range(len(sizes) - len(out.sizes), len(sizes))
    order = sorted((d for d in kept if sizes[d] != 1), key=lambda d: -hint(out.strides[d - kept[0]]))
    reach = ONE
    for d in reversed(order):
        if out.strides[d - kept[0]] != reach:
            return None
        reach = sympy.expand(reach * sizes[d])
    if out.offset != 0:
        return None
    indices = {sympy.sympify(o.args[1]) for o in reader.ops() if o.op == "load" and o.args[0] == out.name}
    found = places_of(indices, reader, tuple(sizes[d] for d in order), hint)
    if found is None:
        return None
    at = dict(zip(order, found.at, strict=True))
    return dataclasses.replace(found, at=tuple(at.get(d, ZERO) for d in range(len(sizes))))


def _divided(
    axis: Axis, start: Expr, borders: list[tuple[int, Expr, Expr]], taken: set[str]
) -> list[tuple[Axis, Expr, int, Expr]] | None:
    """``axis``, whose points are ``start`` apart, innermost part first, so that no part crosses a border: each part with its
    step of the axis, its dimension and its step of that."""
    found: list[tuple[Axis, Expr, int, Expr]] = []
    left, inside = axis.size, ONE
    for dimension, low, high in borders:
        at = sympy.expand(start * inside)
        if left == 1 or divide(at, high) is not None:  # a later dimension, or an earlier one
            continue
        step, room = divide(at, low), divide(high, at)
        rest = None if room is None else divide(left, room)
        if room is None or rest is None:  # it ends before the border, or crosses it
            rest, room = ONE, left
            if divide(high, at * left) is None:
                return None
        if step is None:
            return None
        found.append((Axis(axis.name, room), inside, dimension, step))
        left, inside = rest, inside * room
    if left != 1:
        return None
    if len(found) > 1:
        found = [(dataclasses.replace(a, name=fresh(a.name, taken)), *rest) for a, *rest in found]  # pyright: ignore
    return found


def fresh(name: str, taken: set[str]) -> str:
    new = next(f"{name}_{k}" for k in range(len(taken) + 1) if f"{name}_{k}" not in taken)
    taken.add(new)
    return new
