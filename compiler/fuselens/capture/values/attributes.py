"""What an attribute of each kind of tracked value is.

:data:`ATTRIBUTES` has a handler for each kind. Those of tensors are in ``tensor_attributes.py``, those of functions in
``function_attributes.py``; what assigning and deleting do is in ``assignments.py``.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import threading
import types
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..arrays import operations as arrays
from ..breaks import Break, Raised, raising
from ..hook import _hook
from ..rules.table import RULES
from ..tracing import sources as src
from ..tracing import wrapping
from ..tracing.wrapping import CONSTANT_TYPES
from .algebra import (
    ActiveValue,
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
    MethodValue,
    NamedMethod,
    ObjectValue,
    PartialValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    Traceback,
    Value,
)
from .kinds import PerKind
from .known import from_plain, plain

if TYPE_CHECKING:
    from ..machine import Machine

ABSENT = object()
MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def class_attribute(kind: type, name: str) -> Any:
    """The attribute as stored in the class (no descriptor protocol); :data:`ABSENT` when there is none."""
    for cls in kind.__mro__ or ():
        if name in cls.__dict__:
            return cls.__dict__[name]
    return ABSENT


def class_member(m: Machine, kind: type, name: str, after: type | None = None) -> tuple[Any, src.Source | None]:
    """:func:`class_attribute` (of the classes that follow ``after``), with guards that it is found in the same place,
    and where that is; None for library classes, which do not change."""
    asked = (id(kind), name, id(after))
    known = m.tracer.members.get(asked)
    if known is None:  # else what was guarded holds
        known = m.tracer.members[asked] = (kind, after, *_member_of(m, kind, name, after))
    return known[2], known[3]


class Written:
    """What :func:`class_member` finds where the traced program assigned the attribute of a class."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


def _member_of(m: Machine, kind: type, name: str, after: type | None) -> tuple[Any, src.Source | None]:
    """What :func:`class_member` gives, looked for."""
    order = kind.__mro__
    if order is None:
        raise Break("FL106", what=f"{kind.__name__}.{name}", why="the class is not finished")
    for cls in order[order.index(after) + 1 if after is not None else 0 :]:
        written = m.tracer.effects.attributes.get((id(cls), name))
        if written is not None:
            if written[1] is DELETED:
                continue
            return Written(written[1]), None
        namespace = None if classify.is_library_class(cls) else src.instance_dict(src.constant(cls, cls.__qualname__))
        if name in cls.__dict__:
            if namespace is None:
                m.tracer.take(cls, name, cls.__dict__[name])
            return cls.__dict__[name], namespace and src.dict_item(namespace, name, f"{cls.__qualname__}.{name}")
        if namespace is not None:
            m.tracer.guard(
                namespace, _hook.MISSING, name, name="MISSING", text=f"{cls.__qualname__} does not define {name}"
            )
    return ABSENT, None


def class_function(m: Machine, found: types.FunctionType, source: src.Source | None) -> Value:
    """A function that a class defines."""
    return FunctionValue(found, None) if source is None else m.use(m.tracer.lazy(found, source))


def unwrapped(m: Machine, found: Any, source: src.Source | None, part: str) -> Value:
    """What a staticmethod, classmethod or property wraps: its attribute ``part``."""
    inner = getattr(found, part)
    if source is None:
        return static_value(inner)
    m.tracer.guard_type(source, type(found))
    return m.use(m.tracer.lazy(inner, src.generic_attribute(source, part)))


def class_method(m: Machine, found: Any, source: src.Source | None, cls: Value) -> Value:
    """A classmethod, bound to its class."""
    function = unwrapped(m, found, source, "__func__")
    if isinstance(function, ObjectValue) and hasattr(function.python_type, "__get__"):
        raise Break("FL106", what="a classmethod", why="it wraps a descriptor")
    return MethodValue(function, cls)


def static_value(obj: Any) -> Value:
    """A value for an object that cannot change under the program: a builtin, a library's function or class."""
    if type(obj) is types.FunctionType:
        return FunctionValue(obj, None)
    if type(obj) in CONSTANT_TYPES or isinstance(obj, enum.Enum):
        return Constant(obj)
    return Known(obj)


def absent(kind: type, name: str) -> Raised:
    return raising(AttributeError(f"'{_hook.type_name(kind)}' object has no attribute '{name}'"))


def vars_of(obj: Any) -> dict[str, Any] | None:
    """``obj.__dict__``, whatever the class makes of attribute look-up; None when there is none."""
    try:
        return object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None


