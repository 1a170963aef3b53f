"""The table of docs/reference/support.md, each row a program: it is compiled, compared with eager, and its report says what
the row says."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import io
import itertools
import logging
import random
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import fuselens
from fuselens.inputs import comparison
from fuselens.record.report import Report

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "support.md"


@dataclass(frozen=True)
class Row:
    title: str
    becomes: str
    codes: frozenset[str]


@dataclass(frozen=True)
class Program:
    """``call`` calls ``fn``, compiled or not, and gives what is compared."""

    fn: Callable[..., Any]
    call: Callable[[Callable[..., Any]], Any]
    options: dict[str, Any] = field(default_factory=dict)


def rows() -> list[Row]:
    """The rows below the heading ``Programs``."""
    lines = PAGE.read_text().partition("## Programs")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [Row(title, becomes, frozenset(codes.replace(",", " ").split())) for title, becomes, codes in cells[2:]]


ROWS = {row.title: row for row in rows()}
PROGRAMS: dict[str, Program] = {}


def x() -> Tensor:
    return torch.linspace(-2, 2, 16).reshape(4, 4)


def program(
    title: str, call: Callable[[Callable[..., Any]], Any] = lambda fn: fn(x()), **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        assert title not in PROGRAMS
        PROGRAMS[title] = Program(fn, call, options)
        return fn

    return add


def backward(fn: Callable[..., Any]) -> Any:
    """Result and gradient."""
    given = x().requires_grad_()
    result = fn(given)
    result.sum().backward()
    return result.detach(), given.grad


# --- the test -----------------------------------------------------------------------------------------------------


def test_each_row_has_a_program_and_each_program_a_row() -> None:
    assert len(ROWS) == len(rows()), "two rows have one title"
    assert set(ROWS) == set(PROGRAMS)


@pytest.mark.parametrize("title", PROGRAMS)
def test_the_program_becomes_what_the_row_says(title: str) -> None:
    row, tried = ROWS[title], PROGRAMS[title]
    fuselens.reset()
    compiled = fuselens.compile(copy.copy(tried.fn), options=tried.options)
    expected, actual = (observed(tried, fn) for fn in (tried.fn, compiled))
    assert (difference := comparison.differ(expected, actual, "result")) is None, difference
    report: Report = compiled.__fuselens__.recorder.report
    found = {finding.code for finding in (*report.breaks, *report.diagnostics)}
    assert becomes(report) == row.becomes, f"{report.summary()}; {report.uncompiled}; {sorted(found)}"
    assert row.codes <= found, sorted(found)


def becomes(report: Report) -> str:
    if not report.compiled:
        return "eager"
    return "one graph" if len(report.captured) == 1 and not report.breaks else "breaks"


def observed(tried: Program, fn: Callable[..., Any]) -> Any:
    """What a call gives and prints."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = tried.call(fn)
    return result, out.getvalue()


# --- one graph ----------------------------------------------------------------------------------------------------


@program("Tensor arithmetic, scalars, writes in place")
def _(x: Tensor) -> Tensor:
    y = (x * 2 + 1).relu()
    y[1:] += x[:-1]
    y.mul_(3)
    return y @ x / 2


@program("Lists, tuples, dicts and sets, with comprehensions and unpacking")
def _(x: Tensor) -> Tensor:
    first, *rest = [x * k for k in (1, 2, 3)]
    named = {"first": first, **{f"rest{k}": t for k, t in enumerate(rest)}}
    named["sum"] = sum(named.values())
    return named["sum"] * len({1, 2, 2})


@program("Loops and branches on Python values and shapes")
def _(x: Tensor) -> Tensor:
    for k in range(x.shape[0]):
        if k % 2:
            x = x + k
    while x.dim() < 4:
        x = x[None]
    return x


