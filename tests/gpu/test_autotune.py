"""``mode="max-autotune"`` on a real GPU: what is chosen computes what eager does, and is said in the report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.record.report import Decision
from fuselens.runtime.gpu import tune as tune_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "points": lambda x: F.gelu(x) * 2,
    "tiles": lambda x: x.t().contiguous() + 1,
    "rows": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "long rows": lambda x: x.reshape(-1, 20_000).softmax(-1),
    "columns": lambda x: (x * x).sum(0),
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = False


def tuned(fn: Callable[..., Any], **options: Any) -> tuple[Any, Callable[[], list[Decision]]]:
    compiled: Any = fuselens.compile(fn, mode="max-autotune", **options)
    report = compiled.__fuselens__.recorder.report
    return compiled, lambda: [d for g in report.graphs for d in g.decisions if d.code == "FL416"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels(name: str) -> None:
    fn = FUNCTIONS[name]
    x = torch.randn(1600, 1000, device="cuda")
    compiled, decisions = tuned(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
    assert decisions()
    for decision in decisions():
        assert len(decision.candidates) > 3
        assert all(1e-7 < seconds < 1e-2 for _, seconds in decision.candidates)


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((4, 100, 96), (200, 96), (200,))),
    "residual": (lambda x, w, r: r + F.linear(x, w), ((64, 256), (128, 256), (64, 128))),
    "few rows": (lambda x, w: F.silu(F.linear(x, w)), ((16, 4096), (512, 4096))),
    "turned": (lambda x, w: x.t() @ w, ((2048, 64), (2048, 96))),
    "batches": (lambda x, w: (x @ w.transpose(1, 2)) * 0.125, ((12, 65, 64), (12, 33, 64))),
    "gated": (lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u), ((128, 256), (384, 256), (384, 256))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, dtype: torch.dtype) -> None:
    fn, shapes = PRODUCTS[name]
    inputs = [t(*shape, dtype=dtype) for shape in shapes]
    compiled, decisions = tuned(fn)
    wanted = fn(*(i.double() for i in inputs)).float()
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for _ in range(3):
        found = compiled(*inputs).float()
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))
    assert any("the vendor's library" in d.data and len(d.data) > 3 for d in decisions())


def preferring(which: int) -> Callable[..., list[list[float]]]:
    """Measures on the card, and then says that the candidate of this number is the fastest."""

    def choose(*asked: Any) -> list[list[float]]:
        found = tune_gpu.on_card(*asked)
        return [[1.0 if k != min(which, len(row) - 1) else 0.5 for k in range(len(row))] for row in found]

    return choose


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_candidate_of_a_convolution_agrees(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: torch.dtype, last: bool
) -> None:
    form = torch.channels_last if last else torch.contiguous_format
    x, w = (t(*s, dtype=dtype).to(memory_format=form) for s in ((4, 64, 28, 28), (96, 64, 3, 3)))
    b = t(96, dtype=dtype)
    torch.backends.cudnn.allow_tf32 = False
    wanted = F.relu(F.conv2d(x.double(), w.double(), b.double(), 2, 1)).float()
    for which in range(1, 9):
        monkeypatch.setattr("fuselens.pipeline.tuning.MEASURE", preferring(which))
        monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / str(which)))
        compiled, decisions = tuned(lambda x, w, b: F.relu(F.conv2d(x, w, b, 2, 1)))
        found = compiled(x, w, b).float()
        tolerance = 1e-4 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.max()))
        assert decisions()[0].verdict == "taken"
        fuselens.reset()


def test_every_candidate_of_a_product_agrees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fn, shapes = PRODUCTS["few rows"]
    inputs = [t(*shape, dtype=torch.bfloat16) for shape in shapes]
    for which in range(1, 9):
        monkeypatch.setattr("fuselens.pipeline.tuning.MEASURE", preferring(which))
        monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / str(which)))
        compiled, decisions = tuned(lambda x, w: fn(x, w))
        torch.testing.assert_close(compiled(*inputs), fn(*inputs), rtol=2e-2, atol=1.0)
        assert decisions()[0].verdict == "taken"
        fuselens.reset()


LONG_ROWS: dict[str, tuple[Callable[[Any], Any], tuple[int, int]]] = {
    "softmax": (lambda x: x.softmax(-1), (300, 20_000)),
    "log_softmax": (lambda x: x.log_softmax(-1), (300, 131_072)),
    "layer norm": (lambda x: F.layer_norm(x, (x.shape[-1],)) + x, (200, 65_536)),
    "best": (lambda x: (x.argmax(-1), x / (x * x).sum(-1, keepdim=True)), (150, 50_257)),
    "doubles": (lambda x: x.double().softmax(-1), (150, 16_384)),
}


@pytest.mark.parametrize("name", LONG_ROWS)
@pytest.mark.parametrize("which", range(3))
def test_programs_that_share_a_row(name: str, which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, shape = LONG_ROWS[name]
    x = t(*shape)
    x[3, 70] = x[5, shape[1] - 2] = torch.inf
    x[7, shape[1] // 2] = torch.nan
    measured, asked = tune_gpu.on_card, [0]

    def choose(questions: Any, *how: Any) -> list[list[float]]:
        found = measured(questions, *how)
        for question, row in zip(questions, found, strict=True):
            shared = [k for k, c in enumerate(question) if " programs" in c.label]
            if shared:
                asked[0] += 1
                assert row[shared[which % len(shared)]] < 1.0, "it runs"
                row[:] = [0.5 if k == shared[which % len(shared)] else 1.0 for k in range(len(row))]
        return found

    monkeypatch.setattr("fuselens.pipeline.tuning.MEASURE", choose)
    compiled, _ = tuned(lambda x: fn(x))
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert asked[0]


TURNS = """
import torch, fuselens
from fuselens.pipeline import tuning
from fuselens.runtime.gpu import tune as tune_gpu

