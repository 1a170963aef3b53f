"""Whose a cache is, and what serves where it is somebody else's, full, or cannot be written."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuselens.config import Config, from_environment
from fuselens.runtime import build as building
from fuselens.runtime.build import build
from fuselens.runtime.cache import place as cache_place
from fuselens.runtime.cache.store import Cache
from fuselens.system import ownership

ANSWER = 'extern "C" int answer() { return 42; }'
OTHER = 65534  # a user who is not this one, nor root
KEY = "ab" + 38 * "0"
root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes another user's files"
)
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no user ids")
private_group = hasattr(os, "geteuid") and ownership._is_own_group(os.getgid())


@pytest.fixture(autouse=True)
def _places_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(cache_place, "_places", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every user may enter."""
    made = Path(tempfile.mkdtemp(prefix="fuselens-common-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def reason(cache: Cache) -> str:
    (found,) = [d for d in cache.drain() if d.code == "FL916"]
    assert found.message.startswith(f"{cache.place._wanted} cannot be the cache: ")
    return found.message.partition(": ")[2]


def planted(place: Path, kind: str = "graph", content: bytes = b"planted", suffix: str = ".forward") -> Path:
    """An entry with the checksum that anybody can compute, as a cache of this user's would have it."""
    maker = Cache(place)
    path = maker.put(kind, KEY, content, suffix)
    assert maker.get(kind, KEY, suffix) == content
    cache_place._places.clear()
    return path


def owned(path: Path, user: int = OTHER) -> None:
    for found in (path, *path.rglob("*")):
        os.chown(found, user, user, follow_symlinks=False)


def snapshot(path: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (s.st_mtime_ns, s.st_uid) for p in (path, *path.rglob("*")) for s in [p.lstat()]}


# --- whose it is ------------------------------------------------------------------------------------------------------


@root
def test_another_users_cache_is_neither_read_nor_written(tmp_path: Path) -> None:
    planted(tmp_path / "cache")
    owned(tmp_path / "cache")
    before = snapshot(tmp_path)
    cache = Cache(tmp_path / "cache")
    assert cache.get("graph", KEY, ".forward") is None
    assert not cache.exists("graph", KEY, ".forward")
    cache.put("graph", KEY, b"mine", ".forward")
    assert cache.get("graph", KEY, ".forward") == b"mine"
    assert "is owned by user nobody" in reason(cache)
    assert snapshot(tmp_path) == before


@posix
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_cache_that_others_may_write_is_not_used(tmp_path: Path, mode: int) -> None:
    if private_group and not mode & stat.S_IWOTH:
        pytest.skip("the group is this user's own")
    planted(tmp_path / "cache")
    (tmp_path / "cache").chmod(mode)
    cache = Cache(tmp_path / "cache")
    assert cache.get("graph", KEY, ".forward") is None
    assert f"may write to {tmp_path / 'cache'} (mode {mode:o})" in reason(cache)


@posix
@pytest.mark.parametrize("folder", ["", "kind", "prefix"])
@pytest.mark.parametrize("fault", ["open", "foreign"])
def test_folders_above_and_within_count_too(tmp_path: Path, folder: str, fault: str) -> None:
    entry = planted(tmp_path / "above" / "cache")
    at = {"": tmp_path / "above", "kind": entry.parent.parent, "prefix": entry.parent}[folder]
    if fault == "open":
        at.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(at, OTHER, OTHER)
    else:
        pytest.skip("only root makes another user's files")
    cache = Cache(tmp_path / "above" / "cache")
    assert cache.get("graph", KEY, ".forward") is None
    assert str(at) in reason(cache)
    cache.put("graph", KEY, b"mine", ".forward")
    assert cache.get("graph", KEY, ".forward") == b"mine"
    assert entry.read_bytes().startswith(b"planted")


@posix
def test_a_private_folder_below_a_sticky_one_is_fine(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    cache = Cache(tmp_path / "cache")
    assert cache.put("graph", KEY, b"mine", ".forward").is_relative_to(tmp_path)
    assert cache.drain() == []


@root
def test_a_folder_that_another_user_makes_first_is_not_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")  # which does not exist yet
    (tmp_path / "cache").mkdir()
    owned(tmp_path / "cache")
    cache.put("graph", KEY, b"mine", ".forward")
    assert "is owned by user nobody" in reason(cache)
    assert list((tmp_path / "cache").iterdir()) == []


@posix
def test_links_count_like_folders(tmp_path: Path) -> None:
    place, link = tmp_path / "scratch" / "cache", tmp_path / "cache"
    planted(place)
    link.symlink_to(os.path.relpath(place, tmp_path))
    cache = Cache(link)
    assert cache.get("graph", KEY, ".forward") == b"planted"
    assert cache.drain() == []
    (tmp_path / "scratch").chmod(0o777)  # on the way, though not in the name
    cache_place._places.clear()
    assert f"may write to {tmp_path / 'scratch'}" in reason(Cache(link))
    (tmp_path / "scratch").chmod(0o700)
    link.unlink()
    link.symlink_to(link)
    cache_place._places.clear()
    assert "symbolic links" in reason(Cache(link))


@root
def test_another_users_link_is_not_followed(tmp_path: Path) -> None:
    planted(tmp_path / "scratch")
    (tmp_path / "cache").symlink_to(tmp_path / "scratch")
    os.chown(tmp_path / "cache", OTHER, OTHER, follow_symlinks=False)
    cache = Cache(tmp_path / "cache")
    assert cache.get("graph", KEY, ".forward") is None
    assert f"the link {tmp_path / 'cache'} is owned by user nobody" in reason(cache)


@posix
@pytest.mark.parametrize("fault", ["foreign", "open", "link", "pipe"])
def test_an_entry_that_is_not_ours_alone_is_a_miss(tmp_path: Path, fault: str) -> None:
    entry = planted(tmp_path / "cache")
    if fault == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root makes another user's files")
        os.chown(entry, OTHER, OTHER)
    elif fault == "open":
        entry.chmod(0o666)
    elif fault == "link":
        entry.rename(tmp_path / "elsewhere")
        entry.symlink_to(tmp_path / "elsewhere")
    else:
        entry.unlink()
        os.mkfifo(entry)  # nobody waits for a writer
    cache = Cache(tmp_path / "cache")
    assert cache.get("graph", KEY, ".forward") is None
    (found,) = cache.drain()
    assert found.code == "FL405"
    assert str(entry) in found.message
    assert not os.path.lexists(entry)


@posix
def test_what_is_made_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        config = Config(cache_dir=tmp_path / "new" / "cache")
        build(ANSWER, (), config, Cache(config.cache_dir))
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert {stat.S_IMODE(p.lstat().st_mode) for p in made if p.is_dir()} == {0o700}
    assert {stat.S_IMODE(p.lstat().st_mode) for p in made if p.is_file()} == {0o600}


# --- what was compared is what is loaded ------------------------------------------------------------------------------


def library(path: Path, answer: int) -> Path:
    text = ANSWER.replace("42", str(answer))
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)], input=text, text=True, check=True)
    return path


