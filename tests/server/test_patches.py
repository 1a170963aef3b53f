"""A break inside of a library in an editor: a verified fix at the user's line, kept as a patch that the next check uses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuselens_server.client.settings import Settings
from tests.patches import libraries

from .raw_session import RawSession


@pytest.fixture
def session(tmp_path: Path) -> Iterator[RawSession]:
    root = libraries.project(tmp_path)
    found = RawSession(root, environment={"FUSELENS_CACHE_DIR": str(tmp_path / "cache")})
    yield found
    found.clean_up()


def model(session: RawSession) -> str:
    """The program finds its library by itself: the server's interpreter has another path."""
    site = session.root.parent / "site-packages"
    return f"import sys\nsys.path.insert(0, {str(site)!r})\n{libraries.MODEL.split('@fuselens.compile', 2)[0]}" + (
        "@fuselens.compile(example_inputs=lambda: (torch.randn(3, 4),))\ndef score(x):\n    return clip(gate(x)) + 1\n"
    )


def actions(session: RawSession, path: Path, found: dict[str, Any]) -> list[dict[str, Any]]:
    params = {"textDocument": {"uri": path.as_uri()}, "range": found["range"], "context": {"diagnostics": [found]}}
    answer = session.answer(session.send("textDocument/codeAction", params, request=True))["result"] or []
    return [a.get("command", a) if isinstance(a.get("command"), dict) else a for a in answer]


def eventually(session: RawSession, path: Path, wanted: Any) -> Any:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if found := wanted():
            return found
        time.sleep(0.2)
    raise AssertionError(f"it did not come: {last(session, path)}")


def last(session: RawSession, path: Path) -> list[dict[str, Any]]:
    method = "textDocument/publishDiagnostics"
    of_path = [m for m in session.messages if m.get("method") == method and m["params"]["uri"] == path.as_uri()]
    return of_path[-1]["params"]["diagnostics"] if of_path else []


def test_from_the_break_to_the_patch(session: RawSession) -> None:
    path, text = session.root / "model.py", model(session)
    session.begin(allowedFolders=[str(session.root)], warmFiles=False, proveSeconds=0)
    session.open(path, text)

    def broken() -> list[dict[str, Any]]:
        return [d for d in last(session, path) if d["code"] in ("FL101", "FL102")]

    found = eventually(session, path, lambda: broken() if len(broken()) == 2 else None)
    lines = text.split("\n")
    assert all("clip(gate(x))" in lines[d["range"]["start"]["line"]] for d in found)

    def offered() -> list[dict[str, Any]]:
        return [a for a in actions(session, path, found[0]) if a["title"].startswith("Patch gates 1.2: ")]

    (first, *_) = eventually(session, path, offered)
    assert first["title"].endswith("(verified)") and first["command"] == "fuselens.server.patchLibrary"
    (uri,) = session.answer(session.command(first["command"], *first["arguments"]))["result"]
    kept = Path(uri.removeprefix("file://"))
    assert kept == session.root / ".fuselens/patches/gates-1.2/gates/layers.py.patch"
    assert "FL640" in eventually(
        session, path, lambda: [d["code"] for d in last(session, path)] if len(broken()) == 1 else None
    )

    answer: dict[str, Any] = {}

    def rest_patched() -> bool:
        """The other fix is tried out again, beside the patch."""
        answer.update(session.answer(session.command("fuselens.server.patchLibrary", path.as_uri())))
        return "result" in answer and answer["result"] is not None

    eventually(session, path, rest_patched)
    eventually(session, path, lambda: not broken())
    layers = session.root.parent / "site-packages/gates/layers.py"
    assert layers.read_text() == libraries.LAYERS

    assert session.answer(session.command("fuselens.server.removePatch", uri))["result"] is True
    assert not kept.exists()
    eventually(session, path, lambda: len(broken()) == 2)


def test_a_patch_that_stepped_aside_is_a_finding_of_the_function(session: RawSession) -> None:
    from fuselens.patches import project

    layers = session.root.parent / "site-packages/gates/layers.py"
    project.keep(session.root, str(layers), project.made(str(layers), libraries.LAYERS.replace("y * 2", "y + y")))
    layers.write_text(libraries.LAYERS + "\n# another\n")
    path, text = session.root / "model.py", model(session)
    session.begin(allowedFolders=[str(session.root)], warmFiles=False, proveSeconds=0, tryFixes=False)
    session.open(path, text)
    (found,) = eventually(session, path, lambda: [d for d in last(session, path) if d["code"] == "FL641"])
    assert "gates/layers.py is another text" in found["message"]
    assert "def score" in text.split("\n")[found["range"]["start"]["line"]]
    told = session.answer(session.command("fuselens.server.removePatch", path.as_uri()))
    assert "not a patch" in told["error"]["message"]


def test_patches_outside_of_the_folders_that_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src").mkdir()
    program = tmp_path / "src" / "model.py"
    program.touch()
    assert Settings(allowed_folders=(str(tmp_path),)).of_file(str(program)).patches
    inside = Settings(allowed_folders=(str(tmp_path / "src"),)).of_file(str(program))
    assert not inside.patches and inside.options == {"pins": False, "patches": False}
