"""From a captured torch-level graph to one functional ATen graph of its forward and backward.

One pass over the captured graph does everything: its nodes are interpreted on functional wrappers of fake tensors, so
that autograd (above functionalization) sees exactly the program that eager runs, and the :class:`OperatorRecorder` (below both)
sees functional operators only. What the graph mutates and which outputs alias what is read off the wrappers when the
forward has run; then tangents are added as new inputs and ``torch.autograd.grad`` records the backward into the same
graph.

The parts are in ``tracing/``, in the order in which they run: ``inputs``, ``interpreter`` (the forward), ``outputs`` (what it left
behind, as ``results`` of the graph), ``backward``. ``provenance`` tells which captured node a recorded one derives from.

Invariants of the graph that comes out:

- every node has ``meta["val"]``; nodes made by a captured node carry its ``span`` (and ``stack`` if it had one) and its
  name as ``captured``, those of a checkpoint its name as ``region`` (``kept``: its policy saves them); backward nodes
  have ``backward=True`` and the captured node they derive from as ``forward_node``;
- no operator writes to an operand; operators that draw from torch's generators carry ``random=True`` and keep eager's
  order; ``fuselens.random`` computes its numbers from such a draw (its node says so in ``draws``), and is an operator like others;
- operators that return nothing but raise for some values, as after factorisations, carry ``check=True``;
- results never alias inputs or each other, have the sizes and strides of their ``meta["val"]``, and start at any
  offset; new values of mutated inputs may be an input itself; gradients may alias tangents and each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

from ..ir.collectives import communicates
from ..ir.contracts.signature import NOTHING_SHARED, Mutation, Sharing, Signature, Tangent
from .decompositions import Decompositions, table
from .recorder import OperatorRecorder
from .tracing.backward import Backward, autocast_devices, record_backward, requires_grad
from .tracing.captured_nodes import may_write, needs_python_rules, turns_grad_on
from .tracing.inputs import Inputs, make_inputs
from .tracing.interpreter import Interpreter
from .tracing.layouts import has_symbols
from .tracing.outputs import Changes, MadeLeaves, Outputs
from .tracing.provenance import Provenance
from .tracing.results import Results
from .tracing.views import storage_root


@dataclass
class Joint:
    """Forward and backward in one graph: placeholders are the inputs, then the tangents; the output is one flat tuple,
    the results, then the gradients (only those that exist)."""

    graph: fx.Graph
    root: torch.nn.Module  # holds the constants that get_attr nodes name
    signature: Signature
    inputs: list[fx.Node]
    tangents: list[fx.Node]
    results: list[Any]  # fx.Node, or a Python number
    gradients: list[fx.Node] = field(default_factory=list)

    @cached_property
    def module(self) -> fx.GraphModule:
        return torch_private.graph_module(self.root, self.graph)

    @property
    def training(self) -> bool:
        return bool(self.gradients)


def trace(
    gm: fx.GraphModule,
    fake_inputs: Sequence[Any],
    *,
    grad_enabled: bool,
    decompositions: Decompositions | None = None,
    sharing: Sharing = NOTHING_SHARED,
    counter_based: bool = False,
    device: str = "",
) -> Joint:
    """The joint graph of ``gm`` on ``fake_inputs`` (fake tensors of one mode, or Python/symbolic numbers).

    Without an input that requires grad, or where gradients are never on, there is no backward. ``sharing`` tells which
    inputs share memory with those that are written; the fakes do not. With ``counter_based``
    random operators become functions of a seed (``random_numbers``). ``device`` is the kind that the graph is for, if its
    tensors are not there. Raises Untraceable.
    """
    mode = next((m for m in map(torch_private.fake_mode_of, fake_inputs) if m is not None), None)
    if mode is None:
        mode = torch_private.fake_mode(next(filter(None, map(torch_private.shape_env_of, fake_inputs)), None))
    recorder = OperatorRecorder(table() if decompositions is None else decompositions, counter_based=counter_based)
    ambient = torch.is_inference_mode_enabled()
    with contextlib.ExitStack() as stack:
        # In inference mode functionalization copies what functions made of views return, and what is written there is lost.
        stack.enter_context(torch.inference_mode(False) if ambient else contextlib.nullcontext())
        stack.enter_context(torch.set_grad_enabled(grad_enabled))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(mode)
        if any(has_symbols(t) for t in fake_inputs) or needs_python_rules(gm):
            stack.enter_context(torch_private.python_rules())
        stack.enter_context(recorder)
        stack.enter_context(torch_private.functionalization())
        return _traced(gm, fake_inputs, recorder, mode, sharing, device, inference=ambient)


def _traced(
    gm: fx.GraphModule, fakes: Sequence[Any], recorder: OperatorRecorder, mode: Any, sharing: Sharing, device: str, *,
    inference: bool,
) -> Joint:  # fmt: skip
    """Inputs, forward, outputs and backward, one after the other under the modes that :func:`trace` has entered."""
    enables_grad = not torch.is_grad_enabled() and turns_grad_on(gm)
    asks = any(map(requires_grad, fakes)) or any(map(torch_private.makes_leaf, gm.graph.nodes))
    training = recorder.training = (torch.is_grad_enabled() or enables_grad) and asks
    writes = may_write(gm)
    provenance = Provenance(recorder)
    inputs = make_inputs(gm, fakes, recorder, provenance, sharing, copies=training and writes)
    interpreter = Interpreter(
        gm, inputs, recorder, provenance, mode, device, training=training, writes=writes, enables_grad=enables_grad
    )
    tensors = interpreter.run()
    results = Results(recorder)
    leaves = MadeLeaves(tensors, inputs, interpreter.parameters, results)
    changes = Changes(inputs, results, recorder, training=training)
    outputs = Outputs(tensors, _captured_outputs(gm), inputs, results, leaves, changes.mutations, inference=inference)
    differentiable = [i for i, t in results.wrappers.items() if training and t.requires_grad and _is_floating(t)]
    if differentiable:
        backward = record_backward(differentiable, results, inputs, leaves.tensors, provenance)
    else:
        backward = Backward(gradients=[None] * (len(inputs.fakes) + len(leaves.tensors)))
    _close(recorder.graph, inputs, results, backward)
    signature = Signature(
        inputs=len(inputs.fakes),
        results=len(results.nodes),
        outputs=tuple(outputs.described),
        mutations=tuple(changes.mutations),
        reshapes=tuple(changes.reshapes),
        sharing=sharing,
        tangents=tuple(_tangent(i, n) for i, n in zip(differentiable, backward.tangents, strict=True)),
        gradients=_positions(backward.gradients),
        sparse=backward.described_sparse(),
        duplicates=tuple(sorted(inputs.duplicates.items())),
        non_differentiable=_non_differentiable(results, set(differentiable)),
        integers=tuple(results.integers),
        views=tuple(i for i, n in results.tensors() if storage_root(n) is not n),
        inference=tuple(outputs.inference),
        leaves=leaves.described(flowing=bool(differentiable)),
        requires_grad=inputs.asked(),
        random=recorder.random,
        detached=training and not differentiable,
        enables_grad=training and enables_grad,
        autocast=autocast_devices(),
        reached=backward.reached,
        saving=backward.saving,
        replayable=not leaves.tensors and _is_replayable(inputs, results, changes, backward.present),
    )
    return Joint(
        recorder.graph,
        recorder.root,
        signature,
        inputs.placeholders,
        backward.tangents,
        results.nodes,
        backward.present,
    )


def _captured_outputs(gm: fx.GraphModule) -> list[Any]:
    """The values of the captured graph's outputs, as the fake tensors that its capture saw."""
    output = next(n for n in reversed(gm.graph.nodes) if n.op == "output").args[0]
    nodes = output if isinstance(output, (list, tuple)) else [output]
    return [n.meta.get("val") if isinstance(n, fx.Node) else n for n in nodes]


