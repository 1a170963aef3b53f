from dataclasses import dataclass
from typing import Optional, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class VisionCfg:
    image_size: int = 64
    patch_size: int = 8
    width: int = 192
    layers: int = 4
    heads: int = 3


@dataclass
class TextCfg:
    context_length: int = 32
    vocab_size: int = 8192
    width: int = 192
    layers: int = 3
    heads: int = 3


class Transformer(nn.Module):
    def __init__(self, width, layers, heads, causal=False, ctx=None):
        super().__init__()
        self.blocks = nn.ModuleList([
            nn.TransformerEncoderLayer(width, heads, width * 4, dropout=0.0, activation="gelu",
                                       batch_first=True, norm_first=True) for _ in range(layers)])
        mask = torch.full((ctx, ctx), float("-inf")).triu_(1) if causal else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for blk in self.blocks:
            x = blk(x, src_mask=self.mask)
        return x


class VisionTower(nn.Module):
    def __init__(self, embed_dim: int, cfg: VisionCfg):
        super().__init__()
        n = (cfg.image_size // cfg.patch_size) ** 2
        scale = cfg.width ** -0.5
        self.conv1 = nn.Conv2d(3, cfg.width, cfg.patch_size, cfg.patch_size, bias=False)
        self.class_embedding = nn.Parameter(scale * torch.randn(cfg.width))
        self.positional_embedding = nn.Parameter(scale * torch.randn(n + 1, cfg.width))
        self.ln_pre, self.ln_post = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.transformer = Transformer(cfg.width, cfg.layers, cfg.heads)
        self.proj = nn.Parameter(scale * torch.randn(cfg.width, embed_dim))

    def forward(self, x):
        x = self.conv1(x).flatten(2).transpose(1, 2)
        cls = self.class_embedding + torch.zeros(x.shape[0], 1, x.shape[-1], dtype=x.dtype, device=x.device)
        x = self.ln_pre(torch.cat([cls, x], dim=1) + self.positional_embedding)
        return self.ln_post(self.transformer(x)[:, 0]) @ self.proj


class TextTower(nn.Module):
    def __init__(self, embed_dim: int, cfg: TextCfg):
        super().__init__()
        self.token_embedding = nn.Embedding(cfg.vocab_size, cfg.width)
        self.positional_embedding = nn.Parameter(torch.empty(cfg.context_length, cfg.width).normal_(std=0.01))
        self.transformer = Transformer(cfg.width, cfg.layers, cfg.heads, causal=True, ctx=cfg.context_length)
        self.ln_final = nn.LayerNorm(cfg.width)
        self.text_projection = nn.Parameter(torch.empty(cfg.width, embed_dim).normal_(std=cfg.width ** -0.5))

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding
        x = self.ln_final(self.transformer(x))
        # features from the eot token, which has the highest id
        return x[torch.arange(x.shape[0], device=x.device), text.argmax(dim=-1)] @ self.text_projection


class CLIP(nn.Module):
    def __init__(self, embed_dim: int = 128, vision: Optional[VisionCfg] = None, text: Optional[TextCfg] = None):
        super().__init__()
        self.visual = VisionTower(embed_dim, vision or VisionCfg())
        self.text = TextTower(embed_dim, text or TextCfg())
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def encode_image(self, image, normalize=False):
        f = self.visual(image)
        return F.normalize(f, dim=-1) if normalize else f

    def encode_text(self, text, normalize=False):
        f = self.text(text)
        return F.normalize(f, dim=-1) if normalize else f

    def forward(self, image, text) -> Tuple[Tensor, Tensor, Tensor]:
        return self.encode_image(image, True), self.encode_text(text, True), self.logit_scale.exp()
