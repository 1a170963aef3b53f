"""Each node and check kind of the guard machine, in isolation: `check()` on a function and its arguments."""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref
from typing import Any

import pytest

from fuselens.capture.hook import _hook as h

LOCAL = (0, h.ROOT_LOCAL, 0)


def passes(check: tuple[Any, ...], value: Any, nodes: list[Any] | None = None) -> bool:
    """Whether one check passes on a value, given as the only argument."""
    ok, failed, gathered = h.Guards(nodes or [LOCAL], [check]).check(passes, (value,))
    assert gathered is None and failed == (-1 if ok else 0)
    return ok


def resolve(nodes: list[Any], value: Any = None, func: types.FunctionType | None = None) -> Any:
    """What the last node finds, or LookupError."""
    ok, failed, gathered = h.Guards(nodes, [], [len(nodes) - 1]).check(func or resolve, (value,))
    if not ok:
        assert failed == 0 and gathered is None
        raise LookupError
    assert gathered is not None
    return gathered[0]


def below(value: Any, kind: int, key: Any = None) -> Any:
    return resolve([LOCAL, (0, kind, key)], value)


class Plain:
    attribute = "class"

    def __init__(self) -> None:
        self.x = 1

    def method(self) -> None: ...


def make() -> types.FunctionType:
    cell = "contents"

    def inner(a: int = 5, *, k: int = 6) -> Any:
        return cell, a, k

    return inner


def test_roots() -> None:
    f = make()
    assert resolve([LOCAL], "v") == "v"
    assert resolve([(0, h.ROOT_GLOBALS, None)]) is globals()
    assert resolve([(0, h.ROOT_BUILTINS, None)])["len"] is len
    assert resolve([(0, h.ROOT_FUNCTION, None)], func=f) is f
    assert resolve([(0, h.ROOT_CLOSURE, 0), (0, h.CELL_CONTENTS, None)], func=f) == "contents"
    with pytest.raises(LookupError):
        resolve([(0, h.ROOT_CLOSURE, 1)], func=f)
    with pytest.raises(LookupError):
        resolve([(0, h.ROOT_CLOSURE, 0)])
    kept = Plain()
    assert resolve([(0, h.ROOT_CONST, kept)]) is kept
    assert resolve([(0, h.ROOT_WEAK, weakref.ref(kept))]) is kept
    gone = weakref.ref(Plain())
    gc.collect()
    with pytest.raises(LookupError):
        resolve([(0, h.ROOT_WEAK, gone)])


def test_empty_cell() -> None:
    with pytest.raises(LookupError):
        below(types.CellType(), h.CELL_CONTENTS)
    with pytest.raises(LookupError):
        below(1, h.CELL_CONTENTS)


def test_containers() -> None:
    assert below({"a": 1}, h.DICT_ITEM, "a") == 1
    assert below({(1, 2): 1}, h.DICT_ITEM, (1, 2)) == 1
    assert below(collections.OrderedDict(a=2), h.DICT_ITEM, "a") == 2
    assert below((1, 2), h.SEQ_ITEM, 1) == 2
    assert below([1, 2], h.SEQ_ITEM, 0) == 1
    assert below(collections.namedtuple("P", "x")(7), h.SEQ_ITEM, 0) == 7
    assert below(range(4), h.LENGTH) == below({1, 2, 3, 4}, h.LENGTH) == below(collections.deque("abcd"), h.LENGTH) == 4
    missing: list[tuple[Any, int, Any]] = [
        ({"a": 1}, h.DICT_ITEM, "b"),
        (collections.defaultdict(int), h.DICT_ITEM, "b"),
        ([], h.SEQ_ITEM, 0),
        ("abc", h.SEQ_ITEM, 0),
        ([], h.DICT_ITEM, 0),
        (3, h.LENGTH, None),
    ]
    for value, kind, key in missing:
        with pytest.raises(LookupError):
            below(value, kind, key)


