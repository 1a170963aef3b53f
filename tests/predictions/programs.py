"""Programs whose breaks are predicted and compiled: what models and training code do, with and without breaks."""

import copy
import dataclasses
import functools
import logging
import math
import os
import random
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float32, Int64
from torch import Tensor, nn

import fuselens

compiled = functools.partial(fuselens.compile, backend="eager")
log = logging.getLogger(__name__)
lock = threading.Lock()
X = Float32[Tensor, "n 8"]
DEBUG = False
LIMIT = 3


def checked(x, limit=1e9):
    if torch.isnan(x).any():
        raise ValueError("not a number")
    return x.clamp(max=limit)


def described(x, verbose):
    if verbose:
        print("mean", x.mean())
    return x


@fuselens.disable
def excluded(x):
    return x + 1


@dataclasses.dataclass
class State:
    hidden: Tensor
    step: int = 0


class Block(nn.Module):
    def __init__(self, width=8, noisy=False, check=True):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("seen", torch.zeros(100))
        self.noisy = noisy
        self.check = check

    def forward(self, x):
        if self.noisy:
            print("block")
        if self.check and self.seen.sum() > 100:
            x = x * 0.5
        return F.relu(self.linear(x)) * self.scale


class Network(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(depth)])
        self.head = nn.Sequential(nn.Linear(8, 8), Block(noisy=True, check=False))
        self.rnn = nn.LSTM(8, 8)
        self.history = []

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        if len(self.blocks) > LIMIT:
            print("deep")
        x = self.head(x)
        x, _ = self.rnn(x)
        return self.pooled(x)

    def pooled(self, x):
        weights = torch.softmax(x.mean(-1), 0)
        if weights.max() > 0.9:
            return x.max(dim=0).values
        return (weights.unsqueeze(-1) * x).sum(0)


class Quiet(nn.Module):
    def __init__(self, heads=2, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)

    def forward(self, x, mask=None):
        n, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, 3, self.heads, width // self.heads).unbind(1)
        scores = torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(width // self.heads)
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        if self.training and self.dropout > 0:
            scores = F.dropout(scores, self.dropout)
        return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v).reshape(n, width)


network = compiled(Network(), example_inputs=(torch.randn(3, 8),))
instance = Quiet()
quiet = compiled(instance, example_inputs=lambda: (torch.randn(4, 8),))


@compiled
def output(x: X, verbose: bool = False):
    print("start", x.shape)
    log.info("mean of %d rows", x.shape[0])
    if verbose:
        print("never")
    if DEBUG:
        print("never either")
    if not torch.compiler.is_compiling():
        print("only eagerly")
    return x * 2


@compiled
def helpers(x: X):
    x = checked(x)
    x = described(x, verbose=False)
    x = described(x, True)
    return excluded(x)


@compiled
def scalars(x: X):
    a = x.sum().item()
    b = float(x.mean())
    c = int(x[0, 0])
    values = x[0].tolist()
    s = f"{x.max():.3f}"
    n = int(x.shape[0]) + len(x) + float(LIMIT)
    return x * a + b + c + values[0] + n, s


@compiled
def branches(x: X, y: X, k: int = 3):
    if x.sum() > 0:
        x = x + 1
    while y.abs().max() > 10:
        y = y / 2
    assert torch.isfinite(x).all()
    z = x if (x > y).any() else y
    if k > 2 and x.dim() == 2 and x.shape[0] > 1:
        z = z * 2
    if x is not None and isinstance(y, Tensor):
        z = z + 1
    if k > 5:
        print("big")
    return z


@compiled
def logic(x: X, y: X):
    a = x.sum() and y.sum()
    b = not y.any()
    c = 0 < x.mean() < 1
    d = (x > 0) & (y > 0) | ~torch.isnan(x)
    e = x.sum() in [y.sum()]
    f = x is y
    return a, b, c, d, e, f


@compiled
def comprehensions(x: X, k: int = 3):
    rows = [row for row in x if row.sum() > 0]
    even = [x[i] for i in range(k) if i % 2 == 0]
    doubled = {i: row * 2 for i, row in enumerate(x)}
    return rows, even, doubled


