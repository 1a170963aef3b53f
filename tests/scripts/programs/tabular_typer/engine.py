import os

import torch
import torch.nn.functional as F


def accelerate(model, enabled=True, mode="default"):
    """compile unless told not to"""
    if not enabled or os.environ.get("NO_COMPILE") == "1":
        return model
    return torch.compile(model, mode=mode)


class Engine:
    def __init__(self, model, device, lr=1e-3, compile=True):
        self.device = device
        self.raw = model.to(device)
        self.model = accelerate(self.raw, compile)
        self.opt = torch.optim.AdamW(self.raw.parameters(), lr=lr, weight_decay=1e-5)
        self.best = float("inf")

    def fit_epoch(self, loader):
        self.model.train()
        total = 0.0
        for num, cat, y in loader:
            num, cat, y = (t.to(self.device) for t in (num, cat, y))
            loss = F.binary_cross_entropy_with_logits(self.model(num, cat), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / len(loader)

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        ls, hit, n = 0.0, 0, 0
        for num, cat, y in loader:
            num, cat, y = (t.to(self.device) for t in (num, cat, y))
            logit = self.model(num, cat)
            ls += F.binary_cross_entropy_with_logits(logit, y, reduction="sum").item()
            hit += ((logit > 0) == (y > 0.5)).sum().item()
            n += len(y)
        return ls / n, hit / n

    def save(self, path, score):
        if score < self.best:
            self.best = score
            torch.save({"model": self.raw.state_dict(), "score": score}, path)
