"""Places in the code of users: what ran when an error was raised, spans of lines, and the text of spans."""

from __future__ import annotations

import linecache
import types

from ..record.report import Frame, Span
from ..system import source_text


def user_stack(error: BaseException, path: str) -> tuple[Frame, ...]:
    """The frames of the traceback that lie in ``path``, outermost first: spans of the expressions being evaluated."""
    frames: list[Frame] = []
    tb = error.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        if code.co_filename == path:
            frames.append(Frame(code.co_qualname, _instruction_span(tb, path)))
        tb = tb.tb_next
    return tuple(frames)


def frame_in(error: BaseException, path: str) -> Frame | None:
    """The innermost frame of ``path`` in the traceback."""
    stack = user_stack(error, path)
    return stack[-1] if stack else None


def _instruction_span(tb: types.TracebackType, path: str) -> Span:
    positions = list(tb.tb_frame.f_code.co_positions())
    line, end_line, column, end_column = positions[tb.tb_lasti // 2] if tb.tb_lasti >= 0 else (None,) * 4
    if line is None or end_line is None or column is None or end_column is None:
        return line_span(path, tb.tb_lineno, linecache.getline(path, tb.tb_lineno))
    return Span(path, line, column, end_line, end_column)


def line_span(path: str, line: int, text: str) -> Span:
    """The span of a line's text without its indentation."""
    text = text.rstrip()
    indent = len(text) - len(text.lstrip())
    return Span(path, line, indent, line, max(len(text.encode()), indent + 1))


def text_at(source: str, span: Span) -> str:
    """The source text of a span within one line; "" when there is no such line."""
    lines = source_text.lines(source)
    if not 0 < span.line <= len(lines):
        return ""
    return lines[span.line - 1].encode()[span.column : span.end_column].decode(errors="replace")


def describe(error: BaseException) -> str:
    """``ValueError: bad`` on one line, with the place when the error is about another file's text."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
