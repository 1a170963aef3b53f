"""Reductions and scans: running results before, inside and behind the loops."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr

from ...ir.contracts.source import Unsupported, Writer
from ...ir.loops import Kernel, Op
from ..expressions import linear, print_index
from ..nest import few
from ..operands import Value
from .accesses import AccessWriter
from .scalar_ops import literal, wrap
from .scans import Scan, identity, started
from .unit import Unit
from .values import BodyLoop, Slot
from .vectors.maths_parts import ARG_NONE
from .vectors.parts import REGISTER


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


class FoldWriter(AccessWriter):
    """Prints what reductions and scans carry from point to point."""

    def __init__(self, unit: Unit, kernel: Kernel, out: Writer) -> None:
        super().__init__(unit, kernel, out)
        self.scans: dict[str, Scan] = {}

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

    # --- scans ---

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