def _close(graph: fx.Graph, inputs: Inputs, results: Results, backward: Backward) -> None:
    """Ends the graph with what it returns, and drops what nothing uses."""
    graph.output((*results.nodes, *backward.present))
    if not backward.tangents:
        own = set(inputs.placeholders)
        for node in [n for n in graph.nodes if n.op == "placeholder" and n not in own and not n.users]:
            graph.erase_node(node)
    _drop_dead(graph)


def _drop_dead(graph: fx.Graph) -> None:
    """Remove nodes without users. Random operators stay: eager draws those numbers too; and those that only check, and those in
    which other ranks take part."""
    for node in reversed(list(graph.nodes)):
        kept = node.op in ("placeholder", "output") or node.meta.get("random") or node.meta.get("check")
        kept = kept or communicates(node.target)
        if not node.users and not kept:
            graph.erase_node(node)


# --- what the signature says


def _positions(gradients: Sequence[Any]) -> tuple[int | None, ...]:
    """For each gradient where it is among those that exist."""
    positions = iter(range(len(gradients)))
    return tuple(None if g is None else next(positions) for g in gradients)


def _non_differentiable(results: Results, differentiable: set[int]) -> tuple[int, ...]:
    return tuple(i for i, n in results.tensors() if i not in differentiable and _is_floating(n.meta["val"]))


def _tangent(result: int, node: fx.Node) -> Tangent:
    value = node.meta["val"]
    static = all(isinstance(s, int) for s in (*value.shape, *value.stride()))
    name = str(value.dtype).removeprefix("torch.")
    if not static:
        return Tangent(result, name, None, None)
    return Tangent(result, name, tuple(value.shape), tuple(value.stride()))


def _is_replayable(inputs: Inputs, results: Results, changes: Changes, gradients: list[fx.Node]) -> bool:
    """Whether no output or gradient reads the old value of an input that is overwritten."""
    mutations: list[Mutation] = changes.mutations
    if changes.reshapes or inputs.members or any(m.differentiable for m in mutations):
        return False
    written = {m.result for m in mutations}
    reached = [n for i, n in enumerate(results.nodes) if i not in written and isinstance(n, fx.Node)] + gradients
    targets = {inputs.placeholders[m.input] for m in mutations}
    seen: set[fx.Node] = set()
    while reached:
        node = reached.pop()
        if node in seen:
            continue
        seen.add(node)
        reached += node.all_input_nodes
    return not (seen & targets)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
