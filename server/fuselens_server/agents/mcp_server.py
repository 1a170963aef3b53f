"""The tools over the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Coroutine, Sequence
from importlib import metadata
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import mcp.types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from ..work.worker_pool import WorkerPool
from .roots import Roots
from .tools import INSTRUCTIONS, TOOLS, Answered, Tool, Tools

T = TypeVar("T")
_PATIENCE_SECONDS = 5.0  # with a client that does not tell its roots


async def serve(roots: Roots, concurrent: int) -> None:
    """Until the client closes our input. Nothing but the protocol is written to standard output: the transport leads what
    else is printed to standard error."""
    pool = WorkerPool(lambda _: None, concurrent)
    shared = Tools(pool, roots)

    async def list_tools(_: ServerRequestContext, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_declared(tool) for tool in TOOLS.values()])

    async def call_tool(context: ServerRequestContext, asked: types.CallToolRequestParams) -> types.CallToolResult:
        with_roots = dataclasses.replace(roots, told=lambda: _roots_of(context))
        reports: asyncio.Queue[str] = asyncio.Queue()
        sending = asyncio.create_task(_report(context, reports))
        try:
            work = shared.call(asked.name, asked.arguments, reports.put_nowait, with_roots)
            return _result(await _to_its_end(work))
        finally:
            sending.cancel()

    server: Server[Any] = Server(
        "fuselens", version=_version(), title="Fuselens", instructions=INSTRUCTIONS, on_list_tools=list_tools,
        on_call_tool=call_tool,
    )  # fmt: skip
    try:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        pool.kill_now()


def _declared(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        title=tool.title, read_only_hint=not tool.writes, destructive_hint=tool.writes, open_world_hint=False
    )
    return types.Tool(
        name=tool.name, title=tool.title, description=tool.description, input_schema=tool.input_schema,
        output_schema=tool.output_schema, annotations=hints,
    )  # fmt: skip


def _result(answered: Answered) -> types.CallToolResult:
    content: list[Any] = [types.TextContent(text=answered.text)]
    if answered.failed:
        return types.CallToolResult(content=content, is_error=True)
    return types.CallToolResult(content=content, structured_content=answered.data)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """A cancelled call takes its experiments with it. They are a task of their own, because what is cancelled here must not
    wait for anything any more."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        raise


async def _report(context: ServerRequestContext, reports: asyncio.Queue[str]) -> None:
    """Tells a client that asked for it what goes on."""
    number = 0
    with contextlib.suppress(MCPError):
        while True:
            text = await reports.get()
            number += 1
            await context.session.report_progress(number, message=text)


async def _roots_of(context: ServerRequestContext) -> Sequence[str]:
    """The folders that the client says it works in; none where it does not say."""
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.roots is None or not context.session.can_send_request:
        return ()
    try:
        asked = types.ListRootsRequest()
        told = await context.session.send_request(asked, types.ListRootsResult, _PATIENCE_SECONDS)
    except (MCPError, TimeoutError):
        return ()
    return tuple(path for root in told.roots if (path := _path(str(root.uri))))


def _path(uri: str) -> str:
    """The path of a file's address; "" of others."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return ""
    path = unquote(parts.path)
    return path.lstrip("/") if sys.platform == "win32" else path


def _version() -> str:
    try:
        return metadata.version("fuselens")
    except metadata.PackageNotFoundError:
        return "0"