# --- loading ----------------------------------------------------------------------------------------------------


def not_traced(m: Machine, value: Value, name: str) -> Value:
    """The answer of kinds that have no rule for an attribute."""
    raise Break("FL106", what=f"{value.describe()}.{name}", why="not traced")


ATTRIBUTES: PerKind[Value] = PerKind(not_traced)


def load(m: Machine, value: Value, name: str) -> Value:
    """``value.name``; raises :class:`Break` where reading it could run code that is not traced."""
    try:
        return ATTRIBUTES[type(value)](m, value, name)
    except Raised as raised:
        if issubclass(raised.kind, AttributeError):
            _tell_owner(m, raised.value, value, name)
        raise


def _tell_owner(m: Machine, error: ObjectValue, owner: Value, name: str) -> None:
    """Looking an attribute up tells an AttributeError, whoever raised it, whose attribute was looked for."""
    told = any((id(error.value), n) in m.tracer.effects.attributes for n in ("name", "obj"))
    if error.source is None and not told and error.value.name is None and error.value.obj is None:
        assign(m, error, "name", Constant(name))
        assign(m, error, "obj", owner)


def load_or_none(m: Machine, value: Value, name: str) -> Value | None:
    """``value.name``; None when there is no such attribute."""
    try:
        return ATTRIBUTES[type(value)](m, value, name)
    except Raised as raised:
        if issubclass(raised.kind, AttributeError):
            return None
        raise


# --- builtin values -----------------------------------------------------------------------------------------------


@ATTRIBUTES.of(SetValue, InstanceDict, ProxyValue)
def _of_container(m: Machine, value: Value, name: str) -> Value:
    """A method of a builtin container, or what all of them have."""
    if name == "__class__":
        return Known(value.python_type)
    if class_attribute(value.python_type, name) is ABSENT:
        raise absent(value.python_type, name)
    return NamedMethod(value, name)


@ATTRIBUTES.of(SliceValue)
def _of_slice(m: Machine, value: SliceValue, name: str) -> Value:
    if name in ("start", "stop", "step"):
        return m.use(value.parts[("start", "stop", "step").index(name)])
    return _of_container(m, value, name)


@ATTRIBUTES.of(DequeValue)
def _of_deque(m: Machine, value: DequeValue, name: str) -> Value:
    return Constant(value.maxlen) if name == "maxlen" else _of_container(m, value, name)


@ATTRIBUTES.of(DictValue)
def _of_dict(m: Machine, value: DictValue, name: str) -> Value:
    if name == "default_factory" and value.kind is defaultdict:
        return m.use(value.factory or Constant(None))
    if name == "__dict__" and value.kind is OrderedDict:
        if value.attributes is None:
            value.attributes = DictValue({})
        return m.use(value.attributes)
    if value.attributes is not None and class_attribute(value.kind, name) is ABSENT:
        own = m.use(value.attributes)
        if isinstance(own, DictValue) and name in own.items:
            return m.use(own.items[name])
    return _of_container(m, value, name)


@ATTRIBUTES.of(DictView)
def _of_view(m: Machine, value: DictView, name: str) -> Value:
    if name == "mapping":
        return ProxyValue(value.mapping)
    return _of_container(m, value, name)


@ATTRIBUTES.of(SequenceValue)
def _of_sequence(m: Machine, value: SequenceValue, name: str) -> Value:
    if name == "__class__":
        return Known(value.kind)
    if hasattr(value.kind, "_fields"):
        return _named_field(m, value, name)
    if value.kind not in (list, tuple, torch.Size):
        return _structseq(m, value, name)
    return _of_container(m, value, name)


def _named_field(m: Machine, value: SequenceValue, name: str) -> Value:
    """An attribute of a namedtuple: a field, or what its class defines."""
    found, place = class_member(m, value.kind, name)
    fields: tuple[str, ...] = value.kind._fields  # type: ignore[attr-defined]
    if name in fields and type(found).__name__ == "_tuplegetter":
        return m.use(value.items[fields.index(name)])
    if found is ABSENT:
        raise absent(value.kind, name)
    return bind(m, found, value, name, place)


def _structseq(m: Machine, value: SequenceValue, name: str) -> Value:
    """A field of what torch operations return (``torch.return_types.max``: values, indices)."""
    descriptor = class_attribute(value.kind, name)
    if descriptor is ABSENT:
        raise absent(value.kind, name)
    if type(descriptor) in CONSTANT_TYPES:
        return Constant(descriptor)
    if isinstance(descriptor, types.MemberDescriptorType):
        probe = value.kind(range(len(value.items)))
        position = getattr(probe, name)
        return value.items[position]
    return NamedMethod(value, name)


