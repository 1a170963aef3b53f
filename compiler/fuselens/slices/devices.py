"""Programs that name a device which is not here: what they put there stays on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MOVES = {torch.Tensor.cuda, torch.Tensor.pin_memory} | {
    getattr(torch.Tensor, name) for name in ("xpu", "mtia", "hpu") if hasattr(torch.Tensor, name)
}


def is_here(device: torch.device) -> bool:
    if device.type in ("cpu", "meta"):
        return True
    kind = getattr(torch, device.type, None)
    available = getattr(kind, "is_available", None)
    if available is None:
        return False
    count = getattr(kind, "device_count", lambda: 1)()
    return bool(available()) and (device.index or 0) < count


class OnThisMachine(TorchFunctionMode):
    """Inside, tensors for devices that are absent are made and kept on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MOVES and not is_here(torch.device("cuda")):
            return args[0]
        if "device" in kwargs:
            kwargs["device"] = _here(kwargs["device"])
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], *map(_here, args[1:]))
        return func(*args, **kwargs)


def _here(value: Any) -> Any:
    """``value``, or the CPU where it is a device that is not here."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if is_here(torch.device("cuda", value)) else "cpu"
    if isinstance(value, str):
        try:
            device = torch.device(value)
        except RuntimeError:
            return value
        return value if is_here(device) else "cpu"
    return "cpu" if isinstance(value, torch.device) and not is_here(value) else value
