"""Vector maths in f64, and what f32 functions do in it: templates, as in :mod:`.vector_maths`.

Polynomials are minimax fits of our own (Remez's exchange in 50 digits, coefficients rounded to f64). Where a sum's
rounding would show, what it lost is computed and added to a smaller term. No comparison of 64-bit lanes stands on the
way of f32 lanes: where registers hold half of them, those cost more than the arithmetic.
"""

from __future__ import annotations


def horner(result: str, variable: str, *coefficients: float, token: str = "@d") -> str:
    """Lines that declare ``result`` as a polynomial of ``variable``; coefficients from the highest degree down."""
    first, second, *rest = coefficients
    lines = [f"  {token} {result} = fma(splat({variable}, {first!r}), {variable}, splat({variable}, {second!r}));"]
    lines += [f"  {result} = fma({result}, {variable}, splat({variable}, {c!r}));" for c in rest]
    return "\n".join(lines)


# 6755399441055744 = 1.5 * 2^52: adding it rounds to an integer, which the low bits of the sum then are
EXP_REDUCE = f"""
// exp(x) = 2^n (1 + q) with |r| <= ln(2)/2 and q = r + r^2 P(r); |x| < 2^20
static inline @d exp_reduce(@d x, @d* n) {{
  *n = fma(x, splat(x, 1.4426950408889634), splat(x, 6755399441055744.0)) - 6755399441055744.0;
  @d r = fma(*n, splat(x, -0.6931471805599453), x);
  r = fma(*n, splat(x, -2.3190468138462996e-17), r);
{
    horner(
        "p",
        "r",
        2.1005170606691935e-09,
        2.5116410313564615e-08,
        2.7557126783446887e-07,
        2.755722813561443e-06,
        2.480158752450271e-05,
        0.00019841269903142942,
        0.001388888888878093,
        0.00833333333331392,
        0.041666666666666824,
        0.16666666666666688,
        0.5,
    )
}
  return fma(p, r * r, r);
}}
static inline @d pow2(@d n) {{ return (@d)((@l)(n + 6755399441056767.0) << 52); }}  // -1022 <= n <= 1023
static inline @d scale(@d x, @d n) {{  // x 2^n in two factors, so that overflow and denormals round once
  @d half = fma(n, splat(x, 0.5), splat(x, 6755399441055744.0)) - 6755399441055744.0;
  return x * pow2(half) * pow2(n - half);
}}
""".strip()
EXP = """
static inline @d exp(@d x) {
  x = x < -746.0 ? splat(x, -746.0) : x;  // the order of operands keeps NaN
  x = x > 710.0 ? splat(x, 710.0) : x;
  @d n, q = exp_reduce(x, &n);
  return scale(q + 1.0, n);
}
""".strip()
EXPM1 = """
static inline @d expm1(@d x) {
  @d c = x < -50.0 ? splat(x, -50.0) : x;
  c = c > 710.0 ? splat(x, 710.0) : c;
  @d n, q = exp_reduce(c, &n);
  @d s = pow2(n - 1.0);  // half of 2^n, which may not be representable
  @d y = 2.0 * fma(s, q, s - 0.5);
  return x == 0.0 ? x : y;
}
""".strip()
SIGMOID = """
static inline @d sigmoid(@d x) {
  @d a = -abs(x);
  a = a < -746.0 ? splat(x, -746.0) : a;
  @d n, q = exp_reduce(a, &n), y = q + 1.0;
  @d d = 1.0 + scale(y, n);
  return x < 0.0 ? scale(y / d, n) : 1.0 / d;
}
""".strip()
TANH = """
static inline @d tanh(@d x) {
  @d a = abs(x);
  @d t = expm1(-2.0 * (a > 20.0 ? splat(x, 20.0) : a));
  @d d = -2.0 - t, r = 1.0 / d, y = t * r;
  y = fma(fma(-y, d, t) - y * ((-2.0 - d) - t), r, y);  // what rounding lost
  return copysign(y, x);
}
""".strip()