@ATTRIBUTES.of(Constant)
def _of_constant(m: Machine, value: Constant, name: str) -> Value:
    if name == "__class__":
        return Known(value.python_type)
    try:
        found = getattr(value.value, name)
    except AttributeError as e:
        raise raising(e) from None
    if type(found) in CONSTANT_TYPES:
        return Constant(found)
    if isinstance(value.value, enum.Enum):
        return _of_member(m, value, name, found)
    return NamedMethod(value, name) if callable(found) else Known(found)


def _of_member(m: Machine, value: Constant, name: str, found: Any) -> Value:
    """An attribute of an enumeration's member, which is no constant: its value, or a method or property of the class."""
    defined, place = class_member(m, value.python_type, name)
    if isinstance(defined, property) or type(defined) is types.FunctionType:
        return bind(m, defined, value, name, place)
    if isinstance(defined, (staticmethod, classmethod)):
        return bind(m, defined, value, name, place)
    if defined is ABSENT or name in ("value", "_value_", "name"):
        return from_plain(found, f"{value.describe()}.{name}")
    return NamedMethod(value, name)


@ATTRIBUTES.of(MethodValue)
def _of_method(m: Machine, value: MethodValue, name: str) -> Value:
    if name == "__self__":
        return value.receiver
    if name == "__func__":
        return value.function
    if name == "__class__":
        return Known(types.MethodType)
    return load(m, m.use(value.function), name)


@ATTRIBUTES.of(NamedMethod)
def _of_named_method(m: Machine, value: NamedMethod, name: str) -> Value:
    if name == "__self__":
        return m.use(value.receiver)
    if name in ("__name__", "__qualname__", "__doc__"):
        return Constant(getattr(getattr(value.receiver.python_type, value.name), name))
    return not_traced(m, value, name)


@ATTRIBUTES.of(PartialValue)
def _of_partial(m: Machine, value: PartialValue, name: str) -> Value:
    if name == "func":
        return m.use(value.function)
    if name == "args":
        return SequenceValue(list(value.args), tuple)
    return DictValue(value.kwargs) if name == "keywords" else not_traced(m, value, name)


@ATTRIBUTES.of(ArrayValue)
def _of_array(m: Machine, value: ArrayValue, name: str) -> Value:
    fake = arrays.memory(m, value, f"{value.describe()}.{name}").fake
    if name in ("shape", "ndim", "size"):
        size = m.use(load(m, arrays.memory(m, value, name), "shape"))
        assert isinstance(size, SequenceValue)
        if name == "shape":
            return SequenceValue(list(size.items), tuple)
        return Constant(fake.ndim) if name == "ndim" else m.call(load(m, size, "numel"), [], {})
    if name in ("strides", "nbytes"):
        return arrays.layout(m, value, name)
    if name in ("dtype", "itemsize"):
        return from_plain(getattr(torch_private.array_of(fake.dtype), name), name)
    return arrays.attribute(m, value, name) or not_traced(m, value, name)


@ATTRIBUTES.of(ActiveValue)
def _of_active(m: Machine, value: ActiveValue, name: str) -> Value:
    return value.attribute(m, name) or not_traced(m, value, name)


@ATTRIBUTES.of(IteratorValue, CombinedIterator)
def _of_iterator(m: Machine, value: Value, name: str) -> Value:
    return NamedMethod(value, name) if name in ("__next__", "__iter__") else not_traced(m, value, name)


@ATTRIBUTES.of(GeneratorValue)
def _of_generator(m: Machine, value: GeneratorValue, name: str) -> Value:
    known = name in ("send", "throw", "close", "__next__", "__iter__")
    return NamedMethod(value, name) if known else not_traced(m, value, name)


@ATTRIBUTES.of(SymbolValue)
def _of_symbol(m: Machine, value: SymbolValue, name: str) -> Value:
    return load(m, Constant(plain(value)), name)


# --- classes, modules, library objects ----------------------------------------------------------------------------


_OF_MODULES = class_attribute(types.ModuleType, "__getattribute__")