@compiled
def shapes_from_data(x: X, m: Bool[Tensor, "n 8"]):
    a = x.nonzero()
    b = x[x > 0]
    c = torch.unique(x)
    d = x[m & (x < 1)]
    e = torch.masked_select(x, m)
    (i,) = torch.where(x[:, 0] > 0)
    return a, b, c, d, e, i


@compiled
def shapes_from_shapes(x: X, m: Bool[Tensor, "n 8"], i: Int64[Tensor, "k"]):
    x = x.clone()
    x[m] = 0
    a = torch.where(x > 0, x, 0.0)
    b = x[i % 4]
    c = x.view(-1, 4)[:, :2].masked_fill(m.view(-1, 4)[:, :2], 1.0)
    d = torch.zeros(x.shape[0], 3), torch.arange(x.size(1)), x.topk(2).values
    return a, b, c, d


@compiled
def sorting(x: X):
    parts = [x.sum(), x.mean(), x.max()]
    parts.sort()
    best = max(x.sum(), x.mean())
    total = sum(p for p in parts)
    return sorted([3, 1, 2]), best, total, x.sort(dim=0).values, max(x.shape)


@compiled
def arrays(x: X):
    a = np.sqrt(x.numpy())
    b = torch.from_numpy(x.numpy())
    c = np.array([1, 2])
    n = np.prod(x.shape)
    return a, b, c, n, np.pi


@compiled
def outside(x: X):
    started = time.perf_counter()
    noise = random.random()
    torch.manual_seed(0)
    there = os.path.exists("/nowhere")
    time.sleep(0)
    return x + noise + torch.rand(3, 1)[:1], started > 0, there


@compiled
def contexts(x: X):
    with torch.no_grad():
        x = x + 1
    with torch.autocast("cpu", enabled=False):
        x = x * 2
    with lock:
        x = x - 1
    with open(os.devnull) as f:
        x = x / 2
    return x, f.name


@compiled
def handlers(x: X):
    try:
        y = x / 2
        print("tried")
    except ValueError:
        print("failed")
        y = x
    finally:
        z = x + 1
    return y, z


@compiled
def copies(x: X):
    y = copy.deepcopy(x)
    z = copy.copy(x)
    return y, z, copy.deepcopy({"k": [1, 2]})


@compiled
def nested(x: X):
    def inner(v, scale=2):
        if v.sum() > 0:
            return v * scale
        return v

    squared = lambda v: v * v.mean().item()  # noqa: E731
    return inner(x) + squared(x)


@compiled
def states(x: X):
    state = State(x)
    for _ in range(2):
        state.hidden = state.hidden.tanh()
        state.step += 1
    if state.hidden.norm() > 1:
        state.hidden = state.hidden / 2
    return state.hidden, state.step


@compiled
def loops(x: X):
    total = 0
    count = 0
    for row in x:
        total = total + row.sum()
        count += 1
    if total > 3:
        x = x + 1
    if count > 3:
        x = x + 2
    return x


@compiled
def unannotated(x, y, flag=False):
    z = torch.matmul(x, y.transpose(0, 1))
    if flag:
        return z
    if (z > 0).all():
        z = z + 1
    return z


@compiled
def reads_its_frame(x: X):
    return x + len(locals())


@compiled
def generates(x: X):
    print("inside")
    yield x + 1


@compiled
def training_step(x: X, target: Int64[Tensor, "n"]):
    loss = F.cross_entropy(x, target.clamp(0, 7))
    accuracy = (x.argmax(dim=-1) == target).float().mean()
    if loss.isnan():
        loss = torch.zeros_like(loss)
    return loss, accuracy


@compiled
def classes(x: X, labels: Int64[Tensor, "n"]):
    a = F.one_hot(labels.abs())
    b = F.one_hot(labels.clamp(0, 3), 4)
    return a, b, torch.bincount(labels.abs())


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = 2.0

    @compiled
    def forward(self, x: X) -> Tensor:
        return self.helper(x) * self.gain + self.offset

    def helper(self, x):
        return x - x.mean().item()

    @property
    def offset(self):
        log.debug("offset")
        return 1.0


@fuselens.compile(options={"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}, backend="eager")
def captured(x: X):
    return x.sum().item() * x, x.nonzero()
