"""Nested tensors in the jagged layout: what is captured, what varies without a new compilation, and what gradients are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens


def ragged(*lengths: int, width: int = 8, seed: int = 0, requires_grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(n, width, generator=generator) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def graphs(compiled: Any) -> int:
    return len(compiled.__fuselens__.recorder.report.graphs)


def codes(compiled: Any) -> set[str]:
    report = compiled.__fuselens__.recorder.report
    return {d.code for d in (*report.breaks, *report.diagnostics)}


def values(t: Tensor) -> Tensor:
    return t.values() if t.is_nested else t


def same(fn: Callable[[Tensor], Tensor], compiled: Any, *lengths: int, seed: int = 0) -> None:
    """Compares results, sizes and gradients of one call."""
    found = []
    for each in (fn, compiled):
        t = ragged(*lengths, seed=seed)
        result = each(t)
        values(result).square().sum().backward()
        assert t.grad is not None
        sizes = [s == t.size(1) if isinstance(s, torch.SymInt) else s for s in result.shape]
        found.append((values(result).detach(), values(t.grad), sizes, result.stride()[-1], result.is_nested))
    torch.testing.assert_close(found[1][:2], found[0][:2])
    assert found[1][2:] == found[0][2:]


linear = nn.Linear(8, 8)
normal = nn.LayerNorm(8)


def _heads_and_back(t: Tensor) -> Tensor:
    batch, length, width = t.size()
    heads = (t * 2).view(batch, length, 2, width // 2).transpose(1, 2)
    return heads.cos().transpose(1, 2).flatten(2)


def _halves(t: Tensor) -> Tensor:
    a, b = t.chunk(2, dim=-1)
    return a * b.sigmoid()


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "pointwise": lambda t: t.sin() * 2,
    "linear": lambda t: t + linear(t).relu(),
    "normalised": lambda t: linear(normal(t)),
    "softmax": lambda t: t.softmax(-1) * t,
    "values": lambda t: t.values() * 2,
    "heads": lambda t: t.unflatten(-1, [2, 4]).transpose(1, 2) * 2,
    "heads and back": _heads_and_back,
    "halves": _halves,
    "activation": lambda t: F.dropout(F.gelu(t, approximate="tanh"), 0.0),
    "padded": lambda t: torch.nested.to_padded_tensor(t, 0.5).exp(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_with_gradients(name: str) -> None:
    fn = PROGRAMS[name]
    compiled = fuselens.compile(fn)
    for seed, lengths in enumerate(((2, 3, 4), (5, 6, 2), (4, 4, 9))):
        same(fn, compiled, *lengths, seed=seed)
    assert codes(compiled) <= {"FL201"}


def test_softmax_over_lengths_has_the_gradient_of_its_rows() -> None:
    """Torch's own, as of 2.13, is that of one softmax over all rows."""
    t = ragged(2, 3, 4)
    rows = [row.detach().requires_grad_() for row in t.unbind()]
    (fuselens.compile(lambda t: t.softmax(1) * t)(t)).values().square().sum().backward()
    torch.stack([(row.softmax(0) * row).square().sum() for row in rows]).sum().backward()
    assert t.grad is not None
    torch.testing.assert_close(t.grad.values(), torch.cat([row.grad for row in rows if row.grad is not None]))


def test_one_that_is_made_of_values() -> None:
    """torch gives the operator an empty tensor on the device meta, for which there is no code."""
    fn = lambda t: torch.nested.nested_tensor_from_jagged(t.values() * 2, t.offsets()).cos()  # noqa: E731
    compiled = fuselens.compile(fn)
    for lengths in ((2, 3, 4), (5, 6, 2)):
        same(fn, compiled, *lengths)
    assert codes(compiled) <= {"FL201", "FL301"}


def test_lengths_vary_without_a_new_compilation() -> None:
    compiled = fuselens.compile(PROGRAMS["linear"])
    for seed, lengths in enumerate(((2, 3, 4), (5, 6, 2), (4, 4, 9), (7, 3, 3))):
        same(PROGRAMS["linear"], compiled, *lengths, seed=seed)
    assert graphs(compiled) == 1
    same(PROGRAMS["linear"], compiled, 2, 3)
    assert graphs(compiled) == 2  # another batch


def test_a_result_has_the_size_of_the_argument() -> None:
    compiled = fuselens.compile(lambda t: t * 2)
    t = ragged(2, 3)
    found = compiled(t)
    assert found.shape == t.shape
    assert found.offsets() is t.offsets()  # pyright: ignore[reportAttributeAccessIssue]
    torch.testing.assert_close((found + t).values(), t.values() * 3)


