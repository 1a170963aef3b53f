"""Accuracy of our own vector functions, in places from the exact result rounded to their type (``make sweep``: all floats)."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from torch import Tensor

from fuselens.codegen.cpu.vectors.parts import LIBM

from . import accuracy
from .accuracy import OWN, UNARY
from .graphs import DTYPES, ISA, compiled
from .test_scalar_ops import all_ops_graph

BINARY = "pow", "atan2", "hypot"
OWN_F64 = "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "pow"
FURTHER = {"expm1": 1}  # floats whose result is two places off: 0.38905919
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, -7.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40,
           1e30, -1e30, 5e-324, 1 - 2**-24, 1 + 2**-23, 88.7, -103.9, 709.7, -745.1, 1e300]  # fmt: skip


def points(dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Random bit patterns, and ordinary numbers of several magnitudes; each a whole number of vectors."""
    generator = torch.Generator().manual_seed(seed)
    bits, limit = (torch.int32, 2**31) if dtype == torch.float32 else (torch.int64, 2**63 - 1)
    patterns = torch.randint(-limit, limit, (1 << 15,), generator=generator).to(bits).view(dtype)
    spread = [torch.randn(1 << 15, generator=generator, dtype=torch.float64) * scale for scale in (0.3, 2, 30, 300)]
    return [patterns, *(s.to(dtype) for s in spread)]


def describe(name: str, found: accuracy.Accuracy, dtype: torch.dtype) -> str:
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    at = [(torch.tensor(b) if bits == torch.int64 else torch.tensor(b).to(bits)).view(dtype).item()
          for b in (found.at, found.other)]  # fmt: skip
    return f"{name}: {found} at {at}"


@pytest.mark.parametrize("isa", [ISA, "scalar"])
@pytest.mark.parametrize("name", [*UNARY, *OWN])
def test_every_float_is_within_one_place(name: str, isa: str) -> None:
    loaded = accuracy.library((*UNARY, *OWN, *BINARY), "f32", isa)
    step = 6007 if isa == ISA else 60_013
    for first, end, part in (
        (0, 1 << 32, step),
        (0x3F000000, 0x41000000, step // 64),
        (0xBF000000, 0xC1000000, step // 64),
    ):
        found = accuracy.every(loaded, name, part, first, end)
        assert found.worst <= 1 and not found.specials, describe(name, found, torch.float32)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [*UNARY, *OWN])
def test_all_floats_are_within_one_place(name: str) -> None:
    found = accuracy.every(accuracy.library((*UNARY, *OWN, *BINARY)), name)
    assert not found.specials, describe(name, found, torch.float32)
    assert found.over <= FURTHER.get(name, 0) and found.worst <= 2, describe(name, found, torch.float32)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_floats_are_within_one_place(name: str) -> None:
    loaded = accuracy.library((*UNARY, *OWN, *BINARY))
    for x, y in itertools.product(points(torch.float32, 1), points(torch.float32, 2)):
        found = accuracy.at(loaded, name, x, y)
        assert found.worst <= 1 and not found.specials, describe(name, found, torch.float32)


@pytest.mark.parametrize("name", OWN_F64)
def test_doubles_are_within_two_places(name: str) -> None:
    loaded = accuracy.library(OWN_F64, "f64")
    first = points(torch.float64, 3)
    for x, y in (
        itertools.product(first, points(torch.float64, 4)) if LIBM.get(name) == 2 else zip(first, first, strict=True)
    ):
        found = accuracy.at(loaded, name, x, y)
        assert found.worst <= 2 and not found.specials, describe(name, found, torch.float64)


@pytest.mark.parametrize(
    ("kind", "name"), [*(("f32", n) for n in (*UNARY, *OWN, *BINARY)), *(("f64", n) for n in OWN_F64)]
)
def test_special_values(kind: str, name: str) -> None:
    loaded = accuracy.library(OWN_F64 if kind == "f64" else (*UNARY, *OWN, *BINARY), kind)
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)), dtype=torch.float64).to(DTYPES[kind])
    x, y = (torch.cat([pairs[:, k], pairs[:15, k]]).contiguous() for k in range(2))
    found = accuracy.at(loaded, name, x, y)
    assert found.worst <= 2 and not found.specials, describe(name, found, DTYPES[kind])


@functools.cache
def results(isa: str) -> dict[str, Tensor]:
    names = [*UNARY, *OWN]
    graph, outputs = all_ops_graph("f32", names)
    built = compiled(graph, isa)
    spread = torch.arange(0, 0x7F800000, 99_733, dtype=torch.int32).view(torch.float32)
    x = torch.cat([spread, -spread, torch.linspace(-100, 100, 10_003), torch.linspace(-3, 3, 10_003)])
    return dict(zip(names, built.call((x, x, x))[: len(outputs)], strict=True))


@pytest.mark.parametrize("name", [*UNARY, *OWN])
def test_one_lane_gives_the_same_bits(name: str) -> None:
    a, b = results(ISA)[name], results("scalar")[name]
    assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
