"""What an attribute of each kind of tracked value is."""

from __future__ import annotations

import enum
import functools
import threading
import types
from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break, Raised, raising
from ..hook import _hook
from ..tracing import sources as src
from ..tracing.tracer import CONSTANT_TYPES
from .algebra import (
    ActiveValue,
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
    MadeFunction,
    MethodValue,
    NamedMethod,
    ObjectValue,
    Opaque,
    PartialValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    Value,
)
from .known import from_plain, plain

if TYPE_CHECKING:
    from ..machine import Machine

ABSENT = object()
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_TENSOR_CONSTANTS = {
    "shape", "dtype", "device", "ndim", "is_cuda", "is_cpu", "layout", "requires_grad", "is_leaf", "is_sparse",
    "itemsize", "nbytes", "is_quantized", "is_meta", "is_complex", "is_floating_point", "is_mps", "is_xpu", "is_nested",
    "is_mkldnn",
}  # fmt: skip
_LEAF = {True: torch_private.is_leaf, False: torch_private.is_no_leaf}
_FUNCTION_PARTS = ("__annotate__", "__annotations__", "__defaults__", "__kwdefaults__", "__type_params__")
_TENSOR_VIEWS = {"T", "mT", "H", "mH", "real", "imag", "data"}


def class_attribute(kind: type, name: str) -> Any:
    """The attribute as stored in the class (no descriptor protocol); :data:`ABSENT` when there is none."""
    for cls in kind.__mro__ or ():
        if name in cls.__dict__:
            return cls.__dict__[name]
    return ABSENT


def class_member(m: Machine, kind: type, name: str, after: type | None = None) -> tuple[Any, src.Source | None]:
    """:func:`class_attribute` (of the classes that follow ``after``), with guards that it is found in the same place,
    and where that is; None for library classes, which do not change."""
    order = kind.__mro__
    if order is None:
        raise Break("FL106", what=f"{kind.__name__}.{name}", why="the class is not finished")
    for cls in order[order.index(after) + 1 if after is not None else 0 :]:
        namespace = (
            None
            if classify.is_library_module(cls.__module__)
            else src.instance_dict(src.constant(cls, cls.__qualname__))
        )
        if name in cls.__dict__:
            return cls.__dict__[name], namespace and src.dict_item(namespace, name, f"{cls.__qualname__}.{name}")
        if namespace is not None:
            m.tracer.guard(
                namespace, _hook.MISSING, name, name="MISSING", text=f"{cls.__qualname__} does not define {name}"
            )
    return ABSENT, None


def _function(m: Machine, found: types.FunctionType, source: src.Source | None) -> Value:
    """A function that a class defines."""
    return FunctionValue(found, None) if source is None else m.tracer.wrap(found, source)


def _unwrapped(m: Machine, found: Any, source: src.Source | None, part: str) -> Value:
    """What a staticmethod, classmethod or property wraps: its attribute ``part``."""
    inner = getattr(found, part)
    if source is None:
        return static_value(inner)
    m.tracer.guard_type(source, type(found))
    return m.use(m.tracer.lazy(inner, src.generic_attribute(source, part)))


def _class_method(m: Machine, found: Any, source: src.Source | None, cls: Value) -> Value:
    """A classmethod, bound to its class."""
    function = _unwrapped(m, found, source, "__func__")
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


def load(m: Machine, value: Value, name: str) -> Value:
    """``value.name``; raises :class:`Break` where reading it could run code that is not traced."""
    try:
        return _load(m, value, name)
    except Raised as raised:
        if issubclass(raised.kind, AttributeError):
            _tell_owner(m, raised.value, value, name)
        raise


def _tell_owner(m: Machine, error: ObjectValue, owner: Value, name: str) -> None:
    """Looking an attribute up tells an AttributeError, whoever raised it, whose attribute was looked for."""
    told = any((id(error.value), n) in m.tracer.attributes for n in ("name", "obj"))
    if error.source is None and not told and error.value.name is None and error.value.obj is None:
        assign(m, error, "name", Constant(name))
        assign(m, error, "obj", owner)


