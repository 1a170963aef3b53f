"""Which inputs of a graph share memory with those that it writes to.

Such a graph is compiled for the way in which they share it. Where memory overlaps, the inputs become views of one more
input, their base, to which the graph writes; what only lies beside it in one storage may not be saved for the backward
as it is, because the tensors may count their versions together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from ... import torch_private
from ...autograd.untraceable import Untraceable
from ...ir.contracts.signature import NOTHING_SHARED, Base, Sharing

_VARIANTS = 8  # ways of sharing memory that one graph is compiled for


def find(
    inputs: Sequence[Any], written: Collection[int], wanted: Collection[int], *, visible: Collection[int], grad: bool
) -> Sharing:
    """How the inputs ``wanted`` share memory with those that are ``written``, which are among them.

    Autograd sees the writes to those that are ``visible``; ``grad``: gradients may be on. Raises Untraceable where views of
    one base cannot stand for inputs.
    """
    touched = [g for g in _groups(inputs, wanted, _storage) if len(g) > 1 and any(i in written for i in g)]
    if not touched:
        return NOTHING_SHARED
    bases: list[Base] = []
    for group in touched:
        differentiable = any(i in visible or (grad and inputs[i].requires_grad) for i in group)
        parts = _groups(inputs, group, _extent)
        for part in _related(inputs, parts) if differentiable else parts:
            if len(part) > 1 and any(i in written for i in part):
                source = next(i for i in part if i in written)
                bases.append(_base(inputs, part, source, differentiable))
    return Sharing(tuple(bases), tuple(sorted(i for g in touched for i in g)))


def by_sharing(
    ready: Callable[..., Any],
    shared: Sharing,
    find: Callable[[tuple[Any, ...]], Sharing],
    compile_for: Callable[[Sharing], Callable[..., Any]],
    eager: Callable[..., Any],
) -> Callable[..., Any]:
    """``ready`` for calls whose inputs share memory as ``shared`` says; others are compiled for when they come."""
    variants = {shared: ready}
    lock = threading.Lock()

    def run(inputs: tuple[Any, ...]) -> Any:
        try:
            found = find(inputs)
        except Untraceable:
            return eager(inputs)
        if found is shared:
            return ready(inputs)
        with lock:
            variant = variants.get(found)
            if variant is None:
                variant = variants[found] = compile_for(found) if len(variants) < _VARIANTS else eager
        return variant(inputs)

    return run


def tensors(inputs: Sequence[Any]) -> list[int]:
    """The positions of the tensors among ``inputs``, one for each."""
    first = {id(given): i for i, given in reversed(list(enumerate(inputs))) if isinstance(given, torch.Tensor)}
    return sorted(first.values())


def _groups(inputs: Sequence[Any], chosen: Collection[int], span: Any) -> list[list[int]]:
    """The inputs ``chosen`` in groups whose spans of memory are connected."""
    groups: list[list[int]] = []
    reached = 0
    for start, end, i in sorted([(*span(inputs[i]), i) for i in chosen]):
        if start >= reached:
            groups.append([])
        groups[-1].append(i)
        reached = max(reached, end)
    return [sorted(g) for g in groups]


def _related(inputs: Sequence[Any], parts: list[list[int]]) -> list[list[int]]:
    """``parts`` of one storage, those together whose tensors are views of one: a write to one gives all a history."""
    joined: list[tuple[set[int], list[int]]] = []
    for part in parts:
        bases, members = {id(_viewed(inputs[i])) for i in part}, list(part)
        for other in [j for j in joined if not bases.isdisjoint(j[0])]:
            joined.remove(other)
            bases |= other[0]
            members += other[1]
        joined.append((bases, members))
    return [sorted(members) for _, members in joined]


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the tensor's storage begins and ends. Storages of their own may share memory, such as those of an array."""
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes()


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the tensor's first element begins and its last one ends."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum([(n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)])
    return start, start + (last + 1) * tensor.element_size()


def _base(inputs: Sequence[Any], members: list[int], source: int, differentiable: bool) -> Base:
    views = [inputs[i] for i in members]
    first = views[0]
    storages = {t.untyped_storage().data_ptr() for t in views}
    if len(storages) > 1 or any(t.dtype != first.dtype for t in views):
        raise Untraceable("an input is written to that shares memory with one of another type or storage")
    if not differentiable:
        begin = min(t.storage_offset() for t in views)
        end = max((_extent(t)[1] - t.data_ptr()) // t.element_size() + t.storage_offset() for t in views)
        source = max(
            members, key=lambda i: inputs[i].untyped_storage().nbytes()
        )  # those of arrays end with their elements
        if end * first.element_size() > inputs[source].untyped_storage().nbytes():
            raise Untraceable(
                "an input is written to that shares memory with another, and they reach beyond their storage"
            )
        return Base(tuple(members), tuple(t.storage_offset() - begin for t in views), (end - begin,), source)
    base = _viewed(first)
    if any(_viewed(t) is not base for t in views) or not base.is_contiguous() or base.dtype != first.dtype:
        raise Untraceable("an input is written to that shares memory with another, and they are no views of one tensor")
    if any(t is not base and not torch_private.is_plain_view(t) for t in views):
        raise Untraceable("an input is written to that shares memory with another, whose gradients something watches")
    offsets = tuple(t.storage_offset() - base.storage_offset() for t in views)
    if min(offsets) < 0:
        raise Untraceable("an input is written to that shares memory with another, and they reach beyond their base")
    return Base(tuple(members), offsets, tuple(base.shape), source, True, base.requires_grad, base.is_leaf)


def _viewed(tensor: torch.Tensor) -> torch.Tensor:
    base = torch_private.tensor_base(tensor)
    return tensor if base is None else base
