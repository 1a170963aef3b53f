"""What compiled code and torch's own agree on: where torch's functions are, and how its C shim numbers things.

Nothing here imports torch before it is called.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

SCALAR_TYPES: dict[str, int] = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "complex64": 9,
    "complex128": 10, "bool": 11, "bfloat16": 15, "uint16": 27, "uint32": 28, "uint64": 29,
}  # fmt: skip
"""torch's ``ScalarType``, by its dtypes' names. The runtime compares them with the shim's before it runs any host program."""

NO_MEMORY, OPERATOR_FAILED, RESULT_DIFFERS, CHECK_FAILED, WROTE, OPERATOR_SHIFT = 1, 2, 4, 1 << 8, 1 << 17, 18
"""What a host function returns: 0, a code, or ``CHECK_FAILED`` plus the kernels' error flags; ``WROTE`` is added where it
has written to an input, and from bit ``OPERATOR_SHIFT`` on 1 + the number of the operator that it is about."""

IDLE_BYTES = 1 << 30
"""Freed memory that a process keeps for its next tensors."""


def torch_library(stem: str) -> ctypes.CDLL:
    """``torch_cpu`` or another library of the torch that is installed. Raises OSError where it has none such."""
    import torch

    name = {"win32": f"{stem}.dll", "darwin": f"lib{stem}.dylib"}.get(sys.platform, f"lib{stem}.so")
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def address(library: ctypes.CDLL, name: str) -> int:
    """Of a function. Raises AttributeError where the library has none of that name."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def words(start: int, n: int) -> list[int]:
    """The ``n`` 8-byte words at an address."""
    return list((ctypes.c_uint64 * n).from_address(start))
