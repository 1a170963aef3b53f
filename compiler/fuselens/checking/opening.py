"""Opens a file: imports it, or evaluates it where it is a program, for the duration of a block.

An open file says which annotated functions it has, what each of them compiles, and what could not be executed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import sandbox
from ..capture.program import overlays
from ..config import Config, from_environment
from ..record import diagnostics
from ..record.report import Diagnostic, Span
from ..slices import Compiled, Evaluation, Hearing, Leads, Note, Unknown, importers, why_of, without
from ..source.discovery import Annotated, SourceModule
from ..system import source_text
from .importing import import_surroundings, imported
from .located import Found, locate
from .parsing import FileRefused, compiled, parsed, read_source
from .user_code import line_span

Progress = Callable[[str], None]
_MOST_CALLERS = 3  # programs that are evaluated for what a file that they import compiles
_MOST_LEFT_OUT = 20  # statements of a program that are told


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
    hearing: Hearing | None = None  # what is called, for who wants all calls

    def evaluated(self, annotated: Annotated) -> Compiled | None:
        """What the evaluation found at an annotation, if it got there."""
        every = [self.evaluation, *(self.callers or ())]
        found = [e.found[annotated.qualname] for e in every if e is not None and annotated.qualname in e.found]
        return next((f for f in found if f.args is not None), found[0] if found else None)

    def ask_callers(self) -> bool:
        """Evaluates programs of the project that import the file; whether this was the first time."""
        answered = self.evaluation is not None and not self._lacks_calls() and self.hearing is None
        if self.callers is not None or answered:
            return False
        self.callers = []
        names, own = Leads(SourceModule(self.source, self.path, self.preview)).names, str(Path(self.path).resolve())
        for path, text in itertools.islice(importers(self.path), _MOST_CALLERS):
            with contextlib.suppress(SyntaxError), without(self.path):
                leads = Leads(SourceModule(text, path), names)
                evaluation = Evaluation(leads, self.annotated, own, self.values, self.preview, self.hearing)
                with import_surroundings(path, text) as (name, package):
                    imported(name, package, path, text, evaluation.run)
                self.callers.append(evaluation)
            if self.hearing is None and not self._lacks_calls():
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
    hearing: Hearing | None = None,
) -> Iterator[OpenFile]:
    """Discovers the annotated functions of ``path`` and, if there are any, imports it for the duration of the block. Where an
    effect is refused to the import, those are left that it has defined. By ``execution`` of ``config``, "import" also imports
    programs, which are evaluated otherwise. ``values``: large tensors of programs are computed, too. ``hearing`` keeps all calls.

    Raises FileRefused, also when an effect is refused in the block, and where nothing may be executed."""
    say = progress or silent
    path, config = str(path), config or from_environment()
    say("discover")
    if source is None:
        source = read_source(path)
    module = parsed(source, path, config.preview)
    chosen, findings = _asked_for(module.annotated, functions)
    if not chosen:
        yield OpenFile(path, source, None, [], findings)
        return
    if config.execution == "never":
        raise FileRefused(diagnostics.make("FL923", chosen[0].name_span, what=chosen[0].qualname))
    code = compiled(source, path, module)
    say("import")
    with import_surroundings(path, source) as (name, package), overlays.program(path):
        leads = Leads(module)
        evaluates = config.execution == "slice" and (hearing is not None or leads.runs_itself())
        evaluation = Evaluation(leads, chosen, values=values, hearing=hearing) if evaluates else None
        execute = evaluation.run if evaluation is not None else functools.partial(exec, code)
        loaded, stopped = imported(name, package, path, source, execute)
        if stopped is not None:
            findings.append(stopped)
            chosen = [a for a in chosen if a.name_span.line < _line_of_import(stopped)]
        findings += _of_execution(evaluation, path, source)
        try:
            nobody = None if config.execution == "slice" else []
            yield OpenFile(path, source, loaded, chosen, findings, evaluation, values, config.preview, nobody, hearing)
        except sandbox.Refused as refusal:
            raise FileRefused(refusal.finding) from refusal


def _asked_for(every: list[Annotated], functions: tuple[str, ...]) -> tuple[list[Annotated], list[Diagnostic]]:
    """The functions of those names (all, where none is named), and findings about names that no function has."""
    chosen = [a for a in every if not functions or a.qualname in functions]
    missing = [name for name in functions if all(a.qualname != name for a in every)]
    return chosen, [diagnostics.make("FL912", None, what=name) for name in missing]


def _line_of_import(refused: Diagnostic) -> int:
    """The line of the module's own code at which its import ended."""
    outermost = refused.stack[0].span if refused.stack else refused.span
    return outermost.line if outermost is not None else 0


def silent(_: str) -> None:
    """The progress of those who do not ask."""


# --- what an annotation compiles --------------------------------------------------------------------------------------


def found_in(file: OpenFile, annotated: Annotated) -> Found | Diagnostic:
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
        found = Found(evaluated.target, config, example)
        if annotated.kind != "method":
            return found
        if evaluated.args:
            return dataclasses.replace(found, owner=type(evaluated.args[0]))
        located = locate(file.module, file.path, annotated)  # nobody calls it: its class says what it is a method of
        return dataclasses.replace(located, config=config, example=example) if isinstance(located, Found) else found
    root = vars(file.module).get(annotated.qualname.partition(".")[0]) if file.module is not None else None
    if isinstance(root, Unknown):
        return diagnostics.make("FL913", annotated.name_span, what=annotated.qualname, why=why_of(root))
    found = locate(file.module, file.path, annotated)
    why = file.evaluation.why_not(annotated) if file.evaluation is not None else ""
    if isinstance(found, Diagnostic) and why:
        return diagnostics.make("FL913", annotated.name_span, what=annotated.qualname, why=why)
    return found


# --- what could not be executed ---------------------------------------------------------------------------------------


def _of_execution(evaluation: Evaluation | None, path: str, source: str) -> list[Diagnostic]:
    """Effects that were refused, and what an evaluation left out."""
    refused = sandbox.take()
    if evaluation is None:
        return refused
    return [*map(_in_a_program, refused), *_left_out(evaluation, path, source)]


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
