"""The custom messages between this server and its clients, beyond LSP.

Requests need attrs classes here: pygls would decode unknown ones into namedtuples with odd keys renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

import attrs
from lsprotocol import types as lsp

REQUEST_FAILED = lsp.LSPErrorCodes.RequestFailed.value
DOCUMENT_CONTENT = "fuselens/documentContent"  # request, for clients without workspace/textDocumentContent
DOCUMENTS_CHANGED = "fuselens/documentsChanged"  # notification: these virtual documents may have new text, or be gone
STATUS = "fuselens/status"  # notification
PICTURES = "fuselens/pictures"  # request: what pictures of a function are drawn from (``pictures/data.py``)
PICTURES_CHANGED = "fuselens/picturesChanged"  # notification: a run said something new about these files
FOCUS = "fuselens/focus"  # notification from the client: the person works on this file now
OVERVIEW = "fuselens/overview"  # request: what there is to show of an open file, as data (documents/overview.py)
CORRESPONDENCE = "fuselens/correspondence"  # request: which lines of a file and of a document beside it belong together

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
SHOW_PLACE = "fuselens.server.showPlace"
COMPARE = "fuselens.server.compare"
FUNCTIONS = "fuselens.server.functions"
FIRST_LINE = "fuselens.server.firstLine"
VALUES = "fuselens.server.values"
MARK_DYNAMIC = "fuselens.server.markDynamic"
SINCE = "fuselens.server.since"
REVISIONS = "fuselens.server.revisions"

EDIT_KERNEL = "fuselens.server.editKernel"
VERIFY_KERNEL = "fuselens.server.verifyKernel"
PIN_KERNEL = "fuselens.server.pinKernel"
UNPIN_KERNEL = "fuselens.server.unpinKernel"
DISCARD_KERNEL = "fuselens.server.discardKernel"
COMPARE_KERNEL = "fuselens.server.compareKernel"
PATCH_LIBRARY = "fuselens.server.patchLibrary"
REMOVE_PATCH = "fuselens.server.removePatch"
TOOL = "fuselens.server.tool"
WHAT_IF = "fuselens.server.whatIf"
APPLY_CHANGE = "fuselens.server.applyChange"


@dataclass(frozen=True, slots=True)
class Actions:
    """The commands that lenses, links and code actions lead to. Arguments: the file's URI, the function; to open a
    document also its address and a line (from 1); for a preview the file's URI, and whether one is wanted."""

    open_document: str
    open_kernel: str
    run_function: str
    preview: str
    record_run: str = ""  # runs the program in a terminal, which only an editor has
    peek_stages: str = ""  # shows what code became, in a view of the editor's own; the URI, line and column (from 0)
    debug: str = ""  # steps through the function
    show_place: str = SHOW_PLACE  # the URI, line and column (from 0)
    compare_kernel: str = "fuselens.server.compareKernel"  # the draft's URI
    what_if: str = ""  # lists the changes of a function, to choose one; the URI, the function


SERVER_ACTIONS = Actions(OPEN_DOCUMENT, OPEN_KERNEL, RUN_FUNCTION, PREVIEW)
CLIENT_ACTIONS = Actions(  # of our extension
    "fuselens.openDocument",
    "fuselens.openKernel",
    "fuselens.runFunction",
    "fuselens.preview",
    "fuselens.recordRun",
    "fuselens.peekStages",
    "fuselens.debugFunction",
    compare_kernel="fuselens.compareKernel",
    what_if="fuselens.whatIf",
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


@attrs.define
class OverviewParams:
    uri: str


@attrs.define
class OverviewRequest:
    id: int | str
    params: OverviewParams
    method: str = OVERVIEW
    jsonrpc: str = "2.0"


@attrs.define
class CorrespondenceParams:
    uri: str  # of the file
    document: str | None = None  # the virtual document that is shown beside it


@attrs.define
class CorrespondenceRequest:
    id: int | str
    params: CorrespondenceParams
    method: str = CORRESPONDENCE
    jsonrpc: str = "2.0"


class LinkedKernel(TypedDict):
    """Kernels that do the same lines are one."""

    name: str
    colour: int  # of eight


class Heat(TypedDict):
    """What the user's own last run says of a line."""

    line: int
    share: float  # of the time of all kernels
    seconds: str  # as a reader sees it; "" where no kernel was timed
    recompiles: int


class Since(TypedDict):
    """What became of a line's code, or of the function on it, since a revision of git."""

    line: int
    direction: str  # "worse" or "better"; where both, "worse"
    texts: list[str]


class CorrespondenceResult(TypedDict):
    """Lines count from 0. Kernels and documents are numbers in the lists."""

    version: int | None  # of the file's text
    kernels: list[LinkedKernel]
    source: list[tuple[int, list[int], list[int]]]  # line of the file, its kernels, the documents that have it
    shown: list[tuple[int, list[int], list[int]]]  # line of the document, its kernels, its lines of the file
    documents: list[str]  # of the shown form, of all graphs
    forms: dict[str, str]  # what the document's place may show: "loops", "cpp", …
    breaks: list[int]
    heat: list[Heat]
    since: list[Since]


@attrs.define
class PicturesParams:
    uri: str
    function: str | None = None


@attrs.define
class PicturesRequest:
    id: int | str
    params: PicturesParams
    method: str = PICTURES
    jsonrpc: str = "2.0"


class DocumentContentResult(TypedDict):
    text: str
    language: str


class DocumentsChanged(TypedDict):
    uris: list[str]


class PicturesChanged(TypedDict):
    uris: list[str]


class Status(TypedDict):
    state: State
    message: str
    torch: str  # version; empty while unknown
    interpreter: str


REQUEST_TYPES = {
    DOCUMENT_CONTENT: DocumentContentRequest,
    FOCUS: FocusNotification,
    OVERVIEW: OverviewRequest,
    CORRESPONDENCE: CorrespondenceRequest,
    PICTURES: PicturesRequest,
}
