"""Numbers, strings and formats.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import linecache
import math

import pytest
import torch

from tests.support.tensors import t

from .harness import agrees_with_eager


def number_results(x, k):
    return (
        x * k,
        k + 1,
        k * 1.0,
        k // 2,
        k % 3,
        -k,
        k == 1,
        k is True,
        type(k),
        str(k),
        repr(k),
        f"{k}",
        abs(k),
        round(k),
        int(k),
        float(k),
        bool(k),
    )


def float_details(x):
    z = -0.0
    return (
        x * z, math.copysign(1.0, z), 0.0 == z, float("nan") == float("nan"), math.nan is math.nan, 1e308 * 10, 5 // -2, -5 % 3, 5.5 % -2, 2**-1,
        2**0.5, (-8) ** (1 / 3), 10**20, 7 / 7, 1 < 2 < 3, 3 > 2 > 2, 0.1 + 0.2, 1 == 1.0 == True, hash(1) == hash(1.0), 1e-320, divmod(-7, 2),
        math.inf, -math.inf, int("12"), int("ff", 16), float("1e3"), complex(1, 2) * 2, (3).bit_length(), (0.5).is_integer(), round(2.5), round(-1.5),
    )  # fmt: skip


def zero_division(x, k):
    y = x + 1
    return y * (1 / k)


def tensor_scalars(x):
    return x * 2 + 1.5, 2 - x, 1 / (x + 10), 2**x, x**2, -x, +x, x // 1, x % 2, 1.0 * x.int(), x.int() / 2, 3 // (x.int() + 5), abs(x), x @ x, round(x), ~(x > 0), (x > 0) & (x < 1), (x > 0) ^ True, True + x, x == 1, x != x, 1 < x, divmod(x, 2)  # fmt: skip


def size_arithmetic(x):
    s = x.shape
    n = s[0] * s[1]
    return s + (1,), s[1:], s[-1], n, s == (2, 3), s.numel(), tuple(s), list(s), isinstance(s, tuple), type(s).__name__, type(s[1:]).__name__, len(s), torch.Size([1, 2]), x.view(*s[::-1]), x.new_zeros(s), (*s, 4), math.prod(s), s.index(3), 3 in s, max(s), sum(s), f"{s}", s[0] / 2, s[0] // 2, -s[0], s * 2  # fmt: skip


def string_work(x, s="Ab c"):
    return x, s.lower(), s.split(), s.replace("A", "z"), s[::-1], s.find("c"), "-".join(s.split()), s.startswith(("A", "b")), s.encode(), "%d|%s" % (3, s), "{:>5}|{x}".format(1, x=2), f"{s!r:>8}|{1.5:.2f}|{7:03d}", s.isalpha(), s * 2, "b" in s, s < "B", ord("a"), chr(98), s.partition(" "), s.title(), s.count("b"), s.zfill(6), len(s)  # fmt: skip


def formats_tensors(x):
    y = x + 1
    return (
        f"{y.shape} {y.dtype} {y.ndim} {tuple(y.shape)} {y.device}",
        str(y.dtype),
        repr(y.shape),
        f"{y.sum().item():.3f}",
        str(y),
    )


def f_string_debug(x):
    n = 3
    return f"{n=} {x.shape=} {n:>{n}} {'ab'!r}", x


def byte_str(x):
    return x, b"ab"[0], bytearray(b"a"), memoryview(b"ab")[1], b"a" + b"b"


def string_fmt(x):
    return "{0}{a}{b[k]}".format(1, a=2, b={"k": 3}), f"{x.shape[0]:>5}", "%(a)s" % {"a": 1}, x


def unread_text(x, need):
    count = x.sum()
    x.mul_(2)
    message = f"{count} of {x.shape[0]}, {x!r}"
    count.add_(1)
    y = x + count
    if need == "returned":
        return y, message
    if need == "length":
        return y, len(message)
    if need == "raised":
        raise ValueError(message)
    if need == "caught":
        try:
            raise ValueError(message)
        except ValueError as e:
            return y, e.args[0]
    if need == "held":
        return y, {"a": [message]}
    if need == "key":
        return y, {message: 1}
    if need == "printed":
        print(message)
    return y


CASES = [
    (number_results, (t(2), 1), (t(2), 1.0), (t(2), True), (t(2), -2.5), (t(2), 0), (t(2), -0.0)), (float_details, (t(2),)),
    (zero_division, (t(2), 2), (t(2), 0), (t(2), 0.0)), (tensor_scalars, (t(3),)), (size_arithmetic, (t(2, 3),)),
    (string_work, (t(2),)), (formats_tensors, (t(2),)), (f_string_debug, (t(2),)), (byte_str, (t(3),)), (string_fmt, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)


IN_KERNELS = [size_arithmetic]


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
@pytest.mark.parametrize("case", [c for c in CASES if c[0] in IN_KERNELS], ids=lambda c: c[0].__name__)
def test_same_as_eager_when_lowered(case, backend):
    agrees_with_eager(*case, backend=backend)


@pytest.mark.parametrize("need", ["returned", "length", "raised", "caught", "held", "key", "printed"])
def test_text_of_a_tensor_that_is_read(need):
    report = agrees_with_eager(unread_text, (t(3), need))
    assert report.breaks[0].code == "FL102"
    assert "count" in linecache.getline(report.breaks[0].span.file, report.breaks[0].span.line)


def test_text_of_a_tensor_that_nothing_reads():
    agrees_with_eager(unread_text, (t(3), ""), breaks=0, graphs=1)
