"""Trains a small language model on text that is prepared elsewhere."""

import os
import time

import numpy as np
import torch
from model import GPT, Config

data_dir = os.path.join("data", "shakespeare")
batch_size, block_size = 12, 64
learning_rate, max_iters = 1e-3, 5000
eval_interval, eval_iters = 250, 20
device = "cuda"

torch.manual_seed(1337)
os.makedirs("out", exist_ok=True)


def get_batch(split):
    data = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    at = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in at])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in at])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


model = GPT(Config(length=block_size)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
model = torch.compile(model)  # requires PyTorch 2.0


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        losses[k] = model(*get_batch("val"))[1].item()
    model.train()
    return losses.mean()


start = time.time()
for step in range(max_iters):
    if step % eval_interval == 0:
        print(f"step {step}: validation {estimate_loss():.4f}, {time.time() - start:.0f} s")
    x, y = get_batch("train")
    logits, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
torch.save(model.state_dict(), "out/model.pt")
