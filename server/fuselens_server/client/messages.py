"""The custom messages between this server and its clients, beyond LSP.

Requests need attrs classes here: pygls would decode unknown ones into namedtuples with odd keys renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

import attrs

DOCUMENT_CONTENT = "fuselens/documentContent"  # request, for clients without workspace/textDocumentContent
DOCUMENTS_CHANGED = "fuselens/documentsChanged"  # notification: these virtual documents may have new text, or be gone
STATUS = "fuselens/status"  # notification
FOCUS = "fuselens/focus"  # notification from the client: the person works on this file now

RUN = "fuselens.server.run"
DOCUMENTS = "fuselens.server.documents"
RESTART_WORKER = "fuselens.server.restartWorker"
EXPLAIN = "fuselens.server.explain"

OPEN_DOCUMENT = "fuselens.server.openDocument"
OPEN_KERNEL = "fuselens.server.openKernel"
RUN_FUNCTION = "fuselens.server.runFunction"
CHECK = "fuselens.server.check"
FIX_ALL = "fuselens.server.fixAll"
PREVIEW = "fuselens.server.preview"


@dataclass(frozen=True, slots=True)
class Actions:
    """The commands that lenses, links and code actions lead to. Arguments: the file's URI, the function; to open a
    document also its address and a line (from 1); for a preview the file's URI, and whether one is wanted."""

    open_document: str
    open_kernel: str
    run_function: str
    preview: str
    record_run: str = ""  # runs the program in a terminal, which only an editor has


SERVER_ACTIONS = Actions(OPEN_DOCUMENT, OPEN_KERNEL, RUN_FUNCTION, PREVIEW)
CLIENT_ACTIONS = Actions(  # of our extension
    "fuselens.openDocument",
    "fuselens.openKernel",
    "fuselens.runFunction",
    "fuselens.preview",
    "fuselens.recordRun",
)

State = Literal["starting", "ready", "compiling", "error"]


@attrs.define
class DocumentContentParams:
    uri: str


@attrs.define
class DocumentContentRequest:
    id: int | str
    params: DocumentContentParams
    method: str = DOCUMENT_CONTENT
    jsonrpc: str = "2.0"


@attrs.define
class FocusParams:
    uri: str | None = None


@attrs.define
class FocusNotification:
    params: FocusParams
    method: str = FOCUS
    jsonrpc: str = "2.0"


class DocumentContentResult(TypedDict):
    text: str
    language: str


class DocumentsChanged(TypedDict):
    uris: list[str]


class Status(TypedDict):
    state: State
    message: str
    torch: str  # version; empty while unknown
    interpreter: str


REQUEST_TYPES = {DOCUMENT_CONTENT: DocumentContentRequest, FOCUS: FocusNotification}
