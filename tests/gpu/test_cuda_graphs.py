"""``mode="reduce-overhead"`` on a real GPU: recorded calls give what eager gives, for as long as results live."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens.runtime.gpu import cuda_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = False
    monkeypatch.setattr(cuda_graphs, "ENOUGH", float("inf"))  # what is recorded stays recorded, however the times are


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every recording made."""
    made: list[Any] = []
    original = cuda_graphs.capture

    def capture(*given: Any) -> Any:
        found = original(*given)
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
    inputs = [torch.randn(1 << 19, device="cuda") for _ in range(12)]
    results = [compiled(x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, fn(x))
    assert 1 < len(recordings) <= cuda_graphs.MOST_RECORDINGS
    views = results[5].view(2, -1)[1]
    del results
    for x in inputs:
        compiled(x)
    torch.testing.assert_close(views, fn(inputs[5])[1 << 18 :])


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
    for n in (5, 6, 7) * 7:
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


def test_large_inputs_that_move(recordings: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "COPY_SHARE", 0.0)
    fn = lambda x: x * 2 + 1  # noqa: E731
    compiled = graphs(fn)
    kept = [torch.randn(1 << 23, device="cuda") for _ in range(30)]
    for x in kept:
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(recordings) == cuda_graphs.MOST_RECORDINGS
    assert codes(compiled) == ["FL501"]


def test_inside_a_recording_of_the_program(recordings: list[Any]) -> None:
    fn = lambda x: x.sin() * 2  # noqa: E731
    compiled = graphs(fn)
    x = torch.randn(64, device="cuda")
    for _ in range(6):
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
    x, side = torch.randn(64, device="cuda"), torch.cuda.Stream()
    for _ in range(14):
        torch.testing.assert_close(compiled(x), fn(x))
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            torch.testing.assert_close(compiled(x), fn(x))
            torch.cuda.default_stream().wait_stream(side)
    assert len(recordings) == 2, "they do not share memory"


def test_recorded_calls_that_are_slower_are_not_used(recordings: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "ENOUGH", 0.0)
    compiled, before = graphs(lambda x: x.sin() + 1), cuda_graphs.held_bytes()
    for k in range(20):
        x = torch.full((64,), float(k), device="cuda")
        torch.testing.assert_close(compiled(x), x.sin() + 1)
        torch.cuda.synchronize()
    assert len(recordings) == 1
    assert codes(compiled) == ["FL503"]
    assert cuda_graphs.held_bytes() <= before


def test_written_inputs_that_move(recordings: list[Any]) -> None:
    def fn(x: Tensor, state: Tensor) -> Tensor:
        state.add_(x)
        return state * 2

    compiled, kept = graphs(fn), []
    for k in range(12):
        x, ours = torch.full((64,), float(k), device="cuda"), torch.ones(64, device="cuda") * k
        eager = ours.clone()
        kept += [x, ours]
        torch.testing.assert_close(compiled(x, ours), fn(x, eager))
        torch.testing.assert_close(ours, eager)
        assert ours._version == eager._version
    assert len(recordings) == 1


@pytest.mark.parametrize("shape", [lambda x: x.expand(8, 64), lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[:, :0]])
def test_inputs_in_any_layout_that_move(shape: Any, recordings: list[Any]) -> None:
    fn = lambda x: x * 2 + 1  # noqa: E731
    compiled, kept = graphs(fn), []
    for _ in range(10):
        kept.append(torch.randn(1, 64, device="cuda") if len(kept) % 2 else torch.randn(1, 64, device="cuda"))
        x = shape(kept[-1])
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(recordings) == 1


def test_marked_addresses_are_not_copied(recordings: list[Any]) -> None:
    fn = lambda x: x * 2 + 1  # noqa: E731
    compiled = graphs(fn)
    kept = [torch.randn(64, device="cuda") for _ in range(2)]
    for x in kept:
        fuselens.mark_static_address(x)
    for k in range(20):
        x = kept[k % 2]
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(recordings) == 2, "one for each place"


def test_random_numbers_are_those_of_the_default_mode(recordings: list[Any]) -> None:
    fn = lambda x: F.dropout(x, 0.5) + torch.rand_like(x)  # noqa: E731
    x = torch.ones(4096, device="cuda")

    def numbers(compiled: Any) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(7)
        return [compiled(x).clone() for _ in range(9)], torch.cuda.get_rng_state()

    (plain, after), (recorded, afterwards) = numbers(fuselens.compile(fn)), numbers(graphs(fn))
    assert len(recordings) == 1
    for a, b in zip(plain, recorded, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert torch.equal(after, afterwards)


def test_inference_mode_and_not(recordings: list[Any]) -> None:
    fn = lambda x: torch.relu(x) * 3  # noqa: E731
    compiled = graphs(fn)
    kept = [torch.randn(64, device="cuda") for _ in range(2)]
    for k in range(24):
        x = kept[k % 2]  # inputs that move would be recorded twice
        with torch.inference_mode(k % 2 == 1):
            ours, eager = compiled(x), fn(x)
            assert ours.is_inference() == eager.is_inference()
            torch.testing.assert_close(ours, eager)
        del ours
    assert len(recordings) == 2


def test_operators_that_wait_are_not_recorded(recordings: list[Any]) -> None:
    fn = lambda x: torch.linalg.inv(F.dropout(x, 0.0) @ x.t() + torch.eye(8, device="cuda") * 20)  # noqa: E731
    compiled = graphs(fn)
    for _ in range(9):
        x = torch.randn(8, 8, device="cuda")
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
    assert codes(compiled) == ["FL501"]
    torch.rand(4, device="cuda")  # the generator is not left recording


def test_a_recording_that_fails(recordings: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    original = cuda_graphs.capture

    def fails(call: Any, inputs: Any, *where: Any) -> Any:
        def then_fails(given: Any) -> Any:
            call(given)
            torch.cuda.synchronize()

        return original(then_fails, inputs, *where)

    compiled = graphs(lambda x: F.dropout(x, 0.5) @ x)
    x = torch.ones(256, 256, device="cuda")
    with monkeypatch.context() as m:
        m.setattr(cuda_graphs, "capture", fails)
        for _ in range(8):
            assert compiled(x).shape == x.shape
    assert codes(compiled) == ["FL501"]
    torch.rand(4, device="cuda")
    other = graphs(lambda x: F.dropout(x, 0.5) @ x)
    for _ in range(8):
        other(x)
    assert codes(other) == []


def test_recorded_optimiser_scaler_and_clipping(recordings: list[Any]) -> None:
    def run(wrap: Any, device_steps: int = 14) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.BatchNorm1d(64), nn.Linear(64, 10)).cuda()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True, foreach=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        compiled, step = wrap(model), wrap(optimiser.step)
        for k in range(device_steps):
            generator = torch.Generator().manual_seed(k)
            x, y = (
                torch.randn(16, 32, generator=generator).cuda(),
                torch.randint(0, 10, (16,), generator=generator).cuda(),
            )
            optimiser.zero_grad(set_to_none=k % 3 != 0)
            scaler.scale(F.cross_entropy(compiled(x), y)).backward()
            scaler.unscale_(optimiser)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            step()
            scaler.update()
        return [t.detach().clone() for t in model.state_dict().values()]

    for ours, eager in zip(run(graphs), run(lambda f: f), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-4)
    assert recordings


def test_compiled_functions_that_call_each_other(recordings: list[Any]) -> None:
    inner = graphs(lambda x: x.sin() + 1)
    outer = graphs(lambda x: inner(x) * inner(x * 2))
    for _ in range(9):
        x = torch.randn(64, device="cuda")
        torch.testing.assert_close(outer(x), (x.sin() + 1) * ((x * 2).sin() + 1))
        torch.testing.assert_close(inner(x), x.sin() + 1)
    assert len(recordings) == 2
