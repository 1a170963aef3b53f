"""Large tensors have sizes, types and views, and no values; small ones are as always."""

from __future__ import annotations

import resource

import pytest
import torch
from torch import nn

from fuselens.inputs.weightless import LARGE, Weightless

SIDE = 2048  # squared, more than LARGE


@pytest.fixture(autouse=True)
def inside():
    with Weightless():
        yield


def test_small_tensors_have_values():
    x = torch.arange(6.0).reshape(2, 3)
    assert (x @ x.T).tolist() == [[5.0, 14.0], [14.0, 50.0]]
    assert torch.ones(3).sum().item() == 3


def test_large_tensors_are_as_eager_makes_them():
    x = torch.randn(SIDE, SIDE, dtype=torch.bfloat16)
    assert x.numel() >= LARGE
    y = (x.t() @ x).relu_()[1:, ::2]
    assert (y.shape, y.dtype, y.stride(), y.storage_offset()) == (
        (SIDE - 1, SIDE // 2),
        torch.bfloat16,
        (SIDE, 2),
        SIDE,
    )
    assert y._base is not None and y.data_ptr() == y._base.data_ptr() + 2 * SIDE
    assert x.add_(1) is x
    values, places = x.float().topk(3)
    assert (values.shape, places.dtype) == ((SIDE, 3), torch.int64)


def test_small_results_of_large_operands_are_no_bad_operands():
    mean = torch.zeros(SIDE, SIDE).mean()
    assert mean.item() == 0.5
    assert torch.isfinite(1 / mean.log())
    assert not torch.zeros(SIDE, SIDE).isnan().any()


def test_gradients_have_layouts():
    weight = nn.Parameter(torch.randn(SIDE, SIDE))
    loss = (torch.randn(4, SIDE) @ weight).square().mean()
    loss.backward()
    assert weight.grad is not None and weight.grad.shape == weight.shape
    torch.optim.AdamW([weight], foreach=True).step()


def test_memory_is_not_taken():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    layers = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(40)))  # 10 GB
    with torch.no_grad():
        layers(torch.randn(1024, 8192)).half()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


def test_data_that_decides_is_asked_for():
    """Where only values say the sizes, they are read."""
    assert torch.zeros(SIDE, SIDE).nonzero().shape[1] == 2
    assert torch.zeros(SIDE, SIDE)[3, 4].item() in (0.0, 0.5)
