"""Single operators and small networks in float32, with torch's own settings: TF32 in convolutions, not in products.

Networks stay in training mode, as who only calls them leaves them: batch norms take the statistics of the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from .families import Program

Shape = tuple[int, ...]


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def given(make: Callable[[], Any], *shapes: Shape | Callable[[], Tensor], scale: float = 1.0) -> Callable[[], Program]:
    """``make`` gives a module or a function; a shape stands for a normal tensor."""

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        made = make()
        module = made if isinstance(made, nn.Module) else Function(made)
        module = module.cuda().requires_grad_(False)
        generator = torch.Generator("cuda").manual_seed(1)
        args = tuple(
            scale * torch.randn(s, generator=generator, device="cuda") if isinstance(s, tuple) else s() for s in shapes
        )
        return module, args, {}

    def program() -> Program:
        from .families import Program

        return Program(build, standard=True)

    return program


def of(function: Callable[..., Any], *shapes: Shape | Callable[[], Tensor], **options: Any) -> Callable[[], Program]:
    return given(lambda: function, *shapes, **options)


def labels(count: int, classes: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(classes, (count,), generator=torch.Generator("cuda").manual_seed(2), device="cuda")


def chosen(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.rand(shape, generator=torch.Generator("cuda").manual_seed(2), device="cuda") > 0.5


def gelu_written_out(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x.pow(3))))


def exclusive(x: Tensor) -> Tensor:
    return torch.cumsum(torch.cat([torch.zeros_like(x[:, :1]), x], 1)[:, :-1], 1)


WIDE, IMAGE, CUBE, MIDDLE = (512, 65536), (32, 64, 256, 256), (16, 32, 64, 64, 64), (64, 512, 1024)
POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "leaky_relu": F.leaky_relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu,
    "gelu written out": gelu_written_out, "selu": torch.selu, "elu": F.elu, "softplus": F.softplus, "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid, "softsign": F.softsign, "swish": lambda x: x * torch.sigmoid(x),
}  # fmt: skip
REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x.sum(1, keepdim=True), "mean": lambda x: x.mean(1), "max": lambda x: x.max(1)[0], "min": lambda x: x.min(1)[0],
    "argmax": lambda x: x.argmax(1), "argmin last": lambda x: x.argmin(2),
    "prod": lambda x: x.prod(1), "max with indices": lambda x: x.max(2),
    "logsumexp": lambda x: x.logsumexp(1), "var": lambda x: x.var(2), "sum of all": lambda x: x.sum(),
    "softmax middle": lambda x: x.softmax(1),
}  # fmt: skip
SCANS: dict[str, Callable[[Tensor], Tensor]] = {
    "cumsum": lambda x: x.cumsum(1), "cumprod": lambda x: x.cumprod(1), "cumsum from behind": lambda x: x.flip(1).cumsum(1).flip(1),
    "cumsum exclusive": exclusive, "cummax": lambda x: x.cummax(1)[0],
}  # fmt: skip

OPERATORS: dict[str, Callable[[], Program]] = {
    # products
    "mm 4096": of(torch.mm, (4096, 4096), (4096, 4096)),
    "mm 1000×8200 8200×3000": of(torch.mm, (1000, 8200), (8200, 3000)),
    "mm 8205×2949 2949×5921": of(torch.mm, (8205, 2949), (2949, 5921)),
    "mm 256×262144 262144×256": of(torch.mm, (256, 262144), (262144, 256)),
    "mm 16384×64 64×16384": of(torch.mm, (16384, 64), (64, 16384)),
    "mm 32768×64 64×64": of(torch.mm, (32768, 64), (64, 64)),
    "mm aᵀ b": of(lambda a, b: a.T @ b, (4096, 1024), (4096, 2048)),
    "mm a bᵀ": of(lambda a, b: a @ b.T, (1024, 4096), (2048, 4096)),
    "mv 2048×262144": of(torch.matmul, (2048, 262144), (262144, 1)),
    "bmm 128×512×1024×512": of(torch.bmm, (128, 512, 1024), (128, 1024, 512)),
    "matmul 16×1024×2048 2048×768": of(torch.matmul, (16, 1024, 2048), (2048, 768)),
    "einsum bijl,lk": of(lambda a, b: torch.einsum("bijl,lk->bijk", a, b), (8, 128, 256, 256), (256, 768)),
    "diag @ b": of(lambda a, b: torch.diag(a) @ b, (4096,), (4096, 4096)),
    "triu(triu @ triu)": of(lambda a, b: torch.triu(torch.triu(a) @ torch.triu(b)), (4096, 4096), (4096, 4096)),
    "tril(a @ b)": of(lambda a, b: torch.tril(a @ b), (4096, 4096), (4096, 4096)),
    "a @ scalar": of(lambda a: a * 3.14, (16384, 4096)),
    "sdpa 32×16×512×64": of(F.scaled_dot_product_attention, *[(32, 16, 512, 64)] * 3),
    # pointwise, reductions, scans
    **{name: of(fn, WIDE) for name, fn in POINTWISE.items()},
    "softmax": of(lambda x: x.softmax(1), WIDE),
    "log_softmax": of(lambda x: x.log_softmax(1), WIDE),
    **{name: of(fn, MIDDLE) for name, fn in REDUCTIONS.items()},
    **{name: of(fn, (2048, 32768), scale=0.1) for name, fn in SCANS.items()},
    "cumsum masked": of(lambda x, m: (x * m).cumsum(1), (2048, 32768), chosen(2048, 32768)),
    # norms
    "batch_norm": given(lambda: nn.BatchNorm2d(64), IMAGE),
    "instance_norm": given(lambda: nn.InstanceNorm2d(64), IMAGE),
    "group_norm": given(lambda: nn.GroupNorm(8, 64), IMAGE),
    "layer_norm of three": given(lambda: nn.LayerNorm((64, 256, 256)), IMAGE),
    "rms_norm of channels": of(lambda x: x / (x.pow(2).mean(1, keepdim=True) + 1e-5).sqrt(), IMAGE),
    "frobenius": of(lambda x: x / x.norm(p="fro"), IMAGE),
    "l1 norm": of(lambda x: x / x.abs().mean(1, keepdim=True), WIDE),
    "l2 norm": of(lambda x: x / x.norm(p=2, dim=1, keepdim=True), WIDE),
    # pooling
    "max_pool1d": given(lambda: nn.MaxPool1d(8, 1, 4, 3), (64, 192, 8192)),
    "max_pool2d": given(lambda: nn.MaxPool2d(4, 1, 1), IMAGE),
    "max_pool3d": given(lambda: nn.MaxPool3d(3, 2, 1, 3), CUBE),
    "avg_pool1d": given(lambda: nn.AvgPool1d(8, 1, 4), (64, 128, 16384)),
    "avg_pool2d": given(lambda: nn.AvgPool2d(11), IMAGE),
    "avg_pool3d": given(lambda: nn.AvgPool3d(3, 2, 1), CUBE),
    # convolutions
    "conv1d": given(lambda: nn.Conv1d(64, 128, 3), (32, 64, 16384)),
    "conv1d dilated": given(lambda: nn.Conv1d(64, 128, 3, 3, dilation=4), (32, 64, 16384)),
    "conv2d": given(lambda: nn.Conv2d(16, 64, 3, bias=False), (16, 16, 512, 512)),
    "conv2d 5×9": given(lambda: nn.Conv2d(32, 64, (5, 9), padding=(2, 4), dilation=(2, 3)), (8, 32, 256, 256)),
    "conv2d 11 s4": given(lambda: nn.Conv2d(3, 96, 11, 4, 2), (128, 3, 224, 224)),
    "conv2d 1×1": given(lambda: nn.Conv2d(64, 128, 1, bias=False), (16, 64, 256, 256)),
    "conv3d": given(lambda: nn.Conv3d(3, 64, 3, bias=False), (16, 3, 64, 64, 64)),
    "conv3d 3×5×7": given(lambda: nn.Conv3d(3, 64, (3, 5, 7), bias=False), (8, 3, 16, 128, 128)),
    "conv2d depthwise": given(lambda: nn.Conv2d(64, 64, 3, groups=64, bias=False), (16, 64, 256, 256)),
    "conv2d depthwise 3×1": given(lambda: nn.Conv2d(64, 64, (3, 1), groups=64, bias=False), (16, 64, 256, 256)),
    "conv2d depthwise separable": given(
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), nn.Conv2d(64, 128, 1, bias=False)), (16, 64, 256, 256)
    ),
    "conv_transpose1d": given(lambda: nn.ConvTranspose1d(64, 32, 5, 2, 2, dilation=3), (16, 64, 16384)),
    "conv_transpose2d": given(lambda: nn.ConvTranspose2d(64, 64, 3, bias=False), (8, 64, 256, 256)),
    "conv_transpose2d s2": given(lambda: nn.ConvTranspose2d(64, 32, 3, 2, 1), (8, 64, 128, 128)),
    "conv_transpose2d groups": given(lambda: nn.ConvTranspose2d(32, 64, (3, 5), (2, 3), (1, 2), groups=4), (16, 32, 128, 256)),
    "conv_transpose3d": given(lambda: nn.ConvTranspose3d(32, 64, 3, bias=False), (8, 32, 32, 32, 32)),
    "conv_transpose3d s2": given(lambda: nn.ConvTranspose3d(32, 32, (3, 5, 7), 2, (1, 2, 3), 1, groups=4), (8, 32, 12, 24, 48)),
    # losses
    "mse": of(lambda a, b: (a - b).pow(2).mean(), (32768, 4096), (32768, 4096)),
    "cross_entropy": of(F.cross_entropy, (16384, 4096), labels(16384, 4096)),
    "smooth_l1": of(F.smooth_l1_loss, (32768, 4096), (32768, 4096)),
    "kl_div": of(lambda a, b: F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"), (8192, 8192), (8192, 8192)),
    "triplet": of(F.triplet_margin_loss, *[(8192, 8192)] * 3),
    "hinge": of(lambda a, b: (1 - a * b.sign()).clamp(min=0).mean(), (8192, 8192), (8192, 1)),
    "cosine": of(lambda a, b: (1 - F.cosine_similarity(a, b, dim=1)).mean(), (8192, 8192), (8192, 8192)),
}  # fmt: skip


def mlp(*sizes: int) -> nn.Module:
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Cells(nn.Module):
    """A recurrent net of torch's, and a layer on its last step."""

    def __init__(self, kind: type[nn.RNNBase], two_ways: bool = False) -> None:
        super().__init__()
        self.net = kind(128, 256, 6, batch_first=True, bidirectional=two_ways)
        self.out = nn.Linear(512 if two_ways else 256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.net(x)[0][:, -1])


