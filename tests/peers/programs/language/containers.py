"""Containers and iterators: views, ranges, slices, sentinels, orders, named tuples, struct sequences, typed dictionaries."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import enum
import heapq
import itertools
import time
from typing import Any, NamedTuple, TypedDict

import torch

from ...program import Programs, some

programs = Programs()


class Point(NamedTuple):
    x: Any
    y: int = 3


class Named(Point):
    def total(self) -> Any:
        return self.x + self.y


class Scaled(collections.namedtuple("Base", ["a", "b"])):
    __slots__ = ()

    def __new__(cls, a: Any, b: int = 2) -> Any:
        return super().__new__(cls, a * 2, b)


class Options(TypedDict, total=False):
    k: int
    x: Any


class Wanted(TypedDict):
    k: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    sizes: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    k: int = 2

    def moved(self, by: int) -> Any:
        return dataclasses.replace(self, k=self.k + by)


@dataclasses.dataclass(order=True, slots=True)
class Item:
    rank: int
    name: str = dataclasses.field(compare=False, default="")
    made: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.made = self.rank * 2


@dataclasses.dataclass
class Output(collections.OrderedDict):
    first: Any = None
    second: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) is not None:
                self[field.name] = value

    def __getitem__(self, key: Any) -> Any:
        return dict(self.items())[key] if isinstance(key, str) else tuple(self.values())[key]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def scale(self) -> int:
        return self.value * 10

    @classmethod
    def default(cls) -> Colour:
        return cls.BLUE


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


class Text(str, enum.Enum):
    ONE = "one"


class Defaults(dict):
    def __missing__(self, key: Any) -> Any:
        return key * 2


class Chained(list):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) if isinstance(index, slice) else super().__getitem__(index) + 1


@programs(lambda: (some(3), {"a": 1, "b": 2}))
def views_of_a_dict(x, d):
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = 3
    return (
        x + sum(values),
        list(keys),
        ("c", 3) in items,
        keys & {"a"},
        keys | {"z"} == {"a", "b", "c", "z"},
        len(items),
    )


@programs(lambda: (some(3), {"a": 1, "b": 2}))
def views_compared(x, d):
    return (
        x + 1,
        d.keys() == {"a", "b"},
        d.items() >= {("a", 1)},
        d.keys() - {"a"},
        d.keys().isdisjoint({"q"}),
        d.keys() ^ {"a"},
    )


@programs(lambda: (some(3), {"a": 1, "b": 2}))
def views_reversed(x, d):
    return x + 1, list(reversed(d)), list(reversed(d.items())), next(iter(reversed(d.values()))), d.keys().mapping["a"]


@programs(lambda: (some(3), {"a": 1}))
def dicts_merged(x, d):
    other = d | {"b": 2}
    d |= {"c": 3}
    return x + len(other), other, d, {**d, "a": 5}, dict(d, e=1), dict([("p", 1)])


@programs(lambda: (some(3), {"a": 1, "b": 2}))
def dict_methods(x, d):
    d.setdefault("z", []).append(x)
    gone = d.pop("a"), d.pop("q", None), d.popitem()[0]
    copy = d.copy()
    d.clear()
    return x + 1, gone, copy, len(d), dict.fromkeys("ab", 0)


@programs(lambda: (some(3), {"a": 1}))
def dict_changed_while_read(x, d):
    try:
        for key in d:
            d[key + "!"] = 1
    except RuntimeError as e:
        return x + 1, str(e)
    return x


@programs(lambda: (some(3),))
def dict_with_missing(x):
    d = Defaults(a=1)
    return x + d["a"], d[4], d.get(4), len(d)


@programs(lambda: (some(3), Defaults(a=1)))
def dict_with_missing_as_an_argument(x, d):
    return x + d["a"] + d[4]


@programs(lambda: (some(3),))
def default_dict(x):
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["b"].extend([1, 2])
    return d["a"][0] + len(d["b"]), sorted(d), d.default_factory is list, dict(d)["b"]


@programs(lambda: (some(3), collections.OrderedDict(a=1, b=2, c=3)))
def ordered_dict(x, d):
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    first = d.popitem(last=False)
    return x + 1, list(d.items()), first


@programs(lambda: (some(3),))
def counter(x):
    c = collections.Counter("abca")
    c.update("a")
    return x + c["a"], c.most_common(1), c["zz"], c + collections.Counter("z"), c.total()


@programs(lambda: (some(3),))
def chain_map(x):
    m = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return x + m["b"], m["a"], sorted(m), m.new_child({"c": 1})["c"]


@programs(lambda: (some(3),))
def deque(x):
    d = collections.deque([1, 2], maxlen=3)
    d.append(x)
    d.appendleft(4)
    d.rotate(1)
    return [type(v).__name__ for v in d], d.maxlen, len(d), d.popleft()


@programs(lambda: (some(3), collections.deque([1, 2, 3])))
def deque_as_an_argument(x, d):
    d.append(x + d.pop())
    d.extendleft([7, 8])
    return d[-1], list(d)[:2], len(d)


@programs(lambda: (some(3),))
def ranges(x):
    r = range(2, 20, 3)
    return (
        x + r[2],
        r[-1],
        list(r[1:3]),
        8 in r,
        r.index(8),
        len(r),
        r.start,
        r == range(2, 18 + 2, 3),
        r.step,
        list(reversed(r)),
    )


@programs(lambda: (some(3), range(2, 5)))
def range_as_an_argument(x, r):
    for i in r:
        x = x + i
    return x, r.stop


@programs(lambda: (some(3),))
def iterator_of_a_range(x):
    it = iter(range(4))
    next(it)
    return x + next(it), list(it), next(it, "end")


@programs(lambda: (some(3), iter([1, 2, 3])))
def iterator_as_an_argument(x, it):
    return x + next(it) + next(it)


@programs(lambda: (some(3),))
def call_until_a_sentinel(x):
    items = [3, 2, 0, 5]
    out = list(iter(lambda: items.pop(0), 0))
    return x + sum(out), items


@programs(lambda: (some(3), [1, 2, 3, 4, 5]))
def slices_assigned(x, items):
    items[1:3] = [x, x + 1, x + 2]
    items[::4] = [0, 0]
    del items[-1:]
    return items[1] + items[2], len(items), items[0]


@programs(lambda: (some(3), [1, 2, 3, 4, 5]))
def slice_objects(x, items):
    s = slice(1, None, 2)
    return x[slice(0, 2)], items[s], s.indices(5), s.start, s == slice(1, None, 2), "abcdef"[s]


@programs(lambda: (some(4, 3), [1, 2, 3, 4, 5]))
def items_by_sizes(x, items):
    n = x.shape[1]
    items[n] = 9
    items[: x.size(0) - 3] = []
    return x + items[n - 1], items


@programs(lambda: (some(3), [3, 1, 2]))
def list_methods(x, items):
    items.insert(1, 7)
    items.remove(1)
    items.sort(key=lambda v: -v)
    items.reverse()
    items += (4,)
    items *= 2
    return x + items.index(7), items, items.count(2), items.copy() == items, [1, 2] < [1, 3]


@programs(lambda: (some(3),))
def missing_items(x):
    found = []
    for call in (
        lambda: [1][3],
        lambda: {}["k"],
        lambda: [].pop(),
        lambda: (1,).index(2),
        lambda: next(iter([])),
        lambda: {1}.remove(2),
    ):
        try:
            call()
        except (LookupError, ValueError, StopIteration) as e:
            found.append((type(e).__name__, str(e)))
    return x + 1, found


@programs(lambda: (some(3),))
def sets(x):
    s = {1, 2} | {3}
    s.add(4)
    s.discard(9)
    s -= {1}
    return (
        x + len(s),
        s,
        s & {2, 9},
        s ^ {2, 9},
        s <= {2, 3, 4, 5},
        frozenset(s) == s,
        {2}.issubset(s),
        s.union([7], (8,)),
    )


@programs(lambda: (some(3), {1, 2}))
def set_as_an_argument(x, s):
    s.update([5])
    s.intersection_update({1, 5})
    return x + max(s), 5 in s


@programs(lambda: (some(3),))
def unpacked(x):
    a, *b, c = range(5)
    (d, e), [f] = (1, 2), [3]
    *g, h = "abc"
    return x + a + c + d + e + f, b, g, h, [*b, *g], {*b}, (*b, 1)


@programs(lambda: (some(3),))
def unpacked_wrongly(x):
    try:
        a, b = [1, 2, 3]
    except ValueError as e:
        return x + 1, str(e)
    return x + a + b


@programs(lambda: (some(2, 3),))
def tensors_unpacked(x):
    a, b = x
    c, *d = b
    return a + b, c * 2, d


@programs(lambda: (some(3), Point(2)))
def named_tuple(x, p):
    q = p._replace(x=x + p.y)
    return q.x, q._asdict()["y"], p._fields, p == (2, 3), Point._make([1, 2]), q[1]


@programs(lambda: (some(3),))
def named_tuple_subclass(x):
    n = Named(x, 4)
    return n.total(), type(n).__name__, isinstance(n, Point), n[1]


@programs(lambda: (some(3), Named(2, 4)))
def named_tuple_subclass_as_an_argument(x, n):
    a, b = n
    return x * n.total() + a + b


@programs(lambda: (some(3),))
def named_tuple_with_its_own_new(x):
    s = Scaled(x)
    return s.a, s.b, s._fields


@programs(lambda: (some(3),))
def named_tuple_made_inside(x):
    Pair = collections.namedtuple("Pair", "a b", defaults=[5])  # noqa: PYI024
    p = Pair(x)
    return p.a + p.b, Pair._field_defaults


@programs(lambda: (some(3), time.struct_time((2024, 1, 2, 3, 4, 5, 6, 7, 0))))
def struct_time(x, t):
    return x + t.tm_year, t[1], t.tm_mday, len(t), t.n_fields


@programs(lambda: (some(3, 4),))
def torch_return_types(x):
    top = torch.topk(x, 2)
    values, indices = x.max(0)
    return top.values + 1, top[1], values, indices, type(top).__name__, torch.sort(x).indices, top.n_fields


@programs(lambda: (torch.topk(some(3, 4), 2),))
def torch_return_type_as_an_argument(top):
    return top.values + 1, top.indices, len(top)


@programs(lambda: (some(3),))
def torch_return_type_made(x):
    made = torch.return_types.max((x, x + 1))
    return made.values + made.indices


@programs(lambda: (some(3), {"k": 2}))
def typed_dict(x, options: Options):
    made: Options = {"k": 3, "x": x}
    other = Wanted(k=4)
    return made["x"] * made["k"] + options["k"], other["k"], type(other) is dict, Options.__total__


@programs(lambda: (some(3),))
def frozen_dataclass(x):
    f = Frozen(x)
    g = f.moved(3)
    f.sizes.append(3)
    return f.x * g.k, f.sizes, dataclasses.asdict(g)["k"], g == g, [f.name for f in dataclasses.fields(g)]


@programs(lambda: (some(3), Frozen(2)))
def frozen_dataclass_as_an_argument(x, f):
    return x * f.x + f.k + sum(f.sizes), f.moved(1).k


@programs(lambda: (some(3), Frozen(2)))
def frozen_dataclass_refuses(x, f):
    try:
        f.k = 3
    except dataclasses.FrozenInstanceError as e:
        return x + 1, str(e)
    return x


@programs(lambda: (some(3),))
def ordered_dataclass(x):
    a, b = Item(1, "z"), Item(2, "a")
    return (
        x + a.made,
        a < b,
        max(a, b).name,
        sorted([b, a])[0].rank,
        dataclasses.astuple(b),
        dataclasses.is_dataclass(a),
    )


@programs(lambda: (some(3),))
def dataclass_made_inside(x):
    @dataclasses.dataclass
    class Local:
        a: Any
        b: int = 4

    made = Local(x)
    return made.a + made.b, repr(Local(1))[-16:]


@programs(lambda: (some(3),))
def output_of_a_model(x):
    out = Output(first=x + 1)
    out.second = x
    return out["first"], out[0], list(out.keys()), out.second


@programs(lambda: (Output(first=some(3), second=2),))
def output_of_a_model_as_an_argument(out):
    return out.first + out.second, out["second"], len(out)


@programs(lambda: (some(3), Colour.RED))
def enums(x, c):
    return x * c.value, c.name, c is Colour.RED, Colour["BLUE"].scale, Colour(2), [m.name for m in Colour], len(Colour)


@programs(lambda: (some(3), Colour.RED))
def enum_members_as_keys(x, c):
    table = {Colour.RED: 2, Colour.BLUE: 3}
    return x * table[c] + table[Colour.default()], c in table, c == Colour.BLUE, c.scale


@programs(lambda: (some(3), Level.HIGH))
def integer_enums(x, level):
    return x * level + Level.LOW, level > 3, level + 1, max(Level), f"{Text.ONE.value}", Text.ONE == "one", Level(1)


@programs(lambda: (some(3), Flags.A))
def flags(x, f):
    both = f | Flags.B
    return x + both.value, Flags.A in both, both & Flags.B, bool(f & Flags.B), ~f == Flags.B


@programs(lambda: (some(3),))
def unknown_member_of_an_enum(x):
    try:
        Colour(9)
    except ValueError as e:
        return x + 1, str(e)
    return x


@programs(lambda: (some(3),))
def list_subclass(x):
    c = Chained([1, 2])
    c.append(3)
    return x + c[0], c[1:], len(c), list(c)


@programs(lambda: (some(3), Chained([1, 2])))
def list_subclass_as_an_argument(x, c):
    c.append(x)
    return c[0] + c[2]


@programs(lambda: (some(3),))
def heaps(x):
    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    return x + heapq.heappop(h), h[0], heapq.nlargest(2, h), heapq.nsmallest(1, [3, 2]), heapq.heappushpop(h, 3)


@programs(lambda: (some(3),))
def bisected(x):
    items = [1, 3, 5]
    bisect.insort(items, 4)
    return x + bisect.bisect(items, 3), bisect.bisect_left(items, 3), items


@programs(lambda: (some(3),))
def iterator_tools(x):
    return (
        x + sum(itertools.islice(itertools.count(3, 2), 4)), list(itertools.chain([1], (2,), "a")), list(itertools.product([1, 2], "ab")),
        list(itertools.zip_longest([1], [2, 3], fillvalue=0)), list(itertools.combinations(range(3), 2)), list(itertools.repeat(2, 3)),
        list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])), list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.starmap(pow, [(2, 3), (3, 2)])), list(itertools.pairwise("abc")), list(itertools.permutations([1, 2])),
    )  # fmt: skip


@programs(lambda: (some(3),))
def more_iterator_tools(x):
    a, b = itertools.tee([1, 2, 3])
    next(a)
    cycle = itertools.cycle("ab")
    groups = [(k, len(list(g))) for k, g in itertools.groupby("aabccc")]
    return (
        x + next(a), list(b), [next(cycle) for _ in range(3)], groups, list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.filterfalse(None, [0, 1, 2])), list(itertools.chain.from_iterable([[1], [2]])),
    )  # fmt: skip


@programs(lambda: (some(3), ["a", "b"]))
def zipped(x, names):
    pairs = list(zip(names, range(9), [x, x]))
    try:
        list(zip(names, [1], strict=True))
    except ValueError as e:
        return pairs[1][2] + pairs[1][1], str(e)
    return x


@programs(lambda: (some(3),))
def enumerated_and_filtered(x):
    odd = list(filter(lambda v: v % 2, range(6)))
    for i, k in enumerate(odd, start=1):
        x = x + i * k
    return x, list(filter(None, [0, "", 3])), any(v > 4 for v in odd), all([]), sum([[1], [2]], [])


@programs(lambda: (some(3),))
def comprehensions(x):
    return (
        [x + i for i in range(2) if i], {i: j for i in range(2) for j in range(i + 1)}, {i % 2 for i in range(4)},
        sum(i * j for i in range(3) for j in range(3) if i != j), [[j for j in range(i)] for i in range(3)],
    )  # fmt: skip


@programs(lambda: (some(3), (1, (2, [3]), {"k": (4,)})))
def nested_structures(x, nest):
    one, (two, [three]), table = nest
    return (
        x + one + two + three + table["k"][0],
        nest[1][1] is not None,
        (1, (2,)) < (1, (3,)),
        hash((1, (2, "a"))) == hash((1, (2, "a"))),
    )
