"""Complex numbers in loops: values, strides, aliasing and gradients as in eager, with no operator left to ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fuselens
from tests.capture.harness import agrees_with_eager

C64, C128 = torch.complex64, torch.complex128
INDEX = torch.tensor([2, 0, 1, 0])


def z(*shape: int, dtype: torch.dtype = C64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return fuselens.compile(fn, fullgraph=True, **options)


def left_to_aten(call: Any) -> list[str]:
    report = call.__fuselens__.recorder.report
    return [f"{d.subject}: {d.reason}" for g in report.graphs for d in g.decisions if d.code == "FL401"]


def parts(values: Any) -> list[Tensor]:
    """Results with complex numbers as pairs, so that infinite parts do not hide the others."""
    flat = values if isinstance(values, tuple) else (values,)
    return [torch.view_as_real(v.resolve_conj()) if v.is_complex() else v for v in flat]


def agree(fn: Callable[..., Any], *inputs: Any, left: int = 0, **options: Any) -> None:
    call = compiled(fn, **options)
    expected, found = fn(*inputs), call(*inputs)
    torch.testing.assert_close(parts(found), parts(expected), equal_nan=True, check_stride=True, rtol=1e-5, atol=1e-5)
    assert len(left_to_aten(call)) == left, left_to_aten(call)


UNARY: dict[str, Callable[[Tensor], Any]] = {
    name: getattr(torch, name)
    for name in (
        "abs angle neg conj_physical reciprocal square exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh "
        "cosh tanh asin acos atan asinh acosh atanh sigmoid sgn isnan isinf isfinite real imag logical_not positive view_as_real"
    ).split()
} | {
    "silu": torch.nn.functional.silu, "conj": lambda x: x.conj() * 2, "conj_imag": lambda x: x.conj().imag + 1,
    "adjoint": lambda x: x.mH + 1, "cube": lambda x: x**3, "power": lambda x: x ** (0.5 + 1j), "base": lambda x: 2.0**x,
    "complex_scalar": lambda x: (2j - x) / (1 + 3j), "real_scalar": lambda x: x * 2 + 1.5, "to_real": lambda x: x.real.double(),
    "sum": lambda x: (x.sum(), x.sum(0), x.mean(-1, keepdim=True)), "norms": lambda x: (x.norm(), torch.linalg.vector_norm(x, 1, 0)),
    "spread": lambda x: (x.var(), x.std(0, correction=0), x.var(1, keepdim=True), *torch.var_mean(x, 1), *torch.std_mean(x, dim=None)),
    "any": lambda x: (x.any(0), x.all()), "cumsum": lambda x: x.cumsum(1), "eq": lambda x: (x == x.t().t(), x != 1),
}  # fmt: skip
MOVEMENT: dict[str, Callable[[Tensor], Any]] = {
    "cat": lambda x: torch.cat([x, x * 2], 1), "stack": lambda x: torch.stack([x, x.conj()], -1), "flip": lambda x: x.flip(0),
    "cat_real": lambda x: torch.cat([x, x.real], 1), "transpose": lambda x: x.t().contiguous() + 1, "slice": lambda x: x[1:, ::2] * 2,
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2), value=3.0), "mirror": lambda x: torch.nn.functional.pad(x, (2, 1), mode="reflect"),
    "edges": lambda x: torch.nn.functional.pad(x, (2, 1), mode="replicate"), "roll": lambda x: x.roll(1, 0), "tril": lambda x: x.tril(),
    "repeat": lambda x: x.repeat(2, 3), "select": lambda x: x[:, INDEX], "index_select": lambda x: x.index_select(1, INDEX),
    "gather": lambda x: x.gather(1, INDEX.expand(x.shape[0], 4)), "index_put": lambda x: x.index_put((INDEX[:3],), x[:3] * 2, True),
    "index_add": lambda x: x.index_add(1, INDEX, x[:, :4]), "scatter_add": lambda x: x.scatter_add(0, INDEX[None].expand(2, 4), x[:2, :4]),
    "where": lambda x: torch.where(x.real > 0, x, 1j), "masked_fill": lambda x: x.masked_fill(x.imag > 0, 2.0),
    "full": lambda x: x + torch.full_like(x, 2 - 1j), "eye": lambda x: x @ torch.eye(x.shape[1], dtype=x.dtype),
    "expand": lambda x: x[:, None].expand(-1, 3, -1) * 2, "polar": lambda x: torch.polar(x.abs(), x.angle()),
    "complex": lambda x: torch.complex(x.imag, x.real), "as_real": lambda x: torch.view_as_real(x * 2).sum(-1),
    "as_complex": lambda x: torch.view_as_complex(torch.view_as_real(x) * 2) + 1, "as_complex_whole": lambda x: torch.view_as_complex(torch.stack([x.real, x.imag], -1)),
    "where_read": lambda x: (x.real * 2, x.imag, x.real), "cast": lambda x: (x.to(C128), x.real.to(x.dtype), (x != 0).to(x.dtype)),
}  # fmt: skip
LEFT = {"eye": 1}  # products


@pytest.mark.parametrize("name", [*UNARY, *MOVEMENT])
def test_agrees_with_eager(name: str) -> None:
    agree((UNARY | MOVEMENT)[name], z(5, 7), left=LEFT.get(name, 0))


@pytest.mark.parametrize("name", ["exp", "view_as_real", "sum", "cumsum", *MOVEMENT])
def test_symbolic_sizes(name: str) -> None:
    agree((UNARY | MOVEMENT)[name], z(5, 7), dynamic=True, left=LEFT.get(name, 0))


@pytest.mark.parametrize(
    "name", ["exp", "sqrt", "reciprocal", "sum", "cat", "select", "as_real", "as_complex", "where_read"]
)
def test_other_layouts_and_double_precision(name: str) -> None:
    fn = (UNARY | MOVEMENT)[name]
    for x in (z(7, 5).t(), z(10, 14)[::2, ::2], z(5, 7, dtype=C128), z(1, 7).expand(5, 7), z(6, 7)[1:]):
        agree(fn, x)


def test_zero_sizes() -> None:
    for name in ("exp", "sum", "cat", "flip", "as_real", "where_read"):
        agree((UNARY | MOVEMENT)[name], z(0, 7))


@pytest.mark.parametrize("op", [torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.eq, torch.ne])
def test_operands_of_several_types(op: Callable[..., Any]) -> None:
    real, double, integer = torch.rand(5, 7) + 0.5, torch.rand(7, dtype=torch.float64), torch.arange(1, 36).view(5, 7)
    for other in (z(5, 7), z(7), z(), z(5, 1, dtype=C128), real, double, integer, 2.0, 3, 1 - 2j):
        agree(lambda a, o=other: op(a, o), z(5, 7))
    agree(lambda a, b: op(b, a), z(5, 7), real)


SPECIAL = [0.0, -0.0, 1.0, -1.5, float("inf"), -float("inf"), float("nan"), 1e-30]


@pytest.mark.parametrize("dtype", [C64, C128])
def test_arithmetic_on_special_values(dtype: torch.dtype) -> None:
    part = torch.tensor(SPECIAL, dtype=dtype.to_real())
    x = torch.complex(*torch.meshgrid(part, part, indexing="ij")).flatten()
    agree(
        lambda a, b: (a + b, a - b, a * b, -a, a.conj_physical(), a == b),
        x[:, None].expand(len(x), len(x)).contiguous(),
        x,
    )
    agree(lambda a: (a.abs(), a.isnan(), a.isinf(), a.isfinite(), a.real, a.imag, a.to(torch.bool)), x)


def test_quotients_of_large_and_small_numbers() -> None:
    part = torch.tensor([0.0, 1.0, -1.5, 1e30, -1e30, 1e-30])
    x = torch.complex(*torch.meshgrid(part, part, indexing="ij")).flatten()
    agree(lambda a, b: a / b, x[:, None].expand(36, 36).contiguous(), x.expand(36, 36).contiguous())


def test_square_roots_and_exponentials_at_the_ends() -> None:
    inf = float("inf")
    x = torch.tensor([complex(a, b) for a in (0.0, 4.0, -4.0, inf, -inf) for b in (0.0, -0.0, 3.0, inf, -inf)])
    found, expected = compiled(torch.sqrt)(x), torch.sqrt(x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert torch.equal(torch.signbit(found.imag), torch.signbit(expected.imag))
    large = torch.tensor([3e38 + 3e38j, -3e38 + 1e-30j, 1e-38 + 1e-38j, -1e-30 - 1e38j])
    agree(torch.sqrt, large)
    agree(torch.exp, torch.tensor([-inf + 1j, 88.5 + 1j, 1000 + 0j, -1000 + 5j]))
    agree(torch.tanh, torch.tensor([50 + 1j, -50 - 1j, 1e-8 + 1e-8j, 9.9 + 1.5j, 1 + 1.5707963j]))


GRADIENTS = {k: v for k, v in (UNARY | MOVEMENT).items() if k in (
    "abs angle reciprocal exp log sqrt sin cos tanh sigmoid sgn real imag view_as_real conj cube power complex_scalar sum "
    "norms spread cumsum cat stack pad gather index_put where masked_fill polar complex as_real as_complex").split()}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    fn = GRADIENTS[name]

    def gradient(f: Callable[..., Any]) -> Tensor:
        x = z(5, 7, dtype=C128).requires_grad_()
        results = f(x)
        flat = [
            torch.view_as_real(r) if r.is_complex() else r
            for r in (results if isinstance(results, tuple) else (results,))
        ]
        return torch.autograd.grad(
            flat, x, [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype).view(r.shape) for r in flat]
        )[0]

    torch.testing.assert_close(gradient(compiled(fn)), gradient(fn))


LAZY: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": torch.conj, "negated": lambda x: x.conj().imag, "both": lambda x: torch._neg_view(x.conj()),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAZY)
def test_lazily_conjugated_and_negated_inputs(kind: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2 + x.sin(), x.t(), (x + 1).conj(), x[1:].abs()

    call = compiled(f)
    for lazy in (False, True, True):
        x, y = (z(3, 5).requires_grad_() for _ in range(2))
        a, b = (LAZY[kind](v) if lazy else v * 1 for v in (x, y))
        found, expected = call(a), f(b)
        for r, e in zip(found, expected, strict=True):
            torch.testing.assert_close(r, e)
            assert (r.is_conj(), r.is_neg(), r.stride()) == (e.is_conj(), e.is_neg(), e.stride())
        for results in (found, expected):
            sum((r.abs() ** 2).sum() for r in results).backward()  # pyright: ignore
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(x.grad, y.grad)
        assert x.grad.is_conj() == y.grad.is_conj()
    assert not left_to_aten(call)


def test_what_eager_does_to_lazily_conjugated_inputs() -> None:
    x = z(4, 5).conj()
    agrees_with_eager(lambda x: (x.mul_(2), x + 1), (x,), backend="fuselens")  # written to: the graph runs eagerly
    agrees_with_eager(lambda x: (x, x + x.is_conj()), (x,), backend="fuselens")
    agrees_with_eager(lambda x: (x.resolve_conj(), x.conj(), x.detach()), (x,), backend="fuselens")


def test_effects_and_views_are_eagers() -> None:
    def write(x: Tensor) -> Tensor:
        x.mul_(1 + 1j)
        return x.real

    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, y.real, y.conj(), x.imag

    agrees_with_eager(write, (z(4, 5),), backend="fuselens")
    agrees_with_eager(views, (z(4, 5),), backend="fuselens")


def test_between_operators_of_atens() -> None:
    def spectrum(x: Tensor) -> Tensor:
        f = torch.fft.rfft(x)
        return torch.fft.irfft(f * f.conj(), n=x.shape[-1]) + f.abs().sum()

    agree(spectrum, torch.randn(3, 16), left=2)
    agree(lambda a, b: ((a * 2) @ b.mH).real, z(3, 4), z(5, 4), left=1)


def test_what_loops_do_not_compute_is_atens() -> None:
    for fn in (lambda x: x.prod(0), lambda x: x.cumprod(0)):
        call = compiled(fn)
        torch.testing.assert_close(call(z(5, 7)), fn(z(5, 7)))
        assert left_to_aten(call)
