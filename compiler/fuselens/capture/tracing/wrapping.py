"""From an object that the frame can reach to the value that stands for it, with the guards that this relies on.

:func:`wrap` asks the object's class which of the makers below to call. An object is wrapped once, however many ways lead
to it: :class:`Objects` remembers it by its id. Tensors, and numbers that vary, become inputs of the graph.
"""

from __future__ import annotations

import enum
import gc
import inspect
import math
import re
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..hook import _hook
from ..rules import templates
from ..values.algebra import (
    ArrayValue,
    CellValue,
    Constant,
    DequeValue,
    DictValue,
    FunctionValue,
    IdentityKey,
    Known,
    MethodValue,
    NamedMethod,
    ObjectValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Value,
    qualified_name,
)
from . import graph_inputs, wrappers
from . import sources as src
from .dictionaries import GivenItems, Holds
from .sources import Source
from .symbols import LARGEST

if TYPE_CHECKING:
    from .tracer import Tracer

CONSTANT_TYPES: tuple[type, ...] = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range,
    torch.dtype, torch.device, torch.layout, torch.memory_format, *classify.NUMPY_SCALARS,
)  # fmt: skip
IMMUTABLE = (inspect.Signature, inspect.Parameter, re.Pattern, re.Match)
"""Library classes whose instances do not change."""
EQUALITY_GUARDED: tuple[type, ...] = (
    bool, int, float, complex, str, bytes, type(None), torch.device, *classify.NUMPY_SCALARS,
)  # fmt: skip
"""Tensors make a device anew each time they are asked for theirs."""


class Objects:
    """The objects that one trace knows, each with one value."""

    def __init__(self) -> None:
        self.known: dict[int, Value] = {}  # existing objects, by id
        self.keys: dict[int, Value] = {}  # what was used as a key by identity, by id of its token
        self.holders: dict[int, ObjectValue] = {}  # of what instances of subclasses of containers hold, by value id
        self.symbols: dict[Source, SymbolValue] = {}  # numbers that vary
        self.lengths: list[TensorValue] = []  # that ragged sizes of nested tensors stand for
        self.modules: set[Source] = set()
        self.integers: dict[str, int] = {}  # those that were specialised from the start, by source text
        self.floats: dict[str, float] = {}
        self._keep: list[Any] = []  # ids above stay valid while these live

    def remember(self, obj: Any, value: Value) -> None:
        """From now on ``value`` stands for the existing object ``obj``."""
        self.known[id(obj)] = value
        self._keep.append(obj)

    def made(self, obj: Any, content: Value | None = None) -> ObjectValue:
        """The tracked value of an object made while tracing, for which ``obj`` stands."""
        value = ObjectValue(obj, None, content)
        self._keep.append(obj)
        if content is not None:
            self.holders[id(content)] = value
        return value

    def identity_key(self, token: Any, value: Value) -> IdentityKey:
        """What stands for an object as a dictionary key; objects that were looked up so are guarded to be different."""
        self.keys[id(token)] = value
        self._keep.append(token)
        return IdentityKey(token, value)

    def hangs_on_module(self, source: Source) -> bool:
        """Whether what is at ``source`` is found through an nn.Module."""
        step: Source | None = source
        while step is not None:
            if step in self.modules:
                return True
            step = step.base
        return False


# --- any object -------------------------------------------------------------------------------------------------


def wrap(tracer: Tracer, obj: Any, source: Source) -> Value:
    """The tracked value of an existing object that the frame can reach at ``source``; guards what it relies on."""
    kind = type(obj)
    if (kind is int and _integer_varies(tracer, obj, source)) or (kind is float and _float_varies(tracer, obj, source)):
        return graph_inputs.symbol(tracer, obj, source)
    if kind in EQUALITY_GUARDED:
        shown = hex(obj)[:40] if kind is int and obj.bit_length() > 64 else repr(obj)
        tracer.guard(source, _hook.EQUALS, obj, name="EQUALS", text=f"{source} == {shown}")
        return Constant(obj, source)
    if kind in CONSTANT_TYPES or issubclass(kind, enum.Enum):
        tracer.guard_identity(source, obj)
        return Constant(obj, source)
    known = tracer.objects.known.get(id(obj))
    if known is not None:
        tracer.guard_same(source, known)
        return known
    value = _new(tracer, obj, kind, source)
    tracer.objects.remember(obj, value)
    return value


