"""The requests of a search and their answers, as JSON: both ends of the pipe to the children are here."""

from __future__ import annotations

import json
from typing import Any

from ..record import wire
from .search import Verdict
from .straight import Part


def probe_options(
    part: Part | None, until: str, slower_than: float | None, write: str = "", about: str = ""
) -> dict[str, Any]:
    """What a ``probe`` request says beside the program: which part of it (None: all), compiled until which stage; or ``write``,
    where it shall be written to."""
    plain = None if part is None else [part.kept, part.given, part.results]
    return {"part": plain, "until": until, "slower_than": slower_than, "write": write, "about": about}


def verdict_of(event: wire.Event) -> Verdict:
    """The answer to a ``probe``; a child that died says nothing else."""
    if event.text:
        return Verdict(**json.loads(event.text))
    why = event.file.diagnostics[0].message if event.file and event.file.diagnostics else "it ended without an answer"
    return Verdict("crashed", why)
