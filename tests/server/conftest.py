"""The toy of the README as source, discovery and a hand-written report: what feature tests are functions of."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types as lsp
from pygls import uris
from pygls.lsp.client import LanguageClient

from fuselens.record import diagnostics as codes
from fuselens.record.report import (
    Decision,
    Diagnostic,
    FileReport,
    Frame,
    Graph,
    Guard,
    Kernel,
    Line,
    Report,
    Shape,
    Span,
    Stage,
    Symbol,
    Tensor,
    Timing,
)
from fuselens.source.discovery import discover
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.correspondence import Correspondence
from fuselens_server.texts.tracked_text import Edit, TrackedText
from fuselens_server.texts.view import View
from tests.server.listening import Listening

PATH = "/project/toy.py"
URI = "file:///project/toy.py"

TOY = """\
import fuselens

@fuselens.compile
def toy(a: "Float32[Tensor, 'n']", b, scale=2.0):
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return helper(x, b)

def helper(x, b):
    return x * b
"""


def span(text: str, needle: str, path: str = PATH, nth: int = 0) -> Span:
    """The span of the ``nth`` occurrence of ``needle``."""
    offset = -1
    for _ in range(nth + 1):
        offset = text.index(needle, offset + 1)
    source = SourceText(text)
    (line, column), (end_line, end_column) = (
        source.bytes_at_offset(offset),
        source.bytes_at_offset(offset + len(needle)),
    )
    return Span(path, line, column, end_line, end_column)


def toy_report() -> Report:
    f32 = Tensor("float32", ("n",), ("1",))
    divide, branch, product = span(TOY, "a / (a.abs() + 1)"), span(TOY, "b.sum() < 0"), span(TOY, "x * b")
    loops = (
        "graph 0\n  buffer t0: f32[n]\n  loop i in n:\n    t0[i] = a[i] / (abs(a[i]) + 1)\n  loop j:\n    s += b[j]\n"
    )
    return Report(
        function="toy",
        file=PATH,
        span=span(TOY, "toy"),
        mode="fullgraph=False",
        graphs=[
            Graph(
                0, "toy", span(TOY, "toy"), 4, inputs=(f32, f32), outputs=(f32, Tensor("bool", ())),
                stages=[
                    Stage("capture", "py", "def graph0(a, b):\n    return a / (a.abs() + 1), b.sum() < 0\n",
                          (Line(2, (divide, branch)),)),
                    Stage("fuse", "loop", loops, (Line(4, (divide,)), Line(6, (branch,)))),
                    Stage("cpp", "cpp", "void fused_0() {}\n", (Line(1, (divide,)),)),
                ],
                kernels=[Kernel("fused_0", "cpp", "forward", "pointwise", ("abs", "add", "div"),
                                (divide,), 4096, 2048)],
                decisions=[
                    Decision("FL410", "taken", "loop0 + loop1", "saves 4096 bytes", divide),
                    Decision("FL411", "refused", "loop1 + loop2", "different sizes <n>", branch, {}, divide),
                ],
                timings=[Timing("capture", 0.002), Timing("build", 0.05), Timing("build.cpp", 0.049)],
            ),
            Graph(1, "toy_resume", None, 1, stages=[Stage("fuse", "loop", "x * b\n", (Line(1, (product,)),))],
                  kernels=[Kernel("fused_1", "cpp", "forward", "pointwise", ("mul",), (product,))]),
        ],
        breaks=[codes.make("FL101", branch, what="b.sum() < 0", stack=(Frame("toy", branch),),
                           cost="splits the function into 2 graphs")],
        guards=[
            Guard("TENSOR", "a", "a: float32[*] on cpu", ("a",), divide),
            Guard("EQUALS", "scale", "scale == 2.0", ("scale",)),
            Guard("IS", "helper", "helper is the same function", ("helper",)),
        ],
        shapes=[
            Shape("a", Span(PATH, 4, 8, 4, 9), f32),
            Shape("x", Span(PATH, 5, 4, 5, 5), f32),
            Shape("b", Span(PATH, 7, 8, 7, 9), dataclasses.replace(f32, requires_grad=True)),
        ],
        symbols=[Symbol("n", "a.size(0)", 128, 2, None)],
        timings=[Timing("load", 0.001)],
        versions={"torch": "2.13.0"},
    )  # fmt: skip


def make_view(
    text: str = TOY,
    report: FileReport | None = None,
    failures: tuple[Diagnostic, ...] = (),
    edits: tuple[tuple[int, int, str], ...] = (),
    uri: str = URI,
    path: str = PATH,
    **changes: object,
) -> View:
    """A view of ``report`` after ``edits`` (start, end, new text; offsets in the text before each edit)."""
    source = SourceText(text)
    tracked = TrackedText.unedited(source)
    for start, end, new in edits:
        now = tracked.current.text
        tracked = tracked.after(Edit(start, end, len(new)), SourceText(now[:start] + new + now[end:]))
    return View(
        uri=uri, path=path, names=frozenset({path}), annotated=tuple(discover(text, path)), parsed=tracked,
        report=report, compiled=tracked, failures=failures, failed=tracked,
        **{"correspondence": Correspondence(report), **changes},
    )  # type: ignore[arg-type]  # fmt: skip


class Toy:
    """What tests need of the toy. One fixture, because test files cannot import from each other."""

    path, uri, text = PATH, URI, TOY
    span = staticmethod(span)
    view = staticmethod(make_view)
    report = staticmethod(toy_report)

    def file(self) -> FileReport:
        return FileReport(PATH, [toy_report()])


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def view(toy: Toy) -> View:
    return toy.view(report=toy.file())


# --- a real server under a real client -------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "compiler", ROOT / "server")
INHERITED = [
    Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p
]  # servers have other cwds
PATIENCE = 90.0  # seconds: the machine is shared, and a worker imports torch first

GOOD = """\
import fuselens
import torch


