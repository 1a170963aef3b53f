"""What torch does around an operator of ``torch.library.triton_op``, as Python that is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def below_autograd(function: Callable[..., Any], args: Sequence[Any], written: Sequence[Any]) -> Any:
    """The operator's function. Autograd sees none of it but that tensors are written to."""
    with torch.no_grad():
        return counted(function, args, written)


def counted(function: Callable[..., Any], args: Sequence[Any], written: Sequence[Any]) -> Any:
    result = function(*args)
    for tensor in written:
        torch.ops.fuselens.count_write(tensor)
    return result


def with_gradient(
    name: str, function: Callable[..., Any], setup: Callable[..., Any] | None, formula: Callable[..., Any]
) -> Callable[..., Any]:
    """The operator as a function of autograd's."""

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            return function(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            if setup is not None:
                setup(ctx=ctx, inputs=inputs, output=output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return formula(ctx, *grads)

    Operator.__name__ = Operator.__qualname__ = name
    return Operator.apply
