"""What assigning and deleting an attribute of each kind of tracked value does.

On an object that existed before the frame it is replayed after the graph."""

from __future__ import annotations

import enum
import functools
import threading
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break, raising
from ..tracing import sources as src
from .algebra import (
    ActiveValue,
    Constant,
    DictValue,
    DictView,
    Known,
    MadeFunction,
    NamedMethod,
    ObjectValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
    WrapperValue,
)
from .attributes import (
    ABSENT,
    ATTRIBUTES,
    DELETED,
    MODULE_TABLES,
    absent,
    assign,
    bind,
    class_attribute,
    class_function,
    class_member,
    unwrapped,
    vars_of,
)
from .function_attributes import replace_annotations
from .kinds import PerKind
from .tensor_attributes import guard_leaf, is_flagged, tensor_item

if TYPE_CHECKING:
    from ..machine import Machine


def store(m: Machine, owner: Value, name: str, value: Value) -> None:
    """``owner.name = value``; on an existing object it is replayed after the graph."""
    _ASSIGNED[type(owner)](m, owner, name, value)


def _assignment(owner: Value, name: str) -> str:
    return f"assignment to `{owner.describe()}.{name}`"


def _assigned_eagerly(m: Machine, owner: Value, name: str, value: Value) -> None:
    """The answer of kinds that have no rule for an assignment."""
    raise Break("FL110", what=_assignment(owner, name), why="attributes of such objects are written eagerly")


_ASSIGNED: PerKind[None] = PerKind(_assigned_eagerly)


@_ASSIGNED.of(ActiveValue)
def _store_on_active(m: Machine, owner: ActiveValue, name: str, value: Value) -> None:
    if not owner.assign(m, name, value):
        _assigned_eagerly(m, owner, name, value)


@_ASSIGNED.of(MadeFunction)
def _store_on_function(m: Machine, owner: MadeFunction, name: str, value: Value) -> None:
    if name in ("__code__", "__defaults__", "__kwdefaults__", "__dict__"):
        _assigned_eagerly(m, owner, name, value)
    m.tracer.effects.touch(owner, _assignment(owner, name))
    replace_annotations(m, owner, name, value)
    owner.attributes[name] = value


@_ASSIGNED.of(SequenceValue, DictValue, SetValue, Constant)
def _store_on_builtin(m: Machine, owner: Value, name: str, value: Value) -> None:
    """Builtin values take no attributes: what such an assignment raises."""
    if not isinstance(owner.python_type, enum.EnumMeta):
        if name == "__class__":
            raise Break("FL110", what=_assignment(owner, name), why="classes are assigned eagerly")
        if (
            isinstance(owner, DictValue)
            and owner.kind is OrderedDict
            and owner.source is None
            and not hasattr(OrderedDict, name)
        ):
            m.tracer.effects.touch(owner, _assignment(owner, name))
            m.tracer.effects.mutations += 1
            if not isinstance(owner.attributes, DictValue):
                owner.attributes = DictValue({})
            owner.attributes.items[name] = value
            return
        try:
            setattr(example(owner), name, None)
        except AttributeError as e:
            raise raising(e) from None
    _assigned_eagerly(m, owner, name, value)


@_ASSIGNED.of(Known)
def _store_on_class(m: Machine, owner: Known, name: str, value: Value) -> None:
    """``cls.name = value``: later look-ups find it; on the class itself it is replayed after the graph."""
    value = m.use(value)
    descriptor = hasattr(value.python_type, "__get__") and value.python_type is not types.FunctionType
    if not _is_written_plainly(owner, name) or descriptor:
        _assigned_eagerly(m, owner, name, value)
    _write_on_class(m, owner, name, value)


