import os
import pickle

import numpy as np

d = os.path.join("data", "shakespeare_char")
os.makedirs(d, exist_ok=True)
rng = np.random.default_rng(0)
for s, n in (("train", 40000), ("val", 4000)):
    rng.integers(0, 65, n).astype(np.uint16).tofile(os.path.join(d, s + ".bin"))
chars = [chr(32 + i) for i in range(65)]
pickle.dump(
    {"vocab_size": 65, "itos": dict(enumerate(chars)), "stoi": {c: i for i, c in enumerate(chars)}},
    open(os.path.join(d, "meta.pkl"), "wb"),
)
