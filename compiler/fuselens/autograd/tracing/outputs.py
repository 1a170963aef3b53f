"""What a traced graph leaves behind: new values and shapes of inputs, and outputs as results, inputs, or views of those.

It is read off the wrappers when the forward has run. Each description adds the results to the joint graph that it needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

from ...ir.contracts.signature import Leaf, Link, Mutation, Output, Reshape, Result, View
from ..recorder import OperatorRecorder
from ..untraceable import Untraceable
from .inputs import Inputs
from .layouts import has_symbols, holds, overlaps, same_elements, same_shape
from .results import Results
from .views import storage_root

# --- inputs that were changed


@dataclass(frozen=True)
class _Write:
    """An input whose value has changed, and the node that is its new one."""

    input: int
    node: fx.Node
    visible: bool  # to autograd
    count: int


class Changes:
    """``mutations`` and ``reshapes``: how inputs have other values and other shapes than before."""

    def __init__(self, inputs: Inputs, results: Results, recorder: OperatorRecorder, *, training: bool) -> None:
        self.inputs, self.results, self.recorder, self.training = inputs, results, recorder, training
        self.reshapes: list[Reshape] = []
        self.mutations: list[Mutation] = []
        found = [write for i in range(len(inputs.wrappers)) if (write := self._write(i)) is not None]
        written = {inputs.placeholders[w.input] for w in found}
        for write in found:
            # The run time copies results to inputs one after the other: none may be an input that is overwritten. An
            # autograd node may not return one tensor at two positions.
            owned = training or storage_root(write.node) in written
            position = results.add(write.node, inputs.wrappers[write.input] if write.visible else None, owned=owned)
            self.mutations.append(Mutation(write.input, position, write.visible, write.count))

    def _write(self, i: int) -> _Write | None:
        inputs, wrapper, state = self.inputs, self.inputs.wrappers[i], self.inputs.initial[i]
        if wrapper is None or state is None or i in inputs.duplicates:
            return None
        grad_fn, storage, version = state
        value = torch_private.from_functional(wrapper)
        if torch_private.storage_key(wrapper) != storage or value.dtype != inputs.fakes[i].dtype:
            raise Untraceable("an input is given other storage or another dtype")
        node, changed_history = self.recorder.node_of(value), wrapper.grad_fn is not grad_fn
        changes = torch_private.times_written(wrapper) - version
        if torch_private.has_metadata_mutation(wrapper) and not self._reshaped(i, node, changed_history, changes):
            return None
        count = changes - sum(i in (r.input, inputs.members.get(r.input)) for r in self.reshapes)
        if (node is inputs.placeholders[i] and not count) or i in inputs.members:
            return None
        visible = self.training and wrapper.requires_grad and changed_history
        if visible and inputs.is_hidden_base(i):
            raise Untraceable("values that require grad are written to memory that inputs share unknown to autograd")
        return _Write(i, node, visible, max(count, 1) if visible else count)

    def _reshaped(self, i: int, node: fx.Node, differentiable: bool, changes: int) -> bool:
        """Notes the change of an input's shape; whether its value changed as well."""
        inputs = self.inputs
        reshape = Reshape(i, self._new_shape(i), differentiable, 1 if i in inputs.members else changes)
        if storage_root(node) is inputs.placeholders[inputs.members.get(i, i)]:
            self.reshapes.append(reshape)
            return False
        if not same_elements(inputs.captured[i], inputs.fakes[i]):
            raise Untraceable("an input is written to, and only parts of it are left in its new shape")
        self.reshapes.append(dataclasses.replace(reshape, changes=1))
        return True

    def _new_shape(self, i: int) -> View:
        """As the capture saw it: values that are written to the input may have other strides."""
        before, after, extent = self.inputs.fakes[i], self.inputs.captured[i], self.results.extent
        sizes, strides = (tuple(extent(e) for e in extents) for extents in (after.shape, after.stride()))
        return View(sizes, strides, extent(after.storage_offset() - before.storage_offset()))


# --- leaves that the graph makes