def _is_written_plainly(owner: Known, name: str) -> bool:
    """Whether an attribute of a class of the program's is an item of its ``__dict__`` and nothing else."""
    cls = owner.value
    if not isinstance(cls, type) or isinstance(cls, enum.EnumMeta) or not classify.is_heap_type(cls):
        return False
    plain = all(class_attribute(type(cls), f"__{how}attr__") is vars(type)[f"__{how}attr__"] for how in ("set", "del"))
    return plain and not classify.is_library_class(cls) and not name.startswith("__") and name not in dir(type(cls))


def _write_on_class(m: Machine, owner: Known, name: str, value: Value) -> None:
    assign(m, owner, name, value)
    for asked in [a for a in m.tracer.members if a[1] == name]:
        del m.tracer.members[asked]


@_ASSIGNED.of(ObjectValue)
def _store_on_object(m: Machine, owner: ObjectValue, name: str, value: Value) -> None:
    setter, place = class_member(m, owner.python_type, "__setattr__")
    if type(setter) is types.FunctionType and not _is_plain(m, setter, owner, name, value):
        m.call(class_function(m, setter, place), [owner, Constant(name), value], {})
        return
    if owner.python_type is threading.local:
        assign(m, owner, name, value)
        return
    if type(setter) is not types.FunctionType and getattr(setter, "__objclass__", None) not in _PLAIN_SETTERS:
        why = f"{owner.python_type.__name__} stores attributes in its own way"
        raise Break("FL110", what=_assignment(owner, name), why=why)
    store_directly(m, owner, name, value)


_PLAIN_SETTERS = (object, BaseException, functools.partial, types.SimpleNamespace)


@_ASSIGNED.of(TensorValue)
def _store_on_tensor(m: Machine, owner: TensorValue, name: str, value: Value) -> None:
    if name == "grad":
        _store_gradient(m, owner, value)
        return
    if name == "data":
        _store_data(m, owner, m.use(value))
        return
    if name == "requires_grad":
        m.call(NamedMethod(owner, "requires_grad_"), [value], {})
        return
    if isinstance(owner, WrapperValue):
        wrapper = owner.fake if owner.existing is None else owner.existing
        if name in owner.form.names or name in vars(wrapper):
            raise Break("FL110", what=_assignment(owner, name), why="it changes what the tensor is made of")
    found, place = class_member(m, owner.kind, name)
    _, where = class_member(m, owner.kind, "__setattr__")
    if where is not None or (place is None and found is not ABSENT):
        raise Break("FL110", what=_assignment(owner, name), why="it changes the tensor itself")
    if isinstance(found, property):
        m.call(unwrapped(m, found, place, "fset"), [owner, value], {})
        return
    if found is not ABSENT and hasattr(type(found), "__set__"):
        raise Break("FL110", what=_assignment(owner, name), why="it is a descriptor that runs code")
    m.tracer.effects.dressed.add(id(owner))
    assign(m, owner, name, value)


def _store_gradient(m: Machine, owner: TensorValue, value: Value) -> None:
    """``owner.grad = value`` of a graph input, replayed after the graph."""
    value = m.use(value)
    what = f"assignment to `{owner.describe()}.grad`"
    fits = value.is_none
    if isinstance(value, TensorValue):
        given, own = value.fake, owner.fake
        fits = given is not own and all(
            getattr(given, n) == getattr(own, n) for n in ("shape", "dtype", "device", "layout")
        )
    if owner.source is None or not owner.fake.is_leaf or not fits:
        raise Break("FL110", what=what, why="it is written eagerly")
    guard_leaf(m, owner)
    assign(m, owner, "grad", value)