@program("Functions, closures, defaults, keyword arguments")
def _(x: Tensor) -> Tensor:
    def scaled(t: Tensor, factor: float = 2, **more: float) -> Tensor:
        return t * factor + sum(more.values()) * offset

    offset = x.mean()
    return scaled(x) + scaled(x, factor=3, extra=1)


@dataclass
class Pair:
    left: Tensor
    right: Tensor
    scale: int = 2

    @property
    def total(self) -> Tensor:
        return (self.left + self.right) * self.scale


@program("Classes, properties, dataclasses")
def _(x: Tensor) -> Tensor:
    pair = dataclasses.replace(Pair(x, x + 1), scale=3)
    return pair.total


@program("`match`, f-strings, assignment expressions")
def _(x: Tensor) -> Tensor:
    match (x.dim(), x.dtype):
        case (2, torch.float32):
            return (y := x + 1) * len(f"{x.shape[0]} rows") + y
        case _:
            return x


@program("`itertools`, `functools`, `copy.deepcopy`")
def _(x: Tensor) -> Tensor:
    products = [a * b for a, b in itertools.product([x, x + 1], [2, 3])]
    return functools.reduce(lambda a, b: a + b, copy.deepcopy(products))


@program("Generators that the function makes and uses, with `send`")
def _(x: Tensor) -> Tensor:
    def doubled(t: Tensor) -> Iterator[Tensor]:
        got = yield t
        yield got * 2

    made = doubled(x)
    first = next(made)
    return first + made.send(first + 1) + sum(t * t for t in (x, x + 1))


@program("`try`, `raise` and `finally` without a break inside")
def _(x: Tensor) -> Tensor:
    try:
        x = x * 2
        raise ValueError("expected")
    except ValueError as error:
        x = x + len(str(error))
    finally:
        x = x - 1
    return x


@contextlib.contextmanager
def factor() -> Iterator[int]:
    yield 3


@program("Context managers of the program, `torch.no_grad`")
def _(x: Tensor) -> Tensor:
    with factor() as k, torch.no_grad():
        y = x * k
    return y + 1


class Last:
    value: Any = None


LAZY = nn.LazyLinear(2)


LAST: Any = None
KEPT = Last()


@program("Assigned globals, attributes of objects and of classes", lambda fn: (fn(x()), LAST, KEPT.value, Last.value))
def _(x: Tensor) -> Tensor:
    global LAST
    LAST = x.sum()
    KEPT.value = x * 2
    Last.value = x * 3
    return x + 1


@program("`tensor.data = …`, `torch.FloatTensor(…)`, `tensor.new(…)`", lambda fn: fn(x()))
def _(x: Tensor) -> Tensor:
    y = x.new(x.shape).fill_(2)
    y.data = x * 3
    return y + torch.FloatTensor([1.0])


