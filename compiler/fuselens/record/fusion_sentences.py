"""Why operations stayed apart, for people who know their program, not the compiler's buffers. Standard library only."""

from __future__ import annotations

from .report import Decision

_REASONS = {  # by the rule that refused, where the compiler's own reason names what no program has
    "score": "they share too little memory to gain from it",
    "pieces": "one changes memory that the other one writes in several steps",
    "index": "one reads at positions that do not follow the loops of the other one",
    "points": "one reads other elements than the other one has at hand",
    "rows": "one needs the results of other rows",
    "gather": "one reads at computed positions",
    "sizes": "they go over different sizes",
    "update": "one sums up, the other one updates in place: they want different loops",
}


def why_apart(decision: Decision) -> str:
    """The reason of a refused fusion."""
    return _REASONS.get(str(decision.data.get("rule", "")), decision.reason)
