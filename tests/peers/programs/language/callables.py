"""What is called: caches, partial functions, wrappers, signatures, methods bound and unbound, builtins with a key."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from typing import Any

import torch

from ...program import Programs, some

programs = Programs()


@functools.lru_cache(maxsize=None)
def cached(n: int) -> int:
    return n * n


@functools.lru_cache
def cached_pair(n: int, *, k: int = 2) -> tuple[int, int]:
    return n, k


@functools.cache
def cached_tensor(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32)


def wrapped(f: Any) -> Any:
    @functools.wraps(f)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs) + 1

    return inner


@wrapped
def twice(x: Any, k: int = 2) -> Any:
    "Doubles."
    return x * k


def positional(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, e: int = 5, **more: int) -> tuple[Any, ...]:
    return a, b, c, rest, d, e, more


class Cached:
    def __init__(self) -> None:
        self.base = 3

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def power(self, n: int) -> int:
        return self.base**n

    @functools.cached_property
    def slow(self) -> int:
        return self.base + 1

    @functools.singledispatchmethod
    def kind(self, value: Any) -> str:
        return "other"

    @kind.register
    def _(self, value: int) -> str:
        return "int"

    part = functools.partialmethod(power, 2)


class Callable_:
    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, x: Any, *, add: int = 0) -> Any:
        return x * self.k + add


@functools.singledispatch
def dispatched(value: Any) -> str:
    return "object"


@dispatched.register
def _(value: int) -> str:
    return "int"


@dispatched.register(list)
def _(value: list) -> str:
    return "list"


@functools.total_ordering
class Ordered:
    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and self.n == other.n

    def __lt__(self, other: Any) -> bool:
        return self.n < other.n

    def __hash__(self) -> int:
        return self.n


@programs(lambda: (some(3),))
def lru_cache_called(x):
    return x * cached(3) + cached(4) + cached(3)


@programs(lambda: (some(3),))
def lru_cache_with_keywords(x):
    n, k = cached_pair(3, k=4)
    return x * n + k


@programs(lambda: (some(3),))
def cache_of_tensors(x):
    return x + cached_tensor(3)


@programs(lambda: (some(3), Cached()))
def lru_cache_of_a_method(x, c):
    return x * c.power(2) + c.slow


@programs(lambda: (some(3),))
def wrapped_by_a_cache(x):
    return x + cached.__wrapped__(3), cached.__name__, hasattr(cached, "cache_info")


@programs(lambda: (some(3),))
def cache_inside(x):
    @functools.cache
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return x + fib(9)


@programs(lambda: (some(3),))
def partial_called(x):
    f = functools.partial(torch.add, alpha=2)
    return f(x, x), functools.partial(f, x)(x)


@programs(lambda: (some(3),))
def partial_taken_apart(x):
    f = functools.partial(positional, 1, d=4)
    return x + 1, f.args, f.keywords, f.func is positional, f(7, 8, 9, z=1)


@programs(lambda: (some(3), functools.partial(positional, 1, d=4)))
def partial_as_an_argument(x, f):
    return x * f()[0], f(5)[1], f.keywords["d"]


@programs(lambda: (some(3), functools.partial(torch.nn.functional.softmax, dim=0)))
def partial_of_a_torch_function(x, f):
    return f(x)


@programs(lambda: (some(3), functools.partial(torch.nn.Linear(3, 3).forward)))
def partial_of_a_bound_method(x, f):
    return f(x).shape, f.func.__self__.in_features


@programs(lambda: (some(3),))
def partial_with_attributes(x):
    f = functools.partial(twice, k=3)
    f.tag = "here"
    return f(x), f.tag


@programs(lambda: (some(3), Cached()))
def partial_method(x, c):
    return x + c.part()


@programs(lambda: (some(3),))
def wraps(x):
    return twice(x), twice.__name__, twice.__doc__, twice.__wrapped__(x), inspect.unwrap(twice) is twice.__wrapped__


@programs(lambda: (some(3),))
def wrapped_inside(x):
    @wrapped
    def three(v: Any) -> Any:
        return v * 3

    return three(x), three.__name__, three.__qualname__.endswith("three")


@programs(lambda: (some(3),))
def signature_of_a_function(x):
    s = inspect.signature(positional)
    return x + len(s.parameters), list(s.parameters), s.parameters["e"].default, "a" in s.parameters


@programs(lambda: (some(3), torch.nn.Linear(3, 3)))
def signature_of_a_method(x, m):
    names = set(inspect.signature(m.forward).parameters.keys())
    return (m(x) if "input" in names else x), "input" in names


@programs(lambda: (some(3),))
def arguments_chosen_by_a_signature(x):
    given = {"k": 3, "unknown": 4}
    accepted = inspect.signature(twice).parameters
    return twice(x, **{k: v for k, v in given.items() if k in accepted})


@programs(lambda: (some(3),))
def bound_arguments(x):
    bound = inspect.signature(positional).bind(1, d=3)
    bound.apply_defaults()
    return x + 1, dict(bound.arguments)


@programs(lambda: (some(3),))
def kinds_of_parameters(x):
    kinds = [p.kind.name for p in inspect.signature(positional).parameters.values()]
    return x + 1, kinds, inspect.Parameter.empty is inspect.signature(positional).parameters["a"].default


@programs(lambda: (some(3),))
def full_argument_specification(x):
    spec = inspect.getfullargspec(twice.__wrapped__)
    return x + 1, spec.args, spec.defaults


@programs(lambda: (some(3),))
def what_inspect_asks(x):
    return (
        x + 1,
        inspect.isfunction(twice),
        inspect.isclass(Cached),
        inspect.ismethod(Cached().power),
        inspect.isbuiltin(len),
    )


@programs(lambda: (some(3), 4))
def single_dispatch(x, n):
    return x + 1, dispatched(n), dispatched([1]), dispatched("s")


@programs(lambda: (some(3), Cached()))
def single_dispatch_method(x, c):
    return x + 1, c.kind(1), c.kind("s")


@programs(lambda: (some(3),))
def total_ordering(x):
    a, b = Ordered(1), Ordered(2)
    return x + 1, a <= b, a >= b, a > b, max(a, b).n, sorted([b, a])[0].n


@programs(lambda: (some(3), Callable_(3)))
def callable_object(x, f):
    return f(x, add=1), callable(f), callable(3)


@programs(lambda: (some(3),))
def callable_objects_mapped(x):
    return list(map(Callable_(2), [x, x + 1])), sum(map(Callable_(3), [1, 2]))


@programs(lambda: (some(3),))
def unbound_method(x):
    return Callable_.__call__(Callable_(2), x, add=3), torch.Tensor.add(x, 1)


@programs(lambda: (some(3), torch.nn.Linear(3, 3)))
def bound_method_stored(x, m):
    f = m.forward
    return f(x).sum() + m.__call__(x).sum(), f.__self__ is m, f.__func__ is torch.nn.Linear.forward


@programs(lambda: (some(3),))
def keywords_spread(x):
    given = {"d": 4, "z": 6}
    return x + 1, positional(1, *(2, 3), *[4], **given, e=7)


@programs(lambda: (some(3),))
def wrong_arguments(x):
    try:
        positional(1)
    except TypeError as e:
        return x + 1, str(e)
    return x


@programs(lambda: (some(3),))
def too_many_arguments(x):
    try:
        twice.__wrapped__(x, 2, 3)
    except TypeError as e:
        return x + 1, str(e).replace("twice()", "")
    return x


@programs(lambda: (some(3),))
def defaults_read_and_written(x):
    def f(v: Any, k: int = 2) -> Any:
        return v * k

    f.__defaults__ = (5,)
    return f(x), f.__kwdefaults__


@programs(lambda: (some(3),))
def sorted_by_a_key(x):
    pairs = sorted([(2, "b"), (1, "z"), (2, "a")], key=operator.itemgetter(0), reverse=True)
    return x + pairs[0][0], pairs, min(pairs, key=lambda p: p[1]), max([], default=3)


@programs(lambda: (some(3),))
def reduced(x):
    return functools.reduce(operator.mul, [x, 2, x]), functools.reduce(lambda a, b: a + b, [1, 2], 10)


@programs(lambda: (some(3),))
def method_caller(x):
    return operator.methodcaller("sum", 0)(x), operator.methodcaller("upper")("a")


@programs(lambda: (some(3),))
def accumulated(x):
    return list(itertools.accumulate([1, 2, 3], operator.mul)), list(itertools.accumulate([x, x], initial=x))[2]


@programs(lambda: (some(3),))
def closures_over_a_loop(x):
    fs = [lambda v, k=k: v + k for k in range(3)]
    late = [lambda v: v + k for k in range(3)]  # noqa: B023
    return [f(x) for f in fs], [f(x) for f in late]


@programs(lambda: (some(3),))
def nonlocal_state(x):
    count = 0

    def step(v: Any) -> Any:
        nonlocal count
        count += 1
        return v + count

    return step(step(x)), count


@programs(lambda: (some(3),))
def recursion(x):
    def down(v: Any, n: int) -> Any:
        return v if n == 0 else down(v * 2, n - 1)

    return down(x, 5)


@programs(lambda: (some(3),))
def decorators_stacked(x):
    def times(k: int) -> Any:
        def decorate(f: Any) -> Any:
            @functools.wraps(f)
            def run(v: Any) -> Any:
                return f(v) * k

            return run

        return decorate

    @times(2)
    @times(3)
    def plus(v: Any) -> Any:
        return v + 1

    return plus(x)


@programs(lambda: (some(3),))
def compared_functions(x):
    f = functools.partial(twice)
    return x + 1, twice == twice, f == f, f != functools.partial(twice), hash(twice) == hash(twice)


@programs(lambda: (some(3),))
def functions_as_keys(x):
    table = {torch.sin: 1, twice: 2, Cached: 3, torch.nn.Linear: 4, len: 5}
    return x + table[torch.sin] + table[twice] + table[Cached] + table[len], torch.cos in table


@programs(lambda: (some(3), [torch.sin, torch.cos, torch.nn.functional.relu]))
def functions_in_a_list(x, fs):
    for f in fs:
        x = f(x)
    return x, [f.__name__ for f in fs]


@programs(lambda: (some(3),))
def operators_by_function(x):
    return (
        operator.add(x, 1), operator.matmul(x, x), operator.getitem(x, 1), operator.neg(x), operator.truth([1]),
        operator.contains([1, 2], 2), operator.index(3), operator.concat([1], [2]), operator.is_(x, x), operator.length_hint([1, 2]),
    )  # fmt: skip


@programs(lambda: (some(3),))
def in_place_operators_by_function(x):
    y = x.clone()
    operator.iadd(y, 1)
    items = [1]
    operator.setitem(items, 0, 3)
    return operator.imul(y, 2), operator.iconcat(items, [4])


@programs(lambda: (some(3),))
def frames_are_asked_for_their_name(x):
    return x + 1, inspect.currentframe() is not None


@programs(lambda: (some(3),))
def generator_function(x):
    def parts(v: Any) -> Any:
        for k in range(3):
            yield v + k
        return v

    return sum(parts(x)), inspect.isgeneratorfunction(parts), len(list(parts(x)))