def _load(m: Machine, value: Value, name: str) -> Value:
    if isinstance(value, TensorValue):
        return _tensor(m, value, name)
    if isinstance(value, ObjectValue):
        return _object(m, value, name)
    if isinstance(value, Known):
        return _known(m, value, name)
    if isinstance(value, SuperValue):
        return _super(m, value, name)
    if isinstance(value, (SequenceValue, DictValue, SetValue, DictView, SliceValue, InstanceDict)):
        if name == "__class__":
            return Known(value.python_type)
        if isinstance(value, SliceValue) and name in ("start", "stop", "step"):
            return m.use(value.parts[("start", "stop", "step").index(name)])
        if isinstance(value, DequeValue) and name == "maxlen":
            return Constant(value.maxlen)
        if isinstance(value, DictValue) and name == "default_factory" and value.kind is defaultdict:
            return m.use(value.factory or Constant(None))
        if isinstance(value, DictView) and name == "mapping":
            raise Break("FL106", what=name, why="a read-only view of a dictionary is not traced")
        if isinstance(value, SequenceValue) and hasattr(value.kind, "_fields"):
            return _named_field(m, value, name)
        if isinstance(value, SequenceValue) and value.kind not in (list, tuple, torch.Size, deque):
            return _structseq(m, value, name)
        if class_attribute(value.python_type, name) is ABSENT:
            raise absent(value.python_type, name)
        return NamedMethod(value, name)
    if isinstance(value, Constant):
        return _constant(m, value, name)
    if isinstance(value, MethodValue):
        if name == "__self__":
            return value.receiver
        if name == "__func__":
            return value.function
        if name == "__class__":
            return Known(types.MethodType)
        return load(m, m.use(value.function), name)
    if isinstance(value, FunctionValue):
        return _function_attribute(m, value, name)
    if isinstance(value, MadeFunction):
        return _made_function(m, value, name)
    if isinstance(value, ActiveValue):
        active = value.attribute(m, name)
        if active is not None:
            return active
    if isinstance(value, (IteratorValue, CombinedIterator)) and name in ("__next__", "__iter__"):
        return NamedMethod(value, name)
    if isinstance(value, NamedMethod) and name in ("__self__", "__name__", "__qualname__", "__doc__"):
        if name == "__self__":
            return m.use(value.receiver)
        return Constant(getattr(getattr(value.receiver.python_type, value.name), name))
    if isinstance(value, PartialValue) and name in ("func", "args", "keywords"):
        parts = {
            "func": value.function,
            "args": SequenceValue(list(value.args), tuple),
            "keywords": DictValue(value.kwargs),
        }
        return m.use(parts[name])
    if isinstance(value, GeneratorValue) and name in ("send", "throw", "close", "__next__", "__iter__"):
        return NamedMethod(value, name)
    if isinstance(value, SymbolValue):
        return load(m, Constant(plain(value)), name)
    raise Break("FL106", what=f"{value.describe()}.{name}", why="not traced")


def load_or_none(m: Machine, value: Value, name: str) -> Value | None:
    """``value.name``; None when there is no such attribute."""
    try:
        return _load(m, value, name)
    except Raised as raised:
        if issubclass(raised.kind, AttributeError):
            return None
        raise


def _function_attribute(m: Machine, value: FunctionValue, name: str) -> Value:
    """An attribute of an existing function."""
    if name in ("__name__", "__qualname__", "__module__", "__doc__"):
        return Constant(getattr(value.function, name))
    if name == "__code__":
        return Known(value.function.__code__)
    if name == "__class__":
        return Known(types.FunctionType)
    own = own_attribute(m, value, name)
    if own is not None:
        return own
    if name in _FUNCTION_PARTS and name in vars(types.FunctionType):
        base = value.source or src.constant(value.function, value.function.__qualname__)
        try:
            part = getattr(value.function, name)
        except Exception as error:  # noqa: BLE001 - 3.14 evaluates annotations when they are asked for, which runs anything
            raise Break("FL106", what=f"{value.describe()}.{name}", why=f"it raises {type(error).__name__}") from None
        return m.use(m.tracer.lazy(part, src.generic_attribute(base, name)))
    if class_attribute(types.FunctionType, name) is ABSENT:
        raise raising(AttributeError(f"'function' object has no attribute '{name}'", name=name, obj=value.function))
    raise Break("FL106", what=f"{value.describe()}.{name}", why="not traced")


def own_attribute(m: Machine, value: FunctionValue, name: str) -> Value | None:
    """An attribute that was set on the function, as ``functools.wraps`` does; None when there is none."""
    attributes, source = vars(value.function), value.source
    if name in attributes:
        base = source or src.constant(value.function, value.function.__qualname__)
        return m.use(m.tracer.lazy(attributes[name], src.attribute(base, name)))
    if source is not None:
        m.tracer.guard(
            src.instance_dict(source), _hook.MISSING, name, name="MISSING", text=f"{source} has no attribute {name}"
        )
    return None


def _annotations(m: Machine, value: MadeFunction) -> Value:
    """A function's annotations, which are made when they are first asked for."""
    annotate = m.use(value.attributes.get("__annotate__", value.annotate or Constant(None)))
    if value.annotations is None and not isinstance(annotate, Constant):
        value.annotations = m.call(annotate, [Constant(1)], {})  # annotationlib.Format.VALUE
    given = m.use(value.annotations) if value.annotations is not None else None
    if not isinstance(given, DictValue):
        flat = given.items if isinstance(given, SequenceValue) else []
        given = DictValue({plain(m.use(k)): v for k, v in zip(flat[::2], flat[1::2], strict=True)})
        value.annotations = given if flat else None
    return given


