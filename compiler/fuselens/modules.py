"""Modules that share everything with another one, except what a call of them does."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .capture.calls import object_calls
from .capture.rules.table import rule
from .system import other_libraries

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
    __steps__: dict[str, Any]

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
    for name, value in (
        ("region", region), ("original", module), ("remake", remake), ("fuselens", note), ("steps", {})
    ):  # fmt: skip
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
            "__slots__": ("__region__", "__original__", "__remake__", "__fuselens__", "__steps__"), "__new__": new,
            **{name: _Step(original, name) for name in other_libraries.steps_of_a_trainer(original)},
        },
    )  # fmt: skip


class _Step:
    """A method of the original that a trainer calls in place of the module: compiled, as the module's calls are."""

    def __init__(self, original: type, name: str) -> None:
        self.original, self.name = original, name

    def __get__(self, made: Any, owner: Any = None) -> Any:
        if made is None:
            return getattr(self.original, self.name)
        method, compiled = getattr(made.__original__, self.name), made.__steps__.get(self.name)
        if compiled is None or compiled.__wrapped__ != method:
            compiled = made.__steps__[self.name] = made.__remake__(method, example_inputs=None)
        return compiled


@rule(CompiledModule.__call__)
def _call(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call inside compiled code is one of the original."""
    return object_calls.call_original(m, m.use(args[0]), args[1:], kwargs)
