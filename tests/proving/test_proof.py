"""Functions proved: what agrees with eager is said to, whatever it does; what does not is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fuselens.inputs.comparison import judge
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
    (chaotic, (torch.randn(100, 8),)), (wrapped, (torch.randn(4, 3),)),
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
