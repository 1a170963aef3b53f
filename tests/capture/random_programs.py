"""Random Python programs over tensors and Python values, each run eagerly and compiled, and compared in all it does.

The grammar is a table of templates. In a template ``<T>`` is an expression of kind T, ``<T.>`` a variable of that kind,
``<~T>`` one that may be assigned, ``<=T>`` a target (new, or as ``<~T>``), ``<v:T>`` a name that the template binds for
its blocks and expressions, ``<+g:T>`` one that stays bound afterwards, ``<v>`` such a name again. ``!`` means: without
the names that the template binds. ``<block>``, ``<loop>``, ``<try>``, ``<handler>``, ``<body>`` and ``<generator>`` are
statements; what they may contain differs. The first template of a kind is the simplest, so that programs shrink to it.

==== ========================= ==== ========================= ==== ================================================
T    tensor                    LT   list of tensors           FT   function of a tensor that gives one
I    integer                   LI   list of integers          GF   function of a tensor and number that gives a generator
N    0 to 3                    PT   pair of tensors           FI   function of an integer that gives one
B    condition                 DT   dict of tensors by name   LF   list of FT
F    float                     DI   dict of integers by name  O, CLS  instance of the prelude's Box, class with its signature
S    string                    DQ   deque of integers         NUM, VEC, PR, PX  Num, dataclass, named tuple, Proxy
M    context manager           E    set of integers           X, ERR, NEW  exception class, instance, expression
V    anything to look at       RO   tuple of any length       ARR, W  array of numpy, tensor that wraps one (Scaled)
==== ========================= ==== ========================= ==== ================================================
"""

from __future__ import annotations

import ast
import bisect
import collections
import contextlib
import enum
import functools
import io
import itertools
import linecache
import re
import signal
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import fuselens
from fuselens.capture.frame import resuming
from fuselens.capture.frame.resuming import RESUME_MARK

PRELUDE = """
import collections, contextlib, dataclasses, enum, functools, itertools, math, operator
import numpy as np
import torch
import fuselens

TOTAL = 0
STATE = {"n": 0}
LOG = []


class Oops(Exception):
    pass


class Worse(Oops):
    def __init__(self, what, code=3):
        super().__init__(what)
        self.code = code


class Box:
    unit = 2

    def __init__(self, w, k=1):
        self.w = w
        self.k = k
        self.items = []

    def scale(self, v):
        return v * self.k + self.unit

    @property
    def size(self):
        return self.k + 1

    @size.setter
    def size(self, value):
        self.k = value - 1

    @classmethod
    def made(cls, w):
        return cls(w, cls.unit)

    @staticmethod
    def twice(v):
        return v * 2

    def __call__(self, v):
        self.items.append(self.k)
        return self.scale(v)

    def __add__(self, other):
        return type(self)(self.w + other.w, self.k)

    def __repr__(self):
        return f"{type(self).__name__}({self.k})"

    def __len__(self):
        return len(self.items)

    def __bool__(self):
        return self.k != 0

    def __iter__(self):
        yield self.w
        yield self.w * self.k


class Child(Box):
    unit = 3

    def scale(self, v):
        return super().scale(v) - self.w

    @property
    def size(self):
        return super().size * 2


class Left(Box):
    def scale(self, v):
        LOG.append("left")
        return super().scale(v) + 1


class Right(Box):
    def scale(self, v):
        LOG.append("right")
        return super().scale(v) * 2

    def __bool__(self):
        return self.k > 1


class Both(Left, Right):
    unit = 4

    def __len__(self):
        return super().__len__() + 1


class Clamped:
    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.slot, 0)

    def __set__(self, obj, value):
        LOG.append(("set", value))
        setattr(obj, self.slot, min(value, 5))


class Num:
    level = Clamped()

    def __init__(self, v, k=1):
        self.v, self.k = v, k
        self.level = k

    def __add__(self, other):
        if isinstance(other, Num):
            return Num(self.v + other.v, self.k + other.k)
        return Num(self.v + other, self.k) if isinstance(other, (int, torch.Tensor)) else NotImplemented

    def __radd__(self, other):
        LOG.append("radd")
        return self + other

    def __iadd__(self, other):
        self.k += 1
        self.v = self.v + other
        return self

    def __neg__(self):
        return Num(-self.v, -self.k)

    def __eq__(self, other):
        return isinstance(other, Num) and self.k == other.k

    def __hash__(self):
        return hash(self.k)

    def __lt__(self, other):
        return self.k < other.k

    def __contains__(self, k):
        return k == self.k

    def __getitem__(self, i):
        if i >= abs(self.k) % 4:
            raise IndexError(i)
        return self.v * i

    def __setitem__(self, i, value):
        self.v[..., i] = value

    def __delitem__(self, i):
        del self.v

    def __index__(self):
        return self.k

    def __format__(self, spec):
        return f"<{self.k:{spec}}>"


class Proxy:
    def __init__(self, inner):
        object.__setattr__(self, "inner", inner)

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        LOG.append("get " + name)
        return getattr(self.inner, name)

    def __setattr__(self, name, value):
        LOG.append("set " + name)
        setattr(self.inner, name, value)

    def __delattr__(self, name):
        delattr(self.inner, name)


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, inner, k=1):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner, k=1):
        self.inner, self.k = inner, k

    def __tensor_flatten__(self):
        return ["inner"], self.k

    @staticmethod
    def __tensor_unflatten__(held, k, size, stride):
        return Scaled(held["inner"], k)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        scales = [a.k for a in args if isinstance(a, Scaled)]
        plain = [a.inner if isinstance(a, Scaled) else a for a in args]
        found = func(*plain, **(kwargs or {}))
        if func.__name__.split(".")[0].endswith("_"):
            return args[0]
        return Scaled(found, max(scales, default=1)) if isinstance(found, torch.Tensor) else found


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Point:
    v: torch.Tensor
    k: int = 1
    tags: list = dataclasses.field(default_factory=list)

    def moved(self, by):
        return dataclasses.replace(self, v=self.v + by)

    @functools.cached_property
    def double(self):
        LOG.append("double")
        return self.v * 2


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    a: int
    b: str = "b"


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def low(self):
        return self.name.lower()


class Slotted:
    __slots__ = ("v", "k")

    def __init__(self, v, k):
        self.v, self.k = v, k


class Track:
    def __init__(self, name, swallows=()):
        self.name, self.swallows = name, swallows

    def __enter__(self):
        LOG.append("enter " + self.name)
        return len(LOG)

    def __exit__(self, kind, error, tb):
        LOG.append(("exit " + self.name, None if kind is None else kind.__name__))
        return kind is not None and issubclass(kind, self.swallows)


@contextlib.contextmanager
def noted(k):
    LOG.append(k)
    try:
        yield k + 1
    finally:
        LOG.append(-k)


@contextlib.contextmanager
def careful(k):
    try:
        yield k
    except Oops as e:
        LOG.append(str(e))


@contextlib.contextmanager
def replaced(obj, name, value):
    old = getattr(obj, name)
    setattr(obj, name, value)
    try:
        yield old
    finally:
        setattr(obj, name, old)


@contextlib.contextmanager
def translated():
    try:
        yield
    except ValueError as e:
        raise Oops(*e.args) from e
    except LookupError:
        return


@fuselens.disable
def opaque(v):
    LOG.append("opaque")
    return v + 1


def countdown(v, n):
    return v if n <= 0 else countdown(v + n, n - 1)


def failing(v, n):
    if n > 1:
        raise Oops("n is", n)
    return v - n


def keywords(v, *rest, scale=1, **more):
    for r in rest:
        v = v + r
    return v * scale + len(more)


def steps(v, n):
    for i in range(n):
        v = v + i
        yield v
    return n


def guarded(v, n):
    try:
        for i in range(n):
            try:
                got = yield v * i
                LOG.append(got)
            except ValueError as e:
                LOG.append(str(e))
                yield v - 1
        return n
    except Exception as e:
        LOG.append(("left", type(e).__name__))
        raise


def closing(v, n):
    try:
        yield from guarded(v, n)
    finally:
        LOG.append("closed")


def delegating(v, n):
    got = yield from guarded(v, n)
    yield v if got is None else v + got


def remember(v, seen=[]):
    seen.append(v.dim())
    return v + len(seen)


def counted(n):
    def step(by=1):
        nonlocal n
        n += by
        return n

    return step


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        LOG.append(fn.__name__)
        return fn(*args, **kwargs)

    return wrapper


@logged
def halved(v, by=2):
    return v / by


@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def searched(v, n):
    for i in range(3):
        try:
            if i == n:
                raise Oops(i)
            continue
        except Oops:
            v = v + i
            break
        finally:
            LOG.append(i)
            if n == 2:
                return v * 3
    else:
        v = v - 1
    return v
"""

