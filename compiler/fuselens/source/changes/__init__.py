"""Changes that may make a function faster or smaller, found in its text and in the report of its compilation.

A producer gives what the text suggests, each as edits of the file. What the text alone shows to be another program is ``refused`` with the
reason. Whether a change is one, and what it gains, is measured (:mod:`fuselens.checking.changes`). Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator

from .change import Change, Place
from .contexts import inside, precision_changes
from .copies import copy_changes
from .gradients import gradient_changes
from .layouts import layout_changes
from .options import compiled_with, option_changes

__all__ = ["Change", "Place", "compiled_with", "found", "inside"]

_PRODUCERS = (copy_changes, gradient_changes, option_changes, precision_changes, layout_changes)
_MOST = 24


def found(place: Place) -> list[Change]:
    """The changes to try, the likely ones first, and those that are refused. Edits that are the same are one change."""
    every = {change.edits or (change.kind, change.title): change for change in _all(place)}
    return sorted(every.values(), key=lambda change: bool(change.refused))[:_MOST]


def _all(place: Place) -> Iterator[Change]:
    for producer in _PRODUCERS:
        yield from producer(place)
