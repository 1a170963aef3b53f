"""Recording of ATen operators into an fx graph, below autograd and functionalization.

The recorder is a dispatch mode above a fake mode. For every operator it looks up one rule: decompose, treat as the
identity, or record. It also numbers values: the same pure operator on the same operands is recorded (and its fake
kernel run) once, which halves the work on backward graphs that repeat transposes and masks.

Compared with ``make_fx`` it needs no second tracker for symbolic numbers (sizes are rebuilt from their expressions when
an operator needs one), imports nothing of torch's compiler, and is several times faster.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

from . import zeros
from .decompositions import Decompositions
from .random_numbers import DRAW_SEED, RULES, SEED_ARGUMENTS, Streams, in_place_draw
from .refusals import refusal
from .untraceable import Untraceable

aten = torch.ops.aten

_IDENTITIES = frozenset({aten.detach.default, aten.alias.default, aten.lift.default})
_LIFTS = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default})
# Fresh storage is their meaning, or their value is arbitrary: two calls are two values.
_NOT_NUMBERED = frozenset({
    "clone", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh_copy", "_to_copy",
})  # fmt: skip
SPARSE = aten._sparse_coo_tensor_with_dims_and_tensors.default  # makes the gradient of an embedding that is sparse
_SCALARS = (int, float, bool, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = frozenset({
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool,
})  # fmt: skip # what Python's numbers hold
_PURE, _RANDOM, _UNNUMBERED = "pure", "random", "unnumbered"


class OperatorRecorder(torch_private.RecordingMode):
    """``graph`` grows while operators run under this mode.

    ``meta`` is copied onto every node that is created: set it before each operator of the captured graph.
    """

    def __init__(self, decompositions: Decompositions, *, counter_based: bool = False) -> None:
        super().__init__()
        self.streams = Streams(self._seed) if counter_based else None
        self.draws_in_place = False  # with eager's numbers: functional forms stand for operators that write
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.meta: dict[str, Any] = {}
        self.policy: Callable[..., bool] | None = None  # marks the operators whose values a checkpoint keeps
        self.clones_are_identity = False
        self._has_sparse = False
        self.paused = False
        self.decomposing = False
        self.training = False  # whether a backward will be recorded
        self.random = False
        self.zeros: set[fx.Node] = set()  # see zeros.py
        self._table = decompositions
        self._rules: dict[Any, tuple[str, Callable[..., Any] | None]] = {}
        self._nodes: dict[int, fx.Node] = {}  # id(tensor) → node
        self._alive: list[torch.Tensor] = []  # keeps the ids above valid
        self._hands_on = False  # an operator was called again, for the class of its operands
        self._within: dict[int, torch.Tensor] = {}  # by id: wrappers that are inside of functional ones
        self._values: dict[Any, Any] = {}  # value number → output of the operator
        self._sizes: dict[Any, Callable[[], fx.Node] | fx.Node] = {}  # sympy expression → how to compute it
        self._constants = 0
        self._last_placeholder: fx.Node | None = None

    # --- values ↔ nodes

    def placeholder(self, name: str, value: Any, **meta: Any) -> fx.Node:
        """A new graph input bound to ``value``; also allowed in the middle of tracing (tangents)."""
        if self._last_placeholder is None:
            point = self.graph.inserting_before(next(iter(self.graph.nodes), None))
        else:
            point = self.graph.inserting_after(self._last_placeholder)
        with point:
            node = self.graph.placeholder(name)
        self._last_placeholder = node
        node.meta.update(meta, val=value)
        if isinstance(value, torch.Tensor):
            if id(value) not in self._nodes:  # the same tensor twice: the first place stands for both
                self._bind(value, node)
                self._bind_sizes(value, node)
        elif torch_private.is_symbolic_number(value):
            self._sizes.setdefault(value.node.expr, node)
        return node

    def constant(self, value: torch.Tensor, fake: torch.Tensor) -> fx.Node:
        """A real tensor baked into the graph, seen as ``fake`` while tracing."""
        name = f"_constant{self._constants}"
        self._constants += 1
        self.root.register_buffer(name, value, persistent=False)
        node = self.graph.get_attr(name)
        node.meta.update(self.meta, val=fake)
        self._bind(fake, node)
        return node

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that computes a (plain, not functional) fake tensor."""
        node = self._nodes.get(id(tensor))
        if node is None:
            raise Untraceable("a tensor that the graph did not create takes part in it", self.meta.get("span"))
        return node

    def known_node(self, tensor: torch.Tensor) -> fx.Node | None:
        return self._nodes.get(id(tensor))

    def _bind(self, tensor: torch.Tensor, node: fx.Node) -> None:
        if id(tensor) not in self._nodes:
            self._alive.append(tensor)
        self._nodes[id(tensor)] = node

    def rebind(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._bind(tensor, node)

    def _bind_sizes(self, tensor: torch.Tensor, node: fx.Node) -> None:
        extents: Any
        for op, extents in ((aten.sym_size.int, tensor.shape), (aten.sym_stride.int, _strides(tensor))):
            for dim, extent in enumerate(extents):
                if torch_private.is_symbolic_number(extent):
                    self._sizes.setdefault(extent.node.expr, _size_maker(self, op, node, dim, extent))
        offset: Any = tensor.storage_offset() if tensor.layout is torch.strided else 0
        if torch_private.is_symbolic_number(offset):
            self._sizes.setdefault(
                offset.node.expr, _size_maker(self, aten.sym_storage_offset.default, node, None, offset)
            )

    def argument(self, value: Any) -> Any:
        """``value`` as an fx argument: tensors and symbolic numbers become nodes."""
        if isinstance(value, torch.Tensor):
            node = self._nodes.get(id(value))
            return self._captured_constant(value) if node is None else node
        if value is None or type(value) in _SCALARS:
            return value
        if isinstance(value, (list, tuple)):
            return [self.argument(v) for v in value]
        if torch_private.is_symbolic_number(value):
            return self.number(value)
        return value

    def _captured_constant(self, value: torch.Tensor) -> fx.Node:
        if torch_private.fake_mode_of(value) is not None:
            return self.node_of(value)  # raises
        raise Untraceable("a tensor that is not an input takes part in the graph", self.meta.get("span"))

    # --- symbolic numbers

    def number(self, value: Any) -> Any:
        """The node (or Python number) that computes the symbolic number ``value`` from the graph's inputs."""
        symbolic = value.node
        if symbolic.constant is not None:
            return symbolic.constant
        return self._expression(symbolic.expr, symbolic.shape_env)

    def _expression(self, expr: Any, shape_env: Any) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Float or expr.is_Rational:
            return float(expr)
        if expr.is_Boolean and expr.is_Atom:
            return bool(expr)
        found = self._sizes.get(expr)
        if isinstance(found, fx.Node):
            return found
        if found is not None:
            node = self._sizes[expr] = found()
            return node
        if expr.is_Symbol:
            raise Untraceable(f"the size {expr} is not the size of any input", self.meta.get("span"))
        target, unary = _expression_operator(expr)
        operands = [self._expression(a, shape_env) for a in expr.args]
        result = operands[0]
        if unary:
            result = self._arithmetic(target, (result,))
        for other in operands[1:]:
            result = self._arithmetic(target, (result, other))
        if isinstance(result, fx.Node) and "val" not in result.meta:
            result.meta["val"] = shape_env.create_symintnode(expr, hint=None)
        if isinstance(result, fx.Node):
            self._sizes[expr] = result
        return result

    def _arithmetic(self, target: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        if not any(isinstance(o, fx.Node) for o in operands):
            return target(*operands)
        node = self.graph.call_function(target, operands)
        values = [o.meta["val"] if isinstance(o, fx.Node) else o for o in operands]
        node.meta.update(self.meta, val=target(*values))
        return node

    # --- operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if any(map(torch_private.is_wrapper_class, types)):
            return self._by_class(func, args, kwargs)
        policy = self.policy
        if policy is None:
            return self._dispatch(func, args, kwargs)
        self.policy = None  # it chooses among the operators that eager runs, not those that they decompose into
        try:
            out = self._dispatch(func, args, kwargs)
        finally:
            self.policy = policy
        if policy(func, args, kwargs, out):
            for t in out if isinstance(out, (tuple, list)) else (out,):
                if id(t) in self._nodes:
                    self._nodes[id(t)].meta["kept"] = True
        return out

    def _by_class(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the operands' class with ``__torch_dispatch__`` computes, in operators that come here by themselves.

        Functionalization is above. Of operands among which there are functional wrappers it has taken these off, and it puts
        them around the results: around the class's tensors, too, which are then known as ``_within``.
        """
        if self._hands_on:
            self._hands_on = False
            torch_private.functionalize_again()
            return NotImplemented  # then torch asks the class
        given = [t for t in torch_private.PYTREE.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        taken_off = any(id(t) in self._within or not torch_private.is_wrapper_class(type(t)) for t in given)
        self._hands_on = True
        with self, torch_private.functionalization_again():
            found = func(*args, **kwargs)

        def to_be_wrapped(tensor: torch.Tensor) -> torch.Tensor:
            if torch_private.is_wrapper_class(type(tensor)):
                self._within[id(tensor)] = tensor
            return torch_private.from_functional(tensor)

        return torch_private.PYTREE.tree_map_only(torch.Tensor, to_be_wrapped, found) if taken_off else found

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._has_sparse and func.namespace != "prim":  # which asks for the device
            if any(map(_is_sparse, torch_private.PYTREE.tree_leaves((args, kwargs)))):
                raise Untraceable(f"{func} computes with a sparse gradient", self.meta.get("span"))
        self._has_sparse |= func is SPARSE
        if not self.zeros and func is not zeros.MAKE:
            return self._by_rule(func, args, kwargs)
        out = NotImplemented if self.decomposing else zeros.applied(self, func, args, kwargs)
        if out is NotImplemented:
            out = self._by_rule(func, args, kwargs)
            zeros.mark_views(self, func, args, out)
        return out

    def _by_rule(self, func: Any, args: Any, kwargs: Any) -> Any:
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = self._rule(func)
        action, run = rule
        if action == "decompose":
            outermost, self.decomposing = not self.decomposing, True
            try:
                with self:
                    out = run(*args, **kwargs)  # type: ignore[misc]
            finally:
                self.decomposing = not outermost
            if out is not NotImplemented:
                return self._laid_out(func, args, kwargs, self._accepted(func, args, kwargs, out)) if outermost else out
            action = "record"
        if action == "identity" or (self.clones_are_identity and func is aten.clone.default):
            out = func(*args, **kwargs)
            self._bind(out, self._nodes[id(args[0])] if id(args[0]) in self._nodes else self.argument(args[0]))
            return out
        if action == "lift":
            return self._lift(func, args)
        if action == "unrecorded":
            return func(*args, **kwargs)
        if self.draws_in_place and (drawn := in_place_draw(func, args, kwargs)) is not None:
            return self._record(torch.ops.fuselens.drawn.default, drawn, {})
        out = self._record(func, args, kwargs)
        return out if self.decomposing else self._accepted(func, args, kwargs, out)

    def _accepted(self, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        """``out``, unless the program's operator refuses such operands."""
        reason = refusal(func, args, kwargs, out, training=self.training)
        if reason:
            raise Untraceable(reason, self.meta.get("span"))
        return out

    def _laid_out(self, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        """What an operator of the program was decomposed to, laid out in memory as by the operator itself."""
        if isinstance(out, tuple):
            return tuple([self._laid_out_at(func, args, kwargs, t, k) for k, t in enumerate(out)])
        return self._laid_out_at(func, args, kwargs, out)

    def _laid_out_at(self, func: Any, args: Any, kwargs: Any, out: Any, position: int = 0) -> Any:
        if not isinstance(out, torch.Tensor):
            return out
        strides = torch_private.kernels_strides(func, args, kwargs, out, position)
        if strides is None:
            return out
        with self:
            if out.numel() == 0:
                return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device)
            order = sorted(range(out.ndim), key=lambda d: -torch_private.size_hint(strides[d]))
            inverse = sorted(range(len(order)), key=order.__getitem__)
            copy = torch.permute(torch.permute(out, order).clone(memory_format=torch.contiguous_format), inverse)
            return copy if copy.stride() == strides else copy.as_strided(out.shape, strides)  # where its size is 1

    def _seed(self, device: torch.device) -> torch.Tensor:
        with self.pause():
            seed = self._record(DRAW_SEED, SEED_ARGUMENTS, {"dtype": torch.int32, "device": device})
        self.node_of(seed).meta["draws"] = "it draws the seed of this call's random numbers from torch's generator"
        return seed

    def _rule(self, func: Any) -> tuple[str, Callable[..., Any] | None]:
        if self.streams is not None and func in RULES:
            return "decompose", functools.partial(RULES[func], self.streams)
        if func in self._table:
            return "decompose", self._table[func]
        if func in _IDENTITIES:
            return "identity", None
        if func in _LIFTS:
            return "lift", None
        if isinstance(func, torch_private.OpOverload):
            if func.namespace == "prim" or func is aten._local_scalar_dense.default:
                return "unrecorded", None
            if torch_private.is_composite(func):
                return "decompose", func.decompose
            return "record", None
        raise Untraceable(f"the higher-order operator {func}", self.meta.get("span"))

    def _lifted(self, value: torch.Tensor, fake: torch.Tensor) -> None:
        """A tensor that the trace itself made. A number of the CPU is one in the graph: a GPU reads it without a copy."""
        if value.dim() or value.device.type != "cpu" or value.dtype not in _PLAIN:
            self.constant(value, fake)
            return
        with torch_private.real_tensors():
            number = value.item()
        node = self.graph.call_function(aten.full.default, ([], number), {"dtype": value.dtype, "device": value.device})
        node.meta.update(self.meta, val=fake)
        self._bind(fake, node)

    def _lift(self, func: Any, args: Any) -> Any:
        """``torch.tensor(3.)`` in the captured graph: a real tensor enters the trace."""
        out = func(*args)
        (value,) = args
        if id(value) in self._nodes:
            self._bind(out, self._nodes[id(value)])
        elif torch_private.fake_mode_of(value) is None:
            with torch_private.real_tensors():
                value = value.clone()
            self._lifted(value, out)
        elif getattr(value, "constant", None) is not None:
            self._lifted(value.constant, out)
        else:
            raise Untraceable("a tensor constant without a value", self.meta.get("span"))
        return out

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        node_args = tuple([self.argument(a) for a in args])
        if func is aten.t.default and node_args[0].target is aten.t.default:
            return node_args[0].args[0].meta["val"]  # backward formulas transpose what the forward transposed
        node_kwargs = {k: self.argument(v) for k, v in kwargs.items()} if kwargs else {}
        if func is aten.copy.default and _same_layout(args[0], args[1]):
            return args[1]  # a whole overwrite: the new value is the source
        kind = _kind(func, args, kwargs)
        number = None
        if kind == _PURE:
            number = (func, _frozen(node_args), _frozen(tuple(node_kwargs.items())))
            known = self._values.get(number)
            if known is not None:
                return known
        elif kind == _RANDOM:
            self.random = True
        if func._schema.is_mutable:
            raise Untraceable(f"{func} writes to its operand and has no functional form", self.meta.get("span"))
        out = func(*args, **kwargs)
        if self._is_noop(func, args, out):
            self._bind(out, self._nodes[id(args[0])])
            return out
        node = self.graph.create_node("call_function", func, node_args, node_kwargs, name=func.overloadpacket.__name__)
        node.meta.update(self.meta, val=out)
        if kind == _RANDOM:
            node.meta["random"] = True
            if self.streams is None and func in RULES:
                node.meta["draws"] = "its random numbers are asked for from torch's generator"
        if not func._schema.returns:
            node.meta["check"] = True
        self._bind_result(out, node)
        if number is not None:
            self._values[number] = out
        return out

    def add(self, func: Any, args: Any, kwargs: Any, value: torch.Tensor) -> None:
        """Records a call of ``func`` that gives ``value``, without running it."""
        node_args = tuple([self.argument(a) for a in args])
        node_kwargs = {k: self.argument(v) for k, v in kwargs.items()}
        node = self.graph.create_node("call_function", func, node_args, node_kwargs, name=func.overloadpacket.__name__)
        node.meta.update(self.meta, val=value)
        self._bind(value, node)

    def _is_noop(self, func: Any, args: Any, out: Any) -> bool:
        """Views and copies that change nothing are left out: a functional graph cannot tell them from their source.

        (Results that must own their memory are copied when they are added, see ``_add_result``.)
        """
        if func not in _MAYBE_NOOPS or id(args[0]) not in self._nodes:
            return False
        return _same_layout(out, args[0])

    def _bind_result(self, out: Any, node: fx.Node) -> None:
        if isinstance(out, torch.Tensor):
            self._bind(out, node)
        elif isinstance(out, (list, tuple)):
            for i, item in enumerate(out):
                if isinstance(item, torch.Tensor):
                    element = self.graph.call_function(operator.getitem, (node, i))
                    element.meta.update(self.meta, val=item)
                    self._bind(item, element)
                elif torch_private.is_symbolic_number(item):
                    element = self.graph.call_function(operator.getitem, (node, i))
                    element.meta.update(self.meta, val=item)
                    self._sizes.setdefault(item.node.expr, element)
        elif torch_private.is_symbolic_number(out):
            self._sizes.setdefault(out.node.expr, node)

    @contextmanager
    def clones_as_identity(self) -> Iterator[None]:
        """Inside, ``clone`` gives a new tensor object for the same node."""
        self.clones_are_identity = True
        try:
            yield
        finally:
            self.clones_are_identity = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Inside, operators run unrecorded."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


_MAYBE_NOOPS = frozenset({
    aten.view.default, aten.expand.default, aten._unsafe_view.default, aten.as_strided.default, aten.slice.Tensor,
    aten._reshape_alias.default, aten.permute.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default,
    aten.clone.default,
})  # fmt: skip


def _kind(func: Any, args: Any, kwargs: Any) -> str:
    """Whether equal calls give equal values."""
    if torch.Tag.nondeterministic_seeded in func.tags and not torch_private.drops_nothing(func, args, kwargs):
        return _RANDOM
    if func.overloadpacket.__name__ in _NOT_NUMBERED:
        return _UNNUMBERED
    return _PURE


def _frozen(value: Any) -> Any:
    """A hashable key that tells 1, 1.0 and True, and 0.0 and -0.0, apart."""
    kind = type(value)
    if kind is fx.Node:
        return value
    if kind in (list, tuple):
        return tuple([_frozen(v) for v in value])
    if kind is float or kind is complex:
        return (kind, repr(value))
    if kind is slice:
        return (kind, repr(value))
    return (kind, value)


def _same(a: Any, b: Any) -> bool:
    """Equality of extents without creating guards: symbolic ones by expression."""
    return len(a) == len(b) and all(
        (x.node.expr if isinstance(x, torch.SymInt) else x) == (y.node.expr if isinstance(y, torch.SymInt) else y)
        for x, y in zip(a, b, strict=True)
    )


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def _same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether every view, ``as_strided`` included, means the same elements of both."""
    kinds = [(t.dtype, t.device, t.is_conj(), t.is_neg()) for t in (a, b)]
    extents = [(*t.shape, *t.stride(), t.storage_offset()) for t in (a, b)]
    return kinds[0] == kinds[1] and _same(*extents)


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def _size_maker(
    recorder: OperatorRecorder, op: Any, node: fx.Node, dim: int | None, value: Any
) -> Callable[[], fx.Node]:
    """Emits the node that reads one extent of an input, when first needed."""

    def make() -> fx.Node:
        made = recorder.graph.call_function(op, (node,) if dim is None else (node, dim))
        made.meta.update(recorder.meta, val=value)
        return made

    return make


def _expression_operator(expr: Any) -> tuple[Callable[..., Any], bool]:
    """A sympy head as (Python operator, unary?); n-ary heads fold from the left."""
    name = type(expr).__name__
    found = _EXPRESSIONS.get(name)
    if found is None:
        raise Untraceable(f"a size with the expression {expr}")
    return found


_EXPRESSIONS: dict[str, tuple[Callable[..., Any], bool]] = {
    "Add": (operator.add, False), "Mul": (operator.mul, False), "Pow": (operator.pow, False),
    "PowByNatural": (operator.pow, False), "FloorDiv": (operator.floordiv, False),
    "CleanDiv": (operator.floordiv, False), "Mod": (operator.mod, False), "PythonMod": (operator.mod, False),
    "Max": (torch.sym_max, False), "Min": (torch.sym_min, False), "ToFloat": (torch.sym_float, True),
    "IntTrueDiv": (operator.truediv, False), "FloatTrueDiv": (operator.truediv, False),
    "Abs": (operator.abs, True), "TruncToInt": (torch.sym_int, True),
}  # fmt: skip
