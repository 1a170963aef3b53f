import json
import logging
import os
from pathlib import Path

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from data import SpiralTokens

logger = get_logger(__name__, log_level="INFO")

cfg = {
    "vocab": 512,
    "dim": 160,
    "heads": 5,
    "layers": 3,
    "seq_len": 64,
    "batch_size": 32,
    "grad_accum": 2,
    "lr": 3e-4,
    "epochs": 20,
    "ema_decay": 0.999,
    "seed": 17,
    "compile": True,
    "output": "runs/tagger",
}
if os.environ.get("TAGGER_CONFIG"):
    cfg.update(json.loads(Path(os.environ["TAGGER_CONFIG"]).read_text()))


class Tagger(nn.Module):
    def __init__(self, vocab, dim, heads, layers, seq_len, n_tags=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.zeros(1, seq_len, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.1, batch_first=True, norm_first=True,
                                           activation="gelu")
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, n_tags)

    def forward(self, tokens, tags=None):
        h = self.emb(tokens) + self.pos[:, : tokens.shape[1]]
        h = self.enc(h, src_key_padding_mask=tokens.eq(0))
        logits = self.head(h)
        if tags is None:
            return logits
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-100)


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            if v.dtype.is_floating_point:
                self.shadow[k].lerp_(v, 1 - self.decay)


def main():
    accelerator = Accelerator(
        gradient_accumulation_steps=cfg["grad_accum"],
        project_config=ProjectConfiguration(project_dir=cfg["output"], automatic_checkpoint_naming=True, total_limit=2),
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logger.info(accelerator.state, main_process_only=False)
    set_seed(cfg["seed"])
    if accelerator.is_main_process:
        os.makedirs(cfg["output"], exist_ok=True)

    model = Tagger(cfg["vocab"], cfg["dim"], cfg["heads"], cfg["layers"], cfg["seq_len"])
    if cfg["compile"]:
        model = torch.compile(model)
    train_dl = DataLoader(SpiralTokens(4096, cfg["seq_len"], cfg["vocab"]), shuffle=True, batch_size=cfg["batch_size"])
    val_dl = DataLoader(SpiralTokens(512, cfg["seq_len"], cfg["vocab"], seed=1), batch_size=cfg["batch_size"])
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg["lr"], total_steps=cfg["epochs"] * len(train_dl))

    model, opt, train_dl, val_dl, sched = accelerator.prepare(model, opt, train_dl, val_dl, sched)
    ema = EMA(accelerator.unwrap_model(model), cfg["ema_decay"])
    step = 0
    for epoch in range(cfg["epochs"]):
        model.train()
        bar = tqdm(train_dl, disable=not accelerator.is_local_main_process)
        for batch in bar:
            with accelerator.accumulate(model):
                _, loss = model(**batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            if accelerator.sync_gradients:
                ema.update(accelerator.unwrap_model(model))
                step += 1
                bar.set_description(f"e{epoch} loss {loss.item():.3f}")

        model.eval()
        hits, total = 0, 0
        for batch in val_dl:
            with torch.inference_mode():
                pred = model(batch["tokens"]).argmax(-1)
            pred, ref = accelerator.gather_for_metrics((pred, batch["tags"]))
            ok = ref != -100
            hits += (pred[ok] == ref[ok]).sum().item()
            total += ok.sum().item()
        accelerator.print(f"epoch {epoch} acc {hits / total:.4f}")
        accelerator.save_state()
    accelerator.end_training()


if __name__ == "__main__":
    main()
