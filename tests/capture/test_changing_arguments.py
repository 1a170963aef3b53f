"""Arguments: types, sizes, containers, constants.

Something changes between calls; compiled code must notice whatever eager would notice.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch

from tests.support.scenarios import Scenarios, agrees, raised
from tests.support.tensors import t

SCENARIOS = Scenarios()
scenario = SCENARIOS.add


@scenario
def python_numbers_change_type(wrap):
    f = wrap(lambda x, k: (x * k, k, k == 1))
    for k in (1, 1.0, True, 0, 0.0, -0.0, False, float("nan"), float("inf"), -float("inf"), 1 + 0j, 10**20, 10**30):
        yield raised(f, t(3), k)


@scenario
def division_by_signed_zero(wrap):
    f = wrap(lambda x, k: x / k)
    for k in (0.0, -0.0, 0.0, float("nan"), -float("nan")):
        yield f(torch.ones(3), k)


@scenario
def none_tensor_and_others(wrap):
    def fn(x, mask=None, *rest, scale=None, **options):
        y = x if mask is None else x * mask
        for r in rest:
            y = y + r
        return (y if scale is None else y * scale), sorted(options), len(rest)

    f = wrap(fn)
    yield f(t(3))
    yield f(t(3), t(3))
    yield f(t(3), None, 1, 2)
    yield f(t(3), t(3), t(3), scale=2)
    yield f(t(3), scale=t(3), a=1)
    yield f(t(3), mask=t(1), b=2, a=1)
    yield f(x=t(3))
    yield f(t(3), 5, *[1, 2], **{"scale": 3, "z": 0})
    yield raised(f), raised(f, t(3), x=t(3))


@scenario
def containers_change_shape(wrap):
    f = wrap(lambda xs: sum(xs, 0) if isinstance(xs, (list, tuple)) else sum(xs.values()))
    for xs in (
        [t(3)],
        [t(3), t(3)],
        (t(3),),
        [],
        (),
        {"a": t(3)},
        {"b": t(3)},
        {"a": t(3), "b": t(3)},
        [1, t(3)],
        [1.0, t(3)],
    ):
        yield f(xs)


@scenario
def container_subclasses(wrap):
    class L(list):
        pass

    class D(dict):
        def __missing__(self, key):
            return 5

    P = namedtuple("P", "a b")
    f = wrap(lambda v, x: (x * len(v), type(v).__name__, v is None))
    for v in (
        [1],
        L([1]),
        (1,),
        P(1, 2),
        {"a": 1},
        D(a=1),
        OrderedDict(a=1),
        defaultdict(int, a=1),
        {1},
        frozenset([1]),
        "s",
        range(3),
        b"a",
    ):
        yield f(v, t(3))
    g = wrap(lambda d, x: x * d["k"])
    yield (
        g(D(), t(3)),
        g({"k": 2}, t(3)),
        g(defaultdict(lambda: 3), t(3)),
        g(OrderedDict(k=4), t(3)),
        raised(g, {}, t(3)),
    )
    h = wrap(lambda p, x: (x * p.a + p.b, p[0], p))
    yield [tuple(map(str, h(p, t(3)))) for p in (P(1, 2), P(3, t(3)), P(1, 2))]


@scenario
def sizes_change(wrap):
    def fn(x):
        return x.sum() + x.shape[0] * 2, x.reshape(-1), x.shape, x.numel() // 2, [i for i in range(x.shape[0])]

    for dynamic in (None, True, False):
        f = wrap(fn, dynamic=dynamic)
        for n in (3, 4, 5, 0, 1, 2, 7, 1, 0):
            yield f(t(n, 2))
        yield f(t(2)), f(t(3, 2, 2)), f(t(2, 3).t()), f(t(4, 4)[::2])


@scenario
def sizes_choose_a_path(wrap):
    def fn(x, y):
        if x.shape[0] > 4:
            return x * 2
        if x.shape[0] == y.shape[0]:
            return x + y
        return x.sum() + y.sum()

    for dynamic in (None, True):
        f = wrap(fn, dynamic=dynamic)
        for a, b in ((2, 3), (3, 4), (3, 3), (5, 5), (4, 4), (6, 2), (4, 5), (1, 2), (0, 0), (1, 1), (2, 2)):
            yield f(t(a), t(b))


@scenario
def broadcasting_with_changing_sizes(wrap):
    for dynamic in (None, True):
        f = wrap(lambda x, y: x * y + y.mean(), dynamic=dynamic)
        for a, b in ((3, 3), (4, 4), (4, 1), (1, 4), (5, 5), (5, 1)):
            yield f(t(2, a), t(b))
        yield raised(f, t(2, 3), t(4))


@scenario
def dtypes_strides_and_devices(wrap):
    f = wrap(lambda x: (x * 2, x.dtype, x.is_contiguous(), x.stride(), x.device.type))
    for x in (t(3, 4), t(4, 3).t(), t(3, 4).double(), torch.ones(3, 4, dtype=torch.int32), torch.ones(3, 4).bool(), t(3, 8)[:, ::2],
              torch.ones(3, 1).expand(3, 4), t(3, 4).half(), torch.zeros(3, 4, dtype=torch.complex64), t(3, 4).to(torch.bfloat16)):  # fmt: skip
        yield f(x)
    yield f(torch.zeros(3, 4, dtype=torch.complex64).conj()), f(t(3, 4).to("meta"))[1:]


@scenario
def strings(wrap):
    f = wrap(lambda x, s: (x + len(s), s.upper(), s == "ab", f"{s}!"))
    for s in ("a", "ab", "", "ä", "".join(["a", "b"])):
        yield f(t(3), s)


@scenario
def dict_arguments_in_other_orders(wrap):
    f = wrap(lambda d: ([k for k in d], [v * 2 for v in d.values()], list(d.items())[0][0]))
    for d in (
        {"a": t(1), "b": t(2)},
        {"b": t(2), "a": t(1)},
        {1: t(1)},
        {1.0: t(1)},
        {True: t(1)},
        {(1, 2): t(1)},
        {None: t(2)},
    ):
        yield f(d)


@scenario
def numpy_arguments(wrap):
    np = pytest.importorskip("numpy")
    f = wrap(lambda x, k: (x * k, type(k).__name__))
    for k in (np.float32(2), np.float64(2), np.int64(2), np.bool_(True), 2):
        yield f(t(3), k)
    g = wrap(lambda a: torch.from_numpy(a) * 2)
    a = np.ones(3, dtype=np.float32)
    yield g(a)
    a[0] = 5
    yield g(a)
    h = wrap(lambda x: (x.numpy() + 1).sum() * x)
    yield h(torch.ones(2)), h(torch.zeros(2))


@scenario
def sets_and_objects_without_rules(wrap):
    f = wrap(lambda x, s: (x * len(s), 1 in s, sorted(s)))
    for s in ({1, 2}, {1}, set(), frozenset([1, 3])):
        yield f(t(3), s)


@scenario
def five_thousand_calls(wrap):
    f = wrap(lambda x, k: x + k)
    x = torch.zeros(2)
    for i in range(5000):
        x = f(x, i % 3)
    yield x


@scenario
def many_values_past_the_limit(wrap):
    f = wrap(lambda x, k: (x + k, k))
    for i in range(30):
        yield f(t(2), i)


@scenario
def a_dict_argument_is_updated_with_keywords(wrap):
    f = wrap(lambda d, x: (d.update(a=x, b=1), len(d))[1])
    for d in ({}, {"a": 1}, {}):
        yield f(d, t(3)), d


@scenario
def constants_are_returned_as_they_are(wrap):
    f = wrap(lambda x, k: (x + 1, k))
    g = wrap(lambda x, k: (print("between"), x, k)[1:])
    for k in (
        10**20,
        1234.5,
        "".join(["a", "bcd"]),
        b"".join([b"xy", b"z"]),
        (1, "".join("qr")),
        range(1000, 1003),
        3 + 4j,
    ):
        for again in (k, copy.deepcopy(k)):
            yield f(t(3), again)[1] is again, g(t(3), again)[1] is again


@scenario
def iterators_as_arguments(wrap):
    f = wrap(lambda xs, x: (sum(v for v in xs), x + 1))
    g = wrap(lambda xs, x: [v * x for v in xs])
    for make in (lambda: iter([1, 2]), lambda: (i for i in range(3)), lambda: zip([1], [2]), lambda: map(abs, [-1]), lambda: {1: 2}.keys(),
                 lambda: reversed([1, 2]), lambda: range(3), lambda: {1: t(3)}.values(), lambda: enumerate([5])):  # fmt: skip
        yield raised(f, make(), t(3)), raised(g, make(), t(3))
    it = iter([1, 2, 3])
    h = wrap(lambda it, x: x * next(it))
    yield h(it, t(3)), h(it, t(3)), list(it)


@scenario
def odd_constants_as_arguments(wrap):
    f = wrap(lambda x, k: (x + 1, k, x[k] if isinstance(k, slice) else 0))
    for k in (..., NotImplemented, slice(0, 2), slice(1, None), torch.float32, torch.strided, torch.device("cpu"), torch.Size([1, 2]), range(2),
              torch.contiguous_format, int, len, print, None, (), ((),), [[], {}], b"x"):  # fmt: skip
        yield f(t(3), k)


@scenario
def sizes_in_symbolic_code(wrap):
    def fn(x, n=None):
        b, c = x.shape
        y = x.view(b * c)[: b * c // 2] if b > 1 else x.view(-1)
        pad = torch.zeros(b, 3, dtype=x.dtype)
        mean = x.sum() / (b * c) if b * c else x.sum()
        out = [
            y.shape,
            pad.shape[0] == b,
            b % 2 == 0,
            float(b),
            f"{b}",
            range(b),
            str(b),
            b / 2,
            max(b, 3),
            mean,
            x.new_ones(b + 1),
            -b,
        ]
        return torch.cat([x, pad], 1), out, torch.arange(b), x[: b - 1], x.expand(2, b, c), {b: 1}, (b,), hash(b)

    for dynamic in (True, None):
        f = wrap(fn, dynamic=dynamic)
        for b in (2, 5, 6, 1, 0, 9):
            yield f(t(b, 4))


@scenario
def symbolic_sizes_across_breaks(wrap):
    def fn(x):
        n = x.shape[0]
        y = x * n
        print("n", n, type(n).__name__)
        z = y[: n // 2]
        print("z", z.shape, isinstance(n, int), n == x.shape[0])
        return z * n, n, [n, {"n": n}], torch.Size([n, 2])

    for dynamic in (True, None):
        f = wrap(fn, dynamic=dynamic)
        for n in (4, 7, 9, 1, 0, 12):
            yield f(t(n))


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices_what_eager_notices(made):
    agrees(made)
