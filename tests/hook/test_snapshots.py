"""What guards remember of a pass: every change is noticed afterwards that is noticed without a memory."""

from __future__ import annotations

import collections
import gc
import random
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from fuselens.capture.hook import _hook as h

LOCAL = (0, h.ROOT_LOCAL, 0)


class Node:
    """Holds a table, a list, a tuple, a function, a method, a cell and a constant."""

    def __init__(self) -> None:
        self.table = {"a": 1.5, "b": "text"}
        self.hooks: dict[str, Any] = collections.OrderedDict()
        self.list = [Leaf(), Leaf()]
        self.tuple = (Leaf(), Leaf())
        self.function = make(3)
        self.method = self.list[0].method
        self.cell = types.CellType(7)
        self.constant = 1234567
        self.set: set[int] = set()

    def late(self) -> None: ...


class Leaf:
    def __init__(self) -> None:
        self.value = 1

    def method(self) -> int:
        return self.value


class Other:
    """Like a leaf in everything but the type."""

    def __init__(self) -> None:
        self.value = 1


def make(n: int) -> types.FunctionType:
    def inner(a: int = 5, *, k: int = 6) -> Any:
        return n, a, k

    return inner


def program(node: Node) -> h.Guards:
    nodes = [LOCAL, (0, h.INSTANCE_DICT, None)]

    def add(parent: int, kind: int, key: Any = None) -> int:
        nodes.append((parent, kind, key))
        return len(nodes) - 1

    at = {name: add(1, h.DICT_ITEM, name) for name in vars(node)}
    first, second = add(at["list"], h.SEQ_ITEM, 0), add(at["list"], h.SEQ_ITEM, 1)
    third = add(at["tuple"], h.SEQ_ITEM, 1)
    code, defaults = add(at["function"], h.FUNC_CODE), add(at["function"], h.FUNC_DEFAULTS)
    keyword, closure = add(at["function"], h.FUNC_KWDEFAULTS), add(at["function"], h.FUNC_CLOSURE)
    free = add(add(closure, h.SEQ_ITEM, 0), h.CELL_CONTENTS)
    attribute = add(add(first, h.INSTANCE_DICT), h.DICT_ITEM, "value")
    checks = [
        (0, h.TYPE_IS, Node),
        (1, h.MISSING, "late"),
        (at["table"], h.TYPE_IS, dict),
        (at["table"], h.DICT_KEYS_ARE, ("a", "b")),
        (add(at["table"], h.DICT_ITEM, "a"), h.EQUALS, 1.5),
        (at["hooks"], h.LENGTH_IS, 0),
        (at["set"], h.LENGTH_IS, 0),
        (at["list"], h.LENGTH_IS, 2),
        (first, h.TYPE_IS, Leaf),
        (second, h.TYPE_IS, Leaf),
        (attribute, h.EQUALS, 1),
        (third, h.TYPE_IS, Leaf),
        (code, h.IS, node.function.__code__),
        (add(defaults, h.SEQ_ITEM, 0), h.EQUALS, 5),
        (defaults, h.LENGTH_IS, 1),
        (add(keyword, h.DICT_ITEM, "k"), h.EQUALS, 6),
        (free, h.EQUALS, 3),
        (add(at["method"], h.METHOD_SELF), h.SAME, first),
        (add(at["method"], h.METHOD_FUNC), h.IS, weakref.ref(Leaf.method)),
        (add(at["cell"], h.CELL_CONTENTS), h.EQUALS, 7),
        (at["constant"], h.EQUALS, int("1234567")),
        (0, h.DISTINCT, (first, second, third)),
    ]
    return h.Guards(nodes, checks, [second, at["table"], 0])


def change(fn: Callable[[Node], Any]) -> Any:
    return pytest.param(fn, id=fn.__name__)


def attribute_assigned(o: Node) -> None:
    o.late = 3  # type: ignore[method-assign,assignment]


