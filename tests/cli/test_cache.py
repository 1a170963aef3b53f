"""``fuselens cache``: what it deletes, and what it never touches."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

import fuselens
from fuselens import cli, config
from fuselens.runtime.cache import place as cache_place
from fuselens.runtime.cache.contents import trim
from fuselens.runtime.cache.store import Cache

KEY = "ab" + 38 * "0"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache_place, "_places", {})
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / "fuselens"))
    return tmp_path / "fuselens"


def fill(place: Path) -> Path:
    cache = Cache(place)
    cache.put("graph", KEY, b"x" * 1000, ".forward")
    cache.put("measured", KEY, b"", ".json")
    return cache.put("cpp", KEY, b"", ".so")


def test_a_cache_is_tagged_and_cleared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(place)
    assert (place / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    assert cli.main(["cache"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == f"{place}: 3 files, 1.214 KiB"
    assert [line.split()[:3] for line in lines] == [
        ["graph", "1", "files"], ["cpp", "1", "files"], ["measured", "1", "files"], ["limit", "10", "GiB"],
    ]  # fmt: skip
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{place}: deleted 3 files, 1.214 KiB\n"
    assert not place.exists()
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{place}: nothing to delete\n"


@pytest.mark.parametrize("name", ["fuselens", "precious"])
def test_a_folder_that_is_no_cache_is_left_alone_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / name))
    notes = tmp_path / name / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("a person's")
    assert cli.main(["cache", "clear"]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / name) in said
    assert "CACHEDIR.TAG" in said
    assert "FUSELENS_CACHE_DIR" in said
    assert notes.read_text() == "a person's"


def test_a_tag_of_others_does_not_count(place: Path) -> None:
    place.mkdir()
    (place / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# made by cargo\n")
    assert cli.main(["cache", "clear"]) == 2
    assert os.listdir(place) == ["CACHEDIR.TAG"]


def test_a_folder_with_other_things_in_it_is_not_tagged(place: Path) -> None:
    """Backups leave out what has a tag."""
    place.mkdir()
    (place / "thesis.tex").write_text("")
    entry = fill(place)
    assert entry.exists()
    assert not (place / "CACHEDIR.TAG").exists()
    assert cli.main(["cache", "clear"]) == 2
    assert entry.exists()


def test_a_cache_of_an_earlier_version_gets_its_tag(place: Path) -> None:
    (place / "graph" / "ab").mkdir(parents=True, mode=0o700)
    fill(place)
    assert (place / "CACHEDIR.TAG").exists()


def test_what_is_unknown_stays_and_is_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = fill(place)
    outside = tmp_path / "outside"
    (outside / "ab").mkdir(parents=True)
    (outside / "ab" / f"{KEY}.so").write_text("")
    others = {
        place / "notes.txt": None, place / "cpp" / "notes.txt": None, entry.parent / "notes.so": None,
        entry.parent / f"{KEY}.txt": None, entry.parent / f"cd{KEY[2:]}.so": None, place / "measured" / "zz": "folder",
        place / "inputs": outside, place / "cpp" / "cd": outside / "ab", entry.parent / f"ab1{KEY[3:]}.so": outside / "ab" / f"{KEY}.so",
        place / ".making-a_person": "folder", place / "graph" / "ab" / "ab": "folder",
    }  # fmt: skip
    for path, what in others.items():
        if isinstance(what, Path):
            path.symlink_to(what)
        elif what == "folder":
            path.mkdir(mode=0o755)
            os.utime(path, (0, 0))
        else:
            path.write_text("")
    assert cli.main(["cache", "clear"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == f"{place}: deleted 3 files, 1.214 KiB"
    assert {line.removeprefix("  left: ") for line in lines} == {str(p) for p in others}
    assert all(os.path.lexists(path) for path in others)
    assert (outside / "ab" / f"{KEY}.so").exists()
    assert not entry.exists()


def test_what_killed_processes_left_goes_and_what_is_being_made_stays(place: Path) -> None:
    fill(place)
    with Cache(place).scratch() as used, Cache(place).scratch() as abandoned:
        (abandoned / "ccXYZ.s").write_text("")
        os.utime(abandoned, (0, 0))
        assert cli.main(["cache", "clear"]) == 0
        assert used.exists()
        assert not abandoned.exists()
    assert cli.main(["cache", "clear"]) == 0
    assert not place.exists()


def test_a_linked_cache_is_emptied_where_it_is(place: Path, tmp_path: Path) -> None:
    fill(tmp_path / "scratch")
    place.symlink_to(tmp_path / "scratch")
    assert cli.main(["cache", "clear"]) == 0
    assert os.listdir(tmp_path / "scratch") == ["CACHEDIR.TAG"]
    assert place.is_symlink()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes another user's files")
def test_another_users_cache_is_not_cleared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = fill(place)
    os.chown(place, 65534, 65534)
    assert cli.main(["cache", "clear"]) == 2
    assert "is owned by user nobody" in capsys.readouterr().err
    assert entry.exists()


def test_without_a_home(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUSELENS_CACHE_DIR", "~no-such-user/cache")
    assert cli.main(["cache", "clear"]) == 2
    assert "no home folder is known" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


# --- what was not used, and what is damaged ---------------------------------------------------------------------------


def key(number: int) -> str:
    return f"{number:02x}" + 38 * "0"


@pytest.fixture
def aged(place: Path) -> Path:
    """Entries 0 to 9, of 1,081 bytes, that were last used so many days ago."""
    cache = Cache(place)
    for number in range(10):
        then = time.time() - number * 86400 - 60
        os.utime(cache.put("graph", key(number), b"x" * 1000, ".forward"), (then, then))
    return place


def left(place: Path) -> list[int]:
    return sorted(int(path.name[:2], 16) for path in place.rglob("*.forward"))


def test_what_was_not_used_for_longest_goes_first(aged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "prune", "--to", "4KiB"]) == 0
    assert left(aged) == [0, 1, 2]
    assert "deleted 7 files" in capsys.readouterr().out
    assert cli.main(["cache", "prune", "--older-than", "1"]) == 0
    assert left(aged) == [0]


def test_an_entry_that_is_read_was_used(aged: Path) -> None:
    assert Cache(aged).get("graph", key(9), ".forward") == b"x" * 1000
    assert cli.main(["cache", "prune", "--to", "4KiB"]) == 0
    assert left(aged) == [0, 1, 9]


def test_a_limit_holds_once_an_hour(aged: Path) -> None:
    trim(aged, 5000)
    assert left(aged) == list(range(10)), "somebody looked a moment ago"
    os.utime(aged / "CACHEDIR.TAG", (0, 0))
    trim(aged, 1 << 30)
    assert left(aged) == list(range(10))
    os.utime(aged / "CACHEDIR.TAG", (0, 0))
    trim(aged, 0)
    assert left(aged) == list(range(10)), "0: no limit"
    trim(aged, 5000)
    assert left(aged) == [0, 1, 2], "four fifths, so that it is not reached again at once"


def test_compiling_keeps_the_limit(aged: Path) -> None:
    os.utime(aged / "CACHEDIR.TAG", (0, 0))
    fuselens.compile(lambda x: x + 1, options={"cache_limit": 3000})(torch.ones(3))
    assert len(left(aged)) < 10
    with pytest.raises(ValueError, match="cache_limit is -1"):
        fuselens.compile(lambda x: x, options={"cache_limit": -1})


def test_a_limit_of_the_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, size in (("2GiB", 2 << 30), ("1.5 m", 3 << 19), ("77", 77), ("3KB", 3072)):
        monkeypatch.setenv("FUSELENS_CACHE_LIMIT", text)
        assert config.from_environment().cache_limit == size
    monkeypatch.setenv("FUSELENS_CACHE_LIMIT", "much")
    with pytest.raises(ValueError, match="FUSELENS_CACHE_LIMIT: 'much' is no size"):
        config.from_environment()


def test_listing(aged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "list", "--kind", "graph"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(Path(line.split()[-1]).name[:2], 16) for line in lines] == list(range(10))
    assert "1 min ago" in lines[0] and "9 d ago" in lines[9]
    assert cli.main(["cache", "list", "--kind", "cpp"]) == 0
    assert capsys.readouterr().out == ""


def test_damage_is_found_and_removed(aged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "verify"]) == 0
    damaged = Cache(aged).path("graph", key(4), ".forward")
    data = bytearray(damaged.read_bytes())
    data[500] ^= 1
    damaged.write_bytes(data)
    assert cli.main(["cache", "verify"]) == 1
    said = capsys.readouterr().out
    assert f"FL405: ignored a corrupt cache entry: {damaged}" in said and "1 damaged and removed" in said
    assert left(aged) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert cli.main(["cache", "verify"]) == 0


@pytest.mark.parametrize("action", [["prune", "--to", "0"], ["verify"], ["clear"]])
def test_nothing_is_deleted_in_a_folder_that_is_no_cache(place: Path, action: list[str]) -> None:
    place.mkdir()
    (place / "graph").mkdir()
    assert cli.main(["cache", *action]) == 2
