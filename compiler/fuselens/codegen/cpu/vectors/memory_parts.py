"""Prelude parts that move data: loads and stores of every dtype, and conversions between bytes and lanes."""

from __future__ import annotations

from ....ir.loops import ITEMSIZE
from .isa import Isa
from .parts import C_TYPES, REGISTER, REGISTER_C, TOKEN, UNIT, Part, lanes

# Bytes to lanes. x86 has instructions that GCC's __builtin_convertvector does not find.
_LOAD: dict[str, str] = {
    "f64": "@d r; __builtin_memcpy(&r, p, sizeof r); return r;",
    "f32": "@f r; __builtin_memcpy(&r, p, sizeof r); return r;",
    "i64": "@l r; __builtin_memcpy(&r, p, sizeof r); return r;",
    "i32": "@i r; __builtin_memcpy(&r, p, sizeof r); return r;",
    "bf16": "u16x@W h; __builtin_memcpy(&h, p, sizeof h); return (@f)(zero_extend(h) << 16);",
    "f16": "u16x@W h; __builtin_memcpy(&h, p, sizeof h); return half_to_float(h);",
    "i16": "i16x@W h; __builtin_memcpy(&h, p, sizeof h); return sign_extend(h);",
    "i8": "i8x@W h; __builtin_memcpy(&h, p, sizeof h); return sign_extend(h);",
    "u8": "u8x@W h; __builtin_memcpy(&h, p, sizeof h); return (@i)zero_extend(h);",
    "u16": "u16x@W h; __builtin_memcpy(&h, p, sizeof h); return (@i)zero_extend(h);",
    "u32": "@i r; __builtin_memcpy(&r, p, sizeof r); return r;",
    "u64": "@l r; __builtin_memcpy(&r, p, sizeof r); return r;",
    "bool": "u8x@W h; __builtin_memcpy(&h, p, sizeof h); return to_@Mbits(-(@i)zero_extend(h));",
}
_BITS: dict[str, str] = {  # lanes v as they lie in memory
    "f64": "v", "f32": "v", "i64": "v", "i32": "v", "bf16": "narrow16((@i)((@u)v >> 16))", "f16": "float_to_half(v)",
    "i16": "narrow16(v)", "i8": "narrow8(v)", "u8": "narrow8(v)", "u16": "narrow16(v)", "u32": "v", "u64": "v",
    "bool": "narrow8(to_i32(v) & 1)",
}  # fmt: skip
_VALUE: dict[str, str] = {
    "f64": "return x;",
    "f32": "return x;",
    "i64": "return x;",
    "i32": "return x;",
    "bf16": "unsigned b = (unsigned)x.bits << 16; float r; __builtin_memcpy(&r, &b, 4); return r;",
    "f16": "return half_value(x.bits);",
    "i16": "return x;",
    "i8": "return x;",
    "u8": "return x;",
    "u16": "return x;",
    "u32": "return x;",
    "u64": "return x;",
    "bool": "return -(@M)x;",
}
_PUT: dict[str, str] = {
    "f64": "*p = x;",
    "f32": "*p = x;",
    "i64": "*p = x;",
    "i32": "*p = x;",
    "bf16": "unsigned b; __builtin_memcpy(&b, &x, 4); p->bits = b >> 16;",
    "f16": "p->bits = half_bits(x);",
    "i16": "*p = (short)x;",
    "i8": "*p = (signed char)x;",
    "u8": "*p = (unsigned char)x;",
    "u16": "*p = (unsigned short)x;",
    "u32": "*p = x;",
    "u64": "*p = x;",
    "bool": "*p = x & 1;",
}
_BYTES: dict[str, tuple[str, ...]] = {
    "bf16": ("extend.u16", "narrow16"), "f16": ("half", "half_scalar"), "i16": ("extend.i16", "narrow16"),
    "i8": ("extend.i8", "narrow8"), "u8": ("extend.u8", "narrow8"), "u16": ("extend.u16", "narrow16"),
    "bool": ("extend.u8", "narrow8"),
}  # fmt: skip


# AVX loads of some lanes. (dtype, bytes of the vector): builtin, types of its memory and its mask
_MASKED: dict[tuple[str, int], tuple[str, str, str]] = {
    ("f32", 16): ("maskloadps", "float", "int"), ("f32", 32): ("maskloadps256", "float", "int"),
    ("f64", 16): ("maskloadpd", "double", "long long"), ("f64", 32): ("maskloadpd256", "double", "long long"),
    ("i32", 16): ("maskloadd", "int", "int"), ("i32", 32): ("maskloadd256", "int", "int"),
    ("i64", 16): ("maskloadq", "long long", "long long"), ("i64", 32): ("maskloadq256", "long long", "long long"),
}  # fmt: skip


