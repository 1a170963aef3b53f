"""Kernels as one C++ translation unit: GNU vector types, an inlined prelude, OpenMP across kernel points."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType

from ...ir.contracts.source import Functions, KernelInfo, Source, Unsupported, Writer
from ...ir.loops import Graph, Kernel, element
from ..expressions import print_factor
from ..nest import Tuning, layouts
from ..traffic import bytes_moved
from .accesses import AccessWriter
from .body import BodyWriter
from .choices.effort import PARALLEL_WORK
from .choices.kernel_plan import choose
from .choices.tiles import choose as choose_tiles
from .choices.units import choose as choose_units
from .chunks import ChunkWriter
from .folds import FoldWriter
from .host import write_host
from .places import Place
from .translation_unit import TranslationUnit
from .values import ValueWriter
from .vectors.isa import ISAS
from .vectors.parts import C_TYPES
from .vectors.prelude import print_prelude
from .work_units import UnitWriter


def to_cpp(
    graph: Graph, isa: str, *, host: bool = True, floats: Collection[int] = (), float_outputs: Collection[int] = (),
    tunings: Mapping[str, Tuning] = MappingProxyType({}), fast_math: bool = False,
) -> Source:  # fmt: skip
    """All kernels of ``graph`` as one C++17 translation unit for the instruction set ``isa``.

    Each kernel is ``extern "C" void name(pointers…, long sizes…)``: pointers to the first element of each storage
    in :attr:`KernelInfo.arguments`, then the size symbols. With ``host`` the unit also has the graph's host program, where
    one can be written; ``floats`` and ``float_outputs`` are positions of inputs and outputs that are Python floats.
    ``tunings`` overrules choices, by kernel. ``fast_math``: see :mod:`.vectors.fast_maths`; sums are not compensated, divisions
    by constants are products. Raises Unsupported for dtypes and functions it cannot print.
    """
    unit = TranslationUnit(graph, dataclasses.replace(ISAS[isa], fast=fast_math), tunings)
    body = Writer("//")
    infos = _kernels(unit, body)
    program = None
    if host:
        calls = Writer("//")
        try:
            program = write_host(unit, infos, calls, floats, float_outputs)
        except Unsupported:
            pass
        else:
            body.include(calls)
    head = Writer("//")
    head.put(f"// Kernels of graph {graph.name}. Written by fuselens for {isa}; there is nothing to include.")
    if fast_math:
        head.put(
            "// Option fast_math: sums may be reassociated; maths is approximate; NaN, infinity and -0 are not respected."
        )
    head.put(print_prelude(unit.parts, unit.lane_free, unit.isa))
    offset = head.text().count("\n")
    lines = tuple(type(l)(l.line + offset, l.spans) for l in body.lines())
    return Source("cpp", head.text() + body.text(), lines, tuple(infos), program=program)


def _kernels(unit: TranslationUnit, body: Writer) -> list[KernelInfo]:
    functions = Functions()
    for kernel in unit.graph.kernels():
        writer = _KernelWriter(unit, kernel, Writer("//"))
        info = writer.write()
        text = writer.out.anonymous(
            (kernel.name, f"{kernel.name}_part", *(writer.values.names[a] for a in info.arguments))
        )
        functions.add(text, writer.out, info)
    for out, (first, *others) in functions:
        origins = ", ".join(dict.fromkeys(first.operations)) or first.kind
        body.put()
        body.put(f"// {first.name}: {origins}", first.spans)
        if others:
            body.put(f"// also {', '.join(i.name for i in others)}")
        body.forget()
        body.include(out)
    return functions.kernels


def variants(graph: Graph, isa: str, threads: int) -> dict[str, tuple[Tuning, ...]]:
    """By kernel, what else it could be, where it is worth measuring."""
    found: dict[str, tuple[Tuning, ...]] = {}
    unit = TranslationUnit(graph, ISAS[isa])
    for kernel in graph.kernels():
        plan = choose(kernel, unit)
        made = [Tuning(layout, n) for layout in layouts(plan.nest) for n in (1, 2, 4, 8)]
        weighted = plan.nest.hint(plan.weighted_points())
        if threads > 1 and PARALLEL_WORK // 8 <= weighted < PARALLEL_WORK * 8:
            made.append(Tuning(parallel=weighted < PARALLEL_WORK))
        if made:
            found[kernel.name] = tuple(made)
    return found


class _KernelWriter:
    """Prints one kernel: says which arguments it has, and has its body printed by those who know its loops."""

    def __init__(self, unit: TranslationUnit, kernel: Kernel, out: Writer) -> None:
        self.unit, self.source, self.out = unit, kernel, out
        self.plan = choose(kernel, unit)
        self.values = ValueWriter(unit, self.plan, out)
        self.places = self._places()
        self.arguments = tuple(dict.fromkeys(self.places.values()))
        self.written = tuple(dict.fromkeys(self.places[name] for name in kernel.writes()))
        self.sizes = kernel.size_symbols()
        for name in (*self.arguments, *self.sizes, *(a.name for a in self.plan.kernel.all_axes())):
            self.values.claim(name)

    def _places(self) -> dict[str, str]:
        """By storage, the argument whose memory it is: its own, or the one whose memory it takes over in this kernel."""
        buffers = self.unit.graph.buffers
        used = dict.fromkeys((*self.source.reads(), *self.source.writes()))
        places = {}
        for name in used:
            old = next((o for o in used if o != name and self.unit.takes_over(name, o)), name)
            places[name] = old if buffers[old].dtype == buffers[name].dtype else name
        return places

    def write(self) -> KernelInfo:
        for op in self.plan.kernel.ops():
            if op.op != "store" and op.dtype not in C_TYPES:
                raise Unsupported(f"{op.op} of {op.dtype}")
        names, units = self.values.names, choose_units(self.plan)
        accesses = AccessWriter(self.values, {name: names[place] for name, place in self.places.items()})
        bodies = BodyWriter(self.values, accesses, FoldWriter(self.values))
        at = Place(left=str(self.plan.width))
        if units.way == "shared":
            self._open()
            self._nothing_to_index()
            ChunkWriter(bodies).write(at)
            self.out.close()
        else:
            tiles = choose_tiles(self.plan, self.unit) if units.way == "tiles" else None
            self._write_units(UnitWriter(bodies, units, tiles), at)
        read, written = bytes_moved(self.source, self.unit.graph)
        return KernelInfo(
            name=self.source.name, kind=self.source.kind, arguments=self.arguments, written=self.written,
            sizes=self.sizes, operations=self.source.origins, spans=self.source.spans,
            bytes_read=read, bytes_written=written, checks=bool(self.values.checks),
        )  # fmt: skip

    def _write_units(self, writer: UnitWriter, at: Place) -> None:
        """One function for one unit; for several, one that computes some of them, and one that shares them out."""
        out, count = self.out, writer.count()
        if count == "1":
            self._open()
            self._nothing_to_index()
            if self.plan.vector:
                out.put("const long begin = 0, end = 1;")
        else:
            comma = ", " if self.arguments or self.sizes else ""
            parameters = f"{self._parameters()}{comma}long begin, long end"
            out.open(f"static void {self.source.name}_part({parameters}) {{", self.source.spans)
        writer.write(at, several=count != "1")
        if self.plan.streams:
            out.put("__builtin_ia32_sfence();")  # lets other threads see what was stored past the caches
        out.close()
        if count != "1":
            out.put()
            self._entry(count)

    def _open(self) -> None:
        """Opens the exported function."""
        self.out.open(f'extern "C" void {self.source.name}({self._parameters()}) {{', self.source.spans)

    def _parameters(self) -> str:
        sizes = (f"long {self.values.names[s]}" for s in self.sizes)
        return ", ".join([*map(self._parameter, self.arguments), *sizes])

    def _parameter(self, storage: str) -> str:
        buffers = self.unit.graph.buffers
        constant = "" if storage in self.written else "const "
        alone = not any(other != storage and self.unit.same_memory(other, storage) for other in self.arguments)
        restrict = "__restrict " if alone else ""
        return f"{constant}{C_TYPES[element(buffers[storage].dtype)]}* {restrict}{self.values.names[storage]}"

    def _nothing_to_index(self) -> None:
        """Reports positions in dimensions that turn out to have none: not even the first element exists."""
        names, kernel = self.values.names, self.plan.kernel
        sizes = dict.fromkeys(o.args[1] for o in kernel.ops() if o.op == "bounds" and not o.args[1].is_positive)
        points = print_factor(self.plan.points(), names)
        for size in sizes:
            self.out.put(f"if ({print_factor(size, names)} <= 0 && {points} > 0) {{ fuselens_errors |= 2; return; }}")

    def _entry(self, units: str) -> None:
        """The exported function: shares the units between threads when there is enough work."""
        out, names, parallel = self.out, self.values.names, self.plan.tuning.parallel
        points = self.plan.weighted_points()
        self._open()
        self._nothing_to_index()
        given = "".join(f"{names[n]}, " for n in (*self.arguments, *self.sizes))
        serial = f"{self.source.name}_part({given}0, units)"
        out.put(f"const long units = {units};")
        few = parallel is None and points.is_Integer and int(points) < PARALLEL_WORK
        if few or parallel is False:
            out.put(f"{serial};")
        else:
            if parallel is None and not points.is_Integer:
                out.put(f"if ({print_factor(points, names)} < {PARALLEL_WORK}) return {serial};")
            out.open("auto work = [&](long thread, long threads) {")
            out.put(f"{self.source.name}_part({given}units * thread / threads, units * (thread + 1) / threads);")
            out.close("};")
            out.put("parallel(work);")
        out.close()
