"""Heads of detectors, and what comes after them."""

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor, nn

import fuselens


def area(boxes):
    return (boxes[:, 2] - boxes[:, 0]).clamp(min=0) * (boxes[:, 3] - boxes[:, 1]).clamp(min=0)


@fuselens.compile
def filtered(boxes: Float32[Tensor, "n 4"], scores: Float32[Tensor, "n"], threshold: float = 0.0):
    keep = scores > threshold
    boxes = boxes[keep]
    return boxes * 2


@fuselens.compile
def filtered_sum(x: Float32[Tensor, "n 4"], threshold: float = 0.0):
    return x[x > threshold].sum()


@fuselens.compile
def best_box(boxes: Float32[Tensor, "n 4"], scores: Float32[Tensor, "n"]):
    best = scores.argmax().item()
    return boxes[best] * scores[best]


@fuselens.compile
def counted(scores: Float32[Tensor, "n"]):
    found = torch.nonzero(scores > 0)
    count = len(found)
    return scores / max(count, 1)


@fuselens.compile
def counted_positive(scores: Float32[Tensor, "n"]):
    count = int((scores > 0).sum())
    return scores / (count + 1)


@fuselens.compile
def matched(iou: Float32[Tensor, "n m"], threshold: float = 0.5):
    best, index = iou.max(dim=1)
    if best.max() > threshold:
        index = torch.where(best > threshold, index, torch.full_like(index, -1))
    return index


@fuselens.compile
def sorted_by_score(a: Float32[Tensor, ""], b: Float32[Tensor, ""], c: Float32[Tensor, ""]):
    scores = sorted([a, b, c], reverse=True)
    return scores[0] - scores[1]


@fuselens.compile
def largest(a: Float32[Tensor, ""], b: Float32[Tensor, ""], c: Float32[Tensor, ""]):
    top = max([a, b, c])
    return top * 2


@fuselens.compile
def largest_of_two(a: Float32[Tensor, ""], b: Float32[Tensor, ""]):
    return max(a, b) - min(a, b)


@fuselens.compile
def anchors(features: Float32[Tensor, "2 3 4 4"], stride: int = 8):
    height, width = features.shape[-2:]
    ys = torch.from_numpy(np.arange(height) * stride)
    xs = torch.from_numpy(np.arange(width) * stride)
    grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij"), -1)
    return features.sum() + grid.float().sum()


@fuselens.compile
def labels_of(scores: Float32[Tensor, "n 3"]):
    names = ["cat", "dog", "bird"]
    best = scores.mean(0).argmax().item()
    return names[best], scores.max()


@fuselens.compile
def empty_proposals(boxes: Float32[Tensor, "n 4"]):
    keep = area(boxes) > 0
    if not keep.any():
        return torch.zeros(())
    return area(boxes).sum()


@fuselens.compile
def centred(points: Float32[Tensor, "n 2"]):
    x, y = points.mean(0).tolist()
    return points - torch.tensor([x, y])


@fuselens.compile
def cropped(image: Float32[Tensor, "3 16 16"], corner: Float32[Tensor, "2"]):
    top = int(corner[0].clamp(0, 8))
    left = int(corner[1].clamp(0, 8))
    return image[:, top : top + 8, left : left + 8].mean()


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 3)
        self.box = nn.Linear(8, 4)

    def forward(self, features):
        scores = self.score(features).softmax(-1)
        boxes = self.box(features)
        if self.training:
            return scores, boxes
        top, label = scores.max(-1)
        keep = top > 0.3
        if keep.sum() > 0:
            boxes = boxes * keep[:, None]
        return label, boxes


head = fuselens.compile(Head().eval(), example_inputs=(torch.randn(6, 8),))
