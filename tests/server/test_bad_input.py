"""What user code and environments do wrong: one clear diagnostic, and the next good save works."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from lsprotocol import types as lsp

F = "@fuselens.compile\ndef f(x):\n    return x\n"

# Each is a whole file; the marker `!` ends the line at which the finding must be, and is taken out.
BAD = {
    "syntax error": ("FL902", "import fuselens\n\n@fuselens.compile\ndef f(x):\n    return x +!\n"),
    "null byte": ("FL902", "import fuselens  !\nx = '\0'\n" + F),
    "raises at import": ("FL903", "import fuselens\nraise ValueError('é no')!\n" + F),
    "missing module": ("FL903", "import fuselens\nimport not_there_at_all!\n" + F),
    "raises in a call": (
        "FL903", "import fuselens\ndef g():\n    return 1 / 0!\nclass C:\n    g()\n" + F,
    ),
    "sys.exit": ("FL904", "import sys, fuselens\n@fuselens.compile\ndef f(x):\n    return x\nclass C:\n    sys.exit(3)!\n"),
    "os._exit": ("FL904", "import os, fuselens\n@fuselens.compile\ndef f(x):\n    return x\nclass C:\n    os._exit(0)!\n"),
    "abort": ("FL906", "import os, fuselens\n@fuselens.compile\ndef f(x):\n    return x\nos.abort()!\n"),
    "segmentation fault": (
        "FL906", "import ctypes, fuselens\n@fuselens.compile\ndef f(x):\n    return x\nctypes.string_at(0)!\n",
    ),
    "killed": (
        "FL906", "import os, fuselens\n@fuselens.compile\ndef f(x):  !\n    return x\nos.kill(os.getpid(), 9)\n",
    ),
    "no example inputs": ("FL901", "import fuselens\n@fuselens.compile\ndef f(x):!\n    return x\n"),
    "example inputs fail": (
        "FL908", "import fuselens\n@fuselens.compile(example_inputs=lambda: 1 / 0)!\ndef f(x):\n    return x\n",
    ),
}  # fmt: skip
ANY_LINE = {"killed", "example inputs fail"}  # nothing says where, or two places are as good


def codes(found: Sequence[lsp.Diagnostic]) -> list[object]:
    """The codes of what checks found, without those about lowering: what a graph becomes is not what is tested here."""
    return [d.code for d in found if not str(d.code).startswith("FL4") and not d.data.get("predicted")]


def marked(text: str) -> tuple[str, int]:
    """The text without its marker, and the marker's line from 0."""
    before, after = text.split("!", 1)
    return before + after, before.count("\n")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", BAD)
async def test_one_diagnostic_and_the_next_save_works(editor, tmp_path, good, name):
    code, text = BAD[name]
    text, line = marked(text)
    file, found = await editor.open(tmp_path / "bad.py", text)
    assert codes(found) == [code], [d.message for d in found]
    assert name in ANY_LINE or found[0].range.start.line == line, found[0]
    assert found[0].range.start != found[0].range.end
    assert codes(await file.save(good)) == ["FL101"]
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_syntax_error_keeps_the_lenses_of_the_last_good_save(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "kept.py", good)
    before = await file.titles()
    await file.save(good + "x = (\n")
    await editor.until(lambda: codes(editor.diagnostics[file.uri].diagnostics) == ["FL902"])
    found = editor.diagnostics[file.uri].diagnostics
    assert file.at(found[0].range) == "("
    assert await file.titles() == [before[0], before[1] + " · stale", *before[2:]]
    assert codes(await file.save(good)) == ["FL101"]
    assert await file.titles() == before
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_megabyte_on_stdout_is_nobodys_business(editor, tmp_path, good):
    noise = "import os, sys\nprint('x' * 1_000_000)\nos.write(1, b'y' * 1_000_000)\nsys.stderr.write('z' * 1_000_000)\n"
    file, found = await editor.open(tmp_path / "noisy.py", noise + good)
    assert codes(found) == ["FL101"]
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_reading_stdin_at_import_finds_nothing(editor, tmp_path, good):
    file, found = await editor.open(tmp_path / "reads.py", "import sys\nassert sys.stdin.read() == ''\n" + good)
    assert codes(found) == ["FL101"]
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_deleted_file_is_still_checked_from_its_text(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "deleted.py", good)
    file.path.unlink()
    identifier = lsp.DidSaveTextDocumentParams(file.identifier)
    found = await editor.published(file.uri, lambda: editor.client.text_document_did_save(identifier))
    assert codes(found) == ["FL101"]
    file.close()


async def test_an_endless_loop_at_import_is_stopped(new_editor, tmp_path, good):
    editor = await new_editor().start(tmp_path, {"timeout": 8})
    text = "import fuselens\n@fuselens.compile\ndef f(x):\n    return x\nclass C:\n    while True:\n        pass\n"
    file, found = await editor.open(tmp_path / "loop.py", text)
    assert codes(found) == ["FL905"]
    assert found[0].range.start.line in (5, 6)
    assert "longer than 8 s" in found[0].message
    assert codes(await file.save(good)) == ["FL101"]
    await editor.stop()


