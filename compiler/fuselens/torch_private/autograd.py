"""Autograd's view of tensors: nodes, versions, views, functionalization."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

from .names import PYTREE, private
from .operators import CLASS_QUESTIONS, dispatch_key_bits
from .torch_function import DisableTorchFunction, DisableTorchFunctionSubclass, is_nested_class


def grad_of(tensor: torch.Tensor) -> Any:
    """``tensor.grad``, without asking its class."""
    with DisableTorchFunctionSubclass():
        return tensor.grad


def is_leaf(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``, without asking its class."""
    with DisableTorchFunctionSubclass():
        return tensor.is_leaf


def is_unwatched_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf on which no hooks are registered."""
    with DisableTorchFunctionSubclass():
        return tensor.is_leaf and not tensor._backward_hooks and not tensor._post_accumulate_grad_hooks


def is_no_leaf(tensor: torch.Tensor) -> bool:
    return not is_leaf(tensor)


def begins_evenly(tensor: torch.Tensor) -> bool:
    """Whether there is an even number of elements before it in its memory."""
    with DisableTorchFunctionSubclass():
        return tensor.storage_offset() % 2 == 0


def begins_oddly(tensor: torch.Tensor) -> bool:
    return not begins_evenly(tensor)


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """A wrapper of ``tensor`` whose in-place writes become functional operators below autograd."""
    return private.to_functional(tensor)


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The current value of a functional wrapper, pending writes applied; other tensors as they are."""
    if not private.is_functional(tensor):
        return tensor
    with private.below_autograd():  # autograd knows no views among values
        private.sync_functional(tensor)
    return private.from_functional(tensor)


