"""A kernel is edited in an editor: a lens in the generated text, a verdict at each save, a pin that the next check uses."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuselens_server.client.settings import Settings
from fuselens_server.texts.document_uri import ReportDocument

from .raw_session import RawSession

MODEL = """\
import torch
import fuselens


@fuselens.compile(example_inputs=lambda: (torch.randn(8, 64), torch.randn(64)))
def scaled(x, w):
    return torch.relu(x * w) + 1.5
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[RawSession]:
    (tmp_path / "project").mkdir()
    found = RawSession(tmp_path / "project", environment={"FUSELENS_CACHE_DIR": str(tmp_path / "cache")})
    yield found
    found.clean_up()


def lenses(session: RawSession, uri: str) -> list[dict[str, Any]]:
    answer = session.answer(session.send("textDocument/codeLens", {"textDocument": {"uri": uri}}, request=True))
    return answer["result"]


def titles(session: RawSession, uri: str) -> list[str]:
    return [lens["command"]["title"] for lens in lenses(session, uri)]


def saved(session: RawSession, path: Path, text: str, version: int) -> str:
    """Saves a draft; what verifying it found."""
    path.write_text(text)
    change = {"textDocument": {"uri": path.as_uri(), "version": version}, "contentChanges": [{"text": text}]}
    session.send("textDocument/didChange", change)
    session.send("textDocument/didSave", {"textDocument": {"uri": path.as_uri()}})
    return session.answer(session.command("fuselens.server.verifyKernel", path.as_uri()))["result"]


def pinned(session: RawSession, uri: str) -> str:
    """The pin's address. Where the draft was measured to be slower, this is asked about."""
    request = session.command("fuselens.server.pinKernel", uri)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for message in list(session.messages):
            if message.get("id") == request and "method" not in message:
                return message["result"]
            if message.get("method") == "window/showMessageRequest":
                session.messages.remove(message)
                (choice,) = message["params"]["actions"]
                session.respond(message["id"], choice)
        time.sleep(0.05)
    raise AssertionError("it was not pinned")


def last_findings(session: RawSession, path: Path) -> list[dict[str, Any]]:
    method = "textDocument/publishDiagnostics"
    of_path = [m for m in session.messages if m.get("method") == method and m["params"]["uri"] == path.as_uri()]
    return of_path[-1]["params"]["diagnostics"]


def test_from_the_lens_to_the_pin(session: RawSession) -> None:
    root = session.root
    (root / "pyproject.toml").touch()
    session.begin(allowedFolders=[str(root)], warmFiles=False)
    model = root / "model.py"
    session.open(model, MODEL)
    session.findings(model)
    document = str(ReportDocument(model.as_uri(), "scaled", "cpp", "cpp", 0))
    (lens,) = lenses(session, document)
    assert lens["command"]["title"] == "✎ Edit this kernel"
    uri = session.answer(session.command(lens["command"]["command"], *lens["command"]["arguments"]))["result"]
    path = Path(uri.removeprefix("file://"))
    text = path.read_text()
    assert path.is_relative_to(root / ".fuselens" / "drafts") and 'extern "C" void mul_relu_add_0' in text

    item = {"uri": uri, "languageId": "cpp", "version": 1, "text": text}
    session.send("textDocument/didOpen", {"textDocument": item})
    assert titles(session, uri) == ["save it to verify it", "Compare with ours", "Discard"]

    told = saved(session, path, text.replace("+ 1.5f", "+ 1.25f"), 2)
    assert told.startswith("refused: on the example inputs, result 0"), told
    assert [d["code"] for d in last_findings(session, path)] == ["FL628"]
    told = saved(session, path, text.replace("+ 1.5f", "+ nothing"), 3)
    (found, *_) = last_findings(session, path)
    line = text.replace("+ 1.5f", "+ nothing").split("\n")[found["range"]["start"]["line"]]
    assert found["code"] == "FL627" and "nothing" in line, (told, found)

    told = saved(session, path, text + "// mine\n", 4)
    assert re.match("✓ equals the graph on 10 kinds of inputs · .*, ours ", told), told
    assert titles(session, uri)[:2] == ["Pin", told]
    pin = Path(pinned(session, uri).removeprefix("file://"))
    assert "// mine" in pin.read_text() and "pinned · Unpin" in titles(session, uri)

    until = time.monotonic() + 60  # the file is checked once more
    while len(found := titles(session, document)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    assert found == [f"these kernels are yours: {pin.relative_to(root).as_posix()}", "✎ Edit your kernel"]


def test_kernels_outside_of_the_folders_that_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src").mkdir()
    model = tmp_path / "src" / "model.py"
    model.touch()
    assert Settings(allowed_folders=(str(tmp_path),)).of_file(str(model)).pins
    inside = Settings(allowed_folders=(str(tmp_path / "src"),)).of_file(str(model))
    assert not inside.pins and inside.options["pins"] is False
    assert Settings(workspace_trust=True).of_file(str(model)).pins  # the person trusts the whole


def test_a_pin_and_a_draft_are_no_programs_to_check(session: RawSession) -> None:
    root = session.root
    session.begin(allowedFolders=[str(root)])
    for folder in ("drafts", "kernels"):
        path = root / ".fuselens" / folder / "0123456789abcdef" / "forward.py"
        path.parent.mkdir(parents=True)
        session.open(path, "import torch\nopen('/tmp/executed', 'w')\n")
        titles(session, path.as_uri())
    assert "refused" not in str(session.messages)
    assert not session.workers()
