"""Runs one architecture eagerly and compiled, and says where they differ.

python -m tests.models.runner NAME... [--backend eager] [--training]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fuselens.inputs import comparison

from .architectures import ARCHITECTURES, Inputs

SHAPES = ((2, 9), (3, 7), (2, 9))  # the second call meets other sizes, the third what was compiled first
Compile = Callable[[torch.nn.Module], torch.nn.Module]


FALLBACKS = ("FL301", "FL402", "FL404")


@dataclass
class Outcome:
    """``seconds``: processor time of the first call above eager's. ``problem``: empty when all calls agree with eager.

    ``fallbacks`` says which graphs run eagerly, and why.
    """

    seconds: float = 0.0
    calls: int = 0
    error: float = 0.0
    problem: str = ""
    fallbacks: list[str] = field(default_factory=list)


def measure(name: str, compile_: Compile, *, training: bool, exact: bool) -> Outcome:
    """Calls architecture ``name`` eagerly and compiled with each of :data:`SHAPES`, until one call fails or differs."""
    architecture = ARCHITECTURES[name]
    eager, original = architecture.build().train(training), architecture.build().train(training)
    compiled = compile_(original)
    outcome = Outcome()
    report = getattr(compiled, "__fuselens__", None) and compiled.__fuselens__.recorder.report
    for batch, length in SHAPES:
        torch.manual_seed(batch)
        inputs = architecture.inputs(batch, length)
        if training:
            inputs |= architecture.labels(batch, length)
        expected, eager_seconds = _called(eager, eager, inputs, training)
        try:
            actual, seconds = _called(compiled, original, inputs, training)
        except Exception as e:  # noqa: BLE001 - whatever stops the compiler is the finding
            outcome.problem = f"{type(e).__name__}: {e}"
            return outcome
        if not outcome.calls:
            outcome.seconds = seconds - eager_seconds
        worst = [0.0]
        difference = comparison.differ(expected, actual, "result", worst)
        outcome.error = max(outcome.error, worst[0])
        if difference is None and exact and worst[0]:
            difference = f"results differ by {worst[0]:.1e}"
        if difference is not None:
            outcome.problem = difference
            return outcome
        outcome.calls += 1
    if report:
        outcome.fallbacks = [f"{d.code}: {d.message}" for d in report.diagnostics if d.code in FALLBACKS]
    return outcome


def _called(model: torch.nn.Module, original: torch.nn.Module, inputs: Inputs, training: bool) -> tuple[Any, float]:
    """All that a call leaves behind (outputs, and in training gradients and buffers), and its processor seconds."""
    torch.manual_seed(1)
    original.zero_grad()
    start = time.process_time()
    output = model(**{k: v.clone() for k, v in inputs.items()})
    left: dict[str, Any] = {}
    if training:
        loss = output.loss if getattr(output, "loss", None) is not None else _loss(output)
        loss.backward()
        left["gradients"] = {n: p.grad.clone() for n, p in original.named_parameters() if p.grad is not None}
    seconds = time.process_time() - start
    left["output"] = visible(output, {})
    left["buffers"] = {n: b.clone() for n, b in original.named_buffers()}
    return left, seconds


def _loss(output: Any) -> torch.Tensor:
    outputs = [v for v in output.values() if isinstance(v, torch.Tensor) and v.requires_grad]
    return torch.stack([v.square().mean() for v in outputs]).sum()


def visible(value: Any, seen: dict[int, Any]) -> Any:
    """``value`` as plain containers of tensors and constants; objects as their type's name and their attributes."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type, torch.dtype, torch.device)):
        return value
    if id(value) in seen:
        return "seen before"
    seen[id(value)] = value
    parts: dict[Any, Any] = {"type": type(value).__qualname__}
    if isinstance(value, dict):
        parts |= {("key", k): visible(v, seen) for k, v in value.items()}
    elif isinstance(value, (list, tuple)):
        parts["items"] = [visible(v, seen) for v in value]
    parts |= {("attribute", k): visible(v, seen) for k, v in getattr(value, "__dict__", {}).items()}
    return parts


def own(backend: str, **options: Any) -> Compile:
    import fuselens

    return lambda model: fuselens.compile(model, backend=backend, fullgraph=True, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--training", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.names:
        outcome = measure(name, own(arguments.backend), training=arguments.training, exact=arguments.backend == "eager")
        done = f"{outcome.calls} calls agree, error {outcome.error:.1e}, captured in {outcome.seconds:.2f} s"
        print(name, outcome.problem or done, *outcome.fallbacks, sep="\t", flush=True)


if __name__ == "__main__":
    main()
