"""Function transforms and control flow as operators."""

from __future__ import annotations

import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from ..program import Programs, some

programs = Programs()


@programs(lambda: (some(3, 4),))
def vmap(t):
    return torch.vmap(lambda v: v.sum() * v)(t)


@programs(lambda: (some(3, 4), some(4)))
def vmap_over_one_of_two(t, u):
    return torch.vmap(lambda v, w: v * w, in_dims=(0, None), out_dims=1)(t, u)


@programs(lambda: (some(4),))
def grad(t):
    return torch.func.grad(lambda v: (v**2).sum())(t)


@programs(lambda: (some(4),))
def grad_and_value(t):
    return torch.func.grad_and_value(lambda v: v.sin().sum())(t)


@programs(lambda: (some(4),))
def jacrev(t):
    return torch.func.jacrev(lambda v: v**2)(t)


@programs(lambda: (some(4),))
def jacfwd(t):
    return torch.func.jacfwd(lambda v: v**2)(t)


@programs(lambda: (some(3),))
def hessian(t):
    return torch.func.hessian(lambda v: (v**3).sum())(t)


@programs(lambda: (some(3),))
def jvp(t):
    return torch.func.jvp(torch.sin, (t,), (t,))


@programs(lambda: (some(3),))
def vjp(t):
    out, pull = torch.func.vjp(torch.sin, t)
    return out, pull(t)


@programs(lambda: (some(3, 4),))
def gradients_of_samples(t):
    return torch.vmap(torch.func.grad(lambda v: v.sin().sum()))(t)


@programs(lambda: (some(3),))
def functionalize(t):
    return torch.func.functionalize(lambda v: v.add_(1))(t.clone())


@programs(lambda: (some(4),))
def cond(t):
    return torch.cond(t.sum() > 0, lambda v: v + 1, lambda v: v - 1, (t,))


@programs(lambda: (some(4),))
def loop(t):
    return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), t))


@programs(lambda: (some(3, 4),))
def scanned(t):
    return scan(lambda carry, v: (carry + v, carry * v), t[0], t)


@programs(lambda: (some(3, 4),))
def associative(t):
    return associative_scan(lambda a, b: a + b, t, 0, combine_mode="generic")


@programs(lambda: (some(3, 4),))
def checkpointed(t):
    return checkpoint(lambda v: v.sin().cos(), t, use_reentrant=False)
