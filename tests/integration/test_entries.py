"""What is kept of graphs is plain data: read back as it was, and nothing that an entry names is run."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fuselens.pipeline.entries import Form, NotStorable


@dataclass(frozen=True, slots=True)
class Point:
    x: Any
    y: Any = None


@dataclass
class Alone:
    only: Any


class Pair(NamedTuple):
    a: Any
    b: Any


FORM = Form((Point, Alone, Pair))
VALUES = [
    None, True, 0, 1, 1.0, -0.0, 0.0, math.inf, 1 << 80, "", "ü\ud800", b"\0\xff", 3 - 4j, (), (1, True, 1.0), [[], []], {},
    {"a": 1, ("b", 2): [3], None: {}}, torch.Size([2, 3]), torch.float8_e4m3fn, torch.device("cuda", 1), torch.strided,
    torch.channels_last, int, torch.dtype, type(None), Point(1, [Point(2)]), Alone("x"), Pair((1,), {"k": b"v"}),
    (Point(1), Point(True), Point(1.0), Point(1)), [(-1, 0), (~0, 1)],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_read_as_they_were(value: Any) -> None:
    again = FORM.read(FORM.written(value))
    assert repr(again) == repr(value)  # which tells 1 from True, and -0.0 from 0.0
    assert type(again) is type(value)


def test_one_object_stays_one_and_equal_lists_stay_two() -> None:
    shared, span = [1], Point("file", 1)
    first, second, third, *spans = FORM.read(FORM.written([shared, [1], shared, span, Point("file", 1)]))
    assert first is third
    assert first is not second
    assert spans[0] is spans[1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(), torch.tensor(2.5), torch.empty(0, 3), torch.ones(3, dtype=torch.bool)[::2],
        torch.tensor([1.5]).expand(2, 3), torch.tensor([1 + 2j]), torch.arange(9, dtype=torch.uint8)[3:],
        torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
    ],
    ids=repr,
)  # fmt: skip
def test_constants_are_read_as_they_were(tensor: torch.Tensor) -> None:
    (again,) = FORM.read(FORM.written([tensor]))
    assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(again.nan_to_num(7), tensor.nan_to_num(7))


class Other:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Other(), {1}, [lambda: 1], Other, torch.Tensor, torch.nn.Parameter(torch.ones(1)), torch.ones(1, device="meta"),
        torch.tensor([1j]).conj(), torch.ones(2).to_sparse(), torch.ones(1, requires_grad=True),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_what_is_no_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(NotStorable):
        FORM.written((1, value))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotStorable):
        FORM.written(deep)


class Planted:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    "entry",
    [
        b'[["system"],["x"],[[0,0]]]', b'[["type"],["eval"],[[0,0]]]', b'[["dtype"],["compile"],[[0,0]]]', b"[]", b"{}", b"1",
        b'[["tuple"],[],[[0,5]]]', b'[["tensor","tuple","dtype","device"],["float32","cpu",99,1,""],[[2,0],[3,1],[1,2],[1,3],[0,5,6,7,8,4]]]',
    ],
)  # fmt: skip
def test_other_entries_are_errors(entry: bytes) -> None:
    with pytest.raises(Exception):  # noqa: B017 - the cache takes any for a damaged entry
        FORM.read(entry)


def test_a_planted_pickle_is_not_executed(tmp_path: Path) -> None:
    with pytest.raises(Exception):  # noqa: B017
        FORM.read(pickle.dumps(Planted(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()