def test_sizes_are_equal_if_they_are_of_the_same_lengths() -> None:
    def fn(a: Tensor, b: Tensor) -> tuple[bool, bool, bool]:
        return a.size(1) == b.size(1), a.shape == b.shape, a.size(1) != b.size(1)

    compiled = fuselens.compile(fn)
    a, b = ragged(2, 3), ragged(2, 3)
    for args in ((a, b), (a, a * 2), (a, b), (b, b + 1)):
        assert compiled(*args) == fn(*args)


def test_a_sum_of_other_lengths_raises_as_eager_does() -> None:
    compiled = fuselens.compile(lambda a, b: a + b)
    a = ragged(2, 3)
    compiled(a, a * 2)
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function"):
        compiled(a, ragged(2, 3))


def test_a_size_lives_through_a_graph_break() -> None:
    def fn(t: Tensor) -> Tensor:
        batch, length, width = t.size()
        t = linear(t)
        print(end="")
        return t.view(batch, length, 2, width // 2).transpose(1, 2) * 2

    compiled = fuselens.compile(fn)
    for lengths in ((2, 3, 4), (5, 6, 2), (9, 9, 9)):
        same(fn, compiled, *lengths)
    assert codes(compiled) <= {"FL103", "FL201"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.projection = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.contiguous().unflatten(-1, [2, 4]) for t in self.qkv(self.first(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.projection(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.second(x))))


def test_a_transformer_trains_on_texts_of_any_length() -> None:
    """Attention on a CPU is eager's own loop over texts, which breaks the graph; all around it is compiled."""
    losses: list[list[float]] = []
    for wrap in (lambda m: m, fuselens.compile):
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block())
        run: Any = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        for step, lengths in enumerate(((4, 2, 7), (3, 9, 5), (6, 6, 2), (8, 3, 3))):
            loss = run(ragged(*lengths, seed=step, requires_grad=False)).values().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(losses[1], losses[0])
    assert losses[0][-1] != losses[0][0]


def test_strides_that_leave_the_graph_are_multiples_of_the_ragged_size() -> None:
    def fn(t: Tensor) -> tuple[Any, Tensor]:
        heads = t.unflatten(-1, [2, 4]).transpose(1, 2) * 2
        return heads.stride(), heads

    compiled = fuselens.compile(fn)
    for lengths in ((3, 2, 4), (5, 3, 2)):
        strides, heads = compiled(t := ragged(*lengths))
        assert bool(strides[0] == 8 * t.size(1)), strides
        assert strides[1:] == (4, 8, 1)
        assert bool(heads.stride()[0] == strides[0])
        assert strides[0].node.nested_int_coeff() == 8
    assert codes(compiled) == set()
    assert graphs(compiled) == 1


def test_attention_on_a_cpu_breaks_the_graph_as_it_looks_at_lengths() -> None:
    def fn(t: Tensor) -> Tensor:
        q = (t * 2).unflatten(-1, [2, 4]).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2) + 1

    compiled = fuselens.compile(fn)
    for lengths in ((3, 2, 4), (5, 3, 2)):
        torch.testing.assert_close(compiled(t := ragged(*lengths)).values(), fn(t).values())
    assert codes(compiled) == {"FL102"}


MADE_INSIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "offsets": lambda v, o: torch.nested.nested_tensor_from_jagged(v * 2, o).cos() * 3,
    "lengths": lambda v, o: torch.nested.nested_tensor_from_jagged(v, lengths=o.diff()) * v.sum(),
    "bounds": lambda v, o: torch.nested.nested_tensor_from_jagged(v, o, min_seqlen=2, max_seqlen=9).sin().values() + 1,
    "padded": lambda v, o: torch.nested.nested_tensor_from_jagged(v * 2, o).to_padded_tensor(0.0) + 1,
    "a list": lambda v, o: torch.nested.nested_tensor([v.detach(), v.detach()[:2]], layout=torch.jagged) * v.sum(),
    "with a given one": lambda v, o: (n := torch.nested.nested_tensor_from_jagged(v, o)) * 2 + n.cos(),
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_nested_tensors_are_made_in_the_graph(name: str) -> None:
    fn = MADE_INSIDE[name]
    compiled = fuselens.compile(fn)
    for lengths in ((3, 4, 5), (2, 6, 3), (4, 4, 7), (9, 2, 2)):
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        found = []
        for each in (fn, compiled):
            v = torch.randn(sum(lengths), 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
            result = each(v, offsets)
            values(result).square().sum().backward()
            found.append((values(result).detach(), v.grad))
        torch.testing.assert_close(found[1], found[0])
    assert codes(compiled) <= {"FL201", "FL203"}
    assert graphs(compiled) == 2 or name == "a list"
