"""Containers of the standard library, wherever they come from: made in the function, passed, global, an attribute, or
made before a graph break. Each body is compared with eager in value, type, order, exception and effects on the container.
"""

from __future__ import annotations

import collections
import enum
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fuselens
from fuselens.inputs import comparison

Point = namedtuple("Point", "x y z", defaults=[7])
GLOBAL: Any = None


class Holder:
    c: Any = None


HOLDER = Holder()
WHERE = ("local", "argument", "global", "attribute", "after a break", "before a break")


def shown(value: Any) -> Any:
    """A value in terms that :func:`comparison.differ` compares with types and order."""
    if isinstance(value, dict):
        factory = value.default_factory if isinstance(value, defaultdict) else None
        return type(value).__name__, factory, [(shown(k), shown(v)) for k, v in value.items()]
    if isinstance(value, types.MappingProxyType):
        return "mappingproxy", shown(value.copy())
    if isinstance(value, (set, frozenset, deque)):
        return type(value).__name__, getattr(value, "maxlen", None), [shown(v) for v in value]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [shown(v) for v in value]
    return value


def run(function: Any, make: Callable[[], Any]) -> Any:
    """(what the function gives or raises, the container afterwards)"""
    global GLOBAL
    container = GLOBAL = HOLDER.c = make()
    try:
        result = function(container, torch.tensor([1.0, 2.0]))
    except Exception as e:  # noqa: BLE001 - exceptions are compared too
        result = type(e), str(e)
    return shown(result), shown(container)


def everywhere(make: Callable[[], Any], body: Callable[[Any, torch.Tensor], Any], where: str) -> Any:
    def local(c: Any, x: torch.Tensor) -> Any:
        d = make()
        return body(d, x + 1), d

    def argument(c: Any, x: torch.Tensor) -> Any:
        return body(c, x + 1)

    def in_global(c: Any, x: torch.Tensor) -> Any:
        return body(GLOBAL, x + 1)

    def attribute(c: Any, x: torch.Tensor) -> Any:
        return body(HOLDER.c, x + 1)

    def after(c: Any, x: torch.Tensor) -> Any:
        d = make()
        fuselens.graph_break()
        return body(d, x + 1), d

    def before(c: Any, x: torch.Tensor) -> Any:
        d = make()
        result = body(d, x + 1)
        e = make()
        fuselens.graph_break()
        again = body(e, x + 2)
        return result, d, again, e

    return dict(zip(WHERE, (local, argument, in_global, attribute, after, before), strict=True))[where]


def agrees(make: Callable[[], Any], body: Callable[[Any, torch.Tensor], Any], where: str, breaks: int | None) -> None:
    function = everywhere(make, body, where)
    compiled = fuselens.compile(function, backend="eager")
    for _ in range(2):
        difference = comparison.differ(run(function, make), run(compiled, make), body.__name__)
        assert difference is None, difference
    found = compiled.__fuselens__.recorder.report.breaks
    if breaks is not None:
        expected = breaks + ("break" in where)
        assert len(found) <= expected, [f"{b.span}: {b.code} {b.message}" for b in found]


CASES: list[Any] = []


def on(make: Callable[[], Any], breaks: int | None = 0) -> Callable[[Any], Any]:
    """Registers a body for a kind of container; ``breaks`` is how many it may have, None for any number."""

    def register(body: Any) -> Any:
        CASES.append(pytest.param(make, body, breaks, id=body.__name__))
        return body

    return register


# --- sets -------------------------------------------------------------------------------------------------------


def numbers() -> set[Any]:
    return {15, 7, 3, 23}


def words() -> set[Any]:
    return {"one", "two", "three", "four", "five"}


def frozen() -> frozenset[Any]:
    return frozenset({15, 7, 3, 23})


def tensors() -> set[Any]:
    return {torch.tensor(1.0)}


@on(numbers)
def set_len_and_truth(c: Any, x: Any) -> Any:
    return len(c), bool(c), not c, x * len(c)


@on(numbers)
def set_members(c: Any, x: Any) -> Any:
    return 3 in c, 4 in c, 4 not in c, "a" in c, 3.0 in c, True in c


@on(numbers)
def set_iterates(c: Any, x: Any) -> Any:
    return [x * i for i in c], list(c), tuple(c), sorted(c), sum(c), min(c), max(c)


