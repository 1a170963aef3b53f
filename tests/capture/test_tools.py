"""Tracebacks, trace functions, monitoring, profilers and debuggers see the user's lines.

Where lines are watched (``sys.settrace``, line events of ``sys.monitoring``), code runs as it was written; profilers see
compiled code.
"""

from __future__ import annotations

import cProfile
import io
import pdb
import pstats
import sys
import trace
import traceback

import pytest
import torch

import fuselens
from fuselens.capture.frame import resuming
from fuselens.capture.frame.emit import RESUME_MARK
from fuselens.capture.hook import _hook

HANDS_OVER = [(resuming.__file__, "run_tails"), (resuming.__file__, "__call__")]
x = torch.tensor([1.0, -2.0, 3.0])


def helper(v, n):
    w = v * n
    if n > 2:
        raise ValueError(f"too many: {n}")
    return w


# --- tracebacks -----------------------------------------------------------------------------------------------------


def raises_at_once(x):
    raise KeyError("a")


def raises_after_a_graph(x):
    y = x + 1
    y = y * 2
    raise KeyError(y.dim())


def raises_in_a_helper(x):
    y = x + 1
    return [helper(y, 1), helper(x, 3), helper(x, 1)]


def raises_after_breaks(x):
    print("a")
    y = x + 1
    print("b")
    if y.sum() > 0:
        print("c")
        return y["nothing"]
    return y


def raises_in_a_helper_that_breaks(x):
    def inner(v):
        print("inner")
        return helper(v + 1, 3)

    y = x * 2
    return inner(y) + y


def raises_in_a_loop_that_breaks(x):
    for i in range(5):
        x = x + i
        print(i)
        assert i < 3, "i is 3"
    return x


def raises_in_try_and_reraises(x):
    try:
        try:
            y = x + 1
            helper(y, 4)
        except ValueError:
            y = x - 1
            raise
        finally:
            print("finally")
    except KeyError:
        return 1


def raises_from(x):
    try:
        return helper(x, 5)
    except ValueError as e:
        raise RuntimeError("outer") from e


def raises_while_handling(x):
    try:
        return helper(x, 5)
    except ValueError:
        return {}["missing"]


def raises_in_a_comprehension(x):
    return [x / n + [1, 2][n] for n in range(5)]


def raises_in_a_generator(x):
    def numbers(v):
        yield v
        yield v + 1
        helper(v, 7)

    return sum(v for v in numbers(x))


def raises_in_a_with(x):
    with torch.no_grad():
        y = x + 1
        with open("/dev/null") as f:
            return y + f.missing


def raises_from_torch(x):
    y = x + 1
    return y @ torch.ones(7, 2)


def calls_with_wrong_arguments(x):
    return helper(x + 1)


RAISING = [
    raises_at_once, raises_after_a_graph, raises_in_a_helper, raises_after_breaks, raises_in_a_helper_that_breaks,
    raises_in_a_loop_that_breaks, raises_in_try_and_reraises, raises_from, raises_while_handling, raises_in_a_comprehension,
    raises_in_a_generator, raises_in_a_with, raises_from_torch, calls_with_wrong_arguments,
]  # fmt: skip


def user_traceback(error: BaseException) -> str:
    """The text that Python prints, without frames that only hand over to a resume function."""
    shown = traceback.TracebackException.from_exception(error)
    pending = [shown]
    while pending:
        part = pending.pop()
        pending += [p for p in (part.__cause__, part.__context__) if p is not None]
        frames = list(part.stack)
        hands_over = [(f.filename, f.name) in HANDS_OVER or RESUME_MARK in f.name for f in frames[1:]] + [False]
        kept = [f for f, hands in zip(frames, hands_over) if not hands and f.filename == __file__]
        for f in kept:
            f.name = f.name.split(RESUME_MARK)[0]
        part.stack[:] = [f for f in kept if f.name != "caught"]
    return "".join(shown.format())


def caught(fn) -> str:
    try:
        fn(x)
    except Exception as e:
        return user_traceback(e)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("fn", RAISING, ids=lambda f: f.__name__)
def test_tracebacks_show_the_lines_of_eager(fn):
    compiled = fuselens.compile(fn, backend="eager")
    expected = caught(fn)
    assert fn.__name__ in expected
    for _ in range(2):
        assert caught(compiled) == expected


def raises_in_a_with_that_breaks(x):
    with torch.no_grad():
        print("a")
        y = x + 1
        print("b")
        return y + x.missing


def raises_in_a_callee_with_breaks(x):
    y = raises_in_a_helper_that_breaks(x)
    return y + 1


def raises_after_a_branch(x):
    y = x + 1
    if y.sum() > 0:
        y = y - 1
        raise RuntimeError("positive")
    return y


def raises_on_a_line_of_several(x):
    print("a")
    y = x + 1; print("b"); z = [1, 2][5]  # fmt: skip # noqa: E702
    return y * z


def raises_in_a_call_of_several_lines(x):
    y = x + 1
    print("a")
    y = helper(
        y,
        3,
    )
    return y


EXACT = [
    raises_in_a_with_that_breaks, raises_in_a_callee_with_breaks, raises_after_a_branch, raises_on_a_line_of_several,
    raises_in_a_call_of_several_lines, raises_at_once, raises_after_a_graph, raises_in_a_helper, raises_after_breaks,
    raises_in_a_helper_that_breaks, raises_in_a_loop_that_breaks, raises_in_a_with, raises_in_try_and_reraises,
    raises_in_a_comprehension, calls_with_wrong_arguments,
]  # fmt: skip


