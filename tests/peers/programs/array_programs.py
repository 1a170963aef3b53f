"""numpy inside of whole programs: small algorithms, arrays that are kept and written to, what falls back to numpy."""

from __future__ import annotations

import numpy as np
import torch

from ..program import Programs, some

programs = Programs()


def grid() -> np.ndarray:
    return np.linspace(-2.0, 3.0, 12).reshape(3, 4)


@programs(lambda: (np.arange(12.0).reshape(6, 2), np.array([[0.0, 1.0], [8.0, 9.0]])))
def step_of_k_means(points, centres):
    distances = ((points[:, None] - centres[None]) ** 2).sum(-1)
    nearest = distances.argmin(1)
    moved = np.stack([(points * (nearest == k)[:, None]).sum(0) / (nearest == k).sum() for k in range(2)])
    return nearest, moved, np.linalg.norm(moved - centres, axis=1)


@programs(lambda: (np.array([0.0, 1.0]), np.eye(2) * 2, np.array([1.2])))
def step_of_a_kalman_filter(x, p, z):
    f, h = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[1.0, 0.0]])
    x, p = f @ x, f @ p @ f.T + 0.01 * np.eye(2)
    gain = p @ h.T @ np.linalg.inv(h @ p @ h.T + 0.5)
    return x + gain @ (z - h @ x), (np.eye(2) - gain @ h) @ p


@programs(lambda: (some(16),))
def low_pass_filter(t):
    found = np.fft.rfft(t.numpy() * (-1.0) ** np.arange(16, dtype=np.float32))
    found[5:] = 0
    found[1] *= 0.5
    return torch.from_numpy(np.fft.irfft(found, n=16)), np.abs(found)


@programs(lambda: (np.linspace(0.0, np.pi, 9),))
def integrals(x):
    y, h = np.sin(x), x[1] - x[0]
    simpson = h / 3 * (y[0] + 4 * y[1:-1:2].sum() + 2 * y[2:-1:2].sum() + y[-1])
    return np.stack([simpson, h * y[:-1].sum(), np.pi * y.mean()]), np.cumsum((y[1:] + y[:-1]) / 2 * h)


@programs(lambda: (np.linspace(0.0, 1.0, 6) ** 2,))
def finite_differences(u):
    second = np.zeros_like(u)
    second[1:-1] = u[2:] - 2 * u[1:-1] + u[:-2]
    return second, np.gradient(u, 0.2), np.gradient(np.outer(u, u), axis=1), np.diff(u, n=2), np.diff(u, prepend=0.0)


@programs(lambda: (np.linspace(0.0, 1.0, 8),))
def heat_in_place(u):
    for _ in range(3):
        u[1:-1] += 0.25 * (u[2:] - 2 * u[1:-1] + u[:-2])
        u[0] = u[-1] = 0
    return u