def _made_function(m: Machine, value: MadeFunction, name: str) -> Value:
    if name in value.attributes:
        return m.use(value.attributes[name])
    if name in ("__name__", "__qualname__"):
        return Constant(value.code.co_name if name == "__name__" else value.code.co_qualname)
    if name == "__module__":
        return Constant(value.globals.get("__name__"))
    if name == "__doc__":
        first = value.code.co_consts[0] if value.code.co_consts else None
        return Constant(first if isinstance(first, str) else None)
    if name == "__annotations__":
        return _annotations(m, value)
    if name == "__annotate__" and name in vars(types.FunctionType):
        return m.use(value.annotate or Constant(None))
    if name in ("__defaults__", "__kwdefaults__"):
        return m.use((value.defaults if name == "__defaults__" else value.kwdefaults) or Constant(None))
    if name in ("__class__", "__code__"):
        return Known(types.FunctionType if name == "__class__" else value.code)
    if name == "__call__":
        return value
    if class_attribute(types.FunctionType, name) is ABSENT:
        raise raising(AttributeError(f"'function' object has no attribute '{name}'", name=name))
    if name == "__type_params__":  # of generic functions, which are not traced
        return SequenceValue([], tuple)
    raise Break("FL106", what=f"{value.describe()}.{name}", why="not traced")


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
    if isinstance(descriptor, types.MemberDescriptorType):
        probe = value.kind(range(len(value.items)))
        position = getattr(probe, name)
        return value.items[position]
    return NamedMethod(value, name)


def _constant(m: Machine, value: Constant, name: str) -> Value:
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


def _tensor(m: Machine, value: TensorValue, name: str) -> Value:
    from ..rules import torch_function

    defined, place = class_member(m, value.kind, name) if torch_function.is_subclass(value) else (ABSENT, None)
    if place is None or not hasattr(type(defined), "__set__"):
        assigned = m.tracer.attributes.get((id(value), name))
        if assigned is not None:
            if assigned[1] is DELETED:
                raise absent(value.kind, name)
            return m.use(assigned[1])
    if place is not None:
        item = None if hasattr(type(defined), "__set__") else tensor_item(m, value, name)
        return item or bind(m, defined, value, name, place)
    return load_from_base(m, value, name)


def load_from_base(m: Machine, value: TensorValue, name: str) -> Value:
    """An attribute of a tensor that its class has from torch."""
    from ..rules import torch_function

    found = class_attribute(torch.Tensor, name)
    if isinstance(found, types.GetSetDescriptorType):
        handled = torch_function.dispatched(m, found.__get__, [value], {})
        if handled is not None:
            return handled
    return tensor_attribute(m, value, name)


def tensor_attribute(m: Machine, value: TensorValue, name: str) -> Value:
    """An attribute of a tensor when its class has no say."""
    fake = value.fake
    if name == "shape" or (name in _TENSOR_CONSTANTS and not callable(getattr(type(fake), name, None))):
        if name == "shape":
            return m.tracer.call("call_method", "size", (value,), {}, "Tensor.shape")
        if name == "nbytes":
            return m.tracer.call("call_function", getattr, (value, Constant(name)), {}, "Tensor.nbytes")
        found = getattr(fake, name)
        if name == "is_leaf":
            guard_leaf(m, value)
        if isinstance(found, tuple):
            return SequenceValue([Constant(v) for v in found], tuple)
        return Constant(found)
    if name in _TENSOR_VIEWS:
        return m.tracer.call("call_function", getattr, (value, Constant(name)), {}, f"Tensor.{name}")
    if name == "__class__":
        return Known(value.kind)
    if name in ("grad", "grad_fn"):
        return _autograd(m, value, name)
    found = class_attribute(torch.Tensor, name)
    if found is ABSENT:
        own = tensor_item(m, value, name)
        if own is None:
            getter, place = class_member(m, value.kind, "__getattr__")
            if type(getter) is types.FunctionType:
                return m.use(m.call(_function(m, getter, place), [value, Constant(name)], {}))
            raise absent(value.kind, name)
        return own
    if isinstance(found, (property, types.GetSetDescriptorType)):
        raise Break("FL106", what=f"Tensor.{name}", why="this property is read eagerly")
    return NamedMethod(value, name)


def tensor_item(m: Machine, value: TensorValue, name: str) -> Value | None:
    """An attribute that was set on this very tensor; None when there is none. Those made while tracing have none."""
    source = value.source
    if source is None:
        return None
    obj = m.tracer.real(value)
    if name in vars(obj):
        return m.use(m.tracer.lazy(vars(obj)[name], src.attribute(source, name)))
    m.tracer.guard(
        src.instance_dict(source), _hook.MISSING, name, name="MISSING", text=f"{name!r} not in {source}.__dict__"
    )
    return None


