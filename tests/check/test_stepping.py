"""Stepping through a function: it runs as it is written, on its example inputs, and a debugger stops in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselens import stepping

PROGRAM = """
    @torch.compile
    def inner(x):
        doubled = x * 2
        return doubled

    @fuselens.compile
    def outer(x: Float32[Tensor, "4 3"], scale: float = 2.0):
        assert not torch.compiler.is_compiling()
        found = inner(x)
        return {"found": found, "more": (found * scale, 1)}

    @fuselens.compile
    def broken(x: Float32[Tensor, "4"]):
        raise KeyError("of the program")

    @fuselens.compile
    def unknown(x):
        return x.items()
"""
SCRIPT = """
    model = nn.Linear(3, 2)

    @torch.compile
    def step(x):
        hidden = model(x)
        return hidden.relu()

    if __name__ == "__main__":
        for batch in range(3):
            step(torch.ones(5, 3))
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this test alone: stepping switches torch.compile off for its whole process."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def debugged(path: Path, function: str, *commands: str) -> str:
    """What Python's own debugger says, given these commands."""
    given = [word for command in (*commands, "q") for word in ("-c", command)]
    command = [sys.executable, "-m", "pdb", *given, "-m", "fuselens.stepping", str(path), function]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    return ran.stdout


def test_breakpoints_in_the_function_and_in_what_it_compiles_are_honoured(written: Callable[..., Path]) -> None:
    path = written(PROGRAM)
    inside, after = line_of(path, "return doubled"), line_of(path, 'return {"found"')
    said = debugged(
        path, "outer", f"b {path}:{inside}", f"b {path}:{after}", "c", "p ('inside', doubled.shape)", "c", "p ('after', scale)", "c"
    )  # fmt: skip
    assert "outer runs uncompiled, as it is written, on its example inputs: float32[4, 3]" in said
    assert "('inside', torch.Size([4, 3]))" in said and "('after', 2.0)" in said, said
    assert "outer returned {'found': float32[4, 3], 'more': (float32[4, 3], 1)}" in said


def test_a_program_is_evaluated_as_by_a_check(written: Callable[..., Path]) -> None:
    path = written(SCRIPT)
    said = debugged(path, "step", f"b {path}:{line_of(path, 'return hidden')}", "c", "p ('hidden', hidden.shape)", "c")
    assert "('hidden', torch.Size([5, 2]))" in said, said


def test_what_cannot_be_called_says_why(written: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = written(PROGRAM)
    assert stepping.main([str(path), "unknown"]) == 1
    assert "unknown cannot be called: " in capsys.readouterr().err
    assert stepping.main([str(path), "nobody"]) == 1
    assert "nobody" in capsys.readouterr().err
    assert stepping.main([str(path)]) == 2


def test_what_the_function_raises_is_for_the_debugger(written: Callable[..., Path]) -> None:
    with pytest.raises(KeyError, match="of the program"):
        stepping.main([str(written(PROGRAM)), "broken"])
