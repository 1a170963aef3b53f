"""Proofs where the program has set a default device. `meta` stands for a card here: no tensor of ours may lie there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from fuselens.proving.proof import Prover

from .test_kinds import Function


@pytest.fixture(autouse=True)
def _elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def drawn(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.dropout(torch.relu(x) * 2, 0.5)
    return y.softmax(-1) + index.sum(), y[index % 3]


def written(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return F.layer_norm(x, x.shape[-1:]) @ x.mT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [drawn, written])
def test_a_function_is_proved(function: object, dtype: torch.dtype) -> None:
    x, index = torch.randn(3, 4, device="cpu", dtype=dtype), torch.arange(3, device="cpu")
    proof = Prover(Function(function, (x, index)), "f", "").proof()
    assert len(proof.tried) > 20 and proof.compiled
    assert not [(t.inputs, t.detail) for t in proof.tried if not t.agrees or t.raises]


def test_a_module_is_proved() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, device="cpu"), torch.nn.ReLU())
    proof = Prover(Function(model, (torch.randn(3, 4, device="cpu"),)), "model", "").proof()
    assert proof.tried and all(t.agrees and not t.raises for t in proof.tried)
