"""Operators of ``torch.library.triton_op``: their function is traced, so that the kernels in it are nodes.

Other operators of ``torch.library`` are nodes themselves (``tracing/tracer.py``).
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ..breaks import Break
from ..hook import _hook
from ..polyfills import operators as polyfills
from ..tracing import sources as src
from ..values.algebra import Constant, FunctionValue, Known, SequenceValue, TensorValue, Value
from ..values.known import deep_use

if TYPE_CHECKING:
    from ..machine import Machine

_functions: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], Any]] = weakref.WeakKeyDictionary()


def traced(m: Machine, operator: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The result of an operator whose function is traced; None for others."""
    found = torch_private.triton_operator(operator)
    if found is None:
        return None
    given = _bound(m, found, args, kwargs)
    holder = src.constant(found.definition, found.name)
    same = functools.partial(_is_same, found)
    m.tracer.guard(holder, _hook.CALL, same, name="OPERATOR", text=f"{found.name} is defined as it was")
    tensors = [v for v in _flat(given) if isinstance(v, TensorValue)]
    needs = torch.is_grad_enabled() and any(t.fake.requires_grad for t in tensors)
    if not needs:
        written = [v for v, name in zip(given, found.names, strict=True) if name in found.written]
        every = [SequenceValue(given, tuple), SequenceValue(_flat(written), tuple)]
        operation: Any = found.function
        function = FunctionValue(operation, None)
        # a backward runs with gradients or without; what it is given has none while it is traced
        known = m.tracer.graphs.scopes[-1].grad_mode_known and torch.is_grad_enabled()
        run = polyfills.below_autograd if known else polyfills.counted
        return m.call(FunctionValue(run, None), [function, *every], {})
    if found.formula is None or found.written or any(isinstance(v, SequenceValue) for v in given):
        raise Break("FL124", what=found.name, why="autograd is told of it, which has no formula for it that is traced")
    return m.call(Known(_function(found)), given, {})


def _bound(m: Machine, found: torch_private.TritonOperator, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments in the order of the parameters."""
    values = {**dict(zip(found.names, args, strict=False)), **kwargs}
    missing = [n for n in found.names if n not in values and n not in found.defaults]
    if len(args) > len(found.names) or missing or not values.keys() <= {*found.names}:
        raise Break("FL124", what=found.name, why="its arguments do not fit")
    return [deep_use(m, values[n]) if n in values else Constant(found.defaults[n]) for n in found.names]


def _flat(values: list[Value]) -> list[Value]:
    return [v for value in values for v in (_flat(value.items) if isinstance(value, SequenceValue) else [value])]


def _is_same(found: torch_private.TritonOperator, definition: Any) -> bool:
    return torch_private.triton_operator(found.operator) == found and definition is found.definition


def _function(found: torch_private.TritonOperator) -> Any:
    """The operator as a function of autograd's, made once."""
    parts = found.function, found.setup, found.formula
    assert found.formula is not None
    known = _functions.get(found.definition)
    if known is None or known[0] != parts:
        made = polyfills.with_gradient(found.name.rpartition("::")[2], found.function, found.setup, found.formula)
        known = _functions[found.definition] = parts, made
    return known[1]
