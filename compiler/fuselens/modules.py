"""Modules that share everything with another one, except what a call of them does."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .capture.calls import calls
from .capture.rules.table import rule

if TYPE_CHECKING:
    from .capture.machine import Machine
    from .capture.values.algebra import Value


class CompiledModule(torch.nn.Module):
    """A module whose calls are compiled. It shares all state with the original: parameters, buffers, mode, hooks.

    Instances belong to a subclass of this class and of the original's, so ``isinstance`` holds for both; calling that
    subclass makes an original.
    """

    __region__: Any
    __original__: torch.nn.Module
    __remake__: Callable[[torch.nn.Module], Any]
    __fuselens__: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Nothing: the original's class has seen its own subclasses, and this is not one of the program's."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__region__(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__remake__(copy.deepcopy(self.__original__, memo))

    def __copy__(self) -> Any:
        return self.__remake__(copy.copy(self.__original__))

    def __reduce__(self) -> Any:
        return _remade, (self.__remake__, self.__original__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


def _remade(remake: Callable[[torch.nn.Module], Any], original: torch.nn.Module) -> Any:
    return remake(original)


def proxy(module: torch.nn.Module, region: Any, remake: Callable[[torch.nn.Module], Any], note: Any = None) -> Any:
    """A :class:`CompiledModule` that calls ``region``; ``remake`` makes its copies, from copies of ``module``."""
    cls = _proxy_class(type(module))
    made = object.__new__(cls)
    object.__setattr__(made, "__dict__", module.__dict__)
    for name, value in (("region", region), ("original", module), ("remake", remake), ("fuselens", note)):
        object.__setattr__(made, f"__{name}__", value)
    return made


@functools.lru_cache(maxsize=256)
def _proxy_class(original: type[torch.nn.Module]) -> type[CompiledModule]:
    def new(cls: type, *args: Any, **kwargs: Any) -> torch.nn.Module:
        return original(*args, **kwargs)

    return type(
        original.__name__,
        (CompiledModule, original),
        {
            "__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
            "__slots__": ("__region__", "__original__", "__remake__", "__fuselens__"), "__new__": new,
        },
    )  # fmt: skip


@rule(CompiledModule.__call__)
def _call(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call inside compiled code is one of the original."""
    return calls.call_original(m, m.use(args[0]), args[1:], kwargs)