def places(fn) -> list[tuple[object, ...]]:
    """File, name and position of each frame that the exception left, from the function on."""
    try:
        fn(x)
    except Exception as e:
        frames = traceback.extract_tb(e.__traceback__)[1:]
        return [(f.filename, f.name, f.lineno, f.end_lineno, f.colno, f.end_colno) for f in frames]
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize("fn", EXACT, ids=lambda f: f.__name__)
def test_tracebacks_have_the_frames_of_eager(fn, backend):
    """One frame for each call, at the line and columns that raised, under its own name: none of what resumes it."""
    compiled, expected = fuselens.compile(fn, backend=backend), places(fn)
    for _ in range(3):
        assert places(compiled) == expected


# --- trace functions ------------------------------------------------------------------------------------------------


def many_lines(x, n):
    y = x + 1
    for i in range(n):
        y = helper(y, i)
        if y.sum() > 5:
            print("big")
        else:
            y = y - 1
    return [
        v * 2
        for v in (y, x)
    ]  # fmt: skip


def lines_of(fn, *args):
    seen = []

    def watch(frame, event, arg):
        if frame.f_code.co_filename == __file__:
            seen.append((frame.f_code.co_name, event, frame.f_lineno))
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        fn(*args)
    finally:
        sys.settrace(before)
    return [s for s in seen if s[0] != "lines_of"]


@pytest.mark.parametrize("compiled_before", [False, True])
def test_trace_functions_see_every_line(compiled_before):
    fn = fuselens.compile(many_lines, backend="eager")
    if compiled_before:
        fn(x, 2)
    assert lines_of(fn, x, 2) == lines_of(many_lines, x, 2)


def test_compiled_code_runs_again_when_nobody_watches():
    fn = fuselens.compile(many_lines, backend="eager")
    fn(x, 2)
    lines_of(fn, x, 2)
    _hook.reset_stats()
    fn(x, 2)
    assert _hook.stats()["hits"] > 0


def test_a_trace_function_that_is_set_midway():
    seen = []

    def start():
        sys.settrace(lambda frame, event, arg: seen.append(frame.f_code.co_name))

    def fn(x):
        y = x + 1
        start()
        y = y * 2
        y = helper(y, 1)
        sys.settrace(None)
        return y

    before = sys.gettrace()
    try:
        result = fuselens.compile(fn, backend="eager")(x)
    finally:
        sys.settrace(before)
    assert torch.equal(result, (x + 1) * 2)
    assert "helper" in seen


def test_line_counts_of_the_trace_module():
    """``trace`` and ``coverage`` count what they count of the function as it is."""

    def counts(fn):
        counter = trace.Trace(count=1, trace=0)
        counter.runfunc(fn, x, 3 - 1)
        return {k[1]: n for k, n in counter.results().counts.items() if k[0] == __file__}

    assert counts(fuselens.compile(many_lines, backend="eager")) == counts(many_lines)


# --- profilers ------------------------------------------------------------------------------------------------------


def test_profilers_see_compiled_functions_by_name():
    fn = fuselens.compile(many_lines, backend="eager")
    fn(x, 2)
    _hook.reset_stats()
    profile = cProfile.Profile()
    profile.runcall(fn, x, 2)
    assert _hook.stats()["hits"] > 0
    stats = pstats.Stats(profile).stats
    calls = {key[2]: value[0] for key, value in stats.items() if key[0] == __file__}
    assert calls["many_lines"] == 1
    assert all(name.split(RESUME_MARK)[0] in ("many_lines", "helper") for name in calls)


# --- debuggers ------------------------------------------------------------------------------------------------------


def debugged(fn, commands: str, *args) -> str:
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=out, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    debugger.prompt = ""
    before = sys.gettrace()
    try:
        debugger.runcall(fn, *args)
    finally:
        sys.settrace(before)
    return out.getvalue()


def test_stepping_through_a_compiled_function():
    commands = "n\nn\np y\ns\nn\nn\np w\nc\n"
    fn = fuselens.compile(many_lines, backend="eager")
    fn(x, 2)
    expected = debugged(many_lines, commands, x, 2)
    assert "tensor(" in expected and "w = v * n" in expected
    assert debugged(fn, commands, x, 2) == expected


def test_breakpoints_in_a_compiled_function(monkeypatch):
    """From ``breakpoint()`` on, the debugger steps from line to line as it does in eager."""

    def fn(x):
        y = x + 1
        breakpoint()
        y = y * 2
        return y - 1

    def session(fn):
        out = io.StringIO()
        debugger = pdb.Pdb(stdin=io.StringIO("p y\nn\nn\np y\nc\n"), stdout=out, nosigint=True, readrc=False)
        debugger.use_rawinput = False
        monkeypatch.setattr(sys, "breakpointhook", lambda: debugger.set_trace(sys._getframe(1)))
        before = sys.gettrace()
        try:
            fn(x)
        finally:
            sys.settrace(before)
        return out.getvalue()

    expected = session(fn)
    assert "tensor(" in expected
    assert session(fuselens.compile(fn, backend="eager")) == expected
