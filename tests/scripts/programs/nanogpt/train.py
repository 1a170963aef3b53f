"""
Trains the GPT of model.py on a file of token numbers.

    python train.py --n_layer=6 --compile=False           one process
    torchrun --nproc_per_node=2 train.py --max_iters=100   data parallel, one process per GPU
"""

import math
import os
import pickle
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from model import GPT, GPTConfig
from torch.nn.parallel import DistributedDataParallel

# ==== settings ====
# the network
n_embd = 128
n_head = 4
n_layer = 4
bias = False
dropout = 0.1
# where its weights come from: 'scratch', 'resume' (out_dir's checkpoint) or the name of a GPT-2 size
init_from = "scratch"
# what it reads
dataset = "shakespeare_char"
block_size = 128
batch_size = 8
gradient_accumulation_steps = 2  # of all processes together
# how it learns
max_iters = 5000
learning_rate = 1e-3
beta1 = 0.9
beta2 = 0.99
weight_decay = 1e-1
grad_clip = 1.0  # 0.0: no clipping
# how the rate moves: up over warmup_iters, down to min_lr at lr_decay_iters
decay_lr = True
min_lr = 1e-4
warmup_iters = 100
lr_decay_iters = 5000
# what it runs on
device = "cuda"
_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
dtype = "bfloat16" if _bf16 else "float16"
compile = True
backend = "nccl"
# what it reports and keeps
out_dir = "out"
log_interval = 10
eval_interval = 250
eval_iters = 4
eval_only = False  # evaluate once, then leave
always_save_checkpoint = True  # also when the validation loss has not improved
wandb_log = False
wandb_project = "charlm"
wandb_run_name = "mini-gpt"

config_keys = [
    name for name, value in globals().items() if isinstance(value, (bool, int, float, str)) and not name.startswith("_")
]
exec(open("configurator.py").read())
config = {name: globals()[name] for name in config_keys}

