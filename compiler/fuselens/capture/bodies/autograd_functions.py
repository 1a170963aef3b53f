"""``torch.autograd.Function``: forward and backward traced into two graphs that one node runs as a function of its own.

The node calls a ``torch.autograd.Function`` made here, whose forward and backward run the traced graphs, so that autograd
above it sees what eager's sees: what is saved, marked, returned, and differentiated twice. What ``ctx`` holds beside
tensors is known when both are traced and does not exist at run time.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd.function import FunctionCtx, once_differentiable

from ... import torch_private
from ...system.signatures import signature
from ..breaks import Break, Raised
from ..calls.calls import closure_of
from ..hook import _hook
from ..instructions.variables import read_cell
from ..rules.table import rule
from ..tracing.wrapping import CONSTANT_TYPES
from ..values import attributes
from ..values.algebra import ActiveValue, Constant, FunctionValue, Known, ObjectValue, SequenceValue, TensorValue, Value
from .higher_order import Operator, Subgraph, apply, close, grad_mode, leaves, of_kind, parameter, replace, resolve

if TYPE_CHECKING:
    from ..machine import Machine

_APPLY = vars(torch.autograd.Function)["apply"]
_APPLY = getattr(_APPLY, "__func__", _APPLY)  # from torch 2.15 on it is no classmethod, but one of C
_ONCE = once_differentiable(lambda ctx: None).__code__
_MOST_PATTERNS = 4  # of missing gradients that backwards are traced for, with set_materialize_grads(False)


@rule(FunctionCtx.save_for_backward)
def _saved_by_frame(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A forward that is a frame of its own, below an ``apply`` that runs eagerly, saves tensors when its graph has run."""
    context, *saved = [m.use(a) for a in args]
    known = isinstance(context, ObjectValue) and context.source is not None and not m.tracer.graphs.nested
    if kwargs or not known or not all(v.is_none or isinstance(v, TensorValue) for v in saved):
        raise Break(
            "FL104", what="ctx.save_for_backward", why="of the frame's own context, and with other than tensors"
        )
    m.tracer.effects.calls.append((FunctionCtx.save_for_backward, (context, *saved)))
    return Constant(None)


class Context(ActiveValue):
    """The ``ctx`` of a forward and its backward."""

    __slots__ = ("function", "saved", "attributes", "dirty", "constant", "materialize", "needs", "frozen")

    def __init__(self, function: type, needs: tuple[bool, ...] | None) -> None:
        super().__init__(None)
        self.function = function
        self.saved: list[Value] = []
        self.attributes: dict[str, Value] = {}
        self.dirty: list[Value] = []
        self.constant: list[Value] = []  # outputs that are not differentiable
        self.materialize = True
        self.needs = needs
        self.frozen = False  # while the backward is traced: it may run any number of times

    @property
    def python_type(self) -> type:
        return torch_private.backward_class(self.function)

    def describe(self) -> str:
        return "ctx"

    def attribute(self, m: Machine, name: str) -> Value | None:
        if name in self.attributes:
            return m.use(self.attributes[name])
        if name == "needs_input_grad" and self.needs is not None:
            return SequenceValue([Constant(n) for n in self.needs], tuple)
        if name == "saved_tensors" and self.frozen:
            return SequenceValue(list(self.saved), tuple)
        if not hasattr(self.python_type, name):
            raise attributes.absent(self.python_type, name)
        return ContextMethod(self, name) if name in _METHODS and not self.frozen else None

    def assign(self, m: Machine, name: str, value: Value) -> bool:
        if self.frozen or hasattr(torch.autograd.function.FunctionCtx, name) or name in ("saved_tensors", *_METHODS):
            return False
        self.attributes[name] = value
        return True


class ContextMethod(ActiveValue):
    """A method of ``ctx`` that tells autograd something."""

    __slots__ = ("context", "name")

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(None)
        self.context = context
        self.name = name

    def describe(self) -> str:
        return f"ctx.{self.name}"

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        if kwargs:
            return None
        _METHODS[self.name](self.context, [m.use(a) for a in args])
        return Constant(None)


def _materialize(context: Context, args: list[Value]) -> None:
    if len(args) != 1 or not isinstance(args[0], Constant):
        raise Break("FL104", what="ctx.set_materialize_grads", why="its argument is not known while tracing")
    context.materialize = bool(args[0].value)


