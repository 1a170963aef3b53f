"""numpy's functions, a few in each program: elementwise, along axes, linear algebra, Fourier transforms, and what makes arrays."""

from __future__ import annotations

import numpy as np
import torch

from ..program import Programs, some

programs = Programs()


def grid() -> np.ndarray:
    return np.linspace(-2.0, 3.0, 12).reshape(3, 4)


def whole() -> np.ndarray:
    return np.array([[7, -2, 5], [0, 3, -9]])


@programs(lambda: (grid(),))
def exponentials(a):
    return (
        np.exp(a),
        np.expm1(a),
        np.exp2(a),
        np.log1p(np.abs(a)),
        np.log2(a * a + 1),
        np.log10(a * a + 1),
        np.sqrt(a * a),
    )


@programs(lambda: (grid(),))
def trigonometry(a):
    return (
        np.sin(a),
        np.cos(a),
        np.tan(a),
        np.arctan(a),
        np.arctan2(a, a + 1),
        np.sinh(a),
        np.cosh(a),
        np.tanh(a),
        np.hypot(a, a),
    )


@programs(lambda: (grid(),))
def rounding(a):
    return np.floor(a), np.ceil(a), np.trunc(a), np.rint(a), np.round(a, 1), np.fix(a), a.round(2), np.around(a)


@programs(lambda: (grid(),))
def signs(a):
    return (
        np.sign(a),
        np.abs(a),
        np.absolute(a),
        np.negative(a),
        np.positive(a),
        np.signbit(a),
        np.copysign(a, -a),
        np.fabs(a),
    )


@programs(lambda: (grid(), np.array([1.0, np.nan, 0.5, np.inf])))
def extremes(a, b):
    return (
        np.maximum(a, b),
        np.minimum(a, b),
        np.fmax(a, b),
        np.fmin(a, b),
        np.isnan(b),
        np.isfinite(b),
        np.isinf(b),
        np.nan_to_num(b),
    )


@programs(lambda: (grid(), grid().T.copy().reshape(3, 4)))
def comparisons(a, b):
    return a < b, a <= b, a == b, a != b, np.greater(a, b), np.greater_equal(a, 0.5), np.equal(a, a), np.isclose(a, b)


@programs(lambda: (whole(),))
def logic(a):
    b = a > 0
    return (
        np.logical_and(b, ~b),
        np.logical_or(b, a == 0),
        np.logical_xor(b, b),
        np.logical_not(b),
        b & ~b,
        b | b,
        b ^ True,
    )


@programs(lambda: (whole(),))
def bits(a):
    return a & 3, a | 8, a ^ 5, ~a, np.bitwise_and(a, 1), np.left_shift(a, 2), np.right_shift(a, 1), a << 1, a >> 1


@programs(lambda: (whole(), np.array([3, 2, 4])))
def whole_numbers(a, b):
    return (
        a // b,
        a % b,
        a**2,
        a / b,
        np.floor_divide(a, b),
        np.mod(a, b),
        np.remainder(a, b),
        np.fmod(a, b),
        np.gcd(a, b),
        np.lcm(a, b),
    )


@programs(lambda: (whole(), np.array([3, 2, 4])))
def divided_with_remainder(a, b):
    return np.divmod(a, b), divmod(a, b), divmod(a, 3)


@programs(lambda: (grid(),))
def sums(a):
    return (
        a.sum(),
        a.sum(0),
        a.sum(axis=1, keepdims=True),
        np.sum(a, axis=(0, 1)),
        a.prod(1),
        np.prod(a),
        a.sum(dtype=np.float32),
    )


@programs(lambda: (grid(),))
def moments(a):
    return (
        a.mean(),
        a.mean(0),
        a.var(),
        a.var(axis=1, ddof=1),
        a.std(0),
        np.std(a, keepdims=True),
        np.average(a, axis=0),
        np.median(a),
    )


@programs(lambda: (grid(),))
def weighted(a):
    return np.average(a, axis=1, weights=np.array([1.0, 2.0, 3.0, 4.0]))


@programs(lambda: (grid(),))
def ranges(a):
    return a.max(), a.min(0), a.argmax(), a.argmin(axis=1), np.ptp(a), np.ptp(a, axis=0), np.max(a, axis=1), np.amin(a)


