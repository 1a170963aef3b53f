"""A client that does what it likes: messages are written by hand, answers need not be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from .conftest import INHERITED, SOURCES

PATIENCE = 90.0  # seconds, for what takes as long as it takes
MARK = "FUSELENS_TEST_MARK"


class RawSession:
    """One server process. ``marked`` finds whatever it started, in whichever session or group, by its environment."""

    def __init__(
        self, root: Path, *command: str, reads: bool = True, environment: dict[str, str] | None = None
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.root = root
        path = os.pathsep.join(map(str, INHERITED or SOURCES))
        env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        self.process = subprocess.Popen(
            command or (sys.executable, "-m", "fuselens_server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd=root, env={**env, "PYTHONPATH": path, MARK: self.mark, **(environment or {})},
        )  # fmt: skip
        self.messages: list[dict[str, Any]] = []
        self._ids = 0
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while header := stream.readline():
            if header.startswith(b"Content-Length: "):
                length = int(header.split()[1])
            elif header == b"\r\n":
                self.messages.append(json.loads(stream.read(length)))

    def send(self, method: str, params: Any = None, *, request: bool = False) -> int:
        self._ids += 1
        more = {"id": self._ids} if request else {}
        self._write({"jsonrpc": "2.0", "method": method, "params": params, **more})
        return self._ids

    def _write(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def respond(self, request: Any, result: Any) -> None:
        """Answers a request of the server's."""
        self._write({"jsonrpc": "2.0", "id": request, "result": result})

    def command(self, name: Any, *arguments: Any) -> int:
        return self.send("workspace/executeCommand", {"command": name, "arguments": list(arguments)}, request=True)

    def begin(self, client: int | None = None, **options: Any) -> RawSession:
        root = self.root.as_uri()
        params = {"processId": client, "rootUri": root, "capabilities": {}, "initializationOptions": options}
        self.answer(self.send("initialize", params, request=True))
        self.send("initialized", {})
        return self

    def open(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        item = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": text}
        self.send("textDocument/didOpen", {"textDocument": item})

    def answer(self, request: int) -> dict[str, Any]:
        return self._first(lambda m: m.get("id") == request and "method" not in m)

    def findings(self, path: Path) -> list[dict[str, Any]]:
        """The first that were published."""
        uri = path.as_uri()
        method = "textDocument/publishDiagnostics"
        return self._first(lambda m: m.get("method") == method and m["params"]["uri"] == uri)["params"]["diagnostics"]

    def _first(self, wanted: Any) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if (found := next((m for m in list(self.messages) if wanted(m)), None)) is not None:
                return found
            time.sleep(0.02)
        raise AssertionError(f"it did not come; there is {[m.get('method', m) for m in self.messages]}")

    def exit_status(self) -> int:
        """Of the server, which has to end by itself."""
        return self.process.wait(30)

    def marked(self) -> dict[int, str]:
        """What lives of the server and of all that it started."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                        found[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
        return found

    def workers(self) -> list[int]:
        return [pid for pid, command in self.marked().items() if "fuselens.worker" in command]

    def left(self) -> dict[int, str]:
        """What lives some seconds after the end: a worker whose pipes were closed needs a moment."""
        until = time.monotonic() + 10
        while (found := self.marked()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def clean_up(self) -> None:
        for pid in (self.process.pid, *self.marked()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
