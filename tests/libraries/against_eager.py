"""Runs a program of a library eagerly and compiled, compares what both leave, and counts graphs."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import fuselens


def _import_torchvision() -> None:
    """Libraries import it. Where its build is not of torch's kind (with and without CUDA), its operators are not there, which nobody
    calls here, and importing it raises for want of their names."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


_import_torchvision()
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


def graphs(compiled: Any) -> int:
    """The graphs that were captured for what ``fuselens.compile`` gave."""
    return len(compiled.__fuselens__.recorder.report.captured)


def agree(found: Any, expected: Any, **close: float) -> None:
    torch.testing.assert_close(found, expected, **(close or CLOSE))


def computes(function: Callable[..., Any], *calls: Sequence[Any], **close: float) -> int:
    """Each call gives what eager gives, twice; the number of graphs."""
    compiled = fuselens.compile(function)
    for arguments in [*calls, *calls]:
        torch.manual_seed(1)
        expected = function(*arguments)
        torch.manual_seed(1)
        agree(compiled(*arguments), expected, **close)
    return graphs(compiled)


def steps(
    model: nn.Module, loss: Callable[..., Tensor], batches: Sequence[Sequence[Any]], compiles: bool
) -> tuple[dict[str, Any], int]:
    """What some steps of SGD leave of a copy of ``model``: losses, the last gradients and the state; and the graphs."""
    torch.manual_seed(1)
    net = copy.deepcopy(model)

    def called(*arguments: Any) -> Tensor:
        return loss(net, *arguments)

    compiled = fuselens.compile(called) if compiles else called
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for batch in batches:
        optimiser.zero_grad()
        value = compiled(*batch)
        value.backward()
        optimiser.step()
        losses.append(value.detach())
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    left = {"losses": losses, "gradients": gradients, "state": dict(net.state_dict())}
    return left, graphs(compiled) if compiles else 0


def trains(model: nn.Module, loss: Callable[..., Tensor], batches: Sequence[Sequence[Any]], **close: float) -> int:
    """Training leaves what eager leaves, and changes the weights; the number of graphs."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected, _ = steps(model, loss, batches, compiles=False)
    found, count = steps(model, loss, batches, compiles=True)
    assert any(not torch.equal(expected["state"][name], value) for name, value in before.items())
    agree(found, expected, **close)
    return count
