"""How a draft is verified: what is asked of a worker's children, one after the other, and what their answers mean.

The first compares the graph with eager, the second takes times. Who asks them is the command line or the language server.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record import wire
from ..record.plain import from_plain, to_plain
from . import drafts, interface, texts
from .records import Found, Times, Unit, Verdict

_RAISED = re.compile(r"\w+: ")  # an exception of ours, which no kernel is to blame for
_DIED = re.compile(r"killed its process \((.*?)\)(?: at line| while compiling|$)")
_OF_MEMORY = ("SIGSEGV", "SIGBUS")
_READS = ", as it reads or writes beyond memory that it was given"
_DEATHS = {"FL905": "it did not end within {limit:g} s", "FL910": "it took more than {memory} MiB of memory"}


@dataclass(frozen=True, slots=True)
class Question:
    """What a child is asked: options of a ``kernel`` request about one function of ``path``."""

    path: Path
    function: str
    options: dict[str, Any]


Asking = Generator[Question, tuple[wire.Event, str], Verdict]
"""Yields questions; is sent the result of each, and what the child last said that it does."""


def trying(path: Path, text: str, limits: wire.Limits) -> Asking:
    """Verifies the ``text`` of a draft, and keeps the verdict beside it. Raises Unreadable and OSError."""
    draft = drafts.read(path)
    unit, file = draft.unit, drafts.function_of(path, draft)
    verdict, ours, known = interface.refused(unit, text), "", dict[str, Any]()
    if verdict is None:
        event, doing = yield _question(file, unit, text, "verify")
        verdict, ours = _verdict(event, doing, unit, text, limits)
        known = json.loads(event.text)["known"] if event.text else {}
    if verdict.verified is not None and not verdict.found:
        event, _ = yield _question(file, unit, text, "measure")
        verdict = _with_times(verdict, event)
    drafts.judged(path, verdict, ours, **known)
    return verdict


def _question(file: Path, unit: Unit, text: str, what: str) -> Question:
    return Question(file, unit.function, {**unit.options, "kernel": what, "unit": to_plain(unit), "text": text})


def unit_of(options: dict[str, Any]) -> Unit:
    return from_plain(Unit, options["unit"])


def _verdict(event: wire.Event, doing: str, unit: Unit, text: str, limits: wire.Limits) -> tuple[Verdict, str]:
    if event.text:
        answer = json.loads(event.text)
        return from_plain(Verdict, answer["verdict"]), answer["ours"]
    mine = texts.hash_of(unit.language, text)
    finding = event.file.diagnostics[0] if event.file and event.file.diagnostics else None
    if finding is None:
        return Verdict(mine, None, (Found(1, "it was not verified: the check was ended"),)), ""
    kind = doing.partition(": ")[2]
    on = f"on {kind}, " if kind else ""
    if finding.code in _DEATHS:
        why = on + _DEATHS[finding.code].format(limit=limits.seconds, memory=limits.memory_mib)
    elif finding.code == "FL906" and not _RAISED.match(cause := _cause(finding.message)):
        why = f"{on}it crashes: {cause}{_READS if cause in _OF_MEMORY else ''}"
    else:
        return Verdict(mine, None, (Found(1, f"it could not be verified: {finding.code}: {finding.message}"),)), ""
    return Verdict(mine, None, (Found(1, why, code="FL629"),)), ""


def _cause(message: str) -> str:
    """What a finding that a process died says of it."""
    found = _DIED.search(message)
    return found[1] if found else message


def _with_times(verdict: Verdict, event: wire.Event) -> Verdict:
    """Without times where none could be taken."""
    assert verdict.verified is not None
    answer = json.loads(event.text) if event.text else {}
    yours, ours = (from_plain(Times, answer[k]) if answer.get(k) else None for k in ("yours", "ours"))
    why = answer.get("why", "") if yours else answer.get("why") or "the process that measures it ended"
    taken = {"yours": yours, "ours": ours, "unmeasured": why, "kernels": answer.get("kernels", {})}
    return dataclasses.replace(verdict, verified=dataclasses.replace(verdict.verified, **taken))
