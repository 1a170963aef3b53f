"""One base model: made small, called eagerly twice, compiled, called again and compared."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import time
import traceback
import warnings
from typing import Any

import torch

import fuselens
from fuselens.inputs import comparison
from tests.models.runner import FALLBACKS, visible

from . import inputs, sizes

EAGER_SECONDS, LEVEL_SECONDS = 10.0, 2.5  # of the processor, to look for a size and inputs, in all and at one size
NOT_COMPILED = {"FL109", "FL112"}  # frames that run as written: as good as a break
Found = dict[str, Any]


def found(name: str, training: bool, backend: str, peer: bool = False) -> Found:
    """What became of ``name``: its ``outcome`` is eager, whole, broken, wrong or crashed. Of one that is broken, ``peer`` asks how
    many graphs ``torch.compile`` makes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        level, model, kwargs, expected, eager_seconds = _eager(name, training)
    except Exception as e:  # noqa: BLE001 - a model that cannot be called is not counted
        return {"outcome": "eager", "why": f"{type(e).__name__}: {e}"[:400]}
    out: Found = {
        "parameters": sum(p.numel() for p in model.parameters()), "level": sizes.LEVELS.index(level), "inputs": sorted(kwargs),
        "prepared": round(time.perf_counter() - start, 2), "eager": round(eager_seconds, 3),
    }  # fmt: skip
    again, _ = _called(model, copy.deepcopy(model), kwargs, training)
    steady = comparison.differ(expected, again, "result")
    if steady:
        out["unsteady"] = steady[:200]
    original = copy.deepcopy(model)
    compiled: Any = fuselens.compile(original, backend=backend)
    start = time.perf_counter()
    try:
        actual, _ = _called(compiled, original, kwargs, training)
    except Exception as e:  # noqa: BLE001 - whatever stops the compiler is the finding
        return {
            **out,
            "outcome": "crashed",
            "why": f"{type(e).__name__}: {e}"[:400],
            "trace": traceback.format_exc()[-1500:],
        }
    out["seconds"] = round(time.perf_counter() - start, 2)
    report: Any = compiled.__fuselens__.recorder.report
    out["graphs"] = len(report.captured)
    skipped = [d for d in report.diagnostics if d.code in NOT_COMPILED]
    out["breaks"] = [f"{d.code} {_place(d)}: {d.message}"[:300] for d in [*report.breaks, *skipped]]
    out["fallbacks"] = sorted({f"{d.code}: {d.message}"[:300] for d in report.diagnostics if d.code in FALLBACKS})
    worst = [0.0]
    difference = comparison.differ(expected, actual, "result", worst)
    out["error"] = worst[0]
    if difference and not steady:
        return {**out, "outcome": "wrong", "why": difference[:300]}
    if out["graphs"] == 1 and not out["breaks"]:
        return {**out, "outcome": "whole"}
    return {**out, "outcome": "broken", **(_of_peer(model, kwargs, training) if peer else {})}


def _of_peer(model: torch.nn.Module, kwargs: inputs.Inputs, training: bool) -> Found:
    """How many graphs that compute something ``torch.compile`` makes of the model."""
    graphs = 0

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        nonlocal graphs
        graphs += any(n.op.startswith("call") for n in graph.graph.nodes)
        return graph.forward

    original = copy.deepcopy(model)
    original.compile(backend=backend)
    start = time.perf_counter()
    try:
        _called(original, original, kwargs, training)
    except Exception as e:  # noqa: BLE001 - of which we only tell
        return {"peer": f"{type(e).__name__}: {e}"[:200]}
    return {"peer_graphs": graphs, "peer_seconds": round(time.perf_counter() - start, 2)}


def _place(diagnostic: Any) -> str:
    span = diagnostic.span
    return f"{span.file.rpartition('/')[2]}:{span.line}" if span else "?"


def _eager(name: str, training: bool) -> tuple[sizes.Level, torch.nn.Module, inputs.Inputs, Found, float]:
    """The first size and inputs with which the model runs, and what its call left."""
    _, model_class = sizes.classes(name)
    problem: Exception | None = None
    start = time.process_time()
    for level, config in sizes.configs(name):
        begin = time.process_time()
        if time.process_time() - start > EAGER_SECONDS:
            break
        try:
            with torch.device("meta"), contextlib.suppress(NotImplementedError, RuntimeError):
                size = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
                if size > sizes.MOST_PARAMETERS:
                    raise ValueError(f"{size:,} parameters")
            torch.manual_seed(0)
            model = model_class(config).float().train(training)
        except Exception as e:  # noqa: BLE001 - the next size may do
            problem = problem or e
            continue
        for kwargs in inputs.candidates(model, model.config):
            if time.process_time() - begin > LEVEL_SECONDS:
                break
            try:
                left, seconds = _called(model, copy.deepcopy(model), kwargs, training)
            except Exception as e:  # noqa: BLE001 - the next inputs may do
                problem = problem or e
                continue
            return level, model, kwargs, left, seconds
    raise problem or ValueError("no inputs are known")


def _called(model: Any, original: torch.nn.Module, kwargs: inputs.Inputs, training: bool) -> tuple[Found, float]:
    """All that a call leaves behind, and its seconds. ``model`` is the compiled ``original``; else ``original`` is called."""
    torch.manual_seed(1)
    random.seed(1)
    _seed_numpy()
    called = model if hasattr(model, "__fuselens__") else original
    start = time.perf_counter()
    left: Found = {}
    given = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    if training:
        output = called(**given)
        _loss(output).backward()
        gradients = {n: p.grad for n, p in original.named_parameters() if p.grad is not None}
        left["gradients"] = {n: g for n, g in gradients.items() if not g.is_sparse}
    else:
        with torch.no_grad():
            output = called(**given)
    seconds = time.perf_counter() - start
    left["output"] = visible(output, {})
    left["buffers"] = {n: b.clone() for n, b in original.named_buffers()}
    return left, seconds


def _seed_numpy() -> None:
    import numpy

    numpy.random.seed(1)  # models draw from it


def _loss(output: Any) -> torch.Tensor:
    """The mean of all numbers that have a gradient, each tensor's own added up."""
    parts = [t for t in _tensors(output, set()) if t.requires_grad and t.is_floating_point()]
    if not parts:
        raise ValueError("no output has a gradient")
    return torch.stack([t[t.isfinite()].mean() if t.numel() else t.sum() for t in parts]).sum()


def _tensors(value: Any, seen: set[int]) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v, seen)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v, seen)]
    return []


def main(name: str, training: bool, backend: str, limit: int, peer: bool) -> str:
    """As a line of JSON. ``limit``: bytes of memory."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return json.dumps(found(name, training, backend, peer))
