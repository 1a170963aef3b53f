"""Compiles generated Triton for a GPU architecture without a GPU, a driver or the CUDA toolkit.

Triton bundles ptxas; its compiler only needs to be told the target. Launching needs a device, compiling does not.
"""

from __future__ import annotations

import hashlib
from types import ModuleType
from typing import Any

from ....ir.contracts.source import KernelInfo, Source
from ....system.generated_modules import module_of
from .assembly import resource_usage


def load_module(source: Source) -> ModuleType:
    """The module of a text."""
    return module_of(f"fuselens_kernels_{hashlib.sha256(source.text.encode()).hexdigest()[:16]}", source.text)


def compile_offline(source: Source, kernel: str, arch: int = 90) -> dict[str, Any]:
    """``kernel`` of ``source`` compiled for ``sm_<arch>``.

    Returns ``ptx`` and the other texts (``ttir``, ``ttgir``, ``llir``), ``cubin``, and the numbers ``registers``,
    ``spills`` (bytes of local memory) and ``shared`` (bytes). Raises KeyError for an unknown kernel.
    """
    info = source.kernel(kernel)
    if info is None:
        raise KeyError(kernel)
    return compile_kernel(load_module(source), info, arch)


def compile_kernel(module: ModuleType, info: KernelInfo, arch: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**info.launch["signature"], **dict.fromkeys(info.launch["blocks"], "constexpr")}
    # tensors from torch's allocator are aligned, so pointers are assumed to be multiples of 16 bytes
    attributes = {(k,): [["tt.divisibility", 16]] for k in range(info.pointers)}
    unit = ASTSource(
        fn=getattr(module, info.function), signature=signature, constexprs=dict(info.launch["blocks"]), attrs=attributes
    )
    compiled = triton.compile(unit, target=GPUTarget("cuda", arch, 32), options=info.launch["options"])
    out: dict[str, Any] = {k: v for k, v in compiled.asm.items() if k in ("ptx", "cubin", "ttir", "ttgir", "llir")}
    out["shared"] = compiled.metadata.shared
    return out | resource_usage(out["cubin"])
