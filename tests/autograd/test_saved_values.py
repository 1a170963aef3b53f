"""Values that are kept for the backward: modified, freed, copied, used by other threads.

Each program gives what eager gives, in values, metadata and exceptions, when its function is compiled.
"""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from tests.support.functions import mlp
from tests.support.surroundings import Programs, assert_agree, inputs, outcome, show
from tests.support.tensors import leaf

PROGRAMS = Programs()
program = PROGRAMS.add
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


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
def version_counter(compiled: Any) -> Any:
    f = compiled(mlp)
    a = inputs()
    f(*a).sum().backward()
    return ([t._version for t in a], [t.grad._version for t in a])


@program
def save_then_free_outputs_alias(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sin(), x))
    x = leaf(3)
    o, y = f(x)
    return (y is x, show(o))


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
def double_after_params_changed(compiled: Any) -> Any:
    f = compiled(lambda x, w: (x * w).sin())
    x, w = (leaf(3), leaf(3))
    o = f(x, w)
    with torch.no_grad():
        w.add_(1)
    return outcome(lambda: torch.autograd.grad(o.sum(), x, create_graph=True))


@program
def out_of_region_mutation_saved_out(compiled: Any) -> Any:
    f = compiled(lambda x: (x.sigmoid(), x.tanh()))
    x = leaf(3)
    a, b = f(x)
    with torch.no_grad():
        a.zero_()
    return outcome(lambda: torch.autograd.grad(b.sum(), x))


KERNELS = ["threads"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    assert_agree(PROGRAMS[name], lambda f: fuselens.compile(f, backend="aot_eager"))


@pytest.mark.parametrize("name", KERNELS)
def test_program_with_kernels(name: str) -> None:
    assert_agree(PROGRAMS[name], fuselens.compile)
