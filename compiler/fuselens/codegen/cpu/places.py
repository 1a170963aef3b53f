"""What holds at a place of a kernel's text, and what is printed there: frozen values that writers pass along.

Inside a loop or a branch holds what holds around it, with changes (``dataclasses.replace``). So nothing is set and set back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
from sympy import Expr

from ...ir.loops import Axis, Op
from .choices.fetches import Fetch
from .scans import Scan


@dataclass(frozen=True, slots=True)
class Place:
    """What holds where text is printed."""

    left: str  # lanes of a vector that exist, as C++
    across: int = 1  # vectors side by side, at most
    strip: tuple[Expr, str] | None = None  # where their number is only known when it runs: columns, and their end
    looping: bool = False  # whether a phase's loops lie around
    whole: bool = False  # whether it is in a tile that is whole: then all vectors are

    @property
    def many(self) -> str:
        """What makes a declaration an array, where vectors lie side by side."""
        return f"[{self.across}]" if self.across > 1 else ""

    @property
    def each(self) -> str:
        """What makes such an array's name its element."""
        return "[u]" if self.across > 1 else ""

    @property
    def each_vector(self) -> str:
        """The loop over vectors side by side."""
        return f"for (long u = 0; u < {'count' if self.strip else self.across}; ++u)"


@dataclass(frozen=True, slots=True)
class BodyLoop:
    """A loop of a phase: its axis, bounds, and whether it steps by vectors. Bounds inside of the axis are multiples of
    ``quantum``."""

    axis: Axis
    lo: str
    hi: str
    vector: bool
    quantum: int = 1


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction under way: variable names and how partial results combine."""

    op: Op
    kind: str
    register: str  # of the folded values
    dtype: str
    place: str  # argmax and argmin: register kind of the indices
    rising: bool  # each lane sees its indices in order
    name: str
    into: str = ""  # the accumulator that the body now being printed adds to

    @property
    def extreme(self) -> str:
        """The first part of the names of what argmax and argmin call; "" for others."""
        return f"arg_{self.kind[3:]}" if self.kind in ("argmax", "argmin") else ""


@dataclass(frozen=True, slots=True)
class Body:
    """Operations to be printed inside loops.

    Those who ask for a body give what is above the line; :meth:`.body.BodyWriter.arranged` chooses what is below it.
    """

    ops: tuple[Op, ...]
    loops: tuple[BodyLoop, ...]  # from the outermost
    vector: str  # the axis that vectors run along
    position: Expr = sympy.S.Zero  # the flat position in the phase's axes
    ahead: tuple[Fetch, ...] = ()  # to be asked for meanwhile
    in_tiles: Mapping[str, str] = field(default_factory=dict)  # loads and stores of a tile, and where their element is
    # ---
    levels: Mapping[str, int] = field(default_factory=dict)  # by op, the depth of the loop that it belongs to
    partners: Mapping[str, Op | None] = field(default_factory=dict)  # see AccessWriter.paired
    divisors: tuple[str, ...] = ()  # values that its innermost loop divides by and does not change
    inverses: Mapping[str, str] = field(default_factory=dict)  # of divisors, the variables that have 1 / each
    folds: tuple[Fold, ...] = ()
    scans: Mapping[str, Scan] = field(default_factory=dict)
