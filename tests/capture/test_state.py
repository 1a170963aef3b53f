"""Call, change something, call again: compiled code must notice whatever eager would notice.

A scenario is a generator that is given ``wrap`` and yields what it observes. It runs once with ``wrap`` doing nothing
and once compiling; both must observe the same.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import enum
import functools
import gc
import io
import pickle
import sys
import threading
import types
import warnings
import weakref
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from fuselens.inputs import comparison

Wrap = Callable[..., Any]
Scenario = Callable[[Wrap], Iterator[Any]]
SCENARIOS: list[Scenario] = []


def scenario(fn: Scenario) -> Scenario:
    SCENARIOS.append(fn)
    return fn


def t(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def raised(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call raises, as text; its result when it raises nothing."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any exception is an observation
        return f"{type(error).__name__}: {error}"


def snapshot(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(snapshot(v) for v in value)
    if type(value) is dict:
        return {k: snapshot(v) for k, v in value.items()}
    return value


def observe(made: Scenario, wrap: Wrap) -> tuple[list[Any], str]:
    torch.manual_seed(0)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        seen = [snapshot(v) for v in made(wrap)]
    return seen, out.getvalue()


# --- globals, closures, defaults ------------------------------------------------------------------------------------

SCALE: Any = 2.0
TABLE: dict[str, Any] = {"k": 1}
ITEMS: list[Any] = [1, 2]


@scenario
def a_global_changes_value_and_type(wrap):
    global SCALE
    f = wrap(lambda x: x * SCALE)
    for SCALE in (2.0, 3.0, 3, True, -0.0, 0.0, t(3)):
        yield f(torch.arange(3)), SCALE
    SCALE = 2.0


@scenario
def a_global_function_is_replaced(wrap):
    global helper
    saved = helper
    f = wrap(lambda x: helper(x) + 1)
    yield f(t(3))
    helper = lambda x: x * 10  # noqa: E731
    yield f(t(3))
    helper = torch.relu
    yield f(t(3))
    helper = nn.Tanh()
    yield f(t(3))
    helper = saved
    yield f(t(3))


def helper(x, k=2.0, *, shift=1.0):
    return x * k + shift


@scenario
def code_of_a_global_function_is_replaced(wrap):
    f = wrap(lambda x: helper(x))
    saved = helper.__code__
    yield f(t(3))
    helper.__code__ = (lambda x, k=2.0, *, shift=1.0: x - k - shift).__code__
    yield f(t(3))
    helper.__code__ = saved
    yield f(t(3))


@scenario
def defaults_of_a_callee_change(wrap):
    def callee(x, k=2.0, *, shift=1.0):
        return x * k + shift

    f = wrap(lambda x: callee(x))
    yield f(t(3))
    callee.__defaults__ = (5.0,)
    yield f(t(3))
    callee.__kwdefaults__ = {"shift": -1.0}
    yield f(t(3))
    callee.__defaults__ = (1.0, 5.0)
    yield f(t(3)), raised(f)
    callee.__defaults__ = None
    yield raised(f, t(3))


@scenario
def defaults_of_the_compiled_function_change(wrap):
    def fn(x, k=2.0):
        return x * k

    f = wrap(fn)
    yield f(t(3))
    fn.__defaults__ = (3.0,)
    yield f(t(3))


@scenario
def a_mutable_default_remembers(wrap):
    def fn(x, seen=[]):  # noqa: B006
        seen.append(x.sum())
        return sum(seen), len(seen)

    f = wrap(fn)
    for i in range(5):
        yield f(t(3, seed=i))


@scenario
def a_mutable_default_of_a_callee_remembers(wrap):
    def callee(x, seen={}):  # noqa: B006
        seen[len(seen)] = x
        return len(seen)

    f = wrap(lambda x: x * callee(x))
    for i in range(5):
        yield f(t(3, seed=i))


@scenario
def a_closure_changes(wrap):
    k: Any = 2

    def fn(x):
        return x * k

    f = wrap(fn)
    yield f(t(3))
    k = 3
    yield f(t(3))
    k = t(3, seed=9)
    yield f(t(3))
    k = k[:1]
    yield f(t(3))


@scenario
def closures_of_one_code(wrap):
    def make(n):
        return wrap(lambda x: x + n)

    adders = [make(n) for n in (1, 2, 3.5, t(3))]
    for _ in range(2):
        for f in adders:
            yield f(t(3))


@scenario
def nonlocal_counter(wrap):
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x * n

    f = wrap(fn)
    for _ in range(4):
        yield f(t(3)), n


@scenario
def nonlocal_counter_in_a_callee(wrap):
    n = 0

    def bump():
        nonlocal n
        n += 1
        return n

    f = wrap(lambda x: x * bump() + bump())
    for _ in range(4):
        yield f(t(3)), n


COUNT = 0


@scenario
def global_counter(wrap):
    global COUNT
    COUNT = 0

    def fn(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    f = wrap(fn)
    for _ in range(4):
        yield f(t(3)), COUNT


@scenario
def a_global_is_deleted(wrap):
    global LATER
    LATER = 1
    f = wrap(lambda x: x + LATER)
    yield f(t(3))
    del LATER
    yield raised(f, t(3))
    LATER = 5
    yield f(t(3))


@scenario
def a_builtin_is_shadowed_by_a_global(wrap):
    f = wrap(lambda x: x * len(x))
    yield f(t(3))
    globals()["len"] = lambda x: 100
    try:
        yield f(t(3))
    finally:
        del globals()["len"]
    yield f(t(3))


@scenario
def a_builtin_is_replaced(wrap):
    f = wrap(lambda x: x * max(1, 2))
    g = wrap(lambda x: (print("hi"), x + 1)[1])
    yield f(t(3)), g(t(3))
    saved = builtins.max, builtins.print
    try:
        builtins.max = lambda *a, **k: 7 if a == (1, 2) else saved[0](*a, **k)
        builtins.print = lambda *a: saved[1]("other", *a)
        yield f(t(3)), g(t(3))
    finally:
        builtins.max, builtins.print = saved
    yield f(t(3)), g(t(3))


@scenario
def a_global_dict_and_list_change(wrap):
    def fn(x):
        total = x
        for k, v in TABLE.items():
            total = total * v + len(k)
        for i in ITEMS:
            total = total + i
        return total, "z" in TABLE, 3 in ITEMS

    f = wrap(fn)
    yield f(t(3))
    TABLE["k"] = 2
    yield f(t(3))
    TABLE["zz"] = 3
    yield f(t(3))
    ITEMS.append(3)
    yield f(t(3))
    ITEMS.reverse()
    yield f(t(3))
    TABLE.pop("k")
    TABLE["k"] = 1
    yield f(t(3))
    TABLE.clear()
    TABLE["k"] = 1
    ITEMS[:] = [1, 2]
    yield f(t(3))


@scenario
def a_module_attribute_changes(wrap):
    module = types.ModuleType("user_module")
    module.k, module.fn = 2, lambda x: x + 1
    f = wrap(lambda x: module.fn(x) * module.k)
    yield f(t(3))
    module.k = 3
    yield f(t(3))
    module.fn = lambda x: x - 1
    yield f(t(3))


# --- objects and classes --------------------------------------------------------------------------------------------


class Base:
    scale = 2.0
    shared: list[Any] = []

    def apply(self, x):
        return x * self.scale

    @staticmethod
    def static(x):
        return x + 1

    @classmethod
    def build(cls, x):
        return x * cls.scale

    @property
    def double(self):
        return self.scale * 2


def fresh_class():
    return type("Fresh", (Base,), {"own": 1, "go": lambda self, x: x + self.own})


@scenario
def a_method_is_replaced_on_the_class(wrap):
    cls = fresh_class()
    c = cls()
    f = wrap(lambda x: c.go(x))
    yield f(t(3))
    cls.go = lambda self, x: x - self.own
    yield f(t(3))
    del cls.go
    yield raised(f, t(3))


@scenario
def an_inherited_method_is_overridden_later(wrap):
    cls = fresh_class()
    c = cls()
    f = wrap(lambda x: c.apply(x))
    yield f(t(3))
    cls.apply = lambda self, x: x * 100
    yield f(t(3))
    del cls.apply
    yield f(t(3))


@scenario
def a_method_is_replaced_on_the_instance(wrap):
    c = fresh_class()()
    f = wrap(lambda x: c.go(x))
    yield f(t(3))
    c.go = lambda x: x * 5
    yield f(t(3))
    c.go = torch.neg
    yield f(t(3))
    del c.go
    yield f(t(3))


@scenario
def class_attributes_change(wrap):
    cls = fresh_class()
    c = cls()
    f = wrap(lambda x: (x * cls.own, x * c.own, x * c.scale))
    yield f(t(3))
    cls.own = 4
    yield f(t(3))
    cls.scale = 9.0
    yield f(t(3))
    c.own = 5
    yield f(t(3))
    c.__class__ = type("Other", (cls,), {"own": 77, "scale": 1})
    yield f(t(3))


@scenario
def class_and_static_methods_change(wrap):
    cls = fresh_class()
    c = cls()
    f = wrap(lambda x: (cls.static(x), c.static(x), cls.build(x), c.build(x)))
    yield f(t(3))
    cls.static = staticmethod(lambda x: x * 3)
    yield f(t(3))
    cls.build = classmethod(lambda k, x: x - k.own)
    yield f(t(3))
    cls.own = 10
    yield f(t(3))


@scenario
def a_property_changes(wrap):
    cls = fresh_class()
    c = cls()
    f = wrap(lambda x: x * c.double)
    yield f(t(3))
    cls.double = property(lambda self: 3)
    yield f(t(3))
    c.scale = 8
    yield f(t(3))
    cls.double = 11
    yield f(t(3))


@scenario
def a_function_attribute_of_a_class_changes(wrap):
    cls = type("Namespace", (), {"fn": staticmethod(torch.relu), "dtype": torch.float32, "flag": True, "none": None})
    f = wrap(lambda x: cls.fn(x).to(cls.dtype) * (2 if cls.flag else 3) if cls.none is None else x)
    yield f(t(3))
    cls.fn = staticmethod(torch.neg)
    yield f(t(3))
    cls.dtype = torch.float64
    yield f(t(3))
    cls.flag = False
    yield f(t(3))
    cls.none = 1
    yield f(t(3))


@scenario
def operators_change(wrap):
    class V:
        def __init__(self, v):
            self.v = v

        def __add__(self, other):
            return self.v + other

        def __len__(self):
            return 3

        def __bool__(self):
            return True

        def __call__(self, x):
            return x * 2

        def __getitem__(self, i):
            return self.v + i

        def __contains__(self, i):
            return i == 3

        def __iter__(self):
            return iter([self.v, 1])

    v = V(1)
    f = wrap(lambda x: (v + x, len(v), bool(v), v(x), v[2], 3 in v, [i for i in v], 1 if v else 2))
    yield f(t(3))
    v.v = 2
    yield f(t(3))
    V.__add__ = lambda self, other: other * 7
    yield f(t(3))
    V.__len__ = lambda self: 9
    yield f(t(3))
    V.__bool__ = lambda self: False
    yield f(t(3))
    V.__call__ = lambda self, x: x - 1
    yield f(t(3))
    V.__getitem__ = lambda self, i: -i
    yield f(t(3))
    V.__contains__ = lambda self, i: False
    yield f(t(3))
    V.__iter__ = lambda self: iter((4, 5))
    yield f(t(3))


@scenario
def instances_of_one_class(wrap):
    @dataclass
    class Settings:
        k: float
        names: list[str] = field(default_factory=list)
        w: Any = None

    def fn(s, x):
        y = x * s.k + len(s.names)
        return y if s.w is None else y + s.w

    f = wrap(fn)
    for s in (Settings(1.0), Settings(2.0), Settings(1.0, ["a"]), Settings(1.0, [], t(3)), Settings(1), Settings(True)):
        yield f(s, t(3))


@scenario
def slots(wrap):
    class S:
        __slots__ = ("a", "b")

    s = S()
    s.a = 2
    f = wrap(lambda x: x * s.a + getattr(s, "b", 0) + hasattr(s, "b"))
    yield f(t(3))
    s.a = 3
    yield f(t(3))
    s.b = 10
    yield f(t(3))
    del s.b
    yield f(t(3))


@scenario
def hasattr_changes(wrap):
    class O:  # noqa: E742
        pass

    o = O()
    f = wrap(lambda x: x + 1 if hasattr(o, "k") else x - 1)
    g = wrap(lambda x: x + getattr(o, "k", 100))
    yield f(t(3)), g(t(3))
    o.k = 1
    yield f(t(3)), g(t(3))
    del o.k
    yield f(t(3)), g(t(3))
    O.k = 7
    yield f(t(3)), g(t(3))
    o.k = None
    yield f(t(3)), raised(g, t(3))


@scenario
def hasattr_of_modules_classes_and_functions_changes(wrap):
    module, cls = types.ModuleType("m"), fresh_class()

    def fn(x):
        return x

    f = wrap(lambda x: (x + 1, hasattr(module, "k"), hasattr(cls, "k"), hasattr(fn, "k"), getattr(cls, "k", 5)))
    yield f(t(3))
    module.k = 1
    yield f(t(3))
    cls.k = 1
    yield f(t(3))
    fn.k = 1
    yield f(t(3))
    del cls.k, fn.k, module.k
    yield f(t(3))


@scenario
def getattr_fallback(wrap):
    class Proxy:
        def __init__(self):
            self.table = {"k": 2}

        def __getattr__(self, name):
            return self.table[name]

    p = Proxy()
    f = wrap(lambda x: x * p.k)
    yield f(t(3))
    p.table["k"] = 3
    yield f(t(3))
    p.k = 4
    yield f(t(3))
    del p.k
    Proxy.k = 9
    yield f(t(3))


@scenario
def enums(wrap):
    class Mode(enum.Enum):
        A = 1
        B = 2

    def fn(x, mode):
        if mode is Mode.A:
            return x + 1
        return x * mode.value if mode == Mode.B else x

    f = wrap(fn)
    for mode in (Mode.A, Mode.B, Mode.A, 2, None):
        yield f(t(3), mode)


@scenario
def int_and_str_enums(wrap):
    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    class Name(str, enum.Enum):
        A = "a"

    f = wrap(lambda x, level, name: (x * level, level + 1, name == "a", level.name))
    yield f(t(3), Level.LOW, Name.A)
    yield f(t(3), Level.HIGH, Name.A)
    yield raised(f, t(3), 2, "a")
    g = wrap(lambda x, level: x * level)
    for level in (Level.LOW, 1, True, Level.HIGH):
        yield g(t(3), level)


@scenario
def an_object_counts_its_calls(wrap):
    class Counter:
        def __init__(self):
            self.n, self.log = 0, []

        def __call__(self, x):
            self.n += 1
            self.log.append(x.sum())
            return x * self.n

    c = Counter()
    f = wrap(c)
    for i in range(4):
        yield f(t(3, seed=i)), c.n, c.log


@scenario
def one_object_under_two_names(wrap):
    class Box:
        def __init__(self, v):
            self.v, self.items = v, []

    def fn(a, b, x):
        a.v = a.v + 1
        a.items.append(x)
        return x * b.v, len(b.items)

    f = wrap(fn)
    for same in (False, True, False, True):
        a = Box(1)
        b = a if same else Box(5)
        yield f(a, b, t(3)), a.v, b.v, len(b.items)


@scenario
def one_list_under_two_names(wrap):
    def fn(a, b, x):
        a.append(x)
        return len(b), b[-1] * 2

    f = wrap(fn)
    for same in (False, True, False):
        a = [t(3, seed=1)]
        b = a if same else [t(3, seed=2)]
        yield f(a, b, t(3)), a, b


@scenario
def one_dict_under_two_names(wrap):
    def fn(a, b, x):
        a["k"] = 7
        return x * b["k"]

    f = wrap(fn)
    for same in (False, True, False):
        a = {"k": 1}
        b = a if same else {"k": 2}
        yield f(a, b, t(3)), a, b


@scenario
def one_list_inside_another(wrap):
    def fn(a, table, x):
        a.append(1)
        return x * len(table["inner"])

    f = wrap(fn)
    for same in (False, True, False):
        a = [0]
        yield f(a, {"inner": a if same else [1, 2]}, t(3)), a


@scenario
def one_tensor_under_two_names(wrap):
    def fn(a, b):
        a.add_(1)
        return b * 2, a is b

    f = wrap(fn)
    for same in (False, True, False, True):
        a = t(3)
        b = a if same else t(3, seed=1)
        yield f(a, b), a, b


@scenario
def views_of_one_tensor(wrap):
    def fn(a, b):
        a.mul_(2)
        b.add_(1)
        return a + b

    f = wrap(fn)
    for overlap in (False, True, False, True):
        base = t(6)
        other = base if overlap else t(6)
        yield f(base[:4], other[2:]), base, other


# --- modules --------------------------------------------------------------------------------------------------------


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


# --- global torch state ---------------------------------------------------------------------------------------------


@scenario
def grad_mode(wrap):
    w = t(3).requires_grad_()
    f = wrap(lambda x: (x * w, torch.is_grad_enabled()))
    g = wrap(lambda: torch.is_grad_enabled())
    for _ in range(2):
        yield f(t(3)), g()
        with torch.no_grad():
            yield f(t(3)), g()
        torch.set_grad_enabled(False)
        yield f(t(3)), g()
        torch.set_grad_enabled(True)
        with torch.inference_mode():
            y, _ = f(t(3))
            yield y.is_inference(), g()
    yield f(t(3)), g()


@scenario
def inference_mode(wrap):
    f = wrap(lambda x: (x * 2, torch.is_inference_mode_enabled(), torch.zeros(2)))
    for on in (False, True, False, True):
        with torch.inference_mode(on):
            y, flag, z = f(t(3))
            yield y.is_inference(), flag, z.is_inference()
    with torch.no_grad():
        yield f(t(3))[1]


@scenario
def requires_grad_of_an_argument(wrap):
    f = wrap(lambda x: (x * 2, x.requires_grad))
    for flag in (False, True, False, True):
        yield f(t(3).requires_grad_(flag))


@scenario
def default_dtype(wrap):
    f = wrap(lambda x: (torch.zeros(2), torch.arange(3) / 2, x * 1.5, torch.tensor(1.5), torch.get_default_dtype()))
    g = wrap(lambda: torch.ones(2))
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            yield f(torch.arange(3)), g()
        finally:
            torch.set_default_dtype(torch.float32)


@scenario
def autocast(wrap):
    f = wrap(lambda a, b: a @ b)
    for on in (False, True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            yield f(t(3, 3), t(3, 3))


@scenario
def default_device(wrap):
    f = wrap(lambda: torch.zeros(2))
    yield f().device.type
    with torch.device("meta"):
        yield f().device.type
    yield f().device.type


@scenario
def randomness(wrap):
    f = wrap(
        lambda x: (torch.rand(3) + x, nn.functional.dropout(x, 0.5), torch.randn_like(x), torch.randint(0, 9, (3,)))
    )
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        yield f(t(3)), f(t(3)), torch.rand(1)


@scenario
def a_dispatch_mode(wrap):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.n += 1
            return func(*args, **(kwargs or {}))

    f = wrap(lambda x: x * 2 + 1)
    yield f(t(3))
    with Count():
        yield f(t(3)), Count.n > 0


@scenario
def a_function_mode(wrap):
    class Double(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.relu else result

    f = wrap(lambda x: torch.relu(x) + 1)
    yield f(t(3))
    with Double():
        yield f(t(3))
    yield f(t(3))


@scenario
def functorch(wrap):
    f = wrap(lambda x: (x * 2).sum())
    yield f(t(3))
    yield torch.func.grad(f)(t(3)), torch.func.vmap(f)(t(2, 3)), torch.func.jvp(f, (t(3),), (t(3),))
    yield f(t(3))


@scenario
def tensor_subclass(wrap):
    class Loud(torch.Tensor):
        pass

    f = wrap(lambda x: x * 2)
    yield f(t(3))
    y = f(t(3).as_subclass(Loud))
    yield type(y).__name__
    yield type(f(nn.Parameter(t(3)))).__name__


# --- arguments ------------------------------------------------------------------------------------------------------


@scenario
def python_numbers_change_type(wrap):
    f = wrap(lambda x, k: (x * k, k, k == 1))
    for k in (1, 1.0, True, 0, 0.0, -0.0, False, float("nan"), float("inf"), -float("inf"), 1 + 0j, 10**20, 10**30):
        yield raised(f, t(3), k)


@scenario
def division_by_signed_zero(wrap):
    f = wrap(lambda x, k: x / k)
    for k in (0.0, -0.0, 0.0, float("nan"), -float("nan")):
        yield f(torch.ones(3), k)


@scenario
def none_tensor_and_others(wrap):
    def fn(x, mask=None, *rest, scale=None, **options):
        y = x if mask is None else x * mask
        for r in rest:
            y = y + r
        return (y if scale is None else y * scale), sorted(options), len(rest)

    f = wrap(fn)
    yield f(t(3))
    yield f(t(3), t(3))
    yield f(t(3), None, 1, 2)
    yield f(t(3), t(3), t(3), scale=2)
    yield f(t(3), scale=t(3), a=1)
    yield f(t(3), mask=t(1), b=2, a=1)
    yield f(x=t(3))
    yield f(t(3), 5, *[1, 2], **{"scale": 3, "z": 0})
    yield raised(f), raised(f, t(3), x=t(3))


@scenario
def containers_change_shape(wrap):
    f = wrap(lambda xs: sum(xs, 0) if isinstance(xs, (list, tuple)) else sum(xs.values()))
    for xs in (
        [t(3)],
        [t(3), t(3)],
        (t(3),),
        [],
        (),
        {"a": t(3)},
        {"b": t(3)},
        {"a": t(3), "b": t(3)},
        [1, t(3)],
        [1.0, t(3)],
    ):
        yield f(xs)


@scenario
def container_subclasses(wrap):
    class L(list):
        pass

    class D(dict):
        def __missing__(self, key):
            return 5

    P = namedtuple("P", "a b")
    f = wrap(lambda v, x: (x * len(v), type(v).__name__, v is None))
    for v in (
        [1],
        L([1]),
        (1,),
        P(1, 2),
        {"a": 1},
        D(a=1),
        OrderedDict(a=1),
        defaultdict(int, a=1),
        {1},
        frozenset([1]),
        "s",
        range(3),
        b"a",
    ):
        yield f(v, t(3))
    g = wrap(lambda d, x: x * d["k"])
    yield (
        g(D(), t(3)),
        g({"k": 2}, t(3)),
        g(defaultdict(lambda: 3), t(3)),
        g(OrderedDict(k=4), t(3)),
        raised(g, {}, t(3)),
    )
    h = wrap(lambda p, x: (x * p.a + p.b, p[0], p))
    yield [tuple(map(str, h(p, t(3)))) for p in (P(1, 2), P(3, t(3)), P(1, 2))]


@scenario
def sizes_change(wrap):
    def fn(x):
        return x.sum() + x.shape[0] * 2, x.reshape(-1), x.shape, x.numel() // 2, [i for i in range(x.shape[0])]

    for dynamic in (None, True, False):
        f = wrap(fn, dynamic=dynamic)
        for n in (3, 4, 5, 0, 1, 2, 7, 1, 0):
            yield f(t(n, 2))
        yield f(t(2)), f(t(3, 2, 2)), f(t(2, 3).t()), f(t(4, 4)[::2])


@scenario
def sizes_choose_a_path(wrap):
    def fn(x, y):
        if x.shape[0] > 4:
            return x * 2
        if x.shape[0] == y.shape[0]:
            return x + y
        return x.sum() + y.sum()

    for dynamic in (None, True):
        f = wrap(fn, dynamic=dynamic)
        for a, b in ((2, 3), (3, 4), (3, 3), (5, 5), (4, 4), (6, 2), (4, 5), (1, 2), (0, 0), (1, 1), (2, 2)):
            yield f(t(a), t(b))


@scenario
def broadcasting_with_changing_sizes(wrap):
    for dynamic in (None, True):
        f = wrap(lambda x, y: x * y + y.mean(), dynamic=dynamic)
        for a, b in ((3, 3), (4, 4), (4, 1), (1, 4), (5, 5), (5, 1)):
            yield f(t(2, a), t(b))
        yield raised(f, t(2, 3), t(4))


@scenario
def dtypes_strides_and_devices(wrap):
    f = wrap(lambda x: (x * 2, x.dtype, x.is_contiguous(), x.stride(), x.device.type))
    for x in (t(3, 4), t(4, 3).t(), t(3, 4).double(), torch.ones(3, 4, dtype=torch.int32), torch.ones(3, 4).bool(), t(3, 8)[:, ::2],
              torch.ones(3, 1).expand(3, 4), t(3, 4).half(), torch.zeros(3, 4, dtype=torch.complex64), t(3, 4).to(torch.bfloat16)):  # fmt: skip
        yield f(x)
    yield f(torch.zeros(3, 4, dtype=torch.complex64).conj()), f(t(3, 4).to("meta"))[1:]


@scenario
def functions_as_arguments(wrap):
    f = wrap(lambda fn, x: fn(x))
    k = 3
    for fn in (torch.relu, torch.neg, lambda x: x + 1, lambda x: x * k, nn.ReLU(), functools.partial(torch.add, t(3)), abs,
               functools.partial(helper, k=5), t(3).add, Base().apply, Base.static, Base.build, str, "a".join):  # fmt: skip
        yield raised(f, fn, t(3)) if fn is not str else type(f(fn, t(3)))


@scenario
def partials_change(wrap):
    p = functools.partial(helper, k=2.0, shift=t(3))
    f, g = wrap(p), wrap(lambda x: p(x))
    yield f(t(3)), g(t(3))
    p.keywords["k"] = 4.0
    yield f(t(3)), g(t(3))
    yield f(t(3), shift=0), raised(f, t(3), t(3))
    p = functools.partial(helper, t(3))
    yield g(2.0)


@scenario
def strings(wrap):
    f = wrap(lambda x, s: (x + len(s), s.upper(), s == "ab", f"{s}!"))
    for s in ("a", "ab", "", "ä", "".join(["a", "b"])):
        yield f(t(3), s)


@scenario
def dict_arguments_in_other_orders(wrap):
    f = wrap(lambda d: ([k for k in d], [v * 2 for v in d.values()], list(d.items())[0][0]))
    for d in (
        {"a": t(1), "b": t(2)},
        {"b": t(2), "a": t(1)},
        {1: t(1)},
        {1.0: t(1)},
        {True: t(1)},
        {(1, 2): t(1)},
        {None: t(2)},
    ):
        yield f(d)


@scenario
def numpy_arguments(wrap):
    np = pytest.importorskip("numpy")
    f = wrap(lambda x, k: (x * k, type(k).__name__))
    for k in (np.float32(2), np.float64(2), np.int64(2), np.bool_(True), 2):
        yield f(t(3), k)
    g = wrap(lambda a: torch.from_numpy(a) * 2)
    a = np.ones(3, dtype=np.float32)
    yield g(a)
    a[0] = 5
    yield g(a)
    h = wrap(lambda x: (x.numpy() + 1).sum() * x)
    yield h(torch.ones(2)), h(torch.zeros(2))


@scenario
def sets_and_objects_without_rules(wrap):
    f = wrap(lambda x, s: (x * len(s), 1 in s, sorted(s)))
    for s in ({1, 2}, {1}, set(), frozenset([1, 3])):
        yield f(t(3), s)


# --- lifetimes and many calls ---------------------------------------------------------------------------------------


@scenario
def five_thousand_calls(wrap):
    f = wrap(lambda x, k: x + k)
    x = torch.zeros(2)
    for i in range(5000):
        x = f(x, i % 3)
    yield x


@scenario
def many_values_past_the_limit(wrap):
    f = wrap(lambda x, k: (x + k, k))
    for i in range(30):
        yield f(t(2), i)


@scenario
def generators_run(wrap):
    def fn(x, n):
        for i in range(n):
            x = x + i
            yield x

    f = wrap(fn)
    yield list(f(t(3), 3)), list(f(t(3), 2))
    g = wrap(lambda x: [v * 2 for v in f(x, 3)])
    yield g(t(3)), g(t(3))


@scenario
def compiled_functions_call_each_other(wrap):
    inner = wrap(lambda x: x * SCALE)

    def fn(x):
        return inner(x) + 1

    f = wrap(fn)
    global SCALE
    yield f(t(3))
    SCALE = 5.0
    yield f(t(3)), inner(t(3))
    inner = lambda x: x - 1  # noqa: E731
    yield f(t(3))
    SCALE = 2.0
    inner = wrap(lambda x: (print("inner"), x)[1])
    yield f(t(3)), f(t(3))


@scenario
def decorated_methods(wrap):
    class C:
        def __init__(self, k):
            self.k = k

        @wrap
        def method(self, x):
            return x * self.k

        @staticmethod
        @wrap
        def static(x):
            return x + 1

        @classmethod
        @wrap
        def build(cls, x):
            return x - len(cls.__name__)

        @property
        @wrap
        def prop(self):
            return self.k + 1

    a, b = C(2), C(3)
    yield a.method(t(3)), b.method(t(3)), C.method(a, t(3)), a.static(t(3)), C.build(t(3)), b.build(t(3)), a.prop
    a.k = 7
    yield a.method(t(3)), a.prop
    f = wrap(b.method)
    yield f(t(3))
    b.k = 11
    yield f(t(3))
    g = wrap(Base().apply)
    yield g(t(3)), g(t(3))


@scenario
def a_trace_function_is_active(wrap):
    f = wrap(lambda x: helper(x) * 2)
    yield f(t(3))
    lines = []
    previous = sys.gettrace()
    sys.settrace(lambda frame, event, arg: lines.append(event))
    try:
        y = f(t(3))
    finally:
        sys.settrace(previous)
    yield y
    g = wrap(lambda x: helper(x) * 3)
    sys.settrace(lambda frame, event, arg: None)
    try:
        y = g(t(3))
    finally:
        sys.settrace(previous)
    yield y, g(t(3))


@scenario
def warnings_repeat(wrap):
    def fn(x):
        y = x + 1
        warnings.warn("careful", stacklevel=1)
        return y * 2

    f = wrap(fn)
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield f(t(3)), [str(w.message) for w in caught]


@scenario
def exceptions_then_success(wrap):
    def fn(x, k):
        y = x + 1
        if k == 2:
            raise ValueError("two")
        assert k != 3, f"three {k}"
        return y / k if isinstance(k, int) else y @ k

    f = wrap(fn)
    for k in (1, 2, 3, 1, 0, t(3), t(4), "a", None, 2, 1):
        yield raised(f, t(3), k)


@scenario
def recursion(wrap):
    def fn(x, n):
        return x if n == 0 else fn(x * 2, n - 1) + n

    f = wrap(fn)
    for n in (0, 1, 5, 20, 5):
        yield f(t(3), n)

    def prints(x, n):
        print("depth", n)
        return x if n == 0 else prints(x + 1, n - 1)

    g = wrap(prints)
    yield g(t(3), 4), g(t(3), 12)


@scenario
def a_stored_tensor_is_read_later(wrap):
    class Cache:
        value = None
        log: list[Any] = []

    c = Cache()

    def fn(x):
        if c.value is None:
            c.value = x * 2
            return c.value
        c.value.add_(1)
        return c.value + x

    f = wrap(fn)
    for i in range(4):
        yield f(t(3, seed=i)), c.value
    c.value = None
    yield f(t(3)), c.value


@scenario
def in_place_state(wrap):
    state = torch.zeros(3)

    def fn(x):
        state.add_(x)
        state[0] = 5
        return state * 2, state

    f = wrap(fn)
    for i in range(3):
        y, s = f(t(3, seed=i))
        yield y, s is state, state
    state = torch.ones(3)
    yield f(t(3)), state


@scenario
def wrappers_of_compiled_functions(wrap):
    inner = wrap(lambda x: x * 2)

    @functools.wraps(inner)
    def outer(x):
        return inner(x) + 100

    f = wrap(outer)
    yield f(t(3)), wrap(f)(t(3)), inner(t(3))


@scenario
def a_dict_argument_is_updated_with_keywords(wrap):
    f = wrap(lambda d, x: (d.update(a=x, b=1), len(d))[1])
    for d in ({}, {"a": 1}, {}):
        yield f(d, t(3)), d


@scenario
def leaves_views_and_inference_tensors(wrap):
    f = wrap(
        lambda x: (x.is_leaf, x.storage_offset(), x.is_inference(), x.is_shared(), x.get_device(), x.nbytes, x * 2)
    )
    a = t(6).requires_grad_()
    with torch.inference_mode():
        b = t(6)
    for x in (t(6), a, a * 1, t(8)[2:], t(6).detach(), b):
        yield f(x)


@scenario
def constants_are_returned_as_they_are(wrap):
    f = wrap(lambda x, k: (x + 1, k))
    g = wrap(lambda x, k: (print("between"), x, k)[1:])
    for k in (
        10**20,
        1234.5,
        "".join(["a", "bcd"]),
        b"".join([b"xy", b"z"]),
        (1, "".join("qr")),
        range(1000, 1003),
        3 + 4j,
    ):
        for again in (k, copy.deepcopy(k)):
            yield f(t(3), again)[1] is again, g(t(3), again)[1] is again


@scenario
def operators_that_decline(wrap):
    class A:
        def __add__(self, o):
            return NotImplemented

        def __eq__(self, o):
            return NotImplemented if o == "no" else True

        __hash__ = None

    class B:
        def __radd__(self, o):
            return "radd"

    a, b = A(), B()
    f = wrap(lambda x: (x * 2, a + b, a == "no", a == 1, 3 in [a], [a] == [a], a != 3))
    g = wrap(lambda x: a + 1)
    yield f(t(3)), f(t(3)), raised(g, t(3))


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
def counters_on_functions_and_classes(wrap):
    class C:
        n = 0
        seen: list[int] = []

    def fn(x):
        fn.calls += 1
        C.n += 1
        C.seen.append(C.n)
        return x * fn.calls + C.n

    fn.calls = 0
    f = wrap(fn)
    for _ in range(12):
        yield f(t(3)), fn.calls, C.n, len(C.seen)


@scenario
def setters_and_setattr(wrap):
    class S:
        def __init__(self):
            self._v, self.log = 1, []

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self.log.append(value)
            self._v = value

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value if name != "loud" else value * 2)

    s = S()

    def fn(x):
        s.v = s.v + 1
        s.loud = s.v
        return x * s.v + s.loud

    f = wrap(fn)
    for _ in range(3):
        yield f(t(3)), s.v, s.loud, s.log


@scenario
def written_through_one_alias_and_read_through_another(wrap):
    class Node:
        def __init__(self):
            self.value, self.kids, self.parent = 0, [], None

    a, b = Node(), Node()
    a.kids.append(b)
    b.parent = a

    def fn(x):
        a.kids[0].value = a.kids[0].value + 1
        b.parent.kids.append(x)
        print("kids", len(a.kids), b.value)
        b.parent.value = b.value * 2
        b.kids = b.kids + [1]
        return x * a.value + len(a.kids) + len(a.kids[0].kids)

    f = wrap(fn)
    for _ in range(3):
        yield f(t(3)), a.value, b.value, len(a.kids), b.kids
    b.parent = Node()
    yield f(t(3)), a.value, b.value, b.parent.value
    a.kids[0] = a
    yield f(t(3)), a.value, b.value, len(a.kids)


@scenario
def iterators_as_arguments(wrap):
    f = wrap(lambda xs, x: (sum(v for v in xs), x + 1))
    g = wrap(lambda xs, x: [v * x for v in xs])
    for make in (lambda: iter([1, 2]), lambda: (i for i in range(3)), lambda: zip([1], [2]), lambda: map(abs, [-1]), lambda: {1: 2}.keys(),
                 lambda: reversed([1, 2]), lambda: range(3), lambda: {1: t(3)}.values(), lambda: enumerate([5])):  # fmt: skip
        yield raised(f, make(), t(3)), raised(g, make(), t(3))
    it = iter([1, 2, 3])
    h = wrap(lambda it, x: x * next(it))
    yield h(it, t(3)), h(it, t(3)), list(it)


@scenario
def odd_constants_as_arguments(wrap):
    f = wrap(lambda x, k: (x + 1, k, x[k] if isinstance(k, slice) else 0))
    for k in (..., NotImplemented, slice(0, 2), slice(1, None), torch.float32, torch.strided, torch.device("cpu"), torch.Size([1, 2]), range(2),
              torch.contiguous_format, int, len, print, None, (), ((),), [[], {}], b"x"):  # fmt: skip
        yield f(t(3), k)


@scenario
def one_tensor_in_many_places(wrap):
    def fn(items, d):
        items[0].add_(1)
        return items[1] * 2, d["x"] + 1, items[0] is d["x"]

    f = wrap(fn)
    for _ in range(2):
        a, b = t(3), t(3, seed=1)
        for items, d in (
            ([a, b], {"x": b}),
            ([a, a], {"x": b}),
            ([a, a], {"x": a}),
            ([a, b], {"x": a}),
            ([a, a.view(-1)], {"x": a[:]}),
        ):
            yield f(items, d), a, b


@scenario
def tensors_with_hooks_and_grads(wrap):
    w = t(3).requires_grad_()
    f = wrap(lambda x: (x * w).sum())
    g = wrap(lambda x: x * 2 if w.grad is None else x * w.grad)
    yield g(t(3))
    f(t(3)).backward()
    yield w.grad, g(t(3))
    seen = []
    h = w.register_hook(lambda grad: seen.append(grad) or grad * 2)
    f(t(3)).backward()
    h.remove()
    yield w.grad, seen, g(t(3))
    w.grad = None
    yield g(t(3))
    w.requires_grad_(False)
    yield f(t(3)), f(t(3).requires_grad_())


@scenario
def cells_are_emptied(wrap):
    def make():
        k = 2

        def fn(x):
            return x * k

        def forget():
            nonlocal k
            del k

        def remember(v):
            nonlocal k
            k = v

        return fn, forget, remember

    fn, forget, remember = make()
    f = wrap(fn)
    yield f(t(3))
    forget()
    yield raised(f, t(3))
    remember(5)
    yield f(t(3))


@scenario
def caches(wrap):
    calls = []

    class C:
        k = 2

        @functools.cached_property
        def w(self):
            calls.append("w")
            return self.k * 2

        @functools.lru_cache(maxsize=None)  # noqa: B019
        def table(self, n):
            calls.append(n)
            return n * self.k

    c = C()
    f = wrap(lambda c, x: x * c.w + c.table(3))
    yield f(c, t(3)), f(c, t(3)), calls
    del c.w
    c.k = 5
    C.table.cache_clear()
    yield f(c, t(3)), f(C(), t(3)), calls


@scenario
def single_dispatch_and_callables(wrap):
    @functools.singledispatch
    def kind(v):
        return 1

    f = wrap(lambda v, x: x * kind(v))
    yield f(1, t(3)), f("a", t(3))
    kind.register(str)(lambda v: 7)
    yield f(1, t(3)), f("a", t(3))


@scenario
def sizes_in_symbolic_code(wrap):
    def fn(x, n=None):
        b, c = x.shape
        y = x.view(b * c)[: b * c // 2] if b > 1 else x.view(-1)
        pad = torch.zeros(b, 3, dtype=x.dtype)
        mean = x.sum() / (b * c) if b * c else x.sum()
        out = [
            y.shape,
            pad.shape[0] == b,
            b % 2 == 0,
            float(b),
            f"{b}",
            range(b),
            str(b),
            b / 2,
            max(b, 3),
            mean,
            x.new_ones(b + 1),
            -b,
        ]
        return torch.cat([x, pad], 1), out, torch.arange(b), x[: b - 1], x.expand(2, b, c), {b: 1}, (b,), hash(b)

    for dynamic in (True, None):
        f = wrap(fn, dynamic=dynamic)
        for b in (2, 5, 6, 1, 0, 9):
            yield f(t(b, 4))


@scenario
def symbolic_sizes_across_breaks(wrap):
    def fn(x):
        n = x.shape[0]
        y = x * n
        print("n", n, type(n).__name__)
        z = y[: n // 2]
        print("z", z.shape, isinstance(n, int), n == x.shape[0])
        return z * n, n, [n, {"n": n}], torch.Size([n, 2])

    for dynamic in (True, None):
        f = wrap(fn, dynamic=dynamic)
        for n in (4, 7, 9, 1, 0, 12):
            yield f(t(n))


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
def grad_mode_is_left_changed(wrap):
    def fn(x, on):
        y = x * 2
        torch.set_grad_enabled(on)
        return y, x * 3

    f = wrap(fn)
    x = t(3).requires_grad_()
    try:
        for on in (False, True, True, False, False, True):
            yield f(x, on), torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


@scenario
def a_call_fails_inside_no_grad(wrap):
    def fn(x, k):
        with torch.no_grad():
            y = x * 2
            z = y / [1][k]
        return z + x

    f = wrap(fn)
    x = t(3).requires_grad_()
    for k in (0, 5, 0):
        yield raised(f, x, k), torch.is_grad_enabled()


@scenario
def shapes_fail_at_the_second_call(wrap):
    f = wrap(lambda x, y: (x @ y).relu())
    yield (
        f(t(2, 3), t(3, 2)),
        raised(f, t(2, 3), t(2, 3)),
        f(t(2, 3), t(3, 2)),
        raised(f, t(2, 3), t(3).double()),
        raised(f, t(2, 3), None),
    )


@scenario
def data_makes_an_operation_fail(wrap):
    f = wrap(lambda x, i: x[i] * 2)
    yield f(t(3), torch.tensor([0, 2])), raised(f, t(3), torch.tensor([0, 7])), f(t(3), torch.tensor([1, 1]))


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


@scenario
def the_same_function_compiled_twice_over(wrap):
    def fn(x, k=2):
        return x * k

    a = wrap(fn)
    b = wrap(a)
    c = wrap(functools.partial(a, k=5))
    yield a(t(3)), b(t(3)), c(t(3)), a.__name__, b.__name__, a.__doc__, callable(c)


@scenario
def lists_of_functions_in_a_loop(wrap):
    fs = [lambda v: v + 1, torch.relu, nn.Sigmoid(), functools.partial(torch.mul, other=3)]

    def fn(x, order):
        for i in order:
            x = fs[i](x)
        return x

    f = wrap(fn)
    for order in ((0, 1), (1, 0), [2, 3], range(4), ()):
        yield f(t(3), order)
    fs[0], fs[1] = fs[1], fs[0]
    yield f(t(3), (0, 1)), f(t(3), range(4))


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices_what_eager_notices(made):
    expected, printed = observe(made, lambda fn, **options: fn)
    fuselens.reset()
    actual, printed_too = observe(made, lambda fn, **options: fuselens.compile(fn, backend="eager", **options))
    for i, (e, a) in enumerate(zip(expected, actual, strict=True)):
        difference = comparison.differ(e, a, f"observation {i}")
        assert difference is None, difference
    assert printed == printed_too


# --- what compiled code keeps alive, and who else runs it


def collected(make: Callable[[], list[weakref.ref[Any]]], repeats: int) -> int:
    """How many of the objects that ``make`` made are still alive afterwards."""
    found = [r for _ in range(repeats) for r in make()]
    gc.collect()
    return sum(r() is not None for r in found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_models_and_inputs_are_collected(backend):
    shared = fuselens.compile(lambda m, x: m(x) * 2, backend=backend)

    def make():
        m, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), t(2, 3)
        own = fuselens.compile(m, backend=backend)
        shared(m, x)
        own(x)
        return [weakref.ref(o) for o in (m, m[0].weight, x, own)]

    assert collected(make, 20) == 0


def test_objects_that_hold_compiled_functions_are_collected():
    class Holder:
        def __init__(self):
            self.w = torch.ones(3)
            self.inner = fuselens.compile(lambda x: x + self.w, backend="eager")

        def go(self, x):
            return self.inner(x) * 2

    f = fuselens.compile(lambda h, x: h.go(x), backend="eager")

    def make():
        h = Holder()
        f(h, t(3))
        return [weakref.ref(h), weakref.ref(h.w)]

    assert collected(make, 5) == 0


def test_closures_are_collected():
    def make():
        w = t(3)
        f = fuselens.compile(lambda x: x * w, backend="eager")
        f(t(3))
        return [weakref.ref(w), weakref.ref(f)]

    assert collected(make, 300) == 0


def test_methods_that_close_over_a_model_are_collected():
    f = fuselens.compile(lambda c, x: c.go(x), backend="eager")

    def make():
        model = nn.Linear(3, 3)

        class Local:
            def go(self, x):
                return model(x)

        f(Local(), t(2, 3))
        return [weakref.ref(model.weight)]

    # the class of the last entry may live as long as the entry; its methods' closures with it
    assert collected(make, 4) <= 8


def test_threads_share_one_compiled_function():
    def work(x, n):
        y = x
        for i in range(n % 3):
            y = y * 2 + i
        if y.sum() > 1e9:
            return y
        return y + n

    f = fuselens.compile(work, backend="eager")
    wrong: list[Any] = []

    def run(seed):
        for i in range(60):
            n, grad = (i * 7 + seed) % 6, (i + seed) % 2 == 0
            with torch.set_grad_enabled(grad):
                x = torch.ones(1 + i % 4, requires_grad=True)
                try:
                    actual, expected = f(x, n), work(x, n)
                    if not torch.equal(actual, expected) or actual.requires_grad != expected.requires_grad:
                        wrong.append((n, grad, actual))
                except Exception as error:  # noqa: BLE001 - threads report
                    wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong, wrong[:3]


def test_two_configurations_and_backends_of_one_function():
    def fn(x, k):
        y = x * k
        print("k", k)
        return y + 1

    seen: list[int] = []

    def backend(gm, inputs):
        seen.append(len(inputs))
        return gm.forward

    with contextlib.redirect_stdout(io.StringIO()):
        compiled = [fuselens.compile(fn, backend=b) for b in ("eager", "aot_eager", backend, backend)]
        compiled += [fuselens.compile(fn, backend="eager", dynamic=True), fuselens.compile(fn, backend="eager")]
        for k in (1, 2, 1):
            for f in compiled:
                torch.testing.assert_close(f(t(3), k), fn(t(3), k))
        strict = fuselens.compile(fn, backend="eager", fullgraph=True)
        for _ in range(2):
            with pytest.raises(fuselens.GraphBreakError, match="FL103"):
                strict(t(3), 1)
        torch.testing.assert_close(compiled[0](t(3), 1), fn(t(3), 1))
    assert seen, "custom backends see graphs"
