"""Output while compiled: guarded, or removed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...record.report import Diagnostic, Fix
from .purity import is_pure
from .source import Source

_LOGGING = frozenset("debug info warning warn error critical exception log".split())
_WRITING = frozenset({"print", "write", "flush", "pprint", "warn", "echo", "log", "display", *_LOGGING})


def is_output(source: Source, node: ast.AST) -> bool:
    """Whether ``node`` is a statement that does nothing but print, log or warn."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    match node.value.func:
        case ast.Name(id="print") if "print" not in source.local_names(node) | source.definitions.keys():
            return True
        case ast.Attribute(value=receiver, attr=name) if name in _LOGGING:
            names = {n.id.lower() for n in ast.walk(receiver) if isinstance(n, ast.Name)}
            attributes = {n.attr.lower() for n in ast.walk(receiver) if isinstance(n, ast.Attribute)}
            return any("log" in word or word == "warnings" for word in names | attributes)
        case ast.Attribute() as function:
            return source.dotted(function) in ("sys.stdout.write", "sys.stderr.write", "pprint.pprint")
    return False


def effect_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    """For a statement that prints, logs or warns around ``span``."""
    node = source.at(finding.span, ast.expr)
    statement = source.statement(node) if node is not None else None
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return
    call = statement.value
    known = is_output(source, statement) or ast.unparse(call.func).rpartition(".")[2] in _WRITING
    arguments = [*call.args, *(k.value for k in call.keywords)]
    if not known or not all(is_pure(source, a, reads=True) for a in arguments):
        return
    said = ast.unparse(call.func)
    if source.alone(statement):
        compiling, imports = source.spelled("torch.compiler.is_compiling", statement)
        lines = [f"if not {compiling}():", f"    {source.text(statement)}"]
        edit = source.rewritten([statement], lines)
        if edit is not None:
            yield Fix(f"Call {said} only where the function is not compiled", (*imports, edit))
    yield Fix(f"Remove the call of {said}", (source.removed(statement),))
