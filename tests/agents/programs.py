"""Files that agents ask about."""

BRANCH = '''import torch
from jaxtyping import Float32
from torch import Tensor

import fuselens


@fuselens.compile
def step(x: Float32[Tensor, "8"]) -> Float32[Tensor, "8"]:
    """Scaled."""
    if x.sum() > 0:
        x = x * 2
    return x + 1
'''
WHOLE = BRANCH.replace("    if x.sum() > 0:\n        x = x * 2\n", "")
HANGS = WHOLE.replace("    return x + 1", "    while True:\n        pass\n    return x + 1")
CRASHES = WHOLE.replace("import torch\n", "import ctypes\n\nimport torch\n").replace(
    "    return x + 1", "    ctypes.string_at(0)\n    return x + 1"
)
WRITES = WHOLE.replace("    return x + 1", '    open("/tmp/fuselens-of-an-agent", "w").write("no")\n    return x + 1')
PRINTS = WHOLE.replace("import torch\n", 'print("a line that is no message")\nimport torch\n')
BROKEN = "import torch\n\ndef step(:\n    compile\n"
