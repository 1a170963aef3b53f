"""Features answer whatever is asked: random edits and positions, also far outside of texts; seeded."""

from __future__ import annotations

import random

import pytest
from lsprotocol import converters
from lsprotocol import types as lsp

from fuselens.record.report import Edit, FileReport, Fix, Line, Stage
from fuselens_server.documents import links as document_links
from fuselens_server.documents import stages as documents
from fuselens_server.documents.hover import document_hover
from fuselens_server.features import (
    code_actions,
    code_lens,
    diagnostics,
    highlight,
    hover,
    inlay_hints,
    navigation,
    outline,
    workspace_symbols,
)
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.document_uri import parse

PIECES = (
    "",
    "\n",
    "\r\n",
    "x",
    "é😀",
    "    ",
    "(",
    "# FL101 line 3\n",
    "@fuselens.compile\ndef g(y): return y\n",
    "\x0c",
    "\u2028",
)
TEXTS = (
    "toy.py:0:0 toy.py:99999999999 line 0 /other.py:0:0 FL101\n",
    "\t}\n)\n):\n",
    "kernel k [] {\r\n  phase []\r\n",
    "\ud800 line 5",
)


def views(toy, random_: random.Random, count: int):
    """Views after random edits, of a report with fixes and odd documents."""
    for _ in range(count):
        report = toy.report()
        spans = tuple(report.graphs[0].kernels[0].spans)
        elsewhere = toy.span(toy.text, "x * b", "/other.py")
        lines = tuple(Line(n, random_.choice([(), spans, (*spans, elsewhere)])) for n in range(1, 4))
        report.graphs[0].stages.append(Stage("odd", "loop", random_.choice(TEXTS), lines))
        fix = Fix("f", (Edit(spans[0], "y"), Edit(elsewhere, "z"))[: random_.choice([1, 2])], random_.random() < 0.5)
        object.__setattr__(report.breaks[0], "fixes", (fix,))
        edits, length = [], len(toy.text)
        for _ in range(random_.randrange(4)):
            start = random_.randrange(length + 1)
            end = min(length, start + random_.choice([0, 0, 1, 5, 40]))
            piece = random_.choice(PIECES)
            edits.append((start, end, piece))
            length += len(piece) - (end - start)
        yield toy.view(report=FileReport(toy.path, [report]), edits=tuple(edits))


def place(random_: random.Random) -> lsp.Position:
    return lsp.Position(random_.choice([*range(14), 2**31 - 1]), random_.choice([*range(24), 2**31 - 1]))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_asked(toy, seed):
    random_ = random.Random(seed)
    converter = converters.get_converter()
    for view in views(toy, random_, 12):
        at, other = place(random_), place(random_)
        where = lsp.Range(at, other)
        names = random_.random() < 0.5
        answers = [
            code_lens.code_lenses(view), diagnostics.diagnostics(view), inlay_hints.inlay_hints(view, where),
            hover.hover(view, at), highlight.highlights(view, at, names=names),
            navigation.kernel_lines(view, at, names=names).encode(random_.random() < 0.5),
            navigation.references(view, at, names=names), document_links.comment_links(view),
            list(code_actions.code_actions(view, where, lsp.CodeActionContext([]))),
            workspace_symbols.workspace_symbols([view], random_.choice(["", "toy", "k0"])),
        ]  # fmt: skip
        for listing in documents.listings(view):
            address = parse(listing.uri)
            text = SourceText(documents.report_content(view, address).text)
            blocks = outline.outline(text, address.suffix)
            answers += [
                document_links.document_links(text, view, address), outline.folding_ranges(text),
                [outline.encode(text, block) for block in blocks], document_hover(view, address, at),
                highlight.document_highlights(view, address, at),
                navigation.user_lines(view, address, at.line + 1).encode(links=True),
                navigation.references_of_line(view, address, at.line + 1),
            ]  # fmt: skip
        for answer in answers:
            converter.unstructure(answer)
        current = view.compiled.current
        for found in (*navigation.references(view, at, names=True), *answers[1]):
            if getattr(found, "uri", view.uri) == view.uri:
                assert found.range.end.line < current.line_count
