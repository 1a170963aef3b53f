import os
import numpy as np

os.makedirs("data/fineweb10B", exist_ok=True)
rng = np.random.default_rng(0)
for name in ["fineweb_val_000000", "fineweb_train_000001", "fineweb_train_000002"]:
    n = 100000
    h = np.zeros(256, dtype=np.int32)
    h[:3] = 20240520, 1, n
    z = rng.zipf(1.2, n)
    toks = np.minimum(z, 50256).astype(np.uint16)
    with open(f"data/fineweb10B/{name}.bin", "wb") as f:
        f.write(h.tobytes())
        f.write(toks.tobytes())
