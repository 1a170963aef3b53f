"""Backwards from some results of a graph, then from others: eager's nodes let go of what they saved one by one.

Each program gives what eager gives, in values, metadata and exceptions, when its function is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fuselens
from tests.support.surroundings import Programs, assert_agree, outcome

PROGRAMS = Programs()
program = PROGRAMS.add
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


def leaf(seed: int) -> Tensor:
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def gradients(tensors: Any) -> list[Any]:
    return [None if t.grad is None else t.grad.clone() for t in tensors]


def in_turn(compiled: Any, fn: Callable[..., Any], tensors: list[Tensor], order: tuple[int, ...]) -> Any:
    """What a backward from one result after the other leaves."""
    results = compiled(fn)(*tensors)
    found = []
    for i in order:
        found.append(outcome(lambda i=i: results[i].sum().backward()))
        if found[-1][0] != "returned":  # how far it came is eager's own
            break
        found.append(gradients(tensors))
    return found


def three() -> list[Tensor]:
    return [leaf(i) for i in range(3)]


@program
def apart(compiled: Any) -> Any:
    return in_turn(compiled, lambda a, b, c: (a.sin() @ a, b.exp() * c), three(), (0, 1))


@program
def apart_backwards(compiled: Any) -> Any:
    return in_turn(compiled, lambda a, b, c: (a.sin() @ a, b.exp() * c), three(), (1, 0))


@program
def each_once(compiled: Any) -> Any:
    return in_turn(compiled, lambda a, b, c: (a.sin(), b.exp() * c, a * b), three(), (2, 0, 1, 0))


@program
def one_weight_in_both(compiled: Any) -> Any:
    """A leaf that both read is no node between."""
    return in_turn(compiled, lambda a, b, c: ((a @ c).relu(), (b @ c).relu()), three(), (0, 1))


@program
def a_trunk(compiled: Any) -> Any:
    def fn(a: Tensor, b: Tensor, c: Tensor) -> Any:
        trunk = (a @ b).tanh()
        return trunk * 2, trunk @ c

    return in_turn(compiled, fn, three(), (0, 1))


@program
def a_trunk_that_saves_nothing(compiled: Any) -> Any:
    def fn(a: Tensor, b: Tensor, c: Tensor) -> Any:
        trunk = a + b
        return trunk.sin(), trunk @ c

    return in_turn(compiled, fn, three(), (1, 0))


@program
def a_trunk_and_another(compiled: Any) -> Any:
    def fn(a: Tensor, b: Tensor, c: Tensor) -> Any:
        trunk = (a @ b).tanh()
        return trunk * 2, trunk @ b, c.exp()

    return in_turn(compiled, fn, three(), (0, 2, 1))


@program
def nothing_saved(compiled: Any) -> Any:
    return in_turn(compiled, lambda a, b, c: (a + b, b.exp() * c), three(), (1, 0, 0))


@program
def the_same_twice(compiled: Any) -> Any:
    return in_turn(compiled, lambda a, b, c: (a.sin(), b.exp() * c), three(), (0, 0))


@program
def both_after_one(compiled: Any) -> Any:
    tensors = three()
    first, second = compiled(lambda a, b, c: (a.sin(), b.exp() * c))(*tensors)
    first.sum().backward()
    return outcome(lambda: (first + second).sum().backward())


@program
def kept_at_first(compiled: Any) -> Any:
    tensors = three()
    first, second = compiled(lambda a, b, c: (a.sin() * b, b.exp() * c))(*tensors)
    first.sum().backward(retain_graph=True)
    second.sum().backward()
    found = outcome(lambda: first.sum().backward()), gradients(tensors)
    return found, outcome(lambda: first.sum().backward())


@program
def kept_at_second(compiled: Any) -> Any:
    tensors = three()
    first, second = compiled(lambda a, b, c: (a.sin() * b, b.exp() * c))(*tensors)
    first.sum().backward()
    second.sum().backward(retain_graph=True)
    second.sum().backward()
    return gradients(tensors), outcome(lambda: second.sum().backward()), outcome(lambda: first.sum().backward())


def written_between(compiled: Any, which: int) -> Any:
    tensors = three()
    first, second = compiled(lambda a, b, c: ((a.sin() @ a), (b.exp() @ c)))(*tensors)
    first.sum().backward()
    with torch.no_grad():
        tensors[which].add_(1)
    return outcome(lambda: second.sum().backward()), gradients(tensors)


@program
def what_is_read_no_more_is_written_to(compiled: Any) -> Any:
    return written_between(compiled, 0)


@program
def gradients_of_gradients(compiled: Any) -> Any:
    tensors = three()
    first, second = compiled(lambda a, b, c: (a.sin() @ a, b.exp() * c))(*tensors)
    (found,) = torch.autograd.grad(first.sum(), tensors[:1], create_graph=True)
    found.square().sum().backward()
    second.sum().backward()
    return found.detach(), gradients(tensors)


@program
def of_a_function(compiled: Any) -> Any:
    """Tangents that are no plain tensors."""
    tensors = three()
    first, second = compiled(lambda a, b, c: (a.sin() @ a, b.exp() * c))(*tensors)
    tangents = torch.eye(9).reshape(9, 3, 3)
    rows = torch.autograd.grad(first, tensors[0], tangents, is_grads_batched=True)
    second.sum().backward()
    return rows, gradients(tensors)


@program
def adversaries(compiled: Any) -> Any:
    """A step of a generator and a discriminator: the first backward stops at the generator, the second goes through both."""
    torch.manual_seed(0)
    makes, tells = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (makes, tells)]

    def step(noise: Tensor, real: Tensor) -> Any:
        optimizers[1].zero_grad()
        made = makes(noise)
        loss = F.softplus(tells(made.detach())).mean() + F.softplus(-tells(real)).mean()
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        other = F.softplus(-tells(made)).mean()
        other.backward()
        optimizers[0].step()
        return loss.detach(), other.detach()

    run = compiled(step)
    losses = [run(torch.randn(5, 4), torch.randn(5, 4)) for _ in range(3)]
    return losses, [p.detach() for m in (makes, tells) for p in m.parameters()]


def behind(compiled: Any, fn: Callable[..., Any], order: tuple[int, ...] = (0, 1)) -> Any:
    """As :func:`in_turn`, where what ``fn`` is given was computed of leaves, by nodes that save tensors."""
    tensors = three()
    results = compiled(fn)(*((t @ t).tanh() for t in tensors))
    found = []
    for i in order:
        found.append((outcome(lambda i=i: results[i].sum().backward()), gradients(tensors)))
    return found


@program
def behind_inputs(compiled: Any) -> Any:
    return behind(compiled, lambda a, b, c: (a.sin() @ a, b.exp() * c))


@program
def behind_inputs_of_three(compiled: Any) -> Any:
    return behind(compiled, lambda a, b, c: (a.sin().sum(), (b.exp() @ b).relu(), c @ c), (2, 0, 1))


@program
def behind_a_detached_input(compiled: Any) -> Any:
    tensors = three()
    made = (tensors[0] @ tensors[0]).tanh()
    loss = compiled(lambda a, b: (a.detach() @ b).sum())(made, tensors[1])
    loss.backward()
    found = gradients(tensors)
    made.sum().backward()
    return found, gradients(tensors)


@program
def behind_what_two_losses_read(compiled: Any) -> Any:
    """Of a discriminator's loss, which detaches what was generated, and a generator's."""
    tensors = three()
    made = (tensors[0] @ tensors[0]).tanh()

    def losses(a: Tensor, b: Tensor, real: Tensor) -> Any:
        first = (a.detach() @ b).sigmoid().sum() - (real @ b).sigmoid().sum()
        return first, (a @ b).sigmoid().sum()

    found = []
    for loss in compiled(losses)(made, *tensors[1:]):
        found.append((outcome(lambda loss=loss: loss.backward()), gradients(tensors)))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    assert_agree(PROGRAMS[name], lambda f: fuselens.compile(f, backend="aot_eager"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_with_kernels(name: str) -> None:
    assert_agree(PROGRAMS[name], fuselens.compile)


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
def test_what_is_read_is_written_to(backend: Any) -> None:
    found = written_between(lambda fn: fuselens.compile(fn, backend=backend), 2)
    assert "modified by an inplace operation" in str(found[0])


@pytest.mark.parametrize(("order", "alive"), [((0, 1), [True, False]), ((2,), [False]), ((1,), [True])], ids=str)
def test_what_was_saved_lives_while_it_may_be_read(order: tuple[int, ...], alive: list[bool]) -> None:
    def fn(a: Tensor, b: Tensor) -> Any:
        first, second = (a @ a).tanh(), (b @ b).tanh()
        return first, second, first * second

    results = list(fuselens.compile(fn)(*three()[:2]))
    saved = results[0].grad_fn
    found = []
    for i in order:
        results[i].sum().backward()
        found.append(hasattr(saved, "left") and saved.left is not None)
    assert found == alive


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_graph(data: st.DataObject) -> None:
    """Programs of a few operations, of which all results are differentiated one after the other."""
    kinds = [torch.sin, torch.add, torch.mul, torch.matmul, torch.neg, torch.sub]
    steps = [
        (data.draw(st.sampled_from(kinds)), data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20)))
        for _ in range(data.draw(st.integers(2, 8)))
    ]
    ends = data.draw(st.lists(st.integers(0, 20), min_size=2, max_size=4))

    def fn(*tensors: Tensor) -> Any:
        values = list(tensors)
        for kind, i, j in steps:
            of = [values[i % len(values)], values[j % len(values)]]
            values.append(kind(of[0]) if kind in (torch.sin, torch.neg) else kind(*of))
        made = values[len(tensors) :]
        return tuple(made[i % len(made)] * 1 for i in ends)

    order = tuple(data.draw(st.permutations(range(len(ends)))))
    expected = in_turn(lambda f: f, fn, three(), order)
    found = in_turn(lambda f: fuselens.compile(f, backend="aot_eager"), fn, three(), order)
    for e, a in zip(expected, found, strict=True):
        if isinstance(e, list):
            torch.testing.assert_close(a, e)
        else:
            assert type(e) is type(a) and str(e)[:40] == str(a)[:40]
