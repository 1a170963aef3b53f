"""Longer programs in which data decides sizes, numbers and what is chosen."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from ..program import Programs, some

programs = Programs()


@programs(lambda: (torch.tensor(2), torch.tensor(3)))
def factories_by_items(a, b):
    n, m = a.item(), b.item()
    return torch.zeros(n, m), torch.ones(m), torch.full((n,), m), torch.arange(n, n + m), torch.eye(m)


@programs(lambda: (torch.tensor(4), some(3)))
def new_tensors_by_items(n, t):
    k = n.item()
    return t.new_zeros(k) + 1, t.new_ones((k, 2)) * 2, t.new_full((2, k), 0.5), torch.linspace(0, 1, k)


@programs(lambda: (torch.tensor(0), some(4, 3)))
def size_zero(n, t):
    k = n.item()
    empty = t[:k]
    return empty.shape, empty.sum(0), torch.cat([empty, t]), torch.zeros(k).prod()


@programs(lambda: (torch.tensor(1), some(4, 3)))
def size_one(n, t):
    k = n.item()
    return t[:k] + t, torch.ones(k, 3) * t, t[:, :k].squeeze(1)


@programs(lambda: (torch.tensor(2), some(6)))
def reshaped_by_an_item(n, t):
    k = n.item()
    return t.view(k, -1).sum(1), t.reshape(6 // k, k).t() + 1


@programs(lambda: (torch.tensor(2), some(6)))
def unflattened_by_an_item(n, t):
    k = n.item()
    return t.unflatten(0, (k, -1)), t.unflatten(0, (3, k)).flatten() + 1


@programs(lambda: (torch.tensor(2), some(2, 3)))
def windows_by_an_item(n, t):
    k = n.item()
    return t.unfold(1, k, 1), F.avg_pool1d(t, k), F.interpolate(t[None], size=k)


@programs(lambda: (torch.tensor(1), some(2, 3)))
def dimension_by_an_item(n, t):
    k = n.item()
    return t.sum(k), t.unsqueeze(k), t.transpose(0, k), t.softmax(k), torch.cat([t, t], k)


@programs(lambda: (torch.tensor(2), some(3, 6)))
def narrowed_by_an_item(n, t):
    k = n.item()
    return t.narrow(1, k, 3).sum(), t.narrow(1, 0, k) + 1, t.select(1, k)


@programs(lambda: (torch.tensor([3, 1, 2]), some(3, 4)))
def rows_padded_to_the_longest(n, t):
    longest = int(n.max())
    mask = torch.arange(longest) < n[:, None]
    return torch.where(mask, t[:, :longest], 0.0), mask.sum()


@programs(lambda: (torch.tensor(2), some(8)))
def strided_slice(n, t):
    k = n.item()
    return t[::k], t[1::k] * 2, t[k:-k:k]


@programs(lambda: (torch.tensor([1, 4]), some(6)))
def slice_between_items(n, t):
    a, b = n.tolist()
    return t[a:b] + t[b - a], t[: b - a].sum()


@programs(lambda: (torch.tensor(1), torch.tensor(4), some(6)))
def slice_by_tensors(a, b, t):
    return t[a:b] * 2, t[a], t[b:]


@programs(lambda: (torch.tensor(2), some(6)))
def written_up_to_an_item(n, t):
    k = n.item()
    t[:k] = 0
    t[k] = 9
    t[k + 1 :] += 1
    return t * 1


@programs(lambda: (torch.tensor(-2), some(6)))
def negative_index(n, t):
    k = n.item()
    return t[k], t[k:], t[:k]


@programs(lambda: (torch.tensor(2.5), some(3)))
def fill_with_an_item(v, t):
    t = t.clone()
    t[1:].fill_(v.item())
    return t, torch.full_like(t, v.item() * 2), t.masked_fill(t > 2, float(v))


@programs(lambda: (torch.tensor(2.0), some(4)))
def power_and_clamp_by_items(v, t):
    f = v.item()
    return t**f, t.clamp(max=f / 4), torch.lerp(t, t + 1, f), torch.add(t, t, alpha=f)


@programs(lambda: (torch.tensor(2.0), torch.tensor(3)))
def math_of_items(f, n):
    x, k = f.item(), n.item()
    return torch.ones(2) * math.sqrt(x) + math.exp(-x), math.floor(x * 1.4), math.ceil(x / 3), k % 2, -k // 2


@programs(lambda: (torch.tensor(7), some(2)))
def integer_arithmetic_of_an_item(n, t):
    k = n.item()
    return t + k // 2 + k % 3, t * (k << 1), abs(-k), divmod(k, 3), k**2


@programs(lambda: (torch.tensor(2.5), torch.tensor(-2.5)))
def rounded_items(a, b):
    return round(a.item()), int(a), int(b), math.trunc(b.item()), torch.zeros(int(a.item()))


@programs(lambda: (torch.tensor(5), torch.tensor(3), some(6)))
def least_and_greatest_of_items(a, b, t):
    n, m = a.item(), b.item()
    return t[: min(n, m)], t[: max(n, m)], t[: torch.sym_min(n, m)] + 1, t[: torch.sym_max(n, 4)] + 1


@programs(lambda: (torch.tensor(5), some(2)))
def sym_functions_of_an_item(n, t):
    k = n.item()
    return t * torch.sym_float(k), torch.sym_int(k / 2) + t, torch.sym_not(k > 3), torch.sym_ite(k > 3, k, 0) + t


@programs(lambda: (torch.tensor(True), torch.tensor(3), some(2)))
def bools_of_tensors(p, n, t):
    return t * p.item(), bool(n), not n, t + (n > 2).item(), int(p) + float(p)


@programs(lambda: (torch.tensor(3),))
def item_that_is_returned(n):
    k = n.item()
    return k, k + 1, [k * 2], {"half": k / 2}


@programs(lambda: (torch.tensor(2), some(3)))
def lookup_by_an_item(n, t):
    k = n.item()
    return {1: t, 2: t * 2}[k], [t, t + 1, t + 2][k], ("a", "b", "c")[k]


@programs(lambda: (torch.tensor(2), some(3)))
def membership_of_an_item(n, t):
    k = n.item()
    return k in (1, 2), k in {1: 0}, t + 1 if k == 2 else t


@programs(lambda: (torch.tensor(2), [1, 2, 3], some(3)))
def lists_by_an_item(n, values, t):
    k = n.item()
    return values[:k], values * k, values.index(k), "ab" * k, t + k


@programs(lambda: (torch.tensor(3), some(3)))
def numbers_to_tensors(n, t):
    k = n.item()
    return torch.tensor(k), torch.tensor([k, 2 * k]), torch.scalar_tensor(k), t.new_tensor([k, 1.5])


@programs(lambda: (torch.tensor(2), some(2, 3)))
def power_of_a_matrix(n, t):
    m = t @ t.t()
    return torch.linalg.matrix_power(m, n.item()), m ** n.item(), torch.pow(n.item(), t)


@programs(lambda: (torch.tensor(-1.0), some(4)))
def root_of_a_negative_item(v, t):
    return t * math.sqrt(v.item())


@programs(lambda: (some(4),))
def tensor_from_items(t):
    a, b = t[0].item(), t[1].item()
    return torch.tensor([a, b, a + b]) * 2, torch.as_tensor(a), torch.tensor([t[2], t[3]])


@programs(lambda: (some(4),))
def item_before_and_after_a_write(t):
    before = t[0].item()
    t.add_(1)
    after = t[0].item()
    t[1:].mul_(after - before)
    return t * before, after


@programs(lambda: (some(4), torch.tensor(2)))
def item_of_a_view_that_is_written(t, n):
    view = t.view(2, 2)[1]
    view.fill_(n.item())
    total = t.sum().item()
    view.zero_()
    return t / total, view.sum().item()


@programs(lambda: (some(6),))
def empty_selection(t):
    found = t[t > 9]
    return found.sum(), found.numel(), found * 2, torch.cat([found, t[:1]])


@programs(lambda: (some(6),))
def greatest_of_an_empty_selection(t):
    return t[t > 9].max()


@programs(lambda: (some(6),))
def mean_and_product_of_a_selection(t):
    found = t[t > 0.4]
    return found.mean(), found.prod(), found.std(), found.max(), found.argmin(), found.norm()


@programs(lambda: (some(6), some(6) + 1))
def one_mask_for_two_tensors(t, u):
    mask = t > 0.4
    return t[mask] + u[mask], t[mask] @ u[mask], torch.stack([t[mask], u[mask]])


@programs(lambda: (some(6),))
def two_masks_of_one_size(t):
    a, b = t > 0.5, t < 0.5
    return torch.cat([t[a], t[b]]), t[a].sum() - t[b].sum(), t[a | b]


@programs(lambda: (some(6),))
def masks_of_other_sizes(t):
    return t[t > 0.2] + t[t > 0.5]


@programs(lambda: (some(3, 4), torch.tensor([True, False, True])))
def mask_and_integers_as_indices(t, m):
    return t[m, 1], t[m, 1:3], t[1, t[0] > 0.3], t[m][:, [0, 2]]


@programs(lambda: (some(4), torch.tensor([True, False, True, False])))
def values_written_through_a_mask(t, m):
    t[m] = torch.tensor([7.0, 8.0])
    t[~m] += 1
    return t * 2


@programs(lambda: (some(6), torch.tensor([True, False] * 3)))
def accumulated_through_a_mask(t, m):
    t[m] += t[~m]
    t.index_put_((m,), torch.tensor(1.0), accumulate=True)
    t[m] /= 2
    return t * 1


@programs(lambda: (some(4), torch.tensor([True, False, True, False])))
def loop_over_a_selection(t, m):
    total = torch.zeros(())
    for v in t[m]:
        total = total * 2 + v
    return total, len(t[m])


@programs(lambda: (some(4), torch.tensor([True, True, True, False])))
def too_few_values_for_a_mask(t, m):
    t[m] = torch.tensor([7.0, 8.0])
    return t


@programs(lambda: (some(4), torch.tensor([True, False])), gap="a mask that does not fit")
def mask_of_a_wrong_size(t, m):
    return t[m] + 1


@programs(lambda: (some(4), torch.tensor([True, False, True, False])))
def masked_scatter(t, m):
    return t.masked_scatter(m, torch.tensor([7.0, 8.0, 9.0])), t.masked_fill(m, 0.5), t.index_put((m,), t.sum())


@programs(lambda: (torch.tensor([0, 3, 0, 1]), some(4)))
def nonzero_as_an_index(n, t):
    i = n.nonzero().squeeze(1)
    return (
        t[i],
        t.index_select(0, i),
        t.index_fill(0, i, 0.0),
        t.index_add(0, i, t[i]),
        torch.zeros(4).scatter(0, i, 1.0),
    )


@programs(lambda: (torch.tensor([[3, 1], [1, 3], [3, 1]]),))
def unique_rows(t):
    rows, inverse = torch.unique(t, dim=0, return_inverse=True)
    return rows + 1, rows[inverse] - t, rows.shape[0]


@programs(lambda: (torch.tensor([2, 2, 0, 5]), some(4)))
def sums_by_group(group, t):
    names, inverse = group.unique(return_inverse=True)
    return (
        names,
        torch.zeros(names.numel()).index_add(0, inverse, t),
        torch.zeros_like(names).scatter_add(0, inverse, group),
    )


@programs(lambda: (torch.tensor([0, 1, 1, 3]), some(4)))
def bincount_with_weights(i, w):
    return torch.bincount(i, w), torch.bincount(i, minlength=6), torch.bincount(i)[i], torch.bincount(i[:0])


@programs(lambda: (some(2, 3), torch.tensor([2, 1])))
def rows_repeated(t, n):
    return torch.repeat_interleave(t, n, dim=0) * 2, t.repeat_interleave(n, 0, output_size=3), t.repeat_interleave(2)


@programs(lambda: (some(7), torch.tensor([2, 5])))
def tensor_split_by_data(t, n):
    return [p.sum() for p in torch.tensor_split(t, n)], [p * 2 for p in t.tensor_split(n.tolist())]


@programs(lambda: (some(6), torch.tensor(3)))
def chunks_by_an_item(t, n):
    k = n.item()
    return [c * 2 for c in t.chunk(k)], [c.sum() for c in t.split(k)]


@programs(lambda: (some(6), torch.tensor(4)))
def top_of_an_item(t, n):
    k = n.item()
    values, index = t.topk(k)
    return values, index, t.kthvalue(k).values, t.sort(descending=True).values[:k]


@programs(lambda: (torch.tensor(3), some(6)))
def checks_of_both_bounds(n, t):
    k = n.item()
    torch._check(0 <= k <= t.shape[0])
    if k <= 6:
        t = t * 2
    return t[:k] + t[t.shape[0] - k :]


@programs(lambda: (torch.tensor(4), some(3)))
def check_of_an_index(n, t):
    k = n.item()
    try:
        torch._check_index(k < 3, lambda: f"no element {k}")
    except IndexError as e:
        return str(e), t + 1
    return t[k]


@programs(lambda: (torch.tensor(3), some(3)))
def checks_of_other_kinds(n, t):
    k = n.item()
    torch._check_type(isinstance(t, torch.Tensor), lambda: "no tensor")
    torch._check_value(k > 0, lambda: "no")
    torch._check_tensor_all(t > 0, lambda: "no")
    torch._check_not_implemented(k < 5)
    return torch.ones(k) + t


@programs(lambda: (torch.tensor(4), some(3)))
def size_that_is_checked(n, t):
    k = n.item()
    torch._check_is_size(k)
    return torch.ones(k).sum() * t


@programs(lambda: (torch.tensor([2, 0, 1]), some(4)))
def checks_in_a_loop(n, t):
    out = []
    for k in n.tolist():
        torch._check(k >= 0)
        torch._check(k < t.shape[0])
        out.append(t[k] + t[:k].sum())
    return torch.stack(out)


@programs(lambda: (torch.tensor(5), some(3)))
def index_out_of_range(n, t):
    return t[n.item()] + 1


@programs(lambda: (some(3),))
def item_of_several_elements(t):
    return t * t.item()


@programs(lambda: (torch.tensor(float("nan")), some(3)))
def int_of_what_is_no_number(v, t):
    return t + int(v)


@programs(lambda: (torch.tensor(3, dtype=torch.int32), torch.tensor(2, dtype=torch.uint8), some(6)))
def items_of_short_integers(a, b, t):
    return t[: a.item()] + b.item(), torch.full((b.item(),), a.item()), torch.arange(a.item(), dtype=torch.int16)


@programs(lambda: (torch.tensor(0.3, dtype=torch.bfloat16), torch.tensor(0.1, dtype=torch.float64), some(2)))
def items_of_other_floats(a, b, t):
    return a.item(), b.item(), t * a.item(), t.double() * b.item(), t.half() + b.item(), torch.full((2,), a.item())


@programs(lambda: (torch.tensor([True, False, True]), torch.tensor([1, 2, 3], dtype=torch.int32)))
def promotion_with_items(p, n):
    return n * p[0].item(), n + 0.5 * n[1].item(), p + n.sum().item(), n / n[2].item(), n**2.0, p.sum() * 1.5


@programs(lambda: (some(6).to(torch.bfloat16), some(6).double()))
def selections_of_other_floats(a, b):
    found = a[a > 0.4]
    return found * 2, found.float().sum(), b[b > 0.4].cumsum(0), found + b[a > 0.4]


@programs(lambda: (torch.tensor(2**62), some(2)))
def great_integers(n, t):
    k = n.item()
    return k * 4, k // 3, n * 2 - 1, t * float(k), torch.full((2,), k)


@programs(lambda: (torch.tensor(1 + 2j), some(2)))
def complex_items(z, t):
    return z.item(), t * z.item(), abs(z.item()), z.real.item() + t


@programs(lambda: (some(5, 4), some(4, 3).sin() * 4, some(3, 4, 4)))
def mixture_of_experts(x, gate, experts):
    weights, chosen = (x @ gate).softmax(-1).topk(2)
    out = torch.zeros_like(x)
    for e in range(experts.shape[0]):
        rows, slot = torch.where(chosen == e)
        out.index_add_(0, rows, weights[rows, slot, None] * (x[rows] @ experts[e]))
    return out


@programs(lambda: (some(6, 2), torch.tensor([1, 0, 3, 1, 3, 3]), some(4, 2, 2)))
def experts_by_sorted_rows(x, expert, weights):
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=4).tolist()
    parts = [p @ w for p, w in zip(x[order].split(counts), weights, strict=True)]
    return torch.cat(parts)[order.argsort()]


@programs(lambda: (some(2, 6).cos() * 3, 0.8))
def most_likely_tokens(logits, p):
    values, index = logits.softmax(-1).sort(descending=True)
    dropped = values.cumsum(-1) - values > p
    kept = logits.masked_fill(torch.zeros_like(dropped).scatter(-1, index, dropped), -math.inf)
    return kept.softmax(-1), kept[kept > -math.inf], (~dropped).sum(-1).tolist()


@programs(lambda: (torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4], [3, 3, 4, 4.2]]), some(4)))
def boxes_that_do_not_overlap(boxes, scores):
    order, kept = scores.argsort(descending=True), []
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    while order.numel() > 0:
        first, rest = order[0], order[1:]
        kept.append(first)
        low, high = torch.maximum(boxes[first, :2], boxes[rest, :2]), torch.minimum(boxes[first, 2:], boxes[rest, 2:])
        both = (high - low).clamp(min=0).prod(1)
        order = rest[both / (area[first] + area[rest] - both) <= 0.5]
    return torch.stack(kept)


@programs(lambda: ([some(2, 3), some(1, 3) + 1, some(3, 3) + 2],))
def ragged_rows_packed(rows):
    packed = torch.cat(rows)
    ends = torch.tensor([len(r) for r in rows]).cumsum(0)
    return [packed[b - len(r) : b].sum(0) for r, b in zip(rows, ends.tolist(), strict=True)], ends


@programs(lambda: (some(3, 4), torch.tensor([3, 0, 2])))
def padded_rows_to_packed_and_back(t, n):
    mask = torch.arange(t.shape[1]) < n[:, None]
    packed = t[mask] * 2
    return packed, torch.zeros_like(t).masked_scatter(mask, packed), F.pad(n.cumsum(0), (1, 0))


@programs(lambda: (some(6), torch.tensor([2, 0, 3, 1])))
def segment_sums(t, n):
    ids = torch.arange(4).repeat_interleave(n)
    sums = torch.zeros(4).index_add(0, ids, t)
    return sums, sums / n.clamp(min=1), torch.segment_reduce(t, "sum", lengths=n)


@programs(lambda: (torch.tensor([5, 3, 5, 0, 7]), 5))
def text_up_to_its_end(tokens, end):
    found = (tokens == end).nonzero()
    last = found[-1].item() if found.numel() else tokens.shape[0]
    return tokens[:last], F.pad(tokens[:last], (0, 5 - last), value=-1)


@programs(lambda: (some(4), torch.tensor(3)))
def loop_with_a_bound(t, n):
    k = n.item()
    for i in range(4):
        if i >= k:
            break
        t = t * 2 + i
    return t


@programs(lambda: (torch.tensor(10.0), some(3)))
def halved_until_it_is_small(v, t):
    x, turns = v.item(), 0
    while x > 1:
        x, turns = x / 2, turns + 1
    return t * x, turns


@programs(lambda: (some(6).requires_grad_(),))
def gradient_through_a_mask(t):
    return torch.autograd.grad((t[t > 0.4] ** 2).sum(), t)


@programs(lambda: (some(4).requires_grad_(),))
def gradient_of_a_gradient_through_a_mask(t):
    (g,) = torch.autograd.grad((t[t > 0.2] ** 3).sum(), t, create_graph=True)
    return torch.autograd.grad(g.sum(), t)


@programs(lambda: (some(4).requires_grad_(), torch.tensor(2)))
def results_that_require_gradients(t, n):
    k = n.item()
    out = t[:k].exp()
    return out, out.detach() * k, t[t > 0.3].requires_grad


@programs(lambda: (some(4).requires_grad_(),))
def scale_without_gradients(t):
    with torch.no_grad():
        scale = t.abs().max().item()
    out = t / scale
    return out, out.requires_grad, torch.autograd.grad(out.sum(), t)


@programs(lambda: (some(4).requires_grad_(), torch.tensor([True, False, True, True])))
def gradient_through_a_written_mask(t, m):
    out = t * 1
    out[m] = out[m] ** 2
    return torch.autograd.grad(out.sum(), t)


@programs(lambda: (some(4).requires_grad_(),))
def write_to_what_requires_gradients(t):
    t[t > 0.3] = 0
    return t


@programs(lambda: (torch.tensor(3), some(6)))
def item_in_a_closure(n, t):
    k = n.item()

    def cut(v, step=1):
        def inner():
            return v[:k:step] * k

        return inner()

    return cut(t), cut(t + 1, step=2)


@programs(lambda: (torch.tensor([2, 3]), some(6)))
def item_that_a_nested_function_changes(n, t):
    start = 0

    def take(k):
        nonlocal start
        start += k
        return t[start - k : start].sum()

    return [take(k) for k in n.tolist()], start


class Counter(torch.nn.Module):
    """What it has seen is kept in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(1))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        k = self.calls.item()
        self.seen[:k] = x[:k]
        return self.seen * 2, k


@programs(lambda: (Counter(), some(4)))
def buffer_that_counts(m, x):
    return m(x), m(x + 1)


class Pruned(torch.nn.Module):
    """Columns whose mask is off take no part."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(some(2, 3))
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, x):
        return x[:, self.mask] @ self.weight[:, self.mask].t()


@programs(lambda: (Pruned(), some(2, 3)))
def buffer_as_a_mask(m, x):
    return m(x), m.mask.sum().item()
