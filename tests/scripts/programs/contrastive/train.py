import logging
import math
import os
from pathlib import Path

import click
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, random_split

from clip_model import CLIP, TextCfg, VisionCfg
from data import HashTokenizer, PairDataset

log = logging.getLogger("clip")
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))


class ClipLoss(torch.nn.Module):
    def __init__(self, cache_labels=True):
        super().__init__()
        self.cache_labels, self.labels, self.prev = cache_labels, {}, 0

    def get_ground_truth(self, device, n):
        if self.prev != n or device not in self.labels:
            labels = torch.arange(n, device=device, dtype=torch.long)
            if WORLD_SIZE > 1:
                labels = labels + n * RANK
            if self.cache_labels:
                self.labels[device], self.prev = labels, n
            return labels
        return self.labels[device]

    def forward(self, image_features, text_features, logit_scale):
        all_i, all_t = image_features, text_features
        if WORLD_SIZE > 1:
            all_i = torch.cat(torch.distributed.nn.all_gather(image_features), dim=0)
            all_t = torch.cat(torch.distributed.nn.all_gather(text_features), dim=0)
        per_image = logit_scale * image_features @ all_t.T
        per_text = logit_scale * text_features @ all_i.T
        labels = self.get_ground_truth(image_features.device, per_image.shape[0])
        return (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2


def lr_lambda(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


@torch.no_grad()
def zero_shot_recall(model, loader, device):
    model.eval()
    hits = n = 0
    for img, tok in loader:
        i, t, _ = model(img.to(device), tok.to(device))
        pred = (i @ t.T).argmax(1).cpu()
        hits += (pred == torch.arange(len(pred))).sum().item()
        n += len(pred)
    return hits / max(n, 1)


@click.command()
@click.option("--data", default="data/pairs", show_default=True)
@click.option("--batch-size", default=64, show_default=True)
@click.option("--epochs", default=32)
@click.option("--lr", default=5e-4)
@click.option("--wd", default=0.2)
@click.option("--warmup", default=500)
@click.option("--embed-dim", default=128)
@click.option("--workers", default=0)
@click.option("--out", default="logs/clip", type=click.Path(path_type=Path))
@click.option("--compile/--no-compile", "use_compile", default=True)
@click.option("--grad-clip", default=1.0)
def main(data, batch_size, epochs, lr, wd, warmup, embed_dim, workers, out, use_compile, grad_clip):
    logging.basicConfig(level=logging.INFO if RANK == 0 else logging.WARNING)
    if WORLD_SIZE > 1:
        dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.manual_seed(1234 + RANK)

    vcfg, tcfg = VisionCfg(), TextCfg()
    tokenizer = HashTokenizer(tcfg.vocab_size, tcfg.context_length)
    ds = PairDataset(data, tokenizer, vcfg.image_size)
    n_val = min(len(ds) // 10, 1000)
    train_ds, val_ds = random_split(ds, [len(ds) - n_val, n_val])
    train_dl = DataLoader(train_ds, batch_size, shuffle=True, drop_last=True, num_workers=workers)
    val_dl = DataLoader(val_ds, batch_size, num_workers=workers)

    model = CLIP(embed_dim, vcfg, tcfg).to(device)
    exclude = lambda n, p: p.ndim < 2 or "bn" in n or "ln" in n or "bias" in n or "logit_scale" in n
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in named if exclude(n, p)], "weight_decay": 0.0},
        {"params": [p for n, p in named if not exclude(n, p)], "weight_decay": wd},
    ], lr=lr, betas=(0.9, 0.98), eps=1e-6)
    sched = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: lr_lambda(s, warmup, epochs * len(train_dl)))

    original_model = model
    if use_compile:
        log.info("Compiling model...")
        model = torch.compile(original_model)
    loss_fn = ClipLoss()

    out.mkdir(parents=True, exist_ok=True)
    for epoch in range(epochs):
        model.train()
        for step, (images, texts) in enumerate(train_dl):
            images, texts = images.to(device, non_blocking=True), texts.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                feats = model(images, texts)
                loss = loss_fn(*feats)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(original_model.parameters(), grad_clip)
            optimizer.step()
            sched.step()
            with torch.no_grad():
                original_model.logit_scale.clamp_(0, math.log(100))
            if step % 20 == 0:
                log.info("epoch %d step %d loss %.4f scale %.2f", epoch, step, loss.item(), feats[2].item())
        log.info("epoch %d recall@1 %.4f", epoch, zero_shot_recall(model, val_dl, device))
        if RANK == 0:
            torch.save({"epoch": epoch, "state_dict": original_model.state_dict()}, out / "latest.pt")


if __name__ == "__main__":
    main()
