"""Triton kernels of a CUDA graph as callables, from binaries that another process compiles: Triton is not imported here.

Triton's own launcher binds arguments in Python, for 20 to 60 µs a launch. Here a kernel is compiled for what is known of
its arguments (see ``_launch.pyi``) and launched by one C call. The variants that a graph will need first are compiled in
parallel by ``triton_worker`` while the rest of a program is lowered.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...ir.card import STATIC_SHARED_BYTES
from ...ir.contracts.native import address
from .. import _launch
from ..build import BuildFailed
from ..cache.store import Cache
from . import triton_worker
from .triton_jobs import Binary, Job, Module

if TYPE_CHECKING:
    from ...config import Config
    from ...ir.contracts.source import KernelInfo, Source

_USUAL = 1 | 2  # aligned addresses, sizes below 2**31
_MAX_DYNAMIC_SHARED = 8  # an attribute of functions


def compile_ahead(
    sources: Sequence[Source], config: Config, hints: Sequence[Mapping[str, int]] | None = None
) -> list[Job]:
    """Has the variants compiled in the background that :func:`load_triton` will ask for, and those for sizes as in
    ``hints``. Returns those that the cache lacks."""
    cache, jobs = Cache(config.cache_dir), []
    for source, known in zip(sources, hints or [{}] * len(sources), strict=True):
        kernels = [k for k in source.kernels if k.same_as is None and known.keys() >= set(k.sizes)]
        if kernels:
            architecture = _architecture(device_of(kernels[0]))
            module = Module(source, config.triton_variables, config.build_limit)
            wanted = [module.job(k, _kind([known[s] for s in k.sizes]), architecture) for k in kernels]
            jobs += _submit(wanted, cache)
    return jobs


def wait_for(jobs: Sequence[Job], config: Config) -> None:
    """Returns when the background has done with these."""
    triton_worker.wait(jobs, Cache(config.cache_dir))


def compiled(source: Source, config: Config, *, texts: bool) -> dict[str, tuple[Mapping[str, Any], int]]:
    """The functions of ``source`` by name, for the usual arguments: what Triton made of them (all of its texts only if asked
    for: it compiles again for that), and bytes of shared memory."""
    cache = Cache(config.cache_dir)
    module = Module(source, config.triton_variables, config.build_limit)
    found: dict[str, tuple[Mapping[str, Any], int]] = {}
    for info in source.kernels:
        if info.same_as is None and (texts or not info.sizes):
            variants = _Variants(module, info, device_of(info), cache)
            variants.of(_USUAL)
            job = variants.job(_USUAL)
            if texts:
                made = job.compiled()
                found[info.name] = made.asm, made.metadata.shared
            elif binary := job.binary(cache):
                found[info.name] = {"cubin": binary.image}, binary.shared
    return found


def _kind(sizes: Sequence[int]) -> int:
    """The variant that a call with aligned addresses and these sizes takes."""
    narrow = all(n < 1 << 31 for n in sizes)
    return 1 | narrow << 1 | sum((n % 16 == 0) << (2 + k) for k, n in enumerate(sizes))


def load_triton(source: Source, config: Config, cache: Cache) -> dict[str, Any]:
    """The functions of ``source`` by name: ``function(stream, programs, *addresses, *sizes)``. Raises
    :class:`..build.BuildFailed`."""
    _driver()
    kernels = [k for k in source.kernels if k.same_as is None]
    if not kernels:
        return {}
    device = device_of(kernels[0])
    module = Module(source, config.triton_variables, config.build_limit)
    made = {k.name: _Variants(module, k, device, cache) for k in kernels}
    usual = [made[k.name] for k in kernels if not k.sizes]
    _submit([variants.job(_USUAL) for variants in usual], cache)
    for variants in usual:
        variants.of(_USUAL)  # a kernel that cannot be compiled is found now, not when it is launched
    return {
        k.name: _launch.Kernel(made[k.name].of, len(k.arguments), len(k.sizes), len(k.arguments) > k.pointers)
        for k in kernels
    }


def _submit(jobs: list[Job], cache: Cache) -> list[Job]:
    """Has those of ``jobs`` compiled that the cache lacks."""
    missing = [job for job in jobs if not job.is_made(cache)]
    if missing:
        triton_worker.submit(missing, cache)
    return missing


class _Variants:
    """The compiled variants of one kernel on one device."""

    def __init__(self, module: Module, info: KernelInfo, device: torch.device, cache: Cache) -> None:
        self.module, self.info, self.device, self.cache = module, info, device, cache
        self.made: dict[int, tuple[int, int, int, int]] = {}

    def job(self, variant: int) -> Job:
        return self.module.job(self.info, variant, _architecture(self.device))

    def of(self, variant: int) -> tuple[int, int, int, int]:
        """The variant's function, threads, shared memory and programs of a cluster. This thread can launch it afterwards."""
        if variant not in self.made:
            job = self.job(variant)
            try:
                binary = job.binary(self.cache)
                if binary is None:
                    binary = triton_worker.binary(job, self.cache)
                function = _loaded(job.key, self.device.index, binary)
            except Exception as error:
                why, span = f"error: {type(error).__name__}: {error}", next(iter(self.info.spans), None)
                raise BuildFailed(("triton", self.info.name), why, span) from error
            self.made[variant] = function, binary.threads, binary.shared, self.info.launch.get("cluster", 1)
        _enter_context(_driver(), self.device.index)
        return self.made[variant]


_functions: dict[tuple[str, int], int] = {}


def _loaded(key: str, device: int, binary: Binary) -> int:
    """The CUfunction of a binary on a device. It stays loaded."""
    if (key, device) not in _functions:
        driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            _enter_context(driver, device)
            _check(driver.cuModuleLoadData(ctypes.byref(module), binary.image))
            _check(driver.cuModuleGetFunction(ctypes.byref(function), module, binary.name.encode()))
            if binary.shared > STATIC_SHARED_BYTES:
                _check(driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, binary.shared))
        _functions[key, device] = function.value or 0
    return _functions[key, device]


def _enter_context(driver: ctypes.CDLL, device: int) -> None:
    """Makes the device's context this thread's, which has none before torch launches something."""
    context, handle = ctypes.c_void_p(), ctypes.c_int()
    _check(driver.cuCtxGetCurrent(ctypes.byref(context)))
    if not context.value:
        _check(driver.cuDeviceGet(ctypes.byref(handle), device))
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
        _check(driver.cuCtxSetCurrent(context))


def _check(error: int) -> None:
    if error:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(error, ctypes.byref(text))
        why = (text.value or b"unknown").decode()
        raise RuntimeError(f"CUDA error {error} when a compiled kernel was loaded: {why}")


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
def _driver() -> ctypes.CDLL:
    """The driver's functions; tells the launcher of those it calls, once."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        clusters = address(library, "cuLaunchKernelEx") if hasattr(library, "cuLaunchKernelEx") else 0
        _launch.init(address(library, "cuLaunchKernel"), address(library, "cuGetErrorString"), clusters)
    except (OSError, AttributeError) as error:
        raise BuildFailed(("libcuda",), f"error: {error}") from error
    return library