class WrittenRnn(nn.Module):
    """A vanilla recurrent net, its steps in a loop."""

    def __init__(self, wide: int = 1024, hidden: int = 256, out: int = 128) -> None:
        super().__init__()
        self.step, self.out = nn.Linear(wide + hidden, hidden), nn.Linear(hidden, out)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        outputs = []
        for part in x.unbind(0):
            hidden = torch.tanh(self.step(torch.cat((part, hidden), 1)))
            outputs.append(self.out(hidden))
        return torch.stack(outputs)


class Clusters(nn.Module):
    """Soft assignment of features to clusters, and the sums of what is left (NetVLAD's form)."""

    def __init__(self, wide: int = 512, clusters: int = 32) -> None:
        super().__init__()
        self.assign, self.norm = nn.Linear(wide, clusters, bias=False), nn.BatchNorm1d(clusters)
        self.centres = nn.Parameter(torch.randn(wide, clusters) / wide**0.5)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.norm(self.assign(x).flatten(0, 1)).softmax(1).view(*x.shape[:2], -1)
        sums = x.transpose(1, 2) @ shares - shares.sum(1, keepdim=True) * self.centres
        return F.normalize(F.normalize(sums).flatten(1))


def pictures(name: str, batch: int = 10) -> Callable[[], Program]:
    def make() -> nn.Module:
        from .nets import library

        options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        return library("torchvision.models").get_model(name, weights=None, **options)

    return given(make, (batch, 3, 224, 224))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), mlp(256, 120, 84, 10)
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], Program]] = {
    "mlp": given(lambda: mlp(1000, 2000, 2000, 10), (10, 1000)),
    "mlp wide": given(lambda: mlp(16384, 16384, 16384, 8192), (128, 16384)),
    "mlp deep": given(lambda: mlp(8192, *[1024] * 16, 8192), (1024, 8192)),
    "lenet": given(lenet, (4096, 1, 28, 28)),
    **{name: pictures(name) for name in (
        "alexnet", "vgg16", "resnet18", "resnet101", "densenet121", "googlenet", "mobilenet_v2", "shufflenet_v2_x1_0", "squeezenet1_1",
        "efficientnet_b0", "regnet_x_400mf",
    )},
    "vit": given(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True), 6), (8, 197, 512)),
    "rnn written out": given(WrittenRnn, (64, 256, 1024), (256, 256)),
    "rnn": given(lambda: Cells(nn.RNN), (10, 512, 128)),
    "lstm": given(lambda: Cells(nn.LSTM), (10, 512, 128)),
    "lstm two ways": given(lambda: Cells(nn.LSTM, True), (10, 512, 128)),
    "gru": given(lambda: Cells(nn.GRU), (10, 512, 128)),
    "gru two ways": given(lambda: Cells(nn.GRU, True), (10, 512, 128)),
    "clusters": given(Clusters, (2048, 100, 512)),
}  # fmt: skip
