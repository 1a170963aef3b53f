"""The pipeline: what happens to a captured graph, stage by stage.

The runner (:class:`.recorder.Run`) times, records and, on request, prints or dumps each stage; no stage does that for
itself. A stage that cannot handle a graph raises a typed refusal; the graph then runs eagerly, as captured, and the
report says why.
"""

from __future__ import annotations

from .graphs import compile_graph
from .recorder import REWRITES, Recorder
from .warming import prepare, warm

__all__ = ["REWRITES", "STAGES", "Recorder", "compile_graph", "prepare", "warm"]

STAGES = (
    "capture",
    "joint",
    "forward",
    "backward",
    "simplify",
    "lower",
    "fuse",
    "tune",
    "order",
    "cpp",
    "triton",
    "host",
    "ttir",
    "ttgir",
    "llir",
    "ptx",
    "sass",
    "memory",
    "guards",
)
