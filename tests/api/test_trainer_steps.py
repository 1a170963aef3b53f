"""Lightning's trainer calls a module's steps, not the module: they are compiled, too."""

from __future__ import annotations

import copy
import inspect
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fuselens

lightning = pytest.importorskip("lightning")

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Base(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, number: int) -> Tensor:
        return self(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Derived(Base):
    def training_step(self, batch: Any, number: int) -> Tensor:
        return super().training_step(batch, number) * 2

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("loss", self.training_step(batch, number))


def operators(graphs: list[Any]) -> list[list[str]]:
    return [[getattr(n.target, "__name__", n.target) for n in g.graph.nodes if n.op.startswith("call")] for g in graphs]


def test_steps_of_lightning_are_compiled() -> None:
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    def fit(module: Any) -> dict[str, Tensor]:
        batches = DataLoader(TensorDataset(torch.linspace(-1, 1, 32).view(8, 4)), batch_size=4)
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **QUIET)
        trainer.fit(module, batches, batches)
        return dict(trainer.callback_metrics)

    eager = Derived()
    given = copy.deepcopy(eager)
    assert fit(fuselens.compile(given, backend=backend)) == fit(eager)
    assert all(torch.equal(a, b) for a, b in zip(given.parameters(), eager.parameters(), strict=True))
    assert operators(graphs)[0] == ["linear", "square", "mean", "mul"]


def test_steps_are_those_of_the_module() -> None:
    module = Derived()
    compiled: Any = fuselens.compile(module, backend="eager", fullgraph=True)
    step, batch = compiled.training_step, (torch.ones(2, 4),)
    assert compiled.training_step is step
    assert torch.equal(step(batch, 0), module.training_step(batch, 0))
    assert len(step.__fuselens__.recorder.report.graphs) == 1
    assert inspect.signature(step) == inspect.signature(module.training_step)
    assert type(compiled).training_step is Derived.training_step
    assert isinstance(compiled.predict_step, types.MethodType)  # Lightning's own: not of this module
    assert copy.deepcopy(compiled).training_step is not step
    module.training_step = lambda batch, number: batch[0].sum()  # the program's own, as eager's trainer would call it
    assert compiled.training_step is module.training_step


def test_a_step_that_is_replaced_in_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fuselens.compile(Derived(), backend="eager")
    compiled.training_step((torch.ones(2, 4),), 0)
    monkeypatch.setattr(Derived, "training_step", lambda self, batch, number: batch[0].sum())
    assert float(compiled.training_step((torch.ones(2, 4),), 0)) == 8.0


def test_modules_of_others_have_no_steps() -> None:
    class Plain(nn.Module):
        def training_step(self, x: Tensor) -> Tensor:
            return x + 1

    compiled = fuselens.compile(Plain(), backend="eager")
    assert isinstance(compiled.training_step, types.MethodType)
