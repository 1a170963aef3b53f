"""Losses and metrics, as people write them."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float32, Int64
from torch import Tensor, nn

import fuselens

EPSILON = 1e-6


@fuselens.compile
def masked_mean(values: Float32[Tensor, "n"], mask: Bool[Tensor, "n"]):
    total = mask.sum()
    if total == 0:
        return values.sum() * 0
    return (values * mask).sum() / total


@fuselens.compile
def scaled_by_maximum(x: Float32[Tensor, "n 8"]):
    top = x.abs().max().item()
    return x / (top + EPSILON)


@fuselens.compile
def perplexity(logits: Float32[Tensor, "n 11"], targets: Int64[Tensor, "n"] = None):
    loss = F.cross_entropy(logits, logits.argmax(-1))
    return math.exp(loss.item())


@fuselens.compile
def smoothed(prediction: Float32[Tensor, "n"], target: Float32[Tensor, "n"], beta: float = 1.0):
    error = (prediction - target).abs().mean()
    if error < beta:
        loss = 0.5 * error**2 / beta
    else:
        loss = error - 0.5 * beta
    return loss


@fuselens.compile
def clipped_loss(x: Float32[Tensor, "n"], limit: float = 0.5):
    loss = (x * x).mean()
    if loss > limit:
        loss = loss * 0.1
    return loss


@fuselens.compile(example_inputs=(torch.randn(6, 5), torch.tensor([0, 3, 1, 4, 2, 2])))
def label_smoothing(logits, labels):
    classes = F.one_hot(labels).float()
    smooth = classes * 0.9 + 0.02
    return -(smooth * logits.log_softmax(-1)).sum(-1).mean()


@fuselens.compile
def accuracy(logits: Float32[Tensor, "n 4"], other: Float32[Tensor, "n 4"]):
    correct = (logits.argmax(-1) == other.argmax(-1)).sum().item()
    return correct / logits.shape[0]


@fuselens.compile
def dice(prediction: Float32[Tensor, "n 16"], target: Float32[Tensor, "n 16"]):
    p = prediction.sigmoid()
    t = (target > 0).float()
    intersection = (p * t).sum()
    union = p.sum() + t.sum()
    assert union > 0, "empty masks"
    return 1 - 2 * intersection / union


@fuselens.compile
def contrastive(anchor: Float32[Tensor, "n 8"], positive: Float32[Tensor, "n 8"]):
    scores = F.normalize(anchor, dim=-1) @ F.normalize(positive, dim=-1).T
    print(f"scores between {scores.min():.2f} and {scores.max():.2f}")
    return F.cross_entropy(scores, torch.arange(len(scores)))


@fuselens.compile
def weighted(losses: Float32[Tensor, "3 n"]):
    weights = np.array([0.5, 0.3, 0.2])
    total = 0
    for w, l in zip(weights, losses):
        total = total + float(w) * l.mean()
    return total


@fuselens.compile
def numpy_mean(x: Float32[Tensor, "n 8"]):
    center = np.mean(x.detach().numpy())
    return x - float(center)


@fuselens.compile
def hard_negatives(loss: Float32[Tensor, "n"]):
    positive = loss > 0.5
    kept = loss[positive]
    if len(kept) == 0:
        return loss.mean()
    return kept.mean()


@fuselens.compile
def nan_guard(loss: Float32[Tensor, "n"]):
    loss = loss.mean()
    if torch.isnan(loss):
        loss = torch.zeros_like(loss)
    return loss


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma
        self.register_buffer("running", torch.zeros(()))

    def forward(self, logits, labels):
        probability = logits.softmax(-1).gather(1, labels[:, None]).squeeze(1)
        loss = (-((1 - probability) ** self.gamma) * probability.log()).mean()
        self.running = 0.9 * self.running + 0.1 * loss.item()
        return loss


focal = fuselens.compile(FocalLoss(), example_inputs=(torch.randn(6, 5), torch.tensor([0, 3, 1, 4, 2, 2])))
