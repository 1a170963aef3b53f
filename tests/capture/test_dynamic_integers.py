"""Integers that change become symbolic at the second compilation; what needs their value specialises and says where."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from fuselens.record.report import Report
from tests.capture.harness import agrees_with_eager

SCALE = 3
X = torch.randn(4, 5)


def compilations(report: Report) -> int:
    return 1 + sum(d.code == "FL201" for d in report.diagnostics)


def specialised(report: Report) -> dict[str, str]:
    """Symbol → the line of this file that specialised it."""
    lines = open(__file__).read().splitlines()
    return {s.name: lines[s.span.line - 1].strip() for s in report.symbols if s.specialised and s.span is not None}


# Each takes (x, n) and is called with every n in turn: two compilations serve all.
def scaled(x, n):
    return x * n


def several_uses(x, n):
    return x * n + n // 2 - n % 3, n + 1, -n, n * n


def true_division(x, n):
    return x * (n / 2)


def as_float(x, n):
    return x * float(n)


def as_size(x, n):
    return torch.zeros(n, 2) + x[0, 0], x.new_ones(2, n).sum(1)


def as_expression_of_sizes(x, n):
    return x.unsqueeze(0).expand(n, 4, 5).reshape(n * 4, 5)


def arange(x, n):
    return torch.arange(n) + 1, torch.arange(2, n + 2).float().mean()


def compared(x, n):
    return x + 1 if n > 1 else x - n


def least_and_greatest(x, n):
    return x * min(n, 100) + max(1, n)


def only_returned(x, n):
    return x + 1, n


def in_a_container(x, n):
    return {"a": [n, x * n], "b": (n + 1,)}


def passed_on(x, n):
    def inner(y, k=1):
        return y * k

    return inner(x, n) + inner(x, k=n + 1)


def of_integers_only(x, n):
    return n + 1


def fill(x, n):
    return torch.full((3,), n), x.masked_fill(x > 0, n), x.clamp(max=n)


def integer_tensors(x, n):
    return x.int() * n, (x > 0) * n, torch.ones(3, dtype=torch.uint8) + n


def type_of(x, n):
    return x * n if type(n) is int and isinstance(n, int) and not isinstance(n, bool) and n is not None else x


def absolute(x, n):
    return x * abs(n) + abs(-n)


def crosses_a_break(x, n):
    y = x * n
    print("between")
    return y + n


GENERIC = [
    v for v in list(globals().values()) if getattr(v, "__code__", None) and v.__code__.co_varnames[:2] == ("x", "n")
]


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize("fn", GENERIC, ids=lambda f: f.__name__)
def test_two_compilations_serve_all_values(fn, backend):
    report = agrees_with_eager(fn, *[(X, n) for n in (3, 4, 7, 2, 30)], backend=backend)
    frames = {d.message.split("`")[1] for d in report.diagnostics if d.code == "FL201"}
    assert compilations(report) <= 1 + max(len(frames), 1), [d.message for d in report.diagnostics]
    assert not specialised(report)


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize("fn", GENERIC, ids=lambda f: f.__name__)
def test_small_negative_and_large_values(fn, backend):
    sizes = fn in (as_size, as_expression_of_sizes, arange)
    values = [3, 1, 0] if sizes else [3, 1, 0, -1, -7, 2**31, 2**40, 5]
    agrees_with_eager(fn, *[(X, n) for n in values], backend=backend)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "fuselens"])
def test_gradients(backend):
    def fn(x, n):
        return (x * n).sum() + x[:n].square().sum()

    compiled = fuselens.compile(fn, backend=backend)
    for n in (2, 3, 1, 7):
        a, b = (X.clone().requires_grad_() for _ in range(2))
        fn(a, n).backward()
        compiled(b, n).backward()
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


# --- where integers come from ------------------------------------------------------------------------------------


class Holder:
    def __init__(self, k: int) -> None:
        self.k = k

    def times(self, x):
        return x * self.k


@dataclasses.dataclass
class Settings:
    k: int = 2


@dataclasses.dataclass
class Slotted:
    __slots__ = ("k",)
    k: int


def varied(call: Any, change: Any, values: tuple[int, ...]) -> Report:
    """Calls the compiled ``call`` under each value, against eager; every value but the first by one compilation."""
    compiled = fuselens.compile(call, backend="eager")
    for n in values:
        change(n)
        assert torch.equal(compiled(X), call(X))
    report = compiled.__fuselens__.recorder.report
    assert compilations(report) == 2, [d.message for d in report.diagnostics]
    return report


VALUES = (3, 4, 9, 2)


@pytest.mark.parametrize("make", [Holder, Settings, Slotted])
def test_attribute_of_an_object(make):
    holder = make(2)
    varied(lambda x: x * holder.k, lambda n: setattr(holder, "k", n), VALUES)


def test_attribute_of_self():
    holder = Holder(1)
    varied(holder.times, lambda n: setattr(holder, "k", n), VALUES)


def test_item_of_a_list():
    items = [1, 2]
    varied(lambda x: x * items[1], lambda n: items.__setitem__(1, n), VALUES)


def test_item_of_a_dict():
    items = {"k": 2}
    varied(lambda x: x * items["k"], lambda n: items.__setitem__("k", n), VALUES)


def test_closure():
    k = 0

    def change(n):
        nonlocal k
        k = n

    varied(lambda x: x * k, change, VALUES)


def test_global():
    varied(lambda x: x * SCALE, lambda n: globals().__setitem__("SCALE", n), VALUES)


def test_default():
    def fn(x, k=2):
        return x * k

    varied(fn, lambda n: setattr(fn, "__defaults__", (n,)), VALUES)


def test_attribute_counts_up():
    def fn(holder, x):
        holder.k += 1
        return x * holder.k

    a, b = Holder(0), Holder(0)
    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(6):
        assert torch.equal(compiled(a, X), fn(b, X))
        assert a.k == b.k and type(a.k) is int
    assert compilations(compiled.__fuselens__.recorder.report) == 2


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k = 2
        self.ks = [1, 2]

    def forward(self, x):
        return x * self.k + self.ks[1]


@pytest.mark.parametrize("symbolic", [False, True])
def test_attributes_of_modules_are_static_unless_asked(symbolic):
    module = Module()
    compiled = fuselens.compile(module, backend="eager", options={"symbolic_module_integers": symbolic})
    for n in VALUES:
        module.k = module.ks[1] = n
        assert torch.equal(compiled(X), X * n + n)
    report = compiled.__fuselens__.recorder.report
    assert compilations(report) == (2 if symbolic else len(VALUES))


def test_bools_and_enumerations_stay_static():
    report = agrees_with_eager(lambda x, flag: x * flag, (X, True), (X, False), (X, 3), (X, 4))
    assert [s.hint for s in report.symbols] == [4]


def test_floats_that_change_serve_all_values():
    values = [(X, v) for v in (0.5, 1.5, -0.0, 0.0, float("nan"), float("inf"))]
    report = agrees_with_eager(lambda x, a: x * a, *values)
    assert not report.symbols and compilations(report) == 2
    report = agrees_with_eager(lambda x, a: x * a, *values, dynamic=False)
    assert compilations(report) == 6


def test_each_branch_by_a_float_is_compiled_once():
    report = agrees_with_eager(
        lambda x, a: x * a if a > 1 else x - a, (X, 0.5), (X, 1.5), (X, 2.5), (X, -0.5), (X, 0.25), (X, float("inf"))
    )
    assert compilations(report) == 3  # one for the first float, and one for each branch


def several(x, a):
    if not a:
        return x
    if a == 2.0 or 3 <= a < 4:
        return x * 2
    return x / a if abs(a) - 1 > 0.5 * a else x + int(a * 10)


def test_conditions_on_a_float():
    values = (0.5, 0.75, 0.0, -0.0, 2.0, 3.0, 3.5, 3.999, 4.0, -7.5, 1.25, 1e30, float("nan"), float("-inf"))
    agrees_with_eager(several, *[(X, v) for v in values])


def test_floats_that_are_compared_with_each_other_stay_static():
    report = agrees_with_eager(
        lambda x, a, b: x * a if a > b else x - a, (X, 0.5, 1.0), (X, 1.5, 1.0), (X, 2.5, 1.0), (X, 0.5, 2.0)
    )
    assert compilations(report) >= 3


# --- dynamic= -------------------------------------------------------------------------------------------------------


def test_dynamic_true_makes_integer_arguments_symbolic_at_once():
    report = agrees_with_eager(lambda x, n: x * n, *[(X, n) for n in VALUES], dynamic=True)
    assert compilations(report) == 1


def test_dynamic_false_never_does():
    report = agrees_with_eager(lambda x, n: x * n, *[(X, n) for n in VALUES], dynamic=False)
    assert compilations(report) == len(VALUES) and not report.symbols


# --- specialisation -------------------------------------------------------------------------------------------------


def loops(x, n):
    for _ in range(n):
        x = x + 1
    return x


def indexes(x, n):
    return x * [1, 2, 3, 4, 5, 6][n]


def slices(x, n):
    return x * len([1, 2, 3, 4, 5, 6][:n])


def formats(x, n):
    return x + 1, f"n is {n:03d}"


def looks_up(x, n):
    return x * {2: 5, 3: 6, 4: 7}.get(n, 1)


def repeats(x, n):
    return torch.cat([x] * n)


def member(x, n):
    return x + 1 if n in (2, 3, 4) else x


def method(x, n):
    return x * n.bit_length()


def dimension(x, n):
    return x.unsqueeze(0).unsqueeze(0).unsqueeze(0).sum(n)


def power(x, n):
    return x * 2**n


def shifted(x, n):
    return x * (n << 1 | 1 & n ^ 3)


@pytest.mark.parametrize("fn", [loops, indexes, slices, formats, looks_up, repeats, member, method, dimension, power, shifted],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_what_needs_the_value_specialises_and_names_its_line(fn):
    report = agrees_with_eager(fn, (X, 2), (X, 3), (X, 4))
    name, line = next(iter(specialised(report).items()))
    assert name == "n"
    assert "n" in line and not line.startswith("def"), line
    guard = next(g for g in report.guards if g.kind == "SHAPE" and g.expression == "Eq(n, 3)")
    assert guard.span is not None and guard.span.file == __file__


def test_exceptions_are_those_of_eager():
    agrees_with_eager(lambda x, n: x * (1 // n), (X, 1), (X, 2), (X, 0))
    agrees_with_eager(lambda x, n: x * (1 % n), (X, 1), (X, 2), (X, 0))
    agrees_with_eager(lambda x, n: x[n], (X, 1), (X, 2), (X, 100))
    agrees_with_eager(lambda x, n: torch.zeros(n), (X, 1), (X, 2), (X, -3))
    agrees_with_eager(lambda x, n: [1, 2][n] * x, (X, 0), (X, 1), (X, 2))
    agrees_with_eager(lambda x, n: x * (n + "a"), (X, 0), (X, 1), (X, 2))


def test_booleans_beside_symbolic_integers() -> None:
    def fn(x, n, flag):
        return x * (n + flag), n * flag, n - True, flag + n, n > flag, n == True  # noqa: E712

    agrees_with_eager(fn, (torch.ones(2), 3, True), (torch.ones(2), 4, True), (torch.ones(2), 5, False))
