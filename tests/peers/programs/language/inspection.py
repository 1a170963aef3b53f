"""What a program asks of types, hints, modules, objects, weak references and identities; text and numbers."""

from __future__ import annotations

import abc
import collections.abc
import copy
import math
import numbers
import operator
import re
import string
import sys
import types
import typing
import weakref
from typing import Any, Generic, Literal, Optional, Protocol, TypeVar, Union

import torch

from ...program import Programs, some

programs = Programs()
T = TypeVar("T")
SCALE = 3


class Runs(Protocol):
    def run(self, x: Any) -> Any: ...


@typing.runtime_checkable
class Checked(Protocol):
    size: int


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value

    def get(self) -> T:
        return self.value


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self, x: Any) -> Any: ...

    @property
    @abc.abstractmethod
    def size(self) -> int: ...


class Concrete(Abstract):
    def run(self, x: Any) -> Any:
        return x * self.size

    @property
    def size(self) -> int:
        return 2


class Virtual:
    pass


Abstract.register(Virtual)


class Shown:
    def __init__(self, n: int) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"Shown({self.n})"

    def __str__(self) -> str:
        return f"<{self.n}>"

    def __format__(self, spec: str) -> str:
        return f"{spec}:{self.n}"

    def __len__(self) -> int:
        return self.n

    def __bool__(self) -> bool:
        return self.n > 1

    def __int__(self) -> int:
        return self.n

    def __float__(self) -> float:
        return self.n + 0.5

    def __index__(self) -> int:
        return self.n

    def __hash__(self) -> int:
        return hash(self.n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shown) and other.n == self.n

    def __contains__(self, item: int) -> bool:
        return item < self.n

    def __getitem__(self, index: int) -> int:
        if index >= self.n:
            raise IndexError(index)
        return index * 10

    def __reversed__(self) -> Any:
        return iter("reversed")

    def __abs__(self) -> int:
        return self.n

    def __round__(self, digits: int = 0) -> float:
        return self.n + digits

    def __invert__(self) -> str:
        return "inverted"

    def __neg__(self) -> Any:
        return Shown(-self.n)

    def __add__(self, other: Any) -> Any:
        return self.n + other

    def __radd__(self, other: Any) -> Any:
        return other + self.n * 100

    def __iadd__(self, other: Any) -> Any:
        self.n += other
        return self

    def __matmul__(self, other: Any) -> str:
        return "matmul"

    def __pow__(self, other: Any) -> int:
        return self.n**other

    def __divmod__(self, other: Any) -> tuple[int, int]:
        return divmod(self.n, other)

    def __lshift__(self, other: Any) -> str:
        return f"<<{other}"

    def __call__(self, x: Any) -> Any:
        return x * self.n

    def __copy__(self) -> Any:
        return Shown(self.n + 1)

    def __deepcopy__(self, memo: Any) -> Any:
        return Shown(self.n + 2)

    def __enter__(self) -> Any:
        return self.n

    def __exit__(self, *_: Any) -> None:
        self.n = 0


class Refuses:
    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> Any:
        return NotImplemented

    def __bool__(self) -> bool:
        raise ValueError("no truth")


class Held:
    def __init__(self, value: Any) -> None:
        self.value = value


HELD = Held(4)
REFERENCE = weakref.ref(HELD)
WEAK = weakref.WeakKeyDictionary({HELD: 5})
WEAK_VALUES = weakref.WeakValueDictionary({"a": HELD})


@programs(lambda: (some(3),))
def hints_of_a_function(x):
    def f(v: torch.Tensor, k: int = 2) -> torch.Tensor:
        return v * k

    return f(x), sorted(f.__annotations__), len(typing.get_type_hints(Concrete.run)) >= 0


@programs(lambda: (some(3),))
def subscripted_types(x):
    return (
        x + 1,
        list[int] == list[int],
        Optional[int] == Union[int, None],
        typing.get_args(dict[str, int]),
        typing.get_origin(list[int]) is list,
    )


@programs(lambda: (some(3),))
def unions_and_literals(x):
    kind = int | str
    return (
        x + 1,
        isinstance(3, kind),
        isinstance(3.0, (int | str)),
        typing.get_args(Literal["a", "b"]),
        isinstance(x, torch.Tensor | None),
    )


@programs(lambda: (some(3),))
def generic_classes(x):
    box = Box[int](3)
    return x * box.get(), Box(x).value, Box[int].__origin__ is Box, isinstance(box, Box)


@programs(lambda: (some(3), Concrete()))
def protocols(x, c):
    return c.run(x), isinstance(c, Checked), isinstance(3, Checked)


@programs(lambda: (some(3), Concrete()))
def abstract_classes(x, c):
    try:
        Abstract()
    except TypeError as e:
        return (
            c.run(x),
            str(e)[:30],
            isinstance(c, Abstract),
            isinstance(Virtual(), Abstract),
            Abstract.__abstractmethods__ == {"run", "size"},
        )


@programs(lambda: (some(3),))
def casts(x):
    return typing.cast("torch.Tensor", x) + 1, typing.cast(int, "s"), typing.TYPE_CHECKING, typing.NewType("N", int)(3)


