"""What surrounds a compiled function: hooks, transforms, other modes, subclasses, threads. Each program gives what eager
gives, in values, metadata and exceptions, when its function is compiled."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook, save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import fuselens

Program = Callable[[Callable[..., Any]], Any]
PROGRAMS: dict[str, Program] = {}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    yield
    fuselens.reset()


def program(function: Program) -> Program:
    """``function`` takes what compiles, and returns what is compared."""
    PROGRAMS[function.__name__] = function
    return function


def show(value: Any) -> Any:
    """Plain data that tells values and metadata."""
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter):
            return type(value).__name__, tuple(value.shape)
        dense = value.detach() if value.layout is torch.strided else value.detach().to_dense()
        numbers = dense.to(torch.complex128).flatten().tolist()
        return str(value.layout), str(value.dtype), tuple(value.shape), value.requires_grad, value.is_leaf, numbers
    if isinstance(value, (list, tuple)):
        return [show(v) for v in value]
    return {k: show(v) for k, v in value.items()} if isinstance(value, dict) else value


def outcome(function: Callable[[], Any]) -> Any:
    """What the function returns, or the exception that it raises."""
    try:
        return "returned", show(function())
    except Exception as error:
        return type(error).__name__, str(error).split("\n")[0]


def agree(a: Any, b: Any) -> bool:
    """Whether what :func:`show` gave is the same, but for rounding."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(agree, a, b))
    if isinstance(a, (float, complex)) and isinstance(b, (float, complex)):
        return a == b or abs(a - b) <= 1e-4 * (1 + abs(b)) or (a != a and b != b)
    return type(a) is type(b) and a == b


def leaf(*shape: int, **options: Any) -> Tensor:
    return torch.randn(*shape, **options).requires_grad_()


def mlp(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b)).softmax(-1)


def inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [leaf(4, 6, dtype=dtype), leaf(5, 6, dtype=dtype), leaf(5, dtype=dtype)]


class Logging(torch.Tensor):
    """A wrapper that writes down the operators it sees."""

    elem: Tensor

    @staticmethod
    def __new__(cls, e: Tensor) -> Logging:
        return torch.Tensor._make_wrapper_subclass(cls, e.shape, dtype=e.dtype, requires_grad=e.requires_grad)

    def __init__(self, e: Tensor) -> None:
        self.elem = e

    log: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logging.log.append(str(func))
        args, kwargs = tree_map(lambda t: t.elem if isinstance(t, Logging) else t, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return tree_map(lambda t: Logging(t) if isinstance(t, torch.Tensor) else t, out)


def run(name: str, compiled: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    Logging.log.clear()
    return outcome(lambda: PROGRAMS[name](compiled))


@program
def out_hooks(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * 3)
    x = leaf(3)
    log = []
    o = f(x)
    o.register_hook(lambda g: log.append(show(g)) or g * 2)
    o.retain_grad()
    o.grad_fn.register_hook(lambda gi, go: log.append(("fn", show(go))))
    o.grad_fn.register_prehook(lambda go: log.append(("pre", show(go))))
    x.register_hook(lambda g: log.append(("leaf", show(g))))
    x.register_post_accumulate_grad_hook(lambda t: log.append(("acc", show(t.grad))))
    o.sum().backward()
    return (log, x.grad, o.grad)


@program
def grad_fn_hook_modify(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin())
    x = leaf(3)
    o = f(x)
    o.grad_fn.register_prehook(lambda go: (go[0] * 2,))
    o.grad_fn.register_hook(lambda gi, go: tuple((None if g is None else g * 5 for g in gi)))
    o.sum().backward()
    return x.grad


@program
def module_hooks(compiled: Any) -> Any:
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    log = []
    m[1].forward = compiled(m[1].forward)
    for i, k in enumerate(m):
        k.register_full_backward_hook(lambda mod, gi, go, i=i: log.append((i, "bw", show(gi), show(go))))
        k.register_full_backward_pre_hook(lambda mod, go, i=i: log.append((i, "pre", show(go))))
    m(leaf(2, 3)).sum().backward()
    return log


@program
def module_hooks_compiled(compiled: Any) -> Any:
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    log = []
    c = compiled(m)
    c.register_full_backward_hook(lambda mod, gi, go: log.append(("bw", show(gi), show(go)))) if hasattr(
        c, "register_full_backward_hook"
    ) else None
    c(leaf(2, 3)).sum().backward()
    return log


@program
def module_hooks_inside(compiled: Any) -> Any:
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    log = []
    for i, k in enumerate(m):
        k.register_full_backward_hook(lambda mod, gi, go, i=i: log.append((i, "bw", show(gi), show(go))))
        k.register_full_backward_pre_hook(lambda mod, go, i=i: log.append((i, "pre", show(go))))
    c = compiled(lambda x: m(x) * 2)
    c(leaf(2, 3)).sum().backward()
    return log


@program
def retain_twice(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    o = f(*a).square().sum()
    r = [torch.autograd.grad(o, a, retain_graph=True) for _ in range(3)]
    return (r, torch.autograd.grad(o, a), outcome(lambda: torch.autograd.grad(o, a)))


@program
def second_backward(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    o = f(*a)
    o.sum().backward()
    return outcome(lambda: o.sum().backward())


@program
def second_backward_unused_saved(compiled: Any) -> Any:
    f = compiled(lambda x: x + 1)
    a = leaf(3)
    o = f(a)
    o.sum().backward()
    return (outcome(lambda: o.sum().backward()), a.grad)


@program
def second_backward_mul_const(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    a = leaf(3)
    o = f(a)
    o.sum().backward()
    return (outcome(lambda: o.sum().backward()), a.grad)


@program
def unused(compiled: Any) -> Any:
    f = compiled(lambda x, y: (x * 2, y.sin()))
    x, y = (leaf(3), leaf(3))
    z = leaf(3)
    o, p = f(x, y)
    return (
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y], retain_graph=True)),
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y], allow_unused=True, retain_graph=True)),
        outcome(lambda: torch.autograd.grad(o.sum(), [x, z], retain_graph=True)),
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y, z], materialize_grads=True, retain_graph=True)),
    )


