"""Subclasses of tensors, modes, and assertions and exceptions in whole programs."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..program import Programs, some

programs = Programs()


class Plain(torch.Tensor):
    """A class of its own, without an override."""


def plain(t):
    """The values, which the comparison looks at, of a class of its own."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.add(t, 0)


@programs(lambda: (some(4).as_subclass(Plain),))
def plain_subclass(t):
    u = t * 2 + 1
    return u, type(u) is Plain, u.as_subclass(torch.Tensor), isinstance(u.sum(), Plain)


class Metred(torch.Tensor):
    """Has a unit, which it hands on, and leaves the rest to torch."""

    unit = "m"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, Metred):
            found.unit = next((v.unit for v in args if isinstance(v, Metred)), "m")
        return found


def metred(value, unit):
    made = value.as_subclass(Metred)
    made.unit = unit
    return made


@programs(lambda: (metred(some(4), "km"), some(4)))
def attribute_handed_on(a, b):
    c = torch.relu(a - b) + a.sin()
    return c, plain(c), c.unit, type(c).__name__, (b * a).unit


@programs(lambda: (some(4),))
def subclass_made_inside(t):
    a = metred(t * 2, "cm")
    b = a.cumsum(0)
    return b, b.unit, plain(b) + 1


@programs(lambda: ({"a": [metred(some(2), "km")], "b": (metred(some(3), "cm"), some(2))},))
def subclasses_in_containers(d):
    first, (second, third) = d["a"][0], d["b"]
    return (
        {"sum": first + third, "units": [first.unit, second.unit]},
        plain(torch.cat([second, third])),
        plain(torch.stack([first, first])),
    )


class Unwrapping(torch.Tensor):
    """Takes itself off before anything is computed, and never calls ``super``."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            args, kwargs = tree_map(
                lambda v: v.as_subclass(torch.Tensor) if isinstance(v, cls) else v, (args, kwargs or {})
            )
            return func(*args, **kwargs)


@programs(lambda: (some(3, 4).as_subclass(Unwrapping), some(4)))
def function_without_super(a, b):
    return a + b, torch.nn.functional.softmax(a, -1), a.shape, type(a.t()) is torch.Tensor, b @ a.T


class Replacing(torch.Tensor):
    """Has other answers for some functions."""

    table = {torch.add: torch.mul, torch.Tensor.sin: torch.cos}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.numel:
            return -1
        func = cls.table.get(func, func)
        return super().__torch_function__(func, types, args, kwargs or {})


@programs(lambda: (some(4).as_subclass(Replacing),))
def functions_replaced(t):
    return [plain(v) for v in (torch.add(t, t), t.sin(), torch.sin(t), t + t)], t.numel()


class Overriding(torch.Tensor):
    """Methods, properties and operators in Python."""

    def __add__(self, other):
        return super().__add__(other).mul(10)

    def __getitem__(self, index):
        return super().__getitem__(index) + 0.5

    def __len__(self):
        return 99

    @property
    def doubled(self):
        return self * 2

    @property
    def shape(self):
        return ("shape", *super().shape)

    def sum(self, *dims):
        return super().sum(*dims) - 1

    @classmethod
    def of(cls, *values):
        return torch.tensor(values).as_subclass(cls)


@programs(lambda: (some(4).as_subclass(Overriding),))
def overridden_operators(t):
    return plain(t + 1), t[1], plain(t[1]), len(t), plain(1 + t)


@programs(lambda: (some(4).as_subclass(Overriding),))
def overridden_methods_and_properties(t):
    return t.doubled, plain(t.doubled), plain(t.sum()), plain(torch.sum(t)), t.shape, t.size()


@programs(lambda: (some(3),))
def made_by_a_class_method(t):
    o = Overriding.of(1.0, 2.0, 3.0)
    return o + t, plain(o + t), plain((o * t).sum(0))


class Left(torch.Tensor):
    """Computes before its superclass."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            return "left"
        return super().__torch_function__(func, types, args, kwargs or {})


