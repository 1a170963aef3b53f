"""Calls of numpy's functions, and of torch's that take arrays or give them.

numpy's numbers are constants, and what it computes of constants is computed while tracing. An array that shares memory with a
tensor is that tensor; what is computed of arrays becomes nodes (``operations.py``)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break
from ..rules.table import rule
from ..values import attributes
from ..values.algebra import ArrayValue, Constant, Known, SequenceValue, TensorValue, Value
from ..values.known import UNKNOWN, deep_use, fold, plain
from . import operations as arrays

if TYPE_CHECKING:
    from ..machine import Machine


def called(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> Value | None:
    """A call of one of numpy's functions or classes of numbers; None when ``function`` is none of them."""
    if not classify.is_of_numpy(function):
        return None
    operation = torch_private.operation(function) if classify.ARRAYS_ARE_TRACED else None
    if operation is None and function not in classify.numpy_makers() and not classify.is_numpy_function(function):
        return None
    if function.__name__.startswith("save"):
        raise Break("FL118", what=what, why="it writes a file")
    given = [m.use(a) for a in args]
    if operation is not None and operation.name in _TAKE_TENSORS:
        given = [_with_arrays(m, v) for v in given]
    if next(arrays.arrays_in(m, (*given, *kwargs.values())), None) is None:
        return _without_arrays(m, operation, function, given, kwargs, what)
    if function in classify.NUMPY_SCALARS and len(given) == 1 and isinstance(given[0], ArrayValue):
        cast = torch_private.operation_of_array("method", "astype")
        return arrays.compute(m, cast, lambda value, dtype: function(value), [given[0], Known(function)], kwargs, what)
    return arrays.compute(m, operation, function, given, kwargs, what)


def _without_arrays(
    m: Machine, operation: Any, function: Any, args: list[Value], kwargs: dict[str, Value], what: str
) -> Value:
    """A call that is given no array: it is made while tracing, unless an array comes out of it."""
    known = [plain(deep_use(m, v)) for v in (*args, *kwargs.values())]
    if operation is not None and not any(v is UNKNOWN for v in known) and operation.name in _MAKERS:
        return arrays.compute(m, operation, function, args, kwargs, what)
    return fold(m, function, args, kwargs, what)


