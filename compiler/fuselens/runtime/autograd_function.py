"""Running a compiled graph as one node of autograd, with what eager would have done to inputs and outputs.

:func:`build` turns compiled forward and backward callables and the graph's signature into a function of the graph's
inputs. The compiled callables are functional; here are the things that are not: writing to mutated inputs, returning
inputs or views of them, views of one another, gradients that nobody asked for, and second derivatives.

Contracts of the callables:

- ``forward(inputs) -> results + extra saved values``, tuples. It runs with grad mode off. Results are fresh tensors
  with the sizes and strides that were traced.
- ``backward(saved + tangents) -> gradients``, the operands in a list which it may empty, so that they die when they have
  been read. Tangents come with the traced dtype, sizes and strides; undefined ones as zeros. It is built by
  ``compile_backward()`` at the first backward unless given as ``backward``.
- ``eager(inputs) -> outputs``: the captured graph, for second derivatives.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fuselens import torch_private

from . import memory
from .epilogue import as_leaf, with_epilogue
from .second_derivatives import Replay, random_state

if TYPE_CHECKING:
    from fuselens.autograd.partition import SavedValue
    from fuselens.ir.contracts.signature import Base, Leaf, Signature

Values = tuple[Any, ...]
Compiled = Callable[[Any], Sequence[Any]]  # of a tuple; of a list, which it may empty
About = tuple[Callable[[], str], Callable[[], str]]
Expects = Callable[[Sequence[torch.Tensor]], Callable[[Values], bool]]
"""results -> (tangents -> whether they are laid out as those, in an ordinary backward)."""


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
    expects: Expects | None = None,
    as_written: Callable[[Values], Values] | None = None,
    on_failure: Callable[[Exception, bool], None] | None = None,
    about: About = (str, str),
) -> Callable[[Values], Values]:
    """``inputs -> outputs`` with eager's effects. ``saved`` comes from the partition; without tangents it is unused.

    ``written`` are inputs that ``forward`` writes by itself: it gives None for their new values.
    ``on_double_backward`` is called each time second derivatives are recomputed eagerly (FL302). Without ``eager``,
    asking for them raises RuntimeError. ``expects`` makes the fast test of tangents from the results that they belong
    to. ``as_written``, by default ``eager``, runs while the program watches what autograd saves. ``on_failure`` is told why
    a graph that writes to inputs failed where ``eager`` did not, and whether it had written, so that its error is raised.
    ``about`` say what forward and backward hold where memory runs out.
    """
    bases = signature.sharing.bases
    if bases:
        count = signature.inputs - len(bases)
        eager, as_written = (None if run is None else _of_first(run, count) for run in (eager, as_written))  # type: ignore[assignment]
    if signature.autocast:
        forward = _without_autocast(forward, signature.autocast)
    if signature.training:
        if backward is None and compile_backward is None:
            raise ValueError("a graph with gradients needs backward or compile_backward")
        run = _differentiable(
            signature, forward, written, saved, _Lazy(backward, compile_backward), eager, on_double_backward,
            expects or _expects_in_python, about,
        )  # fmt: skip
    elif signature.detached:
        run = _without_grad(_owning(forward, signature, written))
    else:
        run = _owning(forward, signature, written)
    run = run if signature.plain else with_epilogue(run, signature, written, eager, on_failure)
    if signature.enables_grad:
        run = torch.enable_grad()(run)
    as_written = as_written or eager  # type: ignore[assignment]
    if as_written is not None and signature.training:
        run = _unless_watched(run, as_written)
    return _with_bases(run, bases) if bases else run


def _of_first(run: Callable[[Values], Sequence[Any]], count: int) -> Callable[[Values], Sequence[Any]]:
    """``run`` for more inputs than it knows, which follow its own."""
    return lambda inputs: run(inputs[:count])


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


def _unless_watched(
    run: Callable[[Values], Values], as_written: Callable[[Values], Values]
) -> Callable[[Values], Values]:
    """A compiled graph saves other tensors than the program's operators, in one node that knows none of their lines."""
    hooks, anomaly, watched = torch_private.SAVED_TENSORS_HOOKS, torch.is_anomaly_enabled, torch_private.saving_watched

    def either(inputs: Values) -> Values:
        if (hooks(False) is not None or anomaly()) and watched():  # builtins first, in each call
            return as_written(inputs)
        return run(inputs)

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
    expects: Expects,
    about: About,
) -> Callable[[Values], Values]:
    """One ``torch.autograd.Function`` for the graph; its methods are written out at the first call.

    Under saved-tensor hooks (torch's own: those of a checkpoint) all inputs are saved where the hooks see them.
    """
    replay = None if eager is None else Replay(signature, eager, on_double_backward)
    if signature.leaves:
        forward = _of_first(forward, signature.inputs)

    def node(inputs: Values, all_inputs: bool) -> Callable[..., Values]:
        made = _Node(signature, forward, written, saved, backward, replay, expects, about, inputs, all_inputs)
        return _without_links(torch_private.node_of(made), _unlinked_inputs(signature, inputs))

    apply: Callable[..., Values] | None = None
    apply_hooked: Callable[..., Values] | None = None
    hooks = torch_private.SAVED_TENSORS_HOOKS

    def run(inputs: Values) -> Values:
        nonlocal apply, apply_hooked
        if hooks(False) is not None:
            if apply_hooked is None:
                apply_hooked = node(inputs, True)
            return apply_hooked(*inputs)
        if apply is None:
            apply = node(inputs, False)
        return apply(*inputs)

    def run_with_leaves(inputs: Values) -> Values:
        leaves = [_unfilled(leaf) for leaf in signature.leaves]
        values = list(run((*inputs, *leaves)))
        for made, leaf in zip(signature.leaves, leaves, strict=True):
            leaf.data, values[made.result] = values[made.result], leaf
        return tuple(values)

    return run_with_leaves if signature.leaves else run


