"""Whether ranks communicate alike, before they do: a graph that is new on one rank is compared with what the others run.

Each rank tells the store of its process group, a few times a second from a thread of its own, how many graphs with collectives it
has started on each group, and how the last one communicates. Before a new graph runs for the first time, its rank waits until the
others have started as many, and compares. They may run a graph that they have had for long, if that communicates alike: sizes of
batches differ between ranks. A rank that starts none is not waited for longer than a while: it may run eagerly. Where they
differ, every rank gets an error that says how: the one that finds it notes it in the store and leaves its groups, which ends
what the others wait for. A rank that no longer tells anything is gone.

Nothing is asked in calls of graphs that have run before.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import torch_private

_TELL = 0.25  # seconds between what a rank tells
_GONE = 20.0  # seconds of silence after which a rank is gone
_PATIENCE = 25.0  # seconds for a rank that starts no such graph
_FAILED = "fuselens/failed"


def told(name: str, of: str, *rest: object) -> str:
    """A collective in a few words: ``all_reduce(float32 [4], sum)``."""
    return f"{name}({', '.join([of, *map(str, rest)])})"


def difference(rank: int, about: str, other: int, others: str) -> str:
    """What two ranks would do, where that is not the same."""
    return f"rank {rank} would do {about or 'nothing'}, and rank {other} {others or 'nothing'}"


class RanksDiffer(Exception):
    """Ranks would not communicate alike, or one of them is gone."""


@dataclass(slots=True)
class _Group:
    ranks: tuple[int, ...]
    started: int = 0
    about: str = ""


class Ranks:
    """What this process tells of itself, and knows of the others."""

    def __init__(self, store: Any, group: Any) -> None:
        self._store, self._group, self._rank = store, group, group.rank()
        self._groups: dict[str, _Group] = {}
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._beat = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fuselens-ranks", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def started(self, group: str, about: str) -> None:
        """A graph that has run before starts again."""
        found = self._groups[group]
        found.started, found.about = found.started + 1, about

    def agree(self, group: str, ranks: Iterable[int], about: str, compiled: bool) -> None:
        """A new graph is about to communicate on a group; ``compiled``: in a way that only ranks do which compile it, too. Raises
        RanksDiffer."""
        found = self._groups.setdefault(group, _Group(tuple(ranks)))
        self.started(group, about)
        self._tell()
        heard: dict[int, tuple[int, float]] = {}
        for rank in found.ranks:
            until = time.monotonic() + _PATIENCE
            while rank != self._rank and not self._alike(group, rank, found, heard):
                if time.monotonic() > until:
                    if compiled:
                        raise self._fail(difference(self._rank, about, rank, "no compiled graph"))
                    break
                time.sleep(0.02)

    def _alike(self, group: str, rank: int, mine: _Group, heard: dict[int, tuple[int, float]]) -> bool:
        """Whether a rank has started as many graphs, the last of which communicates as ours."""
        failed = self.failed()
        if failed:
            raise RanksDiffer(failed)
        told = self._asked(f"fuselens/{rank}")
        if told is None:
            return False
        beat, groups = json.loads(told)
        if heard.setdefault(rank, (beat, time.monotonic()))[0] != beat:
            heard[rank] = beat, time.monotonic()
        elif time.monotonic() - heard[rank][1] > _GONE:
            raise self._fail(f"rank {rank} is gone: it has told nothing for {_GONE:.0f} s")
        started, about = groups.get(group, (0, ""))
        if started < mine.started:
            return False
        if started == mine.started and about != mine.about:
            differ = difference(self._rank, mine.about, rank, about)
            raise self._fail(f"{differ}, as call {started} of a graph on group {group}")
        return True

    def _fail(self, why: str) -> RanksDiffer:
        with self._asking:
            self._store.set(_FAILED, why)
        torch_private.leave_groups()
        return RanksDiffer(why)

    def failed(self) -> str:
        """Why ranks were found to differ; "" where they were not."""
        return self._asked(_FAILED) or ""

    def _asked(self, key: str) -> str | None:
        with self._asking:
            try:
                return self._store.get(key).decode() if self._store.check([key]) else None
            except Exception as error:
                raise RanksDiffer(f"the store of the process group is gone: {error}") from error

    def _tell(self) -> None:
        with self._lock:
            self._beat += 1
            told = json.dumps([self._beat, {name: [g.started, g.about] for name, g in self._groups.items()}])
        with self._asking:
            self._store.set(f"fuselens/{self._rank}", told)

    def _run(self) -> None:
        while not self._ending.wait(_TELL) and torch_private.group_now() is self._group:
            try:
                self._tell()
            except Exception:  # noqa: BLE001 - the group is gone, and with it what this is for
                return

    def _end(self) -> None:
        """A thread that an ending interpreter meets in a call of C++ makes the process abort."""
        self._ending.set()
        self._thread.join(5)


_known: list[tuple[Any, Ranks]] = []
_making = threading.Lock()


def ranks() -> Ranks | None:
    """That of the default process group; None where its store cannot be asked by a thread beside its own."""
    group = torch_private.group_now()
    with _making:
        if not _known or _known[0][0] is not group:
            store = torch_private.store_connection()
            if store is None or group is None:
                return None
            _known[:] = [(group, Ranks(store, group))]
        return _known[0][1]


def why_failed(others: Ranks | None) -> str:
    """What another rank has found, where that is why communication ended."""
    try:
        return others.failed() if others is not None else ""
    except RanksDiffer as error:
        return str(error)