@ATTRIBUTES.of(Known)
def _of_known(m: Machine, value: Known, name: str) -> Value:
    obj = value.value
    if isinstance(obj, types.ModuleType):
        return _of_module(m, obj, value.source, name)
    if isinstance(obj, type):
        return _of_class(m, value, name)
    if isinstance(obj, (torch.finfo, torch.iinfo)):
        return Constant(getattr(obj, name))
    if type(obj).__module__.startswith("torch._ops"):
        return static_value(getattr(obj, name))
    try:
        found = getattr(obj, name)
    except AttributeError:
        raise Break("FL106", what=f"{value.describe()}.{name}", why="there is no such attribute") from None
    if type(found) in CONSTANT_TYPES or callable(found):
        return static_value(found)
    return from_plain(found, f"{value.describe()}.{name}")


def _of_module(m: Machine, module: types.ModuleType, source: src.Source | None, name: str) -> Value:
    if class_attribute(type(module), "__getattribute__") is not _OF_MODULES:
        raise Break("FL106", what=f"a module's {name}", why="its class looks attributes up in its own way")
    try:
        found = getattr(module, name)
    except AttributeError as e:
        base = source or src.constant(module, module.__name__)
        m.tracer.guard(
            src.instance_dict(base), _hook.MISSING, name, name="MISSING", text=f"{module.__name__} has no {name}"
        )
        raise raising(e) from None
    base = source or src.constant(module, module.__name__)
    if name not in vars(module):
        if type(module) is types.ModuleType:
            return static_value(m.tracer.take(module, name, found))
        return m.use(m.tracer.lazy(found, src.generic_attribute(base, name)))  # of a class of its own
    if classify.is_library_module(module.__name__) and (
        type(found) in CONSTANT_TYPES or isinstance(found, (type, types.ModuleType)) or callable(found)
    ):
        return static_value(m.tracer.take(module, name, found))
    return m.use(m.tracer.lazy(found, src.attribute(base, name)))