LOG_CORE = f"""
// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), and log(1 + f) = f - (h - result) with h = f^2/2; x normal
static inline @d log_split(@d x, @d* k, @d* f, @d* h) {{
  @l b = (@l)x, e = (@l)((@U)(b + (0x3ff0000000000000L - 0x3fe6a09e667f3bcdL)) >> 52);
  *k = (@d)(e | 0x4330000000000000L) - 4503599627371519.0;
  *f = (@d)(b - ((e - 1023) << 52)) - 1.0;
  *h = 0.5 * *f * *f;
  @d s = *f / (*f + 2.0), z = s * s;
{
    horner(
        "p",
        "z",
        0.1479860758181021,
        0.153138026356554,
        0.18183573292254482,
        0.22222198415283556,
        0.2857142874377605,
        0.3999999999940915,
        0.6666666666666735,
    )
}
  return s * fma(p, z, *h);
}}
// log(x + rest), x normal and rest far below its last place
static inline @d log_core(@d x, @d rest) {{
  @d k, f, h, t = log_split(x, &k, &f, &h);
  t = fma(k, splat(x, 1.9082149292705877e-10), t + rest);
  return fma(k, splat(x, 0.6931471803691238), f - (h - t));
}}
""".strip()
LOG_EDGES = """
static inline @d log_normal(@d x, @d* k) {  // x, or a denormal x times 2^54 and then k = -54
  @l tiny = x < 2.2250738585072014e-308;
  *k = tiny ? splat(x, -54.0) : @d{};
  return tiny ? x * 18014398509481984.0 : x;
}
static inline @d log_edges(@d x, @d y) {
  y = x == __builtin_inf() ? x : y;
  y = x == 0.0 ? splat(x, -__builtin_inf()) : y;
  return x >= 0.0 ? y : splat(x, __builtin_nan(""));
}
""".strip()
LOG = """
static inline @d log(@d x) {
  @d k, f, h, down, t = log_split(log_normal(x, &down), &k, &f, &h);
  k += down;
  t = fma(k, splat(x, 1.9082149292705877e-10), t);
  return log_edges(x, fma(k, splat(x, 0.6931471803691238), f - (h - t)));
}
""".strip()
LOG2 = """
static inline @d log2(@d x) {
  @d k, f, h, down, t = log_split(log_normal(x, &down), &k, &f, &h);
  @d hi = f - h, lo = ((f - hi) - h) + t, p = hi * 1.4426950408889634;
  lo = fma(hi, splat(x, 1.4426950408889634), -p) + fma(hi, splat(x, 2.0355273740931033e-17), lo * 1.4426950408889634);
  k += down;
  @d y = k + p;
  return log_edges(x, y + (((k - y) + p) + lo));
}
""".strip()
LOG10 = """
static inline @d log10(@d x) {
  @d k, f, h, down, t = log_split(log_normal(x, &down), &k, &f, &h);
  @d hi = f - h, lo = ((f - hi) - h) + t, p = hi * 0.4342944819032518;
  lo = fma(hi, splat(x, 0.4342944819032518), -p) + fma(hi, splat(x, 1.098319650216765e-17), lo * 0.4342944819032518);
  k += down;
  lo = fma(k, splat(x, 1.1451100898021838e-10), lo);
  @d a = k * 0.3010299955494702, y = a + p;
  return log_edges(x, y + (((a - y) + p) + lo));
}
""".strip()
LOG1P = """
static inline @d log1p(@d x) {
  @d u = 1.0 + x;
  @d y = log_core(u, (x - (u - 1.0)) / u);  // with what rounding 1 + x dropped
  y = x == __builtin_inf() ? x : y;
  y = x == -1.0 ? splat(x, -__builtin_inf()) : y;
  y = x >= -1.0 ? y : splat(x, __builtin_nan(""));
  return x == 0.0 ? x : y;
}
""".strip()

