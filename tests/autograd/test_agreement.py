"""Traced, partitioned and interpreted graphs agree with eager: values, gradients, mutation, aliasing, layout."""

from __future__ import annotations

import pytest
from autograd_cases import CASES, Case
from harness import check


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_agrees(case: Case) -> None:
    check(case.fn, case.make, case.prepare, **case.options)
