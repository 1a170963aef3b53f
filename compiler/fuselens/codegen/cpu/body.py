"""Prints the phases of a kernel: bodies inside their loops, reductions, and single operations.

Each operation is printed at the outermost loop level where its operands exist. Values that differ between lanes are
vectors; those that do not are vectors with equal lanes, so that one table of operations serves both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import sympy
from sympy import Expr
from sympy.core.operations import LatticeOp

from ...ir.loops import ITEMSIZE, Axis, Graph, Kernel, Op, element, indirect_names
from ..expressions import C, linear, names_in, print_factor, print_index, slopes
from ..nest import Nest, Plan, Tuning, few, in_one_pass, index_of, plan, simplify
from ..source import Unsupported, Writer
from .fetches import LINE, Fetch, dearest_pass, next_row
from .isa import Isa
from .maths_parts import ARG_NONE
from .parts import LIBM, REGISTER, UNIT
from .prelude import parts_of
from .scalar_ops import TABLE, Value, bitcast, cast, literal, wrap
from .scans import Scan, identity, started

TILE = 128  # vectors added up before the partial sum joins the total: bounds the rounding error
UNROLL = 4  # independent accumulators of a reduction whose body is too short to hide an addition's latency
LIGHT = 12  # operations of such a body
STRIP = 3 << 12  # bytes of all running results of a strip: part of a small first-level cache
ROWS = 4  # rows that a strip adds up at a time
# Functions that are one long chain of operations: processors look ahead too little to find the next vector's.
CHAINS = frozenset("exp exp2 expm1 log log2 log10 log1p asin acos atan sinh cosh tanh sigmoid erf".split())

HEAVY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sigmoid erf"
    " erfc lgamma hypot pow fmod mod floordiv random".split()
)
KEYWORDS = (
    "asm auto bool break case char class const continue default delete do double else enum extern float for goto if"
    " inline int long namespace new operator private public register return short signed sizeof static struct switch"
    " template this throw try typedef union unsigned using void volatile while and or not xor main bf16 f16"
).split()
_OURS = (
    "left begin end first unit units row lo hi n u l count stop given step share chunk chunks work parallel thread threads splat copy_edge put_edge add_carry"
    " to_i32 to_i64 bits round_even div_floor div_trunc mod_floor mod_trunc int_pow shift_left shift_right floor_div"
    " floor_mod least greatest bound wrap keep_f32 keep_f64 keep_i32 keep_i64 keep_mask"
    " arg_max arg_min arg_max_next arg_min_next arg_place any_far any_lane arc atan_near bf16_value erf_near erfc_far"
    " exp_reduce fast_exp_reduce float_to_half half_exp half_to_float half_value halves_product is_far join keep log1p_of"
    " log_core log_edges log_normal log_split narrow16 narrow8 not_zero pow2 pow_edges quotient quotient_by result"
    " round_bf16 round_f16 scale scan_each scan_lanes sign_extend sign_of sin_cos turn zero_extend at_least"
    " at_most fold_all fold_any fold_arg_max fold_arg_min fold_max fold_min fold_prod fold_sum"
)
RESERVED = frozenset([*KEYWORDS, *_OURS.split()]) | frozenset(TABLE) | frozenset(LIBM)


# Comparisons, and what they are with their operands exchanged.
MIRRORED = {
    "eq": ("==", "=="), "ne": ("!=", "!="), "lt": ("<", ">"), "le": ("<=", ">="), "gt": (">", "<"), "ge": (">=", "<="),
}  # fmt: skip


class Unit:
    """What the kernels of one translation unit share: the prelude parts in use."""

    def __init__(self, graph: Graph, isa: Isa, tunings: Mapping[str, Tuning] = MappingProxyType({})) -> None:
        self.graph, self.isa, self.tunings = graph, isa, tunings
        self.parts: dict[tuple[int, bool], set[str]] = {}
        self.lane_free: set[str] = {"parallel"}
        self._known: dict[tuple[int, bool], dict[str, object]] = {}

    def need(self, width: int, wide: bool, names: Sequence[str]) -> None:
        known = self._known.get((width, wide))
        if known is None:
            known = self._known[width, wide] = dict(parts_of(width, wide, self.isa))
        for name in names:
            if name in known:
                self.parts.setdefault((width, wide), set()).add(name)
            elif name in UNIT:
                self.lane_free.add(name)
            else:
                raise Unsupported(f"{name} has no vector form")

    def takes_over(self, new: str, old: str) -> bool:
        """Whether ``new`` lies in the memory of ``old``, directly or through others."""
        return old in self.graph.owners(new)[1:]

    def same_memory(self, a: str, b: str) -> bool:
        return self.graph.root(a) == self.graph.root(b)


@dataclass(slots=True)
class BodyLoop:
    """A loop of a phase: its axis, C++ variable, bounds, and whether it steps by vectors. Bounds inside of the axis are
    multiples of ``quantum``."""

    axis: Axis
    lo: str
    hi: str
    vector: bool
    quantum: int = 1


@dataclass(slots=True)
class Slot:
    """Where a value lives: its text, dtype, the loop level that defines it, and whether lanes differ."""

    value: Value
    level: int
    varying: bool


@dataclass(slots=True)
class Fold:
    """A reduction under way: variable names and how partial results combine."""

    op: Op
    kind: str
    register: str  # of the folded values
    dtype: str
    name: str
    into: str = ""  # the accumulator that the body now being printed adds to
    place: str = "i64"  # argmax and argmin: register kind of the indices
    rising: bool = False  # each lane sees its indices in order


class BodyWriter:
    """Prints phases of one kernel into ``out``. A kernel writer decides which loops they run in, and on which threads."""

    def __init__(self, unit: Unit, kernel: Kernel, out: Writer) -> None:
        self.unit, self.source, self.out = unit, kernel, out
        self.nest: Nest = simplify(in_one_pass(kernel, unit.same_memory), unit.graph)
        self.kernel = self.nest.kernel
        self.tuning = unit.tunings.get(kernel.name, Tuning())
        self.plan: Plan = plan(self.nest, self.tuning.layout)
        self.wide = self.plan.wide or unit.isa.register == 0
        self.fast = unit.isa.fast
        self.width = self._lanes()
        self.wide |= self.width < unit.isa.lanes(False)  # a unit has one kind of mask for each number of lanes
        self.slots: dict[str, Slot] = {}
        self.pointers: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.written = frozenset(self.kernel.writes())
        self.checks = False
        self.scans: dict[str, Scan] = {}
        self.partners: dict[str, Op | None] = {}  # see _paired
        self.iotas: dict[str, str] = {}  # arguments of the iota calls that printed index ops
        self.left = str(self.width)
        self.looping = False
        self.across = 1  # vectors side by side that a unit of a columns kernel computes, at most
        self.strip: tuple[Expr, str] | None = (
            None  # where their number is only known when it runs: columns, and their end
        )
        self.ahead: tuple[Fetch, ...] = ()  # of the phase being printed
        self.divisors: tuple[str, ...] = ()  # of the body being printed, those that its innermost loop does not change
        self.inverses: dict[str, str] = {}
        self.axis_names = frozenset(a.name for a in self.kernel.axes) | {
            a.name for p in self.kernel.phases for a in p.axes
        }

    def _lanes(self) -> int:
        """Lanes of a vector: fewer than a register has, down to four, where the axis that vectors run along is that short."""
        lanes = self.unit.isa.lanes(self.wide)
        size = self.nest.size(self.plan.vector) if self.plan.vector else None
        while size is not None and size.is_Integer and 1 < int(size) <= lanes // 2 and lanes > 4:
            lanes //= 2
        return lanes

    # --- the emitter interface of scalar_ops ---

    def need(self, *parts: str) -> None:
        self.checks |= any(p.startswith(("int_division", "bound")) for p in parts)
        self.unit.need(self.width, self.wide, parts)

    def vector(self, register: str) -> str:
        return f"{register}x{self.width}"

    def claim(self, name: str, suffix: str = "") -> str:
        """A C++ identifier for an IR name."""
        text = re.sub(r"\W", "_", name) + suffix
        if text in RESERVED or not text[0].isalpha():
            text = f"v_{text}"
        while text in self.names.values() and self.names.get(name) != text:
            text += "_"
        self.names[name + suffix] = text
        return text

    def _open_across(self) -> None:
        """The loop over the vectors that lie side by side; if they are few, the compiler unrolls it and keeps arrays in
        registers."""
        name = self.names[self.plan.vector]
        if not self.strip:
            self.out.put(f"#pragma GCC unroll {self.across}")
        self.out.open(f"{self._each_across()} {{")
        self.out.put(f"const long {name} = {name}_first + u * {self.width};")
        if self.strip:
            self._left(self.strip[0], name, self.strip[1])

    def _each_across(self) -> str:
        return f"for (long u = 0; u < {'count' if self.strip else self.across}; ++u)"

    def _left(self, size: Expr, name: str, hi: str) -> None:
        """Declares how many lanes exist from here on; constant where every vector is full."""
        if self.width == 1 or (size.is_Integer and int(size) % self.width == 0):
            self.left = str(self.width)
        else:
            self.left = "left"
            self.out.put(f"const long left = {hi} - {name};")

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
                self.ahead = next_row(self.nest, self.unit.graph, phase.axes[0]) if phase is host else ()
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
        self._level(0, body, levels, loops, folds, vector, position)
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

    def _level(
        self, k: int, body: tuple[Op, ...], levels: dict[str, int], loops: list[BodyLoop], folds: list[Fold],
        vector: str, position: Expr,
    ) -> None:  # fmt: skip
        """Prints the ops of depth ``k`` and the loops inside it."""
        out = self.out
        for op in body:
            if levels[op.name] == k:
                self._op(op, vector, position, folds)
                if op.name in self.divisors:
                    self._invert(op.name)
        if k == len(loops):
            return
        loop = loops[k]
        name = self.names[loop.axis.name]
        innermost = k == len(loops) - 1
        sums = [f for f in folds if self._compensated(f)] if innermost else []
        lanes = self.width if loop.vector else 1
        size = loop.axis.size
        tiled = bool(sums) and (len(loops) > 1 or not (size.is_Integer and int(size) <= TILE * lanes))
        lo, end = loop.lo, loop.hi
        if tiled:
            tile = f"{name}_tile"
            out.open(f"for (long {tile} = {lo}; {tile} < {end}; {tile} += {TILE * lanes}) {{")
            out.put(f"const long {name}_end = {tile} + {TILE * lanes} < {end} ? {tile} + {TILE * lanes} : {end};")
            lo, end = tile, f"{name}_end"
        for f in folds if innermost else ():
            f.into = f.name
            if tiled and f in sums:
                f.into += "_tile"
                many = f"[{self.across}]" if self.across > 1 else ""
                if self.strip:
                    out.put(f"{self.vector(f.register)} {f.into}{many};")
                    out.put(f"{self._each_across()} {f.into}[u] = {self.vector(f.register)}{{}};")
                else:
                    out.put(f"{self.vector(f.register)} {f.into}{many} = {{}};")
        alone = self.plan.layout == "columns" and self.nest.hint(self.nest.size(vector)) <= self.width
        count = self._side_by_side_in(body, size, lanes) if innermost and (loop.vector or alone) else 1
        if self.strip and innermost:
            self._rows(body, levels, loops, folds, vector, position, lo, end)
        elif count > 1:
            self._unrolled(count, body, levels, loops, folds, vector, position, lo, end)
        else:
            step = f"{name} += {lanes}" if lanes > 1 else f"++{name}"
            out.open(f"for (long {name} = {lo}; {name} < {end}; {step}) {{")
            if loop.vector:
                self._left(size, name, loop.hi)
            side = innermost and self.across > 1
            if side:
                self._open_across()
            for f in (*folds, *self.scans.values()) if side else ():
                f.into += "[u]"
            self._level(k + 1, body, levels, loops, folds, vector, position)
            if side:
                out.close()
            out.close()
        if tiled:
            for f in sums:
                self.need(f"add_carry.{f.register}")
                if self.across > 1:
                    out.put(self._each_across())
                at = "[u]" if self.across > 1 else ""
                out.put(f"{f.name}{at} = add_carry({f.name}{at}, {f.name}_tile{at}, &{f.name}_carry{at});")
            out.close()

    def _rows(
        self, body: tuple[Op, ...], levels: dict[str, int], loops: list[BodyLoop], folds: list[Fold],
        vector: str, position: Expr, lo: str, end: str,
    ) -> None:  # fmt: skip
        """The innermost loop of a strip: a few rows at a time, so that running results are loaded and stored once for all
        of them. Rows are added one after the other."""
        out, size, name = self.out, loops[-1].axis.size, self.names[loops[-1].axis.name]
        out.put(f"long {name}_first = {lo};")
        heavy = any(o.op in HEAVY for o in body)
        even = size.is_Integer and int(size) % ROWS == 0
        for rows in (1,) if heavy else (ROWS,) if even else (ROWS, 1):
            test = f"{name}_first < {end}" if rows == 1 else f"{name}_first + {rows} <= {end}"
            out.open(f"for (; {test}; {name}_first += {rows}) {{")
            self._open_across()
            whole = [f.into for f in folds]
            for f, into in zip(folds, whole, strict=True):
                f.into = f"{f.name}_next"
                out.put(f"{self._accumulator(f)} {f.into} = {into}[u];")
            if rows > 1:
                out.put(f"#pragma GCC unroll {rows}")
                out.open(f"for (long {name} = {name}_first; {name} < {name}_first + {rows}; ++{name}) {{")
            else:
                out.put(f"const long {name} = {name}_first;")
            self._level(len(loops), body, levels, loops, folds, vector, position)
            if rows > 1:
                out.close()
            for f, into in zip(folds, whole, strict=True):
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

    def _unrolled(
        self, count: int, body: tuple[Op, ...], levels: dict[str, int], loops: list[BodyLoop], folds: list[Fold],
        vector: str, position: Expr, lo: str, end: str,
    ) -> None:  # fmt: skip
        """The innermost loop, ``count`` steps (and accumulators) at a time, then what is left over, one at a time."""
        out, loop = self.out, loops[-1]
        lanes = self.width if loop.vector else 1
        name, stride = self.names[loop.axis.name], count * lanes
        size = loop.axis.size
        even = (loop.lo == "0" or loop.quantum % stride == 0) and size.is_Integer and int(size) % stride == 0
        first = f"{name}_first"
        whole = [f.into for f in folds]
        for f in folds:
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
        self._level(len(loops), body, levels, loops, folds, vector, position)
        out.close()
        out.close()
        for f, into in zip(folds, whole, strict=True):
            f.into = into
        if not even:
            out.open(f"for (long {name} = {first}; {name} < {end}; {name} += {lanes}) {{")
            if loop.vector:
                self._left(size, name, loop.hi)
            self._level(len(loops), body, levels, loops, folds, vector, position)
            out.close()
        for f in folds:
            for u in range(count):
                part = f"{f.into}_u[{u}]"
                if f.kind in ("argmax", "argmin"):
                    out.put(f"arg_{f.kind[3:]}(&{f.into}, {part}.best, {part}.at);")
                else:
                    out.put(self._combine(f, f.into, part))

    # --- reductions ---

    def _fold(self, op: Op, loops: list[BodyLoop]) -> Fold:
        kind, value = op.args
        dtype = self.slots[value].value.dtype
        fold = Fold(op, kind, REGISTER[dtype], dtype, self.claim(op.name, "_all"))
        fold.place = "i32" if not self.wide and few(l.axis for l in loops) else "i64"
        fold.rising = len(loops) == 1
        return fold

    def _identity(self, fold: Fold) -> str:
        kind, dtype = fold.kind, fold.dtype
        return literal(kind == "all", "bool") if kind in ("any", "all") else identity(kind, dtype)

    def _accumulator(self, fold: Fold) -> str:
        """The C++ type of a running result."""
        if fold.kind in ("argmax", "argmin"):
            self.need(f"arg.{fold.kind[3:]}.{fold.register}.{fold.place}")
            return f"arg_{fold.kind[3:]}_{fold.register}_{fold.place}_{self.width}"
        return self.vector(fold.register)

    def _start(self, fold: Fold) -> str:
        """The initialiser of a running result: the identity."""
        identity = self._identity(fold)
        if fold.kind in ("argmax", "argmin"):
            return f"{{{self._splat(fold.register, identity)}, {self._splat(fold.place, ARG_NONE[fold.place])}}}"
        if identity in ("0", "0L", "0.0f", "0.0"):
            return "{}"
        if fold.register == "mask":
            return f"({self.vector('mask')}{{}} + ({identity}))"
        return self._splat(fold.register, identity)

    def _declare(self, fold: Fold) -> None:
        """The running result (one per vector side by side), and the carry of a compensated sum."""
        kind, name, start = self._accumulator(fold), fold.name, self._start(fold)
        many = f"[{self.across}]" if self.across > 1 else ""
        if self.strip:
            self.out.put(f"{kind} {name}{many};", fold.op.spans)
            self.out.put(f"{self._each_across()} {name}[u] = {start if start[0] != '{' else kind + start};")
            if self._compensated(fold):
                self.out.put(f"{kind} {name}_carry{many};")
                self.out.put(f"{self._each_across()} {name}_carry[u] = {kind}{{}};")
            return
        if self.across > 1:
            start = f"{{{', '.join([start] * self.across)}}}"
        self.out.put(f"{kind} {name}{many} = {start};", fold.op.spans)
        if self._compensated(fold):
            self.out.put(f"{kind} {name}_carry{many} = {{}};")

    def _compensated(self, fold: Fold) -> bool:
        """Whether rounding errors are carried along: by all sums of floats, unless they need not be exact."""
        return fold.kind == "sum" and fold.register in ("f32", "f64") and not self.fast

    def _splat(self, register: str, text: str) -> str:
        self.need(f"splat.{register}")
        return f"splat({self.vector(register)}{{}}, {text})"

    def _combine(self, fold: Fold, into: str, value: str) -> str:
        kind = fold.kind
        if kind == "sum":
            return f"{into} += {value};"
        if kind == "prod":
            return f"{into} *= {value};"
        if kind in ("any", "all"):
            return f"{into} {'|' if kind == 'any' else '&'}= {value};"
        self.need(f"{kind}.{fold.register}")
        return f"{into} = {kind}({value}, {into});"  # of equal operands the second is kept: the first met

    def _accumulate(self, op: Op, vector: str, position: Expr, folds: list[Fold]) -> None:
        fold = next(f for f in folds if f.op is op)
        value = self._text(op.args[1])
        rows = bool(vector) and self.plan.layout in ("rows", "whole")
        cut = rows and self.left != str(self.width)
        if cut:
            self.need(f"keep.{fold.register}")
            value = f"keep_{fold.register}({value}, left, {self._identity(fold)})"
        if fold.kind in ("argmax", "argmin"):
            self.need("iota")
            form = linear(position, frozenset((vector,))) if rows else None
            if form is None:
                at = self._splat(fold.place, self._index(position))
            else:
                step = form.coefficient(vector)
                if step is None:
                    raise Unsupported(f"{fold.kind} over tangled axes")
                iota = "iota32_" if fold.place == "i32" else "iota"
                at = f"{iota}{self.width}({self._index(position)}, {print_index(step, self.names)})"
            if cut:
                self.need(f"keep.{fold.place}")
                at = f"keep_{fold.place}({at}, left, {ARG_NONE[fold.place]})"
            call = f"arg_{fold.kind[3:]}{'_next' if fold.rising else ''}"
            self.out.put(f"{call}(&{fold.into}, {value}, {at});", op.spans)
            return
        self.out.put(self._combine(fold, fold.into, value), op.spans)

    def _declare_scans(self, body: tuple[Op, ...]) -> None:
        """The carries of a phase's scans."""
        self.scans = {}
        for op in body:
            if op.op == "scan":
                dtype = self.slots[op.args[1]].value.dtype
                scan = started(op, dtype, self.width, self._splat, self.claim(op.name, "_carry"))
                self.need(f"scan.{scan.kind}.{REGISTER[dtype]}")
                self.scans[op.name] = scan
                self._declare_carry(scan)

    def _declare_carry(self, scan: Scan) -> None:
        many = f"[{self.across}]" if self.across > 1 else ""
        start = f"{{ {', '.join([scan.none] * self.across)} }}" if many else scan.none
        self.out.put(f"{scan.state} {scan.carry}{many} = {start};", scan.op.spans)

    def _scan(self, op: Op) -> None:
        """One step of a scan: the results of a vector's elements, or of one element of each lane's own column."""
        scan, value, rows = self.scans[op.name], self._text(op.args[1]), self.plan.layout in ("rows", "whole")
        if scan.kind == "logsumexp":
            value += ", " + self._splat("f64", "1.0")
        element = f"{scan.state}{{ {value} }}"
        if rows:
            none = f"{scan.state}{scan.none}"
            if self.left != str(self.width):
                element = f"keep({element}, left, {none})"
            result = f"scan_lanes({element}, {none}, &{scan.into})"
        else:
            result = f"scan_each({element}, &{scan.into})"
        if scan.before:
            result = f"join({scan.before}, {result})"
        text = scan.value(result)
        self._define(op, wrap(text, op.dtype) if REGISTER[op.dtype] == "i32" else text)

    def _finish(self, fold: Fold, across: bool) -> None:
        """Declares the result under the op's own name; across lanes when they were partial results of one point."""
        name = self.claim(fold.op.name)
        register = REGISTER[fold.op.dtype]
        text = fold.name + ("[u]" if self.across > 1 else "")
        if fold.kind in ("argmax", "argmin"):
            text = f"fold_arg_{fold.kind[3:]}({text})" if across else f"arg_place({text})"
        elif across and self.width > 1:
            self.need(f"fold.{fold.kind}.{fold.register}")
            text = f"fold_{fold.kind}({text})"
        if register == "i32":
            text = wrap(text, fold.op.dtype)
        if self.across > 1:
            self.out.put(f"{self.vector(register)} {name}[{self.across}];", fold.op.spans)
            self.out.put(f"{self._each_across()} {name}[u] = {text};", fold.op.spans)
            name = f"{name}[u]"
        else:
            self.out.put(f"const {self.vector(register)} {name} = {text};", fold.op.spans)
        self.slots[fold.op.name] = Slot(Value(name, fold.op.dtype), 0, not across and self.plan.layout == "columns")

    # --- single ops ---

    def _text(self, name: str) -> str:
        return self.slots[name].value.text

    def _index(self, expression: Expr) -> str:
        """An index expression as a scalar; gathered indices that are the same in every lane are read from lane 0."""
        names = dict(self.names)
        for indirect in indirect_names(expression):
            names["%" + indirect] = f"{self._text(indirect)}[0]"
        return print_index(expression, names, C)

    def _define(self, op: Op, text: str) -> None:
        register = REGISTER[op.dtype]
        name = self.claim(op.name)
        if self.across > 1 and not self.looping:
            self.out.put(f"{name}[u] = {text};", op.spans)  # later phases use it
            name = f"{name}[u]"
        else:
            self.out.put(f"const {self.vector(register)} {name} = {text};", op.spans)
        self.slots[op.name].value = Value(name, op.dtype)

    def _op(self, op: Op, vector: str, position: Expr, folds: list[Fold]) -> None:
        if op.op == "load":
            self._load(op, vector)
        elif op.op == "store":
            self._store(op, vector)
        elif op.op == "reduce":
            self._accumulate(op, vector, position, folds)
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
        lane = f"lane_of{self.width}({_lane_zero(self.slots[b].value)}, {start})"
        return f"(iota32_{self.width}(0, 1) {symbol} {self._splat('i32', lane)})"

    def _number(self, number: object, op: Op) -> Value:
        if isinstance(number, (int, float)):
            text = literal(number, op.dtype)
            return Value(self._splat(REGISTER[op.dtype], text), op.dtype, number, text)
        raise Unsupported(f"operand {number!r} of {op.op}")

    def _constant(self, op: Op) -> None:
        number = op.args[0]
        if isinstance(number, complex) or not isinstance(number, (int, float)):
            raise Unsupported(f"constant {number!r}")
        text = literal(number, op.dtype)
        register = REGISTER[op.dtype]
        splat = f"({self.vector('mask')}{{}} + ({text}))" if register == "mask" else self._splat(register, text)
        self.slots[op.name].value = Value(splat, op.dtype, number, "" if register == "mask" else _signed(text))

    def _lanes_of(self, index: Expr, vector: str) -> tuple[str, Expr]:
        """How lanes of an access are laid out, and the step between them: "each", "next", "reversed", "strided", "gather",
        or "limited": as strided, unless a limit (of Min or Max) lies among them."""
        indirect = any(self.slots[n].varying for n in indirect_names(index))
        if indirect:
            return "gather", sympy.S.Zero
        if not vector or vector not in names_in(index):
            return "each", sympy.S.Zero
        step = linear(index, frozenset((vector,))).coefficient(vector)
        if step is None:
            step = self._unlimited_step(index, vector)
            return ("gather", sympy.S.Zero) if step is None else ("limited", step)
        return "next" if step == 1 else "reversed" if step == -1 else "strided", step

    def _unlimited_step(self, index: Expr, vector: str) -> Expr | None:
        """The step between lanes that no limit of the index holds back; None where it is not known to be the greatest."""
        found = slopes(index, vector)
        if found is None:
            return None
        step, *others = found
        return step if step.is_positive and all((step - s).is_nonnegative for s in others) else None

    def _limited(self, op: Op, index: Expr, vector: str, step: Expr) -> None:
        """A load whose lanes are evenly spaced, but for the few vectors where a limit holds some of them back."""
        dtype, pointer = element(self.unit.graph.buffers[op.args[0]].dtype), self.pointers[op.args[0]]
        out, w, name = self.out, self.width, self.names[vector]
        lane, load = self.claim(op.name, "_last"), self.claim(op.name, "_load")
        self.need(f"gather.{dtype}")
        first = self._index(index)
        out.put(f"const long {lane} = {name} + {w - 1};", op.spans)
        last = print_index(index, {**self.names, vector: lane}, C)
        even = f"({last}) - ({first}) == {print_factor(step * (w - 1), self.names)}"
        whole = "" if self.left == str(w) else f"left >= {w} && "
        out.put(f"{self.vector(REGISTER[dtype])} {load};")
        out.open(f"if (__builtin_expect({whole}{even}, 1)) {{")
        out.put(f"{load} = {self._strided(pointer, index, step, dtype, str(w))};")
        out.close("} else {")
        out.open("  {")
        at = self._offsets(op, index, vector)
        out.put(f"{load} = gather{w}({pointer}, {at});")
        out.close("  }")
        out.put("}")
        self._define(op, load)

    def _strided(self, pointer: str, index: Expr, step: Expr, dtype: str, left: str) -> str:
        """A load of evenly spaced elements, as text."""
        address, w = self._address(pointer, index), self.width
        if step == 1:
            self.need(f"load.{dtype}")
            return f"load{w}({address}, {left})"
        if step == 2 and w > 1:
            self.need(f"every_second.{dtype}")
            return f"load_every_second{w}({address}, {left})"
        self.need(f"strided.{dtype}")
        return f"load_strided{w}({address}, {print_index(step, self.names)}, {left})"

    def _offsets(self, op: Op, index: Expr, vector: str) -> str:
        """Declares an array with one element index per lane."""
        name = self.claim(op.name, "_at")
        names = dict(self.names)
        for indirect in indirect_names(index):
            names["%" + indirect] = f"{self._text(indirect)}[l]"
        out = self.out
        out.put(f"long {name}[{self.width}];", op.spans)
        if vector and vector in names_in(index):
            lane = self.claim(op.name, "_lane")
            names[vector] = lane
            inside = "l" if self.left == str(self.width) else "(l < left ? l : 0)"
            out.open(f"for (long l = 0; l < {self.width}; ++l) {{")
            out.put(f"const long {lane} = {self.names[vector]} + {inside};")
            out.put(f"{name}[l] = {print_index(index, names, C)};")
            out.close()
        else:
            out.put(f"for (long l = 0; l < {self.width}; ++l) {name}[l] = {print_index(index, names, C)};")
        self._index_parts(index)
        return name

    def _index_parts(self, index: Expr) -> None:
        """Scalar helpers that an index expression's text may use."""
        if index.atoms(sympy.Function, LatticeOp):  # the latter: least and greatest
            self.unit.lane_free |= {"floor_div", "min_max"}

    def _load(self, op: Op, vector: str) -> None:
        storage, index = op.args[0], sympy.sympify(op.args[1])
        dtype = element(self.unit.graph.buffers[storage].dtype)
        pointer, way = self.pointers[storage], self._lanes_of(index, vector)
        self._index_parts(index)
        w = self.width
        if way[0] == "each":
            self.need(f"each.{dtype}")
            self._define(op, f"each{w}({self._address(pointer, index)})")
        elif way[0] == "next":
            self.need(f"load.{dtype}")
            self._define(op, f"load{w}({self._address(pointer, index)}, {self.left})")
        elif way[0] == "reversed":
            self.need(f"reversed.{dtype}")
            self._define(op, f"load_reversed{w}({self._address(pointer, index)}, {self.left})")
        elif self._two(op):
            return
        elif way[0] == "strided":
            self._define(op, self._strided(pointer, index, way[1], dtype, self.left))
        elif way[0] == "limited":
            self._limited(op, index, vector, way[1])
        else:
            self.need(f"gather.{dtype}")
            at = self._offsets(op, index, vector)
            self._define(op, f"gather{w}({pointer}, {at})")

    def _address(self, pointer: str, index: Expr) -> str:
        return pointer if index == 0 else f"{pointer} + {self._index(index)}"

    def _store(self, op: Op, vector: str) -> None:
        storage, index, value = op.args[0], sympy.sympify(op.args[1]), self.slots[op.args[2]].value
        dtype = element(self.unit.graph.buffers[storage].dtype)
        pointer, way = self.pointers[storage], self._lanes_of(index, vector)
        self._index_parts(index)
        w, out = self.width, self.out
        if self._two(op):
            return
        if op.update and way[0] == "next" and self.plan.layout != "rows":
            value = self._updated(op, f"{self._address(pointer, index)}", value)
        elif op.update:
            self.need(f"update.{op.update}.{dtype}")
            at = self._offsets(op, index, vector)
            left = self.left if vector else "1"
            out.put(f"update_{op.update}{w}({pointer}, {at}, {value.text}, {left});", op.spans)
            return
        if way[0] == "each":
            self.need(f"put.{dtype}")
            if self.slots[op.args[2]].varying and self.plan.layout != "rows":
                raise Unsupported(f"store of a value that varies along {vector} to one element")
            out.put(f"put{w}({self._address(pointer, index)}, {_lane_zero(value)});", op.spans)
        elif way[0] == "next":
            self.need(f"store.{dtype}")
            out.put(f"store{w}({self._address(pointer, index)}, {value.text}, {self.left});", op.spans)
        elif way[0] == "reversed":
            self.need(f"store_reversed.{dtype}")
            out.put(f"store_reversed{w}({self._address(pointer, index)}, {value.text}, {self.left});", op.spans)
        elif way[0] == "strided":
            self.need(f"store_strided.{dtype}")
            step = print_index(way[1], self.names)
            out.put(f"store_strided{w}({self._address(pointer, index)}, {step}, {value.text}, {self.left});", op.spans)
        else:
            self.need(f"scatter.{dtype}")
            at = self._offsets(op, index, vector)
            out.put(f"scatter{w}({pointer}, {at}, {value.text}, {self.left});", op.spans)

    def _paired(self, body: tuple[Op, ...], vector: str) -> dict[str, Op | None]:
        """Loads and stores of every second element that fill each other's gaps (the parts of complex numbers). Of two loads the
        first has the second, of two stores the second has the first; the other one of them has None."""
        found: dict[str, Op | None] = {}
        waiting: dict[tuple[str, str, Expr], Op] = {}
        written = self.kernel.writes()
        for op in body:
            if op.op not in ("load", "store") or op.update or self.width == 1:
                continue
            storage, index = op.args[0], sympy.sympify(op.args[1])
            others = written if op.op == "load" else self.kernel.reads()
            if self._lanes_of(index, vector) != ("strided", 2) or any(
                self.unit.same_memory(storage, s) for s in others
            ):
                continue
            neighbours = (waiting.pop((op.op, storage, index + d), None) for d in (-1, 1))
            other = next((n for n in neighbours if n is not None), None)
            if other is None:
                waiting[op.op, storage, index] = op
            elif op.op == "store":
                found |= {other.name: None, op.name: other}
            elif self.slots[other.name].level == self.slots[op.name].level:
                found |= {other.name: op, op.name: None}
        return found

    def _two(self, op: Op) -> bool:
        """Prints two accesses as one, where the op is one of such two."""
        if op.name not in self.partners:
            return False
        other = self.partners[op.name]
        if other is None:
            return True
        first, second = (op, other) if (other.args[1] - op.args[1]).is_positive else (other, op)
        dtype = element(self.unit.graph.buffers[op.args[0]].dtype)
        address = self._address(self.pointers[op.args[0]], sympy.sympify(first.args[1]))
        self.need(f"{op.op}_pairs.{dtype}")
        if op.op == "load":
            names = [self.claim(o.name, "_half") for o in (first, second)]
            self.out.put(f"{self.vector(REGISTER[dtype])} {', '.join(names)};")
            values = [f"&{n}" for n in names]
        else:
            values = [self._text(o.args[2]) for o in (first, second)]
        spans = tuple(dict.fromkeys((*op.spans, *other.spans)))
        self.out.put(f"{op.op}_pairs{self.width}({address}, {', '.join(values)}, {self.left});", spans)
        if op.op == "load":
            for o, name in zip((first, second), names, strict=True):
                self._define(o, name)
        return True

    def _updated(self, op: Op, address: str, value: Value) -> Value:
        """What neighbouring elements become: no two lanes change the same."""
        kind, dtype = op.update, op.dtype
        if kind == "last":
            return value
        self.need(f"load.{dtype}")
        old = f"load{self.width}({address}, {self.left})"
        if kind in ("sum", "prod"):
            text = f"{old} {'+' if kind == 'sum' else '*'} {value.text}"
        elif dtype == "bool":
            text = f"{old} {'|' if kind == 'max' else '&'} {value.text}"
        else:
            self.need(f"{kind}.{REGISTER[dtype]}")
            text = f"{kind}({old}, {value.text})"
        if dtype in ("f16", "bf16"):
            self.need(f"round_{dtype}")
            text = f"round_{dtype}({text})"
        return Value(text, dtype)

    def _random(self, op: Op, vector: str) -> None:
        """Words of a stream; where lanes want neighbours, blocks of four are computed together."""
        index = sympy.sympify(op.args[3])
        keys = ", ".join(f"{self._text(k)}[0]" for k in op.args[:2])
        if self._lanes_of(index, vector)[0] == "next" and self.width >= 4:
            self._index_parts(index)
            self.need("random.next")
            self._define(op, f"random_next{self.width}({keys}, {op.args[2]}, {self._index(index)})")
        else:
            self.need("random.at")
            self._define(op, f"random_at{self.width}({keys}, {op.args[2]}, {self._positions(op, index, vector)})")

    def _bounds(self, op: Op) -> None:
        """A checked position: one number where all lanes have the same."""
        name, size, wrap = op.args
        text, n = self._text(name), print_index(size, self.names)
        self._index_parts(sympy.sympify(size))
        if wrap:
            self.need("wrap")
            text = f"wrap({text}, {n})"
        if self.slots[name].varying:
            self.need("bounds")
            self._define(op, f"bounds{self.width}({text}, {n}, {self.left})")
        else:
            self.need("bound")
            self._define(op, self._splat("i64", f"bound(({text})[0], {n})"))

    def _positions(self, op: Op, index: Expr, vector: str) -> str:
        """The value of an index expression, lane by lane where it varies."""
        self._index_parts(index)
        way, step = self._lanes_of(index, vector)
        if way == "each":
            return self._splat("i64", self._index(index))
        if way not in ("gather", "limited"):
            self.need("iota")
            self.iotas[op.name] = f"{self._index(index)}, {print_index(step, self.names)}"
            return f"iota{self.width}({self.iotas[op.name]})"
        at = self._offsets(op, index, vector)
        self.need("load.i64")
        return f"load{self.width}({at}, {self.width})"

    def _index_value(self, op: Op, vector: str) -> None:
        text = self._positions(op, sympy.sympify(op.args[0]), vector)
        register = REGISTER[op.dtype]
        if register != "i64":
            text = f"__builtin_convertvector({text}, {self.vector(register)})"
        self._define(op, text)


def _signed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _lane_zero(value: Value) -> str:
    return f"({value.text})[0]" if "(" in value.text else f"{value.text}[0]"


def dearness(op: Op) -> int:
    """What an operation counts beside an element's others, when work is weighed against starting threads."""
    return 0 if op.op not in HEAVY else 3 if op.op in CHAINS and op.dtype != "f64" else 10
