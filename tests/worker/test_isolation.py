"""The supervisor in this process, with new interpreters instead of forks, and the reading of tracebacks."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fuselens import pipeline
from fuselens.checking import isolation
from fuselens.record import wire

GOOD = "import fuselens\n@fuselens.compile\ndef f(x=1): return x\n"


def test_new_interpreters_through_threads() -> None:
    """As on Windows, whose pipes cannot be waited for."""
    supervisor = isolation.Supervisor(spawn=True, pumps=True)
    stages: list[str] = []
    try:
        event = supervisor.call(wire.Request(7, "check", "/nowhere/f.py", GOOD), stages.append)
        assert event.id == 7
        assert [r.function for r in event.file.functions] == ["f"]
        assert stages[:2] == ["discover", "import"]
        limits = wire.Limits(seconds=1)
        event = supervisor.call(wire.Request(8, "check", "/nowhere/f.py", GOOD + "while 1: pass\n", limits=limits))
        (found,) = event.file.diagnostics
        assert (found.code, found.span.line) == ("FL905", 4)
    finally:
        supervisor.close()


def test_warming_leaves_the_autograd_engine_alone() -> None:
    """Where torch was built with CUDA the engine starts threads, and refuses to run in any child forked later."""
    called: set[str] = set()

    def note(_: Any, event: str, what: Any) -> None:
        if event == "c_call":
            called.add(what.__name__)

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        pipeline.warm()
    finally:
        sys.setprofile(previous)
    assert "dispatch" in " ".join(called) and "run_backward" not in called


def test_new_interpreter_that_aborts() -> None:
    """As on macOS."""
    supervisor = isolation.Supervisor(spawn=True, pumps=False)
    try:
        event = supervisor.call(wire.Request(9, "check", "/nowhere/f.py", GOOD + "import os; os.abort()\n"))
        (found,) = event.file.diagnostics
        assert (found.code, found.span.line) == ("FL906", 4)
        assert "SIGABRT" in found.message
    finally:
        supervisor.close()


def test_close_kills_at_once() -> None:
    supervisor = isolation.Supervisor(spawn=True)
    supervisor.submit(wire.Request(1, "check", "/nowhere/f.py", GOOD + "while 1: pass\n"), lambda _: None)
    supervisor.close()
    assert not supervisor.busy


TRACE = """Fatal Python error: Aborted

Thread 0x00007f01 (most recent call first):
  File "/w/f.py", line 99 in background
  File "/usr/lib/threading.py", line 1 in run

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/os.py", line 5 in abort
  File "/w/f.py", line 12 in inner
  File "/w/f.py", line 20 in <module>
"""


@pytest.mark.parametrize(
    "trace, path, line",
    [
        (TRACE, "/w/f.py", 12),
        (TRACE, "/w/other.py", None),
        ("", "/w/f.py", None),
        (TRACE.replace("Current thread", "Thread"), "/w/f.py", 99),
        ('Thread 0x1 (most recent call first):\n  File "/w/\\xe4.py", line 3 in f\n', "/w/ä.py", 3),
    ],
)
def test_deepest_line(trace: str, path: str, line: int | None) -> None:
    assert isolation.deepest_line(trace, path) == line


def test_config_of_options() -> None:
    config = isolation.config_of({"target": "cpu", "print_after": ["fuse"], "cache_dir": "/tmp/c", "unrelated": 1})
    assert (config.target, config.print_after, str(config.cache_dir), config.explore) == (
        "cpu",
        ("fuse",),
        "/tmp/c",
        True,
    )


def test_decoder_takes_any_pieces() -> None:
    data = b"".join(wire.encode(wire.Event(i, "progress", message="x" * i)) for i in range(4))
    decoder = wire.Decoder()
    frames = [frame for byte in data for frame in decoder.feed(bytes([byte]))]
    assert b"".join(frames) == data
    assert [wire.decode(f[wire.LENGTH_SIZE :], wire.Event).id for f in frames] == [0, 1, 2, 3]
    with pytest.raises(wire.ProtocolError):
        decoder.feed(b"\xff\xff\xff\xff")
