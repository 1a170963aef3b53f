"""Prelude parts of scans: running results of a row in registers.

The state of a scan is a struct of vectors. Along a row every lane starts with its own element, ``log2(lanes)`` shuffles
make each lane the result of the lanes up to it, and the carry (the same in every lane) joins them: one operation per
vector is on the critical path. In columns every lane is a scan of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from .parts import TOKEN, Part


@dataclass(frozen=True, slots=True)
class Kind:
    """A scan's state and how two of them, the earlier one first, become one. ``@T`` stands for the vector of values."""

    fields: tuple[tuple[str, str], ...]  # name and register ("" for that of the values)
    join: str  # statements that compute ``r`` from ``a`` and ``b``
    needs: tuple[str, ...] = ()


# sum is that of exp(x - v) in double precision, v the greatest x so far: no sum overflows, none vanishes
_LOGSUMEXP_JOIN = """
  r.v = max(a.v, b.v);
  @T less = exp(a.v == b.v ? @T{} : -abs(a.v - b.v)), one = less * 0 + 1;
  r.sum = a.sum * __builtin_convertvector(a.v < b.v ? less : one, @d)
        + b.sum * __builtin_convertvector(a.v < b.v ? one : less, @d);"""

KINDS: dict[str, Kind] = {
    "sum": Kind((("v", ""),), "  r.v = a.v + b.v;"),
    "prod": Kind((("v", ""),), "  r.v = a.v * b.v;"),
    "max": Kind((("v", ""),), "  r.v = max(a.v, b.v);", ("max",)),
    "min": Kind((("v", ""),), "  r.v = min(a.v, b.v);", ("min",)),
    "logsumexp": Kind((("v", ""), ("sum", "f64")), _LOGSUMEXP_JOIN, ("max", "exp", "log", "abs")),
}

_TEXT = """
struct {state} {{ {fields} }};
static inline {state} join({state} a, {state} b) {{
  {state} r;
{join}
  return r;
}}
// the results up to each lane of what the carry stands for and then the lanes' own
static inline {state} scan_lanes({state} x, {state} none, {state}* carry) {{
{steps}
  {state} last = {{ {last} }}, r = join(*carry, x);
  *carry = join(*carry, last);
  return r;
}}
static inline {state} scan_each({state} x, {state}* carry) {{ return *carry = join(*carry, x); }}
static inline {state} keep({state} x, long left, {state} none) {{
  if (__builtin_expect(left < @W, 0))
    for (long l = left; l < @W; ++l) {{ {keep} }}
  return x;
}}""".strip()


def state_type(kind: str, register: str, width: int) -> str:
    return f"scan_{kind}_{register}_{width}"


def _shuffled(fields: tuple[tuple[str, str], ...], text: str, order: list[int]) -> str:
    lanes = ", ".join(map(str, order))
    return ", ".join(f"__builtin_shufflevector({text.replace('#', f)}, {lanes})" for f, _ in fields)


def scan_parts(width: int) -> list[Part]:
    """``scan.KIND.REGISTER``: the state of a scan, and what joins states within a vector and across vectors."""
    parts: list[Part] = []
    for name, kind in KINDS.items():
        for register in ("f32", "f64", "i32", "i64"):
            if name == "logsumexp" and register[0] != "f":
                continue
            state, token = state_type(name, register, width), TOKEN[register]
            steps, step = [], 1
            while step < width:
                order = [width + l if l < step else l - step for l in range(width)]
                steps.append(f"  x = join({state}{{ {_shuffled(kind.fields, 'x.#, none.#', order)} }}, x);")
                step *= 2
            text = _TEXT.format(
                state=state,
                fields=" ".join(f"{TOKEN[r or register]} {f};" for f, r in kind.fields),
                join=kind.join.strip("\n").replace("@T", token),
                steps="\n".join(steps),
                last=_shuffled(kind.fields, "x.#, x.#", [width - 1] * width),
                keep=" ".join(f"x.{f}[l] = none.{f}[l];" for f, _ in kind.fields),
            )
            if name == "logsumexp":
                text += (
                    f"\nstatic inline {token} result({state} x) "
                    f"{{ return x.v + log(__builtin_convertvector(x.sum, {token})); }}"
                )
            needs = tuple(f"{n}.{register}" for n in kind.needs)
            parts.append(Part(f"scan.{name}.{register}", text, ("types", *needs)))
    return parts