@programs(lambda: (np.eye(5, dtype=np.int8)[:, ::-1] | np.eye(5, dtype=np.int8),))
def game_of_life(cells):
    around = sum(np.roll(cells, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    return ((around == 3) | ((cells == 1) & (around == 2))).astype(np.int8)


@programs(lambda: (np.arange(25.0).reshape(5, 5), np.array([[0.0, 1.0], [2.0, -1.0]])))
def convolution_by_strides(image, kernel):
    windows = np.lib.stride_tricks.as_strided(image, (2, 2, 4, 4), image.strides * 2)
    return np.einsum("ij,ijkl->kl", kernel, windows)


@programs(lambda: (np.arange(25.0).reshape(5, 5), np.array([[0.0, 1.0], [2.0, -1.0]])))
def convolution_by_slices(image, kernel):
    (rows, columns), (height, width) = kernel.shape, image.shape
    shifts = [(i, j) for i in range(rows) for j in range(columns)]
    return sum(kernel[i, j] * image[i : height - rows + 1 + i, j : width - columns + 1 + j] for i, j in shifts)


@programs(lambda: (np.array([1.0, 2.0, 10.0]),))
def newtons_method(a):
    x = np.ones_like(a)
    for _ in range(6):
        x -= (x * x - a) / (2 * x)
    return x, np.abs(x * x - a) < 1e-3


@programs(lambda: (2.0,))
def newtons_method_until_it_is_near(a):
    x, steps = np.float64(1.0), 0
    while abs(x * x - a) > 1e-9:
        x, steps = x - (x * x - a) / (2 * x), steps + 1
    return x, steps


@programs(lambda: (np.arange(12.0).reshape(4, 3) / 10, np.array([0, 1, 1, 0]), np.zeros((3, 2))))
def step_of_softmax_regression(x, labels, w):
    scores = x @ w
    scores -= scores.max(axis=1, keepdims=True)
    p = np.exp(scores)
    p /= p.sum(axis=1, keepdims=True)
    losses = -np.log(p[np.arange(4), labels])
    p[np.arange(4), labels] -= 1
    w -= 0.1 * x.T @ p / 4
    return losses, losses.mean(keepdims=True)


@programs(lambda: (np.array([[4.0, 1.0], [2.0, 3.0]]),))
def power_iteration(a):
    v = np.ones(2)
    for _ in range(20):
        v = a @ v
        v /= np.linalg.norm(v)
    return np.asarray(v @ a @ v), v


@programs(lambda: (np.array([3, 1, 2, 1, 3, 3]), np.array([0.5, 1.5, 2.5])))
def counts(a, edges):
    return np.bincount(a, minlength=5), np.digitize(a, edges), (a[:, None] == np.arange(4)).sum(0)


@programs(lambda: (np.array([3, 1, 2, 1, 3, 3]),))
def histograms(a):
    found, edges = np.histogram(a, bins=3, range=(1, 4))
    return found, edges


@programs(lambda: (np.array([3, 1, 2, 1, 3, 3]),))
def unique_with_places(a):
    values, places, inverse, often = np.unique(a, return_index=True, return_inverse=True, return_counts=True)
    return values[inverse], places, often * values


@programs(lambda: (np.array([1.0, 3.0, 5.0]), np.array([0.0, 3.0, 6.0])))
def positions(a, v):
    return np.searchsorted(a, v), np.searchsorted(a, v, side="right"), a.searchsorted(v) + 1


@programs(lambda: (grid(),))
def sorted_in_place(a):
    view = a[::-1, 0]
    a *= -1
    a.sort(axis=1)
    a[:, :2].sort(0)
    return a, view


@programs(lambda: (grid(), np.array([[1, 0], [2, 2]])))
def taken(a, i):
    return np.take(a, i), a.take(i, axis=1), np.take_along_axis(a, i.T[:, :1].repeat(4, 1), 0), a[i, i], a[:, i].shape


@programs(lambda: (grid(), np.array([[1, 0, 2]])))
def put(a, i):
    np.put(a, [0, -1], [50.0, 60.0])
    a.put([5, 6], 7)
    np.put_along_axis(a, i.T, np.array([[1.0], [2.0], [3.0]]), 1)
    return a


@programs(lambda: (grid(), np.ones((3, 4), dtype=np.int64)))
def filled_and_copied(a, b):
    a.fill(4)
    np.fill_diagonal(b, 7)
    np.copyto(a, b)
    a[:, 3].fill(0)
    return a, b


@programs(lambda: (grid(), np.full((3, 4), -1.0)))
def ufuncs_with_out(a, out):
    found = np.multiply(a, a, out=out)
    np.sqrt(out, out)
    np.add(a, out, out=a)
    np.maximum(a[0], 1, out=a[1])
    return (
        found is out,
        found,
        np.multiply(a, 2, dtype=np.float32, casting="same_kind"),
        np.exp(a, out=np.empty_like(a)),
    )


@programs(lambda: (grid(), np.full((3, 4), -1.0)))
def ufuncs_with_where(a, out):
    np.sqrt(a, out=out, where=a >= 0)
    np.divide(1.0, a, out=a, where=a > 0.5)
    return a, out, np.sum(a, axis=0, where=a > 0)


@programs(lambda: (grid(),))
def methods_of_ufuncs(a):
    b = np.zeros(4)
    np.add.at(b, [0, 0, 2], 1.5)
    return np.add.accumulate(a, axis=1), np.multiply.outer(a[0], a[1]), np.maximum.reduce(a), b


@programs(lambda: (np.arange(24.0).reshape(2, 3, 4),))
def reductions_over_several_axes(a):
    return (
        a.sum((0, 2)),
        a.mean(axis=(1, 2), keepdims=True),
        np.amax(a, (0, -1), keepdims=True),
        a.std((0, 1), ddof=1),
        np.linalg.norm(a, axis=(1, 2)),
        np.sum(a, axis=-1, dtype=np.float32, keepdims=True),
        a.prod(axis=1).var(axis=0),
    )


@programs(lambda: (np.array([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]]),))
def without_nans(a):
    kept = ~np.isnan(a)
    return np.where(kept, a, 0).sum(1) / kept.sum(1), np.nan_to_num(a, nan=-1.0), a[kept] * 2, np.maximum(a, 2)


@programs(lambda: (np.array([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]]), np.array([1.0, 2.0])))
def functions_that_torch_does_not_have(a, c):
    b = np.nansum(a, 0) + np.nanmean(a)
    return np.polyval(c, b), np.interp(b, [0, 3, 9], [0, 1, 5]), np.trapezoid(b), np.ediff1d(b) * 2, np.unwrap(b)


