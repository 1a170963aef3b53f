"""Reductions and scans: running results before, inside and behind the loops."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.contracts.source import Unsupported
from ...ir.loops import Op
from ..expressions import linear, print_index
from ..nest import few
from ..operands import Value
from .places import Body, BodyLoop, Fold, Place
from .scalar_ops import literal, wrap
from .scans import Scan, identity, started
from .values import Slot, ValueWriter
from .vectors.maths_parts import ARG_NONE
from .vectors.parts import REGISTER


class FoldWriter:
    """Prints what reductions and scans carry from point to point."""

    def __init__(self, values: ValueWriter) -> None:
        self.values = values
        self.plan, self.out, self.width = values.plan, values.out, values.width

    # --- reductions ---

    def begun(self, op: Op, loops: Sequence[BodyLoop]) -> Fold:
        kind, value = op.args
        dtype = self.values.slots[value].value.dtype
        place = "i32" if not self.values.wide and few(l.axis for l in loops) else "i64"
        return Fold(op, kind, REGISTER[dtype], dtype, place, len(loops) == 1, self.values.claim(op.name, "_all"))

    def _identity(self, fold: Fold) -> str:
        kind, dtype = fold.kind, fold.dtype
        return literal(kind == "all", "bool") if kind in ("any", "all") else identity(kind, dtype)

    def accumulator(self, fold: Fold) -> str:
        """The C++ type of a running result."""
        if fold.extreme:
            self.values.need(f"arg.{fold.kind[3:]}.{fold.register}.{fold.place}")
            return f"{fold.extreme}_{fold.register}_{fold.place}_{self.width}"
        return self.values.vector(fold.register)

    def start(self, fold: Fold) -> str:
        """The initialiser of a running result: the identity."""
        identity = self._identity(fold)
        if fold.extreme:
            return f"{{{self.values.splat(fold.register, identity)}, {self.values.splat(fold.place, ARG_NONE[fold.place])}}}"
        if identity in ("0", "0L", "0.0f", "0.0"):
            return "{}"
        if fold.register == "mask":
            return f"({self.values.vector('mask')}{{}} + ({identity}))"
        return self.values.splat(fold.register, identity)

    def declare(self, fold: Fold, at: Place) -> None:
        """The running result (one per vector side by side), and the carry of a compensated sum."""
        kind, name, start = self.accumulator(fold), fold.name, self.start(fold)
        if at.strip:
            self.out.put(f"{kind} {name}{at.many};", fold.op.spans)
            self.out.put(f"{at.each_vector} {name}[u] = {start if start[0] != '{' else kind + start};")
            if self.compensated(fold):
                self.out.put(f"{kind} {name}_carry{at.many};")
                self.out.put(f"{at.each_vector} {name}_carry[u] = {kind}{{}};")
            return
        if at.across > 1:
            start = f"{{{', '.join([start] * at.across)}}}"
        self.out.put(f"{kind} {name}{at.many} = {start};", fold.op.spans)
        if self.compensated(fold):
            self.out.put(f"{kind} {name}_carry{at.many} = {{}};")

    def compensated(self, fold: Fold) -> bool:
        """Whether rounding errors are carried along: by all sums of floats, unless they need not be exact."""
        return fold.kind == "sum" and fold.register in ("f32", "f64") and not self.values.fast

    def combine(self, fold: Fold, into: str, part: str) -> None:
        """Adds one running result to another."""
        if fold.extreme:
            self.out.put(f"{fold.extreme}(&{into}, {part}.best, {part}.at);")
        else:
            self.out.put(self._combined(fold, into, part))

    def _combined(self, fold: Fold, into: str, value: str) -> str:
        kind = fold.kind
        if kind == "sum":
            return f"{into} += {value};"
        if kind == "prod":
            return f"{into} *= {value};"
        if kind in ("any", "all"):
            return f"{into} {'|' if kind == 'any' else '&'}= {value};"
        self.values.need(f"{kind}.{fold.register}")
        return f"{into} = {kind}({value}, {into});"  # of equal operands the second is kept: the first met

    def accumulate(self, op: Op, body: Body, at: Place) -> None:
        fold, vector = next(f for f in body.folds if f.op is op), body.vector
        value = self.values.text(op.args[1])
        rows = bool(vector) and self.plan.layout in ("rows", "whole")
        cut = rows and at.left != str(self.width)
        if cut:
            self.values.need(f"keep.{fold.register}")
            value = f"keep_{fold.register}({value}, left, {self._identity(fold)})"
        if not fold.extreme:
            self.out.put(self._combined(fold, fold.into, value), op.spans)
            return
        self.values.need("iota")
        position = self.values.index(body.position)
        if rows:
            step = linear(body.position, frozenset((vector,))).coefficient(vector)
            if step is None:
                raise Unsupported(f"{fold.kind} over tangled axes")
            iota = "iota32_" if fold.place == "i32" else "iota"
            place = f"{iota}{self.width}({position}, {print_index(step, self.values.names)})"
        else:
            place = self.values.splat(fold.place, position)
        if cut:
            self.values.need(f"keep.{fold.place}")
            place = f"keep_{fold.place}({place}, left, {ARG_NONE[fold.place]})"
        self.out.put(f"{fold.extreme}{'_next' if fold.rising else ''}(&{fold.into}, {value}, {place});", op.spans)

    def finish(self, fold: Fold, at: Place, *, across: bool) -> None:
        """Declares the result under the op's own name; across lanes when they were partial results of one point."""
        name = self.values.claim(fold.op.name)
        register = REGISTER[fold.op.dtype]
        text = fold.name + at.each
        if fold.extreme:
            text = f"fold_{fold.extreme}({text})" if across else f"arg_place({text})"
        elif across and self.width > 1:
            self.values.need(f"fold.{fold.kind}.{fold.register}")
            text = f"fold_{fold.kind}({text})"
        if register == "i32":
            text = wrap(text, fold.op.dtype)
        kind = self.values.vector(register)
        if at.across > 1:
            self.out.put(f"{kind} {name}{at.many};", fold.op.spans)
            self.out.put(f"{at.each_vector} {name}[u] = {text};", fold.op.spans)
        else:
            self.out.put(f"const {kind} {name} = {text};", fold.op.spans)
        varying = not across and self.plan.layout == "columns"
        self.values.slots[fold.op.name] = Slot(Value(name + at.each, fold.op.dtype), varying)

    # --- scans ---

    def declare_scans(self, ops: Sequence[Op], at: Place) -> dict[str, Scan]:
        """The scans of a phase, by op, with their carries declared."""
        scans: dict[str, Scan] = {}
        for op in ops:
            if op.op == "scan":
                dtype = self.values.slots[op.args[1]].value.dtype
                scan = started(op, dtype, self.width, self.values.splat, self.values.claim(op.name, "_carry"))
                self.values.need(f"scan.{scan.kind}.{REGISTER[dtype]}")
                scans[op.name] = scan
                start = f"{{ {', '.join([scan.none] * at.across)} }}" if at.many else scan.none
                self.out.put(f"{scan.state} {scan.carry}{at.many} = {start};", op.spans)
        return scans

    def scan(self, op: Op, body: Body, at: Place) -> None:
        """One step of a scan: the results of a vector's elements, or of one element of each lane's own column."""
        scan, value = body.scans[op.name], self.values.text(op.args[1])
        if scan.kind == "logsumexp":
            value += ", " + self.values.splat("f64", "1.0")
        element = f"{scan.state}{{ {value} }}"
        if self.plan.layout in ("rows", "whole"):
            none = f"{scan.state}{scan.none}"
            if at.left != str(self.width):
                element = f"keep({element}, left, {none})"
            result = f"scan_lanes({element}, {none}, &{scan.into})"
        else:
            result = f"scan_each({element}, &{scan.into})"
        if scan.before:
            result = f"join({scan.before}, {result})"
        text = scan.value(result)
        self.values.define(op, wrap(text, op.dtype) if REGISTER[op.dtype] == "i32" else text, at)
