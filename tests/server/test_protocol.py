"""The rules of JSON-RPC and of LSP's life cycle, message by message: what a client library would never send."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types as lsp
from lsprotocol.converters import get_converter

from fuselens_server.registration import create

PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
NOT_INITIALIZED, CANCELLED = -32002, -32800
INITIALIZE = {"processId": None, "rootUri": None, "capabilities": {}}
HOVER = {"textDocument": {"uri": "file:///nowhere.py"}, "position": {"line": 0, "character": 0}}


class Wire:
    """A server, and the bytes between."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self.process, self.sink, self.source = process, process.stdin, process.stdout

    def raw(self, body: bytes, header: bytes | None = None) -> None:
        self.sink.write((b"Content-Length: %d\r\n\r\n" % len(body) if header is None else header) + body)

    def send(self, method: str, params: Any = None, **more: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params}), **more}
        self.raw(json.dumps(message).encode())

    async def receive(self) -> dict[str, Any]:
        length = 0
        while (header := await asyncio.wait_for(self.source.readline(), 60)) != b"\r\n":
            name, _, value = header.partition(b": ")
            assert name in (b"Content-Length", b"Content-Type"), header
            length = int(value) if name == b"Content-Length" else length
        return json.loads(await self.source.readexactly(length))

    async def answer(self, request: Any) -> dict[str, Any]:
        """The next message, which must answer ``request``."""
        message = await self.receive()
        assert message.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"}), message
        assert (message["jsonrpc"], message["id"]) == ("2.0", request)
        if "error" in message:
            assert get_converter().structure(message["error"], lsp.ResponseError).message
        return message

    async def error(self, request: Any) -> int:
        return (await self.answer(request))["error"]["code"]

    async def begin(self, **options: Any) -> dict[str, Any]:
        self.send("initialize", {**INITIALIZE, "initializationOptions": options}, id="begin")
        result = (await self.answer("begin"))["result"]
        self.send("initialized", {})
        return result

    async def end(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 20)


@pytest_asyncio.fixture
async def wire() -> AsyncIterator[Wire]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment.pop("PYTHONUNBUFFERED", None)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fuselens_server", stdin=pipe, stdout=pipe, stderr=pipe, env=environment, limit=1 << 26
    )
    reading = asyncio.create_task(process.stderr.read())  # type: ignore[union-attr]
    yield Wire(process)
    if process.returncode is None:
        process.kill()
        await process.wait()
    sys.stderr.write((await reading).decode())


async def test_before_initialize(wire):
    wire.send("textDocument/hover", HOVER, id=1)
    assert await wire.error(1) == NOT_INITIALIZED
    wire.send("shutdown", id="two")
    assert await wire.error("two") == NOT_INITIALIZED
    document = {"uri": "file:///x.py", "languageId": "python", "version": 1, "text": "import fuselens"}
    wire.send("textDocument/didOpen", {"textDocument": document})
    wire.send("no/such")
    await wire.begin()
    wire.send("initialize", INITIALIZE, id=3)
    assert await wire.error(3) == INVALID_REQUEST
    wire.send("workspace/symbol", {"query": ""}, id=4)
    assert (await wire.answer(4))["result"] == []  # what was opened too early is not open


async def test_shutdown_and_exit(wire):
    await wire.begin()
    wire.send("shutdown", id=1)
    wire.send("textDocument/hover", HOVER, id=2)
    answers = sorted([await wire.receive(), await wire.receive()], key=lambda answer: answer["id"])
    assert answers[0] == {"jsonrpc": "2.0", "id": 1, "result": None}
    assert answers[1]["error"]["code"] == INVALID_REQUEST
    wire.send("shutdown", id=3)
    assert await wire.error(3) == INVALID_REQUEST
    wire.send("textDocument/didClose", {"textDocument": {"uri": "file:///nowhere.py"}})
    wire.send("exit")
    assert await wire.end() == 0


@pytest.mark.parametrize(
    ("steps", "code"),
    [((), 1), (("begin",), 1), (("begin", "shutdown"), 0), (("shutdown",), 1)],
    ids=["at once", "without shutdown", "without waiting for the answer", "without initialize"],
)
async def test_exit(wire, steps, code):
    if "begin" in steps:
        await wire.begin()
    if "shutdown" in steps:
        wire.send("shutdown", id=1)
    wire.send("exit")
    assert await wire.end() == code