def example():
    return torch.ones(8), -torch.ones(8)


@fuselens.compile(example_inputs=example)
def toy(a, b):
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b
"""


class File:
    """An open document, as an editor holds it."""

    def __init__(self, editor: Editor, path: Path, text: str) -> None:
        self.editor, self.path, self.text, self.version = editor, path, text, 1
        self.uri = uris.from_fs_path(str(path)) or ""
        self.identifier = lsp.TextDocumentIdentifier(self.uri)

    async def save(self, text: str | None = None) -> list[lsp.Diagnostic]:
        """Replaces the text, writes it to disk, says so, and returns the diagnostics that follow."""
        self.path.write_bytes((self.text if text is None else text).encode("utf-8", "surrogatepass"))

        def say() -> None:
            if text is not None:
                self.replace(text)
            self.editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(self.identifier))

        return await self.editor.decided(self.uri, say)

    def replace(self, text: str) -> None:
        self.text = text
        self.change(lsp.TextDocumentContentChangeWholeDocument(text))

    def insert(self, line: int, text: str) -> None:
        """Inserts ``text`` before line ``line`` (from 0), as an incremental change."""
        lines = self.text.splitlines(keepends=True)
        self.text = "".join((*lines[:line], text, *lines[line:]))
        where = lsp.Position(line, 0)
        self.change(lsp.TextDocumentContentChangePartial(lsp.Range(where, where), text))

    def change(self, change: lsp.TextDocumentContentChangeEvent) -> None:
        self.version += 1
        identifier = lsp.VersionedTextDocumentIdentifier(self.version, self.uri)
        self.editor.client.text_document_did_change(lsp.DidChangeTextDocumentParams(identifier, [change]))

    def close(self) -> None:
        self.editor.client.text_document_did_close(lsp.DidCloseTextDocumentParams(self.identifier))

    async def lenses(self) -> list[lsp.CodeLens]:
        found = await self.editor.client.text_document_code_lens_async(lsp.CodeLensParams(self.identifier))
        return list(found or [])

    async def titles(self) -> list[str]:
        return [lens.command.title for lens in await self.lenses() if lens.command]

    async def hints(self) -> list[lsp.InlayHint]:
        everything = lsp.Range(lsp.Position(0, 0), lsp.Position(10_000, 0))
        parameters = lsp.InlayHintParams(self.identifier, everything)
        return list(await self.editor.client.text_document_inlay_hint_async(parameters) or [])

    async def hover(self, needle: str) -> str | None:
        position = SourceText(self.text).position(self.text.index(needle))
        found = await self.editor.client.text_document_hover_async(lsp.HoverParams(self.identifier, position))
        if found is None:
            return None
        assert isinstance(found.contents, lsp.MarkupContent)
        return found.contents.value

    def at(self, where: lsp.Range) -> str:
        """The text in a range of the document as it is now."""
        text = SourceText(self.text)
        return text.text[text.offset(where.start) : text.offset(where.end)]


class Editor:
    """A client of one server process. Everything the server says unasked is kept, and its errors fail the test."""

    def __init__(self) -> None:
        self.client = LanguageClient("tests", "1")
        self.diagnostics: dict[str, lsp.PublishDiagnosticsParams] = {}
        self.notifications: dict[str, list[Any]] = defaultdict(list)
        self.requests: list[str] = []
        self.progress: dict[Any, list[str]] = defaultdict(list)  # its kinds, by token
        self.shown: list[str] = []
        self.asked: list[str] = []
        self.edits: list[lsp.WorkspaceEdit] = []
        self.documents_shown: list[lsp.ShowDocumentParams] = []
        self.configuration: Any = None
        self.scoped: dict[str, Any] = {}  # the configuration of workspace folders, by URI
        self.slow = 0.0  # seconds until it tells its configuration when it is next asked
        self.exit_code: int | None = None
        self.log: list[str] = []  # what the server wrote on stderr
        self.publications = 0
        self.initialized: lsp.InitializeResult | None = None
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._listen()

    def _listen(self) -> None:
        feature = self.client.feature

        @feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def publish(params: lsp.PublishDiagnosticsParams) -> None:
            self.diagnostics[params.uri] = params
            self.publications += 1
            waiting = self._waiting.pop(params.uri, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

        @feature(lsp.WORKSPACE_CONFIGURATION)
        async def configuration(params: lsp.ConfigurationParams) -> list[Any]:
            self.requests.append(lsp.WORKSPACE_CONFIGURATION)
            slow, self.slow = self.slow, 0.0
            await asyncio.sleep(slow)
            return [self.scoped.get(item.scope_uri or "", self.configuration) for item in params.items]

        @feature(lsp.WINDOW_SHOW_MESSAGE)
        def show(params: lsp.ShowMessageParams) -> None:
            self.shown.append(params.message)

        @feature(lsp.WINDOW_SHOW_MESSAGE_REQUEST)
        def ask(params: lsp.ShowMessageRequestParams) -> lsp.MessageActionItem | None:
            self.asked.append(params.message)
            return next(iter(params.actions or ()), None)  # the person agrees

        @feature(lsp.PROGRESS)
        def progress(params: lsp.ProgressParams) -> None:
            value = params.value
            self.progress[params.token].append(value["kind"] if isinstance(value, dict) else value.kind)

        @feature(lsp.WORKSPACE_APPLY_EDIT)
        def apply_edit(params: lsp.ApplyWorkspaceEditParams) -> lsp.ApplyWorkspaceEditResult:
            self.edits.append(params.edit)
            return lsp.ApplyWorkspaceEditResult(True)

        @feature(lsp.WINDOW_SHOW_DOCUMENT)
        def show_document(params: lsp.ShowDocumentParams) -> lsp.ShowDocumentResult:
            self.documents_shown.append(params)
            return lsp.ShowDocumentResult(True)

        for name in (
            lsp.WORKSPACE_CODE_LENS_REFRESH, lsp.WORKSPACE_INLAY_HINT_REFRESH, lsp.CLIENT_REGISTER_CAPABILITY,
            lsp.WORKSPACE_DIAGNOSTIC_REFRESH, lsp.WINDOW_WORK_DONE_PROGRESS_CREATE, lsp.WORKSPACE_TEXT_DOCUMENT_CONTENT_REFRESH,
        ):  # fmt: skip
            feature(name)(self._note(name))
        for name in ("fuselens/status", "fuselens/documentsChanged"):
            feature(name)(self._keep(name))

    def _note(self, name: str) -> Callable[[Any], None]:
        return lambda _: self.requests.append(name)

    def _keep(self, name: str) -> Callable[[Any], None]:
        return lambda params: self.notifications[name].append(params)

    async def start(
        self, root: Path, options: Any = None, environment: dict[str, str] | None = None,
        command: tuple[str, ...] = (sys.executable, "-m", "fuselens_server"),
        more: Callable[[lsp.ClientCapabilities], None] = lambda _: None, folders: tuple[Path, ...] = (),
    ) -> Editor:  # fmt: skip
        path = os.pathsep.join(map(str, INHERITED or SOURCES))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(environment or {})}
        await self.client.start_io(*command, env=env, cwd=str(root))
        self._errors = asyncio.create_task(self._forward_errors())
        both = lsp.ClientCapabilities(
            workspace=lsp.WorkspaceClientCapabilities(
                apply_edit=True,
                configuration=True,
                code_lens=lsp.CodeLensWorkspaceClientCapabilities(refresh_support=True),
                inlay_hint=lsp.InlayHintWorkspaceClientCapabilities(refresh_support=True),
                text_document_content=lsp.TextDocumentContentClientCapabilities(dynamic_registration=True),
                did_change_configuration=lsp.DidChangeConfigurationClientCapabilities(dynamic_registration=True),
            ),
            window=lsp.WindowClientCapabilities(work_done_progress=True),
            text_document=lsp.TextDocumentClientCapabilities(
                hover=lsp.HoverClientCapabilities(content_format=[lsp.MarkupKind.Markdown]),
                publish_diagnostics=lsp.PublishDiagnosticsClientCapabilities(True, True, None, True, True),
            ),
        )
        more(both)
        options = {
            "notifications": True,
            "allowedFolders": ["/"],
            "proveSeconds": 0,
            "whatIfSeconds": 0,
            "foretellRecompiles": False,
            **(options or {}),
        }
        parameters = lsp.InitializeParams(
            both, process_id=os.getpid(), root_uri=uris.from_fs_path(str(root)), initialization_options=options,
            workspace_folders=[lsp.WorkspaceFolder(uris.from_fs_path(str(f)) or "", f.name) for f in folders] or None,
        )  # fmt: skip
        self.initialized = await asyncio.wait_for(self.client.initialize_async(parameters), PATIENCE)
        self.client.initialized(lsp.InitializedParams())
        return self

    async def _forward_errors(self) -> None:
        """To pytest's captured output, which it prints for failed tests; unread, the pipe would fill up."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log.append(line.decode(errors="replace"))
            sys.stderr.write(self.log[-1])

    async def stop(self) -> None:
        if self.process.returncode is None:
            await asyncio.wait_for(self.client.shutdown_async(None), 20)
            self.client.exit(None)
        self.exit_code = await asyncio.wait_for(self.process.wait(), 20)
        await self.client.stop()
        assert [m for m in self.shown if m.startswith("Error in server")] == []

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self.client._server is not None
        return self.client._server

    async def published(self, uri: str, action: Callable[[], None], patience: float = PATIENCE) -> list[lsp.Diagnostic]:
        """Does ``action`` and returns the next diagnostics of ``uri``."""
        self._waiting[uri] = waiting = asyncio.get_running_loop().create_future()
        action()
        await asyncio.wait_for(waiting, patience)
        return list(self.diagnostics[uri].diagnostics)

    async def decided(self, uri: str, action: Callable[[], None]) -> list[lsp.Diagnostic]:
        """The same; where predictions or early findings come first, those that the check ends with."""
        await self.published(uri, action)
        begun = time.monotonic()
        while time.monotonic() - begun < PATIENCE:
            if self._is_checking():
                await asyncio.sleep(0.02)
            elif any(d.data and d.data.get("predicted") for d in self.diagnostics[uri].diagnostics):
                try:
                    await self.published(uri, lambda: None, 15)  # the server may yet look for what is to run it
                except TimeoutError:
                    if not self._is_checking():
                        break  # nothing is to be executed
            else:
                break
        return list(self.diagnostics[uri].diagnostics)

    def _is_checking(self) -> bool:
        states = self.notifications["fuselens/status"]
        return bool(states) and states[-1].state in ("starting", "compiling")

    def show(self, path: Path, text: str | None = None, language: str = "python") -> File:
        """Opens a file (with unsaved ``text``) and waits for nothing."""
        shown = path.read_bytes().decode("utf-8", "surrogatepass") if text is None else text
        file = File(self, path, shown)
        item = lsp.TextDocumentItem(file.uri, language, 1, shown)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        return file

    async def open(self, path: Path, text: str) -> tuple[File, list[lsp.Diagnostic]]:
        """Writes a file, opens it and waits for its diagnostics."""
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        holder: list[File] = []
        found = await self.decided(uris.from_fs_path(str(path)) or "", lambda: holder.append(self.show(path)))
        return holder[0], found

    async def execute(self, command: str, *arguments: Any) -> Any:
        parameters = lsp.ExecuteCommandParams(command, list(arguments))
        return await asyncio.wait_for(self.client.workspace_execute_command_async(parameters), PATIENCE)

    async def until(self, condition: Callable[[], Any], seconds: float = 30) -> None:
        """Waits for what the server does unasked."""
        for _ in range(int(seconds / 0.05)):
            if condition():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it did not happen")

    def worker_pids(self) -> list[int]:
        """The server's direct children, from /proc."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()]
        return [pid for pid in pids if b"fuselens.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture(scope="session")
def good() -> str:
    """A file that compiles, with one break."""
    return GOOD


@pytest.fixture(scope="module")
def new_editor() -> type[Editor]:
    return Editor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def editor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Editor]:
    """One server for a module's tests, because each start of a worker imports torch."""
    running = await Editor().start(tmp_path_factory.mktemp("workspace"))
    try:
        yield running
    finally:
        await running.stop()


@pytest_asyncio.fixture
async def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listening]:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path / "cache"))
    made = Listening(tmp_path)
    await made.runs.start()
    yield made
    await made.end()
