"""The inputs of a tracing: placeholders of the joint graph, and the wrappers that the captured graph works on.

An input that requires grad is a leaf of the tracing, whatever it was before. Inputs that share memory are parts of a base, which
is an input of the joint graph after its own; what is written to one of them is then seen by the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

from ...ir.contracts.signature import Base, Sharing
from ..recorder import OperatorRecorder
from .layouts import reach
from .provenance import Provenance, copied_meta

State = tuple[Any, int, int]
"""What writes change of a tensor: its history, where its memory is, and how often it was written."""


@dataclass
class Inputs:
    """By position, bases after the graph's own inputs; None for numbers."""

    sharing: Sharing
    captured: list[Any]  # the graph's own as its capture left them
    fakes: list[Any]
    placeholders: list[fx.Node]
    leaves: list[Any]  # wrappers that gradients are taken of
    wrappers: list[Any]  # wrappers that the captured graph works on: a leaf, a clone of it, or a part of a base
    initial: list[State | None]  # of each wrapper before the graph ran
    duplicates: dict[int, int]  # inputs that are the same tensor as an earlier one
    members: dict[int, int]  # inputs that are parts of a base, and its position

    def owner(self, t: torch.Tensor, captured: Any, found: int) -> int:
        """The input that ``t`` is a view of, which shares memory with the input ``found``, if that is a part of a base."""
        if found not in self.members or not isinstance(captured, torch.Tensor):
            return found
        key = torch_private.storage_key(captured)
        members = [i for i in self.members if torch_private.storage_key(self.captured[i]) == key]
        first, last = reach(t)
        inside = (i for i in members if reach(self.wrappers[i])[0] <= first and last <= reach(self.wrappers[i])[1])
        return next(inside, members[0] if members else found)

    def is_hidden_base(self, i: int) -> bool:
        """Whether the i-th input is a base that autograd does not know."""
        base = i - len(self.captured)
        return base >= 0 and not self.sharing.bases[base].viewed

    def asked(self) -> tuple[tuple[int, bool], ...]:
        """The inputs, leaves before and after, for which ``requires_grad_()`` was called."""
        return tuple(
            (i, wrapper.requires_grad)
            for i, (fake, wrapper) in enumerate(zip(self.fakes, self.wrappers, strict=True))
            if isinstance(fake, torch.Tensor) and fake.is_leaf and i not in self.members and i not in self.duplicates
            and wrapper.is_leaf and wrapper.requires_grad != fake.requires_grad
        )  # fmt: skip


def make_inputs(
    gm: fx.GraphModule,
    fakes: Sequence[Any],
    recorder: OperatorRecorder,
    provenance: Provenance,
    sharing: Sharing,
    *,
    copies: bool,
) -> Inputs:
    """The inputs of ``gm``. With ``copies`` those that are no leaves are cloned: the graph may write to them."""
    nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
    if len(nodes) != len(fakes):
        raise ValueError(f"the graph has {len(nodes)} inputs, {len(fakes)} were given")
    return _Maker(nodes, fakes, recorder, provenance, sharing).make(copies)


