"""Workers that run what no test would run in its own process, and what tests know of their files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fuselens.record.report import Diagnostic
from tests.support.workers import Client

IMPORTED = {"execution": "import"}  # whatever a file does then: what a worker withstands is what is tried here


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    """One worker for many tests: what one file does must not be felt by the next."""
    client = Client("--jobs", "2", options=IMPORTED)
    client.ready = client.event()
    assert client.ready is not None
    assert client.ready.file is None, client.ready
    yield client
    client.close()


@pytest.fixture
def own() -> Iterator[Callable[..., Client]]:
    """``own(*arguments, environment=…, cwd=…)`` starts a worker for one test."""
    clients: list[Client] = []

    def start(*arguments: str, **settings: Any) -> Client:
        clients.append(Client(*arguments, options=IMPORTED, **settings))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def text_under() -> Callable[[str, Diagnostic], str]:
    """The source text that a one-line diagnostic covers."""

    def under(source: str, found: Diagnostic) -> str:
        assert found.span is not None
        assert found.span.line == found.span.end_line
        line = source.splitlines()[found.span.line - 1].encode()
        return line[found.span.column : found.span.end_column].decode()

    return under


@pytest.fixture
def eventually() -> Callable[..., None]:
    """``eventually(condition)`` waits for up to 30 seconds."""

    def wait(condition: Callable[[], bool], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "still not so"
            time.sleep(0.02)

    return wait
