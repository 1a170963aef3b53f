"""What containers of each kind hold: items by key or position, and membership."""

from __future__ import annotations

import enum
import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break, raising
from ..rules import torch_function
from ..tracing import contents
from . import attributes
from .algebra import (
    ArrayValue,
    Constant,
    DictValue,
    DictView,
    InstanceDict,
    Known,
    ObjectValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from .attributes import special
from .hashing import ELEMENT, key_among, key_of
from .iterators import advance, iterate, iterator
from .kinds import PerKind
from .known import PURE, UNKNOWN, fold, from_plain, plain
from .operators import detached, equal, operate

if TYPE_CHECKING:
    from ..machine import Machine


# --- membership ---------------------------------------------------------------------------------------------------


def contains(m: Machine, container: Value, member: Value) -> bool:
    """``member in container``."""
    return _MEMBERS[type(container)](m, container, member)


def _by_iteration(m: Machine, container: Value, member: Value) -> bool:
    over = iterator(m, container)
    while (item := advance(m, over)) is not None:
        if equal(m, item, member):
            return True
    return False


_MEMBERS: PerKind[bool] = PerKind(_by_iteration)


@_MEMBERS.of(DictValue)
def _in_dict(m: Machine, container: DictValue, member: Value) -> bool:
    return key_among(m, container.items, member) in container.items


@_MEMBERS.of(SetValue)
def _in_set(m: Machine, container: SetValue, member: Value) -> bool:
    if isinstance(member, SetValue) and isinstance(member.items, set):
        return frozenset(member.items) in container.items  # CPython looks a set up as a frozenset
    return key_among(m, container.items, member, ELEMENT) in container.items


@_MEMBERS.of(DictView)
def _in_view(m: Machine, container: DictView, member: Value) -> bool:
    if container.which == "keys":
        return key_among(m, container.mapping.items, member) in container.mapping.items
    if container.which == "values":
        return _in_sequence(m, container, member)
    if not isinstance(member, SequenceValue) or not issubclass(member.kind, tuple) or len(member.items) != 2:
        return False
    found = container.mapping.items.get(key_among(m, container.mapping.items, member.items[0]))
    return found is not None and equal(m, found, member.items[1])


@_MEMBERS.of(ProxyValue)
def _in_proxy(m: Machine, container: ProxyValue, member: Value) -> bool:
    return contains(m, m.use(container.mapping), member)


@_MEMBERS.of(InstanceDict)
def _in_instance(m: Machine, container: InstanceDict, member: Value) -> bool:
    return attributes.instance_item(m, container, key_of(m, member)) is not None


@_MEMBERS.of(SequenceValue)
def _in_sequence(m: Machine, container: Value, member: Value) -> bool:
    return any(equal(m, item, member) for item in iterate(m, container))


@_MEMBERS.of(Constant)
def _in_constant(m: Machine, container: Constant, member: Value) -> bool:
    if not isinstance(container.value, (str, bytes, range, enum.Enum)):
        raise raising(TypeError(f"argument of type '{container.python_type.__name__}' is not iterable"))
    return _in_plain(m, container, member)


@_MEMBERS.of(Known)
def _in_known(m: Machine, container: Known, member: Value) -> bool:
    result = attributes.by_metaclass(m, container, "__contains__", [member])
    if result is not None:
        truth = m.truth(result)
        return _undecided(m, container, member) if truth is None else truth
    inside = _in_plain if isinstance(container.value, enum.EnumMeta) else _by_iteration
    return inside(m, container, member)


def _in_plain(m: Machine, container: Value, member: Value) -> bool:
    found = fold(m, operator.contains, [container, member], {}, "in")
    assert isinstance(found, Constant)
    return found.value


@_MEMBERS.of(ObjectValue)
def _in_object(m: Machine, container: ObjectValue, member: Value) -> bool:
    result = special(m, container, "__contains__", [member])
    if result is not None:
        truth = m.truth(result)
        return _undecided(m, container, member) if truth is None else truth
    held = attributes.content(m, container)
    return contains(m, held, member) if held is not None else _by_iteration(m, container, member)


@_MEMBERS.of(TensorValue)
def _undecided(m: Machine, container: Value, member: Value) -> bool:
    """What only the running program knows."""
    raise Break("FL102", what=f"{member.describe()} in {container.describe()}")


def index_of(m: Machine, key: Value) -> Any:
    """The integer or slice that a subscript of a sequence is; None when it is neither."""
    key = m.use(key)
    return _INDICES[type(key)](m, key)


_INDICES: PerKind[Any] = PerKind(lambda m, key: None)


@_INDICES.of(ObjectValue)
def _index_of_object(m: Machine, key: ObjectValue) -> Any:
    held = attributes.content(m, key)
    found = held if held is not None else special(m, key, "__index__", [])
    if found is None:
        return None
    given = m.use(found)
    if not issubclass(given.python_type, int):
        raise raising(TypeError(f"__index__ returned non-int (type {given.python_type.__name__})"))
    return None if isinstance(given, ObjectValue) else index_of(m, given)


@_INDICES.of(Constant)
def _index_of_constant(m: Machine, key: Constant) -> Any:
    value = key.value
    if isinstance(value, int) or type(value) is slice:
        return value
    if type(value) in classify.NUMPY_SCALARS and hasattr(value, "__index__"):
        return operator.index(value) if isinstance(value.item(), int) else None
    return None


@_INDICES.of(SliceValue)
def _index_of_slice(m: Machine, key: SliceValue) -> Any:
    parts = [p.value if isinstance(p := m.use(part), Constant) else index_of(m, p) for part in key.parts]
    return slice(*parts) if all(p is None or isinstance(p, int) for p in parts) else _unknown_index(m, key)


@_INDICES.of(TensorValue)
def _index_of_tensor(m: Machine, key: TensorValue) -> Any:
    known = contents.index(m.tracer, key)
    return _unknown_index(m, key) if known is None else known.value


@_INDICES.of(SymbolValue)
def _unknown_index(m: Machine, key: Value) -> Any:
    raise Break("FL105", what="an index", why=f"{key.describe()} is not known while tracing")


def subscript(m: Machine, container: Value, key: Value) -> Value:
    """``container[key]``."""
    container, key = m.use(container), m.use(key)
    if isinstance(key, (SymbolValue, SliceValue)) and not isinstance(container, (TensorValue, ArrayValue)):
        known = plain(key)
        key = key if known is UNKNOWN else Constant(known)
    return _ITEMS[type(container)](m, container, key)


def _no_item(m: Machine, container: Value, key: Value) -> Value:
    raise Break("FL105", what="subscript", why=f"of {container.describe()}")


_ITEMS: PerKind[Value] = PerKind(_no_item)


@_ITEMS.of(TensorValue, ArrayValue)
def _tensor_item(m: Machine, container: Value, key: Value) -> Value:
    rows = isinstance(container, TensorValue) and container.kind in torch_function.PLAIN and container.fake.ndim
    if rows and isinstance(key, SymbolValue) and isinstance(key.node.meta["val"], torch.SymInt):
        return m.tracer.call("call_function", torch_private.item_at, (container, key), {}, "an item of a tensor")
    if rows and m.tracer.graphs.transformed and _is_position(m, key):
        keys = SequenceValue([key], list)
        return m.tracer.call("call_function", torch.ops.aten.index.Tensor, (container, keys), {}, "an item of a tensor")
    return operate(m, operator.getitem, [container, key])


def _is_position(m: Machine, key: Value) -> bool:
    """Whether a subscript is an integer in a tensor, and no number of Python's: it is one to those that vmap does not go over."""
    if not isinstance(key, TensorValue) or key.kind is not torch.Tensor or key.fake.ndim:
        return False
    if key.fake.dtype is torch.bool or key.fake.is_floating_point() or key.fake.is_complex():
        return False
    return m.tracer.graphs.mapped(m.tracer.graphs.local(key.node)) is not False


@_ITEMS.of(SequenceValue)
def _sequence_item(m: Machine, container: SequenceValue, key: Value) -> Value:
    index = _position(m, container, key)
    try:
        found = container.items[index]
    except (IndexError, ValueError, TypeError) as e:
        raise _misplaced(container, e) from None
    if not isinstance(index, slice):
        return m.use(found)  # type: ignore[arg-type]
    if container.kind is tuple and len(found) == len(container.items) and (index.step or 1) == 1:  # type: ignore[arg-type]
        return container
    kind = container.kind if container.kind in (list, torch.Size) else tuple
    return SequenceValue(list(found), kind)  # type: ignore[call-overload]


def _position(m: Machine, container: SequenceValue, key: Value) -> Any:
    """The integer or slice at which a sequence is subscripted."""
    index = index_of(m, key)
    if index is None or (container.family == "deque" and isinstance(index, slice)):
        raise raising(_subscript_error(container, m.use(key)))
    return index


def _misplaced(container: SequenceValue, error: Exception, doing: str = "") -> Exception:
    """What a sequence raises where ``error`` was raised by the list of its items."""
    if not isinstance(error, IndexError):
        return raising(error)
    return raising(IndexError(f"{container.family} {'' if container.family == 'deque' else doing}index out of range"))


def _subscript_error(container: SequenceValue, key: Value) -> TypeError:
    kind = key.python_type.__name__
    if container.family == "deque":
        return TypeError(f"sequence index must be integer, not '{kind}'")
    return TypeError(f"{container.family} indices must be integers or slices, not {kind}")


@_ITEMS.of(DictValue)
def _dict_item(m: Machine, container: DictValue, key: Value) -> Value:
    wanted = key_among(m, container.items, key)
    found = container.items.get(wanted)
    if found is not None:
        return m.use(found)
    factory = container.factory
    if factory is not None and not factory.is_none:
        made = m.call(factory, [], {})
        m.tracer.effects.mutate(container)
        container.items[wanted] = made
        return m.use(made)
    raise key_error(wanted)


@_ITEMS.of(InstanceDict)
def _instance_item(m: Machine, container: InstanceDict, key: Value) -> Value:
    found = attributes.instance_item(m, container, key_of(m, key))
    if found is None:
        raise Break("FL105", what="subscript", why=f"key {key.describe()} is missing")
    return found


@_ITEMS.of(Constant)
def _constant_item(m: Machine, container: Constant, key: Value) -> Value:
    if isinstance(key, ObjectValue):
        key = Constant(index_of(m, key))
    return fold(m, operator.getitem, [container, key], {}, "subscript")


@_ITEMS.of(Known)
def _known_item(m: Machine, container: Known, key: Value) -> Value:
    if classify.is_type_form(type(container.value)):
        return fold(m, operator.getitem, [container, key], {}, "subscript")
    if not isinstance(container.value, (type, *PURE)):
        return _no_item(m, container, key)
    getter = attributes.class_attribute(type(container.value), "__getitem__")
    of_package = type(getter) is types.FunctionType and classify.in_packages(getter.__code__.co_filename)
    found = None if of_package else attributes.by_metaclass(m, container, "__getitem__", [key])
    if found is not None:
        return found
    return fold(m, operator.getitem, [container, key], {}, "subscript")


@_ITEMS.of(ObjectValue)
def _object_item(m: Machine, container: ObjectValue, key: Value) -> Value:
    found = special(m, container, "__getitem__", [key])
    if found is not None:
        return found
    held = attributes.content(m, container)
    if held is None:
        return _without_items(m, container, key)
    if isinstance(held, DictValue) and key_among(m, held.items, key) not in held.items:
        missing = special(m, container, "__missing__", [key])
        if missing is not None:
            return missing
    return detached(subscript(m, held, key), [held])


@_ITEMS.of(ProxyValue)
def _proxy_item(m: Machine, container: ProxyValue, key: Value) -> Value:
    return subscript(m, m.use(container.mapping), key)


@_ITEMS.of(SetValue, DictView)
def _without_items(m: Machine, container: Value, key: Value) -> Value:
    raise raising(TypeError(f"'{container.python_type.__name__}' object is not subscriptable"))


def key_error(key: Any) -> Exception:
    """The KeyError of a missing key."""
    value = from_plain(key, "a dictionary key")
    known = plain(value)
    if known is UNKNOWN:
        return Break("FL105", what="KeyError", why=f"of {value.describe()}")
    return raising(KeyError(known))


# --- assignment and deletion ---------------------------------------------------------------------------------------


def store_subscript(m: Machine, container: Value, key: Value, value: Value) -> None:
    """``container[key] = value``."""
    container = m.use(container)
    _STORES[type(container)](m, container, key, value)


def _no_store(m: Machine, container: Value, key: Value, value: Value) -> None:
    raise Break("FL105", what="item assignment", why=f"into {container.describe()}")


_STORES: PerKind[None] = PerKind(_no_store)


@_STORES.of(TensorValue)
def _store_undecided(m: Machine, container: TensorValue, key: Value, value: Value) -> None:
    own = torch_function.own(m, container, "__setitem__")
    if own is not None:
        m.call(own, [key, value], {})
        return
    if torch_function.dispatched(m, torch.Tensor.__setitem__, [container, key, value], {}) is not None:
        return
    m.tracer.call("call_function", operator.setitem, (container, m.use(key), m.use(value)), {}, "setitem", keep=True)


@_STORES.of(ArrayValue)
def _store_in_array(m: Machine, container: ArrayValue, key: Value, value: Value) -> None:
    operate(m, operator.setitem, [container, key, value])


@_STORES.of(DictValue)
def _store_in_dict(m: Machine, container: DictValue, key: Value, value: Value) -> None:
    wanted = key_among(m, container.items, key)
    m.tracer.effects.mutate(container)
    container.items[wanted] = value


@_STORES.of(InstanceDict)
def _store_in_instance(m: Machine, container: InstanceDict, key: Value, value: Value) -> None:
    attributes.store_instance_item(m, container, key_of(m, key), value)


@_STORES.of(SequenceValue)
def _store_in_sequence(m: Machine, container: SequenceValue, key: Value, value: Value) -> None:
    if issubclass(container.kind, tuple):
        _refuse_store(m, container, key, value)
    index = _position(m, container, key)
    new: Any = _items_for(m, index, value) if isinstance(index, slice) else value
    try:
        container.items[index] = new
    except (IndexError, ValueError, TypeError) as e:
        raise _misplaced(container, e, "assignment ") from None
    m.tracer.effects.mutate(container)


def _items_for(m: Machine, part: slice, value: Value) -> list[Value]:
    """What is assigned to a part of a list."""
    given = m.use(value)
    if isinstance(given, (Constant, SymbolValue)) and not isinstance(plain(given), (str, bytes, range)):
        extended = part.step not in (None, 1)
        raise raising(
            TypeError("must assign iterable to extended slice" if extended else "can only assign an iterable")
        )
    return iterate(m, value)


@_STORES.of(ObjectValue)
def _store_in_object(m: Machine, container: ObjectValue, key: Value, value: Value) -> None:
    if special(m, container, "__setitem__", [key, value]) is not None:
        return
    held = attributes.content(m, container)
    if held is None:
        _refuse_store(m, container, key, value)
    else:
        store_subscript(m, held, key, value)


@_STORES.of(SetValue, DictView, ProxyValue, Constant)
def _refuse_store(m: Machine, container: Value, key: Value, value: Value) -> None:
    raise raising(TypeError(f"'{container.python_type.__name__}' object does not support item assignment"))


def delete_subscript(m: Machine, container: Value, key: Value) -> None:
    """``del container[key]``."""
    _DELETIONS[type(container)](m, container, key)


def _no_deletion(m: Machine, container: Value, key: Value) -> None:
    raise Break("FL105", what="del", why=f"of an item of {container.describe()}")


_DELETIONS: PerKind[None] = PerKind(_no_deletion)


@_DELETIONS.of(DictValue)
def _delete_in_dict(m: Machine, container: DictValue, key: Value) -> None:
    wanted = key_among(m, container.items, key)
    if wanted not in container.items:
        raise key_error(wanted)
    m.tracer.effects.mutate(container)
    del container.items[wanted]


@_DELETIONS.of(InstanceDict)
def _delete_in_instance(m: Machine, container: InstanceDict, key: Value) -> None:
    wanted = key_of(m, key)
    if attributes.instance_item(m, container, wanted) is None:
        raise key_error(wanted)
    attributes.store_instance_item(m, container, wanted, attributes.DELETED)


@_DELETIONS.of(SequenceValue)
def _delete_in_sequence(m: Machine, container: SequenceValue, key: Value) -> None:
    if issubclass(container.kind, tuple):
        _refuse_deletion(m, container, key)
    index = _position(m, container, key)
    try:
        del container.items[index]
    except (IndexError, ValueError, TypeError) as e:
        raise _misplaced(container, e, "assignment ") from None
    m.tracer.effects.mutate(container)


@_DELETIONS.of(ObjectValue)
def _delete_in_object(m: Machine, container: ObjectValue, key: Value) -> None:
    if special(m, container, "__delitem__", [key]) is not None:
        return
    held = attributes.content(m, container)
    if held is None:
        _refuse_deletion(m, container, key)
    else:
        delete_subscript(m, held, key)


@_DELETIONS.of(SetValue, DictView, ProxyValue, Constant)
def _refuse_deletion(m: Machine, container: Value, key: Value) -> None:
    kind = container.python_type
    counted = hasattr(kind, "__len__") and hasattr(m.use(key).python_type, "__index__")  # CPython has two texts
    how = "doesn't" if counted else "does not"
    raise raising(TypeError(f"'{kind.__name__}' object {how} support item deletion"))
