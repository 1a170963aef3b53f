"""What a proof says: in a few words for a lens, and in lines."""

from __future__ import annotations

from collections.abc import Iterator

from ..report import Drift, Proof, Tried

_AGREES = 4.0  # times eager's own distance from float64
_EXACT = 1e-12
_GROWS = 3.0  # times, from which on a line is named


def headline(proof: Proof) -> str:
    """``✓ equals eager (1.2e-07; float64 agrees)``, or where it differs."""
    if proof.fault is not None:
        where = f" at line {proof.fault.span.line}" if proof.fault.span else ""
        word = {"FL603": "is unsteady", "FL605": "fails"}.get(proof.fault.code, "differs")
        return f"✗ {word}{where}"
    failing = [tried for tried in proof.tried if not tried.agrees]
    if failing:
        return f"✗ differs on {failing[0].inputs}"
    if not proof.compiled:
        return "not compiled, so nothing is proved"
    if not proof.tried:
        return "not proved"
    said = "; ".join(filter(None, (_error(proof), _double(proof.tried))))
    return f"✓ equals eager{f' ({said})' if said else ''}"


def _error(proof: Proof) -> str:
    error = next((t.error for t in proof.tried if not t.raises), None)  # of the example inputs, mostly
    return "" if error is None else f"{error:.1e}" if error else "same bits"


def _double(tried: tuple[Tried, ...]) -> str:
    pairs = [(t.exact_error, t.eager_error) for t in tried if t.exact_error is not None and t.eager_error is not None]
    if not pairs:
        return ""
    if all(ours <= _AGREES * eager + _EXACT for ours, eager in pairs):
        return "float64 agrees"
    ours, eager = max(pairs, key=lambda pair: pair[0] - pair[1])
    return f"float64: {ours:.1e} from it, eager {eager:.1e}"


def lines(proof: Proof, file: str) -> Iterator[str]:
    """All that was tried, in lines; ``file`` is the one that the function is in."""
    yield headline(proof)
    agreed = sum(tried.agrees for tried in proof.tried)
    if proof.tried:
        left = f" ({proof.left} more: there was no time)" if proof.left else ""
        yield f"{agreed} of {len(proof.tried)} kinds of calls agree{left}"
    for tried in proof.tried:
        yield f"  {'✓' if tried.agrees else '✗'} {tried.inputs}{_said(tried)}"
    if (most := steepest(proof)) is not None:
        yield f"drift from float64 grows most at {most.span.place(file)}: {drift_text(most, file)}"
    if proof.stopped:
        yield f"{'no more is known' if proof.tried else 'nothing is known'}: {proof.stopped}"
    if proof.uncompiled:
        yield f"{'not compiled in whole' if proof.compiled else 'not compiled'}: {proof.uncompiled}"


def _said(tried: Tried) -> str:
    errors = [(word, e) for word, e in (("eager", tried.error), ("float64", tried.exact_error)) if e is not None]
    said = [f"{e:.1e} from {word}" if e else f"same as {word}" for word, e in errors] if tried.agrees else []
    said += [f"eager {tried.eager_error:.1e} from float64"] if said and tried.eager_error else []
    said += [tried.detail] if tried.detail else []
    return f": {', '.join(said)}" if said else ""


# --- drift ------------------------------------------------------------------------------------------------------------


def steepest(proof: Proof) -> Drift | None:
    """The line where drift grows most; None where it grows nowhere by much."""
    most = max(proof.drift, key=lambda drift: drift.growth, default=None)
    return most if most is not None and most.growth >= _GROWS else None


def drift_text(drift: Drift, file: str) -> str:
    """``3.1e-03 eager, 1.9e-03 compiled, 2.2 × that of line 11``."""
    return f"{_far(drift.eager)} eager, {_far(drift.compiled)} compiled, {_growth(drift, file)}"


def drift_table(proof: Proof, file: str) -> Iterator[str]:
    """The drift of each line, in lines."""
    if not proof.drift:
        return
    yield "drift from float64 by line: the norm of the difference over that of the values (worst element)"
    most = steepest(proof)
    rows: list[tuple[str, ...]] = [("", "values", "eager", "compiled", "")]
    for drift in proof.drift:
        errors = [
            f"{_far(rms)} ({_far(worst)})"
            for rms, worst in ((drift.eager, drift.worst_eager), (drift.compiled, drift.worst))
        ]
        said = f"{_growth(drift, file)}{': it grows most here' if drift is most else ''}"
        rows.append((drift.span.place(file), drift.dtype, *errors, said))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _far(error: float) -> str:
    return f"{error:.1e}" if error else "0"


def _growth(drift: Drift, file: str) -> str:
    beside = f"that of {drift.source.place(file)}" if drift.source is not None else f"rounding to {drift.dtype}"
    return f"{drift.growth:.1f} × {beside}"
