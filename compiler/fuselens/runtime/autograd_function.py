"""Running a compiled graph as one node of autograd, with what eager would have done to inputs and outputs.

:func:`build` turns compiled forward and backward callables and the graph's signature into a function of the graph's
inputs. The compiled callables are functional; here are the things that are not: writing to mutated inputs, returning
inputs or views of them, views of one another, gradients that nobody asked for, and second derivatives.

Contracts of the callables:

- ``forward(inputs) -> results + extra saved values``, tuples. It runs with grad mode off. Results are fresh tensors
  with the sizes and strides that were traced.
- ``backward(saved + tangents) -> gradients``. Tangents come with the traced dtype, sizes and strides; undefined ones as
  zeros. It is built by ``compile_backward()`` at the first backward unless given as ``backward``.
- ``eager(inputs) -> outputs``: the captured graph, for second derivatives.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from fuselens import torch_private

if TYPE_CHECKING:
    from fuselens.autograd.partition import SavedValue
    from fuselens.autograd.signature import Base, Extent, Output, Signature, View

Values = tuple[Any, ...]
Compiled = Callable[[Values], Sequence[Any]]


def build(
    signature: Signature,
    forward: Compiled,
    *,
    written: Sequence[int] = (),
    saved: Sequence[SavedValue] = (),
    backward: Compiled | None = None,
    compile_backward: Callable[[], Compiled] | None = None,
    eager: Callable[[Values], Sequence[Any]] | None = None,
    on_double_backward: Callable[[], None] | None = None,
) -> Callable[[Values], Values]:
    """``inputs -> outputs`` with eager's effects. ``saved`` comes from the partition; without tangents it is unused.

    ``written`` are inputs that ``forward`` writes by itself: it gives None for their new values.
    ``on_double_backward`` is called each time second derivatives are recomputed eagerly (FL302). Without ``eager``,
    asking for them raises RuntimeError.
    """
    bases = signature.sharing.bases
    if eager is not None and bases:
        eager = _of_first(eager, signature.inputs - len(bases))
    if signature.autocast:
        forward = _without_autocast(forward, signature.autocast)
    if signature.training:
        if backward is None and compile_backward is None:
            raise ValueError("a graph with gradients needs backward or compile_backward")
        run = _differentiable(
            signature, forward, written, saved, _Lazy(backward, compile_backward), eager, on_double_backward
        )
    elif signature.detached:
        run = _without_grad(_owning(forward, signature, written))
    else:
        run = _owning(forward, signature, written)
    run = run if signature.plain else _with_epilogue(run, signature, written, eager)
    if signature.enables_grad:
        run = torch.enable_grad()(run)
    run = run if eager is None or not signature.training else _unless_hooked(run, eager)
    return _with_bases(run, bases) if bases else run


def _of_first(eager: Callable[[Values], Sequence[Any]], count: int) -> Callable[[Values], Sequence[Any]]:
    """The captured graph, which does not know the bases that follow its own inputs."""
    return lambda inputs: eager(inputs[:count])


def _with_bases(run: Callable[[Values], Values], bases: Sequence[Base]) -> Callable[[Values], Values]:
    makers = [(b.source, b.size, b.offsets[b.members.index(b.source)], b.viewed) for b in bases]

    def call(inputs: Values) -> Values:
        made: list[torch.Tensor] = []
        for source, size, offset, viewed in makers:
            given = inputs[source]
            if viewed:
                base = torch_private.tensor_base(given)
                made.append(given if base is None else base)
            else:
                made.append(given.detach().as_strided(size, (1,), given.storage_offset() - offset))
        return run((*inputs, *made))

    return call


def _unless_hooked(
    run: Callable[[Values], Values], eager: Callable[[Values], Sequence[Any]]
) -> Callable[[Values], Values]:
    """Eager inside ``saved_tensors_hooks``: a compiled graph saves other tensors than the program's operators."""
    hooked = torch_private.saved_tensors_hooked

    def either(inputs: Values) -> Values:
        return eager(inputs) if hooked() else run(inputs)  # type: ignore[return-value]

    return either


def _owning(forward: Compiled, signature: Signature, written: Sequence[int]) -> Callable[[Values], Values]:
    views = signature.views_but(written)
    if not views:
        return forward  # type: ignore[return-value]
    return lambda inputs: _unlinked(tuple(forward(inputs)), views)


