"""The backward of a traced graph, recorded behind its forward: tangents are new inputs, and autograd says what follows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

from ...ir.contracts.signature import SparseGradient
from ..recorder import SPARSE, OperatorRecorder
from ..untraceable import Untraceable, first_line
from .inputs import Inputs
from .layouts import fresh_like
from .provenance import Provenance, copied_meta
from .results import Results

aten = torch.ops.aten

_FREE_PHASE = (aten.linalg_eig.default, aten._linalg_eigh.default, aten._linalg_svd.default)


@dataclass(frozen=True)
class Backward:
    """``tangents``: a placeholder for each differentiable result. By input, made leaves after them: the node of the gradient, if
    there is one, and which tangents (bits) it depends on. ``saving``: which tangents go through autograd nodes that saved tensors.
    ``sparse``: for each gradient of which the node is that of its values only, by position: the node of its indices, and its size."""

    tangents: list[fx.Node] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    reached: tuple[int, ...] = ()
    saving: tuple[int, ...] = ()
    sparse: Mapping[int, tuple[fx.Node, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def present(self) -> list[fx.Node]:
        """What the backward returns: the gradients, then the indices of those that are sparse."""
        return [*(g for g in self.gradients if g is not None), *(indices for indices, _ in self.sparse.values())]

    def described_sparse(self) -> tuple[SparseGradient, ...]:
        first = len(self.present) - len(self.sparse)
        return tuple(SparseGradient(g, first + k, size) for k, (g, (_, size)) in enumerate(self.sparse.items()))


def record_backward(
    differentiable: Sequence[int],
    results: Results,
    inputs: Inputs,
    made: Sequence[torch.Tensor],
    provenance: Provenance,
) -> Backward:
    """The backward of the results ``differentiable``, to inputs and to leaves that the graph ``made``."""
    recorder = results.recorder
    roots = [results.wrappers[i] for i in differentiable]
    metas = [copied_meta(results.nodes[i]) | {"backward": True} for i in differentiable]
    for root, meta in zip(roots, metas, strict=True):  # views of what was written to have new autograd nodes
        provenance.label_from([root.grad_fn], meta)
    _refuse(recorder.graph)
    reached, saving = _reached(roots, [*inputs.leaves, *made])
    nodes, tangents = [], []
    with torch_private.without_functionalization():
        for j, (i, meta) in enumerate(zip(differentiable, metas, strict=True)):
            fake = fresh_like(recorder, results.nodes[i].meta["val"])
            nodes.append(recorder.placeholder(f"tangents_{j}", fake, **meta))
            tangents.append(torch_private.to_functional(fake))
    wanted = [i for i, t in enumerate(inputs.leaves) if requires_grad(t) and i not in inputs.duplicates]
    if not wanted and not made:
        raise Untraceable("its results require grad because of leaves that it makes and does not return")
    found = _differentiated(roots, [*(inputs.leaves[i] for i in wanted), *made], tangents, recorder)
    gradients: list[Any] = [None] * (len(inputs.fakes) + len(made))
    sparse: dict[int, tuple[fx.Node, tuple[int, ...]]] = {}
    for i, g in zip([*wanted, *range(len(inputs.fakes), len(gradients))], found, strict=True):
        if g is not None:
            gradients[i] = node = recorder.node_of(torch_private.from_functional(g))
            if node.meta["val"].layout is not torch.strided:
                gradients[i], indices, size = _parts(node)
                sparse[i] = indices, size
    if all(g is None for g in gradients):
        raise Untraceable("its results require grad, but their backward reaches none of its inputs")
    return Backward(nodes, gradients, reached, saving, sparse)


def _differentiated(
    roots: list[torch.Tensor], leaves: list[torch.Tensor], tangents: list[torch.Tensor], recorder: OperatorRecorder
) -> Sequence[torch.Tensor | None]:
    recorder.meta = {"backward": True}
    try:
        with contextlib.ExitStack() as stack:
            for device in autocast_devices():  # eager's backward runs outside of the user's autocast
                stack.enter_context(torch.autocast(device, enabled=False))
            return torch.autograd.grad(roots, leaves, tangents, allow_unused=True, materialize_grads=False)
    except Untraceable:
        raise
    except Exception as e:
        raise Untraceable(f"the backward raised {type(e).__name__}: {first_line(e)}", recorder.meta.get("span")) from e


def _parts(node: fx.Node) -> tuple[fx.Node, fx.Node, tuple[int, ...]]:
    """Values, indices and size of the sparse gradient that a node makes."""
    if node.target is not SPARSE:
        raise Untraceable(f"its backward makes a sparse gradient by {node.target}", node.meta.get("span"))
    _, _, size, indices, values = (*node.args,)
    assert isinstance(size, (list, tuple)) and isinstance(indices, fx.Node) and isinstance(values, fx.Node)
    if not all(isinstance(n, int) for n in size):
        raise Untraceable("a sparse gradient has a symbolic size", node.meta.get("span"))
    return values, indices, tuple(int(n) for n in size)  # type: ignore[arg-type]


def _refuse(graph: fx.Graph) -> None:
    """Complex eigenvectors have a free phase; eager's backward looks whether the loss depends on it, and raises.

    The vendor's recurrent layers give their backward what it needs while autograd records, and not without it.
    """
    for node in graph.nodes:
        if node.target in _FREE_PHASE and any(t.is_complex() for t in node.meta["val"]):
            raise Untraceable(f"the backward of {node.target} checks values", node.meta.get("span"))
        if node.target is aten.mkldnn_rnn_layer.default:
            raise Untraceable(f"{node.target} runs otherwise where autograd records", node.meta.get("span"))


def _reached(roots: list[torch.Tensor], leaves: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each leaf which roots (bits) lead to it in autograd's graph, and which lead to nodes that saved tensors: such bits."""
    bits: dict[Any, int] = {}
    sources: list[tuple[Any, int]] = [(torch_private.gradient_node(t), 1 << i) for i, t in enumerate(roots)]
    while sources:
        fn, reached = sources.pop()
        if fn is None or bits.get(fn, 0) | reached == bits.get(fn):
            continue
        bits[fn] = bits.get(fn, 0) | reached
        sources += [(g, bits[fn]) for g, _ in fn.next_functions]
    nodes = [torch_private.gradient_node(t) if requires_grad(t) else None for t in leaves]
    saving = {found for fn, found in bits.items() if torch_private.saves_tensors(fn)}
    return tuple(bits.get(fn, 0) for fn in nodes), tuple(sorted(saving))


def requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def autocast_devices() -> tuple[str, ...]:
    return tuple(d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d))
