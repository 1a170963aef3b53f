"""Words that no identifier of a unit can be: C++'s own, and the names of the prelude."""

from __future__ import annotations

from .scalar_ops import TABLE
from .vectors.parts import LIBM

KEYWORDS = (
    "asm auto bool break case char class const continue default delete do double else enum extern float for goto if"
    " inline int long namespace new operator private public register return short signed sizeof static struct switch"
    " template this throw try typedef union unsigned using void volatile while and or not xor main bf16 f16"
).split()
_OURS = (
    "left begin end first unit units row lo hi n u l count stop given step share chunk chunks work parallel thread threads splat copy_edge put_edge copy_rows fetch_rows stream stream_any add_carry"
    " to_i32 to_i64 whole_i32 whole_i64 whole_u32 whole_u64 whole_i64_far whole_u64_far bits round_even div_floor div_trunc mod_floor mod_trunc int_pow shift_left shift_right floor_div"
    " floor_mod least greatest bound wrap keep_f32 keep_f64 keep_i32 keep_i64 keep_mask"
    " arg_max arg_min arg_max_next arg_min_next arg_place any_far any_lane arc atan_near bf16_value erf_near erfc_far"
    " exp_reduce fast_exp_reduce float_to_half half_exp half_to_float half_value halves_product is_far join keep log1p_of"
    " log_core log_edges log_normal log_split narrow16 narrow8 not_zero pow2 pow_edges quotient quotient_by result"
    " round_bf16 round_f16 scale scan_each scan_lanes sign_extend sign_of sin_cos turn zero_extend at_least"
    " at_most fold_all fold_any fold_arg_max fold_arg_min fold_max fold_min fold_prod fold_sum"
)
RESERVED = frozenset([*KEYWORDS, *_OURS.split()]) | frozenset(TABLE) | frozenset(LIBM)
