import numpy as np
import torch

np.random.seed(2)
T, L, N = 20, 64, 100
x = np.arange(L)[None, :] + np.random.randint(-4 * T, 4 * T, N)[:, None]
torch.save(torch.from_numpy(np.sin(x / 1.0 / T)), "traindata.pt")
