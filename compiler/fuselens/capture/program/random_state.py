"""Python's random numbers where the program itself says their seed: then they are known while tracing.

A generator that the trace makes, ``random.Random(3)``, is drawn from here. After ``random.seed(3)`` so is that of the module; what
was drawn from it is drawn again after the graph, so that its state is what the program leaves.
"""

from __future__ import annotations

import random
import types
from typing import TYPE_CHECKING, Any

from ..breaks import Break, raising
from ..values.algebra import ActiveValue, Constant, Known, NamedMethod, SequenceValue, Value
from ..values.iterators import iterate
from ..values.known import UNKNOWN, deep_use, from_plain, plain

if TYPE_CHECKING:
    from ..machine import Machine

_DRAWS = frozenset(
    "random uniform randint randrange getrandbits gauss normalvariate lognormvariate expovariate betavariate gammavariate "
    "triangular vonmisesvariate paretovariate weibullvariate choice choices sample shuffle".split()
)
_SEEDS = (int, float, str, bytes)


class RandomValue(ActiveValue):
    """A ``random.Random`` whose state is known."""

    __slots__ = ("rng",)

    def __init__(self, rng: random.Random) -> None:
        super().__init__(None)
        self.rng = rng

    @property
    def python_type(self) -> type:
        return random.Random

    def attribute(self, m: Machine, name: str) -> Value | None:
        return NamedMethod(self, name) if name in _DRAWS or name == "seed" else None

    @property
    def maker(self) -> Any:
        return _with_state

    @property
    def parts(self) -> list[Value]:
        return [Known(self.rng.getstate())]


def _with_state(state: Any) -> random.Random:
    made = random.Random()
    made.setstate(state)
    return made


def made(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``random.Random(seed)``."""
    seed = plain(m.use(args[0])) if len(args) == 1 and not kwargs else None
    if type(seed) not in _SEEDS or m.tracer.graphs.nested:
        raise Break("FL115", what="random.Random")
    return RandomValue(random.Random(seed))


def drawn(m: Machine, value: RandomValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a method of a generator gives; its state goes on."""
    m.tracer.effects.touch(value, f"random.Random.{name}")
    if name == "seed":
        seed = plain(m.use(args[0])) if len(args) == 1 and not kwargs else None
        if type(seed) not in _SEEDS:
            raise Break("FL115", what="random.Random.seed")
        value.rng.seed(seed)
        return Constant(None)
    if name == "shuffle":
        return _shuffled(m, value, args, kwargs)
    given, named = [plain(deep_use(m, a)) for a in args], {k: plain(deep_use(m, v)) for k, v in kwargs.items()}
    if any(v is UNKNOWN for v in (*given, *named.values())):
        raise Break("FL115", what=f"random.Random.{name}")
    try:
        return from_plain(getattr(value.rng, name)(*given, **named), f"random.Random.{name}")
    except (TypeError, ValueError, IndexError) as error:
        raise raising(error) from None


def _shuffled(m: Machine, value: RandomValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = m.use(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(items, SequenceValue) or items.kind is not list:
        raise Break("FL115", what="random.Random.shuffle")
    order = list(range(len(items.items)))
    value.rng.shuffle(order)
    m.tracer.effects.mutate(items)
    items.items[:] = [items.items[i] for i in order]
    return Constant(None)


def of_module(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A call of a function of the module ``random`` once the program has seeded it; None for other calls."""
    bound = type(function) in (types.MethodType, types.BuiltinMethodType)
    if not bound or function.__self__ is not _MODULES or function.__name__ not in (*_DRAWS, "seed"):
        return None
    name, state, nested = function.__name__, m.tracer.random, m.tracer.graphs.nested
    if nested or (state is None and name != "seed"):
        return None
    if state is None:
        state = RandomValue(random.Random(0))
    count = len(iterate(m, args[0])) if name == "shuffle" and args else 0
    result = drawn(m, state, name, args, kwargs)
    m.tracer.random = state
    if name == "shuffle":
        m.tracer.effects.calls.append((_shuffle_some, (Constant(count),)))
    else:
        named = SequenceValue([SequenceValue([Constant(k), v], tuple) for k, v in kwargs.items()], tuple)
        m.tracer.effects.calls.append((_drawn_again, (Constant(name), SequenceValue(list(args), tuple), named)))
    return result


_MODULES = getattr(random.random, "__self__", None)


def _drawn_again(name: str, args: Any, kwargs: Any) -> None:
    getattr(random, name)(*args, **dict(kwargs))


def _shuffle_some(count: int) -> None:
    random.shuffle([None] * count)
