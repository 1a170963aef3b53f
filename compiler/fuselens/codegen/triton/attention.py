"""Attention as one Triton kernel: a program has some rows of the heads that share keys, and walks keys block by block.

It holds the sum of the values so far, weighted by exponentials below the largest score so far, and rescales it where that
grows. What the graph makes of scores, masks above all, is written as in any kernel, for a block of rows and keys.
"""

from __future__ import annotations

import math
from typing import Any

import sympy
from sympy import Expr

from ...ir.loops import ITEMSIZE, Attention, Buffer, Kernel, Op, Phase, element, indirect_names, symbol
from ..expressions import TRITON, names_in, print_factor, print_index
from ..nest import Nest
from ..operands import Value
from ..source import KernelInfo, Writer
from .attention_blocks import AttentionBlocks
from .blocks import next_power_of_two
from .operations import Operations, Slot, Unit
from .scalar_ops import TYPES

ROWS = 64  # of a program, at most
_BELOW = {"le": (False, False), "lt": (False, True), "ge": (True, False), "gt": (True, True)}  # turned, strict
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
        self.group = int(self.query.sizes[1]) // int(self.key.sizes[1])
        given = unit.tunings.get(node.name)
        self.blocked = given if isinstance(given, AttentionBlocks) else self._default()

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
        node, out, group = self.node, self.out, self.group
        batch, heads, row, key = (self.names[a.name] for a in node.axes)
        rows, keys = node.axes[2].size * group, node.axes[3].size
        groups, width, across = self.key.sizes[1], self.query.sizes[3], self.value.sizes[3]
        block, columns, warps = self.blocked.rows, self.blocked.keys, self.blocked.warps
        self.stages = self.blocked.stages
        deep, broad = (max(16, next_power_of_two(int(n))) for n in (width, across))
        self.blocks |= {"ROWS": block, "KEYS": columns, "DEPTH": deep, "WIDTH": broad}
        bands = sympy.Integer(-(-int(rows) // block)) if rows.is_Integer else sympy.floor((rows + block - 1) / block)
        out.put(f"program = {self._program()}")
        for name, count in (("part", sympy.Integer(node.splits)), ("band", bands), ("group", groups)):
            if count == 1:
                out.put(f"{name} = 0")
            else:
                out.put(f"{name} = program % {self._text(count)}")
                out.put(f"program = program // {self._text(count)}")
        behind, ahead = keys_near(node)
        if ahead is not None and bands != 1:
            out.put(f"band = {self._text(bands - 1)} - band  # those with most keys first")
        out.put(f"{batch} = program")
        out.put("m = band * ROWS + tl.arange(0, ROWS)[:, None]")
        out.put(f"{row} = m // {group}" if group > 1 else f"{row} = m")
        out.put(f"{heads} = group * {group} + m % {group}" if group > 1 else f"{heads} = group + m * 0")
        exact = rows.is_Integer and int(rows) % block == 0
        self.row_mask = "" if exact else "rows"
        if not exact:
            out.put(f"rows = m < {self._text(rows)}")
        out.put("d = tl.arange(0, DEPTH)")
        out.put("e = tl.arange(0, WIDTH)[None, :]")
        depth_mask = "" if int(width) == deep else f"d < {width}"
        width_mask = "" if int(across) == broad else f"e < {across}"
        query = self._address(self.query, (batch, heads, row, "d[None, :]"))
        masks = (self.row_mask, f"({depth_mask})[None, :]" if depth_mask else "")
        out.put(f"query = tl.load({query}{_masked(*masks)})", node.spans)
        span = node.span
        whole = keys.is_Integer and int(keys) == int(span) * node.splits and int(span) % columns == 0
        self.key_mask = "" if whole else "seen"
        beside, early, late = self._parts_of_body()
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
        first, last = "0", self._text(keys)
        if node.splits > 1:
            out.put(f"first = part * {self._text(span)}")
            out.put(f"last = tl.minimum(first + {self._text(span)}, {last})" if not whole else f"last = first + {span}")
            first, last = "first", "last"
        if ahead is not None:
            highest = "(band * ROWS + ROWS - 1)" + (f" // {group}" if group > 1 else "")
            out.put(f"last = tl.minimum({last}, {highest} + {self._text(ahead + 1)})  # no row sees more")
            last = "last"
        if behind is not None:
            lowest = f"band * ROWS // {group}" if group > 1 else "band * ROWS"
            out.put(
                f"begin = tl.maximum({lowest} - {self._text(behind)}, 0) // KEYS * KEYS  # no row sees earlier ones"
            )
            if first != "0":
                out.put(f"begin = tl.maximum(begin, {first})")
            first = "begin"
        out.open(f"for start in range({first}, {last}, KEYS):")
        out.put(f"j = start + tl.arange(0, KEYS){'.to(tl.int64)' if self.wide else ''}")
        out.put(f"{key} = j[None, :]")
        if not whole:
            out.put(f"seen = {key} < {last}")
        self._straight(early)  # loads of masks and the like are under way while keys are waited for
        address = self._address(self.key, (batch, "group", key, "d[:, None]"))
        masks = (self.key_mask, f"({depth_mask})[:, None]" if depth_mask else "")
        out.put(f"keys = tl.load({address}{_masked(*masks)})")
        address = self._address(self.value, (batch, "group", "j[:, None]", "e"))
        masks = (f"(j < {last})[:, None]" if not whole else "", width_mask)
        out.put(f"values = tl.load({address}{_masked(*masks)})")
        out.put(f"score = tl.dot(query, keys{self._precision()})", node.spans)
        self._straight(late)
        slot = self.slots[node.result]
        result = slot.value.text if slot.varies else f"score * 0.0 + {slot.value.text}"
        if not whole:
            out.put(f'score = tl.where(seen, {result}, float("-inf"))')
        elif result != "score":
            out.put(f"score = {result}")
        out.put("new = tl.maximum(top, tl.max(score, 1)[:, None])")
        out.put('level = tl.where(new == float("-inf"), 0.0, new)')
        out.put("weight = tl.exp(score - level)")
        out.put("far = tl.exp(top - level)")
        out.put("total = total * far + tl.sum(weight, 1)[:, None]")
        out.put(f"mean = tl.dot(weight.to(values.dtype), values, mean * far{self._precision()})")
        out.put("top = new")
        out.close("")
        mask = _masked(self.row_mask, width_mask, other="")
        if node.splits > 1:
            sums, tops, totals = self.made
            point = (batch, heads, row, "part")
            out.put(f"tl.store({self._address(sums, (*point, 'e'))}, mean{mask})", node.spans)
            for buffer, held in ((tops, "top"), (totals, "total")):
                out.put(f"tl.store({self._address(buffer, point)}, {held}{_masked(self.row_mask, other='')})")
        else:
            out.put("mean = mean / total" if node.nan else "mean = tl.where(total == 0, 0.0, mean / total)")
            address = self._address(self.made[0], (batch, heads, row, "e"))
            out.put(f"tl.store({address}, mean.to({TYPES[self.made[0].dtype]}){mask})", node.spans)
        return node.axes[0].size * groups * bands * node.splits, warps

    def _default(self) -> AttentionBlocks:
        rows = self.query.sizes[2] * self.group
        block = max(16, min(ROWS, next_power_of_two(int(rows)) if rows.is_Integer else ROWS))
        return AttentionBlocks(block, *self._columns())

    def _columns(self) -> tuple[int, int, int]:
        """Keys of a block, warps of a program, and blocks that are under way. What is read once by few programs is asked for in large pieces."""
        span = self.unit.graph.hint(self.node.span)
        widest = max(int(self.query.sizes[3]), int(self.value.sizes[3]))
        if self.query.dtype == "f32":  # multiplied in registers
            return 32, 8, 3
        if 64 < span <= 128 and widest <= 128 and self.node.splits == 1:  # one block is all there is
            return 128, 8, 2
        return (64, 4, 3) if widest <= 128 else (32, 8, 3)

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
        self.mask = " & ".join(m for m in (self.row_mask, self.key_mask) if m)
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
        masks = (self.row_mask if used & {head, row} else "", self.key_mask if key in used else "")
        return " & ".join(m for m in masks if m)


def keys_near(node: Attention) -> tuple[Expr | None, Expr | None]:
    """How many keys a row sees at most before the one of its own number and after it, where masks of positions say so."""
    ops = {o.name: o for o in node.body}
    row, key = (symbol(a.name) for a in node.axes[2:])
    behind: list[Expr] = []
    ahead: list[Expr] = []

    def position(name: str) -> Expr | None:
        op = ops.get(name)
        if op is not None and op.op == "index":
            return sympy.sympify(op.args[0])
        if op is not None and op.op == "const" and isinstance(op.args[0], int):
            return sympy.Integer(op.args[0])
        if op is not None and op.op in ("add", "sub") and op.dtype == "i64":
            a, b = map(position, op.operands())
            return None if a is None or b is None else a + b if op.op == "add" else a - b
        return None

    def at_most(a: str, b: str, strict: bool) -> None:
        """Keys that are seen are where ``a <= b``, or ``a < b``."""
        op = ops.get(a)
        inside = position(op.args[0]) if op is not None and op.op == "abs" else None
        large = position(b)
        for small in (position(a),) if inside is None else (inside, -inside):
            if small is None or large is None:
                continue
            least = large - small - int(strict)
            if (before := sympy.expand(least - key + row)).is_Integer:
                behind.append(before)
            if (after := sympy.expand(least + key - row)).is_Integer:
                ahead.append(after)

    def visit(name: str, holds: bool) -> None:
        """``holds``: whether a key that is seen makes the value True."""
        op = ops.get(name)
        if op is None:
            return
        if op.op == "not":
            visit(op.args[0], not holds)
        elif op.op == ("and" if holds else "or"):
            for operand in op.args:
                visit(operand, holds)
        elif op.op in _BELOW:
            a, b = op.operands()
            turned, strict = _BELOW[op.op]
            at_most(*((b, a) if turned != (not holds) else (a, b)), strict == holds)

    def hide(name: str) -> None:
        """``name`` is minus infinity for keys that are not seen."""
        op = ops.get(name)
        if op is not None and op.op in ("add", "cast"):
            for operand in op.operands():
                hide(operand)
        elif op is not None and op.op == "where":
            condition, *values = op.args
            hidden = [v in ops and ops[v].op == "const" and ops[v].args[0] == -math.inf for v in values]
            if hidden[0] != hidden[1]:
                visit(condition, hidden[1])

    hide(node.result)
    return min(behind, default=None), min(ahead, default=None)


def _masked(*masks: str, other: str = ", other=0") -> str:
    found = [f"({m})" if " < " in m and m[0] != "(" else m for m in masks if m]
    return f", {' & '.join(found)}{other}" if found else ""


def pointee(dtype: str) -> str:
    names = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bool": "i1", "f8e4m3": "u8", "f8e5m2": "u8"}
    return names.get(dtype, dtype)


def _bytes(buffers: Any) -> Expr:
    return sympy.Add(*(b.numel() * ITEMSIZE[b.dtype] for b in {b.owner + str(b.sizes): b for b in buffers}.values()))
