"""Modes: anomaly detection, autocast, dispatch modes, gradients switched off, checkpoints.

Each program gives what eager gives, in values, metadata and exceptions, when its function is compiled.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fuselens
from tests.support.functions import mlp
from tests.support.surroundings import Programs, assert_agree, inputs, outcome, show
from tests.support.tensors import leaf

PROGRAMS = Programs()
program = PROGRAMS.add
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


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


KERNELS = ["autocast_bwd_inside", "checkpoint_around"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    assert_agree(PROGRAMS[name], lambda f: fuselens.compile(f, backend="aot_eager"))


@pytest.mark.parametrize("name", KERNELS)
def test_program_with_kernels(name: str) -> None:
    assert_agree(PROGRAMS[name], fuselens.compile)
