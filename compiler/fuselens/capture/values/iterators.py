"""Iteration over tracked values, and how iterators are made again after a graph break."""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arrays import operations as arrays
from ..breaks import Break, CannotRebuild, Raised, raising
from ..polyfills import python as polyfills
from ..rules import torch_function
from ..rules.table import RULES, rule
from . import assignments, attributes
from .algebra import (
    ActiveValue,
    ArrayValue,
    CombinedIterator,
    Constant,
    DictValue,
    DictView,
    GeneratorValue,
    InstanceDict,
    IteratorValue,
    Known,
    ObjectValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)
from .kinds import PerKind
from .known import from_plain

if TYPE_CHECKING:
    from ..machine import Machine
    from ..tracing.tracer import Tracer


LONGEST = 1_000_000
"""Items of a list or tuple that is tracked item by item."""


class Constants(Sequence[Value]):
    """The items of a range, string or bytes, each made when it is asked for."""

    def __init__(self, of: Any) -> None:
        self.of = of
        try:
            len(of)
        except OverflowError:
            raise Break("FL105", what="iteration", why="over a range of that length") from None

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, index: Any) -> Any:
        return list(map(Constant, self.of[index])) if isinstance(index, slice) else Constant(self.of[index])


ITERATORS = (IteratorValue, CombinedIterator, GeneratorValue)


def iterate(m: Machine, value: Value) -> list[Value]:
    """All the items that iterating over ``value`` gives; consumes iterators."""
    value = m.use(value)
    return _ALL_ITEMS[type(value)](m, value)


def _drawn(m: Machine, value: Value) -> list[Value]:
    """What an iterator over ``value`` gives."""
    made = iterator(m, value)
    rest = []
    while (item := advance(m, made)) is not None:
        rest.append(item)
    return rest


_ALL_ITEMS: PerKind[list[Value]] = PerKind(_drawn)


@_ALL_ITEMS.of(SequenceValue)
def _all_of_sequence(m: Machine, value: SequenceValue) -> list[Value]:
    return list(value.items)


@_ALL_ITEMS.of(InstanceDict)
def _all_of_instance(m: Machine, value: InstanceDict) -> list[Value]:
    return _all_of_dict(m, attributes.instance_items(m, value))


@_ALL_ITEMS.of(DictValue)
def _all_of_dict(m: Machine, value: DictValue) -> list[Value]:
    return [_of_key(value, k) for k in value.items]


@_ALL_ITEMS.of(DictView)
def _all_of_view(m: Machine, value: DictView) -> list[Value]:
    return [_of_key(value, k) for k in value.mapping.items]


@_ALL_ITEMS.of(SetValue)
def _all_of_set(m: Machine, value: SetValue) -> list[Value]:
    if not value.ordered and len(value.items) > 1:
        raise Break("FL105", what="iteration", why="over a set whose order only the running program knows")
    if value.source is None and not value.is_ordered_by_value:
        m.tracer.differs = "the order of a set"
    return [from_plain(k, "an element of a set") for k in value.elements()]


@_ALL_ITEMS.of(Constant)
def _all_of_constant(m: Machine, value: Constant) -> list[Value]:
    if not isinstance(value.value, (range, str, bytes)):
        return _drawn(m, value)
    items = Constants(value.value)
    if len(items) > LONGEST:
        raise Break("FL105", what="iteration", why=f"over a {value.python_type.__name__} of that length")
    return items[:]


@_ALL_ITEMS.of(Known)
def _all_of_known(m: Machine, value: Known) -> list[Value]:
    if not isinstance(value.value, enum.EnumMeta):
        return _drawn(m, value)
    return [Constant(member) for member in value.value]


@_ALL_ITEMS.of(ActiveValue)
def _all_of_active(m: Machine, value: ActiveValue) -> list[Value]:
    found = value.items()
    return found if found is not None else _drawn(m, value)


@_ALL_ITEMS.of(ProxyValue)
def _all_of_proxy(m: Machine, value: ProxyValue) -> list[Value]:
    return iterate(m, value.mapping)


_ALL_ITEMS.of(ArrayValue)(arrays.rows)