measured, wanted = tune_gpu.on_card, 0
found = []


def choose(questions, *how):
    times = measured(questions, *how)
    for question, row in zip(questions, times):
        turns = [k for k, c in enumerate(question) if "programs" in c.label]
        found.extend((question[k].label, row[k], row[0]) for k in turns)
        row[:] = [1.0 if k != (turns + [0] * 9)[wanted] else 0.5 for k in range(len(row))]
    return times


tuning.MEASURE = choose
b = torch.bfloat16
torch.manual_seed(0)
x, w, c = (torch.randn(s, device="cuda").to(b) for s in ((8192, 768), (3072, 768), (3072,)))
odd = torch.randn(8192 * 768 + 1, device="cuda").to(b)[1:].view(8192, 768)  # its address is no multiple of 16
programs = {
    "gelu": (lambda x, w, c: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, c), approximate="tanh"), (x, w, c)),
    "odd": (lambda x, w: torch.relu(x @ w.t()), (odd, w)),
    "turned": (lambda x, w: x.t() @ w, (torch.randn(4096, 4096, device="cuda").to(b), torch.randn(4096, 2304, device="cuda").to(b))),
    "any rows": (lambda x, w: torch.nn.functional.gelu(x @ w.t(), approximate="tanh"), (x.clone(), w)),
}
for wanted in range(3):
    for name, (fn, inputs) in programs.items():
        if name == "any rows" and wanted:
            continue
        fuselens.reset()
        with fuselens.config.patch(cache_dir=fuselens.config.from_environment().cache_dir / f"{name}{wanted}"):
            compiled = fuselens.compile(lambda *a: fn(*a), mode="max-autotune-no-cudagraphs")
            for rows in (None, None) if name != "any rows" else (None, None, 1000, 77):
                given = (inputs[0][:rows], *inputs[1:])
                if name == "any rows":
                    fuselens.mark_dynamic(given[0], 0)
                torch.testing.assert_close(compiled(*given), fn(*given), rtol=2e-2, atol=1.0)
                torch.cuda.synchronize()
            assert name != "any rows" or len(compiled.__fuselens__.recorder.report.graphs) == 1
            decisions = [d for g in compiled.__fuselens__.recorder.report.graphs for d in g.decisions]
            assert any(d.verdict == "taken" and "programs" in d.reason for d in decisions), decisions
print(*found, sep="\\n")
"""


def test_tiles_in_turn() -> None:
    done = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_training() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda().bfloat16()
    x = t(512, 256, dtype=torch.bfloat16)
    compiled = fuselens.compile(model, mode="max-autotune")
    wanted = torch.autograd.grad(model(x).float().square().mean(), list(model.parameters()))
    for _ in range(3):
        found = torch.autograd.grad(compiled(x).float().square().mean(), list(model.parameters()))
        for f, w in zip(found, wanted, strict=True):
            torch.testing.assert_close(f, w, rtol=5e-2, atol=5e-2 * float(w.abs().max()))


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = FUNCTIONS["rows"]
    x = torch.randn(1600, 1000, device="cuda")
    first, decisions = tuned(fn)
    first(x)
    monkeypatch.setattr("fuselens.pipeline.tuning.MEASURE", lambda *_: pytest.fail("measured again"))
    again, found = tuned(lambda x: fn(x))
    again(x)
    assert [d.data for d in found()] == [d.data for d in decisions()]


def test_symbolic_sizes() -> None:
    fn = FUNCTIONS["rows"]
    compiled, decisions = tuned(fn, dynamic=True)
    for rows in (70, 33, 2000):
        x = torch.randn(rows, 90, device="cuda")
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
    assert decisions()


def test_the_state_of_random_numbers_is_left_alone() -> None:
    x = torch.randn(300, 1000, device="cuda")
    before = torch.cuda.get_rng_state()
    compiled, _ = tuned(FUNCTIONS["rows"])
    compiled(x)
    assert torch.equal(torch.cuda.get_rng_state(), before)
