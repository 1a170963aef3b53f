"""The calls on which a function is proved: its example inputs, and others that a compiler may get wrong.

Each kind changes one thing: values, memory, sizes, numbers, what the function reads, the setting it is called in. Where eager
raises for what was changed, the compiled function must raise the same.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..config import Config
from ..inputs.example_inputs import ExampleInputs
from . import reads

SEED = "another seed"
DENORMALS = "denormals"
_MOST_READ = 8  # variables that are changed, one at a time
_MOST_NUMBERS = 6  # arguments that are numbers or texts, likewise
_PLAIN = (bool, int, float, str)
_TOGETHER = 4  # kinds of calls in which all that is read beyond those has other values


class Subject(Protocol):
    """A function that is looked at, and what it is called with: ``variant`` counts other values, and other sizes."""

    @property
    def target(self) -> Any: ...

    @property
    def config(self) -> Config: ...

    def inputs(self, variant: int = 0) -> ExampleInputs: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One call. ``around()`` is the setting that it is made in; with ``gradients`` floating inputs require them; under ``autocast``
    values have half precision that the program did not ask for."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: bool = True
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    autocast: bool = False


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
    yield from _one_for_two(args, kwargs)
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
            (DENORMALS, _denormals),
            ("large values", lambda x, g: _random(x, g) * 1e4 if _is_wide(x) else x),
            ("values of all sizes", _of_all_sizes),
            ("small values", lambda x, g: _random(x, g) * 1e-4 if _is_wide(x) else x),
        ]
    if whole:
        made += [("other integers", lambda x, g: x), ("integers in another order", _shuffled)]
    for number, (name, change) in enumerate(made, start=1):
        generator = torch.Generator().manual_seed(number)
        how = _changes_integers if name == "other integers" else None

        def every(x: torch.Tensor, change: Any = how or change, generator: torch.Generator = generator) -> torch.Tensor:
            with torch.device("cpu"):  # that of the generator, whatever the program's default is
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


def _of_all_sizes(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Of each power of ten between those whose squares are numbers, too."""
    if not x.is_floating_point() or x.dtype.itemsize < 2:
        return x
    most = math.log10(torch.finfo(x.dtype).max) / 2 - 1
    powers = (torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1) * min(most, 18)
    signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    return (signs * 10.0**powers).to(x.device, x.dtype)


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


def _one_for_two(args: tuple[Any, ...], kwargs: Any) -> Iterator[Kind]:
    """The same tensor in the place of two that are alike."""
    tensors = [t for t in tensors_of((args, kwargs)) if t.numel()]
    for number, second in enumerate(tensors):
        for first in tensors[:number]:
            if first is not second and _are_alike(first, second):

                def one(x: torch.Tensor, first: torch.Tensor = first, second: torch.Tensor = second) -> torch.Tensor:
                    return first if x is second else x

                yield Kind("one tensor in the place of two", changed(args, one), changed(kwargs, one))
                return


def _are_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    same = first.shape == second.shape and first.dtype == second.dtype and first.device == second.device
    return same and first.requires_grad == second.requires_grad


def _other_sizes(args: Any, kwargs: Any) -> Iterator[Kind]:
    """One more, one less, a single row and none of what may be the batch: the first dimension that tensors have in common."""
    tensors = [t for t in tensors_of((args, kwargs)) if t.dim()]
    if not tensors:
        return
    size = tensors[0].shape[0]
    for rows in dict.fromkeys((size + 1, size - 1, 1, 0)):
        if rows >= 0 and rows != size:

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
    yield Kind("inside of torch.inference_mode()", args, kwargs, gradients=False, around=torch.inference_mode)
    if any(t.dtype == torch.float32 for t in floats):
        device = floats[0].device.type
        yield Kind("under autocast", args, kwargs, around=lambda: torch.autocast(device, torch.bfloat16), autocast=True)
    yield Kind("with float64 as the default dtype", args, kwargs, around=_other_default)
    yield Kind(SEED, args, kwargs, around=_other_seed)
    modules = reads.modules(target, args, kwargs)
    if modules:
        word = "eval" if modules[0].training else "train"
        yield Kind(f"after {word}()", args, kwargs, around=lambda: _in_other_mode(modules))


@contextlib.contextmanager
def _other_default() -> Iterator[None]:
    had = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if had is not torch.float64 else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(had)


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


def _other_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Kind]:
    places = [(k, v) for k, v in (*enumerate(args), *kwargs.items()) if type(v) in _PLAIN]
    for place, value in places[:_MOST_NUMBERS]:
        new = reads.other_than(value)
        given = tuple(new if k == place else v for k, v in enumerate(args))
        named = {k: new if k == place else v for k, v in kwargs.items()}
        what = f"argument {place + 1}" if isinstance(place, int) else place
        yield Kind(f"{what} {new!r} in place of {value!r}", given, named)


def _other_reads(target: Any, args: Any, kwargs: Any) -> Iterator[Kind]:
    """Values among the globals, closures, attributes and items that the function reads: one at a time, and what is more together."""
    found = list(reads.reads(target, args, kwargs))
    found = [r for r in found if r.other != r.value]  # an infinity stays one
    found.sort(key=lambda r: type(r.value) is not float)  # an integer may be a size, with which eager raises
    for read in found[:_MOST_READ]:
        yield Kind(f"{read.name} {read.other!r} in place of {read.value!r}", args, kwargs, around=read.replaced)
    rest = found[_MOST_READ:]
    for part in (rest[k::_TOGETHER] for k in range(_TOGETHER)):
        if part:
            name = f"other values of {part[0].name}" + (f" and {len(part) - 1} more that it reads" if part[1:] else "")
            yield Kind(name, args, kwargs, around=lambda part=part: _all(part))


@contextlib.contextmanager
def _all(found: Sequence[reads.Read]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for read in found:
            stack.enter_context(read.replaced())
        yield


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
