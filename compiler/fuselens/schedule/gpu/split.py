"""Kernels for a GPU: reductions with too few points to fill it are split over programs, and softmax reads its row once.

A split reduction is two kernels. The first folds parts of the axis, each a point of its own, into a buffer of partial
results; the second folds those and goes on with what the kernel does next. A later pass over the elements that only
stores becomes a kernel of its own, in which every element is a point. Values that the pieces share lie in small buffers.

Rows of a few neighbours here and there, as channels-last groups have, are read by columns: of neighbours in a row, and of the
rows beside it, each is a part.
Parts depend on sizes only, so results are the same each time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
from sympy import Expr

from fuselens.ir.affine import linear, product, row_major, substitute, symbol_names
from fuselens.ir.card import KERNEL_SECONDS, PROCESSOR_OPERATIONS, PROGRAM_BANDWIDTH, PROGRAM_OPERATIONS
from fuselens.ir.loops import ITEMSIZE, Axis, Buffer, Graph, Kernel, Node, Op, Phase, value_symbol
from fuselens.record.report import Decision
from fuselens.schedule.emit import translated, without_dead
from fuselens.schedule.gpu.cheaper_ops import with_cheaper_ops
from fuselens.schedule.gpu.merge_short_kernels import merge_short_kernels
from fuselens.schedule.gpu.online_softmax import online_softmax
from fuselens.schedule.gpu.variance import Spread, spread_of
from fuselens.schedule.items import cost_of
from fuselens.torch_private import integer_functions

COLUMNS = 64  # points of a program where memory is contiguous along points
LEAST = {True: 64, False: 2048}  # elements of a part: in columns, and along rows
CACHED, UNCACHED = 64 << 10, 512 << 10
"""Bytes of a part that is still in cache when it is read again, and of a row from which on neither cache nor clusters have it."""
SECTOR, FEW = 32, 64  # bytes that memory gives at least, and up to which neighbours in a row are few


def for_gpu(graph: Graph) -> Graph:
    """The fused graph with kernels as a GPU wants them."""
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    decisions: list[Decision] = []
    for node in graph.nodes:
        if not isinstance(node, Kernel):
            nodes.append(node)
            continue
        kernel = online_softmax(node)
        if kernel is not node:
            decisions.append(_decision(kernel, "online", "one pass folds the maximum and the sum of exponentials"))
        pieces = _split(graph, kernel)
        reason = "" if pieces is None else (
            f"{pieces.programs} programs cannot keep the memory busy: {pieces.count} parts of the reduction can"
        )  # fmt: skip
        if pieces is None and (pieces := _turned(graph, kernel)) is not None:
            reason = "the last pass stores across the memory that the others read: a kernel of its own does it by tiles"
        if pieces is None:
            nodes.append(kernel)
            continue
        nodes += pieces.kernels
        buffers |= pieces.buffers
        decisions.append(_decision(kernel, "split", reason))
    graph = merge_short_kernels(
        graph.replace(nodes=tuple(nodes), buffers=buffers, decisions=(*graph.decisions, *decisions))
    )
    return graph.replace(nodes=tuple(with_cheaper_ops(n) if isinstance(n, Kernel) else n for n in graph.nodes))


def _decision(kernel: Kernel, rule: str, reason: str) -> Decision:
    return Decision("FL410", "taken", kernel.name, reason, next(iter(kernel.spans), None), {"rule": rule})


@dataclass(slots=True)
class _Cut:
    """How the axes of a pass are shared out: axes that count parts, and those inside of a part."""

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    mapping: dict[str, Expr]  # the axis that was cut, in terms of its part and the place in it
    place: Expr = sympy.S.Zero  # that axis' position, which may lie beyond its end where parts do not divide it
    end: Expr | None = None


@dataclass(slots=True)
class _Pieces:
    graph: Graph
    kernel: Kernel
    columns: bool
    joined: bool  # the last axis of a pass goes on where the points end, and counts parts
    programs: int
    count: int
    kernels: list[Kernel] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    segment: list[Phase] = field(default_factory=list)  # what the next kernel begins with
    crossing: dict[str, Op] = field(default_factory=dict)  # loads of values that lie in memory by now

    @property
    def dtypes(self) -> dict[str, str]:
        return {o.name: o.dtype for o in self.kernel.ops()}

    def run(self) -> bool:
        """Writes the pieces. False where that is not possible."""
        phases = self.kernel.phases
        done = 0
        for k, phase in enumerate(phases):
            if k < done:
                continue
            if not phase.axes:
                self.segment.append(phase)
                continue
            if any(p.axes or any(o.op == "store" for o in p.body) for p in self.segment):
                self._flush({n for p in phases[k:] for o in p.body for n in o.operands()})
            if not any(o.op == "reduce" for o in phase.body):
                body = [o for p in self._with_loads([*self.segment, phase]) for o in p.body]
                self._emit((*self.kernel.axes, *phase.axes), [Phase((), tuple(body))])
                continue
            last = phase.axes[-1:] if self.joined else ()
            cut = _cut(self.graph, phase.axes[: len(phase.axes) - len(last)], self.count)
            cut.outer += last
            if cut.end is not None and any(o.op == "store" for o in phase.body):
                return False
            spread = spread_of(phases[k : k + 3], self.kernel) if cut.end is None else None
            if spread is None:
                self._partial(phase, cut)
            else:
                self._partial_spread(phases[k : k + 3], cut, spread)
                done = k + 3
        self._flush(set())
        self.kernels[-1] = dataclasses.replace(self.kernels[-1], name=self.kernel.name)
        return True

    def part_last(self) -> None:
        """Writes two kernels: the last pass, and all before it."""
        *self.segment, last = self.kernel.phases
        self._flush({n for o in last.body for n in o.operands()})
        body = [o for p in self._with_loads([last]) for o in p.body]
        self._emit((*self.kernel.axes, *last.axes), [Phase((), tuple(body))])
        self.kernels[-1] = dataclasses.replace(self.kernels[-1], name=self.kernel.name)

    def _emit(self, axes: tuple[Axis, ...], phases: list[Phase]) -> None:
        bodies = without_dead([list(p.body) for p in phases])
        kept = tuple(Phase(p.axes, tuple(b)) for p, b in zip(phases, bodies, strict=True) if b)
        if kept:
            name = f"{self.kernel.name}_{len(self.kernels) + 1}"
            self.kernels.append(dataclasses.replace(self.kernel, name=name, axes=axes, phases=kept))

    def _flush(self, wanted: set[str]) -> None:
        """Writes the segment as a kernel that stores those of its values that are ``wanted`` later."""
        made = [o for p in self.segment for o in p.body if o.op != "store" and (not p.axes or o.op == "reduce")]
        stores: list[Op] = []
        phases = self._with_loads(self.segment)
        for op in made:
            if op.name in wanted:
                storage = self._buffer(op.name, op.dtype, tuple(a.size for a in self.kernel.axes))
                index = row_major(self.kernel.axes)
                stores.append(Op(f"{op.name}_kept", "store", (storage, index, op.name), op.dtype, op.spans))
                self.crossing[op.name] = Op(op.name, "load", (storage, index), op.dtype, op.spans)
        self._emit(self.kernel.axes, [*phases, Phase((), tuple(stores))])
        self.segment = []

    def _with_loads(self, phases: list[Phase]) -> list[Phase]:
        """The phases, after loads of what they use and earlier kernels computed."""
        used = {n for p in phases for o in p.body for n in o.operands()}
        loads = tuple(o for n, o in self.crossing.items() if n in used)
        return [Phase((), loads), *phases] if loads else phases

    def _buffer(self, name: str, dtype: str, sizes: tuple[Expr, ...]) -> str:
        full = f"{self.kernel.name}_{name}"
        while full in self.graph.buffers or full in self.buffers:
            full += "_"
        strides = tuple(product(sizes[k + 1 :]) for k in range(len(sizes)))
        device = self.graph.buffers[self.kernel.writes()[0]].device
        self.buffers[full] = Buffer(full, dtype, sizes, strides, device=device)
        return full

    # --- one pass ----------------------------------------------------------------------------------------------

    def _partial(self, phase: Phase, cut: _Cut) -> None:
        """A kernel that folds parts, and, as the next segment, the pass that folds their results."""
        axes = self.kernel.axes
        body = [translated(o, cut.mapping) for o in phase.body]
        if cut.end is not None:
            body = _masked(body, cut, self.dtypes)
        layout = (*cut.outer, *axes) if self.columns else (*axes, *cut.outer)
        if self.joined:
            layout = (*cut.outer[:-1], *axes, cut.outer[-1])
        stores: list[Op] = []
        loads: dict[str, Op] = {}
        for op in [o for o in body if o.op == "reduce"]:
            kind, value = op.args
            if kind in ("argmax", "argmin"):
                best = Op(f"{op.name}_best", "reduce", (kind[3:], value), self.dtypes[value], op.spans)
                body.append(best)
                loads[best.name] = self._store(best, layout, stores)
                stores += self._place(op, phase.axes, cut)
                loads[op.name] = self._store(dataclasses.replace(op, name=f"{op.name}_place"), layout, stores)
            else:
                loads[op.name] = self._store(op, layout, stores)
        phases = [*self.segment, Phase(cut.inner, tuple(body)), Phase((), tuple(stores))]
        self._emit((*axes, *cut.outer), self._with_loads(phases))
        self.segment = [p for p in self.segment if not p.axes]
        self.segment += self._folds([o for o in phase.body if o.op == "reduce"], cut, loads)

    def _partial_spread(self, phases: tuple[Phase, ...], cut: _Cut, spread: Spread) -> None:
        """A kernel that folds the sum of each part, and its squared distances from its own mean; and the passes that fold those: the
        squared distances from the mean of all are the parts' own, and as many times a part's mean's as it has elements."""
        axes, (first, between, second) = self.kernel.axes, phases
        layout = (*cut.outer, *axes) if self.columns else (*axes, *cut.outer)
        total, squares, spans = spread.total, spread.squares, spread.total.spans
        size = Op(f"{total.name}_size", "const", (float(product(a.size for a in cut.inner)),), "f32", spans)
        own = Op(f"{total.name}_mean", "div", (total.name, size.name), "f32", spans)
        folded = [translated(o, cut.mapping) for o in first.body]
        around = [translated(o, cut.mapping).renamed({spread.mean: own.name}) for o in second.body]
        stores: list[Op] = []
        sums, parts = (self._store(o, layout, stores) for o in (total, squares))
        self._emit(
            (*axes, *cut.outer),
            self._with_loads([
                *self.segment, Phase(cut.inner, tuple(folded)), Phase((), (size, own)), Phase(cut.inner, tuple(around)),
                Phase((), tuple(stores)),
            ]),
        )  # fmt: skip
        name = squares.name
        again = dataclasses.replace(sums, name=f"{name}_sum")
        shares = [
            again, parts,
            Op(f"{name}_mean", "div", (again.name, size.name), "f32", spans),
            Op(f"{name}_far", "sub", (f"{name}_mean", spread.mean), "f32", spans),
            Op(f"{name}_square", "mul", (f"{name}_far", f"{name}_far"), "f32", spans),
            Op(f"{name}_share", "mul", (f"{name}_square", size.name), "f32", spans),
            Op(f"{name}_spread", "add", (f"{name}_share", parts.name), "f32", spans),
            dataclasses.replace(squares, args=("sum", f"{name}_spread")),
        ]  # fmt: skip
        self.segment = [
            *(p for p in self.segment if not p.axes), Phase(cut.outer, (sums, dataclasses.replace(total, args=("sum", sums.name)))),
            Phase((), (size, *between.body)), Phase(cut.outer, tuple(shares)),
        ]  # fmt: skip

    def _store(self, op: Op, layout: tuple[Axis, ...], stores: list[Op]) -> Op:
        """Stores a result of a part; gives the op that loads it."""
        storage = self._buffer(op.name, op.dtype, tuple(a.size for a in layout))
        index = row_major(layout)
        stores.append(Op(f"{op.name}_part", "store", (storage, index, op.name), op.dtype, op.spans))
        return Op(f"{op.name}_of", "load", (storage, index), op.dtype, op.spans)

    def _place(self, op: Op, whole: tuple[Axis, ...], cut: _Cut) -> list[Op]:
        """The position within the pass of the position within a part."""
        first = substitute(row_major(whole), _first(cut, whole))
        start = Op(f"{op.name}_start", "index", (first,), "i64", op.spans)
        return [start, Op(f"{op.name}_place", "add", (start.name, op.name), "i64", op.spans)]

    def _folds(self, folds: list[Op], cut: _Cut, loads: dict[str, Op]) -> list[Phase]:
        """Phases that fold the results of the parts, under the names that the kernel's own folds had."""
        first: list[Op] = []
        second: list[Op] = []
        after: list[Op] = []
        peaks = {o.args[1]: o.name for o in folds if o.args[0] == "max"}
        for op in folds:
            kind, value = op.args
            load = loads[op.name]
            if kind in ("argmax", "argmin"):
                best = loads[f"{op.name}_best"]
                chosen = Op(f"{op.name}_chosen", "reduce", (kind, best.name), "i64", op.spans)
                first += [best, chosen]
                at = self._at(load.args[1], cut, chosen.name)
                after.append(dataclasses.replace(load, name=op.name, args=(load.args[0], at)))
            elif kind == "sumexp":
                second += _rescaled(op, load, loads[peaks[value]], peaks[value])
            else:
                first += [load, dataclasses.replace(op, args=(kind, load.name))]
        phases = [Phase(cut.outer, tuple(first)), Phase(cut.outer, tuple(second)), Phase((), tuple(after))]
        return [p for p in phases if p.body]

    def _at(self, index: Expr, cut: _Cut, chosen: str) -> Expr:
        """The element of a buffer of parts that the part numbered by ``chosen`` stored."""
        base = substitute(index, {a.name: sympy.S.Zero for a in cut.outer})
        step = product(a.size for a in self.kernel.axes) if self.columns else sympy.S.One
        return base + step * value_symbol(chosen)


