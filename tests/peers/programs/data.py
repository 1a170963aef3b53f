"""Sizes and numbers that depend on data."""

from __future__ import annotations

import torch
from torch.torch_version import TorchVersion

from ..program import Programs, some

programs = Programs()
NEW = TorchVersion(torch.__version__) >= (2, 15)
WHILE = "a `while` on a tensor breaks the graph at each turn" if NEW else ""


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


@programs(lambda: (some(6), torch.tensor([0, 2, 5])))
def gathered_where_positive(t, i):
    chosen = i[i > 0]
    return t[chosen] * 2


@programs(lambda: (torch.tensor([True, False, True]), some(3, 2)))
def rows_by_a_mask(m, t):
    return t[m].sum(0), t[~m].shape[0]


@programs(lambda: (some(6),))
def mask_then_write(t):
    out = torch.zeros_like(t)
    out[t > 0.4] = t[t > 0.4] * 2
    return out


@programs(lambda: (torch.tensor([1, 0, 2, 0]),))
def nonzero_as_a_tuple(t):
    (i,) = t.nonzero(as_tuple=True)
    return t[i] + 1


@programs(lambda: (torch.tensor([1, 0, 2, 0]),))
def argwhere(t):
    return torch.argwhere(t), torch.count_nonzero(t)


@programs(lambda: (torch.tensor([3, 1, 3, 2]),))
def unique_with_counts(t):
    values, inverse, counts = torch.unique(t, return_inverse=True, return_counts=True)
    return values * 2, inverse, counts


@programs(lambda: (torch.tensor([3, 1, 3, 2]),))
def unique_consecutive(t):
    return torch.unique_consecutive(t)


@programs(lambda: (torch.tensor([0, 1, 1, 3]),))
def bincount(t):
    return torch.bincount(t) + 1


@programs(lambda: (some(6), torch.tensor(2)))
def item_as_a_slice(t, n):
    k = n.item()
    return t[k:], t[:-k]


@programs(lambda: (torch.tensor(3), torch.tensor(2)))
def items_as_sizes(a, b):
    return torch.ones(a.item(), b.item()).sum()


@programs(lambda: (some(6),))
def item_in_arithmetic(t):
    n = int(t.sum().item())
    return t * n + n // 2


@programs(lambda: (torch.tensor([1, 2]), some(3)))
def list_of_items(n, t):
    a, b = n.tolist()
    return t * a + b


@programs(lambda: (some(4),))
def float_of_a_tensor(t):
    return t / float(t.max()), t * bool(t.sum() > 0)


@programs(lambda: (some(4),))
def text_of_an_item(t):
    return f"{t.sum().item():.2f}", t + 1


@programs(lambda: (torch.tensor(4),))
def loop_over_an_item(n):
    total = torch.zeros(2)
    for i in range(n.item()):
        total = total + i
    return total


@programs(lambda: (some(4),), gap=WHILE)
def while_of_a_tensor(t):
    while t.sum() < 20:
        t = t * 2
    return t


@programs(lambda: (some(4),))
def branch_in_a_loop(t):
    out = []
    for i in range(3):
        if t[i] > 0.3:
            out.append(t[i] * 2)
        else:
            out.append(t[i] - 1)
    return torch.stack(out)


@programs(lambda: (torch.tensor(7), some(6)))
def check_that_fails(n, t):
    u = n.item()
    torch._check(u <= 6, lambda: f"too many: {u}")
    return t[:u] + 1


@programs(lambda: (torch.tensor(-1), some(6)))
def negative_size(n, t):
    try:
        return torch.zeros(n.item()) + t
    except RuntimeError as e:
        return "negative" in str(e), t + 1


@programs(lambda: (some(6), 0.5))
def float_that_changes(t, f):
    return t * f + f**2


@programs(lambda: (some(6), 3))
def sym_functions(t, n):
    return (
        torch.sym_max(n, t.shape[0]) + t,
        torch.sym_min(n, 2),
        torch.sym_float(n),
        torch.sym_not(n > 2),
        torch.sym_int(2.5),
    )


@programs(lambda: (some(8), torch.tensor([3, 1, 4])))
def pieces(t, n):
    return [p.sum() for p in torch.split(t, n.tolist())], torch.repeat_interleave(torch.arange(3), n)


@programs(lambda: (some(3, 4), torch.tensor([2, 4, 1])))
def lengths_to_a_mask(t, n):
    mask = torch.arange(4)[None] < n[:, None]
    return (t * mask).sum(1) / n, t[mask].mean()


@programs(lambda: (some(5, 2),))
def topk_of_an_item(t):
    k = min(int((t > 0.5).sum()), 3)
    return torch.topk(t.flatten(), k).values


@programs(lambda: (torch.tensor([0, 1, 2, 1]),))
def one_hot(t):
    return torch.nn.functional.one_hot(t), torch.nn.functional.one_hot(t, 4)