@on(words)
def set_of_words_iterates(c: Any, x: Any) -> Any:
    return list(c), sorted(c, key=len), "".join(sorted(c)), [w.upper() for w in c]


@on(numbers)
def set_add(c: Any, x: Any) -> Any:
    c.add(31)
    c.add(3)
    return 31 in c, len(c)


@on(numbers)
def set_remove(c: Any, x: Any) -> Any:
    c.remove(7)
    c.discard(99)
    c.discard(3)
    return sorted(c)


@on(numbers, None)
def set_remove_missing(c: Any, x: Any) -> Any:
    c.remove(8)


@on(numbers)
def set_remove_missing_caught(c: Any, x: Any) -> Any:
    try:
        c.remove(8)
    except KeyError as e:
        return x + e.args[0]


@on(numbers, 1)
def set_pop(c: Any, x: Any) -> Any:
    y = x * 2
    return c.pop(), y


@on(lambda: {4})
def set_pop_only(c: Any, x: Any) -> Any:
    return x * c.pop(), len(c)


@on(set)
def set_pop_empty(c: Any, x: Any) -> Any:
    try:
        return c.pop()
    except KeyError as e:
        return str(e)


@on(numbers)
def set_clear(c: Any, x: Any) -> Any:
    c.clear()
    c.add(5)
    return list(sorted(c))


@on(numbers)
def set_update(c: Any, x: Any) -> Any:
    c.update([1, 2], (3, 4), {5: 6}, range(3))
    return sorted(c)


@on(numbers)
def set_methods(c: Any, x: Any) -> Any:
    return (
        sorted(c.union([1], {2})), sorted(c.intersection([3, 7, 8])), sorted(c.difference([3])),
        sorted(c.symmetric_difference([3, 4])), c.issubset(range(30)), c.issuperset([3]), c.isdisjoint([4]),
        sorted(c.copy()), c.copy() is c,
    )  # fmt: skip


@on(numbers)
def set_operators(c: Any, x: Any) -> Any:
    return (
        sorted(c | {1}), sorted(c & {3, 7}), sorted(c - {3}), sorted(c ^ {3, 4}), c <= {3}, c < c, c >= {3}, c > {3},
        c == {3, 7, 15, 23}, c != {3}, c == frozenset(c), c == [3], type(c | frozenset()),
    )  # fmt: skip


@on(numbers)
def set_in_place(c: Any, x: Any) -> Any:
    c |= {1, 2}
    c &= {1, 3, 7}
    c -= {7}
    c ^= {3, 9}
    return sorted(c)


@on(numbers)
def set_in_place_methods(c: Any, x: Any) -> Any:
    c.intersection_update([3, 7, 15], (3, 7))
    c.difference_update([3])
    c.symmetric_difference_update([7, 9])
    return sorted(c)


@on(frozen)
def frozenset_everything(c: Any, x: Any) -> Any:
    return c | {1}, c & {3}, c - {3}, type(c | {1}), 3 in c, list(c), hash(c) == hash(frozenset(c)), c.copy() is c


@on(frozen, None)
def frozenset_is_immutable(c: Any, x: Any) -> Any:
    c.add(1)


@on(numbers)
def set_comprehension(c: Any, x: Any) -> Any:
    return {i % 5 for i in c}, {i for i in sorted(c) if i > 5}, frozenset(i for i in c)


@on(numbers)
def set_iterator_notices_growth(c: Any, x: Any) -> Any:
    try:
        for i in c:
            c.add(i + 100)
    except RuntimeError as e:
        return str(e)


@on(numbers, None)
def set_unhashable(c: Any, x: Any) -> Any:
    c.add([1])


@on(numbers)
def set_unhashable_caught(c: Any, x: Any) -> Any:
    try:
        c.add([1])
    except TypeError as e:
        return str(e)


@on(tensors)
def set_of_tensors(c: Any, x: Any) -> Any:
    y = x + 1
    c.add(y)
    c.add(y)
    return len(c), y in c, x in c


@on(lambda: {(1, 2), (3, 4), "a", None, 2.5, b"x"})
def set_of_mixed(c: Any, x: Any) -> Any:
    return (1, 2) in c, (1, 3) in c, None in c, 2.5 in c, b"x" in c, len(c)


@on(lambda: set(range(100)))
def set_of_many(c: Any, x: Any) -> Any:
    d = {i for i in c if i % 3}
    d -= {1, 2}
    return list(d), x * len(d)


