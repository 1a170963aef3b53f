"""Functions that a graph for a GPU has in other forms: the same values and gradients, and what stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuselens
from fuselens.autograd.definitions import each_channel_a_group
from fuselens.autograd.embedding_bags import of_one_size

WEIGHT = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))


def agrees(found: Tensor, wanted: Tensor, *leaves: Tensor) -> None:
    near = {"rtol": 0.05, "atol": 0.01} if found.dtype is torch.bfloat16 else {}
    torch.testing.assert_close(found, wanted, **near)
    assert found.stride() == wanted.stride()
    cotangent = torch.randn_like(wanted)
    for a, b in zip(*(torch.autograd.grad(x, leaves, cotangent) for x in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, **near)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bags_of_one_size(mode: str, length: int, dtype: torch.dtype) -> None:
    weight = WEIGHT.to(dtype).requires_grad_()
    at = torch.randint(9, (5, length))
    found = of_one_size(at, weight, mode=mode)
    assert found is not None
    agrees(found, F.embedding_bag(at, weight, mode=mode), weight)


def test_bags_with_scales() -> None:
    weight, scales = WEIGHT.clone().requires_grad_(), torch.randn(5, 3, requires_grad=True)
    at = torch.randint(9, (5, 3))
    found = of_one_size(at, weight, mode="sum", per_sample_weights=scales)
    assert found is not None
    agrees(found, F.embedding_bag(at, weight, mode="sum", per_sample_weights=scales), weight, scales)


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "max"}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}, {"padding_idx": 2},
        {"include_last_offset": True}, {"per_sample_weights": torch.ones(5, 3)}, {"offsets": torch.tensor([0])},
    ],
    ids=lambda g: next(iter(g)),
)  # fmt: skip
def test_other_bags_stay(given: dict[str, Any]) -> None:
    assert of_one_size(torch.randint(9, (5, 3)), WEIGHT, **given) is None


def test_rows_of_no_bags_stay() -> None:
    assert of_one_size(torch.randint(9, (5,)), WEIGHT) is None
    assert of_one_size(torch.zeros((5, 0), dtype=torch.int64), WEIGHT) is None


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 5, 7), (2, 6, 3, 4, 5)])
@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm(shape: tuple[int, ...], affine: bool) -> None:
    x = torch.randn(shape, requires_grad=True)
    given = [torch.randn(6, requires_grad=True) for _ in range(2)] if affine else [None, None]
    found = each_channel_a_group(x, None, None, *given)
    assert found is not None
    agrees(found, F.instance_norm(x, None, None, *given), x, *(g for g in given if g is not None))


def test_other_instance_norms_stay() -> None:
    x, running = torch.randn(2, 6, 5, 7), torch.ones(6)
    assert each_channel_a_group(x, running, running) is None
    assert each_channel_a_group(x, use_input_stats=False) is None
    assert each_channel_a_group(x.half(), weight=running) is None
    assert each_channel_a_group(torch.randn(2, 6, 1, 1)) is None


def test_operands_by_name() -> None:
    def named(at: Tensor, weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.embedding_bag(input=at, weight=weight, mode="sum"), F.instance_norm(input=x)

    report = fuselens.explain(named, target="cuda:sm_90")(torch.randint(9, (5, 2)), WEIGHT, torch.randn(2, 3, 4, 5))
    assert not report.diagnostics
    (text,) = [s.text for s in report.graphs[0].stages if s.name == "order"]
    assert "extern" not in text


def test_kernels_of_a_gpu_gather_the_rows() -> None:
    """As the editor shows them where no GPU is."""

    def tables(at: Tensor, *weights: Tensor) -> Tensor:
        return torch.cat([F.embedding_bag(i, w, mode="sum") for i, w in zip(at, weights, strict=True)], 1)

    weights = [WEIGHT + k for k in range(12)]
    report = fuselens.explain(tables, target="cuda:sm_90")(torch.randint(9, (12, 5, 1)), *weights)
    (text,) = [s.text for s in report.graphs[0].stages if s.name == "order"]
    assert "aten._embedding_bag" not in text and text.count("  kernel ") == 1
