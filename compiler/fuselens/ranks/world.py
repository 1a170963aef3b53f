"""The world that a program finds which is looked at as one of many ranks: variables of a launcher, a process group of that size
whose other ranks are not there, and meshes on devices that are here."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed

from .. import torch_private
from ..config import Config, mesh_of
from ..system.replacing import replaced

_FROM_A_NAMED_MESH = "mesh_"  # torch's descriptions of groups: mesh_data


@dataclass(slots=True)
class World:
    """One rank's view. ``mesh`` is the one that was asked for, else the largest that the program makes."""

    rank: int
    size: int
    mesh: dict[str, int] = field(default_factory=dict)
    replicated: list[Any] = field(default_factory=list)  # the program's DistributedDataParallels

    def around(self, target: Any) -> Any:
        """The ``DistributedDataParallel`` of a module, or of what compiles it; other targets as they are."""
        inside = ((ddp, ddp.module) for ddp in self.replicated)
        return next(
            (ddp for ddp, m in inside if target in (m, getattr(getattr(m, "__fuselens__", None), "target", m))), target
        )

    def group(self, group: Any) -> str:
        """What a reader calls a group: by the mesh's dimension that it is of, where it has a name."""
        ranks = distributed.get_process_group_ranks(group)
        said = group.group_desc
        if said.startswith(_FROM_A_NAMED_MESH) and not said.startswith((f"{_FROM_A_NAMED_MESH}dim_", "mesh_default")):
            return said.removeprefix(_FROM_A_NAMED_MESH)
        every = "all ranks" if len(ranks) == self.size else f"ranks {', '.join(map(str, ranks))}"
        return next((name for name in self.mesh if along(self.mesh, self.rank, name) == ranks), every)


_worlds: list[World] = []


def now() -> World | None:
    """The world that the program is in."""
    return _worlds[-1] if _worlds else None


@contextlib.contextmanager
def entered(config: Config, rank: int) -> Iterator[World]:
    """Inside, the process is that rank. Raises ValueError where it is one of several already."""
    size = config.world_size
    if distributed.is_initialized():
        raise ValueError("this process is in a process group already")
    world = World(rank, size, mesh_of(config.mesh))
    before = {name: os.environ.get(name) for name in _variables(world, config)}
    os.environ.update(_variables(world, config))
    _worlds.append(world)
    try:
        with torch_private.fake_ranks(rank, size), replaced(*_stand_ins(world)):
            yield world
    finally:
        _worlds.remove(world)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _variables(world: World, config: Config) -> dict[str, str]:
    """What ``torchrun`` sets."""
    here = min(config.ranks_per_host, world.size)
    return {
        "RANK": str(world.rank), "LOCAL_RANK": str(world.rank % here), "WORLD_SIZE": str(world.size), "LOCAL_WORLD_SIZE": str(here),
        "GROUP_RANK": str(world.rank // here), "MASTER_ADDR": "localhost", "MASTER_PORT": "0",
    }  # fmt: skip


def _stand_ins(world: World) -> Iterator[tuple[Any, str, Any]]:
    """The process is in its group already, and stays; no group of it is another backend's; devices are those that are here."""
    for owner in (distributed, distributed.distributed_c10d):
        for name in ("init_process_group", "destroy_process_group", "monitored_barrier", "broadcast_object_list"):
            yield owner, name, _nothing()
        yield owner, "new_group", _of_one_backend(distributed.new_group)
    mesh = distributed.device_mesh.DeviceMesh
    yield mesh, "__init__", _mesh_that_is_here(mesh.__init__, world)
    ddp = torch.nn.parallel.DistributedDataParallel
    yield ddp, "__init__", _without_devices(ddp.__init__, world)


def _nothing() -> Callable[..., None]:
    def nothing(*_: Any, **__: Any) -> None:
        pass

    return nothing


def _of_one_backend(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def new_group(ranks: Any = None, *_: Any, **options: Any) -> Any:
        return real(ranks, group_desc=options.get("group_desc"))

    return new_group


def _mesh_that_is_here(real: Callable[..., Any], world: World) -> Callable[..., Any]:
    asked = bool(world.mesh)

    @functools.wraps(real)
    def init(self: Any, device_type: str, *args: Any, **options: Any) -> None:
        absent = device_type == "cuda" and not torch.cuda.is_available()
        real(self, "cpu" if absent else device_type, *args, **options)
        names, sizes = self.mesh_dim_names, tuple(self.shape)
        if names and not asked and math.prod(sizes) == world.size and len(names) > len(world.mesh):
            world.mesh = dict(zip(names, sizes, strict=True))

    return init


def _without_devices(real: Callable[..., Any], world: World) -> Callable[..., Any]:
    @functools.wraps(real)
    def init(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **options: Any
    ) -> None:
        if all(p.device.type == "cpu" for p in module.parameters()):
            device_ids = output_device = None
        real(self, module, device_ids, output_device, *args, **options)
        world.replicated.append(self)

    return init


# --- ranks in a mesh --------------------------------------------------------------------------------------------------


def _steps(mesh: dict[str, int]) -> dict[str, int]:
    """How far neighbours along each dimension lie apart: the last one's are next to each other."""
    found, step = {}, 1
    for name in reversed(mesh):
        found[name] = step
        step *= mesh[name]
    return found


def along(mesh: dict[str, int], rank: int, name: str) -> list[int]:
    """The ranks that differ from ``rank`` in the dimension ``name`` alone, and it."""
    step, size = _steps(mesh)[name], mesh[name]
    first = rank - rank // step % size * step
    return [first + k * step for k in range(size)]


def telling(mesh: dict[str, int], size: int) -> Sequence[int]:
    """The ranks that can differ, those that must be looked at: the first and the last, and of each the next and the first along
    every dimension."""
    last = size - 1
    mesh = mesh or {"": size}
    found = [0, *(along(mesh, 0, name)[n > 1] for name, n in mesh.items()), last]
    found += [along(mesh, last, name)[0] for name in mesh]
    return sorted(set(found))
