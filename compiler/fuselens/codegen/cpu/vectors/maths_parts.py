"""Prelude parts that compute: vector maths, division, reductions and their last folds across lanes."""

from __future__ import annotations

from . import fast_maths as fast
from . import vector_maths as maths
from . import vector_maths_f64 as double
from .isa import Isa
from .parts import LIBM, REGISTER_C, TOKEN, Part, by_lanes, lanes

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
    parts.append(
        Part(
            "sign_of.f32",
            "static inline @f sign_of(@f x, @f y) {  // y, which has none\n"
            "  return (@f)((@i)y | ((@i)x & (int)0x80000000));\n}",
            ("types",),
        )
    )
    for kind, token in (("i32", "@i"), ("i64", "@l")):
        parts.append(
            Part(f"abs.{kind}", f"static inline {token} abs({token} x) {{ return x < 0 ? -x : x; }}", ("types",))
        )
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
    """``max`` and ``min`` give NaN when either operand is (fast ones when the second is); ``fmax`` and ``fmin`` only when
    both are."""
    parts = []
    for name, sign in (("max", ">"), ("min", "<")):
        for kind, token in (("f32", "@f"), ("f64", "@d")):
            builtin = _EXTREME_BUILTINS.get((token, width)) if isa.name in ("avx2", "avx512") else None
            fits = width * int(kind[1:]) // 8 <= isa.register
            # b when either is NaN, so: a when a is
            chosen = f"a != a ? a : {builtin % name}" if builtin and fits else f"(a {sign} b) | (a != a) ? a : b"
            plain = f"(a {sign} b) | (a != a) ? a : b"
            if isa.fast:
                plain = f"a {sign} b ? a : b"
                chosen = builtin % name if builtin and fits else plain
            text = f"static inline {token} {name}({token} a, {token} b) {{ return {chosen}; }}"
            if chosen != plain and width >= 8 and isa.register == 64:
                safe = f"static inline {token} {name}({token} a, {token} b) {{ return {plain}; }}"
                text = f"#ifdef __clang__\n{safe}\n#else\n{text}\n#endif"
            parts.append(Part(f"{name}.{kind}", text, ("types",)))
            other = (
                f"static inline {token} f{name}({token} a, {token} b) {{ return (a {sign}= b) | (b != b) ? a : b; }}"
            )
            parts.append(Part(f"f{name}.{kind}", other, ("types",)))
        for kind, token in (("i32", "@i"), ("i64", "@l")):
            text = f"static inline {token} {name}({token} a, {token} b) {{ return a {sign} b ? a : b; }}"
            parts.append(Part(f"{name}.{kind}", text, ("types",)))
    return parts


_WHOLE = """
static __attribute__((noinline, cold)) @l whole_{name}_far(@d x) {{
  @l r; for (int l = 0; l < @W; ++l) {{ {lane} }} return r;
}}
static inline @l whole_{name}(@d x) {{  // by adding 1.5 * 2**52, below whose bits the integer then lies
  if (__builtin_expect(any_lane(~(abs(x) < 0x1p51)), 0)) return whole_{name}_far(x);
  return (@l)(trunc(x) + 0x1.8p52) - 0x4338000000000000L;
}}"""


def _whole(width: int, isa: Isa) -> list[Part]:
    """Floats to integers. Where each lane is converted alone, GCC would make one rounding of this conversion and the one back to a
    float, which leaves -0.0 and what is no integer, unlike eager: it does not look through the empty instruction."""
    parts = []
    for name, result, c in (
        ("i32", "@i", "int"), ("i64", "@l", "long"), ("u32", "@i", "unsigned"), ("u64", "@l", "unsigned long"),
    ):  # fmt: skip
        long = name.endswith("64")
        lane = f'{c} n = ({c})x[l]; asm("" : "+r"(n)); r[l] = n;'
        for kind, token in (("f32", "@f"), ("f64", "@d")):
            needs = ("types",)
            text = f"static inline {result} whole_{name}({token} x) {{ "
            if width > 2 and (not long or isa.name == "avx512"):
                text += f"return ({result})__builtin_convertvector(x, {name}x@W); }}"
            elif width > 2 and isa.name == "avx2" and kind == "f32":
                text += f"return whole_{name}(__builtin_convertvector(x, @d)); }}"
                needs = (f"whole_{name}.f64",)
            elif width > 2 and isa.name == "avx2":
                text = _WHOLE.format(name=name, lane=lane)
                needs = ("any_lane", "abs.f64", "trunc.f64")
            else:
                text += f"{result} r; for (int l = 0; l < @W; ++l) {{ {lane} }} return r; }}"
            parts.append(Part(f"whole_{name}.{kind}", text, needs))
    return parts


