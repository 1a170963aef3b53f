"""Kernels as a Triton module: one ``@triton.jit`` function per kernel, the same loop nests as in C++.

A program computes a block of the kernel's points, ``XBLOCK`` of them. Phases with axes of their own add ``RBLOCK``
columns: at once when the whole axis fits (a persistent reduction), else in a loop with one accumulator per column.
Pointwise kernels whose loads disagree about which axis is contiguous use two-dimensional tiles, so that Triton
transposes through shared memory instead of reading strided.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from ...ir.loops import Axis, Graph, Kernel, Op, Phase, element, indirect_names, value_symbol
from ..cpu.scalar_ops import Value
from ..expressions import TRITON, linear, names_in, print_factor, print_index
from ..nest import Nest, in_order, index_of, simplify
from ..source import Functions, KernelInfo, Source, Unsupported, Writer
from ..traffic import bytes_moved
from .scalar_ops import FUNCTION_NEEDS, FUNCTIONS, TABLE, TYPES, bitcast, cast, literal

POINTS = 1024  # points of a one-dimensional block
TILE = 32  # edge of a two-dimensional block
PERSISTENT = 8192  # longest reduction that stays in registers
LOOPED = 2048, 8  # columns and warps of a block that loops over a row
REREAD = ((65536, 16384, 32), (16384, 4096, 16))
"""The same where a row of so many columns is read twice. The fewer rows are under way at once, the more of a row is still in
the second-level cache."""
ATOMIC = frozenset(
    {("sum", d) for d in ("f64", "f32", "f16", "i64", "i32")} | {(k, d) for k in ("max", "min") for d in ("i64", "i32")}
)
"""Updates that points of one program, and programs, may do at the same time."""
_RESERVED = frozenset(
    {"tl", "triton", "libdevice", "float", "x", "xmask", "y", "ymask", "program", "range", "zero", *FUNCTIONS}
)
_ZERO = sympy.Symbol("%zero", integer=True, nonnegative=True)
_DIVISIONS = ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing")


def to_triton(graph: Graph, target: str = "cuda") -> Source:
    """All kernels of ``graph`` as the text of a Python module. Raises Unsupported.

    ``KernelInfo.launch`` holds ``grid`` (programs, an expression in the size symbols), ``options`` of Triton's compiler,
    ``blocks`` (the block sizes, which are also the defaults of the kernel's constexpr parameters), ``signature`` (argument
    types), ``device`` (of its arguments) and ``interpretable`` (False where libdevice is needed).
    """
    unit = _Unit(graph)
    infos, out = _kernels(unit)
    head = Writer("#", "    ")
    head.put(f'"""Kernels of graph {graph.name}. Written by fuselens for {target}."""')
    head.put()
    head.put("import triton")
    head.put("import triton.language as tl")
    if "libdevice" in unit.functions:
        head.put("from triton.language.extra import libdevice")
    wanted = unit.functions | {n for f in unit.functions for n in FUNCTION_NEEDS.get(f, ())}
    for name, text in FUNCTIONS.items():
        if name in wanted:
            head.put()
            head.put(text.strip())
    offset = head.text().count("\n")
    lines = tuple(type(l)(l.line + offset, l.spans) for l in out.lines())
    return Source("triton", head.text() + out.text(), lines, tuple(infos))


def _kernels(unit: _Unit) -> tuple[list[KernelInfo], Writer]:
    functions = Functions()
    for kernel in unit.graph.kernels():
        writer = _KernelWriter(unit, kernel, Writer("#", "    "))
        info = writer.write()
        text = writer.out.anonymous((kernel.name, *(writer.names[a] for a in info.arguments)))
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


class _Unit:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.functions: set[str] = set()


def next_power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@dataclass(slots=True)
class _Slot:
    value: Value
    varies: bool  # between the block's points; if not, it may be a number, which loads with masks do not take


class _KernelWriter:
    def __init__(self, unit: _Unit, kernel: Kernel, out: Writer) -> None:
        self.unit, self.source, self.out = unit, kernel, out
        self.nest: Nest = simplify(kernel, unit.graph)
        self.kernel = self.nest.kernel
        self.names: dict[str, str] = {}
        self.slots: dict[str, _Slot] = {}
        self.blocks: dict[str, int] = {}
        self.uses_libdevice = False
        self.checks = False
        self.divides_sums = False
        self.held: dict[tuple[str, tuple[Expr, ...], Expr], str] = {}  # stored elements still in registers
        self.rank = 1
        self.backward = False  # whether the phase walks its columns from their end
        self.stores_first = False  # whether stored elements are to leave the cache first
        self.policies: dict[str, str] = {}  # how loads of the phase's elements treat the cache
        self.columns: frozenset[str] = frozenset()  # the phase's axes
        self.peaks: dict[str, str] = {}  # sums of exponentials, and whose running maximum they share
        # 32-bit indices are faster; symbolic sizes may grow beyond them
        touched = {*kernel.reads(), *kernel.writes()}
        sizes = [buffer.numel() for name, buffer in unit.graph.buffers.items() if name in touched]
        self.wide = any(not s.is_Integer or int(s) >= 2**31 for s in sizes)

    # --- the emitter interface of scalar_ops ---

    def need(self, *functions: str) -> None:
        self.unit.functions |= set(functions)
        self.uses_libdevice |= "libdevice" in functions

    def full(self, text: str, dtype: str) -> str:
        return f"tl.full([{', '.join(['1'] * self.rank)}], {text}, {TYPES[dtype]})"

    # --- the whole kernel ---

    def write(self) -> KernelInfo:
        kernel, out = self.kernel, self.out
        arguments = tuple(dict.fromkeys((*self.source.reads(), *self.source.writes())))
        sizes = self.source.size_symbols()
        for name in (*arguments, *sizes):
            self._claim(name)
        for axis in (*kernel.axes, *(a for p in kernel.phases for a in p.axes)):
            self._claim(axis.name)
        folding = any(p.axes for p in kernel.phases)
        tile = None if folding else self._tile_axes()
        body = Writer("#", "    ")
        self.out = body
        body.open("pass")  # only for the indentation
        if folding:
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
        spans = {l.line: l.spans for l in body.lines()}
        for number, line in enumerate(body.text().rstrip("\n").split("\n")[1:], 2):
            out.put(line, spans.get(number, ()), note=False)
        read, written = bytes_moved(self.source, self.unit.graph)
        signature = {self.names[n]: "*" + _pointee(element(self.unit.graph.buffers[n].dtype)) for n in arguments}
        signature |= {self.names[s]: "i64" for s in sizes}
        return KernelInfo(
            name=self.source.name, kind=self.source.kind, arguments=arguments, written=tuple(self.source.writes()),
            sizes=sizes, operations=self.source.origins, spans=self.source.spans, bytes_read=read, bytes_written=written,
            launch={
                "grid": grid, "options": self._options(warps), "blocks": dict(self.blocks), "signature": signature,
                "device": self.unit.graph.buffers[arguments[0]].device if arguments else "cuda",
                "interpretable": not self.uses_libdevice,
            },
        )  # fmt: skip

    def _options(self, warps: int) -> dict[str, Any]:
        """What Triton's compiler is told. Functions of libdevice compute in pairs of numbers, which fusing a product
        with a sum would make inexact: 3.0 ** 1.0 would be less than 3."""
        return {"num_warps": warps} | ({"enable_fp_fusion": False} if self.uses_libdevice else {})

    def _claim(self, name: str) -> str:
        text = re.sub(r"\W", "_", name)
        if text in _RESERVED or keyword.iskeyword(text) or not text[0].isalpha():
            text = f"v_{text}"
        while text in self.names.values() and self.names.get(name) != text:
            text += "_"
        self.names[name] = text
        return text

    # --- blocks ---

    def _program(self) -> str:
        return "tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)"

    def _decode(self, axes: tuple[Axis, ...], flat: str) -> None:
        rest = flat
        for k, axis in enumerate(reversed(axes)):
            size = print_factor(axis.size, self.names, TRITON)
            last = k == len(axes) - 1
            self.out.put(f"{self.names[axis.name]} = {rest}" if last else f"{self.names[axis.name]} = {rest} % {size}")
            rest = f"({rest}) // {size}" if k else f"{rest} // {size}"

    def _points(self) -> tuple[Expr, int]:
        axes, out = self.kernel.axes, self.out
        total = sympy.Mul(*(a.size for a in axes))
        block = POINTS
        if total.is_Integer:
            block = min(block, max(16, next_power_of_two(int(total))))
        self.blocks["XBLOCK"] = block
        out.put(f"x = {self._program()} * XBLOCK + tl.arange(0, XBLOCK)")
        exact = total.is_Integer and int(total) % block == 0
        self.mask = "" if exact else "xmask"
        if not exact:
            out.put(f"xmask = x < {print_factor(total, self.names, TRITON)}")
        self.spread = "tl.zeros([XBLOCK], tl.int32)"
        self.shape_names = frozenset(a.name for a in axes)
        self._decode(axes, "x")
        self._straight([op for p in self.kernel.phases for op in p.body])
        return _ceiling(total, block), 4 if block >= 512 else 1

    def _tile_axes(self) -> tuple[Axis, Axis] | None:
        """(outer, inner) axes of a two-dimensional tile, where some access is contiguous along each."""
        axes = self.kernel.axes
        if len(axes) < 2:
            return None
        names = frozenset(a.name for a in axes)
        contiguous: dict[str, int] = {}
        for op in self.kernel.ops():
            if op.op not in ("load", "store"):
                continue
            form = linear(sympy.sympify(op.args[1]), names)
            for name, step in form.coefficients.items():
                if step == 1 and name not in form.tangled and len(form.coefficients) > 1:
                    contiguous[name] = contiguous.get(name, 0) + (2 if op.op == "store" else 1)
        candidates = [a for a in axes if a.name in contiguous and self.nest.hint(a.size) >= 16]
        if len(candidates) < 2:
            return None
        candidates.sort(key=lambda a: contiguous[a.name])
        return candidates[-2], candidates[-1]

    def _tiles(self, outer: Axis, inner: Axis) -> tuple[Expr, int]:
        out = self.out
        self.rank = 2
        self.blocks |= {"YBLOCK": TILE, "XBLOCK": TILE}
        rest = tuple(a for a in self.kernel.axes if a.name not in (outer.name, inner.name))
        across, down = _ceiling(inner.size, TILE), _ceiling(outer.size, TILE)
        out.put(f"program = {self._program()}")
        columns, rows = print_factor(across, self.names, TRITON), print_factor(down, self.names, TRITON)
        x, y = self.names[inner.name], self.names[outer.name]
        out.put(f"{x} = program % {columns} * XBLOCK + tl.arange(0, XBLOCK)[None, :]")
        row = f"(program // {columns})" if not rest else f"(program // {columns} % {rows})"
        out.put(f"{y} = {row} * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
        if rest:
            out.put(f"block = program // {columns} // {rows}")
            self._decode(rest, "block")
        out.put(
            f"xmask = ({x} < {print_factor(inner.size, self.names, TRITON)})"
            f" & ({y} < {print_factor(outer.size, self.names, TRITON)})"
        )
        self.mask = "xmask"
        self.spread = "tl.zeros([YBLOCK, XBLOCK], tl.int32)"
        self.shape_names = frozenset({outer.name, inner.name})
        self._straight([op for p in self.kernel.phases for op in p.body])
        return across * down * sympy.Mul(*(a.size for a in rest)), 4

    def _rows(self) -> tuple[Expr, int]:
        """Programs over blocks of kernel points, with phases that run over axes of their own."""
        kernel, out = self.kernel, self.out
        self.rank = 2
        total = sympy.Mul(*(a.size for a in kernel.axes))
        lengths = [sympy.Mul(*(a.size for a in p.axes)) for p in kernel.phases if p.axes]
        longest = max(self.nest.hint(n) for n in lengths)
        fits = all(n.is_Integer for n in lengths) and longest <= PERSISTENT
        columns = self._contiguous_along_points()
        walks = self._walks()
        if fits:
            widest = next_power_of_two(longest)
            xblock = max(1, min(POINTS * 2 // widest, 64))
            warps = 4 if widest * xblock <= 2048 else 8 if widest <= 4096 else 16
            if columns and xblock < 32:
                fits = False
        if not fits:
            again = not columns and any("evict_last" in policies.values() for _, policies in walks)
            block = next((b for least, *b in REREAD if again and longest >= least), LOOPED)
            xblock, (widest, warps) = (64, (32, 8)) if columns else (1, block)
            self.stores_first = again
            if again:  # a thread has 64 registers where there are 32 warps: enough for 16 times three values
                widest //= next_power_of_two(-(-(max(map(_registers, kernel.phases)) + self.wide) // 3))
            widest = min(widest, next_power_of_two(longest))
        if total.is_Integer:
            xblock = min(xblock, next_power_of_two(int(total)))
        self.blocks["XBLOCK"] = xblock
        out.put(f"x = {self._program()} * XBLOCK + tl.arange(0, XBLOCK)[:, None]")
        self.point_mask = "" if total.is_Integer and int(total) % xblock == 0 else "xmask"
        if self.point_mask:
            out.put(f"xmask = x < {print_factor(total, self.names, TRITON)}")
        self._decode(kernel.axes, "x")
        stored: set[str] = set()
        for number, (phase, position) in enumerate(zip(kernel.phases, self.nest.positions, strict=True)):
            if fits:
                phase = self._forwarded(phase)
            else:
                self.backward, self.policies = walks[number]
            loads = {o.args[0] for o in phase.body if o.op == "load"}
            if loads & stored:
                out.put("tl.debug_barrier()  # other threads of this program wrote what is read next")
                stored.clear()
            if phase.axes:
                self._phase(number, phase, position, fits, widest)
            else:
                self.mask = self.point_mask
                self.spread = "tl.zeros([XBLOCK, 1], tl.int32)"
                self.shape_names = frozenset(a.name for a in kernel.axes)
                self._straight(phase.body)
            stored |= {o.args[0] for o in phase.body if o.op == "store"}
        return _ceiling(total, xblock), warps

    def _walks(self) -> list[tuple[bool, dict[str, str]]]:
        """For each phase that loops: whether it walks its columns from their end, and how its loads treat the cache.

        A phase begins where the one before ended, so that what that read last is still in cache.
        """
        points = {a.name for a in self.kernel.axes}
        reads = [
            {
                o.args[0] for o in p.body
                if o.op == "load" and names_in(o.args[1]) & {a.name for a in p.axes}
                and points <= names_in(o.args[1])
            }
            for p in self.kernel.phases
        ]  # fmt: skip
        walks: list[tuple[bool, dict[str, str]]] = []
        backward = True
        for number, phase in enumerate(self.kernel.phases):
            if phase.axes:
                backward = not backward and not in_order(phase.body)
            before, after = ({s for r in part for s in r} for part in (reads[:number], reads[number + 1 :]))
            policies = {s: "evict_last" if s in after else "evict_first" for s in reads[number] & (before | after)}
            walks.append((backward, policies))
        return walks

    def _forwarded(self, phase: Phase) -> Phase:
        """The phase without loads of elements that an earlier phase of this program stored: it still holds them.

        Also notes what this phase stores. Holds for persistent phases, whose columns are the same threads' registers.
        """
        names = {a.symbol: sympy.Symbol(f"@{k}", integer=True, nonnegative=True) for k, a in enumerate(phase.axes)}
        sizes = tuple(a.size for a in phase.axes)
        renamed: dict[str, str] = {}
        body: list[Op] = []
        for op in phase.body:
            op = _renamed(op, renamed)
            if op.op in ("load", "store"):
                index = sympy.sympify(op.args[1])
                key = (op.args[0], sizes, index.xreplace(names))
                if op.op == "load" and key in self.held:
                    renamed[op.name] = self.held[key]
                    continue
                if op.op == "store":
                    for other in [k for k in self.held if k[0] == op.args[0] and k != key]:
                        del self.held[other]
                    if not indirect_names(index) and not op.update:
                        self.held[key] = op.args[2]
            body.append(op)
        return Phase(phase.axes, tuple(body))

    def _contiguous_along_points(self) -> bool:
        """True where memory is contiguous along a kernel axis rather than along the phases' axes."""
        inner = outer = 0
        points = frozenset(a.name for a in self.kernel.axes)
        for phase in self.kernel.phases:
            own = frozenset(a.name for a in phase.axes)
            if not own:
                continue
            for op in phase.body:
                if op.op in ("load", "store"):
                    form = linear(sympy.sympify(op.args[1]), own | points)
                    inner += any(form.coefficients.get(n) == 1 for n in own)
                    outer += any(form.coefficients.get(n) == 1 for n in points)
        return outer > inner

    # --- phases with axes ---

    def _phase(self, number: int, phase: Phase, position: Expr, persistent: bool, widest: int) -> None:
        out = self.out
        length = sympy.Mul(*(a.size for a in phase.axes))
        block = f"RBLOCK{number}"
        width = next_power_of_two(int(length)) if persistent else widest
        self.blocks[block] = width
        r = self._claim(f"column{number or ''}")
        size = print_factor(length, self.names, TRITON)
        exact = length.is_Integer and int(length) > 0 and int(length) % width == 0
        inside = self._inside(phase)
        folds = [op for op in phase.body if op.op == "reduce"]
        self.shape_names = frozenset(a.name for a in self.kernel.axes)
        self.mask, self.spread = self.point_mask, "tl.zeros([XBLOCK, 1], tl.int32)"
        self._straight([op for op in phase.body if op.name not in inside])
        self.columns = frozenset(a.name for a in phase.axes)
        self.shape_names |= self.columns
        self.mask = " & ".join(m for m in (self.point_mask, "" if exact else f"{r}mask") if m)
        self.fold_mask = "" if exact else f"{r}mask"
        self.spread = f"tl.zeros([XBLOCK, {block}], tl.int32)"
        self.block = block
        body = [op for op in phase.body if op.name in inside]
        if persistent:
            out.put(f"{r} = tl.arange(0, {block})[None, :]")
            if not exact:
                out.put(f"{r}mask = {r} < {size}")
            self._decode(phase.axes, r)
            for op in body:
                if op.op == "reduce":
                    self._fold_at_once(op, position)
                elif op.op == "scan":
                    self._scan(op)
                else:
                    self._op(op)
            return
        peaks = {op.args[1]: op.name for op in folds if op.args[0] == "max"}
        self.peaks = {op.name: peaks.get(op.args[1], op.name) for op in folds if op.args[0] == "sumexp"}
        for op in folds:
            self._start(op)
        for op in body:
            if op.op == "scan":
                self._start_scan(op)
        out.open(f"for start in range(0, {size}, {block}):")
        start = f"({size} - 1) // {block} * {block} - start" if self.backward else "start"
        out.put(f"{r} = {start} + tl.arange(0, {block})[None, :]")
        if not exact:
            out.put(f"{r}mask = {r} < {size}")
        self._decode(phase.axes, r)
        for op in body:
            if op.op == "reduce":
                self._accumulate(op, position)
            elif op.op == "scan":
                self._scan(op, carried=True)
            else:
                self._op(op)
        out.close("")
        for op in folds:
            self._finish(op)

    def _inside(self, phase: Phase) -> set[str]:
        """Ops of the phase that depend on its axes (reduces and stores belong there too)."""
        own = {a.name for a in phase.axes}
        written = set(self.kernel.writes())
        inside: set[str] = set()
        for op in phase.body:
            index = index_of(op)
            depends = index is not None and bool(names_in(index) & own)
            if (
                depends
                or op.op in ("store", "reduce", "scan")
                or any(n in inside for n in op.operands())
                or (op.op == "load" and op.args[0] in written)
            ):
                inside.add(op.name)
        return inside

    def _identity(self, kind: str, dtype: str) -> str:
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

    def _kept(self, op: Op) -> tuple[str, str]:
        """The folded value with masked columns at the identity, as a full block; and its dtype."""
        kind, name = op.args
        value = self.slots[name].value
        text, dtype = value.text, value.dtype
        if dtype == "bool":
            text, dtype = f"{text}.to(tl.int32)", "i32"
        text = f"tl.broadcast_to({text}, [XBLOCK, {self.block}])"
        if self.fold_mask:
            text = f"tl.where({self.fold_mask}, {text}, {self._identity(kind, dtype)})"
        return text, dtype

    def _folded(self, kind: str, text: str) -> str:
        """A block folded over its columns, as a column."""
        if kind == "sum":
            return f"tl.sum({text}, 1)[:, None]"
        if kind in ("any", "all"):
            return f"tl.{'max' if kind == 'any' else 'min'}({text}, 1)[:, None]"
        self.need(f"fold_{kind}")
        return f"tl.reduce({text}, 1, fold_{kind})[:, None]"

    def _fold_at_once(self, op: Op, position: Expr) -> None:
        kind = op.args[0]
        text, _ = self._kept(op)
        if kind in ("argmax", "argmin"):
            at = self._claim(op.name + "_at")
            self.out.put(f"{op.name}_all = {text}")
            self.out.put(f"{at} = tl.broadcast_to({self._index(position)}, [XBLOCK, {self.block}]).to(tl.int64)")
            if self.fold_mask:
                self.out.put(f"{at} = tl.where({self.fold_mask}, {at}, 9223372036854775807)")
            self._define(op, self._place(kind, f"{op.name}_all", at))
            return
        if kind == "sumexp":
            self.out.put(f"{op.name}_all = {text}", op.spans)
            most = self._folded("max", f"{op.name}_all")
            self._define(op, self._folded("sum", f"tl.exp({op.name}_all - {most})"))
            return
        folded = self._folded(kind, text)
        self._define(op, f"{folded} != 0" if op.dtype == "bool" else folded)

    def _place(self, kind: str, values: str, at: str) -> str:
        """The lowest index among the columns that hold the best value; NaN counts as best."""
        best = self._folded(kind[3:], values)
        name = f"{values}_best"
        self.out.put(f"{name} = {best}")
        chosen = f"({values} == {name}) | (({values} != {values}) & ({name} != {name}))"
        return f"tl.min(tl.where({chosen}, {at}, 9223372036854775807), 1)[:, None]"

    def _start(self, op: Op) -> None:
        kind, name = op.args
        dtype = next((o.dtype for o in self.kernel.ops() if o.name == name), "f32")
        dtype = "i32" if dtype == "bool" else dtype
        shape = f"[XBLOCK, {self.block}]"
        if kind == "sumexp":
            self.out.put(f"{op.name}_sum = tl.full({shape}, 0, {TYPES[dtype]})", op.spans)
            if self.peaks[op.name] != op.name:
                return
        self.out.put(f"{op.name}_all = tl.full({shape}, {self._identity(kind, dtype)}, {TYPES[dtype]})", op.spans)
        if kind in ("argmax", "argmin"):
            self.out.put(f"{op.name}_at = tl.full({shape}, 9223372036854775807, tl.int64)")

    def _accumulate(self, op: Op, position: Expr) -> None:
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
            out.put(f"{total} = tl.maximum({total}, {new}, propagate_nan=tl.PropagateNan.ALL)")
        elif kind == "sum":
            out.put(f"{total} += {text}", op.spans)
        elif kind == "prod":
            out.put(f"{total} *= {text}", op.spans)
        elif kind in ("argmax", "argmin"):
            sign = ">" if kind == "argmax" else "<"
            out.put(f"{op.name}_new = {text}", op.spans)
            new, at = f"{op.name}_new", f"{op.name}_at"
            out.put(f"{op.name}_now = tl.broadcast_to({self._index(position)}, [XBLOCK, {self.block}]).to(tl.int64)")
            now = f"{op.name}_now"
            better = f"({new} {sign} {total}) | (({new} == {total}) & ({now} < {at}))"
            if dtype in ("f32", "f64"):
                better += f" | (({new} != {new}) & ({total} == {total}))"
            if self.fold_mask:
                better = f"({better}) & {self.fold_mask}"
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
            self._define(op, self._place(kind, total, f"{op.name}_at"))
        elif kind == "sumexp":
            lanes, most = f"{self.peaks[op.name]}_all", f"{op.name}_most"
            self.out.put(f"{most} = {self._folded('max', lanes)}", op.spans)
            folded = self._folded("sum", f"{op.name}_sum * tl.exp({lanes} - {most})")
            # as exp(inf - inf) is
            self._define(op, f'tl.where(tl.abs({most}) == float("inf"), float("nan"), {folded})')
        else:
            folded = self._folded(kind, total)
            self._define(op, f"{folded} != 0" if op.dtype == "bool" else folded)

    # --- scans ---

    def _start_scan(self, op: Op) -> None:
        """The carry of a scan whose row takes several blocks."""
        kind, name = op.args
        dtype = next(o.dtype for o in self.kernel.ops() if o.name == name)
        start = 'float("-inf")' if kind == "logsumexp" else self._identity(kind, dtype)
        self.out.put(f"{op.name}_carry = tl.full([XBLOCK, 1], {start}, {TYPES[dtype]})", op.spans)

    def _scan(self, op: Op, *, carried: bool = False) -> None:
        """The running results of a block of columns, after those of the blocks before it where they are ``carried``.

        Columns beyond the row come last, so that they change no result.
        """
        kind, out = op.args[0], self.out
        value = f"tl.broadcast_to({self.slots[op.args[1]].value.text}, [XBLOCK, {self.block}])"
        function = f"scan_{kind}" if kind in ("sum", "logsumexp") else f"fold_{kind}"
        self.need(function)
        block, carry = f"{op.name}_run", f"{op.name}_carry"
        out.put(f"{block} = tl.associative_scan({value}, 1, {function})", op.spans)
        if carried:
            out.put(f"{block} = {function}({carry}, {block})")
            out.put(f"{carry} = {self._last(block)}")
        self._define(op, block)

    def _last(self, block: str) -> str:
        """The last column of a block."""
        columns = f"tl.arange(0, {self.block})[None, :] == {self.block} - 1"
        return f"tl.sum(tl.where({columns}, {block}, 0), 1)[:, None].to({block}.dtype)"

    # --- single ops ---

    def _straight(self, body: list[Op] | tuple[Op, ...]) -> None:
        for op in body:
            self._op(op)

    def _define(self, op: Op, text: str) -> None:
        name = self._claim(op.name)
        self.out.put(f"{name} = {text}", op.spans)
        self._keep(op, name)

    def _keep(self, op: Op, name: str) -> None:
        """What ``op`` computes is in the variable ``name``."""
        varies = op.op in ("reduce", "scan") or any(self.slots[n].varies for n in op.operands())
        index = index_of(op)
        varies = varies or (index is not None and self._varies(index))
        self.slots[op.name] = _Slot(Value(name, op.dtype), varies)

    def _index(self, expression: Expr) -> str:
        names = dict(self.names)
        for indirect in indirect_names(expression):
            names["%" + indirect] = self.slots[indirect].value.text
        text = print_index(self._unbounded(expression, names), names, TRITON)
        for name in ("floor_div", "floor_mod"):
            if f"{name}(" in text:
                self.need(name)
        return text

    def _unbounded(self, expression: Any, names: dict[str, str]) -> Expr:
        """``expression`` whose dividends have no bounds that a compiler could know.

        LLVM divides numbers that it knows to be small in pairs of 16 bits, and ptxas (12.8 to 13.1, for sm_90) loses
        the constant of an ``add.s16x2`` of which only one half is used.
        """

        def divides_sum(e: Any) -> bool:
            return type(e).__name__ in _DIVISIONS and any(a.is_Integer for a in sympy.Add.make_args(e.args[0]))

        found = {e for e in sympy.preorder_traversal(expression) if divides_sum(e)}
        if not found:
            return expression
        self.divides_sums, names[_ZERO.name] = True, "zero"
        return expression.replace(divides_sum, lambda e: e.func(e.args[0] + _ZERO, *e.args[1:]))

    def _op(self, op: Op) -> None:
        if op.op == "load":
            self._load(op)
        elif op.op == "store":
            self._store(op)
        elif op.op == "const":
            number = op.args[0]
            if not isinstance(number, (int, float)):
                raise Unsupported(f"constant {number!r}")
            text = literal(number, op.dtype)
            infix = "" if op.dtype == "bool" or not text[0].isdigit() or op.dtype == "f64" else text
            self.slots[op.name] = _Slot(Value(self.full(text, op.dtype), op.dtype, number, infix), False)
        elif op.op == "index":
            self._define(op, self._position(sympy.sympify(op.args[0])))
        elif op.op == "random":
            self.need("random_word")
            keys = ", ".join(self.slots[k].value.text for k in op.args[:2])
            self._define(op, f"random_word({keys}, {op.args[2]}, {self._position(sympy.sympify(op.args[3]))})")
        elif op.op == "bounds":
            self._bounds(op)
        else:
            values = [self.slots[a].value if isinstance(a, str) else self._number(a, op) for a in op.args]
            if op.op == "cast":
                text = cast(self, op, values[0])
            elif op.op == "bitcast":
                text = bitcast(self, op, values[0])
            elif op.op in TABLE:
                text = TABLE[op.op](self, op, values)
            else:
                raise Unsupported(f"operation {op.op}")
            self._define(op, text)

    def _bounds(self, op: Op) -> None:
        """A checked position. A program stops where it is out of range, as eager's kernels do."""
        value, size, wrap = op.args
        at, n = self.slots[value].value.text, print_factor(size, self.names, TRITON)
        name = self._claim(op.name)
        self.out.put(f"{name} = {f'tl.where({at} < 0, {at} + {n}, {at})' if wrap else at}", op.spans)
        inside = f"({name} >= 0) & ({name} < {n})"
        self.out.put(
            f"tl.device_assert({f'({inside}) | ~({self.mask})' if self.mask else inside}, 'index out of range')"
        )
        self.out.put(f"{name} = tl.where({inside}, {name}, 0)")
        self._keep(op, name)
        self.checks = True

    def _position(self, expression: Expr) -> str:
        """The value of an index expression, as i64."""
        text = self._index(expression)
        if expression.is_Integer:
            return self.full(text, "i64")
        if not (names_in(expression) & self.shape_names) and not indirect_names(expression):
            return f"({text}) + {self.full('0', 'i64')}"
        return f"({text}).to(tl.int64)"

    def _number(self, number: object, op: Op) -> Value:
        if isinstance(number, (int, float)):
            text = literal(number, op.dtype)
            return Value(self.full(text, op.dtype), op.dtype, number)
        raise Unsupported(f"operand {number!r} of {op.op}")

    def _varies(self, index: Any) -> bool:
        return bool(names_in(index) & self.shape_names) or any(self.slots[n].varies for n in indirect_names(index))

    def _load(self, op: Op) -> None:
        storage, index = op.args[0], sympy.sympify(op.args[1])
        dtype = element(self.unit.graph.buffers[storage].dtype)
        if dtype not in TYPES:
            raise Unsupported(f"load of {dtype}")
        pointer = self.names[storage]
        offset = self._index(index)
        address = pointer if index == 0 else f"{pointer} + ({offset})" if " - " in offset else f"{pointer} + {offset}"
        mask = f", {self.mask}, other=0" if self.mask and self._varies(index) else ""
        policy = self.policies.get(storage, "") if names_in(index) & self.columns else ""
        hint = f', eviction_policy="{policy}"' if policy else ""
        text = f"tl.load({address}{mask}{hint})"
        if dtype == "bool":
            text += ".to(tl.int1)"
        self._define(op, text)

    def _store(self, op: Op) -> None:
        storage, index = op.args[0], sympy.sympify(op.args[1])
        value = self.slots[op.args[2]].value.text
        text = self._index(index)
        offset = self.spread if index == 0 else f"({text}) + {self.spread}" if not self._full_shape(index) else text
        mask = f", {self.mask}" if self.mask else ""
        if op.dtype == "bool" and op.update in ("max", "min"):  # points that change an element write the same
            changes = f"(({value}) {'!=' if op.update == 'max' else '=='} 0)"
            mask = f", {' & '.join(m for m in (self.mask, changes) if m)}"
        elif op.update not in ("", "last"):
            if (op.update, op.dtype) not in ATOMIC:
                raise Unsupported(f"update {op.update} of {op.dtype}")
            name = f"tl.atomic_{'add' if op.update == 'sum' else op.update}"
            value = f"({value}) + tl.zeros_like({self.spread})"
            self.out.put(f"{name}({self.names[storage]} + {offset}, {value}{mask})", op.spans)
            return
        first = self.stores_first and bool(names_in(index) & self.columns) and storage not in self.kernel.reads()
        hint = ', eviction_policy="evict_first"' if first else ""
        self.out.put(f"tl.store({self.names[storage]} + {offset}, {value}{mask}{hint})", op.spans)

    def _full_shape(self, index: Expr) -> bool:
        """True when the index's own shape is the block's."""
        if indirect_names(index):
            return False
        used = names_in(index)
        if self.rank == 1:
            return bool(used & self.shape_names)
        points = {a.name for a in self.kernel.axes}
        inner = self.shape_names - points
        if not inner:
            return self.shape_names <= used if self.spread.startswith("tl.zeros([Y") else bool(used & self.shape_names)
        return bool(used & inner) and bool(used & points or not points)


def _registers(phase: Phase) -> int:
    """Of 32 bits, that a column of the phase takes for its loads and its folds, and to compute with them."""
    return sum(3 if o.dtype in ("f64", "i64") else 1 for o in phase.body if o.op in ("load", "reduce"))


def _renamed(op: Op, names: dict[str, str]) -> Op:
    """``op`` reading other values."""
    if not names or not any(n in names for n in op.operands()):
        return op
    change = {value_symbol(a): value_symbol(b) for a, b in names.items()}
    arguments = []
    for position, arg in enumerate(op.args):
        if isinstance(arg, str) and not (op.op in ("load", "store", "reduce", "scan") and position == 0):
            arg = names.get(arg, arg)
        elif isinstance(arg, Expr):
            arg = arg.xreplace(change)
        arguments.append(arg)
    return dataclasses.replace(op, args=tuple(arguments))


def _pointee(dtype: str) -> str:
    names = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bool": "i1"}
    return names.get(dtype, dtype)


def _ceiling(total: Expr, block: int) -> Expr:
    """The number of blocks that cover ``total`` points."""
    if block == 1:
        return sympy.sympify(total)
    if total.is_Integer:
        return sympy.Integer(-(-int(total) // block))
    return sympy.floor((total + block - 1) / block)
