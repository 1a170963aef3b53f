"""The kernels of torch's own operators, forward and backward, compile for sm_90 on a machine without a GPU.

A seeded part with few samples each runs always, all of it in ``make sweep``.
"""

from __future__ import annotations

import importlib.util
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fuselens
from fuselens import api
from fuselens.config import Config
from fuselens.record.report import Graph, Report
from tests.capture.operator_samples import OPERATORS

from . import operator_database as database

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")
CASES = database.cases(dtypes=DTYPES)
IN_CI = sorted(random.Random(7).sample(CASES, 24))
WRITING = ("index_add", "index_copy", "index_reduce.amax", "put", "take", "scatter_add", "scatter_reduce.mean")
# why a graph of a sample has no kernels
REFUSED = re.compile("this graph runs eagerly: (Unsupported|LoweringError|BuildFailed|the backward|aten|it|an input)")


def reports(name: str, dtype: str, most: int, cache: Path) -> Iterator[Report]:
    """Of samples that differ in more than their elements."""
    op, wanted = OPERATORS[name], database.DTYPES[dtype]
    torch.manual_seed(0)
    random.seed(0)
    grad = op.supports_autograd and wanted.is_floating_point and wanted in op.supported_backward_dtypes("cpu")
    found = {database.signature(s): s for s in op.sample_inputs("cpu", wanted, requires_grad=grad)}
    samples = list(found.values())
    if len(samples) > most:
        samples = [samples[k * (len(samples) - 1) // max(most - 1, 1)] for k in range(most)]
    config = Config(target="cuda:sm_90", build=False, cache_dir=cache, assembly=("ptx",))

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return op.op(first, *args, **kwargs)

    for sample in samples:
        fuselens.reset()
        yield api.inspect(call, (sample.input, *sample.args), sample.kwargs, config=config, function=name, span=None)


def compiles(name: str, dtype: str, most: int, cache: Path) -> int:
    """How many kernels the samples have."""
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for report in reports(name, dtype, most, cache):
            wrong = [d.message for d in report.diagnostics if d.code == "FL404" and not REFUSED.match(d.message)]
            assert not wrong, wrong
            for graph in report.graphs:
                texts = list(functions(graph))
                assert sum(1 + len(also) for also, _ in texts) == len(graph.kernels)
                assert all(".target sm_90" in ptx and not lost_constants(ptx) for _, ptx in texts)
                count += len(graph.kernels)
    return count


def functions(graph: Graph) -> Iterator[tuple[list[str], str]]:
    """The PTX of each function, and the names of the other kernels that it serves."""
    for stage in graph.stages:
        if stage.name.partition(".")[0] == "ptx":
            for text in re.split(r"^// kernel ", stage.text, flags=re.MULTILINE)[1:]:
                also = re.search(r"^// also (.*)", text, re.MULTILINE)
                yield also[1].split(", ") if also else [], text


def lost_constants(ptx: str) -> set[str]:
    """Constants that are added to pairs of 16 bits: ptxas may take them for 0."""
    constants = set(re.findall(r"mov\.b32\s+(%r\d+), -?\d+;", ptx))
    return constants & {r for operands in re.findall(r"add\.s16x2\s+(.*);", ptx) for r in operands.split(", ")}


@pytest.mark.parametrize(("name", "dtype"), IN_CI)
def test_sample(name: str, dtype: str, tmp_path: Path) -> None:
    compiles(name, dtype, 2, tmp_path)


@pytest.mark.parametrize("name", WRITING)
def test_numbers_as_positions(name: str, tmp_path: Path) -> None:
    """Among the samples are positions in tensors without dimensions."""
    assert compiles(name, "float32", 4, tmp_path) > 4


def test_windows_whose_bounds_are_quotients(tmp_path: Path) -> None:
    def pool(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool3d(x, (5, 7, None))

    x = torch.randn(3, 8, 8, 6, requires_grad=True)
    config = Config(target="cuda:sm_90", build=False, cache_dir=tmp_path, assembly=("ptx",))
    report = api.inspect(pool, (x,), {}, config=config, function="pool", span=None)
    texts = [ptx for g in report.graphs for _, ptx in functions(g)]
    assert len(texts) == 3 and not any(map(lost_constants, texts))


def test_triton_to_read_refuses_no_graph() -> None:
    """Products at positions from data have C++ kernels; on a GPU they would be a call."""

    def scale(x: torch.Tensor, at: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, at, by, "prod") + 1

    report = fuselens.explain(scale)(torch.rand(5), torch.tensor([1, 1, 3]), torch.rand(3))
    assert not report.diagnostics
    (graph,) = report.graphs
    assert {k.backend for k in graph.kernels} == {"cpp"}
    assert "tl.store" in next(s.text for s in graph.stages if s.name == "triton")


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_sample(name: str, dtype: str, tmp_path: Path) -> None:
    compiles(name, dtype, 8, tmp_path)
