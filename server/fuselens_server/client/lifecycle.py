"""From initialize to shutdown, and the client's configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from ..server import FuselensServer
from .abilities import Abilities


def register(server: FuselensServer) -> None:
    @server.feature(lsp.INITIALIZE)
    def initialize(ls: FuselensServer, params: lsp.InitializeParams) -> None:
        ls.configuration.options = params.initialization_options
        ls.ending.watch_client(params.process_id)
        ls.end_with_loop()

    @server.feature(lsp.INITIALIZED)
    async def initialized(ls: FuselensServer, _: lsp.InitializedParams) -> None:
        ls.take_encoding()
        await ls.live.start()
        await ls.configure(again=False)
        registrations = list(_registrations(ls.client))
        if registrations:
            with contextlib.suppress(JsonRpcException):
                await ls.client_register_capability_async(lsp.RegistrationParams(registrations))

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    async def did_change_workspace_folders(ls: FuselensServer, _: lsp.DidChangeWorkspaceFoldersParams) -> None:
        await ls.configure()

    @server.feature(lsp.WORKSPACE_DID_CHANGE_CONFIGURATION)
    async def did_change_configuration(ls: FuselensServer, params: lsp.DidChangeConfigurationParams) -> None:
        told = params.settings
        ls.configuration.told = told.get("fuselens", told) if isinstance(told, Mapping) else None
        await ls.configure()

    @server.feature(lsp.SHUTDOWN)
    async def shutdown(ls: FuselensServer, _: None) -> None:
        ls.cancel_all()
        ls.live.stop()
        await ls.pool.close()

    @server.feature(lsp.EXIT)
    def exit_(ls: FuselensServer, _: None) -> None:
        ls.ending.begin()


def _registrations(client: Abilities) -> Iterator[lsp.Registration]:
    """What the client shall tell that it tells only when asked to."""
    if client("workspace.did_change_configuration.dynamic_registration"):
        options = lsp.DidChangeConfigurationRegistrationOptions(section="fuselens")
        yield lsp.Registration("fuselens-configuration", lsp.WORKSPACE_DID_CHANGE_CONFIGURATION, options)
    if client("workspace.did_change_watched_files.dynamic_registration"):
        watched = lsp.DidChangeWatchedFilesRegistrationOptions([lsp.FileSystemWatcher("**/*.py")])
        yield lsp.Registration("fuselens-files", lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES, watched)
