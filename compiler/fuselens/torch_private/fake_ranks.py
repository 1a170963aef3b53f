"""A process group whose other ranks are not there, and what a backward says of where it is."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from torch.futures import Future

from .names import private

_LINE = re.compile(r'  File "(.*)", line (\d+), in (.*)')
_TRACE = "traceback_"  # of a node of autograd, where anomalies are looked for


@contextlib.contextmanager
def fake_ranks(rank: int, size: int) -> Iterator[None]:
    """Inside, this process is one of so many ranks, by torch's backend that communicates nothing: what is gathered are copies of
    what this rank has, what is reduced stays as it is."""
    store = private.fake_store()  # importing its module makes the backend known
    distributed.init_process_group("fake", store=store, rank=rank, world_size=size)
    try:
        with _reductions_that_return():
            yield
    finally:
        distributed.destroy_process_group()
        forget_layouts()


@contextlib.contextmanager
def _reductions_that_return() -> Iterator[None]:
    """torch's fake reduction has no result, which DistributedDataParallel wants to have."""

    def reduced(tensors: Any, *_: Any, **__: Any) -> Any:
        done: Future[Any] = Future()
        done.set_result(tensors)
        return tensors, private.finished_work(done).boxed()

    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one is known
        library.impl("allreduce_", reduced, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def forget_layouts() -> None:
    """What torch keeps of the layouts of distributed tensors names groups that are gone, or another rank's."""
    if "torch.distributed.tensor" in sys.modules:
        private.forget_layouts()
        private.forget_moves.cache_clear()


def is_distributed(kind: type) -> bool:
    """Whether tensors of a class have their parts on several ranks."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and issubclass(kind, tensors.DTensor)


def in_backward() -> bool:
    """Whether this thread runs a backward."""
    return private.graph_task() != -1


def lines_of_forward() -> list[tuple[str, int, str]]:
    """File, line and function of the calls that made the node of the backward which runs now, outermost first. Nothing where
    anomalies are not looked for."""
    node = private.running_node()
    trace = node.metadata.get(_TRACE, ()) if node is not None else ()
    found = (_LINE.match(entry) for entry in trace)
    return [(line[1], int(line[2]), line[3]) for line in found if line is not None]


def arguments_of(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What an operator is called with, by name."""
    names = (argument.name for argument in operator._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def group_of(arguments: dict[str, Any]) -> Any:
    """The process group that an operator of torch.distributed is given, as an object or by name."""
    for name, value in arguments.items():
        if name == "process_group":
            return distributed.ProcessGroup.unbox(value)
        if name == "group_name":
            return private.resolve_group(value) if isinstance(value, str) else value
    return distributed.group.WORLD


def reduction_of(value: Any) -> str:
    """The name of a reduction, as it is given to operators."""
    if isinstance(value, str):
        return value
    kinds: Any = distributed.ReduceOp.RedOpType
    return next((name.lower() for name, kind in kinds.__members__.items() if int(kind) == value.op()), "?")
