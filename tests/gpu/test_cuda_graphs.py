"""``mode="reduce-overhead"`` on a real GPU: recorded calls give what eager gives, for as long as results live."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens.runtime import cuda_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every recording made, and ``replays`` of them."""
    made: list[Any] = []
    original = cuda_graphs.capture

    def capture(call: Any, inputs: Any) -> Any:
        found = original(call, inputs)
        made.append(found)
        return found

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    return made


def graphs(fn: Any, **options: Any) -> Any:
    return fuselens.compile(fn, mode="reduce-overhead", **options)


def codes(compiled: Any) -> list[str]:
    return [d.code for d in compiled.__fuselens__.recorder.report.diagnostics if d.code.startswith("FL5")]


def test_calls_are_recorded_once(recordings: list[Any]) -> None:
    weight = torch.randn(64, 64, device="cuda")
    fn = lambda x: torch.relu(x @ weight).softmax(-1)  # noqa: E731
    compiled = graphs(fn)
    for k in range(8):
        x = torch.randn(4, 64, device="cuda") + k
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(recordings) == 1
    assert codes(compiled) == []


def test_results_stay_what_they_are(recordings: list[Any]) -> None:
    fn = lambda x: x.flip(0) * 2 + 1  # noqa: E731
    compiled = graphs(fn)
    inputs = [torch.randn(1 << 18, device="cuda") for _ in range(12)]
    results = [compiled(x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, fn(x))
    assert 1 < len(recordings) <= cuda_graphs.MOST_RECORDINGS
    views = results[5].view(2, -1)[1]
    del results
    for x in inputs:
        compiled(x)
    torch.testing.assert_close(views, fn(inputs[5])[1 << 17 :])


def test_training(recordings: list[Any]) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32)) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(32, 10)).cuda()
    other = copy.deepcopy(model)

    def step(m: Any, run: Any, optimiser: Any, x: Tensor, y: Tensor) -> float:
        optimiser.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimiser.step()
        return loss.item()

    compiled = graphs(other)
    pairs = [(model, model), (other, compiled)]
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m, _ in pairs]
    for k in range(12):
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(k)).cuda()
        y = torch.arange(16, device="cuda") % 10
        eager, ours = (step(m, run, o, x, y) for (m, run), o in zip(pairs, optimisers, strict=True))
        assert abs(eager - ours) < 1e-4
    assert 2 <= len(recordings) <= 4  # forward and backward


def test_buffers_that_are_written(recordings: list[Any]) -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(128, 64))

        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            self.kept.index_copy_(0, at, x)
            return self.kept.sum(0) * 2

    eager, ours = Cache().cuda(), Cache().cuda()
    compiled = graphs(ours)
    for k in range(10):
        x, at = torch.randn(1, 64, device="cuda"), torch.tensor([k], device="cuda")
        torch.testing.assert_close(compiled(x, at), eager(x, at))
        torch.testing.assert_close(ours.kept, eager.kept)
    assert len(recordings) == 1


def test_new_parameters_are_seen(recordings: list[Any]) -> None:
    model = nn.Linear(64, 64).cuda()
    compiled = graphs(model)
    x = torch.randn(8, 64, device="cuda")
    with torch.no_grad():
        for _ in range(5):
            compiled(x)
        model.weight.mul_(2)
        torch.testing.assert_close(compiled(x), F.linear(x, model.weight, model.bias))
        model.weight = nn.Parameter(torch.randn(64, 64, device="cuda"))
        for _ in range(5):
            torch.testing.assert_close(compiled(x), F.linear(x, model.weight, model.bias))


def test_sizes_that_vary(recordings: list[Any]) -> None:
    fn = lambda x: torch.relu(x).sum(-1)  # noqa: E731
    compiled = graphs(fn, dynamic=True)
    for n in (5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7):
        x = torch.randn(n, 64, device="cuda")
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(recordings) == 3


def test_random_numbers_differ_between_replays(recordings: list[Any]) -> None:
    compiled = graphs(lambda x: F.dropout(x, 0.5))
    x = torch.ones(4096, device="cuda")
    torch.manual_seed(0)
    first = [compiled(x) for _ in range(8)]
    assert recordings
    assert all(abs((r == 0).float().mean().item() - 0.5) < 0.05 for r in first)
    assert len({tuple((r == 0)[:64].tolist()) for r in first}) == len(first)


def test_what_the_cpu_reads_is_not_recorded(recordings: list[Any]) -> None:
    compiled = graphs(lambda x, scale: x * scale)
    for k in range(6):
        x, scale = torch.ones(16, device="cuda"), torch.tensor(float(k))
        torch.testing.assert_close(compiled(x, scale), x * scale)
    assert recordings == []


def test_large_inputs_that_move(recordings: list[Any]) -> None:
    fn = lambda x: x * 2 + 1  # noqa: E731
    compiled = graphs(fn)
    kept = [torch.randn(1 << 20, device="cuda") for _ in range(30)]
    for x in kept:
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(recordings) == cuda_graphs.MOST_RECORDINGS
    assert codes(compiled) == ["FL501"]


def test_inside_a_recording_of_the_program(recordings: list[Any]) -> None:
    fn = lambda x: x.sin() * 2  # noqa: E731
    compiled = graphs(fn)
    x = torch.randn(64, device="cuda")
    for _ in range(4):
        compiled(x)
    graph, made = torch.cuda.CUDAGraph(), len(recordings)
    with torch.cuda.graph(graph):
        result = compiled(x)
    x.add_(1)
    graph.replay()
    torch.testing.assert_close(result, fn(x))
    assert len(recordings) == made


def test_two_streams(recordings: list[Any]) -> None:
    fn = lambda x: x.cos() + 1  # noqa: E731
    compiled = graphs(fn)
    x = torch.randn(64, device="cuda")
    for _ in range(5):
        compiled(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        torch.testing.assert_close(compiled(x), fn(x))
    torch.cuda.synchronize()