class MadeLeaves:
    """The leaves among outputs that were none before; those that are ``parameters`` say so."""

    def __init__(
        self, outputs: Sequence[Any], inputs: Inputs, parameters: Sequence[torch.Tensor], results: Results
    ) -> None:
        known = {id(t) for t in (*inputs.leaves, *inputs.wrappers)}
        made = (t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad and _is_leaf(t))
        self.tensors: list[torch.Tensor] = list({id(t): t for t in made if id(t) not in known}.values())
        self._results = results
        self._parameters = parameters
        self._positions: dict[int, int] = {}

    def __contains__(self, t: object) -> bool:
        return any(t is m for m in self.tensors)

    def position(self, leaf: torch.Tensor) -> int:
        """The result that is the value of ``leaf``."""
        position = self._positions.get(id(leaf))
        if position is None:
            node = self._results.recorder.node_of(torch_private.from_functional(leaf))
            position = self._positions[id(leaf)] = self._results.add(node, None, owned=True)
        return position

    def described(self, *, flowing: bool) -> tuple[Leaf, ...]:
        """With ``flowing`` gradients flow into them, and they exist before the graph runs."""
        leaves = []
        for t in self.tensors:
            position = self._positions[id(t)]
            value = self._results.nodes[position].meta["val"]
            if flowing and has_symbols(value):
                raise Untraceable("a new leaf has symbolic sizes")
            size = tuple(value.shape) if flowing else None
            is_parameter = any(t is p for p in self._parameters)
            dtype = str(value.dtype).removeprefix("torch.")
            leaves.append(Leaf(position, dtype, str(value.device), size, is_parameter))
        return tuple(leaves)


# --- outputs


class Outputs:
    """``described``: how to rebuild each of ``tensors`` from inputs and results; ``inference``: the results that are to be made inference
    tensors, where the graph does not run in ``inference`` mode. ``captured`` are the same outputs as the capture of the graph saw them."""

    def __init__(
        self,
        tensors: list[Any],
        captured: list[Any],
        inputs: Inputs,
        results: Results,
        leaves: MadeLeaves,
        mutations: Sequence[Mutation],
        *,
        inference: bool,
    ) -> None:
        self.tensors, self.captured, self._in_inference_mode = tensors, captured, inference
        self.inputs, self.results, self.leaves = inputs, results, leaves
        self.inference: list[int] = []
        mutated = {m.input for m in mutations}
        self._mutated = mutated | {i for i, base in inputs.members.items() if base in mutated}
        self._input_of = {id(w): i for i, w in reversed(list(enumerate(inputs.wrappers))) if w is not None}
        self._input_in = {s[1]: i for i, s in reversed(list(enumerate(inputs.initial))) if s is not None}
        self._sharing = _by_storage(tensors)
        self._bases: dict[
            int, tuple[torch.Tensor, int]
        ] = {}  # by storage: the tensor that others are views of, and its result
        self._first: dict[int, int] = {}
        self.described = [self._described(k, t) for k, t in enumerate(tensors)]

    def _described(self, k: int, t: Any) -> Output:
        if not isinstance(t, torch.Tensor):
            return self._number(t)
        seen = self.captured[k]
        if isinstance(seen, torch.Tensor) and seen.dtype != t.dtype:
            raise Untraceable(f"its result {k} is {t.dtype} here, and {seen.dtype} in eager")
        first = self._first.setdefault(id(t), k)
        if first != k:
            return Output("same", first, requires_grad=t.requires_grad)
        storage = torch_private.storage_key(t)
        if t in self.leaves:
            return self._leaf(t, storage)
        if id(t) in self._input_of:
            return Output("input", self._input_of[id(t)], requires_grad=t.requires_grad)
        if storage in self._input_in:
            return self._view_of_input(t, self.captured[k], self._input_in[storage])
        if len(self._sharing[storage]) == 1 and not _is_no_grad_view(t) and not t.is_conj() and not t.is_neg():
            return self._alone(t, self.captured[k])
        return self._view_of_result(t, self.captured[k], storage)

    def _number(self, value: Any) -> Output:
        if torch_private.is_symbolic_number(value):
            extent = self.results.extent(value)
            if isinstance(extent, Result):
                return Output("result", extent.position)
            value = extent
        if callable(value):
            raise Untraceable("a function made by the graph is one of its outputs")
        return Output("constant", value=value)

    def _leaf(self, t: torch.Tensor, storage: int) -> Output:
        if storage in self._input_in:
            raise Untraceable("a new leaf shares memory with an input")
        position = self.leaves.position(t)
        self._bases.setdefault(storage, (t, position))
        return Output("result", position, requires_grad=True)

    def _view_of_input(self, t: torch.Tensor, captured: Any, found: int) -> Output:
        inputs = self.inputs
        i = inputs.owner(t, captured, found)
        view = self._view(t, inputs.wrappers[i])
        if t.requires_grad and overlaps(inputs.captured[i]):  # eager's gradient tells its elements apart
            raise Untraceable("an output is a view of an input whose elements share memory")
        if i in self._mutated:
            value = torch_private.from_functional(inputs.wrappers[i])
            if not same_shape(value, inputs.captured[i]):
                view = self._strides_of_input(view, captured, i)
        return Output("input", i, view, requires_grad=t.requires_grad)

    def _alone(self, t: torch.Tensor, captured: Any) -> Output:
        """A tensor that shares its memory with no other output."""
        node = self.results.recorder.node_of(torch_private.from_functional(t))
        position = self.results.add(node, t, owned=True, captured=captured)
        self._note_inference(captured, position)
        return Output("result", position, requires_grad=t.requires_grad)

    def _view_of_result(self, t: torch.Tensor, captured: Any, storage: int) -> Output:
        if storage not in self._bases:
            self._bases[storage] = self._add_base(_base_of(self._sharing[storage]))
        base, position = self._bases[storage]
        self._note_inference(captured, position)
        return Output("result", position, None if t is base else self._view(t, base), requires_grad=t.requires_grad)

    def _add_base(self, base: torch.Tensor) -> tuple[torch.Tensor, int]:
        if base in self.leaves:
            return base, self.leaves.position(base)
        node = self.results.recorder.node_of(torch_private.from_functional(base))
        like = next((c for o, c in zip(self.tensors, self.captured, strict=True) if o is base), None)
        return base, self.results.add(node, base, owned=True, captured=like)

    def _note_inference(self, captured: Any, position: int) -> None:
        made = isinstance(captured, torch.Tensor) and captured.is_inference() and not self._in_inference_mode
        if made and position not in self.inference:
            self.inference.append(position)

    def _strides_of_input(self, view: View, captured: Any, i: int) -> View:
        """``view`` in the memory of the i-th input, which is written with a value of other strides than its own."""
        base = self.inputs.captured[i]
        plain = isinstance(captured, torch.Tensor) and captured.dtype == base.dtype
        if not plain or torch_private.storage_key(captured) != torch_private.storage_key(base):
            raise Untraceable("an output is a view of an input that is overwritten with other strides")
        return dataclasses.replace(
            view,
            stride=tuple(self.results.extent(s) for s in captured.stride()),
            offset=self.results.extent(captured.storage_offset() - base.storage_offset()),
        )

    def _view(self, t: torch.Tensor, base: torch.Tensor) -> View:
        extent, reinterpret = self.results.extent, ""
        start: Any = base.storage_offset()
        if t.dtype != base.dtype:
            if base.dtype.is_complex and not t.dtype.is_complex:
                reinterpret, start = "view_as_real", start * 2
            elif t.dtype.is_complex and not base.dtype.is_complex:
                reinterpret, start = "view_as_complex", start // 2
            else:
                reinterpret = f"view:{str(t.dtype).removeprefix('torch.')}"
                start = start * base.dtype.itemsize // t.dtype.itemsize
        link: Link = "view"
        if torch_private.tensor_base(t) is None:
            link = "detach"
        elif base.requires_grad and not t.requires_grad:
            link = "detached"
        elif base.requires_grad and _history(t) is None:
            link = "no_grad"
        elif torch_private.is_one_of_several_views(t):
            link = "multiple"
        return View(
            tuple(extent(s) for s in t.shape),
            tuple(extent(s) for s in t.stride()),
            extent(t.storage_offset() - start),
            link,
            reinterpret,
            conjugate=t.is_conj() != base.is_conj() and not reinterpret,
            negate=t.is_neg() != base.is_neg(),
        )


