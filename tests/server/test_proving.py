"""Proofs in the editor: the lens of a function that agrees with eager, and the finding of one that a broken compiler makes wrong."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens_server.texts.document_uri import ReportDocument

from .conftest import INHERITED, PATIENCE, SOURCES

FILE = """import fuselens
import torch


@fuselens.compile(example_inputs=lambda: (torch.randn(8, 16),))
def step(x):
    y = x * 2
    z = torch.tanh(y)
    return z.softmax(-1)
"""
BROKEN = """import importlib.util
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "fuselens.pipeline.phases":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        real = spec.loader.exec_module

        def planted(module):
            real(module)
            import broken_compiler

            broken_compiler.lower()

        spec.loader.exec_module = planted
        return spec


sys.meta_path.insert(0, Finder())
"""


async def lens(file: Any, start: str) -> str:
    """The title of the lens that begins so, once it is there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for title in await file.titles():
                if title.startswith(start):
                    return title
            await asyncio.sleep(0.2)


@pytest.mark.asyncio
async def test_a_function_that_agrees(new_editor: Any, tmp_path: Path) -> None:
    editor = await new_editor().start(tmp_path, {"proveSeconds": 60})
    file, _ = await editor.open(tmp_path / "model.py", FILE)
    title = await lens(file, "✓")
    assert title.startswith("✓ equals eager (") and title.endswith("; float64 agrees)")
    address = str(ReportDocument(file.uri, "step", "proof", "txt"))
    text = (await editor.client.workspace_text_document_content_async(lsp.TextDocumentContentParams(address))).text
    assert "kinds of calls agree" in text and "✓ negative zeros" in text and "fuselens verify" in text
    slow = FILE.replace("import torch\n", "import time\n\nimport torch\n").replace(
        "x * 2", "x * 2 + (time.sleep(0.5) or 1)"
    )
    await file.save(slow)  # its proof is not made at once
    async with asyncio.timeout(PATIENCE):
        while any("stale" in title for title in await file.titles()):
            await asyncio.sleep(0.1)
    assert not any(title.startswith("✓") for title in await file.titles()), "another function is not proved yet"
    await file.save(FILE.replace("x * 2", "x * 2 + 1"))
    assert await lens(file, "✓")


@pytest.mark.asyncio
async def test_a_function_that_a_broken_compiler_makes_wrong(new_editor: Any, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BROKEN)
    cli = Path(__file__).parents[1] / "cli" / "broken_compiler.py"
    (site / "broken_compiler.py").write_text(cli.read_text())
    path = os.pathsep.join([str(site), *map(str, INHERITED or SOURCES)])
    editor = await new_editor().start(tmp_path, {"proveSeconds": 60}, {"PYTHONPATH": path})
    file, _ = await editor.open(tmp_path / "model.py", FILE)
    assert await lens(file, "✗") == "✗ differs at line 8"
    await editor.until(lambda: any(d.code == "FL601" for d in editor.diagnostics[file.uri].diagnostics))
    (found,) = (d for d in editor.diagnostics[file.uri].diagnostics if d.code == "FL601")
    assert file.at(found.range) == "torch.tanh(y)"
    assert "elements differ, first at" in found.message and "Made by lower" in found.message