def _of_class(m: Machine, value: Known, name: str) -> Value:
    cls = value.value
    if name in ("__name__", "__qualname__", "__module__"):
        return Constant(getattr(cls, name))
    found, place = class_member(m, cls, name)
    if type(found) is Written:
        return m.use(found.value)
    if isinstance(found, types.ClassMethodDescriptorType):
        return Known(getattr(cls, name))
    of_metaclass = class_attribute(type(cls), name)
    if found is ABSENT and of_metaclass is ABSENT:
        getter, where = class_member(m, type(cls), "__getattr__")
        if type(getter) is types.FunctionType:
            return m.use(m.call(class_function(m, getter, where), [value, Constant(name)], {}))
        raise raising(AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'", name=name, obj=cls))
    if found is ABSENT:
        return _of_metaclass(m, value, name)
    if name == "__dict__":
        base = value.source or src.constant(cls, cls.__name__)
        return m.use(m.tracer.lazy(cls.__dict__, src.generic_attribute(base, name)))
    if hasattr(type(of_metaclass), "__set__"):
        raise Break("FL106", what=f"{cls.__name__}.{name}", why="its metaclass has a descriptor of that name")
    if isinstance(found, staticmethod):
        return unwrapped(m, found, place, "__func__")
    if isinstance(found, classmethod):
        return class_method(m, found, place, value)
    if type(found) is types.FunctionType:
        return class_function(m, found, place)
    if place is not None and (not hasattr(type(found), "__get__") or type(found) is functools._lru_cache_wrapper):
        return m.use(m.tracer.lazy(found, place))
    if place is not None:
        m.tracer.guard_identity(place, found)
    return _unbound(m, value, found, name)


def _unbound(m: Machine, value: Known, found: Any, name: str) -> Value:
    """What reading ``found``, an attribute of a class that does not change, on the class itself gives."""
    if type(found) in CONSTANT_TYPES or classify.is_library_callable(found):
        return static_value(found)
    if isinstance(found, type):
        return Known(found)
    cls = value.value
    try:
        bound = getattr(cls, name)
    except AttributeError:
        raise Break("FL106", what=f"{cls.__name__}.{name}", why="the class has no such attribute") from None
    if type(bound) in CONSTANT_TYPES or callable(bound):
        return static_value(bound)
    base = value.source or src.constant(cls, cls.__name__)
    return m.use(m.tracer.lazy(bound, src.generic_attribute(base, name)))


def _of_metaclass(m: Machine, value: Known, name: str) -> Value:
    """An attribute of a class that only its metaclass defines."""
    cls = value.value
    found, place = class_member(m, type(cls), name)
    if name in ("__mro__", "__bases__"):
        base = value.source or src.constant(cls, cls.__name__)
        return m.use(m.tracer.lazy(getattr(cls, name), src.generic_attribute(base, name)))
    plain_ = type(found) in CONSTANT_TYPES and place is not None
    if not plain_ and type(found) is not types.FunctionType and not isinstance(found, property):
        raise Break("FL106", what=f"{cls.__name__}.{name}", why="its metaclass defines it")
    return bind(m, found, value, name, place)


@ATTRIBUTES.of(SuperValue)
def _of_super(m: Machine, value: SuperValue, name: str) -> Value:
    receiver = m.use(value.receiver)
    kind = receiver.value if isinstance(receiver, Known) and isinstance(receiver.value, type) else receiver.python_type
    if value.cls not in kind.__mro__:
        raise Break("FL106", what=f"super().{name}", why="the receiver is no instance of the class")
    found, place = class_member(m, kind, name, after=value.cls)
    if found is ABSENT:
        raise raising(AttributeError(f"'super' object has no attribute '{name}'"))
    if kind is not receiver.python_type and not isinstance(found, (staticmethod, classmethod, types.BuiltinMethodType)):
        raise Break("FL106", what=f"super().{name}", why="it is read on a class")
    if isinstance(found, classmethod) and isinstance(receiver, Known):
        return class_method(m, found, place, receiver)
    if isinstance(receiver, ObjectValue) and not hasattr(type(found), "__get__") and place is None:
        raise Break("FL106", what=f"super().{name}", why="it is no function")  # the instance may have one of its own
    if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return MethodValue(static_value(found), receiver)  # the receiver's class may have another of that name
    return bind(m, found, receiver, name, place)


# --- objects ----------------------------------------------------------------------------------------------------


DELETED = Constant(ABSENT)
"""What ``Effects.attributes`` holds for an attribute that the traced program deleted."""


def assign(m: Machine, owner: ObjectValue | TensorValue | Known, name: str, value: Value) -> None:
    """``owner.name = value`` where no class has a say."""
    m.tracer.effects.touch(owner, f"assignment to `{owner.describe()}.{name}`")
    key = (id(owner.value), name)
    if key in m.tracer.effects.attributes and m.tracer.effects.attributes[key][1] is DELETED:
        del m.tracer.effects.attributes[key]  # what is assigned again comes last; what is only replaced keeps its place
    m.tracer.effects.attributes[key] = (owner, value)


def content(m: Machine, value: ObjectValue) -> Value | None:
    """The builtin container that an instance of a subclass of ``list``, ``dict`` … also is; None for other objects."""
    if value.content is None and value.source is not None:
        obj, source, kind = value.value, value.source, type(value.value)
        if issubclass(kind, dict):
            base = OrderedDict if issubclass(kind, OrderedDict) else dict
            value.content = wrapping.dictionary(m.tracer, obj, base, source)
        elif issubclass(kind, (list, tuple)):
            value.content = wrapping.sequence(m.tracer, obj, list if issubclass(kind, list) else tuple, source)
    return value.content


@ATTRIBUTES.of(ObjectValue)
def _of_object(m: Machine, value: ObjectValue, name: str) -> Value:
    obj = value.value
    kind = type(obj)
    if name == "__class__":
        return Known(kind)
    override, place = class_member(m, kind, "__getattribute__")
    if type(override) is types.FunctionType:
        return m.call(class_function(m, override, place), [value, Constant(name)], {})
    if kind is threading.local:
        return _thread_local(m, value, name)
    if override is not object.__dict__["__getattribute__"] and not issubclass(kind, _BUILTIN_BASES):
        raise Break(
            "FL106", what=f"{value.describe()}.{name}", why=f"{kind.__name__} looks attributes up in its own way"
        )
    return generic(m, value, name)


_BUILTIN_BASES = (
    property,
    contextvars.ContextVar,
    functools.partial,
    types.SimpleNamespace,
    BaseException,
    dict,
    list,
    tuple,
    set,
    frozenset,
    str,
    bytes,
    int,
    float,
    complex,
)


def generic(m: Machine, value: ObjectValue, name: str) -> Value:
    """An attribute as ``object.__getattribute__`` finds it, or else the class's ``__getattr__``."""
    obj, source = value.value, value.source
    kind = type(obj)
    assigned = m.tracer.effects.attributes.get((id(obj), name))
    if assigned is not None and assigned[1] is not DELETED:
        return m.use(assigned[1])
    deleted = assigned is not None
    if name in MODULE_TABLES and any((id(obj), n) in m.tracer.effects.attributes for n in vars(obj).get(name) or ()):
        raise Break("FL106", what=f"{value.describe()}.{name}", why="attributes of the module are replaced or assigned")
    found, place = class_member(m, kind, name)
    if isinstance(found, property):
        return bind(m, found, value, name, place)
    if hasattr(type(found), "__set__") and name != "__dict__":
        return _by_data_descriptor(m, found, value, name, place, deleted)
    instance = vars_of(obj)
    if name == "__dict__" and instance is not None:
        return InstanceDict(value)
    if instance is not None and source is not None and not deleted:
        if name in instance:
            return m.use(m.tracer.lazy(instance[name], src.attribute(source, name)))
        m.tracer.guard(
            src.instance_dict(source), _hook.MISSING, name, name="MISSING",
            text=f"{name!r} not in {source}.__dict__",
        )  # fmt: skip
    if found is not ABSENT:
        return bind(m, found, value, name, place)
    if issubclass(kind, torch.nn.Module) and class_attribute(kind, "__getattr__") is torch.nn.Module.__getattr__:
        member = _member(m, value, name)
        if member is not None:
            return member
        raise absent(kind, name)
    return _by_getattr(m, value, name)


def _by_data_descriptor(
    m: Machine, found: Any, value: ObjectValue, name: str, place: src.Source | None, deleted: bool
) -> Value:
    """What a descriptor that also takes assignments gives: it comes before the instance's own attributes.

    ``deleted``: the traced program deleted what it gave before."""
    if not isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        held = content(m, value) if type(found) is _FIELD else None
        if isinstance(held, SequenceValue):
            return m.use(held.items[found.__reduce__()[1][0]])
        return _by_descriptor(m, found, value, name, place)
    if value.source is not None and not deleted:
        if isinstance(found, types.MemberDescriptorType) and not _is_filled(found, value.value):
            text = f"{value.source} has no {name}"
            m.tracer.guard(value.source, _hook.CALL, _Unset(found), name="MISSING", text=text)
            return _by_getattr(m, value, name)
        return _generic(m, value.value, value.source, name)
    if isinstance(value.value, BaseException) and not deleted:
        return _of_exception(m, value, name)
    if isinstance(value.content, Constant) and not classify.is_heap_type(found.__objclass__):
        return from_plain(getattr(value.content.value, name), f"{value.describe()}.{name}")
    return _by_getattr(m, value, name)


_FIELD = type(vars(collections.namedtuple("_", "field"))["field"])


def _is_filled(slot: types.MemberDescriptorType, obj: Any) -> bool:
    try:
        slot.__get__(obj)
    except AttributeError:
        return False
    return True


class _Unset:
    """Whether nothing is in a slot, when guards are checked."""

    def __init__(self, slot: types.MemberDescriptorType) -> None:
        self.slot = slot
        self.__name__ = f"{slot.__name__} is unset"

    def __call__(self, obj: Any) -> bool:
        return not _is_filled(self.slot, obj)


def _by_getattr(m: Machine, value: ObjectValue, name: str) -> Value:
    """What ``__getattr__`` gives for an attribute that is nowhere else."""
    getter, place = class_member(m, value.python_type, "__getattr__")
    if type(getter) is types.FunctionType:
        return m.use(m.call(class_function(m, getter, place), [value, Constant(name)], {}))
    if getter is not ABSENT:
        raise Break("FL106", what=f"{value.describe()}.{name}", why="__getattr__ is no function")
    raise absent(value.python_type, name)


def _member(m: Machine, value: ObjectValue, name: str) -> Value | None:
    """A parameter, buffer or submodule of a module; None, guarded, when it has none of that name."""
    source = value.source
    for table in MODULE_TABLES:
        assigned = m.tracer.effects.attributes.get((id(value.value), table))
        members = value.value.__dict__.get(table)
        written = (
            m.tracer.effects.changed(m.tracer.objects.known.get(id(members)))
            if assigned is None
            else m.use(assigned[1])
        )
        if isinstance(written, DictValue):
            if name in written.items:
                return m.use(written.items[name])
            continue
        if members is None or source is None:
            continue
        container = src.attribute(source, table)
        if name in members:
            return m.use(m.tracer.lazy(members[name], src.dict_item(container, name, f"{source}.{name}")))
        m.tracer.guard(container, _hook.MISSING, name, name="MISSING", text=f"{name!r} not in {source}.{table}")
    return None


def _generic(m: Machine, obj: Any, source: src.Source, name: str) -> Value:
    try:
        found = getattr(obj, name)
    except AttributeError:
        raise Break("FL106", what=f"{source}.{name}", why="it is unset") from None
    return m.use(m.tracer.lazy(found, src.generic_attribute(source, name)))


def _by_descriptor(m: Machine, found: Any, value: ObjectValue, name: str, place: src.Source | None) -> Value:
    """What a descriptor of Python's gives: its ``__get__``, traced."""
    getter, where = class_member(m, type(found), "__get__")
    if type(getter) is not types.FunctionType:
        raise Break("FL106", what=f"{value.describe()}.{name}", why="it is a descriptor that runs code")
    descriptor = m.use(m.tracer.lazy(found, place or src.constant(found, name)))
    return m.use(m.call(bind(m, getter, descriptor, "__get__", where), [value, Known(value.python_type)], {}))


def _of_exception(m: Machine, value: ObjectValue, name: str) -> Value:
    """An attribute that an exception made while tracing has from its C type."""
    if name == "__traceback__":
        return Traceback() if id(value.value) in m.tracer.exceptions.raised_at else Constant(None)
    found = getattr(value.value, name)
    if type(found) is tuple and all(type(v) in CONSTANT_TYPES for v in found):
        return SequenceValue([Constant(v) for v in found], tuple)
    if type(found) in CONSTANT_TYPES:
        return Constant(found)
    raise Break("FL106", what=f"{value.describe()}.{name}", why="not traced")


def context_of(m: Machine, exception: ObjectValue) -> Value | None:
    """``exception.__context__``."""
    assigned = m.tracer.effects.attributes.get((id(exception.value), "__context__"))
    if assigned is not None:
        return m.use(assigned[1])
    return _generic(m, exception.value, exception.source, "__context__") if exception.source is not None else None


def special(m: Machine, value: Value, name: str, args: list[Value]) -> Value | None:
    """The result of a special method that the object's class defines in Python; None when it has none."""
    method, place = class_member(m, value.python_type, name)
    if method is None:
        raise Break("FL105", what=f"{value.python_type.__name__}.{name}", why="the class forbids it")
    if method is ABSENT or method is object.__dict__.get(name):
        return None
    if isinstance(method, (types.WrapperDescriptorType, types.MethodDescriptorType)):
        if isinstance(value, ObjectValue):
            if isinstance(value.value, BaseException) or content(m, value) is not None:
                return None  # what the builtin class does
        raise Break("FL105", what=f"{value.python_type.__name__}.{name}", why="it is implemented in C")
    return m.use(m.call(bind(m, method, value, name, place), args, {}))


def has_own_metaclass(value: Value) -> bool:
    """Whether ``value`` is a class whose metaclass may define what operators and builtins do with it."""
    if not isinstance(value, Known):
        return False
    kind = type(value.value)
    return kind is not type and issubclass(kind, type) and not issubclass(kind, enum.EnumMeta)


def by_metaclass(m: Machine, value: Known, name: str, args: list[Value]) -> Value | None:
    """The result of a special method that the metaclass of a class defines in Python; None when it defines none."""
    if not has_own_metaclass(value):
        return None
    found, _ = class_member(m, type(value.value), name)
    return special(m, value, name, args) if type(found) is types.FunctionType else None


def bind(m: Machine, found: Any, receiver: Value, name: str, place: src.Source | None) -> Value:
    """What the class attribute ``found``, read at ``place``, is on an instance."""
    if type(found) is Written:
        value = m.use(found.value)
        return MethodValue(value, receiver) if value.python_type is types.FunctionType else value
    if type(found) is types.FunctionType:
        return MethodValue(class_function(m, found, place), receiver)
    if isinstance(found, staticmethod):
        return unwrapped(m, found, place, "__func__")
    if isinstance(found, classmethod):
        return class_method(m, found, place, Known(receiver.python_type))
    if isinstance(found, property):
        return _of_property(m, found, receiver, name, place)
    if place is not None and hasattr(type(found), "__get__"):
        m.tracer.guard_identity(place, found)
    if type(found).__name__ == "instancemethod":  # a method that pybind11 has made
        return MethodValue(Known(found.__func__), receiver)
    if type(found) is functools._lru_cache_wrapper:  # a method that has a cache is bound as a function is
        return MethodValue(m.use(m.tracer.lazy(found, place or src.constant(found, name))), receiver)
    if isinstance(found, functools.cached_property) and isinstance(receiver, ObjectValue) and found.attrname == name:
        if not receiver.python_type.__dictoffset__:
            why = f"No '__dict__' attribute on {receiver.python_type.__name__!r} instance to cache {name!r} property."
            raise raising(TypeError(why))
        result = m.call(unwrapped(m, found, place, "func"), [receiver], {})
        assign(m, receiver, name, result)
        return m.use(result)
    if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)):
        return NamedMethod(receiver, name)
    if hasattr(type(found), "__get__"):
        if isinstance(receiver, ObjectValue) and type(found) is not type:
            return _by_descriptor(m, found, receiver, name, place)
        if not isinstance(found, type):
            raise Break("FL106", what=f"{receiver.describe()}.{name}", why="it is a descriptor that runs code")
    if place is None and _has_contents(found):  # a library's class does not change, what it holds may
        place = src.constant(found, name)
    if place is not None:
        return m.use(m.tracer.lazy(found, place))
    return static_value(found)


