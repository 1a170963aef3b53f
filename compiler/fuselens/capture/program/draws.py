"""Random numbers that each call draws anew, from Python's and numpy's own generators: they are inputs of the graph.

They are drawn just before the graph runs, in the order of the program, by the arguments that were found while tracing. Nothing else
of the frame draws from these generators in between: what does so breaks the frame. Where the trace comes to depend on a number,
in a branch say, the frame is traced again and breaks where that is drawn.

A function that computes on the host alone, from plain values and what it draws, is drawn as a whole: its result is the input of the
graph. It has run while tracing, and the generators were put back; where a call gives another shape, its frame runs as written.
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
from ..frame.resuming import AsWritten
from ..hook import _hook
from ..tracing import sources as src
from ..tracing.sources import Source
from ..tracing.symbols import LARGEST, Sizes, SizesChanged, Variation
from ..values.algebra import ArrayValue, SymbolValue, TensorValue, Value
from ..values.known import UNKNOWN, deep_use, plain
from .host_functions import computes_on_host, is_plain

if TYPE_CHECKING:
    from ..machine import Machine

_FLOATS = frozenset(
    "random uniform gauss normalvariate lognormvariate expovariate betavariate gammavariate triangular vonmisesvariate paretovariate "
    "weibullvariate".split()
)
_EXAMPLES = 3  # of what a function draws: it may have another shape by chance
_INTEGERS = frozenset({"randint", "randrange", "getrandbits"})
# of numpy: what they give has the dtype and shape that the arguments say
_OF_NUMPY = frozenset(
    "rand randn random random_sample ranf sample uniform normal standard_normal lognormal exponential standard_exponential gamma "
    "standard_gamma beta laplace logistic gumbel rayleigh weibull pareto power triangular vonmises standard_t standard_cauchy "
    "chisquare poisson binomial geometric randint choice permutation".split()
)


class Draw:
    """A draw that a graph input stands for; it is among what the frame's guards gather, and :func:`drawn` replaces it."""

    __slots__ = ("arguments", "function", "like", "named")

    def __init__(
        self,
        function: Any,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        like: torch.Tensor | float | None = None,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.named = named
        self.like = like  # what a function gave while tracing, whose shape nothing else says

    def __call__(self) -> Any:
        found = self.function(*self.arguments, **self.named)
        found = found if type(found) in (int, float) else torch.from_numpy(found)
        if self.like is not None and _form(found) != _form(self.like):
            raise AsWritten
        return found

    @property
    def generators(self) -> list[Any]:
        """Those that it may draw from."""
        return [self.function.__self__] if self.like is None else [_PYTHONS, *_numpys()]


def _form(value: Any) -> tuple[Any, ...]:
    """What a graph was made for: a tensor's dtype, shape and strides, a number's type."""
    return (value.dtype, value.shape, value.stride()) if isinstance(value, torch.Tensor) else (type(value),)


@_hook.disabled
def drawn(gathered: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a graph, random numbers drawn."""
    return tuple([given() if type(given) is Draw else given for given in gathered])


class Rewind:
    """Puts generators back to where they were before these draws."""

    __slots__ = ("_before",)

    def __init__(self, gathered: tuple[Any, ...]) -> None:
        generators = {id(g): g for d in gathered if type(d) is Draw for g in d.generators}
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
    if _inputs_of(m) is None:
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
    made = _example(example)
    return None if made is None else _input(m, source, made, text)


def may_be_whole(m: Machine, function: types.FunctionType, drawn_before: int) -> bool:
    """Whether a function that the frame breaks in, and that has drawn since, may be drawn as a whole; the next trace does so."""
    variation = _inputs_of(m)
    if variation is None or function.__code__ in variation.whole_draws:
        return False
    if len(m.tracer.graphs.drawn) == drawn_before or not computes_on_host(function):
        return False
    variation.whole_draws.add(function.__code__)
    return True


def whole(m: Machine, function: types.FunctionType, bound: Mapping[str, Value]) -> Value | None:
    """The result of such a function; None where it is traced: of arguments that are not plain, or that it refuses."""
    variation, code = _inputs_of(m), function.__code__
    count = code.co_argcount
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    if variation is None or code not in variation.whole_draws or set(bound) != set(names):
        return None
    given = {name: plain(deep_use(m, bound[name])) for name in names}
    if not all(map(is_plain, given.values())):
        return None
    arguments, named = tuple(given.values())[:count], {name: given[name] for name in names[count:]}
    draw = Draw(function, arguments, named, 0.0)
    rewind = Rewind((draw,))
    try:
        examples = [_example(function(*arguments, **named)) for _ in range(_EXAMPLES)]
    except Exception:  # noqa: BLE001 - whatever it is: the program will see it
        return None
    finally:
        rewind()
    example = examples[0]
    if example is None or any(other is None or _form(other) != _form(example) for other in examples):
        return None
    draw.like = example
    written = ", ".join(f"{name}={value!r}" for name, value in given.items())
    text = f"{function.__qualname__}({written}), draw {len(m.tracer.graphs.inputs)}"
    source = src.constant(draw, text)
    return _input(m, source, example, text)


def _input(m: Machine, source: Source, example: torch.Tensor | float, text: str) -> Value:
    if isinstance(example, torch.Tensor):
        return _array(m, source, example)
    return SymbolValue(_placeholder(m, source, example, _sizes(m).draw(example, text)))


def _example(found: Any) -> torch.Tensor | float | None:
    """What a draw gives, as the graph takes it; None for what it cannot take."""
    return found if type(found) is float else shared_tensor(found) if hasattr(found, "flags") else None


def _inputs_of(m: Machine) -> Variation | None:
    """What varies between calls, where draws may be inputs of the graph."""
    variation = m.tracer.variation
    if variation is None or variation.exact_draws or m.tracer.graphs.nested or m.tracer.random is not None:
        return None
    return variation


def _numpys() -> list[Any]:
    """numpy's global generator, where numpy is there."""
    numpy = sys.modules.get("numpy.random")
    return [] if numpy is None else [numpy.rand.__self__]


def _generator(function: Any) -> tuple[Any, str] | None:
    """The global generator that a function draws from, and the name of the method."""
    if type(function) not in (types.MethodType, types.BuiltinMethodType):
        return None
    receiver, name = function.__self__, getattr(function, "__name__", "")
    if receiver is _PYTHONS:
        return (receiver, name) if name in _FLOATS or name in _INTEGERS else None
    is_global = any(receiver is generator for generator in _numpys())
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
