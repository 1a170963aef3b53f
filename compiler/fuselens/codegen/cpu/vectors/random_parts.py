"""Prelude parts that make random words: Philox 4x32-10, as ``ir.philox`` defines it.

Neighbouring words come four to a block. A vector of them is computed as it lies in memory: 64-bit lanes hold the pairs
(c0, c1) and (c2, c3) of a block's counter, so that a round is one multiplication of 32-bit halves, one shuffle and two
exclusive ors for as many words as there are lanes. Words at other positions take a block each.
"""

from __future__ import annotations

from ....ir.philox import MULTIPLIERS, ROUNDS, STEPS
from .isa import Isa
from .parts import Part

_NEXT = """
typedef unsigned long blocks@W __attribute__((vector_size(4 * @W)));  // (c0, c1) and (c2, c3) of a counter, by turns
{product}
static inline @i random_blocks@W(int k0, int k1, long stream, long block) {{
  blocks@W c = {{{counters}}};
  const blocks@W by = {{{multipliers}}};
  @u k = {{{keys}}};
  const @u step = {{{steps}}};
  for (int r = 0; r < {rounds}; ++r, k += step) {{
    @u p = (@u)halves_product(c, by);
    c = (blocks@W)__builtin_shufflevector(p, p, {order}) ^ ((c >> 32) ^ (blocks@W)k);
  }}
  return (@i)c;
}}
static __attribute__((noinline)) @i random_between@W(int k0, int k1, long stream, long first) {{
  @i words[2] = {{random_blocks@W(k0, k1, stream, first >> 2), random_blocks@W(k0, k1, stream, (first >> 2) + {blocks})}};
  @i r;
  __builtin_memcpy(&r, (const int*)words + (first & 3), sizeof r);
  return r;
}}
// words first, first + 1, … of a stream
static inline @i random_next@W(int k0, int k1, long stream, long first) {{
  if (__builtin_expect(first & 3, 0)) return random_between@W(k0, k1, stream, first);
  return random_blocks@W(k0, k1, stream, first >> 2);
}}""".strip()

_AT = """
typedef unsigned long u64x@W __attribute__((vector_size(8 * @W)));
// the words at any positions of a stream
static __attribute__((noinline)) @i random_at@W(int k0, int k1, long stream, @l index) {{
  @u c0 = __builtin_convertvector(index >> 2, @u), c1 = __builtin_convertvector(index >> 34, @u);
  @u c2 = @u{{}} + (unsigned)stream, c3 = {{}};
  unsigned x = (unsigned)k0, y = (unsigned)k1;
  for (int r = 0; r < {rounds}; ++r, x += {step0}u, y += {step1}u) {{
    u64x@W a = __builtin_convertvector(c0, u64x@W) * {multiplier0}ul, b = __builtin_convertvector(c2, u64x@W) * {multiplier1}ul;
    c0 = __builtin_convertvector(b >> 32, @u) ^ c1 ^ x, c1 = __builtin_convertvector(b, @u);
    c2 = __builtin_convertvector(a >> 32, @u) ^ c3 ^ y, c3 = __builtin_convertvector(a, @u);
  }}
  @i place = __builtin_convertvector(index & 3, @i);
  return (@i)(place < 2 ? (place == 0 ? c0 : c1) : (place == 2 ? c2 : c3));
}}""".strip()

# Multiplication of the low halves of 64-bit lanes, by bytes of a vector; other compilers see it in the plain form.
_PRODUCTS: dict[int, str] = {
    16: "__builtin_ia32_pmuludq128",
    32: "__builtin_ia32_pmuludq256",
}


def _product(width: int, isa: Isa) -> str:
    plain = "static inline blocks@W halves_product(blocks@W a, blocks@W b) { return (a & 0xffffffffu) * b; }"
    builtin = _PRODUCTS.get(4 * width) if isa.name in ("sse2", "avx2", "avx512") else None
    if builtin is None:
        return plain
    return (
        f"#ifdef __clang__\n{plain}\n#else\n"
        f"static inline blocks@W halves_product(blocks@W a, blocks@W b) {{ return (blocks@W){builtin}((@i)a, (@i)b); }}\n#endif"
    )


def random_parts(width: int, isa: Isa) -> list[Part]:
    numbers = {"rounds": ROUNDS, "step0": STEPS[0], "step1": STEPS[1]}
    at = _AT.format(**numbers, multiplier0=MULTIPLIERS[0], multiplier1=MULTIPLIERS[1])
    parts = [Part("random.at", at, ("types",))]
    if width < 4:
        return parts
    blocks = width // 4
    text = _NEXT.format(
        product=_product(width, isa),
        counters=", ".join(f"(unsigned long)block + {b}, (unsigned long)stream" for b in range(blocks)),
        multipliers=", ".join([f"{m}ul" for m in MULTIPLIERS] * blocks),
        keys=", ".join(["(unsigned)k0, 0, (unsigned)k1, 0"] * blocks),
        steps=", ".join([f"{STEPS[0]}u, 0, {STEPS[1]}u, 0"] * blocks),
        order=", ".join(str(4 * b + 3 - l) for b in range(blocks) for l in range(4)),
        rounds=ROUNDS,
        blocks=blocks,
    )
    return [*parts, Part("random.next", text, ("types",))]
