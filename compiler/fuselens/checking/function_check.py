"""Checks one function of an open file: finds it and its inputs, calls it, and judges what that says.

What is wrong with a function is a finding of its own, so that others are checked all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import api, sandbox
from ..capture.program import overlays
from ..config import Config, assembly_of, from_environment
from ..inputs.example_inputs import ExampleInputs
from ..limits.measuring import of_target
from ..pins import project
from ..pipeline import Recorder
from ..record import diagnostics
from ..record.report import Diagnostic, Inputs, Report
from ..slices import Compiled, Unknown, UnknownUsed, why_of
from ..source.discovery import Annotated
from . import fingerprints
from .input_sources import inputs_of
from .located import Found
from .opening import OpenFile, Progress, found_in
from .told_inputs import told
from .user_code import describe, user_stack

# Findings that the next check may not make: not the function's.
_OF_THE_MACHINE = frozenset({"FL402", "FL403", "FL405", "FL406", "FL916"})
_USUAL_GPU = "cuda:sm_90"
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_FROM_ANNOTATION = ("fullgraph", "dynamic", "mode", "backend")
_UNKNOWN = re.compile(r"\b_?(Unknown|Reshape|Sizes)\b")


@dataclass(slots=True)
class FunctionCheck:
    """A function that was called; ``recorder`` is what is left to be done, where something is."""

    annotated: Annotated
    report: Report
    recorder: Recorder | None = None
    fingerprint: str = ""

    def finish(self) -> None:
        """Completes the report."""
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return
        try:
            recorder.finish()
            if not any(d.code in _OF_THE_MACHINE for d in (*self.report.breaks, *self.report.diagnostics)):
                self.report.fingerprint = self.fingerprint
        except Exception as error:  # noqa: BLE001  a bug of ours must not lose the other functions
            self.report.diagnostics.append(_internal(self.annotated, error))


def _internal(annotated: Annotated, error: Exception) -> Diagnostic:
    trace = "".join(traceback.format_exception(error))
    made = diagnostics.make("FL112", annotated.name_span, what=describe(error))
    return dataclasses.replace(made, explanation=f"{made.explanation}\n{trace}")


def check_function(
    file: OpenFile, annotated: Annotated, config: Config | None, say: Progress, known: str = ""
) -> FunctionCheck:
    """Effects that are refused to what makes the function or its inputs are the function's findings."""
    report = Report(annotated.qualname, file.path, annotated.name_span)
    try:
        return _called(file, annotated, config, say, known, report)
    except sandbox.Refused as refusal:
        report.diagnostics.append(refusal.finding)
    except UnknownUsed as error:
        report.diagnostics.append(diagnostics.make("FL913", annotated.name_span, what=report.function, why=str(error)))
    except Exception as error:  # noqa: BLE001  a bug of ours must not lose the other functions
        report.diagnostics.append(_internal(annotated, error))
    return FunctionCheck(annotated, report)


@dataclass(frozen=True, slots=True)
class Call:
    """The call that a check makes: ``inputs`` are what is given, ``stated`` what the report says of them."""

    annotated: Annotated
    found: Found
    inputs: ExampleInputs
    stated: Inputs
    config: Config
    evaluated: Compiled | None
    fingerprint: str

    @property
    def assumed(self) -> list[Diagnostic]:
        """That nobody stated the inputs."""
        if not self.stated.assumed or not self.stated.values:
            return []
        place, what = self.annotated.name_span, self.annotated.qualname
        return [diagnostics.make("FL921", place, what=what, origin=self.stated.source, inputs=self.stated.types)]


def planned(file: OpenFile, annotated: Annotated, config: Config | None, say: Progress) -> Call | Diagnostic:
    """The call, or why there is none."""
    found = found_in(file, annotated)
    if isinstance(found, Diagnostic):
        return found
    say(f"{annotated.qualname}: example inputs")
    inputs = inputs_of(file, annotated, found)
    if isinstance(inputs, Diagnostic):
        return inputs
    evaluated = file.evaluated(annotated)
    chosen = configured(config or from_environment(explore=True), found, annotated, evaluated)
    given = inputs.origin, inputs.args, inputs.kwargs, inputs.dynamic
    kept = project.digest(file.path), overlays.state(overlays.of(file.path)) if chosen.patches else ""
    fingerprint = fingerprints.fingerprint(file.path, found.target, given, fingerprints.of_config(chosen), kept)
    stated = told(inputs, found, evaluated, file.path)
    return Call(annotated, found, inputs, stated, chosen, evaluated, fingerprint)


def configured(config: Config, found: Found, annotated: Annotated, evaluated: Compiled | None) -> Config:
    """The configuration that holds for a function in a check."""
    return _for_device(merge_config(config, found.config, annotated.arguments), evaluated)


def _for_device(config: Config, evaluated: Compiled | None) -> Config:
    """A program that says a GPU, which may not be here, is compiled for the usual one."""
    config = dataclasses.replace(config, weightless=True)
    if evaluated is None or config.target != "auto" or "cuda" not in evaluated.devices or not _HAS_TRITON:
        return config
    build = config.build and bool(assembly_of(config))  # nothing that could run
    return dataclasses.replace(config, target=_USUAL_GPU, build=build)