@programs(lambda: (some(3), [1, 2]))
def abstract_collections(x, items):
    return (
        x + 1, isinstance(items, collections.abc.Sequence), isinstance({}, collections.abc.Mapping),
        isinstance(iter([]), collections.abc.Iterator),
        isinstance(len, collections.abc.Callable), isinstance(3, numbers.Number), isinstance({1}, collections.abc.Set),
        isinstance("a", collections.abc.Iterable),
    )  # fmt: skip


@programs(lambda: (some(3),))
def types_compared(x):
    return (
        x + 1,
        type(x) is torch.Tensor,
        type(3) is int,
        type([]) in (list, tuple),
        issubclass(bool, int),
        type(type(x)) is type,
        type(None) is types.NoneType,
    )


@programs(lambda: (some(3), Held(2)))
def identities(x, held):
    return (
        x + 1,
        id(held) == id(held),
        id(x) == id(x),
        id(held) != id(x),
        {id(x): 3}[id(x)],
        held is held,
        x is not None,
    )


@programs(lambda: (some(3), torch.nn.Linear(3, 3)))
def identities_of_modules(x, m):
    seen = {id(m): "lin"}
    return m(x).shape, seen[id(m)], id(m.weight) in {id(p) for p in m.parameters()}, id(SCALE) == id(SCALE)


@programs(lambda: (some(3),))
def weak_reference_called(x):
    return x * REFERENCE().value, REFERENCE() is HELD


@programs(lambda: (some(3), HELD))
def weak_reference_made(x, held):
    r = weakref.ref(held)
    return x * r().value, r() is held


@programs(lambda: (some(3), HELD))
def weak_proxy(x, held):
    p = weakref.proxy(held)
    return x * p.value


@programs(lambda: (some(3), HELD))
def weak_dictionaries(x, held):
    return x * WEAK[held], held in WEAK, WEAK_VALUES["a"].value, len(WEAK), WEAK.get(held, 0)


@programs(lambda: (some(3),))
def weak_reference_of_a_tensor(x):
    r = weakref.ref(x)
    return r() + 1


@programs(lambda: (some(3),))
def global_read_and_written(x):
    global SCALE
    SCALE = 5
    y = x * SCALE
    SCALE = 3
    return y, SCALE


@programs(lambda: (some(3),))
def module_attributes(x):
    return (
        x * math.pi,
        math.__name__,
        hasattr(math, "nothing"),
        getattr(math, "nothing", 2),
        sys.version_info >= (3, 8),
        sys.maxsize > 0,
    )


@programs(lambda: (some(3),))
def imports_inside(x):
    import math as m
    from collections import OrderedDict as Ordered

    import torch.nn.functional as func

    return func.relu(x) * m.e, list(Ordered(a=1)), sys.modules["math"] is m


@programs(lambda: (some(3), Shown(2)))
def text_of_objects(x, s):
    return x + 1, f"{s}", f"{s!r}", f"{s:>4}", str(s), repr(s), "%s" % s, "{}".format(s), [s].__repr__()


@programs(lambda: (some(3), Shown(2)))
def conversions_of_objects(x, s):
    return (
        x * int(s) + float(s),
        len(s),
        bool(s),
        [1, 2, 3][s],
        abs(s),
        round(s),
        round(s, 3),
        ~s,
        (-s).n,
        operator.index(s),
        hash(s) == hash(2),
        complex(s),
    )


@programs(lambda: (some(3), Shown(2)))
def operators_of_objects(x, s):
    return (
        s(x),
        s + 1,
        1 + s,
        s @ 3,
        s**3,
        divmod(s, 2),
        s << 4,
        s == Shown(2),
        s != 3,
        1 in s,
        s[1],
        list(s),
        list(reversed(s))[0],
    )


@programs(lambda: (some(3), Shown(2)))
def operators_in_place_of_objects(x, s):
    s += 3
    t = s
    t += 1
    return x * s.n, s is t


@programs(lambda: (some(3), Shown(2)))
def copies_of_objects(x, s):
    return x * copy.copy(s).n, copy.deepcopy(s).n, copy.deepcopy([s, s])[0].n, copy.copy([1, 2])


@programs(lambda: (some(3), Held([1, {"a": 2}])))
def deep_copies_of_plain_objects(x, held):
    other = copy.deepcopy(held)
    other.value[1]["a"] = 9
    return x * held.value[1]["a"] + other.value[1]["a"], other is held, copy.copy(held).value is held.value


@programs(lambda: (some(3), Shown(3)))
def objects_in_contexts_and_conditions(x, s):
    with s as n:
        y = x * n
    return y if not s else x, s.n, s and 1, s or 2


@programs(lambda: (some(3), Refuses()))
def what_an_object_refuses(x, r):
    out = []
    for call in (
        lambda: hash(r),
        lambda: r < 1,
        lambda: bool(r),
        lambda: r + 1,
        lambda: r[0],
        lambda: len(r),
        lambda: r(),
        lambda: iter(r),
    ):
        try:
            call()
        except (TypeError, ValueError) as e:
            out.append((type(e).__name__, str(e)))
    return x + 1, out


