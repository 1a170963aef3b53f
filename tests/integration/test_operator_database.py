"""Every operator of torch's own database with all its samples: compiled by default as eager runs it, forward and backward.

A seeded part with a few samples each runs always, all of it in ``make sweep``. ``operator_database`` says what is
compared, and prints what ran as loops.
"""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from . import operator_database as database

CASES = database.cases()
IN_CI = sorted(random.Random(5).sample(CASES, 48))


def verify(name: str, dtype: str, most: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = database.verify(name, dtype, most)
    assert not outcome.differences, "\n".join(outcome.differences)


@pytest.mark.parametrize(("name", "dtype"), IN_CI)
def test_sample(name: str, dtype: str) -> None:
    verify(name, dtype, most=2)


def test_what_is_no_further_than_eager() -> None:
    exact = torch.tensor([440.0, 100.0], dtype=torch.float64)
    eager, near, far = (torch.tensor(v, dtype=torch.bfloat16) for v in ([452.0, 100.0], [432.0, 101.0], [480.0, 100.0]))
    assert database._no_further(exact, eager, eager)
    assert not database._no_further(exact, eager, "raised")
    assert not database._no_further(exact[:1], eager[:1], far[:1])
    assert not database._no_further(exact[1:], eager[1:], far[:1], varies=True)
    off = torch.tensor([440.0, 110.0], dtype=torch.bfloat16)
    assert not database._no_further(exact, eager, off)
    assert database._no_further(exact, eager, off, varies=True)
    assert database._no_further(exact, eager, near)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_sample(name: str, dtype: str) -> None:
    verify(name, dtype, database.MOST_SAMPLES)
