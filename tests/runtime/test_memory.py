"""Memory between calls of compiled graphs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch, fuselens

def fn(x):
    return [x + i for i in range(8)]

x = torch.ones(1 << 20)
compiled = fuselens.compile(fn, options={"keep_freed_memory": sys.argv[1] == "keep"})
for _ in range(3):
    compiled(x)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    compiled(x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_steps_find_the_memory_of_the_step_before() -> None:
    """32 MiB a call are 8,192 pages: mapped anew for each call, or kept, also where the environment says otherwise."""
    faults = {}
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    for mode in ("keep", "return"):
        command = [sys.executable, "-c", PROGRAM, mode]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        faults[mode] = int(done.stdout)
    assert faults["keep"] < 1000 < faults["return"]
