"""What a traced graph returns, as plain data: how graph results become the outputs that the caller sees.

The compiled graphs are functional: they read inputs and return new tensors. Everything else that a call does (writing
to inputs, returning an input, returning two views of one tensor) is described here and carried out by
``runtime/autograd_function.py``. Standard library only.

Words: an *input* is a placeholder of the captured graph; a *result* is a value returned by the forward graph (before
the saved values); an *output* is what the captured graph returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...record.report import Span


@dataclass(frozen=True, slots=True)
class Result:
    """The run-time integer at ``position`` among the results (a symbolic size)."""

    position: int


Extent = int | Result  # a size, stride or offset: known, or computed by the forward graph

# How a view hangs on its base: an ordinary differentiable view, one of several that one operator made (eager refuses
# in-place writes to those), one made under no_grad, one made by detach(), or a view of such a one.
Link = Literal["view", "multiple", "no_grad", "detach", "detached"]


@dataclass(frozen=True, slots=True)
class View:
    """``base.as_strided(size, stride, base.storage_offset() + offset)``; all in elements of the base's dtype.

    ``reinterpret`` names the change of dtype that precedes it: "" (none), "view_as_real" or "view_as_complex" or
    "view:DTYPE" (``base.view(torch.DTYPE)``; then sizes, strides and offset are in elements of the new dtype).
    ``conjugate``, ``negate``: the view is lazily conjugated or negated where its base is not, or the reverse.
    """

    size: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    offset: Extent
    link: Link = "view"
    reinterpret: str = ""
    conjugate: bool = False
    negate: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """One output of the captured graph.

    ``result``: results[index], or a view of it; ``input``: inputs[index] after mutation, or a view of it; ``same``: the
    very object that is output number index; ``constant``: ``value`` (None, a number, a string …).
    """

    kind: Literal["result", "input", "same", "constant"]
    index: int = -1
    view: View | None = None
    value: object = None
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Mutation:
    """inputs[input].copy_(results[result]). ``differentiable``: eager's in-place writes were visible to autograd.

    ``writes``: how many of them the input's version counts, which are not those through ``x.data``.
    """

    input: int
    result: int
    differentiable: bool = False
    writes: int = 1


@dataclass(frozen=True, slots=True)
class Reshape:
    """inputs[input] gets other sizes, strides and offset in place, as by ``t_()``; before anything is written to it.

    ``differentiable``: autograd saw it, so that the input's history changes. ``changes``: how many the version counts.
    """

    input: int
    view: View
    differentiable: bool = False
    changes: int = 1


@dataclass(frozen=True, slots=True)
class Leaf:
    """results[result] is a leaf that the graph makes, and that requires grad; of such a size where gradients flow into it."""

    result: int
    dtype: str
    device: str
    size: tuple[int, ...] | None
    is_parameter: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """An input that follows the graph's own: contiguous memory of which ``members`` are views, since they overlap.

    ``offsets``: where each of them begins in it, in elements. It is the tensor that inputs[source] is a view of, or that
    tensor itself (``viewed``); else a flat view of its memory, which autograd does not know.
    """

    members: tuple[int, ...]
    offsets: tuple[int, ...]
    size: tuple[int, ...]
    source: int
    viewed: bool = False
    requires_grad: bool = False
    is_leaf: bool = True


@dataclass(frozen=True, slots=True)
class Sharing:
    """How inputs share memory with those that the graph writes to.

    ``companions``: those in one storage, which may count their versions together.
    """

    bases: tuple[Base, ...] = ()
    companions: tuple[int, ...] = ()


NOTHING_SHARED = Sharing()


@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient that the backward graph expects for results[result]: its layout and dtype (a torch dtype's name).

    ``size`` and ``stride`` are None where symbolic: the run time takes them from the result itself.
    """

    result: int
    dtype: str
    size: tuple[int, ...] | None
    stride: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class SparseGradient:
    """gradients[gradient] in the layout COO: what the backward graph gives there are its values.

    ``indices`` is their position among the outputs of the backward graph, ``size`` that of the whole gradient.
    """

    gradient: int
    indices: int
    size: tuple[int, ...]


