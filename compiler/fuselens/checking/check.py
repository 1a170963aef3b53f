"""Compiles the annotated functions of one file, in this process: discovery, import, example inputs, compilation.

Whatever the file does wrong becomes a diagnostic at the best line; nothing that user code raises escapes. What only
another process can survive (endless loops, aborts, all memory) is :mod:`fuselens.checking.isolation`'s part.

:mod:`.opening` imports the file, :mod:`.input_sources` finds what to call its functions with, :mod:`.function_check` checks one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import api, sandbox
from ..bisecting import graphs
from ..capture import classify
from ..config import Config, from_environment
from ..inputs import recorded_inputs
from ..inputs.example_inputs import ExampleInputs
from ..limits.measuring import with_machine
from ..proving.proof import Prover
from ..record import diagnostics
from ..record.report import Diagnostic, FileReport, Proof, Report, RunResult, Span
from ..source import discovery, fixes, predictions
from ..source.discovery import Annotated
from ..torch_private import names as torch_names
from . import on_ranks
from .function_check import FunctionCheck, check_function, merge_config
from .input_sources import inputs_of, recorded
from .located import Found
from .opening import OpenFile, Progress, found_in, opened, silent
from .parsing import FileRefused, parsed, read_source
from .patching import proposing
from .steps import look as steps
from .user_code import describe

log = logging.getLogger(__name__)


def check_file(
    path: str | Path,
    source: str | None = None,
    functions: tuple[str, ...] = (),
    config: Config | None = None,
    progress: Progress | None = None,
    known: Mapping[str, str] | None = None,
    early: Callable[[FileReport], None] | None = None,
    until: float = float("inf"),
) -> FileReport:
    """Compiles the annotated functions of ``path`` (all, or those named in ``functions``) on their example inputs.

    ``source`` is compiled instead of the file's text when given. A file without annotated functions is not imported.
    A function whose fingerprint is the one ``known`` for its name gets a report that says no more than ``unchanged``.
    With ``config.ranks`` it is looked at as those ranks run it, as many as there is time for ``until`` then (``time.monotonic()``).
    Without ``config.build``, ``early`` gets the report as soon as all functions have run, when the kernels are not known.
    """
    started = time.perf_counter()
    report = FileReport(str(path))
    chosen = config or from_environment()
    try:
        if chosen.execution == "never":
            return _read_only(path, source, functions, chosen.preview)
        ranks = on_ranks.as_rank(chosen, 0) if chosen.world_size else contextlib.nullcontext()
        with ranks, opened(path, source, functions, progress, chosen) as file:
            report.diagnostics += file.diagnostics
            checks = _checked(file, config, progress or silent, known or {})
            if early is not None and any(check.recorder and not check.recorder.finished for check in checks):
                seen = [check.report for check in checks]
                early(FileReport(report.file, _with_fixes(file, seen), report.diagnostics))
            for check in checks:
                check.finish()
            report.functions = _with_fixes(file, [check.report for check in checks])
            report.imports = _imported_files(file)
            report.diagnostics += torch_names.findings(_import_of_torch(file))
        if chosen.world_size:
            _also(on_ranks.look, path, source, report, chosen, progress or silent, until)
        if chosen.predicts_memory:
            _also(steps.look, path, source, report, chosen, progress or silent, until)
    except FileRefused as refusal:
        report.diagnostics.append(refusal.diagnostic)
    report.seconds = time.perf_counter() - started
    return report


def _also(
    look: Callable[..., object], path: str | Path, source: str | None, report: FileReport, config: Config, say: Progress, until: float
) -> None:  # fmt: skip
    """Looks at the functions in one more way."""
    try:
        look(path, source, report.functions, config, say, until)
    except Exception as error:  # a bug of ours must not lose the functions
        if config.strict:
            raise
        report.diagnostics.append(diagnostics.make("FL112", None, what=describe(error)))


def _checked(file: OpenFile, config: Config | None, say: Progress, known: Mapping[str, str]) -> list[FunctionCheck]:
    """Calls each function; what it was refused and caught is a finding of its own. Fingerprints of names that several have are
    of no use."""
    names = [annotated.qualname for annotated in file.annotated]
    checks = []
    for annotated in file.annotated:
        had = known.get(annotated.qualname, "") if names.count(annotated.qualname) == 1 else ""
        check = check_function(file, annotated, config, say, had)
        check.report.diagnostics += [d for d in sandbox.take() if d not in check.report.diagnostics]
        checks.append(check)
    return checks


def _read_only(path: str | Path, source: str | None, functions: tuple[str, ...], preview: bool) -> FileReport:
    """What the source alone says. Raises FileRefused."""
    module = parsed(read_source(path) if source is None else source, str(path), preview)
    predicted = predictions.predict(module)
    reports = [r for r in predictions.not_executed(module) if not functions or r.function in functions]
    for r in reports:
        r.diagnostics += predicted.get(r.function, ())
    return FileReport(str(path), reports)


def _imported_files(file: OpenFile) -> tuple[str, ...]:
    """The files of modules that are loaded and belong to no library, but for this one."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())} - {file.path}
    return tuple(sorted(f for f in files if not classify.is_installed(f) and Path(f).is_absolute()))


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
    say = progress or silent
    report = FileReport(str(path))
    with contextlib.suppress(FileRefused), opened(path, source, functions, progress, config) as file:
        for annotated in file.annotated:
            found = found_in(file, annotated)
            if isinstance(found, Diagnostic) or found.config is None:  # another compiler's is not ours to warm
                continue
            calls, _ = recorded(found, file.path)
            inputs = inputs_of(file, annotated, found)
            given = []
            if not isinstance(inputs, Diagnostic) and inputs.origin != "recorded":
                given = [recorded_inputs.Call(inputs.args, inputs.kwargs)]
            for likely in filter(None, (calls, given)):
                say(f"{annotated.qualname}: warm")
                said = api.warm(found.target, [call.of for call in likely], config=found.config)
                failed = [d for d in dict.fromkeys(said) if d.code in ("FL402", "FL403")]
                report.functions += [Report(annotated.qualname, file.path, diagnostics=failed)] if failed else []
    return report


