"""Methods of tensors and of builtin containers."""

from __future__ import annotations

import operator
import random
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..arrays import numpy_calls
from ..arrays import operations as arrays
from ..breaks import Break, raising
from ..polyfills import torch_functions as torch_polyfills
from ..program import random_state
from ..rules import torch_function
from ..rules.table import RULES
from ..rules.torch_calls import LOOKING, scaled
from ..tracing import contents
from ..values import assignments, attributes, tensor_attributes, text
from ..values.algebra import (
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
    NamedMethod,
    ObjectValue,
    ProxyValue,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from ..values.container_operators import as_set, change_set, combined_sets, elements, mapping_items
from ..values.hashing import ELEMENT, key_among, key_of
from ..values.iterators import advance, generator_method, iterate, iterator
from ..values.kinds import PerKind
from ..values.known import UNKNOWN, deep_use, fold, from_plain, integer, plain
from ..values.operators import binary, equal
from ..values.subscripts import contains, delete_subscript, key_error, store_subscript, subscript
from .arguments import fit, misfit

if TYPE_CHECKING:
    from ..machine import Machine


def named_method(m: Machine, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``receiver.name(*args, **kwargs)``."""
    return METHODS[type(receiver)](m, receiver, name, args, kwargs)


def _no_method(m: Machine, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise Break("FL104", what=NamedMethod(receiver, name).describe(), why="there is no rule for this method")


METHODS: PerKind[Value] = PerKind(_no_method)
"""What calling a method by its name does. Instances of classes, generators of random numbers and others are added elsewhere."""


@METHODS.of(SymbolValue)
def _symbol_method(m: Machine, receiver: SymbolValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _constant_method(m, Constant(plain(receiver)), name, args, kwargs)


@METHODS.of(Constant)
def _constant_method(m: Machine, receiver: Constant, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = receiver.value
    if isinstance(value, (str, bytes)):
        return _string_method(m, receiver, name, args, kwargs)
    if isinstance(value, (int, float, complex, range, slice, torch.dtype)) or type(value) in classify.NUMPY_SCALARS:
        return fold(m, getattr(value, name), args, kwargs, f"{receiver.python_type.__name__}.{name}")
    return _no_method(m, receiver, name, args, kwargs)


@METHODS.of(SliceValue)
def _slice_method(m: Machine, receiver: SliceValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if name != "indices":
        return _no_method(m, receiver, name, args, kwargs)
    return fold(m, slice(*(plain(m.use(p)) for p in receiver.parts)).indices, args, kwargs, "slice.indices")


@METHODS.of(InstanceDict)
def _instance_method(
    m: Machine, receiver: InstanceDict, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    if name == "pop":
        return _checked(m, _instance_pop, receiver, name, args, kwargs)(m, receiver, *args, **kwargs)
    if name == "update":
        for key, value in {**(mapping_items(m, args[0]) if args else {}), **kwargs}.items():
            attributes.store_instance_item(m, receiver, key, value)
        return Constant(None)
    if name not in _DICT_METHODS or name in _MUTATORS:
        return _no_method(m, receiver, name, args, kwargs)
    if name == "get":
        found = attributes.instance_item(m, receiver, key_of(m, args[0]))
        return found if found is not None else args[1] if len(args) > 1 else Constant(None)
    return _DICT_METHODS[name](m, attributes.instance_items(m, receiver), *args)


def _instance_pop(m: Machine, mapping: InstanceDict, key: Value, default: Value | None = None, /) -> Value:
    wanted = key_of(m, key)
    found = attributes.instance_item(m, mapping, wanted)
    if found is not None:
        assignments.delete_directly(m, mapping.owner, wanted)
        return found
    if default is None:
        raise key_error(wanted)
    return default


@METHODS.of(IteratorValue, CombinedIterator)
def _iterator_method(m: Machine, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if name not in ("__iter__", "__next__"):
        return _no_method(m, receiver, name, args, kwargs)
    return m.call(Known(iter if name == "__iter__" else next), [receiver], {})


@METHODS.of(GeneratorValue)
def _generator_method(
    m: Machine, receiver: GeneratorValue, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    return generator_method(m, receiver, name, args)


METHODS.of(ArrayValue)(arrays.method)


@METHODS.of(SequenceValue)
def _sequence_method(
    m: Machine, receiver: SequenceValue, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    found = (_LIST_METHODS.get(name) if receiver.kind is list else None) or _SEQUENCE_METHODS.get(name)
    return _checked(m, found, receiver, name, args, kwargs)(m, receiver, *args, **kwargs)


@METHODS.of(DictValue)
def _dict_method(m: Machine, receiver: DictValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = (_ORDERED_METHODS.get(name) if receiver.kind is OrderedDict else None) or _DICT_METHODS.get(name)
    return _checked(m, found, receiver, name, args, kwargs)(m, receiver, *args, **kwargs)


@METHODS.of(DictView)
def _view_method(m: Machine, receiver: DictView, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _checked(m, _VIEW_METHODS.get(name), receiver, name, args, kwargs)(m, receiver, *args, **kwargs)


@METHODS.of(ProxyValue)
def _proxy_method(m: Machine, receiver: ProxyValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if name in ("get", "keys", "values", "items", "copy"):
        return m.call(attributes.load(m, m.use(receiver.mapping), name), args, kwargs)
    return _checked(m, None, receiver, name, args, kwargs)(m, receiver, *args, **kwargs)


@METHODS.of(SetValue)
def _set_method(m: Machine, receiver: SetValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _checked(m, _SET_METHODS.get(name), receiver, name, args, kwargs)(m, receiver, *args, **kwargs)


@METHODS.of(DequeValue)
def _deque_method(m: Machine, receiver: DequeValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of a deque, which counts the changes that its iterators do not survive."""
    found = _DEQUE_METHODS.get(name) or _SEQUENCE_METHODS.get(name)
    function = _checked(m, found, receiver, name, args, kwargs)
    if name in _DUNDERS or name == "reverse":
        return function(m, receiver, *args, **kwargs)
    before = list(map(id, receiver.items))
    try:
        return function(m, receiver, *args, **kwargs)
    finally:
        moves = name in ("append", "appendleft") or (name == "rotate" and len(before) > 1)  # also of equal items
        receiver.changes += moves or before != list(map(id, receiver.items))


def _checked(m: Machine, found: Any, receiver: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """The function for a container's method: that for all containers, or else ``found``, after its arguments were looked at."""
    function = _DUNDERS.get(name, found)
    if function is None:
        return _no_method(m, receiver, name, args, kwargs)
    if not fit(function, len(args) + 2, tuple(kwargs)):
        what = f"{receiver.python_type.__name__}.{name}"
        raise misfit(getattr(assignments.example(receiver), name), len(args), tuple(kwargs), what)
    if name in _MUTATORS:
        m.tracer.effects.mutate(receiver)
    return function


@METHODS.of(TensorValue)
def tensor_method(m: Machine, receiver: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if name == "as_subclass":
        return torch_function.as_class(m, receiver, torch_function.subclass_of(m, args))
    if torch_function.handles(m, [receiver, *args], kwargs):
        found = attributes.class_attribute(torch.Tensor, name)
        if type(found) is types.FunctionType:
            return m.use(m.call(FunctionValue(found, None), [receiver, *args], kwargs))
        handled = torch_function.dispatched(m, getattr(torch.Tensor, name), [receiver, *args], kwargs)
        if handled is not None:
            return handled
    rule = _TENSOR_RULES.get(name)
    if rule is not None and (result := rule(m, receiver, args, kwargs)) is not None:
        return result
    if name in classify.METHOD_CODES:
        raise Break(classify.METHOD_CODES[name], what=f"{receiver.describe()}.{name}()")
    if name.rstrip("_") in torch_private.SCALED:
        given = scaled(m, name, [receiver, *args], kwargs)
        if given is not None:
            return given
    if name in LOOKING:
        return RULES[getattr(torch, name)](m, [receiver, *args], kwargs)
    return _recorded(m, receiver, name, args, kwargs)


def _recorded(m: Machine, receiver: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method's node in the graph."""
    if not classify.is_graph_method(name) or (name.startswith("__") and name not in _TENSOR_DUNDERS):
        raise Break("FL104", what=f"Tensor.{name}", why="it runs eagerly")
    return m.tracer.call(
        "call_method", name, (receiver, *(deep_use(m, a) for a in args)),
        {k: deep_use(m, v) for k, v in kwargs.items()}, f"Tensor.{name}",
    )  # fmt: skip


# Methods of tensors with a rule of their own: the result, or None where the rule does not apply.


def _tensor_setitem(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if len(args) != 2:
        return None
    store_subscript(m, tensor, m.use(args[0]), args[1])
    return Constant(None)


def _item(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if args or kwargs:
        return None
    if not m.tracer.takes_scalars:
        return contents.number(m.tracer, tensor)
    return m.tracer.call("call_method", "item", (tensor,), {}, "Tensor.item")


def _tolist(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Each number, where numbers are known, or may stay in the graph."""
    sizes = tensor.fake.shape
    if args or kwargs or not all(isinstance(n, int) for n in sizes):
        return None
    if not m.tracer.takes_scalars:
        return contents.listed(m.tracer, tensor)
    if not sizes:
        return _item(m, tensor, [], {})
    rows = (m.use(subscript(m, tensor, Constant(i))) for i in range(sizes[0]))
    return SequenceValue([m.use(m.call(NamedMethod(row, "tolist"), [], {})) for row in rows], list)


def _tensor_len(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if tensor.fake.ndim == 0:
        raise Break("FL105", what="len()", why="of a zero-dimensional tensor")
    return m.tracer.call("call_method", "size", (tensor, Constant(0)), {}, "len()")


def _detach_in_place(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if tensor.source is not None and tensor.fake.requires_grad:
        raise Break("FL110", what="Tensor.detach_", why="it changes the history of an input")
    return None


def _to_type(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``tensor.type(torch.FloatTensor)``: the graph names the class."""
    kind = plain(m.use(args[0])) if args else None
    if not isinstance(kind, type):
        return None
    return _recorded(m, tensor, "type", [Constant(f"{kind.__module__}.{kind.__name__}"), *args[1:]], kwargs)


def _set(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``tensor.set_(source)`` of a tensor that the trace made: from here on it is a view of ``source``."""
    given = m.use(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(given, TensorValue) or given is tensor or not given.kind is tensor.kind is torch.Tensor:
        return None
    if tensor.source is not None or m.tracer.graphs.nested or tensor.fake.requires_grad or given.fake.requires_grad:
        return None
    if (given.fake.dtype, given.fake.device) != (tensor.fake.dtype, tensor.fake.device):
        return None
    made = m.use(m.tracer.call("call_function", torch.ops.aten.alias.default, (given,), {}, "Tensor.set_"))
    assert isinstance(made, TensorValue)
    tensor.node = made.node
    return tensor


def _new(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if kwargs:
        return None
    described = [Constant(tensor.fake.dtype), Constant(tensor.fake.device)]
    return m.use(m.call(FunctionValue(torch_polyfills.legacy_tensor, None), [*described, *args], {}))


class HandleValue(ActiveValue):
    """What ``register_hook`` of an input gave. It is registered after the graph, unless it was removed before."""

    __slots__ = ("tensor", "hook")

    def __init__(self, tensor: TensorValue, hook: Value) -> None:
        super().__init__(None)
        self.tensor = tensor
        self.hook = hook

    @property
    def python_type(self) -> type:
        return torch.utils.hooks.RemovableHandle

    def attribute(self, m: Machine, name: str) -> Value | None:
        return NamedMethod(self, name) if name == "remove" else None

    @property
    def maker(self) -> Any:
        return torch.Tensor.register_hook

    @property
    def parts(self) -> list[Value]:
        return [self.tensor, self.hook]


def _is_there(handle: Any) -> None:
    """What the code after the graph calls to have a hook registered: its argument is made, and that is all."""


METHODS.of(random_state.RandomValue)(random_state.drawn)
RULES[random.Random] = random_state.made


@METHODS.of(HandleValue)
def _remove_hook(m: Machine, value: HandleValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    calls = m.tracer.effects.calls
    registered = [i for i, (function, given) in enumerate(calls) if function is _is_there and given[0] is value]
    if m.tracer.graphs.nested or len(registered) != 1:
        return _no_method(m, value, name, args, kwargs)
    del calls[registered[0]]
    return Constant(None)


def _register_hook(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``tensor.register_hook(hook)`` of a leaf that existed before: gradients reach it after the graph."""
    fake = tensor.fake
    if len(args) != 1 or kwargs or tensor.source is None or m.tracer.graphs.nested:
        return None
    if not (fake.requires_grad and fake.is_leaf):
        return None
    tensor_attributes.guard_leaf(m, tensor)
    handle = HandleValue(tensor, m.use(args[0]))
    m.tracer.effects.calls.append((_is_there, (handle,)))
    return handle


def _address(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    plain_ = tensor.kind in torch_function.PLAIN and not m.tracer.graphs.nested
    return RuntimeNumber(torch.Tensor.data_ptr, [tensor], tensor) if plain_ and not (args or kwargs) else None


def _storage_offset(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if args or kwargs or not m.tracer.graphs.owns_storage(tensor):
        return None
    return m.tracer.call("call_method", "storage_offset", (tensor,), {}, "Tensor.storage_offset")


def _fill_diagonal(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``tensor.fill_diagonal_(value)``: ATen takes the diagonal by where memory begins, which graphs do not know of inputs."""
    shape = tensor.fake.shape
    values = [*args[:1], *(v for k, v in kwargs.items() if k == "fill_value")]
    wraps = m.truth(kwargs.get("wrap", args[1] if len(args) > 1 else Constant(False)))
    if m.tracer.graphs.owns_storage(tensor) or len(shape) < 2 or len(values) != 1 or len(args) > 2:
        return None
    if len(shape) > 2 and any(size != shape[0] for size in shape):
        return None
    if wraps is not False:
        raise Break("FL104", what="Tensor.fill_diagonal_", why="the diagonal of an input wraps around")
    diagonal: Value = tensor
    for _ in shape[1:]:
        steps = (diagonal, Constant(0), Constant(0), Constant(1))
        diagonal = m.tracer.call("call_method", "diagonal", steps, {}, "Tensor.diagonal")
    m.tracer.call("call_method", "fill_", (diagonal, values[0]), {}, "Tensor.fill_")
    return tensor


def _requires_grad(m: Machine, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``tensor.requires_grad_(wanted)``: leaves come and go where the graph runs operator by operator only."""
    wanted = m.truth(kwargs.get("requires_grad", args[0] if args else Constant(True)))
    if wanted is tensor.fake.requires_grad:
        return tensor
    if wanted is None or m.tracer.graphs.nested:
        raise Break("FL104", what="Tensor.requires_grad_", why="a function that is transformed cannot make leaves")
    if tensor.source is not None:
        tensor_attributes.guard_leaf(m, tensor)
    return m.tracer.call("call_method", "requires_grad_", (tensor, Constant(wanted)), {}, "Tensor.requires_grad_")


_TENSOR_RULES: dict[str, Callable[[Machine, TensorValue, list[Value], dict[str, Value]], Value | None]] = {
    "__setitem__": _tensor_setitem,
    "set_": _set,
    "data_ptr": _address,
    "register_hook": _register_hook,
    "new": _new,
    "item": _item,
    "tolist": _tolist,
    "__len__": _tensor_len,
    "detach_": _detach_in_place,
    "type": _to_type,
    "storage_offset": _storage_offset,
    "numpy": numpy_calls.array_of,
    "new_tensor": numpy_calls.new_tensor,
    "requires_grad_": _requires_grad,
    "fill_diagonal_": _fill_diagonal,
}


_TENSOR_DUNDERS = {
    f"__{prefix}{name}__"
    for name in ("add", "sub", "mul", "truediv", "div", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
    for prefix in ("", "r", "i")
} | {
    "__neg__", "__pos__", "__abs__", "__invert__", "__getitem__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
}  # fmt: skip


def _string_method(m: Machine, receiver: Constant, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = receiver.value
    if name == "join" and len(args) == 1:
        args = [SequenceValue(iterate(m, args[0]), list)]
    if name in ("format", "format_map") and any(plain(deep_use(m, a)) is UNKNOWN for a in (*args, *kwargs.values())):
        if name == "format_map":
            args, kwargs = [], {str(k): v for k, v in mapping_items(m, args[0]).items()}
        return text.formatted(m, value, args, kwargs)
    return fold(m, getattr(value, name), args, kwargs, f"{receiver.python_type.__name__}.{name}")


_NOTHING = Constant(None)


def _flag(m: Machine, value: Value | None, default: bool) -> bool:
    """An argument that is taken as a truth value."""
    if value is None:
        return default
    truth = m.truth(value)
    if truth is None:
        raise Break("FL102", what=f"bool({value.describe()})")
    return truth


# --- lists, tuples, deques --------------------------------------------------------------------------------------


def _append(m: Machine, items: SequenceValue, value: Value, /) -> Value:
    items.items.append(value)
    items.trim()
    return _NOTHING


def _append_left(m: Machine, items: SequenceValue, value: Value, /) -> Value:
    items.items.insert(0, value)
    items.trim(from_left=False)
    return _NOTHING


def _extend(m: Machine, items: SequenceValue, values: Value, /) -> Value:
    over = iterator(m, values)
    limit = len(items.items) if m.use(values) is items else -1
    while limit != 0 and (item := advance(m, over)) is not None:
        items.items.append(item)
        items.trim()
        limit -= 1
    return _NOTHING


def _extend_left(m: Machine, items: SequenceValue, values: Value, /) -> Value:
    for item in iterate(m, values):
        _append_left(m, items, item)
    return _NOTHING


def _insert(m: Machine, items: SequenceValue, index: Value, value: Value, /) -> Value:
    if isinstance(items, DequeValue) and items.maxlen is not None and len(items.items) >= items.maxlen:
        raise raising(IndexError("deque already at its maximum size"))
    items.items.insert(integer(m, index), value)
    return _NOTHING


def _pop(m: Machine, items: SequenceValue, index: Value | None = None, /) -> Value:
    at = integer(m, index) if index is not None else -1
    if not items.items:
        raise raising(IndexError("pop from empty list"))
    if not -len(items.items) <= at < len(items.items):
        raise raising(IndexError("pop index out of range"))
    return m.use(items.items.pop(at))


def _pop_right(m: Machine, items: SequenceValue, /) -> Value:
    if not items.items:
        raise raising(IndexError("pop from an empty deque"))
    return m.use(items.items.pop())


def _pop_left(m: Machine, items: SequenceValue, /) -> Value:
    if not items.items:
        raise raising(IndexError("pop from an empty deque"))
    return m.use(items.items.pop(0))


def _rotate(m: Machine, items: SequenceValue, n: Value | None = None, /) -> Value:
    if items.items:
        by = (integer(m, n) if n is not None else 1) % len(items.items)
        items.items[:] = items.items[-by:] + items.items[:-by] if by else items.items
    return _NOTHING


def _remove(m: Machine, items: SequenceValue, value: Value, /) -> Value:
    for i, item in enumerate(items.items):
        found = equal(m, item, value)
        if items.family == "deque" and not (i < len(items.items) and items.items[i] is item):
            raise raising(IndexError("deque mutated during remove()."))
        if found:
            del items.items[i : i + 1]
            return _NOTHING
    where = items.family
    if where == "list" or sys.version_info >= (3, 14):
        raise raising(ValueError(f"{where}.remove(x): x not in {where}"))
    raise raising(ValueError(f"{text.text(m, repr, value).value} is not in deque"))


def _reverse(m: Machine, items: SequenceValue, /) -> Value:
    items.items.reverse()
    return _NOTHING


def _clear(m: Machine, items: SequenceValue, /) -> Value:
    items.items.clear()
    return _NOTHING


def _copy(m: Machine, items: SequenceValue, /) -> Value:
    return items.like(list(items.items))


def _sort(m: Machine, items: SequenceValue, *, key: Value | None = None, reverse: Value | None = None) -> Value:
    items.items[:] = in_order(m, items.items, key, reverse)
    return _NOTHING


def in_order(m: Machine, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
    """What ``sorted`` gives for the items."""
    backwards = _flag(m, reverse, False)
    named = key is not None and not (isinstance(m.use(key), Constant))
    keys = [m.use(m.call(key, [v], {})) if named and key is not None else m.use(v) for v in items]
    known = [plain(deep_use(m, k)) for k in keys]
    if not any(k is UNKNOWN for k in known):
        try:
            order = sorted(range(len(items)), key=known.__getitem__, reverse=backwards)
        except Exception as e:  # noqa: BLE001 - what the comparison raises
            raise raising(e) from None
        return [items[i] for i in order]
    pairs = list(zip(keys, items, strict=True))
    if backwards:
        pairs.reverse()
    done: list[tuple[Value, Value]] = []
    for pair in pairs:
        low, high = 0, len(done)
        while low < high:
            middle = (low + high) // 2
            truth = m.truth(binary(m, operator.lt, pair[0], done[middle][0], "<"))
            if truth is None:
                raise Break("FL102", what="the order of tensors")
            low, high = (low, middle) if truth else (middle + 1, high)
        done.insert(low, pair)
    if backwards:
        done.reverse()
    return [item for _, item in done]


def _index(
    m: Machine, items: SequenceValue, value: Value, start: Value | None = None, stop: Value | None = None, /
) -> Value:
    size = len(items.items)
    first = slice(integer(m, start) if start is not None else 0, None).indices(size)[0]
    last = slice(None, integer(m, stop) if stop is not None else size).indices(size)[1]
    before = list(items.items) if items.family == "deque" else None
    for i, item in enumerate(items.items[first:last] if before is not None else _from(items.items, first, last), first):
        found = equal(m, item, value)
        if before is not None:
            _unchanged(items.items, before)
        if found:
            return Constant(i)
    where = items.family
    if where == "tuple" or sys.version_info >= (3, 14):
        raise raising(ValueError(f"{where}.index(x): x not in {where}"))
    raise raising(ValueError(f"{text.text(m, repr, value).value} is not in {where}"))


def _from(items: list[Value], first: int, last: int) -> Iterator[Value]:
    """The items of a part of a list that may change meanwhile."""
    while first < min(last, len(items)):
        yield items[first]
        first += 1


def _unchanged(items: list[Value], before: list[Value]) -> None:
    """Raises what a deque raises that a comparison changed."""
    if len(items) != len(before) or not all(map(operator.is_, items, before)):
        raise raising(RuntimeError("deque mutated during iteration"))


def _count(m: Machine, items: SequenceValue, value: Value, /) -> Value:
    before = list(items.items) if items.family == "deque" else None
    count = 0
    for item in items.items if before is None else before:
        count += equal(m, item, value)
        if before is not None:
            _unchanged(items.items, before)
    return Constant(count)


def _numel(m: Machine, items: SequenceValue, /) -> Value:
    total: Value = Constant(1)
    for item in items.items:
        total = binary(m, operator.mul, total, m.use(item), "*")
    return total


_SEQUENCE_METHODS: dict[str, Any] = {"index": _index, "count": _count, "numel": _numel}
_LIST_METHODS: dict[str, Any] = {
    "append": _append, "extend": _extend, "insert": _insert, "pop": _pop, "remove": _remove, "reverse": _reverse,
    "clear": _clear, "copy": _copy, "sort": _sort,
}  # fmt: skip
_DEQUE_METHODS: dict[str, Any] = {
    "append": _append, "appendleft": _append_left, "extend": _extend, "extendleft": _extend_left, "insert": _insert,
    "pop": _pop_right, "popleft": _pop_left, "remove": _remove, "reverse": _reverse, "clear": _clear, "copy": _copy,
    "rotate": _rotate, "__copy__": _copy,
}  # fmt: skip


# --- dictionaries -----------------------------------------------------------------------------------------------


def _get(m: Machine, mapping: DictValue, key: Value, default: Value = _NOTHING, /) -> Value:
    found = mapping.items.get(key_among(m, mapping.items, key))
    return m.use(found) if found is not None else default


def _dict_pop(m: Machine, mapping: DictValue, key: Value, default: Value | None = None, /) -> Value:
    wanted = key_among(m, mapping.items, key)
    if wanted in mapping.items:
        return m.use(mapping.items.pop(wanted))
    if default is not None:
        return default
    raise key_error(wanted)


def _ordered_pop(m: Machine, mapping: DictValue, key: Value, default: Value | None = None) -> Value:
    return _dict_pop(m, mapping, key, default)


def _popitem(m: Machine, mapping: DictValue, /) -> Value:
    if not mapping.items:
        raise raising(KeyError("popitem(): dictionary is empty"))
    key, value = mapping.items.popitem()
    return SequenceValue([from_plain(key, "a dictionary key"), value], tuple)


def _ordered_popitem(m: Machine, mapping: DictValue, last: Value | None = None) -> Value:
    if not mapping.items:
        raise raising(KeyError("dictionary is empty"))
    keys = list(mapping.items)
    key = keys[-1 if _flag(m, last, True) else 0]
    return SequenceValue([from_plain(key, "a dictionary key"), mapping.items.pop(key)], tuple)


def _move_to_end(m: Machine, mapping: DictValue, key: Value, last: Value | None = None) -> Value:
    wanted = key_among(m, mapping.items, key)
    if wanted not in mapping.items:
        raise key_error(wanted)
    rest = dict(mapping.items)
    moved = {k: v for k, v in rest.items() if k == wanted}
    rest.pop(wanted)
    first, second = (rest, moved) if _flag(m, last, True) else (moved, rest)
    mapping.items.clear()
    mapping.items.update(first)
    mapping.items.update(second)
    return _NOTHING


def _dict_update(m: Machine, mapping: DictValue, other: Value | None = None, /, **named: Value) -> Value:
    if other is not None:
        mapping.items.update(mapping_items(m, other))
    mapping.items.update(named)
    return _NOTHING


def _setdefault(m: Machine, mapping: DictValue, key: Value, default: Value = _NOTHING, /) -> Value:
    return m.use(mapping.items.setdefault(key_among(m, mapping.items, key), default))


def _dict_clear(m: Machine, mapping: DictValue, /) -> Value:
    mapping.items.clear()
    return _NOTHING


def _dict_copy(m: Machine, mapping: DictValue, /) -> Value:
    return DictValue(dict(mapping.items), mapping.kind, None, mapping.factory)


def from_keys(m: Machine, kind: type, iterable: Value, value: Value = _NOTHING) -> Value:
    """``kind.fromkeys(iterable, value)``."""
    factory = _NOTHING if kind is defaultdict else None
    return DictValue(dict.fromkeys(elements(m, iterable, "a dict key"), value), kind, None, factory)


_DICT_METHODS: dict[str, Any] = {
    "get": _get, "pop": _dict_pop, "popitem": _popitem, "update": _dict_update, "setdefault": _setdefault,
    "clear": _dict_clear, "copy": _dict_copy, "__copy__": _dict_copy,
    "keys": lambda m, d, /: DictView(d, "keys"),
    "values": lambda m, d, /: DictView(d, "values"),
    "items": lambda m, d, /: DictView(d, "items"),
    "fromkeys": lambda m, d, iterable, value=_NOTHING, /: from_keys(m, d.kind, iterable, value),
}  # fmt: skip
_ORDERED_METHODS: dict[str, Any] = {"pop": _ordered_pop, "popitem": _ordered_popitem, "move_to_end": _move_to_end}
_VIEW_METHODS: dict[str, Any] = {
    "isdisjoint": lambda m, view, other, /: Constant(set(elements(m, view)).isdisjoint(elements(m, other))),
}


# --- sets -------------------------------------------------------------------------------------------------------


def _add(m: Machine, items: SetValue, value: Value, /) -> Value:
    items.change("add", [key_among(m, items.items, value, ELEMENT)])
    return _NOTHING


def _element(m: Machine, items: SetValue, value: Value) -> Any:
    """An element that is looked up: a set is, as the frozenset of its elements."""
    value = m.use(value)
    return frozenset(value.items) if isinstance(value, SetValue) else key_among(m, items.items, value, ELEMENT)


def _discard(m: Machine, items: SetValue, value: Value, /) -> Value:
    items.change("discard", [_element(m, items, value)])
    return _NOTHING


def _set_remove(m: Machine, items: SetValue, value: Value, /) -> Value:
    wanted = _element(m, items, value)
    if wanted not in items.items:
        raise key_error(wanted)
    items.change("discard", [wanted])
    return _NOTHING


def _set_pop(m: Machine, items: SetValue, /) -> Value:
    if not items.items:
        raise raising(KeyError("pop from an empty set"))
    if len(items.items) > 1:
        raise Break("FL104", what="set.pop", why="which element it gives depends on the set's past")
    (key,) = items.items
    items.change("discard", [key])
    return from_plain(key, "an element of a set")


def _set_clear(m: Machine, items: SetValue, /) -> Value:
    items.change("clear", [])
    return _NOTHING


def _set_copy(m: Machine, items: SetValue, /) -> Value:
    return items if isinstance(items.items, frozenset) else combined_sets(items, "copy", [])


def _others(m: Machine, others: tuple[Value, ...]) -> list[SetValue]:
    return [as_set(m, m.use(o)) or SetValue(elements(m, o)) for o in others]


def _combination(name: str) -> Any:
    def run(m: Machine, items: SetValue, /, *others: Value) -> Value:
        return combined_sets(items, name, _others(m, others))

    return run


def _update_by(name: str) -> Any:
    def run(m: Machine, items: SetValue, /, *others: Value) -> Value:
        change_set(m, items, name, [m.use(o) for o in others])
        return _NOTHING

    return run


def _relation(name: str) -> Any:
    def run(m: Machine, items: SetValue, other: Value, /) -> Value:
        return Constant(getattr(items.items, name)(_others(m, (other,))[0].items))

    return run


_SET_METHODS: dict[str, Any] = {
    "add": _add,
    "discard": _discard,
    "remove": _set_remove,
    "pop": _set_pop,
    "clear": _set_clear,
    "copy": _set_copy,
    "__copy__": _set_copy,
    **{name: _combination(name) for name in ("union", "intersection", "difference")},
    "symmetric_difference": lambda m, s, other, /: combined_sets(s, "symmetric_difference", _others(m, (other,))),
    "update": _update_by("union"),
    "intersection_update": _update_by("intersection"),
    "difference_update": _update_by("difference"),
    "symmetric_difference_update": lambda m, s, other, /: _update_by("symmetric_difference")(m, s, other),
    **{name: _relation(name) for name in ("issubset", "issuperset", "isdisjoint")},
}
_MUTATORS = {
    "append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "remove", "reverse", "clear", "sort",
    "rotate", "popitem", "update", "setdefault", "move_to_end", "add", "discard", "intersection_update",
    "difference_update", "symmetric_difference_update",
}  # fmt: skip


# --- operators by name ------------------------------------------------------------------------------------------


def _by_operator(function: Any, symbol: str) -> Any:
    def run(m: Machine, receiver: Value, other: Value, /) -> Value:
        other = m.use(other)
        ordered = symbol in ("==", "!=", "<", "<=", ">", ">=")
        if isinstance(other, (ObjectValue, TensorValue)) or (ordered and type(other) is not type(receiver)):
            return Constant(NotImplemented)
        return binary(m, function, receiver, other, symbol)

    return run


def _set_item(m: Machine, receiver: Value, key: Value, value: Value, /) -> Value:
    store_subscript(m, receiver, m.use(key), value)
    return _NOTHING


def _delete_item(m: Machine, receiver: Value, key: Value, /) -> Value:
    delete_subscript(m, receiver, m.use(key))
    return _NOTHING


_NAMED_OPERATORS = [
    ("__eq__", operator.eq, "=="), ("__ne__", operator.ne, "!="), ("__lt__", operator.lt, "<"),
    ("__le__", operator.le, "<="), ("__gt__", operator.gt, ">"), ("__ge__", operator.ge, ">="),
    ("__add__", operator.add, "+"), ("__iadd__", operator.iadd, "+="), ("__mul__", operator.mul, "*"),
    ("__imul__", operator.imul, "*="), ("__rmul__", operator.mul, "*"), ("__or__", operator.or_, "|"),
    ("__ior__", operator.ior, "|="), ("__and__", operator.and_, "&"), ("__iand__", operator.iand, "&="),
    ("__sub__", operator.sub, "-"), ("__isub__", operator.isub, "-="), ("__xor__", operator.xor, "^"),
    ("__ixor__", operator.ixor, "^="),
]  # fmt: skip
_DUNDERS: dict[str, Any] = {
    "__len__": lambda m, v, /: m.call(Known(len), [v], {}),
    "__iter__": lambda m, v, /: iterator(m, v),
    "__reversed__": lambda m, v, /: m.call(Known(reversed), [v], {}),
    "__contains__": lambda m, v, member, /: Constant(contains(m, v, m.use(member))),
    "__getitem__": lambda m, v, key, /: subscript(m, v, key),
    "__setitem__": _set_item,
    "__delitem__": _delete_item,
    "__repr__": lambda m, v, /: text.text(m, repr, v),
    "__str__": lambda m, v, /: text.text(m, str, v),
    "__hash__": lambda m, v, /: m.call(Known(hash), [v], {}),
    **{name: _by_operator(function, symbol) for name, function, symbol in _NAMED_OPERATORS},
}