def test_instance_dict() -> None:
    o = Plain()
    assert below(o, h.INSTANCE_DICT) == {"x": 1}
    o.x = 2
    assert below(o, h.INSTANCE_DICT)["x"] == 2 and below(o, h.INSTANCE_DICT) is o.__dict__
    assert below(lambda: None, h.INSTANCE_DICT) == {}
    assert below(3, h.INSTANCE_DICT) == {}
    assert below(Plain, h.INSTANCE_DICT)["attribute"] == "class"
    assert "append" in below(list, h.INSTANCE_DICT)
    assert below(types, h.INSTANCE_DICT) is vars(types)

    class Slots:
        __slots__ = ("a",)

    assert below(Slots(), h.INSTANCE_DICT) == {}


def test_applied() -> None:
    assert below({3, 1}, h.APPLIED, sorted) == [1, 3]
    with pytest.raises(LookupError):
        below(3, h.APPLIED, len)
    with pytest.raises(TypeError, match="not callable"):
        h.Guards([LOCAL, (0, h.APPLIED, 3)], [], [1])


def test_attributes_functions_methods() -> None:
    o, f = Plain(), make()
    assert below(o, h.GETATTR, "attribute") == "class"
    with pytest.raises(LookupError):
        below(o, h.GETATTR, "nope")
    assert below(o, h.TYPE) is Plain
    assert below(f, h.FUNC_CODE) is f.__code__
    assert below(f, h.FUNC_DEFAULTS) == (5,) and below(f, h.FUNC_KWDEFAULTS) == {"k": 6}
    assert below(f, h.FUNC_CLOSURE) is f.__closure__ and below(f, h.FUNC_GLOBALS) is f.__globals__
    assert below(below, h.FUNC_DEFAULTS) == (None,) and below(make, h.FUNC_CLOSURE) is None
    assert below(o.method, h.METHOD_SELF) is o and below(o.method, h.METHOD_FUNC) is Plain.method
    for kind in (h.FUNC_CODE, h.FUNC_DEFAULTS, h.METHOD_SELF):
        with pytest.raises(LookupError):
            below(3, kind)


NAN = float("nan")


@pytest.mark.parametrize(
    "constant, equal, different",
    [
        (1, 1, True),
        (1, 10**0, 1.0),
        (10**30, 10**29 * 10, 10**30 + 1),
        (True, True, 1),
        (1.5, 1.5, 1.25),
        (NAN, float("nan"), 0.0),
        (0.0, 0.0, -0.0),
        (1j, 1j, -1j),
        ("text", "te" + "xt", b"text"),
        (None, None, 0),
        ((1, (2.0, "x")), (1, (2.0, "x")), (1, (2, "x"))),
        ((1,), (1,), [1]),
        (slice(1, 2), slice(1, 2), slice(1, 3)),
    ],
)
def test_equals(constant: Any, equal: Any, different: Any) -> None:
    assert passes((0, h.EQUALS, constant), equal)
    assert not passes((0, h.EQUALS, constant), different)


def test_simple_checks() -> None:
    o = Plain()
    assert passes((0, h.TYPE_IS, Plain), o) and not passes((0, h.TYPE_IS, object), o)
    assert passes((0, h.IS, o), o) and not passes((0, h.IS, o), Plain())
    assert passes((0, h.IS, weakref.ref(o)), o) and not passes((0, h.IS, weakref.ref(o)), Plain())
    assert not passes((0, h.IS, weakref.ref(Plain())), None)
    assert passes((0, h.ID_IS, id(o)), o) and not passes((0, h.ID_IS, id(o) + 16), o)
    for three in ((1, 2, 3), [1, 2, 3], "abc", {1: 1, 2: 2, 3: 3}, {1, 2, 3}, range(3), b"abc"):
        assert passes((0, h.LENGTH_IS, 3), three) and not passes((0, h.LENGTH_IS, 2), three)
    assert not passes((0, h.LENGTH_IS, 3), 3)
    assert passes((0, h.MISSING, "a"), {"b": 1}) and not passes((0, h.MISSING, "a"), {"a": 1})
    assert not passes((0, h.MISSING, "a"), [])
    keys = ("a", 1, (2,))
    assert passes((0, h.DICT_KEYS_ARE, keys), {"a": 0, 1: 0, (2,): 0})
    assert passes((0, h.DICT_KEYS_ARE, keys), collections.OrderedDict.fromkeys(keys))
    assert not passes((0, h.DICT_KEYS_ARE, keys), {1: 0, "a": 0, (2,): 0})
    assert not passes((0, h.DICT_KEYS_ARE, keys), {"a": 0, 1: 0})
    assert not passes((0, h.DICT_KEYS_ARE, keys), {"a": 0, True: 0, (2,): 0})
    moved = collections.OrderedDict.fromkeys(keys)
    moved.move_to_end("a")
    assert not passes((0, h.DICT_KEYS_ARE, keys), moved)