class Right(Left):
    """The subclass, which is asked first."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            return "right", len(types)
        return super().__torch_function__(func, types, args, kwargs or {})


@programs(lambda: (some(3).as_subclass(Left), some(3).as_subclass(Right)))
def which_class_is_asked(a, b):
    return a.mul(2), a.mul(b), b.mul(a), a - a, plain(a.exp())


class Unknowing(torch.Tensor):
    """Knows no function."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


@programs(lambda: (some(3).as_subclass(Unknowing),))
def no_implementation(t):
    return torch.exp(t)


class Watching(torch.Tensor):
    """Writes down what is called."""

    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@programs(lambda: (some(3).as_subclass(Watching),))
def calls_that_are_counted(t):
    Watching.calls.clear()
    u = torch.relu(t * 2).view(3, 1)
    u += 1
    return plain(u), list(Watching.calls)


class Symbol:
    """Is no tensor, and is asked as one is."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [v.value if isinstance(v, cls) else v for v in args]
        return cls(func(*args, **(kwargs or {})))


@programs(lambda: (Symbol(some(3)), some(3)))
def objects_that_are_asked(s, t):
    return torch.add(s, t), torch.exp(torch.mul(t, s)).value, torch.sum(s, dim=0)


class Layer(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.weight = torch.nn.Parameter(make(some(2, 3)))
        self.register_buffer("offset", metred(some(2), "mm"))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight) + self.offset


@programs(lambda: (Layer(lambda t: metred(t, "km")), some(4, 3)))
def subclasses_as_parameters(m, x):
    y = m(x)
    (g,) = torch.autograd.grad(plain(y).sum(), m.weight)
    return y, plain(y).detach(), y.unit, type(m.weight).__name__, type(g).__name__, plain(g)


@programs(lambda: (Layer(lambda t: t.as_subclass(Plain)), some(4, 3)))
def classes_that_do_not_know_each_other(m, x):
    return m(x)


class Weight(torch.nn.Parameter):
    """A subclass of parameters with an attribute."""

    def __new__(cls, data, axis):
        made = super().__new__(cls, data)
        made.axis = axis
        return made


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Weight(some(3, 3), 1)

    def forward(self, x):
        return (x @ self.weight).sum(self.weight.axis), [type(p).__name__ for p in self.parameters()]


@programs(lambda: (Weighted(), some(2, 3)))
def subclass_of_parameters(m, x):
    return m(x)


@programs(lambda: (some(4).as_subclass(Metred).requires_grad_(),))
def subclass_with_gradients(t):
    (t.sin() * t).sum().backward()
    return t.grad, type(t.grad).__name__, plain(t.grad)


@programs(lambda: (metred(some(4), "km"),))
def subclass_written(t):
    t.mul_(2)
    t[0] = 7
    t += 1
    t.unit = "cm"
    return t.view(2, 2), plain(t), (t - 1).unit


@programs(lambda: (metred(some(4), "km"), some(4)))
def decided_by_class(a, b):
    found = []
    for v in (a, b, a + b, a.sum()):
        match v:
            case Metred(unit=unit):
                found.append((unit, plain(v * 2)))
            case torch.Tensor():
                found.append(("none", v * 3))
    return found, type(a) is type(b), issubclass(type(a), torch.Tensor), hasattr(b, "unit")


@programs(lambda: (metred(some(4), "km"),))
def function_switched_off(t):
    with torch._C.DisableTorchFunctionSubclass():
        u = t * 2
    return u, type(u).__name__, type(t * 2).__name__


class Masked(torch.Tensor):
    """Values and a mask that travels with them, and a constant that fills the rest."""

    @staticmethod
    def __new__(cls, data, mask, fill=0.0):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=data.dtype)

    def __init__(self, data, mask, fill=0.0):
        self.values_of, self.mask, self.fill = data, mask, fill

    def __tensor_flatten__(self):
        return ["values_of", "mask"], {"fill": self.fill}

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Masked(inner["values_of"], inner["mask"], meta["fill"])

    def __repr__(self):
        return f"Masked({self.fill})"

    def filled(self):
        return torch.where(self.mask, self.values_of, self.fill)

    def count(self):
        return self.mask.sum()

    @property
    def kept(self):
        return self.mask.sum()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        first = next(v for v in args if isinstance(v, cls))
        data = func(*tree_map(lambda v: v.values_of if isinstance(v, cls) else v, args), **(kwargs or {}))
        if data.shape != first.shape:
            return func(*tree_map(lambda v: v.filled() if isinstance(v, cls) else v, args), **(kwargs or {}))
        masks = [v.mask for v in args if isinstance(v, cls)]
        return cls(data, functools.reduce(torch.logical_and, masks), first.fill)


def masked(fill=0.0, n=4):
    return Masked(some(n), torch.arange(n) % 2 == 0, fill)


@programs(lambda: (masked(-1.0), Masked(some(4), torch.arange(4) > 0)))
def masks_that_travel(a, b):
    c = a * b + 1
    return c, c.filled(), c.fill, c.count()


@programs(lambda: (masked(), some(4)))
def mask_made_of_another(m, t):
    more = Masked(m.values_of + t, m.mask | (t > 0.5), m.fill + 2)
    return more, more.sum(), (more * 2).filled()


@programs(lambda: (masked(0.5), some(4)))
def wrapper_in_a_helper(m, t):
    def mean(v):
        return v.filled().sum() / v.kept if type(v) is Masked else v.mean()

    return mean(m), mean(t), mean(m + t)


@programs(lambda: ([masked(float(i), i + 2) for i in range(3)],))
def constants_that_differ(several):
    return [m.exp() for m in several], sum(m.count() for m in several), several[2].fill


@programs(lambda: (masked(), [0, 1]))
def wrapper_with_new_attributes(m, places):
    m.note = places
    u = m.neg()
    return u, hasattr(u, "note"), m.note


@programs(lambda: (masked(),))
def constant_of_a_wrapper_written(m):
    m.fill = 3.0
    return m.fill, m.filled(), m * 2


@programs(lambda: (both(4),))
def part_of_a_wrapper_replaced(p):
    p.a = p.a * 5
    return p.a, p + 1


@programs(lambda: (some(4),))
def part_of_a_new_wrapper_replaced(t):
    p = Both(t, t + 1)
    p.a = t * 5
    return p.a, p


@programs(lambda: (some(4),))
def parts_of_a_new_wrapper_after_a_write(t):
    p = Both(t, t * 2)
    p.a = t * 3
    return p.a, p.b


@programs(lambda: (masked(),))
def wrapper_without_such_an_attribute(m):
    try:
        return m.missing
    except AttributeError as e:
        return type(e), str(e), m.kept


class Both(torch.Tensor):
    """Two tensors, which are differentiated, viewed and written together."""

    @staticmethod
    def __new__(cls, a, b, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, requires_grad=requires_grad
        )

    def __init__(self, a, b, requires_grad=False):
        self.a, self.b = a, b

    def __repr__(self):
        return f"Both({tuple(self.shape)})"

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Both(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        a = func(*tree_map(lambda v: v.a if isinstance(v, cls) else v, args), **tree_map(lambda v: v, kwargs))
        b = func(*tree_map(lambda v: v.b if isinstance(v, cls) else v, args), **kwargs)
        if func._schema.is_mutable:
            return args[0]
        return tree_map(lambda x, y: cls(x, y) if isinstance(x, torch.Tensor) else x, a, b)


def both(*sizes):
    return Both(some(*sizes), some(*sizes) * 2)


@programs(lambda: (both(2, 6),))
def views_of_a_wrapper(p):
    first, second = p.chunk(2, 1)
    return first * second, p.transpose(0, 1)[1:], p.expand(2, 6).flatten(), p.stride(), p.view(-1, 3).a


@programs(lambda: (both(4),))
def in_place_of_a_wrapper(p):
    a = p.a
    p.add_(1).clamp_(max=1.2)
    return p, a, p.a is a, p.b.sum()


@programs(lambda: (both(4), both(4)))
def wrapper_copied_into(p, q):
    p.copy_(q)
    q.zero_()
    return p * 2, p.a - q.b


@programs(lambda: (some(4).requires_grad_(), some(4)))
def gradients_through_a_wrapper(t, u):
    p = Both(t * 2, t * u)
    return torch.autograd.grad((p.a.sin() + p.b).sum(), t), p.detach().a


@programs(lambda: (some(4), some(4)))
def transform_around_a_wrapper(t, u):
    def loss(v):
        p = Both(v * 2, v * u)
        return (p.a.sin() * p.b).sum()

    return torch.func.grad(loss)(t)


@programs(lambda: (both(2, 3).requires_grad_(),), gap="the gradient with respect to a wrapper")
def gradient_of_a_wrapper(p):
    (g,) = torch.autograd.grad((p * p).sum(), p)
    return g, type(g).__name__


class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(both(3, 3))
        self.register_buffer("scale", both(3))

    def forward(self, x):
        return torch.mm(x, self.weight) * self.scale


@programs(lambda: (Product(), some(2, 3)))
def wrappers_of_a_module(m, x):
    y = m(x)
    return y.detach(), isinstance(m.weight, Both), m.weight.requires_grad, m.weight.a.sum()


@programs(lambda: (both(4), some(4)))
def wrapper_kept_in_a_list(p, t):
    kept = [p]
    for _ in range(2):
        kept.append(kept[-1] + t)
    return kept[1:], kept[0] is p, [type(v) is Both and v is not p for v in kept[1:]]


@programs(lambda: (torch.ones(2), torch.ones(3)))
def wrapper_of_unlike_parts(a, b):
    p = Both(a, b)
    return p + 1, p.shape, p.b.shape


@programs(lambda: (both(4), torch.ones(3)))
def wrapper_and_a_wrong_size(p, t):
    return p + t


@programs(lambda: (both(4), masked()))
def two_classes_of_wrappers(p, m):
    return type(p + p), type(m + m), p.a * m.filled()


class Counting(TorchFunctionMode):
    """Counts what is called, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", "?"))
        return func(*args, **(kwargs or {}))