@on(numbers)
def set_nested(c: Any, x: Any) -> Any:
    return {frozenset(c), frozenset({1})} == {frozenset({1}), frozenset(c)}, {1, 3} in {frozenset({1, 3})}


@on(numbers)
def set_unpacks(c: Any, x: Any) -> Any:
    a, *b = c
    return a, b, [*c], {*c, 1}, (*c,)


@on(numbers)
def set_prints(c: Any, x: Any) -> Any:
    return str(c), repr(c), f"{c}", str(set()), str(frozenset())


# --- dictionaries -----------------------------------------------------------------------------------------------


def table() -> dict[Any, Any]:
    return {"a": 1, "b": 2.5, 3: "three", None: None, (1, "x"): [1, 2]}


def tensor_table() -> dict[Any, Any]:
    return {"w": torch.ones(2), "b": torch.zeros(2)}


@on(table)
def dict_reads(c: Any, x: Any) -> Any:
    return c["a"] * x, c.get("q"), c.get("q", 5), c.get("b"), len(c), "a" in c, "q" in c, c[(1, "x")], bool(c)


@on(table)
def dict_views(c: Any, x: Any) -> Any:
    return list(c), list(c.keys()), list(c.values()), list(c.items()), len(c.keys()), "a" in c.keys(), 1 in c.values()


@on(table)
def dict_views_as_sets(c: Any, x: Any) -> Any:
    k = c.keys()
    return (
        k & {"a", "z"}, sorted(k - {None, (1, "x"), 3}), sorted((k & {"a", "b"}) | {"z"}), k == set(c), k >= {"a"},
        k.isdisjoint(["q"]), sorted({"a": 1, "q": 2}.keys() ^ ["a"]), ("a", 1) in c.items(), ("a", 2) in c.items(),
        sorted({"a": 1}.items() & {("a", 1)}),
    )  # fmt: skip


@on(table)
def dict_writes(c: Any, x: Any) -> Any:
    c["a"] = x
    c["new"] = x * 2
    del c["b"]
    c[True] = "one"
    c[3.0] = "replaced"
    return list(c)


@on(table)
def dict_pops(c: Any, x: Any) -> Any:
    return c.pop("a"), c.pop("q", None), c.popitem(), list(c)


@on(table, None)
def dict_pop_missing(c: Any, x: Any) -> Any:
    c.pop("q")


@on(table, None)
def dict_missing(c: Any, x: Any) -> Any:
    c["a"] = 2
    return c["q"]


@on(table)
def dict_missing_caught(c: Any, x: Any) -> Any:
    try:
        c["q"]
    except KeyError as e:
        try:
            del c["r"]
        except KeyError as f:
            return str(e), repr(f), e.args


@on(dict)
def dict_popitem_empty(c: Any, x: Any) -> Any:
    try:
        c.popitem()
    except KeyError as e:
        return str(e)


@on(table)
def dict_setdefault(c: Any, x: Any) -> Any:
    return c.setdefault("a", 5), c.setdefault("n", [x]), c.setdefault("m"), list(c)


@on(table)
def dict_update(c: Any, x: Any) -> Any:
    c.update({"a": 9}, k=x)
    c.update([("l", 1), ["m", 2]])
    c.update(zip("no", (3, 4)))
    c.update()
    return list(c.items())


@on(table, None)
def dict_update_bad(c: Any, x: Any) -> Any:
    c.update([(1, 2, 3)])


@on(table)
def dict_merge(c: Any, x: Any) -> Any:
    d = c | {"a": 7, "z": x}
    c |= {"y": 1}
    c |= [("w", 2)]
    return d, list(c), {**c, "v": 3}, {**{"a": 1}, **{"a": 2}}


@on(table)
def dict_copies(c: Any, x: Any) -> Any:
    d = c.copy()
    e = dict(c)
    d["a"] = x
    return c["a"], d["a"], e == c, d is c, dict(c, a=4)["a"], dict(a=x)["a"]


@on(table)
def dict_clears(c: Any, x: Any) -> Any:
    c.clear()
    return c, len(c)


@on(table)
def dict_fromkeys(c: Any, x: Any) -> Any:
    return dict.fromkeys(c, 0), dict.fromkeys("abc"), dict.fromkeys([x.shape[0], 1], x), {}.fromkeys(range(2))


