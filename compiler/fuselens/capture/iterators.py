"""Iteration over tracked values, and how iterators are made again after a graph break."""

from __future__ import annotations

import enum
import operator
import types
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import attributes, polyfills, torch_function
from .breaks import Break, CannotRebuild, FrameUnsupported, Raised, raising
from .known import from_plain
from .rules import RULES, rule
from .values import (
    CombinedIterator,
    Constant,
    DequeValue,
    DictValue,
    DictView,
    GeneratorValue,
    InstanceDict,
    IteratorValue,
    Known,
    ObjectValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)

if TYPE_CHECKING:
    from .machine import Machine
    from .tracer import Tracer


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
    if isinstance(value, InstanceDict):
        value = attributes.instance_items(m, value)
    if isinstance(value, SequenceValue):
        return list(value.items)
    if isinstance(value, (DictValue, DictView)):
        mapping = value if isinstance(value, DictValue) else value.mapping
        return [_of_key(value, k) for k in mapping.items]
    if isinstance(value, SetValue):
        if not value.ordered and len(value.items) > 1:
            raise Break("FL105", what="iteration", why="over a set whose order only the running program knows")
        return [from_plain(k, "an element of a set") for k in value.elements()]
    if isinstance(value, Constant) and isinstance(value.value, (range, str, bytes)):
        items = Constants(value.value)
        if len(items) > LONGEST:
            raise Break("FL105", what="iteration", why=f"over a {value.python_type.__name__} of that length")
        return items[:]
    if isinstance(value, Known) and isinstance(value.value, enum.EnumMeta):
        return [Constant(member) for member in value.value]
    if isinstance(value, TensorValue):
        if torch_function.concerned(m, [value], {}):
            m.call(attributes.load(m, value, "dim"), [], {})
            return iterate(m, m.call(attributes.load(m, value, "unbind"), [Constant(0)], {}))
        if value.fake.ndim == 0:
            raise raising(TypeError("iteration over a 0-d tensor"))
        unbound = m.tracer.call("call_method", "unbind", (value, Constant(0)), {}, "iteration over a tensor")
        assert isinstance(unbound, SequenceValue)
        return list(unbound.items)
    made = iterator(m, value)
    rest = []
    while (item := advance(m, made)) is not None:
        rest.append(item)
    return rest


def _of_key(mapping: DictValue | DictView, key: Any) -> Value:
    """What iterating over a dictionary or a view of one gives for a key."""
    if isinstance(mapping, DictValue) or mapping.which == "keys":
        return from_plain(key, "a dictionary key")
    value = mapping.mapping.items[key]
    return value if mapping.which == "values" else SequenceValue([from_plain(key, "a dictionary key"), value], tuple)


def iterator(m: Machine, value: Value) -> Value:
    """``iter(value)``."""
    value = m.use(value)
    if isinstance(value, ITERATORS):
        return value
    if isinstance(value, SequenceValue) and value.kind is list:
        return IteratorValue(value, value.items)
    if isinstance(value, (DictValue, DictView)):
        mapping = value if isinstance(value, DictValue) else value.mapping
        return IteratorValue(value, [], keys=iter(mapping.items))
    if isinstance(value, ObjectValue):
        method, place = attributes.class_member(m, value.python_type, "__iter__")
        if type(method) is types.FunctionType:
            made = m.use(m.call(attributes.bind(m, method, value, "__iter__", place), [], {}))
            if isinstance(made, ObjectValue):
                if attributes.class_attribute(made.python_type, "__next__") is attributes.ABSENT:
                    kind = made.python_type.__name__
                    raise raising(TypeError(f"iter() returned non-iterator of type '{kind}'"))
                return made
            return iterator(m, made)
        content = attributes.content(m, value)
        if content is not None:
            return iterator(m, content)
        if method is attributes.ABSENT:
            getter, _ = attributes.class_member(m, value.python_type, "__getitem__")
            if getter is attributes.ABSENT:
                raise raising(TypeError(f"'{value.python_type.__name__}' object is not iterable"))
            return m.use(m.call(Known(polyfills.ByIndex), [value], {}))
        raise Break("FL105", what="iteration", why=f"over {value.describe()}")
    if isinstance(value, Constant) and isinstance(value.value, (range, str, bytes)):
        return IteratorValue(value, Constants(value.value))
    if isinstance(value, (SequenceValue, SetValue, TensorValue)) or (
        isinstance(value, Known) and isinstance(value.value, enum.EnumMeta)
    ):
        items = iterate(m, value)
        return IteratorValue(SequenceValue(items, tuple) if isinstance(value, TensorValue) else value, items)
    if isinstance(value, Constant) or (isinstance(value, Known) and not isinstance(value.value, type)):
        try:
            iter(value.value)
        except TypeError as e:
            raise raising(e) from None
    raise Break("FL105", what="iteration", why=f"over {value.describe()}")


