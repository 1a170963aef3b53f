"""Operations on numpy's arrays become nodes that compute on tensors.

What numpy itself makes of arrays like these (``examples.py``) says what comes out: an array or a number, its dtype, its strides,
whose memory it has. Where torch's translation differs in one of these, the node is mended; where that cannot be done, or the
elements differ, the graph breaks and numpy computes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break
from ..hook import _hook
from ..tracing import sources as src
from ..values.algebra import (
    ArrayValue,
    Constant,
    Known,
    NamedMethod,
    SequenceValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from ..values.known import deep_use, from_plain, plain
from . import examples

if TYPE_CHECKING:
    from ..machine import Machine

_DESCRIBING = {
    "broadcast_shapes", "can_cast", "common_type", "iscomplexobj", "isrealobj", "isscalar", "min_scalar_type", "ndim",
    "result_type", "shape", "size",
}  # fmt: skip
"""Functions whose result no element decides."""
_UNASKED: Any = object()


# --- tensors of arrays ------------------------------------------------------------------------------------------


def memory(m: Machine, value: ArrayValue, what: str) -> TensorValue:
    """The tensor that has the memory of an array."""
    if m.tracer.graphs.nested:
        raise Break("FL104", what=what, why="of an array, inside a function that runs as a whole")
    if value.memory is None:
        assert value.source is not None
        tensor = torch_private.shared_tensor(value.existing)
        source = src.applied(torch_private.shared_tensor, value.source)
        found = m.use(m.tracer.lazy(tensor, source.called(f"torch.from_numpy({value.source})")))
        assert isinstance(found, TensorValue)
        value.memory = found
    return value.memory


def elements(m: Machine, value: ArrayValue, what: str) -> TensorValue:
    """A tensor with the elements of an array: its memory, or a copy where the array runs backwards."""
    held = memory(m, value, what)
    if not value.flips:
        return held
    return _node(m, "call_function", torch.flip, (held, Constant(list(value.flips))), what)


def _node(m: Machine, kind: str, target: Any, args: tuple[Value, ...], what: str, **kwargs: Value) -> TensorValue:
    made = m.tracer.call(kind, target, args, kwargs, what)
    assert isinstance(made, TensorValue)
    return made


# --- arguments --------------------------------------------------------------------------------------------------


class _Given:
    """The arguments of one operation: the values themselves, what a node takes for them, and arrays like them."""

    def __init__(self, m: Machine, operation: torch_private.Operation, what: str, *, small: bool) -> None:
        self.m = m
        self.small = small  # the examples are smaller than what they are like
        self.what = what
        self.name = operation.name
        self.writes = operation.writes
        self.arrays: list[tuple[Any, ArrayValue]] = []  # the examples, and what they are like

    def argument(self, value: Value) -> tuple[Value, Any]:
        """What a node takes, and an example."""
        if isinstance(value, ArrayValue):
            return self._array(value)
        if isinstance(value, SequenceValue) and value.kind in (list, tuple):
            pairs = [self.argument(v) for v in value.items]
            return SequenceValue([node for node, _ in pairs], value.kind), value.kind(e for _, e in pairs)
        if isinstance(value, SliceValue):
            bounds = [self.argument(v) for v in value.parts]
            return value, slice(*(e for _, e in bounds))
        if isinstance(value, SymbolValue):
            hint = torch_private.number_hint(value.node.meta["val"])
            if hint is None:
                raise Break("FL102", what=self.what)
            return value, hint
        if isinstance(value, (Constant, Known)):
            return self._known(value)
        raise Break("FL104", what=self.what, why=f"of an array and {value.describe()}")

    def _array(self, value: ArrayValue) -> tuple[Value, Any]:
        if value.flips and self.writes:
            raise Break("FL104", what=self.what, why="it may write to an array that runs backwards")
        node = elements(self.m, value, self.what)
        held = memory(self.m, value, self.what)
        array = next((e for e, v in self.arrays if v is value), None)
        if array is None:
            array = examples.example(held.fake, self.name, small=self.small)
            array = classify.numpy().flip(array, value.flips) if value.flips else array
            array = array[()] if value.is_number else array
            self.arrays.append((array, value))
        return node, array

    def _known(self, value: Constant | Known) -> tuple[Value, Any]:
        obj, numpy = value.value, classify.numpy()
        if type(obj) in classify.NUMPY_SCALARS:  # whose dtype counts, other than that of Python's numbers
            dtype = Constant(_dtype(obj.dtype, self.what))
            shape = SequenceValue([], tuple)
            device = Constant(torch.device("cpu"))
            args = (shape, Constant(obj.item()))
            return _node(self.m, "call_function", torch.full, args, self.what, dtype=dtype, device=device), obj
        if isinstance(obj, (type, numpy.dtype)):
            return Constant(numpy.dtype(obj).name), obj
        if isinstance(value, Known):
            raise Break("FL104", what=self.what, why=f"of an array and {value.describe()}")
        return value, obj


def _dtype(dtype: Any, what: str) -> torch.dtype:
    """The dtype that tensors have for one of numpy's."""
    try:
        return torch.from_numpy(classify.numpy().empty(0, dtype)).dtype
    except TypeError as e:
        raise Break("FL104", what=what, why=f"of arrays of {dtype}, which tensors are not") from e