@programs(lambda: (np.arange(24.0).reshape(2, 3, 4), np.arange(12.0).reshape(4, 3)))
def contractions(a, b):
    return (
        np.tensordot(a, b, axes=([2, 1], [0, 1])),
        np.einsum("...ij,jk->...k", a, b),
        np.einsum("bij,bij->b", a, a, optimize=True),
        np.einsum(a, [0, 1, 2], b, [2, 3], [3, 0]),
        np.linalg.multi_dot([a[0], b, a[1]]),
    )


@programs(lambda: (np.array([[2.0, 0.0], [1.0, 3.0], [1.0, 1.0]]), np.array([1.0, 2.0, 3.0])))
def least_squares(a, b):
    found, rest, rank, singular = np.linalg.lstsq(a, b)
    return found, rest, rank, singular, np.linalg.pinv(a) @ b, np.linalg.matrix_rank(a), np.linalg.cond(a)


@programs(lambda: (np.ones((3, 3)),))
def singular_matrix(a):
    return np.linalg.inv(a - a)


@programs(lambda: (np.arange(3.0), 4))
def objects_that_make_grids(a, n):
    x, y = np.mgrid[0:3, 0:n]
    i, j = np.ogrid[:3, :n]
    return x * a[:, None] + y, i * n + j, np.mgrid[0:1:3j], np.r_[a, 7.0], np.c_[a, a]


@programs(lambda: (grid(), np.array([2, 0]), np.array([True, False, True, False])))
def open_meshes(a, i, m):
    a[np.ix_(i, [1, 3])] = 0
    return a, a[np.ix_(i, m)]


@programs(lambda: (grid(), np.array([True, False, True, False])))
def places_of_what_is_true(a, m):
    (i,) = np.nonzero(m)
    return a[:, i] * 2, np.argwhere(a > 1), np.flatnonzero(a < 0), a[a.nonzero()].shape


@programs(lambda: (grid(),))
def blocks(a):
    b = a[:, :3]
    upper, lower = np.hstack([b, np.zeros((3, 1))]), np.column_stack([np.ones((2, 3)), np.array([2.0, 3.0])])
    return (
        np.vstack([upper, lower]),
        np.concatenate([a, b], axis=None),
        np.concatenate((upper, lower), dtype=np.float32),
    )


@programs(lambda: (grid(), np.arange(27).reshape(3, 3, 3)))
def turned(a, b):
    return (
        np.rot90(a, -1) + 0,
        np.rot90(b, 2, (1, 2)) * 2,
        np.roll(b, (1, -1), (0, 2)),
        np.tril(b, -1),
        np.triu(b[0], 1),
    )


