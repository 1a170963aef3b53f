"""Breaks inside of an installed library: fixed, kept by the project, used by its runs, and stepping aside."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patches import libraries
from tests.patches.libraries import patches, ran

WHOLE = "1 graph · 0 breaks"


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that keeps a patch; tests copy it."""
    root = libraries.project(tmp_path_factory.mktemp("patched"))
    installed = root.parent / "site-packages/gates/layers.py"
    before = installed.read_bytes()
    status, told = patches("apply", "model.py::score", cwd=root)
    assert status == 0 and [(t["code"], t["verified"]) for t in told] == [("FL101", True), ("FL102", True)]
    assert installed.read_bytes() == before
    return root


@pytest.fixture
def copied(patched: Path, tmp_path: Path) -> Path:
    """The same for a colleague: in another folder, with an empty cache."""
    for name in ("site-packages", "project"):
        shutil.copytree(patched.parent / name, tmp_path / name)
    return tmp_path / "project"


def test_a_run_uses_the_patch_and_eager_calls_do_not(copied: Path) -> None:
    for _ in range(2):  # the second time from the cache
        status, said, why = ran("model.py", cwd=copied, FUSELENS_STRICT="1")
        assert status == 0, why
        assert said.startswith(WHOLE) and "['FL640']" in said


def test_a_patch_can_be_switched_off(copied: Path) -> None:
    _, said, _ = ran("model.py", cwd=copied, FUSELENS_PATCHES="0")
    assert "2 breaks" in said and "FL640" not in said


def test_a_removed_patch_is_not_served_from_the_cache(copied: Path) -> None:
    assert ran("model.py", cwd=copied)[1].startswith(WHOLE)
    _, told = patches("remove", "gates", cwd=copied)
    assert [Path(t["removed"]).name for t in told] == ["layers.py.patch"]
    assert "2 breaks" in ran("model.py", cwd=copied)[1]
    assert patches("list", cwd=copied)[1] == []


def test_where_the_library_changed_the_patch_steps_aside_and_says_so(copied: Path) -> None:
    layers = copied.parent / "site-packages/gates/layers.py"
    layers.write_text(layers.read_text().replace("y * 2", "y * 3"))
    status, said, why = ran("model.py", cwd=copied)
    assert status == 0 and "2 breaks" in said and "['FL641']" in said
    assert "FL641" in why  # a run says it, too
    ((kept,),) = (patches("list", cwd=copied)[1],)
    assert kept["code"] == "FL641" and not kept["usable"]


def test_verify_keeps_a_patch_for_a_new_version_where_it_still_holds(copied: Path) -> None:
    site = copied.parent / "site-packages"
    text = (site / "gates/layers.py").read_text()
    shutil.rmtree(site / "gates-1.2.dist-info")
    libraries.install(site, "gates", "1.3", {"gates/__init__.py": "", "gates/layers.py": text})
    assert "FL641" in ran("model.py", cwd=copied)[1]
    status, (told,) = patches("verify", cwd=copied)
    assert status == 0 and told["why"] == "" and told["path"].endswith("gates-1.3/gates/layers.py.patch")
    assert ran("model.py", cwd=copied)[1].startswith(WHOLE)


def test_verify_refuses_an_edit_that_gives_other_values(copied: Path) -> None:
    (kept,) = (copied / ".fuselens/patches").rglob("*.patch")
    kept.write_text(kept.read_text().replace("y * 2, y)", "y * 3, y)"))
    assert "FL642" in ran("model.py", cwd=copied)[1]
    status, (told,) = patches("verify", cwd=copied)
    assert status == 1 and told["why"]
    assert "FL642" in ran("model.py", cwd=copied)[1]


def test_the_difference_is_what_git_and_patch_take(copied: Path) -> None:
    (told,) = patches("diff", cwd=copied)[1]
    assert told["difference"].startswith("--- a/gates/layers.py\n+++ b/gates/layers.py\n")
    if git := shutil.which("git"):
        (kept,) = (copied / ".fuselens/patches").rglob("*.patch")
        site = copied.parent / "site-packages"
        done = subprocess.run(
            [git, "apply", "--check", str(kept)], cwd=site, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_break_without_a_verified_fix_is_told(tmp_path: Path) -> None:
    root = libraries.project(tmp_path)
    status, told = patches("apply", "model.py::unfixable", cwd=root)
    assert status == 1
    assert {(t["code"], t["verified"], t["why"]) for t in told} == {("FL118", False, "no fix is known")}
    assert not (root / ".fuselens").exists()


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    root = libraries.project(tmp_path)
    status, told = patches("apply", "--dry-run", "model.py::score", cwd=root)
    assert status == 0 and all(t["patch"]["difference"] for t in told)
    assert not (root / ".fuselens").exists()


def test_check_names_the_fix_in_the_library(tmp_path: Path) -> None:
    root = libraries.project(tmp_path)
    _, said, _ = ran("-m", "fuselens.cli", "check", "-v", "model.py::score", cwd=root)
    assert "= fix in the library: Compute both sides and choose with torch.where (`fuselens patches apply`" in said


@pytest.mark.parametrize("given", [("remove", "nothing"), ("verify", "nothing")])
def test_a_patch_that_there_is_not_is_an_error(tmp_path: Path, given: tuple[str, str]) -> None:
    root = libraries.project(tmp_path)
    status, _, why = ran("-m", "fuselens.cli", "patches", *given, cwd=root)
    assert status == 2 and "has no patch nothing" in why


def test_a_program_in_a_folder_without_marks_has_patches_beside_it(copied: Path) -> None:
    (copied / "pyproject.toml").unlink()
    assert ran("model.py", cwd=copied)[1].startswith(WHOLE)


def test_a_module_of_the_library_compiled_by_itself_is_patched(copied: Path) -> None:
    """The compiled code is all the library's; whose program it is, the call of compile tells."""
    (copied / "whole.py").write_text(
        "import torch, fuselens\nfrom gates.layers import Gate\n"
        "gate = Gate()\nreport = fuselens.explain(gate)(torch.ones(3, 4))\nprint(report.summary())\n"
        "fast = fuselens.compile(gate)\nx = torch.randn(3, 4)\ntorch.testing.assert_close(fast(x), gate(x))\n"
    )
    status, said, why = ran("whole.py", cwd=copied)
    assert status == 0 and said.startswith(WHOLE), why


def test_an_artifact_is_made_of_the_patched_library(copied: Path) -> None:
    (copied / "artifact.py").write_text(
        "import sys, torch, fuselens\nfrom gates.layers import Gate\ngate, x = Gate(), torch.randn(3, 4)\n"
        "fuselens.aot_compile(gate, (x,), to='gate.fuselens')\n"
        "torch.testing.assert_close(fuselens.load('gate.fuselens')(x), gate(x))\nprint('agrees')\n"
    )
    status, said, why = ran("artifact.py", cwd=copied)
    assert status == 0 and said == "agrees\n", why