# --- operations -------------------------------------------------------------------------------------------------


def arrays_in(m: Machine, values: Iterable[Value]) -> Iterator[ArrayValue]:
    """The arrays among the arguments of a call."""
    for value in values:
        value = m.use(value)
        if isinstance(value, ArrayValue):
            yield value
        elif isinstance(value, SequenceValue):
            yield from arrays_in(m, value.items)


def operate(
    m: Machine, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value] | None = None
) -> Value:
    """A function of the module ``operator`` on values of which one is an array."""
    first = m.use(args[0])
    what = f"operator {function.__name__}"
    if function is operator.getitem and isinstance(first, ArrayValue):
        found = _backwards(m, first, m.use(args[1]), what)
        if found is not None:
            return found
    operation = torch_private.operation_of_array("operator", function.__name__)
    return compute(m, operation, function, args, kwargs or {}, what)


def beside_tensors(m: Machine, args: list[Value], name: str) -> list[Value]:
    """Operands with tensors for numbers of numpy's beside a tensor, which takes them for numbers of Python's."""
    tensor = next((a for a in args if isinstance(a, TensorValue) and a.kind is torch.Tensor), None)
    if tensor is None or len(args) != 2:
        return args
    return [_as_number(m, a, tensor, f"operator {name}") if isinstance(a, ArrayValue) else a for a in args]


def _as_number(m: Machine, value: ArrayValue, tensor: TensorValue, what: str) -> Value:
    """A tensor without dimensions that gives the dtype that a number of Python's would give."""
    if not value.is_number:
        return value
    held = memory(m, value, what)
    if held.fake.dtype is torch.bool or held.fake.is_complex():
        return value
    if held.fake.is_floating_point() and not (tensor.fake.is_floating_point() or tensor.fake.is_complex()):
        m.tracer.torch_state.guard_ambient(m.tracer.span)
        return _node(m, "call_method", "to", (held, Constant(torch.get_default_dtype())), what)
    if not tensor.fake.ndim and held.fake.dtype is not tensor.fake.dtype:  # neither has dimensions: the tensor decides
        return _node(m, "call_method", "to", (held, Constant(tensor.fake.dtype)), what)
    return held


