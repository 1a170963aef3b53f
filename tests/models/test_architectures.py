"""Each architecture of transformers, captured whole: outputs, gradients and buffers are eager's."""

import random

import pytest
import transformers
from packaging.version import Version

from . import runner
from .architectures import ARCHITECTURES

# what is not captured whole, and where it breaks; the peer captures none of them either
BREAKS = {
    ("detr", True): "FL101",  # checks the values of its hidden states
    ("wav2vec2", True): "FL110",  # sets requires_grad of an intermediate tensor
    ("hubert", True): "FL110",
}
if Version(transformers.__version__) < Version("5.23"):
    BREAKS["pegasus", True] = "FL101"  # leaves out a layer by a random number
OTHER_PATHS = ("mamba",)  # while compiled, it scans in another order
SAMPLE = random.Random(5).sample(sorted(ARCHITECTURES), 6)


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in ARCHITECTURES])
def test_captured_whole(name: str, training: bool):
    outcome = runner.measure(name, runner.own("eager"), training=training, exact=name not in OTHER_PATHS)
    if (name, training) in BREAKS:
        assert outcome.problem.startswith(f"GraphBreakError: {BREAKS[name, training]}")
    else:
        assert not outcome.problem