@pytest.mark.parametrize("descriptors", [True, False])
def test_a_library_that_is_swapped_before_it_is_loaded_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, descriptors: bool
) -> None:
    config = Config(cache_dir=tmp_path / "cache")
    if not descriptors and hasattr(building, "_DESCRIPTORS"):
        monkeypatch.setattr(building, "_DESCRIPTORS", str(tmp_path / "no proc"))
    pytest.importorskip("torch")  # whose OpenMP is part of the key
    code = f"""
        import torch
        from pathlib import Path
        from fuselens.config import Config
        from fuselens.runtime.build import build
        from fuselens.runtime.cache.store import Cache
        build({ANSWER!r}, (), Config(cache_dir=Path({str(config.cache_dir)!r})), Cache(Path({str(config.cache_dir)!r})))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    (entry,) = config.cache_dir.rglob("*.so")
    evil, load = library(tmp_path / "evil.so", 666), ctypes.CDLL

    def swapped(*args: object, **kwargs: object) -> ctypes.CDLL:
        shutil.copy(evil, tmp_path / "copy.so")
        os.replace(tmp_path / "copy.so", entry)
        return load(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ctypes, "CDLL", swapped)
    built = build(ANSWER, (), config, Cache(config.cache_dir))
    assert built.cached
    assert built.library.answer() == 42


def test_libraries_that_are_loaded_in_turn_are_not_taken_for_one(tmp_path: Path) -> None:
    """Their descriptors have the same number."""
    for answer in range(40):
        config = Config(cache_dir=tmp_path / "cache", cxx=f"g++ -DANSWER={answer % 3}")
        text = f'extern "C" int answer() {{ return {answer % 20}; }}'
        assert build(text, (), config, Cache(config.cache_dir)).library.answer() == answer % 20


# --- full, read-only, gone --------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system; its options."""
    place = tmp_path / "mounted"
    place.mkdir(mode=0o700)

    def mount(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.decode().strip()}")
        return place

    try:
        yield mount
    except FileNotFoundError:
        pytest.skip("no mount here")
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


