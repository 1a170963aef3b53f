"""Strides of results are eager's exactly, along dimensions of size 1 too, in the captured graph and after its lowering."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import fuselens
from fuselens import torch_private
from fuselens.autograd import joint

from .test_fake_results import some_layout

Function = Callable[[Tensor], Tensor]


def positions(x: Tensor, rank: int | None = None) -> Tensor:
    return torch.zeros(x.shape if rank is None else x.shape[:rank], dtype=torch.int64)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros(x.shape[1]), torch.ones(x.shape[1])


OF_ANY_RANK: dict[str, Function] = {
    "to": lambda x: x.to(torch.float16),
    "like": lambda x: torch.full_like(x, 2),
    "drawn": torch.rand_like,
    "flip": lambda x: x.flip(1),
    "rot90": lambda x: torch.rot90(x, 3),
    "sort": lambda x: x.sort(1)[1],
    "frexp": lambda x: x.frexp()[1],
    "deg2rad": torch.deg2rad,
    "rsub": lambda x: torch.rsub(x, x.transpose(0, 1).reshape(x.shape)),
    "divided": lambda x: x // 2,
    "tril": torch.tril,
    "softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x, 1),
    "renorm": lambda x: x.renorm(2, 1, 1.0),
    "stack": lambda x: torch.stack([x, x], 1),
    "stack of one": lambda x: torch.stack([x], -1),
    "cat": lambda x: torch.cat([x, x], 1),
    "glu": lambda x: F.glu(x.repeat_interleave(2, 1)[:, 1:-1] if x.shape[1] > 1 else x.expand(-1, 2, *x.shape[2:]), 1),
    "prelu": lambda x: F.prelu(x, torch.ones(1)),
    "huber": lambda x: F.huber_loss(x, x.transpose(0, 1).reshape(x.shape), reduction="none"),
    "cross entropy": lambda x: F.binary_cross_entropy_with_logits(x.contiguous(), x, reduction="none"),
    "index_put": lambda x: x.index_put((positions(x, 0)[None],), torch.ones(())),
    "index_add": lambda x: x.index_add(1, torch.zeros(x.shape[1], dtype=torch.int64), x),
    "isin": lambda x: torch.isin(x, 0.5),
    "diag_embed": torch.diag_embed,
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:1], 0, 0, 1),
    "fft": lambda x: torch.fft.fft(x, dim=1).abs(),
    "hfft": lambda x: torch.fft.hfft(x, n=4, dim=1),
    "rfftn": lambda x: torch.fft.rfftn(x, dim=(1, 0)),
    "matrix_exp": lambda x: torch.linalg.matrix_exp(x[..., :1, :1]),
}
OF_IMAGES: dict[str, tuple[int, Function]] = {
    "batch_norm": (4, lambda x: F.batch_norm(x, None, None, training=True)),
    "batch_norm of volumes": (5, lambda x: F.batch_norm(x, None, None, training=True)),
    "batch_norm with statistics": (4, lambda x: F.batch_norm(x, *statistics(x))),
    "nearest of rows": (3, lambda x: F.interpolate(x, scale_factor=2)),
    "nearest": (4, lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact")),
    "linear": (3, lambda x: F.interpolate(x, scale_factor=2, mode="linear")),
    "bilinear": (4, lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", antialias=True)),
    "bicubic": (4, lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    "trilinear": (5, lambda x: F.interpolate(x, scale_factor=2, mode="trilinear")),
    "grid_sample": (4, lambda x: F.grid_sample(x, x.new_ones(x.shape[0], 2, 1, 2).mT.contiguous().mT, align_corners=True)),
    "channel_shuffle": (5, lambda x: F.channel_shuffle(x, 1)),
    "max_pool2d": (4, lambda x: F.max_pool2d(x, 1)),
}  # fmt: skip


def some_tensor(random: Random, rank: int) -> Tensor:
    sizes = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
    x = some_layout(random, sizes, torch.float32)
    if random.random() < 0.2:  # strides that no element needs
        x = torch.ones(sizes)
        x = x.as_strided(
            sizes, [s if n != 1 else random.choice((0, 1, 7)) for n, s in zip(sizes, x.stride(), strict=True)]
        )
    return x.detach()


def captured(run: Function, x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The strides of the result as capture finds them, and those in the graph that is lowered."""
    mode = torch_private.fake_mode()
    fake = torch_private.fake_static(mode, x)
    with mode:
        found = run(fake)
    graph = fx.Graph()
    given = graph.placeholder("x")
    given.meta["val"] = fake
    made = graph.call_function(run, (given,))
    made.meta["val"] = found
    graph.output((made,))
    traced = joint.trace(fx.GraphModule(torch.nn.Module(), graph), [fake], grad_enabled=True)
    return found.stride(), traced.results[0].meta["val"].stride()


