"""Captured graphs in which data decides numbers, sizes, or which of their bodies run.

Operators that decide so run as they were captured, and so does what computes with numbers alone. What lies between them
are *parts*: graphs like others, of inputs that have those sizes. So are the bodies of ``cond`` and ``while_loop``. A part
is compiled when it first runs, for sizes that vary; again where a guard on its inputs does not hold, as for sizes of 0 and 1.
"""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ... import torch_private
from ...autograd.tracing.captured_nodes import may_write
from ...autograd.untraceable import Untraceable
from ...capture.bodies.higher_order import Operator
from ...capture.breaks import Break
from ...capture.frame.captured import Captured, Cut
from ...capture.hook import _hook, tensor_layout
from ...capture.kept import graphs
from ...capture.tracing import fake_calls
from ...capture.tracing import sources as src
from ...capture.tracing.sources import GuardProgram
from ...capture.tracing.symbols import INTEGER, LARGEST, NotGuardable, Sizes
from ...ir.graphs.straight_line import straight_line
from ..refusals import Call, Ready, as_captured
from .units import Unit, between_decisions, borders, has_bodies_to_choose, stands_for_all, units_pass


@dataclass(frozen=True)
class Compiler:
    """What makes the callables of parts. ``start`` never fails; each part is compiled ``limit`` times at most. ``refused`` is
    told why one runs as it was captured."""

    whole: Captured
    start: Callable[[Captured, Sequence[Unit]], Ready]
    refused: Callable[[str], None]
    limit: int

    def in_parts(self, module: fx.GraphModule) -> Call:
        """The callable of a graph, whose parts are what lies between nodes by which data decides: each is compiled when it first
        runs. Raises Untraceable where there is nothing to compile in it, or nothing that can be."""
        units = between_decisions(list(module.graph.nodes), may_write(module))
        if not units_pass(units):
            raise Untraceable("data decides numbers or sizes of it, and its parts pass what is no plain tensor")
        if not any(unit.compiled or any(map(has_bodies_to_choose, unit.nodes)) for unit in units):
            raise Untraceable("data decides numbers or sizes of it, and there is hardly anything else")
        return _run(self._calling(module, units)[0])

    def known_parts(self, units: Sequence[Unit]) -> tuple[Call, list[int | None]]:
        """The callable of the whole graph, whose parts are the ``units``: they are compiled side by side, before it runs, and can be
        kept (:class:`Cut`); also the numbers of the parts by units. Where sizes are symbols, parts are compiled as others are."""
        whole = self.whole
        graph, parts = self._calling(whole.module, units)
        numbers = {id(unit): number for number, part in enumerate(parts) for unit in part.units}
        of_units = [numbers.get(id(unit)) for unit in units]
        if whole.sizes is not None:
            return _run(graph), of_units
        placeholders = (n for n in whole.module.graph.nodes if n.op == "placeholder")
        inputs = dict(zip(placeholders, whole.inputs, strict=True))
        ends = list(itertools.accumulate(len(unit.nodes) for unit in units))
        cuts = list(whole.cuts) or [
            Cut(end - len(unit.nodes), end, unit.compiled, unit.region) for unit, end in zip(units, ends, strict=True)
        ]
        for part in parts:
            at = units.index(part.units[0])
            reads = cuts[at].reads or tuple(None if n in inputs else _layout(n.meta["val"]) for n in part.reads)
            given = [inputs[n] if r is None else _stand_in(*r) for n, r in zip(part.reads, reads, strict=True)]
            captured = part.start(tuple(given), cuts[at])
            cuts[at] = replace(cuts[at], reads=reads, facts=captured.facts, digest=captured.digest)
            whole.keepable &= bool(captured.digest)
        calls = {part: part.finish() for part in parts}
        for node in graph.nodes:  # what a part is given is what its whole graph is guarded for
            node.target = calls.get(node.target, node.target) if node.op == "call_function" else node.target
        whole.cuts = tuple(cuts)
        return _run(graph), of_units

    def _calling(self, module: fx.GraphModule, units: Sequence[Unit]) -> tuple[fx.Graph, list[Part]]:
        """A graph that calls the parts and, in between, what runs as it was captured; and the parts."""
        nodes = list(module.graph.nodes)
        if any(n.op in ("get_attr", "call_module") for n in nodes):
            raise Untraceable("data decides numbers or sizes of it, and it has graphs inside")
        made, known = fx.Graph(), dict[fx.Node, fx.Node]()
        parts, regions = list[Part](), dict[int | None, Part]()
        for node in nodes:
            if node.op == "placeholder":
                known[node] = made.node_copy(node)
        bordered = list(borders(units))
        models: dict[int | None, tuple[Unit, list[fx.Node], list[fx.Node]]] = {}
        for found in bordered:
            known_model = models.get(found[0].region)
            if known_model is None or stands_for_all(found[1]) > stands_for_all(known_model[1]):
                models[found[0].region] = found
        for unit, reads, gives in bordered:
            if not unit.compiled:
                for node in unit.nodes:
                    known[node] = made.node_copy(node, known.__getitem__)
                    if has_bodies_to_choose(node):
                        known[node].target = self._with_bodies(node.target)  # type: ignore[arg-type]
                continue
            part = regions.get(unit.region)
            if part is None:
                model, *border = (unit, reads, gives) if unit.region is None else models[unit.region]
                part = Part(self, model.nodes, *border)
                parts.append(part)
                if unit.region is not None:
                    regions[unit.region] = part
            part.units.append(unit)
            call = made.call_function(part, (tuple(known[r] for r in reads),))
            for k, node in enumerate(gives):
                known[node] = made.call_function(operator.getitem, (call, k))
        made.node_copy(nodes[-1], known.__getitem__)
        return made, parts

    def _with_bodies(self, chooses: Operator) -> Callable[..., Any]:
        """The operator with its bodies compiled."""
        bodies: list[Callable[..., Any]] = []
        for body in chooses.bodies:
            try:
                call = self.in_parts(body)
            except Untraceable:
                bodies.append(body.forward)
            else:
                bodies.append(functools.partial(_of_all, call))
        run = functools.partial(chooses.run, *bodies)
        functools.update_wrapper(run, chooses, ("__name__", "__qualname__"), ())
        return run


