"""``torch.Generator``: an object that only the running graph has, which random operators draw from, in order.

Kernels do not draw from generators, so such a graph runs operator by operator. Where a break is allowed it costs less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import classify
from ..breaks import Break
from ..values.algebra import Constant, NamedMethod, ObjectValue, OpaqueValue, TensorValue, Value
from ..values.known import deep_use
from .table import rule

if TYPE_CHECKING:
    from torch import fx

    from ..machine import Machine

_METHODS = ("manual_seed", "get_state", "set_state", "clone_state")


class DrawnFrom(OpaqueValue):
    """A generator made while tracing; ``node.meta["val"]`` is one of the same device that stands for it."""

    __slots__ = ()

    def attribute(self, m: Machine, name: str) -> Value | None:
        if name == "device":
            return Constant(self.node.meta["val"].device)
        return NamedMethod(self, name) if hasattr(torch.Generator, name) else None


def _record(m: Machine, kind: str, target: Any, args: tuple[Value, ...], result: Any, what: str) -> fx.Node:
    m.tracer.draws_from_generators(what)
    node = m.tracer.graph.create_node(kind, target, tuple(m.tracer.to_argument(a) for a in args))
    node.meta.update(val=result, span=m.tracer.span)
    m.tracer.operations += 1
    return node


@rule(torch.Generator)
def _made(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args = [m.use(a) for a in (*args, *kwargs.values())]
    if len(args) > 1 or set(kwargs) - {"device"} or not all(isinstance(a, Constant) for a in args):
        raise Break("FL115", what="torch.Generator")
    example = torch.Generator(*(a.value for a in args))  # type: ignore[attr-defined]
    return DrawnFrom(_record(m, "call_function", torch.Generator, tuple(args), example, "torch.Generator"))


@rule(classify.unwrapped(torch.manual_seed))
def _manual_seed(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    seed = m.use(args[0] if args else kwargs["seed"])
    if not isinstance(seed, Constant) or type(seed.value) is not int:
        raise Break("FL115", what="torch.manual_seed")
    example = torch.Generator()
    return DrawnFrom(_record(m, "call_function", torch.manual_seed, (seed,), example, "torch.manual_seed"))


def method(m: Machine, value: ObjectValue | DrawnFrom, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of a generator."""
    what = f"Generator.{name}"
    args = [deep_use(m, a) for a in args]
    if name not in _METHODS or kwargs or not all(isinstance(a, (Constant, TensorValue)) for a in args):
        raise Break("FL115", what=what)
    example = torch.Generator(value.value.device if isinstance(value, ObjectValue) else value.node.meta["val"].device)
    if name != "get_state":
        node = _record(m, "call_method", name, (value, *args), example, what)
        return DrawnFrom(node) if name == "clone_state" else value
    with m.tracer.fake_mode:
        state = torch.empty(example.get_state().shape, dtype=torch.uint8)
    return TensorValue(_record(m, "call_method", name, (value, *args), state, what))
