// amax_sub_exp_sum_div_0: aten.amax.default, aten.sub.Tensor, aten.exp.default, aten.sum.dim_IntList, aten.div.Tensor
static void amax_sub_exp_sum_div_0_part(float* __restrict buf0, long s75, long s9, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    f32x8 t1_all = splat(f32x8{}, -__builtin_inff());
    {
      for (long r0 = 0; r0 < s9; r0 += 8) {
        const long left = s9 - r0;
        const f32x8 t0 = load8(buf0 + i0 * s9 + r0, left);
        t1_all = max(keep_f32(t0, left, -__builtin_inff()), t1_all);
      }
    }
    const f32x8 t1 = fold_max(t1_all);
    f32x8 t5_all = {};
    f32x8 t5_all_carry = {};
    {
      for (long r0_tile = 0; r0_tile < s9; r0_tile += 1024) {
        const long r0_end = r0_tile + 1024 < s9 ? r0_tile + 1024 : s9;
        f32x8 t5_all_tile = {};
        for (long r0 = r0_tile; r0 < r0_end; r0 += 8) {
          const long left = s9 - r0;
          const f32x8 t2 = load8(buf0 + i0 * s9 + r0, left);
          const f32x8 t3 = t2 - t1;
          const f32x8 t4 = exp(t3);
          store8(buf0 + i0 * s9 + r0, t4, left);
          t5_all_tile += keep_f32(t4, left, 0.0f);
        }
        t5_all = add_carry(t5_all, t5_all_tile, &t5_all_carry);
      }
    }
    const f32x8 t5 = fold_sum(t5_all);
    const f32x8 t5_inverse = 1.0f / t5;
    {
      for (long r0 = 0; r0 < s9; r0 += 8) {
        const long left = s9 - r0;
        const f32x8 t6 = load8(buf0 + i0 * s9 + r0, left);
        const f32x8 t7 = quotient_by(t6, t5, t5_inverse);
        store8(buf0 + i0 * s9 + r0, t7, left);
      }
    }
  }
}

extern "C" void amax_sub_exp_sum_div_0(float* __restrict buf0, long s75, long s9) {
  const long units = s75;
  if ((s75 * s9 * 12) < 32768) return amax_sub_exp_sum_div_0_part(buf0, s75, s9, 0, units);
  auto work = [&](long thread, long threads) {
    amax_sub_exp_sum_div_0_part(buf0, s75, s9, units * thread / threads, units * (thread + 1) / threads);
  };
  parallel(work);
}
