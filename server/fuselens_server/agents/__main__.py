"""``python -m fuselens_server.agents``: ``mcp`` serves the tools on standard input and output, ``tool`` calls one."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import logging
import os
import sys
from typing import Any

from fuselens.system import console

from ..work.worker_pool import WorkerPool
from .roots import Roots
from .tools import TOOLS, Tools


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuselens", description="What agents ask of Fuselens.")
    commands = parser.add_subparsers(required=True, dest="command")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--root", action="append", default=[], metavar="FOLDER")
    shared.add_argument("--python", default=sys.executable)
    shared.add_argument("--target", default="")
    serve = commands.add_parser("mcp", parents=[shared])
    serve.add_argument("--jobs", type=int, default=max(2, min(4, os.cpu_count() or 2)))
    serve.add_argument("--log-level", default="WARNING", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    call = commands.add_parser("tool", parents=[shared])
    call.add_argument("--format", choices=("text", "json"), default="json")
    call.add_argument("name")
    call.add_argument("arguments", nargs="?", default="{}")
    options = parser.parse_args(argv)
    console.open_streams()
    folders = tuple(os.path.abspath(root) for root in options.root) or (os.getcwd(),)
    if missing := [folder for folder in folders if not os.path.isdir(folder)]:
        console.complain(f"fuselens: {missing[0]} is no folder")
        return 2
    given = {"target": options.target} if options.target else {}
    roots = Roots(folders, options.python, given)
    logging.basicConfig(
        stream=sys.stderr, level=getattr(options, "log_level", "ERROR"), format="%(levelname)s %(name)s: %(message)s"
    )
    if options.command == "tool":
        return asyncio.run(_call(roots, options))
    if importlib.util.find_spec("mcp") is None:
        console.complain(f"fuselens: this needs the SDK of MCP: {sys.executable} -m pip install 'fuselens[mcp]'")
        return 2
    from .mcp_server import serve as serve_mcp

    asyncio.run(serve_mcp(roots, options.jobs))
    return 0


async def _call(roots: Roots, options: Any) -> int:
    """Status 1 where the tool could not do it; the answer goes to standard output, what is under way to standard error."""
    try:
        given = json.loads(options.arguments)
    except ValueError as error:
        console.complain(f"fuselens: the arguments are no JSON: {error}")
        return 2
    pool = WorkerPool(lambda _: None)
    try:
        answered = await Tools(pool, roots).call(options.name, given)
    finally:
        await pool.close()
    if answered.failed:
        console.complain(f"fuselens: {answered.text}")
        return 2 if options.name not in TOOLS else 1
    console.say(answered.text if options.format == "text" else json.dumps(answered.data, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