_KEEP = """
// Lanes beyond the end of a row take no part in a reduction.
static inline {v} keep_{n}({v} x, long left, {s} identity) {
  if (__builtin_expect(left >= @W, 1)) return x;
  return {i}{{lanes}} < ({e})left ? x : {v}{{identities}};
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
        "sum": "v = v + %v;", "prod": "v = v * %v;", "max": "v = max(%v, v);", "min": "v = min(%v, v);",
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
struct arg_@N@W { @T best; @A at; };
// the {word} value and its lowest index; NaN wins
static inline void arg_{kind}(arg_@N@W* a, @T x, @A at) {
  auto better = {better};
  a->best = better ? x : a->best;
  a->at = to_@P(better) ? at : a->at;
}
static inline void arg_{kind}_next(arg_@N@W* a, @T x, @A at) {  // each lane's indices rise from call to call
  auto better = {next};
  a->best = better ? x : a->best;
  a->at = to_@P(better) ? at : a->at;
}
static inline @l arg_place(arg_@N@W a) { return to_i64(a.at == {none} ? a.at - a.at : a.at); }
static inline @l fold_arg_{kind}(arg_@N@W a) {
  arg_@N@W r = a;
{steps}
  return arg_place(r);
}""".strip()
ARG_NONE = {
    "i32": "0x7fffffff",
    "i64": "0x7fffffffffffffffL",
}  # the index while no value beats the identity: then it is 0


def _argument(kind: str, name: str, token: str, width: int, place: str) -> Part:
    """argmax or argmin of values of register kind ``name``, with indices in lanes of kind ``place``."""
    native = "to_i32" if name in ("f32", "i32") else "to_i64"
    sign, tie = ">" if kind == "max" else "<", f"{native}(at < a->at)"
    if name in ("f32", "f64"):
        better = f"(x {sign} a->best) | ((x != x) & (a->best == a->best)) | (((x == a->best) | ((x != x) & (a->best != a->best))) & {tie})"
        following = f"~(x {'<=' if kind == 'max' else '>='} a->best) & (a->best == a->best)"
    else:
        better = f"(x {sign} a->best) | ((x == a->best) & {tie})"
        following = f"x {sign} a->best"
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
        .replace("{better}", better)
        .replace("{next}", following)
        .replace("{none}", ARG_NONE[place])
        .replace("{steps}", "\n".join(steps))
        .replace("@N", f"{kind}_{name}_{place}_")
        .replace("@T", token)
        .replace("@A", "@i" if place == "i32" else "@l")
        .replace("@P", place)
    )
    return Part(f"arg.{kind}.{name}.{place}", text, ("types",))


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
    plain = by_lanes("fma", token, "__builtin_fmaf" if token == "@f" else "__builtin_fma", 3)
    builtin = _FMA_BUILTINS.get((token, width)) if isa.name in ("avx2", "avx512") else None
    if builtin is None or (token == "@d" and width * 8 > isa.register):
        return plain
    return (
        f"#ifdef __clang__\n{plain}\n#else\n"
        f"static inline {token} fma({token} x, {token} y, {token} z) {{ return {builtin}; }}\n#endif"
    )


