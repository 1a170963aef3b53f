"""Small loop IR graphs for the tests of this directory, and the check that compares generated code with the oracle."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuselens.capture.hook import tensor_layout
from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.codegen.generate import generate
from fuselens.config import Config
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.runtime import program
from fuselens.runtime.build import host_isa
from fuselens.runtime.compile_graph import Built, build
from tests.support.tensors import assert_same

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "u16": torch.uint16,
    "u32": torch.uint32, "u64": torch.uint64, "bool": torch.bool,
}  # fmt: skip
ISA = host_isa(Config())
if ISA in ("avx2", "avx512"):  # vectors of 16 lanes everywhere, in pairs of registers
    ISAS["pairs"] = replace(ISAS["avx2"], name="pairs", register=64)
SIXTEEN = "pairs" if "pairs" in ISAS else ISA


@functools.cache
def config() -> Config:
    """A cache of this test run's own, so that every kernel really is built."""
    return Config(cache_dir=Path(tempfile.mkdtemp(prefix="fuselens-test-")))


def compiled(graph: Graph, isa: str = "") -> Built:
    """``graph`` built for the CPU."""
    cpp_host = program.available(tensor_layout.tensor_offset())
    return build(graph, generate(graph, "cpu", isa or ISA, cpp_host=cpp_host), config())


def agrees_with_evaluator(
    text: str | Graph, inputs: Sequence[Any], isa: str = "", rtol: float | None = None, atol: float | None = None
) -> tuple[Any, ...]:
    """Compiles the graph, runs it, and compares each output with the evaluator's. Returns the outputs."""
    graph = parse(text) if isinstance(text, str) else text
    verify(graph)
    expected = evaluate(graph, [clone(i) for i in inputs])
    found = compiled(graph, isa).call(tuple(clone(i) for i in inputs))
    assert_same(found, expected, rtol=rtol, atol=atol)
    return found


def clone(value: Any) -> Any:
    """A copy with the same strides (not only for dense tensors)."""
    if not isinstance(value, Tensor):
        return value
    size = value.untyped_storage().nbytes() // value.element_size()
    flat = value.as_strided((size,), (1,), 0).clone()
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def pointwise(op: str, operand: str, result: str, arity: int, n: int = 1) -> str:
    """``out[i] = op(in0[i], …)`` over vectors."""
    names = [f"arg{k}" for k in range(arity)]
    lines = ["graph ops symbols [s0 = arg0.0 hint 64]"]
    lines += [f"  input {a}: {operand}[s0] strides [1]" for a in names]
    lines += [f"  buffer buf0: {result}[s0] strides [1]", "  kernel kernel0 [i0 < s0]", "    phase []"]
    lines += [f"      x{k} = load {a}[i0] : {operand}" for k, a in enumerate(names)]
    lines += [f"      y = {op} {', '.join(f'x{k}' for k in range(arity))} : {result}", "      store buf0[i0] = y"]
    return "\n".join([*lines, "  return buf0"])
