"""What a child answers to ``changes`` and ``change`` requests, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...config import Config
from ...record import plain
from ...record.wire import Request
from ...source.changes import Change
from . import finding, measuring
from .clock import Clock

Progress = Callable[[str], None]


def answered(request: Request, config: Config, progress: Progress, seconds: float) -> str:
    """The changes that there may be, or what measuring the one of the options gave. Raises FileRefused."""
    (function,) = request.functions
    found: dict[str, Any] = {}
    if request.method == "changes":
        try:
            changes = finding.changes_of(request.path, function, request.source, config, progress)
            found["changes"] = [plain.to_plain(change) for change in changes]
        except finding.CannotBeMeasured as error:
            found["stopped"] = str(error)
    else:
        change = plain.from_plain(Change, request.options["change"], [])
        clock = Clock.until(seconds, request.limits.processor_seconds)
        measure = measuring.Measure(request.path, function, request.source, change, config, progress, clock)
        found["tried"] = plain.to_plain(measure.tried())
    return json.dumps({**found, "seconds": Clock.used()})
