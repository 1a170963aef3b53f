"""Optimisers' steps compiled to kernels that write in place, twenty steps against eager, under a scheduler."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import fuselens
from fuselens.inputs import comparison

from .test_modules import t

STEPS = 20
CASES: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD decay": lambda p: optim.SGD(p, lr=0.001, weight_decay=0.01, maximize=True, foreach=False),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, foreach=True),
    "SGD nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "Adam foreach": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1, foreach=True),
    "Adam amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, maximize=True, foreach=True),
    "Adam fused": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True, fused=True),
    "Adam with a tensor as rate": lambda p: optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "AdamW loop": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True, foreach=False),
    "AdamW foreach": lambda p: optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: optim.AdamW(p, lr=0.01, fused=True, maximize=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.01, weight_decay=0.01),
    "Adagrad fused": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.01, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "RMSprop foreach": lambda p: optim.RMSprop(p, lr=0.01, weight_decay=0.01, foreach=True),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01, decoupled_weight_decay=True, weight_decay=0.01),
    "NAdam foreach": lambda p: optim.NAdam(p, lr=0.01, foreach=True),
}
# where a program's own breaks and operators without loops are expected: nothing is promised but eager's results
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, STEPS),
    "steps": lambda o: optim.lr_scheduler.StepLR(o, 4, 0.5),
    "none": lambda o: None,
}


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))


def training(compile_: Callable[[Any], Any], make: Callable[[Any], Any], schedule: str) -> Any:
    model = net()
    optimiser = make(model.parameters())
    scheduler = SCHEDULES[schedule](optimiser)
    step = compile_(optimiser.step)
    pointers = [p.data_ptr() for p in model.parameters()]
    for i in range(STEPS):
        optimiser.zero_grad(set_to_none=i % 2 == 0)
        F.mse_loss(model(t(5, 6, seed=i)), t(5, 3, seed=i + 100)).backward()
        step()
        if scheduler is not None:
            scheduler.step()
    assert pointers == [p.data_ptr() for p in model.parameters()]
    state = optimiser.state_dict()
    parameters = list(model.parameters())
    return [p.detach() for p in parameters], [p.grad for p in parameters], [p._version for p in parameters], state


def reported(reports: list[Any]) -> Callable[[Any], Any]:
    def compile_(fn: Any) -> Any:
        compiled = fuselens.compile(fn)
        reports.append(compiled.__fuselens__.recorder.report)
        return compiled

    return compile_


@pytest.mark.parametrize("schedule", ["none", "cosine"])
@pytest.mark.parametrize("name", CASES)
def test_trains_as_eager(name: str, schedule: str) -> None:
    fuselens.reset()
    expected = training(lambda f: f, CASES[name], schedule)
    reports: list[Any] = []
    actual = training(reported(reports), CASES[name], schedule)
    difference = comparison.differ(expected[:2] + expected[3:], actual[:2] + actual[3:], name)
    assert difference is None, difference
    if "fused" not in name:
        assert expected[2] == actual[2]
    graphs = [g for g in reports[0].graphs if g.kernels or g.externs]
    assert graphs and not any(g.fallback for g in graphs), [*reports[0].breaks, *reports[0].diagnostics]
    assert not [e for g in graphs for e in g.externs]
    if schedule == "none" or "fused" not in name:  # which take the rate as a number of their own
        assert len(graphs) <= 3, "one that makes the state, one that updates it, one for all rates"
    written = [d for d in graphs[-1].decisions if d.code == "FL413"]
    assert written
    assert all(d.verdict == "taken" for d in written), "nothing is copied"


def test_a_rate_in_steps() -> None:
    fuselens.reset()
    difference = comparison.differ(
        training(lambda f: f, CASES["AdamW"], "steps")[0], training(fuselens.compile, CASES["AdamW"], "steps")[0], ""
    )
    assert difference is None, difference


CLIPPING: dict[str, Callable[[Any], Any]] = {
    "norm": lambda ps: nn.utils.clip_grad_norm_(ps, 0.1),
    "norm one by one": lambda ps: nn.utils.clip_grad_norm_(ps, 0.1, foreach=False),
    "largest": lambda ps: nn.utils.clip_grad_norm_(ps, 0.1, norm_type=float("inf")),
    "value": lambda ps: nn.utils.clip_grad_value_(ps, 0.1),
    "zero": lambda ps: [p.grad.zero_() for p in ps],
}


@pytest.mark.parametrize("name", CLIPPING)
def test_gradients_are_clipped(name: str) -> None:
    def run(clip: Callable[[Any], Any]) -> Any:
        parameters = list(net().parameters())
        given = []
        for i in range(3):
            for k, p in enumerate(parameters):
                p.grad = t(*p.shape, seed=10 * i + k)
            given.append(clip(parameters))
        return given, [p.grad for p in parameters]

    compiled = fuselens.compile(CLIPPING[name])
    difference = comparison.differ(run(CLIPPING[name]), run(compiled), name)
    assert difference is None, difference
    assert not [e for g in compiled.__fuselens__.recorder.report.graphs for e in g.externs]


def test_a_whole_step_in_one_function() -> None:
    def train(compile_: Callable[[Any], Any]) -> Any:
        model = net()
        optimiser = optim.AdamW(model.parameters(), lr=0.01)

        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            return loss.detach()

        run = compile_(step)
        losses = [run(t(5, 6, seed=i), t(5, 3, seed=i + 100)) for i in range(STEPS)]
        return losses, model.state_dict(), optimiser.state_dict()

    difference = comparison.differ(train(lambda f: f), train(fuselens.compile), "step")
    assert difference is None, difference


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_whole_step_breaks_at_its_backward_pass_alone(scheduled: bool) -> None:
    """A scheduler wraps ``step`` in a function that binds it again; ``zero_grad`` is what torch keeps from the peer."""
    model = net()
    optimiser = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(optimiser, 2, 0.5) if scheduled else None

    def step(x: Any, y: Any) -> Any:
        optimiser.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimiser.step()
        return loss.detach()

    compiled = fuselens.compile(step)
    for i in range(5):
        compiled(t(5, 6, seed=i), t(5, 3, seed=i + 100))
        if scheduler is not None:
            scheduler.step()
    assert {d.code for d in compiled.__fuselens__.recorder.report.breaks} == {"FL122"}


def test_averages_of_parameters() -> None:
    def run(compile_: Callable[[Any], Any]) -> Any:
        model = net()
        mean = optim.swa_utils.AveragedModel(model)
        moving = copy.deepcopy(model)

        def update() -> None:
            with torch.no_grad():
                for a, b in zip(moving.parameters(), model.parameters(), strict=True):
                    a.mul_(0.9).add_(b, alpha=0.1)

        step, average = compile_(update), compile_(mean.update_parameters)
        for i in range(5):
            with torch.no_grad():
                for k, p in enumerate(model.parameters()):
                    p.add_(t(*p.shape, seed=i * 10 + k))
            step()
            average(model)
        return moving.state_dict(), mean.state_dict()

    difference = comparison.differ(run(lambda f: f), run(fuselens.compile), "averages")
    assert difference is None, difference


def test_scaled_gradients_with_infinities() -> None:
    def train(compile_: Callable[[Any], Any]) -> Any:
        model = net()
        optimiser = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        optimiser.step = compile_(optimiser.step)
        for i in range(8):
            x = t(5, 6, seed=i)
            if i == 3:
                x[0, 0] = float("inf")
            optimiser.zero_grad()
            scaler.scale(F.mse_loss(model(x), t(5, 3, seed=i + 100))).backward()
            scaler.step(optimiser)
            scaler.update()
        return model.state_dict(), scaler.get_scale()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        difference = comparison.differ(train(lambda f: f), train(fuselens.compile), "scaled")
    assert difference is None, difference


BESIDE_THE_PEER = """
import torch, fuselens
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))  # marks optimisers as disabled
parameters = [torch.ones(4, requires_grad=True)]
parameters[0].grad = torch.ones(4)
optimiser = torch.optim.AdamW(parameters, fused=True)
step = fuselens.compile(optimiser.step)
step()
step()
report = step.__fuselens__.recorder.report
assert not report.breaks, report.breaks
assert any(g.kernels for g in report.graphs)
"""


def test_fused_optimisers_after_the_peer_has_run() -> None:
    subprocess.run([sys.executable, "-c", BESIDE_THE_PEER], check=True)


@pytest.mark.parametrize("shape", [(), (5,), (1,), (1, 5)])
@pytest.mark.parametrize("whole", [False, True])
def test_a_learned_value_for_what_a_mask_chooses(shape: tuple[int, ...], whole: bool) -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[mask] = value
        return y.tanh()

    mask = torch.rand(3, 4, 5) > 0.5 if whole else torch.rand(3, 4) > 0.5
    compiled, seen = fuselens.compile(fn), []
    x, value = torch.randn(3, 4, 5), torch.randn(shape)
    for function in (fn, compiled):
        leaves = [t.clone().requires_grad_() for t in (x, value)]
        try:
            out = function(leaves[0], mask, leaves[1])
            seen.append((out, torch.autograd.grad(out.sum(), leaves)))
        except (RuntimeError, IndexError) as error:
            seen.append(str(error))
    difference = comparison.differ(*seen, "")
    assert difference is None, difference
    if len(shape) <= (0 if whole else 1):
        assert "FL301" not in {d.code for d in compiled.__fuselens__.recorder.report.diagnostics}
