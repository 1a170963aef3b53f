"""From a captured torch-level graph to one functional ATen graph of its forward and backward.

One pass over the captured graph does everything: its nodes are interpreted on functional wrappers of fake tensors, so
that autograd (above functionalization) sees exactly the program that eager runs, and the :class:`Recorder` (below both)
sees functional operators only. What the graph mutates and which outputs alias what is read off the wrappers when the
forward has run; then tangents are added as new inputs and ``torch.autograd.grad`` records the backward into the same
graph.

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
import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from fuselens import torch_private
from fuselens.torch_private.result_layouts import is_dense

from ..ir.contracts.signature import (
    NOTHING_SHARED,
    Base,
    Extent,
    Leaf,
    Link,
    Mutation,
    Output,
    Reshape,
    Result,
    Sharing,
    Signature,
    Tangent,
    View,
)
from .attention import attended
from .decompositions import Decompositions, table
from .list_operators import on_tensors
from .random_numbers import is_functional_draw, is_plain
from .recorder import Recorder
from .unsupported import Unsupported

aten = torch.ops.aten

_FREE_PHASE = (aten.linalg_eig.default, aten._linalg_eigh.default, aten._linalg_svd.default)
_WHOLE: dict[Any, Any] = {F.one_hot: aten.one_hot.default}  # they refuse operands by their values
_CONTIGUOUS = ("contiguous", "reshape", "flatten", "ravel", torch.reshape, torch.flatten, torch.ravel)
_COPIED_META = ("span", "stack")


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
    tensors are not there. Raises Unsupported.
    """
    mode = next((m for m in map(torch_private.fake_mode_of, fake_inputs) if m is not None), None)
    if mode is None:
        mode = torch_private.fake_mode()
    recorder = Recorder(table() if decompositions is None else decompositions, counter_based=counter_based)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(grad_enabled))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(mode)
        if any(_has_symbols(t) for t in fake_inputs) or _needs_python_rules(gm):
            stack.enter_context(torch_private.python_rules())
        stack.enter_context(recorder)
        stack.enter_context(torch_private.functionalization())
        return _Trace(gm, fake_inputs, recorder, mode, sharing, device).run()