def compute(
    m: Machine,
    operation: torch_private.Operation | None,
    function: Callable[..., Any],
    args: list[Value],
    kwargs: dict[str, Value],
    what: str,
) -> Value:
    """What ``function`` of numpy's gives; ``operation`` computes it on tensors."""
    if operation is None:
        raise Break("FL104", what=what, why="torch does not translate this operation of arrays")
    args, kwargs = [deep_use(m, a) for a in args], {k: deep_use(m, v) for k, v in kwargs.items()}
    sizes = [memory(m, v, what).fake.shape for v in arrays_in(m, [*args, *kwargs.values()])]
    sizes_are_known = all(torch_private.number_hint(n) is not None for shape in sizes for n in shape)
    elements_given = sum(math.prod(map(torch_private.size_hint, shape)) for shape in sizes)
    given = _Given(m, operation, what, small=not examples.is_affordable(operation.name, elements_given))
    pairs, named = [given.argument(a) for a in args], {k: given.argument(v) for k, v in kwargs.items()}
    example = [e for _, e in pairs], {k: e for k, (_, e) in named.items()}
    wanted = _asked(operation, function, example, given) if sizes_are_known else _UNASKED
    if operation.name in _DESCRIBING and wanted is not _UNASKED and not given.small:
        return from_plain(wanted, what)
    _guard_errors(m, what)
    nodes = tuple(v for v, _ in pairs), {k: v for k, (v, _) in named.items()}
    found = m.tracer.call("call_function", operation, *nodes, what, keep=operation.writes)
    if _is_narrower(found, wanted) and not operation.writes:
        cast = [_cast(m, v, wanted.dtype, what) for v in nodes[0]]
        found = m.tracer.call("call_function", operation, tuple(cast), nodes[1], what)
    return _result(m, found, wanted, given, operation)


def _asked(
    operation: torch_private.Operation, function: Any, example: tuple[list[Any], dict[str, Any]], given: _Given
) -> Any:
    """What numpy gives for the example; :data:`_UNASKED` where that depends on the elements, or on the sizes that small examples
    do not have."""
    args, kwargs = example
    compared = examples.count(example) <= examples.COMPARED and examples.defined(operation.name)
    copies = examples.copied((args, kwargs)) if compared and operation.name not in _DESCRIBING else None
    try:
        wanted = examples.made(function, args, kwargs)
    except examples.Unknown:
        return _UNASKED
    except examples.Refused as e:
        if given.small:
            return _UNASKED
        raise Break("FL104", what=given.what, why=f"numpy refuses it ({e})") from None
    if copies is not None and not _agrees(operation, copies, wanted, args):
        raise Break("FL104", what=given.what, why="torch's translation of it gives other numbers than numpy")
    return wanted


def _agrees(operation: torch_private.Operation, copies: tuple[Any, Any], wanted: Any, args: list[Any]) -> bool:
    """Whether the operation gives for the copies what numpy gave, and writes what numpy has written to ``args``."""
    with torch_private.real_tensors(), torch_private.without_torch_function():
        try:
            found = operation(*copies[0], **copies[1])
        except Exception:  # noqa: BLE001 - it refuses what numpy does not
            return False
        return examples.agree(found, wanted) and (not operation.writes or examples.agree(copies[0][0], args[0]))


def _result(m: Machine, found: Value, wanted: Any, given: _Given, operation: torch_private.Operation) -> Value:
    """The value of what a node gives, as numpy would have given it."""
    if wanted is _UNASKED:
        return _unasked(m, found, given, operation)
    if wanted is None:
        return Constant(None)
    if isinstance(wanted, (list, tuple)):
        if not isinstance(found, SequenceValue) or len(found.items) != len(wanted):
            raise Break("FL104", what=given.what, why="torch's translation of it gives other results than numpy")
        parts = zip(found.items, wanted, strict=True)
        return SequenceValue([_result(m, m.use(f), w, given, operation) for f, w in parts], type(wanted))
    numpy = classify.numpy()
    same = next((v for e, v in given.arrays if e is wanted and isinstance(e, numpy.ndarray)), None)
    if same is not None:
        return same
    if not isinstance(wanted, (numpy.ndarray, numpy.generic)) or not isinstance(found, TensorValue):
        raise Break("FL102", what=given.what)
    made = ArrayValue(_mended(m, found, wanted, given), is_number=isinstance(wanted, numpy.generic))
    made.base = Constant(None) if wanted.base is None else _owner(m, wanted.base, given)
    return made


