"""What a program finds in place of what it must not do, or what is not here: data that is elsewhere, other processes, a
network of machines, arguments that nobody gives."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import functools
import importlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .. import sandbox, torch_private
from ..ranks import world
from ..system.replacing import replaced
from . import command_lines, trainers
from .devices import is_here
from .unknown import ASSUMED_SIZE, Unknown, assumed, first_unknown, is_unknown, why_of

Noted = Callable[[str], None]
_ELEMENTS = 1 << 20  # of an array whose file is not here
_ABSENT = object()
_OF_LAUNCHERS = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0",
}  # fmt: skip
"""What ``torchrun`` sets, for a program that cannot do without."""


@contextlib.contextmanager
def in_place(modules: frozenset[str], note: Noted) -> Iterator[None]:
    """Inside, for a program that imports ``modules``, no time is slept, no process loads data, nothing is loaded into modules or
    written to files, and one process is all there is. ``note`` is told what is missing, and what is assumed for it."""
    with replaced(
        (time, "sleep", _nothing()), (os, "_exit", sys.exit), (torch, "save", _saves()), (torch, "load", _loads(note)),
        (nn.Module, "load_state_dict", _keeps), (nn.Module, "to", _stays()),
        (argparse.ArgumentParser, "parse_known_args", _lenient(note)),
        (torch.autocast, "__init__", _autocast()),
        *_files(note), *_environment(), *_one_process(modules), *_layers(note), *_loaders(), *_cuda(),
        *torch_private.methods_kept_from_peer(torch.optim.Optimizer),
        *trainers.in_place(modules), *command_lines.in_place(modules),
    ):  # fmt: skip
        yield


def _nothing() -> Any:
    """A new function: others hold torch's functions apart by what they are."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    return nothing


# --- files ----------------------------------------------------------------------------------------------------------


def _saves() -> Any:
    real = torch.save

    def save(obj: Any, file: Any, *args: Any, **options: Any) -> None:
        if isinstance(file, (str, os.PathLike)) and sandbox.may_write(file):
            real(obj, file, *args, **options)

    return save


def _loads(note: Noted) -> Any:
    real = torch.load

    def load(file: Any, *_: Any, **options: Any) -> Any:
        """What was saved, with its tensors left in the file; where it is elsewhere, it is unknown."""
        if not isinstance(file, (str, os.PathLike)) or not os.path.exists(file):
            note(f"the file {file} is not here: what was saved in it is unknown")
            return Unknown(f"the file {file} is not here")
        safe = options.get("weights_only")
        try:
            return real(file, map_location="cpu", mmap=True, weights_only=safe)
        except RuntimeError:  # of an older format
            return real(file, map_location="cpu", weights_only=safe)

    return load


def _keeps(*_: Any, **__: Any) -> Any:
    return [], []


def _stays() -> Any:
    moved = nn.Module.to

    @functools.wraps(moved)
    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        args = tuple(torch.device("cuda", a) if type(a) is int else a for a in args)
        return self if is_unknown((args, kwargs)) else moved(self, *args, **kwargs)

    return to


def _files(note: Noted) -> Iterator[tuple[Any, str, Any]]:
    """Folders are there, and what is written goes nowhere, but for what is temporary."""
    yield os, "mkdir", _makes(os.mkdir)
    for owner in (builtins, io):
        yield owner, "open", _opened(owner.open, note)
    yield from _mapped(note)


def _makes(real: Any) -> Any:
    @functools.wraps(real)
    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(path, (str, os.PathLike)) or sandbox.may_write(path):
            real(path, *args, **kwargs)

    return mkdir


def _opened(real: Any, note: Noted) -> Any:
    @functools.wraps(real)
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = isinstance(file, (str, os.PathLike)) and isinstance(mode, str) and set(mode) & set("wax+")
        if writes and not sandbox.may_write(file):
            note(f"what is written to `{os.fspath(file)}` goes nowhere: a check writes no file")
            file, mode = os.devnull, mode.replace("x", "w")
        return real(file, mode, *args, **kwargs)

    return opened


