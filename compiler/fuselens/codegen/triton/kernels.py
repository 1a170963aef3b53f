"""Kernels as a Triton module: one ``@triton.jit`` function per kernel, the same loop nests as in C++.

A program computes a block of the kernel's points, ``XBLOCK`` of them. Phases with axes of their own add ``RBLOCK``
columns: at once when the whole axis fits (a persistent reduction), else in a loop with one accumulator per column.
Pointwise kernels whose loads disagree about which axis is contiguous use two-dimensional tiles, so that Triton
transposes through shared memory instead of reading strided.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sympy
from sympy import Expr

from ...ir.affine import row_major
from ...ir.contracts.source import Functions, KernelInfo, Source, Writer
from ...ir.loops import ITEMSIZE, Attention, Axis, Graph, Kernel, Op, element, indirect_names
from ..expressions import TRITON, linear, names_in, print_factor
from ..traffic import bytes_moved
from .attention import AttentionWriter, pointee
from .choices import attention_blocks
from .choices.attention_blocks import AttentionBlocks
from .choices.attention_plan import default_blocks
from .choices.blocks import Blocks, Work, blocks_of, candidates, next_power_of_two
from .choices.directions import contiguous_along_points
from .choices.tiles import Tiles
from .operations import Unit
from .products import Products, descriptors_of
from .scalar_ops import FUNCTION_NEEDS, FUNCTIONS

POINTS = 1024  # points of a one-dimensional block
TILE = 32  # edge of a two-dimensional block
LEAST_POINTS = 128
REGISTERS = 64  # of a thread, for what it loads before it computes
REUSED = 8  # loads that are the same along an axis, from which on tiles are worth measuring


def to_triton(
    graph: Graph,
    target: str = "cuda",
    tunings: Mapping[str, Blocks | Tiles | AttentionBlocks] = MappingProxyType({}),
) -> Source:
    """All kernels of ``graph`` as the text of a Python module, those of ``tunings`` in these blocks. Raises Unsupported.

    ``KernelInfo.launch`` holds ``grid`` (programs, an expression in the size symbols), ``options`` of Triton's compiler,
    ``blocks`` (the block sizes, which are also the defaults of the kernel's constexpr parameters), ``signature`` (argument
    types), ``device`` (of its arguments) and ``interpretable`` (False where libdevice is needed).
    """
    unit = Unit(graph, tunings)
    infos, out = _kernels(unit)
    head = Writer("#", "    ")
    head.put(f'"""Kernels of graph {graph.name}. Written by fuselens for {target}."""')
    head.put()
    head.put("import triton")
    head.put("import triton.language as tl")
    if "libdevice" in unit.functions:
        head.put("from triton.language.extra import libdevice")
    wanted = unit.functions | {n for f in unit.functions for n in FUNCTION_NEEDS.get(f, ())}
    wanted |= {n for n in ("floor_div", "floor_mod") if f"{n}(" in out.text()}  # of sizes and positions
    for name, text in FUNCTIONS.items():
        if name in wanted:
            head.put()
            head.put(text.strip())
    offset = head.text().count("\n")
    lines = tuple(type(l)(l.line + offset, l.spans) for l in out.lines())
    return Source("triton", head.text() + out.text(), lines, tuple(infos))


def variants(graph: Graph) -> dict[str, tuple[Blocks, ...] | tuple[AttentionBlocks, ...]]:
    """By kernel, the blocks that it has unless others are chosen, then those that are worth measuring. Raises Unsupported."""
    found: dict[str, tuple[Blocks, ...] | tuple[AttentionBlocks, ...]] = {}
    for kernel in graph.kernels():
        writer = _KernelWriter(Unit(graph), kernel, Writer("#", "    "))
        writer.write()
        along = bool(writer.chosen.columns) and contiguous_along_points(writer.kernel)
        reuses = writer.chosen.across == 1 and writer.reused_axes() is not None
        found[kernel.name] = candidates(Work.of(writer.kernel, graph, along), writer.chosen, reuses)
    for node in graph.attentions():
        found[node.name] = attention_blocks.candidates(graph, node, default_blocks(graph, node))
    return found


def _kernels(unit: Unit) -> tuple[list[KernelInfo], Writer]:
    functions = Functions()
    for node in unit.graph.nodes:
        if isinstance(node, Attention):
            writer: _KernelWriter | AttentionWriter = AttentionWriter(unit, node, Writer("#", "    "))
        elif isinstance(node, Kernel):
            writer = _KernelWriter(unit, node, Writer("#", "    "))
        else:
            continue
        info = writer.write()
        text = writer.out.anonymous((node.name, *(writer.names[a] for a in info.arguments[: info.pointers])))
        key = (
            text,
            tuple(info.launch["options"].items()),
            tuple(info.launch["signature"].values()),
            info.launch["device"],
        )
        functions.add(key, writer.out, info)
    out = Writer("#", "    ")
    for text_of, (_, *others) in functions:
        out.put()
        out.put()
        if others:
            out.put(f"# also {', '.join(i.name for i in others)}")
        out.include(text_of)
    return functions.kernels, out


class _KernelWriter(Products):
    def write(self) -> KernelInfo:
        kernel, out = self.kernel, self.out
        arguments = tuple(dict.fromkeys((*self.source.reads(), *self.source.writes())))
        sizes = self.source.size_symbols()
        for name in (*arguments, *sizes):
            self._claim(name)
        for axis in kernel.all_axes():
            self._claim(axis.name)
        folding = any(p.axes for p in kernel.phases)
        tile = None if folding else self._tile_axes()
        if self.tuning is not None and self.tuning.across > 1 and not folding:
            tile = tile or self.reused_axes()
        body = Writer("#", "    ")
        self.out = body
        body.open("pass")  # only for the indentation
        if self.tiles is not None:
            grid, warps = self._product(self.tiles)
        elif folding:
            grid, warps = self._rows()
        elif tile:
            grid, warps = self._tiles(*tile)
        else:
            grid, warps = self._points()
        body.close("")
        self.out = out
        blocks = [f"{n}: tl.constexpr = {v}" for n, v in self.blocks.items()]
        parameters = ", ".join([*(self.names[n] for n in (*arguments, *sizes)), *blocks])
        jit = "@triton.jit(debug=True)" if self.checks else "@triton.jit"  # debug: assertions hold
        out.put(jit, self.source.spans, note=False)
        out.put(f"def {self.source.name}({parameters}):", self.source.spans, note=False)
        origins = ", ".join(dict.fromkeys(self.source.origins)) or self.source.kind
        out.put(f'    """{origins}"""')
        if self.divides_sums:
            out.put("    zero = tl.program_id(1)  # which it is in every program", note=False)
        self._widen_sizes(sizes)
        spans = {l.line: l.spans for l in body.lines()}
        for number, line in enumerate(body.text().rstrip("\n").split("\n")[1:], 2):
            out.put(line, spans.get(number, ()), note=False)
        read, written = bytes_moved(self.source, self.unit.graph)
        signature = {self.names[n]: "*" + pointee(element(self.unit.graph.buffers[n].dtype)) for n in arguments}
        signature |= {self.names[s]: "i64" for s in sizes}
        if self.copied:
            arguments = (*arguments, descriptors_of(self.source.name))
        return KernelInfo(
            name=self.source.name, kind=self.source.kind, arguments=arguments, written=tuple(self.source.writes()),
            sizes=sizes, operations=self.source.origins, spans=self.source.spans, bytes_read=read, bytes_written=written,
            launch={
                "grid": grid, "options": self._options(warps), "blocks": dict(self.blocks), "signature": signature,
                "device": self.unit.graph.buffers[arguments[0]].device if arguments else "cuda",
                **({"cluster": self.parts} if self.parts > 1 else {}),
                "interpretable": not self.uses_libdevice,
            },
        )  # fmt: skip

    def _options(self, warps: int) -> dict[str, Any]:
        """What Triton's compiler is told. Functions of libdevice compute in pairs of numbers, which fusing a product
        with a sum would make inexact: 3.0 ** 1.0 would be less than 3. Elsewhere they are fused, which has to be said: what
        Triton does by itself changes with its version."""
        stages = {"num_stages": self.stages} if self.stages else {}
        registers = {"maxnreg": self.chosen.registers} if self.chosen.registers else {}
        return {"num_warps": warps} | stages | registers | {"enable_fp_fusion": not self.uses_libdevice}

    def _points(self) -> tuple[Expr, int]:
        axes, out = self.kernel.axes, self.out
        total = sympy.Mul(*(a.size for a in axes))
        block = self.tuning.points if self.tuning else self._block(total)
        if total.is_Integer:
            block = min(block, max(16, next_power_of_two(int(total))))
        warps = self.tuning.warps if self.tuning else max(1, min(4, block // LEAST_POINTS))
        self.chosen = Blocks(block, warps=warps)
        self.blocks["XBLOCK"] = block
        out.put(f"x = {self._program()} * XBLOCK + tl.arange(0, XBLOCK)")
        exact = total.is_Integer and int(total) % block == 0
        self.mask = "" if exact else "xmask"
        if not exact:
            out.put(f"xmask = x < {print_factor(total, self.names, TRITON)}")
        self.spread = "tl.zeros([XBLOCK], tl.int32)"
        self.shape_names = frozenset(a.name for a in axes)
        self._decode(axes, "x")
        if len(axes) > 1:
            self.places[row_major(axes)] = "x"  # which the compiler sees to be contiguous
        self._straight(self._asked_first(block // (32 * warps)))
        return blocks_of(total, block), warps

    def _block(self, total: Expr) -> int:
        """Points of a program: fewer where the card would have few programs."""
        shared = self.nest.hint(total) // self.unit.graph.card.processors
        return max(LEAST_POINTS, min(POINTS, next_power_of_two(shared)))

    def _asked_first(self, each: int) -> list[Op]:
        """The body with loads before the first check or store, which a thread would not do before it has what these need; as
        many as it has registers for with ``each`` points."""
        body = [op for p in self.kernel.phases for op in p.body]
        start = next((k for k, op in enumerate(body) if op.op in ("bounds", "store")), len(body))
        room = REGISTERS // max(1, each)
        stored: set[str] = set()
        early: list[Op] = []
        for op in body[start:]:
            if op.op == "store":
                stored.add(op.args[0])
            elif op.op == "load" and op.args[0] not in stored and not indirect_names(op.args[1]):
                room -= max(1, ITEMSIZE[self.unit.graph.buffers[op.args[0]].dtype] // 4)
                if room >= 0:
                    early.append(op)
        moved = {op.name for op in early}
        return [*body[:start], *early, *(op for op in body[start:] if op.name not in moved)]

    def _tile_axes(self) -> tuple[Axis, Axis] | None:
        """(outer, inner) axes of a two-dimensional tile, where some access is contiguous along each."""
        axes = self.kernel.axes
        if len(axes) < 2:
            return None
        names = frozenset(a.name for a in axes)
        contiguous: dict[str, int] = {}
        across: dict[str, set[str]] = {}  # along which other axes such accesses step
        for op in self.kernel.ops():
            if op.op not in ("load", "store"):
                continue
            form = linear(sympy.sympify(op.args[1]), names)
            for name, step in form.coefficients.items():
                if step == 1 and name not in form.tangled and len(form.coefficients) > 1:
                    contiguous[name] = contiguous.get(name, 0) + (2 if op.op == "store" else 1)
                    across.setdefault(name, set()).update(form.coefficients)
        candidates = [a for a in axes if a.name in contiguous and self.nest.hint(a.size) >= 16]
        candidates.sort(key=lambda a: contiguous[a.name])
        if len(candidates) < 2 or candidates[-1].name not in across[candidates[-2].name]:
            return None
        return candidates[-2], candidates[-1]

    def reused_axes(self) -> tuple[Axis, Axis] | None:
        """(outer, inner) axes of a tile where many loads are the same along one of them at least: a thread has several of the
        points for which it needs each."""
        axes = self.kernel.axes
        if len(axes) < 2 or any(p.axes for p in self.kernel.phases):
            return None
        names = {a.name for a in axes[-2:]}
        loads = dict.fromkeys(o.args[:2] for o in self.kernel.ops() if o.op == "load")
        same = [index for _, index in loads if not names <= names_in(sympy.sympify(index))]
        return (axes[-2], axes[-1]) if len(same) >= REUSED else None

    def _tiles(self, outer: Axis, inner: Axis) -> tuple[Expr, int]:
        out = self.out
        self.rank = 2
        self.chosen = chosen = self.tuning or Blocks(TILE, TILE)
        self.blocks |= {"YBLOCK": chosen.across, "XBLOCK": chosen.points}
        rest = tuple(a for a in self.kernel.axes if a.name not in (outer.name, inner.name))
        across, down = blocks_of(inner.size, chosen.points), blocks_of(outer.size, chosen.across)
        out.put(f"program = {self._program()}")
        columns, rows = print_factor(across, self.names, TRITON), print_factor(down, self.names, TRITON)
        x, y = self.names[inner.name], self.names[outer.name]
        out.put(f"{x} = program % {columns} * XBLOCK + tl.arange(0, XBLOCK)[None, :]")
        row = f"(program // {columns})" if not rest else f"(program // {columns} % {rows})"
        out.put(f"{y} = {row} * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
        if rest:
            out.put(f"block = program // {columns} // {rows}")
            self._decode(rest, "block")
        inside = {a.name: f"({n} < {print_factor(a.size, self.names, TRITON)})" for a, n in ((inner, x), (outer, y))}
        out.put(f"xmask = {' & '.join(inside.values())}")
        if self._tile_axes() is None:  # what is the same along an axis is loaded once for it
            self.masks = inside
        self.mask = "xmask"
        self.spread = "tl.zeros([YBLOCK, XBLOCK], tl.int32)"
        self.shape_names = frozenset({outer.name, inner.name})
        self._straight(self._asked_first(chosen.points * chosen.across // (32 * chosen.warps)))
        return across * down * sympy.Mul(*(a.size for a in rest)), chosen.warps
