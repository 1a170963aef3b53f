"""Function transforms and control flow as operators."""

from __future__ import annotations

import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from ..program import Programs, some

programs = Programs()


def linear(rows, columns):
    made = torch.nn.Linear(rows, columns)
    with torch.no_grad():
        made.weight.copy_(some(columns, rows))
        made.bias.copy_(some(columns))
    return made


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


@programs(lambda: (some(3, 4),))
def vmap_in_vmap(t):
    return torch.vmap(torch.vmap(lambda v: v * 2 + 1))(t)


@programs(lambda: (some(3, 4),))
def grad_in_vmap(t):
    return torch.vmap(torch.func.grad(lambda v: (v**3).sum()))(t)


@programs(lambda: (some(3, 4),))
def vmap_in_grad(t):
    return torch.func.grad(lambda m: torch.vmap(lambda v: v.sin().sum())(m).sum())(t)


@programs(lambda: (some(3),))
def grad_in_grad(t):
    return torch.func.grad(lambda v: torch.func.grad(lambda w: (w**3).sum())(v).sum())(t)


@programs(lambda: (some(3),))
def jvp_in_grad(t):
    return torch.func.grad(lambda v: torch.func.jvp(torch.sin, (v,), (torch.ones(3),))[1].sum())(t)


@programs(lambda: (some(3),))
def several_arguments(t):
    return torch.func.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(t, t + 1)


@programs(lambda: (some(3),))
def auxiliary(t):
    def loss(v):
        out = v.sin()
        return out.sum(), {"out": out, "n": 3}

    return torch.func.grad(loss, has_aux=True)(t), torch.func.grad_and_value(loss, has_aux=True)(t)


@programs(lambda: ({"w": some(3, 2), "b": some(2)}, some(4, 3)))
def pytrees(params, x):
    return torch.func.grad(lambda p: ((x @ p["w"] + p["b"]) ** 2).sum())(params)


@programs(lambda: (some(3, 4), some(3, 4)))
def pytrees_in_vmap(t, u):
    return torch.vmap(lambda d: {"s": d["a"] + d["b"][0], "p": (d["a"] * 2,)})({"a": t, "b": [u]})


@programs(lambda: (some(3), 2.0))
def closures(t, scale):
    bias = t.sum()

    def inner(v):
        return (v * scale + bias).sum()

    return torch.func.grad(inner)(t)


@programs(lambda: (some(6, 2),))
def chunks(t):
    return torch.vmap(lambda v: v.sum(), chunk_size=2)(t)


@programs(lambda: (some(3, 4),))
def vmap_with_keywords(t):
    return torch.vmap(lambda v, *, scale: v * scale)(t, scale=torch.arange(3.0))


@programs(lambda: (some(3, 4),))
def vmap_out_dims(t):
    return torch.vmap(lambda v: (v, v.sum()), out_dims=(1, 0))(t)


@programs(lambda: (some(3),))
def vjp_of_several(t):
    (a, b), pull = torch.func.vjp(lambda v: (v.sin(), v.cos()), t)
    return a + b, pull((a, b))


@programs(lambda: (some(3),))
def linearized(t):
    out, push = torch.func.linearize(torch.sin, t)
    return out, push(t)


@programs(lambda: (some(3, 4),))
def jacobian_of_a_matrix(t):
    return torch.func.jacrev(lambda m: m.sum(1) ** 2)(t), torch.func.jacfwd(lambda m: m.sum(0))(t)


@programs(lambda: (linear(3, 2), some(4, 3)))
def functional_calls(m, x):
    params = dict(m.named_parameters())
    return torch.func.functional_call(m, {k: v * 2 for k, v in params.items()}, (x,))


@programs(lambda: (linear(3, 1), some(4, 3)))
def gradients_of_each_sample(m, x):
    params = {k: v.detach() for k, v in m.named_parameters()}

    def loss(p, v):
        return torch.func.functional_call(m, p, (v,)).sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)


@programs(lambda: (some(3, 4),))
def refused_by_vmap(t):
    try:
        return torch.vmap(lambda v: v.item())(t)
    except RuntimeError as e:
        return str(e)[:40], t + 1


@programs(lambda: (some(3, 4),))
def wrong_in_dims(t):
    try:
        return torch.vmap(lambda v: v, in_dims=3)(t)
    except ValueError as e:
        return str(e)[:40], t + 1


@programs(lambda: (some(3),))
def not_a_scalar(t):
    try:
        return torch.func.grad(lambda v: v * 2)(t)
    except RuntimeError as e:
        return str(e)[:40], t + 1


@programs(lambda: (some(3, 4),))
def breaks_inside(t):
    def inner(v):
        print(end="")
        return v * 2

    return torch.vmap(inner)(t) + 1


@programs(lambda: (torch.tensor(True), some(4)))
def cond_of_a_tensor(p, t):
    return torch.cond(p, lambda v: v.sin(), lambda v: v.cos(), (t,))


@programs(lambda: (some(4),))
def cond_of_a_size(t):
    return torch.cond(t.shape[0] > 3, lambda v: v.sin(), lambda v: v.cos(), (t,))


@programs(lambda: (some(4),))
def cond_in_cond(t):
    def inner(v):
        return torch.cond(v.sum() > 10, lambda w: w + 1, lambda w: w - 1, (v,))

    return torch.cond(t.sum() > 0, inner, lambda v: v * 2, (t,))


@programs(lambda: (some(4), some(4)))
def cond_with_closures(t, u):
    return torch.cond(t.sum() > 0, lambda: t + u, lambda: t - u)


@programs(lambda: (some(4),))
def cond_with_pytrees(t):
    return torch.cond(
        t.sum() > 0,
        lambda d: {"a": d["x"] + 1, "b": [d["x"]]},
        lambda d: {"a": d["x"] - 1, "b": [d["x"] * 2]},
        ({"x": t},),
    )


@programs(lambda: (some(4).requires_grad_(),))
def cond_with_gradients(t):
    out = torch.cond(t.sum() > 0, lambda v: (v.sin() * 2).sum(), lambda v: v.cos().sum(), (t,))
    return torch.autograd.grad(out, t)


@programs(lambda: (torch.tensor(0), some(3)))
def loop_with_closures(i, t):
    limit = torch.tensor(3)
    return while_loop(lambda n, x: n < limit, lambda n, x: (n + 1, x * 2 + t), (i, t))


@programs(lambda: (some(5, 3),))
def scanned_with_pytrees(t):
    def step(carry, x):
        new = {"s": carry["s"] + x}
        return new, (new["s"] * 2, x.clone())

    return scan(step, {"s": torch.zeros(3)}, t)


@programs(lambda: (some(5, 3),))
def scanned_backwards(t):
    return scan(lambda c, x: (c + x, c * x), torch.zeros(3), t, reverse=True)


@programs(lambda: (some(6),))
def associative_of_pairs(t):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    return associative_scan(combine, (t, t + 1), 0, combine_mode="generic")


@programs(lambda: (some(4, 3).requires_grad_(),))
def checkpointed_with_gradients(t):
    out = checkpoint(lambda v, s: (v * s).sin(), t, 2.0, use_reentrant=False).sum()
    return torch.autograd.grad(out, t)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x


@programs(lambda: (some(4).requires_grad_(),))
def autograd_functions(t):
    return torch.autograd.grad(Double.apply(t).sum(), t)


@programs(lambda: (some(3),))
def mapped(t):
    from torch._higher_order_ops import map as mapping

    return mapping(lambda v, w: v * w, t, t + 1)
