"""From C++ text to a loaded library: finds a compiler, chooses flags, builds into the cache, loads with ctypes.

OpenMP is the runtime that torch has loaded, whatever the compiler: units call its functions by name and are linked to
that very file, so ``torch.set_num_threads`` applies and no second runtime (clang's libomp) comes into the process.

All that a build reads is in its :class:`Plan`, which makes both the compiler's command and the key of the library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import importlib.util
import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ..config import Config
from ..record.report import Diagnostic, Span
from .cache.place import forbids_execution, require_room
from .cache.store import Cache, Opened, key_of

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
KIND, SUFFIX = "cpp", ".so"
# What compilers and linkers read of the environment, and what they make depends on.
_VARIABLES = (
    "COMPILER_PATH", "LIBRARY_PATH", "LD_RUN_PATH", "LD_LIBRARY_PATH", "LDEMULATION", "GCC_EXEC_PREFIX", "GCC_SPECS",
    "CCC_OVERRIDE_OPTIONS", "SDKROOT", "MACOSX_DEPLOYMENT_TARGET", "ZIG_LIB_DIR",
)  # fmt: skip
# OpenMP is in the process that loads the library, where torch has brought it: Linux's linkers leave its functions open.
_LINKED_ELSEWHERE = {"linux": ("-Wl,--as-needed", "-lm"), "macos": ("-Wl,-undefined,dynamic_lookup",)}
_LEAST = 'extern "C" int answer() { return 42; }'
_DESCRIPTORS = "/proc/self/fd"
_loads = itertools.count(1)
_SCRATCH = "TMPDIR", "ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR"  # where compilers put files of their own


class NoCompiler(Exception):
    """No C++ compiler was found that works. ``tried`` are the commands that were looked for, ``why`` is what is wrong with one
    that was found."""

    def __init__(self, tried: tuple[str, ...], why: str = "") -> None:
        self.tried, self.why = tried, why
        super().__init__(f"{', '.join(tried)} {why}" if why else f"looked for {', '.join(tried)}")


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
    program: tuple[str, ...] = ()  # which file it is


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
            command = (found, *arguments)
            compiler = _identify(command, _file(_wheels_compiler() if "ziglang" in command else found))
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


def _compiler_for(triple: str) -> Compiler:
    """The wheel's compiler, for another system. Raises :class:`NoCompiler`."""
    for command in _wheel():
        # asked with a target, it leaves an object file where it runs
        found = _identify(command, _file(_wheels_compiler()))
        if found is not None:
            return replace(found, command=(*command, "-target", triple))
    raise NoCompiler(("the package ziglang",))


def _wheels_compiler() -> str:
    spec = importlib.util.find_spec("ziglang")
    return str(Path(spec.origin).parent / "zig") if spec is not None and spec.origin is not None else ""