@programs(lambda: (grid(), grid() * 10))
def chosen_by_conditions(a, b):
    return (
        np.where(a > 0, np.where(b > 9, 9, b), -a),
        np.choose((a > 0).astype(int), [a, b]),
        a * (b > 0) + b * ~(b > 0),
    )


@programs(lambda: (grid(),))
def chosen_by_lists(a):
    i, j = np.triu_indices(3, 1)
    return (
        np.select([a < -1, a < 1, a > 2], [a * 10, 0.0, a.T.reshape(3, 4)], default=-7.0),
        np.piecewise(a, [a < 0, a >= 0], [lambda x: -x, lambda x: x * 2]),
        np.compress([True, False, True], a, axis=0),
        a[i, j] * 2,
    )


@programs(lambda: (grid(), grid() + 1e-9))
def nearly_equal(a, b):
    if np.allclose(a, b) and not np.array_equal(a, b):
        return np.isclose(a, b + 1, atol=0.5, rtol=0), np.allclose(a, b, rtol=0, atol=0), np.isin(a, b)
    return a


@programs(lambda: (grid(),))
def lists_of_arrays(a):
    b = (a * 2).astype(int)
    return (
        b.tolist(),
        b[0].tolist(),
        b.item(3),
        b[1, 1].item(),
        [int(v) for v in b[2]],
        tuple(b.shape),
        dict(enumerate(b[0])),
    )


@programs(lambda: (grid(),))
def iterated_in_other_ways(a):
    rows = {i: row.sum() for i, row in enumerate(a)}
    pairs = [x * y for x, y in zip(a[0], a[1])]
    return (
        rows,
        pairs,
        [v + i for (i, _), v in np.ndenumerate(a)],
        list(np.ndindex(2, 2)),
        [v for v in a[:2].flat],
        2.0 in a,
    )


@programs(lambda: (np.arange(12, dtype=np.int32).reshape(3, 4),))
def writes_through_views(a):
    rows, even, flat = a[1:], a[:, ::2], a.reshape(-1)
    even += 100
    flat[3] = 7
    a.T[0] = -1
    np.swapaxes(a, 0, 1)[1, :] = flat[:3] * 2
    a.diagonal().sum()
    rows[0, 1:3][:] = 50
    return a, rows, even, flat[4:6]


@programs(lambda: (np.arange(12, dtype=np.int32).reshape(3, 4),))
def writes_through_unusual_views(a):
    a[::-1] //= 2
    np.einsum("ii->i", a[:, :3])[:] = 9
    a.T[1:][::2] += 5
    a.flat[::5] = -1
    return a


@programs(lambda: (np.arange(12, dtype=np.int32).reshape(3, 4),))
def view_and_its_base_written_after_a_break(a):
    b = a[:, :3]
    print(end="")
    b += 1
    a.ravel()[-1] = 0
    return a


@programs(lambda: (np.arange(12.0).reshape(3, 4),))
def rows_written(a):
    a[1:] += 1
    a[0] = a[1]
    a[2] -= a[0]
    return a


@programs(lambda: (np.arange(6.0),))
def overlapping_writes(a):
    a[1:] = a[:-1]
    a[::-1] += a
    a[:3], a[3:] = a[3:] * 2, a[:3]
    return a


@programs(lambda: (grid(),))
def swapped_rows(a):
    a[[0, 1]] = a[[1, 0]]
    a[0], a[2] = a[2], a[0]
    return a


@programs(lambda: (np.arange(3, dtype=np.int32), np.array([1.5, 2.5, 3.5], np.float32), np.array([True, False, True])))
def promotion(i, f, b):
    return (
        i + f,
        i * 2.5,
        i + np.int8(3),
        f + 1j,
        b + b,
        b * np.float16(2),
        np.concatenate([i, f]),
        np.where(b, i, f),
        i.astype(np.float16) + f.astype(np.float16),
        f.astype(np.complex64) * i,
        i.mean(dtype=np.float32, keepdims=True),
        i.astype(np.uint8) - np.uint8(1),
        f @ i,
    )


