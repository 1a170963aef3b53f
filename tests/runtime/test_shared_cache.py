"""A cache that machines share, and artifacts that go from one to another: what is believed, and what is not."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fuselens
from fuselens import config
from fuselens.runtime.cache import artifacts
from fuselens.runtime.cache import place as cache_place
from fuselens.runtime.cache.contents import contents
from fuselens.runtime.cache.remote import Remote, Store
from fuselens.runtime.cache.store import Cache

KEY = "ab" + 38 * "0"
NAME = f"graph/ab/{KEY}.forward"
PROGRAM = """
import sys, torch, fuselens
x = torch.ones(5, 7, requires_grad=True)
f = fuselens.compile(lambda x: (x.exp() @ x.t()).softmax(0))
f(x).sum().backward()
print(x.grad.sum().item())
"""


class Memory:
    """Bytes by name; may refuse."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.broken = False
        self.asked = 0

    def get(self, name: str) -> bytes | None:
        self.asked += 1
        if self.broken:
            raise ConnectionError("nobody answers")
        return self.kept.get(name)

    def put(self, name: str, data: bytes) -> None:
        self.get(name)
        self.kept[name] = data


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache_place, "_places", {})
    yield
    fuselens.reset()


def machine(folder: Path, memory: Store, secret: str = "") -> Cache:
    """The cache of a machine that shares ``memory``."""
    cache = Cache(folder)
    cache.place.remote = Remote("memory://", secret, lambda url: memory)
    return cache


def given(cache: Cache) -> None:
    assert cache.place.remote is not None
    cache.place.remote.finish()


@pytest.mark.parametrize("secret", ["", "a word"])
def test_what_one_machine_makes_another_finds(tmp_path: Path, memory: Memory, secret: str) -> None:
    one, other = machine(tmp_path / "one", memory, secret), machine(tmp_path / "other", memory, secret)
    assert other.get("graph", KEY, ".forward") is None
    one.put("graph", KEY, b"content", ".forward")
    one.put("measured", KEY, b"{}", ".json")
    given(one)
    assert list(memory.kept) == [NAME]
    assert other.exists("graph", KEY, ".forward")
    assert other.get("graph", KEY, ".forward") == b"content"
    memory.kept.clear()
    assert other.get("graph", KEY, ".forward") == b"content", "it is here now"
    asked = memory.asked
    assert other.get("measured", KEY, ".json") is None and memory.asked == asked


