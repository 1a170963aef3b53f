"""The card is measured, kernels and operators are timed there, and steps are looked at without its memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fuselens
from fuselens import api
from fuselens.checking import check
from fuselens.config import Config, from_environment
from fuselens.limits import measuring
from fuselens.record.limits import distance

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def _steps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.tanh(x @ w) + 1
    return x


def test_kernels_and_operators_are_timed() -> None:
    given = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    result = api.compare(_steps, given, {}, config=from_environment(), function="steps")
    of_calls = [k for k in result.kernels if k.phase == "forward" and not k.trains]
    assert [k.library for k in of_calls] == [True, False] * 3
    assert all(k.seconds for k in result.kernels)
    assert sum(k.seconds or 0 for k in of_calls) < (result.compiled_seconds or 0)


def test_the_card_is_measured(tmp_path: Path) -> None:
    found = measuring.machine("cuda", Config(cache_dir=tmp_path))
    assert found.name == torch.cuda.get_device_name()
    for curve in (found.reads, found.copies, found.writes):
        assert curve[-1][1] > 20 * curve[0][1]  # of 1 GiB, and of 64 KiB
    assert found.operations["product bfloat16"] > found.operations["product float32"] > found.operations["plain"]
    x = torch.randn(1 << 15, 1 << 13, device="cuda")
    result = api.compare(lambda x: x * 2, (x,), {}, config=from_environment(), function="doubled", gradients=False)
    told = measuring.with_limits(result, found)
    whole = distance(told)
    assert whole is not None and whole.bound == "traffic" and whole.share > 0.5


def test_a_step_takes_no_memory_of_the_card(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, fuselens\n"
        "from torch import nn\n"
        "net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 8)).cuda()\n"
        'model = fuselens.compile(net, example_inputs=lambda: (torch.randn(4096, 256, device="cuda"),))\n'
    )
    config = from_environment(explore=True, build=False, step_memory=True, step_optimizer="adamw")
    (report,) = check.check_file(path, config=config).functions
    assert report.device == "cuda"
    assert report.step is not None and report.step.target.startswith("cuda:sm_")
    assert set(report.step.phases) == {"forward", "backward", "optimizer"}


def test_sparse_gradients() -> None:
    table = torch.nn.Embedding(64, 16, sparse=True, device="cuda")
    indices = torch.tensor([[1, 2, 1], [5, 1, 0]], device="cuda")

    def looked_up(indices: torch.Tensor) -> torch.Tensor:
        return table(indices).sin()

    found = []
    for run in (looked_up, fuselens.compile(looked_up)):
        (gradient,) = torch.autograd.grad(run(indices).sum(), table.weight)
        assert gradient.is_sparse
        found.append(gradient.coalesce())
    torch.testing.assert_close(found[1]._indices(), found[0]._indices())
    torch.testing.assert_close(found[1]._values(), found[0]._values())