@programs(
    lambda: (np.arange(1, 500, dtype=np.float16) / 7,),
    gap="a kernel rounds half precision at its end, as it does for tensors",
)
def rounding_of_half_precision(a):
    return a * a / 3, (a + 1000) - 1000


@programs(lambda: (np.arange(5000, dtype=np.float16),))
def overflow_of_half_precision(a):
    with np.errstate(over="ignore"):
        return a.sum(keepdims=True), a.std(keepdims=True), a.mean(keepdims=True)


@programs(lambda: (np.array([100, 120], dtype=np.int8), np.array([250, 6], dtype=np.uint8)))
def whole_numbers_that_overflow(a, b):
    return a + a, b + np.uint8(10), a * b, b - b[::-1], -b, np.sum(a), np.sum(a, dtype=np.int8), a.astype(np.uint8) << 1


@programs(lambda: (np.arange(3, dtype=np.int8),))
def number_that_does_not_fit(a):
    return a + 300


@programs(lambda: (np.array([1 + 2j, -1j, 3], dtype=np.complex64),))
def complex_of_single_precision(z):
    z *= 1j
    z[0] += 1
    return (
        z,
        np.abs(z),
        np.angle(z),
        z.conj() * z,
        np.exp(z),
        z.astype(np.complex128).sum(keepdims=True),
        z.real,
        z.imag**2,
    )


@programs(lambda: (np.array(3.0), torch.tensor(2.0)))
def arrays_without_axes(a, t):
    b = t.numpy()
    a += 1
    b[...] = 7
    return a, b, a.reshape(1), np.atleast_1d(b), np.broadcast_to(b, (2, 2)) * a, a.ndim, t


@programs(lambda: (np.array(3.0), np.arange(3)))
def numbers_of_arrays(a, b):
    return (
        a * 2,
        a[()],
        b[1] + a,
        float(a),
        type(a + 1).__name__,
        type(b.sum()),
        np.sum(a),
        b.max() - 0.5,
        bool(b[0]),
        int(a),
    )


@programs(lambda: (np.zeros((0, 3)), np.arange(3.0)))
def empty_arrays(a, b):
    return (
        a.sum(0),
        a + b,
        a @ b,
        np.concatenate([a, b[None]]),
        b[b > 9],
        a.prod(1),
        np.cumsum(a),
        len(a),
        a.T @ a,
        b[3:],
    )


@programs(lambda: (np.zeros((0, 3)),))
def largest_of_nothing(a):
    return a.max()


@programs(lambda: (np.array([("a", 1.0, [1, 2]), ("b", 2.0, [3, 4])], dtype="U1,f8,(2,)i4"), some(2)))
def written_records(r, t):
    r["f1"] *= 2
    r[0]["f2"][1] = 9
    return t * torch.from_numpy(r["f1"].copy()), r["f2"].sum(), r.dtype.names


@programs(lambda: (some(3),))
def objects_texts_and_dates(t):
    kept = np.array([t, None, "x"], dtype=object)
    names = np.char.upper(np.array(["ab", "c"]))
    days = np.datetime64("2024-02-28") + np.arange(3)
    return kept[0] * 2, kept[1:], names.tolist(), str(days[-1]), t + len(names)


@programs(lambda: (some(4),))
def random_generators(t):
    rng = np.random.default_rng(3)
    noise = rng.normal(size=4).astype(np.float32)
    order = np.random.RandomState(0).permutation(4)
    return t + torch.from_numpy(noise), t[torch.from_numpy(order)] * 2


@programs(lambda: (grid()[:, ::2], np.arange(12.0)[::3], np.asfortranarray(grid())))
def views_as_arguments(a, b, c):
    a[0] *= 2
    b[-1] = 9
    return a.T + 1, b * 2, c.sum(1), np.ascontiguousarray(a), c @ c.T, c[1:, 1:]


@programs(lambda: (grid()[::-1, ::2], np.asfortranarray(grid())))
def unusual_views_as_arguments(a, c):
    a[0] *= 2
    return a.T + 1, a[::-1] * 2, c.ravel("K"), c.reshape(-1, order="F"), c.flags["F_CONTIGUOUS"]


