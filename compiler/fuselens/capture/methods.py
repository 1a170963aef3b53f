"""Methods of tensors and of builtin containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import attributes, classify
from .breaks import Break
from .iterators import iterate
from .known import UNKNOWN, deep_use, fold, integer, key_of, plain
from .values import (
    Constant,
    DictValue,
    DictView,
    InstanceDict,
    NamedMethod,
    SequenceValue,
    SymbolValue,
    TensorValue,
    Value,
)

if TYPE_CHECKING:
    from .machine import Machine


def named_method(m: Machine, method: NamedMethod, args: list[Value], kwargs: dict[str, Value]) -> Value:
    receiver, name = m.use(method.receiver), method.name
    if isinstance(receiver, TensorValue):
        return tensor_method(m, receiver, name, args, kwargs)
    if isinstance(receiver, SymbolValue):
        receiver = Constant(plain(receiver))
    if isinstance(receiver, SequenceValue) and receiver.kind is list and name in _LIST_METHODS:
        if name in _LIST_MUTATORS:
            m.tracer.mutate(receiver)
        return _LIST_METHODS[name](m, receiver, args, kwargs)
    if isinstance(receiver, SequenceValue) and name in ("index", "count", "__len__", "numel"):
        if name == "__len__":
            return Constant(len(receiver.items))
        known = plain(deep_use(m, receiver))
        if known is not UNKNOWN:
            return fold(m, getattr(known, name), args, kwargs, name)
    if isinstance(receiver, InstanceDict) and name in _DICT_METHODS and name not in _DICT_MUTATORS:
        return _instance_method(m, receiver, name, args)
    if isinstance(receiver, DictValue) and name in _DICT_METHODS:
        if name in _DICT_MUTATORS:
            m.tracer.mutate(receiver)
        if kwargs and name != "update":
            raise Break("FL104", what=f"dict.{name}", why="it takes no keyword arguments")
        used = [m.use(a) for a in args]
        return _dict_update(m, receiver, used, kwargs) if kwargs else _DICT_METHODS[name](m, receiver, used)
    if isinstance(receiver, Constant) and isinstance(receiver.value, (str, bytes, int, float, complex, bool, range)):
        return fold(m, getattr(receiver.value, name), args, kwargs, f"{receiver.python_type.__name__}.{name}")
    raise Break("FL104", what=method.describe(), why="there is no rule for this method")


def _instance_method(m: Machine, mapping: InstanceDict, name: str, args: list[Value]) -> Value:
    if name in ("get", "__contains__"):
        found = attributes.instance_item(m, mapping, key_of(m, args[0]))
        if name == "__contains__":
            return Constant(found is not None)
        return found if found is not None else args[1] if len(args) > 1 else Constant(None)
    return _DICT_METHODS[name](m, attributes.instance_items(m, mapping), args)


def tensor_method(m: Machine, receiver: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if name in classify.SCALAR_METHODS:
        raise Break("FL102", what=f"{receiver.describe()}.{name}()")
    if name == "__len__":
        if receiver.fake.ndim == 0:
            raise Break("FL105", what="len()", why="of a zero-dimensional tensor")
        return Constant(int(receiver.fake.shape[0]))
    if not classify.is_graph_method(name) or (name.startswith("__") and name not in _TENSOR_DUNDERS):
        raise Break("FL104", what=f"Tensor.{name}", why="it runs eagerly")
    return m.tracer.call(
        "call_method", name, (receiver, *(deep_use(m, a) for a in args)),
        {k: deep_use(m, v) for k, v in kwargs.items()}, f"Tensor.{name}",
    )  # fmt: skip


_TENSOR_DUNDERS = {
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__matmul__",
    "__rmatmul__", "__neg__", "__abs__", "__pow__", "__rpow__", "__getitem__", "__and__", "__or__", "__xor__",
    "__invert__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__mod__", "__floordiv__",
}  # fmt: skip


def _append(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.append(args[0])
    return Constant(None)


def _extend(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.extend(iterate(m, args[0]))
    return Constant(None)


def _insert(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.insert(integer(m, args[0]), args[1])
    return Constant(None)


def _pop(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    index = integer(m, args[0]) if args else -1
    if not -len(items.items) <= index < len(items.items):
        raise Break("FL105", what="list.pop", why="the index is out of range")
    return m.use(items.items.pop(index))


def _reverse(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.reverse()
    return Constant(None)


def _clear(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.clear()
    return Constant(None)


def _copy(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(list(items.items), list)


def _list_index(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    known = plain(deep_use(m, items))
    if known is UNKNOWN:
        raise Break("FL104", what="list.index", why="an item is not known while tracing")
    return fold(m, known.index, args, kwargs, "list.index")


_LIST_METHODS: dict[str, Any] = {
    "append": _append, "extend": _extend, "insert": _insert, "pop": _pop, "reverse": _reverse, "clear": _clear,
    "copy": _copy, "index": _list_index,
}  # fmt: skip
_LIST_MUTATORS = {"append", "extend", "insert", "pop", "reverse", "clear"}


def _get(m: Machine, mapping: DictValue, args: list[Value]) -> Value:
    found = mapping.items.get(key_of(m, args[0]))
    return m.use(found) if found is not None else args[1] if len(args) > 1 else Constant(None)


def _dict_pop(m: Machine, mapping: DictValue, args: list[Value]) -> Value:
    key = key_of(m, args[0])
    if key in mapping.items:
        return m.use(mapping.items.pop(key))
    if len(args) > 1:
        return args[1]
    raise Break("FL105", what="dict.pop", why=f"key {key!r} is missing")


def _dict_update(m: Machine, mapping: DictValue, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    if args and not isinstance(args[0], DictValue):
        raise Break("FL104", what="dict.update", why=f"of {args[0].describe()}")
    if args:
        mapping.items.update(args[0].items)  # type: ignore[attr-defined]
    mapping.items.update(kwargs or {})
    return Constant(None)


def _setdefault(m: Machine, mapping: DictValue, args: list[Value]) -> Value:
    return m.use(mapping.items.setdefault(key_of(m, args[0]), args[1] if len(args) > 1 else Constant(None)))


_DICT_METHODS: dict[str, Any] = {
    "get": _get, "pop": _dict_pop, "update": _dict_update, "setdefault": _setdefault,
    "keys": lambda m, d, a: DictView(d, "keys"),
    "values": lambda m, d, a: DictView(d, "values"),
    "items": lambda m, d, a: DictView(d, "items"),
    "copy": lambda m, d, a: DictValue(dict(d.items), d.kind),
    "__len__": lambda m, d, a: Constant(len(d.items)),
    "__contains__": lambda m, d, a: Constant(key_of(m, a[0]) in d.items),
}  # fmt: skip
_DICT_MUTATORS = {"pop", "update", "setdefault"}
