"""``fuselens codes``, ``serve``, ``mcp``, ``tool`` and ``--version``."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from typing import Any, NoReturn

from ..checking import isolation
from ..record import diagnostics
from ..system import console
from .targets import UsageError


class Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        torch = "not installed"
        with contextlib.suppress(PackageNotFoundError):
            torch = version("torch")
        console.say(f"fuselens {isolation.fuselens_version()} (torch {torch}, python {sys.version.split()[0]})")
        parser.exit(0)


def serve(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("fuselens_server") is None or importlib.util.find_spec("pygls") is None:
        raise UsageError(f"the language server needs pygls: {sys.executable} -m pip install 'fuselens[server]'")
    _become("fuselens_server", *arguments.arguments)


def mcp(arguments: argparse.Namespace) -> int:
    """Its process imports no torch: files are executed in those that it starts."""
    more = ["--jobs", str(arguments.jobs)] if arguments.jobs else []
    _become("fuselens_server.agents", "mcp", *_roots(arguments), *more, "--log-level", arguments.log_level)


def tool(arguments: argparse.Namespace) -> int:
    words = (*_roots(arguments), "--format", arguments.format, "--", arguments.name, arguments.arguments)
    _become("fuselens_server.agents", "tool", *words)


def _roots(arguments: argparse.Namespace) -> list[str]:
    out = [word for root in arguments.root for word in ("--root", root)]
    out += ["--python", arguments.python] if arguments.python else []
    return out + (["--target", arguments.device] if arguments.device else [])


def _become(module: str, *words: str) -> NoReturn:
    """Another process in place of this one, with its streams. `-P`: the working folder may hold a module of the library's name."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *words])


def codes(arguments: argparse.Namespace) -> int:
    if arguments.code is None:
        for entry in diagnostics.TABLE.values():
            console.say(f"{entry.code}  {entry.severity:<12} {entry.title}")
        return 0
    entry = diagnostics.TABLE.get(arguments.code.upper())
    if entry is None:
        raise UsageError(f"unknown code {arguments.code!r}; `fuselens codes` lists them")
    console.say(f"{entry.code}  {entry.title} ({entry.severity})\n\n  {entry.message}\n\n{entry.explanation}")
    for hint in entry.hints:
        console.say(f"- {hint}")
    return 0