@on(table)
def dict_compares(c: Any, x: Any) -> Any:
    d = dict(c)
    return c == d, c != d, c == {}, c == 3, c is d, {1: x} == {1: x}, {1: 1} == {True: 1.0}, c == OrderedDict(d)


@on(table)
def dict_reverses(c: Any, x: Any) -> Any:
    return list(reversed(c)), list(reversed(c.items())), list(reversed(c.values()))


@on(table)
def dict_comprehension(c: Any, x: Any) -> Any:
    return {k: v for k, v in c.items() if k}, {str(k): x for k in c}, {v: k for k, v in {"a": 1, "b": 1}.items()}


@on(tensor_table)
def dict_of_tensors(c: Any, x: Any) -> Any:
    return {k: v + x for k, v in c.items()}, sum(c.values()), [t for t in c.values()]


@on(dict)
def dict_keys_by_identity(c: Any, x: Any) -> Any:
    y = x + 1
    c[y] = 1
    c[(y, 2)] = 2
    c[len] = 3
    c[torch.float32] = 4
    c[int] = 5
    return c[y], c[(y, 2)], x in c, c[len], c[torch.float32], c[int], [type(k) for k in c][2:]


@on(table)
def dict_iterates_while_changing(c: Any, x: Any) -> Any:
    try:
        for k in c:
            c[(k, k)] = 1
    except RuntimeError as e:
        return str(e)


@on(table)
def dict_unpacks(c: Any, x: Any) -> Any:
    a, b, *rest = c
    (k, v), *_ = c.items()
    return a, b, rest, k, v, [*c], [*c.values()]


@on(table)
def dict_prints(c: Any, x: Any) -> Any:
    return str(c), repr(c.keys()), repr(c.items()), f"{c!r:>80}", "%s" % c, "{}".format(c), str(OrderedDict(c))


@on(table)
def dict_methods_by_name(c: Any, x: Any) -> Any:
    c.__setitem__("s", x)
    c.__delitem__("a")
    return c.__getitem__("s"), c.__contains__("a"), c.__len__(), list(c.__iter__()), c.__eq__({}), c.__or__({"q": 1})


@on(lambda: {torch.ones(2): 1, len: 2, (torch.zeros(1), 3): 4})
def dict_existing_keys_by_identity(c: Any, x: Any) -> Any:
    first = list(c)[0]
    return first + x, c[first], c[len], list(c.values()), x in c, len(c)


# --- other dictionaries -----------------------------------------------------------------------------------------


def ordered() -> Any:
    return OrderedDict([("a", 1), ("b", 2), ("c", 3)])


@on(ordered)
def ordered_moves(c: Any, x: Any) -> Any:
    c.move_to_end("a")
    c.move_to_end("c", last=False)
    return list(c), list(reversed(c)), type(c)


@on(ordered)
def ordered_pops(c: Any, x: Any) -> Any:
    return c.popitem(), c.popitem(last=False), c.pop("z", x), list(c)


@on(ordered, None)
def ordered_move_missing(c: Any, x: Any) -> Any:
    c.move_to_end("q")


@on(ordered)
def ordered_compares(c: Any, x: Any) -> Any:
    d = OrderedDict(reversed(c.items()))
    return c == d, c == dict(d), d != c, c == c.copy(), type(c.copy()), type(c | {"z": 1}), c | {"z": 1}, OrderedDict(c)


@on(ordered)
def ordered_writes(c: Any, x: Any) -> Any:
    c["b"] = x
    c["d"] = x * 2
    del c["a"]
    c.update(a=4)
    return OrderedDict.fromkeys("ab", 3), list(c)


@on(lambda: defaultdict(list, a=[1]))
def defaultdict_makes(c: Any, x: Any) -> Any:
    c["a"].append(x)
    c["b"].append(x * 2)
    c["b"].append(3)
    return c.get("z"), "z" in c, len(c), c.default_factory


@on(lambda: defaultdict(int))
def defaultdict_counts(c: Any, x: Any) -> Any:
    for letter in "mississippi":
        c[letter] += 1
    return dict(c), c.copy(), type(c.copy()), str(c), c == {"m": 1}


@on(lambda: defaultdict(None, a=1))
def defaultdict_without_factory(c: Any, x: Any) -> Any:
    try:
        return c["q"]
    except KeyError as e:
        return str(e)


@on(lambda: defaultdict(five))
def defaultdict_with_lambda(c: Any, x: Any) -> Any:
    return c["a"] * x, dict(c)