# ==== processes and devices ====
rank, world_size = 0, 1
ddp = os.environ.get("RANK", "-1") != "-1"
if ddp:
    dist.init_process_group(backend)
    rank, local_rank, world_size = (int(os.environ[v]) for v in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    device = f"cuda:{local_rank}"
    torch.cuda.set_device(device)
    gradient_accumulation_steps, rest = divmod(gradient_accumulation_steps, world_size)
    assert rest == 0, "gradient_accumulation_steps has to be a multiple of the processes"
is_main = rank == 0
sequences_per_step = batch_size * gradient_accumulation_steps  # in this process
print(f"one step reads {sequences_per_step * world_size * block_size:,} tokens")

device_type = "cuda" if "cuda" in device else "cpu"
if device_type == "cpu":
    ctx = nullcontext()
else:
    ctx = torch.amp.autocast(device_type, dtype=getattr(torch, dtype))
for library in (torch.backends.cudnn, torch.backends.cuda.matmul):
    library.allow_tf32 = True
torch.manual_seed(1337 + rank)  # other batches in every process
if is_main:
    os.makedirs(out_dir, exist_ok=True)
ckpt_path = os.path.join(out_dir, "ckpt.pt")

# ==== data ====
data_dir = os.path.join("data", dataset)


def get_batch(split):
    # mapped anew for every batch, since a map that lives on holds the pages it has read
    tokens = np.memmap(os.path.join(data_dir, f"{split}.bin"), mode="r", dtype=np.uint16)
    starts = torch.randint(len(tokens) - block_size - 1, (batch_size,))
    window = torch.arange(block_size + 1)
    rows = torch.from_numpy(tokens[(starts[:, None] + window).numpy()].astype(np.int64))
    inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    if device_type != "cuda":
        return inputs.to(device), targets.to(device)
    # page-locked memory can be copied while the GPU computes
    return tuple(t.pin_memory().to(device, non_blocking=True) for t in (inputs, targets))


vocab_of_data = None
meta_path = os.path.join(data_dir, "meta.pkl")
if os.path.exists(meta_path):
    with open(meta_path, "rb") as meta_file:
        vocab_of_data = pickle.load(meta_file)["vocab_size"]
    print(f"{meta_path} names a vocabulary of {vocab_of_data}")

# ==== model ====
iter_num = 0
best_val_loss = 1e9
SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size")
model_args = {
    "dropout": dropout,
    "bias": bias,
    "block_size": block_size,
    "vocab_size": None,
    "n_embd": n_embd,
    "n_head": n_head,
    "n_layer": n_layer,
}
saved = None
if init_from.startswith("gpt2"):
    model = GPT.from_pretrained(init_from, {"dropout": dropout})
    model_args.update((name, getattr(model.config, name)) for name in SHAPE)
elif init_from == "resume":
    print(f"going on from {ckpt_path}")
    saved = torch.load(ckpt_path, map_location=device)
    model_args.update((name, saved["model_args"][name]) for name in SHAPE)
    model = GPT(GPTConfig(**model_args))
    # keys saved from a compiled module are prefixed
    model.load_state_dict({name.removeprefix("_orig_mod."): t for name, t in saved["model"].items()})
    best_val_loss = saved["best_val_loss"]
    iter_num = saved["iter_num"]
elif init_from == "scratch":
    if vocab_of_data is None:
        print(f"nothing at {meta_path}, so the vocabulary is that of GPT-2, padded to 50304")
    model_args["vocab_size"] = vocab_of_data or 50304
    model = GPT(GPTConfig(**model_args))
if model.config.block_size > block_size:
    model.crop_block_size(block_size)
    model_args["block_size"] = block_size
model.to(device)

optimizer = model.configure_optimizers(weight_decay, learning_rate, (beta1, beta2), device_type)
if saved is not None:
    optimizer.load_state_dict(saved["optimizer"])
    saved = None  # its tensors are no longer needed
scaler = torch.amp.GradScaler("cuda", enabled=dtype == "float16")

if compile:
    print("torch.compile is on: expect a slow start")
    model = torch.compile(model)
bare_model = model
if ddp:
    model = DistributedDataParallel(model, device_ids=[local_rank])


# ==== training ====
def get_lr(step):
    if step < warmup_iters:
        return (step + 1) * learning_rate / (warmup_iters + 1)
    if step > lr_decay_iters:
        return min_lr
    progress = (step - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + (learning_rate - min_lr) * (1 + math.cos(progress * math.pi)) / 2


def loss_of_one_batch(split):
    inputs, targets = get_batch(split)
    with ctx:
        return model(inputs, targets)[1].item()


@torch.no_grad()
def estimate_loss():
    model.eval()
    means = {split: sum(loss_of_one_batch(split) for _ in range(eval_iters)) / eval_iters for split in ("train", "val")}
    model.train()
    return means


def save_checkpoint():
    print(f"writing {ckpt_path}")
    torch.save(
        dict(
            iter_num=iter_num,
            best_val_loss=best_val_loss,
            config=config,
            model_args=model_args,
            model=bare_model.state_dict(),
            optimizer=optimizer.state_dict(),
        ),
        ckpt_path,
    )


if is_main and wandb_log:
    import wandb

    wandb.init(name=wandb_run_name, project=wandb_project, config=config)

steps_here = 0  # iter_num also counts those before a resume
mfu = None  # a moving average, once the first steps are over
X, Y = get_batch("train")
last_time = time.time()
while True:
    lr = get_lr(iter_num) if decay_lr else learning_rate
    for group in optimizer.param_groups:
        group["lr"] = lr

    if is_main and iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"[{iter_num}] mean losses:", ", ".join(f"{split} {mean:.4f}" for split, mean in losses.items()))
        if wandb_log:
            wandb.log(
                {
                    "iter": iter_num,
                    "lr": lr,
                    "mfu": -100.0 if mfu is None else 100 * mfu,
                    **{f"{split}/loss": mean for split, mean in losses.items()},
                }
            )
        if always_save_checkpoint or losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            if iter_num:
                save_checkpoint()
    if eval_only and iter_num == 0:
        break

    for left in reversed(range(gradient_accumulation_steps)):
        if ddp:
            # gradients are exchanged once, in the last backward
            model.require_backward_grad_sync = left == 0
        with ctx:
            _, loss = model(X, Y)
        X, Y = get_batch("train")  # read while the GPU is at work
        scaler.scale(loss / gradient_accumulation_steps).backward()
    if grad_clip:
        scaler.unscale_(optimizer)  # the limit is on the true gradients
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)

    now = time.time()
    seconds, last_time = now - last_time, now
    if is_main and iter_num % log_interval == 0:
        last_loss = loss.item()  # of the last micro batch; waits for the GPU
        if steps_here >= 5:
            mfu_now = bare_model.estimate_mfu(sequences_per_step, seconds)
            mfu = mfu_now if mfu is None else 0.1 * mfu_now + 0.9 * mfu
        print(
            f"[{iter_num}] loss {last_loss:.4f} in {1000 * seconds:.2f} ms,",
            "MFU unknown yet" if mfu is None else f"MFU {mfu:.2%}",
        )
    steps_here += 1
    iter_num += 1
    if iter_num > max_iters:
        break

if ddp:
    dist.destroy_process_group()
