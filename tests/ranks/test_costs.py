"""How long collectives take, and what they move, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from fuselens.config import Config, link_of, mesh_of
from fuselens.ranks.costs import Link, Network, sent_and_received

NETWORK = Network(4, Link(100e9, 2e-6), Link(10e9, 10e-6))  # hosts of four
HOST, PAIR, ACROSS = range(4), (0, 4), range(8)
MB = 10**6


@pytest.mark.parametrize(
    ("name", "size", "ranks", "microseconds"),
    [
        (
            "all_reduce",
            100 * MB,
            HOST,
            2 * (3 * 2 + 0.75 * 1000),
        ),  # a ring: three steps of 2 µs, 75 MB at 100 GB/s, twice
        ("all_reduce", 0, HOST, 2 * 2 * 2),  # a tree: two levels, up and down
        (
            "all_reduce",
            100 * MB,
            ACROSS,
            2 * (6 * 2 + 1 * 10 + 7 / 8 * 10000),
        ),  # seven steps, one between hosts, at 10 GB/s
        ("all_reduce", 0, ACROSS, 2 * (2 * 2 + 1 * 10)),  # two levels of a host, one between
        ("all_reduce", 10 * MB, PAIR, 2 * (10 + 500)),
        ("all_gather", 100 * MB, HOST, 3 * 2 + 750),
        ("reduce_scatter", 100 * MB, ACROSS, 6 * 2 + 10 + 8750),
        ("all_to_all", 80 * MB, HOST, 3 * (2 + 200)),
        ("all_to_all", 80 * MB, ACROSS, 3 * (2 + 100) + 4 * (10 + 1000)),  # 10 MB for each: 3 ranks near, 4 far
        ("broadcast", 100 * MB, HOST, 3 * 2 + 1000),
        ("broadcast", 0, range(16), 2 * 2 + 2 * 10),  # a tree beats the ring
        ("gather", 100 * MB, HOST, 2 * 2 + 750),
        ("barrier", 0, ACROSS, 2 * 2 + 10),
        ("send", 1 * MB, (0, 1), 2 + 10),
        ("send", 1 * MB, PAIR, 10 + 100),
        ("all_reduce", 100 * MB, (3,), 0),
    ],
)
def test_seconds(name: str, size: int, ranks: range, microseconds: float) -> None:
    assert NETWORK.seconds(name, size, ranks) == pytest.approx(microseconds * 1e-6)


@pytest.mark.parametrize(
    ("name", "root", "expected"),
    [
        ("all_reduce", False, (1400, 1400)),
        ("all_gather", False, (700, 700)),
        ("reduce_scatter", False, (700, 700)),
        ("all_to_all", False, (700, 700)),
        ("broadcast", True, (800, 0)),
        ("broadcast", False, (800, 800)),
        ("gather", True, (0, 700)),
        ("gather", False, (100, 0)),
        ("scatter", True, (700, 0)),
        ("scatter", False, (0, 100)),
        ("send", False, (800, 0)),
        ("recv", False, (0, 800)),
        ("barrier", False, (0, 0)),
    ],
)
def test_bytes_of_a_rank(name: str, root: bool, expected: tuple[int, int]) -> None:
    assert sent_and_received(name, 800, 8, root) == expected
    assert sent_and_received(name, 800, 1, root) == (0, 0)


def test_links_and_meshes_are_read() -> None:
    assert link_of("450 GB/s, 3.4 us") == (450e9, pytest.approx(3.4e-6))
    assert link_of("25MB/s,1ms") == (25e6, pytest.approx(1e-3))
    assert mesh_of("data=8, tensor=4") == {"data": 8, "tensor": 4}
    assert Config(mesh="data=8,tensor=4").world_size == 32
    assert Network.of(Config()).between == Link(50e9, pytest.approx(14e-6))


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "data=8,tensor"}, {"mesh": "data=0"}, {"mesh": "data=2,data=2"}, {"ranks": 3, "mesh": "data=8"}, {"ranks": -1},
        {"host_link": "fast"}, {"network_link": "0 GB/s, 1 us"}, {"ranks_per_host": 0},
    ],
)  # fmt: skip
def test_others_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Config(**options)  # type: ignore[arg-type]