def guard_leaf(m: Machine, value: TensorValue) -> None:
    found = value.fake.is_leaf
    if value.source is not None and value.fake.requires_grad:
        m.tracer.guard(value.source, _hook.CALL, _LEAF[found], name="LEAF", text=f"{value.source}.is_leaf is {found}")


def _autograd(m: Machine, value: TensorValue, name: str) -> Value:
    """``.grad`` and ``.grad_fn``."""
    fake, source = value.fake, value.source
    guard_leaf(m, value)
    if name == "grad_fn":
        return Constant(None) if fake.grad_fn is None else Opaque(type(fake.grad_fn), f"{value.describe()}.grad_fn")
    if not fake.is_leaf:
        raise Break("FL106", what=f"{value.describe()}.grad", why="the tensor is not a leaf")
    if source is None:
        return Constant(None)
    assigned = m.tracer.attributes.get((id(value.value), "grad"))
    if assigned is not None:
        return m.use(assigned[1])
    return m.use(m.tracer.lazy(m.tracer.real(value).grad, src.applied(torch_private.grad_of, source)))


def _of_metaclass(m: Machine, value: Known, name: str) -> Value:
    """An attribute of a class that only its metaclass defines, in Python."""
    found, place = class_member(m, type(value.value), name)
    plain_ = type(found) in CONSTANT_TYPES and place is not None
    if not plain_ and type(found) is not types.FunctionType and not isinstance(found, property):
        raise Break("FL106", what=f"{value.value.__name__}.{name}", why="its metaclass defines it")
    return bind(m, found, value, name, place)


_OF_MODULES = class_attribute(types.ModuleType, "__getattribute__")


def _known(m: Machine, value: Known, name: str) -> Value:
    obj = value.value
    if isinstance(obj, types.ModuleType):
        if class_attribute(type(obj), "__getattribute__") is not _OF_MODULES:
            raise Break("FL106", what=f"a module's {name}", why="its class looks attributes up in its own way")
        try:
            found = getattr(obj, name)
        except AttributeError as e:
            base = value.source or src.constant(obj, obj.__name__)
            m.tracer.guard(
                src.instance_dict(base), _hook.MISSING, name, name="MISSING", text=f"{obj.__name__} has no {name}"
            )
            raise raising(e) from None
        base = value.source or src.constant(obj, obj.__name__)
        if name not in vars(obj):
            if type(obj) is types.ModuleType:
                return static_value(found)
            return m.use(m.tracer.lazy(found, src.generic_attribute(base, name)))  # of a class of its own
        if classify.is_library_module(obj.__name__) and (
            type(found) in CONSTANT_TYPES or isinstance(found, (type, types.ModuleType)) or callable(found)
        ):
            return static_value(found)
        return m.use(m.tracer.lazy(found, src.attribute(base, name)))
    if isinstance(obj, type):
        if name in ("__name__", "__qualname__", "__module__"):
            return Constant(getattr(obj, name))
        found, source = class_member(m, obj, name)
        if isinstance(found, types.ClassMethodDescriptorType):
            return Known(getattr(obj, name))
        if found is ABSENT and class_attribute(type(obj), name) is ABSENT:
            raise raising(AttributeError(f"type object '{obj.__name__}' has no attribute '{name}'", name=name, obj=obj))
        if found is ABSENT:
            return _of_metaclass(m, value, name)
        if hasattr(type(class_attribute(type(obj), name)), "__set__"):
            raise Break("FL106", what=f"{obj.__name__}.{name}", why="its metaclass has a descriptor of that name")
        if isinstance(found, staticmethod):
            return _unwrapped(m, found, source, "__func__")
        if isinstance(found, classmethod):
            return _class_method(m, found, source, value)
        if type(found) is types.FunctionType:
            return _function(m, found, source)
        if source is not None and not hasattr(type(found), "__get__"):
            return m.use(m.tracer.lazy(found, source))
        if source is not None:
            m.tracer.guard_identity(source, found)
        if type(found) in CONSTANT_TYPES or classify.is_library_callable(found):
            return static_value(found)
        if isinstance(found, type):
            return Known(found)
        try:
            bound = getattr(obj, name)
        except AttributeError:
            raise Break("FL106", what=f"{obj.__name__}.{name}", why="the class has no such attribute") from None
        if type(bound) in CONSTANT_TYPES or callable(bound):
            return static_value(bound)
        base = value.source or src.constant(obj, obj.__name__)
        return m.use(m.tracer.lazy(bound, src.generic_attribute(base, name)))
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


DELETED = Constant(ABSENT)
"""What ``Tracer.attributes`` holds for an attribute that the traced program deleted."""


def absent(kind: type, name: str) -> Raised:
    return raising(AttributeError(f"'{_hook.type_name(kind)}' object has no attribute '{name}'"))


