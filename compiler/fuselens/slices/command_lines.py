"""Programs that a library starts from its own command line: they are started with the defaults, and what is required and not
given is unknown."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .unknown import Unknown


def in_place(modules: frozenset[str]) -> Iterator[tuple[Any, str, Any]]:
    """What to replace for a program that imports ``modules``: owner, name and value."""
    for name, changes in (("click", _click), ("typer", _typer), ("fire", _fire), ("hydra", _hydra)):
        if name in modules and (name != "fire" or not sys.argv[1:]):  # what is given is for the library to read
            with contextlib.suppress(ImportError):
                yield from changes(importlib.import_module(name))


def _click(click: Any) -> Iterator[tuple[Any, str, Any]]:
    yield click.Command, "main", _started


def _typer(typer: Any) -> Iterator[tuple[Any, str, Any]]:
    core = importlib.import_module("typer.core")
    for kind in (core.TyperCommand, core.TyperGroup):
        yield kind, "main", _started
    for command in {kind.__mro__[1] for kind in (core.TyperCommand, core.TyperGroup)}:
        if "main" in vars(command):
            yield command, "main", _started
    yield typer, "run", lambda function: function(**_defaults(function))


def _started(command: Any, *_: Any, **__: Any) -> None:
    """Calls what a command of click's is made of; of a group the command that the arguments name, or each."""
    _start(command, sys.argv[1:])


def _start(command: Any, arguments: list[str]) -> None:
    commands = getattr(command, "commands", {})
    chosen = next((i for i, a in enumerate(arguments) if a in commands), len(arguments))
    with command.make_context(command.name, arguments[:chosen], resilient_parsing=True) as context:
        given = {p.name: _given(p, context) for p in command.params if p.name not in (None, "help") and p.expose_value}
        if command.callback is not None:
            context.invoke(command.callback, **given)
        for name, inner in commands.items():
            if name in arguments[chosen : chosen + 1] or not arguments[chosen:]:
                _start(inner, arguments[chosen + 1 :])


def _given(parameter: Any, context: Any) -> Any:
    """The value of a parameter; unknown where it is required, and not given or refused."""
    value = context.params.get(parameter.name)
    missing = value is None or "Sentinel" in type(value).__name__
    if missing and not parameter.required:
        value = parameter.get_default(context)
        missing = False
    return Unknown(f"`{parameter.name}` is required, and not given") if missing else value


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    given = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        default = getattr(p.default, "default", p.default)  # typer's OptionInfo has it
        given[p.name] = Unknown(f"`{p.name}` is required, and not given") if default in (p.empty, ...) else default
    return given


def _fire(fire: Any) -> Iterator[tuple[Any, str, Any]]:
    def started(component: Any = None, *_: Any, **__: Any) -> Any:
        if isinstance(component, dict):
            return [started(part) for part in component.values()]
        return component(**_defaults(component)) if inspect.isroutine(component) else component

    yield fire, "Fire", started


def _hydra(hydra: Any) -> Iterator[tuple[Any, str, Any]]:
    def main(config_path: Any = None, config_name: Any = None, version_base: Any = None) -> Any:
        def decorated(function: Any) -> Any:
            def call(given: Any = None) -> Any:
                if given is not None:
                    return function(given)
                folder = os.path.join(os.path.dirname(function.__code__.co_filename), config_path or ".")
                with hydra.initialize_config_dir(os.path.abspath(folder), version_base=None):
                    return function(hydra.compose(config_name or "config", overrides=sys.argv[1:]))

            return call

        return decorated

    yield hydra, "main", main
    utils = importlib.import_module("hydra.utils")
    yield utils, "get_original_cwd", os.getcwd
