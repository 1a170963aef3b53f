"""Kernels as one C++ translation unit: GNU vector types, an inlined prelude, OpenMP across kernel points."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import sympy
from sympy import Expr

from ...ir.contracts.source import Functions, KernelInfo, Source, Unsupported, Writer
from ...ir.loops import Graph, element
from ..expressions import print_factor
from ..nest import Tuning, layouts
from ..traffic import bytes_moved
from .choices.effort import PARALLEL_WORK, dearness
from .chunks import ChunkWriter
from .host import write_host
from .unit import Unit
from .vectors.isa import ISAS
from .vectors.parts import C_TYPES
from .vectors.prelude import print_prelude


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
    unit = Unit(graph, dataclasses.replace(ISAS[isa], fast=fast_math), tunings)
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


def _kernels(unit: Unit, body: Writer) -> list[KernelInfo]:
    functions = Functions()
    for kernel in unit.graph.kernels():
        writer = _KernelWriter(unit, kernel, Writer("//"))
        info = writer.write()
        text = writer.out.anonymous((kernel.name, f"{kernel.name}_part", *(writer.names[a] for a in info.arguments)))
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
    for kernel in graph.kernels():
        writer = _KernelWriter(Unit(graph, ISAS[isa]), kernel, Writer("//"))
        made = [Tuning(layout, n) for layout in layouts(writer.nest) for n in (1, 2, 4, 8)]
        weighted = writer.nest.hint(writer.weighted_points())
        if threads > 1 and PARALLEL_WORK // 8 <= weighted < PARALLEL_WORK * 8:
            made.append(Tuning(parallel=weighted < PARALLEL_WORK))
        if made:
            found[kernel.name] = tuple(made)
    return found


class _KernelWriter(ChunkWriter):
    """Prints one kernel."""

    def write(self) -> KernelInfo:
        kernel, out = self.kernel, self.out
        used = dict.fromkeys((*self.source.reads(), *self.source.writes()))
        place = {name: self._place(name, used) for name in used}
        arguments = tuple(dict.fromkeys(place.values()))
        self.written = frozenset(place[name] for name in self.written)
        sizes = self.source.size_symbols()
        for op in kernel.ops():
            if op.op != "store" and op.dtype not in C_TYPES:
                raise Unsupported(f"{op.op} of {op.dtype}")
        axes = kernel.all_axes()
        for name in (*arguments, *sizes, *(a.name for a in axes)):
            self.claim(name)
        for name in used:
            self.pointers[name] = self.names[place[name]]
        parameters = ", ".join(
            [*(self._parameter(n, arguments) for n in arguments), *(f"long {self.names[s]}" for s in sizes)]
        )
        passed = ", ".join([self.names[n] for n in (*arguments, *sizes)])
        if self.plan.layout == "whole" or self.plan.shared:
            out.open(f'extern "C" void {self.source.name}({parameters}) {{', self.source.spans)
            self._nothing_to_index()
            self._whole()
            out.close()
        else:
            units, begin = self._units()
            if units == "1":
                out.open(f'extern "C" void {self.source.name}({parameters}) {{', self.source.spans)
                self._nothing_to_index()
                if self.plan.vector:
                    out.put("const long begin = 0, end = 1;")
                begin(False)
                self._close_streams()
                out.close()
            else:
                more = f"{parameters}, " if parameters else ""
                out.open(f"static void {self.source.name}_part({more}long begin, long end) {{", self.source.spans)
                begin(True)
                self._close_streams()
                out.close()
                self._entry(parameters, passed, units)
        read, written = bytes_moved(self.source, self.unit.graph)
        return KernelInfo(
            name=self.source.name, kind=self.source.kind, arguments=arguments,
            written=tuple(dict.fromkeys(place[name] for name in self.source.writes())), sizes=sizes,
            operations=self.source.origins, spans=self.source.spans, bytes_read=read, bytes_written=written,
            checks=self.checks,
        )  # fmt: skip

    def _place(self, storage: str, used: Iterable[str]) -> str:
        """The argument whose memory the storage is: its own, or the one whose memory it takes over in this kernel."""
        buffers = self.unit.graph.buffers
        for other in used:
            if other != storage and self.unit.takes_over(storage, other):
                return other if buffers[other].dtype == buffers[storage].dtype else storage
        return storage

    def _parameter(self, storage: str, arguments: tuple[str, ...]) -> str:
        buffers = self.unit.graph.buffers
        constant = "" if storage in self.written else "const "
        alone = not any(other != storage and self.unit.same_memory(other, storage) for other in arguments)
        restrict = "__restrict " if alone else ""
        return f"{constant}{C_TYPES[element(buffers[storage].dtype)]}* {restrict}{self.names[storage]}"

    def _points(self) -> Expr:
        """How often the body runs, over all phases."""
        inner = sum(sympy.Mul(*(a.size for a in p.axes)) for p in self.kernel.phases if p.axes) or 1
        return sympy.Mul(*(a.size for a in self.kernel.axes)) * inner

    def _nothing_to_index(self) -> None:
        """Reports positions in dimensions that turn out to have none: not even the first element exists."""
        sizes = dict.fromkeys(o.args[1] for o in self.kernel.ops() if o.op == "bounds" and not o.args[1].is_positive)
        points = print_factor(self._points(), self.names)
        for size in sizes:
            test = f"{print_factor(size, self.names)} <= 0 && {points} > 0"
            self.out.put(f"if ({test}) {{ fuselens_errors |= 2; return; }}")

    def weighted_points(self) -> Expr:
        """Points of the kernel, each counted as often as its functions are dear."""
        return self._points() * (1 + sum(map(dearness, self.kernel.ops())))

    def _entry(self, parameters: str, passed: str, units: str) -> None:
        """The exported function: shares the units between threads when there is enough work."""
        out = self.out
        points = self.weighted_points()
        out.put()
        out.open(f'extern "C" void {self.source.name}({parameters}) {{', self.source.spans)
        self._nothing_to_index()
        comma = f"{passed}, " if passed else ""
        serial = f"{self.source.name}_part({comma}0, units)"
        out.put(f"const long units = {units};")
        few = self.tuning.parallel is None and points.is_Integer and int(points) < PARALLEL_WORK
        if few or self.tuning.parallel is False:
            out.put(f"{serial};")
        else:
            if self.tuning.parallel is None and not points.is_Integer:
                out.put(f"if ({print_factor(points, self.names)} < {PARALLEL_WORK}) return {serial};")
            out.open("auto work = [&](long thread, long threads) {")
            out.put(f"{self.source.name}_part({comma}units * thread / threads, units * (thread + 1) / threads);")
            out.close("};")
            out.put("parallel(work);")
        out.close()
