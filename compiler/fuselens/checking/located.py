"""The live objects behind annotations, in an imported file: what to compile, with the compiler's wrappers taken off."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import types
from dataclasses import dataclass
from typing import Any

import torch

from .. import api, torch_private
from ..config import Config, from_environment
from ..inputs.example_inputs import ExampleInputsFailed, NoExampleInputs, instance_of
from ..inputs.recorded_inputs import Recording
from ..record import diagnostics
from ..record.report import Diagnostic
from ..source.discovery import Annotated

_HOLDERS = (list, tuple, dict, torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


@dataclass(frozen=True, slots=True)
class Found:
    """The live object behind an annotation: what to compile and how. ``owner`` is the class of a method: to be
    instantiated for ``self``, or itself the first argument of a class method."""

    target: Any
    config: Config | None
    example: Any
    owner: type | None = None
    takes_class: bool = False


class _Unreached(Exception):
    """Importing the file did not make the object; the message says why."""


def locate(module: Any, path: str, annotated: Annotated) -> Found | Diagnostic:
    """The object that ``annotated`` is about after the import of ``path``. Where the import does not make it, what is
    compiled may still be: a function of the module, or a module that the annotation's operand makes."""
    try:
        if annotated.kind == "nested" or not annotated.importable:
            raise _Unreached(_unreached(annotated))
        found = _at(module, annotated)
    except _Unreached as error:
        unreached = diagnostics.make("FL913", annotated.name_span, what=annotated.qualname, why=str(error))
        try:
            return _made(module, annotated) or unreached
        except _Unreached as error:
            return diagnostics.make("FL913", annotated.name_span, what=annotated.qualname, why=str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001  constructors of the program may raise anything
            why = f"`{annotated.operand}` raised {type(error).__name__}: {error}"
            return diagnostics.make("FL913", annotated.name_span, what=annotated.qualname, why=why)
    if found is None or _is_another(found.target, path, annotated):
        return diagnostics.make("FL912", annotated.name_span, what=annotated.qualname)
    return found


def _made(module: Any, annotated: Annotated) -> Found | None:
    """What the annotation compiles, made as it does."""
    if annotated.operand and not _has_inputs(module, annotated):
        raise _Unreached("its inputs are not known, so it was not made")
    found = _unwrapped(eval(annotated.operand, vars(module))) if annotated.operand else None
    if found is None or not annotated.example:
        return found
    return dataclasses.replace(found, example=eval(annotated.example, vars(module)))


def _has_inputs(module: Any, annotated: Annotated) -> bool:
    """Whether inputs may be found for the operand. One that would have to be made for nothing may be a large model."""
    calls = [n.func for n in ast.walk(ast.parse(annotated.operand)) if isinstance(n, ast.Call)]
    if not calls or annotated.example or any(p.annotation for p in annotated.parameters[1:]):
        return True
    classes = [vars(module).get(f.id) for f in calls if isinstance(f, ast.Name)]
    codes = [api.root_code(c.forward) for c in classes if isinstance(c, type) and issubclass(c, torch.nn.Module)]
    cache = from_environment().cache_dir
    return any(
        code and Recording(cache, code.co_filename, code.co_qualname, annotated.name_span.file).calls()
        for code in codes
    )


def _unreached(annotated: Annotated) -> str:
    outer, inside, _ = annotated.qualname.rpartition(".<locals>.")
    if inside:
        return f"only a call of `{outer}` makes it"
    if annotated.qualname.startswith("compile("):
        return "it is given no name"
    return 'it is made below `if __name__ == "__main__":`'


def _at(module: types.ModuleType, annotated: Annotated) -> Found | None:
    owner: Any = None
    value: Any = module
    for step in _steps(ast.parse(annotated.qualname, mode="eval").body):
        if annotated.kind == "attribute" and isinstance(value, type) and not isinstance(_item(value, step), type):
            value = _instance(module, value, step)
        owner, value = value, _item(value, step)
        if value is None:
            if annotated.kind == "attribute":
                raise _Unreached(f"an instance of `{type(owner).__qualname__}` does not have it")
            return None
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if isinstance(value, property):
        function = value.fget
    elif isinstance(value, functools.cached_property):
        function = value.func
    found = _unwrapped(function)
    if found is None or not isinstance(owner, type) or isinstance(value, staticmethod):
        return found
    if isinstance(found.target, torch.nn.Module | types.MethodType):
        return found
    return dataclasses.replace(found, owner=owner, takes_class=isinstance(value, classmethod))


def _steps(node: ast.expr) -> list[Any]:
    """Names, and the constants of subscripts in tuples of one, from the module on."""
    match node:
        case ast.Attribute(value=before, attr=name):
            return [*_steps(before), name]
        case ast.Subscript(value=before, slice=ast.Constant(value=key)):
            return [*_steps(before), (key,)]
        case ast.Name(id=name):
            return [name]
    raise _Unreached("it is an element that only running the program tells")


def _item(value: Any, step: Any) -> Any:
    """None where there is nothing. Runs no code of the program."""
    if isinstance(step, tuple):
        try:
            return value[step[0]] if isinstance(value, _HOLDERS) else None
        except (LookupError, TypeError):
            return None
    if isinstance(value, torch.nn.Module) and step in value._modules:
        return value._modules[step]
    return inspect.getattr_static(value, step, None)


def _instance(module: types.ModuleType, cls: type, attribute: Any) -> Any:
    """One that the file made, else one made without arguments."""
    made = [v for v in vars(module).values() if isinstance(v, cls)]
    for instance in made:
        if _item(instance, attribute) is not None:
            return instance
    try:
        return instance_of(cls)
    except (NoExampleInputs, ExampleInputsFailed) as error:
        raise _Unreached(
            f"the file makes no instance of its class, and {str(error).removeprefix('`self`: ')}"
        ) from error


def _is_another(target: Any, path: str, annotated: Annotated) -> bool:
    """Whether another definition of the same name took the place of the annotated one."""
    code = api.root_code(target) if annotated.kind in ("function", "method") else None
    if code is None or code.co_filename != path or code.co_qualname != annotated.qualname:
        return False
    return not code.co_firstlineno <= annotated.name_span.line <= _last_line(code)


def _last_line(code: types.CodeType) -> int:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    inner = [_last_line(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return max([code.co_firstlineno, *lines, *inner])


def _unwrapped(value: Any) -> Found | None:
    """Looks under decorators placed above ours (``functools.wraps``) for what ours recorded."""
    seen: set[int] = set()
    layer = value.func if isinstance(value, functools.partial) else value
    while layer is not None and id(layer) not in seen:
        seen.add(id(layer))
        annotation = getattr(layer, "__fuselens__", None)
        if isinstance(annotation, api.Annotation):
            example = annotation.example_inputs
            return Found(annotation.target, annotation.config, _example(layer, example))
        original = torch_private.unwrap_torch_compile(layer)
        if original is not None:
            return Found(original, None, _example(layer, None))
        layer = getattr(layer, "__wrapped__", None)
    known = types.FunctionType | types.MethodType | torch.nn.Module
    return Found(value, None, None) if isinstance(value, known) else None


def _example(layer: Any, stated: Any) -> Any:
    """``@fuselens.example`` placed above ``@fuselens.compile`` marks the wrapper; inputs_for sees the target only."""
    marked = getattr(layer, "__fuselens_example__", None)
    return stated if marked is None else marked