class _Trace:
    """The state of one tracing: wrappers of the inputs, provenance of autograd nodes, and the results so far."""

    def __init__(
        self,
        gm: fx.GraphModule,
        fake_inputs: Sequence[Any],
        recorder: Recorder,
        mode: Any,
        sharing: Sharing,
        device: str,
    ) -> None:
        self.sharing, self.device = sharing, device
        self.members = {i: len(fake_inputs) + k for k, base in enumerate(sharing.bases) for i in base.members}
        self.gm = gm
        self.recorder = recorder
        self.mode = mode
        self.fakes = list(fake_inputs)
        self.enables_grad = not torch.is_grad_enabled() and _turns_grad_on(gm)
        asks = any(_requires_grad(t) for t in fake_inputs) or any(map(torch_private.makes_leaf, gm.graph.nodes))
        self.training = (torch.is_grad_enabled() or self.enables_grad) and asks
        self.writes = _may_write(gm)
        recorder.training = self.training
        self.captured_inputs = [  # as the capture left them
            n.meta.get("val", fake)
            for n, fake in zip((n for n in gm.graph.nodes if n.op == "placeholder"), fake_inputs, strict=False)
        ]
        self.reshapes: list[Reshape] = []
        self.placeholders: list[fx.Node] = []
        self.duplicates: dict[int, int] = {}
        self.leaves: list[Any] = []  # wrappers that gradients are taken of
        self.wrappers: list[Any] = []  # wrappers that the captured graph works on; a leaf, or a clone of it
        self.initial: list[tuple[Any, int, int] | None] = []  # of each wrapper before the graph ran: see _state
        self.provenance: dict[Any, dict[str, Any]] = {}  # autograd node → meta of the backward operators it records
        self.results: list[Any] = []
        self.result_wrappers: dict[int, torch.Tensor] = {}
        self.inference: list[int] = []
        self.made: list[torch.Tensor] = []  # leaves that the graph makes and returns
        self.parameters: list[torch.Tensor] = []
        self.made_results: dict[int, int] = {}
        self.taken: set[fx.Node] = set()  # storage roots that a result owns
        self.integers: dict[int, Any] = {}
        self.reached: tuple[int, ...] = ()
        self.saves = False

    def run(self) -> Joint:
        self._make_inputs()
        outputs = self._interpret()
        known = {id(t) for t in (*self.leaves, *self.wrappers)}
        made = (t for t in outputs if _requires_grad(t) and _is_leaf(t) and id(t) not in known)
        self.made = list({id(t): t for t in made}.values())
        mutations = self._mutations()
        described = self._describe_outputs(outputs, {m.input for m in mutations})
        differentiable = [
            i for i, t in self.result_wrappers.items() if self.training and t.requires_grad and _is_floating(t)
        ]
        gradients: list[Any] = [None] * (len(self.fakes) + len(self.made))
        tangents: list[fx.Node] = []
        if differentiable:
            tangents, gradients = self._backward(differentiable)
            if all(g is None for g in gradients):
                raise Unsupported("its results require grad, but their backward reaches none of its inputs")
        return self._finish(described, mutations, differentiable, tangents, gradients)

    # --- inputs

    def _make_inputs(self) -> None:
        seen: dict[int, int] = {}
        writes = self.training and self.writes
        nodes = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        if len(nodes) != len(self.fakes):
            raise ValueError(f"the graph has {len(nodes)} inputs, {len(self.fakes)} were given")
        with torch_private.without_functionalization():
            for i, (node, fake) in enumerate(zip(nodes, self.fakes, strict=True)):
                meta = {k: node.meta[k] for k in _COPIED_META if k in node.meta} | {"captured": node.name}
                self.placeholders.append(self.recorder.placeholder(node.name, fake, **meta))
                if not isinstance(fake, torch.Tensor):
                    self.leaves.append(None)
                elif (first := seen.setdefault(id(fake), i)) != i:
                    self.duplicates[i] = first
                    self.leaves.append(self.leaves[first])
                else:
                    self.leaves.append(_leaf(fake))
            for k, base in enumerate(self.sharing.bases):
                self.fakes.append(fake := self._fake_base(base))
                self.placeholders.append(self.recorder.placeholder(f"base_{k}", fake))
                self.leaves.append(_leaf(fake))
        for i, (fake, leaf) in enumerate(zip(self.fakes, self.leaves, strict=True)):
            self.wrappers.append(self._writable(i, leaf) if writes and leaf is not None and not fake.is_leaf else leaf)
            wrapper = self.wrappers[i]
            self.initial.append(None if wrapper is None else _state(wrapper))
        for k, base in enumerate(self.sharing.bases):
            for i, offset in zip(base.members, base.offsets, strict=True):
                wrapper = self._part(self.wrappers[len(nodes) + k], self.fakes[i], offset, nodes[i])
                self.wrappers[i], self.initial[i] = wrapper, _state(wrapper)

    def _fake_base(self, base: Base) -> torch.Tensor:
        member = self.fakes[base.members[0]]
        with self.recorder.pause():
            fake = torch.empty(base.size, dtype=member.dtype, device=member.device, requires_grad=base.requires_grad)
            if not base.is_leaf:
                with torch.enable_grad():
                    fake = fake.clone()
        return fake

    def _part(self, base: torch.Tensor, member: torch.Tensor, offset: int, node: fx.Node) -> torch.Tensor:
        """The part of a base that an input is."""
        meta = {k: node.meta[k] for k in _COPIED_META if k in node.meta}
        self.recorder.meta = meta | {"captured": node.name}
        with torch.enable_grad():
            flat = base.view(-1)
            part = _sliced(flat, offset, member)
            if part is None:  # functionalization refuses writes to views of it
                part = flat.as_strided(member.shape, member.stride(), offset)
        if part.grad_fn is not None:
            self._label_from([part.grad_fn], meta | {"backward": True, "forward_node": node.name})
        return part

    def _writable(self, i: int, leaf: torch.Tensor) -> torch.Tensor:
        """Eager may write to a non-leaf that requires grad; autograd refuses it on our leaf, so hand out a copy."""
        if i in self.duplicates:
            return self.wrappers[self.duplicates[i]]
        with self.recorder.clones_as_identity(), torch.enable_grad():
            return leaf.clone(memory_format=torch.preserve_format)

    # --- forward

    def _interpret(self) -> list[Any]:
        env: dict[fx.Node, Any] = {}
        inputs = iter(self.wrappers)
        outputs: Any = ()
        for i, node in enumerate(self.gm.graph.nodes):
            meta = {k: node.meta[k] for k in _COPIED_META if k in node.meta}
            meta["captured"] = node.name
            if getattr(node.target, "recomputed", False):
                meta["region"] = node.name
            self.recorder.policy = getattr(node.target, "policy", None)
            self.recorder.draws_in_place = self.recorder.streams is None and not is_functional_draw(node.target)
            self.recorder.meta = meta
            if node.op == "placeholder":
                value = next(inputs)
                env[node] = self.fakes[i] if value is None else value
            elif node.op == "get_attr":
                env[node] = self._constant(node)
            elif node.op == "output":
                outputs = fx.map_arg(node.args[0], env.__getitem__)
            else:
                env[node] = self._call(node, env)
                if self.training:
                    self._label(env[node], node, env)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        return outputs

    def _call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        written = [t for t in args if isinstance(t, torch.Tensor)] if _writes(node) else []
        before = [t.stride() for t in written]
        if self.writes and self._places_in_gaps(node):
            raise Unsupported(
                "it views memory by strides that the new value of an input may not have", node.meta.get("span")
            )
        if written and _through_overlap(node):
            raise Unsupported(
                "it writes through a view whose elements share memory or lie apart", node.meta.get("span")
            )
        out: Any = kwargs.get("out")
        outs = out if isinstance(out, (tuple, list)) else [out]
        versions = {t: torch_private.times_written(t) for t in outs if isinstance(t, torch.Tensor)}
        if self.recorder.streams is None and torch_private.may_draw(node) and not all(map(is_plain, versions)):
            raise Unsupported("it draws eager's numbers into `out`, in the order of its memory", node.meta.get("span"))
        if self.recorder.draws_in_place and _draws_inside(node):
            raise Unsupported(
                "a function that it runs draws eager's numbers in the order of rows", node.meta.get("span")
            )
        value = self._called(node, args, kwargs)
        if any(t.numel() and torch_private.times_written(t) == version for t, version in versions.items()):
            raise Unsupported("it writes to `out` unseen by functionalization", node.meta.get("span"))
        for t, stride in zip(written, before, strict=True):
            self._keep_strides(t, stride)
        return (
            value.clone(memory_format=torch.contiguous_format)
            if self._shares_unlike_eager(node, value, args)
            else value
        )

    def _places_in_gaps(self, node: fx.Node) -> bool:
        """Whether a node is ``as_strided`` of an input with gaps, or with an offset: values written to it have none."""
        if getattr(node.target, "__name__", node.target) not in ("as_strided", "as_strided_"):
            return False
        key = torch_private.storage_key(node.args[0].meta["val"])  # type: ignore[union-attr]
        inputs = zip(self.captured_inputs, self.fakes, strict=False)  # these have the shapes from before the graph
        tensors = ((t, before) for t, before in inputs if isinstance(t, torch.Tensor))
        return any(
            torch_private.storage_key(t) == key and not (is_dense(before) and str(before.storage_offset()) == "0")
            for t, before in tensors
        )

    def _shares_unlike_eager(self, node: fx.Node, value: Any, args: Any) -> bool:
        """Whether what eager copies to make it contiguous was found so: values written to inputs with gaps have none."""
        if node.target not in _CONTIGUOUS or not isinstance(value, torch.Tensor):
            return False
        given: Any = node.args[0]
        keys = [torch_private.storage_key(t) for t in (node.meta["val"], given.meta["val"], value, args[0])]
        return keys[0] != keys[1] and keys[2] == keys[3]

    def _keep_strides(self, t: torch.Tensor, stride: tuple[Any, ...]) -> None:
        """Functionalization gives a written tensor the strides that the operator's functional form chooses."""
        if t.ndim != len(stride):
            return
        moved = any(n != 1 and str(a) != str(b) for n, a, b in zip(t.shape, t.stride(), stride, strict=True))
        if not moved or torch_private.has_metadata_mutation(t):
            return
        order = sorted(range(t.ndim), key=lambda d: -torch_private.size_hint(stride[d]))
        inverse = sorted(range(t.ndim), key=order.__getitem__)
        with torch_private.without_functionalization():
            value = torch_private.from_functional(t).permute(order)
            value = value.clone(memory_format=torch.contiguous_format).permute(inverse)
        torch_private.replace_value(t, value)

    def _called(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        try:
            if node.target in _WHOLE:
                return self._whole(_WHOLE[node.target], node, args, kwargs)
            if isinstance(node.target, torch_private.EnterContext) and node.target.is_inference:
                if self.enables_grad or _turns_grad_on(self.gm):
                    raise Unsupported("it enters inference mode, and turns gradients on")
                return node.target(torch.no_grad)  # what is made inside is an ordinary tensor here
            if node.target is torch_private.make_parameter:
                return self._make_parameter(*args)  # type: ignore[arg-type]
            if node.op == "call_function":
                if (each := on_tensors(node.target)) is not None:
                    return each(*args, **kwargs)
                if node.target is F.scaled_dot_product_attention:
                    own = attended(self.device, node.meta["val"], *args, **kwargs)
                    if own is not None:
                        return own
                if node.target is operator.setitem and (chosen := _chosen(*args)) is not None:
                    args[0].copy_(chosen)  # type: ignore[union-attr]
                    return None
                if node.target is F.interpolate:  # Python rules of the nearest in rows keep the layout, kernels do not
                    made = F.interpolate(*args, **kwargs)
                    return made.contiguous() if made.ndim == 3 else made
                made = node.target(*args, **kwargs)  # type: ignore[operator]
                if torch_private.writes_lists(node.target):
                    self._count_writes(args[0])  # type: ignore[arg-type]
                return made
            if node.target == "polygamma_":  # functionalization knows no other form of it
                return args[0].copy_(torch.polygamma(args[1], args[0]))  # type: ignore[arg-type, union-attr]
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        except Unsupported as e:
            raise Unsupported(e.reason, e.span or node.meta.get("span")) from e
        except Exception as e:
            what = f"`{node.target if isinstance(node.target, str) else getattr(node.target, '__name__', node.target)}`"
            raise Unsupported(f"{what} raised {type(e).__name__}: {_first_line(e)}", node.meta.get("span")) from e
        raise Unsupported(f"a node of kind {node.op}", node.meta.get("span"))

    def _whole(self, operator: Any, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """``one_hot`` as one node: its result is fresh, has no gradient and is as capture found it."""
        found = node.meta["val"]
        classes: Any = (*args[1:], kwargs.get("num_classes", -1))[0]
        with torch_private.without_functionalization():
            if classes > 0:  # what capture found may have changed its shape since
                with self.recorder.pause():
                    value = torch.empty((*args[0].shape, classes), dtype=found.dtype, device=found.device)
            else:
                value = _like(self.recorder, found)
            plain = [torch_private.from_functional(a) if isinstance(a, torch.Tensor) else a for a in args]
            self.recorder.add(operator, plain, kwargs, value)
            return torch_private.to_functional(value)

    def _count_writes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Functionalization does not count the writes of operators on lists, and reads what they write to once."""
        if len({id(t) for t in tensors}) < len(tensors):
            raise Unsupported("an operator on lists writes to one tensor twice")
        torch.autograd.graph.increment_version(tensors)

    def _make_parameter(self, data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        if not requires_grad:
            raise Unsupported("it makes a parameter that does not require grad")
        made = data.detach().requires_grad_()
        self.parameters.append(made)
        return made

    def _constant(self, node: fx.Node) -> Any:
        value = operator.attrgetter(str(node.target))(self.gm)
        if not isinstance(value, torch.Tensor):
            return value
        if value.requires_grad:
            raise Unsupported(f"the constant {node.target} requires grad", node.meta.get("span"))
        with torch_private.without_functionalization():
            fake = value
            if torch_private.fake_mode_of(value) is None:
                fake = torch_private.fake_static(self.mode, value)
            self.recorder.constant(value, fake)
            return torch_private.to_functional(fake)

    # --- provenance of backward operators

    def _label(self, value: Any, node: fx.Node, env: dict[fx.Node, Any]) -> None:
        """Autograd nodes that appeared with ``node`` stamp its span on the operators that they will run."""
        meta = {k: node.meta[k] for k in _COPIED_META if k in node.meta}
        meta |= {"backward": True, "forward_node": node.name}
        candidates = value if isinstance(value, (list, tuple)) else (value,)
        stack = [t.grad_fn for t in candidates if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        if value is None and node.args and isinstance(node.args[0], fx.Node):  # setitem and other pure writes
            written = env[node.args[0]]
            if isinstance(written, torch.Tensor) and written.grad_fn is not None:
                stack.append(written.grad_fn)
        self._label_from(stack, meta)

    def _label_from(self, stack: list[Any], meta: dict[str, Any]) -> None:
        while stack:
            fn = stack.pop()
            if fn in self.provenance:
                continue
            self.provenance[fn] = meta
            fn.register_prehook(self._stamp(meta))
            stack += [g for g, _ in fn.next_functions if g is not None and g not in self.provenance]

    def _stamp(self, meta: dict[str, Any]) -> Callable[[Any], None]:
        recorder = self.recorder

        def enter(_: Any) -> None:
            recorder.meta = meta

        return enter

    # --- what the forward did

    def _mutations(self) -> list[Mutation]:
        found: list[tuple[int, fx.Node, bool, int]] = []
        for i, (fake, wrapper) in enumerate(zip(self.fakes, self.wrappers, strict=True)):
            state = self.initial[i]
            if wrapper is None or state is None or i in self.duplicates:
                continue
            grad_fn, storage, version = state
            value = torch_private.from_functional(wrapper)
            if torch_private.storage_key(wrapper) != storage or value.dtype != fake.dtype:
                raise Unsupported("an input is given other storage or another dtype")
            node = self.recorder.node_of(value)
            if torch_private.has_metadata_mutation(wrapper):
                changes = 1 if i in self.members else torch_private.times_written(wrapper) - version
                self.reshapes.append(self._reshape(i, wrapper.grad_fn is not grad_fn, changes))
                if _storage_root(node) is self.placeholders[self.members.get(i, i)]:
                    continue
                if not _same_elements(self.captured_inputs[i], fake):
                    raise Unsupported("an input is written to, and only parts of it are left in its new shape")
                self.reshapes[-1] = dataclasses.replace(self.reshapes[-1], changes=1)
            reshaped = sum(i in (r.input, self.members.get(r.input)) for r in self.reshapes)
            count = torch_private.times_written(wrapper) - version - reshaped
            if (node is self.placeholders[i] and not count) or i in self.members:
                continue
            visible = self.training and wrapper.requires_grad and wrapper.grad_fn is not grad_fn
            if (
                visible
                and i >= len(self.captured_inputs)
                and not self.sharing.bases[i - len(self.captured_inputs)].viewed
            ):
                raise Unsupported(
                    "values that require grad are written to memory that inputs share unknown to autograd"
                )
            found.append((i, node, visible, max(count, 1) if visible else count))
        written = {self.placeholders[i] for i, *_ in found}
        mutations = []
        for i, node, visible, count in found:
            # The run time copies results to inputs one after the other: none may be an input that is overwritten. An
            # autograd node may not return one tensor at two positions.
            owned = self.training or _storage_root(node) in written
            position = self._add_result(node, self.wrappers[i] if visible else None, owned=owned)
            mutations.append(Mutation(i, position, visible, count))
        return mutations

    def _reshape(self, i: int, differentiable: bool, changes: int) -> Reshape:
        """The change of an input's shape in place, as the capture saw it: values written to it may have other strides."""
        before, after = self.fakes[i], self.captured_inputs[i]
        offset = after.storage_offset() - before.storage_offset()
        sizes, strides = (tuple(self._extent(e) for e in extents) for extents in (after.shape, after.stride()))
        return Reshape(i, View(sizes, strides, self._extent(offset)), differentiable, changes)

    def _describe_outputs(self, outputs: list[Any], mutated: set[int]) -> list[Output]:
        """How to rebuild each output from the results; adds the results that are needed."""
        described: list[Output] = []
        captured = self._captured_outputs()
        input_of = {id(w): i for i, w in reversed(list(enumerate(self.wrappers))) if w is not None}
        mutated |= {i for i, base in self.members.items() if base in mutated}
        input_storage = {s[1]: i for i, s in reversed(list(enumerate(self.initial))) if s is not None}
        groups: dict[int, list[torch.Tensor]] = {}
        for t in outputs:
            if isinstance(t, torch.Tensor) and not any(t is u for u in groups.get(torch_private.storage_key(t), [])):
                groups.setdefault(torch_private.storage_key(t), []).append(t)
        first: dict[int, int] = {}
        bases: dict[int, tuple[torch.Tensor, int]] = {}
        for k, t in enumerate(outputs):
            if not isinstance(t, torch.Tensor):
                described.append(self._describe_number(t))
                continue
            if first.setdefault(id(t), k) != k:
                described.append(Output("same", first[id(t)], requires_grad=t.requires_grad))
                continue
            storage = torch_private.storage_key(t)
            if any(t is m for m in self.made):
                if storage in input_storage:
                    raise Unsupported("a new leaf shares memory with an input")
                bases.setdefault(storage, (t, self._made_result(t)))
                described.append(Output("result", self._made_result(t), requires_grad=True))
            elif id(t) in input_of:
                described.append(Output("input", input_of[id(t)], requires_grad=t.requires_grad))
            elif storage in input_storage:
                i = self._owner(t, captured[k], input_storage[storage])
                view = self._view(t, self.wrappers[i])
                if t.requires_grad and _overlaps(self.captured_inputs[i]):  # eager's gradient tells its elements apart
                    raise Unsupported("an output is a view of an input whose elements share memory")
                if i in mutated and not _same_shape(
                    torch_private.from_functional(self.wrappers[i]), self.captured_inputs[i]
                ):
                    view = self._strides_of_input(view, captured[k], i)
                described.append(Output("input", i, view, requires_grad=t.requires_grad))
            elif len(groups[storage]) == 1 and not _is_no_grad_view(t) and not t.is_conj() and not t.is_neg():
                node = self.recorder.node_of(torch_private.from_functional(t))
                position = self._add_result(node, t, owned=True, captured=captured[k])
                self._note_inference(captured[k], position)
                described.append(Output("result", position, requires_grad=t.requires_grad))
            else:
                if storage not in bases:
                    base = _base_of(groups[storage])
                    node = self.recorder.node_of(torch_private.from_functional(base))
                    made = any(base is m for m in self.made)
                    like = next((c for o, c in zip(outputs, captured, strict=True) if o is base), None)
                    position = (
                        self._made_result(base) if made else self._add_result(node, base, owned=True, captured=like)
                    )
                    bases[storage] = base, position
                base, position = bases[storage]
                self._note_inference(captured[k], position)
                view_or_base = None if t is base else self._view(t, base)
                described.append(Output("result", position, view_or_base, requires_grad=t.requires_grad))
        return described

    def _captured_outputs(self) -> list[Any]:
        """The values of the captured graph's outputs, as the fake tensors that its capture saw."""
        output = next(n for n in reversed(self.gm.graph.nodes) if n.op == "output").args[0]
        nodes = output if isinstance(output, (list, tuple)) else [output]
        return [n.meta.get("val") if isinstance(n, fx.Node) else n for n in nodes]

    def _made_result(self, leaf: torch.Tensor) -> int:
        """The result that is the value of a leaf that the graph makes."""
        position = self.made_results.get(id(leaf))
        if position is None:
            node = self.recorder.node_of(torch_private.from_functional(leaf))
            position = self.made_results[id(leaf)] = self._add_result(node, None, owned=True)
        return position

    def _note_inference(self, captured: Any, position: int) -> None:
        made = isinstance(captured, torch.Tensor) and captured.is_inference() and not torch.is_inference_mode_enabled()
        if made and position not in self.inference:
            self.inference.append(position)

    def _owner(self, t: torch.Tensor, captured: Any, found: int) -> int:
        """The input that ``t`` is a view of, which shares memory with the input ``found``, if that is a part of a base."""
        if found not in self.members or not isinstance(captured, torch.Tensor):
            return found
        key = torch_private.storage_key(captured)
        members = [i for i in self.members if torch_private.storage_key(self.captured_inputs[i]) == key]
        first, last = _reach(t)
        inside = (i for i in members if _reach(self.wrappers[i])[0] <= first and last <= _reach(self.wrappers[i])[1])
        return next(inside, members[0] if members else found)

    def _strides_of_input(self, view: View, captured: Any, i: int) -> View:
        """``view`` in the memory of the i-th input, which is written with a value of other strides than its own."""
        base = self.captured_inputs[i]
        plain = isinstance(captured, torch.Tensor) and captured.dtype == base.dtype
        if not plain or torch_private.storage_key(captured) != torch_private.storage_key(base):
            raise Unsupported("an output is a view of an input that is overwritten with other strides")
        return dataclasses.replace(
            view,
            stride=tuple(self._extent(s) for s in captured.stride()),
            offset=self._extent(captured.storage_offset() - base.storage_offset()),
        )

    def _describe_number(self, value: Any) -> Output:
        if torch_private.is_symbolic_number(value):
            extent = self._extent(value)
            if isinstance(extent, Result):
                return Output("result", extent.position)
            value = extent
        if callable(value):
            raise Unsupported("a function made by the graph is one of its outputs")
        return Output("constant", value=value)

    def _extent(self, value: Any) -> Extent:
        """A size as a constant, or as a result that computes it."""
        if not torch_private.is_symbolic_number(value):
            return value
        node = self.recorder.number(value)
        if not isinstance(node, fx.Node):
            return node
        for position, known in self.integers.items():
            if known is node:
                return Result(position)
        self.results.append(node)
        self.integers[len(self.results) - 1] = node
        return Result(len(self.results) - 1)

    def _view(self, t: torch.Tensor, base: torch.Tensor) -> View:
        reinterpret = ""
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
            tuple(self._extent(s) for s in t.shape),
            tuple(self._extent(s) for s in t.stride()),
            self._extent(t.storage_offset() - start),
            link,
            reinterpret,
            conjugate=t.is_conj() != base.is_conj() and not reinterpret,
            negate=t.is_neg() != base.is_neg(),
        )

    def _add_result(
        self, node: fx.Node, wrapper: torch.Tensor | None, *, owned: bool = False, captured: Any = None
    ) -> int:
        """A new result. ``owned``: the caller keeps the tensor, so it must not share memory with anything else; it begins
        in its memory where the ``captured`` one does."""
        if owned:
            root = _storage_root(node)
            if root in self.taken or root.op in ("placeholder", "get_attr"):
                node = self._copied(node, _offset(captured))
            self.taken.add(_storage_root(node))
        self.results.append(node)
        if wrapper is not None:
            self.result_wrappers[len(self.results) - 1] = wrapper
        return len(self.results) - 1

    def _copied(self, node: fx.Node, offset: Any) -> fx.Node:
        """A copy of a value in memory of its own. Of one with gaps or repetitions, and of one that begins at another
        ``offset`` of its memory than the first, it is a view of the copy of what it is a view of."""
        chain: list[fx.Node] = []
        end = _offset(node.meta["val"])
        while node is not _storage_root(node):
            begin = _offset(node.meta["val"])
            far = begin is None or (offset is not None and str(end - begin) != str(offset))
            if not far and not _has_gaps(node.meta["val"]):
                break
            chain.append(node)
            node = node.args[0]  # type: ignore[assignment]
        copy = self._copied_memory(node) if _has_gaps(node.meta["val"]) else self._copied_value(node)
        env, moved = {node: copy}, _offset(node.meta["val"])
        for view in reversed(chain):
            env[view] = self._replayed(view, env[view.args[0]], moved)  # type: ignore[index]
        return env[chain[0]] if chain else copy

    def _replayed(self, view: fx.Node, base: fx.Node, moved: Any) -> fx.Node:
        """A view of ``base``, whose memory begins ``moved`` elements after that of what ``view`` is a view of."""
        rest = list(view.args[1:])
        if view.target is aten.as_strided.default and len(rest) > 2 and rest[2] is not None:
            begin: Any = rest[2].meta["val"] if isinstance(rest[2], fx.Node) else rest[2]
            rest[2] = self.recorder.argument(begin - moved)
        made = self.recorder.graph.call_function(view.target, (base, *rest), view.kwargs)  # type: ignore[arg-type]
        with torch_private.without_functionalization(), self.recorder.pause():
            args, kwargs = fx.map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
            made.meta.update(view.meta, val=view.target(*args, **kwargs))  # type: ignore[operator]
        return made

    def _copied_value(self, node: fx.Node) -> fx.Node:
        copy = self.recorder.graph.call_function(aten.clone.default, (node,))
        with torch_private.without_functionalization():
            copy.meta.update({**self.recorder.meta, **node.meta}, val=_like(self.recorder, node.meta["val"]))
        return copy

    def _copied_memory(self, node: fx.Node) -> fx.Node:
        """A value with gaps or repetitions in a copy of all the memory that it spans."""
        value = node.meta["val"]
        span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))

        def view(base: fx.Node, sizes: Any, strides: Any, offset: int) -> fx.Node:
            made = self.recorder.graph.call_function(
                aten.as_strided.default, (base, list(sizes), list(strides), offset)
            )
            with torch_private.without_functionalization(), self.recorder.pause():
                made.meta.update(node.meta, val=base.meta["val"].as_strided(sizes, strides, offset))
            return made

        flat = self._copied_value(view(node, (span,), (1,), value.storage_offset()))
        return view(flat, value.shape, value.stride(), 0)

    # --- backward

    def _backward(self, differentiable: list[int]) -> tuple[list[fx.Node], list[Any]]:
        """Tangent nodes, and per input the node of its gradient."""
        roots = [self.result_wrappers[i] for i in differentiable]
        for i, root in zip(differentiable, roots, strict=True):  # views of what was written to have new ones
            meta = {k: self.results[i].meta[k] for k in _COPIED_META if k in self.results[i].meta}
            self._label_from([] if root.grad_fn is None else [root.grad_fn], meta | {"backward": True})
        self._refuse_backwards()
        self._find_reached(roots)
        tangents, nodes = [], []
        with torch_private.without_functionalization():
            for j, i in enumerate(differentiable):
                fake = _like(self.recorder, self.results[i].meta["val"])
                meta = {k: self.results[i].meta[k] for k in _COPIED_META if k in self.results[i].meta}
                nodes.append(self.recorder.placeholder(f"tangents_{j}", fake, backward=True, **meta))
                tangents.append(torch_private.to_functional(fake))
        wanted = [i for i, t in enumerate(self.leaves) if _requires_grad(t) and i not in self.duplicates]
        if not wanted and not self.made:
            raise Unsupported("its results require grad because of leaves that it makes and does not return")
        self.recorder.meta = {"backward": True}
        try:
            with contextlib.ExitStack() as stack:
                for device in _autocast_devices():  # eager's backward runs outside of the user's autocast
                    stack.enter_context(torch.autocast(device, enabled=False))
                found = torch.autograd.grad(
                    roots,
                    [*(self.leaves[i] for i in wanted), *self.made],
                    tangents,
                    allow_unused=True,
                    materialize_grads=False,
                )
        except Unsupported:
            raise
        except Exception as e:
            meta = self.recorder.meta
            raise Unsupported(f"the backward raised {type(e).__name__}: {_first_line(e)}", meta.get("span")) from e
        gradients: list[Any] = [None] * (len(self.fakes) + len(self.made))
        for i, g in zip([*wanted, *range(len(self.fakes), len(gradients))], found, strict=True):
            if g is not None:
                gradients[i] = self.recorder.node_of(torch_private.from_functional(g))
        return nodes, gradients

    def _refuse_backwards(self) -> None:
        """Complex eigenvectors have a free phase; eager's backward looks whether the loss depends on it, and raises.

        The vendor's recurrent layers give their backward what it needs while autograd records, and not without it.
        """
        for node in self.recorder.graph.nodes:
            if node.target in _FREE_PHASE and any(t.is_complex() for t in node.meta["val"]):
                raise Unsupported(f"the backward of {node.target} checks values", node.meta.get("span"))
            if node.target is aten.mkldnn_rnn_layer.default:
                raise Unsupported(f"{node.target} runs otherwise where autograd records", node.meta.get("span"))

    def _find_reached(self, roots: list[torch.Tensor]) -> None:
        """For each input and made leaf which roots (bits) lead to it in autograd's graph, and whether nodes on the way read tensors."""
        bits: dict[Any, int] = {}
        sources: list[tuple[Any, int]] = [(torch_private.gradient_node(t), 1 << i) for i, t in enumerate(roots)]
        while sources:
            fn, reached = sources.pop()
            if fn is None or bits.get(fn, 0) | reached == bits.get(fn):
                continue
            bits[fn] = bits.get(fn, 0) | reached
            self.saves = self.saves or torch_private.saves_tensors(fn)
            sources += [(g, bits[fn]) for g, _ in fn.next_functions]
        nodes = [torch_private.gradient_node(t) if _requires_grad(t) else None for t in (*self.leaves, *self.made)]
        self.reached = tuple(bits.get(fn, 0) for fn in nodes)

    # --- the graph

    def _finish(
        self,
        outputs: list[Output],
        mutations: list[Mutation],
        differentiable: list[int],
        tangents: list[fx.Node],
        gradients: list[Any],
    ) -> Joint:
        graph = self.recorder.graph
        present = [g for g in gradients if g is not None]
        positions = iter(range(len(present)))
        graph.output(tuple(self.results) + tuple(present))
        if not differentiable:
            for t in [n for n in graph.nodes if n.op == "placeholder" and n not in set(self.placeholders)]:
                if not t.users:
                    graph.erase_node(t)
        _drop_dead(graph)
        tangent_specs = tuple(self._tangent(i, n) for i, n in zip(differentiable, tangents, strict=True))
        wanted = set(differentiable)
        signature = Signature(
            inputs=len(self.fakes),
            results=len(self.results),
            outputs=tuple(outputs),
            mutations=tuple(mutations),
            reshapes=tuple(self.reshapes),
            sharing=self.sharing,
            tangents=tangent_specs,
            gradients=tuple(None if g is None else next(positions) for g in gradients),
            duplicates=tuple(sorted(self.duplicates.items())),
            non_differentiable=tuple(
                i
                for i, n in enumerate(self.results)
                if i not in wanted and i not in self.integers and _is_floating(n.meta["val"])
            ),
            integers=tuple(self.integers),
            views=tuple(i for i, n in enumerate(self.results) if i not in self.integers and _storage_root(n) is not n),
            inference=tuple(self.inference),
            leaves=self._made_leaves(flowing=bool(differentiable)),
            requires_grad=self._asked(),
            random=self.recorder.random,
            detached=self.training and not differentiable,
            enables_grad=self.training and self.enables_grad,
            autocast=_autocast_devices(),
            reached=self.reached,
            saves=self.saves,
            replayable=self._replayable(mutations, present),
        )
        return Joint(graph, self.recorder.root, signature, self.placeholders, tangents, self.results, present)

    def _made_leaves(self, *, flowing: bool) -> tuple[Leaf, ...]:
        leaves = []
        for t in self.made:
            position = self.made_results[id(t)]
            value = self.results[position].meta["val"]
            if flowing and _has_symbols(value):
                raise Unsupported("a new leaf has symbolic sizes")
            size = tuple(value.shape) if flowing else None
            is_parameter = any(t is p for p in self.parameters)
            dtype = str(value.dtype).removeprefix("torch.")
            leaves.append(Leaf(position, dtype, str(value.device), size, is_parameter))
        return tuple(leaves)

    def _asked(self) -> tuple[tuple[int, bool], ...]:
        """The inputs, leaves before and after, for which ``requires_grad_()`` was called."""
        return tuple(
            (i, wrapper.requires_grad)
            for i, (fake, wrapper) in enumerate(zip(self.fakes, self.wrappers, strict=True))
            if isinstance(fake, torch.Tensor) and fake.is_leaf and i not in self.members and i not in self.duplicates
            and wrapper.is_leaf and wrapper.requires_grad != fake.requires_grad
        )  # fmt: skip

    def _tangent(self, result: int, node: fx.Node) -> Tangent:
        value = node.meta["val"]
        static = all(isinstance(s, int) for s in (*value.shape, *value.stride()))
        name = str(value.dtype).removeprefix("torch.")
        if not static:
            return Tangent(result, name, None, None)
        return Tangent(result, name, tuple(value.shape), tuple(value.stride()))

    def _replayable(self, mutations: list[Mutation], gradients: list[fx.Node]) -> bool:
        """Whether no output or gradient reads the old value of an input that is overwritten."""
        if self.reshapes or self.members or self.made or any(m.differentiable for m in mutations):
            return False
        written = {m.result for m in mutations}
        reached = [n for i, n in enumerate(self.results) if i not in written and isinstance(n, fx.Node)] + gradients
        targets = {self.placeholders[m.input] for m in mutations}
        seen: set[fx.Node] = set()
        while reached:
            node = reached.pop()
            if node in seen:
                continue
            seen.add(node)
            reached += node.all_input_nodes
        return not (seen & targets)