def _load_edge(dtype: str, width: int, isa: Isa) -> str:
    """Statements of a load that runs where fewer than ``width`` elements exist."""
    size = ITEMSIZE[dtype] * width
    if isa.name not in ("avx2", "avx512") or (dtype, size) not in _MASKED:
        return f"p = copy_edge(edge, p, left, {width});"
    builtin, memory, mask = _MASKED[dtype, size]
    token = TOKEN[REGISTER[dtype]]
    vector = f"__attribute__((vector_size({size})))"
    return (
        f"{{ typedef {memory} memory {vector}; typedef {mask} lanes {vector};"
        f" lanes in = lanes{{{lanes(width, '#')}}} < ({mask})left; {token} first = @EACH;"
        f" return in ? ({token})__builtin_ia32_{builtin}((const memory*)p, in) : first; }}"
    ).replace("@EACH", f"{token}{{{lanes(width, '*p')}}}")


def past_caches(to: str, source: str, size: int, most: int) -> str:
    """Statements that copy ``size`` bytes past the caches, in pieces of ``most`` at most; 0: as any others."""
    piece = min(size, most)
    name = {4: "movnti", 8: "movnti64", 16: "movntps", 32: "movntps256", 64: "movntps512"}.get(piece)
    if name is None:
        return f"  __builtin_memcpy({to}, {source}, {size});"
    memory = {4: "int", 8: "long long"}.get(piece, "float")
    vector = f" __attribute__((vector_size({piece})))" if memory == "float" else ""
    text = [
        f"  typedef {memory} piece{vector};",
        f"  piece parts[{size // piece}]; __builtin_memcpy(parts, {source}, {size});",
    ]
    for clang in (True, False):
        text.append("#ifdef __clang__" if clang else "#else")
        for k in range(size // piece):
            at = f"({'piece' if clang else memory}*)({to})"
            at += f" + {k if clang or not vector else k * piece // 4}"
            call = (
                f"__builtin_nontemporal_store(parts[{k}], {at})"
                if clang
                else f"__builtin_ia32_{name}({at}, parts[{k}])"
            )
            text.append(f"  {call};")
    return "\n".join([*text, "#endif"])


def memory_parts(dtype: str, width: int, wide: bool, isa: Isa) -> list[Part]:
    """Access to elements of ``dtype``: contiguous, strided, gathered and broadcast loads, and the stores."""
    c, token = C_TYPES[dtype], TOKEN[REGISTER[dtype]]
    scalar = REGISTER_C[REGISTER[dtype]]
    unit = (dtype,) if dtype in ("bf16", "f16") else ()
    base = ("types", *unit, *_BYTES.get(dtype, ()))
    second = ", ".join(str(2 * l if 2 * l < width else 2 * l + 1) for l in range(width))
    pairs = [str(l // 2 + (l % 2) * width) for l in range(2 * width)]
    backward = ", ".join(str(l) for l in reversed(range(width)))
    load = _LOAD[dtype].replace("to_@Mbits", "to_i64" if wide else "to_i32")
    return [
        Part(
            f"load.{dtype}",
            f"static inline {token} load@W(const {c}* p, long left) {{\n"
            f"  {c} edge[@W];\n"
            f"  if (__builtin_expect(left < @W, 0)) {_load_edge(dtype, width, isa)}\n"
            f"  {load}\n}}",
            (*base, "copy_edge"),
        ),
        Part(f"value.{dtype}", f"static inline {scalar} value@W({c} x) {{ {_VALUE[dtype]} }}", base),
        Part(
            f"put.{dtype}",
            f"static inline void put@W({c}* p, {scalar} x) {{ {_PUT[dtype]} }}",
            base,
        ),
        Part(
            f"each.{dtype}",
            f"static inline {token} each@W(const {c}* p) {{  // the same element in every lane\n"
            f"  {scalar} x = value@W(*p);\n  return {token}{{{lanes(width, 'x')}}};\n}}",
            (f"value.{dtype}",),
        ),
        Part(
            f"strided.{dtype}",
            f"static inline {token} load_strided@W(const {c}* p, long s, long left) {{\n"
            f"  if (__builtin_expect(left >= @W, 1)) return {token}{{{lanes(width, 'value@W(p[# * s])')}}};\n"
            f"  {token} r = each@W(p);\n"
            f"  for (long l = 1; l < left; ++l) r[l] = value@W(p[l * s]);\n  return r;\n}}",
            (f"value.{dtype}", f"each.{dtype}"),
        ),
        Part(
            f"every_second.{dtype}",
            f"static inline {token} load_every_second@W(const {c}* p, long left) {{\n"
            f"  if (__builtin_expect(left < @W, 0)) return load_strided@W(p, 2, left);\n"
            f"  {token} a = load@W(p, @W), b = load@W(p + (@W - 1), @W);  // no element beyond the last lane's\n"
            f"  return __builtin_shufflevector(a, b, {second});\n}}",
            (f"load.{dtype}", f"strided.{dtype}"),
        ),
        Part(
            f"load_pairs.{dtype}",
            f"static inline void load_pairs@W(const {c}* p, {token}* a, {token}* b, long left) {{  // lanes of a and b in turn\n"
            f"  if (__builtin_expect(left < @W, 0)) {{ *a = load_strided@W(p, 2, left), *b = load_strided@W(p + 1, 2, left); return; }}\n"
            f"  {token} x = load@W(p, @W), y = load@W(p + @W, @W);\n"
            f"  *a = __builtin_shufflevector(x, y, {lanes(width, '2 * #')});\n"
            f"  *b = __builtin_shufflevector(x, y, {lanes(width, '2 * # + 1')});\n}}",
            (f"load.{dtype}", f"strided.{dtype}"),
        ),
        Part(
            f"reversed.{dtype}",
            f"static inline {token} load_reversed@W(const {c}* p, long left) {{  // the lanes run backward from p\n"
            f"  if (__builtin_expect(left < @W, 0)) return load_strided@W(p, -1, left);\n"
            f"  {token} r = load@W(p - (@W - 1), @W);\n"
            f"  return __builtin_shufflevector(r, r, {backward});\n}}",
            (f"load.{dtype}", f"strided.{dtype}"),
        ),
        Part(
            f"store_reversed.{dtype}",
            f"static inline void store_reversed@W({c}* p, {token} v, long left) {{\n"
            f"  if (__builtin_expect(left < @W, 0)) return store_strided@W(p, -1, v, left);\n"
            f"  store@W(p - (@W - 1), __builtin_shufflevector(v, v, {backward}), @W);\n}}",
            (f"store.{dtype}", f"store_strided.{dtype}"),
        ),
        Part(
            f"gather.{dtype}",
            f"static inline {token} gather@W(const {c}* p, const long* at) {{\n"
            f"  return {token}{{{lanes(width, 'value@W(p[at[#]])')}}};\n}}",
            (f"value.{dtype}",),
        ),
        Part(
            f"store.{dtype}",
            f"static inline void store@W({c}* p, {token} v, long left) {{\n"
            f"  {c} edge[@W], *whole = p;\n"
            f"  if (__builtin_expect(left < @W, 0)) p = edge;\n"
            f"  auto bits = {_BITS[dtype]}; __builtin_memcpy(p, &bits, sizeof bits);\n"
            f"  if (__builtin_expect(left < @W, 0)) put_edge(whole, edge, left);\n}}",
            (*base, "put_edge"),
        ),
        Part(
            f"stream.{dtype}",
            f"static inline void stream@W({c}* p, {token} v, long left) {{  // past the caches, to a multiple of the vector's size\n"
            f"  if (__builtin_expect(left < @W, 0)) return store@W(p, v, left);\n"
            f"  auto bits = {_BITS[dtype]};\n{past_caches('p', '&bits', ITEMSIZE[dtype] * width, isa.streams)}\n}}",
            (f"store.{dtype}",),
        ),
        Part(
            f"stream_any.{dtype}",
            f"static inline void stream_any@W({c}* p, {token} v, long left) {{  // where it is such a multiple\n"
            f"  if ((unsigned long)p % sizeof({c}[@W])) store@W(p, v, left); else stream@W(p, v, left);\n}}",
            (f"stream.{dtype}",),
        ),
        Part(
            f"scatter.{dtype}",
            f"static inline void scatter@W({c}* p, const long* at, {token} v, long left) {{\n"
            f"  for (long l = 0; l < (left < @W ? left : @W); ++l) put@W(p + at[l], v[l]);\n}}",
            (f"put.{dtype}",),
        ),
        Part(
            f"store_strided.{dtype}",
            f"static inline void store_strided@W({c}* p, long s, {token} v, long left) {{\n"
            f"  for (long l = 0; l < (left < @W ? left : @W); ++l) put@W(p + l * s, v[l]);\n}}",
            (f"put.{dtype}",),
        ),
        Part(
            f"store_pairs.{dtype}",
            f"static inline void store_pairs@W({c}* p, {token} a, {token} b, long left) {{  // the lanes of a and b in turn\n"
            f"  if (__builtin_expect(left < @W, 0)) {{ store_strided@W(p, 2, a, left); return store_strided@W(p + 1, 2, b, left); }}\n"
            f"  store@W(p, __builtin_shufflevector(a, b, {', '.join(pairs[:width])}), @W);\n"
            f"  store@W(p + @W, __builtin_shufflevector(a, b, {', '.join(pairs[width:])}), @W);\n}}",
            (f"store.{dtype}", f"store_strided.{dtype}"),
        ),
    ]


_COPY_EDGE = """
// The last lanes of a row: elements that exist, then repetitions of the first, so that every lane holds valid data.
template <class T>
static __attribute__((noinline, cold)) const T* copy_edge(T* edge, const T* p, long left, long lanes) {
  for (long l = 0; l < lanes; ++l) edge[l] = p[l < left ? l : 0];
  return edge;
}""".strip()
UNIT["copy_edge"] = Part("copy_edge", _COPY_EDGE)

_PUT_EDGE = """
// The first lanes of a vector in memory, in pieces of constant size.
template <class T>
static inline void put_edge(T* p, const T* edge, long left) {
  if (left & 8) { __builtin_memcpy(p, edge, 8 * sizeof(T)); p += 8; edge += 8; }
  if (left & 4) { __builtin_memcpy(p, edge, 4 * sizeof(T)); p += 4; edge += 4; }
  if (left & 2) { __builtin_memcpy(p, edge, 2 * sizeof(T)); p += 2; edge += 2; }
  if (left & 1) *p = *edge;
}""".strip()
UNIT["put_edge"] = Part("put_edge", _PUT_EDGE)

# binary16 by integers: not every compiler has _Float16. 2^112 moves the exponent's bias, and makes denormals normal.
_HALF_SCALAR = """
static inline float half_value(unsigned short h) {
  unsigned m = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
  float x; __builtin_memcpy(&x, &m, 4);
  x *= 5.192296858534828e33f;
  unsigned r; __builtin_memcpy(&r, &x, 4);
  r = (m >= 0x0f800000u ? m | 0x7f800000u : r) | sign;
  __builtin_memcpy(&x, &r, 4);
  return x;
}
static inline unsigned short half_bits(float x) {
  unsigned b; __builtin_memcpy(&b, &x, 4);
  unsigned a = b & 0x7fffffffu, r = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13, small;
  float y = __builtin_fabsf(x) + 0.5f; __builtin_memcpy(&small, &y, 4);  // denormals round as the sum does
  r = a < 0x38800000u ? small - 0x3f000000u : r;
  r = a >= 0x47800000u ? (a > 0x7f800000u ? 0x7e00u : 0x7c00u) : r;
  return r | (b >> 16 & 0x8000u);
}
""".strip()
_HALF_LANES = """
static inline @f half_to_float(u16x@W h) {
  @u w = zero_extend(h), m = (w & 0x7fffu) << 13;
  @u r = (@u)((@f)m * 5.192296858534828e33f);
  return (@f)((m >= 0x0f800000u ? m | 0x7f800000u : r) | (w & 0x8000u) << 16);
}
static inline u16x@W float_to_half(@f v) {
  @u b = (@u)v, a = b & 0x7fffffffu, r = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  r = a < 0x38800000u ? (@u)((@f)a + 0.5f) - 0x3f000000u : r;
  r = a >= 0x47800000u ? (a > 0x7f800000u ? @u{} + 0x7e00u : @u{} + 0x7c00u) : r;
  return narrow16((@i)(r | (b >> 16 & 0x8000u)));
}
""".strip()
UNIT["half_scalar"] = Part("half_scalar", _HALF_SCALAR)


def _extending(instruction: str, narrow: str, wide: str) -> dict[int, str]:
    """The vectors and builtins of GCC that extend 4, 8 and 16 elements."""
    builtin = f"__builtin_ia32_{instruction}"
    return {
        4: f"{narrow} {builtin}128(q)",
        8: f"{narrow} {builtin}256(q)",
        16: f"{wide} {builtin}512_mask(q,@i{{}},-1)",
    }


def conversion_parts(width: int, isa: Isa) -> list[Part]:
    """Widening and narrowing between bytes in memory and lanes of 32 bits."""
    x86 = isa.name in ("avx2", "avx512")
    longest = 16 if isa.name == "avx512" else 8

    def extend(source: str, result: str, gcc: dict[int, str]) -> str:
        plain = f"{result} r; for (int l = 0; l < @W; ++l) r[l] = h[l]; return r;"
        if not x86 or width not in gcc or width > longest:
            return plain
        vector, builtin = gcc[width].split()
        size = {"v16qi": 16, "v8hi": 16, "v16hi": 32}[vector]
        element = "char" if vector == "v16qi" else "short"
        fill = "  __builtin_memcpy(&q, &h, sizeof q);\n"
        if width * (1 if vector == "v16qi" else 2) < size:  # through a register: through memory the wider load waits
            fill = (
                "  typedef long words __attribute__((vector_size(16)));\n"
                "  long word = 0; __builtin_memcpy(&word, &h, sizeof h);\n  q = (all)(words){word, 0};\n"
            )
        return (
            f"\n#ifdef __clang__\n  return __builtin_convertvector(h, {result});\n#else\n"
            f"  typedef {element} all __attribute__((vector_size({size})));\n  all q;\n{fill}"
            f"  return ({result}){builtin};\n#endif\n"
        )

    def narrow(element: str, ratio: int) -> str:
        """The low bytes of each lane: on x86 one byte shuffle instead of masking and packing."""
        if not x86:
            return f"{element}x@W r; for (int l = 0; l < @W; ++l) r[l] = v[l]; return r;"
        c = {"u16": "unsigned short", "u8": "unsigned char"}[element]
        order = ", ".join(str(l * ratio) for l in range(width))
        wide = f"typedef {c} all __attribute__((vector_size(4 * @W)))"
        return f"{wide}; return __builtin_shufflevector((all)v, (all)v, {order});"

    parts = [
        Part(
            "extend.u16",
            "static inline @u zero_extend(u16x@W h) { "
            + extend("u16", "@u", _extending("pmovzxwd", "v8hi", "v16hi"))
            + " }",
            ("types",),
        ),
        Part(
            "extend.i16",
            "static inline @i sign_extend(i16x@W h) { "
            + extend("i16", "@i", _extending("pmovsxwd", "v8hi", "v16hi"))
            + " }",
            ("types",),
        ),
        Part(
            "extend.u8",
            "static inline @u zero_extend(u8x@W h) { "
            + extend("u8", "@u", _extending("pmovzxbd", "v16qi", "v16qi"))
            + " }",
            ("types",),
        ),
        Part(
            "extend.i8",
            "static inline @i sign_extend(i8x@W h) { "
            + extend("i8", "@i", _extending("pmovsxbd", "v16qi", "v16qi"))
            + " }",
            ("types",),
        ),
        Part(
            "narrow16",
            "static inline u16x@W narrow16(@i v) { " + narrow("u16", 2) + " }",
            ("types",),
        ),
        Part(
            "narrow8",
            "static inline u8x@W narrow8(@i v) { " + narrow("u8", 4) + " }",
            ("types",),
        ),
    ]
    half = _HALF_LANES
    if x86 and width == 8:
        half = (
            f"#ifdef __clang__\n{half}\n#else\n"
            "typedef short half_lanes@W __attribute__((vector_size(16)));\n"
            "static inline @f half_to_float(u16x@W h) { return __builtin_ia32_vcvtph2ps256((half_lanes@W)h); }\n"
            "static inline u16x@W float_to_half(@f v) { return (u16x@W)__builtin_ia32_vcvtps2ph256(v, 0); }\n#endif"
        )
    if isa.name == "avx512" and width == 16:
        half = (
            f"#ifdef __clang__\n{half}\n#else\n"
            "typedef short half_lanes@W __attribute__((vector_size(32)));\n"
            "static inline @f half_to_float(u16x@W h) { return __builtin_ia32_vcvtph2ps512_mask((half_lanes@W)h, @f{}, -1, 4); }\n"
            "static inline u16x@W float_to_half(@f v) {"
            " return (u16x@W)__builtin_ia32_vcvtps2ph512_mask(v, 0, half_lanes@W{}, -1); }\n#endif"
        )
    parts.append(Part("half", half, ("types", "extend.u16", "narrow16")))
    return parts
