"""What pages say of the code is true of it: settings, commands, paths, links. (``make docs`` looks at links between pages.)"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

import fuselens
from fuselens import config

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
README = ROOT / "README.md"
MAP = ROOT / "ARCHITECTURE.md"
SETTINGS = ROOT / "docs" / "reference" / "settings.md"
PATH = re.compile(r"`([\w./{},*-]+(?:\.(?:py|c|h|pyi|md|sh|yml|toml|json|ts|mjs|lua|png)|/))`")


def _script(name: str) -> ModuleType:
    """A script as a module, without ``scripts`` on the import path, where ``tests/scripts`` is."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _script("reference")


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.stem)
def test_generated_tables_are_up_to_date(page: Path) -> None:
    assert page.read_text() == reference.written(page), "run scripts/reference.py"


def test_the_editor_knows_the_settings_that_the_server_declares() -> None:
    for path, make in _script("settings").WRITTEN.items():
        assert path.read_text(encoding="utf-8") == make(), "run scripts/settings.py"


def test_explained_settings_exist() -> None:
    fields = {*config.Config.__dataclass_fields__}
    assert set(reference.MEANINGS) <= fields


def test_environment_variables_are_those_that_are_read() -> None:
    source = Path(config.__file__).read_text()
    read = set(re.findall(r'env(?:\.get\(|\[)"(\w+)"', source))
    table = SETTINGS.read_text().partition("## Environment variables")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == read


def test_the_api_has_every_public_name() -> None:
    listed = re.findall(r"^::: fuselens\.(\w+)", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)
    assert set(fuselens.__all__) <= set(listed)


@pytest.mark.parametrize("page", [README, MAP, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    """A name in backticks with a suffix or a slash at its end is a file or folder here, by the end of its path."""
    files = [Path(line) for line in _tracked() if not line.startswith("tests/scripts/programs")]
    known = {str(place) for file in files for place in _ends(file)}
    named = {match.rstrip("/") for match in PATH.findall(page.read_text())}
    missing = {name for name in named if name not in known and name not in _OF_USERS}
    assert not missing, f"{page.relative_to(ROOT)} names {sorted(missing)}"


_OF_USERS = {
    "train.py",
    "repro.py",
    "trace.json",
    "tutorial.py",
    "out",
    "src",
    "site",
    "launch.json",
    ".vscode/launch.json",
    ".venv",
}


def _tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is no clone of the repository")
    return done.stdout.splitlines()


def _ends(file: Path) -> list[Path]:
    """``a/b/c.py`` → that, ``b/c.py``, ``c.py``; and its folders, likewise."""
    places = [file, *list(file.parents)[:-1]]
    return [Path(*place.parts[k:]) for place in places for k in range(len(place.parts))]


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README.read_text())
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 900, "details belong on a page below docs/"
