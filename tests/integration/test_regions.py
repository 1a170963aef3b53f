"""Graphs that do the same again and again: it is compiled once, and gives eager's values, gradients, writes and random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fuselens
from fuselens import config
from fuselens.capture.frame.frame import FrameCompiler
from fuselens.pipeline.parts import repeats
from fuselens.record.report import Graph, Report

D = 16


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[None]:
    with config.patch(cache_dir=tmp_path / "cache"):
        yield
    fuselens.reset()


class Block(nn.Module):
    """A layer of a transformer: 23 operations."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.gelu, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.activation, self.dropout = activation, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.before(x)).split(D, 2)
        q, k, v = (part.view(*x.shape[:2], 2, D // 2).transpose(1, 2) for part in parts)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.dropout(self.out(found))
        return x + self.down(self.activation(self.up(self.after(x))))


class Deep(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.layers, self.last = nn.Linear(4, D), nn.ModuleList(layers), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def blocks(count: int, **how: Any) -> Deep:
    torch.manual_seed(0)
    return Deep(*(Block(**how) for _ in range(count)))


def inputs(batch: int = 2, length: int = 5) -> Tensor:
    return torch.randn(batch, length, 4, generator=torch.Generator().manual_seed(batch))


def outcome(model: nn.Module, call: Callable[..., Any], *given: Any) -> dict[str, Any]:
    """What a step gives, the gradients, and what it leaves in buffers."""
    torch.manual_seed(1)
    model.zero_grad()
    result = call(*given)
    if result.requires_grad:
        result.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {
        "result": result.detach(),
        "gradients": gradients,
        "buffers": dict(copy.deepcopy(list(model.named_buffers()))),
    }


def check(model: nn.Module, *given: Any, calls: int = 2, **options: Any) -> Report:
    """``model`` agrees with eager in training and, in a second compilation, without gradients."""
    other = copy.deepcopy(model)
    compiled = fuselens.compile(model, fullgraph=True, options={"fallback_random": True, **options})
    for _ in range(calls):
        torch.testing.assert_close(
            outcome(model, compiled, *given), outcome(other, other, *given), atol=2e-5, rtol=2e-4
        )
    report = copy.deepcopy(compiled.__fuselens__.recorder.report)
    with torch.no_grad():
        torch.testing.assert_close(
            outcome(model, compiled, *given), outcome(other, other, *given), atol=2e-5, rtol=2e-4
        )
    return report


def refuse(*args: Any) -> Any:
    raise AssertionError("traced")


def regions(report: Report) -> list[Graph]:
    return [graph for graph in report.graphs if graph.runs > 1]


# --- what is found --------------------------------------------------------------------------------------------------


def test_layers_are_compiled_once() -> None:
    kernels = []
    for count in (6, 9):
        report = check(blocks(count), inputs())
        (region,) = regions(report)
        assert region.runs == count and len(report.captured) == 1 and not report.breaks
        kernels.append(len(report.kernels))
    assert kernels[0] == kernels[1]


def test_the_report_says_which_lines_a_region_serves() -> None:
    report = check(blocks(6), inputs())
    (region,) = regions(report)
    (told,) = [d for d in region.decisions if d.code == "FL417"]
    first = Block.forward.__code__.co_firstlineno
    assert told.subject == f"graph {region.id}" and "23 operations 6 times" in told.reason
    assert told.data["lines"] == [first + 1, first + 2, first + 3, first + 4, first + 5]
    assert region.part_of == report.captured[0].id


def test_few_layers_stay_one_graph() -> None:
    assert not regions(check(blocks(3), inputs()))


def test_an_option_keeps_a_graph_whole() -> None:
    report = check(blocks(6), inputs(), regions=False)
    assert len(report.graphs) == 1


def test_loops_over_elements_stay_one_kernel() -> None:
    def steps(x: Tensor) -> Tensor:
        for _ in range(40):
            x = torch.sin(x) * 0.5 + torch.cos(x)
        return x

    compiled = fuselens.compile(steps, fullgraph=True)
    x = torch.randn(64)
    torch.testing.assert_close(compiled(x), steps(x))
    assert len(compiled.__fuselens__.recorder.report.graphs) == 1


def test_a_mask_of_known_values_keeps_the_graph_whole() -> None:
    class Masked(Deep):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            x = self.first(x)
            for layer in self.layers:
                y = layer(x)
                x = y + 0.1 * F.scaled_dot_product_attention(y, y, x, attn_mask=mask)
            return self.last(x)

    torch.manual_seed(0)
    assert len(check(Masked(*(Block() for _ in range(8))), inputs()).graphs) == 1


def test_two_kinds_in_turn_are_one_region() -> None:
    model = Deep(*(Block(F.relu if i % 2 else F.gelu) for i in range(8)))
    (region,) = regions(check(model, inputs()))
    assert region.runs == 4 and region.operations == 46


def test_encoder_and_decoder_are_two_regions() -> None:
    model = Deep(*(Block(F.relu) for _ in range(6)), *(Block(F.silu) for _ in range(7)))
    assert sorted(graph.runs for graph in regions(check(model, inputs()))) == [6, 7]


def test_another_layer_in_between() -> None:
    model = Deep(*(Block(torch.tanh if i == 6 else F.gelu) for i in range(13)))
    assert [graph.runs for graph in regions(check(model, inputs()))] == [6, 6]


class Steps(nn.Module):
    """A recurrent net, step by step, which then goes on with what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.LSTMCell(1, 8), nn.LSTMCell(8, 8), nn.Linear(8, 1)

    def forward(self, series: Tensor, future: int) -> Tensor:
        zeros = torch.zeros(series.shape[0], 8, dtype=series.dtype)
        a, b, c, d = zeros, zeros, zeros, zeros
        found = []
        for item in series.split(1, dim=1):
            a, b = self.first(item, (a, b))
            c, d = self.second(a, (c, d))
            found.append(self.last(c))
        for _ in range(future):
            a, b = self.first(found[-1], (a, b))
            c, d = self.second(a, (c, d))
            found.append(self.last(c))
        return torch.cat(found, dim=1)


def test_steps_of_a_loop() -> None:
    torch.manual_seed(0)
    report = check(Steps().double(), torch.randn(3, 24, dtype=torch.double), 12)
    assert max(graph.runs for graph in regions(report)) >= 6


# --- what is the same, and what only looks so -----------------------------------------------------------------------------


def test_layers_that_share_weights() -> None:
    torch.manual_seed(0)
    block = Block()
    (region,) = regions(check(Deep(*([block] * 7)), inputs()))
    assert region.runs == 7


def test_a_frozen_layer_is_another() -> None:
    model = blocks(12)
    model.layers[8].requires_grad_(False)
    check(model, inputs())


def test_layers_of_other_sizes() -> None:
    class Narrow(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(D, width), nn.Linear(width, D), nn.LayerNorm(D)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = x + self.down(F.relu(self.up(self.norm(x))))
            return x

    torch.manual_seed(0)
    check(Deep(*(Narrow(width) for width in (8, 8, 8, 8, 24, 24, 24, 8, 8, 8, 8, 8))), inputs())


def test_results_of_all_layers_are_given() -> None:
    class Listing(Deep):
        def forward(self, x: Tensor) -> Tensor:
            x, found = self.first(x), []
            for layer in self.layers:
                x = layer(x)
                found.append(x)
            return torch.stack(found).sum(0) + found[2] * found[0]

    torch.manual_seed(0)
    (region,) = regions(check(Listing(*(Block() for _ in range(7))), inputs()))
    assert region.runs == 7


def test_what_earlier_layers_gave_is_read() -> None:
    class Skipping(Deep):
        def forward(self, x: Tensor) -> Tensor:
            x, found = self.first(x), []
            for layer in self.layers[:7]:
                x = layer(x)
                found.append(x)
            for layer in self.layers[7:]:
                x = layer(x + found.pop())
            return self.last(x)

    torch.manual_seed(0)
    assert regions(check(Skipping(*(Block() for _ in range(14))), inputs()))


def test_statistics_of_batches_are_written() -> None:
    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
                for _ in range(40)
            )

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x)
            return x

    torch.manual_seed(0)
    check(Image(), torch.randn(2, 4, 6, 6))


def test_random_numbers_are_eagers() -> None:
    (region,) = regions(check(blocks(7, dropout=0.3), inputs()))
    assert region.runs == 7


def test_writes_to_what_passes() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x).add_(1)
            y += self.two(x)
            y[..., 0] = x[..., 1]
            return y.mul_(0.7)

    torch.manual_seed(0)
    check(Deep(*(Writing() for _ in range(18))), inputs())


def test_a_context_before_the_layers() -> None:
    class Rotated(Deep):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                angles = x.mean() + torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.ones(D)
                scale = angles.cos()
            x = self.first(x) * scale
            for layer in self.layers:
                x = layer(x) * scale
            return self.last(x)

    torch.manual_seed(0)
    (region,) = regions(check(Rotated(*(Block() for _ in range(8))), inputs()))
    assert region.runs >= 7


def test_a_context_in_each_layer() -> None:
    class Careful(Block):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                scale = x.detach().abs().mean()
            with torch.autocast("cpu", torch.bfloat16):
                y = super().forward(x)
            return y.float() / (1 + scale)

    torch.manual_seed(0)
    model = Deep(*(Careful() for _ in range(6)))
    compiled = fuselens.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(inputs()), model(inputs()), atol=3e-2, rtol=3e-2)
    assert [graph.runs for graph in regions(compiled.__fuselens__.recorder.report)] == [6]


def test_a_context_around_the_layers() -> None:
    class Cast(Deep):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    torch.manual_seed(0)
    model = Cast(*(Block() for _ in range(6)))
    compiled = fuselens.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(inputs()), model(inputs()), atol=2e-2, rtol=2e-2)


def test_checkpoints() -> None:
    class Kept(Deep):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return self.last(x)

    torch.manual_seed(0)
    report = check(Kept(*(Block() for _ in range(7)), *(Block(F.relu) for _ in range(2))), inputs())
    assert [graph.runs for graph in regions(report)] == [7]


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.two(torch.tanh(self.one(x)) * 0.5))


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    model = Deep(*(Dense() for _ in range(20))).double()
    compiled = fuselens.compile(model, fullgraph=True)

    def penalty(call: Any) -> Tensor:
        x = inputs().double().requires_grad_()
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), model.layers[3].one.weight)[0]

    torch.testing.assert_close(penalty(compiled), penalty(model))


# --- sizes, kept frames, and calls one by one ----------------------------------------------------------------------------


def test_sizes_that_vary() -> None:
    model = blocks(6)
    compiled = fuselens.compile(model, dynamic=True, fullgraph=True)
    for batch, length in ((2, 5), (3, 7), (4, 9)):
        torch.testing.assert_close(
            outcome(model, compiled, inputs(batch, length)),
            outcome(model, model, inputs(batch, length)),
            atol=2e-5,
            rtol=2e-4,
        )
    report = compiled.__fuselens__.recorder.report
    assert len(report.captured) == 1 and [graph.runs for graph in regions(report)] == [6]


@pytest.mark.parametrize("training", [False, True])
def test_a_second_process_traces_nothing(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = blocks(6), []

    def run() -> Report:
        fuselens.reset()
        compiled = fuselens.compile(model, fullgraph=True)
        with torch.set_grad_enabled(training):
            found.append(outcome(model, compiled, inputs()))
        return compiled.__fuselens__.recorder.report

    first = run()
    monkeypatch.setattr(FrameCompiler, "_trace", refuse)
    second = run()
    torch.testing.assert_close(found[0], found[1], atol=0, rtol=0)
    assert [g.runs for g in second.graphs] == [g.runs for g in first.graphs]
    assert all(g.cache == "found" for g in second.graphs if g.part_of is not None)


@settings(max_examples=12, deadline=None)
@given(
    kinds=st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    rounds=st.integers(3, 8),
    rest=st.lists(st.sampled_from("abc"), max_size=3),
)
def test_any_sequence_of_layers(kinds: list[str], rounds: int, rest: list[str]) -> None:
    activations = {"a": F.gelu, "b": F.relu, "c": torch.sigmoid}
    torch.manual_seed(0)
    check(Deep(*(Block(activations[k]) for k in [*kinds * rounds, *rest])), inputs(), calls=1)


# --- loops that were unrolled ------------------------------------------------------------------------------------------


class Series(nn.Module):
    """Two cells over a series, and then over what they said last, as in torch's example of time series."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.LSTMCell(1, 5), nn.LSTMCell(5, 5), nn.Linear(5, 1)

    def forward(self, series: Tensor, more: int = 0, state: Tensor | None = None) -> Tensor:
        a = b = c = d = torch.zeros(series.shape[0], 5) if state is None else state
        found = []
        for item in series.split(1, dim=1):
            a, b = self.first(item, (a, b))
            c, d = self.second(a, (c, d))
            found.append(self.last(c))
        for _ in range(more):
            a, b = self.first(found[-1], (a, b))
            c, d = self.second(a, (c, d))
            found.append(self.last(c))
        return torch.cat(found, dim=1)


def series(steps: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Series(), torch.randn(3, steps)


def test_the_first_step_is_one_of_the_steps() -> None:
    """It is given zeros, which have no gradients, four times over: others have four values that do."""
    model, given = series(40)
    report = check(model, given)
    (region,) = regions(report)
    assert region.runs == 20 and region.operations == 14
    assert sum(graph.part_of is not None for graph in report.graphs) == 3  # with what takes the series apart, and joins


def test_a_state_that_is_given_may_have_gradients() -> None:
    model, given = series(40)
    other = copy.deepcopy(model)
    compiled = fuselens.compile(model, fullgraph=True)
    states = [torch.ones(3, 5, requires_grad=True) for _ in range(2)]
    for net, call, state in ((model, compiled, states[0]), (other, other, states[1])):
        net.zero_grad()
        call(given, 0, state).sum().backward()
    torch.testing.assert_close(states[0].grad, states[1].grad)
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
    assert regions(compiled.__fuselens__.recorder.report)


def test_two_loops_are_two_regions() -> None:
    model, given = series(40)
    report = check(model, given, 30)
    assert sorted(graph.runs for graph in regions(report)) == [15, 20]


def test_a_step_that_writes_to_what_it_is_given() -> None:
    """Then it matters which of them are one tensor."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            a = b = x.sin()
            for _ in range(24):
                a += 1.0
                b = self.layer(b) * a
                a = b.cos() * self.layer(a).sigmoid() + a.sin().exp().tanh()
            return a + b

    torch.manual_seed(0)
    with torch.no_grad():
        model = Writes()
        other = copy.deepcopy(model)
        compiled = fuselens.compile(model, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(inputs()), other(inputs()), atol=1e-5, rtol=1e-4)


def test_many_pieces_are_joined_by_one_call() -> None:
    pieces = [torch.randn(3, k % 3) for k in range(60)]
    compiled = fuselens.compile(lambda *many: torch.cat(many, dim=1) * 2)
    torch.testing.assert_close(compiled(*pieces), torch.cat(pieces, dim=1) * 2)
    (graph,) = compiled.__fuselens__.recorder.report.graphs
    assert graph.externs == ["aten.cat.default"] and len(graph.kernels) == 1
    assert [d.verdict for d in graph.decisions if d.subject.startswith("aten.cat")] == ["extern"]


# --- steps that take their own part of a tensor ---------------------------------------------------------------------------


class Gated(nn.Module):
    """A recurrent cell of 21 operations, written out, of which each step takes ``take(x, t)``."""

    def __init__(self, take: Callable[[Tensor, int], Tensor] = lambda x, t: x[:, t]) -> None:
        super().__init__()
        self.words, self.take = nn.Embedding(11, 4), take
        self.given, self.kept, self.last = nn.Linear(4, 3 * D), nn.Linear(D, 3 * D), nn.Linear(D, 3)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        (r, z, n), (u, v, w) = self.given(x).chunk(3, -1), self.kept(h).chunk(3, -1)
        r, z = torch.sigmoid(r + u), torch.sigmoid(z + v)
        return (1 - z) * torch.tanh(n + r * w) + z * h

    def forward(self, x: Tensor, steps: int = 12) -> Tensor:
        x = self.words(x) if x.dtype == torch.int64 else x
        h = torch.zeros(*self.take(x, 0).shape[:-1], D)
        found = []
        for t in range(steps):
            h = self.step(self.take(x, t), h)
            found.append(self.last(h))
        return torch.stack(found)


def sequence(gradient: bool = False) -> Tensor:
    return torch.randn(12, 12, 4, generator=torch.Generator().manual_seed(5)).requires_grad_(gradient)


TAKES: list[Callable[[Tensor, int], Tensor]] = [
    lambda x, t: x[:, t],
    lambda x, t: x[t],
    lambda x, t: x[:, -1 - t],
    lambda x, t: x[:, t : t + 1],
    lambda x, t: x[:, t // 2],
    lambda x, t: x.select(1, t).relu(),
    lambda x, t: x.narrow(0, t, 1).squeeze(0),
]


@pytest.mark.parametrize("number", range(len(TAKES)))
def test_steps_that_take_their_part(number: int) -> None:
    torch.manual_seed(0)
    (region,) = regions(check(Gated(TAKES[number]), sequence()))
    assert region.runs == 12


def test_steps_that_take_two_parts() -> None:
    torch.manual_seed(0)
    (region,) = regions(check(Gated(lambda x, t: x[:, t] * x[t].sum(0)), sequence()))
    assert region.runs == 12


def test_parts_of_what_is_computed_have_gradients() -> None:
    torch.manual_seed(0)
    words = torch.randint(0, 11, (3, 12))
    (region,) = regions(check(Gated(), words))
    assert region.runs == 12


def of_its_input(model: nn.Module) -> Any:
    """A compiled copy of the model, which gives its input the gradient that the model gives it."""
    compiled, gradients = fuselens.compile(copy.deepcopy(model), fullgraph=True), []
    for call in (model, compiled):
        x = sequence(True)
        call(x).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    return compiled


def test_parts_of_what_has_gradients() -> None:
    torch.manual_seed(0)
    model = Gated()
    compiled = of_its_input(model)
    assert regions(compiled.__fuselens__.recorder.report)


def test_parts_of_what_steps_write_to() -> None:
    """Each step reads what the one before it wrote: no part is taken before."""

    class Writes(Gated):
        def forward(self, x: Tensor, steps: int = 12) -> Tensor:
            x, h = x.clone(), x.new_zeros(12, D)
            for t in range(steps - 1):
                h = self.step(x[:, t], h)
                x[:, t + 1] += self.last(h).mean(-1, keepdim=True)
            return x

    torch.manual_seed(0)
    model, x = Writes(), sequence()
    with torch.no_grad():
        torch.testing.assert_close(fuselens.compile(model, fullgraph=True)(x), model(x), atol=1e-5, rtol=1e-4)


def test_parts_are_the_tensors_memory() -> None:
    """What is returned of them is written to, and so is the tensor between two calls."""

    class Returns(Gated):
        def forward(self, x: Tensor, steps: int = 12) -> Any:
            return super().forward(x, steps), [x[:, t] for t in range(steps)], x[0]

    torch.manual_seed(0)
    model, x = Returns(), sequence()
    compiled = fuselens.compile(model, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-4)
            _, parts, first = compiled(x)
            assert [p.data_ptr() for p in parts] == [x[:, t].data_ptr() for t in range(12)]
            parts[3].add_(1)
            first.mul_(2)
            assert x[5, 3].equal(parts[3][5]) and x[0].equal(first)
    assert regions(compiled.__fuselens__.recorder.report)


def test_parts_that_are_taken_without_gradients() -> None:
    class Without(Gated):
        def forward(self, x: Tensor, steps: int = 12) -> Tensor:
            h = x.new_zeros(12, D)
            for t in range(steps):
                with torch.no_grad():
                    part = x[:, t]
                h = self.step(part + x[:, t], h)
            return h

    torch.manual_seed(0)
    model = Without()
    of_its_input(model)


def test_parts_of_sizes_that_vary() -> None:
    torch.manual_seed(0)
    model = Gated()
    compiled = fuselens.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch in (3, 5, 8):
            given = sequence()[:batch]
            torch.testing.assert_close(compiled(given), model(given), atol=1e-5, rtol=1e-4)
    report = compiled.__fuselens__.recorder.report
    assert len(report.captured) == 1 and [graph.runs for graph in regions(report)] == [12]


@pytest.mark.parametrize("training", [False, True])
def test_a_second_process_takes_parts_first(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, found = Gated(), []
    for again in (False, True):
        fuselens.reset()
        compiled = fuselens.compile(model, fullgraph=True)
        if again:
            monkeypatch.setattr(FrameCompiler, "_trace", refuse)
        with torch.set_grad_enabled(training):
            found.append(outcome(model, compiled, sequence()))
        assert regions(compiled.__fuselens__.recorder.report)
    torch.testing.assert_close(found[0], found[1], atol=0, rtol=0)


# --- steps that write their own part of a tensor --------------------------------------------------------------------------


class Writing(Gated):
    def __init__(self, write: Callable[[Tensor, int, Tensor], Any], made: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.write, self.made = write, made

    def forward(self, x: Tensor, steps: int = 12) -> Any:
        out, h = self.made(x), x.new_zeros(12, D)
        for t in range(steps):
            h = self.step(x[:, t], h)
            self.write(out, t, self.last(h))
        return out


def put(place: Callable[[int], Any]) -> Callable[[Tensor, int, Tensor], None]:
    def write(out: Tensor, t: int, value: Tensor) -> None:
        out[place(t)] = value

    return write


WRITES: dict[str, tuple[Callable[[int], Any], tuple[int, ...]]] = {
    "first": (lambda t: t, (12, 12, 3)),
    "middle": (lambda t: (slice(None), t), (12, 12, 3)),
    "some": (lambda t: t + 2, (15, 12, 3)),
    "last": (lambda t: (..., t), (12, 3, 12)),
    "before the last": (lambda t: (..., t, slice(None)), (12, 12, 3)),
    "downwards": (lambda t: 11 - t, (12, 12, 3)),
    "of one": (lambda t: (1, slice(None), t), (2, 12, 12, 3)),
    "nothing whole": (lambda t: (1, t), (2, 12, 12, 3)),
}


@pytest.mark.parametrize("name", WRITES)
def test_steps_that_write_their_part(name: str) -> None:
    torch.manual_seed(0)
    place, sizes = WRITES[name]
    (region,) = regions(check(Writing(put(place), lambda x: torch.full(sizes, 0.5)), sequence()))
    assert region.runs == 12


def test_values_are_written_as_other_types() -> None:
    torch.manual_seed(0)
    model = Writing(put(lambda t: t), lambda x: torch.zeros(12, 12, 3, dtype=torch.float64))
    (region,) = regions(check(model, sequence()))
    assert region.runs == 12


@pytest.mark.parametrize(
    "place",
    [lambda t: t // 2, lambda t: t * 5 % 12, lambda t: -1 - t, lambda t: slice(t, t + 1)],
    ids=["twice", "anywhere", "from the end", "slice"],
)
def test_other_places_are_written_in_turn(place: Callable[[int], Any]) -> None:
    torch.manual_seed(0)
    check(Writing(put(place), lambda x: torch.zeros(12, 12, 3)), sequence())


def test_one_value_is_broadcast() -> None:
    torch.manual_seed(0)
    write = put(lambda t: t)
    check(Writing(lambda out, t, value: write(out, t, value.mean(0)), lambda x: torch.zeros(12, 12, 3)), sequence())


def test_what_is_read_meanwhile_was_written() -> None:
    torch.manual_seed(0)
    write = put(lambda t: t)
    read = [lambda out, t, v: write(out, t, v + out[t - 1]), lambda out, t, v: write(out, t, v + out.mean())]
    for each in read:
        check(Writing(each, lambda x: torch.zeros(12, 12, 3)), sequence())


def test_a_view_that_was_taken_before_is_read() -> None:
    class Reads(Writing):
        def forward(self, x: Tensor, steps: int = 12) -> Any:
            out, h = x.new_zeros(12, 12, 3), x.new_zeros(12, D)
            seen = out[3]
            for t in range(steps):
                h = self.step(x[:, t], h)
                out[t] = self.last(h)
                if t == 6:
                    found = seen * 2
            return out * found

    torch.manual_seed(0)
    check(Reads(put(lambda t: t), torch.clone), sequence())


def test_parts_of_itself_are_written() -> None:
    """What is written to a part was a view of another, which a step before wrote."""

    class Itself(Gated):
        def forward(self, x: Tensor, steps: int = 12) -> Any:
            out, h = x.new_zeros(13, 12, D), x.new_zeros(12, D)
            before = out[0]
            for t in range(steps):
                h = self.step(x[:, t], h)
                out[t] = h
            for t in range(6):
                out[t + 1] = before
            return out

    torch.manual_seed(0)
    check(Itself(), sequence())


def test_what_was_written_changes_later() -> None:
    class Changes(Gated):
        def forward(self, x: Tensor, steps: int = 12) -> Any:
            out, h = x.new_zeros(12, 12, D), x.new_zeros(12, D)
            for t in range(steps):
                h = self.step(x[:, t], h)
                value = h * 2
                out[t] = value
                value += 1
            return out, value

    torch.manual_seed(0)
    model, x = Changes(), sequence()
    compiled = fuselens.compile(copy.deepcopy(model), fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-4)


def test_an_argument_is_written_to() -> None:
    class Given(Gated):
        def forward(self, x: Tensor, out: Tensor) -> Any:  # type: ignore[override]
            h = x.new_zeros(12, D)
            for t in range(12):
                h = self.step(x[:, t], h)
                out[t] = h
            return h

    torch.manual_seed(0)
    model, x, memory = Given(), sequence(), [torch.zeros(13, 12, D) for _ in range(2)]
    compiled = fuselens.compile(copy.deepcopy(model), fullgraph=True)
    with torch.no_grad():
        for call, out in zip((model, compiled), memory, strict=True):
            call(x, out[1:])
    torch.testing.assert_close(*memory, atol=1e-5, rtol=1e-4)


def test_parts_of_varying_sizes_are_written() -> None:
    torch.manual_seed(0)

    class Varying(Gated):
        def forward(self, x: Tensor, steps: int = 12) -> Any:
            out, h = x.new_zeros(len(x), 12, D), x.new_zeros(len(x), D)
            for t in range(steps):
                h = self.step(x[:, t], h)
                out[:, t] = h
            return out

    model = Varying()
    compiled = fuselens.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch in (3, 5, 8):
            given = sequence()[:batch]
            torch.testing.assert_close(compiled(given), model(given), atol=1e-5, rtol=1e-4)
    report = compiled.__fuselens__.recorder.report
    assert len(report.captured) == 1 and [graph.runs for graph in regions(report)] == [12]


class Scan(nn.Module):
    """A state that decays, which loops over elements compute: nothing in it is a vendor's."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-1, -0.1, 12).reshape(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        state, found = x.new_zeros(12, 4, 3), []
        for t in range(36):
            part = F.softplus(x[:, t // 3])
            state = torch.exp(part[..., None] * self.decay) * state + (part * 2)[..., None]
            found.append(state.sum(-1))
        return torch.stack(found, 1)


def test_loops_over_elements_fuse() -> None:
    assert regions(check(Scan(), sequence())) == []


def test_long_loops_over_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"_LEAST_OF_LOOPS": 50, "_SMALLEST_OF_LOOPS": 30}.items():
        monkeypatch.setattr(repeats, name, size)
    (region,) = regions(check(Scan(), sequence()))
    assert 8 <= region.runs <= 18
