"""Calls of Python's builtins."""

from __future__ import annotations

import math
import operator
import sys
import threading
import traceback
import types
import typing
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .. import classify
from ..breaks import Break, raising
from ..calls.methods import from_keys, in_order, tensor_method
from ..hook import _hook
from ..polyfills import python as polyfills
from ..values import attributes, text
from ..values.algebra import (
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
    MethodValue,
    ObjectValue,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SliceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    Traceback,
    TruthValue,
    Value,
)
from ..values.iterators import ITERATORS, Constants, advance, iterate, iterator, stop_iteration
from ..values.known import (
    ELEMENT,
    UNKNOWN,
    HashedKey,
    deep_use,
    fold,
    from_plain,
    holds_identity,
    integer,
    key_of,
    plain,
)
from ..values.operators import (
    BINARY,
    COMPARE,
    binary,
    combined_sets,
    index_of,
    mapping_items,
    operate,
    special,
    subscript,
    trim,
)
from . import torch_function
from .table import RULES, Rule, rule

if TYPE_CHECKING:
    from ..machine import Machine


@rule(len)
def _len(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (SequenceValue, DictValue, SetValue)):
        return Constant(len(value.items))
    if isinstance(value, DictView):
        return Constant(len(value.mapping.items))
    if isinstance(value, InstanceDict):
        return Constant(len(attributes.instance_items(m, value).items))
    if isinstance(value, TensorValue):
        own = torch_function.own(m, value, "__len__")
        return tensor_method(m, value, "__len__", [], {}) if own is None else m.use(m.call(own, [], {}))
    if isinstance(value, ObjectValue):
        return _length(m, value)
    if isinstance(value, ITERATORS):
        raise raising(TypeError(f"object of type '{value.python_type.__name__}' has no len()"))
    return fold(m, len, [value], {}, "len")


def _length(m: Machine, value: ObjectValue) -> Value:
    kind = value.python_type.__name__
    result = special(m, value, "__len__", [])
    if result is None:
        held = attributes.content(m, value)
        if held is None:
            raise raising(TypeError(f"object of type '{kind}' has no len()"))
        return m.call(Known(len), [held], {})
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


