"""Models of the breadth suite, in the sizes that people use, by family: weights by chance, inputs from a seed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .operators import NETWORKS, OPERATORS

if TYPE_CHECKING:
    from .families import Program

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """Programs by name; modules that must be installed."""

    needs: tuple[str, ...] = ()
    programs: dict[str, Callable[[], Program]] = field(default_factory=dict)


def program(make: Callable[[], Made], training: bool = False) -> Program:
    from .families import Program

    return Program(make, training)


def library(name: str) -> Any:
    """A module that is imported where its family is measured."""
    return importlib.import_module(name)


def on_card(module: nn.Module, dtype: torch.dtype, training: bool = False) -> nn.Module:
    """For inference in ``dtype``; for training in float32, which autocast takes from there."""
    return module.to("cuda").train() if training else module.to("cuda", dtype).eval().requires_grad_(False)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda").to(dtype)


def tokens(batch: int, length: int, words: int) -> Tensor:
    return torch.randint(words, (batch, length), generator=torch.Generator("cuda").manual_seed(1), device="cuda")


# --- vision -------------------------------------------------------------------------------------------------------


def image_model(
    make: Callable[[], nn.Module], batch: int, size: int = 224, training: bool = False
) -> Callable[[], Program]:
    dtype = torch.float32 if training else torch.bfloat16

    def build() -> Made:
        return on_card(make(), dtype, training), (normal(batch, 3, size, size, dtype=dtype),), {}

    return lambda: program(build, training)


def torchvision(
    name: str, batch: int = 16, size: int = 224, training: bool = False, **options: Any
) -> Callable[[], Program]:
    def make() -> nn.Module:
        return library("torchvision.models").get_model(name, weights=None, **options)

    return image_model(make, batch, size, training)


def detector(name: str) -> Callable[[], Program]:
    def build() -> Made:
        module = getattr(library("torchvision.models.detection"), name)(weights=None, weights_backbone=None)
        return on_card(module, torch.float32), ([normal(3, 480, 640, dtype=torch.float32)],), {}

    return lambda: program(build)


def timm(name: str, batch: int = 16, training: bool = False) -> Callable[[], Program]:
    def make() -> nn.Module:
        return library("timm").create_model(name, pretrained=False)

    return image_model(make, batch, 224, training)


def diffusion(kind: str) -> Callable[[], Program]:
    def build() -> Made:
        diffusers, dtype = library("diffusers"), torch.bfloat16
        if kind == "unet":
            module = diffusers.UNet2DConditionModel(
                sample_size=64, block_out_channels=(192, 384, 768), layers_per_block=2, cross_attention_dim=768,
                down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            )  # fmt: skip
            step = torch.tensor(500, device="cuda")
            return on_card(module, dtype), (normal(4, 4, 64, 64), step, normal(4, 77, 768)), {"return_dict": False}
        if kind == "dit":
            module = diffusers.DiTTransformer2DModel(
                num_layers=12, num_attention_heads=16, attention_head_dim=64, sample_size=32
            )
            labels = torch.tensor([1, 2, 3, 4], device="cuda")
            kwargs = {"timestep": labels, "class_labels": labels, "return_dict": False}
            return on_card(module, dtype), (normal(4, 4, 32, 32),), kwargs
        module = diffusers.AutoencoderKL(
            block_out_channels=(64, 128, 256), layers_per_block=2, down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
        )  # fmt: skip
        return on_card(module, dtype), (normal(4, 3, 256, 256),), {"return_dict": False}

    return lambda: program(build)


# --- transformers -------------------------------------------------------------------------------------------------


def transformer(
    model: str, config: dict[str, Any], inputs: Callable[[], dict[str, Any]], training: bool = False
) -> Callable[[], Program]:
    """``model`` is a class of transformers; its configuration's class has the same name with Config."""

    def build() -> Made:
        cls = getattr(library("transformers"), model)
        given = inputs()
        settings = config if training else {"use_cache": False, **config}
        return on_card(cls(cls.config_class(**settings)), torch.bfloat16, training), (), given

    return lambda: program(build, training)


