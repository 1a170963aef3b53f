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
from fuselens.pipeline import programs, stages

_RELATIVE = {"bf16": 6e-2, "f16": 1e-2, "f32": 1e-4, "f64": 1e-10}


class Broken(AssertionError):
    """A stage left a graph that breaks a rule, or that computes something else."""


@contextmanager
def checked() -> Iterator[None]:
    """While it is open, compilations check what each stage makes; their first calls evaluate it on the inputs given."""
    graphs: dict[str, list[tuple[str, Graph]]] = {}  # by name: what each stage made

    def watch(stage: str) -> Any:
        run = getattr(stages, stage)

        def checking(*args: Any, **kwargs: Any) -> Graph:
            made = run(*args, **kwargs)
            graphs[made.name] = [*(graphs.get(made.name, ()) if stage != "lower" else ()), (stage, made)]
            verify(made)
            text = re.sub("  #.*", "", show(made)[0])  # spans are comments of the text
            if show(parse(text))[0] != text:
                raise Broken(f"{stage}: the graph is another one when printed and parsed\n{text}")
            return made

        return mock.patch.object(stages, stage, checking)

    real_build = programs.build

    def build(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        built = real_build(graph, *args, **kwargs)
        made, call = graphs.pop(graph.name, []), built.call  # one from the cache went through no stage

        def first(inputs: tuple[Any, ...]) -> Any:
            if made:
                try:
                    _evaluate(made, inputs)
                finally:
                    made.clear()
            return call(inputs)

        built.call = first
        return built

    with (
        watch("lower"),
        watch("fuse"),
        watch("for_gpu"),
        watch("order"),
        mock.patch.object(programs, "build", build),
    ):
        yield


def _evaluate(made: list[tuple[str, Graph]], inputs: tuple[Any, ...]) -> None:
    expected: list[Any] = []
    used = {b.dtype for b in made[0][1].buffers.values()}
    relative = next((r for d, r in _RELATIVE.items() if d in used), 0.0)
    for name, graph in made:
        given = [_copy(i) if isinstance(i, torch.Tensor) else i for i in inputs]
        results = [r for r in evaluate(graph, given)] + [g for g in given if isinstance(g, torch.Tensor)]
        if name == "lower" or (name == "fuse" and used & {"f16", "bf16"}):  # what is not stored is not rounded
            expected = results
            continue
        largest = max((_size(e) for e in expected), default=0.0)
        for k, (e, r) in enumerate(zip(expected, results, strict=True)):
            if isinstance(e, torch.Tensor) and not _near(e, r, relative, largest / 100):
                raise Broken(f"{name}: result {k} is another one than before\n{show(graph)[0]}")


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.detach().as_strided((size,), (1,), 0).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _size(tensor: Any) -> float:
    """The largest finite number."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        return 0.0
    finite = tensor[tensor.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _near(expected: torch.Tensor, actual: torch.Tensor, relative: float, least: float) -> bool:
    """Up to a part of the largest number, or of ``least`` where numbers cancel."""
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    if torch.equal(expected, actual) or not expected.numel():
        return True
    if not expected.is_floating_point():
        return bool((expected != actual).double().mean() < 0.1)  # comparisons of rounded numbers may fall otherwise
    e, a = expected.double(), actual.double()
    known = e.isfinite() & a.isfinite()
    scale = max(_size(e), least)
    far = (e - a).abs()[known] > relative * scale
    return bool(far.double().mean() < 0.1) if bool(known.any()) else True
