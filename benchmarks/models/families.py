"""The programs of the breadth suite by family. A name is ``family/program``; a family whose library is absent is said, not measured."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_workloads import Call, Compile

from . import chains, nets

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Program:
    """``make()`` gives a module on the GPU and its inputs. ``training``: a call is a forward and a backward.

    ``tf32``: in products and convolutions; ``standard``: as torch is set when it is imported, in convolutions alone.
    """

    make: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]
    training: bool = False
    tf32: bool = False
    standard: bool = False

    def set_precision(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32 or self.standard

    def call(self, wrap: Compile, exact: bool = False) -> Call:
        """``exact``: in the next wider precision; without autocast for a training step, which has float32 for weights."""
        torch.manual_seed(0)
        module, args, kwargs = self.make()
        if exact:
            half = any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters())
            wider = torch.float32 if half or self.training else torch.float64
            module, args, kwargs = module.to(wider), widened(args, wider), widened(kwargs, wider)
        compiled = wrap(module)
        if self.training:
            parameters = [p for p in module.parameters() if p.requires_grad]

            def step() -> Any:
                with torch.autocast("cuda", torch.bfloat16, enabled=not exact):
                    out = compiled(*args, **kwargs)
                    loss = out["loss"] if isinstance(out, dict) else _total(out)
                return [loss, *torch.autograd.grad(loss, parameters, allow_unused=True)]

            return step

        def forward() -> Any:
            with torch.no_grad():
                return compiled(*args, **kwargs)

        return forward


def widened(value: Any, dtype: torch.dtype) -> Any:
    """Arguments with each floating-point tensor in ``dtype``."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: widened(v, dtype) for key, v in value.items()}
    return type(value)(widened(v, dtype) for v in value) if isinstance(value, (list, tuple)) else value


def _total(out: Any) -> torch.Tensor:
    first = out[0] if isinstance(out, (tuple, list)) else out
    return first.float().square().mean()


def placed(make: Callable[[], nn.Module], dtype: str, shape: tuple[int, ...]) -> Program:
    """A module of one input, for inference."""

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        module = make().to("cuda", DTYPES[dtype]).eval().requires_grad_(False)
        generator = torch.Generator("cuda").manual_seed(1)
        return module, (torch.randn(shape, generator=generator, device="cuda").to(DTYPES[dtype]),), {}

    return Program(build, tf32=dtype == "tf32")


@functools.cache
def _chains(seed: int, count: int) -> list[chains.Chain]:
    return list(chains.chains(seed, count))


def chain(name: str) -> Program:
    seed, number = map(int, name.split(":"))
    found = _chains(seed, number + 1)[number]
    return placed(found.make, found.dtype, found.shape)


def made(name: str) -> Program:
    """The program of a name. Raises ImportError where its library is absent."""
    family, _, program = name.partition("/")
    return chain(program) if family == "chains" else nets.FAMILIES[family].programs[program]()


def names(families: list[str], seed: int, count: int) -> tuple[list[str], list[str]]:
    """Names of all programs of the families, and the families that are not measured, with what they lack."""
    found: list[str] = []
    absent: list[str] = []
    for family in families:
        if family == "chains":
            found += [f"chains/{seed}:{n}" for n in range(count)]
            continue
        needs = nets.FAMILIES[family].needs
        if lacking := [m for m in needs if importlib.util.find_spec(m) is None]:
            absent.append(f"{family} (needs {', '.join(lacking)})")
        else:
            found += [f"{family}/{program}" for program in nets.FAMILIES[family].programs]
    return found, absent


def title(name: str) -> str:
    """What a table calls a program: chains by what they are."""
    family, _, program = name.partition("/")
    if family != "chains":
        return name
    seed, number = map(int, program.split(":"))
    return f"{number}: {_chains(seed, number + 1)[number].name}"
