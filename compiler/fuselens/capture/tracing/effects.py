"""What the program did to existing objects while it was traced: the code after the graph does it again.

:class:`Effects` notes writes to containers, objects, cells and globals. Nothing is written while tracing, so reads look
here first. :class:`Exceptions` notes how exceptions were made and where they were raised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..breaks import Break, Raised
from ..frame.resuming import Place
from ..values.algebra import CellValue, DictValue, Known, ObjectValue, SequenceValue, SetValue, TensorValue, Value
from .graphs import Graphs

Container = SequenceValue | DictValue | SetValue


class Effects:
    """The writes of one trace, each kind in the order of the program. A graph inside (see ``graphs``) may have none."""

    def __init__(self, graphs: Graphs) -> None:
        self.mutated: dict[int, Container] = {}  # existing containers whose contents changed, by value id
        self.mutations = 0  # of any container
        self.attributes: dict[
            tuple[int, str], tuple[ObjectValue | TensorValue | Known, Value]
        ] = {}  # assigned on objects
        self.dressed: set[int] = set()  # ids of the tensors among those
        self.globals: dict[tuple[int, str], tuple[dict[str, Any], Value]] = {}  # by id of the namespace, and name
        self.cells: dict[int, CellValue] = {}  # existing cells that were assigned, by value id
        self.calls: list[tuple[Any, tuple[Value, ...]]] = []  # of functions that only tell somebody something
        self._graphs = graphs

    def touch(self, value: Value | None, what: str) -> None:
        """A subgraph may change only objects that it made itself (None is none): it may run any number of times."""
        if self._graphs.nested and (
            value is None or value.source is not None or value.serial < self._graphs.scopes[-1].serial
        ):
            raise Break("FL110", what=what, why="it is made outside of the function that is transformed here")

    def mutate(self, value: Container) -> None:
        """Notes that an existing container differs from the object it stands for; the emitted code brings that up to date."""
        self.touch(value, f"a change of {value.describe()}")
        self.mutations += 1
        if value.source is not None:
            self.mutated[id(value)] = value

    def attributes_of(self, owner: ObjectValue | TensorValue) -> list[tuple[str, Value]]:
        """What was assigned on an object while tracing, in order."""
        if isinstance(owner, TensorValue) and id(owner) not in self.dressed:
            return []
        return [(name, value) for (i, name), (_, value) in self.attributes.items() if i == id(owner.value)]

    def changed(self, known: Value | None) -> DictValue | None:
        """The value of an existing dictionary, when the program has changed it."""
        return known if isinstance(known, DictValue) and id(known) in self.mutated else None

    def so_far(self) -> tuple[Any, ...]:
        """Equal at two moments between which the program had no effects and computed with no tensors."""
        cells = {i: c.contents for i, c in self.cells.items()}
        counts = len(self._graphs.current.nodes), self.mutations, len(self.calls)
        return *counts, dict(self.attributes), cells, dict(self.globals)


@dataclass(slots=True)
class Exceptions:
    """How the exceptions of one trace came to be, each by its id."""

    raised_at: dict[int, tuple[int, Raised]] = field(default_factory=dict)
    """The step at which it was raised first."""
    tracebacks: dict[int, tuple[ObjectValue, list[Place]]] = field(default_factory=dict)
    """Where it came by, the outermost frame first."""
    initialised: dict[int, tuple[Any, list[Value], dict[str, Value]]] = field(default_factory=dict)
    """Which C code was given which arguments, ``__new__`` (None) or an ``__init__``."""
