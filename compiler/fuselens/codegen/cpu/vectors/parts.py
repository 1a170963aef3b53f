"""Pieces of prelude: what one is, how values look in memory and in registers, and the pieces without lanes.

See :mod:`.prelude` for the template tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of prelude. ``needs`` are parts that must come with it (they are printed in table order)."""

    name: str
    text: str
    needs: tuple[str, ...] = ()


C_TYPES: dict[str, str] = {
    "f64": "double", "f32": "float", "f16": "f16", "bf16": "bf16", "i64": "long", "i32": "int", "i16": "short",
    "i8": "signed char", "u8": "unsigned char", "u16": "unsigned short", "u32": "unsigned", "u64": "unsigned long", "bool": "bool",
}  # fmt: skip

# What a memory element looks like in a register; u32 and u64 by their bits.
REGISTER: dict[str, str] = {
    "f64": "f64", "f32": "f32", "f16": "f32", "bf16": "f32", "i64": "i64", "i32": "i32", "i16": "i32", "i8": "i32",
    "u8": "i32", "u16": "i32", "u32": "i32", "u64": "i64", "bool": "mask",
}  # fmt: skip
REGISTER_C: dict[str, str] = {"f64": "double", "f32": "float", "i64": "long", "i32": "int", "mask": "@M"}
TOKEN: dict[str, str] = {"f64": "@d", "f32": "@f", "i64": "@l", "i32": "@i", "mask": "@m"}


def lanes(width: int, item: str, separator: str = ", ") -> str:
    """``item`` once per lane, ``#`` replaced by the lane number."""
    return separator.join(item.replace("#", str(l)) for l in range(width))


# --- scalars and types, once per unit ------------------------------------------------------------------------------

# What compilers make of "#pragma omp parallel", written out: it needs neither the pragma nor a compiler's own runtime.
_OMP = """
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();
extern "C" int omp_get_max_threads();
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
""".strip()
_PARALLEL = """
template <class F>
static inline void parallel(F& work, bool shared = true) {
  GOMP_parallel([](void* f) { (*(F*)f)(omp_get_thread_num(), omp_get_num_threads()); }, &work, !shared, 0);
}""".strip()
_ERRORS = """
static thread_local int fuselens_errors = 0;  // of the call that this thread makes: 1 an integer divided by zero, 2 an index out of range
extern "C" int fuselens_take_errors() { const int found = fuselens_errors; fuselens_errors = 0; return found; }
template <class F>
static inline void parallel(F& work, bool shared = true) {  // the caller gets the errors of all threads
  struct Work { F& work; int errors; } all = {work, fuselens_errors};
  GOMP_parallel([](void* w) {
    Work& all = *(Work*)w;
    all.work(omp_get_thread_num(), omp_get_num_threads());
    if (fuselens_errors) __atomic_fetch_or(&all.errors, fuselens_take_errors(), __ATOMIC_RELAXED);
  }, &all, !shared, 0);
  fuselens_errors = all.errors;
}""".strip()

UNIT: dict[str, Part] = {
    p.name: p
    for p in (
        Part("bf16", "struct bf16 { unsigned short bits; };  // the upper half of a float"),
        Part("f16", "struct f16 { unsigned short bits; };  // IEEE binary16"),
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
            "is_far",
            "static inline int is_far(float x) { return __builtin_fabsf(x) > 10000.0f; }\n"
            "static inline int is_far(double x) { return __builtin_fabs(x) > 1e8; }",
        ),
        Part("omp", _OMP),
        Part("parallel", _PARALLEL, ("omp",)),
        Part("errors", _ERRORS, ("omp",)),  # with a form of "parallel" that keeps them
    )
}

_INT_POW = """
static inline {t} int_pow({t} a, {t} b) {  // as torch: a negative exponent gives 0, except for bases 1 and -1
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
  {t} r = 1;
  for (; b; b >>= 1, a = ({t})((unsigned {t})a * (unsigned {t})a))
    if (b & 1) r = ({t})((unsigned {t})r * (unsigned {t})a);
  return r;
}""".strip()
UNIT["int_pow.i32"] = Part("int_pow.i32", _INT_POW.replace("{t}", "int"))
UNIT["int_pow.i64"] = Part("int_pow.i64", _INT_POW.replace("{t}", "long"))

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


def by_lanes(name: str, token: str, call: str, arity: int = 1) -> str:
    arguments = ", ".join(f"{token} {v}" for v in "xyz"[:arity])
    passed = ", ".join(f"{v}[l]" for v in "xyz"[:arity])
    return f"static inline {token} {name}({arguments}) {{ {token} r; for (int l = 0; l < @W; ++l) r[l] = {call}({passed}); return r; }}"