def cell(tracer: Tracer, existing: types.CellType, name: str, source: Source) -> CellValue:
    """The tracked value of an existing closure cell: one for each cell, however it is reached."""
    known = tracer.objects.known.get(id(existing))
    if isinstance(known, CellValue):
        tracer.guard_same(source, known)
        return known
    made = CellValue(name, None, source, existing)
    tracer.objects.remember(existing, made)
    return made


def _new(tracer: Tracer, obj: Any, kind: type, source: Source) -> Value:
    if issubclass(kind, torch.Tensor):  # not isinstance, which may run code of the class
        return wrappers.given(tracer, obj, source) if wrappers.wraps(obj) else graph_inputs.tensor(tracer, obj, source)
    maker = _MAKERS.get(id(kind))
    if maker is not None:
        return maker(tracer, obj, source)
    if torch_private.is_ragged(obj):
        return wrappers.ragged_size(tracer, obj, source)
    if kind.__bases__ == (tuple,) and hasattr(kind, "_fields"):
        return _sequence(tracer, obj, source)
    if kind is types.BuiltinMethodType and type(obj.__self__) in _CONTAINERS:
        return _method_of_container(tracer, obj, source)
    if _is_known_by_identity(kind):
        tracer.guard_identity(source, obj)
        return Known(obj, source)
    if classify.is_array(kind) and classify.ARRAYS_ARE_TRACED and torch_private.shared_tensor(obj) is not None:
        tracer.guard_type(source, kind)
        return ArrayValue(None, source, existing=obj)
    if kind in templates.KINDS:
        return templates.existing(tracer, obj, source)
    return _object(tracer, obj, source)


def _is_known_by_identity(kind: type) -> bool:
    """Whether instances are what they are: the trace may look into them, and a guard compares identity."""
    return (
        issubclass(kind, (type, types.ModuleType))
        or kind in IMMUTABLE
        or classify.is_numpy_description(kind)
        or classify.is_type_form(kind)
        or classify.is_library_kind(kind)
        or classify.is_placement(kind)
    )


def _object(tracer: Tracer, obj: Any, source: Source) -> ObjectValue:
    kind = type(obj)
    tracer.guard_type(source, kind)
    if issubclass(kind, torch.nn.Module):
        tracer.objects.modules.add(source)
    return ObjectValue(obj, source)


# --- numbers ----------------------------------------------------------------------------------------------------


def _integer_varies(tracer: Tracer, value: int, source: Source) -> bool:
    """Whether the integer at ``source`` is a symbol. What hangs on an nn.Module is configuration, and is not."""
    if tracer.variation is None or tracer.config.dynamic is False or abs(value) > LARGEST:
        return False
    if tracer.config.specialize_int:
        return False
    if not tracer.config.symbolic_module_integers and tracer.objects.hangs_on_module(source):
        return False
    tracer.objects.integers[source.text] = value
    return tracer.variation.integer(source, value, tracer.config.dynamic)


def _float_varies(tracer: Tracer, value: float, source: Source) -> bool:
    """As :func:`_integer_varies`, for a float: a learning rate under a scheduler."""
    config = tracer.config
    if tracer.variation is None or config.dynamic is False or config.specialize_float or not math.isfinite(value):
        return False
    tracer.objects.floats[source.text] = value
    return tracer.variation.float(source, value)


# --- containers -------------------------------------------------------------------------------------------------


def _guard_length(tracer: Tracer, source: Source, length: int) -> None:
    tracer.guard(source, _hook.LENGTH_IS, length, name="LENGTH", text=f"len({source}) == {length}")


def _sequence(tracer: Tracer, obj: Any, source: Source) -> SequenceValue:
    tracer.guard_type(source, type(obj))
    return sequence(tracer, obj, type(obj), source)


def sequence(tracer: Tracer, obj: Any, kind: type, source: Source) -> SequenceValue:
    """The items of a list or tuple (or an instance of a subclass, which is not asked for them), as one of ``kind``."""
    base: Any = list if issubclass(type(obj), list) else tuple
    items = tuple(base.__iter__(obj))
    _guard_length(tracer, source, len(items))
    return SequenceValue([tracer.lazy(v, src.item(source, i)) for i, v in enumerate(items)], kind, source)


def _deque(tracer: Tracer, obj: Any, source: Source) -> DequeValue:
    tracer.guard_type(source, deque)
    _guard_length(tracer, source, len(obj))
    limit = src.generic_attribute(source, "maxlen")
    tracer.guard(limit, _hook.EQUALS, obj.maxlen, name="EQUALS", text=f"{limit} == {obj.maxlen}")
    held = src.applied(tuple, source)
    return DequeValue([tracer.lazy(v, src.item(held, i)) for i, v in enumerate(obj)], obj.maxlen, source)


