"""Random numbers of Python and numpy: each call draws them anew, in eager's order, and the graph has them as inputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fuselens
from fuselens.capture.program.host_functions import computes_on_host
from fuselens.inputs import comparison


def outcome(function: Callable[..., Any], seed: int, *args: Any) -> Any:
    """What a call gives or raises after these seeds, and where the generators are then."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        found = function(*args)
    except Exception as error:  # noqa: BLE001 - the comparison is about exceptions, too
        found = repr(error)
    return found, random.random(), np.random.rand()


def agrees(
    function: Callable[..., Any], *, graphs: int = 1, breaks: int = 0, backend: str = "eager", x: Any = None
) -> Any:
    """Calls ``function`` eagerly and compiled after five seeds."""
    compiled = fuselens.compile(function, backend=backend)
    for seed in range(5):
        given = torch.arange(1.0, 7.0) if x is None else x
        expected, found = outcome(function, seed, given.clone()), outcome(compiled, seed, given.clone())
        assert comparison.differ(expected, found, "the outcome") is None
    report = compiled.__fuselens__.recorder.report
    assert (len(report.captured), len(report.breaks)) == (graphs, breaks), report.breaks
    return report


def scaled(x: Tensor) -> Any:
    return x * random.uniform(0.5, 1.5) + random.random()


def gaussian(x: Tensor) -> Any:
    return (
        x + random.gauss(0, 1),
        x - random.normalvariate(2.0, 0.5),
        x * random.expovariate(1.5),
        x * random.triangular(),
    )


def whole_numbers(x: Tensor) -> Any:
    return x + random.randint(0, 10), x * random.randrange(3, 9), x - random.getrandbits(6)


def given_as_they_are(x: Tensor) -> Any:
    return x.sin(), random.random(), [np.random.uniform(0, 1), np.random.randint(4)], np.random.randn(2)


def sizes(x: Tensor) -> Any:
    return torch.zeros(random.randint(2, 5), 3) + x[:3]


def arrays(x: Tensor) -> Any:
    noise = np.random.normal(0, 0.1, 6).astype(np.float32)
    noise *= 2
    return x + torch.from_numpy(noise), x[torch.as_tensor(np.random.permutation(6))]


def numbers_of_numpy(x: Tensor) -> Any:
    return x * np.random.randint(3, 9) + np.random.rand(), np.random.choice(5, 3, replace=False)


def in_a_comprehension(x: Tensor) -> Any:
    return [x * random.random() for _ in range(3)], random.random()


def with_a_condition_that_is_not_taken(x: Tensor, p: float = 0.0) -> Any:
    return x * random.random() if p > 0 else x + 1


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize(
    "function",
    [scaled, gaussian, whole_numbers, given_as_they_are, arrays, sizes, numbers_of_numpy, in_a_comprehension,
     with_a_condition_that_is_not_taken],
)  # fmt: skip
def test_what_is_drawn_is_an_input(function: Callable[..., Any], backend: str) -> None:
    agrees(function, backend=backend)


def test_random_numbers_alone_are_no_graph() -> None:
    agrees(lambda x: (random.random(), x), graphs=0)


def test_a_branch_has_both_sides() -> None:
    def function(x: Tensor) -> Tensor:
        if random.random() < 0.5:
            x = x + 1
        return x * random.gauss(0, 1)

    report = agrees(function, graphs=2, breaks=1)
    assert report.breaks[0].code == "FL101"
    assert not any(d.code == "FL201" for d in report.diagnostics)


def test_where_the_trace_needs_the_number_it_breaks() -> None:
    """A size that must be a number, a bound of a loop: then the frame breaks where that is drawn."""

    def looped(x: Tensor) -> Tensor:
        for _ in range(random.randint(1, 3)):
            x = x + 1
        return x

    compiled = fuselens.compile(looped, backend="eager")
    for seed in range(5):
        x = torch.ones(3)
        assert comparison.differ(outcome(looped, seed, x), outcome(compiled, seed, x), "the outcome") is None
    assert "FL115" in {b.code for b in compiled.__fuselens__.recorder.report.breaks}


