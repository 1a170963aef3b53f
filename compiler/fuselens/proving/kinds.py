"""The calls on which a function is proved: its example inputs, and others that a compiler may get wrong.

Each kind changes one thing: values, memory, sizes, numbers, what the function reads, the setting it is called in. Where eager
raises for what was changed, the compiled function must raise the same.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..config import Config
from ..inputs.example_inputs import ExampleInputs

_MOST_READ = 8  # variables that are changed, one at a time
_MOST_NUMBERS = 6  # arguments that are no tensors, likewise
_NUMBERS = (bool, int, float)


class Subject(Protocol):
    """A function that is looked at, and what it is called with: ``variant`` counts other values, and other sizes."""

    @property
    def target(self) -> Any: ...

    @property
    def config(self) -> Config: ...

    def inputs(self, variant: int = 0) -> ExampleInputs: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One call. ``around()`` is the setting that it is made in; with ``gradients`` floating inputs require them."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: bool = True
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


def seeded() -> None:
    """Each copy of a file makes its inputs from the same random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


def kinds(subject: Subject) -> Iterator[Kind]:
    """The calls, in order; the first is of the example inputs. Those that come back to it find entries of others there."""
    seeded()
    example = subject.inputs()
    args, kwargs = example.args, example.kwargs
    yield Kind("the example inputs", args, kwargs)
    yield from other_values(args, kwargs)
    yield from _other_memory(args, kwargs)
    if example.dynamic:
        for variant, name in ((4, "other sizes"), (5, "other sizes again")):
            seeded()
            other = subject.inputs(variant)
            yield Kind(name, other.args, other.kwargs)
    yield from _other_sizes(args, kwargs)
    yield from _other_numbers(args, kwargs)
    yield from _other_settings(subject.target, args, kwargs)
    yield from _other_reads(subject.target, args, kwargs)
    yield Kind("the example inputs once more", args, kwargs)


# --- values -----------------------------------------------------------------------------------------------------------


def other_values(args: Any, kwargs: Any) -> Iterator[Kind]:
    """Other values of the same types, shapes and memory."""
    tensors = list(tensors_of((args, kwargs)))
    floating = any(t.is_floating_point() or t.is_complex() for t in tensors)
    whole = any(not t.is_floating_point() and not t.is_complex() for t in tensors)
    made: list[tuple[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]]] = []
    if floating:
        made += [
            ("other values", _random),
            ("zeros", lambda x, _: torch.zeros_like(x) if _is_wide(x) else x),
            ("negative zeros", lambda x, _: torch.full_like(x, -0.0) if _is_wide(x) else x),
            ("infinities", lambda x, g: _some(x, g, (float("inf"), -float("inf")))),
            ("a NaN", lambda x, g: _some(x, g, (float("nan"),))),
            ("denormals", _denormals),
            ("large values", lambda x, g: _random(x, g) * 1e4 if _is_wide(x) else x),
            ("small values", lambda x, g: _random(x, g) * 1e-4 if _is_wide(x) else x),
        ]
    if whole:
        made += [("other integers", lambda x, g: x), ("integers in another order", _shuffled)]
    for number, (name, change) in enumerate(made, start=1):
        generator = torch.Generator().manual_seed(number)
        how = _changes_integers if name == "other integers" else None

        def every(x: torch.Tensor, change: Any = how or change, generator: torch.Generator = generator) -> torch.Tensor:
            return change(x, generator)

        yield Kind(name, changed(args, every), changed(kwargs, every))


