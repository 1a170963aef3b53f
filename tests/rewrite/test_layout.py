"""Channels-last memory between convolutions: what changes, what may not, and that nothing is seen of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import fuselens
from fuselens import torch_private
from fuselens.rewrite.layout import Measured, channels_last, convolution_of

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no vendor convolutions here")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)))
        return F.relu(self.second(h) + h).mean((2, 3))


def image(*shape: int) -> Tensor:
    return torch.randn(*shape or (2, 3, 8, 8))


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "residual": (Residual, image),
    "returns the convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1)), image),
    "flattened": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)),
        image,
    ),
    "average pool": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.Conv2d(4, 4, 2)), image),
    "adaptive pool": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(3)), image),
    "upsampled": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2), nn.Conv2d(4, 4, 3)), image),
    "bilinear": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(4, 4, 3)),
        image,
    ),
    "transposed": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.ConvTranspose2d(4, 3, 3)), image),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.Hardswish(), nn.Conv2d(6, 6, 3, groups=6)), image),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.Conv2d(6, 4, 3)), image),
    "pixel shuffle": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 4, 3)), image),
    "dropout": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout2d(0.0), nn.Conv2d(8, 4, 3)), image),
    "padded": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ZeroPad2d((0, 1, -1, 2)), nn.SiLU(), nn.Conv2d(4, 3, 3, stride=2)), image
    ),
    "nearest of odd sizes": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(size=(7, 11)), nn.Conv2d(4, 4, 3)),
        image,
    ),
    "one channel": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 1, 3)), lambda: image(2, 1, 9, 9)),
    "one pixel": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Tanh(), nn.Conv2d(4, 3, 1)), lambda: image(2, 3, 1, 1)),
    "strided pixels": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 1, stride=2)), image
    ),
    "without batch": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 3, 3)), lambda: image(3, 8, 8)),
    "double": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()).double(), lambda: image().double()),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3)), lambda: image(2, 3, 9)),
    "channels last already": (Residual, lambda: image().contiguous(memory_format=torch.channels_last)),
}  # fmt: skip


def outcome(run: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> list[Any]:
    module.zero_grad()
    x = x.detach().requires_grad_()
    out = run(x)
    out.square().sum().backward()
    found = [out, x.grad, *(p.grad for p in module.parameters()), *module.buffers()]
    return [t for t in found if t is not None]


@pytest.mark.parametrize("name", MODULES)
def test_agrees_in_values_and_strides(name: str) -> None:
    make, make_input = MODULES[name]
    torch.manual_seed(0)
    module, x = make(), make_input()
    state = {k: v.clone() for k, v in module.state_dict().items()}
    compiled = fuselens.compile(module, fullgraph=True)
    for _ in range(2):
        module.load_state_dict(state)
        wanted = [t.clone() for t in outcome(module, module, x)]
        layouts = [t.stride() for t in outcome(module, module, x)]
        module.load_state_dict(state)
        found = outcome(compiled, module, x)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        if "channels last" not in name:  # strides of gradients accumulate into what is there
            assert [t.stride() for t in found] == layouts


@pytest.mark.parametrize("name", ["residual", "returns the convolution", "flattened", "depthwise"])
def test_inference(name: str) -> None:
    make, make_input = MODULES[name]
    torch.manual_seed(0)
    module, x = make().eval(), make_input()
    with torch.no_grad():
        wanted, found = module(x), fuselens.compile(module, fullgraph=True)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert found.stride() == wanted.stride()


def test_sizes_may_vary() -> None:
    torch.manual_seed(0)
    module = Residual()
    compiled = fuselens.compile(module, fullgraph=True, dynamic=True)
    for batch in (2, 3, 5):
        x = image(batch, 3, 8, 8)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)


def test_bfloat16() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).bfloat16(), image().bfloat16()
    torch.testing.assert_close(fuselens.compile(module, fullgraph=True)(x), module(x), rtol=2e-2, atol=2e-2)


def graph_text(fn: Any, *args: Any, stage: str = "forward") -> str:
    (graph,) = fuselens.explain(fn)(*args).graphs
    return next(s.text for s in graph.stages if s.name == stage)


def test_between_convolutions_nothing_is_copied() -> None:
    for stage in ("forward", "backward"):
        text = graph_text(Residual(), image(), stage=stage)
        assert text.count("clone.default(x, memory_format=torch.channels_last)") == 1  # the image
        assert text.count("channels_last") == 1


def test_without_convolutions_nothing_changes() -> None:
    assert "clone" not in graph_text(lambda x: F.max_pool2d(x.relu(), 2).tanh().sum(), image().requires_grad_())


def test_the_random_stream_is_eagers() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(F.dropout(F.conv2d(x, w).relu(), 0.5), w)

    x, w = image(2, 3, 8, 8), torch.randn(3, 3, 3, 3)
    compiled = fuselens.compile(fn, fullgraph=True, options={"fallback_random": True})
    torch.manual_seed(3)
    wanted = fn(x, w)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x, w), wanted, rtol=1e-4, atol=1e-5)


def test_kernels_that_write_out_of_bounds_are_left_alone() -> None:
    """oneDNN's weight gradient of strided 1 x 1 convolutions, on fewer than 8 channels in channels-last memory."""

    def backward(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
        args = [0], [2, 2], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
        return torch.ops.aten.convolution_backward(g * 2, x.relu(), w, *args)[1]

    for channels, changed in ((4, 0), (16, 3)):
        inputs = torch.randn(2, 8, 4, 4), torch.randn(2, channels, 8, 8), torch.randn(8, channels, 1, 1)
        assert channels_last([make_fx(backward, tracing_mode="fake")(*inputs).graph]) == changed


def two_convolutions() -> fx.Graph:
    def fn(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, w).relu(), v, padding=1).relu().mean((2, 3))

    return make_fx(fn, tracing_mode="fake")(image(), torch.randn(8, 3, 3, 3), torch.randn(4, 8, 3, 3)).graph


