"""Programs around a compiled function, and what is compared of them: values, metadata and exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tests.support.tensors import leaf

Program = Callable[[Callable[..., Any]], Any]


class Programs(dict[str, Program]):
    """Those of one file of tests, by name."""

    def add(self, function: Program) -> Program:
        """``function`` takes what compiles, and returns what is compared."""
        self[function.__name__] = function
        return function


def show(value: Any) -> Any:
    """Plain data that tells values and metadata."""
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter):
            return type(value).__name__, tuple(value.shape)
        dense = value.detach() if value.layout is torch.strided else value.detach().to_dense()
        numbers = dense.to(torch.complex128).flatten().tolist()
        return str(value.layout), str(value.dtype), tuple(value.shape), value.requires_grad, value.is_leaf, numbers
    if isinstance(value, (list, tuple)):
        return [show(v) for v in value]
    return {k: show(v) for k, v in value.items()} if isinstance(value, dict) else value


def outcome(function: Callable[[], Any]) -> Any:
    """What the function returns, or the exception that it raises."""
    try:
        return "returned", show(function())
    except Exception as error:
        return type(error).__name__, str(error).split("\n")[0]


def agree(a: Any, b: Any) -> bool:
    """Whether what :func:`show` gave is the same, but for rounding."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(agree, a, b))
    if isinstance(a, (float, complex)) and isinstance(b, (float, complex)):
        return a == b or abs(a - b) <= 1e-4 * (1 + abs(b)) or (a != a and b != b)
    return type(a) is type(b) and a == b


def run(program: Program, compiled: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    Logging.log.clear()
    return outcome(lambda: program(compiled))


def assert_agree(program: Program, compiled: Callable[..., Any]) -> None:
    """The program gives what it gives when nothing is compiled."""
    expected, actual = run(program, lambda f: f), run(program, compiled)
    assert agree(actual, expected), f"compiled: {actual}\neager: {expected}"


def inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [leaf(4, 6, dtype=dtype), leaf(5, 6, dtype=dtype), leaf(5, dtype=dtype)]


class Logging(torch.Tensor):
    """A wrapper that writes down the operators it sees."""

    elem: Tensor

    @staticmethod
    def __new__(cls, e: Tensor) -> Logging:
        return torch.Tensor._make_wrapper_subclass(cls, e.shape, dtype=e.dtype, requires_grad=e.requires_grad)

    def __init__(self, e: Tensor) -> None:
        self.elem = e

    log: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logging.log.append(str(func))
        args, kwargs = tree_map(lambda t: t.elem if isinstance(t, Logging) else t, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return tree_map(lambda t: Logging(t) if isinstance(t, torch.Tensor) else t, out)
