"""How a kernel's rows are computed, decided before any text is written: blocks, order of loads, and what stays in cache.

:func:`choose` sees the kernel, its graph with the card, and what measuring has chosen. It returns a :class:`RowPlan`, which
``rows.py`` prints. A row whose length is known and small is *persistent*: one program holds all its columns. A longer one is
walked block by block, once for each phase, or shared by the programs of a cluster.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.card import PERSISTENT
from ....ir.loops import Extern, Graph, Kernel, Op, Phase, extern_reads, indirect_names
from ...expressions import names_in
from ...nest import in_order, numbered
from ..ends import Ends, ends
from .blocks import Blocks, Launch, Work, blocks_of, in_registers, next_power_of_two
from .clusters import may_share
from .directions import contiguous_along_points

BLOCK = 2048  # elements of a block that holds several rows at once
LOOPED = 2048, 8  # columns and warps of a block that loops over a row
DOWN = 64, 32, 4  # neighbouring columns, rows at a time, and warps of a block that walks down columns
STORED = 8192, 16  # the same where a row that begins anywhere is only stored
REREAD = ((128 << 10, 16384), (24 << 10, 4096))
"""Columns of the same where a row of more bytes is read twice. The fewer rows are under way at once, the more of a row is still
in the second-level cache."""
ALONE = 4  # elements of a thread where a multiprocessor has no other rows to work on meanwhile
LONE = 8192  # columns of a block, of which a multiprocessor has few at a time
EARLY = 16  # elements of a thread up to which it has registers for what only later phases read


@dataclass(frozen=True, slots=True)
class Walk:
    """How a phase goes over its columns: from their end or not, and how its loads treat the cache, by storage."""

    backward: bool
    policies: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Division:
    """How the columns of a phase are divided among the blocks of a program, of ``width`` columns each."""

    width: int
    share: int  # columns that this program has, of a row that several share
    exact: bool  # whether blocks end where the row does
    ends: Ends | None  # where a row begins anywhere in memory


@dataclass(frozen=True, slots=True)
class RowPlan:
    """``blocks`` are of one program. ``phases`` are as they are printed, each with its walk, and its division if it has columns."""

    blocks: Blocks
    points: Expr  # how many rows there are
    persistent: bool  # whether a block has all columns of a program
    stores_first: bool  # whether stored elements are to leave the cache first
    early: tuple[Op, ...]  # loads of the program's points, before any phase
    phases: tuple[Phase, ...]
    walks: tuple[Walk, ...]
    divisions: tuple[Division | None, ...]

    def touched(self) -> set[str]:
        """Storages that the program reads or writes: not those whose elements it alone holds."""
        ops = itertools.chain(self.early, *(p.body for p in self.phases))
        return {o.args[0] for o in ops if o.op in ("load", "store") or o.update}

    @property
    def exact(self) -> bool:
        """Whether blocks end where rows do."""
        return bool(self.points.is_Integer) and int(self.points) % self.blocks.points == 0

    @property
    def launch(self) -> Launch:
        blocks, grid = self.blocks, blocks_of(self.points, self.blocks.points) * self.blocks.parts
        widths = {f"RBLOCK{k}": d.width for k, d in enumerate(self.divisions) if d is not None}
        constants = {"XBLOCK": blocks.points, **widths}
        return Launch(grid, constants, blocks.warps, registers=blocks.registers, cluster=blocks.parts)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the kernel's rows are like."""

    points: Expr  # how many they are
    longest: int  # columns
    known: bool  # whether all lengths are numbers
    along: bool  # whether memory is contiguous along points, not along columns

    @classmethod
    def of(cls, kernel: Kernel, graph: Graph) -> _Rows:
        lengths = [sympy.Mul(*(a.size for a in p.axes)) for p in kernel.phases if p.axes]
        return cls(
            sympy.Mul(*(a.size for a in kernel.axes)), max(map(graph.hint, lengths)),
            all(n.is_Integer for n in lengths), contiguous_along_points(kernel),
        )  # fmt: skip