async def test_what_is_no_message(wire):
    """One server for all: each is answered, and the next is understood."""
    await wire.begin()
    deep = b"[" * 100_000
    for body in (b"{", b"\xff\xfe\xfa", b'{"jsonrpc": "2.0", "method": "x", "id": 1,}', deep, b"'x'"):
        wire.raw(body)
        assert await wire.error(None) == PARSE_ERROR, body
    for body in (
        b"[]", b"1", b"null", b'"x"', b"{}", b'[{"jsonrpc":"2.0","id":1,"method":"shutdown"}]',
        b'{"id":1,"method":"shutdown"}', b'{"jsonrpc":"1.0","id":1,"method":"shutdown"}',
        b'{"jsonrpc":"2.0","id":null,"method":"shutdown"}', b'{"jsonrpc":"2.0","id":{},"method":"shutdown"}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"shutdown"}', b'{"jsonrpc":"2.0","id":true,"method":"shutdown"}',
    ):  # fmt: skip
        wire.raw(body)
        assert await wire.error(None) == INVALID_REQUEST, body
    for header in (b"Content-Length: x\r\n\r\n", b"Nonsense\r\n\r\n", b"Content-Length: 0\r\n\r\n", b"\r\n\r\n"):
        wire.raw(b"", header)
    wire.send("workspace/symbol", {"query": ""}, id="after")
    assert (await wire.answer("after"))["result"] == []


@pytest.mark.parametrize("body", [b'"method":"no/such"', b'"method":"$/such","params":{"a":[]}', b'"method":5,"params":[]',
                                  b'"method":{}', b'"method":"exitt","params":null'])  # fmt: skip
async def test_unknown_methods(wire, body):
    await wire.begin()
    wire.raw(b'{"jsonrpc":"2.0",%s}' % body)  # a notification is ignored
    wire.raw(b'{"jsonrpc":"2.0","id":7,%s}' % body)
    assert await wire.error(7) == UNKNOWN_METHOD


async def test_wrong_parameters_say_what_is_wrong(wire):
    await wire.begin()
    cases: list[tuple[str, Any, str]] = [
        ("textDocument/hover", None, "params"),
        ("textDocument/hover", [], ""),
        ("textDocument/hover", {"position": {"line": 0, "character": 0}}, "text_document"),
        ("textDocument/hover", {**HOVER, "position": {"line": 0}}, "character"),
        ("textDocument/hover", {**HOVER, "position": {"line": -1, "character": 0}}, "line"),
        ("textDocument/hover", {**HOVER, "textDocument": "file:///x.py"}, ""),
        (
            "textDocument/codeAction",
            {"textDocument": {"uri": "x"}, "range": 3, "context": {"diagnostics": []}},
            "range",
        ),
        ("workspace/executeCommand", {"arguments": []}, "command"),
        ("workspace/executeCommand", {"command": "none"}, "none"),
        ("workspace/executeCommand", {"command": "fuselens.server.explain", "arguments": ["file:///x.py"]}, "2"),
        ("workspace/executeCommand", {"command": "fuselens.server.explain", "arguments": [{}, []]}, ""),
        ("workspace/textDocumentContent", {"uri": "fuselens://codes/none.md"}, "no such document"),
        ("fuselens/documentContent", {}, "uri"),
        ("codeLens/resolve", {"data": 1}, "range"),
    ]
    for number, (method, params, named) in enumerate(cases):
        wire.send(method, params, id=number)
        error = (await wire.answer(number))["error"]
        assert error["code"] == INVALID_PARAMS, (method, params, error)
        assert named in error["message"], error
    wire.send("textDocument/didOpen", {}, id="no request")
    assert await wire.error("no request") == INVALID_REQUEST


async def test_wrong_notifications_are_told_to_the_user(wire):
    await wire.begin()
    wire.send("textDocument/didOpen", {})
    told = await wire.receive()
    assert told["method"] == "window/showMessage"
    assert told["params"]["type"] == lsp.MessageType.Error.value
    assert "textDocument/didOpen.params.text_document" in told["params"]["message"]