_MAKERS = {
    "arange", "array", "asarray", "ascontiguousarray", "bartlett", "blackman", "diag", "diagflat", "empty", "eye", "fft.fftfreq",
    "fft.rfftfreq", "full", "geomspace", "hamming", "hanning", "identity", "indices", "kaiser", "linspace", "logspace", "ones",
    "tri", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip
"""Functions that make arrays of what is none."""


_TAKE_TENSORS = {
    "array", "asarray", "column_stack", "concatenate", "dot", "dstack", "hstack", "inner", "outer", "stack", "tensordot", "vdot",
    "vstack", "where",
}  # fmt: skip
"""Functions that give arrays of tensors, too: others ask a tensor to compute, or to wrap what they give."""


def _with_arrays(m: Machine, value: Value) -> Value:
    """The arrays that numpy makes of tensors, also of those in a list or a tuple."""
    value = m.use(value)
    if isinstance(value, TensorValue):
        return array_of(m, value, [], {})
    if isinstance(value, SequenceValue) and value.kind in (list, tuple):
        return SequenceValue([_with_arrays(m, v) for v in value.items], value.kind)
    return value


def array_of(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> ArrayValue:
    """``tensor.numpy()``; what it may refuse is left to eager."""
    fake = tensor.fake
    given = dict(zip(("force",), args, strict=False)) | kwargs
    force = m.truth(given.pop("force", Constant(False)))
    plainly = not (fake.is_conj() or fake.is_neg()) and fake.device.type == "cpu" and fake.dtype != torch.bfloat16
    if given or force is not False or not plainly or fake.requires_grad or tensor.kind is not torch.Tensor:
        raise Break("FL104", what="Tensor.numpy", why="it copies, or refuses, or is asked of a class of its own")
    if m.tracer.graphs.nested:
        raise Break("FL104", what="Tensor.numpy", why="inside a function that runs as a whole")
    return ArrayValue(tensor)


def tensor_of(m: Machine, value: Value) -> TensorValue | None:
    """The tensor that shares the memory of an array; None when there is none."""
    value = m.use(value)
    if isinstance(value, ArrayValue) and not value.is_number and not value.flips:
        held = arrays.memory(m, value, "torch.from_numpy")
        return m.tracer.call("call_function", torch.ops.aten.alias.default, (held,), {}, "torch.from_numpy")  # type: ignore[return-value]
    if classify.is_array(value.python_type):
        raise Break("FL104", what="torch.from_numpy", why="no tensor can share this array's memory, or write to it")
    return None


@rule(torch.from_numpy)
def _from_numpy(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = tensor_of(m, args[0]) if len(args) == 1 and not kwargs else None
    if found is None:
        raise Break("FL104", what="torch.from_numpy", why="its argument is no array that is known while tracing")
    return found


_SETTINGS = frozenset({"dtype", "device"})


def _constructor(function: Any) -> None:
    """torch functions that take data: of an array, what they make of a tensor that shares its memory."""

    @rule(function)
    def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        what = f"torch.{function.__name__}"
        given = [deep_use(m, a) for a in args]
        named = {k: deep_use(m, v) for k, v in kwargs.items()}
        if given and isinstance(given[0], Constant) and type(given[0].value) in classify.NUMPY_SCALARS:
            known = torch.from_numpy(given[0].value[None]).dtype
            return m.tracer.call("call_function", function, tuple(given), {"dtype": Constant(known), **named}, what)
        if given and isinstance(given[0], ArrayValue) and given[0].is_number:
            return _copy(m, arrays.memory(m, given[0], what), named, what)
        data = tensor_of(m, given[0]) if given else None
        if data is not None and function is torch.tensor:
            return _copy(m, data, named, what)
        if data is not None:
            return m.tracer.call("call_function", function, (data, *given[1:]), named, what)
        if function is not torch.asarray and len(given) == 1 and isinstance(given[0], SequenceValue):
            leaves = list(_leaves(m, given[0]))
            settings = {k: plain(v) for k, v in named.items() if not v.is_none}
            if any(isinstance(v, TensorValue) for v in leaves) and _SETTINGS.issuperset(settings):
                found = functools.reduce(torch.promote_types, map(_dtype, leaves))
                dtype, device = settings.get("dtype", found), settings.get("device", "cpu")
                if torch.can_cast(found, dtype):  # else eager refuses
                    return _stacked(m, given[0], {"device": Constant(device), "dtype": Constant(dtype)})
        return m.tracer.call("call_function", function, tuple(given), named, what)


for _function in (torch.tensor, torch.as_tensor, torch.asarray):
    _constructor(_function)


def new_tensor(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``tensor.new_tensor(array)``: a copy; None for what is no array."""
    data = m.use(args[0]) if args else None
    if not isinstance(data, ArrayValue) or len(args) > 1 or kwargs.keys() - {"dtype"}:
        return None
    held = arrays.memory(m, data, "Tensor.new_tensor")
    if data.flips:
        return None
    return _copy(m, held, kwargs, "Tensor.new_tensor")


def _copy(m: Machine, held: TensorValue, options: dict[str, Value], what: str) -> Value:
    """A new tensor of the same elements, as ``options`` say."""
    copied = m.use(m.tracer.call("call_method", "clone", (held,), {}, what))
    return m.call(attributes.load(m, copied, "to"), [], options) if options else copied


def _leaves(m: Machine, value: Value) -> Iterator[Value]:
    """What nested lists and tuples hold."""
    if isinstance(value, SequenceValue):
        for item in value.items:
            yield from _leaves(m, m.use(item))
    else:
        yield value


def _dtype(value: Value) -> torch.dtype:
    """The dtype that data has for ``torch.tensor``."""
    if isinstance(value, TensorValue) and value.fake.ndim == 0:
        return value.fake.dtype
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    if value.python_type not in kinds:
        raise Break("FL104", what="torch.tensor", why=f"of {value.describe()} among tensors")
    return kinds[value.python_type]


def _stacked(m: Machine, value: Value, settings: dict[str, Value]) -> Value:
    """``torch.tensor`` of nested lists that hold tensors without dimensions, which may lie on other devices."""
    if isinstance(value, SequenceValue):
        parts = SequenceValue([_stacked(m, m.use(v), settings) for v in value.items], list)
        return m.tracer.call("call_function", torch.stack, (parts,), {}, "torch.tensor")
    if isinstance(value, TensorValue):
        detached = m.tracer.call("call_method", "detach", (value,), {}, "torch.tensor")
        return m.tracer.call("call_method", "to", (detached,), settings, "torch.tensor")
    m.tracer.torch_state.guard_ambient(m.tracer.span)
    return m.tracer.call("call_function", torch.tensor, (value,), settings, "torch.tensor")
