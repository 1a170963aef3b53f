"""Trace and profile functions, monitoring tools, profilers and coverage: what belongs to them is never compiled, what the
compiler does is never told to them, and compiled functions give eager's results under all of them."""

from __future__ import annotations

import cProfile
import io
import os
import pdb
import profile
import pstats
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fuselens
from fuselens.capture.hook import _hook

OWN = os.path.dirname(fuselens.__file__) + os.sep
HANDS_OVER = os.path.join("capture", "frame", "resuming.py")  # calls what comes after a break, as the program runs
x = torch.tensor([1.0, -2.0, 3.0])


def helper(v: torch.Tensor, n: int) -> torch.Tensor:
    return v * n + 1


def program() -> Callable[..., Any]:
    """Fresh code objects, which nobody compiled before."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = helper(x, 2)
        if y.sum() > 0:
            y = y.relu() - 1
        return y.exp() / 3

    fn.__code__ = fn.__code__.replace()
    return fn


def whole() -> Callable[..., Any]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return helper(x, 2).relu() - 1

    fn.__code__ = fn.__code__.replace()
    return fn


class Watcher:
    """A profile, trace or monitoring function that computes with tensors, as those that look at memory do."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.total = torch.zeros(())

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        self.files.append(frame.f_code.co_filename)
        self.count()
        return self

    def monitored(self, code: Any, *_: Any) -> None:
        self.files.append(code.co_filename)
        self.count()

    def count(self) -> None:
        self.total = helper(self.total, 1)

    def check(self) -> None:
        assert self.files and self.total.item() == len(self.files)
        ours = {f for f in self.files if f.startswith(OWN) and not f.endswith(HANDS_OVER)}
        assert not ours
        assert not [f for f in self.files if "sympy" in f or f"torch{os.sep}fx" in f]
        for code in (Watcher.__call__.__code__, Watcher.monitored.__code__, Watcher.count.__code__):
            assert not _hook.entries(code)


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    before = sys.gettrace(), sys.getprofile()
    yield
    sys.settrace(before[0])
    sys.setprofile(before[1])
    threading.setprofile(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
def test_functions_given_to_setprofile(backend: str) -> None:
    expected, watcher = program()(x), Watcher()
    compiled = fuselens.compile(program(), backend=backend)
    entire = fuselens.compile(whole(), backend=backend, fullgraph=True)
    sys.setprofile(watcher)
    first, second, all_of_it = compiled(x), compiled(x), entire(x)
    sys.setprofile(None)
    assert torch.equal(all_of_it, whole()(x))
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, expected)
    watcher.check()
    frames = {g.frame.split(" ")[0] for g in compiled.__fuselens__.recorder.report.graphs}
    assert frames == {"fn"}


def test_the_compilation_of_a_backward() -> None:
    watcher = Watcher()
    given = x.clone().requires_grad_()
    compiled = fuselens.compile(whole())
    y = compiled(given).sum()
    sys.setprofile(watcher)
    y.backward()
    sys.setprofile(None)
    assert given.grad is not None and torch.equal(given.grad, torch.tensor([2.0, 0.0, 2.0]))
    assert not [f for f in watcher.files if f"{os.sep}codegen{os.sep}" in f or f"{os.sep}lowering{os.sep}" in f]


def test_functions_given_to_threading() -> None:
    watcher, results = Watcher(), []
    compiled = fuselens.compile(program())
    threading.setprofile(watcher)
    thread = threading.Thread(target=lambda: results.append(compiled(x)))
    thread.start()
    thread.join()
    threading.setprofile(None)  # type: ignore[arg-type]
    torch.testing.assert_close(results[0], program()(x))
    watcher.check()


def test_functions_given_to_settrace() -> None:
    watcher, compiled = Watcher(), fuselens.compile(program(), backend="eager")
    sys.settrace(watcher)
    result = compiled(x)
    sys.settrace(None)
    assert torch.equal(result, program()(x))
    watcher.check()


def test_a_guard_that_runs_python_is_not_reported() -> None:
    class Scale:
        @property
        def factor(self) -> int:
            return 2

    scale, watcher = Scale(), Watcher()
    fn = lambda v: v * scale.factor  # noqa: E731
    compiled = fuselens.compile(fn, backend="eager")
    compiled(x)
    sys.setprofile(watcher)
    result = compiled(x)
    sys.setprofile(None)
    assert torch.equal(result, x * 2)
    watcher.check()


def test_a_compiled_function_that_a_profile_function_calls() -> None:
    """It gives its results, and is not compiled there: nothing in a profile function is."""
    fn = whole()
    inner, seen = fuselens.compile(fn, fullgraph=True), []
    sys.setprofile(lambda frame, event, arg: seen.append(inner(x)))
    compiled = fuselens.compile(whole())(x)
    sys.setprofile(None)
    assert torch.equal(compiled, whole()(x))
    assert seen and all(torch.equal(s, compiled) for s in seen)
    assert not _hook.entries(fn)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
