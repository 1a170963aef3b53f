"""Hooks of tensors, modules and saved values.

Each program gives what eager gives, in values, metadata and exceptions, when its function is compiled.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook, save_on_cpu, saved_tensors_hooks

import fuselens
from tests.support.functions import mlp
from tests.support.surroundings import Programs, assert_agree, inputs, outcome, show
from tests.support.tensors import leaf

PROGRAMS = Programs()
program = PROGRAMS.add
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


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
def retain_intermediate_grad(compiled: Any) -> Any:
    f = compiled(lambda x: x * 2)
    x = leaf(3)
    h = x.sin()
    h.retain_grad()
    o = f(h)
    o.sum().backward()
    return (h.grad, x.grad)


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


KERNELS = ["module_hooks_inside", "param_hooks"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    assert_agree(PROGRAMS[name], lambda f: fuselens.compile(f, backend="aot_eager"))


@pytest.mark.parametrize("name", KERNELS)
def test_program_with_kernels(name: str) -> None:
    assert_agree(PROGRAMS[name], fuselens.compile)


WATCHES = {
    "hooks": lambda: saved_tensors_hooks(lambda t: t, lambda t: t),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.parametrize("watch", WATCHES)
def test_what_a_watched_program_calls_is_not_compiled_either(watch: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compiled, x = fuselens.compile(model), leaf(3, 4)
    gradients = []
    for call in (model, compiled, compiled):
        model.zero_grad()
        with WATCHES[watch]():
            call(x).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)
    report = compiled.__fuselens__.recorder.report
    assert len(report.graphs) == 1 and [d.code for d in report.diagnostics] == ["FL303"]
    compiled(x).square().sum().backward()  # nobody watches
    torch.testing.assert_close([p.grad for p in model.parameters()], [2 * g for g in gradients[0]])
