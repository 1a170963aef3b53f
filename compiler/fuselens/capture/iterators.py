"""Iteration over tracked values, and how iterators are made again after a graph break."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from . import attributes
from .breaks import Break, FrameUnsupported
from .known import from_plain
from .rules import RULES, rule
from .values import (
    CombinedIterator,
    Constant,
    DictValue,
    DictView,
    InstanceDict,
    IteratorValue,
    Known,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
)

if TYPE_CHECKING:
    from .machine import Machine


def iterate(m: Machine, value: Value) -> list[Value]:
    """All the items that iterating over ``value`` gives; consumes iterators."""
    value = m.use(value)
    if isinstance(value, InstanceDict):
        value = attributes.instance_items(m, value)
    if isinstance(value, SequenceValue):
        return list(value.items)
    if isinstance(value, DictValue):
        return [from_plain(k, "a dictionary key") for k in value.items]
    if isinstance(value, DictView):
        keys = [from_plain(k, "a dictionary key") for k in value.mapping.items]
        if value.which == "keys":
            return keys
        values = list(value.mapping.items.values())
        return (
            values
            if value.which == "values"
            else [SequenceValue(list(p), tuple) for p in zip(keys, values, strict=True)]
        )
    if isinstance(value, (IteratorValue, CombinedIterator)):
        rest = []
        while (item := advance(m, value)) is not None:
            rest.append(item)
        return rest
    if isinstance(value, Constant) and isinstance(value.value, (range, str, bytes)):
        return [Constant(v) for v in value.value]
    if isinstance(value, TensorValue):
        if value.fake.ndim == 0:
            raise Break("FL105", what="iteration", why="over a zero-dimensional tensor")
        unbound = m.tracer.call("call_method", "unbind", (value, Constant(0)), {}, "iteration over a tensor")
        assert isinstance(unbound, SequenceValue)
        return list(unbound.items)
    if isinstance(value, ObjectValue):
        method, place = attributes.class_member(m, type(value.value), "__iter__")
        if type(method) is types.FunctionType:
            return iterate(m, m.call(attributes.bind(m, method, value, "__iter__", place), [], {}))
    raise Break("FL105", what="iteration", why=f"over {value.describe()}")


def iterator(m: Machine, value: Value) -> Value:
    """``iter(value)``."""
    value = m.use(value)
    if isinstance(value, (IteratorValue, CombinedIterator)):
        return value
    if isinstance(value, SequenceValue) and value.kind is list:
        return IteratorValue(value, value.items)
    if isinstance(value, ObjectValue):
        method, place = attributes.class_member(m, type(value.value), "__iter__")
        if type(method) is types.FunctionType:
            return iterator(m, m.call(attributes.bind(m, method, value, "__iter__", place), [], {}))
    items = iterate(m, value)
    return IteratorValue(SequenceValue(items, tuple) if isinstance(value, TensorValue) else value, items)


def advance(m: Machine, value: Value) -> Value | None:
    """The next item of an iterator; None when there is none left."""
    if isinstance(value, CombinedIterator):
        return _advance_combined(m, value)
    if not isinstance(value, IteratorValue):
        raise Break("FL105", what="iteration", why=f"over {value.describe()}")
    mapping = value.over.mapping if isinstance(value.over, DictView) else value.over
    if isinstance(mapping, DictValue) and len(mapping.items) != len(value.items) and value.position >= 0:
        raise FrameUnsupported(
            "FL109", m.tracer.span, what="a loop", why="the dictionary that it iterates over changes size"
        )
    if 0 <= value.position < len(value.items):
        value.position += 1
        return value.items[value.position - 1]
    value.position = -1  # an exhausted iterator stays so, even when its list grows
    return None


def _advance_combined(m: Machine, value: CombinedIterator) -> Value | None:
    row: list[Value] = []
    for part in value.parts:
        item = advance(m, part)
        if item is None:
            return None
        row.append(item)
    if value.kind is map:
        assert value.extra is not None
        return m.call(value.extra, row, {})
    if value.kind is enumerate:
        number = value.extra
        assert isinstance(number, Constant)
        value.extra = Constant(number.value + 1)
        return SequenceValue([number, *row], tuple)
    return SequenceValue(row, tuple) if value.parts else None


# --- iterators that cross a break -------------------------------------------------------------------------------


class Recipe:
    """How a resume function makes an iterator anew, over the objects that it is given as ``leaves``.

    ``steps``: ("iter" | "reversed", leaf, position), ("enumerate", part, number), ("map", leaf, parts…), ("zip", parts…).
    """

    __slots__ = ("steps",)

    def __init__(self, steps: tuple[Any, ...]) -> None:
        self.steps = steps


def recipe_of(value: Value, leaves: list[Value]) -> tuple[Any, ...]:
    """The steps of a :class:`Recipe` for ``value``; appends what it needs to ``leaves``."""
    if isinstance(value, CombinedIterator):
        if value.kind is enumerate:
            assert isinstance(value.extra, Constant)
            return ("enumerate", recipe_of(value.parts[0], leaves), value.extra.value)
        if value.kind is map:
            assert value.extra is not None
            leaves.append(value.extra)
            return ("map", len(leaves) - 1, *(recipe_of(p, leaves) for p in value.parts))
        return ("zip", *(recipe_of(p, leaves) for p in value.parts))
    assert isinstance(value, IteratorValue)
    over, position = value.over, value.position
    rest = value.items[position:] if position >= 0 else []
    if position < 0:
        over, position = SequenceValue([], tuple), 0
    elif value.backwards:
        over, position = SequenceValue(rest[::-1], list), 0
    elif isinstance(over, Constant):
        over, position = Constant(over.value[position:]), 0
    elif not (isinstance(over, (DictValue, DictView)) or over.python_type is list):
        over, position = SequenceValue(rest, tuple), 0  # what is gone by need not be kept alive
    leaves.append(over)
    return ("reversed" if value.backwards and rest else "iter", len(leaves) - 1, position)


def restored(recipe: Recipe, leaves: tuple[Any, ...]) -> Any:
    """The iterator that the recipe describes; resume functions begin with a call of it, which is traced by the rule."""

    def make(steps: tuple[Any, ...]) -> Any:
        kind, *rest = steps
        if kind == "iter":
            made = iter(leaves[rest[0]])
            if rest[1] and type(leaves[rest[0]]) is list:
                made.__setstate__(rest[1])
            else:
                for _ in range(rest[1]):
                    next(made)
            return made
        if kind == "reversed":
            return reversed(leaves[rest[0]])
        if kind == "enumerate":
            return enumerate(make(rest[0]), rest[1])
        if kind == "map":
            return map(leaves[rest[0]], *map(make, rest[1:]))
        return zip(*map(make, rest), strict=False)

    return make(recipe.steps)


@rule(restored)
def _restored(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    recipe, leaves = m.use(args[0]), m.use(args[1])
    assert isinstance(recipe, Known) and isinstance(leaves, SequenceValue)

    def make(steps: tuple[Any, ...]) -> Value:
        kind, *rest = steps
        if kind == "iter":
            made = iterator(m, leaves.items[rest[0]])
            if not isinstance(made, IteratorValue):
                raise Break("FL105", what="a loop", why="its iterator cannot be made again")
            made.position = rest[1]
            return made
        if kind == "reversed":
            return RULES[reversed](m, [leaves.items[rest[0]]], {})
        if kind == "enumerate":
            return CombinedIterator(enumerate, [make(rest[0])], Constant(rest[1]))
        if kind == "map":
            return CombinedIterator(map, [make(r) for r in rest[1:]], leaves.items[rest[0]])
        return CombinedIterator(zip, [make(r) for r in rest])

    return make(recipe.value.steps)
