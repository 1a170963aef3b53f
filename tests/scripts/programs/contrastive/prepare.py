"""Run in a copy of the folder before a real run: makes stand-ins and data."""
import os


import numpy as np

rng = np.random.RandomState(0)
os.makedirs("data/pairs", exist_ok=True)
np.save("data/pairs/images.npy", rng.randint(0, 256, (600, 64, 64, 3)).astype(np.uint8))
words = "a red blue small large dog cat car house on the grass beach with two men running photo of old".split()
with open("data/pairs/captions.tsv", "w") as f:
    f.write("index\tcaption\n")
    for i in range(600):
        f.write("%d\t%s\n" % (i, " ".join(rng.choice(words, rng.randint(4, 12)))))
