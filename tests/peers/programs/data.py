"""Sizes and numbers that depend on data."""

from __future__ import annotations

import torch

from ..program import Programs, some

programs = Programs()


@programs(lambda: (torch.tensor(5),))
def item_as_a_size(t):
    return torch.arange(t.item()) * 2


@programs(lambda: (some(5),))
def item_as_a_factor(t):
    return t * t.sum().item()


@programs(lambda: (torch.tensor([0, 1, 0, 2]),))
def nonzero(t):
    return t.nonzero() * 2


@programs(lambda: (some(6),))
def boolean_mask(t):
    return t[t > 0.4] * 2


@programs(lambda: (some(6),))
def masked_select(t):
    return torch.masked_select(t, t > 0.4).sum()


@programs(lambda: (torch.tensor([1, 2, 3]),))
def repeat_interleave(t):
    return torch.repeat_interleave(t, t) + 1


@programs(lambda: (torch.tensor([3, 1, 3]),))
def unique(t):
    return torch.unique(t) * 2


@programs(lambda: (torch.tensor(3), some(6)))
def checked_slice(n, t):
    u = n.item()
    torch._check(u >= 0)
    torch._check(u <= 6)
    return t[:u] + 1


@programs(lambda: (torch.tensor([2, 4]), some(6)))
def split_by_data(n, t):
    return [a * 2 for a in torch.split(t, n.tolist())]


@programs(lambda: (torch.tensor(4),))
def int_of_a_tensor(t):
    return torch.zeros(int(t)).sum() + 1


@programs(lambda: (some(5),))
def items_in_a_loop(t):
    total = 0.0
    for i in range(3):
        total += t[i].item()
    return t * total


@programs(lambda: (torch.tensor(3),))
def square(t):
    u = t.item()
    return torch.full((u, u), 1.0) @ torch.ones(u, 2)


@programs(lambda: (some(4), torch.tensor([True, False, True, False])))
def assignment_through_a_mask(t, m):
    t = t.clone()
    t[m] = 0
    return t


@programs(lambda: (some(6),))
def branch_on_how_many(t):
    found = t[t > 0.4]
    return found.sum() if found.shape[0] > 2 else t.sum()
