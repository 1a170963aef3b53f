"""Numbers taken from tensors, and shapes that depend on data, in the graph: where the options ask for it."""

from __future__ import annotations

import pytest
import torch

import fuselens
from tests.capture.harness import agrees_with_eager

X = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, -6.0]])
N = torch.tensor(3)
F = torch.tensor(2.5)
BACKENDS = ["eager", "aot_eager", "fuselens"]
BOTH = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


def captured(fn, *calls, breaks=0, backend="eager", **options):
    """Like check, with the options on. All calls are one compilation."""
    compiled = fuselens.compile(fn, backend=backend, options={**BOTH, **options})
    for args in calls:
        expected, actual = fn(*args), compiled(*args)
        assert type(expected) is type(actual)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    report = compiled.__fuselens__.recorder.report
    assert len(report.breaks) == breaks, [b.message for b in report.breaks]
    assert breaks or not any(d.code == "FL201" for d in report.diagnostics)
    return report


def item(x, n):
    return x * n.item() + 1


def as_int(x, n):
    return x + int(n), int(n) + 1


def as_float(x, n):
    return x * float(n)


def as_size(x, n):
    k = n.item()
    torch._check(k >= 0)
    return torch.zeros(k, 2) + 1


def sliced(x, n):
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= 3)
    return x.narrow(1, 0, k) * 2


def arithmetic(x, n):
    k = n.item()
    return x * (k * 2 + 1) - k // 2, k % 3


def twice(x, n):
    return x * n.item() - n.item()


def after_a_write(x, n):
    n = n.clone()
    a = n.item()
    n += 1
    return x * a - n.item()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn", [item, as_int, as_float, as_size, sliced, arithmetic, twice, after_a_write], ids=lambda f: f.__name__
)
def test_scalars(fn, backend):
    report = captured(fn, (X, N), (X, N - 1), (X, N - 2), (X, N - 3), backend=backend)
    if backend != "eager":
        assert not report.diagnostics
        assert [g for g in report.graphs if g.part_of is not None]


@pytest.mark.parametrize("fn", [item, as_float, as_int], ids=lambda f: f.__name__)
def test_floating_scalars(fn):
    captured(fn, (X, F), (X, -F), (X, F * 0))


def test_a_branch_on_a_scalar_breaks_with_both_sides():
    def fn(x, n):
        k = n.item()
        return x * 2 if k > 2 else x - k

    captured(fn, (X, N), (X, N - 2), (X, N + 5), breaks=1)


def test_what_needs_the_number_breaks():
    captured(lambda x, n: x * len(range(n.item())), (X, N), breaks=1)
    captured(lambda x, n: x * abs(n.item()), (X, -N), breaks=1)
    captured(lambda x, n: x * [1, 2, 3, 4][n.item()], (X, N), breaks=1)
    captured(lambda x, n: x * len(f"{n.item()}"), (X, N), breaks=1)


def test_the_least_of_numbers_stays_in_the_graph():
    captured(lambda x, n: x * min(n.item(), 2) + max(1, n.item(), 3), (X, N), (X, N - 2), (X, N + 5))


def test_checks_raise_what_eager_raises():
    def silent(x, n):
        torch._check(n.item() > 2)
        return x * 2

    def talks(x, n):
        k = n.item()
        torch._check(k > 2, lambda: "too small")
        return x * 2

    for fn in (silent, talks):
        for backend in BACKENDS:
            compiled = fuselens.compile(fn, backend=backend, options=BOTH)
            assert torch.equal(compiled(X, N), fn(X, N))
            with pytest.raises(RuntimeError) as expected:
                fn(X, N - 2)
            with pytest.raises(RuntimeError) as actual:
                compiled(X, N - 2)
            assert str(actual.value) == str(expected.value)
            fuselens.reset()


def test_gradients_flow_around_scalars():
    def fn(x, n):
        return (x * n.item()).sum()

    for backend in BACKENDS:
        compiled = fuselens.compile(fn, backend=backend, options=BOTH)
        a, b = (X.clone().requires_grad_() for _ in range(2))
        fn(a, N).backward()
        compiled(b, N).backward()
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)
        fuselens.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.nonzero(),
        lambda x: torch.nonzero(x) * 2,
        lambda x: x[x > 0].sum(),
        lambda x: torch.masked_select(x, x > 0) + 1,
        lambda x: torch.unique(x.abs()),
        lambda x: (x > 0).nonzero().shape[1],
        lambda x: torch.where(x > 0)[0] + 1,
    ],
)
def test_shapes_that_depend_on_data(fn, backend):
    captured(fn, (X,), (X * 0,), (X + 10,), (-X,), backend=backend)


def test_both_are_off_by_default():
    assert agrees_with_eager(item, (X, F)).breaks[0].code == "FL102"
    assert agrees_with_eager(as_int, (X, F)).breaks[0].code == "FL102"
    assert agrees_with_eager(lambda x: x.nonzero(), (X,)).breaks[0].code == "FL108"


def test_the_options_exclude_each_other_s_operators():
    compiled = fuselens.compile(lambda x: x.nonzero(), backend="eager", options={"capture_scalar_outputs": True})
    compiled(X)
    assert [b.code for b in compiled.__fuselens__.recorder.report.breaks] == ["FL108"]


def written_then_asserted(x, n):
    x.add_(1)
    k = n.item()
    assert k > 3, "too few"
    return x.mul_(2)[:, :k]


def written_then_checked(x, n):
    x.add_(1)
    torch._check(n.item() > 3, lambda: "too few")
    return x * 2


def asserted_between_writes(x, n):
    k = n.item()
    x.add_(k)
    assert k != 3
    return x.mul_(2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [written_then_asserted, written_then_checked, asserted_between_writes])
@pytest.mark.parametrize("number", [3, 4])
def test_what_was_written_before_a_check_that_fails(fn, backend, number):
    """The exception is eager's, and so is what the input has then."""
    found = []
    for call in (fn, fuselens.compile(fn, backend=backend, fullgraph=True, options=BOTH)):
        x = X.clone()
        try:
            outcome = call(x, torch.tensor(number)).tolist()
        except Exception as e:  # noqa: BLE001 - compared
            outcome = type(e), str(e)
        found.append((outcome, x.tolist()))
    assert found[0] == found[1]
