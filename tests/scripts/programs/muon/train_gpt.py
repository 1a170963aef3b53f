import os
import sys
with open(sys.argv[0]) as f:
    code = f.read()  # read the code of this file ASAP, for logging
import glob
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from muon import Muon

# -----------------------------------------------------------------------------
# model


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


class Rotary(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        self.register_buffer('inv_freq', (1 / base) ** (torch.arange(0, dim, 2) / dim), persistent=False)

    def forward(self, x):
        t = torch.arange(x.size(1), device=x.device)
        freqs = torch.outer(t, self.inv_freq)
        cos, sin = freqs.cos()[None, :, None, :], freqs.sin()[None, :, None, :]
        x1, x2 = x.float().chunk(2, dim=-1)
        return torch.cat((x1 * cos + x2 * sin, -x1 * sin + x2 * cos), -1).type_as(x)


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        assert dim % n_head == 0
        self.n_head, self.head_dim = n_head, dim // n_head
        self.c_q = nn.Linear(dim, dim, bias=False)
        self.c_k = nn.Linear(dim, dim, bias=False)
        self.c_v = nn.Linear(dim, dim, bias=False)
        self.c_proj = nn.Linear(dim, dim, bias=False)
        self.c_proj.weight.data.zero_()
        self.rotary = Rotary(self.head_dim)
        self.lamb = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, v1=None):
        B, T, C = x.size()
        q = self.c_q(x).view(B, T, self.n_head, self.head_dim)
        k = self.c_k(x).view(B, T, self.n_head, self.head_dim)
        v = self.c_v(x).view(B, T, self.n_head, self.head_dim)
        if v1 is None:
            v1 = v
        v = (1 - self.lamb) * v + self.lamb * v1.view_as(v)
        q, k = self.rotary(norm(q)), self.rotary(norm(k))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2).type_as(q), is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)), v1


class Block(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        self.attn = CausalSelfAttention(dim, n_head)
        self.c_fc = nn.Linear(dim, 4 * dim, bias=False)
        self.c_proj = nn.Linear(4 * dim, dim, bias=False)
        self.c_proj.weight.data.zero_()
        self.lambdas = nn.Parameter(torch.tensor([1., 0.]))

    def forward(self, x, v1, x0):
        x = self.lambdas[0] * x + self.lambdas[1] * x0
        x1, v1 = self.attn(norm(x), v1)
        x = x + x1
        x = x + self.c_proj(F.relu(self.c_fc(norm(x))).square())
        return x, v1


@dataclass
class GPTConfig:
    vocab_size: int = 50304
    n_layer: int = 4
    n_head: int = 3
    n_embd: int = 192


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            h=nn.ModuleList([Block(config.n_embd, config.n_head) for _ in range(config.n_layer)]),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight.data.zero_()

    def forward(self, idx, target):
        x = norm(self.transformer.wte(idx))
        x0, v1 = x, None
        for block in self.transformer.h:
            x, v1 = block(x, v1, x0)
        logits = self.lm_head(norm(x))
        logits = 30 * torch.tanh(logits / 30)
        logits = logits.float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1))

# -----------------------------------------------------------------------------
# data shards: 256 int32 header (magic, version, ntok), then uint16 tokens


def _load_data_shard(filename):
    header = np.fromfile(filename, dtype=np.int32, count=256)
    assert header[0] == 20240520, 'magic number mismatch in the data .bin file'
    assert header[1] == 1, 'unsupported version'
    with open(filename, 'rb') as f:
        f.seek(256 * 4)
        tokens = np.frombuffer(f.read(), dtype=np.uint16)
    assert len(tokens) == header[2]
    return tokens


def distributed_data_generator(filename_pattern, B, T, rank, world_size):
    files = sorted(glob.glob(filename_pattern))
    assert len(files) > 0, f'no files for {filename_pattern}'
    while True:
        for file in files:
            tokens = _load_data_shard(file)
            pos = rank * B * T
            while pos + world_size * B * T + 1 < len(tokens):
                buf = torch.tensor(tokens[pos:pos + B * T + 1].astype(np.int32), dtype=torch.long)
                yield buf[:-1].view(B, T).cuda(), buf[1:].view(B, T).cuda()
                pos += world_size * B * T

# -----------------------------------------------------------------------------


@dataclass
class Hyperparameters:
    input_bin: str = 'data/fineweb10B/fineweb_train_*.bin'
    input_val_bin: str = 'data/fineweb10B/fineweb_val_*.bin'
    batch_size: int = 4 * int(os.environ.get('WORLD_SIZE', 1))
    device_batch_size: int = 2
    sequence_length: int = 128
    num_iterations: int = 3242
    warmup_iters: int = 0
    warmdown_iters: int = 926
    val_loss_every: int = 125
    val_tokens: int = 4096
    save_every: int = 0