async def test_too_much_memory_is_stopped(new_editor, tmp_path, good):
    editor = await new_editor().start(tmp_path, {"memoryLimit": 1024})
    text = (
        "import fuselens\n@fuselens.compile\ndef f(x):\n    return x\nx = [b'x' * (1 << 20) for _ in range(1 << 20)]\n"
    )
    file, found = await editor.open(tmp_path / "memory.py", text)
    assert len(found) == 1
    assert found[0].code in ("FL910", "FL903", "FL906")  # by the limit, or MemoryError at the line
    assert codes(await file.save(good)) == ["FL101"]
    await editor.stop()


def environment(path: Path) -> Path:
    """A bare virtual environment; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    return path / "bin" / "python"


def borrow_packages(interpreter: Path) -> None:
    """As if torch were installed now: the packages of the environment under test become visible."""
    (site,) = interpreter.parent.parent.glob("lib/python3*/site-packages")
    paths = [p for p in sys.path if p.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(paths))


async def test_an_environment_without_torch(new_editor, tmp_path, good):
    interpreter = environment(tmp_path / "env")
    editor = await new_editor().start(tmp_path, {"interpreter": str(interpreter)})
    file, found = await editor.open(tmp_path / "torchless.py", good)
    assert codes(found) == ["FL907"]
    assert file.at(found[0].range) in ("import fuselens", "import torch")
    assert str(interpreter) in found[0].message
    assert await file.titles() == ["not compiled"]
    status = editor.notifications["fuselens/status"][-1]
    assert (status.state, status.interpreter) == ("error", str(interpreter))
    assert codes(await file.save()) == ["FL907"]
    borrow_packages(interpreter)
    assert codes(await file.save()) == ["FL101"]
    await editor.until(lambda: editor.notifications["fuselens/status"][-1].state == "ready")
    await editor.stop()


async def test_an_environment_that_goes_away(new_editor, tmp_path, good):
    """What was found last stays shown as stale while there is nothing to check with, and the next save after works."""
    interpreter = environment(tmp_path / "env")
    borrow_packages(interpreter)
    editor = await new_editor().start(tmp_path, {"interpreter": str(interpreter)})
    file, found = await editor.open(tmp_path / "gone.py", good)
    assert codes(found) == ["FL101"]
    before = await file.titles()
    gone = interpreter.with_name("gone")
    interpreter.rename(gone)
    assert codes(await file.save()) == ["FL101"]  # by the worker that runs
    os.kill(*editor.worker_pids(), signal.SIGKILL)
    assert codes(await file.save()) == ["FL914"]
    assert await file.titles() == [before[0], before[1] + " · stale", *before[2:]]
    assert await file.hints()
    assert editor.notifications["fuselens/status"][-1].state == "error"
    gone.rename(interpreter)
    assert codes(await file.save()) == ["FL101"]
    assert await file.titles() == before
    await editor.stop()


async def test_an_environment_without_fuselens(new_editor, tmp_path, good):
    interpreter = environment(tmp_path / "env")
    path = [p for p in sys.path if p]
    program = f"import sys; sys.path[:0] = {path!r}; from fuselens_server.__main__ import main; sys.exit(main([]))"
    command = (sys.executable, "-c", program)
    editor = await new_editor().start(tmp_path, {"interpreter": str(interpreter)}, {"PYTHONPATH": ""}, command=command)
    file, found = await editor.open(tmp_path / "bare.py", good)
    assert codes(found) == ["FL911"]
    assert file.at(found[0].range) in ("import fuselens", "import torch")
    assert "pip install fuselens" in found[0].message
    await editor.stop()


@pytest.mark.parametrize("interpreter", ["/nowhere/python", "/", "/bin/false", "python\0"])
async def test_no_interpreter(new_editor, tmp_path, good, interpreter):
    editor = await new_editor().start(tmp_path, {"interpreter": interpreter})
    _, found = await editor.open(tmp_path / "none.py", good)
    assert codes(found) == ["FL914"]
    await editor.stop()


async def test_stdout_carries_messages_and_nothing_else(tmp_path, good):
    """VS Code's client ends the connection at the first stray byte, unlike pygls' own: read the stream as it would."""
    sources = os.pathsep.join(p for p in sys.path if p)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print('stray'); import fuselens_server.__main__ as m, threading, os;"
        "threading.Timer(1, lambda: (print('stray', flush=True), os.system('echo stray; cat'))).start(); m.main([])",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": sources, "PYTHONUNBUFFERED": "1"}, limit=1 << 26,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"stray\n"  # before main: not ours to prevent

    def send(method: str, params: object, **more: object) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        assert process.stdin is not None
        process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    path = tmp_path / "noisy.py"
    path.write_text("print('x' * 1_000_000)\n" + good)
    options = {"allowedFolders": [str(tmp_path)]}
    send("initialize", {"processId": None, "rootUri": None, "capabilities": {}, "initializationOptions": options}, id=1)
    send("initialized", {})
    document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": path.read_text()}
    send("textDocument/didOpen", {"textDocument": document})
    while True:
        length = 0
        while (header := await asyncio.wait_for(process.stdout.readline(), 90)) != b"\r\n":
            name, _, value = header.partition(b": ")
            assert name in (b"Content-Length", b"Content-Type"), header
            length = int(value) if name == b"Content-Length" else length
        message = json.loads(await process.stdout.readexactly(length))
        if message.get("method") == "textDocument/publishDiagnostics":
            break
    assert "FL101" in [d["code"] for d in message["params"]["diagnostics"]]
    process.stdin.close()
    await asyncio.wait_for(process.wait(), 20)
