"""Control flow as operators, in combination with each other, with transforms and with gradients."""

from __future__ import annotations

import functools

import torch
from torch._higher_order_ops import map as mapping
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.autograd import forward_ad
from torch.func import functionalize, grad, grad_and_value, hessian, jvp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ..program import Programs, some

programs = Programs()


class Branches(torch.nn.Module):
    """Its methods are branches, steps and turns."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(some(3))
        self.register_buffer("offset", torch.ones(3))

    def up(self, x):
        return x * self.weight + self.offset

    def down(self, x):
        return x - self.weight

    def step(self, carry, x):
        new = carry * 0.5 + self.up(x)
        return new, new.sum()

    def choose(self, x):
        return torch.cond(x.sum() > 0, self.up, self.down, (x,))

    def forward(self, x):
        return self.up(x).tanh()


def up(x):
    return x + 1


def down(x):
    return x - 1


def said(call):
    """What a call gives, or how it is refused: the whole text has names and sizes that depend on what ran before."""
    try:
        return call()
    except RuntimeError as e:
        return type(e).__name__, str(e)[:40]


@programs(lambda: (some(3), True))
def cond_of_a_bool(t, p):
    return torch.cond(p, up, down, (t,)), torch.cond(not p, up, down, (t,))


@programs(lambda: (some(3), torch.tensor(4)))
def cond_of_an_item(t, n):
    return torch.cond(n.item() > 3, up, down, (t,))


@programs(lambda: (some(3), torch.tensor([True, False])))
def cond_of_several_elements(t, p):
    return torch.cond(p, up, down, (t,))


@programs(lambda: (some(3),))
def cond_of_a_float_tensor(t):
    return torch.cond(t.sum(), up, down, (t,))


@programs(lambda: (some(3),))
def cond_of_a_text(t):
    return torch.cond("yes", up, down, (t,))


@programs(lambda: (some(3),))
def branches_of_other_structure(t):
    return said(lambda: torch.cond(t.sum() > 0, lambda v: (v * 2, v + 1), lambda v: v - 1, (t,)))


@programs(lambda: (some(3), torch.tensor(True)))
def branches_of_other_types(t, p):
    return said(lambda: torch.cond(p, lambda v: v.long(), lambda v: v * 2, (t,)))


@programs(lambda: (some(3), torch.tensor(False)), gap="a branch that gives another size")
def branches_of_other_sizes(t, p):
    return torch.cond(p, lambda v: v[:1] * 2, lambda v: v * 2, (t,))


@programs(lambda: (some(3), torch.tensor(False)), gap="a branch that gives a number")
def branches_that_give_numbers(t, p):
    return torch.cond(p, lambda v: 1, lambda v: 2, (t,))


@programs(lambda: (some(3), torch.tensor(False)))
def branches_that_give_nothing(t, p):
    return said(lambda: torch.cond(p, lambda v: None, lambda v: None, (t,)))


@programs(lambda: (some(3), torch.tensor(True)))
def a_branch_that_writes(t, p):
    return said(lambda: torch.cond(p, lambda v: v.add_(1), lambda v: v - 1, (t,))), t


@programs(lambda: (some(3), torch.tensor(True)))
def branches_that_write_to_what_they_made(t, p):
    def double(v):
        out = v.clone()
        out[0] = 9
        return out.mul_(2)

    return torch.cond(p, double, lambda v: torch.zeros_like(v).add_(v), (t,))


@programs(lambda: (some(3), torch.tensor(True)))
def operands_that_are_no_tensors(t, p):
    return torch.cond(p, lambda v, k: v * k, lambda v, k: v - k, (t, 3))


@programs(lambda: (some(3), torch.tensor(True)))
def operands_of_a_wrong_number(t, p):
    return said(lambda: torch.cond(p, lambda a, b: a + b, lambda a, b: a - b, (t,)))


@programs(lambda: (some(3), torch.tensor(True)))
def cond_with_keywords(t, p):
    return torch.cond(pred=p, true_fn=up, false_fn=down, operands=(t,))


@programs(lambda: (some(3), torch.tensor(True), 2.0))
def partial_functions_as_branches(t, p, f):
    def scaled(v, *, by):
        return v * by

    return torch.cond(p, functools.partial(scaled, by=f), functools.partial(scaled, by=-f), (t,))


@programs(lambda: (Branches(), some(3)))
def methods_as_branches(m, t):
    return m.choose(t), m.choose(-t)


@programs(lambda: (some(2, 3).requires_grad_(), some(3).requires_grad_(), torch.tensor(False)))
def gradients_of_operands_and_closures(x, w, p):
    out = torch.cond(p, lambda v: v @ w, lambda v: (v * w).sum(1), (x,))
    return out, torch.autograd.grad(out.sum(), (x, w))


@programs(lambda: (some(4, 3) - 1,), gap="torch.cond inside of vmap")
def cond_in_vmap(t):
    return vmap(lambda v: torch.cond(v.sum() > 0, torch.sin, lambda w: w * 2, (v,)))(t)


@programs(lambda: (some(3), True))
def grad_of_cond(t, p):
    return grad(lambda v: torch.cond(p, lambda w: (w**2).sum(), lambda w: w.sum(), (v,)))(t)


@programs(lambda: (some(3), torch.tensor(True)))
def grad_in_a_branch(t, p):
    return torch.cond(p, grad(lambda v: (v**2).sum()), lambda v: v * 3, (t,))


@programs(lambda: (some(2, 3), torch.tensor(True)))
def vmap_in_a_branch(t, p):
    return torch.cond(p, vmap(lambda v: v * v.sum()), lambda v: v - 1, (t,))


@programs(lambda: (some(3), torch.tensor(True)))
def cond_in_functionalize(t, p):
    def inner(v):
        return torch.cond(p, lambda w: w.clone().add_(1), lambda w: w - 1, (v,))

    return functionalize(inner)(t)


@programs(lambda: (some(6), torch.tensor(True)))
def cond_on_a_selection(t, p):
    found = t[t > 0.4]
    return torch.cond(p, lambda v: v.sum(), lambda v: v.prod(), (found,))


@programs(lambda: (torch.tensor(0), some(3)))
def loop_in_a_branch(i, t):
    def run(v):
        return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (i, v))[1]

    return torch.cond(t.sum() > 0, run, lambda v: v - 1, (t,))


@programs(lambda: (torch.tensor(0), some(3)))
def cond_in_a_loop(i, t):
    def turn(n, x):
        return n + 1, torch.cond(n % 2 == 0, lambda v: v * 2, lambda v: v + 1, (x,))

    return while_loop(lambda n, x: n < 5, turn, (i, t))


@programs(lambda: (torch.tensor(0), some(3)))
def loop_in_a_loop(i, t):
    def turn(n, x):
        return n + 1, while_loop(lambda m, y: m < n, lambda m, y: (m + 1, y + 1), (torch.zeros_like(n), x))[1]

    return while_loop(lambda n, x: n < 3, turn, (i, t))


@programs(lambda: (torch.tensor(9), some(3)))
def loop_without_turns(i, t):
    n, x = while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (i, t))
    return n, x + 1


@programs(lambda: (some(3),), gap="a number that a loop carries")
def loop_over_a_number(t):
    return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (0, t))


@programs(lambda: (some(3),))
def loop_until_it_is_great(t):
    def turn(d):
        return ({"x": d["x"] * 2, "turns": d["turns"] + 1},)

    return while_loop(lambda d: d["x"].max() < 10, turn, ({"x": t, "turns": torch.tensor(0)},))


@programs(lambda: (torch.tensor(0), some(3)))
def loop_whose_turn_gives_another_type(i, t):
    return said(lambda: while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x.double()), (i, t)))


@programs(lambda: (torch.tensor(0), some(3)))
def loop_whose_turn_gives_too_little(i, t):
    return said(lambda: while_loop(lambda n, x: n < 3, lambda n, x: (n + 1,), (i, t)))


@programs(lambda: (torch.tensor(0), some(3)))
def loop_whose_condition_is_no_scalar(i, t):
    return said(lambda: while_loop(lambda n, x: x > 3, lambda n, x: (n + 1, x * 2), (i, t)))


@programs(lambda: (Branches(), some(4, 3)))
def method_as_a_step(m, xs):
    return scan(m.step, torch.zeros(3), xs)


@programs(lambda: (some(2, 5).requires_grad_(), some(2)))
def scan_over_columns_with_gradients(xs, w):
    carry, out = scan(lambda c, x: (c * w + x, (c * x).sin()), torch.zeros(2), xs, dim=1)
    return carry, out, torch.autograd.grad(carry.sum() + out.sum(), xs)


@programs(lambda: (some(4, 3), some(4, 2)))
def scan_over_a_dict(a, b):
    def step(carry, x):
        return carry + x["a"].sum() * x["b"].sum(), {"both": torch.cat([x["a"], x["b"]]), "carry": carry + 0}

    return scan(step, torch.tensor(0.0), {"a": a, "b": b})


@programs(lambda: (some(4, 3),))
def cond_in_a_step(xs):
    def step(carry, x):
        new = torch.cond(x.sum() > 3, lambda c: c * 2, lambda c: c + 1, (carry,))
        return new, new + x

    return scan(step, torch.zeros(3), xs)


@programs(lambda: (some(4, 3),))
def step_whose_carry_changes_its_type(xs):
    return said(lambda: scan(lambda c, x: ((c + x).double(), x + 0), torch.zeros(3), xs))


@programs(lambda: (some(4, 3), some(3, 3)))
def scan_of_lengths_that_differ(a, b):
    return scan(lambda c, x: (c + x[0], x[1] + 0), torch.zeros(3), (a, b))


@programs(lambda: (some(3), some(2)))
def map_with_pytrees_and_closures(t, u):
    return mapping(lambda d, s: {"p": d["t"] * u + s, "q": [d["t"].sin()]}, {"t": t}, t.sum())


@programs(lambda: (some(4, 3).requires_grad_(), some(3).requires_grad_()))
def gradients_of_map(t, w):
    out = mapping(lambda v, s: (v * s).exp(), t, w)
    return torch.autograd.grad(out.sum(), (t, w))


@programs(lambda: (some(3, 4),))
def map_in_map(t):
    return mapping(lambda row: mapping(lambda v, s: v * s, row, row.sum()), t)


@programs(lambda: (some(3, 4),))
def associative_greatest_from_the_end(t):
    return associative_scan(torch.maximum, t.cos(), 1, reverse=True, combine_mode="generic")


@programs(lambda: (some(3, 4), some(3, 4)))
def associative_scan_of_a_dict(a, b):
    def combine(x, y):
        return {"a": x["a"] * y["a"], "b": x["b"] * y["a"] + y["b"]}

    return associative_scan(combine, {"a": a.sin(), "b": b}, 1, combine_mode="generic")


@programs(lambda: (some(4, 3).requires_grad_(),))
def associative_scan_with_gradients(t):
    out = associative_scan(lambda x, y: x * y, t, 0, combine_mode="generic")
    return torch.autograd.grad(out.sum(), t)


@programs(lambda: (some(3, 4), some(3)))
def associative_scan_in_vmap(t, w):
    return vmap(lambda v, s: associative_scan(torch.add, v * s, 0, combine_mode="generic"))(t, w)


@programs(lambda: (some(3, 4),))
def associative_scan_of_another_type(t):
    return associative_scan(lambda x, y: (x + y).double(), t, 0, combine_mode="generic")


@programs(lambda: (Branches(), some(2, 3).requires_grad_()))
def method_that_is_checkpointed(m, x):
    out = checkpoint(m.up, x, use_reentrant=False)
    return out, torch.autograd.grad(out.sin().sum(), (x, m.weight))


@programs(lambda: (some(3).requires_grad_(),))
def checkpoint_in_checkpoint(x):
    def inner(v):
        return checkpoint(torch.sin, v * 2, use_reentrant=False).cos()

    return torch.autograd.grad(checkpoint(inner, x, use_reentrant=False).sum(), x)


@programs(lambda: (some(3).requires_grad_(), torch.tensor(True)))
def cond_in_a_checkpoint(x, p):
    def inner(v, *, scale):
        return torch.cond(p, lambda w: w.sin() * scale, lambda w: w.cos(), (v,))

    out = checkpoint(inner, x, scale=2.0, use_reentrant=False, preserve_rng_state=False)
    return torch.autograd.grad(out.sum(), x)


@programs(lambda: (torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Sigmoid(), torch.nn.GELU()), some(3).requires_grad_()))
def checkpoints_in_sequence(m, x):
    out = checkpoint_sequential(m, 2, x, use_reentrant=False)
    return torch.autograd.grad(out.sum(), x)


@programs(lambda: (some(3).requires_grad_(),))
def checkpoint_with_an_unknown_keyword(x):
    return checkpoint(torch.sin, x, use_reentrant=False, depth=3)


@programs(lambda: (some(2), some(2)))
def hessian_of_two_arguments(a, b):
    return hessian(lambda x, y: (x**2 * y.sin()).sum(), argnums=(0, 1))(a, b)


@programs(lambda: (some(2, 3), some(2, 3)))
def product_with_a_hessian(t, v):
    return jvp(grad(lambda x: (x**3).sum()), (t,), (v,))


@programs(lambda: (Branches(), some(3)))
def grad_of_a_functional_call(m, x):
    state = {k: v.detach() for k, v in m.state_dict().items()}

    def loss(weight):
        return (x * torch.func.functional_call(m, {**state, "weight": weight}, (x,))).sum()

    return grad_and_value(loss)(state["weight"])


@programs(lambda: (some(3),))
def vmap_that_branches_on_data(t):
    return vmap(lambda v: v + 1 if v > 0.2 else v - 1)(t)


@programs(lambda: (some(3),))
def grad_of_an_integer(t):
    return grad(lambda v: v.sum())(t.long())


@programs(lambda: (some(3),))
def vmap_that_writes(t):
    def inner(v):
        out = torch.zeros_like(v)
        out += v
        return out.mul_(2)

    return vmap(inner)(t), t


@programs(lambda: (some(3), torch.zeros(2)))
def vmap_that_writes_to_what_is_shared(t, total):
    return vmap(lambda v: total.add_(v))(t)


@programs(lambda: (some(3),))
def functionalize_of_views(t):
    def inner(v):
        v = v.clone()
        v[1:].mul_(2)
        return v.view(1, 3).add_(1)

    return functionalize(inner, remove="mutations_and_views")(t)


@programs(lambda: (some(3, 2), torch.tensor([0, 1, 0])))
def vmap_with_an_index(t, i):
    return vmap(lambda v, k: v[k])(t, i)


@programs(lambda: (some(3, 2, 2), torch.tensor([-1, 1, 0]), torch.tensor(1)))
def vmap_with_indices(t, i, k):
    found = vmap(lambda v, j: v[j] * 2 + v[(j + 1) % 2])(t, i), vmap(grad(lambda v, j: v[j].sin().sum()))(t, i)
    return *found, vmap(lambda v: v[k])(t)


@programs(lambda: (some(3, 2, 2), torch.tensor([-1, 1, 0])))
def vmap_with_indices_of_what_it_does_not_go_over(t, i):
    return vmap(lambda j: t[j])(i), vmap(lambda j: grad(lambda v: v[j].sum() * v[0, 0, 0])(t))(i)


@programs(lambda: (some(3, 2), torch.tensor(2)))
def grad_with_an_index(t, i):
    return grad(lambda v: v[i].sum() * v[-1, 0])(t), i


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


@programs(lambda: (some(2, 3),))
def autograd_function_in_vmap(t):
    return vmap(Cube.apply)(t), vmap(grad(lambda v: Cube.apply(v).sum()))(t)


@programs(lambda: (some(3).requires_grad_(), torch.tensor(True)))
def autograd_function_in_a_branch(t, p):
    return torch.autograd.grad(torch.cond(p, lambda v: Cube.apply(v), lambda v: v * 2, (t,)).sum(), t)


@programs(lambda: ([Branches(), Branches()], some(3)))
def ensemble_of_modules(models, x):
    params, buffers = torch.func.stack_module_state(models)
    return vmap(lambda p, b: torch.func.functional_call(models[0], (p, b), (x,)))(params, buffers)


@programs(lambda: (some(3),), gap="forward-mode derivatives by dual numbers")
def dual_numbers(t):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(t, torch.ones(3)).sin()).tangent


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() * 2


@programs(lambda: (some(3),))
def nested_region(t):
    return region(t) + region(t + 1)


@programs(lambda: (some(3).requires_grad_(),))
def nested_region_with_gradients(t):
    return torch.autograd.grad(region(t).sum(), t)