# pi/2 in three parts, as in f32
SIN_COS = f"""
static inline @d turn(@d x, @l* k, @d* lo) {{
  @d t = fma(x, splat(x, 0.6366197723675814), splat(x, 6755399441055744.0)), n = t - 6755399441055744.0;
  @d near = fma(n, splat(x, -1.5707963267948966), x);
  @d p = n * -6.123233995736766e-17, lost = fma(n, splat(x, -6.123233995736766e-17), -p);
  @d r = near + p;
  *lo = fma(n, splat(x, 1.4973849048591698e-33), lost + (p - (r - near)));
  *k = (@l)t;
  return r;
}}
static inline int any_far(@d x) {{ return any_lane(abs(x) > 1e8); }}
static inline @d sin_cos(@d x, long quarter) {{  // sin(x + quarter pi/2)
  @l k;
  @d lo, r = turn(x, &k, &lo);
  k += quarter;
  @d u = r * r;
{
    horner(
        "s",
        "u",
        1.5896852936164486e-10,
        -2.5050759367979726e-08,
        2.7557313702184293e-06,
        -0.0001984126982984676,
        0.00833333333332248,
        -0.16666666666666632,
    )
}
  s = fma(s, u * r, fma(u * -0.5, lo, lo)) + r;
{
    horner(
        "c",
        "u",
        -1.1359899953227924e-11,
        2.087572870072752e-09,
        -2.755731439747071e-07,
        2.480158728966223e-05,
        -0.0013888888888874465,
        0.0416666666666666,
    )
}
  @d h = 0.5 * u, w = 1.0 - h;
  c = w + (((1.0 - w) - h) + fma(c, u * u, -(r * lo)));
  @d y = (k & 1) != 0 ? c : s;
  return (@d)((@l)y ^ ((k & 2) << 62));
}}
""".strip()
SIN_FAR = """
static __attribute__((noinline, cold)) @d NAME_far(@d x, @d y) {
  for (int l = 0; l < @W; ++l) if (is_far(x[l])) y[l] = NAME(x[l]);
  return y;
}
""".strip()
SIN = f"""
{SIN_FAR.replace("NAME", "sin")}
static inline @d sin(@d x) {{
  @d y = sin_cos(x, 0);
  y = x == 0.0 ? x : y;
  return __builtin_expect(any_far(x), 0) ? sin_far(x, y) : y;
}}
""".strip()
COS = f"""
{SIN_FAR.replace("NAME", "cos")}
static inline @d cos(@d x) {{
  @d y = sin_cos(x, 1);
  return __builtin_expect(any_far(x), 0) ? cos_far(x, y) : y;
}}
""".strip()

# erfc(a) = exp(-a^2) P(t) / (1 + 2a) with t = (a - 4) / (a + 4), for 0.9 <= a <= 28
ERF_PARTS = f"""
static inline @d erf_near(@d x) {{
  @d u = x * x;
{
    horner(
        "p",
        "u",
        1.4427121988247414e-10,
        -1.650213415338063e-09,
        1.6020236832911812e-08,
        -1.6557840865967262e-07,
        1.6481100819139263e-06,
        -1.4926882872117684e-05,
        0.00012055386215759413,
        -0.0008548328535769094,
        0.005223977652686224,
        -0.026866170648030364,
        0.11283791670971095,
        -0.376126389031841,
        0.1283791670955126,
    )
}
  return fma(p, x, x);
}}
static inline @d erfc_far(@d a) {{
  @d t = (a - 4.0) / (a + 4.0), u = a * a, lost = fma(a, a, -u);
{
    horner(
        "p",
        "t",
        -5.91950246222874e-09,
        -1.636681146396452e-08,
        9.574239364889284e-08,
        7.602320741108946e-08,
        -8.131104205929674e-07,
        2.911827503614111e-07,
        5.703502895553105e-06,
        -1.1220380551669445e-05,
        -2.439722347613613e-05,
        0.0001506211172258132,
        -0.0001992571058573618,
        -0.0007577731764331205,
        0.005031970032248961,
        -0.01619773407126643,
        0.03716751553311379,
        -0.06633036581129327,
        0.09373283499854514,
        -0.10103906603633664,
        0.06809705425468864,
        0.015379652102620184,
        -0.1396211168405625,
        1.2329951186255526,
    )
}
  @d n, q = exp_reduce(-u, &n);
  @d y = q + 1.0;
  return scale(fma(-y, lost, y) * (p / fma(a, splat(a, 2.0), splat(a, 1.0))), n);
}}
""".strip()
ERF = """
static inline @d erf(@d x) {
  @d a = abs(x);
  @d far = copysign(1.0 - erfc_far(a > 6.0 ? splat(x, 6.0) : a), x);
  return a < 1.0 ? erf_near(x) : far;
}
""".strip()

