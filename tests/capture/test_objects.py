"""Objects and classes: attributes, operators, descriptors, inheritance and patterns.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from typing import Any

import pytest
import torch

from tests.support.tensors import t

from .harness import agrees_with_eager


@dataclasses.dataclass
class Box:
    value: Any
    items: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.n = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 2.0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


def makes_objects(x):
    b = Box(x)
    b.items.append(x * 2)
    b.n += 1
    f = Frozen(1)
    return (
        b.value + b.items[0] * b.n * f.b,
        dataclasses.replace(f, a=5).a,
        f == Frozen(1),
        str(f),
        dataclasses.asdict(f),
    )


def writes_object(b, x):
    b.value = x
    b.items.append(b.value + 1)
    b.n += 1
    b.extra = [b.n]
    return b.value * b.n


def deletes_attribute(b, x):
    del b.value
    return x, hasattr(b, "value")


def writes_then_breaks(b, x):
    b.value = x + 1
    print("value", b.value.shape, b.n)
    b.value = b.value * 2
    b.n = 5
    return b.value, b.n


def setattr_getattr(b, x):
    setattr(b, "value", x)
    return getattr(b, "value") + getattr(b, "zz", 1), vars(b)["n"], b.__dict__["n"]


def enum_work(x, c=Color.RED):
    return (
        x * c.value,
        c.name,
        c is Color.RED,
        Color(2),
        Color["BLUE"],
        list(Color),
        {Color.RED: 1}[c],
        isinstance(c, Color),
        Flags.A | Flags.B,
        str(c),
    )


class Ops:
    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        return Ops(self.v + (o.v if isinstance(o, Ops) else o))

    __radd__ = __add__

    def __iadd__(self, o):
        self.v = self.v + o
        return self

    def __eq__(self, o):
        return isinstance(o, Ops) and bool((self.v == o.v).all())

    def __hash__(self):
        return 5

    def __neg__(self):
        return Ops(-self.v)

    def __lt__(self, o):
        return True

    def __matmul__(self, o):
        return self.v @ o

    def __setitem__(self, k, v):
        self.v[k] = v

    def __delitem__(self, k):
        print("del", k)

    def __enter__(self):
        return self.v

    def __exit__(self, *a):
        return None


def operators_(x):
    a = Ops(x.clone())
    b = a
    a += 1
    a[0] = 5
    del a[1]
    with a as v:
        w = v * 2
    return (
        (a + 1).v,
        (1 + a).v,
        a == b,
        a is b,
        (-a).v,
        a < b,
        a @ x,
        w,
        hash(a),
        {a: 1}[b],
        a != 3,
        sorted([a, b]) == [a, b],
    )


def operators_on_argument(a, x):
    b = a
    a += x
    a[0] = 5.0
    return (a + 1).v, b is a, (-a).v, a == b


class Descriptor:
    def __get__(self, obj, owner):
        return 5 if obj is None else obj.k * 2

    def __set__(self, obj, value):
        print("set", value)
        obj.k = value


class Dynamic:
    d = Descriptor()
    k = 1

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(name)

    @functools.cached_property
    def once(self):
        print("once")
        return self.k + 1

    @property
    def prop(self):
        return self.k

    @prop.setter
    def prop(self, v):
        self.k = v


def dynamic_attributes(x):
    o = Dynamic()
    a = o.d, Dynamic.d, o.dyn_abc, o.once, o.once
    o.d = 4
    o.prop = o.prop + 1
    return x * o.k, a, o.d, getattr(o, "nope", None), hasattr(o, "dyn_x"), hasattr(o, "other")


def dynamic_argument(o, x):
    a = o.d, o.dyn_abc, o.once, o.prop
    o.prop = 7
    o.d = 4
    return x * o.k, a, o.once, hasattr(o, "dyn_x"), hasattr(o, "other")


class Parent:
    registry: list[str] = []

    def __init_subclass__(cls):
        Parent.registry.append(cls.__name__)

    def name(self):
        return "parent"

    @classmethod
    def make(cls, x):
        return cls().go(x)

    def go(self, x):
        return x + 1


class Middle(Parent):
    def go(self, x):
        return super().go(x) * 2

    @classmethod
    def make(cls, x):
        return super().make(x) + 1

    @property
    def label(self):
        return super().name() + "!"


class Leaf(Middle):
    def go(self, x):
        return super(Leaf, self).go(x) - 1


def inheritance(x):
    o = Leaf()
    return (
        o.go(x),
        Leaf.make(x),
        o.label,
        Parent.go(o, x),
        isinstance(o, Parent),
        issubclass(Leaf, Middle),
        type(o).__mro__[1].__name__,
        Leaf.make.__name__,
    )


def class_in_function(x):
    class Local:
        k = 3

        def go(self, v):
            return v * self.k

    return Local().go(x), Local.__name__


def matches(x, v):
    match v:
        case 0 | 1:
            return x
        case [a, b]:
            return x + a + b
        case {"k": k}:
            return x * k
        case str() as s:
            return x, s
        case Frozen(a=a):
            return x - a
        case _:
            return x * 100


class H:
    def __getattribute__(self, n):
        return object.__getattribute__(self, n)

    def m(self, x):
        return x + 1

    def __eq__(self, other):
        return type(other) is H


def getattribute_method(h, x):
    return h.m(x) * 2


class SlotCall:
    __slots__ = ("f", "g")

    def __init__(self):
        self.f = torch.relu
        self.g = 3

    def __eq__(self, other):
        return self.g == other.g


def slot_called(s, x):
    return s.f(x) * s.g


def class_closure_across(x):
    total = 0

    def step(v):
        nonlocal total
        total = total + v
        if total > 2:
            print("big", total)
        return total

    for i in range(4):
        x = x + step(i)
    return x, total


def pops_from_instance(b, x):
    other = copy.copy(b)
    other.__dict__.pop("missing", None)
    n = other.__dict__.pop("value")
    other.more = n + 1
    m = b.__dict__.pop("value", 7) + b.__dict__.pop("value", 5)
    return x + m, vars(other), vars(b), n


def pops_what_is_missing(b, x):
    y = x + 1
    return y, b.__dict__.pop("missing")


CASES = [
    (pops_from_instance, (Box(1), t(2))), (pops_what_is_missing, (Box(1), t(2))), (makes_objects, (t(2),)), (writes_object, (Box(1), t(2))), (deletes_attribute, (Box(1), t(2))),
    (writes_then_breaks, (Box(1), t(2))), (setattr_getattr, (Box(1), t(2))), (enum_work, (t(2),), (t(2), Color.BLUE)),
    (operators_, (t(3),)), (operators_on_argument, (Ops(t(3)), t(3))), (dynamic_attributes, (t(2),)),
    (dynamic_argument, (Dynamic(), t(2))), (inheritance, (t(2),)), (class_in_function, (t(2),)),
    (matches, (t(2), 1), (t(2), [1, 2]), (t(2), {"k": 3}), (t(2), "s"), (t(2), Frozen(4)), (t(2), None), (t(2), 1.0)),
    (getattribute_method, (H(), t(3))), (slot_called, (SlotCall(), t(3))), (class_closure_across, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)


IN_KERNELS = [writes_object, operators_on_argument, writes_then_breaks]


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
@pytest.mark.parametrize("case", [c for c in CASES if c[0] in IN_KERNELS], ids=lambda c: c[0].__name__)
def test_same_as_eager_when_lowered(case, backend):
    agrees_with_eager(*case, backend=backend)


def test_instance_dictionary_is_popped_from_in_the_graph():
    agrees_with_eager(pops_from_instance, (Box(1), t(2)), breaks=0)
