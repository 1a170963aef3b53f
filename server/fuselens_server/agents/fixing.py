"""``apply_fix``: a fix becomes part of its file, if the file is the one that was checked."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from fuselens.record.report import Diagnostic, Fix
from fuselens.source.fixes import writing

from .arguments import ApplyFixArguments, ToolError
from .experiments import Progress
from .looking import Looked, Looking, fix_id, offer
from .results import Applied
from .subjects import Places, Subject, function_of


@dataclass(slots=True)
class Fixing:
    looking: Looking

    async def apply_fix(self, asked: ApplyFixArguments, places: Places, progress: Progress) -> Applied:
        subject = await function_of(asked.target, places)
        looked = self.looking.known(subject)
        found = _find(looked, subject, asked.fix) if looked is not None else None
        if looked is None or found is None or not found[1].trial:
            looked = await self.looking.look(subject, asked.seconds, True, progress)
            found = _find(looked, subject, asked.fix)
        if found is None:
            raise ToolError(
                f"{asked.fix!r} is no fix of {subject.function} as {subject.path} is now "
                f"(sha256 {subject.sha256[:12]}…); check says which fixes there are"
            )
        finding, fix = found
        if not fix.verified and not asked.unverified:
            raise ToolError(
                f"the fix {fix.title!r} is not verified ({fix.trial or 'not tried out'}); `unverified` takes it as it is"
            )
        after = _encoded(subject, fix)
        trial = looked.trials.get(subject.function)
        told = looked.evidence[trial] if trial is not None else None
        if asked.write:
            _write(subject, after)
            since = "the file was not executed since it was written: check and verify do"
            told = told and dataclasses.replace(told, not_tried=(*told.not_tried, since))
        offered = dataclasses.replace(offer(fix, finding, subject, None), evidence=0 if told else None)
        did = "has this fix now" if asked.write else "would change like this; `write` writes it"
        return Applied(
            f"{subject.path} {did}:\n{offered.diff}\nThe fix is {'verified' if fix.verified else 'NOT verified'}: {fix.trial}",
            self.looking.experiments.machine(subject.place), (told,) if told else (), (), offered, asked.write,
            subject.path, subject.sha256, hashlib.sha256(after).hexdigest(),
        )  # fmt: skip


def _find(looked: Looked, subject: Subject, name: str) -> tuple[Diagnostic, Fix] | None:
    report = next((r for r in looked.file.functions if r.function == subject.function), None)
    for finding in (*report.breaks, *report.diagnostics) if report else ():
        for fix in finding.fixes:
            if fix_id(fix, finding, subject) == name:
                return finding, fix
    return None


def _encoded(subject: Subject, fix: Fix) -> bytes:
    """The file's new content."""
    if any(edit.span.file != subject.path for edit in fix.edits):
        raise ToolError(f"the fix {fix.title!r} edits other files than {subject.path}; apply it by hand")
    try:
        return writing.encoded(subject.data, fix.edits)
    except UnicodeEncodeError as error:
        raise ToolError(
            f"{subject.path} is written in {error.encoding}, which lacks a character of the fix: {error}"
        ) from None


def _write(subject: Subject, data: bytes) -> None:
    """All or nothing. Raises ToolError; the file is as it was then."""
    if subject.place.locked:
        raise ToolError(f"{subject.path} was not changed: {subject.place.locked}")
    try:
        writing.write(subject.path, subject.data, data)
    except writing.ChangedError:
        raise ToolError(
            f"{subject.path} was not changed: it is no longer the file that was checked; check it again"
        ) from None
    except PermissionError:
        raise ToolError(f"{subject.path} must not be written") from None
    except OSError as error:
        raise ToolError(f"{subject.path} cannot be written: {error.strerror or error}") from error
