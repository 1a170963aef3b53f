"""What a child answers to a ``kernel`` request, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...config import Config
from ...pins import trying
from ...record.plain import to_plain


def of_kernel(
    path: str | Path, qualname: str, options: dict[str, Any], config: Config, progress: Callable[[str], None], seconds: float
) -> str:  # fmt: skip
    """Raises FileRefused."""
    from . import timing, verifying

    unit, config = trying.unit_of(options), dataclasses.replace(config, pins=False)
    if options["kernel"] == "measure":
        return json.dumps(to_plain(timing.measure(path, qualname, unit, options["text"], config, progress)))
    found = verifying.verify(path, qualname, unit, options["text"], config, progress, seconds)
    return json.dumps(
        {"verdict": to_plain(found.verdict), "ours": found.ours, "known": {"axes": found.axes, "owner": found.owner}}
    )
