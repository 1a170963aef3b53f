"""What two revisions have different: sides, files, renames, and what git says of both."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fuselens.history import comparing, told
from fuselens.history.folder import Folder
from fuselens.history.git import GitError, Repository
from fuselens.history.snapshots import Snapshots

from .repositories import MODEL, Repo, answered

BREAKING = MODEL.replace("    return x.sin()", "    # break printed\n    print(x)\n    return x.sin()")


def compared(repo: Repo, revision: str, *paths: str, asked: list[str] | None = None) -> told.Told:
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        snapshots = Snapshots(repository, folder)
        wanted = comparing.paths_below(repository.top, [str(repo.folder / p) for p in paths])
        work = comparing.compare(snapshots, repository.sides(revision), wanted)
        return told.told(answered(work, asked=asked), revision)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "repo")
    made.commit("first", model=MODEL)
    return made


def texts(outcome: told.Told) -> dict[str, list[str]]:
    return {f.name: [c.text for c in f.changes] for f in outcome.functions}


def test_the_working_tree_and_ranges(repo: Repo) -> None:
    second = repo.commit("second", model=BREAKING)
    repo.write("model.py", MODEL)
    assert texts(compared(repo, "HEAD")) == {"other": ["1 break gone: FL103 `printed` prints"]}
    assert texts(compared(repo, "HEAD~1..HEAD")) == {"other": ["1 break added: FL103 `printed` prints"]}
    assert texts(compared(repo, "HEAD~1..")) == texts(compared(repo, f"HEAD~1..{second}"))
    assert texts(compared(repo, "HEAD~1")) == {}


def test_three_dots_begin_where_the_branches_parted(repo: Repo) -> None:
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit("on the branch", notes="x = 1\n")
    repo.git("checkout", "-q", "main")
    repo.commit("on main", model=BREAKING)
    assert texts(compared(repo, "main..feature")) == {"other": ["1 break gone: FL103 `printed` prints"]}
    assert compared(repo, "main...feature").functions == ()
    repo.git("checkout", "-q", "feature")
    assert compared(repo, "main...").affected == 0


def test_only_what_is_affected_is_looked_at(repo: Repo) -> None:
    repo.commit("package", {"pkg/__init__.py": "", "pkg/used.py": "x = 1\n", "pkg/unused.py": "y = 1\n"},
                user=MODEL.replace("import torch", "import torch\nfrom pkg.used import x"))  # fmt: skip
    repo.write("pkg/unused.py", "y = 2\n")
    repo.write("model.py", MODEL.replace("softmax(-1)", "softmax(-1)  # a comment"))
    asked: list[str] = []
    assert (compared(repo, "HEAD", asked=asked).affected, asked) == (0, [])
    repo.write("pkg/used.py", "x = 2\n")
    assert compared(repo, "HEAD", asked=asked).affected == 1
    assert sorted(name.partition(" ")[0] for name in asked) == ["user.py", "user.py"]


def test_a_module_that_is_called_like_a_library_is_none_of_it(repo: Repo) -> None:
    """But for where it may be found: in a folder that is no package, or beside the program."""
    inside = {
        "deep/__init__.py": "",
        "deep/torch.py": "x = 1\n",
        "src/tools.py": "x = 1\n",
        "deep/beside.py": "x = 1\n",
    }
    repo.commit("names", {**inside, "deep/program.py": MODEL.replace("import torch", "import torch, beside")},
                user=MODEL.replace("import torch", "import torch\nfrom tools import x"))  # fmt: skip
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        snapshot = Snapshots(repository, folder).at(None)
        assert snapshot.behind("user.py") == ["user.py", "src/tools.py"]
        assert snapshot.behind("deep/program.py") == [
            "deep/program.py", "deep/__init__.py", "deep/beside.py", "deep/torch.py",
        ]  # fmt: skip


def test_a_file_that_is_read_counts_and_so_do_all_where_files_are_looked_for(repo: Repo) -> None:
    repo.write("sizes.json", "[1]")
    repo.commit("reads", reader=MODEL.replace("import torch", "import torch\nSIZES = open('sizes.json').read()"),
                finder=MODEL.replace("import torch", "import torch, glob\nFILES = glob.glob('*.txt')"))  # fmt: skip
    repo.write("sizes.json", "[2]")
    asked: list[str] = []
    compared(repo, "HEAD", asked=asked)
    assert {name.partition(" ")[0] for name in asked} == {"reader.py", "finder.py"}


def test_functions_that_are_added_gone_renamed_and_moved(repo: Repo) -> None:
    moved = MODEL.partition("@fuselens")[0] + "\n\n@fuselens" + MODEL.rpartition("@fuselens")[2]
    repo.write("model.py", MODEL.rpartition("\n\n@fuselens")[0].replace("def step", "def stride"))
    repo.write("elsewhere.py", moved)
    outcome = compared(repo, "HEAD")
    assert texts(outcome) == {}, "what only has another name or place is compiled as before"
    new = MODEL + "\n\n@fuselens.compile\ndef more(x):\n    # break printed\n    return x.cos().exp().log().neg()\n"
    repo.write("model.py", new.replace("    return x.sin() + 1", "    return x.sin() + 1"))
    (repo.folder / "elsewhere.py").unlink()
    assert texts(compared(repo, "HEAD")) == {"more": ["new function", "1 break added: FL103 `printed` prints"]}
    (repo.folder / "model.py").unlink()
    assert texts(compared(repo, "HEAD")) == {"step": ["function is gone"], "other": ["function is gone"]}


def test_a_side_that_cannot_be_imported(repo: Repo) -> None:
    repo.commit("broken", model=MODEL + "# error\n\n\nx: int = (1,)\n")
    outcome = compared(repo, "HEAD~1..HEAD")
    (left,) = outcome.uncompared
    assert (left.file, left.side) == ("model.py", "new") and left.why.startswith("FL903 ")
    assert [c.direction for f in outcome.functions if not f.function for c in f.changes] == ["worse"]
    repo.commit("repaired", model=BREAKING)
    outcome = compared(repo, "HEAD~1")
    assert [u.side for u in outcome.uncompared] == ["old"]
    assert [f.function for f in outcome.functions] == [""], "nothing is said of functions that were not looked at"


def test_what_cannot_be_parsed_is_not_gone(repo: Repo) -> None:
    repo.write("model.py", MODEL.replace("(x * 2)", "(x * 2"))
    outcome = compared(repo, "HEAD")
    assert [u.why.partition(" ")[0] for u in outcome.uncompared] == ["FL902"]
    assert "function is gone" not in str(texts(outcome))


def test_nothing_is_left_in_the_repository(repo: Repo) -> None:
    repo.commit("second", model=BREAKING)
    os.utime(repo.folder / "model.py")  # git would like to refresh its index
    before = repo.state()
    compared(repo, "HEAD~1")
    compared(repo, "HEAD~1..HEAD")
    assert repo.state() == before


def test_names_of_any_kind(repo: Repo) -> None:
    odd = "a b/ö\n'\"$(touch x).py"
    repo.write(odd, MODEL)
    repo.commit("odd")
    repo.write(odd, BREAKING)
    outcome = compared(repo, "HEAD")
    assert [f.file for f in outcome.functions] == [odd]
    assert not (repo.folder / "x").exists()


def test_submodules_links_and_large_files(repo: Repo, tmp_path: Path) -> None:
    inner = Repo(tmp_path / "inner")
    inner.commit("inner", inner="x = 1\n")
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.folder), "sub")
    repo.write("large.bin", b"\0" * (2 << 20))
    (repo.folder / "link.py").symlink_to("model.py")
    (repo.folder / "outside").symlink_to("/etc")
    repo.commit("all kinds")
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        place = folder.hold(repository.commit("HEAD").identity, ["model.py"])
        assert (place / "sub" / "inner.py").read_text() == "x = 1\n"
        assert (place / "link.py").read_text() == MODEL
        assert not (place / "outside").exists() and not (place / "large.bin").exists()
        first = folder.hold(repository.commit("HEAD~1").identity, ["model.py"])
        assert first == place and sorted(p.name for p in place.iterdir()) == ["model.py"]
    assert not place.exists()


def test_modules_that_a_build_made_serve_every_revision(repo: Repo) -> None:
    repo.write(".gitignore", "_version.py\nvenv/\n")
    repo.commit("ignores")
    repo.write("_version.py", "version = 1\n")
    repo.write("venv/lib.py", "")
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        place = folder.hold(repository.commit("HEAD").identity, ["model.py"])
        assert (place / "_version.py").read_text() == "version = 1\n" and not (place / "venv").exists()


@pytest.mark.parametrize(
    ("revision", "why"),
    [
        ("nowhere", "nowhere names no commit in "),
        ("--output=x", "--output=x names no commit in "),
        ("HEAD~9", "HEAD~9 names no commit in "),
        ("model.py/..HEAD", "model.py/ names no commit in "),
        ("HEAD:model.py", "HEAD:model.py names no commit in "),
    ],
)
def test_revisions_that_there_are_not(repo: Repo, revision: str, why: str) -> None:
    with pytest.raises(GitError) as raised:
        compared(repo, revision)
    assert str(raised.value).startswith(why)


def test_paths_that_there_are_not(repo: Repo, tmp_path: Path) -> None:
    with pytest.raises(GitError, match="nothing.py is neither in [0-9a-f]{8} nor there now"):
        compared(repo, "HEAD", "nothing.py")
    with pytest.raises(GitError, match="is outside of the repository"):
        compared(repo, "HEAD", "../other.py")


def test_a_function_that_there_is_not(repo: Repo) -> None:
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        work = comparing.compare(Snapshots(repository, folder), repository.sides("HEAD"), ["model.py"], ["no"])
        with pytest.raises(GitError, match="has no annotated function 'no', then or now; it has step, other"):
            answered(work)


def test_places_without_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(GitError, match="is in no repository of git"):
        Repository.of(tmp_path / "plain")
    empty = Repo(tmp_path / "empty")
    with pytest.raises(GitError, match="has no commit yet"):
        compared(empty, "HEAD")
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "bare")], check=True)
    with pytest.raises(GitError, match="without a working tree"):
        Repository.of(tmp_path / "bare")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="there is no `git` on the search path"):
        Repository.of(tmp_path / "empty")


def test_a_shallow_clone_says_how_to_get_its_history(repo: Repo, tmp_path: Path) -> None:
    repo.commit("second", model=BREAKING)
    repo.git("clone", "-q", "--depth", "1", f"file://{repo.folder}", str(tmp_path / "shallow"))
    shallow = Repo(tmp_path / "shallow")
    with pytest.raises(GitError, match="shallow.*--unshallow.*fetch-depth: 0"):
        compared(shallow, "HEAD~1")
    shallow.git("checkout", "-q", "--detach")
    assert compared(shallow, "HEAD").affected == 0
