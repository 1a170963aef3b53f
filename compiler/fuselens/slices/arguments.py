"""The command line that a program is looked at with: what its author writes in a comment, or what the editor starts it with."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_COMMENT = re.compile(r"^#[ \t]*fuselens:[ \t]*(-.*|\S+=.*)$", re.MULTILINE)
_FOR_EDITORS = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|,(?=\s*[\]}])', re.DOTALL)
"""What launch.json may have and JSON has not: comments, and commas at the end."""


def arguments(source: str, path: str) -> list[str]:
    """After the program's name: of a comment ``# fuselens: --data x`` in it, or of the first configuration that starts it in
    ``.vscode/launch.json`` of a folder above."""
    if found := _COMMENT.search(source):
        try:
            return shlex.split(found[1])
        except ValueError:
            return []
    return next(_launched(Path(path).resolve()), [])


def _launched(file: Path) -> Iterator[list[str]]:
    for folder in file.parents:
        try:
            text = (folder / ".vscode" / "launch.json").read_text(encoding="utf-8")
            plain = json.loads(_FOR_EDITORS.sub(lambda m: m[1] or "", text))
            configurations = plain["configurations"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        for configuration in configurations if isinstance(configurations, list) else ():
            if isinstance(configuration, dict) and _starts(configuration, folder, file):
                yield _given(configuration, folder, file)
        return


def _starts(configuration: dict[str, Any], folder: Path, file: Path) -> bool:
    program = configuration.get("program")
    return isinstance(program, str) and Path(_filled(program, folder, file)) == file


def _given(configuration: dict[str, Any], folder: Path, file: Path) -> list[str]:
    args = configuration.get("args", [])
    given = shlex.split(args) if isinstance(args, str) else [a for a in args if isinstance(a, str)]
    return [_filled(a, folder, file) for a in given]


def _filled(text: str, folder: Path, file: Path) -> str:
    values = {
        "workspaceFolder": str(folder), "file": str(file), "fileDirname": str(file.parent), "fileBasename": file.name,
        "relativeFile": os.path.relpath(file, folder),
    }  # fmt: skip
    return re.sub(r"\$\{(\w+)\}", lambda m: values.get(m[1], m[0]), text)
