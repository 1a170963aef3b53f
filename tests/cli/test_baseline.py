"""``fuselens check --baseline``: only what is new counts; the action and the hook that use it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fuselens.record.diagnostics import make
from fuselens.record.printed import baseline
from fuselens.record.report import FileReport, Kernel, Report, Span

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """import fuselens, torch

@fuselens.compile
def one(x=torch.ones(4, 8)):
    return (x.exp() + 1).sum(1)

@fuselens.compile
def two(x=torch.ones(4)):
    print("known")
    return x * 2
"""


def check(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "fuselens.cli", "check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=os.environ | environment, check=False)


@pytest.fixture(scope="session")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accepted")
    (folder / "src").mkdir()
    (folder / "src" / "model.py").write_text(PROGRAM)
    done = check("--update-baseline", "--baseline", "ci/known.json", "src", cwd=folder)
    assert done.returncode == 2 and "cannot be written" in done.stderr
    (folder / "ci").mkdir()
    done = check("--update-baseline", "--baseline", "ci/known.json", "src", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(accepted: Path, tmp_path: Path) -> Path:
    """A project whose baseline is up to date."""
    return shutil.copytree(accepted, tmp_path / "project")


def test_what_is_written(project: Path) -> None:
    content = json.loads((project / "ci" / "known.json").read_text())
    assert list(content["functions"]) == ["../src/model.py::one", "../src/model.py::two"]
    one, two = content["functions"].values()
    assert one["findings"] == {} and one["kernels"] == 1 and one["bytes"] == 4 * 8 * 4 + 4 * 4
    assert two["findings"] == {"FL103 graph break: `print` prints": 1}


def test_what_is_known_is_not_new_wherever_it_moves(project: Path) -> None:
    assert check("--fail-on-break", "src", cwd=project).returncode == 1
    moved = project / "src" / "model.py"
    moved.write_text("# a comment\n\n\n" + PROGRAM)
    done = check("--baseline", "ci/known.json", "src", cwd=project)
    assert done.returncode == 0 and "Nothing is new since ci/known.json." in done.stdout
    done = check("--baseline", "ci/known.json", "--format", "github", "src", cwd=project)
    assert (done.returncode, done.stdout) == (0, "")


CHANGES = {
    "a break": ("x * 2", "(print('new'), x * 2)[1]", "`print` prints"),
    "a second break like a known one": ('    print("known")\n', '    print("known")\n    x = x + 1\n    print("known")\n', "FL103"),
    "an error": ("return x * 2", "raise ValueError('so')", "FL909"),
    "a function with a break": ("@fuselens.compile\ndef one", "@fuselens.compile\ndef zero(x=torch.ones(3)):\n    print()\n\n"
                                "@fuselens.compile\ndef one", "FL103"),
    "bytes": ("x=torch.ones(4, 8)", "x=torch.ones(5, 8)", "its kernels moved 144 B in a call, and now 180 B"),
    "a lost fusion": ("return (x.exp() + 1).sum(1)", "return torch.sort(x.exp())[0].cos().sum(1)", "kernels were 1, and are 2"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_new(project: Path, change: str) -> None:
    before, after, said = CHANGES[change]
    path = project / "src" / "model.py"
    path.write_text(PROGRAM.replace(before, after))
    assert path.read_text() != PROGRAM
    done = check("--baseline", "ci/known.json", "src", cwd=project)
    assert done.returncode == 1
    assert said in done.stdout.partition("New since ci/known.json:")[2], done.stdout


def test_what_is_new_for_programs(project: Path) -> None:
    path = project / "src" / "model.py"
    path.write_text(PROGRAM.replace("x * 2", "(print('new'), x * 2)[1]"))
    done = check("--baseline", "ci/known.json", "--format", "sarif", "src", cwd=project)
    states = [result["baselineState"] for result in json.loads(done.stdout)["runs"][0]["results"]]
    assert done.returncode == 1 and sorted(states) == ["new", "unchanged"]
    assert check("--update-baseline", "--baseline", "ci/known.json", "src", cwd=project).returncode == 0
    assert check("--baseline", "ci/known.json", "src", cwd=project).returncode == 0


# --- pure -------------------------------------------------------------------------------------------------------------


def report(*codes: str, kernels: int = 1, target: str = "cpu") -> FileReport:
    made = Report("f", "/w/a.py", target=target)
    for line, code in enumerate(codes, 1):
        found = make(code, Span("/w/a.py", line, 0, line, 1), what="x", why="")
        (made.breaks if code.startswith("FL1") else made.diagnostics).append(found)
    return FileReport("/w/a.py", [made]) if not kernels else FileReport("/w/a.py", [_with_kernels(made, kernels)])


def _with_kernels(made: Report, count: int) -> Report:
    from fuselens.record.report import Graph

    made.graphs = [
        Graph(
            0,
            "f",
            None,
            1,
            kernels=[Kernel(f"k{i}", "cpp", "forward", "pointwise", (), (), 8, 8) for i in range(count)],
        )
    ]
    return made


@given(
    st.lists(st.sampled_from(["FL101", "FL103", "FL114", "FL201", "FL301", "FL401", "FL921"]), max_size=6),
    st.integers(0, 3),
)
def test_a_baseline_of_itself_has_nothing_new(codes: list[str], kernels: int) -> None:
    files = [report(*codes, kernels=kernels)]
    known = baseline.read(baseline.written(baseline.accepted(files, "/w")))
    assert baseline.news(files, known, "/w") == []
    assert baseline.news([report(*codes, "FL101", kernels=kernels)], known, "/w")
    assert not baseline.news([report(*codes, "FL401", "FL921", kernels=kernels)], known, "/w"), "notes do not count"


def test_numbers_of_another_target_are_not_compared() -> None:
    known = baseline.accepted([report(kernels=1)], "/w")
    assert baseline.news([report(kernels=3)], known, "/w")
    assert not baseline.news([report(kernels=3, target="cuda:sm_90")], known, "/w")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fuselens_baseline": 1, "functions": []}', '{"fuselens_baseline": 9, "functions": {}}',
                                  '{"fuselens_baseline": 1, "functions": {"a": {"findings": {"x": "y"}}}}'])  # fmt: skip
def test_what_is_no_baseline(text: str) -> None:
    with pytest.raises(baseline.BaselineError):
        baseline.read(text)


# --- the action and the hook ------------------------------------------------------------------------------------------


def git(*arguments: str, cwd: Path) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=cwd, check=True, capture_output=True
    )


def test_the_steps_of_the_action_on_a_repository_with_one_new_break(project: Path) -> None:
    """Its shell steps run as GitHub runs them, but that fuselens is installed already."""
    git("init", "-q", cwd=project)
    git("add", "-A", cwd=project)
    git("commit", "-qm", "before", cwd=project)
    (project / "src" / "model.py").write_text(PROGRAM.replace("x * 2", "(print('new'), x * 2)[1]"))
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {"paths": "src", "baseline": "ci/known.json", "since": "HEAD", "comment": "comment.md"}
    inputs = {name: str(given.get(name, about.get("default", ""))) for name, about in action["inputs"].items()}
    steps = [step for step in action["runs"]["steps"] if "run" in step and "pip install" not in step["run"]]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = {"PATH": path, "GITHUB_WORKSPACE": str(project), "GITHUB_STEP_SUMMARY": str(project / "summary.md")}

    def run(step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        environment = {name: _filled(value, inputs) for name, value in step.get("env", {}).items()}
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", _filled(step["run"], inputs)], cwd=project, capture_output=True, text=True,
            env=os.environ | environment | surroundings, check=False,
        )  # fmt: skip

    check, compare = steps
    done = run(check)
    assert done.returncode == 1, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("::warning file=src/model.py,line=10,") and "title=FL103 in two::" in line
    done = run(compare)
    assert done.returncode == 1, done.stderr
    comment = (project / "comment.md").read_text()
    assert comment.startswith("<!-- fuselens-diff -->\n") and "| `not committed yet` |" in comment
    assert (project / "summary.md").read_text() == comment


def _filled(text: str, inputs: dict[str, str]) -> str:
    for name, value in inputs.items():
        text = text.replace("${{ inputs." + name + " }}", value)
    assert "${{" not in text, text
    return text


@pytest.mark.skipif(
    shutil.which("pre-commit", path=str(Path(sys.executable).parent)) is None, reason="pre-commit is not installed"
)
def test_the_hook_is_one_that_pre_commit_takes() -> None:
    tool = Path(sys.executable).parent / "pre-commit"
    done = subprocess.run(
        [tool, "validate-manifest", ROOT / ".pre-commit-hooks.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"].split()[:2] == ["fuselens", "check"] and hook["types"] == ["python"]
