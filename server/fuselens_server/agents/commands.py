"""The tools as a command of the language server, for an editor whose language models call them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from pygls import uris

from fuselens.record import diagnostics

from ..client import messages
from ..client.folders import lies_in
from ..server import FuselensServer
from ..texts.session import disk_text
from ..work.worker_pool import StartError
from .arguments import ToolError
from .subjects import Place
from .tools import Tools

_UNSAVED = "the editor's own text of this file, which has changes that are not saved"


def register(server: FuselensServer) -> None:
    tools = Tools(server.pool, EditorPlaces(server))

    @server.command(messages.TOOL)
    async def tool(ls: FuselensServer, name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """What a tool answers: ``text``, ``data`` by its schema, ``failed``."""
        with ls.protocol.cancellable():
            try:
                answered = await tools.call(name, arguments)
            except asyncio.CancelledError:  # the request must be answered too
                return {"text": "cancelled", "data": {}, "failed": True}
        return {"text": answered.text, "data": answered.data, "failed": answered.failed}


@dataclass(frozen=True, slots=True)
class EditorPlaces:
    """Files that the editor's settings allow, with the interpreter of their workspace folder."""

    server: FuselensServer

    async def absolute(self, path: str) -> str:
        if "\0" in path or not path:
            raise ToolError("the target is empty, or has a null character: give a file, a folder or FILE.py::function")
        found = os.path.expanduser(path)
        if os.path.isabs(found):
            return os.path.normpath(found)
        folders = list(self.server.configuration.folders)
        if not folders:
            raise ToolError(f"{path} is relative, and no folder is open: give an absolute path")
        named = [os.path.normpath(os.path.join(folder, found)) for folder in reversed(folders)]
        return next((place for place in named if os.path.exists(place)), named[0])

    async def of(self, path: str) -> Place:
        folders = self.server.configuration.folders
        document = self.server.session.get(uris.from_fs_path(path) or "")
        if document is None and not lies_in(path, folders):
            where = f"below {' or '.join(folders)}, nor open" if folders else "open"
            raise ToolError(f"{path} is not {where} in the editor: models may not have it executed")
        try:
            settings, environment = await self.server.configuration.settled(path)
        except StartError as error:
            raise ToolError("\n".join((error.diagnostic.message, *error.diagnostic.hints))) from error
        if settings.execution == "never":
            raise ToolError(diagnostics.make("FL923", what=os.path.basename(path)).message)
        on_disk = disk_text(path) if document is not None else None
        unsaved = document is not None and on_disk is not None and not document.matches(on_disk)
        options = settings.options if document is None else {**settings.options, **document.options}
        return Place(
            environment, options, settings.memory_limit, (_UNSAVED,) if unsaved else (),
            "the editor has changes of it that are not saved; save or undo them first" if unsaved else "",
        )  # fmt: skip
