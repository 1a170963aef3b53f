"""Reads and writes at positions that come from data: values, dtypes, strides and exceptions as eager's, in loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuselens
from fuselens.inputs import comparison

Program = tuple[Callable[..., Any], list[Any]]


def f(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def n(*shape: int, low: int = 0, high: int = 5, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, shape, dtype=dtype)


def b(*shape: int) -> Tensor:
    return torch.rand(shape) > 0.5


def assigned(x: Tensor, index: Any, value: Any) -> Tensor:
    y = x * 2
    y[index] = value
    return y


def number(value: float) -> Tensor:
    return torch.tensor(value)


def numbers() -> dict[str, Program]:
    """Operands without dimensions, which count as vectors of one element."""
    zero = torch.tensor(0)
    return {
        "0-d gather": (lambda x, i: x.gather(0, i) * 2, [number(2.5), zero]),
        "0-d gather of a vector": (lambda x, i: x.gather(0, i), [f(5), torch.tensor(3)]),
        "0-d gather by a vector": (lambda x, i: x.gather(-1, i), [number(2.5), n(3, high=1)]),
        "0-d index_select": (lambda x, i: x.index_select(0, i) + 1, [number(2.5), n(1, high=1)]),
        "0-d scatter": (lambda x, i, v: x.scatter(0, i, v), [number(2.5), zero, number(1.5)]),
        "0-d scatter in a vector": (lambda x, i, v: x.scatter(0, i, v), [f(5), torch.tensor(3), number(1.5)]),
        "0-d scatter a number": (lambda x, i: x.scatter(0, i, 1.5), [number(2.5), zero]),
        "0-d scatter_add": (lambda x, i, v: x.scatter_add(0, i, v), [number(2.5), zero, number(1.5)]),
        "0-d scatter_reduce": (lambda x, i, v: x.scatter_reduce(0, i, v, "mean"), [number(2.5), zero, number(1.5)]),
        "0-d median": (lambda x: x.median(0)[0], [number(2.5)]),
        "0-d index_add": (lambda x, i, v: x.index_add(0, i, v, alpha=2), [number(2.5), zero, number(1.5)]),
        "0-d index_add to a vector": (lambda x, i, v: x.index_add(0, i, v), [f(5), torch.tensor(3), f(1)]),
        "0-d index_copy": (lambda x, i, v: x.index_copy(0, i, v), [number(2.5), zero, number(1.5)]),
        "0-d index_fill": (lambda x, i: x.index_fill(0, i, 3.5), [number(2.5), zero]),
        "0-d index_reduce": (lambda x, i, v: x.index_reduce(0, i, v, "prod"), [number(2.5), zero, number(1.5)]),
        "masked_scatter": (lambda x, m, v: x.masked_scatter(m, v) * 2, [f(5, 40), b(5, 40), f(230)]),
        "masked_scatter of halves": (lambda x, m, v: x.masked_scatter(m, v), [
            f(5, 40, dtype=torch.bfloat16), b(5, 40), f(230, dtype=torch.bfloat16)
        ]),
        "masked_scatter of rows": (lambda x, m, v: x.masked_scatter(m, v.t()), [f(5, 7), b(7), f(8, 7)]),
        "masked_scatter 0-d": (lambda x, m, v: x.masked_scatter(m, v), [number(2.5), torch.tensor(True), f(1)]),
    }  # fmt: skip


def searches() -> dict[str, Program]:
    """Where values belong in sorted sequences."""
    ends = torch.tensor([-1.0, 0.0, 0.0, 1.5, float("nan"), float("nan")])
    return {
        "bucketize": (lambda x, s: torch.bucketize(x.exp(), s), [f(5, 70), f(9).sort()[0]]),
        "bucketize right": (lambda x, s: torch.bucketize(x, s, right=True, out_int32=True), [n(5, 7), n(9).sort()[0]]),
        "bucketize nothing": (lambda x, s: torch.bucketize(x, s), [f(5, 7), f(0)]),
        "bucketize among NaNs": (lambda x, s: torch.bucketize(x, s), [torch.cat([ends, f(9)]), ends]),
        "bucketize a number": (lambda s: torch.bucketize(0.25, s), [f(9).sort()[0]]),
        "searchsorted": (lambda s, x: torch.searchsorted(s, x), [f(3, 65).sort(-1)[0], f(3, 40)]),
        "searchsorted sorter": (
            lambda s, x: torch.searchsorted(s, x, sorter=s.argsort(-1)), [f(3, 65), f(3, 40)]
        ),
        "searchsorted side": (lambda s, x: torch.searchsorted(s, x, side="right"), [n(3, 8).sort(-1)[0], n(3, 4)]),
        "searchsorted columns": (lambda s, x: torch.searchsorted(s.t(), x), [f(8, 3).sort(0)[0], f(3, 4)]),
        "searchsorted in one": (lambda s, x: torch.searchsorted(s, x, right=True), [f(8).sort()[0], f(3, 2, 4)]),
        "searchsorted halves": (lambda s, x: torch.searchsorted(s, x),
                                [f(8, dtype=torch.bfloat16).sort()[0], f(30, dtype=torch.bfloat16)]),
    }  # fmt: skip


def programs() -> dict[str, Program]:
    """Functions with inputs that are in range. ``index`` names are of the last input but those that follow it."""
    i32 = torch.int32
    found: dict[str, Program] = {
        "embedding": (lambda w, i: F.embedding(i, w) * 2, [f(5, 8), n(3, 4)]),
        "embedding i32": (lambda w, i: F.embedding(i, w) * 2, [f(5, 8), n(3, 4, dtype=i32)]),
        "embedding of one": (lambda w, i: F.embedding(i, w), [f(5, 8), torch.tensor(3)]),
        "embedding, layer norm": (lambda w, i: F.layer_norm(F.embedding(i, w).relu(), (24,)), [f(5, 24), n(7)]),
        "embedding transposed": (lambda w, i: F.embedding(i, w), [f(8, 5).t(), n(3, 4)]),
        "index": (lambda x, i: x[i].exp(), [f(5, 8), n(7, low=-5)]),
        "index a middle dimension": (lambda x, i: x[:, i], [f(3, 5, 4), n(7, low=-5)]),
        "index apart": (lambda x, i, j: x[i, :, j], [f(5, 3, 5), n(7, low=-5), n(2, 1, low=-5)]),
        "index together": (lambda x, i, j: x[:, i, j] + 1, [f(3, 5, 5), n(2, 1, low=-5, dtype=i32), n(7, dtype=i32)]),
        "index by a constant": (lambda x: x[:, [0, 2, -1]] * 2, [f(3, 5)]),
        "index what was computed": (lambda x, i: x.exp()[i], [f(5, 8), n(3)]),
        "index twice": (lambda x, i, j: x[i][:, j], [f(5, 5), n(7), n(4, low=-5)]),
        "index out of range for nothing": (lambda x: x[:, [4]] + 1, [f(2, 1, 0)]),
        "index halves": (lambda x, i: x[i], [f(5, 8, dtype=torch.bfloat16), n(7)]),
        "index booleans": (lambda x, i: x[i], [b(5, 8), n(7)]),
        "index views": (lambda x, i: x[1:, ::2].t()[i], [f(6, 9), n(7)]),
        "index along lanes": (lambda x, i: x[i] * 2, [f(50), n(301, low=-50, high=50)]),
        "index_select": (lambda x, i: x.index_select(1, i).neg(), [f(3, 5, 4), n(7)]),
        "gather": (lambda x, i: x.gather(1, i) + 1, [f(4, 5, 3), n(3, 7, 2)]),
        "gather along lanes": (lambda x, i: x.gather(-1, i), [f(4, 50), n(4, 33, high=50)]),
        "gather what was computed": (lambda x, i: x.softmax(-1).gather(1, i), [f(9, 5), n(9, 1)]),
        "gather f16": (lambda x, i: x.gather(0, i), [f(5, 5, dtype=torch.float16), n(7, 5)]),
        "take": (lambda x, i: x.take(i) * 2, [f(5, 5), n(3, 4, low=-25, high=25)]),
        "take transposed": (lambda x, i: x.t().take(i), [f(5, 7), n(3, 4, low=-35, high=35)]),
        "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), [f(4, 5), n(4, 9)]),
        "select": (lambda x, i: x[:, i], [f(4, 5), torch.tensor([2])]),
        "index_put": (lambda x, i, v: x.index_put((i,), v), [f(5, 4), n(7, low=-5), f(7, 4)]),
        "index_put broadcast": (lambda x, i, j, v: x.index_put((i, j), v), [f(5, 5, 4), n(3, 1), n(2), f(4)]),
        "index_put adds": (lambda x, i, v: x.index_put((i,), v, accumulate=True), [f(5, 40), n(27, low=-5), f(27, 40)]),
        "index_put adds integers": (lambda x, i, v: x.index_put((i,), v, accumulate=True),
                                    [n(5, 4), n(7), n(7, 4, low=-9)]),
        "index_put adds halves": (lambda x, i, v: x.index_put((i,), v, accumulate=True),
                                  [f(5, 8, dtype=torch.bfloat16), n(4), f(4, 8, dtype=torch.bfloat16)]),
        "index_put adds numbers": (lambda x, i, v: x.index_put((i,), v, accumulate=True), [f(5), n(900), f(900)]),
        "assign": (lambda x, i, v: assigned(x, i, v), [f(5, 4), n(3), f(4)]),
        "assign columns": (lambda x, i, v: assigned(x, (slice(None), i), v), [f(3, 5, 4), n(2), f(3, 2, 4)]),
        "assign a number": (lambda x, i: assigned(x, i, 1.5), [f(5, 4), n(3)]),
        "assign by mask": (lambda x, m: assigned(x, m, 0.0), [f(5, 4), b(5)]),
        "assign by whole mask": (lambda x, m: assigned(x, m, -1.0), [f(5, 4), b(5, 4)]),
        "put": (lambda x, i, v: x.put(i, v), [f(4, 5), n(3, 2, low=-20, high=20), f(3, 2)]),
        "put of another shape": (lambda x, i, v: x.put(i, v), [f(4, 5), n(3, 2, high=20), f(6)]),
        "put adds": (lambda x, i, v: x.t().put(i, v, accumulate=True), [f(4, 5), n(3, 2, high=20), f(3, 2)]),
        "index_add": (lambda x, i, v: x.index_add(0, i, v.exp(), alpha=2) + 1, [f(5, 40), n(27), f(27, 40)]),
        "index_add columns": (lambda x, i, v: x.index_add(1, i, v), [f(3, 5, 4), n(7, dtype=i32), f(3, 7, 4)]),
        "index_add lanes": (lambda x, i, v: x.index_add(-1, i, v), [f(3, 5), n(37), f(3, 37)]),
        "index_add integers": (lambda x, i, v: x.index_add(0, i, v), [n(5, 4, dtype=torch.int8), n(7),
                                                                    n(7, 4, dtype=torch.int8, high=100)]),
        "index_add booleans": (lambda x, i, v: x.index_add(0, i, v), [b(5, 4), n(7), b(7, 4)]),
        "index_copy": (lambda x, i, v: x.index_copy(0, i, v), [f(5, 40), n(27), f(27, 40)]),
        "index_fill": (lambda x, i: x.index_fill(1, i, 2.5), [f(3, 5, 4), n(2, low=-5)]),
        "index_fill by a tensor": (lambda x, i, v: x.index_fill(0, i, v), [f(5, 4), n(2, low=-5), torch.tensor(2.5)]),
        "index_fill twice by a tensor": (lambda x, i, v: x.index_fill(0, i, v),
                                         [f(5, 4), torch.tensor([0, 3, 0]), torch.tensor(2.5)]),
        "scatter": (lambda x, i, v: x.scatter(1, i, v), [f(4, 5, 3), n(3, 7, 2), f(4, 8, 3)]),
        "scatter a number": (lambda x, i: x.scatter(0, i, 1.5), [f(5, 7), n(3, 6)]),
        "scatter one each": (lambda x, i, v: x.scatter(1, i, v), [f(4, 5), n(4, 1), f(4, 1)]),
        "scatter add": (lambda x, i, v: x.scatter_add(0, i, v.relu()), [f(5, 40), n(27, 40), f(30, 40)]),
        "scatter add rows": (lambda x, i, v: x.scatter_add(1, i, v), [f(4, 5), n(4, 33), f(4, 33)]),
        "scatter add one each": (lambda x, i, v: x.scatter_add(1, i, v), [f(4, 5), n(4, 1), f(4, 1)]),
        "scatter_reduce mean": (lambda x, i, v: x.scatter_reduce(0, i, v, "mean"), [f(5, 4), n(9, 4), f(9, 4)]),
        "scatter_reduce mean of others": (
            lambda x, i, v: x.scatter_reduce(0, i, v, "mean", include_self=False), [f(5, 4), n(9, 4), f(9, 4)]),
        "scatter multiplies": (lambda x, i, v: x.scatter(0, i, v, reduce="multiply"), [f(5, 4), n(9, 4), f(9, 4)]),
        "slice_scatter by steps": (lambda x, v: torch.slice_scatter(x.exp(), v, 1, 1, 9, 3) + 1, [f(4, 10), f(4, 3)]),
        "diagonal_scatter": (lambda x, v: torch.diagonal_scatter(x * 2, v, 1), [f(5, 6), f(5)]),
        "diagonal_scatter below": (lambda x, v: torch.diagonal_scatter(x, v, -1, 0, 2), [f(5, 3, 4), f(3, 4)]),
        "one hot": (lambda i: F.one_hot(i, 5) * 2, [n(4, 3)]),
        "nll_loss": (lambda x, t: F.nll_loss(x, t), [f(8, 5), n(8)]),
        "nll_loss of one": (lambda x, t: F.nll_loss(x, t), [f(5), torch.tensor(3)]),
        "nll_loss weighted": (lambda x, w, t: F.nll_loss(x, t, w, reduction="sum"), [f(8, 5), f(5).abs(), n(8)]),
        "nll_loss none": (lambda x, w, t: F.nll_loss(x, t, w, reduction="none", ignore_index=2),
                          [f(8, 5), f(5).abs(), n(8)]),
        "nll_loss 2d": (lambda x, t: F.nll_loss(x, t, ignore_index=1), [f(2, 5, 3, 4), n(2, 3, 4)]),
        "cross_entropy": (lambda x, t: F.cross_entropy(x, t), [f(8, 5), n(8)]),
        "cross_entropy smooth": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), [f(8, 5), n(8)]),
        "cross_entropy weighted": (lambda x, w, t: F.cross_entropy(x, t, w, label_smoothing=0.1, ignore_index=3),
                                   [f(8, 5), f(5).abs(), n(8)]),
        "cross_entropy 2d": (lambda x, t: F.cross_entropy(x, t), [f(2, 5, 3, 4), n(2, 3, 4)]),
        "cross_entropy halves": (lambda x, t: F.cross_entropy(x, t), [f(8, 5, dtype=torch.bfloat16), n(8)]),
    }  # fmt: skip
    found |= numbers() | searches()
    for kind in ("prod", "mean", "amax", "amin"):
        for include in (True, False):
            found[f"index_reduce {kind} {include}"] = (
                lambda x, i, v, kind=kind, include=include: x.index_reduce(0, i, v, kind, include_self=include),
                [f(5, 4), n(9), f(9, 4)],
            )
    for kind in ("sum", "prod", "amax", "amin"):
        for include in (True, False):
            found[f"scatter_reduce {kind} {include}"] = (
                lambda x, i, v, kind=kind, include=include: x.scatter_reduce(0, i, v, kind, include_self=include),
                [f(5, 4), n(9, 4), f(9, 4)],
            )
    found["scatter_reduce integers"] = (
        lambda x, i, v: x.scatter_reduce(1, i, v, "amax", include_self=False), [n(3, 5), n(3, 9), n(3, 9, low=-9)]
    )  # fmt: skip
    return found


NAMES = list(programs())
EXTERN: dict[str, set[str]] = {}


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        return type(error).__name__, str(error)


def compiled(fn: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[[], set[str]]]:
    """The compiled function, and what of it fell back to operators of ATen."""
    made = fuselens.compile(fn)
    report = made.__fuselens__.recorder.report  # type: ignore[attr-defined]
    return made, lambda: {
        d.subject for g in report.graphs for d in g.decisions if d.code == "FL401" and d.verdict == "fallback"
    }


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_eager(name: str) -> None:
    torch.manual_seed(len(name))
    fn, inputs = programs()[name]
    run, fallbacks = compiled(fn)
    for _ in range(2):
        difference = comparison.differ(fn(*inputs), run(*inputs), name)
        assert difference is None, difference
    assert fallbacks() <= EXTERN.get(name, set())


@pytest.mark.parametrize("name", [m for m in NAMES if "constant" not in m and "mask" not in m])
def test_an_index_out_of_range_raises_what_eager_raises(name: str) -> None:
    torch.manual_seed(len(name))
    fn, inputs = programs()[name]
    run, _ = compiled(fn)
    run(*inputs)
    for k, index in enumerate(inputs):
        if index.is_floating_point() or index.dtype in (torch.bool, torch.int8) or (k == 0 and len(inputs) > 1):
            continue
        if index is inputs[-1] and k == 2 and "integers" in name:  # values, not positions
            continue
        for far in (-10_000, 10_000, int(index.min()) - 60, -1):
            wrong = index.clone()
            wrong.view(-1)[-1] = far
            given = [*inputs[:k], wrong, *inputs[k + 1 :]]
            expected, found = outcome(lambda given=given: fn(*given)), outcome(lambda given=given: run(*given))
            difference = comparison.differ(expected, found, f"{name}, {far}")
            assert difference is None, difference
    difference = comparison.differ(fn(*inputs), run(*inputs), name)  # the flag was reset
    assert difference is None, difference


@pytest.mark.parametrize("name", [m for m in NAMES if "constant" not in m and m != "one hot"])
def test_gradients_agree_with_eager(name: str) -> None:
    torch.manual_seed(len(name))
    fn, inputs = programs()[name]
    wanted = [t for t in inputs if t.is_floating_point()]
    if not wanted:
        pytest.skip("nothing to differentiate")
    if "amax" in name or "amin" in name or "prod" in name or "multiplies" in name:
        pytest.skip("a reduction whose gradient needs no position of its own")
    run, _ = compiled(fn)

    def gradients(call: Callable[..., Any]) -> Any:
        leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs]
        out = call(*leaves)
        return out, torch.autograd.grad(
            out.float().square().sum(), [t for t in leaves if t.requires_grad], allow_unused=True
        )

    outcomes = [outcome(lambda call=call: gradients(call)) for call in (fn, run)]
    difference = comparison.differ(outcomes[0], outcomes[1], name)
    assert difference is None, difference


@pytest.mark.parametrize(
    "name", ["embedding", "index", "gather", "index_add", "scatter add", "cross_entropy", "index_put adds"]
)
def test_sizes_that_vary(name: str) -> None:
    fn, _ = programs()[name]
    run = fuselens.compile(fn, dynamic=True)
    for rows, columns, picked in ((5, 8, 7), (9, 16, 4), (6, 33, 50), (5, 8, 0)):
        x, i = f(rows, columns), n(picked, high=rows)
        given = {
            "gather": [f(rows, columns, 3), n(rows, picked, 3, high=columns)],
            "cross_entropy": [f(max(picked, 1), columns), n(max(picked, 1), high=columns)],
            "scatter add": [x, n(picked, columns, high=rows), f(picked, columns)],
        }.get(name, [x, i, f(picked, columns)] if name.startswith("index_") else [x, i])
        difference = comparison.differ(fn(*given), run(*given), f"{name} {rows} {columns} {picked}")
        assert difference is None, difference
        if picked:
            position = 1
            given[position] = given[position].clone()
            given[position].view(-1)[0] = 99
            difference = comparison.differ(
                outcome(lambda given=given: fn(*given)), outcome(lambda given=given: run(*given)), name
            )
            assert difference is None, difference


def test_nothing_is_indexed() -> None:
    for fn, inputs in (
        (lambda x, i: x[i], [f(0, 4), n(0)]),
        (lambda x, i: x[i], [f(5, 4), n(0)]),
        (lambda x, i: x[i], [f(5, 0), n(3)]),
        (lambda x, i, v: x.index_add(0, i, v), [f(5, 4), n(0), f(0, 4)]),
        (lambda x, i: x[i], [f(0, 4), n(3)]),
    ):  # fmt: skip
        run = fuselens.compile(fn)
        difference = comparison.differ(outcome(lambda: fn(*inputs)), outcome(lambda: run(*inputs)), "nothing")
        assert difference is None, difference


def test_a_training_step_that_raises_can_be_repeated() -> None:
    w = torch.randn(5, 8, requires_grad=True)

    def step(w: Tensor, i: Tensor) -> Tensor:
        return F.embedding(i, w).square().sum()

    run = fuselens.compile(step)
    for wrong in (False, True, False):
        i = n(7) + (5 if wrong else 0)
        results = [outcome(lambda call=call: torch.autograd.grad(call(w, i), w)) for call in (step, run)]
        difference = comparison.differ(results[0], results[1], "step")
        assert difference is None, difference
        assert wrong == (results[0][0] == "IndexError")


def test_a_graph_that_raises_leaves_inputs_as_eager_does() -> None:
    def fn(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        x.index_add_(0, i, y[i])
        return x * 2

    run = fuselens.compile(fn)
    for high in (5, 9, 5):
        torch.manual_seed(high)
        inputs = [f(5, 4), n(6, high=high), f(9, 4)]
        copies = [t.clone() for t in inputs]
        results = outcome(lambda: fn(*inputs)), outcome(lambda: run(*copies))  # noqa: B023
        difference = comparison.differ((results[0], inputs), (results[1], copies), "writes")
        assert difference is None, difference


def test_a_few_elements_of_an_input_change_in_place() -> None:
    def cache(k: Tensor, v: Tensor, i: Tensor, new: Tensor) -> Tensor:
        k.index_copy_(1, i, new)
        v[:, i] = new * 2
        return k.sum(1) + v[:, 0]

    made = fuselens.compile(cache)
    for wrong in (False, False, True, False):
        torch.manual_seed(3)
        inputs = [f(2, 9, 4), f(2, 9, 4), torch.tensor([8, 1, 8]) + (5 if wrong else 0), f(2, 3, 4)]
        copies = [t.clone() for t in inputs]
        addresses = [t.data_ptr() for t in copies]
        results = outcome(lambda: cache(*inputs)), outcome(lambda: made(*copies))  # noqa: B023
        difference = comparison.differ((results[0], inputs), (results[1], copies), "cache")
        assert difference is None, difference
        assert [t.data_ptr() for t in copies] == addresses
        assert [t._version for t in copies] == [t._version for t in inputs]
    report = made.__fuselens__.recorder.report  # type: ignore[attr-defined]
    writes = {d.subject: d.verdict for g in report.graphs for d in g.decisions if d.code == "FL413"}
    assert list(writes.values()) == ["taken", "taken"], writes
    assert sum(len(g.kernels) for g in report.graphs) <= 5


def test_elements_that_are_read_before_they_change() -> None:
    def fn(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        old = x.sum(1)
        x.index_add_(0, i, x[i])
        return old, x * 2

    made = fuselens.compile(fn)
    for high in (5, 7, 5):
        torch.manual_seed(1)
        inputs = [f(5, 4), n(6, high=high)]
        copies = [t.clone() for t in inputs]
        results = outcome(lambda: fn(*inputs)), outcome(lambda: made(*copies))  # noqa: B023
        difference = comparison.differ((results[0], inputs), (results[1], copies), "reads")
        assert difference is None, difference
