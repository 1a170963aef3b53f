"""Builtins, strings and numbers.

Traced, and compared with eager in value, type, effect and exception.
"""

from __future__ import annotations

import collections
import collections.abc
from typing import Any

import pytest
import torch

from tests.support.cases import Cases, error
from tests.support.objects import MONEY, Money

from .harness import agrees_with_eager

CASES = Cases()
case = CASES.add


@case()
def string_methods(x):
    s = "Hello, World"
    return (
        s.upper(), s.split(", "), s.replace("l", "L", 1), s.find("o"), s.partition(","), s.encode(), s.center(20, "*"),
        s.startswith(("He", "x")), s.isalpha(), s.zfill(15), "a,b".rsplit(",", 1), s.title(), s.casefold(), s[::-1], s * 2,
        "l" in s, s.count("l"), s.index("W"), "-".join(c for c in "abc"), "x".join(["1", "2"]), s.translate({72: "J"}),
        "%d-%s-%5.2f" % (3, "a", 2.5), "%(k)s" % {"k": 1}, "{:>5}|{!r}".format(3, "q"), "{a[0]}{b.shape}".format(a=[1], b=x),
        s < "Z", s == "no", sorted(s)[:3], list("ab"), max(s), "tab\t".expandtabs(4), "a\nb".splitlines(), s.swapcase(),
    )  # fmt: skip


@case()
def bytes_methods(x):
    b = b"abc"
    return (
        b.upper(),
        b[0],
        b[1:],
        b + b"d",
        b.decode(),
        b.hex(),
        list(b),
        bytes([1, 2]),
        bytes(3),
        b.find(b"c"),
        bytes("é", "utf8"),
    )


@case()
def f_strings(x):
    n, name, w = 3, "x", 10
    return (
        f"{n:05d} {name!r:>{w}} {2.5:.1%} {n=} {x.shape} {x.dtype} {x.device} {[n, name]} {(n,)} {x.shape[0]:>4} {None}",
        f"{MONEY} {MONEY!r} {MONEY:abc} {[MONEY]} {{'a': 1}}", f"{Money(n)}", str([Money(1), {"k": Money(2)}]),
        "%s %r" % (MONEY, MONEY), f"{torch.Size([1, 2])} {int} {10**30:,} {1 + 2j} {True!s:>6}",
    )  # fmt: skip


@case(breaks=None)
def f_string_of_a_tensor(x):
    y = x + 1
    return f"{y.sum()}", y * 2


@case()
def number_methods(x):
    return (
        (5).bit_length(), (255).to_bytes(2, "big"), int.from_bytes(b"\x01\x00", "big"), (2.5).as_integer_ratio(), (2.0).is_integer(),
        (1 + 2j).conjugate(), (3 + 4j).real, float.fromhex("0x1p3"), (0.1).hex(), (7).bit_count(), (3).__add__(4), True + True, 7 // -2,
        -7 % 3, 2**100, 2**-1, divmod(-7, 2), 1 < 2 < 3 != 4, 5 & 3 | 8 ^ 1, ~5, 1 << 70, round(2.567, 2), round(2.5), abs(-3),
        float("inf"), int("12"), int("ff", 16), int(3.9), complex("1+2j"), hash(1.0) == hash(1), pow(3, 4, 5), bin(5), hex(255), oct(8),
        chr(97), ord("a"), float("nan") != float("nan"), bool([]), bool(""), bool(0.0), int(True), str(1.0), repr("a'b"), ascii("é"),
    )  # fmt: skip


@case()
def arithmetic_errors(x):
    return [
        error(f)
        for f in (
            lambda: 1 // 0, lambda: 1 + "a", lambda: "a" + 1, lambda: [] + 1, lambda: int("x"), lambda: {} < {}, lambda: None + 1,
            lambda: -"a", lambda: 3 < "a", lambda: chr(-1), lambda: float("x"), lambda: "abc"[5], lambda: "a" * "b", lambda: len(3),
            lambda: "%d" % "a", lambda: "{}".format(), lambda: (1).foo, lambda: 2.5 & 1, lambda: "{x}".format(y=1), lambda: b"a" + "b",
        )
    ]  # fmt: skip


