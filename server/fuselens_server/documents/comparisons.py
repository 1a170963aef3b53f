"""Commands that look at a function in another way: two compilations of it side by side, and the values in its graphs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePath
from typing import Any, TypeVar

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams

from fuselens.config import MODES
from fuselens.history import told
from fuselens.history.git import GitError, Repository
from fuselens.history.text import summary
from fuselens.record.report import Report

from ..client import messages
from ..server import FuselensServer
from ..texts.session import Document
from ..work.comparing import NotCompiledError, compiled_with, values_of
from ..work.since import AUTO, NotComparedError
from . import changes

_COMMITS = 30  # that are offered
TARGETS = ("cpu", "cuda:sm_90")
T = TypeVar("T")
_FAILED = lsp.LSPErrorCodes.RequestFailed.value


def register(server: FuselensServer) -> None:
    @server.command(messages.COMPARE)
    async def compare(
        ls: FuselensServer, uri: str, qualname: str, with_: str, mode: str | None = None
    ) -> dict[str, Any]:
        """``with_`` is ``save``, ``targets`` or ``mode``, which takes the other ``mode``."""
        document = ls.document(uri)
        if with_ == "save":
            await ls.checks.finished(document)  # what was saved a moment ago is the one that is meant
            before, after = _saves(document, qualname)
            return _told("last save", before, "now", after)
        if with_ == "targets":
            choices = [(target, {"target": target}) for target in TARGETS]
        elif with_ == "mode" and mode in MODES:
            choices = [("default", {"as_mode": "default"}), (mode, {"as_mode": mode})]
        else:
            raise JsonRpcInvalidParams("compare with save, targets or mode, and give one of " + ", ".join(MODES))
        before, after = await _for_a_person(
            ls, f"Fuselens: compile {qualname} twice",
            lambda say: _both(ls, document, qualname, [options for _, options in choices], say),
        )  # fmt: skip
        return _told(choices[0][0], before, choices[1][0], after)

    @server.command(messages.SINCE)
    async def since(ls: FuselensServer, uri: str, revision: str | None = None) -> dict[str, Any] | None:
        """Compares a file with a revision of git, by default with where the work left the default branch; saving compares again.
        An empty revision takes the marks away."""
        document = ls.document(uri)
        if revision == "":
            ls.since.forget(document)
            return None
        await ls.checks.finished(document)
        document.compared_with = revision or AUTO
        ls.since.cancel(document)
        outcome = await _for_a_person(
            ls, f"Fuselens: compare {PurePath(document.path).name} with {revision or 'the default branch'}",
            lambda say: ls.since.compare(document, revision or AUTO, say),
        )  # fmt: skip
        return {"sentence": summary(outcome), "sides": outcome.sides, "outcome": told.json_ready(outcome)}

    @server.command(messages.REVISIONS)
    async def revisions(ls: FuselensServer, uri: str) -> list[dict[str, str]]:
        """What a file may be compared with: name, and what it is."""
        document = ls.document(uri)
        try:
            return await asyncio.to_thread(_revisions, Path(document.path))
        except GitError as error:
            raise JsonRpcException(str(error), _FAILED) from error

    @server.command(messages.VALUES)
    async def values(ls: FuselensServer, uri: str, qualname: str) -> str:
        """What each node of a function's captured graphs computes on its example inputs, as Python text."""
        document = ls.document(uri)
        return await _for_a_person(
            ls, f"Fuselens: values of {qualname}",
            lambda say: values_of(ls.configuration, ls.pool, document, qualname, say),
        )  # fmt: skip


async def _both(
    ls: FuselensServer, document: Document, qualname: str, ways: list[dict[str, Any]], say: Callable[[str], None]
) -> list[Report]:
    return [await compiled_with(ls.configuration, ls.pool, document, qualname, options, say) for options in ways]


async def _for_a_person(ls: FuselensServer, title: str, work: Callable[[Callable[[str], None]], Awaitable[T]]) -> T:
    """Shows progress, which may be cancelled. Raises JsonRpcException."""
    with ls.protocol.cancellable() as task:
        try:
            async with ls.show_progress(title, task.cancel) as progress:
                return await work(progress.report)
        except (NotCompiledError, NotComparedError) as error:
            raise JsonRpcException(str(error), _FAILED) from error
        except asyncio.CancelledError:  # by the progress bar, which must be answered too
            raise JsonRpcException("cancelled", lsp.LSPErrorCodes.RequestCancelled.value) from None


def _revisions(path: Path) -> list[dict[str, str]]:
    """Where the default branch was left, then branches and tags, then the last commits. Raises GitError."""
    repository = Repository.of(path)
    base = repository.default_base()
    named = [{"name": base.short, "about": f"{base.subject} ({base.author}): where your work left the default branch"}]
    named += [{"name": name, "about": about} for name, about in repository.names()]
    return named + [{"name": c.short, "about": f"{c.subject} ({c.author})"} for c in repository.last(_COMMITS)]


def _saves(document: Document, qualname: str) -> tuple[Report, Report]:
    """Raises JsonRpcException."""
    found = []
    for checked, what in ((document.previous, "before the last save"), (document.checked, "yet")):
        reports = checked.report.functions if checked else []
        report = next((r for r in reports if r.function == qualname), None)
        if report is None:
            raise JsonRpcException(f"{qualname} was not compiled {what}, so there is nothing to compare", _FAILED)
        found.append(report)
    return found[0], found[1]


def _told(one: str, before: Report, other: str, after: Report) -> dict[str, Any]:
    stages = [{**dataclasses.asdict(pair), "differs": pair.differs} for pair in changes.pairs(before, after)]
    return {"sentence": changes.sentence(before, after), "before": one, "after": other, "stages": stages}