@functools.lru_cache(maxsize=16)
def _identify(command: tuple[str, ...], program: tuple[str, ...]) -> Compiler | None:
    """Asks a compiler for its version; once per process and binary."""
    try:
        out = subprocess.run(
            [*command, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    family = "zig" if "ziglang" in command else "clang" if "clang" in out else "gcc"
    return Compiler(command, family, out.split("\n", 1)[0], program)


def _file(path: str) -> tuple[str, ...]:
    """What tells one file from another: an upgraded compiler is another compiler, and so is a library."""
    try:
        status = os.stat(path)
    except OSError:
        return (path,)
    return os.path.realpath(path), str(status.st_size), str(status.st_mtime_ns)


def _openmp() -> str:
    """The OpenMP runtime in this process (torch's); the compiler's own GNU runtime where none is loaded yet."""
    return _loaded_openmp() if "torch" in sys.modules else _find_openmp()


@functools.cache
def _loaded_openmp() -> str:
    """It stays the same, and is asked for at each build."""
    return _find_openmp()


def _find_openmp() -> str:
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        found = re.search(r" (/.*/lib(?:gomp|iomp5|omp)\b[^/\n]*)$", maps.read(), re.MULTILINE)
        if found is not None:
            return found[1]
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


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a build reads. What is not in here does not reach the compiler, or does not change a library."""

    text: str
    compiler: Compiler
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        named = self.compiler.command[1:], self.compiler.version, self.compiler.program
        linked = [_file(name) if os.path.isabs(name) else name for name in self.libraries]
        return key_of({
            "text": self.text, "flags": self.flags, "compiler": named, "libraries": linked, "variables": self.variables,
            "machine": platform.machine(),
        })  # fmt: skip

    @property
    def command(self) -> tuple[str, ...]:
        """Without the name of what it makes. The text goes through a pipe: there is no source file to write, and error
        messages say <stdin>:line."""
        return (*self.compiler.command, "-x", "c++", *self.flags, "-", "-x", "none", *self.libraries, "-o")


def plan(text: str, isa_flags: tuple[str, ...], config: Config, triple: str = "") -> Plan:
    """``triple`` is another system than this, as ``ziglang`` names it. Raises :class:`NoCompiler`."""
    compiler = _compiler_for(triple) if triple else find_compiler(config)
    flags = (*BASE_FLAGS, *FAMILY_FLAGS.get(compiler.family, ()), *isa_flags)
    if triple:
        libraries = _LINKED_ELSEWHERE["macos" if "macos" in triple else "linux"]
    else:
        libraries = ("-Wl,--as-needed", _openmp(), "-lm", *(("-lgcc",) if compiler.family != "zig" else ()))
    variables = tuple((name, os.environ[name]) for name in _VARIABLES if name in os.environ)
    return Plan(text, compiler, flags, libraries, variables)


_carried: dict[str, bytes] = {}


def carried_key(text: str, isa_flags: tuple[str, ...]) -> str:
    """What names a library that came without its compiler: what it was made of."""
    return key_of({"text": text, "flags": isa_flags, "machine": platform.machine()})


def carry(key: str, library: bytes) -> None:
    """A library that :func:`build` takes for such a text; see :func:`carried_key`."""
    _carried.setdefault(key, library)


def content(text: str, isa_flags: tuple[str, ...], config: Config, cache: Cache) -> bytes:
    """The library that :func:`build` has made of a text, or was given for it."""
    found = _carried.get(carried_key(text, isa_flags)) or cache.get(KIND, plan(text, isa_flags, config).key, SUFFIX)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "it was removed since it was made", str(cache.root))
    return found


def content_elsewhere(text: str, isa_flags: tuple[str, ...], config: Config, triple: str) -> bytes:
    """The library for another system, which is built and not loaded. Raises :class:`NoCompiler` and :class:`BuildFailed`."""
    planned = plan(text, isa_flags, config, triple)
    with tempfile.TemporaryDirectory(prefix="fuselens-build-") as directory:
        made = Path(directory) / "kernels.so"
        _compile(planned.command, text, made, config.build_limit)
        return made.read_bytes()


def _of_carried(text: str, isa_flags: tuple[str, ...], cache: Cache) -> tuple[Path, ctypes.CDLL] | None:
    key = carried_key(text, isa_flags) if _carried else ""
    content = _carried.get(key)
    if content is None:
        return None
    entry = KIND, key_of({"carried": key, "content": hashlib.sha256(content).hexdigest()}), SUFFIX
    if not cache.exists(*entry):
        cache.put(*entry[:2], content, SUFFIX)
    with cache.opened(*entry) as found:
        return None if found is None else (found.path, _load(found, cache))


def build(text: str, isa_flags: tuple[str, ...], config: Config, cache: Cache, patient: bool = False) -> Built:
    """Builds C++ ``text`` (or finds it built), and loads it. Raises :class:`NoCompiler` and :class:`BuildFailed`.

    A library that does not load is rebuilt once. ``patient``: the compiler gives way to whatever else the machine does.
    """
    started = _ahead.pop((text, isa_flags, cache.root), None)
    if started is None:
        return _build(text, isa_flags, config, cache, patient)
    built, diagnostics = started.result()
    cache.diagnostics += diagnostics
    return built


_ahead: dict[tuple[str, tuple[str, ...], Path], Future[tuple[Built, list[Diagnostic]]]] = {}


def build_ahead(text: str, isa_flags: tuple[str, ...], config: Config) -> None:
    """Starts what :func:`build` is about to be asked for, by a thread of its own; what goes wrong, that function raises."""

    def make() -> tuple[Built, list[Diagnostic]]:
        return _build(text, isa_flags, config, cache), cache.drain()

    cache = Cache(config.cache_dir)
    _ahead[text, isa_flags, cache.root] = _builders().submit(make)


@functools.cache
def _builders() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "fuselens build")


def _forget_builders() -> None:
    """A forked process has none of the threads."""
    _ahead.clear()
    _builders.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_builders)


def _build(text: str, isa_flags: tuple[str, ...], config: Config, cache: Cache, patient: bool = False) -> Built:
    start = time.perf_counter()
    carried = _of_carried(text, isa_flags, cache)
    if carried is not None:
        return Built(*carried, True, time.perf_counter() - start)
    planned = plan(text, isa_flags, config)
    entry = KIND, planned.key, SUFFIX
    with cache.opened(*entry) as found:
        if found is not None:
            try:
                return Built(found.path, _load(found, cache), True, time.perf_counter() - start)
            except OSError:
                cache.discard(found.path)
    command = planned.command
    if patient and (nice := shutil.which("nice")):
        command = (nice, "-n", "19", *command)

    def make(directory: Path) -> tuple[Path, ctypes.CDLL]:
        made = directory / "kernels.so"
        _compile(command, text, made, config.build_limit)
        path = cache.path(*entry)
        cache.adopt(made, path)
        return path, _loaded(cache, entry, command)

    try:
        path, library = cache.making(make)
    except OSError as error:
        raise BuildFailed(command, f"error: {error}") from error
    return Built(path, library, False, time.perf_counter() - start)


def is_built(text: str, isa_flags: tuple[str, ...], config: Config, cache: Cache) -> bool:
    """Whether :func:`build` would find it. Raises :class:`NoCompiler`."""
    return cache.get(KIND, plan(text, isa_flags, config).key, SUFFIX) is not None


def _compile(command: tuple[str, ...], text: str, made: Path, limit: float) -> None:
    """Runs the compiler. Raises OSError where there is no place to write, else :class:`BuildFailed`."""
    scratch = dict.fromkeys(_SCRATCH, str(made.parent))
    try:
        done = subprocess.run(
            (*command, str(made)), input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=limit,
            check=False, env={**os.environ, "LC_ALL": "C", **scratch},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(command, f"error: the compiler took longer than {limit:g} s (option build_limit)") from error
    except OSError as error:  # no compiler any more
        raise BuildFailed(command, f"error: {error}") from error
    if done.returncode != 0 or not made.exists():
        require_room(made.parent)
        failed = BuildFailed(command, done.stderr or f"error: exit status {done.returncode}")
        if text != _LEAST and not _builds_something(command, limit):
            raise NoCompiler(command[:1], f"was found, but cannot build anything: {failed}") from None
        raise failed


@functools.lru_cache(maxsize=16)
def _builds_something(command: tuple[str, ...], limit: float) -> bool:
    """Whether it is the code that is refused, and not any code."""
    with contextlib.suppress(BuildFailed, OSError), tempfile.TemporaryDirectory(prefix="fuselens-build-") as directory:
        _compile(command, _LEAST, Path(directory) / "kernels.so", limit)
        return True
    return False


def _loaded(cache: Cache, entry: tuple[str, str, str], command: tuple[str, ...]) -> ctypes.CDLL:
    """What was just made. Raises OSError where libraries cannot be loaded from the cache, else :class:`BuildFailed`."""
    with cache.opened(*entry) as found:
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "it was removed as soon as it was made", str(cache.path(*entry)))
        try:
            return _load(found, cache)
        except OSError as error:
            if forbids_execution(cache.root):
                raise OSError(errno.EACCES, "its file system does not let code be executed", str(cache.root)) from error
            raise BuildFailed(command, f"error: {error}") from error


def _load(found: Opened, cache: Cache) -> ctypes.CDLL:
    """The library that was opened and compared, whatever has its name by now. Raises OSError."""
    mode = getattr(os, "RTLD_NOW", 2) | getattr(ctypes, "RTLD_LOCAL", 0)
    if os.path.exists(f"{_DESCRIPTORS}/{found.descriptor}"):
        # The loader takes equal names for one library, and descriptors are used again: "0" is written "/" here, "1" "/.".
        number = format(next(_loads), "b").replace("0", "/").replace("1", "/.")
        return ctypes.CDLL(f"{_DESCRIPTORS}{number}/{found.descriptor}", mode=mode)
    with cache.scratch() as directory:  # nobody else can write there
        copy = directory / found.path.name
        copy.write_bytes(found.content)
        return ctypes.CDLL(str(copy), mode=mode)


def function(library: ctypes.CDLL, name: str, pointers: int, sizes: int) -> ctypes._NamedFuncPointer:  # pyright: ignore[reportPrivateUsage]
    """A kernel as a callable of addresses and integers."""
    found = getattr(library, name)
    found.restype = None
    found.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_long] * sizes
    return found
