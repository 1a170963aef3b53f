"""Random graphs of tensor operations do compiled what they do in eager. `make sweep` runs 5,000 of them, CI a sample.

Each is compared in values (to what rounding explains), gradients, dtypes, strides, shared memory and writes to inputs;
the graph that each stage makes is verified, printed, parsed back and evaluated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.pipeline import stages

from .graph_comparison import EPSILON, compare, observe, outcome, reduced
from .random_graphs import Input, Program, Step, first_failing

SEED = int(os.environ.get("FUSELENS_SWEEP_SEED") or 0)
BATCHES, GRAPHS_PER_BATCH = 100, 50


def agree(count: int, seed: int) -> int:
    """Compares ``count`` different programs and fails with a small form of the first that differs; gives their number."""
    found, seen = first_failing(count, seed, lambda p: bool(outcome(p).difference))
    if found:
        small = reduced(found, lambda p: bool(outcome(p).difference))
        pytest.fail(f"{outcome(small).difference}\n\n{small}\n\nfound as\n\n{found}", pytrace=False)
    return seen


def program(*steps: str, inputs: str, outputs: str = "", dynamic: bool = False) -> Program:
    """Steps and inputs as they are printed, e.g. ``a = torch.relu(x)`` and ``x float32 3 4 .mT grad``."""
    made = []
    for line in inputs.split(";"):
        name, dtype, *rest = line.split()
        sizes = tuple(int(r) for r in rest if r.isdigit())
        layout = "".join(r for r in rest if r[0] in "[.")
        made.append(Input(name, dtype, sizes, layout, grad="grad" in rest))
    assigned = [s.partition(" = ") if " = " in s else ("", "", s) for s in steps]
    names = outputs.split() or [assigned[-1][0] or made[0].name]
    found = (Step(name, text.replace("{", "{{").replace("}", "}}"), (made[0].name,)) for name, _, text in assigned)
    return Program(tuple(made), tuple(found), tuple(names), dynamic)


FOUND = {
    "empty_memory_is_not_taken_over": program(
        "a = x.mean((0, 4))", "b = torch.flip(a, (0,))", "c = torch.roll(y, 1, 0)",
        inputs="x float64 1 3 3 0 1; y uint8 8", outputs="b c",
    ),
    "extremum_of_booleans": program("a = torch.amax(x, (1, -1))", inputs="x bool 1 2 1 2 1"),
    "gradient_of_part_of_an_expanded_leaf": program("a = x[..., 4:]", inputs="x float32 .expand(8) grad"),
    "layout_of_a_normalised_batch": program("a = F.batch_norm(x, None, None, training=True)", inputs="x float32 3 4 .mT"),
    "more_elements_from_the_end_than_there_are": program(
        "a = x[..., -3:]", "b = torch.einsum('...i,...i->...', a, x)", inputs="x float64 1 grad"
    ),
    "scan_of_a_constant": program("a = torch.cumprod(torch.eye(3) > 0, 0)", "b = torch.hstack([x, a])", inputs="x float32 3 3"),
    "backward_reads_the_old_value": program(
        "a = torch.hypot(x, y)", "x[..., 0] = x[..., -1]", inputs="x bfloat16 3 3; y float32 3 3 grad", outputs="a",
    ),
    "mixed_dtypes_refused_by_a_backward": program("a = F.mse_loss(x, y, reduction='none')", inputs="x float64 3 grad; y float32 1"),
    "bounds_refused_by_a_backward": program("a = torch.clamp(x, x, y)", inputs="x float32 21 1 grad; y float32 7"),
    "divisor_refused_by_a_backward": program(
        "a = torch.addcdiv(x, y, z.abs() + 1)", inputs="x float32 3; y float32 3 grad; z int64 3"
    ),
    "layout_of_what_is_indexed": program(
        "a = x[torch.remainder(i.long(), 3), :, torch.remainder(i.long(), 3).mT]", "b = x[:, i.long() % 3]",
        inputs="x float32 4 3 5 .mT.contiguous().mT; i int32 2 2 .mT", outputs="a b",
    ),
    "view_of_a_constant": program("a = torch.tensor([1.5, -2.0])", "b = a.unbind(0)[-1]", inputs="x float32"),
    "view_of_one_of_two_equal_values": program(
        "a = torch.linspace(0, 1, 7)", "b = torch.linspace(0, 1, 7)", "c = a.unbind(0)[-1]", inputs="x float32", outputs="b c"
    ),
    "part_of_a_copy": program("a = x.clone()", "b = torch.tensor_split(a, 3, 0)[1]", inputs="x float32 2", outputs="b"),
    "part_with_gaps_of_a_copied_part": program(
        "a = torch.empty(2, 5)", "a.copy_(x[2:])", "b = a[1:, ::2]", inputs="x float32 4 5", outputs="b"
    ),
    "positions_in_a_copied_part": program(
        "a = torch.empty(2, 5)", "a.copy_(x[2:])", "b = a[1:].as_strided((2, 2), (1, 2), 4)", inputs="x float32 4 5",
        outputs="b",
    ),
    "part_of_complex_numbers": program(
        "a = torch.polar(x.abs(), y).imag", "b = torch.complex(x, y) * 2", inputs="x float32; y float32 3", outputs="a b"
    ),
    "sixths_of_doubles": program("a = F.hardsigmoid(x)", inputs="x float64 7 grad"),
    "products_under_autocast": program(
        "a = autocast(lambda t: torch.cat([t, (t @ t.mT @ t) / 64]), x)", inputs="x float32 3 7 1 1"
    ),
    "inputs_that_share_memory_and_shape": Program(
        (Input("x", "float32", (4, 3)), Input("y", "float32", (4, 3), "[::2]", of="x")),
        (Step("", "{0}.transpose_(0, -1)", ("x",)), Step("", "{0}.unsqueeze_(0)", ("x",)), Step("", "{0}.mul_(2)", ("y",)),
         Step("a", "{0}.T", ("x",))), ("a", "x"),
    ),
    "parts_of_a_written_base_with_equal_values": Program(
        (Input("x", "bool", (1, 1)), Input("y", "float32", (1, 1, 1, 1)), Input("z", "bool", (1, 1), "[::2]", of="x")),
        (Step("", "{0}[1:] = {0}[:-1].clone()", ("z",)), Step("a", "F.adaptive_max_pool2d({0}, (3, 2))", ("y",)),
         Step("b", "{0}.T", ("x",))), ("b", "a"),
    ),
    "view_of_what_was_written_to": program(
        "a = x.reshape(-1)", "b = a[..., 1::2]", "c = x.repeat(1, 2, 2, 1).sum()", "a.relu_()",
        inputs="x float32 3 3 1 1 [:,::2] [::2] grad", outputs="b c",
    ),
    "part_of_rows_that_become_shorter": Program(
        (Input("x", "float32", (8, 2), ".mT"),), (Step("a", "{0}.flatten()[:5] * 2", ("x",)),), ("a",), True, ({8: 3}, {8: 17})
    ),
    "part_of_columns_that_become_fewer": Program(
        (Input("x", "float32", (3, 8)), Input("y", "float32", (3, 8))),
        (Step("a", "torch.cat([{0} + 1, {1} * 2], 1)[:, :7] * 3", ("x", "y")),), ("a",), True, ({8: 4}, {8: 17})
    ),
    "single_precision_inside_a_double_step": program(
        "a = torch.float_power(y.abs() + 0.5, x.tanh())", inputs="x float32 64; y float32"
    ),
    "gradient_of_a_normalised_element": program(
        "a = F.group_norm(x, 1, torch.ones(x.shape[1]) * 1.5)", inputs="x float32 100 1 grad"
    ),
    "views_of_a_part_of_complex_numbers": program(
        "a = torch.polar(x.abs(), y).imag", "b = a @ a.mT", "c = a.T[1:] * 2", "d = a[::2, None, 1:].flip(0)",
        "e = a.diagonal() + a.unfold(0, 2, 1)[0, :, 0]", "h = a.expand(3, 2, 2).flatten(0, 1).mT + 1",
        inputs="x float32 2 2; y float32 2", outputs="b c d e h",
    ),
    "gradient_of_a_normalised_half": program(
        "a = F.group_norm(torch.atan2(x, x.abs() + 1), 1)", inputs="x float16 8 1 grad"
    ),
    "positions_of_samples": program(
        "a = F.interpolate(x, scale_factor=1.5, mode='bicubic')", inputs="x float32 1 1 100 100"
    ),
    "attention_in_double_precision": program(
        "a = F.scaled_dot_product_attention(x, x, x, is_causal=True)", inputs="x float64 1 2 3 4 grad"
    ),
    "contiguous_after_a_write_to_an_input_with_gaps": program(
        "x.mul_(2)", "a = x.contiguous()", inputs="x float16 2 2 [...,::3]", outputs="a"
    ),
    "many_functions_in_one_loop": program("a = F.mish(x)", "b = F.softplus(a)", inputs="x float32 8"),
    "product_of_nothing": program(
        "a = torch.matmul(y, x.mT) / 8", "b = F.elu(x)", inputs="x float32 1 8 100 grad; y float32 0 100", outputs="a b"
    ),
    "windows_of_an_unbatched_image": program("a = F.max_pool2d(x, 2)", inputs="x float32 2 4 6 grad"),
    "layout_of_a_stack": program(
        "a = x.sign()", "b = torch.stack([a, x], -4)", inputs="x int32 1 1 1 2 .to(memory_format=torch.channels_last)"
    ),
    "halves_are_compared_as_they_are_rounded": program(
        "a = torch.log1p(x.abs())", "b = a.max()", inputs="x float16 2 grad"
    ),
    "norm_over_one_element": program("a = torch.norm(x, 1, (-2, 3))", inputs="x float16 1 1 1 1"),
    "trigamma_as_eager_computes_it": program("a = torch.digamma(x.abs() + 1)", inputs="x float64 grad"),
    "one_element_read_and_written_over": program(
        "a = torch.gather(x, 0, torch.argsort(x, 0).narrow(0, 0, 1))", "b = a + 1.5",
        "c = torch.gather(b, -1, torch.argsort(b, -1))", "d = torch.stack([y, a], 0)",
        inputs="x float16 1; y float16 1", outputs="c d",
    ),
    "layout_of_a_view_that_is_filled_in_place": program(
        "a = x.transpose(0, -3)", "a.masked_fill_(a > 1, 0.5)", "b = torch.tanh(a)", inputs="x float32 2 2 2 1"
    ),
    "sum_of_the_gradients_of_nothing": program("a = torch.sin(x).expand_as(y)", inputs="x float32 grad; y float32 0"),
    "strides_of_an_input_with_gaps_that_is_written": program(
        "a = x.as_strided((2, 1), (4, 1))", "x.zero_()", "b = a / 4", inputs="x int64 3 2 [:,1:] [::2]", outputs="x b"
    ),
    "gradient_of_a_slice_behind_the_end": program(
        "a = torch.hstack([y, x[..., 4:]])", inputs="x float32 2 grad; y float32", dynamic=True
    ),
    "threshold_between_two_halves": program("a = F.threshold(x, 0.2, 1.0)", inputs="x bfloat16 8 64 grad"),
    "layout_of_parts_of_size_1": program(
        "a = torch.cat([F.mish(x), x, x], 2)", inputs="x float32 1 2 1 1 .to(memory_format=torch.channels_last)"
    ),
    "layout_of_what_is_filled": program(
        "a = x.masked_fill(x > 0, 1)", "b = torch.hstack([a, a])",
        inputs="x float64 2 1 1 2 .to(memory_format=torch.channels_last) [1:]",
    ),
    "layout_of_a_broadcast_difference": program(
        "a = x - y", inputs="x bfloat16 2 1 1 1 .permute(3,1,2,0); y bfloat16 2 1"
    ),
    "view_of_an_imaginary_part": program(
        "a = torch.polar(y.abs().float(), x.float()).imag", "a[0] += a[-1]", inputs="x float32; y float32 2", outputs="a"
    ),
    "size_of_a_range_of_fractions": program("a = torch.arange(0.5, x.shape[0], 0.75)", inputs="x float32 2", dynamic=True),
    "one_hot_transposed_in_place": program(
        "a = F.one_hot(torch.arange(x.shape[-1]) % 3, 3)", "a.t_()", inputs="x float32 1", outputs="a"
    ),
    "write_to_one_of_several_views_of_one_element": program(
        "x.unbind(-1)[0].fill_(2)", inputs="x float32 .expand(8)", outputs="x"
    ),
    "boolean_refused_by_a_backward": program("a = torch.logaddexp2(x, y)", inputs="x float32 grad; y bool"),
    "largest_of_a_product_that_is_saved_rounded": program(
        "a = (x @ x.mT / 9).relu() + 1", "b = torch.amax(a, (3, 0), keepdim=True)", inputs="x bfloat16 3 1 3 3 grad", outputs="b"
    ),
    "input_returned_through_a_write": program(
        "a = x.max(-1)[1]", "a.add_(1)", "b = a.flatten()", "a.copy_(x)", "c = torch.sqrt(x.abs())", inputs="x int64", outputs="b c"
    ),
    "overwritten_half_of_which_a_backward_has_a_conversion": program(
        "a = torch.digamma(x.abs() + 1)", "b = F.scaled_dot_product_attention(a, a, a)", "a.sub_(a.mean())",
        inputs="x float16 1 17 1 grad", outputs="a b",
    ),
    "direction_of_what_is_left_of_normalised_halves": program(
        "a = F.group_norm(x, 3, torch.ones(3, dtype=x.dtype) * 1.5)",
        "b = torch.cosine_similarity(a[:, None], a[None], dim=-1)", inputs="x float16 3 3", outputs="b",
    ),
    "mean_of_many_equal_doubles": program(
        "a = x.masked_fill(y > 0, 0)", "b = F.batch_norm(a, None, None, training=True)",
        inputs="x float64; y float64 100 1 8", outputs="b",
    ),
    "smallest_of_what_a_backward_would_round_elsewhere": program(
        "a = (x * 1.3).sigmoid() * x / 8", "b = torch.amin(a, (-1, -4))", inputs="x bfloat16 2 7 7 1 grad", outputs="b"
    ),
    "infinities_written_through_what_repeats_nothing": program(
        "x[0] = float('inf')", "x.expand_as(x).add_(1)", "x.expand(1, *x.shape).mul_(2)", "x.broadcast_to(x.shape).sub_(1)",
        "torch.broadcast_to(x, x.shape).mul_(0.3)", inputs="x float32 4 3", outputs="x",
    ),
    "steps_between_numbers_that_cancel": program(
        "a = torch.linspace(-0.3, 0.4, 1200)", "b = a / (a.abs() + x.abs() * 1e-4)", inputs="x float32", outputs="b"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    assert outcome(FOUND[name]).difference is None


WRONG = {
    "sum": program("a = x.sum(-1)", inputs="x float32 8 100 grad"),
    "softmax": program("a = torch.softmax(x, -1)", inputs="x float32 8 100 grad"),
    "layer_norm": program("a = F.layer_norm(x, (100,))", inputs="x float32 8 100 grad"),
    "product": program("a = x @ x.mT", inputs="x float64 8 100 grad"),
    "parts that cancel": program(
        "a = F.gelu(x)", "b = F.mish(a) + F.silu(x)", inputs="x float64 64 grad", outputs="a b"
    ),
    "normalised signals": program("a = F.instance_norm(x)", inputs="x float64 2 3 40 grad"),
    "functions of halves": program(
        "a = torch.xlogy(F.silu(x), y.abs() + 0.1)", inputs="x float16 64; y float16 64 grad"
    ),
    "angles": program("a = torch.atan2(x, y.abs() + 1)", inputs="x bfloat16 64; y float32 64 grad"),
    "attention": program("a = F.scaled_dot_product_attention(x, x, F.normalize(x))", inputs="x float32 2 3 7 8 grad"),
    "rounded": program("a = torch.exp(torch.tanh(x)) * y", inputs="x bfloat16 64; y bfloat16 64 grad"),
    "normalised batches": program("a = F.batch_norm(x, None, None, training=True)", inputs="x float64 100 3 grad"),
    "normalised groups of halves": program("a = F.group_norm(x, 3)", inputs="x float16 4 6 9 grad"),
    "steps": program("a = torch.linspace(-0.3, 0.4, 1200, dtype=x.dtype) * x", inputs="x float32 1200 grad"),
    "overwritten halves": program(
        "b = torch.digamma(x.abs() + 1)",
        "c = F.scaled_dot_product_attention(b, b, b)",
        "b.sub_(b.mean())",
        inputs="x float16 1 17 3 grad",
        outputs="c",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_comparison_sees_errors_beyond_rounding(name: str) -> None:
    right = WRONG[name].function()
    few = 200 * EPSILON[WRONG[name].arguments()["x"].dtype]

    def wrong(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(r + few * r.detach().abs().amax() for r in right(*given))

    def wrong_gradient(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(r * (1 + few) - few * r.detach() for r in right(*given))

    def wrong_element(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = [
            torch.zeros(r.numel()).index_fill_(0, torch.tensor(r.numel() // 2), few).view(r.shape)
            for r in right(*given)
        ]
        return tuple(r + (o * r.detach().abs().amax()).to(r.dtype) for r, o in zip(right(*given), one, strict=True))

    assert compare(WRONG[name], right, 0) is None
    assert "output" in str(compare(WRONG[name], wrong, 0))
    assert "1 of" in str(compare(WRONG[name], wrong_element, 0))
    refused = observe(WRONG[name], right, WRONG[name].arguments()).error  # torch 2.15 saves halves as they are
    assert refused or "gradient" in str(compare(WRONG[name], wrong_gradient, 0))


def test_a_stage_that_computes_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))  # nobody else is to find what it makes

    def wrong(graph: Graph, *given: Any, plain: Any = stages.order) -> Graph:
        return parse(show(plain(graph, *given))[0].replace(" = add ", " = sub "))

    monkeypatch.setattr(stages, "order", wrong)
    assert "order: result 0 is another one" in str(outcome(program("a = x + 2.5", inputs="x float32 3")).difference)


@pytest.mark.timeout(600)
def test_a_sample_of_graphs() -> None:
    assert agree(30, SEED) == 30


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seed", [SEED * BATCHES + i + 1 for i in range(BATCHES)], ids=lambda s: f"seed {s}, {GRAPHS_PER_BATCH} graphs"
)
def test_many_graphs(seed: int) -> None:
    assert agree(GRAPHS_PER_BATCH, seed) == GRAPHS_PER_BATCH