def _of_property(m: Machine, found: property, receiver: Value, name: str, place: src.Source | None) -> Value:
    getter = unwrapped(m, found, place, "fget")
    if not isinstance(getter, FunctionValue) and not (isinstance(getter, Known) and getter.value in RULES):
        raise Break("FL106", what=name, why="the property is not a Python function")
    return m.call(getter, [receiver], {})


def _has_contents(obj: Any) -> bool:
    """Whether ``obj`` is a container, or an instance of a class of Python's, which is traced as others of its kind are."""
    kind = type(obj)
    return kind in (dict, list, set) or (classify.is_heap_type(kind) and not issubclass(kind, (type, enum.Enum)))


def _thread_local(m: Machine, value: ObjectValue, name: str) -> Value:
    """An attribute of a ``threading.local``, as it is in the thread that runs."""
    assigned = m.tracer.effects.attributes.get((id(value.value), name))
    if assigned is not None and assigned[1] is not DELETED:
        return m.use(assigned[1])
    if assigned is None and value.source is not None:
        if hasattr(value.value, name):
            return m.use(m.tracer.lazy(getattr(value.value, name), src.applied(_Named(name), value.source)))
        m.tracer.guard(value.source, _hook.CALL, _Lacks(name), name="MISSING", text=f"{value.source} has no {name}")
    raise absent(value.python_type, name)


