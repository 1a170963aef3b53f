"""Compiles the annotated functions of one file, in this process: discovery, import, example inputs, compilation.

Whatever the file does wrong becomes a diagnostic at the best line; nothing that user code raises escapes. What only
another process can survive (endless loops, aborts, all memory) is :mod:`fuselens.checking.isolation`'s part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import itertools
import linecache
import logging
import re
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import api, sandbox, torch_private
from ..config import Config, assembly_of, from_environment
from ..inputs import recorded_inputs
from ..inputs.example_inputs import (
    ExampleInputs,
    ExampleInputsFailed,
    NoExampleInputs,
    has_example,
    inputs_for,
    instance_of,
)
from ..pipeline import Recorder
from ..record import diagnostics
from ..record.report import Diagnostic, FileReport, Frame, Inputs, Report, RunResult, Span
from ..slices import (
    Compiled,
    Evaluation,
    Leads,
    Note,
    Unknown,
    UnknownUsed,
    arguments,
    fits,
    importers,
    inferred,
    inferred_of_class,
    why_of,
    without,
)
from ..source import discovery, fixes, predictions
from ..source.discovery import Annotated, SourceModule
from ..system import source_text
from ..torch_private import names as torch_names
from . import fingerprints
from .located import Found, locate
from .told_inputs import told

Progress = Callable[[str], None]
log = logging.getLogger(__name__)
# Findings that the next check may not make: not the function's.
_OF_THE_MACHINE = frozenset({"FL402", "FL403", "FL405", "FL406", "FL916"})
_USUAL_GPU = "cuda:sm_90"
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_MOST_CALLERS = 3  # programs that are evaluated for what a file that they import compiles
_MOST_LEFT_OUT = 20  # statements of a program that are told
_FROM_ANNOTATION = ("fullgraph", "dynamic", "mode", "backend")


def check_file(
    path: str | Path,
    source: str | None = None,
    functions: tuple[str, ...] = (),
    config: Config | None = None,
    progress: Progress | None = None,
    known: Mapping[str, str] | None = None,
    early: Callable[[FileReport], None] | None = None,
) -> FileReport:
    """Compiles the annotated functions of ``path`` (all, or those named in ``functions``) on their example inputs.

    ``source`` is compiled instead of the file's text when given. A file without annotated functions is not imported.
    A function whose fingerprint is the one ``known`` for its name gets a report that says no more than ``unchanged``.
    Without ``config.build``, ``early`` gets the report as soon as all functions have run, when the kernels are not known.
    """
    started = time.perf_counter()
    report = FileReport(str(path))
    chosen = config or from_environment()
    try:
        if chosen.execution == "never":
            return _read_only(path, source, functions, chosen.preview)
        with opened(path, source, functions, progress, chosen) as file:
            report.diagnostics += file.diagnostics
            names = [annotated.qualname for annotated in file.annotated]
            checks = []
            for annotated in file.annotated:
                once = names.count(annotated.qualname) == 1
                had = (known or {}).get(annotated.qualname, "") if once else ""
                check = _check(file, annotated, config, progress, had)
                check.report.diagnostics += [d for d in sandbox.take() if d not in check.report.diagnostics]
                checks.append(check)
            if early is not None and any(check.recorder and not check.recorder.finished for check in checks):
                seen = [check.report for check in checks]
                early(FileReport(report.file, _with_fixes(file, seen), report.diagnostics))
            for check in checks:
                check.finish()
            report.functions = _with_fixes(file, [check.report for check in checks])
            report.imports = _imported_files(file)
            report.diagnostics += torch_names.findings(_import_of_torch(file))
    except FileRefused as refusal:
        report.diagnostics.append(refusal.diagnostic)
    report.seconds = time.perf_counter() - started
    return report


def _read_only(path: str | Path, source: str | None, functions: tuple[str, ...], preview: bool) -> FileReport:
    """What the source alone says. Raises FileRefused."""
    module = _parsed(read_source(path) if source is None else source, str(path), preview)
    predicted = predictions.predict(module)
    reports = [r for r in predictions.not_executed(module) if not functions or r.function in functions]
    for r in reports:
        r.diagnostics += predicted.get(r.function, ())
    return FileReport(str(path), reports)


def _import_of_torch(file: OpenFile) -> Span | None:
    return discovery.import_span(file.source, file.path, ("torch", "fuselens"))


def warm_file(
    path: str | Path,
    source: str | None = None,
    functions: tuple[str, ...] = (),
    progress: Progress | None = None,
    config: Config | None = None,
) -> FileReport:
    """Fills the cache with what a program's own calls of the functions need, on the same inputs: nothing that a check
    compiled serves them, because it keeps texts and takes both sides of branches. Calls that runs recorded come first.

    The report has what a check that builds nothing does not find: kernels that could not be built."""
    say = progress or _silent
    report = FileReport(str(path))
    with contextlib.suppress(FileRefused), opened(path, source, functions, progress, config) as file:
        for annotated in file.annotated:
            found = _found(file, annotated)
            if isinstance(found, Diagnostic) or found.config is None:  # another compiler's is not ours to warm
                continue
            recorded, _ = _recorded(found, file.path)
            inputs = _inputs(file, annotated, found)
            given = []
            if not isinstance(inputs, Diagnostic) and inputs.origin != "recorded":
                given = [recorded_inputs.Call(inputs.args, inputs.kwargs)]
            for calls in filter(None, (recorded, given)):
                say(f"{annotated.qualname}: warm")
                said = api.warm(found.target, [call.of for call in calls], config=found.config)
                failed = [d for d in dict.fromkeys(said) if d.code in ("FL402", "FL403")]
                report.functions += [Report(annotated.qualname, file.path, diagnostics=failed)] if failed else []
    return report


def _with_fixes(file: OpenFile, reports: list[Report]) -> list[Report]:
    """Fixes are a convenience: a source that they stumble over has none."""
    if not any(fixes.may_have(r) for r in reports):
        return reports
    try:
        source = fixes.Source(file.source, file.path)
        return [fixes.with_fixes(r, source) for r in reports]
    except Exception:
        if from_environment().strict:
            raise
        log.exception("making fixes for %s failed", file.path)
        return reports


def run_function(
    path: str | Path,
    qualname: str,
    source: str | None = None,
    config: Config | None = None,
    gradients: bool = True,
    progress: Progress | None = None,
) -> RunResult:
    """Runs one annotated function compiled and eagerly on its example inputs, and compares."""
    say = progress or _silent
    try:
        with opened_function(path, qualname, source, config, progress) as function:
            inputs = function.inputs()
            result = api.compare(
                function.target, inputs.args, inputs.kwargs, config=function.config, function=qualname,
                gradients=gradients, progress=lambda what: say(f"{qualname}: {what}"),
            )  # fmt: skip
            for refused in sandbox.take():  # and caught by the program
                raise FileRefused(refused)
            return result
    except FileRefused as refusal:
        error = refusal.diagnostic
        return RunResult(qualname, agrees=False, detail=error.message, error=error)


@dataclass(frozen=True, slots=True)
class OpenFunction:
    """An annotated function of an imported file, with the configuration that holds for it."""

    file: OpenFile
    annotated: Annotated
    found: Found
    config: Config

    @property
    def target(self) -> Any:
        return self.found.target

    def inputs(self, variant: int = 0) -> ExampleInputs:
        """Example inputs; ``variant`` counts other values, and other sizes of named axes. Raises FileRefused."""
        inputs = _inputs(self.file, self.annotated, self.found, variant)
        if isinstance(inputs, Diagnostic):
            raise FileRefused(inputs)
        return inputs


@contextlib.contextmanager
def opened_function(
    path: str | Path, qualname: str, source: str | None, config: Config | None, progress: Progress | None = None
) -> Iterator[OpenFunction]:
    """Imports ``path`` for the duration of the block, for one of its annotated functions. Raises FileRefused."""
    config = config or from_environment()
    with opened(path, source, (qualname,), progress, config, values=True) as file:
        if not file.annotated:
            raise FileRefused(file.diagnostics[0])
        annotated = file.annotated[0]
        found = _found(file, annotated)
        if isinstance(found, Diagnostic):
            raise FileRefused(found)
        chosen = merge_config(config, found.config, annotated.arguments)
        yield OpenFunction(file, annotated, found, chosen)


# --- opening a file -------------------------------------------------------------------------------------------------


class FileRefused(Exception):
    """The file as a whole could not be read, parsed or imported; ``diagnostic`` says why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


