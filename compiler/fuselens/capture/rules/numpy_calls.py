"""numpy: its numbers are constants, what it computes of constants is computed while tracing, and arrays that share memory
with tensors are those tensors. What it does with arrays is left to the running program, which alone gives its results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break
from ..tracing import sources as src
from ..values import attributes
from ..values.algebra import ActiveValue, Constant, ObjectValue, SequenceValue, TensorValue, Value
from ..values.known import deep_use, fold, from_plain
from .table import rule

if TYPE_CHECKING:
    from ..machine import Machine


def called(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> Value | None:
    """A call of one of numpy's functions or classes of numbers; None when ``function`` is none of them."""
    if function not in classify.numpy_makers() and not classify.is_numpy_function(function):
        return None
    if function.__name__.startswith("save"):
        raise Break("FL118", what=what, why="it writes a file")
    return fold(m, function, args, kwargs, what)


class ArrayValue(ActiveValue):
    """An array made while tracing that shares the memory of ``tensor``."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: TensorValue) -> None:
        super().__init__(None)
        self.tensor = tensor

    @property
    def python_type(self) -> type:
        return classify.numpy().ndarray

    def attribute(self, m: Machine, name: str) -> Value | None:
        fake = self.tensor.fake
        if name in ("shape", "ndim", "size"):
            size = m.use(attributes.load(m, self.tensor, "shape"))
            assert isinstance(size, SequenceValue)
            if name == "shape":
                return SequenceValue(list(size.items), tuple)
            return Constant(fake.ndim) if name == "ndim" else m.call(attributes.load(m, size, "numel"), [], {})
        if name in ("dtype", "itemsize"):
            return from_plain(getattr(torch_private.array_of(fake.dtype), name), name)
        return None

    @property
    def maker(self) -> Callable[..., Any]:
        return torch.Tensor.numpy

    @property
    def parts(self) -> list[Value]:
        return [self.tensor]


def array_of(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> ArrayValue:
    """``tensor.numpy()``; what it may refuse is left to eager."""
    fake = tensor.fake
    given = dict(zip(("force",), args, strict=False)) | kwargs
    force = m.truth(given.pop("force", Constant(False)))
    plain = not (fake.is_conj() or fake.is_neg()) and fake.device.type == "cpu" and fake.dtype != torch.bfloat16
    if given or force is not False or not plain or fake.requires_grad or tensor.kind is not torch.Tensor:
        raise Break("FL104", what="Tensor.numpy", why="it copies, or refuses, or is asked of a class of its own")
    if len(m.tracer.scopes) > 1:
        raise Break("FL104", what="Tensor.numpy", why="inside a function that runs as a whole")
    return ArrayValue(tensor)


def tensor_of(m: Machine, value: Value) -> TensorValue | None:
    """The tensor that shares the memory of an array; None when there is none."""
    value = m.use(value)
    if isinstance(value, ArrayValue):
        return m.tracer.call("call_function", torch.ops.aten.alias.default, (value.tensor,), {}, "torch.from_numpy")  # type: ignore[return-value]
    if not isinstance(value, ObjectValue) or value.source is None or not classify.is_array(value.python_type):
        return None
    if len(m.tracer.scopes) > 1:
        raise Break("FL104", what="torch.from_numpy", why="inside a function that runs as a whole")
    found = m.tracer.arrays.get(id(value))
    if found is None:
        shared = torch_private.shared_tensor(value.value)
        if shared is None:
            raise Break("FL104", what="torch.from_numpy", why="no tensor can share this array's memory, or write to it")
        found = m.use(m.tracer.lazy(shared, src.applied(torch_private.shared_tensor, value.source)))
        m.tracer.arrays[id(value)] = found
    return m.tracer.call("call_function", torch.ops.aten.alias.default, (found,), {}, "torch.from_numpy")  # type: ignore[return-value]


@rule(torch.from_numpy)
def _from_numpy(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = tensor_of(m, args[0]) if len(args) == 1 and not kwargs else None
    if found is None:
        raise Break("FL104", what="torch.from_numpy", why="its argument is no array that is known while tracing")
    return found


def _constructor(function: Any) -> None:
    """torch functions that take data: of an array, what they make of a tensor that shares its memory."""

    @rule(function)
    def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        what = f"torch.{function.__name__}"
        given = [deep_use(m, a) for a in args]
        named = {k: deep_use(m, v) for k, v in kwargs.items()}
        if given and isinstance(given[0], Constant) and type(given[0].value) in classify.NUMPY_SCALARS:
            raise Break("FL104", what=what, why="the dtype is that of a number of numpy")
        data = tensor_of(m, given[0]) if given else None
        if data is not None and function is torch.tensor:
            copied = m.use(m.tracer.call("call_method", "clone", (data,), {}, what))
            return m.call(attributes.load(m, copied, "to"), [], named) if named else copied
        if data is not None:
            return m.tracer.call("call_function", function, (data, *given[1:]), named, what)
        if function is not torch.asarray and len(given) == 1 and not named and isinstance(given[0], SequenceValue):
            leaves = list(_leaves(m, given[0]))
            if any(isinstance(v, TensorValue) for v in leaves):
                return _stacked(m, given[0], functools.reduce(torch.promote_types, map(_dtype, leaves)))
        return m.tracer.call("call_function", function, tuple(given), named, what)


for _function in (torch.tensor, torch.as_tensor, torch.asarray):
    _constructor(_function)


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


def _stacked(m: Machine, value: Value, dtype: torch.dtype) -> Value:
    """``torch.tensor`` of nested lists that hold tensors without dimensions."""
    if isinstance(value, SequenceValue):
        parts = SequenceValue([_stacked(m, m.use(v), dtype) for v in value.items], list)
        return m.tracer.call("call_function", torch.stack, (parts,), {}, "torch.tensor")
    if isinstance(value, TensorValue):
        detached = m.tracer.call("call_method", "detach", (value,), {}, "torch.tensor")
        return m.tracer.call("call_method", "to", (detached, Constant(dtype)), {}, "torch.tensor")
    m.tracer.guard_ambient()
    return m.tracer.call("call_function", torch.tensor, (value,), {"dtype": Constant(dtype)}, "torch.tensor")