def _chosen(x: Any, mask: Any, value: Any) -> torch.Tensor | None:
    """What ``x[mask] = value`` makes of x, where one value that requires grad is for all: its gradient, written as a choice,
    is a sum, and needs no positions, whose number depends on data."""
    if not (isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()):
        return None
    if not (isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and 0 < mask.dim() <= x.dim()):
        return None
    rest = x.dim() - mask.dim()
    alike = (x.dtype, x.device) == (value.dtype, value.device) and x.device == mask.device
    if not alike or value.dim() > rest or mask.shape != x.shape[: mask.dim()]:
        return None
    return torch.where(mask.view(*mask.shape, *(1,) * rest) if rest else mask, value, x)


def _drop_dead(graph: fx.Graph) -> None:
    """Remove nodes without users. Random operators stay: eager draws those numbers too; and those that only check."""
    for node in reversed(list(graph.nodes)):
        kept = node.op in ("placeholder", "output") or node.meta.get("random") or node.meta.get("check")
        if not node.users and not kept:
            graph.erase_node(node)


# Operators whose result shares memory with their first operand.
VIEW_OPERATORS = frozenset({
    "view", "_unsafe_view", "_reshape_alias", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "slice",
    "select", "as_strided", "diagonal", "split", "split_with_sizes", "unbind", "unfold", "view_as_real",
    "view_as_complex", "_conj", "_neg_view", "alias", "detach", "narrow", "movedim", "real", "imag",
})  # fmt: skip


