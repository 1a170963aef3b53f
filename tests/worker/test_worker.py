"""The worker with real processes: every bad input is one diagnostic at the best line, and the next check works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fuselens.record import wire
from fuselens.record.report import Diagnostic, FileReport
from fuselens.worker import Preloads
from tests.support.workers import Client

GOOD = """import fuselens
from jaxtyping import Float32
from torch import Tensor
@fuselens.compile
def double(x: Float32[Tensor, "n"]):
    return x * 2
"""
LOOP = "while True:\n    pass\n"

Under = Callable[[str, Diagnostic], str]
PATH = "/nowhere/example.py"  # sources are sent along: the file itself need not exist


def only(file: FileReport) -> Diagnostic:
    (found,) = file.diagnostics
    assert file.functions == []
    return found


def assert_works(client: Client) -> None:
    file = client.check(PATH, GOOD)
    assert file.diagnostics == []
    assert [len(r.graphs) for r in file.functions] == [1]


def test_ready_message(shared: Client) -> None:
    ready = shared.ready
    assert (ready.id, ready.kind, ready.file) == (0, "ready", None)
    versions = json.loads(ready.message)
    assert versions["executable"] == sys.executable
    assert set(versions) >= {"python", "torch", "fuselens"}


def test_good_file_with_progress(shared: Client) -> None:
    shared.progress.clear()
    assert_works(shared)
    assert [e.message for e in shared.progress][:3] == ["discover", "import", "double: example inputs"]


def test_run(shared: Client) -> None:
    result = shared.result(shared.send("run", PATH, GOOD, functions=("double",))).run
    assert result is not None
    assert result.error is None, result.error
    assert result.agrees


@pytest.mark.parametrize(
    "body, code, under",
    [
        ("def f(:\n", "FL902", ":"),
        ("raise ValueError('bad')\n", "FL903", "raise ValueError('bad')"),
        ("import sys; sys.exit(2)\n", "FL904", "sys.exit(2)"),
        ("import os; os._exit(2)\n", "FL904", "import os; os._exit(2)"),
        ("import os; os.abort()\n", "FL906", "import os; os.abort()"),
        ("import ctypes\ndef f():\n    ctypes.string_at(1)\nf()\n", "FL906", "ctypes.string_at(1)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n", "FL906", "import fuselens"),
        ("import os; os.closerange(3, 100); os.abort()\n", "FL906", "import fuselens"),
    ],
)
def test_bad_file(shared: Client, text_under: Under, body: str, code: str, under: str) -> None:
    source = GOOD + body
    found = only(shared.check(PATH, source))
    assert (found.code, found.severity) == (code, "error")
    assert text_under(source, found) == under
    assert_works(shared)


def test_death_says_how(shared: Client) -> None:
    found = only(shared.check(PATH, GOOD + "import os; os.abort()\n"))
    assert "SIGABRT" in found.message
    assert "at line 7" in found.message


def test_endless_loop_at_import(shared: Client, text_under: Under) -> None:
    source = GOOD + LOOP
    found = only(shared.check(PATH, source, limits=wire.Limits(seconds=0.5)))
    assert found.code == "FL905"
    assert "0.5 s" in found.message
    assert found.span.line in (7, 8)
    assert_works(shared)


def test_endless_loop_inside_a_library(shared: Client, text_under: Under) -> None:
    source = GOOD + "import time\ntime.sleep(1000)\n"
    found = only(shared.check(PATH, source, limits=wire.Limits(seconds=0.5)))
    assert (found.code, text_under(source, found)) == ("FL905", "time.sleep(1000)")


def test_endless_loop_in_the_function(shared: Client) -> None:
    source = "import fuselens, time\n@fuselens.compile(example_inputs=(1,))\ndef f(x):\n    time.sleep(1000)\n"
    found = only(shared.check(PATH, source, limits=wire.Limits(seconds=1)))
    assert found.code == "FL905"
    assert found.span.line in (3, 4)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell what a process has used")
def test_processor_time_is_limited(shared: Client) -> None:
    """Of a loop, not of what waits."""
    found = only(shared.check(PATH, GOOD + LOOP, limits=wire.Limits(seconds=100, processor_seconds=1)))
    assert found.code == "FL905" and "1 s of processor time" in found.message
    waits = GOOD + "import time\ntime.sleep(1.5)\n"
    report = shared.check(PATH, waits, limits=wire.Limits(seconds=100, processor_seconds=20))
    assert not [d for d in report.diagnostics if d.code == "FL905"]
    number = shared.send("check", PATH, GOOD + LOOP, limits=wire.Limits(seconds=100))
    time.sleep(1.0)
    shared.send("cancel", target=number)
    assert shared.result(number).processor_seconds > 0


def test_ignored_signals_do_not_help(shared: Client) -> None:
    body = "import signal\nfor s in set(signal.Signals) - {9, 19}:\n    signal.signal(s, signal.SIG_IGN)\n" + LOOP
    found = only(shared.check(PATH, GOOD + body, limits=wire.Limits(seconds=0.5)))
    assert found.code == "FL905"


def test_megabyte_on_stdout_and_stderr(shared: Client) -> None:
    body = "import os, sys\nprint('x' * 2_000_000)\nprint('y' * 2_000_000, file=sys.stderr)\n"
    body += "os.write(1, b'z' * 2_000_000)\n"
    before = len(shared.errors)
    file = shared.check(PATH, GOOD + body)
    assert file.diagnostics == []
    assert len(file.functions) == 1
    assert len(shared.errors) - before < 200_000
    assert_works(shared)


def test_stdin_is_empty(shared: Client) -> None:
    found = only(shared.check(PATH, GOOD + "input()\n"))
    assert (found.code, "EOFError" in found.message) == ("FL903", True)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is watched through /proc")
def test_memory_limit(shared: Client, text_under: Under) -> None:
    source = GOOD + "import time\nblock = bytearray(1) * 600_000_000\ntime.sleep(1000)\n"
    found = only(shared.check(PATH, source, limits=wire.Limits(seconds=30, memory_mib=400)))
    assert found.code == "FL910"
    assert "400 MiB" in found.message
    assert found.span.line in (8, 9)
    assert_works(shared)


def test_function_without_example_inputs(shared: Client, text_under: Under) -> None:
    source = "import fuselens\n@fuselens.compile\ndef lonely(x): ...\n"
    (report,) = shared.check(PATH, source).functions
    (found,) = report.diagnostics
    assert (found.code, text_under(source, found)) == ("FL901", "lonely")


def test_threads_and_processes_of_the_file_do_not_delay_or_survive(shared: Client, eventually: Any) -> None:
    body = "import subprocess, threading, time\nsubprocess.Popen(['sleep', '987'])\n"
    body += "threading.Thread(target=time.sleep, args=(987,)).start()\n"
    assert shared.check(PATH, GOOD + body, options={"allow_effects": True}).diagnostics == []
    eventually(lambda: not any(p.info["cmdline"] == ["sleep", "987"] for p in psutil.process_iter(["cmdline"])))


def test_cancel(shared: Client) -> None:
    identity = shared.send("check", PATH, GOOD + LOOP)
    assert shared.event().kind == "progress"
    shared.send("cancel", target=identity)
    event = shared.result(identity)
    assert (event.file, event.run) == (None, None)
    assert_works(shared)


def test_cancel_of_the_unknown_and_of_the_queued(own: Callable[..., Client]) -> None:
    client = own("--jobs", "1")
    client.event()
    client.send("cancel", target=99)
    looping, queued = client.send("check", PATH, GOOD + LOOP), client.send("check", PATH, GOOD)
    client.send("cancel", target=queued)
    event = client.event()
    while event.kind == "progress":
        event = client.event()
    assert (event.id, event.file) == (queued, None)
    client.send("cancel", target=looping)
    assert client.result(looping).file is None


def test_requests_run_side_by_side(shared: Client) -> None:
    slow = shared.send("check", PATH, GOOD + "import time; time.sleep(1.5)\n")
    fast = shared.send("check", PATH, GOOD)
    assert shared.result(fast).file.diagnostics == []
    assert shared.result(slow).file.diagnostics == []


def test_missing_file(shared: Client) -> None:
    assert only(shared.check("/nowhere/gone.py")).code == "FL903"


def test_children_see_a_fresh_process_each(shared: Client) -> None:
    body = "import torch\nassert not hasattr(torch, 'mark')\ntorch.mark = 1\n"
    body += "torch.ones(1000, 1000) @ torch.ones(1000, 1000)\n"  # a parallel region, each time in a new process
    for _ in range(3):
        assert shared.check(PATH, GOOD + body).diagnostics == []


def checks_of(client: Client) -> list[psutil.Process]:
    """The worker's children that check. From Python 3.14 on multiprocessing may have one of its own, which tracks locks."""
    children = psutil.Process(client.process.pid).children()
    return [child for child in children if "fuselens.worker" in child.cmdline()]


