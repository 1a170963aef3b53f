"""Several calls of one function: what changes between them, and what comes back. Each gives the calls' arguments."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ..program import Programs, some

programs = Programs()
SCALE = 2
TABLE = {"k": 1}
KEPT = some(3)


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Options:
    k: int = 1
    name: str = "a"
    x: Any = None


class Scaled(nn.Module):
    def __init__(self, k: Any) -> None:
        super().__init__()
        self.k = k
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.lin(x) * self.k


class Plain:
    def __init__(self, k: Any) -> None:
        self.k = k

    def run(self, x: Any) -> Any:
        return x * self.k


def sums(*all_: Any) -> Iterator[tuple[Any, ...]]:
    yield from ((a,) for a in all_)


@contextmanager
def globally(**values: Any) -> Iterator[None]:
    before = {name: globals()[name] for name in values}
    globals().update(values)
    yield
    globals().update(before)


def same_then_two() -> Iterator[tuple[Any, ...]]:
    a, b = some(3), some(3)
    yield from [(a, a), (a, b), (b, b), (b, a), (a, a)]


@programs(same_then_two)
def the_same_tensor_twice_then_two(x, y):
    return x + y, x is y


@programs(same_then_two)
def the_same_tensor_twice_written(x, y):
    x.add_(1)
    return x * y


@programs(lambda: iter([([x := some(3), x],), ([some(3), some(3)],), ([x, x],)]))
def the_same_tensor_in_a_list(xs):
    return xs[0] + xs[1], xs[0] is xs[1]


@programs(lambda: iter([(KEPT,), (some(3),), (KEPT,)]))
def a_global_that_is_an_argument(x):
    return x + KEPT, x is KEPT


@programs(lambda: iter([(some(3),), (some(4),), (some(5),), (some(4),), (some(9),)]))
def sizes(x):
    return x * x.shape[0]


@programs(lambda: iter([(some(3, n),) for n in (4, 1, 5, 0, 6, 1)]))
def sizes_zero_and_one(x):
    return x.sum(1) + x.shape[1]


@programs(lambda: iter([(some(a, b),) for a, b in ((2, 3), (4, 3), (4, 5), (6, 7), (2, 3))]))
def sizes_of_two_dimensions(x):
    return x @ x.T


@programs(lambda: iter([(some(n), some(m)) for n, m in ((3, 3), (4, 4), (5, 1), (1, 5), (6, 6))]))
def sizes_that_broadcast(x, y):
    return x + y


@programs(lambda: iter([(some(3),), (some(3).double(),), (some(3).half(),), (some(3),), (some(3).double(),)]))
def dtypes(x):
    return x + 1


@programs(lambda: iter([(some(3), n) for n in (1, 2, 3, 4, 2, 1, 7)]))
def integers(x, n):
    return x * n


@programs(lambda: iter([(some(3), n) for n in (0, 1, 2, 3)]))
def integers_zero_and_one(x, n):
    return x[: n + 1] + n


@programs(lambda: iter([(some(3), n) for n in (1.5, 2.5, 3.5, 1.5, -1.0)]))
def floats(x, n):
    return x * n


@programs(lambda: iter([(some(3), f) for f in (True, False, True, False)]))
def booleans(x, f):
    return x + 1 if f else x - 1


@programs(lambda: iter([(some(3), s) for s in ("a", "b", "a", "c", "b")]))
def strings(x, s):
    return x + len(s), s


@programs(lambda: iter([(some(3), v) for v in (1, 1.5, True, None, 1)]))
def kinds_of_numbers(x, v):
    return x if v is None else x * v


@programs(lambda: iter([(some(3), None), (some(3), some(3)), (some(3), None)]))
def nothing_or_a_tensor(x, y):
    return x if y is None else x + y


@programs(lambda: iter([(list(some(n, 2)),) for n in (2, 3, 4, 2)]))
def lengths_of_lists(xs):
    return sum(xs)


@programs(lambda: iter([({k: some(2) for k in keys},) for keys in ("ab", "abc", "ba", "ab")]))
def keys_of_dictionaries(d):
    return {k: v + 1 for k, v in d.items()}


@programs(lambda: iter([((some(2), some(2)),), ([some(2), some(2)],), ((some(2), some(2)),)]))
def tuples_and_lists(xs):
    return xs[0] + xs[1], type(xs).__name__


@programs(lambda: iter([(some(3),), (some(3).requires_grad_(),), (some(3),)]))
def whether_a_gradient_is_asked_for(x):
    return (x * 2).requires_grad, x * 2


@programs(lambda: iter([(some(3, 4),), (some(4, 3).t(),), (some(3, 4),), (some(6, 4)[::2],)]))
def strides(x):
    return x + 1, x.is_contiguous()


@programs(lambda: iter([(some(2, 3), Scaled(1)), (some(2, 3), Scaled(1).eval()), (some(2, 3), Scaled(1))]))
def training_modes(x, m):
    return m(x) + m.training


@programs(lambda: iter([(some(2, 3), m) for m in (nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3, bias=False))]))
def modules_of_one_class(x, m):
    return m(x)


@programs(lambda: iter([(some(2, 3), m) for m in (nn.ReLU(), nn.Tanh(), nn.ReLU(), nn.Sigmoid())]))
def modules_of_several_classes(x, m):
    return m(x)


@programs(lambda: iter([(some(2, 3), Scaled(k)) for k in (1, 2, 3, 1)]))
def integers_of_modules(x, m):
    return m(x)


@programs(lambda: iter([(some(2, 3), Scaled(k)) for k in (1.5, 2.5, 3.5)]))
def floats_of_modules(x, m):
    return m(x)


@programs(lambda: iter([(some(3), Plain(k)) for k in (1, 2, 3, 4, 1)]))
def integers_of_objects(x, p):
    return p.run(x)


@programs(
    lambda: iter([(some(3), Options(k, n)) for k, n in ((1, "a"), (2, "a"), (3, "a"), (3, "b"), (1, "a"))]),
    gap="text that is only returned is guarded",
)
def fields_of_a_dataclass(x, o):
    return x * o.k, o.name


@programs(lambda: iter([(some(3), f) for f in (torch.sin, torch.cos, torch.sin)]))
def functions(x, f):
    return f(x)


@programs(lambda: iter([(some(3), lambda v, k=k: v * k) for k in (1, 2, 1)]))
def functions_with_defaults(x, f):
    return f(x)


@programs(lambda: iter([(some(3), level) for level in (Level.LOW, Level.HIGH, Level.LOW)]))
def members_of_an_enumeration(x, level):
    return x * level.value


@programs(lambda: iter([(some(3), *args) for args in ((), (1,), (1, 2), (1,))]))
def lengths_of_arguments(x, *args):
    return x + sum(args)


@programs(lambda: iter([(np.ones(n, dtype=np.float32),) for n in (2, 3, 4, 2)]))
def sizes_of_arrays(a):
    return a * 2


@programs(lambda: iter([(some(3), torch.tensor(n)) for n in (1, 2, 3)]))
def contents_of_a_tensor(x, n):
    return x * n


@programs(lambda: iter([(some(n, 2),) for n in (2, 3, 5)]))
def loops_over_a_size(x):
    total = x[0]
    for i in range(1, x.shape[0]):
        total = total + x[i]
    return total


@programs(lambda: iter([(some(n),) for n in (3, 12, 4, 13, 5, 14)]))
def branches_on_a_size(x):
    return x + 1 if x.shape[0] > 10 else x - 1


@programs(lambda: iter([(some(n),) for n in (4, 6, 8, 10)]))
def sizes_divided(x):
    return x.view(2, -1).sum(0), x.shape[0] // 2


@programs(lambda: iter([(some(n), m) for n, m in ((4, 2), (6, 3), (8, 2), (9, 3))]))
def sizes_and_integers(x, k):
    return x.view(k, -1).sum(0)


@programs(lambda: iter([({"x": some(n), "k": n},) for n in (3, 4, 5)]))
def sizes_in_a_dictionary(batch):
    return batch["x"] * batch["k"]


@programs(lambda: iter([(some(n, 3), nn.BatchNorm1d(3)) for n in (4, 5, 6)]))
def sizes_in_batch_norm(x, m):
    return m(x)


@programs(lambda: iter([(some(3), v) for v in (slice(0, 2), slice(1, 3), slice(0, 2))]))
def slices(x, s):
    return x[s]


@programs(lambda: iter([(some(3), torch.float32), (some(3), torch.float64), (some(3), torch.float32)]))
def dtypes_as_arguments(x, d):
    return x.to(d)


@programs(lambda: iter([(some(3), frozenset(s)) for s in ({1}, {1, 2}, {1})]))
def sets(x, s):
    return x + len(s), 2 in s


@programs(lambda: iter([(some(3), (a, b)) for a, b in ((1, 2), (2, 2), (3, 5), (1, 2))]))
def integers_in_a_tuple(x, pair):
    return x * pair[0] + pair[1]


@programs(
    lambda: iter([(some(3), k) for k in range(12)]),
    gap="one more: the first is compiled for the number, the others for a symbol that became one",
)
def more_integers_than_the_limit(x, k):
    return x + [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8][k]


@programs(lambda: iter([(some(3), str(k)) for k in range(20)]))
def more_strings_than_the_limit(x, s):
    return x + int(s)


@programs(lambda: iter([(some(3), d) for d in ({"a": 2}, {"a": 2, "b": 3}, {"c": 1, "a": 2}, {"a": 2})]))
def keys_that_are_not_read(x, d):
    return x * d["a"]


@programs(lambda: iter([(some(3), d) for d in ({"a": 2}, {"b": 3}, {"c": 1, "b": 2}, {"a": 1, "c": 2})]))
def a_key_that_is_looked_up(x, d):
    return x * 2 if "b" in d else x


@programs(lambda: iter([(some(3), d) for d in ({}, {"b": 3}, {"c": 1, "s": 2}, {"s": 2}, {"d": 2})]))
def a_key_with_a_default(x, d):
    return x * d.get("s", 1)


@programs(lambda: iter([(some(3), d) for d in ({"a": 2, "b": 3}, {"b": 3, "a": 2})]))
def keys_in_another_order(x, d):
    return x * d["a"] + d["b"]
