"""Symbols and foldings of virtual documents: the functions, graphs, kernels and sections of their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.report import Stage
from fuselens_server.features.locations import find_stage
from fuselens_server.texts.convert import SourceText

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

_Kind = lsp.SymbolKind
_PLACE = re.compile(r"\s+(?:#|//|;) (?:\S+:\d+\S*|(?:backward of )?line \d+)$")  # where a line comes from
_LOOPS = (
    (re.compile(r"graph (?P<name>\S+)(?P<detail>.*)"), _Kind.Module),
    (re.compile(r"kernel (?P<name>\S+) (?P<detail>.*)"), _Kind.Function),
    (re.compile(r"loop (?P<name>\S+) (?P<detail>.*)"), _Kind.Function),
    (re.compile(r"extern (?P<name>[\w.]+(?: \[[^]]*\])?) = (?P<detail>.*)"), _Kind.Operator),
    (re.compile(r"(?P<name>phase \[.*\])(?P<detail>)"), _Kind.Namespace),
    (re.compile(r"(?:input|buffer|view|symbol) (?P<name>\w+): (?P<detail>.*)"), _Kind.Variable),
)
_PYTHON = (
    (re.compile(r"class (?P<name>\w+)(?P<detail>.*):$"), _Kind.Class),
    (re.compile(r"def (?P<name>[\w.]+)(?P<detail>.*?):?$"), _Kind.Function),
    (re.compile(r"(?P<name>\w+): (?P<detail>\w+\[[^]]*\])"), _Kind.Variable),
)
_CPP = (
    (re.compile(r"(?!typedef)(?:[\w\"<>:*&,() ]+ )?\**(?P<name>\w+)(?P<detail>\(.*\)) \{.*$"), _Kind.Function),
    (re.compile(r"(?:struct|union) (?P<name>\w+)(?P<detail>) \{.*$"), _Kind.Struct),
)
_ASSEMBLY = ((re.compile(r"(?://|;) kernel (?P<name>\w+): (?P<detail>.*)$"), _Kind.Function),)
_TEXT = ((re.compile(r"(?P<name>\S.*?)(?P<detail>)$"), _Kind.Namespace),)
_HEADINGS = ((re.compile(r"#+ (?P<name>.*?)(?P<detail>)$"), _Kind.String),)
_RULES = {"loop": _LOOPS, "py": _PYTHON, "cpp": _CPP, "c": _CPP, "cu": _CPP} | dict.fromkeys(
    ("mlir", "ll", "ptx", "sass"), _ASSEMBLY
)
_CONTINUES = re.compile(r"\s*\).*[:{]$")
_KERNEL_COMMENT = re.compile(r"// (\w+): (.*?)(?:  // \S+)?$")


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def text_document_document_symbol(
        ls: FuselensServer, params: lsp.DocumentSymbolParams
    ) -> list[lsp.DocumentSymbol] | list[lsp.SymbolInformation]:
        text = ls.documents.source(params.text_document.uri)
        found = [encode(text[0], block) for block in outline(*text)] if text else []
        if ls.client("text_document.document_symbol.hierarchical_document_symbol_support"):
            return found
        return list(flat(found, params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_FOLDING_RANGE)
    def text_document_folding_range(ls: FuselensServer, params: lsp.FoldingRangeParams) -> list[lsp.FoldingRange]:
        text = ls.documents.source(params.text_document.uri)
        if text is None:
            return []
        shown = ls.documents.shown(params.text_document.uri) if text[1] == "cpp" else None
        found = find_stage(*shown) if shown else None
        return [*(preludes(text[0], found[2]) if found else ()), *folding_ranges(text[0])]


@dataclass(frozen=True, slots=True)
class Block:
    """A named part of a text, with its first and last line (from 1)."""

    name: str
    detail: str
    kind: lsp.SymbolKind
    first: int
    last: int
    children: list[Block] = field(default_factory=list)


def outline(text: SourceText, suffix: str) -> list[Block]:
    """The parts of a text with the extension ``suffix``, nested as they are indented."""
    headed = suffix == "md" or (suffix == "txt" and text.text.startswith("# "))
    rules = _HEADINGS if headed else _RULES.get(suffix, _TEXT)
    nested = suffix in ("loop", "py")
    ends = dict(_regions(text))
    top: list[Block] = []
    open_blocks: list[tuple[int, Block]] = []
    operations: dict[str, str] = {}  # of C++ kernels, which say them in a comment before
    for number in range(1, text.line_count + 1):
        line = text.line(number)
        indent = len(line) - len(line.lstrip())
        if comment := _KERNEL_COMMENT.match(line):
            operations[comment[1]] = comment[2]
        found = next(((m, kind) for rule, kind in rules if (m := rule.match(_PLACE.sub("", line.strip())))), None)
        if found is None or (indent and not nested):
            continue
        match, kind = found
        detail = operations.get(match["name"], match["detail"].strip().removesuffix("("))
        block = Block(match["name"], detail, kind, number, ends.get(number, number))
        while open_blocks and open_blocks[-1][0] >= indent:
            open_blocks.pop()
        (open_blocks[-1][1].children if open_blocks else top).append(block)
        open_blocks.append((indent, block))
    return _sections(top, text) if headed or rules is _ASSEMBLY else top


def _sections(headings: list[Block], text: SourceText) -> list[Block]:
    """Headings last until the next one."""
    ends = [block.first - 1 for block in headings[1:]] + [text.line_count]
    return [replace(block, last=max(block.first, end)) for block, end in zip(headings, ends, strict=True)]


def folding_ranges(text: SourceText) -> list[lsp.FoldingRange]:
    """By indentation, which all of these texts have. A closing bracket's line stays visible."""
    return [lsp.FoldingRange(first - 1, last - 1) for first, last in _regions(text, closing=False)]


