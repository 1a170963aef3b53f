"""Programs checked for 64 ranks that are not there: what they communicate and hold, and where ranks differ."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import distributed

from fuselens.checking import check, on_ranks
from fuselens.config import Config
from fuselens.ranks import world
from fuselens.record.plain import from_plain, to_plain
from fuselens.record.report import FileReport, Report

Written = Callable[..., Path]

WIDTH, LENGTH, BATCH, WORDS, BLOCKS = 64, 16, 2, 128, 2
ACTIVATIONS = BATCH * LENGTH * WIDTH * 4  # bytes of what a block gives
MODEL = f"""
import os
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear({WIDTH}, {WIDTH}) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.attention = nn.LayerNorm({WIDTH}), nn.LayerNorm({WIDTH}), Attention()
        self.up, self.down = nn.Linear({WIDTH}, {4 * WIDTH}), nn.Linear({4 * WIDTH}, {WIDTH})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding({WORDS}, {WIDTH}), nn.Embedding({LENGTH}, {WIDTH})
        self.blocks = nn.ModuleList(Block() for _ in range({BLOCKS}))
        self.head = nn.Linear({WIDTH}, {WORDS}, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())

PLAN = {{
    **{{f"attention.{{name}}": ColwiseParallel() for name in "qkv"}}, "attention.proj": RowwiseParallel(),
    "up": ColwiseParallel(), "down": RowwiseParallel(),
}}
EXAMPLE = lambda: (torch.zeros({BATCH}, {LENGTH}, dtype=torch.long),) * 2
"""
MESH = 'mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("data", "tensor"))\ngpt = Gpt()\n'
STEP = "\n@fuselens.compile(example_inputs=EXAMPLE)\ndef step(x, y):\n    return gpt(x, y)\n"
OF_ATTENTION = 4 * (WIDTH * WIDTH + WIDTH)
OF_MLP = 2 * 4 * WIDTH * WIDTH + 5 * WIDTH
OF_BLOCK = 4 * WIDTH + OF_ATTENTION + OF_MLP
OF_ROOT = (2 * WORDS + LENGTH) * WIDTH
ALL = BLOCKS * OF_BLOCK + OF_ROOT  # parameters


@pytest.fixture(autouse=True)
def _only_those_that_can_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ranks, "_SECONDS", 0.0)


def checked(path: Path, **options: object) -> FileReport:
    return check.check_file(path, config=Config(explore=True, build=False, ranks=64, **options))  # type: ignore[arg-type]


def report_of(path: Path, **options: object) -> Report:
    report = checked(path, **options)
    assert not report.diagnostics, report.diagnostics
    return report.functions[0]


def counted(report: Report) -> Counter[tuple[str, str, str, int]]:
    """Collective, group, phase and the bytes that a rank sends → how often."""
    assert report.communication is not None
    found: Counter[tuple[str, str, str, int]] = Counter()
    for one in report.communication.collectives:
        assert one.sent == one.received
        found[one.name, one.group, one.phase, one.sent] += one.calls
    return found


def codes(report: Report) -> list[str]:
    return [d.code for d in report.diagnostics if d.code in ("FL931", "FL932", "FL933")]


# --- collectives ------------------------------------------------------------------------------------------------------


def test_distributed_data_parallel(written: Written) -> None:
    program = 'dist.init_process_group("nccl")\ngpt = DistributedDataParallel(Gpt(), device_ids=[int(os.environ["LOCAL_RANK"])])\n'
    report = report_of(written(MODEL + program + STEP))
    assert counted(report) == {("all_reduce", "all ranks", "backward", 2 * 63 * ALL * 4 // 64): 1}
    assert codes(report) == ["FL931", "FL933"]
    graphs = sum(max(step.bytes for step in graph.memory) for graph in report.captured)
    for held in report.communication.memory:  # type: ignore[union-attr]
        assert (held.parameters, held.gradients, held.buffers, held.whole) == (ALL * 4,) * 4
        assert held.graphs == graphs > 0 and held.peak == 3 * ALL * 4 + graphs


def test_tensor_parallel(written: Written) -> None:
    program = 'for block in gpt.blocks:\n    parallelize_module(block, mesh["tensor"], PLAN)\n'
    report = report_of(written(MODEL + MESH + program + STEP))
    each = 2 * 7 * ACTIVATIONS // 8
    assert counted(report) == {
        ("all_reduce", "tensor", "forward", each): 2 * BLOCKS,
        ("all_reduce", "tensor", "backward", each): 4 * BLOCKS,  # what q, k, v and up took
    }
    text = path_lines(report)
    assert text["self.proj(y.transpose(1, 2).flatten(-2))"] and text["self.down(F.gelu(self.up(self.second(x))))"]
    for held in report.communication.memory:  # type: ignore[union-attr]
        split = OF_BLOCK - 6 * WIDTH  # all but what follows the reductions and the norms
        assert held.parameters == (ALL - BLOCKS * split * 7 // 8) * 4
        assert (held.gradients, held.buffers, held.whole) == (held.parameters, 0, ALL * 4)


def path_lines(report: Report) -> dict[str, list[str]]:
    """Expressions of the forward → what is communicated there."""
    found: dict[str, list[str]] = {}
    for one in report.communication.collectives:  # type: ignore[union-attr]
        if one.span is not None and one.phase == "forward":
            line = Path(one.span.file).read_text().splitlines()[one.span.line - 1]
            found.setdefault(line[one.span.column : one.span.end_column], []).append(one.name)
    return found


def test_sharded_in_two_dimensions(written: Written) -> None:
    program = """for block in gpt.blocks:
    parallelize_module(block, mesh["tensor"], PLAN)
    fully_shard(block, mesh=mesh["data"])
