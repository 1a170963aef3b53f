"""TorchMetrics: functional ones, metrics that gather over batches, and collections, in compiled functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fuselens
from tests.libraries.against_eager import agree, computes

torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]


def batches() -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    return [(torch.rand(20, generator=drawn), torch.randint(0, 2, (20,), generator=drawn)) for _ in range(3)]


def classes() -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return torch.randn(20, 4, generator=drawn), torch.randint(0, 4, (20,), generator=drawn)


def regression(name: str) -> Any:
    return lambda: getattr(torchmetrics, name)()


METRICS = {
    "accuracy": lambda: torchmetrics.Accuracy(task="binary"),
    "F1": lambda: torchmetrics.F1Score(task="binary"),
    "AUROC": lambda: torchmetrics.AUROC(task="binary"),
    "squared error": regression("MeanSquaredError"),
    "correlation": regression("PearsonCorrCoef"),
    "mean": lambda: torchmetrics.MeanMetric(),
    "collection": lambda: torchmetrics.MetricCollection(
        [
            torchmetrics.Accuracy(task="binary"),
            torchmetrics.Precision(task="binary"),
            torchmetrics.Recall(task="binary"),
        ]
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_over_batches(name: str) -> None:
    def run(compiles: bool) -> Any:
        metric = METRICS[name]()

        def update(p: Tensor, t: Tensor) -> Tensor:
            values = p * 0.9 + 0.05
            target = t if name not in ("squared error", "correlation", "mean") else t.float()
            metric.update(values, target)
            return values.sum()

        called = fuselens.compile(update) if compiles else update
        sums = [called(*batch) for batch in batches()]
        first = metric.compute()
        metric.reset()
        called(*batches()[1])
        return sums, first, metric.compute()

    expected = run(False)
    agree(run(True), expected)
    assert str(expected[1]) != str(expected[2])


@pytest.mark.parametrize("name", ["binary_auroc", "binary_f1_score", "binary_confusion_matrix"])
def test_functional(name: str) -> None:
    import torchmetrics.functional.classification as functional

    assert computes(getattr(functional, name), *batches()) >= 1


@pytest.mark.parametrize("name", ["multiclass_accuracy", "multiclass_f1_score", "multiclass_confusion_matrix"])
def test_functional_of_classes(name: str) -> None:
    import torchmetrics.functional.classification as functional

    function = getattr(functional, name)
    assert computes(lambda p, t: function(p.softmax(-1), t, num_classes=4), classes()) >= 1
