"""What Triton's compilers make of kernels is made for those who open the documents, and leads back to the user's lines."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens.record.report import Graph, Report, Stage
from fuselens_server.client import messages
from fuselens_server.texts.document_uri import parse
from fuselens_server.work.later_texts import take

pytest.importorskip("triton")
FILE = """\
import fuselens
import torch


@fuselens.compile(example_inputs=lambda: (torch.ones(64, 8),))
def scaled(x):
    y = x.exp() + 1
    return y / y.sum(-1, keepdim=True)
"""


async def test_documents_down_to_the_instructions(new_editor: Any, tmp_path: Path):
    editor = new_editor()
    editor.configuration = {"target": "cuda:sm_90"}
    await editor.start(tmp_path, environment={"FUSELENS_CACHE_DIR": str(tmp_path / "cache")})
    try:
        file, found = await editor.open(tmp_path / "file.py", FILE)
        assert not found
        assert "registers" in await file.hover("x.exp")
        listed = await editor.execute(messages.DOCUMENTS, file.uri, "scaled")
        addresses = {parse(item["uri"]).name: item["uri"] for item in listed}
        changes = len(editor.notifications["fuselens/documentsChanged"])
        texts = {}
        for name in ("ttir", "ttgir", "llir", "ptx", "sass"):
            params = lsp.TextDocumentContentParams(addresses[name])
            texts[name] = (await editor.client.workspace_text_document_content_async(params)).text
        assert len(editor.notifications["fuselens/documentsChanged"]) == changes + 2  # all but SASS came with the first
        marks = {"ttir": "tt.load", "ttgir": "#blocked", "llir": "getelementptr", "ptx": "ld.global", "sass": "LDG"}
        for name, mark in marks.items():
            lines = texts[name].splitlines()
            assert any(mark in line for line in lines)
            divided = next(n for n, line in enumerate(lines) if line.endswith(" file.py:8"))
            here = lsp.TextDocumentIdentifier(addresses[name])
            back = await editor.client.text_document_definition_async(
                lsp.DefinitionParams(here, lsp.Position(divided, 0))
            )
            (place,) = back if isinstance(back, list) else [back]
            where = place.target_range if hasattr(place, "target_range") else place.range
            assert file.at(where).startswith("y") and where.start.line == 7
            links = await editor.client.text_document_document_link_async(lsp.DocumentLinkParams(here))
            (line,) = {m[1] for m in [re.search(r"triton\.py:(\d+)", lines[divided])] if m}
            assert any(k.target == f"{addresses['triton']}#L{line}" for k in links if k.range.start.line == divided)
        params = lsp.TextDocumentContentParams(addresses["triton"])
        module = (await editor.client.workspace_text_document_content_async(params)).text.splitlines()
        summed = next(n for n, line in enumerate(module) if "tl.sum(" in line)
        here, at = lsp.TextDocumentIdentifier(addresses["triton"]), lsp.Position(summed, 0)
        down = await editor.client.text_document_implementation_async(lsp.ImplementationParams(here, at))
        assert {link.uri for link in down} == {addresses[name] for name in texts}
        for link in down:
            first = texts[parse(link.uri).name].splitlines()[link.range.start.line]
            assert re.search(rf"[/;] triton\.py:{summed + 1}\b", first)
        context = lsp.ReferenceContext(include_declaration=False)
        found = await editor.client.text_document_references_async(lsp.ReferenceParams(context, here, at))
        instructions = [place for place in found if place.uri == addresses["ptx"]]
        ptx = texts["ptx"].splitlines()
        marks = [m[1] for p in instructions if (m := re.search(r"triton\.py:(\d+)", ptx[p.range.start.line]))]
        assert marks and set(marks) == {str(summed + 1)}  # and none of others that came from the same code
        own = next(n for n, line in enumerate(ptx) if "triton.py" in line and "file.py" not in line)
        here, at = lsp.TextDocumentIdentifier(addresses["ptx"]), lsp.Position(own, 0)
        (back,) = await editor.client.text_document_definition_async(lsp.DefinitionParams(here, at))
        assert back.uri == addresses["triton"] and f"triton.py:{back.range.start.line + 1}" in ptx[own]
        told = await editor.client.text_document_hover_async(lsp.HoverParams(here, at))
        assert module[back.range.start.line].strip() in told.contents.value
        await file.save(FILE.replace("+ 1", "+ 2"))
        params = lsp.TextDocumentContentParams(addresses["ttir"])
        for _ in range(300):  # until the check of the new text has ended
            text = (await editor.client.workspace_text_document_content_async(params)).text
            if "2.000000e+00" in text:
                break
            await asyncio.sleep(0.1)
        assert "2.000000e+00" in text
    finally:
        await editor.stop()


def test_what_cannot_be_made_says_why():
    def report(*stages: Stage) -> Report:
        return Report("f", "f.py", graphs=[Graph(0, "f", None, 1, stages=list(stages))])

    lacking = Stage("sass", "sass", "", later=True)
    asked = report(lacking, Stage("cpp", "cpp", "x"))
    assert take(asked, report(lacking), "no time") == [
        (0, Stage("sass", "sass", "// This text was not made: no time\n"))
    ]
    assert take(asked, None, "") == []  # it is asked for once
    asked, made = report(lacking), Stage("sass", "sass", "EXIT")
    assert take(asked, report(made), "") == [(0, made)] and asked.graphs[0].stages == [made]
