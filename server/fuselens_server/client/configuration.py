"""The client's settings: its own, and those of each workspace folder."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcException

from fuselens.record import diagnostics
from fuselens.record.report import Diagnostic

from ..work.worker_pool import Environment, StartError
from . import settings
from .settings import Settings

if TYPE_CHECKING:
    from ..server import FuselensServer

PATIENCE_SECONDS = 5.0  # with a client that does not tell its configuration


class NotAllowedError(StartError):
    """A file is in no folder whose code may run; ``diagnostic`` says how to allow it."""


class Settled(Protocol):
    """What work on files needs to know of the client."""

    async def settled(self, path: str) -> tuple[Settings, Environment]:
        """The settings that hold for a file and where its code runs, once the client has given them. Raises
        NotAllowedError for a file whose code must not run."""
        ...

    def of(self, path: str) -> Settings:
        """The settings that hold for a file, as far as the client has given them."""
        ...


class Configuration:
    """``options`` are those that the server was started with, ``told`` the section of a client that cannot be asked."""

    def __init__(self, server: FuselensServer) -> None:
        self._server = server
        self.options: Any = None
        self.told: Any = None
        self.settings = Settings()
        self._of_folders: dict[str, Settings] = {}  # by their paths
        self._loaded = asyncio.Event()
        self._late: asyncio.Future[None] | None = None
        self._told: set[str] = set()  # what is wrong with the settings, as far as the person knows

    async def settled(self, path: str) -> tuple[Settings, Environment]:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._loaded.wait(), PATIENCE_SECONDS)
        folder, chosen = self.folder(path), self.of(path).of_file(path)
        if not chosen.allows(path):
            raise NotAllowedError(self._not_allowed(path))
        directory = folder if folder and os.path.isdir(folder) else None
        return chosen, Environment(chosen.python(folder), directory)

    def of(self, path: str) -> Settings:
        return self._of_folders.get(self.folder(path) or "", self.settings)

    def _not_allowed(self, path: str) -> Diagnostic:
        real = path
        with contextlib.suppress(OSError, ValueError):
            real = os.path.realpath(path)
        holding = (folder for folder in self.folders if PurePath(real).is_relative_to(folder))
        return diagnostics.make("FL920", what=real, folder=next(holding, os.path.dirname(real)))

    @property
    def folders(self) -> dict[str, str]:
        """The directories that the client has open and their URIs, the innermost of nested ones first."""
        workspace = self._server.workspace
        opened = [folder.uri for folder in workspace.folders.values()] or [workspace.root_uri or ""]
        found = {path: uri for uri in opened if (path := uris.to_fs_path(uri))}
        return dict(sorted(found.items(), key=lambda item: len(item[0]), reverse=True))

    def folder(self, path: str) -> str | None:
        """The workspace folder of a file; for one outside of them, the first."""
        folders = self.folders
        holding = (f for f in folders if PurePath(path).is_relative_to(f))
        return next(holding, self._server.workspace.root_path or next(iter(reversed(folders)), None))

    @property
    def live_folders(self) -> list[str]:
        """Those whose runs are shown."""
        return [folder for folder, chosen in self._of_folders.items() if chosen.live]

    async def load(self) -> set[str]:
        """Takes the client's configuration section where it has one, under the options it was started with: those name
        the interpreter that an editor's own environment picker chose. Workspace folders may each have their own.
        Returns the fields of settings that are different now, in any folder."""
        before = [self.settings, *self._of_folders.values()]
        folders = self.folders
        problems: list[str] = []

        def read(values: Any, base: Settings | None = None) -> Settings:
            found, wrong = settings.read(values, base)
            problems.extend(wrong)
            return found

        given = [read(section) for section in await self._sections([None, *folders.values()])]
        chosen = [read(self.options, own) for own in given]
        for k, own in enumerate(given):  # an interpreter that a folder names for itself comes before the picker's
            if own.interpreter and own.interpreter != given[0].interpreter:
                chosen[k] = dataclasses.replace(chosen[k], interpreter=own.interpreter)
            if own.allowed_folders is not None:  # what is told now, after what was when the server started
                chosen[k] = dataclasses.replace(chosen[k], allowed_folders=own.allowed_folders)
        self.settings, *others = chosen
        self._of_folders = dict(zip(folders, others, strict=True))
        new = [problem for problem in dict.fromkeys(problems) if problem not in self._told]
        self._told = set(problems)
        if new:  # together: one message for each would cover what the person looks at
            self._server.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, " ".join(new)))
        self._loaded.set()
        names = [f.name for f in dataclasses.fields(Settings)]
        now = [self.settings, *self._of_folders.values()]
        if len(now) != len(before):
            return set(names)
        return {n for old, new in zip(before, now, strict=True) for n in names if getattr(old, n) != getattr(new, n)}

    def _came_late(self, answer: asyncio.Future[Any]) -> None:
        """What the client tells when it was no longer waited for is asked for again, and taken."""

        if not answer.cancelled() and answer.exception() is None:
            self._late = asyncio.ensure_future(self._server.configure())

    async def _sections(self, scopes: list[str | None]) -> list[Any]:
        """The section of each scope; None where the client has none or does not say. Where it says so late, all is asked again."""
        if not self._server.client("workspace.configuration"):
            return [self.told] * len(scopes)
        sections: list[Any] = []
        items = [lsp.ConfigurationItem(scope_uri=scope, section="fuselens") for scope in scopes]
        with contextlib.suppress(JsonRpcException, TimeoutError):
            asked = asyncio.ensure_future(self._server.workspace_configuration_async(lsp.ConfigurationParams(items)))
            try:
                sections = list(await asyncio.wait_for(asyncio.shield(asked), PATIENCE_SECONDS))
            except TimeoutError:
                asked.add_done_callback(self._came_late)
        return [*sections, *[None] * len(scopes)][: len(scopes)]
