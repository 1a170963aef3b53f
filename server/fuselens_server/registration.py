"""The server with every handler. Each module registers its own; they decode, call and encode, nothing else."""

from __future__ import annotations

from . import commands, lifecycle, synchronization
from .features import (
    code_actions,
    code_lens,
    diagnostics,
    document_links,
    documents,
    highlight,
    hover,
    inlay_hints,
    navigation,
    outline,
    workspace_symbols,
)
from .server import FuselensServer

MODULES = (
    lifecycle,
    synchronization,
    commands,
    code_actions,
    code_lens,
    diagnostics,
    document_links,
    documents,
    highlight,
    hover,
    inlay_hints,
    navigation,
    outline,
    workspace_symbols,
)


def create() -> FuselensServer:
    server = FuselensServer()
    for module in MODULES:
        module.register(server)
    return server
