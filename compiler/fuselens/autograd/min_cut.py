"""Minimum cuts of large sparse networks: exact contractions first, maximum flows on what they leave.

Capacities are integers, or infinite. Of several minimum cuts the one nearest to the sink is found, which does not depend on
the order of the edges. Contractions that keep it (in(v) and out(v) are sums of capacities; parallel edges count as one):

- what the source reaches by infinite edges is on its side, and what reaches the sink by them is on the sink's;
- a vertex that no edge enters goes to the sink, and one that no edge leaves to the source;
- v, entered by one edge u → v only, of at least out(v): to cut v's own edges is no dearer, so v goes where u does;
- u, left by one edge u → v only, of more than in(u): to cut the edges into u is cheaper, so u goes where v does.

Networks of programs are mostly chains and trees, which these rules use up, and fall into small parts once source and sink are
taken out: the maximum flow of each part is computed on its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

SOURCE, SINK = 0, 1
INFINITE = math.inf


class Unbounded(ValueError):
    """An infinite path leads from the source to the sink."""


def sink_side(edges: Iterable[tuple[int, int, float]], vertices: int) -> list[bool]:
    """Which of the vertices 0 … ``vertices`` - 1 a minimum cut of the (from, to, capacity) ``edges`` puts on the sink's side."""
    network = _Network(vertices)
    for u, v, capacity in edges:
        network.add(u, v, capacity)
    network.contract()
    if network.leaving[SOURCE].get(SINK) == INFINITE:
        raise Unbounded("an infinite path leads from the source to the sink")
    for part in network.parts():
        _solve(network, part)
    return [network.find(v) == SINK for v in range(vertices)]


class _Network:
    """Edges by both ends, and which vertices have become one."""

    def __init__(self, vertices: int) -> None:
        self.leaving: list[dict[int, float]] = [{} for _ in range(vertices)]
        self.entering: list[dict[int, float]] = [{} for _ in range(vertices)]
        self.representative = list(range(vertices))

    def add(self, u: int, v: int, capacity: float) -> None:
        if u != v and v != SOURCE and u != SINK:
            self.leaving[u][v] = self.entering[v][u] = self.leaving[u].get(v, 0) + capacity

    def find(self, v: int) -> int:
        chain = self.representative
        while chain[v] != v:
            chain[v] = v = chain[chain[v]]
        return v

    def contract(self) -> None:
        """Applies the rules until none does."""
        waiting = list(range(2, len(self.representative)))
        while waiting:
            v = waiting.pop()
            into = self._contracted_into(v) if self.representative[v] == v else None
            if into is not None:
                waiting += self._merge(v, into)

    def _contracted_into(self, v: int) -> int | None:
        entering, leaving = self.entering[v], self.leaving[v]
        if not leaving or entering.get(SOURCE) == INFINITE:
            return SOURCE
        if not entering or leaving.get(SINK) == INFINITE:
            return SINK
        if len(entering) == 1:
            ((u, capacity),) = entering.items()
            if capacity == INFINITE or capacity >= sum(leaving.values()):
                return u
        if len(leaving) == 1:
            ((u, capacity),) = leaving.items()
            if capacity == INFINITE or capacity > sum(entering.values()):
                return u
        return None

    def _merge(self, v: int, into: int) -> list[int]:
        """Makes ``v`` one with ``into``. The vertices to look at again."""
        self.representative[v] = into
        entering, leaving, self.entering[v], self.leaving[v] = self.entering[v], self.leaving[v], {}, {}
        for u, capacity in entering.items():
            del self.leaving[u][v]
            self.add(u, into, capacity)
        for u, capacity in leaving.items():
            del self.entering[u][v]
            self.add(into, u, capacity)
        return [u for u in (*entering, *leaving, into) if u > SINK]

    def parts(self) -> list[list[int]]:
        """The vertices that are left, those in one list that are connected without source and sink."""
        found: list[list[int]] = []
        seen = {SOURCE, SINK}
        for start, representative in enumerate(self.representative):
            if representative != start or start in seen:
                continue
            part, stack = [], [start]
            seen.add(start)
            while stack:
                v = stack.pop()
                part.append(v)
                near = [u for u in (*self.leaving[v], *self.entering[v]) if u not in seen]
                seen.update(near)
                stack += dict.fromkeys(near)
            found.append(part)
        return found


def _solve(network: _Network, part: list[int]) -> None:
    """Puts each vertex of ``part`` on its side of the cut."""
    left: dict[int, dict[int, float]] = {v: {} for v in (SOURCE, SINK, *part)}  # what each edge can still take
    for v in part:
        edges = [(v, u, c) for u, c in network.leaving[v].items()]
        edges += [(SOURCE, v, network.entering[v][SOURCE])] if SOURCE in network.entering[v] else []
        for u, w, capacity in edges:
            left[u][w] = left[u].get(w, 0) + capacity
            left[w].setdefault(u, 0)
    while SINK in (levels := _levels(left)):
        _fill(left, levels)
    beyond, pending = {SINK}, [SINK]
    while pending:
        v = pending.pop()
        found = [u for u in left[v] if u not in beyond and left[u][v] > 0]
        beyond.update(found)
        pending += found
    for v in part:
        network.representative[v] = SINK if v in beyond else SOURCE


def _levels(left: dict[int, dict[int, float]]) -> dict[int, int]:
    """How many edges that can take something lead from the source to each vertex, at least."""
    levels, reached = {SOURCE: 0}, [SOURCE]
    for u in reached:  # grows
        for v, capacity in left[u].items():
            if capacity > 0 and v not in levels:
                levels[v] = levels[u] + 1
                reached.append(v)
    return levels


def _fill(left: dict[int, dict[int, float]], levels: dict[int, int]) -> None:
    """Sends what can be sent along shortest paths (Dinic): each vertex tries each of its edges once."""
    untried = {v: iter(left[v]) for v in levels}
    path = [SOURCE]
    while path:
        u = path[-1]
        if u == SINK:
            edges = list(itertools.pairwise(path))
            amount = min(left[a][b] for a, b in edges)
            if amount == INFINITE:
                raise Unbounded("an infinite path leads from the source to the sink")
            for a, b in edges:
                left[a][b] -= amount
                left[b][a] += amount
            del path[1 + next(i for i, (a, b) in enumerate(edges) if left[a][b] == 0) :]
            continue
        step = next((v for v in untried[u] if left[u][v] > 0 and levels.get(v) == levels[u] + 1), None)
        if step is None:
            path.pop()
        else:
            path.append(step)
