"""PyTorch functions inside of Triton programs: an activation that a kernel calls, and a norm that is launched. Run it where there is
a GPU; elsewhere with TRITON_INTERPRET=1."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

import fuselens


@fuselens.triton_function(dtypes=torch.bfloat16)
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


@triton.jit
def halves_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    gate = tl.load(x_ptr + row * 2 * width + at, mask=at < width)
    up = tl.load(x_ptr + row * 2 * width + width + at, mask=at < width)
    tl.store(out_ptr + row * width + at, swiglu(gate, up), mask=at < width)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight = torch.randn(32, 192, device=device).bfloat16(), torch.randn(96, device=device).bfloat16()
    y = torch.empty(32, 96, device=device, dtype=x.dtype)
    halves_kernel[(32,)](x, y, 96, BLOCK=128)
    torch.testing.assert_close(y, F.silu(x[:, :96]) * x[:, 96:])

    out = torch.empty_like(y)
    norm = fuselens.triton_kernel(rms_norm, y, weight, dynamic=True)
    sizes = norm.sizes_of(y, weight)
    norm[norm.grid(*sizes)](y, weight, out, *sizes, num_warps=2)
    torch.testing.assert_close(out, rms_norm(y, weight))
    print("as eager")


if __name__ == "__main__":
    main()
