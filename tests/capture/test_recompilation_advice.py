"""Why a program is compiled again and again, how often, and what would spare it."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from fuselens.record.report import Diagnostic

FACTOR = "a"
X = torch.ones(4)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    fuselens.reset()
    yield
    fuselens.reset()


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.rate = 0, 0.5
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.drop(x) * self.step


class Holder:
    pass


def written(x: Any, n: Any) -> Any:
    return x * len(str(n))


def named(x: Any, name: Any) -> Any:
    return x * len(name)


def by_global(x: Any) -> Any:
    return x * len(FACTOR)


def doubled(x: Any) -> Any:
    return x * 2


def of_items(x: Any, items: Any) -> Any:
    return sum(items, x)


def of_keys(x: Any, table: Any) -> Any:
    return x * len(table)


def applied(x: Any, function: Any) -> Any:
    return function(x)


def counted(compiled: Any, k: int) -> Any:
    module = compiled.__fuselens__.target
    module.step = k
    return compiled(X)


def with_global(compiled: Any, k: int) -> Any:
    global FACTOR
    FACTOR = "a" * (k + 1)
    return compiled(X)


def with_static(compiled: Any, k: int) -> Any:
    x = torch.ones(4 + k)
    fuselens.mark_static(x, 0)
    return compiled(x)


def with_new_code(compiled: Any, k: int) -> Any:
    space: dict[str, Any] = {}
    exec(f"def made(x):\n    return x + {k}", space)
    return compiled(X, space["made"])


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32)
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], Callable[[Any, int], Any], str, str]] = {
    "an integer of a module": (Counted, {}, counted, "self.step: expected 1, found 2", "symbolic_module_integers"),
    "a float that is written": (lambda: written, {}, lambda f, k: f(X, k + 0.5), "n: expected 1.5, found 2.5", "torch.where"),
    "a text": (lambda: named, {}, lambda f, k: f(X, "n" * k), "name: expected 'n', found 'nn'", "Each value is compiled apart"),
    "a global": (lambda: by_global, {}, with_global, "FACTOR: expected 'aa', found 'aaa'", "Pass it as an argument"),
    "a static mark": (lambda: doubled, {}, with_static, "x: expected f32[5], found f32[6]", "take the mark away"),
    "dynamic=False": (
        lambda: doubled, {"dynamic": False}, lambda f, k: f(torch.ones(4 + k)), "x: expected f32[5], found f32[6]", "leave that out",
    ),
    "dtypes": (lambda: doubled, {}, lambda f, k: f(torch.ones(4).to(DTYPES[k])), "x: expected f64[4], found bf16[4]", "Cast"),
    "a list": (lambda: of_items, {}, lambda f, k: f(X, [X] * (k + 1)), "len(items): expected 2, found 3", "torch.stack"),
    "a dictionary": (
        lambda: of_keys, {}, lambda f, k: f(X, dict.fromkeys(range(k))), "the keys of table: expected [0], found [0, 1]", "the entries",
    ),
    "functions": (lambda: applied, {}, with_new_code, "function.__code__: expected that of made, found another one", "make it once"),
}  # fmt: skip


def findings(compiled: Any, code: str) -> list[Diagnostic]:
    return [d for d in compiled.__fuselens__.recorder.report.diagnostics if d.code == code]


@pytest.mark.parametrize("name", CASES)
def test_what_changes_how_often_and_what_to_do(name: str) -> None:
    make, options, call, why, advice = CASES[name]
    compiled = fuselens.compile(make(), **options)
    for k in range(2):
        call(compiled, k)
    assert findings(compiled, "FL205") == []  # twice may be all that there is
    call(compiled, 2)
    (found,) = findings(compiled, "FL205")
    assert found.message.startswith("recompiled 2 times for one reason: `")
    assert found.message.endswith(f"because of {why}"), found.message
    assert advice in found.hints[0], found.hints
    assert found.span is not None and found.span.file == __file__
    assert found.span == findings(compiled, "FL201")[-1].span


def test_it_counts() -> None:
    compiled = fuselens.compile(named, options={"recompile_limit": 6})
    for k in range(12):
        compiled(X, "n" * k)
    (found,) = findings(compiled, "FL205")
    assert found.message.startswith("recompiled 4 times for one reason: `named`") and "limit (6)" in found.explanation
    (reached,) = findings(compiled, "FL202")
    assert reached.hints[-1] == found.hints[0]


def test_nothing_is_said_of_frames_that_do_not_compute() -> None:
    """Such as those that install hooks in each module of a model."""

    def put_down(names: list[str], found: types.SimpleNamespace) -> None:
        for name in names:
            fuselens.graph_break()
            found.items.append(name + "s")

    def call(x: Any, names: list[str]) -> Any:
        fuselens.graph_break()
        found = types.SimpleNamespace(items=[])
        put_down(names, found)
        return x * len(found.items)

    compiled = fuselens.compile(call)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(12):
            compiled(X, [f"name{k}"])
    assert findings(compiled, "FL201") and not findings(compiled, "FL202") and not findings(compiled, "FL205")


def test_the_option_that_is_offered_helps() -> None:
    compiled = fuselens.compile(Counted().eval(), options={"symbolic_module_integers": True})
    for k in range(6):
        counted(compiled, k + 2)
    assert len(compiled.__fuselens__.recorder.report.graphs) == 2 and findings(compiled, "FL205") == []


@pytest.mark.parametrize(
    ("make", "call", "advice"),
    [
        (Counted, lambda f, k: f.__fuselens__.target.train(k % 2 == 0) and f(X), "Each mode is compiled once"),
        (lambda: doubled, lambda f, k: f(torch.ones(4, requires_grad=k % 2 == 0)), "detach()"),
        (lambda: doubled, lambda f, k: f(torch.ones(4, 3) if k % 2 else torch.ones(3, 4).t()), "contiguous()"),
    ],
)
def test_what_flips_is_said_once(make: Callable[[], Any], call: Callable[[Any, int], Any], advice: str) -> None:
    compiled = fuselens.compile(make())
    for k in range(6):
        call(compiled, k)
    (found,) = findings(compiled, "FL201")
    assert advice in found.hints[0]
    assert findings(compiled, "FL205") == []


def test_sizes_that_vary_need_no_advice() -> None:
    compiled = fuselens.compile(lambda x, n: x * n)
    for k in range(8):
        compiled(torch.ones(k, 3), k)
    assert findings(compiled, "FL205") == []
    assert all(d.hints == () for d in findings(compiled, "FL201"))