def content(m: Machine, value: ObjectValue) -> Value | None:
    """The builtin container that an instance of a subclass of ``list``, ``dict`` … also is; None for other objects."""
    if value.content is None and value.source is not None:
        obj, source = value.value, value.source
        if isinstance(obj, dict):
            value.content = m.tracer.wrap_dict(obj, OrderedDict if isinstance(obj, OrderedDict) else dict, source)
        elif isinstance(obj, (list, tuple)):
            value.content = m.tracer.wrap_sequence(obj, list if isinstance(obj, list) else tuple, source)
    return value.content


def _thread_local(m: Machine, value: ObjectValue, name: str) -> Value:
    """An attribute of a ``threading.local``, as it is in the thread that runs."""
    assigned = m.tracer.attributes.get((id(value.value), name))
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


def _object(m: Machine, value: ObjectValue, name: str) -> Value:
    obj = value.value
    kind = type(obj)
    if name == "__class__":
        return Known(kind)
    override, place = class_member(m, kind, "__getattribute__")
    if type(override) is types.FunctionType:
        return m.call(_function(m, override, place), [value, Constant(name)], {})
    if kind is threading.local:
        return _thread_local(m, value, name)
    if override is not object.__dict__["__getattribute__"] and not issubclass(kind, _BUILTIN_BASES):
        raise Break(
            "FL106", what=f"{value.describe()}.{name}", why=f"{kind.__name__} looks attributes up in its own way"
        )
    return generic(m, value, name)


_BUILTIN_BASES = (
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
    assigned = m.tracer.attributes.get((id(obj), name))
    if assigned is not None and assigned[1] is not DELETED:
        return m.use(assigned[1])
    if name in _MODULE_TABLES and any((id(obj), n) in m.tracer.attributes for n in vars(obj).get(name) or ()):
        raise Break("FL106", what=f"{value.describe()}.{name}", why="attributes of the module are replaced or assigned")
    found, place = class_member(m, kind, name)
    if isinstance(found, property):
        return bind(m, found, value, name, place)
    instance = vars_of(obj)
    if isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)) and name != "__dict__":
        if source is not None and assigned is None:
            return _generic(m, obj, source, name)
        if isinstance(obj, BaseException) and assigned is None:
            return _of_exception(m, value, name)
        if isinstance(value.content, Constant) and not classify.is_heap_type(found.__objclass__):
            return from_plain(getattr(value.content.value, name), f"{value.describe()}.{name}")
        return _by_getattr(m, value, name)
    data_descriptor = found is not ABSENT and hasattr(type(found), "__set__")
    if data_descriptor and name != "__dict__":
        return _descriptor(m, found, value, name, place)
    if name == "__dict__" and instance is not None:
        return InstanceDict(value)
    if instance is not None and name in instance and assigned is None and source is not None:
        return m.use(m.tracer.lazy(instance[name], src.attribute(source, name)))
    if instance is not None and source is not None and assigned is None:
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


def _by_getattr(m: Machine, value: ObjectValue, name: str) -> Value:
    """What ``__getattr__`` gives for an attribute that is nowhere else."""
    getter, place = class_member(m, value.python_type, "__getattr__")
    if type(getter) is types.FunctionType:
        return m.use(m.call(_function(m, getter, place), [value, Constant(name)], {}))
    if getter is not ABSENT:
        raise Break("FL106", what=f"{value.describe()}.{name}", why="__getattr__ is no function")
    raise absent(value.python_type, name)


def _member(m: Machine, value: ObjectValue, name: str) -> Value | None:
    """A parameter, buffer or submodule of a module; None, guarded, when it has none of that name."""
    source = value.source
    for table in _MODULE_TABLES:
        assigned = m.tracer.attributes.get((id(value.value), table))
        members = value.value.__dict__.get(table)
        written = m.tracer.changed(members) if assigned is None else m.use(assigned[1])
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


def _descriptor(m: Machine, found: Any, value: ObjectValue, name: str, place: src.Source | None) -> Value:
    """What a user's descriptor gives: its ``__get__``, traced."""
    getter, where = class_member(m, type(found), "__get__")
    if type(getter) is not types.FunctionType or place is None:
        raise Break("FL106", what=f"{value.describe()}.{name}", why="it is a descriptor that runs code")
    descriptor = m.use(m.tracer.lazy(found, place))
    return m.use(m.call(bind(m, getter, descriptor, "__get__", where), [value, Known(value.python_type)], {}))


_OF_EXCEPTIONS = {"args", "__cause__", "__context__", "__suppress_context__", "__notes__"}


def context_of(m: Machine, exception: ObjectValue) -> Value | None:
    """``exception.__context__``."""
    assigned = m.tracer.attributes.get((id(exception.value), "__context__"))
    if assigned is not None:
        return m.use(assigned[1])
    return _generic(m, exception.value, exception.source, "__context__") if exception.source is not None else None


