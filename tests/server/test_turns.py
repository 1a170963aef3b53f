"""The order of work, and who gives way to whom."""

from __future__ import annotations

import asyncio

import pytest

from fuselens_server.work import turns
from fuselens_server.work.turns import Turns, Urgency


class Work:
    """Pieces of work that end when they are told to. ``log``: what began, in order."""

    def __init__(self, places: int = 1) -> None:
        self.turns = Turns(places)
        self.log: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[str]] = {}
        self.urgencies: dict[str, int] = {}

    async def submit(self, name: str, urgency: int) -> None:
        self.ends[name] = asyncio.Event()
        self.urgencies[name] = urgency

        async def work() -> str:
            self.log.append(name)
            await self.ends[name].wait()
            return f"{name} done"

        self.tasks[name] = asyncio.create_task(self.turns.run(lambda: self.urgencies[name], work))
        await self.settle()

    async def end(self, name: str) -> str:
        self.ends[name].set()
        return await self.tasks[name]

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_the_most_urgent_is_next_and_equals_keep_their_order():
    work = Work()
    await work.submit("a", Urgency.FOCUSED)
    await work.submit("late", Urgency.BACKGROUND)
    await work.submit("b", Urgency.OPEN)
    await work.submit("c", Urgency.OPEN)
    await work.submit("d", Urgency.FOCUSED)
    for name in ("a", "d", "b", "c", "late"):
        assert work.log[-1] == name
        assert await work.end(name) == f"{name} done"
        await work.settle()
    assert work.log == ["a", "d", "b", "c", "late"]


@pytest.mark.asyncio
async def test_what_runs_gives_way_and_begins_again():
    work = Work()
    await work.submit("warm", Urgency.BACKGROUND)
    await work.submit("file", Urgency.FOCUSED)
    assert work.log == ["warm", "file"]
    assert not work.tasks["warm"].done()
    assert await work.end("file") == "file done"
    await work.settle()
    assert work.log == ["warm", "file", "warm"]
    assert await work.end("warm") == "warm done"


@pytest.mark.asyncio
async def test_equals_do_not_displace_each_other():
    work = Work()
    await work.submit("a", Urgency.FOCUSED)
    await work.submit("b", Urgency.FOCUSED)
    assert work.log == ["a"]
    await work.end("a")
    await work.end("b")


@pytest.mark.asyncio
async def test_the_youngest_of_the_least_urgent_is_displaced():
    work = Work(places=3)
    for name, urgency in (("open", Urgency.OPEN), ("old", Urgency.BACKGROUND), ("young", Urgency.BACKGROUND)):
        await work.submit(name, urgency)
    await work.submit("file", Urgency.FOCUSED)
    await work.end("file")
    await work.settle()
    assert work.log == ["open", "old", "young", "file", "young"]
    for name in ("open", "old", "young"):
        await work.end(name)


@pytest.mark.asyncio
async def test_each_displaced_one_makes_place_for_one():
    work = Work(places=2)
    await work.submit("x", Urgency.BACKGROUND)
    await work.submit("y", Urgency.BACKGROUND)
    await work.submit("a", Urgency.FOCUSED)
    assert work.log == ["x", "y", "a"]
    work.turns.reconsider()
    await work.settle()
    assert not work.tasks["x"].done()
    assert work.log == ["x", "y", "a"]
    for name in ("a", "x", "y"):
        await work.end(name)


@pytest.mark.asyncio
async def test_focus_moves():
    """What becomes urgent while it waits displaces what no longer is."""
    work = Work()
    await work.submit("a", Urgency.FOCUSED)
    await work.submit("b", Urgency.OPEN)
    work.urgencies.update(a=Urgency.OPEN, b=Urgency.FOCUSED)
    work.turns.reconsider()
    await work.settle()
    assert work.log == ["a", "b"]
    await work.end("b")
    await work.settle()
    assert work.log == ["a", "b", "a"]
    await work.end("a")


@pytest.mark.asyncio
@pytest.mark.parametrize("running", [True, False])
async def test_cancelled_work_leaves_its_place(running):
    work = Work()
    await work.submit("a", Urgency.FOCUSED)
    await work.submit("b", Urgency.FOCUSED)
    await work.submit("c", Urgency.FOCUSED)
    cancelled = work.tasks["a" if running else "b"]
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await work.settle()
    assert work.log == (["a", "b"] if running else ["a"])
    for name in ("b", "c") if running else ("a", "c"):
        await work.end(name)


@pytest.mark.asyncio
async def test_displaced_and_then_cancelled():
    work = Work()
    await work.submit("warm", Urgency.BACKGROUND)
    await work.submit("file", Urgency.FOCUSED)
    work.tasks["warm"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await work.tasks["warm"]
    await work.end("file")
    assert work.log == ["warm", "file"]


@pytest.mark.asyncio
async def test_failures_pass_on_and_free_the_place():
    turns = Turns(1)

    async def fail() -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await turns.run(lambda: 0, fail)


@pytest.mark.asyncio
async def test_admitted_and_cancelled_at_once():
    """Cancelled after its turn came and before it could begin."""
    work = Work()
    await work.submit("a", Urgency.FOCUSED)
    await work.submit("b", Urgency.FOCUSED)
    await work.submit("c", Urgency.FOCUSED)
    work.ends["a"].set()
    await asyncio.sleep(0)
    work.tasks["b"].cancel()
    await work.settle()
    assert work.tasks["b"].cancelled()
    assert work.log[-1] in ("b", "c")
    assert await work.end("c") == "c done"


@pytest.mark.asyncio
async def test_nothing_idle_runs_while_the_person_types(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turns, "REST_SECONDS", 0.2)
    work = Work(places=2)
    await work.submit("proof", Urgency.IDLE)
    await work.submit("warm", Urgency.BACKGROUND)
    for _ in range(3):  # each keystroke begins the pause anew
        work.turns.typed()
        await asyncio.sleep(0.1)
    assert not work.tasks["proof"].done()
    await work.submit("file", Urgency.FOCUSED)
    assert work.log == ["proof", "warm", "file"]
    assert await work.end("warm") == "warm done"
    await work.submit("last", Urgency.LAST)
    assert work.log == ["proof", "warm", "file"]
    await asyncio.sleep(0.3)
    assert work.log == ["proof", "warm", "file", "proof"]
    await work.end("proof")
    await work.settle()
    assert work.log[-1] == "last"
    for name in ("file", "last"):
        await work.end(name)
