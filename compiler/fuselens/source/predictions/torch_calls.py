"""What torch's functions and the methods of tensors give, and the breaks that they cause."""

from __future__ import annotations

from . import tables
from .invocation import Invocation, Rule
from .values import (
    PLAIN,
    TENSOR,
    TENSORS,
    UNKNOWN,
    Array,
    Constant,
    Container,
    Imported,
    Instance,
    Tensor,
    Value,
    item_of,
)

_NUMBERS = Container(PLAIN)
_WITH_PLAIN_FUNCTIONS = ("torch", "torch.cuda", "torch.compiler")

# --- functions ------------------------------------------------------------------------------------------------------


def called(name: str, call: Invocation) -> Value:
    """What torch's function or class ``name`` gives."""
    module, _, last = name.rpartition(".")
    if name in _RULES:
        return _RULES[name](call)
    if name == "torch._check" and isinstance(call.first, Tensor):
        call.found("FL104", what="torch._check", why="it checks a tensor")
    if module in ("torch.nn", "torch.nn.modules") and last[:1].isupper():
        return Instance(f"torch.nn.{last}", contents=_contents(last, call))
    if module in tables.TENSOR_MODULES and last.islower() and last not in tables.NO_TENSOR:
        return _operation(last, call)
    return PLAIN if module in _WITH_PLAIN_FUNCTIONS and last in tables.PLAIN_FUNCTIONS else UNKNOWN


def _is_tensor(call: Invocation) -> Value:
    return Constant(True) if isinstance(call.first, Tensor) else PLAIN


def _tensor(call: Invocation) -> Value:
    return TENSOR


_RULES: dict[str, Rule] = {
    "torch.is_tensor": _is_tensor,
    "torch.from_numpy": _tensor,
    "torch.Tensor": _tensor,
    "torch.nn.Parameter": _tensor,
    "torch.nn.parameter.Parameter": _tensor,
}


def _contents(container: str, call: Invocation) -> tuple[Value, ...]:
    """The modules that a container of modules is made of."""
    if container == "Sequential":
        return call.arguments
    if container == "ModuleList" and isinstance(call.first, Container):
        return call.first.elements or (item_of(call.first),)
    return ()


def _operation(name: str, call: Invocation) -> Value:
    """A function that computes tensors."""
    if name in ("equal", "allclose", "is_nonzero"):
        call.found("FL102")
        return PLAIN
    if name == "where" and len(call.arguments) + len(call.keywords) == 1:
        call.found("FL108")
        return TENSORS
    if name == "one_hot" and len(call.arguments) == 1 and not call.keywords:
        call.found("FL102")
    numbers = (i for i in tables.DATA_AS_NUMBER.get(name, ()) if i < len(call.arguments))
    if any(isinstance(call.arguments[i], Tensor) for i in numbers):
        call.found("FL102")
    rest = call.arguments[1:] if isinstance(call.first, Tensor) else (UNKNOWN,)
    return _result(call.first, name, call.with_arguments(rest))


# --- methods --------------------------------------------------------------------------------------------------------


def method(owner: Tensor, name: str, call: Invocation) -> Value:
    """What the method ``name`` of a tensor gives."""
    if name in tables.TO_PYTHON:
        call.found("FL102")
        return _NUMBERS if name == "tolist" else PLAIN
    if name == "backward":
        call.found("FL122")
        return PLAIN
    if name in tables.EAGER_METHODS:
        call.found("FL104", what=f"Tensor.{name}", why="it runs eagerly")
        return UNKNOWN
    if name == "numpy":
        return Array()
    if name in tables.PLAIN_METHODS or (name == "type" and not call.arguments):
        return PLAIN
    return _result(owner, name, call)


def data_dependent(call: Invocation) -> Value:
    """A result whose shape depends on data."""
    call.found("FL108")
    several = any(
        value == Constant(True) and (name == "as_tuple" or name.startswith("return_"))
        for name, value in call.keywords.items()
    )
    return TENSORS if several else TENSOR


def _result(owner: Value, name: str, call: Invocation) -> Value:
    """What the operation ``name`` gives for the tensor ``owner`` and the further arguments of ``call``."""
    second = call.first
    if name in tables.DATA_DEPENDENT or (name == "repeat_interleave" and isinstance(second, Tensor)):
        return data_dependent(call)
    along = bool(call.arguments) or "dim" in call.keywords or "axis" in call.keywords
    if name in tables.PAIRS or (name in tables.PAIRS_ALONG and along and not isinstance(second, Tensor)):
        return TENSORS
    return Tensor(_is_mask(owner, name, call), _is_single(owner, name, along))


def _is_mask(owner: Value, name: str, call: Invocation) -> bool:
    """Whether a result is of booleans."""
    if name in tables.MASK_METHODS or name in ("any", "all"):
        return True
    if isinstance(owner, Tensor) and owner.mask and name in tables.KEEPING:
        return True
    converts = name in ("to", "type", "view") or "dtype" in call.keywords
    return converts and Imported("torch.bool") in (*call.arguments, *call.keywords.values())


def _is_single(owner: Value, name: str, along: bool) -> bool:
    """Whether a result has no dimensions."""
    if name in tables.REDUCTIONS and not along:
        return True
    return isinstance(owner, Tensor) and owner.single and name in tables.POINTWISE