def _of_exception(m: Machine, value: ObjectValue, name: str) -> Value:
    """An attribute that an exception made while tracing has from its C type."""
    if name == "__traceback__":
        raise Break("FL106", what=name, why="tracebacks exist in a running program only")
    found = getattr(value.value, name)
    if type(found) is tuple and all(type(v) in CONSTANT_TYPES for v in found):
        return SequenceValue([Constant(v) for v in found], tuple)
    if type(found) in CONSTANT_TYPES:
        return Constant(found)
    raise Break("FL106", what=f"{value.describe()}.{name}", why="not traced")


def instance_item(m: Machine, mapping: InstanceDict, name: Any) -> Value | None:
    """``owner.__dict__[name]``; None when there is no such attribute."""
    owner = mapping.owner
    assigned = m.tracer.attributes.get((id(owner.value), name))
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


def instance_items(m: Machine, mapping: InstanceDict) -> DictValue:
    """All that ``owner.__dict__`` holds now."""
    owner = mapping.owner
    items: dict[Any, Value] = {}
    if owner.source is not None:
        attributes, source = vars_of(owner.value) or {}, src.instance_dict(owner.source)
        keys = tuple(attributes)
        m.tracer.guard(source, _hook.DICT_KEYS_ARE, keys, name="KEYS", text=f"list({source}) == {list(keys)!r}")
        items = {k: m.tracer.lazy(v, src.attribute(owner.source, k)) for k, v in attributes.items()}
    for name, value in m.tracer.attributes_of(owner):
        if value is DELETED:
            items.pop(name, None)
        else:
            items[name] = value
    return DictValue(items)


def vars_of(obj: Any) -> dict[str, Any] | None:
    """``obj.__dict__``, whatever the class makes of attribute look-up; None when there is none."""
    try:
        return object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None


def store(m: Machine, owner: Value, name: str, value: Value) -> None:
    """``owner.name = value``; on an existing object it is replayed after the graph."""
    what = f"assignment to `{owner.describe()}.{name}`"
    if isinstance(owner, ActiveValue) and owner.assign(m, name, value):
        return
    if isinstance(owner, TensorValue) and name == "grad":
        _store_gradient(m, owner, value)
        return
    if isinstance(owner, TensorValue) and name == "requires_grad":
        m.call(NamedMethod(owner, "requires_grad_"), [value], {})
        return
    if isinstance(owner, TensorValue):
        _store_on_tensor(m, owner, name, value)
        return
    if isinstance(owner, MadeFunction) and name not in ("__code__", "__defaults__", "__kwdefaults__", "__dict__"):
        m.tracer.touch(owner, what)
        _replace_annotations(m, owner, name, value)
        owner.attributes[name] = value
        return
    if isinstance(owner, (SequenceValue, DictValue, SetValue, Constant)) and not isinstance(
        owner.python_type, enum.EnumMeta
    ):
        if name == "__class__":
            raise Break("FL110", what=what, why="classes are assigned eagerly")
        try:
            setattr(example(owner), name, None)
        except AttributeError as e:
            raise raising(e) from None
    if not isinstance(owner, ObjectValue):
        raise Break("FL110", what=what, why="attributes of such objects are written eagerly")
    setter, place = class_member(m, owner.python_type, "__setattr__")
    if type(setter) is types.FunctionType and not _is_plain(m, setter, owner, name, value):
        m.call(_function(m, setter, place), [owner, Constant(name), value], {})
        return
    if owner.python_type is threading.local:
        assign(m, owner, name, value)
        return
    if type(setter) is not types.FunctionType and getattr(setter, "__objclass__", None) not in _PLAIN_SETTERS:
        raise Break("FL110", what=what, why=f"{owner.python_type.__name__} stores attributes in its own way")
    store_directly(m, owner, name, value)


def _replace_annotations(m: Machine, owner: MadeFunction, name: str, value: Value) -> None:
    """On 3.14 a function's annotations and the function that makes them take each other's place when they are set."""
    if name == "__annotations__":
        owner.annotate = owner.annotations = None
        owner.attributes.pop("__annotate__", None)
    elif name == "__annotate__" and name in vars(types.FunctionType):
        value = m.use(value)
        if isinstance(value, (MadeFunction, FunctionValue)):
            owner.annotations = None
            owner.attributes.pop("__annotations__", None)
        elif not (isinstance(value, Constant) and value.value is None):
            raise Break("FL110", what=f"assignment to `{owner.describe()}.{name}`", why="it is no Python function")


_PLAIN_SETTERS = (object, BaseException, functools.partial, types.SimpleNamespace)


