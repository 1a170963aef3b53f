"""``__torch_function__`` of tensor subclasses, of other objects and of modes: types, attributes, what handlers see."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import fuselens
from fuselens.inputs import comparison

from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


def of(cls: Any, *shape: int, **kwargs: Any) -> Any:
    return t(*shape, **kwargs).as_subclass(cls)


class Plain(torch.Tensor):
    pass


class Log(torch.Tensor):
    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Log.calls.append((func.__name__, [t.__name__ for t in types], len(args), sorted(kwargs or ())))
        with torch._C.DisableTorchFunctionSubclass():
            r = func(*args, **(kwargs or {}))
        return r.as_subclass(cls) if type(r) is torch.Tensor else r


class Meta(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        r = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(r, cls):
            for a in args:
                if hasattr(a, "unit"):
                    r.unit = a.unit
        return r


class Disabled(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Attribute(torch.Tensor):
    @staticmethod
    def __new__(cls, data, tag="x"):
        r = torch.Tensor._make_subclass(cls, data)
        r.tag = tag
        return r

    def __init__(self, data, tag="x"):
        pass


class Initialised(torch.Tensor):
    def __new__(cls, data, *args, **kwargs):
        return super().__new__(cls, data)

    def __init__(self, data, scale=1):
        self.scale = scale

    def scaled(self):
        return self * self.scale


class Methods(torch.Tensor):
    def double(self):
        return self * 2

    @property
    def half(self):
        return self / 2

    def sum(self):
        return "mine"

    def __add__(self, other):
        return "added"

    def __getitem__(self, i):
        return "item"

    def __len__(self):
        return 17

    def __neg__(self):
        return "negated"


class Unit(torch.Tensor):
    def __new__(cls, data, u=None):
        made = torch.as_tensor(data).as_subclass(cls)
        made.u = u
        return made

    @property
    def unit(self):
        return self.u

    @unit.setter
    def unit(self, value):
        self.u = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        units = [a.u for a in args if isinstance(a, cls)]
        out = super().__torch_function__(func, types, args, kwargs)
        if isinstance(out, cls):
            out.u = units[0] if units else None
        return out


class Instance(torch.Tensor):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            r = func(*args, **(kwargs or {}))
            return r + 1 if func in (torch.sin, torch.Tensor.mul) else r


class First(Plain):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return "first"


class Declines(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Answers(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return "answer"


class Slotted(torch.Tensor):
    __slots__ = ("more",)


class Alike:
    def __eq__(self, other):
        return type(self) is type(other)


class Duck(Alike):
    def __init__(self, d):
        self.d = d

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.add:
            return "added", args[1:], len(types)
        return Duck(func(*[a.d if isinstance(a, Duck) else a for a in args], **(kwargs or {})))


class Refuses(Alike):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Scale(Alike, TorchFunctionMode):
    def __init__(self, k=2):
        super().__init__()
        self.k = k

    def __torch_function__(self, func, types, args=(), kwargs=None):
        r = func(*args, **(kwargs or {}))
        return r * self.k if func is torch.sin else r


class Record(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.log = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append((func.__name__, [t.__name__ for t in types], len(args), sorted(kwargs or ())))
        return func(*args, **(kwargs or {}))


class Double(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.zeros, torch.ones):
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class Refusing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return NotImplemented


class ParameterKind(nn.Parameter):
    pass


def with_unit():
    x = of(Meta, 3)
    x.unit = "m"
    return x


# --- classes ----------------------------------------------------------------------------------------------------


@case(lambda: of(Plain, 3))
def operators(x):
    return x * 2 + 1, 2 - x, -x, x > 0, x**2, 2**x, torch.sin(x), x.sum(), x.relu(), isinstance(x, Plain), type(x)


@case(lambda: of(Plain, 3), t(3))
def mixed(x, y):
    return x + y, y + x, torch.cat([x, y]), torch.stack([y, y]), y @ x, torch.where(x > 0, x, y)


@case(lambda: of(Plain, 3, 4))
def properties(x):
    return x.shape, x.dtype, x.T, x.size(0), x.dim(), len(x), x.device, x.ndim, x.mT, x.data, x.grad, x.is_leaf


@case(lambda: of(Plain, 3, 4))
def views(x):
    found = x[0], x[:, 1:], x.view(-1), x.unbind(0), x.split(2, 1), x.max(0), x.topk(2), list(x), [r for r in x]
    x.view(-1).add_(1)
    return found


@case(lambda: of(Plain, 3, 4))
def in_place(x):
    y = x.add_(1)
    x[0] = 2
    x += 1
    return x, y is x, x.contiguous() is x


@case(lambda: of(Plain, 3, grad=True))
def gradients(x):
    return (x * x).sum() + F.softmax(x, -1)[0]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())


@case(lambda: of(Plain, 3, 4), lambda: network())
def through_modules(x, m):
    return m(x), F.linear(x, m[0].weight)


@case(lambda: Attribute(t(3), "u"))
def attributes(x):
    return x * 2, x.tag, hasattr(x, "tag"), hasattr(x, "nope"), getattr(x, "nope", 3)


@case(t(3))
def made(x):
    y, z = Attribute(x, "made"), Initialised(x, scale=3)
    return y + 1, y.tag, y, z.scaled(), z, z.scale, isinstance(z, Initialised), z[0]


@case(t(3))
def converted(x):
    y = x.as_subclass(Plain)
    return y, y * 2, type(y), (y * 2).as_subclass(torch.Tensor), isinstance(y, Plain), issubclass(Plain, torch.Tensor)


@case(lambda: of(Plain, 3))
def shares_memory(x):
    y = x.as_subclass(torch.Tensor)
    z = y.as_subclass(Plain)
    z.mul_(2)
    return x, y, z


@case(lambda: of(Log, 2, 3), t(2, 3))
def seen(x, z):
    Log.calls.clear()
    y = x * 2 + z
    F.softmax(x, -1), F.linear(x, x), F.gelu(x), F.layer_norm(x, (3,)), F.dropout(x, 0.0), F.relu(x)
    torch.split(x, 1), x.split(1), x.norm(), torch.einsum("ij,ij->i", x, x), torch.stack([x, z]), F.max_pool1d(x, 1)
    x.shape, x.dtype, x.device, x.size(), x.numel(), len(x), x.T, x.is_cuda, x.requires_grad
    1 - x, x**2, 2**x, x // 2, x % 2, x == 1, x < 1, -x, ~(x > 0), abs(x), x @ x.T, x[0]
    x[0] = 1
    x += 1
    x.mean(dim=0, keepdim=True), torch.max(x, 0), x.max(dim=1), torch.tensor_split(x, 2), F.pad(x, (1, 1))
    F.cross_entropy(x, torch.zeros(2, dtype=torch.long)), torch.is_floating_point(x), torch.zeros_like(x)
    F.scaled_dot_product_attention(x[None], x[None], z[None]), torch.broadcast_tensors(x, x), list(x)
    return y, z + x, list(Log.calls)


@case(lambda: with_unit())
def metadata(x):
    y = x * 2
    return y, y.unit, (y + 1).unit, torch.sin(y)


@case(t(3))
def descriptors(x):
    a, b = Unit(x, "m"), Unit(x * 2, "s")
    c = a + b
    c.unit = "q"
    return c, c.unit, a.unit, (a * 2).u


@case(lambda: of(Disabled, 3))
def disabled(x):
    return x * 2, torch.sin(x), type(x * 2)


@case(lambda: of(Instance, 3))
def of_instances(x):
    return x * 2, torch.sin(x)


@case(lambda: of(Methods, 3))
def methods(x):
    return x.double(), x.half, x.sum(), x + 1, 1 + x, torch.sum(x), x.mean(), x[0], len(x), -x


@case(lambda: of(Plain, 3), lambda: of(First, 3))
def subclass_first(x, y):
    return x + y, y + x, torch.add(x, y), x * 2, torch.cat([x, y])


@case(lambda: of(Declines, 3), lambda: of(Answers, 3))
def next_in_turn(x, y):
    return x + y, torch.add(x, y)


@case(lambda: of(Declines, 3), breaks="FL104")
def nobody(x):
    return torch.sin(x)


@case(lambda: of(Plain, 3))
def switched_off(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x * 2
    with torch._C.DisableTorchFunction():
        z = x * 2
    return y, z, type(y), x * 3


@case(lambda: of(Plain, 3), breaks="FL103 FL104")
def break_while_off(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x * 2
        print("here")
        z = y + x
    return y, z, x + 1


@case(lambda: of(Plain, 3))
def dressed(x):
    x.foo = 3
    y = x * 2
    y.bar = [x]
    z = y
    del x.foo
    return y, hasattr(x, "foo"), z.bar[0]


@case(t(3))
def dressed_plainly(x):
    x.foo = 1
    y = x * 2
    y.note = {"a": x}
    b = nn.Buffer(x * 2)
    return x.foo, y, y.note["a"], b, b.persistent, isinstance(b, nn.Buffer), isinstance(y, nn.Parameter)


@case(lambda: of(Plain, 3), t(3), breaks="FL103")
def across_breaks(x, y):
    for _ in range(2):
        x = (x + y).as_subclass(Plain)
        x.tag = "t"
    print("here")
    return x * 2, x.tag


@case(lambda: Slotted(t(3)), breaks="FL105")
def with_slots(x):
    return x * 2


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(t(3))
        self.p = ParameterKind(t(3))
        self.register_buffer("b", of(Plain, 3))

    def forward(self, x):
        return x * self.w + self.b, x * self.p, type(self.p)


@case(lambda: Holder(), t(3))
def in_modules(m, x):
    return m(x)


CONSTANT = t(3, seed=5).as_subclass(Plain)


@case(t(3))
def constants(x):
    return x + CONSTANT, CONSTANT * 2


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x.cos()


@case(lambda: of(Plain, 3, grad=True))
def through_functions(x):
    y = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
    return Doubling.apply(x).sum(), y


@case(lambda: of(Plain, 3), breaks="FL102")
def read(x):
    return float(x[0]), x.tolist(), bool(x[0] > 0), repr(x), torch.equal(x, x)


# --- other objects ----------------------------------------------------------------------------------------------


@case(t(3), lambda: Duck(t(3, seed=1)))
def ducks(x, d):
    asked = torch.overrides.has_torch_function((d,)), torch.overrides.has_torch_function((x,)), torch.is_tensor(d)
    return torch.add(d, 1), torch.mul(x, d).d, torch.sin(d).d, torch.cat([x, x]), (x + Duck(x)).d, asked


@case(t(3), lambda: Refuses(), breaks="FL104")
def refused(x, d):
    try:
        return torch.mul(x, d)
    except TypeError as e:
        return str(e)


HANDLED = {}


def implements(function):
    def register(implementation):
        HANDLED[function] = implementation
        return implementation

    return register


class Diagonal:
    def __init__(self, n, value):
        self.n, self.value = n, value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED or not all(issubclass(t, (torch.Tensor, Diagonal)) for t in types):
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))


@implements(torch.mean)
def _mean(x):
    return float(x.value) / x.n


@implements(torch.add)
def _add(a, b):
    return Diagonal(a.n, a.value + (b.value if isinstance(b, Diagonal) else b))


@case(t(3))
def registered(x):
    s = Diagonal(5, 2)
    return torch.mean(s), torch.add(s, s).value, x + torch.add(s, 1).value


# --- modes ------------------------------------------------------------------------------------------------------


@case(t(3))
def modes(x):
    with Scale(2):
        with Scale(3):
            y = torch.sin(x)
        z = torch.sin(x)
    return y, z, torch.sin(x)


@case(t(3))
def recorded(x):
    m = Record()
    with m:
        F.softmax(x, -1), F.linear(x, x), torch.zeros(3), torch.arange(3), x.shape, x.abs(), 1 - x, x + 1
        torch.tensor([1.0]), torch.rand(2), x.new_zeros(1), torch.cat([x, x]), x.to(torch.float64), x[0], len(x)
        torch.promote_types(torch.float32, torch.int8), list(x), x.dim(), torch.full((2,), 1.0), F.dropout(x, 0.1)
    return m.log


@case(t(3), lambda: Scale(5))
def given(x, m):
    with m:
        a = torch.sin(x)
        m.k = 7
        return a, torch.sin(x)


@case(t(3), breaks="FL103")
def break_inside(x):
    with Scale():
        y = torch.sin(x)
        print("here")
        z = torch.sin(y)
    return y, z, torch.sin(x)


@case(t(3))
def left_by_exception(x):
    try:
        with Scale():
            y = torch.sin(x)
            raise ValueError("a")
    except ValueError:
        pass
    return y, torch.sin(x)


@case(lambda: of(Plain, 3), breaks="FL104")
def mode_and_class(x):
    with Scale():
        y = torch.sin(x)
    try:
        with Refusing():
            return x + 1
    except TypeError as e:
        return y, str(e)


@case(t(3))
def factories(x):
    with Double():
        return torch.zeros(3), torch.ones(2) + 1, x


@case(t(3))
def modes_switched_off(x):
    with Scale(3):
        with torch._C.DisableTorchFunction():
            a = torch.sin(x)
        with torch._C.DisableTorchFunctionSubclass():
            b = torch.sin(x)
    return a, b


@case(t(3))
def devices(x):
    with Scale(3), torch.device("cpu"):
        return torch.zeros(3) + torch.sin(x)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_agrees_with_eager(program: Program) -> None:
    verify(program)


def compiled(fn: Any, backend: str = "eager") -> tuple[Any, Any]:
    made = fuselens.compile(fn, backend=backend, fullgraph=True)
    return made, made.__fuselens__.recorder.report


def surrounded(x):
    return torch.sin(x) + torch.zeros(x.shape), x.abs()


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
def test_modes_around_the_call(backend: str) -> None:
    function, report = compiled(surrounded, backend)
    switches = torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction
    around = [contextlib.nullcontext, Scale, lambda: Scale(4), lambda: torch.device("cpu"), *switches]
    for make in [*around, *around]:
        for x in (t(3), of(Plain, 3)):
            with make():
                expected = surrounded(x)
            with make():
                actual = function(x)
            assert comparison.differ(expected, actual, "result") is None
    assert not report.breaks
    for _ in range(2):
        with Record() as record:
            surrounded(t(3))
        for again in (function, compiled(surrounded, backend)[0]):
            with Record() as too:
                again(t(3))
            assert record.log == too.log


@pytest.mark.parametrize("cls", [Plain, Log, Disabled], ids=lambda c: c.__name__)
@pytest.mark.parametrize("backend", ["eager", "fuselens"])
def test_training(cls: Any, backend: str) -> None:
    def fn(x, w):
        return ((x @ w).relu() ** 2).sum()

    function, _ = compiled(fn, backend)
    found = []
    for call in (fn, function, function):
        x, w = of(cls, 3, 4).detach().requires_grad_(), t(4, 2, grad=True)
        Log.calls.clear()
        loss = call(x, w)
        loss.backward()
        calls = list(Log.calls)
        with torch._C.DisableTorchFunctionSubclass():
            found.append((loss.detach(), x.grad, w.grad, calls))
    for actual in found[1:]:
        assert comparison.differ(found[0], actual, "result") is None


def test_guards_do_not_ask_the_class() -> None:
    def fn(x):
        return x * 2 if x.is_leaf and x.grad is None else x

    function, _ = compiled(fn)
    x = of(Log, 3, grad=True)
    function(x)
    Log.calls.clear()
    function(x)
    seen = list(Log.calls)
    Log.calls.clear()
    fn(x)
    assert seen == Log.calls


def test_other_handlers_are_noticed() -> None:
    class Changing(torch.Tensor):
        pass

    function, report = compiled(lambda x: x + 1)
    assert type(function(of(Changing, 3))) is Changing
    Changing.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: "new")
    assert function(of(Changing, 3)) == "new"
    del Changing.__torch_function__
    assert type(function(of(Changing, 3))) is Changing
    assert type(function(of(Disabled, 3))) is torch.Tensor
    assert type(function(t(3))) is torch.Tensor


def test_attributes_are_guarded() -> None:
    def fn(x):
        return x + 1 if x.tag == "u" else x - 1

    function, _ = compiled(fn)
    for tag in ("u", "v", "u"):
        x = Attribute(t(3), tag)
        assert comparison.differ(fn(x), function(x), "result") is None


def test_tensors_without_data_run_eagerly() -> None:
    function, _ = compiled(lambda x: torch.sin(x) + 1, "fuselens")
    assert function(torch.empty(3, device="meta")).device.type == "meta"
