"""Libraries that take the name of a backend take ours, and train to eager's weights."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fuselens

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


def accelerated(**how: Any) -> list[Tensor]:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, **how)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
        optimizer.step()
    accelerator.free_memory()
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("how", ["name", "plugin", "member"])
def test_accelerate(how: str) -> None:
    utils = accelerate.utils
    given: dict[str, Any] = {
        "name": lambda: {"dynamo_backend": "fuselens"},
        "plugin": lambda: {"dynamo_plugin": utils.TorchDynamoPlugin(backend="fuselens")},
        "member": lambda: {"dynamo_backend": utils.DynamoBackend("FUSELENS")},
    }[how]()
    torch.testing.assert_close(accelerated(**given), accelerated())
    assert [b.value for b in utils.DynamoBackend].count("FUSELENS") == 1


@pytest.mark.parametrize("first", ["fuselens", "accelerate.utils", "accelerate"])
def test_whichever_is_imported_first(first: str) -> None:
    program = f"import {first}, fuselens, accelerate.utils as u; print(u.DynamoBackend('FUSELENS').value, u.DynamoBackend.FUSELENS.name)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["FUSELENS", "FUSELENS"], done.stderr


def trained(place: Path, **how: Any) -> list[Tensor]:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    model = transformers.LlamaForCausalLM(config)
    data = [{"input_ids": (ids := torch.randint(0, 50, (12,))), "labels": ids} for _ in range(8)]
    arguments = transformers.TrainingArguments(
        str(place), per_device_train_batch_size=4, max_steps=3, report_to=[], save_strategy="no", use_cpu=True, seed=0,
        disable_tqdm=True, **how,
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=data).train()
    return [p.detach() for p in model.parameters()]


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    compiled = trained(tmp_path, torch_compile=True, torch_compile_backend="fuselens")
    torch.testing.assert_close(compiled, trained(tmp_path), rtol=1e-3, atol=1e-4)


# --- what libraries ask of a callable, and of the backend -----------------------------------------------------------------


class Owner:
    @fuselens.compile
    def method(self, a: int, *, b: int = 2) -> int:
        return a * b


def test_parameters_of_a_compiled_function() -> None:
    def function(a: int, b: int = 2, *rest: int, c: int = 3) -> int:
        return a * b

    compiled = fuselens.compile(function)
    assert inspect.getfullargspec(compiled) == inspect.getfullargspec(function)
    assert inspect.signature(compiled) == inspect.signature(function)
    assert inspect.getfullargspec(Owner().method).kwonlyargs == ["b"]
    compiled.__signature__ = inspect.Signature()
    assert inspect.signature(compiled) == inspect.Signature()
    del compiled.__signature__
    assert inspect.getfullargspec(compiled).args == ["a", "b"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_below_torch_compile_draws_once(reentrant: bool) -> None:
    torch.manual_seed(0)
    block, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)), torch.randn(4, 8, requires_grad=True)

    def loss(x: Tensor) -> Any:
        return checkpoint(block, x, use_reentrant=reentrant).sum()

    def gradient(call: Any) -> Any:
        block.zero_grad()
        torch.manual_seed(1)
        call(x).backward()
        weight: Any = block[0].weight
        return weight.grad.clone()

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="fuselens", options={"fallback_random": True})
    torch.testing.assert_close(gradient(compiled), gradient(loss))


def test_symbolic_sizes_below_torch_compile() -> None:
    layer = nn.Linear(8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: layer(x).relu() * x.shape[0], backend="fuselens", dynamic=True)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), layer(x).relu() * rows)
