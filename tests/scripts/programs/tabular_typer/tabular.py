import csv
import zlib

import torch
import yaml
from torch import nn


class Schema:
    def __init__(self, path):
        d = yaml.safe_load(open(path))
        self.target, self.positive = d["target"], d["positive"]
        self.numeric, self.categorical = d["numeric"], d["categorical"]

    def read(self, path):
        num, cat, y = [], [], []
        with open(path, newline="") as f:
            for row in csv.DictReader(f):
                num.append([float(row[c] or 0) for c in self.numeric])
                cat.append([zlib.crc32(row[c].strip().encode()) % k for c, k in self.categorical.items()])
                y.append(float(row.get(self.target, "") == self.positive))
        return torch.tensor(num), torch.tensor(cat), torch.tensor(y)


class FTTransformer(nn.Module):
    def __init__(self, n_num, cards, d=64, heads=4, depth=3, dropout=0.1):
        super().__init__()
        self.num_w = nn.Parameter(torch.randn(n_num, d) * 0.02)
        self.num_b = nn.Parameter(torch.zeros(n_num, d))
        self.register_buffer("offsets", torch.tensor([0] + list(cards[:-1])).cumsum(0))
        self.emb = nn.Embedding(sum(cards), d)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(nn.ModuleDict({
                "n1": nn.LayerNorm(d),
                "attn": nn.MultiheadAttention(d, heads, dropout=dropout, batch_first=True),
                "n2": nn.LayerNorm(d),
                "ff": nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * d, d)),
            }))
        self.head = nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 1))
        self.register_buffer("mean", torch.zeros(n_num))
        self.register_buffer("std", torch.ones(n_num))

    def fit_scaler(self, x):
        self.mean.copy_(x.mean(0))
        self.std.copy_(x.std(0).clamp(min=1e-6))

    def forward(self, num, cat):
        num = (num - self.mean) / self.std
        tokens = [self.cls.expand(len(num), -1, -1), num[..., None] * self.num_w + self.num_b,
                  self.emb(cat + self.offsets)]
        x = torch.cat(tokens, dim=1)
        for b in self.blocks:
            h = b["n1"](x)
            x = x + b["attn"](h, h, h, need_weights=False)[0]
            x = x + b["ff"](b["n2"](x))
        return self.head(x[:, 0]).squeeze(-1)
