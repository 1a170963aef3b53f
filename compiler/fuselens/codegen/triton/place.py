"""Where an operation is written, and what is learned while a kernel is."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sympy import Expr

from ...ir.loops import Op
from ..operands import Value


@dataclass(frozen=True, slots=True)
class Place:
    """What holds where an operation is written: which block a program computes there, and what of it exists."""

    shape: tuple[str, ...]  # of the block, by the names that the text has for sizes
    axes: tuple[frozenset[str], ...]  # along which its elements differ, by dimension
    mask: str = ""  # which elements exist, "" where all do
    limits: Mapping[str, str] = field(default_factory=dict)
    """The same by axis, where what is the same along an axis is computed once for it."""
    beside: str = ""  # a condition of loads, besides these
    held: Mapping[Expr, str] = field(default_factory=dict)  # indices that variables hold
    policies: Mapping[str, str] = field(default_factory=dict)
    """How loads of what varies along the last dimension treat the cache, by storage."""
    stores_first: bool = False  # whether what is stored along it is to leave the cache first

    @property
    def zeros(self) -> str:
        """A block of its shape."""
        return f"tl.zeros([{', '.join(self.shape)}], tl.int32)"

    def varies(self, names: frozenset[str]) -> bool:
        """Whether what depends on axes of these ``names`` differs between the block's elements."""
        return any(names & axes for axes in self.axes)

    def fills(self, names: frozenset[str]) -> bool:
        """Whether what depends on them has the block's shape."""
        return any(self.axes) and all(names & axes for axes in self.axes if axes)

    def limited(self, axes: Collection[str], mask: str) -> Place:
        """The same, of which ``mask``, if there is one, says what exists along these ``axes``."""
        if not axes or not mask:
            return self
        both = f"{self.mask} & {mask}" if self.mask else mask
        return dataclasses.replace(self, mask=both, limits={**self.limits, **dict.fromkeys(axes, mask)})


@dataclass(frozen=True, slots=True)
class Slot:
    value: Value
    varies: bool  # between the block's points; if not, it may be a number, which loads with masks do not take


class Needs:
    """What is learned while a kernel is written, and said before it: collected, never taken back."""

    def __init__(self) -> None:
        self.functions: set[str] = set()  # of the module, or libdevice
        self.checked: list[Op] = []  # positions at which a program may stop
        self.divided: list[Expr] = []  # sums, to which a zero is added that compilers do not know
