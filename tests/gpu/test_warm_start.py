"""On a real GPU: a second process finds compiled graphs and kernels, and imports neither the stages nor Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROGRAM = """
import json, sys
import torch, fuselens
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda()
compiled = fuselens.compile(model{mode})
x = torch.randn(32, 64, device="cuda")
for _ in range(3):
    model.zero_grad()
    result = compiled(x).square().sum()
    result.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
expected = model(x).square().sum()
expected.backward()
torch.testing.assert_close(result, expected)
for gradient, p in zip(gradients, model.parameters()):
    torch.testing.assert_close(gradient, p.grad, rtol=1e-4, atol=1e-4)
(graph,) = compiled.__fuselens__.recorder.report.graphs
names = [name for name in ("triton", "fuselens.lowering", "fuselens.schedule") if name in sys.modules]
print(json.dumps([[t.stage for t in graph.timings], names, len(graph.kernels)]))
"""


@pytest.mark.parametrize("mode", ["", ", mode='reduce-overhead'"])
def test_a_second_process_runs_no_stage(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("{mode}", mode))
    environment = {**os.environ, "FUSELENS_CACHE_DIR": str(tmp_path / "cache"), "FUSELENS_STRICT": "1"}

    def run() -> tuple[list[str], list[str], int]:
        done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    stages, _, kernels = run()
    assert {"joint", "lower", "fuse.backward"} <= set(stages)
    stages, modules, found = run()
    assert {s.partition(".")[0] for s in stages} == {"build"}
    assert (modules, found) == ([], kernels)
    path.write_text(path.read_text().replace("nn.GELU()", "nn.ReLU()"))
    assert "lower" in run()[0]


SIZES = """
import json
import torch, fuselens

torch.manual_seed(0)
W = torch.randn(8, 6, device="cuda")

def fn(x):
    joined = torch.cat([x @ W, (x @ W)[1:]])
    return torch.nn.functional.gelu(joined).softmax(0).view(-1, 3) * x.shape[0]

compiled = fuselens.compile(fn, dynamic=True)
for rows in (6, 11, 130):
    values = []
    for call in (fn, compiled):
        x = torch.linspace(-2, 2, rows * 8, device="cuda").view(rows, 8).requires_grad_()
        result = call(x)
        result.square().sum().backward()
        values.append((result, x.grad))
    torch.testing.assert_close(values[1], values[0], rtol=1e-3, atol=1e-4)
print(json.dumps([[t.stage for t in g.timings] for g in compiled.__fuselens__.recorder.report.graphs]))
"""


def test_a_second_process_finds_graphs_of_symbolic_sizes(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(SIZES)
    environment = {**os.environ, "FUSELENS_CACHE_DIR": str(tmp_path / "cache"), "FUSELENS_STRICT": "1"}
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = found
    assert len(cold) == len(warm)
    assert all("lower" in stages for stages in cold)
    assert {s.partition(".")[0] for stages in warm for s in stages} == {"build"}
