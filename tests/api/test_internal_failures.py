"""Whatever fails inside the compiler, the program gets eager's results, and one coded line says that something failed."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fuselens


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


def raiser(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


CAPTURE = [
    "torch_private.peer_mark", "torch_private.functorch_active", "torch_private.is_peer_code",
    "torch_private.saving_unwatched", "torch_private.function_state", "torch_private.fake_mode",
    "capture.classify.frame_is_captured", "capture.classify.frame_reads_itself", "capture.program.marks.mark_of",
    "capture.program.stance.current", "capture.hook.tensor_layout.ensure", "capture.machine.Machine.run",
    "capture.tracing.tracer.Tracer.__init__", "capture.tracing.torch_state.TorchState.guard_ambient",
    "capture.tracing.tracer.Tracer.guard_distinct",
    "capture.tracing.torch_state.TorchState.leave_contexts", "capture.tracing.tracer.Tracer.release",
    "capture.tracing.tracer.Tracer.remember",
    "capture.frame.frame.live_values", "capture.frame.frame.needed_nodes", "capture.frame.frame.abandoned",
    "capture.frame.frame.unfinished",
    "capture.frame.frame.Captured", "capture.frame.frame.FrameCompiler._graph", "capture.frame.frame.FrameCompiler._machine",
    "capture.frame.frame.FrameCompiler._below_limits", "capture.frame.frame._first_span",
    "capture.frame.emit.Emitter.returning", "capture.frame.emit.Emitter.__init__", "capture.hook._hook.check_fits",
    "capture.hook._hook.skip", "capture.tracing.sources.GuardProgram.build",
    "pipeline.recorder.Recorder.on_call", "pipeline.recorder.Recorder.on_frame", "pipeline.recorder.Recorder.capturing",
    "pipeline.recorder.Recorder.new_graph", "pipeline.graphs.or_eager",
]  # fmt: skip
STAGES = [
    "pipeline.graphs.key_for", "pipeline.graphs.lazy_views.turns", "pipeline.graphs.sharing.find",
    "pipeline.graph_cache.GraphCache.load", "pipeline.graph_cache.GraphCache.store",
    "autograd.joint.trace", "pipeline.phases.partition", "pipeline.stages.simplify", "pipeline.stages.call_flash_attention",
    "pipeline.stages.lower", "pipeline.stages.fuse", "pipeline.stages.order", "pipeline.stages.generate",
    "pipeline.phases.programs.bound", "pipeline.phases.with_effects", "pipeline.phases.live_bytes",
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FUSELENS_STRICT", raising=False)


def inject(monkeypatch: pytest.MonkeyPatch, where: str, error: Exception) -> None:
    owner: Any = fuselens
    *path, name = where.split(".")
    for part in path:
        owner = getattr(owner, part, None) or importlib.import_module(f"{owner.__name__}.{part}")
    assert hasattr(owner, name), where
    monkeypatch.setattr(owner, name, raiser(error))


def program() -> Callable[..., Any]:
    """A fresh code object each time: a frame that failed once is not compiled again."""
    space: dict[str, Any] = {"torch": torch}
    exec(
        textwrap.dedent("""
        def helper(v):
            return v.exp() / (1 + v.abs())

        def fn(m, x, counts, log):
            y = m(x).relu()
            counts.add_(1)
            log.append(len(log))
            if y.sum() > 0:
                y = helper(y) * 2
            try:
                y = y + log.nothing
            except AttributeError as e:
                log.append(str(e))
            return (y - x.mean()).sum(1)
        """),
        space,
    )
    return space["fn"]


def outcome(fn: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    m, log = nn.Linear(5, 5), ["first"]
    x, counts = torch.randn(3, 5, requires_grad=True), torch.zeros(3)
    results = []
    for _ in range(2):
        y = fn(m, x, counts, log)
        y.pow(2).sum().backward()
        results.append(y.detach().clone())
    return [*results, counts, x.grad, *(p.grad for p in m.parameters())], log, torch.is_grad_enabled()


def agrees(compiled: Callable[..., Any]) -> None:
    (expected, log, _), (actual, log_too, enabled) = outcome(program()), outcome(compiled)
    assert log == log_too and enabled
    for e, a in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("where", CAPTURE + STAGES)
def test_a_step_that_raises(where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    compiled = fuselens.compile(program(), options={"strict": False})
    inject(monkeypatch, where, Unprintable() if where == "capture.machine.Machine.run" else KeyError("injected"))
    with caplog.at_level(logging.WARNING):
        agrees(compiled)
    monkeypatch.undo()
    said = [r.getMessage() for r in caplog.records if r.name == "fuselens"]
    assert all(r.exc_info is None for r in caplog.records)
    assert all(re.match(r"(\S+: )?FL(112|404): [^\n]*$", text) for text in said), said
    report = compiled.__fuselens__.recorder.report
    assert said, report.summary()
    assert where.endswith("Recorder.on_frame") or any(d.code in ("FL112", "FL404") for d in report.diagnostics)


def test_the_line_on_stderr(tmp_path: Path) -> None:
    """Without logging set up, there is one line, which is coded, and the program's own exceptions are what they are."""
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import torch, fuselens
        from fuselens.capture import machine
        def fail(*_):
            raise KeyError("injected\\nsecond line")
        machine.Machine.run = fail
        @fuselens.compile
        def f(x):
            try:
                return x["nothing"]
            except KeyError as e:
                raise LookupError("mine") from e
        for _ in range(2):
            try:
                f({})
            except LookupError as e:
                print(type(e).__name__, e, repr(e.__cause__), e.__context__ is e.__cause__)
        """)
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FUSELENS_")}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "LookupError mine KeyError('nothing') True\n" * 2
    (line,) = done.stderr.splitlines()
    assert re.match(r".*main\.py:8:\d+: FL112: not compiled: f \(KeyError: 'injected", line)
