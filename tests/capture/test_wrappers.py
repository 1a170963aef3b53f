"""Tensors of classes with ``__torch_dispatch__`` that wrap others: what is guarded, what runs as kernels, what gradients are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import fuselens
from tests.peers.program import some
from tests.peers.programs.subclasses import Compressed, Pair, Quantised, Scaled


def codes(compiled: Any) -> list[str]:
    report = compiled.__fuselens__.recorder.report
    return [d.code for d in (*report.breaks, *report.diagnostics)]


def graphs(compiled: Any) -> int:
    return len(compiled.__fuselens__.recorder.report.graphs)


def kernels(compiled: Any) -> list[str]:
    return [k.name for g in compiled.__fuselens__.recorder.report.graphs for k in g.kernels]


def test_what_the_wrapper_tells_is_guarded() -> None:
    """Another context is another graph; other numbers in the tensors are not."""
    compiled = fuselens.compile(lambda t: t + 1)
    for scale, expected in ((2.0, 1), (2.0, 1), (3.0, 2), (2.0, 2), (3.0, 2)):
        t = Scaled(torch.rand(4), scale)
        torch.testing.assert_close(compiled(t), t.inner * scale + 1)
        assert graphs(compiled) == expected
    compiled(some(4))
    assert graphs(compiled) == 3
    compiled(Pair(some(4), some(4)))
    assert graphs(compiled) == 4


def test_a_number_that_varies_is_known_where_a_wrapper_tells_it() -> None:
    def fn(x: torch.Tensor, k: int) -> tuple[Any, int, torch.Tensor]:
        return Scaled(x, k), Scaled(x, k + 1).scale, x * k

    compiled = fuselens.compile(fn)
    for k in (2, 3, 4, 3):
        wrapper, told, product = compiled(x := some(4), k)
        assert (type(wrapper.scale), type(told)) == (int, int)
        assert (wrapper.scale, told) == (k, k + 1)
        torch.testing.assert_close(product, x * k)


def test_what_it_holds_is_guarded() -> None:
    compiled = fuselens.compile(lambda p: p * 2)
    for p in (Pair(some(4), some(4)), Pair(some(4).double(), some(4).double()), Pair(some(2, 3).t(), some(2, 3).t())):
        found = compiled(p)
        torch.testing.assert_close(found.second, p.second * 2)
        assert found.second.dtype is p.second.dtype
    assert graphs(compiled) == 3
    assert "FL301" not in codes(compiled)


def test_wrappers_of_one_tensor_are_not_those_of_two() -> None:
    compiled = fuselens.compile(lambda p, q: p.sin() + q)
    shared = some(4)
    for other in (shared, shared + 5, shared):
        p, q = Pair(shared, some(4)), Pair(other, some(4) + 2)
        torch.testing.assert_close(compiled(p, q).first, shared.sin() + other)
    assert graphs(compiled) == 2


class Tolerant(Scaled):
    """A class that takes some contexts for equal."""

    @staticmethod
    def __tensor_unflatten__(inner, scale, size, stride):
        return Tolerant(inner["inner"], scale)

    @classmethod
    def __metadata_guard__(cls, before, now):
        return before == now or {before, now} == {2.0, 4.0}


def test_a_class_may_say_what_is_guarded() -> None:
    compiled = fuselens.compile(lambda t: t + 1)
    for scale, expected in ((2.0, 1), (4.0, 1), (3.0, 2)):
        compiled(Tolerant(some(4), scale))
        assert graphs(compiled) == expected


def test_kernels_read_what_is_wrapped() -> None:
    model = Compressed().requires_grad_(False)
    compiled = fuselens.compile(model)
    x = some(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    assert graphs(compiled) == 1
    assert len(kernels(compiled)) > 1
    assert "FL301" not in codes(compiled)


def trained(function: Any) -> list[torch.Tensor]:
    """Gradients and losses of three steps."""
    p, x = torch.nn.Parameter(Pair(some(4), some(4) * 2)), some(4)
    found = []
    for _ in range(3):
        loss = function(p, x)
        loss.backward(Pair(torch.ones(()), torch.ones(())))
        found += [p.grad.first, p.grad.second, loss.first.detach()]
        assert type(p.grad) is Pair
        with torch.no_grad():
            p.first.sub_(p.grad.first)
        p.grad = None
    return found


def test_gradients_are_wrappers() -> None:
    def step(p, x):
        return ((p * x).sin() * p).sum()

    compiled = fuselens.compile(step)
    for found, wanted in zip(trained(compiled), trained(step), strict=True):
        torch.testing.assert_close(found, wanted)
    assert graphs(compiled) == 1
    assert {"FL301"}.isdisjoint(codes(compiled))
    assert any("backward" in name for name in kernels(compiled))


def test_gradients_of_others_pass_through() -> None:
    model, x = Compressed(), some(2, 4).requires_grad_()
    compiled = fuselens.compile(model)
    compiled(x).sum().backward()
    found = [x.grad, *(p.grad for p in model.parameters() if p.requires_grad)]
    x.grad = None
    model.zero_grad()
    model(x).sum().backward()
    for one, other in zip(found, [x.grad, *(p.grad for p in model.parameters() if p.requires_grad)], strict=True):
        torch.testing.assert_close(one, other)
    assert {"FL301"}.isdisjoint(codes(compiled))


def test_one_that_is_made_may_be_kept() -> None:
    """A wrapper that the graph makes lives on in an object, and is the same in each place."""

    class Keeper:
        weight: Any = None

        def __call__(self, t):
            self.weight = Quantised.of(t)
            return self.weight, [self.weight]

    keeper = Keeper()
    one, (other,) = fuselens.compile(keeper)(some(3, 4))
    assert one is other is keeper.weight
    wanted = Quantised.of(some(3, 4))
    torch.testing.assert_close(one.values_, wanted.values_)
    torch.testing.assert_close(one.scale, wanted.scale)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A mesh of this process alone."""
    if not dist.is_available():
        pytest.skip("torch was built without distributed computing")
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    except RuntimeError as error:
        pytest.skip(f"no group of processes: {error}")  # gloo looks for the address of this host
    from torch.distributed.device_mesh import init_device_mesh

    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_distributed_tensors(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x = distribute_tensor(some(4, 3), mesh, [Shard(0)])
    w = distribute_tensor(some(3, 2), mesh, [Replicate()])

    def layer(x, w):
        return (x @ w).relu() * 2 + 1

    compiled = fuselens.compile(layer)
    found, wanted = compiled(x, w), layer(x, w)
    assert found.placements == wanted.placements
    torch.testing.assert_close(found.to_local(), wanted.to_local())
    assert (graphs(compiled), codes(compiled)) == (1, [])
    assert kernels(compiled)


def test_distributed_tensors_are_made_and_laid_out_anew(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    x = distribute_tensor(some(4, 3), mesh, [Shard(0)])

    def local(x, t):
        made = DTensor.from_local(t * 2, mesh, [Replicate()]) * 3
        whole = x.redistribute(placements=[Replicate()]).full_tensor().mean()
        return made.to_local() + x.to_local().sum() + whole, made.placements[0].is_replicate()

    compiled = fuselens.compile(local)
    found, wanted = compiled(x, some(3)), local(x, some(3))
    torch.testing.assert_close(found[0], wanted[0])
    assert found[1] is wanted[1]
    assert (graphs(compiled), codes(compiled)) == (1, [])


class Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_a_module_of_parallel_layers_trains(mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = parallelize_module(Perceptron(), mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    compiled = fuselens.compile(model)
    gradients = []
    for function in (model, compiled):
        function(some(4, 3)).sum().backward()
        gradients.append([p.grad.full_tensor().clone() for p in model.parameters()])
        model.zero_grad()
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted)
    assert (graphs(compiled), codes(compiled)) == (1, [])
