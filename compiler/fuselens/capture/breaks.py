"""Graph breaks as values."""

from __future__ import annotations

from typing import Any

from ..diagnostics import make
from ..report import Diagnostic, Frame, Span


class Break(Exception):
    """Tracing cannot go on past an instruction. Carries what a diagnostic needs; the frame decides how to continue."""

    def __init__(self, code: str, **fields: Any) -> None:
        super().__init__(code, fields)
        self.code = code
        self.fields = fields
        self.span: Span | None = None
        self.stack: tuple[Frame, ...] = ()
        self.inner: str = ""  # the callee in which it happened, when that is not the frame that is split

    def diagnostic(self, mode: str, cost: str) -> Diagnostic:
        return make(self.code, self.span, stack=self.stack, mode=mode, cost=cost, **self.fields)


class ConditionBreak(Break):
    """A conditional jump on a value that only the running program knows: both sides become resume functions."""


class FrameUnsupported(Exception):
    """The whole frame must run eagerly. ``code`` and ``fields`` describe why."""

    def __init__(self, code: str, span: Span | None = None, **fields: Any) -> None:
        super().__init__(code, fields)
        self.code = code
        self.span = span
        self.fields = fields


class GraphBreakError(RuntimeError):
    """Raised to the caller where ``fullgraph=True`` meets a graph break. ``diagnostic`` is the coded finding."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        where = f"\n  at {diagnostic.span}" if diagnostic.span else ""
        stack = "".join(f"\n    in {f.function} ({f.span})" for f in diagnostic.stack)
        hints = "".join(f"\n  hint: {h}" for h in diagnostic.hints)
        super().__init__(
            f"{diagnostic.code}: {diagnostic.message} (fullgraph=True){where}{stack}\n  {diagnostic.explanation}{hints}"
        )
