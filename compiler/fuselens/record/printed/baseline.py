"""What was known of functions when somebody accepted it, so that only what is new counts: breaks, recompiles, graphs that run
eagerly, kernels, bytes.

A baseline is a JSON file that is kept with the program. It names files relative to its own folder, and findings by code and
message, not by line: code that moves is not new. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import views
from ..figures import counts, key, moved_bytes
from ..report import Diagnostic, FileReport, Report

SCHEMA = 1


class BaselineError(Exception):
    """The text is no baseline; the message says why."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was accepted of one function, or of a file as a whole (``""`` for its name)."""

    target: str = ""
    findings: Mapping[str, int] = field(default_factory=dict)  # "FL101 message": how many
    kernels: int | None = None
    bytes: int | None = None  # that its kernels read and write in a call


@dataclass(frozen=True, slots=True)
class News:
    """Something that the baseline does not have: a finding, or a number that grew."""

    file: str
    function: str
    what: str
    finding: Diagnostic | None = None


def findings(file: FileReport) -> Iterator[tuple[str, Diagnostic]]:
    """What counts of a file, each with its function: every break, whatever it is called, and what prevents or recompiles."""
    breaks = {id(d) for report in file.functions for d in report.breaks}
    return (pair for pair in views.file_diagnostics(file) if id(pair[1]) in breaks or counts(pair[1]))


def accepted(files: Sequence[FileReport], folder: str) -> dict[str, Accepted]:
    """The baseline of reports; ``folder`` is where it will be kept."""
    out: dict[str, Accepted] = {}
    for file in files:
        counted: dict[str, Counter[str]] = {"": Counter(), **{report.function: Counter() for report in file.functions}}
        for function, found in findings(file):
            counted[function][key(found)] += 1
        for report in file.functions:
            name = f"{_relative(file.file, folder)}::{report.function}"
            out[name] = Accepted(
                report.target, dict(counted[report.function]), len(report.kernels), moved_bytes(report)
            )
        if counted[""]:
            out[f"{_relative(file.file, folder)}::"] = Accepted("", dict(counted[""]))
    return out


def _relative(file: str, folder: str) -> str:
    return os.path.relpath(os.path.abspath(file), os.path.abspath(folder)).replace(os.sep, "/")


def news(files: Sequence[FileReport], before: Mapping[str, Accepted], folder: str) -> list[News]:
    """What of the reports is not in the baseline ``before``."""
    out: list[News] = []
    for file in files:
        left = {name: Counter(one.findings) for name, one in before.items()}
        for function, found in findings(file):
            known = left.get(f"{_relative(file.file, folder)}::{function}", Counter[str]())
            if known[key(found)] > 0:
                known[key(found)] -= 1
            else:
                out.append(News(file.file, function, key(found), found))
        for report in file.functions:
            one = before.get(f"{_relative(file.file, folder)}::{report.function}")
            if one is not None and one.target == report.target:
                out += [News(file.file, report.function, what) for what in _grown(one, report)]
    return out


def _grown(before: Accepted, now: Report) -> Iterator[str]:
    if before.kernels is not None and len(now.kernels) > before.kernels > 0:
        yield f"kernels were {before.kernels}, and are {len(now.kernels)}: what was fused is not any more"
    moved = moved_bytes(now)
    if before.bytes is not None and moved is not None and moved > before.bytes > 0:
        yield f"its kernels moved {views.bytes_text(before.bytes)} in a call, and now {views.bytes_text(moved)}"


def written(content: Mapping[str, Accepted]) -> str:
    functions: dict[str, Any] = {}
    for name, one in sorted(content.items()):
        functions[name] = {"target": one.target, "findings": dict(sorted(one.findings.items()))}
        functions[name] |= {k: v for k, v in (("kernels", one.kernels), ("bytes", one.bytes)) if v is not None}
    return json.dumps({"fuselens_baseline": SCHEMA, "functions": functions}, indent=1, ensure_ascii=False) + "\n"


def read(text: str) -> dict[str, Accepted]:
    """The content of a baseline. Raises BaselineError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise BaselineError(f"it is no JSON ({error})") from None
    if (
        not isinstance(data, dict)
        or data.get("fuselens_baseline") != SCHEMA
        or not isinstance(data.get("functions"), dict)
    ):
        raise BaselineError(
            f'it has no `"fuselens_baseline": {SCHEMA}` with functions: make it again with --update-baseline'
        )
    out = {}
    for name, one in data["functions"].items():
        counted = one.get("findings") if isinstance(one, dict) else None
        if not isinstance(counted, dict) or not all(isinstance(n, int) for n in counted.values()):
            raise BaselineError(f"the findings of {name} are no counts")
        numbers = [one.get(k) if isinstance(one.get(k), int) else None for k in ("kernels", "bytes")]
        out[name] = Accepted(str(one.get("target", "")), counted, *numbers)
    return out