# --- deques -----------------------------------------------------------------------------------------------------


def five() -> int:
    return 5


def queue() -> Any:
    return deque([1, 2, 3, 4])


@on(queue)
def deque_ends(c: Any, x: Any) -> Any:
    c.append(x)
    c.appendleft(0)
    return c.popleft(), c.pop(), len(c), c[0], c[-1], list(c)


@on(queue)
def deque_rotates(c: Any, x: Any) -> Any:
    c.rotate()
    a = list(c)
    c.rotate(-2)
    return a, list(c), c.rotate(10)


@on(queue)
def deque_extends(c: Any, x: Any) -> Any:
    c.extend([5, 6])
    c.extendleft((0, -1))
    c += [9]
    return list(c), list(reversed(c)), c.index(3), c.count(9), 3 in c


@on(queue)
def deque_changes(c: Any, x: Any) -> Any:
    c.insert(3, x)
    c.remove(3)
    c[0] = 7
    del c[2]
    c.reverse()
    return list(c), c.copy() == c, type(c.copy()), c.maxlen, c + deque([1]), c * 2


@on(lambda: deque([1, 2, 3], maxlen=3))
def deque_bounded(c: Any, x: Any) -> Any:
    c.append(4)
    a = list(c)
    c.appendleft(0)
    b = list(c)
    c.extend(range(5))
    return a, b, list(c), c.maxlen, c.copy().maxlen, deque(c, 2), str(c)


@on(deque)
def deque_empty(c: Any, x: Any) -> Any:
    found = []
    for operation in (c.pop, c.popleft):
        try:
            operation()
        except IndexError as e:
            found.append(str(e))
    return found, bool(c), len(c)


@on(queue, None)
def deque_remove_missing(c: Any, x: Any) -> Any:
    c.remove(9)


@on(lambda: deque([1, 2], 2), None)
def deque_insert_full(c: Any, x: Any) -> Any:
    c.insert(0, 1)


@on(queue)
def deque_breadth_first(c: Any, x: Any) -> Any:
    order = []
    c = deque([1])
    while c:
        n = c.popleft()
        order.append(n)
        if n < 8:
            c.extend([2 * n, 2 * n + 1])
    return order, x * len(order)


# --- named tuples -----------------------------------------------------------------------------------------------


def point() -> Any:
    return Point(1, 2.5)


@on(point)
def namedtuple_reads(c: Any, x: Any) -> Any:
    a, b, d = c
    return c.x * x, c[1], c[-1], a, b, d, len(c), c._fields, list(c), 2.5 in c, c.index(7), c.count(1), c[:2]


@on(point)
def namedtuple_methods(c: Any, x: Any) -> Any:
    return (
        c._replace(y=x),
        c._asdict(),
        Point._make([x, 2, 3]),
        Point(*c),
        Point(x=1, y=2),
        Point._fields,
        Point._field_defaults,
    )


@on(point)
def namedtuple_compares(c: Any, x: Any) -> Any:
    return c == (1, 2.5, 7), c == Point(1, 2.5, 7), c < Point(2, 0), isinstance(c, tuple), type(c), {c: 1}[(1, 2.5, 7)]


@on(point)
def namedtuple_prints(c: Any, x: Any) -> Any:
    return str(c), f"{c}", repr(c), c + (1,), c * 2


@on(point)
def namedtuple_is_immutable(c: Any, x: Any) -> Any:
    try:
        c.x = 3
    except AttributeError as e:
        return str(e)


# --- lists and tuples -------------------------------------------------------------------------------------------


def items() -> list[Any]:
    return [5, 3, 8, 1, 9, 2]


@on(items)
def list_slices(c: Any, x: Any) -> Any:
    return c[1:3], c[::-1], c[::2], c[-2:], c[10:], c[slice(1, 4)], c[slice(None, None, -2)]


@on(items)
def list_assigns_slices(c: Any, x: Any) -> Any:
    c[1:3] = [x]
    c[::2] = "abc"
    c[len(c) :] = (1, 2)
    c[:0] = iter([7])
    return list(c)


@on(items)
def list_deletes(c: Any, x: Any) -> Any:
    del c[0], c[-1]
    del c[1:2]
    del c[::2]
    return list(c)


@on(items, None)
def list_extended_slice_mismatch(c: Any, x: Any) -> Any:
    c[::2] = [1]