BASE = np.arange(6.0)


@programs(lambda: (np.arange(6.0),))
def shared_memory(a):
    view = a[2:]
    return np.shares_memory(a, view), np.may_share_memory(a, BASE), view * 2


@programs(lambda: (np.arange(6.0),))
def bases_of_views(a):
    view = a[2:]
    return view.base is a, view * 2, view[::2].base is view.base


@programs(lambda: (np.arange(6.0),))
def base_of_a_copy(a):
    return a.copy().base is None, (a * 2).base is None


@programs(lambda: (np.arange(6.0).reshape(2, 3),))
def bases_of_what_is_reshaped(a):
    turned, copied = a.T, a.T.reshape(6)
    return (
        turned.base is a.base,
        copied.base is None,
        a.ravel().base is a.base,
        a[0, 0].base is None,
        a.sum(0).base is None,
    )


@programs(lambda: (np.frombuffer(bytearray(range(16)), dtype=np.uint8),))
def base_of_other_memory(a):
    return a[1:].base is a, a[1:][1:].base is a, type(a.base).__name__, a + 1


@programs(lambda: ((lambda a: (a, a[1:]))(np.arange(6.0)),))
def base_of_an_argument(pair):
    a, view = pair
    return a.base is None, view.base is a, view[1:].base is a, a[1:].base is view.base, (view + 1).base


def read_base(a):
    return a[1:].base is a, a * 2


@programs(lambda: (np.arange(6.0), np.arange(6.0)[2:]))
def base_that_differs_by_call(a, b):
    return read_base(a), read_base(b)


@programs(lambda: ((lambda a: (a, a[1:]))(np.arange(5.0)),))
def arguments_that_overlap(pair):
    a, b = pair
    b *= 2
    a += 1
    return a + 0, b


def shifted(a, by=np.array([1.0, 2.0, 3.0, 4.0]), *, of=np.float32(2)):
    return a * of + by


@programs(lambda: (grid(),))
def arrays_as_defaults(a):
    return shifted(a), shifted(a, by=a[0]), shifted(a, of=a[:, :1])


@programs(lambda: (grid(),))
def arrays_in_closures(a):
    total, factor = np.zeros(4), a.mean()

    def add(row):
        nonlocal total
        total = total + row * factor
        return total.copy()

    return [add(row) for row in a], total


CACHE = {"weights": np.array([1.0, 2.0, 3.0, 4.0]), "all": [np.eye(4), np.float64(0.5)]}


@programs(lambda: (grid(),))
def arrays_of_global_containers(a):
    scale = CACHE["all"][1]
    return a @ CACHE["all"][0] * CACHE["weights"] + scale, {k: type(v).__name__ for k, v in CACHE.items()}