EXPRESSIONS: dict[str, dict[str, int]] = {
    "T": {
        "torch.ones(())": 1, "<T> + <T>": 6, "<T> * <I>": 4, "<T> - <F>": 1, "<T> / 2": 1, "-<T>": 1,
        "<T>.relu()": 2, "torch.sin(<T>)": 2, "<T>.sum()": 2, "<T>.sum(-1, keepdim=True)": 1, "<T>.abs().mean()": 1,
        "torch.where(<T> > 0, <T>, <T>)": 1, "torch.maximum(<T>, <T>)": 1, "torch.full_like(<T>, <I>)": 1,
        "<T>.clone()": 1, "<T>.detach()": 1, "<T>.to(torch.float64)": 1, "<T>.int()": 1, "<T>[..., :1]": 1,
        "<T>.unsqueeze(0)": 1, "(<T> if <B> else <T>)": 2, "<FT>(<T>)": 4, "<O>.w": 2, "<O>.scale(<T>)": 2, "<O>(<T>)": 2,
        "<DT>.get('a', <T>)": 2, "<DT.>['a']": 1, "<LT.>[0]": 1, "<LT.>[-1]": 1, "sum(<LT>, <T>)": 2, "<PT>[1]": 2,
        "next(iter(<LT>), <T>)": 1, "(lambda <v:T>: <T>)(<T!>)": 2, "functools.reduce(lambda <v:T>, <w:T>: <T>, <LT!>, <T!>)": 1,
        "keywords(<T>, <T>, scale=<I>)": 1, "keywords(*<LT>, <T>, **{'scale': <I>, 'other': 1})": 1,
        "countdown(<T>, <N>)": 1, "failing(<T>, <N>)": 1, "opaque(<T>)": 1, "functools.partial(torch.add, <T>)(<T>)": 1,
        "sum(<GF>(<T>, <N>), <T>)": 1, "sum((<T> for <v:I> in <LI!>), <T!>)": 1, "max(<LT>, key=lambda <v:T>: <I>, default=<T!>)": 1,
        "Box.twice(<T>)": 1, "operator.mul(<T>, <I>)": 1, "math.prod([<T>, <I>])": 1, "torch.stack([<T.>, <T.>]).sum(0)": 1,
        "remember(<T>)": 1, "halved(<T>)": 1, "halved(<T>, by=<I>)": 1, "searched(<T>, <N>)": 1, "<NUM>.v": 1, "(<T> + <NUM>).v": 1, "<NUM>[<I>]": 1,
        "<PX.>.w": 1, "<PX>.scale(<T>)": 1, "<VEC>.v": 1, "<VEC.>.double": 1, "<PR>.a": 1, "<T>.view(-1)": 1, "<T>[1:]": 1, "<T>.transpose(0, -1)": 1,
        "(lambda <v:T>: <v>[<v> > 0].sum())(<T!>)": 1, "(<=T> := <T>)": 1, "<LF.>[0](<T>)": 1, "<LT.>.pop()": 1, "<DT.>.pop('a')": 1, "(lambda: <T>)()": 1,
        "(lambda <v:T>, *<r:RO>: <T>)(*<LT!>)": 1, "[<v>() for <v:Q> in [lambda: <T> for <i:I> in range(<N!>)]][-1]": 1, "Slotted(<T>, <I>).v": 1,
        "<T> if <B> else <I>": 1, "<T> + <I.> * <F.>": 1, "next(<GF>(<T>, <N>))": 1, "torch.from_numpy(<ARR>)": 2, "torch.as_tensor(<ARR>)": 1,
        "<T.>[<T.> > <I>]": 1, "torch.nonzero(<T>)": 1, "torch.masked_select(<T>, <T.> > 0)": 1, "torch.arange(int(<T>.abs().sum()) % 5)": 1,
        "torch.func.grad(lambda <v:T>: <T>.sum())(<T!>)": 1, "torch.vmap(<FT>)(<T.>)": 1, "torch.func.jvp(lambda <v:T>: <T>, (<T!>,), (<T!>,))[1]": 1,
        "<W>.inner": 2, "(<W> * <T>).inner": 1, "torch.unique(<T>)": 1, "<T>.repeat_interleave(<N>)": 1,
    },
    "I": {
        "1": 2, "0": 1, "3": 1, "-2": 1, "<I> + <I>": 4, "<I> - <I>": 2, "<I> * <I> % 7": 2, "<I> // 2": 1, "<I> % 3": 2, "-<I>": 1,
        "<I> % <I>": 1, "len(<LT>)": 2, "len(<LI>)": 1, "len(<DT>)": 1, "len(<S>)": 1, "len(<RO.>)": 1, "<T>.dim()": 1,
        "<T.>.shape[-1]": 1, "<T.>.numel()": 1, "int(<T>.sum().item()) % 5": 1, "sum(<LI>) % 11": 2, "max(<LI>, default=0)": 1,
        "<O>.k": 2, "<O>.size": 1, "(<I> if <B> else <I>)": 2, "min(<I>, <I>)": 1, "abs(<I>)": 1, "round(<F>) % 5": 1,
        "(<=I> := <I>)": 1, "len(<O.>)": 1, "<E>.__len__()": 1, "int(<B>)": 1, "(<B> or <I>)": 1, "(<B> and <I>)": 1, "<O>.unit": 1,
        "next((<v> for <v:I> in <LI!> if <B>), 0)": 1, "<ERR.>.args.__len__()": 1, "TOTAL % 5": 1, "STATE['n'] % 5": 1, "len(LOG)": 1,
        "<FI>(<I>) % 9": 2, "fib(<N>)": 1, "Color.RED.value": 1, "Color(<I>).value": 1, "len(<DQ>)": 1, "<DI.>.get('k', <I>)": 1, "<DI.>['k']": 1, "<I> << <N>": 1,
        "<I> ** 2 % 7": 1, "divmod(<I>, 3)[1]": 1, "<I> | <I>": 1, "~<I>": 1, "int(<F>)": 1, "int(<S>)": 1, "<NUM>.level": 1, "[3, 1, 2][<NUM>]": 1, "<B> + <B>": 1,
        "sorted(<LI>, key=lambda <v:I>: (<I>, <v>))[0]": 1, "<PR>.b": 1, "<VEC.>.k": 1, "<PX.>.k": 1, "Key(<I>).a": 1, "len({<NUM>: 1, <NUM>: 2})": 1,
        "<T.>.size(0)": 1, "next(itertools.count(<I>, 2))": 1, "max([<NUM>, <NUM>]).k": 1, "math.gcd(<I>, 6)": 1, "<LI.>.pop()": 1, "<LI.>.index(<I>)": 1,
        "collections.Counter(<S>)['a']": 1, "<DQ.>.popleft()": 1, "Slotted(<T>, <I>).k": 1, "int(<T.>.numel() > 2)": 1, "<S>.count('b')": 1,
        "int(<ARR>.sum()) % 5": 1, "<ARR.>.shape[-1]": 1, "<ARR>.ndim": 1, "<ARR.>.size": 1, "<W>.k": 1, "<T>.nonzero().shape[0]": 1,
    },
    "N": {"2": 2, "3": 1, "1": 1, "0": 1, "<I> % 4": 4},
    "B": {
        "True": 1, "<I> > <I>": 4, "<I> == <I>": 2, "0 < <I> < 4": 1, "not <B>": 2, "(<B> and <B>)": 2, "(<B> or <B>)": 2, "<I> in <LI>": 2,
        "<I> in <E>": 1, "'a' in <DT>": 1, "<S> in <S>": 1, "<S> == <S>": 1, "<T> is <T>": 1, "<T> is not None": 1, "<T.>.sum() > <I>": 3,
        "bool((<T> > 0).any())": 1, "isinstance(<O>, Child)": 1, "hasattr(<O>, 'extra')": 1, "<T.>.dtype == torch.float32": 1,
        "any(<B> for <v:I> in <LI!>)": 1, "all(<v> > <I> for <v:I> in <LI!>)": 1, "<LI>": 1, "<O>": 1, "<S>": 1, "<DT>": 1, "<T.>.dim() > 1": 1,
        "callable(<FT>)": 1, "<LI> == <LI>": 1, "<PT> is None": 1, "<T.>.requires_grad": 1, "<E> <= <E>": 1, "type(<O>) is Box": 1,
        "<NUM> == <NUM>": 1, "<NUM> < <NUM>": 1, "<I> in <NUM>": 1, "Key(<I>) < Key(<I>, <S>)": 1, "Key(<I>) in {Key(1): 2}": 1, "Color.BLUE is Color(<I>)": 1,
        "issubclass(<CLS.>, Child)": 1, "<S>.startswith('a')": 1, "<LI> < <LI>": 1, "<F> > <I>": 1, "hasattr(<PX.>, 'nope')": 1, "<DQ>": 1, "<PR> == <PR>": 1,
        "(<=B> := <B>)": 1, "<F>.is_integer()": 1, "<I> == <F>": 1, "<T.> in <LT.>": 1, "<LT.>[0] is <T.>": 1, "torch.equal(<T>, <T>)": 1, "isinstance(<V>, (int, str))": 1,
        "<ARR>.any()": 1, "(<ARR> > <I>).all()": 1, "np.allclose(<ARR>, <ARR>)": 1, "isinstance(<W> + 1, Scaled)": 1,
    },
    "F": {"0.5": 2, "<I> / 2": 2, "float(<I>)": 1, "<F> * 2.5": 1, "math.sqrt(abs(<I>))": 1, "<T.>.sum().item()": 1, "<F> - <I>": 1, "<F> ** 2 % 3": 1,
          "<I> / <I>": 1, "<F> // 2": 1, "-<F>": 1, "(<F> if <B> else <I>)": 1, "sum([<F>, <I>])": 1, "round(<F>, 1)": 1, "float(<S> or '2.5')": 1, "<F> * <B>": 1},
    "S": {
        "'b'": 1, "''": 1, "f'{<I.>}:{<S.>}'": 2, "f'{<I.>:>4}'": 1, "f'{<I.>!r:<3}|'": 1, "<S>.upper()": 1, "str(<I>)": 1, "repr(<LI>)": 1,
        "(<S> + <S>)[:9]": 2, "<S>[1:]": 1, "'-'.join(str(<v>) for <v:I> in <LI!>)": 1, "'%d/%s' % (<I>, <S>)": 1, "f'{tuple(<T.>.shape)}'": 1,
        "f'{<F.>:.3f}'": 1, "(<S> or 'none')": 1, "type(<O>).__name__": 1, "'{} {x}'.format(<I>, x=<S>)": 1, "','.join(<DT>)": 1, "f'{<ERR.>}'": 2,
        "f'{<F.>:8.2f}|{<I.>:>3}|{<S.>!r:^8}'": 1, "f'{<NUM.>:>3}'": 1, "str(Color.BLUE)": 1, "Color.RED.low": 1, "f'{<I.>=}'": 1, "<S>.replace('a', <S>)": 1, "f'{Key(<I.>)}'": 1,
        "<S>.split('a')[0]": 1, "'%s %r' % (<LI>, <S>)": 1, "<S> * <N>": 1, "<S>[::-1]": 1, "<S>.center(5, '*')": 1, "str(<DI>)": 1, "'{0[0]} {1.k}'.format([<I>], <O>)": 1,
        "str(<DQ>)": 1, "f'{<B.>} {None} {<S.>:.1}'": 1, "<S>.encode().decode()": 1, "''.join(sorted(<S>))": 1, "str(<I> == <F>)": 1, "<S>[<I>]": 1, "max(<S>, 'b', key=len)": 1,
    },
    "LT": {
        "[<T>]": 1, "[<T>, <T>]": 4, "[<T> for <v:I> in range(<N!>)]": 3, "[<T> for <v:T> in <LT!>]": 3, "[<T> for <v:T> in <LT!> if <B>]": 1, "list(<PT>)": 1,
        "[*<LT>, <T>][:3]": 2, "(<LT> + <LT>)[:3]": 1, "list(map(<FT>, <LT>))": 1, "<LT>[::-1]": 1, "list(<DT>.values())": 1, "<LT>[1:]": 1,
        "list(<GF>(<T>, <N>))": 2, "[<T> for <v:T>, <i:I> in zip(<LT!>, <LI!>)]": 1, "[<T> for <i:I>, <v:T> in enumerate(<LT!>)]": 1,
        "[<w> for <v:T> in <LT!> for <w:T> in (<v>, <T!>)][:4]": 1, "list(<O>)": 1, "[<T>] * <N>": 1, "list(filter(lambda <v:T>: <B>, <LT!>))": 1,
        "list(reversed(<LT>))": 1, "list(itertools.chain(<LT>, <PT>))[:3]": 1, "sorted(<LT>, key=lambda <v:T>: <I>)": 1, "<LT>.copy()": 1,
        "[<f>(<T!>) for <f:FT> in [<FT!>, <FT!>]]": 1, "[<f>(<T!>) for <f:FT> in <LF!>]": 1, "list(itertools.starmap(torch.add, [(<T>, <T>)]))": 1, "list(<T>)[:3]": 1, "[*<T.>][:2]": 1,
        "list(torch.chunk(<T>, 2))": 1, "list(<NUM>)": 1, "[<x>() for <x:Q> in [lambda: <v> for <v:T> in <LT!>]]": 1, "list(zip(*[<LT>, <LT>]))[0:0] + [<T>]": 1,
        "[(lambda <w:T>: <T>)(<v>) for <v:T> in <LT!>]": 1, "list({id(<v>): <v> for <v:T> in <LT!>}.values())": 1, "[<v> for <v:T> in <LT!> if (<w:T> := <v>) is not None]": 1,
    },
    "LI": {
        "[<I>]": 1, "[<I>, <I>, <I>]": 3, "list(range(<N>))": 2, "[<I> for <v:I> in <LI!>]": 3, "[<v> for <v:I> in <LI!> if <B>]": 2, "sorted(<LI>)": 1,
        "sorted(<E>)": 1, "<LI>[1:]": 1, "[*<LI>, *<LI>][:4]": 1, "<LI>[::2]": 1, "list(reversed(<LI>))": 1, "[len(<v>) for <v:LT> in [<LT!>]]": 1,
        "list(map(lambda <v:I>: <I>, <LI!>))": 1, "[int(<B>) for <i:I>, <v:I> in enumerate(<LI!>)]": 1, "sorted(<LI>, key=lambda <v:I>: <I>, reverse=True)": 1,
        "[<I> for <v:I> in <LI!> for <w:I> in range(<v> % 3)][:4]": 1, "list(itertools.accumulate(<LI>))[:4]": 1,
        "list(<DQ>)": 1, "[*<E>][:4]": 1, "list(<DI>.values())": 1, "[<I>, *<LI>, *range(<N>)]": 1, "list(itertools.islice(itertools.count(<I>), <N>))": 1,
        "list(itertools.takewhile(lambda <v:I>: <B>, <LI!>))": 1, "[<v> + <w> for <v:I>, <w:I> in itertools.product(<LI!>[:2], <LI!>[:2])]": 1,
        "[len(list(<v>)) for <w:I>, <v:Q> in itertools.groupby(<LI!>)]": 1, "sorted(<LI>, key=functools.cmp_to_key(lambda <v:I>, <w:I>: <w> - <v>))": 1,
        "[<v>() for <v:Q> in [lambda: <w> for <w:I> in <LI!>]]": 1, "list(map(operator.add, <LI>, <LI>))": 1, "<LI>[<I>:]": 1, "<LI> * 2": 1, "[<FI>(1) for <v:I> in range(2)]": 1,
        "[<w> for <v:I> in <LI!> if (<w:I> := <v> - 1) > 0]": 1, "list(itertools.chain.from_iterable([<LI>, <LI>]))[:4]": 1, "[<i> for <i:I>, <v:I> in enumerate(<LI!>, 1) if <B>]": 1,
    },
    "PT": {"(<T>, <T>)": 3, "(<T>, *(<T>,))": 1, "tuple([<T> for <v:I> in range(2)])": 1, "(<T>,) + (<T>,)": 1, "(<PT>[1], <T>)": 1, "<T>.chunk(2)": 1, "tuple(<LT>)": 1},
    "DT": {
        "{'a': <T>}": 1, "{'a': <T>, 'b': <T>}": 2, "{<k>: <T> for <k:S>, <v:T> in <DT!>.items()}": 2, "{**<DT>, 'c': <T>}": 1, "dict(a=<T>)": 1,
        "<DT> | {'b': <T>}": 1, "dict(zip('ab', <LT>))": 1, "{str(<i>): <T> for <i:I> in <LI!>}": 1, "<DT>.copy()": 1, "collections.OrderedDict(a=<T>)": 1,
        "dict(**<DT>, q=<T>)": 1, "dict.fromkeys('ab', <T>)": 1, "dict(sorted(<DT>.items()))": 1, "{<k>: <f>(<v>) for (<k:S>, <v:T>), <f:FT> in zip(<DT!>.items(), [<FT!>, <FT!>])}": 1,
    },
    "DI": {"{'k': <I>}": 1, "collections.defaultdict(int)": 2, "collections.OrderedDict(k=<I>, z=<I>)": 1, "collections.Counter(<S>)": 1, "{<k>: len(<k>) for <k:S> in <DT!>}": 1},
    "DQ": {"collections.deque(<LI>, 3)": 2, "collections.deque([<I>])": 1, "<DQ>.copy()": 1},
    "PR": {"Pair(<T>, <I>)": 2, "<PR>._replace(b=<I>)": 1, "Pair(*(<T>, <I>))": 1, "Pair(b=<I>, a=<T>)": 1, "Pair._make([<T>, <I>])": 1},
    "VEC": {"Point(<T>)": 1, "Point(<T>, k=<I>)": 1, "Point(<T>, <I>, [<I>])": 1, "<VEC.>.moved(<I>)": 1, "dataclasses.replace(<VEC.>, k=<I>)": 1},
    "NUM": {"Num(<T>)": 1, "Num(<T>, <I>)": 3, "<NUM> + <NUM>": 1, "<NUM> + <T>": 1, "<I> + <NUM>": 1, "-<NUM>": 1, "sum([<NUM>, <NUM>])": 1, "sorted([<NUM>, <NUM>])[0]": 1},
    "PX": {"Proxy(<O>)": 1},
    "ARR": {
        "np.ones(3, np.float32)": 1, "<T>.detach().numpy()": 4, "<ARR> + <ARR>": 3, "<ARR> * <I>": 2, "<ARR> - <F>": 1, "-<ARR>": 1, "<ARR> / 2": 1,
        "np.sqrt(np.abs(<ARR>))": 1, "np.abs(<ARR>)": 1, "<ARR>.sum(-1, keepdims=True)": 1, "np.where(<ARR> > 0, <ARR>, <I>)": 1, "<ARR>[..., ::-1]": 1,
        "<ARR>.astype(np.float64)": 1, "<ARR>.T": 1, "np.stack([<ARR.>, <ARR.>])": 1, "np.clip(<ARR>, -1, <N>)": 1, "np.cumsum(<ARR>)": 1, "<ARR>.reshape(-1)": 1,
        "np.concatenate([<ARR>, <ARR>])": 1, "<ARR>.copy()": 1, "np.maximum(<ARR>, <ARR>)": 1, "np.zeros_like(<ARR>)": 1, "<ARR>[<ARR.> > 0]": 1, "np.asarray(<LI>)": 1,
        "(<ARR> if <B> else <ARR>)": 1, "np.square(<ARR>).mean(0)": 1, "np.sort(<ARR>)": 1, "np.arange(<N>)": 1, "<ARR>[None]": 1,
    },
    "W": {"Scaled(<T>)": 1, "Scaled(<T>, <I>)": 3, "<W> + <W>": 1, "<W> * <T>": 1, "torch.relu(<W>)": 1, "<W>.transpose(0, -1)": 1, "<W> - <I>": 1, "<W>.detach()": 1},
    "C": {"Box": 2, "Child": 2, "Both": 1, "Left": 1},
    "FI": {"counted(<I>)": 2, "(lambda <v:I>: <I>)": 1, "<O>.items.count": 1, "functools.partial(operator.add, <I>)": 1, "<LI>.__getitem__": 1},
    "LF": {"[<FT>]": 1, "[<FT>, <FT>]": 1, "[lambda <v:T>: <T> for <i:I> in range(<N!>)]": 2, "[<w>.scale for <w:O> in [<O!>]]": 1},
    "E": {"{<I>}": 1, "{<I>, <I>}": 2, "{<I> for <v:I> in <LI!>}": 1, "set(<LI>)": 1, "<E> | <E>": 1, "<E> & <E>": 1, "<E> - {<I>}": 1, "set()": 1},
    "O": {"Box(<T>)": 1, "Box(<T>, <I>)": 2, "Child(<T>, k=<I>)": 2, "<CLS.>(<T>, <I>)": 3, "Child.made(<T>)": 1, "(<O> + <O>)": 1, "type(<O>)(<T>)": 1, "Both(<T>, <I>)": 2,
          "Right(<T>)": 1},
    "FT": {
        "torch.relu": 1, "(lambda <v:T>: <T>)": 4, "functools.partial(torch.add, <T>)": 1, "<O>.scale": 1, "Box.twice": 1, "(<FT> if <B> else <FT>)": 1, "<O>": 1,
        "functools.partial(keywords, scale=<I>)": 1, "(lambda <v:T>, <k:I>=<I!>, *<r:RO>: <T>)": 1,
        "halved": 1, "remember": 1, "<PX>.scale": 1, "<VEC.>.moved": 1, "<NUM>.__add__": 1, "<LF.>[-1]": 1, "logged(<FT>)": 1, "operator.neg": 1, "<T>.mul": 1,
        "super(Child, Child(<T>)).scale": 1,
    },
    "GF": {"steps": 1, "guarded": 1, "delegating": 1, "(lambda <v:T>, <k:I>: (<T> for <i:I> in range(<k>)))": 1},
    "M": {
        "Track('t')": 2, "Track('t', Oops)": 2, "Track('t', (ValueError, Oops))": 1, "noted(<I>)": 2, "careful(<I>)": 1, "torch.no_grad()": 1,
        "contextlib.nullcontext(<I>)": 1, "contextlib.suppress(Oops)": 1,
        "replaced(<O>, 'k', <I>)": 1, "translated()": 2, "contextlib.suppress(<X>)": 1, "torch.enable_grad()": 1, "Track(<S>)": 1, "Track(<S>, <X>)": 1,
    },
    "X": {"Exception": 2, "Oops": 4, "Worse": 1, "ValueError": 1, "(KeyError, IndexError)": 1, "LookupError": 1, "(ZeroDivisionError, Oops)": 1, "AttributeError": 1},
    "NEW": {"Oops('no')": 3, "Oops": 1, "Oops(<I>, <S>)": 1, "Worse(<S>)": 1, "ValueError(f'bad {<I.>}')": 1, "KeyError(<S>)": 1, "StopIteration(<I>)": 1},
    "V": {"<I>": 2, "<S>": 2, "<LI>": 1, "<B>": 1, "<F>": 1, "tuple(<T>.shape)": 1, "<E>": 1, "<T>.sum()": 1, "<DT>.keys()": 1,
          "<DI>": 1, "<DQ>": 1, "<NUM>.k": 1, "<VEC>.tags": 1, "None": 1, "<PR>.b": 1, "Color(<I>)": 1, "Key(<I>)": 1},
}  # fmt: skip

