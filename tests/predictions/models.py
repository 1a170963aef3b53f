"""Models and training code as people write them: breaks here and there, and switches that are off."""

import collections
import functools
import logging
import math
import os
import random
import time
import warnings
from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor

import fuselens

jit = functools.partial(fuselens.compile, backend="eager")
logger = logging.getLogger(__name__)


@dataclass
class Config:
    dim: int = 16
    heads: int = 2
    experts: int = 2
    debug: bool = False
    max_len: int = 8


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class MoE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.gate = nn.Linear(cfg.dim, cfg.experts)
        self.experts = nn.ModuleList([nn.Linear(cfg.dim, cfg.dim) for _ in range(cfg.experts)])

    def forward(self, x):
        logits = self.gate(x)
        weights, selected = torch.topk(logits.softmax(-1), 1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, _ = torch.where(selected == i)
            if rows.numel() == 0:
                continue
            out[rows] += weights[rows] * expert(x[rows])
        if self.cfg.debug:
            print("load", selected.bincount())
        return out


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(cfg.max_len, cfg.max_len)).bool())
        self.cache: Optional[Tensor] = None

    def forward(self, x, mask=None):
        t, c = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        att = q @ k.transpose(-2, -1) / math.sqrt(c)
        att = att.masked_fill(~self.mask[:t, :t], float("-inf"))
        if torch.isnan(att).any():
            logger.warning("nan in attention")
        return att.softmax(-1) @ v


class Model(nn.Module):
    def __init__(self, cfg: Config = Config()):
        super().__init__()
        self.cfg = cfg
        self.norm = RMSNorm(cfg.dim)
        self.attn = Attention(cfg)
        self.moe = MoE(cfg)
        self.steps = 0
        self.log_every = 100

    def forward(self, x, targets=None):
        self.steps += 1
        h = x + self.attn(self.norm(x))
        h = h + self.moe(h)
        loss = None
        if targets is not None:
            loss = F.mse_loss(h, targets)
            if not torch.isfinite(loss):
                raise RuntimeError("loss is not finite")
        if self.steps % self.log_every == 0:
            logger.info("step %d", self.steps)
        return h, loss


model = jit(Model(), example_inputs=lambda: (torch.randn(4, 16), torch.randn(4, 16)))


@jit
def nms(boxes: Float32[Tensor, "n 4"], scores: Float32[Tensor, "n"], thr: float = 0.5):
    order = scores.argsort(descending=True)
    keep = []
    count = 0
    while order.numel() > 0 and count < 3:
        i = order[0]
        keep.append(i)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        iou = area[order] / area[i]
        order = order[iou <= thr]
        count += 1
    return torch.stack(keep)


@jit
def beam(logits: Float32[Tensor, "b v"], k: int = 2):
    probs = F.log_softmax(logits, dim=-1)
    top, idx = probs.topk(k)
    done = []
    for b in range(top.size(0)):
        if top[b, 0] > -1.0:
            done.append(idx[b].tolist())
    best = max(range(k), key=lambda j: top[0, j].item())
    return top, done, best


@jit
def rl(obs: Float32[Tensor, "n 4"], reward: Float32[Tensor, "n"], eps: float = 0.1):
    q = obs.sum(-1)
    if random.random() < eps:
        a = torch.randint(0, 4, (1,))
    else:
        a = q.argmax()
    ret = 0.0
    out = []
    for r in reversed(reward.tolist()):
        ret = r + 0.99 * ret
        out.insert(0, ret)
    returns = torch.tensor(out)
    adv = (returns - returns.mean()) / (returns.std() + 1e-8)
    return a, adv


@jit
def clean(x: Float32[Tensor, "100 d"], labels: Int64[Tensor, "100"]):
    valid = ~torch.isnan(x).any(dim=1)
    x = x[valid]
    labels = labels[valid]
    classes = labels.unique()
    means = torch.stack([x[labels == c].mean(0) for c in classes])
    assert means.shape[0] == len(classes)
    return means


@jit
def metrics(pred: Float32[Tensor, "n c"], y: Int64[Tensor, "n"]):
    acc = (pred.argmax(1) == y).float().mean()
    loss = F.cross_entropy(pred, y % 3)
    result = {"acc": acc.item(), "loss": float(loss)}
    if result["acc"] > 0.5:
        logger.info("good %s", result)
    return result


@jit
def clip(grads: list[Float32[Tensor, "n"]], limit: float = 1.0):
    norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
    if norm > limit:
        grads = [g * (limit / norm) for g in grads]
    return grads, norm


@jit
def timing(x: Float32[Tensor, "n"]):
    t0 = time.time()
    y = x.sin()
    if os.environ.get("DEBUG"):
        print(y)
    dt = time.time() - t0
    warnings.warn("slow") if dt > 100 else None
    return y, dt


class Sampler:
    def __init__(self, temperature=1.0, top_k=None):
        self.temperature = temperature
        self.top_k = top_k

    @jit
    def sample(self, logits: Float32[Tensor, "v"]):
        logits = logits / self.temperature
        if self.top_k is not None:
            v, _ = logits.topk(self.top_k)
            logits[logits < v[-1]] = -float("inf")
        probs = logits.softmax(-1)
        token = torch.multinomial(probs, 1)
        if token.item() == 3:
            return None
        return token


class Out(NamedTuple):
    h: Tensor
    n: int


@jit
def named(x: Float32[Tensor, "n 4"]):
    out = Out(x.sum(1), x.shape[0])
    if out.h.max() > 0:
        x = x + 1
    if out.n > 2:
        x = x * 2
    a, *rest = x.unbind(1)
    return a, len(rest), [r.sum().item() for r in rest]


@jit
def converge(x: Float32[Tensor, "n n"], iters: int = 3, tol: float = 1e-4):
    v = torch.ones(x.shape[0])
    history = collections.deque(maxlen=2)
    for i in range(iters):
        w = x @ v
        w = w / w.norm()
        delta = (w - v).abs().max()
        history.append(delta)
        if delta < tol:
            break
        v = w
    return v, i


@jit
def quiet(x: Float32[Tensor, "n 8"], n: int = 4, mode: str = "a"):
    assert x.ndim == 2, f"bad {x.shape}"
    if mode not in ("a", "b"):
        raise ValueError(mode)
    chunks = x.chunk(2, dim=-1)
    y = sum(c * i for i, c in enumerate(chunks))
    pos = torch.arange(x.shape[0], device=x.device)
    emb = {k: torch.sin(pos / 10**k) for k in range(n)}
    z = torch.stack(list(emb.values())).T
    if z.shape[-1] != n or not x.is_contiguous():
        z = z[:, :n]
    try:
        w = y.view(-1, 2)
    except RuntimeError:
        w = y.reshape(-1, 2)
    return torch.cat([y, z], dim=-1), w, isinstance(x, nn.Parameter)