def is_view(node: fx.Node) -> bool:
    """Whether ``node``'s value shares memory with its first argument."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet is not None and packet.__name__ in VIEW_OPERATORS


def _storage_root(node: fx.Node) -> fx.Node:
    """The node whose memory ``node``'s value is in."""
    while is_view(node) or (node.target is operator.getitem and is_view(node.args[0])):  # type: ignore[arg-type]
        node = node.args[0]  # type: ignore[assignment]
    return node


def _leaf(fake: torch.Tensor) -> torch.Tensor:
    """The wrapper of an input, which gradients are taken of where the input requires them."""
    wrapper = torch_private.to_functional(fake)
    return wrapper.requires_grad_() if fake.requires_grad else wrapper


def _state(wrapper: torch.Tensor) -> tuple[Any, int, int]:
    """What writes change of a tensor: its history, where its memory is, and how often it was written."""
    return wrapper.grad_fn, torch_private.storage_key(wrapper), torch_private.times_written(wrapper)


def _is_leaf(t: torch.Tensor) -> bool:
    """Whether ``t`` is a leaf and no view, as those made under no_grad seem to be."""
    return torch_private.tensor_base(t) is None and t.is_leaf


def _history(t: torch.Tensor) -> Any:
    """``t.grad_fn``, which a view that was made and written to under no_grad does not tell, here as in eager."""
    try:
        return t.grad_fn
    except RuntimeError as e:
        raise Unsupported(
            "a view made under no_grad outlives a write to its memory, after which eager refuses it"
        ) from e


