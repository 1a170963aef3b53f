"""Points of a window that one program computes together: the same values, fewer loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuselens.codegen.nest import simplify
from fuselens.codegen.triton.choices import neighbours
from fuselens.codegen.triton.choices.neighbours import joined
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph, Kernel
from fuselens.lowering.lower import lower
from fuselens.schedule.fuse import fuse
from fuselens.schedule.sites.depthwise import depthwise


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "THREADS", 0)


def _graph(function: Callable[..., Tensor], *args: Tensor) -> Graph:
    module: fx.GraphModule = make_fx(function, tracing_mode="fake")(*args)
    loops = lower(module, name="g", device="cuda")
    return fuse(loops.with_calls_replaced(depthwise(loops)))


def _joined(graph: Graph) -> Graph:
    nodes = tuple(joined(simplify(n, graph).kernel, graph) if isinstance(n, Kernel) else n for n in graph.nodes)
    return dataclasses.replace(graph, nodes=nodes)


def _loads(graph: Graph) -> float:
    """Of a point of the result, at most."""
    return max(
        len({o.args[:2] for o in k.ops() if o.op == "load"}) / sum(o.op == "store" for o in k.ops())
        for k in graph.kernels()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [
        ((12, 10), (3, 3), (1, 1), (1, 1), (1, 1)),
        ((8, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
        ((10, 8), (5, 3), (1, 2), (2, 0), (1, 1)),
        ((14, 14), (5, 5), (2, 2), (2, 2), (1, 1)),
        ((16, 7), (3, 3), (1, 1), (2, 2), (2, 2)),
        ((6, 6), (3, 3), (1, 1), (3, 3), (1, 1)),
    ],
)
def test_convolutions_of_single_channels(
    dtype: torch.dtype, last: bool, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int],
) -> None:  # fmt: skip
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 8, *size).to(dtype).contiguous(memory_format=layout)
    w, b = torch.randn(8, 1, *kernel).to(dtype), torch.randn(8).to(dtype)
    graph = _graph(lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation, 8).relu(), x, w, b)
    made = _joined(graph)
    assert _loads(made) < 0.8 * _loads(graph)
    torch.testing.assert_close(evaluate(made, [x, w, b]), evaluate(graph, [x, w, b]), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 3, 1, 1),
        lambda x: F.max_pool2d(x, 3, 2),
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 4, 2, 1, count_include_pad=False),
        lambda x: F.max_pool3d(x[:, :, None].expand(-1, -1, 6, -1, -1).contiguous(), 2, 1),
    ],
)
def test_pools(pool: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 4, 17, 12)
    x[0, 0, 3, 4], x[1, 2, 5] = float("nan"), float("-inf")
    graph = _graph(pool, x)
    made = _joined(graph)
    assert _loads(made) <= _loads(graph)
    torch.testing.assert_close(evaluate(made, [x]), evaluate(graph, [x]), rtol=0, atol=0, equal_nan=True)


def test_zeros_keep_their_signs() -> None:
    """Constants that compare as equal are not taken for one another."""
    x = torch.randn(2, 4, 16, 12)

    def f(x: Tensor) -> Tensor:
        y = F.max_pool2d(x, 3, 1, 1)
        return torch.where(y > 1, torch.full_like(y, -0.0), torch.full_like(y, 0.0))

    graph = _graph(f, x)
    (found,), (expected,) = evaluate(_joined(graph), [x]), evaluate(graph, [x])
    assert torch.equal(found.signbit(), expected.signbit())


def test_others_stay_as_they_are() -> None:
    x = torch.randn(8, 16)
    for function in (lambda x: x.softmax(1), lambda x: x.exp() + 1, lambda x: x[torch.tensor([1, 0, 3])]):
        graph = _graph(function, x)
        for kernel in graph.kernels():
            assert joined(kernel, graph) is kernel
