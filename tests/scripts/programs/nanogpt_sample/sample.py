"""
Prints what a trained GPT writes: the one that train.py left in out_dir, or one of OpenAI's.
"""

import os
import pickle
from contextlib import nullcontext

import torch
from model import GPT, GPTConfig

# ==== settings ====
# the writer
init_from = "resume"  # or the name of a GPT-2 size
out_dir = "out"
# the text
start = "\n"  # what it goes on from; FILE:name reads that from a file
max_new_tokens = 500
num_samples = 10
top_k = 200
temperature = 0.8
seed = 1337
# the machine
compile = True
dtype = "float16"
device = "cuda"
exec(open("configurator.py").read())

for seeding in (torch.manual_seed, torch.cuda.manual_seed):
    seeding(seed)
for library in (torch.backends.cudnn, torch.backends.cuda.matmul):
    library.allow_tf32 = True
if device == "cpu":
    ctx = nullcontext()
else:
    ctx = torch.amp.autocast("cuda", dtype=getattr(torch, dtype))

# ==== model ====
trained_on = None
if init_from.startswith("gpt2"):
    model = GPT.from_pretrained(init_from, {"dropout": 0.0})
elif init_from == "resume":
    saved = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    trained_on = saved.get("config", {}).get("dataset")
    model = GPT(GPTConfig(**saved["model_args"]))
    # keys saved from a compiled module are prefixed
    model.load_state_dict({name.removeprefix("_orig_mod."): t for name, t in saved["model"].items()})
else:
    raise SystemExit(f"init_from={init_from}: neither 'resume' nor a GPT-2 size")
model.to(device).eval()
if compile:
    model = torch.compile(model)

# ==== characters or BPE ====
meta_path = os.path.join("data", trained_on, "meta.pkl") if trained_on else ""
if os.path.exists(meta_path):
    print(f"characters as in {meta_path}")
    with open(meta_path, "rb") as meta_file:
        meta = pickle.load(meta_file)

    def encode(text):
        return [meta["stoi"][char] for char in text]

    def decode(numbers):
        return "".join(map(meta["itos"].get, numbers))
else:
    print("the dataset names no characters, so tokens are those of GPT-2")
    import tiktoken

    bpe = tiktoken.get_encoding("gpt2")
    decode = bpe.decode

    def encode(text):
        return bpe.encode(text, allowed_special={"<|endoftext|>"})


# ==== samples ====
if start.startswith("FILE:"):
    with open(start.removeprefix("FILE:"), encoding="utf-8") as prompt_file:
        start = prompt_file.read()
prompt = torch.tensor([encode(start)], dtype=torch.long, device=device)

with ctx, torch.no_grad():
    for _ in range(num_samples):
        written = model.generate(prompt, max_new_tokens, temperature=temperature, top_k=top_k)
        print(decode(written[0].tolist()), "=" * 20, sep="\n")
