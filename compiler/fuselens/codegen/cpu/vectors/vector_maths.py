"""Vector maths in f32, as templates: argument reduction, a polynomial, and care for every special value.

Polynomials are minimax fits of our own (in 40 digits and more, coefficients rounded to f32 one after the other, lowest
degree first). Every function is within one place of the double-precision result rounded to f32, for every float:
``tests/codegen/test_vector_maths.py`` measures it. What rounding loses near a sum's end is computed and added to a
smaller term.
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
// 2^2h e^r with |r| <= ln(2): the square of a power of two is out of range where the result is, and not before
static inline @f exp(@f x) {
  x = at_most(at_least(x, -176.0f), 89.0f);  // where 2^h is zero: what is masked does not underflow, which is slow
  @f t = fma(x, splat(x, 0.72134752f), splat(x, 12583039.0f)), h = t - 12583039.0f;  // the last bits of t are h + 127
  @f r = fma(h, splat(x, -1.3862915f), x);
  r = fma(h, splat(x, -2.85721354e-06f), r);
  @f p = fma(splat(x, 0.000202076408f), r, splat(x, 0.0014144067f));
  p = fma(p, r, splat(x, 0.00833190233f));
  p = fma(p, r, splat(x, 0.0416585319f));
  p = fma(p, r, splat(x, 0.166666821f));
  p = fma(p, r, splat(x, 0.500000775f));
  p = fma(p, r, splat(x, 1.0f));
  p = fma(p, r, splat(x, 1.0f));
  @f s = (@f)((@i)t << 23);
  return p * s * s;
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
  @f q = fma(splat(x, -0.129812047f), *f, splat(x, 0.139984056f));
  q = fma(q, *f, splat(x, -0.121711999f));
  q = fma(q, *f, splat(x, 0.140044302f));
  q = fma(q, *f, splat(x, -0.166812077f));
  q = fma(q, *f, splat(x, 0.200104773f));
  q = fma(q, *f, splat(x, -0.249997839f));
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
  @f h = fma(f, splat(x, 1.44269502f), k);
  return log_edges(x, h + (fma(f, splat(x, 1.44269502f), k - h) + t));
}
""".strip()
LOG10 = """
static inline @f log10(@f x) {
  @f k, f, t = log_split(x, &k, &f);
  t = fma(f, splat(x, -1.01030501e-08f), t * 0.434294492f);
  t = fma(k, splat(x, 7.90341716e-07f), t);
  @f a = k * 0.301029205f, h = fma(f, splat(x, 0.434294492f), a);
  return log_edges(x, h + (fma(f, splat(x, 0.434294492f), a - h) + t));
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
TURN = """
// x = k pi/2 + r + lo, with |r| <= pi/4 and lo below the last place of r
static inline @f turn(@f x, @i* k, @f* lo) {
  @f n = (x * 0.636619747f + 12582912.0f) - 12582912.0f;
  @f near = fma(n, splat(x, -1.57079637f), x);
  @f p = n * 4.37113883e-08f, lost = fma(n, splat(x, 4.37113883e-08f), -p);
  @f r = near + p;
  *lo = fma(n, splat(x, 1.71512489e-15f), lost + (p - (r - near)));
  *k = __builtin_convertvector(n, @i);
  return r;
}
static inline int any_far(@f x) { return any_lane(abs(x) > 10000.0f); }
""".strip()
SIN_COS = """
static inline @f sin_cos(@f x, int quarter) {  // sin(x + quarter pi/2)
  @i k;
  @f lo, r = turn(x, &k, &lo);
  k += quarter;
  @f u = r * r;
  @f s = fma(splat(x, 2.8045306e-06f), u, splat(x, -0.000198503039f));
  s = fma(s, u, splat(x, 0.00833337288f));
  s = fma(s, u, splat(x, -0.166666672f));
  s = fma(s, u * r, lo) + r;
  @f c = fma(splat(x, 2.44329713e-05f), u, splat(x, -0.0013887313f));
  c = fma(c, u, splat(x, 0.0416666456f));
  c = fma(c, u, splat(x, -0.5f));
  c = fma(c, u, -(r * lo)) + 1.0f;
  @f y = (k & 1) != 0 ? c : s;
  return (@f)((@i)y ^ ((k & 2) << 30));
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
TAN = """
static __attribute__((noinline, cold)) @f tan_far(@f x, @f y) {
  for (int l = 0; l < @W; ++l) if (is_far(x[l])) y[l] = tanf(x[l]);
  return y;
}
static inline @f tan(@f x) {
  @i k;
  @f lo, r = turn(x, &k, &lo);
  @f u = r * r;
  @f p = fma(splat(x, 0.00939652789f), u, splat(x, 0.00310148159f));
  p = fma(p, u, splat(x, 0.0244413912f));
  p = fma(p, u, splat(x, 0.0534082018f));
  p = fma(p, u, splat(x, 0.133388355f));
  p = fma(p, u, splat(x, 0.333331555f));
  p = fma(p, u * r, fma(u, lo, lo));
  @f t = r + p;
  @f y = -1.0f / t;
  y = fma(fma(p - (t - r), y, fma(y, t, splat(x, 1.0f))), y, y);  // what rounding t and the quotient lost
  y = (k & 1) != 0 ? y : t;
  y = x == 0.0f ? x : y;
  return __builtin_expect(any_far(x), 0) ? tan_far(x, y) : y;
}
""".strip()

# asin(s) = s + s z P(z) for z = s^2 <= 1/4; beyond, by the half angle
ARC = """
static inline @f arc(@f s, @f z) {
  @f p = fma(splat(s, 0.0422117114f), z, splat(s, 0.024152128f));
  p = fma(p, z, splat(s, 0.045476038f));
  p = fma(p, z, splat(s, 0.0749525204f));
  p = fma(p, z, splat(s, 0.166667536f));
  return p * (s * z);
}
""".strip()
ASIN = """
static inline @f asin(@f x) {
  @f a = abs(x), z = (1.0f - a) * 0.5f, s = sqrt(z);
  @f w = 1.57079637f - 2.0f * s, lost = (1.57079637f - w) - 2.0f * s;
  @f far = w - (fma(splat(x, 2.0f), arc(s, z), splat(x, 4.37113883e-08f)) - lost);
  @f near = a + arc(a, a * a);
  return copysign(a > 0.5f ? far : near, x);
}
""".strip()
ACOS = """
static inline @f acos(@f x) {
  @f a = abs(x), z = (1.0f - a) * 0.5f, s = sqrt(z), p = arc(s, z);
  @f far = x > 0.0f ? 2.0f * (s + p) : 3.14159274f - (2.0f * (s + p) + 8.74227766e-08f);
  @f near = 1.57079637f - (x + (arc(x, x * x) + 4.37113883e-08f));
  return a > 0.5f ? far : near;
}
""".strip()
# atan(t) = t + t z P(z) for z = t^2 <= 1
ATAN_NEAR = """
static inline @f atan_near(@f t, @f lo) {  // atan(t + lo)
  @f z = t * t;
  @f p = fma(splat(t, 0.0029194227f), z, splat(t, -0.0163631923f));
  p = fma(p, z, splat(t, 0.0432047322f));
  p = fma(p, z, splat(t, -0.0755166039f));
  p = fma(p, z, splat(t, 0.106657691f));
  p = fma(p, z, splat(t, -0.14211002f));
  p = fma(p, z, splat(t, 0.199937671f));
  p = fma(p, z, splat(t, -0.333331525f));
  return t + fma(p, t * z, lo);
}
""".strip()
ATAN = """
static inline @f atan(@f x) {
  @f a = abs(x), t = 1.0f / a;
  @f lo = fma(-t, a, splat(t, 1.0f)) * (t * fma(t * t, splat(t, -0.5f), splat(t, 1.0f)));
  lo = (a > 1.0f) & (lo == lo) ? lo : @f{};  // of an infinite x there is none
  @f y = atan_near(a > 1.0f ? t : a, lo);
  y = a > 1.0f ? 1.57079637f - (y + 4.37113883e-08f) : y;
  return copysign(y, x);
}
""".strip()
ATAN2 = """
static inline @f atan2(@f y, @f x) {
  @f a = abs(y), b = abs(x);
  @f low = a < b ? a : b, high = a < b ? b : a;
  @f t = low == high ? splat(x, 1.0f) : low / high;  // also where both are infinite
  t = high == 0.0f ? splat(x, 0.0f) : t;
  @f lo = fma(-t, high, low) / high;  // what rounding the quotient lost, where it is finite
  lo = lo == lo ? lo * fma(t * t, splat(t, -0.5f), splat(t, 1.0f)) : @f{};
  @f r = atan_near(t, lo);
  r = a > b ? 1.57079637f - (r + 4.37113883e-08f) : r;
  r = (@i)x < 0 ? 3.14159274f - (r + 8.74227766e-08f) : r;
  r = copysign(r, y);
  return (x != x) | (y != y) ? x + y : r;
}
""".strip()

# Half of e^|x|, as exact as f32 can be: h + lo
SINH_COSH = """
static inline @f half_exp(@f a, @f* lo) {
  a = a > 90.0f ? splat(a, 90.0f) : a;
  @i k;
  @f q = exp_reduce(a, &k), y = 1.0f + q;
  @i half = (k - 1) >> 1;
  @f s = pow2(half), t = pow2(k - 1 - half);
  *lo = ((1.0f - y) + q) * s * t;
  return y * s * t;
}
""".strip()
SINH = """
static inline @f sinh(@f x) {
  @f a = abs(x), u = x * x;
  @f p = fma(splat(x, 2.78221319e-06f), u, splat(x, 0.000198428956f));
  p = fma(p, u, splat(x, 0.00833331048f));
  p = fma(p, u, splat(x, 0.166666672f));
  @f near = fma(p, u * a, a);
  @f lo, h = half_exp(a, &lo);
  @f far = h + (lo - 0.25f / h);
  return copysign(a < 1.0f ? near : far, x);
}
""".strip()
COSH = """
static inline @f cosh(@f x) {
  @f lo, h = half_exp(abs(x), &lo);
  return h + (0.25f / h + lo);
}
""".strip()

# e^-|x| is at most 1: nothing overflows, and small results keep their digits
SIGMOID = """
static inline @f sigmoid(@f x) {
  @f a = -abs(x);
  a = a < -104.0f ? splat(x, -104.0f) : a;
  @i k;
  @f q = exp_reduce(a, &k), y = q + 1.0f;
  @i half = k >> 1;
  @f s = pow2(half), t = pow2(k - half), e = y * s * t, d = 1.0f + e, r = 1.0f / d;
  @f lost = x < 0.0f ? (1.0f - y) + q : @f{};  // of the numerator
  @f rest = fma(-d, r, splat(x, 1.0f)) - r * (e - (d - 1.0f));
  y = x < 0.0f ? y : splat(x, 1.0f);
  y = fma(y, r, r * fma(y, rest, lost));
  return x < 0.0f ? y * s * t : y;
}
""".strip()
TANH = """
static inline @f tanh(@f x) {
  @f a = at_most(abs(x), 9.1f), u = a * a;
  @f p = fma(splat(x, -0.00571620278f), u, splat(x, 0.0206497088f));
  p = fma(p, u, splat(x, -0.0537431724f));
  p = fma(p, u, splat(x, 0.133314863f));
  p = fma(p, u, splat(x, -0.333332837f));
  @f near = fma(p, u * a, a);
  @f t = fma(a, splat(x, 2.88539004f), splat(x, 12583039.0f)), n = t - 12583039.0f;  // e^2a = 2^n e^2r
  @f r = fma(n, splat(x, -0.34657359f), a);
  @f q = fma(splat(x, 0.0884371176f), r, splat(x, 0.267793029f));
  q = fma(q, r, splat(x, 0.666692674f));
  q = fma(q, r, splat(x, 1.33332181f));
  q = fma(q, r, splat(x, 1.99999976f));
  q = fma(q, r, splat(x, 2.0f));
  q = fma(q, r, splat(x, 1.0f));
  @f far = 1.0f - 2.0f / fma((@f)((@i)t << 23), q, splat(x, 1.0f));
  return sign_of(x, a < 0.625f ? near : far);
}
""".strip()

# With g = log(1 - erf(|x|)) 4/5, a smooth function of x, erf(|x|) is (1 - 2^n) - 2^n (e^(5/4 r) - 1), where g = n ln(2) 4/5 + r.
# The factor makes the first coefficients 1 and 5/4: numbers that are rounded hardly have to be added.
ERF = """
static inline @f erf(@f x) {
  @f a = at_most(abs(x), 4.0f);
  @f g = fma(splat(x, 7.08153857e-06f), a, splat(x, -9.15648852e-05f));
  g = fma(g, a, splat(x, 0.000498422072f));
  g = fma(g, a, splat(x, -0.00132160145f));
  g = fma(g, a, splat(x, 0.000118677126f));
  g = fma(g, a, splat(x, 0.0153263602f));
  g = fma(g, a, splat(x, -0.0822229832f));
  g = fma(g, a, splat(x, -0.509295464f));
  g = fma(g, a, splat(x, 0.0972966626f));
  g = fma(g, a, -a);
  @f t = fma(g, splat(x, 1.80336881f), splat(x, 12582912.0f));
  @f r = fma(t - 12582912.0f, splat(x, -0.554517746f), g);
  @f q = fma(splat(x, 0.00530258846f), r, splat(x, 0.0255312882f));
  q = fma(q, r, splat(x, 0.10172566f));
  q = fma(q, r, splat(x, 0.325518519f));
  q = fma(q, r, splat(x, 0.78125f));
  q = fma(q, r, splat(x, 0.25f));
  q = fma(q, r, r);
  @f s = (@f)(((@i)t << 23) + 0x3f800000);
  return sign_of(x, fma(-s, q, 1.0f - s));
}
""".strip()

# A quotient of zero or one place too much or too little is put right by what it leaves, unless that is denormal.
QUOTIENT_BY = """
static inline @f quotient_by(@f x, @f y, @f inverse) {  // x / y, with 1 / y at hand
  @f q = x * inverse, r = fma(fma(-q, y, x), inverse, q);
  r = q == 0.0f ? q : r;  // of whichever sign
  return __builtin_expect(any_lane(r != r), 0) ? x / y : r;  // also where x or y is infinite or y too small
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

# Integers divide as floats do, where quotients are exact after truncation: |a| and |b| below 2^51. b is not zero.
INTEGER_QUOTIENT = {
    "i32": """
static inline @i quotient(@i a, @i b) {
  @d q = __builtin_convertvector(a, @d) / __builtin_convertvector(b, @d);
  return b == -1 ? -a : __builtin_convertvector(q, @i);  // that of the least integer wraps
}
""".strip(),
    "i64": """
static __attribute__((noinline, cold)) @l quotient_far(@l a, @l b) {
  for (int l = 0; l < @W; ++l) a[l] = b[l] == -1 ? (long)-(unsigned long)a[l] : a[l] / b[l];
  return a;
}
static inline @l quotient(@l a, @l b) {
  @l high = ((a + (1L << 51)) | (b + (1L << 51))) & -(1L << 52);
  if (__builtin_expect(any_lane(high), 0)) return quotient_far(a, b);
  // 2^52 + 2^51 + n as bits is that plus n
  @d x = (@d)(a + 0x4338000000000000L) - 6755399441055744.0, y = (@d)(b + 0x4338000000000000L) - 6755399441055744.0;
  @d q = x / y, whole = (q + 6755399441055744.0) - 6755399441055744.0;
  whole -= abs(whole) > abs(q) ? copysign(splat(q, 1.0), q) : @d{};
  return (@l)(whole + 6755399441055744.0) - 0x4338000000000000L;
}
""".strip(),
}
INTEGER_DIVISION = """
static inline @V not_zero(@V b) {
  if (__builtin_expect(any_lane(b == 0), 0)) fuselens_errors |= 1;
  return b - (b == 0);
}
static inline @V div_trunc(@V a, @V b) { return quotient(a, not_zero(b)); }
static inline @V mod_trunc(@V a, @V b) { b = not_zero(b); return a - quotient(a, b) * b; }
static inline @V div_floor(@V a, @V b) {
  b = not_zero(b);
  @V q = quotient(a, b), r = a - q * b;
  return q + ((r != 0) & ((r ^ b) < 0));
}
static inline @V mod_floor(@V a, @V b) {
  b = not_zero(b);
  @V r = a - quotient(a, b) * b;
  return r + (b & ((r != 0) & ((r ^ b) < 0)));
}
""".strip()
