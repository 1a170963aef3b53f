"""What a later process finds in the cache: captured graphs that need no stage, and no wrong one ever."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._decomp import decomposition_table, global_decomposition_table

import fuselens
from fuselens import torch_private
from fuselens.api import inspect, wrap
from fuselens.autograd import joint
from fuselens.config import Config
from fuselens.lowering import lower
from fuselens.pipeline import Recorder
from fuselens.record import plain
from fuselens.runtime.cache.store import _MARK, Cache


@pytest.fixture(autouse=True)
def _no_rules_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What others registered in this process for torch's operators would keep every graph out of the cache."""
    kernels = torch.library._impls  # the set itself changes: the compiler looks it up once
    others = {n for n in kernels if n.startswith("aten/") and not torch_private.is_torch_kernel(n)}
    kernels -= others
    for table in global_decomposition_table.values():
        for rule, function in list(table.items()):
            if not (getattr(function, "__module__", None) or "torch").startswith("torch"):
                monkeypatch.delitem(table, rule)
    yield
    kernels |= others


LAYER = """
    def f(x, w):
        y = torch.softmax(x @ w, dim=-1)
        return torch.relu(y - 0.1) * 2
"""


class Programs:
    """Functions that are new to this process though their source is the same, as they are in another process."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.cache_dir = directory / "program.py", directory / "cache"
        self.traces = self.lowerings = 0
        trace, lowering = joint.trace, lower.lower

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.traces += 1
            return trace(*args, **kwargs)

        def counted_lowering(*args: Any, **kwargs: Any) -> Any:
            self.lowerings += 1
            return lowering(*args, **kwargs)

        monkeypatch.setattr(joint, "trace", counted)
        monkeypatch.setattr(lower, "lower", counted_lowering)

    def make(self, source: str) -> Callable[..., Any]:
        text = textwrap.dedent(source)
        self.path.write_text(text)
        names: dict[str, Any] = {"torch": torch}
        exec(compile(text, str(self.path), "exec"), names)
        return names["f"]

    def traced(self, source: str, *args: Any, backward: bool = False, close: float = 1e-5, **options: Any) -> int:
        """How often the stages ran for a first call, whose results and gradients are eager's."""
        f = self.make(source)
        before = self.traces
        given = [_copy(a) for a in args]
        wanted = [_copy(a) for a in args]
        config = Config(cache_dir=self.cache_dir, **options)
        self.recorder = Recorder("f", str(self.path), None, config, texts=False)
        torch.manual_seed(0)
        result = wrap(f, config, recorder=self.recorder, owner=object())(*given)
        torch.manual_seed(0)
        expected = f(*wanted)
        torch.testing.assert_close(result, expected, atol=close, rtol=close)
        if backward:
            result.sum().backward()
            expected.sum().backward()
        torch.testing.assert_close([_grad(a) for a in given], [_grad(a) for a in wanted])
        torch.testing.assert_close(given, wanted)
        return self.traces - before

    def entries(self) -> list[Path]:
        return sorted(p for kind in ("graph", "results") for p in (self.cache_dir / kind).rglob("*") if p.is_file())

    def forget_frames(self) -> None:
        """So that the next call captures again, which reads the other entries."""
        shutil.rmtree(self.cache_dir / "frame", ignore_errors=True)


