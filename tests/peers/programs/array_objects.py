"""Arrays as Python objects: views, writes, indices, iteration, numbers, classes and what leaves the function."""

from __future__ import annotations

import numpy as np
import torch

from ..program import Programs, some

programs = Programs()


def grid() -> np.ndarray:
    return np.arange(12.0).reshape(3, 4)


@programs(lambda: (grid(),))
def slices(a):
    return a[0], a[-1, 2], a[:, 1:3], a[..., 0], a[::2, ::2], a[1:, None], a[()], a[0:0]


@programs(lambda: (grid(),))
def backwards(a):
    return a[::-1], a[:, ::-1] + 1, a[2:0:-1], a[::-2, 1], a[None, ::-1, ..., ::-1], np.flip(a, 0).sum()


@programs(lambda: (grid(),))
def backwards_sees_later_writes(a):
    b = a[::-1]
    a[0, 0] = 100.0
    return b, b * 2, b.sum(0)


@programs(lambda: (grid(), np.array([2, 0]), np.array([1, 3])))
def indices(a, i, j):
    return a[i], a[i, j], a[:, j], a[i][:, j], a[[0, 2]], a[i, 0], a.take(j), np.take(a, i, axis=0)


@programs(lambda: (grid(), np.array([True, False, True])))
def masks(a, m):
    return a[m], a[a > 5], a[~m, 1:]


@programs(lambda: (grid(),))
def writes(a):
    a[0] = 5
    a[:, 1] += 2
    a[1, 2] = a[0, 0] * 3
    a[..., -1] = np.arange(3)
    return a.sum()


@programs(lambda: (grid(),))
def masked_writes(a):
    a[a > 5] = 0
    a[a < 2] *= 3
    return a


@programs(lambda: (grid(), np.array([2, 0])))
def indexed_writes(a, i):
    a[i, 1] = 7
    a[i] = a[i] * 2
    np.put_along_axis(a, np.array([[0], [1], [2]]), -1.0, axis=1)
    return a


@programs(lambda: (grid(),))
def in_place_operators(a):
    b = a
    a += 1
    a *= 2
    a -= a.mean(0)
    a /= 3
    a **= 2
    return a is b, b


@programs(lambda: (np.arange(5),))
def in_place_of_whole_numbers(a):
    a += 2
    a //= 2
    a %= 3
    a <<= 1
    a |= 1
    return a


@programs(lambda: (np.arange(5),))
def refused_in_place(a):
    try:
        a += 0.5
    except TypeError as e:
        return type(e).__name__, a


@programs(lambda: (grid(),))
def views_share_memory(a):
    b, c = a.T, a.reshape(-1)
    c[0] = 50
    b[1, 1] = 60
    return a, b, c.base is not None


@programs(lambda: (grid(),))
def copies_do_not(a):
    b, c, d = a.copy(), a.astype(np.float64), np.array(a)
    e, f = a.flatten(), a[[0, 1]]
    a[:] = 0
    return b, c, d, e, f


@programs(lambda: (grid(),))
def numbers_do_not(a):
    first = a[0, 1]
    a[0, 1] = 9
    return first, a[0, 1], first + a[0, 1]


@programs(lambda: (grid(),))
def shapes(a):
    return (
        a.reshape(2, 6),
        a.reshape((4, -1)),
        a.ravel(),
        a.T,
        a.transpose(1, 0),
        a.swapaxes(0, 1),
        a.squeeze(),
        a[None].squeeze(0),
    )


@programs(lambda: (grid(),))
def more_shapes(a):
    return (
        np.expand_dims(a, 1),
        np.moveaxis(a[None], 0, -1),
        np.rot90(a),
        np.atleast_3d(a),
        np.squeeze(a[:, None]),
        np.ravel(a.T),
    )


@programs(lambda: (grid(),))
def orders(a):
    b = a.T
    return (
        (b + 1).strides,
        b.copy().strides,
        np.ascontiguousarray(b).strides,
        np.exp(b),
        np.stack([b, b]),
        b.reshape(3, 4),
    )


@programs(lambda: (grid(),))
def what_it_is(a):
    return (
        type(a).__name__,
        isinstance(a, np.ndarray),
        a.dtype,
        a.shape,
        a.ndim,
        a.size,
        a.nbytes,
        a.itemsize,
        len(a),
        a.T.shape,
    )


@programs(lambda: (grid(),))
def classes_of_numbers(a):
    s, n = a.sum(), a.argmax()
    return (
        type(s),
        isinstance(s, float),
        isinstance(n, np.integer),
        s.dtype,
        s.shape,
        s.ndim,
        (s + 1).dtype,
        type(s * np.float32(2)),
    )


@programs(lambda: (grid(),))
def numbers_compute(a):
    s = a.mean()
    return (
        s * 2,
        1 - s,
        s**2,
        -s,
        abs(s),
        s > 3,
        s + a,
        np.sqrt(s),
        s.astype(np.float32),
        round(s, 2),
        s.sum(),
        s.reshape(1),
    )


