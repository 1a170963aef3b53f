"""
A decoder-only transformer in the manner of GPT-2.
"""

import inspect
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class GPTConfig:
    # widths and depths
    n_embd: int = 768
    n_head: int = 12
    n_layer: int = 12
    # what goes in
    vocab_size: int = 50304
    block_size: int = 1024
    # whether linear maps and norms carry a bias
    bias: bool = True
    dropout: float = 0.0


class Norm(nn.Module):
    """Layer norm over the last axis; the bias is optional."""

    def __init__(self, width, with_bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_parameter("bias", nn.Parameter(torch.zeros(width)) if with_bias else None)

    def forward(self, h):
        return F.layer_norm(h, (h.size(-1),), self.weight, self.bias, eps=1e-5)


class Attention(nn.Module):
    """Every position looks at itself and at what came before it."""

    def __init__(self, cfg):
        super().__init__()
        if cfg.n_embd % cfg.n_head:
            raise AssertionError(f"{cfg.n_head} heads do not divide a width of {cfg.n_embd}")
        self.heads = cfg.n_head
        self.drop_rate = cfg.dropout
        self.qkv = nn.Linear(cfg.n_embd, cfg.n_embd * 3, bias=cfg.bias)
        self.out = nn.Linear(cfg.n_embd, cfg.n_embd, bias=cfg.bias)
        self.drop = nn.Dropout(cfg.dropout)
        self.has_sdpa = hasattr(F, "scaled_dot_product_attention")
        if not self.has_sdpa:
            print("this torch has no scaled_dot_product_attention, attention is spelled out instead")
            ones = torch.ones(cfg.block_size, cfg.block_size, dtype=torch.bool)
            self.register_buffer("future", ones.triu(diagonal=1))

    def forward(self, h):
        batch, length, width = h.shape
        packed = self.qkv(h).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        rate = self.drop_rate if self.training else 0.0
        if self.has_sdpa:
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        else:
            scores = torch.matmul(query, key.mT) / math.sqrt(query.size(-1))
            scores = scores.masked_fill(self.future[:length, :length], -math.inf)
            mixed = torch.matmul(F.dropout(scores.softmax(-1), rate), value)
        return self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))


class FeedForward(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        inner = cfg.n_embd * 4
        self.up = nn.Linear(cfg.n_embd, inner, bias=cfg.bias)
        self.down = nn.Linear(inner, cfg.n_embd, bias=cfg.bias)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, h):
        h = F.gelu(self.up(h))
        return self.drop(self.down(h))


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm_attn = Norm(cfg.n_embd, cfg.bias)
        self.attn = Attention(cfg)
        self.norm_ff = Norm(cfg.n_embd, cfg.bias)
        self.ff = FeedForward(cfg)

    def forward(self, h):
        for norm, branch in ((self.norm_attn, self.attn), (self.norm_ff, self.ff)):
            h = h + branch(norm(h))
        return h


# (layers, heads, width) of the weights that OpenAI gave out
GPT2_SIZES = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}

