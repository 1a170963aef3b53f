"""What eager leaves behind in inputs and outputs, done after a compiled graph, which is functional.

Inputs that it changes get their new values, sizes, versions and ``requires_grad``; outputs that are inputs, views of them or of one
another are made again. Which of these steps a graph needs is known from its signature: a call runs those alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fuselens import torch_private

from .memory import has_written
from .positions import picker

if TYPE_CHECKING:
    from fuselens.ir.contracts.signature import Extent, Leaf, Output, Signature, View

Values = tuple[Any, ...]
Run = Callable[[Values], Values]
Step = Callable[[Values, Values], Values]
"""(inputs, values) -> values: what is done to inputs, or what becomes of the results."""


def with_epilogue(
    run: Run,
    signature: Signature,
    written: Sequence[int],
    eager: Callable[[Values], Sequence[Any]] | None,
    on_failure: Callable[[Exception, bool], None] | None,
) -> Run:
    """``run``, then what its ``signature`` says besides. The arguments are those of ``autograd_function.build``."""
    steps = (*_changes_of_results(signature), *_effects(signature, written))
    outputs = _outputs(signature)
    asked = [i for i, wanted in signature.requires_grad if wanted]

    def finish(inputs: Values) -> Values:
        for i in asked:
            inputs[i].requires_grad_()
        try:
            values = run(inputs)
        except Exception as error:
            for i in asked:
                inputs[i].requires_grad_(False)
            if eager is None or not signature.written or isinstance(error, torch_private.StopRecomputation):
                raise
            wrote = has_written(error)
            found = () if wrote else tuple(eager(inputs))  # raises the same after the writes that precede it
            if on_failure is not None:
                on_failure(error, wrote)
            if wrote:
                raise
            return found
        for step in steps:
            values = step(inputs, values)
        return outputs(inputs, values)

    return finish


# --- steps


def _changes_of_results(signature: Signature) -> Iterator[Step]:
    """Results that are no ordinary tensors: inference tensors, and leaves."""
    inference = signature.inference
    unlinked = {leaf.result: leaf for leaf in signature.leaves if leaf.size is None}

    def as_inference(inputs: Values, values: Values) -> Values:
        return tuple([torch_private.as_inference_tensor(v) if i in inference else v for i, v in enumerate(values)])

    def as_leaves(inputs: Values, values: Values) -> Values:
        return tuple([as_leaf(v, unlinked[i]) if i in unlinked else v for i, v in enumerate(values)])

    if inference:
        yield as_inference
    if unlinked:
        yield as_leaves


def as_leaf(value: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    return torch.nn.Parameter(value) if leaf.is_parameter else value.detach().requires_grad_()


def _effects(signature: Signature, written: Sequence[int]) -> Iterator[Step]:
    """What a graph changes of its inputs that it does not write by itself, as those ``written`` are."""
    dropped = [i for i, wanted in signature.requires_grad if not wanted]
    # what the graph wrote, and every write but the last of what is copied here
    counts = [(m.input, m.writes if m.input in written else m.writes - 1) for m in signature.mutations]
    counts += [(r.input, r.changes - 1) for r in signature.reshapes]
    grown = [i for i, count in counts for _ in range(count)]
    pick_grown = picker(grown)
    hidden = [(m.input, m.result, m.writes > 0) for m in signature.mutations
              if not m.differentiable and m.input not in written]  # fmt: skip
    visible = [(m.input, m.result) for m in signature.mutations if m.differentiable]

    def drop_requires_grad(inputs: Values, values: Values) -> Values:
        for i in dropped:
            inputs[i].requires_grad_(False)
        return values

    def count_writes(inputs: Values, values: Values) -> Values:
        torch.autograd.graph.increment_version(pick_grown(inputs))
        return values

    def reshape(inputs: Values, values: Values) -> Values:
        for change in signature.reshapes:
            with contextlib.nullcontext() if change.differentiable else torch.no_grad():
                inputs[change.input].as_strided_(*_geometry(inputs[change.input], change.view, values))
        return values

    def write(inputs: Values, values: Values) -> Values:
        with torch.no_grad():
            for i, r, counted in hidden:
                (inputs[i] if counted else inputs[i].data).copy_(values[r])
        return values

    def write_differentiably(inputs: Values, values: Values) -> Values:
        for i, r in visible:
            inputs[i].copy_(values[r])
        return values

    if dropped:
        yield drop_requires_grad
    if grown:
        yield count_writes
    if signature.reshapes:
        yield reshape
    if hidden:
        yield write
    if visible:
        yield write_differentiably


# --- outputs


def _outputs(signature: Signature) -> Step:
    """``(inputs, values) -> outputs``."""
    direct = [o.index for o in signature.outputs if o.kind == "result" and o.view is None]
    if len(direct) == len(signature.outputs):
        pick = picker(direct)
        return lambda inputs, values: pick(values)
    makers = [_output_maker(o) for o in signature.outputs]

    def make(inputs: Values, values: Values) -> Values:
        made: list[Any] = []
        for maker in makers:
            made.append(maker(inputs, values, made))
        return tuple(made)

    return make


def _output_maker(output: Output) -> Callable[[Values, Values, list[Any]], Any]:
    """``(inputs, results, outputs so far) -> output``."""
    index, value, view = output.index, output.value, output.view
    if output.kind == "constant":
        return lambda inputs, values, made: value
    if output.kind == "same":
        return lambda inputs, values, made: made[index]
    if output.kind == "input":
        if view is None:
            return lambda inputs, values, made: inputs[index]
        return lambda inputs, values, made: _regenerated(inputs[index], view, values)
    if view is None:
        return lambda inputs, values, made: values[index]
    return lambda inputs, values, made: _regenerated(values[index], view, values)


def _regenerated(base: torch.Tensor, view: View, values: Values) -> torch.Tensor:
    """The view of ``base`` that eager would have returned; made outside of the autograd node, which would hide it."""
    if view.link == "no_grad":
        with torch.no_grad():
            return _strided(base, view, values)
    if view.link == "detach":
        return _strided(base.detach(), view, values).detach()
    if view.link == "detached":
        return _strided(base.detach(), view, values)
    made = _strided(base, view, values)
    return torch_private.mark_one_of_several_views(made) if view.link == "multiple" else made


def _strided(base: torch.Tensor, view: View, values: Values) -> torch.Tensor:
    if view.reinterpret and base.is_conj():
        base = base.conj()
    if view.reinterpret == "view_as_real":
        base = torch.view_as_real(base)
    elif view.reinterpret == "view_as_complex":
        base = torch.view_as_complex(base)
    elif view.reinterpret:
        base = base.view(getattr(torch, view.reinterpret.removeprefix("view:")))
    made = base.as_strided(*_geometry(base, view, values))
    if view.conjugate:
        made = made.conj()
    return torch_private.negated(made) if view.negate else made


def _geometry(base: torch.Tensor, view: View, values: Values) -> tuple[list[int], list[int], int]:
    return (
        [_integer(s, values) for s in view.size],
        [_integer(s, values) for s in view.stride],
        int(base.storage_offset()) + _integer(view.offset, values),
    )


def _integer(extent: Extent, values: Values) -> int:
    return extent if isinstance(extent, int) else values[extent.position]
