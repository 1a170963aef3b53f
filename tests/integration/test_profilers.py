"""Torch's profiler around everything that we do: the process lives, and values are eager's.

Under a profiler every operator, those of a trace included, is looked at from outside: its operands, their sizes and memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

ALL = "record_shapes=True, with_stack=True, profile_memory=True, with_modules=True, with_flops=True"
OPTIONS = ["record_shapes=True", "with_stack=True", "profile_memory=True", ALL]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]

PROGRAM = """
import sys, torch, fuselens
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile

DEVICE = sys.argv[1]
torch.manual_seed(0)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b, self.f = nn.Conv2d(16, 16, 1, padding="same"), nn.BatchNorm2d(16), nn.Linear(1024, 1)

    def forward(self, x, t):
        return F.l1_loss(self.f(torch.flatten(F.relu(self.b(self.c(x))) + x)), t)


m = M().to(DEVICE)
x, t = torch.rand(1, 16, 8, 8, device=DEVICE, requires_grad=True), torch.rand(1, device=DEVICE)
go = torch.tensor(1.0, device=DEVICE, requires_grad=True)


def twice(m, x, t):
    (g,) = torch.autograd.grad(m(x, t), x, create_graph=True, grad_outputs=go)
    return g


def chain(x):
    return (x.exp() * 2 - x.sin()).softmax(-1)


def outer(f):  # a second derivative through a compiled function
    y = torch.linspace(-1, 1, 12, device=DEVICE).reshape(3, 4).requires_grad_()
    (g,) = torch.autograd.grad(f(y).square().sum(), y, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), y)
    return g, h


def train(f):
    m.zero_grad()
    x.grad = go.grad = None
    g = f(m, x, t)
    g.square().sum().backward()
    return [g, go.grad, x.grad, *(p.grad.clone() for p in m.parameters() if p.grad is not None)]


def sizes(f):  # the second size compiles again, the third has symbolic sizes
    return [f(torch.linspace(0, 1, 4 * n, device=DEVICE).reshape(n, 4)) for n in (3, 5, 7, 9, 1)]


def everything(c, around):
    found = []
    for function, work in ((twice, train), (chain, outer), (chain, sizes)):
        f = c(function)
        for _ in range(3):
            with around():
                found.append(work(f))
    return found


import contextlib

expected = everything(lambda f: f, contextlib.nullcontext)
for options in ({"backend": "aot_eager"}, {"mode": "reduce-overhead"} if DEVICE == "cuda" else {}):  # recordings
    found = everything(lambda f: fuselens.compile(f, **options), lambda: profile(%s))
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=1e-5)
print("done")
"""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "all" if o is ALL else o)
def test_everything_runs_under_the_profiler(options: str, device: str, tmp_path: Path) -> None:
    """In processes of their own; a second one finds the graphs on the disk."""
    environment = {**os.environ, "FUSELENS_CACHE_DIR": str(tmp_path / "fuselens"), "FUSELENS_STRICT": "1"}
    for _ in range(2 if options is ALL else 1):
        ran = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(PROGRAM % options), device],
            capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300,
        )  # fmt: skip
        assert (ran.returncode, ran.stdout[-5:]) == (0, "done\n"), ran.stderr[-4000:]
