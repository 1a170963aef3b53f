"""PyTorch functions as parts of Triton programs: device functions that the kernels here call, and kernels that are launched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

import fuselens

N = 1000
f8 = torch.float8_e4m3fn


@triton.jit
def one(x, out, n, function: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, function(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def two(x, y, out, n, function: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, function(tl.load(x + at, mask=mask), tl.load(y + at, mask=mask)), mask=mask)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def by_name(t0: Tensor, x: Tensor, slope: float = 0.1) -> Tensor:
    """Names that generated code has, too; a parameter with a default is no block."""
    if slope > 0:
        t0 = torch.where(t0 > x, t0, t0 * slope)
    return t0


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.clamp_(-1, 1).add_(0.5)
    return y.neg_()


def bits(x: Tensor, y: Tensor) -> Tensor:
    return (x ^ y) & 0xFF | (x >> 3)


def rounds(x: Tensor) -> Tensor:
    return torch.round(x * 3) + torch.trunc(x) + x % 1.5


def eighths(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() + y).to(f8)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.dtype, ...]]] = {
    "swiglu": (swiglu, (torch.float32, torch.float32)),
    "swiglu of halves": (swiglu, (torch.bfloat16, torch.bfloat16)),
    "swiglu of both": (swiglu, (torch.float16, torch.float32)),
    "names": (by_name, (torch.float32, torch.float32)),
    "gelu": (lambda x: F.gelu(x, approximate="tanh") * 0.5 + 1, (torch.float32,)),
    "in place": (in_place, (torch.float32,)),
    "integers": (bits, (torch.int32, torch.int32)),
    "rounds": (rounds, (torch.float64,)),
    "booleans": (lambda x, y: (x > 0) & (y < 0), (torch.float32, torch.float32)),
    "a number": (lambda x: torch.full_like(x, 3.0), (torch.float32,)),
    "itself": (lambda x: x, (torch.float32,)),
    "several kernels": (lambda x, y: torch.full_like(x, 2.0) * y + x, (torch.float32, torch.float32)),
    "eight bits": (eighths, (f8, torch.float32)),
}


def values(dtype: torch.dtype, seed: int, device: str) -> Tensor:
    made = torch.randn(N, generator=torch.Generator().manual_seed(seed)) * 3
    return (made * 1000 if dtype == torch.int32 else made).to(dtype).to(device)


def agrees(name: str, device: str) -> None:
    """A kernel that calls the function gives what the function gives."""
    fn, dtypes = FUNCTIONS[name]
    function = fuselens.triton_function(fn, dtypes=dtypes)
    given = [values(d, k, device) for k, d in enumerate(dtypes)]
    expected = fn(*given)
    out = torch.empty_like(expected)
    (one if len(given) == 1 else two)[(triton.cdiv(N, 128),)](*given, out, N, function, BLOCK=128)
    if out.dtype.itemsize == 1 and out.is_floating_point():
        out, expected = out.float(), expected.float()
    torch.testing.assert_close(out, expected)


# --- kernels --------------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def several(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.softmax(-1), x.amax(-1)


A_VIEW = "a view"
KERNELS: dict[str, tuple[Callable[..., Any], Callable[[str], tuple[Tensor, ...]]]] = {
    "swiglu": (swiglu, lambda d: (torch.randn(7, 100, device=d), torch.randn(7, 100, device=d))),
    "rms_norm": (rms_norm, lambda d: (torch.randn(30, 256, device=d), torch.randn(256, device=d))),
    "halves": (
        rms_norm,
        lambda d: (torch.randn(30, 256, device=d).bfloat16(), torch.randn(256, device=d).bfloat16()),
    ),
    "results": (several, lambda d: (torch.randn(20, 65, device=d),)),
    "strides": (lambda x, y: x.t() + y, lambda d: (torch.randn(40, 50, device=d), torch.randn(50, 40, device=d))),
    A_VIEW: (lambda x: (x * 2).view(-1, 2).t(), lambda d: (torch.randn(8, 6, device=d),)),
}


def launches(name: str, device: str, dynamic: bool) -> None:
    torch.manual_seed(0)
    fn, make = KERNELS[name]
    given = make(device)
    kernel = fuselens.triton_kernel(fn, *given, dynamic=dynamic)
    expected = fn(*given)
    torch.testing.assert_close(kernel(*given), expected, check_stride=True)
    if dynamic:
        fewer = [t[: t.shape[0] // 2] if t.dim() == 2 and name != "strides" else t for t in given]
        torch.testing.assert_close(kernel(*fewer), fn(*fewer))
    results = list(expected) if isinstance(expected, tuple) else [expected]
    if name == A_VIEW:
        return  # what is launched writes to what is viewed
    outs = [torch.empty_like(t) for t in results]
    held = {f"out{k}": t for k, t in enumerate(outs)}
    held |= dict(zip(inspect.signature(fn).parameters, given, strict=True))
    sizes = kernel.sizes_of(*given)
    kernel[kernel.grid(*sizes)](*(held[a.name] for a in kernel.arguments), *sizes, num_warps=2)
    torch.testing.assert_close(outs, results)