def test_calls() -> None:
    assert passes((0, h.CALL, lambda v: v > 2), 3) and not passes((0, h.CALL, lambda v: v > 2), 2)
    assert not passes((0, h.CALL, lambda v: 1 / 0), 3)
    assert passes((0, h.GLOBAL_CALL, lambda: True), 3) and not passes((0, h.GLOBAL_CALL, lambda: 0), 3)


def test_state() -> None:
    assert passes((0, h.STATE, (sys.getrecursionlimit, sys.getrecursionlimit())), 3)
    assert not passes((0, h.STATE, (sys.getrecursionlimit, 7)), 3)
    assert not passes((0, h.STATE, (sys._getframe().f_locals.get, 7)), 3)  # it raises: it takes arguments
    for operand in ((lambda: 7, 7), len, (len,)):
        with pytest.raises(TypeError):
            h.Guards([LOCAL], [(0, h.STATE, operand)])


@pytest.mark.parametrize("n", [2, 8, 9, 300, 1500])
def test_distinct_and_same(n: int) -> None:
    values = [Plain() for _ in range(n)]
    nodes = [LOCAL, *((0, h.SEQ_ITEM, i) for i in range(n))]
    check = (0, h.DISTINCT, tuple(range(1, n + 1)))
    assert passes(check, values, nodes)
    values[-1] = values[0]
    assert not passes(check, values, nodes)
    assert passes((1, h.SAME, n), values, nodes) and (n < 3 or not passes((1, h.SAME, 2), values, nodes))


@pytest.mark.parametrize(
    "expression",
    [
        "a + b == 12",
        "a * b - 3 == 32",
        "a // b == -2 ** 0",
        "a % b == 3",
        "not a < b",
        "a <= b or b == 5",
        "b != a and b < a",
    ],
)
@pytest.mark.parametrize("a, b", [(7, 5), (-7, 5), (7, -5), (0, 3), (5, 7)])
def test_shape_programs_agree_with_python(expression: str, a: int, b: int) -> None:
    import ast

    binary = {ast.Add: h.S_ADD, ast.Sub: h.S_SUB, ast.Mult: h.S_MUL, ast.FloorDiv: h.S_FLOORDIV, ast.Mod: h.S_MOD}
    comparisons = {ast.Eq: h.S_EQ, ast.NotEq: h.S_NE, ast.Lt: h.S_LT, ast.LtE: h.S_LE}

    def steps(node: ast.AST) -> list[tuple[int, int]]:
        match node:
            case ast.Constant(value):
                return [(h.S_CONST, value)]
            case ast.Name(name):
                return [(h.S_VAR, "ab".index(name))]
            case ast.UnaryOp(ast.Not(), v):
                return [*steps(v), (h.S_NOT, 0)]
            case ast.UnaryOp(ast.USub(), v):
                return [(h.S_CONST, 0), *steps(v), (h.S_SUB, 0)]
            case ast.BinOp(l, ast.Pow(), r):
                return [(h.S_CONST, 1)]
            case ast.BinOp(l, op, r):
                return [*steps(l), *steps(r), (binary[type(op)], 0)]
            case ast.Compare(l, [op], [r]):
                return [*steps(l), *steps(r), (comparisons[type(op)], 0)]
            case ast.BoolOp(op, [l, r]):
                return [*steps(l), *steps(r), (h.S_AND if isinstance(op, ast.And) else h.S_OR, 0)]
        raise NotImplementedError(node)

    program = tuple(steps(ast.parse(expression, mode="eval").body))
    guards = h.Guards([LOCAL, (0, h.SEQ_ITEM, 0), (0, h.SEQ_ITEM, 1)], [(0, h.SHAPE, ((1, -1), (2, -1)), program)])
    assert guards.check(passes, ((a, b),))[0] == bool(eval(expression))
    assert not guards.check(passes, ((a, 2.0),))[0]
    assert not guards.check(passes, ((a, 2**70),))[0]