def _owner(m: Machine, base: Any, given: _Given) -> Value | None:
    """The array whose memory a view of an argument has; None where that is not known."""
    for example, value in given.arrays:
        if base is example or base is example.base:
            above = base_of(m, value)  # of an array on other memory, say a bytearray's, views are views of the array
            return above if above is None or isinstance(above, ArrayValue) else value
    return None


def base_of(m: Machine, value: ArrayValue) -> Value | None:
    """``ndarray.base``: None for an array that has its own memory; None where it is not known."""
    if value.existing is not None and value.source is not None:
        return m.use(m.tracer.lazy(value.existing.base, src.generic_attribute(value.source, "base")))
    return value.base


def _unasked(m: Machine, found: Value, given: _Given, operation: torch_private.Operation) -> Value:
    """The same where numpy was not asked: new arrays, and numbers where no dimension is left."""
    if isinstance(found, SequenceValue):
        return SequenceValue([_unasked(m, m.use(v), given, operation) for v in found.items], found.kind)
    if isinstance(found, Constant) and found.value is None:
        return found
    if not isinstance(found, TensorValue):
        raise Break("FL102", what=given.what)
    same = next((v for _, v in given.arrays if v.memory is found and operation.writes), None)
    if same is not None:
        return same
    if found.fake.is_floating_point() and not any(
        v.memory.fake.is_floating_point() for _, v in given.arrays if v.memory
    ):
        raise Break("FL104", what=given.what, why="the dtype that numpy gives is not known beforehand")
    if _shares(found, given):
        found = _node(m, "call_method", "clone", (found,), given.what)
    return ArrayValue(found, is_number=found.fake.ndim == 0)


def _mended(m: Machine, found: TensorValue, wanted: Any, given: _Given) -> TensorValue:
    """The node's tensor with the dtype, the memory and the strides of what numpy gives."""
    numpy, what = classify.numpy(), given.what
    fake = found.fake
    sizes = [torch_private.number_hint(n) for n in fake.shape]
    same = len(sizes) == wanted.ndim
    if same and not given.small:
        same = all(a in (None, b) for a, b in zip(sizes, wanted.shape, strict=True))
    if not same or fake.device.type != "cpu":
        raise Break("FL104", what=what, why="torch's translation of it gives another shape than numpy")
    dtype = _dtype(wanted.dtype, what)
    if fake.dtype is not dtype:
        if not numpy.can_cast(wanted.dtype, torch_private.array_of(fake.dtype).dtype):
            raise Break("FL104", what=what, why=f"torch's translation of it computes in {fake.dtype}, numpy in {dtype}")
        found = _node(m, "call_method", "to", (found, Constant(dtype)), what)
    shared = examples.shares(wanted, [e for e, _ in given.arrays])
    if shared and not _shares(found, given):
        raise Break("FL104", what=what, why="numpy's result is a view, and that of torch's translation is not")
    if not shared and _shares(found, given):
        found = _node(m, "call_method", "clone", (found,), what)
    return _with_new_axes(m, found, wanted, what) if shared else _laid_out(m, found, wanted, what, given.small)


def _with_new_axes(m: Machine, found: TensorValue, wanted: Any, what: str) -> TensorValue:
    """A view with the strides of its new axes as numpy says them: 0. torch counts what is behind them."""
    fake = found.fake
    new = [n == 1 and step == 0 for n, step in zip(fake.shape, wanted.strides, strict=True)]
    if not any(new) or not all(isinstance(n, int) for n in (*fake.shape, *fake.stride(), fake.storage_offset())):
        return found
    strides = tuple(0 if is_new else n for n, is_new in zip(fake.stride(), new, strict=True))
    lies = (tuple(fake.shape), strides, fake.storage_offset())
    return _node(m, "call_method", "as_strided", (found, *map(Constant, lies)), what)


