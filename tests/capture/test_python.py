"""Python semantics: each function must behave compiled as it does in eager, in one graph where the table says so."""

from __future__ import annotations

import math
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F

from tests.support.tensors import t

from .harness import agrees_with_eager

GLOBAL_SCALE = 3.0
GLOBAL_TENSOR = torch.arange(4.0)
Point = namedtuple("Point", ["x", "y"])


def helper(x, scale=2.0, *, shift=0.0):
    return x * scale + shift


def varargs(*xs, **options):
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total * options.get("k", 1)


def make_adder(n):
    def add(x):
        return x + n

    return add


add_five = make_adder(5)


class Config:
    scale = 2.0
    names = ("a", "b")

    def __init__(self):
        self.bias = 1.5
        self.table = {"w": torch.ones(4), "k": 3}
        self.flags = [True, False]

    def apply(self, x):
        return x * self.scale + self.bias

    @property
    def double(self):
        return self.bias * 2

    @staticmethod
    def static(x):
        return x - 1

    @classmethod
    def build(cls, x):
        return x * cls.scale


class Child(Config):
    def apply(self, x):
        return super().apply(x) * 2


CONFIG = Config()
CHILD = Child()


def straight(x, y):
    z = x + y
    z = z * 2 - x / 3
    return -z


def scalars(x):
    n = 3
    k = n**2 % 4 + (n << 1) - ~n
    return x * k + math.sqrt(16.0) + int(2.7) + abs(-3) + round(2.567, 1)


def branches(x):
    if x.shape[0] > 2 and x.dim() == 1:
        y = x + 1
    elif x.ndim == 2:
        y = x.sum(0)
    else:
        y = x - 1
    return y if y.dtype == torch.float32 else y.float()


def boolean(x, flag=True, name=None):
    a = x if flag else -x
    b = name or "default"
    c = not flag
    return (a, b, c, name is None, flag and x is not None)


def tuples(x, y):
    a, b = x, y
    a, b = b, a
    first, *rest = (a, b, a + b)
    (p, q), r = (a, b), rest[-1]
    return first, rest, p * q + r


def containers(x):
    items = [x, x + 1]
    items.append(x * 2)
    items.extend((x, x))
    items.insert(0, x - 1)
    last = items.pop()
    d = {"a": x, "b": [x, 1]}
    d["c"] = last
    d.update({"e": 5})
    items[1] = x * 9
    return items, d, len(items), d.get("zz"), list(d.keys()), "a" in d, [k for k in d], items[1:3]


def loops(x):
    total = torch.zeros_like(x)
    for i in range(4):
        if i == 1:
            continue
        if i == 3:
            break
        total = total + x * i
    else:
        total = total * 100
    n = 0
    while n < 3:
        total = total + n
        n += 1
    for i, (a, b) in enumerate(zip([x, x], (1, 2))):
        total = total + a * b * i
    for k, v in {"u": x, "v": 2}.items():
        total = total + v if k == "v" else total * v
    return total


def comprehensions(x):
    parts = [x * i for i in range(3) if i != 1]
    table = {str(i): x + i for i in range(2)}
    return parts, table, sum(parts), [a + b for a in (1, 2) for b in (3, 4)]


def calls(x):
    y = helper(x)
    y = helper(y, 3.0, shift=1.0)
    y = helper(scale=0.5, x=y)
    y = varargs(y, x, x, k=2)
    y = varargs(*[x, y], **{"k": 3})
    return (lambda v, w=2: v * w)(y)


def closures(x):
    k = 3

    def inner(v):
        return v * k + add_five(v)

    k = 4
    return inner(x)


def nested_nonlocal(x):
    count = 0

    def bump(v):
        return v + count

    count = 2
    a = bump(x)
    count = 5
    return a + bump(x)


def globals_(x):
    return x * GLOBAL_SCALE + GLOBAL_TENSOR


def objects(x):
    return CONFIG.apply(x) + CONFIG.double + CONFIG.static(x) + Config.build(x) + CONFIG.table["w"] * CONFIG.table["k"]


def inheritance(x):
    return (
        CHILD.apply(x),
        isinstance(CHILD, Config),
        type(CHILD) is Child,
        hasattr(CHILD, "bias"),
        getattr(CHILD, "no", 7),
    )


def strings(x, name="gelu"):
    label = f"{name}-{x.ndim}:{1.5:.2f}"
    y = F.gelu(x) if name.startswith("ge") else x
    return y, label.upper(), "%s!" % name, ",".join(["a", "b"])


def slicing(x):
    return x[0], x[..., 1:], x[:, None], x[1:3, ::2], x[-1, -1], x[[0, 1]], x[x.shape[0] - 1]


