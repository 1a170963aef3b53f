"""One real editor for all tests: code-server, with the packaged extension, in headless Chromium."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "scripts")]

import editor  # noqa: E402
from workbench import Chromium, Probe, Workbench, until  # noqa: E402

OUTPUT = HERE / "output"
VSIX = ROOT / "extension" / "dist" / "fuselens.vsix"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1800))  # each wait has a limit of its own


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(OUTPUT, ignore_errors=True)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    names = [os.environ.get("FUSELENS_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    missing = [
        what
        for what, present in {
            "Chromium (Debian: apt-get install chromium)": found,
            "code-server (make editor)": editor.installed(),
            "the packaged extension (make extension)": VSIX.is_file(),
            "playwright-core (make browser)": (HERE / "node_modules" / "playwright-core").is_dir(),
        }.items()
        if not present
    ]
    if missing:
        message = "the tests in a real editor need " + ", ".join(missing)
        if os.environ.get("FUSELENS_E2E") == "required":
            pytest.fail(message)
        pytest.skip(message)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of examples/, so that tests may edit."""
    folder = tmp_path_factory.mktemp("editor") / "examples"
    shutil.copytree(ROOT / "examples", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="session")
def workbench(chromium_path: str, workspace: Path) -> Iterator[Workbench]:
    home = workspace.parent / "home"
    home.mkdir()
    port_file = home / "probe"
    os.environ["FUSELENS_PROBE"] = str(port_file)
    os.environ["FUSELENS_STUB_PYTHON"] = sys.executable
    # An editor started from a shell that unbuffers Python must work: the extension takes the variable away.
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ["PIP_NO_INDEX"] = "1"  # nothing is downloaded by a test
    server = editor.installed()
    assert server is not None
    vsixes = [VSIX, *(pack(folder, home) for folder in (HERE / "extensions").iterdir())]
    # The interpreter is the one that the Python extension has selected.
    settings: dict[str, object] = {"workbench.startupEditor": "none", "editor.cursorBlinking": "solid"}
    settings |= {"fuselens.proveSeconds": 0, "fuselens.whatIfSeconds": 0}
    port = editor.free_port()
    with editor.serve(server, home, vsixes, port=port, settings=settings):
        page = Chromium(chromium_path)
        try:
            page("goto", f"http://127.0.0.1:{port}/?folder={quote(str(workspace))}")
            probe = Probe(port_file)
            until("extension host", probe.ready)
            bench = Workbench(page, probe, OUTPUT)
            bench.visible(".monaco-workbench .explorer-folders-view .monaco-list-row")
            yield bench
        finally:
            page.close()
    shutil.copytree(home / "data" / "logs", OUTPUT / "logs", dirs_exist_ok=True)


@pytest.fixture(autouse=True)
def picture_of_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keeps the screen of a test that failed."""
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before and "workbench" in request.fixturenames:
        request.getfixturevalue("workbench").screenshot(f"failed-{request.node.name}")


def pack(folder: Path, into: Path) -> Path:
    """A ``.vsix`` of a folder that holds a plain JavaScript extension."""
    import json

    about = json.loads((folder / "package.json").read_text())
    identity = f"Id={quoteattr(about['name'])} Version={quoteattr(about['version'])}"
    manifest = (
        '<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011"><Metadata>'
        f'<Identity Language="en-US" {identity} Publisher={quoteattr(about["publisher"])}/>'
        f"<DisplayName>{about['name']}</DisplayName></Metadata>"
        '<Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation><Dependencies/><Assets>'
        '<Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>'
        "</Assets></PackageManifest>"
    )
    types = (
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension=".json" ContentType="application/json"/>'
        '<Default Extension=".js" ContentType="application/javascript"/>'
        '<Default Extension=".vsixmanifest" ContentType="text/xml"/></Types>'
    )
    vsix = into / f"{about['publisher']}.{about['name']}.vsix"
    with zipfile.ZipFile(vsix, "w") as archive:
        archive.writestr("extension.vsixmanifest", manifest)
        archive.writestr("[Content_Types].xml", types)
        for file in folder.iterdir():
            archive.write(file, f"extension/{file.name}")
    return vsix
