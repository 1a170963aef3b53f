"""Results have eager's memory: strides, gaps, repetitions; and what eager refuses is refused in its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.inputs import comparison

VIEWS_OF_COPIES: dict[str, Callable[[Any], Any]] = {
    "expanded": lambda x: x.clone()[0].expand(3, 4),
    "expanded_whole": lambda x: x.clone().expand(2, 4, 4)[:, 1],
    "every_second": lambda x: x.clone()[::2],
    "a_column": lambda x: x.clone().unbind(1)[1],
    "columns_twice": lambda x: (x.clone()[:, ::2], x.clone()[:, ::2]),
    "transposed_rows": lambda x: (x.clone().t()[::2], x.clone()),
    "overlapping": lambda x: x.clone().as_strided((2, 2), (1, 1)),
    "part": lambda x: x[:2].clone()[:, 1],
    "split": lambda x: x.clone().split(2, 1)[0],
    "permuted": lambda x: x.clone().view(2, 2, 4).permute(2, 0, 1)[::2],
    "contraction": lambda x: torch.einsum("aij,jk->aik", x[None], x),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", VIEWS_OF_COPIES)
def test_views_of_copies(name: str, grad: bool) -> None:
    fn, seen = VIEWS_OF_COPIES[name], []
    for function in (fn, fuselens.compile(fn)):
        x = torch.arange(16.0).view(4, 4).requires_grad_(grad)
        found = function(x)
        found = found if isinstance(found, tuple) else (found,)
        gradients = torch.autograd.grad([t.sum() for t in found], [x]) if grad else ()
        memory = [t.untyped_storage().data_ptr() for t in (*found, x)]
        shared = [memory.index(m) for m in memory]
        seen.append((found, [(t.stride(), t.storage_offset()) for t in found], shared, gradients))
    difference = comparison.differ(*seen, name)
    assert difference is None, difference


@pytest.mark.parametrize("step", [(6, 2), (0, 1), (1, 1)])
@pytest.mark.parametrize("parts", [(2,), (3, 1), (1,)])
def test_parts_of_an_input_with_gaps(parts: tuple[int, ...], step: tuple[int, int]) -> None:
    fn = lambda x: torch.unsafe_split(x, *parts)  # noqa: E731
    x = torch.arange(24.0).as_strided((4, 3), step)
    for found, expected in zip(fuselens.compile(fn)(x), fn(x), strict=True):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


def test_unpooling_keeps_the_memory_format() -> None:
    x = torch.randn(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
    values, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    expected = torch.nn.functional.max_unpool2d(values, places, 2)
    found = fuselens.compile(torch.nn.functional.max_unpool2d)(values, places, 2)
    assert torch.equal(expected, found)
    assert expected.stride() == found.stride()


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: x.logit_(), torch.tensor([1, 2])),
        (lambda x: x.logit_(1e-3), torch.tensor([True])),
        (lambda x: x.ldexp_(x), torch.tensor([1, 2])),
        (lambda x: x.masked_scatter_(torch.ones(5, 2, dtype=torch.bool), torch.arange(25)), torch.tensor([1, 2])),
        (lambda x: x.mul_(2.5), torch.tensor([1, 2])),
        (lambda x: x.mul_(torch.tensor([0.5])), torch.tensor([True])),
        (lambda x: x.div_(2), torch.tensor([1, 2])),
        (lambda x: x.true_divide_(x), torch.tensor([True])),
        (lambda x: x.view(3), torch.tensor([1, 2])),
        (lambda x: x.expand(3, 2).view(6), torch.tensor([1, 2])),
    ],
    ids=[
        "logit",
        "logit_bool",
        "ldexp",
        "masked_scatter",
        "mul",
        "mul_bool",
        "div",
        "true_divide",
        "view",
        "view_of_expanded",
    ],
)
def test_refused_as_eager_refuses(fn: Callable[[Any], Any], x: Any) -> None:
    errors = []
    for function in (fn, fuselens.compile(fn)):
        with pytest.raises(RuntimeError) as error:
            function(x.clone())
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_factors_that_are_no_floats_are_taken() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x.mul_(2).mul_(y), x.div_(3, rounding_mode="floor")

    x, y = torch.arange(6), torch.tensor(True)
    difference = comparison.differ(fn(x.clone(), y), fuselens.compile(fn)(x.clone(), y), "")
    assert difference is None, difference


@pytest.mark.parametrize("n", [0, 1, 2])
def test_polygamma_in_place(n: int) -> None:
    x = torch.rand(5, 3) + 0.5
    expected, found = x.clone().polygamma_(n), x.clone()
    compiled = fuselens.compile(lambda x: x.polygamma_(n))
    assert compiled(found) is found
    torch.testing.assert_close(found, expected)
    assert not compiled.__fuselens__.recorder.report.graphs[0].fallback


def test_ranges_of_integers_start_from_whole_numbers() -> None:
    for ends in ((4.3, 1), (4.3, 50), (-3.9, 2.9), (0, 5)):
        for dtype in (torch.int64, torch.int8, torch.float32):
            fn = lambda e=ends, d=dtype: torch.linspace(*e, 50, dtype=d) + 0  # noqa: E731
            torch.testing.assert_close(fuselens.compile(fn)(), fn())


EMPTY: dict[str, Callable[[Any], Any]] = {
    "by_a_number": lambda x: x * 2,
    "by_one_element": lambda x: x + torch.ones(1),
    "by_itself": lambda x: x * x,
    "compared": lambda x: x > 0,
    "chosen": lambda x: torch.where(x > 0, x, 1.0),
    "transposed": lambda x: x.transpose(0, -1) * 2,
    "hardswish": torch.nn.functional.hardswish,
    "lower_triangle": torch.tril,
    "cross_entropy": lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, x * 2, reduction="none"),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], torch.ones(x.shape[-1:])),
    "rms_norm": lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], torch.ones(x.shape[-1:])),
}


@pytest.mark.parametrize("shape", [(0, 1), (1, 0, 1), (0, 3, 1), (2, 0, 3, 1)])
@pytest.mark.parametrize("name", EMPTY)
def test_strides_without_elements(name: str, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    assert fuselens.compile(EMPTY[name])(x).stride() == EMPTY[name](x).stride()


@pytest.mark.parametrize(("start", "end", "steps"), [(4.3, -3, 50), (0, 7, 50), (0, 12, 5), (3, 3, 1), (-2, 9, 0)])
def test_integers_between_two(start: float, end: float, steps: int) -> None:
    fn = lambda x: x + torch.linspace(start, end, steps, dtype=torch.int64)  # noqa: E731
    x = torch.zeros(steps, dtype=torch.int64)
    assert torch.equal(fuselens.compile(fn)(x), fn(x))


def test_gradient_of_running_logarithms_in_half_precision() -> None:
    seen = []
    for fn in (torch.logcumsumexp, fuselens.compile(torch.logcumsumexp)):
        x = torch.full((5, 3), 9984.0, dtype=torch.bfloat16, requires_grad=True)
        seen.append(torch.autograd.grad(fn(x, 0).sum(), x)[0])
    assert torch.equal(*seen)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32])
def test_statistics_of_groups_in_the_type_of_the_parameters(parameters: torch.dtype) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.ops.aten.native_group_norm(x, w, w, 2, 6, 20, 3, 1e-5)

    x, w = torch.randn(2, 6, 4, 5, dtype=torch.bfloat16), torch.ones(6, dtype=parameters)
    for expected, found in zip(fn(x, w), fuselens.compile(fn)(x, w), strict=True):
        torch.testing.assert_close(found, expected)
    across = x.transpose(2, 3)
    try:
        expected = fn(across, w)
    except RuntimeError:  # until torch 2.14
        with pytest.raises(RuntimeError, match="is_contiguous"):
            fuselens.compile(fn)(across, w)
    else:
        for e, found in zip(expected, fuselens.compile(fn)(across, w), strict=True):
            torch.testing.assert_close(found, e)
            assert found.stride() == e.stride()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_cross_entropy_of_probabilities(dtype: torch.dtype, reduction: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(x, y, w, reduction=reduction)

    compiled = fuselens.compile(fn, fullgraph=True)
    x, y = (torch.linspace(0, 1, 33, dtype=torch.float64).to(dtype).view(3, 11) for _ in range(2))
    torch.testing.assert_close(compiled(x, y.flip(0)), fn(x, y.flip(0)))
    torch.testing.assert_close(compiled(x, y, y[:1]), fn(x, y, y[:1]))
    assert not any(g.externs or g.fallback for g in compiled.__fuselens__.recorder.report.graphs)
    for no_probability in (-0.25, 1.5, float("nan")):
        x[2, 5] = no_probability
        with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
            compiled(x, y)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("used", [False, True])
def test_probabilities_are_checked_also_where_nobody_uses_the_loss(used: bool, gradients: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.binary_cross_entropy(x, x.detach(), reduction="none")
        if used:
            more = loss.sin()
            more.sub_(more.mean())
            more[0] = 1
        x.detach().mul_(2)
        return x + 1

    compiled = fuselens.compile(fn, fullgraph=True)
    for start in (0.0, 0.75):
        given = torch.linspace(start, start + 0.5, 12)
        seen = []
        for function in (fn, compiled):
            x = given.clone().requires_grad_(gradients)
            try:
                seen.append((function(x).detach(), x.detach()))
            except RuntimeError as error:
                seen.append((str(error), x.detach()))
        assert comparison.differ(*seen, "") is None, seen
    assert "all elements of input should be between 0 and 1" in str(seen)
    assert not any(g.fallback for g in compiled.__fuselens__.recorder.report.graphs)


@pytest.mark.parametrize(
    "more", [{}, {"mode": "mean"}, {"mode": "mean", "padding_idx": 4}, {"padding_idx": 3}, {"scaled": 1}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bags_of_embeddings(dtype: torch.dtype, more: dict[str, Any]) -> None:
    def fn(first: Any, indices: Any, offsets: Any, scales: Any = None) -> Any:
        return torch.nn.functional.embedding_bag(indices, first, offsets, per_sample_weights=scales, **more)

    more = {"mode": "sum"} | more
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 2, 4])
    weight = torch.randn(8, 5).to(dtype)
    scales = torch.rand(6).to(dtype) if more.pop("scaled", False) else None
    compiled, seen = fuselens.compile(fn, fullgraph=True), []
    for function in (fn, compiled):
        leaves = [t.clone().requires_grad_() for t in (weight, scales) if t is not None]
        out = function(leaves[0], indices, offsets, *leaves[1:])
        seen.append((out, torch.autograd.grad(out.square().sum(), leaves)))
    difference = comparison.differ(*seen, "")
    assert difference is None, difference
    report = compiled.__fuselens__.recorder.report
    assert not any(d.code == "FL401" and d.verdict == "fallback" for g in report.graphs for d in g.decisions)
    for place, start in ((9, 0), (-1, 0), (1, 1)):
        errors = []
        for function in (fn, fuselens.compile(fn)):
            with pytest.raises(RuntimeError) as error:
                function(
                    weight,
                    torch.tensor([1, place, 2]),
                    torch.tensor([start, 2]),
                    scales if scales is None else scales[:3],
                )
            errors.append(str(error.value))
        assert errors[0] == errors[1]


def test_arguments_named_as_variables_of_kernels() -> None:
    def fn(first: Any, row: Any, left: Any) -> Any:
        return torch.zeros(4, 3).index_add(0, row, first) + left

    args = (torch.ones(6, 3), torch.tensor([0, 1, 1, 2, 3, 3]), torch.ones(3))
    compiled = fuselens.compile(fn)
    assert torch.equal(compiled(*args), fn(*args))
    assert not any(g.fallback for g in compiled.__fuselens__.recorder.report.graphs)


LOOKING: dict[str, Callable[..., Any]] = {
    "quantile": lambda x, v, q: torch.quantile(x, q, dim=0, keepdim=True) * 2,
    "nanquantile": lambda x, v, q: x.nanquantile(q, 1, interpolation="higher"),
    "gaussian_nll_loss": lambda x, v, q: torch.nn.functional.gaussian_nll_loss(x, x * 2, v, full=True),
    "cov": lambda x, v, q: torch.cov(x, aweights=v.select(0, 0)),
    "corrcoef": lambda x, v, q: x.corrcoef(),
    "gaussian_nll_loss after a write": lambda x, v, q: torch.nn.functional.gaussian_nll_loss(v.add_(0) * x, x, v),
    "quantile before a write": lambda x, v, q: (torch.quantile(x, q), v.add_(1))[0],
    "cov before a write": lambda x, v, q: (torch.cov(x, aweights=v.select(0, 0)), v.add_(1))[0],
}


@pytest.mark.parametrize("name", LOOKING)
def test_functions_that_look_at_values(name: str) -> None:
    fn, x = LOOKING[name], torch.randn(4, 5)
    compiled = fuselens.compile(fn, fullgraph=True)
    for values, q in (
        (torch.rand(4, 5) + 0.1, torch.tensor([0.2, 0.9])),
        (torch.rand(4, 5) - 0.9, torch.tensor([0.2, 1.5])),
    ):
        for part in (q, q[1], 0.3):
            seen = []
            for function in (fn, compiled):
                leaf = x.clone().requires_grad_()
                try:
                    out = function(leaf, values.clone(), part)
                    seen.append((out, torch.autograd.grad(out.sum(), leaf), out.stride()))
                except (RuntimeError, ValueError) as error:
                    seen.append((type(error), str(error)))
            difference = comparison.differ(*seen, name)
            assert difference is None, difference


@pytest.mark.parametrize("dim", [2, -3])
def test_dimensions_of_quantiles_are_checked(dim: int) -> None:
    with pytest.raises(IndexError, match="Dimension out of range"):
        fuselens.compile(lambda x: torch.quantile(x, 0.5, dim=dim))(torch.randn(4, 5))


DEFINED: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "nonzero_static": (lambda x: x.nonzero_static(size=7) + 1, [torch.tensor([[0.0, 1, 2], [0, 0, -1]])]),
    "nonzero_static cut": (lambda x: x.nonzero_static(size=2, fill_value=-5), [torch.ones(2, 3, 2, dtype=torch.bool)]),
    "nonzero_static of nothing": (lambda x: x.nonzero_static(size=2), [torch.ones(0, 3)]),
    "bilinear": (
        torch.nn.functional.bilinear,
        [torch.randn(7, 4), torch.randn(7, 5), torch.randn(3, 4, 5), torch.randn(3)],
    ),
}


@pytest.mark.parametrize("name", DEFINED)
def test_operators_by_their_definitions(name: str) -> None:
    fn, inputs = DEFINED[name]
    compiled = fuselens.compile(fn, fullgraph=True)
    seen = []
    for function in (fn, compiled):
        leaves = [i.clone().requires_grad_(name == "bilinear") for i in inputs]
        out = function(*leaves)
        seen.append((out, out.stride(), torch.autograd.grad(out.sum(), leaves) if out.requires_grad else ()))
    difference = comparison.differ(*seen, name)
    assert difference is None, difference
    report = compiled.__fuselens__.recorder.report
    assert not any(d.code == "FL401" and d.verdict == "fallback" for g in report.graphs for d in g.decisions)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_neighbours_are_those_of_the_type(dtype: torch.dtype) -> None:
    x, y = torch.randn(50).to(dtype), torch.randn(50).to(dtype)
    assert torch.equal(fuselens.compile(torch.nextafter)(x, y), torch.nextafter(x, y))


STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.3),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.3),
    "logit": lambda x, y: torch.logit(x.abs()),
    "logit within": lambda x, y: torch.logit(x.abs(), 0.1),
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "xlog1py": lambda x, y: torch.special.xlog1py(x, y.abs()),
    "softshrink": lambda x, y: F.softshrink(x, 0.3),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", STEPS)
def test_halves_are_rounded_where_the_kernels_round_them(name: str, dtype: torch.dtype) -> None:
    run = STEPS[name]
    if name == "huber_loss" and dtype is torch.float16:
        pytest.skip("torch has no such kernel")
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(3000, generator=generator).sub(0.5).mul(2).to(dtype) for _ in range(2))
    assert torch.equal(fuselens.compile(run)(x, y), run(x, y))
