"""Calls of Python's builtins that make and walk through containers, and that make strings."""

from __future__ import annotations

import operator
import sys
import traceback
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..breaks import Break, raising
from ..calls.methods import from_keys, in_order, tensor_method
from ..hook import _hook
from ..polyfills import python as polyfills
from ..tracing import contents
from ..values import attributes, text
from ..values.algebra import (
    ArrayValue,
    CombinedIterator,
    Constant,
    DequeValue,
    DictValue,
    DictView,
    FunctionValue,
    GeneratorValue,
    InstanceDict,
    IteratorValue,
    Known,
    ObjectValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Traceback,
    Value,
)
from ..values.attributes import special
from ..values.container_operators import combined_sets, mapping_items
from ..values.hashing import ELEMENT, key_of
from ..values.iterators import ITERATORS, Constants, advance, iterate, iterator, stop_iteration
from ..values.kinds import PerKind
from ..values.known import UNKNOWN, fold, from_plain, integer, plain
from ..values.operators import BINARY, COMPARE, binary, operate
from ..values.subscripts import subscript
from . import torch_function
from .table import RULES, Rule, rule

if TYPE_CHECKING:
    from ..machine import Machine


@rule(len)
def _len(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    return _LENGTHS[type(value)](m, value)


_LENGTHS: PerKind[Value] = PerKind(lambda m, value: fold(m, len, [value], {}, "len"))


@_LENGTHS.of(SequenceValue, DictValue, SetValue)
def _length_of_container(m: Machine, value: Any) -> Value:
    return Constant(len(value.items))


@_LENGTHS.of(DictView)
def _length_of_view(m: Machine, value: DictView) -> Value:
    return Constant(len(value.mapping.items))


@_LENGTHS.of(ProxyValue)
def _length_of_proxy(m: Machine, value: ProxyValue) -> Value:
    return _len(m, [value.mapping], {})


@_LENGTHS.of(InstanceDict)
def _length_of_instance(m: Machine, value: InstanceDict) -> Value:
    return Constant(len(attributes.instance_items(m, value).items))


@_LENGTHS.of(TensorValue)
def _length_of_tensor(m: Machine, value: TensorValue) -> Value:
    own = torch_function.own(m, value, "__len__")
    return tensor_method(m, value, "__len__", [], {}) if own is None else m.use(m.call(own, [], {}))


@_LENGTHS.of(ArrayValue)
def _length_of_array(m: Machine, value: ArrayValue) -> Value:
    sizes = m.use(attributes.load(m, value, "shape"))
    assert isinstance(sizes, SequenceValue)
    return m.use(sizes.items[0]) if sizes.items else fold(m, len, [value], {}, "len")


@_LENGTHS.of(Known)
def _length_of_known(m: Machine, value: Known) -> Value:
    found = attributes.by_metaclass(m, value, "__len__", [])
    return fold(m, len, [value], {}, "len") if found is None else found


@_LENGTHS.of(*ITERATORS)
def _without_length(m: Machine, value: Value) -> Value:
    raise raising(TypeError(f"object of type '{value.python_type.__name__}' has no len()"))


@_LENGTHS.of(ObjectValue)
def _length_of_object(m: Machine, value: ObjectValue) -> Value:
    result = special(m, value, "__len__", [])
    if result is None:
        held = attributes.content(m, value)
        return _without_length(m, value) if held is None else m.call(Known(len), [held], {})
    if isinstance(result, Constant):
        try:
            return Constant(len(_Sized(result.value)))
        except (TypeError, ValueError, OverflowError) as e:
            raise raising(e) from None
    return result


class _Sized:
    """An object of the length that a user's ``__len__`` gives, which ``len`` checks."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


@rule(list)
def _list(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(_sized(m, args[0]) if args else [], list)


@rule(tuple)
def _tuple(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if args else None
    if isinstance(value, SequenceValue) and value.kind is tuple:
        return value
    return SequenceValue(_sized(m, args[0]) if args else [], tuple)


def _sized(m: Machine, value: Value) -> list[Value]:
    """What iterating gives, of which the length is asked too: the program may see that of a tensor."""
    value = m.use(value)
    items = iterate(m, value)
    if isinstance(value, TensorValue) and torch_function.concerned(m, [value], {}):
        m.call(Known(len), [value], {})
    return items


@rule(set)
def _set(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _set_of(m, args, set)


@rule(frozenset)
def _frozenset(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if args else None
    if isinstance(value, SetValue) and isinstance(value.items, frozenset):
        return value
    return _set_of(m, args, frozenset)


def _set_of(m: Machine, args: list[Value], kind: Any) -> Value:
    value = m.use(args[0]) if args else None
    if isinstance(value, SetValue):
        return combined_sets(value, "copy", [], kind)
    return SetValue([key_of(m, v, ELEMENT) for v in iterate(m, args[0])] if args else [], kind)


@rule(slice)
def _slice(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    parts = [m.use(a) for a in ([Constant(None), *args] if len(args) == 1 else args)]
    parts += [Constant(None)] * (3 - len(parts))
    if all(isinstance(p, Constant) for p in parts):
        return Constant(slice(*(p.value for p in parts)))  # type: ignore[attr-defined]
    return SliceValue(parts)


@rule(deque)
def _deque(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("iterable", "maxlen"), args, strict=False)) | kwargs
    limit = plain(m.use(given["maxlen"])) if "maxlen" in given else None
    if (limit is not None and type(limit) is not int) or (isinstance(limit, int) and limit < 0):
        raise Break("FL104", what="deque", why="its maximal length is no number known while tracing")
    made = DequeValue(iterate(m, given["iterable"]) if "iterable" in given else [], limit)
    made.trim()
    return made


@rule(torch.Size)
def _size(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(iterate(m, args[0]) if args else [], torch.Size)


@rule(dict)
def _dict(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = mapping_items(m, args[0]) if args else {}
    return DictValue({**items, **kwargs})


@rule(OrderedDict)
def _ordered_dict(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = mapping_items(m, args[0]) if args else {}
    return DictValue({**items, **kwargs}, OrderedDict)


@rule(defaultdict)
def _defaultdict(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factory = m.use(args[0]) if args else Constant(None)
    if isinstance(factory, (SequenceValue, DictValue, SetValue)) or (
        isinstance(factory, Constant) and factory.value is not None
    ):
        raise raising(TypeError("first argument must be callable or None"))
    items = mapping_items(m, args[1]) if len(args) > 1 else {}
    return DictValue({**items, **kwargs}, defaultdict, None, factory)


def _from_keys(kind: type) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return from_keys(m, kind, *args, **kwargs)

    return run


for _kind in (dict, OrderedDict, defaultdict):
    RULES[_kind.fromkeys] = _from_keys(_kind)


@rule(enumerate)
def _enumerate(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("iterable", "start"), args, strict=False)) | kwargs
    start = integer(m, given.get("start", Constant(0)))
    return CombinedIterator(enumerate, [iterator(m, given["iterable"])], Constant(start))


@rule(zip)
def _zip(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = kwargs.get("strict")
    if strict is not None and m.truth(strict):
        return m.call(Known(polyfills.ZipStrict), args, {})
    return CombinedIterator(zip, [iterator(m, a) for a in args])


@rule(map)
def _map(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return CombinedIterator(map, [iterator(m, a) for a in args[1:]], args[0])


@rule(reversed)
def _reversed(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    return _REVERSED[type(value)](m, value)


def _not_reversible(m: Machine, value: Value) -> Value:
    raise raising(TypeError(f"'{value.python_type.__name__}' object is not reversible"))


_REVERSED: PerKind[Value] = PerKind(_not_reversible)


@_REVERSED.of(ObjectValue)
def _reversed_object(m: Machine, value: ObjectValue) -> Value:
    result = special(m, value, "__reversed__", [])
    if result is not None:
        return result
    held = attributes.content(m, value)
    if held is None:
        return m.call(Known(polyfills.ReversedSequence), [value], {})
    return _REVERSED[type(held)](m, held)


@_REVERSED.of(SequenceValue)
def _reversed_sequence(m: Machine, value: SequenceValue) -> Value:
    items = value.items if value.kind in (list, deque) else value.items[::-1]
    return IteratorValue(value, items, backwards=True, born=m.tracer.now)


@_REVERSED.of(DictValue, DictView)
def _reversed_dict(m: Machine, value: DictValue | DictView) -> Value:
    return IteratorValue(value, [], backwards=True, born=m.tracer.now)


@_REVERSED.of(ProxyValue)
def _reversed_proxy(m: Machine, value: ProxyValue) -> Value:
    return _reversed(m, [value.mapping], {})


@_REVERSED.of(Constant)
def _reversed_constant(m: Machine, value: Constant) -> Value:
    if not isinstance(value.value, (str, bytes, range)):
        return _not_reversible(m, value)
    return IteratorValue(value, Constants(value.value[::-1]), backwards=True, born=m.tracer.now)


@_REVERSED.of(TensorValue)
def _reversed_tensor(m: Machine, value: TensorValue) -> Value:
    return _iter(m, [m.call(attributes.load(m, value, "flip"), [Constant(0)], {})], {})


@rule(iter)
def _iter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1:
        return m.call(Known(polyfills.CallUntil), args, {})
    return iterator(m, args[0])


@rule(next)
def _next(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (Constant, SequenceValue, DictValue, DictView, TensorValue)):
        raise raising(TypeError(f"'{value.python_type.__name__}' object is not an iterator"))
    item = advance(m, value)
    if item is not None:
        return m.use(item)
    if len(args) > 1:
        return args[1]
    returned = None
    if isinstance(value, GeneratorValue):
        returned, value.returned = value.returned, None
    raise stop_iteration(m, returned)


def _handles_nothing() -> bool:
    return sys.exc_info()[0] is None


@rule(sys.exc_info)
def _exc_info(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    exception = _handled_exception(m, "sys.exc_info")
    if exception is None:
        return SequenceValue([Constant(None)] * 3, tuple)
    return SequenceValue([Known(exception.python_type), exception, Traceback()], tuple)


@rule(sys.exception)
def _exception(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _handled_exception(m, "sys.exception") or Constant(None)


def _handled_exception(m: Machine, asks: str) -> Value | None:
    exception = m.handled_exception()
    if exception is None:
        if sys.exc_info()[0] is not None:
            raise Break("FL104", what=asks, why="it asks for an exception handled outside the function")
        m.tracer.guards.check_state(
            _hook.GLOBAL_CALL,
            _handles_nothing,
            name="EXCEPTION",
            text="no exception is being handled",
            span=m.tracer.span,
        )
    return exception


@rule(traceback.clear_frames)
def _clear_frames(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args or not isinstance(m.use(args[0]), Traceback):
        raise Break("FL104", what="traceback.clear_frames", why="it looks at frames")
    return Constant(None)  # frames that were only traced hold nothing


@rule(sum)
def _sum(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total = m.use(kwargs.get("start", args[1] if len(args) > 1 else Constant(0)))
    if isinstance(total, Constant) and isinstance(total.value, (str, bytes)):
        joiner = "''" if isinstance(total.value, str) else "b''"
        kind = "strings" if isinstance(total.value, str) else "bytes"
        raise raising(TypeError(f"sum() can't sum {kind} [use {joiner}.join(seq) instead]"))
    for item in lazily(m, _in_any_order(m, args[0])):
        total = m.use(binary(m, operator.add, total, item, "+"))
    return total


def _in_any_order(m: Machine, value: Value) -> Value:
    """What the iterable is replaced with where the order of its items does not matter: a set's order may be unknown."""
    value = m.use(value)
    if isinstance(value, SetValue) and all(type(k) in (int, bool, str) for k in value.items):
        return SequenceValue([Constant(k) for k in value.elements()], tuple)
    return value


def lazily(m: Machine, value: Value) -> Iterator[Value]:
    """The items of an iterable, each computed when it is asked for."""
    over = iterator(m, value)
    while (item := advance(m, over)) is not None:
        yield m.use(item)


def _data_decides(m: Machine, one: Value, other: Value) -> bool:
    """Whether these are integers of which only data decides which is greater."""
    given = m.use(one), m.use(other)
    if not any(isinstance(v, SymbolValue) for v in given) or {v.python_type for v in given} != {int}:
        return False
    return m.truth(operate(m, operator.lt, list(given))) is None


def _extreme(function: Any, symbol: str) -> Rule:
    compare = operator.lt if symbol == "<" else operator.gt

    def precedes(m: Machine, one: Value, other: Value) -> bool:
        tensors = [v for v in (one, other) if isinstance(v, TensorValue)]
        known = all(contents.number(m.tracer, v) is not None for v in tensors)
        truth = m.truth(binary(m, compare, one, other, symbol)) if known else None
        if truth is None:
            raise Break("FL102", what=f"{function.__name__}() of tensors")
        return truth

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        key = m.use(kwargs.get("key", Constant(None)))
        best: tuple[Value, Value] | None = None
        if not args or not set(kwargs) <= {"key", "default"} or (len(args) > 1 and "default" in kwargs):
            raise Break("FL104", what=function.__name__, why="its arguments do not fit")
        given = args[0] if len(args) == 1 else SequenceValue(list(args), tuple)
        for item in lazily(m, _in_any_order(m, given) if key.is_none else given):
            if best is not None and key.is_none and _data_decides(m, best[0], item):
                sym = torch.sym_min if function is min else torch.sym_max
                both = m.use(m.tracer.call("call_function", sym, (best[0], item), {}, function.__name__))
                best = both, both
                continue
            measure = item if key.is_none else m.use(m.call(key, [item], {}))
            if best is None or precedes(m, measure, best[0]):
                best = measure, item
        if best is not None:
            return best[1]
        if "default" in kwargs:
            return kwargs["default"]
        try:
            return Constant(function(()))
        except ValueError as e:
            raise raising(e) from None

    return run


RULES[min], RULES[max] = _extreme(min, "<"), _extreme(max, ">")


def _quantifier(function: Any, stop: bool) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        for item in lazily(m, _in_any_order(m, args[0])):
            truth = m.truth(item)
            if truth is None:
                raise Break("FL102", what=f"{function.__name__}() of tensors")
            if truth == stop:
                return Constant(stop)
        return Constant(not stop)

    return run


RULES[any], RULES[all] = _quantifier(any, True), _quantifier(all, False)


@rule(sorted)
def _sorted(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, SetValue):
        items = [from_plain(k, "an element of a set") for k in value.elements()]  # whose order does not matter
    else:
        items = iterate(m, value)
    return SequenceValue(in_order(m, items, kwargs.get("key"), kwargs.get("reverse")), list)


# --- text and numbers -------------------------------------------------------------------------------------------


@rule(str)
def _str(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args and not kwargs:
        return Constant("")
    if len(args) > 1 or kwargs:
        return fold(m, str, args, kwargs, "str")
    return text.text(m, str, args[0])


@rule(repr)
def _repr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return text.text(m, repr, args[0])


@rule(ascii)
def _ascii(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return text.text(m, ascii, args[0])


@rule(format)
def _format(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    spec = plain(m.use(args[1])) if len(args) > 1 else ""
    if spec is UNKNOWN:
        raise Break("FL104", what="format", why="the format is not known while tracing")
    return text.text(m, format, args[0], spec)


@rule(bytes)
def _bytes(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if len(args) == 1 else None
    if isinstance(value, ObjectValue):
        result = special(m, value, "__bytes__", [])
        if result is not None:
            return result
    if isinstance(value, (*ITERATORS, SequenceValue, DictView)):
        args = [SequenceValue(iterate(m, value), list)]
    return fold(m, bytes, args, kwargs, "bytes")


# --- functions of the library -----------------------------------------------------------------------------------


def _replaced(made: Any) -> Rule:
    function = Known(made) if isinstance(made, type) else FunctionValue(made, None)

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return m.call(function, args, kwargs)

    return run


for _original, _made in polyfills.REPLACED.items():
    RULES[_original] = _replaced(_made)


def _operator(function: Any, symbol: str) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return binary(m, function, m.use(args[0]), m.use(args[1]), symbol)

    return run


for _symbol, _function in (BINARY | COMPARE).items():
    RULES[_function] = _operator(_function, _symbol)


@rule(operator.concat)
def _concat(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return binary(m, operator.add, m.use(args[0]), m.use(args[1]), "+")


@rule(operator.iconcat)
def _concat_in_place(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return binary(m, operator.iadd, m.use(args[0]), m.use(args[1]), "+=")


@rule(operator.getitem)
def _getitem(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return subscript(m, args[0], args[1])
