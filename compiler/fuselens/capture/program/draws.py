"""Random numbers that each call draws anew, from Python's and numpy's own generators: they are inputs of the graph.

They are drawn just before the graph runs, in the order of the program, by the arguments that were found while tracing. Nothing else
of the frame draws from these generators in between: what does so breaks the frame. Where the trace comes to depend on a number,
in a branch say, the frame is traced again and breaks where that is drawn.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import torch_private
from ...torch_private.torch_function import shared_tensor
from ..tracing import sources as src
from ..tracing.sources import Source
from ..tracing.symbols import LARGEST, Sizes, SizesChanged
from ..values.algebra import ArrayValue, SymbolValue, TensorValue, Value
from ..values.known import UNKNOWN, deep_use, plain

if TYPE_CHECKING:
    from ..machine import Machine

_FLOATS = frozenset(
    "random uniform gauss normalvariate lognormvariate expovariate betavariate gammavariate triangular vonmisesvariate paretovariate "
    "weibullvariate".split()
)
_INTEGERS = frozenset({"randint", "randrange", "getrandbits"})
# of numpy: what they give has the dtype and shape that the arguments say
_OF_NUMPY = frozenset(
    "rand randn random random_sample ranf sample uniform normal standard_normal lognormal exponential standard_exponential gamma "
    "standard_gamma beta laplace logistic gumbel rayleigh weibull pareto power triangular vonmises standard_t standard_cauchy "
    "chisquare poisson binomial geometric randint choice permutation".split()
)


class Draw:
    """A draw that a graph input stands for; it is among what the frame's guards gather, and :func:`drawn` replaces it."""

    __slots__ = ("arguments", "function", "named")

    def __init__(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.function = function
        self.arguments = arguments
        self.named = named

    def __call__(self) -> Any:
        found = self.function(*self.arguments, **self.named)
        return found if type(found) in (int, float) else torch.from_numpy(found)


def drawn(gathered: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a graph, random numbers drawn."""
    return tuple([given() if type(given) is Draw else given for given in gathered])


class Rewind:
    """Puts generators back to where they were before these draws."""

    __slots__ = ("_before",)

    def __init__(self, gathered: tuple[Any, ...]) -> None:
        generators = {id(d.function.__self__): d.function.__self__ for d in gathered if type(d) is Draw}
        self._before = [(g, _state(g)()) for g in generators.values()]

    def __call__(self) -> None:
        for generator, state in self._before:
            (generator.setstate if generator is _PYTHONS else generator.set_state)(state)


def _state(generator: Any) -> Any:
    return generator.getstate if generator is _PYTHONS else generator.get_state


def called(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A call of a function of the modules ``random`` and ``numpy.random``; None where what it gives is not a graph input."""
    found = _generator(function)
    if found is None:
        return None
    generator, name = found
    variation = m.tracer.variation
    if variation is None or variation.exact_draws or m.tracer.graphs.nested or m.tracer.random is not None:
        return None
    given, named = [plain(deep_use(m, a)) for a in args], {k: plain(deep_use(m, v)) for k, v in kwargs.items()}
    if any(v is UNKNOWN for v in (*given, *named.values())):
        return None
    try:
        example = getattr(type(generator)(3), name)(*given, **named)
    except Exception:  # noqa: BLE001 - whatever it is: the program will see it
        return None
    written = ", ".join([*map(repr, given), *(f"{k}={v!r}" for k, v in named.items())])
    text = (
        f"{'random' if generator is _PYTHONS else 'numpy.random'}.{name}({written}), draw {len(m.tracer.graphs.inputs)}"
    )
    source = src.constant(Draw(function, tuple(given), named), text)
    if type(example) is int:
        bounds = _bounds(name, generator is _PYTHONS, given, named)
        if bounds is None or not 0 <= bounds[0] < bounds[1] <= LARGEST:  # kernels have no such symbols
            return None
        return SymbolValue(_placeholder(m, source, example, _sizes(m).draw(example, text, *bounds)))
    if type(example) is float:
        return SymbolValue(_placeholder(m, source, example, _sizes(m).draw(example, text)))
    tensor = shared_tensor(example)
    return None if tensor is None else _array(m, source, tensor)


def _generator(function: Any) -> tuple[Any, str] | None:
    """The global generator that a function draws from, and the name of the method."""
    if type(function) not in (types.MethodType, types.BuiltinMethodType):
        return None
    receiver, name = function.__self__, getattr(function, "__name__", "")
    if receiver is _PYTHONS:
        return (receiver, name) if name in _FLOATS or name in _INTEGERS else None
    numpy = sys.modules.get("numpy.random")
    is_global = numpy is not None and receiver is getattr(numpy.rand, "__self__", None)
    return (receiver, name) if is_global and name in _OF_NUMPY else None


_PYTHONS = getattr(random.random, "__self__", None)


def _bounds(name: str, of_python: bool, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[int, int] | None:
    """Between which integers a draw is; None where that is not known."""
    if named or len(given) not in (1, 2) or not all(type(v) is int for v in given):
        return None
    if name == "getrandbits":
        return 0, 2 ** given[0] - 1
    lower, end = (0, given[0]) if len(given) == 1 else given
    if name == "randint" and of_python:
        return lower, end
    return (lower, end - 1) if name in ("randint", "randrange") else None


def _sizes(m: Machine) -> Sizes:
    """Where symbols are made; the trace begins again where there are none yet."""
    assert m.tracer.variation is not None
    m.tracer.variation.draws = True
    if m.tracer.sizes is None:
        raise SizesChanged
    return m.tracer.sizes


def _array(m: Machine, source: Source, example: torch.Tensor) -> Value:
    fake = torch_private.fake_static(m.tracer.fake_mode, example)
    m.tracer.graphs.layouts[id(fake)] = fake.shape, fake.stride()
    return ArrayValue(TensorValue(_placeholder(m, source, example, fake), None, torch.Tensor))


def _placeholder(m: Machine, source: Source, example: Any, symbol: Any) -> fx.Node:
    m.tracer.differs = "random numbers that it draws"
    m.tracer.graphs.drawn.add(source)
    return m.tracer.graphs.placeholder(example, source, symbol, m.tracer.span)
