"""Functions proved: what agrees with eager is said to, whatever it does; what does not is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fuselens import api
from fuselens.autograd import random_numbers
from fuselens.inputs.comparison import judge
from fuselens.proving import drawn
from fuselens.proving.kinds import kinds
from fuselens.proving.proof import Prover
from fuselens.record.printed import proved
from fuselens.record.report import Proof, Tried

from .test_kinds import Function

LIMIT = 2


def proof(target: Any, *args: Any, **kwargs: Any) -> Proof:
    return Prover(Function(target, args, kwargs), getattr(target, "__name__", "model"), "").proof()


def branches(x: torch.Tensor, n: int) -> torch.Tensor:
    if x.sum() > 0:
        return x * n
    return x - LIMIT


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x / y.sum()


def draws(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5) + torch.randn(x.shape)


def raises(x: torch.Tensor) -> torch.Tensor:
    if not x.isfinite().all():
        raise ValueError("what is that?")
    return x.reshape(4, -1).softmax(-1)


def half(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x.bfloat16() @ x.bfloat16().T).float()


def counted(x: torch.Tensor) -> dict[str, Any]:
    return {"x": x.unique(), "more": [x.shape[0], (x > 0).sum().item()]}


def asks(x: torch.Tensor) -> torch.Tensor:
    return x * (3 if torch.compiler.is_compiling() else 2)


def asks_and_raises(x: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling() and x.shape[0] < 3:
        raise ValueError("too few")
    return x * 2


def varies(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    deviation, mean = torch.std_mean(x, 0)  # eager: in double precision, and infinities make a mean that is no number
    return x / deviation + torch.nan_to_num(mean), mean


def chaotic(x: torch.Tensor) -> torch.Tensor:
    return torch.var(x * 1e4).sin()  # one step between neighbours is 8 there


@torch.autocast("cpu", torch.bfloat16)
def wrapped(x: torch.Tensor) -> torch.Tensor:  # the context notes what there was before it
    return torch.relu(x @ x.T)


MODEL = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
GOOD = [
    (asks, (torch.randn(4),)), (branches, (torch.randn(4, 3), 3)), (writes, (torch.randn(4, 3), torch.randn(4, 3))),
    (draws, (torch.randn(8),)), (raises, (torch.randn(4, 4),)), (half, (torch.randn(8, 8),)), (counted, (torch.randn(9),)),
    (MODEL, (torch.randn(6, 4),)), (varies, (torch.randn(8, 3),)),
    (chaotic, (torch.randn(100, 8),)), (wrapped, (torch.randn(4, 3),)), (asks_and_raises, (torch.randn(4, 3),)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_what_agrees(number: int) -> None:
    target, args = GOOD[number]
    found = proof(target, *args)
    assert found.agrees, [t for t in found.tried if not t.agrees]
    assert found.left == 0 and len(found.tried) > 10
    assert proved.headline(found).startswith("✓ equals eager (")


def test_what_runs_eagerly_is_not_proved() -> None:
    found = proof(lambda x: x.to_sparse(), torch.randn(4, 4))
    assert found.agrees and found.uncompiled
    assert any("not compiled" in line for line in proved.lines(found, ""))


def test_float64_is_the_judge_of_half_precision() -> None:
    found = proof(half, torch.randn(16, 16))
    first = found.tried[0]
    assert first.exact_error is not None and first.eager_error is not None
    assert 1e-4 < first.exact_error < 4 * first.eager_error


class Doubling(torch.nn.Module):
    """Its gradients are twice as large as its values say."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.times = times
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
        found = self.inner(pair[1]) * weight
        return found * self.times - found.detach() * (self.times - 1)


def test_gradients_have_the_names_of_what_they_are_of() -> None:
    right, wrong = Doubling(1.0), Doubling(2.0)
    wrong.load_state_dict(right.state_dict())
    args = (torch.randn(3, 4), torch.randn(3, 4)), torch.randn(4)
    prover = Prover(Function(right, args), "model", "")
    prover.compiled = wrong
    (kind,) = (kind for kind in kinds(prover.subject) if kind.name == "the example inputs")
    assert prover.tried(kind).detail.startswith("gradient of pair[1]: ")
    judged = judge(right, wrong, kind.args, kind.kwargs, gradients=True)
    assert [text.partition(": ")[0] for text in judged.differing.values()] == [
        "gradient of pair[1]", "gradient of weight", "gradient of inner.weight", "gradient of inner.bias", "<1>.times afterwards"
    ]  # fmt: skip


def test_an_argument_may_have_the_name_of_a_parameter() -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return self.weight * weight

    assert proof(Scale(), torch.randn(4)).agrees


def test_headlines() -> None:
    good = Tried("the example inputs", True, "", 1.2e-7, 2e-7, 1.5e-7)
    assert proved.headline(Proof("f", (good,))) == "✓ equals eager (1.2e-07; float64 agrees)"
    far = Tried("large values", True, "", 1.2e-7, 2e-3, 1e-5)
    assert (
        proved.headline(Proof("f", (good, far))) == "✓ equals eager (1.2e-07; float64: 2.0e-03 from it, eager 1.0e-05)"
    )
    same = Tried("the example inputs", True, "", 0.0)
    assert proved.headline(Proof("f", (same,))) == "✓ equals eager (same bits)"
    assert proved.headline(Proof("f", (good, Tried("zeros", False, "result: …")))) == "✗ differs on zeros"
    assert proved.headline(Proof("f", (), compiled=False)) == "not compiled, so nothing is proved"


