"""A lens offers to look at a file that compiles nothing as if it compiled its modules."""

from __future__ import annotations

import asyncio

import pytest

from .test_bad_input import codes

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
for x in torch.ones(3, 2, 4):
    net(x)
"""


async def test_preview(editor, tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(TEXT)
    file = editor.show(path, TEXT)
    assert await file.titles() == ["Preview compile"]
    asking: list[asyncio.Task[bool]] = []
    show = editor.execute("fuselens.server.preview", file.uri, True)
    found = await editor.published(file.uri, lambda: asking.append(asyncio.create_task(show)))
    assert await asking[0] and codes(found) == ["FL921"]
    titles = await file.titles()
    assert titles[:2] == ["▶ Run", "1 graph"] and "End preview" in titles
    ran = await editor.execute("fuselens.server.run", file.uri, "net")
    assert ran["agrees"] if isinstance(ran, dict) else ran.agrees
    assert codes(await file.save(TEXT.replace("    net(x)\n", "    net(x).sum().backward()\n"))) == ["FL921"]
    assert await editor.execute("fuselens.server.preview", file.uri, False)
    assert await file.titles() == ["Preview compile"]
    assert path.read_text().endswith("backward()\n")
    file.close()


async def test_a_file_without_modules_has_nothing_to_show(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "compiles.py", good)
    assert not await editor.execute("fuselens.server.preview", file.uri, True)
    assert "Preview compile" not in await file.titles()
    file.close()