@_ALL_ITEMS.of(TensorValue)
def _all_of_tensor(m: Machine, value: TensorValue) -> list[Value]:
    if torch_function.concerned(m, [value], {}):
        m.call(attributes.load(m, value, "dim"), [], {})
        return iterate(m, m.call(attributes.load(m, value, "unbind"), [Constant(0)], {}))
    if value.fake.ndim == 0:
        raise raising(TypeError("iteration over a 0-d tensor"))
    unbound = m.tracer.call("call_method", "unbind", (value, Constant(0)), {}, "iteration over a tensor")
    assert isinstance(unbound, SequenceValue)
    return list(unbound.items)


def _of_key(mapping: DictValue | DictView, key: Any) -> Value:
    """What iterating over a dictionary or a view of one gives for a key."""
    if isinstance(mapping, DictValue) or mapping.which == "keys":
        return from_plain(key, "a dictionary key")
    value = mapping.mapping.items[key]
    return value if mapping.which == "values" else SequenceValue([from_plain(key, "a dictionary key"), value], tuple)


def iterator(m: Machine, value: Value) -> Value:
    """``iter(value)``."""
    value = m.use(value)
    return _ITER[type(value)](m, value)


def _not_iterable(m: Machine, value: Value) -> Value:
    raise Break("FL105", what="iteration", why=f"over {value.describe()}")


_ITER: PerKind[Value] = PerKind(_not_iterable)


@_ITER.of(*ITERATORS)
def _iter_of_iterator(m: Machine, value: Value) -> Value:
    return value


@_ITER.of(SequenceValue)
def _iter_of_sequence(m: Machine, value: SequenceValue) -> Value:
    items = value.items if value.kind in (list, deque) else list(value.items)
    return IteratorValue(value, items, born=m.tracer.now)


@_ITER.of(DictValue, DictView)
def _iter_of_dict(m: Machine, value: DictValue | DictView) -> Value:
    return IteratorValue(value, [], born=m.tracer.now)


@_ITER.of(SetValue)
def _iter_of_set(m: Machine, value: SetValue) -> Value:
    return IteratorValue(value, iterate(m, value), born=m.tracer.now)


@_ITER.of(TensorValue, ArrayValue)
def _iter_of_tensor(m: Machine, value: Value) -> Value:
    items = iterate(m, value)
    return IteratorValue(SequenceValue(items, tuple), items, born=m.tracer.now)


@_ITER.of(Constant)
def _iter_of_constant(m: Machine, value: Constant) -> Value:
    if isinstance(value.value, (range, str, bytes)):
        return IteratorValue(value, Constants(value.value), born=m.tracer.now)
    return _not_iterable_object(m, value)


@_ITER.of(Known)
def _iter_of_known(m: Machine, value: Known) -> Value:
    if isinstance(value.value, enum.EnumMeta):
        return IteratorValue(value, iterate(m, value), born=m.tracer.now)
    if not isinstance(value.value, type):
        return _not_iterable_object(m, value)
    made = attributes.by_metaclass(m, value, "__iter__", [])
    return _not_iterable(m, value) if made is None else iterator(m, made)


def _not_iterable_object(m: Machine, value: Constant | Known) -> Value:
    """The TypeError of an object that is known, if it raises one."""
    try:
        iter(value.value)
    except TypeError as e:
        raise raising(e) from None
    return _not_iterable(m, value)


@_ITER.of(ActiveValue)
def _iter_of_active(m: Machine, value: ActiveValue) -> Value:
    found = value.items()
    if found is None:
        return _not_iterable(m, value)
    return IteratorValue(SequenceValue(found, tuple), found, born=m.tracer.now)


@_ITER.of(ProxyValue)
def _iter_of_proxy(m: Machine, value: ProxyValue) -> Value:
    return iterator(m, value.mapping)


@_ITER.of(ObjectValue)
def _iter_of_object(m: Machine, value: ObjectValue) -> Value:
    method, place = attributes.class_member(m, value.python_type, "__iter__")
    if type(method) is types.FunctionType:
        made = m.use(m.call(attributes.bind(m, method, value, "__iter__", place), [], {}))
        if not isinstance(made, ObjectValue):
            return iterator(m, made)
        if attributes.class_attribute(made.python_type, "__next__") is attributes.ABSENT:
            raise raising(TypeError(f"iter() returned non-iterator of type '{made.python_type.__name__}'"))
        return made
    content = attributes.content(m, value)
    if content is not None:
        return iterator(m, content)
    if method is not attributes.ABSENT:
        return _not_iterable(m, value)
    getter, _ = attributes.class_member(m, value.python_type, "__getitem__")
    if getter is attributes.ABSENT:
        raise raising(TypeError(f"'{value.python_type.__name__}' object is not iterable"))
    return m.use(m.call(Known(polyfills.ByIndex), [value], {}))


