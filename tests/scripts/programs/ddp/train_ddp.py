"""
torchrun --standalone --nproc_per_node=8 train_ddp.py
or, without torchrun,
python train_ddp.py --spawn
"""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from model import ResNetCifar


class RandomImages(Dataset):
    """stand-in for the real image folder when --data is not given"""

    def __init__(self, n, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 10, (n,), generator=g)
        self.x = torch.randn(n, 3, 32, 32, generator=g) + self.y.view(-1, 1, 1, 1) / 5

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class NpyImages(Dataset):
    def __init__(self, root, split):
        self.x = np.load(os.path.join(root, f"{split}_x.npy"), mmap_mode="r")
        self.y = np.load(os.path.join(root, f"{split}_y.npy"))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i].astype("float32") / 255.), int(self.y[i])


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default=None, type=str)
    p.add_argument("--backend", default="nccl")
    p.add_argument("--device", default="cuda")
    p.add_argument("--epochs", default=90, type=int)
    p.add_argument("--batch_size", default=64, type=int, help="per process")
    p.add_argument("--lr", default=0.1, type=float)
    p.add_argument("--save_every", default=10, type=int)
    p.add_argument("--snapshot_path", default="snapshot.pt", type=str)
    p.add_argument("--sync_bn", action="store_true")
    p.add_argument("--spawn", action="store_true")
    return p.parse_args()


def ddp_setup(args):
    # torchrun sets these; allow plain `python train_ddp.py` too
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29511")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("LOCAL_RANK", "0")
    dist.init_process_group(backend=args.backend)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Trainer:
    def __init__(self, args, model, train_data, val_data):
        self.args = args
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.device = torch.device(args.device, self.local_rank) if args.device == "cuda" else torch.device("cpu")
        self.sampler = DistributedSampler(train_data, shuffle=True)
        self.train_data = DataLoader(train_data, args.batch_size, sampler=self.sampler, drop_last=True,
                                     pin_memory=args.device == "cuda")
        self.val_data = DataLoader(val_data, args.batch_size, sampler=DistributedSampler(val_data, shuffle=False))

        model = model.to(self.device)
        if args.sync_bn:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [30, 60, 80])
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1).to(self.device)
        self.epochs_run = 0
        self.raw = model
        if os.path.exists(args.snapshot_path):
            self._load_snapshot(args.snapshot_path)
        ids = [self.local_rank] if args.device == "cuda" else None
        self.model = DDP(model, device_ids=ids)
        self.model = torch.compile(self.model)

    def _load_snapshot(self, path):
        snap = torch.load(path, map_location=self.device)
        self.raw.load_state_dict(snap["MODEL_STATE"])
        self.epochs_run = snap["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _run_batch(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        t0, tot = time.time(), 0.0
        for i, (x, y) in enumerate(self.train_data):
            loss = self._run_batch(x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True))
            tot += loss
            if self.global_rank == 0 and i % 10 == 0:
                print(f"[{epoch}:{i}/{len(self.train_data)}] loss {loss.item():.4f}", flush=True)
        dist.all_reduce(tot, op=dist.ReduceOp.SUM)
        return tot.item() / len(self.train_data) / dist.get_world_size(), time.time() - t0

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        acc = torch.zeros(2, device=self.device)
        for x, y in self.val_data:
            out = self.model(x.to(self.device))
            acc += torch.stack([(out.argmax(1).cpu() == y).sum(), torch.tensor(len(y))]).to(self.device)
        dist.all_reduce(acc)
        return (acc[0] / acc[1]).item()

    def train(self):
        for epoch in range(self.epochs_run, self.args.epochs):
            loss, dt = self._run_epoch(epoch)
            self.scheduler.step()
            acc = self.validate()
            if self.global_rank == 0:
                print(f"epoch {epoch} loss {loss:.4f} val acc {acc:.3f} ({dt:.1f}s)")
                if epoch % self.args.save_every == 0:
                    torch.save({"MODEL_STATE": self.raw.state_dict(), "EPOCHS_RUN": epoch}, self.args.snapshot_path)


def main(args):
    ddp_setup(args)
    seed = 1337 + dist.get_rank()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if args.data:
        train, val = NpyImages(args.data, "train"), NpyImages(args.data, "val")
    else:
        train, val = RandomImages(2048), RandomImages(512, 1)
    Trainer(args, ResNetCifar(), train, val).train()
    dist.destroy_process_group()


def _spawned(rank, world_size, args):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    main(args)


def main_spawn(args):
    world_size = torch.cuda.device_count() if args.device == "cuda" else 2
    mp.spawn(_spawned, args=(world_size, args), nprocs=world_size, join=True)


if __name__ == "__main__":
    args = parse()
    (main_spawn if args.spawn else main)(args)
