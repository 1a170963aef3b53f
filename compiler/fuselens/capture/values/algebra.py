"""The algebra of tracked values: what the symbolic machine knows about each object that a frame touches.

It is small on purpose. A value is a constant, a tensor (a node of the graph), a symbolic integer, a sequence, a
dictionary, an object with attributes, a function or method, an iterator, a cell, a context manager, or something known
only by identity. ``source`` says where the object can be found again from the frame; values made while tracing have
none and are rebuilt by bytecode when they leave the frame.
"""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import torch_private
from ...record.report import Span
from ..tracing.sources import Source

if TYPE_CHECKING:
    from ..breaks import Break
    from ..machine import Machine

serials = itertools.count(1)  # values are numbered, so that a subgraph knows which were there before it


class Value:
    """Base of all tracked values."""

    __slots__ = ("source", "serial")

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self.serial = next(serials)

    @property
    def python_type(self) -> type:
        raise NotImplementedError

    @property
    def is_none(self) -> bool:
        """Whether it is known to be None."""
        return False

    def describe(self) -> str:
        """A short phrase for diagnostics."""
        return self.source.text if self.source is not None else f"a {self.python_type.__name__}"


class Null(Value):
    """CPython's NULL stack entry beside a callable."""

    @property
    def python_type(self) -> type:
        return type(None)


NULL = Null()


class Constant(Value):
    """An immutable object whose value is known: a number, string, dtype, range, slice of those …"""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.value = value

    @property
    def python_type(self) -> type:
        return type(self.value)

    @property
    def is_none(self) -> bool:
        return self.value is None

    def describe(self) -> str:
        return repr(self.value)


def qualified_name(obj: Any) -> str | None:
    """How a library's object is called; None where it has no name. pybind11's functions are methods of what C++ keeps of them."""
    name = getattr(obj, "__qualname__", None)
    inner = isinstance(name, str) and name.startswith("pybind11_detail_")
    return getattr(obj, "__name__", None) if inner or not name else name