@root
@pytest.mark.parametrize("room", [0, 4096, 60_000])
def test_a_full_disk_is_replaced_in_the_middle_of_a_write(mounted: Callable[[str], Path], room: int) -> None:
    place = mounted("size=256k")
    cache = Cache(place / "cache")
    cache.put("graph", KEY, b"before", ".forward")
    filler = place / "filler"
    filler.write_bytes(b"")
    with filler.open("r+b", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            os.truncate(filler, max(0, filler.stat().st_size - room))
    content = os.urandom(100_000)
    cache.put("results", KEY, content)
    assert cache.get("results", KEY) == content
    assert cache.get("graph", KEY, ".forward") == b"before"  # what was there is read from where it is
    assert "No space left on device" in reason(cache)
    config = Config(cache_dir=place / "cache")
    assert build(ANSWER, (), config, Cache(config.cache_dir)).library.answer() == 42
    assert {p.name for p in place.rglob("*") if p.is_file()} == {"filler", "CACHEDIR.TAG", f"{KEY}.forward"}


@root
def test_a_compiler_that_finds_no_room_is_asked_again_elsewhere(mounted: Callable[[str], Path]) -> None:
    place = mounted("size=64k")
    place.joinpath("filler").write_bytes(bytes(50_000))
    config = Config(cache_dir=place / "cache")
    cache = Cache(config.cache_dir)
    assert build(ANSWER, (), config, cache).library.answer() == 42
    assert "No space left on device" in reason(cache)
    assert not list(place.rglob("*.so"))


@root
def test_a_read_only_cache_is_read_and_not_written(mounted: Callable[[str], Path]) -> None:
    place = mounted("size=1m")
    planted(place / "cache")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    cache = Cache(place / "cache")
    assert cache.get("graph", KEY, ".forward") == b"planted"
    cache.put("results", KEY, b"new")
    assert cache.get("results", KEY) == b"new"
    assert "Read-only file system" in reason(cache)


@root
def test_libraries_are_not_kept_where_they_cannot_be_loaded(mounted: Callable[[str], Path]) -> None:
    config = Config(cache_dir=mounted("size=1m,noexec") / "cache")
    cache = Cache(config.cache_dir)
    assert build(ANSWER, (), config, cache).library.answer() == 42
    assert "does not let code be executed" in reason(cache)


@pytest.mark.parametrize("where", ["", "below"])
def test_a_file_in_the_place_of_the_cache(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("a person's")
    cache = Cache(tmp_path / "file" / where)
    cache.put("graph", KEY, b"mine", ".forward")
    assert cache.get("graph", KEY, ".forward") == b"mine"
    assert "file" in reason(cache)
    assert (tmp_path / "file").read_text() == "a person's"


def test_a_cache_that_disappears_is_made_again(tmp_path: Path) -> None:
    config = Config(cache_dir=tmp_path / "cache")
    cache = Cache(config.cache_dir)
    cache.put("graph", KEY, b"mine", ".forward")
    shutil.rmtree(tmp_path / "cache")
    assert cache.get("graph", KEY, ".forward") is None
    assert build(ANSWER, (), config, cache).library.answer() == 42
    with cache.scratch() as directory:
        made = directory / "entry"
        made.write_bytes(b"mine")
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(FileNotFoundError):
            cache.adopt(made, cache.path("graph", KEY, ".forward"))
    removed: list[Path] = []

    def work(directory: Path) -> int:
        if not removed:
            removed.append(directory)
            shutil.rmtree(tmp_path / "cache")
        (directory / "entry").write_bytes(b"")
        return 7

    assert cache.making(work) == 7
    assert cache.drain() == []
    assert cache.root == tmp_path / "cache"


def test_nowhere_to_write_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(cache_place, "_temporary_parents", lambda: iter([tmp_path / "none"]))
    cache = Cache(tmp_path / "file")
    cache.put("graph", KEY, b"mine", ".forward")
    assert cache.get("graph", KEY, ".forward") is None
    (found,) = cache.drain()
    assert "No temporary folder with room was found" in found.explanation
    with pytest.raises(building.BuildFailed, match="is not a folder"):
        build(ANSWER, (), Config(cache_dir=tmp_path / "file"), cache)


def test_what_was_repaired_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("")
    refused = Cache(tmp_path / "cache")
    assert "is not a folder" in reason(refused)
    (tmp_path / "cache").unlink()
    cache = Cache(tmp_path / "cache")
    assert cache.put("graph", KEY, b"", ".forward").is_relative_to(tmp_path / "cache")
    assert cache.drain() == []
    with monkeypatch.context() as full:
        full.setattr(cache_place, "_temporary_parents", lambda: iter([]))
        full.setattr(cache_place, "make", lambda root: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        cache.put("results", KEY, b"")
        assert "No space left on device" in reason(cache)
    cache.put("results", KEY, b"")
    assert Cache(tmp_path / "cache").drain() == []


def test_a_temporary_cache_goes_with_the_last_process_that_uses_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = f"""
        import os, sys, time
        from pathlib import Path
        from fuselens.runtime.cache.store import Cache
        cache = Cache(Path({str(tmp_path / "file")!r}))
        cache.put("graph", {KEY!r}, b"", ".forward")
        print(cache.root, flush=True)
        if len(sys.argv) > 1 and os.fork() == 0:
            time.sleep(1000)
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def run(*arguments: str) -> Path:
        command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, process_group=0) as process:
            assert process.stdout is not None
            found = Path(process.stdout.readline().strip())
            process.wait()
            forked.append(process.pid)
        return found

    forked: list[int] = []
    assert not run().exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    used = run("fork")
    try:
        assert (used / "graph").exists()
        os.utime(used, (0, 0))
        run()
        assert used.exists()
    finally:
        os.killpg(forked[1], 9)
    for _ in range(100):
        run()
        if not used.exists():
            break
    assert not used.exists()


# --- homes ------------------------------------------------------------------------------------------------------------

PROGRAM = """
    import grp, os, pwd, sys, fcntl
    import fuselens.record.diagnostics  # another user may not be able to read this interpreter's files
    from fuselens.config import from_environment
    from fuselens.runtime.cache.store import Cache
    if len(sys.argv) > 1:
        user = int(sys.argv[1])
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    config = from_environment()
    cache = Cache(config.cache_dir)
    cache.put("graph", "ab" + 38 * "0", b"mine", ".forward")
    assert cache.get("graph", "ab" + 38 * "0", ".forward") == b"mine"
    print(cache.root)
    print(*(d.message for d in cache.drain()))
"""


def run_as(user: int | None, environment: dict[str, str], cwd: Path) -> list[str]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), *([] if user is None else [str(user)])]
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG")}
    done = subprocess.run(command, env=kept | environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@root
@pytest.mark.parametrize("environment", [{}, {"HOME": "/"}, {"HOME": "/no/such/home"}])
def test_a_user_without_a_home(common: Path, environment: dict[str, str]) -> None:
    where, why = run_as(54321, environment, common)
    assert "/fuselens-cache-" in where
    assert "cannot be the cache: " in why
    assert not Path(where).exists()
    assert list(common.iterdir()) == []


@root
def test_root_leaves_nothing_in_another_users_home(common: Path) -> None:
    home = common / "home"
    home.mkdir(mode=0o755)
    owned(home)
    where, why = run_as(None, {"HOME": str(home)}, common)
    assert "/fuselens-cache-" in where
    assert f"{home} is owned by user nobody" in why
    assert list(home.iterdir()) == []


@root
def test_a_users_own_home(common: Path) -> None:
    home = common / "home"
    home.mkdir(mode=0o755)
    owned(home)
    where, why = run_as(OTHER, {"HOME": str(home)}, common)
    assert (where, why) == (str(home / ".cache" / "fuselens"), "")
    assert stat.S_IMODE((home / ".cache").stat().st_mode) == 0o700
    (home / ".cache" / "fuselens").chmod(0o500)
    where, why = run_as(OTHER, {"HOME": str(home)}, common)
    assert "/fuselens-cache-" in where
    assert "Permission denied" in why


@root
def test_a_cache_that_root_made_is_not_written_by_others(common: Path) -> None:
    (common / "cache").mkdir(mode=0o755)
    where, why = run_as(OTHER, {"FUSELENS_CACHE_DIR": str(common / "cache")}, common)
    assert "/fuselens-cache-" in where
    assert "is owned by user root, and this process is user nobody's" in why


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = from_environment({"FUSELENS_CACHE_DIR": "cache"})
    assert config.cache_dir == tmp_path / "cache"
    monkeypatch.chdir("/")
    cache = Cache(config.cache_dir)
    assert cache.put("graph", KEY, b"", ".forward").is_relative_to(tmp_path)


# --- keys of libraries ------------------------------------------------------------------------------------------------


def test_a_key_covers_all_that_a_build_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    openmp = tmp_path / "libgomp.so"
    openmp.write_bytes(b"")
    monkeypatch.setattr(building, "_openmp", lambda: str(openmp))
    config = Config(cxx=str(compiler))

    def key(text: str = ANSWER, flags: tuple[str, ...] = (), config: Config = config) -> str:
        return building.plan(text, flags, config).key

    found = [key(), key(ANSWER + " "), key(flags=("-DX",)), key(config=Config(cxx=f"{compiler} -DX"))]
    assert key() == found[0]
    openmp.write_bytes(b"another")
    found.append(key())
    compiler.write_text(compiler.read_text() + "# another\n")
    found.append(key())
    for name in ("LIBRARY_PATH", "LD_RUN_PATH", "COMPILER_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
        found.append(key())
    monkeypatch.setattr(building, "_openmp", lambda: "-lgomp")
    found.append(key())
    assert len(set(found)) == len(found)


def test_a_command_says_nothing_that_the_key_does_not() -> None:
    """Whatever a plan has, and so all that its command is made of, changes the key."""
    plan = building.plan(ANSWER, (), Config())
    for field in dataclasses.fields(plan):
        if field.name == "compiler":
            continue
        value = getattr(plan, field.name)
        other = f"{value} " if isinstance(value, str) else (*value, "-x")
        assert dataclasses.replace(plan, **{field.name: other}).key != plan.key, field.name
    for field in dataclasses.fields(plan.compiler):
        other = dataclasses.replace(plan.compiler, **{field.name: (*plan.compiler.command, "-x")})
        if field.name != "family":  # which the version tells
            assert dataclasses.replace(plan, compiler=other).key != plan.key, field.name
