"""Loads, stores, and positions: how the lanes of a vector lie in memory."""

from __future__ import annotations

import sympy
from sympy import Expr
from sympy.core.operations import LatticeOp

from ...ir.contracts.source import Unsupported, Writer
from ...ir.loops import Kernel, Op, element, indirect_names
from ..expressions import C, linear, names_in, print_factor, print_index, slopes
from ..operands import Value
from .choices.streams import streams
from .unit import Unit
from .values import ValueWriter, lane_zero
from .vectors.parts import REGISTER


class AccessWriter(ValueWriter):
    """Prints accesses to memory, and values that are positions."""

    def __init__(self, unit: Unit, kernel: Kernel, out: Writer) -> None:
        super().__init__(unit, kernel, out)
        self.pointers: dict[str, str] = {}
        self.written = frozenset(self.kernel.writes())
        self.streams = streams(self.nest, self.plan, unit, self.width)
        self.partners: dict[str, Op | None] = {}  # see _paired
        self.iotas: dict[str, str] = {}  # arguments of the iota calls that printed index ops

    def _lanes_of(self, index: Expr, vector: str) -> tuple[str, Expr]:
        """How lanes of an access are laid out, and the step between them: "each", "next", "reversed", "strided", "gather",
        or "limited": as strided, unless a limit (of Min or Max) lies among them."""
        indirect = any(self.slots[n].varying for n in indirect_names(index))
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

    def _limited(self, op: Op, index: Expr, vector: str, step: Expr) -> None:
        """A load whose lanes are evenly spaced, but for the few vectors where a limit holds some of them back."""
        dtype, pointer = element(self.unit.graph.buffers[op.args[0]].dtype), self.pointers[op.args[0]]
        out, w, name = self.out, self.width, self.names[vector]
        lane, load = self.claim(op.name, "_last"), self.claim(op.name, "_load")
        self.need(f"gather.{dtype}")
        first = self._index(index)
        out.put(f"const long {lane} = {name} + {w - 1};", op.spans)
        last = print_index(index, {**self.names, vector: lane}, C)
        even = f"({last}) - ({first}) == {print_factor(step * (w - 1), self.names)}"
        whole = "" if self.left == str(w) else f"left >= {w} && "
        out.put(f"{self.vector(REGISTER[dtype])} {load};")
        out.open(f"if (__builtin_expect({whole}{even}, 1)) {{")
        out.put(f"{load} = {self._strided(pointer, index, step, dtype, str(w))};")
        out.close("} else {")
        out.open("  {")
        at = self._offsets(op, index, vector)
        out.put(f"{load} = gather{w}({pointer}, {at});")
        out.close("  }")
        out.put("}")
        self._define(op, load)

    def _strided(self, pointer: str, index: Expr, step: Expr, dtype: str, left: str) -> str:
        """A load of evenly spaced elements, as text."""
        address, w = self._address(pointer, index), self.width
        if step == 1:
            self.need(f"load.{dtype}")
            return f"load{w}({address}, {left})"
        if step == 2 and w > 1:
            self.need(f"every_second.{dtype}")
            return f"load_every_second{w}({address}, {left})"
        self.need(f"strided.{dtype}")
        return f"load_strided{w}({address}, {print_index(step, self.names)}, {left})"

    def _offsets(self, op: Op, index: Expr, vector: str) -> str:
        """Declares an array with one element index per lane."""
        name = self.claim(op.name, "_at")
        names = dict(self.names)
        for indirect in indirect_names(index):
            names["%" + indirect] = f"{self._text(indirect)}[l]"
        out = self.out
        out.put(f"long {name}[{self.width}];", op.spans)
        if vector and vector in names_in(index):
            lane = self.claim(op.name, "_lane")
            names[vector] = lane
            inside = "l" if self.left == str(self.width) else "(l < left ? l : 0)"
            out.open(f"for (long l = 0; l < {self.width}; ++l) {{")
            out.put(f"const long {lane} = {self.names[vector]} + {inside};")
            out.put(f"{name}[l] = {print_index(index, names, C)};")
            out.close()
        else:
            out.put(f"for (long l = 0; l < {self.width}; ++l) {name}[l] = {print_index(index, names, C)};")
        self._index_parts(index)
        return name

    def _index_parts(self, index: Expr) -> None:
        """Scalar helpers that an index expression's text may use."""
        if index.atoms(sympy.Function, LatticeOp):  # the latter: least and greatest
            self.unit.lane_free |= {"floor_div", "min_max"}

    def _load(self, op: Op, vector: str) -> None:
        storage, index = op.args[0], sympy.sympify(op.args[1])
        dtype = element(self.unit.graph.buffers[storage].dtype)
        pointer, way = self.pointers[storage], self._lanes_of(index, vector)
        self._index_parts(index)
        w = self.width
        if way[0] == "each":
            self.need(f"each.{dtype}")
            self._define(op, f"each{w}({self._address(pointer, index)})")
        elif way[0] == "next":
            self.need(f"load.{dtype}")
            self._define(op, f"load{w}({self._address(pointer, index)}, {self.left})")
        elif way[0] == "reversed":
            self.need(f"reversed.{dtype}")
            self._define(op, f"load_reversed{w}({self._address(pointer, index)}, {self.left})")
        elif self._two(op):
            return
        elif way[0] == "strided":
            self._define(op, self._strided(pointer, index, way[1], dtype, self.left))
        elif way[0] == "limited":
            self._limited(op, index, vector, way[1])
        else:
            self.need(f"gather.{dtype}")
            at = self._offsets(op, index, vector)
            self._define(op, f"gather{w}({pointer}, {at})")

    def _address(self, pointer: str, index: Expr) -> str:
        return pointer if index == 0 else f"{pointer} + {self._index(index)}"

    def _store(self, op: Op, vector: str) -> None:
        storage, index, value = op.args[0], sympy.sympify(op.args[1]), self.slots[op.args[2]].value
        dtype = element(self.unit.graph.buffers[storage].dtype)
        pointer, way = self.pointers[storage], self._lanes_of(index, vector)
        self._index_parts(index)
        w, out = self.width, self.out
        if self._two(op):
            return
        if op.update and way[0] == "next" and self.plan.layout != "rows":
            value = self._updated(op, f"{self._address(pointer, index)}", value)
        elif op.update:
            self.need(f"update.{op.update}.{dtype}")
            at = self._offsets(op, index, vector)
            left = self.left if vector else "1"
            out.put(f"update_{op.update}{w}({pointer}, {at}, {value.text}, {left});", op.spans)
            return
        if way[0] == "each":
            self.need(f"put.{dtype}")
            if self.slots[op.args[2]].varying and self.plan.layout != "rows":
                raise Unsupported(f"store of a value that varies along {vector} to one element")
            out.put(f"put{w}({self._address(pointer, index)}, {lane_zero(value)});", op.spans)
        elif way[0] == "next":
            kind = {True: "stream", False: "stream_any", None: "store"}[self.streams.get(op.name)]
            self.need(f"{kind}.{dtype}")
            out.put(f"{kind}{w}({self._address(pointer, index)}, {value.text}, {self.left});", op.spans)
        elif way[0] == "reversed":
            self.need(f"store_reversed.{dtype}")
            out.put(f"store_reversed{w}({self._address(pointer, index)}, {value.text}, {self.left});", op.spans)
        elif way[0] == "strided":
            self.need(f"store_strided.{dtype}")
            step = print_index(way[1], self.names)
            out.put(f"store_strided{w}({self._address(pointer, index)}, {step}, {value.text}, {self.left});", op.spans)
        else:
            self.need(f"scatter.{dtype}")
            at = self._offsets(op, index, vector)
            out.put(f"scatter{w}({pointer}, {at}, {value.text}, {self.left});", op.spans)

    def _close_streams(self) -> None:
        """Lets other threads see what was stored past the caches."""
        if self.streams:
            self.out.put("__builtin_ia32_sfence();")

    def _paired(self, body: tuple[Op, ...], vector: str) -> dict[str, Op | None]:
        """Loads and stores of every second element that fill each other's gaps (the parts of complex numbers). Of two loads the
        first has the second, of two stores the second has the first; the other one of them has None."""
        found: dict[str, Op | None] = {}
        waiting: dict[tuple[str, str, Expr], Op] = {}
        written = self.kernel.writes()
        for op in body:
            if op.op not in ("load", "store") or op.update or self.width == 1:
                continue
            storage, index = op.args[0], sympy.sympify(op.args[1])
            others = written if op.op == "load" else self.kernel.reads()
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
            elif self.slots[other.name].level == self.slots[op.name].level:
                found |= {other.name: op, op.name: None}
        return found

    def _two(self, op: Op) -> bool:
        """Prints two accesses as one, where the op is one of such two."""
        if op.name not in self.partners:
            return False
        other = self.partners[op.name]
        if other is None:
            return True
        first, second = (op, other) if (other.args[1] - op.args[1]).is_positive else (other, op)
        dtype = element(self.unit.graph.buffers[op.args[0]].dtype)
        address = self._address(self.pointers[op.args[0]], sympy.sympify(first.args[1]))
        self.need(f"{op.op}_pairs.{dtype}")
        if op.op == "load":
            names = [self.claim(o.name, "_half") for o in (first, second)]
            self.out.put(f"{self.vector(REGISTER[dtype])} {', '.join(names)};")
            values = [f"&{n}" for n in names]
        else:
            values = [self._text(o.args[2]) for o in (first, second)]
        spans = tuple(dict.fromkeys((*op.spans, *other.spans)))
        self.out.put(f"{op.op}_pairs{self.width}({address}, {', '.join(values)}, {self.left});", spans)
        if op.op == "load":
            for o, name in zip((first, second), names, strict=True):
                self._define(o, name)
        return True

    def _updated(self, op: Op, address: str, value: Value) -> Value:
        """What neighbouring elements become: no two lanes change the same."""
        kind, dtype = op.update, op.dtype
        if kind == "last":
            return value
        self.need(f"load.{dtype}")
        old = f"load{self.width}({address}, {self.left})"
        if kind in ("sum", "prod"):
            text = f"{old} {'+' if kind == 'sum' else '*'} {value.text}"
        elif dtype == "bool":
            text = f"{old} {'|' if kind == 'max' else '&'} {value.text}"
        else:
            self.need(f"{kind}.{REGISTER[dtype]}")
            text = f"{kind}({old}, {value.text})"
        if dtype in ("f16", "bf16"):
            self.need(f"round_{dtype}")
            text = f"round_{dtype}({text})"
        return Value(text, dtype)

    # --- positions ---

    def _random(self, op: Op, vector: str) -> None:
        """Words of a stream; where lanes want neighbours, blocks of four are computed together."""
        index = sympy.sympify(op.args[3])
        keys = ", ".join(f"{self._text(k)}[0]" for k in op.args[:2])
        if self._lanes_of(index, vector)[0] == "next" and self.width >= 4:
            self._index_parts(index)
            self.need("random.next")
            self._define(op, f"random_next{self.width}({keys}, {op.args[2]}, {self._index(index)})")
        else:
            self.need("random.at")
            self._define(op, f"random_at{self.width}({keys}, {op.args[2]}, {self._positions(op, index, vector)})")

    def _bounds(self, op: Op) -> None:
        """A checked position: one number where all lanes have the same."""
        name, size, wrap = op.args
        text, n = self._text(name), print_index(size, self.names)
        self._index_parts(sympy.sympify(size))
        if wrap:
            self.need("wrap")
            text = f"wrap({text}, {n})"
        if self.slots[name].varying:
            self.need("bounds")
            self._define(op, f"bounds{self.width}({text}, {n}, {self.left})")
        else:
            self.need("bound")
            self._define(op, self._splat("i64", f"bound(({text})[0], {n})"))

    def _positions(self, op: Op, index: Expr, vector: str) -> str:
        """The value of an index expression, lane by lane where it varies."""
        self._index_parts(index)
        way, step = self._lanes_of(index, vector)
        if way == "each":
            return self._splat("i64", self._index(index))
        if way not in ("gather", "limited"):
            self.need("iota")
            self.iotas[op.name] = f"{self._index(index)}, {print_index(step, self.names)}"
            return f"iota{self.width}({self.iotas[op.name]})"
        at = self._offsets(op, index, vector)
        self.need("load.i64")
        return f"load{self.width}({at}, {self.width})"

    def _index_value(self, op: Op, vector: str) -> None:
        text = self._positions(op, sympy.sympify(op.args[0]), vector)
        register = REGISTER[op.dtype]
        if register != "i64":
            text = f"__builtin_convertvector({text}, {self.vector(register)})"
        self._define(op, text)
