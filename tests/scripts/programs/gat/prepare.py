import io
import os
import tarfile
import numpy as np

rng = np.random.RandomState(3)
N, F, E = 2708, 1433, 5429
names = ["Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods",
         "Reinforcement_Learning", "Rule_Learning", "Theory"]
ids = rng.permutation(200000)[:N]
lab = rng.randint(0, 7, N)
content, cites = [], []
for i in range(N):
    x = (rng.rand(F) < 0.012).astype(int)
    x[lab[i] * 10:lab[i] * 10 + 4] = 1
    content.append("\t".join([str(ids[i])] + [str(v) for v in x] + [names[lab[i]]]))
perm = rng.permutation(N * N)[:E]
for p in perm:
    cites.append("%d\t%d" % (ids[p // N], ids[p % N]))
os.makedirs("data", exist_ok=True)
with tarfile.open("data/cora.tgz", "w:gz") as tar:
    for name, lines in (("cora/cora.content", content), ("cora/cora.cites", cites)):
        b = ("\n".join(lines) + "\n").encode()
        ti = tarfile.TarInfo(name)
        ti.size = len(b)
        tar.addfile(ti, io.BytesIO(b))
