"""Building, caching and loading: damaged entries, several processes at once, no compiler, refused code."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fuselens
from fuselens.codegen.cpu.vectors.parts import UNIT
from fuselens.config import Config
from fuselens.runtime.build import BuildFailed, NoCompiler, build, find_compiler, host_isa
from fuselens.runtime.cache.store import Cache, key_of

ANSWER = 'extern "C" int answer() { return 42; }'


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(cache_dir=tmp_path / "cache")


def test_second_build_is_a_hit(config: Config) -> None:
    cache = Cache(config.cache_dir)
    first = build(ANSWER, (), config, cache)
    second = build(ANSWER, (), config, cache)
    assert (first.cached, second.cached) == (False, True)
    assert first.path == second.path
    assert second.library.answer() == 42
    assert not list(config.cache_dir.glob(".making-*"))


def test_text_flags_and_compiler_are_part_of_the_key(config: Config) -> None:
    cache = Cache(config.cache_dir)
    paths = {build(ANSWER, (), config, cache).path, build(ANSWER + "\n", (), config, cache).path}
    paths.add(build(ANSWER, ("-DX",), config, cache).path)
    assert len(paths) == 3


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b[:999] + b"?" + b[1000:]])
def test_damaged_library_is_rebuilt_and_recorded(config: Config, damage: Callable[[bytes], bytes]) -> None:
    cache = Cache(config.cache_dir)
    path = build(ANSWER, (), config, cache).path
    damaged = damage(path.read_bytes())
    path.unlink()  # as a crash of the file system would leave it; the loaded library keeps its own file
    path.write_bytes(damaged)
    again = build(ANSWER, (), config, cache)
    assert not again.cached
    assert again.library.answer() == 42
    (record,) = cache.drain()
    assert record.code == "FL405"
    assert str(path) in record.message
    assert cache.drain() == []


def test_refused_code_says_why(config: Config) -> None:
    with pytest.raises(BuildFailed) as caught:
        build("int broken( {", (), config, Cache(config.cache_dir))
    assert "error" in str(caught.value)
    assert "<stdin>:1" in caught.value.stderr
    assert not list(config.cache_dir.rglob("*.so"))


def test_a_compiler_that_hangs_is_ended_and_the_graph_runs_eagerly(config: Config, tmp_path: Path) -> None:
    script = tmp_path / "slow-g++"
    script.write_text('#!/bin/sh\ncase "$*" in *-shared*) exec sleep 1000;; esac\nexec g++ "$@"\n')
    script.chmod(0o755)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    x = torch.randn(8)
    options = {"cxx": str(script), "build_limit": 0.2, "cache_dir": config.cache_dir}
    report = fuselens.explain(fuselens.compile(f, options=options))(x)
    (found,) = report.diagnostics
    assert found.code == "FL402"
    assert "took longer than 0.2 s (option build_limit)" in found.explanation
    assert found.span is not None
    assert found.span.file == __file__
    assert torch.equal(fuselens.compile(f, options=options)(x), f(x))
    with pytest.raises(ValueError, match="build_limit is 0"):
        fuselens.compile(f, options={"build_limit": 0})


def test_missing_compiler_names_what_was_tried(config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoCompiler, match=r"looked for g\+\+, clang\+\+, the package ziglang"):
        build(ANSWER, (), config, Cache(config.cache_dir))


@pytest.mark.parametrize("cxx", ["no-such-compiler", "/no/such/path with spaces", "false", "g++ 'unclosed", " "])
def test_a_named_compiler_is_the_only_one_tried(config: Config, cxx: str) -> None:
    with pytest.raises(NoCompiler, match=re.escape(cxx)):
        find_compiler(Config(cache_dir=config.cache_dir, cxx=cxx))


@pytest.mark.parametrize("folder", ["bin", "a folder with spaces"])
@pytest.mark.parametrize("arguments", ["", " -DANSWER=42 -Wall"])
def test_compiler_of_the_configuration_is_used(config: Config, tmp_path: Path, folder: str, arguments: str) -> None:
    wrapper = tmp_path / folder / "my-g++"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    command = f"'{wrapper}'{arguments}" if arguments else str(wrapper)
    chosen = Config(cache_dir=config.cache_dir, cxx=command)
    assert build(ANSWER, (), chosen, Cache(config.cache_dir)).library.answer() == 42
    calls = (tmp_path / "calls").read_text()
    assert f"{arguments} -x c++ -std=c++17".strip() in calls
    assert "-ffp-contract=off" in calls


def test_arguments_of_a_compiler_are_part_of_the_key(config: Config) -> None:
    text = 'extern "C" int answer() { return ANSWER; }'
    for answer in (1, 2):
        chosen = Config(cache_dir=config.cache_dir, cxx=f"g++ -DANSWER={answer}")
        assert build(text, (), chosen, Cache(config.cache_dir)).library.answer() == answer


def other_compilers() -> list[str]:
    """Those that are here beside g++; FUSELENS_TEST_CXX names one more."""
    named = [os.environ["FUSELENS_TEST_CXX"]] if "FUSELENS_TEST_CXX" in os.environ else []
    wheel = [f"{sys.executable} -m ziglang c++ -mcpu=baseline"] if importlib.util.find_spec("ziglang") else []
    return [*named, *wheel, *(c for c in ("g++-11", "g++-13", "g++-14", "clang++") if shutil.which(c))]


@pytest.mark.parametrize("cxx", other_compilers())
def test_threads_under_other_compilers_are_torchs(config: Config, cxx: str) -> None:
    import torch

    text = f"""{UNIT["omp"].text}
{UNIT["parallel"].text}
extern "C" int count() {{
  int n = 0;
  auto work = [&](long thread, long threads) {{ if (thread == 0) n = threads; }};
  parallel(work);
  return n;
}}"""
    chosen = Config(cache_dir=config.cache_dir, cxx=cxx)
    library = build(text, (), chosen, Cache(config.cache_dir)).library
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert library.count() == threads
    finally:
        torch.set_num_threads(before)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert (
            len({l.split()[-1] for l in maps.read_text().splitlines() if re.search(r"/lib(gomp|omp|iomp5)\b", l)}) == 1
        )


def test_the_compiler_of_the_wheel_is_the_last_resort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = Config(cache_dir=tmp_path / "cache")
    assert find_compiler(chosen).family == "zig"
    assert build(ANSWER, (), chosen, Cache(chosen.cache_dir)).library.answer() == 42


def test_cache_directory_is_private(config: Config) -> None:
    build(ANSWER, (), config, Cache(config.cache_dir))
    assert stat.S_IMODE(os.stat(config.cache_dir).st_mode) == 0o700


def test_openmp_is_torchs_own(config: Config) -> None:
    """One OpenMP runtime in the process: what torch.set_num_threads sets holds in generated code."""
    import torch

    text = 'extern "C" int omp_get_max_threads(); extern "C" int count() { return omp_get_max_threads(); }'
    library = build(text, (), config, Cache(config.cache_dir)).library
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert library.count() == threads
    finally:
        torch.set_num_threads(before)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert len({l.split()[-1] for l in maps.read_text().splitlines() if "libgomp" in l}) == 1


def test_processes_building_the_same_thing(config: Config) -> None:
    script = f"""
