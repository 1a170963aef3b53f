"""Numbers of eight bits on a GPU: converted bit by bit as eager converts them, whatever Triton's own conversions do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fuselens
from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.tools.interpret import Job, interpret
from fuselens.ir.dtypes import NAMES
from fuselens.ir.text import parse

pytest.importorskip("triton")
FLOAT8 = torch.float8_e4m3fn, torch.float8_e5m2
CAST = """\
graph g
  input x: {given}[{n}] strides [1]
  buffer out: {wanted}[{n}] strides [1]
  kernel cast_0 [i0 < {n}] of [out] from [aten._to_copy]
    phase []
      t0 = load x[i0] : {given}
      t1 = cast t0 : {wanted}
      store out[i0] = t1
  return out
"""


def values() -> dict[str, Tensor]:
    """Every number of sixteen bits, others of 32 and 64 at random, near where results change and where they end, and integers."""
    torch.manual_seed(0)
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    bits = torch.randint(-(2**31), 2**31 - 1, (1 << 14,), dtype=torch.int64).to(torch.int32).view(torch.float32)
    edges = torch.cat([torch.arange(256).to(torch.uint8).view(dtype).float() for dtype in FLOAT8])
    edges = torch.cat([edges, (edges[1:] + edges[:-1]) / 2, torch.tensor([448, 464, 480, 57344, 61440, 65536, 1e30])])
    near = torch.cat([edges, *(torch.nextafter(edges, torch.tensor(end)) for end in (-torch.inf, torch.inf))])
    f32 = torch.cat([bits, near])
    f64 = torch.cat([f32.double(), f32.double() * (1 + 2**-40)])
    return {
        "f16": every.view(torch.float16), "f32": f32, "f64": f64, "i64": torch.tensor([0, 1, -3, 17, 240, 449, -500, 70000, 2**60]),
        "bool": torch.tensor([True, False]),
    }  # fmt: skip


def casts() -> list[tuple[Tensor, torch.dtype]]:
    down = [(given, dtype) for given in values().values() for dtype in FLOAT8]
    everything = [torch.arange(256).to(torch.uint8).view(dtype) for dtype in FLOAT8]
    wanted = (torch.float32, torch.float16, torch.float64, torch.bool, *FLOAT8)
    return [*down, *((given, dtype) for given in everything for dtype in wanted)]


def test_every_number_as_eager_converts_it() -> None:
    jobs = []
    for given, wanted in casts():
        text = CAST.format(n=len(given), given=NAMES[given.dtype], wanted=NAMES[wanted])
        out, source = torch.zeros(len(given), dtype=wanted), to_triton(parse(text))
        grid = int(source.kernels[0].launch["grid"])
        jobs.append(Job(source, "cast_0", {"x": given, "out": out}, {}, grid))
    for (given, wanted), found in zip(casts(), interpret(jobs), strict=True):
        got, eager = found["out"].float(), given.to(wanted).float()
        different = ~((got == eager) & (got.signbit() == eager.signbit()) | got.isnan() & eager.isnan())
        assert not different.any(), (
            given.dtype,
            wanted,
            given[different][:4],
            found["out"][different][:4],
            eager[different][:4],
        )


@pytest.mark.parametrize("dtype", FLOAT8)
def test_conversions_and_copies_fuse(dtype: torch.dtype) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        scaled = (x.float() * 2 + y).to(dtype)
        return scaled, torch.cat([x, scaled]), scaled.half() + 1, x.t().contiguous()

    x, y = torch.randn(4, 4).to(dtype), torch.randn(4, 4)
    report = fuselens.explain(f, target="cuda:sm_90", assembly=("ptx",))(x, y)
    assert not report.diagnostics
    (graph,) = report.graphs
    kernels = [k for k in graph.kernels if k.backend == "triton"]
    assert kernels and ".target sm_90" in graph.stage("ptx").text
    assert f"f32_to_{NAMES[dtype]}" in graph.stage("triton").text
    eager = f(x, y)
    for got, wanted in zip(fuselens.compile(f)(x, y), eager, strict=True):  # by ATen between loops
        assert got.dtype is wanted.dtype and torch.equal(got.float(), wanted.float())