def preludes(text: SourceText, stage: Stage) -> Iterator[lsp.FoldingRange]:
    """What every C++ file of ours begins with, and what its host program needs: of the kind that editors fold when they
    open a file, as they fold imports."""
    written = min((line.line for line in stage.lines), default=1)
    starts = [(1, written - 1)]
    for first in (n for n in range(written, text.line_count + 1) if text.line(n).startswith("union Value")):
        last = next(
            (n - 1 for n in range(first, text.line_count + 1) if text.line(n).startswith("// Host program")), first
        )
        starts.append((first, last))
    for first, last in starts:
        while last > first and not text.line(last).strip():
            last -= 1
        if last > first:
            yield lsp.FoldingRange(first - 1, last - 1, kind=lsp.FoldingRangeKind.Imports)


def _regions(text: SourceText, *, closing: bool = True) -> Iterator[tuple[int, int]]:
    """Each line that has more indented ones below it, with the last of those (or the bracket that closes them)."""
    stack: list[tuple[int, int]] = []  # indentation and number of the lines around
    last = 0
    for number in range(1, text.line_count + 1):
        content = text.line(number)
        if not content.strip():
            continue
        indent = len(content) - len(content.lstrip())
        continues = _CONTINUES.match(content) is not None  # `):` between a function's parameters and its body
        while stack and stack[-1][0] >= indent + continues:
            begun, first = stack.pop()
            closed = closing and begun == indent and content.lstrip()[0] in ")]}"
            if last > first or closed:
                yield first, number if closed else last
            if closed:
                break
        if not continues:
            stack.append((indent, number))
        last = number
    for _, first in reversed(stack):
        if last > first:
            yield first, last


def encode(text: SourceText, block: Block) -> lsp.DocumentSymbol:
    line = text.line(block.first)
    start = text.line_start(block.first) + len(line) - len(line.lstrip())
    at = text.line_start(block.first) + max(line.find(block.name), 0)
    return lsp.DocumentSymbol(
        name=block.name,
        kind=block.kind,
        range=text.range(start, text.line_start(block.last) + len(text.line(block.last))),
        selection_range=text.range(at, min(at + len(block.name), text.line_start(block.first) + len(line))),
        detail=block.detail or None,
        children=[encode(text, child) for child in block.children] or None,
    )


def flat(symbols: list[lsp.DocumentSymbol], uri: str, container: str = "") -> Iterator[lsp.SymbolInformation]:
    """For clients that know no hierarchy."""
    for symbol in symbols:
        yield lsp.SymbolInformation(
            lsp.Location(uri, symbol.range), symbol.name, symbol.kind, container_name=container or None
        )
        yield from flat(list(symbol.children or ()), uri, symbol.name)
