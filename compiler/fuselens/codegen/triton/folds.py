"""Reductions and scans of a phase's columns as Triton: of all columns at once, or block by block with running results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sympy import Expr

from ...ir.loops import Op, Phase
from .choices.row_plan import Division
from .operations import Operations
from .scalar_ops import TYPES, literal


@dataclass(frozen=True, slots=True)
class Columns:
    """A phase's columns as the text names them: ``name`` each, and ``block`` the size of their block. ``parts`` programs share
    a row."""

    division: Division
    block: str
    name: str
    size: str  # how many there are
    parts: int
    places: str  # the dtype that holds the number of any of them

    @property
    def mask(self) -> str:
        return "" if self.division.exact else f"{self.name}mask"


class Folds:
    """Writes what a phase folds. Where a sum of exponentials has the value of a maximum, they share it."""

    def __init__(self, operations: Operations, phase: Phase, columns: Columns) -> None:
        self.operations, self.columns = operations, columns
        self.out = operations.out
        self.shape = f"[XBLOCK, {columns.block}]"
        self.folds = [op for op in phase.body if op.op == "reduce"]
        self.scans = [op for op in phase.body if op.op == "scan"]
        self.peaks = _peaks(self.folds)

    def start(self) -> None:
        """Running results before any column."""
        for op in self.folds:
            self._start(op)
        for op in self.scans:
            self._start_scan(op)

    def finish(self) -> None:
        """The results of the running ones."""
        for op in self.folds:
            self._finish(op)

    def _kept(self, op: Op) -> tuple[str, str]:
        """The folded value with masked columns at the identity, as a full block; and its dtype."""
        kind, name = op.args
        value = self.operations.slots[name].value
        text, dtype = value.text, value.dtype
        if dtype == "bool":
            text, dtype = f"{text}.to(tl.int32)", "i32"
        text = f"tl.broadcast_to({text}, {self.shape})"
        if self.columns.mask:
            text = f"tl.where({self.columns.mask}, {text}, {_identity(kind, dtype)})"
        return text, dtype

    def _folded(self, kind: str, text: str) -> str:
        """A block folded over its columns, as a column."""
        if self.columns.parts > 1:
            return self._shared(kind, text)
        if kind == "sum":
            return f"tl.sum({text}, 1)[:, None]"
        if kind in ("any", "all"):
            return f"tl.{'max' if kind == 'any' else 'min'}({text}, 1)[:, None]"
        self.operations.need(f"fold_{kind}")
        return f"tl.reduce({text}, 1, fold_{kind})[:, None]"

    def _shared(self, kind: str, text: str) -> str:
        """A row folded by the programs that have parts of it."""
        function = f"{kind}_of_{self.columns.parts}"
        self.operations.need(function)
        simple = {"sum": "sum", "any": "max", "all": "min"}.get(kind)
        if simple is None:
            self.operations.need(f"fold_{kind}")
        return f"{function}({f'tl.{simple}({text})' if simple else f'tl.reduce({text}, None, fold_{kind})'})"

    def at_once(self, op: Op, position: Expr) -> None:
        """A reduction of all columns. ``position`` is a column's number before axes were merged."""
        kind = op.args[0]
        text, _ = self._kept(op)
        if kind in ("argmax", "argmin"):
            at = self.operations.claim(op.name + "_at")
            self.out.put(f"{op.name}_all = {text}")
            self.out.put(f"{at} = {self._positions(position, {})}")
            if self.columns.mask:
                self.out.put(f"{at} = tl.where({self.columns.mask}, {at}, {_identity('min', self.columns.places)})")
            self.operations.define(op, self._place(kind, f"{op.name}_all", at))
            return
        if kind == "sumexp":
            self.out.put(f"{op.name}_all = {text}", op.spans)
            peak = self.peaks[op.name] if self.columns.parts > 1 else op.name
            most = (
                self.operations.text(peak) if peak in self.operations.slots else self._folded("max", f"{op.name}_all")
            )
            self.operations.define(op, self._folded("sum", f"tl.exp({op.name}_all - {most})"))
            return
        folded = self._folded(kind, text)
        self.operations.define(op, f"{folded} != 0" if op.dtype == "bool" else folded)

    def _place(self, kind: str, values: str, at: str) -> str:
        """The lowest index among the columns that hold the best value; NaN counts as best."""
        best = self._folded(kind[3:], values)
        name = f"{values}_best"
        self.out.put(f"{name} = {best}")
        chosen = f"({values} == {name}) | (({values} != {values}) & ({name} != {name}))"
        lowest = f"tl.where({chosen}, {at}, {_identity('min', self.columns.places)})"
        found = self._shared("min", lowest) if self.columns.parts > 1 else f"tl.min({lowest}, 1)[:, None]"
        return f"{found}.to(tl.int64)"

    def _positions(self, position: Expr, held: Mapping[Expr, str]) -> str:
        """The columns' numbers, as a full block."""
        text = self.operations.index(position, held)
        return f"tl.broadcast_to({text}, {self.shape}).to({TYPES[self.columns.places]})"

    def _start(self, op: Op) -> None:
        kind, name = op.args
        dtype = next((o.dtype for o in self.operations.kernel.ops() if o.name == name), "f32")
        dtype = "i32" if dtype == "bool" else dtype
        if kind == "sumexp":
            self.out.put(f"{op.name}_sum = tl.full({self.shape}, 0, {TYPES[dtype]})", op.spans)
            if self.peaks[op.name] != op.name:
                return
        self.out.put(f"{op.name}_all = tl.full({self.shape}, {_identity(kind, dtype)}, {TYPES[dtype]})", op.spans)
        if kind in ("argmax", "argmin"):
            places = self.columns.places
            self.out.put(f"{op.name}_at = tl.full({self.shape}, {_identity('min', places)}, {TYPES[places]})")

    def add(self, op: Op, position: Expr, held: Mapping[Expr, str]) -> None:
        """Adds a block of columns to a running result. ``held`` are indices that variables hold."""
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
            now = f"{op.name}_now"
            out.put(f"{now} = {self._positions(position, held)}")
            better = f"({new} {sign} {total}) | (({new} == {total}) & ({now} < {at}))"
            if dtype in ("f32", "f64"):
                better += f" | (({new} != {new}) & ({total} == {total}))"
            if self.columns.mask:
                better = f"({better}) & {self.columns.mask}"
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
            self.operations.define(op, self._place(kind, total, f"{op.name}_at"))
        elif kind == "sumexp":
            lanes, most = f"{self.peaks[op.name]}_all", f"{op.name}_most"
            self.out.put(f"{most} = {self._folded('max', lanes)}", op.spans)
            folded = self._folded("sum", f"{op.name}_sum * tl.exp({lanes} - {most})")
            # as exp(inf - inf) is
            self.operations.define(op, f'tl.where(tl.abs({most}) == float("inf"), float("nan"), {folded})')
        else:
            folded = self._folded(kind, total)
            self.operations.define(op, f"{folded} != 0" if op.dtype == "bool" else folded)

    def _start_scan(self, op: Op) -> None:
        """The carry of a scan whose row takes several blocks."""
        kind, name = op.args
        dtype = next(o.dtype for o in self.operations.kernel.ops() if o.name == name)
        start = 'float("-inf")' if kind == "logsumexp" else _identity(kind, dtype)
        self.out.put(f"{op.name}_carry = tl.full([XBLOCK, 1], {start}, {TYPES[dtype]})", op.spans)

    def scan(self, op: Op, *, carried: bool) -> None:
        """The running results of a block of columns, after those of the blocks before it where they are ``carried``.

        Columns beyond the row come last, so that they change no result.
        """
        kind, out = op.args[0], self.out
        value = f"tl.broadcast_to({self.operations.text(op.args[1])}, {self.shape})"
        function = f"scan_{kind}" if kind in ("sum", "logsumexp") else f"fold_{kind}"
        self.operations.need(function)
        block, carry = f"{op.name}_run", f"{op.name}_carry"
        out.put(f"{block} = tl.associative_scan({value}, 1, {function})", op.spans)
        if carried:
            out.put(f"{block} = {function}({carry}, {block})")
            out.put(f"{carry} = {self._last(block)}")
        self.operations.define(op, f"{block} + 0.0" if kind == "logsumexp" else block)  # eager begins at log(0)

    def _last(self, block: str) -> str:
        """The last column of a block."""
        columns = f"tl.arange(0, {self.columns.block})[None, :] == {self.columns.block} - 1"
        return f"tl.sum(tl.where({columns}, {block}, 0), 1)[:, None].to({block}.dtype)"


def _peaks(folds: Sequence[Op]) -> dict[str, str]:
    """Sums of exponentials, and whose running maximum they share."""
    found = {op.args[1]: op.name for op in folds if op.args[0] == "max"}
    return {op.name: found.get(op.args[1], op.name) for op in folds if op.args[0] == "sumexp"}


def _identity(kind: str, dtype: str) -> str:
    """What changes no result of a fold."""
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
