"""``state_dict()`` in compiled functions, and what it is made of: ordered dictionaries that have attributes."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuselens

from .harness import agrees_with_eager

GIVEN: Any = OrderedDict(a=1)
GIVEN.extra = [3]


def attributes(value: OrderedDict[str, Any]) -> Any:
    return list(value), dict(vars(value))


def made(x: Tensor) -> Any:
    d: Any = OrderedDict(a=x)
    d.extra = [x + 1]
    d.extra.append(x * 2)
    d.itself = d
    return d["a"] + d.extra[1], d.itself is d, hasattr(d, "other"), len(d.extra)


def copied(x: Tensor) -> Any:
    d: Any = OrderedDict(a=x)
    d.extra = [x + 1]
    every = copy.copy(d), copy.deepcopy(d), d.copy(), OrderedDict(d), d | {"b": x}
    return [attributes(each) for each in every], every[0].extra is d.extra, every[1].extra is d.extra


def changed(x: Tensor) -> Any:
    d: Any = OrderedDict(a=x)
    d.extra = x
    d.extra = x + 1
    d.pop("a")
    return attributes(d), d.__dict__


def broken(x: Tensor) -> Any:
    d: Any = OrderedDict(a=x)
    d.extra = [x + 1]
    fuselens.graph_break()
    d.extra.append(d["a"])
    return attributes(d), d.extra[0] * 2


def of_existing(x: Tensor) -> Any:
    return x * len(GIVEN.extra), hasattr(GIVEN, "other"), getattr(GIVEN, "other", 7), attributes(copy.deepcopy(GIVEN))


@pytest.mark.parametrize("fn", [made, copied, changed, broken, of_existing], ids=lambda fn: fn.__name__)
def test_attributes_of_ordered_dictionaries(fn: Callable[[Tensor], Any]) -> None:
    agrees_with_eager(fn, (torch.ones(2),), breaks=int(fn is broken))


def test_it_is_noticed_that_they_change() -> None:
    given: Any = OrderedDict(a=1)

    def fn(x: Tensor) -> Tensor:
        return x * (given.extra if hasattr(given, "extra") else 100)

    compiled = fuselens.compile(fn, backend="eager")
    x = torch.ones(2)
    for value in (None, 3.0, 5.0, None):
        vars(given).clear()
        if value is not None:
            given.extra = value
        assert compiled(x).equal(fn(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_a_state_is_the_module_s() -> None:
    model = network()
    compiled = fuselens.compile(
        lambda x: (x * 2, model.state_dict(), model.state_dict(prefix="p.", keep_vars=True)),
        backend="eager",
        fullgraph=True,
    )
    _, plain, kept = compiled(torch.ones(2))
    for found, expected in ((plain, model.state_dict()), (kept, model.state_dict(prefix="p.", keep_vars=True))):
        assert type(found) is OrderedDict and attributes(found)[0] == attributes(expected)[0]
        assert found._metadata == expected._metadata
        for name, tensor in expected.items():
            assert found[name].data_ptr() == tensor.data_ptr() and found[name].requires_grad == tensor.requires_grad


def test_an_average_of_states() -> None:
    averages = []
    for compiles in (False, True):
        model, average = network(), network()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)

        @torch.no_grad()
        def update(model: nn.Module = model, average: nn.Module = average) -> None:
            new = model.state_dict()
            for name, value in average.state_dict().items():
                if value.dtype.is_floating_point:
                    value.mul_(0.9).add_(new[name], alpha=0.1)

        run = fuselens.compile(update, fullgraph=True) if compiles else update
        for _ in range(3):
            run()
        averages.append(dict(average.state_dict()))
    torch.testing.assert_close(*averages)


def test_methods_of_containers_that_wait_for_an_argument() -> None:
    """What is appended breaks the graph, and the method is called after it."""

    def fn(x: Tensor) -> Any:
        found, table = [], {}
        for k in range(3):
            found.append(x[k].item())
            table.setdefault(k, (x * k).tolist())
        found.extend((x + 1).tolist())
        return x * len(found), found, table

    report = agrees_with_eager(fn, (torch.randn(3),))
    assert {b.code for b in report.breaks} == {"FL102", "FL105"}


def test_methods_of_containers_as_arguments() -> None:
    def fn(x: Tensor, put: Callable[[Tensor], None], found: list[Tensor]) -> Any:
        put(x + 1)
        found.append(x * 2)
        return len(found)

    x = torch.ones(2)
    counts: list[Any] = []
    for call in (fn, fuselens.compile(fn, backend="eager")):
        first, second = list[Tensor](), list[Tensor]()
        counts.append(
            [call(x, a.append, b) for a, b in ((first, first), (first, second), (second, second), (first, first))]
        )
        counts[-1] += [len(first), len(second)]
    assert counts[0] == counts[1]
