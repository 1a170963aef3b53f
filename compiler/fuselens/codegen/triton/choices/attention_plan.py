"""What a program of attention's kernel has to do, decided before its text: sizes, masks, and which keys its rows see."""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.loops import Attention, Graph, Op, symbol
from .attention_blocks import AttentionBlocks
from .blocks import Launch, blocks_of, next_power_of_two

ROWS = 64  # of a program, at most
_BELOW = {"le": (False, False), "lt": (False, True), "ge": (True, False), "gt": (True, True)}  # turned, strict


@dataclass(frozen=True, slots=True)
class Body:
    """What the graph computes for each row ``beside`` its scores (a sink's), and for each score: what does not depend on it, and
    what does."""

    beside: tuple[Op, ...]
    early: tuple[Op, ...]
    late: tuple[Op, ...]

    @classmethod
    def of(cls, node: Attention) -> Body:
        late, beside = {"score"}, {node.sink}
        for op in node.body:
            if not late.isdisjoint(op.operands()):
                late.add(op.name)
        for op in reversed(node.body):
            if op.name in beside:
                beside.update(op.operands())
        return cls(
            tuple(o for o in node.body if o.name in beside),
            tuple(o for o in node.body if o.name not in late | beside),
            tuple(o for o in node.body if o.name in late),
        )


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Sizes of the problem and of a program. Rows of ``group`` heads, which share keys, are rows of one matrix."""

    blocks: AttentionBlocks
    group: int  # heads that share keys
    groups: Expr
    rows: Expr  # of a group
    keys: Expr
    bands: Expr  # programs of a group
    depth: int  # elements of a query's block: a power of two
    width: int  # and of a value's
    depth_mask: str  # which of them exist, "" where all do
    width_mask: str
    whole_rows: bool  # whether blocks end where rows do
    whole_keys: bool
    behind: Expr | None  # see keys_near
    ahead: Expr | None
    programs: Expr
    body: Body

    @property
    def launch(self) -> Launch:
        blocks = self.blocks
        constants = {"ROWS": blocks.rows, "KEYS": blocks.keys, "DEPTH": self.depth, "WIDTH": self.width}
        return Launch(self.programs, constants, blocks.warps, blocks.stages)

    @property
    def row_mask(self) -> str:
        return "" if self.whole_rows else "rows"

    @property
    def key_mask(self) -> str:
        return "" if self.whole_keys else "seen"

    @classmethod
    def of(cls, graph: Graph, node: Attention, blocks: AttentionBlocks) -> AttentionPlan:
        query, key, value = (graph.buffers[n] for n in node.operands())
        group = int(query.sizes[1]) // int(key.sizes[1])
        rows, keys = node.axes[2].size * group, node.axes[3].size
        width, across = query.sizes[3], value.sizes[3]
        deep, broad = (max(16, next_power_of_two(int(n))) for n in (width, across))
        behind, ahead = keys_near(node)
        even = keys.is_Integer and int(keys) == int(node.span) * node.splits and int(node.span) % blocks.keys == 0
        bands = blocks_of(rows, blocks.rows)
        return cls(
            blocks, group, key.sizes[1], rows, keys, bands, deep, broad,
            depth_mask="" if int(width) == deep else f"d < {width}",
            width_mask="" if int(across) == broad else f"e < {across}",
            whole_rows=bool(rows.is_Integer) and int(rows) % blocks.rows == 0, whole_keys=bool(even),
            behind=behind, ahead=ahead,
            programs=node.axes[0].size * key.sizes[1] * bands * node.splits, body=Body.of(node),
        )  # fmt: skip


def default_blocks(graph: Graph, node: Attention) -> AttentionBlocks:
    """The blocks of a kernel that was not measured."""
    query, key, _ = (graph.buffers[n] for n in node.operands())
    rows = query.sizes[2] * (int(query.sizes[1]) // int(key.sizes[1]))
    block = max(16, min(ROWS, next_power_of_two(int(rows)) if rows.is_Integer else ROWS))
    return AttentionBlocks(block, *_columns(graph, node))


def _columns(graph: Graph, node: Attention) -> tuple[int, int, int]:
    """Keys of a block, warps of a program, and blocks that are under way. What few programs read once is asked for in large pieces."""
    query, _, value = (graph.buffers[n] for n in node.operands())
    span = graph.hint(node.span)
    widest = max(int(query.sizes[3]), int(value.sizes[3]))
    if query.dtype == "f32":  # multiplied in registers
        return 32, 8, 3
    if 64 < span <= 128 and widest <= 128 and node.splits == 1:  # one block is all there is
        return 128, 8, 2
    return (64, 4, 3) if widest <= 128 else (32, 8, 3)


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