def replace_value(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Gives a functional wrapper that is no view another value of its shape."""
    private.replace_functional(tensor, value)
    private.commit_functional(tensor)
    private.sync_functional(tensor)


def is_functional(tensor: torch.Tensor) -> bool:
    return private.is_functional(tensor)


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """Inside, factory functions return functional wrappers and views are replayed, not copied."""
    private.enable_functional(reapply_views=True)
    try:
        yield
    finally:
        private.disable_functional()


def functionalize_again() -> None:
    """Until the operator that is being dispatched returns: what :func:`functionalization_again` does."""
    private.exclude_key(private.functional_key, False)


@contextlib.contextmanager
def functionalization_again() -> Iterator[None]:
    """Inside :func:`functionalization`, and below it: operators on functional wrappers are made functional once more."""
    excluded = private.key_is_excluded(private.functional_key)
    functionalize_again()
    try:
        yield
    finally:
        private.exclude_key(private.functional_key, excluded)


@contextlib.contextmanager
def without_functionalization() -> Iterator[None]:
    """Inside :func:`functionalization`: back to plain tensors."""
    private.disable_functional()
    try:
        yield
    finally:
        private.enable_functional(reapply_views=True)


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share storage. Valid while either is alive."""
    return tensor.untyped_storage()._cdata


def is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of one storage, in the same order."""
    alike = one.shape == other.shape and one.stride() == other.stride()
    return alike and one.storage_offset() == other.storage_offset() and storage_key(one) == storage_key(other)


class _WithData(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return data.view_as(data)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient, None


def with_data(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """What ``tensor`` is to operations after ``tensor.data = data``: that memory, with its own gradient."""
    data = data.detach()
    return _WithData.apply(tensor, data) if torch.is_grad_enabled() and tensor.requires_grad else data


def tensor_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that ``tensor`` is a differentiable view of."""
    return tensor._base


def is_one_of_several_views(tensor: torch.Tensor) -> bool:
    """Whether an operator that returns several views made ``tensor``: eager refuses to write to it in place."""
    meta = private.several_views
    return tensor._is_view() and private.get_creation_meta(tensor) == meta


def is_plain_view(tensor: torch.Tensor) -> bool:
    """Whether a view may be written to under autograd, and nobody watches its gradients."""
    default = private.plain_view
    watched = tensor._backward_hooks or tensor.retains_grad
    return tensor._is_view() and private.get_creation_meta(tensor) == default and not watched


def mark_one_of_several_views(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, a view, as if an operator that returns several had made it."""
    private.set_creation_meta(tensor, private.several_views)
    return tensor


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """The view of ``tensor`` that is lazily negated; ``tensor``'s own memory again where it is that already."""
    return private.neg_view(tensor)


def gradient_node(tensor: torch.Tensor) -> Any:
    """The autograd node through which the tensor's gradient goes: of a leaf the one that accumulates it."""
    return torch.autograd.graph.get_gradient_edge(tensor).node


@functools.cache
def _saves_tensors(kind: type) -> bool:
    return any(name.startswith("_raw_saved_") for name in dir(kind))


def saves_tensors(node: Any) -> bool:
    """Whether an autograd node reads tensors that it saved."""
    return _saves_tensors(type(node)) or bool(getattr(node, "saved_tensors", ()))


def node_of(methods: Any) -> Callable[..., Any]:
    """``apply`` of a torch.autograd.Function with the ``forward`` and ``backward`` of ``methods``: its C part alone,
    as no function transform is active around a graph and no input is a transform's wrapper."""
    members = {"forward": staticmethod(methods.forward), "backward": staticmethod(methods.backward)}
    made = type("CompiledGraph", (torch.autograd.Function,), members)
    return super(torch.autograd.Function, made).apply


version_of: Callable[[torch.Tensor], int] = getattr(private.version, "__get__", private.version)
"""How many times the tensor's memory was written to, as autograd counts."""


def is_foreign(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no memory of its own to read: sparse, a subclass' wrapper, a transform's, zeros."""
    return dispatch_key_bits(tensor) & ~_keys_of_memory(tensor.device.type) != 0


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements are in memory as they are: it is no ``meta`` tensor, not foreign, lazily conjugated
    or negated."""
    return not (tensor.is_meta or is_foreign(tensor) or tensor.is_conj() or tensor.is_neg())


def is_emptied(tensor: torch.Tensor) -> bool:
    """Whether the storage was resized to nothing, as FSDP does to parameters that are not needed now."""
    return tensor.layout is torch.strided and tensor.numel() > 0 and not tensor.untyped_storage().nbytes()


@functools.cache
def _keys_of_memory(device: str) -> int:
    """The dispatch keys of ordinary tensors, lazily conjugated and negated ones included."""
    with torch.inference_mode(False), private.without_modes():  # whatever surrounds the first call
        conjugate = torch.empty(0, dtype=torch.complex64, device=device).conj()
        return dispatch_key_bits(conjugate) | dispatch_key_bits(conjugate.imag)


RELEASE_SAVED: Callable[[Any], None] = private.release_saved
"""Drops what an autograd node saved, unless its backward was asked to keep the graph."""


def keeps_graph() -> bool:
    """Inside a backward: whether the caller asked to keep the graph (retain_graph or create_graph)."""
    return private.keeps_graph()


def times_written(tensor: torch.Tensor) -> int:
    """How often a tensor was written to in place; -1 when it does not count (inference tensors)."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def checkpoint_policy(context_fn: Callable[[], Any]) -> Callable[..., bool] | None:
    """``(function, args, kwargs, result) -> keep?`` of selective checkpointing's contexts; None for others."""
    forward = context_fn()[0]
    choose = getattr(forward, "policy_fn", None)
    if choose is None:
        return None
    from torch.utils import checkpoint

    saves = (True, checkpoint.CheckpointPolicy.MUST_SAVE, checkpoint.CheckpointPolicy.PREFER_SAVE)

    def keeps(function: Any, args: Any, kwargs: Any, result: Any) -> bool:
        context: Any = checkpoint.SelectiveCheckpointContext(is_recompute=False)
        context.op_output = result  # torch 2.11 has no such argument
        ignored = function in checkpoint.SAC_IGNORED_OPS
        return not ignored and choose(context, function, *args, **kwargs) in saves

    return keeps


class _Padded(torch.autograd.Function):
    """``_jagged_to_padded_dense_forward``: values (total, …) as rows (batch, longest, …); autograd knows the class's way only."""

    @staticmethod
    def forward(ctx: Any, values: Any, offsets: Any, longest: Any, padding: float) -> Any:  # type: ignore[override]
        ctx.offsets, ctx.total = offsets, values.shape[0]
        return private.padded(values, offsets, longest, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        values = private.unpadded(gradient, ctx.offsets, ctx.total)
        return values, None, None, None


class _Unpadded(torch.autograd.Function):
    """``_padded_dense_to_jagged_forward``, the reverse."""

    @staticmethod
    def forward(ctx: Any, rows: Any, offsets: Any, total: Any) -> Any:  # type: ignore[override]
        ctx.offsets, ctx.longest = offsets, [rows.shape[1]]
        return private.unpadded(rows, offsets, total)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return private.padded(gradient, ctx.offsets, ctx.longest, 0.0), None, None


def _padded(values: Any, offsets: Any, max_lengths: Any, padding_value: float = 0.0) -> Any:
    return _Padded.apply(values, offsets, max_lengths, padding_value)


def _unpadded(dense: Any, offsets: Any, total: Any = None, **named: Any) -> Any:
    return _Unpadded.apply(dense, offsets, named.get("total_L", total))


_DIFFERENTIABLE: dict[Any, Callable[..., Any]] = {
    private.padded: _padded,
    private.unpadded: _unpadded,
}


NESTED_DUMMY, NESTED_VIEW, NESTED_FROM_PADDED = private.nested_dummy, private.nested_view, private.nested_from_padded


def nested_view(values: torch.Tensor, offsets: torch.Tensor, *others: Any) -> Any:
    """torch's function of this name, which needs some nested tensor to be asked at all."""
    return private.nested_view(values, offsets, private.nested_dummy(), *others)


def nested_from_padded(padded: torch.Tensor, offsets: torch.Tensor, *others: Any) -> Any:
    """torch's function of this name, which needs some nested tensor to be asked at all."""
    return private.nested_from_padded(padded, offsets, private.nested_dummy(), *others)


class _Functions(TorchFunctionMode):
    """Leads what is called with nested tensors past autograd and functionalization."""

    def __init__(self, operators: _Operators) -> None:
        super().__init__()
        self.operators = operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (differentiable := _DIFFERENTIABLE.get(getattr(func, "overloadpacket", func))) is not None:
            return differentiable(*args, **kwargs)
        leaves = PYTREE.tree_leaves((args, kwargs))
        nested = next(
            (type(a) for a in leaves if is_nested_class(type(a))), None
        )  # ``types`` is empty where nobody is asked
        if nested is None:
            return func(*args, **kwargs)
        if func is torch.nn.functional.scaled_dot_product_attention:
            with self, _requiring_grad(leaves):
                return nested.__torch_function__(func, (nested,), args, kwargs)  # the class's own, of calls of its own
        with self.operators.led():
            return func(*args, **kwargs)


@contextlib.contextmanager
def _requiring_grad(tensors: Iterable[Any]) -> Iterator[None]:
    """Inside, nested tensors say that they require grad if what autograd sees of them does."""
    with DisableTorchFunction():
        changed = [t for t in tensors if is_nested_class(type(t)) and _part(t).requires_grad and not t.requires_grad]
        for t in changed:
            t.requires_grad_()
    try:
        yield
    finally:
        with DisableTorchFunction():
            for t in changed:
                t.requires_grad_(False)


class _Operators(private.TorchDispatchMode):
    """Brings what was led past back: to the class, if it is an operator on nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = private.included_keys(), private.excluded_keys()
        self.leads = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the handler is called as it is

    @contextlib.contextmanager
    def led(self) -> Iterator[None]:
        before, self.leads = self.leads, True
        try:
            with private.below_autograd(), private.without_keys(private.key_set(private.dispatch_key.Functionalize)):
                yield
        finally:
            self.leads = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.leads:
            return func(*args, **kwargs)
        nested = next(filter(is_nested_class, types), None)
        self.leads = False
        try:
            with private.with_keys(*self.keys):
                if nested is None:
                    return func(*args, **kwargs)
                if func is private.nested_values:
                    return args[0]._values  # the class detaches it
                if (key := _composite_key(func)) is not None:
                    with self, self.led(), DisableTorchFunction():
                        return func._op_dk(key, *args, **kwargs)
                with private.EnableTorchFunction(), self, _Functions(self):
                    result = nested.__torch_dispatch__(func, types, args, kwargs)
                if _loses_gradient(func, args, kwargs, result):
                    raise NotImplementedError(f"what {func} computes from the parts of nested tensors has no gradient")
                return result
        finally:
            self.leads = True


def _part(tensor: Any) -> torch.Tensor:
    """What autograd sees of a tensor."""
    return tensor._values if is_nested_class(type(tensor)) else tensor


def _loses_gradient(func: Any, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether the class computes with operators that autograd knows no derivative of."""
    name = func.name().removeprefix("aten::").partition(".")[0]
    if not torch.is_grad_enabled() or name.endswith(("detach", "_like")) or name.startswith(("new_", "_nested_get_")):
        return False
    results, given = (
        [_part(t) for t in PYTREE.tree_leaves(tree) if isinstance(t, torch.Tensor)] for tree in (result, (args, kwargs))
    )
    floating = [t for t in results if t.is_floating_point() or t.is_complex()]
    return bool(floating) and any(t.requires_grad for t in given) and not any(t.requires_grad for t in floating)


@functools.cache
def _composite_key(func: Any) -> Any:
    """The key of the kernel that calls other operators on nested tensors, where autograd's dispatch finds it; or None."""
    if func in CLASS_QUESTIONS:
        return None
    name = func.name()
    if any(
        private.dispatch_has_kernel(name, key)
        for key in ("AutogradNestedTensor", "NestedTensorCPU", "NestedTensorCUDA")
    ):
        return None
    keys = private.dispatch_key.CompositeImplicitAutogradNestedTensor, private.dispatch_key.CompositeImplicitAutograd
    return next((key for key in keys if private.dispatch_has_kernel(name, key)), None)


@contextlib.contextmanager
def nested_as_containers() -> Iterator[None]:
    """Inside, operators on nested tensors are those on their parts, for autograd and functionalization, too.

    These two see no nested tensor: one is but a container of its parts. So an operator is led past them to the class, and what the
    class calls goes through them again.
    """
    operators = _Operators()
    with operators, _Functions(operators):
        yield
