"""The budget of a search that gives way to other work: what was used by then counts."""

from __future__ import annotations

from typing import Any

import pytest

from fuselens.record import wire
from fuselens.source.changes.asking import Question
from fuselens_server.what_if.searching import Asker
from fuselens_server.work.turns import Urgency
from fuselens_server.work.worker_pool import Environment

REQUEST = wire.Request(0, "changes", "/model.py", "x = 1", ("f",), {"idle": True})


class Displacing:
    """A pool in which other work comes so many times in between, each time after so much processor time."""

    def __init__(self, times: int, seconds: float) -> None:
        self.times, self.seconds, self.begun = times, seconds, list[float]()

    async def submit(self, environment: Any, request: Any, progress: Any, urgency: Any, spent: Any) -> wire.Event:
        assert urgency() == Urgency.LAST
        for _ in range(self.times):
            self.begun.append(request().limits.processor_seconds)
            spent(self.seconds)
        asked = request()
        self.begun.append(asked.limits.processor_seconds)
        assert asked.method == "change" and asked.options == {"idle": True, "change": {}}
        return wire.Event(0, "result", text="{}")


async def asked(pool: Displacing) -> wire.Event:
    asker = Asker(pool, Environment("python", None), REQUEST, Urgency.LAST, lambda _: None)  # type: ignore[arg-type]
    return await asker.ask(Question("change", {"change": {}}, 10.0))


@pytest.mark.asyncio
async def test_what_was_displaced_counts() -> None:
    pool = Displacing(2, 3.0)
    event = await asked(pool)
    assert pool.begun == [10.0, 7.0, 4.0] and event.processor_seconds == 6.0 and event.file is None


@pytest.mark.asyncio
async def test_nothing_is_begun_again_without_time() -> None:
    pool = Displacing(5, 4.9)
    event = await asked(pool)
    assert pool.begun == [10.0, pytest.approx(5.1)] and event.processor_seconds == pytest.approx(9.8)
    assert event.file is not None and [d.code for d in event.file.diagnostics] == ["FL905"]
