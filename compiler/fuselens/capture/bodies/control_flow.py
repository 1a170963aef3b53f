"""torch.cond, while_loop, scan and map, and checkpoints: bodies that a node runs once, in turn, or again.

Outside of any compiler torch's own functions compile their branches with torch.compile. These nodes run the traced
bodies directly, as torch's dense implementations do, with the gradients that torch gives them: every floating result
depends on every operand that requires grad.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from ... import torch_private
from ...system.signatures import signature
from ..breaks import Break
from ..rules import torch_function
from ..rules.library import partial_parts
from ..rules.table import NAMED_RULES, RULES, called, rule
from ..values.algebra import (
    Constant,
    DictValue,
    FunctionValue,
    Known,
    ObjectValue,
    PartialValue,
    SequenceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from .higher_order import (
    FakeOf,
    Operator,
    Subgraph,
    apply,
    known,
    leaves,
    of_kind,
    only_tensors,
    replace,
    resolve,
    trace,
)

if TYPE_CHECKING:
    from ..machine import Machine


def _bound(function: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> dict[str, Value]:
    try:
        return dict(signature(function).bind(*args, **kwargs).arguments)
    except TypeError as e:
        raise Break("FL104", what=what, why=str(e)) from None


class _Depends(torch.autograd.Function):
    """The first ``count`` tensors, such that they depend on the others too, with gradients of zero."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> Any:
        ctx.others = tensors[count:]
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        zeros = (torch.zeros_like(t) if t.is_floating_point() or t.is_complex() else None for t in ctx.others)
        return None, *grads, *zeros