class Instead(TorchFunctionMode):
    """Subtracts where the program adds."""

    def __init__(self, by=1):
        super().__init__()
        self.by = by

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.add, torch.Tensor.add):
            return torch.sub(*args, **(kwargs or {})) * self.by
        return func(*args, **(kwargs or {}))


@programs(lambda: (some(4),))
def function_mode_inside(t):
    with Instead(2):
        u = torch.add(t, 1)
    return u, torch.add(t, 1)


@programs(lambda: (some(4),))
def function_modes_nested(t):
    with Counting() as outer, Instead(5):
        u = torch.add(t, 2).abs()
        v = t.add(1)
    return u, v, outer.names


@programs(lambda: (some(4), Counting()))
def function_mode_that_is_given(t, mode):
    with mode:
        u = torch.sigmoid(t) @ t
    return u, mode.names


@programs(lambda: (some(4),))
def function_mode_around_a_compiled_function(t):
    def inner(v):
        return torch.add(v, 1) * 2

    with Instead(3):
        return inner(t), [inner(v) for v in t.split(2)]


@programs(lambda: (some(4),))
def function_mode_and_an_exception(t):
    try:
        with Instead():
            torch.add(t, torch.ones(3))
    except RuntimeError as e:
        return type(e), torch.add(t, 1)


