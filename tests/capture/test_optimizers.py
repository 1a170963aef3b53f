"""Optimisers: a whole training step, and ``step`` alone, twenty times over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import fuselens
from fuselens.inputs import comparison

from .harness import agrees_with_eager
from .programs import t

STEPS = 20
CASES: list[tuple[str, Callable[[Any], Any]]] = [
    ("SGD", lambda p: optim.SGD(p, lr=0.1)),
    ("SGD with momentum", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=False)),
    ("SGD foreach", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True)),
    ("SGD fused", lambda p: optim.SGD(p, lr=0.1, fused=True)),
    ("Adam", optim.Adam),
    ("Adam foreach", lambda p: optim.Adam(p, foreach=True)),
    ("Adam fused", lambda p: optim.Adam(p, fused=True)),
    ("Adam amsgrad", lambda p: optim.Adam(p, foreach=False, amsgrad=True)),
    ("AdamW foreach", lambda p: optim.AdamW(p, foreach=True)),
    ("AdamW with a tensor as rate", lambda p: optim.AdamW(p, lr=torch.tensor(1e-3), foreach=False)),
    ("Adagrad", optim.Adagrad),
    ("RMSprop", lambda p: optim.RMSprop(p, momentum=0.9, centered=True)),
    ("Adadelta", optim.Adadelta),
    ("Adamax", optim.Adamax),
    ("NAdam", optim.NAdam),
    ("RAdam", optim.RAdam),
    ("ASGD", optim.ASGD),
    ("Rprop", optim.Rprop),
]


def training(compile_: Callable[[Any], Any], make: Callable[[Any], Any], whole: bool) -> Any:
    """Losses, parameters and the optimiser's state of a run in which the whole step is compiled, or ``step`` only."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimiser = make(model.parameters())
    schedule = optim.lr_scheduler.StepLR(optimiser, 7) if whole else None

    def step(x: Any, y: Any) -> Any:
        optimiser.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        update()
        if schedule is not None:
            schedule.step()
        return loss.detach()

    update = optimiser.step if whole else compile_(optimiser.step)
    run = compile_(step) if whole else step
    losses = [run(t(5, 4, seed=i), t(5, 2, seed=i + 100)).clone() for i in range(STEPS)]
    return losses, [p.detach() for p in model.parameters()], optimiser.state_dict()


@pytest.mark.parametrize("whole", [True, False], ids=["step function", "optimizer.step"])
@pytest.mark.parametrize("name, make", CASES, ids=[name for name, _ in CASES])
def test_trains_as_eager(name: str, make: Callable[[Any], Any], whole: bool) -> None:
    expected = training(lambda f: f, make, whole)
    fuselens.reset()
    actual = training(lambda f: fuselens.compile(f, backend="eager"), make, whole)
    difference = comparison.differ(expected, actual, name)
    assert difference is None, difference


@pytest.mark.parametrize("make", [CASES[0][1], CASES[1][1], CASES[11][1], CASES[12][1]])
def test_step_is_one_graph(make: Callable[[Any], Any]) -> None:
    reports: list[Any] = []

    def compile_(fn: Any) -> Any:
        compiled = fuselens.compile(fn, backend="eager")
        reports.append(compiled.__fuselens__.recorder.report)
        return compiled

    training(compile_, make, whole=False)
    assert len(reports[0].graphs) <= 2, "the first step makes the state, the others update it"


NUMBERS: list[Callable[..., Any]] = [
    lambda x, y, v: x.add(y, alpha=v),
    lambda x, y, v: torch.sub(x, y, alpha=v),
    lambda x, y, v: x.clone().add_(y, alpha=v),
    lambda x, y, v: x.addcdiv(y, y, value=v),
    lambda x, y, v: torch.addcmul(x, y, y, value=v),
    lambda x, y, v: x.clone().addcdiv_(y, y, value=v),
    lambda x, y, v: torch.addcdiv(x, 0.5, y, v),
    lambda x, y, v: x.add(1, alpha=v),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", NUMBERS, ids=range(len(NUMBERS)))
@pytest.mark.parametrize("shape", [(5,), ()], ids=["vector", "scalar"])
def test_numbers_in_tensors(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    kinds = (torch.float32, torch.float64, torch.bfloat16)
    for kind, other, number in [(k, o, n) for k in kinds for o in kinds[:1] for n in kinds[:2]]:
        x, y = (t(5, seed=i)[: 5 if shape else 1].reshape(shape) for i in (1, 2))
        x, y = x.to(kind), y.to(other).abs() + 1
        report = agrees_with_eager(function, (x, y, torch.tensor(0.37, dtype=number)))
        assert not report.breaks
    agrees_with_eager(function, (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64), torch.tensor(2)))