fully_shard(gpt, mesh=mesh["data"])
"""
    report = report_of(written(MODEL + MESH + program + STEP))
    block = (OF_BLOCK - (OF_BLOCK - 6 * WIDTH) * 7 // 8) // 8 * 4  # bytes of one's shard: all its rows divide by 8
    root = OF_ROOT // 8 * 4
    each = 2 * 7 * ACTIVATIONS // 8
    assert counted(report) == {
        ("all_gather", "data", "forward", 7 * root): 1,
        ("all_gather", "data", "forward", 7 * block): BLOCKS,
        ("all_gather", "data", "backward", 7 * block): BLOCKS,
        ("reduce_scatter", "data", "backward", 7 * block): BLOCKS,
        ("reduce_scatter", "data", "backward", 7 * root): 1,
        ("all_reduce", "tensor", "forward", each): 2 * BLOCKS,
        ("all_reduce", "tensor", "backward", each): 4 * BLOCKS,
    }
    assert path_lines(report)["block(h)"] == ["all_gather"]
    found = report.communication
    assert found is not None and found.mesh == {"data": 8, "tensor": 8} and {0, 1, 7, 8, 56, 63} <= set(found.looked_at)
    for held in found.memory:
        assert held.parameters == held.gradients == BLOCKS * block + root
        assert held.buffers >= 8 * block + 7 * root  # what of the root is not its own, and a block
    across = [c for c in found.collectives if c.group == "data"]
    assert {c.hosts for c in across} == {8} and {c.hosts for c in found.collectives if c.group == "tensor"} == {1}
    assert from_plain(Report, to_plain(report)).communication == found


def test_a_group_without_a_name_has_that_of_the_mesh_that_was_asked_for(written: Written) -> None:
    text = """
    import torch.distributed as dist
    rank = dist.get_rank()
    mine = [dist.new_group([k * 8 + i for i in range(8)], backend="nccl") for k in range(8)][rank // 8]
    other = dist.new_group([0, 9, 63])

    @fuselens.compile(example_inputs=lambda: (torch.ones(4),))
    def step(x):
        dist.all_reduce(x, group=mine)
        if rank in (0, 9, 63):
            dist.broadcast(x, 0, group=other)
        return x
    """
    report = report_of(written(text), mesh="data=8,tensor=8")
    assert [(c.name, c.group, c.ranks) for c in report.communication.collectives] == [  # type: ignore[union-attr]
        ("all_reduce", "tensor", 8), ("broadcast", "ranks 0, 9, 63", 3)
    ]  # fmt: skip
    assert codes(report) == ["FL931", "FL931", "FL933"]  # ranks outside of the group have nothing to do there


# --- programs -----------------------------------------------------------------------------------------------------------

PROGRAM = """
def main():
    dist.init_process_group("nccl")
    local, rank, size = (int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
    assert (rank, size) == (dist.get_rank(), dist.get_world_size()) and local == rank % 8
    torch.cuda.set_device(local)
    gpt = fuselens.compile(Gpt().to(f"cuda:{local}"))
    gpt = DistributedDataParallel(gpt, device_ids=[local])
    x = torch.zeros(2, 16, dtype=torch.long, device=f"cuda:{local}")
    while True:
        gpt(x, x).backward()

if __name__ == "__main__":
    main()
"""


def test_a_program_that_is_started_by_torchrun(written: Written) -> None:
    """It compiles what it then replicates, names a GPU that is not here, and would run for ever."""
    report = report_of(written(MODEL + PROGRAM), target="cpu")
    assert counted(report) == {("all_reduce", "all ranks", "backward", 2 * 63 * ALL * 4 // 64): 1}


def test_nothing_is_left_of_the_world(written: Written) -> None:
    before = dict(os.environ)
    checked(written(MODEL + MESH + STEP))
    assert not distributed.is_initialized() and world.now() is None and dict(os.environ) == before
    with pytest.raises(ValueError, match="init_method|store|RANK"):
        distributed.init_process_group("gloo")  # torch's own again


def test_others_are_looked_at_while_that_is_quick(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ranks, "_SECONDS", 600.0)
    report = report_of(written(BEGIN + "    if rank == 37:\n        dist.barrier()\n    return y\n"))
    assert report.communication.looked_at == tuple(range(64))  # type: ignore[union-attr]
    (found,) = [d for d in report.diagnostics if d.code == "FL932"]
    assert "rank 0 would do nothing, and rank 37 barrier()" in found.message and found.span.line == 11  # type: ignore[union-attr]


def test_what_there_is_no_time_for_is_left_out(written: Written) -> None:
    report = check.check_file(written(BEGIN + "    return y\n"), config=Config(ranks=64), until=0.0).functions[0]
    assert report.communication.looked_at == (0,)  # type: ignore[union-attr]


def test_without_ranks_nothing_is_said(written: Written) -> None:
    (report,) = check.check_file(written(SAME), config=Config(explore=True, build=False)).functions
    assert report.communication is None and not codes(report)


def test_a_first_rank_that_calls_it_for_something_else(written: Written) -> None:
    """Rank 0 alone evaluates the model, without gradients: this is no difference of what the model communicates."""
    program = """
def main():
    dist.init_process_group("nccl")
    gpt = fuselens.compile(DistributedDataParallel(Gpt()))
    x = torch.zeros(2, 16, dtype=torch.long)
    if dist.get_rank() == 0:
        with torch.no_grad():
            gpt(x, x)
        return
    gpt(x, x)

main()
"""
    assert "FL932" not in codes(report_of(written(MODEL + program), target="cpu"))


def test_large_buckets_of_gradients(written: Written) -> None:
    program = "net = DistributedDataParallel(nn.Linear(2048, 2048, bias=False))\n"
    step = "\n@fuselens.compile(example_inputs=lambda: (torch.ones(2, 2048),))\ndef step(x):\n    return net(x)\n"
    report = report_of(written(MODEL + program + step))
    assert counted(report) == {("all_reduce", "all ranks", "backward", 2 * 63 * 2048 * 2048 * 4 // 64): 1}
    assert "raised" not in next(d.explanation for d in report.diagnostics if d.code == "FL933")


# --- ranks that differ ------------------------------------------------------------------------------------------------

SAME = """
import torch.distributed as dist

@fuselens.compile(example_inputs=lambda: (torch.ones(8, 4),))
def step(x):
    return x * 2
"""
BEGIN = SAME.replace("    return x * 2\n", "    rank, y = dist.get_rank(), x * 2\n")
PAIRS = SAME.replace(
    "@fuselens", "pair = [dist.new_group([k, k + 1]) for k in range(0, 64, 2)][dist.get_rank() // 2]\n@fuselens", 1
)
PAIRS = PAIRS.replace("    return x * 2\n", "    rank, y = dist.get_rank(), x * 2\n")


@pytest.mark.parametrize(
    ("body", "line", "first", "second"),
    [
        ("if rank == 0:\n    dist.all_reduce(y)", 11, "all_reduce(float32 [8, 4], sum) over all ranks", "nothing"),
        ("dist.all_reduce(y if rank else y[:2].clone())", 10, "all_reduce(float32 [2, 4], sum)", "all_reduce(float32 [8, 4], sum)"),
        ("dist.all_reduce(y, dist.ReduceOp.MAX if rank == 63 else dist.ReduceOp.SUM)", 10, "[8, 4], sum)", "[8, 4], max)"),
        ("dist.broadcast(y, rank)", 10, "broadcast(float32 [8, 4], 0)", "broadcast(float32 [8, 4], 1)"),
        ("dist.all_reduce(y)\nif rank == 1:\n    raise ValueError('odd')", 8, "nothing", "raise ValueError: odd"),
    ],
)  # fmt: skip
def test_ranks_that_differ(body: str, line: int, first: str, second: str, written: Written) -> None:
    report = report_of(written(BEGIN + "".join(f"    {row}\n" for row in body.splitlines()) + "    return y\n"))
    (found,) = [d for d in report.diagnostics if d.code == "FL932"]
    assert found.severity == "error" and found.span is not None and found.span.line == line
    mine, _, theirs = found.message.partition(", and rank ")
    assert "rank 0 would do " in mine and first in mine and second in theirs, found.message
    assert "of 64 ranks were looked at" in found.explanation


def test_groups_in_another_order(written: Written) -> None:
    body = "    for group in (pair, None) if rank % 2 else (None, pair):\n        dist.all_reduce(y, group=group)\n    return y\n"
    report = report_of(written(PAIRS + body))
    (found,) = [d for d in report.diagnostics if d.code == "FL932"]
    assert (
        "over all ranks, and rank 1 all_reduce(float32 [8, 4], sum) over ranks 0, 1, as collective 1" in found.message
    )


@pytest.mark.parametrize(
    "body",
    [
        "    dist.all_reduce(y)\n    return y + rank\n",
        "    rows = [1 + (rank + k) % 2 for k in range(64)]\n    x = torch.ones(sum(rows), 4)\n"
        "    dist.all_to_all_single(torch.empty_like(x), x, rows, rows)\n    return y\n",
        "    (dist.send if rank % 2 else dist.recv)(y, rank ^ 1)\n    return y\n",
    ],
)
def test_ranks_that_do_not(body: str, written: Written) -> None:
    report = report_of(written(BEGIN + body))
    assert "FL932" not in codes(report) and "FL931" in codes(report)


def test_modules_of_the_program_are_those_of_the_rank(written: Written) -> None:
    written("import torch.distributed as dist\nrank = dist.get_rank()\n", "of_a_rank.py", imports="")
    body = "    from of_a_rank import rank as mine\n    assert mine == rank\n    dist.all_reduce(y)\n    return y\n"
    report = report_of(written(BEGIN + body))
    assert codes(report) == ["FL931", "FL933"]


def test_large_models_take_no_memory(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    """4 GiB of parameters, of which a rank has 64 MiB."""
    body = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def main():
        mesh = init_device_mesh("cuda", (64,), mesh_dim_names=("tensor",))
        net = nn.Sequential(nn.Linear(16384, 32768, bias=False), nn.Linear(32768, 16384, bias=False))
        parallelize_module(net, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        step = fuselens.compile(net)
        with torch.no_grad():
            step(torch.ones(2, 16384, device="cuda"))

    main()
    """
    report = report_of(written(body), target="cpu")
    assert counted(report) == {("all_reduce", "tensor", "forward", 2 * 63 * 2 * 16384 * 4 // 64): 1}
    assert report.communication.memory[0].parameters == (4 << 30) // 64  # type: ignore[union-attr]
    assert not caplog.records, "torch complains of fake tensors that were made"
