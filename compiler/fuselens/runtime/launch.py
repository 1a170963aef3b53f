"""Triton kernels of a CUDA graph as callables. Triton is imported here, when kernels are built, and nowhere else.

Triton's own launcher binds arguments in Python, for 20 to 60 µs a launch. Here a kernel is compiled for what is known of
its arguments (see ``_launch.pyi``) and launched by one C call. The variants that a graph will need first are compiled in
parallel by ``triton_worker``, into Triton's cache on disk.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from . import _launch, triton_worker
from .build import BuildFailed
from .cache import Cache, key_of

if TYPE_CHECKING:
    from ..codegen.source import KernelInfo, Source

_USUAL = 1 | 2  # aligned addresses, sizes below 2**31


def load_triton(source: Source, cache: Cache) -> dict[str, Any]:
    """The functions of ``source`` by name: ``function(stream, programs, *addresses, *sizes)``. Raises
    :class:`.build.BuildFailed`."""
    _driver()
    kernels = [k for k in source.kernels if k.same_as is None]
    if not kernels:
        return {}
    name, path = _kept(source, cache)
    device = device_of(kernels[0])
    architecture = _architecture(device)
    usual = [triton_worker.Job.of(str(path), name, k, _USUAL, architecture) for k in kernels if not k.sizes]
    if len(usual) > 1:
        triton_worker.compile_all(usual, cache)
    module = _import(name, path)
    functions = {}
    for info in kernels:
        variants = _Variants(module, info, path, device, architecture)
        if not info.sizes:
            variants.of(_USUAL)  # a kernel that cannot be compiled is found now, not when it is launched
        functions[info.name] = _launch.Kernel(variants.of, len(info.arguments), len(info.sizes))
    return functions


def compile_ahead(sources: Sequence[Source], cache: Cache, hints: Sequence[Mapping[str, int]]) -> None:
    """Compiles the kernels of all ``sources`` in parallel, for sizes as in ``hints``: :func:`load_triton` then finds them."""
    jobs = []
    for source, sizes in zip(sources, hints, strict=True):
        kernels = [k for k in source.kernels if k.same_as is None]
        if kernels:
            name, path = _kept(source, cache)
            architecture = _architecture(device_of(kernels[0]))
            jobs += [
                triton_worker.Job.of(str(path), name, k, _kind([sizes[s] for s in k.sizes]), architecture)
                for k in kernels
            ]
    if jobs:
        triton_worker.compile_all(jobs, cache)


def compiled(source: Source, cache: Cache, *, sized: bool) -> dict[str, Any]:
    """What Triton makes of the functions of ``source``, by name: for the usual arguments, of those that take sizes only if
    ``sized``. It is in Triton's cache if the function was loaded."""
    name, path = _kept(source, cache)
    module = _import(name, path)
    made = {}
    for info in source.kernels:
        if info.same_as is None and (sized or not info.sizes):
            device = device_of(info)
            variants = _Variants(module, info, path, device, _architecture(device))
            variants.of(_USUAL)
            made[info.name] = variants.made[_USUAL][0]
    return made


def _kind(sizes: Sequence[int]) -> int:
    """The variant that a call with aligned addresses and these sizes takes."""
    narrow = all(n < 1 << 31 for n in sizes)
    return 1 | narrow << 1 | sum((n % 16 == 0) << (2 + k) for k, n in enumerate(sizes))


def _kept(source: Source, cache: Cache) -> tuple[str, Path]:
    """The module of ``source``: its name, and its file. Triton reads a kernel's text from there, so it is kept in the
    cache under its content's key."""
    key = key_of({"triton": source.text})
    path = cache.path("triton", key, ".py")
    if _read(path) != source.text:  # no checksum at its end: it must stay Python
        with cache.scratch() as directory:
            made = directory / "kernels.py"
            made.write_text(source.text)
            path.parent.mkdir(parents=True, exist_ok=True)
            made.replace(path)
    return f"fuselens_kernels_{key}", path


class _Variants:
    """The compiled variants of one kernel on one device."""

    def __init__(
        self, module: ModuleType, info: KernelInfo, path: Path, device: torch.device, architecture: int
    ) -> None:
        self.module, self.info, self.path = module, info, path
        self.device, self.architecture = device, architecture
        self.made: dict[int, tuple[Any, tuple[int, int, int]]] = {}

    def of(self, key: int) -> tuple[int, int, int]:
        if key not in self.made:
            job = triton_worker.Job.of(str(self.path), self.module.__name__, self.info, key, self.architecture)
            with torch.cuda.device(self.device):
                try:
                    compiled = job.compiled(getattr(self.module, self.info.name))
                    compiled._init_handles()
                except Exception as error:
                    raise BuildFailed(("triton", self.info.name), f"error: {type(error).__name__}: {error}") from error
            shared = compiled.metadata.shared
            self.made[key] = compiled, (compiled.function, 32 * compiled.metadata.num_warps, shared)
        return self.made[key][1]


def device_of(info: KernelInfo) -> torch.device:
    """Where a kernel runs."""
    device = torch.device(info.launch["device"])
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def on_device(call: Callable[[Any], Any], source: Source) -> Callable[[Any], Any]:
    """``call`` with the device of its kernels as the current one."""
    if not source.kernels:
        return call
    index = device_of(source.kernels[0]).index

    def run(inputs: Any) -> Any:
        if torch.cuda.current_device() == index:
            return call(inputs)
        with torch.cuda.device(index):
            return call(inputs)

    return run


def _architecture(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@functools.cache
def _driver() -> None:
    """Finds cuLaunchKernel, once."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        _launch.init(ctypes.cast(library.cuLaunchKernel, ctypes.c_void_p).value or 0)
    except (OSError, AttributeError) as error:
        raise BuildFailed(("libcuda",), f"error: {error}") from error


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
    except ImportError as error:
        del sys.modules[name]
        raise BuildFailed(("triton",), f"error: {error}") from error
    except BaseException:
        del sys.modules[name]
        raise
    return module