SIMPLE: dict[str, int] = {
    "pass": 1, "<=T> = <T>": 14, "<=I> = <I>": 6, "<=LT> = <LT>": 3, "<=B> = <B>": 2, "<=S> = <S>": 2, "<=F> = <F>": 1, "<=LI> = <LI>": 2, "<=DT> = <DT>": 2,
    "<=E> = <E>": 2, "<=PT> = <PT>": 1, "<=O> = <O>": 3, "<=FT> = <FT>": 3, "<=T>, <=T> = <PT>": 1, "<=T>, <=I> = <T>, <I>": 1,
    "<=T>, *<=LT> = [<T>, *<LT>]": 1, "*<=LI>, <=I> = [*<LI>, <I>]": 1, "(<=T>, <=I>), <=S> = (<T>, <I>), <S>": 1, "<=T> = <=T> = <T>": 1, "<+i:I>: int = <I>": 1,
    "<~T> += <T>": 3, "<~T> *= <I>": 1, "<~I> += <I>": 3, "<~LT> += [<T>]": 1, "<~I> //= 2": 1, "<~S> += 'z'": 1, "<~E> |= {<I>}": 1, "<~T>, <~T> = <T>, <T>": 1,
    "<T.>.add_(<I>)": 3, "<T.>.mul_(2)": 1, "<T.>[..., 0] = <I>": 1, "<T.>[...] += 1": 1, "<T.>[..., :1].zero_()": 1, "<T.>.copy_(<T.>)": 1, "<T.>.data = <T.> * 2": 1,
    "<LT.>.append(<T>)": 3, "<LT.>.insert(0, <T>)": 1, "<LT.>.pop()": 1, "<LT.>[0] = <T>": 1, "del <LT.>[0]": 1, "<LT.>.reverse()": 1, "<LT.>[:1] = [<T>, <T>]": 1,
    "<LI.>.append(<I>)": 2, "<LI.>.extend([<I>, <I>])": 1, "<LI.>.clear()": 1, "<LI.>.sort()": 1, "<LI.>.remove(<I>)": 1, "<LI.>[-1] += 1": 1,
    "<DT.>['b'] = <T>": 3, "<DT.>.pop('a', None)": 1, "<DT.>.update(b=<T>)": 1, "<DT.>.setdefault('z', <T>)": 1, "del <DT.>['a']": 1, "<DT.>['a'] += 1": 1,
    "<E.>.add(<I>)": 2, "<E.>.discard(<I>)": 1, "<E.>.update(<LI>)": 1,
    "<O.>.w = <T>": 3, "<O.>.k += 1": 2, "<O.>.items.append(<I>)": 2, "<O.>.size = <I>": 1, "<O.>.extra = <I>": 1, "setattr(<O.>, 'k', <I>)": 1, "del <O.>.extra": 1, "<O.>.w.mul_(2)": 1,
    "STATE['n'] += <I>": 1, "LOG.append(<V>)": 1, "print(<V>)": 3, "print(<V>, <V>, sep='/')": 1, "fuselens.graph_break()": 2, "assert <B>, <S>": 1,
    "<+v:T> = <T.>[..., :2]\n<v>.add_(<I>)": 1, "<+v:T> = <T.>.view(-1)\n<v>[0] = <I>": 1,
    "<=DQ> = <DQ>": 1, "<=DI> = <DI>": 2, "<=PR> = <PR>": 1, "<=VEC> = <VEC>": 2, "<=NUM> = <NUM>": 2, "<=PX> = <PX>": 1, "<=FI> = <FI>": 2, "<=LF> = <LF>": 1,
    "<DQ.>.append(<I>)": 1, "<DQ.>.appendleft(<I>)": 1, "<DQ.>.rotate(1)": 1, "<DQ.>.extend(<LI>)": 1, "<DQ.>[0] = <I>": 1, "del <DQ.>[0]": 1,
    "<DI.>['k'] += <I>": 2, "<DI.>[<S>] = <I>": 2, "del <DI.>['k']": 1, "<DI.>.popitem()": 1, "<DI.>.update(k=<I>)": 1, "<DI.>.move_to_end('k')": 1, "<DI.> |= {'m': <I>}": 1,
    "<VEC.>.k += 1": 1, "<VEC.>.tags.append(<I>)": 1, "<VEC.>.v = <T>": 1, "<~NUM> += <T>": 2, "<NUM.>.level = <I>": 1, "<NUM.>[0] = <I>": 1, "del <NUM.>[0]": 1, "<NUM.>.level += 1": 1,
    "<PX.>.k = <I>": 1, "<PX.>.w = <T>": 1, "<PX.>.k += 1": 1, "del <PX.>.extra": 1, "<LF.>.append(<FT>)": 1, "<=T>, <=I> = <PR>": 1, "Box.unit = <I>": 1, "Color.RED.note = <I>": 1,
    "<LI.>[1:] = <LI>": 1, "<LI.>[::2] = [<I>, <I>]": 1, "del <LI.>[::2]": 1, "<LT.>[-1:] = []": 1, "<LI.>[<I>] = <I>": 1, "<LT.>.extend(<LT>)": 1, "<LI.> += <LI>": 1, "<LT.>[0], <=T> = <T>, <T>": 1,
    "<=T>, *<=LT>, <=T> = [<T>, <T>, *<LT>]": 1, "<=I>, (<=T>, *<=LT>) = <I>, <LT>": 1, "print(*<LI>, sep='-')": 1, "<=DT>, <=LT> = <DT>, [*<DT>.values()]": 1,
    "<T.>.fill_(<I>)": 1, "<T.>[<T.> > 0] = <I>": 1, "<T.>.clamp_(max=<I>)": 1, "<T.>.sub_(<T>)": 1, "<T.>[..., 1:] += <I>": 1, "<LT.>[0].add_(1)": 1, "<DT.>['a'].mul_(2)": 1,
    "<T.>.detach().add_(1)": 1, "<T.>.view(-1)[::2].mul_(2)": 1, "<T.>.unsqueeze_(0)": 1, "<~T> = <~T>.t()": 1, "<VEC.>.v.add_(1)": 1, "<~T> -= <F>": 1, "<~T> @= <T>": 1,
    "STATE['m'] = <V>": 1, "STATE.setdefault('l', []).append(<I>)": 1, "del STATE['n']": 1, "LOG.extend(map(str, <LI>))": 1, "LOG.append(<T>.shape)": 1, "del <~I>": 1, "del <~T>": 1,
    "<=ARR> = <ARR>": 5, "<~ARR> += <I>": 2, "<~ARR> *= <ARR>": 1, "<ARR.>[..., 0] = <I>": 2, "<ARR.>[<ARR.> > 0] = <I>": 1, "<ARR.>.sort()": 1, "print(<ARR>)": 1,
    "<+v:ARR> = <T.>.detach().numpy()\n<v>[..., :1] = <I>": 1, "<+v:ARR> = <ARR>[..., ::-1]\n<v> += 1": 1, "<=W> = <W>": 2, "<W.>.add_(<I>)": 1, "<W.>.inner.mul_(2)": 1,
    "<~F> = <I>": 1, "<~I> = <F>": 1, "<~I> = <B>": 1, "<~LI> = tuple(<LI>)": 1, "<~S> = <I>": 1, "<+g:FT> = <+h:FT> = <FT>": 1,
    "<+w:T> = <T>\n<+g:FT> = lambda <v:T>: <v> + <w>\n<w> = <T>\n<=T> = <g>(<T>)": 1, "<+g:LF> = []\nfor <v:I> in range(2):\n    <g>.append(lambda <w:T>: <w> * <v>)": 1,
    "<+g:LI> = <LI>\n<+h:LI> = <g>\n<h>.append(<I>)": 1, "<+g:FI> = counted(<I>)\n<=I> = <g>(<I>) + <g>()": 1, "<+g:PX> = Proxy(<O.>)\n<g>.extra = <I>\n<=I> = <g>.extra": 1,
}  # fmt: skip

