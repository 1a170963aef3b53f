"""NEON code runs: cross-compiled for aarch64 and run by qemu, where both are installed."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor

from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.cpu.vectors.parts import C_TYPES
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import ITEMSIZE, Graph, symbol
from fuselens.ir.text import parse
from fuselens.runtime.build import BASE_FLAGS

from .accuracy import OWN, UNARY
from .graphs import DTYPES, ISA, clone, compiled
from .test_layouts import LAYER_NORM, TRANSPOSES, update_inputs, updates
from .test_reductions import reduction, sample
from .test_scalar_ops import all_ops_graph
from .test_scans import scan

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None, reason="needs a cross compiler and qemu"
)
NOT_OURS = "asinh", "acosh", "atanh", "erfc", "lgamma"  # libm's, or made of its functions

MOVE = """
extern "C" long read(int, void*, unsigned long) noexcept;
extern "C" long write(int, void*, unsigned long) noexcept;
static void move(long (*f)(int, void*, unsigned long) noexcept, int file, char* p, long n) {
  for (long k; n > 0 && (k = f(file, p, n)) > 0; p += k) n -= k;
}
"""


class Program:
    """A graph's kernels as a program for aarch64, for inputs of the shapes of ``inputs``."""

    def __init__(self, graph: Graph, inputs: Sequence[Tensor], folder: Path) -> None:
        source = to_cpp(graph, "neon", host=False)
        self.graph, self.file = graph, folder / "run"
        self.sizes: dict[str, int] = {name: inputs[k].shape[d] for name, (k, d) in graph.symbols.items()}
        memory: dict[str, int] = {}
        for name in graph.buffers:
            root = graph.root(name)
            memory[root] = max(memory.get(root, 64), self.bytes(name))
        lines = [source.text, MOVE]
        lines += [f"static char m_{n}[{size}] __attribute__((aligned(64)));" for n, size in memory.items()]
        lines.append("int main() {")
        lines += [f"  move(read, 0, m_{n}, {self.bytes(n)});" for n in graph.inputs]
        for info in source.kernels:
            passed = [f"({C_TYPES[graph.buffers[a].dtype]}*)m_{graph.root(a)}" for a in info.arguments]
            lines.append(f"  {info.name}({', '.join([*passed, *(str(self.sizes[s]) for s in info.sizes)])});")
        lines += [f"  move(write, 1, m_{graph.root(n)}, {self.bytes(n)});" for n in graph.outputs]
        lines.append("}")
        text = folder / "kernels.cpp"
        text.write_text("\n".join(lines))
        flags = [f for f in BASE_FLAGS if f not in ("-shared", "-nostdlib", "-fPIC")]
        command = [COMPILER, *flags, "-static", str(text), "-o", str(self.file), "-lgomp", "-lpthread", "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)

    def number(self, expression: Any) -> int:
        return int(sympy.sympify(expression).subs({symbol(n): size for n, size in self.sizes.items()}))

    def bytes(self, name: str) -> int:
        """What a buffer spans."""
        b = self.graph.buffers[name]
        sizes, strides = ([self.number(e) for e in es] for es in (b.sizes, b.strides))
        last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        return (self.number(b.offset) + last + 1) * ITEMSIZE[b.dtype] if all(sizes) else 0

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        given = b"".join(
            bytes(clone(x).as_strided((self.bytes(n) // x.element_size(),), (1,), 0).view(torch.uint8).numpy())
            for x, n in zip(inputs, self.graph.inputs, strict=True)
        )
        done = subprocess.run(
            [EMULATOR, str(self.file)], input=given, capture_output=True, check=True, timeout=300,
            env={"OMP_NUM_THREADS": "2"},
        )  # fmt: skip
        left, outputs = done.stdout, []
        for name in self.graph.outputs:
            b, size = self.graph.buffers[name], self.bytes(name)
            sizes, strides = ([self.number(e) for e in es] for es in (b.sizes, b.strides))
            flat = torch.frombuffer(bytearray(left[:size]), dtype=DTYPES[b.dtype])
            outputs.append(flat.as_strided(sizes, strides, self.number(b.offset)))
            left = left[size:]
        assert not left
        return outputs


def agrees_under_the_emulator(
    text: str, inputs: Sequence[Tensor], folder: Path, rtol: float | None = None, atol: float | None = None
) -> None:
    """Compares a graph's results under the emulator with the evaluator's."""
    graph = parse(text)
    expected = evaluate(graph, [clone(i) for i in inputs])
    for f, e in zip(Program(graph, inputs, folder)(inputs), expected, strict=True):
        torch.testing.assert_close(f, e, rtol=rtol, atol=atol, equal_nan=True)


SOFTMAX = """graph g symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 256]
  input arg0: f32[s0, s1] strides [s1, 1]
  buffer buf0: f32[s0, s1] strides [s1, 1]
  kernel kernel0 [i0 < s0]
    phase [i1 < s1]
      a = load arg0[s1*i0 + i1] : f32
      m = reduce max a : f32
    phase [i2 < s1]
      b = load arg0[s1*i0 + i2] : f32
      c = sub b, m : f32
      e = exp c : f32
      s = reduce sum e : f32
      store buf0[s1*i0 + i2] = e
    phase [i3 < s1]
      f = load buf0[s1*i0 + i3] : f32
      g = div f, s : f32
      store buf0[s1*i0 + i3] = g
  return buf0
"""


def test_functions_give_the_same_bits(tmp_path: Path) -> None:
    names = [n for n in (*UNARY, *OWN) if n not in NOT_OURS]
    graph, _ = all_ops_graph("f32", names)
    spread = torch.arange(0, 0x7F800000, 999_733, dtype=torch.int32).view(torch.float32)
    x = torch.cat([spread, -spread, torch.linspace(-100, 100, 1003), torch.linspace(-3, 3, 1003),
                   torch.tensor([math.inf, -math.inf, math.nan])])  # fmt: skip
    expected = compiled(graph, ISA).call((x, x, x))
    near = ~(x.abs() > 10_000)  # sines of far arguments are libm's
    for name, f, e in zip(names, Program(graph, (x, x, x), tmp_path)((x, x, x)), expected, strict=True):
        found, expect = (v[near] if name in ("sin", "cos", "tan") else v for v in (f, e))
        assert torch.equal(found.nan_to_num(7.0), expect.nan_to_num(7.0)), name


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_layer_norm(dtype: str, tmp_path: Path) -> None:
    x = torch.randn(5, 77).to(DTYPES[dtype])
    agrees_under_the_emulator(LAYER_NORM.format(d=dtype), [x, torch.randn(77)], tmp_path, 8e-3, 8e-3)


@pytest.mark.parametrize("shape", [(70, 203), (2, 70_000)])
def test_softmax(shape: tuple[int, int], tmp_path: Path) -> None:
    agrees_under_the_emulator(SOFTMAX, [torch.randn(shape) * 3], tmp_path, 2e-6, 1e-9)


@pytest.mark.parametrize(
    ("kind", "dtype", "layout"),
    [("sum", "f32", "rows"), ("max", "f32", "columns"), ("argmin", "f32", "rows"), ("argmax", "f64", "all"),
     ("prod", "i64", "columns"), ("min", "u8", "rows"), ("any", "bool", "rows"), ("sum", "f64", "all")],
)  # fmt: skip
def test_reductions(kind: str, dtype: str, layout: str, tmp_path: Path) -> None:
    agrees_under_the_emulator(reduction(kind, dtype, layout), [sample(dtype, (37, 101), kind)], tmp_path, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "u8"])
def test_transposes(dtype: str, tmp_path: Path) -> None:
    s0, s1, s2 = 2, 35, 131
    text = TRANSPOSES.format(d=dtype, f="f32" if dtype == "bf16" else dtype)
    x, y = ((torch.randn(s0, s1, s2) * 20).to(DTYPES[dtype]) for _ in "xy")
    x = x.mT.contiguous().mT.as_strided((s0, s1, s2), (s1 * s2, 1, s1))
    agrees_under_the_emulator(text, [x, y, torch.randn(s1)], tmp_path, 0, 0)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_scans(layout: str, tmp_path: Path) -> None:
    agrees_under_the_emulator(scan("sum", "f32", layout), [torch.randn(9, 101)], tmp_path, 2e-5, 2e-3)


def test_gathers_and_updates(tmp_path: Path) -> None:
    agrees_under_the_emulator(updates("f32", "sum", 7, 33), update_inputs(torch.float32, 7, 33, 12), tmp_path)