@program
def unused_in_graph(compiled: Any) -> Any:
    f = compiled(lambda x, y: x * 2)
    x, y = (leaf(3), leaf(3))
    o = f(x, y)
    return (
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y], retain_graph=True)),
        outcome(lambda: torch.autograd.grad(o.sum(), [x, y], allow_unused=True)),
    )


@program
def batched(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * x.sum())
    x = leaf(3)
    o = f(x)
    return outcome(lambda: torch.autograd.grad(o, x, torch.eye(3), is_grads_batched=True))


@program
def batched_matmul(compiled: Any) -> Any:
    f = compiled(lambda x, w: F.linear(x, w).tanh().sum(0))
    x, w = (leaf(4, 3), leaf(2, 3))
    o = f(x, w)
    return outcome(lambda: torch.autograd.grad(o, [x, w], torch.eye(2), is_grads_batched=True))


@program
def jacobian(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * x.sum())
    x = torch.randn(3)
    return [outcome(lambda: torch.autograd.functional.jacobian(f, x, vectorize=v)) for v in (False, True)]


@program
def hessian(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sin() * x.sum()).sum())
    x = torch.randn(3)
    return [outcome(lambda: torch.autograd.functional.hessian(f, x, vectorize=v)) for v in (False, True)]


@program
def fwd_jacobian(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * x.sum())
    x = torch.randn(3)
    return [outcome(lambda: torch.autograd.functional.jacobian(f, x, vectorize=True, strategy="forward-mode"))]


@program
def inputs_of_backward(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a).square().sum().backward(inputs=[a[1]])
    return [t.grad for t in a]