def _run(graph: fx.Graph) -> Call:
    return as_captured(torch_private.graph_module(torch.nn.Module(), graph))


def _of_all(call: Call, *inputs: Any) -> Any:
    return call(inputs)


# --- a part that runs -----------------------------------------------------------------------------------------------


class Part:
    """Nodes of a captured graph as a function: a tuple of what they read → a tuple of what others read of them."""

    def __init__(
        self, compiler: Compiler, nodes: list[fx.Node], reads: list[fx.Node], gives: list[fx.Node]
    ) -> None:  # fmt: skip
        self.__name__ = self.__qualname__ = "part"  # for fx
        self.compiler, self.nodes, self.reads, self.gives = compiler, nodes, reads, gives
        self.units: list[Unit] = []  # whose nodes are the same
        self._variants: list[tuple[_hook.Guards, Call]] = []
        self._lock = threading.Lock()

    def __call__(self, inputs: tuple[Any, ...]) -> Any:
        for guards, call in self._variants:
            if guards.check(_nothing, inputs)[0]:
                return call(inputs)
        if len(self._variants) >= self.compiler.limit:
            return self._as_captured(inputs)
        try:
            with self._lock:
                variant = self._variant(inputs)
                self._variants = [*self._variants, variant]
        except Break as found:
            made = self._as_captured(inputs)
            self.compiler.refused(found.diagnostic("", "").message)  # not where the program itself fails
            return made
        return variant[1](inputs)

    def start(self, inputs: tuple[Any, ...], known: Cut) -> Captured:
        """Starts to compile the part for what it will be given; see :meth:`finish`. ``known`` may be what another process found out."""
        with torch_private.without_torch_function():
            _, captured, self._ready = self._made(inputs, None, known)
        return captured

    def finish(self) -> Call:
        return self._ready()

    def _variant(self, inputs: tuple[Any, ...]) -> tuple[_hook.Guards, Call]:
        """The part compiled for ``inputs`` and others of other sizes, with the guards under which it may be used."""
        with torch_private.without_torch_function():
            try:
                guards, _, ready = self._made(inputs, Sizes(self._names()))
            except NotGuardable:
                guards, _, ready = self._made(inputs, None)
            return guards, ready()

    def _made(
        self, inputs: tuple[Any, ...], sizes: Sizes | None, known: Cut | None = None
    ) -> tuple[_hook.Guards, Captured, Ready]:
        mode, guards = torch_private.fake_mode(sizes.env if sizes else None), GuardProgram()
        fakes = [
            _input(node.meta.get("val"), given, src.local(i, node.name), mode, sizes, guards)
            for i, (node, given) in enumerate(zip(self.reads, inputs, strict=True))
        ]
        if sizes is not None and not (sizes.tensors or sizes.integers or sizes.floats):
            return self._made(inputs, None)
        whole, kept = self.compiler.whole, known is not None and bool(known.digest)
        layouts = [(f.shape, f.stride()) if isinstance(f, torch.Tensor) else None for f in fakes]
        module = torch_private.graph_module(torch.nn.Module(), self._graph(None if kept else mode, fakes))
        for i, layout in enumerate(layouts):
            if layout is not None and torch_private.differs(fakes[i], inputs[i]):
                fakes[i] = torch_private.fake_of_layout(mode, inputs[i], *layout)
        captured = Captured(
            module=module,
            inputs=list(inputs),
            fakes=fakes,
            grad_enabled=torch.is_grad_enabled(),
            frame=whole.frame,
            span=next((n.meta["span"] for n in self.nodes if n.meta.get("span")), whole.span),
            operations=len(self.nodes),
            fake_mode=mode,
            sizes=sizes,
            arguments=tuple(i for i, t in enumerate(inputs) if isinstance(t, torch.Tensor)),
        )
        if known is not None and kept:
            captured.facts, captured.digest = known.facts, known.digest
            captured.pending = graphs.filling(module, fakes, mode, captured.grad_enabled)
        ready = self.compiler.start(captured, self.units)
        captured.inputs.clear()  # as for whole graphs: they are not kept alive
        if sizes is not None:
            sizes.add_guards(guards)
        return guards.build(), captured, ready

    def _graph(self, mode: Any, fakes: Sequence[Any]) -> fx.Graph:
        """The nodes as a graph of their own, traced for ``fakes``; with None for ``mode`` as they are."""
        graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
        for node, fake in zip(self.reads, fakes, strict=True):
            known[node] = graph.placeholder(node.name)
            known[node].meta = {"val": fake, "span": node.meta.get("span"), "source": node.name}
        for node in self.nodes:
            made = known[node] = graph.node_copy(node, known.__getitem__)
            if mode is not None:
                args, kwargs = fake_calls.fakes_of(made.args), fake_calls.fakes_of(made.kwargs)
                made.meta["val"] = fake_calls.run(mode, made.op, made.target, args, kwargs, node.name)
        graph.output(tuple(known[n] for n in self.gives))
        return graph

    @functools.cached_property
    def _as_captured(self) -> Call:
        nothing = [None] * len(self.reads)
        return straight_line(torch_private.graph_module(torch.nn.Module(), self._graph(None, nothing)))

    def _names(self) -> dict[str, dict[int, str]]:
        """The names of sizes and numbers in the whole graph."""
        whole = self.compiler.whole
        named, found = whole.sizes.names if whole.sizes else {}, dict[str, dict[int, str]]()
        for node in self.reads:
            value = node.meta["val"]
            of = dict(enumerate(value.shape)) if isinstance(value, torch.Tensor) else {INTEGER: value}
            texts = {d: str(torch_private.raw_expression(n)) for d, n in of.items() if isinstance(n, torch.SymInt)}
            found[node.name] = {d: named.get(text, text) for d, text in texts.items() if text.isidentifier()}
        return found


