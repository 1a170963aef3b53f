"""Prints the phases of a kernel: bodies inside their loops.

Each operation is printed at the outermost loop level where its operands exist. Values that differ between lanes are
vectors; those that do not are vectors with equal lanes, so that one table of operations serves both.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
from sympy import Expr

from ...ir.contracts.source import Unsupported, Writer
from ...ir.loops import ITEMSIZE, Axis, Kernel, Op, element
from ..expressions import C, names_in, print_factor, print_index
from ..nest import index_of
from ..operands import Value
from .choices.effort import CHAINS, HEAVY
from .choices.fetches import LINE, Fetch, dearest_pass, next_row
from .folds import Fold, FoldWriter
from .scalar_ops import TABLE, bitcast, cast
from .unit import Unit
from .values import BodyLoop, Slot, lane_zero
from .vectors.parts import REGISTER

TILE = 128  # vectors added up before the partial sum joins the total: bounds the rounding error
UNROLL = 4  # independent accumulators of a reduction whose body is too short to hide an addition's latency
LIGHT = 12  # operations of such a body
ROWS = 4  # rows that a strip adds up at a time

# Comparisons, and what they are with their operands exchanged.
MIRRORED = {
    "eq": ("==", "=="), "ne": ("!=", "!="), "lt": ("<", ">"), "le": ("<=", ">="), "gt": (">", "<"), "ge": (">=", "<="),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhaseBody:
    """A phase as it is printed: its ops, each with the depth of the loop that it belongs to, its loops, from the outermost,
    and its reductions."""

    ops: tuple[Op, ...]
    levels: dict[str, int]
    loops: list[BodyLoop]
    folds: list[Fold]
    vector: str  # the axis that vectors run along
    position: Expr  # the flat position in the phase's axes


class BodyWriter(FoldWriter):
    """Prints phases of one kernel. A kernel writer decides which loops they run in, and on which threads."""

    def __init__(self, unit: Unit, kernel: Kernel, out: Writer) -> None:
        super().__init__(unit, kernel, out)
        self.ahead: tuple[Fetch, ...] = ()  # of the phase being printed
        self.divisors: tuple[str, ...] = ()  # of the body being printed, those that its innermost loop does not change
        self.inverses: dict[str, str] = {}

    # --- phases ---

    def _phases(self, bounds: tuple[str, str] | None = None, quantum: int = 1) -> None:
        """All phases of one unit. ``bounds`` limit the vector loop of a points kernel; they are multiples of ``quantum``."""
        kernel, layout = self.kernel, self.plan.layout
        self.inverses = {}
        if layout == "points":
            body = tuple(o for p in kernel.phases for o in p.body)
            loops = []
            if self.plan.vector:
                axis = next(a for a in kernel.axes if a.name == self.plan.vector)
                lo, hi = bounds or ("0", print_factor(axis.size, self.names))
                loops = [BodyLoop(axis, lo, hi, True, quantum)]
            self._nest(body, loops, self.plan.vector, sympy.S.Zero)
            return
        if layout == "sweep":
            assert bounds is not None
            body = tuple(o for p in kernel.phases for o in p.body)
            column = next(a for a in kernel.axes if a.name == self.plan.vector)
            loops = [self._loop(a, False) for p in kernel.phases for a in p.axes]
            self._nest(body, [*loops, BodyLoop(column, *bounds, True)], self.plan.vector, sympy.S.Zero)
            return
        host = dearest_pass(kernel, HEAVY) if layout == "rows" else None
        for phase, inner, position in zip(kernel.phases, self.plan.inner, self.nest.positions, strict=True):
            if layout == "columns":
                loops = [self._loop(a, False) for a in phase.axes]
                self._nest(phase.body, loops, self.plan.vector, position)
            else:
                loops = [self._loop(a, False) for a in phase.axes if a.name != inner]
                loops += [self._loop(a, True) for a in phase.axes if a.name == inner]
                self.ahead = next_row(self.nest, self.unit.graph, phase.axes[0], self.streams) if phase is host else ()
                self._nest(phase.body, loops, inner, position)

    def _fetch(self, name: str, first: str, stride: int) -> None:
        """Asks for the lines of the next row that lie where ``stride`` elements of this one do."""
        for fetch in self.ahead:
            line = LINE // ITEMSIZE[element(self.unit.graph.buffers[fetch.storage].dtype)]
            for k in range(0, stride, line):
                index = print_index(fetch.index + k, {**self.names, name: first}, C)
                self.out.put(f"__builtin_prefetch({self.pointers[fetch.storage]} + {index}, {int(fetch.write)}, 2);")

    def _loop(self, axis: Axis, vector: bool) -> BodyLoop:
        return BodyLoop(axis, "0", print_factor(axis.size, self.names), vector)

    def _decode(self, outer: list[Axis], unit: str) -> None:
        rest = unit
        for k, axis in enumerate(reversed(outer)):
            name = self.names[axis.name]
            last = k == len(outer) - 1
            size = print_factor(axis.size, self.names)
            self.out.put(f"const long {name} = {rest};" if last else f"const long {name} = {rest} % {size};")
            rest = f"({rest}) / {size}" if k else f"{rest} / {size}"

    def _nest(self, body: tuple[Op, ...], loops: list[BodyLoop], vector: str, position: Expr) -> None:
        """Prints a body inside its loops: each op at the outermost level where its operands exist."""
        depth = {l.axis.name: k + 1 for k, l in enumerate(loops)}
        levels = self._levels(body, depth, vector, len(loops))
        self.partners = self._paired(body, vector)
        self.divisors = self._divisors(body, levels, len(loops))
        for name in self.divisors:
            if name not in levels:
                self._invert(name)
        folds = [self._fold(op, loops) for op in body if op.op == "reduce"]
        scoped = bool(loops) and bool(body)
        self.looping = bool(loops)
        for fold in folds:
            self._declare(fold)
        if scoped and len(self.kernel.phases) > 1 and self.plan.layout != "points":
            self.out.open("{")
        self._declare_scans(body)
        if self.across > 1 and not loops:
            for op in body:
                if op.op not in ("store", "const"):
                    self.out.put(f"{self.vector(REGISTER[op.dtype])} {self.claim(op.name)}[{self.across}];")
            self._open_across()
        self._level(0, PhaseBody(body, levels, loops, folds, vector, position))
        if self.across > 1 and not loops:
            self.out.close()
        if scoped and len(self.kernel.phases) > 1 and self.plan.layout != "points":
            self.out.close()
        for fold in folds:
            self._finish(fold, across=bool(loops) and loops[-1].vector)

    def _levels(self, body: tuple[Op, ...], depth: dict[str, int], vector: str, last: int) -> dict[str, int]:
        """For each op the loop depth it belongs to. Also decides which values differ between lanes."""
        levels: dict[str, int] = {}
        for op in body:
            level, varying = 0, False
            for name in op.operands():
                slot = self.slots.get(name)
                level = max(level, levels.get(name, 0))
                varying |= slot.varying if slot else False
            index = index_of(op)
            if index is not None:
                used = names_in(index)
                level = max([level, *(depth.get(n, 0) for n in used)])
                varying |= vector in used
            if op.op in ("store", "reduce", "scan") or (
                op.op == "load" and any(self.unit.same_memory(op.args[0], w) for w in self.written)
            ):
                level = last
            if self.across > 1:
                level = last  # inside the loop over the vectors side by side
            levels[op.name] = level
            self.slots[op.name] = Slot(Value("", op.dtype), level, varying or op.op == "scan")
        return levels

    def _divisors(self, body: tuple[Op, ...], levels: dict[str, int], last: int) -> tuple[str, ...]:
        """What the innermost loop divides by and does not change."""
        if not self.unit.isa.fuses:
            return ()
        found = [
            op.args[1] for op in body
            if op.op == "div" and REGISTER[op.dtype] == "f32" and levels[op.name] == last and isinstance(op.args[1], str)
        ]  # fmt: skip
        return tuple(n for n in dict.fromkeys(found) if levels.get(n, 0) < last and n not in self.inverses)

    def _invert(self, name: str) -> None:
        """Declares 1 / ``name``: dividing by it is a product, and a step that makes it exact."""
        kind, inverse, many = self.vector("f32"), self.claim(name, "_inverse"), self._text(name).endswith("[u]")
        self.need("quotient_by.f32")
        if many:
            self.out.put(f"{kind} {inverse}[{self.across}];")
            self.out.put(f"{self._each_across()} {inverse}[u] = 1.0f / {self._text(name)};")
        else:
            self.out.put(f"const {kind} {inverse} = 1.0f / {self._text(name)};")
        self.inverses[name] = inverse + ("[u]" if many else "")

    def _level(self, k: int, body: PhaseBody) -> None:
        """Prints the ops of depth ``k`` and the loops inside it."""
        for op in body.ops:
            if body.levels[op.name] == k:
                self._op(op, body)
                if op.name in self.divisors:
                    self._invert(op.name)
        if k < len(body.loops) - 1:
            loop = body.loops[k]
            self._stepped(k, body, loop.lo, loop.hi)
        elif k < len(body.loops):
            self._innermost(body)

    def _innermost(self, body: PhaseBody) -> None:
        """The innermost loop. Sums of floats go to a partial sum first, of a tile, where there are many terms."""
        loop, size = body.loops[-1], body.loops[-1].axis.size
        lanes = self.width if loop.vector else 1
        sums = [f for f in body.folds if self._compensated(f)]
        if len(body.loops) == 1 and size.is_Integer and int(size) <= TILE * lanes:
            sums = []
        lo, end = self._open_tile(loop, lanes) if sums else (loop.lo, loop.hi)
        for f in body.folds:
            f.into = f.name
            if f in sums:
                f.into += "_tile"
                self._declare_partial(f)
        alone = self.plan.layout == "columns" and self.nest.hint(self.nest.size(body.vector)) <= self.width
        count = self._side_by_side_in(body.ops, size, lanes) if loop.vector or alone else 1
        if self.strip:
            self._rows(body, lo, end)
        elif count > 1:
            self._unrolled(count, body, lo, end)
        else:
            self._stepped(len(body.loops) - 1, body, lo, end)
        if sums:
            for f in sums:
                self._add_partial(f)
            self.out.close()

    def _open_tile(self, loop: BodyLoop, lanes: int) -> tuple[str, str]:
        """Opens the loop over tiles, of ``TILE`` vectors each, and returns the bounds of one."""
        name, terms = self.names[loop.axis.name], TILE * lanes
        tile, end = f"{name}_tile", f"{name}_end"
        self.out.open(f"for (long {tile} = {loop.lo}; {tile} < {loop.hi}; {tile} += {terms}) {{")
        self.out.put(f"const long {end} = {tile} + {terms} < {loop.hi} ? {tile} + {terms} : {loop.hi};")
        return tile, end

    def _declare_partial(self, fold: Fold) -> None:
        """The partial sum of a tile."""
        kind, many = self.vector(fold.register), f"[{self.across}]" if self.across > 1 else ""
        if self.strip:
            self.out.put(f"{kind} {fold.into}{many};")
            self.out.put(f"{self._each_across()} {fold.into}[u] = {kind}{{}};")
        else:
            self.out.put(f"{kind} {fold.into}{many} = {{}};")

    def _add_partial(self, fold: Fold) -> None:
        """Adds a tile's sum to the total."""
        self.need(f"add_carry.{fold.register}")
        if self.across > 1:
            self.out.put(self._each_across())
        at = "[u]" if self.across > 1 else ""
        total = f"{fold.name}{at}"
        self.out.put(f"{total} = add_carry({total}, {fold.name}_tile{at}, &{fold.name}_carry{at});")

    def _stepped(self, k: int, body: PhaseBody, lo: str, end: str) -> None:
        """The loop of depth ``k``, one step (and vector) at a time."""
        out, loop, name = self.out, body.loops[k], self.names[body.loops[k].axis.name]
        step = f"{name} += {self.width}" if loop.vector and self.width > 1 else f"++{name}"
        out.open(f"for (long {name} = {lo}; {name} < {end}; {step}) {{")
        if loop.vector:
            self._left(loop.axis.size, name, loop.hi)
        side = self.across > 1 and k == len(body.loops) - 1
        if side:
            self._open_across()
            for f in (*body.folds, *self.scans.values()):
                f.into += "[u]"
        self._level(k + 1, body)
        if side:
            out.close()
        out.close()

    def _rows(self, body: PhaseBody, lo: str, end: str) -> None:
        """The innermost loop of a strip: a few rows at a time, so that running results are loaded and stored once for all
        of them. Rows are added one after the other."""
        out, size, name = self.out, body.loops[-1].axis.size, self.names[body.loops[-1].axis.name]
        out.put(f"long {name}_first = {lo};")
        heavy = any(o.op in HEAVY for o in body.ops)
        even = size.is_Integer and int(size) % ROWS == 0
        for rows in (1,) if heavy else (ROWS,) if even else (ROWS, 1):
            test = f"{name}_first < {end}" if rows == 1 else f"{name}_first + {rows} <= {end}"
            out.open(f"for (; {test}; {name}_first += {rows}) {{")
            self._open_across()
            whole = [f.into for f in body.folds]
            for f, into in zip(body.folds, whole, strict=True):
                f.into = f"{f.name}_next"
                out.put(f"{self._accumulator(f)} {f.into} = {into}[u];")
            if rows > 1:
                out.put(f"#pragma GCC unroll {rows}")
                out.open(f"for (long {name} = {name}_first; {name} < {name}_first + {rows}; ++{name}) {{")
            else:
                out.put(f"const long {name} = {name}_first;")
            self._level(len(body.loops), body)
            if rows > 1:
                out.close()
            for f, into in zip(body.folds, whole, strict=True):
                out.put(f"{into}[u] = {f.into};")
                f.into = into
            out.close()
            out.close()

    def _side_by_side_in(self, body: tuple[Op, ...], size: Expr, lanes: int) -> int:
        """How many steps (of ``lanes`` elements) of an innermost loop are computed side by side: a short reduction waits for
        its own accumulator, and a function for its own results."""
        chains = sum(o.op in CHAINS for o in body)
        if any(o.op == "scan" or o.update for o in body) or self.width == 1:
            return 1
        if any(o.op in HEAVY for o in body):
            count = max(1, UNROLL // chains) if chains and not self.wide else 1
        elif len(body) <= LIGHT and any(o.op == "reduce" for o in body):
            count = UNROLL
        else:
            return 1
        count = self.tuning.unroll or count
        return count if self.nest.hint(size) >= 2 * count * lanes else 1

    def _unrolled(self, count: int, body: PhaseBody, lo: str, end: str) -> None:
        """The innermost loop, ``count`` steps (and accumulators) at a time, then what is left over, one at a time."""
        out, loop = self.out, body.loops[-1]
        lanes = self.width if loop.vector else 1
        name, stride = self.names[loop.axis.name], count * lanes
        size = loop.axis.size
        even = (loop.lo == "0" or loop.quantum % stride == 0) and size.is_Integer and int(size) % stride == 0
        first = f"{name}_first"
        whole = [f.into for f in body.folds]
        for f in body.folds:
            out.put(f"{self._accumulator(f)} {f.into}_u[{count}] = {{{', '.join([self._start(f)] * count)}}};")
            f.into += "_u[u]"
        if even:
            out.open(f"for (long {first} = {lo}; {first} < {end}; {first} += {stride}) {{")
        else:
            out.put(f"long {first} = {lo};")
            out.open(f"for (; {first} + {stride} <= {end}; {first} += {stride}) {{")
        self._fetch(loop.axis.name, first, stride)
        out.put(f"#pragma GCC unroll {count}")
        out.open(f"for (long u = 0; u < {count}; ++u) {{")
        out.put(f"const long {name} = {first} + u * {lanes};")
        if loop.vector:
            self.left = str(self.width)
        self._level(len(body.loops), body)
        out.close()
        out.close()
        for f, into in zip(body.folds, whole, strict=True):
            f.into = into
        if not even:
            out.open(f"for (long {name} = {first}; {name} < {end}; {name} += {lanes}) {{")
            if loop.vector:
                self._left(size, name, loop.hi)
            self._level(len(body.loops), body)
            out.close()
        for f in body.folds:
            for u in range(count):
                part = f"{f.into}_u[{u}]"
                if f.kind in ("argmax", "argmin"):
                    out.put(f"arg_{f.kind[3:]}(&{f.into}, {part}.best, {part}.at);")
                else:
                    out.put(self._combine(f, f.into, part))

    # --- single ops ---

    def _op(self, op: Op, body: PhaseBody) -> None:
        vector = body.vector
        if op.op == "load":
            self._load(op, vector)
        elif op.op == "store":
            self._store(op, vector)
        elif op.op == "reduce":
            self._accumulate(op, vector, body.position, body.folds)
        elif op.op == "scan":
            self._scan(op)
        elif op.op == "const":
            self._constant(op)
        elif op.op == "index":
            self._index_value(op, vector)
        elif op.op == "random":
            self._random(op, vector)
        elif op.op == "bounds":
            self._bounds(op)
        else:
            values = [self.slots[a].value if isinstance(a, str) else self._number(a, op) for a in op.args]
            if op.op == "cast" and op.dtype == "i32" and op.args[0] in self.iotas:
                text = f"iota32_{self.width}({self.iotas[op.args[0]]})"
            elif op.op in MIRRORED and (place := self._compared_place(op)):
                text = place
            elif op.op == "cast":
                text = cast(self, op, values[0])
            elif op.op == "bitcast":
                text = bitcast(self, op, values[0])
            elif op.op == "div" and op.args[1] in self.inverses:
                text = f"quotient_by({values[0].text}, {values[1].text}, {self.inverses[op.args[1]]})"
            elif op.op in TABLE:
                text = TABLE[op.op](self, op, values)
            else:
                raise Unsupported(f"operation {op.op}")
            self._define(op, text)

    def _compared_place(self, op: Op) -> str:
        """A comparison of consecutive positions with one number: of lanes' numbers, in 32 bits. "" for any other."""
        symbol, (a, b) = MIRRORED[op.op][0], op.args
        if b in self.iotas:
            symbol, a, b = MIRRORED[op.op][1], b, a
        start, _, step = self.iotas.get(a, "").rpartition(", ")
        if step != "1" or self.wide or self.slots[b].varying or self.slots[b].value.dtype != "i64":
            return ""
        self.need("lane_of")
        lane = f"lane_of{self.width}({lane_zero(self.slots[b].value)}, {start})"
        return f"(iota32_{self.width}(0, 1) {symbol} {self._splat('i32', lane)})"
