"""Inputs that a module's layers imply."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuselens.slices import described, inferred


class Digits(nn.Module):
    """As in many tutorials: two convolutions, a pool, and a linear layer whose width only one image size has."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(128, 10)  # registered first, seen last
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout, self.fc = nn.Dropout(0.25), nn.Linear(9216, 128)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.out(F.relu(self.fc(torch.flatten(self.dropout(x), 1)))), dim=1)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(784, 20), nn.Linear(20, 784)

    def forward(self, x: Any) -> Any:
        return torch.sigmoid(self.outer(F.relu(self.inner(x.view(-1, 784)))))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(50, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, sentence: Any, lengths: Any = None) -> Any:
        return self.out(self.lstm(self.words(sentence))[0])


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 2)
        )

    def forward(self, one: Any, other: Any) -> Any:
        return self.body(one) - self.body(other)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * x.sum().item()


CASES: dict[str, tuple[nn.Module, list[str] | None]] = {
    "digits": (Digits(), ["f32[2, 1, 28, 28]"]),
    "autoencoder": (Autoencoder(), ["f32[2, 784]"]),
    "tagger": (Tagger(), ["i64[2, 16]"]),
    "twins": (Twins(), ["f32[2, 3, 32, 32]", "f32[2, 3, 32, 32]"]),
    "half precision": (nn.Sequential(nn.Linear(6, 3)).bfloat16(), ["bf16[2, 6]"]),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(100, 8, 4), nn.Tanh()), ["f32[2, 100, 1, 1]"]),
    "transformer": (nn.TransformerEncoderLayer(8, 2, batch_first=True), ["f32[2, 16, 8]"]),
    "no parameters": (nn.ReLU(), ["f32[2]"]),
    "reads a value": (Reads(), ["f32[2, 4]"]),
    "two operands": (nn.Bilinear(3, 4, 5), ["f32[2, 3]", "f32[2, 4]"]),
}


@pytest.mark.parametrize("name", CASES)
def test_layers(name: str) -> None:
    module, expected = CASES[name]
    state = {n: t.clone() for n, t in module.state_dict().items()}
    generator = torch.get_rng_state()
    made = inferred(module)
    assert (None if made is None else [described(t) for t in made]) == expected
    assert torch.equal(torch.get_rng_state(), generator)
    assert module.training
    for n, t in module.state_dict().items():
        assert torch.equal(t, state[n]) and t.device.type == "cpu"
    if made is not None:
        module(*made)