@on(items)
def list_sorts(c: Any, x: Any) -> Any:
    a = sorted(c)
    b = sorted(c, reverse=True)
    d = sorted(c, key=lambda v: (v % 3, v))
    e = sorted(c, key=lambda v: v % 3, reverse=True)
    c.sort(key=lambda v: -v)
    return a, b, d, e, c.sort(), list(c)


@on(items, None)
def list_sorts_unordered(c: Any, x: Any) -> Any:
    c.append("a")
    c.sort()


@on(items)
def list_methods(c: Any, x: Any) -> Any:
    c.remove(8)
    c.insert(100, 4)
    c.insert(-100, 0)
    c.extend(c[:1])
    return c.index(1), c.count(5), c.pop(), c.pop(0), c.copy(), c.reverse(), list(c)


@on(items)
def list_extends_itself(c: Any, x: Any) -> Any:
    c.extend(c)
    c += c
    c *= 2
    return len(c), c * 0, 2 * [x]


@on(items)
def list_errors(c: Any, x: Any) -> Any:
    found = []
    for f in (
        lambda: c[100], lambda: c.pop(100), lambda: c.remove(77), lambda: c.index(77), lambda: c.index(5, 1), lambda: [].pop(),
        lambda: c["a"], lambda: c + (1,), lambda: (1,) + c, lambda: c.__delitem__(100), lambda: c.__setitem__(99, 1),
        lambda: (1, 2)[5], lambda: (1,).index(3), lambda: c < (1,), lambda: [1] < ["a"], lambda: c * "a", lambda: range(3)[9],
    ):  # fmt: skip
        try:
            f()
        except (IndexError, ValueError, TypeError) as e:
            found.append((type(e).__name__, str(e)))
    return found


@on(items)
def list_compares(c: Any, x: Any) -> Any:
    return (
        c == [5, 3],
        c < [6],
        c >= [5, 3],
        c != list(c),
        [x] == [x],
        [x, 1] == [x, 2],
        c == tuple(c),
        [] < [x],
        c <= c,
    )


@on(items)
def list_members(c: Any, x: Any) -> Any:
    return 3 in c, 4 in c, x in [x], None in [None], [1] in [[1]], "a" in ("a", x)


@on(items)
def list_unpacks(c: Any, x: Any) -> Any:
    a, b, *d = c
    *e, f = c
    g, *h, i = c
    (j, k), [m, *n] = (1, 2), "xyz"
    return a, b, d, e, f, g, h, i, j, k, m, n, [*c, *c], (*c, x), {*c}, max(*c)


@on(items)
def list_aliases(c: Any, x: Any) -> Any:
    d = c
    d.append(x)
    e = [c] * 2
    e[0].append(1)
    return c is d, e[0] is e[1], len(c), c[-2] is x


@on(lambda: (1, (2, 3), "a"))
def tuple_everything(c: Any, x: Any) -> Any:
    return (
        c + (x,),
        c * 2,
        c[::-1],
        c.index("a"),
        c.count(1),
        hash(c) == hash((1, (2, 3), "a")),
        c < (2,),
        (2, 3) in c,
        len(c),
    )


@on(lambda: range(10, 0, -3))
def range_everything(c: Any, x: Any) -> Any:
    return (
        list(c), c[1], c[-1], c[1:3], c[::-1], len(c), 7 in c, 8 in c, c.index(4), c.count(10), c.start, c.stop, c.step,
        c == range(10, -1, -3), c == [10], list(reversed(c)), bool(range(0)), str(c), hash(c) == hash(range(10, 0, -3)),
    )  # fmt: skip


@on(lambda: slice(1, 5, 2))
def slice_everything(c: Any, x: Any) -> Any:
    return (
        c.start,
        c.stop,
        c.step,
        c.indices(4),
        list(range(10))[c],
        (1, 2, 3)[c],
        "abcdef"[c],
        x[slice(0, 1)],
        str(c),
        c == slice(1, 5, 2),
    )


@on(lambda: collections.ChainMap({"a": 1}, {"a": 2, "b": 3}))
def chainmap_reads(c: Any, x: Any) -> Any:
    return c["a"], c["b"], c.get("q"), "b" in c, len(c)


@on(lambda: collections.Counter("abracadabra"))
def counter_reads(c: Any, x: Any) -> Any:
    return c["a"], c["q"], c.most_common(2), c.total(), sorted(c), list(c.elements())[:3], len(c)


