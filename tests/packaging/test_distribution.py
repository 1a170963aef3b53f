"""The distribution as others see it: metadata, entry points, editable installs, the wheel's contents."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_backend_entry_point_is_where_torch_looks() -> None:
    (entry,) = importlib.metadata.entry_points(group="torch_dynamo_backends", name="fuselens")
    assert callable(entry.load())


def test_command_line_entry_point() -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="fuselens")
    assert callable(entry.load())


def test_torch_is_a_range_for_users_and_exact_for_developers() -> None:
    (torch,) = [d for d in PROJECT["project"]["dependencies"] if d.startswith("torch")]
    assert torch == "torch>=2.11"
    constraints = (ROOT / "constraints" / "dev.txt").read_text().splitlines()
    assert "torch==2.13.0" in constraints
    pinned = [line for line in constraints if line and not line.startswith("#")]
    assert all("==" in line for line in pinned)


def test_torch_is_no_build_requirement() -> None:
    assert not [r for r in PROJECT["build-system"]["requires"] if "torch" in r]


def test_extension_version_is_the_project_version() -> None:
    import json

    extension = json.loads((ROOT / "extension" / "package.json").read_text())
    assert extension["version"] == PROJECT["project"]["version"] == importlib.metadata.version("fuselens")


def test_lock_files_name_no_registry() -> None:
    for lock in (ROOT / "extension" / "package-lock.json", ROOT / "tests" / "e2e" / "package-lock.json"):
        assert '"resolved"' not in lock.read_text(), f"{lock.relative_to(ROOT)} records where packages came from"


@pytest.mark.parametrize("tool", ["pyright", "mypy"])
def test_editable_install_resolves_without_configuration(tool: str, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "import fuselens\nimport fuselens_server\nfrom fuselens.record.report import Report\n\n"
        "report: Report = Report(function='f', file='f.py')\nwrong: int = report.summary()\n"
    )
    command = {
        "pyright": ["pyright", "--pythonpath", sys.executable, "user.py"],
        "mypy": ["mypy", "--python-executable", sys.executable, "--cache-dir", str(tmp_path / "cache"), "user.py"],
    }[tool]
    command[0] = str(Path(sys.executable).parent / command[0])
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if "error" in line and "user.py" in line]
    assert len(errors) == 1 and ":6:" in errors[0], done.stdout + done.stderr


@pytest.mark.slow
def test_wheel_holds_both_packages_and_the_extension(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert not wheel.name.endswith("-py3-none-any.whl"), "a wheel with a C extension is tagged for its platform"
    names = set(zipfile.ZipFile(wheel).namelist())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    extensions = ("capture/_hook", "runtime/_launch", "runtime/_program", "sandbox/_wall")
    built = {f"fuselens/{name}{suffix}" for name in extensions}
    assert {
        "fuselens/__init__.py",
        "fuselens/py.typed",
        "fuselens_server/__init__.py",
        "fuselens_server/py.typed",
        *built,
    } <= names
    assert {n for n in names if n.endswith(".so")} == built, "nothing built for another interpreter goes along"
    assert not {n for n in names if n.endswith((".c", ".h"))}, "they are in the source distribution"
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = "import fuselens.capture.hook._hook as h; print(h.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(site)!r}); {code}"],
        capture_output=True,
        text=True,
    )
    assert str(site) in done.stdout, done.stderr
