"""What changes make of a file, and how a fix is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from fuselens.record.report import Edit, Fix, Span
from fuselens_server.agents import fixing
from fuselens_server.agents.arguments import ToolError, WhatIfArguments, read
from fuselens_server.agents.changes import changed, changes
from fuselens_server.agents.subjects import Place, Subject
from fuselens_server.work.worker_pool import Environment

from .programs import BRANCH


def subject_of(text: str, path: str = "/work/a.py", data: bytes | None = None) -> Subject:
    return Subject(path, text.encode() if data is None else data, Place(Environment("python", "/work")), ("step",))


def texts_of(text: str, **asked: Any) -> list[str]:
    about = subject_of(text)
    return [changed(about, change) for change in changes(read(WhatIfArguments, {"target": "a.py", **asked}), about)]


def test_each_change_edits_its_own_copy() -> None:
    dynamic, inside, cast, other = texts_of(
        BRANCH, dynamic=True, no_grad=True, autocast="bfloat16", replacements=[{"old": "x * 2", "new": "x * 3"}]
    )
    assert "@fuselens.compile(dynamic=True)\ndef step" in dynamic
    assert (
        '    """Scaled."""\n    with torch.no_grad():\n        if x.sum() > 0:\n            x = x * 2\n        return x + 1'
        in inside
    )
    assert '    with torch.autocast("cpu", dtype=torch.bfloat16):\n        if' in cast
    assert other == BRANCH.replace("x * 2", "x * 3")
    for text in (dynamic, inside, cast, other):
        compile(text, "a.py", "exec")


def test_changes_together_are_one() -> None:
    (text,) = texts_of(BRANCH, dynamic=False, no_grad=True, autocast="bfloat16", together=True)
    compile(text, "a.py", "exec")
    assert "dynamic=False" in text and "no_grad" in text and "autocast" in text


def test_an_argument_that_is_given_is_replaced() -> None:
    (text,) = texts_of(BRANCH.replace("@fuselens.compile", "@fuselens.compile(dynamic=True)"), dynamic=False)
    assert "@fuselens.compile(dynamic=False)" in text


@pytest.mark.parametrize(
    ("text", "asked", "said"),
    [
        (BRANCH, {"replacements": [{"old": "x", "new": "y"}]}, "occurs .* times in a.py"),
        (BRANCH, {"replacements": [{"old": "", "new": "y"}]}, "is empty"),
        (BRANCH, {"compile_target": "tpu"}, "compile_target is 'tpu': give auto, cpu"),
        (BRANCH.replace("x + 1", 'x + len("""\n""")'), {"no_grad": True}, "cannot be indented"),
        ("import fuselens\nstep = fuselens.compile(print)\n", {"no_grad": True}, "is no function of this file"),
        (BRANCH, {"no_grad": True, "replacements": [{"old": "    if x.sum() > 0:\n        x = x * 2\n", "new": ""}], "together": True},
         "two changes edit the same place"),
    ],
)  # fmt: skip
def test_what_cannot_be_changed_is_said(text: str, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError, match=said):
        texts_of(text, **asked)


def test_a_fix_keeps_encoding_and_line_ends(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\r\n# é\r\nx = 1\r\n"
    path = tmp_path / "a.py"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o640)
    about = subject_of("", str(path), path.read_bytes())
    fix = Fix("two lines", (Edit(Span(str(path), 3, 0, 3, 5), "x = 2\ny = 3"),))
    data = fixing._encoded(about, fix)
    fixing._write(about, data)
    assert path.read_bytes() == text.replace("x = 1", "x = 2\r\ny = 3").encode("latin-1")
    assert path.stat().st_mode & 0o777 == 0o640 and [p.name for p in tmp_path.iterdir()] == ["a.py"]


def test_a_file_that_changed_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    about = subject_of("", str(path), b"x = 0\n")
    with pytest.raises(ToolError, match="no longer the file that was checked"):
        fixing._write(about, b"x = 2\n")
    assert path.read_text() == "x = 1\n" and [p.name for p in tmp_path.iterdir()] == ["a.py"]
    assert about.sha256 == hashlib.sha256(b"x = 0\n").hexdigest() and not about.holds()
