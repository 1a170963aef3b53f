"""Programs that say ``torch.set_default_device`` or ``with torch.device``: torch then asks a mode about every call."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens import config

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]),
]


@pytest.fixture(autouse=True, params=DEVICES)
def device(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    torch.set_default_device(request.param)
    fuselens.reset()
    with config.patch(cache_dir=tmp_path / "cache"):
        yield request.param
    torch.set_default_device(None)
    fuselens.reset()


def report(compiled: Any) -> Any:
    return compiled.__fuselens__.recorder.report


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.split(self.first(x), 4, -1)
        noise = torch.linspace(-1, 1, x.shape[0])[:, None] + torch.tensor([0.5])
        return self.second(F.gelu(torch.cat([a + noise, b], -1)))


def made(x: Tensor) -> Any:
    here = torch.zeros(x.shape[0], 3), torch.arange(x.shape[0]), torch.tensor(2.0), torch.full((2,), 3.0)
    return *here, torch.ones(2, device="cpu"), torch.empty_like(x).fill_(1), x + torch.eye(4)[0]


def test_what_is_made_is_on_it(device: str) -> None:
    compiled, x = fuselens.compile(made, fullgraph=True), torch.ones(5, 4)
    for result, expected in zip(compiled(x), made(x), strict=True):
        assert result.device == expected.device
        torch.testing.assert_close(result, expected)


def test_a_device_inside_of_another() -> None:
    def fn(x: Tensor) -> Any:
        with torch.device("meta"):
            inner = torch.zeros(3)
        return x + torch.zeros(3), inner

    x = torch.ones(3)
    compiled = fuselens.compile(fn)
    for result, expected in zip(compiled(x), fn(x), strict=True):
        assert result.device == expected.device and result.shape == expected.shape


def test_sizes_that_vary() -> None:
    compiled = fuselens.compile(made, fullgraph=True)
    for rows in (5, 6, 7, 9):
        x = torch.ones(rows, 4)
        torch.testing.assert_close(compiled(x), made(x))
    assert len(report(compiled).captured) == 2


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam])
@pytest.mark.parametrize("foreach", [False, True])
def test_optimizers(kind: Any, foreach: bool) -> None:
    parameters = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizer = kind(model.parameters(), lr=0.1, foreach=foreach)

        def step(model: nn.Module = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(torch.ones(4, 6)).square().sum().backward()
            optimizer.step()

        run = fuselens.compile(step) if compiles else step
        for _ in range(4):
            run()
        if compiles:
            assert not [d for d in report(run).diagnostics if d.severity in ("warning", "error")]
        parameters.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*parameters)


PROGRAM = """
import sys
import torch, fuselens
from fuselens.capture.frame.frame import FrameCompiler
from tests.integration.test_default_device import Net

torch.set_default_device(sys.argv[1])
traced, trace = [], FrameCompiler._trace
FrameCompiler._trace = lambda *args: (traced.append(args), trace(*args))[1]
torch.manual_seed(0)
with torch.set_grad_enabled(sys.argv[2] == "training"):
    result = fuselens.compile(Net(), fullgraph=True)(torch.ones(4, 6)).sum()
    if result.requires_grad:
        result.backward()
print("traced" if traced else "kept", result.item())
"""


@pytest.mark.parametrize("how", ["inference", "training"])
def test_the_next_process_traces_nothing(how: str, device: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "FUSELENS_CACHE_DIR": str(tmp_path / "kept")}
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, device, how], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [did for did, _ in found] == ["traced", "kept"] and found[0][1] == found[1][1]


def test_another_device_compiles_again() -> None:
    def fn(x: Tensor) -> Any:
        return x.sum().item(), torch.zeros(3)

    compiled, x = fuselens.compile(fn), torch.ones(3)
    before = compiled(x)[1].device
    torch.set_default_device("meta")
    assert compiled(x)[1].device.type == "meta"
    torch.set_default_device(None)
    assert compiled(x)[1].device.type == "cpu"
    torch.set_default_device(before)
    assert compiled(x)[1].device == before


def test_the_default_device_is_read() -> None:
    def fn(x: Tensor) -> Any:
        before = torch.get_default_device()
        with torch.device("meta"):
            inner, there = torch.get_default_device(), torch.zeros(2)
        return x + 1, before, inner, there.device, torch.get_default_device()

    x = torch.ones(3)
    assert fuselens.compile(fn)(x)[1:] == fn(x)[1:]


def test_numbers_that_tensors_hold() -> None:
    def fn(x: Tensor) -> Any:
        of_tensors = torch.tensor([x.sum(), x.max(), 2.0]), torch.tensor([[x.sum()], [1]], dtype=torch.float64)
        return *of_tensors, torch.tensor([x.sum()], device="cpu"), torch.as_tensor([x[0], 1])

    compiled, x = fuselens.compile(fn, fullgraph=True), torch.ones(3)
    for result, expected in zip(compiled(x), fn(x), strict=True):
        assert result.device == expected.device
        torch.testing.assert_close(result, expected)


@torch.library.custom_op("fuselens_tests::made_where_tensors_are", mutates_args=())
def made_where_tensors_are(x: Tensor) -> Tensor:
    return torch.zeros(x.shape) + x.to(torch.get_default_device())


@made_where_tensors_are.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape)


def test_operators_of_the_program_are_not_asked_for_it() -> None:
    """Torch leaves the mode while it runs them."""

    def fn(x: Tensor) -> Tensor:
        return made_where_tensors_are(x.cpu() * 2) + 1

    compiled, x = fuselens.compile(fn, fullgraph=True), torch.ones(3)
    result, expected = compiled(x), fn(x)
    assert result.device == expected.device
    torch.testing.assert_close(result, expected)


def test_nested_tensors() -> None:
    rows = [torch.randn(n, 4) for n in (2, 3)]
    found = []
    for fn in (torch.sin, fuselens.compile(torch.sin)):
        given = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        fn(given).values().square().sum().backward()
        assert given.grad is not None
        found.append(given.grad.values())
    torch.testing.assert_close(*found)


def test_a_mode_of_the_program_around_it() -> None:
    class Doubles(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.ones else result

    def fn(x: Tensor) -> Any:
        with torch.device("cpu"), Doubles():
            return x.cpu() + torch.ones(3)

    x = torch.ones(3)
    torch.testing.assert_close(fuselens.compile(fn)(x), fn(x))