class Normaliser(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.count = np.zeros(4, dtype=np.float32), 0
        self.layer = torch.nn.Linear(4, 2)
        torch.nn.init.constant_(self.layer.weight, 0.5)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        self.count += 1
        self.mean += (x.detach().numpy().mean(0) - self.mean) / self.count
        return self.layer(x - torch.from_numpy(self.mean))


@programs(lambda: (Normaliser(), some(3, 4)))
def arrays_of_modules(m, x):
    return m(x), m(x * 2), m.mean, m.count


@programs(lambda: ({"a": [np.zeros(3), np.ones(3)], "b": (np.arange(3),)}, 2.0))
def arguments_in_containers_written(d, by):
    d["a"][0] += by
    d["a"][1] = d["a"][1] * by
    d["a"].append(d["b"][0] - 1)
    d["c"] = d["b"][0].max(keepdims=True)
    return d


@programs(lambda: (some(3, 4),))
def memory_of_tensors_and_arrays(t):
    a = t.numpy()
    a[0] = 0
    u = torch.from_numpy(a.T)
    u.add_(1)
    return t, a, u, t.sum() + torch.as_tensor(a).sum()


@programs(lambda: (some(3, 4),))
def tensor_less_a_number_of_an_array(t):
    return t.sum() - t.numpy().max(), t * t.numpy().mean()


@programs(lambda: (some(3).requires_grad_(),))
def array_of_a_leaf(t):
    return t.numpy() * 2


@programs(lambda: (some(3).requires_grad_(),))
def gradients_beside_arrays(t):
    weights = np.exp(-np.arange(3.0, dtype=np.float32))
    loss = (t**2 * torch.from_numpy(weights)).sum()
    (g,) = torch.autograd.grad(loss, t)
    return g, g.numpy().cumsum(), loss.detach().numpy()


@programs(lambda: (some(3, 4),))
def transforms_and_arrays(t):
    weights = torch.from_numpy(np.linspace(0.0, 1.0, 4, dtype=np.float32))
    grads = torch.func.vmap(torch.func.grad(lambda v: (v.sin() * weights).sum()))(t)
    return np.linalg.norm(grads.numpy(), axis=1), torch.func.jacrev(lambda v: v**2)(t[0]).numpy().diagonal()


@programs(lambda: (some(3, 4),))
def arrays_inside_of_transforms(t):
    weights = np.linspace(0.0, 1.0, 4, dtype=np.float32)
    return torch.func.grad(lambda v: (v.sin() * torch.from_numpy(weights * 2)).sum())(t)


@programs(lambda: (some(3), np.arange(3, dtype=np.float32)))
def tensors_and_arrays_in_one_operator(t, a):
    u = torch.as_tensor(a)
    return torch.maximum(t, u), t @ torch.from_numpy(a[::1].copy()), torch.stack([t, u]), torch.where(t > 0.2, u, t)


@programs(lambda: (some(3), np.arange(3, dtype=np.float32)))
def tensors_made_of_arrays(t, a):
    return t + torch.tensor(a), t.new_tensor(a), torch.asarray(a * 2), torch.Tensor(a)


@programs(lambda: (some(3), np.arange(3, dtype=np.float32)))
def tensors_made_of_numbers(t, a):
    return t * a[1], t + torch.tensor(a[0]), torch.full((2,), a.max())


@programs(lambda: (some(3),))
def functions_of_numpy_given_tensors(t):
    return np.stack([t, t * 2]), np.dot(t[None], t), np.concatenate([t, t]), np.multiply.outer(t, t).shape


@programs(lambda: (some(3), np.arange(3.0)))
def functions_of_numpy_given_both(t, a):
    return np.hstack((a, t)), np.vstack([t, a]), np.inner(a, t), np.outer(t, a), np.where(t > 0.5, t, a), np.vdot(t, t)


@programs(lambda: (some(3).requires_grad_(),))
def functions_of_numpy_given_gradients(t):
    try:
        return "made", np.stack([t, t]).shape
    except RuntimeError as e:
        return "refused", str(e)


@programs(lambda: (some(3), np.arange(3.0)))
def array_to_the_left_of_a_tensor(t, a):
    return a * t


@programs(lambda: (grid(),))
def wrong_axis_that_is_handled(a):
    try:
        return a.sum(axis=2)
    except np.exceptions.AxisError as e:
        return str(e), a.mean(axis=-1)


@programs(lambda: (np.arange(3),))
def refused_casts(a):
    found = []
    for call in (lambda: np.add(a, 0.5, out=a), lambda: a.__iadd__(1j), lambda: a.astype(float, casting="no")):
        try:
            call()
        except TypeError as e:
            found.append((type(e).__name__, str(e)))
    return found, a


@programs(lambda: (grid(),), gap="positions in arrays that data decides")
def numbers_as_indices(a):
    i = a[0].argmax()
    return a[:, i] + 1, a[np.argmin(a[:, 0])] * 2, a[1, i : i + 1]


@programs(lambda: (grid(), np.int64(2)))
def whole_numbers_as_sizes(a, n):
    return a[1:n], [10, 20, 30][n], np.arange(n), a.reshape(n, -1), range(n)[1], np.zeros((n, 3)), a[n]
