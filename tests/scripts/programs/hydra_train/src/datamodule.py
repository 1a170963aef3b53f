import json
import zlib
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset


def hash_encode(text, vocab_size, max_len):
    ids = [zlib.crc32(w.encode()) % (vocab_size - 1) + 1 for w in text.lower().split()][:max_len]
    return ids + [0] * (max_len - len(ids))


def build_loader(cfg, split, root):
    path = Path(root) / cfg.dir / f"{split}.jsonl"
    xs, ys = [], []
    with path.open() as f:
        for line in f:
            row = json.loads(line)
            xs.append(hash_encode(row["text"], cfg.vocab_size, cfg.max_len))
            ys.append(row["label"])
    ds = TensorDataset(torch.tensor(xs), torch.tensor(ys))
    return DataLoader(ds, batch_size=cfg.batch_size, shuffle=split == "train", drop_last=split == "train")
