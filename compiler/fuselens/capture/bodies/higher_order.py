"""Functions that a graph runs as a whole: bodies of function transforms, branches, loops, checkpoints.

A callable is traced with the symbolic machine into a graph of its own (:func:`trace`): its placeholders are the tensors
among its arguments, then what it reads of the graphs around it. A node of the outer graph calls an :class:`Operator`,
which runs such bodies. Since a body may run any number of times, or later, it may not change Python objects that
were there before it (``Effects.touch``).
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import torch_private
from ...ir.graphs.printable import graph_module
from ..breaks import Break, Raised
from ..tracing.graphs import Scope
from ..tracing.tracer import Tracer, specialise
from ..values.algebra import (
    Constant,
    DictValue,
    FunctionValue,
    Known,
    OpaqueValue,
    SequenceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from ..values.known import UNKNOWN, plain

if TYPE_CHECKING:
    from ..machine import Machine


class Operator:
    """What a node calls that runs ``bodies``: ``run(*bodies, *arguments)``, one flat tuple of results.

    ``recomputed`` says that the backward computes the bodies once more, instead of keeping their values; but those
    of operators which ``policy(function, args, kwargs, result)`` chooses. ``data_decides`` which bodies run, or how often.
    """

    def __init__(
        self, name: str, run: Callable[..., tuple[Any, ...]], *bodies: fx.GraphModule, recomputed: bool = False,
        policy: Callable[..., bool] | None = None, data_decides: bool = False,
    ) -> None:  # fmt: skip
        self.__name__ = self.__qualname__ = name
        self.run = run
        self.bodies = bodies
        self.recomputed = recomputed
        self.policy = policy
        self.data_decides = data_decides
        self.traceable = True  # torch cannot run some nestings (forward over reverse inside vmap) under a mode

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        forwards = [b.forward for b in self.bodies]  # not b(...): global module hooks are for the user's modules
        if not torch_private.mode_active():
            return self.run(*forwards, *args)
        if not self.traceable:
            raise RuntimeError("this nesting of function transforms cannot be traced")
        try:
            with torch_private.contained():
                return self.run(*forwards, *args)
        except RuntimeError as error:
            if "INTERNAL ASSERT FAILED" not in str(error):
                raise
            results = torch_private.run_on_meta(lambda *metas: self.run(*forwards, *metas), args)
            if results is None:
                raise
            self.traceable = False
            return results


@dataclass
class Subgraph:
    """A traced function. ``parameters`` and ``captured`` are the outer values that its placeholders stand for, in order."""

    module: fx.GraphModule
    parameters: list[Value]
    captured: list[Value]
    output: Value  # what it returned: a structure whose tensors are nodes of `module`
    leaves: list[TensorValue] = field(default_factory=list)  # those tensors; `module` returns them

    @property
    def inputs(self) -> tuple[Value, Value]:
        """The arguments of an operator that runs this body."""
        return SequenceValue(self.parameters, tuple), SequenceValue(self.captured, tuple)


FakeOf = Callable[[int, TensorValue], torch.Tensor]


def trace(
    m: Machine,
    function: Value,
    args: list[Value],
    kwargs: dict[str, Value],
    fake: FakeOf | None = None,
    grad_enabled: bool | None = None,
    certain: bool = True,
    transform: bool = False,
    mapped: Callable[[int], bool] | None = None,
) -> Subgraph:
    """The graph of ``function(*args, **kwargs)``. Tensors among the arguments become its parameters.

    ``fake(i, tensor)`` is the metadata that the body sees of its i-th parameter; by default the tensor's own. ``certain``
    says that the body runs where it is traced, so that what it raises is raised there; ``transform``, that torch.func runs it;
    ``mapped``, by a parameter's number, whether vmap, which runs it, goes over that.
    """
    args = [resolve(m, a) for a in args]
    kwargs = {k: resolve(m, v) for k, v in kwargs.items()}
    parameters = [*leaves(args), *leaves(kwargs.values())]
    with m.tracer.graphs.scope() as scope, grad_mode(grad_enabled):
        scope.transform = transform
        made = [parameter(m.tracer, scope, p, p.fake if fake is None else fake(i, p)) for i, p in enumerate(parameters)]
        scope.mapped = {p.node for i, p in enumerate(made) if mapped(i)} if mapped is not None else None
        scope.standing = {p.node: outer.node for p, outer in zip(made, parameters, strict=True)}
        inner = iter(made)
        given = [replace(a, inner) for a in args]
        named = {k: replace(v, inner) for k, v in kwargs.items()}
        before = torch.is_grad_enabled()
        try:
            output = resolve(m, m.call(function, given, named))
        except Raised as raised:
            if certain:
                raise
            raise Break("FL107", what=function.describe(), why=raised.kind.__name__) from None
        if torch.is_grad_enabled() != before:
            raise Break("FL110", what="grad mode", why="a transformed function leaves it changed")
        return close(m.tracer, scope, list(parameters), output)


def close(tracer: Tracer, scope: Scope, parameters: list[Value], output: Value) -> Subgraph:
    """The finished graph of ``scope``, which returns the tensors of ``output``."""
    output = _settled(scope, output)
    found = leaves([output])
    scope.graph.output(tuple(tracer.graphs.local(t.node) for t in found))
    module = graph_module(scope.graph)
    captured = [_standing_for(n) for n in scope.captured]
    return Subgraph(module, parameters, captured, output, found)


def _settled(scope: Scope, value: Value) -> Value:
    """What leaves a subgraph: containers of tensors and constants, and what was there before it."""
    if isinstance(value, SequenceValue) and type(value) is SequenceValue:
        return SequenceValue([_settled(scope, v) for v in value.items], value.kind)
    if isinstance(value, DictValue) and value.kind in (dict, OrderedDict):
        return DictValue({k: _settled(scope, v) for k, v in value.items.items()}, value.kind)
    if isinstance(value, SymbolValue) and value.node.graph is scope.graph:
        return Constant(specialise(value))
    before = value.source is not None or value.serial < scope.serial
    if before or isinstance(value, (TensorValue, Constant, Known, FunctionValue)):
        return value
    raise Break("FL104", what="a function that runs as a whole", why=f"{value.describe()} leaves it")


def parameter(tracer: Tracer, scope: Scope, outer: TensorValue, fake: torch.Tensor) -> TensorValue:
    node = scope.placeholder(outer.node.name, fake, tracer.span)
    return TensorValue(node, kind=outer.kind)


def _standing_for(node: fx.Node) -> Value:
    kind = node.meta["val"]
    if isinstance(kind, torch.Tensor):
        return TensorValue(node)
    return SymbolValue(node) if torch_private.is_symbolic_number(kind) else OpaqueValue(node)


@contextmanager
def grad_mode(enabled: bool | None) -> Iterator[None]:
    """Inside, the trace is under this grad mode, which the running operator sets by itself; None leaves it."""
    before = torch.is_grad_enabled()
    if enabled is not None:
        torch_private.set_grad_enabled(enabled)
    try:
        yield
    finally:
        torch_private.set_grad_enabled(before)


def apply(m: Machine, op: Operator, *args: Value) -> list[Value]:
    """Records a node that calls ``op``; its results, as tracked values."""
    tracer = m.tracer
    node, result = tracer.record(op, args, op.__name__)
    found: list[Value] = []
    for i, r in enumerate(result):
        if r is None or isinstance(r, (bool, int, float)):
            found.append(Constant(r))
            continue
        child = tracer.graphs.current.call_function(operator.getitem, (node, i))
        child.meta.update(val=r, span=tracer.span)
        found.append(tracer.wrap_result(child, r, op.__name__) if isinstance(r, torch.Tensor) else OpaqueValue(child))
    return found


# --- structures -------------------------------------------------------------------------------------------------


def resolve(m: Machine, value: Value) -> Value:
    """``value`` with everything looked at that its containers hold."""
    value = m.use(value)
    if isinstance(value, SequenceValue):
        value.items[:] = [resolve(m, v) for v in value.items]  # the same list: iterators look at it
    elif isinstance(value, DictValue):
        value.items.update({k: resolve(m, v) for k, v in value.items.items()})
    return value


def leaves(values: Any) -> list[TensorValue]:
    """The tensors in tracked containers, in order."""
    found: list[TensorValue] = []
    for value in values:
        if isinstance(value, TensorValue):
            found.append(value)
        elif isinstance(value, SequenceValue):
            found += leaves(value.items)
        elif isinstance(value, DictValue):
            found += leaves(value.items.values())
    return found


def replace(value: Value, tensors: Iterator[Value]) -> Value:
    """``value`` with its tensors replaced in order; its containers are made anew."""
    if isinstance(value, TensorValue):
        return next(tensors)
    if isinstance(value, SequenceValue) and (value.kind in (list, tuple) or hasattr(value.kind, "_fields")):
        return SequenceValue([replace(v, tensors) for v in value.items], value.kind)
    if isinstance(value, DictValue) and value.kind in (dict, OrderedDict):
        return DictValue({k: replace(v, tensors) for k, v in value.items.items()}, value.kind)
    if leaves([value]):
        raise Break("FL104", what="a function that runs as a whole", why=f"of tensors in {value.describe()}")
    return value


def of_kind(value: Value, kind: type) -> Value:
    """A tensor that an operator returns as the object that its function made, of the class ``kind``."""
    if isinstance(value, TensorValue) and value.source is None and value.kind is not kind:
        return TensorValue(value.node, kind=kind)
    return value


Fill = Callable[[Iterator[Any]], Any]


def template(value: Value) -> Fill:
    """What makes the Python structure that ``value`` describes, given its tensors in order; for running operators."""
    if isinstance(value, TensorValue):
        return next
    if isinstance(value, SequenceValue):
        items, kind = [template(v) for v in value.items], value.kind
        make = kind if kind in (tuple, list) else lambda found: kind(*found)
        return lambda tensors: make([item(tensors) for item in items])
    assert isinstance(value, DictValue)
    pairs, mapping = {k: template(v) for k, v in value.items.items()}, value.kind
    return lambda tensors: mapping((k, item(tensors)) for k, item in pairs.items())


def flat(structure: Any) -> list[Any]:
    """The leaves of running containers, in the order of :func:`leaves`."""
    if isinstance(structure, dict):
        structure = list(structure.values())
    return [t for s in structure for t in flat(s)] if isinstance(structure, (tuple, list)) else [structure]


def only_tensors(value: Value) -> bool:
    """Whether every leaf of tracked containers is a tensor."""
    if isinstance(value, SequenceValue):
        return all(map(only_tensors, value.items))
    if isinstance(value, DictValue):
        return all(map(only_tensors, value.items.values()))
    return isinstance(value, TensorValue)


def known(m: Machine, value: Value, what: str) -> Any:
    """The Python object of an option, which must be known while tracing."""
    found = plain(resolve(m, value))
    if found is UNKNOWN:
        raise Break("FL104", what=what, why=f"{value.describe()} is not known while tracing")
    return found
