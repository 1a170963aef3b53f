"""Entries of the cache as plain data: reading one makes values of known kinds, and runs nothing that it names.

An entry is JSON: names of kinds, scalars, and rows. Each row is a value, of a kind, made of values before it: scalars first,
then earlier rows. Equal values are one row, so that the few spans of a large graph are there once, and reading is a loop.
"""

from __future__ import annotations

import base64
import ctypes
import dataclasses
import itertools
import json
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

_SCALARS = frozenset({type(None), bool, int, float, str})
_CHANGEABLE = (list, dict, torch.Tensor)  # that two are equal now does not make them one
_NAMED = (torch.dtype, torch.layout, torch.memory_format)  # values of torch's that it has by name
_TYPES = {t.__name__: t for t in (*_SCALARS, *_NAMED, complex, list, tuple, torch.device)}


class NotStorable(Exception):
    """The value holds something that is no plain data, or that nobody has told how to read."""


class Form:
    """How values are written that consist of scalars, containers, torch's names and objects of ``classes``: dataclasses
    and named tuples."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._parts: dict[type, tuple[str, Callable[[Any], Iterable[Any]]]] = {
            tuple: ("tuple", iter),
            list: ("list", iter),
            dict: ("dict", lambda value: itertools.chain.from_iterable(value.items())),
            torch.Size: ("size", iter),
            type: ("type", lambda value: (_name_of_type(value),)),
            torch.device: ("device", lambda value: (str(value),)),
            complex: ("complex", lambda value: (value.real, value.imag)),
            bytes: ("bytes", lambda value: (base64.b64encode(value).decode(),)),
            torch.Tensor: ("tensor", _parts_of_tensor),
            **{kind: (kind.__name__, lambda value: (str(value).removeprefix("torch."),)) for kind in _NAMED},
        }
        self._makers: dict[str, Callable[..., Any]] = {
            "tuple": lambda *values: values,
            "list": lambda *values: [*values],
            "dict": lambda *values: dict(zip(values[::2], values[1::2], strict=True)),
            "size": lambda *values: torch.Size(values),
            "type": _TYPES.__getitem__,
            "device": torch.device,
            "complex": complex,
            "bytes": base64.b64decode,
            "tensor": _tensor,
            **{kind.__name__: _named(kind) for kind in _NAMED},
        }
        for cls in classes:
            self._parts[cls] = cls.__name__, _fields_of(cls)
            self._makers[cls.__name__] = cls

    def written(self, value: Any) -> bytes:
        """``value`` as an entry. Raises NotStorable."""
        writing = _Writing(self._parts)
        try:
            writing.add(value)
        except RecursionError as error:
            raise NotStorable("nested too deeply") from error
        return json.dumps(writing.document(), separators=(",", ":")).encode()

    def read(self, entry: bytes) -> Any:
        """What :meth:`written` was given. Raises whatever comes of an entry that it did not write."""
        names, values, rows = json.loads(entry)
        makers = [self._makers[name] for name in names]
        value = values.__getitem__
        for kind, *parts in rows:
            values.append(makers[kind](*map(value, parts)))
        return values[-1]


class _Writing:
    """One entry while it is written: scalars are numbered -1, -2, … until it is known how many there are."""

    def __init__(self, parts: dict[type, tuple[str, Callable[[Any], Iterable[Any]]]]) -> None:
        self._parts = parts
        self._kinds: dict[str, int] = {}
        self._scalars: dict[tuple[type, Any], int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._of_row: dict[tuple[int, ...], int] = {}
        self._of_object: dict[int, int] = {}  # what is written keeps its parts alive
        self._alive: list[Any] = []

    def add(self, value: Any) -> int:
        cls = type(value)
        if cls in _SCALARS:
            key = cls, repr(value) if cls is float else value  # -0.0 is not 0.0
            return ~self._scalars.setdefault(key, len(self._scalars))
        number = self._of_object.get(id(value))
        if number is None:
            number = self._of_object[id(value)] = self._add_object(cls, value)
        return number

    def _add_object(self, cls: type, value: Any) -> int:
        name, parts_of = self._parts.get(cls, ("", iter))
        if not name:
            raise NotStorable(f"a {cls.__module__}.{cls.__qualname__}")
        parts = [*parts_of(value)]
        self._alive += parts
        row = self._kinds.setdefault(name, len(self._kinds)), *map(self.add, parts)
        number = len(self._rows)
        if cls not in _CHANGEABLE:
            number = self._of_row.setdefault(row, number)
        if number == len(self._rows):
            self._rows.append(row)
        return number

    def document(self) -> list[Any]:
        first = len(self._scalars)
        rows = [[kind, *(i + first if i >= 0 else ~i for i in parts)] for kind, *parts in self._rows]
        scalars = [float(value) if cls is float else value for cls, value in self._scalars]
        return [[*self._kinds], scalars, rows]


def _fields_of(cls: type) -> Callable[[Any], Iterable[Any]]:
    """The arguments that make an object again."""
    if issubclass(cls, tuple):
        return iter
    names = [f.name for f in dataclasses.fields(cls)]
    found = operator.attrgetter(*names)
    return found if len(names) > 1 else lambda value: (found(value),)


def _name_of_type(value: type) -> str:
    if _TYPES.get(value.__name__) is not value:
        raise NotStorable(f"the type {value.__qualname__}")
    return value.__name__


def _named(kind: type) -> Callable[[str], Any]:
    def make(name: str) -> Any:
        found = getattr(torch, name)
        if type(found) is not kind:
            raise ValueError(name)
        return found

    return make


def _parts_of_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A constant of a graph: its memory from the first element to the last."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise NotStorable("a tensor that is not plain memory")
    if tensor.requires_grad or tensor.device.type == "meta":
        raise NotStorable("a tensor that is no constant")
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    memory = tensor.as_strided((extent,), (1,)).cpu()
    data = ctypes.string_at(memory.data_ptr(), extent * memory.element_size()) if extent else b""
    return tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride(), data


def _tensor(
    dtype: torch.dtype, device: torch.device, shape: tuple[int, ...], stride: tuple[int, ...], data: bytes
) -> torch.Tensor:
    memory = torch.empty(len(data) // dtype.itemsize, dtype=dtype, device="cpu")
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if data else 0
    if extent != len(memory) or (not data and 0 not in shape):
        raise ValueError(f"{len(data)} bytes for a tensor of {shape}")
    ctypes.memmove(memory.data_ptr(), data, len(data))
    return memory.to(device).as_strided(shape, stride)
