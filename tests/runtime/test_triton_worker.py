"""Kernels compiled for a GPU in the background, and the cache of what was made."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuselens.config import from_environment
from fuselens.ir.contracts.source import KernelInfo, Source
from fuselens.runtime.cache.store import Cache
from fuselens.runtime.gpu import triton_worker
from fuselens.runtime.gpu.triton_jobs import Job, Module

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
TEXT = '''\
"""Kernels of a graph."""

import triton
import triton.language as tl

@triton.jit
def helper(v):
    return v + 1


@triton.jit
def first(a, b, n, XBLOCK: tl.constexpr = 64):
    """add"""  # model.py:3
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(b + x, helper(tl.load(a + x, x < n)), x < n)  # model.py:4


@triton.jit(debug=True)
def second(a, XBLOCK: tl.constexpr = 64):
    tl.store(a, tl.load(a) + 1)


@triton.jit
def broken(a, XBLOCK: tl.constexpr = 64):
    tl.store(a, tl.no_such_thing(a))
'''


def info(name: str, arguments: tuple[str, ...], sizes: tuple[str, ...] = ()) -> KernelInfo:
    signature = {**dict.fromkeys(arguments, "*fp32"), **dict.fromkeys(sizes, "i64")}
    launch = {"signature": signature, "blocks": {"XBLOCK": 64}, "options": {"num_warps": 2}, "device": "cuda"}
    return KernelInfo(name, "pointwise", arguments, arguments[-1:], sizes, launch=launch)


FIRST, SECOND, BROKEN = info("first", ("a", "b"), ("n",)), info("second", ("a",)), info("broken", ("a",))


def module(cache: Cache, text: str = TEXT, variables: tuple[str, ...] = (), limit: float = 300) -> Module:
    return Module(Source("triton", text, kernels=(FIRST, SECOND, BROKEN)), variables, limit)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    triton_worker._worker.cache_clear()
    yield Cache(tmp_path / "cache")
    if triton_worker._worker.cache_info().currsize:
        triton_worker._worker().close()
    triton_worker._worker.cache_clear()


def keys(cache: Cache, text: str = TEXT, variables: tuple[str, ...] = ()) -> tuple[str, str]:
    made = module(cache, text, variables)
    return made.job(FIRST, 3, 90).key, made.job(SECOND, 3, 90).key


def test_a_key_covers_what_triton_reads(cache: Cache) -> None:
    first, second = keys(cache)
    assert first != second
    assert keys(cache, TEXT.replace("model.py:3", "model.py:5; other.py:7")) == (first, second)
    assert keys(cache, TEXT.replace("  # model.py:4", "").replace("\n\n@triton", "\n\n# also third\n@triton")) == (
        first,
        second,
    )
    assert keys(cache, TEXT.replace("tl.load(a) + 1", "tl.load(a) + 2"))[0] == first
    assert keys(cache, TEXT.replace("tl.load(a) + 1", "tl.load(a) + 2"))[1] != second
    assert keys(cache, TEXT.replace("(debug=True)", ""))[1] != second
    other = keys(cache, variables=("DISABLE_PTXAS_OPT=1",))
    assert first != other[0]
    assert second != other[1]
    made = module(cache)
    warps = dataclasses.replace(FIRST, launch={**FIRST.launch, "options": {"num_warps": 4}})
    blocks = dataclasses.replace(FIRST, launch={**FIRST.launch, "blocks": {"XBLOCK": 128}})
    jobs = [(FIRST, 3, 80), (FIRST, 1, 90), (FIRST, 2, 90), (FIRST, 7, 90), (warps, 3, 90), (blocks, 3, 90)]
    assert len({first, *(made.job(*job).key for job in jobs)}) == 1 + len(jobs)


def test_a_key_covers_the_helpers_that_a_kernel_names(cache: Cache) -> None:
    first, second = keys(cache)
    assert keys(cache, TEXT.replace("v + 1", "v + 2"))[0] != first
    assert keys(cache, TEXT.replace("v + 1", "v + 2"))[1] == second, "it is as it was in a module with another helper"
    through = TEXT.replace(
        "@triton.jit\ndef helper", "@triton.jit\ndef inner(v):\n    return v + 3\n\n\n@triton.jit\ndef helper"
    )
    assert keys(cache, through) == (first, second)
    through = through.replace("v + 1", "tl.reduce(v, 0, inner)")
    assert keys(cache, through)[0] != keys(cache, through.replace("v + 3", "v + 4"))[0], "a helper's helper"
    assert keys(cache, through)[1] == second
    imported = TEXT.replace("import triton\n", "import triton\nfrom triton.language.extra import libdevice\n")
    assert keys(cache, imported) == (first, second)
    called = imported.replace("tl.load(a) + 1", "libdevice.tanh(tl.load(a)) + 1")
    assert keys(cache, called)[0] == first
    assert keys(cache, called)[1] != keys(cache, called.replace("extra import", "other import"))[1]


def test_text_in_quotes_is_no_comment(cache: Cache) -> None:
    texts = [TEXT.replace("tl.load(a) + 1", f'tl.load(a, "x # {k}")') for k in range(2)]
    assert keys(cache, texts[0])[1] != keys(cache, texts[1])[1]


def test_variables_of_the_environment() -> None:
    given = {"TRITON_PTXAS_PATH": "/x", "TRITON_CACHE_DIR": "/y", "PTXAS_OPTIONS": "-v", "HOME": "/z"}
    assert from_environment(given).triton_variables == ("PTXAS_OPTIONS=-v", "TRITON_PTXAS_PATH=/x")


def test_a_job(cache: Cache) -> None:
    job = module(cache).job(FIRST, 3, 90)
    assert job.signature["n"] == "i32"
    assert module(cache).job(FIRST, 1, 90).signature["n"] == "i64"
    assert [module(cache).job(FIRST, v, 90).divisible for v in (1, 2, 7)] == [(0, 1), (), (0, 1, 2)]


def test_kernels_are_compiled_in_the_background(cache: Cache, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    made = module(cache)
    first, second, broken = (made.job(i, 3, 90) for i in (FIRST, SECOND, BROKEN))
    triton_worker.submit([first, broken], cache)
    triton_worker.submit([second, first], cache)
    found = triton_worker.binary(second, cache)
    assert (found.name, found.threads, found.shared) == ("second", 64, 0)
    assert found.image.startswith(b"\x7fELF")
    assert triton_worker.binary(first, cache).name == "first"
    with pytest.raises(Exception, match="no_such_thing"):
        triton_worker.binary(broken, cache)
    assert not broken.is_made(cache)
    monkeypatch.setattr(Job, "make", None)
    assert first.binary(cache) == triton_worker.binary(first, cache)


def test_an_environment_that_changed(cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    made = module(cache)
    usual = triton_worker.binary(made.job(SECOND, 3, 90), cache)
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    other = module(cache, variables=("DISABLE_PTXAS_OPT=1",))
    assert triton_worker.binary(other.job(SECOND, 3, 90), cache).image != usual.image
    assert triton_worker.binary(other.job(FIRST, 3, 90), cache).name == "first"


def test_a_worker_that_ended_is_replaced(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(cache)
    triton_worker.start()
    triton_worker._worker()._process.kill()
    monkeypatch.setattr(Job, "make", None)
    job = made.job(SECOND, 3, 90)
    triton_worker.submit([job], cache)
    assert triton_worker.binary(job, cache) == job.binary(cache)


def test_without_a_worker(cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    made = module(cache)
    monkeypatch.setattr(triton_worker.sys, "executable", str(tmp_path / "none"))
    job = made.job(SECOND, 3, 90)
    triton_worker.submit([job], cache)
    assert triton_worker.binary(job, cache) == job.binary(cache)


def test_a_damaged_binary_is_made_again(cache: Cache) -> None:
    made = module(cache)
    job = made.job(SECOND, 3, 90)
    for other in (b"half a line", b'{"name": "second", "warps": 2}\nimage'):  # whole, and of another version
        cache.put("cubin", job.key, other)
        assert job.binary(cache) is None
    path = cache.put("cubin", job.key, b"half a line")
    path.write_bytes(b"half")
    assert job.is_made(cache)
    assert job.binary(cache) is None
    assert triton_worker.binary(job, cache).name == "second"


def assembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str) -> Path:
    """Puts a script before Triton's assemblers that runs ``line`` once the file that is returned exists."""
    import triton

    flag = tmp_path / "flag"
    for name in ("ptxas", "ptxas-blackwell"):  # from Triton 3.9 on the second one is for sm_90, too
        real, script = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name, tmp_path / name
        script.write_text(f'#!/bin/sh\n[ -e {flag} ] && {line}\nexec {real} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv(f"TRITON_{name.upper().replace('-', '_')}_PATH", str(script))
    return flag


def test_a_compiler_that_dies_does_not_take_the_program_along(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deadly = assembler(monkeypatch, tmp_path, "kill -SEGV $PPID")
    made = module(cache)
    first, second = (made.job(i, 3, 90) for i in (FIRST, SECOND))
    assert triton_worker.binary(second, cache).name == "second"
    deadly.touch()
    monkeypatch.setattr(Job, "make", None)
    with pytest.raises(RuntimeError, match="Triton's compiler died: Segmentation fault"):
        triton_worker.binary(first, cache)


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def runs(number: int) -> bool:
    """Whether a process has not ended, whoever is to wait for it."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("ended", ["by its limit", "with the worker", "with the program"])
def test_a_compiler_that_hangs_is_ended_with_what_it_started(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: str
) -> None:
    number = tmp_path / "number"
    stuck = assembler(monkeypatch, tmp_path, f"echo $$ > {number}.new && mv {number}.new {number} && exec sleep 1000")
    made = module(cache, limit=2 if ended == "by its limit" else 300)
    first, second = (made.job(i, 3, 90) for i in (FIRST, SECOND))
    assert triton_worker.binary(second, cache).name == "second"
    stuck.touch()
    monkeypatch.setattr(Job, "make", None)
    if ended == "by its limit":
        for _ in range(2):  # the second time nothing is waited for
            with pytest.raises(RuntimeError, match="Triton's compiler took longer than 2 s .option build_limit."):
                triton_worker.binary(first, cache)
    else:
        triton_worker.submit([first], cache)
        wait_for(number.exists)
        if ended == "with the program":  # whose pipes end
            triton_worker._worker()._requests.close()
        else:
            triton_worker._worker().close()
    wait_for(lambda: not runs(int(number.read_text())))
    stuck.unlink()
    assert triton_worker.binary(made.job(FIRST, 7, 90), cache).name == "first"


def test_a_forked_process_has_a_worker_of_its_own(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(cache)
    first, second = (made.job(i, 3, 90) for i in (FIRST, SECOND))
    triton_worker.binary(first, cache)
    monkeypatch.setattr(Job, "make", None)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            made_there = triton_worker.binary(second, cache)
            triton_worker._worker().close()
            os._exit(0 if made_there.name == "second" else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert second.is_made(cache)
    assert triton_worker.binary(made.job(FIRST, 7, 90), cache).name == "first"


def test_the_worker_imports_nothing_from_where_it_was_started(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "collections").mkdir()
    (tmp_path / "collections" / "__init__.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    made = module(cache)
    job = made.job(SECOND, 3, 90)
    monkeypatch.setattr(Job, "make", None)
    assert triton_worker.binary(job, cache).name == "second"


def test_the_worker_imports_no_more_of_the_compiler_than_it_needs() -> None:
    code = "import sys, fuselens.runtime.gpu.triton_worker; print(*(m for m in sys.modules if m.startswith(('fuselens.', 'torch'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    runtime = {
        f"runtime{m}"
        for m in ("", ".cache", ".cache.store", ".cache.place", ".gpu", ".gpu.triton_jobs", ".gpu.triton_worker")
    }
    # the package itself watches for other libraries' imports
    system = {f"system{m}" for m in ("", ".generated_modules", ".ownership", ".other_libraries")}
    assert set(done.stdout.split()) == {f"fuselens.{m}" for m in ("config", *runtime, *system)}


def test_an_interrupt_from_the_keyboard_spares_the_worker(cache: Cache) -> None:
    triton_worker.start()
    worker = triton_worker._worker()._process.pid
    assert os.getpgid(worker) == worker != os.getpgid(0)


def test_a_kernel_that_takes_what_it_is_not_given_is_refused(cache: Cache) -> None:
    """It would write through an address that is 0."""
    described = TEXT.replace(
        "tl.store(a, tl.load(a) + 1)",
        "tl.make_tensor_descriptor(a, [64], [1], [64]).store([0], tl.zeros([64], tl.float32))",
    )
    job = module(cache, described).job(SECOND, 3, 90)
    with pytest.raises(RuntimeError, match="wants memory"):
        job.make(cache)
    dataclasses.replace(job, scratch=True).make(cache)
