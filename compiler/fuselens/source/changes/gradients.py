"""What a backward is kept for: ``torch.no_grad`` where nobody asks for gradients, checkpoints where somebody does."""

from __future__ import annotations

from collections.abc import Iterator

from ..fixes.checkpoints import checkpoint_fixes
from .change import Change, Place
from .contexts import NO_GRAD, inside

_MOST_CHECKPOINTS = 4


def gradient_changes(place: Place) -> Iterator[Change]:
    edits = inside(place.source, place.function, [NO_GRAD]) if place.function is not None and place.keeps else None
    if edits:
        yield Change(
            "no_grad", "Run inside of torch.no_grad()", place.span, edits, changes="nothing can be differentiated",
            refused=place.why_gradients,
        )  # fmt: skip
    for span, fix in list(checkpoint_fixes(place.source))[:_MOST_CHECKPOINTS] if place.trains else ():
        if any(f.lineno <= span.line <= (f.end_lineno or f.lineno) for f in place.functions):
            yield Change("checkpoint", fix.title, span, fix.edits, of="backward")
