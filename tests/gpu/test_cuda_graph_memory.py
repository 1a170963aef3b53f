"""Memory that recordings share on a real GPU: whatever is held stays what it is, in whichever order a program runs."""

from __future__ import annotations

import copy
import gc
import random
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens.runtime.gpu import cuda_graphs, recording_policy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    gc.collect()
    fuselens.cudagraph_mark_step_begin()
    torch.backends.cuda.matmul.allow_tf32 = False
    monkeypatch.setattr(cuda_graphs, "ENOUGH", float("inf"))


def graphs(fn: Any, **options: Any) -> Any:
    return fuselens.compile(fn, mode="reduce-overhead", **options)


def codes(compiled: Any) -> list[str]:
    return [d.code for d in compiled.__fuselens__.recorder.report.diagnostics if d.code.startswith("FL5")]


def pools() -> list[Any]:
    return [p for g in cuda_graphs._groups.values() for p in g.pools]


class Count:
    """Replays, counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replays = self.recordings = 0
        run, capture = cuda_graphs._Recording.run, cuda_graphs.capture

        def counted(recording: Any, inputs: Any) -> Any:
            self.replays += 1
            return run(recording, inputs)

        def recorded(*given: Any) -> Any:
            self.recordings += 1
            return capture(*given)

        monkeypatch.setattr(cuda_graphs._Recording, "run", counted)
        monkeypatch.setattr(cuda_graphs, "capture", recorded)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    return Count(monkeypatch)


def one(x: Tensor) -> Tensor:
    return torch.relu(x @ x.t()).sum(1, keepdim=True) * x


def two(x: Tensor) -> Tensor:
    return (x.softmax(-1) @ x.t()).cumsum(0) @ x


def three(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ x.t()
    return y.sin(), (y @ x).cos()


@pytest.mark.parametrize("seed", range(6))
def test_graphs_in_any_order_with_results_held_for_any_time(seed: int, count: Count) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    functions = [one, two, three]
    compiled = [graphs(f, dynamic=True) for f in functions]
    held: list[tuple[Tensor, Tensor]] = []
    xs = [torch.randn(rng.choice((200, 300, 700)), 320, device="cuda") for _ in range(6)]
    for step in range(220):
        k = rng.randrange(3)
        x = rng.choice(xs) if rng.random() < 0.8 or not held else held[-1][0]
        if x.shape[1] != 320:
            continue
        x = x.clamp(-3, 3)
        ours, eager = compiled[k](x), functions[k](x.clone())
        pairs = zip((ours,) if k < 2 else ours, (eager,) if k < 2 else eager, strict=True)
        held += [(a, b) for a, b in pairs if rng.random() < 0.6]
        while len(held) > (rng.choice((0, 2, 4)) if step % 50 < 40 else 9):
            a, b = held.pop(rng.randrange(len(held)))
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)
        del ours, x, pairs
    for a, b in held:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)
    assert count.replays > 60


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(256, 512), nn.LayerNorm(512), nn.Linear(512, 256)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.norm(self.first(x)))
        fuselens.graph_break()
        return self.second(h).square().mean()


def pair() -> tuple[nn.Module, nn.Module, Any]:
    torch.manual_seed(0)
    eager = Model().cuda()
    ours = copy.deepcopy(eager)
    return eager, ours, graphs(ours)


def same_gradients(eager: nn.Module, ours: nn.Module) -> None:
    for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


def batch(k: int, n: int = 128) -> Tensor:
    return torch.randn(n, 256, generator=torch.Generator().manual_seed(k)).cuda()


def warm(eager: nn.Module, ours: nn.Module, compiled: Any) -> None:
    for k in range(8):
        for model, run in ((eager, eager), (ours, compiled)):
            model.zero_grad()
            run(batch(k)).backward()
        same_gradients(eager, ours)


def test_backward_of_an_old_step_after_a_new_forward(count: Count) -> None:
    eager, ours, compiled = pair()
    warm(eager, ours, compiled)
    assert count.replays >= 8
    for order in ((0, 1), (1, 0), (0, 2, 1), (2, 1, 0)) * 3:
        for model, run in ((eager, eager), (ours, compiled)):
            model.zero_grad()
            losses = [run(batch(k)) for k in range(len(order))]
            for k in order:
                losses[k].backward()
        same_gradients(eager, ours)


def test_gradients_that_accumulate_and_graphs_that_are_retained(count: Count) -> None:
    eager, ours, compiled = pair()
    warm(eager, ours, compiled)
    for zero in (True, False, True, False, False, True):
        for model, run in ((eager, eager), (ours, compiled)):
            if zero:
                model.zero_grad(set_to_none=False)
            for k in range(3):
                loss = run(batch(k))
                loss.backward(retain_graph=True)
                run(batch(k + 7))
                loss.backward()
        same_gradients(eager, ours)
    before = count.replays
    warm(eager, ours, compiled)
    assert count.replays > before


def test_gradients_that_the_program_keeps(count: Count) -> None:
    eager, ours, compiled = pair()
    warm(eager, ours, compiled)
    kept: list[tuple[list[Tensor], list[Tensor]]] = []
    for k in range(6):
        both = []
        for model, run in ((eager, eager), (ours, compiled)):
            both.append(list(torch.autograd.grad(run(batch(k)), list(model.parameters()))))
        kept.append((both[0], both[1]))
    for theirs, mine in kept:
        for a, b in zip(theirs, mine, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_two_models_in_turn_and_an_exception_between(count: Count) -> None:
    first, second = pair(), pair()
    warm(*first)
    warm(*second)
    for k in range(8):
        for at in (0, 1):
            losses = []
            for eager, ours, compiled in (first, second):
                model, run = ((eager, eager), (ours, compiled))[at]
                model.zero_grad()
                losses.append(run(batch(k)))
            if k == 3:
                try:
                    (losses[0] * torch.ones(3, device="cuda")[:2].view(2, 1) @ torch.ones(3, 3, device="cuda")).sum()
                except RuntimeError:
                    continue
            for loss in reversed(losses):
                loss.backward()
        if k != 3:
            same_gradients(first[0], first[1])
            same_gradients(second[0], second[1])
    assert count.replays > 40


def test_a_backward_reads_what_its_forward_left_in_place(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    copies, original = [], cuda_graphs._copy

    def copy(to: list[Tensor], given: list[Tensor]) -> None:
        copies.append(len(to))
        original(to, given)

    monkeypatch.setattr(cuda_graphs, "_copy", copy)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)).cuda()
    compiled, x = graphs(model), batch(0)
    for _ in range(10):
        model.zero_grad()
        compiled(x).square().mean().backward()
    assert count.recordings <= 3
    assert count.replays >= 2 * 6
    assert max(copies, default=0) <= 1, "the loss' gradient"


def test_sizes_share_memory(count: Count) -> None:
    def fn(x: Tensor) -> Tensor:
        y = x @ x.t()
        return (y.sin() @ x) * 2

    compiled = graphs(fn, dynamic=True)
    sizes = range(1024, 4097, 256)
    for _ in range(7):
        for n in sizes:
            x = torch.ones(n, 1024, device="cuda") / n
            torch.testing.assert_close(compiled(x), fn(x), rtol=1e-3, atol=1e-3)
    assert count.recordings == len(sizes)
    assert len(pools()) == 1
    alone = sum(4 * n * (2 * n + 2 * 1024) for n in sizes)
    assert cuda_graphs.held_bytes() < 0.5 * alone


def test_memory_of_what_is_gone_is_given_back() -> None:
    compiled = graphs(lambda x: (x @ x).sin() * 2)
    x = torch.ones(2048, 2048, device="cuda")
    for _ in range(7):
        result = compiled(x)
    assert cuda_graphs.held_bytes() > 0
    expected = result.clone()
    del compiled
    fuselens.reset()
    gc.collect()
    torch.cuda.empty_cache()
    torch.ones(4096, 4096, device="cuda").fill_(3)
    torch.testing.assert_close(result, expected)
    del result
    fuselens.cudagraph_mark_step_begin()
    assert cuda_graphs.held_bytes() == 0


def test_recordings_hold_no_more_than_they_may(count: Count) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    compiled = graphs_of(lambda x: (x @ x).sin() * 2, (64 << 20) / total)
    for n in (256, 4096, 256, 512) * 12:
        x = torch.ones(n, n, device="cuda") / n
        torch.testing.assert_close(compiled(x), (x @ x).sin() * 2, rtol=1e-3, atol=1e-3)
    assert "FL502" in codes(compiled)
    assert count.replays > 8
    assert cuda_graphs.held_bytes() <= 64 << 20


def graphs_of(fn: Any, share: float) -> Any:
    with fuselens.config.patch(cuda_graph_memory=share):
        return graphs(fn, dynamic=True)


def test_more_sizes_than_are_recorded(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_policy, "MOST_SIZES", 4)
    compiled = graphs(lambda x: torch.relu(x) + 1, dynamic=True)
    for n in [*range(2, 8)] * 40:
        x = torch.randn(n, 64, device="cuda")
        torch.testing.assert_close(compiled(x), torch.relu(x) + 1)
    assert codes(compiled) == ["FL502"]
    assert count.recordings < 6 * 5


def test_threads(count: Count) -> None:
    compiled, errors = graphs(one), []
    xs = [torch.randn(256, 320, generator=torch.Generator().manual_seed(k)).cuda() for k in range(4)]
    expected = [one(x) for x in xs]
    for _ in range(8):
        compiled(xs[0])
    torch.cuda.synchronize()

    def work(k: int) -> None:
        try:
            held: list[tuple[Tensor, int]] = []
            for n in range(60):
                held.append((compiled(xs[(k + n) % 4]), (k + n) % 4))
                if len(held) > k:
                    result, at = held.pop(0)
                    torch.testing.assert_close(result, expected[at], rtol=1e-3, atol=1e-2)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    assert count.replays > 10, compiled.__fuselens__.recorder.report.diagnostics


@pytest.mark.parametrize("told", [False, True], ids=["waiting", "the allocator is told"])
def test_results_that_another_stream_reads(told: bool, count: Count) -> None:
    fn = lambda x: x * 2 + 1  # noqa: E731
    compiled, side, found = graphs(fn), torch.cuda.Stream(), []
    x = torch.zeros(1 << 22, device="cuda")
    for k in range(16):
        x.fill_(k)
        result = compiled(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            found.append(result.sum() / len(result))
        if told:
            result.record_stream(side)
        else:
            torch.cuda.current_stream().wait_stream(side)
        del result
    torch.cuda.synchronize()
    assert [f.item() for f in found] == [2.0 * k + 1 for k in range(16)]
    assert told or count.replays > 8


def test_results_whose_storage_is_resized() -> None:
    fn = lambda x: x * 2 + 1  # noqa: E731
    compiled, x = graphs(fn), torch.ones(1 << 20, device="cuda")
    for k in range(24):
        x.fill_(k)
        result = compiled(x)
        torch.testing.assert_close(result, fn(x))
        if k in (4, 12):
            storage = result.untyped_storage()
            if storage.resizable():
                storage.resize_(0)
        del result
