"""numpy through torch: numbers, functions of constants, arrays that share memory with tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fuselens
from fuselens.inputs import comparison

from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


def grid():
    return np.arange(6, dtype=np.float32).reshape(2, 3)


def read_only():
    a = np.ones(3, dtype=np.float32)
    a.setflags(write=False)
    return a


@case(t(3))
def to_numpy(x):
    a = x.numpy()
    return a, x * 2, a.shape, a.ndim, a.dtype, a.size, torch.from_numpy(a) + 1


@case(t(3))
def shared_memory(x):
    y = x * 2
    a, b = x.numpy(), y.numpy()
    a += 1
    b += 1
    return x * 2, y, a, b


@case(t(3))
def new_axes(x):
    a = x.numpy()
    made = torch.from_numpy(np.ones(3, np.float32)[None])
    return a[None], a[:, None].strides, torch.from_numpy(a[None, :, None]), np.expand_dims(a, 0), made, made * 2


@case(t(3, 2))
def of_views(x):
    return x.t().numpy(), x[0].numpy(), (x + 1)[:, 1].numpy()


@case(t(3, grad=True), breaks="FL104")
def refused(x):
    try:
        x.numpy()
    except RuntimeError as e:
        return str(e), x.detach().numpy(), x.numpy(force=True)


@case(lambda: grid())
def from_arrays(a):
    x = torch.from_numpy(a)
    x.add_(1)
    return a, x, x is torch.from_numpy(a), torch.as_tensor(a), torch.as_tensor(a, dtype=torch.float64), torch.asarray(a)


@case(lambda: grid())
def copied_from_arrays(a):
    x = torch.tensor(a)
    x.add_(1)
    return a, x, torch.tensor(a, dtype=torch.int32)


@case(lambda: read_only(), breaks="FL104")
def not_writeable(a):
    return torch.tensor(a) * 2, a.flags.writeable


@case(lambda: np.arange(6)[::-1], breaks="FL104")
def negative_strides(a):
    try:
        return torch.from_numpy(a)
    except ValueError as e:
        return str(e)


@case(lambda: np.array(["a"]), breaks="FL104")
def of_strings(a):
    try:
        return torch.from_numpy(a)
    except TypeError as e:
        return str(e)


@case(t(3), lambda: np.float32(2.5), lambda: np.float64(1.5))
def numbers(x, s, d):
    return x * s, s * x, x + d, d - x, s + 1, d * 2.0, float(s), s.dtype, d.item(), x**s, torch.clamp(x, max=d), s > 1


@case(t(4, 4), lambda: np.int64(2), lambda: np.int8(3))
def integers(x, n, k):
    return (
        x[:n],
        x * n,
        x.int() * n,
        int(n),
        x[n],
        x.view(n, -1),
        [1, 2, 3][n],
        torch.zeros(k),
        range(n),
        x.sum(np.int64(1)),
    )


@case(t(3), lambda: np.bool_(True), breaks="FL104")
def truth(x, b):
    y = x + 1 if b else x - 1
    return y, x.int() * b, not b


@case(t(3))
def data(x):
    return (
        torch.tensor(np.float64(1)),
        torch.as_tensor(np.int8(1)),
        torch.tensor(np.float32(1)),
        torch.full((2,), np.int8(1)),
    )


@case(t(2, 3))
def constants(x):
    a = x * np.pi, x + np.inf, np.float32(3) * x, np.sqrt(2.0) * x, x * float(np.sqrt(x.shape[0])), np.log2(x.numel())
    return a, x.view(int(np.prod(x.shape))), x.reshape(np.prod(x.shape)), np.ceil(x.shape[0] / 2), np.maximum(1, 2.5)


@case(t(3))
def descriptions(x):
    f, i = np.finfo(np.float32), np.iinfo(np.int32)
    return (
        np.dtype("float32"),
        np.float32,
        np.issubdtype(np.float32, np.floating),
        i.max,
        f.eps,
        np.dtype(np.int8).itemsize,
    )


@case(lambda: grid(), t(2, 3))
def arrays_compute(a, x):
    b = np.sin(a) + a @ a.T[:, :1]
    return torch.from_numpy(b) + x[:, :1], a.sum(), np.concatenate([a, x.numpy()])


@case(t(3))
def bad_functions(x):
    try:
        np.reshape(2.0, (3,))
    except ValueError as e:
        return x + 1, str(e)


WEIGHTS = np.ones(3, dtype=np.float32)


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = np.ones(3, dtype=np.float32)

    def forward(self, x):
        return x + torch.from_numpy(self.a) * torch.as_tensor(WEIGHTS), x.shape[0] + self.a.shape[0]


@case(lambda: Holder(), t(3))
def held(m, x):
    return m(x)


@case(t(3))
def of_tensors(x):
    return torch.tensor([x[0], x[1]]), torch.tensor([[x.sum(), 1.0], [2, x[0]]]), torch.as_tensor((x.sum(), True))


@case(t(3, grad=True), t(2).double())
def of_mixed_tensors(x, y):
    return torch.tensor([x[0], y[0], 1]), torch.tensor([y.sum().int(), 1]), torch.tensor([x.sum() > 0, True])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_agrees_with_eager(program: Program) -> None:
    verify(program)


def scaled(x, s):
    return x * s


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
def test_numbers_are_guarded(backend: str) -> None:
    function = fuselens.compile(scaled, backend=backend, fullgraph=True)
    for s in (np.float64(2.5), np.float64(3.5), np.float32(2.5), np.int64(2), 2, np.float64(2.5)):
        assert comparison.differ(scaled(t(3), s), function(t(3), s), "result") is None


def joined(a, x):
    y = torch.from_numpy(a)
    y.mul_(2)
    return y + x, a.shape[0]


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
def test_arrays_are_guarded(backend: str) -> None:
    function = fuselens.compile(joined, backend=backend, fullgraph=True)
    both = np.ones(3, dtype=np.float32)
    for make in (
        lambda: (np.ones(3, dtype=np.float32), t(3)), lambda: (np.ones(3), t(3)), lambda: (np.ones((2, 3)), t(3)),
        lambda: (np.ones((3, 2)).T, t(3)), lambda: (np.ones(3, dtype=np.float32), t(3)),
        lambda: (a := both.copy(), torch.from_numpy(a)),
    ):  # fmt: skip
        given, too = make(), make()
        assert comparison.differ((joined(*given), given), (function(*too), too), "result") is None
