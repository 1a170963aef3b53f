"""From initialize to shutdown, and the client's configuration."""

from __future__ import annotations

import contextlib
import os

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from .server import FuselensServer


def register(server: FuselensServer) -> None:
    @server.feature(lsp.INITIALIZE)
    def initialize(ls: FuselensServer, params: lsp.InitializeParams) -> None:
        ls.initial_options = params.initialization_options
        ls.end_with_loop()

    @server.feature(lsp.INITIALIZED)
    async def initialized(ls: FuselensServer, _: lsp.InitializedParams) -> None:
        ls.take_encoding()
        root = ls.workspace.root_path
        ls.pool.directory = root if root and os.path.isdir(root) else None
        await ls.load_settings()
        workspace = ls.client_capabilities.workspace
        if workspace and (change := workspace.did_change_configuration) and change.dynamic_registration:
            method = lsp.WORKSPACE_DID_CHANGE_CONFIGURATION
            options = lsp.DidChangeConfigurationRegistrationOptions(section="fuselens")
            registration = lsp.Registration("fuselens-configuration", method, options)
            with contextlib.suppress(JsonRpcException):
                await ls.client_register_capability_async(lsp.RegistrationParams([registration]))

    @server.feature(lsp.WORKSPACE_DID_CHANGE_CONFIGURATION)
    async def did_change_configuration(ls: FuselensServer, _: lsp.DidChangeConfigurationParams) -> None:
        await ls.settings_changed()

    @server.feature(lsp.SHUTDOWN)
    async def shutdown(ls: FuselensServer, _: None) -> None:
        ls.checks.cancel_all()
        await ls.pool.close()