args = Hyperparameters()

ddp = int(os.environ.get('RANK', -1)) != -1
ddp_rank = int(os.environ.get('RANK', 0))
ddp_world_size = int(os.environ.get('WORLD_SIZE', 1))
device = f"cuda:{int(os.environ.get('LOCAL_RANK', 0))}"
if ddp:
    dist.init_process_group(backend='nccl')
    torch.cuda.set_device(device)
master_process = ddp_rank == 0

logfile = None
if master_process:
    run_id = str(uuid.uuid4())
    Path('logs').mkdir(exist_ok=True)
    logfile = f'logs/{run_id}.txt'


def print0(s, console=False):
    if master_process:
        with open(logfile, 'a') as f:
            if console:
                print(s)
            print(s, file=f)


print0(code)
print0('=' * 100)
print0(f'Running pytorch {torch.version.__version__} compiled for CUDA {torch.version.cuda}', console=True)

B, T = args.device_batch_size, args.sequence_length
train_accumulation_steps = args.batch_size // (B * ddp_world_size)
train_loader = distributed_data_generator(args.input_bin, B, T, ddp_rank, ddp_world_size)
x, y = next(train_loader)

raw_model = GPT(GPTConfig()).cuda()
if hasattr(torch, '_inductor'):
    import torch._inductor.config as inductor_config
    inductor_config.coordinate_descent_tuning = False
model = torch.compile(raw_model)
if ddp:
    model = DDP(model, device_ids=[int(os.environ['LOCAL_RANK'])])
ctx = torch.amp.autocast(device_type='cuda', dtype=torch.bfloat16)

params = list(raw_model.transformer.h.parameters())
optimizer1 = torch.optim.Adam([raw_model.transformer.wte.weight], lr=0.6, betas=(0.8, 0.95), eps=1e-10)
optimizer2 = torch.optim.Adam([raw_model.lm_head.weight], lr=0.008, betas=(0.8, 0.95), eps=1e-10)
optimizer3 = Muon([p for p in params if p.ndim == 2], lr=0.05, rank=ddp_rank, world_size=ddp_world_size)
optimizer4 = torch.optim.Adam([p for p in params if p.ndim < 2], lr=0.04, betas=(0.8, 0.95), eps=1e-10)
optimizers = [optimizer1, optimizer2, optimizer3, optimizer4]


def get_lr(it):
    if it < args.warmup_iters:
        return (it + 1) / args.warmup_iters
    if it < args.num_iterations - args.warmdown_iters:
        return 1.0
    return (args.num_iterations - it) / args.warmdown_iters


schedulers = [torch.optim.lr_scheduler.LambdaLR(opt, get_lr) for opt in optimizers]

training_time_ms = 0
torch.cuda.synchronize()
t0 = time.time()
for step in range(args.num_iterations + 1):
    last_step = step == args.num_iterations
    if last_step or (step > 0 and step % args.val_loss_every == 0):
        model.eval()
        val_steps = args.val_tokens // (B * T * ddp_world_size)
        val_loader = distributed_data_generator(args.input_val_bin, B, T, ddp_rank, ddp_world_size)
        val_loss = 0.
        for _ in range(val_steps):
            with torch.no_grad(), ctx:
                val_loss += model(*next(val_loader))
        val_loss /= val_steps
        if ddp:
            dist.all_reduce(val_loss, op=dist.ReduceOp.AVG)
        print0(f'step:{step}/{args.num_iterations} val_loss:{val_loss:.4f} train_time:{training_time_ms:.0f}ms', console=True)
    if last_step:
        break
    if master_process and args.save_every and (step + 1) % args.save_every == 0:
        torch.save(dict(step=step, code=code, model=raw_model.state_dict()), f'logs/{run_id}_state_step{step:06d}.pt')

    model.train()
    for i in range(train_accumulation_steps):
        with ctx:
            loss = model(x, y)
        train_loss = loss.detach()
        x, y = next(train_loader)
        loss.backward()
    for p in raw_model.parameters():
        p.grad /= train_accumulation_steps
    frac = min(step / 300, 1)  # momentum warmup
    optimizer3.param_groups[0]['momentum'] = (1 - frac) * 0.85 + frac * 0.95
    for opt, sched in zip(optimizers, schedulers):
        opt.step()
        sched.step()
    model.zero_grad(set_to_none=True)
    training_time_ms = 1000 * (time.time() - t0)
    print0(f'step:{step + 1}/{args.num_iterations} train_loss:{train_loss.item():.4f} '
           f'step_avg:{training_time_ms / (step + 1):.2f}ms', console=True)

if ddp:
    dist.destroy_process_group()
