"""``fuselens diff REVISION`` as a person runs it: the compiler compiles both sides, and git is asked for the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

GATE = "import torch\n\n\ndef gate(x, w):\n    return torch.tanh(x * w) * torch.sigmoid(x)\n"
MODEL = """import fuselens
import torch
from layers.gates import gate


@fuselens.compile(example_inputs=lambda: (torch.randn(64, 128, requires_grad=True), torch.randn(128)))
def step(x, w):
    y = gate(x, w)
    return (y * 2).softmax(-1)


@fuselens.compile(example_inputs=lambda: (torch.randn(16),))
def other(x):
    return x.sin() + 1
"""
BRANCH = MODEL.replace("    return (y", "    if y.sum() > 0:\n        y = y + 1\n    return (y")


def git(folder: Path, *arguments: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_CONFIG_GLOBAL": os.devnull}
    named = [
        "-c",
        "user.name=Ann",
        "-c",
        "user.email=a@b.c",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    ]
    done = subprocess.run(
        ["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True, env=clean
    )
    return done.stdout.strip()


def ran(*arguments: object, cwd: Path) -> tuple[int, str, str]:
    environment = os.environ | {
        "FUSELENS_CACHE_DIR": str(cwd.parent / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-P", "-m", "fuselens.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Gates by the mean (bytes grow), branches on data, is renamed; the gate is in a module that the model imports."""
    folder = tmp_path / "repo"
    (folder / "layers").mkdir(parents=True)
    git(folder, "init", "-q")
    for text, gate, subject in (
        (MODEL, GATE, "First"),
        (MODEL, GATE.replace("torch.sigmoid(x)", "torch.sigmoid(x + w.mean())"), "Gate by the mean"),
        (BRANCH, GATE.replace("torch.sigmoid(x)", "torch.sigmoid(x + w.mean())"), "Branch on the sum | @ann #1"),
    ):
        (folder / "layers" / "gates.py").write_text(gate)
        (folder / "layers" / "__init__.py").write_text("")
        (folder / "model.py").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", subject)
    return folder


def changes(outcome: dict[str, Any], function: str = "step") -> dict[str, dict[str, Any]]:
    (found,) = [f for f in outcome["functions"] if f["function"] == function]
    return {change["kind"]: change for change in found["changes"]}


def test_what_became_of_functions_and_by_which_commit(repo: Path) -> None:
    status, out, err = ran("diff", "HEAD~2", "--blame", "--format", "json", cwd=repo)
    assert status == 0, err
    outcome = json.loads(out)
    schema = json.loads(ran("schema", "diff", cwd=repo)[1])
    jsonschema.validate(outcome, schema)
    assert (outcome["files"], outcome["affected"], outcome["same"]) == (1, 1, 1)
    found = changes(outcome)
    assert found["break"]["what"] == "FL101 graph break: `y.sum() > 0` branches on a tensor's value"
    assert found["break"]["span"]["line"] == 9 and found["break"]["span"]["file"] == "model.py"
    assert [s["commit"]["subject"] for s in found["break"]["steps"]] == ["Branch on the sum | @ann #1"]
    assert [s["commit"]["subject"] for s in found["saved"]["steps"]][-1] == "Gate by the mean"
    assert found["bytes"]["direction"] == "worse" and found["bytes"]["after"] > found["bytes"]["before"]
    assert git(repo, "status", "--porcelain") == "" and git(repo, "worktree", "list").count("\n") == 0
    kept = ran("cache", cwd=repo)[1]
    assert "reports of revisions" in kept
    again = ran("diff", "HEAD~2", "--blame", "--format", "json", cwd=repo)
    assert json.loads(again[1]) == outcome, "reports that are kept say the same"
    assert "deleted" in ran("cache", "clear", cwd=repo)[1] and "report" not in ran("cache", cwd=repo)[1]


def test_imports_are_those_of_the_revision(repo: Path) -> None:
    """Also where the package is found by the search path of the working tree."""
    status, out, _ = ran("diff", "HEAD~2..HEAD~1", "--format", "json", cwd=repo)
    found = changes(json.loads(out))
    assert status == 0 and found["saved"]["direction"] == "worse" and "break" not in found


def test_status_for_what_got_worse(repo: Path) -> None:
    assert ran("diff", "HEAD~1", cwd=repo)[0] == 0
    assert ran("diff", "HEAD~1", "--fail-on", "worse", cwd=repo)[0] == 1
    assert ran("diff", "HEAD~1", "--fail-on", "status,time", cwd=repo)[0] == 0
    assert ran("diff", "HEAD..HEAD~1", "--fail-on", "worse", cwd=repo)[0] == 0, "the other way round it got better"
    status, _, err = ran("diff", "HEAD~1", "--fail-on", "slower", cwd=repo)
    assert status == 2 and "--fail-on knows no 'slower'" in err


def test_comments_and_sarif(repo: Path) -> None:
    comment = ran("diff", "HEAD~2", "--blame", "--format", "markdown", cwd=repo)[1]
    first, title, *_ = comment.splitlines()
    assert (first, title) == ("<!-- fuselens-diff -->", "### Fuselens: 1 function is compiled worse than before")
    assert "| `step`<br>`model.py:9` |" in comment and "\\| @ann #1" in comment
    moved = repo / "model.py"
    before = sarif(repo)
    moved.write_text("# a line more\n\n" + moved.read_text())
    after = sarif(repo)
    assert {r["ruleId"] for r in after} >= {"FL101", "worse/bytes"}
    for one, other in zip(before, after, strict=True):
        assert one["partialFingerprints"] == other["partialFingerprints"]
        assert line_of(other) == line_of(one) + 2


def sarif(repo: Path) -> list[dict[str, Any]]:
    return json.loads(ran("diff", "HEAD~1", "--format", "sarif", cwd=repo)[1])["runs"][0]["results"]


def line_of(result: dict[str, Any]) -> int:
    return result["locations"][0]["physicalLocation"]["region"]["startLine"]


def test_a_function_and_its_stages(repo: Path) -> None:
    status, out, err = ran("diff", "HEAD~1", "model.py::step", "--stage", "capture", cwd=repo / "layers" / "..")
    assert status == 0 and "\n  step\n" in out and "@@ " in out, out + err
    status, _, err = ran("diff", "nowhere", cwd=repo)
    assert status == 2 and "nowhere names no commit in" in err
    status, _, err = ran("diff", "model.py/", cwd=repo)
    assert status == 2 and "names no commit" in err


def test_a_package_that_is_installed_as_a_link(repo: Path, tmp_path: Path) -> None:
    """The link leads to the working tree, but a revision's package is the revision's."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import sys\nsys.path.insert(0, {str(repo)!r})\n")
    (repo / "programs").mkdir()
    (repo / "programs" / "run.py").write_text((repo / "model.py").read_text())
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "A program")
    (repo / "layers" / "gates.py").write_text(GATE.replace("torch.sigmoid(x)", "print(1) or torch.sigmoid(x)"))
    environment = os.environ | {
        "FUSELENS_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join([str(site), *sys.path])
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "fuselens.cli", "diff", "HEAD", "programs", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "repo", env=environment, check=False)
    (found,) = json.loads(done.stdout)["functions"]
    assert [c["before"] for c in found["changes"] if "`print` prints" in c["text"]] == [0]
