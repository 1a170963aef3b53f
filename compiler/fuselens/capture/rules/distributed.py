"""torch.distributed while tracing.

Of distributed tensors it is known what they are made of and laid out by, and their own functions are nodes of the graph. The
functions run as a whole, since they decide by the layout of a tensor and the place of this process in a mesh. Both are guarded.

Plain collectives are nodes of torch's functional ones, and writes of their results. A graph communicates where the program does,
on the groups of the program, which are guarded. What none of torch's functional operators does (point to point, objects, coalesced
calls) runs eagerly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import distributed

from ... import torch_private
from ..breaks import Break
from ..polyfills import collectives as polyfills
from ..tracing import wrappers
from ..values.algebra import Constant, DictValue, FunctionValue, Known, ObjectValue, SequenceValue, TensorValue, Value
from ..values.known import deep_use
from .table import NAMED_RULES, rule

if TYPE_CHECKING:
    from ..machine import Machine

_MODULE = "torch.distributed.tensor._api"


def _known(m: Machine, value: Value, what: str) -> Any:
    """The object that a value stands for, from now on."""
    if isinstance(value, (Constant, Known)):
        return value.value
    if isinstance(value, SequenceValue) and value.kind in (list, tuple):
        return value.kind(_known(m, m.use(v), what) for v in value.items)
    if isinstance(value, DictValue) and value.kind is dict:
        return {k: _known(m, m.use(v), what) for k, v in value.items.items()}
    if isinstance(value, ObjectValue) and value.source is not None:
        m.tracer.guard_identity(value.source, value.value)
        return value.value
    raise Break("FL104", what=what, why=f"its argument {value.describe()} is not known while tracing")


def _as_a_whole(m: Machine, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of a function whose first argument alone is a tensor."""
    what = function.function.__qualname__
    tensor, *rest = [deep_use(m, a) for a in args]
    if not isinstance(tensor, TensorValue):
        raise Break("FL104", what=what, why=f"of {tensor.describe()}")
    known = [_known(m, v, what) for v in rest], {k: _known(m, deep_use(m, v), what) for k, v in kwargs.items()}
    return m.tracer.call("call_function", wrappers.Whole(function.function, *known), (tensor,), {}, what)


for _name in ("DTensor.from_local", "DTensor.to_local", "DTensor.redistribute", "DTensor.full_tensor"):
    NAMED_RULES[_MODULE, _name] = _as_a_whole
NAMED_RULES["torch.distributed.tensor", "distribute_tensor"] = _as_a_whole


# --- plain collectives ------------------------------------------------------------------------------------------------

_PLAIN = "torch.distributed.distributed_c10d"
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


