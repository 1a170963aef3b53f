"""Compiles one function in another way than the editor shows: to set the two beside each other, or to see its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuselens.record import wire
from fuselens.record.report import FileReport, Report

from ..client.configuration import Settled
from ..texts.session import Document
from .worker_pool import StartError, WorkerDiedError, WorkerPool


class NotCompiledError(Exception):
    """There is no report to compare; the message says why."""


async def compiled_with(
    configuration: Settled, pool: WorkerPool, document: Document, qualname: str, options: dict[str, Any],
    progress: Callable[[str], None],
) -> Report:  # fmt: skip
    """The report of a function of the last checked text, compiled with ``options``. Raises NotCompiledError."""
    event = await _asked(configuration, pool, document, "check", qualname, {"build": False, **options}, progress)
    file = event.file or FileReport(document.path)
    report = next((r for r in file.functions if r.function == qualname), None)
    if report is None or not report.graphs:
        found = [*file.diagnostics, *(report.diagnostics if report else ()), *(report.breaks if report else ())]
        why = found[0].message if found else "it has no operation of torch"
        raise NotCompiledError(f"{qualname} is not compiled with {_words(options)}: {why}")
    return report


async def values_of(
    configuration: Settled, pool: WorkerPool, document: Document, qualname: str, progress: Callable[[str], None]
) -> str:
    """What each node of the function's graphs computes on its example inputs, as text. Raises NotCompiledError."""
    event = await _asked(configuration, pool, document, "values", qualname, {}, progress)
    found = event.file.diagnostics if event.file else []
    if found:
        raise NotCompiledError(found[0].message)
    return event.text


async def _asked(
    configuration: Settled, pool: WorkerPool, document: Document, method: wire.Method, qualname: str,
    options: dict[str, Any], progress: Callable[[str], None],
) -> wire.Event:  # fmt: skip
    """The worker's answer about a function of the last checked text."""
    checked = document.checked
    source = (checked.text.origin.text if checked else document.text.text).removeprefix("\ufeff")
    try:
        settings, environment = await configuration.settled(document.path)
        given = {**settings.options, **document.options, **options}
        request = wire.Request(0, method, document.path, source, (qualname,), given, settings.limits)
        return await pool.submit(environment, request, lambda event: progress(event.message))
    except (StartError, WorkerDiedError) as error:
        raise NotCompiledError(str(error)) from error


def _words(options: dict[str, Any]) -> str:
    return ", ".join(f"{name.removeprefix('as_')} {value}" for name, value in options.items())
