import os
import tarfile
from urllib.request import urlretrieve

import torch


def _lines(tar, member):
    return tar.extractfile(member).read().decode().strip().split("\n")


def load_cora(cfg):
    if not os.path.exists(cfg["archive"]):
        os.makedirs(os.path.dirname(cfg["archive"]), exist_ok=True)
        print("downloading", cfg["url"])
        urlretrieve(cfg["url"], cfg["archive"])

    with tarfile.open(cfg["archive"]) as tar:
        content = [l.split("\t") for l in _lines(tar, "cora/cora.content")]
        cites = [l.split("\t") for l in _lines(tar, "cora/cora.cites")]

    classes = sorted({row[-1] for row in content})
    ids = {row[0]: i for i, row in enumerate(content)}
    x = torch.tensor([[float(v) for v in row[1:-1]] for row in content])
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    y = torch.tensor([classes.index(row[-1]) for row in content])
    assert x.shape == (cfg["num_nodes"], cfg["num_features"]), x.shape

    e = torch.tensor([[ids[a], ids[b]] for a, b in cites if a in ids and b in ids]).t()
    loops = torch.arange(x.size(0)).repeat(2, 1)
    edge_index = torch.cat([e, e.flip(0), loops], dim=1)
    edge_index = torch.unique(edge_index, dim=1)      # (2, E)

    # planetoid-like split
    train = []
    for c in range(cfg["num_classes"]):
        train.append((y == c).nonzero()[: cfg["num_train_per_class"], 0])
    train = torch.cat(train)
    mask = torch.ones(len(y), dtype=torch.bool)
    mask[train] = False
    rest = mask.nonzero()[:, 0]
    return x, y, edge_index, train, rest[:500], rest[500:1500]
