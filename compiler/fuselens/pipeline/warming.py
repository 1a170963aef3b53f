"""What every compilation needs, made beforehand."""

from __future__ import annotations

import functools
import importlib
import types
from contextlib import suppress

import torch
from torch import fx

from .. import torch_private
from ..capture import classify
from ..capture.hook import _hook, tensor_layout
from ..config import Config
from ..runtime.gpu import triton_worker
from ..system.collector import importing
from .graph_cache import was_captured


def prepare(code: types.CodeType | None, config: Config, *, on_gpu: bool) -> None:
    """A function is going to be called: where the cache does not know it, what compiling takes is imported, and the
    compiler of Triton's kernels started, before its first call rather than in it. Whatever fails here fails again in the
    call, which tells of it."""
    if code is None or config.backend != "fuselens":
        return
    with suppress(Exception):
        if torch_private.dispatch_mode_active() or was_captured(config, code):
            return
        if on_gpu:
            triton_worker.start()
        _hook.hidden(_load)(on_gpu)


@functools.cache
def _load(on_gpu: bool) -> None:
    """Imports the stages and makes their tables."""
    for_target = ("codegen.triton.kernels", "runtime.launch") if on_gpu else ("codegen.cpu.cpp",)
    with torch_private.without_torch_function(), importing():
        torch_private.load_symbolic_sizes()
        for name in ("pipeline.stages", *for_target):
            importlib.import_module(f"fuselens.{name}")
        importlib.import_module("fuselens.autograd.decompositions").table()
        torch_private.fake_mode()
        classify.is_graph_callable(torch.relu)


def warm() -> None:
    """Fills what every compilation needs (tables, torch's and sympy's caches) without computing on real tensors.

    The worker calls it once before it forks; a process that forks must have started neither OpenMP's threads nor, where
    torch was built for accelerators, those of the autograd engine. So a backward's operators are here a forward's.
    """
    from ..autograd import joint as joint_stage
    from ..autograd import partition as partition_stage
    from ..capture.tracing.sources import local
    from ..capture.tracing.symbols import Sizes
    from ..codegen.generate import generate
    from ..config import from_environment
    from ..lowering.lower import lower
    from ..rewrite.simplify import simplify
    from ..runtime.build import NoCompiler, find_compiler, host_isa
    from ..schedule.fuse import fuse
    from ..schedule.order import order

    _load(on_gpu=False)
    tensor_layout.ensure()
    with suppress(NoCompiler):
        find_compiler(from_environment())
    for axes in ({}, {"x": {0: "n"}}):
        sizes = Sizes(axes) if axes else None
        mode = torch_private.fake_mode(sizes.env if sizes else None)
        real = torch.empty(4, 8, requires_grad=True)
        fake = (
            sizes.fake(mode, real, {0: True}, local(0, "x"), None) if sizes else torch_private.fake_static(mode, real)
        )
        graph = fx.Graph()
        x = graph.placeholder("x")
        positive = graph.call_function(torch.relu, (x,))
        y = graph.call_function(torch.softmax, (positive, -1))
        total = graph.call_method("sum", (y, 0))
        aten = torch.ops.aten
        tangent = graph.call_method("expand_as", (total, x))
        tangent = graph.call_function(aten._softmax_backward_data.default, (tangent, y, -1, torch.float32))
        graph.output((total, graph.call_function(aten.threshold_backward.default, (tangent, positive, 0))))
        module = fx.GraphModule(torch.nn.Module(), graph)
        torch_private.propagate(module, mode, [fake])
        part = partition_stage.forward_only(joint_stage.trace(module, [fake], grad_enabled=False))
        generate(order(fuse(lower(simplify(part), name="warm"))), "cpu", host_isa(from_environment()))
