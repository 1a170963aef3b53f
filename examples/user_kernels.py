"""A Triton kernel of the program between operations that are compiled: one graph. Run it where there is a GPU; elsewhere with
TRITON_INTERPRET=1, and Triton's interpreter runs the kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import fuselens


@triton.jit
def leaky_kernel(x_ptr, out_ptr, n, slope, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, tl.where(x > 0, x, x * slope), mask=at < n)


@fuselens.compile(fullgraph=True)
def block(x: Tensor, weight: Tensor) -> Tensor:
    y = (x * weight).sin()
    out = torch.empty_like(y)
    leaky_kernel[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, out, y.numel(), 0.1, BLOCK=256)
    return out.sum(-1)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight = torch.randn(64, 64, device=device), torch.randn(64, device=device)
    torch.testing.assert_close(block(x, weight), torch.nn.functional.leaky_relu((x * weight).sin(), 0.1).sum(-1))
    print("as eager")


if __name__ == "__main__":
    main()
