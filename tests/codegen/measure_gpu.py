"""Times a few generated Triton kernels on the GPU at hand: ``python -m tests.codegen.measure_gpu``. Not a test."""

from __future__ import annotations

import torch

from fuselens.codegen.generate import generate
from fuselens.ir.text import parse
from fuselens.runtime.compile_graph import build
from fuselens.schedule.gpu.split import for_gpu
from fuselens.schedule.order import order

from .graphs import config
from .test_gpu import on_gpu
from .test_layouts import LAYER_NORM
from .test_reductions import reduction


def static(text: str, s0: int, s1: int) -> str:
    head, _, rest = text.partition("\n")
    return (head.split(" symbols")[0] + "\n" + rest).replace("s0", str(s0)).replace("s1", str(s1))


def measure(name: str, text: str, inputs: list[torch.Tensor], total: int) -> None:
    graph = order(for_gpu(on_gpu(parse(text))))
    call = build(graph, generate(graph, "cuda", "scalar"), config(), "cuda").call
    arguments = tuple(i.cuda() for i in inputs)
    for _ in range(3):
        call(arguments)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(50):
        call(arguments)
    end.record()
    torch.cuda.synchronize()
    ms = start.elapsed_time(end) / 50
    print(f"{name:40s} {ms:8.3f} ms {total / ms / 1e6:8.0f} GB/s")


def main() -> None:
    n, m = 16384, 4096
    x = torch.randn(n, m)
    f32 = n * m * 4
    measure("row sum", static(reduction("sum", "f32", "rows"), n, m), [x], f32)
    measure("column sum", static(reduction("sum", "f32", "columns"), n, m), [x], f32)
    measure("row argmax", static(reduction("argmax", "f32", "rows"), n, m), [x], f32)
    measure("layer_norm bf16", static(LAYER_NORM.format(d="bf16"), n, m), [x.bfloat16(), torch.randn(m)], f32)
    pointwise = f"""graph g
  input arg0: f32[{n}, {m}] strides [{m}, 1]
  buffer buf0: f32[{n}, {m}] strides [{m}, 1]
  kernel kernel0 [i0 < {n}, i1 < {m}] from [aten.tanh.default]
    phase []
      a = load arg0[{m}*i0 + i1] : f32
      b = tanh a : f32
      store buf0[{m}*i0 + i1] = b
  return buf0
"""
    measure("tanh", pointwise, [x], 2 * f32)
    transposed = pointwise.replace(f"{n}, {m}] strides [{m}, 1]\n  buffer", f"{n}, {m}] strides [1, {n}]\n  buffer")
    transposed = transposed.replace(f"arg0[{m}*i0 + i1]", f"arg0[i0 + {n}*i1]")
    measure("tanh of a transpose", transposed, [x.view(m, n).t()], 2 * f32)


if __name__ == "__main__":
    main()