def _with_fixes(file: OpenFile, reports: list[Report]) -> list[Report]:
    """Fixes are a convenience: a source that they stumble over has none."""
    try:
        if any(map(proposing.may_have, reports)):
            reports = [proposing.with_library_fixes(r) for r in reports]
        if not any(fixes.may_have(r) for r in reports):
            return reports
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
    say = progress or silent
    try:
        with opened_function(path, qualname, source, config, progress) as function:
            inputs = function.inputs()
            result = api.compare(
                function.target, inputs.args, inputs.kwargs, config=function.config, function=qualname,
                gradients=gradients, progress=lambda what: say(f"{qualname}: {what}"),
            )  # fmt: skip
            for refused in sandbox.take():  # and caught by the program
                raise FileRefused(refused)
            given = inputs.args, inputs.kwargs
            return with_machine(result, given, function.config, lambda what: say(f"{qualname}: {what}"))
    except FileRefused as refusal:
        error = refusal.diagnostic
        return RunResult(qualname, agrees=False, detail=error.message, error=error)


def verify_function(
    path: str | Path, qualname: str, source: str | None, config: Config, gradients: bool, progress: Progress,
    kinds: Sequence[str] = (), seconds: float = float("inf"), known: Callable[[Proof], None] = lambda _: None,
    left_out: Sequence[str] = (),
) -> Proof:  # fmt: skip
    """Compares one function with eager and float64 on many kinds of calls, or on those that ``kinds`` names, but not on those that are
    ``left_out`` (see :mod:`fuselens.proving`). After so many ``seconds`` no more are tried; ``known`` hears what is known until then.
    Raises FileRefused."""
    with opened_function(path, qualname, source, config, progress) as function:
        prover = Prover(function, qualname, str(path), gradients, kinds, progress, known, left_out)
        proof = prover.proof(seconds)
        for refused in sandbox.take():
            raise FileRefused(refused)
        return proof


def write_graphs(
    path: str | Path, qualname: str, source: str | None, config: Config, gradients: bool, progress: Progress,
    kinds: Sequence[str] = (), where: str = "",
) -> graphs.Written:  # fmt: skip
    """Writes the graphs of one function's call as programs into the folder ``config.dump``: of the last of the ``kinds`` of calls,
    after those before it; ``where`` names what that call leaves, to be told its line. Raises FileRefused."""
    assert config.dump is not None
    folder, config = config.dump, dataclasses.replace(config, dump=None)
    folder.mkdir(parents=True, exist_ok=True)
    with opened_function(path, qualname, source, config, progress) as function:
        progress(f"{qualname}: capture")
        return graphs.write_programs(function, qualname, folder, gradients=gradients, chosen=kinds, where=where)


def node_values(path: str | Path, qualname: str, source: str | None = None, config: Config | None = None) -> str:
    """What each node of one function's graphs computes on its example inputs, as text. Raises FileRefused."""
    with opened_function(path, qualname, source, config) as function:
        inputs = function.inputs()
        return api.node_values(
            function.target, inputs.args, inputs.kwargs, config=function.config, function=qualname
        )  # fmt: skip


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
        inputs = inputs_of(self.file, self.annotated, self.found, variant)
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
        found = found_in(file, annotated)
        if isinstance(found, Diagnostic):
            raise FileRefused(found)
        chosen = merge_config(config, found.config, annotated.arguments)
        yield OpenFunction(file, annotated, found, chosen)
