"""The language, its builtins and the standard library, traced: compared with eager in value, type, effect, exception."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import copy
import dataclasses
import enum
import functools
import heapq
import inspect
import itertools
import math
import operator
import re
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fuselens

from .harness import check

CASES: list[Any] = []
X = torch.tensor([1.0, -2.0, 3.0])


def case(*calls: tuple[Any, ...], breaks: int | None = 0) -> Callable[[Any], Any]:
    """Registers a function with its argument tuples (one tensor when none is given)."""

    def register(function: Any) -> Any:
        CASES.append(pytest.param(function, calls or ((X,),), breaks, id=function.__name__))
        return function

    return register


def error(function: Callable[[], Any]) -> Any:
    """The type and text of what a call raises."""
    try:
        return function()
    except Exception as e:  # noqa: BLE001
        return type(e), str(e)


# --- strings and numbers ----------------------------------------------------------------------------------------


class Money:
    def __init__(self, amount: Any) -> None:
        self.amount = amount

    def __str__(self) -> str:
        return f"${self.amount}"

    def __repr__(self) -> str:
        return f"Money({self.amount!r})"

    def __format__(self, spec: str) -> str:
        return f"<{spec}:{self.amount}>"


MONEY = Money(5)


@case()
def string_methods(x):
    s = "Hello, World"
    return (
        s.upper(), s.split(", "), s.replace("l", "L", 1), s.find("o"), s.partition(","), s.encode(), s.center(20, "*"),
        s.startswith(("He", "x")), s.isalpha(), s.zfill(15), "a,b".rsplit(",", 1), s.title(), s.casefold(), s[::-1], s * 2,
        "l" in s, s.count("l"), s.index("W"), "-".join(c for c in "abc"), "x".join(["1", "2"]), s.translate({72: "J"}),
        "%d-%s-%5.2f" % (3, "a", 2.5), "%(k)s" % {"k": 1}, "{:>5}|{!r}".format(3, "q"), "{a[0]}{b.shape}".format(a=[1], b=x),
        s < "Z", s == "no", sorted(s)[:3], list("ab"), max(s), "tab\t".expandtabs(4), "a\nb".splitlines(), s.swapcase(),
    )  # fmt: skip


@case()
def bytes_methods(x):
    b = b"abc"
    return (
        b.upper(),
        b[0],
        b[1:],
        b + b"d",
        b.decode(),
        b.hex(),
        list(b),
        bytes([1, 2]),
        bytes(3),
        b.find(b"c"),
        bytes("é", "utf8"),
    )


@case()
def f_strings(x):
    n, name, w = 3, "x", 10
    return (
        f"{n:05d} {name!r:>{w}} {2.5:.1%} {n=} {x.shape} {x.dtype} {x.device} {[n, name]} {(n,)} {x.shape[0]:>4} {None}",
        f"{MONEY} {MONEY!r} {MONEY:abc} {[MONEY]} {{'a': 1}}", f"{Money(n)}", str([Money(1), {"k": Money(2)}]),
        "%s %r" % (MONEY, MONEY), f"{torch.Size([1, 2])} {int} {10**30:,} {1 + 2j} {True!s:>6}",
    )  # fmt: skip


@case(breaks=None)
def f_string_of_a_tensor(x):
    y = x + 1
    return f"{y.sum()}", y * 2


@case()
def number_methods(x):
    return (
        (5).bit_length(), (255).to_bytes(2, "big"), int.from_bytes(b"\x01\x00", "big"), (2.5).as_integer_ratio(), (2.0).is_integer(),
        (1 + 2j).conjugate(), (3 + 4j).real, float.fromhex("0x1p3"), (0.1).hex(), (7).bit_count(), (3).__add__(4), True + True, 7 // -2,
        -7 % 3, 2**100, 2**-1, divmod(-7, 2), 1 < 2 < 3 != 4, 5 & 3 | 8 ^ 1, ~5, 1 << 70, round(2.567, 2), round(2.5), abs(-3),
        float("inf"), int("12"), int("ff", 16), int(3.9), complex("1+2j"), hash(1.0) == hash(1), pow(3, 4, 5), bin(5), hex(255), oct(8),
        chr(97), ord("a"), float("nan") != float("nan"), bool([]), bool(""), bool(0.0), int(True), str(1.0), repr("a'b"), ascii("é"),
    )  # fmt: skip


@case()
def arithmetic_errors(x):
    return [
        error(f)
        for f in (
            lambda: 1 // 0, lambda: 1 + "a", lambda: "a" + 1, lambda: [] + 1, lambda: int("x"), lambda: {} < {}, lambda: None + 1,
            lambda: -"a", lambda: 3 < "a", lambda: chr(-1), lambda: float("x"), lambda: "abc"[5], lambda: "a" * "b", lambda: len(3),
            lambda: "%d" % "a", lambda: "{}".format(), lambda: (1).foo, lambda: 2.5 & 1, lambda: "{x}".format(y=1), lambda: b"a" + "b",
        )
    ]  # fmt: skip


@case()
def constants_identity(x):
    a = None
    return (
        a is None,
        a is not None,
        x is x,
        x is None,
        (),
        True is True,
        int is int,
        (y := x + 1) is y,
        len is len,
    )


# --- statements -------------------------------------------------------------------------------------------------


@case()
def unpacking(x):
    a, b = 1, 2
    (c, d), e = [3, 4], 5
    f, *g = range(4)
    *h, i = "abc"
    j = [*g, *h, *range(2)]
    k = {**{"a": 1}, "b": 2, **dict(c=3)}
    l, m = x.shape[0], x.unsqueeze(0).shape  # noqa: E741
    [n, (o, *p)] = [1, (2, 3, 4)]
    return a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, {*j, 1} == {0, 1, 2, 3, "a", "b"}


@case()
def unpacking_errors(x):
    def few():
        a, b = (1,)

    def many():
        a, b = 1, 2, 3

    def starred():
        a, *b, c = (1,)

    def nothing():
        a, b = 3

    return [error(f) for f in (few, many, starred, nothing)]


def takes(a, /, b, *args, c=3, **kwargs):
    return a, b, args, c, kwargs


@case()
def calls_with_stars(x):
    t, d = (1, 2), {"c": 5, "z": x}
    return takes(*t), takes(*t, *"ab", **d), takes(x, b=1), takes(*[1, 2, 3], **{"k": 1}, **{"q": 2}), takes(1, *[], 2)


@case()
def walrus_and_conditionals(x):
    if (n := len(x)) > 2:
        y = x * n
    z = "a" if n > 5 else "b" if n > 2 else "c"
    while (n := n - 1) > 0:
        y = y + n
    else:
        y = y - 1
    return y, z, [m for i in range(5) if (m := i % 2)], 1 if x is None else 2


@case()
def loops(x):
    found = []
    for i in range(10):
        if i == 2:
            continue
        if i == 5:
            break
        found.append(i)
    else:
        found.append("never")
    for _ in ():
        pass
    else:
        found.append("else")
    return found, x


@case()
def deletions(x):
    a, b = 1, [1, 2, 3]
    del a
    del b[0], b[-1]
    o = Money(x)
    del o.amount
    return b, hasattr(o, "amount"), error(lambda: o.amount)


@case()
def augmented(x):
    o = Money(1)
    o.amount += 2
    o.amount *= x
    d = {"k": [1]}
    d["k"] += [2]
    l = [1, 2]  # noqa: E741
    l[0] -= 5
    t = (1,)
    t += (2,)
    y = x.clone()
    z = y
    y += 1
    n = 3
    n **= 2
    n //= 2
    n <<= 1
    s = "a"
    s *= 3
    return o.amount, d, l, t, y, z is y, n, s


@case()
def annotations(x: torch.Tensor) -> Any:
    y: int = 3
    z: list[int]

    def inner(a: int, b: str = "x") -> float:
        return a * 2.0

    return inner(y) * x, typing.cast(int, y)


@case((X,), (None,), breaks=None)  # pytest rewrites assertions
def assertions(x):
    assert x is not None, "no x"
    return x + 1


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any = 0


def matched(v):
    match v:
        case None:
            return "none"
        case True | False:
            return "bool"
        case 0 | 1:
            return "small"
        case int(n) if n > 100:
            return "big", n
        case int():
            return "int"
        case str() as s:
            return "str", s
        case []:
            return "empty"
        case [a]:
            return "one", a
        case [1, *rest]:
            return "from one", rest
        case (a, (b, *_), c):
            return "nested", a, b, c
        case {"kind": "k", **rest}:
            return "mapping", rest
        case {"a": a, "b": {"c": c}}:
            return "deep", a, c
        case Pair(left=0, right=r):
            return "left zero", r
        case Pair(l, Pair(m)):
            return "pairs", l, m
        case Pair(l, r):
            return "pair", l, r
        case float(f):
            return "float", f
        case torch.Tensor(shape=s):
            return "tensor", s
        case _:
            return "other"


@case()
def match_statements(x):
    return [
        matched(v)
        for v in (
            None, True, 0, 500, 50, "a", [], [9], [1, 2, 3], (1, [2, 3], 4), {"kind": "k", "z": 1}, {"a": 1, "b": {"c": x}},
            {"a": 1}, Pair(0, x), Pair(1, Pair(2)), Pair(1), 2.5, b"ab", range(3), collections.deque([1, 2]), {1}, object,
        )
    ]  # fmt: skip


@case((X, Pair(0, 5)), (X, {"kind": "k", "q": [1]}), (X, [1, 2]), (X, 3))
def match_arguments(x, v):
    return x, matched(v)


# --- builtins ---------------------------------------------------------------------------------------------------


@case()
def builtins_over_iterables(x):
    words = ["bb", "a", "ccc"]
    return (
        sorted(words, key=len), sorted(words, reverse=True), sorted([(1, "b"), (1, "a"), (0, "z")], key=lambda p: p[0]),
        list(filter(None, [0, 1, "", 2])), list(filter(lambda v: v > 1, range(4))), list(reversed(words)), list(reversed("abc")),
        list(zip(words, range(3), strict=True)), list(zip(words, "x")), list(enumerate(words, 5)), list(map(len, words)),
        list(map(lambda a, b: a + b, [1, 2, 3], [10, 20])), min(words), max(words, key=len), min(3, 1, 2), max([], default=9),
        min([x.shape[0], 2]), sum([1, 2]), sum([[1], [2]], []), sum((x, x)), any([0, 1]), all([]), any(v > 1 for v in range(3)),
        next(iter([]), "none"), next(iter([5])), list(iter(range(2))), tuple(i * x for i in range(2)), dict(zip("ab", range(2))),
    )  # fmt: skip


@case()
def builtins_raise(x):
    return [
        error(f)
        for f in (
            lambda: max([]), lambda: min(3), lambda: sum(["a"], ""), lambda: sum([1, "a"]), lambda: next(iter([])),
            lambda: list(zip([1], [1, 2], strict=True)), lambda: list(zip([1, 2], [1], strict=True)), lambda: sorted([1, "a"]),
            lambda: list(map(len, [1])), lambda: iter(3), lambda: reversed({1}), lambda: dict([1]), lambda: list(3), lambda: hash([]),
            lambda: {}[[]], lambda: {[]: 1}, lambda: {1, {}}, lambda: isinstance(1, 2), lambda: "a".join([1]), lambda: set([[]]),
        )
    ]  # fmt: skip


@case()
def lazy_consumption(x):
    seen = []

    def note(v):
        seen.append(v)
        return v

    it = iter(range(10))
    a = any(note(i) > 2 for i in it)
    b = next(it)
    c = all(map(note, [1, 0, 2]))
    d = 3 in map(note, range(10))
    z = zip(it, [1, 2])
    e = next(z)
    return a, b, c, d, e, list(it), seen


@case()
def iter_with_sentinel(x):
    values = [1, 2, 3, 0, 4]
    return list(iter(values.pop, 2)), values, list(iter(lambda: values.pop() if values else None, None))


@case()
def introspection(x):
    o = Money(3)
    setattr(o, "extra", x)
    a = getattr(o, "extra"), getattr(o, "nope", 7), hasattr(o, "nope")
    delattr(o, "extra")
    return (
        a, hasattr(o, "extra"), type(o), type(3) is int, type(x), isinstance(o, Money), isinstance(3, (str, int)), isinstance(3, int | str),
        isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.Mapping), isinstance(x, collections.abc.Hashable),
        issubclass(bool, int), issubclass(Money, (int, Money)), callable(o), callable(len), callable(Money), error(lambda: o.nope),
        isinstance(lambda: 0, collections.abc.Callable), isinstance(iter([]), collections.abc.Iterator), isinstance(None, type(None)),
        type(o).__name__, o.__class__.__name__, Money.__name__, type(type(o)),
    )  # fmt: skip


# --- classes ----------------------------------------------------------------------------------------------------


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


class Same:
    """Equal when the attributes are, which the comparison of arguments with eager asks for."""

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = object.__hash__


class Vector(Same):
    def __init__(self, *items):
        self.items = list(items)

    def __add__(self, other):
        return (
            Vector(*[a + b for a, b in zip(self.items, other.items)]) if isinstance(other, Vector) else NotImplemented
        )

    def __radd__(self, other):
        return Vector(*[other + a for a in self.items])

    def __mul__(self, k):
        return Vector(*[a * k for a in self.items])

    __rmul__ = __mul__

    def __iadd__(self, other):
        self.items = [a + b for a, b in zip(self.items, other.items)]
        return self

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.items, other.items))

    def __neg__(self):
        return self * -1

    def __abs__(self):
        return sum(abs(a) for a in self.items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]

    def __setitem__(self, i, v):
        self.items[i] = v

    def __delitem__(self, i):
        del self.items[i]

    def __contains__(self, v):
        return any(v is i for i in self.items)

    def __call__(self, k, *, scale=1):
        return self.items[k] * scale

    def __bool__(self):
        return bool(self.items)

    def __index__(self):
        return len(self.items)

    def __int__(self):
        return 42

    def __float__(self):
        return 4.5

    def __round__(self, n=None):
        return "rounded", n

    def __divmod__(self, k):
        return "divmod", k

    def __pow__(self, k):
        return "pow", k


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


# --- itertools --------------------------------------------------------------------------------------------------


@case()
def itertools_simple(x):
    it = itertools
    return (
        list(it.chain([1], (2,), "a")), list(it.chain.from_iterable([[1], [2, 3]])), list(it.product([1, 2], "ab")),
        list(it.product([0, 1], repeat=2)), list(it.permutations([1, 2, 3], 2)), list(it.permutations("ab")), list(it.combinations(range(4), 2)),
        list(it.combinations_with_replacement("ab", 2)), list(it.islice(it.count(3, 2), 4)), list(it.islice(range(10), 2, 8, 3)),
        list(it.islice(it.cycle([1, 2]), 5)), list(it.repeat("r", 3)), list(it.takewhile(lambda v: v < 3, range(9))),
        list(it.dropwhile(lambda v: v < 3, range(5))), list(it.accumulate([1, 2, 3])), list(it.accumulate([x, x, x], operator.mul)),
        list(it.accumulate([1, 2], initial=10)), list(it.starmap(pow, [(2, 3), (3, 2)])), list(it.zip_longest([1, 2], "a", fillvalue="-")),
        [(k, list(g)) for k, g in it.groupby("aabbc")], [(k, len(list(g))) for k, g in it.groupby([1, 3, 2], key=lambda v: v % 2)],
        list(it.pairwise([1, 2, 3])), list(it.compress("abc", [1, 0, 1])), list(it.filterfalse(lambda v: v % 2, range(4))),
        list(it.islice("abc", None)), list(it.product()), list(it.combinations([], 1)), list(it.zip_longest()), list(it.pairwise([1])),
    )  # fmt: skip


@case()
def itertools_are_lazy(x):
    seen = []

    def note(v):
        seen.append(v)
        return v

    source = map(note, range(10))
    a, b = itertools.tee(source)
    first = next(a), next(a), next(b)
    some = list(itertools.islice(itertools.takewhile(lambda v: v < 5, source), 2))
    c = itertools.chain(map(note, [100]), map(note, [200]))
    d = next(c)
    e = itertools.zip_longest(iter([1]), map(note, [7, 8]))
    f = next(e)
    return first, some, d, f, seen, list(b), x


@case()
def itertools_errors(x):
    return [
        error(f)
        for f in (
            lambda: itertools.islice([1], -1), lambda: list(itertools.chain([1], 3)), lambda: itertools.combinations([1], -1),
            lambda: itertools.product([1], repeat=-1), lambda: next(itertools.repeat(1, 0)), lambda: itertools.tee([1], -1),
            lambda: list(itertools.starmap(pow, [1])), lambda: itertools.islice([1], 0, 1, 0), lambda: itertools.permutations([1], -1),
        )
    ]  # fmt: skip


@case(breaks=None)
def iterators_over_a_break(x):
    it = itertools.chain([1, 2], [3, 4])
    count = itertools.count(5)
    f = filter(lambda v: v % 2, range(10))
    y = x * next(it) + next(count) + next(f)
    fuselens.graph_break()
    return y + next(it), list(it), next(count), list(f)


@case(breaks=1)
def loop_over_itertools_with_a_break(x):
    total = x
    for i, (a, b) in enumerate(itertools.product([1, 2], [3, 4])):
        total = total + i * a * b
        if i == 1:
            fuselens.graph_break()
    return total


# --- functools, operator, others --------------------------------------------------------------------------------


def scaled(x, k, *, bias=0):
    return x * k + bias


TWICE = functools.partial(scaled, k=2)


@case()
def partials(x):
    p = functools.partial(scaled, x)
    q = functools.partial(p, 3, bias=1)
    r = functools.partial(TWICE, bias=5)
    return (
        p(2),
        q(),
        q(bias=9),
        TWICE(x),
        r(x),
        p.args == (x,),
        q.func is scaled,
        q.keywords,
        list(map(functools.partial(operator.mul, 3), [1, 2])),
    )


@case()
def partial_leaves(x):
    p = functools.partial(scaled, k=len(x))
    return type(p), p.func is scaled, p.args, p.keywords, p(x)


@case(breaks=1)
def partial_over_a_break(x):
    p = functools.partial(scaled, x + 1, bias=2)
    fuselens.graph_break()
    return p(3)


@case()
def functools_functions(x):
    return (
        functools.reduce(operator.add, [x, x, 1]), functools.reduce(lambda a, b: a * b, [], 1), error(lambda: functools.reduce(operator.add, [])),
        sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)),
    )  # fmt: skip


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@logged
def decorated(x):
    """The text."""
    return x + 1


@case()
def decorators(x):
    @logged
    def inner(y):
        return y - 1

    return decorated(x), inner(x), decorated.__name__, inner.__name__, decorated.__doc__


CALLS: list[Any] = []


@functools.lru_cache(maxsize=None)
def table(n):
    CALLS.append(n)
    return torch.arange(n) * 2.0


@functools.cache
def number(n, k=1):
    return n * k + 1


@case(breaks=None)
def cached_functions(x):
    return x * number(3), number(3, k=2), table(3) + x, table(3) is table(3)


class Lazy(Same):
    def __init__(self, x):
        self.x = x
        self.runs = 0

    @functools.cached_property
    def heavy(self):
        self.runs += 1
        return self.x * 2


@case((X, Lazy(3)))
def cached_properties(x, lazy):
    made = Lazy(x)
    return lazy.heavy, lazy.heavy, lazy.runs, made.heavy, made.heavy is made.heavy, made.runs


@functools.singledispatch
def shown(v):
    return "object"


@shown.register
def _(v: int):
    return "int"


@shown.register(list)
def _(v):
    return "list", len(v)


@shown.register
def _(v: torch.Tensor):
    return v * 2


@case()
def dispatched(x):
    return shown(1), shown(True), shown([1]), shown("s"), shown(x)


PICK = operator.itemgetter(1)
AMOUNT = operator.attrgetter("amount")


@case()
def operators_as_functions(x):
    o = operator
    return (
        o.itemgetter(1)([1, 2]), o.itemgetter(0, 2)("abc"), o.attrgetter("shape")(x), o.attrgetter("amount", "__class__.__name__")(MONEY),
        o.methodcaller("upper")("a"), o.methodcaller("sum", 0)(x), PICK({1: x}), AMOUNT(MONEY), o.add(x, 1), o.mul([1], 2), o.contains([1], 1),
        o.concat([1], [2]), o.getitem([1, 2], 0), o.not_(0), o.truth([1]), o.is_(x, x), o.neg(x), o.indexOf([1, 2], 2), o.countOf([1, 1], 1),
        o.add(Vector(1), Vector(2)).items, o.lt(1, 2), o.itemgetter(slice(1))([1, 2]), sorted([(1, 2), (0, 3)], key=o.itemgetter(1)),
    )  # fmt: skip


@case()
def maths(x):
    return (
        math.sqrt(x.shape[0]), math.pi, math.ceil(2.1), math.floor(-2.1), math.prod([1, 2, 3]), math.gcd(12, 18), math.inf, math.log2(8),
        math.isclose(0.1 + 0.2, 0.3), math.comb(5, 2), math.factorial(5), math.trunc(2.7), math.hypot(3, 4), x * math.e, error(lambda: math.sqrt(-1)),
        math.fsum([0.1] * 3), math.isnan(float("nan")), math.copysign(1, -0.0), math.dist([0, 0], [3, 4]), math.log(8, 2),
    )  # fmt: skip


@case(breaks=None)
def maths_on_a_tensor(x):
    y = x.abs().sum()
    return math.sqrt(y), y * 2


@case()
def heaps(x):
    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 2)
    return (
        heapq.heappop(h),
        heapq.heappushpop(h, 3),
        heapq.heapreplace(h, 9),
        h,
        heapq.nsmallest(2, [3, 1, 2]),
        list(heapq.merge([1, 3], [2])),
    )


PATTERN = re.compile(r"(\w+)\.(\d+)")


@case()
def regular_expressions(x):
    m = PATTERN.match("layer.3")
    return (
        m.group(1), int(m.group(2)) * x, m.groups(), re.sub(r"\d", "#", "a1b2"), re.findall(r"\d", "a1b2"), re.match("z", "a") is None,
        bool(re.search("b", "abc")), re.split(",", "a,b"), PATTERN.pattern, re.compile("a+").fullmatch("aaa") is not None, m[1], m.span(),
        error(lambda: re.compile("(")),
    )  # fmt: skip


@case()
def copies(x):
    l = [[1], x]  # noqa: E741
    a, b = copy.copy(l), copy.deepcopy([[1], {"k": (1, 2)}, {3}, collections.deque([1], 2)])
    return (
        a is l,
        a[0] is l[0],
        b,
        copy.copy({1: 2}),
        copy.copy({1, 2}),
        copy.copy(collections.deque([1], 3)),
        copy.deepcopy((1, 2)),
    )


REFERENCE = weakref.ref(MONEY)


@case()
def weak_references(x):
    return REFERENCE() is MONEY, REFERENCE().amount * x


@contextlib.contextmanager
def noted(log, name):
    log.append(f"enter {name}")
    try:
        yield name
    finally:
        log.append(f"exit {name}")


@case()
def context_managers(x):
    log = []
    with noted(log, "a") as a, contextlib.nullcontext(5) as five, contextlib.suppress(KeyError):
        log.append(a)
        x = x * five
        {}["q"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(noted(log, "b"))
        stack.callback(log.append, "callback")
        log.append("body")
    return x, log


@case()
def signatures(x):
    s = inspect.signature(scaled)
    return list(s.parameters), s.parameters["bias"].default, "k" in s.parameters


class Shape(collections.abc.Sized):
    def __len__(self):
        return 4


@case()
def abstract_classes(x):
    return (
        len(Shape()),
        isinstance(Shape(), collections.abc.Sized),
        error(lambda: collections.abc.Sized()),
        isinstance(3, typing.Hashable),
    )


@case(breaks=None)
def breaking_calls(x):
    y = x + 1
    print("value", y.shape)
    return y * 2


@pytest.mark.parametrize(("function", "calls", "breaks"), CASES)
def test_library(function: Any, calls: Any, breaks: int | None) -> None:
    CALLS.clear()
    check(function, *calls, breaks=breaks)


def test_cached_functions_run_once() -> None:
    CALLS.clear()
    table.cache_clear()
    compiled = fuselens.compile(lambda x: table(4) + x, backend="eager")
    first = compiled(torch.ones(4))
    assert torch.equal(compiled(torch.ones(4)), first) and CALLS == [4] and table.cache_info().hits == 1


def test_dispatch_is_guarded() -> None:
    @functools.singledispatch
    def pick(v):
        return 1

    compiled = fuselens.compile(lambda x: x * pick("a"), backend="eager")
    assert compiled(X).equal(X)
    pick.register(str)(lambda v: 5)
    assert compiled(X).equal(X * 5)


def test_a_cleared_reference_is_noticed() -> None:
    owner = Money(3)
    reference = weakref.ref(owner)
    compiled = fuselens.compile(lambda x: x * (1 if reference() is None else reference().amount), backend="eager")
    assert compiled(X).equal(X * 3)
    del owner
    assert compiled(X).equal(X)


def test_a_partial_function_leaves() -> None:
    made = fuselens.compile(lambda x: functools.partial(scaled, x + 1, bias=2), backend="eager")(X)
    assert type(made) is functools.partial and made.func is scaled and made.keywords == {"bias": 2}
    assert made(3).equal((X + 1) * 3 + 2)
