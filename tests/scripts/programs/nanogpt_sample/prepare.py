import os
import pickle

import torch
from model import GPT, GPTConfig

torch.manual_seed(0)
args = dict(n_layer=4, n_head=4, n_embd=128, block_size=128, bias=False, vocab_size=65, dropout=0.1)
m = GPT(GPTConfig(**args))
os.makedirs("out", exist_ok=True)
sd = {"_orig_mod." + k: v for k, v in m.state_dict().items()}
torch.save(
    {
        "model": sd,
        "model_args": args,
        "iter_num": 1000,
        "best_val_loss": 2.0,
        "config": {"dataset": "shakespeare_char", "batch_size": 8},
    },
    "out/ckpt.pt",
)
d = "data/shakespeare_char"
os.makedirs(d, exist_ok=True)
chars = ["\n"] + [chr(32 + i) for i in range(64)]
pickle.dump(
    {"vocab_size": 65, "itos": dict(enumerate(chars)), "stoi": {c: i for i, c in enumerate(chars)}},
    open(d + "/meta.pkl", "wb"),
)
