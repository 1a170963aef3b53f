"""The program's own Triton kernels on a GPU: compiled functions that launch them give what eager gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import fuselens

pytest.importorskip("triton")

from tests.kernels import from_functions
from tests.kernels import kernels as k

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()


@pytest.mark.parametrize("name", from_functions.FUNCTIONS)
def test_functions_that_kernels_call(name: str) -> None:
    from_functions.agrees(name, "cuda")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", from_functions.KERNELS)
def test_kernels_that_are_launched(name: str, dynamic: bool) -> None:
    if not (dynamic and name == from_functions.A_VIEW):
        from_functions.launches(name, "cuda", dynamic)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("name", k.FUNCTIONS)
def test_against_eager(name: str, mode: str) -> None:
    function = k.FUNCTIONS[name]
    compiled = fuselens.compile(function, mode=mode, fullgraph=True)
    for _ in range(7):  # recorded at the fourth call
        mine, theirs = k.inputs("cuda"), k.inputs("cuda")
        torch.testing.assert_close(compiled(*mine), function(*theirs))
        torch.testing.assert_close(mine, theirs)
    report = compiled.__fuselens__.recorder.report
    assert len(report.graphs) == 1 and not [d for d in report.diagnostics if d.code.startswith("FL3")]


@pytest.mark.parametrize("name", ["by_function_of_parameters", "tuned"])
def test_sizes_that_vary(name: str) -> None:
    function = k.FUNCTIONS[name]
    compiled = fuselens.compile(function, dynamic=True, fullgraph=True)
    for n in (100, 130, 1000, 4096):
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert len(compiled.__fuselens__.recorder.report.graphs) == 1


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_training(mode: str) -> None:
    given = [t.requires_grad_() for t in k.inputs("cuda")]
    compiled = fuselens.compile(k.trained, mode=mode, fullgraph=True)
    for _ in range(7):
        mine, theirs = copy.deepcopy(given), copy.deepcopy(given)
        found, wanted = compiled(*mine), k.trained(*theirs)
        found.backward()
        wanted.backward()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close([t.grad for t in mine], [t.grad for t in theirs])


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inputs_are_written_where_they_are(mode: str) -> None:
    compiled: Any = fuselens.compile(k.optimised, mode=mode, fullgraph=True)
    parameter, gradient = k.inputs("cuda")
    expected, address = parameter.clone(), parameter.data_ptr()
    for _ in range(7):
        compiled(parameter, gradient)
        k.optimised(expected, gradient)
    torch.testing.assert_close(parameter, expected)
    assert parameter.data_ptr() == address
    assert [x.name for x in compiled.__fuselens__.recorder.report.kernels] == ["add_kernel"]