def _layout(value: Any) -> tuple[Any, ...]:
    """What is kept of a value that passes; of a number, itself."""
    if not isinstance(value, torch.Tensor):
        return (value,)
    return value.dtype, value.device, tuple(value.shape), value.stride(), value.requires_grad


def _stand_in(first: Any, *layout: Any) -> Any:
    """A tensor like what a graph computes, without values."""
    if not layout:
        return first
    dtype, (device, sizes, strides, requires_grad) = first, layout
    made = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    if not requires_grad:
        return made
    with torch.enable_grad():
        return made.requires_grad_().view_as(made)  # which is no leaf


def _nothing() -> None:
    """The function whose arguments a part's inputs are."""


def _input(value: Any, given: Any, source: src.Source, mode: Any, sizes: Sizes | None, guards: GuardProgram) -> Any:
    """What stands for an input: ``value`` in the whole graph, ``given`` now. What is relied on is guarded."""
    if isinstance(given, torch.Tensor):
        sizes_of = value.shape if sizes else ()
        varying = [d for d, n in enumerate(sizes_of) if isinstance(n, torch.SymInt) and given.shape[d] > 1]
        dims = dict.fromkeys(varying, False)
        spec = tensor_layout.spec(given, frozenset(dims))
        guards.check(source, _hook.TENSOR, spec, name="TENSOR", text=source.text, span=None)
        if sizes is None or not dims:
            return torch_private.fake_static(mode, given)
        return sizes.fake(mode, given, dims, source, None)
    guards.check(source, _hook.TYPE_IS, type(given), name="TYPE", text=source.text, span=None)
    if sizes is not None and type(given) is float and isinstance(value, torch.SymFloat):
        return sizes.float(given, source)
    if sizes is not None and type(given) is int and isinstance(value, torch.SymInt) and 1 < given <= LARGEST:
        return sizes.integer(given, source, None)
    guards.check(source, _hook.EQUALS, given, name="EQUALS", text=source.text, span=None)
    return given