def test_shape_programs_fail_rather_than_wrap() -> None:
    def fails(*program: tuple[int, int]) -> bool:
        return not h.Guards([], [(0, h.SHAPE, (), program)]).check(passes, ())[0]

    assert fails((h.S_CONST, 2**62), (h.S_CONST, 4), (h.S_MUL, 0))
    assert fails((h.S_CONST, 1), (h.S_CONST, 0), (h.S_FLOORDIV, 0))
    assert fails((h.S_CONST, 1), (h.S_CONST, 0), (h.S_MOD, 0))
    assert not fails((h.S_CONST, 3), (h.S_CONST, 4), (h.S_MIN, 0))


def test_failures_name_the_check_and_gather_comes_last() -> None:
    nodes = [LOCAL, (0, h.DICT_ITEM, "a"), (0, h.DICT_ITEM, "b")]
    guards = h.Guards(nodes, [(0, h.TYPE_IS, dict), (1, h.TYPE_IS, int), (1, h.EQUALS, 1)], [2, 1])
    assert guards.check(passes, ({"a": 1, "b": 2},)) == (True, -1, (2, 1))
    assert guards.check(passes, ([],))[:2] == (False, 0)
    assert guards.check(passes, ({},))[:2] == (False, 1)
    assert guards.check(passes, ({"a": 2},))[:2] == (False, 2)
    assert guards.check(passes, ({"a": 1},))[:2] == (False, 3)
    assert (guards.nodes[1], guards.checks[0], guards.gather) == (nodes[1], (0, h.TYPE_IS, dict), (2, 1))


def test_a_guard_that_destroys_what_was_read() -> None:
    """Python code in a guard may free objects that earlier nodes borrowed: the machine must own them by then."""

    class Evil:
        def __getattr__(self, name: str) -> Any:
            box.clear()
            gc.collect()
            return object()

    box: dict[str, Any] = {"victim": Plain(), "evil": Evil()}
    nodes = [
        LOCAL,
        (0, h.DICT_ITEM, "victim"),
        (1, h.INSTANCE_DICT, None),
        (0, h.DICT_ITEM, "evil"),
        (3, h.GETATTR, "boom"),
    ]
    guards = h.Guards(nodes, [(2, h.LENGTH_IS, 1), (4, h.TYPE_IS, object), (2, h.LENGTH_IS, 1)], [1, 2])
    ok, _, gathered = guards.check(passes, (box,))
    assert ok and gathered is not None and isinstance(gathered[0], Plain) and gathered[1] == {"x": 1}


def test_many_nodes() -> None:
    value = list(range(1000))
    guards = h.Guards([LOCAL, *((0, h.SEQ_ITEM, i) for i in range(1000))], [], list(range(1, 1001)))
    assert guards.check(passes, (value,)) == (True, -1, tuple(value))


def test_ill_formed_programs() -> None:
    bad: list[tuple[Any, Any, Any]] = [
        ([(0, h.DICT_ITEM, "a")], [(0, h.IS, None)], []),
        ([LOCAL], [(1, h.IS, None)], []),
        ([LOCAL], [(0, 99, None)], []),
        ([(0, 99, None)], [], [0]),
        ([(0, h.ROOT_LOCAL, -1)], [], [0]),
        ([LOCAL], [(0, h.TYPE_IS, 3)], []),
        ([LOCAL], [(0, h.CALL, 3)], []),
        ([LOCAL], [(0, h.IS)], []),
        ([LOCAL], [(0, h.SHAPE, ((0, 0),), ((h.S_VAR, 0),))], []),
        ([LOCAL], [(0, h.SHAPE, (), ((h.S_ADD, 0),))], []),
        ([LOCAL], [(0, h.TENSOR, (1, 2))], []),
        ([LOCAL], [], [3]),
        (3, [], []),
    ]
    for nodes, checks, gather in bad:
        with pytest.raises((ValueError, TypeError)):
            h.Guards(nodes, checks, gather)
    with pytest.raises(IndexError):
        h.Guards([LOCAL], [], [0]).check(passes, ())


def test_guards_take_part_in_collection() -> None:
    o = Plain()
    o.guards = h.Guards([(0, h.ROOT_CONST, o)], [(0, h.IS, o)])  # type: ignore[attr-defined]
    ref = weakref.ref(o)
    del o
    gc.collect()
    assert ref() is None
