"""A graph's callable, with eager's effects on inputs, autograd and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..autograd.random_numbers import drawing
from ..capture.breaks import RanksError
from ..capture.frame.resuming import AsWritten
from ..capture.hook import _hook
from ..capture.hook.tensor_layout import tangents_like
from ..ir.contracts.signature import SavedValue, Signature
from ..record.diagnostics import make
from ..runtime import autograd_function
from ..system.collector import uncollected
from .recorder import Run
from .refusals import alike_on_ranks, eagerly


def with_effects(
    signature: Signature, forward: Callable[..., Any], written: list[int], run: Run, *, saved: Sequence[SavedValue] = (),
    compile_backward: Callable[[], Callable[..., Any]] | None = None, again: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """``written`` are the inputs that ``forward`` writes to by itself. A backward is compiled when it first runs, or at
    once (``again``)."""
    captured = run.captured
    eager = eagerly(captured)
    forward = alike_on_ranks(forward, run)
    if signature.random and run.loops and not run.config.fallback_random:
        eager = drawing(eager)

    def on_failure(error: Exception, wrote: bool) -> None:
        if isinstance(error, RanksError):  # to do it again would be to wait once more
            raise error
        then = "had written to inputs, which are in between now: its error is raised" if wrote else "ran eagerly"
        said = make("FL406", captured.span, what=f"{type(error).__name__}: {str(error)[:500]}", then=then)
        run.say(said)
        if wrote:
            error.add_note(f"{said.code}: {said.message}")
        elif run.config.strict:
            raise error

    if compile_backward is None:
        return autograd_function.build(signature, forward, written=written, eager=eager, on_failure=on_failure)

    def as_written(inputs: tuple[Any, ...]) -> Any:
        run.say(make("FL303", captured.span, what=captured.frame))
        raise AsWritten

    def disabled_backward() -> Callable[..., Any]:
        with uncollected():
            return _hook.disabled(compile_backward())  # the program may run it inside a compiled function

    return autograd_function.build(
        signature, forward, written=written, saved=saved,
        backward=disabled_backward() if run.recorder.backwards or again else None,
        compile_backward=_hook.disabled(disabled_backward), eager=eager,
        on_double_backward=lambda: run.say(make("FL302", captured.span)),
        about=(run.when_out, replace(run, phase="backward").when_out),
        expects=tangents_like, as_written=as_written if captured.resumable else None, on_failure=on_failure,
    )  # fmt: skip
