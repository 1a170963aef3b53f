"""Training steps, schedules and their logging."""

import copy
import logging
import random
import time
import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Float32
from torch import Tensor, nn

import fuselens

log = logging.getLogger(__name__)
WARMUP = 10


@fuselens.compile
def logged_step(w: Float32[Tensor, "8 8"], x: Float32[Tensor, "n 8"]):
    y = x @ w
    loss = y.pow(2).mean()
    log.info("loss %.4f", loss.item())
    return loss


@fuselens.compile
def timed_step(w: Float32[Tensor, "8 8"], x: Float32[Tensor, "n 8"]):
    start = time.time()
    y = torch.relu(x @ w)
    elapsed = time.time() - start
    print("forward took", elapsed)
    return y.sum()


@fuselens.compile
def clipped_gradient(g: Float32[Tensor, "n"], max_norm: float = 1.0):
    norm = g.norm()
    if norm > max_norm:
        g = g * (max_norm / (norm + 1e-6))
    return g


@fuselens.compile
def clipped_by_coefficient(g: Float32[Tensor, "n"], max_norm: float = 1.0):
    norm = g.norm().item()
    scale = min(1.0, max_norm / (norm + 1e-6))
    return g * scale


@fuselens.compile
def mixup(x: Float32[Tensor, "n 8"], y: Float32[Tensor, "n 8"]):
    amount = random.random()
    return amount * x + (1 - amount) * y


@fuselens.compile
def warned(x: Float32[Tensor, "n"]):
    if not torch.isfinite(x).all():
        warnings.warn("activations are not finite")
    return x * 2


@fuselens.compile
def snapshot(w: Float32[Tensor, "8 8"], g: Float32[Tensor, "8 8"]):
    before = copy.deepcopy(w)
    w = w - 0.1 * g
    return (w - before).norm()


@fuselens.compile
def accumulated(x: Float32[Tensor, "n 8"], steps: int = 3):
    total = 0.0
    for i in range(steps):
        loss = (x * (i + 1)).sigmoid().mean()
        total += loss.item()
    return total / steps


@fuselens.compile
def dynamic_scale(g: Float32[Tensor, "n"], scale: float = 1024.0):
    g = g / scale
    found = torch.isinf(g).any() or torch.isnan(g).any()
    if found:
        g = torch.zeros_like(g)
    return g


@fuselens.compile
def history(x: Float32[Tensor, "n 8"], records: list = []):
    loss = x.pow(2).mean()
    records.append(loss.item())
    return loss


@fuselens.compile
def early_exit(x: Float32[Tensor, "n 8"]):
    for _ in range(3):
        update = torch.tanh(x) * 0.1
        if update.abs().max() < 1e-3:
            break
        x = x - update
    return x


@fuselens.compile
def scheduled(x: Float32[Tensor, "n"], step: Float32[Tensor, ""], base: float = 0.1):
    if step < WARMUP:
        lr = base * step / WARMUP
    else:
        lr = base * 0.5
    return x * lr


class Trainer:
    def __init__(self):
        self.model = nn.Linear(8, 8)
        self.verbose = True
        self.best = 1e9

    @fuselens.compile
    def evaluate(self, x: Float32[Tensor, "n 8"]):
        loss = self.model(x).pow(2).mean()
        if self.verbose:
            print(f"loss {loss.item():.3f}")
        return loss

    @fuselens.compile
    def guarded(self, x: Float32[Tensor, "n 8"]):
        out = self.model(x)
        try:
            scale = float(out.abs().max())
        except RuntimeError:
            scale = 1.0
        return out / scale


class EMA(nn.Module):
    def __init__(self, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        batch = x.mean(0)
        if self.ready:
            self.mean.lerp_(batch, 1 - self.decay)
        else:
            self.mean.copy_(batch)
            self.ready.fill_(True)
        return x - self.mean


ema = fuselens.compile(EMA(), example_inputs=(torch.randn(4, 8),))


class WithBackup(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        backup = copy.deepcopy(self.scale)
        out = self.linear(x) * backup
        return F.gelu(out)


backup = fuselens.compile(WithBackup(), example_inputs=(torch.randn(4, 8),))
