"""Positions: UTF-8 byte columns, offsets and the client's units, in every awkward text."""

from __future__ import annotations

import pytest
from lsprotocol import types as lsp

from fuselens.record.report import Span
from fuselens_server.texts.convert import SourceText

TEXTS = {
    "ascii": "x = 1\ny = 2\n",
    "no final line end": "x = 1\ny = 2",
    "empty": "",
    "crlf": "x = 1\r\nyy = 2\r\n",
    "lone cr": "x = 1\ry = 2\r",
    "mixed line ends": "a\r\nb\nc\rd\n\r\n\r",
    "tabs": "if x:\n\ty = '\t'\n",
    "accents": "é = 'ü'\nñ = é\n",
    "cjk": "変数 = '漢字'\n",
    "surrogate pairs": "s = '😀'; t = '👩‍🚀'\nx = s\n",
    "lone surrogate": "s = '\ud83d'; t = 1\n",
    "combining": "s = 'e\u0301'; t = 1\n",
    "form feed and line separator": "a\x0c = 1\u2028\nb\x85 = 2\x1c\n",
    "byte order mark": "\ufeffx = 1\n",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_offset_survives_both_round_trips(text, encoding):
    source = SourceText(text, encoding)
    for offset in range(len(text) + 1):
        if text[offset - 1 : offset + 1] == "\r\n":
            continue  # between the two is no place of its own
        assert source.offset_at_bytes(*source.bytes_at_offset(offset)) == offset
        assert source.offset(source.position(offset)) == offset


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_lines_are_those_of_the_tokenizer(text):
    source = SourceText(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert [source.line(n + 1) for n in range(source.line_count)] == lines


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", (13, 14)), ("utf-16", (11, 12)), ("utf-32", (10, 11))])
def test_columns_count_the_clients_units(encoding, expected):
    text = "s = '😀'; t = 1\n"
    start = text.index("t") + 1
    found = SourceText(text, encoding).range(start, start + 1)
    assert (found.start.character, found.end.character) == expected


def test_span_to_range_in_utf16():
    source = SourceText("\t变量 = f('😀', x)\n")
    line = source.line(1)
    column = len(line[: line.index("x")].encode())
    start, end = source.offsets(Span("f", 1, column, 1, column + 1))
    assert source.text[start:end] == "x"
    assert source.range(start, end) == lsp.Range(lsp.Position(0, 14), lsp.Position(0, 15))


def test_a_column_inside_a_character_is_its_start():
    assert SourceText("é = 1").offset_at_bytes(1, 1) == 0


@pytest.mark.parametrize(
    ("position", "offset"),
    [((0, 99), 5), ((1, 99), 12), ((2, 0), 13), ((99, 0), 13), ((0, 0), 0)],
)
def test_positions_outside_are_clamped(position, offset):
    assert SourceText("x = 1\nyy = 2\n").offset(lsp.Position(*position)) == offset


@pytest.mark.parametrize(("line", "column", "offset"), [(0, 0, 0), (9, 4, 13), (1, -3, 0), (1, 99, 5), (2, 99, 12)])
def test_spans_outside_are_clamped(line, column, offset):
    assert SourceText("x = 1\nyy = 2\n").offset_at_bytes(line, column) == offset


def test_a_position_inside_a_surrogate_pair_is_after_the_character():
    assert SourceText("😀x").offset(lsp.Position(0, 1)) == 1


def test_a_reversed_span_is_empty():
    start, end = SourceText("abc\n").offsets(Span("f", 1, 2, 1, 1))
    assert (start, end) == (2, 2)
