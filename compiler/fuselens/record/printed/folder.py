"""A report as a folder: every stage's text in order, a program for each graph, the whole as text, JSON and a page.

The folder is bounded: past a limit stages are left out, and the folder's ``explain.txt`` says so. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from html import escape
from pathlib import Path

from .. import views
from ..plain import to_plain
from ..report import Report, Stage
from .page import page
from .trace import trace

_SAFE = re.compile(r"[^\w.+-]+")
MOST_BYTES = 256 << 20  # of one report's stages
_TAKEN = 1000  # functions of one name


def dump(report: Report, directory: Path) -> list[Path]:
    """Writes the stages of every graph as ``FUNCTION/graph0/00_capture.py …`` in stage order, with ``repro.py``, and beside them
    ``explain.txt``, ``report.json``, ``trace.json`` and ``index.html``, below ``directory``. Returns what was written."""
    return write(report, directory / safe(report.function))


def safe(name: str) -> str:
    """``name`` as a file may be called everywhere."""
    return _SAFE.sub("_", name) or "_"


def write(report: Report, root: Path, first: int = 0) -> list[Path]:
    """Like :func:`dump`, into ``root`` itself, but for the texts of graphs before number ``first``, which are there. Raises OSError."""
    written: list[Path] = []
    left, cut = MOST_BYTES, 0

    def put(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        written.append(path)

    for graph in report.graphs:
        texts = [(_stage_file(i, s), s.text) for i, s in enumerate(s for s in graph.stages if not s.later)]
        for name, text in [*texts, *([("repro.py", graph.repro)] if graph.repro else [])]:
            if len(text) > left:
                cut += 1
                continue
            left -= len(text)
            if graph.id >= first:
                put(root / f"graph{graph.id}" / name, text)
    note = (
        f"\n\n{cut} texts were left out: a folder holds at most {views.bytes_text(MOST_BYTES)} of them" if cut else ""
    )
    put(root / "explain.txt", f"{views.explain(report)}{note}\n")
    put(root / "report.json", json.dumps(to_plain(report), indent=1) + "\n")
    put(root / "trace.json", trace(report))
    put(root / "index.html", page([report], title=report.function))
    return written


def _stage_file(position: int, stage: Stage) -> str:
    return f"{position:02d}_{safe(stage.name)}.{stage.suffix}"


# --- folders of a whole run -------------------------------------------------------------------------------------------


def own(directory: Path, function: str) -> Path:
    """A new folder for a function of a run: several of one name have a number. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(1, _TAKEN):
        folder = directory / (safe(function) if number == 1 else f"{safe(function)}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{directory} has {_TAKEN} folders of {function}")


def index(directory: Path) -> None:
    """A page that leads to those of a run's functions. Raises OSError."""
    pages = sorted(path.parent for path in directory.glob("*/index.html"))
    rows = "".join(f'<li><a href="{escape(p.name)}/index.html">{escape(p.name)}</a> {_first(p)}</li>' for p in pages)
    made = directory / f".index-{os.getpid()}"
    made.write_text(f'<!doctype html><meta charset="utf-8"><title>Fuselens</title><ul>{rows}</ul>\n', encoding="utf-8")
    made.replace(directory / "index.html")


def _first(folder: Path) -> str:
    try:
        return escape((folder / "explain.txt").read_text(encoding="utf-8").splitlines()[1])
    except (OSError, IndexError):
        return ""
