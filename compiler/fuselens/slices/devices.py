"""Programs that name a device which is not here: what they put there stays on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MOVES = {torch.Tensor.cuda, torch.Tensor.pin_memory} | {
    getattr(torch.Tensor, name) for name in ("xpu", "mtia", "hpu") if hasattr(torch.Tensor, name)
}


_card_is_hidden = ContextVar("_card_is_hidden", default=False)


@contextlib.contextmanager
def without_card() -> Iterator[None]:
    """Inside, the card of this machine counts as absent, and what is made for it is made on the CPU."""
    before = _card_is_hidden.set(True)
    try:
        with OnThisMachine():
            yield
    finally:
        _card_is_hidden.reset(before)


def is_here(device: torch.device) -> bool:
    if device.type == "cuda" and _card_is_hidden.get():
        return False
    if device.type in ("cpu", "meta"):
        return True
    kind = getattr(torch, device.type, None)
    available = getattr(kind, "is_available", None)
    if available is None:
        return False
    count = getattr(kind, "device_count", lambda: 1)()
    return bool(available()) and (device.index or 0) < count


class OnThisMachine(TorchFunctionMode):
    """Inside, tensors for devices that are absent are made and kept on the CPU. ``named`` has the types of those devices."""

    def __init__(self) -> None:
        super().__init__()
        self.named: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MOVES and not is_here(torch.device("cuda")):
            if func is not torch.Tensor.pin_memory:
                self.named.add(func.__name__)
            return args[0]
        if "device" in kwargs:
            kwargs["device"] = self._here(kwargs["device"])
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], *map(self._here, args[1:]))
        return func(*args, **kwargs)

    def stay(self, device: Any = None) -> None:
        """In place of ``torch.set_default_device``: tensors are made on the CPU."""
        self._here(device)

    def _here(self, value: Any) -> Any:
        """``value``, or the CPU where it is a device that is not here."""
        device = value
        if isinstance(value, int) and not isinstance(value, bool):
            device = torch.device("cuda", value)
        elif isinstance(value, str):
            try:
                device = torch.device(value)
            except RuntimeError:
                return value
        if not isinstance(device, torch.device) or is_here(device):
            return value
        self.named.add(device.type)
        return "cpu"