def _mapped(note: Noted) -> list[tuple[Any, str, Any]]:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return []
    memmap = numpy.memmap

    def mapped(
        file: Any, dtype: Any = "uint8", mode: str = "r+", offset: int = 0, shape: Any = None, order: str = "C"
    ) -> Any:
        try:
            return memmap(file, dtype, "r" if mode == "r+" else mode, offset, shape, order)
        except FileNotFoundError:  # data that is elsewhere
            note(f"the file {os.fspath(file)} is not here: zeros stand for what is in it")
            return numpy.zeros(shape or _ELEMENTS, dtype)

    return [(numpy, "memmap", mapped)]


# --- arguments and variables ----------------------------------------------------------------------------------------


def _lenient(note: Noted) -> Any:
    parsed = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        """What is required and not given is unknown."""
        missing = [a for a in self._actions if a.required and a.dest != argparse.SUPPRESS]
        for action in missing:
            name = "/".join(action.option_strings) or action.dest
            why = f"the argument {name} is required, and not given"
            choices = list(action.choices or ())
            if choices and not isinstance(action, argparse._SubParsersAction):
                chosen: Any = min(choices, key=str) if isinstance(action.choices, (set, frozenset)) else choices[0]
            else:
                chosen = Unknown(why)
            action.required, action.default = False, chosen
            note(f"{why}: it is {'unknown' if isinstance(chosen, Unknown) else f'taken to be {chosen!r}'}")
            if not action.option_strings and action.nargs is None:
                action.nargs = "?"
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and not (args or sys.argv[1:]):
                args = ["train" if "train" in action.choices else next(iter(action.choices))]
        for group in self._mutually_exclusive_groups:
            group.required = False
        return parsed(self, args, namespace)

    return parse_known_args


def _environment() -> list[tuple[Any, str, Any]]:
    kind = type(os.environ)
    real = kind.__getitem__

    def item(self: Any, key: Any) -> Any:
        try:
            return real(self, key)
        except KeyError:
            if key in _OF_LAUNCHERS:
                return _OF_LAUNCHERS[key]
            raise

    def get(self: Any, key: Any, default: Any = None) -> Any:
        try:
            return real(self, key)
        except KeyError:
            return default

    def contains(self: Any, key: Any) -> bool:
        return get(self, key, _ABSENT) is not _ABSENT

    return [(kind, "__getitem__", item), (kind, "get", get), (kind, "__contains__", contains)]


# --- processes and devices ------------------------------------------------------------------------------------------


def _loaders() -> Iterator[tuple[Any, str, Any]]:
    """Loaders are of this process; one of unknown data gives unknown batches, whose number of examples is known."""
    loader = torch.utils.data.DataLoader
    if "__new__" not in vars(loader):
        # CPython does not make instances of a class as before once it had one: this one stays, and does what object's does.
        loader.__new__ = staticmethod(_new)
    made = loader.__init__

    @functools.wraps(made)
    def alone(self: Any, *args: Any, **options: Any) -> None:
        options |= {"num_workers": 0, "pin_memory": False, "persistent_workers": False}
        options |= {"prefetch_factor": None, "multiprocessing_context": None, "timeout": 0}
        for key in ("sampler", "batch_sampler"):
            if isinstance(options.get(key), Unknown):
                options[key] = None
        made(self, *args[:5], **options)

    def new(cls: Any, dataset: Any = None, batch_size: Any = 1, *_: Any, **__: Any) -> Any:
        if not isinstance(dataset, Unknown):
            return _new(cls)
        return Unknown(why_of(dataset), batch_size if isinstance(batch_size, int) else None)

    yield loader, "__init__", alone
    yield loader, "__new__", staticmethod(new)


def _new(cls: Any, *_: Any, **__: Any) -> Any:
    return object.__new__(cls)


def _layers(note: Noted) -> Iterator[tuple[Any, str, Any]]:
    """Layers and tensors of sizes that are not known have some size."""
    for layer in {value for value in vars(nn).values() if isinstance(value, type)}:
        if issubclass(layer, nn.Module) and "__init__" in vars(layer):
            yield layer, "__init__", _of_some_size(vars(layer)["__init__"], note)
    for name in ("ones", "zeros", "empty", "full", "randn", "rand", "arange", "linspace", "eye"):
        made = _of_some_size(getattr(torch, name), note)
        vars(made)[torch_private.ORIGINAL] = getattr(torch, name)  # what is compiled traces that
        yield torch, name, made


