"""Traced, partitioned and interpreted graphs agree with eager: values, gradients, mutation, aliasing, layout."""

from __future__ import annotations

import pytest
import torch
from autograd_cases import CASES, Case
from harness import case_agrees

import fuselens


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_agrees(case: Case) -> None:
    case_agrees(case.fn, case.make, case.prepare, **case.options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_soft_margin_overflows_where_eagers_does(dtype):
    x = torch.tensor([-200.0, -1.0, 0.5, 20.0, 200.0], dtype=dtype)
    target = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0], dtype=dtype)
    found = []
    for loss in (torch.nn.functional.soft_margin_loss, fuselens.compile(torch.nn.functional.soft_margin_loss)):
        leaf = x.clone().requires_grad_()
        loss(leaf, target).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0], equal_nan=True)
    assert found[0].isnan().any()
