import csv
import re
import zlib

import numpy as np
import torch
from torch.utils.data import Dataset


class HashTokenizer:
    """Words hashed to a fixed vocabulary. 0 pad, vocab-2 start, vocab-1 end."""

    def __init__(self, vocab_size=8192, context_length=32):
        self.v, self.n = vocab_size, context_length

    def __call__(self, text):
        ids = [1 + zlib.crc32(w.encode()) % (self.v - 3) for w in re.findall(r"\w+|[^\w\s]", text.lower())]
        ids = [self.v - 2] + ids[: self.n - 2] + [self.v - 1]
        out = torch.zeros(self.n, dtype=torch.long)
        out[: len(ids)] = torch.tensor(ids)
        return out


class PairDataset(Dataset):
    def __init__(self, root, tokenizer, image_size):
        self.images = np.load(f"{root}/images.npy", mmap_mode="r")
        with open(f"{root}/captions.tsv", newline="") as f:
            self.rows = [(int(r["index"]), r["caption"]) for r in csv.DictReader(f, delimiter="\t")]
        assert self.images.shape[1] == image_size, f"expected {image_size}px images, got {self.images.shape[1]}"
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        j, cap = self.rows[i]
        img = torch.from_numpy(np.array(self.images[j])).permute(2, 0, 1).float().div_(127.5).sub_(1)
        return img, self.tokenizer(cap)
