"""Which commit made a difference, in real repositories; what functions are compiled to is read off their text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fuselens.history import blaming, comparing
from fuselens.history.folder import Folder
from fuselens.history.git import Repository
from fuselens.history.snapshots import Snapshots

from .repositories import Repo, answered


def model(*breaks: str, eager: int = 0, name: str = "step") -> str:
    lines = "".join(f"    # break {b}\n" for b in breaks) + (f"    # eager {eager}\n" if eager else "")
    use = "".join(f"    x = x + {len(b)}.0  # {b}\n    print('{b}')\n" for b in breaks)
    return f"import fuselens\n\n\n@fuselens.compile\ndef {name}(x):\n{lines}{use}    return x * {eager + 1}\n"


def blamed(
    repo: Repo, revision: str, how: blaming.How = "walk", asked: list[str] | None = None
) -> list[tuple[str, list[tuple[str, object, object]]]]:
    """(what changed, the steps: subject of the commit, before, after)."""
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        snapshots = Snapshots(repository, folder)
        found = answered(comparing.compare(snapshots, repository.sides(revision)), asked=asked)
        out = answered(blaming.blame(snapshots, found, how), asked=asked)
        return [
            (b.change.text, [(s.commit.subject or "not committed", s.before, s.after) for s in b.steps]) for b in out
        ]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


PRINT = "1 break added: FL103 `{}` prints"


def test_what_came_went_and_came_again_is_of_the_last_commit(repo: Repo) -> None:
    first = repo.commit("first", model=model())
    repo.commit("added", model=model("a"))
    repo.commit("gone", model=model())
    repo.commit("again", model=model("a"))
    repo.commit("elsewhere", notes="x = 1\n")
    asked: list[str] = []
    assert dict(blamed(repo, first, asked=asked))[PRINT.format("a")] == [("again", 0, 1)]
    assert len(asked) == 3, "neither what touches another file nor what is older than the answer is looked at"


def test_numbers_have_every_commit_that_added_to_them(repo: Repo) -> None:
    first = repo.commit("first", model=model(eager=1))
    repo.commit("more", model=model(eager=3))
    repo.commit("less", model=model(eager=2))
    repo.commit("comment", model="# only a comment\n" + model(eager=2))
    repo.write("model.py", model(eager=4))
    assert dict(blamed(repo, first))["graphs that run eagerly: 1 → 4"] == [
        ("not committed", 2, 4), ("less", 3, 2), ("more", 1, 3),
    ]  # fmt: skip


def test_a_merge_is_followed_into_its_branch(repo: Repo) -> None:
    first = repo.commit("first", model=model())
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit("on the branch", model=model("b"))
    repo.commit("also on the branch", notes="y = 1\n")
    repo.git("checkout", "-q", "main")
    repo.commit("meanwhile", other="z = 1\n")
    repo.git("merge", "-q", "--no-ff", "-m", "merge", "feature")
    assert dict(blamed(repo, first))[PRINT.format("b")] == [("on the branch", 0, 1)]


def test_what_the_old_revision_changed_after_the_two_parted_is_of_no_commit_here(repo: Repo) -> None:
    repo.commit("first", model=model("a"))
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit("on the branch", model=model("a", "b"))
    repo.git("checkout", "-q", "main")
    repo.commit("repaired on main", model=model())
    repo.git("checkout", "-q", "feature")
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        snapshots = Snapshots(repository, folder)
        found = answered(comparing.compare(snapshots, repository.sides("main")))
        out = answered(blaming.blame(snapshots, found))
    steps = {b.change.text: [(s.commit.subject, s.elsewhere) for s in b.steps] for b in out}
    assert steps == {PRINT.format("a"): [("first", True)], PRINT.format("b"): [("on the branch", False)]}


def test_what_a_merge_itself_made_is_the_merges(repo: Repo) -> None:
    first = repo.commit("first", model=model())
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit("on the branch", notes="y = 1\n")
    repo.git("checkout", "-q", "main")
    repo.commit("meanwhile", other="z = 1\n")
    repo.git("merge", "-q", "--no-ff", "--no-commit", "feature")
    repo.write("model.py", model("merged"))
    repo.git("add", "-A")
    repo.git("commit", "-q", "-m", "merge")
    assert dict(blamed(repo, first))[PRINT.format("merged")] == [("merge", 0, 1)]


def test_files_and_functions_keep_their_history_when_they_are_renamed(repo: Repo) -> None:
    first = repo.commit("first", model=model())
    repo.commit("broken", model=model("a"))
    repo.git("mv", "model.py", "network.py")
    repo.commit("moved")
    repo.commit("renamed", network=model("a", name="stride"))
    assert dict(blamed(repo, first)) == {PRINT.format("a"): [("broken", 0, 1)]}


def test_a_commit_that_cannot_be_imported_leaves_a_doubt(repo: Repo) -> None:
    first = repo.commit("first", model=model())
    repo.commit("unimportable", model=model("a") + "# error\nx: int = (1,)\n")
    repo.commit("repaired", model=model("a"))
    repository = Repository.of(repo.folder)
    with Folder(repository) as folder:
        snapshots = Snapshots(repository, folder)
        found = answered(comparing.compare(snapshots, repository.sides(first)))
        ((blame,),) = (answered(blaming.blame(snapshots, found)),)
    (step,) = blame.steps
    assert step.commit.subject == "unimportable" and [c.subject for c in step.perhaps] == ["repaired"]


@pytest.mark.parametrize("seed", range(4))
def test_every_history_is_told_as_it_was(repo: Repo, seed: int) -> None:
    """Of random histories: the newest commit after which the break stayed; by bisection too, where it came once."""
    rng = random.Random(seed)
    first = repo.commit("first", model=model())
    has = [rng.random() < 0.5 for _ in range(9)] + [True]
    subjects = []
    for number, broken in enumerate(has):
        repo.commit(str(number), model=model("a" if broken else "", eager=number) if broken else model(eager=number))
        subjects.append(str(number))
    last_without = max((i for i, broken in enumerate(has) if not broken), default=-1)
    assert dict(blamed(repo, first))[PRINT.format("a")] == [(subjects[last_without + 1], 0, 1)]
    once = dict(blamed(repo, first if last_without < 0 else str_of(repo, last_without), "bisect"))
    assert once[PRINT.format("a")] == [(subjects[last_without + 1], 0, 1)]


def str_of(repo: Repo, number: int) -> str:
    return repo.git("log", "--format=%H", f"--grep=^{number}$")


def test_a_bisection_asks_few(repo: Repo) -> None:
    first = repo.commit("first", model=model())
    for number in range(16):
        repo.commit(str(number), model=model("a", eager=number) if number > 4 else model(eager=number))
    asked: list[str] = []
    assert dict(blamed(repo, first, "bisect", asked))[PRINT.format("a")] == [("5", 0, 1)]
    assert len(asked) <= 2 + 2 * 5, asked
