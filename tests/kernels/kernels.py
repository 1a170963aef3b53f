"""Triton kernels as programs have them, and functions that call them. On a CPU Triton's interpreter runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SCALE = tl.constexpr(3)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask), mask=mask)


@triton.jit
def double_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(x_ptr + at, x * 2, mask=at < n)


@triton.jit
def scaled(x):
    return x * SCALE


@triton.jit
def put(ptr, at, value, mask):
    tl.store(ptr + at, scaled(value), mask=mask)


@triton.jit
def helper_kernel(x_ptr, bias_ptr, out_ptr, factor, n, BLOCK: tl.constexpr, NEGATE: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(x_ptr + at, mask=mask) * factor
    if bias_ptr is not None:
        value += tl.load(bias_ptr + at, mask=mask)
    if NEGATE:
        value = -value
    put(out_ptr, at, value, mask)


@triton.jit
def rows_kernel(x_ptr, out_ptr, sums_ptr, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < columns, other=0.0)
    pointer = out_ptr + row * columns + at
    tl.store(pointer, x - tl.sum(x, 0) / columns, mask=at < columns)
    tl.atomic_add(sums_ptr, tl.sum(x, 0))


def _bench(run: Callable[[], Any], quantiles: Any) -> list[float]:
    run()
    return [1.0] * len(quantiles)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 32}, num_warps=2), triton.Config({"BLOCK": 64}, num_stages=2)], key=["n"],
    do_bench=None if torch.cuda.is_available() else _bench,
)  # fmt: skip
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


@triton.heuristics({"BLOCK": lambda args: 64 if args["n"] > 100 else 16})
@triton.jit
def ruled_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) - 1, mask=at < n)


@triton.jit
def addresses_kernel(table_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    pointer = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    tl.store(pointer + at, tl.zeros((BLOCK,), tl.float32), mask=at < n)


# --- functions ----------------------------------------------------------------------------------------------------------


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 32),)](x.sin(), y, out, n, BLOCK=32)
    return out * 2


def by_function_of_parameters(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, out, n=x.numel(), BLOCK=64, num_warps=8)
    return out.cos()


def writes_inputs(x: Tensor, y: Tensor) -> Tensor:
    before = x + 1
    double_kernel[(2,)](x, x.numel(), BLOCK=64)
    add_kernel[(2,)](x, y, x, x.numel(), BLOCK=64)
    return before * x


def writes_views(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x.sin()
    part = z[20:60]
    double_kernel[(2,)](part, part.numel(), BLOCK=32)
    return z, part.exp() + y[20:60]


def writes_view_of_input(x: Tensor, y: Tensor) -> Tensor:
    double_kernel[(1,)](x[:32], 32, BLOCK=32)
    return x + y


def twice_the_same(x: Tensor, y: Tensor) -> Tensor:
    z = x.exp()
    add_kernel[(4,)](z, z, z, z.numel(), 32)
    return z - y


def overlapping(x: Tensor, y: Tensor) -> Tensor:
    z = x.exp()
    add_kernel[(2,)](z[:50], y, z[50:], 50, BLOCK=32)
    return z


def with_gaps(x: Tensor, y: Tensor) -> Tensor:
    z = torch.stack((x, y), 1)
    double_kernel[(4,)](z[:, 0], 100, BLOCK=32)
    return z.sin()


def without_bias(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    helper_kernel[(4,)](x, None, out, 0.5, x.numel(), BLOCK=32)
    return out + y


def with_bias(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    helper_kernel[4, 1, 1](x, y, out, 0.5, x.numel(), BLOCK=32, NEGATE=True)
    return out + y


def rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    table = (x * y).view(10, 10)
    out, sums = torch.empty(10, 10), torch.zeros(1)
    out, sums = out.to(x.device), sums.to(x.device)
    rows_kernel[(10,)](table.t().contiguous(), out, sums, 10, 10, BLOCK=16)
    return out.relu(), sums


def tuned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out * y


def ruled(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    ruled_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out * y


def wrapped(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(4,)](x, y, out, x.numel(), BLOCK=32)
    return out.sin()


def several(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for _ in range(3):
        add_kernel[(4,)](x, y, out, x.numel(), BLOCK=32)
        x = out.sin()
        double_kernel[(4,)](x, x.numel(), BLOCK=32)
    return x + out


def unused(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[(4,)](x, y, out, x.numel(), BLOCK=32)
    return x.sin()


def returned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[(4,)](x, y, out, x.numel(), BLOCK=32)
    return out


def old_and_new(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out = x.exp()
    old = out + 0
    double_kernel[(4,)](out, x.numel(), BLOCK=32)
    return old, out * y


def writes_row(x: Tensor, y: Tensor) -> Tensor:
    table = torch.stack((x, y, x))
    double_kernel[(4,)](table[1], 100, BLOCK=32)
    return table.sum(0)


# --- operators ----------------------------------------------------------------------------------------------------------


@torch.library.triton_op("fuselens_tests::added", mutates_args=())
def added(x: Tensor, y: Tensor, factor: float = 2.0) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), BLOCK=32)
    return out * factor


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, ctx.factor = inputs
    ctx.save_for_backward(x)


def _formula(ctx: Any, g: Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return added_plainly(g, x, ctx.factor) - x * ctx.factor, g * ctx.factor, None


added.register_autograd(_formula, setup_context=_keep)


@torch.library.triton_op("fuselens_tests::added_plainly", mutates_args=())
def added_plainly(x: Tensor, y: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), BLOCK=32)
    return out * factor


@torch.library.triton_op("fuselens_tests::doubled", mutates_args=("x",))
def doubled(x: Tensor) -> None:
    torch.library.wrap_triton(double_kernel)[(triton.cdiv(x.numel(), 32),)](x, x.numel(), BLOCK=32)


def through_an_operator(x: Tensor, y: Tensor) -> Tensor:
    return added(x.sin(), y * 2, factor=3.0).cos()


def writes_by_an_operator(x: Tensor, y: Tensor) -> Tensor:
    z = y.exp()
    doubled(x)
    doubled(z)
    return x + z


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(x.numel(), 32),)](x, x, out, x.numel(), BLOCK=32)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        g = g.contiguous().clone()
        double_kernel[(triton.cdiv(g.numel(), 32),)](g, g.numel(), BLOCK=32)
        return g


def trained(x: Tensor, y: Tensor) -> Tensor:
    return (Doubled.apply(x * y) * added(x, y.sin())).sum()


def optimised(parameter: Tensor, gradient: Tensor) -> None:
    """As optimisers that are kernels do: autograd is told nothing."""
    add_kernel[(4,)](parameter, gradient, parameter, parameter.numel(), BLOCK=32)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        add, by_function_of_parameters, writes_inputs, writes_views, writes_view_of_input, twice_the_same, without_bias,
        with_bias, rows, tuned, ruled, wrapped, several, unused, returned, old_and_new, overlapping, with_gaps, writes_row,
        through_an_operator, writes_by_an_operator,
    )
}  # fmt: skip


def through_addresses(x: Tensor, y: Tensor) -> Tensor:
    z = x.exp()
    addresses_kernel[(1,)](torch.tensor([z.data_ptr()], device=x.device), 10, BLOCK=16)
    return z


def inputs(device: str = "cpu") -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.randn(100, generator=made).to(device), torch.randn(100, generator=made).to(device)
