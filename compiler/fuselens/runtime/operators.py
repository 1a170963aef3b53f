"""Operators of ours that have kernels written by hand: where torch finds them."""

from __future__ import annotations

from typing import Any

import torch

from ..ir import recurrent as _definition  # noqa: F401 - torch knows the operator from there


def _recurrent(*args: Any) -> Any:
    from .gpu.recurrent import run

    return run(*args)


_library = torch.library.Library("fuselens", "IMPL")
_library.impl("recurrent", _recurrent, "CUDA")
