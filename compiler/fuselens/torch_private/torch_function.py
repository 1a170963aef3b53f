"""``__torch_function__``: who handles calls of torch, modes and classes."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch.utils.checkpoint

from .names import private

ENABLED, SUBCLASSES_DISABLED, ALL_DISABLED = range(3)
"""Who handles torch functions: modes and classes, modes only, nobody."""
DISABLED_TORCH_FUNCTION = private.disabled_function
DEFAULT_TORCH_FUNCTION: Any = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
MAKE_SUBCLASS = private.make_subclass
DisableTorchFunction, DisableTorchFunctionSubclass = (
    private.DisableTorchFunction,
    private.DisableTorchFunctionSubclass,
)
PUSH_MODE, POP_MODE = private.push_function_mode, private.pop_function_mode
NUMBER_OF_MODES: Callable[[], int] = private.number_of_function_modes
MODE_AT = private.function_mode_at
DEVICE_MODE: Any = private.device_function
default_nowrap_functions = torch.overrides.get_default_nowrap_functions
device_constructors = private.device_constructors


def function_state() -> int:
    """Whose ``__torch_function__`` is asked now: :data:`ENABLED`, :data:`SUBCLASSES_DISABLED` or :data:`ALL_DISABLED`."""
    if private.function_enabled():
        return ENABLED
    return ALL_DISABLED if private.function_all_disabled() else SUBCLASSES_DISABLED


def function_state_flags(state: int) -> list[tuple[Callable[[], bool], bool]]:
    """The builtin functions that tell a :func:`function_state` from others, and what they give then."""
    every, none = private.function_enabled, private.function_all_disabled
    return [(every, state == ENABLED), (none, state == ALL_DISABLED)]


def only_device_modes() -> bool:
    """Whether all active modes are those of ``torch.device``, which change what a trace has in its graph already."""
    modes = map(private.function_mode_at, range(NUMBER_OF_MODES()))
    return all(type(mode).__torch_function__ is DEVICE_MODE for mode in modes)


@dataclasses.dataclass(frozen=True, slots=True)
class ModeAt:
    """Gives the mode at ``depth`` of the stack, whatever it is called with."""

    depth: int

    @property
    def __name__(self) -> str:
        return f"mode {self.depth} of"

    def __call__(self, _: Any) -> Any:
        return private.function_mode_at(self.depth)


def without_torch_function() -> contextlib.AbstractContextManager[Any]:
    """Inside, no code of the program runs when torch functions are called: neither modes nor classes are asked."""
    return DisableTorchFunction() if NUMBER_OF_MODES() else DisableTorchFunctionSubclass()


def plainly(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``run``, in :func:`without_torch_function`."""

    def call(inputs: Any) -> Any:
        with without_torch_function():
            return run(inputs)

    return call


def change_modes(left: int, entered: tuple[Any, ...]) -> None:
    """Leaves some of the function modes that surround the call, and enters others."""
    for _ in range(left):
        POP_MODE()
    for mode in entered:
        PUSH_MODE(mode)


def takes_class(cls: type) -> bool:
    """Whether a plain tensor becomes an instance of ``cls`` by ``tensor.__class__ = cls``, which then behaves as one."""
    if cls.__torch_dispatch__ is not private.disabled_dispatch:  # type: ignore[attr-defined]
        return False
    if issubclass(cls, torch.nn.parameter.UninitializedTensorMixin):
        return False
    try:
        torch.empty(0, device="meta").__class__ = cls
    except TypeError:
        return False
    return True


def set_class(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """Makes ``tensor``, which nobody else has, an instance of ``cls`` (see :func:`takes_class`)."""
    tensor.__class__ = cls
    return tensor


def example(cls: type) -> torch.Tensor:
    """An empty tensor of the class ``cls``."""
    return set_class(torch.empty(0), cls)


class _Overheard(BaseException):
    """What a mode was asked about."""


class _Listening(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Overheard(func, types, args, kwargs)


def overheard(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], state: int) -> Any:
    """(function, types, args, kwargs) of the call's ``__torch_function__``; None when nobody would be asked."""
    disable = contextlib.nullcontext() if state == ENABLED else DisableTorchFunctionSubclass()
    with private.EnableTorchFunction(), disable, _Listening():
        try:
            function(*args, **kwargs)
        except _Overheard as found:
            return found.args
    return None


def shared_tensor(array: Any) -> torch.Tensor | None:
    """A tensor that shares the memory of a numpy array; None when there is none, or it may not be written to."""
    if not array.flags.writeable:
        return None
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return None


@functools.cache
def array_of(dtype: torch.dtype) -> Any:
    """An empty numpy array of a dtype."""
    return torch.empty(0, dtype=dtype).numpy()


def is_wrapper_class(cls: type) -> bool:
    """Whether objects of a class are tensors that wrap others, and say how."""
    return issubclass(cls, torch.Tensor) and hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def is_nested_class(cls: type) -> bool:
    """Whether a class is that of torch's nested tensors in the jagged layout."""
    return cls.__module__ == "torch.nested._internal.nested_tensor" and issubclass(cls, torch.Tensor)


def asking_nested(given: Iterable[Any]) -> contextlib.AbstractContextManager[Any]:
    """Inside, calls ask the class of nested tensors, where one is ``given``: attention on them is the class's own."""
    nested = any(is_nested_class(type(each)) for each in given)
    return private.EnableTorchFunction() if nested else contextlib.nullcontext()


def asks_class(given: Any) -> bool:
    """Whether torch functions that are given this object ask its class."""
    cls = type(given)
    if cls in (torch.Tensor, torch.nn.Parameter) or not issubclass(cls, torch.Tensor):
        return False
    return cls.__torch_function__ is not DISABLED_TORCH_FUNCTION