@programs(lambda: (metred(some(4), "km"),))
def function_mode_and_a_subclass(t):
    with Instead(2):
        u = torch.add(t, 1)
    return u, plain(u), u.unit


class Recording(TorchDispatchMode):
    """Writes down the operators."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Rounding(TorchDispatchMode):
    """Rounds each sum."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found.round() if func is torch.ops.aten.add.Tensor else found


@programs(lambda: (some(4),))
def dispatch_mode_that_changes_values(t):
    with Rounding():
        u = t + 0.3
    return u, t + 0.3


@programs(lambda: (both(3), Recording()))
def dispatch_mode_and_a_wrapper(p, mode):
    with mode:
        q = p * 2
    return q, mode.seen


class Rejected(ValueError):
    """An exception with more than a text."""

    def __init__(self, text, value):
        super().__init__(text)
        self.value = value

    def __str__(self):
        return f"{self.args[0]} ({self.value})"


class Worse(Rejected):
    pass


@programs(lambda: (some(4),))
def assertions_around_writes(t):
    assert t.min() > 0, "too small"
    t.mul_(2)
    assert t.max() < 9, "too large"
    return t.sqrt()


@programs(lambda: (some(4),))
def failing_after_a_write(t):
    t.mul_(2)
    assert t.max() < 1, "too large"
    return t.zero_()