def agree(run: Function, ranks: tuple[int, ...], count: int) -> None:
    random, compared = Random(0), 0
    for _ in range(count):
        x = some_tensor(random, random.choice(ranks))
        try:
            expected = run(x).stride()
        except (RuntimeError, ValueError):  # of statistics of one value
            continue
        compared += 1
        assert captured(run, x) == (expected, expected), (x.shape, x.stride())
    assert compared > count / 2


@pytest.mark.parametrize("name", OF_ANY_RANK)
def test_results_of_any_rank(name: str) -> None:
    agree(OF_ANY_RANK[name], (2, 3, 4, 4, 5), 25)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_results_of_images(name: str) -> None:
    rank, run = OF_IMAGES[name]
    agree(run, (rank,), 16)


def test_pooling_without_gradients() -> None:
    for grad in (False, True):
        for x in (torch.randn(2, 3, 8), torch.randn(2, 8, 3).mT, torch.randn(1, 8, 3).mT[0]):
            x.requires_grad_(grad)
            for run in (
                lambda x: F.max_pool1d(x, 2),
                torch.nn.MaxPool1d(3, 2, 1),
                lambda x: F.max_pool1d(x, 2, None, 0, 1, True),
            ):
                expected, found = run(x), fuselens.compile(run)(x)
                assert (found.stride(), found.requires_grad) == (expected.stride(), expected.requires_grad)
                assert torch.equal(found, expected)


INTERPOLATED: dict[str, tuple[int, dict[str, Any]]] = {
    "linear": (3, {"size": 7}),
    "bilinear": (4, {"size": (5, 4)}),
    "bilinear by scales": (4, {"scale_factor": (1.7, 2.0), "align_corners": True}),
    "bilinear by sizes of scales": (4, {"scale_factor": 1.5, "recompute_scale_factor": True}),
    "trilinear": (5, {"size": 5}),
    "bicubic": (4, {"scale_factor": 1.7}),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", INTERPOLATED)
def test_interpolation_of_infinities(name: str, dynamic: bool | None) -> None:
    """A neighbour with a weight of zero makes no NaN of an infinity, where eager's kernel does not look at it."""
    rank, options = INTERPOLATED[name]

    def interpolated(x: Tensor) -> Tensor:
        return F.interpolate(x, mode=name.partition(" ")[0], **options)

    compiled = fuselens.compile(interpolated, dynamic=dynamic)
    torch.manual_seed(0)
    for size in (3, 4):
        x = torch.randn(2, 3, *[size] * (rank - 2))
        x[0, 0].view(-1)[2] = math.inf
        x.requires_grad_()
        expected, found = interpolated(x), compiled(x)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, equal_nan=True)
        gradients = [torch.autograd.grad(y.nan_to_num(0, 0, 0).sum(), x)[0] for y in (found, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_rows_interpolated_by_python_rules(mode: str) -> None:
    """Symbolic sizes and batch norms need them."""

    def beside_a_norm(x: Tensor) -> tuple[Tensor, ...]:
        return F.interpolate(x, scale_factor=2, mode=mode), F.batch_norm(x, None, None, training=True)

    x = torch.randn(4, 3, 5).transpose(0, 1)
    for dynamic in (None, True):
        for expected, found in zip(beside_a_norm(x), fuselens.compile(beside_a_norm, dynamic=dynamic)(x), strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)