def _rescaled(op: Op, load: Op, peak: Op, most: str) -> list[Op]:
    """The sum of exp(x - max) from the sums of parts, each of exp(x - its own maximum)."""
    n, d, s = op.name, op.dtype, op.spans
    peak = dataclasses.replace(peak, name=f"{n}_peak")
    return [
        load, peak,
        Op(f"{n}_low", "const", (-math.inf,), d, s), Op(f"{n}_none", "const", (0.0,), d, s),
        Op(f"{n}_empty", "eq", (peak.name, f"{n}_low"), "bool", s),  # such a part has nothing to add
        Op(f"{n}_own", "where", (f"{n}_empty", f"{n}_none", load.name), d, s),
        Op(f"{n}_below", "sub", (peak.name, most), d, s), Op(f"{n}_scale", "exp", (f"{n}_below",), d, s),
        Op(f"{n}_share", "mul", (f"{n}_own", f"{n}_scale"), d, s),
        dataclasses.replace(op, args=("sum", f"{n}_share")),
    ]  # fmt: skip


def _masked(body: list[Op], cut: _Cut, dtypes: Mapping[str, str]) -> list[Op]:
    """The pass with what lies beyond the axis left out of its folds: there, the last element is read again, which does
    not change a maximum, but would a sum. ``dtypes`` are those of the kernel's values."""
    summed = {o.args[1] for o in body if o.op == "reduce" and o.args[0] == "sumexp"}
    spans = body[0].spans
    out = [
        Op("place", "index", (cut.place,), "i64", spans), Op("end", "index", (cut.end,), "i64", spans),
        Op("within", "lt", ("place", "end"), "bool", spans),
    ]  # fmt: skip
    made: set[str] = set()
    for op in body:
        identity = {"sum": 0, "prod": 1, "sumexp": -math.inf}.get(op.args[0]) if op.op == "reduce" else None
        if op.op == "reduce" and (identity is not None or op.args[1] in summed):
            value, dtype = op.args[1], dtypes[op.args[1]]
            kept = f"{value}_within_{'low' if value in summed and op.args[0] in ('max', 'sumexp') else op.args[0]}"
            if kept not in made:
                other = -math.inf if kept.endswith("_low") else identity
                other = bool(other) if dtype == "bool" else other if dtype[0] != "f" else float(other)  # type: ignore[arg-type]
                made.add(kept)
                out += [
                    Op(f"{kept}_not", "const", (other,), dtype, op.spans),
                    Op(kept, "where", ("within", value, f"{kept}_not"), dtype, op.spans),
                ]
            op = dataclasses.replace(op, args=(op.args[0], kept))
        out.append(op)
    return out


