"""What a check executes of a file: of programs what leads to compiled functions, everything, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuselens import cli
from fuselens.checking import check
from fuselens.config import Config

Written = Callable[..., Path]

PROGRAM = """
ran = 1 / 0
def step(x):
    print("a break")
    return x + 1
step = torch.compile(step)
step(torch.ones(3))
"""


def found(path: Path, execution: str, **options: Any) -> list[str]:
    report = check.check_file(path, config=Config(execution=execution, explore=True), **options)
    ours = (*report.diagnostics, *(d for r in report.functions for d in (*r.diagnostics, *r.breaks)))
    return [d.code for d in ours]


def test_a_program_is_evaluated(written: Written) -> None:
    assert found(written(PROGRAM), "slice") == ["FL922", "FL921", "FL103"]


def test_or_imported(written: Written) -> None:
    assert found(written(PROGRAM), "import") == ["FL903"]
    (report,) = check.check_file(written(PROGRAM.replace("1 / 0", "1")), config=Config(execution="import")).functions
    assert [d.code for d in report.diagnostics] == ["FL901"]  # the call was made, and not heard


@pytest.mark.parametrize("text", [PROGRAM, "import nowhere\n@fuselens.compile\ndef step(x):\n    print(x)\n"])
def test_or_never(text: str, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(text)
    monkeypatch.setattr(check, "opened", lambda *_: pytest.fail("the file was opened to be executed"))
    assert found(path, "never") == ["FL923", "FL103"]
    assert found(path, "never", functions=("other",)) == []


def test_never_runs_nothing_either(written: Written) -> None:
    result = check.run_function(written(PROGRAM), "step", config=Config(execution="never"))
    assert result.error is not None
    assert result.error.code == "FL923"
    assert check.warm_file(written(PROGRAM), config=Config(execution="never")).functions == []


def test_a_file_that_does_not_parse_is_refused(written: Written) -> None:
    assert found(written("def f(:"), "never") == ["FL902"]


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="give slice, import or never"):
        Config(execution="perhaps")


def test_on_the_command_line(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--execution", "never", str(written(PROGRAM))]) == 0
    printed = capsys.readouterr().out
    assert "FL923  `step` was not compiled" in printed
    assert "likely" in printed
