"""Whether a patch of the project still holds for what is installed here, as JSON for who asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ...capture.program import overlays
from ...config import Config
from ...patches import differences, distributions, project, records
from ...pins import place
from ...pins.place import Unreadable
from ...record.report import Diagnostic
from .. import trials
from ..parsing import FileRefused
from . import trying


def of_patch(path: str, qualname: str, patch: str, config: Config, progress: Callable[[str], None]) -> str:
    """``{"why": "", "patch": …}``: the text of the patch file as it is verified now, or why it is not."""
    try:
        return json.dumps({"why": "", "patch": _verified(path, qualname, Path(patch), config, progress)})
    except _Refused as refusal:
        return json.dumps({"why": str(refusal)})


class _Refused(Exception):
    """The patch does not hold; the message says why."""


def _verified(path: str, qualname: str, file: Path, config: Config, progress: Callable[[str], None]) -> str:
    try:
        patch = records.read(place.read(file))
    except (Unreadable, records.NotAPatch) as error:
        raise _Refused(f"it cannot be read: {error}") from None
    library = distributions.located(patch.file)
    if library is None:
        raise _Refused(f"{patch.file} of {patch.distribution} is not installed here")
    source = overlays.installed_text(library)
    try:
        after = differences.applied(source, patch.difference)
        overlays.changed(library, source, after)
    except differences.DoesNotApply as error:
        raise _Refused(f"it does not apply to what is installed: {error}") from None
    except overlays.DoesNotFit as error:
        raise _Refused(str(error)) from None
    others = {p: text for p, text in overlays.texts(overlays.of(path)).items() if p != library}
    try:
        outcome, gone = trials.verify_texts(path, qualname, {**others, library: after}, config, progress)
    except FileRefused as refused:
        raise _Refused(f"{path} cannot be looked at: {refused.diagnostic.message}") from None
    here = [d for d in gone if d.span is not None and d.span.file == library]
    if outcome.why or not here:
        raise _Refused(outcome.why or f"{qualname} has no break in {patch.file} that it removes")
    return records.written(
        _of(library, after, here, trying.said(path, qualname, outcome), trying.shown(path, qualname))
    )


def _of(library: str, after: str, removed: list[Diagnostic], said: str, shown: str) -> records.Patch:
    try:
        return project.made(library, after, [trying.about(d) for d in removed], [said], [shown])
    except (project.Refused, OSError) as error:
        raise _Refused(str(error)) from None
