"""How the frames of a function run: as plain functions do, as generators or coroutines, or in sight of their own code.

Compiled code cannot stand in for a frame that looks at itself; generators and coroutines run eagerly.
"""

from __future__ import annotations

import ast
import re
from typing import Literal

from ..discovery import Definition, SourceModule
from . import tables
from .annotations import nodes

Nature = Literal["plain", "generator", "coroutine", "reads its frame"]

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_WORDS = re.compile(rb"\b(yield|%s)\b" % "|".join(tables.READS_FRAME | tables.READS_FRAME_ATTRIBUTES).encode())


class Natures:
    """Of the functions of one file, each looked at once."""

    def __init__(self, module: SourceModule) -> None:
        self._lines = module.lines
        self._known: dict[ast.AST, Nature] = {}

    def of(self, node: Definition | ast.Lambda) -> Nature:
        """By the function's own code; a search for words spares most functions the walk."""
        if node not in self._known:
            told = any(_WORDS.search(line) for line in self._lines[node.lineno - 1 : node.end_lineno])
            asynchronous = isinstance(node, ast.AsyncFunctionDef)
            self._known[node] = _nature(node) if told or asynchronous else "plain"
        return self._known[node]


def _nature(node: ast.AST) -> Nature:
    if isinstance(node, ast.AsyncFunctionDef):
        return "coroutine"
    found: Nature = "plain"
    for inner in nodes(node, into=lambda inner: not isinstance(inner, _SCOPES)):
        if isinstance(inner, ast.Yield | ast.YieldFrom):
            return "generator"
        name = isinstance(inner, ast.Name) and inner.id in tables.READS_FRAME and isinstance(inner.ctx, ast.Load)
        if name or (isinstance(inner, ast.Attribute) and inner.attr in tables.READS_FRAME_ATTRIBUTES):
            found = "reads its frame"
    return found
