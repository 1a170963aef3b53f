"""The refusal of a graph, with its reason."""

from __future__ import annotations

from fuselens.record.report import Span


class Untraceable(Exception):
    """This graph cannot be traced ahead of time: the pipeline runs it as captured and reports FL301 with ``reason``."""

    def __init__(self, reason: str, span: Span | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.span = span


def first_line(error: BaseException) -> str:
    """What an error says, short enough for a reason."""
    return (str(error).strip().splitlines() or [""])[0][:200]
