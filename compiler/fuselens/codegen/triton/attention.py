"""Attention as one Triton kernel: a program has some rows of the heads that share keys, and walks keys block by block.

It holds the sum of the values so far, weighted by exponentials below the largest score so far, and rescales it where that
grows. What the graph makes of scores, masks above all, is written as in any kernel, for a block of rows and keys.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Expr

from ...ir.contracts.source import KernelInfo, Writer
from ...ir.loops import ITEMSIZE, Attention, Buffer, Kernel, Op, Phase, element, indirect_names
from ..expressions import TRITON, names_in, print_factor, print_index
from ..nest import Nest
from ..operands import Value
from .choices.attention_blocks import AttentionBlocks
from .choices.attention_plan import AttentionPlan, default_blocks
from .operations import Operations, Slot, Unit
from .scalar_ops import TYPES

_LOCALS = tuple(
    "program m d e j group band part rows seen query keys values score top total mean first last begin start new level weight far".split()
)


class AttentionWriter(Operations):
    def __init__(self, unit: Unit, node: Attention, out: Writer) -> None:
        kernel = Kernel(node.name, node.axes, (Phase((), node.body),), origins=(node.origin,), spans=node.spans)
        super().__init__(unit, kernel, out)
        self.node, self.kernel, self.rank = node, kernel, 2
        self.nest = Nest(kernel, (), unit.graph.hint)
        buffers = unit.graph.buffers
        self.query, self.key, self.value = (buffers[n] for n in node.operands())
        self.made = tuple(buffers[n] for n in node.outputs)
        touched = (*self.query.sizes, *self.key.sizes, *self.value.sizes)
        self.wide |= not unit.far.isdisjoint(b.owner for b in (self.query, self.key, self.value, *self.made))
        self.wide |= any(not s.is_Integer or int(s) >= 2**31 for s in touched)
        given = unit.tunings.get(node.name)
        blocks = given if isinstance(given, AttentionBlocks) else default_blocks(unit.graph, node)
        self.plan = AttentionPlan.of(unit.graph, node, blocks)

    def write(self) -> KernelInfo:
        node, out, graph = self.node, self.out, self.unit.graph
        owners = (self.query.owner, self.key.owner, self.value.owner, *(o.args[0] for o in node.body if o.op == "load"))
        written = tuple(b.owner for b in self.made)
        arguments = tuple(dict.fromkeys((*owners, *written)))
        sizes = self._sizes()
        self.names |= {f"%{n}": n for n in _LOCALS}
        for name in (*arguments, *sizes, *(a.name for a in node.axes)):
            self._claim(name)
        body = Writer("#", "    ")
        self.out = body
        body.open("pass")  # only for the indentation
        grid, warps = self._program_text()
        body.close("")
        self.out = out
        blocks = [f"{n}: tl.constexpr = {v}" for n, v in self.blocks.items()]
        out.put("@triton.jit(debug=True)" if self.checks else "@triton.jit", node.spans, note=False)
        out.put(
            f"def {node.name}({', '.join([*(self.names[n] for n in (*arguments, *sizes)), *blocks])}):",
            node.spans,
            note=False,
        )
        out.put(f'    """{node.origin or "attention"}"""')
        if self.divides_sums:
            out.put("    zero = tl.program_id(1)  # which it is in every program", note=False)
        self._widen_sizes(sizes)
        spans = {l.line: l.spans for l in body.lines()}
        for number, line in enumerate(body.text().rstrip("\n").split("\n")[1:], 2):
            out.put(line, spans.get(number, ()), note=False)
        signature = {self.names[n]: "*" + pointee(element(graph.buffers[n].dtype)) for n in arguments}
        signature |= {self.names[s]: "i64" for s in sizes}
        options = {"num_warps": warps, "num_stages": self.stages, "enable_fp_fusion": not self.uses_libdevice}
        loaded = dict.fromkeys(o.args[0] for o in node.body if o.op == "load")
        read = [self.query, self.key, self.value, *(graph.buffers[n] for n in loaded)]
        return KernelInfo(
            name=node.name, kind="attention", arguments=arguments, written=written, sizes=sizes,
            operations=(node.origin,) if node.origin else (), spans=node.spans,
            bytes_read=_bytes(read), bytes_written=_bytes(self.made),
            launch={
                "grid": grid, "options": options, "blocks": dict(self.blocks), "signature": signature,
                "device": self.query.device, "interpretable": not self.uses_libdevice,
            },
        )  # fmt: skip

    def _sizes(self) -> tuple[str, ...]:
        found: set[str] = set(self.source.size_symbols())
        for buffer in (self.query, self.key, self.value, *self.made):
            for e in (*buffer.sizes, *buffer.strides, buffer.offset):
                found |= {s.name for s in e.free_symbols}  # pyright: ignore
        return tuple(sorted(found))

    def _text(self, e: Expr) -> str:
        return print_factor(e, self.names, TRITON)

    def _program_text(self) -> tuple[Expr, int]:
        node, out, plan = self.node, self.out, self.plan
        self.stages = plan.blocks.stages
        self.blocks |= {"ROWS": plan.blocks.rows, "KEYS": plan.blocks.keys, "DEPTH": plan.depth, "WIDTH": plan.width}
        self._open_rows()
        beside, early, late = self._parts_of_body()
        self._start(beside)
        first, last = self._keys()
        out.open(f"for start in range({first}, {last}, KEYS):")
        out.put(f"j = start + tl.arange(0, KEYS){'.to(tl.int64)' if self.wide else ''}")
        out.put(f"{self.names[node.axes[3].name]} = j[None, :]")
        if not plan.whole_keys:
            out.put(f"seen = {self.names[node.axes[3].name]} < {last}")
        self._straight(early)  # loads of masks and the like are under way while keys are waited for
        self._load_block(last)
        self._score(late)
        self._add_block()
        out.close("")
        self._store_rows()
        return node.axes[0].size * plan.groups * plan.bands * node.splits, plan.blocks.warps

    def _open_rows(self) -> None:
        """Declares which rows of which heads a program has, and loads them."""
        node, out, plan, group = self.node, self.out, self.plan, self.plan.group
        batch, heads, row, _ = (self.names[a.name] for a in node.axes)
        out.put(f"program = {self._program()}")
        for name, count in (("part", sympy.Integer(node.splits)), ("band", plan.bands), ("group", plan.groups)):
            if count == 1:
                out.put(f"{name} = 0")
            else:
                out.put(f"{name} = program % {self._text(count)}")
                out.put(f"program = program // {self._text(count)}")
        if plan.ahead is not None and plan.bands != 1:
            out.put(f"band = {self._text(plan.bands - 1)} - band  # those with most keys first")
        out.put(f"{batch} = program")
        out.put("m = band * ROWS + tl.arange(0, ROWS)[:, None]")
        out.put(f"{row} = m // {group}" if group > 1 else f"{row} = m")
        out.put(f"{heads} = group * {group} + m % {group}" if group > 1 else f"{heads} = group + m * 0")
        if plan.row_mask:
            out.put(f"rows = m < {self._text(plan.rows)}")
        out.put("d = tl.arange(0, DEPTH)")
        out.put("e = tl.arange(0, WIDTH)[None, :]")
        query = self._address(self.query, (batch, heads, row, "d[None, :]"))
        masks = (plan.row_mask, f"({plan.depth_mask})[None, :]" if plan.depth_mask else "")
        out.put(f"query = tl.load({query}{_masked(*masks)})", node.spans)

    def _start(self, beside: list[Op]) -> None:
        """The running maximum, sum and mean before any key. ``beside`` computes a sink's score, which has no value."""
        node, out = self.node, self.out
        if node.sink:
            self._straight(beside)
            out.put(f"top = tl.zeros([ROWS, 1], tl.float32) + {self.slots[node.sink].value.text}")
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
        first, last = "0", self._text(plan.keys)
        if node.splits > 1:
            span = self._text(node.span)
            out.put(f"first = part * {span}")
            out.put(f"last = first + {node.span}" if plan.whole_keys else f"last = tl.minimum(first + {span}, {last})")
            first, last = "first", "last"
        if plan.ahead is not None:
            highest = f"(band * ROWS + ROWS - 1){shared}"
            out.put(f"last = tl.minimum({last}, {highest} + {self._text(plan.ahead + 1)})  # no row sees more")
            last = "last"
        if plan.behind is not None:
            lowest = f"band * ROWS{shared}"
            begin = f"tl.maximum({lowest} - {self._text(plan.behind)}, 0) // KEYS * KEYS"
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

    def _score(self, late: list[Op]) -> None:
        """The scores of a block, and what the graph makes of them."""
        out = self.out
        out.put(f"score = tl.dot(query, keys{self._precision()})", self.node.spans)
        self._straight(late)
        slot = self.slots[self.node.result]
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

    def _parts_of_body(self) -> tuple[list[Op], list[Op], list[Op]]:
        """What the graph computes for each row beside its scores, and for each score: what does not depend on it, and what does."""
        head, row, key = (a.name for a in self.node.axes[1:])
        self.shape_names = frozenset({head, row, key})
        self.spread = "tl.zeros([ROWS, KEYS], tl.int32)"
        self.mask = " & ".join(m for m in (self.plan.row_mask, self.plan.key_mask) if m)
        self.slots["score"] = Slot(Value("score", "f32"), True)
        body, late, beside = self.node.body, {"score"}, {self.node.sink}
        for op in body:
            if not late.isdisjoint(op.operands()):
                late.add(op.name)
        for op in reversed(body):
            if op.name in beside:
                beside.update(op.operands())
        return (
            [o for o in body if o.name in beside],
            [o for o in body if o.name not in late | beside],
            [o for o in body if o.name in late],
        )

    def _mask_of(self, index: Any) -> str:
        """What is of one row, or of one key, has one element for all of the block's."""
        if indirect_names(index):
            return self.mask
        used, (_, head, row, key) = names_in(index), (a.name for a in self.node.axes)
        masks = (self.plan.row_mask if used & {head, row} else "", self.plan.key_mask if key in used else "")
        return " & ".join(m for m in masks if m)


def _masked(*masks: str, other: str = ", other=0") -> str:
    found = [f"({m})" if " < " in m and m[0] != "(" else m for m in masks if m]
    return f", {' & '.join(found)}{other}" if found else ""


def pointee(dtype: str) -> str:
    names = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bool": "i1", "f8e4m3": "u8", "f8e5m2": "u8"}
    return names.get(dtype, dtype)


def _bytes(buffers: Any) -> Expr:
    return sympy.Add(*(b.numel() * ITEMSIZE[b.dtype] for b in {b.owner + str(b.sizes): b for b in buffers}.values()))
