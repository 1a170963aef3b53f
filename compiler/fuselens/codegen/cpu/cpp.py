"""Kernels as one C++ translation unit: GNU vector types, an inlined prelude, OpenMP across kernel points."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

import sympy
from sympy import Expr

from ...ir.loops import Axis, Graph, Op, element
from ..expressions import print_factor, print_index
from ..nest import FEW_COLUMNS, LONG_FOLD, Tuning, layouts
from ..source import KernelInfo, Source, Unsupported, Writer
from ..traffic import bytes_moved
from .body import HEAVY, ROWS, STRIP, UNROLL, BodyLoop, Unit, dearness
from .host import write_host
from .isa import ISAS
from .parts import C_TYPES
from .prelude import print_prelude
from .scans import independent, needed
from .tiles import TileWriter

PARALLEL_WORK = 1 << 15  # weighted elements below which threads cost more than they bring
PIECE = 4096  # elements of a row that one thread takes at a time where rows are shared between threads
CHUNKS = 256  # at most so many partial results of a reduction that threads share


def to_cpp(
    graph: Graph, isa: str, *, host: bool = True, floats: Collection[int] = (), float_outputs: Collection[int] = (),
    tunings: Mapping[str, Tuning] = MappingProxyType({}), fast_math: bool = False,
) -> Source:  # fmt: skip
    """All kernels of ``graph`` as one C++17 translation unit for the instruction set ``isa``.

    Each kernel is ``extern "C" void name(pointers…, long sizes…)``: pointers to the first element of each storage
    in :attr:`KernelInfo.arguments`, then the size symbols. With ``host`` the unit also has the graph's host program, where
    one can be written; ``floats`` and ``float_outputs`` are positions of inputs and outputs that are Python floats.
    ``tunings`` overrules choices, by kernel. ``fast_math``: see :mod:`.fast_maths`; sums are not compensated, divisions
    by constants are products. Raises Unsupported for dtypes and functions it cannot print.
    """
    unit = Unit(graph, dataclasses.replace(ISAS[isa], fast=fast_math), tunings)
    body = Writer("//")
    infos = _kernels(unit, body)
    program = None
    if host:
        calls = Writer("//")
        try:
            program = write_host(unit, infos, calls, floats, float_outputs)
        except Unsupported:
            pass
        else:
            body.include(calls)
    head = Writer("//")
    head.put(f"// Kernels of graph {graph.name}. Written by fuselens for {isa}; there is nothing to include.")
    if fast_math:
        head.put(
            "// Option fast_math: sums may be reassociated; maths is approximate; NaN, infinity and -0 are not respected."
        )
    head.put(print_prelude(unit.parts, unit.lane_free, unit.isa))
    offset = head.text().count("\n")
    lines = tuple(type(l)(l.line + offset, l.spans) for l in body.lines())
    return Source("cpp", head.text() + body.text(), lines, tuple(infos), program=program)


def _kernels(unit: Unit, body: Writer) -> list[KernelInfo]:
    """Prints the kernels; those whose texts differ in names only, as a network's layers have them, as one function."""
    infos: list[KernelInfo] = []
    functions: dict[str, tuple[Writer, list[KernelInfo]]] = {}
    for kernel in unit.graph.kernels():
        writer = _KernelWriter(unit, kernel, Writer("//"))
        info = writer.write()
        text = writer.out.anonymous((kernel.name, f"{kernel.name}_part", *(writer.names[a] for a in info.arguments)))
        out, same = functions.setdefault(text, (writer.out, []))
        if same:
            out.also(writer.out)
            info = dataclasses.replace(info, same_as=same[0].name)
        same.append(info)
        infos.append(info)
    for out, same in functions.values():
        first, *others = same
        origins = ", ".join(dict.fromkeys(first.operations)) or first.kind
        body.put()
        body.put(f"// {first.name}: {origins}", first.spans)
        if others:
            body.put(f"// also {', '.join(i.name for i in others)}")
        body.forget()
        body.include(out)
    return infos