from pathlib import Path
from fuselens.config import Config
from fuselens.runtime.build import build
from fuselens.runtime.cache.store import Cache
config = Config(cache_dir=Path({str(config.cache_dir)!r}))
for k in range(3):
    text = 'extern "C" int answer() {{ return %d; }}' % k
    assert build(text, (), config, Cache(config.cache_dir)).library.answer() == k
"""
    running = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    assert len(list(config.cache_dir.rglob("*.so"))) == 3


def test_entries_carry_a_checksum(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    assert cache.get("graphs", "ab12") is None
    path = cache.put("graphs", "ab12", b"content")
    assert cache.get("graphs", "ab12") == b"content"
    path.write_bytes(path.read_bytes().replace(b"content", b"c0ntent"))
    assert cache.get("graphs", "ab12") is None
    assert [d.code for d in cache.drain()] == ["FL405"]
    assert not path.exists()
    path.write_bytes(b"")
    assert cache.get("graphs", "ab12") is None


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    with cache.scratch() as used, cache.scratch() as abandoned:
        (abandoned / "half.so").write_bytes(b"")
        os.utime(abandoned, (0, 0))
        cache.put("a", "k", b"1")
        assert used.exists()
        assert not abandoned.exists()
    assert cache.get("a", "k") == b"1"


def test_keys_depend_on_every_part() -> None:
    keys = {key_of({"a": 1}), key_of({"a": 2}), key_of({"b": 1}), key_of({"a": 1, "b": 1})}
    assert len(keys) == 4
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})


def test_isa_of_the_configuration_wins() -> None:
    assert host_isa(Config(cpu_isa="scalar")) == "scalar"
    assert host_isa(Config()) in ("scalar", "sse2", "avx2", "avx512", "neon")


def test_library_stays_usable_when_the_cache_is_gone(config: Config) -> None:
    cache = Cache(config.cache_dir)
    library = build(ANSWER, (), config, cache).library
    shutil.rmtree(config.cache_dir)
    answer = library.answer
    answer.restype = ctypes.c_int
    assert answer() == 42
