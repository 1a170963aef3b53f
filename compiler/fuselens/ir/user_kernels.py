"""Triton kernels of the program as operators of a graph: one writes to its operands, the other gives their new values.

A captured graph calls ``fuselens::launch``, which does what the program's own call does. Functionalization makes
``fuselens::launched`` of it. That one is lowered to the first again, which writes to memory that nobody else reads.

Autograd knows nothing of such a call, as in eager: results have no history, and tensors that are written to count no write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import torch_private
from ..torch_private.result_layouts import is_dense

if TYPE_CHECKING:
    from .loops import Extern  # which imports sympy; a warm start does not

TENSOR, INTEGER, FLOAT, CONSTANT = "tensor", "integer", "float", "constant"
Slot = tuple[str, Any]
"""An argument: a kind, and its place among the operator's operands of that kind; of a constant, the object itself."""


@dataclass(frozen=True, eq=False)
class Launch:
    """A call of the program's kernel, but for the operands of its node.

    ``grids`` has the numbers of programs for each choice of the parameters ``chosen``, which measuring or rules of Triton's
    decide at run time. ``digest`` says what the kernel and its constants are; "" where that has no name that means the same in
    another process.
    """

    name: str
    kernel: Any
    positional: tuple[Slot, ...]
    keywords: Mapping[str, Slot]
    grids: Mapping[tuple[Any, ...], tuple[Slot, ...]]
    chosen: tuple[str, ...] = ()
    digest: str = ""
    file: str = ""
    line: int = 0
    source: str = field(default="", repr=False)

    def run(
        self, tensors: Sequence[Tensor], integers: Sequence[int], floats: Sequence[float], views: Sequence[int]
    ) -> None:
        operands = {TENSOR: list(_viewed(tensors, views)) if views else tensors, INTEGER: integers, FLOAT: floats}

        def given(slot: Slot) -> Any:
            kind, place = slot
            return place if kind == CONSTANT else operands[kind][place]

        def grid_of(parameters: Mapping[str, Any]) -> tuple[Any, ...]:
            found = self.grids.get(tuple(_plain(parameters[name]) for name in self.chosen))
            if found is None:
                raise RuntimeError(
                    f"the kernel {self.name} is launched with parameters that were not there while tracing"
                )
            return tuple(map(given, found))

        grid: Any = grid_of if self.chosen else grid_of({})
        self.kernel[grid](*map(given, self.positional), **{k: given(v) for k, v in self.keywords.items()})


def _plain(value: Any) -> Any:
    """A parameter's value: Triton's interpreter puts tensors around numbers."""
    value = getattr(value, "value", value)  # of a constexpr
    handle = getattr(value, "handle", None)
    return handle.data.item() if handle is not None else value


_launches: dict[str, Launch] = {}


def register(launch: Launch) -> str:
    """The name by which graphs call it. What has a digest has the same name in each process."""
    name = f"{launch.name}.{launch.digest[:16] or f'unnamed{len(_launches)}'}"
    _launches[name] = launch
    return name


def launch_of(name: str) -> Launch:
    return _launches[name]


# --- operators --------------------------------------------------------------------------------------------------------

_library = torch.library.Library("fuselens", "FRAGMENT")
_PARAMETERS = "int[] written, SymInt[] integers, float[] floats, SymInt[] views"
_library.define(f"launch(str kernel, Tensor(a!)[] tensors, {_PARAMETERS}) -> ()")
_library.define(f"launched(str kernel, Tensor[] tensors, {_PARAMETERS}) -> Tensor[]")
_library.define("count_write(Tensor(a!) written) -> ()")
LAUNCH: Any = torch.ops.fuselens.launch.default
LAUNCHED: Any = torch.ops.fuselens.launched.default


class NotFunctional(RuntimeError):
    """What a kernel does cannot be told by new values of the tensors that it writes to."""


def launches(node: Extern) -> bool:
    """Whether a call is one of a kernel of the program."""
    return node.target in (str(LAUNCH), str(LAUNCHED))


def _launch(kernel: str, tensors: list[Tensor], *numbers: Any) -> None:
    # the tensors that are written to; integers and floats of the call; where its arguments lie (see `_Memory`)
    _, integers, floats, views = numbers
    _launches[kernel].run(tensors, integers, floats, views)


