"""Likely graph breaks of annotated functions, read off the source without executing anything.

The functions are run over what their values may be (:mod:`.values`): parameters are what annotations, defaults and
example inputs say; calls of functions, methods and modules of the same file are followed. What is not known breaks
nothing: a prediction should be right more often than wrong, and a test compares with what compiling finds.
Standard library only: the language server imports it.
"""

from __future__ import annotations

import ast

from ...record import diagnostics
from ...record.report import Diagnostic, Report
from ..discovery import SourceModule, Target
from .natures import Nature
from .statements import Statements
from .values import Instance

_EAGER: dict[Nature, str] = {
    "generator": "generators and coroutines run eagerly",
    "coroutine": "generators and coroutines run eagerly",
    "reads its frame": "it reads its own frame",
}


def predict(module: SourceModule) -> dict[str, list[Diagnostic]]:
    """The likely breaks of each annotated function, by its qualified name, in order of position."""
    walk = Statements(module)
    return {target.annotated.qualname: of_target(walk, target) for target in module.targets}


def not_executed(module: SourceModule) -> list[Report]:
    """The reports of a file of which nothing may be executed (FL923)."""
    return [
        Report(
            a.qualname,
            module.filename,
            a.name_span,
            diagnostics=[diagnostics.make("FL923", a.name_span, what=a.qualname)],
        )
        for a in module.annotated
    ]


def of_target(walk: Statements, target: Target) -> list[Diagnostic]:
    """Of one annotated function, whatever was looked at before."""
    node, annotated = target.function, target.annotated
    if node is None:
        return []
    if isinstance(node, ast.Lambda):
        node = _as_definition(node)
    why = _EAGER.get(walk.natures.of(node))
    if why is not None:
        return [diagnostics.predict("FL109", annotated.name_span, what=annotated.qualname, why=why)]
    walk.begin(annotated)
    try:
        walk.root(node, target.given, _instance(walk, target))
    except RecursionError:
        return []
    return sorted(walk.findings.values(), key=lambda d: (d.span is None, d.span))


def _as_definition(node: ast.Lambda) -> ast.FunctionDef:
    returned = ast.copy_location(ast.Return(node.body), node.body)
    return ast.copy_location(ast.FunctionDef("<lambda>", node.args, [returned], []), node)


def _instance(walk: Statements, target: Target) -> Instance | None:
    """The object that a method is compiled for."""
    if target.owner is None:
        return None
    if target.made is None:
        return walk.instance(target.owner)
    with walk.unreported():
        made = walk.evaluate(target.made)
    return made if isinstance(made, Instance) else walk.instance(target.owner)
