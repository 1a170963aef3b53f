"""Where the inputs of a check come from: the author, the call in a program, a run that was recorded, callers in other files, or
what layers and bodies take. The first source that has some is taken, in this order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types

import torch

from .. import api, sandbox, torch_private
from ..config import from_environment
from ..inputs import recorded_inputs
from ..inputs.example_inputs import (
    ExampleInputs,
    ExampleInputsFailed,
    NoExampleInputs,
    has_example,
    inputs_for,
    instance_of,
)
from ..record import diagnostics
from ..record.report import Diagnostic
from ..slices import UnknownUsed, fits, inferred, inferred_of_class
from ..source.discovery import Annotated
from .located import Found
from .opening import OpenFile
from .user_code import frame_in


def inputs_of(file: OpenFile, annotated: Annotated, found: Found, variant: int = 0) -> ExampleInputs | Diagnostic:
    """The inputs that ``annotated`` is called with, or why there are none; ``variant`` counts other values."""
    evaluated = file.evaluated(annotated)
    if evaluated is not None and evaluated.args is not None and not has_example(found.target, found.example):
        return of_a_run(found, file.path) or ExampleInputs(evaluated.args, evaluated.kwargs, origin="call")
    try:
        return _stated(found, variant)
    except (NoExampleInputs, UnknownUsed) as error:
        refused: list[str] = []
        inputs = of_a_run(found, file.path) or _of_callers(file, annotated)
        inputs = inputs or _implied(found, evaluated is not None, refused)
        return inputs or _none(annotated, error, refused)
    except ExampleInputsFailed as error:
        return _failed(file, annotated, error)


def _stated(found: Found, variant: int) -> ExampleInputs:
    """What the author says: examples, annotations and defaults. Raises NoExampleInputs, ExampleInputsFailed and UnknownUsed."""
    if found.takes_class:
        inputs = inputs_for(types.MethodType(found.target, found.owner), found.example, variant=variant)
        return dataclasses.replace(inputs, args=(found.owner, *inputs.args))
    inputs = inputs_for(found.target, found.example, owner=found.owner, variant=variant)
    if inputs.origin == "defaults" and isinstance(found.target, torch.nn.Module) and not _tensors(inputs):
        raise NoExampleInputs("the defaults of its parameters are no tensors")
    return inputs


def _of_callers(file: OpenFile, annotated: Annotated) -> ExampleInputs | None:
    """Those of a call in a program that imports the file."""
    called = file.evaluated(annotated) if file.ask_callers() else None
    if called is None or called.args is None:
        return None
    return ExampleInputs(called.args, called.kwargs, origin="call")


def _implied(found: Found, evaluated: bool, refused: list[str]) -> ExampleInputs | None:
    """What a module's layers take, or the body of a function that a program makes; ``refused`` gets what it said to the
    likeliest."""
    target, owner = found.target, found.owner
    is_module = isinstance(target, torch.nn.Module)
    if (is_module or evaluated) and (made := inferred(target, refused)) is not None:
        return ExampleInputs(made, {}, origin="layers" if is_module else "body")
    if owner is not None and issubclass(owner, torch.nn.Module) and isinstance(target, types.FunctionType):
        if target.__name__ == "forward" and (made := inferred_of_class(target, owner)) is not None:
            return ExampleInputs(made, {}, origin="layers")
    return None


def _none(annotated: Annotated, error: Exception, refused: list[str]) -> Diagnostic:
    made = diagnostics.make("FL901", annotated.name_span, what=annotated.qualname)
    why = f"{error}; {refused[0]}" if refused and refused[0] else str(error)
    return dataclasses.replace(made, message=f"{made.message}: {why}")


def _failed(file: OpenFile, annotated: Annotated, error: ExampleInputsFailed) -> Diagnostic:
    """The author's example inputs raised."""
    frame = frame_in(error.__cause__, file.path) if error.__cause__ is not None else None
    span = frame.span if frame else annotated.decorator_span
    made = diagnostics.make("FL908", span, what=annotated.qualname, why=str(error))
    return sandbox.behind(error) or made


def _tensors(inputs: ExampleInputs) -> list[torch.Tensor]:
    leaves = torch_private.PYTREE.tree_leaves((inputs.args, inputs.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


# --- the last run -----------------------------------------------------------------------------------------------------


def of_a_run(found: Found, program: str) -> ExampleInputs | None:
    """Those of the last call of the user's own last run that was followed."""
    calls, dynamic = recorded(found, program)
    calls = [
        call for call in calls if fits(found.target, call.args, call.kwargs)
    ]  # several modules may be of one class
    return ExampleInputs(calls[-1].args, calls[-1].kwargs, dynamic=dynamic, origin="recorded") if calls else None


def recorded(found: Found, program: str) -> tuple[list[recorded_inputs.Call], dict[str, dict[int, str]]]:
    """Calls like those of the user's own last run that was followed, in its order, and the sizes that varied."""
    code, owner = api.root_code(found.target), found.owner
    if code is None or found.takes_class:
        return [], {}
    module = isinstance(found.target, torch.nn.Module)
    descriptions = recorded_inputs.Recording(
        from_environment().cache_dir, code.co_filename, code.co_qualname, program
    ).calls()
    calls = []
    for description in descriptions:
        with contextlib.suppress(recorded_inputs.NotRecordable, NoExampleInputs, ExampleInputsFailed):
            given = found.target if module else instance_of(owner) if owner is not None else None
            call = recorded_inputs.made(description, given)
            calls.append(call._replace(args=call.args[1:]) if module else call)
    names = code.co_varnames[: code.co_argcount]
    return calls, recorded_inputs.varying(descriptions, names) if len(calls) == len(descriptions) else {}
