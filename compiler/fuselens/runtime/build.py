"""From C++ text to a loaded library: finds a compiler, chooses flags, builds into the cache, loads with ctypes.

OpenMP is the runtime that torch has loaded, whatever the compiler: units call its functions by name and are linked to
that very file, so ``torch.set_num_threads`` applies and no second runtime (clang's libomp) comes into the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ..config import Config
from ..report import Span
from .cache import Cache, key_of

# -O2 inlines and packs lanes, which is all these units need; -O3 takes up to 40 % longer to build and ran no faster.
# Contraction is off because a * b - a * b must be 0 as in eager; our vector maths asks for fma by name.
# Signed overflow wraps as torch's integers do. Errno and traps are not observable from a tensor program.
BASE_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-fno-math-errno", "-fno-trapping-math",
    "-fno-exceptions", "-fno-rtti", "-fno-plt", "-fvisibility=default", "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector", "-w", "-nostdlib",
)  # fmt: skip
# Vectors that are computed side by side are interleaved, so that a processor finds work of both within its window.
FAMILY_FLAGS = {"gcc": ("-fschedule-insns", "-fsched-pressure")}
_SCRATCH = "TMPDIR", "ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR"  # where compilers put files of their own


class NoCompiler(Exception):
    """No C++ compiler was found that runs. ``tried`` are the commands that were looked for."""

    def __init__(self, tried: tuple[str, ...]) -> None:
        super().__init__(f"no C++ compiler found; looked for {', '.join(tried)}")
        self.tried = tried


class BuildFailed(Exception):
    """The compiler refused generated code. ``stderr`` is what it said, ``span`` the place that the code is of."""

    def __init__(self, command: tuple[str, ...], stderr: str, span: Span | None = None) -> None:
        first = next((l for l in stderr.splitlines() if "error" in l), stderr.strip().split("\n")[0])
        super().__init__(first or f"{command[0]} failed")
        self.command, self.stderr, self.span = command, stderr, span


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its command, family ("gcc", "clang" or "zig") and the first line of ``--version``."""

    command: tuple[str, ...]
    family: str
    version: str


def find_compiler(config: Config) -> Compiler:
    """Config.cxx if given, else the first that works of g++, clang++ and the wheel ``ziglang``'s.

    Config.cxx is a path, which may hold spaces, or a command with arguments. Raises :class:`NoCompiler`.
    """
    if config.cxx:
        tried = ((config.cxx,) if shutil.which(config.cxx) else tuple(_words(config.cxx)),)
    else:
        tried = (("g++",), ("clang++",), *_wheel())
    for program, *arguments in filter(None, tried):
        found = shutil.which(program)
        if found:
            compiler = _identify((found, *arguments), os.stat(found).st_mtime_ns)
            if compiler:
                return compiler
    raise NoCompiler((config.cxx,) if config.cxx else ("g++", "clang++", "the package ziglang"))


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quote
        return [command]


