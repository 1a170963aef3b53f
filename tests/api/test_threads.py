"""Threads that call one function, exceptions while tracing, tracing tools."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading

import pytest
import torch

import fuselens
from fuselens.capture.frame import frame as capture_frame


def t(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def together(*works, times: int = 1) -> None:
    """Runs ``works``, each in ``times`` threads that start at the same moment; raises what one of them raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(works) * times)

    def run(work):
        try:
            barrier.wait()
            work()
        except BaseException as e:  # noqa: BLE001 - raised below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(work,)) for work in works for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def body(x, n):
    y = x.sin() * n
    if y.sum() > 0:
        y = y + 1
    return y


def test_threads_compile_one_function():
    fn = fuselens.compile(body, backend="eager")

    def work():
        for n in range(6):
            for size in (2, 3, 4):
                torch.testing.assert_close(fn(t(size), n), body(t(size), n))

    together(work, times=4)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_compiles():
    """It would wait for ever for a lock of that thread: an alarm would end it."""
    held, ended = threading.Event(), threading.Event()

    def compiling():
        with capture_frame._one_at_a_time:
            held.set()
            ended.wait(0.2)

    thread = threading.Thread(target=compiling)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(30)
        fn = fuselens.compile(body, backend="eager")
        os._exit(0 if torch.equal(fn(t(3), 2), body(t(3), 2)) else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    torch.testing.assert_close(fuselens.compile(body, backend="eager")(t(3), 2), body(t(3), 2))


def test_threads_with_different_state():
    fn = fuselens.compile(lambda w, x: (w * x).sum(), backend="eager")

    def training():
        for _ in range(20):
            w = t(3).requires_grad_()
            fn(w, t(3)).backward()
            torch.testing.assert_close(w.grad, t(3))

    def inference():
        with torch.no_grad():
            for _ in range(20):
                assert not fn(t(3).requires_grad_(), t(3)).requires_grad

    def half():
        for _ in range(20):
            assert fn(t(3).half(), t(3).half()).dtype is torch.float16

    together(training, inference, half, times=2)


def test_threads_reset_while_others_run():
    fn = fuselens.compile(body, backend="eager")

    def work():
        for _ in range(30):
            torch.testing.assert_close(fn(t(3), 2), body(t(3), 2))

    def resets():
        for _ in range(10):
            fuselens.reset()

    together(work, work, resets)


def nested_inner(x):
    return x.cos() + 1


def test_compiling_and_resetting_inside_compiled_code():
    def outer(x):
        inner = fuselens.compile(nested_inner, backend="eager")
        y = inner(x)
        fuselens.reset()
        return inner(y) * 2

    fn = fuselens.compile(outer, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(fn(t(3)), outer(t(3)))


def state() -> tuple[object, ...]:
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(), torch.empty(()).device, type(torch.empty(())), torch.get_rng_state().sum().item(),
    )  # fmt: skip


@fuselens.allow_in_graph
def interrupted(x):
    raise KeyboardInterrupt


def interrupts_in_no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = interrupted(y)
    return z


def raises_in_no_grad(x):
    with torch.no_grad():
        y = x * 2
        raise ValueError(f"shape {tuple(y.shape)}")


def raises_in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
        raise ValueError(str(y.dtype))


@pytest.mark.parametrize(
    ("fn", "error"),
    [(interrupts_in_no_grad, KeyboardInterrupt), (raises_in_no_grad, ValueError), (raises_in_autocast, ValueError)],
)
def test_exceptions_leave_no_state_behind(fn, error):
    before = state()
    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        with pytest.raises(error) as caught:
            compiled(t(3, 3).requires_grad_())
        assert state() == before
        with pytest.raises(error, match=re.escape(str(caught.value))):
            fn(t(3, 3).requires_grad_())


def failing_backend(gm, inputs):
    torch.set_grad_enabled(False)
    raise RuntimeError("no")


def test_a_backend_that_fails_leaves_no_state_behind():
    before = state()
    with pytest.raises(fuselens.BackendError):
        fuselens.compile(body, backend=failing_backend)(t(3), 2)
    assert state() == before
    torch.testing.assert_close(fuselens.compile(body, backend="eager")(t(3), 2), body(t(3), 2))


def test_fullgraph_errors_leave_no_state_behind():
    def fn(x):
        with torch.no_grad():
            print(x + 1)

    before = state()
    with pytest.raises(fuselens.GraphBreakError):
        fuselens.compile(fn, backend="eager", fullgraph=True)(t(3))
    assert state() == before


@pytest.mark.parametrize("tool", [sys.settrace, sys.setprofile])
def test_trace_and_profile_functions(tool):
    seen = set()

    def watch(frame, event, arg):
        if frame.f_code.co_filename == __file__:
            seen.add((frame.f_code.co_name, event))
        return watch

    fn = fuselens.compile(body, backend="eager")
    expected = body(t(3), 2)
    before = sys.gettrace(), sys.getprofile()
    tool(watch)
    try:
        results = [fn(t(3), 2) for _ in range(3)]
    finally:
        tool(before[tool is sys.setprofile])
    for result in results:
        torch.testing.assert_close(result, expected)
    assert ("body", "call") in seen