# a module here -> the module of transformers' GPT2LMHeadModel, and whether that one is a Conv1D
GPT2_OUTER = {
    "tok_emb": ("transformer.wte", False),
    "pos_emb": ("transformer.wpe", False),
    "norm_out": ("transformer.ln_f", False),
    "head": ("lm_head", False),
}
GPT2_INNER = {
    "norm_attn": ("ln_1", False),
    "attn.qkv": ("attn.c_attn", True),
    "attn.out": ("attn.c_proj", True),
    "norm_ff": ("ln_2", False),
    "ff.up": ("mlp.c_fc", True),
    "ff.down": ("mlp.c_proj", True),
}


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        if config.block_size is None or config.vocab_size is None:
            raise AssertionError("block_size and vocab_size have to be set")
        self.config = config
        self.tok_emb = nn.Embedding(config.vocab_size, config.n_embd)
        self.pos_emb = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.norm_out = Norm(config.n_embd, config.bias)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.tok_emb.weight  # one matrix reads tokens and scores them
        self.reset()
        print(f"GPT with {self.get_num_params() / 1e6:.2f}M parameters (positions not counted)")

    def reset(self):
        """Fresh random weights; the maps that write into the residual stream get smaller ones."""
        base = 0.02
        for part in self.modules():
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=base)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
        writes = 2 * self.config.n_layer
        for layer in self.layers:
            for last in (layer.attn.out, layer.ff.down):
                nn.init.normal_(last.weight, std=base / math.sqrt(writes))

    def get_num_params(self, non_embedding=True):
        skipped = self.pos_emb.weight.numel() if non_embedding else 0
        return sum(map(torch.numel, self.parameters())) - skipped

    def forward(self, idx, targets=None):
        length = idx.shape[1]
        if length > self.config.block_size:
            raise AssertionError(f"{length} tokens do not fit into {self.config.block_size} positions")
        where = torch.arange(length, device=idx.device)
        h = self.drop(self.tok_emb(idx) + self.pos_emb(where))
        for layer in self.layers:
            h = layer(h)
        h = self.norm_out(h)
        if targets is None:
            return self.head(h[:, -1:]), None  # only the last position is sampled from
        logits = self.head(h)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        matrices, vectors = [], []
        for p in self.parameters():
            if p.requires_grad:
                (matrices if p.ndim > 1 else vectors).append(p)
        options = {"lr": learning_rate, "betas": betas}
        if device_type == "cuda" and "fused" in inspect.signature(torch.optim.AdamW).parameters:
            options["fused"] = True
        print(
            f"AdamW: {len(matrices)} tensors with decay, {len(vectors)} without,",
            "fused" if "fused" in options else "not fused",
        )
        return torch.optim.AdamW(
            [
                dict(params=matrices, weight_decay=weight_decay),
                dict(params=vectors, weight_decay=0.0),
            ],
            **options,
        )

    def estimate_mfu(self, fwdbwd_per_iter, dt):
        """The share of an A100's bfloat16 peak that dt seconds for so many sequences come to."""
        peak = 312e12
        c = self.config
        head_width = c.n_embd // c.n_head
        attention = 12 * c.n_layer * c.n_head * head_width * c.block_size
        per_sequence = (6 * self.get_num_params() + attention) * c.block_size
        return per_sequence * fwdbwd_per_iter / (dt * peak)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        window = self.config.block_size
        while max_new_tokens > 0:
            scores = self(idx[:, -window:])[0][:, -1] / temperature
            if top_k is not None:
                kept = scores.topk(min(top_k, scores.shape[-1])).values
                scores = scores.masked_fill(scores < kept[:, -1:], -math.inf)
            drawn = torch.multinomial(scores.softmax(-1), 1)
            idx = torch.cat([idx, drawn], dim=-1)
            max_new_tokens -= 1
        return idx

    def crop_block_size(self, block_size):
        """Forget the positions from block_size on."""
        if block_size > self.config.block_size:
            raise AssertionError("a model can only be cropped to fewer positions")
        table = self.pos_emb.weight
        self.pos_emb.weight = nn.Parameter(table[:block_size])
        self.config.block_size = block_size

    @classmethod
    def from_pretrained(cls, model_type, override_args=None):
        if model_type not in GPT2_SIZES:
            raise AssertionError(f"{model_type} is none of {', '.join(GPT2_SIZES)}")
        from transformers import GPT2LMHeadModel

        layers, heads, width = GPT2_SIZES[model_type]
        model = cls(
            GPTConfig(
                n_layer=layers,
                n_head=heads,
                n_embd=width,
                vocab_size=50257,
                block_size=1024,
                bias=True,
                **(override_args or {}),
            )
        )
        table = dict(GPT2_OUTER)
        for i in range(layers):
            for ours, (theirs, conv) in GPT2_INNER.items():
                table[f"layers.{i}.{ours}"] = (f"transformer.h.{i}.{theirs}", conv)

        source = GPT2LMHeadModel.from_pretrained(model_type).state_dict()
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                module, _, kind = name.rpartition(".")
                if module not in table:
                    continue  # the buffer of the spelled out attention
                theirs, conv = table[module]
                value = source[f"{theirs}.{kind}"]
                # a Conv1D keeps its matrix as (in, out)
                tensor.copy_(value.T if conv and kind == "weight" else value)
        return model