COMPOUND: dict[str, int] = {
    "if <B>:\n    <block>": 4,
    "if <B>:\n    <block>\nelse:\n    <block>": 3,
    "if <B>:\n    <block>\nelif <B>:\n    <block>\nelse:\n    <block>": 1,
    "if (<w:I> := <I!>) > 1:\n    <block>": 1,
    "if <B>:\n    return <R>": 2,
    "for <v:I> in range(<N!>):\n    <loop>": 4,
    "for <v:T> in <LT!>[:4]:\n    <loop>": 2,
    "for <i:I>, <v:T> in enumerate(<LT!>[:3]):\n    <loop>\nelse:\n    <block!>": 1,
    "for <k:S>, <v:T> in list(<DT!>.items()):\n    <loop>": 1,
    "for <v:I> in sorted(<E!>)[:4]:\n    <loop>": 1,
    "for <v:T> in <GF!>(<T!>, <N!>):\n    <loop>": 2,
    "for <v:T>, <w:I> in zip(<LT!>, <LI!>):\n    <loop>": 1,
    "<i:IX> = 0\nwhile <i> < <N!>:\n    <i> += 1\n    <loop>": 2,
    "<i:IX> = 3\nwhile <i> > 0 and <B!>:\n    <i> -= 1\n    <loop>\nelse:\n    <block!>": 1,
    "<i:IX> = 0\nwhile True:\n    <i> += 1\n    if <i> > 2:\n        break\n    <loop>": 1,
    "try:\n    <try>\nexcept <X!> as <e:ERR>:\n    <handler>": 3,
    "try:\n    <try>\nexcept <X>:\n    <handler>": 2,
    "try:\n    <try>\nexcept <X!> as <e:ERR>:\n    <handler>\nexcept Exception:\n    <handler!>\nelse:\n    <block!>": 1,
    "try:\n    <try>\nfinally:\n    <block>": 2,
    "try:\n    <try>\nexcept <X!> as <e:ERR>:\n    <handler>\nelse:\n    <block!>\nfinally:\n    <block!>": 1,
    "try:\n    <=T> = failing(<T>, <N>)\nexcept Oops as <e:ERR>:\n    <handler>": 1,
    "with <M>:\n    <try>": 2,
    "with <M!> as <v:Q>:\n    <try>": 2,
    "with Track('a'), noted(<I!>) as <v:I>:\n    <try>": 1,
    "with Track('s', Exception):\n    <try>": 1,
    "def <+g:FT>(<v:T>):\n    <body T>": 3,
    "def <+g:FT>(<v:T>, <k:I>=<I!>):\n    <body T>\n<=T> = <g>(<T!>, <I!>)": 2,
    "def <+g:FT>(<v:T>, *<r:RO>, <k:I>=<I!>, **<d:DT>):\n    <body T>\n<=T> = <g>(<T!>, 1, 2, a=<T!>, k=<I!>)": 1,
    "def <+g:GF>(<v:T>, <k:I>):\n    <generator T>": 3,
    "<+g:GEN> = <GF>(<T>, <N>)\n<=T> = next(<g>, <T>)\n<=LT> = list(<g>)": 1,
    "<i:IX> = 4\nwhile (<i> := <i> - 1) > 0:\n    <loop>": 1,
    "for <v:I>, *<w:LI> in [(<I!>, 2, 3), (1,)]:\n    <loop>": 1,
    "for <v:T> in <NUM!>:\n    <loop>": 1,
    "for <v:T> in <T!>:\n    <loop>": 1,
    "for <v:T>, <w:T> in zip(<GF!>(<T!>, <N!>), <GF!>(<T!>, 2)):\n    <loop>": 1,
    "for <v:I>, <f:FT> in enumerate(<LF!>):\n    <loop>": 1,
    "for <v:I> in reversed(<LI!>[:3]):\n    <loop>": 1,
    "for <k:S> in <DI.>:\n    <DI.>[<S>] = <I>": 1,
    "<+g:DI> = <DI>\nfor <k:S> in <g>:\n    <g>[<k> + 'x'] = <I>": 1,
    "<+g:DI> = <DI>\nfor <k:S>, <v:I> in <g>.items():\n    <g>.pop(<k>)": 1,
    "<+g:DT> = <DT>\nfor <k:S> in list(<g>):\n    <g>[<k>] = <g>.pop(<k>) + <I>": 1,
    "<+g:E> = <E>\nfor <v:I> in <g>:\n    <g>.add(<v> + 1)": 1,
    "<+g:LI> = <LI>\nfor <v:I> in <g>:\n    if len(<g>) < 6:\n        <g>.append(<v> - 1)\n    <loop>": 1,
    "<+g:LI> = <LI>\nfor <v:I> in <g>:\n    <g>.remove(<v>)": 1,
    "<+g:DQ> = <DQ>\nfor <v:I> in <g>:\n    <g>.append(<v>)": 1,
    "<+g:LT> = <LT>\nwhile <g>:\n    <=T> = <g>.pop()": 1,
    "for <v:I> in range(<N!>):\n    try:\n        <try>\n    finally:\n        <loop>": 2,
    "for <v:I> in range(<N!>):\n    try:\n        <try>\n    except <X!>:\n        continue\n    else:\n        <loop>\n    finally:\n        <block>": 1,
    "for <v:I> in range(3):\n    with <M!>:\n        <loop>": 1,
    "while True:\n    try:\n        <try>\n    finally:\n        break": 1,
    "try:\n    <try>\nfinally:\n    return <R>": 1,
    "try:\n    return <R>\nfinally:\n    <block>": 1,
    "try:\n    try:\n        <try>\n    except <X>:\n        <handler>\n    finally:\n        <block>\nexcept Exception as <e:ERR>:\n    <handler>": 2,
    "try:\n    <try>\nexcept <X!> as <e:ERR>:\n    try:\n        <handler>\n    except Exception as <w:ERR>:\n        <handler>": 1,
    "with <M>, <M!> as <v:Q>:\n    <try>": 1,
    "with replaced(<O.>, 'k', <I!>) as <v:I>:\n    <try>": 1,
    "with contextlib.ExitStack() as <v:Q>:\n    <v>.enter_context(<M!>)\n    <v>.callback(LOG.append, <I!>)\n    <try>": 1,
    "with torch.no_grad():\n    <=T> = <T>\n    <try>": 1,
    "@logged\ndef <+g:FT>(<v:T>):\n    <body T>": 1,
    "def <+g:FT>(<v:T>, <k:LI>=<LI!>):\n    <k>.append(1)\n    <body T>\n<=T> = <g>(<T!>)\n<=T> = <g>(<T!>)": 1,
    "def <+g:FT>(<v:T>, /, <k:I>=<I!>, *, <w:S>=<S!>):\n    <body T>\n<=T> = <g>(<T!>, <w>=<S!>)": 1,
    "def <+g:FI>(<v:I>):\n    <body I>": 2,
    "def <+g:FT>(<v:T>, <k:I>=2):\n    if <k> <= 0:\n        return <v>\n    <=T> = <T>\n    return <g>(<v>, <k> - 1)": 1,
    "class <+K:CLS>(Box):\n    unit = <I.>\n\n    def scale(self, <v:T>):\n        <body T>": 1,
    "<+g:GEN> = <GF>(<T>, 3)\n<=T> = next(<g>, <T>)\ntry:\n    <=T> = <g>.throw(ValueError('x'))\nexcept (ValueError, StopIteration) as <e:ERR>:\n    <handler>\n<g>.close()": 1,
    "<+g:GEN> = <GF>(<T>, 2)\ntry:\n    while True:\n        <=T> = <g>.send(None)\nexcept StopIteration as <e:ERR>:\n    LOG.append(<e>.value)": 1,
    "<+g:GEN> = (<T> for <v:I> in <LI!>)\n<=T> = next(<g>, <T>)\n<=LT> = list(<g>)": 1,
    "<+g:GEN> = <GF>(<T>, 3)\nfor <v:T> in <g>:\n    <loop>\n<g>.close()": 1,
    "<+g:GEN> = iter(<LI>)\nfor <v:I> in <g>:\n    <=I> = next(<g>, <I>)\n    <loop>": 1,
    "<+g:GEN>, <+h:GEN> = itertools.tee(<LI>)\n<=I> = sum(<g>) + next(<h>, 0)": 1,
    "with contextlib.closing(closing(<T!>, 3)) as <g:GEN>:\n    <=T> = next(<g>)\n    <try>": 1,
    "match <VEC!>:\n    case Point(<v:T>, 1):\n        <block>\n    case Point(tags=[<w:I>, *_]):\n        <block!>": 1,
    "match <PR!>:\n    case Pair(<v:T>, 0 | 1):\n        <block>\n    case (<v>, <w:I>):\n        <=I> = <w>": 1,
    "match <S!>:\n    case 'a' | 'ab':\n        <block!>\n    case '':\n        <block!>\n    case str() as <v:S>:\n        <block>": 1,
    "match [<I!>, <LI!>]:\n    case [<v:I>, [<w:I>, *_]] if <B!>:\n        <=I> = <v> + <w>\n    case [_, []]:\n        <block!>": 1,
    "match {'k': <I!>, 't': <T!>}:\n    case {'k': 1 | 2 as <v:I>, 't': <w:T>}:\n        <block>\n    case {'t': <w>}:\n        <=T> = <w>": 1,
    "match Color(<N!>):\n    case Color.RED:\n        <block!>\n    case _:\n        <block!>": 1,
    "<+g:GEN> = <GF>(<T>, <N>)\nfor <v:T> in <g>:\n    break\n<=LT> = list(<g>)": 1,
    "<+g:GEN> = <GF>(<T>, <N>)\nnext(<g>, None)\ntry:\n    <=T> = <g>.send(<I>)\nexcept StopIteration as <e:ERR>:\n    <handler>": 1,
    "<+g:GEN> = <GF>(<T>, 3)\nnext(<g>, None)\ntry:\n    <g>.throw(Oops('thrown'))\nexcept Oops as <e:ERR>:\n    <handler>\nfinally:\n    <g>.close()": 1,
    "match <I>:\n    case 0:\n        <block>\n    case 1 | 2:\n        <block>\n    case _:\n        <block>": 1,
    "match <I!>:\n    case <v:I> if <B>:\n        <block>\n    case _:\n        <block!>": 1,
    "match <LI!>:\n    case []:\n        <block!>\n    case [<v:I>]:\n        <block>\n    case [<v>, *<w:LI>]:\n        <=I> = len(<w>) + <v>": 1,
    "match <DT!>:\n    case {'b': <v:T>, **<w:DT>}:\n        <block>\n    case {}:\n        <block!>": 1,
    "match <O!>:\n    case Child(w=<v:T>):\n        <block>\n    case Box(k=1 | 2):\n        <block!>\n    case _:\n        <block!>": 1,
    "match (<I!>, <S!>):\n    case (0, _):\n        <block!>\n    case (int() as <v:I>, str(<w:S>)) if <v> > 1:\n        <block>": 1,
}  # fmt: skip

