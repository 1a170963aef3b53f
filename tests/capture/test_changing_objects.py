"""Objects and classes.

Something changes between calls; compiled code must notice whatever eager would notice.
"""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tests.support.scenarios import Base, Scenarios, agrees, raised
from tests.support.tensors import t

SCENARIOS = Scenarios()
scenario = SCENARIOS.add


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


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices_what_eager_notices(made):
    agrees(made)
