"""``id(x)`` as a key: among those that the trace made, and among integers that are there already."""

import functools

import pytest
import torch

import fuselens

from .harness import agrees_with_eager

X = torch.arange(3.0)
WEIGHT, OTHER = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.zeros(3))
NAMES = {id(WEIGHT): "weight"}
SEEN = {id(WEIGHT), 7}


class Named(torch.nn.Module):
    """Knows its parameters by their ids, as optimisers and wrappers of models do."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.names = {id(p): name for name, p in self.named_parameters()}

    def forward(self, x):
        found = [self.names.get(id(p), "none") for p in self.parameters()]
        return self.second(self.first(x)), found, id(x) in {}, self.names[id(self.first.bias)]


def test_parameters_among_ids_that_are_there():
    agrees_with_eager(
        lambda x: (x * WEIGHT, NAMES.get(id(WEIGHT)), id(WEIGHT) in NAMES, id(OTHER) in NAMES), (X,), breaks=0
    )
    agrees_with_eager(lambda x: (x * WEIGHT, NAMES[id(WEIGHT)], id(WEIGHT) in SEEN, id(OTHER) in SEEN), (X,), breaks=0)
    agrees_with_eager(Named(), (X,), breaks=0)


def test_an_id_is_no_other_value():
    agrees_with_eager(
        lambda x: (x + 1, id(x) == NOTHING, id(x) != "a", id(x) in (None, "b"), id(x) == id(x)), (X,), breaks=0
    )


NOTHING = None


def test_another_parameter_at_the_same_place():
    def f(x):
        return x + 1, NAMES.get(id(LIST[0]))

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    for parameter in (OTHER, WEIGHT, OTHER):
        LIST[0] = parameter
        assert compiled(X)[1] == f(X)[1]


LIST = [OTHER]


def test_ids_that_cross_a_break():
    def of_an_argument(x):
        known = {id(x): 1}
        fuselens.graph_break()
        return x + 1, id(x) in known, known.get(id(x)), known.get(id(WEIGHT))

    def of_a_result(x):
        y = x + 1
        known = {id(y)}
        fuselens.graph_break()
        return y, id(y) in known, id(x) in known

    def of_an_object(x):
        made = Named()
        known = {id(made): made}
        fuselens.graph_break()
        known[id(made)] = x
        known.pop(id(x), None)
        return len(known), id(made) in known

    for f in (of_an_argument, of_a_result, of_an_object):
        agrees_with_eager(f, (X,), (X + 1,))


def test_fields_that_results_of_torch_do_not_have():
    def f(x):
        largest = torch.max(x, 0)
        named = isinstance(largest, tuple) and hasattr(largest, "_asdict")
        return x + 1, named, hasattr(largest, "values"), getattr(torch.sort(x), "nothing", 5), largest.n_fields

    agrees_with_eager(f, (X,), breaks=0)
    agrees_with_eager(lambda x: (x + 1, torch.max(x, 0).nothing), (X,))


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x

    @functools.cached_property
    def twice(self):
        return self.x * 2


def test_a_cached_property_without_a_place():
    agrees_with_eager(lambda x: Slotted(x).twice, (X,))


def test_a_constant_of_the_code_is_one_object():
    def f(x):
        shapes = [(1, 2) for _ in range(2)]
        return x + 1, shapes[0] is shapes[1]

    agrees_with_eager(f, (X,), breaks=0)


@pytest.mark.filterwarnings("error")
def test_nothing_of_torch_warns_while_another_dtype_is_compiled():
    compiled = fuselens.compile(lambda x: x * 2 + 1, backend="eager")
    for dtype in (torch.float32, torch.float64, torch.int32):
        compiled(torch.ones(2, dtype=dtype))
    assert len(compiled.__fuselens__.recorder.report.captured) == 3
