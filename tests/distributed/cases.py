"""What each of two Gloo processes runs: every case, against eager in the same process. Writes what it found as JSON.

Called as ``python cases.py RANK PORT OUT``.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import fuselens

# --- functions of one tensor --------------------------------------------------------------------------------------------


def all_reduce(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y.sin()


def reductions(x: Tensor) -> Any:
    found = []
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        y = x + 1
        dist.all_reduce(y, op=op)
        found.append(y)
    return found


def of_an_argument(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x + dist.get_world_size()


def of_a_row(x: Tensor) -> Any:
    y = x * 1
    dist.all_reduce(y[1])
    return y


def asynchronous(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    work.wait()
    return y + z


def gathered(x: Tensor) -> Tensor:
    out = torch.empty(2 * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x * 2)
    return out.cos()


def gathered_list(x: Tensor) -> Tensor:
    outs = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(outs, x * 2)
    return torch.cat(outs)


def scattered(x: Tensor) -> Tensor:
    out = torch.empty(x.shape[0] // 2, *x.shape[1:])
    dist.reduce_scatter_tensor(out, x * 2)
    return out.sin()


def scattered_list(x: Tensor) -> Tensor:
    out = torch.empty(x.shape[0] // 2, *x.shape[1:])
    dist.reduce_scatter(out, list((x * 2).chunk(2)))
    return out.sin()


def broadcast(x: Tensor) -> Tensor:
    y = x * (dist.get_rank() + 1)
    dist.broadcast(y, 1)
    return y + 1


def exchanged(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x * 2)
    return out + 1


def exchanged_unevenly(x: Tensor) -> Tensor:
    rank = dist.get_rank()
    out = torch.empty(2 if rank == 0 else 6, x.shape[1])
    dist.all_to_all_single(out, x, [1, 1] if rank == 0 else [3, 3], [1, 3])
    return out * 2


def functional_reduce(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD).sin()


def functional_gather(x: Tensor) -> Tensor:
    return functional.all_gather_tensor(x * 2, 0, dist.group.WORLD).sin()


def functional_scatter(x: Tensor) -> Tensor:
    return functional.reduce_scatter_tensor(x * 2, "sum", 0, dist.group.WORLD).sin()


def operators_of_torch(x: Tensor) -> Tensor:
    operators, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    return operators.wait_tensor(operators.all_reduce(x * 2, "sum", name)) + 1


def alike(x: Tensor) -> Tensor:
    """Two that look the same are two, and so is one whose result nobody reads on one rank."""
    y = functional.all_reduce(x, "sum", dist.group.WORLD)
    z = functional.all_reduce(x, "sum", dist.group.WORLD)
    dist.all_reduce(x * 3)
    return y + z if dist.get_rank() else y * 2


def many(x: Tensor) -> Tensor:
    for k in range(5):
        y = x * k
        dist.all_reduce(y)
        x = x + y.tanh()
    return x


def meanwhile(x: Tensor) -> Any:
    """What is computed between the start and the wait is as large as what is communicated."""
    given = x @ x.T
    gathered = functional.all_gather_tensor(given, 0, dist.group.WORLD)
    reduced = functional.all_reduce(given * 2, "sum", dist.group.WORLD)
    y = x.sin() @ x.T
    for _ in range(3):
        y = (y @ (y + 1)).tanh()
    x.add_(1)
    return gathered + y.repeat(2, 1), reduced * y


def permuted(x: Tensor) -> Tensor:
    return functional.permute_tensor((x * 2).flatten(), [1, 0], dist.group.WORLD).view(x.shape) + 1


FUNCTIONS = [
    all_reduce, reductions, of_an_argument, of_a_row, asynchronous, gathered, gathered_list, scattered, scattered_list,
    broadcast, exchanged, exchanged_unevenly, functional_reduce, functional_gather, functional_scatter, operators_of_torch, alike,
    many, meanwhile, permuted,
]  # fmt: skip


# --- calls between two graphs -------------------------------------------------------------------------------------------


def sent(x: Tensor) -> Tensor:
    y, out = x * 2, torch.empty_like(x)
    other = 1 - dist.get_rank()
    for call in (dist.send, dist.recv) if other else (dist.recv, dist.send):
        call(y if call is dist.send else out, other)
    return out + 1


def sent_meanwhile(x: Tensor) -> Tensor:
    y, out = x * 2, torch.empty_like(x)
    other = 1 - dist.get_rank()
    works = [dist.isend(y, other), dist.irecv(out, other)]
    z = y.sin()
    for work in works:
        work.wait()
    return out + z


def sent_together(x: Tensor) -> Tensor:
    y, out = x * 2, torch.empty_like(x)
    other = 1 - dist.get_rank()
    calls = [dist.P2POp(dist.isend, y, other), dist.P2POp(dist.irecv, out, other)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return out + 1


def to_one(x: Tensor) -> Tensor:
    y, rank = x * 2, dist.get_rank()
    dist.barrier()
    dist.reduce(y, 0)
    parts = [torch.empty_like(x) for _ in range(2)] if rank == 0 else None
    dist.gather(x, parts, 0)
    out = torch.empty_like(x)
    dist.scatter(out, parts, 0)
    return out + y if rank == 0 else out


BETWEEN = [sent, sent_meanwhile, sent_together, to_one]


# --- functions with gradients -------------------------------------------------------------------------------------------


def through_functional(x: Tensor, w: Tensor) -> Tensor:
    y = functional.all_reduce(x @ w, "sum", dist.group.WORLD)
    z = functional.all_gather_tensor_autograd(y.sin(), 0, dist.group.WORLD)
    return functional.reduce_scatter_tensor_autograd(z * z, "sum", 0, dist.group.WORLD).sum()


def beside_a_plain_one(x: Tensor, w: Tensor) -> Tensor:
    """Autograd sees nothing of a plain collective."""
    y = x @ w
    dist.all_reduce(y)
    return (y.sin() * x).sum()


def of_a_ring(x: Tensor, w: Tensor) -> Tensor:
    """Attention to the keys and values of both ranks, which go around."""

    def attended(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        scores = x @ keys.transpose(-1, -2) * 0.5
        return scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)

    given = torch.stack([x @ w, x * 2])
    own, weight = attended(*given)
    there = functional.permute_tensor(given.flatten(), [1, 0], dist.group.WORLD).view(given.shape)
    others, other_weight = attended(*there)
    both = torch.logaddexp(weight, other_weight)
    return (own * (weight - both).exp() + others * (other_weight - both).exp()).square().sum()


def averaged(x: Tensor) -> Any:
    """What the tutorials do with gradients: one small collective after the other."""
    found = [x * k for k in range(1, 5)]
    for tensor in found:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
    return found


def of_three_kinds(x: Tensor) -> Any:
    group = dist.group.WORLD
    sums = [functional.all_reduce(x + k, "sum", group) for k in range(2)]
    gathered = [functional.all_gather_tensor(x[:, k] * 3, 0, group) for k in range(2)]
    scattered = [functional.reduce_scatter_tensor(x + k, "sum", 0, group) for k in range(3)]
    return sums, gathered, scattered, sums[0] + sums[1]


def that_need_each_other(x: Tensor) -> Any:
    """Two buckets: the third needs what the first gives. What reads a result early is computed late."""
    a = functional.all_reduce(x, "sum", dist.group.WORLD)
    early = a.sin()
    b = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    c = functional.all_reduce(early + b, "sum", dist.group.WORLD)
    d = functional.all_reduce(x.half(), "sum", dist.group.WORLD)
    return a, early, b, c, d


def beside_a_product(x: Tensor) -> Tensor:
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    other = (x @ x.t()).softmax(-1) @ x
    return total + other


IN_BUCKETS = [averaged, of_three_kinds, that_need_each_other]
GRADIENTS = [through_functional, beside_a_plain_one, of_a_ring]


# --- models -------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.gelu(self.a(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(width) for _ in range(depth)), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def trained(call: Callable[[Tensor], Tensor], parameters: Any, seed: int, steps: int = 4) -> list[float]:
    optimizer, losses = torch.optim.AdamW(list(parameters), lr=0.01), []
    for step in range(steps):
        torch.manual_seed(100 * step + seed)
        loss = call(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def in_ddp(model: nn.Module, **how: Any) -> nn.Module:
    return DistributedDataParallel(model, **how)


def sharded(model: Any, mesh: Any) -> Any:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def parallel(model: Any, mesh: Any) -> Any:
    for block in model.blocks:
        parallelize_module(block, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    return model


def by_block(model: Any) -> Any:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fuselens.compile(block)
    return model


def same(a: Any, b: Any) -> bool:
    a = a.full_tensor() if hasattr(a, "full_tensor") else a
    b = b.full_tensor() if hasattr(b, "full_tensor") else b
    if isinstance(a, Tensor):
        return torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    if isinstance(a, (list, tuple)):
        return all(map(same, a, b))
    return abs(a - b) < 1e-4


def report(compiled: Any) -> dict[str, Any]:
    found = compiled.__fuselens__.recorder.report
    return {
        "graphs": len(found.graphs),
        "fallbacks": sum(g.fallback for g in found.graphs if g.part_of is not None or not _in_parts(found, g)),
        "breaks": [f"{b.code}: {b.message}" for b in found.breaks],
        "why": [f"{d.code}: {d.message}" for d in found.diagnostics],
        "parts": sum(g.part_of is not None for g in found.graphs),
    }


def _in_parts(found: Any, graph: Any) -> bool:
    return any(g.part_of == graph.id for g in found.graphs)


def cases(rank: int) -> dict[str, Callable[[], dict[str, Any]]]:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    base = Net()

    def of_function(fn: Callable[[Tensor], Any], **options: Any) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            given = torch.arange(8.0).view(4, 2) / 8 + rank
            mine, eagers = given.clone(), given.clone()
            compiled = fuselens.compile(fn, options=options)
            agree = [same(fn(eagers), compiled(mine)) and same(eagers, mine) for _ in range(3)]
            found = compiled.__fuselens__.recorder.report
            told = [d.subject for g in found.graphs for d in g.decisions if d.code == "FL419"]
            return {"agrees": all(agree), **report(compiled), **({"buckets": told} if options else {})}

        return run

    def of_gradients(fn: Callable[..., Tensor]) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            torch.manual_seed(rank)
            given = torch.randn(4, 4), torch.randn(4, 4)

            def gradients(call: Callable[..., Tensor]) -> list[Any]:
                leaves = [t.clone().requires_grad_() for t in given]
                value = call(*leaves)
                return [value.detach(), *torch.autograd.grad(value, leaves)]

            compiled = fuselens.compile(fn)
            return {"agrees": same(gradients(fn), gradients(compiled)), **report(compiled)}

        return run

    def of_model(
        prepare: Callable[[Any], Any], compile: Callable[[Any], Any], seed: int
    ) -> Callable[[], dict[str, Any]]:  # noqa: A002
        def run() -> dict[str, Any]:
            fuselens.reset()
            eager, model = prepare(copy.deepcopy(base)), compile(copy.deepcopy(base))
            losses = [trained(m, m.parameters(), seed) for m in (eager, model)]
            compiled = [m for m in model.modules() if hasattr(m, "__fuselens__")] or [model]
            return {"agrees": same(*losses), "losses": losses, **report(compiled[0])}

        return run

    def distributed_inputs() -> dict[str, Any]:
        def fn(x: Tensor, y: Tensor) -> Tensor:
            return (x @ y).relu()

        torch.manual_seed(0)
        x = distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)])
        y = distribute_tensor(torch.randn(4, 4), mesh, [Replicate()])
        compiled = fuselens.compile(fn)
        return {"agrees": same(fn(x, y), compiled(x, y)), **report(compiled)}

    def of_pipeline(schedule: Any) -> Callable[[], dict[str, Any]]:
        """Each rank has a stage, and micro-batches go through both."""

        def run() -> dict[str, Any]:
            fuselens.reset()
            left = []
            for compiles in (False, True):
                torch.manual_seed(rank)
                stage = fuselens.compile(Block(16)) if compiles else Block(16)
                steps = schedule(
                    PipelineStage(stage, rank, 2, torch.device("cpu")), n_microbatches=4, loss_fn=F.mse_loss
                )
                optimizer, losses = torch.optim.SGD(stage.parameters(), lr=0.1), []
                for step in range(3):
                    torch.manual_seed(step)
                    given, target = torch.randn(8, 16), torch.randn(8, 16)
                    optimizer.zero_grad()
                    steps.step(given) if rank == 0 else steps.step(target=target, losses=losses)
                    optimizer.step()
                left.append([[p.detach() for p in stage.parameters()], losses])
            return {"agrees": same(*left), **report(stage)}

        return run

    def measured() -> dict[str, Any]:
        given = torch.arange(8.0).view(4, 2) / 8 + rank
        compiled = fuselens.compile(beside_a_product, options={"measure_overlap": True})
        agree = [same(beside_a_product(given), compiled(given)) for _ in range(6)]
        (graph,) = compiled.__fuselens__.recorder.report.graphs
        (told,) = [d for d in graph.decisions if d.code == "FL418"]
        return {"agrees": all(agree), "told": told.reason, **told.data}

    small = {"bucket_cap_mb": 0.004}
    return {
        **{fn.__name__: of_function(fn) for fn in FUNCTIONS},
        **{fn.__name__: of_function(fn) for fn in BETWEEN},
        **{fn.__name__: of_function(fn, bucket_cap_mb=1.0) for fn in IN_BUCKETS},
        **{fn.__name__: of_gradients(fn) for fn in GRADIENTS},
        "measured": measured,
        "pipeline": of_pipeline(ScheduleGPipe),
        "pipeline_in_turn": of_pipeline(Schedule1F1B),
        "ddp_of_compiled": of_model(in_ddp, lambda m: in_ddp(fuselens.compile(m)), rank),
        "ddp_of_compiled_in_buckets": of_model(in_ddp, lambda m: in_ddp(fuselens.compile(m), **small), rank),
        "compiled_ddp": of_model(in_ddp, lambda m: fuselens.compile(in_ddp(m)), rank),
        "compiled_ddp_in_buckets": of_model(in_ddp, lambda m: fuselens.compile(in_ddp(m, **small)), rank),
        "fsdp": of_model(lambda m: sharded(m, mesh), lambda m: fuselens.compile(sharded(m, mesh)), rank),
        "fsdp_by_block": of_model(lambda m: sharded(m, mesh), lambda m: sharded(by_block(m), mesh), rank),
        "tensor_parallel": of_model(lambda m: parallel(m, mesh), lambda m: fuselens.compile(parallel(m, mesh)), 0),
        "distributed_inputs": distributed_inputs,
    }  # fmt: skip


def main() -> None:
    rank, port, out = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {}
    for name, run in cases(rank).items():
        try:
            found[name] = run()
        except Exception:  # noqa: BLE001
            found[name] = {"raised": traceback.format_exc()}
    out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