def dict_grows(o: Node) -> None:
    o.table["c"] = 1


def dict_shrinks(o: Node) -> None:
    del o.table["b"]


def dict_is_reordered(o: Node) -> None:
    o.table["a"] = o.table.pop("a")


def dict_item_differs(o: Node) -> None:
    o.table["a"] = 1.25


def dict_is_replaced(o: Node) -> None:
    o.table = {"a": 1.5, "c": "text"}


def hook_is_added(o: Node) -> None:
    o.hooks["x"] = 1


def hooks_are_replaced(o: Node) -> None:
    o.hooks = collections.OrderedDict(x=1)


def set_grows(o: Node) -> None:
    o.set.add(1)


def list_grows(o: Node) -> None:
    o.list.append(Leaf())


def list_shrinks(o: Node) -> None:
    o.list.pop()


def list_item_is_replaced(o: Node) -> None:
    o.list[1] = Other()  # type: ignore[call-overload]


def list_items_are_one(o: Node) -> None:
    o.list[1] = o.list[0]


def tuple_is_replaced(o: Node) -> None:
    o.tuple = (o.tuple[0], Other())  # type: ignore[assignment]


def class_is_assigned(o: Node) -> None:
    o.list[0].__class__ = Other  # type: ignore[assignment]


def own_class_is_assigned(o: Node) -> None:
    o.__class__ = type("Node", (Node,), {})


def dict_of_an_object_is_assigned(o: Node) -> None:
    o.list[0].__dict__ = {"value": 2}


def own_dict_is_assigned(o: Node) -> None:
    o.__dict__ = {**o.__dict__, "constant": 0}


def deep_attribute_is_deleted(o: Node) -> None:
    del o.list[0].value


def code_is_assigned(o: Node) -> None:
    o.function.__code__ = make(3).__code__.replace(co_name="other")


def function_is_replaced(o: Node) -> None:
    o.function = make(4)


def defaults_are_assigned(o: Node) -> None:
    o.function.__defaults__ = (6,)


def defaults_are_appended(o: Node) -> None:
    o.function.__defaults__ = (5, 5)


def defaults_are_removed(o: Node) -> None:
    o.function.__defaults__ = None


def keyword_default_changes(o: Node) -> None:
    o.function.__kwdefaults__["k"] = 7


def keyword_defaults_are_removed(o: Node) -> None:
    o.function.__kwdefaults__ = {}


def free_variable_changes(o: Node) -> None:
    o.function.__closure__[0].cell_contents = 4  # type: ignore[index]


def free_variable_is_emptied(o: Node) -> None:
    del o.function.__closure__[0].cell_contents  # type: ignore[index]


def method_is_of_another(o: Node) -> None:
    o.method = o.list[1].method


def cell_changes(o: Node) -> None:
    o.cell.cell_contents = 8


def cell_is_emptied(o: Node) -> None:
    del o.cell.cell_contents


def constant_changes(o: Node) -> None:
    o.constant = 1234568


def constant_changes_type(o: Node) -> None:
    o.constant = 1234567.0  # type: ignore[assignment]


def constant_is_replaced_where_it_was(o: Node) -> None:
    """Other integers take the memory of the one that is freed."""
    o.cell.cell_contents = int("777777")
    o.cell.cell_contents = 8


def a_key_of_ours_is_shadowed(o: Node) -> None:
    """A key that is equal to a string, and of its hash."""
    value = o.table.pop("a")
    o.table[Impostor("a")] = value  # type: ignore[index]


class Impostor:
    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")