@programs(lambda: (some(4), some(3)))
def second_fails_between_writes(t, u):
    t.add_(1)
    assert (t > 0).all()
    u[0] = t.sum()
    t[1:].mul_(3)
    assert t.max() < 2, "too large"
    return t.zero_() + u.zero_().sum()


@programs(lambda: ((lambda t: (t, t[1:], t.view(2, 2).T))(some(4)),))
def failing_after_writes_to_views(views):
    whole, rest, turned = views
    rest.add_(1)
    turned.mul_(2)
    assert whole.sum() < 0
    return whole * 2


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        y = self.norm(x)
        assert y.max() < 0.5, "too large"
        return y.relu()


@programs(lambda: (Normed(), some(4, 3)))
def failing_after_a_batch_norm(m, t):
    return m(t)


@programs(lambda: (torch.zeros(3), torch.ones(3), some(4, 3).requires_grad_()))
def failing_after_running_statistics(mean, var, t):
    y = torch.nn.functional.batch_norm(t, mean, var, training=True)
    assert y.max() < 0.5, "too large"
    return y


@programs(lambda: (torch.tensor(2), some(4)))
def failing_after_a_write_and_an_item(n, t):
    k = n.item()
    t.add_(k)
    assert t.max() < 1, "too large"
    return t[:k].zero_()


@programs(lambda: (torch.tensor(2), some(4)))
def number_that_fails_after_a_write(n, t):
    t.add_(1)
    k = n.item()
    assert k > 2, "too few"
    return t[:k].zero_()


@programs(lambda: (some(4), -some(4)))
def second_of_two_fails(a, b):
    assert (a > 0).all(), "a"
    c = a * b
    assert (c > 0).all(), "c"
    return c


@programs(lambda: (some(4), 3))
def assertions_of_numbers(t, n):
    rest = range(2, n)[1:]
    assert n > 2, n
    assert isinstance(n, int) and t.dtype is torch.float32, "types"
    assert rest, f"empty {n}"
    return t * n


@programs(lambda: (-some(4),))
def message_is_a_tuple(t):
    assert t.sum() > 0, ("sum", t.shape[0])
    return t


@programs(lambda: (-some(4),))
def message_is_a_tensor_value(t):
    assert (t > 0).all(), f"{t.sum().item():.2f} and {t.tolist()[0]:.1f}"
    return t


@programs(lambda: (some(4),), gap="a message that has an effect")
def message_has_an_effect(t):
    seen = []
    assert (t > 0).all(), seen.append("told")
    try:
        assert (t < 0).all(), seen.append("failed")
    except AssertionError as e:
        seen.append(str(e))
    return t + len(seen), seen


