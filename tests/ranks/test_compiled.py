"""A compiled model communicates what it does eagerly, in the same order: so a check may listen to eager."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import fuselens
from fuselens.config import Config
from fuselens.ranks import world


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def replicated(model: Any, mesh: Any, compile: Callable[[Any], Any]) -> Any:  # noqa: A002
    return DistributedDataParallel(compile(model), bucket_cap_mb=0.05)


def split(model: Any, mesh: Any, compile: Callable[[Any], Any]) -> Any:  # noqa: A002
    for block in model:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return compile(model)


def sharded(model: Any, mesh: Any, compile: Callable[[Any], Any]) -> Any:  # noqa: A002
    for block in model:
        fully_shard(block, mesh=mesh["data"])
    return compile(fully_shard(model, mesh=mesh["data"]))


def heard(call: Callable[[Tensor], Tensor]) -> list[str]:
    """torch's own operators of communication in the second of two steps, in order."""
    for _ in range(2):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            call(torch.ones(4, 16, 64)).square().sum().backward()
    return [event.name for event in seen.events() if event.name.startswith("c10d::")]  # type: ignore[union-attr]


@pytest.mark.parametrize(("how", "least"), [(replicated, 3), (split, 4), (sharded, 6)])
@pytest.mark.parametrize("rank", [0, 9])
def test_the_same_as_eagerly(rank: int, how: Callable[..., Any], least: int) -> None:
    model = nn.Sequential(Block(64), Block(64))
    with warnings.catch_warnings(), world.entered(Config(mesh="data=8,tensor=8"), rank):
        warnings.simplefilter("ignore")
        mesh = init_device_mesh("cpu", (8, 8), mesh_dim_names=("data", "tensor"))
        eager = heard(how(copy.deepcopy(model), mesh, lambda m: m))
        compiled = heard(how(copy.deepcopy(model), mesh, fuselens.compile))
    assert compiled == eager
    assert len(eager) >= least, eager
