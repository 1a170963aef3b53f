"""The slow way can be asked for, from a process that has not imported torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

PROGRAM = """
import sys
from fuselens.capture.hook import _hook as h, tensor_layout
assert "torch" not in sys.modules
assert not tensor_layout.ensure()
import torch
guards = h.Guards([(0, h.ROOT_LOCAL, 0)], [(0, h.TENSOR, tensor_layout.spec(torch.zeros(3))), (0, h.GRAD_MODE, True)])
f = lambda: 0
assert guards.check(f, (torch.ones(3),)) == (True, -1, None)
assert guards.check(f, (torch.ones(4),)) == (False, 0, None)
with torch.no_grad():
    assert guards.check(f, (torch.ones(3),)) == (False, 1, None)
"""


def test_slow_way_in_a_fresh_process() -> None:
    env = {**os.environ, "FUSELENS_SLOW_TENSOR_GUARDS": "1"}
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120, env=env)