@programs(lambda: (grid(),))
def quantiles(a):
    return np.quantile(a, 0.25), np.percentile(a, 75, axis=0), np.median(a, axis=1)


@programs(lambda: (whole(),))
def counted(a):
    return (
        np.count_nonzero(a),
        np.any(a > 6),
        np.all(a > -10, axis=0),
        (a > 0).any(1),
        (a > 0).all(),
        np.count_nonzero(a, axis=1),
    )


@programs(lambda: (grid(), whole()))
def cumulative(a, b):
    return (
        a.cumsum(),
        a.cumsum(1),
        np.cumprod(a, axis=0),
        np.cumsum(b),
        b.cumprod(),
        np.diff(a),
        np.diff(a, axis=0),
        np.diff(b, n=2),
    )


@programs(lambda: (grid(),))
def sorted_values(a):
    return (
        np.sort(-a),
        np.sort(-a, axis=0),
        np.argsort(-a, axis=1),
        np.sort(a, axis=None),
        np.searchsorted(np.sort(a[0]), 0.0),
    )


@programs(lambda: (grid(), whole()))
def mixed_dtypes(a, b):
    return (
        b + 1.5,
        b * 2,
        a[:, :3] * b[0],
        b / 2,
        b.astype(np.int8) + b.astype(np.int16),
        (b > 0) + b,
        (b > 0) * 1.5,
        b + True,
    )


@programs(lambda: (np.arange(6, dtype=np.float32),))
def numbers_keep_the_dtype(a):
    return a * 2, a * 2.5, a + np.float32(1), a + np.float64(1), a * np.pi, 1 / (a + 1), 2**a, a**0.5, -a, +a, abs(a)


@programs(lambda: (np.arange(6, dtype=np.int32), np.arange(6, dtype=np.float16)))
def small_dtypes(a, b):
    return (
        a.sum(),
        a.mean(),
        b.sum(),
        b.mean(),
        a + b,
        a * 2.0,
        b * 2.0,
        a.prod(),
        a.cumsum(),
        np.sqrt(b),
        np.exp(a.astype(np.float32)),
    )


@programs(lambda: (grid()[:3, :3] + 3 * np.eye(3), np.array([1.0, -2.0, 0.5])))
def solved(a, b):
    return (
        np.linalg.solve(a, b),
        np.linalg.inv(a),
        np.linalg.det(a),
        np.linalg.norm(a),
        np.linalg.norm(b, 1),
        np.linalg.matrix_power(a, 3),
    )


@programs(lambda: (grid()[:3, :3] + 3 * np.eye(3),))
def decomposed(a):
    s = a @ a.T
    return np.linalg.cholesky(s), np.linalg.eigvalsh(s), np.linalg.svd(a, compute_uv=False), np.abs(np.linalg.qr(a)[1])


@programs(lambda: (grid()[:3, :3] + 3 * np.eye(3),))
def named_results(a):
    found = np.linalg.eigh(a @ a.T)
    sign, log = np.linalg.slogdet(a)
    return found.eigenvalues, np.abs(found.eigenvectors), sign, log, np.linalg.slogdet(a).logabsdet


@programs(lambda: (grid(), grid().T.copy()))
def products(a, b):
    return (
        a @ b,
        np.matmul(a, b),
        np.dot(a, b),
        a.dot(b),
        np.inner(a, a),
        np.outer(a[0], b[:, 0]),
        np.vdot(a, a),
        np.tensordot(a, b, 1),
    )


@programs(lambda: (grid(), grid().T.copy()))
def sums_of_products(a, b):
    return (
        np.einsum("ij,jk->ik", a, b),
        np.einsum("ij->j", a),
        np.einsum("ii", a @ b),
        np.kron(a[:2, :2], a[:2, :2]),
        np.trace(a @ b),
    )


@programs(lambda: (np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.5])))
def crossed(a, b):
    return np.cross(a, b), np.convolve(a, b), np.correlate(a, b, "full"), np.cov(np.stack([a, b])), np.corrcoef(a, b)


@programs(lambda: (grid(),))
def transformed(a):
    return (
        np.fft.fft(a),
        np.fft.rfft(a, axis=0),
        np.fft.ifft(np.fft.fft(a)).real,
        np.fft.fft2(a),
        np.fft.fftshift(a),
        np.fft.fftfreq(4),
    )


