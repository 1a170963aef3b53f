"""Dtypes: torch's objects and the IR's names, the type arithmetic runs in, and torch's promotion of mixed operands."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from fuselens.ir.dtypes import DTYPES
from fuselens.ir.dtypes import NAMES as NAMES  # the rules' own word for it
from fuselens.ir.loops import ITEMSIZE, Buffer
from fuselens.ir.loops import PARTS as PARTS

FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
HALVES = frozenset({"f16", "bf16"})
INTEGERS = frozenset({"i64", "i32", "i16", "i8", "u8"})
WIDE_UNSIGNED = frozenset({"u16", "u32", "u64"})  # few operators exist for them
REALS = FLOATS | INTEGERS | WIDE_UNSIGNED | {"bool"}
FLOAT8 = frozenset({"f8e4m3", "f8e5m2"})  # loops on a GPU convert and copy them; ATen does the rest
LOOP_DTYPES = REALS | PARTS.keys() | FLOAT8  # what loops load and store


def compute_dtype(dtype: str) -> str:
    """The type arithmetic runs in: half precision computes in f32."""
    return "f32" if dtype in HALVES else dtype


def identity(kind: str, dtype: str) -> Any:
    """What folding by ``kind`` begins with, and what an update by it leaves as it is."""
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    low = kind == "max"
    if dtype in FLOATS:
        return -math.inf if low else math.inf
    if dtype in ("bool", "u8"):
        return 0 if low else 255 if dtype == "u8" else 1
    bits = 8 * ITEMSIZE[dtype] - 1
    return -(2**bits) if low else 2**bits - 1


def _category(dtype: str) -> int:
    return 3 if dtype.startswith("c") else 2 if dtype in FLOATS else 1 if dtype in INTEGERS | WIDE_UNSIGNED else 0


def _join(a: str, b: str) -> str:
    if a == b:
        return a
    return NAMES[torch.promote_types(DTYPES[a], DTYPES[b])]


def _number_dtype(value: Any) -> str:
    kinds = {bool: "bool", int: "i64", complex: "c64"}
    return kinds.get(type(value), "i64" if isinstance(value, int) else "f32")


def promote(operands: Iterable[Any]) -> str:
    """``torch.result_type`` of buffers and Python numbers: tensors with dimensions outrank zero-dimensional ones,
    which outrank numbers, unless the lower rank has the higher category (float over integer over bool)."""
    ranked: dict[int, str] = {}
    for operand in operands:
        if isinstance(operand, Buffer):
            rank, dtype = (0 if operand.sizes else 1), operand.dtype
        else:
            rank, dtype = 2, _number_dtype(operand)
        ranked[rank] = _join(ranked[rank], dtype) if rank in ranked else dtype
    out = ""
    for rank in sorted(ranked):
        candidate = ranked[rank]
        if not out or _category(candidate) > _category(out):
            out = "c128" if candidate == "c64" and out == "f64" else candidate
    return out