ONLY_IN: dict[str, dict[str, int]] = {
    "loop": {"if <B>:\n    break": 2, "if <B>:\n    continue": 2, "continue": 1, "break": 1},
    "try": {"raise <NEW>": 3, "if <B>:\n    raise <NEW>": 3, "<=T> = failing(<T>, <N>)": 2, "<=I> = 1 // <I>": 1, "<=T> = <DT.>['missing']": 1, "<=I> = <O.>.missing": 1},
    "handler": {
        "raise": 1, "raise <NEW> from <ERR.>": 2, "raise <NEW>": 1, "print(type(<ERR.>).__name__, <ERR.>)": 3, "LOG.append(<ERR.>.args)": 1,
        "raise <NEW> from None": 1, "print(repr(<ERR.>.__context__))": 1, "LOG.append(<ERR.>)": 1, "<ERR.>.add_note(<S>)": 1, "raise <ERR.>": 1,
        "LOG.append(isinstance(<ERR.>, <X>))": 1, "raise type(<ERR.>)(<S>)": 1, "<=S> = str(<ERR.>)": 1, "<ERR.>.code = <I>": 1,
    },
    "generator": {"yield <T>": 8, "<=I> = (yield <T>) or 1": 2, "yield from <LT>": 2, "yield from <GF>(<T>, <N>)": 2, "return": 1, "return <T>": 1,
                  "<=T> = yield from <GF>(<T>, <N>)": 1, "try:\n    yield <T>\nfinally:\n    <=I> = <I>": 1, "try:\n    yield <T>\nexcept <X>:\n    yield <T>": 1,
                  "with contextlib.suppress(<X>):\n    yield <T>": 1},
}  # fmt: skip

