"""Captured graphs in which data decides numbers, sizes, or which of their bodies run.

Operators that decide so run as they were captured, and so does what computes with numbers alone. What lies between them
are *parts*: graphs like others, of inputs that have those sizes. So are the bodies of ``cond`` and ``while_loop``. A part
is compiled when it first runs, for sizes that vary; again where a guard on its inputs does not hold, as for sizes of 0 and 1.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .. import torch_private
from ..autograd.tracing.captured_nodes import may_write
from ..autograd.untraceable import Untraceable
from ..capture.bodies.higher_order import Operator
from ..capture.breaks import Break
from ..capture.frame.captured import Captured
from ..capture.hook import _hook, tensor_layout
from ..capture.tracing import fake_calls
from ..capture.tracing import sources as src
from ..capture.tracing.sources import GuardProgram
from ..capture.tracing.symbols import INTEGER, LARGEST, NotGuardable, Sizes, made_symbols
from ..ir.graphs.straight_line import straight_line
from .refusals import as_captured

Call = Callable[[tuple[Any, ...]], Any]
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_SLICES = (operator.getitem, "__getitem__", "narrow", "select", torch.narrow, torch.select, torch_private.item_at)


def decided_by_data(captured: Captured) -> bool:
    """Whether data decides a number, a size, or what runs of the graph."""
    if captured.sizes is not None and torch_private.depends_on_data(captured.sizes.env):
        return True
    return any(_has_bodies_to_choose(n) for n in captured.module.graph.nodes)


@dataclass(frozen=True)
class Compiler:
    """What makes the callables of parts. ``compile`` never fails; each part is compiled ``limit`` times at most. ``refused`` is
    told why one runs as it was captured."""

    whole: Captured
    compile: Callable[[Captured], Call]
    refused: Callable[[str], None]
    limit: int

    def in_parts(self, module: fx.GraphModule, units: Sequence[Unit] | None = None) -> Call:
        """The callable of a graph, whose parts are the ``units``, or what lies between nodes by which data decides. Raises
        Untraceable where there is nothing to compile in it, or nothing that can be."""
        nodes = list(module.graph.nodes)
        if any(n.op in ("get_attr", "call_module") for n in nodes):
            raise Untraceable("data decides numbers or sizes of it, and it has graphs inside")
        units = units or _units(nodes, may_write(module))
        home = {node: unit for unit in units for node in unit.nodes}
        made, known, compiled = fx.Graph(), dict[fx.Node, fx.Node](), 0
        for node in nodes:
            if node.op == "placeholder":
                known[node] = made.node_copy(node)
        for unit in units:
            if not unit.compiled:
                for node in unit.nodes:
                    known[node] = made.node_copy(node, known.__getitem__)
                    if _has_bodies_to_choose(node):
                        known[node].target = self._with_bodies(node.target)  # type: ignore[arg-type]
                        compiled += 1
                continue
            reads = list(dict.fromkeys(r for n in unit.nodes for r in n.all_input_nodes if home.get(r) is not unit))
            gives = [n for n in unit.nodes if any(home.get(u) is not unit for u in n.users)]
            if not all(map(_passes, (*reads, *gives))):
                raise Untraceable("data decides numbers or sizes of it, and its parts pass what is no plain tensor")
            compiled += 1
            call = made.call_function(Part(self, unit.nodes, reads, gives), (tuple(known[r] for r in reads),))
            for k, node in enumerate(gives):
                known[node] = made.call_function(operator.getitem, (call, k))
        if not compiled:
            raise Untraceable("data decides numbers or sizes of it, and there is hardly anything else")
        made.node_copy(nodes[-1], known.__getitem__)
        return as_captured(torch_private.graph_module(torch.nn.Module(), made))

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


def _of_all(call: Call, *inputs: Any) -> Any:
    return call(inputs)


# --- buckets of gradients ---------------------------------------------------------------------------------------------


def buckets(captured: Captured) -> list[Unit]:
    """The parts in which a graph is compiled inside of a ``DistributedDataParallel``: its gradients are reduced by buckets, each
    as soon as it is full. So the backward is in pieces that fill one each, and what a piece computes overlaps with the
    communication of those before it. None where one bucket holds all.

    Buckets are filled in the order in which a backward reaches the parameters, from the last use to the first.
    """
    limits = torch_private.bucket_bytes() if captured.grad_enabled else None
    if limits is None:
        return []
    nodes = list(captured.valued().graph.nodes)
    if any(map(_is_state, nodes)):
        return []
    placeholders = [n for n in nodes if n.op == "placeholder"]
    sizes = {
        placeholders[i]: t.numel() * t.element_size() for i in captured.owned if (t := captured.inputs[i]).requires_grad
    }
    left, found = limits[0], [Unit([], compiled=True)]
    for node in reversed([n for n in nodes if n.op not in ("placeholder", "output")]):
        if left <= 0 and not _container(node) and _computes(node):
            found.append(Unit([], compiled=True))
            left = limits[1]
        found[-1].nodes.append(node)
        for read in node.all_input_nodes:
            left -= sizes.pop(read, 0)
    if len(found) > 1 and not any(map(_computes, found[-1].nodes)):
        found[-2].nodes += found.pop().nodes
    units = [Unit(unit.nodes[::-1], compiled=True) for unit in reversed(found)]
    return units if len(units) > 1 else []


# --- what is a part -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Unit:
    """Nodes that follow one another; ``compiled`` ones are a part."""

    nodes: list[fx.Node]
    compiled: bool


def _units(nodes: Sequence[fx.Node], writes: bool) -> list[Unit]:
    """The nodes in an order in which they may run: what needs nothing of a part that is being collected goes before it, so
    that parts are few. Bodies, which may draw random numbers, do not, and where the graph ``writes`` only numbers do."""
    units: list[Unit] = []
    home: dict[fx.Node, Unit] = {}
    collected: Unit | None = None
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        producer = home.get(_container(node))  # type: ignore[arg-type]
        decides, state = _decides(node), _is_state(node)
        needs = collected is not None and any(home.get(n) is collected for n in node.all_input_nodes)
        if producer is not None:  # one of several results
            producer.nodes.append(node)
            home[node] = producer
        elif not (decides or state) and (needs or not _is_number(node)):
            if collected is None:
                collected = Unit([], compiled=True)
                units.append(collected)
            collected.nodes.append(node)
            home[node] = collected
        else:
            unit = home[node] = Unit([node], compiled=False)
            if collected is None or needs or state or (decides and (writes or _has_bodies_to_choose(node))):
                units.append(unit)
                collected = None
            else:
                units.insert(units.index(collected), unit)
    for unit in units:
        unit.compiled = unit.compiled and any(map(_computes, unit.nodes))
    return units


def _container(node: fx.Node) -> Any:
    """The node of which this one is an item, if that gives several values."""
    of = node.args[0] if node.target is operator.getitem else None
    return of if isinstance(of, fx.Node) and isinstance(of.meta.get("val"), (tuple, list)) else None


def _decides(node: fx.Node) -> bool:
    """Whether data decides what runs, or a number. Gradients through several parts are eager's, too."""
    if _has_bodies_to_choose(node) or node.target is torch.autograd.grad:
        return True
    if node.target in _SLICES and not any(
        isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes[1:]
    ):
        return False  # torch names its size anew, which numbers decide
    return bool(made_symbols(node))


