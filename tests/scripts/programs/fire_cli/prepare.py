import os
import numpy as np

rng = np.random.default_rng(11)
d = "data/cifar-10-batches-bin"
os.makedirs(d, exist_ok=True)
for name, n in [(f"data_batch_{i}.bin", 1000) for i in range(1, 6)] + [("test_batch.bin", 500)]:
    y = rng.integers(0, 10, (n, 1), dtype=np.uint8)
    x = np.clip(rng.normal(90, 40, (n, 3072)) + y * 8, 0, 255).astype(np.uint8)
    np.concatenate([y, x], 1).tofile(os.path.join(d, name))
