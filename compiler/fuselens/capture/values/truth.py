"""The truth of tracked values: what ``bool`` of each kind gives."""

from __future__ import annotations

import math
import operator
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import torch_private
from ..arrays import operations as arrays
from ..breaks import Break
from ..rules import torch_function
from ..tracing import contents
from . import attributes
from .algebra import (
    ActiveValue,
    ArrayValue,
    Constant,
    DictValue,
    DictView,
    FunctionValue,
    Known,
    MadeFunction,
    MethodValue,
    ObjectValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    SymbolValue,
    TensorValue,
    TruthValue,
    Value,
)
from .iterators import ITERATORS
from .kinds import PerKind
from .known import PURE

if TYPE_CHECKING:
    from ..machine import Machine


def truth(m: Machine, value: Value) -> bool | None:
    """Python truth of a value; None when only the running program knows."""
    value = m.use(value)
    return _TRUTH[type(value)](m, value)


def _not_traced(m: Machine, value: Value) -> bool | None:
    raise Break("FL105", what=f"the truth of {value.describe()}", why="not traced")


_TRUTH: PerKind[bool | None] = PerKind(_not_traced)


def checked(m: Machine, value: Value, wanted: bool) -> bool:
    """Has the graph check that the truth of a value is ``wanted``: where it is not, the frame runs as it was written. False where
    a graph cannot check that, or cannot undo what it wrote to an input before."""
    if m.tracer.graphs.nested or not m.tracer.graphs.restorable():
        return False
    if isinstance(value, TruthValue):
        value = m.use(value.tensor)
    if isinstance(value, ArrayValue):
        value = arrays.elements(m, value, "a check of values")
    if isinstance(value, SymbolValue) and value.python_type is bool:
        if not wanted:
            value = m.use(m.tracer.call("call_function", torch.sym_not, (value,), {}, "a check of values"))
        m.call(Known(torch_private.CHECK), [value], {})
        return True
    if not isinstance(value, TensorValue) or value.kind not in torch_function.PLAIN or value.fake.numel() != 1:
        return False
    if not wanted:
        value = m.use(m.tracer.call("call_function", torch.logical_not, (value,), {}, "a check of values"))
    m.tracer.check(value, "AssertionError", "")
    return True


@_TRUTH.of(Constant)
def _of_constant(m: Machine, value: Constant) -> bool:
    return bool(value.value)


@_TRUTH.of(TruthValue)
def _not_yet_taken(m: Machine, value: TruthValue) -> bool | None:
    return truth(m, value.tensor)


@_TRUTH.of(ArrayValue)
def _of_data(m: Machine, value: Value) -> None:
    return None


@_TRUTH.of(TensorValue)
def _of_tensor(m: Machine, value: TensorValue) -> bool | None:
    """Known of small integers that are guarded, and of a uniform number that is compared with a bound of those: what skips
    layers with probability 0 never does."""
    if value.fake.numel() == 1 and (known := contents.number(m.tracer, value)) is not None:
        return bool(known.value)
    node = value.node
    compares = _COMPARISONS.get(node.target) if value.kind is torch.Tensor and value.fake.numel() == 1 else None
    if compares is None or node.users or node.kwargs or len(node.args) != 2:
        return None
    drawn, bound = node.args
    if (
        not isinstance(drawn, fx.Node)
        or drawn.target is not torch.rand
        or "out" in drawn.kwargs
        or len(drawn.users) != 1
    ):
        return None  # a second user may have written to it
    if type(bound) not in (int, float):
        return None
    least, most = compares(0.0, bound), compares(math.nextafter(1.0, 0.0), bound)
    return least if least is most else None


_COMPARISONS: dict[Any, Any] = {f: f for f in (operator.lt, operator.le, operator.gt, operator.ge)} | {
    torch.lt: operator.lt, torch.le: operator.le, torch.gt: operator.gt, torch.ge: operator.ge,
}  # fmt: skip


@_TRUTH.of(SymbolValue)
def _of_symbol(m: Machine, value: SymbolValue) -> bool | None:
    number = value.node.meta["val"]
    if m.tracer.sizes is not None and m.tracer.sizes.is_drawn(number):
        return None
    if isinstance(number, torch.SymFloat):
        number = number != 0.0
    try:
        return bool(number)
    except Exception as e:
        if torch_private.needs_data(e):
            return None
        raise


@_TRUTH.of(SequenceValue, DictValue, SetValue)
def _of_container(m: Machine, value: Any) -> bool:
    return bool(value.items)


@_TRUTH.of(DictView)
def _of_view(m: Machine, value: DictView) -> bool:
    return bool(value.mapping.items)


@_TRUTH.of(FunctionValue, MadeFunction, MethodValue, ActiveValue, *ITERATORS)
def _of_other(m: Machine, value: Value) -> bool:
    """What has neither a length nor a truth of its own is true."""
    return True


@_TRUTH.of(ProxyValue)
def _of_proxy(m: Machine, value: ProxyValue) -> bool | None:
    return m.truth(m.call(Known(len), [value.mapping], {}))


@_TRUTH.of(Known)
def _of_known(m: Machine, value: Known) -> bool | None:
    if isinstance(value.value, PURE):
        return bool(value.value)
    if isinstance(value.value, type):
        for name in ("__bool__", "__len__"):
            result = attributes.by_metaclass(m, value, name, [])
            if result is not None:
                return m.truth(result)
        return True
    if isinstance(value.value, types.ModuleType) or callable(value.value):
        return True
    return _not_traced(m, value)


@_TRUTH.of(ObjectValue)
def _of_object(m: Machine, value: ObjectValue) -> bool | None:
    for name in ("__bool__", "__len__"):
        method, _ = attributes.class_member(m, type(value.value), name)
        if method is not attributes.ABSENT:
            return m.truth(m.call(attributes.load(m, value, name), [], {}))
    return True
