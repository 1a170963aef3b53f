"""``fuselens doctor``: all that compiling needs on this machine, each tried, with a repair where it does not work."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import config
from ..system import console
from .progress import say

# Optional things are missing, needed ones broken.
State = Literal["ok", "missing", "broken"]
_ADD = (
    'extern "C" void add(const float* a, const float* b, float* c) { for (int i = 0; i < 8; ++i) c[i] = a[i] + b[i]; }'
)


@dataclass(frozen=True, slots=True)
class Found:
    state: State
    what: str
    detail: str
    repair: str = ""


def doctor(arguments: argparse.Namespace) -> int:
    """Status 1 where something that is needed does not work."""
    found: list[Found] = []
    for look in (_python, _torch, _extensions, _compiler, _cpu, _triton, _gpu, _cache, _sandbox, _server, _whole):
        try:
            one = look()
        except Exception as error:  # noqa: BLE001 - what is looked at may be broken in any way
            one = Found("broken", look.__name__.strip("_"), f"{type(error).__name__}: {error}".splitlines()[0])
        found.append(one)
        say(
            "\n".join(
                [f"{one.state:<8} {one.what:<12} {one.detail}", *([f"{'':<22}{one.repair}"] if one.repair else [])]
            )
        )
        if one.what == "torch" and one.state == "broken":
            break  # nothing else can be tried
    broken = [one.what for one in found if one.state == "broken"]
    console.say(f"{len(broken)} broken: {', '.join(broken)}" if broken else "All that is needed works.")
    return int(bool(broken))


def _pip(what: str) -> str:
    return f"{sys.executable} -m pip install {what}"


def _python() -> Found:
    return Found("ok", "python", f"{platform.python_version()} ({sys.executable})")


def _torch() -> Found:
    try:
        torch = importlib.import_module("torch")
    except BaseException as error:  # noqa: BLE001 - a broken installation may raise anything
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return Found("broken", "torch", why, f"{_pip('torch')}  # see https://pytorch.org/get-started")
    from ..torch_private import names

    lost = names.absent()
    newest = ".".join(map(str, names.TESTED[1]))
    said = f"{torch.__version__}, {torch.get_num_threads()} threads"
    if lost:
        named = ", ".join(f"{n.places[0]} ({n.lost})" for n in lost)
        return Found("missing", "torch", f"{said}; without {named}", f"{_pip(f'torch<={newest}')}, or a newer fuselens")
    if names.newer_than_tested():
        return Found("ok", "torch", f"{said}; newer than {newest}, the newest that this fuselens was tested on")
    return Found("ok", "torch", said)


def _extensions() -> Found:
    modules = ("capture.hook._hook", "runtime._launch", "runtime._program", "sandbox._wall")
    for name in modules:
        try:
            importlib.import_module(f"fuselens.{name}")
        except ImportError as error:
            built = _pip("--force-reinstall --no-deps fuselens")
            return Found(
                "broken",
                "extensions",
                f"fuselens.{name} cannot be loaded: {error}",
                f"{built}; in a clone: make environment",
            )
    return Found("ok", "extensions", f"{len(modules)} modules in C")


def _compiler() -> Found:
    from ..runtime import build

    settings = config.from_environment()
    try:
        compiler = build.find_compiler(settings)
    except build.NoCompiler as error:
        repair = f"apt-get install g++, or {_pip('ziglang')}, or name one with CXX"
        return Found("broken", "compiler", f"{error}; graphs run eagerly", repair)
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = build.build(_ADD, (), settings, build.Cache(Path(folder), fixed=True)).library
        except (build.BuildFailed, build.NoCompiler, OSError) as error:
            return Found("broken", "compiler", f"{compiler.version}: {error}", "name another one with CXX")
        numbers = ctypes.c_float * 8
        made = numbers()
        library.add(numbers(*range(8)), numbers(*range(8)), made)
    right = list(made) == [2.0 * i for i in range(8)]
    return Found("ok" if right else "broken", "compiler", f"{compiler.version} ({' '.join(compiler.command)})")


def _cpu() -> Found:
    from ..runtime import build

    openmp = build._openmp()
    detail = f"{build.host_isa(config.from_environment())}, {os.cpu_count()} processors, OpenMP {openmp}"
    return Found("ok", "cpu", detail)


def _triton() -> Found:
    if importlib.util.find_spec("triton") is None:
        return Found("missing", "triton", "kernels for GPUs need it; the CPU does not", _pip("triton"))
    triton = importlib.import_module("triton")
    return Found("ok", "triton", f"{triton.__version__}")


def _gpu() -> Found:
    import torch

    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
        why = f"none; {built}. Kernels for one are compiled all the same with --target cuda:sm_90"
        return Found("missing", "gpu", why)
    cards = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    ones = torch.ones(4, device="cuda")
    right = bool((ones + ones == 2).all())
    return Found("ok" if right else "broken", "gpu", f"{cards}, CUDA {torch.version.cuda}")


def _cache() -> Found:
    from ..runtime.cache import place as cache_place
    from ..runtime.cache.store import Cache

    wanted = config.from_environment().cache_dir
    repair = "name another folder with FUSELENS_CACHE_DIR (see fuselens codes FL916)"
    if why := cache_place.objection(wanted):
        return Found("broken", "cache", f"{wanted}: {why}", repair)
    try:
        Cache(wanted, fixed=True).making(cache_place.require_room)
        if cache_place.forbids_execution(wanted):
            return Found("broken", "cache", f"{wanted}: libraries cannot be loaded from it (noexec)", repair)
    except OSError as error:
        return Found("broken", "cache", f"{wanted}: {cache_place.reason(error, wanted)}", repair)
    return Found("ok", "cache", str(wanted))


def _sandbox() -> Found:
    """The wall around checks, in a process that then ends: it cannot be left."""
    if not hasattr(os, "fork"):
        return Found("missing", "sandbox", "this system has none; checks are watched from Python alone")
    done = _in_child(_enclosed)
    if done == 0:
        return Found("ok", "sandbox", "the kernel keeps checked files from writing outside of their folder")
    why = "this kernel has no Landlock or seccomp for it; checks are watched from Python alone"
    return Found("missing", "sandbox", why)


def _enclosed() -> bool:
    from ..sandbox import _wall

    with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as inside:
        _wall.enclose((os.fsencode(os.path.realpath(inside)),))
        try:
            Path(outside, "written").touch()
        except OSError:
            Path(inside, "written").touch()
            return True
    return False


def _in_child(work: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(not work())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _server() -> Found:
    missing = [name for name in ("fuselens_server", "pygls", "lsprotocol") if importlib.util.find_spec(name) is None]
    if missing:
        return Found("missing", "server", f"the editor needs {', '.join(missing)}", _pip("'fuselens[server]'"))
    return Found("ok", "server", "the language server can be started")


def _whole() -> Found:
    """A function compiled and called, with its gradient."""
    import torch

    from .. import api

    def step(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + 1).sum()

    x = torch.arange(4.0, requires_grad=True)
    report = api.explain(step)(x)
    if not report.compiled:
        return Found("broken", "compilation", report.uncompiled)
    api.compile(step)(x).backward()
    right = x.grad is not None and torch.allclose(x.grad, x.detach().exp())
    return Found("ok" if right else "broken", "compilation", f"a function was compiled: {report.summary()}")