def advance(m: Machine, value: Value) -> Value | None:
    """The next item of an iterator; None when there is none left."""
    value = m.use(value)
    m.tracer.touch(value, "an iterator")
    if isinstance(value, CombinedIterator):
        return _advance_combined(m, value)
    if isinstance(value, GeneratorValue):
        return resume_generator(m, value, Constant(None))
    if isinstance(value, ObjectValue):
        method, place = attributes.class_member(m, value.python_type, "__next__")
        if type(method) is types.FunctionType:
            try:
                return m.call(attributes.bind(m, method, value, "__next__", place), [], {})
            except Raised as raised:
                if issubclass(raised.kind, StopIteration):
                    return None
                raise
    if not isinstance(value, IteratorValue):
        raise Break("FL105", what="iteration", why=f"over {value.describe()}")
    over = value.over
    if value.keys is not None:
        return _advance_keys(value)
    if isinstance(over, SetValue) and len(over.items) != len(value.items) and value.position >= 0:
        raise raising(RuntimeError("Set changed size during iteration"))
    if isinstance(over, DequeValue) and value.position >= 0 and not _same_items(over, value):
        raise raising(RuntimeError("deque mutated during iteration"))
    if 0 <= value.position < len(value.items):
        item = value.items[value.position]
        value.position += -1 if value.counts_down else 1
        return item
    value.position = -1  # an exhausted iterator stays so, even when its list grows
    return None


def _advance_keys(value: IteratorValue) -> Value | None:
    """The next item of an iterator over a dictionary, which a real one over its tracked keys gives."""
    over = value.over
    assert value.keys is not None and isinstance(over, (DictValue, DictView))
    mapping = over if isinstance(over, DictValue) else over.mapping
    try:
        key = next(value.keys)
    except StopIteration:
        value.position = -1
        return None
    except RuntimeError as e:
        ordered = mapping.kind is OrderedDict
        raise raising(RuntimeError("OrderedDict mutated during iteration") if ordered else e) from None
    value.position += 1
    return _of_key(over, key)


def _same_items(over: DequeValue, value: IteratorValue) -> bool:
    """Whether a deque holds what it held when iterating over it began."""
    items = value.items[::-1] if value.backwards else value.items
    return len(over.items) == len(items) and all(map(operator.is_, over.items, items))


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


# --- generators -------------------------------------------------------------------------------------------------


def resume_generator(m: Machine, generator: GeneratorValue, sent: Value, thrown: Raised | None = None) -> Value | None:
    """Runs a generator to its next ``yield`` and gives what it yields; None when it returns (see ``returned``)."""
    if generator.finished:
        if thrown is not None:
            raise thrown
        return None
    frame = generator.machine
    if frame in _callers(m):
        raise raising(ValueError("generator already executing"))
    frame.parent, frame.depth, frame.call_span = m, m.depth + 1, m.tracer.span
    try:
        if thrown is not None:
            if not generator.started:
                generator.finished = True
                raise thrown
            frame.throw(thrown)
        elif generator.started:
            frame.push(sent)
        elif not (isinstance(sent, Constant) and sent.value is None):
            raise raising(TypeError("can't send non-None value to a just-started generator"))
        generator.started = True
        done = frame.run()
    except Raised as raised:
        if generator.started:
            generator.finished = True
        if issubclass(raised.kind, StopIteration) and raised is not thrown:
            error = raising(RuntimeError("generator raised StopIteration"))
            attributes.store_directly(m, error.value, "__cause__", raised.value)
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
    if returned is not None and not (isinstance(returned, Constant) and returned.value is None):
        m.tracer.attributes[id(raised.value.value), "args"] = (raised.value, SequenceValue([returned], tuple))
        m.tracer.attributes[id(raised.value.value), "value"] = (raised.value, returned)
    return raised


