"""Inputs made ready: NumPy, lists, and numbers out of tensors."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor

import fuselens


@fuselens.compile
def normalised(image: Float32[Tensor, "3 h w"]):
    mean = np.array([0.485, 0.456, 0.406], dtype=np.float32)
    std = np.array([0.229, 0.224, 0.225], dtype=np.float32)
    return (image - torch.from_numpy(mean)[:, None, None]) / torch.from_numpy(std)[:, None, None]


@fuselens.compile
def clipped(x: Float32[Tensor, "n"]):
    return torch.from_numpy(np.clip(x.detach().numpy(), -1, 1))


@fuselens.compile
def square_root(x: Float32[Tensor, "n"]):
    return np.sqrt(x.shape[0]) * x


@fuselens.compile
def numpy_exp(x: Float32[Tensor, "n"]):
    scale = np.exp(-x.abs().mean().item())
    return x * scale


@fuselens.compile
def padded(x: Float32[Tensor, "n 8"], lengths: Int64[Tensor, "2"] = None):
    length = x.shape[0]
    target = int(np.ceil(length / 4) * 4)
    return F.pad(x, (0, 0, 0, target - length))


@fuselens.compile
def positional(x: Float32[Tensor, "n 8"]):
    position = np.arange(8) / 8.0
    return x + torch.tensor(position, dtype=torch.float32)


@fuselens.compile
def standardised(x: Float32[Tensor, "n 8"]):
    array = x.detach().cpu().numpy()
    array = (array - array.mean()) / (array.std() + 1e-6)
    return torch.from_numpy(array)


@fuselens.compile
def listed(x: Float32[Tensor, "4"]):
    return sum(x.tolist())


@fuselens.compile
def rebuilt(x: Float32[Tensor, "4"]):
    values = [v * 2 for v in x.tolist()]
    return torch.tensor(values)


@fuselens.compile
def first_value(x: Float32[Tensor, "n"]):
    if x[0].item() > 0:
        return x
    return -x


@fuselens.compile
def rounded(x: Float32[Tensor, "n"]):
    levels = round(x.abs().max().item())
    return torch.round(x * levels)


@fuselens.compile
def quantised(x: Float32[Tensor, "n"], bits: int = 8):
    low, high = x.min().item(), x.max().item()
    scale = (high - low) / (2**bits - 1)
    return torch.round((x - low) / (scale + 1e-8))


@fuselens.compile
def buckets(x: Float32[Tensor, "n"]):
    counts = np.histogram(x.detach().numpy(), bins=4)[0]
    return x.sum() + float(counts.max())


@fuselens.compile
def masked_fill(x: Float32[Tensor, "n 8"]):
    mask = x > 0
    if mask.any():
        x[mask] = 0.0
    return x + 1


@fuselens.compile
def filled(n: Float32[Tensor, ""], x: Float32[Tensor, "k"]):
    value = n.item()
    return torch.full((4,), value) + x.sum()


@fuselens.compile
def power(x: Float32[Tensor, "n"], p: Float32[Tensor, ""]):
    return x.abs() ** float(p)