@dataclass(slots=True)
class OpenFile:
    """An imported file: the functions to look at, and findings about those that were asked for but do not exist."""

    path: str
    source: str
    module: types.ModuleType | None
    annotated: list[Annotated]
    diagnostics: list[Diagnostic]
    evaluation: Evaluation | None = None  # of a program, which is not imported
    values: bool = False  # of large tensors, too
    preview: bool = False
    callers: list[Evaluation] | None = None  # of programs that import the file, once somebody asked

    def evaluated(self, annotated: Annotated) -> Compiled | None:
        """What the evaluation found at an annotation, if it got there."""
        every = [self.evaluation, *(self.callers or ())]
        found = [e.found[annotated.qualname] for e in every if e is not None and annotated.qualname in e.found]
        return next((f for f in found if f.args is not None), found[0] if found else None)

    def ask_callers(self) -> bool:
        """Evaluates programs of the project that import the file; whether this was the first time."""
        if self.callers is not None or (self.evaluation is not None and not self._lacks_calls()):
            return False
        self.callers = []
        names = Leads(SourceModule(self.source, self.path, self.preview)).names
        for path, text in itertools.islice(importers(self.path), _MOST_CALLERS):
            with contextlib.suppress(SyntaxError), without(self.path):
                leads = Leads(SourceModule(text, path), names)
                evaluation = Evaluation(leads, self.annotated, self.path, self.values, self.preview)
                with _import_surroundings(path, text) as (name, package):
                    _imported(name, package, path, text, evaluation.run)
                self.callers.append(evaluation)
            if not self._lacks_calls():
                break
        sandbox.take()
        return True

    def _lacks_calls(self) -> bool:
        found = [self.evaluated(a) for a in self.annotated]
        return any(f is None or f.args is None for f in found)