def _is_narrower(found: Value, wanted: Any) -> bool:
    """Whether the operation computed in a dtype that does not hold numpy's results."""
    numpy = classify.numpy()
    if (
        not isinstance(found, TensorValue)
        or not isinstance(wanted, (numpy.ndarray, numpy.generic))
        or wanted.dtype.kind not in "ifc"
    ):
        return False
    return not numpy.can_cast(wanted.dtype, torch_private.array_of(found.fake.dtype).dtype)


def _cast(m: Machine, node: Value, dtype: Any, what: str) -> Value:
    """An argument in the dtype of the result, as numpy casts it before it computes."""
    if not isinstance(node, TensorValue):
        return node
    given = torch_private.array_of(node.fake.dtype).dtype
    if given == dtype or not classify.numpy().can_cast(given, dtype, "same_kind"):
        return node
    return _node(m, "call_method", "to", (node, Constant(_dtype(dtype, what))), what)


def _shares(found: TensorValue, given: _Given) -> bool:
    """Whether a result has memory of an argument."""
    key = torch_private.storage_key
    return any(v.memory is not None and key(v.memory.fake) == key(found.fake) for _, v in given.arrays)


def _laid_out(m: Machine, found: TensorValue, wanted: Any, what: str, small: bool) -> TensorValue:
    """A new tensor with its elements in the order in which numpy has them; a ``small`` example tells the order alone."""
    if None in map(torch_private.number_hint, found.fake.shape):
        return found
    strides = [torch_private.size_hint(s) * wanted.itemsize for s in found.fake.stride()]
    places = [(a, b) for n, a, b in zip(wanted.shape, strides, wanted.strides, strict=True) if n > 1]
    in_order = sorted(places, key=lambda p: -p[0]) == sorted(places, key=lambda p: -p[1])
    if not wanted.size or (in_order if small else all(a == b for a, b in places)):
        return found
    order = sorted(range(wanted.ndim), key=lambda d: (-wanted.strides[d], d))  # from the outermost dimension
    back = sorted(range(wanted.ndim), key=order.__getitem__)
    turned = _node(m, "call_method", "permute", (found, Constant(tuple(order))), what)
    dense = _node(m, "call_method", "contiguous", (turned,), what)
    return _node(m, "call_method", "permute", (dense, Constant(tuple(back))), what)


class _QuietErrors:
    """A guard: numpy raises and reports nothing where numbers overflow and the like, as when this was traced."""

    def __call__(self) -> bool:
        return errors_are_quiet()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _QuietErrors)

    def __hash__(self) -> int:
        return hash(_QuietErrors)


_QUIET_ERRORS = _QuietErrors()


def errors_are_quiet() -> bool:
    """Whether floating-point errors raise nothing and call nothing."""
    return not {"raise", "call", "log"} & set(classify.numpy().geterr().values())


def _guard_errors(m: Machine, what: str) -> None:
    if not errors_are_quiet():
        raise Break("FL104", what=what, why="numpy is told to raise or to call something on floating-point errors")
    text = "numpy raises nothing on floating-point errors"
    m.tracer.guards.check_state(_hook.GLOBAL_CALL, _QUIET_ERRORS, name="STATE", text=text, span=m.tracer.span)


def rows(m: Machine, value: ArrayValue) -> list[Value]:
    """What iterating over an array gives."""
    what = "iteration over an array"
    fake = memory(m, value, what).fake
    if not fake.ndim or not isinstance(fake.shape[0], int):
        raise Break("FL105", what=what, why="it has no dimension, or one whose size varies")
    return [operate(m, operator.getitem, [value, Constant(i)]) for i in range(fake.shape[0])]


def layout(m: Machine, value: ArrayValue, name: str) -> Value:
    """How an array lies in memory, in bytes: its ``strides`` or its ``nbytes``."""
    fake = memory(m, value, name).fake
    numbers = fake.stride() if name == "strides" else fake.shape
    if not all(isinstance(n, int) for n in numbers):
        raise Break("FL106", what=name, why="of an array whose sizes vary")
    if name == "nbytes":
        return Constant(fake.numel() * fake.element_size())
    signs = (-1 if d in value.flips else 1 for d in range(fake.ndim))
    return SequenceValue([Constant(s * n * fake.element_size()) for s, n in zip(signs, numbers, strict=True)], tuple)


