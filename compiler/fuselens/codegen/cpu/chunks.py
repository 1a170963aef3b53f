"""Few points, much work: threads share each phase, in chunks."""

from __future__ import annotations

import dataclasses

import sympy
from sympy import Expr

from ...ir.loops import Op
from ..expressions import print_factor
from ..nest import FEW_COLUMNS, LONG_FOLD
from .body import ROWS, UNROLL, PhaseBody
from .choices.effort import PARALLEL_WORK, dearness
from .folds import Fold
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

    def _shared(self, ops: tuple[Op, ...], loops: list[BodyLoop], vector: str, position: Expr) -> None:
        """A phase cut into chunks whose number depends on sizes only, so that results do not depend on threads."""
        out = self.out
        in_order = any(op.op == "scan" for op in ops)
        longest = loops[0] if in_order else max(loops, key=lambda l: self.nest.hint(l.axis.size))
        depth = {l.axis.name: k + 1 for k, l in enumerate(loops)}
        levels = self._levels(ops, depth, vector, len(loops))
        self.partners, self.looping = self._paired(ops, vector), True
        folds = [self._fold(op, loops) for op in ops if op.op == "reduce"]
        for fold in folds:
            self._declare(fold)
        out.open("{")
        self._declare_scans(ops)
        self._cut(longest, folds, alone=len(loops) == 1)
        worth = self._worth_sharing(ops, loops)
        if in_order:
            worth = self._totals(PhaseBody(ops, levels, loops, [], vector, position), worth)
            levels = self._levels(ops, depth, vector, len(loops))
        self._open_chunks(longest)
        name = self.names[longest.axis.name]
        longest.lo, longest.hi = f"{name}_lo", f"{name}_hi"
        self._chunk(PhaseBody(ops, levels, loops, folds, vector, position))
        out.close()
        out.close("};")
        out.put(f"parallel(work, {worth});")
        self._add_chunks(folds)
        out.close()
        for fold in folds:
            self._finish(fold, across=self.plan.layout != "columns")

    def _cut(self, loop: BodyLoop, folds: list[Fold], *, alone: bool) -> None:
        """Declares how many chunks there are and how many steps of the loop one has; ``alone``: it is the phase's only loop."""
        out, columns = self.out, self.plan.layout == "columns"
        most, least = CHUNKS, 2048 if alone else 1
        if columns:
            most = max(CHUNKS // 16, CHUNKS // 4 // -(-self.across * self.width // 128))
            least = LONG_FOLD // 4 if alone else 1
        loop.quantum = quantum = self.width if loop.vector else ROWS if columns else 1
        out.put(f"const long share = (({loop.hi} + {most - 1}) / {most} + {quantum - 1}) / {quantum} * {quantum};")
        out.put(f"const long step = share > {least} ? share : {least};")
        out.put(f"const long chunks = ({loop.hi} + step - 1) / step;")
        many = f"[{self.across}]" if self.across > 1 else ""
        for fold in folds:
            out.put(f"{self._accumulator(fold)} {fold.name}_parts[{most}]{many};")

    def _worth_sharing(self, ops: tuple[Op, ...], loops: list[BodyLoop]) -> str:
        """Whether there is enough work for several threads, as C++."""
        points = sympy.Mul(*(l.axis.size for l in loops))
        if self.plan.layout == "columns":
            points *= self.nest.size(self.plan.vector)
        return f"{print_factor(points, self.names)} * {1 + sum(map(dearness, ops))} >= {PARALLEL_WORK}"

    def _open_chunks(self, loop: BodyLoop) -> None:
        """A thread's loop over its chunks of ``loop``."""
        out, name, size = self.out, self.names[loop.axis.name], loop.hi
        out.open("auto work = [&](long thread, long threads) {")
        out.open("for (long chunk = chunks * thread / threads; chunk < chunks * (thread + 1) / threads; ++chunk) {")
        out.put(f"const long {name}_lo = chunk * step;")
        out.put(f"const long {name}_hi = {name}_lo + step < {size} ? {name}_lo + step : {size};")

    def _chunk(self, body: PhaseBody) -> None:
        """A chunk's own results, kept for :meth:`_add_chunks`."""
        out = self.out
        for scan in self.scans.values():
            out.put(f"const {scan.state} {scan.carry}_before = shared ? {scan.carry}_parts[chunk] : {scan.carry};")
            out.put(f"{scan.state} {scan.carry}_part = {scan.none};")
            scan.into, scan.before = f"{scan.carry}_part", f"{scan.carry}_before"
        totals = [f.name for f in body.folds]
        for fold in body.folds:
            fold.name += "_part"
            self._declare(fold)
        self._level(0, body)
        for scan in self.scans.values():
            out.put(f"if (!shared) {scan.carry} = join({scan.carry}, {scan.into});")
        at = "[u]" if self.across > 1 else ""
        for fold, total in zip(body.folds, totals, strict=True):
            if at:
                out.put(self._each_across())
            out.put(f"{total}_parts[chunk]{at} = {fold.name}{at};")
            fold.name = total

    def _add_chunks(self, folds: list[Fold]) -> None:
        """Combines what the chunks gave, in their order."""
        if not folds:
            return
        out, at = self.out, "[u]" if self.across > 1 else ""
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

    def _totals(self, body: PhaseBody, worth: str) -> str:
        """What each chunk's scans start from. Returns the condition under which threads share the chunks.

        One thread goes from chunk to chunk in one traversal; several need the chunks' totals first. Both compute the
        same sums in the same order.
        """
        out = self.out
        if not independent(body.ops):
            worth = "0"
        out.put(f"const bool shared = {worth} && omp_get_max_threads() > 1;")
        scans = list(self.scans.values())
        for scan in scans:
            out.put(f"{scan.state} {scan.carry}_parts[{CHUNKS}];")
        out.open("if (shared) {")
        first, ops = body.loops[0], needed(body.ops)
        self._open_chunks(first)
        for scan in scans:
            scan.into = f"{scan.carry}_part"
            out.put(f"{scan.state} {scan.into} = {scan.none};")
        whole, name = (first.lo, first.hi), self.names[first.axis.name]
        first.lo, first.hi = f"{name}_lo", f"{name}_hi"
        depth = {l.axis.name: k + 1 for k, l in enumerate(body.loops)}
        levels = self._levels(ops, depth, body.vector, len(body.loops))
        self._level(0, dataclasses.replace(body, ops=ops, levels=levels))
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
