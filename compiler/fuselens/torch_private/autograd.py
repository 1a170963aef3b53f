"""Autograd's view of tensors: nodes, versions, views, functionalization."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.checkpoint

from .names import private
from .operators import dispatch_key_bits
from .torch_function import DisableTorchFunctionSubclass


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