@case()
def constants_identity(x):
    a = None
    return (
        a is None,
        a is not None,
        x is x,
        x is None,
        (),
        True is True,
        int is int,
        (y := x + 1) is y,
        len is len,
    )


@case()
def builtins_over_iterables(x):
    words = ["bb", "a", "ccc"]
    return (
        sorted(words, key=len), sorted(words, reverse=True), sorted([(1, "b"), (1, "a"), (0, "z")], key=lambda p: p[0]),
        list(filter(None, [0, 1, "", 2])), list(filter(lambda v: v > 1, range(4))), list(reversed(words)), list(reversed("abc")),
        list(zip(words, range(3), strict=True)), list(zip(words, "x")), list(enumerate(words, 5)), list(map(len, words)),
        list(map(lambda a, b: a + b, [1, 2, 3], [10, 20])), min(words), max(words, key=len), min(3, 1, 2), max([], default=9),
        min([x.shape[0], 2]), sum([1, 2]), sum([[1], [2]], []), sum((x, x)), any([0, 1]), all([]), any(v > 1 for v in range(3)),
        next(iter([]), "none"), next(iter([5])), list(iter(range(2))), tuple(i * x for i in range(2)), dict(zip("ab", range(2))),
    )  # fmt: skip


@case()
def builtins_raise(x):
    return [
        error(f)
        for f in (
            lambda: max([]), lambda: min(3), lambda: sum(["a"], ""), lambda: sum([1, "a"]), lambda: next(iter([])),
            lambda: list(zip([1], [1, 2], strict=True)), lambda: list(zip([1, 2], [1], strict=True)), lambda: sorted([1, "a"]),
            lambda: list(map(len, [1])), lambda: iter(3), lambda: reversed({1}), lambda: dict([1]), lambda: list(3), lambda: hash([]),
            lambda: {}[[]], lambda: {[]: 1}, lambda: {1, {}}, lambda: isinstance(1, 2), lambda: "a".join([1]), lambda: set([[]]),
        )
    ]  # fmt: skip


@case()
def lazy_consumption(x):
    seen = []

    def note(v):
        seen.append(v)
        return v

    it = iter(range(10))
    a = any(note(i) > 2 for i in it)
    b = next(it)
    c = all(map(note, [1, 0, 2]))
    d = 3 in map(note, range(10))
    z = zip(it, [1, 2])
    e = next(z)
    return a, b, c, d, e, list(it), seen


@case()
def iter_with_sentinel(x):
    values = [1, 2, 3, 0, 4]
    return list(iter(values.pop, 2)), values, list(iter(lambda: values.pop() if values else None, None))


@case()
def introspection(x):
    o = Money(3)
    setattr(o, "extra", x)
    a = getattr(o, "extra"), getattr(o, "nope", 7), hasattr(o, "nope")
    delattr(o, "extra")
    return (
        a, hasattr(o, "extra"), type(o), type(3) is int, type(x), isinstance(o, Money), isinstance(3, (str, int)), isinstance(3, int | str),
        isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.Mapping), isinstance(x, collections.abc.Hashable),
        issubclass(bool, int), issubclass(Money, (int, Money)), callable(o), callable(len), callable(Money), error(lambda: o.nope),
        isinstance(lambda: 0, collections.abc.Callable), isinstance(iter([]), collections.abc.Iterator), isinstance(None, type(None)),
        type(o).__name__, o.__class__.__name__, Money.__name__, type(type(o)),
    )  # fmt: skip


@pytest.mark.parametrize(("function", "calls", "breaks"), CASES)
def test_library(function: Any, calls: Any, breaks: int | None) -> None:
    agrees_with_eager(function, *calls, breaks=breaks)
