"""numpy through torch: arrays that are made from tensors, given, written to and returned."""

from __future__ import annotations

import numpy as np
import torch

from ..program import Programs, some

programs = Programs()


@programs(lambda: (some(3, 4),))
def function_of_an_array(t):
    return np.sum(t.numpy(), axis=0)


@programs(lambda: (some(3, 4),))
def methods(t):
    a = t.numpy()
    return a.mean(1) + a.max(axis=1) * a.T.shape[0]


@programs(lambda: (np.arange(6.0).reshape(2, 3),))
def array_argument(a):
    return np.exp(a) @ a.T


@programs(lambda: (some(4),))
def back_to_a_tensor(t):
    return torch.from_numpy(np.cumsum(t.numpy())) + 1


@programs(lambda: (some(3, 3),))
def norms(t):
    return np.linalg.norm(t.numpy(), axis=1)


@programs(lambda: (some(8),))
def fourier(t):
    return np.abs(np.fft.fft(t.numpy()))


@programs(lambda: (some(3, 4),))
def sorted_along_an_axis(t):
    a = t.numpy()
    return np.take_along_axis(a, np.argsort(-a, axis=1), axis=1)


@programs(lambda: (some(4),))
def in_place(t):
    a = t.numpy().copy()
    a += 2
    a[1:] *= 3
    return a


@programs(lambda: (some(4),))
def where(t):
    a = t.numpy()
    return np.where(a > 0.4, a, 0)


@programs(lambda: (some(4),))
def iteration(t):
    total = 0
    for value in t.numpy():
        total = total + value * 2
    return total


@programs(lambda: (some(4),))
def asarray(t):
    return np.asarray(t) + np.ones(4, dtype=np.float32)


@programs(lambda: (some(2, 3),))
def stacked_and_cast(t):
    a = t.numpy()
    return np.stack([a, a * 2]).reshape(-1, 3).astype(np.float64)


@programs(lambda: (some(4),))
def scalars(t):
    return t * np.float32(2) + np.pi


@programs(lambda: (some(4),))
def products(t):
    a = t.numpy()
    return np.dot(a, a) + np.einsum("i,i->", a, a)


@programs(lambda: (np.array([3, 1, 2, 1]),))
def unique(a):
    return np.unique(a)


@programs(lambda: (some(4),))
def clipped_and_rounded(t):
    return np.clip(np.round(t.numpy(), 1), 0.2, 0.5)


@programs(lambda: (some(4),), gap="the numbers of an array are taken eagerly, and no graph is made")
def as_a_list(t):
    return t.numpy().tolist()


@programs(lambda: (some(4),))
def attributes(t):
    a = t.numpy()
    return a.dtype == np.float32, a.ndim, a.size, a.itemsize


@programs(lambda: (some(3),))
def concatenated(t):
    return np.concatenate([t.numpy(), np.zeros(2, np.float32)])


@programs(lambda: (some(2, 3), np.arange(3)))
def indexed_by_an_array(t, a):
    return t.numpy()[:, a[::-1]]


@programs(lambda: (some(2, 3),))
def broadcast(t):
    return np.broadcast_to(t.numpy()[0], (4, 3)) + np.expand_dims(np.arange(4), 1)
