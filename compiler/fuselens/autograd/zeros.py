"""Zero tensors: what autograd makes for a derivative that is zero, in forward mode and in second derivatives.

In eager such a tensor has no memory (``torch._efficientzerotensor``, dispatch key ``ZeroTensor``), cannot be written to,
and is zero whatever it is multiplied by, infinities included. Its views run C++ that takes the functional wrapper of the
joint stage for a plain tensor, which ends in a crash. In a graph it is therefore an ordinary tensor of zeros, which fake
modes give for it; the recorder knows the nodes, and these rules give its arithmetic as eager has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fuselens import torch_private

if TYPE_CHECKING:
    from .recorder import OperatorRecorder

aten = torch.ops.aten
MAKE = aten._efficientzerotensor.default


def applied(recorder: OperatorRecorder, func: Any, args: Any, kwargs: Any) -> Any:
    """What ``func`` makes of zero tensors, or a zero tensor itself; NotImplemented where it reads them as other tensors."""
    if func is MAKE:
        made = _made(recorder, func(*args, **kwargs))
        recorder.zeros.add(recorder.node_of(made))
        return made
    if func is aten.clone.default and is_zero(recorder, args[0]):
        return _copied(recorder, args, kwargs)
    rule = _ARITHMETIC.get(func)
    zeros = [is_zero(recorder, a) for a in args[:2]]
    if rule is None or not any(zeros):
        return NotImplemented
    fill = rule(*zeros) if len(zeros) == 2 else None
    if fill is None:
        return NotImplemented
    with recorder.pause():
        like = func(*args, **kwargs)
    made = _made(recorder, like, fill)
    if fill == 0:
        recorder.zeros.add(recorder.node_of(made))
    return made


def mark_views(recorder: OperatorRecorder, func: Any, args: Any, out: Any) -> None:
    """Views of a zero tensor are zero tensors."""
    if not args or not is_zero(recorder, args[0]) or not torch_private.shares_memory(func):
        return
    for t in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(t, torch.Tensor):
            recorder.zeros.add(recorder.node_of(t))


def is_zero(recorder: OperatorRecorder, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and recorder.known_node(value) in recorder.zeros


def _made(recorder: OperatorRecorder, like: torch.Tensor, fill: float = 0) -> torch.Tensor:
    """A node of its own: the program's own zeros are ordinary numbers."""
    with recorder.pause():
        value = torch.full(like.shape, fill, dtype=like.dtype, device=like.device)
    options = {"dtype": value.dtype, "layout": torch.strided, "device": value.device, "pin_memory": False}
    recorder.add(aten.full.default, (list(value.shape), fill), options, value)
    return value


def _copied(recorder: OperatorRecorder, args: Any, kwargs: Any) -> Any:
    """A copy has memory: it is an ordinary tensor. One that is not dense and in order is left to the usual rules."""
    with recorder.pause():
        like = aten.clone.default(*args, **kwargs)
    return _made(recorder, like) if like.is_contiguous() else NotImplemented


def _product(a: bool, b: bool) -> float | None:
    return 0


def _quotient(a: bool, b: bool) -> float | None:
    """As eager's kernel, which does not look at the sign of the dividend."""
    return 0 if not b else math.nan if a else math.inf


def _sum(a: bool, b: bool) -> float | None:
    return 0 if a and b else None


_ARITHMETIC: dict[Any, Callable[[bool, bool], float | None]] = {
    aten.mul.Tensor: _product, aten.mul.Scalar: _product, aten.dot.default: _product, aten.vdot.default: _product,
    aten.linalg_cross.default: _product, aten.div.Tensor: _quotient, aten.add.Tensor: _sum, aten.sub.Tensor: _sum,
}  # fmt: skip
"""By operator, what fills the result where the first or the second operand is a zero tensor; None: computed as usual."""
