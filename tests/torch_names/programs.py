"""Programs that need much of torch, run without one of its undocumented names at a time.

    programs.py KEY [KEY ...]      for each name a line: the key, and what was said or went wrong

Each name is taken away in a forked process, before anything of the compiler is imported. Results must be eager's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def pointwise(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x) * 2 + x.mean(1, keepdim=True)
    if y.sum() > 0:
        y = y - 1
    return F.softmax(y, -1)


def writes(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:].mul_(2)
    first, second = y.split(2, 1)
    return first.add_(1) + second


def training(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = net(x)
    return torch.utils.checkpoint.checkpoint(torch.tanh, hidden, use_reentrant=False).float().pow(2).sum()


def derivatives(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(torch.func.grad(lambda v: v.sin().pow(2).sum()))(x)


def attention(x: torch.Tensor) -> torch.Tensor:
    q = x.reshape(1, 1, *x.shape)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def masked(x: torch.Tensor) -> torch.Tensor:
    return torch.masked.sum(x, 1, mask=x > 0)


def step(parameters: list[torch.Tensor]) -> torch.Tensor:
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    optimizer.step()
    return parameters[0].detach()


def sizes(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, 2).sum(0) * x.shape[0]


def results(compiled: Callable[[Any], Any]) -> list[Any]:
    """What the programs give where each goes through ``compiled``."""
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    found: list[Any] = [compiled(f)(x) for f in (pointwise, writes, derivatives, attention, masked)]
    grow = compiled(sizes)
    found += [grow(torch.arange(2.0 * n).reshape(n, 2)) for n in (2, 3, 5)]
    train = compiled(training)
    for _ in range(2):
        train(net, x).backward()
    found += [p.grad for p in net.parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in net.parameters()]
    for p in parameters:
        p.grad = torch.ones_like(p)
    found.append(compiled(step)(parameters))
    return found


def without(key: str) -> dict[str, Any]:
    """What happens where torch lacks the name: what differs from eager, what was raised, which codes were said."""
    from fuselens.torch_private import names as torch_names

    name = torch_names.TABLE[key]
    torch_names.TABLE[key] = dataclasses.replace(name, places=("torch.no_such_name",))
    expected = results(lambda f: f)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            import fuselens

            found = results(fuselens.compile)
    except BaseException:
        return {"raised": traceback.format_exc()}
    pairs = zip(found, expected, strict=True)
    wrong = [n for n, (a, b) in enumerate(pairs) if not torch.allclose(a, b, atol=2e-2 if a.ndim else 1e-1)]
    ours = [str(w.message).partition(":")[0] for w in said if w.category.__name__ == "FuselensWarning"]
    return {"wrong": wrong, "codes": sorted(set(ours)), "lost": [n.key for n in torch_names.lost]}


def main(keys: list[str]) -> None:
    torch.set_num_threads(1)
    for key in keys:
        child = os.fork()
        if child == 0:
            answer = without(key)
            print(json.dumps({"key": key, **answer}), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(json.dumps({"key": key, "raised": f"died with status {status}"}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
