"""Attention as one Triton kernel: a program has some rows of the heads that share keys, and walks keys block by block.

It holds the sum of the values so far, weighted by exponentials below the largest score so far, and rescales it where that
grows. What the graph makes of scores, masks above all, is written as in any kernel, for a block of rows and keys.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy
from sympy import Expr

from ...ir.contracts.source import KernelInfo
from ...ir.loops import ITEMSIZE, Attention, Buffer, Kernel, Phase
from ..expressions import TRITON, print_index
from ..operands import Value
from .choices.attention_plan import AttentionPlan
from .operations import Operations
from .place import Place, Slot
from .scalar_ops import TYPES

_LOCALS = tuple(
    "program m d e j group band part rows seen query keys values score top total mean first last begin start new level weight far".split()
)


def kernel_of(node: Attention) -> Kernel:
    """What the graph makes of the node's scores."""
    return Kernel(node.name, node.axes, (Phase((), node.body),), origins=(node.origin,), spans=node.spans)


class AttentionWriter:
    def __init__(self, operations: Operations, node: Attention, plan: AttentionPlan) -> None:
        self.operations, self.node, self.plan = operations, node, plan
        self.out, self.names = operations.out, operations.names
        buffers = operations.graph.buffers
        self.query, self.key, self.value = (buffers[n] for n in node.operands())
        self.made = tuple(buffers[n] for n in node.outputs)
        _, head, row, key = (a.name for a in node.axes)
        rows, keys = frozenset((head, row)), frozenset((key,))
        self.place = Place(("ROWS", "KEYS"), (rows, keys)).limited(rows, plan.row_mask).limited(keys, plan.key_mask)

    def info(self) -> KernelInfo:
        """What a caller has to know."""
        node, buffers = self.node, self.operations.graph.buffers
        loaded = dict.fromkeys(o.args[0] for o in node.body if o.op == "load")
        inputs, written = (self.query, self.key, self.value), tuple(b.owner for b in self.made)
        return KernelInfo(
            name=node.name, kind="attention", arguments=tuple(dict.fromkeys((*(b.owner for b in inputs), *loaded, *written))),
            written=written, sizes=self._sizes(), operations=(node.origin,) if node.origin else (), spans=node.spans,
            bytes_read=_bytes((*inputs, *(buffers[n] for n in loaded))), bytes_written=_bytes(self.made),
        )  # fmt: skip

    def _sizes(self) -> tuple[str, ...]:
        found: set[str] = set(self.operations.kernel.size_symbols())
        for buffer in (self.query, self.key, self.value, *self.made):
            for e in (*buffer.sizes, *buffer.strides, buffer.offset):
                found |= {s.name for s in e.free_symbols}  # pyright: ignore
        return tuple(sorted(found))

    def write(self, info: KernelInfo) -> None:
        node, out, plan, operations = self.node, self.out, self.plan, self.operations
        self.names.update({f"%{n}": n for n in _LOCALS})
        for name in (*info.arguments, *info.sizes, *(a.name for a in node.axes)):
            operations.claim(name)
        operations.slots["score"] = Slot(Value("score", "f32"), True)
        self._open_rows()
        self._start()
        first, last = self._keys()
        out.open(f"for start in range({first}, {last}, KEYS):")
        out.put(f"j = start + tl.arange(0, KEYS){'.to(tl.int64)' if operations.wide else ''}")
        out.put(f"{self.names[node.axes[3].name]} = j[None, :]")
        if not plan.whole_keys:
            out.put(f"seen = {self.names[node.axes[3].name]} < {last}")
        operations.straight(plan.body.early, self.place)  # under way while keys are waited for
        self._load_block(last)
        self._score()
        self._add_block()
        out.close("")
        self._store_rows()

    def _open_rows(self) -> None:
        """Declares which rows of which heads a program has, and loads them."""
        node, out, plan, group = self.node, self.out, self.plan, self.plan.group
        batch, heads, row, _ = (self.names[a.name] for a in node.axes)
        out.put(f"program = {self.operations.program()}")
        for name, count in (("part", sympy.Integer(node.splits)), ("band", plan.bands), ("group", plan.groups)):
            if count == 1:
                out.put(f"{name} = 0")
            else:
                out.put(f"{name} = program % {self.operations.size(count)}")
                out.put(f"program = program // {self.operations.size(count)}")
        if plan.ahead is not None and plan.bands != 1:
            out.put(f"band = {self.operations.size(plan.bands - 1)} - band  # those with most keys first")
        out.put(f"{batch} = program")
        out.put("m = band * ROWS + tl.arange(0, ROWS)[:, None]")
        out.put(f"{row} = m // {group}" if group > 1 else f"{row} = m")
        out.put(f"{heads} = group * {group} + m % {group}" if group > 1 else f"{heads} = group + m * 0")
        if plan.row_mask:
            out.put(f"rows = m < {self.operations.size(plan.rows)}")
        out.put("d = tl.arange(0, DEPTH)")
        out.put("e = tl.arange(0, WIDTH)[None, :]")
        query = self._address(self.query, (batch, heads, row, "d[None, :]"))
        masks = (plan.row_mask, f"({plan.depth_mask})[None, :]" if plan.depth_mask else "")
        out.put(f"query = tl.load({query}{_masked(*masks)})", node.spans)

    def _start(self) -> None:
        """The running maximum, sum and mean before any key, or with a sink's score, which has no value."""
        node, out = self.node, self.out
        if node.sink:
            self.operations.straight(self.plan.body.beside, self.place)
            out.put(f"top = tl.zeros([ROWS, 1], tl.float32) + {self.operations.text(node.sink)}")
            if node.splits > 1:
                out.put('top = tl.where(part == 0, top, float("-inf"))')
            out.put('total = tl.where(top == float("-inf"), 0.0, 1.0)')
        else:
            out.put('top = tl.full([ROWS, 1], float("-inf"), tl.float32)')
            out.put("total = tl.zeros([ROWS, 1], tl.float32)")
        out.put("mean = tl.zeros([ROWS, WIDTH], tl.float32)")

    def _keys(self) -> tuple[str, str]:
        """Declares the first key that a row of the program sees, and the end of its keys."""
        node, out, plan = self.node, self.out, self.plan
        shared = f" // {plan.group}" if plan.group > 1 else ""
        first, last = "0", self.operations.size(plan.keys)
        if node.splits > 1:
            span = self.operations.size(node.span)
            out.put(f"first = part * {span}")
            out.put(f"last = first + {node.span}" if plan.whole_keys else f"last = tl.minimum(first + {span}, {last})")
            first, last = "first", "last"
        if plan.ahead is not None:
            highest = f"(band * ROWS + ROWS - 1){shared}"
            out.put(
                f"last = tl.minimum({last}, {highest} + {self.operations.size(plan.ahead + 1)})  # no row sees more"
            )
            last = "last"
        if plan.behind is not None:
            lowest = f"band * ROWS{shared}"
            begin = f"tl.maximum({lowest} - {self.operations.size(plan.behind)}, 0) // KEYS * KEYS"
            out.put(f"begin = {begin}  # no row sees earlier ones")
            if first != "0":
                out.put(f"begin = tl.maximum(begin, {first})")
            first = "begin"
        return first, last

    def _load_block(self, last: str) -> None:
        """Loads a block of keys and values, those before ``last``."""
        out, plan = self.out, self.plan
        batch, key = self.names[self.node.axes[0].name], self.names[self.node.axes[3].name]
        address = self._address(self.key, (batch, "group", key, "d[:, None]"))
        masks = (plan.key_mask, f"({plan.depth_mask})[:, None]" if plan.depth_mask else "")
        out.put(f"keys = tl.load({address}{_masked(*masks)})")
        address = self._address(self.value, (batch, "group", "j[:, None]", "e"))
        masks = ("" if plan.whole_keys else f"(j < {last})[:, None]", plan.width_mask)
        out.put(f"values = tl.load({address}{_masked(*masks)})")

    def _score(self) -> None:
        """The scores of a block, and what the graph makes of them."""
        out = self.out
        out.put(f"score = tl.dot(query, keys{self._precision()})", self.node.spans)
        self.operations.straight(self.plan.body.late, self.place)
        slot = self.operations.slots[self.node.result]
        result = slot.value.text if slot.varies else f"score * 0.0 + {slot.value.text}"
        if not self.plan.whole_keys:
            out.put(f'score = tl.where(seen, {result}, float("-inf"))')
        elif result != "score":
            out.put(f"score = {result}")

    def _add_block(self) -> None:
        """Adds a block's values to the mean, all of which is scaled to the largest score so far."""
        out = self.out
        out.put("new = tl.maximum(top, tl.max(score, 1)[:, None])")
        out.put('level = tl.where(new == float("-inf"), 0.0, new)')
        if any(op.op in ("mul", "div") for op in self.node.body):
            # The product and the difference become one operation, whose result of the largest score need not be zero.
            out.put("weight = tl.exp(tl.minimum(score - level, 0.0, propagate_nan=tl.PropagateNan.ALL))")
        else:
            out.put("weight = tl.exp(score - level)")
        out.put("far = tl.exp(top - level)")
        out.put("total = total * far + tl.sum(weight, 1)[:, None]")
        out.put(f"mean = tl.dot(weight.to(values.dtype), values, mean * far{self._precision()})")
        out.put("top = new")

    def _store_rows(self) -> None:
        """Stores the rows' means, or what parts of the keys give, from which a later kernel makes them."""
        node, out, plan = self.node, self.out, self.plan
        point = tuple(self.names[a.name] for a in node.axes[:3])
        mask = _masked(plan.row_mask, plan.width_mask, other="")
        if node.splits > 1:
            sums, tops, totals = self.made
            out.put(f"tl.store({self._address(sums, (*point, 'part', 'e'))}, mean{mask})", node.spans)
            for buffer, held in ((tops, "top"), (totals, "total")):
                address = self._address(buffer, (*point, "part"))
                out.put(f"tl.store({address}, {held}{_masked(plan.row_mask, other='')})")
        else:
            out.put("mean = mean / total" if node.nan else "mean = tl.where(total == 0, 0.0, mean / total)")
            address = self._address(self.made[0], (*point, "e"))
            out.put(f"tl.store({address}, mean.to({TYPES[self.made[0].dtype]}){mask})", node.spans)

    def _precision(self) -> str:
        return ', input_precision="ieee"' if self.query.dtype == "f32" else ""

    def _address(self, buffer: Buffer, point: tuple[str, ...]) -> str:
        """Of the element at a point whose coordinates are Triton's."""
        names, terms = dict(self.names), buffer.offset
        for k, (at, stride) in enumerate(zip(point, buffer.strides, strict=True)):
            place = sympy.Symbol(f"@{k}", integer=True, nonnegative=True)
            names[place.name] = at
            terms = terms + place * stride
        text = print_index(terms, names, TRITON)
        pointer = self.names[buffer.owner]
        return pointer if text == "0" else f"{pointer} + ({text})"


def _masked(*masks: str, other: str = ", other=0") -> str:
    found = [f"({m})" if " < " in m and m[0] != "(" else m for m in masks if m]
    return f", {' & '.join(found)}{other}" if found else ""


def _bytes(buffers: Iterable[Buffer]) -> Expr:
    return sympy.Add(*(b.numel() * ITEMSIZE[b.dtype] for b in {b.owner + str(b.sizes): b for b in buffers}.values()))
