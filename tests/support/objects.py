"""Classes whose objects programs under test use."""

from __future__ import annotations

from typing import Any


class Money:
    def __init__(self, amount: Any) -> None:
        self.amount = amount

    def __str__(self) -> str:
        return f"${self.amount}"

    def __repr__(self) -> str:
        return f"Money({self.amount!r})"

    def __format__(self, spec: str) -> str:
        return f"<{spec}:{self.amount}>"


MONEY = Money(5)


class Same:
    """Equal when the attributes are, which the comparison of arguments with eager asks for."""

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = object.__hash__


class Vector(Same):
    def __init__(self, *items):
        self.items = list(items)

    def __add__(self, other):
        return (
            Vector(*[a + b for a, b in zip(self.items, other.items)]) if isinstance(other, Vector) else NotImplemented
        )

    def __radd__(self, other):
        return Vector(*[other + a for a in self.items])

    def __mul__(self, k):
        return Vector(*[a * k for a in self.items])

    __rmul__ = __mul__

    def __iadd__(self, other):
        self.items = [a + b for a, b in zip(self.items, other.items)]
        return self

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.items, other.items))

    def __neg__(self):
        return self * -1

    def __abs__(self):
        return sum(abs(a) for a in self.items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]

    def __setitem__(self, i, v):
        self.items[i] = v

    def __delitem__(self, i):
        del self.items[i]

    def __contains__(self, v):
        return any(v is i for i in self.items)

    def __call__(self, k, *, scale=1):
        return self.items[k] * scale

    def __bool__(self):
        return bool(self.items)

    def __index__(self):
        return len(self.items)

    def __int__(self):
        return 42

    def __float__(self):
        return 4.5

    def __round__(self, n=None):
        return "rounded", n

    def __divmod__(self, k):
        return "divmod", k

    def __pow__(self, k):
        return "pow", k
