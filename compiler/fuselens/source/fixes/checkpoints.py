"""Calls whose values the backward may compute again: ``x = block(x)`` as ``x = checkpoint(block, x, use_reentrant=False)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...record.report import Edit, Fix, Span
from ..discovery import Definition
from .source import Source

_NAME = "torch.utils.checkpoint.checkpoint"
_MAKES = frozenset({"__init__", "__post_init__", "setup", "reset_parameters"})


def checkpoint_fixes(source: Source) -> Iterator[tuple[Span, Fix]]:
    """Each call of a layer, with the edit; calls in loops first, because they hold most."""
    found = [
        (bool(source.function(node)) and _is_in_a_loop(source, node), node)
        for node in ast.walk(source.tree) if isinstance(node, ast.Call) and _is_of_layer(source, node)
    ]  # fmt: skip
    for _, node in sorted(found, key=lambda item: (not item[0], item[1].lineno)):
        function = source.function(node)
        assert function is not None
        checkpoint, imports = _checkpoint(source, function)
        arguments = [source.text(node.func), *(source.text(a) for a in node.args)]
        arguments += [f"{k.arg}={source.text(k.value)}" for k in node.keywords]
        edit = source.replaced(node, f"{checkpoint}({', '.join(arguments)}, use_reentrant=False)")
        yield source.span(node), Fix(f"Compute {source.text(node.func)} again in the backward", (*imports, edit))


def _checkpoint(source: Source, function: Definition) -> tuple[str, tuple[Edit, ...]]:
    """How the file says it, and the import that it lacks: torch alone need not have loaded its module."""
    hidden = source.local_names(function)
    for local, meaning in source.names.items():
        if local not in hidden and meaning in (_NAME, _NAME.rpartition(".")[0]):
            return (local if meaning == _NAME else f"{local}.checkpoint"), ()
    name = source.unused("checkpoint")
    module, _, member = _NAME.rpartition(".")
    said = member if name == member else f"{member} as {name}"
    return name, (source.imported_line(f"from {module} import {said}"),)


def _is_of_layer(source: Source, call: ast.Call) -> bool:
    """Whether it is a call of an attribute of ``self``, or of what a loop goes over, with plain arguments."""
    function = source.function(call)
    if function is None or function.name in _MAKES or not call.args:
        return False
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg in (None, "use_reentrant") for k in call.keywords
    ):
        return False
    if any(isinstance(n, ast.Call) and "checkpoint" in ast.unparse(n.func) for n in source.above(call)):
        return False
    called = call.func
    if isinstance(called, ast.Attribute):
        first = function.args.args[0].arg if function.args.args and source.owner(function) is not None else ""
        return isinstance(called.value, ast.Name) and called.value.id == first != ""
    return isinstance(called, ast.Name) and called.id in _loop_variables(function)


def _loop_variables(function: Definition) -> set[str]:
    loops = (n for n in ast.walk(function) if isinstance(n, ast.For))
    return {n.id for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)}


def _is_in_a_loop(source: Source, node: ast.AST) -> bool:
    return any(isinstance(n, ast.For | ast.While) for n in source.above(node))
