"""Triton kernels of a CUDA graph as callables. Triton is imported here, when kernels are built, and nowhere else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .build import BuildFailed
from .cache import Cache, key_of

if TYPE_CHECKING:
    from ..codegen.source import Source


def load_triton(source: Source, cache: Cache) -> dict[str, Any]:
    """The kernels of ``source`` by name, ready for ``kernel[grid](…)``.

    Triton reads a kernel's text from its file, so the module is kept in the cache under its content's key; Triton's
    own cache of compiled kernels then hits across processes. Raises :class:`.build.BuildFailed`.
    """
    key = key_of({"triton": source.text})
    path = cache.path("triton", key, ".py")
    if _read(path) != source.text:  # no checksum at its end: it must stay Python
        with cache.scratch() as directory:
            made = directory / "kernels.py"
            made.write_text(source.text)
            path.parent.mkdir(parents=True, exist_ok=True)
            made.replace(path)
    try:
        module = _import(f"fuselens_kernels_{key}", path)
    except ImportError as error:
        raise BuildFailed(("triton",), f"error: {error}") from error
    return {k.function: getattr(module, k.function) for k in source.kernels}


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _import(name: str, path: Path) -> ModuleType:
    found = sys.modules.get(name)
    if found is not None:
        return found
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