@programs(lambda: (grid(),))
def loops(a):
    total, rows = 0.0, []
    for row in a:
        total += row.max()
        rows.append(row - row.min())
    return total, rows, [x * 2 for x in a[0]], sum(a[1]), list(enumerate(a[:, 0]))[1], max(a.shape)


@programs(lambda: (grid(),))
def unpacked(a):
    x, y, z = a
    (p, q), *rest = a[:, :2]
    return x + y + z, p, q, rest


@programs(lambda: (grid(), grid()))
def in_containers(a, b):
    d = {"a": a, "sum": a + b}
    d["more"] = [d["sum"].T, (a.max(), b.min())]
    return d


@programs(lambda: ({"a": grid(), "l": [np.ones(3), 2.0]},))
def of_containers(d):
    return d["a"][:, 0] * d["l"][0] + d["l"][1]


class Scaler:
    def __init__(self):
        self.mean, self.scale = np.arange(4.0), np.float64(2.0)
        self.seen = np.zeros(4)

    def __call__(self, a):
        self.seen += a.sum(0)
        self.last = a[0] * 2
        return (a - self.mean) / self.scale


@programs(lambda: (Scaler(), grid()))
def of_objects(s, a):
    return s(a), s.seen, s.last


OFFSETS = np.array([1.0, -1.0, 2.0, -2.0])


@programs(lambda: (grid(),))
def of_globals(a):
    return a * OFFSETS + OFFSETS.max()


@programs(lambda: (grid(), 3, 0.5))
def of_numbers(a, n, f):
    return a * n + f, a[:n], np.full((n,), f) + a[0, :n], a**n


@programs(lambda: (grid(), True))
def branches(a, flag):
    if flag and a.shape[0] == 3 and a.dtype == np.float64:
        return a + 1
    return a - 1


@programs(lambda: (grid(),))
def branches_on_data(a):
    b = a * 2
    if b.sum() > 3:
        return b - 1
    return b + 1


@programs(lambda: (grid(),))
def numbers_of_python(a):
    b = a * 2
    return float(b.sum()) + 1, int(b[1, 1]), b.max().item(), bool((b > 0).all())


@programs(lambda: (grid(),))
def printed(a):
    b = a * 2
    return f"{b[0, 0]:.2f} {b.shape}", str(b[0]), repr(b.sum())


def helper(a, *, axis=0):
    return a - a.mean(axis=axis, keepdims=True)


@programs(lambda: (grid(),))
def helpers(a):
    normal = lambda x: helper(x) / (x.std() + 1e-6)  # noqa: E731
    return normal(a), helper(a, axis=1), [helper(r[None], axis=1) for r in a]


@programs(lambda: (some(3, 4), grid()))
def tensors_and_arrays(t, a):
    b = torch.from_numpy(a).float() + t
    c = (b * 2).numpy()
    c[0] = 1
    return b, c, torch.tensor(c), torch.as_tensor(a), np.asarray(t), np.array(t) + 1


@programs(lambda: (some(3, 4),))
def layers(t):
    x = torch.relu(t).numpy()
    y = np.log1p(x)
    return torch.nn.functional.softmax(torch.from_numpy(y), -1)


@programs(lambda: (some(2, 3).requires_grad_(),))
def detached(t):
    a = t.detach().numpy() * 2
    return t * torch.from_numpy(a), a


@programs(lambda: (np.array(["a", "b"], dtype=object), np.arange(2.0)))
def of_objects_in_arrays(names, a):
    return names[0], a + 1


@programs(lambda: (np.array([(1, 2.0)], dtype=[("i", int), ("f", float)]), np.arange(2.0)))
def of_records(r, a):
    return r["f"], a + 1


@programs(lambda: (np.arange(4, dtype=">f8"), np.arange(4.0)))
def of_other_byte_orders(b, a):
    return b * 2, a * 2


@programs(lambda: (grid()[::-1],))
def of_backward_arguments(a):
    return a * 2


@programs(
    lambda: (np.broadcast_to(np.arange(4.0), (3, 4)),),
    gap="an argument that may not be written to is computed with eagerly",
)
def of_arguments_to_read(a):
    return a * 2


@programs(lambda: (grid(),))
def compared_with_nothing(a):
    return a is None, a is not None, a is a, a == 3.0, (a == a).all()


@programs(lambda: (np.float32(1.5), np.arange(3, dtype=np.float32)))
def given_numbers(s, a):
    return s * a, s + 1, np.exp(a) * s, a[np.int64(1)]


@programs(lambda: (grid(),))
def raised(a):
    try:
        return a.reshape(5, 5)
    except ValueError as e:
        return str(e)


@programs(lambda: (grid(),))
def raised_by_shapes(a):
    return a + np.ones(3)


@programs(lambda: (grid(),))
def raised_by_indices(a):
    return a[5]


@programs(lambda: (np.array([1, 2, 3]), np.array([1, 0, 2])))
def divided_by_zero(a, b):
    with np.errstate(all="ignore"):
        return a / b


@programs(lambda: (grid(),))
def random_numbers(a):
    np.random.seed(0)
    return a * 2 + np.random.rand(4)