def _unlinked_inputs(signature: Signature, inputs: Values) -> list[int]:
    """Inputs that require gradients and get none, such as those that the graph detaches."""
    tensors = [(i, t) for i, t in enumerate(inputs[: signature.inputs]) if isinstance(t, torch.Tensor)]
    return [i for i, t in tensors if signature.gradients[i] is None and t.requires_grad]


def _without_links(apply: Callable[..., Values], unlinked: Sequence[int]) -> Callable[..., Values]:
    """Linked to such an input, the node would have a backward run what is behind it, and let go of what that saved."""
    if not unlinked:
        return apply

    def call(*inputs: Any) -> Values:
        given = list(inputs)
        for i in unlinked:
            given[i] = given[i].detach()
        return apply(*given)

    return call


def _unfilled(leaf: Leaf) -> torch.Tensor:
    """A leaf of the right size, so that the graph's node can be linked to it before its value is known."""
    assert leaf.size is not None
    value = torch.empty((), dtype=getattr(torch, leaf.dtype), device=leaf.device).expand(leaf.size)
    return as_leaf(value, leaf)


_SECOND_TIME = (  # torch's words
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if "
    "you need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)


@dataclass(frozen=True, slots=True)
class _Left:
    """What is left of a node after a backward from some of its results."""

    kept: Values
    versions: list[int]  # when they were saved
    done: int  # tangents (bits) that it has had


class _Node:
    """The ``forward`` and ``backward`` of one graph's autograd node, written out for its signature.

    ``inputs`` are an example: which are tensors is the same in each call.
    """

    def __init__(
        self,
        signature: Signature,
        compiled: Compiled,
        written: Sequence[int],
        saved: Sequence[SavedValue],
        compiled_backward: _Lazy,
        replay: Replay | None,
        expects: Expects,
        about: About,
        inputs: Values,
        all_inputs: bool,
    ) -> None:
        kinds = ["number" if not s.tensor else "input" if s.source == "input" else "value" for s in saved]
        if kinds != sorted(kinds, key=("input", "value", "number").index):
            raise ValueError("saved values must be inputs, then tensors, then numbers")
        self.signature = signature
        self.views = signature.views_but(written)
        absent = {m.result for m in signature.mutations if m.input in written}
        self.non_differentiable = [i for i in signature.non_differentiable if i not in absent]
        self.compiled_backward = compiled_backward
        self.replay = replay
        self.symbolic = any(t.size is None for t in signature.tangents)
        self.kept = [s.index for s, kind in zip(saved, kinds, strict=True) if kind == "input"]
        self.read = len(saved) - kinds.count("number")  # saved tensors that the backward reads
        rest = [] if replay is None else [i for i in range(signature.inputs) if i not in set(self.kept)]
        tensors = [i for i in rest if isinstance(inputs[i], torch.Tensor)]
        self.hidden = tensors if all_inputs else []  # inputs saved after these, for second derivatives alone
        self.rest = [i for i in rest if i not in self.hidden]
        self.readers = [s.tangents for s in saved[: self.read]] + [-1] * len(self.hidden)
        self.dtypes = [getattr(torch, t.dtype) for t in signature.tangents]
        self.layouts: list[Any] = [None if t.size is None else (t.size, t.stride) for t in signature.tangents]
        self.devices: list[torch.device] = []
        self.expects = expects
        self.space: dict[str, Any] = {
            "compiled": compiled, "lazy": compiled_backward, "unusual": self._unusual, "with_sparse": self._with_sparse,
            "first_call": self._first_call,
            "random_state": random_state, "unlinked": _unlinked, "dense_layout": _dense_layout,
            "keeps_graph": torch_private.keeps_graph, "release_saved": torch_private.RELEASE_SAVED, "usual": None,
            "picture": memory.picture, "about_forward": about[0], "about_backward": about[1],
        }  # fmt: skip
        tensor_versions = [i for i in self.rest if i in tensors and i not in signature.written]
        self.versioned = [self.rest.index(i) for i in tensor_versions]
        extra = [f"values[{s.index}]" for s, kind in zip(saved, kinds, strict=True) if kind == "value"]
        numbers = [
            f"{'inputs' if s.source == 'input' else 'values'}[{s.index}]"
            for s, kind in zip(saved, kinds, strict=True) if kind == "number"
        ]  # fmt: skip
        self._write_forward(extra, numbers, tensor_versions)
        self._write_backward(bool(numbers))
        self.forward, self.backward = self.space["forward"], self.space["backward"]

    @property
    def saves(self) -> bool:
        """Whether the node has saved tensors, or eager's nodes have."""
        return bool(self.readers or self.signature.saving)

    # --- written out

    def _write_forward(self, extra: list[str], numbers: list[str], versions: list[int]) -> None:
        signature = self.signature
        kept = [f"inputs[{i}]" for i in self.kept] + extra + [f"inputs[{i}]" for i in self.hidden]
        lines = ["ctx.set_materialize_grads(False)"]
        if signature.random and self.replay is not None:
            lines.append("ctx.random_state = random_state(inputs)")
        lines += _with_picture("values = compiled(inputs)", "forward")
        if self.views:
            lines.append(f"values = unlinked(values, {_tuple(map(str, self.views))})")
        if kept:
            lines.append(f"ctx.save_for_backward({', '.join(kept)})")
        if numbers:
            lines.append(f"ctx.numbers = {_tuple(numbers)}")
        if self.non_differentiable:
            lines.append(f"ctx.mark_non_differentiable({', '.join(f'values[{i}]' for i in self.non_differentiable)})")
        if self.rest:
            lines.append(f"ctx.rest = {_tuple(f'inputs[{i}]' for i in self.rest)}")
        if versions:
            lines.append(f"ctx.versions = {_tuple(f'inputs[{i}]._version' for i in versions)}")
        if self.symbolic:
            results = [t.result for t in signature.tangents]
            lines.append(f"ctx.layouts = {_tuple(f'dense_layout(values[{r}])' for r in results)}")
        lines += ["if usual is None:", "    first_call(values)"]
        lines.append(f"return tuple(values[:{signature.results}])")
        self._define("forward(ctx, *inputs)", lines)

    def _write_backward(self, has_numbers: bool) -> None:
        signature = self.signature
        given = _tuple(f"grads[{t.result}]" for t in signature.tangents)
        lines = [f"given = {given}", "if not usual(given):", "    return unusual(ctx, grads, given)"]
        read = "*ctx.saved_tensors"
        if self.hidden:
            read += f"[:{self.read}]"
        saves = self.saves
        operands = [read] if saves else []
        operands += ["*ctx.numbers"] if has_numbers else []
        lines.append(f"operands = [{', '.join([*operands, '*given'])}]")
        if saves:
            lines.append("release_saved(ctx)")
        if self.rest:
            lines += ["if not keeps_graph():", "    ctx.rest = None"]
        lines += _with_picture("found = (lazy.ready or lazy.get())(operands)", "backward")
        lines += ["found = with_sparse(found)"] if signature.sparse else []
        lines.append(f"return {_tuple(f'found[{g}]' if g is not None else 'None' for g in signature.gradients)}")
        self._define("backward(ctx, *grads)", lines)

    def _with_sparse(self, found: Sequence[Any]) -> Sequence[Any]:
        """``found``, with sparse gradients in the place of their values."""
        made = list(found)
        for sparse in self.signature.sparse:
            position = self.signature.gradients[sparse.gradient]
            assert position is not None
            made[position] = torch.sparse_coo_tensor(
                found[sparse.indices], found[position], sparse.size, check_invariants=False
            )
        return made

    def _define(self, head: str, lines: list[str]) -> None:
        body = "".join(f"    {line}\n" for line in lines)
        exec(compile(f"def {head}:\n{body}", __file__, "exec"), self.space)  # a file of the compiler: not captured

    def _first_call(self, values: Values) -> None:
        results = [values[t.result] for t in self.signature.tangents]
        self.devices = [r.device for r in results]
        self.space["usual"] = _never if self.symbolic else self.expects(results)

    # --- the other backwards

    def _unusual(self, ctx: Any, grads: Values, given: Values) -> Values:
        """Where tangents are missing, are laid out otherwise, or are no ordinary tensors, and for second derivatives."""
        signature = self.signature
        defined = sum(1 << k for k, g in enumerate(given) if g is not None)
        if not defined:
            return (None,) * len(signature.gradients)
        kept = self._saved(ctx, defined)
        lets_go = not torch_private.keeps_graph() and not self._keeps_for_others(ctx, kept, defined)
        create_graph = torch.is_grad_enabled()
        if create_graph or any(g is not None and torch_private.is_foreign(g) for g in given):
            with torch_private.without_torch_function():
                if create_graph or (self.replay is not None and signature.replayable and self._rest(ctx) is not None):
                    return self._replayed(ctx, kept, grads, create_graph)
        operands = [*kept[: self.read], *getattr(ctx, "numbers", ()), *self._tangents(ctx, given)]
        del kept
        torch_private.RELEASE_SAVED(ctx)
        if self.rest and lets_go:
            ctx.rest = None
        with torch_private.autocast_off():  # as usual around a backward; its operators' dtypes are decided
            found = (self.compiled_backward.ready or self.compiled_backward.get())(operands)
        return self._reached(defined, self._with_sparse(found) if signature.sparse else found)

    def _saved(self, ctx: Any, defined: int) -> Values:
        """The saved tensors, for a backward from the ``defined`` tangents (bits). Raises RuntimeError as eager does where one of its
        nodes on the way has run, or a tensor that it saved was written to."""
        if not self.saves:
            return ()
        left: _Left | None = getattr(ctx, "left", None)
        if left is None:
            return ctx.saved_tensors
        if any(bits & defined and bits & left.done for bits in self.signature.saving):
            raise RuntimeError(_SECOND_TIME)
        for tensor, version, bits in zip(left.kept, left.versions, self.readers, strict=True):
            if bits & defined and tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"{tensor.type()} {[*tensor.shape]} is at version {tensor._version}; expected version {version} instead"
                )
        return left.kept

    def _keeps_for_others(self, ctx: Any, kept: Values, defined: int) -> bool:
        """Whether the saved tensors are kept, as autograd lets go of them now. Eager's nodes let go of theirs one by one: a backward
        from other results, such as those of a generator beside the loss of a discriminator, may follow."""
        left: _Left | None = getattr(ctx, "left", None)
        done = defined if left is None else defined | left.done
        used = 0  # those that may not follow; one on whose way nothing was saved may, again and again
        for bits in self.signature.saving:
            used |= bits if bits & done else 0
        if used == (1 << len(self.signature.tangents)) - 1 or not self.saves:
            ctx.left = None
            return False
        ctx.left = _Left(kept, [t._version for t in kept] if left is None else left.versions, done)
        return True

    def _tangents(self, ctx: Any, given: Values) -> list[torch.Tensor]:
        """Tangents as the backward was built for them: zeros for those that are missing."""
        layouts = ctx.layouts if self.symbolic else self.layouts
        return [
            torch.empty_strided(*layout, dtype=dtype, device=device).zero_()
            if g is None
            else _laid_out(g, layout, dtype)
            for g, layout, dtype, device in zip(given, layouts, self.dtypes, self.devices, strict=True)
        ]

    def _reached(self, defined: int, found: Sequence[Any]) -> Values:
        """The gradient of each input that one of the tangents reaches which are there."""
        positions = zip(self.signature.gradients, self.signature.reached, strict=True)
        return tuple([None if g is None or not defined & reached else found[g] for g, reached in positions])

    def _rest(self, ctx: Any) -> Values | None:
        """The inputs that the backward does not read; None when an earlier backward has let go of them."""
        return ctx.rest if self.rest else ()

    def _replayed(self, ctx: Any, kept: Values, grads: Values, create_graph: bool) -> Values:
        """Gradients as functions of inputs and tangents, through the captured graph."""
        if self.replay is None:
            raise RuntimeError("second derivatives are not available: the captured graph was not kept")
        rest = self._rest(ctx)
        if rest is None:
            raise RuntimeError(_SECOND_TIME)
        if any(rest[k]._version != v for k, v in zip(self.versioned, getattr(ctx, "versions", ()), strict=True)):
            raise RuntimeError(
                "second derivatives: one of the graph's inputs has been modified by an inplace operation since"
            )
        inputs: list[Any] = [None] * self.signature.inputs
        for i, t in zip(
            (*self.rest, *self.kept, *self.hidden), (*rest, *kept[: len(self.kept)], *kept[self.read :]), strict=True
        ):
            inputs[i] = t
        return self.replay(inputs, grads, getattr(ctx, "random_state", None), create_graph)


