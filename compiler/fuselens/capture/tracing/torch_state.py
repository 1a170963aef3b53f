"""What torch keeps for a thread beside tensors, as one trace finds it and changes it.

Grad mode, autocast, modes, default dtype and more decide what an operation does. A graph is for the state it was traced
in, so guards compare that state; contexts that the program enters go into the graph as nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ... import torch_private
from ...config import Config
from ...record.report import Span
from ..hook import _hook
from ..values.algebra import DeviceSwitch, FunctionSwitch, Lazy, TorchContext, Value
from . import sources as src
from .graphs import Graphs
from .sources import GuardProgram


class TorchState:
    """The state around one frame, and what the program has changed of it so far."""

    def __init__(self, config: Config, guards: GuardProgram, graphs: Graphs, function_state: int) -> None:
        self.contexts: list[TorchContext] = []  # those entered now, from the outermost
        self.grad_enabled = torch.is_grad_enabled()  # where the trace ended
        self.function_state = function_state  # who handles torch functions: see torch_private.ENABLED
        nothing, count = src.constant(None, "torch"), torch_private.NUMBER_OF_MODES()
        at = [torch_private.ModeAt(i) for i in range(count)]
        self.outer_modes: list[Value] = [Lazy(mode(None), src.applied(mode, nothing)) for mode in at]
        self.function_modes = list(self.outer_modes)  # those that handle torch functions now, the innermost last
        self._config = config
        self._guards = guards
        self._graphs = graphs
        self._flags = torch_private.function_state_flags(function_state)
        self._autocast, self._autocast_active = torch_private.AutocastState(), torch_private.autocast_active()
        self._ambient = _read(torch_private.AMBIENT)
        self._ambient_on_gpu = _read(torch_private.AMBIENT_ON_GPU)
        self._determinism = _read(torch_private.DETERMINISM)
        self._attention = _read(torch_private.ATTENTION)
        self._precision = torch_private.Float32Precision()

    # --- contexts ------------------------------------------------------------------------------------------

    def leave_contexts(self, span: Span | None) -> None:
        """Ends what the program is in the middle of, in the trace and in the graph; code after the graph goes back in."""
        self.grad_enabled = torch.is_grad_enabled()
        for context in reversed(self.contexts):
            if not isinstance(context, FunctionSwitch):
                self.exit_context(context, span)

    def exit_context(self, context: TorchContext, span: Span | None) -> None:
        """Leaves ``context`` in the trace and in the graph."""
        torch_private.exit_context(context.real)
        self._graphs.add("call_function", torch_private.exit_context, (context.node,), {}, None, span)

    @property
    def entered_device(self) -> torch.device | None:
        """That of the innermost ``with torch.device`` of the program."""
        return next((c.device for c in reversed(self.contexts) if isinstance(c, DeviceSwitch)), None)

    def change_of_modes(self) -> tuple[int, list[Value]]:
        """How many of the modes around the frame the program has left, and those that it has entered."""
        before, now = self.outer_modes, self.function_modes
        pairs = enumerate(zip(before, now, strict=False))
        same = next((i for i, (a, b) in pairs if a is not b), min(len(before), len(now)))
        return len(before) - same, now[same:]

    # --- guards --------------------------------------------------------------------------------------------

    def guard_autocast(self) -> None:
        """Autocast is on and off, and casts to what it casts to, as when the frame began."""
        text = str(self._autocast)
        self._guards.check_state(_hook.GLOBAL_CALL, self._autocast, name="AUTOCAST", text=text, span=None)

    def guard_function_state(self) -> None:
        """Who handles torch functions is as it was when the frame began."""
        text = "whether __torch_function__ is asked is as it was"
        for flag in self._flags:
            self._guards.check_state(_hook.STATE, flag, name="STATE", text=text, span=None)

    def guard_ambient(self, span: Span | None) -> None:
        """Default dtype, inference mode, autocast and modes are as they are now."""
        check = self._guards.check_state
        if self._autocast_active:
            self.guard_autocast()
        if self._config.mode.startswith("max-autotune"):
            check(_hook.GLOBAL_CALL, self._precision, name="PRECISION", text=str(self._precision), span=None)
        self._guard(self._states())
        holder, key = torch_private.DUAL_LEVEL
        level = src.dict_item(src.constant(holder, "torch.autograd.forward_ad"), key, "the level of forward-mode AD")
        text = f"{level} is {holder[key]}"
        self._guards.check(level, _hook.EQUALS, holder[key], name="EQUALS", text=text, span=span)

    def guard_determinism(self) -> None:
        """Algorithms have to be deterministic, or not, as when the frame began."""
        self._guard(self._determinism)

    def _guard(self, states: Mapping[str, Any]) -> None:
        for what, state in states.items():
            self._guards.check_state(_hook.STATE, state, name="STATE", text=f"{what} is {state[1]}", span=None)

    def _states(self) -> dict[str, Any]:
        """What the operations of the graph so far depend on."""
        with torch_private.without_torch_function():
            on_gpu = any(isinstance(given, torch.Tensor) and given.is_cuda for _, given in self._graphs.inputs)
        attends = any(n.target in torch_private.ATTENDS for n in self._graphs.current.nodes)
        return self._ambient | (self._ambient_on_gpu if on_gpu else {}) | (self._attention if attends else {})


def _read(state: Mapping[str, Callable[[], Any]]) -> dict[str, tuple[Callable[[], Any], Any]]:
    return {what: (read, read()) for what, read in state.items()}
