"""Writes what the compiler makes of a fixed sample of programs, so that two trees can be compared by their texts.

    python scripts/texts.py FOLDER [NAME ...]      then: diff -r FOLDER OTHER

Each program has one file: guards, breaks, decisions, and the text of each stage, for this CPU and for ``cuda:sm_90`` (no GPU is needed).
The sample: the workloads of ``benchmarks/`` with GPT-2, random graphs, random Python programs, operators of torch's own database.
NAME chooses kinds: workloads, models, graphs, python, operators. Run it from the root; it takes about ten minutes on two cores.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings

from fuselens import api
from fuselens.config import from_environment
from fuselens.runtime import measure

SEED = 17
GRAPHS, PYTHON, OPERATORS = 160, 120, 160
TARGETS = ("cpu", "cuda:sm_90")

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
Program = tuple[str, Callable[[], Call]]


def workloads() -> Iterator[Program]:
    from benchmarks.workloads import WORKLOADS

    for name, workload in WORKLOADS.items():
        yield name, lambda made=workload.make: (*made("cpu"), {})


def models() -> Iterator[Program]:
    from benchmarks.training_models import gpt2, mlp, resnet, seq2seq
    from tests.models.architectures import ARCHITECTURES

    made: dict[str, Callable[[], Any]] = {
        "mlp": lambda: mlp(),
        "resnet": lambda: resnet(),
        "gpt2": lambda: gpt2(),
        "gpt2_dropout": lambda: gpt2(dropout=0.1),
        "seq2seq": lambda: seq2seq(),
    }
    for name, make in made.items():
        yield name, lambda make=make: (*make(), {})
    for name in sorted(ARCHITECTURES)[::6]:
        yield name, lambda a=ARCHITECTURES[name]: (a.build(), (), a.inputs(2, 8))


def graphs() -> Iterator[Program]:
    from tests.integration.random_graphs import SIZES, drawn

    for seed in range(GRAPHS):

        def make(seed: int = seed) -> Call:
            program = drawn(random.Random(SEED * 1000 + seed), 30, SIZES)
            return program.function(), tuple(program.arguments().values()), {}

        yield f"graph{seed}", make


def python() -> Iterator[Program]:
    from tests.capture import random_programs

    sources: list[str] = []

    @hypothesis.seed(SEED)
    @settings(
        max_examples=PYTHON,
        database=None,
        deadline=None,
        suppress_health_check=tuple(HealthCheck.__members__.values()),
        phases=(Phase.generate,),
    )
    @hypothesis.given(random_programs.programs())
    def draw(program: Any) -> None:
        sources.append(program.source)

    draw()
    for k, source in enumerate(sources[:PYTHON]):

        def make(source: str = source) -> Call:
            module = random_programs.load(source)
            return module.f, tuple(random_programs.arguments("grad", module)), {}

        yield f"python{k}", make


def operators() -> Iterator[Program]:
    from tests.integration import operator_database as database

    cases = database.cases("cpu", ("float32", "bfloat16", "int64"))
    for name, dtype in sorted(random.Random(SEED).sample(cases, OPERATORS)):

        def make(name: str = name, dtype: str = dtype) -> Call:
            op = database.OPERATORS[name]
            grad = op.supports_autograd and dtype != "int64"
            sample = list(op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=grad))[-1]
            return (lambda x, *args, **kwargs: op.op(x, *args, **kwargs)), (sample.input, *sample.args), sample.kwargs

        yield f"{name}_{dtype}", make


KINDS: dict[str, Callable[[], Iterator[Program]]] = {
    f.__name__: f for f in (workloads, models, graphs, python, operators)
}


def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)


def told(report: Any) -> Iterator[str]:
    """The lines of one program's file."""
    for heading in ("guards", "breaks", "diagnostics", "shapes"):
        entries = getattr(report, heading)
        yield f"==== {heading}"
        yield from (repr(dataclasses.replace(e, cost=None) if hasattr(e, "cost") else e) for e in entries)
    for graph in report.graphs:
        yield f"==== graph {graph.id}"
        yield from (repr(d) for d in graph.decisions)
        for stage in graph.stages:
            yield f"---- {stage.name}.{stage.suffix}"
            yield stage.text


def cleaned(text: str) -> str:
    """Without addresses, measured times and the places of this checkout."""
    text = text.replace(str(Path.cwd()), "")
    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    return re.sub(r"\b\d{12,}\b", "N", text)


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the operators' samples go over sets
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    measure.available = lambda: False  # which library multiplies faster is measured, and may differ from run to run
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(KINDS)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as cache:
        for kind in names:
            (folder / kind).mkdir(parents=True, exist_ok=True)
            for name, make in KINDS[kind]():
                for target in TARGETS:
                    place = folder / kind / f"{name.replace('/', '_')}.{target.replace(':', '_')}.txt"
                    seeded()
                    try:
                        fn, args, kwargs = make()
                    except Exception as error:  # noqa: BLE001 - a sample that cannot be made is one line
                        place.write_text(f"not made: {type(error).__name__}\n")
                        continue
                    config = from_environment({}, target=target, build=False, cache_dir=Path(cache))
                    report = api.inspect(fn, args, kwargs, config=config, function=name, span=None)
                    place.write_text(cleaned("\n".join(told(report))) + "\n")


if __name__ == "__main__":
    main()
