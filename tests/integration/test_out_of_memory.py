"""Memory runs out in a compiled graph: torch's own error is raised, and says what the graph was to hold."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of a process")

PROGRAM = """
import resource, sys
import torch, fuselens

weight = torch.randn(1024, 1024, requires_grad=True)

@fuselens.compile
def deep(x):
    for _ in range(4):
        x = torch.nn.functional.gelu(x @ weight)
    return x.sin().sum()

def limited(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + more, hard))

deep(torch.randn(64, 1024)).backward()
deep(torch.randn(48, 1024)).backward()
x = torch.randn(20000, 1024)
try:
    if sys.argv[1] == "forward":
        limited(100 << 20)
        deep(x)
    else:
        loss = deep(x)
        limited(50 << 20)
        loss.backward()
except RuntimeError as error:
    print(type(error).__name__, error)
    print("\\n".join(error.__notes__))
limited(8 << 30)
deep(torch.randn(64, 1024)).backward()
print("goes on")
"""


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_error_says_what_is_held(phase: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, phase], capture_output=True, text=True, timeout=170, check=False
    )
    assert "DefaultCPUAllocator: can't allocate memory" in done.stdout, done.stderr
    assert done.stdout.startswith("RuntimeError")
    assert f"The {phase} of graph " in done.stdout
    assert "is kept from the forward for the backward" in done.stdout
    assert "`fuselens memory` says" in done.stdout
    assert done.stdout.count("`fuselens memory` says") == 1
    assert "goes on" in done.stdout, done.stderr
