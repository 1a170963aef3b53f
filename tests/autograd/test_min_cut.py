"""Minimum cuts by contraction against networkx on whole networks."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from fuselens.autograd.min_cut import INFINITE, SINK, SOURCE, Unbounded, _Network, sink_side

Edge = tuple[int, int, float]


def reference(edges: list[Edge], vertices: int) -> list[bool]:
    """Sides by networkx: of the minimum cuts, the one nearest to the sink."""
    flow = nx.DiGraph()
    flow.add_nodes_from(range(vertices))
    total: dict[tuple[int, int], float] = {}
    for u, v, capacity in edges:
        if u != v:
            total[u, v] = total.get((u, v), 0) + capacity
    for (u, v), capacity in total.items():
        if capacity == INFINITE:
            flow.add_edge(u, v)
        else:
            flow.add_edge(u, v, capacity=capacity)
    _, (_, beyond) = nx.minimum_cut(flow, SOURCE, SINK)
    return [v in beyond for v in range(vertices)]


def cut(edges: list[Edge], sides: list[bool]) -> set[tuple[int, int]]:
    return {(u, v) for u, v, _ in edges if u != SINK and v != SOURCE and not sides[u] and sides[v]}


capacities = st.sampled_from([1, 2, 3, 4, 5, 8, INFINITE])
networks = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), capacities), min_size=1, max_size=30),
        st.just(n),
    )
)


@settings(deadline=None, derandomize=True)
@given(networks)
def test_the_same_edges_are_cut(network: tuple[list[Edge], int]) -> None:
    edges, vertices = network
    try:
        expected = reference(edges, vertices)
    except nx.NetworkXUnbounded:
        expected = None
    try:
        found = sink_side(edges, vertices)
    except Unbounded:
        found = None
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert cut(edges, found) == cut(edges, expected)


def test_capacities_beyond_what_floats_hold_exactly() -> None:
    big = 2**60
    for one, other, expected in ((big + 1, big, (2, SINK)), (big, big + 1, (SOURCE, 2))):
        edges: list[Edge] = [(SOURCE, 2, one), (2, SINK, other)]
        assert cut(edges, sink_side(edges, 3)) == {expected}


def test_chains_and_trees_need_no_flow() -> None:
    length = 20_000
    chain: list[Edge] = [(SOURCE, 2, INFINITE), (length, SINK, INFINITE)]
    chain += [(v, v + 1, 1 + v * 7919 % 1009) for v in range(2, length)]
    tree: list[Edge] = [(2, SINK, 9), (3, SINK, 9)]
    tree += [(v, v // 2, 1 + v % 5) for v in range(4, length)]
    tree += [(SOURCE, v, INFINITE) for v in range(length // 2, length)]
    for edges in (chain, tree):
        network = _Network(length + 1)
        for edge in edges:
            network.add(*edge)
        network.contract()
        assert network.parts() == []