_METHODS: dict[str, Callable[[Context, list[Value]], None]] = {
    "save_for_backward": lambda context, args: setattr(context, "saved", args),
    "save_for_forward": lambda context, args: None,
    "mark_dirty": lambda context, args: setattr(context, "dirty", args),
    "mark_non_differentiable": lambda context, args: setattr(context, "constant", args),
    "set_materialize_grads": _materialize,
}


@rule(_APPLY)
def _apply(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, *inputs = (m.use(a) for a in args)
    assert isinstance(owner, Known)
    function: type[torch.autograd.Function] = owner.value
    name = function.__name__
    transformed = m.tracer.graphs.transformed
    inputs, divided = _inputs(m, owner, inputs, kwargs)
    if transformed:
        _check_transformed(m, function, divided)
    tensors = [v for v in inputs if isinstance(v, TensorValue)]
    certain = m.tracer.graphs.scopes[-1].grad_mode_known
    needs = tuple(isinstance(v, TensorValue) and v.fake.requires_grad for v in inputs)
    context = Context(function, needs if certain and not transformed else None)
    forward = _trace_forward(m, owner, context, inputs, tensors, divided)
    traced = _Traced(forward, context, name)
    differentiable = transformed or not certain or (any(needs) and torch.is_grad_enabled())
    once, backwards = _trace_backwards(m, owner, traced, inputs) if differentiable else (False, {})
    if transformed:
        run = _running_in_transforms(traced, forward, backwards, inputs, once)
    else:
        run = _running(traced, backwards, inputs, once)
    op = Operator(name, run, forward.module, *(b.module for b in backwards.values()))
    captured = [SequenceValue(s.captured, tuple) for s in (forward, *backwards.values())]
    found = apply(m, op, SequenceValue(list(tensors), tuple), *captured)
    results = iter(_identified(found, tensors))
    made = [of_kind(next(results), v.kind) if isinstance(v, TensorValue) else v for v in traced.outputs]
    return SequenceValue(made, tuple) if traced.several else made[0]


@functools.cache
def _apply_takes_keywords() -> bool:
    """Whether this torch hands keyword arguments to a function that has ``setup_context``."""

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    try:
        Same.apply(x=torch.empty(0))
    except TypeError:
        return False
    return True


def _inputs(m: Machine, owner: Known, given: list[Value], kwargs: dict[str, Value]) -> tuple[list[Value], bool]:
    """What the forward is given, and whether the function has a ``setup_context`` beside it."""
    setup = attributes.load(m, owner, "setup_context")
    divided = not (isinstance(setup, FunctionValue) and setup.function is torch.autograd.Function.setup_context)
    if kwargs and not (divided and _apply_takes_keywords()):
        raise Break("FL104", what=f"{owner.value.__name__}.apply", why="it is given keyword arguments")
    return (_with_defaults(m, owner.value, given, kwargs) if divided else given), divided


def _with_defaults(m: Machine, function: Any, inputs: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments of a forward with a setup_context, which is told all of them."""
    what = f"{function.__name__}.apply"
    described = signature(function.forward)
    try:
        bound = described.bind(*inputs, **kwargs)
    except TypeError as e:
        raise Break("FL104", what=what, why=str(e)) from None
    given = bound.arguments.copy()
    bound.apply_defaults()
    if bound.kwargs:
        raise Break("FL104", what=what, why="it has keyword-only arguments")
    for name, parameter_ in described.parameters.items():
        if name not in given and parameter_.kind is not inspect.Parameter.VAR_POSITIONAL:
            if type(parameter_.default) not in CONSTANT_TYPES:
                raise Break("FL104", what=what, why=f"the default of {name!r} is not a constant")
            bound.arguments[name] = Constant(parameter_.default)
    return [m.use(v) for v in bound.args]


def _identified(found: list[Value], tensors: list[TensorValue]) -> list[Value]:
    """Results, of which those that are an input (one that is written to) are that input."""
    return [next((t for t in tensors if isinstance(r, TensorValue) and t.fake is r.fake), r) for r in found]


class _Traced:
    """A traced forward. Its graph returns the output's tensors, then the saved ones, then those in attributes of ctx."""

    def __init__(self, forward: Subgraph, context: Context, name: str) -> None:
        assert isinstance(forward.output, SequenceValue)
        output, self.saved, self.kept = forward.output.items
        self.context = context
        self.name = name
        self.several = isinstance(output, SequenceValue) and output.kind is tuple
        self.outputs: list[Value] = (
            list(output.items) if isinstance(output, SequenceValue) and self.several else [output]
        )
        if any(leaves([v]) and not isinstance(v, TensorValue) for v in self.outputs):
            raise Break("FL104", what=f"{name}.forward", why="it returns tensors in nested containers")
        self.tensors = [v for v in self.outputs if isinstance(v, TensorValue)]
        placeholders = [n for n in forward.module.graph.nodes if n.op == "placeholder"]
        self.dirty = [_index(placeholders, v, f"{name}: mark_dirty") for v in context.dirty]
        nodes = [t.node for t in self.tensors]
        self.constant = [_index(nodes, v, f"{name}: mark_non_differentiable") for v in context.constant]

    def patterns(self) -> list[tuple[bool, ...]]:
        """For which outputs gradients may be given to the backward."""
        if self.context.materialize:
            return [(True,) * len(self.tensors)]
        found = list(itertools.product((True, False), repeat=len(self.tensors)))
        if len(found) > _MOST_PATTERNS:
            raise Break("FL104", what=f"{self.name}.backward", why="many of its gradients may be missing")
        return found


def _index(nodes: list[fx.Node], value: Value, what: str) -> int:
    if isinstance(value, TensorValue) and value.node in nodes:
        return nodes.index(value.node)
    raise Break("FL104", what=what, why="it is given something else than an input or an output")


def _trace_forward(
    m: Machine, owner: Value, context: Context, inputs: list[Value], tensors: list[TensorValue], divided: bool
) -> Subgraph:
    with m.tracer.graphs.scope() as scope, grad_mode(False):
        scope.grad_mode_known = True
        inner = iter([parameter(m.tracer, scope, t, t.fake) for t in tensors])
        given: list[Value] = [next(inner) if isinstance(v, TensorValue) else v for v in inputs]
        forward = attributes.load(m, owner, "forward")
        output = resolve(m, m.call(forward, given if divided else [context, *given], {}))
        if divided:
            setup = attributes.load(m, owner, "setup_context")
            m.call(setup, [context, SequenceValue(given, tuple), output], {})
        if any(not isinstance(v, TensorValue) and not _is_none(v) for v in context.saved):
            raise Break("FL104", what="ctx.save_for_backward", why="it is given something that is not a tensor")
        kept = [resolve(m, v) for v in context.attributes.values()]
        parts = [output, SequenceValue(context.saved, list), SequenceValue(kept, list)]
        return close(m.tracer, scope, list(tensors), SequenceValue(parts, list))


def _is_none(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is None


def _trace_backwards(
    m: Machine, owner: Known, traced: _Traced, inputs: list[Value]
) -> tuple[bool, dict[tuple[bool, ...], Subgraph]]:
    """Whether the backward is differentiable once only, and its graph for each pattern of gradients that are there."""
    backward = attributes.load(m, owner, "backward")
    once = False
    if isinstance(backward, FunctionValue) and backward.function.__code__ is _ONCE:
        once = True
        backward = m.use(read_cell(m, next(c for c in closure_of(m, backward) if c.name == "fn"), "fn"))
    return once, {given: _trace_backward(m, backward, traced, given, inputs) for given in traced.patterns()}


def _trace_backward(
    m: Machine, backward: Value, traced: _Traced, given: tuple[bool, ...], inputs: list[Value]
) -> Subgraph:
    """The graph of the backward: parameters are the gradients that there are, saved tensors, those kept by ctx."""
    context, name = traced.context, traced.name
    present = iter([t for t, there in zip(traced.tensors, given, strict=True) if there])
    flags = iter(given)
    with m.tracer.graphs.scope() as scope, grad_mode(False):
        scope.grad_mode_known = False
        gradients: list[Value] = []
        for output in traced.outputs:
            if isinstance(output, TensorValue) and next(flags):
                like = next(present)
                gradients.append(parameter(m.tracer, scope, like, _like(m, like.fake)))
            else:
                gradients.append(Constant(None))
        held = [*leaves([traced.saved]), *leaves([traced.kept])]
        inner = iter([parameter(m.tracer, scope, t, t.fake) for t in held])
        saved, kept = replace(traced.saved, inner), replace(traced.kept, inner)
        assert isinstance(saved, SequenceValue) and isinstance(kept, SequenceValue)
        before = Context(context.function, context.needs)
        before.saved = saved.items
        before.attributes = dict(zip(context.attributes, kept.items, strict=True))
        before.frozen = True
        try:
            result = resolve(m, m.call(backward, [before, *gradients], {}))
        except Raised as raised:
            raise Break("FL107", what=f"{name}.backward", why=raised.kind.__name__) from None
        found = result.items if isinstance(result, SequenceValue) and result.kind is tuple else [result]
        extra = found[len(inputs) :]
        wrong = [v for v, i in zip(found, inputs, strict=False) if not _is_none(v) and not isinstance(v, TensorValue)]
        misplaced = [
            v for v, i in zip(found, inputs, strict=False) if not isinstance(i, TensorValue) and not _is_none(v)
        ]
        if len(found) < len(inputs) or wrong or misplaced or not all(map(_is_none, extra)):
            raise Break("FL104", what=f"{name}.backward", why="what it returns does not fit the inputs of the forward")
        return close(m.tracer, scope, [], SequenceValue(found[: len(inputs)], tuple))


def _like(m: Machine, fake: torch.Tensor) -> torch.Tensor:
    with m.tracer.fake_mode:
        return torch.empty_like(fake, requires_grad=False)


def _running(
    traced: _Traced, backwards: dict[tuple[bool, ...], Subgraph], inputs: list[Value], once: bool
) -> Callable[..., tuple[Any, ...]]:
    """What the node runs: an autograd function of the traced graphs."""
    count = len(traced.tensors)
    assert isinstance(traced.saved, SequenceValue)
    holes = [_is_none(v) for v in traced.saved.items]
    saved = holes.count(False)
    layouts = [_layout(t.fake) for t in traced.tensors]
    patterns = list(backwards)
    results = {
        given: [isinstance(v, TensorValue) for v in b.output.items]  # type: ignore[attr-defined]
        for given, b in backwards.items()
    }
    of_tensors = [isinstance(v, TensorValue) for v in inputs]
    outside = {torch_private.storage_key(v.fake) for v in inputs if isinstance(v, TensorValue)}
    aliases = len(traced.dirty) < sum(torch_private.storage_key(t.fake) in outside for t in traced.tensors)

    def forward(ctx: Any, bodies: Any, captured: Any, *tensors: torch.Tensor) -> Any:
        found = bodies[0](*tensors, *captured[0])
        outputs, held = found[:count], iter(found[count : count + saved])
        ctx.save_for_backward(*(None if hole else next(held) for hole in holes))
        ctx.kept, ctx.bodies, ctx.captured = found[count + saved :], bodies[1:], captured[1:]
        if traced.dirty:
            ctx.mark_dirty(*(tensors[i] for i in traced.dirty))
        if traced.constant:
            ctx.mark_non_differentiable(*(outputs[i] for i in traced.constant))
        ctx.set_materialize_grads(traced.context.materialize)
        return outputs

    def backward(ctx: Any, *grads: Any) -> Any:
        given = tuple(g is not None for g in grads)
        body, captured = ((p[patterns.index(given)]) for p in (ctx.bodies, ctx.captured))
        present = [laid(g) for g, laid in zip(grads, layouts, strict=True) if g is not None]
        held = [t for t, hole in zip(ctx.saved_tensors, holes, strict=True) if not hole]
        found = iter(_hook.disabled(body)(*present, *held, *ctx.kept, *captured))
        returned = [next(found) if there else None for there in results[given]]
        return None, None, *(r for r, t in zip(returned, of_tensors, strict=True) if t)

    methods = {
        "forward": staticmethod(forward),
        "backward": staticmethod(once_differentiable(backward) if once else backward),
    }
    made: Any = type(traced.name, (torch.autograd.Function,), methods)

    def run(*args: Any) -> tuple[Any, ...]:
        bodies, (tensors, *captured) = args[: len(patterns) + 1], args[len(patterns) + 1 :]
        if aliases and any(map(torch_private.is_functional, tensors)):
            raise RuntimeError("its forward returns an input or a view of one")
        return made.apply(bodies, captured, *tensors)

    return run


def _check_transformed(m: Machine, function: type[torch.autograd.Function], divided: bool) -> None:
    """Whether transforms of ``torch.func`` take the function, and vmap goes over what it computes, not by a rule of its own."""
    what = f"{function.__name__}.apply"
    if not divided:
        raise Break("FL104", what=what, why="transforms take no function without a setup_context")
    mapped = any(scope.mapped is not None for scope in m.tracer.graphs.scopes)
    if mapped and not getattr(function, "generate_vmap_rule", False):
        raise Break("FL104", what=what, why="inside vmap it has a rule of its own, or none")


def _running_in_transforms(
    traced: _Traced, body: Subgraph, backwards: dict[tuple[bool, ...], Subgraph], inputs: list[Value], once: bool
) -> Callable[..., tuple[Any, ...]]:
    """As :func:`_running`, of a function that transforms take: it keeps inputs, outputs, and further outputs that nobody sees."""
    assert isinstance(traced.saved, SequenceValue)
    if traced.dirty or len(backwards) > 1:
        raise Break("FL104", what=f"{traced.name}.apply", why="inside a function transform it runs eagerly")
    count = len(traced.tensors)
    held = [v.node for v in (*leaves([traced.saved]), *leaves([traced.kept])) if isinstance(v, TensorValue)]
    given = [n for n in body.module.graph.nodes if n.op == "placeholder"]
    known = [*given, *(t.node for t in traced.tensors)]
    more = [n for n in dict.fromkeys(held) if n not in known]
    places = [[*known, *more].index(n) for n in held]
    further = [count + held.index(n) for n in more]
    (results,) = ([isinstance(v, TensorValue) for v in b.output.items] for b in backwards.values())  # type: ignore[attr-defined]
    of_tensors = [isinstance(v, TensorValue) for v in inputs]
    layouts = [_layout(t.fake) for t in traced.tensors]

    def forward(bodies: Any, captured: Any, *tensors: torch.Tensor) -> Any:
        found = bodies[0](*tensors, *captured[0])
        return (*found[:count], *(found[i] for i in further))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        bodies, captured, *tensors = inputs
        pool = [*tensors, *captured[0], *output]
        ctx.bodies = bodies
        ctx.save_for_backward(*(pool[i] for i in places), *captured[1])
        ctx.mark_non_differentiable(*(output[i] for i in traced.constant), *output[count:])

    def backward(ctx: Any, *grads: Any) -> Any:
        present = [laid(g) for g, laid in zip(grads[:count], layouts, strict=True)]
        found = iter(_hook.disabled(ctx.bodies[1])(*present, *ctx.saved_tensors))
        returned = [next(found) if there else None for there in results]
        return None, None, *(r for r, t in zip(returned, of_tensors, strict=True) if t)

    methods = {
        "forward": staticmethod(forward), "setup_context": staticmethod(setup_context), "generate_vmap_rule": True,
        "backward": staticmethod(once_differentiable(backward) if once else backward),
    }  # fmt: skip
    made: Any = type(traced.name, (torch.autograd.Function,), methods)

    def run(*args: Any) -> tuple[Any, ...]:
        bodies, (tensors, *captured) = args[:2], args[2:]
        return made.apply(bodies, captured, *tensors)[:count]

    return run


def _layout(fake: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Gives a gradient the strides that the backward was traced with: it may have decided by them."""
    if fake.is_contiguous():
        return torch.Tensor.contiguous
    with_strides = _like_dense(fake)
    if with_strides is None:
        return lambda g: g
    shape, strides = with_strides

    def laid(g: torch.Tensor) -> torch.Tensor:
        return (
            g if g.stride() == strides else torch.empty_strided(shape, strides, dtype=g.dtype, device=g.device).copy_(g)
        )

    return laid


def _like_dense(fake: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides of a gradient like ``fake``; None when they are symbolic."""
    extents = (*fake.shape, *fake.stride())
    if not all(isinstance(s, int) for s in extents):
        return None
    return tuple(fake.shape), torch.empty_like(fake, device="meta").stride()
