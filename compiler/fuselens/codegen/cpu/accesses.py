"""Loads, stores, and positions: how the lanes of a vector lie in memory."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from sympy import Expr
from sympy.core.operations import LatticeOp

from ...ir.contracts.source import Unsupported
from ...ir.loops import Op, element, indirect_names
from ..expressions import C, linear, names_in, print_factor, print_index, slopes
from ..operands import Value
from .places import Body, Place
from .values import ValueWriter, lane_zero
from .vectors.parts import REGISTER


class AccessWriter:
    """Prints accesses to memory, and values that are positions. ``pointers``: the argument of each storage."""

    def __init__(self, values: ValueWriter, pointers: Mapping[str, str]) -> None:
        self.values, self.pointers = values, pointers
        self.unit, self.plan, self.out, self.width = values.unit, values.plan, values.out, values.width
        self.iotas: dict[str, str] = {}  # arguments of the iota calls that printed index ops

    def _lanes_of(self, index: Expr, vector: str) -> tuple[str, Expr]:
        """How lanes of an access are laid out, and the step between them: "each", "next", "reversed", "strided", "gather",
        or "limited": as strided, unless a limit (of Min or Max) lies among them."""
        indirect = any(self.values.slots[n].varying for n in indirect_names(index))
        if indirect:
            return "gather", sympy.S.Zero
        if not vector or vector not in names_in(index):
            return "each", sympy.S.Zero
        step = linear(index, frozenset((vector,))).coefficient(vector)
        if step is None:
            step = self._unlimited_step(index, vector)
            return ("gather", sympy.S.Zero) if step is None else ("limited", step)
        return "next" if step == 1 else "reversed" if step == -1 else "strided", step

    def _unlimited_step(self, index: Expr, vector: str) -> Expr | None:
        """The step between lanes that no limit of the index holds back; None where it is not known to be the greatest."""
        found = slopes(index, vector)
        if found is None:
            return None
        step, *others = found
        return step if step.is_positive and all((step - s).is_nonnegative for s in others) else None

    def _limited(self, op: Op, index: Expr, vector: str, step: Expr, at: Place) -> None:
        """A load whose lanes are evenly spaced, but for the few vectors where a limit holds some of them back."""
        dtype, pointer = element(self.unit.graph.buffers[op.args[0]].dtype), self.pointers[op.args[0]]
        out, w, name = self.out, self.width, self.values.names[vector]
        lane, load = self.values.claim(op.name, "_last"), self.values.claim(op.name, "_load")
        self.values.need(f"gather.{dtype}")
        first = self.values.index(index)
        out.put(f"const long {lane} = {name} + {w - 1};", op.spans)
        last = print_index(index, {**self.values.names, vector: lane}, C)
        even = f"({last}) - ({first}) == {print_factor(step * (w - 1), self.values.names)}"
        whole = "" if at.left == str(w) else f"left >= {w} && "
        out.put(f"{self.values.vector(REGISTER[dtype])} {load};")
        out.open(f"if (__builtin_expect({whole}{even}, 1)) {{")
        out.put(f"{load} = {self._strided(pointer, index, step, dtype, str(w))};")
        out.close("} else {")
        out.open("  {")
        offsets = self._offsets(op, index, vector, at)
        out.put(f"{load} = gather{w}({pointer}, {offsets});")
        out.close("  }")
        out.put("}")
        self.values.define(op, load, at)

    def _strided(self, pointer: str, index: Expr, step: Expr, dtype: str, left: str) -> str:
        """A load of evenly spaced elements, as text."""
        address, w = self._address(pointer, index), self.width
        if step == 1:
            self.values.need(f"load.{dtype}")
            return f"load{w}({address}, {left})"
        if step == 2 and w > 1:
            self.values.need(f"every_second.{dtype}")
            return f"load_every_second{w}({address}, {left})"
        self.values.need(f"strided.{dtype}")
        return f"load_strided{w}({address}, {print_index(step, self.values.names)}, {left})"

    def _offsets(self, op: Op, index: Expr, vector: str, at: Place) -> str:
        """Declares an array with one element index per lane."""
        name = self.values.claim(op.name, "_at")
        names = dict(self.values.names)
        for indirect in indirect_names(index):
            names["%" + indirect] = f"{self.values.text(indirect)}[l]"
        out = self.out
        out.put(f"long {name}[{self.width}];", op.spans)
        if vector and vector in names_in(index):
            lane = self.values.claim(op.name, "_lane")
            names[vector] = lane
            inside = "l" if at.left == str(self.width) else "(l < left ? l : 0)"
            out.open(f"for (long l = 0; l < {self.width}; ++l) {{")
            out.put(f"const long {lane} = {self.values.names[vector]} + {inside};")
            out.put(f"{name}[l] = {print_index(index, names, C)};")
            out.close()
        else:
            out.put(f"for (long l = 0; l < {self.width}; ++l) {name}[l] = {print_index(index, names, C)};")
        self.index_parts(index)
        return name

    def index_parts(self, index: Expr) -> None:
        """Scalar helpers that an index expression's text may use."""
        if index.atoms(sympy.Function, LatticeOp):  # the latter: least and greatest
            self.unit.lane_free.update(("floor_div", "min_max"))

    def load(self, op: Op, body: Body, at: Place) -> None:
        vector = body.vector
        storage, index = op.args[0], sympy.sympify(op.args[1])
        dtype = element(self.unit.graph.buffers[storage].dtype)
        pointer, way = self.pointers[storage], self._lanes_of(index, vector)
        self.index_parts(index)
        w = self.width
        if op.name in body.in_tiles:
            self.values.need(f"load.{dtype}")
            self.values.define(op, f"load{w}({body.in_tiles[op.name]}, {at.left})", at)
        elif way[0] == "each":
            self.values.need(f"each.{dtype}")
            self.values.define(op, f"each{w}({self._address(pointer, index)})", at)
        elif way[0] == "next":
            self.values.need(f"load.{dtype}")
            self.values.define(op, f"load{w}({self._address(pointer, index)}, {at.left})", at)
        elif way[0] == "reversed":
            self.values.need(f"reversed.{dtype}")
            self.values.define(op, f"load_reversed{w}({self._address(pointer, index)}, {at.left})", at)
        elif self._two(op, body, at):
            return
        elif way[0] == "strided":
            self.values.define(op, self._strided(pointer, index, way[1], dtype, at.left), at)
        elif way[0] == "limited":
            self._limited(op, index, vector, way[1], at)
        else:
            self.values.need(f"gather.{dtype}")
            offsets = self._offsets(op, index, vector, at)
            self.values.define(op, f"gather{w}({pointer}, {offsets})", at)

    def _address(self, pointer: str, index: Expr) -> str:
        return pointer if index == 0 else f"{pointer} + {self.values.index(index)}"

    def store(self, op: Op, body: Body, at: Place) -> None:
        vector = body.vector
        storage, index, value = op.args[0], sympy.sympify(op.args[1]), self.values.slots[op.args[2]].value
        dtype = element(self.unit.graph.buffers[storage].dtype)
        pointer, way = self.pointers[storage], self._lanes_of(index, vector)
        self.index_parts(index)
        w, out = self.width, self.out
        if op.name in body.in_tiles:
            self.values.need(f"store.{dtype}")
            out.put(f"store{w}({body.in_tiles[op.name]}, {value.text}, {at.left});", op.spans)
            return
        if self._two(op, body, at):
            return
        if op.update and way[0] == "next" and self.plan.layout != "rows":
            value = self._updated(op, f"{self._address(pointer, index)}", value, at)
        elif op.update:
            self.values.need(f"update.{op.update}.{dtype}")
            offsets = self._offsets(op, index, vector, at)
            left = at.left if vector else "1"
            out.put(f"update_{op.update}{w}({pointer}, {offsets}, {value.text}, {left});", op.spans)
            return
        if way[0] == "each":
            self.values.need(f"put.{dtype}")
            if self.values.slots[op.args[2]].varying and self.plan.layout != "rows":
                raise Unsupported(f"store of a value that varies along {vector} to one element")
            out.put(f"put{w}({self._address(pointer, index)}, {lane_zero(value)});", op.spans)
        elif way[0] == "next":
            kind = {True: "stream", False: "stream_any", None: "store"}[self.plan.streams.get(op.name)]
            self.values.need(f"{kind}.{dtype}")
            out.put(f"{kind}{w}({self._address(pointer, index)}, {value.text}, {at.left});", op.spans)
        elif way[0] == "reversed":
            self.values.need(f"store_reversed.{dtype}")
            out.put(f"store_reversed{w}({self._address(pointer, index)}, {value.text}, {at.left});", op.spans)
        elif way[0] == "strided":
            self.values.need(f"store_strided.{dtype}")
            step = print_index(way[1], self.values.names)
            out.put(f"store_strided{w}({self._address(pointer, index)}, {step}, {value.text}, {at.left});", op.spans)
        else:
            self.values.need(f"scatter.{dtype}")
            offsets = self._offsets(op, index, vector, at)
            out.put(f"scatter{w}({pointer}, {offsets}, {value.text}, {at.left});", op.spans)

    def paired(self, body: tuple[Op, ...], levels: Mapping[str, int], vector: str) -> dict[str, Op | None]:
        """Loads and stores of every second element that fill each other's gaps (the parts of complex numbers). Of two loads the
        first has the second, of two stores the second has the first; the other one of them has None."""
        found: dict[str, Op | None] = {}
        waiting: dict[tuple[str, str, Expr], Op] = {}
        written = self.plan.kernel.writes()
        for op in body:
            if op.op not in ("load", "store") or op.update or self.width == 1:
                continue
            storage, index = op.args[0], sympy.sympify(op.args[1])
            others = written if op.op == "load" else self.plan.kernel.reads()
            if self._lanes_of(index, vector) != ("strided", 2) or any(
                self.unit.same_memory(storage, s) for s in others
            ):
                continue
            neighbours = (waiting.pop((op.op, storage, index + d), None) for d in (-1, 1))
            other = next((n for n in neighbours if n is not None), None)
            if other is None:
                waiting[op.op, storage, index] = op
            elif op.op == "store":
                found |= {other.name: None, op.name: other}
            elif levels[other.name] == levels[op.name]:
                found |= {other.name: op, op.name: None}
        return found

    def _two(self, op: Op, body: Body, at: Place) -> bool:
        """Prints two accesses as one, where the op is one of such two."""
        if op.name not in body.partners:
            return False
        other = body.partners[op.name]
        if other is None:
            return True
        first, second = (op, other) if (other.args[1] - op.args[1]).is_positive else (other, op)
        dtype = element(self.unit.graph.buffers[op.args[0]].dtype)
        address = self._address(self.pointers[op.args[0]], sympy.sympify(first.args[1]))
        self.values.need(f"{op.op}_pairs.{dtype}")
        if op.op == "load":
            names = [self.values.claim(o.name, "_half") for o in (first, second)]
            self.out.put(f"{self.values.vector(REGISTER[dtype])} {', '.join(names)};")
            values = [f"&{n}" for n in names]
        else:
            values = [self.values.text(o.args[2]) for o in (first, second)]
        spans = tuple(dict.fromkeys((*op.spans, *other.spans)))
        self.out.put(f"{op.op}_pairs{self.width}({address}, {', '.join(values)}, {at.left});", spans)
        if op.op == "load":
            for o, name in zip((first, second), names, strict=True):
                self.values.define(o, name, at)
        return True

    def _updated(self, op: Op, address: str, value: Value, at: Place) -> Value:
        """What neighbouring elements become: no two lanes change the same."""
        kind, dtype = op.update, op.dtype
        if kind == "last":
            return value
        self.values.need(f"load.{dtype}")
        old = f"load{self.width}({address}, {at.left})"
        if kind in ("sum", "prod"):
            text = f"{old} {'+' if kind == 'sum' else '*'} {value.text}"
        elif dtype == "bool":
            text = f"{old} {'|' if kind == 'max' else '&'} {value.text}"
        else:
            self.values.need(f"{kind}.{REGISTER[dtype]}")
            text = f"{kind}({old}, {value.text})"
        if dtype in ("f16", "bf16"):
            self.values.need(f"round_{dtype}")
            text = f"round_{dtype}({text})"
        return Value(text, dtype)

    # --- positions ---

    def random(self, op: Op, vector: str, at: Place) -> None:
        """Words of a stream; where lanes want neighbours, blocks of four are computed together."""
        index = sympy.sympify(op.args[3])
        keys = ", ".join(f"{self.values.text(k)}[0]" for k in op.args[:2])
        if self._lanes_of(index, vector)[0] == "next" and self.width >= 4:
            self.index_parts(index)
            self.values.need("random.next")
            self.values.define(op, f"random_next{self.width}({keys}, {op.args[2]}, {self.values.index(index)})", at)
        else:
            self.values.need("random.at")
            self.values.define(
                op, f"random_at{self.width}({keys}, {op.args[2]}, {self._positions(op, index, vector, at)})", at
            )

    def bounds(self, op: Op, at: Place) -> None:
        """A checked position: one number where all lanes have the same."""
        name, size, wrap = op.args
        text, n = self.values.text(name), print_index(size, self.values.names)
        self.index_parts(sympy.sympify(size))
        if wrap:
            self.values.need("wrap")
            text = f"wrap({text}, {n})"
        if self.values.slots[name].varying:
            self.values.need("bounds")
            self.values.define(op, f"bounds{self.width}({text}, {n}, {at.left})", at)
        else:
            self.values.need("bound")
            self.values.define(op, self.values.splat("i64", f"bound(({text})[0], {n})"), at)

    def _positions(self, op: Op, index: Expr, vector: str, at: Place) -> str:
        """The value of an index expression, lane by lane where it varies."""
        self.index_parts(index)
        way, step = self._lanes_of(index, vector)
        if way == "each":
            return self.values.splat("i64", self.values.index(index))
        if way not in ("gather", "limited"):
            self.values.need("iota")
            self.iotas[op.name] = f"{self.values.index(index)}, {print_index(step, self.values.names)}"
            return f"iota{self.width}({self.iotas[op.name]})"
        offsets = self._offsets(op, index, vector, at)
        self.values.need("load.i64")
        return f"load{self.width}({offsets}, {self.width})"

    def index_value(self, op: Op, vector: str, at: Place) -> None:
        text = self._positions(op, sympy.sympify(op.args[0]), vector, at)
        register = REGISTER[op.dtype]
        if register != "i64":
            text = f"__builtin_convertvector({text}, {self.values.vector(register)})"
        self.values.define(op, text, at)
