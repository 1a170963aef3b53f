"""What a rank communicates while a function runs: each collective in order, with the line that makes it.

All of torch's ways to communicate are operators in the end, so a dispatch mode hears them: the functions of torch.distributed, the
functional collectives of distributed tensors, the hooks of FSDP, and the buckets of DistributedDataParallel.

A collective of the backward is told at the line of the forward whose gradient needs it, where autograd knows that.
"""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from .. import torch_private
from ..capture.classify import is_installed
from ..record.report import Frame, Span
from ..runtime.ranks import told
from .costs import sent_and_received
from .world import World

_ALONE, _GATHERED = 1, 0  # what the size of a collective is: that of its operand, or of all ranks' operands together
_KINDS: dict[str, tuple[str, int, int]] = {  # operator → the collective, the operand among its arguments, and its size
    "c10d.allreduce_": ("all_reduce", 0, _ALONE),
    "c10d.allreduce_coalesced_": ("all_reduce", 0, _ALONE),
    "c10d.broadcast_": ("broadcast", 0, _ALONE),
    "c10d.reduce_": ("reduce", 0, _ALONE),
    "c10d.allgather_": ("all_gather", 1, _GATHERED),
    "c10d._allgather_base_": ("all_gather", 1, _GATHERED),
    "c10d.allgather_coalesced_": ("all_gather", 1, _GATHERED),
    "c10d.allgather_into_tensor_coalesced_": ("all_gather", 1, _GATHERED),
    "c10d.reduce_scatter_": ("reduce_scatter", 1, _ALONE),
    "c10d._reduce_scatter_base_": ("reduce_scatter", 1, _ALONE),
    "c10d.reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1, _ALONE),
    "c10d.gather_": ("gather", 1, _GATHERED),
    "c10d.scatter_": ("scatter", 0, _GATHERED),  # what it gives: the root alone has an operand
    "c10d.alltoall_": ("all_to_all", 1, _ALONE),
    "c10d.alltoall_base_": ("all_to_all", 1, _ALONE),
    "c10d.send": ("send", 0, _ALONE),
    "c10d.recv_": ("recv", 0, _ALONE),
    "c10d.recv_any_source_": ("recv", 0, _ALONE),
    "c10d.barrier": ("barrier", 0, _ALONE),
    "_c10d_functional.all_reduce": ("all_reduce", 0, _ALONE),
    "_c10d_functional.all_reduce_": ("all_reduce", 0, _ALONE),
    "_c10d_functional.all_reduce_coalesced": ("all_reduce", 0, _ALONE),
    "_c10d_functional.all_reduce_coalesced_": ("all_reduce", 0, _ALONE),
    "_c10d_functional.broadcast": ("broadcast", 0, _ALONE),
    "_c10d_functional.broadcast_": ("broadcast", 0, _ALONE),
    "_c10d_functional.all_gather_into_tensor": ("all_gather", 0, _GATHERED),
    "_c10d_functional.all_gather_into_tensor_out": ("all_gather", 0, _GATHERED),
    "_c10d_functional.all_gather_into_tensor_coalesced": ("all_gather", 0, _GATHERED),
    "_c10d_functional.reduce_scatter_tensor": ("reduce_scatter", 0, _ALONE),
    "_c10d_functional.reduce_scatter_tensor_coalesced": ("reduce_scatter", 0, _ALONE),
    "_c10d_functional.all_to_all_single": ("all_to_all", 0, _ALONE),
}  # fmt: skip
_ROOTS = ("root_rank", "src")  # arguments that name a rank by its place in the group


@dataclass(frozen=True, slots=True)
class Heard:
    """One collective: ``size`` is that which all ranks have together, in bytes. ``about`` is what has to be alike on all ranks."""

    name: str
    group: str
    ranks: tuple[int, ...]
    of: str
    about: str
    size: int
    sent: int
    received: int
    phase: str
    stack: tuple[Frame, ...]  # of the program, outermost first

    @property
    def span(self) -> Span | None:
        return self.stack[-1].span if self.stack else None


class Listening(torch_private.RecordingMode):
    """Inside, what the program communicates is ``heard``. ``each`` is told of the bytes of every collective that gathers, before it
    runs."""

    def __init__(self, world: World, each: Callable[[int], None] = lambda gathered: None) -> None:
        super().__init__()
        self.heard: list[Heard] = []
        self._world, self._each = world, each
        self._listener: Any = None  # the frame that listens: what is outside of it is none of the program's

    def __enter__(self) -> Any:
        self._listener = sys._getframe(1)
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        self._listener = None
        return super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(map(torch_private.is_distributed, kinds)):  # they say what they do by operators of plain tensors
            return NotImplemented
        kind = _KINDS.get(str(func).rpartition(".")[0])
        if kind is not None:
            self._note(*kind, torch_private.arguments_of(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, operand: int, counts: int, given: dict[str, Any]) -> None:
        group = torch_private.group_of(given)
        ranks = tuple(distributed.get_process_group_ranks(group))
        tensors = [] if name == "barrier" else list(_tensors(list(given.values())[operand]))
        size = sum(t.numel() * t.element_size() for t in tensors) * (len(ranks) if counts == _GATHERED else 1)
        if name == "all_gather":
            self._each(size)
        rest = [torch_private.reduction_of(given["reduce_op"])] if "reduce_op" in given else []
        rest += [str(given[root]) for root in _ROOTS if root in given]
        root = any(given.get(root) == ranks.index(self._world.rank) for root in _ROOTS)
        of = _described(tensors)
        alike = "rows" if name == "all_to_all" else of  # what each rank sends to which is its own
        phase = "backward" if torch_private.in_backward() else "forward"
        moved = sent_and_received(name, size, len(ranks), root)
        about = told(name, alike, *rest)
        self.heard.append(
            Heard(name, self._world.group(group), ranks, of, about, size, *moved, phase, _stack(self._listener))
        )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _described(tensors: list[torch.Tensor]) -> str:
    """``float32 [4, 16]``; of several alike ``8 × float32 [4, 16]``."""
    each = list(dict.fromkeys(f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in tensors))
    if len(each) == 1 and len(tensors) > 1:
        return f"{len(tensors)} × {each[0]}"
    return ", ".join(each)


# --- where ------------------------------------------------------------------------------------------------------------


def _stack(listener: types.FrameType) -> tuple[Frame, ...]:
    """The program's calls that lead from the listener to here; in a backward those of the forward, where they are known."""
    forward = torch_private.lines_of_forward()
    ours = max((k for k, (file, *_) in enumerate(forward) if file == listener.f_code.co_filename), default=-1)
    known = [
        Frame(function, _line(file, line)) for file, line, function in forward[ours + 1 :] if not is_installed(file)
    ]
    if known:
        return tuple(known[-_DEEPEST:])
    found: list[Frame] = []
    frame = sys._getframe(2)
    while frame is not listener and frame is not None and len(found) < _DEEPEST:
        if not is_installed(frame.f_code.co_filename):
            found.append(Frame(frame.f_code.co_qualname, _of_frame(frame)))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(reversed(found))


_DEEPEST = 12


def _of_frame(frame: Any) -> Span:
    code = frame.f_code
    line, end_line, column, end_column = list(code.co_positions())[frame.f_lasti // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return _line(code.co_filename, frame.f_lineno)
    return Span(code.co_filename, line, column, end_line, end_column)


def _line(file: str, line: int) -> Span:
    """A line without its indentation."""
    text = linecache.getline(file, line).rstrip()
    start = len(text) - len(text.lstrip())
    return Span(file, line, start, line, max(len(text.encode()), start + 1))