class Known(Value):
    """An object known by identity: a class, a builtin, a library function, a Python module."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.value = value

    @property
    def python_type(self) -> type:
        return type(self.value)

    def describe(self) -> str:
        name = qualified_name(self.value)
        module = getattr(self.value, "__module__", None)
        if not name:
            return repr(self.value)[:60]
        return f"{module}.{name}" if isinstance(module, str) and module not in ("builtins", "__main__") else name


class TensorValue(Value):
    """A tensor: a node of the captured graph, with a fake tensor in ``node.meta["val"]``. ``kind`` is its class."""

    __slots__ = ("node", "kind")

    def __init__(self, node: fx.Node, source: Source | None = None, kind: type = torch.Tensor) -> None:
        super().__init__(source)
        self.node = node
        self.kind = kind

    @property
    def fake(self) -> torch.Tensor:
        return self.node.meta["val"]

    @property
    def value(self) -> Any:
        """What ``Effects.attributes`` knows it by, as :attr:`ObjectValue.value`."""
        return self

    @property
    def python_type(self) -> type:
        return self.kind


class WrapperValue(TensorValue):
    """A tensor of a class with ``__torch_dispatch__`` that wraps plain tensors (``__tensor_flatten__``).

    ``node`` makes the wrapper. ``form`` says what wraps what; ``inner`` are the plain tensors that it is taken apart into, once it
    was: an existing one is put together from them, and one that leaves the frame is made of them again. ``existing`` is the object.
    """

    __slots__ = ("existing", "form", "inner")

    def __init__(
        self,
        node: fx.Node,
        form: Any,
        source: Source | None = None,
        inner: list[TensorValue] | None = None,
        existing: Any = None,
    ) -> None:
        super().__init__(node, source, form.cls)
        self.form = form
        self.inner = inner
        self.existing = existing


class ArrayValue(Value):
    """An array of numpy's, or one of its numbers (``is_number``), whose elements the graph computes.

    ``memory`` is the tensor with the same elements in the same memory. The array runs backwards along ``flips``, which tensors
    cannot. An existing array has a source, and its tensor is made when it is first needed: ``existing`` is the array itself.
    ``base`` is what numpy would say of one that was made here, where that is known: None in a Constant, or the array.
    """

    __slots__ = ("base", "existing", "flips", "is_number", "memory")

    def __init__(
        self,
        memory: TensorValue | None,
        source: Source | None = None,
        *,
        existing: Any = None,
        is_number: bool = False,
        flips: tuple[int, ...] = (),
    ) -> None:
        super().__init__(source)
        self.memory = memory
        self.existing = existing
        self.is_number = is_number
        self.flips = flips
        self.base: Value | None = None

    @property
    def python_type(self) -> type:
        if self.memory is None:
            return type(self.existing)
        array = torch_private.array_of(self.memory.fake.dtype)
        return array.dtype.type if self.is_number else type(array)


class SymbolValue(Value):
    """A symbolic number: ``node`` computes it, ``node.meta["val"]`` is a SymInt, SymFloat or SymBool."""

    __slots__ = ("node",)

    def __init__(self, node: fx.Node, source: Source | None = None) -> None:
        super().__init__(source)
        self.node = node

    @property
    def python_type(self) -> type:
        value = self.node.meta["val"]
        return float if isinstance(value, torch.SymFloat) else bool if isinstance(value, torch.SymBool) else int


class RaggedSize(SymbolValue):
    """The size of nested tensors that stands for the numbers in the tensor ``lengths``, ``times`` a number."""

    __slots__ = ("lengths", "times")

    def __init__(self, node: fx.Node, lengths: TensorValue, times: int = 1, source: Source | None = None) -> None:
        super().__init__(node, source)
        self.lengths = lengths
        self.times = times


class Opaque(Value):
    """An object that is only known not to be None: an autograd node."""

    __slots__ = ("kind", "text")

    def __init__(self, kind: type, text: str) -> None:
        super().__init__(None)
        self.kind = kind
        self.text = text

    @property
    def python_type(self) -> type:
        return self.kind

    def describe(self) -> str:
        return self.text


class ActiveValue(Value):
    """Base of values that say themselves what their attributes and calls mean.

    Where one leaves the frame it is made again as ``maker(*parts)``.
    """

    __slots__ = ()

    def attribute(self, m: Machine, name: str) -> Value | None:
        """The attribute ``name``; None when it is not traced."""
        return None

    def assign(self, m: Machine, name: str, value: Value) -> bool:
        """Assigns the attribute ``name``; False when that is not traced."""
        return False

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """The result of a call; None when it is not traced."""
        return None

    def items(self) -> list[Value] | None:
        """What iterating gives; None when that is not traced."""
        return None

    def binary(self, symbol: str, other: Value) -> Value | None:
        """``self symbol other``; None when that is not traced."""
        return None

    @property
    def maker(self) -> Callable[..., Any] | None:
        return None

    @property
    def parts(self) -> list[Value]:
        return []


class ProxyValue(ActiveValue):
    """A ``types.MappingProxyType``: shows what ``mapping`` holds when it is looked at, and hands its methods on."""

    __slots__ = ("mapping",)

    def __init__(self, mapping: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.mapping = mapping

    @property
    def python_type(self) -> type:
        return types.MappingProxyType

    @property
    def maker(self) -> Callable[..., Any]:
        return types.MappingProxyType

    @property
    def parts(self) -> list[Value]:
        return [self.mapping]


class OpaqueValue(ActiveValue):
    """A Python object that only the running graph has: ``node`` computes it (the function that ``torch.func.vjp`` gives)."""

    __slots__ = ("node",)

    def __init__(self, node: fx.Node) -> None:
        super().__init__(None)
        self.node = node

    @property
    def python_type(self) -> type:
        return type(self.node.meta["val"])


class SequenceValue(Value):
    """A list or tuple (or torch.Size, or namedtuple: ``kind``) whose items are tracked."""

    __slots__ = ("items", "kind")

    def __init__(self, items: list[Value], kind: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.items = items
        self.kind = kind

    @property
    def python_type(self) -> type:
        return self.kind

    @property
    def family(self) -> str:
        """What CPython's messages call it."""
        return "list" if self.kind is list else "tuple"

    def like(self, items: list[Value]) -> SequenceValue:
        """One of the same kind that holds ``items``."""
        return SequenceValue(items, self.kind)

    def trim(self, from_left: bool = True) -> None:
        """Drops what a deque of a maximal length pushes out at the other end."""