def _of_some_size(made: Any, note: Noted) -> Any:
    @functools.wraps(made)
    def of_some_size(*args: Any, **kwargs: Any) -> Any:
        if (unknown := first_unknown((args, kwargs))) is not None:
            note(f"sizes that are unknown are taken to be {ASSUMED_SIZE}: {why_of(unknown)}")
            args, kwargs = assumed(args), assumed(kwargs)
        return made(*args, **kwargs)

    return of_some_size


def _cuda() -> Iterator[tuple[Any, str, Any]]:
    """What programs ask of a GPU that is not here."""
    if is_here(torch.device("cuda")):
        return
    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "init"):
        yield torch.cuda, name, _nothing()
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "current_device",
    ):
        yield torch.cuda, name, lambda *_, **__: 0
    yield torch.cuda, "get_device_name", lambda *_: "absent"
    for name in ("Event", "Stream", "CUDAGraph"):
        yield torch.cuda, name, _Idle


class _Idle:
    """An event or a stream of a GPU: nothing waits."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def elapsed_time(self, _: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return _nothing()


def _autocast() -> Any:
    made = torch.autocast.__init__

    @functools.wraps(made)
    def here(self: Any, device_type: str, *args: Any, **options: Any) -> None:
        made(self, device_type if is_here(torch.device(device_type)) else "cpu", *args, **options)

    return here


class _Here:
    """A process that is this one: its function is called when it starts."""

    exitcode = 0

    def __init__(
        self, group: Any = None, target: Any = None, name: Any = None, args: Any = (), kwargs: Any = None, **_: Any
    ) -> None:
        self._call = functools.partial(target or _nothing(), *args, **(kwargs or {}))

    def start(self) -> None:
        self._call()

    def __getattr__(self, name: str) -> Any:
        return _nothing()


class _OneOfOne(nn.Module):
    """A module as one of one process has it."""

    def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @staticmethod
    def _get_active_ddp_module() -> None:
        """Asked by torch itself."""

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _first(module: Any, *_: Any, **__: Any) -> Any:
    return module


def _one_process(modules: frozenset[str]) -> Iterator[tuple[Any, str, Any]]:
    """Nobody is connected to: a group of processes has this one, and what is spread over it stays whole. A check for several ranks
    has groups of its own."""
    distributed, here = torch.distributed, world.now()
    multiprocessing: Any = torch.multiprocessing

    def spawn(fn: Any, args: Any = (), *_: Any, **__: Any) -> None:
        fn(here.rank if here is not None else 0, *args)

    yield multiprocessing, "spawn", spawn
    yield multiprocessing, "Process", _Here
    yield importlib.import_module("multiprocessing"), "Process", _Here
    if here is not None:
        return
    yield torch.nn.parallel, "DistributedDataParallel", _OneOfOne
    yield importlib.import_module("torch.nn.parallel.distributed"), "DistributedDataParallel", _OneOfOne
    if not distributed.is_available():
        return
    for name in (
        "init_process_group", "destroy_process_group", "barrier", "all_reduce", "broadcast", "reduce", "all_gather", "gather",
        "scatter", "broadcast_object_list", "all_gather_object", "monitored_barrier",
    ):  # fmt: skip
        yield distributed, name, _nothing()
    for name, value in (("get_rank", 0), ("get_world_size", 1), ("get_node_local_rank", 0), ("get_backend", "gloo")):
        yield distributed, name, lambda *_, value=value, **__: value
    meshes = [
        distributed,
        *([importlib.import_module("torch.distributed.device_mesh")] if "device_mesh" in modules else ()),
    ]
    for owner in meshes:
        yield owner, "init_device_mesh", lambda *_, **__: Unknown("meshes of devices are not made")
    if "fsdp" in modules:
        fsdp: Any = importlib.import_module("torch.distributed.fsdp")
        yield fsdp, "FullyShardedDataParallel", _OneOfOne
        yield fsdp, "fully_shard", _first