def _dictionary(tracer: Tracer, obj: Any, source: Source) -> Value:
    tracer.guard_type(source, type(obj))
    return dictionary(tracer, obj, type(obj), source) or ObjectValue(obj, source)


def dictionary(tracer: Tracer, obj: Any, kind: type, source: Source) -> DictValue | None:
    """The items of a dictionary (or an instance of a subclass), as one of ``kind``; None if a key is not trackable.

    A dictionary whose keys are not all constants is read by position.
    """
    keys = tuple(kind.keys(obj))
    if not all(map(_is_trackable_key, keys)):
        return None
    if all(map(_is_constant_key, keys)):
        items = {k: tracer.lazy(dict.__getitem__(obj, k), src.dict_item(source, k)) for k in keys}
        if kind is dict:
            items = _given_items(tracer, items, source)
        else:
            _guard_keys(tracer, source, keys)
    else:
        held = src.applied(_values_of, source)
        items = {
            k: tracer.lazy(v, src.item(held, i))
            for i, (k, v) in enumerate(zip(_keys(tracer, keys, source), kind.values(obj), strict=True))
        }
    factory = None
    if kind is defaultdict:
        factory = wrap(tracer, obj.default_factory, src.generic_attribute(source, "default_factory"))
    made = DictValue(items, kind, source, factory)
    if type(obj) is OrderedDict:
        made.attributes = tracer.lazy(obj.__dict__, src.generic_attribute(source, "__dict__"))
    return made


def _guard_keys(tracer: Tracer, source: Source, keys: tuple[Any, ...]) -> None:
    tracer.guard(source, _hook.DICT_KEYS_ARE, keys, name="KEYS", text=_text_of_keys(source, keys))


def _given_items(tracer: Tracer, items: dict[Any, Value], source: Source) -> GivenItems:
    def on_key(key: Any, is_there: bool) -> bool:
        if not _is_constant_key(key):
            return False
        if is_there:
            text = f"{key!r} in {source}"
            tracer.guard(source, _hook.CALL, Holds(key, text), name="HOLDS", text=text)
        else:
            tracer.guard(source, _hook.MISSING, key, name="MISSING", text=f"{key!r} not in {source}")
        return True

    keys = tuple(items)
    return GivenItems(items, on_key, lambda: _guard_keys(tracer, source, keys))


def _proxy(tracer: Tracer, obj: types.MappingProxyType[Any, Any], source: Source) -> ProxyValue:
    tracer.guard_type(source, types.MappingProxyType)
    return ProxyValue(tracer.lazy(_shown_by(obj), src.applied(_shown_by, source)), source)


def _shown_by(proxy: types.MappingProxyType[Any, Any]) -> Any:
    """The mapping that a proxy shows, which is not asked."""
    return gc.get_referents(proxy)[0]


def _set(tracer: Tracer, obj: Any, source: Source) -> Value:
    """The elements of a set; as an object if one of them is not trackable."""
    kind = type(obj)
    tracer.guard_type(source, kind)
    elements = tuple(obj)
    if not all(map(_is_trackable_key, elements)):
        return ObjectValue(obj, source)
    if all(map(_is_constant_key, elements)):
        held = src.applied(tuple, source)
        tracer.guard(held, _hook.EQUALS, elements, name="EQUALS", text=f"{held} == {elements!r}"[:500])
        return SetValue(elements, kind, source)
    return SetValue(_keys(tracer, elements, source), kind, source)


def _keys(tracer: Tracer, keys: tuple[Any, ...], source: Source) -> list[Any]:
    """What stands for the keys of an existing dictionary or the elements of a set, in its order."""
    _guard_length(tracer, source, len(keys))
    held = src.applied(tuple, source)
    return [_key(tracer, k, src.item(held, i)) for i, k in enumerate(keys)]


def _key(tracer: Tracer, key: Any, source: Source) -> Any:
    value = wrap(tracer, key, source)
    if isinstance(value, (Constant, Known)):
        return value.value
    if isinstance(value, SequenceValue):
        return tuple(_key(tracer, k, src.item(source, i)) for i, k in enumerate(key))
    if isinstance(value, FunctionValue):
        return tracer.objects.identity_key(value.function, value)
    return tracer.objects.identity_key(value.value if isinstance(value, ObjectValue) else value, value)