class SliceValue(Value):
    """A slice whose bounds are not all constants."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.parts = parts

    @property
    def python_type(self) -> type:
        return slice


class DequeValue(SequenceValue):
    """A deque of at most ``maxlen`` items. ``changes`` counts those that its iterators do not survive."""

    __slots__ = ("maxlen", "changes")

    def __init__(self, items: list[Value], maxlen: int | None, source: Source | None = None) -> None:
        super().__init__(items, collections.deque, source)
        self.maxlen = maxlen
        self.changes = 0

    @property
    def family(self) -> str:
        return "deque"

    def like(self, items: list[Value]) -> DequeValue:
        return DequeValue(items, self.maxlen)

    def trim(self, from_left: bool = True) -> None:
        if self.maxlen is not None and len(self.items) > self.maxlen:
            if from_left:
                del self.items[: len(self.items) - self.maxlen]
            else:
                del self.items[self.maxlen :]


class IdentityKey:
    """Stands for a dictionary key or set element that is equal to itself only.

    ``token`` is the same whenever the object is; ``value`` is how the object is tracked.
    """

    __slots__ = ("token", "value")

    def __init__(self, token: Any, value: Value) -> None:
        self.token = token
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.token is self.token

    def __hash__(self) -> int:
        return hash(id(self.token))


class DictValue(Value):
    """A dictionary, in order; a key is the Python object itself where it is known, else an :class:`IdentityKey` or a
    tuple that holds one. ``factory`` is a defaultdict's; ``attributes`` is the ``__dict__`` of an OrderedDict."""

    __slots__ = ("items", "kind", "factory", "attributes")

    def __init__(
        self,
        items: dict[Any, Value],
        kind: type = dict,
        source: Source | None = None,
        factory: Value | None = None,
    ) -> None:
        super().__init__(source)
        self.items = items
        self.kind = kind
        self.factory = factory
        self.attributes: Value | None = None

    @property
    def python_type(self) -> type:
        return self.kind


class SetValue(Value):
    """A set or frozenset. ``items`` is a real one, of keys as in :class:`DictValue`.

    ``steps`` is how a set that was made while tracing came to be, and what was done to an existing one since: names of
    methods and their keys. ``order`` is that of an existing set. What an existing set is after a change, or combined
    with others, has an order that only the running program knows (``ordered`` is False); ``origin`` is then the method
    that made the set, and its operands with the number of their steps.
    """

    __slots__ = ("items", "steps", "order", "ordered", "origin")

    def __init__(self, items: Any, kind: type = set, source: Source | None = None, ordered: bool = True) -> None:
        super().__init__(source)
        self.items: set[Any] | frozenset[Any] = items if type(items) is kind else kind(items)
        items = list(items)
        self.steps: list[tuple[str, list[Any]]] = [] if source is not None else [("add", items)]
        self.order: list[Any] | None = items if source is not None else None
        self.ordered = ordered
        self.origin: tuple[Callable[..., Any], list[tuple[SetValue, int]]] | None = None

    @property
    def python_type(self) -> type:
        return type(self.items)

    @property
    def is_ordered_by_value(self) -> bool:
        """Whether the order is the same in each process: the hashes of texts and of objects are not."""
        return len(self.items) < 2 or all(type(item) in (bool, int, float, complex) for item in self.items)

    def elements(self) -> list[Any]:
        """The elements in the order of iteration."""
        return list(self.items) if self.order is None else self.order

    def change(self, name: str, keys: list[Any]) -> None:
        """Applies one of the steps of :func:`change_set`."""
        assert isinstance(self.items, set)
        if self.steps and self.steps[-1][0] == name == "add":
            self.steps[-1][1].extend(keys)
        else:
            self.steps.append((name, list(keys)))
        change_set(self.items, name, keys)
        if self.source is not None:
            self.order, self.ordered = None, False
        elif not self.ordered:
            self.origin = None


def change_set(target: set[Any], name: str, keys: Sequence[Any]) -> None:
    """What a step of :class:`SetValue` does to a set: ``add`` and ``discard`` take keys one by one, ``update`` takes sets,
    which CPython merges in another order."""
    if name == "update":
        target.update(*keys)
    elif name == "add":
        for key in keys:
            target.add(key)
    elif name == "discard":
        for key in keys:
            target.discard(key)
    else:
        target.clear()


