"""Hovers in virtual documents: the user's lines that a line of a stage's text came from."""

from __future__ import annotations

import re

from lsprotocol import types as lsp

from fuselens.record.report import Span
from fuselens_server.documents.links import triton_module
from fuselens_server.features.locations import find_stage, stage_text, user_location
from fuselens_server.features.markdown import block, escape, link
from fuselens_server.texts.correspondence import outermost
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.view import View

_COMMENT = re.compile(r"  # \S+:[\d,]+$")
_MOST = 8  # lines; a kernel's head has all of the kernel's


def document_hover(view: View, document: ReportDocument, position: lsp.Position) -> lsp.Hover | None:
    found = find_stage(view, document)
    spans = [s for e in found[2].lines if e.line == position.line + 1 for s in e.spans] if found else []
    lines = list(dict.fromkeys((span.file, span.line) for span in outermost(spans)))
    triton = view.correspondence.triton_lines(found[2]).get(position.line + 1) if found else None
    if found is None or not (lines or triton):
        return None
    parts = [_triton(view, document, triton)] if triton else []
    parts += [_line(view, next(s for s in spans if (s.file, s.line) == line)) for line in lines[:_MOST]]
    if len(lines) > _MOST:
        parts.append(f"… and {len(lines) - _MOST} more lines")
    text = stage_text(view, found[2])
    start = text.line_start(position.line + 1)
    place = text.range(start, start + len(text.line(position.line + 1)))
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, "\n\n".join(parts)), place)


def _triton(view: View, document: ReportDocument, line: int) -> str:
    """The line of the module that an instruction was compiled from."""
    module = triton_module(document)
    where, found = link(f"triton.py:{line}", f"{module}#L{line}"), find_stage(view, module)
    if found is None:
        return where
    return f"{where}\n{block('python', [_COMMENT.sub('', stage_text(view, found[2]).line(line)).strip()])}"


def _line(view: View, span: Span) -> str:
    """Where it is now, and what it said when it was compiled."""
    text = view.compiled.origin if view.here(span) else view.other_text(span.file)
    location = user_location(view, view.compiled, span, nearest=True)
    name = f"{span.file.replace(chr(92), '/').rpartition('/')[2]}:{span.line}"
    where = link(name, f"{location.uri}#L{location.range.start.line + 1}") if location else escape(name)
    return f"{where}\n{block('python', [text.line(span.line).strip()])}" if text else where
