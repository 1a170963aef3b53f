"""Files that are unusual: long, oddly encoded, gone, renamed; and a disk that takes nothing more."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from lsprotocol import types as lsp

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEAD = "import fuselens\nimport torch\n\n\ndef example():\n    return (torch.ones(8),)\n\n\n"
F = "@fuselens.compile(example_inputs=example)\ndef f(x):\n    y = x.sin()\n    print(y)\n    return y + 1\n"


def codes(found: Sequence[lsp.Diagnostic]) -> list[object]:
    return [d.code for d in found if not str(d.code).startswith("FL4")]


@pytest.mark.parametrize("lines", [25_000, pytest.param(90_000, marks=pytest.mark.sweep)])
async def test_a_long_file_does_not_hold_up_another(editor, tmp_path, good, lines):
    """Megabytes of data between functions: requests about other files are answered meanwhile."""
    long = HEAD + "DATA = [\n" + "    (1, 2.5, 'three', {'four': 5}),\n" * lines + "]\n\n\n" + F
    other, _ = await editor.open(tmp_path / "other.py", good)
    path = tmp_path / "long.py"
    path.write_text(long)
    file = editor.show(path)
    slowest = 0.0
    loop = asyncio.get_running_loop()
    while file.uri not in editor.diagnostics:
        start = loop.time()
        assert await other.hover("x = a") is not None
        slowest = max(slowest, loop.time() - start)
        await asyncio.sleep(0.05)
    (found,) = editor.diagnostics[file.uri].diagnostics
    assert found.code in ("FL103", "FL915")
    assert slowest < 30  # an answer, not a speed
    file.close()
    other.close()


@pytest.mark.parametrize("text", [
    pytest.param("# -*- coding: latin-1 -*-\n" + HEAD + "# é\n" + F, id="latin-1"),
    pytest.param((HEAD + F).replace("\n", "\r\n"), id="CRLF"),
    pytest.param((HEAD + F).replace("\n", "\r"), id="CR"),
    pytest.param(HEAD + F.replace("    ", "\t"), id="tabs"),
    pytest.param("\ufeff" + HEAD + F, id="byte order mark"),
    pytest.param(HEAD + F.replace("print(y)", "s = '😀𝕏'; print(y)"), id="surrogate pairs"),
    pytest.param(HEAD + "\f\n" + F, id="form feed"),
    pytest.param(HEAD + F.replace("y", "ﬁ"), id="normalised names"),
    pytest.param(HEAD + F.rstrip("\n"), id="no last line end"),
])  # fmt: skip
async def test_texts(editor, tmp_path, text):
    path = tmp_path / "odd.py"
    path.write_bytes(text.encode("latin-1" if "latin-1" in text else "utf-8"))
    holder = []
    found = await editor.published(path.as_uri(), lambda: holder.append(editor.show(path, text)))
    (file,) = holder
    shown = [file.at(d.range) for d in found if d.code == "FL103"]
    assert [s.partition("(")[0] for s in shown] == ["print"], found
    file.close()


async def test_bytes_that_are_not_the_encoding(editor, tmp_path):
    """The editor shows replacement characters; what is on disk would not even be imported."""
    path = tmp_path / "bytes.py"
    path.write_bytes((HEAD + "# \xe9\n" + F).encode("latin-1"))
    shown = path.read_bytes().decode("utf-8", "replace")
    holder = []
    await editor.published(path.as_uri(), lambda: holder.append(editor.show(path, shown)))
    assert codes(editor.diagnostics[path.as_uri()].diagnostics) == ["FL103"]
    holder[0].close()


async def test_renamed_in_mid_check(editor, tmp_path):
    """Closed under one name and opened under another while it is being checked: the old name is cleared, the new shown."""
    path, other = tmp_path / "before.py", tmp_path / "after.py"
    path.write_text("import time\ntime.sleep(1)\n" + HEAD + F)
    file = editor.show(path)
    await asyncio.sleep(0.5)
    path.rename(other)
    file.close()
    holder = []
    found = await editor.published(other.as_uri(), lambda: holder.append(editor.show(other)))
    assert codes(found) == ["FL103"]
    await asyncio.sleep(1.5)
    assert file.uri not in editor.diagnostics or not editor.diagnostics[file.uri].diagnostics
    holder[0].close()


def prevented(found: Any) -> set[str]:
    """The codes that say what kept kernels from being built: no place to write, or a compiler that has none."""
    return {"FL402", "FL403", "FL916"} & {str(d.code) for d in found}


async def test_a_disk_that_takes_nothing(new_editor, tmp_path):
    """No file can be written, so no kernel built: the file's findings are shown all the same. When there is room again,
    the next save builds what was not built."""
    cache = {"FUSELENS_CACHE_DIR": str(tmp_path / "cache")}
    limited = ("sh", "-c", f"ulimit -S -f 0; exec {sys.executable} -m fuselens_server")
    editor = await new_editor().start(tmp_path, environment=cache, command=limited)
    try:
        file, found = await editor.open(tmp_path / "full.py", HEAD + F)
        assert "FL103" in codes(found)
        assert (await file.titles())[1].startswith("2 graphs")
        found = await file.save(HEAD + F.replace("    print(y)\n", ""))
        assert "FL103" not in codes(found)
        await editor.until(lambda: prevented(editor.diagnostics[file.uri].diagnostics), 20)
        (worker,) = editor.worker_pids()
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await file.save()
        async with asyncio.timeout(60):
            while "1 kernel" not in await file.titles():
                await asyncio.sleep(0.05)
        assert not prevented(editor.diagnostics[file.uri].diagnostics)
        file.close()
    finally:
        await editor.stop()


async def test_a_hundred_saves_in_a_second(editor, tmp_path):
    path = tmp_path / "often.py"
    file, _ = await editor.open(path, HEAD + F)
    saved = lsp.DidSaveTextDocumentParams(file.identifier)
    for k in range(100):
        file.replace(HEAD + F.replace("+ 1", f"+ {k}"))
        path.write_text(file.text)
        editor.client.text_document_did_save(saved)
        await asyncio.sleep(0.01)
    found = await file.save(HEAD + F.replace("    print(y)\n", ""))
    await editor.until(lambda: codes(editor.diagnostics[file.uri].diagnostics) == [], 60)
    del found
    assert (await file.titles())[1].startswith("1 graph")
    file.close()
