"""Runs programs with our compiler, as their authors would, and prints how often each function was compiled: JSON by program and name."""

import collections
import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import fuselens
from fuselens.capture.frame.frame import FrameCompiler

counts: collections.Counter[str] = collections.Counter()
capture = FrameCompiler._capture


def counted(self, function, code, args):
    entry = capture(self, function, code, args)
    counts[code.co_qualname] += code is self.root and entry is not None
    return entry


FrameCompiler._capture = counted
out = {}
for path in sorted(Path(sys.argv[1]).glob("*.py")):
    counts.clear()
    fuselens.reset()
    sys.path.insert(0, str(path.parent))
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(path), run_name="__main__")
    out[path.stem] = dict(counts)
print(json.dumps(out))