class ObjectValue(Value):
    """An object with attributes: a module, a user's instance, an exception.

    An existing one has a source, and ``value`` is the object itself. One made while tracing has none; ``value`` is then
    a bare instance that stands for it, and its attributes are those in ``Effects.attributes``. ``content`` is what an
    instance of a subclass of a builtin container, number or string holds (for an exception: nothing).
    """

    __slots__ = ("value", "content")

    def __init__(self, value: Any, source: Source | None, content: Value | None = None) -> None:
        super().__init__(source)
        self.value = value
        self.content = content

    @property
    def python_type(self) -> type:
        return type(self.value)


class InstanceDict(Value):
    """``owner.__dict__`` of an existing object, whose attributes are tracked one by one."""

    __slots__ = ("owner",)

    def __init__(self, owner: ObjectValue) -> None:
        super().__init__(None)
        self.owner = owner

    @property
    def python_type(self) -> type:
        return dict


class FunctionValue(Value):
    """An existing Python function."""

    __slots__ = ("function",)

    def __init__(self, function: types.FunctionType, source: Source | None) -> None:
        super().__init__(source)
        self.function = function

    @property
    def python_type(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return self.function.__qualname__


class CellValue(Value):
    """A closure cell. ``contents`` is None while the variable is unbound; ``name`` is the variable's."""

    __slots__ = ("name", "contents", "cell", "written")

    def __init__(
        self, name: str, contents: Value | None = None, source: Source | None = None, cell: types.CellType | None = None
    ) -> None:
        super().__init__(source)
        self.name = name
        self.contents = contents
        self.cell = cell
        self.written = False

    @property
    def python_type(self) -> type:
        return types.CellType


class MadeFunction(Value):
    """A function created while tracing (a lambda or nested def)."""

    __slots__ = (
        "annotate", "annotations", "attributes", "closure", "code", "defaults", "globals", "globals_source", "kwdefaults",
    )  # fmt: skip

    def __init__(self, code: types.CodeType, globals_: dict[str, Any], globals_source: Source) -> None:
        super().__init__(None)
        self.code = code
        self.globals = globals_
        self.globals_source = globals_source
        self.defaults: Value | None = None
        self.kwdefaults: Value | None = None
        self.closure: list[CellValue] = []
        self.annotations: Value | None = None
        self.annotate: Value | None = None  # from 3.14 on: the function that makes the annotations
        self.attributes: dict[str, Value] = {}  # assigned after it was made

    @property
    def python_type(self) -> type:
        return types.FunctionType

    def has_late_annotations(self) -> bool:
        """Whether another function makes the annotations; they are here once they were asked for."""
        return self.annotate is not None or "__annotate__" in self.attributes

    def describe(self) -> str:
        return self.code.co_qualname


class MethodValue(Value):
    """A callable bound to its first argument."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Value, receiver: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.function = function
        self.receiver = receiver

    @property
    def python_type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return self.function.describe()


class PartialValue(Value):
    """A ``functools.partial`` made while tracing."""

    __slots__ = ("function", "args", "kwargs")

    def __init__(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> None:
        super().__init__(None)
        self.function = function
        self.args = args
        self.kwargs = kwargs

    @property
    def python_type(self) -> type:
        return functools.partial


class RuntimeNumber(Value):
    """An integer that only the running program knows, and that nothing is done with but to compare it: ``id(x)``.

    ``function`` of ``args`` gives it; numbers with the same ``token`` are equal.
    """

    __slots__ = ("function", "args", "token")

    def __init__(self, function: Callable[..., int], args: list[Value], token: Any) -> None:
        super().__init__(None)
        self.function = function
        self.args = args
        self.token = token

    @property
    def python_type(self) -> type:
        return int


class NamedMethod(Value):
    """A method of a tracked builtin value, by name: ``x.abs`` of a tensor, ``items.append`` of a list."""

    __slots__ = ("receiver", "name")

    def __init__(self, receiver: Value, name: str) -> None:
        super().__init__(None)
        self.receiver = receiver
        self.name = name

    @property
    def python_type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        owner = "Tensor" if isinstance(self.receiver, TensorValue) else self.receiver.python_type.__name__
        return f"{owner}.{self.name}"


class DictView(Value):
    """``mapping.keys()``, ``.values()`` or ``.items()`` (``which``): shows what the dictionary holds when it is looked at."""

    __slots__ = ("mapping", "which")

    def __init__(self, mapping: DictValue, which: str) -> None:
        super().__init__(None)
        self.mapping = mapping
        self.which = which

    @property
    def python_type(self) -> type:
        return type(getattr(self.mapping.kind(), self.which)())


class IteratorValue(Value):
    """An iterator over what the container ``over`` holds; ``position`` is the next item. It is consumed in place.

    ``items`` is the very list of a tracked list or deque, and ``live`` a real iterator over the keys of a tracked
    dictionary: later changes are seen as CPython's iterators see them. The iterator was made at step ``born`` of the
    outermost frame, when there were ``start`` items, ``keys`` in a dictionary or set, and ``changes`` of a deque.
    """

    __slots__ = ("over", "items", "position", "backwards", "start", "keys", "live", "changes", "born")

    def __init__(self, over: Value, items: Sequence[Value], backwards: bool = False, born: int = -1) -> None:
        super().__init__(None)
        self.over = over
        self.items = items
        self.position = 0
        self.backwards = backwards
        self.born = born
        container = self.container
        self.keys = list(container.items) if isinstance(container, (DictValue, SetValue)) else []
        self.start = len(self.keys or items)
        self.live: Iterator[Any] | None = None
        if isinstance(container, DictValue):
            self.live = reversed(container.items) if backwards else iter(container.items)
        self.changes = container.changes if isinstance(container, DequeValue) else 0

    @property
    def container(self) -> Value:
        """The container whose changes the iterator notices."""
        return self.over.mapping if isinstance(self.over, DictView) else self.over

    @property
    def is_stale(self) -> bool:
        """Whether CPython refuses to go on because the container has changed."""
        container = self.container
        if self.position < 0:
            return False
        if isinstance(container, DequeValue):
            return container.changes != self.changes
        return isinstance(container, (DictValue, SetValue)) and len(container.items) != self.start

    @property
    def is_exchanged(self) -> bool:
        """Whether the container holds as many keys as before, but others or in another order."""
        container = self.container
        return (
            self.position >= 0
            and isinstance(container, (DictValue, SetValue))
            and any(a is not b for a, b in zip(container.items, self.keys, strict=False))
        )

    @property
    def following(self) -> int | None:
        """The index of the next item in ``items``; None at the end."""
        live = isinstance(self.over, SequenceValue) and self.items is self.over.items
        at = self.start - 1 - self.position if self.backwards and live else self.position
        return at if self.position >= 0 and 0 <= at < len(self.items) else None

    @property
    def python_type(self) -> type:
        over = self.over
        make: Any = reversed if self.backwards else iter
        if isinstance(over, Constant):
            return type(make(over.value))
        if isinstance(over, DictView):
            return type(make(getattr(over.mapping.kind(), over.which)()))
        kind = over.python_type
        return type(make(kind() if issubclass(kind, (list, dict, set, frozenset, collections.deque)) else ()))


class CombinedIterator(Value):
    """A ``zip``, ``map`` or ``enumerate`` (``kind``) of other iterators, which it consumes as it is consumed.

    ``extra`` is map's function, or enumerate's next number.
    """

    __slots__ = ("kind", "parts", "extra")

    def __init__(self, kind: type, parts: list[Value], extra: Value | None = None) -> None:
        super().__init__(None)
        self.kind = kind
        self.parts = parts
        self.extra = extra

    @property
    def python_type(self) -> type:
        return self.kind


class GeneratorValue(Value):
    """A generator: ``machine`` is its suspended frame. ``call`` (function, arguments, keywords) makes it again if it has
    not started; ``born`` is the step of the outermost frame at which it was made."""

    __slots__ = ("machine", "call", "born", "started", "finished", "returned")

    def __init__(self, machine: Machine, call: tuple[Value, list[Value], dict[str, Value]], born: int) -> None:
        super().__init__(None)
        self.machine = machine
        self.call = call
        self.born = born
        self.started = False
        self.finished = False
        self.returned: Value | None = None

    @property
    def python_type(self) -> type:
        return types.GeneratorType

    def describe(self) -> str:
        return f"the generator {self.machine.code.co_qualname}"


class HandledException(Value):
    """The stack entry that marks an exception being handled (what PUSH_EXC_INFO leaves below it)."""

    __slots__ = ("exception",)

    def __init__(self, exception: Value) -> None:
        super().__init__(None)
        self.exception = exception

    @property
    def python_type(self) -> type:
        return BaseException


class Traceback(Value):
    """The traceback that ``__exit__`` is given: it exists in a running program only."""

    @property
    def python_type(self) -> type:
        return types.TracebackType


class SuperValue(Value):
    """``super()``: attribute lookup that starts after ``cls`` in the receiver's method resolution order."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: type, receiver: Value) -> None:
        super().__init__(None)
        self.cls = cls
        self.receiver = receiver

    @property
    def python_type(self) -> type:
        return super


class GradModeContext(Value):
    """``torch.no_grad()`` and its kin: sets grad mode on entry, restores it on exit.

    ``previous`` is the mode before it was entered."""

    __slots__ = ("enabled", "previous", "maker")

    def __init__(self, enabled: bool, maker: Callable[[], Any]) -> None:
        super().__init__(None)
        self.enabled = enabled
        self.previous: bool | None = None
        self.maker = maker

    @property
    def python_type(self) -> type:
        return type(self.maker())


class TorchContext(Value):
    """A context manager of torch that changes what operators do (autocast, inference mode …), or, if it is not ``active``,
    nothing that tracing would see (profilers). ``maker`` makes a fresh one.

    ``real`` is entered while the trace is inside, ``node`` enters one in the graph, at step ``born`` of the frame.
    ``previous`` and ``enabled`` are grad mode before it was entered and after."""

    __slots__ = ("maker", "active", "real", "node", "born", "previous", "enabled")

    def __init__(self, maker: Callable[[], Any], active: bool = True) -> None:
        super().__init__(None)
        self.maker = maker
        self.active = active
        self.real: Any = None
        self.node: fx.Node | None = None
        self.born = -1
        self.previous = self.enabled = torch.is_grad_enabled()

    @property
    def python_type(self) -> type:
        return type(self.maker())


class LastingContext(TorchContext):
    """A setting that the program has changed: as a context it lasts until the graph ends, and code after the graph makes it again."""

    __slots__ = ()


class DeviceSwitch(TorchContext):
    """A context in which tensors are made on ``device``, where a call says nothing else."""

    __slots__ = ("device",)

    def __init__(self, device: torch.device) -> None:
        super().__init__(functools.partial(torch.device, device))
        self.device = device


class FunctionSwitch(TorchContext):
    """A context in which handlers of torch functions are switched off, as far as ``state`` says. The trace alone is in it: the
    graph never asks them."""

    __slots__ = ("state",)

    def __init__(self, maker: Callable[[], Any], state: int) -> None:
        super().__init__(maker)
        self.state = state


class ContextExit(Value):
    """The bound ``__exit__`` that ``with`` keeps on the stack."""

    __slots__ = ("context", "exited")

    def __init__(self, context: GradModeContext | TorchContext) -> None:
        super().__init__(None)
        self.context = context
        self.exited = False

    @property
    def python_type(self) -> type:
        return types.MethodType


class TruthValue(Value):
    """``bool(tensor)`` not yet taken: a conditional jump follows (3.13's TO_BOOL)."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Value) -> None:
        super().__init__(None)
        self.tensor = tensor

    @property
    def python_type(self) -> type:
        return bool


class LaterText(Value):
    """Text that shows a tensor's numbers, which nothing has looked at. What does (:meth:`Tracer.use`), or needs it after the graph,
    makes the frame break where it was made: ``refused``, at that step of the outermost frame."""

    __slots__ = ("refused",)

    def __init__(self, refused: Break) -> None:
        super().__init__(None)
        self.refused = refused

    @property
    def python_type(self) -> type:
        return str


class Lazy(Value):
    """An object that was loaded but not looked at: no guard is owed until :meth:`Tracer.use` turns it into a value."""

    __slots__ = ("value", "realised", "span")

    def __init__(self, value: Any, source: Source, span: Span | None = None) -> None:
        super().__init__(source)
        self.value = value
        self.realised: Value | None = None
        self.span = span

    @property
    def python_type(self) -> type:
        return type(self.value)
