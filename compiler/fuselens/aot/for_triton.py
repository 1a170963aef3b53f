"""Functions of PyTorch as parts of Triton programs: a device function over blocks of values, or a kernel to launch.

Nothing of the frame is guarded: a function is traced once, for the dtypes (and, for a kernel, the sizes) that it is made for.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_private
from ..autograd.decompositions import table
from ..capture.breaks import CodedError
from ..codegen.triton.kernels import to_triton
from ..codegen.triton.point_function import point_function
from ..codegen.triton.scalar_ops import FUNCTIONS
from ..ir.contracts.source import Unsupported
from ..ir.dtypes import DTYPES
from ..ir.loops import Buffer, Graph
from ..lowering.lower import lower
from ..record.diagnostics import make
from ..rewrite.simplify import simplify
from ..schedule.fuse import fuse
from ..schedule.gpu.split import for_gpu
from ..schedule.order import order
from ..system.generated_modules import module_of
from .container import digest

_POINTS = 4093  # of an example: a prime, which no program asks for
_TAKEN = frozenset(("tl", "triton", "libdevice", "float", *FUNCTIONS))  # what a module of kernels has under these names


class TritonError(CodedError):
    """A function has no form that a Triton program could call, or a kernel is given other arguments than it takes (FL934)."""


def _refuse(what: str, why: str) -> TritonError:
    return TritonError(make("FL934", None, what=what, why=why))


# --- device functions ----------------------------------------------------------------------------------------------------


def device_function(fn: Callable[..., Any], dtypes: torch.dtype | Sequence[torch.dtype]) -> Any:
    """See :func:`fuselens.triton_function`."""
    name = _name(fn)
    parameters = _blocks(fn, name)
    given = [dtypes] * len(parameters) if isinstance(dtypes, torch.dtype) else list(dtypes)
    if len(given) != len(parameters):
        raise _refuse(name, f"it has {len(parameters)} parameters without defaults, and {len(given)} dtypes are given")
    graph = _graph(fn, name, [torch.empty(_POINTS, dtype=d) for d in given], dynamic=False)
    try:
        text = point_function(graph, name, parameters)
    except Unsupported as error:
        raise _refuse(name, str(error)) from None
    return getattr(_module(text), name)


def _blocks(fn: Callable[..., Any], name: str) -> list[str]:
    """The parameters that are blocks: those without defaults."""
    found = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _refuse(name, f"its parameter {parameter.name} is not positional")
        if parameter.default is parameter.empty:
            if parameter.name in _TAKEN:
                raise _refuse(name, f"its parameter {parameter.name} is called as what Triton's programs use")
            found.append(parameter.name)
    return found


# --- kernels ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """A pointer that a kernel takes. ``shape`` and ``strides`` are numbers, or text in the names of sizes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    strides: tuple[int | str, ...]
    written: bool