async def test_other_notifications_are_ignored(wire):
    """Those that nothing answers to, also for texts that are not open."""
    await wire.begin()
    text, change = {"uri": "file:///nowhere.py"}, {"text": "x"}
    wire.send("$/setTrace", {"value": "verbose"})
    wire.send("$/cancelRequest", {"id": "none"})
    wire.send("$/progress", {"token": 1, "value": {}})
    wire.send("$/unheard-of", [1, {"class": 2}])
    wire.send("window/workDoneProgress/cancel", {"token": "none"})
    wire.send("textDocument/willSave", {"textDocument": text, "reason": 1})
    wire.send("textDocument/didChange", {"textDocument": {**text, "version": 2}, "contentChanges": [change]})
    wire.send("textDocument/didSave", {"textDocument": text})
    wire.send("textDocument/didClose", {"textDocument": text})
    wire.send("notebookDocument/didClose", {"notebookDocument": text, "cellTextDocuments": []})
    wire.send("workspace/didChangeWatchedFiles", {"changes": [{**text, "type": 3}, {"uri": "nonsense", "type": 1}]})
    wire.send("workspace/didChangeWorkspaceFolders", {"event": {"added": [], "removed": [{"uri": "x", "name": "x"}]}})
    wire.send("fuselens/focus", {"uri": None})
    wire.raw(b'{"jsonrpc":"2.0","id":"nobody","result":[]}')
    wire.raw(b'{"jsonrpc":"2.0","id":["nobody"],"error":{}}')
    wire.send("workspace/symbol", {"query": ""}, id="last")
    assert (await wire.answer("last"))["result"] == []


async def test_values_of_newer_clients(wire):
    """Capabilities, kinds and fields that this server's types do not have."""
    newer = {
        "workspace": {
            "symbol": {"symbolKind": {"valueSet": [1, 99]}},
            "workspaceEdit": {"resourceOperations": ["swap"]},
        },
        "textDocument": {
            "completion": {"completionItem": {"documentationFormat": ["html"]}},
            "telepathy": {"deep": True},
        },
        "general": {"positionEncodings": ["utf-9", "utf-8"]},
        "another": [],
    }
    wire.send("initialize", {**INITIALIZE, "capabilities": newer, "mood": "good"}, id=1)
    assert (await wire.answer(1))["result"]["capabilities"]["positionEncoding"] == "utf-8"
    wire.send("initialized", {"later": 1})
    context = {"diagnostics": [], "triggerKind": 9, "only": ["refactor.new"]}
    area = {"start": {"line": 0, "character": 0}, "end": {"line": 2**31 - 1, "character": 2**31 - 1}}
    wire.send("textDocument/codeAction", {**HOVER, "range": area, "context": context}, id=2)
    assert (await wire.answer(2))["result"] == []


async def test_wrong_answers_of_the_client_count_as_refusals(wire):
    """Asked for its configuration, the client answers nonsense, then with an error, then with too little."""
    wire.send("initialize", {**INITIALIZE, "capabilities": {"workspace": {"configuration": True}}}, id=0)
    await wire.answer(0)
    wire.send("initialized", {})
    for reply in ({"result": 5}, {"error": {"code": "x"}}, {"result": []}, {"result": [{"timeout": "soon"}]}):
        asked = await wire.receive()
        assert asked["method"] == "workspace/configuration"
        wire.raw(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}).encode())
        if reply.get("result") != [{"timeout": "soon"}]:
            wire.send("workspace/symbol", {"query": ""}, id=1)
            assert (await wire.answer(1))["result"] == []
            wire.send("workspace/didChangeConfiguration", {"settings": None})
    told = await wire.receive()
    assert told["params"]["message"] == 'fuselens.timeout is "soon", but takes a number. Used instead: 60.'