def _store_on_tensor(m: Machine, owner: TensorValue, name: str, value: Value) -> None:
    found, place = class_member(m, owner.kind, name)
    _, where = class_member(m, owner.kind, "__setattr__")
    if where is not None or (place is None and found is not ABSENT):
        raise Break("FL110", what=f"assignment to `{owner.describe()}.{name}`", why="it changes the tensor itself")
    if isinstance(found, property):
        m.call(_unwrapped(m, found, place, "fset"), [owner, value], {})
        return
    if found is not ABSENT and hasattr(type(found), "__set__"):
        raise Break("FL110", what=f"assignment to `{owner.describe()}.{name}`", why="it is a descriptor that runs code")
    m.tracer.dressed.add(id(owner))
    assign(m, owner, name, value)


def _store_gradient(m: Machine, owner: TensorValue, value: Value) -> None:
    """``owner.grad = value`` of a graph input, replayed after the graph."""
    value = m.use(value)
    what = f"assignment to `{owner.describe()}.grad`"
    fits = isinstance(value, Constant) and value.value is None
    if isinstance(value, TensorValue):
        given, own = value.fake, owner.fake
        fits = given is not own and all(
            getattr(given, n) == getattr(own, n) for n in ("shape", "dtype", "device", "layout")
        )
    if owner.source is None or not owner.fake.is_leaf or not fits:
        raise Break("FL110", what=what, why="it is written eagerly")
    guard_leaf(m, owner)
    assign(m, owner, "grad", value)


def _is_plain(m: Machine, setter: Any, owner: ObjectValue, name: str, value: Value) -> bool:
    """Whether a module's ``__setattr__`` only fills its ``__dict__``: no parameter, buffer or submodule is involved."""
    if setter is not torch.nn.Module.__dict__["__setattr__"] or owner.source is None:
        return False
    if any(name in (vars(owner.value).get(table) or ()) for table in _MODULE_TABLES):
        return False
    value = m.use(value)
    if isinstance(value, TensorValue):
        kinds = (torch.nn.Parameter, torch.nn.Buffer)
        return not issubclass(value.kind, kinds) and not is_flagged(m, value, kinds)
    return not issubclass(value.python_type, torch.nn.Module)


def is_flagged(m: Machine, value: TensorValue, classes: Any) -> bool:
    """Whether an attribute makes a tensor one of torch's kinds of parameters and buffers."""
    if isinstance(classes, tuple):
        return any(is_flagged(m, value, c) for c in classes)
    name = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}.get(classes)
    flag = load_or_none(m, value, name) if name is not None else None
    return flag is not None and m.truth(flag) is True


def example(value: Value) -> Any:
    """An object of the same builtin type, which raises what the one that ``value`` stands for raises."""
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, DictView):
        return getattr(value.mapping.kind(), value.which)()
    kind: Any = value.python_type
    return tuple.__new__(kind, ()) if issubclass(kind, tuple) else kind()


def store_directly(m: Machine, owner: ObjectValue, name: str, value: Value) -> None:
    """``object.__setattr__(owner, name, value)``."""
    what = f"assignment to `{owner.describe()}.{name}`"
    obj, kind = owner.value, type(owner.value)
    found, place = class_member(m, kind, name)
    if isinstance(found, property):
        setter = _unwrapped(m, found, place, "fset")
        if isinstance(setter, Constant) and setter.value is None:
            try:
                found.__set__(obj, None)
            except AttributeError as e:
                raise raising(e) from None
        m.call(setter, [owner, value], {})
        return
    if found is not ABSENT and hasattr(type(found), "__set__"):
        member = isinstance(found, types.MemberDescriptorType)
        if member and not classify.is_heap_type(found.__objclass__) and not _is_writable(found.__objclass__):
            raise Break("FL110", what=what, why="it may be read-only")
        if member or (isinstance(obj, BaseException) and name in _OF_EXCEPTIONS):
            assign(m, owner, name, value)
            if name == "__cause__":
                m.tracer.attributes.pop((id(obj), "__suppress_context__"), None)  # so that it comes last
                assign(m, owner, "__suppress_context__", Constant(True))
            return
        setter, where = class_member(m, type(found), "__set__")
        if type(setter) is not types.FunctionType or place is None:
            raise Break("FL110", what=what, why="it is a descriptor that runs code")
        descriptor = m.use(m.tracer.lazy(found, place))
        m.call(bind(m, setter, descriptor, "__set__", where), [owner, value], {})
        return
    if not hasattr(obj, "__dict__"):
        if found is ABSENT:
            raise absent(kind, name)
        raise raising(AttributeError(f"'{kind.__name__}' object attribute '{name}' is read-only"))
    assign(m, owner, name, value)


def _is_writable(kind: type) -> bool:
    """Whether the members of a class implemented in C can be assigned."""
    return issubclass(kind, BaseException) and not issubclass(kind, BaseExceptionGroup)