Source = Literal["input", "result", "extra"]


@dataclass(frozen=True, slots=True)
class SavedValue:
    """One value kept from forward to backward.

    ``source``: ``input`` (inputs[index]), ``result`` (a result that the caller gets as well) or ``extra`` (returned by
    the forward graph for this purpose; index counts all outputs of the forward graph). ``bytes`` are 0 for inputs. The
    gradients of ``tangents`` (bits) depend on it.
    """

    name: str
    bytes: int
    span: Span | None
    reason: str
    source: Source
    index: int
    tensor: bool = True
    tangents: int = -1


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs, results, outputs, mutations, tangents and gradients of one graph."""

    inputs: int  # the captured graph's, then the bases in `sharing`
    results: int  # number of forward results: outputs' values, new values of mutated inputs, symbolic sizes
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...] = ()
    reshapes: tuple[Reshape, ...] = ()
    sharing: Sharing = NOTHING_SHARED
    tangents: tuple[Tangent, ...] = ()  # in the order of the backward graph's placeholders
    # per input, then per leaf of a size: position among the backward graph's outputs
    gradients: tuple[int | None, ...] = ()
    sparse: tuple[SparseGradient, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    requires_grad: tuple[tuple[int, bool], ...] = ()  # inputs that the graph makes require grad, or not
    duplicates: tuple[tuple[int, int], ...] = ()  # (input, earlier input): the same tensor object
    non_differentiable: tuple[int, ...] = ()  # floating results without a tangent
    integers: tuple[int, ...] = ()  # results that are Python integers, not tensors
    views: tuple[int, ...] = ()  # results that the graph computes as views of values it does not return
    inference: tuple[int, ...] = ()  # results that eager would leave as inference tensors
    random: bool = False  # the graph draws random numbers
    detached: bool = False  # inputs require grad and grad mode is on, but no result does: run under no_grad
    enables_grad: bool = False  # the graph itself turns gradients on, which are off around it
    autocast: tuple[str, ...] = ()  # device types whose autocast surrounded the trace: its casts are in the graph
    reached: tuple[int, ...] = ()  # as `gradients`: which tangents (bits) lead to its gradient
    saving: tuple[
        int, ...
    ] = ()  # tangents (bits) that lead to one of eager's nodes with saved tensors, which cannot run twice
    replayable: bool = True  # outputs and gradients do not depend on the old value of an input that is overwritten

    def new_values(self) -> dict[int, int]:
        """For each input that is overwritten behind autograd's back, the result that is its new value."""
        reshaped = {r.input for r in self.reshapes}
        return {m.input: m.result for m in self.mutations if not m.differentiable and m.input not in reshaped}

    def views_but(self, written: Sequence[int]) -> tuple[int, ...]:
        """``views`` without the new values of inputs in ``written``."""
        absent = {m.result for m in self.mutations if m.input in written}
        return tuple(i for i in self.views if i not in absent)

    @property
    def training(self) -> bool:
        return bool(self.tangents)

    @property
    def written(self) -> tuple[int, ...]:
        """The inputs that are not what they were: of other data, sizes or strides."""
        return tuple(dict.fromkeys(m.input for m in (*self.mutations, *self.reshapes)))

    @property
    def not_saved(self) -> tuple[int, ...]:
        """The inputs that a backward may read as copies only: their version changes."""
        return tuple(dict.fromkeys((*self.written, *self.sharing.companions)))

    @property
    def plain(self) -> bool:
        """Outputs are exactly the results, in order: no epilogue is needed."""
        return (
            not self.written
            and not self.inference
            and not self.leaves
            and not self.requires_grad
            and len(self.outputs) == self.results
            and all(o.kind == "result" and o.index == i and o.view is None for i, o in enumerate(self.outputs))
        )
