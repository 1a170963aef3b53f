"""Modules: parameters, hooks, modes, state that they assign.

Something changes between calls; compiled code must notice whatever eager would notice.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from tests.support.scenarios import Scenarios, agrees, raised
from tests.support.tensors import t

SCENARIOS = Scenarios()
scenario = SCENARIOS.add


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("offset", torch.ones(3))
        self.k = 2.0

    def forward(self, x):
        return self.drop(self.norm(self.linear(x))) * self.k + self.offset


@scenario
def train_and_eval(wrap):
    m = Net()
    f = wrap(m)
    x = t(4, 3)
    for _ in range(2):
        yield f(x)
        m.eval()
        yield f(x)
        m.train()
        yield f(x), m.norm.num_batches_tracked, m.norm.running_mean
    f.eval()
    yield f(x), m.training, m.drop.training, f.training
    f.train()
    yield f(x), m.training
    m.drop.p = 0.0
    yield f(x)
    m.norm.momentum = None
    yield f(x), m.norm.running_var
    m.norm.eval()
    yield f(x), m.norm.running_var


@scenario
def parameters_and_buffers_are_replaced(wrap):
    m = nn.Linear(3, 3)
    f = wrap(m)
    x = t(2, 3)
    yield f(x)
    m.weight = nn.Parameter(t(3, 3, seed=5))
    yield f(x)
    m.weight = nn.Parameter(t(4, 3, seed=5))
    m.bias = nn.Parameter(t(4))
    yield f(x)
    m.bias = None
    yield f(x)
    m.weight.requires_grad_(False)
    yield f(x)
    with torch.no_grad():
        m.weight.mul_(2)
    yield f(x)
    m.weight.data = t(2, 3)
    yield f(x)
    m.double()
    yield f(x.double()), raised(f, x)
    m.load_state_dict({"weight": t(2, 3, seed=3).double()})
    yield f(x.double())


@scenario
def submodules_are_replaced(wrap):
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    f = wrap(m)
    yield f(t(2, 3))
    m[1] = nn.Tanh()
    yield f(t(2, 3))
    m.append(nn.Sigmoid())
    yield f(t(2, 3))
    del m[1]
    yield f(t(2, 3))
    m[0] = nn.Identity()
    yield f(t(2, 3))
    m.insert(0, nn.Linear(3, 2))
    yield f(t(2, 3))


@scenario
def hooks_are_added_later(wrap):
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    f = wrap(m)
    x = t(2, 3)
    yield f(x)
    h = m[0].register_forward_hook(lambda mod, args, out: out * 2)
    yield f(x)
    h.remove()
    yield f(x)
    h = m[1].register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    yield f(x)
    h.remove()
    h = m.register_forward_hook(lambda mod, args, out: print("hook", out.shape))
    yield f(x)
    h.remove()
    seen = []
    h = m[0].register_full_backward_hook(lambda mod, gi, go: seen.append(len(gi)))
    f(x).sum().backward()
    yield len(seen), m[0].weight.grad
    h.remove()
    h = nn.modules.module.register_module_forward_hook(lambda mod, args, out: out + 1)
    try:
        yield f(x)
    finally:
        h.remove()
    yield f(x)


@scenario
def forward_is_replaced(wrap):
    class M(nn.Module):
        def forward(self, x):
            return x + 1

    m = M()
    f, g = wrap(m), wrap(lambda x: m(x))
    yield f(t(3)), g(t(3))
    M.forward = lambda self, x: x * 2
    yield f(t(3)), g(t(3))
    m.forward = lambda x: x * 3
    yield f(t(3)), g(t(3))
    del m.forward
    M.extra = 1
    yield f(t(3)), g(t(3))
    M.__call__ = lambda self, x: x - 100
    yield g(t(3))


@scenario
def module_attributes(wrap):
    m = Net().eval()
    f = wrap(m)
    yield f(t(4, 3))
    m.k = 3.0
    yield f(t(4, 3))
    m.k = 3
    yield f(t(4, 3))
    m.offset = t(3)
    yield f(t(4, 3))
    m.offset = None
    yield raised(f, t(4, 3))
    m.offset = t(1)
    yield f(t(4, 3))
    f.k = 9
    yield f(t(4, 3)), m.k


@scenario
def module_lists_and_dicts(wrap):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
            self.heads = nn.ModuleDict({"a": nn.Linear(3, 1)})
            self.ps = nn.ParameterList([nn.Parameter(t(3))])

        def forward(self, x, head="a"):
            for i, layer in enumerate(self.layers):
                x = layer(x) + i
            for p in self.ps:
                x = x * p
            return self.heads[head](x), len(self.layers), list(self.heads.keys())

    m = M()
    f = wrap(m)
    yield f(t(2, 3))
    m.layers.append(nn.Linear(3, 3))
    yield f(t(2, 3))
    m.heads["b"] = nn.Linear(3, 2)
    yield f(t(2, 3)), f(t(2, 3), "b"), f(t(2, 3), head="b"), raised(f, t(2, 3), "c")
    m.ps.append(nn.Parameter(t(3, seed=4)))
    yield f(t(2, 3))
    m.layers[0], m.layers[1] = m.layers[1], m.layers[0]
    yield f(t(2, 3))


@scenario
def shared_parameters(wrap):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.b(self.a(x)), self.a.weight is self.b.weight

    m = M()
    f = wrap(m)
    yield f(t(2, 3))
    m.b.weight = m.a.weight
    yield f(t(2, 3))
    m.b = m.a
    yield f(t(2, 3))
    m.b = nn.Linear(3, 3)
    yield f(t(2, 3))


@scenario
def training_steps(wrap):
    torch.manual_seed(3)
    m = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    f = wrap(m)
    o = torch.optim.Adam(m.parameters(), 0.1)
    for i in range(5):
        o.zero_grad()
        loss = f(t(4, 3, seed=i)).pow(2).mean()
        loss.backward()
        o.step()
        yield loss, m[0].weight.grad
    with torch.no_grad():
        yield f(t(4, 3))
    for p in m[0].parameters():
        p.requires_grad_(False)
    yield f(t(4, 3))
    m.requires_grad_(False)
    yield f(t(4, 3))


@scenario
def two_instances_of_one_module_class(wrap):
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    fa, fb = wrap(a), wrap(b)
    yield fa(t(2, 3)), fb(t(2, 3)), fa(t(2, 3))
    g = wrap(lambda m, x: m(x))
    yield (
        g(a, t(2, 3)),
        g(b, t(2, 3)),
        g(nn.Linear(3, 3, bias=False), t(2, 3)),
        g(nn.ReLU(), t(2, 3)),
        g(torch.neg, t(3)),
    )


@scenario
def a_module_counts(wrap):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.n = 0
            self.last = None
            self.cache = {}

        def forward(self, x):
            self.steps += 1
            self.n += 1
            self.last = x * 2
            self.cache[self.n] = self.last
            return x * self.steps + self.n

    m = M()
    f = wrap(m)
    for i in range(5):
        yield f(t(3, seed=i)), m.steps, m.n, m.last, m.cache, m.cache[m.n] is m.last


@scenario
def weight_norm_and_parametrizations(wrap):
    m = nn.Linear(3, 3)
    f = wrap(m)
    yield f(t(2, 3))
    torch.nn.utils.parametrizations.weight_norm(m)
    yield f(t(2, 3))
    torch.nn.utils.parametrize.remove_parametrizations(m, "weight")
    yield f(t(2, 3))


@scenario
def module_copies(wrap):
    m = Net().eval()
    f = wrap(m)
    x = t(4, 3)
    yield f(x)
    c = copy.deepcopy(f)
    with torch.no_grad():
        c.linear.weight.zero_()
    c.k = 7.0
    yield f(x), c(x), m.k, isinstance(c, Net)
    yield sorted(f.state_dict()), len(list(f.parameters())), [n for n, _ in f.named_children()], isinstance(f, Net)
    f.to(torch.float64)
    yield f(x.double()), m.linear.weight.dtype
    f.load_state_dict(c.state_dict())
    yield f(x.double()), f.linear is m.linear
    p = pickle.loads(pickle.dumps(f))
    yield p(x.double()), isinstance(p, Net), p.k
    f.zero_grad()
    f.apply(lambda s: None)
    yield type(f).__name__, f.training, f.extra_repr(), str(f)


@scenario
def delegating_modules(wrap):
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return (
                self.inner(x) * self.in_features + self.weight.sum() + hasattr(self, "bias") + hasattr(self, "nothing")
            )

    m = Wrapper(nn.Linear(3, 3))
    f = wrap(m)
    yield f(t(2, 3))
    m.in_features = 10
    yield f(t(2, 3))
    m.inner = nn.Linear(3, 4)
    yield f(t(2, 3))
    m.nothing = 1
    yield f(t(2, 3))


@scenario
def modules_that_assign_their_state(wrap):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.w = nn.Parameter(torch.ones(3))
            self.log, self.table, self.history = [], {"n": 0}, None
            self.fns = [torch.relu, nn.Tanh()]
            self.extra = [nn.Linear(3, 3)]

        def forward(self, x, *args, scale=1, **options):
            self.total = self.total * 0.5 + x.detach()
            self.log.append(scale)
            self.table["n"] += 1
            self.table.setdefault("seen", []).append(len(self.log))
            if self.history is None:
                self.history = x
            for f in self.fns:
                x = f(x)
            for m in self.extra:
                x = m(x)
            return x * self.w * scale + self.total + self.history + len(options) + len(args)

    torch.manual_seed(1)
    m = M()
    f = wrap(m)
    for i in range(4):
        yield f(t(3, seed=i)), m.total, m.log, m.table, m.history, "total" in dict(m.named_buffers())
    yield f(t(3), 1, 2, scale=3), f(t(3), scale=2, a=1, b=2), m.log, m.table
    m.fns[0] = torch.neg
    yield f(t(3))
    m.fns.append(lambda v: v + 1)
    yield f(t(3))
    m.extra.clear()
    yield f(t(3))
    m.history = None
    yield f(t(3)), m.history
    m.register_buffer("total", t(3), persistent=False)
    yield f(t(3)), sorted(m.state_dict())


@scenario
def compiled_modules_inside_others(wrap):
    inner = wrap(nn.Linear(3, 3))

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.tail = inner, nn.Linear(3, 2)

        def forward(self, x):
            return self.tail(self.inner(x).relu())

    p = Parent()
    f = wrap(p)
    yield p(t(2, 3)), f(t(2, 3)), sorted(p.state_dict()), inner in list(p.children()), len(list(p.parameters()))
    p.eval()
    p.double()
    yield f(t(2, 3).double()), inner.training, inner.weight.dtype
    c = copy.copy(f)
    c.tail = nn.Linear(3, 4).double()
    yield c(t(2, 3).double()).shape, f(t(2, 3).double()).shape
    buffer = io.BytesIO()
    torch.save(inner, buffer)
    buffer.seek(0)
    yield torch.load(buffer, weights_only=False)(t(2, 3).double()), {inner: 1}[inner], inner == inner


@scenario
def dtype_and_device_of_a_model_change(wrap):
    m = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.GELU())
    f = wrap(m)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        m.to(dtype)
        yield f(t(2, 3).to(dtype))
    m.to("meta")
    yield f(torch.empty(2, 3, device="meta")).shape


@scenario
def recurrent_state(wrap):
    torch.manual_seed(0)
    cell = nn.GRUCell(3, 4)

    def fn(xs, h=None):
        out = []
        for x in xs:
            h = cell(x, h)
            out.append(h)
        return torch.stack(out), h

    f = wrap(fn)
    ys, h = f(t(5, 2, 3))
    yield ys, h
    yield f(t(5, 2, 3), h), f(t(2, 2, 3), h.detach()), f([t(2, 3)], None)


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices_what_eager_notices(made):
    agrees(made)
