"""What a file that compiles nothing might compile: the modules that it makes and calls, else makes, else defines.

A preview looks at the file as if its author had written the annotations: at ``forward`` of a class, or around what makes a
module. Nothing of the file's text changes. Standard library only: the language server imports it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .names import Definition, Names, assigned, statements

_COMPILER = "__fuselens_preview__"  # what annotations that nobody wrote are written with
_OF_A_MODULE = frozenset(
    {"parameters", "named_parameters", "state_dict", "load_state_dict", "train", "eval", "zero_grad"}
)
_BASES = ("torch.nn.", "lightning.", "pytorch_lightning.", "transformers.")


@dataclass(frozen=True, slots=True)
class Candidate:
    """``node`` is a ``forward``, or the statement that gives a module its ``name``."""

    name: str
    node: Definition | ast.Assign


def candidates(names: Names) -> list[Candidate]:
    """What a preview of the file would look at; nothing where the file names no module, in order of position."""
    calls = [n for n in names.nodes if isinstance(n, ast.Call)]
    called = {n.func.id for n in calls if isinstance(n.func, ast.Name)}
    passed = {a.id for n in calls for a in (*n.args, *(k.value for k in n.keywords)) if isinstance(a, ast.Name)}
    return list(_made(names, called)) or list(_made(names, _assigned(names) - passed)) or list(_defined(names))


def annotate(names: Names) -> None:
    """Writes the annotations of a preview into the tree, each at the place of what it is about."""
    found = candidates(names)
    for candidate in found:
        node = candidate.node
        compiler = ast.Attribute(ast.Name(_COMPILER, ast.Load()), "compile", ast.Load())
        if isinstance(node, ast.Assign):
            at = node.value
            node.value = ast.copy_location(ast.Call(compiler, [node.value], []), at)
        else:
            at = node
            node.decorator_list.append(ast.copy_location(compiler, at))
        for made in ast.walk(compiler):
            ast.copy_location(made, at)
    if found:
        del names.nodes  # there are more now
        body = names.tree.body
        first = sum(1 for _ in _preamble(body))
        imported = ast.Import(
            [ast.alias("fuselens", _COMPILER)], lineno=1, col_offset=0, end_lineno=1, end_col_offset=0
        )
        body.insert(first, ast.fix_missing_locations(imported))
        names.names[_COMPILER] = "fuselens"


def _preamble(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The docstring and the imports that must stay first."""
    for position, node in enumerate(body):
        docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            return
        yield node


def _assigned(names: Names) -> set[str]:
    """The names that statements outside of functions give values to."""
    return set(assigned(names.tree.body))


def _made(names: Names, wanted: set[str]) -> Iterator[Candidate]:
    """The first statement that gives a module to each name that is wanted: those that the file calls, or, where it calls none,
    those that it makes and does not pass on."""
    asked = {
        n.value.id for n in names.nodes
        if isinstance(n, ast.Attribute) and n.attr in _OF_A_MODULE and isinstance(n.value, ast.Name)
    }  # fmt: skip
    scopes = [names.tree, *(n for n in names.nodes if isinstance(n, Definition))]
    for scope in sorted(scopes, key=lambda s: getattr(s, "lineno", 0)):
        values = assigned(scope.body)
        for name in sorted(wanted & values.keys(), key=lambda n: values[n][0].lineno):
            for node in statements(scope.body):
                if not isinstance(node, ast.Assign) or not _gives(node, name):
                    continue
                if name in asked or _is_made_here(names, node.value):
                    yield Candidate(name, node)
                    break


def _gives(node: ast.Assign, name: str) -> bool:
    """Whether ``node`` is ``name = …(…)``, of something else than what the name was before."""
    if not isinstance(node.value, ast.Call) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    before = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
    return isinstance(target, ast.Name) and target.id == name and name not in before


def _is_made_here(names: Names, value: ast.expr) -> bool:
    """Whether ``value`` makes an instance of a module's class of the file, or a container of torch's."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not names.dotted(value.func):
        value = value.func.value  # Model().to(device)
    if not isinstance(value, ast.Call):
        return False
    own = names.classes.get(value.func.id) if isinstance(value.func, ast.Name) else None
    return names.dotted(value.func) == "torch.nn.Sequential" or (own is not None and _is_module(names, own))


def _defined(names: Names) -> Iterator[Candidate]:
    """``forward`` of the modules that are not parts of others of the file."""
    modules = {name: node for name, node in names.classes.items() if _is_module(names, node)}
    parts: set[str] = set()
    for name, node in modules.items():
        made = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
        parts |= {f.id for f in made if isinstance(f, ast.Name) and f.id != name}
        parts |= {base.id for base in node.bases if isinstance(base, ast.Name)}
    whole = [node for name, node in modules.items() if name not in parts]
    for node in whole or modules.values():
        for method in statements(node.body):
            if isinstance(method, Definition) and method.name == "forward":
                yield Candidate(f"{node.name}.forward", method)


def _is_module(names: Names, node: ast.ClassDef, depth: int = 0) -> bool:
    """Whether a class of the file is a ``torch.nn.Module``, by the names of its bases."""
    for base in node.bases:
        dotted = names.dotted(base)
        if dotted.startswith(_BASES) or dotted.endswith(".Module"):
            return True
        own = names.classes.get(base.id) if isinstance(base, ast.Name) else None
        if own is not None and depth < 8 and _is_module(names, own, depth + 1):
            return True
    return False