def _without_grad(forward: Compiled) -> Callable[[Values], Values]:
    def run(inputs: Values) -> Values:
        with torch.no_grad():
            return tuple(forward(inputs))

    return run


def _without_autocast(run: Compiled, devices: Sequence[str]) -> Compiled:
    """The graph holds the casts that autocast made; ATen calls must not make others."""

    def plain(inputs: Values) -> Sequence[Any]:
        with contextlib.ExitStack() as stack:
            for device in devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            return run(inputs)

    return plain


class _Lazy:
    """The backward, compiled when first needed; two threads compile it once."""

    def __init__(self, ready: Compiled | None, compile_it: Callable[[], Compiled] | None) -> None:
        self.ready = ready
        self._compile = compile_it
        self._lock = threading.Lock()

    def get(self) -> Compiled:
        if self.ready is None:
            with self._lock:
                if self.ready is None:
                    assert self._compile is not None
                    self.ready = self._compile()
                    self._compile = None
        return self.ready


# --- the autograd node


def _differentiable(
    signature: Signature,
    forward: Compiled,
    written: Sequence[int],
    saved: Sequence[SavedValue],
    backward: _Lazy,
    eager: Callable[[Values], Sequence[Any]] | None,
    on_double_backward: Callable[[], None] | None,
) -> Callable[[Values], Values]:
    """One ``torch.autograd.Function`` for the graph; its positions are worked out here, once."""
    count = signature.results
    kinds = ["number" if not s.tensor else "input" if s.source == "input" else "value" for s in saved]
    if kinds != sorted(kinds, key=("input", "value", "number").index):
        raise ValueError("saved values must be inputs, then tensors, then numbers")
    saved_inputs = [s.index for s, kind in zip(saved, kinds, strict=True) if kind == "input"]
    pick_inputs = _picker(saved_inputs)
    pick_values = _picker([s.index for s, kind in zip(saved, kinds, strict=True) if kind == "value"])
    numbers = [s for s, kind in zip(saved, kinds, strict=True) if kind == "number"]
    tangents = signature.tangents
    pick_tangents = _picker([t.result for t in tangents])
    symbolic = any(t.size is None for t in tangents)
    none_position = max((g for g in signature.gradients if g is not None), default=-1) + 1
    pick_gradients = _picker([none_position if g is None else g for g in signature.gradients])
    absent = {m.result for m in signature.mutations if m.input in written}
    plain_results = [i for i in signature.non_differentiable if i not in absent]
    non_differentiable = _picker(plain_results)
    views = signature.views_but(written)
    has_non_differentiable = bool(plain_results)
    unsaved = [i for i in range(signature.inputs) if i not in set(saved_inputs)] if eager is not None else []
    random = signature.random and eager is not None
    dtypes = [getattr(torch, t.dtype) for t in tangents]
    layouts: list[Any] = [None if t.size is None else (t.size, t.stride) for t in tangents]
    nothing = (None,) * len(signature.gradients)
    devices: list[torch.device] = []

    class CompiledGraph(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Values:
            if random:
                ctx.random_state = _random_state(inputs)
            values = tuple(forward(inputs))
            if views:
                values = _unlinked(values, views)
            ctx.save_for_backward(*pick_inputs(inputs), *pick_values(values))
            ctx.numbers = (
                tuple([inputs[s.index] if s.source == "input" else values[s.index] for s in numbers]) if numbers else ()
            )
            ctx.set_materialize_grads(False)
            if has_non_differentiable:
                ctx.mark_non_differentiable(*non_differentiable(values))
            if unsaved:
                ctx.unsaved = tuple([inputs[i] for i in unsaved])
                ctx.versions = tuple([t._version if isinstance(t, torch.Tensor) else 0 for t in ctx.unsaved])
            if symbolic:
                ctx.layouts = [_dense_layout(values[t.result]) for t in tangents]
            if not devices:
                devices.extend(values[t.result].device for t in tangents)
            return values[:count] if len(values) != count else values

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            given = pick_tangents(grads)
            kept = ctx.saved_tensors
            if torch.is_grad_enabled():
                return _second_order(ctx, kept, grads)
            expected = ctx.layouts if symbolic else layouts
            ready = []
            missing = 0
            for g, layout, dtype, device in zip(given, expected, dtypes, devices, strict=True):
                if g is None:
                    missing += 1
                    g = torch.empty_strided(*layout, dtype=dtype, device=device).zero_()
                elif g.stride() != layout[1] or g.dtype != dtype or g.layout is not torch.strided or dtype.is_complex:
                    g = _laid_out(g, layout, dtype)
                ready.append(g)
            if missing == len(ready):
                return nothing
            found = backward.get()((*kept, *ctx.numbers, *ready))
            if unsaved and not torch_private.keeps_graph():
                ctx.unsaved = ()
            return pick_gradients((*found, None))

    def _second_order(ctx: Any, kept: Values, grads: Values) -> Values:
        """Gradients as differentiable functions of inputs and tangents, through the captured graph."""
        if eager is None:
            raise RuntimeError("second derivatives are not available: the captured graph was not kept")
        if not signature.replayable:
            raise RuntimeError(
                "second derivatives: the graph overwrote an input that its outputs depend on, so it cannot be run again"
            )
        rest, versions = (ctx.unsaved, ctx.versions) if unsaved else ((), ())
        if len(rest) != len(unsaved):
            raise RuntimeError(
                "Trying to backward through the graph a second time: specify retain_graph=True at the first backward"
            )
        if any(t._version != v for t, v in zip(rest, versions, strict=True) if isinstance(t, torch.Tensor)):
            raise RuntimeError(
                "second derivatives: one of the graph's inputs has been modified by an inplace operation since"
            )
        if on_double_backward is not None:
            on_double_backward()
        inputs: list[Any] = [None] * signature.inputs
        for i, t in zip(unsaved, rest, strict=True):
            inputs[i] = t
        for i, t in zip(saved_inputs, kept, strict=False):
            inputs[i] = t
        return _replay(signature, eager, inputs, grads, getattr(ctx, "random_state", None))

    apply = CompiledGraph.apply

    def run(inputs: Values) -> Values:
        return apply(*inputs)

    return run


def _unlinked(values: Values, views: Sequence[int]) -> Values:
    """Views made by the graph would refuse in-place writes by the caller: hand them out as tensors of their own."""
    changed = list(values)
    for i in views:
        changed[i] = values[i].detach()
    return tuple(changed)


def _picker(positions: list[int]) -> Callable[[Sequence[Any]], Values]:
    """``values -> tuple(values[p] for p in positions)`` without a Python loop."""
    if not positions:
        return lambda values: ()
    if len(positions) == 1:
        (only,) = positions
        return lambda values: (values[only],)
    return itemgetter(*positions)


def _dense_layout(value: torch.Tensor) -> tuple[Any, Any]:
    """The size and strides that the tangent of a result with symbolic sizes was traced with."""
    stride = value.stride() if value.is_contiguous() else torch.empty_like(value, device="meta").stride()
    return value.shape, stride


def _laid_out(g: torch.Tensor, layout: Any, dtype: torch.dtype) -> torch.Tensor:
    """``g`` with the strides that the compiled backward was built for; itself where it has them already."""
    size, stride = layout
    ordinary = g.layout is torch.strided and g.dtype == dtype and not g.is_conj() and not g.is_neg()
    if ordinary and all(n == 1 or a == b for n, a, b in zip(size, g.stride(), stride, strict=True)):
        return g
    if g.layout is not torch.strided:
        g = g.to_dense()
    return torch.empty_strided(size, stride, dtype=dtype, device=g.device).copy_(g)


# --- second derivatives


def _replay(
    signature: Signature,
    eager: Callable[[Values], Sequence[Any]],
    inputs: list[Any],
    grads: Values,
    random_state: Any,
) -> Values:
    with torch.enable_grad(), _random_restored(random_state):
        # Aliases, so that one input computed from another is not differentiated twice; copies where eager will write.
        written = {m.input for m in signature.mutations}
        first = dict(signature.duplicates)
        aliases: list[Any] = []
        for i, t in enumerate(inputs):
            if i in first:
                aliases.append(aliases[first[i]])
            elif not isinstance(t, torch.Tensor):
                aliases.append(t)
            elif i in written:
                aliases.append(t.clone())
            else:
                aliases.append(t.view_as(t) if t.requires_grad else t)
        outputs = eager(tuple(aliases))
        results, tangents = [], []
        for tangent in signature.tangents:
            g = grads[tangent.result]
            t = None if g is None else _result_of(signature, outputs, tangent.result)
            if t is not None and t.requires_grad:
                results.append(t)
                tangents.append(g)
        wanted = [i for i, g in enumerate(signature.gradients) if g is not None and aliases[i].requires_grad]
        found: list[Any] = [None] * len(signature.gradients)
        if results and wanted:
            computed = torch.autograd.grad(
                results, [aliases[i] for i in wanted], tangents, create_graph=True, allow_unused=True
            )
            for i, g in zip(wanted, computed, strict=True):
                found[i] = g
        return tuple(found)


def _result_of(signature: Signature, outputs: Sequence[Any], result: int) -> torch.Tensor | None:
    """The eager tensor that stands for ``result``: an output, or the base of outputs that are views of it."""
    based = None
    for o, t in zip(signature.outputs, outputs, strict=True):
        if o.kind == "result" and o.index == result:
            if o.view is None:
                return t
            if o.view.link == "view":
                based = torch_private.tensor_base(t)
    return based


def _random_state(inputs: Values) -> Any:
    devices = {t.device for t in inputs if isinstance(t, torch.Tensor) and t.device.type == "cuda"}
    return torch.get_rng_state(), {d: torch.cuda.get_rng_state(d) for d in devices}


@contextlib.contextmanager
def _random_restored(state: Any) -> Iterator[None]:
    """Inside, generators are as they were when the forward ran; afterwards as before."""
    if state is None:
        yield
        return
    cpu, cuda = state
    now = torch.get_rng_state(), {d: torch.cuda.get_rng_state(d) for d in cuda}
    torch.set_rng_state(cpu)
    for d, s in cuda.items():
        torch.cuda.set_rng_state(s, d)
    try:
        yield
    finally:
        torch.set_rng_state(now[0])
        for d, s in now[1].items():
            torch.cuda.set_rng_state(s, d)


# --- mutated inputs and aliased outputs


def _with_epilogue(
    run: Callable[[Values], Values],
    signature: Signature,
    written: Sequence[int],
    eager: Callable[[Values], Sequence[Any]] | None,
) -> Callable[[Values], Values]:
    hidden = [(m.input, m.result, m.writes > 0) for m in signature.mutations
              if not m.differentiable and m.input not in written]  # fmt: skip
    # what the graph wrote, and every write but the last of what is copied here
    counts = [(m.input, m.writes if m.input in written else m.writes - 1) for m in signature.mutations]
    pick_grown = _picker([i for i, count in counts for _ in range(count)])
    grows = any(count > 0 for _, count in counts)
    visible = [(m.input, m.result) for m in signature.mutations if m.differentiable]
    direct = [o.index if o.kind == "result" and o.view is None else None for o in signature.outputs]
    pick = _picker([i for i in direct if i is not None]) if None not in direct else None
    makers = [_output_maker(o) for o in signature.outputs] if pick is None else []

    def finish(inputs: Values) -> Values:
        try:
            values = run(inputs)
        except Exception:
            if eager is not None and signature.written:
                eager(inputs)  # raises the same after the writes that precede it
            raise
        if grows:
            torch.autograd.graph.increment_version(pick_grown(inputs))
        for reshape in signature.reshapes:
            with contextlib.nullcontext() if reshape.differentiable else torch.no_grad():
                inputs[reshape.input].as_strided_(*_geometry(inputs[reshape.input], reshape.view, values))
        if hidden:
            with torch.no_grad():
                for i, r, counted in hidden:
                    (inputs[i] if counted else inputs[i].data).copy_(values[r])
        for i, r in visible:
            inputs[i].copy_(values[r])
        if pick is not None:
            return pick(values)
        made: list[Any] = []
        for make in makers:
            made.append(make(inputs, values, made))
        return tuple(made)

    return finish


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
        base.storage_offset() + _integer(view.offset, values),
    )


def _integer(extent: Extent, values: Values) -> int:
    return extent if isinstance(extent, int) else values[extent.position]