def _copy(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _grad(value: Any) -> Any:
    return None if not isinstance(value, torch.Tensor) or value.grad is None else value.grad


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


def inputs(grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(4, 8, requires_grad=grad), torch.randn(8, 8, requires_grad=grad)


def test_the_second_process_runs_no_stage(programs: Programs) -> None:
    assert programs.traced(LAYER, *inputs()) == 1
    lowerings = programs.lowerings
    assert programs.traced(LAYER, *inputs()) == 0
    assert programs.lowerings == lowerings


def test_training_is_known_once_its_backward_was_compiled(programs: Programs) -> None:
    assert programs.traced(LAYER, *inputs(grad=True), backward=True) == 1
    lowerings = programs.lowerings
    assert programs.traced(LAYER, *inputs(grad=True), backward=True) == 0
    assert programs.lowerings == lowerings


def test_a_forward_whose_backward_never_ran_compiles_it_the_second_time(programs: Programs) -> None:
    assert programs.traced(LAYER, *inputs(grad=True)) == 1
    assert programs.traced(LAYER, *inputs(grad=True)) == 1
    assert programs.traced(LAYER, *inputs(grad=True), backward=True) == 0


def _changed_sizes() -> tuple[Any, ...]:
    return torch.randn(5, 8), torch.randn(8, 8)


def _changed_strides() -> tuple[Any, ...]:
    return torch.randn(8, 4).t(), torch.randn(8, 8)


def _changed_type() -> tuple[Any, ...]:
    return torch.randn(4, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64)


@pytest.mark.parametrize("make", [_changed_sizes, _changed_strides, _changed_type, lambda: inputs(grad=True)])
def test_other_inputs_are_other_graphs(programs: Programs, make: Callable[[], tuple[Any, ...]]) -> None:
    assert programs.traced(LAYER, *inputs()) == 1
    assert programs.traced(LAYER, *make()) == 1
    assert programs.traced(LAYER, *inputs()) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.1", "0.2"), ("* 2", "* 2.0"), ("relu", "sigmoid"), ("dim=-1", "dim=0"), ("def f", "\n    def f")],
    ids=["constant", "type", "function", "dimension", "lines"],
)
def test_another_program_is_another_graph(programs: Programs, old: str, new: str) -> None:
    assert programs.traced(LAYER, *inputs()) == 1
    assert programs.traced(LAYER.replace(old, new), *inputs()) == 1


@pytest.mark.parametrize("options", [{"cpu_isa": "scalar"}, {"memory_budget": 0.5}, {"fallback_random": True}])
def test_options_that_change_code_are_part_of_the_key(programs: Programs, options: dict[str, Any]) -> None:
    assert programs.traced(LAYER, *inputs()) == 1
    assert programs.traced(LAYER, *inputs(), **options) == 1
    assert programs.traced(LAYER, *inputs(), recompile_limit=3) == 0


def test_state_of_torch_is_part_of_the_key(programs: Programs) -> None:
    source = LAYER.replace("* 2", "* 2 + torch.ones(8)")
    assert programs.traced(source, *inputs()) == 1
    with torch.autocast("cpu"):
        assert programs.traced(source, *inputs(), close=0.1) == 1
    torch.set_default_dtype(torch.float64)
    try:
        assert programs.traced(source, *inputs()) == 1
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert programs.traced(source, *inputs()) == 1
    finally:
        torch.use_deterministic_algorithms(False)
    assert programs.traced(source, *inputs()) == 0


def test_decompositions_of_others_are_not_cached(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert programs.traced(LAYER, *inputs()) == 1
    operator = torch.ops.aten.silu.default
    rule = decomposition_table[operator]
    monkeypatch.setitem(decomposition_table, operator, lambda *args: rule(*args))
    assert programs.traced(LAYER, *inputs()) == 1
    monkeypatch.undo()


@pytest.fixture
def custom() -> Iterator[Any]:
    with torch.library._scoped_library("fuselens_warm", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.library.register_fake("fuselens_warm::twice", lambda x: torch.empty_like(x), lib=library)
        yield torch.ops.fuselens_warm.twice.default


def test_operators_of_others_are_not_cached(programs: Programs, custom: Any) -> None:
    source = LAYER.replace("x @ w", "torch.ops.fuselens_warm.twice(x @ w)")
    assert programs.traced(source, *inputs()) == 1
    assert programs.traced(source, *inputs()) == 1


def test_functions_of_the_program_that_are_nodes_are_not_cached(programs: Programs) -> None:
    source = """
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x * 2

            @staticmethod
            def backward(context, gradient):
                return gradient * 2

        def f(x, w):
            return Double.apply(x) @ w
    """
    assert programs.traced(source, *inputs(grad=True), backward=True) >= 1
    assert programs.traced(source, *inputs(grad=True), backward=True) >= 1


def test_writes_and_random_numbers_from_the_cache(programs: Programs) -> None:
    source = """
        def f(x, w):
            x.add_(1)
            w.t_()
            return torch.nn.functional.dropout(x @ w, 0.5), x.view(-1), None, 3
    """
    assert programs.traced(source, *inputs(), fallback_random=True) >= 1
    assert programs.traced(source, *inputs(), fallback_random=True) == 0


def test_inputs_that_share_memory_are_seen(programs: Programs) -> None:
    source = """
        def f(x, y):
            x.add_(1)
            return x + y
    """
    assert programs.traced(source, torch.zeros(6), torch.zeros(6)) == 1
    compiled = fuselens.compile(programs.make(source), options={"cache_dir": programs.cache_dir})
    results = []
    for f in (compiled, programs.make(source)):
        base = torch.zeros(8)
        results.append((f(base[:6], base[2:]), base))
    torch.testing.assert_close(results[0], results[1])


def test_constants_come_from_the_cache(programs: Programs) -> None:
    source = LAYER.replace("* 2", "* torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])")
    assert programs.traced(source, *inputs()) == 1
    assert programs.traced(source, *inputs()) == 0


@pytest.mark.parametrize("kind", ["graph", "results"])
@pytest.mark.parametrize("damage", ["cut", "changed", "no entry", "another object"])
def test_damaged_entries_are_misses(programs: Programs, kind: str, damage: str) -> None:
    assert programs.traced(LAYER, *inputs()) == 1
    (entry,) = (p for p in programs.entries() if p.parent.parent.name == kind)
    content = entry.read_bytes()
    programs.forget_frames()
    if damage == "cut":
        entry.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        entry.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    else:
        entry.write_bytes(b"no entry" if damage == "no entry" else b'[["tuple"],[1],[[0,0]]]')
        cache = Cache(programs.cache_dir)
        cache.adopt(entry, entry)
        assert cache.get(kind, entry.stem, entry.suffix) is not None
        assert _MARK in entry.read_bytes()
    assert programs.traced(LAYER, *inputs()) == (1 if kind == "graph" else 0)
    programs.forget_frames()
    assert [d.code for d in programs.recorder.report.diagnostics] == ["FL405"]
    assert programs.traced(LAYER, *inputs()) == 0
    assert programs.recorder.report.diagnostics == []


class Planted:
    """A pickle of it opens a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["graph", "results"])
def test_a_planted_pickle_is_never_executed(programs: Programs, tmp_path: Path, kind: str) -> None:
    assert programs.traced(LAYER, *inputs()) == 1
    (entry,) = (p for p in programs.entries() if p.parent.parent.name == kind)
    entry.write_bytes(pickle.dumps(Planted(tmp_path / "ran")))
    Cache(programs.cache_dir).adopt(entry, entry)  # with the checksum that anybody can compute
    programs.forget_frames()
    assert programs.traced(LAYER, *inputs()) == (1 if kind == "graph" else 0)
    assert not (tmp_path / "ran").exists()


def test_the_report_is_the_same_from_the_cache(programs: Programs) -> None:
    config = Config(cache_dir=programs.cache_dir)

    def comparable() -> Any:
        f = programs.make(LAYER)
        found = inspect(f, inputs(grad=True), {}, config=config, function="f", span=None)
        graphs = [dataclasses.replace(g, timings=[], cached=False, cache="") for g in found.graphs]
        return plain.to_plain(dataclasses.replace(found, timings=[], graphs=graphs))

    first = comparable()
    before = programs.traces
    again = comparable()
    assert programs.traces == before
    assert again == first
    names = [s["name"] for s in again["graphs"][0]["stages"]]
    assert {"capture", "joint", "lower", "cpp", "lower.backward", "cpp.backward", "memory"} <= set(names)


def test_two_processes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import sys, torch, torch.nn.functional as F, fuselens

        def stages():
            return [m for m in ("sympy", "networkx", "fuselens.autograd.joint", "fuselens.lowering") if m in sys.modules]

        @fuselens.compile
        def f(x, w):
            y = F.linear(x.view(2, 2, 8), w).permute(0, 2, 1).reshape(4, 8)
            return F.gelu(F.layer_norm(y @ w, (8,))).sum(-1)

        print(*stages())
        torch.manual_seed(0)
        x, w = torch.randn(4, 8), torch.randn(8, 8)
        print(f(x, w).tolist())
        print(*stages())
    """)
    )
    environment = {**os.environ, "FUSELENS_CACHE_DIR": str(tmp_path / "cache")}
    outputs = [
        subprocess.run(
            [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    (before, cold, after), (*others, warm, none) = outputs
    assert cold == warm
    assert before == after == "sympy fuselens.autograd.joint fuselens.lowering"
    assert [*others, none] == ["", ""]


def test_foreign_rules_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not torch_private.foreign_rules()
    monkeypatch.setitem(decomposition_table, torch.ops.aten.silu.default, lambda x: x)
    assert torch_private.foreign_rules()


@pytest.mark.parametrize("operator", ["cos", "to_dense"])  # torch 2.15 itself has such a kernel of to_dense
def test_foreign_kernels_are_noticed(operator: str) -> None:
    assert not torch_private.foreign_rules()
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(operator, lambda x, *_, **__: x, "PythonTLSSnapshot", allow_override=True)
        assert torch_private.foreign_rules()
    finally:
        library._destroy()