# --- functions of f32 lanes that compute in f64 -------------------------------------------------------------------

ERFC_F32 = """
static inline @f erfc(@f x) {
  @f a = abs(x), c = a > 11.0f ? splat(x, 11.0f) : a;
  @d d = __builtin_convertvector(c, @d), e = erfc_far(d);
  @f near = __builtin_convertvector(1.0 - erf_near(__builtin_convertvector(x, @d)), @f);
  @f far = __builtin_convertvector(e, @f), other = __builtin_convertvector(2.0 - e, @f);
  return a < 1.0f ? near : x < 0.0f ? other : far;
}
""".strip()
_LOG1P_OF = """
static inline @f log1p_of(@d w) {
  @d u = 1.0 + w;
  return __builtin_convertvector(log_core(u, (w - (u - 1.0)) / u), @f);
}
"""
LOG1P_OF = _LOG1P_OF.strip()
ASINH_F32 = """
static inline @f asinh(@f x) {
  @d a = __builtin_convertvector(abs(x), @d), u = a * a;
  @f y = log1p_of(a + u / (1.0 + sqrt(u + 1.0)));
  y = abs(x) == __builtin_inff() ? abs(x) : y;
  return copysign(y, x);
}
""".strip()
ACOSH_F32 = """
static inline @f acosh(@f x) {
  @d t = __builtin_convertvector(x, @d) - 1.0;
  @f y = log1p_of(t + sqrt(t * (t + 2.0)));
  y = x == __builtin_inff() ? x : y;
  return x >= 1.0f ? y : splat(x, __builtin_nanf(""));
}
""".strip()
ATANH_F32 = """
static inline @f atanh(@f x) {
  @d a = __builtin_convertvector(abs(x), @d);
  @f y = 0.5f * log1p_of(2.0 * a / (1.0 - a));
  y = abs(x) == 1.0f ? splat(x, __builtin_inff()) : y;
  y = abs(x) <= 1.0f ? y : splat(x, __builtin_nanf(""));
  return copysign(y, x);
}
""".strip()
HYPOT_F32 = """
static inline @f hypot(@f x, @f y) {
  @d a = __builtin_convertvector(x, @d), b = __builtin_convertvector(y, @d);
  @f z = __builtin_convertvector(sqrt(fma(a, a, b * b)), @f);
  @f endless = splat(x, __builtin_inff());
  return (abs(x) == endless) | (abs(y) == endless) ? endless : z;
}
""".strip()
_POW_EDGES = """
// pow(x, y) where |x|^y is g, with the sign of x and C's rules for zeros, infinities and NaN
static inline @f pow_edges(@f x, @f y, @f g) {
  @f a = abs(x), endless = splat(x, @INF), w = trunc(y), v = y * 0.5f;
  @i grows = (a > 1.0f) == (y > 0.0f);
  @i extreme = (a == 0.0f) | (a == endless) | (abs(y) == endless);
  g = extreme ? (grows ? endless : @f{}) : g;
  g = (a == 1.0f) & (abs(y) == endless) ? splat(x, 1.0f) : g;
  @i whole = w == y, odd = whole & (trunc(v) != v);
  g = ((@i)x < 0) & odd ? -g : g;
  g = (x < 0.0f) & ~whole & (a != endless) ? splat(x, @NAN) : g;
  g = (x != x) | (y != y) ? x + y : g;
  return (y == 0.0f) | (x == 1.0f) ? splat(x, 1.0f) : g;
}
""".strip()
POW_EDGES = {
    "f32": _POW_EDGES.replace("@INF", "__builtin_inff()").replace("@NAN", '__builtin_nanf("")'),
    "f64": _POW_EDGES.replace("@INF", "__builtin_inf()").replace("@NAN", '__builtin_nan("")')
    .replace("@f", "@d").replace("@i", "@l").replace("0f", "0").replace("5f", "5"),
}  # fmt: skip
POW_F32 = f"""
static inline @f pow(@f x, @f y) {{
  @f a = abs(x);
  @i tiny = a < 1.17549435e-38f;
  @i b = (@i)(tiny ? a * 8388608.0f : a);
  @i e = (b - 0x3f2aaaab) >> 23;
  @d f = __builtin_convertvector((@f)(b - (e << 23)) - 1.0f, @d);
  @d k = __builtin_convertvector(e + (tiny & -23), @d);
  @d s = f / (f + 2.0), z = s * s;
{horner("p", "z", 0.34767890235431553, 0.4112703901801719, 0.577090440672547, 0.9617966424158669)}
  @d log = fma(s, splat(s, 2.8853900817779268), k) + s * z * p;
  @d t = __builtin_convertvector(y, @d) * log;
  @f c = __builtin_convertvector(t, @f);
  @f in = c < -152.0f ? splat(x, -152.0f) : c;
  in = in > 130.0f ? splat(x, 130.0f) : in;
  @f n = (in + 12582912.0f) - 12582912.0f;
  @f r = __builtin_convertvector((t - __builtin_convertvector(n, @d)) * 0.6931471805599453, @f);
  r = in == c ? r : in - in;  // far out, only the power counts; NaN stays
  @f g = fma(splat(x, 0.00139374938f), r, splat(x, 0.00836895127f));
  g = fma(g, r, splat(x, 0.0416664369f));
  g = fma(g, r, splat(x, 0.166665182f));
  g = fma(g, r, splat(x, 0.5f));
  g = fma(g, r * r, r) + 1.0f;
  @i m = __builtin_convertvector(n, @i), half = m >> 1;
  g = g * pow2(half) * pow2(m - half);
  return pow_edges(x, y, g);
}}
""".strip()