def advance(m: Machine, value: Value) -> Value | None:
    """The next item of an iterator; None when there is none left."""
    value = m.use(value)
    m.tracer.effects.touch(value, "an iterator")
    return _NEXT[type(value)](m, value)


_NEXT: PerKind[Value | None] = PerKind(_not_iterable)


@_NEXT.of(GeneratorValue)
def _next_of_generator(m: Machine, value: GeneratorValue) -> Value | None:
    return resume_generator(m, value, Constant(None))


@_NEXT.of(ObjectValue)
def _next_of_object(m: Machine, value: ObjectValue) -> Value | None:
    method, place = attributes.class_member(m, value.python_type, "__next__")
    if type(method) is not types.FunctionType:
        return _not_iterable(m, value)
    try:
        return m.call(attributes.bind(m, method, value, "__next__", place), [], {})
    except Raised as raised:
        if issubclass(raised.kind, StopIteration):
            return None
        raise


@_NEXT.of(IteratorValue)
def _next_of_iterator(m: Machine, value: IteratorValue) -> Value | None:
    if value.is_stale:
        try:
            next(stale_iterator(value.python_type))
        except RuntimeError as e:
            raise raising(e) from None
    if value.live is not None:
        return _advance_dictionary(value)
    at = value.following
    if at is None:
        value.position = -1  # an exhausted iterator stays so, even when its list grows
        return None
    if value.is_exchanged:
        exchanged = Break("FL105", what="iteration", why=f"{value.container.describe()} changes on the way")
        exchanged.step = value.born
        raise exchanged
    value.position += 1
    return value.items[at]


def _advance_dictionary(value: IteratorValue) -> Value | None:
    """The next item of an iterator over a dictionary of as many keys as before."""
    over = value.over
    assert value.live is not None and isinstance(over, (DictValue, DictView))
    try:
        if value.container.python_type is OrderedDict and value.is_exchanged:
            raise RuntimeError("OrderedDict mutated during iteration")
        key = next(value.live, attributes.ABSENT) if value.position >= 0 else attributes.ABSENT
    except RuntimeError as e:
        raise raising(e) from None
    value.position = -1 if key is attributes.ABSENT else value.position + 1
    return None if key is attributes.ABSENT else _of_key(over, key)


def _unforeseen(value: IteratorValue) -> bool:
    """Whether what an iterator gives next depends on how its dictionary or set came to hold what it holds."""
    if value.live is None or value.position < 0:
        return value.is_exchanged
    keys: Any = reversed(value.keys) if value.backwards else value.keys
    _, (rest,), *_ = value.live.__reduce__()  # type: ignore[misc]
    return value.is_exchanged or list(map(id, rest)) != list(map(id, list(keys)[value.position :]))


def stale_iterator(kind: type) -> Any:
    """An iterator of a dictionary's, set's or deque's type ``kind`` whose container has changed since it was made."""
    for container in ({0: 0}, {0}, deque([0]), OrderedDict({0: 0})):
        views: list[Any] = (
            [container, container.values(), container.items()] if isinstance(container, dict) else [container]
        )
        for view in views:
            for made in (iter(view),) if isinstance(view, set) else (iter(view), reversed(view)):
                if type(made) is kind:
                    container.popitem() if isinstance(container, dict) else container.pop()
                    return made
    raise AssertionError(kind)


@_NEXT.of(CombinedIterator)
def _next_of_combined(m: Machine, value: CombinedIterator) -> Value | None:
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


# --- generators -------------------------------------------------------------------------------------------------