def bit(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("secret", ["", "a word"])
def test_what_is_damaged_is_a_miss(tmp_path: Path, memory: Memory, secret: str) -> None:
    one = machine(tmp_path / "one", memory, secret)
    one.put("graph", KEY, b"content of some length", ".forward")
    given(one)
    whole = memory.kept[NAME]
    for number in range(len(whole)):
        memory.kept[NAME] = bit(whole, number)
        assert machine(tmp_path / f"flipped{number}", memory, secret).get("graph", KEY, ".forward") is None
        memory.kept[NAME] = whole[:number]
        assert machine(tmp_path / f"cut{number}", memory, secret).get("graph", KEY, ".forward") is None


def test_what_nobody_signed_is_not_believed(tmp_path: Path, memory: Memory) -> None:
    sealed = Cache.sealed(b"code")
    other = machine(tmp_path / "other", memory, "a word")
    memory.kept[NAME] = sealed
    assert other.get("graph", KEY, ".forward") is None
    for word, name in (("another", NAME), ("a word", NAME.replace("ab", "cd"))):
        memory.kept[NAME] = Remote("", word, lambda url: memory)._signed(name, sealed) + b"\n" + sealed
        assert other.get("graph", KEY, ".forward") is None, "of another word, or another entry"
    memory.kept[NAME] = Remote("", "a word", lambda url: memory)._signed(NAME, sealed) + b"\n" + sealed
    assert other.get("graph", KEY, ".forward") == b"code"


def test_one_that_does_not_answer_is_one_finding(tmp_path: Path, memory: Memory) -> None:
    memory.broken = True
    cache = machine(tmp_path / "cache", memory)
    for _ in range(3):
        assert cache.get("graph", KEY, ".forward") is None
    cache.put("graph", KEY, b"content", ".forward")
    assert [d.code for d in cache.drain()] == ["FL926"] and cache.drain() == []
    assert memory.asked == 1
    assert cache.get("graph", KEY, ".forward") == b"content"


def test_the_end_of_a_process_does_not_wait_for_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuselens.runtime.cache import remote

    monkeypatch.setattr(remote, "_EXIT_SECONDS", 0.2)
    release = threading.Event()

    class Hangs(Memory):
        def put(self, name: str, data: bytes) -> None:
            release.wait(60)

    cache = machine(tmp_path / "cache", Hangs())
    for number in range(400):
        cache.put("graph", f"{number:040x}", b"content", ".forward")
    given(cache)
    release.set()


# --- programs -------------------------------------------------------------------------------------------------------


def ran(tmp_path: Path, cache: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    own = {k: v for k, v in os.environ.items() if not k.startswith("FUSELENS_")}
    given = {"FUSELENS_CACHE_DIR": str(tmp_path / cache), "FUSELENS_LOGS": "cache", **variables}
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], env=own | given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_machines_that_share_a_folder(tmp_path: Path) -> None:
    shared = {"FUSELENS_REMOTE_CACHE": f"file://{tmp_path}/shared", "FUSELENS_REMOTE_CACHE_SECRET": "a word"}
    first = ran(tmp_path, "one", **shared)
    assert "not found" in first.stderr and any((tmp_path / "shared" / "cpp").rglob("*.so"))
    second = ran(tmp_path, "two", **shared)
    assert "not found" not in second.stderr and "graph found" in second.stderr
    assert second.stdout == first.stdout
    for path in (tmp_path / "shared").rglob("*.*"):
        if path.is_file():
            path.write_bytes(bit(path.read_bytes(), 100))
    third = ran(tmp_path, "three", **shared)
    assert " found" not in third.stderr.replace("not found", "") and third.stdout == first.stdout


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("there is no redis-server (Debian: apt-get install redis-server)")
    place = tempfile.mkdtemp(prefix="redis-")  # a socket's path must be short
    command = [program, "--port", "0", "--unixsocket", f"{place}/socket", "--save", "", "--dir", place]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        while not os.path.exists(f"{place}/socket"):
            assert server.poll() is None
            time.sleep(0.01)
        yield f"unix://{place}/socket"
        server.terminate()
    shutil.rmtree(place)


def test_machines_that_share_a_server_of_redis(tmp_path: Path, redis_url: str) -> None:
    shared = {"FUSELENS_REMOTE_CACHE": redis_url, "FUSELENS_REMOTE_CACHE_SECRET": "a word"}
    first, second = ran(tmp_path, "one", **shared), ran(tmp_path, "two", **shared)
    assert "not found" in first.stderr and "graph found" in second.stderr and "not found" not in second.stderr
    assert second.stdout == first.stdout
    other = ran(tmp_path, "three", **{**shared, "FUSELENS_REMOTE_CACHE_SECRET": "another"})
    assert "graph found" not in other.stderr and other.stdout == first.stdout


def test_an_address_that_is_wrong_is_one_finding(tmp_path: Path) -> None:
    done = ran(tmp_path, "cache", FUSELENS_REMOTE_CACHE="no-such-protocol://bucket", FUSELENS_LOGS="")
    assert done.stderr.count("FL926") == 1 and "no-such-protocol" in done.stderr


def test_a_check_opens_no_connection(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(
        "import fuselens, torch\n@fuselens.compile\ndef f(x=torch.ones(3)):\n    return x + 1\n"
    )
    environment = os.environ | {
        "FUSELENS_REMOTE_CACHE": "redis://127.0.0.1:1/0",
        "FUSELENS_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run([sys.executable, "-P", "-m", "fuselens.cli", "check", tmp_path / "f.py"], env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0 and "FL926" not in done.stdout + done.stderr


# --- artifacts ------------------------------------------------------------------------------------------------------


def trained() -> torch.Tensor:
    fuselens.reset()
    x = torch.ones(5, 7, requires_grad=True)
    fuselens.compile(lambda x: (x.exp() @ x.t()).softmax(0))(x).sum().backward()
    assert x.grad is not None
    return x.grad


def test_artifacts_make_another_machine_warm(tmp_path: Path) -> None:
    with config.patch(cache_dir=tmp_path / "one"):
        assert fuselens.save_cache_artifacts() is None
        expected = trained()
        saved = fuselens.save_cache_artifacts()
    assert saved is not None
    data, info = saved
    assert info.entries.keys() >= {"graph", "cpp", "results", "keys"} and info.bytes > 0 and not info.rejected
    with config.patch(cache_dir=tmp_path / "two"):
        assert fuselens.load_cache_artifacts(data) == info
        before = contents(tmp_path / "two").entries.keys()
        assert torch.equal(trained(), expected)
        assert contents(tmp_path / "two").entries.keys() == before, "nothing was made"


def changed(data: bytes, name: str, content: bytes) -> bytes:
    """The archive with one member more."""
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(name, content)
    return out.getvalue()


def test_what_is_no_entry_is_left_out(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "one")
    cache.put("graph", KEY, b"content", ".forward")
    saved = artifacts.save(cache)
    assert saved is not None
    sealed = Cache.sealed(b"x")
    names = ["../../etc/passwd", f"graph/../{KEY}.forward", f"graph/cd/{KEY}.forward", f"graph/ab/{KEY}.so", "graph/ab/x.forward",
             f"/graph/ab/{KEY}.forward", f"live/ab/{KEY}", f"inputs/ab/{KEY}.json", "a"]  # fmt: skip
    data = saved[0]
    for name in names:
        data = changed(data, name, sealed)
    data = changed(data, f"cpp/ab/{KEY}.so", sealed[:-1] + b"?")
    info = artifacts.load(Cache(tmp_path / "two"), data)
    assert info.entries == {"graph": 1} and info.rejected == len(names) + 1
    assert sorted(p.name for p in (tmp_path / "two").rglob("*") if p.is_file()) == ["CACHEDIR.TAG", f"{KEY}.forward"]


def _archive(about: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("fuselens.json", about)
    return out.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04nonsense", _archive("{"), _archive("[]"), _archive(json.dumps({"schema": -1}))]
)
def test_bytes_that_are_no_artifacts(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match="artifacts"):
        artifacts.load(Cache(tmp_path / "cache"), data)


VERSIONED = """
import sys, torch
torch.__version__ = sys.argv[1]
import fuselens
f = fuselens.compile(lambda x: (x.exp() @ x.t()).softmax(0))
x = torch.arange(35.0).reshape(5, 7).div(100).requires_grad_()
f(x).square().sum().backward()
print(f"{x.grad.abs().sum().item():.4f}")
print([graph.cache for graph in f.__fuselens__.recorder.report.graphs])
"""


def test_two_versions_of_torch_share_a_cache(tmp_path: Path) -> None:
    """Neither believes what the other has made, and each says why; a program that comes back finds its own."""

    def ran(version: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", VERSIONED, version], capture_output=True, text=True, check=True,
            env=os.environ | {"FUSELENS_CACHE_DIR": str(tmp_path / "cache"), "FUSELENS_STRICT": "0"},
        )  # fmt: skip
        first, second = done.stdout.splitlines()
        return first, second

    here = str(torch.__version__)
    value, told = ran(here)
    assert told == "['it was not compiled before']"
    other, told = ran("2.99.0")
    assert other == value and told == f"['torch {here} made what is there, and this is 2.99.0']"
    assert ran(here) == (value, "['found']") and ran("2.99.0") == (value, "['found']")
