"""Attributes: through metaclasses, slots, C descriptors, ``__getattr__`` and ``__getattribute__``."""

from __future__ import annotations

import functools
import operator
import types
from typing import Any, ClassVar

import torch

from ...program import Programs, some

programs = Programs()


class Meta(type):
    scale = 3

    @property
    def doubled(cls) -> float:
        return cls.factor * 2

    def named(cls, suffix: str) -> str:
        return cls.__name__ + suffix

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("known_"):
            return len(name)
        raise AttributeError(name)


class Built(metaclass=Meta):
    factor = 1.5


class Called(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.after = True
        return made


class Finished(metaclass=Called):
    def __init__(self, value: Any) -> None:
        self.value = value


class Singleton(type):
    kept: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in Singleton.kept:
            Singleton.kept[cls] = super().__call__(*args)
        return Singleton.kept[cls]


class Only(metaclass=Singleton):
    def __init__(self) -> None:
        self.count = 2


class Sized(type):
    def __len__(cls) -> int:
        return 4

    def __iter__(cls) -> Any:
        return iter(cls.members)

    def __contains__(cls, item: Any) -> bool:
        return item in cls.members

    def __getitem__(cls, index: int) -> Any:
        return cls.members[index]

    def __bool__(cls) -> bool:
        return False

    def __add__(cls, other: Any) -> Any:
        return len(cls) + other

    def __eq__(cls, other: Any) -> bool:
        return other == "sized" or cls is other

    def __hash__(cls) -> int:
        return 7


class Held(metaclass=Sized):
    members = (1, 2, 5)


class LyingMeta(type):
    def __instancecheck__(cls, obj: Any) -> bool:
        return isinstance(obj, int)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is float


class Lying(metaclass=LyingMeta):
    pass


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any = None) -> None:
        self.a = a
        if b is not None:
            self.b = b


class MoreSlots(Slots):
    __slots__ = ("c",)


class SlotsAndDict(Slots):
    pass


class Everything:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __getattribute__(self, name: str) -> Any:
        if name == "twice":
            return object.__getattribute__(self, "x") * 2
        return super().__getattribute__(name)


class Missing:
    def __init__(self) -> None:
        self.data = {"w": 2, "v": 3}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(f"no {name}") from None


class Writes:
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 2)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        super().__setattr__("deleted", name)


class Descriptor:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, obj: Any, kind: type | None = None) -> Any:
        if obj is None:
            return self
        return getattr(obj, self.name, 1) + 1

    def __set__(self, obj: Any, value: Any) -> None:
        setattr(obj, self.name, value * 10)

    def __delete__(self, obj: Any) -> None:
        delattr(obj, self.name)


class Described:
    size = Descriptor()


class Read:
    def __get__(self, obj: Any, kind: type | None = None) -> str:
        return "class" if obj is None else "instance"


class WithRead:
    kind = Read()


class Raises:
    def __get__(self, obj: Any, kind: type | None = None) -> Any:
        raise AttributeError("never there")


class WithRaises:
    bad = Raises()

    def __getattr__(self, name: str) -> str:
        return "from __getattr__: " + name


class Lazy:
    @functools.cached_property
    def table(self) -> list[int]:
        return [1, 2, 3]

    @property
    def size(self) -> int:
        return len(self.table)

    @size.setter
    def size(self, value: int) -> None:
        self.table.append(value)

    @size.deleter
    def size(self) -> None:
        self.table.clear()


