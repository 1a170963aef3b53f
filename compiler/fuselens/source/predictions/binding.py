"""What the parameters of a function are when its body is entered: what a call gives them, or what can be known of a compiled
function that nobody calls here.
"""

from __future__ import annotations

import ast

from ..discovery import Definition
from .annotations import initial_value, parameters, used_as_tensors
from .invocation import Arguments, Keywords
from .scopes import Scope
from .values import TENSOR, UNKNOWN, Container, Instance, Value, join_all


def bound_parameters(
    scope: Scope, declared: ast.arguments, arguments: Arguments, keywords: Keywords
) -> dict[str, Value]:
    """The parameters of a call: what it is given, else defaults."""
    variables: dict[str, Value] = {}
    positional = [*declared.posonlyargs, *declared.args]
    for argument, default in parameters(declared):
        position = positional.index(argument) if argument in positional else len(arguments)
        if position < len(arguments):
            variables[argument.arg] = arguments[position]
        elif argument.arg in keywords:
            variables[argument.arg] = keywords[argument.arg]
        elif default is not None and "**" not in keywords:
            variables[argument.arg] = scope.evaluate(default)
        else:
            variables[argument.arg] = scope.promised(argument.annotation)
    if declared.vararg is not None:
        rest = arguments[len(positional) :]
        variables[declared.vararg.arg] = Container(join_all(rest), rest)
    if declared.kwarg is not None:
        known = {argument.arg for argument, _ in parameters(declared)}
        others = tuple(v for k, v in keywords.items() if k not in known)
        variables[declared.kwarg.arg] = Container(join_all(others), mapping=True)
    return variables


def example_parameters(
    scope: Scope, node: Definition, given: ast.expr | None, instance: Instance | None
) -> dict[str, Value]:
    """The parameters of a compiled function: its example inputs ``given``, else what annotations, defaults and uses say.
    ``instance`` is the object that a method belongs to."""
    example = scope.evaluate(given.body if isinstance(given, ast.Lambda) else given) if given is not None else UNKNOWN
    if isinstance(example, Container) and example.elements and not example.mapping:
        arguments = example.elements if instance is None else (instance, *example.elements)
        return bound_parameters(scope, node.args, arguments, {})
    variables: dict[str, Value] = {}
    for argument, default in parameters(node.args):
        value = scope.promised(argument.annotation)
        if default is not None or value == UNKNOWN:
            value = initial_value(argument, default, scope.resolve, scope.evaluate)
        variables[argument.arg] = value
    if instance is not None and variables:
        variables[next(iter(variables))] = instance
    unclear = {name for name, value in variables.items() if value == UNKNOWN}
    variables |= dict.fromkeys(used_as_tensors(node, unclear, scope.resolve), TENSOR)
    return variables | _variadic(scope, node.args)


def _variadic(scope: Scope, declared: ast.arguments) -> dict[str, Value]:
    """``*args`` and ``**kwargs`` hold what their annotations promise."""
    variables: dict[str, Value] = {}
    if declared.vararg is not None:
        variables[declared.vararg.arg] = Container(scope.promised(declared.vararg.annotation))
    if declared.kwarg is not None:
        variables[declared.kwarg.arg] = Container(scope.promised(declared.kwarg.annotation), mapping=True)
    return variables
