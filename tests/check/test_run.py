"""Running a function compiled and eagerly: both start from the same state of the program, and what they leave is compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselens.checking import check
from fuselens.record import plain
from fuselens.record.report import RunResult, Span

PROGRAM = """
    import itertools, random, time
    import numpy as np
    import torch.nn.functional as F

    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    generator = torch.Generator().manual_seed(1)
    counter, seen, total = {"n": 0}, [], 0
    ticks = itertools.count(1)

    class Average:
        updates = 0
        def __init__(self, module):
            self.kept = {k: v.clone() for k, v in module.state_dict().items()}
        def update(self, module):
            Average.updates += 1
            for k, v in module.state_dict().items():
                self.kept[k] = self.kept[k] * 0.9 + v * 0.1

    class Slotted:
        __slots__ = ("n",)
        def __init__(self):
            self.n = 1

    net, slotted = nn.Linear(4, 4), Slotted()
    average, other = Average(net), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @fuselens.compile
    def step(x: Float32[Tensor, "6 8"], y: Float32[Tensor, "6 4"]):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    @fuselens.compile
    def averaged(x: Float32[Tensor, "3 4"]):
        loss = net(x).pow(2).mean()
        loss.backward()
        other.step()
        other.zero_grad()
        average.update(net)
        return loss.item()

    @fuselens.compile
    def to_numpy(x: Float32[Tensor, "5"]):
        return torch.from_numpy(np.sort((x * 2).numpy()))

    @fuselens.compile
    def counts(x: Float32[Tensor, "3"]):
        global total
        total += 1
        counter["n"] += 1
        seen.append(counter["n"])
        slotted.n += 1
        return x * counter["n"] + total + slotted.n

    @fuselens.compile
    def draws(x: Float32[Tensor, "3"]):
        return x * random.random() + np.random.rand() + torch.rand_like(x) + torch.rand(3, generator=generator)

    @fuselens.compile
    def writes(x: Float32[Tensor, "4"], out: Float32[Tensor, "4"]):
        out.add_(x)
        x.zero_()
        return out.sum()

    @fuselens.compile
    def timed(x: Float32[Tensor, "4"]):
        return x + time.perf_counter_ns() % 1009

    @fuselens.compile
    def ticking(x: Float32[Tensor, "4"]):
        return x * next(ticks)

    def made():
        calls = 0
        def closure(x: Float32[Tensor, "4"]):
            nonlocal calls
            calls += 1
            return x * calls
        return closure

    closure = fuselens.compile(made())
"""


@pytest.mark.parametrize("function", ["step", "averaged", "to_numpy", "counts", "draws", "writes", "closure"])
def test_what_a_program_changes_is_put_back_before_the_second_call(written: Callable[..., Path], function: str) -> None:
    result = check.run_function(written(PROGRAM), function)
    assert result.agrees and result.error is None, result.detail
    assert ("what it changes agrees" in result.detail) == (function not in ("to_numpy", "draws"))


@pytest.mark.parametrize("function", ["timed", "ticking"])
def test_a_result_that_eager_does_not_repeat_is_not_called_different(
    written: Callable[..., Path], function: str
) -> None:
    result = check.run_function(written(PROGRAM), function)
    assert not result.repeatable and not result.agrees and result.error is None
    assert "another result each time" in result.detail


def test_a_parameter_that_one_rounding_decides_is_named(written: Callable[..., Path]) -> None:
    """Batch norm takes the bias away: its gradient is rounding alone, which Adam divides by itself."""
    result = check.run_function(written(PROGRAM), "step")
    assert result.agrees and "rounding decides module_under_check.model.0.bias" in result.detail


WRONG = """

    kept = torch.zeros(4)

    def different() -> float:
        return 2.0 if torch.compiler.is_compiling() else 1.0

    @fuselens.compile
    def result(x: Float32[Tensor, "4"]):
        return x * different()

    @fuselens.compile
    def state(x: Float32[Tensor, "4"]):
        kept.add_(different())
        return x * 1

    @fuselens.compile
    def argument(x: Float32[Tensor, "4"]):
        with torch.no_grad():
            x.mul_(different())
        return 1
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [("result", "result: 4 of 4"), ("state", "kept afterwards: "), ("argument", "x afterwards: ")],
)
def test_a_difference_is_told_wherever_it_is(written: Callable[..., Path], function: str, words: str) -> None:
    result = check.run_function(written(WRONG), function)
    assert not result.agrees and result.repeatable
    assert words in result.detail


ODD = """
    class Odd:
        __slots__ = ("n", "unset")
        def __init__(self):
            self.n = 1
        def __getattribute__(self, name):
            if name == "n":
                raise RuntimeError("do not look at me")
            return object.__getattribute__(self, name)

    class Endless(dict):
        def items(self):
            raise RuntimeError("nor at me")

    odd, endless, recursive = Odd(), Endless(a=1), []
    recursive.append(recursive)

    @fuselens.compile
    def f(x: Float32[Tensor, "4"]):
        return x * len(recursive)
"""


def test_objects_that_refuse_to_be_looked_at_are_left_alone(written: Callable[..., Path]) -> None:
    result = check.run_function(written(ODD), "f")
    assert result.agrees and result.error is None, result.detail