def text(batch: int, length: int, words: int, labels: bool = False) -> Callable[[], dict[str, Any]]:
    def made() -> dict[str, Any]:
        ids = tokens(batch, length, words)
        return {"input_ids": ids, "labels": ids} if labels else {"input_ids": ids}

    return made


SMALL = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "vocab_size": 32000,
}
LLAMA = {**SMALL, "num_key_value_heads": 4}
MIXTRAL = {**LLAMA, "num_hidden_layers": 4, "num_local_experts": 8, "num_experts_per_tok": 2}
T5 = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128, "decoder_start_token_id": 0}


def speech() -> dict[str, Any]:
    return {"input_values": normal(4, 64000)}


def whisper() -> dict[str, Any]:
    return {"input_features": normal(4, 80, 3000), "decoder_input_ids": tokens(4, 64, 50000)}


def encoder_decoder() -> dict[str, Any]:
    return {"input_ids": tokens(16, 256, 32000), "decoder_input_ids": tokens(16, 64, 32000)}


# --- by hand ------------------------------------------------------------------------------------------------------


class Double(nn.Sequential):
    def __init__(self, rank: int, wide: int, out: int) -> None:
        conv = nn.Conv3d if rank == 3 else nn.Conv2d
        norm = nn.BatchNorm3d if rank == 3 else nn.BatchNorm2d
        super().__init__(
            conv(wide, out, 3, padding=1), norm(out), nn.ReLU(), conv(out, out, 3, padding=1), norm(out), nn.ReLU()
        )


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, joined at each level."""

    def __init__(self, rank: int, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        up, pool = (nn.ConvTranspose3d, nn.MaxPool3d) if rank == 3 else (nn.ConvTranspose2d, nn.MaxPool2d)
        sizes = [width << k for k in range(levels)]
        self.pool = pool(2)
        self.down = nn.ModuleList([Double(rank, a, b) for a, b in zip([3, *sizes], sizes, strict=False)])
        self.up = nn.ModuleList([up(2 * s, s, 2, stride=2) for s in sizes[-2::-1]])
        self.join = nn.ModuleList([Double(rank, 2 * s, s) for s in sizes[-2::-1]])
        self.out = nn.Conv3d(width, 2, 1) if rank == 3 else nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for k, down in enumerate(self.down):
            x = down(self.pool(x) if k else x)
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        return self.out(x)


class Recommender(nn.Module):
    """Embeddings of categories, a network of numbers, their products in pairs."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)])
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        found = torch.stack([dense, *(table(c) for table, c in zip(self.tables, categories, strict=True))], 1)
        products = found @ found.transpose(1, 2)
        row, column = torch.tril_indices(found.shape[1], found.shape[1], -1, device=found.device)
        return torch.sigmoid(self.top(torch.cat([dense, products[:, row, column]], 1)))