@contextlib.contextmanager
def opened(
    path: str | Path,
    source: str | None,
    functions: tuple[str, ...] = (),
    progress: Progress | None = None,
    config: Config | None = None,
    values: bool = False,
) -> Iterator[OpenFile]:
    """Discovers the annotated functions of ``path`` and, if there are any, imports it for the duration of the block. Where an
    effect is refused to the import, those are left that it has defined. By ``execution`` of ``config``, "import" also imports
    programs, which are evaluated otherwise. ``values``: large tensors of programs are computed, too.

    Raises FileRefused, also when an effect is refused in the block, and where nothing may be executed."""
    say = progress or _silent
    path = str(path)
    config = config or from_environment()
    execution = config.execution
    say("discover")
    if source is None:
        source = read_source(path)
    parsed = _parsed(source, path, config.preview)
    every = parsed.annotated
    chosen = [a for a in every if not functions or a.qualname in functions]
    missing = [name for name in functions if all(a.qualname != name for a in every)]
    unknown = [diagnostics.make("FL912", None, what=name) for name in missing]
    if not chosen:
        yield OpenFile(path, source, None, [], unknown)
        return
    if execution == "never":
        raise FileRefused(diagnostics.make("FL923", chosen[0].name_span, what=chosen[0].qualname))
    code = _compiled(source, path, parsed)
    say("import")
    with _import_surroundings(path, source) as (name, package):
        leads = Leads(parsed)
        evaluates = execution == "slice" and leads.runs_itself()
        evaluation = Evaluation(leads, chosen, values=values) if evaluates else None
        execute = evaluation.run if evaluation is not None else functools.partial(exec, code)
        module, stopped = _imported(name, package, path, source, execute)
        if stopped is not None:
            unknown.append(stopped)
            chosen = [a for a in chosen if a.name_span.line < _line_of_import(stopped)]
        unknown += map(_in_a_program, sandbox.take()) if evaluation is not None else sandbox.take()
        unknown += _left_out(evaluation, path, source) if evaluation is not None else []
        try:
            nobody = None if execution == "slice" else []
            yield OpenFile(path, source, module, chosen, unknown, evaluation, values, config.preview, nobody)
        except sandbox.Refused as refusal:
            raise FileRefused(refusal.finding) from refusal


