import json
import os
import random

random.seed(5)
os.makedirs("data/agnews", exist_ok=True)
for split, n in (("train", 3000), ("val", 400)):
    with open(f"data/agnews/{split}.jsonl", "w") as f:
        for _ in range(n):
            y = random.randrange(4)
            words = [f"w{random.randrange(500) + 400 * y}" for _ in range(random.randint(15, 80))]
            f.write(json.dumps({"text": " ".join(words), "label": y}) + "\n")