class _Maker:
    def __init__(
        self,
        nodes: list[fx.Node],
        fakes: Sequence[Any],
        recorder: OperatorRecorder,
        provenance: Provenance,
        sharing: Sharing,
    ) -> None:
        self.nodes = nodes
        self.recorder = recorder
        self.provenance = provenance
        captured = [n.meta.get("val", fake) for n, fake in zip(nodes, fakes, strict=True)]
        members = {i: len(fakes) + k for k, base in enumerate(sharing.bases) for i in base.members}
        self.made = Inputs(sharing, captured, list(fakes), [], [], [], [], {}, members)

    def make(self, copies: bool) -> Inputs:
        made, bases = self.made, self.made.sharing.bases
        with torch_private.without_functionalization():
            made.fakes = self._ordinary(made.fakes)
            self._add_leaves()
            for k, base in enumerate(bases):
                made.fakes.append(fake := self._fake_base(base))
                made.placeholders.append(self.recorder.placeholder(f"base_{k}", fake))
                made.leaves.append(_leaf(fake))
        for i, (fake, leaf) in enumerate(zip(made.fakes, made.leaves, strict=True)):
            wrapper = self._writable(i, leaf) if copies and leaf is not None and not fake.is_leaf else leaf
            made.wrappers.append(wrapper)
            made.initial.append(None if wrapper is None else _state(wrapper))
        for k, base in enumerate(bases):
            for i, offset in zip(base.members, base.offsets, strict=True):
                wrapper = self._part(made.wrappers[len(self.nodes) + k], made.fakes[i], offset, self.nodes[i])
                made.wrappers[i], made.initial[i] = wrapper, _state(wrapper)
        return made

    def _ordinary(self, fakes: list[Any]) -> list[Any]:
        """The fakes, with ordinary ones for inference tensors: functionalization copies what functions made of views return of these,
        and what is written there is lost."""
        found: dict[int, Any] = {}
        for fake in fakes:
            inference = isinstance(fake, torch.Tensor) and fake.is_inference() and id(fake) not in found
            if inference and fake.layout is torch.strided and str(fake.storage_offset()) == "0":
                with self.recorder.pause():
                    found[id(fake)] = torch.empty_strided(
                        fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device
                    )
        return [found.get(id(fake), fake) for fake in fakes]

    def _add_leaves(self) -> None:
        """Placeholders and leaves of the graph's own inputs."""
        made = self.made
        seen: dict[int, int] = {}
        for i, (node, fake) in enumerate(zip(self.nodes, made.fakes, strict=True)):
            made.placeholders.append(
                self.recorder.placeholder(node.name, fake, **copied_meta(node), captured=node.name)
            )
            if not isinstance(fake, torch.Tensor):
                made.leaves.append(None)
            elif (first := seen.setdefault(id(fake), i)) != i:
                made.duplicates[i] = first
                made.leaves.append(made.leaves[first])
            else:
                made.leaves.append(_leaf(fake))

    def _fake_base(self, base: Base) -> torch.Tensor:
        member = self.made.fakes[base.members[0]]
        with self.recorder.pause():
            fake = torch.empty(base.size, dtype=member.dtype, device=member.device, requires_grad=base.requires_grad)
            if not base.is_leaf:
                with torch.enable_grad():
                    fake = fake.clone()
        return fake

    def _part(self, base: torch.Tensor, member: torch.Tensor, offset: int, node: fx.Node) -> torch.Tensor:
        """The part of a base that an input is."""
        meta = copied_meta(node)
        self.recorder.meta = meta | {"captured": node.name}
        with torch.enable_grad():
            flat = base.view(-1)
            part = _sliced(flat, offset, member)
            if part is None:  # functionalization refuses writes to views of it
                part = flat.as_strided(member.shape, member.stride(), offset)
        if part.grad_fn is not None:
            self.provenance.label_from([part.grad_fn], meta | {"backward": True, "forward_node": node.name})
        return part

    def _writable(self, i: int, leaf: torch.Tensor) -> torch.Tensor:
        """Eager may write to a non-leaf that requires grad; autograd refuses it on our leaf, so hand out a copy."""
        if i in self.made.duplicates:
            return self.made.wrappers[self.made.duplicates[i]]
        with self.recorder.clones_as_identity(), torch.enable_grad():
            return leaf.clone(memory_format=torch.preserve_format)


def _leaf(fake: torch.Tensor) -> torch.Tensor:
    """The wrapper of an input, which gradients are taken of where the input requires them."""
    wrapper = torch_private.to_functional(fake)
    return wrapper.requires_grad_() if fake.requires_grad else wrapper


def _state(wrapper: torch.Tensor) -> State:
    return wrapper.grad_fn, torch_private.storage_key(wrapper), torch_private.times_written(wrapper)


def _sliced(flat: torch.Tensor, offset: int, member: torch.Tensor) -> torch.Tensor | None:
    """The part of ``flat`` of ``member``'s sizes and strides that begins at ``offset``, made of slices and transposes."""
    if not member.numel() or member.is_contiguous():
        return flat[offset : offset + member.numel()].view(member.shape)
    order = sorted((d for d in range(member.ndim) if member.shape[d] > 1), key=lambda d: -member.stride(d))
    inner = [1 + sum((member.shape[d] - 1) * member.stride(d) for d in order[k + 1 :]) for k in range(len(order))]
    part = flat
    for d, rest in zip(order, inner, strict=True):
        n, step = member.shape[d], member.stride(d)
        if d == order[-1]:
            part = part[..., offset : offset + (n - 1) * step + 1 : max(step, 1)]
            break
        begin, offset = (offset - offset % step, offset % step) if step else (0, 0)
        if offset + rest > step or begin + n * step > part.shape[-1]:
            return None
        part = part[..., begin : begin + n * step].unflatten(-1, (n, step))
    part = part.permute([order.index(d) for d in sorted(order)])
    for d in range(member.ndim):
        part = part.unsqueeze(d) if member.shape[d] == 1 else part
    return part if part.shape == member.shape else None