def _with_picture(statement: str, phase: str) -> list[str]:
    """A statement; an out-of-memory error that it raises says what is held."""
    return ["try:", f"    {statement}", "except Exception as error:", f"    picture(error, about_{phase})", "    raise"]


def _tuple(items: Iterable[str]) -> str:
    return f"({''.join(f'{item}, ' for item in items)})"


def _never(given: Values) -> bool:
    return False


def _expects_in_python(results: Sequence[torch.Tensor]) -> Callable[[Values], bool]:
    """Whether tangents are laid out as the results are, and nothing else is special about the backward."""
    layouts = [(r.dtype, r.stride()) for r in results]

    def usual(given: Values) -> bool:
        if torch.is_grad_enabled() or torch_private.autocast_active():
            return False
        return not any(
            g is None or g.dtype != dtype or torch_private.is_foreign(g) or g.stride() != stride
            for g, (dtype, stride) in zip(given, layouts, strict=True)
        )

    return usual


def _unlinked(values: Values, views: Sequence[int]) -> Values:
    """Views made by the graph would refuse in-place writes by the caller: hand them out as tensors of their own."""
    changed = list(values)
    for i in views:
        changed[i] = values[i].detach()
    return tuple(changed)


def _dense_layout(value: torch.Tensor) -> tuple[Any, Any]:
    """The size and strides that the tangent of a result with symbolic sizes was traced with."""
    stride = value.stride() if value.is_contiguous() else torch.empty_like(value, device="meta").stride()
    return value.shape, stride


def _laid_out(g: torch.Tensor, layout: Any, dtype: torch.dtype) -> torch.Tensor:
    """``g`` with the strides that the compiled backward was built for; itself where it has them already."""
    size, stride = layout
    ordinary = g.layout is torch.strided and g.dtype == dtype and torch_private.is_ordinary(g)
    if ordinary and all(n == 1 or a == b for n, a, b in zip(size, g.stride(), stride, strict=True)):
        return g
    if g.layout is not torch.strided:
        g = g.to_dense()
    return torch.empty_strided(size, stride, dtype=dtype, device=g.device).copy_(g)
