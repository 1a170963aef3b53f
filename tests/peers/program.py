"""Programs as data: a function, and what makes its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Make = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """``arguments`` are made for each call: a program may write to them. ``gap`` says what is not there yet. ``settings`` are
    torch's own, under which it is compiled."""

    name: str
    call: Callable[..., Any]
    arguments: Make
    gap: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


class Programs:
    """A module's programs, in the order in which they are written."""

    def __init__(self) -> None:
        self.all: list[Program] = []

    def __call__(
        self, arguments: Make = tuple, gap: str = "", **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def kept(call: Callable[..., Any]) -> Callable[..., Any]:
            self.all.append(Program(call.__name__, call, arguments, gap, settings))
            return call

        return kept


def some(*sizes: int) -> torch.Tensor:
    """Floats that are all different and not whole."""
    return (torch.arange(1.0, 1.0 + torch.Size(sizes).numel()) / 7).reshape(sizes)
