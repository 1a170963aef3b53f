"""The server with every handler. Each module registers its own; they decode, call and encode, nothing else."""

from __future__ import annotations

from . import commands
from .agents import commands as agents
from .client import lifecycle
from .documents import comparisons, linked, overview
from .documents import links as document_links
from .documents import stages as documents
from .features import (
    code_actions,
    code_lens,
    diagnostics,
    highlight,
    hover,
    inlay_hints,
    navigation,
    outline,
    workspace_symbols,
)
from .kernels import commands as kernels
from .patches import commands as patches
from .pictures import request as pictures
from .server import FuselensServer
from .texts import synchronization
from .what_if import commands as what_if

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
    overview,
    linked,
    pictures,
    comparisons,
    agents,
    kernels,
    patches,
    what_if,
)


def create() -> FuselensServer:
    server = FuselensServer()
    for module in MODULES:
        module.register(server)
    return server
