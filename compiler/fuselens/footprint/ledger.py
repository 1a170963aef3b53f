"""What a program allocates and frees, while it runs on tensors without memory.

A :class:`Ledger` surrounds a program. Operators that run by themselves are heard as they are dispatched; graphs that are compiled
say themselves what their programs allocate (:mod:`.imagined`). Memory is freed when the last tensor of it is gone, as ever: the
program, autograd and the optimizer decide that, and nothing of it is modelled.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_private
from ..inputs.structures import tensors_in
from ..inputs.weightless import Weightless
from ..record.report import Span
from . import costs, workspaces

LEAST = 1 << 10
"""Elements from which values are not computed: what a program decides by is smaller."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_OPTIMIZERS = "/torch/optim/"


@dataclass(slots=True)
class Block:
    """Memory that was allocated. ``kind`` is what it is for, where that is known before the program has run."""

    bytes: int
    phase: str  # "before" | "forward" | "backward" | "optimizer"
    what: str  # the operator or kernel
    spans: tuple[Span, ...]
    kind: str = ""


class Ledger(torch_private.Bystander, Weightless):
    """Hears all that is allocated inside. ``events`` are numbers of blocks, from 1: allocated, or, negative, freed. ``is_library``
    says which files are not the user's; ``architecture`` is the GPU's that the program is for, 0 where that is the CPU."""

    def __init__(self, is_library: Callable[[str], bool], machine: costs.Machine, architecture: int = 0) -> None:
        super().__init__(LEAST)
        self.blocks: list[Block] = []
        self.events: list[int] = []
        self.machine = machine
        self.architecture = architecture
        self.seconds = 0.0  # what all that ran would take
        self.undecided: list[Span | None] = []  # where data decides a size
        self.graphs: list[str] = []  # the compiled graphs that ran
        self.phase = ""  # where the one who runs the program says it
        self._is_library = functools.cache(is_library)
        self._known: dict[int, tuple[Any, int]] = {}  # address of a storage → what tells of its end, and its block
        self._quiet = 0
        self._silent = False
        self.outside: set[types.CodeType] = set()  # of who runs the program: there is no line of it in their callers
        self._had_backward = False
        self.updated = False  # whether the program has changed parameters in this step
        self._workspaces: set[bool] = set()  # of which threads: of the backward, and of all else

    # --- what others tell

    def given(self, tensor: Any, kind: str) -> None:
        """A tensor that is there before the program runs, or whose ``kind`` is known now."""
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            number = self._note(tensor, "", lambda: (), "before")
            if number is not None:
                self.blocks[number - 1].kind = kind

    def allocate(self, count: int, what: str, spans: tuple[Span, ...], phase: str) -> int:
        """The number of a new block."""
        self.blocks.append(Block(count, phase, what, spans))
        self.events.append(len(self.blocks))
        return len(self.blocks)

    def release(self, number: int) -> None:
        self.events.append(-number)

    def adopt(self, number: int, storage: Any) -> None:
        """The block is the memory of ``storage``, and freed with it."""
        key = storage._cdata
        self._known[key] = weakref.ref(storage, functools.partial(self._died, key)), number

    def _died(self, key: int, _: object) -> None:
        self.release(self._known.pop(key)[1])

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the block in which a tensor lies."""
        known = self._known.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[1]

    def scratch(
        self, packet: str, operands: Sequence[workspaces.Tensor], results: Sequence[workspaces.Tensor], spans: tuple[Span, ...],
        phase: str, *, settles: bool = False,
    ) -> None:  # fmt: skip
        """What the library behind an operator takes beside its result, and, where a graph ``settles`` that, a copy of it."""
        backward = phase == "backward"
        if self.architecture and workspaces.multiplies(packet) and backward not in self._workspaces:
            self._workspaces.add(backward)
            number = self.allocate(workspaces.kept(self.architecture), "cuBLAS", (), phase)
            self.blocks[number - 1].kind = "libraries"
        if self.architecture:
            count = workspaces.taken(packet, operands, results, settles=settles)
        else:
            count = workspaces.copied(packet, operands)
        if count:
            number = self.allocate(count, packet, spans, phase)
            self.blocks[number - 1].kind = "libraries"
            self.release(number)

    @contextlib.contextmanager
    def quiet_values(self) -> Iterator[None]:
        """Inside, large values are not computed, and nothing is noted: for what is there before the step."""
        self._silent, before = True, self._silent
        try:
            yield
        finally:
            self._silent = before

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside, operators run as they are, and what they allocate is told by others."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def begin_step(self) -> int:
        """The number of events so far."""
        self._had_backward = self.updated = False
        self.seconds = 0.0
        self.undecided.clear()
        self.graphs.clear()
        return len(self.events)

    def phase_of(self, graph_phase: str = "", updates: bool = False) -> str:
        """The phase of the step that runs now. A graph that is no backward and ``updates`` parameters is the optimizer's."""
        if graph_phase == "backward" or torch_private.in_backward():
            self._had_backward = True
            return "backward"
        if updates:
            self.updated = True
            return "optimizer" if self._had_backward else "forward"
        return self.phase or "forward"

    # --- what is heard

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if self._quiet or torch_private.fakes_are_made():
            return func(*args, **(kwargs or {}))
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # their parts come by themselves
        result = self._bounded(func, types, args, kwargs)
        if self._silent:
            return result
        place: list[tuple[tuple[Span, ...], str]] = []

        def where() -> tuple[tuple[Span, ...], str]:
            if not place:
                place.append(self._place(sys._getframe(1)))
            return place[0]

        for k, tensor in enumerate(tensors_in((args, kwargs))):
            number = self._note(tensor, "", lambda: (), "before")  # one that was there before
            if k == 0 and number is not None and not self.updated and self.blocks[number - 1].kind == "parameters":
                self.updated = func._schema.is_mutable and self._had_backward and not torch_private.in_backward()
        made = [t for t in tensors_in(result) if type(t) in _PLAIN and t.untyped_storage()._cdata not in self._known]
        for tensor in made:
            spans, phase = where()
            self._note(tensor, func.name(), lambda spans=spans: spans, phase)
        if func.name() == "aten::mkldnn_rnn_layer" and args[-1]:  # it trains
            self._keep(result[3], workspaces.kept_by_layer(args, bool(self.architecture)), func.name(), *where())
        if made:
            packet = func.overloadpacket.__name__
            of = workspaces.of_tensors
            self.scratch(packet, of([t for t in tensors_in(args) if type(t) in _PLAIN]), of(made), *where())
        self.seconds += costs.of_operator(func, args, kwargs or {}, result, self.machine)
        return result

    def _keep(self, tensor: torch.Tensor, count: int, what: str, spans: tuple[Span, ...], phase: str) -> None:
        """The tensor, whose size no rule knows, takes so many bytes."""
        storage = tensor.untyped_storage()
        self.release(self._known.pop(storage._cdata)[1])
        self.adopt(self.allocate(count, what, spans, phase), storage)

    def _bounded(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """What the operator gives; where data decides how much, as much as it can be."""
        if torch.Tag.dynamic_output_shape not in getattr(func, "tags", ()):
            return super().__torch_dispatch__(func, types, args, kwargs)
        masks = [t for t in tensors_in(args) if t.dtype == torch.bool]
        if func.name() == "aten::index.Tensor" and not masks:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self.undecided.append(next(iter(self._place(sys._getframe(2))[0]), None))
        if func.name() == "aten::nonzero":
            return args[0].new_zeros((args[0].numel(), args[0].dim()), dtype=torch.int64)
        if func.name() == "aten::masked_select":
            return args[0].new_zeros(torch.broadcast_shapes(args[0].shape, args[1].shape)).flatten()
        if func.name() == "aten::index.Tensor":
            indices = [i for index in args[1] for i in _as_indices(index)]
            return super().__torch_dispatch__(func, types, (args[0], indices), kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _note(self, tensor: Any, what: str, spans: Callable[[], tuple[Span, ...]], phase: str) -> int | None:
        """The block of a tensor, which is new where nothing is known of its storage."""
        if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.device.type == "meta":
            return None
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        size = storage.nbytes()
        if known is not None:
            if self.blocks[known[1] - 1].bytes == size or not size:
                return known[1]
            self.release(self._known.pop(storage._cdata)[1])  # it was resized
        number = self.allocate(size, what, spans(), phase)
        self.adopt(number, storage)
        return number

    def _place(self, frame: types.FrameType | None) -> tuple[tuple[Span, ...], str]:
        """The line of the user's that runs now, and the phase."""
        phase, found = self.phase_of(), ()
        while frame is not None and frame.f_code not in self.outside:
            name = frame.f_code.co_filename
            if phase == "forward" and _OPTIMIZERS in name.replace("\\", "/"):
                phase = "optimizer"
            if not self._is_library(name):
                line = frame.f_lineno
                found = (_span(frame, line),) if line else ()
                break
            frame = frame.f_back
        return found, phase


def _span(frame: types.FrameType, line: int) -> Span:
    positions = list(frame.f_code.co_positions())
    first, last, column, end = positions[frame.f_lasti // 2]
    if first is None or last is None or column is None or end is None:
        return Span(frame.f_code.co_filename, line, 0, line, 0)
    return Span(frame.f_code.co_filename, first, column, last, end)


def _as_indices(index: Any) -> list[Any]:
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
        return [index.new_zeros(index.numel(), dtype=torch.int64) for _ in range(index.dim())]
    return [index]