@pytest.mark.parametrize("event", ["PY_START", "PY_RETURN", "CALL", "JUMP", "RAISE"])
def test_monitoring_tools(event: str) -> None:
    monitoring = sys.monitoring
    watcher, compiled = Watcher(), fuselens.compile(program())
    code = getattr(monitoring.events, event)
    monitoring.use_tool_id(3, "test")
    try:
        monitoring.register_callback(3, code, watcher.monitored)
        monitoring.set_events(3, code)
        result = compiled(x)
        again = compiled(x)
    finally:
        monitoring.set_events(3, 0)
        monitoring.register_callback(3, code, None)
        monitoring.free_tool_id(3)
    torch.testing.assert_close(result, program()(x))
    assert torch.equal(result, again)
    if event in ("PY_START", "PY_RETURN", "CALL"):
        watcher.check()


@pytest.mark.parametrize("profiler", [cProfile.Profile, profile.Profile])
def test_profilers(profiler: Callable[[], Any]) -> None:
    compiled = fuselens.compile(program())
    running = profiler()
    result = running.runcall(compiled, x)
    torch.testing.assert_close(result, program()(x))
    running.create_stats()
    files = {key[0] for key in pstats.Stats(running).stats}  # type: ignore[attr-defined]
    assert __file__ in files
    assert not [f for f in files if f.startswith(OWN) and not f.endswith(HANDS_OVER)]


def test_torchs_stance_is_looked_at_unseen() -> None:
    """It was set since the last call."""
    compiled = fuselens.compile(program())
    compiled(x)
    torch.compiler.set_stance("force_eager")
    torch.compiler.set_stance("default")
    running = cProfile.Profile()
    running.runcall(compiled, x)
    running.create_stats()
    files = {key[0] for key in pstats.Stats(running).stats}  # type: ignore[attr-defined]
    assert not [f for f in files if f.startswith(OWN) and not f.endswith(HANDS_OVER)]


class Stop(Exception):
    pass


@pytest.mark.parametrize("event", ["call", "return"])
@pytest.mark.parametrize("compiled_before", [False, True])
def test_exceptions_of_profile_functions(event: str, compiled_before: bool) -> None:
    """They leave the call, and the interpreter takes the function out."""

    def outcome(fn: Callable[..., Any]) -> tuple[str, bool, list[str]]:
        events: list[str] = []

        def watch(frame: Any, what: str, arg: Any) -> None:
            if frame.f_code.co_name == "fn" and not what.startswith("c_"):
                events.append(what)
                if what == event:
                    raise Stop(what)

        sys.setprofile(watch)
        try:
            fn(x)
        except Stop as e:
            return str(e), sys.getprofile() is None, events
        finally:
            sys.setprofile(None)
        return "nothing was raised", False, events

    compiled = fuselens.compile(whole(), backend="eager")
    if compiled_before:
        compiled(x)
    assert outcome(compiled) == outcome(whole())
    assert torch.equal(compiled(x), whole()(x))


def test_stepping_into_a_function_that_nobody_compiled_yet() -> None:
    def session(fn: Callable[..., Any]) -> str:
        out = io.StringIO()
        debugger = pdb.Pdb(
            stdin=io.StringIO("s\ns\ns\np v\nr\nn\nn\np y\nc\n"), stdout=out, nosigint=True, readrc=False
        )
        debugger.use_rawinput = False
        debugger.prompt = ""
        before = sys.gettrace()
        try:
            debugger.runcall(fn, x)
        finally:
            sys.settrace(before)
        return out.getvalue()

    expected = session(program())
    assert expected.count("tensor(") >= 2 and "helper" in expected
    assert session(fuselens.compile(program())) == expected


@pytest.mark.parametrize("core", ["ctrace", "pytrace", "sysmon"])
def test_coverage(core: str, tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    if core == "sysmon" and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring came with 3.12")
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import sys, torch, fuselens
        def helper(v, n):
            if n > 1:
                return v * n
            return v
        def fn(x):
            y = helper(x, 2)
            if y.sum() > 100:
                y = y - 1
            return y + 1
        run = fuselens.compile(fn) if "compiled" in sys.argv else fn
        for _ in range(2):
            run(torch.ones(3))
        """)
    )

    def lines(*arguments: str) -> str:
        environment = {**os.environ, "COVERAGE_CORE": core, "COVERAGE_FILE": str(tmp_path / "data")}
        for command in (["run", "--include=main.py", "main.py", *arguments], ["report", "-m"]):
            done = subprocess.run(
                [sys.executable, "-m", "coverage", *command], cwd=tmp_path, env=environment, capture_output=True,
                text=True, timeout=150,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        return done.stdout

    assert "6, 10" in (expected := lines())
    assert lines("compiled") == expected
