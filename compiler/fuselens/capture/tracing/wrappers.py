"""Tensors of classes with ``__torch_dispatch__`` that wrap plain tensors, by the protocol of ``__tensor_flatten__``.

A graph takes and gives plain tensors only. A wrapper that the frame is given is taken apart before the graph, and put together
in it by a node; what leaves is taken apart by a node, and put together after the graph. In between, nodes are calls on wrappers:
tracing them below autograd runs the class's ``__torch_dispatch__``, which leaves the operators on plain tensors.

Autograd sees wrappers, not what they hold. So where one requires gradients, taking it apart and putting it together are
differentiable: the gradient of a wrapper is a wrapper, and passes as its parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ..breaks import Break
from ..hook import _hook
from ..values.algebra import RaggedSize, SequenceValue, SymbolValue, TensorValue, WrapperValue
from . import graph_inputs
from . import sources as src
from .sources import Source

if TYPE_CHECKING:
    from torch import fx

    from .tracer import Tracer


def wraps(obj: Any) -> bool:
    """Whether an object is a tensor that wraps others, and says how. The sizes of nested tensors are no numbers."""
    return torch_private.is_wrapper_class(type(obj))


@dataclass(frozen=True, eq=False)
class Form:
    """How a wrapper is put together: its class, the attributes that hold tensors, the ``form`` of those that are wrappers, other
    objects (``beside``) and what else ``__tensor_flatten__`` tells, and the sizes and strides that it shows."""

    cls: type
    names: tuple[str, ...]
    forms: tuple[Form | None, ...]
    beside: dict[str, Any]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    requires_grad: bool

    @property
    def nested(self) -> bool:
        """Whether it is torch's nested tensors. Their first part alone has gradients; the others tell lengths."""
        return torch_private.is_nested_class(self.cls)

    @staticmethod
    def of(wrapper: Any) -> Form:
        held, beside, context = _flattened(wrapper)
        beside, context = known((beside, context))
        forms = tuple(Form.of(t) if wraps(t) else None for t in held.values())
        shown = tuple(wrapper.shape), tuple(wrapper.stride()), wrapper.requires_grad
        return Form(type(wrapper), tuple(held), forms, beside, context, *shown)

    def matches(self, wrapper: Any) -> bool:
        """Whether another wrapper is put together in the same way."""
        if type(wrapper) is not self.cls or wrapper.requires_grad != self.requires_grad:
            return False
        if _numbers(wrapper.shape) != _numbers(self.size):
            return False
        if not wrapper.is_nested and tuple(wrapper.stride()) != self.stride:
            return False
        if self.has_two_histories(wrapper):
            return False
        held, beside, context = _flattened(wrapper)
        guard = getattr(self.cls, "__metadata_guard__", None)
        if tuple(held) != self.names or not (guard(self.context, context) if guard else self.context == context):
            return False
        if beside.keys() != self.beside.keys() or any(
            beside[k] is not v and beside[k] != v for k, v in self.beside.items()
        ):
            return False
        return all(form.matches(t) if form else not wraps(t) for t, form in zip(held.values(), self.forms, strict=True))

    def has_two_histories(self, wrapper: Any) -> bool:
        """Whether autograd records what was done to a wrapper, and apart from that to what it wraps."""
        return not self.nested and self.requires_grad and any(part.requires_grad for part in self.parts(wrapper))

    def parts(self, wrapper: Any) -> Iterator[torch.Tensor]:
        """The plain tensors in a wrapper."""
        for name, form in zip(self.names, self.forms, strict=True):
            held = getattr(wrapper, name)
            if form is None:
                yield held
            else:
                yield from form.parts(held)

    @property
    def lengths(self) -> int:
        """Which part of a nested tensor its ragged size stands for: sizes are the same if that is one tensor."""
        return self.names.index("_lengths" if "_lengths" in self.names else "_offsets")

    def varying(self, position: int) -> tuple[int, ...]:
        """Dimensions in which a part may have other sizes in wrappers that this form matches."""
        if not self.nested:
            return ()
        ragged: int = self.context["ragged_idx"]
        return {"_values": (ragged - 1,), "_min_seqlen_tensor": (0,), "_max_seqlen_tensor": (0,)}.get(
            self.names[position], ()
        )

    def wrapper(self, parts: Iterator[torch.Tensor]) -> Any:
        """A wrapper of plain tensors."""
        held = {
            name: next(parts) if form is None else form.wrapper(parts)
            for name, form in zip(self.names, self.forms, strict=True)
        }
        return self.cls.__tensor_unflatten__({**held, **self.beside}, self.context, self.size, self.stride)  # type: ignore[attr-defined]


