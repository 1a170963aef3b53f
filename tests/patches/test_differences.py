"""Patch files as text: made, read, applied, merged, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuselens.patches import differences, distributions, project, records
from tests.patches import libraries

LINES = st.lists(st.sampled_from(["a\n", "b\n", "    c = 1\n", "\n", "d\r\n", "é\n"]), max_size=12)
TEXTS = st.builds(lambda lines, end: "".join(lines) + end, LINES, st.sampled_from(["", "last"]))


@given(TEXTS, TEXTS)
def test_a_difference_makes_one_text_of_the_other(before: str, after: str) -> None:
    difference = differences.unified(before, after, "lib/module.py")
    if before == after:
        assert difference == ""
    else:
        assert differences.applied(before, difference) == after


@given(LINES, TEXTS)
def test_every_line_of_a_patched_text_has_a_place_in_what_is_installed(before: list[str], after: str) -> None:
    text = "".join(before) or "a\n"
    places = differences.moved(text, after)
    old, new = text.splitlines(True), after.splitlines(True)
    for line, (place, same) in places.items():
        assert 1 <= place <= max(len(old), 1)
        assert not same or old[place - 1] == new[line - 1]


def test_two_changes_of_other_lines_are_made_one() -> None:
    before = "a\nb\nc\nd\ne\n"
    assert differences.merged(before, "A\nb\nc\nd\ne\n", "a\nb\nc\nd\nE\nf\n") == "A\nb\nc\nd\nE\nf\n"
    assert differences.merged(before, "A\nb\nc\nd\ne\n", "A\nb\nc\nd\ne\n") == "A\nb\nc\nd\ne\n"
    assert differences.merged(before, "A\nb\nc\nd\ne\n", "other\nb\nc\nd\ne\n") is None


def test_a_difference_applies_to_its_text_only() -> None:
    difference = differences.unified("a\nb\n", "a\nc\n", "m.py")
    for other in ("a\n", "a\nB\n", ""):
        with pytest.raises(differences.DoesNotApply):
            differences.applied(other, difference)
    with pytest.raises(differences.DoesNotApply, match="no hunk"):
        differences.applied("a\n", "--- a/m.py\n+++ b/m.py\n")
    with pytest.raises(differences.DoesNotApply, match="shorter"):
        differences.applied("a\nb\n", difference.rpartition("+")[0])


def test_a_patch_file_says_what_it_is_of(tmp_path: Path) -> None:
    libraries.project(tmp_path)
    path = tmp_path / "site-packages/gates/layers.py"
    after = path.read_text().replace(".item()", "")
    made = project.made(str(path), after, ["FL102 at line 18: x"], ["model.py::score agrees"], ["model.py::score"])
    assert (made.distribution, made.version, made.file) == ("gates", "1.2", "gates/layers.py")
    assert records.read(records.written(made)) == made
    assert made.is_as_verified
    assert made.name == "gates-1.2/gates/layers.py.patch"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no difference"),
        ("--- a/x\n", "no line `Distribution:`"),
        (
            "Distribution: d\nVersion: 1\nOriginal: 0\nDifference: 0\nFile: ../x.py\n--- a/x\n",
            "no file of a distribution",
        ),
    ],
)
def test_what_is_no_patch_says_why(text: str, why: str) -> None:
    with pytest.raises(records.NotAPatch, match=why):
        records.read(text)


def test_files_belong_to_the_distribution_that_lists_them(tmp_path: Path) -> None:
    libraries.project(tmp_path)
    site = tmp_path / "site-packages"
    (site / "gates/written_later.py").touch()
    found = distributions.installed(str(site / "gates/layers.py"))
    assert found is not None and (found.name, found.version, found.file) == ("gates", "1.2", "gates/layers.py")
    assert distributions.installed(str(site / "gates/written_later.py")) is None
    assert distributions.installed(str(tmp_path / "project/model.py")) is None
    assert distributions.installed("relative.py") is None
    import json

    standard = distributions.installed(json.__file__)
    assert standard is not None and standard.name == "python"


def test_two_fixes_of_one_file_are_one_patch(tmp_path: Path) -> None:
    root = libraries.project(tmp_path)
    path = tmp_path / "site-packages/gates/layers.py"
    text = path.read_text()
    project.keep(root, str(path), project.made(str(path), text.replace(".item()", ""), ["one"]))
    kept = project.keep(root, str(path), project.made(str(path), text.replace("y * 2", "y + y"), ["two"]))
    (found,) = project.every(root)
    assert found.path == kept and found.usable and found.patch is not None
    assert found.patch.removes == ("one", "two")
    _, texts = project.beside(found, str(path))
    assert texts is not None and texts.after == text.replace(".item()", "").replace("y * 2", "y + y")
    with pytest.raises(project.Refused, match="same lines"):
        project.keep(root, str(path), project.made(str(path), text.replace("y * 2", "y * 3")))


def test_a_patch_of_another_text_steps_aside(tmp_path: Path) -> None:
    root = libraries.project(tmp_path)
    path = tmp_path / "site-packages/gates/layers.py"
    kept = project.keep(root, str(path), project.made(str(path), path.read_text().replace(".item()", "")))
    (found,) = project.every(root)
    path.write_text(path.read_text() + "\n# another\n")
    assert project.beside(found, str(path))[0].code == "FL641"
    (tmp_path / "site-packages/gates-1.2.dist-info").rename(tmp_path / "site-packages/gates-1.3.dist-info")
    assert project.beside(found, str(path))[0].why == "gates 1.3 is installed, and it is of 1.2"
    kept.write_text(kept.read_text().replace("+        limit", "+        other"))
    assert project.every(root)[0].code == "FL642"
    kept.write_text("nothing")
    assert project.every(root)[0].code == "FL643"
    project.remove(kept)
    assert not project.every(root) and not (root / ".fuselens/patches/gates-1.2").exists()


@pytest.mark.skipif(not hasattr(__import__("os"), "geteuid"), reason="files have no owners here")
def test_a_patch_that_everybody_may_write_is_not_believed(tmp_path: Path) -> None:
    root = libraries.project(tmp_path)
    path = tmp_path / "site-packages/gates/layers.py"
    kept = project.keep(root, str(path), project.made(str(path), path.read_text().replace(".item()", "")))
    kept.chmod(0o666)
    (found,) = project.every(root, str(root / "model.py"))
    assert found.code == "FL643" and "everybody may write" in found.why