def choose(kernel: Kernel, graph: Graph, wide: bool = False, tuned: Blocks | None = None) -> RowPlan:
    """The plan of a kernel with phases over columns. ``wide`` says that indices have 64 bits; ``tuned`` are the blocks that
    measuring has chosen, if it has."""
    rows, walks = _Rows.of(kernel, graph), walked(kernel)
    blocks = _at_once(rows, graph)
    persistent, again = blocks is not None, False
    if blocks is None:
        again = not rows.along and any("evict_last" in w.policies.values() for w in walks)
        work = Work.of(kernel, graph, rows.along)
        blocks = _looped(kernel, graph, rows, work.width, again, wide)
        if tuned is None and again and rows.known and not any(o.op == "scan" for o in kernel.ops()):
            tuned = in_registers(work)
    if tuned is not None:
        whole = rows.known and rows.longest <= tuned.columns * tuned.parts
        if tuned.parts == 1 or (whole and may_share(kernel, graph)):
            blocks, persistent = dataclasses.replace(tuned, across=1), whole
    if rows.points.is_Integer:
        blocks = dataclasses.replace(blocks, points=min(blocks.points, next_power_of_two(int(rows.points))))
    phases = kernel.phases
    if persistent:
        few = blocks.points * blocks.columns <= EARLY * 32 * blocks.warps
        if few:
            alone = graph.hint(rows.points) <= graph.card.programs or blocks.columns >= LONE
            phases = asked_at_once(kernel, alone)
        phases = forwarded(phases, keep_loads=few or blocks.parts > 1)
        phases = _without_overwritten(_without_unread(kernel, phases, graph))
        walks = _held(kernel, walks)
    divisions = tuple(_divided(kernel, p, graph, blocks, persistent) if p.axes else None for p in phases)
    return RowPlan(blocks, rows.points, persistent, again, loaded_early(kernel), phases, walks, divisions)


