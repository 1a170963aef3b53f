from typing import NamedTuple
import json
import math
import torch
from torch import nn

ACT2FN = {"gelu": nn.functional.gelu, "relu": nn.functional.relu, "swish": lambda x: x * torch.sigmoid(x)}


class Config(NamedTuple):
    vocab_size: int = 8000
    dim: int = 192
    n_layers: int = 4
    n_heads: int = 4
    dim_ff: int = 192 * 4
    max_len: int = 128
    n_segments: int = 2
    p_drop: float = 0.1
    act: str = "gelu"

    @classmethod
    def from_json(cls, file):
        return cls(**json.load(open(file, "r")))


class BertEmbeddings(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab_size, cfg.dim, padding_idx=0)
        self.pos = nn.Embedding(cfg.max_len, cfg.dim)
        self.seg = nn.Embedding(cfg.n_segments, cfg.dim)
        self.norm = nn.LayerNorm(cfg.dim, eps=1e-12)
        self.drop = nn.Dropout(cfg.p_drop)
        self.register_buffer("position_ids", torch.arange(cfg.max_len).expand((1, -1)), persistent=False)

    def forward(self, ids, seg=None):
        if seg is None:
            seg = torch.zeros_like(ids)
        e = self.tok(ids) + self.pos(self.position_ids[:, :ids.size(1)]) + self.seg(seg)
        return self.drop(self.norm(e))


class SelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(cfg.dim, cfg.dim) for _ in range(3))
        self.out = nn.Linear(cfg.dim, cfg.dim)
        self.drop = nn.Dropout(cfg.p_drop)
        self.h = cfg.n_heads

    def split(self, x):
        return x.view(*x.shape[:2], self.h, -1).permute(0, 2, 1, 3)

    def forward(self, x, bias):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1)) + bias
        ctx = torch.matmul(self.drop(scores.softmax(dim=-1)), v)
        return self.out(ctx.permute(0, 2, 1, 3).flatten(2))


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attn = SelfAttention(cfg)
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim, 1e-12), nn.LayerNorm(cfg.dim, 1e-12)
        self.fc1, self.fc2 = nn.Linear(cfg.dim, cfg.dim_ff), nn.Linear(cfg.dim_ff, cfg.dim)
        self.act = ACT2FN[cfg.act]
        self.drop = nn.Dropout(cfg.p_drop)

    def forward(self, x, bias):
        x = self.norm1(x + self.drop(self.attn(x, bias)))
        return self.norm2(x + self.drop(self.fc2(self.act(self.fc1(x)))))


class BertForSequenceClassification(nn.Module):
    def __init__(self, cfg: Config, num_labels: int):
        super().__init__()
        self.embeddings = BertEmbeddings(cfg)
        self.encoder = nn.ModuleList([Layer(cfg) for _ in range(cfg.n_layers)])
        self.pooler = nn.Sequential(nn.Linear(cfg.dim, cfg.dim), nn.Tanh())
        self.classifier = nn.Linear(cfg.dim, num_labels)
        self.dropout = nn.Dropout(cfg.p_drop)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            m.weight.data.normal_(0.0, 0.02)

    def forward(self, input_ids, attention_mask, token_type_ids=None, labels=None):
        bias = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        h = self.embeddings(input_ids, token_type_ids)
        for layer in self.encoder:
            h = layer(h, bias)
        logits = self.classifier(self.dropout(self.pooler(h[:, 0])))
        out = {"logits": logits}
        if labels is not None:
            out["loss"] = nn.functional.cross_entropy(logits, labels)
        return out