@program
def accumulation(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    for _ in range(3):
        f(*a).square().sum().backward()
    return [t.grad for t in a]


@program
def accumulate_storage(compiled: Any) -> Any:
    f = compiled(lambda x, y: x + y)
    x, y = (leaf(3), leaf(3))
    f(x, y).sum().backward()
    return (x.grad.data_ptr() == y.grad.data_ptr(), x.grad._is_view(), x.grad.is_contiguous())


@program
def tangents(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * 2)
    out = []
    for g in (
        torch.randn(6, 4).t(),
        torch.ones(()).expand(4, 6),
        torch.randn(8, 12)[::2, ::2],
        torch._efficientzerotensor((4, 6)),
        torch.randn(4, 6).to_sparse(),
        torch.zeros(4, 6),
        torch.randn(4, 6, dtype=torch.complex64).imag,
        torch.randn(4, 6, dtype=torch.complex64).conj().imag,
    ):
        x = leaf(4, 6)
        o = f(x)
        out.append(outcome(lambda: torch.autograd.grad(o, x, g)))
    return out


@program
def sparse_in_middle(compiled: Any) -> Any:
    w = leaf(5, 3)
    f = compiled(lambda w: w * 2)
    o = f(w)
    e = F.embedding(torch.tensor([0, 2]), o, sparse=True).sum()
    return outcome(lambda: torch.autograd.grad(e, w))


@program
def grad_shape_error(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin())
    x = leaf(3)
    o = f(x)
    return (
        outcome(lambda: o.backward(torch.ones(4))),
        outcome(lambda: o.backward()),
        outcome(lambda: o.backward(torch.ones(3, dtype=torch.float64))),
        x.grad,
    )


@program
def double_backward(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs(torch.float64)
    return (torch.autograd.gradgradcheck(f, a), torch.autograd.gradcheck(f, a))


@program
def gradcheck_fwd(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * x)
    a = leaf(3, dtype=torch.float64)
    return (
        outcome(lambda: torch.autograd.gradcheck(f, a, check_forward_ad=True, check_batched_grad=True)),
        outcome(lambda: torch.autograd.gradgradcheck(f, a, check_fwd_over_rev=True)),
    )


@program
def fwd_ad(compiled: Any) -> Any:
    f = compiled(lambda x, y: x.sin() * y)
    x, y = (torch.randn(3), torch.randn(3))
    f(x, y)
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, torch.ones(3))
        o = f(d, y)
        p, t = forward_ad.unpack_dual(o)
        q = forward_ad.unpack_dual(f(x, y))
    return (show(p), show(t), show(q.tangent))


@program
def fwd_ad_grad(compiled: Any) -> Any:
    f = compiled(lambda x, y: x.sin() * y)
    x, y = (leaf(3), leaf(3))
    f(x, y)
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, torch.ones(3))
        o = f(d, y)
        p, t = forward_ad.unpack_dual(o)
        return (show(p), show(t), show(torch.autograd.grad(t.sum(), [x, y])))


@program
def fwd_ad_module(compiled: Any) -> Any:
    m = nn.Linear(3, 2)
    c = compiled(lambda x: m(x))
    x = torch.randn(2, 3)
    c(x)
    with forward_ad.dual_level():
        p = m.weight
        del m._parameters["weight"]
        m.weight = forward_ad.make_dual(p, torch.ones_like(p))
        return show(forward_ad.unpack_dual(c(x)).tangent)


@program
def func_around(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sin() * x).sum())
    x = torch.randn(3)
    f(x)
    g = compiled(lambda x: x.sin() * 2)
    return [
        outcome(lambda: torch.func.grad(f)(x)),
        outcome(lambda: torch.func.vjp(f, x)[1](torch.tensor(2.0))),
        outcome(lambda: torch.func.jvp(f, (x,), (torch.ones(3),))),
        outcome(lambda: torch.func.vmap(g)(torch.randn(2, 3).cos() * 0 + 1)),
        outcome(lambda: torch.func.jacrev(g)(x)),
        outcome(lambda: torch.func.jacfwd(g)(x)),
        outcome(lambda: torch.func.hessian(f)(x)),
        outcome(lambda: torch.func.vmap(torch.func.grad(f))(torch.ones(2, 3))),
        outcome(lambda: torch.func.linearize(g, x)[0]),
        outcome(lambda: torch.func.functionalize(g)(x)),
    ]


@program
def func_around_closure(compiled: Any) -> Any:
    x = torch.randn(3)
    w = leaf(3)
    f = compiled(lambda x: (x.sin() * w).sum())
    f(x)
    return [outcome(lambda: torch.func.grad(f)(x)), outcome(lambda: torch.func.vmap(lambda y: f(x) + y)(torch.ones(2)))]


@program
def vmap_random(compiled: Any) -> Any:
    f = compiled(lambda x: x + torch.rand(3))
    torch.manual_seed(0)
    return outcome(lambda: torch.func.vmap(f, randomness="error")(torch.ones(2, 3)))