def _any_lane(token: str, size: int, isa: Isa) -> str:
    """Whether a mask of ``size`` bytes has a lane that holds."""
    count = size // 8
    if not count or (token == "@l" and count == 1):
        return f"static inline int any_lane({token} m) {{ return m[0] != 0; }}"
    if isa.name in ("avx2", "avx512"):
        piece = min(4, count)
        pieces = [range(k, k + piece) for k in range(0, count, piece)]
        halves = [f"__builtin_shufflevector((all)m, (all)m, {', '.join(map(str, p))})" for p in pieces]
        found, test = (" | ".join(halves) if len(pieces) > 1 else "(words)m"), f"__builtin_ia32_ptestz{64 * piece}"
        types = f"typedef long long all __attribute__((vector_size({size}))), words __attribute__((vector_size({8 * piece})))"
        body = f"{types}; words found = {found}; return !{test}(found, found);"
        if isa.name == "avx512" and count >= 8:  # a mask of comparisons stays in a mask register
            pieces = [range(k, k + 8) for k in range(0, count, 8)]
            halves = [f"__builtin_shufflevector((all)m, (all)m, {', '.join(map(str, p))})" for p in pieces]
            found = " | ".join(halves) if len(pieces) > 1 else "(words)m"
            types = types.replace("vector_size(32)", "vector_size(64)")
            whole = f"{types}; words found = {found}; return __builtin_ia32_ptestmq512(found, found, (unsigned char)-1) != 0;"
            body = f"\n#ifdef __clang__\n  {body}\n#else\n  {whole}\n#endif\n"
    else:
        body = (
            f"typedef long words __attribute__((vector_size({size}))); long found = 0;"
            f" for (int l = 0; l < {count}; ++l) found |= ((words)m)[l]; return found != 0;"
        )
    return f"static inline int any_lane({token} m) {{ {body} }}"


def _limits(width: int, isa: Isa) -> list[Part]:
    """``at_most`` and ``at_least``: NaN stays what it is."""
    parts = []
    for name, builtin, sign in (("at_most", "min", ">"), ("at_least", "max", "<")):
        plain = text = f"static inline @f {name}(@f x, float c) {{ return x {sign} c ? splat(x, c) : x; }}"
        known = _EXTREME_BUILTINS.get(("@f", width)) if isa.name in ("avx2", "avx512") else None
        if known:
            call = (known % builtin).replace("(a, b", "(splat(x, c), x").replace(" a,", " x,")
            text = f"static inline @f {name}(@f x, float c) {{ return {call}; }}"
            text = f"#ifdef __clang__\n{plain}\n#else\n{text}\n#endif"
        parts.append(Part(f"{name}.f32", text, ("types", "splat.f32")))
    return parts