TOP: dict[str, int] = {
    "def <+h:FT>(<v:T>, <k:I>=2):\n    <body T>": 4,
    "def <+h:GF>(<v:T>, <k:I>):\n    <generator T>": 3,
    "def <+h:FI>(<v:I>):\n    <body I>": 1,
    "class <+K:CLS>(<C>):\n    unit = 5\n\n    def scale(<o:O>, <v:T>):\n        <body T>": 2,
    "class <+K:CLS>(<C>):\n    def __call__(<o:O>, <v:T>):\n        <=T> = super().__call__(<v>)\n        return <T>": 1,
    "class <+K:CLS>(<C>):\n    @property\n    def size(<o:O>):\n        return super().size + <o>.k": 1,
    "class <+K:CLS>(<C>):\n    def __init__(<o:O>, <v:T>, <k:I>=3):\n        super().__init__(<T>, <I>)\n        <o>.extra = <I>": 1,
}  # fmt: skip

ARGUMENTS = {
    "x": "T",
    "y": "T",
    "n": "I",
    "flag": "B",
    "s": "S",
    "items": "LT",
    "nums": "LI",
    "table": "DT",
    "box": "O",
}
RESULTS = {"T": "<T>", "I": "<I>", "P": "(<T>, <I>)"}
VARIANTS = (
    "values", "shape", "flags", "alias", "rank", "empty", "grad", "child", "integers", "floats", "tuples", "dtypes",
    "strides", "longer", "booleans", "globals", "patched", "patched class", "defaults", "nothing",
)  # fmt: skip
HANDS_OVER = [(resuming.__file__, "run_tails"), (resuming.__file__, "__call__")]
_HOLE = re.compile(r"<([=~+]?)([A-Za-z]+)(?: ([A-Z]))?(?::([A-Z]+))?([!.]?)>")
_COMPREHENSION = re.compile(r"\S for ")
_BLOCKS = ("block", "loop", "try", "handler", "body", "generator")


@functools.cache
def _integers(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most)


@functools.cache
def _needs(template: str) -> frozenset[tuple[str, str]]:
    """("~" or ".", kind) of the variables that the template cannot do without."""
    return frozenset((m[1] or m[5], m[2]) for m in _HOLE.finditer(template) if m[1] == "~" or m[5] == ".")


