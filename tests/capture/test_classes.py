"""Classes: operators, inheritance, enumerations, data classes.

Traced, and compared with eager in value, type, effect and exception.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import types
from typing import Any

import pytest

from tests.support.cases import Cases, X, error
from tests.support.objects import Same, Vector

from .harness import agrees_with_eager

CASES = Cases()
case = CASES.add


@functools.total_ordering
class Version:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n if isinstance(other, Version) else NotImplemented

    def __lt__(self, other):
        return self.n < other.n if isinstance(other, Version) else NotImplemented

    def __hash__(self):
        return hash(self.n)

    def __repr__(self):
        return f"v{self.n}"


@case((X, Version(2)))
def compared_objects(x, v):
    a, b = Version(1), Version(2)
    return (
        a < b, a <= b, a > b, a >= b, a == b, a != b, b == v, v in [a, b], sorted([b, a], key=lambda q: q), max(a, b), min([b, a]),
        sorted([b, a])[0].n, [a, b].index(v), {a: 1, b: 2}[v], v in {a, b}, [a, b] == [Version(1), v], (a, 1) < (b, 0), a == 3, a != 3,
        error(lambda: a < 3), sorted([b, a, v], reverse=True)[0] is b, [a, b].count(v), {v} == {b}, str([a, b]),
    )  # fmt: skip


@case((X, Vector(1, 2.5)))
def arithmetic_of_objects(x, w):
    v = Vector(x, 2)
    u = v
    u += Vector(1, 1)
    a = v + Vector(1, x)
    b = 3 + v
    c = v * 2
    d = 2 * v
    return (
        a.items, b.items, c.items, d.items, v @ v, (-v).items, abs(w), len(v), v[0], v[-1], v[:1], u is v, 2 in v, x in v, v(1), v(0, scale=2),
        bool(Vector()), [10, 20, 30][w], int(w), float(w), round(w), round(w, 2), divmod(w, 3), w**2, range(w), error(lambda: v + 1),
        error(lambda: v - 1), error(lambda: v < w), not v, list(w), sum(w), max(w), [*w], hex(w), operator.index(w),
    )  # fmt: skip


@case((X, Vector(1, 2, 3)))
def item_assignment_of_objects(x, w):
    w[0] = x
    del w[1]
    w[1] += 1
    return w.items


class Countdown(Same):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Squares:
    def __getitem__(self, i):
        if i >= 4:
            raise IndexError
        return i * i


@case((X, Countdown(3)))
def iterators_of_classes(x, c):
    first = next(c)
    return (
        first,
        list(c),
        list(Countdown(3)),
        [i * x for i in Countdown(2)],
        list(Squares()),
        9 in Squares(),
        max(Countdown(4)),
        dict(enumerate(Countdown(2))),
        next(Countdown(0), "end"),
        tuple(zip(Countdown(3), Squares())),
        sorted(Squares(), reverse=True),
        list(iter(Squares())),
    )


class Base(Same):
    kind = "base"

    def __init__(self, x):
        self.x = x

    def name(self):
        return f"base {self.kind}"

    @classmethod
    def make(cls, x):
        return cls(x)

    @staticmethod
    def twice(x):
        return x * 2

    @property
    def double(self):
        return self.x * 2


class Derived(Base):
    kind = "derived"

    def __init__(self, x):
        super().__init__(x)
        self.y = super().twice(x)

    def name(self):
        return "derived of " + super().name()

    @classmethod
    def make(cls, x):
        return super().make(x)

    @property
    def double(self):
        return super().double + 1

    def old(self):
        return super(Derived, self).name()

    def unbound(self):
        return Base.name(self)


@case((X, Derived(2)))
def supers(x, d):
    e = Derived.make(x)
    return (
        d.name(),
        d.double,
        d.old(),
        d.unbound(),
        e.name(),
        e.y,
        e.double,
        type(e).__name__,
        Base.twice(3),
        super(Derived, d).double,
    )


class Missing(dict):
    def __missing__(self, key):
        return key * 2


class Stack(list):
    def push(self, v):
        self.append(v)
        return self

    def __getitem__(self, i):
        return super().__getitem__(i) if isinstance(i, int) else "slice"


@case((X, Missing(a=1), Stack([1])))
def subclasses_of_builtins(x, d, s):
    m = Missing(b=2)
    m["c"] = x
    t = Stack()
    t.push(1).push(x)
    s.push(2)
    return (
        d["a"],
        d["zz"],
        d.get("zz"),
        m["b"],
        m["q"],
        len(m),
        list(t)[:1],
        t[0],
        t[0:1],
        s[1],
        len(s),
        isinstance(t, list),
        dict(m) == m,
    )


class Color(enum.Enum):
    RED = 1
    GREEN = "g"
    PAIR = (1, 2)

    @property
    def shown(self):
        return self.name.lower()

    def describe(self, x):
        return f"{self.name}={self.value}", x * 2

    @classmethod
    def default(cls):
        return cls.RED


class Perm(enum.Flag):
    R = 1
    W = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@case((X, Color.RED, Perm.R), (X, Color.GREEN, Perm.W))
def enumerations(x, c, p):
    return (
        c.name, c.value, c is Color.RED, c == Color.RED, [m.name for m in Color], Color["RED"], Color("g"), len(Color), c in Color, c.shown,
        c.describe(x), Color.default(), {Color.RED: x, Color.GREEN: x + 1}[c], p | Perm.W, Perm.R in (p | Perm.R), bool(p & Perm.R), str(c),
        repr(c), Level.HIGH > 3, Level.LOW + 1, x * Level.HIGH, isinstance(c, Color), hash(c) == hash(c), Color.PAIR.value[1], sorted(Level),
        error(lambda: Color("zz")), error(lambda: Color["zz"]),
    )  # fmt: skip


@dataclasses.dataclass(order=True)
class Config:
    n: int
    names: list = dataclasses.field(default_factory=list)
    scale: float = 2.0
    hidden: int = dataclasses.field(default=0, repr=False, compare=False)

    def __post_init__(self):
        self.total = self.n * 2


@dataclasses.dataclass(frozen=True)
class Key:
    a: int
    b: str = "b"


@case((X, Config(3, ["q"])))
def data_classes(x, c):
    d = Config(1)
    d.names.append(x)
    e = dataclasses.replace(c, n=7)
    return (
        c.total, d.total, len(d.names), e.n, e.names is c.names, [f.name for f in dataclasses.fields(c)], dataclasses.is_dataclass(c), c == e,
        Config(1) < Config(2), repr(c), dataclasses.asdict(c), dataclasses.astuple(c), d.scale * x, Config(1) == Config(1),
    )  # fmt: skip


@case((X, Key(1)))
def frozen_data_classes(x, k):
    other = Key(1)
    return (
        {k: 1}[other],
        other == k,
        hash(other) == hash(k),
        error(lambda: setattr(other, "a", 3)),
        Key(2) in {k},
        str(other),
    )


@case((X, types.SimpleNamespace(a=1)), breaks=None)
def namespaces(x, n):
    n.b = x
    m = types.SimpleNamespace(q=x, r=2)
    m.r += n.a
    return m.r, m.q, n.b


@pytest.mark.parametrize(("function", "calls", "breaks"), CASES)
def test_library(function: Any, calls: Any, breaks: int | None) -> None:
    agrees_with_eager(function, *calls, breaks=breaks)
