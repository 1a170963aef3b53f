"""What a strict client checks of every message: types, its own capabilities, places, addresses, commands, Markdown."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

import cattrs
from lsprotocol import types as lsp
from lsprotocol.converters import get_converter
from pygls import uris


def reading_code_actions(converter: cattrs.Converter) -> cattrs.Converter:
    """lsprotocol takes a code action that has a command for a command."""

    def structure(value: Any, _: Any) -> lsp.Command | lsp.CodeAction:
        return converter.structure(value, lsp.Command if isinstance(value.get("command"), str) else lsp.CodeAction)

    converter.register_structure_hook(Union[lsp.Command, lsp.CodeAction], structure)  # noqa: UP007  # as lsprotocol does
    return converter


_CONVERTER = reading_code_actions(get_converter())
_LINE_END = re.compile(r"\r\n|\r|\n")
_WIDTHS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
_LINK = re.compile(r"(?<!\\)\[((?:\\.|[^\]\\])*)\]\(([^\s()<>]*)\)")
_OUTGOING = {  # what the server may send unasked, and the capability that allows it
    lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS: "",
    lsp.WINDOW_SHOW_MESSAGE: "",
    lsp.WINDOW_SHOW_MESSAGE_REQUEST: "",
    lsp.CLIENT_REGISTER_CAPABILITY: "",  # each registration for itself
    lsp.PROGRESS: "window.workDoneProgress",
    lsp.WINDOW_WORK_DONE_PROGRESS_CREATE: "window.workDoneProgress",
    lsp.WINDOW_SHOW_DOCUMENT: "window.showDocument.support",
    lsp.WORKSPACE_APPLY_EDIT: "workspace.applyEdit",
    lsp.WORKSPACE_CONFIGURATION: "workspace.configuration",
    lsp.WORKSPACE_CODE_LENS_REFRESH: "workspace.codeLens.refreshSupport",
    lsp.WORKSPACE_INLAY_HINT_REFRESH: "workspace.inlayHint.refreshSupport",
    lsp.WORKSPACE_DIAGNOSTIC_REFRESH: "workspace.diagnostics.refreshSupport",
    lsp.WORKSPACE_TEXT_DOCUMENT_CONTENT_REFRESH: "workspace.textDocumentContent",
}
_CUSTOM = {"fuselens/status", "fuselens/documentsChanged", "fuselens/picturesChanged"}  # for clients that ask for them
_FIELDS = {  # of values that have all the fields on the left: the field, and the capability that allows it
    "range message relatedInformation": "textDocument.publishDiagnostics.relatedInformation",
    "range message codeDescription": "textDocument.publishDiagnostics.codeDescriptionSupport",
    "range message data": "textDocument.publishDiagnostics.dataSupport",
    "range target tooltip": "textDocument.documentLink.tooltipSupport",
    "title kind": "textDocument.codeAction.codeActionLiteralSupport",
    "title isPreferred": "textDocument.codeAction.isPreferredSupport",
    "documentChanges": "workspace.workspaceEdit.documentChanges",
    "diagnostics version": "textDocument.publishDiagnostics.versionSupport",
}


class Auditor:
    """Reads an editor's messages as they come. ``wrong`` is what it finds; ``files`` are those that the editor shows."""

    def __init__(self, editor: Any, capabilities: lsp.ClientCapabilities) -> None:
        self.wrong: list[str] = []
        self.methods: set[str] = set()  # of what the server sent unasked
        self.registered: set[str] = set()
        self.progress: dict[Any, list[dict[str, Any]]] = {}  # by token
        self.files: list[Any] = []
        self.notifications = True  # the client asked for ours
        self.commands: set[str] = set()
        self._editor = editor
        self._declared = _CONVERTER.unstructure(capabilities)
        self._asked: dict[Any, tuple[str, Any]] = {}
        self._elsewhere: dict[str, list[Any]] = {}  # places in texts that the server has
        protocol = editor.client.protocol
        reading_code_actions(protocol._converter)
        structure, send = protocol.structure_message, protocol._send_data

        def received(data: Any) -> Any:
            if "jsonrpc" in data:
                self._read(copy.deepcopy(data))
            return structure(data)

        def sent(data: Any) -> None:
            message = _CONVERTER.unstructure(data)
            if "method" in message and "id" in message:
                self._asked[message["id"]] = message["method"], message.get("params")
            send(data)

        protocol.structure_message, protocol._send_data = received, sent

    def declares(self, capability: str) -> bool:
        return bool(self._declaration(capability))

    def _declaration(self, capability: str) -> Any:
        found: Any = self._declared
        for name in capability.split(".") if capability else ():
            found = found.get(name) if isinstance(found, dict) else None
        return found

    # --- one message -------------------------------------------------------------------------------------------------

    def _read(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self._read_unasked(message["method"], message)
            return
        method, params = self._asked.pop(message["id"])
        if "error" in message:
            self._typed(message, lsp.ResponseErrorMessage)
            return
        if method == lsp.INITIALIZE:
            provider = message["result"]["capabilities"]["executeCommandProvider"]
            self.commands = set(provider["commands"])
        kinds = lsp.METHOD_TO_TYPES.get(method)
        if kinds is not None and kinds[1] is not None:
            self._typed(message, kinds[1])
        uri = (params or {}).get("textDocument", {}).get("uri", "") if isinstance(params, dict) else ""
        if method != lsp.INITIALIZE:
            self._check(method, message["result"], uri)

    def _read_unasked(self, method: str, message: dict[str, Any]) -> None:
        self.methods.add(method)
        params = message.get("params")
        if method in _CUSTOM:
            if not self.notifications:
                self.wrong.append(f"nobody asked for {method}")
            return
        if method not in _OUTGOING or (_OUTGOING[method] and not self.declares(_OUTGOING[method])):
            self.wrong.append(f"the client does not take {method}")
            return
        self._typed(message, lsp.METHOD_TO_TYPES[method][0])
        if method == lsp.WINDOW_WORK_DONE_PROGRESS_CREATE:
            self.progress[params["token"]] = []
        if method == lsp.PROGRESS:
            self._progress(params["token"], params["value"])
        if method == lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS and self.declares("workspace.diagnostics.refreshSupport"):
            self.wrong.append("pushed to a client that pulls")
        if method == lsp.CLIENT_REGISTER_CAPABILITY:
            for registration in params["registrations"]:
                self.registered.add(registration["method"])
                path = registration["method"].replace("/", ".") + ".dynamicRegistration"
                if not self.declares(path):
                    self.wrong.append(f"the client does not take registrations of {registration['method']}")
        uri = params.get("uri", "") if method == lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS else ""
        shown = next((f for f in self.files if f.uri == uri), None)
        current = shown is None or params.get("version") in (None, shown.version)
        self._check(method, params, uri if current else "")

    def _progress(self, token: Any, value: dict[str, Any]) -> None:
        """Begins once, with a title, and ends once."""
        before = [said["kind"] for said in self.progress.get(token, [{"kind": "end"}])]
        expected = ("report", "end") if before else ("begin",)
        if "end" in before or value["kind"] not in expected or (value["kind"] == "begin" and not value["title"]):
            self.wrong.append(f"progress {value} after {before}")
        self.progress.setdefault(token, []).append(value)

    def _typed(self, message: dict[str, Any], kind: Any) -> None:
        """A message is of its type when nothing is lost on the way through the type."""
        try:
            again = _CONVERTER.unstructure(_CONVERTER.structure(copy.deepcopy(message), kind))
        except Exception as error:  # noqa: BLE001  # whatever is wrong with it
            self.wrong.append(f"{kind.__name__}: {error!r} of {message}")
            return
        if _without_nulls(again) != _without_nulls(message):
            self.wrong.append(f"{kind.__name__}: {message} is read as {again}")

    def _check(self, method: str, value: Any, uri: str) -> None:
        for part in _parts(value):
            for fields, capability in _FIELDS.items():
                if set(fields.split()) <= part.keys() and not self._takes(capability):
                    self.wrong.append(f"{method}: {fields.split()[-1]} in {part}")
            if isinstance(part.get("command"), str) and "title" in part:
                if part["command"] and part["command"] not in self.commands:
                    self.wrong.append(f"{method}: unknown command {part['command']}")
            if "targetUri" in part and not self.declares(f"{method.replace('/', '.')}.linkSupport"):
                self.wrong.append(f"{method}: a link")
            if "selectionRange" in part and not self.declares(
                "textDocument.documentSymbol.hierarchicalDocumentSymbolSupport"
            ):
                self.wrong.append(f"{method}: a hierarchy")
            for name in ("uri", "targetUri", "target", "href"):
                if isinstance(part.get(name), str):
                    self._address(part[name])
        if method in (lsp.WORKSPACE_SYMBOL, lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL):
            self._symbol_kinds(method, value)
        if method == lsp.TEXT_DOCUMENT_HOVER and value:
            self._hover(value["contents"])
        for where, place in _places(value, uri):
            self._place(where, place)

    def _takes(self, capability: str) -> bool:
        """Clients that pull say what they take in either place."""
        return self.declares(capability) or self.declares(capability.replace("publishDiagnostics", "diagnostic"))

    def _symbol_kinds(self, method: str, value: Any) -> None:
        path = "workspace.symbol" if method == lsp.WORKSPACE_SYMBOL else "textDocument.documentSymbol"
        known = set(self._declaration(f"{path}.symbolKind.valueSet") or range(1, 19))
        for part in _parts(value):
            if "kind" in part and part["kind"] not in known:
                self.wrong.append(f"{method}: the kind of {part}")

    def _hover(self, contents: dict[str, str]) -> None:
        formats = self._declaration("textDocument.hover.contentFormat") or ["plaintext"]
        if contents["kind"] not in formats:
            self.wrong.append(f"hover in {contents['kind']}")
        if contents["kind"] == "markdown":
            self.wrong += malformed(contents["value"])
            for found in _LINK.finditer(contents["value"]):
                self._address(found[2])
        elif re.search(r"```|\*\*|\]\(", contents["value"]):
            self.wrong.append(f"marks in plain text: {contents['value']}")

    # --- places and addresses ----------------------------------------------------------------------------------------

    def _address(self, uri: str) -> None:
        address, _, fragment = uri.partition("#")
        line = re.match(r"L(\d+)", fragment)
        at = {"line": int(line[1]) - 1, "character": 0} if line else {"line": 0, "character": 0}
        if address.startswith("fuselens:") and not self.declares("workspace.textDocumentContent"):
            self.wrong.append(f"the client cannot open {uri}")
        self._place(address, at)

    def _place(self, uri: str, place: Any) -> None:
        text = next((f.text for f in self.files if f.uri == uri), None)
        if text is not None:
            self._within(text, uri, place)
        elif uri:
            self._elsewhere.setdefault(uri, []).append(place)

    def _within(self, text: str, uri: str, place: Any) -> None:
        lines = _LINE_END.split(text)
        result = self._editor.initialized
        encoding = result.capabilities.position_encoding if result else "utf-16"
        codec, width = _WIDTHS[getattr(encoding, "value", encoding)]
        for at in (place["start"], place["end"]) if "start" in place else (place,):
            if at["line"] >= len(lines):
                self.wrong.append(f"{uri}: {at} is beyond {len(lines)} lines")
                continue
            units, end = lines[at["line"]].encode(codec, "surrogatepass"), at["character"] * width
            try:
                units[:end].decode(codec, "surrogatepass")
            except UnicodeDecodeError:
                end = -1
            if not 0 <= end <= len(units):
                self.wrong.append(f"{uri}: {at} is not in {lines[at['line']]!r}")
        if "start" in place and tuple(place["start"].values()) > tuple(place["end"].values()):
            self.wrong.append(f"{uri}: {place} ends before it starts")

    async def finish(self) -> None:
        await self.open_addresses()
        assert not self.wrong, "\n".join(self.wrong)

    async def open_addresses(self) -> None:
        """All that came along until now."""
        elsewhere, self._elsewhere = self._elsewhere, {}
        for uri, places in elsewhere.items():
            if uri.startswith("fuselens:"):
                params = lsp.TextDocumentContentParams(uri)
                text = (await self._editor.client.workspace_text_document_content_async(params)).text
            elif uri.startswith("file:"):
                text = Path(uris.to_fs_path(uri) or "").read_bytes().decode("utf-8", "surrogatepass")
            else:
                continue  # cells, whose texts the notebook's test has
            for place in places:
                self._within(text, uri, place)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list | tuple) else value


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a value, but for ``data`` and ``arguments``, which are the server's own business."""
    if isinstance(value, dict):
        yield value
    for name, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if name not in ("data", "arguments"):
            yield from _parts(part)