def _called(
    file: OpenFile, annotated: Annotated, config: Config | None, say: Progress, known: str, report: Report
) -> FunctionCheck:
    """Calls the function, unless a check ``known`` by its fingerprint said all; ``report`` is what to say where that fails."""
    call = planned(file, annotated, config, say)
    if isinstance(call, Diagnostic):
        report.diagnostics.append(call)
        return FunctionCheck(annotated, report)
    if call.fingerprint and call.fingerprint == known:
        same = dataclasses.replace(
            report, fingerprint=call.fingerprint, unchanged=True, inputs=call.stated, diagnostics=call.assumed
        )
        return FunctionCheck(annotated, same)
    api.reset()  # the file may have called its own functions: what that compiled would be reused, not reported
    around = call.evaluated.around if call.evaluated is not None else None
    surroundings = around.again() if around else contextlib.nullcontext()
    try:
        with surroundings:
            recorder = _recorder(call, say)
        if (unknown := _uses_unknown(call.found.target, recorder.report)) is not None:
            report.diagnostics.append(diagnostics.make("FL913", annotated.name_span, what=report.function, why=unknown))
            report.inputs = call.stated
        elif (wrong := _wrong_guess(file, call, recorder.report)) is not None:
            report.diagnostics.append(wrong)
        else:
            recorder.report.inputs = call.stated
            recorder.report.diagnostics += call.assumed
            recorder.report.machine = of_target(recorder.report.built_for, call.config)
            return FunctionCheck(annotated, recorder.report, recorder, call.fingerprint)
    except SystemExit as error:
        stack = user_stack(error, file.path)
        span = stack[-1].span if stack else annotated.name_span
        why = describe(error)
        report.diagnostics.append(diagnostics.make("FL909", span, stack=stack, what=report.function, why=why))
    except Exception as error:  # noqa: BLE001  a bug of ours must not lose the other functions
        report.diagnostics.append(_internal(annotated, error))
    return FunctionCheck(annotated, report)


def _recorder(call: Call, say: Progress) -> Recorder:
    name, inputs = call.annotated.qualname, call.inputs
    return api.called(
        call.found.target, inputs.args, inputs.kwargs, config=call.config, function=name, span=call.annotated.name_span,
        progress=lambda stage: say(f"{name}: {stage}"), dynamic=inputs.dynamic,
    )  # fmt: skip


def _wrong_guess(file: OpenFile, call: Call, report: Report) -> Diagnostic | None:
    """That the function raised for inputs which nobody states: this says nothing of the program."""
    raised = next((d for d in report.diagnostics if d.code == "FL909"), None)
    guessed = call.stated.invented or (file.evaluation is not None and any(n.assumed for n in file.evaluation.notes))
    if raised is None or not guessed:
        return None
    made = diagnostics.make("FL901", call.annotated.name_span, what=call.annotated.qualname)
    why = raised.message.partition("on its example inputs ")[2]
    return dataclasses.replace(made, message=f"{made.message}: given {call.stated.types}, it {why}")


def _uses_unknown(target: Any, report: Report) -> str | None:
    """Why the target cannot be compiled in a check: it uses what is not known, of its module or of the names around it."""
    if not any(_UNKNOWN.search(d.message) for d in (*report.breaks, *report.diagnostics)):
        return None
    held: list[tuple[str, Any]] = []
    if isinstance(target, torch.nn.Module):
        held = [
            (f"`{name}.{k}`".replace("`.", "`"), v) for name, m in target.named_modules() for k, v in vars(m).items()
        ]
    elif (code := api.root_code(target)) is not None:
        around = inspect.getclosurevars(inspect.unwrap(target))
        values = {**around.globals, **around.nonlocals}
        held = [(f"`{name}`", values[name]) for name in (*code.co_names, *code.co_freevars) if name in values]
    return next(
        (f"{name} is unknown: {why_of(v)}" for name, v in held if isinstance(v, Unknown)), "it uses what is unknown"
    )


def merge_config(config: Config, annotation: Config | None, arguments: Mapping[str, Any]) -> Config:
    """``config`` (the command line's or the editor's) with what the author wrote in the decorator.

    ``fullgraph``, ``dynamic``, ``mode`` and ``backend`` are the author's, but for ``as_mode``, which goes before that
    mode. Of ``options=``, what differs from the defaults applies unless ``config`` itself differs there. ``arguments``
    are the decorator's literals as read from the source, used for ``torch.compile``, which does not keep them.
    """
    mode = {"mode": config.as_mode} if config.as_mode else {}
    if annotation is None:
        changes = {k: v for k, v in arguments.items() if k in ("fullgraph", "dynamic", "mode") and v is not None}
        return dataclasses.replace(config, **{**changes, **mode})
    default = from_environment()
    changes = {}
    for f in dataclasses.fields(Config):
        stated, ours, usual = (getattr(c, f.name) for c in (annotation, config, default))
        if f.name in _FROM_ANNOTATION or (stated != usual and ours == usual):
            changes[f.name] = stated
    return dataclasses.replace(config, **{**changes, **mode})
