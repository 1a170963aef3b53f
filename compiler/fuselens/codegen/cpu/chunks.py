"""Few points, much work: threads share each phase, in chunks."""

from __future__ import annotations

import dataclasses

from ..expressions import print_factor
from .body import BodyWriter
from .choices.chunks import CHUNKS, Chunks, choose
from .choices.effort import PARALLEL_WORK
from .choices.units import few_columns_width
from .places import Body, BodyLoop, Place
from .scans import independent, needed


class ChunkWriter:
    """Prints kernels whose phases are shared between threads."""

    def __init__(self, bodies: BodyWriter) -> None:
        self.bodies, self.folds = bodies, bodies.folds
        self.values, self.plan, self.out, self.width = bodies.values, bodies.plan, bodies.out, bodies.width

    def write(self, at: Place) -> None:
        out, kernel, vector = self.out, self.plan.kernel, self.plan.vector
        for axis in kernel.axes:
            name = self.values.names[axis.name]
            if axis.name != vector:
                size = print_factor(axis.size, self.values.names)
                out.open(f"for (long {name} = 0; {name} < {size}; ++{name}) {{")
        if vector:
            at = self._open_columns(vector, at)
        for phase, inner, position in zip(kernel.phases, self.plan.loops.inner, self.plan.nest.positions, strict=True):
            loops = self.bodies.phase_loops(phase.axes, inner)
            if loops:
                self._shared(Body(phase.body, loops, vector or inner, position), dataclasses.replace(at, looping=True))
            else:
                self.bodies.nest(Body(phase.body, (), vector, position), at)
        for _ in kernel.axes:
            out.close()

    def _open_columns(self, vector: str, at: Place) -> Place:
        """The loop over strips of columns, which mostly has one round; or over vectors, where one holds all columns."""
        out, name, w = self.out, self.values.names[vector], self.width
        size, hi = self.plan.nest.size(vector), self.values.size(vector)
        if size.is_Integer and int(size) <= w:
            out.open(f"for (long {name} = 0; {name} < {hi}; {name} += {w}) {{")
            return self.values.left(at, size, name, hi)
        across = few_columns_width(self.plan, size)
        self.bodies.unit.lane_free.add("min_max")
        out.open(f"for (long {name}_first = 0; {name}_first < {hi}; {name}_first += {across * w}) {{")
        out.put(f"const long stop = least({hi}, {name}_first + {across * w});")
        out.put(f"const long count = (stop - {name}_first + {w - 1}) / {w};")
        return dataclasses.replace(at, across=across, strip=(size, "stop"))

    def _shared(self, body: Body, at: Place) -> None:
        """A phase cut into chunks whose number depends on sizes only, so that results do not depend on threads."""
        out = self.out
        inner = next((l.axis.name for l in body.loops if l.vector), "")
        chunks = choose(self.plan, body.ops, [l.axis for l in body.loops], inner, at.across)
        cut = next(l for l in body.loops if l.axis == chunks.axis)
        body = self.bodies.arranged(body, at)
        for fold in body.folds:
            self.folds.declare(fold, at)
        out.open("{")
        body = dataclasses.replace(body, scans=self.folds.declare_scans(body.ops, at))
        self._declare_chunks(cut, chunks, body, at)
        points = print_factor(chunks.points, self.values.names)
        worth = f"{points} * {chunks.dearness} >= {PARALLEL_WORK}"  # whether there is enough for several threads
        name = self.values.names[cut.axis.name]
        part = dataclasses.replace(cut, lo=f"{name}_lo", hi=f"{name}_hi", quantum=chunks.quantum)
        inside = dataclasses.replace(body, loops=tuple(part if l is cut else l for l in body.loops))
        if chunks.in_order:
            worth = self._totals(cut, inside, worth, at)
        self._open_chunks(cut)
        self._chunk(inside, at)
        out.close()
        out.close("};")
        out.put(f"parallel(work, {worth});")
        self._add_chunks(body, at)
        out.close()
        for fold in body.folds:
            self.folds.finish(fold, at, across=self.plan.layout != "columns")

    def _declare_chunks(self, loop: BodyLoop, chunks: Chunks, body: Body, at: Place) -> None:
        """Declares how many chunks there are, how many steps of the loop one has, and where their results are kept."""
        out, most, least, quantum = self.out, chunks.most, chunks.least, chunks.quantum
        out.put(f"const long share = (({loop.hi} + {most - 1}) / {most} + {quantum - 1}) / {quantum} * {quantum};")
        out.put(f"const long step = share > {least} ? share : {least};")
        out.put(f"const long chunks = ({loop.hi} + step - 1) / step;")
        for fold in body.folds:
            out.put(f"{self.folds.accumulator(fold)} {fold.name}_parts[{most}]{at.many};")

    def _open_chunks(self, loop: BodyLoop) -> None:
        """A thread's loop over its chunks of ``loop``."""
        out, name, size = self.out, self.values.names[loop.axis.name], loop.hi
        out.open("auto work = [&](long thread, long threads) {")
        out.open("for (long chunk = chunks * thread / threads; chunk < chunks * (thread + 1) / threads; ++chunk) {")
        out.put(f"const long {name}_lo = chunk * step;")
        out.put(f"const long {name}_hi = {name}_lo + step < {size} ? {name}_lo + step : {size};")

    def _chunk(self, body: Body, at: Place) -> None:
        """A chunk's own results, kept for :meth:`_add_chunks`."""
        out, totals = self.out, body.folds
        for scan in body.scans.values():
            out.put(f"const {scan.state} {scan.carry}_before = shared ? {scan.carry}_parts[chunk] : {scan.carry};")
            out.put(f"{scan.state} {scan.carry}_part = {scan.none};")
        parts = tuple(dataclasses.replace(f, name=f"{f.name}_part") for f in totals)
        body = dataclasses.replace(
            body, folds=parts,
            scans={
                n: dataclasses.replace(s, into=f"{s.carry}_part", before=f"{s.carry}_before")
                for n, s in body.scans.items()
            },
        )  # fmt: skip
        for part in parts:
            self.folds.declare(part, at)
        self.bodies.level(0, body, at)
        for scan in body.scans.values():
            out.put(f"if (!shared) {scan.carry} = join({scan.carry}, {scan.into});")
        for part, total in zip(parts, totals, strict=True):
            if at.across > 1:
                out.put(at.each_vector)
            out.put(f"{total.name}_parts[chunk]{at.each} = {part.name}{at.each};")

    def _add_chunks(self, body: Body, at: Place) -> None:
        """Combines what the chunks gave, in their order."""
        if not body.folds:
            return
        out = self.out
        out.open("for (long chunk = 0; chunk < chunks; ++chunk) {")
        for fold in body.folds:
            part, into = f"{fold.name}_parts[chunk]{at.each}", fold.name + at.each
            if at.across > 1:
                out.put(at.each_vector)
            if self.folds.compensated(fold):
                self.values.need(f"add_carry.{fold.register}")
                out.put(f"{into} = add_carry({into}, {part}, &{fold.name}_carry{at.each});")
            else:
                self.folds.combine(fold, into, part)
        out.close()

    def _totals(self, loop: BodyLoop, body: Body, worth: str, at: Place) -> str:
        """What each chunk's scans start from. Returns the condition under which threads share the chunks of ``loop``.

        One thread goes from chunk to chunk in one traversal; several need the chunks' totals first. Both compute the
        same sums in the same order.
        """
        out = self.out
        if not independent(body.ops):
            worth = "0"
        out.put(f"const bool shared = {worth} && omp_get_max_threads() > 1;")
        scans = {n: dataclasses.replace(s, into=f"{s.carry}_part") for n, s in body.scans.items()}
        for scan in scans.values():
            out.put(f"{scan.state} {scan.carry}_parts[{CHUNKS}];")
        out.open("if (shared) {")
        self._open_chunks(loop)
        for scan in scans.values():
            out.put(f"{scan.state} {scan.into} = {scan.none};")
        self.bodies.level(0, dataclasses.replace(body, ops=needed(body.ops), folds=(), scans=scans), at)
        for scan in scans.values():
            out.put(f"{scan.carry}_parts[chunk] = {scan.into};")
        out.close()
        out.close("};")
        out.put("parallel(work);")
        out.open("for (long chunk = 0; chunk < chunks; ++chunk) {")
        for scan in scans.values():
            out.put(f"const {scan.state} {scan.into} = {scan.carry}_parts[chunk];")
            out.put(f"{scan.carry}_parts[chunk] = {scan.carry};")
            out.put(f"{scan.carry} = join({scan.carry}, {scan.into});")
        out.close()
        out.close()
        return "shared"
