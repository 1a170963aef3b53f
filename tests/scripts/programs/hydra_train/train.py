import logging
import os
import random

import hydra
import numpy as np
import torch
import torch.nn.functional as F
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd, instantiate
from omegaconf import DictConfig, OmegaConf

from src.datamodule import build_loader

log = logging.getLogger(__name__)


def seed_all(s):
    random.seed(s)
    np.random.seed(s)
    torch.manual_seed(s)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    n = hit = 0
    for x, y in loader:
        hit += (model(x.to(device)).argmax(-1) == y.to(device)).sum().item()
        n += len(y)
    model.train()
    return hit / n


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    log.info("\n" + OmegaConf.to_yaml(cfg))
    seed_all(cfg.seed)
    device = torch.device(cfg.device)
    out_dir = HydraConfig.get().runtime.output_dir

    train_loader = build_loader(cfg.data, "train", get_original_cwd())
    val_loader = build_loader(cfg.data, "val", get_original_cwd())

    net = instantiate(cfg.model).to(device)
    optimizer = instantiate(cfg.optimizer)(net.parameters())
    total = cfg.train.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 50, max(0.0, 1 - s / total)))
    log.info("model %s with %d params", type(net).__name__, sum(p.numel() for p in net.parameters()))

    model = torch.compile(net) if cfg.compile else net

    best, step = 0.0, 0
    for epoch in range(cfg.train.epochs):
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cfg.train.amp):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), cfg.train.grad_clip)
            optimizer.step()
            scheduler.step()
            if step % cfg.train.log_every == 0:
                log.info("epoch %d step %d loss %.4f lr %.2e", epoch, step, loss.item(), scheduler.get_last_lr()[0])
            step += 1
        acc = evaluate(model, val_loader, device)
        log.info("epoch %d val acc %.4f", epoch, acc)
        if acc > best:
            best = acc
            torch.save({"model": net.state_dict(), "cfg": OmegaConf.to_container(cfg, resolve=True)},
                       os.path.join(out_dir, "best.pt"))
    return best


if __name__ == "__main__":
    main()