def _turns_grad_on(gm: fx.GraphModule) -> bool:
    return any(n.target is torch_private.SET_GRAD_ENABLED and n.args[0] is True for n in gm.graph.nodes)


def _is_no_grad_view(t: torch.Tensor) -> bool:
    """Made under no_grad of a tensor that requires grad: claims to require grad, but has no history of its own."""
    return t.requires_grad and torch_private.tensor_base(t) is not None and _history(t) is None


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
    if any(c.requires_grad for c in others) or (others and not all(_holds(first, t) for t in [*group, *others])):
        raise Unsupported("outputs share memory in a way that cannot be rebuilt (parts of one detached tensor)")
    return first


def _holds(base: torch.Tensor, t: torch.Tensor) -> bool:
    """Whether all memory of ``t`` lies in that of ``base``, which has no gaps."""
    extents = (*base.shape, *base.stride(), base.storage_offset(), *t.shape, *t.stride(), t.storage_offset())
    if not all(isinstance(e, int) for e in extents):
        return base is t or _same_shape(base, t)
    return is_dense(base) and _reach(base)[0] <= _reach(t)[0] and _reach(t)[1] <= _reach(base)[1]


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


def _reach(t: torch.Tensor) -> tuple[Any, Any]:
    """The first byte of a tensor in its storage, and that after its last."""
    start = t.storage_offset()
    last = start + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) if t.numel() else start - 1
    return start * t.element_size(), (last + 1) * t.element_size()