@pytest.mark.parametrize(("contiguous", "last", "copied", "changes"), [
    (2.0, 1.0, 1e12, True), (1.0, 2.0, 1e12, False), (2.0, 1.0, 1.0, False),
])  # fmt: skip
def test_what_is_measured_decides_and_copies_count(
    contiguous: float, last: float, copied: float, changes: bool
) -> None:
    """As on a GPU: the first operand is the caller's, and would be copied."""
    asked: list[dict[str, Any] | None] = []

    def seconds(node: Any) -> tuple[float, float]:
        asked.append(convolution_of(node))
        return contiguous, last

    assert (channels_last([two_convolutions()], measured=Measured(seconds, copied)) > 0) is changes
    first, second = asked
    assert first is not None and second is not None
    assert (first["input"], first["weight"], first["bias"]) == ((2, 3, 8, 8), (8, 3, 3, 3), False)
    assert (second["output"], second["padding"], second["mask"]) == ((2, 4, 6, 6), (1, 1), ())


def test_what_cannot_be_measured_stays() -> None:
    assert channels_last([two_convolutions()], measured=Measured(lambda _: None, 1e12)) == 0


@pytest.mark.parametrize(("groups", "channels", "changes"), [(4, 16, True), (1, 16, False)])
def test_views_that_part_channels_into_groups_are_looked_at_in_both_layouts(
    groups: int, channels: int, changes: bool
) -> None:
    """As on a GPU. A norm over all channels looks at a view that channels-last memory does not have."""

    def fn(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        h = F.conv2d(x, w).relu()
        seen = h.view(2, groups, channels // groups, -1) if groups > 1 else h.view(2, 1, -1)
        return F.conv2d(h * torch.var(seen, list(range(2, seen.dim()))).mean(), v)

    with torch_private.fake_mode():
        given = [
            torch.randn(*shape, device="cuda") for shape in ((2, 8, 8, 8), (channels, 8, 3, 3), (8, channels, 3, 3))
        ]
        graph = make_fx(fn, tracing_mode="real")(*given).graph
        found = channels_last([graph], measured=Measured(lambda _: (2.0, 1.0), 1e12))
    view = next(n for n in graph.nodes if n.target is torch.ops.aten.view.default)
    source = view.args[0].meta["val"]
    assert source.is_contiguous(memory_format=torch.channels_last) is changes
    assert found > 0
    if changes:
        assert view.meta["val"].stride() == source.view(view.meta["val"].shape).stride() == (576, 4, 1, 16)


def test_weights_on_a_gpu_are_copied_once_a_call_by_loops() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x.relu(), w).relu()

    with torch_private.fake_mode():
        graph = make_fx(fn, tracing_mode="real")(
            torch.randn(2, 8, 9, 9, device="cuda"), torch.randn(4, 8, 3, 3, device="cuda")
        ).graph
        channels_last([graph], measured=Measured(lambda _: (2.0, 1.0), 1e12))
    convolution = next(n for n in graph.nodes if n.target is torch.ops.aten.convolution.default)
    weight = convolution.args[1]
    assert weight.target is torch.ops.aten.clone.default
    assert weight.meta["val"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("inside", [True, False])
def test_convolutions_of_single_channels_take_either_layout(inside: bool) -> None:
    """On a GPU they are loops: nobody measures them, and no operand of theirs is copied. One that reads the caller's memory
    keeps its layout, since it would read one and write the other."""

    def fn(x: Tensor, w: Tensor, single: Tensor) -> Tensor:
        h = F.conv2d(x, w).relu() if inside else x
        return F.conv2d(F.conv2d(h, single, groups=8).relu(), w).relu()

    asked: list[Any] = []

    def seconds(node: fx.Node) -> tuple[float, float]:
        asked.append(node)
        return 2.0, 1.0

    with torch_private.fake_mode():
        shapes = ((2, 8, 9, 9), (8, 8, 1, 1), (8, 1, 3, 3))
        graph = make_fx(fn, tracing_mode="real")(*(torch.randn(*s, device="cuda") for s in shapes)).graph
        channels_last([graph], measured=Measured(seconds, 1e12))
    (single,) = (n for n in graph.nodes if n.target is torch.ops.aten.convolution.default and n.args[8] == 8)
    assert single not in asked and len(asked) == 1 + inside
    assert single.args[1].op == "placeholder"
    layouts = {n.meta["val"].is_contiguous(memory_format=torch.channels_last) for n in (single, single.args[0])}
    assert layouts == {inside}