class Finite(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            assert torch.isfinite(x).all(), "not finite"
        torch._assert(x.shape[0] == 2, "rows")
        return x


@programs(lambda: (Finite(torch.nn.ReLU(), Finite(torch.nn.Tanh(), torch.nn.Softmax(1))), some(2, 3)))
def modules_in_modules_with_assertions(m, x):
    return m(x), m(x * 2 - 1)


class Bounded(torch.nn.Module):
    def __init__(self, most):
        super().__init__()
        self.layer, self.most, self.calls = torch.nn.Linear(3, 2), most, 0
        torch.nn.init.constant_(self.layer.weight, 0.5)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        self.calls += 1
        assert x.ndim == 2, f"{x.ndim} axes"
        y = self.layer(x)
        assert y.max() <= self.most, f"call {self.calls}: more than {self.most}"
        return y


@programs(lambda: (Bounded(5.0), some(2, 3)))
def module_with_assertions(m, x):
    return m(x), m(x + 1), m.calls


@programs(lambda: (Bounded(1.5), some(2, 3)))
def module_whose_second_call_fails(m, x):
    return m(x), m(x + 1)


@programs(lambda: (Bounded(1.5), some(3)))
def module_with_a_wrong_input(m, x):
    try:
        return m(x)
    except AssertionError as e:
        return str(e), m(x[None])


@programs(lambda: (some(3, 2),))
def assertions_of_comprehensions(t):
    rows = [row / row.sum() for row in t]
    assert all(torch.isclose(row.sum(), torch.tensor(1.0)) for row in rows), "not one"
    assert any(row.max() > 0.6 for row in rows)
    return torch.stack(rows)


@programs(lambda: (some(4),))
def assertion_without_gradients(t):
    with torch.no_grad():
        u = t * 2
        assert not u.requires_grad
        assert u.ge(t).all(), "less"
    with torch.inference_mode():
        torch._assert(u.lt(9).all(), "more")
    return u + 1


@programs(lambda: (some(4).requires_grad_(),))
def assertion_between_gradients(t):
    (g,) = torch.autograd.grad((t**3).sum(), t)
    assert torch.isfinite(g).all(), "not finite"
    assert (g < 0.1).all(), "large"
    return g


@programs(lambda: (some(4),))
def checks_of_all_kinds(t):
    torch._check(t.dim() == 1, lambda: "axes")
    torch._check_index(t.shape[0] > 3, lambda: "index")
    torch._check_type(t.is_floating_point(), lambda: "type")
    torch._check_not_implemented(not t.is_complex(), lambda: "complex")
    return t * 2


@programs(lambda: (some(4),))
def check_of_all_elements(t):
    torch._check_tensor_all(t > 0, lambda: "all")
    return t * 2


@programs(lambda: (some(4), torch.tensor(3)))
def checks_between_sizes(t, n):
    u = n.item()
    torch._check(0 <= u)
    torch._check(u < t.shape[0], lambda: "large")
    return t[u], torch.zeros(u) + t.sum()


@programs(lambda: (some(4),))
def checks_that_fail(t):
    found = []
    for check in (torch._check_value, torch._check_index, torch._check_type, torch._check_not_implemented):
        try:
            check(t.shape[0] > 4, lambda: f"few: {tuple(t.shape)}")
        except Exception as e:
            found.append((type(e).__name__, str(e)))
    return t + len(found), found


@programs(lambda: (-some(4),))
def check_of_all_elements_that_fails(t):
    torch._check_tensor_all(t > -0.3, lambda: "element")
    return t * 2


@programs(lambda: (some(4),))
def check_without_a_message(t):
    torch._check(t.shape[0] == 5)
    return t


@programs(lambda: (torch.tensor(7), some(4)))
def checks_of_an_item(n, t):
    u = n.item()
    torch._check(u >= 0)
    torch._check_value(u < 5, lambda: "at most five")
    return torch.ones(u) * t.sum()


@programs(lambda: (some(4) - 0.3,))
def several_exceptions(t):
    if t.isnan().any():
        raise ArithmeticError("nan")
    if t.max() > 5:
        raise OverflowError("large")
    if t.min() < 0:
        raise Worse("negative", "min")
    return t.log()


@programs(lambda: (some(4) - 0.3,))
def handlers_in_order(t):
    found = []
    for low in (0.5, -0.5, -5.0):
        try:
            if t.min() < low:
                raise (Worse if low > 0 else Rejected)("below", low)
            found.append(t * low)
        except Worse as e:
            found.append(("worse", e.value))
        except ValueError as e:
            found.append(str(e))
        else:
            found.append("fine")
        finally:
            found.append(low)
    return found


@programs(lambda: (some(4),))
def exception_with_a_cause(t):
    try:
        try:
            assert t.sum() < 0, "inner"
        except AssertionError as e:
            raise Rejected("outer", 2) from e
    except Rejected as e:
        return t * e.value, str(e.__cause__), type(e.__context__), e.args


@programs(lambda: (some(4),))
def exception_that_holds_a_tensor(t):
    try:
        if t.sum() > 0:
            raise Rejected("sum", t.sum())
    except Rejected as e:
        return t / e.value, e.args


@programs(lambda: (some(4),))
def exceptions_that_are_suppressed(t):
    with contextlib.suppress(ValueError):
        if t.sum() > 0:
            raise Rejected("positive", 1)
        t = t * 2
    return t + 1


@programs(lambda: (some(4),))
def group_of_exceptions(t):
    try:
        if t.sum() > 0:
            raise ExceptionGroup("both", [Rejected("a", 1), KeyError("b")])
    except* ValueError as group:
        n = len(group.exceptions)
    except* KeyError as group:
        text = str(group.exceptions[0])
    return t + n, text


@programs(lambda: (some(4),))
def exception_raised_again(t):
    try:
        u = t * 2
        if u.sum() > 0:
            raise KeyError("key")
    except KeyError:
        t.add_(1)
        raise
    return u


@programs(lambda: (-some(4), [0]))
def failure_with_a_finally(t, seen):
    try:
        assert (t > 0).all(), "no"
    finally:
        seen.append(t.shape[0])
        t.abs_()
    return t


class Guarded:
    """Swallows failed assertions and remembers them."""

    def __init__(self):
        self.failed = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind is AssertionError:
            self.failed.append(str(error))
            return True
        return False


@programs(lambda: (some(4),))
def failure_in_a_context_of_the_program(t):
    with Guarded() as g:
        assert t.sum() > 0, "first"
        t = t * 2
        assert t.sum() < 0, "second"
        t = t * 3
    return t, g.failed


def checked(call):
    @functools.wraps(call)
    def wrapper(t, *rest):
        assert torch.isfinite(t).all(), f"{call.__name__} takes finite numbers"
        found = call(t, *rest)
        assert torch.isfinite(found).all(), f"{call.__name__} gives {found.shape[0]} numbers"
        return found

    return wrapper


@checked
def reciprocal(t, n=1):
    return (t**n).reciprocal()


@programs(lambda: (some(4), some(4) * 2))
def assertions_of_two_tensors(t, u):
    assert torch.equal(t * 2, u), "not equal"
    assert torch.allclose(t, u / 2)
    return t + u


@programs(lambda: (some(4), (3, 4)))
def assertions_of_containers(t, sizes):
    assert t.shape[0] in sizes and len(sizes) == 2, sizes
    assert {"a": t}.get("b") is None
    assert t.device.type == "cpu" and t.is_contiguous(), "device"
    return t.sum() * len(sizes)


@programs(lambda: (some(4) - some(4),))
def decorated_with_an_assertion_that_fails(t):
    return reciprocal(t + 1, 2), reciprocal(t)


@programs(lambda: (some(4) > 0.3,))
def assertions_of_booleans(t):
    assert t.any()
    assert t[-1], "last"
    assert not t[0] and t.sum() == 2, t.shape
    return ~t


@programs(lambda: (both(3),))
def assertion_of_a_wrapper(p):
    assert p.a.sum() < p.b.sum(), "order"
    assert isinstance(p, Both) and not (p.b < 0).any()
    return p * 2


@programs(lambda: (metred(some(3), "km"), metred(some(3), "cm")))
def assertions_of_a_subclass(a, b):
    assert (a > 0).all(), a.unit
    u = plain(a) * 2
    if a.unit != b.unit:
        raise TypeError(f"{a.unit} and {b.unit}: {u.shape[0]}")
    return a + b


@programs(lambda: (some(4),))
def assertion_of_a_generator(t):
    def positive():
        for row in t:
            assert row > 0, "not positive"
            yield row * 2

    return sum(positive()), max(len(list(positive())), 1)


@programs(lambda: (some(4),))
def shapes_that_do_not_fit(t):
    try:
        return t @ torch.ones(3)
    except RuntimeError as e:
        return type(e), str(e), t + 1
