"""One warning for each cause, at the user's line, that the user's filters decide about."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import fuselens
from fuselens.record import notices
from fuselens.record.diagnostics import make
from fuselens.record.report import Span

FOUND = make("FL403", Span("model.py", 3, 4, 3, 9), what="g++, clang++")


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", set())
    monkeypatch.setattr(notices, "_off", False)


def said(*findings: object, **causes: str) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for finding in findings:
            notices.warn(finding, **causes)  # type: ignore[arg-type]
    return caught


def test_it_says_what_happened_where_why_and_what_to_do() -> None:
    (caught,) = said(FOUND)
    assert caught.category is fuselens.FuselensWarning
    assert issubclass(fuselens.FuselensWarning, UserWarning)
    parts = f"FL403: {FOUND.message}, at model.py:3:5.", FOUND.explanation, *FOUND.hints
    assert str(caught.message) == " ".join(parts)
    assert "\n" not in str(caught.message), "one line"


def test_a_cause_is_said_once() -> None:
    assert len(said(FOUND, FOUND, make("FL403", None, what="other"))) == 1
    others = [make("FL202", None, what=name, count=8) for name in ("f", "g", "f")]
    assert [str(w.message)[:27] for w in said(*others)] == ["FL202: no longer compiled: " for _ in "fg"]
    builds = [make("FL402", None, what=f"graph of {name}", why="no cc1plus") for name in ("f", "g")]
    assert len(said(*builds, cause="no cc1plus")) == 1


def test_threads_say_it_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=notices.warn, args=(FOUND,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(caught) == 1


def test_an_editors_process_says_nothing() -> None:
    notices.switch_off()
    assert said(FOUND) == []


def test_filters_decide() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", fuselens.FuselensWarning)
        with pytest.raises(fuselens.FuselensWarning, match="FL403"):
            notices.warn(FOUND)


def test_it_is_attributed_to_the_users_line(tmp_path: Path) -> None:
    """Frames of ours and of torch stand between it and what warns; the globals of its module stay as they are."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from fuselens.record import notices\n"
        "from fuselens.record.diagnostics import make\n"
        "class Net(torch.nn.Module):\n"
        "    forward = lambda self: notices.warn(make('FL403', what='g++'))\n"
        "Net.forward.__code__ = Net.forward.__code__.replace(co_filename=torch.__file__)\n"
        "before = set(globals())\n"
        "Net()()\n"
        "assert set(globals()) == before | {'before'}\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"{program}:8: FuselensWarning: FL403: no working C++ compiler found")


def test_the_category_needs_no_torch() -> None:
    code = "import sys, fuselens; assert fuselens.FuselensWarning; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