class _Named:
    """``getattr(obj, name)``, when guards are checked."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, obj: Any) -> Any:
        return getattr(obj, self.__name__)


class _Lacks(_Named):
    def __call__(self, obj: Any) -> bool:
        return not hasattr(obj, self.__name__)


def instance_item(m: Machine, mapping: InstanceDict, name: Any) -> Value | None:
    """``owner.__dict__[name]``; None when there is no such attribute."""
    owner = mapping.owner
    assigned = m.tracer.effects.attributes.get((id(owner.value), name))
    if assigned is not None:
        return None if assigned[1] is DELETED else m.use(assigned[1])
    if owner.source is None:
        return None
    attributes = vars_of(owner.value) or {}
    if name in attributes:
        return m.use(m.tracer.lazy(attributes[name], src.attribute(owner.source, name)))
    m.tracer.guard(
        src.instance_dict(owner.source), _hook.MISSING, name, name="MISSING",
        text=f"{name!r} not in {owner.source}.__dict__",
    )  # fmt: skip
    return None


def store_instance_item(m: Machine, mapping: InstanceDict, name: Any, value: Value) -> None:
    """``owner.__dict__[name] = value``, or its deletion."""
    owner = mapping.owner
    found, _ = class_member(m, owner.python_type, name) if isinstance(name, str) else (None, None)
    if found is None or hasattr(type(found), "__set__"):
        raise Break("FL110", what=f"an item of {owner.describe()}.__dict__", why="it is not the attribute of that name")
    assign(m, owner, name, value)


def instance_items(m: Machine, mapping: InstanceDict) -> DictValue:
    """All that ``owner.__dict__`` holds now."""
    owner = mapping.owner
    items: dict[Any, Value] = {}
    if owner.source is not None:
        attributes, source = vars_of(owner.value) or {}, src.instance_dict(owner.source)
        keys = tuple(attributes)
        m.tracer.guard(source, _hook.DICT_KEYS_ARE, keys, name="KEYS", text=f"list({source}) == {list(keys)!r}")
        items = {k: m.tracer.lazy(v, src.attribute(owner.source, k)) for k, v in attributes.items()}
    for name, value in m.tracer.effects.attributes_of(owner):
        if value is DELETED:
            items.pop(name, None)
        else:
            items[name] = value
    return DictValue(items)