def read_source(path: str | Path) -> str:
    """The text of a Python file by its own coding line. Raises FileRefused (FL902, FL903)."""
    file = str(path)
    try:
        data = source_text.read_bytes(path)
    except OSError as error:
        raise FileRefused(diagnostics.make("FL903", None, why=f"{type(error).__name__}: {error}")) from error
    try:
        return source_text.decode(data)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1)
        why = f"the file is not {error.encoding} ({error.reason})"
        raise FileRefused(diagnostics.make("FL902", Span(file, line, column, line, column + 1), why=why)) from error
    except (SyntaxError, LookupError) as error:  # an unknown coding, or bytes in the first lines that it cannot mean
        raise FileRefused(diagnostics.make("FL902", Span(file, 1, 0, 1, 1), why=str(error))) from error


def _parsed(source: str, path: str, preview: bool = False) -> SourceModule:
    try:
        return SourceModule(source, path, preview)
    except SyntaxError as error:
        raise FileRefused(_syntax_diagnostic(error, source, path)) from error


def _compiled(source: str, path: str, module: SourceModule) -> types.CodeType:
    """Compiling finds what parsing does not: ``return`` outside a function, duplicate arguments, …"""
    try:
        return compile(module.tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise FileRefused(_syntax_diagnostic(error, source, path)) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise FileRefused(diagnostics.make("FL902", Span(path, 1, 0, 1, 1), why=str(error))) from error


def _syntax_diagnostic(error: SyntaxError, source: str, path: str) -> Diagnostic:
    """CPython gives 1-based character columns, 0 or -1 for unknown ends."""
    lines = source_text.lines(source) or [""]
    line = min(max(error.lineno or 1, 1), len(lines))
    text = lines[line - 1]
    start = min(max((error.offset or 1) - 1, 0), len(text))
    end_line, end = error.end_lineno or line, (error.end_offset or 0) - 1
    if end_line != line or end <= start:
        end_line, end = line, max(start + 1, len(text) if end_line != line else start + 1)
    span = Span(path, line, len(text[:start].encode()), end_line, len(text[:end].encode()) or 1)
    return diagnostics.make("FL902", span, why=error.msg)


@contextlib.contextmanager
def _import_surroundings(path: str, source: str) -> Iterator[tuple[str, str]]:
    """What a module sees of the process while it is imported: its directory on ``sys.path``, ``sys.argv``, its text
    in ``linecache`` (for tracebacks and ``inspect.getsource``). Yields its name and package; restores all after."""
    file = Path(path)
    root, parts = file.resolve().parent, [] if file.name == "__init__.py" else [file.stem]
    while (root / "__init__.py").exists() and root.name.isidentifier():
        parts.insert(0, root.name)
        root = root.parent
    name = ".".join(parts) or file.stem
    if name.partition(".")[0] in sys.modules and not _loaded_from(name.partition(".")[0], root):
        name = f"_{name.rpartition('.')[2]}_checked"  # a file called like a loaded library must not replace it
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    before = list(sys.path), list(sys.argv), sys.modules.get(name), linecache.cache.get(path)
    sys.path.insert(0, str(root))
    sys.argv = [path, *arguments(source, path)]
    linecache.cache[path] = (len(source), None, source_text.lines(source, keepends=True), path)
    try:
        yield name, package
    finally:
        sys.path[:], sys.argv, module, lines = before
        _restore(sys.modules, name, module)
        _restore(linecache.cache, path, lines)


def _restore(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _loaded_from(name: str, root: Path) -> bool:
    """Whether the loaded top-level module comes from ``root``: then it is this file, or its package."""
    module = sys.modules[name]
    files = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(Path(f).resolve().is_relative_to(root) for f in files if f)


class _GivenSource(importlib.machinery.SourceFileLoader):
    """Loads the text that is being checked, which may differ from what is on disk."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source


def _line_of_import(refused: Diagnostic) -> int:
    """The line of the module's own code at which its import ended."""
    outermost = refused.stack[0].span if refused.stack else refused.span
    return outermost.line if outermost is not None else 0


def _imported(
    name: str, package: str, path: str, source: str, execute: Callable[[dict[str, Any]], None]
) -> tuple[types.ModuleType, Diagnostic | None]:
    """Executes the file as a module, up to an effect that is refused: that is a finding. Raises FileRefused at the deepest line
    of the file that was running."""
    loader = _GivenSource(name, path, source)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = package
    try:
        if "." in name:
            importlib.import_module(name.rpartition(".")[0])
        sys.modules[name] = module
        execute(module.__dict__)
    except SystemExit as error:
        raise FileRefused(_exit_diagnostic(error, path, source)) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and _frame_in(error, path) is None:
            raise  # the person's own Ctrl-C
        found = _import_diagnostic(error, path)
        if found.code != "FL915":
            raise FileRefused(found) from error
        sandbox.take()
        return module, found
    return module, None


def _exit_diagnostic(error: SystemExit, path: str, source: str) -> Diagnostic:
    stack = user_stack(error, path)
    span = stack[-1].span if stack else None
    what = text_at(source, span) if span is not None and span.line == span.end_line else ""
    return diagnostics.make("FL904", span, stack=stack, what=f"`{what or 'sys.exit'}`")


def _import_diagnostic(error: BaseException, path: str) -> Diagnostic:
    stack = user_stack(error, path)
    made = diagnostics.make("FL903", stack[-1].span if stack else None, stack=stack, why=describe(error))
    return sandbox.behind(error) or made


def describe(error: BaseException) -> str:
    """``ValueError: bad`` on one line, with the place when the error is about another file's text."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- positions in user code -----------------------------------------------------------------------------------------


def user_stack(error: BaseException, path: str) -> tuple[Frame, ...]:
    """The frames of the traceback that lie in ``path``, outermost first: spans of the expressions being evaluated."""
    frames: list[Frame] = []
    tb = error.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        if code.co_filename == path:
            frames.append(Frame(code.co_qualname, _instruction_span(tb, path)))
        tb = tb.tb_next
    return tuple(frames)


def _frame_in(error: BaseException, path: str) -> Frame | None:
    stack = user_stack(error, path)
    return stack[-1] if stack else None


def _instruction_span(tb: types.TracebackType, path: str) -> Span:
    positions = list(tb.tb_frame.f_code.co_positions())
    line, end_line, column, end_column = positions[tb.tb_lasti // 2] if tb.tb_lasti >= 0 else (None,) * 4
    if line is None or end_line is None or column is None or end_column is None:
        return line_span(path, tb.tb_lineno, linecache.getline(path, tb.tb_lineno))
    return Span(path, line, column, end_line, end_column)


def line_span(path: str, line: int, text: str) -> Span:
    """The span of a line's text without its indentation."""
    text = text.rstrip()
    indent = len(text) - len(text.lstrip())
    return Span(path, line, indent, line, max(len(text.encode()), indent + 1))


def text_at(source: str, span: Span) -> str:
    """The source text of a span within one line; "" when there is no such line."""
    lines = source_text.lines(source)
    if not 0 < span.line <= len(lines):
        return ""
    return lines[span.line - 1].encode()[span.column : span.end_column].decode(errors="replace")


# --- one function ---------------------------------------------------------------------------------------------------


def _imported_files(file: OpenFile) -> tuple[str, ...]:
    """The files of modules that are loaded and belong to no library, but for this one."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())} - {file.path}
    return tuple(sorted(f for f in files if not fingerprints.is_library_file(f) and Path(f).is_absolute()))


@dataclass(slots=True)
class _Check:
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


def _check(
    file: OpenFile, annotated: Annotated, config: Config | None, progress: Progress | None, known: str = ""
) -> _Check:
    """Effects that are refused to what makes the function or its inputs are the function's findings."""
    report = Report(annotated.qualname, file.path, annotated.name_span)
    try:
        return _called(file, annotated, config, progress, known, report)
    except sandbox.Refused as refusal:
        report.diagnostics.append(refusal.finding)
    except UnknownUsed as error:
        report.diagnostics.append(diagnostics.make("FL913", annotated.name_span, what=report.function, why=str(error)))
    except Exception as error:  # noqa: BLE001  a bug of ours must not lose the other functions
        report.diagnostics.append(_internal(annotated, error))
    return _Check(annotated, report)


def _called(
    file: OpenFile, annotated: Annotated, config: Config | None, progress: Progress | None, known: str, report: Report
) -> _Check:
    name = annotated.qualname
    say = progress or _silent
    found = _found(file, annotated)
    if isinstance(found, Diagnostic):
        report.diagnostics.append(found)
        return _Check(annotated, report)
    say(f"{name}: example inputs")
    inputs = _inputs(file, annotated, found)
    if isinstance(inputs, Diagnostic):
        report.diagnostics.append(inputs)
        return _Check(annotated, report)
    chosen = merge_config(config or from_environment(explore=True), found.config, annotated.arguments)
    evaluated = file.evaluated(annotated)
    if evaluated is not None and chosen.target == "auto" and "cuda" in evaluated.devices and _HAS_TRITON:
        build = chosen.build and bool(assembly_of(chosen))  # nothing that could run
        chosen = dataclasses.replace(chosen, target=_USUAL_GPU, build=build)  # what the program says, and is not here
    chosen = dataclasses.replace(chosen, weightless=True)
    given = inputs.origin, inputs.args, inputs.kwargs, inputs.dynamic
    fingerprint = fingerprints.fingerprint(file.path, found.target, given, fingerprints.of_config(chosen))
    stated = told(inputs, found, evaluated, file.path)
    assumed = [_assumed(annotated, stated)] if stated.assumed and stated.values else []
    if fingerprint and fingerprint == known:
        same = dataclasses.replace(report, fingerprint=fingerprint, unchanged=True, inputs=stated, diagnostics=assumed)
        return _Check(annotated, same)
    api.reset()  # the file may have called its own functions: what that compiled would be reused, not reported
    around = evaluated.around.again() if evaluated and evaluated.around else contextlib.nullcontext()
    try:
        with around:
            recorder = api.called(
                found.target, inputs.args, inputs.kwargs, config=chosen, function=name, span=annotated.name_span,
                progress=lambda stage: say(f"{name}: {stage}"), dynamic=inputs.dynamic,
            )  # fmt: skip
        if (unknown := _uses_unknown(found.target, recorder.report)) is not None:
            report.diagnostics.append(diagnostics.make("FL913", annotated.name_span, what=name, why=unknown))
            report.inputs = stated
            return _Check(annotated, report)
        raised = next((d for d in recorder.report.diagnostics if d.code == "FL909"), None)
        guessed = stated.invented or (file.evaluation is not None and any(n.assumed for n in file.evaluation.notes))
        if raised is not None and guessed:  # says nothing of the program
            made = diagnostics.make("FL901", annotated.name_span, what=name)
            why = raised.message.partition("on its example inputs ")[2]
            report.diagnostics.append(
                dataclasses.replace(made, message=f"{made.message}: given {stated.types}, it {why}")
            )
            return _Check(annotated, report)
        recorder.report.inputs = stated
        recorder.report.diagnostics += assumed
        return _Check(annotated, recorder.report, recorder, fingerprint)
    except SystemExit as error:
        stack = user_stack(error, file.path)
        span = stack[-1].span if stack else annotated.name_span
        report.diagnostics.append(diagnostics.make("FL909", span, stack=stack, what=name, why=describe(error)))
    except Exception as error:  # noqa: BLE001  a bug of ours must not lose the other functions
        report.diagnostics.append(_internal(annotated, error))
    return _Check(annotated, report)


_UNKNOWN = re.compile(r"\b_?(Unknown|Reshape|Sizes)\b")


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


def _found(file: OpenFile, annotated: Annotated) -> Found | Diagnostic:
    """What an annotation compiles: as the evaluation of a program found it, or as the import left it."""
    found = _found_here(file, annotated)
    if isinstance(found, Diagnostic) and file.ask_callers() and file.evaluated(annotated) is not None:
        return _found_here(file, annotated)
    return found


def _found_here(file: OpenFile, annotated: Annotated) -> Found | Diagnostic:
    evaluated = file.evaluated(annotated)
    if evaluated is not None:
        annotation = evaluated.annotation
        config, example = (annotation.config, annotation.example_inputs) if annotation is not None else (None, None)
        owner = type(evaluated.args[0]) if annotated.kind == "method" and evaluated.args else None
        return Found(evaluated.target, config, example, owner)
    root = vars(file.module).get(annotated.qualname.partition(".")[0]) if file.module is not None else None
    if isinstance(root, Unknown):
        return diagnostics.make("FL913", annotated.name_span, what=annotated.qualname, why=why_of(root))
    found = locate(file.module, file.path, annotated)
    why = file.evaluation.why_not(annotated) if file.evaluation is not None else ""
    if isinstance(found, Diagnostic) and why:
        return diagnostics.make("FL913", annotated.name_span, what=annotated.qualname, why=why)
    return found


def _assumed(annotated: Annotated, inputs: Inputs) -> Diagnostic:
    what = annotated.qualname
    return diagnostics.make("FL921", annotated.name_span, what=what, origin=inputs.source, inputs=inputs.types)


def _in_a_program(refused: Diagnostic) -> Diagnostic:
    """What was refused to a statement that went on all the same."""
    return diagnostics.make("FL922", refused.span, why=refused.message.rpartition("because ")[2])


def _left_out(evaluation: Evaluation, path: str, source: str) -> list[Diagnostic]:
    """The statements that failed, each once."""
    lines = source_text.lines(source)
    own = [note for note in evaluation.notes if note.file == path and 0 < note.line <= len(lines)]
    by_reason = {note.why: note for note in reversed(own)}  # several lines may fail for one
    by_line: dict[int, list[Note]] = {}
    for note in sorted(by_reason.values(), key=lambda note: note.line):
        by_line.setdefault(note.line, []).append(note)
    some = itertools.islice(by_line.items(), _MOST_LEFT_OUT)
    return [_of_notes(notes, line_span(path, line, lines[line - 1])) for line, notes in some]


def _of_notes(notes: list[Note], span: Span) -> Diagnostic:
    """Of one line: that it was left out, else all that it assumes."""
    failed = next((note.why for note in notes if not note.assumed), None)
    if failed is not None:
        return diagnostics.make("FL922", span, why=failed)
    return diagnostics.make("FL924", span, why="; ".join(note.why for note in notes))


def _inputs(file: OpenFile, annotated: Annotated, found: Found, variant: int = 0) -> ExampleInputs | Diagnostic:
    evaluated = file.evaluated(annotated)
    if evaluated is not None and evaluated.args is not None and not has_example(found.target, found.example):
        return _of_a_run(found, file.path) or ExampleInputs(evaluated.args, evaluated.kwargs, origin="call")
    try:
        if found.takes_class:
            inputs = inputs_for(types.MethodType(found.target, found.owner), found.example, variant=variant)
            return dataclasses.replace(inputs, args=(found.owner, *inputs.args))
        inputs = inputs_for(found.target, found.example, owner=found.owner, variant=variant)
        if inputs.origin == "defaults" and isinstance(found.target, torch.nn.Module) and not _tensors(inputs):
            raise NoExampleInputs("the defaults of its parameters are no tensors")
        return inputs
    except (NoExampleInputs, UnknownUsed) as error:
        if recorded := _of_a_run(found, file.path):
            return recorded
        if file.ask_callers() and (called := file.evaluated(annotated)) and called.args is not None:
            return ExampleInputs(called.args, called.kwargs, origin="call")
        module = isinstance(found.target, torch.nn.Module)
        refused: list[str] = []
        if (module or evaluated is not None) and (made := inferred(found.target, refused)) is not None:
            return ExampleInputs(made, {}, origin="layers" if module else "body")
        owner = found.owner
        if owner is not None and issubclass(owner, torch.nn.Module) and isinstance(found.target, types.FunctionType):
            if found.target.__name__ == "forward" and (made := inferred_of_class(found.target, owner)) is not None:
                return ExampleInputs(made, {}, origin="layers")
        made = diagnostics.make("FL901", annotated.name_span, what=annotated.qualname)
        why = f"{error}; {refused[0]}" if refused and refused[0] else str(error)
        return dataclasses.replace(made, message=f"{made.message}: {why}")
    except ExampleInputsFailed as error:
        frame = _frame_in(error.__cause__, file.path) if error.__cause__ is not None else None
        span = frame.span if frame else annotated.decorator_span
        made = diagnostics.make("FL908", span, what=annotated.qualname, why=str(error))
        return sandbox.behind(error) or made


def _tensors(inputs: ExampleInputs) -> list[torch.Tensor]:
    leaves = torch_private.PYTREE.tree_leaves((inputs.args, inputs.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _of_a_run(found: Found, program: str) -> ExampleInputs | None:
    """Those of the last call of the user's own last run that was followed."""
    calls, dynamic = _recorded(found, program)
    calls = [
        call for call in calls if fits(found.target, call.args, call.kwargs)
    ]  # several modules may be of one class
    return ExampleInputs(calls[-1].args, calls[-1].kwargs, dynamic=dynamic, origin="recorded") if calls else None


def _recorded(found: Found, program: str) -> tuple[list[recorded_inputs.Call], dict[str, dict[int, str]]]:
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


def merge_config(config: Config, annotation: Config | None, arguments: Mapping[str, Any]) -> Config:
    """``config`` (the command line's or the editor's) with what the author wrote in the decorator.

    ``fullgraph``, ``dynamic``, ``mode`` and ``backend`` are the author's. Of ``options=``, what differs from the
    defaults applies unless ``config`` itself differs there. ``arguments`` are the decorator's literals as read from
    the source, used for ``torch.compile``, which does not keep them.
    """
    if annotation is None:
        changes = {k: v for k, v in arguments.items() if k in ("fullgraph", "dynamic", "mode") and v is not None}
        return dataclasses.replace(config, **changes)
    default = from_environment()
    changes = {}
    for f in dataclasses.fields(Config):
        stated, ours, usual = (getattr(c, f.name) for c in (annotation, config, default))
        if f.name in _FROM_ANNOTATION or (stated != usual and ours == usual):
            changes[f.name] = stated
    return dataclasses.replace(config, **changes)


def _silent(_: str) -> None:
    """The progress of those who do not ask."""
