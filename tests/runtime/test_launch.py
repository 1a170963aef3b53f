"""The C launcher, with a function in cuLaunchKernel's place that writes down what it is given."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from fuselens.runtime import _launch

SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)


class Driver:
    """What was launched, with the first ``count`` parameters."""

    def __init__(self, count: int) -> None:
        self.launches: list[Any] = []
        self.count, self.status = count, 0

        def launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
            values = [ctypes.cast(parameters[k], ctypes.POINTER(ctypes.c_uint64))[0] for k in range(self.count)]
            self.launches.append((function, (gx, gy, gz), (bx, by, bz), shared, stream, values))
            return self.status

        self.function = SIGNATURE(launch)
        _launch.init(ctypes.cast(self.function, ctypes.c_void_p).value or 0)


@pytest.fixture
def built() -> list[int]:
    return []


@pytest.fixture
def driver() -> Iterator[Driver]:
    yield Driver(4)
    _launch.init(0)


def kernel(built: list[int], pointers: int, sizes: int) -> _launch.Kernel:
    def build(key: int) -> tuple[int, int, int, int]:
        built.append(key)
        return 1000 + key, 128, 64, 1

    return _launch.Kernel(build, pointers, sizes)


def test_a_launch(driver: Driver, built: list[int]) -> None:
    kernel(built, 2, 2)(77, 5, 4096, 8192, 100, 32)
    (launch,) = driver.launches
    assert launch == (1000 + built[0], (5, 1, 1), (128, 1, 1), 64, 77, [4096, 8192, 100, 32])


def test_scratch_memory_comes_after_all_arguments(driver: Driver, built: list[int]) -> None:
    run = _launch.Kernel(lambda key: (1000 + key, 128, 64, 1), 3, 2, True)
    driver.count = 6
    run(77, 5, 4096, 8192, 512, 100, 32)
    assert driver.launches[-1][-1] == [4096, 8192, 100, 32, 512, 0]
    assert driver.launches[-1][0] == 1000 + (1 | 2 | 8)
    with pytest.raises(ValueError, match="0 arguments"):
        _launch.Kernel(lambda key: (0, 0, 0, 1), 0, 0, True)


def test_variants_are_built_once_for_each_kind_of_arguments(driver: Driver, built: list[int]) -> None:
    run = kernel(built, 2, 1)
    aligned, narrow, first = 1, 2, 4
    for arguments, key in [
        ((16, 32, 7), aligned | narrow),
        ((16, 36, 7), narrow),
        ((16, 32, 48), aligned | narrow | first),
        ((16, 32, 1 << 31), aligned | first),
        ((16, 32, 9), aligned | narrow),
    ]:
        run(0, 1, *arguments)
        assert driver.launches[-1][0] == 1000 + key
    assert len(built) == 4


def test_nothing_is_launched_for_no_programs(driver: Driver, built: list[int]) -> None:
    kernel(built, 0, 0)(0, 0)
    assert (driver.launches, built) == ([], [])


def test_errors(driver: Driver, built: list[int]) -> None:
    run, driver.count = kernel(built, 1, 0), 1
    with pytest.raises(TypeError, match="1 addresses"):
        run(0, 1)
    with pytest.raises(TypeError):
        run(0, 1, "address")
    with pytest.raises(OverflowError, match="programs"):
        run(0, 1 << 31, 16)
    driver.status = 700
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        run(0, 1, 16)
    texts = {700: b"an illegal memory access was encountered"}

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
    def describe(error, text):
        text[0] = texts.get(error)
        return 0 if error in texts else 1

    function = ctypes.cast(driver.function, ctypes.c_void_p).value or 0
    _launch.init(function, ctypes.cast(describe, ctypes.c_void_p).value or 0)
    with pytest.raises(RuntimeError, match="CUDA error 700 .*: an illegal memory access was encountered"):
        run(0, 1, 16)
    driver.status = 999
    with pytest.raises(RuntimeError, match="CUDA error 999 at the launch of a compiled kernel$"):
        run(0, 1, 16)
    with pytest.raises(ValueError, match="1024"):
        _launch.Kernel(lambda key: (0, 0, 0, 1), 2000, 0)


class Settings(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(ctypes.c_uint * 18)),
        ("count", ctypes.c_uint),
    )


def test_programs_that_start_together(driver: Driver) -> None:
    run = _launch.Kernel(lambda key: (7, 256, 64, 8), 1, 0)
    with pytest.raises(RuntimeError, match="CUDA error 801"):  # by a driver that cannot
        run(5, 24, 4096)
    launches = []

    @ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(Settings), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
    )
    def launch_with(settings, function, parameters, extra):
        s = settings[0]
        address = ctypes.cast(parameters[0], ctypes.POINTER(ctypes.c_uint64))[0]
        launches.append((s.gx, s.gy, s.gz, s.bx, s.by, s.bz, s.shared, s.stream, s.count, function, address))
        launches.append([s.attributes[0][k] for k in (0, 2, 3, 4)])
        return 0

    functions = driver.function, launch_with
    launch, with_settings = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
    _launch.init(launch, 0, with_settings)
    run(5, 24, 4096)
    cluster_dimension = 4
    assert launches == [(24, 1, 1, 256, 1, 1, 64, 5, 1, 7, 4096), [cluster_dimension, 8, 1, 1]]
    assert driver.launches == []


def test_a_thread_without_a_context_gets_one(driver: Driver) -> None:
    asked: list[int] = []

    def build(key: int) -> tuple[int, int, int, int]:
        asked.append(key)
        driver.status = 0 if len(asked) == 2 else driver.status
        return 1, 128, 0, 1

    run, driver.count = _launch.Kernel(build, 1, 0), 1
    driver.status = 201
    run(0, 1, 16)
    assert (len(asked), len(driver.launches)) == (2, 2)
    driver.status = 201
    with pytest.raises(RuntimeError, match="CUDA error 201"):
        run(0, 1, 16)


def test_a_variant_that_cannot_be_built(driver: Driver) -> None:
    def build(key: int) -> tuple[int, int, int, int]:
        raise LookupError("no such thing")

    run = _launch.Kernel(build, 1, 0)
    for _ in range(2):
        with pytest.raises(LookupError):
            run(0, 1, 16)
    assert driver.launches == []
