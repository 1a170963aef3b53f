"""What is saved, what is recomputed, and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from autograd_cases import CASES
from harness import case_agrees, compile_case
from torch import Tensor

from fuselens.autograd.partition import Partition, packet, partition
from tests.support.functions import deep
from tests.support.tensors import leaf


def parts(fn: Any, inputs: list[Any], budget: float = 1.0) -> Partition:
    found = compile_case(fn, inputs, budget=budget).parts
    assert found is not None
    return found


def test_pointwise_chain_saves_its_inputs_only() -> None:
    p = parts(lambda x, y: (x.sin() * y.exp()).tanh().cos(), [leaf(8, 8), leaf(8, 8)])
    assert p.bytes_saved == 0
    assert {s.source for s in p.saved} == {"input"}
    assert any(d.code == "FL311" and d.verdict == "recomputed" for d in p.decisions)


def test_relu_between_matmuls_is_saved_once() -> None:
    p = parts(lambda x, v, w: F.relu(x @ v) @ w, [leaf(8, 6), leaf(6, 4), leaf(4, 3)])
    assert [s.name for s in p.saved if s.source != "input"] == ["relu"]
    assert p.bytes_saved == 8 * 4 * 4


def test_sums_of_a_residual_stream_are_saved_rather_than_what_was_added() -> None:
    def stream(x: Tensor, scale: Tensor, shift: Tensor, *weights: Tensor) -> Tensor:
        for w in weights:
            x = x + F.layer_norm(x, (8,), scale, shift).tanh() @ w
        return F.layer_norm(x, (8,), scale, shift)

    p = parts(stream, [leaf(64, 8), leaf(8), leaf(8), *(leaf(8, 8) for _ in range(4))])
    large = [s.name.rstrip("_0123456789") for s in p.saved if s.source != "input" and s.bytes == 64 * 8 * 4]
    assert sorted(large) == ["add"] * 3 + ["mm"] + ["tanh"] * 4  # the first sum is of an input, which costs nothing


def test_mask_is_saved_rather_than_the_value() -> None:
    p = parts(lambda x, w: F.relu(x @ w) * 2, [leaf(64, 16), leaf(16, 32)])
    assert p.bytes_saved == 64 * 32  # booleans


def test_matmuls_and_random_numbers_are_never_repeated() -> None:
    p = parts(lambda x, w: F.dropout((x @ w).tanh(), 0.5), [leaf(8, 6), leaf(6, 4)])
    targets = [packet(n) for n in p.backward.graph.nodes]
    assert "bernoulli" not in targets and targets.count("mm") == 2
    with_mask = parts(lambda x, w: F.dropout((x @ w).tanh(), 0.5), [leaf(8, 6), leaf(6, 4)], budget=0.0)
    assert "bernoulli" not in [packet(n) for n in with_mask.backward.graph.nodes]


def test_every_decision_has_a_reason_and_a_span() -> None:
    p = parts(deep, [leaf(8, 8), leaf(8, 8), leaf(8, 8)])
    assert {d.code for d in p.decisions} == {"FL310", "FL311"}
    for d in p.decisions:
        assert d.reason and d.span is not None and d.data["shape"].startswith("float32[")
    assert len([d for d in p.decisions if d.code == "FL310"]) == len(p.saved)


@pytest.mark.parametrize(
    ("fn", "once"),
    [
        (lambda x: torch.linalg.svd(x.exp())[0] * 2, "_linalg_svd"),
        (lambda x: torch.linalg.inv(x.exp()).sin(), "linalg_inv_ex"),
        (lambda x: F.max_pool3d(x[None, None, None].exp(), (1, 2, 2)).sin(), "max_pool3d_with_indices"),
        (lambda x: torch.special.i0(x).sin().exp(), "i0"),
    ],
    ids=["svd", "inv", "pool", "i0"],
)
def test_what_becomes_no_loop_is_not_repeated(fn: Any, once: str) -> None:
    joint = compile_case(fn, [leaf(8, 8)]).joint
    p = partition(joint, fuses=lambda target: target.overloadpacket.__name__ != once)
    assert once in [packet(n) for n in p.forward.graph.nodes]
    assert once not in [packet(n) for n in p.backward.graph.nodes]
    assert f"{once} is not computed twice" in [d.reason for d in p.decisions]


def test_budget_lowers_what_is_saved() -> None:
    inputs = [leaf(32, 16)] + [leaf(16, 16) for _ in range(5)]
    saved = [parts(deep, inputs, b).bytes_saved for b in (1.0, 0.7, 0.5, 0.3, 0.0)]
    assert saved == sorted(saved, reverse=True)
    assert saved[2] <= saved[0] / 2 and saved[4] == 0


def test_budget_outside_its_range() -> None:
    compiled = compile_case(deep, [leaf(4, 4), leaf(4, 4)])
    with pytest.raises(ValueError, match="memory_budget"):
        partition(compiled.joint, memory_budget=1.5)


@pytest.mark.parametrize("budget", [0.0, 0.5])
@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "layernorm-residual",
        "encoder-layer",
        "dropout-mlp",
        "batchnorm2d-conv",
        "cross-entropy",
        "sdpa",
        "mutate-used-by-backward",
        "inplace-on-view",
        "random-order",
        "embedding",
        "return-view-and-base",
    ],
)
def test_agrees_at_every_budget(name: str, budget: float) -> None:
    case = next(c for c in CASES if c.name == name)
    case_agrees(case.fn, case.make, case.prepare, budget=budget, **case.options)


def test_cut_is_minimal_on_small_graphs() -> None:
    """Against exhaustive search over sets of forward values."""
    import itertools

    from fuselens.autograd.partition import _Cut, is_number

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = x @ w
        a = h.exp()
        b = (a + h).sum(1, keepdim=True)
        return (a / b).tanh() @ w.t()

    joint = compile_case(fn, [leaf(8, 6), leaf(6, 6)]).joint
    cut = _Cut(joint, lambda target: True)
    chosen = cut.solve(cut.banned)
    candidates = [n for n in cut.nodes if n in cut.needed and n not in cut.inputs and cut._capacity(n) is not None]

    def valid(saved: set[Any]) -> bool:
        stack = [a for n in cut.backward for a in n.all_input_nodes if a not in cut.backward]
        while stack:
            node = stack.pop()
            if node in saved or node in cut.inputs:
                continue
            if node in cut.banned:
                return False
            stack += node.all_input_nodes
        return True

    best = min(
        sum(cut._capacity(n) for n in s)
        for k in range(len(candidates) + 1)
        for s in map(set, itertools.combinations(candidates, k))
        if valid(s)
    )
    ours = sum(cut._capacity(n) for n in chosen.saved if n not in cut.inputs and not is_number(n))
    assert ours == best


def test_what_only_the_backward_needs_is_computed_there() -> None:
    """The one-hot part of the gradient of a cross entropy reads targets, which are there anyway: it is as large as the scores."""
    scores, target = leaf(16, 50), torch.randint(0, 50, (16,))
    p = parts(lambda s, t: F.cross_entropy(s.tanh(), t), [scores, target])
    assert not {"scatter", "eq", "where"} & {
        packet(n) for n in p.forward.graph.nodes if getattr(n.meta.get("val"), "shape", None) == (16, 50)
    }
    assert p.bytes_saved < 16 * 50 * 4