def _wheel() -> tuple[tuple[str, ...], ...]:
    """The compiler that ``pip install 'fuselens[compiler]'`` brings. It tunes for this machine unless told not to."""
    if importlib.util.find_spec("ziglang") is None:
        return ()
    return ((sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline"),)


@functools.lru_cache(maxsize=16)
def _identify(command: tuple[str, ...], modified: int) -> Compiler | None:
    """Asks a compiler for its version; once per process and binary."""
    del modified  # part of the key: an upgraded compiler is another compiler
    try:
        out = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    family = "zig" if "ziglang" in command else "clang" if "clang" in out else "gcc"
    return Compiler(command, family, out.split("\n", 1)[0])


def _openmp() -> str:
    """The OpenMP runtime in this process (torch's); the compiler's own GNU runtime where none is loaded yet."""
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if re.match(r"lib(gomp|iomp5|omp)\b", os.path.basename(path)):
                return path
    return "-lgomp"


@functools.cache
def _machine_isa() -> str:
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return "neon"
    if machine not in ("x86_64", "amd64"):
        return "scalar"
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    if capability.startswith("AVX512"):
        return "avx512"
    return "avx2" if capability == "AVX2" else "sse2"


def host_isa(config: Config) -> str:
    """The instruction set to generate for: Config.cpu_isa, else what torch found this processor to have."""
    return config.cpu_isa or _machine_isa()


@dataclass(frozen=True, slots=True)
class Built:
    """A library on disk and in memory."""

    path: Path
    library: ctypes.CDLL
    cached: bool
    seconds: float


def build(text: str, isa_flags: tuple[str, ...], config: Config, cache: Cache, patient: bool = False) -> Built:
    """Builds C++ ``text`` (or finds it built), and loads it. Raises :class:`NoCompiler` and :class:`BuildFailed`.

    The cache entry's key covers the text, the flags and the compiler's version. A library that does not load is
    rebuilt once. ``patient``: the compiler gives way to whatever else the machine does.
    """
    start = time.perf_counter()
    compiler, flags, path = _planned(text, isa_flags, config, cache)
    if cache.holds(path):
        try:
            return Built(path, _load(path), True, time.perf_counter() - start)
        except OSError:
            cache.discard(path)
    if patient and (nice := shutil.which("nice")):
        compiler = replace(compiler, command=(nice, "-n", "19", *compiler.command))
    path = _compile(text, compiler, flags, path, cache, config.build_limit)
    return Built(path, _load(path), False, time.perf_counter() - start)


def is_built(text: str, isa_flags: tuple[str, ...], config: Config, cache: Cache) -> bool:
    """Whether :func:`build` would find it. Raises :class:`NoCompiler`."""
    return cache.holds(_planned(text, isa_flags, config, cache)[2])


def _planned(
    text: str, isa_flags: tuple[str, ...], config: Config, cache: Cache
) -> tuple[Compiler, tuple[str, ...], Path]:
    """The compiler, its flags and the place of the library. Raises :class:`NoCompiler`."""
    compiler = find_compiler(config)
    flags = (*BASE_FLAGS, *FAMILY_FLAGS.get(compiler.family, ()), *isa_flags)
    named = (*compiler.command[1:], compiler.version)
    key = key_of({"text": text, "flags": flags, "compiler": named, "machine": platform.machine()})
    return compiler, flags, cache.path("cpp", key, ".so")


def _compile(text: str, compiler: Compiler, flags: tuple[str, ...], path: Path, cache: Cache, limit: float) -> Path:
    """Runs the compiler in a private directory and moves the library to ``path``."""
    # The text goes through a pipe: no source file to write, and error messages say <stdin>:line.
    libraries = ("-Wl,--as-needed", _openmp(), "-lm", *(("-lgcc",) if compiler.family != "zig" else ()))
    command = (*compiler.command, "-x", "c++", *flags, "-", "-x", "none", *libraries, "-o")
    try:
        with cache.scratch() as directory:
            made = directory / "kernels.so"
            done = subprocess.run(
                (*command, str(made)), input=text, capture_output=True, text=True, timeout=limit, check=False,
                env={**os.environ, "LC_ALL": "C", **dict.fromkeys(_SCRATCH, str(directory))},
            )  # fmt: skip
            if done.returncode != 0 or not made.exists():
                raise BuildFailed(command, done.stderr or f"error: exit status {done.returncode}")
            cache.adopt(made, path)
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(command, f"error: the compiler took longer than {limit:g} s (option build_limit)") from error
    except OSError as error:  # no compiler any more, or no place to write
        raise BuildFailed(command, f"error: {error}") from error
    return path


def _load(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path), mode=getattr(os, "RTLD_NOW", 2) | getattr(ctypes, "RTLD_LOCAL", 0))


def function(library: ctypes.CDLL, name: str, pointers: int, sizes: int) -> ctypes._NamedFuncPointer:  # pyright: ignore[reportPrivateUsage]
    """A kernel as a callable of addresses and integers."""
    found = getattr(library, name)
    found.restype = None
    found.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_long] * sizes
    return found
