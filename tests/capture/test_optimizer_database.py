"""Every optimiser that torch's own test suite knows, with all its configurations, compared with eager.

``step`` alone, with a rate that changes, with groups of parameters, and a whole training step: losses, parameters, gradients
and the optimiser's state after five steps. A seeded part runs always, all of it in ``make sweep``.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuselens
from fuselens.inputs import comparison
from fuselens.record import report

from .databases import database

OPTIMIZERS = {info.optim_cls.__name__: info for info in database("common_optimizers").optim_db}
STEPS = 5
FALLBACKS = ("FL301", "FL402", "FL404")
MODES = ("step", "changing rate", "groups", "training step")

# optimisers whose step is split where data decides what is done: by the rectification, by items, by a line search
SPLIT = ("RAdam", "ASGD", "Adafactor", "LBFGS", "SparseAdam")


def configurations(info: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    flags = [f for f in info.supported_impls if f != "fused" or "cpu" in info.supports_fused_on]
    for given in info.optim_inputs_func("cpu"):
        base = {**given.kwargs, **dict.fromkeys(info.supported_impls, False)}
        yield given.desc, base
        for flag in flags:
            yield f"{given.desc} {flag}", {**base, flag: True}


CASES = [
    (name, description, kwargs, mode)
    for name, info in OPTIMIZERS.items()
    for description, kwargs in configurations(info)
    for mode in (MODES if name != "LBFGS" else MODES[:1])
    if not (kwargs.get("differentiable") and mode == "training step")
]
IN_CI = random.Random(4).sample(CASES, 24)


def trained(compile_: Callable[[Any], Any], name: str, kwargs: dict[str, Any], mode: str) -> Any:
    torch.manual_seed(0)
    kwargs = copy.deepcopy(kwargs)
    bias = name != "Muon"  # which takes matrices only
    model: nn.Module = nn.Sequential(nn.Linear(4, 6, bias=bias), nn.Tanh(), nn.Linear(6, 3, bias=bias))
    if name == "SparseAdam":
        model = nn.Embedding(10, 3, sparse=True)
    parameters = list(model.parameters())
    if kwargs.get("differentiable"):
        parameters = [p.detach().clone().requires_grad_().clone() for p in parameters]
        for p in parameters:
            p.retain_grad()
    groups = [{"params": parameters[:1], "lr": 0.02}, {"params": parameters[1:]}]
    with_groups = mode == "groups" and len(parameters) > 1
    optimizer = OPTIMIZERS[name].optim_cls(groups if with_groups else parameters, **kwargs)

    def loss_of(x: Any, y: Any) -> Any:
        return F.mse_loss(model(x), y)

    def closure(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        return loss

    def step() -> None:
        optimizer.step()

    def step_with(evaluate: Any) -> Any:
        return optimizer.step(evaluate)

    def training_step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses, random_ = [], torch.Generator().manual_seed(3)
    run = compile_(training_step if mode == "training step" else step_with if name == "LBFGS" else step)
    for _ in range(STEPS):
        x = (
            torch.randint(0, 10, (7,), generator=random_)
            if name == "SparseAdam"
            else torch.randn(7, 4, generator=random_)
        )
        y = torch.randn(7, 3, generator=random_)
        if mode == "training step":
            losses.append(run(x, y).clone())
        elif name == "LBFGS":
            losses.append(run(lambda x=x, y=y: closure(x, y)).detach())
        elif kwargs.get("differentiable"):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=random_)
            run()
        else:
            closure(x, y)
            run()
        for group in optimizer.param_groups if mode == "changing rate" else ():
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].mul_(0.9)
            else:
                group["lr"] *= 0.9
    values = [p.detach() for p in parameters]
    state = optimizer.state_dict()["state"]
    detached = {
        i: {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in s.items()} if isinstance(s, dict) else s
        for i, s in state.items()
    }
    gradients = [p.grad.to_dense() if p.grad is not None and p.grad.is_sparse else p.grad for p in parameters]
    return losses, values, detached, gradients


def training_agrees(name: str, kwargs: dict[str, Any], mode: str, backend: str = "eager") -> list[report.Diagnostic]:
    """Asserts that training agrees with eager; what the report says of graphs that ran eagerly."""
    if name == "Adafactor" and kwargs.get("foreach") and torch.__version__ < "2.12":
        pytest.skip("this torch leaves out the dtype while compiling, and then asserts it")
    reports: list[Any] = []

    def compile_(function: Any) -> Any:
        compiled = fuselens.compile(function, backend=backend)
        reports.append(compiled.__fuselens__.recorder.report)
        return compiled

    expected = trained(lambda f: f, name, kwargs, mode)
    actual = trained(compile_, name, kwargs, mode)
    if (
        name == "LBFGS"
    ):  # which makes much of the last digit: twenty iterations a step, each on the last one's differences
        expected, actual = expected[0][:2], actual[0][:2]
    difference = comparison.differ(expected, actual, name)
    assert difference is None, difference
    refusals = [d for d in reports[0].diagnostics if d.code in FALLBACKS]
    if name in SPLIT:
        return refusals
    allowed = {"FL114", "FL122"} if mode == "training step" else set()
    if kwargs.get("differentiable"):
        allowed |= {"FL104", "FL105", "FL106"}  # gradients of tensors that are no leaves
    assert {b.code for b in reports[0].breaks} <= allowed, reports[0].breaks
    return refusals


def _id(value: Any) -> str | None:
    return value.replace(" ", "-") if isinstance(value, str) else ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "description", "kwargs", "mode"), IN_CI, ids=_id)
def test_trains_as_eager(name: str, description: str, kwargs: dict[str, Any], mode: str) -> None:
    training_agrees(name, kwargs, mode)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "description", "kwargs", "mode"), CASES, ids=_id)
def test_all_train_as_eager(name: str, description: str, kwargs: dict[str, Any], mode: str) -> None:
    training_agrees(name, kwargs, mode)


def training_agrees_by_default(name: str, kwargs: dict[str, Any], mode: str) -> None:
    refusals = training_agrees(name, kwargs, mode, "fuselens")
    assert kwargs.get("fused") or not refusals, refusals


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "description", "kwargs", "mode"), IN_CI[::5], ids=_id)
def test_trains_by_default(name: str, description: str, kwargs: dict[str, Any], mode: str) -> None:
    training_agrees_by_default(name, kwargs, mode)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "description", "kwargs", "mode"), CASES, ids=_id)
def test_all_train_by_default(name: str, description: str, kwargs: dict[str, Any], mode: str) -> None:
    training_agrees_by_default(name, kwargs, mode)
