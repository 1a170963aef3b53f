"""The f32 functions of the option ``fast_math``: within four places of the exact result, for ordinary arguments.

NaN, infinities, denormals and what lies outside of a function's domain may give any result; results below 2^-125 may
be 0. Polynomials are fits of our own, as in :mod:`.vector_maths`. Functions that are not here are the exact ones.
"""

from __future__ import annotations

from .isa import Isa

EXP_REDUCE = """
// exp(x) = 2^k (1 + q)
static inline @f fast_exp_reduce(@f x, @i* k) {
  @f n = (x * 1.44269502f + 12582912.0f) - 12582912.0f;
  @f r = fma(n, splat(x, -0.693145752f), x);
  r = fma(n, splat(x, -1.42860677e-06f), r);
  *k = __builtin_convertvector(n, @i);
  @f p = fma(splat(x, 0.00831247773f), r, splat(x, 0.0418905504f));
  p = fma(p, r, splat(x, 0.166671157f));
  p = fma(p, r, splat(x, 0.499992281f));
  return fma(p, r * r, r);
}
""".strip()
EXP = """
static inline @f exp(@f x) {
  x = min(splat(x, 89.0f), max(splat(x, -87.5f), x));
  @i k;
  @f q = fast_exp_reduce(x, &k);
  return fma(q, splat(x, 2.0f), splat(x, 2.0f)) * (@f)((k + 126) << 23);
}
""".strip()
SIGMOID = """
static inline @f sigmoid(@f x) { return 1.0f / (1.0f + exp(-x)); }
""".strip()
TANH = """
static inline @f tanh(@f x) {  // half of e^2x - 1, by as much and 1
  x = min(splat(x, 9.1f), max(splat(x, -9.1f), x));
  @i k;
  @f q = exp_reduce(x + x, &k), s = (@f)((k + 126) << 23);
  @f t = fma(s, q, s - 0.5f);
  return t / (t + 1.0f);
}
""".strip()
LOG = """
static inline @f log(@f x) {
  @i b = (@i)x, e = (b - 0x3f2aaaab) >> 23;
  @f f = (@f)(b - (e << 23)) - 1.0f, k = __builtin_convertvector(e, @f);
  @f q = fma(splat(x, 0.138202369f), f, splat(x, -0.151221797f));
  q = fma(q, f, splat(x, 0.140423089f));
  q = fma(q, f, splat(x, -0.164723262f));
  q = fma(q, f, splat(x, 0.200079188f));
  q = fma(q, f, splat(x, -0.250042379f));
  q = fma(q, f, splat(x, 0.333332658f));
  @f t = fma(k, splat(x, 1.42860677e-06f), f * f * fma(q, f, splat(x, -0.5f)));
  return fma(k, splat(x, 0.693145752f), f + t);
}
""".strip()
ERF = """
static inline @f erf(@f x) {
  x = min(splat(x, 3.92f), max(splat(x, -3.92f), x));
  @f u = x * x;
  @f p = fma(splat(x, 2.05010338e-06f), u, splat(x, 0.000284883048f));
  p = fma(p, u, splat(x, 0.00376559235f));
  p = fma(p, u, splat(x, 0.0527486466f));
  p = fma(p, u, splat(x, 0.190405771f));
  p = fma(p, u, splat(x, 1.12837911f));
  @f q = fma(splat(x, 3.80919009e-05f), u, splat(x, 0.00116253132f));
  q = fma(q, u, splat(x, 0.0149691654f));
  q = fma(q, u, splat(x, 0.114108838f));
  q = fma(q, u, splat(x, 0.502075434f));
  q = fma(q, u, splat(x, 1.0f));
  return x * p / q;
}
""".strip()
# the instruction's approximation, and one of Newton's steps
_RSQRT = """
static inline @f rsqrt(@f x) {
  @f y = %s;
  return y * fma(x * y, y * -0.5f, splat(x, 1.5f));
}
""".strip()
_RSQRT_BUILTINS = {4: "__builtin_ia32_rsqrtps(x)", 8: "__builtin_ia32_rsqrtps256(x)"}

OWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "exp": (EXP, ("fast_exp_reduce", "max.f32", "min.f32")),
    "sigmoid": (SIGMOID, ("exp.f32",)),
    "tanh": (TANH, ("exp_reduce", "max.f32", "min.f32")),
    "log": (LOG, ()),
    "erf": (ERF, ("max.f32", "min.f32")),
}


def rsqrt(width: int, isa: Isa) -> str:
    builtin = _RSQRT_BUILTINS.get(width) if isa.name in ("sse2", "avx2", "avx512") else None
    return _RSQRT % builtin if builtin else "static inline @f rsqrt(@f x) { return 1 / sqrt(x); }"
