"""Tensors: written in place, compared, hooked, and given to numpy.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.tensors import t

from .harness import agrees_with_eager


def inplace_views(x):
    a = x[0]
    a += 1
    x[1:].mul_(2)
    b = x.view(-1)
    b[0] = 9
    x.T[0, 1] = 5
    a.zero_()
    return x, a, b


def inplace_then_returns(x):
    y = x.add_(1)
    z = x
    z *= 2
    return y is x, z is x, y


def augmented_on_argument(x, y):
    x += y
    y -= x
    return x * y


def augmented_new(x):
    y = x + 0
    z = y
    y += 1
    return z, y is z


def writes_through_list(items):
    for v in items:
        v.mul_(2)
    return items[0] + items[-1]


def out_arguments(x):
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    z = torch.mul(x, 2, out=x)
    return y, z is x, x


def detaches(x):
    y = x.detach()
    y.add_(1)
    z = x.clone()
    z.data.mul_(2)
    return x, y, z, y.requires_grad


def index_assignments(x):
    x = x.clone()
    x[0, 1] = 1
    x[:, 0] = x[:, 1]
    x[x > 1] = 0
    x[[0, 1], [1, 0]] = torch.tensor([5.0, 6.0])
    x[..., -1] += 3
    x[torch.tensor([0])] = 7
    x[0] = torch.arange(3)
    return x


def identities(x):
    y = x.contiguous()
    z = x.to(x.dtype)
    w = F.dropout(x, 0.5, training=False)
    v = x.view(x.shape)
    u = x.float()
    return y is x, z is x, w is x, v is x, u is x, x.expand_as(x) is x, x.detach() is x, x[...] is x, x.cpu() is x, x.T is x, x.requires_grad_() is x, nn.Identity()(x) is x, x.reshape(-1) is x, x.squeeze() is x  # fmt: skip


def returns_inputs(x, y):
    return x, y, x, [y, {"k": x}], (x if x.ndim else y), x.view(-1)


def creation(x):
    return torch.tensor([1, 2]), torch.tensor(1.5), torch.tensor([[x.shape[0], 2]]), torch.full((2,), 3), torch.arange(0, 1, 0.25), torch.eye(2), torch.zeros_like(x, dtype=torch.int), torch.ones(x.shape), torch.linspace(0, 1, 3), x.new_tensor([1.0]), torch.as_tensor([1]), torch.empty(0), torch.scalar_tensor(2), torch.tensor(True), torch.tensor([])  # fmt: skip


def scalar_results(x):
    return x.sum().item(), int(x.numel()), float(x.max()), bool((x == x).all()), x.argmax().item(), x.tolist(), len(x), x.dim(), x.size(), x.shape[0], x.is_floating_point(), x.element_size()  # fmt: skip


def data_dependent(x):
    y = x[x > 0]
    n = y.shape[0]
    z = torch.nonzero(x).shape
    u = torch.unique((x > 0).int())
    return y * 2, n, z, u, x.repeat_interleave(2)[: n + 1], torch.where(x > 0)


def grads(x):
    w = torch.ones(3, requires_grad=True)
    loss = (w * x).sum()
    loss.backward()
    (g,) = torch.autograd.grad((w * w).sum(), w)
    return w.grad, g, w.requires_grad, loss.grad_fn is not None, w.is_leaf


def hooks(x):
    seen = []
    w = torch.ones(3, requires_grad=True)
    y = w * x
    y.register_hook(lambda g: seen.append(g.sum()))
    y.sum().backward()
    return seen, w.grad


def custom_function(x):
    return Twice.apply(x) + 1


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return v * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


def tensor_attributes(x):
    y = x + 1
    y.tag = "hello"
    z = y * 2
    return z, y.tag, hasattr(y, "tag"), hasattr(z, "tag"), getattr(z, "tag", "none")


def tensor_membership(x):
    y = x[0]
    return (
        y in x,
        [x][0] is x,
        any(v is y for v in (x, y)),
        x.equal(x),
        torch.equal(x, y),
        torch.allclose(x, x),
        id(x) == id(x),
    )


def multiple_outputs(x):
    v, i = x.max(0)
    m = torch.max(x, 0)
    u, s, w = torch.linalg.svd(x)
    return v, i, m.values, m.indices, type(m).__name__, m, s, torch.sort(x), [c.shape for c in x.chunk(2)], x.split(1), torch.meshgrid(v, v, indexing="ij"), x.aminmax()  # fmt: skip


def random_ops(x):
    a = torch.rand_like(x)
    torch.manual_seed(5)
    b = torch.randn(3)
    g = torch.Generator().manual_seed(3)
    c = torch.rand(2, generator=g)
    return (
        a,
        b,
        c,
        torch.rand(2, generator=g),
        torch.randperm(4),
        torch.bernoulli(torch.full((3,), 0.5)),
        F.dropout(x, 0.3),
    )


def numpy_work(x):
    import numpy as np

    a = x.numpy()
    return (
        torch.from_numpy(np.sin(a) + 1) * 2,
        float(a.sum()),
        torch.tensor(np.float64(2.0)),
        x * np.float32(2),
        np.int64(3) * x,
    )


def long_method_chain(x):
    d = {"a": [x]}
    d["a"].append(x * 2)
    d.get("a").extend([1])
    print("k")
    d["a"].pop()
    return d, d["a"][0]


CASES = [
    (inplace_views, (t(3, 3),)), (inplace_then_returns, (t(2),)), (augmented_on_argument, (t(2), t(2, seed=1))),
    (augmented_new, (t(2),)), (writes_through_list, ([t(2), t(2, seed=1)],)), (out_arguments, (t(2),)), (detaches, (t(2),)),
    (index_assignments, (t(2, 3),)), (identities, (t(3),)), (returns_inputs, (t(2), t(3))), (creation, (t(2),)),
    (scalar_results, (t(3),)), (data_dependent, (t(5),)), (grads, (t(3),)), (hooks, (t(3),)),
    (custom_function, (t(3).requires_grad_(),)), (tensor_attributes, (t(3),)), (tensor_membership, (t(3),)),
    (multiple_outputs, (t(3, 3),)), (random_ops, (t(3),)), (numpy_work, (t(3),)), (long_method_chain, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)


IN_KERNELS = [inplace_views, augmented_on_argument, grads]


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
@pytest.mark.parametrize("case", [c for c in CASES if c[0] in IN_KERNELS], ids=lambda c: c[0].__name__)
def test_same_as_eager_when_lowered(case, backend):
    agrees_with_eager(*case, backend=backend)