class TritonKernel:
    """A function as one Triton kernel: ``kernel[grid](*pointers, *sizes)`` launches it as Triton does, ``kernel(*inputs)`` as a
    function, which returns new tensors.

    ``function`` is Triton's own object, ``text`` its module. ``arguments`` are the pointers in order: the inputs that it reads,
    by the names of parameters, then the results ``out0``, ``out1``, and so on. ``sizes`` are the names of the integers that
    follow, ``sizes_of(*inputs)`` their values. ``options`` are Triton's, such as ``num_warps``, unless a launch says others.
    """

    def __init__(self, graph: Graph, name: str, parameters: Sequence[str]) -> None:
        self.name = name
        source = to_triton(graph)
        (info,) = source.kernels
        if info.launch.get("cluster", 1) > 1 or len(info.arguments) > info.pointers:
            raise Unsupported("its kernel has a form that only our launcher starts")
        self.text, self._graph, self._inputs = source.text, graph, tuple(parameters)
        self.function = getattr(_module(source.text), info.function)
        self.options: Mapping[str, Any] = dict(info.launch["options"])
        self.sizes = info.sizes
        names = dict(zip(graph.inputs, parameters, strict=True))
        names |= {graph.buffers[o].owner: f"out{i}" for i, o in enumerate(graph.outputs)}
        self._storages, self._programs = info.arguments, info.launch["grid"]
        self.arguments = tuple(self._argument(names[s], s, s in info.written) for s in info.arguments)

    def _argument(self, name: str, storage: str, written: bool) -> Argument:
        buffer = self._graph.buffers[storage]
        shape, strides = (
            tuple(int(n) if n.is_Integer else str(n) for n in ns) for ns in (buffer.sizes, buffer.strides)
        )
        return Argument(name, DTYPES[buffer.dtype], shape, strides, written)

    def grid(self, *sizes: int) -> tuple[int]:
        """How many programs there are for these ``sizes``."""
        return (_number(self._programs, dict(zip(self.sizes, sizes, strict=True))),)

    def sizes_of(self, *inputs: torch.Tensor) -> tuple[int, ...]:
        """The integers of a launch, for inputs that the function would be given."""
        where = [self._graph.symbols[name] for name in self.sizes]
        return tuple(inputs[i].shape[d] for i, d in where)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **options: self.function[grid](*args, **{**self.options, **options})

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if len(inputs) != len(self._inputs):
            raise _refuse(self.name, f"it takes {', '.join(self._inputs)}, and got {len(inputs)} arguments")
        values = {name: inputs[i].shape[d] for name, (i, d) in self._graph.symbols.items()}
        sizes = self.sizes_of(*inputs)
        made: dict[str, torch.Tensor] = {}
        for name, parameter, tensor in zip(self._graph.inputs, self._inputs, inputs, strict=True):
            self._require(name, parameter, tensor, values)
            made[name] = tensor
        for output in self._graph.outputs:
            buffer = self._graph.buffers[self._graph.buffers[output].owner]
            size, stride = _layout(buffer, values)
            made.setdefault(
                buffer.name, torch.empty_strided(size, stride, dtype=DTYPES[buffer.dtype], device=inputs[0].device)
            )
        self[self.grid(*sizes)](*(made[s] for s in self._storages), *sizes)
        results = tuple(self._view(made, output, values) for output in self._graph.outputs)
        return results[0] if len(results) == 1 else results

    def _require(self, name: str, parameter: str, tensor: torch.Tensor, values: Mapping[str, int]) -> None:
        buffer = self._graph.buffers[name]
        wanted, found = (
            (dtype, list(shape), [s for s, n in zip(strides, shape, strict=True) if n > 1])
            for dtype, shape, strides in (
                (DTYPES[buffer.dtype], *_layout(buffer, values)),
                (tensor.dtype, tensor.shape, tensor.stride()),
            )
        )
        if found != wanted:
            shown = [f"{str(d).removeprefix('torch.')}{s} with strides {t}" for d, s, t in (wanted, found)]
            raise _refuse(self.name, f"{parameter} is to be {shown[0]}, and is {shown[1]}")

    def _view(self, made: Mapping[str, torch.Tensor], output: str, values: Mapping[str, int]) -> torch.Tensor:
        buffer = self._graph.buffers[output]
        whole = made[buffer.owner]
        if buffer.name == buffer.owner:
            return whole
        return whole.as_strided(*_layout(buffer, values), _number(buffer.offset, values))

    def __repr__(self) -> str:
        return f"<fuselens.TritonKernel {self.name}({', '.join((*(a.name for a in self.arguments), *self.sizes))})>"


def _number(expression: Any, values: Mapping[str, int]) -> int:
    return int(expression.subs({s: values[s.name] for s in expression.free_symbols}))


def _layout(buffer: Buffer, values: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides, where sizes have these values."""
    return tuple(_number(n, values) for n in buffer.sizes), tuple(_number(n, values) for n in buffer.strides)


def kernel(fn: Callable[..., Any], examples: Sequence[torch.Tensor], dynamic: bool) -> TritonKernel:
    """See :func:`fuselens.triton_kernel`."""
    name = _name(fn)
    for number, example in enumerate(examples):
        if not isinstance(example, torch.Tensor):
            raise _refuse(name, f"argument {number} is a {type(example).__name__}, and kernels take tensors")
    parameters = [p.name for p in inspect.signature(fn).parameters.values()][: len(examples)]
    graph = _graph(fn, name, examples, dynamic=dynamic)
    for node in graph.externs():
        raise _refuse(name, f"{node.target} is the vendor's, and no kernel of ours")
    if len(graph.nodes) != 1:
        made = ", ".join(node.name for node in graph.nodes) or "none"
        raise _refuse(name, f"it is to become one kernel, and becomes {len(graph.nodes)}: {made}")
    for output in graph.outputs:
        if not isinstance(output, str) or graph.buffers[output].owner in graph.inputs:
            raise _refuse(name, "it returns an argument, or what is no tensor")
    if graph.constants:
        raise _refuse(name, "it reads a tensor that is not an argument")
    try:
        return TritonKernel(graph, name, parameters)
    except Unsupported as error:
        raise _refuse(name, str(error)) from None


# --- what both do -------------------------------------------------------------------------------------------------------


def _name(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", type(fn).__name__)
    return name if name.isidentifier() and not keyword.iskeyword(name) and name not in _TAKEN else "function"


def _graph(fn: Callable[..., Any], name: str, examples: Sequence[torch.Tensor], *, dynamic: bool) -> Graph:
    """The function as fused loops for a GPU, without gradients. Raises TritonError."""
    try:
        with torch.no_grad(), torch_private.autocast_off():
            module = torch_private.traced(fn, examples, dict(table()), symbolic=dynamic)
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.copy_.default:
                raise _refuse(name, "it writes to an argument")
        return order(for_gpu(fuse(lower(simplify(module), name=name, device="cuda"))))
    except TritonError:
        raise
    except Exception as error:
        raise _refuse(name, f"it cannot be traced: {type(error).__name__}: {error}".split("\n")[0]) from error


def _module(text: str) -> Any:
    return module_of(f"fuselens_triton_{digest(text.encode())[:16]}", text)
