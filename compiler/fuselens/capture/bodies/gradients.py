"""``torch.autograd.grad`` of what the graph computes: one node, whose backward runs, and is compiled, inside the graph."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ..breaks import Break
from ..hook import _hook
from ..rules import torch_function
from ..rules.table import rule
from ..values.algebra import Constant, SequenceValue, TensorValue, Value
from ..values.known import plain
from .higher_order import leaves, only_tensors, resolve

if TYPE_CHECKING:
    from torch import fx

    from ..machine import Machine
    from ..tracing.sources import Source

_SIGNATURE = inspect.signature(torch.autograd.grad)
_WHAT = "torch.autograd.grad"


@rule(torch.autograd.grad)
def _grad(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        bound = dict(_SIGNATURE.bind(*args, **kwargs).arguments)
    except TypeError:
        raise Break("FL122", what=_WHAT) from None
    found = {name: resolve(m, value) for name, value in bound.items()}
    outputs, inputs, given = found.pop("outputs"), found.pop("inputs"), found.pop("grad_outputs", Constant(None))
    options = {name: plain(value) for name, value in found.items()}
    known = all(type(v) in (bool, type(None)) for v in options.values()) and not options.get("is_grads_batched")
    if not known or not _is_inside(m, outputs, inputs, given):
        raise Break("FL122", what=_WHAT)
    placeholders = (n for n in m.tracer.graphs.current.nodes if n.op == "placeholder")
    for node, (source, tensor) in zip(placeholders, m.tracer.graphs.inputs, strict=True):
        _keep_inside(m, node, source, tensor)
    keywords: dict[str, Value] = {name: Constant(value) for name, value in options.items()}
    return m.tracer.call("call_function", torch.autograd.grad, (outputs, inputs, given), keywords, _WHAT, keep=True)


def _is_inside(m: Machine, outputs: Value, inputs: Value, given: Value) -> bool:
    """Whether all that is differentiated is made by this graph, of tensors that it knows."""
    if m.tracer.graphs.nested or not all(only_tensors(v) for v in (outputs, inputs)):
        return False
    if not all(v.source is None and v.fake.requires_grad for v in leaves([outputs])):
        return False
    if any(torch_function.is_subclass(v) for v in leaves([outputs, inputs])):
        return False
    without = given.is_none
    if not without and not isinstance(given, (TensorValue, SequenceValue)):
        return False
    return not torch_private.saved_tensors_hooked()


def _keep_inside(m: Machine, node: fx.Node, source: Source, given: Any) -> None:
    """Guards that what was computed before the graph does not come into it: an input is a leaf, and nobody watches it."""
    fake = node.meta["val"]
    if not isinstance(fake, torch.Tensor) or not fake.requires_grad:
        return
    if not torch_private.is_unwatched_leaf(given):
        raise Break("FL122", what=_WHAT)
    text = f"{source} is a leaf without hooks"
    m.tracer.guard(source, _hook.CALL, torch_private.is_unwatched_leaf, name="LEAF", text=text)
