"""Proves the architectures of transformers, and the models whose training is tested; says what proofs find.

python -m tests.models.proofs [NAME...] [--seconds 120]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fuselens.config import Config, from_environment
from fuselens.inputs.example_inputs import ExampleInputs
from fuselens.proving.proof import Prover
from fuselens.record.printed import proved

from .architectures import ARCHITECTURES
from .test_training import MODELS, made

_TRAINED = "_training"  # behind the names of models whose training is tested


@dataclass(frozen=True)
class Model:
    """``args`` and ``kwargs`` are what the model is called with."""

    target: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    config: Config

    def inputs(self, variant: int = 0) -> ExampleInputs:
        return ExampleInputs(self.args, self.kwargs)


def model(name: str) -> Model:
    torch.manual_seed(0)
    if (trained := name.removesuffix(_TRAINED)) != name:
        target, args = made(trained)
        return Model(target, args, {}, from_environment())
    architecture = ARCHITECTURES[name]
    target = architecture.build().eval()
    return Model(target, (), architecture.inputs(2, 9), from_environment())


def main(say: Callable[..., None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*(f"{name}{_TRAINED}" for name in MODELS), *ARCHITECTURES])
    parser.add_argument("--seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.names:
        started = time.monotonic()
        found = Prover(model(name), name, "").proof(arguments.seconds)
        wrong = [tried for tried in found.tried if not tried.agrees]
        tried, seconds = f"{len(found.tried)} tried, {found.left} left", time.monotonic() - started
        say(name, proved.headline(found), tried, f"{seconds:.0f} s", found.uncompiled, sep="\t", flush=True)
        for one in wrong:
            say("", f"✗ {one.inputs} ({one.how}): {one.detail}", sep="\t", flush=True)


if __name__ == "__main__":
    main()