def depending(results: tuple[Any, ...], *operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """``results``; while grad mode is on, the floating ones depend on all ``operands`` that require grad."""
    others = [t for group in operands for t in group if isinstance(t, torch.Tensor) and t.requires_grad]
    places = [i for i, t in enumerate(results) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    if not torch.is_grad_enabled() or not others or not places:
        return results
    made = _Depends.apply(len(places), *(results[i] for i in places), *others)
    found = list(results)
    for i, t in zip(places, made, strict=True):  # type: ignore[arg-type]
        found[i] = t
    return tuple(found)


def body_of(m: Machine, function: Value, args: list[Value], what: str, fake: FakeOf | None = None) -> Subgraph:
    """A branch or a loop's body, which must neither write to a tensor from outside nor return one (or a view of one)."""
    sub = trace(m, m.use(function), args, {}, fake, certain=False)
    if _writes_outside(sub):
        raise Break("FL104", what=what, why="a branch or body writes to a tensor from outside")
    outside = _outside(sub)
    if any(torch_private.storage_key(t.fake) in outside for t in sub.leaves):
        raise Break("FL104", what=what, why="a branch or body returns a tensor from outside, or a view of one")
    return sub


BodyOf = Callable[["Machine", Value, list[Value], str], Subgraph]


def _outside(sub: Subgraph) -> set[int]:
    """The memory of the tensors that a body is given."""
    given = (n.meta["val"] for n in sub.module.graph.nodes if n.op == "placeholder")
    return {torch_private.storage_key(t) for t in given if isinstance(t, torch.Tensor)}


def _writes_outside(sub: Subgraph) -> bool:
    outside = _outside(sub)
    written = [n for n in sub.module.graph.nodes if n.op.startswith("call_") and torch_private.writes(n)]
    return any(torch_private.storage_key(t) in outside for n in written for t in _written(n))


def _written(node: fx.Node) -> list[torch.Tensor]:
    """The tensors that a node writes to."""
    found = torch_private.written_operands(node)
    if found is None:
        found = [node.kwargs["out"] if "out" in node.kwargs else node.args[0]]
    nodes = [n for n in found if isinstance(n, fx.Node)]
    if len(nodes) < len(found):
        raise Break("FL104", what="a branch or body", why="what it writes to is not known")
    return [n.meta["val"] for n in nodes]


def _operands(m: Machine, value: Value, what: str) -> list[Value]:
    found = resolve(m, value)
    if not isinstance(found, SequenceValue) or not only_tensors(found):
        raise Break("FL104", what=what, why="the operands are not tensors in a tuple or list")
    return list(found.items)


def _same_metadata(a: Subgraph, b: Subgraph) -> bool:
    return len(a.leaves) == len(b.leaves) and all(
        x.fake.shape == y.fake.shape and x.fake.dtype == y.fake.dtype and x.fake.device == y.fake.device
        for x, y in zip(a.leaves, b.leaves, strict=True)
    )


def _same_form(a: Value, b: Value) -> bool:
    """Whether tensors are in containers of the same kinds."""
    if isinstance(a, SequenceValue) and isinstance(b, SequenceValue):
        same = a.kind is b.kind and len(a.items) == len(b.items)
        return same and all(map(_same_form, a.items, b.items))
    if isinstance(a, DictValue) and isinstance(b, DictValue):
        same = a.kind is b.kind and list(a.items) == list(b.items)
        return same and all(map(_same_form, a.items.values(), b.items.values()))
    return isinstance(a, TensorValue) and isinstance(b, TensorValue)


@rule(torch.cond)
def _cond(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "torch.cond"
    bound = _bound(torch.cond, args, kwargs, what)
    predicate = m.use(bound["pred"])
    branches = [m.use(bound["true_fn"]), m.use(bound["false_fn"])]
    given = m.use(bound.get("operands", SequenceValue([], tuple)))
    decided_by_data = isinstance(predicate, SymbolValue) and predicate.python_type is bool and m.tracer.takes_scalars
    if not isinstance(predicate, TensorValue) and not decided_by_data:
        truth = m.truth(predicate) if predicate.python_type is bool else None
        if truth is None or not isinstance(given, SequenceValue):
            raise Break("FL104", what=what, why=f"the predicate is {predicate.describe()}")
        return m.call(branches[0 if truth else 1], list(given.items), {})
    if isinstance(predicate, TensorValue) and predicate.fake.numel() != 1:
        raise Break("FL104", what=what, why="the predicate is not a single element")
    return _branching(m, predicate, branches, _operands(m, given, what), what)


def _branching(
    m: Machine, predicate: Value, branches: list[Value], operands: list[Value], what: str, body: BodyOf = body_of
) -> Value:
    """What the branch gives that data decides on."""
    yes, no = (body(m, branch, operands, what) for branch in branches)
    if not (only_tensors(yes.output) and only_tensors(no.output)):
        raise Break("FL104", what=what, why="a branch returns something that is not a tensor")
    if not _same_metadata(yes, no) or not _same_form(yes.output, no.output):
        raise Break("FL104", what=what, why="the branches return different kinds of tensors")
    op = Operator("cond", _run_cond, yes.module, no.module, data_decides=True)
    found = apply(m, op, predicate, *yes.inputs, no.inputs[1])
    return replace(yes.output, iter(found))


_cond_operator: Any = torch.ops.higher_order.cond


@rule(_cond_operator)
def _cond_by_operator(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The operator behind ``torch.cond``, which exported programs call. A predicate of Python's does not go past autograd."""
    what = "torch.ops.higher_order.cond"
    bound = _bound(_cond_operator, args, kwargs, what)
    predicate, given = m.use(bound["pred"]), resolve(m, bound["operands"])
    branches = [m.use(bound["true_fn"]), m.use(bound["false_fn"])]
    if not isinstance(given, SequenceValue) or given.kind not in (list, tuple):
        raise Break("FL104", what=what, why="the operands are not tensors in a tuple or list")
    operands = list(given.items)
    decided = predicate.python_type is bool
    if isinstance(predicate, TensorValue) and predicate.fake.numel() != 1:
        raise Break("FL104", what=what, why="the predicate is not a single element")
    if not isinstance(predicate, TensorValue) and not decided:
        raise Break("FL104", what=what, why=f"the predicate is {predicate.describe()}")
    if not all(isinstance(o, TensorValue) or o.python_type is int for o in operands):
        raise Break("FL104", what=what, why="the operands are not tensors and integers")
    truth = m.truth(predicate) if decided else None
    if truth is None:
        return _branching(m, predicate, branches, operands, what, _closed_body)
    chosen = branches[0 if truth else 1]
    if not torch.is_grad_enabled():
        return m.call(chosen, operands, {})
    sub = _closed_body(m, chosen, operands, what)
    if not only_tensors(sub.output):
        raise Break("FL104", what=what, why="a branch returns something that is not a tensor")
    found = apply(m, Operator("cond", _run_chosen, sub.module), *sub.inputs)
    return replace(sub.output, iter(found))


def _closed_body(m: Machine, function: Value, operands: list[Value], what: str) -> Subgraph:
    """A branch as eager's autograd takes it: which must not close over tensors where anything has a gradient."""
    sub = body_of(m, function, operands, what)
    closes = bool(leaves(sub.captured)) and torch.is_grad_enabled()
    if closes and any(t.fake.requires_grad for t in leaves([*sub.parameters, *sub.captured])):
        raise Break("FL104", what=what, why="a branch closes over tensors")
    return sub


def _run_chosen(body: Any, operands: Any, captured: Any) -> tuple[Any, ...]:
    return depending(body(*operands, *captured), operands)


@called(type(_cond_operator))
def _existing_operator(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _cond_by_operator(m, args, kwargs)


def _run_cond(yes: Any, no: Any, predicate: Any, operands: Any, with_yes: Any, with_no: Any) -> tuple[Any, ...]:
    given = (predicate, *operands, *with_yes, *with_no)
    if any(torch_private.is_functional(t) for t in given if isinstance(t, torch.Tensor)):
        raise RuntimeError("data decides which branch runs")
    symbolic = torch_private.is_symbolic_number(predicate)
    if symbolic or torch_private.fake_mode_of(predicate) is not None:  # either branch tells what the results look like
        results = yes(*operands, *with_yes)
    else:
        results = yes(*operands, *with_yes) if predicate else no(*operands, *with_no)
    return depending(results, operands, with_yes, with_no)


_while_loop = torch_private.HIGHER_ORDER["while_loop"]


@rule(_while_loop)
def _while(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "while_loop"
    bound = _bound(_while_loop, args, kwargs, what)
    operands = _operands(m, bound["carried_inputs"], what)
    condition = body_of(m, bound["cond_fn"], operands, what)
    body = body_of(m, bound["body_fn"], operands, what)
    if not isinstance(condition.output, TensorValue) or condition.output.fake.dtype != torch.bool:
        raise Break("FL104", what=what, why="the condition does not return a boolean tensor")
    carried = SequenceValue(operands, tuple)
    if not isinstance(body.output, SequenceValue) or not only_tensors(body.output):
        raise Break("FL104", what=what, why="the body does not return a tuple of tensors")
    if [(t.fake.shape, t.fake.dtype) for t in leaves([carried])] != [(t.fake.shape, t.fake.dtype) for t in body.leaves]:
        raise Break("FL104", what=what, why="the body changes the kinds of the carried tensors")
    op = Operator("while_loop", _run_while, condition.module, body.module, data_decides=True)
    found = apply(m, op, *body.inputs, condition.inputs[1])
    return replace(carried, iter(found))


def _run_while(condition: Any, body: Any, carried: Any, with_body: Any, with_condition: Any) -> tuple[Any, ...]:
    if any(map(torch_private.is_functional, carried)):
        raise RuntimeError("data decides how often the body runs")
    if any(torch_private.fake_mode_of(t) is not None for t in carried):
        return tuple(t.clone() for t in body(*carried, *with_body))
    state = tuple(t.clone() for t in carried)
    while condition(*state, *with_condition)[0]:
        state = body(*state, *with_body)
    return depending(state, carried, with_body)


_scan = torch_private.HIGHER_ORDER["scan"]


@rule(_scan)
def _scan_rule(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "scan"
    bound = _bound(_scan, args, kwargs, what)
    init, xs = resolve(m, bound["init"]), resolve(m, bound["xs"])
    dim = known(m, bound.get("dim", Constant(0)), what)
    reverse = known(m, bound.get("reverse", Constant(False)), what)
    carried, elements = leaves([init]), leaves([xs])
    if not (carried and elements and only_tensors(init) and only_tensors(xs)):
        raise Break("FL104", what=what, why="what it carries or scans is not tensors")
    if not all(0 <= dim < e.fake.ndim and e.fake.shape[dim] == elements[0].fake.shape[dim] > 0 for e in elements):
        raise Break("FL104", what=what, why=f"dimension {dim} does not fit every tensor")
    count = len(carried)

    def fake(i: int, tensor: TensorValue) -> torch.Tensor:
        return tensor.fake if i < count else m.tracer.run_fake("call_method", "select", (tensor.fake, dim, 0), {}, what)

    sub = body_of(m, bound["combine_fn"], [init, xs], what, fake)
    out = sub.output
    if not (isinstance(out, SequenceValue) and len(out.items) == 2 and only_tensors(out)):
        raise Break("FL104", what=what, why="the function does not return two structures of tensors")
    kinds = [(t.fake.shape, t.fake.dtype) for t in leaves([out.items[0]])]
    if kinds != [(t.fake.shape, t.fake.dtype) for t in carried]:
        raise Break("FL104", what=what, why="the function changes the kinds of what it carries")

    def run(body: Any, parameters: Any, captured: Any) -> tuple[Any, ...]:
        state, sequences = parameters[:count], parameters[count:]
        steps = range(sequences[0].shape[dim])
        rows: list[Any] = []
        for i in reversed(steps) if reverse else steps:
            found = body(*state, *(s.select(dim, i) for s in sequences), *captured)
            state = found[:count]
            rows.append(found[count:])
        columns = zip(*(reversed(rows) if reverse else rows), strict=True)
        stacked = tuple(
            torch.movedim(torch.stack(c), 0, dim) if dim < c[0].ndim + 1 else torch.stack(c) for c in columns
        )
        return depending((*state, *stacked), parameters, captured)

    found = apply(m, Operator("scan", run, sub.module), *sub.inputs)
    return SequenceValue([replace(out.items[0], iter(found)), replace(out.items[1], iter(found[count:]))], tuple)


_map = torch_private.HIGHER_ORDER["map"]


@rule(_map)
def _map_rule(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "map"
    if kwargs or len(args) < 2:
        raise Break("FL104", what=what, why="it is given keyword arguments")
    xs = resolve(m, args[1])
    count = len(leaves([xs]))
    if not count or not only_tensors(xs):
        raise Break("FL104", what=what, why="what it maps over is not tensors")

    def fake(i: int, tensor: TensorValue) -> torch.Tensor:
        return tensor.fake if i >= count else m.tracer.run_fake("call_method", "select", (tensor.fake, 0, 0), {}, what)

    sub = body_of(m, args[0], [xs, *args[2:]], what, fake)
    if not only_tensors(sub.output):
        raise Break("FL104", what=what, why="the function returns something that is not a tensor")

    def run(body: Any, parameters: Any, captured: Any) -> tuple[Any, ...]:
        sequences, others = parameters[:count], parameters[count:]
        rows = [body(*(s.select(0, i) for s in sequences), *others, *captured) for i in range(sequences[0].shape[0])]
        return depending(tuple(map(torch.stack, zip(*rows, strict=True))), parameters, captured)

    found = apply(m, Operator("map", run, sub.module), *sub.inputs)
    return replace(sub.output, iter(found))


# --- attention


@called(type(torch_private.FLEX_ATTENTION))
def _flex_attention(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The operator behind ``flex_attention``: what eager computes, whose functions of scores are mapped over."""
    RULES[torch_private.flex_index_mode()] = _index_by_tensors
    return m.call(FunctionValue(torch_private.flex_attention_by_operators(), None), args, kwargs)


@rule(torch_private.FLEX_LAYOUT)
def _flex_layout(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result lies in memory as the query does."""
    out, strides = m.use(args[0]), known(m, args[1], "flex_attention")
    if not isinstance(out, TensorValue) or not all(type(n) is int for n in (*out.fake.shape, *strides)):
        return m.call(FunctionValue(torch_private.FLEX_LAYOUT, None), args, kwargs)
    wanted = torch_private.flex_strides(out.fake.shape, strides)
    if out.fake.stride() == wanted:
        return m.tracer.call("call_method", "clone", (out,), {}, "flex_attention")
    sizes = [SequenceValue([Constant(n) for n in numbers], tuple) for numbers in (out.fake.shape, wanted)]
    made = m.tracer.call("call_method", "new_empty_strided", (out, *sizes), {}, "flex_attention")
    return m.tracer.call("call_method", "copy_", (made, out), {}, "flex_attention")


def _makes_masks(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``create_block_mask`` is traced; positions in its functions are tensors."""
    RULES[torch_private.flex_index_mode()] = _index_by_tensors
    return None


NAMED_RULES["torch.nn.attention.flex_attention", "create_block_mask"] = _makes_masks


def _has_free_unbacked_symbols(
    m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """Flex attention asks it of masks. Sizes that were known before the trace are free of such symbols."""
    given = m.use(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(given, TensorValue) or any(type(n) is not int for n in given.fake.shape):
        return None
    return Constant(False)


def _nested_region(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``torch.compiler.nested_compile_region``: the function itself, as in eager PyTorch."""
    return m.call(args[0], args[1:], kwargs) if args else None


NAMED_RULES["torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"] = _nested_region
NAMED_RULES["torch.fx.experimental.symbolic_shapes", "has_free_unbacked_symbols"] = _has_free_unbacked_symbols


def _index_by_tensors(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A subscript by numbers in tensors is an operator, which can be mapped over; other functions are what they are."""
    _, function, _, given, named = torch_function.handler_arguments(m, args, kwargs)
    items, options = torch_function.positional(m, given), torch_function.keywords(m, named)
    if isinstance(function, Known) and function.value == torch.Tensor.__getitem__:
        index = resolve(m, items[1])
        indices = index.items if isinstance(index, SequenceValue) else [index]
        if all(isinstance(i, TensorValue) for i in indices):
            found = SequenceValue(list(indices), list)
            return m.tracer.call("call_function", torch.ops.aten.index.Tensor, (m.use(items[0]), found), {}, "index")
    return m.call(function, items, options)


# --- checkpoints ------------------------------------------------------------------------------------------------

_OPTIONS = ("determinism_check", "debug", "early_stop")


@rule(checkpoint)
def _checkpoint(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "torch.utils.checkpoint"
    named = dict(kwargs)
    reentrant = known(m, named.pop("use_reentrant", Constant(None)), what)
    options = {k: known(m, named.pop(k), what) for k in _OPTIONS if k in named}
    preserve = known(m, named.pop("preserve_rng_state", Constant(True)), what)
    policy = None
    if "context_fn" in named and reentrant is False:
        options["context_fn"] = _python_function(m, named.pop("context_fn"), what)
        policy = torch_private.checkpoint_policy(options["context_fn"])
        if policy is None:
            raise Break("FL104", what=what, why="its contexts are not those of create_selective_checkpoint_contexts")
    if not isinstance(reentrant, bool) or not args or (reentrant and named):
        raise Break("FL104", what=what, why="use_reentrant is not given, or other options are")
    function, *rest = args
    sub = trace(m, m.use(function), rest, named)
    twice = _writes_outside(sub) and torch.is_grad_enabled()

    def run(body: Any, parameters: Any, captured: Any) -> tuple[Any, ...]:
        def function(*p: Any) -> tuple[Any, ...]:
            return body(*p, *captured)

        tensors = [t for t in (*parameters, *captured) if isinstance(t, torch.Tensor)]
        if any(map(torch_private.is_functional, tensors)):
            if reentrant and any(t.requires_grad for t in tensors) and not any(t.requires_grad for t in parameters):
                raise RuntimeError("a reentrant checkpoint that cuts the gradients of what it closes over")
            if twice:
                raise RuntimeError("the backward writes to tensors from outside once more")
            return function(*parameters)  # the partition keeps nothing of it but what it is given
        if torch_private.recording():
            return function(*parameters)  # numbers drawn in it are drawn once
        return _raw_checkpoint(function, *parameters, use_reentrant=reentrant, preserve_rng_state=preserve, **options)

    found = apply(m, Operator("checkpoint", run, sub.module, recomputed=True, policy=policy), *sub.inputs)
    return replace(sub.output, iter([of_kind(f, t.kind) for f, t in zip(found, sub.leaves, strict=True)]))


def _python_function(m: Machine, value: Value, what: str) -> Any:
    """The function itself, also a partial one, of a value that the graph's operator calls."""
    value = m.use(value)
    if isinstance(value, FunctionValue):
        return value.function
    if isinstance(value, ObjectValue) and type(value.value) is functools.partial:
        value = PartialValue(*partial_parts(m, value))
    if not isinstance(value, PartialValue):
        return known(m, value, what)
    function, *args = (_python_function(m, v, what) for v in (value.function, *value.args))
    return functools.partial(function, *args, **{k: _python_function(m, v, what) for k, v in value.kwargs.items()})


_raw_checkpoint = inspect.unwrap(checkpoint)  # torch's wrapper around it loads the peer compiler
