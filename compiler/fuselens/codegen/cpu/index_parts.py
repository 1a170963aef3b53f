"""Prelude parts for positions that come from data: checked against a size, counted from the end when negative."""

from __future__ import annotations

from .parts import UNIT, Part

UNIT["bound"] = Part(
    "bound",
    "static inline long bound(long at, long n) {\n"
    "  if (__builtin_expect((unsigned long)at >= (unsigned long)n, 0)) { fuselens_error |= 2; return 0; }\n"
    "  return at;\n}",
    ("error",),
)

_BOUNDS = """
// Lanes as positions below n: a lane that is none is reported and becomes 0. Lanes beyond the end are not looked at.
static inline @l bounds@W(@l at, long n, long left) {
  @l bad = (at | (n - 1 - at)) >> 63;
  long any = 0;
  if (__builtin_expect(left >= @W, 1)) for (int l = 0; l < @W; ++l) any |= bad[l];
  else for (long l = 0; l < left; ++l) any |= bad[l];
  if (__builtin_expect(any != 0, 0)) fuselens_error |= 2;
  return at & ~bad;
}""".strip()


def index_parts() -> list[Part]:
    """Checked positions in vectors."""
    return [
        Part("wrap", "static inline @l wrap(@l at, long n) { return at + ((at >> 63) & n); }", ("types",)),
        Part("bounds", _BOUNDS, ("types", "error")),
    ]