class _Call:
    """One collective while its nodes are made."""

    def __init__(self, m: Machine, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> None:
        self.m, self.what = m, function.function.__qualname__
        signature = inspect.signature(function.function)
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Break("FL104", what=self.what, why=str(error)) from None
        self.given = {name: deep_use(m, value) for name, value in given.arguments.items()}
        self.is_async = self.constant("async_op", False)
        self.group = self._group()

    def refuse(self, why: str) -> Break:
        return Break("FL104", what=self.what, why=why)

    def constant(self, name: str, default: Any = None) -> Any:
        found = self.given.get(name)
        if found is None:
            return default
        if isinstance(found, SequenceValue):
            found = [self.m.use(item) for item in found.items]
            if all(isinstance(item, Constant) for item in found):
                return [item.value for item in found]  # type: ignore[attr-defined]
            raise self.refuse(f"its argument {name} is not known while tracing")
        if not isinstance(found, (Constant, Known)):
            raise self.refuse(f"its argument {name} is {found.describe()}, which is not known while tracing")
        return found.value

    def _group(self) -> Any:
        found = self.given.get("group")
        if found is None or (isinstance(found, Constant) and found.value is None):
            found = self.m.use(self.m.call(FunctionValue(torch_private.default_group(), None), [], {}))
        group = _known(self.m, found, self.what)
        if not isinstance(group, distributed.ProcessGroup):
            raise self.refuse(f"this process is not in the group {found.describe()}")
        if torch_private.coalesces(group):
            raise self.refuse("calls are being coalesced")
        return group

    def tensor(self, name: str) -> TensorValue:
        found = self.given.get(name)
        if not isinstance(found, TensorValue):
            raise self.refuse(f"its argument {name} is {'missing' if found is None else found.describe()}")
        if found.fake.is_complex() or found.fake.is_sparse or not found.fake.is_contiguous():
            raise self.refuse(f"its argument {name} is complex, sparse or not contiguous")
        return found

    def tensors(self, name: str) -> SequenceValue:
        found = self.given.get(name)
        items = [self.m.use(v) for v in found.items] if isinstance(found, SequenceValue) else []
        if not items or not all(isinstance(v, TensorValue) for v in items):
            raise self.refuse(f"its argument {name} is no list of tensors")
        shapes = {(tuple(v.fake.shape), v.fake.dtype) for v in items}  # type: ignore[attr-defined]
        if len(shapes) > 1 or len(items) != self.group.size():
            raise self.refuse("the tensors of a list differ, or are not one for each rank")
        return found  # type: ignore[return-value]

    def reduction(self) -> str:
        found = self.constant("op", distributed.ReduceOp.SUM)
        for name in _REDUCTIONS:
            if found == getattr(distributed.ReduceOp, name):
                return name.lower()
        raise self.refuse("its reduction has no functional form")

    def run(self, function: Callable[..., Any], *args: Value) -> Value:
        """A function of ours, traced."""
        return self.m.use(self.m.call(FunctionValue(function, None), list(args), {}))

    def communicate(self, name: str, tensor: Value, *rest: Any) -> Value:
        given = [Constant(v) if not isinstance(v, list) else SequenceValue(list(map(Constant, v)), list) for v in rest]
        started = self.m.tracer.call(
            "call_function",
            torch_private.collective(name),
            (tensor, *given, Constant(self.group.group_name)),
            {},
            self.what,
        )
        return self.m.tracer.call("call_function", torch_private.collective("wait_tensor"), (started,), {}, self.what)

    def write(self, to: Value, result: Value) -> Value:
        return self.run(polyfills.written, to, result, Constant(bool(self.is_async)))

    def scatter(self, to: Value, result: Value) -> Value:
        return self.run(polyfills.scattered, to, result, Constant(bool(self.is_async)))


def _all_reduce(c: _Call) -> Value:
    tensor = c.tensor("tensor")
    return c.write(tensor, c.communicate("all_reduce", c.run(polyfills.plain, tensor), c.reduction()))


def _broadcast(c: _Call) -> Value:
    tensor = c.tensor("tensor")
    source = torch_private.rank_in_group(c.group, c.constant("src"), c.constant("group_src"))
    return c.write(tensor, c.communicate("broadcast", c.run(polyfills.plain, tensor), source))


def _all_gather_into_tensor(c: _Call) -> Value:
    given = c.run(polyfills.plain, c.tensor("input_tensor"))
    return c.write(c.tensor("output_tensor"), c.communicate("all_gather_into_tensor", given, c.group.size()))


def _reduce_scatter_tensor(c: _Call) -> Value:
    given = c.run(polyfills.plain, c.tensor("input"))
    result = c.communicate("reduce_scatter_tensor", given, c.reduction(), c.group.size())
    return c.write(c.tensor("output"), result)


def _all_gather(c: _Call) -> Value:
    outputs = c.tensors("tensor_list")
    given = c.run(polyfills.as_row, c.tensor("tensor"))
    return c.scatter(outputs, c.communicate("all_gather_into_tensor", given, c.group.size()))


def _reduce_scatter(c: _Call) -> Value:
    given = c.run(polyfills.joined, c.tensors("input_list"))
    result = c.communicate("reduce_scatter_tensor", c.run(polyfills.plain, given), c.reduction(), c.group.size())
    return c.write(c.tensor("output"), result)


def _all_to_all_single(c: _Call) -> Value:
    given = c.run(polyfills.plain, c.tensor("input"))
    splits = [c.constant(name) or [] for name in ("output_split_sizes", "input_split_sizes")]
    if not splits[0] and not splits[1]:
        rows, ranks = given.fake.shape[0], c.group.size()  # type: ignore[attr-defined]
        if not isinstance(rows, int) or rows % ranks:
            raise c.refuse("its rows are not the same number for each rank")
        splits = [[rows // ranks] * ranks] * 2
    return c.write(c.tensor("output"), c.communicate("all_to_all_single", given, *splits))


_RULES: dict[str, Callable[[_Call], Value]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all_single,
}


def _ruled(make: Callable[[_Call], Value]) -> Callable[..., Value]:
    def run(m: Machine, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return make(_Call(m, function, args, kwargs))

    return run


for _name, _make in _RULES.items():
    NAMED_RULES[_PLAIN, _name] = _ruled(_make)


# --- groups -----------------------------------------------------------------------------------------------------------


def _fact(name: str) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        what = f"ProcessGroup.{name}"
        if len(args) != 1 or kwargs:
            raise Break("FL104", what=what, why="it takes no arguments")
        found = getattr(_known(m, m.use(args[0]), what), name)
        return Constant(found() if callable(found) else found)

    return run


def groups() -> None:
    """Of a group its size, the place of this process in it, and its names are known."""
    kind = distributed.ProcessGroup
    for name in ("size", "rank", "name"):
        rule(vars(kind)[name].__func__)(_fact(name))  # of the class it is a method that has no hash, in some releases
    for name in ("group_name", "group_desc"):
        rule(vars(kind)[name].fget)(_fact(name))


if distributed.is_available():
    groups()
