"""Biases of convolutions on a GPU: additions and sums of the graph. The graphs are looked at on fakes, and computed here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuselens.ir.contracts.padding import Product
from fuselens.rewrite import biases

aten = torch.ops.aten


def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b, padding=1).relu()


def transposed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv_transpose2d(x, w.transpose(0, 1), b, stride=2)


def returned_twice(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv2d(x, w, b)
    return y, y * 2


def backward(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    sizes = [b.shape[0]]
    gradient = F.conv2d(x, w).cos()
    found = aten.convolution_backward(
        gradient, x, w, sizes, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
    )
    return list(found)


def faster(product: Product, device: torch.device) -> tuple[float, float]:
    """Any product is, without its bias."""
    return 2.0, 1.0


def graph_of(fn: Any, given: list[Tensor]) -> fx.GraphModule:
    return make_fx(fn, tracing_mode="fake")(*given)


@pytest.fixture
def given() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 6, 7), torch.randn(4, 3, 3, 3), torch.randn(4)]


@pytest.mark.parametrize(("fn", "count"), [(forward, 1), (transposed, 1), (returned_twice, 1), (backward, 1)])
def test_values_are_the_same(monkeypatch: pytest.MonkeyPatch, given: list[Tensor], fn: Any, count: int) -> None:
    monkeypatch.setattr(biases, "_is_on_gpu", lambda node: bool(node.args))  # any graph is taken for one of a GPU
    module = graph_of(fn, given)
    assert biases.apart([module.graph], faster) == count
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*given), fn(*given), rtol=1e-4, atol=1e-5)
    for node in module.graph.nodes:
        if node.target is aten.convolution.default:
            assert node.args[2] is None
        if node.target is aten.convolution_backward.default:
            assert node.args[3] is None and node.args[-1] == [True, True, False]
        if isinstance(node.meta.get("val"), Tensor):
            assert node.meta["val"].device.type == "cpu"


def test_the_cpu_has_its_biases(given: list[Tensor]) -> None:
    assert biases.apart([graph_of(forward, given).graph], faster) == 0


def depthwise(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w[:, :1].repeat(1, 1, 1, 1), b[:3], groups=3)


@pytest.mark.parametrize(("layout", "count"), [(torch.contiguous_format, 0), (torch.channels_last, 1)])
def test_depthwise_ones_where_the_vendor_computes_them(
    monkeypatch: pytest.MonkeyPatch, given: list[Tensor], layout: torch.memory_format, count: int
) -> None:
    monkeypatch.setattr(biases, "_is_on_gpu", lambda node: bool(node.args))
    given = [given[0].to(memory_format=layout), given[1][:3], given[2]]
    module = graph_of(depthwise, given)
    assert biases.apart([module.graph], faster) == count
    module.recompile()
    torch.testing.assert_close(module(*given), depthwise(*given))


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (lambda x, w, b: F.linear(x, w, b).tanh(), 1),
        (lambda x, w, b: F.linear(x.view(2, 3, 8), w, b).relu() + 1, 1),  # through a view
        (lambda x, w, b: F.linear(x, w, b), 0),  # nobody reads it
        (lambda x, w, b: F.linear(x, w, b).softmax(1), 0),
        (lambda x, w, b: (lambda y: (y, y.relu()))(F.linear(x, w, b)), 0),
        (lambda x, w, b: F.linear(x.bfloat16(), w.bfloat16(), b.bfloat16()).tanh(), 0),
        (lambda x, w, b: torch.addmm(b, x, w.t(), beta=2.0).tanh(), 0),
    ],
)
def test_products_that_loops_read(monkeypatch: pytest.MonkeyPatch, fn: Any, count: int) -> None:
    monkeypatch.setattr(biases, "_is_on_gpu", lambda node: bool(node.args))
    given = [torch.randn(6, 8), torch.randn(5, 8), torch.randn(5)]
    module = graph_of(fn, given)
    assert biases.apart([module.graph], faster) == count
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*given), fn(*given))


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (1.0, 0.99), None])
def test_a_product_keeps_its_bias_where_it_is_not_faster_without(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float] | None
) -> None:
    monkeypatch.setattr(biases, "_is_on_gpu", lambda node: bool(node.args))
    asked: list[Product] = []

    def compare(product: Product, device: torch.device) -> tuple[float, float] | None:
        asked.append(product)
        return seconds

    module = graph_of(lambda x, w, b: F.linear(x, w, b).tanh(), [torch.randn(6, 8), torch.randn(5, 8), torch.randn(5)])
    assert biases.apart([module.graph], compare) == 0
    assert asked == [Product("float32", 1, 6, 5, 8, (False, True), True)]
