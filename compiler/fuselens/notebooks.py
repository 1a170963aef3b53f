"""``%load_ext fuselens``: the cell magic ``%%fuselens``, which shows what became of the compiled functions that a cell calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import config
from .record.printed.explanation import Explanation
from .record.report import Report


def load(shell: Any) -> None:
    """Registers the magic with IPython."""

    def magic(line: str, cell: str) -> None:
        """Runs the cell, and shows the report of each compiled function that was compiled in it: of all, or of those that are
        named on the line.

        %%fuselens
        step(x)

        %%fuselens step
        train(1)
        """
        names = set(line.split())
        before = {id(report): _size(report) for _, report in _reports(shell.user_ns)}
        with config.patch(assembly=("all",)):
            shell.run_cell(cell)  # which also shows its value
        seen: set[int] = set()
        for name, report in _reports(shell.user_ns):
            if id(report) not in seen and _size(report) != before.get(id(report), 0) and (not names or name in names):
                seen.add(id(report))
                _display(Explanation.of(report))

    shell.register_magic_function(magic, "cell", "fuselens")


def _reports(namespace: dict[str, Any]) -> Iterator[tuple[str, Report]]:
    """The reports of compiled functions and modules that a person has names for."""
    for name, value in list(namespace.items()):
        recorder = getattr(getattr(value, "__fuselens__", None), "recorder", None)
        if recorder is not None and not name.startswith("_"):
            yield name, recorder.report


def _size(report: Report) -> int:
    return len(report.graphs) + len(report.breaks) + len(report.diagnostics)


def _display(explanation: Explanation) -> None:
    from IPython.display import display

    display(explanation)
