"""Prints the phases of a kernel: bodies inside their loops.

Each operation is printed at the outermost loop level where its operands exist. Values that differ between lanes are
vectors; those that do not are vectors with equal lanes, so that one table of operations serves both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ...ir.contracts.source import Unsupported
from ...ir.loops import ITEMSIZE, Axis, Op, element
from ...ir.processor import LINE_BYTES
from ..expressions import C, print_factor, print_index
from .accesses import AccessWriter
from .choices.effort import HEAVY
from .choices.fetches import dearest_pass, next_row
from .choices.levels import choose as choose_levels
from .choices.levels import divisors
from .choices.units import ROWS, side_by_side
from .folds import FoldWriter
from .places import Body, BodyLoop, Fold, Place
from .scalar_ops import TABLE, bitcast, cast
from .values import ValueWriter, lane_zero
from .vectors.parts import REGISTER

TILE = 128  # vectors added up before the partial sum joins the total: bounds the rounding error

# Comparisons, and what they are with their operands exchanged.
MIRRORED = {
    "eq": ("==", "=="), "ne": ("!=", "!="), "lt": ("<", ">"), "le": ("<=", ">="), "gt": (">", "<"), "ge": (">=", "<="),
}  # fmt: skip
NONE: Mapping[str, str] = MappingProxyType({})


class BodyWriter:
    """Prints phases of one kernel. A writer of units decides which loops they run in, and on which threads."""

    def __init__(self, values: ValueWriter, accesses: AccessWriter, folds: FoldWriter) -> None:
        self.values, self.accesses, self.folds = values, accesses, folds
        self.unit, self.plan, self.out, self.width = values.unit, values.plan, values.out, values.width
        self.written = frozenset(self.unit.roots[s] for s in self.plan.kernel.writes())  # memory

    # --- phases ---

    def phases(self, at: Place, bounds: tuple[str, str] | None = None, quantum: int = 1) -> None:
        """All phases of one unit. ``bounds`` limit the vector loop of a points kernel; they are multiples of ``quantum``."""
        kernel, layout, vector = self.plan.kernel, self.plan.layout, self.plan.vector
        if layout == "points":
            loops: tuple[BodyLoop, ...] = ()
            if vector:
                axis = next(a for a in kernel.axes if a.name == vector)
                lo, hi = bounds or ("0", print_factor(axis.size, self.values.names))
                loops = (BodyLoop(axis, lo, hi, True, quantum),)
            self.nest(Body(tuple(kernel.ops()), loops, vector), at)
            return
        if layout == "sweep":
            assert bounds is not None
            column = next(a for a in kernel.axes if a.name == vector)
            loops = tuple(self.loop(a, False) for p in kernel.phases for a in p.axes)
            self.nest(Body(tuple(kernel.ops()), (*loops, BodyLoop(column, *bounds, True)), vector), at)
            return
        dearest = dearest_pass(kernel, HEAVY) if layout == "rows" else None
        inverses = NONE
        for phase, inner, position in zip(kernel.phases, self.plan.loops.inner, self.plan.nest.positions, strict=True):
            ahead = ()
            if phase is dearest:
                ahead = next_row(self.plan.nest, self.unit.graph, phase.axes[0], self.plan.streams)
            loops = self.phase_loops(phase.axes, inner)
            inverses = self.nest(Body(phase.body, loops, vector or inner, position, ahead, inverses=inverses), at)

    def loop(self, axis: Axis, vector: bool) -> BodyLoop:
        return BodyLoop(axis, "0", print_factor(axis.size, self.values.names), vector)

    def phase_loops(self, axes: tuple[Axis, ...], inner: str) -> tuple[BodyLoop, ...]:
        """The loops of a phase; that of its vectors, if it has one, is the innermost."""
        return tuple(self.loop(a, a.name == inner) for a in sorted(axes, key=lambda a: a.name == inner))

    def nest(self, body: Body, at: Place) -> Mapping[str, str]:
        """Prints a body inside its loops: each op at the outermost level where its operands exist. Returns the inverses
        that are declared then."""
        at = dataclasses.replace(at, looping=bool(body.loops))
        body = self._with_divisors(self.arranged(body, at))
        for name in body.divisors:
            if name not in body.levels:
                self._invert(name, body, at)
        for fold in body.folds:
            self.folds.declare(fold, at)
        scoped = body.loops and body.ops and len(self.plan.kernel.phases) > 1 and self.plan.layout != "points"
        if scoped:
            self.out.open("{")
        if scans := self.folds.declare_scans(body.ops, at):
            body = dataclasses.replace(body, scans=scans)
        if at.across > 1 and not body.loops:
            for op in body.ops:
                if op.op not in ("store", "const"):
                    kind = self.values.vector(REGISTER[op.dtype])
                    self.out.put(f"{kind} {self.values.claim(op.name)}{at.many};")
            self.level(0, body, self.values.open_across(at))
            self.out.close()
        else:
            self.level(0, body, at)
        if scoped:
            self.out.close()
        for fold in body.folds:
            self.folds.finish(fold, at, across=bool(body.loops) and body.loops[-1].vector)
        return body.inverses

    def arranged(self, body: Body, at: Place) -> Body:
        """The body with all that is chosen before it is printed, but divisors."""
        levels = choose_levels(
            body.ops, [l.axis.name for l in body.loops], body.vector, self.values.differs, self._changes,
            innermost=at.across > 1,  # vectors side by side have a loop of their own inside
        )  # fmt: skip
        for op in body.ops:
            self.values.expect(op, varying=op.name in levels.varying)
        return dataclasses.replace(
            body, levels=levels.of, partners=self.accesses.paired(body.ops, levels.of, body.vector),
            folds=tuple(self.folds.begun(op, body.loops) for op in body.ops if op.op == "reduce"),
        )  # fmt: skip

    def _changes(self, storage: str) -> bool:
        return self.unit.roots[storage] in self.written

    def _with_divisors(self, body: Body) -> Body:
        """The body with what its innermost loop divides by, if a product and a step are as good as dividing."""
        found = divisors(body.ops, body.levels, len(body.loops), body.inverses) if self.unit.isa.fuses else ()
        if not found:
            return body
        inverses = dict(body.inverses)
        for name in found:
            many = name not in body.levels and self.values.text(name).endswith("[u]")
            inverses[name] = self.values.claim(name, "_inverse") + "[u]" * many
        return dataclasses.replace(body, divisors=found, inverses=inverses)

    def _invert(self, name: str, body: Body, at: Place) -> None:
        """Declares 1 / ``name``: dividing by it is a product, and a step that makes it exact."""
        kind, inverse, value = self.values.vector("f32"), body.inverses[name], self.values.text(name)
        self.values.need("quotient_by.f32")
        if inverse.endswith("[u]"):
            self.out.put(f"{kind} {inverse.removesuffix('[u]')}{at.many};")
            self.out.put(f"{at.each_vector} {inverse} = 1.0f / {value};")
        else:
            self.out.put(f"const {kind} {inverse} = 1.0f / {value};")

    # --- loops ---

    def level(self, k: int, body: Body, at: Place) -> None:
        """Prints the ops of depth ``k`` and the loops inside it."""
        for op in body.ops:
            if body.levels[op.name] == k:
                self._op(op, body, at)
                if op.name in body.divisors:
                    self._invert(op.name, body, at)
        if k < len(body.loops) - 1:
            loop = body.loops[k]
            self._stepped(k, body, at, loop.lo, loop.hi)
        elif k < len(body.loops):
            self._innermost(body, at)

    def _innermost(self, body: Body, at: Place) -> None:
        """The innermost loop. Sums of floats go to a partial sum first, of a tile, where there are many terms."""
        loop, size = body.loops[-1], body.loops[-1].axis.size
        lanes = self.width if loop.vector else 1
        tiled = len(body.loops) > 1 or not size.is_Integer or int(size) > TILE * lanes
        sums = [f.name for f in body.folds if tiled and self.folds.compensated(f)]
        lo, end = self._open_tile(loop, lanes) if sums else (loop.lo, loop.hi)
        body = _into(body, lambda f: f.name + "_tile" * (f.name in sums))
        for f in body.folds:
            if f.name in sums:
                self._declare_partial(f, at)
        plan = self.plan
        alone = plan.layout == "columns" and plan.nest.hint(plan.nest.size(body.vector)) <= self.width
        count = side_by_side(plan, body.ops, size, lanes) if loop.vector or alone else 1
        if at.strip:
            self._rows(body, at, lo, end)
        elif count > 1:
            self._unrolled(count, body, at, lo, end)
        else:
            self._stepped(len(body.loops) - 1, body, at, lo, end)
        if sums:
            for f in body.folds:
                if f.name in sums:
                    self._add_partial(f, at)
            self.out.close()

    def _open_tile(self, loop: BodyLoop, lanes: int) -> tuple[str, str]:
        """Opens the loop over tiles, of ``TILE`` vectors each, and returns the bounds of one."""
        name, terms = self.values.names[loop.axis.name], TILE * lanes
        tile, end = f"{name}_tile", f"{name}_end"
        self.out.open(f"for (long {tile} = {loop.lo}; {tile} < {loop.hi}; {tile} += {terms}) {{")
        self.out.put(f"const long {end} = {tile} + {terms} < {loop.hi} ? {tile} + {terms} : {loop.hi};")
        return tile, end

    def _declare_partial(self, fold: Fold, at: Place) -> None:
        """The partial sum of a tile."""
        kind = self.values.vector(fold.register)
        if at.strip:
            self.out.put(f"{kind} {fold.into}{at.many};")
            self.out.put(f"{at.each_vector} {fold.into}[u] = {kind}{{}};")
        else:
            self.out.put(f"{kind} {fold.into}{at.many} = {{}};")

    def _add_partial(self, fold: Fold, at: Place) -> None:
        """Adds a tile's sum to the total."""
        self.values.need(f"add_carry.{fold.register}")
        if at.across > 1:
            self.out.put(at.each_vector)
        total = fold.name + at.each
        self.out.put(f"{total} = add_carry({total}, {fold.into}{at.each}, &{fold.name}_carry{at.each});")

    def _stepped(self, k: int, body: Body, at: Place, lo: str, end: str) -> None:
        """The loop of depth ``k``, one step (and vector) at a time."""
        out, loop, name = self.out, body.loops[k], self.values.names[body.loops[k].axis.name]
        step = f"{name} += {self.width}" if loop.vector and self.width > 1 else f"++{name}"
        out.open(f"for (long {name} = {lo}; {name} < {end}; {step}) {{")
        if loop.vector:
            at = self.values.left(at, loop.axis.size, name, loop.hi)
        if at.across > 1 and k == len(body.loops) - 1:
            scans = {n: dataclasses.replace(s, into=f"{s.into}[u]") for n, s in body.scans.items()}
            body = _into(dataclasses.replace(body, scans=scans), lambda f: f"{f.into}[u]")
            self.level(k + 1, body, self.values.open_across(at))
            out.close()
        else:
            self.level(k + 1, body, at)
        out.close()

    def _rows(self, body: Body, at: Place, lo: str, end: str) -> None:
        """The innermost loop of a strip: a few rows at a time, so that running results are loaded and stored once for all
        of them. Rows are added one after the other."""
        out, size, name = self.out, body.loops[-1].axis.size, self.values.names[body.loops[-1].axis.name]
        out.put(f"long {name}_first = {lo};")
        heavy = any(o.op in HEAVY for o in body.ops)
        even = size.is_Integer and int(size) % ROWS == 0
        inside = _into(body, lambda f: f"{f.name}_next")
        for rows in (1,) if heavy else (ROWS,) if even else (ROWS, 1):
            test = f"{name}_first < {end}" if rows == 1 else f"{name}_first + {rows} <= {end}"
            out.open(f"for (; {test}; {name}_first += {rows}) {{")
            vector = self.values.open_across(at)
            for whole, f in zip(body.folds, inside.folds, strict=True):
                out.put(f"{self.folds.accumulator(f)} {f.into} = {whole.into}[u];")
            if rows > 1:
                out.put(f"#pragma GCC unroll {rows}")
                out.open(f"for (long {name} = {name}_first; {name} < {name}_first + {rows}; ++{name}) {{")
            else:
                out.put(f"const long {name} = {name}_first;")
            self.level(len(body.loops), inside, vector)
            if rows > 1:
                out.close()
            for whole, f in zip(body.folds, inside.folds, strict=True):
                out.put(f"{whole.into}[u] = {f.into};")
            out.close()
            out.close()

    def _unrolled(self, count: int, body: Body, at: Place, lo: str, end: str) -> None:
        """The innermost loop, ``count`` steps (and accumulators) at a time, then what is left over, one at a time."""
        out, loop = self.out, body.loops[-1]
        lanes = self.width if loop.vector else 1
        name, stride = self.values.names[loop.axis.name], count * lanes
        size = loop.axis.size
        even = (loop.lo == "0" or loop.quantum % stride == 0) and size.is_Integer and int(size) % stride == 0
        first = f"{name}_first"
        for f in body.folds:
            starts = ", ".join([self.folds.start(f)] * count)
            out.put(f"{self.folds.accumulator(f)} {f.into}_u[{count}] = {{{starts}}};")
        if even:
            out.open(f"for (long {first} = {lo}; {first} < {end}; {first} += {stride}) {{")
        else:
            out.put(f"long {first} = {lo};")
            out.open(f"for (; {first} + {stride} <= {end}; {first} += {stride}) {{")
        self._fetch(body, first, stride)
        out.put(f"#pragma GCC unroll {count}")
        out.open(f"for (long u = 0; u < {count}; ++u) {{")
        out.put(f"const long {name} = {first} + u * {lanes};")
        full = dataclasses.replace(at, left=str(self.width)) if loop.vector else at
        self.level(len(body.loops), _into(body, lambda f: f"{f.into}_u[u]"), full)
        out.close()
        out.close()
        if not even:
            out.open(f"for (long {name} = {first}; {name} < {end}; {name} += {lanes}) {{")
            rest = self.values.left(at, size, name, loop.hi) if loop.vector else at
            self.level(len(body.loops), body, rest)
            out.close()
        for f in body.folds:
            for u in range(count):
                self.folds.combine(f, f.into, f"{f.into}_u[{u}]")

    def _fetch(self, body: Body, first: str, stride: int) -> None:
        """Asks for the lines of the next row that lie where ``stride`` elements of this one do."""
        names = {**self.values.names, body.loops[-1].axis.name: first}
        for fetch in body.ahead:
            line = LINE_BYTES // ITEMSIZE[element(self.unit.graph.buffers[fetch.storage].dtype)]
            for k in range(0, stride, line):
                place = f"{self.accesses.pointers[fetch.storage]} + {print_index(fetch.index + k, names, C)}"
                self.out.put(f"__builtin_prefetch({place}, {int(fetch.write)}, 2);")

    # --- single ops ---

    def _op(self, op: Op, body: Body, at: Place) -> None:
        accesses, vector = self.accesses, body.vector
        if op.op == "load":
            accesses.load(op, body, at)
        elif op.op == "store":
            accesses.store(op, body, at)
        elif op.op == "reduce":
            self.folds.accumulate(op, body, at)
        elif op.op == "scan":
            self.folds.scan(op, body, at)
        elif op.op == "const":
            self.values.constant(op)
        elif op.op == "index":
            accesses.index_value(op, vector, at)
        elif op.op == "random":
            accesses.random(op, vector, at)
        elif op.op == "bounds":
            accesses.bounds(op, at)
        else:
            self.values.define(op, self._computed(op, body), at)

    def _computed(self, op: Op, body: Body) -> str:
        """The text of what is computed from other values alone."""
        values = [self.values.slots[a].value if isinstance(a, str) else self.values.number(a, op) for a in op.args]
        iotas = self.accesses.iotas
        if op.op == "cast" and op.dtype == "i32" and op.args[0] in iotas:
            return f"iota32_{self.width}({iotas[op.args[0]]})"
        if op.op in MIRRORED and (place := self._compared_place(op)):
            return place
        if op.op == "cast":
            return cast(self.values, op, values[0])
        if op.op == "bitcast":
            return bitcast(self.values, op, values[0])
        if op.op == "div" and op.args[1] in body.inverses:
            return f"quotient_by({values[0].text}, {values[1].text}, {body.inverses[op.args[1]]})"
        if op.op in TABLE:
            return TABLE[op.op](self.values, op, values)
        raise Unsupported(f"operation {op.op}")

    def _compared_place(self, op: Op) -> str:
        """A comparison of consecutive positions with one number: of lanes' numbers, in 32 bits. "" for any other."""
        symbol, (a, b) = MIRRORED[op.op][0], op.args
        iotas, slots = self.accesses.iotas, self.values.slots
        if b in iotas:
            symbol, a, b = MIRRORED[op.op][1], b, a
        start, _, step = iotas.get(a, "").rpartition(", ")
        if step != "1" or self.values.wide or slots[b].varying or slots[b].value.dtype != "i64":
            return ""
        self.values.need("lane_of")
        lane = f"lane_of{self.width}({lane_zero(slots[b].value)}, {start})"
        return f"(iota32_{self.width}(0, 1) {symbol} {self.values.splat('i32', lane)})"


def _into(body: Body, accumulator: Callable[[Fold], str]) -> Body:
    """The body whose folds add to these variables."""
    if not body.folds:
        return body
    return dataclasses.replace(body, folds=tuple(dataclasses.replace(f, into=accumulator(f)) for f in body.folds))