class Cached(torch.nn.Module):
    """What it keeps between calls was computed from parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.cache = torch.nn.Buffer(torch.zeros(8, 4))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        self.cache[places] = self.linear(x)
        return self.cache.sin().sum(0)


def test_calls_do_not_differentiate_through_one_another() -> None:
    found = proof(Cached(), torch.randn(2, 4), torch.tensor([1, 3]))
    assert found.agrees and found.compiled, [t for t in found.tried if not t.agrees]


def test_a_whole_graph_says_that_an_exception_escapes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] != 2:
            raise ValueError("two rows")
        return x.sin()

    target = Function(function, (torch.randn(2, 4),), {})
    target = dataclasses.replace(target, config=dataclasses.replace(target.config, fullgraph=True))
    found = Prover(target, "function", "").proof()
    assert found.agrees, [t for t in found.tried if not t.agrees]
    assert any("fullgraph=True" in t.detail for t in found.tried)


# --- what a fault would leave -----------------------------------------------------------------------------------------


def wrapped_by(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, tuple[Any, ...]], Any]) -> None:
    """What is compiled gives what ``change(compiled, args)`` makes of a call."""
    wrap = api.wrap

    def made(target: Any, config: Any, **options: Any) -> Any:
        compiled = wrap(target, config, **options)

        def call(*args: Any) -> Any:
            return change(compiled, args)

        call.__fuselens__ = compiled.__fuselens__  # type: ignore[attr-defined]
        return call

    monkeypatch.setattr(api, "wrap", made)


def failing(target: Any, *args: Any) -> dict[str, str]:
    return {tried.inputs: tried.detail for tried in proof(target, *args).tried if not tried.agrees}


def test_a_view_that_comes_back_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped_by(monkeypatch, lambda compiled, args: compiled(*args).clone())
    found = failing(lambda x: x.view(-1), torch.randn(3, 4))
    assert (
        "eager gives 'memory of input 0" in found["the example inputs"] and "of its own" in found["the example inputs"]
    )


def test_results_with_other_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped_by(monkeypatch, lambda compiled, args: compiled(*args).contiguous())
    assert "strides (1, 4)" in failing(lambda x: x.t() * 2, torch.randn(3, 4))["the example inputs"]


def test_a_write_that_autograd_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def quietly(compiled: Any, args: tuple[Any, ...]) -> Any:
        args[0].data.add_(1)  # counts no write
        return args[0] * 2

    wrapped_by(monkeypatch, quietly)
    assert "written to: eager gives True, compiled False" in failing(lambda x: x.add_(1) * 2, torch.randn(3))["zeros"]


def test_a_setting_that_the_function_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def setting(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x * 2

    def loses(compiled: Any, args: tuple[Any, ...]) -> Any:
        before = torch.is_grad_enabled()
        found = compiled(*args)
        torch.set_grad_enabled(before)
        return found

    assert not failing(setting, torch.randn(3)) and torch.is_grad_enabled()
    wrapped_by(monkeypatch, loses)
    assert "torch.is_grad_enabled() afterwards: eager gives False" in failing(setting, torch.randn(3))["zeros"]
    assert torch.is_grad_enabled()


def test_a_dtype_is_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped_by(monkeypatch, lambda compiled, args: compiled(*args).float())
    found = failing(torch.mm, torch.randn(4, 6), torch.randn(6, 3))
    assert found["under autocast"] == "result: dtype differs: eager torch.bfloat16, compiled torch.float32"


def test_rounding_moves_no_largest_element_from_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twelfth(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.amax(-1)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return (x == x.amax(-1, keepdim=True)) * gradients[0][:, None] / 12

    wrapped_by(monkeypatch, lambda compiled, args: Twelfth.apply(args[0] * 2.0))
    assert "gradient of x" in failing(lambda x: (x * 2.0).amax(-1), torch.randn(4, 37))["other values"]


def test_random_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.3)

    def dropped_too_seldom(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.35)

    found = {t.inputs: t for t in proof(dropped, torch.randn(8, 16)).tried}
    assert found[drawn.NAME].agrees and drawn.NAME not in {t.inputs for t in proof(torch.sin, torch.randn(3)).tried}
    below = random_numbers._below
    monkeypatch.setattr(random_numbers, "_below", lambda streams, like, p: below(streams, like, 0.9 * p))
    tried = {t.inputs: t for t in proof(dropped_too_seldom, torch.randn(8, 16)).tried}
    assert [name for name, t in tried.items() if not t.agrees] == [drawn.NAME] and tried[drawn.NAME].how == "drawn"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda seed: torch.zeros(40), "mean"),
        (lambda seed: torch.randn(40, generator=torch.Generator().manual_seed(7)), "vary from seed to seed"),
        (
            lambda seed: torch.randn(1, generator=torch.Generator().manual_seed(seed)).expand(40),
            "vary from seed to seed",
        ),
    ],
)
def test_distributions(made: Callable[[int], torch.Tensor], says: str) -> None:
    normal = lambda seed: [("result", torch.randn(40, generator=torch.Generator().manual_seed(seed)))]  # noqa: E731
    other = lambda seed: [("result", torch.randn(40, generator=torch.Generator().manual_seed(seed + 1000)))]  # noqa: E731
    assert drawn.difference(normal, other, drawn.SEEDS) == ""
    assert says in drawn.difference(normal, lambda seed: [("result", made(seed))], drawn.SEEDS)


def test_a_number_of_results_without_elements_or_dimensions() -> None:
    """Sums of complex numbers are one number, and not the same bits."""
    assert not failing(lambda z: (z * z.conj() * 1.1).sum(), torch.randn(1000, dtype=torch.complex64))
