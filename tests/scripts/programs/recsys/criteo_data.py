import numpy as np
import torch
from torch.utils.data import Dataset


class CriteoDataset(Dataset):
    """preprocessed kaggle file: X_int (n,13), X_cat (n,26), y (n,)"""

    def __init__(self, path, split="train", max_ind_range=-1, test_frac=0.1):
        with np.load(path) as data:
            X_int, X_cat, y = data["X_int"], data["X_cat"], data["y"]
        if max_ind_range > 0:
            X_cat = X_cat % max_ind_range
        cut = int(len(y) * (1 - test_frac))
        sl = slice(0, cut) if split == "train" else slice(cut, None)
        self.X_int, self.X_cat, self.y = X_int[sl], X_cat[sl], y[sl]

    def __getitem__(self, i):
        return self.X_int[i], self.X_cat[i], self.y[i]

    def __len__(self):
        return len(self.y)


def collate_wrapper_criteo_offset(list_of_tuples):
    # where each tuple is (X_int, X_cat, y)
    X_int, X_cat, y = zip(*list_of_tuples)
    X_int = torch.log(torch.tensor(np.array(X_int), dtype=torch.float) + 1)
    X_cat = torch.tensor(np.array(X_cat), dtype=torch.long)
    T = torch.tensor(np.array(y), dtype=torch.float32).view(-1, 1)
    B, n_feat = X_cat.shape
    lS_i = [X_cat[:, k].contiguous() for k in range(n_feat)]
    lS_o = [torch.arange(B) for _ in range(n_feat)]
    return X_int, torch.stack(lS_o), torch.stack(lS_i), T


def make_loaders(args):
    train = CriteoDataset(args.processed_data_file, "train", args.max_ind_range)
    test = CriteoDataset(args.processed_data_file, "test", args.max_ind_range)
    mk = lambda d, shuffle, bs: torch.utils.data.DataLoader(
        d, batch_size=bs, shuffle=shuffle, num_workers=args.num_workers,
        collate_fn=collate_wrapper_criteo_offset, drop_last=shuffle)
    return mk(train, True, args.mini_batch_size), mk(test, False, args.test_mini_batch_size)