@functools.cache
def _is_atom(template: str) -> bool:
    """Whether the expression can be an operand as it is."""
    node = ast.parse(_HOLE.sub("x", template), mode="eval").body
    return isinstance(
        node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict, ast.Set, ast.ListComp)
    )


@dataclass
class Scope:
    """Names by kind: those that may be assigned, those that can only be read; and what the place allows."""

    own: dict[str, str]
    outer: dict[str, str]
    allows: frozenset[str] = frozenset()
    result: str = "T"

    def having(self, names: dict[str, str], *allows: str) -> Scope:
        return Scope({**self.own, **names}, self.outer, self.allows | set(allows), self.result)

    def readable(self, kind: str) -> list[str]:
        return [n for names in (self.own, self.outer) for n, k in names.items() if k == kind]


class Writer:
    """Writes one program, drawing each choice."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int], statements: int) -> None:
        self.draw = draw
        self.left = statements
        self.names = itertools.count()

    def chance(self, percent: int) -> bool:
        return self.draw(_integers(99)) >= 100 - percent

    def choose(self, options: list[str]) -> str:
        return options[self.draw(_integers(len(options) - 1))]

    def template(self, table: dict[str, int], scope: Scope) -> str:
        kinds = {"~": set(scope.own.values()), ".": {*scope.own.values(), *scope.outer.values()}}
        usable = [
            (t, w)
            for t, w in table.items()
            if all(kind in kinds[how] for how, kind in _needs(t))
            and not (":=" in t and "comprehension" in scope.allows)
        ]
        totals = list(itertools.accumulate(w for _, w in usable))
        return usable[bisect.bisect_right(totals, self.draw(_integers(totals[-1] - 1)))][0]

    # --- expressions ---------------------------------------------------------------------------------------

    def expression(self, kind: str, scope: Scope, depth: int) -> str:
        if kind == "R":
            return self.fill(RESULTS[scope.result], scope, depth)
        names = scope.readable(kind)
        if names and (depth <= 0 or not self.chance(55)):
            return self.choose(names)
        table = EXPRESSIONS[kind]
        template = next(iter(table)) if depth <= 0 else self.template(table, scope)
        filled = self.fill(template, scope, depth - 1)
        return filled if _is_atom(template) else f"({filled})"

    def fill(self, template: str, scope: Scope, depth: int) -> str:
        """The template with its holes filled; names that it assigns are added to the scope afterwards."""
        bound = {m[2]: self.fresh(m[2]) for m in _HOLE.finditer(template) if m[4] and m[1] != "+"}
        kept = {m[2]: self.fresh(m[2]) for m in _HOLE.finditer(template) if m[4] and m[1] == "+"}
        kinds = {m[2]: m[4] for m in _HOLE.finditer(template) if m[4]}
        place = ("comprehension",) if _COMPREHENSION.search(template) else ()  # some of it may not assign
        inner = scope.having({bound[n]: kinds[n] for n in bound if kinds[n] != "Q"}, *place)
        outside = scope.having({}, *place) if place else scope
        called = {**bound, **kept}
        added: dict[str, str] = {}

        def value(m: re.Match[str]) -> str:
            how, what, _, kind, where = m.groups()
            if kind or what in called:
                return called[what]
            if how == "=":
                name = self.target(what, scope)
                added[name] = what
                return name
            if how == "~":
                return self.choose([n for n, k in scope.own.items() if k == what])
            if where == ".":
                return self.choose(inner.readable(what))
            return self.expression(what, outside if where == "!" else inner, depth)

        lines: list[str] = []
        for line in template.split("\n"):
            m = _HOLE.fullmatch(line.strip())
            if m and m[2] in _BLOCKS:
                indent = line[: len(line) - len(line.lstrip())]
                if m[2] in ("body", "generator"):
                    names = {called[n]: kinds[n] for n in bound}
                    lines += [indent + text for text in self.function(m[2], m[3], names, scope)]
                else:
                    lines += [indent + text for text in self.block(m[2], scope if m[5] else inner)]
            else:
                lines.append(_HOLE.sub(value, line))
        scope.own.update(added)
        scope.own.update({kept[n]: kinds[n] for n in kept})
        return "\n".join(lines)

    def target(self, kind: str, scope: Scope) -> str:
        names = [n for n, k in scope.own.items() if k == kind]
        return self.choose(names) if names and self.chance(50) else self.fresh(kind.lower())

    def fresh(self, stem: str) -> str:
        return f"{stem[0]}{next(self.names)}"

    # --- statements ----------------------------------------------------------------------------------------

    def block(self, kind: str, scope: Scope, most: int = 3) -> list[str]:
        """Statements in a copy of the scope: names they add are (mostly) forgotten, for they may stay unbound."""
        inner = scope.having({}, kind)
        lines: list[str] = []
        for _ in range(1 + self.draw(_integers(most - 1))):
            if self.left > 0 or not lines:
                lines += self.statement(inner)
        if self.chance(4):
            scope.own.update(inner.own)
        return lines

    def statement(self, scope: Scope) -> list[str]:
        if self.left <= 0:
            return ["pass"]
        self.left -= 1
        special = [kind for kind in ONLY_IN if kind in scope.allows]
        if special and self.chance(35):
            table = ONLY_IN[self.choose(special)]
        else:
            table = COMPOUND if self.chance(35) else SIMPLE
        return self.fill(self.template(table, scope), scope, 2).split("\n")

    def function(self, kind: str, result: str, parameters: dict[str, str], scope: Scope) -> list[str]:
        """The body of a nested function, which reads its surroundings and may rebind some of them."""
        lines: list[str] = []
        rebound: dict[str, str] = {}
        if "function" in scope.allows and self.chance(30):
            name = self.choose([n for n in scope.own if n != "TOTAL"])
            rebound[name] = scope.own[name]
            lines.append(f"nonlocal {name}")
        inner = Scope({**rebound, **parameters}, {**scope.outer, **scope.own}, frozenset({"function"}), result)
        if kind == "generator":
            inner.allows |= {"generator"}
            lines += self.fill("yield <T>", inner, 1).split("\n")
        for _ in range(self.draw(_integers(2))):
            lines += self.statement(inner)
        ends = "return <R>" if kind == "body" or self.chance(30) else "yield <T>"
        return lines + self.fill(ends, inner, 2).split("\n")

    def program(self) -> str:
        outer: dict[str, str] = {}
        lines: list[str] = []
        for _ in range(self.draw(_integers(2))):
            scope = Scope({}, dict(outer))
            lines += self.fill(self.template(TOP, scope), scope, 2).split("\n")
            lines += ["", ""]
            outer.update(scope.own)
        scope = Scope(dict(ARGUMENTS), outer, frozenset({"function"}), "P")
        body: list[str] = []
        if self.chance(15):
            body.append("global TOTAL")
            scope.own["TOTAL"] = "I"
        for _ in range(1 + self.draw(_integers(5))):
            body += self.statement(scope)
        returned = [n for n, k in scope.own.items() if k not in ("IX", "GEN", "GF", "ERR") and n not in ARGUMENTS]
        body.append(f"return {', '.join([*returned, self.expression('T', scope, 2)])}")
        return "\n".join([*lines, f"def f({', '.join(ARGUMENTS)}):", *("    " + b for b in body)]) + "\n"


@dataclass
class Program:
    """A program's source and the calls of its function ``f`` (names of argument variants)."""

    source: str
    calls: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Program({self.calls!r}):\n{self.source}"


@st.composite
def programs(draw: Callable[..., Any], statements: int = 16) -> Program:
    writer = Writer(draw, statements)
    source = ast.unparse(ast.parse(writer.program())) + "\n"  # without the parentheses that were to be on the safe side
    variants = [VARIANTS[draw(_integers(len(VARIANTS) - 1))] for _ in range(draw(_integers(3)))]
    return Program(source, ("first", "first", *variants, "first"))


# --- running ------------------------------------------------------------------------------------------------------


def load(source: str) -> types.ModuleType:
    """A module with the prelude and the program in it, whose lines tracebacks can show."""
    module = sys.modules["generated"] = types.ModuleType("generated")  # where dataclasses look for it
    for name, text in (("prelude", PRELUDE), ("program", source)):
        path = f"/generated/{name}.py"
        linecache.cache[path] = (len(text), None, text.splitlines(True), path)
        exec(compile(text, path, "exec"), module.__dict__)
    return module


