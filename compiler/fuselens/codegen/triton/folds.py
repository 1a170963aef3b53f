"""Phases with axes of their own as Triton: reductions and scans, of a row at once or block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sympy
from sympy import Expr

from ...ir.loops import Op, Phase
from ..expressions import TRITON, linear, names_in, print_factor
from ..nest import index_of
from .choices.blocks import next_power_of_two
from .ends import Ends, ends
from .operations import Operations
from .scalar_ops import TYPES, literal


@dataclass(frozen=True, slots=True)
class Columns:
    """How the columns of a phase are divided. ``block`` and ``name`` are what their block and they themselves are called."""

    block: str
    name: str
    size: str  # how many there are
    width: int  # of a block
    share: int  # columns that this program has, of a row that several share
    exact: bool  # whether blocks end where the row does
    ends: Ends | None  # where a row begins anywhere in memory


class Folds(Operations):
    """Writes phases over columns: at once where all of a row is in registers, else in a loop with running results."""

    def _phase(self, number: int, phase: Phase, position: Expr, persistent: bool, widest: int) -> None:
        columns = self._divided(number, phase, persistent, widest)
        self.blocks[columns.block] = columns.width
        inside = self._inside(phase)
        self._at_points()
        self._straight([op for op in phase.body if op.name not in inside])
        self._at_columns(phase, columns)
        body = [op for op in phase.body if op.name in inside]
        folds = [op for op in body if op.op == "reduce"]
        peaks = {op.args[1]: op.name for op in folds if op.args[0] == "max"}
        self.peaks = {op.name: peaks.get(op.args[1], op.name) for op in folds if op.args[0] == "sumexp"}
        if persistent:
            self._at_once(phase, columns)
            self._fold_body(body, position, self._fold_at_once, carried=False)
            return
        for op in folds:
            self._start(op)
        for op in body:
            if op.op == "scan":
                self._start_scan(op)
        self._open_blocks(phase, columns)
        self._fold_body(body, position, self._accumulate, carried=True)
        self.out.close("")
        if columns.ends is not None:
            self.out.close("")
            self.places.clear()
        for op in folds:
            self._finish(op)

    def _divided(self, number: int, phase: Phase, persistent: bool, widest: int) -> Columns:
        """How the phase's columns are divided, and what they are called."""
        length = sympy.Mul(*(a.size for a in phase.axes))
        width = max(1, next_power_of_two(int(length)) // self.parts) if persistent else widest
        exact = length.is_Integer and int(length) > 0 and int(length) % (width * self.parts) == 0
        share = width if exact or self.parts == 1 else min(width, -(-int(length) // (16 * self.parts)) * 16)
        parts = None if persistent else ends(self.kernel, phase, self.unit.graph, width)
        name = self._claim(f"column{number or ''}")
        size = print_factor(length, self.names, TRITON)
        return Columns(f"RBLOCK{number}", name, size, width, share, bool(exact), parts)

    def _fold_body(self, body: list[Op], position: Expr, fold: Callable[[Op, Expr], None], *, carried: bool) -> None:
        """What is computed for each block of columns; ``fold`` writes a reduction."""
        for op in body:
            if op.op == "reduce":
                fold(op, position)
            elif op.op == "scan":
                self._scan(op, carried=carried)
            else:
                self._op(op)

    def _at_once(self, phase: Phase, columns: Columns) -> None:
        """Declares all columns that a program has."""
        r, each = columns.name, self._columns_of(phase, columns.block)
        first = f"part * {columns.share} + " if self.parts > 1 else ""
        self.out.put(f"{r} = {first}{each}")
        if not columns.exact:
            end = f" & ({each} < {columns.share})" if columns.share < columns.width else ""
            self.out.put(f"{r}mask = ({r} < {columns.size}){end}")
        self._decode(phase.axes, r)

    def _open_blocks(self, phase: Phase, columns: Columns) -> None:
        """The loop over blocks of columns."""
        out, r, block, size = self.out, columns.name, columns.block, columns.size
        each = self._columns_of(phase, block)
        if columns.ends is None:
            out.open(f"for start in range(0, {size}, {block}):")
            start = f"({size} - 1) // {block} * {block} - start" if self.backward else "start"
            out.put(f"{r} = {start} + {each}")
            if not columns.exact:
                out.put(f"{r}mask = {r} < {size}")
        else:
            self._open_parts(columns.ends, r, block, each)
        self._decode(phase.axes, r)
        if columns.ends is not None and columns.ends.multiple > 1:
            self._place_parts(columns.ends, r)

    def _at_points(self) -> None:
        """What follows is of the program's points, without columns."""
        self.shape_names = frozenset(a.name for a in self.kernel.axes)
        self.mask, self.spread = self.point_mask, "tl.zeros([XBLOCK, 1], tl.int32)"

    def _at_columns(self, phase: Phase, columns: Columns) -> None:
        """What follows is of the program's points and a block of columns."""
        self.columns = frozenset(a.name for a in phase.axes)
        self.shape_names |= self.columns
        self.fold_mask = "" if columns.exact else f"{columns.name}mask"
        self.mask = " & ".join(m for m in (self.point_mask, self.fold_mask) if m)
        self.spread = f"tl.zeros([XBLOCK, {columns.block}], tl.int32)"
        self.block = columns.block

    def _columns_of(self, phase: Phase, block: str) -> str:
        """The numbers of a block's columns, of 64 bits where elements of a row may lie so far apart."""
        text = f"tl.arange(0, {block})[None, :]"
        return f"{text}.to(tl.int64)" if self.wide and any(_is_far(op, phase) for op in phase.body) else text

    def _open_parts(self, parts: Ends, r: str, block: str, columns: str) -> None:
        """The loops over a row of which whole blocks come first, and both ends after them."""
        out, multiple = self.out, parts.multiple
        if multiple > 1:
            out.put(f"{r}first = ({multiple} - ({self._index(parts.first)}) % {multiple}) % {multiple}")
        out.open("for rest in tl.static_range(2):  # whole blocks, then both ends of the row")
        out.open(f"for start in range(0, {parts.rest} if rest else {parts.whole}, {block}):")
        start = f"(start if rest else {parts.whole} - {block} - start)" if self.backward else "start"
        out.put(f"{r} = {start} + {columns}")
        out.put(f"{r}mask = {r} < {parts.rest} if rest else tl.full([1, {block}], True, tl.int1)")
        if multiple > 1:
            after = f"tl.where({r} < {r}first, {r}, {r} + {parts.whole})"
            out.put(f"{r} = {after} if rest else {r}first + {r}")
        else:
            out.put(f"{r} = {r} + {parts.whole} if rest else {r}")

    def _place_parts(self, parts: Ends, r: str) -> None:
        """Says where elements lie, and what the compiler cannot see: at multiples of a vector's size."""
        place = f"{r}place"
        self.out.put(f"{place} = tl.multiple_of({self._index(parts.index)}, [1, 1 if rest else {parts.multiple}])")
        self.places[parts.index] = place

    def _inside(self, phase: Phase) -> set[str]:
        """Ops of the phase that depend on its axes (reduces and stores belong there too)."""
        own = {a.name for a in phase.axes}
        written = set(self.kernel.writes())
        inside: set[str] = set()
        for op in phase.body:
            index = index_of(op)
            depends = index is not None and bool(names_in(index) & own)
            if (
                depends
                or op.op in ("store", "reduce", "scan")
                or any(n in inside for n in op.operands())
                or (op.op == "load" and op.args[0] in written)
            ):
                inside.add(op.name)
        return inside

    def _identity(self, kind: str, dtype: str) -> str:
        if kind in ("sum", "any"):
            return literal(0, dtype)
        if kind in ("prod", "all"):
            return literal(1, dtype)
        low = kind in ("max", "argmax", "sumexp")
        if dtype[0] == "f" or dtype == "bf16":
            return 'float("-inf")' if low else 'float("inf")'
        if dtype == "bool":
            return literal(not low, dtype)
        bits = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8}[dtype]
        if dtype == "u8":
            return "0" if low else "255"
        return str(-(2 ** (bits - 1)) if low else 2 ** (bits - 1) - 1)

    def _kept(self, op: Op) -> tuple[str, str]:
        """The folded value with masked columns at the identity, as a full block; and its dtype."""
        kind, name = op.args
        value = self.slots[name].value
        text, dtype = value.text, value.dtype
        if dtype == "bool":
            text, dtype = f"{text}.to(tl.int32)", "i32"
        text = f"tl.broadcast_to({text}, [XBLOCK, {self.block}])"
        if self.fold_mask:
            text = f"tl.where({self.fold_mask}, {text}, {self._identity(kind, dtype)})"
        return text, dtype

    def _folded(self, kind: str, text: str) -> str:
        """A block folded over its columns, as a column."""
        if self.parts > 1:
            return self._shared(kind, text)
        if kind == "sum":
            return f"tl.sum({text}, 1)[:, None]"
        if kind in ("any", "all"):
            return f"tl.{'max' if kind == 'any' else 'min'}({text}, 1)[:, None]"
        self.need(f"fold_{kind}")
        return f"tl.reduce({text}, 1, fold_{kind})[:, None]"

    def _shared(self, kind: str, text: str) -> str:
        """A row folded by the programs that have parts of it."""
        function = f"{kind}_of_{self.parts}"
        self.need(function)
        simple = {"sum": "sum", "any": "max", "all": "min"}.get(kind)
        if simple is None:
            self.need(f"fold_{kind}")
        return f"{function}({f'tl.{simple}({text})' if simple else f'tl.reduce({text}, None, fold_{kind})'})"

    def _fold_at_once(self, op: Op, position: Expr) -> None:
        kind = op.args[0]
        text, _ = self._kept(op)
        if kind in ("argmax", "argmin"):
            at = self._claim(op.name + "_at")
            self.out.put(f"{op.name}_all = {text}")
            self.out.put(f"{at} = tl.broadcast_to({self._index(position)}, [XBLOCK, {self.block}]).to(tl.int64)")
            if self.fold_mask:
                self.out.put(f"{at} = tl.where({self.fold_mask}, {at}, 9223372036854775807)")
            self._define(op, self._place(kind, f"{op.name}_all", at))
            return
        if kind == "sumexp":
            self.out.put(f"{op.name}_all = {text}", op.spans)
            peak = self.peaks[op.name] if self.parts > 1 else op.name
            most = self.slots[peak].value.text if peak in self.slots else self._folded("max", f"{op.name}_all")
            self._define(op, self._folded("sum", f"tl.exp({op.name}_all - {most})"))
            return
        folded = self._folded(kind, text)
        self._define(op, f"{folded} != 0" if op.dtype == "bool" else folded)

    def _place(self, kind: str, values: str, at: str) -> str:
        """The lowest index among the columns that hold the best value; NaN counts as best."""
        best = self._folded(kind[3:], values)
        name = f"{values}_best"
        self.out.put(f"{name} = {best}")
        chosen = f"({values} == {name}) | (({values} != {values}) & ({name} != {name}))"
        lowest = f"tl.where({chosen}, {at}, 9223372036854775807)"
        return self._shared("min", lowest) if self.parts > 1 else f"tl.min({lowest}, 1)[:, None]"

    def _start(self, op: Op) -> None:
        kind, name = op.args
        dtype = next((o.dtype for o in self.kernel.ops() if o.name == name), "f32")
        dtype = "i32" if dtype == "bool" else dtype
        shape = f"[XBLOCK, {self.block}]"
        if kind == "sumexp":
            self.out.put(f"{op.name}_sum = tl.full({shape}, 0, {TYPES[dtype]})", op.spans)
            if self.peaks[op.name] != op.name:
                return
        self.out.put(f"{op.name}_all = tl.full({shape}, {self._identity(kind, dtype)}, {TYPES[dtype]})", op.spans)
        if kind in ("argmax", "argmin"):
            self.out.put(f"{op.name}_at = tl.full({shape}, 9223372036854775807, tl.int64)")

    def _accumulate(self, op: Op, position: Expr) -> None:
        kind, out = op.args[0], self.out
        if kind == "max" and op.name in self.peaks.values():
            return  # with the sum of exponentials, which needs the maximum so far
        text, dtype = self._kept(op)
        total = f"{self.peaks.get(op.name, op.name)}_all"
        if kind == "sumexp":
            # of the running sum and the new term one has the larger maximum; the other is scaled to it
            out.put(f"{op.name}_new = {text}", op.spans)
            new, running = f"{op.name}_new", f"{op.name}_sum"
            far = f"{op.name}_far"
            out.put(f"{far} = tl.where({new} == {total}, 1.0, tl.exp(-tl.abs({total} - {new})))")
            out.put(f"{running} = tl.where({new} > {total}, {running} * {far} + 1.0, {running} + {far})")
            sharing = [n for n, peak in self.peaks.items() if f"{peak}_all" == total]
            if op.name == sharing[-1]:  # before, the next one needs the old maximum
                out.put(f"{total} = tl.maximum({total}, {new}, propagate_nan=tl.PropagateNan.ALL)")
        elif kind == "sum":
            out.put(f"{total} += {text}", op.spans)
        elif kind == "prod":
            out.put(f"{total} *= {text}", op.spans)
        elif kind in ("argmax", "argmin"):
            sign = ">" if kind == "argmax" else "<"
            out.put(f"{op.name}_new = {text}", op.spans)
            new, at = f"{op.name}_new", f"{op.name}_at"
            out.put(f"{op.name}_now = tl.broadcast_to({self._index(position)}, [XBLOCK, {self.block}]).to(tl.int64)")
            now = f"{op.name}_now"
            better = f"({new} {sign} {total}) | (({new} == {total}) & ({now} < {at}))"
            if dtype in ("f32", "f64"):
                better += f" | (({new} != {new}) & ({total} == {total}))"
            if self.fold_mask:
                better = f"({better}) & {self.fold_mask}"
            out.put(f"{op.name}_better = {better}")
            out.put(f"{total} = tl.where({op.name}_better, {new}, {total})")
            out.put(f"{at} = tl.where({op.name}_better, {now}, {at})")
        elif kind in ("any", "all"):
            out.put(f"{total} = {total} {'|' if kind == 'any' else '&'} {text}", op.spans)
        else:
            function = "maximum" if kind == "max" else "minimum"
            nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype in ("f32", "f64") else ""
            out.put(f"{total} = tl.{function}({total}, {text}{nan})", op.spans)

    def _finish(self, op: Op) -> None:
        kind, total = op.args[0], f"{op.name}_all"
        if kind in ("argmax", "argmin"):
            self._define(op, self._place(kind, total, f"{op.name}_at"))
        elif kind == "sumexp":
            lanes, most = f"{self.peaks[op.name]}_all", f"{op.name}_most"
            self.out.put(f"{most} = {self._folded('max', lanes)}", op.spans)
            folded = self._folded("sum", f"{op.name}_sum * tl.exp({lanes} - {most})")
            # as exp(inf - inf) is
            self._define(op, f'tl.where(tl.abs({most}) == float("inf"), float("nan"), {folded})')
        else:
            folded = self._folded(kind, total)
            self._define(op, f"{folded} != 0" if op.dtype == "bool" else folded)

    def _start_scan(self, op: Op) -> None:
        """The carry of a scan whose row takes several blocks."""
        kind, name = op.args
        dtype = next(o.dtype for o in self.kernel.ops() if o.name == name)
        start = 'float("-inf")' if kind == "logsumexp" else self._identity(kind, dtype)
        self.out.put(f"{op.name}_carry = tl.full([XBLOCK, 1], {start}, {TYPES[dtype]})", op.spans)

    def _scan(self, op: Op, *, carried: bool = False) -> None:
        """The running results of a block of columns, after those of the blocks before it where they are ``carried``.

        Columns beyond the row come last, so that they change no result.
        """
        kind, out = op.args[0], self.out
        value = f"tl.broadcast_to({self.slots[op.args[1]].value.text}, [XBLOCK, {self.block}])"
        function = f"scan_{kind}" if kind in ("sum", "logsumexp") else f"fold_{kind}"
        self.need(function)
        block, carry = f"{op.name}_run", f"{op.name}_carry"
        out.put(f"{block} = tl.associative_scan({value}, 1, {function})", op.spans)
        if carried:
            out.put(f"{block} = {function}({carry}, {block})")
            out.put(f"{carry} = {self._last(block)}")
        self._define(op, block)

    def _last(self, block: str) -> str:
        """The last column of a block."""
        columns = f"tl.arange(0, {self.block})[None, :] == {self.block} - 1"
        return f"tl.sum(tl.where({columns}, {block}, 0), 1)[:, None].to({block}.dtype)"


def _is_far(op: Op, phase: Phase) -> bool:
    """Whether the element that an op names may be 2^31 elements from that of another column. Symbolic sizes are wide already."""
    index = index_of(op)
    if index is None:
        return False
    form = linear(index, frozenset(a.name for a in phase.axes))
    steps = [form.coefficients.get(a.name, sympy.S.Zero) * a.size for a in phase.axes]
    return bool(form.tangled) or sum(abs(int(s)) for s in steps if s.is_Integer) >= 2**31
