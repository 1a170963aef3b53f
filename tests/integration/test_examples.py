"""Everything in examples/ agrees with eager, forward and backward, and fuses as its text says."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path

import pytest
import torch

from fuselens.checking import check
from fuselens.record.report import FileReport
from fuselens.source.discovery import discover

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ON_A_GPU = ("user_kernels.py",)  # Triton kernels of a program, see tests/gpu/test_user_kernels.py
FILES = [f for f in sorted(EXAMPLES.glob("*.py")) if f.name not in ON_A_GPU]
FUNCTIONS = [(f.name, a.qualname) for f in FILES for a in discover(f.read_text(), str(f))]


@functools.cache
def report(name: str) -> FileReport:
    return check.check_file(str(EXAMPLES / name))


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_agrees_with_eager(name, function):
    result = check.run_function(str(EXAMPLES / name), function)
    assert result.agrees, result.detail
    assert result.gradients_agree in (True, None)


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_no_graph_runs_eagerly(name, function):
    found = report(name)
    assert not found.diagnostics
    for function_report in found.functions:
        assert not any(g.fallback for g in function_report.graphs)
        assert function_report.kernels


def test_pointwise_operations_are_one_kernel():
    (found,) = report("bias_relu_mul.py").functions
    assert [k.kind for k in found.kernels] == ["pointwise"]


def test_softmax_is_one_kernel_after_the_product():
    (found,) = report("matmul_softmax.py").functions
    assert len(found.kernels) == 1
    assert found.graphs[0].externs == ["aten.mm.default"]


def test_the_toy_breaks_at_its_condition_and_resumes_on_both_sides():
    (found,) = report("toy.py").functions
    (only,) = found.breaks
    assert only.code == "FL101"
    assert only.span is not None
    assert (only.span.line, only.span.column, only.span.end_column) == (13, 7, 18)
    assert len(found.graphs) == 3


def test_training_follows_eager():
    compiled = runpy.run_path(str(EXAMPLES / "train_mlp.py"))
    torch.manual_seed(0)
    model, (x, target) = compiled["MLP"](), compiled["batch"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(x, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert compiled["train"](20) == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0]
