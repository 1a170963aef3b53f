"""A small torch-level capture, and the comparison of a traced, partitioned, interpreted graph with eager.

The capture records every torch function call of a Python function run on fake tensors (a TorchFunctionMode sees them,
``torch.no_grad()`` included), so graphs have in-place operators, views and grad-mode switches as the real capture's
have.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fuselens import torch_private
from fuselens.autograd.joint import Joint, trace
from fuselens.autograd.partition import Partition, forward_only, partition
from fuselens.pipeline.variants import sharing
from fuselens.record.report import Span
from fuselens.runtime.autograd_function import build

Function = Callable[..., Any]


class _Capture(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}
        self.alive: list[Any] = []
        self.line = itertools.count(1)

    def bind(self, value: Any, node: fx.Node) -> None:
        if isinstance(value, torch.Tensor):
            self.nodes[id(value)] = node
            self.alive.append(value)
        elif isinstance(value, (list, tuple)):
            for i, v in enumerate(value):
                if isinstance(v, (torch.Tensor, list, tuple)) and id(v) not in self.nodes:
                    self.bind(v, self.graph.call_function(lambda s, i: s[i], (node, i)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__" or name in ("size", "dim", "stride", "numel", "is_floating_point", "__len__"):
            return func(*args, **kwargs)
        out = func(*args, **kwargs)

        def argument(v: Any) -> Any:
            if isinstance(v, torch.Tensor):
                return self.nodes[id(v)]
            return v

        node_args, node_kwargs = pytree.tree_map(argument, (tuple(args), dict(kwargs)))
        node = self.graph.call_function(func, node_args, node_kwargs)
        line = next(self.line)
        node.meta.update(val=out, span=Span("case.py", line, 0, line, 10))
        already = isinstance(out, torch.Tensor) and id(out) in self.nodes
        if isinstance(out, (list, tuple)):
            for i, v in enumerate(out):
                if isinstance(v, torch.Tensor):
                    item = self.graph.call_function(_item, (node, i))
                    item.meta.update(val=v, span=node.meta["span"])
                    self.bind(v, item)
        elif not already:
            self.bind(out, node)
        return out


def _item(values: Any, i: int) -> Any:
    return values[i]


def capture(fn: Function, inputs: Sequence[Any], mode: Any, dynamic: bool = False) -> tuple[fx.GraphModule, list[Any]]:
    """The captured graph of ``fn(*inputs)`` and the fake inputs."""
    fakes: dict[int, Any] = {}

    def fake(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        if id(t) not in fakes:
            if dynamic:
                from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

                sizes = [DimDynamic.DYNAMIC if s > 1 else DimDynamic.STATIC for s in t.shape]
                fakes[id(t)] = mode.from_tensor(t, symbolic_context=StatelessSymbolicContext(sizes))
            else:
                fakes[id(t)] = torch_private.fake_static(mode, t)
        return fakes[id(t)]

    args = [fake(t) for t in inputs]
    recorder = _Capture()
    for i, a in enumerate(args):
        node = recorder.graph.placeholder(f"arg{i}")
        node.meta.update(val=a, span=Span("case.py", 0, i, 0, i + 1))
        if isinstance(a, torch.Tensor) and id(a) not in recorder.nodes:
            recorder.bind(a, node)
    with mode, recorder:
        out = fn(*args)
    flat = list(out) if isinstance(out, (tuple, list)) else [out]
    recorder.graph.output(tuple(recorder.nodes[id(o)] if isinstance(o, torch.Tensor) else o for o in flat))
    # the run above may have changed the fakes (metadata of in-place ops, requires_grad): trace on fresh ones
    fakes.clear()
    return fx.GraphModule(torch.nn.Module(), recorder.graph), [fake(t) for t in inputs]


@dataclass
class Compiled:
    joint: Joint
    gm: fx.GraphModule
    parts: Partition | None = None
    doubles: list[int] = field(default_factory=list)
    run: Callable[..., Any] = lambda *a: None


def compile_case(
    fn: Function, inputs: Sequence[Any], *, grad_enabled: bool = True, budget: float = 1.0, dynamic: bool = False
) -> Compiled:
    shape_env = None
    if dynamic:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        shape_env = ShapeEnv()
    mode = torch_private.fake_mode(shape_env)
    with torch.set_grad_enabled(grad_enabled):
        gm, fakes = capture(fn, inputs, mode, dynamic)
    joint = trace(gm, fakes, grad_enabled=grad_enabled)
    if written := {m.input for m in joint.signature.mutations}:
        visible = {m.input for m in joint.signature.mutations if m.differentiable}
        shared = sharing.find(inputs, written, sharing.tensors(inputs), visible=visible, grad=grad_enabled)
        joint = trace(gm, fakes, grad_enabled=grad_enabled, sharing=shared)
    joint.graph.lint()
    compiled = Compiled(joint, gm)
    if not joint.training:
        module = forward_only(joint)
        compiled.run = build(joint.signature, lambda args: module(*args))
        return compiled
    parts = partition(joint, memory_budget=budget)
    parts.forward.graph.lint()
    parts.backward.graph.lint()
    compiled.parts = parts
    compiled.run = build(
        parts.signature,
        lambda args: parts.forward(*args),
        saved=parts.saved,
        compile_backward=lambda: lambda args: parts.backward(*args),
        eager=lambda args: gm(*args),
        on_double_backward=lambda: compiled.doubles.append(1),
    )
    return compiled


def _address(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _labelled(label: str) -> Callable[[str], str]:
    return lambda message: f"{label}: {message}"


def _structure(values: Sequence[Any]) -> list[Any]:
    """Which values are the same object, and which share storage."""
    same = [[a is b for b in values] for a in values if isinstance(a, torch.Tensor)]
    storage = [
        [isinstance(b, torch.Tensor) and _address(a) == _address(b) for b in values]
        for a in values if isinstance(a, torch.Tensor) and a.numel()
    ]  # fmt: skip
    offsets = [
        (a.data_ptr() - a.untyped_storage().data_ptr()) if len([1 for s in row if s]) > 1 else 0
        for a, row in zip([v for v in values if isinstance(v, torch.Tensor) and v.numel()], storage, strict=True)
    ]
    return [same, storage, offsets]


def _observe(
    fn: Function, make: Callable[[], tuple[list[Any], list[Any]]], seed: int, backward: bool
) -> dict[str, Any]:
    torch.manual_seed(seed)
    leaves, inputs = make()
    versions = [t._version if isinstance(t, torch.Tensor) else None for t in inputs]
    torch.manual_seed(seed + 1)
    out = fn(*inputs)
    out = list(out) if isinstance(out, (tuple, list)) else [out]
    seen: dict[str, Any] = {
        "outputs": [o.detach().clone() if isinstance(o, torch.Tensor) else o for o in out],
        "inputs": [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in inputs],
        "requires_grad": [o.requires_grad if isinstance(o, torch.Tensor) else None for o in (*out, *inputs)],
        "is_leaf": [o.is_leaf if isinstance(o, torch.Tensor) else None for o in (*out, *inputs)],
        "layout": [(o.shape, o.stride(), o.dtype) if isinstance(o, torch.Tensor) else None for o in (*out, *inputs)],
        "structure": _structure([*out, *inputs]),
        "written": [v != t._version for t, v in zip(inputs, versions, strict=True) if isinstance(t, torch.Tensor)],
    }
    if backward:
        torch.manual_seed(99)
        loss: Any = 0.0
        for o in [*out, *inputs]:
            if isinstance(o, torch.Tensor) and o.requires_grad:
                loss = loss + (o * torch.randn(o.shape).to(o.dtype)).sum()
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            (loss.real if loss.is_complex() else loss).backward()
        seen["grads"] = [t.grad if isinstance(t, torch.Tensor) else None for t in leaves]
    return seen


def case_agrees(
    fn: Function,
    make: Callable[[], list[Any]],
    prepare: Callable[..., list[Any]] | None = None,
    *,
    grad_enabled: bool = True,
    budget: float = 1.0,
    dynamic: bool = False,
    tolerance: float = 1e-5,
    strides: bool = True,
) -> Compiled:
    """Compiled and eager agree in values, gradients, mutation, aliasing and layout. ``make`` gives leaves,
    ``prepare`` turns them into the function's inputs."""

    def both() -> tuple[list[Any], list[Any]]:
        leaves = make()
        return leaves, list(prepare(*leaves)) if prepare else list(leaves)

    torch.manual_seed(0)
    compiled = compile_case(fn, both()[1], grad_enabled=grad_enabled, budget=budget, dynamic=dynamic)
    with torch.set_grad_enabled(grad_enabled):
        expected = _observe(fn, both, 1, grad_enabled)
        actual = _observe(lambda *a: compiled.run(tuple(a)), both, 1, grad_enabled)
    for key, want in expected.items():
        got = actual[key]
        if key in ("outputs", "inputs", "grads"):
            assert len(got) == len(want), key
            for i, (g, w) in enumerate(zip(got, want, strict=True)):
                assert type(g) is type(w) or isinstance(g, torch.Tensor) == isinstance(w, torch.Tensor), (key, i, g, w)
                if isinstance(w, torch.Tensor):
                    torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance, msg=_labelled(f"{key}[{i}]"))
                else:
                    assert g == w, (key, i)
        elif key == "written":  # eager's batch norm writes without counting versions; ours counts
            assert all(g or not w for g, w in zip(got, want, strict=True)), f"{key}: compiled {got}, eager {want}"
        elif key != "layout" or strides:
            assert got == want, f"{key}: compiled {got}, eager {want}"
    verify(compiled)
    return compiled


def verify(compiled: Compiled) -> None:
    """The invariants that joint.py promises."""
    random_order = [n.name for n in compiled.joint.graph.nodes if n.meta.get("random")]
    for node in compiled.joint.graph.nodes:
        if node.op == "output":
            continue
        assert "val" in node.meta, node
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable, node
    if compiled.parts is None:
        return
    parts = compiled.parts
    assert [n.name for n in parts.forward.graph.nodes if n.meta.get("random")] == random_order
    assert not [n for n in parts.backward.graph.nodes if n.meta.get("random") and n.op == "call_function"]
    assert len(parts.saved) + len(parts.signature.tangents) == sum(
        n.op == "placeholder" for n in parts.backward.graph.nodes
    )
    backward = [n for n in compiled.joint.graph.nodes if n.meta.get("backward") and n.op == "call_function"]
    spanned = [n for n in backward if n.meta.get("span") is not None]
    assert len(spanned) == len(backward), [n for n in backward if n not in spanned]
