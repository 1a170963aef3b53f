"""jaxtyping's annotations and checks, and what they are made of: bound signatures, metaclasses, thread-local state, caches."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float, Int, jaxtyped
from torch import nn

import fuselens

from .harness import agrees_with_eager
from .programs import t


@jaxtyped(typechecker=None)
def product(x: Float[torch.Tensor, "b c"], y: Float[torch.Tensor, "c d"]) -> Float[torch.Tensor, "b d"]:  # noqa: F722
    assert isinstance(x, Float[torch.Tensor, "b c"])  # noqa: F722
    assert isinstance(y, Float[torch.Tensor, "c d"])  # noqa: F722
    return x @ y


@jaxtyped(typechecker=None)
def inconsistent(x: Float[torch.Tensor, "b c"], y: Float[torch.Tensor, "c d"]) -> Any:  # noqa: F722
    return isinstance(x, Float[torch.Tensor, "b c"]), isinstance(y, Float[torch.Tensor, "b d"]), x @ y  # noqa: F722


def calls_twice(x, y):
    return product(x, y) + product(x * 2, y)


def asks(x, y):
    return (
        isinstance(x, Float[torch.Tensor, "b c"]), isinstance(x, Int[torch.Tensor, "b c"]),  # noqa: F722
        isinstance(x, Float[torch.Tensor, "2 4"]), isinstance(x, (int, Bool[torch.Tensor, "..."])), x * 2,  # noqa: F722
    )  # fmt: skip


def in_a_context(x, y):
    with jaxtyped("context"):
        first = isinstance(x, Float[torch.Tensor, "b c"])  # noqa: F722
        second = isinstance(y, Float[torch.Tensor, "b c"])  # noqa: F722
    return first, second, x * 2


def checked(x, y):
    assert isinstance(x, Float[torch.Tensor, "b c"])  # noqa: F722
    return x + 1


def _given(a, *rest, k=2, **named):
    pass


SIGNATURE = inspect.signature(_given)


def bound(x, y):
    call = SIGNATURE.bind(x, y, 3, z=x)
    before = dict(call.arguments)
    call.apply_defaults()
    return before["a"] * 2, call.args[1], call.kwargs["z"] + call.arguments["k"], list(call.arguments)


def misfits(x, y):
    try:
        SIGNATURE.bind()
    except TypeError as e:
        return str(e), x * 2


class Answering(type):
    kind = "answering"

    def __instancecheck__(cls, instance):
        return getattr(instance, "ndim", 0) == cls.rank()

    def rank(cls):
        return 2

    @property
    def doubled(cls):
        return cls.rank() * 2


class Matrix(metaclass=Answering):
    pass


def by_metaclass(x, y):
    return isinstance(x, Matrix), isinstance(3, (str, Matrix)), Matrix.rank(), Matrix.doubled, Matrix.kind, x * 2


LOCAL = threading.local()
LOCAL.stack = []


def thread_local(x, y):
    LOCAL.stack.append(1)
    depth = len(LOCAL.stack)
    LOCAL.depth = depth
    LOCAL.stack.pop()
    return x * LOCAL.depth, hasattr(LOCAL, "nothing")


@functools.lru_cache
def table(n):
    return [i * 2 for i in range(n)]


@functools.cache
def mask(n, dtype):
    return torch.tril(torch.ones(n, n, dtype=dtype))


@functools.lru_cache
def mixed(n):
    return n, torch.float32, "a", {"k": torch.arange(n)}


@functools.lru_cache
def noise(n):
    return torch.rand(n)


def cached_list(x, y):
    return x * table(3)[1], table(3) is table(3)


def cached_tensor(x, y):
    return x @ mask(4, torch.float32), mask(4, torch.float32) is mask(4, torch.float32)


def cached_parts(x, y):
    n, dtype, text, held = mixed(4)
    return x.to(dtype) * n + held["k"], text


def plain_function(x, y):
    return getattr(product, "nothing", 1), hasattr(_given, "nothing"), x * 2


def cached_noise(x, y):
    return x + noise(4)


CASES = [
    product, calls_twice, asks, in_a_context, checked, bound, misfits, by_metaclass, thread_local, cached_list, cached_tensor,
    cached_parts, plain_function, inconsistent,
]  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_agrees_with_eager(function: Any) -> None:
    report = agrees_with_eager(lambda x, y: function(x, y), (t(2, 4), t(4, 3)), (t(5, 4), t(4, 3)))
    assert not report.breaks, report.breaks


def test_what_does_not_fit_is_refused() -> None:
    agrees_with_eager(lambda x, y: checked(x, y), (t(2, 4), t(4, 3)), (t(4), t(4)))
    agrees_with_eager(lambda x, y: product(x), (t(2, 4), t(4, 3)))


def test_random_numbers_in_a_cache_are_eager() -> None:
    def run(function: Any) -> Any:
        torch.manual_seed(0)
        noise.cache_clear()
        return [function(t(4), t(4)) for _ in range(3)], torch.get_rng_state()

    expected, actual = run(cached_noise), run(fuselens.compile(cached_noise, backend="eager"))
    assert all(torch.equal(a, b) for a, b in zip(expected[0], actual[0], strict=True))
    assert torch.equal(expected[1], actual[1])


def test_a_cache_that_is_cleared() -> None:
    compiled = fuselens.compile(cached_tensor, backend="eager")
    x, y = t(2, 4), t(4, 3)
    for _ in range(2):
        assert torch.equal(compiled(x, y)[0], cached_tensor(x, y)[0])
        mask.cache_clear()


def test_thread_local_state_is_that_of_the_thread() -> None:
    def depth(x):
        return x * getattr(LOCAL, "scale", 1)

    compiled = fuselens.compile(depth, backend="eager")
    x, found = t(3), []
    LOCAL.scale = 5
    try:
        assert torch.equal(compiled(x), x * 5)
        thread = threading.Thread(target=lambda: found.append(compiled(x)))
        thread.start()
        thread.join()
    finally:
        del LOCAL.scale
    assert torch.equal(found[0], x)
    assert torch.equal(compiled(x), x)


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    @jaxtyped(typechecker=None)
    def forward(self, x: Float[torch.Tensor, "b c"]) -> Float[torch.Tensor, "b 3"]:  # noqa: F722
        return self.linear(x)


def test_a_module_is_one_graph() -> None:
    module = Checked()
    compiled = fuselens.compile(module, backend="eager", fullgraph=True)
    for size in (2, 5, 7):
        x = t(size, 4)
        assert torch.equal(compiled(x), module(x))
