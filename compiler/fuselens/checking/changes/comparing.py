"""Whether a changed function leaves what eager leaves of the function as it is: values, gradients, memory that values share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...inputs import comparison
from ...inputs.compared import TOLERANCE
from ...inputs.comparison import Judged
from ...inputs.structures import tensors_in
from ...proving.kinds import Kind, kinds
from ...proving.proof import flat
from ...source.changes import Change
from ..check import OpenFunction
from ..user_code import describe
from .clock import Clock

Around = Callable[[], AbstractContextManager[Any]]
# kinds of calls on which an edited text is compared; what a sum gives for infinities does not depend on who calls it
_KINDS = (
    "the example inputs",
    "other values",
    "odd memory",
    "other sizes",
    "1 in place",
    "inside of",
    "after ",
    "other integers",
)
_SMALLEST = 1e-30
_ROUNDED = TOLERANCE[torch.bfloat16][0]  # root mean square of the errors, of that of the values
_WORSE = 4.0  # times as much in gradients, which go through more of it
_WIDE = (torch.float32, torch.float64)


def changes_text(change: Change) -> bool:
    """Whether eager, too, computes in another way after it, and not the compiler alone."""
    return change.kind not in ("mode", "dynamic", "memory_budget", "batch")


class Differs(Exception):
    """The change makes another function of it; the message says how."""


@dataclass(slots=True)
class Comparison:
    """``around()`` is what holds around the function's calls in its program."""

    original: OpenFunction
    edited: OpenFunction
    change: Change
    around: Around
    clock: Clock
    compared: int = 0
    error: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def trains(self) -> bool:
        return self.change.of == "backward"

    def first(self, compiled: Any) -> None:
        """The example's call: the edited text in eager, and compiled. Raises Differs."""
        with self.around():
            mine, other = next(self._kinds())
            if changes_text(self.change):
                gradients = self.change.kind != "no_grad" and torch.is_grad_enabled()
                self._judge(
                    self.edited.target, mine, other, "", gradients=gradients and self.change.values != "rounded"
                )
            self._judge(compiled, mine, other, "compiled, ", gradients=self.trains)
        self.compared = 1

    def others(self) -> None:
        """The edited text in eager, on other kinds of calls. Raises Differs, also where there is no time for all."""
        with self.around():
            pairs = self._kinds()
            next(pairs)
            for mine, other in pairs:
                if not mine.name.startswith(_KINDS):
                    continue
                if self.clock.left <= 0:
                    raise Differs("there was no time to compare it on other inputs")
                with mine.around(), other.around():
                    self._judge(
                        self.edited.target, mine, other, f"{mine.name}: ", gradients=self.trains and mine.gradients
                    )
                self.compared += 1

    def _kinds(self) -> Iterator[tuple[Kind, Kind]]:
        return zip(kinds(self.original), kinds(self.edited), strict=False)

    def _judge(self, function: Any, mine: Kind, other: Kind, where: str, *, gradients: bool) -> None:
        around: Around = torch.no_grad if self.change.kind == "no_grad" else contextlib.nullcontext
        judged = comparison.judge(
            self.original.target, function, mine.args, mine.kwargs, gradients=gradients, around=around, other=(other.args, other.kwargs)
        )  # fmt: skip
        if judged.raised is not None:
            which, error = judged.raised
            if which == "eager":  # as it is, it takes no such call
                return
            raise Differs(f"{where}it raised {describe(error)}")
        if self.change.values == "rounded":
            self._rounded(judged, where)
        elif not judged.agrees:
            raise Differs(f"{where}{judged.detail}")
        if function is self.edited.target:
            self._memory(judged, mine, other, where)

    # --- fewer bits -------------------------------------------------------------------------------------------------------

    def _rounded(self, judged: Judged, where: str) -> None:
        expected, found = (flat(observed, values_only=True) for observed in (judged.expected, judged.actual))
        if [w for w, _ in expected] != [w for w, _ in found]:
            raise Differs(f"{where}it leaves other values")
        for (what, e), (_, f) in zip(expected, found, strict=True):
            if not isinstance(e, torch.Tensor) or not isinstance(f, torch.Tensor):
                if comparison.differ(e, f, what):
                    raise Differs(f"{where}{what} is another one")
            elif e.shape != f.shape:
                raise Differs(f"{where}{what} has another shape")
            elif not e.is_floating_point() or not f.is_floating_point():
                if why := comparison.differ(e, f, what):
                    raise Differs(f"{where}{why}")
            else:
                self._near(what, e.detach(), f.detach(), where)

    def _near(self, what: str, expected: torch.Tensor, found: torch.Tensor, where: str) -> None:
        if expected.dtype in _WIDE and found.dtype != expected.dtype and what.startswith("result"):
            self._note(f"its {what} is {str(found.dtype).removeprefix('torch.')}")
        e, f = expected.double(), found.double()
        finite = torch.isfinite(e) & torch.isfinite(f)
        if not bool((torch.isfinite(e) == torch.isfinite(f)).all()):
            raise Differs(f"{where}{what} is finite elsewhere")
        size, error = (float(v[finite].square().mean().sqrt()) if bool(finite.any()) else 0.0 for v in (e, f - e))
        relative = error / max(size, _SMALLEST) if error else 0.0
        self.error = max(self.error or 0.0, relative)
        if relative > _ROUNDED * (_WORSE if what.startswith("gradient") else 1.0):
            raise Differs(f"{where}{what} differs by {relative:.0e}, which is more than bfloat16 explains")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # --- memory -----------------------------------------------------------------------------------------------------------

    def _memory(self, judged: Judged, mine: Kind, other: Kind, where: str) -> None:
        """Which values share memory, and how they lie in it: what a caller may see without reading a value."""
        before = _shared(judged.expected, modules_of(self.original.target, *mine.args, *mine.kwargs.values()))
        after = _shared(judged.actual, modules_of(self.edited.target, *other.args, *other.kwargs.values()))
        if before != after:
            raise Differs(f"{where}its result shares memory with other values than before")
        pairs = zip(tensors_in(judged.expected["result"]), tensors_in(judged.actual["result"]), strict=True)
        if any(a.layout is torch.strided and a.stride() != b.stride() and a.numel() > 1 for a, b in pairs):
            if self.change.values != "any memory":
                raise Differs(f"{where}its result has other strides")
            self._note("its result is in channels-last memory")


def modules_of(target: Any, *given: Any) -> torch.nn.ModuleList:
    """The modules whose parameters a call uses: what is called, what it is a method of, and what it is given."""
    every = (target, getattr(target, "__self__", None), *given)
    return torch.nn.ModuleList(m for m in every if isinstance(m, torch.nn.Module))


def _shared(observed: dict[str, Any], modules: torch.nn.ModuleList) -> list[frozenset[int]]:
    """Of each tensor of the result, the numbers of the tensors that have the same memory: results before it, inputs, parameters."""
    held = [*modules.parameters(), *modules.buffers()]
    results = tensors_in(observed["result"])
    every = [_storage(t) for t in (*results, *observed["input"], *held)]
    return [
        frozenset(n for n, other in enumerate(every) if other == mine != 0 and (n < k or n >= len(results)))
        for k, mine in enumerate(every[: len(results)])
    ]


def _storage(tensor: torch.Tensor) -> int:
    if (
        tensor.layout is not torch.strided
        or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        or not tensor.numel()
    ):
        return 0
    return tensor.untyped_storage().data_ptr()