def _store_data(m: Machine, owner: TensorValue, value: Value) -> None:
    """``owner.data = value``: later operations of the graph see it; an existing tensor gets it after the graph."""
    own = m.tracer.graphs.now(owner).meta["val"]
    like = isinstance(value, TensorValue) and all(
        getattr(value.fake, n) == getattr(own, n) for n in ("shape", "dtype", "device", "layout")
    )
    wrapped = isinstance(owner, WrapperValue) or isinstance(value, WrapperValue)
    if wrapped or not isinstance(value, TensorValue) or not like or m.tracer.graphs.nested:
        raise Break("FL110", what=_assignment(owner, "data"), why="it changes the tensor itself")
    if torch_private.is_same_memory(value.fake, own):
        return  # ``owner.data *= 2`` has written to it
    if owner.source is None and own.requires_grad:
        raise Break("FL110", what=_assignment(owner, "data"), why="it has a history")
    made = m.use(m.tracer.call("call_function", torch_private.with_data, (owner, value), {}, "assignment to `.data`"))
    assert isinstance(made, TensorValue)
    if owner.source is None:
        owner.node = made.node
        return
    m.tracer.effects.dressed.add(id(owner))
    assign(m, owner, "data", value)
    m.tracer.graphs.data[owner.node] = made.node


def _is_plain(m: Machine, setter: Any, owner: ObjectValue, name: str, value: Value) -> bool:
    """Whether a module's ``__setattr__`` only fills its ``__dict__``: no parameter, buffer or submodule is involved."""
    if setter is not torch.nn.Module.__dict__["__setattr__"] or owner.source is None:
        return False
    if any(name in (vars(owner.value).get(table) or ()) for table in MODULE_TABLES):
        return False
    value = m.use(value)
    if isinstance(value, TensorValue):
        kinds = (torch.nn.Parameter, torch.nn.Buffer)
        return not issubclass(value.kind, kinds) and not is_flagged(m, value, kinds)
    return not issubclass(value.python_type, torch.nn.Module)


def example(value: Value) -> Any:
    """An object of the same builtin type, which raises what the one that ``value`` stands for raises."""
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, DictView):
        return getattr(value.mapping.kind(), value.which)()
    if isinstance(value, ProxyValue):
        return types.MappingProxyType({})
    kind: Any = value.python_type
    return tuple.__new__(kind, ()) if issubclass(kind, tuple) else kind()


def store_directly(m: Machine, owner: ObjectValue, name: str, value: Value) -> None:
    """``object.__setattr__(owner, name, value)``."""
    obj, kind = owner.value, type(owner.value)
    found, place = class_member(m, kind, name)
    if isinstance(found, property):
        _store_by_property(m, found, owner, value, place)
        return
    if found is not ABSENT and hasattr(type(found), "__set__"):
        _store_by_descriptor(m, found, owner, name, value, place)
        return
    if not hasattr(obj, "__dict__"):
        if found is ABSENT:
            raise absent(kind, name)
        raise raising(AttributeError(f"'{kind.__name__}' object attribute '{name}' is read-only"))
    assign(m, owner, name, value)


def _store_by_property(m: Machine, found: property, owner: ObjectValue, value: Value, place: src.Source | None) -> None:
    setter = unwrapped(m, found, place, "fset")
    if setter.is_none:
        try:
            found.__set__(owner.value, None)
        except AttributeError as e:
            raise raising(e) from None
    m.call(setter, [owner, value], {})


def _delete_by_property(m: Machine, found: property, owner: ObjectValue, place: src.Source | None) -> None:
    deleter = unwrapped(m, found, place, "fdel")
    if deleter.is_none:
        try:
            found.__delete__(owner.value)
        except AttributeError as e:
            raise raising(e) from None
    m.call(deleter, [owner], {})


_OF_EXCEPTIONS = {"args", "__cause__", "__context__", "__suppress_context__", "__notes__"}