def _like(recorder: Recorder, value: torch.Tensor) -> torch.Tensor:
    """A fresh fake tensor of ``value``'s shape, with its strides where those are dense; not recorded."""
    with recorder.pause():
        if value.layout is torch.strided and not _has_symbols(value) and is_dense(value):
            # empty_like chooses other strides where sizes are 1
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return torch.empty_like(value, requires_grad=False, memory_format=torch.preserve_format)


def _offset(value: Any) -> Any:
    """Where a tensor begins in its memory; None for what has none to read."""
    return value.storage_offset() if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _has_gaps(value: torch.Tensor) -> bool:
    """Whether a tensor's elements repeat in memory or leave some of it out, as far as its sizes are known."""
    if _has_symbols(value):
        return any(isinstance(s, int) and s == 0 and n != 1 for n, s in zip(value.shape, value.stride(), strict=True))
    return value.layout is torch.strided and value.numel() > 0 and not is_dense(value)


def _same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors in the same memory have the same elements, as those that ``t_()`` and ``unsqueeze_()`` change."""

    def steps(t: torch.Tensor) -> list[tuple[str, str]]:
        return sorted((str(step), str(n)) for n, step in zip(t.shape, t.stride(), strict=True) if n != 1)

    return steps(a) == steps(b) and str(a.storage_offset()) == str(b.storage_offset())


def _same_shape(a: torch.Tensor, b: torch.Tensor) -> bool:
    return tuple(map(str, (*a.shape, *a.stride()))) == tuple(map(str, (*b.shape, *b.stride())))


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _has_symbols(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(torch_private.is_symbolic_number(s) for s in (*value.shape, *value.stride()))
    return torch_private.is_symbolic_number(value)


def _may_write(gm: fx.GraphModule) -> bool:
    """Whether any node could write to an operand: in-place names, item assignment, ``out=``."""
    return any(map(_writes, _every_node(gm)))


def _through_overlap(node: fx.Node) -> bool:
    """Whether what a node writes to was reached through a tensor with several elements in one place, or through
    ``unfold``, of which torch's functional form zeroes the elements that lie between its windows."""
    at: Any = next((a for a in node.args if isinstance(a, fx.Node)), None)
    if not _surely_writes(node):
        made, given = (n.meta.get("val") if n is not None else None for n in (node, at))
        if not (isinstance(made, torch.Tensor) and isinstance(given, torch.Tensor)):
            return False
        if torch_private.storage_key(made) != torch_private.storage_key(given):
            return False
    while at is not None and (values := _tensors_of(at)):
        if any(map(_overlaps, values)) or "unfold" in (at.target, getattr(at.target, "__name__", "")):
            return True
        key = torch_private.storage_key(values[0])
        operands = ((a, _tensors_of(a)) for a in at.args if isinstance(a, fx.Node))
        at = next((a for a, given in operands if given and torch_private.storage_key(given[0]) == key), None)
    return False


