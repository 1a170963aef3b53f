"""The sizes of a call that can be chosen: axes that annotations name, the first dimension that its tensors share, or any by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ... import api
from ...inputs.example_inputs import ExampleInputs, inputs_for
from ..located import Found

BATCH = "batch"


class UnknownSize(ValueError):
    """A size that a call does not have."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """``known`` are axes with the example's sizes. ``places`` are the dimensions of an axis: argument (its position or name), dimension."""

    found: Found
    inputs: ExampleInputs
    known: dict[str, int]
    places: dict[str, tuple[tuple[int | str, int], ...]]
    parameters: tuple[str, ...]  # of positional arguments

    @classmethod
    def of(cls, found: Found, inputs: ExampleInputs) -> Sizes:
        code = api.root_code(found.target)
        names = code.co_varnames[: code.co_argcount] if code is not None else ()
        first = 1 if isinstance(found.target, torch.nn.Module) or hasattr(found.target, "__self__") else 0
        parameters = tuple(names[first:])
        known, places = dict[str, int](), dict[str, list[tuple[int | str, int]]]()
        for name, dims in inputs.dynamic.items():
            where = parameters.index(name) if name in parameters else name
            for dim, axis in dims.items():
                places.setdefault(axis, []).append((where, dim))
        known |= {axis: _at(inputs, *at[0]) for axis, at in places.items() if _has(inputs, *at[0])}
        if not known:
            tensors = [(where, t) for where, t in _arguments(inputs) if t.dim()]
            if tensors and all(t.shape[0] == tensors[0][1].shape[0] for _, t in tensors):
                known[BATCH] = tensors[0][1].shape[0]
                places[BATCH] = [(where, 0) for where, _ in tensors]
        return cls(found, inputs, known, {axis: tuple(at) for axis, at in places.items()}, parameters)

    @property
    def axis(self) -> str:
        """The one that is varied until a step fits; "" for none."""
        likely = [name for name in self.known if name.lower() in ("batch", "b", "batch_size", "n", "bs")]
        return next(iter((*likely, *self.known)), "")

    @property
    def text(self) -> str:
        names = [*self.known, *(f"{self._name(where)}.0" for where, t in _arguments(self.inputs) if t.dim())]
        return ", ".join(dict.fromkeys(names)) or "none"

    def chosen(self, sizes: Mapping[str, int]) -> tuple[ExampleInputs, dict[str, int]]:
        """The inputs with these sizes in place of the example's, and all sizes. Raises UnknownSize."""
        changes: list[tuple[int | str, int, int]] = []
        for name, size in sizes.items():
            for where, dim in self._places_of(name):
                changes.append((where, dim, size))
        known = self.known | dict(sizes)
        if not sizes or all(self.known.get(name) == size for name, size in sizes.items()):
            return self.inputs, known
        if self.inputs.origin == "annotations" and all(name in self.inputs.symbols for name in sizes):
            return inputs_for(self.found.target, owner=self.found.owner, sizes=sizes), known
        args, kwargs = list(self.inputs.args), dict(self.inputs.kwargs)
        for where, dim, size in changes:
            holder: Any = args if isinstance(where, int) else kwargs
            holder[where] = resized(holder[where], dim, size)
        dynamic = {name: dict(dims) for name, dims in self.inputs.dynamic.items()}
        return replace(self.inputs, args=tuple(args), kwargs=kwargs, dynamic=dynamic), known

    def varying(self, names: Mapping[str, int]) -> dict[str, dict[int, str]]:
        """The axes, by parameter and dimension, for which one compilation serves all sizes."""
        found: dict[str, dict[int, str]] = {name: dict(dims) for name, dims in self.inputs.dynamic.items()}
        for name in names:
            for where, dim in self._places_of(name):
                found.setdefault(self._name(where), {})[dim] = name.partition(".")[0] if name in self.known else BATCH
        return found

    def _places_of(self, name: str) -> tuple[tuple[int | str, int], ...]:
        if name in self.places:
            return self.places[name]
        parameter, _, dim = name.rpartition(".")
        where: int | str = self.parameters.index(parameter) if parameter in self.parameters else parameter
        if dim.isdecimal() and _has(self.inputs, where, int(dim)):
            return ((where, int(dim)),)
        raise UnknownSize(f"there is no size {name!r}: the sizes of this call are {self.text}")

    def _name(self, where: int | str) -> str:
        if isinstance(where, str):
            return where
        return self.parameters[where] if where < len(self.parameters) else str(where)


def resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """The tensor with another size: its elements again and again, so that labels stay labels."""
    index = torch.arange(size, device=tensor.device) % max(1, tensor.shape[dim])
    return tensor.detach().index_select(dim, index).requires_grad_(tensor.requires_grad)


def _arguments(inputs: ExampleInputs) -> Iterator[tuple[int | str, torch.Tensor]]:
    for where, value in (*enumerate(inputs.args), *inputs.kwargs.items()):
        if isinstance(value, torch.Tensor):
            yield where, value


def _has(inputs: ExampleInputs, where: int | str, dim: int) -> bool:
    found = dict(_arguments(inputs)).get(where)
    return found is not None and dim < found.dim()


def _at(inputs: ExampleInputs, where: int | str, dim: int) -> int:
    return dict(_arguments(inputs))[where].shape[dim]