def _store_by_descriptor(
    m: Machine, found: Any, owner: ObjectValue, name: str, value: Value, place: src.Source | None
) -> None:
    """An assignment that a descriptor takes: a slot, an exception's part, or a descriptor of the program's own."""
    what = _assignment(owner, name)
    if name == "__traceback__" and isinstance(owner.value, BaseException) and owner.source is None:
        if m.use(value).python_type in (types.TracebackType, type(None)):
            return  # it is made as the exception is raised
    member = isinstance(found, types.MemberDescriptorType)
    if member and not classify.is_heap_type(found.__objclass__) and not _is_writable(found.__objclass__):
        raise Break("FL110", what=what, why="it may be read-only")
    if member or (isinstance(owner.value, BaseException) and name in _OF_EXCEPTIONS):
        assign(m, owner, name, value)
        if name == "__cause__":
            m.tracer.effects.attributes.pop((id(owner.value), "__suppress_context__"), None)  # so that it comes last
            assign(m, owner, "__suppress_context__", Constant(True))
        return
    setter, where = class_member(m, type(found), "__set__")
    if type(setter) is not types.FunctionType or place is None:
        raise Break("FL110", what=what, why="it is a descriptor that runs code")
    descriptor = m.use(m.tracer.lazy(found, place))
    m.call(bind(m, setter, descriptor, "__set__", where), [owner, value], {})


def _is_writable(kind: type) -> bool:
    """Whether the members of a class implemented in C can be assigned."""
    return issubclass(kind, BaseException) and not issubclass(kind, BaseExceptionGroup)


def delete(m: Machine, owner: Value, name: str) -> None:
    """``del owner.name``; on an existing object it is replayed after the graph."""
    what = f"deletion of `{owner.describe()}.{name}`"
    if isinstance(owner, TensorValue) and class_member(m, owner.kind, name)[0] is ABSENT:
        assigned = m.tracer.effects.attributes.get((id(owner), name))
        if (assigned[1] is DELETED) if assigned is not None else tensor_item(m, owner, name) is None:
            raise absent(owner.kind, name)
        m.tracer.effects.dressed.add(id(owner))
        assign(m, owner, name, DELETED)
        return
    if isinstance(owner, Known) and _is_written_plainly(owner, name):
        if name not in vars(owner.value) or m.tracer.effects.attributes.get((id(owner.value), name)) is not None:
            raise Break("FL110", what=what, why="the attribute is not the class's own")
        class_member(m, owner.value, name)  # guards that it is there
        _write_on_class(m, owner, name, DELETED)
        return
    if not isinstance(owner, ObjectValue) or isinstance(owner.value, BaseException):
        raise Break("FL110", what=what, why="attributes of such objects are deleted eagerly")
    deleter, place = class_member(m, owner.python_type, "__delattr__")
    if type(deleter) is types.FunctionType:
        m.call(class_function(m, deleter, place), [owner, Constant(name)], {})
        return
    delete_directly(m, owner, name)


def delete_directly(m: Machine, owner: ObjectValue, name: str) -> None:
    """``object.__delattr__(owner, name)``."""
    what, kind = f"deletion of `{owner.describe()}.{name}`", owner.python_type
    found, place = class_member(m, kind, name)
    if isinstance(found, property):
        _delete_by_property(m, found, owner, place)
        return
    data = hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")
    if found is not ABSENT and data and not isinstance(found, types.MemberDescriptorType):
        deleter, where = class_member(m, type(found), "__delete__")
        if type(deleter) is types.FunctionType and place is not None:
            m.call(bind(m, deleter, m.use(m.tracer.lazy(found, place)), "__delete__", where), [owner], {})
            return
        raise Break("FL110", what=what, why="it is a descriptor that runs code")
    assigned = m.tracer.effects.attributes.get((id(owner.value), name))
    present = assigned is not None and assigned[1] is not DELETED
    if assigned is None and owner.source is not None:
        present = name in (vars_of(owner.value) or ()) or isinstance(found, types.MemberDescriptorType)
        if present:
            ATTRIBUTES[type(owner)](m, owner, name)  # guards that it is there
    if not present and found is not ABSENT and not hasattr(owner.value, "__dict__"):
        raise raising(AttributeError(f"'{kind.__name__}' object attribute '{name}' is read-only"))
    if not present:
        raise absent(kind, name)
    assign(m, owner, name, DELETED)