def assign(m: Machine, owner: ObjectValue | TensorValue, name: str, value: Value) -> None:
    """``owner.name = value`` where no class has a say."""
    m.tracer.touch(owner, f"assignment to `{owner.describe()}.{name}`")
    key = (id(owner.value), name)
    if key in m.tracer.attributes and m.tracer.attributes[key][1] is DELETED:
        del m.tracer.attributes[key]  # what is assigned again comes last; what is only replaced keeps its place
    m.tracer.attributes[key] = (owner, value)


def delete(m: Machine, owner: Value, name: str) -> None:
    """``del owner.name``; on an existing object it is replayed after the graph."""
    what = f"deletion of `{owner.describe()}.{name}`"
    if isinstance(owner, TensorValue) and class_member(m, owner.kind, name)[0] is ABSENT:
        assigned = m.tracer.attributes.get((id(owner), name))
        if (assigned[1] is DELETED) if assigned is not None else tensor_item(m, owner, name) is None:
            raise absent(owner.kind, name)
        m.tracer.dressed.add(id(owner))
        assign(m, owner, name, DELETED)
        return
    if not isinstance(owner, ObjectValue) or isinstance(owner.value, BaseException):
        raise Break("FL110", what=what, why="attributes of such objects are deleted eagerly")
    deleter, place = class_member(m, owner.python_type, "__delattr__")
    if type(deleter) is types.FunctionType:
        m.call(_function(m, deleter, place), [owner, Constant(name)], {})
        return
    delete_directly(m, owner, name)


def delete_directly(m: Machine, owner: ObjectValue, name: str) -> None:
    """``object.__delattr__(owner, name)``."""
    what, kind = f"deletion of `{owner.describe()}.{name}`", owner.python_type
    found, _ = class_member(m, kind, name)
    if found is not ABSENT and hasattr(type(found), "__set__") and not isinstance(found, types.MemberDescriptorType):
        raise Break("FL110", what=what, why="it is a descriptor that runs code")
    assigned = m.tracer.attributes.get((id(owner.value), name))
    present = assigned is not None and assigned[1] is not DELETED
    if assigned is None and owner.source is not None:
        present = name in (vars_of(owner.value) or ()) or isinstance(found, types.MemberDescriptorType)
        if present:
            _object(m, owner, name)  # guards that it is there
    if not present and found is not ABSENT and not hasattr(owner.value, "__dict__"):
        raise raising(AttributeError(f"'{kind.__name__}' object attribute '{name}' is read-only"))
    if not present:
        raise absent(kind, name)
    assign(m, owner, name, DELETED)


def bind(m: Machine, found: Any, receiver: Value, name: str, place: src.Source | None) -> Value:
    """What the class attribute ``found``, read at ``place``, is on an instance."""
    if type(found) is types.FunctionType:
        return MethodValue(_function(m, found, place), receiver)
    if isinstance(found, staticmethod):
        return _unwrapped(m, found, place, "__func__")
    if isinstance(found, classmethod):
        return _class_method(m, found, place, Known(receiver.python_type))
    if isinstance(found, property):
        getter = _unwrapped(m, found, place, "fget")
        if not isinstance(getter, FunctionValue):
            raise Break("FL106", what=name, why="the property is not a Python function")
        return m.call(getter, [receiver], {})
    if place is not None and hasattr(type(found), "__get__"):
        m.tracer.guard_identity(place, found)
    if isinstance(found, functools.cached_property) and isinstance(receiver, ObjectValue) and found.attrname == name:
        result = m.call(_unwrapped(m, found, place, "func"), [receiver], {})
        assign(m, receiver, name, result)
        return m.use(result)
    if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)):
        return NamedMethod(receiver, name)
    if hasattr(type(found), "__get__"):
        if isinstance(receiver, ObjectValue) and type(found) is not type:
            return _descriptor(m, found, receiver, name, place)
        if not isinstance(found, type):
            raise Break("FL106", what=f"{receiver.describe()}.{name}", why="it is a descriptor that runs code")
    if place is not None:
        return m.use(m.tracer.lazy(found, place))
    return static_value(found)


def _generic(m: Machine, obj: Any, source: src.Source, name: str) -> Value:
    try:
        found = getattr(obj, name)
    except AttributeError:
        raise Break("FL106", what=f"{source}.{name}", why="it is unset") from None
    return m.use(m.tracer.lazy(found, src.generic_attribute(source, name)))


def _super(m: Machine, value: SuperValue, name: str) -> Value:
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
        return _class_method(m, found, place, receiver)
    if isinstance(receiver, ObjectValue) and not hasattr(type(found), "__get__") and place is None:
        raise Break("FL106", what=f"super().{name}", why="it is no function")  # the instance may have one of its own
    if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return MethodValue(static_value(found), receiver)  # the receiver's class may have another of that name
    return bind(m, found, receiver, name, place)
