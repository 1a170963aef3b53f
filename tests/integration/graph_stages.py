"""What must hold between the stages: every graph verifies, prints, parses back and computes what the one before computed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.lowering import lower
from fuselens.runtime import compile_graph
from fuselens.schedule import fuse, order

_RELATIVE = {"bf16": 6e-2, "f16": 1e-2, "f32": 1e-4, "f64": 1e-10}


class Broken(AssertionError):
    """A stage left a graph that breaks a rule, or that computes something else."""


@contextmanager
def checked() -> Iterator[None]:
    """While it is open, compilations check what each stage makes; their first calls evaluate it on the inputs given."""
    graphs: list[Graph] = []

    def watch(module: Any, stage: str) -> Any:
        run = getattr(module, stage)

        def checking(*args: Any, **kwargs: Any) -> Graph:
            made = run(*args, **kwargs)
            if stage == "lower":
                graphs.clear()
            graphs.append(made)
            verify(made)
            text = re.sub("  #.*", "", show(made)[0])  # spans are comments of the text
            if show(parse(text))[0] != text:
                raise Broken(f"{stage}: the graph is another one when printed and parsed\n{text}")
            return made

        return mock.patch.object(module, stage, checking)

    real_build = compile_graph.build

    def build(*args: Any, **kwargs: Any) -> Any:
        built = real_build(*args, **kwargs)
        stages, call = list(graphs), built.call
        graphs.clear()  # the next graph may come from the cache, through no stage

        def first(inputs: tuple[Any, ...]) -> Any:
            if stages:
                try:
                    _evaluate(stages, inputs)
                finally:
                    stages.clear()
            return call(inputs)

        built.call = first
        return built

    with (
        watch(lower, "lower"),
        watch(fuse, "fuse"),
        watch(order, "order"),
        mock.patch.object(compile_graph, "build", build),
    ):
        yield


def _evaluate(stages: list[Graph], inputs: tuple[Any, ...]) -> None:
    expected: list[Any] = []
    used = {b.dtype for b in stages[0].buffers.values()}
    relative = next((r for d, r in _RELATIVE.items() if d in used), 0.0)
    for name, graph in zip(("lower", "fuse", "order"), stages, strict=True):
        given = [_copy(i) if isinstance(i, torch.Tensor) else i for i in inputs]
        results = [r for r in evaluate(graph, given)] + [g for g in given if isinstance(g, torch.Tensor)]
        if name == "lower" or (name == "fuse" and used & {"f16", "bf16"}):  # what is not stored is not rounded
            expected = results
            continue
        for k, (e, r) in enumerate(zip(expected, results, strict=True)):
            if isinstance(e, torch.Tensor) and not _near(e, r, relative):
                raise Broken(f"{name}: result {k} is another one than before\n{show(graph)[0]}")


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.detach().as_strided((size,), (1,), 0).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _near(expected: torch.Tensor, actual: torch.Tensor, relative: float) -> bool:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    if torch.equal(expected, actual) or not expected.numel():
        return True
    if not expected.is_floating_point():
        return bool((expected != actual).double().mean() < 0.1)  # comparisons of rounded numbers may fall otherwise
    e, a = expected.double(), actual.double()
    known = e.isfinite() & a.isfinite()
    scale = float(e[known].abs().max()) if bool(known.any()) else 0.0
    far = (e - a).abs()[known] > relative * scale
    return bool(far.double().mean() < 0.1) if bool(known.any()) else True
