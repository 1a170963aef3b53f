"""The option ``fast_math``: how far off its functions are, what its code looks like, and that it is off by default."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest
import torch
from torch import Tensor

import fuselens
from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.cpu.vectors.fast_maths import OWN
from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.config import Config, cache_key
from fuselens.ir.text import parse
from fuselens.runtime.build import build
from fuselens.runtime.cache.store import Cache

from . import accuracy
from .graphs import ISA, config, pointwise

BOUND = 4  # places
NAMES = (*OWN, "rsqrt")
RANGES = {"exp": (-86.6, 88.7), "sigmoid": (-86.6, 88.7), "log": (1.2e-38, 3e38), "rsqrt": (1.2e-38, 3e38)}
REDUCTION = """
graph sums
  input x: f32[64, 5000] strides [5000, 1]
  buffer total: f32[64] strides [1]
  kernel kernel0 [i0 < 64]
    phase [r0 < 5000]
      a = load x[5000*i0 + r0] : f32
      b = mul a, a : f32
      s = reduce sum b : f32
    phase []
      store total[i0] = s
  return total
"""


def _pattern(x: float) -> int:
    return struct.unpack("I", struct.pack("f", x))[0]


@pytest.mark.parametrize("isa", list(dict.fromkeys((ISA, "sse2", "scalar"))))
@pytest.mark.parametrize("name", NAMES)
def test_functions_are_within_the_bound(name: str, isa: str) -> None:
    loaded = accuracy.library(NAMES, isa=isa, fast=True)
    low, high = RANGES.get(name, (-3e38, 3e38))
    for first, end in ((max(low, 1.2e-38), high), (-1.2e-38, low)):
        if (first > 0) == (end > 0):
            found = accuracy.every(loaded, name, 6007, _pattern(first), _pattern(end))
            assert found.worst <= BOUND, f"{name}: {found}"


@pytest.mark.parametrize("isa", sorted(ISAS))
def test_it_is_off_by_default_and_says_that_it_is_on(isa: str) -> None:
    graph = parse(REDUCTION)
    plain, fast = to_cpp(graph, isa, host=False).text, to_cpp(graph, isa, host=False, fast_math=True).text
    assert plain == to_cpp(graph, isa, host=False, fast_math=Config().fast_math).text
    assert "add_carry" in plain and "fast_math" not in plain
    assert "add_carry" not in fast and "_tile" not in fast and "fast_math" in fast


def test_it_is_part_of_cache_keys() -> None:
    assert cache_key(Config()) != cache_key(Config(fast_math=True))


@pytest.mark.parametrize("op", ["exp", "log", "tanh", "sigmoid", "erf", "rsqrt", "max"])
@pytest.mark.parametrize("isa", sorted(ISAS))
def test_every_instruction_set_has_the_functions(op: str, isa: str) -> None:
    graph = parse(pointwise(op, "f32", "f32", 2 if op == "max" else 1))
    text = to_cpp(graph, isa, host=False, fast_math=True).text
    if isa in (ISA, "sse2", "scalar"):
        build(text, ISAS[isa].flags, config(), Cache(config().cache_dir))


def _model(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    y = torch.nn.functional.gelu(x / 3.0) + torch.sigmoid(x) * torch.tanh(w)
    return torch.softmax(y, -1), torch.rsqrt(y.square().mean(-1) + 1e-5), y.amax(-1), (y.abs() + 1).log().sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_stay_near_eager(dynamic: bool) -> None:
    compiled = fuselens.compile(_model, dynamic=dynamic, options={"fast_math": True})
    for shape in ((7, 1000), (33, 129)):
        x, w = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(compiled(x, w), _model(x, w), rtol=3e-6, atol=3e-6)


def test_gradients_stay_near_eager() -> None:
    compiled = fuselens.compile(_model, options={"fast_math": True})
    x, w = torch.randn(9, 400, requires_grad=True), torch.randn(9, 400)
    found, expected = (
        torch.autograd.grad(torch.stack([o.sum() for o in f(x, w)]).sum(), x)[0] for f in (compiled, _model)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_its_code_is_kept_apart() -> None:
    x = torch.randn(1000)

    def f(x: Tensor) -> Tensor:
        return torch.exp(x) / 3.0

    exact, fast = (fuselens.compile(f, options=o) for o in ({}, {"fast_math": True}))
    assert torch.allclose(exact(x), fast(x))
    assert not torch.equal(exact(x), fast(x))


def test_instruction_sets_differ_in_nothing_else() -> None:
    for isa in ISAS.values():
        assert not isa.fast and dataclasses.replace(isa, fast=True).flags == isa.flags
