"""Assertions and exceptions that data decides."""

from __future__ import annotations

import numpy as np
import torch

from ..program import Programs, some

programs = Programs()


@programs(lambda: (some(4),))
def with_a_message(t):
    assert (t > 0).all(), "must be positive"
    return t * 2


@programs(lambda: (some(4),))
def with_a_formatted_message(t):
    assert torch.all(t < 9), f"bad {t.shape}"
    return t + 1


@programs(lambda: (some(4),))
def without_a_message(t):
    assert t.sum() > 0
    return t + 1


@programs(lambda: (some(4),))
def torchs_own(t):
    torch._assert(t.sum() > 0, "no")
    return t + 1


@programs(lambda: (-some(4),))
def torchs_own_that_fails(t):
    torch._assert(t.sum() > 0, "no")
    return t + 1


@programs(lambda: (-some(4),))
def asynchronous_that_fails(t):
    torch._assert_async(t.sum() > 0, "no")
    return t + 1


@programs(lambda: (some(4),))
def exception(t):
    if t.sum() < 0:
        raise ValueError("negative")
    return t * 2


@programs(lambda: (-some(4),))
def exception_that_is_raised(t):
    if t.sum() < 0:
        raise ValueError(f"negative: {t.sum().item():.3f}")
    return t * 2


@programs(lambda: (-some(4),))
def exception_that_is_handled(t):
    try:
        if t.sum() < 0:
            raise ValueError("negative")
    except ValueError as e:
        return t * 3, str(e)
    return t * 2


@programs(lambda: (some(4),))
def check_of_a_value(t):
    torch._check_value((t > 0).all().item(), lambda: "bad")
    return t * 2


@programs(lambda: (-some(4),))
def that_fails(t):
    assert (t > 0).all(), "must be positive"
    return t * 2


@programs(lambda: (-some(4),))
def that_fails_before_a_write(t):
    assert t.sum() > 0, "no"
    t.mul_(2)
    return t


@programs(lambda: (-some(4),))
def that_fails_after_a_write(t):
    t.mul_(2)
    assert t.sum() > 0, "no"
    return t + 1


@programs(lambda: (some(4), [1]))
def that_holds_between_effects(t, seen):
    seen.append(2)
    assert (t > 0).all()
    seen.append(3)
    t.add_(1)
    return t * 2


@programs(lambda: (-some(4), [1]))
def that_fails_between_effects(t, seen):
    seen.append(2)
    assert (t > 0).all(), seen
    seen.append(3)
    t.add_(1)
    return t * 2


@programs(lambda: (some(4),))
def of_several_conditions(t):
    assert (t > 0).all() and t.sum() < 100 and not t.isnan().any(), "bad"
    return t.sqrt()


@programs(lambda: (-some(4),))
def of_several_conditions_that_fails(t):
    assert t.sum() < 100 and not t.isnan().any() and (t > 0).all(), "bad"
    return t.sqrt()


@programs(lambda: (some(4),))
def of_the_opposite(t):
    assert not (t < 0).any()
    return t + 1


@programs(lambda: (some(3, 4),))
def in_a_loop(t):
    total = torch.zeros(4)
    for i, row in enumerate(t):
        assert row.sum() > 0, f"row {i}"
        total = total + row
    return total


@programs(lambda: (torch.tensor([[1.0], [-1.0], [2.0]]),))
def in_a_loop_that_fails(t):
    total = torch.zeros(1)
    for i, row in enumerate(t):
        assert row.sum() > 0, f"row {i}"
        total = total + row
    return total


def checked(t, least):
    def described():
        return f"less than {least}: {t.min().item():.2f}"

    assert t.min() >= least, described()
    return t


@programs(lambda: (some(4), 0.0))
def in_a_helper(t, least):
    return checked(t * 2, least) + 1


@programs(lambda: (some(4), 5.0))
def in_a_helper_that_fails(t, least):
    return checked(t * 2, least) + 1


class Checked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        assert torch.isfinite(x).all(), "not finite"
        y = self.norm(x)
        assert torch.isfinite(y).all()
        return y.relu()


@programs(lambda: (Checked(), some(4, 3)))
def in_a_module(m, t):
    return m(t), m.norm.running_mean


@programs(lambda: (Checked(), some(4, 3) / 0))
def in_a_module_that_fails(m, t):
    return m(t)


@programs(lambda: (some(4).requires_grad_(),))
def with_gradients(t):
    assert (t > 0).all()
    return torch.autograd.grad((t * t).sum(), t)


@programs(lambda: (some(4), np.arange(4.0)))
def of_arrays(t, a):
    b = a * 2
    assert b.sum() > 0, "no"
    return t * torch.from_numpy(b)


@programs(lambda: (np.arange(4.0),))
def of_arrays_that_fails(a):
    b = a * 2
    assert b.sum() < 0, b.shape
    return b


@programs(lambda: (some(4),))
def of_shapes(t):
    assert t.shape == (4,) and t.ndim == 1, t.shape
    return t + 1


@programs(lambda: (some(4),))
def of_shapes_that_fails(t):
    assert t.shape == (5,), t.shape
    return t + 1


@programs(lambda: (some(4),))
def of_what_is_ambiguous(t):
    assert t > 0
    return t + 1


@programs(lambda: (some(4),))
def of_one_element(t):
    assert t[:1]
    assert t[0].long() + 1
    return t + 1


@programs(lambda: (torch.tensor(float("nan")),))
def of_a_nan(t):
    assert t
    return t + 1


@programs(lambda: (some(4), torch.tensor(3)))
def of_an_item(t, n):
    u = n.item()
    assert u < 10
    return t * u


@programs(lambda: (some(4),))
def other_checks(t):
    torch._check(t.shape[0] > 2, lambda: "few")
    return t + 1


@programs(lambda: (some(4),))
def other_checks_that_fail(t):
    torch._check(t.shape[0] > 5, lambda: f"few: {t.shape[0]}")
    return t + 1


@programs(lambda: (some(4),))
def inside_of_contexts(t):
    with torch.no_grad():
        assert (t > 0).all()
        y = t * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if y.isnan().any():
            raise ValueError("not a number")
        return y + 1


class Rows:
    def __init__(self, t):
        self.t, self.i = t, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        if self.t[self.i] > 0.5:
            raise StopIteration
        return self.t[self.i]


@programs(lambda: (some(6),))
def that_ends_a_loop(t):
    total = 0.0
    for row in Rows(t):
        total = total + row
    return total


@programs(lambda: (some(4),))
def one_of_two_raises(t):
    if t.sum() > 0:
        y = t * 2
    else:
        raise RuntimeError("no")
    return y + 1