def _launched(kernel: str, tensors: list[Tensor], *numbers: Any) -> list[Tensor]:
    given, written = list(tensors), numbers[0]
    for i in written:
        given[i] = _like(tensors[i]).copy_(tensors[i])
    _launch(kernel, given, *numbers)
    return [given[i] for i in written]


def _like(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)


def _functional(kernel: str, tensors: list[Tensor], *numbers: Any) -> None:
    """Of functional wrappers: they get their new values, of which autograd is not told."""
    written, integers, floats, _ = numbers
    memory = _Memory(_launches[kernel].name, tensors, written)
    with torch_private.without_functionalization():
        values = [torch_private.from_functional(t) for t in memory.tensors]
        made = LAUNCHED(kernel, values, memory.written, integers, floats, memory.views)
    for i, value in zip(memory.written, made, strict=True):
        torch_private.replace_value(memory.tensors[i], value)


class _Memory:
    """The tensors that arguments lie in: themselves, or the whole memory of which the kernel may write a part.

    A kernel sees addresses only: it may write beside the elements of a view, and read through one what it wrote through another.
    ``views`` has for each argument its tensor and -1, or how many dimensions it has, its sizes, its strides and where it begins;
    it is empty where all arguments are tensors.
    """

    def __init__(self, name: str, arguments: list[Tensor], written: list[int]) -> None:
        self.name, self.tensors, self.written = name, list[Tensor](), list[int]()
        keys = [torch_private.storage_key(t) for t in arguments]
        changed = {keys[i] for i in written}
        places: dict[int, int] = {}
        views: list[int] = []
        for t, key in zip(arguments, keys, strict=True):
            if key not in changed:
                self.tensors.append(t)
                views += (len(self.tensors) - 1, -1)
                continue
            if key not in places:
                places[key] = len(self.tensors)
                self.tensors.append(self._whole([a for a, k in zip(arguments, keys, strict=True) if k == key]))
            views += self._place(t, places[key])
        self.written = sorted(places.values())
        plain = len(self.tensors) == len(arguments) and len(views) == 2 * len(arguments)
        self.views = [] if plain else views

    def _whole(self, members: list[Tensor]) -> Tensor:
        """All of the memory in which these lie."""
        for t in members:
            base = torch_private.tensor_base(t)
            for whole in (t, base):
                if whole is not None and _is_whole(whole):
                    if any(m.dtype != whole.dtype for m in members):
                        raise NotFunctional(
                            f"the Triton kernel {self.name} writes to memory that is seen in two dtypes"
                        )
                    return whole
        raise NotFunctional(f"the Triton kernel {self.name} writes to a part of memory of which the rest is not known")

    def _place(self, t: Tensor, place: int) -> list[Any]:
        whole = self.tensors[place]
        if t is whole:
            return [place, -1]
        return [place, t.dim(), *t.shape, *t.stride(), t.storage_offset() - whole.storage_offset()]


def _is_whole(t: Tensor) -> bool:
    """Whether a tensor fills its memory."""
    value = torch_private.from_functional(t)
    bytes_ = value.untyped_storage().nbytes()
    return (
        is_dense(value) and bool(value.storage_offset() == 0) and bool(value.numel() * value.element_size() == bytes_)
    )


def _viewed(tensors: Sequence[Tensor], views: Sequence[int]) -> Iterator[Tensor]:
    """The arguments of a kernel, which lie in ``tensors``."""
    numbers = iter(views)
    for place in numbers:
        dimensions = next(numbers)
        if dimensions < 0:
            yield tensors[place]
            continue
        sizes, strides = ([next(numbers) for _ in range(dimensions)] for _ in range(2))
        yield tensors[place].as_strided(sizes, strides, tensors[place].storage_offset() + next(numbers))


_library.impl("launch", _launch, "CompositeExplicitAutograd")
_library.impl("launch", lambda *_: None, "Meta")
_library.impl("launch", _functional, "Functionalize")
_library.impl("launched", _launched, "CompositeExplicitAutograd")
_library.impl("launched", lambda _, tensors, written, *__: [_like(tensors[i]) for i in written], "Meta")
for _key in (
    "CompositeExplicitAutograd",
    "Meta",
    "Functionalize",
):  # what an operator of the program counts, kernels do not
    _library.impl("count_write", lambda t: torch.autograd.graph.increment_version(t), _key)
for _name in ("launch", "launched", "count_write"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