def _divided(kernel: Kernel, phase: Phase, graph: Graph, blocks: Blocks, persistent: bool) -> Division:
    length, parts = sympy.Mul(*(a.size for a in phase.axes)), blocks.parts
    width = max(1, next_power_of_two(int(length)) // parts) if persistent else blocks.columns
    exact = bool(length.is_Integer) and int(length) > 0 and int(length) % (width * parts) == 0
    share = width if exact or parts == 1 else min(width, -(-int(length) // (16 * parts)) * 16)
    return Division(width, share, exact, None if persistent else ends(kernel, phase, graph, width))


def _at_once(rows: _Rows, graph: Graph) -> Blocks | None:
    """Blocks of whole rows; None where rows are too long for registers, or of unknown length."""
    if not rows.known or rows.longest > PERSISTENT:
        return None
    columns = next_power_of_two(rows.longest)
    points = max(1, min(BLOCK // columns, 64))
    if (
        not rows.along and (count := graph.hint(rows.points)) <= 2 * graph.card.processors
    ):  # each row has its own, or half of one
        points = max(1, min(points, count // graph.card.processors))
        return Blocks(points, 1, columns, max(1, min(16, columns * points // (32 * ALONE))))
    if not rows.along or points >= 32:
        return Blocks(points, 1, columns, 4 if columns * points <= 2048 else 8 if columns <= 4096 else 16)
    # neighbouring columns lie together: few of them wait for memory, so all of a column at once
    few = columns <= 1024 and graph.hint(rows.points) <= 64 * graph.card.processors
    return Blocks(16, 1, columns, 8) if few else None


def _looped(kernel: Kernel, graph: Graph, rows: _Rows, width: int, again: bool, wide: bool) -> Blocks:
    """Blocks of a program that loops over its rows. ``width`` are bytes of an element; ``again`` says that rows are read twice."""
    columns, warps = LOOPED
    if again and (read := next((n for least, n in REREAD if rows.longest * width > least), 0)):
        # a thread loads 16 bytes at least; elements may be of 3 bytes on average, and warps are a power of two
        columns, warps = read, 1 << min(5, max(1, read * width // (32 * 16)).bit_length() - 1)
    if not any(o.op == "reduce" for o in kernel.ops()) and any(
        ends(kernel, p, graph, STORED[0]) for p in kernel.phases
    ):
        columns, warps = STORED
    points, columns, warps = DOWN if rows.along else (1, columns, warps)
    if rows.along and any(o.op == "reduce" and o.args[0] in ("argmax", "argmin") for o in kernel.ops()):
        columns //= 2  # a thread holds the places as well
    if again:  # a thread has 64 registers where there are 32 warps: enough for 16 times three values
        columns //= next_power_of_two(-(-(max(map(_registers, kernel.phases)) + wide) // 3))
    return Blocks(points, 1, min(columns, next_power_of_two(rows.longest)), warps)


def _registers(phase: Phase) -> int:
    """Of 32 bits, that a column of the phase takes for its loads and its folds, and to compute with them."""
    return sum(3 if o.dtype in ("f64", "i64") else 1 for o in phase.body if o.op in ("load", "reduce"))


# --- order of loads ---------------------------------------------------------------------------------------------------


def loaded_early(kernel: Kernel) -> tuple[Op, ...]:
    """What later phases need of the program's points: loaded first, it is there when the columns were folded."""
    written = set(kernel.writes())
    start = next(k for k, p in enumerate(kernel.phases) if p.axes)
    later = (o for p in kernel.phases[start:] if not p.axes for o in p.body)
    return tuple(o for o in later if _reads_inputs(o, written))


def _reads_inputs(op: Op, written: set[str]) -> bool:
    """Whether the op loads what the kernel does not change, from a place that it knows at once."""
    return op.op == "load" and op.args[0] not in written and not indirect_names(op.args[1])


def asked_at_once(kernel: Kernel, alone: bool) -> tuple[Phase, ...]:
    """The phases, of which the first over columns loads what only later ones read: it is on its way while that one folds.
    Where no other program fills the time (``alone``), all that a phase loads is asked for before a thread waits for its
    first fold."""
    written = set(kernel.writes())
    first = next(k for k, p in enumerate(kernel.phases) if p.axes)
    phases, early = _without_columns_of(kernel.phases, first, written)
    for k, phase in enumerate(phases[first:], first):
        if phase.axes:
            body = phase.body
            at = next((n for n, o in enumerate(body) if o.op in ("reduce", "scan", "store")), len(body))
            asked = [o for o in body[at:] if alone and _reads_inputs(o, written)]
            rest = (o for o in body[at:] if o not in asked)
            phases[k] = Phase(phase.axes, (*body[:at], *asked, *(early if k == first else ()), *rest))
    return tuple(phases)


def _without_columns_of(phases: Sequence[Phase], first: int, written: set[str]) -> tuple[list[Phase], list[Op]]:
    """The phases without loads that the first one over columns, ``phases[first]``, can do for them; and these loads."""
    kept, early = list(phases), list[Op]()
    known = written | {o.args[0] for o in phases[first].body if o.op == "load"}
    for k, phase in enumerate(phases[first + 1 :], first + 1):
        if phase.axes == phases[first].axes:
            own = {a.name for a in phase.axes}
            moved = [o for o in phase.body if _reads_inputs(o, known) and names_in(o.args[1]) & own]
            early += moved
            kept[k] = Phase(phase.axes, tuple(o for o in phase.body if o not in moved))
    return kept, early


def forwarded(phases: Sequence[Phase], keep_loads: bool) -> tuple[Phase, ...]:
    """The phases without loads of elements that an earlier phase of this program stored or, with ``keep_loads``, loaded:
    it still holds them. Compilers read again after a barrier, which programs have that wait for each other, and where the cache
    is to treat the last reading in another way.

    Holds for persistent phases, whose columns are the same threads' registers.
    """
    held: dict[tuple[str, tuple[Expr, ...], Expr], str] = {}
    return tuple(_forwarded(phase, held, keep_loads) for phase in phases)


def _forwarded(phase: Phase, held: dict[tuple[str, tuple[Expr, ...], Expr], str], keep_loads: bool) -> Phase:
    """``held`` has the values of elements, by storage, sizes of axes and index; what this phase holds is added to it."""
    sizes = tuple(a.size for a in phase.axes)
    renamed: dict[str, str] = {}
    body: list[Op] = []
    for op in phase.body:
        op = op.renamed(renamed)
        if op.op in ("load", "store"):
            index = sympy.sympify(op.args[1])
            key = (op.args[0], sizes, numbered(index, phase))
            if op.op == "load" and key in held:
                renamed[op.name] = held[key]
                continue
            _hold(op, key, held, keep_loads and not indirect_names(index))
        body.append(op)
    return Phase(phase.axes, tuple(body))


def _without_unread(kernel: Kernel, phases: tuple[Phase, ...], graph: Graph) -> tuple[Phase, ...]:
    """``phases``, which hold what they stored, without stores that nobody else reads: a norm's centred row, a softmax's numerators."""
    loaded, loads = ({o.args[0] for p in ps for o in p.body if o.op == "load"} for ps in (kernel.phases, phases))
    own = (loaded - loads) & {o.args[0] for p in phases for o in p.body if o.op == "store"}
    own -= {*graph.inputs, *(graph.buffers[name].owner for name in graph.results() if name in graph.buffers)}
    for node in graph.nodes if own else ():
        if node.name != kernel.name and isinstance(node, (Extern, Kernel)):
            own -= {
                graph.buffers[name].owner for name in (extern_reads(node) if isinstance(node, Extern) else node.reads())
            }
    if not own:
        return phases
    return tuple(Phase(p.axes, tuple(o for o in p.body if o.op != "store" or o.args[0] not in own)) for p in phases)


def _without_overwritten(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """``phases`` without stores of elements that the same threads store again before anybody loads: a row of scores that becomes a
    row of their softmax."""
    later: set[tuple[str, tuple[Expr, ...], Expr]] = set()
    found: list[Phase] = []
    for phase in reversed(phases):
        sizes, body = tuple(a.size for a in phase.axes), []
        for op in reversed(phase.body):
            if op.op == "load":
                later = {k for k in later if k[0] != op.args[0]}
            elif op.op == "store" and not indirect_names(op.args[1]):
                key = (op.args[0], sizes, numbered(sympy.sympify(op.args[1]), phase))
                if key in later and not op.update:
                    continue
                later |= set() if op.update else {key}
            body.append(op)
        found.append(Phase(phase.axes, tuple(reversed(body))))
    return tuple(reversed(found))


def _hold(
    op: Op, key: tuple[str, tuple[Expr, ...], Expr], held: dict[tuple[str, tuple[Expr, ...], Expr], str], loads: bool
) -> None:
    """Notes which value is at ``key`` after the load or store ``op``."""
    if op.op == "load":
        if loads:
            held[key] = op.name
        return
    for other in [k for k in held if k[0] == op.args[0] and k != key]:
        del held[other]
    if not indirect_names(sympy.sympify(op.args[1])) and not op.update:
        held[key] = op.args[2]


# --- caches -----------------------------------------------------------------------------------------------------------


def walked(kernel: Kernel) -> tuple[Walk, ...]:
    """How each phase goes over its columns, if it loops.

    A phase begins where the one before ended, so that what that read last is still in cache.
    """
    points = {a.name for a in kernel.axes}
    reads = [_rows_read(p, points) for p in kernel.phases]
    walks: list[Walk] = []
    backward = True
    for number, phase in enumerate(kernel.phases):
        if phase.axes:
            backward = not backward and not in_order(phase.body)
        before, after = (set[str]().union(*part) for part in (reads[:number], reads[number + 1 :]))
        policies = {s: "evict_last" if s in after else "evict_first" for s in reads[number] & (before | after)}
        if any(o.op == "load" and names_in(o.args[1]) and not names_in(o.args[1]) & points for o in phase.body):
            # what all programs read is to stay, what goes by is not
            policies = dict.fromkeys(reads[number] - before - after, "evict_first") | policies
        walks.append(Walk(backward, policies))
    return tuple(walks)


def _rows_read(phase: Phase, points: set[str]) -> set[str]:
    """Storages of which the phase loads each program's own rows."""
    own = {a.name for a in phase.axes}
    used = ((o.args[0], names_in(o.args[1])) for o in phase.body if o.op == "load")
    return {storage for storage, names in used if names & own and points <= names}


def _held(kernel: Kernel, walks: Sequence[Walk]) -> tuple[Walk, ...]:
    """The walks of persistent phases: only what is not read again leaves the cache first, and loads of later phases may have
    moved to earlier ones."""
    found = []
    for number, (phase, walk) in enumerate(zip(kernel.phases, walks, strict=True)):
        here = {o.args[0] for o in phase.body if o.op == "load"}
        moved = {s: p for later in walks[number + 1 :] for s, p in later.policies.items() if s not in here}
        policies = {s: p for s, p in (moved | dict(walk.policies)).items() if p == "evict_first"}
        found.append(Walk(False, policies))
    return tuple(found)
