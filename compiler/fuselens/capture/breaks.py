"""Graph breaks as values."""

from __future__ import annotations

import dataclasses
import linecache
import re
from typing import Any

from ..record.diagnostics import make, of_loop
from ..record.report import Diagnostic, Frame, Span
from .values.algebra import ObjectValue


class Break(Exception):
    """Tracing cannot go on past an instruction. Carries what a diagnostic needs; the frame decides how to continue."""

    def __init__(self, code: str, **fields: Any) -> None:
        super().__init__(code, fields)
        self.code = code
        self.fields = fields
        self.span: Span | None = None
        self.stack: tuple[Frame, ...] = ()
        self.inner: str = ""  # the callee in which it happened, when that is not the frame that is split
        self.cause: Break | None = None  # that it follows from
        self.step = -1  # of the outermost frame, at which to break, when that is not where it happened

    def diagnostic(self, mode: str, cost: str) -> Diagnostic:
        cause = self.cause.diagnostic(mode, "") if self.cause is not None else None
        return make(
            self.code, self.span, stack=self.stack, mode=mode, cost=cost, cause=cause, **named(self.fields, self.span)
        )


_NAMELESS = re.compile(r"an? \w+(\.|$)|operator |Random\.|RandomState\.")  # what is no name of the program's
_OWN_NAME = "__fuselens_"  # of what we keep in a frame between two graphs
_ASSIGNED = "assignment to `a"  # an object of the library's, mostly, inside what the program calls
_WITH = re.compile(r"(?:async )?with (.*?)(?: as \w+)?:?")
_LONGEST_NAME = 60


def named(fields: dict[str, Any], span: Span | None) -> dict[str, Any]:
    """``fields`` in the program's own words where tracing has none: ``x.sum().item()`` for "a Tensor.item()"."""
    what = fields.get("what")
    if not isinstance(what, str) or not (_NAMELESS.match(what) or what.startswith(_ASSIGNED) or _OWN_NAME in what):
        return fields
    text = text_of(span) or (line_of(span).strip() if _OWN_NAME in what else "")
    if entered := _WITH.fullmatch(text):
        text = entered[1]
    if not 0 < len(text) <= _LONGEST_NAME:
        return fields
    return {**fields, "what": f"`{text}`" if what.startswith(_ASSIGNED) else text}


def text_of(span: Span | None) -> str:
    """The program's text at ``span``, where that is on one line; else ""."""
    if span is None or span.line != span.end_line:
        return ""
    return line_of(span).encode()[span.column : span.end_column].decode(errors="replace")


def line_of(span: Span | None) -> str:
    """The program's line at which ``span`` begins."""
    return "" if span is None else linecache.getline(span.file, span.line)


class ConditionBreak(Break):
    """A conditional jump on a value that only the running program knows: both sides become resume functions."""

    def diagnostic(self, mode: str, cost: str) -> Diagnostic:
        found = super().diagnostic(mode, cost)
        return of_loop(found) if line_of(self.span).lstrip().startswith("while ") else found


class Raised(Exception):
    """The traced program raises ``value``, an exception that a handler of the program may catch.

    ``chains``: its context becomes the exception being handled, as it does where it is raised, not where it passes.
    """

    def __init__(self, value: ObjectValue, chains: bool = True) -> None:
        super().__init__(value)
        self.value = value
        self.chains = chains
        self.span: Span | None = None
        self.stack: tuple[Frame, ...] = ()
        self.inner: str = ""

    @property
    def kind(self) -> type[BaseException]:
        return self.value.python_type


def raising(exception: BaseException) -> Raised:
    """The traced program raises ``exception``, made by running what the program runs."""
    return Raised(ObjectValue(exception.with_traceback(None), None))


class Initialised(Exception):
    """A lazy module got its parameters, as it does in its first call: the frame is traced again, and finds them there."""


class CannotRebuild(Exception):
    """A value that was made at step ``born`` of the outermost frame is still needed after the graph, and cannot be made
    again: the frame is traced once more and breaks before that step. ``refused`` is the break there, where it is a known one."""

    def __init__(self, born: int, what: str, why: str, refused: Break | None = None) -> None:
        super().__init__(what, why)
        self.refused = refused
        self.born = born
        self.what = what
        self.why = why


class FrameUnsupported(Exception):
    """The whole frame must run eagerly. ``code`` and ``fields`` describe why."""

    def __init__(self, code: str, span: Span | None = None, **fields: Any) -> None:
        super().__init__(code, fields)
        self.code = code
        self.span = span
        self.fields = fields
        self.cause: Break | None = None


class UsageError(RuntimeError):
    """Raised to the caller: the program asks for what compiled code, or the current stance, forbids."""


class BackendError(RuntimeError):
    """Raised to the caller: the backend that the program gave failed. ``__cause__`` is what it raised."""


class CodedError(RuntimeError):
    """Raised to the caller where the program asks for what cannot be done. ``diagnostic`` is the coded finding."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        where = f"\n  at {diagnostic.span}" if diagnostic.span else ""
        stack = "".join(f"\n    in {f.function} ({f.span})" for f in diagnostic.stack)
        hints = "".join(f"\n  hint: {h}" for h in diagnostic.hints)
        super().__init__(f"{diagnostic.code}: {diagnostic.message}{where}{stack}\n  {diagnostic.explanation}{hints}")


class ConstraintError(CodedError):
    """Raised where a size that was marked dynamic cannot be."""


class RanksError(CodedError):
    """Raised on each rank where a graph's collectives differ between ranks, or fail (FL930)."""


class RecompileError(CodedError):
    """Raised where ``error_on_recompile`` meets a call that no earlier compilation serves."""


class GraphBreakError(CodedError):
    """Raised where ``fullgraph=True`` meets a graph break: there are no graphs then, before it or after."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(
            dataclasses.replace(
                diagnostic,
                severity="error",
                message=f"{diagnostic.message.removeprefix('graph break: ')}; fullgraph=True allows no graph break",
                explanation="The call raises this as an error, and nothing of the function is compiled.",
                cost="",
            )
        )
