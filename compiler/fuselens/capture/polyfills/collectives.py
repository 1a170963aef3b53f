"""What torch.distributed's functions do beside communicating, as Python that is traced.

Writes are those of the ranks, not of autograd: as eager's they leave a tensor's history as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Finished:
    """The work of an asynchronous collective, which a graph has done by the time that it goes on."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        return self._result


def written(tensor: Any, result: Any, is_async: bool) -> Any:
    with torch.no_grad():
        tensor.copy_(result.view(tensor.shape))
    return Finished([tensor]) if is_async else None


def scattered(tensors: Sequence[Any], result: Any, is_async: bool) -> Any:
    """``result`` has what goes to the ``tensors``, one after the other."""
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.chunk(result, len(tensors)), strict=True):
            tensor.copy_(part.view(tensor.shape))
    return Finished([tensors]) if is_async else None


def joined(tensors: Sequence[Any]) -> Any:
    return torch.cat([tensor.reshape(1, *tensor.shape) for tensor in tensors])


def as_row(tensor: Any) -> Any:
    return tensor.detach().reshape(1, *tensor.shape)


def plain(tensor: Any) -> Any:
    """What is communicated: the values, contiguous, without history."""
    return tensor.detach().contiguous()