def _values_of(mapping: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(mapping.values())


def _is_constant_key(key: Any) -> bool:
    """Whether a key is guarded by its value."""
    if type(key) is tuple:
        return all(map(_is_constant_key, key))
    return type(key) in EQUALITY_GUARDED or isinstance(key, (type, enum.Enum))


def _is_trackable_key(key: Any) -> bool:
    """Whether a key is known by its value, or is equal to itself only."""
    if type(key) is tuple:
        return all(map(_is_trackable_key, key))
    kind = type(key)
    return (
        _is_constant_key(key)
        or kind in CONSTANT_TYPES
        or isinstance(key, torch.Tensor)
        or classify.is_library_kind(kind)
        or (kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__)
    )


# --- functions and slices ---------------------------------------------------------------------------------------


def _function(tracer: Tracer, function: types.FunctionType, source: Source) -> FunctionValue:
    code = src.part(source, _hook.FUNC_CODE, "__code__")
    tracer.guard_type(source, types.FunctionType)
    text = f"{source}.__code__ is that of {function.__qualname__}"
    tracer.guard(code, _hook.IS, function.__code__, name="CODE", text=text)
    return FunctionValue(function, source)


def _method(tracer: Tracer, obj: types.MethodType, source: Source) -> Value:
    if type(obj.__func__) is not types.FunctionType:
        return _object(tracer, obj, source)
    tracer.guard_type(source, types.MethodType)
    function = wrap(tracer, obj.__func__, src.part(source, _hook.METHOD_FUNC, "__func__"))
    receiver = tracer.lazy(obj.__self__, src.part(source, _hook.METHOD_SELF, "__self__"))
    return MethodValue(function, receiver, source)


def _method_of_container(tracer: Tracer, obj: types.BuiltinMethodType, source: Source) -> Value:
    """Such as ``found.append``, which waits on the stack for an argument that broke the graph."""
    tracer.guard_type(source, types.BuiltinMethodType)
    wrap(tracer, obj.__name__, src.generic_attribute(source, "__name__"))
    return NamedMethod(wrap(tracer, obj.__self__, src.generic_attribute(source, "__self__")), obj.__name__)


_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)


def _slice(tracer: Tracer, obj: slice, source: Source) -> Value:
    tracer.guard_type(source, slice)
    names = ("start", "stop", "step")
    parts = [wrap(tracer, getattr(obj, n), src.generic_attribute(source, n)) for n in names]
    known = all(isinstance(p, Constant) for p in parts)
    return Constant(obj, source) if known else SliceValue(parts, source)


_MAKERS: dict[int, Callable[[Tracer, Any, Source], Value]] = {
    id(tuple): _sequence,
    id(list): _sequence,
    id(torch.Size): _sequence,
    id(dict): _dictionary,
    id(OrderedDict): _dictionary,
    id(defaultdict): _dictionary,
    id(types.MappingProxyType): _proxy,
    id(set): _set,
    id(frozenset): _set,
    id(deque): _deque,
    id(slice): _slice,
    id(types.FunctionType): _function,
    id(types.MethodType): _method,
}
"""By the id of the class: to hash a class may run code of its metaclass."""


# --- texts of guards --------------------------------------------------------------------------------------------


def shown(obj: Any) -> str:
    """How a guard's text names an object; runs no code of the program."""
    kind = type(obj)
    if isinstance(obj, enum.Enum):
        return f"{kind.__qualname__}.{vars(obj).get('_name_')}"
    if issubclass(kind, types.ModuleType):
        return str(vars(obj).get("__name__", "a module"))
    if kind in CONSTANT_TYPES:
        return repr(obj)[:40]
    if issubclass(kind, type):
        return obj.__qualname__
    name = qualified_name(obj) if classify.is_library_kind(kind) else None
    return name or f"the same {kind.__qualname__}"


def _text_of_keys(source: Source, keys: tuple[Any, ...]) -> str:
    plain = all(type(k) in EQUALITY_GUARDED for k in keys)
    return f"list({source}) == {list(keys) if plain else list(map(shown, keys))!r}"[:500]


def weakly(obj: Any) -> Any:
    """What an identity guard holds: a callable or a tensor may belong to a user's model, which it must not keep alive."""
    if isinstance(obj, (type, types.ModuleType)) or not (callable(obj) or isinstance(obj, torch.Tensor)):
        return obj
    try:
        return weakref.ref(obj)
    except TypeError:
        return obj