@program("Modules that make their parameters in the first call", lambda fn: fn(x()))
def _(x: Tensor) -> Tensor:
    return LAZY(x).relu() + 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
        self.layers[0].register_forward_hook(lambda module, args, out: out * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def with_gradients(net: nn.Module) -> Any:
    net.zero_grad()
    out = net(x())
    out.square().sum().backward()
    return out.detach(), [p.grad for p in net.parameters()]


PROGRAMS["`nn.Module`s with hooks, forward and backward"] = Program(Net(), with_gradients)


@program("A step of an optimiser", lambda fn: fn(*weights()))
def _(weight: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.step()
    return weight.detach() * 1


def weights() -> tuple[Tensor, torch.optim.Optimizer]:
    weight = nn.Parameter(x())
    weight.grad = x() * 0.1
    return weight, torch.optim.SGD([weight], lr=0.1)


@program("`torch.autograd.grad` inside of the function")
def _(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((x**3).sum(), x)
    return gradient * 2


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


@program("`torch.autograd.Function`", backward)
def _(x: Tensor) -> Tensor:
    return Cube.apply(x) + 1


@program("`torch.utils.checkpoint`", backward)
def _(x: Tensor) -> Tensor:
    return checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False) * 2


@program("`torch.func.grad`, `torch.func.vmap`")
def _(x: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(lambda row: (row**3).sum()))(x)


@program("Autocast")
def _(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    return y.float() + 1


@program("Random numbers of torch's own generator", fallback_random=True)
def _(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) + torch.rand(4, 4)


@program("Random numbers of Python's and numpy's global generators")
def _(x: Tensor) -> Tensor:
    return x * random.uniform(0.5, 1) + torch.from_numpy(np.random.rand(4, 4))


@program("Complex numbers, Fourier transforms")
def _(x: Tensor) -> Tensor:
    return (torch.complex(x, x + 1) * 2j).abs() + torch.fft.fft(x).abs()


@program("Arrays of numpy that are computed with")
def _(x: Tensor) -> Tensor:
    y = (x + 1).numpy()
    y[0] += y.mean(axis=1)
    return torch.from_numpy(np.tanh(y) @ y.T) * 2


@program("Half precision, float8, wide unsigned integers")
def _(x: Tensor) -> Tensor:
    rounded = x.to(torch.float8_e4m3fn).float() + (x.abs() * 10).to(torch.uint16).float()
    return x.half().softmax(-1).float() + rounded


@program("Attention, flex attention")
def _(x: Tensor) -> Tensor:
    q = x.view(1, 1, 4, 4)
    return F.scaled_dot_product_attention(q, q, q) + flex_attention(q, q, q)


class Tagged(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@program("Subclasses of tensors, with `__torch_function__` too", lambda fn: fn(x().as_subclass(Tagged)))
def _(x: Tensor) -> Tensor:
    return (x * 2 + 1).relu()


# --- breaks -------------------------------------------------------------------------------------------------------


@program("Assertions, and exceptions behind an `if`, that a tensor's value decides")
def _(x: Tensor) -> Tensor:
    assert torch.isfinite(x).all(), f"not finite: {x}"
    if (y := x.abs()).sum() < 0:
        raise ValueError("negative")
    return y.sqrt()


@program("A branch on a tensor's value")
def _(x: Tensor) -> Tensor:
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y * 3


@program("`item()`, `tolist()`, `float(tensor)`")
def _(x: Tensor) -> Tensor:
    return x * x[0, 0].item() + float(x.max()) + x.tolist()[0][0]


@program("`item()` with the option `capture_scalar_outputs`", capture_scalar_outputs=True)
def _(x: Tensor) -> Tensor:
    return x * x[0, 0].item() + 1


@program("`print`, warnings, logging")
def _(x: Tensor) -> Tensor:
    y = x + 1
    print("half way", tuple(y.shape))
    warnings.warn("half way", stacklevel=1)
    logging.getLogger("support").debug("half way")
    return y * 2


@program("`try` with a break inside")
def _(x: Tensor) -> Tensor:
    try:
        y = x * 2
        print("inside")
        y = y + 1
    finally:
        x = x - 1
    return y * x


@program("`with` with a break inside")
def _(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
        print("inside")
        y = y + 1
    return y * x


@program("Unknown code in C")
def _(x: Tensor) -> Tensor:
    y = x + 1
    return y * (zlib.crc32(b"text") % 7)


@program("Results whose shape depends on data")
def _(x: Tensor) -> Tensor:
    y = x + 1
    return y[y > 0] * 2


@program("`graph_break()`")
def _(x: Tensor) -> Tensor:
    y = x + 1
    fuselens.graph_break()
    return y * 2


@fuselens.disable
def excluded(x: Tensor) -> Tensor:
    return x - 1


@program("A call of a disabled function")
def _(x: Tensor) -> Tensor:
    return excluded(x + 1) * 2


@program("Generators of random numbers (`torch.Generator`)")
def _(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return x + torch.randn(4, 4, generator=generator)


@program("Files")
def _(x: Tensor) -> Tensor:
    y = x + 1
    with open(__file__) as file:
        length = len(file.readline())
    return y * length


@program("Clocks")
def _(x: Tensor) -> Tensor:
    y = x + 1
    began = time.perf_counter()
    return y * float(time.perf_counter() >= began)


@program("Coroutines that the function makes")
def _(x: Tensor) -> Tensor:
    async def later() -> Tensor:
        return x + 1

    try:
        later().send(None)
    except StopIteration as stopped:
        return stopped.value * 2
    return x


def looked_up(fn: Callable[..., Any]) -> Any:
    table = x().requires_grad_()
    fn(table, torch.tensor([1, 3, 1])).sum().backward()
    assert table.grad is not None and table.grad.is_sparse
    return table.grad.to_dense()


@program("Sparse gradients of embeddings", looked_up)
def sparse_gradients(table: Any, indices: Any) -> Any:
    return F.embedding(indices, table, sparse=True).sin()


@program("Sparse tensors", lambda fn: fn(x().to_sparse(), x()))
def _(sparse: Tensor, x: Tensor) -> Tensor:
    return (torch.sparse.mm(sparse, x) + 1).relu()


@program("Quantised tensors", lambda fn: fn(torch.quantize_per_tensor(x(), 0.1, 0, torch.qint8)))
def _(quantised: Tensor) -> Tensor:
    return (quantised.dequantize() + 1).relu()


@program("Nested tensors in the strided layout")
def _(x: Tensor) -> Tensor:
    ragged = torch.nested.nested_tensor([x, x[:2]])
    return (ragged.to_padded_tensor(0.0) + 1).relu()


# --- eager --------------------------------------------------------------------------------------------------------


@program("A generator function that is given to `compile`", lambda fn: list(fn(x())))
def _(x: Tensor) -> Iterator[Tensor]:
    yield x + 1
    yield x * 2


def finished(fn: Callable[..., Any]) -> Any:
    try:
        fn(x()).send(None)
    except StopIteration as stopped:
        return stopped.value


@program("A coroutine function that is given to `compile`", finished)
async def _(x: Tensor) -> Tensor:
    return x + 1


def tangent(fn: Callable[..., Any]) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(fn(forward_ad.make_dual(x(), torch.ones(4, 4)))))


@program("Forward-mode derivatives", tangent)
def _(x: Tensor) -> Tensor:
    return x.sin() * x


@program("`torch.cond` on a tensor's value")
def _(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t - 1, (x,))


@program("Tensors without data (`meta`)", lambda fn: fn(x().to("meta")).shape)
def _(x: Tensor) -> Tensor:
    return x + 1


class Wrapper(Tensor):
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Wrapper) else a for a in args]
        return Wrapper(func(*plain, **(kwargs or {})))


class Flattened(Wrapper):
    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: None, size: Any, stride: Any) -> Flattened:
        return Flattened(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Flattened(super().__torch_dispatch__(func, types, args, kwargs).inner)


@program("Subclasses with `__torch_dispatch__` and `__tensor_flatten__`", lambda fn: fn(Flattened(x())).inner)
def _(x: Tensor) -> Tensor:
    return (x * 2 + 1).relu()


@program(
    "Nested tensors in the jagged layout",
    lambda fn: fn(torch.nested.nested_tensor([x(), x()[:2]], layout=torch.jagged)).values(),
)
def _(ragged: Tensor) -> Tensor:
    return (ragged * 2 + 1).relu()


@program("Other subclasses with `__torch_dispatch__`", lambda fn: fn(Wrapper(x())).inner)
def _(x: Tensor) -> Tensor:
    return (x * 2 + 1).relu()


def second_derivative(fn: Callable[..., Any]) -> Any:
    given = x().requires_grad_()
    (first,) = torch.autograd.grad(fn(given).sum(), given, create_graph=True)
    return torch.autograd.grad(first.sum(), given)


@program("Second derivatives through a compiled function", second_derivative)
def _(x: Tensor) -> Tensor:
    return x.sin() * x
