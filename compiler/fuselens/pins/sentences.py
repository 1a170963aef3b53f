"""Verdicts and pins in words."""

from __future__ import annotations

from pathlib import Path

from .project import Kept
from .records import SAME, Times, Verdict, Verified

_MOST_KERNELS = 20


def seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def times(verified: Verified) -> str:
    """``41 µs, ours 55 µs (−25 %)``; "" where nothing was measured."""
    if verified.yours is None or verified.ours is None:
        return ""
    return _compared(verified.yours.median, verified.ours.median)


def _compared(yours: float, ours: float) -> str:
    change = round(100 * (yours / ours - 1)) if ours else 0
    word = "as fast" if abs(change) < 1 else f"{'+' if change > 0 else '−'}{abs(change)} %"
    return f"{seconds(yours)}, ours {seconds(ours)} ({word})"


def spread(taken: Times) -> str:
    return f"{seconds(taken.low)} to {seconds(taken.high)}"


def verdict(found: Verdict | None) -> str:
    """The lens: ``✓ equals the graph on 12 kinds of inputs · 41 µs, ours 55 µs (−25 %)``."""
    if found is None:
        return "not verified yet: save it"
    if found.found or found.verified is None:
        first = found.found[0]
        more = f" (and {len(found.found) - 1} more)" if len(found.found) > 1 else ""
        return f"refused: {first.message}{more}"
    verified = found.verified
    count = len(verified.inputs)
    parts = [
        f"✓ equals the graph on {count} kind{'s' * (count != 1)} of inputs{', with gradients' if verified.gradients else ''}"
    ]
    if verified.left:
        parts.append(f"no time for {verified.left} more")
    parts.append(times(verified) or f"not measured: {verified.unmeasured}")
    if notable := _most_different(verified):
        parts.append(f"{notable}: {_compared(*verified.kernels[notable])}")
    return " · ".join(parts)


def _most_different(verified: Verified) -> str:
    """The kernel whose time is most different from ours; "" where none is by more than what varies."""
    changes = {name: abs(yours / ours - 1) for name, (yours, ours) in verified.kernels.items() if ours}
    found = max(changes, key=lambda name: changes[name], default="")
    return found if found and changes[found] > SAME else ""


def details(verified: Verified) -> list[str]:
    lines = [f"inputs: {', '.join(verified.inputs)}"]
    if verified.yours is not None and verified.ours is not None:
        lines.append(f"yours {spread(verified.yours)}, ours {spread(verified.ours)} (half of the calls, made in turn)")
    lines += [f"  {name}: {_compared(*both)}" for name, both in list(verified.kernels.items())[:_MOST_KERNELS]]
    versions = ", ".join(f"{name} {version}" for name, version in verified.versions.items())
    where = f"{verified.target}, {verified.threads} thread{'s' * (verified.threads != 1)}"
    return [*lines, f"on {where}, {verified.processor}" if verified.processor else f"on {where}", versions]


def pin(kept: Kept, root: Path) -> str:
    """A line for a list of pins."""
    shown = kept.shown(root)
    if kept.pin is None:
        return f"{shown}: {kept.code}: {kept.why}"
    unit = kept.pin.unit
    found = [f"{unit.file}::{unit.title}"]
    found += [f"{v.target}{f': {t}' if (t := times(v)) else ''}" for v in kept.pin.verified]
    return f"{shown}: {' · '.join(found)}{f' · {kept.code}: {kept.why}' if kept.code else ''}"