def test_draws_before_and_after_a_break() -> None:
    def function(x: Tensor) -> Any:
        y = x.cos() * random.random()
        print("", end="")
        return y * np.random.rand(), random.random()

    agrees(function, graphs=2, breaks=1)


def test_a_seed_in_between() -> None:
    def function(x: Tensor) -> Any:
        a = x * random.random()
        random.seed(3)
        return a + random.random()

    agrees(function)


def test_arguments_that_are_refused() -> None:
    agrees(lambda x: x + random.randint(5, 2), graphs=0, breaks=1)


def test_a_frame_that_runs_again_draws_the_same() -> None:
    """A graph that raises is followed by its frame, which begins with the generators as they were."""

    def function(x: Tensor) -> Any:
        u, v = random.random(), np.random.rand(2)
        return torch.linalg.cholesky(x.reshape(2, 3)[:, :2] * u * float("nan")), v

    compiled = fuselens.compile(function, backend="eager")
    x = torch.arange(6.0)
    assert comparison.differ(outcome(function, 3, x), outcome(compiled, 3, x), "the outcome") is None


def test_gradients_of_gradients_draw_once() -> None:
    def function(x: Tensor) -> Tensor:
        return (x**3).sum() * random.random()

    compiled = fuselens.compile(function)
    for seed in range(3):
        found = []
        for called in (function, compiled):
            random.seed(seed)
            x = torch.ones(3, requires_grad=True)
            (first,) = torch.autograd.grad(called(x), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            found.append((first.detach(), second, random.random()))
        assert comparison.differ(*found, "gradients of gradients") is None


def test_another_function_in_its_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fuselens.compile(lambda x: x + random.random() + np.random.rand(), backend="eager")
    compiled(torch.ones(2))
    monkeypatch.setattr(random, "random", lambda: 5.0)
    monkeypatch.setattr(np.random, "rand", lambda: 7.0)
    assert compiled(torch.ones(2)).tolist() == [13.0, 13.0]


def test_small_arrays_are_not_guarded() -> None:
    """The numbers in small tensors may be guarded where the program needs them; those of a draw never are."""
    compiled = fuselens.compile(lambda x: x + np.random.rand(1).item(), backend="eager")
    for seed in range(6):
        assert comparison.differ(
            outcome(lambda x: x + np.random.rand(1).item(), seed, torch.ones(2)), outcome(compiled, seed, torch.ones(2)), "it"
        ) is None  # fmt: skip
    assert len(compiled.__fuselens__.recorder.report.captured) <= 2


# --- functions that are drawn as a whole


def span_mask(shape: tuple[int, int], probability: float, length: int, least: int = 1) -> Any:
    """As models of speech hide parts of what they hear: how many spans there are hangs on a number that is drawn."""
    rows, columns = shape
    if length > columns:
        raise ValueError(f"{length} is longer than {columns}")
    rounding = np.random.rand(1).item()

    def spans(columns: int) -> int:
        return max(int(probability * columns / length + rounding), least)

    mask = np.zeros((rows, columns), dtype=bool)
    for row in range(rows):
        for start in np.random.choice(np.arange(columns - length + 1), spans(columns), replace=False):
            mask[row, start : start + length] = True
    return mask


def coin(p: float) -> float:
    return 1.5 if random.random() < p else np.random.rand(1).item()


def of_some_length(most: int) -> Any:
    return np.ones(1 + int(np.random.rand(1).item() * most))


def rarely_longer(p: float) -> Any:
    return np.zeros(3 if np.random.rand(1).item() > p else 4)


printed: list[float] = []


def noted(scale: float) -> Any:
    number = np.random.rand(1).item()
    printed.append(number)
    return np.full(6, number * scale)


def masked(x: Tensor) -> Any:
    before = random.random()
    mask = torch.from_numpy(span_mask((2, 12), 0.4, 2))
    y = x.repeat(2, 2).sin()
    y[mask] = 0.0
    return y * before, np.random.rand(), span_mask((1, 6), 0.5, 1)


def flipped(x: Tensor) -> Any:
    return x * coin(0.5) + coin(1.0), np.random.randn(2)


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize("function", [masked, flipped])
def test_functions_of_the_host_are_drawn_as_a_whole(function: Callable[..., Any], backend: str) -> None:
    agrees(function, backend=backend)


def test_a_function_whose_result_has_some_length_breaks() -> None:
    agrees(lambda x: x.sin() * of_some_length(5).sum(), breaks=1, graphs=3)


def test_a_function_with_another_effect_breaks() -> None:
    def function(x: Tensor) -> Any:
        return x.sin() * torch.from_numpy(noted(2.0)), len(printed)

    for seed in range(3):
        printed.clear()
        expected = outcome(function, seed, torch.ones(6))
        seen = [*printed]
        printed.clear()
        found = outcome(fuselens.compile(function, backend="eager"), seed, torch.ones(6))
        assert comparison.differ(expected, found, "the outcome") is None and printed == seen


def test_a_result_of_another_shape_is_eagers() -> None:
    """By chance it had one shape while tracing; a call that draws another one runs as written, with the same numbers."""

    def function(x: Tensor) -> Any:
        mask = rarely_longer(0.2)
        return x.sum() + torch.from_numpy(mask).sum() + mask.shape[0], np.random.rand()

    compiled, shapes = fuselens.compile(function, backend="eager"), set()
    for seed in range(40):
        expected, found = outcome(function, seed, torch.ones(2)), outcome(compiled, seed, torch.ones(2))
        assert comparison.differ(expected, found, "the outcome") is None
        shapes.add(float(expected[0][0]))
    assert len(shapes) == 2


def test_an_exception_is_the_functions_own() -> None:
    def function(x: Tensor, length: int) -> Any:
        return x + torch.from_numpy(span_mask((1, 6), 0.5, length)).sum()

    compiled = fuselens.compile(function, backend="eager")
    for length in (2, 7, 2):
        expected, found = (outcome(f, 0, torch.ones(3), length) for f in (function, compiled))
        assert comparison.differ(expected, found, "the outcome") is None


class Held:
    mask = np.zeros(3)


held = Held()
counted = [0]


def with_a_global_array() -> Any:
    return held.mask * random.random()


def counting() -> Any:
    counted[0] += 1
    return np.zeros(3)


def writing(x: int) -> Any:
    np.save("file", np.zeros(x))


def seeding() -> Any:
    np.random.seed(3)
    return np.random.rand(3)


def importing() -> Any:
    import os

    return os.getcwd()


def evaluated() -> Any:
    return eval("1 + 1")


def with_a_list(found: list[int] = []) -> Any:  # noqa: B006
    found.append(1)
    return np.zeros(len(found))


def with_helpers(shape: int) -> Any:
    return [span_mask((2, shape), 0.5, 1), coin(0.5), sorted(range(shape), key=lambda k: -k)]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (span_mask, True), (coin, True), (of_some_length, True), (with_helpers, True),
        (noted, False), (with_a_global_array, False), (counting, False), (writing, False), (seeding, False), (importing, False),
        (evaluated, False), (with_a_list, False), (outcome, False),
    ],
)  # fmt: skip
def test_what_computes_on_the_host(function: Any, expected: bool) -> None:
    assert computes_on_host(function) is expected


def test_a_closure_is_not_looked_into() -> None:
    seen: list[int] = []

    def function(n: int) -> Any:
        seen.append(n)
        return np.random.rand(n)

    assert not computes_on_host(function)