def test_ends_with_stdin_and_takes_its_children(own: Callable[..., Client], eventually: Any) -> None:
    client = own()
    client.event()
    client.send("check", PATH, GOOD + LOOP)
    client.event()
    (child,) = checks_of(client)
    client.process.stdin.close()
    assert client.process.wait(120) == 0
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_killed_worker_takes_its_children(own: Callable[..., Client], eventually: Any) -> None:
    client = own()
    client.event()
    client.send("check", PATH, GOOD + LOOP)
    client.event()
    (child,) = checks_of(client)
    os.kill(client.process.pid, signal.SIGKILL)
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_shutdown_request(own: Callable[..., Client]) -> None:
    client = own()
    client.send("shutdown")  # before it is ready: nothing is lost
    assert client.process.wait(120) == 0


def test_without_torch(own: Callable[..., Client], tmp_path: Path, text_under: Under) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    client = own(environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
    ready = client.event()
    assert [d.code for d in ready.file.diagnostics] == ["FL907"]
    for _ in range(2):
        found = only(client.check(PATH, GOOD))
        assert (found.code, text_under(GOOD, found)) == ("FL907", "import fuselens")
        assert "no torch here" in found.message
    run = client.result(client.send("run", PATH, GOOD, functions=("double",))).run
    assert run.error.code == "FL907"
    (tmp_path / "torch.py").unlink()
    time.sleep(4)  # the person installs it
    assert_works(client)


def test_workspace_file_named_like_the_library(own: Callable[..., Client], tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError\n")
    (tmp_path / "helper_of_mine.py").write_text("X = 1\n")
    client = own(cwd=tmp_path)
    assert client.event().file is None
    assert client.check(PATH, "import helper_of_mine\n" + GOOD).diagnostics == []


def test_preloads_third_party_imports_after_success(own: Callable[..., Client]) -> None:
    client = own()
    client.event()
    source = (
        GOOD + "import sys\nready = 'cattrs' in sys.modules\nimport cattrs\nif ready: raise RuntimeError('preloaded')\n"
    )
    assert client.check(PATH, source).diagnostics == []
    assert "preloaded" in only(client.check(PATH, source)).message


def test_preloads_triton_where_kernels_for_a_gpu_are_compiled(own: Callable[..., Client]) -> None:
    pytest.importorskip("triton")
    client = own()
    client.event()
    function = GOOD.replace("@fuselens.compile\n", '@fuselens.compile(options={"target": "cuda:sm_90"})\n')
    source = f"import sys\nif 'triton' in sys.modules: raise RuntimeError('preloaded')\n{function}"
    assert source != GOOD and client.check(PATH, source).diagnostics == []
    assert "preloaded" in only(client.check(PATH, source)).message


def test_restarts_itself_when_a_preloaded_package_changes(own: Callable[..., Client], tmp_path: Path) -> None:
    environment = {"PYTHONUSERBASE": str(tmp_path)}
    where = Path(site_directory(environment))
    where.mkdir(parents=True)
    package = where / "changing.py"
    package.write_text("X = 1\n")
    client = own(environment=environment | {"PYTHONPATH": os.pathsep.join([str(where), *sys.path])})
    client.event()
    source = GOOD + "import changing\nassert changing.X == 1, changing.X\n"
    assert client.check(PATH, source).diagnostics == []
    assert client.check(PATH, source).diagnostics == []
    package.write_text("X = 22\n")
    assert "AssertionError: 22" in only(client.check(PATH, source)).message
    assert client.process.poll() is None
    assert_works(client)


def site_directory(environment: dict[str, str]) -> str:
    code = "import site; print(site.getusersitepackages())"
    return subprocess.check_output([sys.executable, "-c", code], env=os.environ | environment, text=True).strip()


def test_package_that_fails_to_import_is_denied(tmp_path: Path) -> None:
    preloads = Preloads()
    preloads._pending.add("no_such_package")
    preloads.load()
    assert preloads.denied == {"no_such_package"}
