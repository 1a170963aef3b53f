"""NVIDIA's compute-sanitizer watches generated kernels: accesses out of bounds, races in shared memory, reads of what nobody wrote."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(SANITIZER is None, reason="no compute-sanitizer"),
    pytest.mark.timeout(540),
]
ROOT = Path(__file__).resolve().parents[2]
FINDINGS = 9
READ = r"Uninitialized .*\n=+ +at (\S.*)"
"""A kernel that reads what nobody wrote, in the report of initcheck. ATen's atomics of halves read the half beside, too."""


def watched(tool: str, tmp_path: Path, *options: str) -> None:
    """Each tensor is an allocation of its own: in torch's pool, a kernel may write past one without leaving the pool's memory."""
    command = [
        str(SANITIZER), "--tool", tool, "--target-processes", "application-only", "--error-exitcode", str(FINDINGS),
        *(("--report-api-errors", "no") if tool == "memcheck" else ()),  # libraries ask drivers for what they may lack
        sys.executable, "-m", "tests.gpu.sanitized", *options,
    ]  # fmt: skip
    path = os.pathsep.join([str(ROOT), str(ROOT / "compiler"), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": path, "FUSELENS_CACHE_DIR": str(tmp_path),
        "FUSELENS_STRICT": "1",
    }  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    said = "\n".join(line for line in done.stdout.splitlines() if "Host Frame" not in line)
    ours = [kernel for kernel in re.findall(READ, said) if "at::native" not in kernel]
    clean = not ours if tool == "initcheck" else done.returncode == 0
    assert clean, f"{ours}\n{said[:8000]}\n{done.stderr[-3000:]}"
    assert "agrees with eager" in done.stdout


def test_memory(tmp_path: Path) -> None:
    watched("memcheck", tmp_path)


@pytest.mark.sweep
def test_memory_of_operators(tmp_path: Path) -> None:
    watched("memcheck", tmp_path, "--operators", "60", "--seed", os.environ.get("FUSELENS_SWEEP_SEED", "0"))


@pytest.mark.sweep
@pytest.mark.parametrize("tool", ["racecheck", "initcheck"])
def test_races_and_uninitialised_memory(tool: str, tmp_path: Path) -> None:
    watched(tool, tmp_path)
