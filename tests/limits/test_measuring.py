"""This machine is measured by programs that we compile, once; runs and checks then say how far kernels are from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fuselens
from fuselens.config import Config
from fuselens.limits import measuring
from fuselens.record.report import Machine
from fuselens.runtime import measure

FOUND = Machine(
    "this", ((1, 1e10),), ((1, 1e10),), ((1, 1e10),), {"plain": 1e10, "product float32": 1e11}, 1e-7, "2026-01-31"
)


def test_this_machine(tmp_path: Path) -> None:
    told: list[str] = []
    config = Config(cache_dir=tmp_path)
    assert measuring.of_target("cpu", config) is None
    found = measuring.machine("cpu", config, told.append)
    assert told == ["measure what this machine can do, once"]
    for curve in (found.reads, found.copies, found.writes):
        assert [size for size, _ in curve] == sorted(size for size, _ in curve)
        assert all(1e7 < speed < 1e13 for _, speed in curve)
    assert set(measuring._FUNCTIONS) < set(found.operations)
    assert found.operations["exp"] < found.operations["plain"]
    assert 0 < found.start < 1e-3
    assert all(found.operations[f"product {name}"] > 1e6 for name in ("float32", "float64", "bfloat16", "float16"))
    assert measuring.machine("cpu", config, told.append) == found == measuring.of_target("cpu", config)
    assert len(told) == 1


def test_a_card_that_is_not_here_is_known_by_its_kind() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    found = measuring.of_target("cuda:sm_90", Config())
    assert found is not None and not found.measured
    assert found.operations["product bfloat16"] > found.operations["product float32"] > found.operations["plain"]


def test_what_is_asked_again_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, times = Config(cache_dir=tmp_path), list[str]()
    monkeypatch.setattr(measuring, "_measured", lambda device, config: times.append(device) or FOUND)
    for again in (False, False, True):
        assert measuring.machine("cpu", config, again=again) == FOUND
    assert times == ["cpu", "cpu"]
    assert measure.recalled(config, measuring._question("cpu")) is not None


def _layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1).t().contiguous() * 2


def test_kernels_and_operators_are_timed_with_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "machine", lambda device, config, say: FOUND)
    given = torch.randn(256, 128), torch.randn(128, 64)
    from fuselens import api
    from fuselens.config import from_environment

    result = api.compare(_layer, given, {}, config=from_environment(), function="layer")
    told = measuring.with_machine(result, given, from_environment(), lambda _: None)
    assert told.machine == FOUND
    forward = [k for k in told.kernels if k.phase == "forward" and not k.trains]
    assert all(k.seconds and k.limits for k in told.kernels)
    (product,) = (k for k in forward if k.library)
    assert product.operations == {"product float32": 2.0 * 256 * 128 * 64}
    assert (product.read, product.written) == (4 * (256 * 128 + 128 * 64), 4 * 256 * 64)
    (softmax,) = (k for k in forward if "softmax" in k.name)
    assert softmax.operations["exp"] == 256 * 64
    assert any(k.trains for k in told.kernels) and any(k.phase == "backward" for k in told.kernels)


def test_the_report_says_what_each_kernel_does() -> None:
    report = fuselens.explain(_layer)(torch.randn(256, 128), torch.randn(128, 64))
    (graph,) = report.graphs
    assert [work.library for work in graph.work][0] and sum(not work.library for work in graph.work) == len(
        graph.kernels
    )
    for kernel in graph.kernels:
        (work,) = (w for w in graph.work if w.name == kernel.name)
        assert (work.read, work.written) == (kernel.bytes_read, kernel.bytes_written)


def _product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def _sorted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvalsh(torch.sort(x[:, :64]).values[:64])


@pytest.mark.parametrize("function", [_product, _sorted])
def test_functions_of_libraries_alone_are_timed(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "machine", lambda device, config, say: FOUND)
    given = torch.randn(256, 128), torch.randn(128, 64)
    from fuselens import api
    from fuselens.config import from_environment

    result = api.compare(function, given, {}, config=from_environment(), function="layer", gradients=False)
    told = measuring.with_machine(result, given, from_environment(), lambda _: None)
    assert told.kernels and all(k.library and k.seconds and k.limits for k in told.kernels), told.kernels


def test_calls_that_others_interrupt_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measuring._usual([8e-3] * 9 + [1.0e-5, 1.1e-5, 1.2e-5]) == 1.0e-5
    assert measuring._usual([1.0, 1.1, 1.2, 1.3]) == 1.1
    told = {16: iter((1.0, 40.0)), 32: iter((50.0,)), 64: iter((45.0,))}  # bytes a second: the smallest was interrupted

    class Timed:
        def __init__(self, *_: Any) -> None: ...

        def times(self, pieces: Any, seconds: float) -> list[Any]:
            size = next(pieces)[0].numel() * 4
            return [(None, [size / next(told[size])])]

    monkeypatch.setattr(measuring, "_Timed", Timed)
    found = measuring._curve((measuring._total,), 1, (16, 32, 64), "cpu", Config())
    assert found == ((16, 40.0), (32, 50.0), (64, 45.0))