def _is_wide(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _random(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not _is_wide(x):
        return x
    dtype = x.dtype if x.is_complex() else torch.float32
    return torch.randn(x.shape, generator=generator, dtype=dtype).to(x.device, x.dtype)


def _some(x: torch.Tensor, generator: torch.Generator, values: tuple[float, ...]) -> torch.Tensor:
    """One element in five, and at least one, is among ``values``."""
    if not _is_wide(x) or not x.numel():
        return x
    made = x.detach().clone(memory_format=torch.contiguous_format)
    flat = made.view(-1)
    places = torch.randperm(flat.numel(), generator=generator)[: max(1, flat.numel() // 5)].to(x.device)
    flat[places] = torch.tensor(values, dtype=x.dtype, device=x.device).repeat(-(-len(places) // len(values)))[
        : len(places)
    ]
    return made


def _denormals(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not x.is_floating_point() or x.dtype.itemsize < 2:
        return x
    return (_random(x, generator).double() * torch.finfo(x.dtype).tiny / 8).to(x.dtype)


def _changes_integers(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Integers of the same range, which may be indices, and truth values."""
    if _is_wide(x) or not x.numel():
        return x
    if x.dtype == torch.bool:
        return ~x
    return x.flatten()[torch.randint(x.numel(), (x.numel(),), generator=generator).to(x.device)].reshape(x.shape)


def _shuffled(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if _is_wide(x) or not x.numel():
        return x
    return x.flatten()[torch.randperm(x.numel(), generator=generator).to(x.device)].reshape(x.shape)


# --- memory, sizes, dtypes --------------------------------------------------------------------------------------------


def _other_memory(args: Any, kwargs: Any) -> Iterator[Kind]:
    if any(t.dim() and t.numel() > 1 for t in tensors_of((args, kwargs))):
        for name, how in (
            ("every second element of a larger tensor", _strided),
            ("one element into a larger tensor", _shifted),
        ):
            yield Kind(f"odd memory: {name}", changed(args, how), changed(kwargs, how))
    if any(t.dim() > 1 and t.numel() > 1 for t in tensors_of((args, kwargs))):
        yield Kind("odd memory: transposed", changed(args, _transposed), changed(kwargs, _transposed))


def _strided(x: torch.Tensor) -> torch.Tensor:
    if not x.dim():
        return x
    larger = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
    larger[..., ::2] = x.detach()
    return larger[..., ::2]


def _shifted(x: torch.Tensor) -> torch.Tensor:
    larger = torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)
    larger[1:] = x.detach().reshape(-1)
    return larger[1:].view(x.shape)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.detach().transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x


def _other_sizes(args: Any, kwargs: Any) -> Iterator[Kind]:
    """One more, one less and a single row of what may be the batch: the first dimension that tensors have in common."""
    tensors = [t for t in tensors_of((args, kwargs)) if t.dim()]
    if not tensors:
        return
    size = tensors[0].shape[0]
    for rows in dict.fromkeys((size + 1, size - 1, 1)):
        if rows > 0 and rows != size:

            def resized(x: torch.Tensor, rows: int = rows) -> torch.Tensor:
                if not x.dim() or x.shape[0] != size:
                    return x
                return torch.cat([x.detach()] * (1 + rows // size))[:rows] if size else x

            yield Kind(f"{rows} in place of {size} rows", changed(args, resized), changed(kwargs, resized))


def _other_settings(target: Any, args: Any, kwargs: Any) -> Iterator[Kind]:
    floats = [t for t in tensors_of((args, kwargs)) if t.is_floating_point()]
    if any(t.dtype == torch.float32 for t in floats) and not isinstance(target, torch.nn.Module):

        def double(x: torch.Tensor) -> torch.Tensor:
            return x.detach().double() if x.dtype == torch.float32 else x

        yield Kind("float64 in place of float32", changed(args, double), changed(kwargs, double))
    yield Kind("no gradients asked for", args, kwargs, gradients=False)
    yield Kind("inside of torch.no_grad()", args, kwargs, gradients=False, around=torch.no_grad)
    yield Kind("another seed", args, kwargs, around=_other_seed)
    modules = [m for m in (target, *args, *kwargs.values()) if isinstance(m, torch.nn.Module)]
    if modules:
        word = "eval" if modules[0].training else "train"
        yield Kind(f"after {word}()", args, kwargs, around=lambda: _in_other_mode(modules))


@contextlib.contextmanager
def _other_seed() -> Iterator[None]:
    torch.manual_seed(1)
    yield


@contextlib.contextmanager
def _in_other_mode(modules: list[torch.nn.Module]) -> Iterator[None]:
    had = [(part, part.training) for module in modules for part in module.modules()]
    for part, training in had:
        part.training = not training
    try:
        yield
    finally:
        for part, training in had:
            part.training = training


# --- numbers, and what the function reads -----------------------------------------------------------------------------


def _other(value: Any) -> Any:
    if type(value) is bool:
        return not value
    return value + 1 if type(value) is int else value * 1.5 + 0.25


def _other_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Kind]:
    places = [(k, v) for k, v in (*enumerate(args), *kwargs.items()) if type(v) in _NUMBERS]
    for place, value in places[:_MOST_NUMBERS]:
        new = _other(value)
        given = tuple(new if k == place else v for k, v in enumerate(args))
        named = {k: new if k == place else v for k, v in kwargs.items()}
        what = f"argument {place + 1}" if isinstance(place, int) else place
        yield Kind(f"{what} {new!r} in place of {value!r}", given, named)


def _other_reads(target: Any, args: Any, kwargs: Any) -> Iterator[Kind]:
    """Numbers among the globals, closures and attributes that the function reads, one at a time."""
    for name, value, put in itertools.islice(_read(target), _MOST_READ):
        new = _other(value)

        def around(put: Any = put, value: Any = value, new: Any = new) -> AbstractContextManager[None]:
            return _put(put, new, value)

        yield Kind(f"{name} {new!r} in place of {value!r}", args, kwargs, around=around)


Put = Callable[[Any], object]


@contextlib.contextmanager
def _put(put: Put, new: Any, old: Any) -> Iterator[None]:
    put(new)
    try:
        yield
    finally:
        put(old)


def _read(target: Any) -> Iterator[tuple[str, Any, Put]]:
    function = target
    if isinstance(target, torch.nn.Module):
        for path, part in target.named_modules():
            for name, value in list(vars(part).items()):
                if type(value) in _NUMBERS and not name.startswith("_") and name != "training":
                    put = lambda new, part=part, name=name: setattr(part, name, new)  # noqa: E731
                    yield f"self.{path}{'.' * bool(path)}{name}", value, put
        function = type(target).forward
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        return
    space = function.__globals__
    for name in function.__code__.co_names:
        if type(space.get(name)) in _NUMBERS:
            yield f"global {name}", space[name], lambda new, name=name: space.__setitem__(name, new)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            if type(cell.cell_contents) in _NUMBERS:
                yield f"variable {name}", cell.cell_contents, lambda new, cell=cell: setattr(cell, "cell_contents", new)


# --- structures -------------------------------------------------------------------------------------------------------


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors in lists, tuples and dictionaries."""
    if type(value) is torch.Tensor and value.layout is torch.strided:
        yield value
    elif type(value) in (list, tuple):
        for item in value:
            yield from tensors_of(item)
    elif type(value) is dict:
        yield from tensors_of(list(value.values()))


def changed(value: Any, how: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The structure with each of its plain tensors as ``how`` makes it; what requires a gradient still does."""
    if type(value) is torch.Tensor and value.layout is torch.strided:
        made = how(value)
        return made.requires_grad_(value.requires_grad) if made is not value else value
    if type(value) in (list, tuple):
        return type(value)(changed(v, how) for v in value)
    return {k: changed(v, how) for k, v in value.items()} if type(value) is dict else value