CHANGES = [
    attribute_assigned, dict_grows, dict_shrinks, dict_is_reordered, dict_item_differs, dict_is_replaced, hook_is_added,
    hooks_are_replaced, set_grows, list_grows, list_shrinks, list_item_is_replaced, list_items_are_one, tuple_is_replaced,
    class_is_assigned, own_class_is_assigned, dict_of_an_object_is_assigned, own_dict_is_assigned,
    deep_attribute_is_deleted, code_is_assigned, function_is_replaced, defaults_are_assigned, defaults_are_appended,
    defaults_are_removed, keyword_default_changes, keyword_defaults_are_removed, free_variable_changes,
    free_variable_is_emptied, method_is_of_another, cell_changes, cell_is_emptied, constant_changes,
    constant_changes_type, constant_is_replaced_where_it_was, a_key_of_ours_is_shadowed,
]  # fmt: skip


@pytest.mark.parametrize("apply", [change(c) for c in CHANGES])
def test_changes_are_noticed(apply: Callable[[Node], None]) -> None:
    node = Node()
    guards, fresh = program(node), program(node)
    for _ in range(3):
        ok, failed, gathered = guards.check(make, (node,))
        assert ok and failed == -1 and gathered == (node.list[1], node.table, node)
    apply(node)
    gc.collect()
    assert not guards.check(make, (node,))[0]
    assert not guards.check(make, (node,))[0]
    assert not fresh.check(make, (node,))[0]


def harmless_attribute(o: Node) -> None:
    o.unrelated = object()  # type: ignore[attr-defined]


def attribute_comes_and_goes(o: Node) -> None:
    o.late = 3  # type: ignore[method-assign,assignment]
    del o.late


def item_is_deleted_and_added(o: Node) -> None:
    value = o.__dict__.pop("constant")
    o.__dict__["constant"] = value


def equal_constant(o: Node) -> None:
    o.constant = int("1234567")


def equal_list(o: Node) -> None:
    o.list[:] = list(o.list)


def equal_dict(o: Node) -> None:
    o.table = dict(o.table)


def equal_function(o: Node) -> None:
    o.function.__defaults__ = (int("5"),)


def counted(o: Node) -> None:
    o.calls = getattr(o, "calls", 0) + 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "apply",
    [
        change(c)
        for c in (
            harmless_attribute,
            attribute_comes_and_goes,
            item_is_deleted_and_added,
            equal_constant,
            equal_list,
            equal_dict,
            equal_function,
            counted,
        )
    ],  # fmt: skip
)
def test_changes_that_do_not_matter(apply: Callable[[Node], None]) -> None:
    node = Node()
    guards = program(node)
    for _ in range(200):
        ok, _, gathered = guards.check(make, (node,))
        assert ok and gathered == (node.list[1], node.table, node)
        apply(node)


def test_objects_take_turns() -> None:
    nodes = [Node() for _ in range(100)]
    guards = program(nodes[0])
    function = nodes[0].function
    for node in nodes:
        node.function = function
    for _ in range(3):
        for node in nodes:
            ok, _, gathered = guards.check(make, (node,))
            assert ok and gathered == (node.list[1], node.table, node)
    nodes[50].constant = 0
    assert [guards.check(make, (node,))[0] for node in nodes] == [i != 50 for i in range(100)]


def test_new_objects_in_old_places() -> None:
    """Roots that live for one call, most of them where the last one was."""
    function, chosen = make(3), random.Random(0)
    guards = None
    for i in range(1000):
        node = Node()
        node.function = function
        guards = guards or program(node)
        if i % 3 == 2:
            chosen.choice(CHANGES[: CHANGES.index(code_is_assigned)])(node)
            assert not guards.check(make, (node,))[0]
        else:
            assert guards.check(make, (node,))[0]
        del node


def test_globals_and_closures() -> None:
    names = {"__builtins__": __builtins__, "a": 1, "b": 2, "c": 3, "d": 4}
    f, g = (types.FunctionType(make.__code__, scope, "f") for scope in (names, dict(names, d=5)))
    nodes = [(0, h.ROOT_GLOBALS, None), *((0, h.DICT_ITEM, name) for name in "abcd")]
    guards = h.Guards(nodes, [(i, h.EQUALS, i) for i in range(1, 5)])
    for _ in range(3):
        assert guards.check(f, ())[0] and not guards.check(g, ())[0]
    names["d"] = 5
    assert guards.check(f, ()) == (False, 3, None)
    names["d"] = 4
    del names["a"]
    assert guards.check(f, ()) == (False, 0, None)


