"""Distributions of torch: objects whose classes hold dictionaries, constraints and descriptors of Python's."""

from __future__ import annotations

import pytest
import torch
from torch import distributions

from tests.support.tensors import t

from .harness import agrees_with_eager


def normal(x):
    d = distributions.Normal(x, torch.ones_like(x))
    return d.log_prob(x + 1), d.rsample(), d.mean, d.entropy(), d.cdf(x)


def standard_normal(x):
    return distributions.Normal(0, 1).icdf(x.sigmoid())


def categorical(x):
    d = distributions.Categorical(logits=x)
    return d.sample(), d.probs, d.entropy(), d.log_prob(torch.tensor(1))


def bernoulli(x):
    d = distributions.Bernoulli(x.sigmoid())
    return d.sample(), d.logits, d.variance


def uniform(x):
    return distributions.Uniform(x, x + 2).rsample((3,)), distributions.Uniform(x, x + 2).log_prob(x + 1)


@pytest.mark.parametrize(
    "program", [normal, standard_normal, categorical, bernoulli, uniform], ids=lambda f: f.__name__
)
def test_in_one_graph(program):
    agrees_with_eager(program, (t(3),), breaks=0, graphs=1)


def test_a_scale_that_is_refused():
    def negative_scale(x):
        return distributions.Normal(x, -x.abs() - 1).mean

    agrees_with_eager(negative_scale, (t(3),))
