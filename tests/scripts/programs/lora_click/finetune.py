# fuselens: --train-file data/instructions.jsonl
"""
python finetune.py --train-file data/instructions.jsonl --base-model base.pt
"""
import json
import signal
import sys
import time
from pathlib import Path

import click
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from lora import *
from lora.gpt import CausalLM

PROMPT = "### Instruction:\n{instruction}\n\n### Response:\n"
IGNORE = -100
stop_requested = False


def _handler(signum, frame):
    global stop_requested
    click.secho("\nfinishing the current step, then saving", fg="yellow")
    stop_requested = True


def encode(ex, max_len):
    p = list(PROMPT.format(**ex).encode("utf-8"))
    r = list(ex["output"].encode("utf-8")) + [0]
    ids = (p + r)[: max_len + 1]
    labels = ([IGNORE] * len(p) + r)[: max_len + 1]
    pad = max_len + 1 - len(ids)
    return torch.tensor(ids + [0] * pad), torch.tensor(labels + [IGNORE] * pad)


def read_jsonl(path):
    with Path(path).open() as f:
        return [json.loads(line) for line in f if line.strip()]


@torch.compile
def lm_loss(model, ids, labels):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORE)


@click.command(context_settings={"show_default": True})
@click.option("--train-file", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--base-model", type=click.Path(), default="base.pt")
@click.option("--out", type=click.Path(), default="lora.pt")
@click.option("--rank", "-r", default=8)
@click.option("--alpha", default=16)
@click.option("--dropout", default=0.05)
@click.option("--target", default=r".*attn\.(q|v)_proj")
@click.option("--batch-size", default=8)
@click.option("--max-len", default=192)
@click.option("--lr", default=3e-4)
@click.option("--epochs", default=3)
@click.option("--device", default="cuda")
@click.option("--seed", default=0)
@click.option("--merge/--no-merge", default=False)
def main(train_file, base_model, out, rank, alpha, dropout, target, batch_size, max_len, lr, epochs, device, seed, merge):
    torch.manual_seed(seed)
    signal.signal(signal.SIGINT, _handler)
    if Path(base_model).is_file():
        blob = torch.load(base_model, map_location="cpu")
        model = CausalLM(**blob["config"])
        model.load_state_dict(blob["model"])
    else:
        click.secho(f"{base_model} not found: starting from random weights", fg="red", err=True)
        model = CausalLM()

    names = inject_lora(model, target, rank, alpha, dropout)
    mark_only_lora_as_trainable(model)
    model.to(device)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    click.echo(f"LoRA in {len(names)} layers, trainable {trainable:,} / {total:,} ({100 * trainable / total:.2f}%)")

    examples = [encode(e, max_len) for e in read_jsonl(train_file)]
    loader = DataLoader(examples, batch_size=batch_size, shuffle=True, drop_last=True)
    opt = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=epochs * len(loader))
    device_type = torch.device(device).type

    model.train()
    for epoch in range(epochs):
        with click.progressbar(loader, label=f"epoch {epoch}") as bar:
            for ids, labels in bar:
                t = time.time()
                ids, labels = ids.to(device), labels.to(device)
                with torch.autocast(device_type=device_type, dtype=torch.bfloat16):
                    loss = lm_loss(model, ids, labels)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                sched.step()
                bar.label = f"epoch {epoch} loss {loss.item():.3f} {time.time() - t:.2f}s"
                if stop_requested:
                    break
        if stop_requested:
            break
    if merge:
        merge_lora(model)
    torch.save(model.state_dict() if merge else lora_state_dict(model), out)
    click.echo(f"saved {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