@program
def vmap_over_unbatched_call(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    y = torch.ones(3)
    return outcome(lambda: torch.func.vmap(lambda z: f(y) + z)(torch.ones(2, 3)))


@program
def func_grad_of_captured(compiled: Any) -> Any:
    w = torch.randn(3)

    def loss(w, x):
        return compiled(lambda: (w * x).sin().sum())()

    return show(torch.func.grad(loss)(w, torch.ones(3)))


@program
def anomaly(compiled: Any) -> Any:
    f = compiled(lambda x: (x * 0).sqrt().sum())
    x = leaf(3)

    def go():
        with torch.autograd.set_detect_anomaly(True):
            f(x).backward()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        r = outcome(go)
    return (r, [("probe.py" in str(w.message), "(x * 0).sqrt()" in str(w.message)) for w in seen])


@program
def anomaly_ok(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    with torch.autograd.detect_anomaly():
        f(*a).square().sum().backward()
    return [t.grad for t in a]


@program
def anomaly_nonan(compiled: Any) -> Any:
    f = compiled(lambda x: (x * 0).sqrt().sum())
    x = leaf(3)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        f(x).backward()
    return x.grad


@program
def autocast_out(compiled: Any) -> Any:
    f = compiled(lambda x, w: (x @ w).relu() @ w.t())
    x, w = (leaf(4, 6), leaf(6, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = f(x, w)
    o.float().sum().backward()
    return (o.dtype, x.grad.dtype, w.grad.dtype)


@program
def autocast_in(compiled: Any) -> Any:

    def g(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x @ w
        return (h.float() @ w.t(), h)

    f = compiled(g)
    x, w = (leaf(4, 6), leaf(6, 5))
    o, h = f(x, w)
    o.sum().backward()
    return (o.dtype, h.dtype, x.grad.dtype, w.grad.dtype)


@program
def autocast_bwd_inside(compiled: Any) -> Any:
    f = compiled(lambda x, w: (x @ w).relu() @ w.t())
    x, w = (leaf(4, 6), leaf(6, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = f(x, w)
        o.float().sum().backward()
    return (o.dtype, x.grad.dtype, w.grad.dtype)


@program
def grad_scaler(compiled: Any) -> Any:
    m = nn.Linear(3, 2)
    torch.manual_seed(0)
    opt = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    f = compiled(lambda x: m(x).square().sum())
    x = torch.ones(4, 3)
    for _ in range(3):
        opt.zero_grad()
        with torch.autocast("cpu"):
            l = f(x)
        s.scale(l).backward()
        s.step(opt)
        s.update()
    return ([round(float(p), 2) for p in m.weight.flatten()], s.get_scale())


@program
def param_hooks(compiled: Any) -> Any:
    m = nn.Linear(3, 2)
    log = []
    m.weight.register_hook(lambda g: g * 2)
    m.bias.register_post_accumulate_grad_hook(lambda p: log.append(show(p.grad)))
    compiled(m)(torch.ones(4, 3)).sum().backward()
    return (m.weight.grad, log)


@program
def saved_hooks(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a)
    n = []
    with saved_tensors_hooks(lambda t: (n.append(t.shape), t.clone())[1], lambda t: t):
        o = f(*a)
    o.square().sum().backward()
    return (len(n), [t.grad for t in a])


@program
def saved_on_cpu(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a)
    with save_on_cpu():
        o = f(*a)
    o.square().sum().backward()
    return [t.grad for t in a]


@program
def disable_hooks(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a)
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks"):
        o = f(*a)
        r = outcome(lambda: saved_tensors_hooks(lambda t: t, lambda t: t).__enter__())
    o.square().sum().backward()
    return (r, [t.grad for t in a])


@program
def saved_hooks_inside(compiled: Any) -> Any:
    n = []

    def g(x):
        with saved_tensors_hooks(lambda t: (n.append(tuple(t.shape)), t)[1], lambda t: t):
            return x.sin().exp()

    f = compiled(g)
    x = leaf(3)
    o = f(x)
    o.sum().backward()
    return (n, x.grad)


@program
def functional_call(compiled: Any) -> Any:
    m = nn.Linear(3, 2)
    w = leaf(2, 3)
    b = leaf(2)
    f = compiled(lambda x, w, b: torch.func.functional_call(m, {"weight": w, "bias": b}, (x,)))
    c = compiled(m)
    x = torch.ones(4, 3)
    o = f(x, w, b)
    o.sum().backward()
    o3 = outcome(
        lambda: torch.func.functional_call(
            c,
            {"weight": w * 2, "bias": b}
            if not hasattr(c, "_orig_mod")
            else {"_orig_mod.weight": w * 2, "_orig_mod.bias": b},
            (x,),
        )
    )
    return (o, w.grad, b.grad, m.weight.grad, o3)


@program
def nograd_toggle(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    r = []
    for ctx in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
        with ctx():
            o = f(*a)
        r.append((show(o), o.requires_grad, o.is_inference(), o.grad_fn is None))
    return r


@program
def requires_grad_changes(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    r = []
    for k in range(8):
        b = [t.detach().clone().requires_grad_(bool(k >> i & 1)) for i, t in enumerate(a)]
        o = f(*b)
        if o.requires_grad:
            o.square().sum().backward()
        r.append((o.requires_grad, [show(t.grad) for t in b]))
    return r


@program
def thread_backward(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    o = f(*a).square().sum()
    e = []
    t = threading.Thread(target=lambda: e.append(outcome(lambda: o.backward())))
    t.start()
    t.join()
    return (e, [x.grad for x in a])


@program
def threads(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    res = [None] * 6

    def work(i):
        b = [t.detach().clone().requires_grad_() for t in a]
        for _ in range(5):
            for t in b:
                t.grad = None
            f(*b).square().sum().backward()
        res[i] = [show(t.grad) for t in b]

    ts = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return res


@program
def deepcopy_out(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    o = f(*a)
    return (
        outcome(lambda: copy.deepcopy(o)),
        outcome(lambda: pickle.loads(pickle.dumps(o))),
        show(copy.deepcopy(o.detach())),
    )


@program
def raise_in_backward(compiled: Any) -> Any:

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ValueError("in the middle")

    a = inputs()
    f = compiled(mlp)
    o = f(Bad.apply(a[0]), a[1], a[2])
    r = outcome(lambda: o.sum().backward())
    o2 = Bad.apply(f(*a))
    r2 = outcome(lambda: o2.sum().backward())
    f(*a).square().sum().backward()
    return (r, r2, [t.grad for t in a])


@program
def raise_in_hook(compiled: Any) -> Any:
    a = inputs()
    f = compiled(mlp)
    o = f(*a)

    def h(g):
        raise KeyError("hook")

    o.register_hook(h)
    r = outcome(lambda: o.sum().backward(retain_graph=True))
    return r


@program
def raising_inside_fn(compiled: Any) -> Any:

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("mid")

    f = compiled(lambda x: Bad.apply(x.sin()).exp())
    x = leaf(3)
    return outcome(lambda: f(x).sum().backward())


@program
def saved_in_modified(compiled: Any) -> Any:
    f = compiled(lambda x, y: x * y)
    x, y = (leaf(3), leaf(3))
    o = f(x, y)
    with torch.no_grad():
        y.add_(1)
    return outcome(lambda: o.sum().backward())


@program
def bias_updated(compiled: Any) -> Any:
    m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    f = compiled(lambda x: m(x).sum())
    x = torch.ones(2, 3)
    l = f(x)
    with torch.no_grad():
        m[0].bias.sub_(0.1)
        m[2].bias.sub_(0.1)
    return (outcome(lambda: l.backward()), [p.grad for p in m.parameters()])


@program
def first_weight_updated(compiled: Any) -> Any:
    m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    f = compiled(lambda x: m(x).sum())
    x = torch.ones(2, 3)
    l = f(x)
    with torch.no_grad():
        m[0].weight.sub_(0.1)
    return outcome(lambda: l.backward())


@program
def input_modified_recomputed(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin().exp() * 2)
    h = leaf(3)
    x = h * 1
    o = f(x)
    x.add_(1)
    return outcome(lambda: torch.autograd.grad(o.sum(), h))


@program
def out_modified_then_backward(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin())
    x = leaf(3)
    o = f(x)
    o.mul_(2)
    o.sum().backward()
    return x.grad


@program
def weakrefs(compiled: Any) -> Any:
    f = compiled(lambda h: h.sin())
    x = leaf(3)
    h = x * 2
    o = f(h)
    w = weakref.ref(h)
    o.sum().backward()
    del h
    r = [w() is None]
    h = x * 2
    o = f(h)
    w = weakref.ref(h)
    del h
    r.append(w() is None)
    del o
    r.append(w() is None)
    return r


@program
def weakrefs_loss(compiled: Any) -> Any:
    f = compiled(lambda h, w: (h @ w).sin().sum())
    x = leaf(3, 3)
    w = leaf(3, 3)
    h = x * 2
    o = f(h, w)
    ww = weakref.ref(h)
    o.backward(retain_graph=True)
    del h
    r = [ww() is None]
    o.backward()
    r.append(ww() is None)
    return r


@program
def checkpoint_around(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    r = []
    for ur in (True, False):
        for t in a:
            t.grad = None
        checkpoint(f, *a, use_reentrant=ur).square().sum().backward()
        r.append([show(t.grad) for t in a])
    return r


@program
def checkpoint_dropout(compiled: Any) -> Any:
    f = compiled(lambda x: F.dropout(x, 0.5) * x)
    x = leaf(50)
    r = []
    for ur in (True, False):
        x.grad = None
        o = checkpoint(f, x, use_reentrant=ur)
        o.sum().backward()
        r.append(torch.allclose(x.grad, torch.where(o != 0, 4 * x.detach(), 0)))
    return r


@program
def checkpoint_module(compiled: Any) -> Any:
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    f = compiled(m)
    x = leaf(2, 3)
    checkpoint(f, x, use_reentrant=False).sum().backward()
    return ([p.grad for p in m.parameters()], x.grad)


@program
def subclass_input(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * 2)
    f(torch.ones(3))
    Logging.log.clear()
    o = f(Logging(torch.ones(3)))
    return (type(o).__name__, list(Logging.log), show(o.elem))


@program
def subclass_input_grad(compiled: Any) -> Any:
    f = compiled(lambda x, y: x.sin() * y)
    Logging.log.clear()
    x = Logging(torch.ones(3)).requires_grad_()
    y = leaf(3)
    o = f(x, y)
    n = list(Logging.log)
    o.sum().backward()
    return (type(o).__name__, n, type(y.grad).__name__, type(x.grad).__name__)


@program
def subclass_nested_in(compiled: Any) -> Any:
    f = compiled(lambda d: d["a"].sin() * 2)
    Logging.log.clear()
    o = f({"a": Logging(Logging(torch.ones(3)))})
    return (type(o).__name__, type(o.elem).__name__, list(Logging.log))


@program
def subclass_param(compiled: Any) -> Any:
    m = nn.Linear(3, 2)
    m.weight = nn.Parameter(Logging(torch.ones(2, 3)))
    Logging.log.clear()
    o = compiled(m)(torch.ones(4, 3))
    n = list(Logging.log)
    o.sum().backward()
    return (type(o).__name__, n, type(m.weight.grad).__name__)


@program
def subclass_tangent(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() * 2)
    x = leaf(3)
    o = f(x)
    g = outcome(lambda: torch.autograd.grad(o, x, Logging(torch.ones(3))))
    return (g[0], type(g[1][0]).__name__, g[1] if g[0] != "ok" else show(g[1][0].elem))


@program
def subclass_global(compiled: Any) -> Any:
    w = Logging(torch.ones(3))
    f = compiled(lambda x: x * w)
    Logging.log.clear()
    o = f(torch.ones(3))
    return (type(o).__name__, list(Logging.log))


@program
def subclass_after_plain(compiled: Any) -> Any:
    f = compiled(lambda x: x + 1)
    r = [type(f(torch.ones(3))).__name__, type(f(Logging(torch.ones(3)))).__name__, type(f(torch.ones(3))).__name__]
    return r


@program
def dispatch_mode(compiled: Any) -> Any:

    class M(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            log.append(str(func))
            return func(*args, **kwargs or {})

    log = []
    f = compiled(lambda x: x.sin() + 1)
    x = torch.ones(3)
    f(x)
    with M():
        o = f(x)
    return (log, o)


@program
def dispatch_mode_bwd(compiled: Any) -> Any:

    class M(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            log.append(str(func))
            return func(*args, **kwargs or {})

    log = []
    f = compiled(lambda x: x.sin() + 1)
    x = leaf(3)
    o = f(x).sum()
    with M():
        o.backward()
    return (len(log) > 0, x.grad)


@program
def fake_mode_inputs(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin() + 1)
    f(torch.ones(3))
    with FakeTensorMode():
        x = torch.ones(3)
        return str(f(x))


@program
def sparse_input(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    x = torch.eye(3).to_sparse().requires_grad_()
    o = f(x)
    o.to_dense().sum().backward()
    return (show(o.detach()), show(x.grad))


@program
def sparse_mm(compiled: Any) -> Any:
    f = compiled(lambda s, d: torch.sparse.mm(s, d))
    s = torch.eye(3).to_sparse()
    d = leaf(3, 2)
    o = f(s, d)
    o.sum().backward()
    return (o, d.grad)


@program
def sparse_csr(compiled: Any) -> Any:
    f = compiled(lambda s, d: s @ d)
    s = torch.eye(3).to_sparse_csr()
    d = leaf(3, 2)
    return f(s, d)


@program
def nested(compiled: Any) -> Any:
    f = compiled(lambda n: n * 2)
    n = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    o = f(n)
    return [show(t) for t in o.unbind()]


@program
def nested_jagged(compiled: Any) -> Any:
    f = compiled(lambda n: (n * 2).sin())
    n = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged, requires_grad=True)
    o = f(n)
    o.values().sum().backward()
    return ([show(t) for t in o.unbind()], type(n.grad).__name__)


@program
def quantised(compiled: Any) -> Any:
    f = compiled(lambda q: q.dequantize() * 2)
    q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    return f(q)


@program
def mkldnn_input(compiled: Any) -> Any:
    f = compiled(lambda q: q.to_dense() * 2)
    q = torch.ones(3, 3).to_mkldnn()
    return f(q)


@program
def multi_out_partial(compiled: Any) -> Any:
    f = compiled(lambda x, y: (x * y, x.sin(), y.cos(), x.detach(), x > 0, None, 3))
    x, y = (leaf(3), leaf(3))
    r = []
    for k in range(3):
        x.grad = y.grad = None
        o = f(x, y)
        o[k].sum().backward()
        r.append((show(x.grad), show(y.grad)))
    return (r, [isinstance(t, torch.Tensor) and (t.requires_grad, t.is_leaf) for t in o])


@program
def inference_in(compiled: Any) -> Any:
    f = compiled(lambda x, w: x @ w)
    w = leaf(3, 3)
    with torch.inference_mode():
        x = torch.ones(2, 3)
        o = f(x, w)
    r = [show(o), o.is_inference()]
    r.append(outcome(lambda: f(x, w.detach())))
    r.append(outcome(lambda: f(x, w)))
    with torch.no_grad():
        p = f(x, w)
        r.append((show(p), p.is_inference()))
    with torch.inference_mode():
        q = f(torch.ones(2, 3), w)
        r.append((q.is_inference(), outcome(lambda: q.add_(1).is_inference())))
    return r


@program
def no_grad_deco(compiled: Any) -> Any:

    @torch.no_grad()
    def g(x):
        return x.sin()

    f = compiled(g)
    x = leaf(3)
    o = f(x)
    h = compiled(lambda x: g(x) * x)
    p = h(x)
    p.sum().backward()
    return (show(o), show(p), x.grad)


@program
def version_counter(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a).sum().backward()
    return ([t._version for t in a], [t.grad._version for t in a])


@program
def grad_is_leaf(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a).sum().backward()
    return [(t.grad.requires_grad, t.grad.is_leaf, t.grad.grad_fn is None, t.grad.stride()) for t in a]


@program
def set_grad_enabled_state(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a)
    r = [torch.is_grad_enabled()]
    with torch.no_grad():
        f(*a)
        r.append(torch.is_grad_enabled())
    return r


@program
def save_then_free_outputs_alias(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sin(), x))
    x = leaf(3)
    o, y = f(x)
    return (y is x, show(o))


@program
def gradient_edge(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sin(), x.cos()))
    x = leaf(3)
    a, b = f(x)
    e = get_gradient_edge(b)
    return show(torch.autograd.grad([e], [x], [torch.ones(3)]))


@program
def multi_grad_hook(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sin(), x.cos()))
    x = leaf(3)
    a, b = f(x)
    log = []
    register_multi_grad_hook([a, b], lambda gs: log.append(show(list(gs))))
    (a.sum() + b.sum()).backward()
    return log


@program
def allow_mutation(compiled: Any) -> Any:
    f = compiled(lambda x, y: x * y)
    x, y = (leaf(3), leaf(3))
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        o = f(x, y)
        with torch.no_grad():
            y.add_(1)
        r = outcome(lambda: o.sum().backward())
    return (r, x.grad)


@program
def retain_intermediate_grad(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    x = leaf(3)
    h = x.sin()
    h.retain_grad()
    o = f(h)
    o.sum().backward()
    return (h.grad, x.grad)


@program
def create_graph_penalty(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    g = torch.autograd.grad(f(*a).square().sum(), a, create_graph=True)
    sum((t.square().sum() for t in g)).backward()
    return [t.grad for t in a]


@program
def double_after_params_changed(compiled: Any) -> Any:
    f = compiled(lambda x, w: (x * w).sin())
    x, w = (leaf(3), leaf(3))
    o = f(x, w)
    with torch.no_grad():
        w.add_(1)
    return outcome(lambda: torch.autograd.grad(o.sum(), x, create_graph=True))


@program
def double_bn(compiled: Any) -> Any:
    m = nn.BatchNorm1d(3)
    f = compiled(lambda x: m(x).sin())
    x = leaf(4, 3, dtype=torch.float32)
    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    g.square().sum().backward()
    return (x.grad, m.running_mean, m.num_batches_tracked)


@program
def third_order(compiled: Any) -> Any:
    f = compiled(lambda x: x**4)
    x = leaf(3, dtype=torch.float64)
    o = f(x).sum()
    for _ in range(3):
        (o,) = torch.autograd.grad(o, x, create_graph=True)
        o = o.sum()
    return o


@program
def complex_bwd(compiled: Any) -> Any:
    f = compiled(lambda x: (x * x.conj()).real.sqrt())
    x = leaf(3, dtype=torch.complex64)
    f(x).sum().backward()
    return str(x.grad)


@program
def out_of_region_mutation_saved_out(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sigmoid(), x.tanh()))
    x = leaf(3)
    a, b = f(x)
    with torch.no_grad():
        a.zero_()
    return outcome(lambda: torch.autograd.grad(b.sum(), x))


@program
def grad_fn_name(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin())
    x = leaf(3)
    o = f(x)
    return (o.grad_fn is not None, len(o.grad_fn.next_functions), o.output_nr)


@program
def graph_task_hook(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    log = []
    o = f(*a)
    o.register_hook(lambda g: Variable._execution_engine.queue_callback(lambda: log.append("end")))
    o.sum().backward()
    return log


@program
def backward_inside_nograd(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    o = f(*a).square().sum()
    with torch.no_grad():
        o.backward()
    return [t.grad for t in a]


@program
def backward_inside_inference(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    o = f(*a).square().sum()

    def go():
        with torch.inference_mode():
            o.backward()

    return (outcome(go), [None if t.grad is None else (show(t.grad), t.grad.is_inference()) for t in a])


@program
def grad_dtype_param_half(compiled: Any) -> Any:
    f = compiled(lambda x, w: x.double() @ w.double())
    x, w = (leaf(2, 3), leaf(3, 2))
    f(x, w).sum().backward()
    return (x.grad, w.grad)


@program
def expanded_leaf(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    x = torch.randn(3, 1).expand(3, 4).requires_grad_()
    f(x).sum().backward()
    return (x.grad, x.grad.stride())


@program
def noncontig_leaf(compiled: Any) -> Any:
    f = compiled(lambda x: x.sin())
    x = torch.randn(4, 3).t().requires_grad_()
    f(x).sum().backward()
    return (x.grad, x.grad.stride())


KERNELS = [
    "module_hooks_inside", "batched_matmul", "tangents", "gradcheck_fwd", "autocast_bwd_inside", "checkpoint_around",
    "subclass_tangent", "multi_out_partial", "double_bn", "complex_bwd", "threads", "param_hooks", "noncontig_leaf",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    expected, actual = run(name, lambda f: f), run(name, lambda f: fuselens.compile(f, backend="aot_eager"))
    assert agree(actual, expected), f"compiled: {actual}\neager: {expected}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KERNELS)
def test_program_with_kernels(name: str) -> None:
    expected, actual = run(name, lambda f: f), run(name, fuselens.compile)
    assert agree(actual, expected), f"compiled: {actual}\neager: {expected}"
