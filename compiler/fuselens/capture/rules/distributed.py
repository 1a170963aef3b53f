"""torch's distributed tensors: what they are made of and laid out by is known, and their own functions are nodes of the graph.

The functions run as a whole, since they decide by the layout of a tensor and the place of this process in a mesh. Both are guarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..breaks import Break
from ..tracing import wrappers
from ..values.algebra import Constant, DictValue, FunctionValue, Known, ObjectValue, SequenceValue, TensorValue, Value
from ..values.known import deep_use
from .table import NAMED_RULES

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
