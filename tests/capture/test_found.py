"""Small programs in which random ones (see ``programs``) once found compiled functions to differ from eager."""

from __future__ import annotations

import pytest
import torch

from .harness import check

x = torch.tensor([1.0, -2.0, 3.0])


def deletes_an_argument(x):
    del x
    return x


def deletes_an_argument_twice(x):
    y = x + 1
    del x
    try:
        del x
    except UnboundLocalError as e:
        return y, str(e)


class Scaled:
    def __init__(self, k):
        self.k = k

    def scale(self, v):
        return v * self.k


def one_bound_method_in_two_places(x):
    scale = Scaled(2).scale
    both = [scale, scale]
    print(both[0] is both[1])
    return scale(x)


CASES = [
    (one_bound_method_in_two_places, (x,)),
    (deletes_an_argument, (x,)),
    (deletes_an_argument_twice, (x,)),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_found(fn, args):
    check(fn, args)
