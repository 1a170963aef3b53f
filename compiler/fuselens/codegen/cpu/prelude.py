"""The inlined C++ prelude: vector types, memory access and vector maths. Only the parts that a unit uses are printed.

No header is included, because headers cost more to parse than the kernels to compile. Parts are templates in which
``@f @d @i @l @m`` stand for the vector types of one lane count (f32, f64, i32, i64 and the boolean mask, whose lanes
are as wide as the kernel's widest element) and ``@W`` for the lane count; each is instantiated per lane count in use.

The f32 functions are ours: argument reduction, a polynomial, and care for NaN, infinities, signed zeros and denormals.
Polynomials are minimax fits of our own (Lawson-weighted least squares over Chebyshev nodes in 40 digits, coefficients
rounded to f32 one after the other, lowest degree first); ``tests/codegen/test_vector_maths.py`` measures each function
against double precision. f64 and the rare f32 functions go lane by lane to libm, declared by hand.

They rely on ``-ffp-contract=off`` and on IEEE semantics (never ``-ffast-math``): rounding by a magic number is exact.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .isa import Isa


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of prelude. ``needs`` are parts that must come with it (they are printed in table order)."""

    name: str
    text: str
    needs: tuple[str, ...] = ()


C_TYPES: dict[str, str] = {
    "f64": "double", "f32": "float", "f16": "f16", "bf16": "bf16", "i64": "long", "i32": "int", "i16": "short",
    "i8": "signed char", "u8": "unsigned char", "bool": "bool",
}  # fmt: skip

# What a memory element looks like in a register.
REGISTER: dict[str, str] = {
    "f64": "f64", "f32": "f32", "f16": "f32", "bf16": "f32", "i64": "i64", "i32": "i32", "i16": "i32", "i8": "i32",
    "u8": "i32", "bool": "mask",
}  # fmt: skip
REGISTER_C: dict[str, str] = {"f64": "double", "f32": "float", "i64": "long", "i32": "int", "mask": "@M"}
TOKEN: dict[str, str] = {"f64": "@d", "f32": "@f", "i64": "@l", "i32": "@i", "mask": "@m"}


def _lanes(width: int, item: str, separator: str = ", ") -> str:
    """``item`` once per lane, ``#`` replaced by the lane number."""
    return separator.join(item.replace("#", str(l)) for l in range(width))


def vector_type(register: str, width: int) -> str:
    """The C++ name of a vector of ``width`` lanes of a register kind."""
    return f"{register}x{width}"


# --- scalars and types, once per unit ------------------------------------------------------------------------------

UNIT: dict[str, Part] = {
    p.name: p
    for p in (
        Part("bf16", "struct bf16 { unsigned short bits; };  // the upper half of a float"),
        Part("f16", "struct f16 { unsigned short bits; };  // IEEE binary16"),
        Part(
            "error",
            'extern "C" { int fuselens_error = 0; }  // set to 1 by an integer division by zero; the host program raises',
        ),
        Part(
            "floor_div",
            "static inline long floor_div(long a, long b) { long q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); }\n"
            "static inline long floor_mod(long a, long b) { long r = a % b; return r + (r != 0 && (r < 0) != (b < 0) ? b : 0); }",
        ),
        Part(
            "min_max",
            "static inline long least(long a, long b) { return a < b ? a : b; }\n"
            "static inline long greatest(long a, long b) { return a > b ? a : b; }",
        ),
        Part(
            "omp",
            'extern "C" int omp_get_thread_num();\n'
            'extern "C" int omp_get_num_threads();\n'
            'extern "C" int omp_get_max_threads();',
        ),
    )
}

_DIVISION = """
static inline {t} div_floor({t} a, {t} b) {
  if (b == 0) { fuselens_error = 1; return 0; }
  if (b == -1) return ({t})(0 - (unsigned {t})a);  // the quotient of the least integer wraps instead of trapping
  {t} q = a / b;
  return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
static inline {t} div_trunc({t} a, {t} b) {
  if (b == 0) { fuselens_error = 1; return 0; }
  return b == -1 ? ({t})(0 - (unsigned {t})a) : a / b;
}
static inline {t} mod_floor({t} a, {t} b) {
  if (b == 0) { fuselens_error = 1; return 0; }
  {t} r = b == -1 ? 0 : a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static inline {t} mod_trunc({t} a, {t} b) {
  if (b == 0) { fuselens_error = 1; return 0; }
  return b == -1 ? 0 : a % b;
}
static inline {t} int_pow({t} a, {t} b) {  // as torch: a negative exponent gives 0, except for bases 1 and -1
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
  {t} r = 1;
  for (; b; b >>= 1, a = ({t})((unsigned {t})a * (unsigned {t})a))
    if (b & 1) r = ({t})((unsigned {t})r * (unsigned {t})a);
  return r;
}""".strip()
UNIT["division.i32"] = Part("division.i32", _DIVISION.replace("{t}", "int"), ("error",))
UNIT["division.i64"] = Part("division.i64", _DIVISION.replace("{t}", "long"), ("error",))

