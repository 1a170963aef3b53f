"""Host programs of GPU graphs: streams, memory, errors, recordings, threads, the operators that they call by address."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import fuselens
from fuselens.codegen.operators import SHIMS
from fuselens.runtime import program

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = False


def layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.gelu(torch.addmm(b, x, w)) + x
    return x.softmax(-1)


def inputs(n: int = 64, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(n)
    shapes = ((n, 128), (128, 128), (128,))
    return [torch.randn(s, device="cuda", generator=generator).mul(0.1).to(dtype) for s in shapes]


def test_operators_have_their_functions() -> None:
    assert program.runs_on_gpu()
    names = [f"aoti_torch_cuda_{s.function}" for s in SHIMS.values() if "cuda" in s.devices]
    assert [n for n in names if not program._function(n)] == []


def test_kernels_run_on_the_current_stream() -> None:
    made = fuselens.compile(layers)
    given = inputs()
    expected = layers(*given)
    torch.testing.assert_close(made(*given), expected)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        out = made(*given)
        assert not side.query()
        done = torch.cuda.Event()
        done.record()
    assert torch.cuda.current_stream().query()  # nothing was put there
    done.synchronize()
    torch.testing.assert_close(out, expected)


def test_calls_leave_no_memory() -> None:
    made = fuselens.compile(layers, dynamic=True)
    for n in (64, 96):
        given = inputs(n)
        torch.testing.assert_close(made(*given), layers(*given))
    made(*given)
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        made(*given)
    assert torch.cuda.memory_allocated() == before


def test_intermediates_die_when_they_were_read() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.relu(x @ w).transpose(0, 1).contiguous()
        return x

    x, w = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    made = fuselens.compile(chain)
    torch.testing.assert_close(made(x, w), chain(x, w), rtol=1e-3, atol=1e-1)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made(x, w)
    assert torch.cuda.max_memory_allocated() - before <= 4 * x.nbytes


def test_no_memory_is_the_error_of_torch() -> None:
    def large(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1) @ x.t()

    made = fuselens.compile(large, dynamic=True)
    for n in (32, 48):
        made(torch.randn(n, 8, device="cuda"))
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        made(torch.zeros(1 << 20, 8, device="cuda"))
    x = torch.randn(40, 8, device="cuda")
    torch.testing.assert_close(made(x), large(x))


def test_a_program_is_recorded_by_others() -> None:
    made = fuselens.compile(layers)
    given = inputs()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            made(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = made(*given)
    given[0].add_(0.5)
    graph.replay()
    torch.testing.assert_close(out, layers(*given))


def test_threads() -> None:
    made = fuselens.compile(layers)
    given = inputs()
    expected = layers(*given)
    made(*given)
    wrong: list[Any] = []

    def run() -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            for _ in range(20):
                out = made(*given)
                stream.synchronize()
                if not torch.allclose(out, expected, atol=1e-5):
                    wrong.append(out)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_thread_whose_first_launch_is_ours() -> None:
    made = fuselens.compile(lambda x: torch.relu(x + 1) * 2)
    x = torch.randn(64, device="cuda")
    made(x)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(made(x)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], torch.relu(x + 1) * 2)


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_by_each_library(backend: str, masked: bool) -> None:
    if masked and backend == "FLASH_ATTENTION":
        pytest.skip("it takes no mask")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask, is_causal=mask is None) + 1

    qkv = [torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    mask = torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16) if masked else None
    results = []
    with sdpa_kernel(getattr(SDPBackend, backend)):
        for run in (attend, fuselens.compile(attend)):
            leaves = [t.detach().clone().requires_grad_() for t in qkv]
            out = run(*leaves, mask)
            results.append((out, *torch.autograd.grad(out.float().square().sum(), leaves)))
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-1)


def test_a_network_of_convolutions_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, bias=False),
        nn.Flatten(), nn.Linear(4 * 36, 5),
    ).cuda().double()  # fmt: skip
    made = fuselens.compile(model)
    x = torch.randn(6, 3, 16, 16, device="cuda", dtype=torch.float64)
    expected: list[torch.Tensor] = []
    for run in (model, made):
        model.zero_grad()
        run(x).square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        if not expected:
            expected = grads
    for found, e in zip(grads, expected, strict=True):  # pyright: ignore[reportPossiblyUnboundVariable]
        torch.testing.assert_close(found, e)
