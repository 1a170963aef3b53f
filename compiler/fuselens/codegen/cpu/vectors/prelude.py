"""The inlined C++ prelude: vector types, memory access and vector maths. Only the parts that a unit uses are printed.

No header is included, because headers cost more to parse than the kernels to compile. Parts are templates in which
``@f @d @i @l @m`` stand for the vector types of one lane count (f32, f64, i32, i64 and the boolean mask, whose lanes
are as wide as the kernel's widest element) and ``@W`` for the lane count; each is instantiated per lane count in use.

The f32 functions and the common f64 ones are ours (:mod:`.vector_maths`, :mod:`.vector_maths_f64`); the rest go lane by
lane to libm, declared by hand. They rely on ``-ffp-contract=off`` and on IEEE semantics (never ``-ffast-math``): rounding by a magic
number is exact.
"""

from __future__ import annotations

import functools

from .index_parts import index_parts
from .isa import Isa
from .maths_parts import maths_parts
from .memory_parts import conversion_parts, memory_parts
from .parts import C_TYPES, UNIT, Part
from .random_parts import random_parts
from .scan_parts import scan_parts
from .transpose_parts import TRANSPOSES

UNIT |= TRANSPOSES

_TYPES = """
typedef float @f __attribute__((vector_size(4 * @W)));
typedef double @d __attribute__((vector_size(8 * @W)));
typedef int @i __attribute__((vector_size(4 * @W)));
typedef long @l __attribute__((vector_size(8 * @W)));
typedef unsigned @u __attribute__((vector_size(4 * @W)));
typedef unsigned long @U __attribute__((vector_size(8 * @W)));
typedef unsigned short u16x@W __attribute__((vector_size(2 * @W)));
typedef short i16x@W __attribute__((vector_size(2 * @W)));
typedef signed char i8x@W __attribute__((vector_size(@W)));
typedef unsigned char u8x@W __attribute__((vector_size(@W)));
typedef @M @m __attribute__((vector_size(sizeof(@M) * @W)));  // a boolean: every bit of a lane is its value
static inline @i to_i32(@i m) { return m; }
static inline @i to_i32(@l m) { return __builtin_convertvector(m, @i); }
static inline @l to_i64(@i m) { return __builtin_convertvector(m, @l); }
static inline @l to_i64(@l m) { return m; }
""".strip()


_BF16 = """
// to the nearest bfloat16, ties to even, NaN kept; the value stays in f32 lanes
static inline @f round_bf16(@f x) {
  @u b = (@u)x;
  @u r = (b + 0x7fffu + ((b >> 16) & 1u)) & 0xffff0000u;
  return x != x ? (@f)(@u{} + 0x7fc00000u) : (@f)r;
}""".strip()


@functools.cache
def parts_of(width: int, wide: bool, isa: Isa) -> dict[str, Part]:
    """All parts for vectors of ``width`` lanes, in printing order."""
    mask = "long" if wide else "int"
    parts = [Part("types", _TYPES)]
    parts += conversion_parts(width, isa)
    for dtype in C_TYPES:
        parts += memory_parts(dtype, width, wide, isa)
    parts += maths_parts(width, wide, isa)
    parts += random_parts(width, isa)
    parts += index_parts()
    parts += scan_parts(width)
    parts.append(Part("round_bf16", _BF16, ("types",)))
    parts.append(
        Part(
            "round_f16",
            "static inline @f round_f16(@f x) { return half_to_float(float_to_half(x)); }",
            ("half",),
        )
    )

    def fill(text: str) -> str:
        names = {"@f": f"f32x{width}", "@d": f"f64x{width}", "@i": f"i32x{width}", "@l": f"i64x{width}"}
        names |= {"@m": f"maskx{width}", "@M": mask, "@u": f"u32x{width}", "@U": f"u64x{width}", "@W": str(width)}
        for token, name in names.items():
            text = text.replace(token, name)
        return text

    return {p.name: Part(p.name, fill(p.text), p.needs) for p in parts}


def print_prelude(used: dict[tuple[int, bool], set[str]], unit: set[str], isa: Isa) -> str:
    """The prelude text. ``used`` maps (lane count, wide) to the names of parts; ``unit`` names lane-free parts."""
    unit = set(unit)
    sections: list[str] = []
    for (width, wide), names in sorted(used.items()):
        table = parts_of(width, wide, isa)
        wanted: set[str] = set()
        stack = [*names, "types"]
        while stack:
            name = stack.pop()
            if name in wanted:
                continue
            if name in UNIT and name not in table:
                unit.add(name)
                continue
            wanted.add(name)
            stack += table[name].needs
        sections += [p.text for n, p in _ordered(table, wanted)]
    todo = list(unit)
    while todo:
        for need in UNIT[todo.pop()].needs:
            if need not in unit:
                unit.add(need)
                todo.append(need)
    if "errors" in unit:  # brings a form of its own
        unit.discard("parallel")
    return "\n".join([*(p.text for n, p in UNIT.items() if n in unit), *sections])


def _ordered(table: dict[str, Part], wanted: set[str]) -> list[tuple[str, Part]]:
    """The wanted parts, each after what it needs."""
    done: dict[str, Part] = {}

    def visit(name: str) -> None:
        if name in done or name not in table or name not in wanted:
            return
        for need in table[name].needs:
            visit(need)
        done[name] = table[name]

    for name in table:
        visit(name)
    return list(done.items())
