"""Run in a copy of the folder before a real run: makes stand-ins and data."""
import os


import numpy as np

rng = np.random.RandomState(0)
os.makedirs("data", exist_ok=True)
n = 24
poses = np.tile(np.eye(4, dtype=np.float32), (n, 1, 1))
for i in range(n):
    a = 2 * np.pi * i / n
    poses[i, :3, :3] = [[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]]
    poses[i, :3, 3] = [4 * np.sin(a), 0, 4 * np.cos(a)]
np.savez("data/tiny_nerf_data.npz", images=rng.rand(n, 50, 50, 3).astype(np.float32), poses=poses,
         focal=np.float32(70.0))
