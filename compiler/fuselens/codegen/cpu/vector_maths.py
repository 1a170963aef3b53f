"""Vector maths in f32, as templates: argument reduction, a polynomial, and care for every special value.

Polynomials are minimax fits of our own (Lawson-weighted least squares over Chebyshev nodes in 40 digits, coefficients
rounded to f32 one after the other, lowest degree first); ``tests/codegen/test_vector_maths.py`` measures each function
against double precision.
"""

from __future__ import annotations

EXP_REDUCE = """
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

EXP = """
static inline @f exp(@f x) {
  x = x < -104.0f ? splat(x, -104.0f) : x;  // the order of operands keeps NaN
  x = x > 89.0f ? splat(x, 89.0f) : x;
  @i k;
  @f y = exp_reduce(x, &k) + 1.0f;
  @i half = k >> 1;  // two factors, so that overflow and denormals round once
  return y * pow2(half) * pow2(k - half);
}
""".strip()

EXP2 = """
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

EXPM1 = """
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

LOG_SPLIT = """
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

LOG = """
static inline @f log(@f x) {
  @f k, f, t = log_split(x, &k, &f);
  t = fma(k, splat(x, 1.42860677e-06f), t);
  return log_edges(x, fma(k, splat(x, 0.693145752f), f + t));
}
""".strip()
LOG2 = """
static inline @f log2(@f x) {
  @f k, f, t = log_split(x, &k, &f);
  t = fma(f, splat(x, 1.92596303e-08f), t * 1.44269502f);
  return log_edges(x, k + fma(f, splat(x, 1.44269502f), t));
}
""".strip()
LOG10 = """
static inline @f log10(@f x) {
  @f k, f, t = log_split(x, &k, &f);
  t = fma(f, splat(x, 1.00890175e-08f), t * 0.434294492f);
  t = fma(k, splat(x, 7.90374682e-07f), t);
  t = fma(f, splat(x, 0.434294492f), t);
  return log_edges(x, fma(k, splat(x, 0.301029205f), t));
}
""".strip()
LOG1P = """
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
SIN_COS = """
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
  int found = 0;
  for (int l = 0; l < @W; ++l) found |= is_far(x[l]);
  return found;
}
""".strip()
SIN = """
static __attribute__((noinline, cold)) @f sin_far(@f x, @f y) {
  for (int l = 0; l < @W; ++l) if (is_far(x[l])) y[l] = sinf(x[l]);
  return y;
}
static inline @f sin(@f x) {
  @f y = sin_cos(x, 0);
  y = x == 0.0f ? x : y;
  return __builtin_expect(any_far(x), 0) ? sin_far(x, y) : y;
}
""".strip()
COS = """
static __attribute__((noinline, cold)) @f cos_far(@f x, @f y) {
  for (int l = 0; l < @W; ++l) if (is_far(x[l])) y[l] = cosf(x[l]);
  return y;
}
static inline @f cos(@f x) {
  @f y = sin_cos(x, 1);
  return __builtin_expect(any_far(x), 0) ? cos_far(x, y) : y;
}
""".strip()

TANH = """
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

ERF = """
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
FLOAT_DIVISION = """
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