def builtins_(x):
    return (
        len(x), max(1, 2, 3), min([4, 2]), sum([1, 2]), any([False, True]), all([]), list(reversed([1, 2])), tuple(range(3)),
        dict(a=1), isinstance(x, torch.Tensor), callable(helper), list(map(lambda v: v + 1, [1, 2])), divmod(7, 2),
        bool(x.shape), [*range(2), *"ab"],
    )  # fmt: skip


def shapes(x):
    b, d = x.shape
    y = x.reshape(d, b).view(-1)
    return y, x.size(0), x.size(), x.numel(), y.shape[0] // 2, x.stride(), x.is_contiguous(), x.new_zeros(b)


def named_tuples(x):
    p = Point(x, y=2)
    return p.x * p.y, p, p._fields[0] if False else p[1]


def inplace(x):
    y = x.clone()
    y += 1
    y.mul_(2)
    y[0] = 5
    y[1:] *= 3
    return y


def inplace_argument(x):
    x.add_(1)
    x[0] = 7.0
    return x * 2


def aliasing(x):
    y = x.view(-1)
    return x, y, y, [x, x]


def no_grad_region(x):
    with torch.no_grad():
        y = x * 2
    return y + x, torch.is_grad_enabled()


def torch_functions(x):
    a, b = torch.max(x, dim=0)
    v = torch.var_mean(x, dim=-1)
    return (
        torch.stack([x, x]),
        torch.cat((x, x), 1),
        a,
        b,
        v[0],
        torch.where(x > 0, x, 0.0),
        x.sort().values,
        torch.zeros(2),
        torch.finfo(x.dtype).eps,
    )


def dtypes(x):
    return (
        x.to(torch.float64),
        x.half().float(),
        x.int(),
        x.bool(),
        x.to(x.dtype),
        torch.float32.is_floating_point,
        x.device.type,
    )


def ternary_chain(x, n):
    return x * (1 if n == 0 else 2 if n == 1 else 3)


def match_free(x, mode):
    table = {"relu": torch.relu, "tanh": torch.tanh, "neg": lambda v: -v}
    return table[mode](x)


def default_mutation(x, cache=None):
    cache = {} if cache is None else cache
    cache["x"] = x
    return cache


def star(x):
    head, *tail = x.unbind(0)
    return head, tail


def walrus(x):
    if (n := x.shape[0]) > 2:
        return x * n
    return x


def asserted(x):
    assert x.ndim == 2, "two dimensions"
    return x.mean()


def chained(x):
    n = x.shape[0]
    return x + 1 if 0 < n <= 10 else x


def identity(x):
    return x


def constant_result(x):
    return 5, "a", None, (1, 2.5), [True]


def iterate_tensor(x):
    return [row * 2 for row in x]


def unused_input(x, y):
    return y * 2


CASES = [
    (straight, (t(3), t(3))), (scalars, (t(3),)), (branches, (t(4),)), (branches, (t(2, 3),)), (branches, (t(1),)),
    (boolean, (t(2),)), (boolean, (t(2), False, "n")), (tuples, (t(2), t(2))), (containers, (t(2),)), (loops, (t(3),)),
    (comprehensions, (t(2),)), (calls, (t(3),)), (closures, (t(3),)), (nested_nonlocal, (t(3),)), (globals_, (t(4),)),
    (objects, (t(4),)), (inheritance, (t(4),)), (strings, (t(4),)), (strings, (t(4), "x")), (slicing, (t(4, 4),)),
    (builtins_, (t(3),)), (shapes, (t(3, 4),)), (named_tuples, (t(2),)), (inplace, (t(4),)), (inplace_argument, (t(4),)),
    (aliasing, (t(2, 2),)), (no_grad_region, (t(2),)), (no_grad_region, (t(2).requires_grad_(),)),
    (torch_functions, (t(3, 4),)), (dtypes, (t(3),)), (ternary_chain, (t(2), 0)), (ternary_chain, (t(2), 1)),
    (match_free, (t(2), "relu")), (match_free, (t(2), "neg")), (default_mutation, (t(2),)), (star, (t(3, 2),)),
    (walrus, (t(3),)), (asserted, (t(2, 2),)), (chained, (t(3),)), (identity, (t(3),)), (constant_result, (t(3),)),
    (iterate_tensor, (t(3, 2),)), (unused_input, (t(2), t(3))),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_one_graph(fn, args):
    agrees_with_eager(fn, args, breaks=0)


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_through_autograd(fn, args):
    agrees_with_eager(fn, args, backend="aot_eager", breaks=0)


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_through_kernels(fn, args):
    report = agrees_with_eager(fn, args, backend="fuselens", breaks=0)
    assert not [d for d in report.diagnostics if d.code in ("FL301", "FL404", "FL402")], report.diagnostics