def _by_storage(outputs: list[Any]) -> dict[int, list[torch.Tensor]]:
    """The tensors among outputs that share memory, each once."""
    groups: dict[int, list[torch.Tensor]] = {}
    for t in {id(t): t for t in outputs if isinstance(t, torch.Tensor)}.values():
        groups.setdefault(torch_private.storage_key(t), []).append(t)
    return groups


def _base_of(group: list[torch.Tensor]) -> torch.Tensor:
    """The tensor that all outputs of a ``group`` sharing memory are views of."""
    candidates: list[torch.Tensor] = []
    for t in group:
        base = torch_private.tensor_base(t)
        base = t if base is None else base
        if not any(base is c for c in candidates):
            candidates.append(base)
    candidates.sort(key=lambda c: not c.requires_grad)
    first, *others = candidates
    if any(c.requires_grad for c in others) or (others and not all(holds(first, t) for t in [*group, *others])):
        raise Untraceable("outputs share memory in a way that cannot be rebuilt (parts of one detached tensor)")
    return first


def _is_no_grad_view(t: torch.Tensor) -> bool:
    """Made under no_grad of a tensor that requires grad: claims to require grad, but has no history of its own."""
    return t.requires_grad and torch_private.tensor_base(t) is not None and _history(t) is None


def _history(t: torch.Tensor) -> Any:
    """``t.grad_fn``, which a view that was made and written to under no_grad does not tell, here as in eager."""
    try:
        return t.grad_fn
    except RuntimeError as e:
        raise Untraceable(
            "a view made under no_grad outlives a write to its memory, after which eager refuses it"
        ) from e


def _is_leaf(t: torch.Tensor) -> bool:
    """Whether ``t`` is a leaf and no view, as those made under no_grad seem to be."""
    return torch_private.tensor_base(t) is None and t.is_leaf
