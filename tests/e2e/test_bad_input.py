"""Files that fail in every way: each gives one clear diagnostic, and the next good save works."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from workbench import Workbench, until

GOOD = """
import fuselens
from jaxtyping import Float32
from torch import Tensor


@fuselens.compile
def good(x: Float32[Tensor, "8"]) -> Float32[Tensor, "8"]:
    return x * 2 + 1
"""
ERROR, HINT = 0, 3


@dataclass(frozen=True)
class Bad:
    """A file's text, the code of the one diagnostic that it gives, and what is underlined (or its line)."""

    source: str
    code: str
    line: str
    severity: int = ERROR


CASES = {
    "syntax-error": Bad("import fuselens\n\ndef broken(:\n    pass\n", "FL902", "def broken(:"),
    "raises-at-import": Bad("import fuselens\n\nraise ValueError('no')\n" + GOOD, "FL903", "raise ValueError('no')"),
    "exits-at-import": Bad("import sys\n\nclass C:\n    sys.exit(3)\n" + GOOD, "FL904", "    sys.exit(3)"),
    "loops-at-import": Bad("class C:\n    x = 0\n    while True:\n        x += 1\n" + GOOD, "FL905", "    while True:"),
    "aborts": Bad("import os\n\nos.abort()\n" + GOOD, "FL906", "os.abort()"),
    "no-example-inputs": Bad(
        "import fuselens\n\n\n@fuselens.compile\ndef unknown(x):\n    return x + 1\n", "FL901", "def unknown(x):", HINT
    ),
}


@contextlib.contextmanager
def limited(workbench: Workbench, seconds: int | None) -> Iterator[None]:
    """With this limit of a check's time. What ends by itself has the usual one, since the machine may be busy."""
    workbench.probe.setting("fuselens.timeout", seconds)
    yield
    workbench.probe.setting("fuselens.timeout", None)


@pytest.mark.parametrize("name", CASES)
def test_one_diagnostic_and_the_next_good_save_works(workbench: Workbench, workspace: Path, name: str) -> None:
    case = CASES[name]
    path = workspace / f"{name.replace('-', '_')}.py"
    path.write_text(textwrap.dedent(case.source))
    with limited(workbench, 8 if name == "loops-at-import" else None):
        workbench.probe.open(path)
        found = until(f"diagnostic for {name}", lambda: workbench.probe.diagnostics(path))
    assert [(d.code, d.severity) for d in found] == [(case.code, case.severity)], found
    shown = path.read_text().split("\n")[found[0].line]
    # An endless loop is stopped at whichever of its lines it had reached.
    assert shown == case.line or name == "loops-at-import", shown
    workbench.screenshot(f"20-{name}")

    workbench.probe.rewrite(path, GOOD)
    until("the good text compiled", lambda: workbench.probe.compiles(path))
    assert workbench.probe.diagnostics(path) == []


def test_a_megabyte_on_standard_output_changes_nothing(workbench: Workbench, workspace: Path) -> None:
    path = workspace / "noisy.py"
    path.write_text("print('noise ' * 200_000)\n" + GOOD)
    workbench.probe.open(path)
    until("the noisy file compiled", lambda: workbench.probe.compiles(path))
    assert workbench.probe.diagnostics(path) == []
