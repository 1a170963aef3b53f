"""Run in a copy of the folder before a real run: makes data."""
import os

import numpy as np

rng = np.random.RandomState(0)


def picture(path, h, w, c=3, high=256):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shape = (h, w, c) if c else (h, w)
    with open(path, "wb") as f:  # numpy content: the stand-in PIL reads it
        np.save(f, rng.randint(0, high, shape).astype(np.uint8))


for i in range(24):
    picture("data/imgs/car_%02d.png" % i, 128, 192)
    picture("data/masks/car_%02d_mask.png" % i, 128, 192, 0, 2)