def resume_generator(m: Machine, generator: GeneratorValue, sent: Value, thrown: Raised | None = None) -> Value | None:
    """Runs a generator to its next ``yield`` and gives what it yields; None when it returns (see ``returned``)."""
    if generator.finished:
        generator.returned = None  # given once
        if thrown is not None:
            raise thrown
        return None
    frame = generator.machine
    if frame in _callers(m):
        raise raising(ValueError("generator already executing"))
    frame.parent, frame.depth, frame.call_place = m, m.depth + 1, m.tracer.place
    try:
        if thrown is not None:
            if not generator.started:
                generator.finished = True
                raise thrown
            frame.throw(thrown)
        elif generator.started:
            frame.push(sent)
        elif not sent.is_none:
            raise raising(TypeError("can't send non-None value to a just-started generator"))
        generator.started = True
        done = frame.run()
    except Raised as raised:
        if generator.started:
            generator.finished = True
        if issubclass(raised.kind, StopIteration) and raised is not thrown:
            error = raising(RuntimeError("generator raised StopIteration"))
            assignments.store_directly(m, error.value, "__cause__", raised.value)
            attributes.assign(m, error.value, "__context__", raised.value)
            raise error from None
        raise
    finally:
        m.set_span()
    if done:
        generator.finished = True
        generator.returned = frame.result
        return None
    item, frame.yielded = frame.yielded, None
    return item


def _delegates(frame: Machine) -> bool:
    """Whether a suspended frame is inside ``yield from``, whose loop goes back to a SEND."""
    following = next(i for i in frame.program.instructions[frame.at :] if i.op != "RESUME")
    return following.target is not None and following.target.op == "SEND"


def _callers(m: Machine) -> list[Machine]:
    found = [m]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found


def abandoned(tracer: Tracer) -> None:
    """Refuses generators that are left suspended inside ``try`` or ``with``: what closes them would run code."""
    for generator in tracer.generators:
        if generator.started and not generator.finished and not generator.machine.closes_quietly():
            raise CannotRebuild(generator.born, generator.describe(), "it is left inside `try` or `with`")


def stop_iteration(m: Machine, returned: Value | None) -> Raised:
    """What ``next`` raises at the end of an iterator."""
    raised = raising(StopIteration())
    if returned is not None and not returned.is_none:
        m.tracer.effects.attributes[id(raised.value.value), "args"] = (raised.value, SequenceValue([returned], tuple))
        m.tracer.effects.attributes[id(raised.value.value), "value"] = (raised.value, returned)
    return raised


def generator_method(m: Machine, generator: GeneratorValue, name: str, args: list[Value]) -> Value:
    """``send``, ``throw`` and ``close``."""
    if name in ("send", "__next__"):
        return _send(m, generator, name, args)
    if generator.started and not generator.finished and _delegates(generator.machine):
        raise Break("FL104", what=f"generator.{name}", why="it is delegating with `yield from`")
    if name == "throw":
        return _throw(m, generator, args)
    if name == "close":
        return _close(m, generator)
    raise Break("FL104", what=f"generator.{name}", why="there is no rule for this method")


def _send(m: Machine, generator: GeneratorValue, name: str, args: list[Value]) -> Value:
    if name == "send" and len(args) != 1:
        raise raising(TypeError(f"generator.send() takes exactly one argument ({len(args)} given)"))
    item = resume_generator(m, generator, m.use(args[0]) if args else Constant(None))
    if item is None:
        returned, generator.returned = generator.returned, None
        raise stop_iteration(m, returned)
    return item


def _throw(m: Machine, generator: GeneratorValue, args: list[Value]) -> Value:
    exception, given = m.use(args[0]), m.use(args[1]) if len(args) > 1 else Constant(None)
    if isinstance(exception, Known) and isinstance(given, ObjectValue) and isinstance(given.value, exception.value):
        exception = given  # throw(type, value, traceback), as contextlib writes it up to 3.11
    elif isinstance(exception, Known):
        exception = m.use(m.call(exception, [] if given.is_none else [given], {}))
    if not isinstance(exception, ObjectValue):
        raise Break("FL104", what="generator.throw", why=f"of {exception.describe()}")
    item = resume_generator(m, generator, Constant(None), Raised(exception))
    if item is None:
        raise stop_iteration(m, generator.returned)
    return item


