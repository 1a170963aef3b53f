"""Programs over blocks of rows: how many rows and columns at once, in which direction, and what stays in cache."""

from __future__ import annotations

import dataclasses

import sympy
from sympy import Expr

from ...ir.loops import Op, Phase, indirect_names, value_symbol
from ..expressions import TRITON, names_in, print_factor
from ..nest import in_order, numbered
from .choices.blocks import PERSISTENT, Blocks, Work, in_registers
from .choices.clusters import may_share
from .choices.directions import contiguous_along_points
from .ends import ends
from .folds import Folds, blocks_of, next_power_of_two

BLOCK = 2048  # elements of a block that holds several rows at once
LOOPED = 2048, 8  # columns and warps of a block that loops over a row
DOWN = 64, 32, 4  # neighbouring columns, rows at a time, and warps of a block that walks down columns
STORED = 8192, 16  # the same where a row that begins anywhere is only stored
REREAD = ((128 << 10, 16384), (24 << 10, 4096))
"""Columns of the same where a row of more bytes is read twice. The fewer rows are under way at once, the more of a row is still
in the second-level cache."""
EARLY = 16  # elements of a thread up to which it has registers for what only later phases read


class Rows(Folds):
    """Writes a program that computes some rows, phase after phase."""

    def _rows(self) -> tuple[Expr, int]:
        """Programs over blocks of kernel points, with phases that run over axes of their own."""
        kernel, out = self.kernel, self.out
        self.rank = 2
        total = sympy.Mul(*(a.size for a in kernel.axes))
        lengths = [sympy.Mul(*(a.size for a in p.axes)) for p in kernel.phases if p.axes]
        longest = max(self.nest.hint(n) for n in lengths)
        known = all(n.is_Integer for n in lengths)
        fits = known and longest <= PERSISTENT
        columns = contiguous_along_points(kernel)
        walks = self._walks()
        chosen, registers = self.tuning, 0
        if fits:
            widest = next_power_of_two(longest)
            xblock = max(1, min(BLOCK // widest, 64))
            warps = 4 if widest * xblock <= 2048 else 8 if widest <= 4096 else 16
            if columns and xblock < 32:  # few of them wait for memory: all of a column at once
                fits = widest <= 1024 and self.nest.hint(total) <= 64 * self.unit.graph.card.processors
                xblock, warps = 16, 8
        if not fits:
            again = not columns and any("evict_last" in policies.values() for _, policies in walks)
            work = Work.of(kernel, self.unit.graph, columns)
            block = LOOPED
            if again and (read := next((n for least, n in REREAD if longest * work.width > least), 0)):
                # a thread loads 16 bytes at least; elements may be of 3 bytes on average, and warps are a power of two
                block = read, 1 << min(5, max(1, read * work.width // (32 * 16)).bit_length() - 1)
            if not any(o.op == "reduce" for o in kernel.ops()) and self._has_ends(STORED[0]):
                block = STORED
            xblock, widest, warps = DOWN if columns else (1, *block)
            self.stores_first = again
            if again:  # a thread has 64 registers where there are 32 warps: enough for 16 times three values
                widest //= next_power_of_two(-(-(max(map(_registers, kernel.phases)) + self.wide) // 3))
            widest = min(widest, next_power_of_two(longest))
            if again and known and chosen is None and not any(o.op == "scan" for o in kernel.ops()):
                chosen = in_registers(work)
        whole = chosen is not None and known and longest <= chosen.columns * chosen.parts
        if chosen is not None and (chosen.parts == 1 or (whole and may_share(kernel, self.unit.graph))):
            xblock, widest, warps, self.parts, fits = chosen.points, chosen.columns, chosen.warps, chosen.parts, whole
            registers = chosen.registers
        if total.is_Integer:
            xblock = min(xblock, next_power_of_two(int(total)))
        self.chosen = Blocks(xblock, 1, widest, warps, self.parts, registers)
        self.blocks["XBLOCK"] = xblock
        block = self._program()
        if self.parts > 1:
            out.put(f"part = tl.program_id(0) % {self.parts}  # of a row, which the programs of a cluster share")
            block = f"{block} // {self.parts}"
        out.put(f"x = {block} * XBLOCK + tl.arange(0, XBLOCK)[:, None]")
        self.point_mask = "" if total.is_Integer and int(total) % xblock == 0 else "xmask"
        if self.point_mask:
            out.put(f"xmask = x < {print_factor(total, self.names, TRITON)}")
        self._decode(kernel.axes, "x")
        early = self._loaded_early()
        stored: set[str] = set()
        room = xblock * self.chosen.columns <= EARLY * 32 * self.chosen.warps
        phases = self._asked_at_once() if fits and room else kernel.phases
        for number, (phase, position) in enumerate(zip(phases, self.nest.positions, strict=True)):
            if fits:
                phase = self._forwarded(phase)
                here = {o.args[0] for o in kernel.phases[number].body if o.op == "load"}
                moved = {s: p for _, later in walks[number + 1 :] for s, p in later.items() if s not in here}
                self.policies = {s: p for s, p in (moved | walks[number][1]).items() if p == "evict_first"}
            else:
                self.backward, self.policies = walks[number]
            loads = {o.args[0] for o in phase.body if o.op == "load"}
            if loads & stored:
                out.put("tl.debug_barrier()  # other threads of this program wrote what is read next")
                stored.clear()
            if phase.axes:
                self._phase(number, phase, position, fits, widest)
            else:
                self.mask = self.point_mask
                self.spread = "tl.zeros([XBLOCK, 1], tl.int32)"
                self.shape_names = frozenset(a.name for a in kernel.axes)
                self._straight([o for o in phase.body if o.name not in early])
            stored |= {o.args[0] for o in phase.body if o.op == "store"}
        if self.parts > 1:
            self.need("leave_cluster")
            out.put("leave_cluster()")
        return blocks_of(total, xblock) * self.parts, warps

    def _has_ends(self, width: int) -> bool:
        return any(ends(self.kernel, p, self.unit.graph, width) for p in self.kernel.phases)

    def _loaded_early(self) -> set[str]:
        """Loads what later phases need of the program's points, so that it is there when the columns were folded."""
        written = set(self.kernel.writes())
        start = next(k for k, p in enumerate(self.kernel.phases) if p.axes)
        loads = [
            o for p in self.kernel.phases[start:] if not p.axes for o in p.body
            if o.op == "load" and o.args[0] not in written and not indirect_names(o.args[1])
        ]  # fmt: skip
        self.mask = self.point_mask
        self.shape_names = frozenset(a.name for a in self.kernel.axes)
        self._straight(loads)
        return {o.name for o in loads}

    def _asked_at_once(self) -> tuple[Phase, ...]:
        """The phases, of which the first over columns loads what only later ones read: it is on its way while that one folds.
        Where no other program fills the time, all that a phase loads is asked for before a thread waits for its first fold."""
        phases, written = list(self.kernel.phases), set(self.kernel.writes())
        first = next(k for k, p in enumerate(phases) if p.axes)
        known = written | {o.args[0] for o in phases[first].body if o.op == "load"}
        early: list[Op] = []
        for k, phase in enumerate(phases[first + 1 :], first + 1):
            if phase.axes == phases[first].axes:
                own = {a.name for a in phase.axes}
                moved = [
                    o for o in phase.body
                    if o.op == "load" and o.args[0] not in known and names_in(o.args[1]) & own and not indirect_names(o.args[1])
                ]  # fmt: skip
                early += moved
                phases[k] = Phase(phase.axes, tuple(o for o in phase.body if o not in moved))
        alone = self.nest.hint(sympy.Mul(*(a.size for a in self.kernel.axes))) <= self.unit.graph.card.programs
        for k, phase in enumerate(phases[first:], first):
            if not phase.axes:
                continue
            body = phase.body
            at = next((n for n, o in enumerate(body) if o.op in ("reduce", "scan", "store")), len(body))
            asked = [
                o for o in body[at:]
                if alone and o.op == "load" and o.args[0] not in written and not indirect_names(o.args[1])
            ]  # fmt: skip
            rest = (o for o in body[at:] if o not in asked)
            phases[k] = Phase(phase.axes, (*body[:at], *asked, *(early if k == first else ()), *rest))
        return tuple(phases)

    def _walks(self) -> list[tuple[bool, dict[str, str]]]:
        """For each phase that loops: whether it walks its columns from their end, and how its loads treat the cache.

        A phase begins where the one before ended, so that what that read last is still in cache.
        """
        points = {a.name for a in self.kernel.axes}
        reads = [
            {
                o.args[0] for o in p.body
                if o.op == "load" and names_in(o.args[1]) & {a.name for a in p.axes}
                and points <= names_in(o.args[1])
            }
            for p in self.kernel.phases
        ]  # fmt: skip
        walks: list[tuple[bool, dict[str, str]]] = []
        backward = True
        for number, phase in enumerate(self.kernel.phases):
            if phase.axes:
                backward = not backward and not in_order(phase.body)
            before, after = ({s for r in part for s in r} for part in (reads[:number], reads[number + 1 :]))
            policies = {s: "evict_last" if s in after else "evict_first" for s in reads[number] & (before | after)}
            if any(o.op == "load" and names_in(o.args[1]) and not names_in(o.args[1]) & points for o in phase.body):
                # what all programs read is to stay, what goes by is not
                policies = dict.fromkeys(reads[number] - before - after, "evict_first") | policies
            walks.append((backward, policies))
        return walks

    def _forwarded(self, phase: Phase) -> Phase:
        """The phase without loads of elements that an earlier phase of this program stored or, where programs wait for each
        other, loaded: it still holds them.

        Also notes what this phase stores. Holds for persistent phases, whose columns are the same threads' registers.
        """
        sizes = tuple(a.size for a in phase.axes)
        renamed: dict[str, str] = {}
        body: list[Op] = []
        for op in phase.body:
            op = _renamed(op, renamed)
            if op.op in ("load", "store"):
                index = sympy.sympify(op.args[1])
                key = (op.args[0], sizes, numbered(index, phase))
                if op.op == "load" and key in self.held:
                    renamed[op.name] = self.held[key]
                    continue
                if op.op == "load" and self.parts > 1 and not indirect_names(index):
                    self.held[key] = op.name  # the compiler reads again after a barrier
                if op.op == "store":
                    for other in [k for k in self.held if k[0] == op.args[0] and k != key]:
                        del self.held[other]
                    if not indirect_names(index) and not op.update:
                        self.held[key] = op.args[2]
            body.append(op)
        return Phase(phase.axes, tuple(body))


def _registers(phase: Phase) -> int:
    """Of 32 bits, that a column of the phase takes for its loads and its folds, and to compute with them."""
    return sum(3 if o.dtype in ("f64", "i64") else 1 for o in phase.body if o.op in ("load", "reduce"))


def _renamed(op: Op, names: dict[str, str]) -> Op:
    """``op`` reading other values."""
    if not names or not any(n in names for n in op.operands()):
        return op
    change = {value_symbol(a): value_symbol(b) for a, b in names.items()}
    arguments = []
    for position, arg in enumerate(op.args):
        if isinstance(arg, str) and not (op.op in ("load", "store", "reduce", "scan") and position == 0):
            arg = names.get(arg, arg)
        elif isinstance(arg, Expr):
            arg = arg.xreplace(change)
        arguments.append(arg)
    return dataclasses.replace(op, args=tuple(arguments))