@rule(isinstance)
def _isinstance(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    classes = plain(deep_use(m, args[1]))
    if classes is UNKNOWN:
        raise Break("FL104", what="isinstance", why="the class is not known while tracing")
    value = m.use(args[0])
    if _answers_itself(classes):
        return Constant(_answered(m, value, classes))
    return _asked(isinstance, None, classes, lambda: _is_instance(m, value, classes))


def _answered(m: Machine, value: Value, classes: Any) -> bool:
    """``isinstance(value, classes)``, of which a class answers for itself."""
    if isinstance(classes, tuple):
        return any(_answered(m, value, c) for c in classes)
    if not _answers_itself(classes):
        return _is_instance(m, value, classes)
    if value.python_type is classes:
        return True
    found, place = attributes.class_member(m, type(classes), "__instancecheck__")
    truth = m.truth(m.use(m.call(attributes.bind(m, found, Known(classes), "__instancecheck__", place), [value], {})))
    if truth is None:
        raise Break(
            "FL104", what="isinstance", why="a class answers for itself, from what only the running program knows"
        )
    return truth


def _answers_itself(classes: Any) -> bool:
    """Whether the answer is that of a metaclass of the program's (or of jaxtyping's), which may look at more than types."""
    if isinstance(classes, tuple):
        return any(map(_answers_itself, classes))
    checks = [attributes.class_attribute(type(classes), "__instancecheck__")]
    if isinstance(type(classes), type) and isinstance(classes, type):
        hook = attributes.class_attribute(classes, "__subclasshook__")
        checks.append(getattr(hook, "__func__", hook))
    return any(isinstance(c, types.FunctionType) and not classify.is_library_module(c.__module__) for c in checks)


def _is_instance(m: Machine, value: Value, classes: Any) -> bool:
    if isinstance(value, TruthValue):
        return isinstance(True, classes)
    if isinstance(classes, tuple):
        return any(_is_instance(m, value, c) for c in classes)
    if isinstance(value, ObjectValue) and getattr(classes, "_is_protocol", False):
        return isinstance(value.value, classes) or _fits_protocol(m, value, classes)
    if isinstance(value, (Constant, Known, ObjectValue)):
        return isinstance(value.value, classes)
    if isinstance(value, TensorValue):
        return (
            issubclass(value.kind, classes)
            or _is_legacy(value.fake, classes)
            or attributes.is_flagged(m, value, classes)
        )
    return issubclass(value.python_type, classes)


def _fits_protocol(m: Machine, value: ObjectValue, protocol: Any) -> bool:
    """Whether an object has the members of a protocol in its class, or as attributes, which may have been set while tracing."""
    for name in getattr(protocol, "__protocol_attrs__", None) or typing._get_protocol_attrs(protocol):  # type: ignore[attr-defined]
        found, _ = attributes.class_member(m, value.python_type, name)
        member = attributes.load_or_none(m, value, name) if found is attributes.ABSENT else Known(found)
        if member is None:
            return False
        nothing = isinstance(member, (Constant, Known)) and member.value is None
        if nothing and callable(getattr(protocol, name, None)):
            return False
    return True


def _asked(function: Any, example: Any, classes: Any, answer: Callable[[], bool]) -> Value:
    """The answer to ``isinstance`` or ``issubclass``; their TypeError where ``classes`` are none."""
    try:
        return Constant(answer())
    except Exception:  # noqa: BLE001 - a property `__class__` may raise anything
        try:
            function(example, classes)
        except TypeError as e:
            raise raising(e) from None
        raise Break("FL104", what=function.__name__, why="a class answers for itself") from None


def _is_legacy(tensor: torch.Tensor, classes: Any) -> bool:
    """Whether a tensor has the dtype and device of one of the classes (``torch.FloatTensor``)."""
    if isinstance(classes, tuple):
        return any(_is_legacy(tensor, c) for c in classes)
    return type(classes) is type(torch.FloatTensor) and isinstance(tensor, classes)


@rule(issubclass)
def _issubclass(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, classes = plain(m.use(args[0])), plain(deep_use(m, args[1]))
    if cls is UNKNOWN or classes is UNKNOWN:
        raise Break("FL104", what="issubclass", why="the class is not known while tracing")
    return _asked(issubclass, cls, classes, lambda: issubclass(cls, classes))


@rule(type)
def _type(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        raise Break("FL104", what="type", why="classes are created eagerly")
    return Known(m.use(args[0]).python_type)


def _name(m: Machine, value: Value, what: str) -> str:
    name = m.use(value)
    if not isinstance(name, Constant):
        raise Break("FL104", what=what, why="the name is not known while tracing")
    if not isinstance(name.value, str):
        raise raising(TypeError("attribute name must be string, not '" + type(name.value).__name__ + "'"))
    return name.value


@rule(getattr)
def _getattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), _name(m, args[1], "getattr")
    if len(args) < 3:
        return attributes.load(m, owner, name)
    return attributes.load_or_none(m, owner, name) or args[2]


@rule(object.__getattribute__)
def _getattribute(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), m.use(args[1])
    if not isinstance(owner, ObjectValue) or not isinstance(name, Constant):
        raise Break("FL104", what="object.__getattribute__", why=f"of {owner.describe()}")
    return attributes.generic(m, owner, name.value)


@rule(vars)
def _vars(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        raise Break("FL104", what="vars", why="it reads its caller's variables")
    return attributes.load(m, m.use(args[0]), "__dict__")


@rule(hasattr)
def _hasattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), _name(m, args[1], "hasattr")
    if isinstance(owner, TensorValue) and attributes.class_attribute(owner.kind, name) is not attributes.ABSENT:
        return Constant(hasattr(owner.fake, name))
    return Constant(attributes.load_or_none(m, owner, name) is not None)


@rule(setattr)
def _setattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    attributes.store(m, m.use(args[0]), _name(m, args[1], "setattr"), args[2])
    return Constant(None)


@rule(delattr)
def _delattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    attributes.delete(m, m.use(args[0]), _name(m, args[1], "delattr"))
    return Constant(None)


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
    trim(made)
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
    if isinstance(value, ObjectValue):
        result = special(m, value, "__reversed__", [])
        if result is not None:
            return result
        held = attributes.content(m, value)
        if held is None:
            return m.call(Known(polyfills.ReversedSequence), [value], {})
        value = held
    if isinstance(value, SequenceValue) and value.kind in (list, deque):
        return IteratorValue(value, value.items, backwards=True, born=m.tracer.now)
    if isinstance(value, (DictValue, DictView)):
        return IteratorValue(value, [], backwards=True, born=m.tracer.now)
    if isinstance(value, Constant) and isinstance(value.value, (str, bytes, range)):
        return IteratorValue(value, Constants(value.value[::-1]), backwards=True, born=m.tracer.now)
    if isinstance(value, SequenceValue):
        return IteratorValue(value, value.items[::-1], backwards=True, born=m.tracer.now)
    if isinstance(value, TensorValue):
        raise Break("FL104", what="reversed", why="of a tensor")
    raise raising(TypeError(f"'{value.python_type.__name__}' object is not reversible"))


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


@rule(types.MethodType)
def _method(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return MethodValue(args[0], m.use(args[1]))


@rule(id)
def _id(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    return RuntimeNumber(id, [value], value.function if isinstance(value, FunctionValue) else value)


@rule(threading.get_ident)
def _get_ident(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return RuntimeNumber(threading.get_ident, [], threading.get_ident)


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
    for item in lazily(m, args[0]):
        total = m.use(binary(m, operator.add, total, item, "+"))
    return total


def lazily(m: Machine, value: Value) -> Iterator[Value]:
    """The items of an iterable, each computed when it is asked for."""
    over = iterator(m, value)
    while (item := advance(m, over)) is not None:
        yield m.use(item)


def _extreme(function: Any, symbol: str) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        key = m.use(kwargs.get("key", Constant(None)))
        named = not (isinstance(key, Constant) and key.value is None)
        name = function.__name__
        best: tuple[Value, Value] | None = None
        if not args or not set(kwargs) <= {"key", "default"} or (len(args) > 1 and "default" in kwargs):
            raise Break("FL104", what=name, why="its arguments do not fit")
        for item in lazily(m, args[0] if len(args) == 1 else SequenceValue(list(args), tuple)):
            measure = m.use(m.call(key, [item], {})) if named else item
            if best is None:
                best = measure, item
                continue
            if isinstance(measure, TensorValue) or isinstance(best[0], TensorValue):
                raise Break("FL102", what=f"{name}() of tensors")
            compare = operator.lt if symbol == "<" else operator.gt
            truth = m.truth(binary(m, compare, measure, best[0], symbol))
            if truth is None:
                raise Break("FL102", what=f"{name}() of tensors")
            if truth:
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
        for item in lazily(m, args[0]):
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


def _number(kind: type, methods: tuple[str, ...]) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = m.use(args[0]) if len(args) == 1 and not kwargs else None
        if isinstance(value, TensorValue) and m.tracer.takes_scalars and kind is not complex:
            value = tensor_method(m, value, "item", [], {})
        if isinstance(value, SymbolValue) and value.python_type is kind:
            return value
        if isinstance(value, SymbolValue) and kind is int and value.python_type is float:
            return m.tracer.call("call_function", torch.sym_int, (value,), {}, "int")
        if isinstance(value, SymbolValue) and kind is float:
            return m.tracer.call("call_function", torch.sym_float, (value,), {}, "float")
        if isinstance(value, ObjectValue):
            held = attributes.content(m, value)
            for method in methods:
                result = special(m, value, method, [])
                if result is None and held is not None:
                    break  # what the builtin class does comes before other methods
                if result is not None and (method == "__trunc__" or type(plain(result)) is not kind):
                    if method != "__index__" or kind is int:
                        raise Break("FL104", what=kind.__name__, why=f"{method} gives no {kind.__name__}")
                    return m.call(Known(kind), [result], {})
                if result is not None:
                    return result
            if held is not None:
                return m.call(Known(kind), [held], {})
            if any(not classify.is_heap_type(c) for c in value.python_type.__mro__[:-1]):
                raise Break("FL104", what=kind.__name__, why=f"of a {value.python_type.__name__}")
            return fold(m, kind, [Constant(_Opaque.named(value.python_type))], {}, kind.__name__)
        return fold(m, kind, args, kwargs, kind.__name__)

    return run


class _Opaque:
    """An instance of a class of the same name, for a builtin's TypeError."""

    @staticmethod
    def named(kind: type) -> Any:
        return type(kind.__name__, (), {})()


RULES[int] = _number(int, ("__int__", "__index__", "__trunc__"))
RULES[float] = _number(float, ("__float__", "__index__"))
RULES[complex] = _number(complex, ("__complex__", "__float__", "__index__"))


@rule(bool, operator.truth)
def _bool(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return Constant(False)
    truth = m.truth(args[0])
    if truth is None:
        raise Break("FL102", what=f"bool({args[0].describe()})")
    return Constant(truth)


@rule(operator.not_)
def _not(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    truth = _bool(m, args, kwargs)
    assert isinstance(truth, Constant)
    return Constant(not truth.value)


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


def _through(function: Any, method: str) -> Rule:
    """A builtin that asks an object's special method, and computes the rest."""

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        args = [m.use(a) for a in args]
        if args and isinstance(args[0], (TensorValue, SymbolValue)):
            return operate(m, function, args, kwargs)
        if args and isinstance(args[0], ObjectValue):
            result = special(m, args[0], method, args[1:])
            if result is not None:
                return result
            held = attributes.content(m, args[0])
            if held is not None:
                return m.call(Known(function), [held, *args[1:]], kwargs)
            return fold(m, function, [Constant(_Opaque.named(args[0].python_type)), *args[1:]], kwargs, method)
        return fold(m, function, args, kwargs, function.__name__)

    return run


RULES[round] = _through(round, "__round__")
RULES[math.floor], RULES[math.ceil] = _through(math.floor, "__floor__"), _through(math.ceil, "__ceil__")
RULES[math.trunc] = _through(math.trunc, "__trunc__")


_magnitude = _through(abs, "__abs__")


@rule(abs, operator.abs)
def _abs(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if len(args) == 1 else None
    if isinstance(value, SymbolValue):
        positive = m.decided(operate(m, operator.ge, [value, Constant(0)]), "abs()")
        return value if positive else operate(m, operator.neg, [value])
    return _magnitude(m, args, kwargs)


def _of_index(function: Any) -> Rule:
    """A builtin that takes what can be an index."""

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [Constant(index_of(m, a)) if isinstance(m.use(a), ObjectValue) else m.use(a) for a in args]
        return fold(m, function, given, kwargs, function.__name__)

    return run


for _function in (bin, hex, oct, chr, range, operator.index):
    RULES[_function] = _of_index(_function)


@rule(divmod)
def _divmod(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    a, b = (m.use(v) for v in args)
    if isinstance(a, Constant) and isinstance(b, Constant):
        return fold(m, divmod, [a, b], {}, "divmod")
    if isinstance(a, TensorValue) or (isinstance(b, TensorValue) and not isinstance(a, ObjectValue)):
        kinds = f"'{a.python_type.__name__}' and '{b.python_type.__name__}'"
        raise raising(TypeError(f"unsupported operand type(s) for divmod(): {kinds}"))
    if isinstance(a, ObjectValue) or isinstance(b, ObjectValue):
        return _divmod_of_objects(m, a, b)
    pair = [binary(m, operator.floordiv, a, b, "//"), binary(m, operator.mod, a, b, "%")]
    return SequenceValue(pair, tuple)


def _divmod_of_objects(m: Machine, a: Value, b: Value) -> Value:
    kinds = a.python_type, b.python_type
    tries = [(a, "__divmod__", b), (b, "__rdivmod__", a)]
    if kinds[0] in kinds[1].__mro__[1:]:
        tries.reverse()
    for receiver, method, other in tries[: 1 if kinds[0] is kinds[1] else 2]:
        result = special(m, receiver, method, [other]) if isinstance(receiver, ObjectValue) else None
        if result is not None and not (isinstance(result, Constant) and result.value is NotImplemented):
            return result
    held = [attributes.content(m, v) if isinstance(v, ObjectValue) else v for v in (a, b)]
    if held[0] is not None and held[1] is not None:
        return fold(m, divmod, [held[0], held[1]], {}, "divmod")
    names = " and ".join(f"'{kind.__name__}'" for kind in kinds)
    raise raising(TypeError(f"unsupported operand type(s) for divmod(): {names}"))


@rule(pow)
def _pow(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = [m.use(a) for a in args]
    if len(values) == 2 and not kwargs:
        return binary(m, operator.pow, values[0], values[1], "**")
    return fold(m, pow, values, kwargs, "pow")


@rule(hash)
def _hash(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key = key_of(m, args[0], "")
    if isinstance(key, HashedKey):
        return Constant(hash(key))
    if holds_identity((key,)):
        raise Break("FL104", what="hash", why=f"that of {args[0].describe()} differs from run to run")
    return Constant(hash(key))


# --- objects ----------------------------------------------------------------------------------------------------


@rule(callable)
def _callable(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (Constant, Known, ObjectValue)):
        return Constant(callable(value.value))
    return Constant(any("__call__" in vars(k) for k in value.python_type.__mro__))


@rule(super)
def _super(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        cell = m.cells.get("__class__")
        first = m.code.co_varnames[0] if m.code.co_argcount else None
        if cell is None or first is None:
            raise Break("FL105", what="super()", why="outside a method")
        from ..machine import read_cell

        cls = m.use(read_cell(m, cell, "__class__"))
        receiver = m.locals.get(first) or m.cells[first].contents
    else:
        cls, receiver = m.use(args[0]), args[1] if len(args) > 1 else None
    if not isinstance(cls, Known) or receiver is None:
        raise Break("FL105", what="super()", why="the class is not known while tracing")
    return SuperValue(cls.value, m.use(receiver))


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


@rule(operator.getitem)
def _getitem(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return subscript(m, args[0], args[1])