def _tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """What a node gave: a tensor, or several views of one."""
    value = node.meta.get("val")
    return [t for t in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(t, torch.Tensor)]


def _overlaps(t: torch.Tensor) -> bool:
    """Whether elements share memory, as far as sizes and strides that are known tell."""
    steps = [
        (s, n) for n, s in zip(t.shape, t.stride(), strict=True) if isinstance(s, int) and isinstance(n, int) and n > 1
    ]
    if any(isinstance(s, int) and s == 0 and not (isinstance(n, int) and n <= 1)
           for n, s in zip(t.shape, t.stride(), strict=True)):  # fmt: skip
        return True
    reach = 0
    for step, n in sorted(steps):
        if step <= reach:
            return True
        reach += (n - 1) * step
    return False


def _surely_writes(node: fx.Node) -> bool:
    """Whether a node writes to its first operand, as its name or a keyword says."""
    if node.op not in ("call_function", "call_method") or node.target is torch_private.SET_GRAD_ENABLED:
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    inplace = name.endswith("_") and not name.endswith("__")
    named = name in ("setitem", "__setitem__") or (name.startswith("i") and hasattr(operator, f"__{name}__"))
    return inplace or named or "out" in node.kwargs or node.kwargs.get("inplace") is True


def _draws_inside(node: fx.Node) -> bool:
    """Whether a function that the node runs calls what also stands for operators that write random numbers."""
    bodies = getattr(node.target, "bodies", ())
    return any(is_functional_draw(n.target) or _draws_inside(n) for body in bodies for n in body.graph.nodes)


def _writes(node: fx.Node) -> bool:
    """Whether a node may write to operands."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return _surely_writes(node) or name in (
        "batch_norm", "instance_norm", "relu", "dropout", "leaky_relu", "elu", "hardtanh", "silu", "apply"
    )  # fmt: skip


def _autocast_devices() -> tuple[str, ...]:
    return tuple(d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d))


def _needs_python_rules(gm: fx.GraphModule) -> bool:
    """Batch norm's C++ form writes its statistics behind its schema's back; the Python form says so."""
    return any("norm" in getattr(n.target, "__name__", "") for n in _every_node(gm) if n.op == "call_function")


def _every_node(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes of a graph and of the graphs that its operators run."""
    for node in gm.graph.nodes:
        yield node
        for body in getattr(node.target, "bodies", ()):
            yield from _every_node(body)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
