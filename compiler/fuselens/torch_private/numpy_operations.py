"""numpy's operations on tensors: torch's own translation of numpy, as functions that a graph can call.

An :class:`Operation` takes and gives tensors where numpy takes and gives arrays. A tensor without dimensions stands for a number
of numpy's. What it gives is meant to be what numpy gives; whoever records one compares the two first.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from .names import private

_OWNERS = ("", "linalg", "fft")
_NOT_OPERATIONS = {"array_equal", "array_equiv", "from_dlpack", "set_default_dtype"}
_WRITING_FUNCTIONS = {"copyto", "fill_diagonal", "put", "put_along_axis"}
_WRITING_METHODS = {"fill", "put", "sort"}
_NOT_METHODS = {"item", "resize", "tolist"}


class Operation:
    """One operation: a ``function`` of numpy's, a ``method`` or ``attribute`` of its arrays, or an ``operator`` on them."""

    def __init__(self, kind: str, name: str, run: Callable[..., Any], writes: bool) -> None:
        self.kind = kind
        self.name = name
        self.writes = writes
        self._run = run
        self.__module__ = "numpy"  # which texts of graphs show
        self.__name__ = name.rpartition(".")[2]
        self.__qualname__ = f"ndarray.{name}" if kind in ("method", "attribute") else name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.kind != "function":  # arguments of functions may be tensors as they are
            args = tuple(map(_array, args))
        return _tensors(self._run(*args, **kwargs))

    def __repr__(self) -> str:
        return f"numpy.{self.__qualname__}"

    def __reduce__(self) -> Any:
        return _named, (self.kind, self.name)

    def __deepcopy__(self, memo: Any) -> Operation:
        return self


def _array(value: Any) -> Any:
    return private.numpy.ndarray(value) if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> Any:
    """A result with tensors for torch's arrays."""
    if isinstance(value, private.numpy.ndarray):
        return value.tensor
    if isinstance(value, (list, tuple)):
        return [*map(_tensors, value)] if isinstance(value, list) else tuple(map(_tensors, value))
    return value


def operation(function: Any) -> Operation | None:
    """The operation that a function of numpy's is; None where torch does not know it."""
    name = _functions().get(id(function))
    return None if name is None else _named("function", name)


def operation_of_array(kind: str, name: str) -> Operation | None:
    """The ``method``, ``attribute`` or ``operator`` (of the module of that name) that arrays have; None where torch's have not."""
    return _named(kind, name)


@functools.cache
def _functions() -> dict[int, str]:
    """Names of numpy's functions that torch knows, by identity."""
    numpy, known = sys.modules.get("numpy"), private.numpy
    found: dict[int, str] = {}
    for owner in _OWNERS if numpy is not None and isinstance(known, types.ModuleType) else ():
        theirs, ours = (getattr(m, owner) if owner else m for m in (numpy, known))
        for name in dir(ours):
            function, translated = getattr(theirs, name, None), getattr(ours, name)
            module = getattr(translated, "__module__", None) or ""
            plain = callable(function) and not isinstance(function, type) and callable(translated)
            if plain and not name.startswith("_") and name not in _NOT_OPERATIONS and module.startswith(known.__name__):
                found.setdefault(id(function), f"{owner}.{name}" if owner else name)
    return found


@functools.cache
def _named(kind: str, name: str) -> Operation | None:
    if kind == "function":
        run: Any = functools.reduce(getattr, name.split("."), private.numpy)
        return Operation(kind, name, run, name in _WRITING_FUNCTIONS)
    if kind == "operator":
        return Operation(kind, name, getattr(operator, name), name == "setitem" or _is_in_place(name))
    if name in _NOT_METHODS or not hasattr(private.numpy.ndarray, name):
        return None
    if kind == "attribute":
        return Operation(kind, name, operator.attrgetter(name), False)
    return Operation(kind, name, getattr(private.numpy.ndarray, name), name in _WRITING_METHODS or _is_in_place(name))


def _is_in_place(name: str) -> bool:
    """Whether it is the function, or the special method, of an augmented assignment."""
    bare = name.strip("_")
    return bare.startswith("i") and hasattr(operator, f"__{bare}__") and hasattr(operator, f"__{bare[1:]}__")