def variants(graph: Graph, isa: str, threads: int) -> dict[str, tuple[Tuning, ...]]:
    """By kernel, what else it could be, where it is worth measuring."""
    found: dict[str, tuple[Tuning, ...]] = {}
    for kernel in graph.kernels():
        writer = _KernelWriter(Unit(graph, ISAS[isa]), kernel, Writer("//"))
        made = [Tuning(layout, n) for layout in layouts(writer.nest) for n in (1, 2, 4, 8)]
        weighted = writer.nest.hint(writer.weighted_points())
        if threads > 1 and PARALLEL_WORK // 8 <= weighted < PARALLEL_WORK * 8:
            made.append(Tuning(parallel=weighted < PARALLEL_WORK))
        if made:
            found[kernel.name] = tuple(made)
    return found


class _KernelWriter(TileWriter):
    """Prints one kernel."""

    # --- the whole kernel ---

    def write(self) -> KernelInfo:
        kernel, out = self.kernel, self.out
        used = dict.fromkeys((*self.source.reads(), *self.source.writes()))
        place = {name: self._place(name, used) for name in used}
        arguments = tuple(dict.fromkeys(place.values()))
        self.written = frozenset(place[name] for name in self.written)
        sizes = self.source.size_symbols()
        for op in kernel.ops():
            if op.op != "store" and op.dtype not in C_TYPES:
                raise Unsupported(f"{op.op} of {op.dtype}")
        for name in (*arguments, *sizes, *self.axis_names):
            self.claim(name)
        for name in used:
            self.pointers[name] = self.names[place[name]]
        parameters = ", ".join(
            [*(self._parameter(n, arguments) for n in arguments), *(f"long {self.names[s]}" for s in sizes)]
        )
        passed = ", ".join([self.names[n] for n in (*arguments, *sizes)])
        if self.plan.layout == "whole" or self.plan.shared:
            out.open(f'extern "C" void {self.source.name}({parameters}) {{', self.source.spans)
            self._nothing_to_index()
            self._whole()
            out.close()
        else:
            units, begin = self._units()
            if units == "1":
                out.open(f'extern "C" void {self.source.name}({parameters}) {{', self.source.spans)
                self._nothing_to_index()
                if self.plan.vector:
                    out.put("const long begin = 0, end = 1;")
                begin(False)
                out.close()
            else:
                more = f"{parameters}, " if parameters else ""
                out.open(f"static void {self.source.name}_part({more}long begin, long end) {{", self.source.spans)
                begin(True)
                out.close()
                self._entry(parameters, passed, units)
        read, written = bytes_moved(self.source, self.unit.graph)
        return KernelInfo(
            name=self.source.name, kind=self.source.kind, arguments=arguments,
            written=tuple(dict.fromkeys(place[name] for name in self.source.writes())), sizes=sizes,
            operations=self.source.origins, spans=self.source.spans, bytes_read=read, bytes_written=written,
            checks=self.checks,
        )  # fmt: skip

    def _place(self, storage: str, used: Iterable[str]) -> str:
        """The argument whose memory the storage is: its own, or the one whose memory it takes over in this kernel."""
        buffers = self.unit.graph.buffers
        for other in used:
            if other != storage and self.unit.takes_over(storage, other):
                return other if buffers[other].dtype == buffers[storage].dtype else storage
        return storage

    def _parameter(self, storage: str, arguments: tuple[str, ...]) -> str:
        buffers = self.unit.graph.buffers
        constant = "" if storage in self.written else "const "
        alone = not any(other != storage and self.unit.same_memory(other, storage) for other in arguments)
        restrict = "__restrict " if alone else ""
        return f"{constant}{C_TYPES[element(buffers[storage].dtype)]}* {restrict}{self.names[storage]}"

    def _points(self) -> Expr:
        """How often the body runs, over all phases."""
        inner = sum(sympy.Mul(*(a.size for a in p.axes)) for p in self.kernel.phases if p.axes) or 1
        return sympy.Mul(*(a.size for a in self.kernel.axes)) * inner

    def _nothing_to_index(self) -> None:
        """Reports positions in dimensions that turn out to have none: not even the first element exists."""
        sizes = dict.fromkeys(o.args[1] for o in self.kernel.ops() if o.op == "bounds" and not o.args[1].is_positive)
        points = print_factor(self._points(), self.names)
        for size in sizes:
            test = f"{print_factor(size, self.names)} <= 0 && {points} > 0"
            self.out.put(f"if ({test}) {{ fuselens_errors |= 2; return; }}")

    def weighted_points(self) -> Expr:
        """Points of the kernel, each counted as often as its functions are dear."""
        return self._points() * (1 + sum(map(dearness, self.kernel.ops())))

    def _entry(self, parameters: str, passed: str, units: str) -> None:
        """The exported function: shares the units between threads when there is enough work."""
        out = self.out
        points = self.weighted_points()
        out.put()
        out.open(f'extern "C" void {self.source.name}({parameters}) {{', self.source.spans)
        self._nothing_to_index()
        comma = f"{passed}, " if passed else ""
        serial = f"{self.source.name}_part({comma}0, units)"
        out.put(f"const long units = {units};")
        few = self.tuning.parallel is None and points.is_Integer and int(points) < PARALLEL_WORK
        if few or self.tuning.parallel is False:
            out.put(f"{serial};")
        else:
            if self.tuning.parallel is None and not points.is_Integer:
                out.put(f"if ({print_factor(points, self.names)} < {PARALLEL_WORK}) return {serial};")
            out.open("auto work = [&](long thread, long threads) {")
            out.put(f"{self.source.name}_part({comma}units * thread / threads, units * (thread + 1) / threads);")
            out.close("};")
            out.put("parallel(work);")
        out.close()

    # --- units: what threads share ---

    def _units(self) -> tuple[str, Callable[[bool], None]]:
        """The number of units (C++ text) and a function that prints their loop."""
        layout, vector = self.plan.layout, self.plan.vector
        if self.plan.tile:
            return self._tile_units(), lambda _: self._each_tile()
        outer = [a for a in self.kernel.axes if a.name != vector]
        rows = sympy.Mul(*(a.size for a in outer))
        row_text = print_factor(rows, self.names)
        if layout == "rows" or not vector:
            return ("1" if not outer else row_text), lambda loop: self._each_unit(outer, loop)
        size = self.nest.size(vector)
        if layout == "columns" and self._in_strips(size):
            wide = UNROLL * self.width
            blocks = self._blocks(size, UNROLL)
            text = f"({blocks})" if " " in blocks else blocks
            return (f"{row_text} * {text}" if outer else blocks), lambda _: self._strips(outer, vector, text, wide)
        if layout == "columns":
            blocks = self._blocks(size, self._side_by_side())
            text = f"({blocks})" if " " in blocks else blocks
            return (f"{row_text} * {text}" if outer else blocks), lambda loop: self._column_units(outer, vector, text)
        if layout == "sweep":
            blocks = self._blocks(size)
            text = f"({blocks})" if " " in blocks else blocks
            return (f"{row_text} * {text}" if outer else blocks), lambda loop: self._sweep(outer, vector, text)
        if not outer:
            count = self._side_by_side_in(tuple(self.kernel.ops()), size, self.width)
            return self._blocks(size, count), lambda loop: self._one_row(vector, count * self.width)
        if size.is_Integer and int(size) <= 2 * PIECE:
            return row_text, lambda loop: self._each_unit(outer, loop)
        pieces = f"(({print_factor(size, self.names)} + {PIECE - 1}) / {PIECE})"
        return f"{row_text} * {pieces}", lambda loop: self._pieces(outer, vector, pieces)

    def _blocks(self, size: Expr, count: int = 1) -> str:
        """How many times ``count`` vectors hold ``size`` elements."""
        wide = count * self.width
        if size.is_Integer:
            return str(-(-int(size) // wide))
        text = print_factor(size, self.names)
        return f"({text} + {wide - 1}) / {wide}" if wide > 1 else text

    def _each_unit(self, outer: list[Axis], loop: bool) -> None:
        if loop:
            self.out.open("for (long unit = begin; unit < end; ++unit) {")
            self._decode(outer, "unit")
        self._phases()
        if loop:
            self.out.close()

    def _one_row(self, vector: str, quantum: int) -> None:
        size = print_index(self.nest.size(vector), self.names)
        out = self.out
        step = f" * {quantum}" if quantum > 1 else ""
        out.put(f"const long n = {size};")
        out.put(f"const long lo = begin{step}, hi = end{step} < n ? end{step} : n;")
        self._phases(("lo", "hi"), quantum)

    def _sweep(self, outer: list[Axis], vector: str, blocks: str) -> None:
        """Rows of vectors, of which a thread has some neighbours: for each of a row's updates, all its vectors."""
        out, w = self.out, self.width
        size = print_factor(self.nest.size(vector), self.names)
        out.open(f"for (long row = begin / {blocks}; row * {blocks} < end; ++row) {{")
        out.put(f"const long first = row * {blocks};")
        out.put(f"const long lo = begin > first ? (begin - first) * {w} : 0;")
        out.put(f"const long hi = (end - first) * {w} < {size} ? (end - first) * {w} : {size};")
        self._decode(outer, "row")
        self._phases(("lo", "hi"))
        out.close()

    def _pieces(self, outer: list[Axis], vector: str, pieces: str) -> None:
        out = self.out
        size = print_factor(self.nest.size(vector), self.names)
        out.open("for (long unit = begin; unit < end; ++unit) {")
        out.put(f"const long row = unit / {pieces}, lo = unit % {pieces} * {PIECE};")
        out.put(f"const long hi = lo + {PIECE} < {size} ? lo + {PIECE} : {size};")
        self._decode(outer, "row")
        self._phases(("lo", "hi"), PIECE)
        out.close()

    def _in_strips(self, size: Expr) -> bool:
        """Whether columns are many enough to walk memory row by row, with running results in the first-level cache."""
        loops = [p for p in self.kernel.phases if p.axes]
        body = loops[0].body
        long = self.nest.hint(size) > 2 * UNROLL * self.width and self.nest.hint(loops[0].axes[-1].size) >= 2 * ROWS
        return (
            len(loops) == 1 and long and self.width > 1 and not self.tuning.unroll
            and any(o.op == "reduce" for o in body)
            and not any(o.op == "scan" or o.update or o.op in HEAVY for o in self.kernel.ops())
        )  # fmt: skip

    def _strips(self, outer: list[Axis], vector: str, blocks: str, wide: int) -> None:
        """A thread's columns in strips, which end where rows do. A column's result does not depend on their width."""
        out, name, w = self.out, self.names[vector], self.width
        self.across = self._strip_width()
        size = self.nest.size(vector)
        self.unit.lane_free.add("min_max")
        out.open("for (long unit = begin; unit < end;) {")
        self._first_column(outer, f"{name}_first", blocks, wide)
        out.put(f"const long given = least({name}_first + (end - unit) * {wide}, {print_factor(size, self.names)});")
        out.put(f"const long stop = least(given, {name}_first + {self.across * w});")
        out.put(f"const long count = (stop - {name}_first + {w - 1}) / {w};")
        self.strip = size, "stop"
        self._phases()
        self.strip, self.across = None, 1
        out.put(f"unit += (stop - {name}_first + {wide - 1}) / {wide};")
        out.close()

    def _strip_width(self) -> int:
        """How many vectors a strip has, at most."""
        folds = [o for o in self.kernel.ops() if o.op == "reduce"]
        arrays = sum(3 if o.args[0] == "sum" else 2 for o in folds)
        return max(UNROLL, STRIP // (arrays * self.width * (8 if self.wide else 4)) // UNROLL * UNROLL)

    def _first_column(self, outer: list[Axis], first: str, blocks: str, wide: int) -> None:
        """Declares where a unit of ``wide`` columns starts, and the points of the outer axes."""
        if outer:
            self.out.put(f"const long row = unit / {blocks}, {first} = unit % {blocks} * {wide};")
            self._decode(outer, "row")
        else:
            self.out.put(f"const long {first} = unit * {wide};")

    def _side_by_side(self) -> int:
        """How many vectors a unit of a columns kernel takes: short bodies read whole cache lines, and more."""
        heavy = any(o.op in HEAVY for o in self.kernel.ops())
        size = self.nest.size(self.plan.vector)
        count = self.tuning.unroll or (2 if heavy else UNROLL)
        return count if self.nest.hint(size) >= count * self.width and self.width > 1 else 1

    def _column_units(self, outer: list[Axis], vector: str, blocks: str) -> None:
        out, name = self.out, self.names[vector]
        size, count = self.nest.size(vector), self._side_by_side()
        hi = print_factor(size, self.names)
        first = f"{name}_first" if count > 1 else name
        out.open("for (long unit = begin; unit < end; ++unit) {")
        self._first_column(outer, first, blocks, count * self.width)
        if count == 1:
            self._left(size, name, hi)
            self._phases()
        else:
            even = size.is_Integer and int(size) % (count * self.width) == 0
            if not even:
                out.open(f"if ({first} + {count * self.width} <= {hi}) {{")
            self.across, self.left = count, str(self.width)
            self._phases()
            self.across = 1
            if not even:
                out.close("} else {")
                out.open(f"  for (long {name} = {first}; {name} < {hi}; {name} += {self.width}) {{")
                self._left(size, name, hi)
                self._phases()
                out.close("  }")
                out.put("}")
        out.close()

    # --- few points, much work: threads share each phase ---

    def _whole(self) -> None:
        out, kernel, vector = self.out, self.kernel, self.plan.vector
        for axis in kernel.axes:
            name = self.names[axis.name]
            if axis.name != vector:
                out.open(f"for (long {name} = 0; {name} < {print_factor(axis.size, self.names)}; ++{name}) {{")
        if vector:
            self._open_columns(vector)
        for phase, inner, position in zip(kernel.phases, self.plan.inner, self.nest.positions, strict=True):
            loops = [self._loop(a, False) for a in phase.axes if a.name != inner]
            loops += [self._loop(a, True) for a in phase.axes if a.name == inner]
            if not loops:
                self._nest(phase.body, [], vector, position)
            else:
                self._shared(phase.body, loops, vector or inner, position)
        self.strip, self.across = None, 1
        for _ in kernel.axes:
            out.close()

    def _open_columns(self, vector: str) -> None:
        """The loop over strips of columns, which mostly has one round; or over vectors, where one holds all columns."""
        out, name, w = self.out, self.names[vector], self.width
        size = self.nest.size(vector)
        hi = print_factor(size, self.names)
        if size.is_Integer and int(size) <= w:
            out.open(f"for (long {name} = 0; {name} < {hi}; {name} += {w}) {{")
            self._left(size, name, hi)
            return
        self.across = max(UNROLL, min(FEW_COLUMNS // w, self._strip_width()))
        if size.is_Integer:
            self.across = min(self.across, -(-int(size) // w))
        self.unit.lane_free.add("min_max")
        out.open(f"for (long {name}_first = 0; {name}_first < {hi}; {name}_first += {self.across * w}) {{")
        out.put(f"const long stop = least({hi}, {name}_first + {self.across * w});")
        out.put(f"const long count = (stop - {name}_first + {w - 1}) / {w};")
        self.strip = size, "stop"

    def _shared(self, body: tuple[Op, ...], loops: list[BodyLoop], vector: str, position: Expr) -> None:
        """A phase cut into chunks whose number depends on sizes only, so that results do not depend on threads."""
        out = self.out
        in_order = any(op.op == "scan" for op in body)
        columns = self.plan.layout == "columns"
        longest = loops[0] if in_order else max(loops, key=lambda l: self.nest.hint(l.axis.size))
        name = self.names[longest.axis.name]
        size = longest.hi
        depth = {l.axis.name: k + 1 for k, l in enumerate(loops)}
        levels = self._levels(body, depth, vector, len(loops))
        self.partners, self.looping = self._paired(body, vector), True
        folds = [self._fold(op, loops) for op in body if op.op == "reduce"]
        for fold in folds:
            self._declare(fold)
        out.open("{")
        self._declare_scans(body)
        most, least = CHUNKS, 2048 if len(loops) == 1 else 1
        if columns:
            most = max(CHUNKS // 16, CHUNKS // 4 // -(-self.across * self.width // 128))
            least = LONG_FOLD // 4 if len(loops) == 1 else 1
        longest.quantum = self.width if longest.vector else ROWS if columns else 1
        quantum = longest.quantum
        out.put(f"const long share = (({size} + {most - 1}) / {most} + {quantum - 1}) / {quantum} * {quantum};")
        out.put(f"const long step = share > {least} ? share : {least};")
        out.put(f"const long chunks = ({size} + step - 1) / step;")
        many = f"[{self.across}]" if self.across > 1 else ""
        for fold in folds:
            out.put(f"{self._accumulator(fold)} {fold.name}_parts[{most}]{many};")
        others = sympy.Mul(*(l.axis.size for l in loops))
        if columns:
            others *= self.nest.size(vector)
        heavy = 1 + sum(map(dearness, body))
        worth = f"{print_factor(others, self.names)} * {heavy} >= {PARALLEL_WORK}"

        def chunks() -> None:
            out.open("auto work = [&](long thread, long threads) {")
            out.open("for (long chunk = chunks * thread / threads; chunk < chunks * (thread + 1) / threads; ++chunk) {")
            out.put(f"const long {name}_lo = chunk * step;")
            out.put(f"const long {name}_hi = {name}_lo + step < {size} ? {name}_lo + step : {size};")

        if in_order:
            worth = self._totals(body, loops, chunks, f"{name}_lo", f"{name}_hi", vector, position, worth)
            levels = self._levels(body, depth, vector, len(loops))
        chunks()
        longest.lo, longest.hi = f"{name}_lo", f"{name}_hi"
        for scan in self.scans.values():
            out.put(f"const {scan.state} {scan.carry}_before = shared ? {scan.carry}_parts[chunk] : {scan.carry};")
            out.put(f"{scan.state} {scan.carry}_part = {scan.none};")
            scan.into, scan.before = f"{scan.carry}_part", f"{scan.carry}_before"
        outer = [(f, f.name) for f in folds]
        for fold in folds:
            fold.name += "_part"
            self._declare(fold)
        self._level(0, body, levels, loops, folds, vector, position)
        for scan in self.scans.values():
            out.put(f"if (!shared) {scan.carry} = join({scan.carry}, {scan.into});")
        at = "[u]" if self.across > 1 else ""
        for fold, whole in outer:
            if at:
                out.put(self._each_across())
            out.put(f"{whole}_parts[chunk]{at} = {fold.name}{at};")
            fold.name = whole
        out.close()
        out.close("};")
        out.put(f"parallel(work, {worth});")
        if folds:
            out.open("for (long chunk = 0; chunk < chunks; ++chunk) {")
            for fold in folds:
                part, into = f"{fold.name}_parts[chunk]{at}", f"{fold.name}{at}"
                if at:
                    out.put(self._each_across())
                if fold.kind in ("argmax", "argmin"):
                    out.put(f"arg_{fold.kind[3:]}(&{into}, {part}.best, {part}.at);")
                elif self._compensated(fold):
                    self.need(f"add_carry.{fold.register}")
                    out.put(f"{into} = add_carry({into}, {part}, &{fold.name}_carry{at});")
                else:
                    out.put(self._combine(fold, into, part))
            out.close()
        out.close()
        for fold in folds:
            self._finish(fold, across=not columns)

    def _totals(
        self, body: tuple[Op, ...], loops: list[BodyLoop], chunks: Callable[[], None], lo: str, hi: str,
        vector: str, position: Expr, worth: str,
    ) -> str:  # fmt: skip
        """What each chunk's scans start from. Returns the condition under which threads share the chunks.

        One thread goes from chunk to chunk in one traversal; several need the chunks' totals first. Both compute the
        same sums in the same order.
        """
        out = self.out
        if not independent(body):
            worth = "0"
        out.put(f"const bool shared = {worth} && omp_get_max_threads() > 1;")
        scans = list(self.scans.values())
        for scan in scans:
            out.put(f"{scan.state} {scan.carry}_parts[{CHUNKS}];")
        out.open("if (shared) {")
        chunks()
        for scan in scans:
            scan.into = f"{scan.carry}_part"
            out.put(f"{scan.state} {scan.into} = {scan.none};")
        first, body = loops[0], needed(body)
        whole, (first.lo, first.hi) = (first.lo, first.hi), (lo, hi)
        levels = self._levels(body, {l.axis.name: k + 1 for k, l in enumerate(loops)}, vector, len(loops))
        self._level(0, body, levels, loops, [], vector, position)
        first.lo, first.hi = whole
        for scan in scans:
            out.put(f"{scan.carry}_parts[chunk] = {scan.into};")
        out.close()
        out.close("};")
        out.put("parallel(work);")
        out.open("for (long chunk = 0; chunk < chunks; ++chunk) {")
        for scan in scans:
            out.put(f"const {scan.state} {scan.into} = {scan.carry}_parts[chunk];")
            out.put(f"{scan.carry}_parts[chunk] = {scan.carry};")
            out.put(f"{scan.carry} = join({scan.carry}, {scan.into});")
        out.close()
        out.close()
        return "shared"
