"""``fuselens codes``, ``serve`` and ``--version``."""

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
    command = [sys.executable, "-m", "fuselens_server", *arguments.arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)


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