def arguments(variant: str, module: types.ModuleType) -> list[Any]:
    shape = {"shape": (5,), "rank": (2, 3)}.get(variant, (3,))
    made = torch.Generator().manual_seed(int(variant == "values"))

    def tensor(*leading: int) -> torch.Tensor:
        return torch.randint(-3, 4, (*leading, *shape), generator=made).float()

    x, y = tensor(), tensor()
    if variant == "alias":
        y = x[..., :]
    n, flag, s, nums = (2, True, "ab", [1, 2, 0]) if variant != "flags" else (3, False, "", [3, 3])
    items, table = [tensor(), tensor()], {"a": tensor(), "b": x if variant == "alias" else tensor()}
    if variant == "empty":
        nums, items, table, n = [], [], {}, 0
    box = {"child": module.Child, "tuples": module.Both}.get(variant, module.Box)(tensor(), 2)
    match variant:
        case "grad":
            x = x.requires_grad_() * 1  # no leaf, so that it may be written to
        case "integers":
            n, nums, box.k = 5, [4, 0, 4, 1], 7
        case "floats":
            n, nums, box.k = 1.5, [1.5, 2], 0.5
        case "booleans":
            n, flag, nums = True, 0, [True, 3]
        case "tuples":
            items, nums, table = tuple(items), tuple(nums), collections.OrderedDict(table)
        case "dtypes":
            x, y, items[0] = x.double(), y.long(), items[0].double()
        case "strides":
            x, y = tensor(2).movedim(0, -1)[..., 0], tensor().expand(2, *shape)[1]
        case "longer":
            items, table, s = [*items, *items, y], {"z": y, **table, "c": x}, "abcab"
        case "nothing":
            items, s, flag = [None], None, None
        case "globals":
            module.TOTAL, module.STATE = 7, {"n": 4, "m": 1}
        case "patched":
            module.countdown, module.STATE["n"] = lambda v, n: v - n, 9
        case "patched class":
            module.Box.unit, module.Child.scale, module.Num.__neg__ = 6, lambda self, v: v - self.k, lambda self: self
        case "defaults":
            module.keywords.__kwdefaults__, module.remember.__defaults__ = {"scale": 3}, ([1, 2],)
            module.steps.__code__ = module.guarded.__code__
    return [x, y, n, flag, s, items, nums, table, box]


class Facts:
    """What can be observed of objects, as comparable text: values, types, identities and shared storage."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.objects: dict[int, tuple[int, Any]] = {}
        self.storages: dict[int, int] = {}

    def add(self, where: str, what: str) -> None:
        self.found.append(f"{where}: {what}")

    def see(self, where: str, value: Any) -> None:
        kind = type(value)
        if isinstance(value, np.generic):
            self.add(where, f"{kind.__name__} {value!r}")
            return
        if value is None or kind in (int, bool, str, float, complex, type, range, slice, torch.dtype):
            self.add(where, repr(value) if kind is not type else value.__name__)
            return
        if kind is not tuple:
            if id(value) in self.objects:
                self.add(where, f"object {self.objects[id(value)][0]} again")
                return
            self.objects[id(value)] = (len(self.objects), value)
        if isinstance(value, torch.Tensor) and kind.__name__ == "Scaled":
            self.add(where, f"Scaled by {value.k}, requires_grad {value.requires_grad}, leaf {value.is_leaf}")
            self.see(f"{where}.inner", value.inner)
        elif isinstance(value, torch.Tensor):
            self.tensor(where, value)
        elif isinstance(value, np.ndarray):
            self.array(where, value)
        elif isinstance(value, (list, tuple, collections.deque)):
            self.add(where, f"{kind.__name__} of {len(value)}, at most {getattr(value, 'maxlen', None)}")
            for i, v in enumerate(value):
                self.see(f"{where}[{i}]", v)
        elif isinstance(value, dict):
            self.add(where, f"{kind.__name__} of {list(map(repr, value))}, {getattr(value, 'default_factory', None)}")
            for k, v in value.items():
                self.see(f"{where}[{k!r}]", v)
        elif isinstance(value, (set, frozenset)):
            self.add(where, f"{kind.__name__} {sorted(map(repr, value))}")
        elif isinstance(value, BaseException):
            self.error(where, value)
        elif isinstance(value, types.FunctionType):
            self.add(where, f"function {value.__qualname__}")
            for cell, name in zip(value.__closure__ or (), value.__code__.co_freevars, strict=True):
                try:
                    self.see(f"{where}.{name}", cell.cell_contents)
                except ValueError:
                    self.add(f"{where}.{name}", "unbound")
            self.see(f"{where}.__defaults__", value.__defaults__)
        elif isinstance(value, types.MethodType):
            self.add(where, f"method {value.__func__.__qualname__}")
            self.see(f"{where}.__self__", value.__self__)
        elif isinstance(value, functools.partial):
            self.add(where, "partial")
            self.see(where, (value.func, value.args, value.keywords))
        elif isinstance(value, enum.Enum):
            self.add(where, repr(value))
        else:
            self.add(where, kind.__name__)
            for k, v in getattr(value, "__dict__", {}).items():
                self.see(f"{where}.{k}", v)

    def tensor(self, where: str, value: torch.Tensor) -> None:
        storage, strides = (
            value.untyped_storage().data_ptr() if value.numel() else 0,
            value.stride() if value.numel() else (),
        )
        number = self.storages.setdefault(storage, len(self.storages)) if storage else -1
        self.add(
            where,
            f"{type(value).__name__} {value.dtype} {tuple(value.shape)} strides {strides} at {value.storage_offset()} "
            f"of storage {number}, requires_grad {value.requires_grad}, leaf {value.is_leaf}: {value.tolist()}",
        )

    def array(self, where: str, value: np.ndarray) -> None:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        start, size = owner.__array_interface__["data"][0], value.nbytes
        strides = [s for n, s in zip(value.shape, value.strides, strict=True) if n > 1 and size]
        number = self.storages.setdefault(start, len(self.storages)) if size else -1
        self.add(
            where,
            f"array {value.dtype} {value.shape} strides {strides} of storage {number}, writeable {value.flags.writeable}: "
            f"{value.tolist()}",
        )

    def error(self, where: str, value: BaseException) -> None:
        try:
            text = str(value)
        except Exception as e:
            text = repr(e)
        self.add(where, f"{type(value).__name__}: {text!r}, suppresses {value.__suppress_context__}")
        for name, v in vars(value).items():
            self.see(f"{where}.{name}", v)
        for name in ("__cause__", "__context__"):
            if getattr(value, name) is not None:
                self.see(f"{where}.{name}", getattr(value, name))
        self.add(f"{where}.__traceback__", str(user_lines(value)))


def user_lines(error: BaseException) -> list[tuple[str, int | None]]:
    """(function, line) of the program's frames in the traceback, without those that only hand over to a resume function."""
    entries: list[types.TracebackType] = []
    rest = error.__traceback__
    while rest is not None:
        entries.append(rest)
        rest = rest.tb_next
    found: list[tuple[str, int | None]] = []
    for entry, inner in itertools.zip_longest(entries, entries[1:]):
        code = entry.tb_frame.f_code
        if inner is not None:
            into = inner.tb_frame.f_code
            resumes = RESUME_MARK in into.co_name and inner.tb_frame.f_back is entry.tb_frame
            if resumes or (into.co_filename, into.co_name) in HANDS_OVER:
                continue
        if code.co_filename.startswith("/generated/"):
            found.append((code.co_name.split(RESUME_MARK)[0], entry.tb_lineno))
    return found


def observe(module: types.ModuleType, fn: Callable[..., Any], variant: str) -> list[str]:
    """Everything that a call of ``fn`` shows: result or exception, output, arguments and globals afterwards."""
    args = arguments(variant, module)
    facts = Facts()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            facts.see("result", fn(*args))
        except Exception as e:
            facts.see("raised", e)
    facts.add("printed", out.getvalue())
    for name, value in zip(ARGUMENTS, args, strict=True):
        facts.see(name, value)
    for name in ("TOTAL", "STATE", "LOG"):
        facts.see(name, getattr(module, name, "deleted"))
    module.LOG.clear()
    facts.add("grad mode", str(torch.is_grad_enabled()))
    facts.add("exception being handled", str(sys.exc_info()[0]))
    return facts.found


class Endless(BaseException):
    """Raised in a program that has run for too long."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises :class:`Endless` in what takes more processor time, such as a loop over a list that it makes longer."""

    def stop(*_: Any) -> None:
        raise Endless

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _lines_differ_alone(program: Program, variant: str, expected: list[str], actual: list[str]) -> bool:
    """Whether only lines of tracebacks differ, and the compiled function's are those of eager while it is traced: where two
    instructions have become one, CPython 3.11 names the line of the first."""
    pairs = list(itertools.zip_longest(expected, actual, fillvalue=""))
    different = [a for e, a in pairs if e != a]
    if not all(".__traceback__: " in a for a in different):
        return False
    fresh, before = load(program.source), sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        return set(different) <= set(observe(fresh, fresh.f, variant))
    finally:
        sys.settrace(before)


def difference(program: Program) -> str | None:
    """The first thing in which the compiled function differs from eager in some call; None when there is none."""
    eager, other = load(program.source), load(program.source)
    compiled = fuselens.compile(other.f, backend="eager")
    try:
        for i, variant in enumerate(program.calls):
            try:
                with limited(2):
                    expected = observe(eager, eager.f, variant)
            except Endless:
                return None
            if expected[0].startswith("raised: RecursionError"):  # how deep it came depends on the interpreter's stack
                return None
            actual = observe(other, compiled, variant)
            if expected != actual and not _lines_differ_alone(program, variant, expected, actual):
                pair = next((e, a) for e, a in itertools.zip_longest(expected, actual, fillvalue="nothing") if e != a)
                return f"call {i} ({variant}):\n  eager    {pair[0]}\n  compiled {pair[1]}"
    finally:
        fuselens.reset()
    return None
