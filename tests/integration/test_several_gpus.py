"""Graphs over several GPUs: their kernels would all run on the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from fuselens import torch_private
from fuselens.autograd.untraceable import Untraceable
from fuselens.pipeline import gpu, graphs


def run_of(*devices: str) -> Any:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for device in devices:
        x = graph.call_method("to", (graph.call_function(torch.relu, (x,)), device))
    graph.output((x,))
    module, mode = fx.GraphModule(torch.nn.Module(), graph), torch_private.fake_mode()
    with mode:
        fake = torch.empty(8, device="cuda:1")
    torch_private.propagate(module, mode, [fake])
    return SimpleNamespace(
        captured=SimpleNamespace(module=module, sizes=None, inputs=[], fakes=[fake], facts=None),
        loops=True,
        config=None,
    )


def test_they_run_eagerly() -> None:
    with pytest.raises(Untraceable, match=r"several GPUs \(cuda:0, cuda:1\)"):
        graphs._compile(run_of("cuda:0"))


def test_one_gpu_that_is_not_the_first_is_no_obstacle() -> None:
    assert gpu.devices(run_of("cuda:1", "cpu", "cuda:1").captured) == [torch.device("cuda:1")]