def known(told: Any) -> Any:
    """What a wrapper tells about itself with numbers for the symbols in it, on which the trace depends from now on."""

    def number(leaf: Any) -> Any:
        return torch_private.specialised(leaf) if torch_private.is_symbolic_number(leaf) else leaf

    varies = any(map(torch_private.is_symbolic_number, torch_private.PYTREE.tree_leaves(told)))
    return torch_private.PYTREE.tree_map(number, told) if varies else told


def _numbers(size: tuple[Any, ...]) -> list[int | None]:
    """A size without its ragged dimension."""
    return [s if isinstance(s, int) else None for s in size]


def _detached(part: torch.Tensor) -> torch.Tensor:
    """A part without its history. One that can have none stays what it is: nested tensors know their sizes by it."""
    return part.detach() if part.is_floating_point() or part.is_complex() else part


def _flattened(wrapper: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The tensors that a wrapper holds, by attribute, other objects that it names, and what it tells beside."""
    names, context = wrapper.__tensor_flatten__()
    named = {name: getattr(wrapper, name) for name in names}
    held = {name: obj for name, obj in named.items() if isinstance(obj, torch.Tensor)}
    return held, {name: obj for name, obj in named.items() if name not in held}, context


class Called:
    """A function that a graph calls, or that code after it calls. Its name is what texts of graphs show."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.__module__ = "fuselens"
        self.__name__ = self.__qualname__ = f"{type(self).__name__.lower()}_{form.cls.__name__}"

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def is_container(self, parts: Iterator[torch.Tensor]) -> bool:
        """Whether autograd sees the parts of a wrapper, not the wrapper (``torch_private.nested_as_containers``)."""
        return self.form.nested and torch_private.is_functional(next(parts))


class Unwrap(Called):
    """Takes a wrapper apart."""

    def __call__(self, wrapper: Any) -> tuple[torch.Tensor, ...]:
        if self.form.requires_grad and wrapper.requires_grad and not self.is_container(self.form.parts(wrapper)):
            return _Unwrapped.apply(self.form, wrapper)  # type: ignore[return-value]
        return tuple(self.form.parts(_bare(wrapper)))


class Held(Called):
    """Reads an attribute in which a wrapper holds a tensor."""

    def __init__(self, form: Form, name: str) -> None:
        super().__init__(form)
        self.name = name

    def __call__(self, wrapper: Any) -> torch.Tensor:
        return getattr(_bare(wrapper), self.name)


class Wrap(Called):
    """Puts a wrapper together."""

    def __call__(self, *parts: torch.Tensor) -> Any:
        if self.form.requires_grad and any(p.requires_grad for p in parts) and not self.is_container(iter(parts)):
            return _Wrapped.apply(self.form, *parts)
        return self.form.wrapper(iter(parts))


class Whole(Called):
    """Calls a function that makes, changes or takes apart a wrapper; what else than a tensor it is given is always the same."""

    def __init__(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.__module__, self.__name__, self.__qualname__ = "fuselens", function.__name__, function.__qualname__

    def __call__(self, tensor: Any) -> Any:
        return self.function(tensor, *self.args, **self.kwargs)


def _bare(wrapper: Any) -> Any:
    """A wrapper without the one that tracing may have put around it."""
    return wrapper if wraps(wrapper) else torch_private.from_functional(wrapper)


class _Unwrapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, wrapper: Any) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        ctx.form = form
        parts = tuple(_detached(part) for part in form.parts(_bare(wrapper)))
        ctx.fixed = parts[1:] if form.nested else ()
        ctx.mark_non_differentiable(*ctx.fixed)
        return parts

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        changing = gradients[: len(gradients) - len(ctx.fixed)]
        return None, ctx.form.wrapper(iter([*changing, *ctx.fixed]))


class _Wrapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, *parts: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.form = form
        return form.wrapper(iter([_detached(part) for part in parts]))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        gradient = _bare(gradient)
        if not wraps(gradient):
            raise NotImplementedError(f"the gradient of a {ctx.form.cls.__name__} is a {type(gradient).__name__}")
        return None, *ctx.form.parts(gradient)


def given(tracer: Tracer, obj: Any, source: Source) -> WrapperValue:
    """The value of an existing wrapper: its parts are inputs of the graph."""
    try:
        form = Form.of(obj)
    except Exception as error:  # noqa: BLE001 - the program's own method, of an object that may not be complete yet
        why = f"it cannot be taken apart: {type(error).__name__}: {error}"
        raise Break("FL105", what=f"`{source}`, a {type(obj).__name__}", why=why) from None
    if tracer.graphs.nested:
        raise Break("FL105", what=f"`{source}`, a {form.cls.__name__}", why="inside a function that runs as a whole")
    if form.has_two_histories(obj):
        raise Break("FL105", what=f"`{source}`, a {form.cls.__name__}", why="what it wraps requires grad by itself")
    tracer.guard(source, _hook.CALL, form.matches, name="WRAPPER", text=f"{source} wraps what it wrapped, as it did")
    held = src.applied(Unwrap(form), source)
    inner: list[TensorValue] = []
    for i, part in enumerate(Unwrap(form)(obj)):
        at = src.item(held, i)
        fresh = form.requires_grad and not (form.nested and i > 0)  # by taking it apart
        known = None if fresh else tracer.objects.known.get(id(part))
        if isinstance(known, TensorValue):
            tracer.guard_same(at, known)
            value = known
        else:
            value = graph_inputs.tensor(tracer, part, at, varying=form.varying(i))
            if known is None and not fresh:
                tracer.objects.remember(part, value)
        inner.append(value)
    if form.nested:
        _distinguish(tracer, inner[form.lengths])
    fakes = [v.fake for v in inner]
    with tracer.fake_mode, torch_private.quietly():
        fake = Wrap(form)(*fakes)
    node = tracer.graphs.add("call_function", Wrap(form), tuple(v.node for v in inner), {}, fake, tracer.span)
    return WrapperValue(node, form, source, inner, obj)


def _distinguish(tracer: Tracer, lengths: TensorValue) -> None:
    """Lengths in two tensors stay in two: ragged sizes are compared by them."""
    if lengths not in tracer.objects.lengths:
        tracer.objects.lengths.append(lengths)
        tracer.guard_different(*(v.source for v in tracer.objects.lengths if v.source is not None))


def ragged_size(tracer: Tracer, obj: Any, source: Source) -> RaggedSize:
    """The value of an existing ragged size: the lengths that it stands for are an input of the graph."""
    found = torch_private.lengths_of(obj)
    if found is None:
        raise Break("FL105", what=f"`{source}`, a ragged size", why="it is not that of a nested tensor")
    at = src.applied(torch_private.lengths_of, source)
    lengths = tracer.objects.known.get(id(found))
    if isinstance(lengths, TensorValue):
        tracer.guard_same(at, lengths)
    else:
        lengths = graph_inputs.tensor(tracer, found, at, varying=())
        torch_private.set_ragged_size(lengths.fake, obj)
        tracer.objects.remember(found, lengths)
    _distinguish(tracer, lengths)
    node = tracer.graphs.add("call_function", torch_private.ragged_size, (lengths.node,), {}, obj, tracer.span)
    return RaggedSize(node, lengths, source=source)


def number(tracer: Tracer, node: fx.Node) -> SymbolValue:
    """The value of a symbolic number that a node computes."""
    size = node.meta["val"]
    if torch_private.is_ragged(size):
        times = torch_private.times_of(size)
        for lengths in tracer.objects.lengths:
            if bool(torch_private.ragged_size(lengths.fake, times) == size):
                return RaggedSize(node, lengths, times)
    return SymbolValue(node)


def made(tracer: Tracer, node: fx.Node) -> WrapperValue:
    """The value of a wrapper that a node makes."""
    fake = node.meta["val"]
    if fake.requires_grad and fake.is_leaf:
        raise Break("FL105", what=f"a new {type(fake).__name__}", why="it is a leaf that requires grad")
    return WrapperValue(node, Form.of(node.meta["val"]))


def inner(tracer: Tracer, value: WrapperValue) -> list[TensorValue]:
    """The plain tensors that a wrapper is made of, as nodes of the graph."""
    if value.inner is None:
        found = tracer.call("call_function", Unwrap(value.form), (value,), {}, value.describe())
        assert isinstance(found, SequenceValue)
        parts = [tracer.use(part) for part in found.items]
        value.inner = [part for part in parts if isinstance(part, TensorValue)]
    return value.inner


def is_made_of_plain_fakes(result: Any) -> bool:
    """Whether a result of a call on fake tensors wraps fake tensors only."""
    return wraps(result) and all(isinstance(p, torch_private.FakeTensor) for p in Form.of(result).parts(result))
