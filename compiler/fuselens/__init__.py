"""Fuselens: a PyTorch compiler that you can see at work.

Importing this package imports nothing else; torch is imported when something is compiled.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

_OLDEST, _NEWEST = (3, 11), (3, 14)
_FLAGS = getattr(sys, "abiflags", "")  # "t": free-threaded
if sys.implementation.name != "cpython" or not _OLDEST <= sys.version_info[:2] <= _NEWEST or "t" in _FLAGS:
    raise ImportError(
        f"Fuselens runs on CPython {'.'.join(map(str, _OLDEST))} to {'.'.join(map(str, _NEWEST))} with the global interpreter lock; "
        f"{sys.executable} is {sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}{_FLAGS}"
    )

if TYPE_CHECKING:
    from . import config
    from .aot.container import ArtifactError
    from .aot.for_triton import TritonKernel
    from .aot.loading import Artifact
    from .api import (
        BackendError,
        CodedError,
        CompiledModule,
        ConstraintError,
        GraphBreakError,
        RanksError,
        RecompileError,
        UsageError,
        allow_in_graph,
        aot_compile,
        assume_constant_result,
        compile,  # noqa: A004 - torch's own name for it
        cudagraph_mark_step_begin,
        disable,
        error_on_graph_break,
        example,
        explain,
        graph_break,
        is_compiling,
        list_backends,
        load,
        load_cache_artifacts,
        mark_dynamic,
        mark_static,
        mark_static_address,
        mark_unbacked,
        maybe_mark_dynamic,
        register_backend,
        reset,
        save_cache_artifacts,
        set_stance,
        substitute_in_graph,
        triton_function,
        triton_kernel,
    )
    from .record.logs import set_logs
    from .record.notices import FuselensWarning

__version__ = "0.1.0"
__all__ = [
    "Artifact", "ArtifactError", "BackendError", "CodedError", "CompiledModule", "ConstraintError", "FuselensWarning", "GraphBreakError",
    "RanksError", "RecompileError", "TritonKernel", "UsageError", "allow_in_graph", "aot_compile", "assume_constant_result", "compile",
    "config", "cudagraph_mark_step_begin", "disable", "error_on_graph_break", "example", "explain", "graph_break", "is_compiling",
    "list_backends", "load", "load_cache_artifacts", "mark_dynamic", "mark_static", "mark_static_address", "mark_unbacked",
    "maybe_mark_dynamic", "register_backend", "reset", "save_cache_artifacts", "set_logs", "set_stance",
    "substitute_in_graph", "triton_function", "triton_kernel",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "config":
        import fuselens.config as module

        return module
    if name == "FuselensWarning":
        from .record import notices  # a filter of warnings needs no torch

        return notices.FuselensWarning
    if name in ("Artifact", "ArtifactError"):
        from .aot import container, loading

        return loading.Artifact if name == "Artifact" else container.ArtifactError
    if name == "TritonKernel":
        from .aot import for_triton

        return for_triton.TritonKernel
    if name == "set_logs":
        from .record import logs

        return logs.set_logs
    if name in __all__:
        if f"{__name__}.api" not in sys.modules:
            _import_api()
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _tell_libraries() -> None:
    from .system import other_libraries

    other_libraries.prepare()


_tell_libraries()


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext fuselens`` in a notebook: the cell magic ``%%fuselens``."""
    from . import notebooks

    notebooks.load(shell)


def _import_api() -> None:
    from .system.collector import importing

    with importing():  # otherwise half the time is the collector's
        from . import api as api


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
