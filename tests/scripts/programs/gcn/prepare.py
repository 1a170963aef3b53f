import os
import numpy as np

rng = np.random.RandomState(0)
os.makedirs("data/cora", exist_ok=True)
N, F = 2708, 1433
names = ["Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods",
         "Reinforcement_Learning", "Rule_Learning", "Theory"]
ids = rng.permutation(100000)[:N]
lab = rng.randint(0, 7, N)
with open("data/cora/cora.content", "w") as f:
    for i in range(N):
        x = (rng.rand(F) < 0.012).astype(int)
        x[lab[i] * 20:lab[i] * 20 + 5] = 1
        f.write("\t".join([str(ids[i])] + [str(v) for v in x] + [names[lab[i]]]) + "\n")
with open("data/cora/cora.cites", "w") as f:
    for _ in range(5429):
        a, b = rng.randint(0, N, 2)
        f.write("%d\t%d\n" % (ids[a], ids[b]))
