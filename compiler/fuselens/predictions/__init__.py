"""Likely graph breaks of annotated functions, read off the source without executing anything.

The functions are run over what their values may be (:mod:`.values`): parameters are what annotations, defaults and
example inputs say; calls of functions, methods and modules of the same file are followed. What is not known breaks
nothing: a prediction should be right more often than wrong, and a test compares with what compiling finds.
Standard library only: the language server imports it.
"""

from __future__ import annotations

import ast

from .. import diagnostics
from ..discovery import SourceModule, Target
from ..report import Diagnostic
from .statements import Statements, is_generator, reads_frame
from .values import Instance


def predict(module: SourceModule) -> dict[str, list[Diagnostic]]:
    """The likely breaks of each annotated function, by its qualified name, in order of position."""
    return {target.annotated.qualname: predict_target(module, target) for target in module.targets}


def predict_target(module: SourceModule, target: Target) -> list[Diagnostic]:
    """The likely breaks of one annotated function."""
    node, annotated = target.function, target.annotated
    if node is None:
        return []
    runs_eagerly = ""
    if isinstance(node, ast.AsyncFunctionDef) or is_generator(node):
        runs_eagerly = "generators and coroutines run eagerly"
    elif reads_frame(node):
        runs_eagerly = "it reads its own frame"
    if runs_eagerly:
        span = annotated.name_span
        return [diagnostics.predict("FL109", span, what=annotated.qualname, why=runs_eagerly)]
    walk = Statements(module)
    walk.qualname = annotated.qualname
    options = annotated.arguments.get("options") or {}
    walk.kept_scalars = bool(options.get("capture_scalar_outputs"))
    walk.kept_shapes = bool(options.get("capture_dynamic_output_shape_ops"))
    try:
        instance = _instance(walk, target)
        walk.root(node, target.given, instance)
    except RecursionError:
        return []
    return sorted(walk.findings.values(), key=lambda d: (d.span is None, d.span))


def _instance(walk: Statements, target: Target) -> Instance | None:
    """The object that a method is compiled for."""
    if target.owner is None:
        return None
    if target.made is None:
        return walk.instance(target.owner)
    with walk.unreported():
        made = walk.evaluate(target.made)
    return made if isinstance(made, Instance) else walk.instance(target.owner)