@programs(lambda: (some(3), "Hello, World"))
def text_methods(x, s):
    return (
        x + len(s), s.lower(), s.split(", "), s.replace("l", "L", 1), s.startswith(("He", "Wo")), s.find("o"), s.partition(","),
        s.center(16, "*"),
        "-".join(reversed(s[:3])), s.encode().hex()[:4], s.isalpha(), s.title().swapcase(), s.zfill(14), s[::-1], "l" in s, s.count("l"),
        s.strip("Hd"),
    )  # fmt: skip


@programs(lambda: (some(3),))
def formats(x):
    n, f = 42, 3.14159
    return (
        x + 1, f"{n:05d} {n:x} {n:#b} {f:.2f} {f:10.3e} {n!r:>6} {n=}", "%d %5.1f %s %r" % (n, f, "a", "b"),
        "{0} {b} {0:>3}".format(1, b=2),
        f"{'nested':{'>'}{10}}", format(n, ","), "{:%}".format(0.5), f"{True} {None}", string.ascii_lowercase[:3],
    )  # fmt: skip


@programs(lambda: (some(3), "layer.12.weight"))
def patterns(x, name):
    found = re.match(r"layer\.(\d+)\.(?P<kind>\w+)", name)
    return (
        x * int(found.group(1)), found["kind"], found.groups(), re.sub(r"\d", "#", name), re.split(r"\.", name),
        re.findall(r"[a-z]+", name),
        re.compile("w").search(name).start(), bool(re.fullmatch("a", name)), re.match("z", name),
    )  # fmt: skip


@programs(lambda: (some(3), 7, 2.5))
def numbers_of_python(x, n, f):
    return (
        x * n + f, n // 2, n % 3, -n // 2, n ** 2, divmod(n, 3), f.is_integer(), n.bit_length(), int("12"), float("1e3"), round(f),
        abs(-n), n & 3, n ^ 1,
        n << 2, ~n, bin(n), hex(255), oct(8), int("ff", 16), math.floor(f), math.ceil(f), math.gcd(12, 18), math.prod([1, 2, 3]),
        max(n, f), pow(n, 2, 5),
        math.isclose(f, 2.5), math.inf > n, float("nan") != float("nan"), 1_000, n.real, complex(1, 2) * 2, min(3, 1, 2), sum([0.1] * 3),
        math.log2(8),
    )  # fmt: skip


@programs(lambda: (some(3), True))
def booleans(x, flag):
    return (
        x + flag,
        flag and x.shape[0],
        not flag,
        flag is True,
        flag + 1,
        isinstance(flag, int),
        flag ^ False,
        bool([]),
        any([flag, 0]),
        0 or "a" or 3,
    )


@programs(lambda: (some(3), None))
def nothing(x, n):
    return x + (n or 1), n is None, n == None, (n, 1)[1] if n is None else 0, n.__class__.__name__, str(n)  # noqa: E711


@programs(lambda: (some(3), b"ab\x00"))
def bytes_(x, b):
    return (
        x + len(b),
        b[0],
        b.decode("latin1"),
        bytes([1, 2]),
        b + b"c",
        bytearray(b"ab")[1],
        int.from_bytes(b[:2], "big"),
        b.hex(),
        b"a" in b,
    )


@programs(lambda: (some(3), 3))
def matched(x, n):
    match n:
        case 1 | 2:
            x = x + 1
        case int(k) if k > 2:
            x = x * k
        case _:
            x = x - 1
    match [n, {"a": 1}, "s"]:
        case [_, {"a": a, **rest}, str() as s]:
            return x + a, s, rest
    return x


@programs(lambda: (some(3), Held(2)))
def matched_by_class(x, held):
    match held:
        case Held(value=v):
            return x * v
    return x


@programs(lambda: (some(3),))
def walrus_and_chains(x):
    if (n := x.shape[0]) > 2 and 0 < n <= 3 != 4:
        x = x * n
    return x, [m for k in range(4) if (m := k * 2) > 2], n


@programs(lambda: (some(3),))
def starred_and_lambda(x):
    f = lambda *a, k=2, **kw: (len(a), k, sorted(kw))  # noqa: E731
    return x + 1, f(1, 2, z=3), f(*range(3), **{"k": 5}), (lambda: x)() is x


@programs(lambda: (some(3),))
def loops_with_else(x):
    for i in range(3):
        if i == 5:
            break
    else:
        x = x + 1
    n = 0
    while n < 3:
        n += 1
        if n == 2:
            continue
    else:
        x = x * 2
    return x, i, n


@programs(lambda: (some(3),))
def deleted_variables(x):
    y = x + 1
    del y
    try:
        return y
    except UnboundLocalError as e:
        return x, str(e)


@programs(lambda: (some(3),))
def undefined_names(x):
    try:
        return not_a_name_of_anything  # noqa: F821
    except NameError as e:
        return x + 1, str(e), e.name
