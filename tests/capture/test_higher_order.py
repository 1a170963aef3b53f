"""torch.func, control flow and checkpoints: nodes that run graphs of their own. Values and gradients as in eager."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import fuselens
from fuselens import torch_private
from fuselens.capture.breaks import GraphBreakError

from .harness import agrees_with_eager, check_training

while_loop, scan, tmap = (torch_private.HIGHER_ORDER[n] for n in ("while_loop", "scan", "map"))


def tensor(*shape: int, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 1), dtype=torch.float64)
    return made.requires_grad_(grad)


# --- torch.func -------------------------------------------------------------------------------------------------


def cubed(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum()


made_outside = grad(cubed)
batched_outside = vmap(torch.dot)
scale = torch.tensor(2.0, dtype=torch.float64)


def loss(p: Any, x: torch.Tensor) -> Any:
    y = (x @ p["w"] + p["b"]).tanh()
    return y.mean(), {"y": y}


def per_sample(w: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return (row @ w).sin().sum()


FUNC: dict[str, Callable[..., Any]] = {
    "grad": lambda x, w: grad(lambda a: (a.sin() * 2).sum())(x),
    "grad of grad": lambda x, w: grad(lambda a: grad(cubed)(a).sum())(x),
    "grad, argnums": lambda x, w: grad(lambda a, b: (a @ b).sum(), argnums=(1, 0))(x, w),
    "grad, last argument": lambda x, w: grad(lambda a, b: (a @ b).sum(), argnums=-1)(x, w),
    "grad of a dict, with aux": lambda x, w: grad(loss, has_aux=True)({"w": w, "b": w[0]}, x),
    "grad_and_value": lambda x, w: grad_and_value(loss, has_aux=True)({"w": w, "b": w[0]}, x),
    "grad by keyword": lambda x, w: grad(lambda a, *, b: (a @ b).sum())(x, b=w),
    "grad, closure over a tensor": lambda x, w: grad(lambda a: (a @ w * scale).sum())(x),
    "grad under no_grad": lambda x, w: no_grad_grad(x),
    "made outside": lambda x, w: (made_outside(x), batched_outside(x, x)),
    "vjp": lambda x, w: vjp_of_dict(x),
    "vjp, has_aux": lambda x, w: vjp_with_aux(x, w),
    "vmap of vjp": lambda x, w: vmap(vjp(torch.sin, x)[1])(torch.eye(12, dtype=x.dtype).view(12, 3, 4)),
    "jvp": lambda x, w: jvp(lambda a, b: {"r": (a * b).sin()}, (x, x + 1), (x, x * 2)),
    "jvp, has_aux": lambda x, w: jvp(lambda a: (a.sin(), a.cos()), (x,), (x,), has_aux=True),
    "jacrev": lambda x, w: jacrev(lambda a, b: (a @ b).sin(), argnums=(0, 1))(x, w),
    "jacrev of a dict": lambda x, w: jacrev(lambda a: {"s": a.sin(), "c": (a.cos(), a.sum())})(x[0]),
    "jacfwd": lambda x, w: jacfwd(lambda a: (a.sin(), a[0]))(x[0]),
    "hessian": lambda x, w: hessian(cubed)(x),
    "vmap": lambda x, w: vmap(lambda a: a * 2 + x[0])(x),
    "vmap, dims": lambda x, w: vmap(lambda a, b: (a @ b, a.sum()), in_dims=(None, 1), out_dims=(1, 0))(x, w),
    "vmap, nested dims": lambda x, w: vmap(lambda d, k: d["a"] * d["b"][0] + k, in_dims=({"a": 0, "b": (None,)}, None))(
        {"a": x, "b": (w[0],)}, 3
    ),
    "vmap of vmap": lambda x, w: vmap(vmap(lambda a, b: a * b, in_dims=(0, None)), in_dims=(0, 0))(x, x.sum(1)),
    "vmap of grad": lambda x, w: vmap(grad(per_sample), in_dims=(None, 0))(w, x),
    "vmap of grad, closure": lambda x, w: vmap(grad(lambda row: per_sample(w, row)))(x),
    "vmap of hessian": lambda x, w: vmap(hessian(lambda a: (a.sin() * a).sum()))(x),
    "vmap of jacrev": lambda x, w: vmap(jacrev(lambda a: a.sin()))(x),
    "vmap, chunks": lambda x, w: vmap(lambda a: a.exp(), chunk_size=2)(x),
    "vmap, random": lambda x, w: vmap(lambda a: torch.nn.functional.dropout(a), randomness="different")(x),
    "vmap, same random": lambda x, w: vmap(lambda a: a + torch.rand(4), randomness="same")(x),
    "vmap of a method": lambda x, w: vmap(torch.Tensor.sin)(x),
    "inside a loop": lambda x, w: [grad(lambda a, k=k: (a**k).sum())(x) for k in (1, 2)],
    "with python state": lambda x, w: grad(lambda a: sum([a.sin(), *[a.cos() for _ in range(2)]]).sum())(x),
    "indexing and views": lambda x, w: grad(lambda a: (a.t()[1:].reshape(-1)[::2] ** 2).sum())(x),
    "in place on own tensors": lambda x, w: grad(lambda a: a.clone().mul_(2).sin_().sum())(x),
}  # fmt: skip


def no_grad_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return grad(lambda a: (a * a.detach()).sum())(x)


def vjp_of_dict(x: torch.Tensor) -> Any:
    out, pull = vjp(lambda a, b: {"s": a.sin() * b, "c": a.cos()}, x, x + 1)
    return out, pull({"s": x, "c": x})


def vjp_with_aux(x: torch.Tensor, w: torch.Tensor) -> Any:
    out, pull, aux = vjp(lambda a: (a @ w, a.sum()), x, has_aux=True)
    return out, pull(out)[0], aux


@functools.cache
def breaks_in(name: str) -> bool:
    """Whether torch's own code keeps it from being traced: 2.11's jacrev takes the offsets of several results from tensors."""
    if name != "jacrev of a dict":
        return False
    with torch_private.fake_mode():
        try:
            FUNC[name](tensor(3, 4), tensor(4, 4))
        except torch_private.FAKE_DATA_ERRORS:
            return True
    return False


@pytest.mark.parametrize("name", FUNC)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_function_transforms(name: str, backend: str) -> None:
    whole = {} if breaks_in(name) else {"breaks": 0, "graphs": 1}
    agrees_with_eager(FUNC[name], (tensor(3, 4), tensor(4, 4)), backend=backend, **whole)


@pytest.mark.parametrize("name", [n for n in FUNC if "hessian" not in n and "random" not in n])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_through_function_transforms(name: str, backend: str) -> None:
    breaks = None if breaks_in(name) else 0
    check_training(FUNC[name], tensor(3, 4, grad=True), tensor(4, 4, grad=True), backend=backend, breaks=breaks)


def test_a_nesting_of_derivatives_under_modes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return vmap(hessian(cubed))(x)

    report = check_training(f, tensor(3, 4, grad=True), backend="aot_eager", breaks=0)
    assert [d.code for d in report.diagnostics] == []
    x = tensor(3)
    torch.testing.assert_close(jvp(torch.sin, (x,), (x,))[1], x.cos() * x)  # nothing is left behind in torch


def test_transformed_functions_leave_the_frame() -> None:
    def f(x: torch.Tensor) -> Any:
        g = vmap(torch.sin)
        print("break")
        return g(x), vmap(torch.dot, in_dims=(0, None))

    made = fuselens.compile(f, backend="eager")(tensor(3, 4))
    torch.testing.assert_close(made[1](tensor(3, 4), tensor(4)), tensor(3, 4) @ tensor(4))


def test_a_pullback_leaves_the_frame() -> None:
    def f(x: torch.Tensor) -> Any:
        return vjp(torch.sin, x)

    x = tensor(4)
    for backend in ("eager", "aot_eager"):
        out, pull = fuselens.compile(f, backend=backend)(x)
        torch.testing.assert_close(out, x.sin())
        torch.testing.assert_close(pull(x)[0], x.cos() * x)


def test_functions_of_the_caller_are_guarded() -> None:
    inner = torch.sin

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return grad(lambda a: (inner(a) ** n).sum())(x)

    compiled = fuselens.compile(f, backend="eager")
    for n in (1, 2):
        torch.testing.assert_close(compiled(tensor(3), n), f(tensor(3), n))
    inner = torch.cos
    torch.testing.assert_close(compiled(tensor(3), 2), f(tensor(3), 2))


ERRORS: dict[str, Callable[..., Any]] = {
    "grad of no scalar": lambda x: grad(lambda a: a.sin())(x),
    "grad of an integer": lambda x: grad(lambda a: a.sum())(x.long()),
    "argnums out of range": lambda x: grad(lambda a: a.sum(), argnums=3)(x),
    "aux is a number": lambda x: grad(lambda a: (a.sum(), 3), has_aux=True)(x),
    "aux is missing": lambda x: grad(lambda a: a.sum(), has_aux=True)(x),
    "vmap over nothing": lambda x: vmap(lambda a: a, in_dims=None)(x),
    "vmap, sizes differ": lambda x: vmap(lambda a, b: a + b)(x, x.t()),
    "vmap returns a number": lambda x: vmap(lambda a: 3)(x),
    "vmap, random": lambda x: vmap(lambda a: a + torch.rand(4))(x),
    "vmap, item": lambda x: vmap(lambda a: a.sum().item())(x),
    "vmap, in place on an unbatched tensor": lambda x: vmap(lambda a: x[0].add_(a))(x),
    "jvp, tangents differ": lambda x: jvp(torch.sin, (x,), (x[0],)),
    "vjp, cotangents differ": lambda x: vjp(torch.sin, x)[1](x[0]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_function_transforms(name: str) -> None:
    agrees_with_eager(ERRORS[name], (tensor(3, 4),))


def test_effects_inside_a_transformed_function_break_the_graph() -> None:
    def f(x: torch.Tensor) -> Any:
        seen: list[int] = []
        count = 0

        def inner(a: torch.Tensor) -> torch.Tensor:
            nonlocal count
            seen.append(a.ndim)
            count += 1
            return a.sin().sum()

        return grad(inner)(x), seen, count

    agrees_with_eager(f, (tensor(3),), breaks=1)
    with pytest.raises(GraphBreakError, match="FL110"):
        fuselens.compile(f, backend="eager", fullgraph=True)(tensor(3))


def test_names_of_outer_tensors_are_taken_inside() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a = x * 1
        b = x * 2
        c = x * 3

        def inner(y: torch.Tensor) -> torch.Tensor:
            y = (y * 5) * 7
            return y + a.sin() * 11 + b.cos() * 13 + c

        return checkpoint(inner, x, use_reentrant=False)

    check_training(f, tensor(3, grad=True), breaks=0)


def test_sizes_are_symbolic_inside() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        def inner(a: torch.Tensor) -> torch.Tensor:
            return (a @ w / a.shape[0] + x.shape[0]).tanh().sum()

        return vmap(grad(inner))(x), checkpoint(lambda a: (a * a.shape[0], a.shape[0]), x, use_reentrant=False)

    w = tensor(4, 4)
    for backend in ("eager", "aot_eager"):
        agrees_with_eager(f, (tensor(3, 4), w), (tensor(5, 4), w), (tensor(7, 4), w), backend=backend, breaks=0)


def test_a_closure_over_inner_tensors_stays_inside() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        def inner(a: torch.Tensor) -> Any:
            b = a.sin()
            return lambda: b * 2

        return checkpoint(inner, x, use_reentrant=False)()

    check_training(f, tensor(3, grad=True))


# --- functional_call --------------------------------------------------------------------------------------------


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.norm = torch.nn.BatchNorm1d(4, dtype=torch.float64)
        self.head = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.head.weight = self.inner.weight

    def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return self.head(self.norm(self.inner(x)).relu()) * factor


def test_functional_call() -> None:
    torch.manual_seed(0)
    net = Tied()
    parameters = {"inner.weight": tensor(4, 4), "head.bias": tensor(4)}

    def f(p: Any, x: torch.Tensor) -> Any:
        return functional_call(net, p, (x,), {"factor": 2.0}), net(x)

    agrees_with_eager(f, (parameters, tensor(3, 4)), breaks=0)

    def untied(p: Any, x: torch.Tensor) -> Any:
        return functional_call(net, (p, dict(net.named_buffers())), x, tie_weights=False)

    agrees_with_eager(untied, (parameters, tensor(3, 4)))


def test_per_sample_gradients_and_ensembles() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()
    parameters = {k: v.detach() for k, v in net.named_parameters()}
    stacked = {k: torch.stack([v, v * 2]) for k, v in parameters.items()}

    def square(p: Any, row: torch.Tensor) -> torch.Tensor:
        return (functional_call(net, p, (row[None],)) ** 2).sum()

    def gradients(p: Any, x: torch.Tensor) -> Any:
        return vmap(grad(square), in_dims=(None, 0))(p, x)

    def ensemble(p: Any, x: torch.Tensor) -> Any:
        return vmap(lambda q, y: functional_call(net, q, (y,)), in_dims=(0, None))(p, x)

    for backend in ("eager", "aot_eager"):
        agrees_with_eager(gradients, (parameters, tensor(3, 4)), backend=backend, breaks=0, graphs=1)
        agrees_with_eager(ensemble, (stacked, tensor(3, 4)), backend=backend, breaks=0, graphs=1)


# --- control flow -----------------------------------------------------------------------------------------------


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.linear, lambda a: a.cos(), (x,))


def count_up(x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.sin() + 1), (start, x))


CONTROL: dict[str, Callable[..., Any]] = {
    "cond": lambda x, w: torch.cond(x.sum() > 0, lambda a: a @ w, lambda a: a.cos() * 2, (x,)),
    "cond, structures": lambda x, w: torch.cond(
        x.sum() > 0, lambda d: {"r": d["a"] @ d["b"][0]}, lambda d: {"r": d["a"] * 2}, ({"a": x, "b": [w]},)
    ),
    "cond in cond": lambda x, w: torch.cond(
        x.sum() > 0,
        lambda a: torch.cond(a.max() > 1, lambda b: b @ w, lambda b: b.sin(), (a,)),
        lambda a: a.cos(),
        (x,),
    ),
    "cond on a constant": lambda x, w: torch.cond(x.ndim == 2, lambda a: a @ w, lambda a: a.cos(), (x,)),
    "scan": lambda x, w: scan(lambda c, y: (c * w.sum() + y, c.sin() + y), x[0] * 1, x),
    "scan of a dict": lambda x, w: scan(lambda c, y: ({"c": c["c"] + y[0]}, [c["c"] * y[1]]), {"c": x[0] * 1}, (x, x * 2)),
    "scan, backwards along dim 1": lambda x, w: scan(
        lambda c, y: (c * 2 + y, c.sin() + y), x[:, 0] * 1, x, dim=1, reverse=True
    ),
    "map": lambda x, w: tmap(lambda a, b: (a @ b, a.sin()), x, w),
    "vmap in map": lambda x, w: tmap(lambda a: vmap(torch.sin)(a) * 2, x),
}  # fmt: skip


def dense(f: Callable[..., Any]) -> Callable[..., Any]:
    """What the control flow function means, in plain Python: torch's own would load another compiler."""

    def run(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name, meaning in DENSE.items():
                patch.setitem(globals(), name, meaning)
            patch.setattr(torch, "cond", lambda p, yes, no, operands=(): yes(*operands) if p else no(*operands))
            return f(*args)

    return run


def _dense_scan(combine: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    pytree = torch.utils._pytree
    leaves, structure = pytree.tree_flatten(xs)
    order = range(leaves[0].shape[dim])
    rows = {}
    for i in reversed(order) if reverse else order:
        init, rows[i] = combine(init, pytree.tree_unflatten([t.select(dim, i) for t in leaves], structure))
    return init, pytree.tree_map(lambda *ys: torch.stack(ys, dim), *(rows[i] for i in order))


def _dense_while(condition: Any, body: Any, state: Any) -> Any:
    while condition(*state):
        state = body(*state)
    return state


def _dense_map(f: Any, xs: Any, *args: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda *ys: torch.stack(ys), *(f(x, *args) for x in xs))


DENSE = {"scan": _dense_scan, "while_loop": _dense_while, "tmap": _dense_map}


@pytest.mark.parametrize("name", CONTROL)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow(name: str, backend: str, sign: int) -> None:
    x, w = tensor(3, 4).abs().mul(sign).requires_grad_(), tensor(4, 4, grad=True)
    check_training(CONTROL[name], x, w, backend=backend, breaks=0, eager=dense(CONTROL[name]), unused_gradients=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_loops_that_data_ends(backend: str) -> None:
    report = check_training(count_up, tensor(3, grad=True), backend=backend, breaks=0, eager=dense(count_up))
    assert report.diagnostics == []


def test_a_branch_that_ignores_its_operands_has_gradients_of_zero() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() < 1e9, lambda a: torch.ones_like(a), lambda a: a @ w, (x,))

    x, w = tensor(3, 4, grad=True), tensor(4, 4, grad=True)
    for backend in ("eager", "aot_eager"):
        x.grad = w.grad = None
        fuselens.compile(f, backend=backend)(x, w).sum().backward()
        assert x.grad is not None and not x.grad.any() and w.grad is not None and not w.grad.any()


def test_cond_with_a_module() -> None:
    torch.manual_seed(0)
    net = Branching()
    for x in (tensor(3, 4).abs(), -tensor(3, 4).abs()):
        torch.testing.assert_close(fuselens.compile(net, backend="eager")(x), dense(net)(x))


# The operator itself, which exported programs call.

OPERATOR: dict[str, Callable[..., Any]] = {
    "data decides": lambda x, w: by_operator(x.sum() > 0, lambda a, b: (a @ b,), lambda a, b: (a.cos() * 2,), (x, w)),
    "by keywords": lambda x, w: torch.ops.higher_order.cond(
        pred=x.sum() > 0, true_fn=lambda a: (a.sin(), a + 1), false_fn=lambda a: (a.cos(), a * 2), operands=[x + w[:3]]
    ),
    "a constant decides": lambda x, w: torch.ops.higher_order.cond(
        x.ndim == 2, lambda a, b: (a.sin(),), lambda a, b: (a @ b,), (x, w)
    ),
    "an integer": lambda x, w: by_operator(x.sum() > 0, lambda a, n: (a * n,), lambda a, n: (a + n,), (x + w[0], 3)),
}  # fmt: skip
by_operator = torch.ops.higher_order.cond


@pytest.mark.parametrize("name", OPERATOR)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_operator_of_cond(name: str, backend: str, sign: int) -> None:
    x, w = tensor(3, 4).abs().mul(sign), tensor(4, 4)
    agrees_with_eager(OPERATOR[name], (x, w), backend=backend, breaks=0)
    check_training(OPERATOR[name], x.requires_grad_(), w.requires_grad_(), backend=backend, breaks=0)


BAD_OPERATOR: dict[str, Callable[[torch.Tensor], Any]] = {
    "no operands": lambda x: by_operator(x.sum() > 0, lambda: (x,), lambda: (x,)),
    "a nested operand": lambda x: by_operator(x.sum() > 0, lambda a: (a[0] + 1,), lambda a: (a[0] * 2,), ((x,),)),
    "a predicate of two elements": lambda x: by_operator(x > 0, lambda a: (a + 1,), lambda a: (a * 2,), (x,)),
    "a branch that closes over what has a gradient": lambda x: by_operator(
        x.sum() > 0, lambda a: (a * x,), lambda a: (a + x,), (x.detach(),)
    ),
    "branches of different forms": lambda x: by_operator(
        x.sum() > 0, lambda a: a + 1, lambda a: (a * 2,), (x.detach(),)
    ),
}


@pytest.mark.parametrize("name", BAD_OPERATOR)
def test_the_operator_of_cond_is_refused(name: str) -> None:
    with pytest.raises(GraphBreakError):
        fuselens.compile(BAD_OPERATOR[name], backend="eager", fullgraph=True)(tensor(3, grad=True))
    agrees_with_eager(BAD_OPERATOR[name], (tensor(3, grad=True),))


BAD_CONTROL: dict[str, Callable[[torch.Tensor], Any]] = {
    "shapes differ": lambda x: torch.cond(x.sum() > 0, lambda a: a[0], lambda a: a.sin(), (x,)),
    "an alias": lambda x: torch.cond(x.sum() > 0, lambda a: a, lambda a: a.sin(), (x,)),
    "a write": lambda x: torch.cond(x.sum() > 0, lambda a: a.add_(1) * 1, lambda a: a.sin(), (x,)),
    "an augmented write": lambda x: torch.cond(x.sum() > 0, augmented, lambda a: a.sin(), (x,)),
    "a predicate of two elements": lambda x: torch.cond(x[0] > 0, torch.sin, torch.cos, (x,)),
    "an operand that is no tensor": lambda x: torch.cond(
        x.sum() > 0, lambda a, n: a.sin(), lambda a, n: a.cos(), (x, 3)
    ),
    "a body that prints": lambda x: torch.cond(x.sum() > 0, printing, torch.cos, (x,)),
    "a changing carry": lambda x: while_loop(lambda a: a.sum() > 9, lambda a: (a[0],), (x,)),
}


def augmented(a: torch.Tensor) -> torch.Tensor:
    a += 1
    return a.sin()


def printing(a: torch.Tensor) -> torch.Tensor:
    print("inside")
    return a.sin()


@pytest.mark.parametrize("name", BAD_CONTROL)
def test_control_flow_that_is_refused(name: str) -> None:
    with pytest.raises(GraphBreakError):
        fuselens.compile(BAD_CONTROL[name], backend="eager", fullgraph=True)(tensor(3, 4))


# --- checkpoints ------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return x

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.dropout(self.linear(x).relu(), 0.5)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_checkpoint(reentrant: bool, backend: str) -> None:
    torch.manual_seed(0)
    check_training(Block(reentrant), tensor(3, 4, grad=True), backend=backend, breaks=0)
    check_training(Block(reentrant), tensor(3, 4), backend=backend, breaks=0)  # reentrant: no gradients at all
    with torch.no_grad():
        agrees_with_eager(Block(reentrant), (tensor(3, 4),), backend=backend, breaks=0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_checkpoint_writes_again_in_the_backward(backend: str) -> None:
    norm = torch.nn.BatchNorm1d(4, dtype=torch.float64)

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(norm, x, use_reentrant=False)

    counts = []
    for function in (f, fuselens.compile(f, backend=backend)):
        norm.reset_running_stats()
        for _ in range(2):
            function(tensor(3, 4, grad=True)).sin().sum().backward()
        counts.append((norm.num_batches_tracked.clone(), norm.running_mean.clone()))
    torch.testing.assert_close(counts[1], counts[0])


def test_checkpoint_keeps_keyword_arguments_and_structures() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        def inner(a: torch.Tensor, k: int, *, b: list[torch.Tensor]) -> Any:
            return {"r": (a @ b[0]).sin() * k}, a

        return checkpoint(inner, x, 2, b=[w], use_reentrant=False)

    check_training(f, tensor(3, 4, grad=True), tensor(4, 4, grad=True), breaks=0)


def test_checkpoint_recomputes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda a: a.sin().cos().exp(), x, use_reentrant=False).sum()

    saved: list[torch.Tensor] = []

    @contextlib.contextmanager
    def watching() -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            yield

    x, compiled = tensor(3, grad=True), fuselens.compile(f, backend="eager")
    compiled(x)
    with watching():
        compiled(x)
    held = [t for t in saved if t.numel()]  # torch 2.11 itself saves an empty tensor besides
    assert len(held) == 1 and held[0] is x


def test_checkpoint_without_its_option_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(torch.sin, x)

    with pytest.warns(UserWarning, match="use_reentrant"):
        report = agrees_with_eager(f, (tensor(3, grad=True),))
    assert len(report.breaks) == 1


@pytest.mark.parametrize("dim", [0, 2, -3])
def test_vmap_over_a_dimension_that_is_not_there_raises_eagers_error(dim: int) -> None:
    def fn(x: Any) -> Any:
        try:
            return vmap(vmap(torch.relu, in_dims=dim))(x)
        except ValueError as e:
            return x.sin(), str(e)

    compiled = fuselens.compile(fn, fullgraph=True)
    x = torch.ones(2) if dim == 0 else torch.ones(2, 3, 4)
    assert compiled(x)[1] == fn(x)[1]
    assert f"vmap(relu, in_dims={dim}, ...)" in compiled(x)[1]
