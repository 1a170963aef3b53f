import torch
from torch.utils.data import Dataset


class SpiralTokens(Dataset):
    """Sequence tagging toy: tag of each token = parity of the running sum."""

    def __init__(self, n=4096, seq_len=64, vocab=512, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randint(1, vocab, (n, seq_len), generator=g)
        lengths = torch.randint(seq_len // 2, seq_len + 1, (n,), generator=g)
        keep = torch.arange(seq_len)[None] < lengths[:, None]
        self.x = self.x.masked_fill(~keep, 0)
        self.y = (self.x.cumsum(1) % 2).masked_fill(~keep, -100)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"tokens": self.x[i], "tags": self.y[i]}
