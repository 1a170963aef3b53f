"""What a GPU does and Triton's interpreter does not, put into the interpreter: truth values, bfloat16 that is rounded, folds as trees, programs
without an order, memory that nobody cleared. Import it after ``TRITON_INTERPRET`` is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from triton import language
from triton.runtime import interpreter as triton_interpreter

from fuselens.runtime import memory

tl: Any = language
interpreter: Any = triton_interpreter
BUILDER: Any = interpreter.InterpreterBuilder


def install() -> None:
    _comparisons_are_true_or_false()
    _bfloat16_is_rounded()
    _folds_are_trees()
    _programs_run_backwards()


def _comparisons_are_true_or_false() -> None:
    """The interpreter takes the result of a comparison for a number of the operands' type, which shows when it is repeated."""

    def of(plain: Any) -> Callable[..., Any]:
        def compare(*given: Any) -> Any:
            return interpreter.TensorHandle(plain(*given).data, tl.int1)

        return compare

    for name in dir(BUILDER):
        if name.startswith(("create_icmp", "create_fcmp")):
            setattr(BUILDER, name, of(getattr(BUILDER, name)))


def _bfloat16_is_rounded() -> None:
    """The interpreter holds the bits of bfloat16, multiplies them as integers in products, and converts only from and to float32,
    without rounding."""

    def numbers(data: numpy.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(numpy.ascontiguousarray(data)).view(torch.bfloat16)

    def cast_impl(self: Any, source: Any, dtype: Any, plain: Any = BUILDER.cast_impl) -> Any:
        data, wanted = source.data, dtype.scalar
        if tl.bfloat16 not in (source.dtype.scalar, wanted):
            return plain(self, source, dtype)
        given = numbers(data) if source.dtype.scalar == tl.bfloat16 else torch.from_numpy(numpy.ascontiguousarray(data))
        if wanted == tl.bfloat16:
            made = given.bfloat16().view(torch.uint16).numpy()
        else:
            made = given.float().numpy().astype(interpreter._get_np_dtype(dtype))
        return interpreter.TensorHandle(made.reshape(data.shape), wanted)

    def constant(_: Any, value: float) -> Any:
        return interpreter.TensorHandle(torch.tensor([value]).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)

    def ones(_: Any, dtype: Any) -> Any:
        return interpreter.TensorHandle(~numpy.zeros(1, interpreter._get_np_dtype(dtype)), dtype.scalar)

    def create_dot(self: Any, a: Any, b: Any, *given: Any, plain: Any = BUILDER.create_dot) -> Any:
        wide = (cast_impl(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return plain(self, *wide, *given)

    BUILDER.create_dot = create_dot
    BUILDER.get_all_ones_value = ones
    BUILDER.cast_impl = cast_impl
    BUILDER.get_bf16 = constant
    BUILDER.create_fp_to_fp = lambda self, source, dtype, _rounding: cast_impl(self, source, dtype)


def _folds_are_trees() -> None:
    """The interpreter folds with a function element by element, from the first on; a GPU joins halves, in an order of its own."""

    def joined(op: Any, left: list[Any], right: list[Any], dtypes: list[Any]) -> list[Any]:
        made = op.combine_fn.fn(*map(op.to_tensor, left, dtypes), *map(op.to_tensor, right, dtypes))
        return [m.handle.data for m in (made if isinstance(made, tuple) else (made,))]

    def reduce(self: Any, given: Any) -> list[Any]:
        rank, dtypes = given[0].handle.data.ndim, [g.dtype for g in given]
        if self.axis is None:
            parts = [g.handle.data.reshape(-1) for g in given]
        else:
            parts = [numpy.moveaxis(g.handle.data, self.axis, 0) for g in given]
        while (half := len(parts[0]) // 2) > 0:
            parts = joined(self, [p[half:] for p in parts], [p[:half] for p in parts], dtypes)
        if self.keep_dims:
            parts = [p.reshape((1,) * rank) if self.axis is None else numpy.moveaxis(p, 0, self.axis) for p in parts]
        else:
            parts = [p[0] for p in parts]
        return [self.to_tensor(p, d) for p, d in zip(parts, dtypes, strict=True)]

    def scan(self: Any, given: Any) -> list[Any]:
        dtypes = [g.dtype for g in given]
        parts = [numpy.moveaxis(g.handle.data, self.axis, 0) for g in given]
        step = 1
        while step < len(parts[0]):
            later = joined(self, [numpy.roll(p, step, 0) for p in parts], parts, dtypes)
            parts = [numpy.concatenate([p[:step], n[step:]]) for p, n in zip(parts, later, strict=True)]
            step *= 2
        return [self.to_tensor(numpy.moveaxis(p, 0, self.axis), d) for p, d in zip(parts, dtypes, strict=True)]

    interpreter.ReduceOps.generic_reduce = reduce
    interpreter.ScanOps.generic_scan = scan


def _programs_run_backwards() -> None:
    """Programs of a launch have no order."""

    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        self.grid_idx = (self.grid_dim[0] - 1 - x, y, z)

    BUILDER.set_grid_idx = set_grid_idx


class Memory:
    """Makes tensors for host programs, full of what nobody would compute, and looks whether more than they was written."""

    GUARD = 64
    VALUES = {torch.bool: 1, torch.uint8: 171}  # where -171 is none; of floats NaN

    def __init__(self) -> None:
        self.guards: list[torch.Tensor] = []

    def maker(self, dtype: str, device: str, make: Any = memory.maker) -> Callable[..., torch.Tensor]:
        wanted = memory.DTYPES[dtype]
        value = self.VALUES.get(wanted, float("nan") if wanted.is_floating_point else -85)
        plain = make(dtype, "cpu")

        def made(sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
            shaped = plain(sizes, strides)
            if not (count := shaped.untyped_storage().nbytes() // wanted.itemsize):
                return shaped  # which may be resized
            bytes_ = bytearray((count + self.GUARD) * wanted.itemsize)
            whole = torch.frombuffer(bytes_, dtype=wanted).fill_(value)
            self.guards.append(whole[count:])
            return memory.reinterpret(torch.frombuffer(bytes_, dtype=wanted, count=count), sizes, strides, wanted)

        return made

    def problems(self) -> list[str]:
        found: list[str] = []
        for guard in self.guards:
            if guard.view(torch.uint8).view(self.GUARD, -1).unique(dim=0).shape[0] > 1:
                found.append(f"memory behind a tensor was written to: {guard.tolist()}")
        self.guards.clear()
        return found