class Counted:
    made = 0

    def __init_subclass__(cls, /, tag: str = "none", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tag = tag

    @classmethod
    def make(cls) -> Any:
        return cls()

    @staticmethod
    def plain(x: Any) -> Any:
        return x + 1


class Tagged(Counted, tag="yes"):
    pass


@programs(lambda: (some(3),))
def property_of_a_metaclass(x):
    return x * Built.doubled + Built.scale


@programs(lambda: (some(3),))
def method_of_a_metaclass(x):
    return x + 1, Built.named("!"), type(Built).__name__


@programs(lambda: (some(3),))
def getattr_of_a_metaclass(x):
    return x + Built.known_ab, hasattr(Built, "unknown")


@programs(lambda: (some(3),))
def call_of_a_metaclass(x):
    made = Finished(x * 2)
    return made.value + 1, made.after


@programs(lambda: (some(3),))
def singleton_by_a_metaclass(x):
    return x * Only().count, Only() is Only()


@programs(lambda: (some(3),))
def operators_of_a_metaclass(x):
    total = 0
    for member in Held:
        total += member
    return x * total + len(Held), 5 in Held, Held[1], Held + 1, bool(Held)


@programs(lambda: (some(3),))
def comparison_of_classes(x):
    return x + 1, Held == "sized", Held != Built, {Held: 1}[Held]


@programs(lambda: (some(3),))
def instances_of_a_lying_class(x):
    return x + 1, isinstance(4, Lying), isinstance("s", Lying), issubclass(float, Lying), issubclass(int, Lying)


@programs(lambda: (some(3), Slots(2.0)))
def slots_read(x, s):
    return x * s.a, hasattr(s, "b"), getattr(s, "b", 4)


@programs(lambda: (some(3), Slots(2.0)))
def slots_written(x, s):
    s.b = x + 1
    s.a = 5
    return s.b * s.a


@programs(lambda: (some(3),))
def slots_made(x):
    s = MoreSlots(x, 2)
    s.c = s.a * s.b
    del s.b
    return s.c, hasattr(s, "b"), hasattr(s, "__dict__")


@programs(lambda: (some(3),))
def slots_refuse(x):
    s = MoreSlots(x)
    try:
        s.d = 1
    except AttributeError as e:
        return x + 1, type(e).__name__
    return x


@programs(lambda: (some(3),))
def slots_beside_a_dict(x):
    s = SlotsAndDict(x)
    s.other = 3
    return s.a * s.other, s.__dict__


@programs(lambda: (some(3), Slots(2.0)))
def slot_as_a_descriptor(x, s):
    return x * Slots.a.__get__(s), Slots.a.__name__, type(Slots.a) is types.MemberDescriptorType


@programs(lambda: (some(3), Everything(2.0)))
def own_getattribute(x, e):
    return x * e.twice + e.x


@programs(lambda: (some(3),))
def own_getattribute_of_a_new_object(x):
    return Everything(x).twice


@programs(lambda: (some(3), Missing()))
def own_getattr(x, m):
    return x * m.w + m.v, hasattr(m, "nothing"), getattr(m, "nothing", 1)


@programs(lambda: (some(3), Missing()))
def own_getattr_raises(x, m):
    try:
        return x * m.nothing
    except AttributeError as e:
        return x + 1, str(e)


@programs(lambda: (some(3),))
def own_setattr(x):
    w = Writes()
    w.a = x
    w.b = 3
    del w.b
    return w.a, w.deleted


@programs(lambda: (some(3), Writes()))
def own_setattr_of_an_argument(x, w):
    w.a = x + 1
    return w.a * 2


@programs(lambda: (some(3), Described()))
def data_descriptor(x, d):
    before = d.size
    d.size = 4
    return x * d.size + before


@programs(lambda: (some(3),))
def data_descriptor_of_a_new_object(x):
    d = Described()
    d.size = 2
    after = d.size
    del d.size
    return x * after + d.size, Described.size.name


@programs(lambda: (some(3), WithRead()))
def non_data_descriptor(x, w):
    return x + 1, w.kind, WithRead.kind


@programs(lambda: (some(3), WithRead()))
def non_data_descriptor_hidden(x, w):
    w.__dict__["kind"] = "mine"
    return x + 1, w.kind


@programs(lambda: (some(3), WithRaises()))
def descriptor_that_raises(x, w):
    return x + 1, w.bad


@programs(lambda: (some(3), Lazy()))
def cached_property_computed(x, lazy):
    return x * lazy.size + sum(lazy.table), "table" in lazy.__dict__


@programs(lambda: (some(3),))
def cached_property_of_a_new_object(x):
    lazy = Lazy()
    lazy.size = 9
    return x + lazy.size, lazy.table


@programs(lambda: (some(3), Lazy()))
def property_set_and_deleted(x, lazy):
    lazy.size = 7
    many = lazy.size
    del lazy.size
    return x * many, lazy.size


@programs(lambda: (some(3),))
def property_by_its_functions(x):
    lazy = Lazy()
    return x + Lazy.size.fget(lazy), Lazy.size.fset is not None, isinstance(Lazy.__dict__["size"], property)


@programs(lambda: (some(3),))
def class_keywords(x):
    return x + 1, Tagged.tag, Tagged.make().tag, Tagged.plain(2)


@programs(lambda: (some(3),))
def class_attributes_written(x):
    Counted.made += 1
    made = Counted.made
    Counted.made = 0
    return x + made


@programs(lambda: (some(3),))
def descriptors_of_builtins(x):
    return x + int.real.__get__(3), (3).real, (3.5).imag, (2).numerator, complex(1, 2).imag, int.__add__(2, 3)


@programs(lambda: (some(3),))
def methods_of_builtins(x):
    return (
        x + 1,
        str.upper("a"),
        list.__len__([1, 2]),
        dict.get({"a": 1}, "a"),
        "ab".join.__name__,
        tuple.index((1, 2), 2),
    )


@programs(lambda: (some(3),))
def attrgetter_of_a_path(x):
    get = operator.attrgetter("T.shape", "dtype")
    return x + 1, get(x)


@programs(lambda: (some(3), types.SimpleNamespace(a=types.SimpleNamespace(b=2))))
def namespaces(x, n):
    n.c = x + n.a.b
    made = types.SimpleNamespace(**{"p": 1}, q=x)
    return n.c * made.p, made.q, vars(made).keys() == {"p", "q"}, n.a == types.SimpleNamespace(b=2)


@programs(lambda: (some(3), types.SimpleNamespace(a=1)))
def vars_written(x, n):
    vars(n)["b"] = 4
    n.__dict__.update(c=5)
    return x * n.b + n.c, sorted(n.__dict__)


@programs(lambda: (some(3), Slots(1)))
def attributes_by_name(x, s):
    for name in ("a", "b"):
        setattr(s, name, getattr(s, name, 1) + 1)
    delattr(s, "b")
    return x * s.a, hasattr(s, "b")


@programs(lambda: (some(3),))
def class_made_while_running(x):
    class Local:
        k = 3

        def run(self, v: Any) -> Any:
            return v * self.k

    return Local().run(x), Local.__name__


@programs(lambda: (some(3),))
def class_made_by_type(x):
    made = type("Made", (Counted,), {"k": 2, "run": lambda self, v: v * self.k})
    return made().run(x), made.__name__, made.tag


@programs(lambda: (some(3),))
def order_of_bases(x):
    class A:
        def f(self) -> list[str]:
            return ["a"]

    class B(A):
        def f(self) -> list[str]:
            return ["b", *super().f()]

    class C(A):
        def f(self) -> list[str]:
            return ["c", *super().f()]

    class D(B, C):
        def f(self) -> list[str]:
            return ["d", *super(D, self).f()]

    return x + 1, D().f(), [k.__name__ for k in D.__mro__], D.__bases__ == (B, C)


@programs(lambda: (some(3), Tagged()))
def dunder_attributes(x, t):
    return x + 1, t.__class__.__name__, t.__class__.__mro__[1] is Counted, t.__module__ == Counted.__module__, t.__doc__


@programs(lambda: (some(3), Tagged()))
def class_of_an_object_written(x, t):
    t.__class__ = Counted
    return x + 1, type(t) is Counted


@programs(lambda: (some(3),))
def attributes_of_functions(x):
    def f(v: Any) -> Any:
        f.calls += 1
        return v * f.calls

    f.calls = 1
    return f(x) + f(x), f.calls, f.__name__, f.__code__.co_argcount


@programs(lambda: (some(3), Everything))
def class_as_an_argument(x, kind):
    return kind(x).twice, kind.__name__


@programs(lambda: (some(3), torch.nn.Linear(3, 3)))
def attributes_of_a_module(x, m):
    m.extra = 3
    found = getattr(m, "extra") + m.in_features
    del m.extra
    return m(x) * found, hasattr(m, "extra"), "weight" in m._parameters


@programs(lambda: (some(3), torch.nn.Linear(3, 3)))
def missing_attribute_of_a_module(x, m):
    try:
        m.nothing
    except AttributeError as e:
        return x + 1, str(e)
    return x


@programs(lambda: (some(3), Slots(1)))
def missing_attribute_of_an_object(x, s):
    try:
        return s.zz
    except AttributeError as e:
        return x + 1, e.args, e.name
