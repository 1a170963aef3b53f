"""What is said of code for a GPU that is not there: all of it is of that GPU, and what did not happen is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fuselens
from fuselens.checking.check import run_function
from fuselens.record import views
from fuselens.record.report import Graph

pytest.importorskip("triton")
TARGET = "cuda:sm_90"


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w)


@pytest.fixture
def graph(tmp_path: Path, request: pytest.FixtureRequest) -> Graph:
    x, w = (torch.randn(*sizes, dtype=torch.bfloat16) for sizes in ((256, 512), (512, 128)))
    mode = getattr(request, "param", "default")
    compiled = fuselens.compile(f, mode=mode, options={"target": TARGET, "cache_dir": tmp_path})
    report = fuselens.explain(compiled)(x, w)
    assert {d.code for d in report.diagnostics} == ({"FL501"} if mode != "default" else set())
    return report.graphs[0]


def test_every_stage_is_of_the_gpu(graph: Graph) -> None:
    names = [stage.name for stage in graph.stages]
    assert {"lower", "fuse", "order", "triton", "host", "ptx"} <= set(names) and "cpp" not in names
    for name in ("lower", "fuse", "order"):
        stage = graph.stage(name)
        assert stage is not None and " on cuda\n" in stage.text
    (kernel,) = graph.kernels
    assert kernel.backend == "triton" and kernel.resources["registers"] > 0
    assert graph.externs == ["aten.mm.default"]


@pytest.mark.parametrize("graph", ["reduce-overhead"], indirect=True)
def test_what_is_not_recorded(graph: Graph) -> None:
    assert graph.kernels


@pytest.mark.parametrize("graph", ["max-autotune"], indirect=True)
def test_what_is_not_measured(graph: Graph) -> None:
    decisions = [d for d in graph.decisions if d.code == "FL416"]
    assert [d.verdict for d in decisions] == ["vendor", "default"]
    for decision in decisions:
        assert "no GPU to measure" in decision.reason
        assert len(decision.candidates) > 4 and all(seconds is None for _, seconds in decision.candidates)
    report = fuselens.record.report.Report("f", "f.py", graphs=[graph])
    assert "–  the vendor's library" in views.explain(report)


def attends(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def writes_it_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (t.repeat_interleave(4, 1) for t in (k, v))
    scores = 30.0 * torch.tanh(q @ k.transpose(-1, -2) / 240.0)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("fn", [attends, writes_it_out])
def test_attention_is_the_gpus(fn: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, rows, 64, dtype=torch.bfloat16) for heads, rows in ((8, 1), (2, 512), (2, 512)))
    compiled = fuselens.compile(fn, options={"target": TARGET, "cache_dir": tmp_path})
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), rtol=2e-2, atol=2e-3)
    (graph,) = fuselens.explain(compiled)(q, k, v).graphs
    assert [k.kind for k in graph.kernels][0] == "attention" and not graph.fallback
    assert graph.kernels[0].resources["registers"] > 0


def test_arrays_are_not_spilled(tmp_path: Path) -> None:
    report = fuselens.explain(torch.sin, target="cuda:sm_90a", cache_dir=str(tmp_path), assembly="ptx")(torch.randn(64))
    (kernel,) = report.graphs[0].kernels
    stage = report.graphs[0].stage("ptx")
    assert stage is not None and "__local_depot" in stage.text  # for arguments that are large
    assert kernel.resources["spills"] == 0
    assert set(report.versions) == {"torch", "triton"}


def test_a_run_says_what_ran(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "import fuselens, torch\n"
        f"@fuselens.compile(options={{'target': {TARGET!r}}}, example_inputs=(torch.ones(4),))\n"
        "def g(x):\n    return x + 1\n"
    )
    result: Any = run_function(file, "g")
    assert result.agrees
    assert result.instead.startswith(f"the kernels for {TARGET} did not run") and result.instead in views.run_text(
        result
    )


def test_elements_of_three_bytes_on_average(tmp_path: Path) -> None:
    """Warps are a power of two, however wide what a thread loads is."""

    def normal(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        z = torch.where(mask, x, y)
        z = z - z.mean(-1, keepdim=True)
        return z / z.square().mean(-1, keepdim=True).sqrt()

    x, y = torch.randn(2, 512, 20_001)
    compiled = fuselens.compile(normal, options={"target": TARGET, "cache_dir": tmp_path})
    report = fuselens.explain(compiled)(x, y, x > 0)
    assert not report.diagnostics
    assert report.graphs[0].kernels and not report.graphs[0].fallback
