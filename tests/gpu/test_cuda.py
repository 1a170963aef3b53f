"""On a real GPU: the examples' functions and whole modules through generated Triton kernels, against eager."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuselens
from fuselens.inputs import comparison

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def t(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = False


def example(name: str, attribute: str):
    return runpy.run_path(str(EXAMPLES / name))[attribute]


FUNCTIONS = {
    "toy": lambda a, b: a / (a.abs() + 1) * b,
    "bias_relu_mul": lambda a, b: torch.relu(a + b[0]) * b,
    "softmax": lambda a, b: (a @ b.t()).softmax(-1),
    "layer_norm": lambda a, b: F.layer_norm(a + b, a.shape[1:]),
    "gelu": lambda a, b: F.gelu(a) * F.silu(b),
    "rows": lambda a, b: a.sum(1) + b.mean(1),
    "columns": lambda a, b: (a * b).sum(0),
    "everything": lambda a, b: F.silu(torch.relu(a)).sum(-1).mean(),
    "argmax": lambda a, b: a.argmax(1),
    "cat": lambda a, b: torch.cat([a, b * 2], 1),
    "stack": lambda a, b: torch.stack([a, a]),
    "transpose": lambda a, b: a.t().contiguous() + 1,
    "where": lambda a, b: torch.where(a > b, a, b * 0.1),
    "halves": lambda a, b: (a.bfloat16() * b.bfloat16()).float(),
    "integers": lambda a, b: (a * 10).int() // 3 + (b * 10).int() % 4,
    "log_softmax": lambda a, b: F.log_softmax(a, -1) * b,
    "var": lambda a, b: torch.var_mean(a, dim=1)[0],
}


LONG = {  # reductions that are split over programs, and rows that take several blocks
    "columns": (lambda x: (x * x).sum(0), (40_000, 24)),
    "uneven columns": (lambda x: (x * x).sum(0), (40_009, 3)),
    "all of it": (lambda x: (x.mean(), x.amin(), x.argmax(), x.var()), (999, 1001)),
    "channels": (lambda x: F.batch_norm(x, None, None, training=True), (64, 3, 112, 112)),
    "few rows": (lambda x: F.log_softmax(x, -1), (3, 200_003)),
    "rows": (lambda x: F.softmax(x, -1), (200, 20_001)),
    "wide rows": (lambda x: F.log_softmax(x, -1), (150, 70_000)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (150, 70_000)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_reductions(name):
    fn, shape = LONG[name]
    x = t(*shape)
    samples = [x]
    if len(shape) == 2:
        for value in (torch.nan, torch.inf, -torch.inf):
            samples.append(x.clone())
            samples[-1][0] = -torch.inf
            samples[-1][1, 2] = value
    compiled = fuselens.compile(fn)
    for sample in samples:
        found = compiled(sample)
        torch.testing.assert_close(found, fn(sample), equal_nan=True, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(compiled(sample), found, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    fn = FUNCTIONS[name]
    compiled = fuselens.compile(fn)
    for shape in ((33, 70), (128, 1000)):
        a, b = t(*shape).requires_grad_(), t(*shape, seed=1).requires_grad_()
        c, d = a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
        expected, actual = fn(a, b), compiled(c, d)
        assert (found := comparison.differ(expected, actual, "result")) is None, found
        if expected.requires_grad:
            expected.square().sum().backward()
            actual.square().sum().backward()
            for e, g in ((a, c), (b, d)):
                assert (found := comparison.differ(e.grad, g.grad, "gradient")) is None, found


MODULES = {
    "tiny": lambda: (example("tiny_model.py", "TinyModel")(), (torch.randn(4, 16),)),
    "mlp": lambda: (
        nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)),
        (torch.randn(32, 64),),
    ),
    "conv": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        (torch.randn(4, 3, 16, 16),),
    ),
    "train_mlp": lambda: (example("train_mlp.py", "MLP")(), example("train_mlp.py", "batch")()),
}


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    torch.manual_seed(0)
    module, args = MODULES[name]()
    module, args = module.cuda(), tuple(a.cuda() for a in args)
    other = copy.deepcopy(module)
    compiled = fuselens.compile(other)
    for _ in range(2):
        expected, actual = module(*args), compiled(*args)
        assert (found := comparison.differ(expected, actual, "result")) is None, found
        expected.square().sum().backward()
        actual.square().sum().backward()
        for (n, p), (_n, q) in zip(module.named_parameters(), other.named_parameters(), strict=True):
            assert (found := comparison.differ(p.grad, q.grad, f"gradient of {n}")) is None, found
    report = compiled.__fuselens__.recorder.report
    assert all(k.backend == "triton" for k in report.kernels)
    assert not [d for d in report.diagnostics if d.code in ("FL301", "FL402", "FL404")]


def test_data_dependent_branch():
    toy = example("toy.py", "toy").__fuselens__.target
    compiled = fuselens.compile(toy)
    for b in (t(100).abs(), -t(100).abs()):
        torch.testing.assert_close(compiled(t(100), b), toy(t(100), b))


def test_what_triton_makes_can_be_read() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.layer_norm(x, (72,)))

    report = fuselens.explain(f, assembly=("all",))(t(100, 72))
    (graph,) = report.graphs
    assert all(k.resources["registers"] > 0 and k.resources["spills"] == 0 for k in graph.kernels)
    for name in ("ttir", "ttgir", "llir", "ptx", "sass"):
        stage = graph.stage(name)
        assert stage is not None and not stage.later
        assert any(span.file == __file__ for line in stage.lines for span in line.spans)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_eagers(dtype: torch.dtype) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).cuda()
    eight = torch.arange(256).to(torch.uint8).cuda().view(dtype)
    for given in (
        every.view(torch.float16),
        every.view(torch.bfloat16),
        every.view(torch.float16).double() * 3,
        t(4096) * 1e4,
    ):
        narrow = fuselens.compile(lambda x: x.to(dtype).clone(), fullgraph=True)
        got, wanted = narrow(given).float(), given.to(dtype).float()
        assert torch.equal(got.nan_to_num(nan=1e9), wanted.nan_to_num(nan=1e9))
    wide = fuselens.compile(lambda x: (x.float() * 2, x.half(), torch.cat([x, x])), fullgraph=True)
    for got, wanted in zip(wide(eight), (eight.float() * 2, eight.half(), torch.cat([eight, eight])), strict=True):
        torch.testing.assert_close(got.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)
    (graph, *_) = wide.__fuselens__.recorder.report.graphs
    assert graph.kernels and not graph.fallback


def test_deterministic_algorithms() -> None:
    """Sums into elements that several points name run eagerly, whose order is fixed, from the call on that asks for it."""
    index, source = torch.randint(0, 3, (20_000,), generator=torch.Generator().manual_seed(0)).cuda(), t(20_000)

    def scattered(index, source):
        return torch.zeros(3, device="cuda").index_put((index,), source * 2, accumulate=True)

    compiled = fuselens.compile(scattered)
    compiled(index, source)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(5):
            assert torch.equal(compiled(index, source), scattered(index, source))
    finally:
        torch.use_deterministic_algorithms(False)
