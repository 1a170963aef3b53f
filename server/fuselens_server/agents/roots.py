"""Which files a server without an editor may look at: those below its roots."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..client.folders import lies_in
from ..work.worker_pool import Environment
from .arguments import ToolError
from .subjects import Place

Told = Callable[[], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Roots:
    """``folders`` are those that the server was started with; ``told`` gives the client's, which go before them."""

    folders: tuple[str, ...]
    interpreter: str = sys.executable
    options: dict[str, Any] = field(default_factory=dict)
    told: Told | None = None

    async def absolute(self, path: str) -> str:
        if "\0" in path or not path:
            raise ToolError("the target is empty, or has a null character: give a file, a folder or FILE.py::function")
        expanded = os.path.expanduser(path)
        return os.path.normpath(expanded if os.path.isabs(expanded) else os.path.join((await self._all())[0], expanded))

    async def of(self, path: str) -> Place:
        folders = await self._all()
        if not lies_in(path, folders):
            raise ToolError(
                f"{path} is not below {' or '.join(folders)}; `fuselens mcp --root FOLDER` allows another folder"
            )
        holding = [folder for folder in folders if lies_in(path, [folder])]
        return Place(Environment(self.interpreter, max(holding, key=len)), self.options)

    async def _all(self) -> Sequence[str]:
        told = await self.told() if self.told is not None else ()
        return told or self.folders
