"""Whether the callers of a function may ask for gradients, as far as the texts of its program tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_ASK = frozenset(
    "backward grad autograd value_and_grad vjp jvp jacrev jacfwd hessian optim zero_grad requires_grad_ retain_grad train fit "
    "fit_one_cycle training_step Trainer GradScaler".split()
)
"""Names that programs use which ask for gradients, or which hand a model to somebody who may."""


def why_gradients(trees: Sequence[ast.AST], function: str, owner: str) -> str:
    """Why a backward may follow calls of ``function`` (by its qualified name; ``owner`` is its class); "" where none does."""
    if asks := next((name for tree in trees for name in _asking(tree)), ""):
        return f"the program uses `{asks}`, which may ask for gradients"
    if not any(_calls(tree, function, owner) for tree in trees):
        return "no call of it is known, and a caller may ask for gradients"
    return ""


def _asking(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _ASK:
            yield node.attr
        elif isinstance(node, ast.Name) and node.id in _ASK:
            yield node.id
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [*(alias.name for alias in node.names), getattr(node, "module", None) or ""]
            yield from (part for name in names for part in name.split(".") if part in _ASK)
        elif isinstance(node, ast.keyword) and node.arg == "requires_grad":
            yield node.arg


def _calls(tree: ast.AST, function: str, owner: str) -> bool:
    """Whether something there calls the function by its name, or, of a ``forward``, an object of its class."""
    name = function.rpartition(".")[2]
    called = _objects(tree, owner) if name == "forward" and owner else {name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            said = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if said in called:
                return True
            if name == "forward" and isinstance(node.func, ast.Call) and owner in _names(node.func):  # Net()(x)
                return True
    return False


def _objects(tree: ast.AST, owner: str) -> set[str]:
    """The variables and attributes that are made of a class."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and owner in _names(node.value):
            found |= {name for target in node.targets for name in _names(target)}
    return found - {owner, "self"}


def _names(node: ast.AST) -> set[str]:
    return {
        n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)
    }
