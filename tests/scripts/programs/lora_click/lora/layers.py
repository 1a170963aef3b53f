import math
import re

import torch
import torch.nn as nn


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int, alpha: int, dropout: float):
        super().__init__()
        self.base = base
        self.r = r
        self.scaling = alpha / r
        self.lora_A = nn.Parameter(base.weight.new_empty(r, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, r))
        self.lora_dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + (self.lora_dropout(x) @ self.lora_A.T @ self.lora_B.T) * self.scaling

    def extra_repr(self):
        return f"r={self.r}, scaling={self.scaling}"


def inject_lora(model, target: str, r=8, alpha=16, dropout=0.05):
    """Replaces every nn.Linear whose qualified name matches `target`."""
    pattern = re.compile(target)
    replaced = []
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            full = f"{name}.{child_name}" if name else child_name
            if isinstance(child, nn.Linear) and pattern.fullmatch(full):
                setattr(module, child_name, LoRALinear(child, r, alpha, dropout))
                replaced.append(full)
    if not replaced:
        raise ValueError(f"no module matches {target!r}")
    return replaced


def mark_only_lora_as_trainable(model):
    for n, p in model.named_parameters():
        p.requires_grad = "lora_" in n


def lora_state_dict(model):
    return {k: v.cpu() for k, v in model.state_dict().items() if "lora_" in k}


@torch.no_grad()
def merge_lora(model):
    for m in model.modules():
        if isinstance(m, LoRALinear):
            m.base.weight += (m.lora_B @ m.lora_A) * m.scaling
