"""What torch itself does with compiled modules: saved states, workers, and processes that are started after compiling.

Checkpoints, averages of weights, ``GradScaler``, exported programs, operators of ``torch.library``, copies and threads have
tests beside the stages that they are about.
"""

from __future__ import annotations

import io
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fuselens
from tests.libraries.against_eager import agree, graphs

pytestmark = pytest.mark.usefixtures("fresh")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.norm(self.a(x))))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def x(seed: int = 0) -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))


def double(x: Tensor) -> Tensor:
    return torch.sin(x) * 2 + x


compiled_double = fuselens.compile(double)


def test_states_go_both_ways(tmp_path: Path) -> None:
    eager = net()
    compiled = fuselens.compile(net())
    eager(x())
    compiled(x())
    assert list(fuselens.compile(net()).state_dict()) == list(eager.state_dict())
    torch.save(compiled.state_dict(), tmp_path / "state.pt")
    other = fuselens.compile(net(1))
    other(x())
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    agree(other.eval()(x(1)), eager.eval()(x(1)))


def test_a_module_is_saved_whole() -> None:
    compiled = fuselens.compile(net().eval())
    expected = compiled(x())
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    agree(torch.load(file, weights_only=False)(x()), expected)


class Numbers(Dataset):
    """Items that a compiled function makes, in the process that asks."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return compiled_double(torch.full((4,), float(index)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers(start: str) -> None:
    agree(compiled_double(torch.ones(4)), double(torch.ones(4)))
    loader: Any = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=start)
    found = torch.cat(list(loader))
    agree(found, double(torch.arange(8.0)[:, None].expand(8, 4)))


def child(pipe: Any, model: nn.Module) -> None:
    torch.set_num_threads(1)
    loss = model(x()).square().mean()
    loss.backward()
    pipe.send((loss.item(), [p.grad.tolist() for p in model.parameters() if p.grad is not None]))


def eager_backward() -> None:
    torch.ones(2, requires_grad=True).sum().backward()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_train_after_compiling(start: str) -> None:
    compiled = fuselens.compile(net().eval())
    with torch.no_grad():  # after a backward torch refuses one in a fork, eagerly too
        compiled(x())
    context = multiprocessing.get_context(start)
    eager = context.Process(target=eager_backward)
    eager.start()
    eager.join(60)
    if eager.exitcode != 0:
        pytest.skip("a test before this one ran a backward: torch refuses one in a fork, eagerly too")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there, compiled))
    process.start()
    assert here.poll(120)
    found, gradients = here.recv()
    process.join(60)
    assert process.exitcode == 0
    eager = net().eval()
    loss = eager(x()).square().mean()
    loss.backward()
    agree(found, loss.item())
    agree([torch.tensor(g) for g in gradients], [p.grad for p in eager.parameters() if p.grad is not None])


def test_loaded_weights_compile_nothing() -> None:
    compiled = fuselens.compile(net().eval())
    compiled(x())
    before = graphs(compiled)
    eager = net(2).eval()
    compiled.load_state_dict(eager.state_dict())
    agree(compiled(x()), eager(x()))
    assert graphs(compiled) == before
