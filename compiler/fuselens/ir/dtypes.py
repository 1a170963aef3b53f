"""torch's dtypes by the names that the loop IR, graph texts and reports use."""

from __future__ import annotations

import torch

NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
    torch.complex64: "c64", torch.complex128: "c128", torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64",
    torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2", torch.complex32: "c32",
}  # fmt: skip
DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in NAMES.items()}


def short_name(dtype: torch.dtype) -> str:
    """``f32`` for ``torch.float32``; torch's own name for a dtype that the IR does not know."""
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))