def _places(value: Any, uri: str) -> Iterator[tuple[str, Any]]:
    """Every range and position in a value, and the text that it is of."""
    if isinstance(value, list):
        for part in value:
            yield from _places(part, uri)
    if not isinstance(value, dict):
        return
    if "start" in value and isinstance(value["start"], dict):
        yield uri, value
        return
    if "line" in value and "character" in value:
        yield uri, value
        return
    edited = value.get("textDocument")
    own = value.get("uri") or (edited.get("uri") if isinstance(edited, dict) else None) or uri
    for name, part in value.items():
        if name == "changes" and isinstance(part, dict):
            for address, edits in part.items():
                yield from _places(edits, address)
        elif name not in ("data", "arguments"):
            yield from _places(part, value["targetUri"] if name in ("targetRange", "targetSelectionRange") else own)


def malformed(text: str) -> list[str]:
    """What is wrong with Markdown: fences, code, links and tables that do not end."""
    wrong: list[str] = []
    fence, columns = "", 0
    for line in text.split("\n"):
        ticks = re.match(r"`{3,}", line)
        if fence:
            fence = "" if line == fence else fence
            continue
        if ticks:
            fence = ticks[0]
            continue
        bare = re.sub(r"\\.", "", re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", _LINK.sub("", line)))
        if "`" in bare or "](" in bare:
            wrong.append(f"unfinished in {line!r}")
        cells = bare.count("|") if bare.startswith("|") else 0
        if cells and columns not in (0, cells):
            wrong.append(f"another number of cells in {line!r}")
        columns = cells
    return [*wrong, *(["a fence without end"] if fence else [])]
