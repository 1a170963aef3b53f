"""Addresses of virtual documents.

``fuselens://report/<qualname>/graph<N>/<stage>.<suffix>?file=<file uri>`` for what a stage produced,
``fuselens://report/<qualname>/{summary,guards,proof,what-if}.txt?file=<file uri>`` for a function,
``fuselens://codes/<code>.md`` for a diagnostic code. Names are percent-encoded; the path ends in the extension from
which an editor takes the language.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

SCHEME = "fuselens"


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """A document of one function. ``graph`` is None for the function's own documents."""

    file: str  # the source file's URI
    qualname: str
    name: str
    suffix: str
    graph: int | None = None

    def __str__(self) -> str:
        middle = "" if self.graph is None else f"graph{self.graph}/"
        name = f"{quote(self.name, safe='')}.{quote(self.suffix, safe='')}"
        return f"{SCHEME}://report/{quote(self.qualname, safe='')}/{middle}{name}?file={quote(self.file, safe='')}"


@dataclass(frozen=True, slots=True)
class CodeDocument:
    """The page of a diagnostic code."""

    code: str
    suffix = "md"

    def __str__(self) -> str:
        return f"{SCHEME}://codes/{quote(self.code, safe='')}.md"


def parse(uri: str) -> ReportDocument | CodeDocument | None:
    """The document that ``uri`` names; None when it is none of ours. Clients re-encode URIs in their own ways (VS Code
    also encodes the ``=`` of the query), so every component is decoded before it is taken apart."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != SCHEME:
        return None
    segments = [unquote(segment) for segment in parts.path.split("/") if segment]
    if parts.netloc == "codes":
        name = segments[0] if len(segments) == 1 else ""
        return CodeDocument(name.removesuffix(".md")) if name.endswith(".md") else None
    if parts.netloc != "report" or not 2 <= len(segments) <= 3:
        return None
    key, _, file = unquote(parts.query).partition("=")
    stage, dot, suffix = segments[-1].rpartition(".")
    if key != "file" or not file or not dot:
        return None
    graph = None
    if len(segments) == 3:
        number = segments[1].removeprefix("graph")
        if not segments[1].startswith("graph") or not number.isascii() or not number.isdigit():
            return None
        graph = int(number)
    return ReportDocument(file, segments[0], stage, suffix, graph)
