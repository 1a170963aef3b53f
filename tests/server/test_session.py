"""The documents' state and the settings, without a server."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from lsprotocol import types as lsp

from fuselens.record import diagnostics as codes
from fuselens.record.report import FileReport, RunResult
from fuselens_server.client import settings
from fuselens_server.client.settings import Settings
from fuselens_server.texts.session import Session, disk_text

URI = "file:///tmp/a%20b.py"


def open_document(text: str):
    session = Session()
    document = session.open(URI, 1, text)
    assert document is not None
    return session, document


def change(
    line: int, character: int, end_line: int, end_character: int, text: str
) -> lsp.TextDocumentContentChangePartial:
    where = lsp.Range(lsp.Position(line, character), lsp.Position(end_line, end_character))
    return lsp.TextDocumentContentChangePartial(where, text)


def test_documents_are_found_by_any_spelling_of_their_uri():
    session, document = open_document("x = 1\n")
    assert document.path == "/tmp/a b.py"
    assert session.get("file:///tmp/a b.py") is document
    assert session.is_open(document)
    assert session.close(URI) is document
    assert not session.is_open(document)
    assert session.close(URI) is None


@pytest.mark.parametrize("uri", ["untitled:Untitled-1", "git:/tmp/a.py?x", "vscode-notebook-cell:/a.ipynb#W0", ""])
def test_only_files_are_documents(uri):
    assert Session().open(uri, 1, "") is None


def test_changes_apply_in_order_with_utf16_positions():
    _, document = open_document("a = '😀'\r\nb = 2\r\n")
    document.change([change(0, 5, 0, 7, "😀😀"), change(0, 9, 0, 9, "!"), change(1, 0, 1, 1, "c")], 2)
    assert document.text.text == "a = '😀😀!'\r\nc = 2\r\n"
    assert document.version == 2


def test_a_syntax_error_keeps_the_functions_found_before(toy):
    session, document = open_document(toy.text)
    assert [a.qualname for a in session.view(document).annotated] == ["toy"]
    document.change([change(0, 0, 0, 0, "(\n")], 2)
    view = session.view(document)
    assert [a.qualname for a in view.annotated] == ["toy"]
    assert view.name_range("toy").start.line == 4  # shifted
    document.change([change(0, 0, 1, 0, "")], 3)
    assert session.view(document).name_range("toy").start.line == 3


def test_a_failed_check_keeps_the_last_good_report(toy):
    session, document = open_document(toy.text)
    document.begin()
    document.finish(FileReport(toy.path, [toy.report()]))
    assert not session.view(document).stale
    document.begin()
    document.finish(FileReport(toy.path, [], [codes.make("FL903")]))
    view = session.view(document)
    assert view.stale
    assert view.function("toy") is not None
    assert [d.code for d in view.failures] == ["FL903"]
    document.begin()
    document.finish(FileReport(toy.path, [toy.report()], [codes.make("FL912", what="other")]))
    assert not session.view(document).stale


def test_a_run_that_ends_during_a_check_is_of_what_that_finds(toy):
    """And one of another text, saved since it began, is of nothing that is known."""
    session, document = open_document(toy.text)

    def check(text: str, fingerprint: str) -> None:
        document.change([change(0, 0, document.text.line_count, 0, text)], None)
        document.begin()
        document.finish(FileReport(toy.path, [dataclasses.replace(toy.report(), fingerprint=fingerprint)]))

    def mark() -> str:
        return session.view(document).runs["toy"].fingerprint

    result = RunResult("toy", True, "")
    document.begin()
    document.ran_function(result, toy.text)
    assert not mark()
    check(toy.text, "first")
    assert mark() == "first"
    document.begin()
    document.ran_function(result, "another text")
    check(toy.text, "second")
    assert not mark()
    document.ran_function(result, toy.text)
    assert mark() == "second"
    check(toy.text + "x = 1\n", "third")
    assert mark() == "second"


def test_edits_during_a_check_are_followed(toy):
    session, document = open_document(toy.text)
    document.begin()
    document.change([change(0, 0, 0, 0, "\n\n")], 2)
    document.finish(FileReport(toy.path, [toy.report()]))
    view = session.view(document)
    assert view.stale
    assert view.compiled.range(toy.span(toy.text, "b.sum() < 0")).start.line == 7


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("import fuselens\nx = (\n", "("),
        ("import fuselens\ndef f(:\n    pass\n", ":"),
        ("import fuselens\nx = '😀' 1\n", "1"),
        ("import fuselens\r\n\tx = 1\r\n", "x = 1"),
        ("import fuselens\nx = 'abc\n", "'"),
        ("import fuselens\nclass", "s"),
        ("import fuselens\nx = 1\0\n", "i"),
        ("import fuselens\n" + "(" * 1000 + ")" * 1000, None),
        ("import fuselens\ns = '\ud83d'\n", None),
    ],
)
def test_syntax_errors_have_a_place(text, shown):
    session, document = open_document(text)
    finding = document.parse()
    assert finding is not None
    assert finding.code == "FL902"
    document.fail(finding)
    place = session.view(document).failed.range(finding.span)
    assert place is not None
    found = document.text.text[document.text.offset(place.start) : document.text.offset(place.end)]
    assert found == shown if shown else len(found) >= 1


def test_a_syntax_error_in_a_file_that_is_not_ours_is_not_reported():
    _, document = open_document("x = (\n")
    assert document.parse() is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"x = 1\r\n", "x = 1\r\n"),
        ("é".encode(), "é"),
        (b"\xef\xbb\xbfx", "x"),
        ("# coding: latin-1\né".encode("latin-1"), "# coding: latin-1\né"),
        (b"\xff\xfe\xfd", None),
        (b"# coding: nonsense\n", None),
    ],
)
def test_disk_text_is_decoded_as_python_would(tmp_path, data, text):
    (tmp_path / "f.py").write_bytes(data)
    assert disk_text(str(tmp_path / "f.py")) == text


def test_disk_text_of_no_file(tmp_path):
    assert disk_text(str(tmp_path / "none")) is None
    assert disk_text(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("values", "attribute", "expected"),
    [
        ({"interpreter": "/x/python"}, "interpreter", "/x/python"),
        ({"interpreter": ""}, "interpreter", "base"),
        ({"interpreter": None}, "interpreter", "base"),
        ({"timeout": 2}, "timeout", 2),
        ({"timeout": 0.5}, "timeout", 0.5),
        ({"memoryLimit": 100}, "memory_limit", 100),
        ({"target": "cpu"}, "target", "cpu"),
        ({"target": "cuda:sm_90a"}, "target", "cuda:sm_90a"),
        ({"target": ""}, "target", ""),
        ({"codeLens": False}, "code_lens", False),
        ({"trace": {"server": "off"}}, "timeout", 60.0),
        (None, "timeout", 60.0),
        ([], "timeout", 60.0),
    ],
)
def test_settings_are_read(values, attribute, expected):
    found, problems = settings.read(values, Settings(interpreter="base"))
    assert getattr(found, attribute) == expected
    assert problems == []


@pytest.mark.parametrize(
    "values",
    [{"timeout": "1"}, {"timeout": True}, {"timeout": 0}, {"memoryLimit": 1.5}, {"interpreter": 3}, {"codeLens": 1},
     {"timeout": -1}, {"concurrentChecks": 0}, {"target": "sm_90"}],
)  # fmt: skip
def test_wrong_settings_are_named_and_ignored(values):
    found, problems = settings.read(values)
    assert found == Settings()
    assert len(problems) == 1
    assert next(iter(values)) in problems[0]


def test_the_interpreters_path_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert Settings().python() == sys.executable
    assert Settings(interpreter="~/env/bin/python").python() == "/home/me/env/bin/python"
    assert Settings(interpreter="${workspaceFolder}/env/bin/python").python("/w") == "/w/env/bin/python"


def test_limits_and_options():
    given = Settings(timeout=3, memory_limit=5, target="cpu")
    assert (given.limits.seconds, given.limits.memory_mib, given.options) == (3, 5, {"target": "cpu"})
    assert Settings().options == {}


def test_the_server_never_imports_torch_or_the_compiler():
    """Memory and start-up time: the server is plain Python plus pygls, whatever the worker needs."""
    program = (
        "import sys, fuselens_server.registration, fuselens_server.__main__\n"
        "fuselens_server.registration.create()\n"
        "bad = {'torch', 'numpy', 'triton', 'sympy', 'fuselens.api', 'fuselens.pipeline', 'fuselens.checking.check'}\n"
        "print(sorted(bad & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=server_env())
    assert done.stdout == "[]\n"


def server_env() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
