"""What one of two Gloo processes runs: as the other, or not. Prints "gives" or the error.

Called as ``python disagreeing.py RANK PORT HOW``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

import fuselens


def one(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y.sin()


def two(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    dist.all_reduce(y[:2].clone(), op=dist.ReduceOp.MAX)
    return y.sin()


def buckets(x: Tensor) -> Tensor:
    y, z = x * 2, x + 1
    dist.all_reduce(y)
    dist.all_reduce(z)
    return y * z


def functional_two(x: Tensor) -> Tensor:
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return y + functional.all_reduce(x[:2].clone(), "max", dist.group.WORLD).sum()


def scaled(x: Tensor, by: float) -> Tensor:
    return one(x) * by


def main() -> None:
    rank, port, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    odd = rank == 1
    call, x = fuselens.compile(two if odd and how == "another program" else one), torch.ones(4)
    if how == "functional ones":
        call = fuselens.compile(functional_two if odd else one)
    if how == "in buckets":
        call = fuselens.compile(buckets, options={"bucket_cap_mb": 0 if odd else 1})
    if how == "in buckets beside eager":
        call = buckets if odd else fuselens.compile(buckets, options={"bucket_cap_mb": 1})
    start = time.monotonic()
    try:
        for step in range(6):
            later = odd and step == 3
            if later and how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if later and how == "another later":
                call = fuselens.compile(two)
            if later and how == "the same anew":
                fuselens.compile(scaled)(x, 2.0)
            else:
                call(x)
        print("gives")
    except Exception as error:  # noqa: BLE001
        print(type(error).__name__, f"{time.monotonic() - start:.0f}", str(error).splitlines()[0])
    sys.stdout.flush()
    time.sleep(1)
    os._exit(0)  # without waiting for a group that is gone


if __name__ == "__main__":
    main()