@programs(lambda: (grid() + 1j * grid()[::-1],))
def complex_numbers(a):
    return a.real, a.imag, np.conj(a), np.angle(a), np.abs(a), a * 1j, a.sum(), np.iscomplexobj(a), np.real(a) + 1


@programs(lambda: (grid() * (1 + 2j),))
def complex_parts(a):
    return a.real, a.imag, np.conj(a), np.angle(a), np.abs(a), a * 1j, a.sum(), np.iscomplexobj(a), np.real(a) + 1


@programs(lambda: (grid(),))
def made_like_others(a):
    return (
        np.zeros_like(a),
        np.ones_like(a, dtype=np.int32),
        np.full_like(a, 7),
        np.empty_like(a) * 0 == 0,
        np.zeros(a.shape),
    )


@programs(lambda: (some(3),))
def made(t):
    a = t.numpy()
    return (
        a + np.arange(3),
        np.eye(3) * a,
        np.full(3, 2.0) * a,
        np.linspace(0, 1, 3) + a,
        np.ones((2, 3)) * a,
        np.identity(3) @ a,
    )


@programs(lambda: (some(3),))
def made_of_lists(t):
    a = t.numpy()
    return (
        a * np.array([1, 2, 3]),
        a + np.array([1.0, 2.0, 3.0], dtype=np.float32),
        np.asarray([[1], [2]]) * a,
        np.array([a, a]),
    )


@programs(lambda: (grid(),))
def triangles(a):
    return np.tril(a), np.triu(a, 1), np.diag(a), np.diag(a[0]), a.diagonal(1), np.tri(3), np.diagflat(a[0, :2])


@programs(lambda: (grid(),))
def joined(a):
    return (
        np.concatenate([a, a], axis=1),
        np.vstack([a, a[0]]),
        np.hstack([a, a]),
        np.dstack([a, a]),
        np.column_stack([a[0], a[1]]),
    )


@programs(lambda: (grid(),))
def stacked(a):
    return (
        np.stack([a, -a]),
        np.stack([a, a], axis=-1),
        np.append(a, a[:1], axis=0),
        np.append(a, 1.0),
        np.tile(a, (2, 1)),
        np.repeat(a, 2, 0),
    )


@programs(lambda: (grid(),))
def divided(a):
    first, second = np.split(a, 2, axis=1)
    return first + second, np.array_split(a, 2), np.hsplit(a, 2), [p.sum() for p in np.vsplit(a, 3)]


@programs(lambda: (np.arange(3.0), np.arange(4.0)))
def grids(a, b):
    x, y = np.meshgrid(a, b)
    return x * y, np.meshgrid(a, b, indexing="ij"), np.broadcast_arrays(a[:, None], b)


@programs(lambda: (grid(),))
def padded(a):
    return np.pad(a, 1), np.pad(a, ((0, 1), (2, 0)), constant_values=9.0)


@programs(lambda: (grid(),))
def rolled(a):
    return np.roll(a, 1), np.roll(a, 1, axis=0), np.gradient(a[0])


@programs(lambda: (grid(),))
def selected(a):
    return (
        np.where(a > 0, a, -a),
        np.where(a > 0, 1, 0),
        np.choose(np.array([0, 1, 0, 1]), [a[0], a[1]]),
        np.clip(a, -1, 1),
    )


@programs(lambda: (grid(),))
def clipped(a):
    return a.clip(0), a.clip(-1, 1), np.clip(a, None, 0.5), np.clip(a, a.mean(0), a.max()), a.clip(max=0.2)


@programs(lambda: (grid(),))
def what_arrays_are(a):
    return (
        np.ndim(a),
        np.shape(a),
        np.size(a),
        np.isscalar(a),
        np.result_type(a, np.float32),
        np.can_cast(a.dtype, np.float32),
        np.iscomplexobj(a),
    )


@programs(lambda: (grid(),))
def written_elsewhere(a):
    out = np.empty_like(a)
    np.add(a, 1, out=out)
    np.multiply(out, 2, out=out)
    total = np.zeros(4)
    np.sum(a, axis=0, out=total)
    return out, total


@programs(lambda: (some(2, 3),))
def between_both(t):
    a = np.tanh(t.numpy())
    u = torch.from_numpy(a) * t
    return u.numpy().sum(axis=1), torch.as_tensor(a.T) @ t
