"""The optimizer of a step: one that the program made, one that its text makes, or one that somebody names."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch

_NAMES: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): kind for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}  # fmt: skip


def known() -> str:
    return ", ".join(sorted(_NAMES))


def named(name: str) -> type[torch.optim.Optimizer] | None:
    return _NAMES.get(name.lower())


def of_program(parameters: Sequence[torch.Tensor]) -> list[torch.optim.Optimizer]:
    """The optimizers that are there for any of the parameters."""
    wanted = set(map(id, parameters))
    made = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
    return [o for o in made if any(id(p) in wanted for g in o.param_groups for p in g["params"])]


def of_text(source: str, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer | None:
    """The optimizer that the text makes of parameters, with the arguments that are literals there."""
    for kind, options in _made_in(source):
        try:
            return kind(parameters, **options)
        except (TypeError, ValueError):
            continue
    return None


ADDED_UP, ZEROED_LATE = "added up", "zeroed late"


def gradients_in(source: str, function: str) -> str:
    """What the program's loop does with gradients, as its text says: they are ``ADDED_UP`` over several backwards, are ``ZEROED_LATE``,
    after ``function`` was called, or, "", are gone when it is called."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def around(node: ast.AST) -> ast.AST | None:
        while node in parents:
            node = parents[node]
            if isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
                return node if isinstance(node, ast.For | ast.While) else None
        return None

    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    methods = {
        name: [n for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == name]
        for name in ("backward", "zero_grad")
    }
    loop = next((found for n in methods["backward"] if (found := around(n)) is not None), None)
    if loop is None or not methods["zero_grad"]:
        return ""
    inside = set(ast.walk(loop))
    zeroed = [n for n in methods["zero_grad"] if n in inside]
    if not zeroed:
        return ADDED_UP if any(around(n) is not None for n in methods["zero_grad"]) else ""
    called = [
        n.lineno for n in calls if n in inside and ast.unparse(n.func).partition(".")[0] == function.partition(".")[0]
    ]
    backward = min(n.lineno for n in methods["backward"] if n in inside)
    return ZEROED_LATE if any(line < n.lineno < backward for line in called for n in zeroed) else ""


def _made_in(source: str) -> Iterator[tuple[type[torch.optim.Optimizer], dict[str, Any]]]:
    tree = ast.parse(source)
    modules, names = {"torch.optim"}, dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "torch.optim":
            names |= {a.asname or a.name: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            modules |= {a.asname or a.name for a in node.names if a.name == "optim"}
        elif isinstance(node, ast.Import):
            modules |= {a.asname for a in node.names if a.name == "torch.optim" and a.asname}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        module, _, name = ast.unparse(node.func).rpartition(".")
        name = name if module in modules else names.get(name, "") if not module else ""
        kind = _NAMES.get(name.lower()) if name else None
        if kind is not None and kind.__name__ == name:
            yield kind, {k.arg: v for k in node.keywords if k.arg for v in _literal(k.value)}


def _literal(node: ast.expr) -> list[Any]:
    try:
        return [ast.literal_eval(node)]
    except ValueError:
        return []


def described(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    return ", ".join(dict.fromkeys(type(o).__name__ for o in optimizers))