def _close(m: Machine, generator: GeneratorValue) -> Value:
    if not generator.started or generator.finished:
        generator.finished = True
        return Constant(None)
    try:
        item = resume_generator(m, generator, Constant(None), raising(GeneratorExit()))
    except Raised as raised:
        if issubclass(raised.kind, (GeneratorExit, StopIteration)):
            return Constant(None)
        raise
    if item is not None:
        raise raising(RuntimeError("generator ignored GeneratorExit"))
    return Constant(None)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a resume function makes an iterator anew, over the objects that it is given as ``leaves``.

    ``steps``: ("iter", leaf, position), ("reversed", leaf, number of items to come), ("stale", type),
    ("enumerate", part, number), ("map", leaf, parts…), ("zip", parts…).
    """

    steps: tuple[Any, ...]


def recipe_of(value: Value, leaves: list[Value]) -> tuple[Any, ...]:
    """The steps of a :class:`Recipe` for ``value``; appends what it needs to ``leaves``."""
    return _RECIPES[type(value)](value, leaves)


def _without_recipe(value: Value, leaves: list[Value]) -> tuple[Any, ...]:
    raise AssertionError(value)


_RECIPES: PerKind[tuple[Any, ...]] = PerKind(_without_recipe)


@_RECIPES.of(GeneratorValue, ObjectValue)
def _recipe_of_object(value: Value, leaves: list[Value]) -> tuple[Any, ...]:
    leaves.append(value)  # rebuilt by itself, if at all
    return ("iter", len(leaves) - 1, 0)


@_RECIPES.of(CombinedIterator)
def _recipe_of_combined(value: CombinedIterator, leaves: list[Value]) -> tuple[Any, ...]:
    if value.kind is enumerate:
        assert isinstance(value.extra, Constant)
        return ("enumerate", recipe_of(value.parts[0], leaves), value.extra.value)
    if value.kind is map:
        assert value.extra is not None
        leaves.append(value.extra)
        return ("map", len(leaves) - 1, *(recipe_of(p, leaves) for p in value.parts))
    return ("zip", *(recipe_of(p, leaves) for p in value.parts))


@_RECIPES.of(IteratorValue)
def _recipe_of_iterator(value: IteratorValue, leaves: list[Value]) -> tuple[Any, ...]:
    if value.is_stale:
        return ("stale", value.python_type)
    if _unforeseen(value):
        raise CannotRebuild(value.born, value.describe(), "the dictionary or set has other keys by now")
    over, position, at = value.over, value.position, value.following
    if value.live is not None and position >= 0:
        at = position
    live = value.live is not None or (isinstance(over, SequenceValue) and over.kind in (list, deque))
    grows = live or isinstance(over, SetValue)  # at its end, but not known to be: the container may still change
    ended = position < 0 or (at is None and not grows)
    if value.backwards and not ended:
        leaves.append(over if live else _still_to_come(value, at))
        return ("reversed", len(leaves) - 1, value.start - position)
    if ended:
        over, position = SequenceValue([], tuple), 0
    elif isinstance(over, Constant):
        over, position = Constant(over.value[position:]), 0
    elif not grows:
        over, position = SequenceValue(list(value.items[at:]), tuple), 0  # what is gone by need not be kept alive
    leaves.append(over)
    return ("iter", len(leaves) - 1, position)


def _still_to_come(value: IteratorValue, at: int | None) -> Value:
    """Of a backwards iterator over what does not change: what it has not given yet, forwards."""
    if isinstance(value.items, Constants):
        return Constant(value.items.of[at:][::-1])
    return SequenceValue(list(value.items[at:])[::-1], list)


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
            made: Any = reversed(leaves[rest[0]])
            if type(leaves[rest[0]]) is list:
                made.__setstate__(rest[1] - 1)
            else:
                for _ in range(len(leaves[rest[0]]) - rest[1]):
                    next(made)
            return made
        if kind == "stale":
            return stale_iterator(rest[0])
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
            if isinstance(made, IteratorValue) and made.live is not None:
                for _ in range(rest[1]):
                    advance(m, made)
            elif isinstance(made, IteratorValue):
                made.position = rest[1]
            elif rest[1]:
                raise Break("FL105", what="a loop", why="its iterator cannot be made again")
            return made
        if kind == "reversed":
            made = RULES[reversed](m, [leaves.items[rest[0]]], {})
            assert isinstance(made, IteratorValue)
            if made.live is None:
                made.position = made.start - rest[1]
            else:
                for _ in range(made.start - rest[1]):
                    advance(m, made)
            return made
        if kind == "stale":
            raise Break("FL105", what="a loop", why="what it iterates over has changed")
        if kind == "enumerate":
            return CombinedIterator(enumerate, [make(rest[0])], Constant(rest[1]))
        if kind == "map":
            return CombinedIterator(map, [make(r) for r in rest[1:]], leaves.items[rest[0]])
        return CombinedIterator(zip, [make(r) for r in rest])

    return make(recipe.value.steps)
