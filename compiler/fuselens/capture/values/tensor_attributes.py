"""What an attribute of a tensor is: of the graph, of the tensor object itself, or of its class."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ..breaks import Break
from ..hook import _hook
from ..rules import torch_function
from ..tracing import sources as src
from ..tracing import wrappers
from .algebra import Constant, Known, NamedMethod, Opaque, SequenceValue, TensorValue, Value, WrapperValue
from .attributes import (
    ABSENT,
    ATTRIBUTES,
    DELETED,
    absent,
    bind,
    class_attribute,
    class_function,
    class_member,
    load_or_none,
)

if TYPE_CHECKING:
    from ..machine import Machine

_TENSOR_CONSTANTS = {
    "dtype", "device", "ndim", "is_cuda", "is_cpu", "layout", "requires_grad", "is_leaf", "is_sparse",
    "itemsize", "nbytes", "is_quantized", "is_meta", "is_complex", "is_floating_point", "is_mps", "is_xpu", "is_nested",
    "is_mkldnn",
}  # fmt: skip
_TENSOR_VIEWS = {"T", "mT", "H", "mH", "real", "imag", "data"}
_LEAF = {True: torch_private.is_leaf, False: torch_private.is_no_leaf}


@ATTRIBUTES.of(WrapperValue)
def _of_wrapper(m: Machine, value: WrapperValue, name: str) -> Value:
    """An attribute of a tensor that wraps others: what it wraps, or what was set beside."""
    wrapper = value.fake if value.existing is None else value.existing
    if name in value.form.names and (value.source is None or value.form.requires_grad):
        what = f"{value.describe()}.{name}"
        return m.tracer.call("call_function", wrappers.Held(value.form, name), (value,), {}, what)
    defined, place = class_member(m, value.kind, name)
    in_slot = type(defined) is types.MemberDescriptorType
    if name not in vars(wrapper) and not in_slot:  # a library's class, too, may have more than tensors have
        more = defined is not ABSENT and defined is not class_attribute(torch.Tensor, name)
        return bind(m, defined, value, name, place) if more and place is None else _of_tensor(m, value, name)
    obj = getattr(wrapper, name)
    if value.source is None:  # its context, which is the same in each call
        obj = wrappers.known(obj)
        source = src.constant(obj, f"{value.describe()}.{name}")
    else:
        source = src.generic_attribute(value.source, name) if in_slot else src.attribute(value.source, name)
    return m.use(m.tracer.lazy(obj, source))


@ATTRIBUTES.of(TensorValue)
def _of_tensor(m: Machine, value: TensorValue, name: str) -> Value:
    defined, place = class_member(m, value.kind, name) if torch_function.is_subclass(value) else (ABSENT, None)
    if place is None or not hasattr(type(defined), "__set__"):
        assigned = m.tracer.effects.attributes.get((id(value), name))
        if assigned is not None and name != "data":  # that one has a node
            if assigned[1] is DELETED:
                raise absent(value.kind, name)
            return m.use(assigned[1])
    if place is not None:
        item = None if hasattr(type(defined), "__set__") else tensor_item(m, value, name)
        return item or bind(m, defined, value, name, place)
    return load_from_base(m, value, name)


def load_from_base(m: Machine, value: TensorValue, name: str) -> Value:
    """An attribute of a tensor that its class has from torch."""
    found = class_attribute(torch.Tensor, name)
    if isinstance(found, types.GetSetDescriptorType):
        handled = torch_function.dispatched(m, found.__get__, [value], {})
        if handled is not None:
            return handled
    return tensor_attribute(m, value, name)


def tensor_attribute(m: Machine, value: TensorValue, name: str) -> Value:
    """An attribute of a tensor when its class has no say."""
    fake = value.fake
    if name == "shape":
        return m.tracer.call("call_method", "size", (value,), {}, "Tensor.shape")
    if name in _TENSOR_CONSTANTS and not callable(getattr(type(fake), name, None)):
        return _constant_of_tensor(m, value, name)
    if name in _TENSOR_VIEWS:
        return m.tracer.call("call_function", getattr, (value, Constant(name)), {}, f"Tensor.{name}")
    if name == "__class__":
        return Known(value.kind)
    if name in ("grad", "grad_fn"):
        return _autograd(m, value, name)
    found = class_attribute(torch.Tensor, name)
    if found is ABSENT:
        return tensor_item(m, value, name) or _by_getattr(m, value, name)
    if isinstance(found, (property, types.GetSetDescriptorType)):
        raise Break("FL106", what=f"Tensor.{name}", why="this property is read eagerly")
    return NamedMethod(value, name)


def _constant_of_tensor(m: Machine, value: TensorValue, name: str) -> Value:
    """An attribute that the fake tensor knows as well."""
    if name == "nbytes":
        return m.tracer.call("call_function", getattr, (value, Constant(name)), {}, "Tensor.nbytes")
    found = getattr(value.fake, name)
    if name == "is_leaf":
        guard_leaf(m, value)
    return SequenceValue([Constant(v) for v in found], tuple) if isinstance(found, tuple) else Constant(found)


def _by_getattr(m: Machine, value: TensorValue, name: str) -> Value:
    """What the class's ``__getattr__`` gives for an attribute that is nowhere else."""
    getter, place = class_member(m, value.kind, "__getattr__")
    if type(getter) is types.FunctionType:
        return m.use(m.call(class_function(m, getter, place), [value, Constant(name)], {}))
    raise absent(value.kind, name)


def tensor_item(m: Machine, value: TensorValue, name: str) -> Value | None:
    """An attribute that was set on this very tensor; None when there is none. Those made while tracing have none."""
    source = value.source
    if source is None or isinstance(value, WrapperValue):
        return None
    obj = m.tracer.graphs.real(value)
    if name in vars(obj):
        return m.use(m.tracer.lazy(vars(obj)[name], src.attribute(source, name)))
    m.tracer.guard(
        src.instance_dict(source), _hook.MISSING, name, name="MISSING", text=f"{name!r} not in {source}.__dict__"
    )
    return None


def guard_leaf(m: Machine, value: TensorValue) -> None:
    found = value.fake.is_leaf
    if value.source is not None and value.fake.requires_grad:
        m.tracer.guard(value.source, _hook.CALL, _LEAF[found], name="LEAF", text=f"{value.source}.is_leaf is {found}")


def _autograd(m: Machine, value: TensorValue, name: str) -> Value:
    """``.grad`` and ``.grad_fn``."""
    fake, source = value.fake, value.source
    guard_leaf(m, value)
    if name == "grad_fn":
        return Constant(None) if fake.grad_fn is None else Opaque(type(fake.grad_fn), f"{value.describe()}.grad_fn")
    if not fake.is_leaf:
        raise Break("FL106", what=f"{value.describe()}.grad", why="the tensor is not a leaf")
    if source is None:
        return Constant(None)
    assigned = m.tracer.effects.attributes.get((id(value.value), "grad"))
    if assigned is not None:
        return m.use(assigned[1])
    return m.use(m.tracer.lazy(m.tracer.graphs.real(value).grad, src.applied(torch_private.grad_of, source)))


def is_flagged(m: Machine, value: TensorValue, classes: Any) -> bool:
    """Whether an attribute makes a tensor one of torch's kinds of parameters and buffers."""
    if isinstance(classes, tuple):
        return any(is_flagged(m, value, c) for c in classes)
    name = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}.get(classes)
    flag = load_or_none(m, value, name) if name is not None else None
    return flag is not None and m.truth(flag) is True