# libm, by lanes. (name, arguments)
LIBM: dict[str, int] = {
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1, "sin": 1, "cos": 1, "tan": 1,
    "asin": 1, "acos": 1, "atan": 1, "atan2": 2, "sinh": 1, "cosh": 1, "tanh": 1, "asinh": 1, "acosh": 1, "atanh": 1,
    "erf": 1, "erfc": 1, "lgamma": 1, "hypot": 2, "nextafter": 2, "pow": 2, "fmod": 2,
}  # fmt: skip
for _name, _arity in LIBM.items():
    for _suffix, _type in (("f", "float"), ("", "double")):
        _arguments = ", ".join([_type] * _arity)
        UNIT[f"libm.{_name}{_suffix}"] = Part(
            f"libm.{_name}{_suffix}", f'extern "C" {_type} {_name}{_suffix}({_arguments}) noexcept;'
        )

# --- per lane count: types ------------------------------------------------------------------------------------------

_TYPES = """
typedef float @f __attribute__((vector_size(4 * @W)));
typedef double @d __attribute__((vector_size(8 * @W)));
typedef int @i __attribute__((vector_size(4 * @W)));
typedef long @l __attribute__((vector_size(8 * @W)));
typedef unsigned @u __attribute__((vector_size(4 * @W)));
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

# --- per lane count: memory -----------------------------------------------------------------------------------------

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
    "bool": "u8x@W h; __builtin_memcpy(&h, p, sizeof h); return to_@Mbits(-(@i)zero_extend(h));",
}
_STORE: dict[str, str] = {
    "f64": "__builtin_memcpy(p, &v, sizeof v);",
    "f32": "__builtin_memcpy(p, &v, sizeof v);",
    "i64": "__builtin_memcpy(p, &v, sizeof v);",
    "i32": "__builtin_memcpy(p, &v, sizeof v);",
    "bf16": "u16x@W h = narrow16((@i)((@u)v >> 16)); __builtin_memcpy(p, &h, sizeof h);",
    "f16": "u16x@W h = float_to_half(v); __builtin_memcpy(p, &h, sizeof h);",
    "i16": "u16x@W h = narrow16(v); __builtin_memcpy(p, &h, sizeof h);",
    "i8": "u8x@W h = narrow8(v); __builtin_memcpy(p, &h, sizeof h);",
    "u8": "u8x@W h = narrow8(v); __builtin_memcpy(p, &h, sizeof h);",
    "bool": "u8x@W h = narrow8(to_i32(v) & 1); __builtin_memcpy(p, &h, sizeof h);",
}
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
    "bool": "*p = x & 1;",
}
_BYTES: dict[str, tuple[str, ...]] = {
    "bf16": ("extend.u16", "narrow16"), "f16": ("half",), "i16": ("extend.i16", "narrow16"),
    "i8": ("extend.i8", "narrow8"), "u8": ("extend.u8", "narrow8"), "bool": ("extend.u8", "narrow8"),
}  # fmt: skip


def _memory(dtype: str, width: int, wide: bool) -> list[Part]:
    """Access to elements of ``dtype``: contiguous, strided, gathered and broadcast loads, and the stores."""
    c, token = C_TYPES[dtype], TOKEN[REGISTER[dtype]]
    scalar = REGISTER_C[REGISTER[dtype]]
    unit = (dtype,) if dtype in ("bf16", "f16") else ()
    base = ("types", *unit, *_BYTES.get(dtype, ()))
    load = _LOAD[dtype].replace("to_@Mbits", "to_i64" if wide else "to_i32")
    return [
        Part(
            f"load.{dtype}",
            f"static inline {token} load@W(const {c}* p, long left) {{\n"
            f"  {c} edge[@W];\n"
            f"  if (__builtin_expect(left < @W, 0)) p = copy_edge(edge, p, left, @W);\n"
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
            f"  {scalar} x = value@W(*p);\n  return {token}{{{_lanes(width, 'x')}}};\n}}",
            (f"value.{dtype}",),
        ),
        Part(
            f"strided.{dtype}",
            f"static inline {token} load_strided@W(const {c}* p, long s, long left) {{\n"
            f"  if (__builtin_expect(left >= @W, 1)) return {token}{{{_lanes(width, 'value@W(p[# * s])')}}};\n"
            f"  {token} r = each@W(p);\n"
            f"  for (long l = 1; l < left; ++l) r[l] = value@W(p[l * s]);\n  return r;\n}}",
            (f"value.{dtype}", f"each.{dtype}"),
        ),
        Part(
            f"gather.{dtype}",
            f"static inline {token} gather@W(const {c}* p, const long* at) {{\n"
            f"  return {token}{{{_lanes(width, 'value@W(p[at[#]])')}}};\n}}",
            (f"value.{dtype}",),
        ),
        Part(
            f"store.{dtype}",
            f"static inline void store@W({c}* p, {token} v, long left) {{\n"
            f"  if (__builtin_expect(left < @W, 0)) {{\n"
            f"    for (long l = 0; l < left; ++l) put@W(p + l, v[l]);\n    return;\n  }}\n"
            f"  {_STORE[dtype]}\n}}",
            (*base, f"put.{dtype}"),
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
    ]


_COPY_EDGE = """
// The last lanes of a row: elements that exist, then repetitions of the first, so that every lane holds valid data.
template <class T>
static __attribute__((noinline, cold)) const T* copy_edge(T* edge, const T* p, long left, long lanes) {
  for (long l = 0; l < lanes; ++l) edge[l] = p[l < left ? l : 0];
  return edge;
}""".strip()
UNIT["copy_edge"] = Part("copy_edge", _COPY_EDGE)

_HALF_SCALAR = """
static inline float half_value(unsigned short h) { _Float16 x; __builtin_memcpy(&x, &h, 2); return (float)x; }
static inline unsigned short half_bits(float x) { _Float16 h = (_Float16)x; unsigned short r; __builtin_memcpy(&r, &h, 2); return r; }
""".strip()
UNIT["half_scalar"] = Part("half_scalar", _HALF_SCALAR)


def _conversions(width: int, isa: Isa) -> list[Part]:
    """Widening and narrowing between bytes in memory and lanes of 32 bits."""
    x86 = isa.name in ("avx2", "avx512")
    def extend(source: str, result: str, gcc: dict[int, str]) -> str:
        plain = f"{result} r; for (int l = 0; l < @W; ++l) r[l] = h[l]; return r;"
        if not x86 or width not in gcc:
            return plain
        vector, builtin = gcc[width].split()
        size = {"v16qi": 16, "v8hi": 16, "v16hi": 32}[vector]
        element = "char" if vector == "v16qi" else "short"
        return (
            f"\n#ifdef __clang__\n  return __builtin_convertvector(h, {result});\n#else\n"
            f"  {element} q __attribute__((vector_size({size}))) = {{}}; __builtin_memcpy(&q, &h, sizeof h);\n"
            f"  return ({result}){builtin};\n#endif\n"
        )

    parts = [
        Part(
            "extend.u16",
            "static inline @u zero_extend(u16x@W h) { "
            + extend("u16", "@u", {4: "v8hi __builtin_ia32_pmovzxwd128(q)", 8: "v8hi __builtin_ia32_pmovzxwd256(q)"})
            + " }",
            ("types",),
        ),
        Part(
            "extend.i16",
            "static inline @i sign_extend(i16x@W h) { "
            + extend("i16", "@i", {4: "v8hi __builtin_ia32_pmovsxwd128(q)", 8: "v8hi __builtin_ia32_pmovsxwd256(q)"})
            + " }",
            ("types",),
        ),
        Part(
            "extend.u8",
            "static inline @u zero_extend(u8x@W h) { "
            + extend("u8", "@u", {4: "v16qi __builtin_ia32_pmovzxbd128(q)", 8: "v16qi __builtin_ia32_pmovzxbd256(q)"})
            + " }",
            ("types",),
        ),
        Part(
            "extend.i8",
            "static inline @i sign_extend(i8x@W h) { "
            + extend("i8", "@i", {4: "v16qi __builtin_ia32_pmovsxbd128(q)", 8: "v16qi __builtin_ia32_pmovsxbd256(q)"})
            + " }",
            ("types",),
        ),
        Part(
            "narrow16",
            "static inline u16x@W narrow16(@i v) { u16x@W r; for (int l = 0; l < @W; ++l) r[l] = (unsigned short)v[l]; return r; }",
            ("types",),
        ),
        Part(
            "narrow8",
            "static inline u8x@W narrow8(@i v) { u8x@W r; for (int l = 0; l < @W; ++l) r[l] = (unsigned char)v[l]; return r; }",
            ("types",),
        ),
    ]
    lanes_half = (
        "static inline @f half_to_float(u16x@W h) { @f r; for (int l = 0; l < @W; ++l) r[l] = half_value(h[l]); return r; }\n"
        "static inline u16x@W float_to_half(@f v) { u16x@W r; for (int l = 0; l < @W; ++l) r[l] = half_bits(v[l]); return r; }"
    )
    if x86 and width == 8:
        half = (
            "typedef short half_lanes@W __attribute__((vector_size(16)));\n"
            "static inline @f half_to_float(u16x@W h) { return __builtin_ia32_vcvtph2ps256((half_lanes@W)h); }\n"
            "static inline u16x@W float_to_half(@f v) { return (u16x@W)__builtin_ia32_vcvtps2ph256(v, 0); }"
        )
    else:
        half = lanes_half
    parts.append(Part("half", half, ("types", "half_scalar")))
    return parts


# --- per lane count: maths ------------------------------------------------------------------------------------------


def _by_lanes(name: str, token: str, call: str, arity: int = 1) -> str:
    arguments = ", ".join(f"{token} {v}" for v in "xyz"[:arity])
    passed = ", ".join(f"{v}[l]" for v in "xyz"[:arity])
    return f"static inline {token} {name}({arguments}) {{ {token} r; for (int l = 0; l < @W; ++l) r[l] = {call}({passed}); return r; }}"


_BITS: dict[str, tuple[str, str, str]] = {  # float kind: integer of its width, all bits but the sign, the sign
    "@f": ("@i", "0x7fffffff", "(int)0x80000000"),
    "@d": ("@l", "0x7fffffffffffffffL", "(long)0x8000000000000000L"),
}


def _sign_parts() -> list[Part]:
    parts = []
    for kind, token in (("f32", "@f"), ("f64", "@d")):
        bits, rest, sign = _BITS[token]
        absolute = f"static inline {token} abs({token} x) {{ return ({token})(({bits})x & {rest}); }}"
        parts.append(Part(f"bits.{kind}", f"static inline {bits} bits({token} x) {{ return ({bits})x; }}", ("types",)))
        parts.append(Part(f"abs.{kind}", absolute, ("types",)))
        parts.append(
            Part(
                f"copysign.{kind}",
                f"static inline {token} copysign({token} x, {token} y)"
                f" {{ return ({token})((({bits})x & {rest}) | (({bits})y & {sign})); }}",
                ("types",),
            )
        )
    for kind, token in (("i32", "@i"), ("i64", "@l")):
        parts.append(Part(f"abs.{kind}", f"static inline {token} abs({token} x) {{ return x < 0 ? -x : x; }}", ("types",)))
    return parts


# The x86 instructions return their second operand when either is NaN; a comparison with NaN is false.
_EXTREME_BUILTINS: dict[tuple[str, int], str] = {
    ("@f", 4): "__builtin_ia32_%sps(a, b)",
    ("@f", 8): "__builtin_ia32_%sps256(a, b)",
    ("@f", 16): "__builtin_ia32_%sps512_mask(a, b, a, -1, 4)",
    ("@d", 4): "__builtin_ia32_%spd256(a, b)",
    ("@d", 8): "__builtin_ia32_%spd512_mask(a, b, a, -1, 4)",
}


def _extremes(width: int, isa: Isa) -> list[Part]:
    """``max`` and ``min`` give NaN when either operand is; ``fmax`` and ``fmin`` only when both are."""
    parts = []
    for name, sign in (("max", ">"), ("min", "<")):
        for kind, token in (("f32", "@f"), ("f64", "@d")):
            builtin = _EXTREME_BUILTINS.get((token, width)) if isa.name in ("avx2", "avx512") else None
            fits = width * int(kind[1:]) // 8 <= isa.register
            # b when either is NaN, so: a when a is
            chosen = f"a != a ? a : {builtin % name}" if builtin and fits else f"(a {sign} b) | (a != a) ? a : b"
            plain = f"(a {sign} b) | (a != a) ? a : b"
            text = f"static inline {token} {name}({token} a, {token} b) {{ return {chosen}; }}"
            if chosen != plain and width >= 8 and isa.register == 64:
                safe = f"static inline {token} {name}({token} a, {token} b) {{ return {plain}; }}"
                text = f"#ifdef __clang__\n{safe}\n#else\n{text}\n#endif"
            parts.append(Part(f"{name}.{kind}", text, ("types",)))
            other = f"static inline {token} f{name}({token} a, {token} b) {{ return (a {sign} b) | (b != b) ? a : b; }}"
            parts.append(Part(f"f{name}.{kind}", other, ("types",)))
        for kind, token in (("i32", "@i"), ("i64", "@l")):
            text = f"static inline {token} {name}({token} a, {token} b) {{ return a {sign} b ? a : b; }}"
            parts.append(Part(f"{name}.{kind}", text, ("types",)))
    return parts


_EXP_REDUCE = """
// exp(x) = 2^k (1 + q) with |r| <= ln(2)/2 and q = r + r^2 P(r)
static inline @f exp_reduce(@f x, @i* k) {
  @f n = (x * 1.44269502f + 12582912.0f) - 12582912.0f;
  @f r = fma(n, splat(x, -0.693145752f), x);
  r = fma(n, splat(x, -1.42860677e-06f), r);
  *k = __builtin_convertvector(n, @i);
  @f p = fma(splat(x, 0.00139374938f), r, splat(x, 0.00836895127f));
  p = fma(p, r, splat(x, 0.0416664369f));
  p = fma(p, r, splat(x, 0.166665182f));
  p = fma(p, r, splat(x, 0.5f));
  return fma(p, r * r, r);
}
static inline @f pow2(@i k) { return (@f)((k + 127) << 23); }  // -126 <= k <= 127
""".strip()

_EXP = """
static inline @f exp(@f x) {
  x = x < -104.0f ? splat(x, -104.0f) : x;  // the order of operands keeps NaN
  x = x > 89.0f ? splat(x, 89.0f) : x;
  @i k;
  @f y = exp_reduce(x, &k) + 1.0f;
  @i half = k >> 1;  // two factors, so that overflow and denormals round once
  return y * pow2(half) * pow2(k - half);
}
""".strip()

_EXP2 = """
static inline @f exp2(@f x) {
  x = x < -151.0f ? splat(x, -151.0f) : x;
  x = x > 129.0f ? splat(x, 129.0f) : x;
  @f n = (x + 12582912.0f) - 12582912.0f;
  @i k = __builtin_convertvector(n, @i);
  @f r = (x - n) * 0.693147182f;
  @f p = fma(splat(x, 0.00139374938f), r, splat(x, 0.00836895127f));
  p = fma(p, r, splat(x, 0.0416664369f));
  p = fma(p, r, splat(x, 0.166665182f));
  p = fma(p, r, splat(x, 0.5f));
  @f y = fma(p, r * r, r) + 1.0f;
  @i half = k >> 1;
  return y * pow2(half) * pow2(k - half);
}
""".strip()

_EXPM1 = """
static inline @f expm1(@f x) {
  @f c = x < -25.0f ? splat(x, -25.0f) : x;
  c = c > 89.0f ? splat(x, 89.0f) : c;
  @i k;
  @f q = exp_reduce(c, &k);
  @f s = pow2(k - 1);  // half of 2^k, which may not be representable
  @f y = 2.0f * fma(s, q, s - 0.5f);
  return x == 0.0f ? x : y;
}
""".strip()

_LOG_SPLIT = """
// log(x) = k ln(2) + f + t, with 1 + f in [2/3, 4/3) and t = f^2 (-1/2 + f Q(f)); x positive and finite
static inline @f log_split(@f x, @f* k, @f* f) {
  @i tiny = x < 1.17549435e-38f;
  @i b = (@i)(tiny ? x * 8388608.0f : x);
  @i e = (b - 0x3f2aaaab) >> 23;
  *f = (@f)(b - (e << 23)) - 1.0f;
  *k = __builtin_convertvector(e + (tiny & -23), @f);
  @f q = fma(splat(x, -0.128858328f), *f, splat(x, 0.139867067f));
  q = fma(q, *f, splat(x, -0.121856809f));
  q = fma(q, *f, splat(x, 0.140053406f));
  q = fma(q, *f, splat(x, -0.166803777f));
  q = fma(q, *f, splat(x, 0.200104445f));
  q = fma(q, *f, splat(x, -0.249998003f));
  q = fma(q, *f, splat(x, 0.333332151f));
  return *f * *f * fma(q, *f, splat(x, -0.5f));
}
static inline @f log_edges(@f x, @f y) {
  y = x == __builtin_inff() ? x : y;
  y = x == 0.0f ? splat(x, -__builtin_inff()) : y;
  return x >= 0.0f ? y : splat(x, __builtin_nanf(""));
}
""".strip()

_LOG = """
static inline @f log(@f x) {
  @f k, f, t = log_split(x, &k, &f);
  t = fma(k, splat(x, 1.42860677e-06f), t);
  return log_edges(x, fma(k, splat(x, 0.693145752f), f + t));
}
""".strip()
_LOG2 = """
static inline @f log2(@f x) {
  @f k, f, t = log_split(x, &k, &f);
  t = fma(f, splat(x, 1.92596303e-08f), t * 1.44269502f);
  return log_edges(x, k + fma(f, splat(x, 1.44269502f), t));
}
""".strip()
_LOG10 = """
static inline @f log10(@f x) {
  @f k, f, t = log_split(x, &k, &f);
  t = fma(f, splat(x, 1.00890175e-08f), t * 0.434294492f);
  t = fma(k, splat(x, 7.90374682e-07f), t);
  t = fma(f, splat(x, 0.434294492f), t);
  return log_edges(x, fma(k, splat(x, 0.301029205f), t));
}
""".strip()
_LOG1P = """
static inline @f log1p(@f x) {
  @f u = 1.0f + x;
  @f lost = x - (u - 1.0f);  // what rounding 1 + x dropped
  @f y = log(u) + lost / u;
  y = x == __builtin_inff() ? x : y;
  y = x == -1.0f ? splat(x, -__builtin_inff()) : y;
  return x == 0.0f ? x : y;
}
""".strip()

# pi/2 in three parts; fused multiply-adds keep what cancellation leaves. Far arguments go to libm.
_SIN_COS = """
static inline @f sin_cos(@f x, int quarter) {  // sin(x + quarter pi/2)
  @f n = (x * 0.636619747f + 12582912.0f) - 12582912.0f;
  @f r = fma(n, splat(x, -1.57079637f), x);
  r = fma(n, splat(x, 4.37113883e-08f), r);
  r = fma(n, splat(x, 1.71512489e-15f), r);
  @i k = __builtin_convertvector(n, @i) + quarter;
  @f u = r * r;
  @f s = fma(splat(x, 2.8045306e-06f), u, splat(x, -0.000198503039f));
  s = fma(s, u, splat(x, 0.00833337288f));
  s = fma(s, u, splat(x, -0.166666672f));
  s = fma(s, u * r, r);
  @f c = fma(splat(x, 2.44329713e-05f), u, splat(x, -0.0013887313f));
  c = fma(c, u, splat(x, 0.0416666456f));
  c = fma(c, u * u, fma(u, splat(x, -0.5f), splat(x, 1.0f)));
  @f y = (k & 1) != 0 ? c : s;
  return (@f)((@i)y ^ ((k & 2) << 30));
}
static inline int any_far(@f x) {
  @i far = (@i)x & 0x7fffffff;
  int found = 0;
  for (int l = 0; l < @W; ++l) found |= far[l] > 0x461c4000;  // 10,000
  return found;
}
""".strip()
_SIN = """
static __attribute__((noinline, cold)) @f sin_far(@f x) { @f r; for (int l = 0; l < @W; ++l) r[l] = sinf(x[l]); return r; }
static inline @f sin(@f x) {
  if (__builtin_expect(any_far(x), 0)) return sin_far(x);
  @f y = sin_cos(x, 0);
  return x == 0.0f ? x : y;
}
""".strip()
_COS = """
static __attribute__((noinline, cold)) @f cos_far(@f x) { @f r; for (int l = 0; l < @W; ++l) r[l] = cosf(x[l]); return r; }
static inline @f cos(@f x) {
  if (__builtin_expect(any_far(x), 0)) return cos_far(x);
  return sin_cos(x, 1);
}
""".strip()

_TANH = """
static inline @f tanh(@f x) {
  @f a = abs(x), u = x * x;
  @f t = fma(splat(x, -0.00571620278f), u, splat(x, 0.0206497088f));
  t = fma(t, u, splat(x, -0.0537431724f));
  t = fma(t, u, splat(x, 0.133314863f));
  t = fma(t, u, splat(x, -0.333332837f));
  @f near = fma(t, u * x, x);
  @f far = copysign(1.0f - 2.0f / (exp(a + a) + 1.0f), x);
  return a < 0.625f ? near : far;
}
""".strip()

_ERF = """
static inline @f erf(@f x) {
  @f a = abs(x), u = x * x;
  @f p = fma(splat(x, 8.30120262e-05f), u, splat(x, -0.000812513521f));
  p = fma(p, u, splat(x, 0.0051993141f));
  p = fma(p, u, splat(x, -0.0268585924f));
  p = fma(p, u, splat(x, 0.112836771f));
  p = fma(p, u, splat(x, -0.376126319f));
  p = fma(p, u, splat(x, 0.128379166f));
  @f near = fma(p, x, x);
  @f t = a > 4.0f ? splat(x, 4.0f) : a;  // -log(erfc(t)) is a smooth function of t
  @f g = fma(splat(x, -0.000194781402f), t, splat(x, 0.00303185452f));
  g = fma(g, t, splat(x, -0.0221815091f));
  g = fma(g, t, splat(x, 0.103837118f));
  g = fma(g, t, splat(x, 0.637290239f));
  g = fma(g, t, splat(x, 1.12761128f));
  g = fma(g, t, splat(x, 0.000211304039f));
  @f far = copysign(1.0f - exp(-g), x);
  return a < 0.93f ? near : far;
}
""".strip()

# Division of floats as torch defines it (c10::div_floor_floating) and Python's sign rule for the remainder.
_FLOAT_DIVISION = """
static inline @T mod_trunc(@T a, @T b) { return fmod(a, b); }
static inline @T mod_floor(@T a, @T b) {
  @T r = fmod(a, b);
  return (r != 0) & ((r < 0) ^ (b < 0)) ? r + b : r;
}
static inline @T div_trunc(@T a, @T b) { return trunc(a / b); }
static inline @T div_floor(@T a, @T b) {
  @T r = fmod(a, b);
  @T q = (a - r) / b;
  q = (r != 0) & ((r < 0) ^ (b < 0)) ? q - 1 : q;
  @T f = floor(q);
  f = q - f > (@S)0.5 ? f + 1 : f;
  f = q == 0 ? copysign(f - f, a / b) : f;
  return b == 0 ? a / b : f;
}
""".strip()

_KEEP = """
// Lanes beyond the end of a row take no part in a reduction.
static inline {v} keep({v} x, long left, {s} identity) {
  if (__builtin_expect(left < @W, 0))
    for (long l = left; l < @W; ++l) x[l] = identity;
  return x;
}""".strip()

_KAHAN = """
// total + x with the rounding error of earlier additions carried along
static inline @T add_carry(@T total, @T x, @T* carry) {
  @T y = x - *carry;
  @T t = total + y;
  @T c = (t - total) - y;
  *carry = c == c ? c : @T{};  // infinities do not leave a NaN behind
  return t;
}""".strip()


def _halvings(width: int, body: str) -> str:
    """``body`` for each halving shuffle of ``v``: after them every lane holds the combination of all lanes."""
    out, step = [], width // 2
    while step:
        order = ", ".join(str(l ^ step) for l in range(width))
        out.append("  " + body.replace("%v", f"__builtin_shufflevector(v, v, {order})"))
        step //= 2
    return "\n".join(out)


def _folds(width: int, token: str, name: str) -> list[Part]:
    bits = name == "mask"
    kinds = {"any": "v = v | %v;", "all": "v = v & %v;"} if bits else {
        "sum": "v = v + %v;", "prod": "v = v * %v;", "max": "v = max(v, %v);", "min": "v = min(v, %v);",
    }  # fmt: skip
    return [
        Part(
            f"fold.{kind}.{name}",
            f"static inline {token} fold_{kind}({token} v) {{\n{_halvings(width, body)}\n  return v;\n}}",
            ("types", *((f"{kind}.{name}",) if kind in ("max", "min") else ())),
        )
        for kind, body in kinds.items()
    ]


_ARG = """
struct arg_@N@W { @T best; @l at; };
// the {word} value and its lowest index; NaN wins
static inline void arg_{kind}(arg_@N@W* a, @T x, @l at) {
  @m better = {better};
  a->best = {pick} ? x : a->best;
  a->at = to_i64(better) ? at : a->at;
}
static inline @l fold_arg_{kind}(arg_@N@W a) {
  arg_@N@W r = a;
{steps}
  return r.at;
}""".strip()


def _argument(kind: str, name: str, token: str, width: int, wide: bool) -> Part:
    """argmax or argmin of values of register kind ``name``, with indices in i64 lanes."""
    floating = name in ("f32", "f64")
    sign = ">" if kind == "max" else "<"
    tie = "to_native(at < a->at)"
    if floating:
        better = f"(x {sign} a->best) | ((x != x) & (a->best == a->best)) | (((x == a->best) | ((x != x) & (a->best != a->best))) & {tie})"
    else:
        better = f"(x {sign} a->best) | ((x == a->best) & {tie})"
    native32 = name in ("f32", "i32")
    better = better.replace("to_native", "to_i32" if native32 else "to_i64")
    mask = "to_i64" if wide else "to_i32"
    pick = "to_i32(better)" if native32 else "to_i64(better)"
    steps, step = [], width // 2
    while step:
        order = ", ".join(str(l ^ step) for l in range(width))
        steps.append(
            f"  arg_{kind}(&r, __builtin_shufflevector(r.best, r.best, {order}), __builtin_shufflevector(r.at, r.at, {order}));"
        )
        step //= 2
    text = (
        _ARG.replace("{kind}", kind)
        .replace("{word}", "greatest" if kind == "max" else "least")
        .replace("{better}", f"{mask}({better})")
        .replace("{pick}", pick)
        .replace("{steps}", "\n".join(steps))
        .replace("@N", f"{kind}_{name}_")
        .replace("@T", token)
    )
    return Part(f"arg.{kind}.{name}", text, ("types",))


# GCC turns a loop over lanes into the instruction, but that costs a third of the build time of a unit full of maths.
_FMA_BUILTINS: dict[tuple[str, int], str] = {
    ("@f", 4): "__builtin_ia32_vfmaddps(x, y, z)",
    ("@f", 8): "__builtin_ia32_vfmaddps256(x, y, z)",
    ("@f", 16): "__builtin_ia32_vfmaddps512_mask(x, y, z, -1, 4)",
    ("@d", 4): "__builtin_ia32_vfmaddpd256(x, y, z)",
    ("@d", 8): "__builtin_ia32_vfmaddpd512_mask(x, y, z, -1, 4)",
}


def _fused(width: int, isa: Isa, token: str) -> str:
    """x * y + z, rounded once."""
    plain = _by_lanes("fma", token, "__builtin_fmaf" if token == "@f" else "__builtin_fma", 3)
    builtin = _FMA_BUILTINS.get((token, width)) if isa.name in ("avx2", "avx512") else None
    if builtin is None or (token == "@d" and width * 8 > isa.register):
        return plain
    return (
        f"#ifdef __clang__\n{plain}\n#else\n"
        f"static inline {token} fma({token} x, {token} y, {token} z) {{ return {builtin}; }}\n#endif"
    )


def _maths(width: int, wide: bool, isa: Isa) -> list[Part]:
    tools = "types", "splat.f32", "abs.f32", "copysign.f32"
    parts = [
        Part(
            "iota",
            f"static inline @l iota@W(long start, long step) {{ return @l{{{_lanes(width, 'start + # * step')}}}; }}",
            ("types",),
        ),
    ]
    for kind, token, scalar in (("f32", "@f", "float"), ("f64", "@d", "double"), ("i32", "@i", "int"), ("i64", "@l", "long")):
        text = f"static inline {token} splat({token}, {scalar} x) {{ return {token}{{{_lanes(width, 'x')}}}; }}"
        parts.append(Part(f"splat.{kind}", text, ("types",)))
    parts += _sign_parts()
    parts += _extremes(width, isa)
    parts += [Part(f"fma.{kind}", _fused(width, isa, token), ("types",)) for kind, token in (("f32", "@f"), ("f64", "@d"))]
    for name in ("floor", "ceil", "trunc", "rint", "sqrt"):
        ours = "round_even" if name == "rint" else name
        parts.append(Part(f"{ours}.f32", _by_lanes(ours, "@f", f"__builtin_{name}f"), ("types",)))
        parts.append(Part(f"{ours}.f64", _by_lanes(ours, "@d", f"__builtin_{name}"), ("types",)))
    own: dict[str, tuple[str, tuple[str, ...]]] = {
        "exp": (_EXP, ("exp_reduce",)),
        "exp2": (_EXP2, ("exp_reduce",)),
        "expm1": (_EXPM1, ("exp_reduce",)),
        "log": (_LOG, ("log_split",)),
        "log2": (_LOG2, ("log_split",)),
        "log10": (_LOG10, ("log_split",)),
        "log1p": (_LOG1P, ("log.f32",)),
        "sin": (_SIN, ("sin_cos", "libm.sinf")),
        "cos": (_COS, ("sin_cos", "libm.cosf")),
        "tanh": (_TANH, ("exp.f32",)),
        "erf": (_ERF, ("exp.f32",)),
    }
    parts += [
        Part("exp_reduce", _EXP_REDUCE, (*tools, "fma.f32")),
        Part("log_split", _LOG_SPLIT, (*tools, "fma.f32")),
        Part("sin_cos", _SIN_COS, (*tools, "fma.f32")),
    ]
    parts += [Part(f"{name}.f32", text, (*tools, "fma.f32", *needs)) for name, (text, needs) in own.items()]
    for name, arity in LIBM.items():
        for kind, token, suffix in (("f32", "@f", "f"), ("f64", "@d", "")):
            if kind == "f32" and name in own:
                continue
            text = _by_lanes(name, token, f"::{name}{suffix}", arity)
            parts.append(Part(f"{name}.{kind}", text, ("types", f"libm.{name}{suffix}")))
    for kind, token, scalar in (("f32", "@f", "float"), ("f64", "@d", "double")):
        sigmoid = f"static inline {token} sigmoid({token} x) {{ return 1 / (1 + exp(-x)); }}"
        parts.append(Part(f"sigmoid.{kind}", sigmoid, (f"exp.{kind}",)))
        parts.append(
            Part(
                f"division.{kind}",
                _FLOAT_DIVISION.replace("@T", token).replace("@S", scalar),
                (f"fmod.{kind}", f"trunc.{kind}", f"floor.{kind}", f"copysign.{kind}"),
            )
        )
        parts.append(Part(f"add_carry.{kind}", _KAHAN.replace("@T", token), ("types",)))
    for kind, token in (("i32", "@i"), ("i64", "@l")):
        names = ("div_floor", "div_trunc", "mod_floor", "mod_trunc", "int_pow")
        text = "\n".join(_by_lanes(n, token, f"::{n}", 2) for n in names)
        parts.append(Part(f"int_division.{kind}", text, ("types", f"division.{kind}")))
        top = "31" if kind == "i32" else "63"
        parts.append(
            Part(
                f"shift.{kind}",
                f"static inline {token} shift_left({token} a, {token} b) {{ return (b < 0) | (b > {top}) ? {token}{{}} : a << (b & {top}); }}\n"
                f"static inline {token} shift_right({token} a, {token} b) {{ return a >> ((b < 0) | (b > {top}) ? {token}{{}} + {top} : b); }}",
                ("types",),
            )
        )
    for name, token in TOKEN.items():
        parts.append(
            Part(f"keep.{name}", _KEEP.replace("{v}", token).replace("{s}", REGISTER_C[name]), ("types",))
        )
        parts += _folds(width, token, name)
        if name != "mask":
            parts += [_argument(kind, name, token, width, wide) for kind in ("max", "min")]
    return parts


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
    parts += _conversions(width, isa)
    for dtype in C_TYPES:
        parts += _memory(dtype, width, wide)
    parts += _maths(width, wide, isa)
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
        names |= {"@m": f"maskx{width}", "@M": mask, "@u": f"u32x{width}", "@W": str(width)}
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
