"""Sparse gradients of embeddings: in eager's layout, with eager's indices, for optimisers that take them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens

ROWS, WIDTH = 10, 4
INDICES = (torch.tensor([[1, 2, 1]]), torch.tensor([[1, 2, 1, 0], [3, 3, 1, 3]]))


class Looked(nn.Module):
    """Two tables whose gradients have the same values at other indices."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True, **options)  # type: ignore[arg-type]
        self.other = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, indices: Tensor) -> Tensor:
        return self.linear(self.table(indices) + self.other(indices + 1)).tanh()


class Bags(Looked):
    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding_bag(indices, self.table.weight, mode="sum", sparse=True).sin()


class Gathered(Looked):
    def forward(self, indices: Tensor) -> Tensor:
        return torch.gather(self.table.weight, 1, indices, sparse_grad=True).sin()


class Twice(Looked):
    def forward(self, indices: Tensor) -> Tensor:
        return self.table(indices) * self.table(indices + 1)


class Tied(Looked):
    def forward(self, indices: Tensor) -> Tensor:
        return self.table(indices) @ self.table.weight.T


def gradients(run: nn.Module, model: nn.Module, indices: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    run(indices).square().sum().backward()
    return [p.grad for p in model.parameters()]


def assert_alike(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for f, e in zip(found, expected, strict=True):
        if f is None or e is None:
            assert f is e
            continue
        assert (f.layout, f.shape, f.dtype) == (e.layout, e.shape, e.dtype)
        if e.is_sparse:
            assert f.is_coalesced() == e.is_coalesced()
            torch.testing.assert_close(f._indices(), e._indices())
            f, e = f._values(), e._values()
        torch.testing.assert_close(f, e)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", [Looked, Bags, Gathered, Twice, Tied])
def test_gradients_have_eagers_layout(kind: type[Looked], dynamic: bool | None) -> None:
    torch.manual_seed(0)
    model = kind()
    twin = copy.deepcopy(model)
    compiled = fuselens.compile(twin, dynamic=dynamic)
    for indices in INDICES:
        assert_alike(gradients(compiled, twin, indices), gradients(model, model, indices))


def test_graph_is_whole() -> None:
    model = Looked()
    report = fuselens.explain(model)(INDICES[0])
    assert not report.uncompiled
    assert not any(graph.fallback for graph in report.graphs)
    assert not report.breaks


def test_padding_gets_no_gradient() -> None:
    model = Looked(padding_idx=1)
    twin = copy.deepcopy(model)
    assert_alike(gradients(fuselens.compile(twin), twin, INDICES[1]), gradients(model, model, INDICES[1]))


def test_sparse_optimiser_trains() -> None:
    model = Looked()
    twin = copy.deepcopy(model)
    for run, of in ((model, model), (fuselens.compile(twin), twin)):
        optimizer = torch.optim.SparseAdam([of.table.weight, of.other.weight], lr=0.1)
        for indices in INDICES:
            gradients(run, of, indices)
            optimizer.step()
    torch.testing.assert_close(twin.table.weight, model.table.weight)


def test_second_derivatives() -> None:
    model = Looked()
    twin = copy.deepcopy(model)

    def curvature(run: nn.Module, of: Looked) -> Tensor:
        (g,) = torch.autograd.grad(run(INDICES[0]).square().sum(), of.linear.weight, create_graph=True)
        g.square().sum().backward()
        assert of.table.weight.grad is not None
        return of.table.weight.grad

    assert_alike([curvature(fuselens.compile(twin), twin)], [curvature(model, model)])


def test_gradient_of_one_result_of_two() -> None:
    """The backward that knows missing tangents gives sparse gradients, too."""
    torch.manual_seed(0)

    class Two(Looked):
        def forward(self, indices: Tensor) -> Tensor:  # type: ignore[override]
            return self.table(indices).sin(), self.other(indices).cos()  # type: ignore[return-value]

    model = Two()
    twin = copy.deepcopy(model)

    def of_first(run: nn.Module, of: Looked) -> list[Tensor | None]:
        run(INDICES[1])[0].sum().backward()
        return [p.grad for p in of.parameters()]

    assert_alike(of_first(fuselens.compile(twin), twin), of_first(model, model))
