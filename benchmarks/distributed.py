"""Training a small GPT-2 on two ranks, compiled and not, beside the peer.

    python -m benchmarks.distributed                 two Gloo processes of one thread each
    python -m benchmarks.distributed --device cuda   two GPUs, NCCL

Ways: ``ddp`` (the model in DistributedDataParallel, the whole compiled), ``fsdp`` (blocks compiled, then ``fully_shard``), ``tensor``
(DTensors by columns and rows, the whole compiled), ``averaged`` (a compiled model, and a compiled loop that averages its gradients
one by one; ours with ``bucket_cap_mb``). Each system trains in processes of its own, one after the other, ``--rounds``
times. The losses of all steps are compared with those of one eager process that has the whole batch. ``overlap`` is what DDP
itself says of its last steps: the part of the communication during which the backward computed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .harness import ROOT

WAYS, SYSTEMS = ("ddp", "fsdp", "tensor", "averaged"), ("eager", "peer", "own")
LAYERS, HEADS, WIDTH, VOCABULARY, LENGTH, BATCH = 4, 4, 256, 4096, 64, 4
WARM = 15  # steps that are not timed


def model() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            y = self.before(x)
            q, k, v = (
                part(y).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
            return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, words: Any) -> Any:
            x = self.tokens(words[:, :-1]) + self.places.weight
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.last(x))
            return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())

    torch.manual_seed(0)
    return GPT2()


def averaged(gradients: list[Any]) -> None:
    import torch.distributed as dist

    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def train(way: str, system: str, rank: int, ranks: int, steps: int, device: str) -> dict[str, Any]:
    """In one of the processes. ``ranks`` is 1 for the reference."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    place = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)
    compile_one: Any = {"eager": lambda m, **_: m, "peer": torch.compile, "own": None}[system]
    if compile_one is None:
        import fuselens

        compile_one = fuselens.compile
    net: Any = model().to(place)
    wrapped, average = None, None
    if ranks == 1:
        call = net
    elif way == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=4)
        call = compile_one(wrapped)
    elif way == "fsdp":
        mesh = init_device_mesh(device, (ranks,))
        for i, block in enumerate(net.blocks):
            net.blocks[i] = compile_one(block)
            fully_shard(net.blocks[i], mesh=mesh)
        call = fully_shard(net, mesh=mesh)
    elif way == "averaged":
        options = {"options": {"bucket_cap_mb": 25}} if system == "own" else {}
        call, average = compile_one(net), compile_one(averaged, **options)
    else:
        plan: Any = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        for block in net.blocks:
            parallelize_module(
                block, init_device_mesh(device, (ranks,)), plan | {"out": RowwiseParallel(), "down": RowwiseParallel()}
            )
        call = compile_one(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    losses, seconds = [], []
    for step in range(steps):
        words = torch.randint(0, VOCABULARY, (2 * BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
        mine = (words if way == "tensor" or ranks == 1 else words[rank * BATCH : (rank + 1) * BATCH]).to(place)
        start = time.perf_counter()
        loss = call(mine)
        optimizer.zero_grad()
        loss.backward()
        if average is not None:
            average([p.grad for p in net.parameters()])
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        whole = loss.detach().clone()
        if ranks > 1 and way != "tensor":
            dist.all_reduce(whole)
            whole /= ranks
        losses.append(float(whole))
    overlap = None
    if wrapped is not None:
        told = wrapped._get_ddp_logging_data()
        comm = told.get("avg_backward_comm_time", 0)
        overlap = told.get("avg_backward_compute_comm_overlap_time", 0) / comm if comm else None
    return {"losses": losses, "first": seconds[0], "step": statistics.median(seconds[WARM:]), "overlap": overlap}


def process(given: dict[str, Any]) -> None:
    import torch.distributed as dist

    if given["ranks"] > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(given["port"]))
        dist.init_process_group(
            "nccl" if given["device"] == "cuda" else "gloo", rank=given["rank"], world_size=given["ranks"]
        )
    out = given.pop("out")
    given.pop("port")
    Path(out).write_text(json.dumps(train(**given)))
    if dist.is_initialized():
        dist.destroy_process_group()


def run(way: str, system: str, ranks: int, steps: int, device: str, place: Path) -> dict[str, Any]:
    """What the first of the ranks measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {"way": way, "system": system, "ranks": ranks, "steps": steps, "device": device, "port": port}
    started = []
    for rank in range(ranks):
        told = json.dumps(given | {"rank": rank, "out": str(place / f"{rank}.json")})
        environment = os.environ | {"OMP_NUM_THREADS": "1"} if device == "cpu" else dict(os.environ)
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.distributed", "--process", told]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment))
    if any(found.wait(900) for found in started):
        raise SystemExit(f"{way}, {system}: a rank failed")
    return json.loads((place / "0.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--process", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        process(json.loads(given.process))
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        whole = run("one", "eager", 1, given.steps, given.device, place)
        for way in given.ways.split(","):
            for number in range(given.rounds):
                for system in given.systems.split(","):
                    one = run(way, system, 2, given.steps, given.device, place)
                    one["error"] = max(
                        abs(a - b) / abs(b) for a, b in zip(one.pop("losses"), whole["losses"], strict=True)
                    )
                    found.setdefault(f"{way} {system}", []).append(one)
                    print(f"{way} {system} {number}: {one}", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(found))
    print(
        f"{'way':8} {'system':7} {'step ms':>8} {'of peer':>8} {'first s':>8} {'overlap':>8} {'largest difference of a loss':>30}"
    )
    for key, rows in found.items():
        way, system = key.split()
        step = statistics.median(row["step"] for row in rows)
        peer = [row["step"] for row in found.get(f"{way} peer", [])]
        ratio = f"{step / statistics.median(peer):.2f}" if peer else ""
        overlap = f"{rows[-1]['overlap']:.0%}" if rows[-1]["overlap"] is not None else ""
        first = statistics.median(row["first"] for row in rows)
        worst = max(row["error"] for row in rows)
        print(f"{way:8} {system:7} {1000 * step:8.1f} {ratio:>8} {first:8.2f} {overlap:>8} {worst:30.1e}")


if __name__ == "__main__":
    main()