# --- what is split, and into how many parts --------------------------------------------------------------------


def _split(graph: Graph, kernel: Kernel) -> _Pieces | None:
    """The kernel in pieces; None where one kernel serves as well."""
    passes = [p for p in kernel.phases if p.axes]
    if kernel.kind != "reduction" or any(o.op == "scan" or o.update for o in kernel.ops()):
        return None
    points = graph.hint(product(a.size for a in kernel.axes))
    length = max(graph.hint(product(a.size for a in p.axes)) for p in passes)
    few = _few_neighbours(graph, kernel)
    joined = few is not None
    columns = joined or _along_points(kernel)
    side_by_side = points * few[0] if few else points
    programs = -(-side_by_side // (COLUMNS if columns else 1))
    twice = _read_twice(graph, kernel, columns)
    wanted = max(-(-graph.card.programs // max(programs, 1)), -(-twice // CACHED))
    count = min(wanted, length // (few[0] if few else 1) // LEAST[columns])
    if points == 0 or count < (1 if joined else 2):
        return None
    pieces = _Pieces(graph, kernel, columns, joined, programs, count)
    moved = points * sum(_asked_at_a_point(p) * graph.hint(product(a.size for a in p.axes)) for p in passes)
    if not pieces.run():
        return None
    work = points * sum(cost_of(p.body) * graph.hint(product(a.size for a in p.axes)) for p in passes)
    wasted = max(1.0, SECTOR / few[1]) if few else 1.0
    now = points if joined else programs
    before = max(wasted * _seconds_of_memory(graph, moved, now), _seconds_of_work(graph, work, now))
    read = moved - points * twice * (count * CACHED >= twice)
    after = max(_seconds_of_memory(graph, read, programs * count), _seconds_of_work(graph, work, programs * count))
    return pieces if after + KERNEL_SECONDS * (len(pieces.kernels) - 1) < before else None


def _read_twice(graph: Graph, kernel: Kernel, columns: bool) -> int:
    """Bytes of a row that a variance reads twice, and of which the second-level cache has nothing left the second time; 0 where
    there is none, or rows are ``columns`` of memory."""
    for k in range(len(kernel.phases) - 2):
        phases = kernel.phases[k : k + 3]
        if spread_of(phases, kernel) is not None:
            found = _asked_at_a_point(phases[2]) * graph.hint(product(a.size for a in phases[2].axes))
            return found if found > UNCACHED and not columns else 0
    return 0


def _turned(graph: Graph, kernel: Kernel) -> _Pieces | None:
    """A kernel whose last pass stores along another axis than the one along which all read, in two pieces; None where it does not,
    or stores little."""
    last = kernel.phases[-1]
    stores = sum(o.op == "store" for o in last.body)
    if kernel.kind != "reduction" or not last.axes or not stores or any(o.op == "reduce" for o in last.body):
        return None
    if any(o.op == "scan" or o.update for o in kernel.ops()):
        return None
    read, stored = _ways(kernel)
    if len(read) != 1 or "" in read or read & stored:
        return None
    size = graph.hint(product(a.size for a in (*kernel.axes, *last.axes)))
    if size * SECTOR * stores / graph.card.bandwidth < KERNEL_SECONDS:
        return None
    pieces = _Pieces(graph, kernel, True, False, 0, 1)
    pieces.part_last()
    return pieces


def _ways(kernel: Kernel) -> tuple[set[str], set[str]]:
    """Along which of the kernel's axes neighbours in memory lie ("" for any other) of what passes load
    and store, and of what the last one stores."""
    points, last = frozenset(a.name for a in kernel.axes), kernel.phases[-1]
    read, stored = set[str](), set[str]()
    for phase in kernel.phases:
        own = frozenset(a.name for a in phase.axes)
        for op in phase.body:
            if op.op in ("load", "store") and own & symbol_names(op.args[1]):
                nearest = {name if name in points else "" for name in _nearest(op, own | points)}
                (stored if phase is last and op.op == "store" else read).update(nearest)
    return read, stored


def _nearest(op: Op, axes: frozenset[str]) -> set[str]:
    """The axes along which neighbours lie in memory; "" where the index does not tell."""
    form = linear(op.args[1], axes)
    return {""} if form is None else {name for name, step in form.terms if step == 1}


def _seconds_of_memory(graph: Graph, moved: int, programs: int) -> float:
    return moved / min(graph.card.bandwidth, programs * PROGRAM_BANDWIDTH)


def _seconds_of_work(graph: Graph, work: int, programs: int) -> float:
    return work / min(graph.card.processors * PROCESSOR_OPERATIONS, programs * PROGRAM_OPERATIONS)


def _few_neighbours(graph: Graph, kernel: Kernel) -> tuple[int, int] | None:
    """How many neighbours in memory the innermost axis of each pass reads, and their bytes, where they are few, the rest of the
    row lies elsewhere, and the next point of the kernel goes on where they end; else None."""
    found: set[tuple[int, int]] = set()
    for phase in kernel.phases:
        if not any(o.op == "reduce" for o in phase.body):
            continue
        if (
            len(phase.axes) < 2
            or not kernel.axes
            or any(o.op == "reduce" and o.args[0] in ("argmax", "argmin") for o in phase.body)
        ):
            return None
        last, point = phase.axes[-1], kernel.axes[-1]
        names = frozenset(a.name for a in (*kernel.axes, *phase.axes))
        loads = [o for o in phase.body if o.op == "load" and last.name in symbol_names(o.args[1])]
        for op in loads:
            form = linear(op.args[1], names)
            steps = dict(form.terms) if form is not None else {}
            if not last.size.is_Integer or steps.get(last.name) != 1 or steps.get(point.name) != last.size:
                return None
            found.add((int(last.size), int(last.size) * ITEMSIZE[op.dtype]))
        if not loads:
            return None
    return max(found) if found and max(found)[1] <= FEW and len({n for n, _ in found}) == 1 else None


def _asked_at_a_point(phase: Phase) -> int:
    """Bytes that each point of the pass loads and stores. ``codegen.traffic`` counts what reaches memory, where caches answer what is
    asked for again; a program that is to have more of them beside it waits for all that it asks for."""
    own = frozenset(a.name for a in phase.axes)
    return sum(ITEMSIZE[o.dtype] for o in phase.body if o.op in ("load", "store") and own & symbol_names(o.args[1]))


def _along_points(kernel: Kernel) -> bool:
    """Whether neighbouring points of the kernel are neighbours in memory, rather than those of its passes. What varies along
    one of them only is little beside what varies along both."""
    points, count = frozenset(a.name for a in kernel.axes), 0
    for phase in kernel.phases:
        own = frozenset(a.name for a in phase.axes)
        for op in phase.body if own else ():
            names = symbol_names(op.args[1]) if op.op in ("load", "store") else frozenset()
            nearest = _nearest(op, own | points) if names & own and names & points else set()
            count += bool(nearest & points) - bool(nearest & own)
    return count > 0


def _cut(graph: Graph, axes: tuple[Axis, ...], count: int) -> _Cut:
    """About ``count`` parts: outer axes as they are, then one that is cut."""
    for k, axis in enumerate(axes):
        size = graph.hint(axis.size)
        if count < 2:
            return _Cut(axes[:k], axes[k:], {})
        if size > count:
            break
        count = -(-count // size)
    else:
        return _Cut(axes[:-1], axes[-1:], {})
    part = Axis(f"{axis.name}_part", sympy.Integer(_parts(axis.size, count)))
    if axis.size.is_Integer and int(axis.size) % int(part.size) == 0:
        step, end = axis.size / part.size, None
    else:
        step, end = integer_functions()["FloorDiv"](axis.size + part.size - 1, part.size), axis.size
    place = sympy.expand(step * part.symbol + axis.symbol)
    at = place if end is None else sympy.Min(place, end - 1)
    inner = (Axis(axis.name, step), *axes[k + 1 :])
    return _Cut((*axes[:k], part), inner, {axis.name: at}, place, end)


def _parts(size: Expr, count: int) -> int:
    """A number of parts near ``count`` that divides ``size``, if there is one."""
    if size.is_Integer:
        near = (n for n in range(count // 2 + 1, 2 * count) if int(size) % n == 0)
        return min(near, key=lambda n: max(n / count, count / n), default=count)
    return count


def _first(cut: _Cut, whole: tuple[Axis, ...]) -> dict[str, Expr]:
    """The first point of a part, in terms of the part."""
    parts = {a.name for a in cut.outer}
    zero = {a.name: sympy.S.Zero for a in cut.inner}
    return {a.name: substitute(cut.place, zero) if a.name in cut.mapping else sympy.S.Zero
            for a in whole if a.name not in parts}  # fmt: skip
