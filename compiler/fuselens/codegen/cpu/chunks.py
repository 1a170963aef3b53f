"""Few points, much work: threads share each phase, in chunks."""

from __future__ import annotations

from collections.abc import Callable

import sympy
from sympy import Expr

from ...ir.loops import Op
from ..expressions import print_factor
from ..nest import FEW_COLUMNS, LONG_FOLD
from .body import ROWS, UNROLL, PhaseBody
from .effort import PARALLEL_WORK, dearness
from .scans import independent, needed
from .units import UnitWriter
from .values import BodyLoop

CHUNKS = 256  # at most so many partial results of a reduction that threads share


class ChunkWriter(UnitWriter):
    """Prints kernels whose phases are shared between threads."""

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
        self._level(0, PhaseBody(body, levels, loops, folds, vector, position))
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
        self._level(0, PhaseBody(body, levels, loops, [], vector, position))
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
