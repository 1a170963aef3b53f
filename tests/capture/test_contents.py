"""Small tensors of integers whose numbers the program reads: guarded, known while tracing, and never out of date."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(7))
GRID = torch.tensor([[1, 2, 3], [2, 4, 4]])


def listed(x: Tensor, grid: Tensor) -> Any:
    total = 0
    for t, h, w in grid.tolist():
        total += t * h * w
    return x * total, grid.tolist()


def one_number(x: Tensor, grid: Tensor) -> Any:
    n = (grid[:, 1] * grid[:, 2]).max().item()
    return x[: int(grid[0, 0]) + 1] * n, int(grid.sum()), float(grid[1, 2])


def branches(x: Tensor, grid: Tensor) -> Any:
    if (grid[:, 0] == 1).all():
        return x.sin()
    return x.cos() if grid[0, 1] > 1 and not (grid < 0).any() else x


def repeated(x: Tensor, grid: Tensor) -> Any:
    counts = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(0)
    rows = x[:2].repeat_interleave(grid[:, 0] + 1, dim=0)
    return F.pad(counts, (1, 0)), rows, torch.repeat_interleave(x, grid[0, 1], dim=1)


def sizes(x: Tensor, grid: Tensor) -> Any:
    h, w = grid[0, 1], grid[0, 2]
    made = torch.arange(h), torch.zeros(h, w), x[: grid[0, 1]], x.repeat(h, 1), torch.full((2,), 1) * w
    return *made, F.pad(x, (0, int(w))), x.view(h, -1)


def places(x: Tensor, grid: Tensor) -> Any:
    mask = grid[:, 0] > 1
    both = torch.stack([mask, ~mask, mask], dim=1)
    return (
        x[:2][mask],
        x.view(2, 3, 12)[both],
        torch.nonzero(mask),
        grid[mask],
        x.view(2, 6, 6)[mask, 1:3],
        torch.where(both),
    )


def windows(x: Tensor, grid: Tensor) -> Any:
    index = F.pad(torch.arange(10).reshape(2, 5), (0, int(grid[0, 2])), value=-100).reshape(-1)
    ends = grid.prod(-1).cumsum(0).tolist()
    return torch.split(x, [ends[0] % 7, 12 - ends[0] % 7], dim=0), index[index != -100], torch.unique(grid)


def indices(x: Tensor, grid: Tensor) -> Any:
    rows, n = [x, x + 1, x + 2, x + 3], grid[0, 1]
    made = [row * i for i, row in zip(range(n), rows, strict=False)]
    made += [x[n], x[n, grid[0, 0]], x[0, n:], x.t()[grid[0, 0], 2:]]
    places = torch.tensor([[grid[0, 0], n], [n + 1, 7]]), max(n, grid[0, 2]), min(grid[1]), hex(n)
    return rows[n], rows[:n], made, [t * h for t, h, w in grid], places


def filled(x: Tensor, grid: Tensor) -> Any:
    """What is made here may be written to: in place, by assignments, through views, and between two reads."""
    ids, first = torch.zeros(2, 4, dtype=torch.int64), grid[:, 0] + 0
    before = ids.sum().item()
    ids[0, : grid[0, 1]] = grid[0, 0]
    middle = ids.sum().item(), ids.tolist()
    view = ids[1]
    view += torch.arange(4) * grid[1, 0]
    first.mul_(2).add_(1)
    copy = ids.clone()
    ids.zero_()
    return (
        before,
        middle,
        copy.max().item(),
        ids.tolist(),
        first.tolist(),
        x[view] * copy.sum().item(),
        torch.tensor([first[0], 3]),
    )


def counted(x: Tensor, grid: Tensor) -> Any:
    """What was read before it was written to is made anew for each read."""
    ids, found = torch.zeros(3, dtype=torch.int64) + grid[0, 0], []
    for _ in range(4):
        found.append(ids.sum().item())
        ids += 1
        ids[1:].mul_(2)
    return x, found, ids.tolist()


PROGRAMS = [counted, filled, indices, listed, one_number, branches, repeated, sizes, places, windows]


def agree(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            agree(g, w)
    elif isinstance(wanted, Tensor):
        assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
        torch.testing.assert_close(got, wanted)
    else:
        assert got == wanted


def graphs(compiled: Any) -> int:
    return len(compiled.__fuselens__.recorder.report.graphs)


def said(compiled: Any, code: str) -> list[str]:
    report = compiled.__fuselens__.recorder.report
    return [d.message for d in (*report.breaks, *report.diagnostics) if d.code == code]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("backend", ["eager", "fuselens"])
def test_what_is_read_is_known(program: Callable[..., Any], backend: str) -> None:
    compiled = fuselens.compile(program, backend=backend)
    for _ in range(2):
        agree(compiled(X, GRID), program(X, GRID))
    assert graphs(compiled) == 1
    assert not said(compiled, "FL102") and not said(compiled, "FL108") and not said(compiled, "FL101")
    assert said(compiled, "FL203") == ["`grid` was specialised to what it holds, [[1, 2, 3], [2, 4, 4]]"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_other_numbers_give_others(program: Callable[..., Any]) -> None:
    compiled = fuselens.compile(program, backend="eager")
    others = [
        GRID,
        torch.tensor([[1, 2, 3], [1, 4, 4]]),
        torch.tensor([[2, 3, 2], [3, 1, 4]]),
        torch.tensor([[3, 1, 1], [1, 4, 2]]),
    ]
    for grid in (*others, *others):
        agree(compiled(X, grid), program(X, grid))


def test_numbers_that_change_break_the_graph_from_then_on() -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        return x * n.item()

    compiled = fuselens.compile(program, backend="eager")
    for k in range(20):
        agree(compiled(X, torch.tensor(k)), X * k)
    assert len(said(compiled, "FL203")) == 1 and len(said(compiled, "FL102")) == 1
    assert not said(compiled, "FL202")


def test_a_change_in_place_is_seen() -> None:
    grid = GRID.clone()
    compiled = fuselens.compile(listed, backend="eager")
    agree(compiled(X, grid), listed(X, grid))
    grid[0, 0] = 5
    agree(compiled(X, grid), listed(X, grid))


def written_itself(x: Tensor, n: Tensor) -> Any:
    n.add_(1)
    return x * n.sum().item()


def written_through_a_view(x: Tensor, n: Tensor) -> Any:
    n[:].mul_(2)
    return x * n.sum().item()


def written_after(x: Tensor, n: Tensor) -> Any:
    before = n.sum().item()
    n += 3
    return x * before, n.tolist()


def another_is_written(x: Tensor, n: Tensor, other: Tensor) -> Any:
    other += 1
    return x * n.sum().item()


def a_result_is_written(x: Tensor, n: Tensor) -> Any:
    m = n + 1
    view = m[:1]
    view.zero_()
    return x * m.sum().item()


def a_result_is_written_from_data(x: Tensor, n: Tensor) -> Any:
    m = n + 1
    m[0] = x[0, 0].abs().long() + 7
    k = n.clone()
    k[n > 1] = 5
    return x * m.sum().item(), k.tolist()


def an_array_is_written(x: Tensor, n: Tensor) -> Any:
    a = n.numpy()
    a[0] = 9
    return x * n.sum().item()


@pytest.mark.parametrize(
    "program",
    [
        written_itself,
        written_through_a_view,
        written_after,
        a_result_is_written,
        a_result_is_written_from_data,
        an_array_is_written,
    ],
    ids=lambda p: p.__name__,
)
@pytest.mark.parametrize("inference", [False, True])
def test_writes_are_seen(program: Callable[..., Any], inference: bool) -> None:
    compiled = fuselens.compile(program, backend="eager")
    with torch.inference_mode(inference):
        mine, theirs = torch.tensor([1, 2]), torch.tensor([1, 2])
        for _ in range(3):
            agree(compiled(X, mine), program(X, theirs))
            agree(mine, theirs)


def test_an_argument_may_be_another_one() -> None:
    compiled = fuselens.compile(another_is_written, backend="eager")
    for same in (False, True, False, True):
        mine, theirs = torch.tensor([1, 2]), torch.tensor([1, 2])
        others = (mine[:], theirs[:]) if same else (torch.tensor([0, 0]), torch.tensor([0, 0]))
        agree(compiled(X, mine, others[0]), another_is_written(X, theirs, others[1]))


def test_random_numbers_are_drawn_in_the_graph() -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        drawn = torch.randint(0, 1000, (2,)) + n
        return x * drawn.sum().item()

    compiled = fuselens.compile(program, backend="eager")
    for k in range(3):
        torch.manual_seed(k)
        got = compiled(X, torch.tensor([1, 2]))
        after = torch.rand(1)
        torch.manual_seed(k)
        agree(got, program(X, torch.tensor([1, 2])))
        agree(after, torch.rand(1))


@torch.library.custom_op("tests_contents::count", mutates_args={"into"})
def count_into(into: Tensor) -> None:
    into += 1


def test_an_operator_of_the_program_may_write() -> None:
    def program(x: Tensor) -> Tensor:
        n = torch.ones(2, dtype=torch.int64)
        count_into(n)
        return x * n.sum().item()

    compiled = fuselens.compile(program, backend="eager")
    for _ in range(2):
        agree(compiled(X), program(X))


def test_what_computed_decides_is_not_guarded() -> None:
    """Not floats, not large ones, and not what a graph before gave."""

    def program(x: Tensor, many: Tensor) -> Any:
        big = many.sum().item()
        flags = (x > 0).any(0)
        print(end="")
        return x[:, flags] * big * x.sum().item()

    compiled = fuselens.compile(program, backend="eager")
    many = torch.arange(100)
    agree(compiled(X, many), program(X, many))
    assert not said(compiled, "FL203") and len(said(compiled, "FL102")) == 2 and len(said(compiled, "FL108")) == 1


def test_sizes_that_vary_are_not_fixed_by_what_is_read() -> None:
    compiled = fuselens.compile(listed, backend="eager")
    for rows in (1, 2, 3, 4):
        for n in (3, 5, 6):
            grid = torch.ones(rows, 3, dtype=torch.int64)
            agree(compiled(X[:n], grid), listed(X[:n], grid))


def test_a_whole_graph_keeps_numbers_that_change_or_compiles_for_each() -> None:
    """Where a loop needs the number it cannot be kept."""
    kept = fuselens.compile(lambda x, n: x * n.item(), fullgraph=True, backend="eager")
    for k in range(5):
        agree(kept(X, torch.tensor(k)), X * k)
    assert graphs(kept) == 1

    def program(x: Tensor, n: Tensor) -> Tensor:
        for _ in range(n.item()):
            x = x + 1
        return x

    looped = fuselens.compile(program, fullgraph=True, backend="eager")
    for k in (2, 3, 2, 4, 3):
        agree(looped(X, torch.tensor(k)), X + k)
    assert graphs(looped) == 3


class Schedule:
    def __init__(self) -> None:
        self.times = torch.tensor([4.0, 2.0, -0.0])
        self.scales = torch.linspace(0, 1, 1000)

    def step(self, x: Tensor, time: Tensor) -> Tensor:
        at = (self.times == time).nonzero()[0].item()
        return x * self.times[at] if self.times[at] > 1 else x - self.scales[at]


def test_a_table_of_an_object() -> None:
    schedule = Schedule()

    def program(x: Tensor, scale: Tensor) -> Tensor:
        for time in schedule.times:
            x = schedule.step(x, time)
        return x * scale

    compiled = fuselens.compile(program, backend="eager")
    for k in range(3):
        agree(compiled(X, torch.tensor(0.5 + k)), program(X, torch.tensor(0.5 + k)))
    assert graphs(compiled) == 1 and not said(compiled, "FL101") and not said(compiled, "FL108")
    for value in (0.0, float("nan"), float("nan"), 3.0):
        schedule.times[2] = value
        if value == value:
            agree(compiled(X, torch.tensor(2.0)), program(X, torch.tensor(2.0)))
        else:
            with pytest.raises(IndexError):
                compiled(X, torch.tensor(2.0))


class Observer(nn.Module):
    """A flag in a buffer, as modules for quantisation have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("on", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.on[0] == 1:
            self.seen.copy_(torch.maximum(self.seen, x.detach().max()))
        return x.clamp(max=1.0)


def test_a_flag_of_a_module() -> None:
    module, plain = nn.Sequential(Observer(), nn.ReLU(), Observer()), nn.Sequential(Observer(), nn.ReLU(), Observer())
    compiled = fuselens.compile(module)
    for on in (1, 1, 0, 1):
        for net in (module, plain):
            net[2].on[0] = on
        x = X + on
        agree(compiled(x), plain(x))
        agree(module[0].seen, plain[0].seen)
        agree(module[2].seen, plain[2].seen)


def test_numbers_that_stay_in_the_graph_are_not_guarded() -> None:
    compiled = fuselens.compile(lambda x, n: x * n.item(), backend="eager", options={"capture_scalar_outputs": True})
    for k in (2, 3, 4):
        agree(compiled(X, torch.tensor(k)), X * k)
    assert graphs(compiled) == 1 and not said(compiled, "FL203")


def test_what_is_an_index() -> None:
    def program(x: Tensor, n: Tensor) -> Any:
        return [x, x + 1][n], operator.index(n), range(n)

    for n in (torch.tensor(True), torch.tensor([False])):
        agree(fuselens.compile(program, backend="eager")(X, n), program(X, n))
    for n in (torch.tensor(1.0), torch.tensor([1, 1])):
        with pytest.raises(TypeError, match="index"):
            fuselens.compile(program, backend="eager")(X, n)


def test_under_a_transform_and_a_mode() -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: row * n.sum().item())(x)

    compiled = fuselens.compile(program, backend="eager")
    agree(compiled(X, GRID), program(X, GRID))
    with torch.device("cpu"):
        agree(fuselens.compile(listed, backend="eager")(X, GRID), listed(X, GRID))


def test_an_artifact_serves_the_numbers_that_it_was_made_for(tmp_path: Path) -> None:
    path = tmp_path / "listed.fuse"
    fuselens.aot_compile(listed, (X, GRID), to=path)
    loaded = fuselens.load(path)
    agree(loaded(X, GRID.clone()), listed(X, GRID))
    with pytest.raises(fuselens.ArtifactError, match="grid: it holds other numbers"):
        loaded(X, GRID + 1)