def _has_bodies_to_choose(node: fx.Node) -> bool:
    return isinstance(node.target, Operator) and node.target.data_decides


def _is_number(node: fx.Node) -> bool:
    """Whether the node computes a number, or checks one."""
    return isinstance(node.meta.get("val"), _NUMBERS) or node.target is torch_private.check_number


def _is_state(node: fx.Node) -> bool:
    """Whether the node changes what torch does from then on, as for gradients."""
    changes = (torch_private.SET_GRAD_ENABLED, torch_private.exit_context)
    return node.target in changes or isinstance(node.target, torch_private.EnterContext)


def _computes(node: fx.Node) -> bool:
    """Whether the node does more than to look at its operands otherwise."""
    key, value = torch_private.storage_key, node.meta.get("val")
    if not isinstance(value, torch.Tensor) or torch_private.writes(node):
        return not isinstance(value, _NUMBERS)
    given = (n.meta.get("val") for n in node.all_input_nodes)
    return all(key(t) != key(value) for t in given if isinstance(t, torch.Tensor))


def _passes(node: fx.Node) -> bool:
    """Whether a part may be given what the node gives, or give it."""
    value = node.meta.get("val")
    return isinstance(value, _NUMBERS) or (
        isinstance(value, torch.Tensor)
        and torch_private.fake_mode_of(value) is not None
        and value.layout is torch.strided
    )


# --- a part that runs -----------------------------------------------------------------------------------------------


class Part:
    """Nodes of a captured graph as a function: a tuple of what they read → a tuple of what others read of them."""

    def __init__(
        self, compiler: Compiler, nodes: list[fx.Node], reads: list[fx.Node], gives: list[fx.Node]
    ) -> None:  # fmt: skip
        self.__name__ = self.__qualname__ = "part"  # for fx
        self.compiler, self.nodes, self.reads, self.gives = compiler, nodes, reads, gives
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

    def _variant(self, inputs: tuple[Any, ...]) -> tuple[_hook.Guards, Call]:
        """The part compiled for ``inputs`` and others of other sizes, with the guards under which it may be used."""
        with torch_private.without_torch_function():
            try:
                return self._made(inputs, Sizes(self._names()))
            except NotGuardable:
                return self._made(inputs, None)

    def _made(self, inputs: tuple[Any, ...], sizes: Sizes | None) -> tuple[_hook.Guards, Call]:
        mode, guards = torch_private.fake_mode(sizes.env if sizes else None), GuardProgram()
        fakes = [
            _input(node.meta["val"], given, src.local(i, node.name), mode, sizes, guards)
            for i, (node, given) in enumerate(zip(self.reads, inputs, strict=True))
        ]
        if sizes is not None and not (sizes.tensors or sizes.integers or sizes.floats):
            return self._made(inputs, None)
        layouts = [(f.shape, f.stride()) if isinstance(f, torch.Tensor) else None for f in fakes]
        graph = self._graph(mode, fakes)
        for i, layout in enumerate(layouts):
            if layout is not None and torch_private.differs(fakes[i], inputs[i]):
                fakes[i] = torch_private.fake_of_layout(mode, inputs[i], *layout)
        whole = self.compiler.whole
        captured = Captured(
            module=torch_private.graph_module(torch.nn.Module(), graph),
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
        call = self.compiler.compile(captured)
        captured.inputs.clear()  # as for whole graphs: they are not kept alive
        if sizes is not None:
            sizes.add_guards(guards)
        return guards.build(), call

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


def _nothing() -> None:
    """The function whose arguments a part's inputs are."""


def _input(value: Any, given: Any, source: src.Source, mode: Any, sizes: Sizes | None, guards: GuardProgram) -> Any:
    """What stands for an input: ``value`` in the whole graph, ``given`` now. What is relied on is guarded."""
    if isinstance(given, torch.Tensor):
        varying = [d for d, n in enumerate(value.shape) if isinstance(n, torch.SymInt) and given.shape[d] > 1]
        dims = dict.fromkeys(varying if sizes else (), False)
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