def attribute(m: Machine, value: ArrayValue, name: str) -> Value | None:
    """An attribute of an array that says something about its elements, or a method; None for others."""
    if callable(getattr(value.python_type, name, None)):
        return NamedMethod(value, name)
    if name == "base":
        return base_of(m, value)
    if name not in ("T", "real", "imag"):
        return None
    operation = torch_private.operation_of_array("attribute", name)
    return compute(m, operation, operator.attrgetter(name), [value], {}, f"ndarray.{name}")


def method(m: Machine, value: ArrayValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a method of an array gives."""
    what = f"ndarray.{name}"
    if name in ("item", "tolist") and not (args or kwargs):
        return m.call(NamedMethod(elements(m, value, what), name), [], {})
    operation = torch_private.operation_of_array("method", name)
    return compute(m, operation, getattr(value.python_type, name), [value, *args], kwargs, what)


# --- arrays that run backwards ----------------------------------------------------------------------------------


def _backwards(m: Machine, value: ArrayValue, key: Value, what: str) -> Value | None:
    """A subscript with slices of negative steps: a view that runs backwards. None for other subscripts."""
    keys = [m.use(k) for k in key.items] if isinstance(key, SequenceValue) and key.kind is tuple else [key]
    if not any(map(_reverses, keys)):
        return None
    known = [plain(k) if isinstance(k, (Constant, SliceValue)) else None for k in keys]
    held = memory(m, value, what)
    plain_keys = [k for k in known if isinstance(k, (int, slice)) and not isinstance(k, bool)]
    others = sum(k is Ellipsis or (k is None and isinstance(v, Constant)) for k, v in zip(known, keys, strict=True))
    rest = held.fake.ndim - len(plain_keys)
    if value.flips or value.is_number or len(plain_keys) + others != len(known) or rest < 0:
        raise Break("FL104", what=what, why="it reverses an array, and more")
    forwards: list[Any] = []
    flips: list[int] = []
    dimension = taken = 0  # of the result, and of the array
    for k in known:
        if k is Ellipsis:
            dimension, taken = dimension + rest, taken + rest
        elif k is None:
            dimension += 1
        else:
            if isinstance(k, slice):
                k, flipped = _forwards(k, held.fake.shape[taken], what)
                flips += [dimension] if flipped else []
                dimension += 1
            taken += 1
        forwards.append(k)
    part = m.tracer.call("call_function", operator.getitem, (held, Constant(tuple(forwards))), {}, what)
    assert isinstance(part, TensorValue)
    return ArrayValue(part, flips=tuple(flips))


def _reverses(key: Value) -> bool:
    """Whether a subscript is a slice with a negative step."""
    step = key.value.step if isinstance(key, Constant) and isinstance(key.value, slice) else None
    if isinstance(key, SliceValue) and isinstance(key.parts[2], Constant):
        step = key.parts[2].value
    return isinstance(step, int) and step < 0


def _forwards(key: slice, size: Any, what: str) -> tuple[slice, bool]:
    """The slice that takes the same elements in the order of memory, and whether that is not the order of ``key``."""
    if key.step is None or key.step > 0:
        return key, False
    if (key.start, key.stop, key.step) == (None, None, -1):
        return slice(None), True
    if not isinstance(size, int):
        raise Break("FL104", what=what, why="it reverses a part of a dimension whose size varies")
    taken = range(*key.indices(size))
    return (slice(taken[-1], taken[0] + 1, -key.step), True) if taken else (slice(0, 0), False)


# --- in the running program -------------------------------------------------------------------------------------


def number(tensor: torch.Tensor) -> Any:
    """The number of numpy's that a tensor without dimensions holds."""
    return tensor.numpy()[()]


def backwards(tensor: torch.Tensor, dims: tuple[int, ...]) -> Any:
    """An array in the tensor's memory that runs backwards along ``dims``."""
    return classify.numpy().flip(tensor.numpy(), dims)