def generator_method(m: Machine, generator: GeneratorValue, name: str, args: list[Value]) -> Value:
    """``send``, ``throw`` and ``close``."""
    if name in ("send", "__next__"):
        item = resume_generator(m, generator, m.use(args[0]) if args else Constant(None))
        if item is None:
            returned, generator.returned = generator.returned, None
            raise stop_iteration(m, returned)
        return item
    if generator.started and not generator.finished and _delegates(generator.machine):
        raise Break("FL104", what=f"generator.{name}", why="it is delegating with `yield from`")
    if name == "throw":
        exception, given = m.use(args[0]), m.use(args[1]) if len(args) > 1 else Constant(None)
        if isinstance(exception, Known) and isinstance(given, ObjectValue) and isinstance(given.value, exception.value):
            exception = given  # throw(type, value, traceback), as contextlib writes it up to 3.11
        elif isinstance(exception, Known):
            none = isinstance(given, Constant) and given.value is None
            exception = m.use(m.call(exception, [] if none else [given], {}))
        if not isinstance(exception, ObjectValue):
            raise Break("FL104", what="generator.throw", why=f"of {exception.describe()}")
        item = resume_generator(m, generator, Constant(None), Raised(exception))
        if item is None:
            raise stop_iteration(m, generator.returned)
        return item
    if name == "close":
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
    raise Break("FL104", what=f"generator.{name}", why="there is no rule for this method")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a resume function makes an iterator anew, over the objects that it is given as ``leaves``.

    ``steps``: ("iter" | "reversed", leaf, position), ("enumerate", part, number), ("map", leaf, parts…), ("zip", parts…).
    """

    steps: tuple[Any, ...]


def recipe_of(value: Value, leaves: list[Value]) -> tuple[Any, ...]:
    """The steps of a :class:`Recipe` for ``value``; appends what it needs to ``leaves``."""
    if isinstance(value, GeneratorValue):
        leaves.append(value)  # rebuilt by itself, if at all
        return ("iter", len(leaves) - 1, 0)
    if isinstance(value, ObjectValue):
        leaves.append(value)
        return ("iter", len(leaves) - 1, 0)
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
    kind = "reversed" if value.backwards and position >= 0 else "iter"
    if position < 0:
        over, position = SequenceValue([], tuple), 0
    elif value.keys is not None:
        if value.backwards:
            over, position = SequenceValue([_of_key(over, k) for k in _rest(value)][::-1], list), -1  # type: ignore[arg-type]
        else:
            _rest(value)
    elif value.counts_down:
        pass
    elif value.backwards and isinstance(value.items, Constants):
        over, position = Constant(value.items.of[position:][::-1]), -1
    elif value.backwards:
        over, position = SequenceValue(list(value.items[position:])[::-1], list), -1
    elif isinstance(over, Constant):
        over, position = Constant(over.value[position:]), 0
    elif not (isinstance(over, SetValue) or over.python_type is list):
        over, position = SequenceValue(list(value.items[position:]), tuple), 0  # what is gone by need not be kept alive
    leaves.append(over)
    return (kind, len(leaves) - 1, position)


def _rest(value: IteratorValue) -> list[Any]:
    """The keys that an iterator over a dictionary has yet to give."""
    mapping = value.over.mapping if isinstance(value.over, DictView) else value.over
    assert isinstance(mapping, DictValue)
    keys = list(reversed(mapping.items) if value.backwards else mapping.items)[value.position :]
    if operator.length_hint(value.keys) != len(keys):
        raise FrameUnsupported("FL109", what="a loop", why="it changes the dictionary that it goes over")
    return keys


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
            if rest[1] >= 0:
                made.__setstate__(rest[1])
            return made
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
            if isinstance(made, IteratorValue) and made.keys is not None:
                for _ in range(rest[1]):
                    advance(m, made)
            elif isinstance(made, IteratorValue):
                made.position = rest[1]
            elif rest[1]:
                raise Break("FL105", what="a loop", why="its iterator cannot be made again")
            return made
        if kind == "reversed":
            made = RULES[reversed](m, [leaves.items[rest[0]]], {})
            if isinstance(made, IteratorValue) and rest[1] >= 0:
                made.position = rest[1]
            return made
        if kind == "enumerate":
            return CombinedIterator(enumerate, [make(rest[0])], Constant(rest[1]))
        if kind == "map":
            return CombinedIterator(map, [make(r) for r in rest[1:]], leaves.items[rest[0]])
        return CombinedIterator(zip, [make(r) for r in rest])

    return make(recipe.value.steps)
