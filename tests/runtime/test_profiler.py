"""torch's profiler hears of compiled graphs, their kernels and the operators that they call, by names with lines."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import fuselens

HERE = Path(__file__).name


def names(profiler: Any) -> Counter[str]:
    return Counter(e.name for e in profiler.events() if HERE in e.name)


def line(needle: str) -> int:
    return next(k for k, text in enumerate(Path(__file__).read_text().splitlines(), 1) if needle in text)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(256, 256)

    def forward(self, x: Any) -> Any:
        hidden = torch.tanh(x) * 2  # fused
        return torch.softmax(self.last(hidden), -1)  # two


def test_forward_and_backward() -> None:
    compiled, x = fuselens.compile(Net()), torch.randn(64, 256, requires_grad=True)
    compiled(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            compiled(x).sum().backward()
    found = names(profiler)
    product = {f"{name} ({HERE}:{line('# two')})" for name in ("aten::addmm", "mkldnn::_linear_pointwise")}
    assert {n for name, n in found.items() if name not in product} <= {3, 6}
    graph = f"({HERE}:{line('def forward')})"
    assert {f"Net graph 0 {graph}", f"Net graph 0 backward {graph}"} <= found.keys()
    assert f"tanh_mul_0 ({HERE}:{line('# fused')})" in found
    assert len(product & found.keys()) == 1  # of the library that measured faster here
    assert f"softmax_0 ({HERE}:{line('# two')})" in found


def test_events_are_inside_of_their_graph(tmp_path: Path) -> None:
    compiled, x = fuselens.compile(Net()), torch.randn(64, 256)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        compiled(x)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if HERE in str(e.get("name"))]
    (whole,) = [e for e in events if "graph 0" in e["name"]]
    others = [e for e in events if e is not whole]
    assert len(others) == 3
    assert all(whole["ts"] <= e["ts"] and e["ts"] + e["dur"] <= whole["ts"] + whole["dur"] for e in others)


def test_operators_that_python_calls() -> None:
    @fuselens.compile
    def ordered(x: Any) -> Any:
        return torch.sort(x * 2).values + 1

    ordered(torch.randn(32))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        ordered(torch.randn(32))
    assert sum(name.startswith("aten::sort (") for name in names(profiler)) == 1


def test_an_event_ends_where_a_kernel_fails() -> None:
    @fuselens.compile
    def taken(x: Any, at: Any) -> Any:
        return (x * 2)[at] + 1

    x, good = torch.randn(8), torch.tensor([1, 2])
    taken(x, good)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with pytest.raises((IndexError, RuntimeError)):
            taken(x, torch.tensor([100, 1]))
        taken(x, good)
    events = [e for e in profiler.events() or () if HERE in e.name]
    graphs = [e for e in events if "graph 0" in e.name]
    assert len(graphs) == 2
    assert all(
        e.time_range.end <= graphs[0].time_range.end or e.time_range.start >= graphs[1].time_range.start for e in events
    )


def test_nothing_is_heard_without_a_profiler_and_threads_have_their_own() -> None:
    compiled, x = fuselens.compile(Net()), torch.randn(64, 256)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        pass
    compiled(x)
    assert not names(profiler)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        threads = [threading.Thread(target=lambda: [compiled(x) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        compiled(x)
        for thread in threads:
            thread.join()
    assert any("graph 0" in name for name in names(profiler))
