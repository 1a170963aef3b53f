"""What one rank holds of a function's modules: its shards of parameters and gradients, and what it gathers of the others."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .. import torch_private
from ..record.report import RankMemory


def modules_of(target: Any, args: Iterable[Any]) -> list[torch.nn.Module]:
    """The modules that a function computes with: itself, what it is a method of, its arguments, and what its names stand for."""
    held: list[Any] = [target, *args]
    if isinstance(target, types.MethodType):
        held.append(target.__self__)
        target = target.__func__
    if isinstance(target, types.FunctionType):
        around = inspect.getclosurevars(inspect.unwrap(target))
        held += [*around.globals.values(), *around.nonlocals.values()]
    return [value for value in held if isinstance(value, torch.nn.Module)]


class Held:
    """Looked at before, while and after a function runs."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        self._parts = list(dict.fromkeys(part for module in modules for part in module.modules()))
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        sharded: list[Any] = [part for part in self._parts if fsdp is not None and isinstance(part, fsdp.FSDPModule)]
        for part in sharded:
            part.reshard()  # an evaluation may have ended inside of it
        self._at_rest = {where: _local(p) for where, p in self._parameters()}
        self._most = 0

    def _parameters(self) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
        seen = set[int]()
        for number, part in enumerate(self._parts):
            for name, parameter in part.named_parameters(recurse=False):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield (number, name), parameter

    def gathers(self, size: int) -> None:
        """So many bytes are about to be gathered beside what is held now."""
        more = sum(max(0, _local(p) - self._at_rest.get(where, 0)) for where, p in self._parameters())
        self._most = max(self._most, more + size)

    def told(self, rank: int) -> RankMemory:
        parameters = [p for _, p in self._parameters()]
        replicated = [
            p for p in self._parts if isinstance(p, DistributedDataParallel) and not p.gradient_as_bucket_view
        ]
        buckets = sum(_local(p) for ddp in replicated for p in ddp.parameters() if p.requires_grad)
        gathered = self._most if any(torch_private.is_distributed(type(p)) for p in parameters) else 0
        gradients = sum(_local(p.grad) for p in parameters if p.grad is not None)
        whole = sum(p.numel() * p.element_size() for p in parameters)
        return RankMemory(rank, sum(self._at_rest.values()), gradients, gathered + buckets, whole)


def _local(tensor: Any) -> int:
    """Bytes that this rank has of it."""
    with torch.no_grad():
        mine = tensor.to_local() if torch_private.is_distributed(type(tensor)) else tensor
    return mine.numel() * mine.element_size()
