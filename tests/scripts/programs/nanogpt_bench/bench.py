"""
Speed of a GPT training step, without the logging and the checkpoints of train.py
usage: python bench.py [--batch_size=12] [--profile=True] [--compile=False]
"""

import functools
import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from model import GPT, GPTConfig

# ---- settings, any of them can be given on the command line ------------------
n_layer, n_head, n_embd = 6, 6, 192
bias = False
vocab_size = 8192
block_size = 256
batch_size = 6
dataset = "openwebtext"
real_data = False
burnin_steps = 10
timed_steps = 20
profile = False
compile = True
dtype = "bfloat16"
device = "cuda" if torch.cuda.is_available() else "cpu"
seed = 1337
exec(open("configurator.py").read())
# ------------------------------------------------------------------------------

for seeding in (torch.manual_seed, torch.cuda.manual_seed):
    seeding(seed)
for library in (torch.backends.cudnn, torch.backends.cuda.matmul):
    library.allow_tf32 = True
on_gpu = device.startswith("cuda")
if on_gpu:
    amp = torch.amp.autocast("cuda", dtype=getattr(torch, dtype))
else:
    amp = nullcontext()

if real_data:
    tokens = np.memmap(os.path.join("data", dataset, "train.bin"), dtype=np.uint16, mode="r")

    def next_batch():
        starts = np.random.randint(0, len(tokens) - block_size - 1, size=batch_size)
        chunk = torch.from_numpy(np.stack([tokens[s : s + block_size + 1] for s in starts]).astype(np.int64))
        chunk = chunk.pin_memory().to(device, non_blocking=True)
        return chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous()
else:
    # the same random tokens at every step: no data loading in the numbers
    fixed = [torch.randint(vocab_size, (batch_size, block_size), device=device) for _ in range(2)]
    next_batch = lambda: fixed

model = GPT(
    GPTConfig(
        block_size=block_size,
        vocab_size=vocab_size,
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        dropout=0,
        bias=bias,
    )
)
model.to(device)
optimizer = model.configure_optimizers(
    weight_decay=1e-2, learning_rate=1e-4, betas=(0.9, 0.95), device_type="cuda" if on_gpu else "cpu"
)
if compile:
    print("torch.compile is on: the first burn-in step pays for it")
    model = torch.compile(model)


def run(n, after_step=None):
    tokens_in, tokens_out = next_batch()
    for done in range(1, n + 1):
        optimizer.zero_grad(set_to_none=True)
        with amp:
            _, loss = model(tokens_in, tokens_out)
        tokens_in, tokens_out = next_batch()
        loss.backward()
        optimizer.step()
        print(f"step {done} of {n}, loss {loss.item():.4f}")
        if after_step is not None:
            after_step()


sync = torch.cuda.synchronize if on_gpu else functools.partial(int)

if profile:
    from torch import profiler

    phases = dict.fromkeys(("wait", "warmup", "active"), 5)
    recorder = profiler.profile(
        on_trace_ready=profiler.tensorboard_trace_handler("./bench_log"),
        schedule=profiler.schedule(repeat=1, **phases),
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA],
        with_flops=True,
    )
    with recorder:
        run(sum(phases.values()), recorder.step)
else:
    run(burnin_steps)
    sync()
    t0 = time.time()
    run(timed_steps)
    sync()
    per_step = (time.time() - t0) / timed_steps
    mfu = model.estimate_mfu(batch_size, per_step)
    print(
        f"{per_step * 1000:.3f} ms per step, {batch_size * block_size / per_step:,.0f} tokens/s, MFU {mfu * 100:.2f}%"
    )
