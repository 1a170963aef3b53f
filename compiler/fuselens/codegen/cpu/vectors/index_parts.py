"""Prelude parts for positions that come from data: checked against a size, and updates of elements there, in turn."""

from __future__ import annotations

from .parts import C_TYPES, REGISTER, REGISTER_C, TOKEN, UNIT, Part

UNIT["bound"] = Part(
    "bound",
    "static inline long bound(long at, long n) {\n"
    "  if (__builtin_expect((unsigned long)at >= (unsigned long)n, 0)) { fuselens_errors |= 2; return 0; }\n"
    "  return at;\n}",
    ("errors",),
)

_BOUNDS = """
// Lanes as positions below n: a lane that is none is reported and becomes 0. Lanes beyond the end are not looked at.
static inline @l bounds@W(@l at, long n, long left) {
  @l bad = (at | (n - 1 - at)) >> 63;
  long any = 0;
  if (__builtin_expect(left >= @W, 1)) for (int l = 0; l < @W; ++l) any |= bad[l];
  else for (long l = 0; l < left; ++l) any |= bad[l];
  if (__builtin_expect(any != 0, 0)) fuselens_errors |= 2;
  return at & ~bad;
}""".strip()


_ROUND_BF16 = """
static inline float bf16_value(float x) {
  unsigned b; __builtin_memcpy(&b, &x, 4);
  b = x != x ? 0x7fc00000u : (b + 0x7fffu + ((b >> 16) & 1u)) & 0xffff0000u;
  __builtin_memcpy(&x, &b, 4); return x;
}""".strip()
UNIT["bf16_value"] = Part("bf16_value", _ROUND_BF16)
# what becomes of the element a, given b; NaN wins
UPDATED = {
    "last": "b", "sum": "a + b", "prod": "a * b", "max": "a > b || a != a ? a : b", "min": "a < b || a != a ? a : b",
}  # fmt: skip


def _update(kind: str, dtype: str) -> Part:
    """Lanes change their elements one after the other: several may have the same."""
    register = REGISTER[dtype]
    text = UPDATED[kind]
    if dtype == "bool" and kind != "last":
        text = "a | b" if kind == "max" else "a & b"
    text = f"bf16_value({text})" if dtype == "bf16" else text
    old = f"const {REGISTER_C[register]} a = value@W(p[at[l]]), b = v[l]; "
    return Part(
        f"update.{kind}.{dtype}",
        f"static inline void update_{kind}@W({C_TYPES[dtype]}* p, const long* at, {TOKEN[register]} v, long left) {{\n"
        f"  for (long l = 0; l < (left < @W ? left : @W); ++l) {{ {old}put@W(p + at[l], {text}); }}\n}}",
        (f"value.{dtype}", f"put.{dtype}", *(["bf16_value"] if dtype == "bf16" else [])),
    )


def index_parts() -> list[Part]:
    """Checked positions in vectors, and updates."""
    return [
        *(_update(kind, dtype) for kind in UPDATED for dtype in C_TYPES),
        Part("wrap", "static inline @l wrap(@l at, long n) { return at + ((at >> 63) & n); }", ("types",)),
        Part("bounds", _BOUNDS, ("types", "errors")),
        Part(
            "lane_of",
            "static inline int lane_of@W(long at, long start) {  // -1 before the lanes, @W after them\n"
            "  return at < start ? -1 : (unsigned long)at - start > @W ? @W : (int)(at - start);\n}",
            ("iota",),
        ),
    ]