# The logarithm to 2^-64 of itself: y log2(x) has up to ten bits before the point.
POW = f"""
static inline @d pow(@d x, @d y) {{
  @d a = abs(x), k, down;
  a = log_normal(a, &down);
  @l b = (@l)a, e = (@l)((@U)(b + (0x3ff0000000000000L - 0x3fe6a09e667f3bcdL)) >> 52);
  k = ((@d)(e | 0x4330000000000000L) - 4503599627371519.0) + down;
  @d f = (@d)(b - ((e - 1023) << 52)) - 1.0;
  @d d = f + 2.0, r = 1.0 / d, s = f * r;
  @d s1 = (fma(-s, d, f) - s * (f - (d - 2.0))) * r;  // f / (2 + f) = s + s1
  @d z = s * s, z1 = fma(s, s, -z) + 2.0 * s * s1;
{
    horner(
        "q",
        "z",
        0.11982743710987795,
        0.11675669511611574,
        0.133362695273756,
        0.15384558311987034,
        0.18181818845443093,
        0.2222222221778064,
        0.28571428571443863,
        0.3999999999999998,
    )
}
  q = q * z;
  @d w = 0.6666666666666666 + q, w1 = ((0.6666666666666666 - w) + q) + 3.700743415417188e-17;
  @d v = z * w, v1 = fma(z, w, -v) + fma(z, w1, z1 * w);
  @d t = s * v, t1 = fma(s, v, -t) + fma(s, v1, s1 * v);
  @d l = 2.0 * s + t, l1 = ((2.0 * s - l) + t) + fma(splat(x, 2.0), s1, t1);  // log(1 + f) = l + l1
  @d p = l * 1.4426950408889634;
  @d p1 = fma(l, splat(x, 1.4426950408889634), -p) + fma(l, splat(x, 2.0355273740931033e-17), l1 * 1.4426950408889634);
  @d g = k + p, g1 = ((k - g) + p) + p1;  // log2(x) = g + g1
  @d u = y * g, u1 = fma(y, g, -u) + y * g1;
  @d in = u < -1080.0 ? splat(x, -1080.0) : u;
  in = in > 1030.0 ? splat(x, 1030.0) : in;
  @d n = (in + 6755399441055744.0) - 6755399441055744.0;
  @d rest = in == u ? ((u - n) + u1) * 0.6931471805599453 : @d{{}};
  @d none;
  return pow_edges(x, y, scale(exp_reduce(rest, &none) + 1.0, n));
}}
""".strip()
