"""Run in a copy of the folder before a real run: makes data, with the packages of image_packages.py."""
import os

import numpy as np

rng = np.random.RandomState(0)


def picture(path, h, w, c=3, high=256):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shape = (h, w, c) if c else (h, w)
    with open(path, "wb") as f:  # numpy content: the stand-in PIL reads it
        np.save(f, rng.randint(0, high, shape).astype(np.uint8))


for split, n in (("train", 40), ("test", 12)):
    for i in range(n):
        picture("dataset/BSDS300/images/%s/%03d.jpg" % (split, i), 321, 481)