class Attention(nn.Module):
    """Causal attention written out, as in small public models."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))
        self.mask: Tensor

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        return self.out((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, c))


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words, self.net = nn.Embedding(20000, 256), kind(256, 512, 2, batch_first=True)
        self.out = nn.Linear(512, 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.net(self.words(ids))[0])


def by_hand(
    make: Callable[[], nn.Module], *inputs: Callable[[], Tensor], training: bool = False
) -> Callable[[], Program]:
    dtype = torch.float32 if training else torch.bfloat16
    return lambda: program(lambda: (on_card(make(), dtype, training), tuple(i() for i in inputs), {}), training)


def graph_net(name: str) -> Callable[[], Program]:
    def build() -> Made:
        module = getattr(library("torch_geometric.nn").models, name)(128, 256, num_layers=3, out_channels=40)
        edges = tokens(2, 400_000, 20_000)
        return on_card(module, torch.float32), (normal(20_000, 128, dtype=torch.float32), edges), {}

    return lambda: program(build)


FAMILIES: dict[str, Family] = {
    "vision": Family(("torchvision",), {
        name: torchvision(name) for name in (
            "resnet18", "resnet50", "convnext_tiny", "efficientnet_b0", "mobilenet_v3_large", "vit_b_16", "swin_t",
            "regnet_y_800mf", "densenet121", "vgg16", "shufflenet_v2_x1_0",
        )
    }),
    "segmentation": Family(("torchvision",), {
        name: torchvision(name, 8, 256, weights_backbone=None)
        for name in ("deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large")
    }),
    "detection": Family(("torchvision",), {
        name: detector(name) for name in ("retinanet_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_fpn", "ssdlite320_mobilenet_v3_large")
    }),
    "timm": Family(("timm",), {
        name: timm(name) for name in (
            "efficientnetv2_s", "mixer_b16_224", "deit_small_patch16_224", "regnety_016", "resnext50_32x4d", "coatnet_0_rw_224",
        )
    }),
    "diffusers": Family(("diffusers",), {kind: diffusion(kind) for kind in ("unet", "dit", "vae")}),
    "transformers": Family(("transformers",), {
        "bert": transformer("BertModel", {}, text(16, 256, 30000)),
        "gpt2": transformer("GPT2LMHeadModel", {}, text(8, 512, 50000)),
        "llama": transformer("LlamaForCausalLM", LLAMA, text(8, 512, 32000)),
        "mixtral": transformer("MixtralForCausalLM", MIXTRAL, text(4, 256, 32000)),
        "mamba": transformer("MambaForCausalLM", {"hidden_size": 768, "num_hidden_layers": 4}, text(2, 128, 50000)),
        "mamba2": transformer(
            "Mamba2ForCausalLM", {"hidden_size": 768, "num_hidden_layers": 4, "num_heads": 24, "head_dim": 64}, text(2, 256, 32000)
        ),
        "t5": transformer("T5ForConditionalGeneration", T5, encoder_decoder),
        "vit": transformer("ViTModel", {}, lambda: {"pixel_values": normal(16, 3, 224, 224)}),
        "wav2vec2": transformer("Wav2Vec2Model", {"apply_spec_augment": False}, speech),
        "whisper": transformer("WhisperForConditionalGeneration", {}, whisper),
    }),
    "geometric": Family(("torch_geometric",), {name: graph_net(name) for name in ("GCN", "GraphSAGE", "GAT")}),
    "recommendation": Family((), {
        "dlrm": by_hand(Recommender, lambda: normal(2048, 13), lambda: torch.stack([tokens(2048, 1, 100_000) for _ in range(26)])),
    }),
    "unet": Family((), {
        "2d": by_hand(lambda: UNet(2), lambda: normal(8, 3, 256, 256)),
        "3d": by_hand(lambda: UNet(3, 16), lambda: normal(2, 3, 64, 64, 64)),
    }),
    "attention": Family((), {
        "causal_written_out": by_hand(lambda: Attention(768, 12, 1024), lambda: normal(8, 1024, 768)),
        "causal_written_out_training": by_hand(
            lambda: Attention(768, 12, 512), lambda: normal(8, 512, 768, dtype=torch.float32), training=True
        ),
    }),
    "recurrent": Family((), {
        "lstm": by_hand(lambda: Tagger(nn.LSTM), lambda: tokens(64, 128, 20000)),
        "gru": by_hand(lambda: Tagger(nn.GRU), lambda: tokens(64, 128, 20000)),
        "lstm_training": by_hand(lambda: Tagger(nn.LSTM), lambda: tokens(64, 128, 20000), training=True),
    }),
    "operators": Family((), OPERATORS),
    "networks": Family(("torchvision",), NETWORKS),
    "training": Family(("torchvision", "transformers"), {
        "resnet50": torchvision("resnet50", 64, training=True),
        "convnext_tiny": torchvision("convnext_tiny", 32, training=True),
        "vit_b_16": torchvision("vit_b_16", 32, training=True),
        "bert": transformer("BertForMaskedLM", {}, text(16, 256, 30000, labels=True), training=True),
        "llama": transformer("LlamaForCausalLM", LLAMA, text(8, 512, 32000, labels=True), training=True),
        "gpt2": transformer("GPT2LMHeadModel", {}, text(8, 512, 50000, labels=True), training=True),
        "unet2d": by_hand(lambda: UNet(2), lambda: normal(8, 3, 256, 256, dtype=torch.float32), training=True),
    }),
}  # fmt: skip