def maths_parts(width: int, wide: bool, isa: Isa) -> list[Part]:
    tools = "types", "splat.f32", "abs.f32", "copysign.f32", "any_lane"
    parts = [
        Part("any_lane", "\n".join(_any_lane(t, width * size, isa) for t, size in (("@i", 4), ("@l", 8))), ("types",)),
        Part(
            "iota",
            f"static inline @l iota@W(long start, long step) {{ return start + step * @l{{{lanes(width, '#')}}}; }}\n"
            f"static inline @i iota32_@W(int start, int step) {{ return start + step * @i{{{lanes(width, '#')}}}; }}",
            ("types",),
        ),
    ]
    for kind, token, scalar in (
        ("f32", "@f", "float"),
        ("f64", "@d", "double"),
        ("i32", "@i", "int"),
        ("i64", "@l", "long"),
    ):
        text = f"static inline {token} splat({token}, {scalar} x) {{ return {token}{{{lanes(width, 'x')}}}; }}"
        parts.append(Part(f"splat.{kind}", text, ("types",)))
    parts += _sign_parts()
    parts += _extremes(width, isa)
    parts += _limits(width, isa)
    parts += [
        Part(f"fma.{kind}", _fused(width, isa, token), ("types",)) for kind, token in (("f32", "@f"), ("f64", "@d"))
    ]
    for name in ("floor", "ceil", "trunc", "rint", "sqrt"):
        ours = "round_even" if name == "rint" else name
        parts.append(Part(f"{ours}.f32", by_lanes(ours, "@f", f"__builtin_{name}f"), ("types",)))
        parts.append(Part(f"{ours}.f64", by_lanes(ours, "@d", f"__builtin_{name}"), ("types",)))
    parts += _whole(width, isa)
    own: dict[str, tuple[str, tuple[str, ...]]] = {
        "exp": (maths.EXP, ("at_most.f32", "at_least.f32")),
        "exp2": (maths.EXP2, ("exp_reduce",)),
        "expm1": (maths.EXPM1, ("exp_reduce",)),
        "log": (maths.LOG, ("log_split",)),
        "log2": (maths.LOG2, ("log_split",)),
        "log10": (maths.LOG10, ("log_split",)),
        "log1p": (maths.LOG1P, ("log.f32",)),
        "sin": (maths.SIN, ("sin_cos", "libm.sinf")),
        "cos": (maths.COS, ("sin_cos", "libm.cosf")),
        "tan": (maths.TAN, ("turn", "libm.tanf")),
        "asin": (maths.ASIN, ("arc", "sqrt.f32")),
        "acos": (maths.ACOS, ("arc", "sqrt.f32")),
        "atan": (maths.ATAN, ("atan_near",)),
        "atan2": (maths.ATAN2, ("atan_near",)),
        "sinh": (maths.SINH, ("half_exp",)),
        "cosh": (maths.COSH, ("half_exp",)),
        "sigmoid": (maths.SIGMOID, ("exp_reduce",)),
        "tanh": (maths.TANH, ("at_most.f32", "sign_of.f32")),
        "erf": (maths.ERF, ("at_most.f32", "sign_of.f32")),
    }
    own |= {
        "erfc": (double.ERFC_F32, ("erf_parts.f64",)),
        "asinh": (double.ASINH_F32, ("log1p_of", "sqrt.f64")),
        "acosh": (double.ACOSH_F32, ("log1p_of", "sqrt.f64")),
        "atanh": (double.ATANH_F32, ("log1p_of",)),
        "hypot": (double.HYPOT_F32, ("fma.f64", "sqrt.f64")),
        "pow": (double.POW_F32, ("fma.f64", "splat.f64", "exp_reduce", "pow_edges.f32")),
    }
    if isa.fast:
        own |= fast.OWN | {"rsqrt": (fast.rsqrt(width, isa), ("sqrt.f32",))}
        parts.append(Part("fast_exp_reduce", fast.EXP_REDUCE, (*tools, "fma.f32")))
    own64: dict[str, tuple[str, tuple[str, ...]]] = {
        "exp": (double.EXP, ("exp_reduce.f64",)),
        "expm1": (double.EXPM1, ("exp_reduce.f64",)),
        "sigmoid": (double.SIGMOID, ("exp_reduce.f64",)),
        "tanh": (double.TANH, ("expm1.f64",)),
        "log": (double.LOG, ("log_core.f64", "log_edges.f64")),
        "log2": (double.LOG2, ("log_core.f64", "log_edges.f64")),
        "log10": (double.LOG10, ("log_core.f64", "log_edges.f64")),
        "log1p": (double.LOG1P, ("log_core.f64",)),
        "sin": (double.SIN, ("sin_cos.f64", "libm.sin")),
        "cos": (double.COS, ("sin_cos.f64", "libm.cos")),
        "erf": (double.ERF, ("erf_parts.f64",)),
        "pow": (double.POW, ("exp_reduce.f64", "log_edges.f64", "pow_edges.f64")),
    }
    tools64 = "types", "any_lane", "splat.f64", "abs.f64", "copysign.f64", "fma.f64"
    parts += [
        Part("exp_reduce.f64", double.EXP_REDUCE, tools64),
        Part("log_core.f64", double.LOG_CORE, tools64),
        Part("log_edges.f64", double.LOG_EDGES, tools64),
        Part("log1p_of", double.LOG1P_OF, ("log_core.f64",)),
        Part("sin_cos.f64", double.SIN_COS, (*tools64, "is_far")),
        Part("erf_parts.f64", double.ERF_PARTS, ("exp_reduce.f64",)),
        *(
            Part(f"pow_edges.{k}", double.POW_EDGES[k], (f"splat.{k}", f"abs.{k}", f"trunc.{k}"))
            for k in ("f32", "f64")
        ),
        Part("quotient_by.f32", maths.QUOTIENT_BY, ("any_lane", "fma.f32")),
        Part("exp_reduce", maths.EXP_REDUCE, (*tools, "fma.f32")),
        Part("log_split", maths.LOG_SPLIT, (*tools, "fma.f32")),
        Part("turn", maths.TURN, (*tools, "fma.f32", "is_far")),
        Part("sin_cos", maths.SIN_COS, ("turn",)),
        Part("arc", maths.ARC, (*tools, "fma.f32")),
        Part("atan_near", maths.ATAN_NEAR, (*tools, "fma.f32")),
        Part("half_exp", maths.SINH_COSH, ("exp_reduce",)),
    ]
    parts += [Part(f"{name}.f32", text, (*tools, "fma.f32", *needs)) for name, (text, needs) in own.items()]
    parts += [Part(f"{name}.f64", text, (*tools64, *needs)) for name, (text, needs) in own64.items()]
    for name, arity in LIBM.items():
        for kind, token, suffix in (("f32", "@f", "f"), ("f64", "@d", "")):
            if name in (own if kind == "f32" else own64):
                continue
            called = "lgamma" if name == "lgamma" else name + suffix  # lgammaf is coarse
            text = by_lanes(name, token, f"::{called}", arity)
            parts.append(Part(f"{name}.{kind}", text, ("types", f"libm.{called}")))
    for kind, token, scalar in (("f32", "@f", "float"), ("f64", "@d", "double")):
        parts.append(
            Part(
                f"division.{kind}",
                maths.FLOAT_DIVISION.replace("@T", token).replace("@S", scalar),
                (f"fmod.{kind}", f"trunc.{kind}", f"floor.{kind}", f"copysign.{kind}"),
            )
        )
        parts.append(Part(f"add_carry.{kind}", _KAHAN.replace("@T", token), ("types",)))
    for kind, token in (("i32", "@i"), ("i64", "@l")):
        text = f"{maths.INTEGER_QUOTIENT[kind]}\n{maths.INTEGER_DIVISION.replace('@V', token)}"
        parts.append(Part(f"int_division.{kind}", text, ("any_lane", "splat.f64", "abs.f64", "copysign.f64", "errors")))
        parts.append(
            Part(f"int_power.{kind}", by_lanes("int_pow", token, "::int_pow", 2), ("types", f"int_pow.{kind}"))
        )
        top = "31" if kind == "i32" else "63"
        parts.append(
            Part(
                f"shift.{kind}",
                f"static inline {token} shift_left({token} a, {token} b) {{ return (b < 0) | (b > {top}) ? {token}{{}} : a << (b & {top}); }}\n"
                f"static inline {token} shift_right({token} a, {token} b) {{ return a >> ((b < 0) | (b > {top}) ? {token}{{}} + {top} : b); }}",
                ("types",),
            )
        )
    for name, token in TOKEN.items():  # registers may share a C type, so each has a name of its own
        keep = _KEEP.replace("{n}", name).replace("{v}", token).replace("{s}", REGISTER_C[name])
        places, place = {"mask": ("@m", "@M"), "f64": ("@l", "long"), "i64": ("@l", "long")}.get(name, ("@i", "int"))
        keep = keep.replace("{i}", places).replace("{e}", place)
        keep = keep.replace("{lanes}", lanes(width, "#")).replace("{identities}", lanes(width, "identity"))
        parts.append(Part(f"keep.{name}", keep, ("types",)))
        parts += _folds(width, token, name)
        if name != "mask":
            parts += [_argument(kind, name, token, width, place) for kind in ("max", "min") for place in ("i32", "i64")]
    return parts