def test_class_namespaces() -> None:
    class Base:
        def method(self) -> None: ...

    names = [f"name{i}" for i in range(6)]
    nodes = [(0, h.ROOT_CONST, Base), (0, h.INSTANCE_DICT, None), (1, h.DICT_ITEM, "method")]
    checks = [(1, h.MISSING, n) for n in names]
    guards = h.Guards(nodes, [(2, h.IS, weakref.ref(Base.__dict__["method"])), *checks])
    for _ in range(3):
        assert guards.check(make, ())[0]
    Base.unrelated = 1  # type: ignore[attr-defined]
    assert guards.check(make, ())[0]
    Base.name3 = 1  # type: ignore[attr-defined]
    assert guards.check(make, ()) == (False, 4, None)
    del Base.name3  # type: ignore[attr-defined]
    assert guards.check(make, ())[0]
    Base.method = lambda self: None  # type: ignore[method-assign]
    gc.collect()
    assert guards.check(make, ()) == (False, 0, None)


def test_remembers_no_object() -> None:
    node = Node()
    guards = program(node)
    counts = [sys.getrefcount(o) for o in (node, node.list[1], node.table, node.constant, None)]
    for _ in range(50):
        guards.check(make, (node,))
        assert [sys.getrefcount(o) for o in (node, node.list[1], node.table, node.constant)] == counts[:3] + [
            counts[3] + 1
        ]
    gone = [weakref.ref(node), weakref.ref(node.list[1])]
    node.itself = node  # type: ignore[attr-defined]
    del node
    gc.collect()
    assert gone[0]() is None and gone[1]() is None
    assert not guards.check(make, (Other(),))[0]


def test_a_failing_check_comes_first() -> None:
    """Observed through a check that counts: what failed last is asked before it."""
    node = Node()
    guards = program(node)
    assert guards.check(make, (node,))[0]
    node.constant, node.cell.cell_contents = 0, 0
    first = guards.check(make, (node,))[1]
    kinds = [guards.checks[first][2]]
    node.constant = 1234567 if kinds == [1234567] else 0
    if kinds == [7]:
        node.cell.cell_contents = 7
    second = guards.check(make, (node,))[1]
    assert {first, second} == {19, 20}
    node.constant = node.cell.cell_contents = 0
    assert guards.check(make, (node,))[1] == second
    node.constant, node.cell.cell_contents = 1234567, 7
    for _ in range(3):
        ok, _, gathered = guards.check(make, (node,))
        assert ok and gathered == (node.list[1], node.table, node)


def test_costs() -> None:
    node = Node()
    guards = program(node)
    counts = [sys.getrefcount(o) for o in (node, node.table, node.list[0])]
    costs = guards.costs(make, (node,), 100)
    assert costs is not None and len(costs) == len(guards.checks) and all(c > 0 for c in costs)
    slow = h.Guards([LOCAL, (0, h.GETATTR, "table")], [(0, h.TYPE_IS, Node), (1, h.CALL, lambda v: bool(v["a"]))])
    measured = [slow.costs(make, (node,), 100) or (0.0, 0.0) for _ in range(20)]  # other processes may come between
    quick, called = map(min, zip(*measured, strict=True))
    assert 0 < quick < called
    assert [sys.getrefcount(o) for o in (node, node.table, node.list[0])] == counts
    node.constant = 0
    assert guards.costs(make, (node,), 100) is None
    for arguments in ((make, (node,)), (make, (node,), 0), (make, (), 1), (3, (node,), 1)):
        with pytest.raises(TypeError):
            guards.costs(*arguments)