@on(collections.Counter)
def counter_counts(c: Any, x: Any) -> Any:
    c.update("abca")
    c["z"] += 2
    c.subtract({"a": 1})
    return c["a"], dict(c), c + c, c - collections.Counter("a")


def proxy() -> Any:
    return types.MappingProxyType({"a": 1, "b": [2]})


@on(proxy)
def proxies_read(c: Any, x: Any) -> Any:
    return (
        x * c["a"], len(c), "a" in c, "q" in c, list(c), c.get("q", 5), list(c.items()), bool(c), list(reversed(c)), {**c},
        dict(c), c.copy(), list(c.keys()), list(c.values()), type(c), isinstance(c, collections.abc.Mapping), [k for k in c],
    )  # fmt: skip


@on(proxy)
def proxies_compare_and_combine(c: Any, x: Any) -> Any:
    same = {"a": 1, "b": [2]}
    both = dict(same)
    both |= c
    return x, c == same, same == c, c != {}, c == c.copy(), c | {"z": 3}, {"z": 3} | c, both, c == 3


@on(proxy)
def proxies_as_text(c: Any, x: Any) -> Any:
    return x, repr(c), str(c), f"{c}"


@on(proxy)
def proxies_refuse(c: Any, x: Any) -> Any:
    said = []
    for change in (lambda: c.__setitem__("a", 2), lambda: c["q"], lambda: c.pop("a")):
        try:
            change()
        except (TypeError, KeyError, AttributeError) as e:
            said.append(type(e))
    try:
        c["a"] = 2
    except TypeError as e:
        said.append(str(e))
    try:
        del c["a"]
    except TypeError as e:
        said.append(str(e))
    return x, said


@on(dict)
def proxies_show_changes(c: Any, x: Any) -> Any:
    seen, keys = types.MappingProxyType(c), c.keys().mapping
    c["x"] = x
    return seen["x"], len(keys), seen == c, seen, list(types.MappingProxyType(seen))


@on(lambda: defaultdict(list))
def proxies_of_others(c: Any, x: Any) -> Any:
    seen = types.MappingProxyType(c)
    seen["q"].append(1)
    said = []
    for wrong in (3, None, [1], (1,)):
        try:
            types.MappingProxyType(wrong)  # type: ignore[arg-type]
        except TypeError as e:
            said.append(str(e))
    try:
        types.MappingProxyType()  # type: ignore[call-arg]
    except TypeError as e:
        said.append(str(e))
    return x, seen.get("w"), len(seen), said


class Colour(enum.Enum):
    RED = 1
    BLUE = 2
    CRIMSON = 1

    @classmethod
    def named(cls, name: str) -> Any:
        return cls.__members__[name]


@on(dict)
def members_of_enumerations(c: Any, x: Any) -> Any:
    found = Colour.__members__
    return (
        x * found["BLUE"].value, len(found), "RED" in found, "GREEN" in found, [(k, m.value) for k, m in found.items()], list(found),
        list(found.keys()), list(found.values()), found.get("GREEN"), Colour.named("CRIMSON"), Colour.RED.__class__.__members__["RED"],
        found,
    )  # fmt: skip


def test_proxies_are_guarded() -> None:
    held: dict[str, Any] = {"a": 1}
    f = lambda c, x: x * c["a"] + len(c)  # noqa: E731
    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    x, seen = torch.ones(2), types.MappingProxyType(held)
    for change in ({}, {"a": 2}, {"b": 3}):
        held.update(change)
        assert torch.equal(compiled(seen, x), f(seen, x))
    assert torch.equal(compiled({"a": 5}, x), f({"a": 5}, x))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("make", "body", "breaks"), CASES)
def test_containers(make: Any, body: Any, breaks: int | None, where: str) -> None:
    agrees(make, body, where, breaks)


@pytest.mark.parametrize("where", WHERE)
def test_named_tuples_made_by_their_methods(where):
    def body(p: Any, x: torch.Tensor) -> Any:
        q = p._replace(x=x, z=2)
        r = Point._make([x * 2, q.x, 1])
        try:
            Point._make([1])
        except TypeError as e:
            message = str(e)
        try:
            p._replace(w=1)
        except (TypeError, ValueError) as e:  # the former from 3.13 on
            message += str(e)
        return q, r, q.x + r.y, r._asdict(), message

    agrees(lambda: Point(1, 2), body, where, breaks=0)