def test_each_value_is_told_with_the_name_that_it_has_in_the_program(written: Callable[..., Path]) -> None:
    result = check.run_function(written(PROGRAM), "writes")
    told = {row.name: row for row in result.values}
    assert {"result", "x afterwards", "out afterwards"} <= set(told)
    assert told["x afterwards"].kind == "state" and told["x afterwards"].shape == (4,)
    assert all(row.agrees for row in result.values)
    averaged = check.run_function(written(PROGRAM), "averaged")
    assert any(row.name == "net.weight afterwards" for row in averaged.values), averaged.values


PARTS = """
    scale = 2.0

    @fuselens.example(lambda: (torch.ones(4, 4), (torch.ones(4), 3)))
    @fuselens.compile
    def parts(x: Float32[Tensor, "4 4"], pair):
        y = x * pair[0]
        z = y.clone()
        if torch.compiler.is_compiling():
            z[2, 1] += 1.0
        return {
            "same": y,
            "other": z,
        }
"""


def test_a_difference_leads_to_its_first_element_and_to_the_line(written: Callable[..., Path]) -> None:
    path = written(PARTS)
    result = check.run_function(path, "parts")
    told = {row.name: row for row in result.values}
    assert told["result['same']"].agrees and told["result['same']"].max_absolute == 0.0
    other = told["result['other']"]
    assert not other.agrees and other.differing == 1 and other.elements == 16
    assert other.first == (2, 1) and float(other.compiled) == pytest.approx(float(other.eager) + 1.0)
    assert "gradient of pair[0]" in told
    assert result.span is not None
    line = path.read_text().splitlines()[result.span.line - 1]
    assert line.strip() == "return {"


def test_a_wrong_variable_leads_to_the_function(written: Callable[..., Path]) -> None:
    path = written(WRONG)
    result = check.run_function(path, "state")
    (row,) = [row for row in result.values if not row.agrees]
    assert row.name == "kept afterwards" and (row.eager, row.compiled) == ("1", "2")
    assert result.span is not None and "def state" in "".join(
        path.read_text().splitlines()[result.span.line - 1 : result.span.line + 1]
    )


def test_what_rounding_decides_is_in_the_table_but_not_held_against_it(written: Callable[..., Path]) -> None:
    result = check.run_function(written(PROGRAM), "step")
    (row,) = [row for row in result.values if row.name == "model.0.bias afterwards"]
    assert row.agrees and row.note.startswith("rounding decides")


KERNELS = """
    @fuselens.compile
    def softmax(x: Float32[Tensor, "256 512"]):
        y = (x - x.amax(-1, keepdim=True)).exp()
        return y / y.sum(-1, keepdim=True)
"""


def test_kernels_are_timed_in_calls_of_their_own(written: Callable[..., Path]) -> None:
    result = check.run_function(written(KERNELS), "softmax")
    assert result.agrees
    assert {kernel.phase for kernel in result.kernels} == {"forward", "backward"}
    for kernel in result.kernels:
        assert kernel.bytes and kernel.bytes >= 256 * 512 * 4 * 2, kernel
        assert kernel.seconds and kernel.limits["traffic"] > 0 and kernel.share, kernel
        assert any(span.file.endswith(".py") for span in kernel.spans)


def test_the_spread_surrounds_the_median(written: Callable[..., Path]) -> None:
    result = check.run_function(written(KERNELS), "softmax")
    for median, quartiles in (
        (result.eager_seconds, result.eager_quartiles),
        (result.compiled_seconds, result.compiled_quartiles),
        (result.speedup, result.speedup_quartiles),
    ):
        assert median is not None and quartiles is not None
        assert quartiles[0] <= median <= quartiles[1]


def test_a_result_survives_the_way_to_the_editor(written: Callable[..., Path]) -> None:
    result = check.run_function(written(PARTS), "parts")
    spans = plain.Spans()
    sent = json.loads(json.dumps(plain.to_plain(result, spans), allow_nan=False))
    assert plain.from_plain(RunResult, sent, [Span(*row) for row in spans.rows]) == result


VALUES = """
    @fuselens.compile
    def steps(x: Float32[Tensor, "2 3"]):
        y = x * 0 + 2
        print("a graph break")
        first, second = (y * torch.arange(3)).split(1)
        return first / (second - second), y.sum() > 1
"""


def test_each_node_has_its_value_graph_by_graph(written: Callable[..., Path]) -> None:
    text = check.node_values(written(VALUES), "steps")
    head, first, second = text.split("# --- graph ")
    assert head.startswith("# steps: its captured graphs")
    assert "add: f32[2, 3] = mul + 2  # line" in first
    assert "#     f32[2, 3] = 2, 2, 2, 2, 2, 2  (from 2 to 2, mean 2)" in first
    assert "#     f32[2, 3] = 0, 2, 4, 0, 2, 4  (from 0 to 4, mean 2)" in second
    assert "#     [1] f32[1, 3] = 0, 2, 4" in second
    assert "#     f32[1, 3] = nan, inf, inf  (none is finite)" in second
    assert "#     bool[] = True\n" in second
    assert text.endswith("# The call returned.\n")


def test_the_node_that_raises_is_told(written: Callable[..., Path]) -> None:
    source = VALUES.replace("y.sum() > 1", "torch.linalg.cholesky(-torch.eye(3) * y.sum())")
    text = check.node_values(written(source), "steps")
    assert "cholesky" in text and "#     raised " in text
    assert text.splitlines()[-1].startswith("# The call raised ")
