"""torch's profiler on a real GPU: each kernel's range holds its launch, and the device's events are linked to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import fuselens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
HERE = Path(__file__).name


def _whole(x: Any, w: Any) -> Any:
    return torch.softmax(torch.relu(x) @ w, -1)


def _events(path: Path, mode: str) -> list[dict[str, Any]]:
    fuselens.reset()
    compiled = fuselens.compile(_whole, mode=mode)
    x, w = torch.randn(512, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    for _ in range(4):  # recorded by then, where steps are
        compiled(x, w)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        compiled(x, w)
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return json.loads(path.read_text())["traceEvents"]


def _inside(event: dict[str, Any], of: dict[str, Any]) -> bool:
    return of["ts"] <= event["ts"] and event["ts"] + event["dur"] <= of["ts"] + of["dur"]


def test_kernels_are_launched_inside_of_their_ranges(tmp_path: Path) -> None:
    events = _events(tmp_path / "trace.json", "default")
    ranges = {
        e["name"].split(" (")[0]: e
        for e in events
        if HERE in str(e.get("name")) and e.get("cat") != "gpu_user_annotation"
    }
    assert {"_whole graph 0", "relu_0", "softmax_0"} <= ranges.keys()
    launches = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and "aunch" in e["name"]]
    kernels = {e["args"]["correlation"]: e["name"] for e in events if e.get("cat") == "kernel"}
    for name in ("relu_0", "softmax_0"):
        (launch,) = [e for e in launches if _inside(e, ranges[name])]
        assert name in kernels[launch["args"]["correlation"]]


def test_a_recording_is_one_range(tmp_path: Path) -> None:
    events = _events(tmp_path / "trace.json", "reduce-overhead")
    names = [e["name"] for e in events if HERE in str(e.get("name"))]
    assert any(n.startswith("_whole graph 0") for n in names), names