async def test_settings_of_clients_that_cannot_be_asked(wire, tmp_path):
    await wire.begin()
    path = tmp_path / "unsaved.py"
    path.write_text("other = 1\n")
    text = "import fuselens\n@fuselens.compile\ndef f(x): return x\n"
    document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": text}
    wire.send("textDocument/didOpen", {"textDocument": document})
    for settings, lenses in (
        ({"fuselens": {"codeLens": False}}, 0),
        (None, 1),
        ({"codeLens": False}, 0),
        ({}, 1),
        (7, 1),
    ):
        wire.send("workspace/didChangeConfiguration", {"settings": settings})
        wire.send("textDocument/codeLens", {"textDocument": {"uri": path.as_uri()}}, id=str(settings))
        assert len((await wire.answer(str(settings)))["result"]) == lenses, settings
    wire.send("workspace/didChangeConfiguration", {"settings": {"fuselens": {"memoryLimit": "all"}}})
    assert (await wire.receive())["params"]["message"] == (
        'fuselens.memoryLimit is "all", but takes a whole number. Used instead: 8192.'
    )


async def test_what_is_wrong_with_settings_is_told_once(wire):
    """All of it in one message; again only where it is something else."""
    await wire.begin()
    wrong = {"timeout": [], "memoryLimit": 1.5, "target": "tpu", "codeLens": "yes", "allowedFolders": {}, "live": None}
    wrong["mesh"] = "data"
    for settings in (wrong, wrong, wrong | {"warmFiles": 0}, wrong):
        wire.send("workspace/didChangeConfiguration", {"settings": settings})
    wire.send("workspace/symbol", {"query": ""}, id=1)
    told = []
    while (message := await wire.receive()).get("id") != 1:
        told += [message["params"]["message"]] if message.get("method") == "window/showMessage" else []
    first, second = told
    assert "fuselens.timeout is [], but takes a number. Used instead: 60." in first
    assert "fuselens.memoryLimit is 1.5, but takes a whole number. Used instead: 8192." in first
    assert 'fuselens.target is "tpu"' in first
    assert "Used instead: auto." in first
    assert 'fuselens.codeLens is "yes", but takes true or false. Used instead: true.' in first
    assert (
        'fuselens.mesh is "data", but takes names and sizes, such as data=8,tensor=8. Used instead: no ranks.' in first
    )
    assert "fuselens.allowedFolders is {}, but takes a list. Used instead: no folder." in first
    assert second == "fuselens.warmFiles is 0, but takes true or false. Used instead: true."


async def test_cancelled_requests_are_answered_as_cancelled(wire, tmp_path):
    """Also when a cancellation comes late, or twice."""
    await wire.begin(allowedFolders=["/"])
    path = tmp_path / "endless.py"
    path.write_text("import time\ntime.sleep(300)\n")
    params = {"command": "fuselens.server.run", "arguments": [path.as_uri(), "f"]}
    wire.send("workspace/executeCommand", params, id=1)
    wire.send("$/cancelRequest", {"id": 1})
    wire.send("$/cancelRequest", {"id": 1})
    while "id" not in (message := await wire.receive()):
        pass  # what the server says of its state
    assert (message["id"], message["error"]["code"]) == (1, CANCELLED)


async def test_what_is_done_is_forgotten():
    """What handlers that are coroutines gave: commands and notifications too, not only requests."""
    protocol = create().protocol
    given: list[asyncio.Future[str]] = []

    async def handler(value: str) -> str:
        return value

    for value in "ab":
        protocol._execute_handler(value, handler, given.append, (value,))
    while len(given) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [future.result() for future in given] == ["a", "b"]
    assert protocol._request_futures == {}


async def test_a_shutdown_while_requests_of_both_sides_wait(wire, tmp_path):
    """The client answers nothing that the server asks."""
    capabilities = {
        "workspace": {"configuration": True, "didChangeConfiguration": {"dynamicRegistration": True}},
        "window": {"workDoneProgress": True},
    }
    wire.send("initialize", {**INITIALIZE, "capabilities": capabilities}, id=1)
    await wire.answer(1)
    wire.send("initialized", {})
    await asyncio.sleep(0.3)
    wire.send("textDocument/hover", HOVER, id=2)
    wire.send("shutdown", id=3)
    while (message := await wire.receive()).get("id") != 3 or "method" in message:
        pass
    assert "error" not in message
    wire.send("exit")
    assert await wire.end() == 0
